#include "client/core/client_metrics.h"

#include "base/text.h"
#include "client/core/machine.h"

#include <string.h>

/* Whether loss and metrics of the step in hand may be set: 1; 0 after a rollback, which voids it; or an error. */
static int takes_metrics(const struct ampclient_core *core, struct amp_error *error)
{
    if (core->state == AMPCLIENT_STATE_ROLLED_BACK)
        return 0;
    if (core->state != AMPCLIENT_STATE_COMPUTING)
        return amp_error_set(error, AMP_ESTATE, NULL, "no step has begun: call ampclient_step_begin first");
    if (core->push.closed)
        return amp_error_set(error, AMP_ESTATE, NULL,
                             "step %llu has been ended; give its loss and metrics before ampclient_step_end",
                             (unsigned long long)core->step);
    return 1;
}

int ampclient_core_loss(struct ampclient_core *core, float loss, struct amp_error *error)
{
    int rc = takes_metrics(core, error);
    if (rc != 1)
        return rc;
    core->push.metrics.has_loss = true;
    core->push.metrics.loss = loss;
    return 0;
}

int ampclient_core_metric(struct ampclient_core *core, const char *name, float value, struct amp_error *error)
{
    struct ampclient_core_metrics *metrics = &core->push.metrics;
    if (name == NULL || !amp_text_is_name(name, AMPCLIENT_METRIC_NAME_MAX - 1, AMPCLIENT_METRIC_WITHOUT))
        return amp_error_set(
            error, AMP_EINVAL, NULL,
            "This is not a name for a metric; give 1 to %d bytes of UTF-8 without control characters, = "
            "and ;.",
            AMPCLIENT_METRIC_NAME_MAX - 1);
    int rc = takes_metrics(core, error);
    if (rc != 1)
        return rc;
    uint32_t i = 0;
    while (i < metrics->count && strcmp(metrics->items[i].name, name) != 0)
        i++;
    if (i == AMPCLIENT_METRICS_MAX)
        return amp_error_set(error, AMP_EINVAL, NULL, "The step has %d metrics already, and %s is not one of them.",
                             AMPCLIENT_METRICS_MAX, name);
    metrics->count += i == metrics->count ? 1 : 0;
    memcpy(metrics->items[i].name, name, strlen(name)); /* the rest is zero */
    metrics->items[i].value = value;
    return 0;
}
