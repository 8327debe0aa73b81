/*
 * A new file written in large pieces by a thread of its own, past the page cache where the file system lets us.
 *
 * Past it, for two reasons: nobody reads the file soon, so that its pages would only drive out others; and fresh pages
 * are slow to come by on virtual machines whose host takes back what they free (a fifth of the disk's speed was seen).
 *
 * The bytes may come in several streams at once, each in order, anywhere in the file; small neighbours leave in one
 * write. A handle is one thread's at a time; what that thread has put it may write over at once.
 */
#ifndef AMPD_BULK_WRITER_H
#define AMPD_BULK_WRITER_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct bulk_writer;

/*
 * Creates the file, in the place of one that is there, and finds room for `size` bytes, so that a full disk is found
 * before a byte is written (where the file system can do that). On success *writer is the caller's (bulk_writer_close).
 * AMP_EEXHAUSTED (NO_SPACE, NO_DESCRIPTORS), AMP_EIO (STORE_FAILED), AMP_ENOMEM: there is no file then.
 */
int bulk_writer_open(const char *path, uint64_t size, struct bulk_writer **writer, struct amp_error *error);

/* Whether the file of that path is still the one that is written. */
bool bulk_writer_is_at(const struct bulk_writer *writer, const char *path);

/*
 * Takes bytes for [offset, offset + size), which lie in the file; no byte of the file is given twice. *taken says how
 * many were taken, all with 0. AMP_EEXHAUSTED: the disk was full when something before was written; the call may be
 * repeated with the rest. AMP_EIO: the file can no longer be written.
 */
int bulk_writer_put(struct bulk_writer *writer, const void *data, uint64_t size, uint64_t offset, uint64_t *taken,
                    struct amp_error *error);

/* Waits until all that was put is with the file system. Errors as above; after AMP_EEXHAUSTED it may be repeated. */
int bulk_writer_drain(struct bulk_writer *writer, struct amp_error *error);

/* fsync, after bulk_writer_drain. 0 or -1 with errno: there is no second try. */
int bulk_writer_sync(struct bulk_writer *writer);

/* Drops what is not written, and frees the writer; NULL is allowed. 0 or -1 with errno of close. */
int bulk_writer_close(struct bulk_writer *writer);

#endif
