/*
 * Checkpoint files of this shard, on the files' thread: the shard's part of a checkpoint is written while training goes
 * on, and read back at a restore. Functions run on the loop's thread; results come as events for the core.
 */
#ifndef AMPD_IO_CHECKPOINT_FILES_H
#define AMPD_IO_CHECKPOINT_FILES_H

#include "base/list.h"
#include "server/core/core.h"

#include <uv.h>

struct ampd_server;
struct ampd_checkpoint_target;

struct io_checkpoint_files {
    struct amp_list cuts; /* parts that are being written, owned */
    uv_timer_t timer;     /* runs while a part waits to be tried again */
    unsigned retried;     /* parts of which a task has failed and is tried again; used by the files' thread only */
};

/* Sets the struct up, which must be zeroed; no part is being written. */
void io_checkpoint_files_init(struct io_checkpoint_files *files);

/* Opens and closes the timer. The loop must run on after the close. */
void io_checkpoint_files_open(struct ampd_server *server);
void io_checkpoint_files_close(struct ampd_server *server);

/*
 * For the core's outputs about one part, which order->token names. A part is begun; its blocks follow, each range
 * answered by PART_BLOCKS when it is written; then PART_WRITTEN comes with code 0 and the record for the catalogue. A
 * cancel is answered by PART_WRITTEN with AMP_ECANCELLED, unless the file was complete already; it has no effect on a
 * token that is not known any more. Spec, layout, state and tensors are borrowed until then. A full disk is waited for;
 * any other failure of a write ends the process.
 */
void io_checkpoint_files_cut(struct ampd_server *server, const struct ampd_part_order *order);
void io_checkpoint_files_cut_blocks(struct ampd_server *server, const struct ampd_part_blocks *blocks);
void io_checkpoint_files_cut_cancel(struct ampd_server *server, uint64_t token);

/* At the end of the process, when the threads have ended: drops the parts that are not complete. No event comes. */
void io_checkpoint_files_drop(struct ampd_server *server);

/*
 * Reads a checkpoint into order->tensors, which are borrowed, as is the spec. Gives the core RESTORED with the state of
 * the checkpoint, or with a code, whose reason is logged.
 */
void io_checkpoint_files_restore(struct ampd_server *server, const struct ampd_restore_order *order);

/*
 * All parameters of order->spec, each with the range of its elements that this shard has, and where in order->tensors
 * they go. The caller frees the array, which borrows from the order. NULL: out of memory. Any thread.
 */
struct ampd_checkpoint_target *io_checkpoint_files_targets(const struct ampd_restore_order *order);

#endif
