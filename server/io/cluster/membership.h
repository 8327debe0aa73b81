/*
 * This process's place in its cluster: which shard it is, under which fence, and where the others are (cluster.h). A
 * process that has no place yet stands by: it listens, but serves nothing. One that loses its place ends: what it might
 * still say in the shard's name is worth nothing, and a restart finds out where the data stand.
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
 * Takes the data directory. One shard alone, or of a list, opens its store in it; where places are kept in etcd, each
 * shard's store is a directory below it, and all that are there are asked what they know of. 0, or what the store says.
 */
int io_membership_open(struct ampd_server *server, struct amp_error *error);

/*
 * Takes a place, and runs the loop until there is one: then options->shard and server->fence are set, and the store is
 * open and knows them. The server listens. 0; AMP_ECANCELLED: a signal has ended the wait; AMP_EINVAL: the options do
 * not fit the cluster; else what the store says. Of one shard alone: counts the start.
 */
int io_membership_take(struct ampd_server *server, struct amp_error *error);

/* Whether data of a shard that were here at the start have models: the cluster is no new one. */
bool io_membership_has_models(const struct ampd_server *server);

/*
 * Whether the shard's directory has no model though the cluster has models, and is not the one that the shard served
 * from last: other shards must fill it.
 */
bool io_membership_is_bare(const struct ampd_server *server);

/*
 * Whether another process has held this shard since its data were: the other shards are asked (refill.h). Until
 * io_membership_serve has said whose the data are.
 */
bool io_membership_in_doubt(const struct ampd_server *server);

/*
 * The store is what the shard's has to be: makes it known in the store and in etcd that it is the shard's from here on.
 * Runs the loop meanwhile. 0; AMP_ECANCELLED as above; else what the store says, AMP_ENOMEM.
 */
int io_membership_serve(struct ampd_server *server, struct amp_error *error);

/*
 * Ends the process if the place is not its own any more, by a clock that is read now. Before anything in the shard's
 * name.
 */
void io_membership_check(const struct ampd_server *server);

/* SIGHUP: the files by which etcd is spoken to. */
void io_membership_reload(struct ampd_server *server);

/*
 * Call it when all shards have told what they hold, and when a model is deleted: if no model is left, the cluster may
 * begin anew.
 */
void io_membership_no_models(struct ampd_server *server);

/* What the core asks for and tells: RAISE_EPOCH, FENCED. */
void io_membership_raise(struct ampd_server *server, uint64_t token, const char *model, uint64_t epoch);
void io_membership_fenced(struct ampd_server *server, const struct ampd_fence *fence);

/*
 * Gives the place back and ends the cluster; the loop must run on. Nothing of this process may be under way any more.
 */
void io_membership_close(struct ampd_server *server);

/* Frees the rest, and lets the directory go; the loop has ended. */
void io_membership_free(struct ampd_server *server);

/*
 * Why this process, while it stands by, cannot take a place: etcd cannot be asked, or its data will not do for the
 * place that is free; "": it can, once one is free. Also of a shard: that etcd cannot be asked. Valid until the loop
 * runs on; the loop's thread.
 */
const char *io_membership_missing(const struct ampd_server *server);

/* Whether this process waits for a place, and could take one. */
bool io_membership_stands_by(const struct ampd_server *server);

/* Where this process's services are, as others are told. */
const char *io_membership_address(const struct ampd_server *server);

/* The directory that is this process's own, below which all its data are. */
const char *io_membership_directory(const struct ampd_server *server);

#endif
