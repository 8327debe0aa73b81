/* Counts of a method: a call when it begins and when it is over, and its messages. */
#include "rpc/h2/stats.h"

#include "base/assert.h"
#include "rpc/arpc_stats.h"

static int64_t now_us(const struct arpc_link_config *config)
{
    return config->now_us_cb != NULL ? config->now_us_cb(config->clock) : config->now_cb(config->clock) * 1000;
}

void arpc_stats_begin(struct arpc_call *call)
{
    call->counted = call->stats;
    if (call->counted == NULL)
        return;
    call->counted->started++;
    call->began_us = now_us(call->link->config);
}

void arpc_stats_end(struct arpc_call *call)
{
    static const double bounds[ARPC_STATS_BUCKETS - 1] = ARPC_STATS_BOUNDS;
    struct arpc_method_stats *stats = call->counted;
    if (stats == NULL)
        return;
    call->counted = NULL;
    int64_t took_us = now_us(call->link->config) - call->began_us;
    size_t bucket = 0;
    while (bucket < ARPC_STATS_BUCKETS - 1 && (double)took_us > bounds[bucket] * 1e6)
        bucket++;
    AMP_ASSERT(call->status >= 0 && call->status < ARPC_STATUS_COUNT);
    stats->handled[call->status]++;
    stats->buckets[bucket]++;
    stats->total_us += took_us > 0 ? (uint64_t)took_us : 0;
}
