/*
 * The life of a call.
 *
 * A call is always a bidirectional stream of messages; unary and one-sided kinds only restrict how many messages may
 * come. Its states say which sides have ended. "Local" is this process: on the server it ends by arpc_call_finish, on
 * the client by arpc_call_half_close. "Remote" ends when the peer's END_STREAM has been reported to the user, which is
 * after all messages before it.
 *
 *     OPEN         -> REMOTE_ENDED LOCAL_ENDED CLOSED
 *     REMOTE_ENDED -> BOTH_ENDED CLOSED
 *     LOCAL_ENDED  -> BOTH_ENDED CLOSED
 *     BOTH_ENDED   -> CLOSED
 *     CLOSED       -> GONE
 *     GONE         ->
 *
 * (tests/unit/test_rpc_call.c compares this diagram with the table below.)
 *
 * CLOSED: the result is known, `closed` is due or was called; the stream may still have to send its trailers or
 * RST_STREAM. GONE: the stream is over too, the link has let go; the object lives as long as references to it.
 *
 * A client's call may take several attempts, each a stream of its own (park.c); its states are about the call, not the
 * stream. They go back to where they were: an attempt that is followed by another has not ended the remote side.
 *
 * Who holds references: the link, from creation to GONE; every message on its way out, until its bytes have left; the
 * user, by arpc_call_ref. No callback runs inside arpc_call_*: functions note what is wanted (dirty) or what is to
 * be reported (events), and arpc_link_flush does it.
 */
#include "rpc/h2/call.h"

#include "base/assert.h"
#include "base/err.h"
#include "base/text.h"
#include "rpc/arpc_client.h"
#include "rpc/arpc_server.h"
#include "rpc/h2/abuse.h"
#include "rpc/h2/stats.h"
#include "rpc/wire/details.h"
#include "rpc/wire/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BIT(state) (1u << ARPC_CALL_##state)

static const unsigned allowed[ARPC_CALL_STATE_COUNT] = {
    [ARPC_CALL_OPEN] = BIT(REMOTE_ENDED) | BIT(LOCAL_ENDED) | BIT(CLOSED),
    [ARPC_CALL_REMOTE_ENDED] = BIT(BOTH_ENDED) | BIT(CLOSED),
    [ARPC_CALL_LOCAL_ENDED] = BIT(BOTH_ENDED) | BIT(CLOSED),
    [ARPC_CALL_BOTH_ENDED] = BIT(CLOSED),
    [ARPC_CALL_CLOSED] = BIT(GONE),
    [ARPC_CALL_GONE] = 0,
};

bool arpc_call_state_may(enum arpc_call_state from, enum arpc_call_state to)
{
    return (allowed[from] >> to & 1u) != 0;
}

const char *arpc_call_state_name(enum arpc_call_state state)
{
#define STATE_TEXT(name) #name,
    static const char *const names[] = {ARPC_CALL_STATES(STATE_TEXT)};
#undef STATE_TEXT
    return names[state];
}

void arpc_call_set_state(struct arpc_call *call, enum arpc_call_state to)
{
    AMP_ASSERT(arpc_call_state_may(call->state, to));
    call->state = to;
}

bool arpc_call_is_over(const struct arpc_call *call)
{
    return call->state == ARPC_CALL_CLOSED || call->state == ARPC_CALL_GONE;
}

bool arpc_call_ignores_input(const struct arpc_call *call)
{
    return call->attempt.again || arpc_call_is_over(call);
}

struct arpc_call *arpc_call_create(struct arpc_link *link, const struct arpc_handler *handler)
{
    struct arpc_call *call = calloc(1, sizeof *call);
    if (call == NULL)
        return NULL;
    call->refs = 1;
    call->state = ARPC_CALL_OPEN;
    call->server = link->config->server;
    call->link = link;
    call->handler = handler;
    call->deadline_ms = INT64_MAX;
    call->out.progress_ms = arpc_link_now(link);
    call->in.slow_since_ms = INT64_MAX;
    call->head.timeout_ns = INT64_MAX;
    call->head.grpc_status = -1;
    amp_list_init(&call->in_dirty);
    amp_list_init(&call->in_events);
    amp_list_init(&call->in_waiting);
    amp_list_init(&call->in_refused);
    amp_list_init(&call->out.messages);
    amp_list_init(&call->out.sent);
    call->attempt.retry.committed = call->server || link->config->parking == NULL;
    /* The window it may grow to, and what was on its way under the one it began with. */
    amp_buf_init(&call->in.buffered, link->config->stream_window + ARPC_INITIAL_WINDOW);
    amp_buf_init(&call->in.message, 0);
    arpc_fields_init(&call->kept, link->config->max_metadata_bytes);
    arpc_fields_init(&call->out.initial, ARPC_FIELDS_BYTES_MAX);
    arpc_fields_init(&call->out.trailing, ARPC_FIELDS_BYTES_MAX);
    amp_list_push(&link->calls, &call->in_link);
    link->call_count++;
    if (!call->server)
        link->age.idle_since_ms = INT64_MAX;
    arpc_link_due(link, arpc_after(link->keepalive.received_ms, link->keepalive.period_ms));
    link->config->calls++;
    link->config->calls_total++;
    return call;
}

static void free_call(struct arpc_call *call)
{
    AMP_ASSERT(call->state == ARPC_CALL_GONE && amp_list_empty(&call->out.messages) && call->out.queued == 0);
    amp_buf_close(&call->in.buffered);
    amp_buf_close(&call->in.message);
    arpc_fields_close(&call->kept);
    arpc_fields_close(&call->out.initial);
    arpc_fields_close(&call->out.trailing);
    free(call->head.message);
    free(call->head.details);
    free(call->status_message);
    free(call->status_details);
    free(call->path);
    free(call);
}

struct arpc_call *arpc_call_ref(struct arpc_call *call)
{
    call->refs++;
    return call;
}

void arpc_call_unref(struct arpc_call *call)
{
    AMP_ASSERT(call->refs > 0);
    if (--call->refs == 0)
        free_call(call);
}

void arpc_call_mark_dirty(struct arpc_call *call)
{
    if (call->link == NULL || !amp_list_empty(&call->in_dirty))
        return;
    amp_list_push(&call->link->dirty, &call->in_dirty);
    call->link->wake_cb(call->link);
}

void arpc_call_mark_event(struct arpc_call *call)
{
    if (call->link == NULL || !amp_list_empty(&call->in_events))
        return;
    amp_list_push(&call->link->events, &call->in_events);
    call->link->wake_cb(call->link);
}

void arpc_call_set_status(struct arpc_call *call, int status, const char *message)
{
    char *copy = NULL;
    if (message != NULL && message[0] != 0)
        copy = strndup(message, ARPC_STATUS_TEXT_MAX - 1); /* without memory the text is lost, not the status */
    if (copy != NULL)
        amp_text_repair(copy); /* a path need not be UTF-8, and a text may be cut; but details must be UTF-8 */
    free(call->status_message);
    free(call->status_details); /* of another status, which this one takes the place of */
    call->status_message = copy;
    call->status_details = NULL;
    call->status_details_size = 0;
    call->retry_ms = 0;
    /* A number that is none of gRPC's says nothing to the peer. */
    call->status = status >= ARPC_STATUS_OK && status <= ARPC_STATUS_UNAUTHENTICATED ? status : ARPC_STATUS_UNKNOWN;
}

void arpc_call_close(struct arpc_call *call, int status, const char *message)
{
    if (arpc_call_is_over(call))
        return;
    if (message != call->status_message || status != call->status)
        arpc_call_set_status(call, status, message);
    arpc_call_set_state(call, ARPC_CALL_CLOSED);
    call->out.ended = true;
    arpc_call_mark_event(call);
    arpc_call_mark_dirty(call);
}

void arpc_call_stream_over(struct arpc_call *call)
{
    if (!call->server && call->stream_id != 0 && !call->stream_over)
        call->link->stream_count--;
    call->stream_over = true;
    arpc_call_mark_event(call);
}

static void server_stream_closed(struct arpc_call *call)
{
    if (call->out.trailers_sent)
        arpc_call_close(call, call->status, call->status_message);
    else
        arpc_call_close(call, ARPC_STATUS_CANCELLED, "the client cancelled the call");
}

/* RFC 9113 section 7. nghttp2 too closes streams with it that are above the last id of a GOAWAY. */
#define H2_REFUSED_STREAM 0x7

static enum arpc_reach reach_of(const struct arpc_call *call, uint32_t h2_code)
{
    if (!call->attempt.head_left)
        return ARPC_REACH_NONE;
    return h2_code == H2_REFUSED_STREAM ? ARPC_REACH_REFUSED : ARPC_REACH_SERVER;
}

static void client_stream_closed(struct arpc_call *call, uint32_t h2_code)
{
    int status = arpc_status_from_h2(h2_code);
    /* The trailers are here; they are reported when the messages before them are taken. */
    if (call->in.end_seen || arpc_call_try_again(call, status, reach_of(call, h2_code)))
        return;
    char text[64];
    (void)snprintf(text, sizeof text, "the server reset the stream (HTTP/2 error %u)", (unsigned)h2_code);
    arpc_call_close(call, status, text);
}

void arpc_call_stream_closed(struct arpc_call *call, uint32_t h2_code)
{
    if (call->server)
        server_stream_closed(call);
    else
        client_stream_closed(call, h2_code);
    arpc_call_stream_over(call);
}

void arpc_call_reset(struct arpc_call *call, uint32_t h2_code)
{
    if (call->out.reset || call->stream_over)
        return;
    call->out.reset = true;
    call->out.reset_code = h2_code;
    arpc_call_mark_dirty(call);
}

/* RFC 9113 section 7. */
#define H2_CANCEL 0x8

void arpc_call_fault(struct arpc_call *call, int status, const char *message)
{
    if (call->server) {
        if (status != ARPC_STATUS_RESOURCE_EXHAUSTED) /* that may be this side's trouble */
            arpc_call_bad_request(call);
        arpc_call_finish(call, status, message, NULL);
        return;
    }
    arpc_call_close(call, status, message);
    arpc_call_reset(call, H2_CANCEL);
}

void arpc_call_cancel(struct arpc_call *call, int status, const char *message)
{
    if (arpc_call_is_over(call))
        return;
    arpc_call_close(call, status, message);
    arpc_call_reset(call, H2_CANCEL);
}

void arpc_call_deadline(struct arpc_call *call)
{
    call->deadline_ms = INT64_MAX;
    arpc_call_cancel(call, ARPC_STATUS_DEADLINE_EXCEEDED, "the deadline has passed");
}

void arpc_call_admit(struct arpc_call *call)
{
    struct arpc_link *link = call->link;
    call->admitted = true;
    link->admitted++;
    link->was_admitted = true;
    link->age.idle_since_ms = INT64_MAX;
}

/* The link lets go: what is queued is dropped, and the memory that only a stream needs is freed. */
static void call_gone(struct arpc_call *call)
{
    struct arpc_link *link = call->link;
    arpc_out_forget(call);
    arpc_out_drop(call);
    AMP_ASSERT(link->buffered >= call->in.buffered.size);
    link->buffered -= call->in.buffered.size;
    arpc_link_credit(link, call->in.buffered.size);
    amp_buf_close(&call->in.buffered);
    arpc_charge_set(&call->in.waiting, &link->host->waiting, 0, 0);
    arpc_charge_set(&call->open, &link->host->open, 0, 0);
    arpc_charge_set(&call->out.copies, &link->host->unsent, 0, 0);
    arpc_call_forget_message(call);
    amp_list_remove(&call->in_link);
    amp_list_remove(&call->in_dirty);
    amp_list_remove(&call->in_events);
    amp_list_remove(&call->in_waiting);
    amp_list_remove(&call->in_refused);
    link->call_count--;
    link->admitted -= call->admitted;
    if (call->server ? call->admitted && link->admitted == 0 : link->call_count == 0) {
        link->age.idle_since_ms = arpc_link_now(link);
        arpc_link_due(link, arpc_link_idle_due_ms(link));
    }
    link->config->calls--;
    arpc_call_set_state(call, ARPC_CALL_GONE);
    call->link = NULL;
    arpc_call_unref(call);
}

static void notify_closed(struct arpc_call *call)
{
    struct arpc_details_store *store = NULL;
    struct arpc_result result = {.status = call->status,
                                 .message = call->status_message != NULL ? call->status_message : "",
                                 .from_peer = call->from_peer};
    if (call->from_peer && call->head.details != NULL)
        /* Details that cannot be read only take something away from the text. */
        (void)arpc_details_decode(call->head.details, call->head.details_size, &result.details, &store);
    call->closed_done = true;
    arpc_stats_end(call);
    if (!call->quiet)
        call->handler->closed(call, &result);
    if (call->server) /* its stream may be long in ending */
        arpc_fields_close(&call->kept);
    arpc_details_free(store);
}

void arpc_call_notify(struct arpc_call *call)
{
    if (call->state == ARPC_CALL_CLOSED) {
        if (!call->closed_done)
            notify_closed(call);
        if (call->stream_over)
            call_gone(call);
        return;
    }
    if (call->attempt.again) {
        if (call->stream_over && call->out.batch == NULL)
            arpc_call_begin_again(call);
        return;
    }
    bool fallen = call->out.was_high && call->out.queued <= ARPC_LOW_WATER;
    /* Those told before it may have filled the room again: then it stays in the list, and the next batch wakes it. */
    bool room = !amp_list_empty(&call->in_refused) && arpc_call_has_room(call);
    if (fallen || room) {
        call->out.was_high = call->out.queued > ARPC_LOW_WATER;
        amp_list_remove(&call->in_refused);
        if (!call->quiet && !call->out.ended && call->handler->writable != NULL)
            call->handler->writable(call);
    }
}

void arpc_call_set_user(struct arpc_call *call, void *user)
{
    call->user = user;
}

void *arpc_call_user(const struct arpc_call *call)
{
    return call->user;
}

bool arpc_call_is_closed(const struct arpc_call *call)
{
    return call->closed_done || call->state == ARPC_CALL_GONE;
}

int64_t arpc_call_time_left_ms(const struct arpc_call *call)
{
    if (call->deadline_ms == INT64_MAX)
        return INT64_MAX;
    int64_t now_ms = call->link != NULL ? arpc_link_now(call->link) : call->deadline_ms;
    return call->deadline_ms > now_ms ? call->deadline_ms - now_ms : 0;
}

bool arpc_call_is_by_unix(const struct arpc_call *call)
{
    return call->link != NULL && call->link->peer_info.transport == ARPC_TRANSPORT_UNIX;
}

bool arpc_call_metadata(const struct arpc_call *call, const char *key, size_t index, const uint8_t **value,
                        size_t *size)
{
    size_t cursor = 0;
    struct arpc_field field;
    while (arpc_fields_next(&call->kept, &cursor, &field)) {
        if (strcmp(field.name, key) != 0 || index-- > 0)
            continue;
        *value = field.value;
        *size = field.value_size;
        return true;
    }
    return false;
}
