/*
 * Gives memory back to the kernel on the compute threads, a piece at a time: 4 MiB of small pages of shared memory take
 * up to a millisecond, and of malloc's a third of that, for which the loop would stand still. Between two pieces other
 * tasks have their turn. A server that closes does it at once. On the loop's thread.
 */
#ifndef AMPD_IO_FREE_MEMORY_H
#define AMPD_IO_FREE_MEMORY_H

#include <stddef.h>

struct ampd_server;

/* Takes over memory and descriptor of io_shared_new (shared_copies.h). */
void io_shared_free(struct ampd_server *server, int fd, void *memory, size_t size);

/* Takes over memory of malloc, of which `size` bytes may have been used. `arg` is the server: an ampd_large_memory. */
void io_large_memory_free(void *arg, void *memory, size_t size);

#endif
