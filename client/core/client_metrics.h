/* What the user tells of the step in hand, for its row in the history: its loss, and other numbers by their names. */
#ifndef AMPCLIENT_CORE_METRICS_H
#define AMPCLIENT_CORE_METRICS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* As the server's: how many, the bytes of a name with the final zero, and what is not in one. */
#define AMPCLIENT_METRICS_MAX     8
#define AMPCLIENT_METRIC_NAME_MAX 33
#define AMPCLIENT_METRIC_WITHOUT  "=;"

struct ampclient_core;

struct ampclient_core_metrics {
    bool has_loss;
    float loss;
    uint32_t count;
    struct {
        char name[AMPCLIENT_METRIC_NAME_MAX]; /* the rest is zero */
        float value;
    } items[AMPCLIENT_METRICS_MAX];
};

/*
 * The loss of this worker's samples, and another number; a name that comes again has the newer value. Until step_end;
 * forgotten with the step. AMP_ESTATE, AMP_EINVAL with a text; 0, and nothing done, after a rollback.
 */
int ampclient_core_loss(struct ampclient_core *core, float loss, struct amp_error *error);
int ampclient_core_metric(struct ampclient_core *core, const char *name, float value, struct amp_error *error);

#endif
