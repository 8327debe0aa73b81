/* The flat space of a model as the client lays it out, and the values of its blocks: pure functions. */
#ifndef AMPCLIENT_CORE_FLAT_LAYOUT_H
#define AMPCLIENT_CORE_FLAT_LAYOUT_H

#include "client/core/client_events.h"

/* The parameters in order, as the server lays them out: each begins at a multiple of 64 elements. */
struct ampclient_core_layout {
    uint32_t parameters;      /* their number */
    uint64_t *starts, *sizes; /* [parameters] flat index of the first element; number of elements without pads */
    uint64_t elements, blocks, block_elements; /* elements with pads, blocks, and elements of a block but the last */
    uint32_t *block_parameter;                 /* [blocks] index of the first parameter with an element in the block */
};

/*
 * Lays out the model of a Join's answer, which is borrowed. 0: to be freed by _close. AMP_EDATALOSS (a server's numbers
 * that no model can have), AMP_ENOMEM: nothing is held.
 */
int ampclient_core_layout_init(struct ampclient_core_layout *flat, const struct ampclient_join_answer *answer);
/* Frees and zeroes a layout; also a zeroed one. */
void ampclient_core_layout_close(struct ampclient_core_layout *flat);
/* Whether a later Join's answer has the same number and sizes of parameters, and the same blocks. */
bool ampclient_core_layout_same(const struct ampclient_core_layout *flat, const struct ampclient_join_answer *answer);
/* The blocks of shard `shard` of `shards`: from *first to *end - 1; none if they are equal. */
void ampclient_core_layout_shard(const struct ampclient_core_layout *flat, uint32_t shard, uint32_t shards,
                                 uint64_t *first, uint64_t *end);
/* The number of elements of a block, with pads; only the last block may have fewer than block_elements. */
uint32_t ampclient_core_layout_block_elements(const struct ampclient_core_layout *flat, uint64_t block);
/*
 * Whether `parameter` is an index of the model and has an element in the block. To visit the parameters of a block,
 * begin at block_parameter[block] and go on while this is true.
 */
bool ampclient_core_layout_in_block(const struct ampclient_core_layout *flat, uint32_t parameter, uint64_t block);
/* Whether the block holds elements of this parameter alone. */
bool ampclient_core_layout_fills(const struct ampclient_core_layout *flat, uint32_t parameter, uint64_t block);
/*
 * Copies those of a parameter's values, of `size` bytes each, that lie in the block to their place in `to`, the bytes
 * of the block. The parameter has elements there.
 */
void ampclient_core_layout_put(const struct ampclient_core_layout *flat, uint32_t parameter, const void *values,
                               size_t size, uint64_t block, void *to);
/*
 * The values of a block, of `size` bytes each: a view into values[p] if parameter p fills the block, else gathered into
 * scratch, which has room for block_elements values, with zeros for pads and for parameters whose values are NULL.
 */
const void *ampclient_core_layout_values(const struct ampclient_core_layout *flat, const void *const *values,
                                         size_t size, uint64_t block, void *scratch);

#endif
