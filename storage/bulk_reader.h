/*
 * Reads a large file, mostly in order: threads read ahead while the caller works on the data that it has.
 *
 * The page cache is bypassed (O_DIRECT) where the file system allows it: copying out of the page cache takes as long as
 * the disk does, and new pages are slow to get on virtual machines whose host reclaims freed memory. A small file is
 * read through the page cache by the caller itself, in less time than threads take to start.
 *
 * A reader is used by one thread at a time. Calls block on the disk.
 */
#ifndef AMPD_BULK_READER_H
#define AMPD_BULK_READER_H

#include "base/err.h"

#include <stdint.h>

struct bulk_reader;

/*
 * Opens a file. On success *reader is the caller's (bulk_reader_close), on failure it is NULL. AMP_ENOTFOUND: there is
 * no such file; AMP_EDENIED, AMP_EIO (CHECKPOINT_UNREADABLE): it may not, or cannot be opened; AMP_EDATALOSS
 * (CHECKPOINT_DAMAGED): it is no regular file; AMP_ENOMEM.
 */
int bulk_reader_open(const char *path, struct bulk_reader **reader, struct amp_error *error);

/* The size of the file in bytes, when it was opened. */
uint64_t bulk_reader_size(const struct bulk_reader *reader);

/*
 * Gives the first bytes of [offset, offset + size), which must lie in the file; size is at least 1. On success *got, at
 * least 1 and at most `size`, is the number of bytes at *data, which are valid until the next call. Offsets may come in
 * any order, but only the bytes after the last one are read ahead; a short jump forward uses what was read ahead.
 * AMP_EDATALOSS (CHECKPOINT_DAMAGED): the file has become shorter than `offset`; AMP_EIO. The call may be repeated.
 */
int bulk_reader_get(struct bulk_reader *reader, uint64_t offset, uint64_t size, const uint8_t **data, uint64_t *got,
                    struct amp_error *error);

/* Stops the threads, closes the file and frees the reader. NULL is allowed. */
void bulk_reader_close(struct bulk_reader *reader);

#endif
