/* What a cluster needs to know when it is made, and the callbacks by which it reports (cluster.h). */
#ifndef AMPD_IO_CLUSTER_OPTIONS_H
#define AMPD_IO_CLUSTER_OPTIONS_H

#include "base/err.h"
#include "base/log.h"
#include "server/io/cluster/cluster_address.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct io_etcd_access;

/* In place of a shard's index: any place that is free. */
#define IO_CLUSTER_ANY UINT32_MAX

/* Default time of the lease on a place: a shard that is gone is found after it, and etcd may be away for less. */
#define IO_CLUSTER_LEASE_MS 5000
/*
 * etcd grants no lease below one and a half of its election timeouts (1 s by default), in whole seconds. With a shorter
 * lease than this an etcd that loses its leader may not have elected another in time, and healthy shards would end.
 */
#define IO_CLUSTER_LEASE_MIN_MS 2000
#define IO_CLUSTER_LEASE_MAX_MS 60000

/* Called on the loop's thread, never from within a function of cluster.h. */
struct io_cluster_events {
    /* This process holds the place of `shard`, under a fence that is above those of all earlier holders. */
    void (*taken_cb)(void *arg, uint32_t shard, const struct ampd_fence *fence);
    /*
     * There is no place for this process yet. AMP_ESTATE: none is free; AMP_EDATALOSS: one is free, but the data here
     * may not be served as it; AMP_EUNAVAILABLE: etcd does not answer, or has lost its data, and other shards have no
     * process yet. The text of `why` names the holder or the fault. Called again when the text changes.
     */
    void (*waiting_cb)(void *arg, const struct amp_error *why);
    /*
     * The place is lost, or it is not known whether it is still held: from now on nothing may be said or answered in
     * the shard's name. AMP_ESTATE: this process can never get a place, since its command line does not fit the
     * cluster. Called at most once; no taken_cb or waiting_cb follows.
     */
    void (*lost_cb)(void *arg, const struct amp_error *why);
    /* In the map the holder of `shard`, its fence or its address has changed (io_cluster_member has the new ones). */
    void (*moved_cb)(void *arg, uint32_t shard);
};

/* What pointers point to must outlive the cluster. */
struct io_cluster_options {
    uint32_t shards;     /* of the cluster: 1 to IO_CLUSTER_SHARDS_MAX */
    uint32_t shard;      /* the index to take, or IO_CLUSTER_ANY */
    const char *address; /* at which other processes and clients reach this one */
    const struct amp_log *log;
    const struct io_cluster_events *events;
    void *arg; /* of all callbacks */
    const struct io_cluster_url *url;
    const struct io_etcd_access *access;
    int64_t lease_ms;                       /* 0: IO_CLUSTER_LEASE_MS */
    uint64_t local;                         /* bit k: this process has a store of shard k */
    uint64_t models;                        /* bit k: the store of shard k has models */
    uint64_t served[IO_CLUSTER_SHARDS_MAX]; /* by shard: the fence under which the data here last served; 0: never */
    uint64_t known[IO_CLUSTER_SHARDS_MAX];  /* by shard: the highest fence that the data here name; 0: none */
    const char *data_dir;                   /* for texts of errors */
    /*
     * The lease of the process that used this data directory before and is known to be gone: it is revoked once this
     * process has a lease. 0: none is known.
     */
    int64_t lease_before;
    /* Gets each new lease that places are bound to, so that the next start can pass it as lease_before. May be NULL. */
    void (*lease_cb)(void *arg, int64_t lease);
};

#endif
