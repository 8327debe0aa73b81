/*
 * The end of checkpoint files (checkpoint.h): of single ones, of what was left half done, and of a model that is
 * deleted; and the marks that say so beside them.
 */
#ifndef AMPD_CHECKPOINT_REMOVE_H
#define AMPD_CHECKPOINT_REMOVE_H

#include "storage/checkpoint.h"

/* Removes a file (relative to data_dir) and its step directory if that is empty then. A missing file is
 * success. */
int ampd_checkpoint_remove(const char *data_dir, const char *file, struct amp_error *error);

/*
 * Removes what an interrupted write or a void epoch left below a model: files of this shard that are not among `keep`
 * (relative to data_dir), its "*.tmp", and step directories that are empty then. Files of another number of shards stay
 * until `keep` begins with a later step: then file i goes by the shard i modulo shards. Other names are left alone, and
 * so are steps above `up_to`.
 */
int ampd_checkpoint_sweep(const struct ampd_checkpoint_path *where, const struct ampd_checkpoint_record *keep,
                          uint32_t keep_count, uint64_t up_to, struct amp_error *error);

/*
 * Removes the files of a shard (or all) below a model that is deleted, of any number of shards as above, and the
 * model's directories if they are empty then. What is not there is success.
 */
int ampd_checkpoint_remove_model(const struct ampd_checkpoint_path *where, struct amp_error *error);

/*
 * A whole checkpoint file of a model, of any step, that falls to this shard, also one of another number of shards: its
 * name relative to data_dir in `file`, or "" where there is none, or where a mark says that the files are to go. For a
 * model that the store does not know.
 */
int ampd_checkpoint_any(const struct ampd_checkpoint_path *where, char *file, size_t file_size,
                        struct amp_error *error);

/*
 * Notes beside the files of a shard that they are to go, before the store forgets the model;
 * ampd_checkpoint_remove_model takes the mark away, too. AMP_EEXHAUSTED: there is no room for one. Without files there
 * is nothing to note.
 */
int ampd_checkpoint_mark_deleted(const struct ampd_checkpoint_path *where, struct amp_error *error);

/* Takes the mark away alone: the model is there again. */
int ampd_checkpoint_unmark_deleted(const struct ampd_checkpoint_path *where, struct amp_error *error);

/*
 * Models with a mark that falls to the shard of `of`, whose model is not looked at. Ends with a callback's code that is
 * not 0.
 */
int ampd_checkpoint_each_deleted(const struct ampd_checkpoint_path *of, void *arg, struct amp_error *error,
                                 int (*found_cb)(void *arg, const char *model));

#endif
