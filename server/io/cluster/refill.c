/*
 * The refill: copies the store of another shard (PeerService.FetchRows) into the directory "joining" below the data
 * directory, and puts the copy in place of the store.
 *
 *   ask -> answers of one shard arrive (take_item) -> answer_closed:
 *             a copy that will do, or all shards are empty   -> done, without an error -> finish (off the loop)
 *             the shard asked has no model, or has failed    -> the next shard is asked, AGAIN_MS later
 *             no copy can be made on this disk               -> done, with the error
 *             all are empty, but there have been models      -> done, AMP_ESTATE (on_refused, give_up)
 *   no shard has answered for DOUBT_MS, and there have been models  -> done, AMP_EUNAVAILABLE (give_up)
 *
 * finish puts the copy in place of a store without models. A store in doubt is compared with the copy first: an older
 * one is set aside (stale.h), and one that is not is kept, and the copy dropped. The copy is written without syncs; it
 * is synced before the rename that makes it the store, so that a crash leaves the one store or the other.
 */
#include "server/io/cluster/refill.h"

#include "base/failpoint.h"
#include "proto/msg_peer.h"
#include "rpc/arpc_client.h"
#include "server/core/model/spec.h"
#include "server/io/base/data.h"
#include "server/io/base/message_buf.h"
#include "server/io/base/notify.h"
#include "server/io/base/off_loop.h"
#include "server/io/base/peer_bytes.h"
#include "server/io/base/server.h"
#include "server/io/cluster/cluster.h"
#include "server/io/cluster/membership.h"
#include "server/io/cluster/peers.h"
#include "server/io/cluster/stale.h"
#include "storage/checkpoint.h"
#include "storage/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FETCH_PATH "/ampd.v1.PeerService/FetchRows"

/* The directory of the copy, below the data directory: an incomplete copy is never taken for the store. */
#define COPY_DIR "joining"

/* From an attempt that failed to the next; a shard that is being started takes about as long. */
#define AGAIN_MS 300

/*
 * How long a process whose store is in doubt or bare holds its place while no shard answers: longer than the other
 * shards take to start. Then it ends, so that the process that was the shard last can have the place.
 */
#define DOUBT_MS 60000

/*
 * When all shards are empty though there have been models, a process goes on answering the others for this long before
 * it ends, so that they find it out, too.
 */
#define REFUSED_MS 3000

/*
 * A shard that sends nothing for this long is given up for this attempt: it reads its store a few milliseconds at a
 * time.
 */
#define SILENT_MS 10000

/* Attempts from one line of the log that no shard has answered yet to the next. */
#define TOLD_EVERY 32

static const char *const store_files[] = {"ampd.db", "ampd.db-wal", "ampd.db-shm"};

/*
 * Rows of one transaction. With one transaction for each row this took so long on a busy machine that the lease on the
 * place was lost: the loop's thread, which stores the rows, also keeps the lease alive.
 */
#define ROWS_TOGETHER 64

struct io_refill {
    struct ampd_server *server;
    bool done;  /* no shard is asked any more */
    int result; /* of the asking; 0: the shard goes on from the copy, or from an empty store. Else `error` says why */
    struct arpc_channel *channel; /* of the attempt; NULL: none is under way */
    struct arpc_call *call;
    uint32_t source;                /* the shard that is asked */
    uint64_t without;               /* bit k: shard k has answered that it has no model; and this shard's own bit */
    unsigned attempts;              /* that have failed, for the log */
    char waits[AMP_ERROR_TEXT_MAX]; /* what the last of these failed by, for io_refill_waits; "": none has */
    uv_timer_t again;               /* the next attempt is due, or the one under way is silent */
    struct ampd_store *copy;        /* NULL: none is open */
    uint64_t began_ms;              /* of the whole refill, by the loop's clock */
    struct amp_buf in;              /* bytes of the attempt that are no complete item yet */
    struct io_peer_item item;
    char model[AMPD_NAME_MAX];  /* to which the items belong; "": no model has come */
    uint64_t rows;              /* of the attempt */
    struct ampd_step_row *held; /* [ROWS_TOGETHER] owned, or NULL: rows of the model that are not in the copy yet */
    uint32_t held_count;
    bool whole;          /* the source has sent a fence: it serves as a shard, so its data are up to date */
    bool broken;         /* the copy cannot be made on this disk */
    bool ended, closing; /* ended: the last item of the attempt has come */
    int code;            /* of the attempt; 0: no error so far */
    struct amp_error error;
};

/* Whether the store must be filled or compared, see refill.h. */
static int is_due(struct ampd_server *server, bool *due, struct amp_error *error)
{
    size_t count = 0;
    *due = false;
    bool asks = server->options->refills || server->options->cluster != NULL;
    if (!asks || io_peers_shards(server) < 2)
        return 0;
    int rc = ampd_store_count_models(server->data.store, &count, error);
    *due = rc == 0 && (count == 0 || io_membership_in_doubt(server));
    return rc;
}

/* ---- the copy ---- */

static void path_of(const struct ampd_server *server, const char *dir, const char *file,
                    char path[AMPD_DATADIR_PATH_MAX + 64])
{
    (void)snprintf(path, AMPD_DATADIR_PATH_MAX + 64, "%s%s%s/%s", server->data.dir.path, dir[0] != 0 ? "/" : "", dir,
                   file);
}

static int failed(struct amp_error *error, const char *what, const char *path)
{
    if (errno == ENOSPC || errno == EDQUOT)
        return amp_error_set(error, AMP_EEXHAUSTED, "NO_SPACE", "cannot %s %s: the disk is full", what, path);
    return amp_error_set(error, AMP_EIO, NULL, "cannot %s %s: %s", what, path, strerror(errno));
}

/*
 * Makes a new, empty copy, and removes that of an earlier attempt. Nothing of it is synced before it is complete, for
 * which the loop has no time.
 */
static int copy_open(struct io_refill *refill, struct amp_error *error)
{
    char path[AMPD_DATADIR_PATH_MAX + 64];
    for (size_t i = 0; i < sizeof store_files / sizeof *store_files; i++) {
        path_of(refill->server, COPY_DIR, store_files[i], path);
        if (unlink(path) != 0 && errno != ENOENT)
            return failed(error, "remove", path);
    }
    path_of(refill->server, "", COPY_DIR, path);
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return failed(error, "make", path);
    return ampd_store_sqlite_open_draft(path, &refill->copy, error);
}

/* Syncs a file of the copy, which is closed. */
static int sync_file(const char *path, struct amp_error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc = fd >= 0 && fsync(fd) == 0 ? 0 : failed(error, "sync", path);
    if (fd >= 0)
        (void)close(fd); /* only read */
    return rc;
}

/* *older: whether the store lacks something that the copy of another shard's store has (io_stale_is_older). */
static int compare(const struct io_refill *refill, bool *older, struct amp_error *error)
{
    struct ampd_model_record *own = NULL, *now = NULL;
    size_t own_count = 0, now_count = 0;
    int rc = ampd_store_load(refill->server->data.store, &own, &own_count, error);
    if (rc == 0)
        rc = ampd_store_load(refill->copy, &now, &now_count, error);
    *older = rc == 0 && io_stale_is_older(own, own_count, now, now_count);
    ampd_model_records_free(own, own_count);
    ampd_model_records_free(now, now_count);
    return rc;
}

/*
 * The store is outdated: sets its whole directory aside, with the copy in it, and opens an empty directory. `dir` gets
 * the path at which the copy is then.
 */
static int set_aside(struct ampd_server *server, char dir[AMPD_DATADIR_PATH_MAX + 64], struct amp_error *error)
{
    char aside[AMPD_DATADIR_PATH_MAX];
    int rc = io_stale_set_aside(&server->data.dir, aside, error);
    if (rc != 0)
        return rc;
    amp_log(server->log, AMP_LOG_WARN, "refill",
            "msg=\"the old data directory was renamed, and a new one is filled from the other shards\" shard=%" PRIu32
            " aside=%s",
            server->options->shard, aside);
    (void)snprintf(dir, AMPD_DATADIR_PATH_MAX + 64, "%s/" COPY_DIR, aside);
    return 0;
}

/*
 * Puts the copy in place of the store, which has no model or is `older`, by one rename: a crash leaves the one or the
 * other. Both write-ahead logs must be gone before, also after a power loss: SQLite would take the old store's log for
 * that of the new file.
 */
static int copy_take(struct io_refill *refill, bool older, struct amp_error *error)
{
    struct ampd_server *server = refill->server;
    char dir[AMPD_DATADIR_PATH_MAX + 64], from[sizeof dir + 16], to[sizeof dir];
    ampd_store_close(refill->copy);
    refill->copy = NULL;
    io_data_close_store(&server->data);
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
        rc = ampd_datadir_sync(server->data.dir.path, error);
    if (rc != 0)
        return rc;
    AMP_FAILPOINT("refill.copied");
    if (rename(from, to) != 0)
        return failed(error, "rename", from);
    rc = ampd_datadir_sync(server->data.dir.path, error);
    AMP_FAILPOINT("refill.renamed");
    (void)rmdir(dir); /* if it stays, no harm is done */
    return rc != 0 ? rc : io_data_open_store(server, error);
}

/* Removes the copy: the store in doubt lacks nothing. */
static int copy_drop(struct io_refill *refill)
{
    char path[AMPD_DATADIR_PATH_MAX + 64];
    ampd_store_close(refill->copy);
    refill->copy = NULL;
    for (size_t i = 0; i < sizeof store_files / sizeof *store_files; i++) {
        path_of(refill->server, COPY_DIR, store_files[i], path);
        (void)unlink(path); /* if it stays, no harm is done */
    }
    path_of(refill->server, "", COPY_DIR, path);
    (void)rmdir(path);
    amp_log(refill->server->log, AMP_LOG_INFO, "refill",
            "msg=\"the other shards hold nothing that this one lacks\" shard=%u", refill->server->options->shard);
    return 0;
}

/* Puts the rows that were held back into the copy, in one transaction. */
static int store_held(struct io_refill *refill, struct amp_error *error)
{
    struct ampd_verdict_put puts[ROWS_TOGETHER];
    uint32_t count = refill->held_count, stored;
    refill->held_count = 0;
    for (uint32_t i = 0; i < count; i++)
        puts[i] = (struct ampd_verdict_put){refill->model, &refill->held[i]};
    return count == 0 ? 0 : ampd_store_put_verdicts(refill->copy, puts, count, false, &stored, error);
}

static int take_row(struct io_refill *refill, const struct ampd_step_row *row, struct amp_error *error)
{
    if (row->kind == AMPD_ROW_EPOCH || row->kind == 0 || row->epoch == 0)
        return amp_error_set(error, AMP_EINVAL, NULL, "a row of %s is invalid", refill->model);
    if (refill->held == NULL)
        refill->held = malloc(ROWS_TOGETHER * sizeof *refill->held);
    if (refill->held == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for the rows of %s", refill->model);
    refill->rows++;
    refill->held[refill->held_count++] = *row;
    return refill->held_count == ROWS_TOGETHER ? store_held(refill, error) : 0;
}

static int take_model(struct io_refill *refill, const struct io_peer_item *item, struct amp_error *error)
{
    memcpy(refill->model, item->spec.name, sizeof refill->model);
    if (!ampd_datadir_name_ok(refill->model))
        return amp_error_set(error, AMP_EINVAL, NULL, "a model's name is invalid");
    int rc = ampd_spec_check(&item->spec, error);
    if (rc != 0)
        return rc;
    rc = ampd_store_put_model(refill->copy, &item->spec, item->created_us, error);
    return rc == 0 && item->deleting ? ampd_store_mark_deleting(refill->copy, refill->model, error) : rc;
}

static int take_item(struct io_refill *refill, const struct io_peer_item *item, struct amp_error *error)
{
    if (refill->ended)
        return amp_error_set(error, AMP_EINVAL, NULL, "records come after the last one");
    if (refill->copy == NULL &&
        item->kind != IO_ITEM_END) { /* a shard that has nothing to send leaves no copy behind on the disk */
        int rc = copy_open(refill, error);
        refill->broken = rc != 0;
        if (rc != 0)
            return rc;
    }
    int rc = item->kind != IO_ITEM_ROW ? store_held(refill, error) : 0; /* items keep their order with rows */
    if (rc != 0)
        return rc;
    switch (item->kind) {
    case IO_ITEM_FENCE:
        refill->whole = true; /* a shard that serves sends its own fence, too */
        return ampd_store_put_fence(refill->copy, item->shard, &item->fence, error);
    case IO_ITEM_MODEL:
        return take_model(refill, item, error);
    case IO_ITEM_EPOCH:
        if (item->row.kind != AMPD_ROW_EPOCH || item->epoch.epoch == 0 || item->row.epoch != item->epoch.epoch)
            return amp_error_set(error, AMP_EINVAL, NULL, "an epoch of %s is invalid", refill->model);
        refill->rows++;
        return ampd_store_put_epoch(refill->copy, refill->model, &item->epoch, &item->row, error);
    case IO_ITEM_ROW:
        return take_row(refill, &item->row, error);
    case IO_ITEM_CHECKPOINT:
        if (!ampd_checkpoint_file_is_of(item->checkpoint.file, refill->model, item->checkpoint.step))
            return amp_error_set(error, AMP_EINVAL, NULL, "a checkpoint of %s has no file's name", refill->model);
        return ampd_store_adopt_checkpoint(refill->copy, refill->model, &item->checkpoint, error);
    case IO_ITEM_END:
        refill->ended = true;
        return 0;
    }
    return 0; /* the decoder knows no other */
}

static int take_bytes(struct io_refill *refill, const struct ampd_msg_envelope *envelope, struct amp_error *error)
{
    if (envelope->format != AMPD_PEER_FORMAT)
        return amp_error_set(error, AMP_ESTATE, NULL, "shard %u speaks format %u, this one %d", refill->source,
                             envelope->format, AMPD_PEER_FORMAT);
    /* At the last known address of a place that is not held there may be another shard, or this process itself. */
    if (envelope->sender != refill->source)
        return amp_error_set(error, AMP_ESTATE, NULL, "shard %u is not at its address any more; shard %u is there now",
                             refill->source, envelope->sender);
    int rc = amp_buf_append(&refill->in, envelope->body.data, envelope->body.size);
    if (rc != 0)
        return amp_error_set(error, rc, NULL, "out of memory for records of another shard");
    size_t at = 0, used;
    while (rc == 0) {
        rc = io_peer_item_decode(&refill->item, refill->in.data + at, refill->in.size - at, &used, error);
        if (rc != 0 || used == 0)
            break;
        at += used;
        rc = take_item(refill, &refill->item, error);
        ampd_model_spec_clear(&refill->item.spec);
    }
    memmove(refill->in.data, refill->in.data + at, refill->in.size - at);
    refill->in.size -= at;
    return rc;
}

/* ---- one attempt ---- */

static void ask(struct io_refill *refill);

static void on_again(uv_timer_t *timer)
{
    ask(timer->data);
}

static void on_silent(uv_timer_t *timer)
{
    const struct io_refill *refill = timer->data;
    arpc_call_cancel(refill->call, ARPC_STATUS_DEADLINE_EXCEEDED, "it has been silent for too long");
}

static void expect_more(struct io_refill *refill)
{
    (void)uv_timer_start(&refill->again, on_silent, SILENT_MS, 0); /* cannot fail: it is open and has a callback */
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct io_refill *refill = handle->data;
    amp_buf_close(&refill->in);
    free(refill->held);
    free(refill);
}

/* Ends the refill; its memory is freed when the timer is closed. */
static void leave(struct io_refill *refill)
{
    refill->closing = true;
    ampd_store_close(refill->copy);
    refill->copy = NULL;
    if (refill->channel != NULL)
        arpc_channel_close(refill->channel, NULL, NULL);
    refill->channel = NULL;
    uv_close((uv_handle_t *)&refill->again, on_timer_closed);
}

/* The other shards have sent all: uses the copy, or keeps the store, see the head of this file. Off the loop. */
static int finish(void *arg, struct amp_error *error)
{
    struct io_refill *refill = arg;
    const struct ampd_server *server = refill->server;
    bool older = false;
    if (refill->copy == NULL) {
        amp_log(server->log, AMP_LOG_INFO, "refill", "msg=\"no other shard has a model either\"");
        return 0;
    }
    int rc = io_membership_in_doubt(server) ? compare(refill, &older, error) : 0;
    if (rc == 0 && io_membership_in_doubt(server) && !older)
        rc = copy_drop(refill);
    else if (rc == 0)
        rc = copy_take(refill, older, error);
    if (rc == 0 && (older || !io_membership_in_doubt(server)))
        amp_log(server->log, AMP_LOG_INFO, "refill", "msg=\"the store was filled by another shard\" shard=%u rows=%llu",
                refill->source, (unsigned long long)refill->rows);
    return rc;
}

/*
 * Whether the answer of this shard settles the refill: it has a model; or the store is in doubt and the shard serves;
 * or by now all shards have answered that they have no model.
 */
static bool will_do(struct io_refill *refill)
{
    uint32_t count = io_peers_shards(refill->server);
    if (refill->model[0] != 0 || (io_membership_in_doubt(refill->server) && refill->whole))
        return true;
    refill->without |= (uint64_t)1 << refill->source | (uint64_t)1 << refill->server->options->shard;
    return refill->without == UINT64_MAX >> (64 - count);
}

static void answer_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct io_refill *refill = arpc_call_user(call);
    struct ampd_msg_session_request message;
    if (refill->closing || call != refill->call || refill->code != 0)
        return;
    expect_more(refill);
    refill->code = ampd_msg_session_request_decode(&message, data, size, &refill->error);
    if (refill->code == 0) {
        refill->code = take_bytes(refill, &message.envelope, &refill->error);
        ampd_msg_session_request_free(&message);
    }
    if (refill->code != 0)
        arpc_call_cancel(call, ARPC_STATUS_CANCELLED, refill->error.text);
}

static void end(struct io_refill *refill, int result)
{
    refill->result = result;
    refill->done = true;
    (void)uv_timer_stop(&refill->again); /* nothing is waited for any more */
}

/* Whether no shard has sent a model, though by the data here or by etcd there have been models. */
static bool nobody_knows(const struct io_refill *refill)
{
    const struct ampd_server *server = refill->server;
    return refill->model[0] == 0 && !refill->whole &&
           (io_membership_in_doubt(server) || io_membership_is_bare(server) || io_membership_has_models(server));
}

/* Ends with an error: another process may have the shard's newest data, which serving what is here would lose. */
static void give_up(struct io_refill *refill, int code, const char *why)
{
    const struct ampd_server *server = refill->server;
    const char *dir = server->data.dir.path, *cluster = server->options->cluster->name;
    uint32_t shard = server->options->shard;
    if (io_membership_in_doubt(server))
        (void)amp_error_set(&refill->error, code, NULL,
                            "%s does not have the last data of shard %" PRIu32
                            " (another process has held it since, under fence %" PRIu64
                            "), and %s: bring back the data directory of that process, or those of the other shards",
                            dir, shard, io_cluster_last(server->cluster), why);
    else
        (void)amp_error_set(
            &refill->error, code, NULL,
            "%s has no model, and %s; but cluster %s has models, as %s: is the right directory mounted there? "
            "Start the processes that held the shards last, or bring back the data directory of one of them; a "
            "new cluster begins under another --cluster name",
            dir, why, cluster,
            io_membership_is_bare(server) ? "etcd says, or said before it lost its data (who/shards)"
                                          : "other data of this process say");
    end(refill, code);
}

static void on_refused(uv_timer_t *timer)
{
    give_up(timer->data, AMP_ESTATE, "the other shards are empty, too");
}

/*
 * The shard to ask after an attempt that failed: the others in turn. But in a list the copy must have this shard's
 * highest fence, from which its starts are counted on, and besides itself only shard 0 knows it: as long as shard 0 may
 * have models, only shard 0 is asked.
 */
static uint32_t next_source(const struct io_refill *refill)
{
    const struct ampd_server_options *options = refill->server->options;
    uint32_t next = refill->source;
    if (options->peers != NULL && options->shard != 0 && (refill->without & 1) == 0)
        return 0;
    do
        next = (next + 1) % io_peers_shards(refill->server);
    while (next == options->shard);
    return next;
}

/* The attempt has failed: gives up after DOUBT_MS where that applies, else asks the next shard a little later. */
static void try_next(struct io_refill *refill, const char *why)
{
    if ((io_membership_in_doubt(refill->server) || io_membership_is_bare(refill->server)) &&
        uv_now(&refill->server->loop) - refill->began_ms >= DOUBT_MS) {
        give_up(refill, AMP_EUNAVAILABLE, "no other shard answers what it holds");
        return;
    }
    (void)snprintf(refill->waits, sizeof refill->waits,
                   "it has the place of shard %" PRIu32
                   ", and asks the others for what its data directory lacks; shard %" PRIu32 ": %.350s",
                   refill->server->options->shard, refill->source, why);
    if (refill->attempts++ % TOLD_EVERY == 0) {
        amp_log(refill->server->log, AMP_LOG_WARN, "refill", "msg=\"the store is not filled yet\" shard=%u err=\"%s\"",
                refill->source, why);
        io_notify_status(refill->waits);
    }
    refill->call = NULL;
    if (refill->channel != NULL)
        arpc_channel_close(refill->channel, NULL, NULL);
    refill->channel = NULL;
    ampd_store_close(refill->copy);
    refill->copy = NULL;
    refill->source = next_source(refill);
    (void)uv_timer_start(&refill->again, on_again, AGAIN_MS, 0); /* cannot fail: it is open and has a callback */
}

static void answer_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct io_refill *refill = arpc_call_user(call);
    if (refill->closing || refill->done || call != refill->call)
        return;                          /* it was given up before */
    (void)uv_timer_stop(&refill->again); /* the shard has answered; what follows may take longer than SILENT_MS */
    refill->call = NULL;
    bool answered = refill->code == 0 && result->status == ARPC_STATUS_OK && refill->ended;
    if (refill->broken) {
        end(refill, refill->code);
    } else if (answered && will_do(refill) && nobody_knows(refill)) {
        uint64_t wait_ms = io_membership_in_doubt(refill->server) ? 0 : REFUSED_MS;
        (void)uv_timer_start(&refill->again, on_refused, wait_ms, 0); /* cannot fail: it is open and has a callback */
    } else if (answered && will_do(refill)) {
        end(refill, 0);
    } else {
        try_next(refill, answered ? "it has no model" : refill->code != 0 ? refill->error.text : result->message);
    }
}

static const struct arpc_handler answer = {.message = answer_message, .closed = answer_closed};

static int send_request(struct io_refill *refill, struct amp_error *error)
{
    struct ampd_msg_session_request request = {.has_envelope = true};
    request.envelope.format = AMPD_PEER_FORMAT;
    request.envelope.sender = refill->server->options->shard;
    request.envelope.receiver = refill->source;
    request.envelope.shard_count = io_peers_shards(refill->server);
    struct amp_buf buf = io_message_buf();
    int rc = ampd_msg_session_request_encode(&request, &buf);
    if (rc == 0)
        rc = arpc_call_send(refill->call, buf.data, buf.size, NULL, 0, NULL, NULL);
    amp_buf_close(&buf);
    arpc_call_half_close(refill->call);
    return rc != 0 ? amp_error_set(error, rc, NULL, "a request cannot be sent: %s", amp_strerror(rc)) : 0;
}

/* Asks the shard. A place that was never held has no address: an error like others that pass. */
static int try_ask(struct io_refill *refill, struct amp_error *error)
{
    const struct arpc_pair pair = {"authorization", io_peers_authorization(refill->server)};
    struct arpc_call_options options = {.size = sizeof options,
                                        .max_message = AMPD_MSG_SIZE_MAX,
                                        .metadata = &pair,
                                        .metadata_count = pair.value != NULL ? 1 : 0};
    refill->in.size = 0;
    refill->model[0] = 0;
    refill->rows = 0;
    refill->held_count = 0;
    refill->ended = refill->whole = false;
    refill->code = 0;
    int rc = io_peers_channel(refill->server, refill->source, &refill->channel, error);
    if (rc == 0)
        rc = arpc_channel_call(refill->channel, FETCH_PATH, &options, &answer, refill, &refill->call, error);
    return rc == 0 ? send_request(refill, error) : rc;
}

static void ask(struct io_refill *refill)
{
    if (try_ask(refill, &refill->error) == 0)
        expect_more(refill);
    else
        try_next(refill, refill->error.text);
}

/* ---- life ---- */

static struct io_refill *begin(struct ampd_server *server)
{
    struct io_refill *refill = calloc(1, sizeof *refill);
    if (refill == NULL || uv_timer_init(&server->loop, &refill->again) != 0) {
        free(refill);
        return NULL;
    }
    refill->server = server;
    refill->again.data = refill;
    amp_buf_init(&refill->in, 2 * AMPD_PEER_BODY_MAX);
    refill->source = server->options->shard == 0 ? 1 : 0;
    refill->began_ms = uv_now(&server->loop);
    amp_log(server->log, AMP_LOG_INFO, "refill", "msg=\"the data directory is %s: the other shards are asked\"",
            io_membership_in_doubt(server) ? "perhaps out of date" : "empty");
    (void)uv_timer_start(&refill->again, on_again, 0, 0); /* cannot fail: it is open and has a callback */
    return refill;
}

int io_refill_if_due(struct ampd_server *server, struct amp_error *error)
{
    bool due;
    int rc = is_due(server, &due, error);
    if (rc != 0 || !due)
        return rc;
    struct io_refill *refill = begin(server);
    if (refill == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for asking other shards");
    server->refill = refill;
    while (!refill->done && !server->life.signalled)
        (void)uv_run(&server->loop, UV_RUN_ONCE);
    server->refill = NULL;
    rc = refill->done ? refill->result : AMP_ECANCELLED;
    if (refill->done && rc != 0)
        *error = refill->error;
    else if (rc == 0)
        rc = io_off_loop(server, finish, refill, error);
    leave(refill);
    return rc;
}

const char *io_refill_waits(const struct ampd_server *server)
{
    return server->refill != NULL ? server->refill->waits : "";
}

bool io_refill_under_way(const struct ampd_server *server)
{
    return server->refill != NULL && !io_membership_in_doubt(server); /* a store in doubt gives no answers anyway */
}
