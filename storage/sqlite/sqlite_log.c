/*
 * The write-ahead log (https://sqlite.org/fileformat.html, section 4) is begun when all of the one before it is in the
 * database. An older copy of the database lacks pages that were put there meanwhile, and that no log has any more.
 * SQLite takes them for empty ones, and finds out only when it comes across them.
 *
 * A header of 32 bytes is followed by frames, each a header of 24 bytes and a page; numbers are big-endian. Frames of
 * an earlier log, which may be behind those of this one, have other salts.
 */
#include "storage/sqlite/sqlite_log.h"

#include "storage/plain_file.h"
#include "storage/sqlite/sqlite_handle.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_BYTES 32
#define HEADER_PAGE  8  /* bytes of a page */
#define HEADER_SALTS 16 /* two numbers, as in each frame */
#define FRAME_BYTES  24
#define FRAME_PAGE   0 /* number of the page, from 1 */
#define FRAME_COMMIT 4 /* the last frame of a transaction: pages of the database behind it; others: 0 */
#define FRAME_SALTS  8
#define SALTS_BYTES  8

/*
 * So many pages may be missing: that of SQLite's locks is never written, nor are new pages that the transaction itself
 * has freed again. A right database must not be refused.
 */
#define MISSING_MOST 16

static uint64_t number_at(const uint8_t *bytes)
{
    return (uint64_t)bytes[0] << 24 | (uint64_t)bytes[1] << 16 | (uint64_t)bytes[2] << 8 | bytes[3];
}

static bool read_at(int fd, void *to, size_t size, uint64_t offset)
{
    return pread(fd, to, size, (off_t)offset) == (ssize_t)size;
}

/*
 * Whether the log's first transaction leaves a database of more pages than the file and this transaction have. All
 * later pages are in the log, since a database grows at its end.
 */
static bool lacks_pages(int fd, uint64_t size_bytes)
{
    uint8_t header[HEADER_BYTES], frame[FRAME_BYTES];
    if (!read_at(fd, header, sizeof header, 0) || number_at(header + HEADER_PAGE) == 0)
        return false;
    uint64_t page_bytes = number_at(header + HEADER_PAGE), pages = size_bytes / page_bytes;
    for (uint64_t at = HEADER_BYTES; read_at(fd, frame, sizeof frame, at); at += FRAME_BYTES + page_bytes) {
        if (memcmp(frame + FRAME_SALTS, header + HEADER_SALTS, SALTS_BYTES) != 0)
            return false; /* the end of the log, in the middle of its first transaction: it does not count */
        pages += number_at(frame + FRAME_PAGE) * page_bytes > size_bytes;
        if (number_at(frame + FRAME_COMMIT) != 0)
            return number_at(frame + FRAME_COMMIT) > pages + MISSING_MOST;
    }
    return false;
}

int store_check_log(const char *path, struct amp_error *error)
{
    char log[4096 + 16];
    struct stat about;
    (void)snprintf(log, sizeof log, "%s-wal", path);
    int fd = ampd_plain_open(log, O_RDONLY);
    if (fd < 0)
        return 0;
    bool lacks = stat(path, &about) == 0 && lacks_pages(fd, (uint64_t)about.st_size);
    (void)close(fd); /* only read */
    return lacks ? store_damaged(error, path, "it is older than its log, ampd.db-wal, and lacks what came in between")
                 : 0;
}
