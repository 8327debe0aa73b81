/* Paths, directories and system errors of checkpoint files and journals. Any thread; calls block on the disk. */
#ifndef AMPD_CHECKPOINT_FILES_H
#define AMPD_CHECKPOINT_FILES_H

#include "storage/checkpoint.h"

#include <dirent.h>

/* Linux's PATH_MAX. */
#define CHECKPOINT_PATH_MAX 4096

/* Appended to the name of a file until it is complete. */
#define CHECKPOINT_TEMPORARY ".tmp"

/*
 * Turns errno into an error, fills *error (NULL is allowed) with "<what> <path>: <reason>", and returns the code:
 * AMP_EEXHAUSTED for a full disk (NO_SPACE) or for too many open files (NO_DESCRIPTORS), after which the caller may try
 * again, else AMP_EIO (STORE_FAILED).
 */
int checkpoint_system_error(struct amp_error *error, const char *what, const char *path);

/*
 * As checkpoint_system_error, for a file or directory that could not be made, opened, found or renamed. AMP_EDENIED
 * (NO_ACCESS): this user may not, or nobody may, as the file system is read-only. Nothing was changed, so the caller
 * may try again.
 */
int checkpoint_not_opened(struct amp_error *error, const char *what, const char *path);

/*
 * As checkpoint_system_error, for an fsync or close that failed; the code is always AMP_EIO, also for a full disk. Such
 * a failure is final: the kernel may have dropped the pages that it could not write, and a second call would succeed.
 */
int checkpoint_final_error(struct amp_error *error, const char *what, const char *path);

/*
 * As checkpoint_system_error, for something that was to be removed; instead of STORE_FAILED the reason is
 * AMPD_CHECKPOINT_NOT_REMOVED (checkpoint_remove.h), which tells it from a failed fsync, after which nothing may be
 * taken as stored.
 */
int checkpoint_not_removed(struct amp_error *error, const char *what, const char *path);

/*
 * Makes the path of a step's file, and in `file` the same relative to where->data_dir. AMP_EINVAL: the model's name
 * cannot name a directory, or a path is too long.
 */
int checkpoint_path_make(const struct ampd_checkpoint_path *where, uint64_t step, char path[CHECKPOINT_PATH_MAX],
                         char *file, size_t file_size, struct amp_error *error);

/*
 * Creates the directories between data_dir and `file`, which is relative to it, where they are missing. With `durable`
 * the entry of each one is synced, also of those that were there. AMP_EDENIED, AMP_EEXHAUSTED, AMP_EIO.
 */
int checkpoint_directories_make(const char *data_dir, const char *file, bool durable, struct amp_error *error);

/*
 * *marked: whether the model has a deletion mark (checkpoint_remove.h) for the shard that `where` names. AMP_EINVAL,
 * AMP_EEXHAUSTED, AMP_EIO.
 */
int checkpoint_is_marked(const struct ampd_checkpoint_path *where, bool *marked, struct amp_error *error);

/*
 * Allocates the first `size` bytes of a file that is open for writing, so that a full disk is found before a byte is
 * written; on a file system that cannot, the writes themselves find out. AMP_EEXHAUSTED, AMP_EIO.
 */
int checkpoint_make_room(int fd, uint64_t size, const char *path, struct amp_error *error);

/* The next entry of a directory. NULL with errno 0: there are no more; with another errno: it cannot be read. */
struct dirent *checkpoint_next_entry(DIR *dir);

/* Fsyncs the directory that has the file or directory `path`. AMP_EDENIED, AMP_EEXHAUSTED, AMP_EIO. */
int checkpoint_directory_sync(const char *path, struct amp_error *error);

#endif
