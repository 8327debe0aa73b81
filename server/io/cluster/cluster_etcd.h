/*
 * A cluster in etcd: cluster_etcd.c takes places, cluster_fit.c tells who is fit for which, cluster_map.c knows the
 * keys and the map, cluster_raise.c raises epochs and fences. Internal to these.
 */
#ifndef AMPD_IO_CLUSTER_ETCD_H
#define AMPD_IO_CLUSTER_ETCD_H

#include "base/list.h"
#include "server/io/cluster/cluster_impl.h"
#include "server/io/cluster/cluster_map.h"

#include <uv.h>

struct io_etcd_lease;
struct io_etcd_watch;

enum cluster_state {
    CLUSTER_OPEN,     /* the map alone */
    CLUSTER_WAITING,  /* for a lease, a free place, or the next look at both */
    CLUSTER_CLAIMING, /* a transaction is under way */
    CLUSTER_HOLDING,
    CLUSTER_LOST,
    CLUSTER_LEFT
};

/* Something to be raised (cluster_raise.c). */
struct cluster_raise;

struct etcd_cluster {
    struct io_cluster base;
    struct io_etcd *etcd;
    struct io_etcd_lease *lease;
    struct io_etcd_watch *watch;
    enum cluster_state state;
    char prefix[CLUSTER_KEY_MAX]; /* "ampd/NAME/" */

    /* the map */
    struct cluster_place places[IO_CLUSTER_SHARDS_MAX];
    uint32_t processes;
    struct cluster_process process[CLUSTER_PROCESSES_MAX];
    uint64_t last[IO_CLUSTER_SHARDS_MAX]; /* who/last-K; 0: none */
    /*
     * The highest that it was here, also where etcd has lost what it held since; not shown to others, who have their
     * own.
     */
    uint64_t seen[IO_CLUSTER_SHARDS_MAX];
    uint64_t models;                      /* who/shards; 0: none */
    bool settled;                         /* it was read at least once */
    int64_t revision;

    /* taking */
    uint32_t shard;      /* claimed or held */
    int64_t claim_lease; /* that the claim under way is bound to */
    uint64_t number;     /* `base` as it was read last, and the revision of that; 0, 0: there is none */
    int64_t number_revision;
    uint64_t claim_base;    /* what the claim under way counts from */
    int64_t place_revision; /* HOLDING: that made the key */
    bool confirmed;         /* the map has come to that revision: from then on it must have the place */
    bool told;              /* HOLDING: that this process has the place */
    struct ampd_fence fence;
    int64_t showing; /* the lease under which others are being told of this process; 0: none is asked for */
    int64_t shown;   /* and of which etcd has said that it is done */
    bool unlocked;   /* time for others to go first has passed */
    uv_timer_t claim_timer;
    char said[AMP_ERROR_TEXT_MAX]; /* by waiting_cb last */
    struct amp_error why;          /* LOST: of the place that is being given back */

    struct amp_list raises;
    uint32_t raises_count;
    bool has_models; /* what this process has last said of its models */
    uv_timer_t raise_timer;

    uint32_t calls; /* under way */
    uint32_t open;  /* timers */
    bool closing;
};

/* The place is not this process's any more. Calls out, last. */
void cluster_lost(struct etcd_cluster *cluster, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A call has ended: frees what is closing. True: the cluster is gone or going, nothing is to be done with it. */
bool cluster_call_over(struct etcd_cluster *cluster);

#endif
