/* How much memory this process may use: asked once, when it starts. */
#ifndef AMPD_IO_MEMORY_LIMIT_H
#define AMPD_IO_MEMORY_LIMIT_H

#include <stdint.h>

/*
 * Bytes of memory that this process may use: the machine's, or the least limit of its control groups (v1 and v2) and
 * the groups above them, where that is lower. 0: the system does not say.
 */
uint64_t io_memory_limit(void);

/* The same of other places: a file like /proc/self/cgroup, a folder like /sys/fs/cgroup, and the machine's memory. */
uint64_t io_memory_limit_of(const char *groups, const char *mount, uint64_t physical_bytes);

#endif
