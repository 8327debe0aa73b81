/*
 * Cast copies of models in shared memory, which workers on this machine map and read. The server holds the memfd of a
 * copy as long as the model has that copy; a worker that has mapped it may go on reading after that. On the loop's
 * thread.
 */
#ifndef AMPD_IO_SHARED_COPIES_H
#define AMPD_IO_SHARED_COPIES_H

#include "server/core/model/model_memory.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct amp_error;
struct ampd_server;

/*
 * Makes shared memory for a copy or a slot: amp_shared_new (base/shared.h), which also gives AMP_EEXHAUSTED where only
 * the file descriptors are left that are kept back for storage. After an error nothing is held, and *fd and *memory are
 * not valid.
 */
int io_shared_new(const char *name, size_t size, bool sole_writer, int *fd, void **memory, struct amp_error *error);

/*
 * The memory that the core is to use for cast copies; valid until io_shared_copies_close. To be called before the core
 * is made. NULL: shared memory is switched off, or this machine cannot have it, which is logged.
 */
const struct ampd_copy_memory *io_shared_copies_open(struct ampd_server *server);
/* Frees it. The core must be freed before, and with it all copies. */
void io_shared_copies_close(struct ampd_server *server);

/*
 * The memfd of a copy that is in shared memory, for a worker to map; returns the copy's number. The descriptor stays
 * the server's. From now on a rollback that may come to nothing leaves the copy as it is (server/core/shard/memory.c).
 */
uint64_t io_shared_copies_give(const struct ampd_server *server, const void *copy, int *fd);

/* The number of a copy, which no other one of this process has had, as its address may have; 0: it is not shared. */
uint64_t io_shared_copies_serial(const struct ampd_server *server, const void *copy);

#endif
