/* Stores what the core asks for, on the writer's thread. Functions run on the loop's thread. */
#ifndef AMPD_IO_PERSIST_H
#define AMPD_IO_PERSIST_H

#include "server/core/core.h"

struct ampd_server;

/*
 * Stores a record, and then gives the core PERSISTED with its token. Records are copied, and stored in the order of the
 * calls; only the deletion of a model may be later. PERSISTED comes in the same order, except that of a deletion, which
 * waits until the model's files are removed, and that of an epoch of a model with `durability: step`, which waits for
 * the directory of its journal. A full disk is waited for; any other failure ends the process.
 */
void io_persist(struct ampd_server *server, const struct ampd_persist *persist);

/*
 * Removes a checkpoint from the catalogue, and then its file. Copies the record. No event comes. `file_only`: only its
 * file, and before any part that is begun later is written.
 */
void io_persist_drop_checkpoint(struct ampd_server *server, const char *model,
                                const struct ampd_checkpoint_record *checkpoint, bool file_only);

#endif
