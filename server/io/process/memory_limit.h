/* How much memory this process may use: asked once, when it starts; and how little is of no use. */
#ifndef AMPD_IO_MEMORY_LIMIT_H
#define AMPD_IO_MEMORY_LIMIT_H

#include <stdint.h>

/*
 * The least --memory-max: a server that could hold no model would start, and refuse each. One of one element and one
 * worker takes a block of masters, two casts and one slot, a place for a saved block, and nine user states: 1.9 MiB
 * with fp32.
 */
#define IO_MEMORY_LEAST (2 << 20)

/*
 * Bytes of memory that this process may use: the machine's, or the least limit of its control groups (v1 and v2) and
 * the groups above them, where that is lower. 0: the system does not say.
 */
uint64_t io_memory_limit(void);

struct arpc_limits;

/*
 * Lowers what calls may take of the memory that --memory-max (0: no bound) leaves: messages that are not whole a
 * sixteenth of it, and calls that wait a quarter. Never below what four of the largest messages take (two of one
 * address), and 64 calls that wait.
 */
void io_memory_bound_calls(uint64_t memory_max, struct arpc_limits *limits);

/* The same of other places: a file like /proc/self/cgroup, a folder like /sys/fs/cgroup, and the machine's memory. */
uint64_t io_memory_limit_of(const char *groups, const char *mount, uint64_t physical_bytes);

#endif
