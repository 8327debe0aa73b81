/*
 * The flat space of a model: where each parameter lies, and how the space is divided into blocks and segments.
 *
 *   parameters   |  a: 100 elements      |pad| b: 70        |pad| ...     each starts at a multiple of 64
 *   flat space   0                      128                256
 *   blocks       |<- block_elements ->|<- block_elements ->|<- the last may be short ->|
 *   segments     the part of one parameter that lies in one block; ordered by flat position
 *
 * Pad elements belong to no segment: they are zero in every tensor and in no norm, count or file.
 * Global block and parameter indexes name the leaves of the reduction trees, so a layout never depends on
 * the number of shards.
 */
#ifndef AMPD_LAYOUT_H
#define AMPD_LAYOUT_H

#include "amp/dtype.h"
#include "base/err.h"
#include "storage/records.h"

#include <stdint.h>

#define AMPD_ALIGN_ELEMENTS 64    /* start of each parameter: a cache line of the narrowest type */
#define AMPD_BLOCK_ELEMENTS 65536 /* of a server; the simulator runs with 64 */

/* The part of one parameter that lies in one block. */
struct ampd_segment {
    uint32_t parameter;
    uint32_t offset; /* its first element, counted within the block; a multiple of 64 */
    uint32_t count;  /* its elements, at least 1 */
    uint64_t first;  /* its first element, counted within the parameter */
};

struct ampd_layout {
    uint64_t block_elements; /* of every block but the last one, which may be shorter */
    uint64_t elements;       /* of the flat space, pads included; a multiple of 64 */
    uint64_t blocks;
    uint32_t parameters;
    uint64_t *starts;              /* [parameters] flat index of element 0 */
    uint64_t *sizes;               /* [parameters] elements without pads */
    uint64_t segments_count;       /* of all blocks */
    struct ampd_segment *segments; /* [segments_count] in flat order */
    uint64_t *block_segments;      /* [blocks + 1] index of the first segment of each block */
    uint32_t segments_max;         /* most segments of one block */
};

/*
 * Lays a checked specification out in blocks of block_elements (a multiple of 64). On success *layout is the
 * caller's (ampd_layout_free). AMP_ENOMEM; *layout is then NULL.
 */
int ampd_layout_new(const struct ampd_model_spec *spec, uint64_t block_elements, struct ampd_layout **layout);

/* Frees a layout; NULL is allowed. */
void ampd_layout_free(struct ampd_layout *layout);

/* Elements of a block (pads included): block_elements, or fewer in the last one. Any thread. */
uint32_t ampd_layout_block_elements(const struct ampd_layout *layout, uint64_t block);

/* The segments of a block, as a view, and how many they are: at least one, for no block is all pads. Any thread. */
const struct ampd_segment *ampd_layout_block(const struct ampd_layout *layout, uint64_t block, uint32_t *count);

/* The blocks of shard k of K: [*first, *first + *count), contiguous, possibly none. Any thread. */
void ampd_layout_shard(const struct ampd_layout *layout, uint32_t shard, uint32_t shards, uint64_t *first,
                       uint64_t *count);

#endif
