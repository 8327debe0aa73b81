/*
 * What is left of deleted models, rows and files, and checkpoint files that a crash or another process of this shard
 * has left.
 */
#ifndef AMPD_IO_PURGE_H
#define AMPD_IO_PURGE_H

#include "base/err.h"
#include "storage/records.h"

#include <stddef.h>

struct ampd_server;

/* Takes the rows of deleted models out of the store, in portions between the writes of others. */
void io_purge(struct ampd_server *server);

/*
 * Between the two, which are as many, no portion begins: rows are what a start knows a deletion by, whose files are not
 * gone yet. io_purge afterwards goes on.
 */
void io_purge_pause(struct ampd_server *server);
void io_purge_resume(struct ampd_server *server);

/* A model is stored nowhere any more, and the core is about to forget it. */
void io_purge_model_deleted(struct ampd_server *server, const char *model);

/*
 * All models are ready, so SYNC has let the catalogues pass: in a directory that is shared (model_files.h), files that
 * they do not name go, and what was left of deletions. No effect elsewhere. What cannot be removed is left to the next
 * process.
 */
void io_purge_sweep(struct ampd_server *server);

/*
 * At start, off the loop: the files that a crash has left of deletions. `records` are the models that there are. 0 or
 * an error.
 */
int io_purge_sweep_deleted(struct ampd_server *server, const struct ampd_model_record *records, size_t count,
                           struct amp_error *error);

#endif
