/*
 * Taking blocks out of a worker's slot of shared memory (attach_memory.h), on a compute thread: each element is read
 * once, while it is copied, tested and, where the worker pushes alone, voted on. To vote on the blocks later would mean
 * to read them from memory again, for as many milliseconds as the copy takes.
 */
#ifndef AMPD_IO_SLOT_TAKE_H
#define AMPD_IO_SLOT_TAKE_H

#include "server/core/events.h"
#include "server/io/base/threads.h"

#include <stdbool.h>
#include <stdint.h>

/* Most blocks of one take: a tenth of a millisecond, compared with which waking a thread costs little. */
#define IO_TAKE_MAX 8

struct io_slot_take {
    struct io_task task; /* its done_cb is the owner's */

    /* Set by the owner. The memory at `to` is granted by the core until the take is done. */
    const struct amp_kernels *kernels;
    const struct ampd_layout *layout;
    enum amp_dtype dtype;
    uint64_t first;      /* first block, in the flat space */
    uint32_t count;      /* number of blocks, at most IO_TAKE_MAX */
    size_t stride;       /* bytes from one block to the next, in both memories */
    const uint8_t *from; /* where the first block begins in the slot, */
    uint64_t left;       /* and the bytes of the slot from there on */
    uint8_t *to;
    bool votes_too; /* the blocks are voted on, by these terms (ampd_core_vote_terms) */
    struct ampd_vote_terms terms;

    /* Results. */
    uint32_t whole;                    /* how many blocks were copied, from the first on; less: the slot ends there */
    uint32_t segments[IO_TAKE_MAX];    /* how many segments each of them has */
    struct ampd_segment_count *counts; /* [count][layout->segments_max] */
    struct amp_pass_vote *votes;       /* the same, if votes_too */
};

/* Prepares a take whose fields the owner has set, for io_threads_submit. AMP_ENOMEM: nothing is to be closed. */
int io_slot_take_open(struct io_slot_take *take);

/* Frees what the take owns. No thread may run it. */
void io_slot_take_close(struct io_slot_take *take);

/* The event for the i-th block, which points into the take. i < take->whole. */
struct ampd_event io_slot_take_event(const struct io_slot_take *take, uint32_t i);

#endif
