/*
 * What etcd answers, by a first byte that chooses: what is taken can be encoded again and is then the same to the byte;
 * what is refused leaves nothing behind. Keys and values go on into the map of a cluster, whose bounds hold.
 */
#include "tests/fuzz/fuzz.h"

#include "base/err.h"
#include "server/io/cluster/cluster_impl.h"

#include <stdlib.h>
#include <string.h>

/* What is taken may be a little longer when it is encoded again. */
#define OUT_MAX ((size_t)1 << 20)
#define PREFIX  "ampd/c/"
#define SHARDS  3

struct row {
    size_t size;
    int (*decode_cb)(void *message, const void *data, size_t size, struct amp_error *error);
    int (*encode_cb)(const void *message, struct amp_buf *out);
    void (*free_cb)(void *message);
};

/* Functions of one type for all messages. */
#define ROW(S, FREE)                                                                                                   \
    static int S##_decode_row(void *message, const void *data, size_t size, struct amp_error *error)                   \
    {                                                                                                                  \
        return S##_decode(message, data, size, error);                                                                 \
    }                                                                                                                  \
    static int S##_encode_row(const void *message, struct amp_buf *out)                                                \
    {                                                                                                                  \
        return S##_encode(message, out);                                                                               \
    }                                                                                                                  \
    static void S##_free_row(void *message)                                                                            \
    {                                                                                                                  \
        FREE;                                                                                                          \
    }
ROW(ampd_etcd_range_response, ampd_etcd_range_response_free(message))
ROW(ampd_etcd_watch_response, ampd_etcd_watch_response_free(message))
ROW(ampd_etcd_txn_response, ampd_etcd_txn_response_free(message))
ROW(ampd_etcd_lease_grant_response, ampd_etcd_lease_grant_response_free(message))
ROW(ampd_etcd_lease_keep_alive_response, (void)message)
ROW(ampd_etcd_authenticate_response, ampd_etcd_authenticate_response_free(message))

#define OF(S)                                                                                                          \
    {                                                                                                                  \
        sizeof(struct S), S##_decode_row, S##_encode_row, S##_free_row                                                 \
    }
enum { RANGE, WATCH };
static const struct row rows[] = {OF(ampd_etcd_range_response),
                                  OF(ampd_etcd_watch_response),
                                  OF(ampd_etcd_txn_response),
                                  OF(ampd_etcd_lease_grant_response),
                                  OF(ampd_etcd_lease_keep_alive_response),
                                  OF(ampd_etcd_authenticate_response)};
#define ROWS (sizeof rows / sizeof *rows)

static void check_move(void *arg, uint32_t shard)
{
    AMP_ASSERT(shard < SHARDS);
}

static void check_map(struct io_cluster *cluster)
{
    cluster_map_settled(cluster);
    AMP_ASSERT(cluster->processes <= CLUSTER_PROCESSES_MAX && cluster->standbys <= IO_CLUSTER_STANDBYS_MAX);
    for (uint32_t k = 0; k < SHARDS; k++) {
        const struct io_cluster_member *member = &cluster->members[k];
        AMP_ASSERT(memchr(member->address, 0, sizeof member->address) != NULL);
        AMP_ASSERT(!member->held || io_cluster_address_ok(member->address));
    }
}

static void follow_events(struct io_cluster *cluster, const struct ampd_etcd_watch_response *watch)
{
    for (size_t i = 0; i < watch->events.count; i++) {
        const struct ampd_etcd_key_value *kv = &watch->events.items[i].kv;
        if (watch->events.items[i].type == AMPD_ETCD_DELETE)
            cluster_map_remove(cluster, kv->key.data, kv->key.size);
        else
            cluster_map_put(cluster, kv);
    }
}

static void follow(unsigned kind, const void *message)
{
    static const struct io_cluster_events events = {.moved_cb = check_move};
    struct io_cluster *cluster = calloc(1, sizeof *cluster);
    AMP_ASSERT(cluster != NULL);
    memcpy(cluster->prefix, PREFIX, sizeof PREFIX);
    cluster->options = (struct io_cluster_options){.shards = SHARDS, .events = &events};
    cluster_map_reset(cluster);
    const struct ampd_etcd_range_response *range = message;
    for (size_t i = 0; kind == RANGE && i < range->kvs.count; i++)
        cluster_map_put(cluster, &range->kvs.items[i]);
    if (kind == WATCH)
        follow_events(cluster, message);
    check_map(cluster);
    free(cluster);
}

static void run(unsigned kind, const uint8_t *data, size_t size)
{
    const struct row *row = &rows[kind];
    struct amp_error error = {.text = ""};
    struct amp_buf out, again;
    void *message = calloc(1, row->size);
    AMP_ASSERT(message != NULL);
    amp_buf_init(&out, OUT_MAX);
    amp_buf_init(&again, OUT_MAX);
    int rc = row->decode_cb(message, data, size, &error);
    AMP_ASSERT(rc == 0 || (rc == AMP_EINVAL && error.text[0] != 0));
    if (rc == 0) {
        follow(kind, message);
        AMP_ASSERT(row->encode_cb(message, &out) == 0);
        row->free_cb(message);
        AMP_ASSERT(row->decode_cb(message, out.data, out.size, &error) == 0);
        AMP_ASSERT(row->encode_cb(message, &again) == 0 && out.size == again.size);
        AMP_ASSERT(out.size == 0 || memcmp(out.data, again.data, out.size) == 0);
    }
    row->free_cb(message); /* of one that was refused, too: it is empty */
    amp_buf_close(&out);
    amp_buf_close(&again);
    free(message);
}

void fuzz_one(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {data, size};
    unsigned kind = fuzz_byte(&input) % ROWS;
    uint8_t *bytes = fuzz_exact(input.data, input.size);
    run(kind, bytes, input.size);
    free(bytes);
}
