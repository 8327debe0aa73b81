/*
 * How many file descriptors the process has open, and how many it may have. Every connection takes one, and every open
 * file.
 */
#ifndef AMPD_IO_OPEN_FILES_H
#define AMPD_IO_OPEN_FILES_H

#include <stdint.h>

/* The directory with an entry for each open descriptor. */
#define IO_OPEN_FILES_FOLDER "/proc/self/fd"

/*
 * A count takes about 0.5 us for each descriptor. Its result is reused for IO_OPEN_FILES_HOLD_US microseconds, or
 * IO_OPEN_FILES_HOLD_TIMES as long as the count took if that is longer: so callers that ask without end cost the loop a
 * thousandth of its time at most, and normally see a new descriptor within a second.
 */
#define IO_OPEN_FILES_HOLD_US    1000000
#define IO_OPEN_FILES_HOLD_TIMES 1000

/* The last count. Zeroed: none yet. */
struct io_open_files {
    uint64_t count;    /* of open descriptors; 0: not known */
    uint64_t until_us; /* it is reused until then, by io_clock_now_us; 0: nothing was counted yet */
};

/*
 * Counts the open descriptors by the entries of `folder` (IO_OPEN_FILES_FOLDER, except in tests), without the one that
 * it opens itself. Where no descriptor is left, returns io_open_files_max. 0: not known.
 */
uint64_t io_open_files_walk(const char *folder);

/* The last count, or a new one if that is too old at now_us (io_clock_now_us). */
uint64_t io_open_files_count(struct io_open_files *known, const char *folder, uint64_t now_us);

/* How many descriptors the process may have open (RLIMIT_NOFILE); 0: no limit, or not known. */
uint64_t io_open_files_max(void);

#endif
