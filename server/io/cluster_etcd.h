/*
 * The insides of a cluster in etcd: cluster_etcd.c takes places, cluster_map.c knows the keys and the map, cluster_raise.c
 * raises epochs and fences. Internal to these.
 *
 * Keys, below ampd/NAME/ :
 *   who/shard-K      the place of shard K, bound to its holder's lease: "FORMAT SHARDS BASE ADDRESS"
 *   who/standby-ID   a process that waits, by the number of its lease, bound to it: the same
 *   who/last-K       the fence of the last process that was shard K and began to serve; not bound to a lease
 *   who/shards       K, where there are models; not bound to a lease. Put with the first epoch of a model, removed with
 *                    the last model. As long as it is there, a process for another K, or without data, begins no cluster
 *   base             a number that is added to revisions; there from the first loss of an etcd on, 0 before
 *   epoch/MODEL      the highest epoch of the model
 *
 * The fence of a place is BASE plus the revision that made its key: both only ever rise, unless etcd loses what it held. Then
 * data of the shards know of higher fences, and the base is raised above them.
 */
#ifndef AMPD_IO_CLUSTER_ETCD_H
#define AMPD_IO_CLUSTER_ETCD_H

#include "base/list.h"
#include "proto/msg_etcd.h"
#include "server/io/cluster_impl.h"
#include "server/io/etcd_lease.h"
#include "server/io/etcd_watch.h"

#include <uv.h>

/* Of the values above; a process that finds another one runs another version of ampd, and ends. */
#define CLUSTER_FORMAT 1

/* Longest key and value with the final zero. */
#define CLUSTER_KEY_MAX   (IO_CLUSTER_NAME_MAX + AMPD_NAME_MAX + 32)
#define CLUSTER_VALUE_MAX (IO_CLUSTER_ADDRESS_MAX + 64)

/* A value of who/... */
struct cluster_entry {
    uint32_t format, shards;
    uint64_t base;
    char address[IO_CLUSTER_ADDRESS_MAX];
};

/* The places as etcd tells of them, not settled yet. */
struct cluster_place {
    bool held;
    bool strange; /* by a process that does not belong to this cluster: another format, or another number of shards */
    uint64_t fence;
    int64_t revision; /* that made the key */
    struct cluster_entry entry;
};

/* A process that waits. */
struct cluster_standby {
    char id[24]; /* the end of its key */
    char address[IO_CLUSTER_ADDRESS_MAX];
};

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
    uint32_t standbys;
    struct cluster_standby standby[IO_CLUSTER_STANDBYS_MAX];
    uint64_t last[IO_CLUSTER_SHARDS_MAX]; /* who/last-K; 0: none */
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
    struct ampd_fence fence;
    bool shown;    /* as a standby, under this lease */
    bool unlocked; /* time for others to go first has passed */
    uv_timer_t claim_timer;
    char said[AMP_ERROR_TEXT_MAX]; /* by waiting_cb last */

    struct amp_list raises;
    uint32_t raises_count;
    bool has_models; /* what this process has last said of its models */
    uv_timer_t raise_timer;

    uint32_t calls; /* under way */
    uint32_t open;  /* timers */
    bool closing;
};

/* ---- cluster_map.c ---- */

/* A key below the prefix. `format` makes its end. */
void cluster_key(const struct etcd_cluster *cluster, char key[CLUSTER_KEY_MAX], const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The value of who/... for this process. */
void cluster_value(const struct etcd_cluster *cluster, uint64_t base, char value[CLUSTER_VALUE_MAX]);

/* False: the bytes are no such value. */
bool cluster_entry_parse(const struct ampd_msg_bytes *value, struct cluster_entry *entry);

/* A number in decimal; false: the bytes are none. */
bool cluster_number_parse(const struct ampd_msg_bytes *value, uint64_t *number);

/* The functions of struct io_etcd_watch_events that keep the map; map_settled tells what has changed. */
void cluster_map_reset(struct etcd_cluster *cluster);
void cluster_map_put(struct etcd_cluster *cluster, const struct ampd_etcd_key_value *kv);
void cluster_map_remove(struct etcd_cluster *cluster, const uint8_t *key, size_t size);
void cluster_map_settled(struct etcd_cluster *cluster);

/* ---- requests ---- */

struct ampd_msg_bytes cluster_bytes(const char *text);
struct ampd_etcd_request_op cluster_op_get(const char *key);
struct ampd_etcd_request_op cluster_op_put(const char *key, const char *value, int64_t lease);
struct ampd_etcd_compare cluster_made_by(const char *key, int64_t create_revision);
struct ampd_etcd_compare cluster_changed_by(const char *key, int64_t mod_revision);

/* Sends a transaction: `request` is borrowed. As io_etcd_call; counts cluster->calls, which the callback takes back. */
int cluster_txn(struct etcd_cluster *cluster, const struct ampd_etcd_txn_request *request, io_etcd_done_cb done_cb,
                void *arg);

/* The only key of the index-th answer of a transaction, or NULL. */
const struct ampd_etcd_key_value *cluster_answer(const struct ampd_etcd_txn_response *answer, size_t index);

/* ---- cluster_etcd.c ---- */

/* The place is not this process's any more. Calls out, last. */
void cluster_lost(struct etcd_cluster *cluster, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A call has ended: frees what is closing. True: the cluster is gone or going, nothing is to be done with it. */
bool cluster_call_over(struct etcd_cluster *cluster);

/* ---- cluster_raise.c ---- */

int cluster_raise_epoch(struct io_cluster *base, const char *model, uint64_t epoch,
                        void (*done_cb)(void *arg, const char *model, uint64_t epoch), void *arg);
void cluster_raise_fences(struct io_cluster *base, uint64_t above, void (*done_cb)(void *arg), void *arg);
int cluster_serves(struct io_cluster *base, bool models, void (*done_cb)(void *arg), void *arg);
void cluster_no_models(struct io_cluster *base);

/* Tries again what is not under way. */
void cluster_raise_again(struct etcd_cluster *cluster);

/* Drops what has not been raised: nobody is told. */
void cluster_raise_drop(struct etcd_cluster *cluster);

#endif
