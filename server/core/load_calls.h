/* What a Load stream brings to the core, and where its blocks go (see call_events.h and call_outputs.h). */
#ifndef AMPD_LOAD_CALLS_H
#define AMPD_LOAD_CALLS_H

#include "server/core/model/layout.h"
#include "server/core/model/load_base.h"

#include <stdint.h>

/* Planes are the tensors of a block: 0 the masters, 1 and 2 the moments. */
#define AMPD_PLANES_MAX 3

/* The header of a Load stream. */
struct ampd_event_load {
    const char *model;
    uint64_t loader; /* the number by which the client names this load on every shard; 0, with one shard: none */
    /* What a full load, which has moments and user states too, goes on from. NULL: first values, masters alone. */
    const struct ampd_load_base *base;
};

/* The user state that a rank had pushed with the step that a full load goes on from. */
struct ampd_event_load_state {
    uint32_t rank; /* within the model's world */
    const uint8_t *data;
    uint32_t size; /* 1 to AMPD_USER_STATE_MAX */
};

/*
 * Where the blocks of a granted Load stream go: block b of plane p, 4 bytes an element, to planes[p] + (b - first) *
 * block_elements. All blocks may be sent at once, in any order, and with a full load user states.
 */
struct ampd_load_grant {
    uint32_t model; /* its index */
    const struct ampd_layout *layout;
    uint64_t first, count; /* the blocks of this shard */
    uint32_t planes_count; /* planes that the load brings; 1: the masters alone */
    float *planes[AMPD_PLANES_MAX];
    uint32_t world_size; /* ranks below it may have a user state; 0: it is no full load */
};

#endif
