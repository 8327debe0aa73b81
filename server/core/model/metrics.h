/*
 * Loss and metrics of a step: what workers tell with their pushes, and the mean that the step's row has. They say
 * nothing to the server, and no verdict depends on them. Pure functions.
 */
#ifndef AMPD_METRICS_H
#define AMPD_METRICS_H

#include "base/err.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

/* The mean of a step: of what is added, in that order. Zeroed: of nothing. */
struct ampd_metrics_mean {
    struct ampd_metrics told; /* names, and how many have told each; values are what comes of the sums */
    double loss, loss_weight;
    double sums[AMPD_METRICS_MAX], weights[AMPD_METRICS_MAX];
};

/* 0, or AMP_EINVAL with a sentence: too many, a name that is none, a name that comes twice. */
int ampd_metrics_check(const struct ampd_metrics *metrics, struct amp_error *error);

/* Whether a mean can be that of a step with so many contributors. */
bool ampd_metrics_fit(const struct ampd_metrics *metrics, uint32_t contributors_count);

/* Adds what a contributor tells; of weight 0 it counts for nothing, as its gradients do. */
void ampd_metrics_add(struct ampd_metrics_mean *mean, float weight, const struct ampd_metrics *metrics);

struct ampd_metrics ampd_metrics_result(const struct ampd_metrics_mean *mean);

#endif
