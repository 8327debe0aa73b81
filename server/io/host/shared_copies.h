/*
 * Cast copies of models in shared memory: workers of this host map them, to read. A copy has its memfd as long as the
 * model has it; who has mapped one may go on reading it after that. On the loop.
 */
#ifndef AMPD_IO_SHARED_COPIES_H
#define AMPD_IO_SHARED_COPIES_H

#include "server/core/model/copy_memory.h"

#include <stdbool.h>
#include <stddef.h>

struct amp_error;
struct ampd_server;

/*
 * As amp_shared_new; AMP_EEXHAUSTED also where only descriptors are left that are kept for storage: nothing is held
 * then, and *fd and *memory are not valid. For copies and for slots. On the loop.
 */
int io_shared_new(const char *name, size_t size, bool sole_writer, int *fd, void **memory, struct amp_error *error);

/* NULL where shared memory is off, or this machine has none: a line of the log says so. Before the core is made. */
const struct ampd_copy_memory *io_shared_copies_open(struct ampd_server *server);
/* After the core is freed. */
void io_shared_copies_close(struct ampd_server *server);

/* The descriptor of a copy, or -1: it cannot be shared. */
int io_shared_copies_fd(const struct ampd_server *server, const void *copy);

#endif
