/*
 * The data directory: its lock, the version of its layout, and helpers for directories in general.
 *
 *   LOCK      has an flock by the process that uses the directory; its text is that process's pid
 *   VERSION   has the number of the directory's layout, AMPD_DATADIR_VERSION
 *   ampd.db   the store (SQLite)
 *   models/<model>/checkpoints/step-<10 digits>/shard-<k>-of-<K>.safetensors
 */
#ifndef AMPD_DATADIR_H
#define AMPD_DATADIR_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * The version of the layout. It is raised when an older program could no longer read what a newer one writes into the
 * directory, journals and checkpoint files included.
 */
#define AMPD_DATADIR_VERSION 1

/* Bytes of a data directory's path with the final zero: the paths of files below it must fit into PATH_MAX (4096). */
#define AMPD_DATADIR_PATH_MAX 3072

/* A data directory that this process has locked. */
struct ampd_datadir {
    int lock_fd; /* the open file LOCK; -1: nothing is locked */
    char path[AMPD_DATADIR_PATH_MAX];
};

/*
 * Locks the directory for this process and checks its version; creates it first (mode 0700) if it is not there, but not
 * its parents. On success *dir is to be closed by ampd_datadir_close; on failure nothing is locked. AMP_ELOCKED
 * (DATA_DIR_LOCKED): the text has the pid of the process that holds the lock; AMP_EVERSION (DATA_DIR_NEWER): the text
 * has both versions; AMP_EINVAL (DATA_DIR): not a directory, path too long, no permission, writable by every user, no
 * locks on this file system, or a LOCK or VERSION that is not a regular file; AMP_EIO, AMP_EEXHAUSTED.
 */
int ampd_datadir_open(struct ampd_datadir *dir, const char *path, struct amp_error *error);

/*
 * Locks the file `name` in a directory until *lock_fd is closed, and writes this process's pid into it where the disk
 * has room for that. `what` and `option` name the directory's purpose and the option that gives it in the text of an
 * error, after which *lock_fd is -1. AMP_ELOCKED: another process holds the lock; AMP_EINVAL, AMP_EIO, AMP_EEXHAUSTED:
 * nobody is known to hold it. Any thread.
 */
int ampd_datadir_lock(const char *path, const char *name, const char *what, const char *option, int *lock_fd,
                      struct amp_error *error);

/*
 * Creates a directory (mode 0700) in a parent that exists, unless it is there already, and syncs the parent. `what`
 * names the directory's purpose in the text of an error. AMP_EINVAL: the path is wrong or not permitted;
 * AMP_EEXHAUSTED: the disk is full; AMP_EIO: the system failed. Any thread.
 */
int ampd_datadir_make(const char *path, const char *what, struct amp_error *error);

/*
 * Checks at the start that files can be created in a directory, by creating one and removing it. `what` names the
 * directory's purpose in the text of an error. AMP_EINVAL: not permitted; AMP_EIO: the system failed. A full disk is
 * not an error here, since later writes wait until there is room. Any thread.
 */
int ampd_datadir_check_writable(const char *path, const char *what, struct amp_error *error);

/*
 * Whether a user other than root and this process's can change the content of a directory. If so, `text` (of `size`
 * bytes) gets the reason as a part of a sentence. False also if there is no such directory. Any thread.
 */
bool ampd_datadir_writable_by_others(const char *path, char *text, size_t size);

/*
 * Fsyncs a directory: after 0 all entries that were created, renamed or removed in it before survive power loss.
 * AMP_EINVAL: wrong path or no permission; AMP_EEXHAUSTED, AMP_EIO. The text of an error names the path. Any thread.
 */
int ampd_datadir_sync(const char *path, struct amp_error *error);

/* Unlocks the directory. Does nothing if it is not locked. */
void ampd_datadir_close(struct ampd_datadir *dir);

/*
 * Whether `name` can be the name of a directory, which every model's name must be: 1 to AMPD_NAME_MAX - 1 characters of
 * [A-Za-z0-9._-], the first not a dot. Any thread.
 */
bool ampd_datadir_name_ok(const char *name);

#endif
