/* What the reader and the writer of large files share. */
#ifndef AMPD_BULK_H
#define AMPD_BULK_H

#include <stdint.h>

/* Bytes of one read or write: large enough for full speed, and a huge page on most processors. */
#define BULK_WINDOW ((uint64_t)2 << 20)

/*
 * Memory for so many windows; the caller's (free), or NULL. Its alignment is more than any disk wants of a direct
 * transfer. Huge pages are asked for: what lies in one piece goes to and from the disk in a few large requests (reads
 * were almost twice as quick).
 */
uint8_t *bulk_memory(uint64_t windows);

#endif
