/* What the core wants stored. */
#ifndef AMPD_IO_PERSIST_H
#define AMPD_IO_PERSIST_H

#include "server/core/core.h"

struct ampd_server;

/* Does what the core wants stored, on the writer; in order. */
void io_persist(struct ampd_server *server, const struct ampd_persist *persist);

/* Takes a checkpoint out of the catalogue, and its file away. */
void io_persist_drop_checkpoint(struct ampd_server *server, const char *model,
                                const struct ampd_checkpoint_record *checkpoint);

#endif
