/*
 * FetchRows: the whole content of the store, for another shard whose store is lost or new. It sends the fences, and for
 * each model its specification, its epochs and rows in order, and its catalogue of checkpoints. The reader's thread
 * reads a portion at a time, and nothing while the connection is full.
 */
#include "server/io/base/handlers.h"

#include "base/buf.h"
#include "proto/msg_peer.h"
#include "server/io/base/message_buf.h"
#include "server/io/base/peer_bytes.h"
#include "server/io/base/server.h"
#include "server/io/base/threads.h"
#include "server/io/calls/server_call.h"
#include "server/io/cluster/membership.h"
#include "server/io/cluster/peers.h"
#include "server/io/cluster/refill.h"
#include "server/io/host/history_limit.h"

/* Rows of one transaction of the reader, and the size at which a portion is complete, which takes some milliseconds. */
#define READ_ROWS     64
#define PORTION_BYTES ((size_t)256 << 10)

/* Most bytes of one message's body. */
#define PART_BYTES ((size_t)65536)

/* Most calls on the whole server: one for each possible shard. Each has the memory of a portion. */
#define FETCHES_MAX IO_PEERS_MAX

enum stage { STAGE_BEGIN, STAGE_MODEL, STAGE_ROWS, STAGE_CATALOGUE, STAGE_OVER };

struct fetch {
    struct io_server_call call;
    struct io_task task;
    bool counted;     /* server->calls->fetchings counts this call, and the removal of old rows is paused for it */
    bool busy;        /* a task is under way: the reader's thread has all fields below but `sent` */
    enum stage stage; /* what is read next */
    struct ampd_model_record *records; /* all models, owned; NULL in STAGE_BEGIN */
    size_t records_count, model;       /* number of models; index of the one that is read */
    uint32_t checkpoint;               /* STAGE_CATALOGUE: index of the next checkpoint of the model */
    struct ampd_history_key from;      /* STAGE_ROWS: key from which the next page of rows begins */
    uint32_t rows;                     /* rows of the present page so far */
    struct io_peer_item item;          /* the record that is being written; too large for a stack */
    struct amp_buf out;                /* the portion */
    size_t sent;                       /* bytes of the portion that were given to the rpc library */
    struct amp_error error;            /* if code is not 0 */
    int code;                          /* result of the reader's thread */
};

static struct fetch *fetch_of(struct io_server_call *call)
{
    return AMP_CONTAINER(call, struct fetch, call);
}

/* ---- on the reader's thread ---- */

static int put_item(struct fetch *fetch)
{
    int rc = io_peer_item_encode(&fetch->item, &fetch->out);
    return rc != 0 ? amp_error_set(&fetch->error, rc, NULL, "out of memory for a record") : 0;
}

static int put_fences(struct fetch *fetch)
{
    for (uint32_t k = 0; k < IO_PEERS_MAX; k++) {
        fetch->item = (struct io_peer_item){.kind = IO_ITEM_FENCE, .shard = k};
        int rc = ampd_store_get_fence(fetch->call.server->data.reader, k, &fetch->item.fence, &fetch->error);
        if (rc == 0 && fetch->item.fence.counter != 0)
            rc = put_item(fetch);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int put_row(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                   const struct ampd_epoch_record *epoch)
{
    struct fetch *fetch = arg;
    fetch->item = (struct io_peer_item){.kind = epoch != NULL ? IO_ITEM_EPOCH : IO_ITEM_ROW, .row = *row};
    if (epoch != NULL)
        fetch->item.epoch = *epoch;
    fetch->from = *key;
    fetch->from.sequence++;
    fetch->rows++;
    return put_item(fetch);
}

/* Writes checkpoints of the catalogue, of which there may be any number, until the portion is complete. */
static int put_catalogue(struct fetch *fetch, const struct ampd_model_record *record)
{
    int rc = 0;
    while (rc == 0 && fetch->checkpoint < record->checkpoints_count && fetch->out.size < PORTION_BYTES) {
        fetch->item =
            (struct io_peer_item){.kind = IO_ITEM_CHECKPOINT, .checkpoint = record->checkpoints[fetch->checkpoint++]};
        rc = put_item(fetch);
    }
    if (fetch->checkpoint < record->checkpoints_count)
        return rc;
    fetch->checkpoint = 0;
    fetch->stage = STAGE_MODEL;
    fetch->model++;
    return rc;
}

static int put_rows(struct fetch *fetch, const struct ampd_model_record *record)
{
    const struct ampd_history_filter filter = {.from = fetch->from, .superseded_too = true};
    fetch->rows = 0;
    int rc = ampd_store_page_history(fetch->call.server->data.reader, record->spec.name, &filter, READ_ROWS, fetch,
                                     &fetch->error, put_row);
    if (rc == 0 && fetch->rows < READ_ROWS)
        fetch->stage = STAGE_CATALOGUE;
    return rc;
}

static int put_next(struct fetch *fetch)
{
    const struct ampd_model_record *record = fetch->records != NULL ? &fetch->records[fetch->model] : NULL;
    int rc;
    switch (fetch->stage) {
    case STAGE_BEGIN:
        rc = ampd_store_load(fetch->call.server->data.reader, &fetch->records, &fetch->records_count, &fetch->error);
        fetch->stage = STAGE_MODEL;
        return rc != 0 ? rc : put_fences(fetch);
    case STAGE_MODEL:
        if (fetch->model == fetch->records_count) {
            fetch->stage = STAGE_OVER;
            fetch->item = (struct io_peer_item){.kind = IO_ITEM_END};
            return put_item(fetch);
        }
        fetch->stage = STAGE_ROWS;
        fetch->from = (struct ampd_history_key){0};
        fetch->item = (struct io_peer_item){.kind = IO_ITEM_MODEL,
                                            .spec = record->spec,
                                            .created_us = record->created_us,
                                            .deleting = record->deleting};
        return put_item(fetch);
    case STAGE_ROWS:
        return put_rows(fetch, record);
    case STAGE_CATALOGUE:
        return put_catalogue(fetch, record);
    case STAGE_OVER:
        break;
    }
    return 0;
}

static void fetch_run(struct io_task *task)
{
    struct fetch *fetch = AMP_CONTAINER(task, struct fetch, task);
    fetch->out.size = 0;
    while (fetch->code == 0 && fetch->stage != STAGE_OVER && fetch->out.size < PORTION_BYTES)
        fetch->code = put_next(fetch);
}

/* ---- on the loop ---- */

static int send_part(const struct ampd_server *server, struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_session_request message = {.has_envelope = true};
    message.envelope.format = AMPD_PEER_FORMAT;
    message.envelope.sender = server->options->shard;
    message.envelope.shard_count = io_peers_shards(server);
    message.envelope.body = (struct ampd_msg_bytes){(uint8_t *)(uintptr_t)data, size}; /* only read */
    struct amp_buf buf = io_message_buf();
    int rc = ampd_msg_session_request_encode(&message, &buf);
    if (rc == 0)
        rc = arpc_call_send(rpc, buf.data, buf.size, NULL, 0, NULL, NULL);
    amp_buf_close(&buf);
    return rc;
}

static void fetch_done(struct io_task *task);

/*
 * Sends the rest of the portion, then has the next one read or ends the call. If the connection is full, fetch_writable
 * calls this again.
 */
static void go_on(struct fetch *fetch)
{
    struct io_server_call *call = &fetch->call;
    if (fetch->busy || call->finished)
        return;
    while (fetch->sent < fetch->out.size) {
        size_t left = fetch->out.size - fetch->sent, size = left < PART_BYTES ? left : PART_BYTES;
        int rc = send_part(call->server, call->rpc, fetch->out.data + fetch->sent, size);
        if (rc == AMP_EEXHAUSTED)
            return;
        if (rc != 0) {
            io_server_call_refuse(call, rc, NULL, "rows cannot be sent: %s", amp_strerror(rc));
            return;
        }
        fetch->sent += size;
    }
    if (fetch->stage == STAGE_OVER) {
        io_server_call_end(call);
        return;
    }
    if (arpc_call_queued(call->rpc) > ARPC_LOW_WATER)
        return;
    fetch->busy = true;
    /* Before reads of histories that wait: a shard that has lost its disk cannot begin without these rows. */
    fetch->task = (struct io_task){.run_cb = fetch_run, .done_cb = fetch_done, .first = true};
    io_server_call_ref(call);
    io_threads_submit(call->server->pools.readers, &fetch->task);
}

static void fetch_done(struct io_task *task)
{
    struct fetch *fetch = AMP_CONTAINER(task, struct fetch, task);
    fetch->busy = false;
    fetch->sent = 0;
    if (fetch->code != 0)
        io_server_call_fail(&fetch->call, &fetch->error);
    else
        go_on(fetch);
    io_server_call_unref(&fetch->call);
}

static void fetch_free(struct io_server_call *call)
{
    struct fetch *fetch = fetch_of(call);
    if (fetch->counted) {
        call->server->calls->fetchings--;
        io_history_limit_resume(call->server);
    }
    ampd_model_records_free(fetch->records, fetch->records_count);
    amp_buf_close(&fetch->out);
}

static const struct io_server_call_ops fetch_ops = {NULL, NULL, fetch_free};

/* 0, or an error: the caller is not a shard of this cluster, or this process cannot serve it now. */
static int check(const struct ampd_server *server, const struct ampd_msg_session_request *request,
                 struct amp_error *error)
{
    const struct ampd_msg_envelope *envelope = &request->envelope;
    if (server->data.reader == NULL)
        return amp_error_set(error, AMP_EUNAVAILABLE, "NO_PLACE", "this process is not a shard yet");
    if (server->peers == NULL)
        return amp_error_set(error, AMP_ESTATE, "NO_CLUSTER", "this is the only shard; rows are for other shards");
    if (!request->has_envelope || envelope->format != AMPD_PEER_FORMAT)
        return amp_error_set(error, AMP_ESTATE, "PEER_FORMAT",
                             "format: the caller speaks format %u, this shard %d; run the same ampd on all shards",
                             envelope->format, AMPD_PEER_FORMAT);
    if (envelope->shard_count != io_peers_shards(server))
        return amp_error_set(error, AMP_ESTATE, "SHARD_COUNT",
                             "shard_count: the caller has a list of %u shards, and this shard one of %u; give all "
                             "shards the same --peers",
                             envelope->shard_count, io_peers_shards(server));
    if (envelope->receiver != server->options->shard)
        return amp_error_set(
            error, AMP_EUNAVAILABLE, "SHARD_MOVED",
            "receiver: shard %u is not here; this process is shard %u, with the data that shard has seen",
            envelope->receiver, server->options->shard);
    if (io_refill_under_way(server))
        return amp_error_set(error, AMP_EUNAVAILABLE, "JOINING",
                             "this process has models of another shard, and is itself about to load this shard's rows; "
                             "ask the other shards");
    if (server->calls->fetchings >= FETCHES_MAX)
        return amp_error_set(error, AMP_EEXHAUSTED, "TOO_MANY_CALLS", "%d shards fetch rows already; try again",
                             FETCHES_MAX);
    return 0;
}

/*
 * Answers with no model at all, since this process itself is filling its store and knows of no model. If a whole
 * cluster is new, or has deleted all models, each shard gets this answer from all others, and begins. A process that
 * knows of models must not answer so: the caller would begin a new cluster because of it.
 */
static void answer_empty(const struct ampd_server *server, struct arpc_call *rpc)
{
    const struct io_peer_item end = {.kind = IO_ITEM_END};
    struct amp_buf body = io_message_buf();
    int rc = io_peer_item_encode(&end, &body);
    if (rc == 0)
        rc = send_part(server, rpc, body.data, body.size);
    amp_buf_close(&body);
    if (rc == 0)
        arpc_call_finish(rpc, ARPC_STATUS_OK, "", NULL);
    else
        arpc_call_finish(rpc, ARPC_STATUS_RESOURCE_EXHAUSTED, "out of memory for this call", NULL);
}

static void fetch_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_server *server = arpc_call_server_arg(rpc);
    if (io_refill_under_way(server) && !io_membership_has_models(server)) {
        answer_empty(server, rpc);
        return;
    }
    struct ampd_msg_session_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof(struct fetch), &fetch_ops);
    if (call == NULL)
        return;
    struct fetch *fetch = fetch_of(call);
    amp_buf_init(&fetch->out, PORTION_BYTES + AMPD_PEER_BODY_MAX);
    int rc = ampd_msg_session_request_decode(&request, data, size, &error);
    if (rc == 0) {
        rc = check(call->server, &request, &error);
        ampd_msg_session_request_free(&request);
    }
    if (rc != 0) {
        io_server_call_fail(call, &error);
        return;
    }
    fetch->counted = true;
    call->server->calls->fetchings++;
    io_history_limit_pause(call->server);
    go_on(fetch);
}

static void fetch_writable(struct arpc_call *rpc)
{
    struct io_server_call *call = io_server_call_of(rpc);
    if (call != NULL)
        go_on(fetch_of(call));
}

const struct arpc_handler ampd_handle_fetch_rows = {
    .message = fetch_message, .writable = fetch_writable, .closed = io_server_call_closed};
