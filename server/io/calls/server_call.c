#include "server/io/calls/server_call.h"

#include "base/assert.h"
#include "server/io/base/core_event.h"
#include "server/io/base/server.h"
#include "server/io/base/threads.h"
#include "server/io/cluster/cluster.h"
#include "server/io/cluster/cluster_address.h"
#include "server/io/cluster/membership.h"
#include "server/io/cluster/peers.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Key in the ErrorInfo of a call that went to the wrong process and is for shard 0: shard 0's address. */
#define SERVER_COORDINATOR_KEY "coordinator"

/* Delay in the RetryInfo of errors that pass: about the time that a restart takes. */
#define DRAIN_RETRY_MS 500
/* In place of a delay where the call will never succeed here as it is: gRPC's own retries would only repeat it. */
#define NEVER_HERE_MS (-1)

void io_server_calls_init(struct io_server_calls *calls)
{
    *calls = (struct io_server_calls){0};
    for (size_t i = 0; i < IO_SERVER_CALL_BUCKETS; i++)
        amp_list_init(&calls->buckets[i]);
    for (size_t i = 0; i < IO_SERVER_CALL_TURNS; i++)
        amp_list_init(&calls->turns[i]);
}

static struct amp_list *bucket(struct ampd_server *server, uint64_t id)
{
    return &server->calls->buckets[id % IO_SERVER_CALL_BUCKETS]; /* ids are consecutive numbers */
}

/*
 * Refuses a call to a process that stands by or does not serve yet, with the address of shard 0, which knows those of
 * the others, unless this process is to be shard 0 itself.
 */
static void refuse_standby(const struct ampd_server *server, struct arpc_call *rpc)
{
    struct arpc_details details = {.reason = "STANDBY", .retry_ms = NEVER_HERE_MS};
    char text[AMP_ERROR_TEXT_MAX];
    const char *why = io_membership_missing(server);
    bool told = server->cluster != NULL ? io_cluster_member(server->cluster, 0)->held
                                        : server->options->peers != NULL && server->options->shard != 0;
    const char *address = told ? io_peers_address(server, 0) : "";
    if (strcmp(address, io_membership_address(server)) == 0)
        address = "";
    const struct arpc_pair at = {SERVER_COORDINATOR_KEY, address};
    details.pairs = &at;
    details.pair_count = address[0] != 0;
    if (why[0] != 0)
        (void)snprintf(text, sizeof text, "this process is not a shard yet: %.450s", why);
    else
        (void)snprintf(text, sizeof text,
                       "this process is not a shard yet: it stands by for a place in its cluster; %s%s",
                       address[0] != 0 ? "call shard 0, at " : "call a process that is one", address);
    arpc_call_finish(rpc, ARPC_STATUS_UNAVAILABLE, text, &details);
}

const struct io_server_call_ops io_server_call_plain = {NULL, NULL, NULL};

struct io_server_call *io_server_call_open(struct arpc_call *rpc, size_t size, const struct io_server_call_ops *ops)
{
    struct ampd_server *server = arpc_call_server_arg(rpc);
    if (server->life.state == SERVER_STARTING) {
        refuse_standby(server, rpc);
        return NULL;
    }
    if (server->life.state != SERVER_RUNNING) {
        struct arpc_details details = {.reason = "DRAINING", .retry_ms = DRAIN_RETRY_MS};
        arpc_call_finish(rpc, ARPC_STATUS_UNAVAILABLE, "the server is ending; connect again", &details);
        return NULL;
    }
    /* What only looks is no event of the core, and may be read before the timer of a lease that is over. */
    io_membership_check(server);
    struct io_server_call *call = calloc(1, size);
    if (call == NULL) {
        arpc_call_finish(rpc, ARPC_STATUS_RESOURCE_EXHAUSTED, "out of memory for this call", NULL);
        return NULL;
    }
    *call = (struct io_server_call){.server = server, .rpc = rpc, .ops = ops, .id = ++server->calls->last, .refs = 1};
    amp_list_init(&call->in_turn);
    amp_list_push(bucket(server, call->id), &call->node);
    arpc_call_set_user(rpc, call);
    return call;
}

struct io_server_call *io_server_call_of(struct arpc_call *rpc)
{
    return arpc_call_user(rpc);
}

struct io_server_call *io_server_call_find(struct ampd_server *server, uint64_t id)
{
    AMP_LIST_EACH(it, safe, bucket(server, id))
    {
        struct io_server_call *call = AMP_CONTAINER(it, struct io_server_call, node);
        if (call->id == id)
            return call;
    }
    return NULL;
}

void io_server_call_ref(struct io_server_call *call)
{
    call->refs++;
}

void io_server_call_unref(struct io_server_call *call)
{
    AMP_ASSERT(call->refs > 0);
    if (--call->refs > 0)
        return;
    AMP_ASSERT(call->rpc == NULL && !call->at_core && call->pins == 0);
    amp_list_remove(&call->node);
    if (call->ops->free_cb != NULL)
        call->ops->free_cb(call);
    ampd_core_let_go(call->held);
    free(call);
}

/* Gives the core CALL_CLOSED once the stream is over and no memory of the model is in use. Calls into the core. */
static void notify_closed(struct io_server_call *call)
{
    if (call->rpc != NULL || call->pins > 0 || !call->at_core)
        return;
    call->at_core = false;
    struct ampd_event event = {.type = AMPD_EVENT_CALL_CLOSED, .call = call->id};
    io_core_event(call->server, &event);
}

/* ---- reads of the store ---- */

/* Tasks that the readers have at a time: when one is done, the next is there. */
#define READS_AT_ONCE 2

static void give_read(struct io_server_call *call)
{
    call->server->calls->reads++;
    io_threads_submit(call->server->pools.readers, call->reading);
}

/* Takes the call out whose source has the next turn; NULL: none waits. */
static struct io_server_call *next_read(struct io_server_calls *calls)
{
    for (unsigned i = 0; i < IO_SERVER_CALL_TURNS; i++) {
        struct amp_list *node = amp_list_shift(&calls->turns[calls->turn++ % IO_SERVER_CALL_TURNS]);
        if (node != NULL)
            return AMP_CONTAINER(node, struct io_server_call, in_turn);
    }
    return NULL;
}

static void give_reads(struct io_server_calls *calls)
{
    struct io_server_call *call;
    while (calls->reads < READS_AT_ONCE && (call = next_read(calls)) != NULL)
        give_read(call);
}

void io_server_call_read(struct io_server_call *call, struct io_task *task)
{
    struct io_server_calls *calls = call->server->calls;
    io_server_call_ref(call);
    call->reading = task;
    amp_list_push(&calls->turns[arpc_call_peer_info(call->rpc)->source % IO_SERVER_CALL_TURNS], &call->in_turn);
    give_reads(calls);
}

void io_server_call_was_read(struct io_server_call *call)
{
    call->reading = NULL;
    call->server->calls->reads--;
    give_reads(call->server->calls);
}

/* Ends the read of a call that is over, unless a thread has begun it. */
static void forget_read(struct io_server_call *call)
{
    struct io_server_calls *calls = call->server->calls;
    struct io_task *task = call->reading;
    if (task == NULL)
        return;
    bool waits = !amp_list_empty(&call->in_turn);
    amp_list_remove(&call->in_turn);
    calls->reads += waits ? 1 : 0; /* io_server_call_was_read, which done_cb calls, takes it off */
    if (waits || io_threads_take_back(call->server->pools.readers, task))
        task->done_cb(task);
}

void io_server_call_closed(struct arpc_call *rpc, const struct arpc_result *result)
{
    struct io_server_call *call = io_server_call_of(rpc);
    if (call == NULL)
        return;
    arpc_call_set_user(rpc, NULL);
    call->rpc = NULL;
    call->finished = true;
    notify_closed(call);
    forget_read(call);
    io_server_call_unref(call);
}

void io_server_call_pin(struct io_server_call *call)
{
    call->pins++;
    call->refs++;
}

void io_server_call_unpin(void *arg)
{
    struct io_server_call *call = arg;
    AMP_ASSERT(call->pins > 0);
    call->pins--;
    notify_closed(call);
    io_server_call_unref(call);
}

void io_server_call_event(struct io_server_call *call, struct ampd_event *event)
{
    event->call = call->id;
    call->at_core = true;
    io_core_event(call->server, event);
}

/* ---- answering ---- */

static void finish(struct io_server_call *call, int status, const char *message, const struct arpc_details *details)
{
    if (call->finished)
        return;
    call->finished = true;
    arpc_call_finish(call->rpc, status, message, details);
}

/* The reason for the ErrorInfo, which every error has (AIP-193): the error's own, else one made of its code. */
static const char *reason_of(const struct amp_error *error)
{
    if (error->reason[0] != 0)
        return error->reason;
    switch (error->code) {
    case AMP_EINVAL:
        return "INVALID_FIELD";
    case AMP_ENOMEM:
    case AMP_EEXHAUSTED:
        return "EXHAUSTED";
    case AMP_EUNIMPLEMENTED:
        return "RESERVED_VALUE";
    case AMP_EUNAVAILABLE:
        return "UNAVAILABLE";
    default:
        return "INTERNAL";
    }
}

/* Bytes of the path of a field, with the final zero. */
#define FIELD_MAX 128

/*
 * The path of the field at fault, for a BadRequest, from the text of the error. Such texts begin with the field, as in
 * "page_size: 1001 is too many", or with the message and the field, as in "JoinRequest: model is longer than". NULL:
 * the text names no field.
 */
static const char *field_of(const struct amp_error *error, char field[FIELD_MAX])
{
    const char *text = error->text;
    const char *colon = strstr(text, ": ");
    bool named = text[0] >= 'A' && text[0] <= 'Z' && colon != NULL && memchr(text, ' ', (size_t)(colon - text)) == NULL;
    if (named)
        text = colon + 2;
    size_t size = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_.[]");
    if (error->code != AMP_EINVAL || size == 0 || size >= FIELD_MAX || text[size] != (named ? ' ' : ':'))
        return NULL;
    memcpy(field, text, size);
    field[size] = 0;
    return field;
}

/* The delay for the RetryInfo, or NEVER_HERE_MS; 0: there is none, since waiting alone would change nothing. */
static int64_t retry_of(const struct amp_error *error)
{
    if (strcmp(error->reason, "SHARD_MOVED") == 0 || strcmp(error->reason, "NOT_ATTACHED") == 0)
        return NEVER_HERE_MS;
    bool crowded = error->code == AMP_EEXHAUSTED && strcmp(error->reason, "TOO_MANY_CALLS") == 0;
    return error->code == AMP_EUNAVAILABLE || error->code == AMP_ENOMEM || crowded ? DRAIN_RETRY_MS : 0;
}

static void finish_with_error(struct io_server_call *call, const struct ampd_reply *reply)
{
    char epoch[24], step[24];
    struct arpc_pair pairs[2] = {{"epoch", epoch}, {"step", step}};
    (void)snprintf(epoch, sizeof epoch, "%" PRIu64, reply->epoch);
    (void)snprintf(step, sizeof step, "%" PRIu64, reply->step);
    char field[FIELD_MAX];
    struct arpc_details details = {.reason = reason_of(&reply->error),
                                   .pairs = pairs,
                                   .pair_count = reply->epoch != 0 ? 2 : 0,
                                   .retry_ms =
                                       reply->retry_ms != 0 ? (int64_t)reply->retry_ms : retry_of(&reply->error),
                                   .field = field_of(&reply->error, field),
                                   .field_text = reply->error.text};
    finish(call, amp_err_grpc_status(reply->error.code), reply->error.text, &details);
}

static void send_to_coordinator(struct io_server_call *call, const struct amp_error *error)
{
    char text[AMP_ERROR_TEXT_MAX + IO_CLUSTER_ADDRESS_MAX];
    const struct arpc_pair at = {SERVER_COORDINATOR_KEY, io_peers_address(call->server, 0)};
    const struct arpc_details details = {
        .reason = error->reason, .pairs = &at, .pair_count = 1, .retry_ms = NEVER_HERE_MS};
    (void)snprintf(text, sizeof text, "%s: it is at %s", error->text, at.value);
    finish(call, amp_err_grpc_status(error->code), text, &details);
}

void io_server_call_answer(struct io_server_call *call, const struct ampd_reply *reply)
{
    call->at_core = false;
    if (call->finished)
        return;
    if (reply->error.code != 0 && strcmp(reply->error.reason, "NOT_COORDINATOR") == 0)
        send_to_coordinator(call, &reply->error);
    else if (reply->error.code != 0)
        finish_with_error(call, reply);
    else
        call->ops->reply_cb(call, reply);
}

void io_server_call_fail(struct io_server_call *call, const struct amp_error *error)
{
    char field[FIELD_MAX];
    struct arpc_details details = {.reason = reason_of(error),
                                   .retry_ms = retry_of(error),
                                   .field = field_of(error, field),
                                   .field_text = error->text};
    finish(call, amp_err_grpc_status(error->code), error->text, &details);
}

void io_server_call_refuse(struct io_server_call *call, int code, const char *reason, const char *format, ...)
{
    struct amp_error error;
    char text[AMP_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args); /* a text that is too long is truncated */
    va_end(args);
    (void)amp_error_set(&error, code, reason, "%s", text);
    io_server_call_fail(call, &error);
}

void io_server_call_reply_buf(struct io_server_call *call, struct amp_buf *buf, int encoded)
{
    if (encoded != 0) {
        io_server_call_refuse(call, encoded == AMP_EINVAL ? AMP_EINTERNAL : encoded, NULL,
                              "the answer cannot be written: %s", amp_strerror(encoded));
    } else if (!call->finished) {
        call->finished = true;
        (void)arpc_call_reply(call->rpc, buf->data, buf->size); /* fails the call itself */
    }
    amp_buf_close(buf);
}

void io_server_call_end(struct io_server_call *call)
{
    finish(call, ARPC_STATUS_OK, NULL, NULL);
}
