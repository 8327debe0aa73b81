/*
 * Removes what is left over: rows and files of deleted models, and checkpoint files that a crash or another process of
 * this shard has left. Functions run on the loop's thread, except io_purge_sweep_deleted.
 */
#ifndef AMPD_IO_PURGE_H
#define AMPD_IO_PURGE_H

#include "base/err.h"
#include "storage/records.h"

#include <stddef.h>

struct ampd_server;

/*
 * Begins to remove the rows of deleted models from the store, on the writer's thread, in portions between which other
 * records are stored. No effect while it is paused. Where it stops early (no room, a drain), the next call or start
 * goes on.
 */
void io_purge(struct ampd_server *server);

/*
 * Pauses and resumes io_purge, in pairs that may overlap: while a model's files are being removed, its rows must stay,
 * since after a crash the next start finds the unfinished deletion by them. No portion is begun meanwhile. After the
 * last resume io_purge is to be called again.
 */
void io_purge_pause(struct ampd_server *server);
void io_purge_resume(struct ampd_server *server);

/*
 * Ends the watchers of a model (watchers.h) and clears its counts. To be called when the model is deleted from the
 * store, just before the core gets PERSISTED.
 */
void io_purge_model_deleted(struct ampd_server *server, const char *model);

/*
 * Removes from a shared checkpoint directory (io_model_files_shared) the files of this shard that the catalogues do not
 * name, and the files of unfinished deletions, on the files' thread. To be called once all models are ready: by then
 * the shards have agreed on their catalogues (SYNC). No effect without a shared directory. What cannot be removed stays
 * for the next process.
 */
void io_purge_sweep(struct ampd_server *server);

/*
 * At a start, before there is a core: removes the files that a crash has left of deleted models, whose rows are still
 * in the store. `records` are the models that exist; their files stay. Blocks on the disk, off the loop. 0 or an error.
 */
int io_purge_sweep_deleted(struct ampd_server *server, const struct ampd_model_record *records, size_t count,
                           struct amp_error *error);

#endif
