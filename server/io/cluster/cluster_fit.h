/* Who is fit for which place, by what is known of all data. Pure. Internal to cluster_*.c. */
#ifndef AMPD_IO_CLUSTER_FIT_H
#define AMPD_IO_CLUSTER_FIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cluster_process;
struct etcd_cluster;

/* The highest fence under which anybody who is there, or etcd, knows the shard to have been served; 0: none. */
uint64_t cluster_newest(const struct etcd_cluster *cluster, uint32_t shard);

/* The highest of all shards: fences that are given are to be above it. */
uint64_t cluster_floor(const struct etcd_cluster *cluster);

/* Whether the data know that the shard was served, and etcd does not: it has lost what it held. */
bool cluster_forgotten(const struct etcd_cluster *cluster, uint32_t shard);

/* The fence under which the data here were that shard last; 0: never. */
uint64_t cluster_served(const struct etcd_cluster *cluster, uint32_t shard);

/* Whether the data here are what the shard was last, as far as anybody knows. */
bool cluster_is_own(const struct etcd_cluster *cluster, uint32_t shard);

/* Another process that waits and whose data are what the shard was last; NULL. Not where those here are so, too. */
const struct cluster_process *cluster_owner(const struct etcd_cluster *cluster, uint32_t shard);

/* Whether the data here are not what the shard was last, and only another shard could make them so. */
bool cluster_lacks(const struct etcd_cluster *cluster, uint32_t shard);

/* Whether the place has a process that serves as the shard. */
bool cluster_serves_there(const struct etcd_cluster *cluster, uint32_t shard);

/*
 * A shard that another process serves under a lower fence than the data here were it, so that they are newer;
 * IO_CLUSTER_ANY: none.
 */
uint32_t cluster_served_older(const struct etcd_cluster *cluster);

/*
 * The free place that this process is to claim: the one that was asked for, one whose data are here, or the lowest.
 * IO_CLUSTER_ANY: none. *patience_ms: how long others are to go first.
 */
uint32_t cluster_candidate(const struct etcd_cluster *cluster, int64_t *patience_ms);

/* Why the data here are not served as that shard, and what would do, as a sentence. */
void cluster_what_lacks(const struct etcd_cluster *cluster, uint32_t shard, char *text, size_t size);

#endif
