/* The flat space of a model, as the worker's machine counts in it. Private to client/core. */
#ifndef AMPCLIENT_CORE_FLAT_LAYOUT_H
#define AMPCLIENT_CORE_FLAT_LAYOUT_H

#include "client/core/client_core.h"

/* The flat space, as the server lays it out: parameters one behind the other, each at a multiple of 64. */
struct ampclient_core_layout {
    uint32_t parameters;
    uint64_t *starts, *sizes; /* [parameters] */
    uint64_t elements, blocks, block_elements;
    uint32_t *block_parameter; /* [blocks] the first parameter with an element in the block */
};

int ampclient_core_layout_init(struct ampclient_core_layout *flat, const struct ampclient_join_answer *answer);
void ampclient_core_layout_close(struct ampclient_core_layout *flat);
bool ampclient_core_layout_same(const struct ampclient_core_layout *flat, const struct ampclient_join_answer *answer);
/* Blocks of shard k of K. */
void ampclient_core_layout_shard(const struct ampclient_core_layout *flat, uint32_t shard, uint32_t shards,
                                 uint64_t *first, uint64_t *end);
uint32_t ampclient_core_layout_block_elements(const struct ampclient_core_layout *flat, uint64_t block);
/* Whether a part of the parameter lies in the block; parameters are visited from block_parameter[block] on. */
bool ampclient_core_layout_in_block(const struct ampclient_core_layout *flat, uint32_t parameter, uint64_t block);

#endif
