/* Paths and directories of checkpoint files. */
#ifndef AMPD_CHECKPOINT_FILES_H
#define AMPD_CHECKPOINT_FILES_H

#include "storage/checkpoint.h"

/* Linux's PATH_MAX. */
#define CHECKPOINT_PATH_MAX 4096

/* What a file is called until it is whole. */
#define CHECKPOINT_TEMPORARY ".tmp"

/*
 * The code of errno, with a text: AMP_EEXHAUSTED for a full disk (NO_SPACE) and where no more files can be open
 * (NO_DESCRIPTORS), both of which pass; else AMP_EIO (STORE_FAILED).
 */
int checkpoint_system_error(struct amp_error *error, const char *what, const char *path);

/*
 * The same of a failed fsync or close, which is final: pages that could not be written may be dropped and reported
 * clean the next time. So a full disk that only these find is an I/O error too.
 */
int checkpoint_final_error(struct amp_error *error, const char *what, const char *path);

/* The path of a step's file, and its name relative to the data directory. AMP_EINVAL: a bad model name, too long. */
int checkpoint_path_make(const struct ampd_checkpoint_path *where, uint64_t step, char path[CHECKPOINT_PATH_MAX],
                         char *file, size_t file_size, struct amp_error *error);

/* Makes the directories between data_dir and the file; with `durable`, each is fsynced into its parent. */
int checkpoint_directories_make(const char *data_dir, const char *file, bool durable, struct amp_error *error);

/* Whether a mark of a deletion falls to the shard that `where` names. */
int checkpoint_is_marked(const struct ampd_checkpoint_path *where, bool *marked, struct amp_error *error);

/* Fsyncs the directory that a path is in. */
int checkpoint_directory_sync(const char *path, struct amp_error *error);

#endif
