/*
 * Who is which shard of a cluster: one place for each index, which one process at a time takes and holds, and a map of
 * who holds them and where they are. Two implementations, told apart by what they can do (struct io_cluster_abilities):
 *
 *   etcd            `--cluster etcd://h:2379,.../NAME`, or etcds: a place is a key bound to a lease (cluster_etcd.c)
 *   a fixed list    `--peers A,B,...`: the place is taken by who is told to; a counter in its own store is its fence
 *
 *   OPEN -> WAITING -> HOLDING -> LOST             io_cluster_take begins it; LOST is the end: the process ends, too
 *   any -> CLOSED
 *
 * All functions and callbacks are on the loop's thread; callbacks come from the loop, never from inside a function, but
 * for done_cb of io_cluster_leave and io_cluster_raise_fences, where nothing could be asked for.
 */
#ifndef AMPD_IO_CLUSTER_H
#define AMPD_IO_CLUSTER_H

#include "base/err.h"
#include "server/io/cluster/cluster_address.h"
#include "server/io/cluster/cluster_options.h"

#include <stdbool.h>
#include <stdint.h>

struct uv_loop_s;
struct io_cluster;

/* What an implementation can do. */
struct io_cluster_abilities {
    bool excludes;  /* a second process waits until the first has gone */
    bool remembers; /* epochs, fences and who served last, though all stores are new */
    bool any_index; /* takes IO_CLUSTER_ANY */
    bool moves;     /* addresses are those of the holders, and change with them */
};

/* One place, as it is known here. */
struct io_cluster_member {
    bool held;
    uint64_t fence;                       /* of the holder; 0: not known, or not held */
    char address[IO_CLUSTER_ADDRESS_MAX]; /* "" : not known */
};

/*
 * Makes one in etcd; nothing is taken yet, but the map is read. The options are copied but for what is said to outlive
 * it. On success *out is the caller's (io_cluster_close). AMP_EINVAL, AMP_ENOMEM.
 */
int io_cluster_new_etcd(struct uv_loop_s *loop, const struct io_cluster_options *options, struct io_cluster **out,
                        struct amp_error *error);

/* Takes the place that the options name, or waits for it. Once. */
void io_cluster_take(struct io_cluster *cluster);

/*
 * Gives the place back, so that another process need not wait for the lease; done_cb (may be NULL) when that is
 * answered, or after a deadline. What was said in its name must be over.
 */
void io_cluster_leave(struct io_cluster *cluster, void (*done_cb)(void *arg), void *arg);

/* Ends it; nothing is given back. closed_cb (may be NULL) comes when nothing of it is used any more. */
void io_cluster_close(struct io_cluster *cluster, void (*closed_cb)(void *arg), void *arg);

/*
 * Whether the place is this process's at this very moment, by a clock that is read now. To be asked before anything is
 * said in its name: a process may have been stopped for longer than the lease and not know it.
 */
bool io_cluster_holds(const struct io_cluster *cluster);

/*
 * Raises the highest epoch of a model, while this process holds the place of shard 0 under its fence: done_cb gets a
 * number that is at least `epoch` and above all that were given before. It is tried until it is done or the place is
 * lost; then done_cb does not come. AMP_EEXHAUSTED: too many at a time; AMP_ENOMEM. done_cb does not come then either.
 * Only where the cluster remembers (struct io_cluster_abilities).
 */
int io_cluster_raise_epoch(struct io_cluster *cluster, const char *model, uint64_t epoch,
                           void (*done_cb)(void *arg, const char *model, uint64_t epoch), void *arg);

/*
 * This process holds its place, but others know of a higher fence: where the places are kept has lost what it held.
 * Makes all fences that are given from now on higher than that one; done_cb (may be NULL) comes also when that fails.
 * Only where the cluster remembers.
 */
void io_cluster_raise_fences(struct io_cluster *cluster, uint64_t above, void (*done_cb)(void *arg), void *arg);

/* From now on the place is not given back to a process with newer data: the data here are about to be the shard's. */
void io_cluster_keep(struct io_cluster *cluster);

/*
 * Notes, while this process holds its place, that it is the shard from here on: whoever has the place after it hears
 * its fence by io_cluster_last. `models`: its data have any, which is noted with it (io_cluster_models), as with each
 * epoch that is raised. Before anything is stored that others have not. done_cb when that is kept; it is tried until it
 * is, or the place is lost, and then done_cb does not come. The place is kept (io_cluster_keep) from here on at the
 * latest. AMP_ESTATE: it holds no place; AMP_ENOMEM. Only where the cluster remembers.
 */
int io_cluster_serves(struct io_cluster *cluster, bool models, void (*done_cb)(void *arg), void *arg);

/*
 * For shard 0, when all shards have told what they hold and no model is left: the cluster may begin anew on other
 * directories, or on another number of shards. If it cannot be noted now, the next start notes it.
 */
void io_cluster_no_models(struct io_cluster *cluster);

/* Files of certificates are read anew, for connections that begin from now on; what comes of it is logged. */
void io_cluster_reload(struct io_cluster *cluster);

/* ---- query ---- */

/*
 * Milliseconds for which the place is this process's still, whatever happens to etcd; 0: it has none. -1: places have
 * no leases.
 */
int64_t io_cluster_lease_left_ms(const struct io_cluster *cluster);

/* Why etcd cannot be asked, in a sentence, as it was the last time; "": it can, or places are not kept there. */
const char *io_cluster_trouble(const struct io_cluster *cluster);

struct io_cluster_abilities io_cluster_abilities(const struct io_cluster *cluster);
uint32_t io_cluster_shards(const struct io_cluster *cluster);

/* The place of `shard`; valid until the next turn of the loop. */
const struct io_cluster_member *io_cluster_member(const struct io_cluster *cluster, uint32_t shard);

/*
 * Of the place that this process has taken: the highest fence that was noted for it by then (io_cluster_serves), or
 * that the data of any process that is there know of; 0: none, or fences are not kept. Data that were the shard under a
 * lower fence are outdated.
 */
uint64_t io_cluster_last(const struct io_cluster *cluster);

/*
 * The number of shards of a cluster that has models, as was noted before this process took its place; 0: it has none,
 * or nobody notes it. If it is not 0, a data directory without models lacks them.
 */
uint32_t io_cluster_models(const struct io_cluster *cluster);

/* Processes that wait for a place, and where one of them is. */
uint32_t io_cluster_standbys(const struct io_cluster *cluster);
const char *io_cluster_standby(const struct io_cluster *cluster, uint32_t index);

#endif
