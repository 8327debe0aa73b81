#include "server/core/model/metrics.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

/* They stand between names and values where several metrics are one text (`ampctl -o csv`). */
#define NOT_IN_NAMES "=;"

static uint32_t find(const struct ampd_metrics *metrics, const char *name)
{
    uint32_t i = 0;
    while (i < metrics->count && strcmp(metrics->items[i].name, name) != 0)
        i++;
    return i;
}

int ampd_metrics_check(const struct ampd_metrics *metrics, struct amp_error *error)
{
    if (metrics->count > AMPD_METRICS_MAX)
        return amp_error_set(error, AMP_EINVAL, "METRIC", "trailer.metrics: %u of them; give up to %d", metrics->count,
                             AMPD_METRICS_MAX);
    for (uint32_t i = 0; i < metrics->count; i++) {
        const char *name = metrics->items[i].name;
        if (!amp_text_is_name(name, AMPD_METRIC_NAME_MAX - 1, NOT_IN_NAMES))
            return amp_error_set(error, AMP_EINVAL, "METRIC",
                                 "trailer.metrics: a name of %zu bytes; give 1 to %d bytes of UTF-8 without control "
                                 "characters, = and ;",
                                 strnlen(name, AMPD_METRIC_NAME_MAX), AMPD_METRIC_NAME_MAX - 1);
        if (find(metrics, name) < i)
            return amp_error_set(error, AMP_EINVAL, "METRIC", "trailer.metrics: %s comes twice; give each name once",
                                 name);
    }
    return 0;
}

bool ampd_metrics_fit(const struct ampd_metrics *metrics, uint32_t contributors_count)
{
    struct amp_error error = {0};
    bool fit = ampd_metrics_check(metrics, &error) == 0 && metrics->loss_workers <= contributors_count;
    for (uint32_t i = 0; fit && i < metrics->count; i++)
        fit = metrics->items[i].workers > 0 && metrics->items[i].workers <= contributors_count;
    return fit;
}

void ampd_metrics_add(struct ampd_metrics_mean *mean, float weight, const struct ampd_metrics *metrics)
{
    if (weight == 0) /* an Inf of its loss times 0 would be NaN */
        return;
    if (metrics->loss_workers > 0) {
        mean->loss += (double)weight * (double)metrics->loss;
        mean->loss_weight += (double)weight;
        mean->names.loss_workers++;
    }
    for (uint32_t i = 0; i < metrics->count; i++) {
        uint32_t at = find(&mean->names, metrics->items[i].name);
        if (at == AMPD_METRICS_MAX)
            continue; /* workers tell unlike names: the first ones are kept */
        if (at == mean->names.count) {
            memcpy(mean->names.items[at].name, metrics->items[i].name, AMPD_METRIC_NAME_MAX);
            mean->names.count++;
        }
        mean->sums[at] += (double)weight * (double)metrics->items[i].value;
        mean->weights[at] += (double)weight;
        mean->names.items[at].workers++;
    }
}

/* What NaN a processor makes of Inf - Inf is its own: a row has one, so that its bits are the same everywhere. */
static float quotient(double sum, double weight)
{
    float value = (float)(sum / weight);
    return isnan(value) ? NAN : value;
}

struct ampd_metrics ampd_metrics_result(const struct ampd_metrics_mean *mean)
{
    struct ampd_metrics result = mean->names;
    if (result.loss_workers > 0)
        result.loss = quotient(mean->loss, mean->loss_weight);
    for (uint32_t i = 0; i < result.count; i++)
        result.items[i].value = quotient(mean->sums[i], mean->weights[i]);
    return result;
}
