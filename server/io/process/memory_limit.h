/* How much memory this process may use, which is read once, at the start; and bounds that follow from it. */
#ifndef AMPD_IO_MEMORY_LIMIT_H
#define AMPD_IO_MEMORY_LIMIT_H

#include <stdint.h>

/*
 * The least value of --memory-max, in bytes: with less, a server would start and then refuse every model. A model of
 * one element and one worker takes a block of masters, two casts and one slot, a place for a saved block, and nine user
 * states: 1.9 MiB with fp32.
 */
#define IO_MEMORY_LEAST (2 << 20)

/*
 * How many bytes of memory this process may use: those of the machine, or, if that is lower, the least limit of its
 * control groups (v1 and v2) and of the groups above them. 0: the system does not say.
 */
uint64_t io_memory_limit(void);

struct arpc_limits;

/*
 * Lowers the limits for the memory of calls to a share of --memory-max (0: they stay): a sixteenth of it for messages
 * that have not arrived whole, half of that for those from one address, a sixteenth for answers that have not left, a
 * sixteenth for open calls, and an eighth for waiting calls. There is always room for four of the largest
 * messages (two from one address), 16 of the largest answers, 4,096 open calls, and 64 calls that wait.
 */
void io_memory_bound_calls(uint64_t memory_max, struct arpc_limits *limits);

/*
 * io_memory_limit with its sources given, for tests: a file like /proc/self/cgroup, a folder like /sys/fs/cgroup, and
 * the bytes of memory of the machine.
 */
uint64_t io_memory_limit_of(const char *groups, const char *mount, uint64_t physical_bytes);

#endif
