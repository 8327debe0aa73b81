/*
 * How many descriptors the process has open, and how many it may have: every connection is one, and every file of a
 * store.
 */
#ifndef AMPD_IO_OPEN_FILES_H
#define AMPD_IO_OPEN_FILES_H

#include <stdint.h>

/* A link for each of them. */
#define IO_OPEN_FILES_FOLDER "/proc/self/fd"

/*
 * Counting walks over all of them, some 0.5 us each. What was counted holds for so long, and for so many times as long
 * as it took: who asks without end costs the loop a thousandth of its time, and learns of a new one in a second.
 */
#define IO_OPEN_FILES_HOLD_US    1000000
#define IO_OPEN_FILES_HOLD_TIMES 1000

/* What is known. Zeroed: nothing yet. */
struct io_open_files {
    uint64_t count;    /* 0: not known */
    uint64_t until_us; /* it holds until then; 0: it was not counted yet */
};

/* How many are open: entries of IO_OPEN_FILES_FOLDER but its own descriptor; 0: the system does not say. */
uint64_t io_open_files_walk(const char *folder);

/* The same at times that are far enough apart, by a clock that does not go back. */
uint64_t io_open_files_count(struct io_open_files *known, const char *folder, uint64_t now_us);

/* How many may be; 0: there is no limit, or the system does not say. */
uint64_t io_open_files_max(void);

#endif
