/* Memory for the reader and the writer of large files (bulk_reader.h, bulk_writer.h). */
#ifndef AMPD_BULK_H
#define AMPD_BULK_H

#include <stdint.h>

/* Bytes of a window, the unit of reads and writes: large enough for full speed, and a huge page on most processors. */
#define BULK_WINDOW ((uint64_t)2 << 20)

/*
 * Allocates memory for `windows` windows; the caller's (free), or NULL. It is aligned to a window, which is more than
 * any disk needs for direct I/O. Huge pages are requested: memory that is contiguous goes to and from the disk in a few
 * large requests (reads were almost twice as fast). Any thread.
 */
uint8_t *bulk_memory(uint64_t windows);

#endif
