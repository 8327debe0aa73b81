/*
 * The memory of one nghttp2 session, which is given back as a whole.
 *
 * nghttp2 1.52 does not always survive a failed allocation: with NO_RFC7540_PRIORITIES, a queue that cannot grow leaves
 * a freed item on its stream, which nghttp2_session_del frees again. So a session is never closed by nghttp2: all its
 * blocks are freed instead, without looking at what they are. (nghttp2_session_del does nothing else either.)
 */
#ifndef ARPC_H2_MEMORY_H
#define ARPC_H2_MEMORY_H

#include "base/list.h"

#include <nghttp2/nghttp2.h>

struct arpc_memory {
    nghttp2_mem mem;          /* for nghttp2_session_*_new3; points to this struct */
    const nghttp2_mem *under; /* where blocks come from; NULL: the C library */
    struct amp_list blocks;
};

/* NULL without memory. */
struct arpc_memory *arpc_memory_new(const nghttp2_mem *under);

/* Frees all blocks, and it; NULL is allowed. */
void arpc_memory_free(struct arpc_memory *memory);

#endif
