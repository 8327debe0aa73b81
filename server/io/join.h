/*
 * An empty data directory of a cluster that has models: it is filled from the store of another shard before this one begins
 * to be what it is. A shard that has lost its disk, or that is new, then starts as after any crash.
 */
#ifndef AMPD_IO_JOIN_H
#define AMPD_IO_JOIN_H

#include "base/err.h"

struct ampd_server;

/*
 * If the options ask for it, as those of a cluster in etcd do, and the store has no model: asks the other shards, one after the
 * other, until one has told all, or all have told that they have no model either; then the store is that copy. Runs the loop meanwhile; nobody else may use the store. AMP_ECANCELLED: a signal has ended the
 * wait. Else errors of the disk, and the store is as it was, or closed.
 */
int io_join_if_due(struct ampd_server *server, struct amp_error *error);

#endif
