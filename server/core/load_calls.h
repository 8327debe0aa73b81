/* What Load brings to the core, and where its blocks go (call_events.h, call_outputs.h). */
#ifndef AMPD_LOAD_CALLS_H
#define AMPD_LOAD_CALLS_H

#include "server/core/model/layout.h"
#include "server/core/model/load_base.h"

#include <stdint.h>

/* Tensors of a block: masters, and up to two moments. */
#define AMPD_PLANES_MAX 3

struct ampd_event_load {
    const char *model;
    uint64_t loader; /* a number that the client gave its load on every shard; 0: none, where there is one shard */
    const struct ampd_load_base *base; /* of a full load, which has the moments too; NULL: first values alone */
};

/* What a rank had pushed with the step that a full load goes on from. */
struct ampd_event_load_state {
    uint32_t rank; /* within the model's world */
    const uint8_t *data;
    uint32_t size; /* 1 to AMPD_USER_STATE_MAX */
};

/*
 * Load: block b of plane p, with 4 bytes an element, goes to planes[p] + (b - first) * block_elements. All may be sent,
 * and with a full load user states.
 */
struct ampd_load_grant {
    uint32_t model;
    const struct ampd_layout *layout;
    uint64_t first, count; /* the blocks of this shard */
    uint32_t planes_count; /* 1: masters alone */
    float *planes[AMPD_PLANES_MAX];
    uint32_t world_size; /* ranks that may have a user state; 0 where it is no full load */
};

#endif
