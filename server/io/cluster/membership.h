/*
 * This process's membership in its cluster: which shard it is, under which fence, and at which address others find it
 * (cluster.h, docs/cluster.md). Without etcd, the command line says which shard it is. With etcd, a process without a
 * place stands by: it listens, but serves nothing. One that loses its place ends with exit code 4: nothing that it
 * might still say in the shard's name is valid, and a restart finds out what its data are worth.
 *
 * Functions run on the loop's thread. Those that say "runs the loop" may not be called from one of its callbacks.
 */
#ifndef AMPD_IO_MEMBERSHIP_H
#define AMPD_IO_MEMBERSHIP_H

#include "base/err.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_server;
struct io_membership;

/*
 * Opens and locks the data directory; the first function to be called. With one shard alone or a fixed list this opens
 * the store in it (io_data_open). With etcd each shard has a directory below it: their stores are opened, asked for
 * models and fences, and closed again; and the shared checkpoint directory is claimed (shared_dir.h). 0, or the error.
 */
int io_membership_open(struct ampd_server *server, struct amp_error *error);

/*
 * With etcd: waits for a place, running the loop, sets options->shard and server->fence, and opens the store of that
 * shard. The server must listen already. Without etcd: counts this start in the store, which gives server->fence, and
 * does not run the loop. 0; AMP_ECANCELLED: a signal came while it waited; AMP_EINVAL: the options do not fit the
 * cluster; AMP_EUNAVAILABLE, AMP_ESTATE: the place was lost meanwhile, or its fence is not above that of the store, and
 * ampd is to be started again; else an error of the store.
 */
int io_membership_take(struct ampd_server *server, struct amp_error *error);

/*
 * Whether any data that were in the data directory at the start have models, so that the cluster is not new. etcd only.
 */
bool io_membership_has_models(const struct ampd_server *server);

/*
 * Whether the shard's directory has no model, though the cluster has models and another process has been this shard
 * since. It must be filled from another shard (refill.h). Known once io_membership_take has returned; etcd only.
 */
bool io_membership_is_bare(const struct ampd_server *server);

/*
 * Whether the shard's directory has models, but another process has been this shard since: the other shards must be
 * asked whether they hold newer data (refill.h). Known once io_membership_take has returned, false again after
 * io_membership_serve; etcd only.
 */
bool io_membership_in_doubt(const struct ampd_server *server);

/*
 * Declares that the store is what the shard has to be: stores this process's fence in it, and notes in etcd that this
 * process serves. Runs the loop until both are done. No effect without etcd. 0; AMP_ECANCELLED: a signal came
 * meanwhile; AMP_ESTATE, AMP_ENOMEM, or an error of the store.
 */
int io_membership_serve(struct ampd_server *server, struct amp_error *error);

/*
 * Ends the process (exit code 4) if its place is lost by a clock that is read now. To be called before anything is said
 * in the shard's name. No effect without etcd, before a place is taken and after io_membership_close.
 */
void io_membership_check(const struct ampd_server *server);

/* For SIGHUP: reads the certificate files for etcd again. */
void io_membership_reload(struct ampd_server *server);

/*
 * Notes in etcd that no model is left, if that is so and this is shard 0: the cluster may then start over. To be called
 * when all shards have reported what they hold, and after each deletion of a model. The core must exist.
 */
void io_membership_no_models(struct ampd_server *server);

/*
 * For the core's output RAISE_EPOCH: raises the highest epoch of a model in etcd, and gives the core EPOCH_RAISED with
 * the token when that is done. A second request for the same model replaces token and epoch of the first one, which
 * gets no event. Where it cannot be done the process ends.
 */
void io_membership_raise(struct ampd_server *server, uint64_t token, const char *model, uint64_t epoch);

/*
 * For the core's output FENCED: other shards know of a process with this higher fence. The process ends; with etcd the
 * fences that etcd gives are first raised above this one, without etcd it ends at once.
 */
void io_membership_fenced(struct ampd_server *server, const struct ampd_fence *fence);

/*
 * Gives the place back and closes the cluster, which takes some turns of the loop. Nothing that this process said in
 * the shard's name may be under way any more. A second call has no effect.
 */
void io_membership_close(struct ampd_server *server);

/* Frees the membership and unlocks the data directory. The loop has ended. */
void io_membership_free(struct ampd_server *server);

/*
 * What is wrong, in a sentence: that etcd does not answer or refuses (also while this process is a shard); while it
 * waits for a place, that its data may not be served as the shard whose place is free, or, after etcd has lost its
 * data, which other shard must have a process first; while it has a place and no data, what the refill waits for
 * (refill.h). "": nothing. Valid until the loop's next turn.
 */
const char *io_membership_missing(const struct ampd_server *server);

/* Whether this process waits for a place, and could take one as soon as one is free. */
bool io_membership_stands_by(const struct ampd_server *server);

/* The address at which other processes and clients reach this one: --advertise, or where it listens. */
const char *io_membership_address(const struct ampd_server *server);

/* The path of --data-dir, which this process has locked; with etcd the shards' directories are below it. */
const char *io_membership_directory(const struct ampd_server *server);

#endif
