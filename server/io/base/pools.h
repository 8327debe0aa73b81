/*
 * The threads beside the loop's, by their work. All but compute are one thread each, which keeps the order of its
 * tasks:
 *
 *   compute   jobs of the core: blocks of the vote and apply passes; also allocates shared memory, and frees large
 *             memory
 *   writer    all writing to the store, in the order of the core's outputs, and no other work on a disk that has room
 *   readers   reading the store: pages of history
 *   exports   reading checkpoint files for ReadCheckpoint, and looking for some for CreateModel: their disk may be
 *             another one than the store's, and hang
 *   files     checkpoint files: written beside the steps, read at a restore. With --checkpoint-memory 100, where
 *             steps hardly wait for them, a background thread, but for restores and from the beginning of a drain on.
 *             Removes all files of deleted models, journals too
 *   journal   votes of models with `durability: step`: synced before they are sent, read at a start
 */
#ifndef AMPD_IO_POOLS_H
#define AMPD_IO_POOLS_H

#include "server/io/base/threads.h"

#include <stdatomic.h>

struct ampd_server_options;

struct io_pools {
    struct io_threads *compute, *writer, *readers, *exports, *files, *journal;
    atomic_bool stop_waiting; /* io_pools_stop_waiting was called; read on any thread */
};

/* Sets the struct up without any thread. */
void io_pools_init(struct io_pools *pools);

/*
 * Starts all threads. On the loop's thread. After AMP_ENOMEM those that were started run on, until the process ends
 * (process/drain.c).
 */
int io_pools_open(struct io_pools *pools, uv_loop_t *loop, const struct ampd_server_options *options,
                  struct amp_error *error);

/* Makes tasks that wait for room on the disk give up, since the process ends. Any thread. */
void io_pools_stop_waiting(struct io_pools *pools);

#endif
