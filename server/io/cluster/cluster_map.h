/*
 * The map of a cluster in etcd: its keys and values, who holds what by them, and transactions on them. Internal to
 * cluster_*.c.
 *
 * Keys, below ampd/NAME/ :
 *   who/shard-K      the place of shard K, bound to its holder's lease: "FORMAT SHARDS BASE ADDRESS"
 *   who/standby-ID   a process that waits, by the number of its lease, bound to it: the same
 *   who/data-ID      what the data of a process are, waiting or not, by the number of its lease, bound to it:
 *                    "FORMAT SHARDS K:SERVED:KNOWN ...", struct cluster_process. Not there: it has none
 *   who/last-K       the fence of the last process that was shard K and began to serve; not bound to a lease
 *   who/shards       K, where there are models; not bound to a lease. Put with the first epoch of a model, removed with
 *                    the last model. As long as it is there, a process for another K, or without data, begins no
 *                    cluster
 *   base             a number that is added to revisions; there from the first loss of an etcd on, 0 before
 *   epoch/MODEL      the highest epoch of the model
 *
 * The fence of a place is BASE plus the revision that made its key: both only ever rise, unless etcd loses what it
 * held. Then data of the shards know of higher fences, and the base is raised above them.
 */
#ifndef AMPD_IO_CLUSTER_MAP_H
#define AMPD_IO_CLUSTER_MAP_H

#include "proto/msg_etcd.h"
#include "server/io/cluster/cluster_address.h"
#include "server/io/etcd/etcd.h"
#include "storage/records.h"

struct etcd_cluster;

/* Of the values above; a process that finds another one runs another version of ampd, and ends. */
#define CLUSTER_FORMAT 1

/* Longest key and value with the final zero. */
#define CLUSTER_KEY_MAX   (IO_CLUSTER_NAME_MAX + AMPD_NAME_MAX + 32)
#define CLUSTER_VALUE_MAX (IO_CLUSTER_ADDRESS_MAX + 64)
#define CLUSTER_DATA_MAX  (32 + IO_CLUSTER_SHARDS_MAX * 48)

/* As many processes are remembered: those of the largest cluster, and as many that stand by. */
#define CLUSTER_PROCESSES_MAX (2 * IO_CLUSTER_SHARDS_MAX)

/* Longest end of a key with a lease's number, with the final zero. */
#define CLUSTER_ID_MAX 24

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

/* A process, as its keys who/standby-ID and who/data-ID tell of it. */
struct cluster_process {
    char id[CLUSTER_ID_MAX]; /* the end of its keys */
    bool waits;              /* the first of them is there */
    bool has_data;           /* the second one is */
    char address[IO_CLUSTER_ADDRESS_MAX];
    /*
     * Of its data: the fence under which they were that shard last (0: it would not take the place); the highest they
     * know.
     */
    uint64_t served[IO_CLUSTER_SHARDS_MAX], known[IO_CLUSTER_SHARDS_MAX];
};

/* A key below the prefix. `format` makes its end. */
void cluster_key(const struct etcd_cluster *cluster, char key[CLUSTER_KEY_MAX], const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The values of who/... for this process. data_value: false if it has no data. */
bool cluster_data_value(const struct etcd_cluster *cluster, char value[CLUSTER_DATA_MAX]);
void cluster_value(const struct etcd_cluster *cluster, uint64_t base, char value[CLUSTER_VALUE_MAX]);

/* False: the bytes are no such value. */
bool cluster_entry_parse(const struct ampd_msg_bytes *value, struct cluster_entry *entry);

/* What a process says of its data; false: nothing that can be understood here, and it is as if it had none. */
bool cluster_data_parse(const struct ampd_msg_bytes *value, uint32_t shards, struct cluster_process *process);

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

#endif
