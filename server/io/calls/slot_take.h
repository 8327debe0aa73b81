/*
 * A task that takes blocks out of a worker's slot of shared memory (attach_memory.h), on a compute thread: each element
 * is read once, and is then copied, tested and, where the worker is the only contributor, voted on. A vote later would
 * read the blocks from memory again, which takes about as long as the copy.
 *
 * All functions are called on the loop, while no thread runs the task.
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
    uint64_t first;               /* first block, in the flat space */
    uint32_t count;               /* number of blocks, at most IO_TAKE_MAX */
    size_t stride;                /* bytes from one block to the next, in both memories */
    const uint8_t *from;          /* where the first block begins in the slot */
    uint64_t left;                /* bytes of the slot from `from` on */
    uint8_t *to;                  /* where the copy of the first block begins */
    bool has_terms;               /* the blocks are voted on, by `terms` */
    struct ampd_vote_terms terms; /* has_terms: those of ampd_core_vote_terms */

    /* Results. */
    uint32_t whole;                    /* how many blocks were copied, from the first on; less: the slot ends there */
    uint32_t segments[IO_TAKE_MAX];    /* how many segments each copied block has */
    struct ampd_segment_count *counts; /* [count][layout->segments_max], owned */
    struct amp_pass_vote *votes;       /* [count][layout->segments_max], owned; set if has_terms */
};

/*
 * Allocates the results of a take whose other fields the owner has set, so that the task can be submitted
 * (io_threads_submit). 0, or AMP_ENOMEM: nothing is to be closed.
 */
int io_slot_take_open(struct io_slot_take *take);

/* Frees the results. */
void io_slot_take_close(struct io_slot_take *take);

/* AMPD_EVENT_PUSH_BLOCK for the i-th block; points into the take. i < take->whole. */
struct ampd_event io_slot_take_event(const struct io_slot_take *take, uint32_t i);

#endif
