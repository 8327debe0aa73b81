/*
 * The map of a cluster in etcd: its keys and values, what they say about places and processes, and transactions on
 * them. Internal to cluster_*.c. On the loop's thread.
 *
 * Keys below ampd/NAME/ :
 *   who/shard-K      the place of shard K, bound to its holder's lease: "FORMAT SHARDS BASE ADDRESS"
 *   who/standby-ID   a process that waits, bound to its lease; ID is the lease's number in hexadecimal. The value is
 *                    like that of who/shard-K, with BASE 0
 *   who/data-ID      the data of a process, waiting or not, bound to its lease ID: "FORMAT SHARDS K:SERVED:KNOWN ...",
 *                    with the numbers of struct cluster_process. A process without data has no such key
 *   who/last-K       the fence of the last process that was shard K and began to serve; not bound to a lease
 *   who/shards       K, as long as there are models; not bound to a lease. Put with the first epoch of a model, removed
 *                    with the last model. While it exists, a process without data, or for another K, cannot begin a
 *                    new cluster
 *   base             a number that is added to revisions; 0 and no such key before etcd has first lost its data
 *   epoch/MODEL      the highest epoch of the model
 *
 * The fence of a place is BASE plus the revision that made its key. Both never fall, unless etcd loses its data: then
 * the data of the shards name higher fences, and the base is raised above them.
 */
#ifndef AMPD_IO_CLUSTER_MAP_H
#define AMPD_IO_CLUSTER_MAP_H

#include "proto/msg_etcd.h"
#include "server/io/cluster/cluster_address.h"
#include "server/io/etcd/etcd.h"
#include "storage/records.h"

struct io_cluster;

/* FORMAT of the values. A process that finds another one belongs to another version of ampd, and ends. */
#define CLUSTER_FORMAT 1

/* Longest key, value of a place or standby, and value of who/data-ID, each with the final zero. */
#define CLUSTER_KEY_MAX   (IO_CLUSTER_NAME_MAX + AMPD_NAME_MAX + 32)
#define CLUSTER_VALUE_MAX (IO_CLUSTER_ADDRESS_MAX + 64)
#define CLUSTER_DATA_MAX  (32 + IO_CLUSTER_SHARDS_MAX * 48)

/* Most processes in the map: the members of the largest cluster, and a standby for each. Further ones are ignored. */
#define CLUSTER_PROCESSES_MAX (2 * IO_CLUSTER_SHARDS_MAX)

/* Longest ID of a key, a lease's number in hexadecimal, with the final zero. */
#define CLUSTER_ID_MAX 24

/* The value of who/shard-K or who/standby-ID. */
struct cluster_entry {
    uint32_t format, shards; /* with another format than CLUSTER_FORMAT the other members are zero */
    uint64_t base;
    char address[IO_CLUSTER_ADDRESS_MAX];
};

/* A place by its key who/shard-K, possibly in the middle of a change: io_cluster_member has the settled state. */
struct cluster_place {
    bool held;
    bool foreign;     /* the holder belongs to another cluster: another format, or another number of shards */
    uint64_t fence;   /* of the holder */
    int64_t revision; /* that made the key */
    struct cluster_entry entry;
};

/* A process by its keys who/standby-ID and who/data-ID. */
struct cluster_process {
    char id[CLUSTER_ID_MAX];              /* ID of both keys */
    bool waits;                           /* who/standby-ID exists: it waits for a place */
    bool has_data;                        /* who/data-ID exists and can be read */
    char address[IO_CLUSTER_ADDRESS_MAX]; /* from who/standby-ID */
    /*
     * By shard. served: the fence under which its data last were this shard; 0: never, or it would not take the place.
     * known: the highest fence of the shard that its data name; 0: none.
     */
    uint64_t served[IO_CLUSTER_SHARDS_MAX], known[IO_CLUSTER_SHARDS_MAX];
};

/* Writes the key ampd/NAME/..., whose end is given like printf's arguments. */
void cluster_key(const struct io_cluster *cluster, char key[CLUSTER_KEY_MAX], const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Writes the value of who/data-ID for this process. False: it has no data, and wants no such key. */
bool cluster_data_value(const struct io_cluster *cluster, char value[CLUSTER_DATA_MAX]);

/* Writes the value of who/shard-K or who/standby-ID for this process. */
void cluster_value(const struct io_cluster *cluster, uint64_t base, char value[CLUSTER_VALUE_MAX]);

/* Parses the value of who/shard-K or who/standby-ID. False: it is malformed. True also for another format. */
bool cluster_entry_parse(const struct ampd_msg_bytes *value, struct cluster_entry *entry);

/*
 * Parses the value of who/data-ID into served and known of *process. False, and both are zero: it is malformed, or of
 * another format or number of shards; such a process counts as one without data.
 */
bool cluster_data_parse(const struct ampd_msg_bytes *value, uint32_t shards, struct cluster_process *process);

/* Parses a decimal number from 0 to INT64_MAX. False: the bytes are something else. */
bool cluster_number_parse(const struct ampd_msg_bytes *value, uint64_t *number);

/*
 * The map follows the callbacks of the same names in struct io_etcd_watch_events. Only cluster_map_settled shows the
 * new state to the rest of the process: it updates members and standbys, and calls moved_cb for each place that has
 * changed.
 */
void cluster_map_reset(struct io_cluster *cluster);
void cluster_map_put(struct io_cluster *cluster, const struct ampd_etcd_key_value *kv);
void cluster_map_remove(struct io_cluster *cluster, const uint8_t *key, size_t size);
void cluster_map_settled(struct io_cluster *cluster);

/* ---- requests ---- */

/* Parts of a transaction. They borrow `key` and `value`, which must stay until it is sent. Lease 0: none. */
struct ampd_msg_bytes cluster_bytes(const char *text);
struct ampd_etcd_request_op cluster_op_get(const char *key);
struct ampd_etcd_request_op cluster_op_put(const char *key, const char *value, int64_t lease);

/* Compares that the key was made, or last changed, by this revision. 0: that there is no such key. */
struct ampd_etcd_compare cluster_made_by(const char *key, int64_t create_revision);
struct ampd_etcd_compare cluster_changed_by(const char *key, int64_t mod_revision);

/*
 * Sends a transaction, as io_etcd_call does, and counts it in cluster->calls. done_cb must take that back, by
 * cluster_call_over or by itself. The request is only read.
 */
int cluster_txn(struct io_cluster *cluster, const struct ampd_etcd_txn_request *request, io_etcd_done_cb done_cb,
                void *arg);

/* The key that the index-th operation of a transaction, a get, has found. NULL: none, or it was no get of one key. */
const struct ampd_etcd_key_value *cluster_answer(const struct ampd_etcd_txn_response *answer, size_t index);

#endif
