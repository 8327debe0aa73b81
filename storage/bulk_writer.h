/*
 * Writes a large new file: the caller gives bytes, and a thread of the writer writes them in large pieces.
 *
 * The page cache is bypassed (O_DIRECT) where the file system allows it, for two reasons: the file is not read soon, so
 * that its pages would only displace others; and new pages are slow to get on virtual machines whose host reclaims
 * freed memory (a fifth of the disk's speed was measured).
 *
 * The bytes may come as several streams in turns, each in ascending order, anywhere in the file. Small adjacent pieces
 * are joined into one write. A writer is used by one thread at a time.
 */
#ifndef AMPD_BULK_WRITER_H
#define AMPD_BULK_WRITER_H

#include "base/err.h"

#include <stdint.h>
#include <sys/stat.h>

struct bulk_writer;

/*
 * Creates a file of `size` bytes, removing one of the same path first. Disk space is allocated at once where the file
 * system can do that, so that a full disk is found before a byte is written. On success *writer is the caller's
 * (bulk_writer_close). AMP_EEXHAUSTED (NO_SPACE, NO_DESCRIPTORS), AMP_EDENIED (NO_ACCESS), AMP_EIO (STORE_FAILED),
 * AMP_ENOMEM: *writer is NULL, and no file is left.
 */
int bulk_writer_open(const char *path, uint64_t size, struct bulk_writer **writer, struct amp_error *error);

/* The status of the file, which tells it from one that another process puts in its place later. 0, or -1 with errno. */
int bulk_writer_status(const struct bulk_writer *writer, struct stat *status);

/*
 * Copies bytes for [offset, offset + size), which must lie in the file; no byte of the file may be given twice. *taken
 * is the number of bytes that were copied, all of them on success; the caller may reuse their memory. AMP_EEXHAUSTED:
 * the disk was full when earlier bytes were written; the call may be repeated with the bytes that were not taken.
 * AMP_EIO: the file can no longer be written.
 */
int bulk_writer_put(struct bulk_writer *writer, const void *data, uint64_t size, uint64_t offset, uint64_t *taken,
                    struct amp_error *error);

/* Waits until all bytes that were put are written. AMP_EEXHAUSTED: the disk is full, repeat the call; AMP_EIO. */
int bulk_writer_flush(struct bulk_writer *writer, struct amp_error *error);

/* Fsyncs the file, after a bulk_writer_flush that returned 0. 0, or -1 with errno; it must not be tried again then. */
int bulk_writer_sync(struct bulk_writer *writer);

/* Drops bytes that are not written yet, closes the file and frees the writer. NULL is allowed. 0, or close's -1. */
int bulk_writer_close(struct bulk_writer *writer);

#endif
