/*
 * Fills the data directory of this shard from the store of another shard (the refill), before this process serves. It
 * is done where the directory is empty though the cluster has models (a lost disk, a new standby), and where the
 * directory is in doubt (io_membership_in_doubt) and another shard holds newer data; then the old directory is set
 * aside (stale.h). The shard then starts as after any crash. On the loop's thread.
 */
#ifndef AMPD_IO_REFILL_H
#define AMPD_IO_REFILL_H

#include "base/err.h"

#include <stdbool.h>

struct ampd_server;

/*
 * Refills the store if that is due: a cluster of several shards in etcd, or in a list with --epoch-above, and a store
 * that has no model or is in doubt. The other shards are asked one after the other (in a list shard 0 first) until one
 * has sent all that its store has, or all have answered that they have no model either. The store is then that copy;
 * one in doubt is kept if the copy is not newer. Runs the loop meanwhile, so it may not be called from a callback, and
 * nothing else may use the store. 0 also where no refill is due.
 *
 * AMP_ECANCELLED: a signal came. AMP_EUNAVAILABLE: no shard has answered for a minute, though the cluster has models.
 * AMP_ESTATE: it has models, and all other shards are empty, too. Else an error of the disk or of memory; the store is
 * then as it was, or closed.
 */
int io_refill_if_due(struct ampd_server *server, struct amp_error *error);

/*
 * Whether a store without models is being filled at this moment. Other shards that ask this one for rows are then
 * answered that it has no model (server/io/calls/fetch_rows.c).
 */
bool io_refill_under_way(const struct ampd_server *server);

/* In a sentence, what a refill that is under way waits for. "": none is, or it has just begun. */
const char *io_refill_waits(const struct ampd_server *server);

#endif
