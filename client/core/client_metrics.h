/* What the user sends along with a step: the loss and other numbers for its row in the history, and the user state. */
#ifndef AMPCLIENT_CORE_METRICS_H
#define AMPCLIENT_CORE_METRICS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The server's limits: metrics of a step, bytes of a name with the final zero, and characters that no name has. */
#define AMPCLIENT_METRICS_MAX     8
#define AMPCLIENT_METRIC_NAME_MAX 33
#define AMPCLIENT_METRIC_WITHOUT  "=;"

struct ampclient_core;

struct ampclient_core_metrics {
    bool has_loss; /* a loss was reported */
    float loss;
    uint32_t count; /* of items */
    struct {
        char name[AMPCLIENT_METRIC_NAME_MAX]; /* zeros fill the rest */
        float value;
    } items[AMPCLIENT_METRICS_MAX];
};

/*
 * Set the loss of this worker's samples, and another number by its name, for the trailer of the push; a newer value
 * replaces an older one, and all are forgotten with the step. AMP_ESTATE (no step is begun, or step_end was called),
 * AMP_EINVAL (no valid name, or a ninth one) with a text; 0, and nothing done, after a rollback. With the lock.
 */
int ampclient_core_loss(struct ampclient_core *core, float loss, struct amp_error *error);
int ampclient_core_metric(struct ampclient_core *core, const char *name, float value, struct amp_error *error);

/*
 * Sets the bytes that go with the pushes from now on (copied), as ampclient_set_user_state does. They are in the header
 * of a push, before the gradients: a push under way begins again with them. With units the gradients are gone by then,
 * so AMP_ESTATE after a step's first scatter. Else 0, AMP_EINVAL (more than AMPCLIENT_USER_STATE_MAX bytes) or
 * AMP_ENOMEM, with a text; the earlier state stays. With the lock.
 */
int ampclient_core_set_user_state(struct ampclient_core *core, const void *data, size_t size, struct amp_error *error);

#endif
