/* What a cluster is told at its beginning, and what it tells back (cluster.h). */
#ifndef AMPD_IO_CLUSTER_OPTIONS_H
#define AMPD_IO_CLUSTER_OPTIONS_H

#include "base/err.h"
#include "base/log.h"
#include "server/io/cluster/cluster_address.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct io_etcd_access;

/* No index: any free one. */
#define IO_CLUSTER_ANY UINT32_MAX

/* Time of the lease on a place: within it a lost shard is found to be lost, and etcd may be away. */
#define IO_CLUSTER_LEASE_MS 5000
/*
 * etcd grants no lease below one and a half of its election timeouts, 1 s by default, in whole seconds: within less
 * than that it may not have elected a leader again, and a shard that nothing is wrong with would end.
 */
#define IO_CLUSTER_LEASE_MIN_MS 2000
#define IO_CLUSTER_LEASE_MAX_MS 60000

struct io_cluster_events {
    /* The place of `shard` is this process's, under `fence`, which is above that of all that held it before. */
    void (*taken_cb)(void *arg, uint32_t shard, const struct ampd_fence *fence);
    /*
     * No place is free (AMP_ESTATE), the data here will not do for one that is (AMP_EDATALOSS), or none can be asked
     * for: `why` names the holder, or the fault. Said again when it changes.
     */
    void (*waiting_cb)(void *arg, const struct amp_error *why);
    /*
     * The place is not this process's any more, or cannot be known to be: from now on nothing may be said or answered
     * in its name. AMP_ESTATE: it can never be, the command line does not fit the cluster. Once; nothing comes after
     * it.
     */
    void (*lost_cb)(void *arg, const struct amp_error *why);
    /* Another process holds the place of `shard`, or nobody does, or its address is another one. */
    void (*moved_cb)(void *arg, uint32_t shard);
};

struct io_cluster_options {
    uint32_t shards;     /* 1 to IO_CLUSTER_SHARDS_MAX */
    uint32_t shard;      /* the index to take, or IO_CLUSTER_ANY */
    const char *address; /* where this process's services are, as others are told */
    const struct amp_log *log;
    const struct io_cluster_events *events; /* must outlive the cluster */
    void *arg;
    /* etcd */
    const struct io_cluster_url *url;
    const struct io_etcd_access *access; /* must outlive the cluster */
    int64_t lease_ms;
    /* Bit k: there is a store of shard k here; such a place is preferred, and asked for without delay. */
    uint64_t local;
    uint64_t models; /* bit k: that store has models */
    /* Of each shard: the fence under which the data here were the shard last; 0: never. */
    uint64_t served[IO_CLUSTER_SHARDS_MAX];
    uint64_t known[IO_CLUSTER_SHARDS_MAX]; /* of each shard: the highest fence that the data here know of */
    const char *data_dir;                  /* for errors; must outlive the cluster */
    /*
     * The lease of the process that held this directory before, and is known to be gone: it is ended at the start. 0:
     * none is known.
     */
    int64_t lease_before;
    /* The lease that places are bound to from now on, to be kept for lease_before; may be NULL. */
    void (*lease_cb)(void *arg, int64_t lease);
    /* a fixed list */
    const char *list;
    int (*boot_cb)(void *arg, uint32_t shard, struct ampd_fence *fence,
                   struct amp_error *error); /* counts, and stores */
};

#endif
