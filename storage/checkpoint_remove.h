/*
 * Removes checkpoint files (checkpoint.h): single ones, those that an interrupted write left, and those of a deleted
 * model.
 *
 * A deletion mark is an empty file "models/<model>/shard-<k>-of-<K>.deleted" beside a model's files, which says that
 * they are to be removed: a shard marks the files, deletes the model in its store, and then removes the files and the
 * mark. So a deletion is completed after a crash between these, also by a process with another store. The mark goes
 * also where a file cannot be removed: that one keeps the model's name from being used (ampd_checkpoint_any).
 *
 * A file or mark belongs to the shard that is in its name. Those of another number of shards belong to the shard whose
 * index is theirs modulo the present number.
 *
 * Any thread; calls block on the disk. Errors of all: AMP_EINVAL (a bad name of a model, or a path too long), AMP_EIO,
 * AMP_EEXHAUSTED (no more files can be open).
 */
#ifndef AMPD_CHECKPOINT_REMOVE_H
#define AMPD_CHECKPOINT_REMOVE_H

#include "storage/checkpoint.h"

/* Reason of an AMP_EIO if a file or directory cannot be opened or removed and stays where it is: nothing is lost. */
#define AMPD_CHECKPOINT_NOT_REMOVED "NOT_REMOVED"

/* Whether a removal that ended with `rc` and *error has left something where it is, and nothing else has failed. */
bool ampd_checkpoint_only_stays(int rc, const struct amp_error *error);

/*
 * Removes a file, whose path is relative to data_dir, and its step directory if that is empty then. A missing file is
 * success.
 */
int ampd_checkpoint_remove(const char *data_dir, const char *file, struct amp_error *error);

/*
 * Removes what interrupted writes and superseded epochs left of a model: this shard's temporary files, its checkpoint
 * files that are not in `keep` (compared by record->file), and step directories that are empty then. Complete files of
 * another number of shards are kept from the lowest step in `keep` on, or all of them if `keep` is empty, since a
 * restore may need them. Files with other names are left alone, and so are steps above `up_to`. If something cannot be
 * removed, all the rest is, and the result is AMP_EIO with AMPD_CHECKPOINT_NOT_REMOVED.
 */
int ampd_checkpoint_sweep(const struct ampd_checkpoint_path *where, const struct ampd_checkpoint_record *keep,
                          uint32_t keep_count, uint64_t up_to, struct amp_error *error);

/*
 * Removes this shard's temporary files of a model, of every step, as ampd_checkpoint_sweep does. The caller knows that
 * no process is writing any of them.
 */
int ampd_checkpoint_sweep_temporary(const struct ampd_checkpoint_path *where, struct amp_error *error);

/*
 * Removes all checkpoint files of a deleted model that belong to the shard (shards 0: of all shards), the deletion
 * marks, and the model's directories if they are empty then. What is not there is success. If something cannot be
 * removed, all the rest is, the marks included, and the result is AMP_EIO with AMPD_CHECKPOINT_NOT_REMOVED.
 */
int ampd_checkpoint_remove_model(const struct ampd_checkpoint_path *where, struct amp_error *error);

/*
 * Finds out whether there is a complete checkpoint file of a model, of any step, that belongs to this shard: `file`
 * gets its path relative to data_dir. It gets "" if there is none, or if the files have a deletion mark. For a model
 * that the store does not have, whose name must not be used for a new model while there are files.
 */
int ampd_checkpoint_any(const struct ampd_checkpoint_path *where, char *file, size_t file_size,
                        struct amp_error *error);

/*
 * Creates the deletion mark of a shard and syncs its directory. Called before the store deletes the model;
 * ampd_checkpoint_remove_model removes the mark. If the model has no directory there are no files, and nothing is done.
 * AMP_EEXHAUSTED also if the disk is full; AMP_EIO with AMPD_CHECKPOINT_NOT_REMOVED if the mark cannot be made.
 */
int ampd_checkpoint_mark_deleted(const struct ampd_checkpoint_path *where, struct amp_error *error);

/* Removes only the deletion marks that belong to the shard, since a model of this name exists again. */
int ampd_checkpoint_unmark_deleted(const struct ampd_checkpoint_path *where, struct amp_error *error);

/*
 * Calls found_cb with the name of each model that has a deletion mark belonging to the shard of `of`; of->model is not
 * used. A result other than 0 ends the walk and is returned.
 */
int ampd_checkpoint_each_deleted(const struct ampd_checkpoint_path *of, void *arg, struct amp_error *error,
                                 int (*found_cb)(void *arg, const char *model));

#endif
