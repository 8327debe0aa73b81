/*
 * A file read in order, past the page cache where the file system lets us, by threads that read ahead while their
 * caller works on what has come.
 *
 * Past it, because the copy out of the page cache takes as long as the disk does, and fresh pages are slow to come by
 * on virtual machines whose host takes back what they free. A small file is read through it, without threads: it takes
 * less time than they take to start.
 *
 * A handle is one thread's at a time.
 */
#ifndef AMPD_BULK_READER_H
#define AMPD_BULK_READER_H

#include "base/err.h"

#include <stdint.h>

struct bulk_reader;

/*
 * On success *reader is the caller's (bulk_reader_close). AMP_ENOTFOUND, AMP_EIO (CHECKPOINT_UNREADABLE): it cannot be
 * opened. AMP_EDATALOSS (CHECKPOINT_DAMAGED): it is no regular file. AMP_ENOMEM.
 */
int bulk_reader_open(const char *path, struct bulk_reader **reader, struct amp_error *error);

/* Bytes of the file when it was opened. */
uint64_t bulk_reader_size(const struct bulk_reader *reader);

/*
 * Bytes of [offset, offset + size), which lie in the file and are not none: *got of them, at least one, are at *data
 * until the next call. Offsets may come in any order; read ahead is what follows the last one, and a jump over less
 * than that keeps it. AMP_EDATALOSS (CHECKPOINT_DAMAGED): the file has been cut off before `offset`; AMP_EIO. The call
 * may be repeated.
 */
int bulk_reader_get(struct bulk_reader *reader, uint64_t offset, uint64_t size, const uint8_t **data, uint64_t *got,
                    struct amp_error *error);

/* Stops reading ahead and frees all; NULL is allowed. */
void bulk_reader_close(struct bulk_reader *reader);

#endif
