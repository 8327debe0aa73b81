/*
 * The data directory: who holds it, and which format it has.
 *
 *   LOCK      flock by the process that uses the directory; its text is the pid
 *   VERSION   the number of the directory's layout
 *   ampd.db   the store (SQLite)
 *   models/<model>/checkpoints/step-<10 digits>/shard-<k>-of-<K>.safetensors
 */
#ifndef AMPD_DATADIR_H
#define AMPD_DATADIR_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * The layout above. Raised when an older program could not read what a newer one wrote, also in journals and checkpoint
 * files.
 */
#define AMPD_DATADIR_VERSION 1

/* Longest path of a data directory with the final zero: leaves room for what is below it within PATH_MAX. */
#define AMPD_DATADIR_PATH_MAX 3072

struct ampd_datadir {
    int lock_fd;
    char path[AMPD_DATADIR_PATH_MAX];
};

/*
 * Takes the directory, creating it (mode 0700, parents must exist) if it is not there. AMP_ELOCKED: the text
 * names the pid that holds it; AMP_EVERSION: the text names both versions; AMP_EINVAL: not a directory, too
 * long, not permitted, open to every user's writing, or with a LOCK or VERSION that is no regular file; AMP_EIO,
 * AMP_EEXHAUSTED. On failure nothing is held.
 */
int ampd_datadir_open(struct ampd_datadir *dir, const char *path, struct amp_error *error);

/*
 * Makes a directory (mode 0700) whose parent is there, unless it is there itself; `what` says in an error's text what
 * it is for. AMP_EINVAL: the path is wrong or not permitted; AMP_EEXHAUSTED, AMP_EIO: the system failed. Any thread.
 */
int ampd_datadir_make(const char *path, const char *what, struct amp_error *error);

/*
 * Makes a file in a directory and removes it, to learn at the start whether that can be written to: AMP_EINVAL with a
 * sentence if it is not permitted, AMP_EIO if the system fails. A full disk is no error here: whoever writes waits for
 * room. Any thread.
 */
int ampd_datadir_try(const char *path, const char *what, struct amp_error *error);

/*
 * Whether users other than this process's and root can change what is in a directory; if so, `text` says by what. Any
 * thread.
 */
bool ampd_datadir_doubt(const char *path, char *text, size_t size);

/*
 * Fsyncs any directory: names made, moved and removed in it before survive power loss after 0. AMP_EIO and the others
 * of ampd_datadir_open, with a text that names it. Any thread.
 */
int ampd_datadir_sync(const char *path, struct amp_error *error);

/* Lets the directory go. */
void ampd_datadir_close(struct ampd_datadir *dir);

/*
 * True if `name` can be a directory of its own: 1 to AMPD_NAME_MAX - 1 of [A-Za-z0-9._-], no leading dot. A
 * model's name must pass.
 */
bool ampd_datadir_name_ok(const char *name);

#endif
