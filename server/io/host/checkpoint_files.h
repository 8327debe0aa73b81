/* Checkpoint files of this shard, on the files' thread: cut beside training, and read back. */
#ifndef AMPD_IO_CHECKPOINT_FILES_H
#define AMPD_IO_CHECKPOINT_FILES_H

#include "base/list.h"
#include "server/core/core.h"

#include <uv.h>

struct ampd_server;
struct ampd_checkpoint_target;

struct io_checkpoint_files {
    struct amp_list cuts; /* being written */
    uv_timer_t timer;     /* runs while one waits for room */
    unsigned told;        /* those that have found none; the thread's */
};

void io_checkpoint_files_init(struct io_checkpoint_files *files);

/* Its handle on the loop. */
void io_checkpoint_files_open(struct ampd_server *server);
void io_checkpoint_files_close(struct ampd_server *server);

/* Begins a file; blocks of it follow, or it is cancelled. */
void io_checkpoint_files_cut(struct ampd_server *server, const struct ampd_part_order *order);
void io_checkpoint_files_cut_blocks(struct ampd_server *server, const struct ampd_part_blocks *blocks);
void io_checkpoint_files_cut_cancel(struct ampd_server *server, uint64_t token);

/* Drops the parts that a server which closes leaves; its threads are gone. */
void io_checkpoint_files_drop(struct ampd_server *server);

/* Reads a model back. */
void io_checkpoint_files_restore(struct ampd_server *server, const struct ampd_restore_order *order);

/* All parameters of a model, with what of each a shard has. The caller frees the array. NULL: out of memory. */
struct ampd_checkpoint_target *io_checkpoint_files_targets(const struct ampd_restore_order *order);

#endif
