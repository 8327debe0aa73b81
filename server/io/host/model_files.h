/* Where the files of a model lie, which processes may have written them, and how they are removed. */
#ifndef AMPD_IO_MODEL_FILES_H
#define AMPD_IO_MODEL_FILES_H

#include "storage/checkpoint.h"

#include <stdbool.h>

struct ampd_server;

/* The place of this shard's checkpoint files of a model: below --checkpoint-dir, or else below its data directory. */
struct ampd_checkpoint_path io_model_files_place(const struct ampd_server *server, const char *model);

/* The place of the journal of a model: always below the data directory, even where checkpoints are shared. */
struct ampd_checkpoint_path io_model_files_journal(const struct ampd_server *server, const char *model);

/*
 * Whether the checkpoint directory may have files of another process that was this shard, with a store of its own on
 * another disk. Then a start removes no files: its own catalogue may be older than they are.
 */
bool io_model_files_shared(const struct ampd_server *server);

/*
 * The result of a removal of a model's files. A file that cannot be removed is logged as an error and loses nothing, so
 * that the result is 0 then; any other result is returned as it is. Any thread.
 */
int io_model_files_removed(const struct ampd_server *server, const char *model, int rc, const struct amp_error *error);

/*
 * Removes the journal of a deleted model, and with `checkpoints` its checkpoint files. What cannot be removed stays, as
 * above. AMP_EEXHAUSTED: no room, or no more files can be open; the call may be repeated. AMP_EIO, AMP_EINVAL. Any
 * thread; blocks on the disk.
 */
int io_model_files_remove(const struct ampd_server *server, const char *model, bool checkpoints,
                          struct amp_error *error);

#endif
