/*
 * Which process is which shard of a cluster in etcd (`--cluster`). Each shard index has one place, a key bound to a
 * lease, which at most one process holds at a time. A struct io_cluster takes the place of this process, and keeps a
 * map: which process holds each place, at which address. With a fixed list of shards (`--peers`) there is none.
 *
 *   WAITING -> HOLDING -> LOST             LOST is final, and the process ends
 *   any -> CLOSED
 *
 * All functions and callbacks run on the loop's thread. Callbacks come from the loop and never from within a function,
 * except done_cb of io_cluster_leave and io_cluster_raise_fences where no request could be sent.
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

/* Most standbys that io_cluster_standbys reports; any further ones are left out. */
#define IO_CLUSTER_STANDBYS_MAX 16

/* One place, as this process knows it. */
struct io_cluster_member {
    bool held;
    uint64_t fence;                       /* of the holder; 0: not known, or the place is not held */
    char address[IO_CLUSTER_ADDRESS_MAX]; /* of the holder, or of the last one if it is gone; "": none is known */
};

/*
 * Makes a cluster, and begins to read its map and to take the place that the options name: taken_cb, waiting_cb and
 * lost_cb report. The options are copied, and what their pointers point to must outlive the cluster. On success *out is
 * the caller's (io_cluster_close). AMP_EINVAL, AMP_ENOMEM.
 */
int io_cluster_new(struct uv_loop_s *loop, const struct io_cluster_options *options, struct io_cluster **out,
                   struct amp_error *error);

/*
 * Gives the place back, so that the next process need not wait until the lease runs out. Whatever this process says in
 * the shard's name must be over before. done_cb (may be NULL) comes when etcd has answered or the request has failed.
 */
void io_cluster_leave(struct io_cluster *cluster, void (*done_cb)(void *arg), void *arg);

/*
 * Frees the cluster without giving the place back; to be called once. From then on no callback comes, except done_cb of
 * an io_cluster_leave that is under way and closed_cb (may be NULL), which comes when the memory is freed and nothing
 * uses the loop any more.
 */
void io_cluster_close(struct io_cluster *cluster, void (*closed_cb)(void *arg), void *arg);

/*
 * Whether this process holds its place at this moment, by a clock that is read now. Ask before anything is said in the
 * shard's name: a process may have been stopped for longer than its lease without knowing.
 */
bool io_cluster_holds(const struct io_cluster *cluster);

/*
 * Raises the highest epoch of a model; only the holder of shard 0 may. done_cb gets a number that is at least `epoch`,
 * and above all numbers given before. It is tried until it succeeds or the place is lost; then done_cb does not come.
 * AMP_ESTATE: shard 0 is not held; AMP_EEXHAUSTED: too many raises at a time; AMP_ENOMEM. After an error done_cb does
 * not come.
 */
int io_cluster_raise_epoch(struct io_cluster *cluster, const char *model, uint64_t epoch,
                           void (*done_cb)(void *arg, const char *model, uint64_t epoch), void *arg);

/*
 * For a process that holds its place while other shards know a higher fence, because etcd has lost its data. All fences
 * given from now on are to be above `above`. done_cb (may be NULL) comes when that is stored, and also when it has
 * failed for good, but not if the place is lost before (lost_cb).
 */
void io_cluster_raise_fences(struct io_cluster *cluster, uint64_t above, void (*done_cb)(void *arg), void *arg);

/* From now on the place is not given back to a process with newer data: the data here are about to be served. */
void io_cluster_keep(struct io_cluster *cluster);

/*
 * Notes in etcd that this process, which holds a place, serves as the shard from here on: later holders get its fence
 * from io_cluster_last. To be called before the process stores anything that other shards lack. `models`: its data have
 * models, which is noted, too (io_cluster_models). done_cb comes when this is stored; it is tried until then, or until
 * the place is lost, when done_cb does not come. Implies io_cluster_keep. AMP_ESTATE: no place is held; AMP_ENOMEM.
 */
int io_cluster_serves(struct io_cluster *cluster, bool models, void (*done_cb)(void *arg), void *arg);

/*
 * For shard 0, once all shards have reported and no model is left: removes the note of io_cluster_models, so that the
 * cluster may start over on other directories or with another number of shards. On failure the next start notes it.
 */
void io_cluster_no_models(struct io_cluster *cluster);

/* Reads the certificate files again, for connections that begin from now on. Logs the result. */
void io_cluster_reload(struct io_cluster *cluster);

/* ---- query ---- */

/* Milliseconds for which the place is surely still held, whatever happens to etcd. 0: none is held. */
int64_t io_cluster_lease_left_ms(const struct io_cluster *cluster);

/* Why the last attempt to read etcd or to write to it failed, in a sentence. "": it succeeded. */
const char *io_cluster_trouble(const struct io_cluster *cluster);

/* The place of `shard`; valid until the next turn of the loop. */
const struct io_cluster_member *io_cluster_member(const struct io_cluster *cluster, uint32_t shard);

/*
 * The highest fence of the place taken that was noted before (io_cluster_serves) or that the data of any known process
 * name. Data that last served under a lower fence are outdated. 0: none.
 */
uint64_t io_cluster_last(const struct io_cluster *cluster);

/*
 * The number of shards of a cluster that has models, as noted in etcd when this process took its place, or may have
 * them, as far as known from before etcd lost its data: a directory without models then lacks them. 0: it has none.
 */
uint32_t io_cluster_models(const struct io_cluster *cluster);

/* How many processes stand by for a place (IO_CLUSTER_STANDBYS_MAX at most), and the address of one of them. */
uint32_t io_cluster_standbys(const struct io_cluster *cluster);
const char *io_cluster_standby(const struct io_cluster *cluster, uint32_t index);

#endif
