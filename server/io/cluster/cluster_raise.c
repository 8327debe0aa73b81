/*
 * Raises numbers in etcd that never fall. Only the holder of a place does that: the highest epoch of a model (shard 0
 * only), the fence of the last process that served as a shard, and the base of the fences. A transaction requires that
 * this process still has the key of its place, and that the number was not changed since it was read. If either is not
 * so, the answer has both as they are: then the place is lost, or the next transaction is made with the new number.
 */
#include "server/io/cluster/cluster_raise.h"

#include "server/io/cluster/cluster_impl.h"
#include "server/io/cluster/cluster_map.h"
#include "server/io/etcd/etcd.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * Most raises at a time: one for each model of a server (AMPD_MODELS_MAX), all of which a start may raise, and one
 * more.
 */
#define RAISES_MAX 1025

/* Tries to raise the base of the fences, which is done just before the process ends. */
#define FENCES_TRIES 5

/* The key that exists while there are models: the number of shards that they are split for. */
#define MODELS_KEY "who/shards"

struct cluster_raise {
    struct amp_list node;
    struct io_cluster *cluster; /* NULL: dropped while a call is under way */
    bool under_way;             /* its transaction is */
    uint32_t tries;             /* left; 0: it is tried as long as the place is held */
    uint32_t failed;            /* transactions that etcd has not answered, or whose answer could not be read */
    uint64_t least;             /* the lowest number that the caller asks for */
    bool next;                  /* the number must also be above the one in etcd */
    bool models;                /* the key MODELS_KEY is put with it */
    bool forgets;               /* instead of raising a number, the key is deleted, unless there is a model by then */
    int64_t revision;           /* that last changed the key, as read last; 0: no such key */
    uint64_t there;             /* the number at that revision; 0: none */
    uint64_t wanted;            /* the number of the last transaction */
    char key[CLUSTER_KEY_MAX];
    char model[AMPD_NAME_MAX];
    void (*epoch_cb)(void *arg, const char *model, uint64_t epoch); /* of io_cluster_raise_epoch; else NULL */
    void (*done_cb)(void *arg);                                     /* of the other raises; may be NULL */
    void *arg;
};

static void drop(struct cluster_raise *raise)
{
    if (raise->cluster != NULL)
        raise->cluster->raises_count--;
    amp_list_remove(&raise->node);
    free(raise);
}

static void finish(struct cluster_raise *raise)
{
    struct cluster_raise done = *raise;
    drop(raise);
    if (done.epoch_cb != NULL)
        done.epoch_cb(done.arg, done.model, done.wanted);
    else if (done.done_cb != NULL)
        done.done_cb(done.arg);
}

static void on_timer(uv_timer_t *timer)
{
    cluster_raise_again(timer->data);
}

static void attempt(struct cluster_raise *raise);

/* The comparison failed, and the answer has the place's key and the number: ends in LOST, or tries with that number. */
static void take_answer(struct cluster_raise *raise, const struct ampd_etcd_txn_response *answer)
{
    struct io_cluster *cluster = raise->cluster;
    const struct ampd_etcd_key_value *place = cluster_answer(answer, 0), *number = cluster_answer(answer, 1);
    if (place == NULL || place->create_revision != cluster->place_revision) {
        cluster_lost(cluster, AMP_EUNAVAILABLE,
                     "the place of shard %" PRIu32 " in etcd is no longer held by this process", cluster->shard);
        return;
    }
    raise->revision = number != NULL ? number->mod_revision : 0;
    if (number == NULL || !cluster_number_parse(&number->value, &raise->there))
        raise->there = 0;
    attempt(raise);
}

static void on_answer(void *arg, const struct amp_error *error, const uint8_t *data, size_t size)
{
    struct cluster_raise *raise = arg;
    struct io_cluster *cluster = raise->cluster;
    struct ampd_etcd_txn_response answer = {0};
    struct amp_error wrong = *error;
    raise->under_way = false;
    if (cluster == NULL) { /* dropped: it is not counted in cluster->calls any more */
        free(raise);
        return;
    }
    cluster->calls--;
    int rc = error->code;
    if (rc == 0)
        rc = ampd_etcd_txn_response_decode(&answer, data, size, &wrong);
    cluster->raise_failing[0] = 0;
    if (rc == 0 && answer.succeeded) {
        finish(raise);
    } else if (rc == 0) {
        take_answer(raise, &answer);
    } else if (raise->tries == 1) {
        finish(raise);
    } else {
        raise->tries -= raise->tries > 0;
        (void)snprintf(cluster->raise_failing, sizeof cluster->raise_failing, "etcd cannot be written to: %.400s",
                       wrong.text);
        if (raise->failed++ % IO_ETCD_LOG_EVERY == 0)
            amp_log(cluster->options.log, AMP_LOG_WARN, "cluster",
                    "msg=\"cannot be raised, trying again\" key=%s err=\"%s\"", raise->key, wrong.text);
        (void)uv_timer_start(&cluster->raise_timer, on_timer, IO_ETCD_AGAIN_MS, 0);
    }
    ampd_etcd_txn_response_free(&answer);
}

static void attempt(struct cluster_raise *raise)
{
    struct io_cluster *cluster = raise->cluster;
    char place[CLUSTER_KEY_MAX], models[CLUSTER_KEY_MAX], value[32], shards[16];
    uint64_t above = raise->next ? raise->there + 1 : raise->there;
    if (raise->forgets && cluster->has_models) {
        drop(raise);
        return;
    }
    raise->wanted = raise->least > above ? raise->least : above;
    cluster_key(cluster, place, "who/shard-%" PRIu32, cluster->shard);
    cluster_key(cluster, models, MODELS_KEY);
    (void)snprintf(value, sizeof value, "%" PRIu64, raise->wanted);
    (void)snprintf(shards, sizeof shards, "%" PRIu32, cluster->options.shards);
    struct ampd_etcd_compare compares[] = {cluster_made_by(place, cluster->place_revision),
                                           cluster_changed_by(raise->key, raise->revision)};
    struct ampd_etcd_request_op put[] = {cluster_op_put(raise->key, value, 0), cluster_op_put(models, shards, 0)};
    struct ampd_etcd_request_op forget = {.has_request_delete_range = true};
    forget.request_delete_range.key = cluster_bytes(raise->key);
    struct ampd_etcd_request_op get[] = {cluster_op_get(place), cluster_op_get(raise->key)};
    struct ampd_etcd_txn_request request = {
        .compare = {compares, 2}, .success = {put, raise->models ? 2 : 1}, .failure = {get, 2}};
    if (raise->forgets)
        request.success = (struct ampd_etcd_request_op_list){&forget, 1};
    raise->under_way = cluster_txn(cluster, &request, on_answer, raise) == 0;
    if (!raise->under_way)
        (void)uv_timer_start(&cluster->raise_timer, on_timer, IO_ETCD_AGAIN_MS, 0); /* cannot fail: it is open */
}

void cluster_raise_again(struct io_cluster *cluster)
{
    AMP_LIST_EACH(it, safe, &cluster->raises)
    {
        struct cluster_raise *raise = AMP_CONTAINER(it, struct cluster_raise, node);
        if (!raise->under_way)
            attempt(raise);
    }
}

void cluster_raise_drop(struct io_cluster *cluster)
{
    cluster->raise_failing[0] = 0;
    for (struct amp_list *node; (node = amp_list_shift(&cluster->raises)) != NULL;) {
        struct cluster_raise *raise = AMP_CONTAINER(node, struct cluster_raise, node);
        cluster->raises_count--;
        raise->cluster = NULL;
        if (raise->under_way)
            cluster->calls--; /* its answer frees it without using the cluster */
        else
            free(raise);
    }
}

static struct cluster_raise *new_raise(struct io_cluster *cluster)
{
    struct cluster_raise *raise = calloc(1, sizeof *raise);
    if (raise == NULL)
        return NULL;
    raise->cluster = cluster;
    amp_list_push(&cluster->raises, &raise->node);
    cluster->raises_count++;
    return raise;
}

int io_cluster_raise_epoch(struct io_cluster *cluster, const char *model, uint64_t epoch,
                           void (*done_cb)(void *arg, const char *model, uint64_t epoch), void *arg)
{
    if (cluster->state != CLUSTER_HOLDING || cluster->shard != 0)
        return AMP_ESTATE;
    if (cluster->raises_count == RAISES_MAX)
        return AMP_EEXHAUSTED;
    struct cluster_raise *raise = new_raise(cluster);
    if (raise == NULL)
        return AMP_ENOMEM;
    raise->least = epoch;
    raise->next = raise->models = cluster->has_models = true;
    raise->epoch_cb = done_cb;
    raise->arg = arg;
    (void)snprintf(raise->model, sizeof raise->model, "%s", model);
    cluster_key(cluster, raise->key, "epoch/%s", raise->model);
    attempt(raise);
    return 0;
}

void io_cluster_raise_fences(struct io_cluster *cluster, uint64_t above, void (*done_cb)(void *arg), void *arg)
{
    struct cluster_raise *raise = cluster->state == CLUSTER_HOLDING ? new_raise(cluster) : NULL;
    if (raise == NULL) {
        if (done_cb != NULL)
            done_cb(arg);
        return;
    }
    raise->least = above;
    raise->tries = FENCES_TRIES;
    raise->done_cb = done_cb;
    raise->arg = arg;
    cluster_key(cluster, raise->key, "base");
    attempt(raise);
}

int io_cluster_serves(struct io_cluster *cluster, bool models, void (*done_cb)(void *arg), void *arg)
{
    if (cluster->state != CLUSTER_HOLDING)
        return AMP_ESTATE;
    struct cluster_raise *raise = new_raise(cluster);
    if (raise == NULL)
        return AMP_ENOMEM;
    raise->least = cluster->fence.counter;
    raise->models = cluster->has_models = models;
    raise->done_cb = done_cb;
    raise->arg = arg;
    cluster_key(cluster, raise->key, "who/last-%" PRIu32, cluster->shard);
    io_cluster_keep(cluster);
    attempt(raise);
    return 0;
}

void io_cluster_no_models(struct io_cluster *cluster)
{
    struct cluster_raise *raise = cluster->state == CLUSTER_HOLDING && cluster->shard == 0 ? new_raise(cluster) : NULL;
    cluster->has_models = false;
    if (raise == NULL)
        return;
    raise->forgets = true;
    cluster_key(cluster, raise->key, MODELS_KEY);
    attempt(raise);
}
