/*
 * Loss and metrics of a step: what workers send with their pushes, and the mean that the step's row has. They mean
 * nothing to the server, and no verdict depends on them. Pure functions.
 */
#ifndef AMPD_METRICS_H
#define AMPD_METRICS_H

#include "base/err.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

/* A mean that is being formed, of what is added in that order. Zeroed, it is that of nothing. */
struct ampd_metrics_mean {
    struct ampd_metrics names; /* which metrics were sent, and by how many workers; values are not used */
    double loss, loss_weight;  /* weighted sum of the losses, and the sum of their weights */
    double sums[AMPD_METRICS_MAX], weights[AMPD_METRICS_MAX]; /* of each metric in the same way */
};

/* 0, or AMP_EINVAL with a sentence: too many metrics, a name that is none, or a name that comes twice. */
int ampd_metrics_check(const struct ampd_metrics *metrics, struct amp_error *error);

/* Whether a mean can be that of a step with this number of contributors. */
bool ampd_metrics_fit(const struct ampd_metrics *metrics, uint32_t contributors_count);

/* Adds what a contributor has sent. One of weight 0 counts for nothing, as its gradients do. */
void ampd_metrics_add(struct ampd_metrics_mean *mean, float weight, const struct ampd_metrics *metrics);

/* The means of all that was added, as fp32, with the number of workers behind each. */
struct ampd_metrics ampd_metrics_result(const struct ampd_metrics_mean *mean);

#endif
