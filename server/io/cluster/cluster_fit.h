/*
 * Decides which process is fit to hold which place, from what the map says about the data of all processes. Pure
 * functions of struct io_cluster; the head of cluster_fit.c has the rules. Internal to cluster_*.c.
 */
#ifndef AMPD_IO_CLUSTER_FIT_H
#define AMPD_IO_CLUSTER_FIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cluster_process;
struct io_cluster;

/*
 * The highest fence under which the shard is known to have been served: by etcd (now, or as read earlier), by the data
 * here, or by the data of any process in the map. 0: none.
 */
uint64_t cluster_newest(const struct io_cluster *cluster, uint32_t shard);

/*
 * The highest cluster_newest of all shards, and the highest fence under which any store here has served, also one that
 * does not count as data since it has no model. Fences that are given must be above it.
 */
uint64_t cluster_floor(const struct io_cluster *cluster);

/* Whether etcd has lost its note of the shard: it has no fence under which it was served, but one is known. */
bool cluster_forgotten(const struct io_cluster *cluster, uint32_t shard);

/* The fence under which the data here last served as this shard. 0: they never did. */
uint64_t cluster_served(const struct io_cluster *cluster, uint32_t shard);

/* Whether this process has a store of the shard, and no newer data of the shard are known (cluster_newest). */
bool cluster_is_own(const struct io_cluster *cluster, uint32_t shard);

/*
 * Another process that waits for a place and has the newest data of the shard. NULL: there is none, or the data here
 * are the newest, too.
 */
const struct cluster_process *cluster_owner(const struct io_cluster *cluster, uint32_t shard);

/*
 * Whether serving the data here as this shard would lose something: newer data of the shard exist, and there are
 * models, or may be. The directory must then be filled from another shard.
 */
bool cluster_lacks(const struct io_cluster *cluster, uint32_t shard);

/*
 * Whether another shard could fill the directory of this one: it serves; or etcd has lost its note of this shard, and
 * another process has the newest data of the other one, which serves once all places are held.
 */
bool cluster_can_be_filled(const struct io_cluster *cluster, uint32_t shard);

/* Whether a process holds the place and has noted that it serves (io_cluster_serves). */
bool cluster_serves_there(const struct io_cluster *cluster, uint32_t shard);

/*
 * A shard that another process serves under a lower fence than the one under which the data here served as it: the data
 * here are newer. IO_CLUSTER_ANY: none.
 */
uint32_t cluster_served_older(const struct io_cluster *cluster);

/*
 * The free place that this process should claim: the one that the options ask for; else one of which it has the newest
 * data; else the lowest. IO_CLUSTER_ANY: none, and *patience_ms is not set. *patience_ms: milliseconds for which other
 * processes may go first; 0: claim now.
 */
uint32_t cluster_candidate(const struct io_cluster *cluster, int64_t *patience_ms);

/* Writes a sentence for the operator: why the data here cannot be served as this shard, and what to do about it. */
void cluster_what_lacks(const struct io_cluster *cluster, uint32_t shard, char *text, size_t size);

#endif
