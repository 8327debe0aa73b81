/*
 * struct io_cluster (cluster.h), and what its files share. cluster.c takes and keeps a place, cluster_fit.c
 * decides which process may claim which place, cluster_map.c reads and writes the keys, cluster_raise.c raises epochs
 * and fences. Internal to these files. On the loop's thread.
 */
#ifndef AMPD_IO_CLUSTER_IMPL_H
#define AMPD_IO_CLUSTER_IMPL_H

#include "base/list.h"
#include "server/io/cluster/cluster.h"
#include "server/io/cluster/cluster_map.h"

#include <uv.h>

struct io_etcd_lease;
struct io_etcd_watch;

/* The head of cluster.c has the transitions. */
enum cluster_state {
    CLUSTER_WAITING,  /* for a lease, for a free place, or for etcd's next report of the map */
    CLUSTER_CLAIMING, /* the transaction that claims a place is under way */
    CLUSTER_HOLDING,  /* the place was this process's when etcd answered; see also `reported` */
    CLUSTER_LOST,     /* the place is lost or being given back; the process ends */
    CLUSTER_LEFT      /* io_cluster_leave or io_cluster_close was called */
};

/* A number in etcd that is being raised (cluster_raise.c). */
struct cluster_raise;

struct io_cluster {
    struct io_cluster_options options;
    struct io_etcd *etcd;
    struct io_etcd_lease *lease;
    struct io_etcd_watch *watch;
    enum cluster_state state;
    char prefix[CLUSTER_KEY_MAX]; /* "ampd/NAME/" */

    /* The map: what the watch has read of etcd. */
    struct cluster_place places[IO_CLUSTER_SHARDS_MAX];
    uint32_t processes; /* entries of process[] in use */
    struct cluster_process process[CLUSTER_PROCESSES_MAX];
    uint64_t last[IO_CLUSTER_SHARDS_MAX]; /* by shard: the value of who/last-K; 0: no such key */
    /*
     * By shard: the highest value of who/last-K that this process has ever read. It survives a loss of etcd's data;
     * only an operator who deletes the key resets it. It is not written to etcd: each process remembers for itself.
     */
    uint64_t seen[IO_CLUSTER_SHARDS_MAX];
    uint64_t models;                                         /* value of who/shards; 0: no such key */
    bool settled;                                            /* the whole map was read at least once */
    int64_t revision;                                        /* etcd's revision that the map shows */
    struct io_cluster_member members[IO_CLUSTER_SHARDS_MAX]; /* by shard, of the map when it was settled last */
    uint32_t standbys;                                       /* entries of standby[] in use */
    char standby[IO_CLUSTER_STANDBYS_MAX][IO_CLUSTER_ADDRESS_MAX];

    /* Taking a place. */
    uint32_t shard;          /* the place that is claimed or held */
    int64_t claim_lease;     /* the lease that the claim under way is bound to */
    uint64_t number;         /* the key `base`, as read last; 0: no such key */
    int64_t number_revision; /* the revision that last changed the key `base`; 0: no such key */
    uint64_t claim_base;     /* base of the fence that the claim under way gives */
    int64_t place_revision;  /* HOLDING: the revision that made the key of the place */
    bool confirmed;          /* the map has reached place_revision; if it then lacks the key, the place is lost */
    bool reported;           /* HOLDING: taken_cb was called */
    bool keeps;              /* io_cluster_keep was called, or io_cluster_serves */
    uint64_t last_fence;     /* io_cluster_last */
    uint32_t noted_models;   /* io_cluster_models */
    struct ampd_fence fence; /* HOLDING: of the place */
    int64_t showing;         /* the lease under which who/standby-ID and who/data-ID are being written; 0: none */
    int64_t shown;           /* the lease under which etcd has confirmed that they are written; 0: none */
    bool unlocked;           /* the time for which other processes go first has passed */
    uv_timer_t claim_timer;
    char said[AMP_ERROR_TEXT_MAX]; /* text of the last waiting_cb: it is not repeated */
    struct amp_error why;          /* LOST: why the place is being given back, for lost_cb */

    struct amp_list raises; /* struct cluster_raise, owned */
    uint32_t raises_count;
    char raise_failing[AMP_ERROR_TEXT_MAX]; /* why the last answer to one is an error, in a sentence; "": it is none */
    bool has_models;        /* what this process has last said about its models (serves, raise_epoch, no_models) */
    uv_timer_t raise_timer; /* retries raises that have failed */

    uint32_t calls; /* to etcd, under way: the memory is kept until they have ended */
    uint32_t open;  /* timers that are not closed yet */
    bool closing;
    void (*closed_cb)(void *arg); /* of io_cluster_close; may be NULL */
    void *closed_arg;
};

/*
 * Ends in LOST: drops all raises, revokes the lease and calls lost_cb with this code and text. No effect in LOST and
 * LEFT. Calls out, so the caller does nothing more with the cluster.
 */
void cluster_lost(struct io_cluster *cluster, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Counts the end of a call to etcd. True: the cluster is closing, and the caller must do nothing more with it. */
bool cluster_call_over(struct io_cluster *cluster);

#endif
