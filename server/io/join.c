#include "server/io/join.h"

#include "base/assert.h"
#include "base/failpoint.h"
#include "proto/msg_peer.h"
#include "rpc/arpc_client.h"
#include "server/core/spec.h"
#include "server/io/aside.h"
#include "server/io/call.h"
#include "server/io/cluster.h"
#include "server/io/peer_bytes.h"
#include "server/io/peers.h"
#include "server/io/place.h"
#include "server/io/server.h"
#include "server/io/stale.h"
#include "storage/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FETCH_PATH "/ampd.v1.PeerService/FetchRows"

/* Where the copy is made, below the data directory: one that is not whole is never taken for the store. */
#define COPY_DIR "joining"

/* Before the next shard is asked; one that starts takes about as long. */
#define AGAIN_MS 300

/*
 * A store in doubt keeps its place for so long: longer than the other shards take to start. Then whoever was the shard last may
 * have the place, if it is there again.
 */
#define DOUBT_MS 60000

/* A process without models where the cluster has some answers the others for this long before it ends: so they learn it as well. */
#define REFUSED_MS 3000

/* A shard that says nothing for so long is given up for this time: it reads its store a few milliseconds at a time. */
#define SILENT_MS 10000

/* How often the log says that nobody has answered yet. */
#define TOLD_EVERY 32

static const char *const store_files[] = {"ampd.db", "ampd.db-wal", "ampd.db-shm"};

/*
 * Rows of a transaction. One each took so long on a busy machine that the lease on the place was lost meanwhile: this is the thread
 * that keeps it alive.
 */
#define ROWS_TOGETHER 64

struct io_join {
    struct ampd_server *server;
    bool done; /* with result, error; or `told` */
    bool told; /* the other shards have said all: the copy, if there is one, is what the shard is */
    int result;
    struct arpc_channel *channel; /* of the attempt; NULL: none is under way */
    struct arpc_call *call;
    uint32_t source;  /* the shard that is asked */
    uint64_t without; /* bits of the shards that have answered, and have no model */
    unsigned attempts;
    uv_timer_t again;        /* the next attempt is due, or the one under way is silent */
    struct ampd_store *copy; /* NULL: none is open */
    uint64_t began_ms;       /* by the loop's clock */
    struct amp_buf in;       /* bytes that are no whole item yet */
    struct io_peer_item item;
    char model[AMPD_NAME_MAX]; /* that the items are of */
    uint64_t rows;
    struct ampd_step_row *held; /* [ROWS_TOGETHER] owned, or NULL: rows of the model that are not in the copy yet */
    uint32_t held_count;
    bool whole;  /* the shard that answers is one, and not just another that asks: it lacks nothing that counts */
    bool broken; /* no copy can be made here */
    bool ended, closing;
    int code; /* of the attempt */
    struct amp_error error;
};

/* Also before the place in a list is taken. */
static uint32_t shards_of(const struct ampd_server *server)
{
    const char *list = server->options->peers;
    return list != NULL ? io_cluster_list_count(list) : io_peers_shards(server);
}

static int is_due(struct ampd_server *server, bool *due, struct amp_error *error)
{
    struct ampd_model_record *records;
    size_t count;
    *due = false;
    bool asks = server->options->joins || server->options->cluster != NULL;
    if (!asks || server->peers == NULL || shards_of(server) < 2)
        return 0;
    int rc = ampd_store_load(server->store, &records, &count, error);
    if (rc == 0)
        ampd_model_records_free(records, count);
    *due = rc == 0 && (count == 0 || server->doubt);
    return rc;
}

/* ---- the copy ---- */

static void path_of(const struct ampd_server *server, const char *dir, const char *file,
                    char path[AMPD_DATADIR_PATH_MAX + 64])
{
    (void)snprintf(path, AMPD_DATADIR_PATH_MAX + 64, "%s%s%s/%s", server->dir.path, dir[0] != 0 ? "/" : "", dir, file);
}

static int failed(struct amp_error *error, const char *what, const char *path)
{
    return amp_error_set(error, errno == ENOSPC ? AMP_EEXHAUSTED : AMP_EIO, NULL, "cannot %s %s: %s", what, path,
                         strerror(errno));
}

/* A new empty one; what an attempt before has left goes. None of it is synced before it is whole: the loop has no time for that. */
static int copy_open(struct io_join *join, struct amp_error *error)
{
    char path[AMPD_DATADIR_PATH_MAX + 64];
    for (size_t i = 0; i < sizeof store_files / sizeof *store_files; i++) {
        path_of(join->server, COPY_DIR, store_files[i], path);
        if (unlink(path) != 0 && errno != ENOENT)
            return failed(error, "remove", path);
    }
    path_of(join->server, "", COPY_DIR, path);
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return failed(error, "make", path);
    return ampd_store_sqlite_open_draft(path, &join->copy, error);
}

/* Of a draft, which is closed. */
static int sync_file(const char *path, struct amp_error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc = fd >= 0 && fsync(fd) == 0 ? 0 : failed(error, "sync", path);
    if (fd >= 0)
        (void)close(fd); /* only read */
    return rc;
}

/* Whether another shard, whose copy this is, holds what the store has not. */
static int compare(const struct io_join *join, bool *older, struct amp_error *error)
{
    struct ampd_model_record *own = NULL, *now = NULL;
    size_t own_count = 0, now_count = 0;
    int rc = ampd_store_load(join->server->store, &own, &own_count, error);
    if (rc == 0)
        rc = ampd_store_load(join->copy, &now, &now_count, error);
    *older = rc == 0 && io_stale_is_older(own, own_count, now, now_count);
    ampd_model_records_free(own, own_count);
    ampd_model_records_free(now, now_count);
    return rc;
}

/* The store is that of before: all of its directory goes aside, the copy with it, and `dir` is where the copy is then. */
static int set_aside(struct ampd_server *server, char dir[AMPD_DATADIR_PATH_MAX + 64], struct amp_error *error)
{
    char aside[AMPD_DATADIR_PATH_MAX];
    int rc = io_stale_set_aside(&server->dir, aside, error);
    if (rc != 0)
        return rc;
    amp_log(server->log, AMP_LOG_WARN, "join",
            "msg=\"the data of before are set aside, and filled anew\" shard=%" PRIu32 " aside=%s",
            server->options->shard, aside);
    (void)snprintf(dir, AMPD_DATADIR_PATH_MAX + 64, "%s/" COPY_DIR, aside);
    return 0;
}

/*
 * The copy takes the place of the store, which has no model or is `older`: at once, or not at all. Its log must be in the file by
 * then, and the old one's gone, also after a power loss: else it would be taken for that of the new file.
 */
static int copy_take(struct io_join *join, bool older, struct amp_error *error)
{
    struct ampd_server *server = join->server;
    char dir[AMPD_DATADIR_PATH_MAX + 64], from[sizeof dir + 16], to[sizeof dir];
    ampd_store_close(join->copy);
    join->copy = NULL;
    ampd_store_close(server->reader);
    ampd_store_close(server->store);
    server->reader = server->store = NULL;
    path_of(server, "", COPY_DIR, dir);
    int rc = older ? set_aside(server, dir, error) : 0;
    if (rc != 0)
        return rc;
    (void)snprintf(from, sizeof from, "%s/%s", dir, store_files[1]);
    path_of(server, "", store_files[1], to);
    if (access(from, F_OK) == 0 || access(to, F_OK) == 0)
        return amp_error_set(error, AMP_EIO, NULL, "the log of a store was not closed: %s", from);
    (void)snprintf(from, sizeof from, "%s/%s", dir, store_files[0]);
    path_of(server, "", store_files[0], to);
    rc = sync_file(from, error);
    if (rc == 0)
        rc = ampd_datadir_sync(server->dir.path, error);
    if (rc != 0)
        return rc;
    AMP_FAILPOINT("join.copied");
    if (rename(from, to) != 0)
        return failed(error, "rename", from);
    rc = ampd_datadir_sync(server->dir.path, error);
    AMP_FAILPOINT("join.renamed");
    (void)rmdir(dir); /* of no consequence */
    return rc != 0 ? rc : ampd_server_open_store(server, error);
}

/* The store is as new as any: the copy is not wanted. */
static int copy_drop(struct io_join *join)
{
    char path[AMPD_DATADIR_PATH_MAX + 64];
    ampd_store_close(join->copy);
    join->copy = NULL;
    for (size_t i = 0; i < sizeof store_files / sizeof *store_files; i++) {
        path_of(join->server, COPY_DIR, store_files[i], path);
        (void)unlink(path); /* of no consequence */
    }
    path_of(join->server, "", COPY_DIR, path);
    (void)rmdir(path);
    amp_log(join->server->log, AMP_LOG_INFO, "join",
            "msg=\"the other shards hold nothing that this one has not\" shard=%u", join->server->options->shard);
    return 0;
}

static int store_held(struct io_join *join, struct amp_error *error)
{
    struct ampd_verdict_put puts[ROWS_TOGETHER];
    uint32_t count = join->held_count, stored;
    join->held_count = 0;
    for (uint32_t i = 0; i < count; i++)
        puts[i] = (struct ampd_verdict_put){join->model, &join->held[i]};
    return count == 0 ? 0 : ampd_store_put_verdicts(join->copy, puts, count, false, &stored, error);
}

static int take_row(struct io_join *join, const struct ampd_step_row *row, struct amp_error *error)
{
    if (row->kind == AMPD_ROW_EPOCH || row->kind == 0 || row->epoch == 0)
        return amp_error_set(error, AMP_EINVAL, NULL, "a row of %s makes no sense", join->model);
    if (join->held == NULL)
        join->held = malloc(ROWS_TOGETHER * sizeof *join->held);
    if (join->held == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for the rows of %s", join->model);
    join->rows++;
    join->held[join->held_count++] = *row;
    return join->held_count == ROWS_TOGETHER ? store_held(join, error) : 0;
}

static int take_model(struct io_join *join, const struct io_peer_item *item, struct amp_error *error)
{
    memcpy(join->model, item->spec.name, sizeof join->model);
    if (!ampd_datadir_name_ok(join->model))
        return amp_error_set(error, AMP_EINVAL, NULL, "a model's name makes no sense");
    int rc = ampd_spec_check(&item->spec, error);
    if (rc != 0)
        return rc;
    rc = ampd_store_put_model(join->copy, &item->spec, item->created_us, error);
    return rc == 0 && item->deleting ? ampd_store_mark_deleting(join->copy, join->model, error) : rc;
}

static int take_item(struct io_join *join, const struct io_peer_item *item, struct amp_error *error)
{
    if (join->ended)
        return amp_error_set(error, AMP_EINVAL, NULL, "records come after the last one");
    if (join->copy == NULL && item->kind != IO_ITEM_END) { /* where there is nothing to tell, the disk is left alone */
        int rc = copy_open(join, error);
        join->broken = rc != 0;
        if (rc != 0)
            return rc;
    }
    int rc = item->kind != IO_ITEM_ROW ? store_held(join, error) : 0; /* the others in their order with the rows */
    if (rc != 0)
        return rc;
    switch (item->kind) {
    case IO_ITEM_FENCE:
        join->whole = true; /* its own is among them */
        return ampd_store_put_fence(join->copy, item->shard, &item->fence, error);
    case IO_ITEM_MODEL:
        return take_model(join, item, error);
    case IO_ITEM_EPOCH:
        if (item->row.kind != AMPD_ROW_EPOCH || item->epoch.epoch == 0 || item->row.epoch != item->epoch.epoch)
            return amp_error_set(error, AMP_EINVAL, NULL, "an epoch of %s makes no sense", join->model);
        join->rows++;
        return ampd_store_put_epoch(join->copy, join->model, &item->epoch, &item->row, error);
    case IO_ITEM_ROW:
        return take_row(join, &item->row, error);
    case IO_ITEM_CHECKPOINT:
        if (!ampd_checkpoint_file_is_of(item->checkpoint.file, join->model, item->checkpoint.step))
            return amp_error_set(error, AMP_EINVAL, NULL, "a checkpoint of %s has no file's name", join->model);
        return ampd_store_adopt_checkpoint(join->copy, join->model, &item->checkpoint, error);
    case IO_ITEM_END:
        join->ended = true;
        return 0;
    }
    return 0; /* the decoder knows no other */
}

static int take_bytes(struct io_join *join, const struct ampd_msg_envelope *envelope, struct amp_error *error)
{
    if (envelope->format != AMPD_PEER_FORMAT)
        return amp_error_set(error, AMP_ESTATE, NULL, "shard %u speaks format %u, this one %d", join->source,
                             envelope->format, AMPD_PEER_FORMAT);
    /* At the last address of a place that nobody holds there may be another shard, or this process itself. */
    if (envelope->sender != join->source)
        return amp_error_set(error, AMP_ESTATE, NULL, "shard %u is not where it was; there is shard %u now",
                             join->source, envelope->sender);
    int rc = amp_buf_append(&join->in, envelope->body.data, envelope->body.size);
    if (rc != 0)
        return amp_error_set(error, rc, NULL, "out of memory for records of another shard");
    size_t at = 0, used;
    while (rc == 0) {
        rc = io_peer_item_decode(&join->item, join->in.data + at, join->in.size - at, &used, error);
        if (rc != 0 || used == 0)
            break;
        at += used;
        rc = take_item(join, &join->item, error);
        ampd_model_spec_clear(&join->item.spec);
    }
    memmove(join->in.data, join->in.data + at, join->in.size - at);
    join->in.size -= at;
    return rc;
}

/* ---- one attempt ---- */

static void ask(struct io_join *join);

static void on_again(uv_timer_t *timer)
{
    ask(timer->data);
}

static void on_silent(uv_timer_t *timer)
{
    const struct io_join *join = timer->data;
    arpc_call_cancel(join->call, ARPC_STATUS_DEADLINE_EXCEEDED, "it has said nothing for a while");
}

static void expect_more(struct io_join *join)
{
    (void)uv_timer_start(&join->again, on_silent, SILENT_MS, 0); /* cannot fail: it is open and has a callback */
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct io_join *join = handle->data;
    amp_buf_close(&join->in);
    free(join->held);
    free(join);
}

/* It is over, with success or given up; its memory goes with the timer. */
static void leave(struct io_join *join)
{
    join->closing = true;
    ampd_store_close(join->copy);
    join->copy = NULL;
    if (join->channel != NULL)
        arpc_channel_close(join->channel, NULL, NULL);
    join->channel = NULL;
    uv_close((uv_handle_t *)&join->again, on_timer_closed);
}

/* Aside. */
static int finish(void *arg, struct amp_error *error)
{
    struct io_join *join = arg;
    const struct ampd_server *server = join->server;
    bool older = false;
    if (join->copy == NULL) {
        amp_log(server->log, AMP_LOG_INFO, "join", "msg=\"no other shard has a model either\"");
        return 0;
    }
    int rc = server->doubt ? compare(join, &older, error) : 0;
    if (rc == 0 && server->doubt && !older)
        rc = copy_drop(join);
    else if (rc == 0)
        rc = copy_take(join, older, error);
    if (rc == 0 && (older || !server->doubt))
        amp_log(server->log, AMP_LOG_INFO, "join", "msg=\"the store was filled by another shard\" shard=%u rows=%llu",
                join->source, (unsigned long long)join->rows);
    return rc;
}

/* Whether the copy that is here will do: one without a model only when no other shard has one. */
static bool will_do(struct io_join *join)
{
    uint32_t count = shards_of(join->server);
    if (join->model[0] != 0 || (join->server->doubt && join->whole))
        return true;
    join->without |= (uint64_t)1 << join->source | (uint64_t)1 << join->server->options->shard;
    return join->without == UINT64_MAX >> (64 - count);
}

static void answer_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct io_join *join = arpc_call_user(call);
    struct ampd_msg_session_request message;
    if (join->closing || call != join->call || join->code != 0)
        return;
    expect_more(join);
    join->code = ampd_msg_session_request_decode(&message, data, size, &join->error);
    if (join->code == 0) {
        join->code = take_bytes(join, &message.envelope, &join->error);
        ampd_msg_session_request_free(&message);
    }
    if (join->code != 0)
        arpc_call_cancel(call, ARPC_STATUS_CANCELLED, join->error.text);
}

static void end(struct io_join *join, int result)
{
    join->result = result;
    join->done = true;
    (void)uv_timer_stop(&join->again); /* nobody is waited for any more */
}

/* Whether there have been models, by what lies here or in etcd, and all shards that answer are as empty as new ones. */
static bool nobody_knows(const struct io_join *join)
{
    const struct ampd_server *server = join->server;
    return join->model[0] == 0 && !join->whole &&
           (server->doubt || io_place_is_bare(server) || io_place_has_models(server));
}

/* What the shard was last may be what another process has: to serve what is here, or nothing, would lose it. */
static void give_up(struct io_join *join, int code, const char *why)
{
    const struct ampd_server *server = join->server;
    const char *dir = server->dir.path, *cluster = server->options->cluster->name;
    uint32_t shard = server->options->shard;
    if (server->doubt)
        (void)amp_error_set(&join->error, code, NULL,
                            "%s is not what shard %" PRIu32
                            " was last (another process has been it, under fence %" PRIu64
                            "), and %s: bring back the data directory of that process, or those of the other shards",
                            dir, shard, io_cluster_last(server->cluster), why);
    else
        (void)amp_error_set(
            &join->error, code, NULL,
            "%s has no model, and %s; but cluster %s has models, as %s: is the right directory mounted there? "
            "Start the processes that the shards were last, or bring back the data directory of one of them; a "
            "new cluster begins under another --cluster name",
            dir, why, cluster, io_place_is_bare(server) ? "etcd says (who/shards)" : "other data of this process say");
    end(join, code);
}

static void on_refused(uv_timer_t *timer)
{
    give_up(timer->data, AMP_ESTATE, "the other shards are empty, too");
}

/*
 * Whom to ask after an attempt that came to nothing: the shards in turn. But a shard of a list counts its boots on from what was
 * seen of them, and of another shard than itself only shard 0 has seen any: as long as that one may have models, it alone is asked.
 */
static uint32_t next_source(const struct io_join *join)
{
    const struct ampd_server_options *options = join->server->options;
    uint32_t next = join->source;
    if (options->peers != NULL && options->shard != 0 && (join->without & 1) == 0)
        return 0;
    do
        next = (next + 1) % shards_of(join->server);
    while (next == options->shard);
    return next;
}

/* The attempt came to nothing; the next shard is asked a little later. */
static void try_next(struct io_join *join, const char *why)
{
    if ((join->server->doubt || io_place_is_bare(join->server)) &&
        uv_now(&join->server->loop) - join->began_ms >= DOUBT_MS) {
        give_up(join, AMP_EUNAVAILABLE, "no other shard says what it holds");
        return;
    }
    if (join->attempts++ % TOLD_EVERY == 0)
        amp_log(join->server->log, AMP_LOG_WARN, "join", "msg=\"the store is not filled yet\" shard=%u err=\"%s\"",
                join->source, why);
    join->call = NULL;
    if (join->channel != NULL)
        arpc_channel_close(join->channel, NULL, NULL);
    join->channel = NULL;
    ampd_store_close(join->copy);
    join->copy = NULL;
    join->source = next_source(join);
    (void)uv_timer_start(&join->again, on_again, AGAIN_MS, 0); /* cannot fail: it is open and has a callback */
}

static void answer_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct io_join *join = arpc_call_user(call);
    if (join->closing || join->done || call != join->call)
        return;                        /* given up before */
    (void)uv_timer_stop(&join->again); /* nobody is silent: what follows may take longer than that */
    join->call = NULL;
    bool told = join->code == 0 && result->status == ARPC_STATUS_OK && join->ended;
    if (join->broken) {
        end(join, join->code);
    } else if (told && will_do(join) && nobody_knows(join)) {
        uint64_t wait_ms = join->server->doubt ? 0 : REFUSED_MS;
        (void)uv_timer_start(&join->again, on_refused, wait_ms, 0); /* cannot fail: it is open and has a callback */
    } else if (told && will_do(join)) {
        join->told = true;
        end(join, 0);
    } else {
        try_next(join, told ? "it has no model" : join->code != 0 ? join->error.text : result->message);
    }
}

static const struct arpc_handler answer = {.message = answer_message, .closed = answer_closed};

static int send_request(struct io_join *join, struct amp_error *error)
{
    struct ampd_msg_session_request request = {.has_envelope = true};
    request.envelope.format = AMPD_PEER_FORMAT;
    request.envelope.sender = join->server->options->shard;
    request.envelope.receiver = join->source;
    request.envelope.shard_count = shards_of(join->server);
    struct amp_buf buf = io_message_buf();
    int rc = ampd_msg_session_request_encode(&request, &buf);
    if (rc == 0)
        rc = arpc_call_send(join->call, buf.data, buf.size, NULL, 0, NULL, NULL);
    amp_buf_close(&buf);
    arpc_call_half_close(join->call);
    return rc != 0 ? amp_error_set(error, rc, NULL, "a request cannot be sent: %s", amp_strerror(rc)) : 0;
}

/* Of a place in etcd that nobody has taken yet there is no address: an error as any that passes. */
static int try_ask(struct io_join *join, struct amp_error *error)
{
    const struct arpc_pair pair = {"authorization", io_peers_authorization(join->server)};
    struct arpc_call_options options = {.size = sizeof options,
                                        .max_message = AMPD_MSG_SIZE_MAX,
                                        .metadata = &pair,
                                        .metadata_count = pair.value != NULL ? 1 : 0};
    join->in.size = 0;
    join->model[0] = 0;
    join->rows = 0;
    join->held_count = 0;
    join->ended = join->whole = false;
    join->code = 0;
    int rc = io_peers_channel(join->server, join->source, &join->channel, error);
    if (rc == 0)
        rc = arpc_channel_call(join->channel, FETCH_PATH, &options, &answer, join, &join->call, error);
    return rc == 0 ? send_request(join, error) : rc;
}

static void ask(struct io_join *join)
{
    if (try_ask(join, &join->error) == 0)
        expect_more(join);
    else
        try_next(join, join->error.text);
}

/* ---- life ---- */

static struct io_join *begin(struct ampd_server *server)
{
    struct io_join *join = calloc(1, sizeof *join);
    if (join == NULL || uv_timer_init(&server->loop, &join->again) != 0) {
        free(join);
        return NULL;
    }
    join->server = server;
    join->again.data = join;
    amp_buf_init(&join->in, 2 * AMPD_PEER_BODY_MAX);
    join->source = server->options->shard == 0 ? 1 : 0;
    join->began_ms = uv_now(&server->loop);
    amp_log(server->log, AMP_LOG_INFO, "join", "msg=\"the data directory is %s: the other shards are asked\"",
            server->doubt ? "perhaps of before" : "empty");
    (void)uv_timer_start(&join->again, on_again, 0, 0); /* cannot fail: it is open and has a callback */
    return join;
}

int io_join_if_due(struct ampd_server *server, struct amp_error *error)
{
    bool due;
    int rc = is_due(server, &due, error);
    if (rc != 0 || !due)
        return rc;
    struct io_join *join = begin(server);
    if (join == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for asking other shards");
    server->joining = !server->doubt; /* of what is in doubt nobody is told */
    while (!join->done && !server->signalled)
        (void)uv_run(&server->loop, UV_RUN_ONCE);
    server->joining = false;
    if (join->done && join->result != 0)
        *error = join->error;
    if (!join->done)
        rc = AMP_ECANCELLED;
    else
        rc = join->told ? io_aside(server, finish, join, error) : join->result;
    leave(join);
    return rc;
}
