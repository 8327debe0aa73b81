/*
 * The data of the shard that this process is: its directory, the store in it, and the directory of its checkpoint
 * files. io_data_open opens them once it is known which shard this is. On the loop's thread, or during the start off
 * the loop (off_loop.h).
 */
#ifndef AMPD_IO_DATA_H
#define AMPD_IO_DATA_H

#include "base/err.h"
#include "storage/datadir.h"
#include "storage/store.h"

#include <stdatomic.h>
#include <stdint.h>

struct ampd_server;

struct io_data {
    struct ampd_datadir dir;
    const char *checkpoint_dir; /* --checkpoint-dir, which shards may share, or the path of `dir`; borrowed */
    int checkpoint_lock_fd;     /* io_data_lock_checkpoints; -1: it is not locked */
    struct ampd_store *store;   /* for the writer's thread; before the core exists, for the start */
    struct ampd_store *reader;  /* for the reader's thread: pages of history */
    unsigned deletions;         /* deletions of models whose files are being removed (io_purge_pause) */
    atomic_bool full;           /* the writer's thread waits for room on the store's disk; written by that thread */
};

/* Sets the struct up with nothing open. */
void io_data_init(struct io_data *data);

/*
 * Locks this data directory, which is made if it does not exist, and opens the store in it; makes the checkpoint
 * directory, too. 0, or an error; io_data_close is due in both cases.
 */
int io_data_open(struct ampd_server *server, const char *path, struct amp_error *error);

/*
 * Locks --checkpoint-dir for this shard, of as many, until io_data_close. Without etcd nothing else keeps two processes
 * apart there: a copy of a data directory has a lock of its own. AMP_ELOCKED: another process is this shard. Where the
 * file system has no locks, a warning is all.
 */
int io_data_lock_checkpoints(struct ampd_server *server, uint32_t shards, struct amp_error *error);

/*
 * Close and open the store with its reader; the directory stays locked. Used while the store is replaced (refill.h).
 */
void io_data_close_store(struct io_data *data);
int io_data_open_store(struct ampd_server *server, struct amp_error *error);

/* Closes everything that is open. No thread may use it any more. */
void io_data_close(struct io_data *data);

#endif
