/*
 * An empty data directory of a cluster that has models: it is filled from the store of another shard before this one
 * begins to be what it is. A shard that has lost its disk, or that is new, then starts as after any crash. So is one
 * that is in doubt (io_membership_in_doubt), if another shard holds more than it; what it had is set aside (stale.h).
 */
#ifndef AMPD_IO_REFILL_H
#define AMPD_IO_REFILL_H

#include "base/err.h"

#include <stdbool.h>

struct ampd_server;

/*
 * If the options ask for it, as those of a cluster in etcd do, and the store has no model or is in doubt: asks the
 * other shards, one after the other (of a list, shard 0 before all others), until one has told all, or all have told
 * that they have no model either; then the store is that copy, or in doubt what is newer. Runs the loop meanwhile;
 * nobody else may use the store. AMP_ECANCELLED: a signal has ended the wait. AMP_EUNAVAILABLE, AMP_ESTATE: in doubt,
 * and nobody could say. Else errors of the disk, and the store is as it was, or closed.
 */
int io_refill_if_due(struct ampd_server *server, struct amp_error *error);

/* Whether an empty store is being filled, so that it says nothing of what the shard holds. */
bool io_refill_under_way(const struct ampd_server *server);

#endif
