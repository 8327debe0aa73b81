#include "server/io/cluster/cluster_map.h"

#include "server/io/cluster/cluster.h"
#include "server/io/cluster/cluster_address.h"
#include "server/io/cluster/cluster_fit.h"
#include "server/io/cluster/cluster_impl.h"
#include "server/io/cluster/cluster_options.h"
#include "server/io/etcd/etcd.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- keys and values ---- */

void cluster_key(const struct io_cluster *cluster, char key[CLUSTER_KEY_MAX], const char *format, ...)
{
    va_list args;
    int size = snprintf(key, CLUSTER_KEY_MAX, "%s", cluster->prefix);
    va_start(args, format);
    (void)vsnprintf(key + size, CLUSTER_KEY_MAX - (size_t)size, format, args);
    va_end(args);
}

void cluster_value(const struct io_cluster *cluster, uint64_t base, char value[CLUSTER_VALUE_MAX])
{
    (void)snprintf(value, CLUSTER_VALUE_MAX, "%d %" PRIu32 " %" PRIu64 " %s", CLUSTER_FORMAT, cluster->options.shards,
                   base, cluster->options.address);
}

bool cluster_data_value(const struct io_cluster *cluster, char value[CLUSTER_DATA_MAX])
{
    const struct io_cluster_options *options = &cluster->options;
    int size = snprintf(value, CLUSTER_DATA_MAX, "%d %" PRIu32, CLUSTER_FORMAT, options->shards);
    bool any = false;
    for (uint32_t k = 0; k < options->shards; k++) {
        bool wanted = options->shard == IO_CLUSTER_ANY || options->shard == k;
        uint64_t served = wanted ? cluster_served(cluster, k) : 0;
        if (options->known[k] == 0)
            continue;
        any = true;
        size += snprintf(value + size, CLUSTER_DATA_MAX - (size_t)size, " %" PRIu32 ":%" PRIu64 ":%" PRIu64, k, served,
                         options->known[k]);
    }
    return any;
}

/* Reads a decimal number of at most 19 digits at *at, and moves *at behind it. False: none, or it is above `most`. */
static bool take_number(const char **at, uint64_t most, uint64_t *number)
{
    size_t digits = strspn(*at, "0123456789");
    if (digits == 0 || digits > 19)
        return false;
    *number = strtoull(*at, NULL, 10);
    *at += digits;
    return *number <= most;
}

bool cluster_number_parse(const struct ampd_msg_bytes *value, uint64_t *number)
{
    char text[32] = "";
    const char *at = text;
    if (value->size == 0 || value->size >= sizeof text)
        return false;
    memcpy(text, value->data, value->size);
    return take_number(&at, INT64_MAX, number) && at == text + value->size;
}

bool cluster_entry_parse(const struct ampd_msg_bytes *value, struct cluster_entry *entry)
{
    char text[CLUSTER_VALUE_MAX] = "";
    const char *at = text;
    uint64_t format, shards;
    if (value->size >= sizeof text || (value->size > 0 && memchr(value->data, 0, value->size) != NULL))
        return false;
    if (value->size > 0)
        memcpy(text, value->data, value->size);
    if (!take_number(&at, UINT32_MAX, &format) || *at++ != ' ')
        return false;
    *entry = (struct cluster_entry){.format = (uint32_t)format};
    if (format != CLUSTER_FORMAT)
        return true; /* the rest of another format cannot be read */
    if (!take_number(&at, UINT32_MAX, &shards) || *at++ != ' ' || !take_number(&at, INT64_MAX, &entry->base) ||
        *at++ != ' ' || !io_cluster_address_ok(at))
        return false;
    entry->shards = (uint32_t)shards;
    (void)snprintf(entry->address, sizeof entry->address, "%s", at);
    return true;
}

/* Reads " K:SERVED:KNOWN" at *at into *process, and moves *at behind it. False: it is malformed. */
static bool take_data(const char **at, uint32_t shards, struct cluster_process *process)
{
    uint64_t shard, served, known;
    if (*(*at)++ != ' ' || !take_number(at, shards - 1, &shard) || *(*at)++ != ':' ||
        !take_number(at, INT64_MAX, &served) || *(*at)++ != ':' || !take_number(at, INT64_MAX, &known))
        return false;
    process->served[shard] = served;
    process->known[shard] = known > served ? known : served;
    return true;
}

bool cluster_data_parse(const struct ampd_msg_bytes *value, uint32_t shards, struct cluster_process *process)
{
    char text[CLUSTER_DATA_MAX] = "";
    const char *at = text;
    uint64_t format, count;
    memset(process->served, 0, sizeof process->served);
    memset(process->known, 0, sizeof process->known);
    if (value->size == 0 || value->size >= sizeof text || memchr(value->data, 0, value->size) != NULL)
        return false;
    memcpy(text, value->data, value->size);
    bool right = take_number(&at, UINT32_MAX, &format) && format == CLUSTER_FORMAT && *at++ == ' ' &&
                 take_number(&at, UINT32_MAX, &count) && count == shards;
    while (right && *at != 0)
        right = take_data(&at, shards, process);
    if (!right) {
        memset(process->served, 0, sizeof process->served);
        memset(process->known, 0, sizeof process->known);
    }
    return right;
}

/* ---- the map ---- */

enum key_kind { KEY_OTHER, KEY_SHARD, KEY_LAST, KEY_STANDBY, KEY_DATA, KEY_MODELS };

/* The kind of a key. Sets *shard for KEY_SHARD and KEY_LAST, and id for KEY_STANDBY and KEY_DATA. */
static enum key_kind kind_of(const struct io_cluster *cluster, const uint8_t *key, size_t size, uint32_t *shard,
                             char id[CLUSTER_ID_MAX])
{
    static const char who[] = "who/", place[] = "shard-", last[] = "last-", standby[] = "standby-", data[] = "data-";
    char text[CLUSTER_KEY_MAX] = "";
    size_t prefix = strlen(cluster->prefix);
    uint64_t number;
    if (size >= sizeof text || size < prefix + strlen(who))
        return KEY_OTHER;
    memcpy(text, key, size);
    const char *at = text + prefix + strlen(who);
    if (strncmp(at, standby, strlen(standby)) == 0) {
        (void)snprintf(id, CLUSTER_ID_MAX, "%.23s", at + strlen(standby));
        return KEY_STANDBY;
    }
    if (strncmp(at, data, strlen(data)) == 0) {
        (void)snprintf(id, CLUSTER_ID_MAX, "%.23s", at + strlen(data));
        return KEY_DATA;
    }
    if (strcmp(at, "shards") == 0)
        return KEY_MODELS;
    enum key_kind kind = strncmp(at, place, strlen(place)) == 0 ? KEY_SHARD
                         : strncmp(at, last, strlen(last)) == 0 ? KEY_LAST
                                                                : KEY_OTHER;
    if (kind == KEY_OTHER)
        return KEY_OTHER;
    at += kind == KEY_SHARD ? strlen(place) : strlen(last);
    if (!take_number(&at, IO_CLUSTER_SHARDS_MAX - 1, &number) || *at != 0)
        return KEY_OTHER;
    *shard = (uint32_t)number;
    return kind;
}

void cluster_map_reset(struct io_cluster *cluster)
{
    memset(cluster->places, 0, sizeof cluster->places);
    memset(cluster->last, 0, sizeof cluster->last);
    cluster->models = 0;
    cluster->processes = 0;
}

static void put_place(struct io_cluster *cluster, uint32_t shard, const struct ampd_etcd_key_value *kv)
{
    struct cluster_place *place = &cluster->places[shard];
    *place = (struct cluster_place){.held = true, .revision = kv->create_revision};
    bool readable = cluster_entry_parse(&kv->value, &place->entry);
    place->foreign =
        !readable || place->entry.format != CLUSTER_FORMAT || place->entry.shards != cluster->options.shards;
    place->fence = place->entry.base + (uint64_t)kv->create_revision;
}

static struct cluster_process *find_process(struct io_cluster *cluster, const char *id)
{
    for (uint32_t i = 0; i < cluster->processes; i++)
        if (strcmp(cluster->process[i].id, id) == 0)
            return &cluster->process[i];
    return NULL;
}

/* Removes a process from the map if both of its keys are gone. */
static void drop_if_gone(struct io_cluster *cluster, struct cluster_process *process)
{
    if (!process->waits && !process->has_data)
        *process = cluster->process[--cluster->processes];
}

static void remove_process(struct io_cluster *cluster, enum key_kind kind, const char *id)
{
    struct cluster_process *process = find_process(cluster, id);
    if (process == NULL)
        return;
    if (kind == KEY_STANDBY) {
        process->waits = false;
    } else {
        process->has_data = false;
        memset(process->served, 0, sizeof process->served);
        memset(process->known, 0, sizeof process->known);
    }
    drop_if_gone(cluster, process);
}

static void put_last(struct io_cluster *cluster, uint32_t shard, const struct ampd_msg_bytes *value)
{
    uint64_t number = 0;
    cluster->last[shard] = cluster_number_parse(value, &number) ? number : 0;
    if (cluster->last[shard] > cluster->seen[shard])
        cluster->seen[shard] = cluster->last[shard];
}

/* A process for which the map has no room (CLUSTER_PROCESSES_MAX) is ignored. */
static void put_process(struct io_cluster *cluster, enum key_kind kind, const char *id,
                        const struct ampd_etcd_key_value *kv)
{
    struct cluster_process *process = find_process(cluster, id);
    struct cluster_entry entry;
    if (process == NULL && cluster->processes == CLUSTER_PROCESSES_MAX)
        return;
    if (process == NULL) {
        process = &cluster->process[cluster->processes++];
        *process = (struct cluster_process){0};
        (void)snprintf(process->id, sizeof process->id, "%s", id);
    }
    if (kind == KEY_DATA) {
        process->has_data = cluster_data_parse(&kv->value, cluster->options.shards, process);
    } else {
        process->waits = cluster_entry_parse(&kv->value, &entry) && entry.format == CLUSTER_FORMAT;
        if (process->waits)
            memcpy(process->address, entry.address, sizeof process->address);
    }
    drop_if_gone(cluster, process);
}

void cluster_map_put(struct io_cluster *cluster, const struct ampd_etcd_key_value *kv)
{
    uint32_t shard = 0;
    char id[CLUSTER_ID_MAX] = "";
    enum key_kind kind = kind_of(cluster, kv->key.data, kv->key.size, &shard, id);
    if (kind == KEY_SHARD)
        put_place(cluster, shard, kv);
    else if (kind == KEY_LAST)
        put_last(cluster, shard, &kv->value);
    else if (kind == KEY_MODELS && !cluster_number_parse(&kv->value, &cluster->models))
        cluster->models = 0;
    else if (kind == KEY_STANDBY || kind == KEY_DATA)
        put_process(cluster, kind, id, kv);
}

void cluster_map_remove(struct io_cluster *cluster, const uint8_t *key, size_t size)
{
    uint32_t shard = 0;
    char id[CLUSTER_ID_MAX] = "";
    enum key_kind kind = kind_of(cluster, key, size, &shard, id);
    if (kind == KEY_SHARD)
        cluster->places[shard] = (struct cluster_place){0};
    else if (kind == KEY_LAST) /* only an operator deletes it, to let other data serve */
        cluster->last[shard] = cluster->seen[shard] = 0;
    else if (kind == KEY_MODELS)
        cluster->models = 0;
    else if (kind == KEY_STANDBY || kind == KEY_DATA)
        remove_process(cluster, kind, id);
}

void cluster_map_settled(struct io_cluster *cluster)
{
    const struct io_cluster_options *options = &cluster->options;
    cluster->standbys = 0;
    for (uint32_t i = 0; i < cluster->processes && cluster->standbys < IO_CLUSTER_STANDBYS_MAX; i++)
        if (cluster->process[i].waits)
            memcpy(cluster->standby[cluster->standbys++], cluster->process[i].address, sizeof cluster->standby[0]);
    for (uint32_t k = 0; k < options->shards && !cluster->closing; k++) {
        const struct cluster_place *place = &cluster->places[k];
        struct io_cluster_member *member = &cluster->members[k], before = *member;
        member->held = place->held && !place->foreign;
        member->fence = member->held ? place->fence : 0;
        if (member->held) /* otherwise the address of the last holder stays */
            memcpy(member->address, place->entry.address, sizeof member->address);
        if (member->held != before.held || member->fence != before.fence ||
            strcmp(member->address, before.address) != 0)
            options->events->moved_cb(options->arg, k);
    }
}

/* ---- requests ---- */

struct ampd_msg_bytes cluster_bytes(const char *text)
{
    return (struct ampd_msg_bytes){(uint8_t *)(uintptr_t)text, strlen(text)};
}

struct ampd_etcd_request_op cluster_op_get(const char *key)
{
    struct ampd_etcd_request_op op = {.has_request_range = true};
    op.request_range.key = cluster_bytes(key);
    return op;
}

struct ampd_etcd_request_op cluster_op_put(const char *key, const char *value, int64_t lease)
{
    struct ampd_etcd_request_op op = {.has_request_put = true};
    op.request_put.key = cluster_bytes(key);
    op.request_put.value = cluster_bytes(value);
    op.request_put.lease = lease;
    return op;
}

struct ampd_etcd_compare cluster_made_by(const char *key, int64_t create_revision)
{
    return (struct ampd_etcd_compare){.target = AMPD_ETCD_CREATE,
                                      .key = cluster_bytes(key),
                                      .has_create_revision = true,
                                      .create_revision = create_revision};
}

struct ampd_etcd_compare cluster_changed_by(const char *key, int64_t mod_revision)
{
    return (struct ampd_etcd_compare){
        .target = AMPD_ETCD_MOD, .key = cluster_bytes(key), .has_mod_revision = true, .mod_revision = mod_revision};
}

int cluster_txn(struct io_cluster *cluster, const struct ampd_etcd_txn_request *request, io_etcd_done_cb done_cb,
                void *arg)
{
    struct amp_buf buf;
    amp_buf_init(&buf, IO_ETCD_MESSAGE_MAX);
    int rc = ampd_etcd_txn_request_encode(request, &buf);
    if (rc == 0)
        rc = io_etcd_call(cluster->etcd, IO_ETCD_TXN, &buf, done_cb, arg);
    if (rc == 0)
        cluster->calls++;
    amp_buf_close(&buf);
    return rc;
}

const struct ampd_etcd_key_value *cluster_answer(const struct ampd_etcd_txn_response *answer, size_t index)
{
    if (index >= answer->responses.count || !answer->responses.items[index].has_response_range)
        return NULL;
    const struct ampd_etcd_range_response *range = &answer->responses.items[index].response_range;
    return range->kvs.count == 1 ? &range->kvs.items[0] : NULL;
}
