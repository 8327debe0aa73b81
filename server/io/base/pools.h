/*
 * The threads beside the loop, by what they do:
 *
 *   compute   jobs of the core: blocks of the vote and apply passes
 *   writer    the store's writing handle, in the order that the core gave
 *   readers   the store's reading handle: pages of history
 *   files     checkpoint files: written in the background, read at start
 *   journal   votes of models with durability step, synced before they leave; read at start
 */
#ifndef AMPD_IO_POOLS_H
#define AMPD_IO_POOLS_H

#include "server/io/base/threads.h"

#include <stdatomic.h>

struct io_pools {
    struct io_threads *compute, *writer, *readers, *files, *journal;
    atomic_bool stop_waiting; /* io_pools_stop_waiting; read on any thread */
};

/* Nothing runs yet. */
void io_pools_init(struct io_pools *pools);

/* Starts them all. AMP_ENOMEM; those that run already are closed with the rest (process/drain.c). */
int io_pools_open(struct io_pools *pools, uv_loop_t *loop, unsigned compute_threads, struct amp_error *error);

/* Tasks that wait for space on the disk give up: the process ends. */
void io_pools_stop_waiting(struct io_pools *pools);

#endif
