/*
 * A cluster whose places are locks in etcd (cluster_map.h lists the keys). A process that wants a place keeps a lease
 * alive, watches the keys, and claims a free place by a transaction: it requires that the key does not exist, and puts
 * it bound to the lease. The process holds the place as long as its lease runs by its own clock (etcd_lease.h).
 *
 *   WAITING -> CLAIMING -> HOLDING -> LOST
 *   WAITING <- CLAIMING (another process was faster, or etcd has not answered)       any -> LEFT
 *   WAITING <- HOLDING (given back before taken_cb was called)
 *
 * A process that waits writes its keys who/standby-ID and who/data-ID, and claims a place only after that; which
 * process may claim which place, and when, is decided in cluster_fit.c. With a place it calls taken_cb (`reported`) as
 * soon as it is known which fence the shard had last. Until its own data are about to be served (io_cluster_keep) it
 * gives the place back to a process with newer data.
 *
 * A request without an answer from etcd may have been carried out, or may still be. Its lease is revoked, which undoes
 * whatever it did, and the next request is bound to a new lease.
 */
#include "server/io/cluster/cluster.h"

#include "base/assert.h"
#include "server/io/cluster/cluster_address.h"
#include "server/io/cluster/cluster_fit.h"
#include "server/io/cluster/cluster_impl.h"
#include "server/io/cluster/cluster_map.h"
#include "server/io/cluster/cluster_options.h"
#include "server/io/cluster/cluster_raise.h"
#include "server/io/etcd/etcd.h"
#include "server/io/etcd/etcd_lease.h"
#include "server/io/etcd/etcd_watch.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The whole map is read again after each lease's time, but at least this often: that notices an etcd whose stream has
 * stopped without an error.
 */
#define POLL_MAX_MS 5000

static void consider(struct io_cluster *cluster);

/* ---- reports ---- */

/* Calls waiting_cb, unless its text is the same as the last time. */
static void say_waiting(struct io_cluster *cluster, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void say_waiting(struct io_cluster *cluster, int code, const char *format, ...)
{
    const struct io_cluster_options *options = &cluster->options;
    struct amp_error error = {.code = code};
    va_list args;
    va_start(args, format);
    (void)vsnprintf(error.text, sizeof error.text, format, args);
    va_end(args);
    if (strcmp(error.text, cluster->said) == 0)
        return;
    memcpy(cluster->said, error.text, sizeof error.text);
    options->events->waiting_cb(options->arg, &error);
}

void cluster_lost(struct io_cluster *cluster, int code, const char *format, ...)
{
    const struct io_cluster_options *options = &cluster->options;
    struct amp_error error = {.code = code};
    va_list args;
    if (cluster->state == CLUSTER_LOST || cluster->state == CLUSTER_LEFT)
        return;
    va_start(args, format);
    (void)vsnprintf(error.text, sizeof error.text, format, args);
    va_end(args);
    cluster->state = CLUSTER_LOST;
    cluster_raise_drop(cluster);
    io_etcd_lease_revoke(cluster->lease, NULL, NULL);
    options->events->lost_cb(options->arg, &error);
}

/* A place under this cluster's name held by a process with another format or number of shards. NULL: none. */
static const struct cluster_place *foreign_place(const struct io_cluster *cluster)
{
    for (uint32_t k = 0; k < IO_CLUSTER_SHARDS_MAX; k++)
        if (cluster->places[k].held && cluster->places[k].foreign)
            return &cluster->places[k];
    return NULL;
}

static void refuse(struct io_cluster *cluster, const struct cluster_entry *entry)
{
    if (entry->format != CLUSTER_FORMAT)
        cluster_lost(cluster, AMP_ESTATE,
                     "cluster %s belongs to another version of ampd (format %" PRIu32
                     ", this one %d); run the same ampd on "
                     "all shards, or give this one another name",
                     cluster->options.url->name, entry->format, CLUSTER_FORMAT);
    else
        cluster_lost(cluster, AMP_ESTATE,
                     "cluster %s has %" PRIu32 " shards, as %s says; this process was started for %" PRIu32
                     ": give all the same --shards, or this process another --cluster name",
                     cluster->options.url->name, entry->shards, entry->address, cluster->options.shards);
}

/* True: the models in this cluster are split for another number of shards, and the place is lost for good. */
static bool refuse_other_number(struct io_cluster *cluster)
{
    uint32_t shards = cluster->options.shards;
    if (cluster->models == 0 || cluster->models == shards)
        return false;
    cluster_lost(
        cluster, AMP_ESTATE,
        "cluster %s has %" PRIu64
        " shards, as the key %swho/shards in etcd says, and models on them; this process was started for %" PRIu32
        ": start it with --shards %" PRIu64
        ", or give it another --cluster name; docs/runbooks.md says how the number is changed",
        cluster->options.url->name, cluster->models, cluster->prefix, shards, cluster->models);
    return true;
}

/* ---- claiming ---- */

/* Goes back to WAITING with a new lease. Revoking the old one undoes whatever was requested under it. */
static void start_over(struct io_cluster *cluster)
{
    cluster->state = CLUSTER_WAITING;
    io_etcd_lease_revoke(cluster->lease, NULL, NULL);
    io_etcd_lease_start(cluster->lease);
}

static void claim_failed(struct io_cluster *cluster, const struct amp_error *error)
{
    say_waiting(cluster, AMP_EUNAVAILABLE, "shard %" PRIu32 " cannot be claimed, trying again: %s", cluster->shard,
                error->text);
    start_over(cluster);
}

/* A place that was already held by a process that does not fit this one, and its entry. NULL: none. */
static const struct ampd_etcd_key_value *
misfit(const struct io_cluster *cluster, const struct ampd_etcd_range_response *range, struct cluster_entry *entry)
{
    for (size_t i = 0; i < range->kvs.count; i++) {
        bool readable = cluster_entry_parse(&range->kvs.items[i].value, entry);
        if (readable && (entry->format != CLUSTER_FORMAT || entry->shards != cluster->options.shards))
            return &range->kvs.items[i];
    }
    return NULL;
}

/* The first other shard whose place nobody holds. IO_CLUSTER_ANY: all are held. */
static uint32_t first_not_held(const struct io_cluster *cluster)
{
    for (uint32_t k = 0; k < cluster->options.shards; k++)
        if (k != cluster->shard && !cluster->places[k].held)
            return k;
    return IO_CLUSTER_ANY;
}

/*
 * Calls taken_cb for the place that is held, once. Not yet where etcd has lost who/last-K and some shards have no
 * holder: their data may name higher fences. The place is given up if the data here have turned out to lack something
 * that no shard could bring; and if data name a fence that is not below this one's, to be claimed again under a higher.
 */
static void report_taken(struct io_cluster *cluster)
{
    const struct io_cluster_options *options = &cluster->options;
    uint64_t newest = cluster_newest(cluster, cluster->shard);
    bool lacks = cluster_lacks(cluster, cluster->shard);
    uint32_t missing = first_not_held(cluster);
    if (cluster->reported)
        return;
    if (lacks && !cluster_can_be_filled(cluster, cluster->shard)) {
        start_over(cluster);
        return;
    }
    if (cluster->last_fence == 0 && newest != 0 && missing != IO_CLUSTER_ANY) {
        say_waiting(cluster, AMP_EUNAVAILABLE,
                    "etcd has lost which process was shard %" PRIu32
                    " last: this process has its place, and serves nothing before shard %" PRIu32
                    " has a process, too, whose data may say more",
                    cluster->shard, missing);
        return;
    }
    if (cluster_floor(cluster) >= cluster->fence.counter) { /* the fence must be above all that data name */
        start_over(cluster);
        return;
    }
    cluster->reported = true;
    cluster->last_fence = newest;
    cluster->noted_models = lacks ? options->shards : (uint32_t)cluster->models; /* consider has checked the number */
    options->events->taken_cb(options->arg, cluster->shard, &cluster->fence);
}

static void on_given_back(void *arg)
{
    struct io_cluster *cluster = arg;
    const struct io_cluster_options *options = &cluster->options;
    if (!cluster_call_over(cluster))
        options->events->lost_cb(options->arg, &cluster->why);
}

/* Gives the place back if a process with newer data waits and the place is not kept. True: it did. */
static bool gives_way(struct io_cluster *cluster)
{
    const struct cluster_process *owner = cluster->keeps ? NULL : cluster_owner(cluster, cluster->shard);
    if (owner == NULL)
        return false;
    amp_log(cluster->options.log, AMP_LOG_INFO, "cluster",
            "msg=\"the place is given back to a process with newer data\" shard=%" PRIu32 " address=%s served=%" PRIu64,
            cluster->shard, owner->address, owner->served[cluster->shard]);
    if (!cluster->reported) {
        start_over(cluster);
        return true;
    }
    (void)amp_error_set(&cluster->why, AMP_EUNAVAILABLE, NULL,
                        "the place of shard %" PRIu32 " is given back to %s, whose data are newer", cluster->shard,
                        owner->address);
    cluster->state = CLUSTER_LOST;
    cluster_raise_drop(cluster);
    cluster->calls++;
    io_etcd_lease_revoke(cluster->lease, on_given_back, cluster);
    return true;
}

static void claimed(struct io_cluster *cluster, const struct ampd_etcd_txn_response *answer)
{
    const struct io_cluster_options *options = &cluster->options;
    struct cluster_entry entry = {0};
    bool listed = answer->responses.count > 1 && answer->responses.items[1].has_response_range;
    if (listed && misfit(cluster, &answer->responses.items[1].response_range, &entry) != NULL) {
        refuse(cluster, &entry);
        return;
    }
    const struct ampd_etcd_key_value *last = cluster_answer(answer, 3);
    if (last == NULL || !cluster_number_parse(&last->value, &cluster->last_fence))
        cluster->last_fence = 0;
    if (cluster->last_fence > cluster->seen[cluster->shard]) /* the map shows it later */
        cluster->seen[cluster->shard] = cluster->last_fence;
    cluster->state = CLUSTER_HOLDING;
    cluster->place_revision = answer->header.revision;
    cluster->confirmed = cluster->reported = false;
    cluster->fence = (struct ampd_fence){.counter = cluster->claim_base + (uint64_t)answer->header.revision};
    /*
     * The lease's number tells apart two processes with the same counter, which an etcd that has lost its data may
     * give: etcd gives such a number only once.
     */
    _Static_assert(sizeof cluster->claim_lease <= sizeof cluster->fence.boot_id, "it has room");
    memcpy(cluster->fence.boot_id, &cluster->claim_lease, sizeof cluster->claim_lease);
    amp_log(options->log, AMP_LOG_INFO, "cluster",
            "msg=\"holding a place\" cluster=%s shard=%" PRIu32 " fence=%" PRIu64 " lease_ms=%" PRId64,
            cluster->options.url->name, cluster->shard, cluster->fence.counter, options->lease_ms);
    report_taken(cluster);
}

static void read_number(struct io_cluster *cluster, const struct ampd_etcd_key_value *kv)
{
    uint64_t number = 0;
    bool readable = kv != NULL && cluster_number_parse(&kv->value, &number);
    cluster->number = readable ? number : 0;
    cluster->number_revision = kv != NULL ? kv->mod_revision : 0;
}

static void on_claimed(void *arg, const struct amp_error *error, const uint8_t *data, size_t size)
{
    struct io_cluster *cluster = arg;
    struct ampd_etcd_txn_response answer = {0};
    struct amp_error wrong = *error;
    if (cluster_call_over(cluster) || cluster->state != CLUSTER_CLAIMING)
        return;
    cluster->state = CLUSTER_WAITING;
    int rc = error->code;
    if (rc == 0)
        rc = ampd_etcd_txn_response_decode(&answer, data, size, &wrong);
    bool mine = io_etcd_lease_holds(cluster->lease) && io_etcd_lease_id(cluster->lease) == cluster->claim_lease;
    if (rc != 0) {
        claim_failed(cluster, &wrong);
    } else if (answer.succeeded && mine) {
        claimed(cluster, &answer);
    } else if (!answer.succeeded) {
        read_number(cluster, cluster_answer(&answer, 0));
        io_etcd_watch_look(cluster->watch); /* when the map has been read, consider() tries again */
    }
    ampd_etcd_txn_response_free(&answer);
}

/* The base for a fence that is claimed now: as it is in etcd, or raised above all fences that any data name. */
static uint64_t base_for(const struct io_cluster *cluster)
{
    uint64_t floor = cluster_floor(cluster);
    return cluster->number + (uint64_t)cluster->revision >= floor ? cluster->number : floor;
}

static void claim(struct io_cluster *cluster, uint32_t shard)
{
    char place[CLUSTER_KEY_MAX], standby[CLUSTER_KEY_MAX], number[CLUSTER_KEY_MAX], who[CLUSTER_KEY_MAX];
    char end[CLUSTER_KEY_MAX], last[CLUSTER_KEY_MAX], value[CLUSTER_VALUE_MAX], text[32];
    cluster->shard = shard;
    cluster->claim_lease = io_etcd_lease_id(cluster->lease);
    cluster->claim_base = base_for(cluster);
    cluster_key(cluster, place, "who/shard-%" PRIu32, shard);
    cluster_key(cluster, standby, "who/standby-%" PRIx64, (uint64_t)cluster->claim_lease);
    cluster_key(cluster, number, "base");
    cluster_key(cluster, who, "who/shard-");
    cluster_key(cluster, end, "who/shard."); /* the first key behind all "who/shard-..." */
    cluster_key(cluster, last, "who/last-%" PRIu32, shard);
    cluster_value(cluster, cluster->claim_base, value);
    (void)snprintf(text, sizeof text, "%" PRIu64, cluster->claim_base);

    struct ampd_etcd_compare compares[] = {cluster_made_by(place, 0),
                                           cluster_changed_by(number, cluster->number_revision)};
    struct ampd_etcd_request_op list = cluster_op_get(who), forget = {.has_request_delete_range = true};
    list.request_range.range_end = cluster_bytes(end);
    forget.request_delete_range.key = cluster_bytes(standby);
    struct ampd_etcd_request_op done[] = {cluster_op_put(place, value, cluster->claim_lease), list, forget,
                                          cluster_op_get(last), cluster_op_put(number, text, 0)};
    struct ampd_etcd_request_op refused[] = {cluster_op_get(number)};
    struct ampd_etcd_txn_request request = {.compare = {compares, 2},
                                            .success = {done, cluster->claim_base != cluster->number ? 5 : 4},
                                            .failure = {refused, 1}};
    if (cluster_txn(cluster, &request, on_claimed, cluster) == 0)
        cluster->state = CLUSTER_CLAIMING; /* else it is tried again when the map is read next */
}

/* ---- waiting ---- */

static void on_shown(void *arg, const struct amp_error *error, const uint8_t *data, size_t size)
{
    struct io_cluster *cluster = arg;
    if (cluster_call_over(cluster) || cluster->state != CLUSTER_WAITING ||
        cluster->showing != io_etcd_lease_id(cluster->lease))
        return; /* it was for an earlier lease */
    if (error->code != 0) {
        say_waiting(cluster, AMP_EUNAVAILABLE, "this process cannot be registered in etcd, trying again: %s",
                    error->text);
        start_over(cluster);
        return;
    }
    cluster->shown = cluster->showing;
    consider(cluster);
}

/* Writes the keys who/standby-ID and who/data-ID, bound to the present lease; on_shown goes on. */
static void show(struct io_cluster *cluster)
{
    char standby[CLUSTER_KEY_MAX], data[CLUSTER_KEY_MAX], waits[CLUSTER_VALUE_MAX], has[CLUSTER_DATA_MAX];
    int64_t id = io_etcd_lease_id(cluster->lease);
    if (cluster->showing == id)
        return;
    cluster_key(cluster, standby, "who/standby-%" PRIx64, (uint64_t)id);
    cluster_key(cluster, data, "who/data-%" PRIx64, (uint64_t)id);
    cluster_value(cluster, 0, waits);
    bool any = cluster_data_value(cluster, has);
    struct ampd_etcd_request_op puts[] = {cluster_op_put(standby, waits, id), cluster_op_put(data, has, id)};
    struct ampd_etcd_txn_request request = {.success = {puts, any ? 2 : 1}};
    if (cluster_txn(cluster, &request, on_shown, cluster) == 0)
        cluster->showing = id; /* else it is tried again when the map is read next */
}

/*
 * The free place to name in waiting_cb: the one that the options ask for; else the one whose data here served most
 * recently; else the lowest. IO_CLUSTER_ANY: none is free.
 */
static uint32_t free_place(const struct io_cluster *cluster)
{
    const struct io_cluster_options *options = &cluster->options;
    uint32_t found = IO_CLUSTER_ANY;
    for (uint32_t k = options->shards; k-- > 0;) {
        if (cluster->places[k].held || (options->shard != IO_CLUSTER_ANY && options->shard != k))
            continue;
        if (found == IO_CLUSTER_ANY || cluster_served(cluster, k) >= cluster_served(cluster, found))
            found = k;
    }
    return found;
}

/* Reports that a place is free, but not for this process: its data are not the shard's newest. */
static void say_what_lacks(struct io_cluster *cluster, uint32_t shard)
{
    const struct cluster_process *owner = cluster_owner(cluster, shard);
    if (owner != NULL) {
        say_waiting(cluster, AMP_ESTATE, "shard %" PRIu32 " is for %s, whose data are newer; this process stands by",
                    shard, owner->address);
        return;
    }
    char text[AMP_ERROR_TEXT_MAX];
    cluster_what_lacks(cluster, shard, text, sizeof text);
    say_waiting(cluster, AMP_EDATALOSS, "%s", text);
}

static void stand_by(struct io_cluster *cluster)
{
    const struct io_cluster_options *options = &cluster->options;
    uint32_t shard = free_place(cluster);
    cluster->unlocked = false;
    uint32_t older = cluster_served_older(cluster);
    if (shard != IO_CLUSTER_ANY)
        say_what_lacks(cluster, shard);
    else if (older != IO_CLUSTER_ANY)
        say_waiting(cluster, AMP_EDATALOSS,
                    "shard %" PRIu32 " is served by %s under fence %" PRIu64 ", and %.200s/shard-%" PRIu32
                    "-of-%" PRIu32 " was it under %" PRIu64
                    ": etcd has lost its data, and this directory came too late. To go on with this directory, end "
                    "that process; what it has stored since is lost then. This process stands by",
                    older, cluster->places[older].entry.address, cluster->places[older].fence,
                    options->data_dir != NULL ? options->data_dir : "", older, options->shards,
                    cluster_served(cluster, older));
    else if (options->shard != IO_CLUSTER_ANY)
        say_waiting(cluster, AMP_ESTATE, "shard %" PRIu32 " is held by %s; this process stands by for it",
                    options->shard, cluster->places[options->shard].entry.address);
    else
        say_waiting(cluster, AMP_ESTATE, "all %" PRIu32 " shards are held; this process stands by for any of them",
                    options->shards);
}

/* Other processes had their time to go first. */
static void on_claim_timer(uv_timer_t *timer)
{
    struct io_cluster *cluster = timer->data;
    cluster->unlocked = true;
    consider(cluster);
}

/* The next step of a process that waits: end, write its keys, claim a place, wait for its turn, or stand by. */
static void consider(struct io_cluster *cluster)
{
    if (cluster->state != CLUSTER_WAITING || !cluster->settled || !io_etcd_lease_holds(cluster->lease))
        return;
    const struct cluster_place *foreign = foreign_place(cluster);
    if (foreign != NULL) {
        refuse(cluster, &foreign->entry);
        return;
    }
    if (refuse_other_number(cluster))
        return;
    if (cluster->shown != io_etcd_lease_id(cluster->lease)) {
        show(cluster); /* calls this again when etcd has answered */
        return;
    }
    int64_t patience_ms = 0;
    uint32_t shard = cluster_candidate(cluster, &patience_ms);
    if (shard == IO_CLUSTER_ANY)
        stand_by(cluster);
    else if (patience_ms == 0 || cluster->unlocked)
        claim(cluster, shard);
    else if (!uv_is_active((uv_handle_t *)&cluster->claim_timer))
        (void)uv_timer_start(&cluster->claim_timer, on_claim_timer, (uint64_t)patience_ms, 0);
}

/* ---- the lease of the process before ---- */

static void on_ended(void *arg, const struct amp_error *error, const uint8_t *data, size_t size)
{
    struct io_cluster *cluster = arg;
    if (!cluster_call_over(cluster) && error->code == 0)
        amp_log(cluster->options.log, AMP_LOG_INFO, "cluster",
                "msg=\"the lease of the process that had this directory before is ended\"");
}

/*
 * Revokes the lease of the process that used this directory before and is gone, so that its place is free at once. Done
 * once, without a retry: where etcd does not answer, the lease runs out by itself.
 */
static void end_lease_before(struct io_cluster *cluster)
{
    struct ampd_etcd_lease_revoke_request request = {.id = cluster->options.lease_before};
    struct amp_buf buf;
    cluster->options.lease_before = 0;
    if (request.id == 0)
        return;
    amp_buf_init(&buf, IO_ETCD_MESSAGE_MAX);
    if (ampd_etcd_lease_revoke_request_encode(&request, &buf) == 0 &&
        io_etcd_call(cluster->etcd, IO_ETCD_LEASE_REVOKE, &buf, on_ended, cluster) == 0)
        cluster->calls++;
    amp_buf_close(&buf);
}

/* ---- callbacks of the lease and the watch ---- */

static void on_granted(void *arg)
{
    struct io_cluster *cluster = arg;
    const struct io_cluster_options *options = &cluster->options;
    cluster->unlocked = false;
    end_lease_before(cluster);
    if (options->lease_cb != NULL)
        options->lease_cb(options->arg, io_etcd_lease_id(cluster->lease));
    consider(cluster);
}

static void on_lost(void *arg, const struct amp_error *why)
{
    struct io_cluster *cluster = arg;
    if (cluster->state == CLUSTER_HOLDING) {
        cluster_lost(cluster, AMP_EUNAVAILABLE, "the lease on the place of shard %" PRIu32 " is lost: %s",
                     cluster->shard, why->text);
        return;
    }
    if (cluster->state != CLUSTER_WAITING && cluster->state != CLUSTER_CLAIMING)
        return;
    say_waiting(cluster, AMP_EUNAVAILABLE, "the lease is lost while waiting for a place, asking for another: %s",
                why->text);
    io_etcd_lease_start(cluster->lease);
}

static void on_reset(void *arg)
{
    cluster_map_reset(arg);
}

static void on_put(void *arg, const struct ampd_etcd_key_value *kv)
{
    cluster_map_put(arg, kv);
}

static void on_remove(void *arg, const uint8_t *key, size_t size)
{
    cluster_map_remove(arg, key, size);
}

static void on_settled(void *arg, int64_t revision)
{
    struct io_cluster *cluster = arg;
    cluster->settled = true;
    cluster->revision = revision;
    const struct cluster_place *mine = &cluster->places[cluster->shard];
    cluster->confirmed = cluster->confirmed || revision >= cluster->place_revision;
    if (cluster->state == CLUSTER_HOLDING && cluster->confirmed &&
        (!mine->held || mine->revision != cluster->place_revision)) {
        cluster_lost(cluster, AMP_EUNAVAILABLE,
                     "the place of shard %" PRIu32 " in etcd is %s: it was deleted, or etcd has lost its data",
                     cluster->shard, mine->held ? "another process's" : "gone");
        return;
    }
    cluster_map_settled(cluster);
    if (cluster->state == CLUSTER_HOLDING && !gives_way(cluster))
        report_taken(cluster);
    consider(cluster);
}

static void on_failed(void *arg, const struct amp_error *error)
{
    struct io_cluster *cluster = arg;
    if (cluster->state == CLUSTER_WAITING)
        say_waiting(cluster, AMP_EUNAVAILABLE, "etcd cannot be asked, trying again: %s", error->text);
    else
        amp_log(cluster->options.log, AMP_LOG_WARN, "cluster", "msg=\"etcd cannot be asked, trying again\" err=\"%s\"",
                error->text);
}

static const struct io_etcd_lease_events lease_events = {.granted_cb = on_granted, .lost_cb = on_lost};

static const struct io_etcd_watch_events watch_events = {
    .reset_cb = on_reset, .put_cb = on_put, .remove_cb = on_remove, .settled_cb = on_settled, .failed_cb = on_failed};

/* ---- the interface ---- */

void io_cluster_leave(struct io_cluster *cluster, void (*done_cb)(void *arg), void *arg)
{
    cluster->state = CLUSTER_LEFT;
    cluster_raise_drop(cluster);
    io_etcd_lease_revoke(cluster->lease, done_cb, arg);
}

bool io_cluster_holds(const struct io_cluster *cluster)
{
    return cluster->state == CLUSTER_HOLDING && io_etcd_lease_holds(cluster->lease);
}

int64_t io_cluster_lease_left_ms(const struct io_cluster *cluster)
{
    return cluster->state == CLUSTER_HOLDING ? io_etcd_lease_left_ms(cluster->lease) : 0;
}

const char *io_cluster_trouble(const struct io_cluster *cluster)
{
    const char *read = io_etcd_watch_failing(cluster->watch), *lease = io_etcd_lease_failing(cluster->lease);
    return read[0] != 0 ? read : lease[0] != 0 ? lease : cluster->raise_failing;
}

static void free_if_closed(struct io_cluster *cluster)
{
    void (*closed_cb)(void *arg) = cluster->closed_cb;
    void *arg = cluster->closed_arg;
    if (!cluster->closing || cluster->open > 0 || cluster->calls > 0 || cluster->etcd != NULL)
        return;
    free(cluster);
    if (closed_cb != NULL)
        closed_cb(arg);
}

bool cluster_call_over(struct io_cluster *cluster)
{
    cluster->calls--;
    return cluster->closing;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct io_cluster *cluster = handle->data;
    cluster->open--;
    free_if_closed(cluster);
}

static void on_etcd_closed(void *arg)
{
    struct io_cluster *cluster = arg;
    cluster->etcd = NULL;
    free_if_closed(cluster);
}

void io_cluster_close(struct io_cluster *cluster, void (*closed_cb)(void *arg), void *arg)
{
    AMP_ASSERT(!cluster->closing);
    cluster->closed_cb = closed_cb;
    cluster->closed_arg = arg;
    cluster->closing = true;
    cluster->state = CLUSTER_LEFT;
    cluster_raise_drop(cluster);
    uv_close((uv_handle_t *)&cluster->claim_timer, on_handle_closed);
    uv_close((uv_handle_t *)&cluster->raise_timer, on_handle_closed);
    if (cluster->watch != NULL)
        io_etcd_watch_close(cluster->watch);
    if (cluster->lease != NULL)
        io_etcd_lease_close(cluster->lease);
    io_etcd_close(cluster->etcd, on_etcd_closed, cluster);
}

void io_cluster_reload(struct io_cluster *cluster)
{
    io_etcd_reload(cluster->etcd);
}

void io_cluster_keep(struct io_cluster *cluster)
{
    cluster->keeps = true;
}

const struct io_cluster_member *io_cluster_member(const struct io_cluster *cluster, uint32_t shard)
{
    AMP_ASSERT(shard < cluster->options.shards);
    return &cluster->members[shard];
}

uint64_t io_cluster_last(const struct io_cluster *cluster)
{
    return cluster->last_fence;
}

uint32_t io_cluster_models(const struct io_cluster *cluster)
{
    return cluster->noted_models;
}

uint32_t io_cluster_standbys(const struct io_cluster *cluster)
{
    return cluster->standbys;
}

const char *io_cluster_standby(const struct io_cluster *cluster, uint32_t index)
{
    AMP_ASSERT(index < cluster->standbys);
    return cluster->standby[index];
}

static int begin(struct io_cluster *cluster)
{
    char who[CLUSTER_KEY_MAX];
    const struct io_cluster_options *options = &cluster->options;
    int64_t poll_ms = options->lease_ms < POLL_MAX_MS ? options->lease_ms : POLL_MAX_MS;
    int rc = io_etcd_lease_new(cluster->etcd, options->lease_ms, &lease_events, cluster, &cluster->lease);
    cluster_key(cluster, who, "who/");
    if (rc == 0)
        rc = io_etcd_watch_new(cluster->etcd, who, poll_ms, &watch_events, cluster, &cluster->watch);
    return rc;
}

int io_cluster_new(struct uv_loop_s *loop, const struct io_cluster_options *options, struct io_cluster **out,
                   struct amp_error *error)
{
    if (options->shards == 0 || options->shards > IO_CLUSTER_SHARDS_MAX ||
        (options->shard != IO_CLUSTER_ANY && options->shard >= options->shards))
        return amp_error_set(error, AMP_EINVAL, NULL, "shard %u of %u: a cluster has 1 to %d shards, counted from 0",
                             options->shard, options->shards, IO_CLUSTER_SHARDS_MAX);
    if (!io_cluster_address_ok(options->address))
        return amp_error_set(
            error, AMP_EINVAL, NULL,
            "%.200s: no other machine could connect to this address; give one to which they can with --advertise",
            options->address);
    struct io_cluster *cluster = calloc(1, sizeof *cluster);
    if (cluster == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for the cluster");
    cluster->options = *options;
    int rc = io_etcd_new(loop, options->url->endpoints, options->access, options->log, &cluster->etcd, error);
    if (rc != 0) {
        free(cluster);
        return rc;
    }
    if (cluster->options.lease_ms == 0)
        cluster->options.lease_ms = IO_CLUSTER_LEASE_MS;
    (void)snprintf(cluster->prefix, sizeof cluster->prefix, "ampd/%s/", cluster->options.url->name);
    amp_list_init(&cluster->raises);
    (void)uv_timer_init(loop, &cluster->claim_timer); /* cannot fail */
    (void)uv_timer_init(loop, &cluster->raise_timer);
    cluster->claim_timer.data = cluster;
    cluster->raise_timer.data = cluster;
    cluster->open = 2;
    rc = begin(cluster);
    if (rc != 0) {
        io_cluster_close(cluster, NULL, NULL);
        return amp_error_set(error, rc, NULL, "out of memory for the cluster");
    }
    cluster->state = CLUSTER_WAITING;
    io_etcd_lease_start(cluster->lease);
    *out = cluster;
    return 0;
}
