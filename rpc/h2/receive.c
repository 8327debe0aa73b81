/*
 * The receiving half of a call: DATA bytes into messages.
 *
 * Bytes are delivered as they come, with pointers into the receive buffer. While the user has paused the call they are
 * buffered; the stream's window is then not reopened, so that at most a window of them can come.
 *
 * A compressed message is inflated as it comes, into memory that the method's largest message bounds, and delivered
 * when it is whole: its size is not known before.
 */
#include "rpc/h2/call.h"

#include "base/assert.h"
#include "rpc/arpc_server_call.h"
#include "rpc/arpc_stats.h"
#include "rpc/h2/abuse.h"
#include "rpc/h2/request.h"
#include "rpc/wire/inflate.h"

#include <stdio.h>

static bool is_reading(const struct arpc_call *call)
{
    return !arpc_call_ignores_input(call) && !(call->server && call->out.ended);
}

/*
 * What these bytes are charged with. As little as one of them keeps a call, with its stream and metadata; and whoever
 * is charged with more replaces no more calls than these bytes are worth, however small they are.
 */
static int64_t charge_of(size_t size)
{
    size_t least = size > 0 ? ARPC_CALL_BYTES : 0;
    return (int64_t)(size > least ? size : least);
}

/*
 * Where the message under way is charged, the same place until it ends. Who was not let in can only ask for the health,
 * and takes nothing from messages of others for that.
 */
static struct arpc_account *account_of(const struct arpc_call *call)
{
    struct arpc_host *host = call->link->host;
    if (call->in.unfinished.account != NULL)
        return call->in.unfinished.account;
    return call->link->was_admitted ? &host->unfinished : &host->unadmitted;
}

/* The message under way takes more, or less: the oldest of the address that has most gives way if that is too much. */
static void message_changed(struct arpc_call *call)
{
    struct arpc_link *link = call->link;
    int64_t amount =
        charge_of(call->in.message.size + call->in.user_holds + (call->in.inflate != NULL ? ARPC_INFLATE_BYTES : 0));
    if (amount == call->in.unfinished.amount || arpc_call_is_over(call))
        return;
    int64_t now_ms = arpc_link_now(link);
    arpc_charge_set(&call->in.unfinished, account_of(call), amount, now_ms);
    struct arpc_charge *charge;
    while ((charge = arpc_charge_excess(&call->in.unfinished, now_ms)) != NULL) {
        struct arpc_call *other = AMP_CONTAINER(charge, struct arpc_call, in.unfinished);
        arpc_call_forget_message(other);
        arpc_link_count(other->link, ARPC_ABUSE_UNFINISHED);
        arpc_call_cancel(other, ARPC_STATUS_RESOURCE_EXHAUSTED,
                         "unfinished messages of this address take too much memory: send fewer at a time");
    }
}

void arpc_call_forget_message(struct arpc_call *call)
{
    arpc_inflate_free(call->in.inflate);
    call->in.inflate = NULL;
    amp_buf_close(&call->in.message);
    arpc_charge_set(&call->in.unfinished, account_of(call), 0, 0);
}

void arpc_call_holds(struct arpc_call *call, size_t size)
{
    call->in.user_holds = size;
}

/* Where "no bytes" are. */
static const uint8_t nothing[1];

static void compressed_over(struct arpc_call *call)
{
    arpc_inflate_free(call->in.inflate);
    call->in.inflate = NULL;
}

static void compressed_begins(struct arpc_call *call)
{
    AMP_ASSERT(call->in.inflate == NULL);
    amp_buf_init(&call->in.message, call->in.max_message);
    call->in.inflate = arpc_inflate_new();
    if (call->in.inflate == NULL)
        arpc_call_fault(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "no memory to inflate a message");
    else
        message_changed(call); /* the rest of it may never come */
}

static void compressed_continues(struct arpc_call *call, const struct arpc_piece *piece)
{
    char text[128];
    struct arpc_link *link = call->link;
    if (!arpc_host_may_inflate(link->host, link->watch.limits, arpc_link_now(link))) {
        compressed_over(call);
        arpc_link_count(link, ARPC_ABUSE_INFLATED);
        arpc_call_fault(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "this address's messages inflate to too much; wait");
        return;
    }
    size_t before = call->in.message.size;
    int rc = arpc_inflate_take(call->in.inflate, piece->data, piece->size, &call->in.message);
    arpc_host_inflated(link->host, piece->size, call->in.message.size - before);
    if (rc == 0) {
        message_changed(call);
        return;
    }
    compressed_over(call);
    if (rc == AMP_EINVAL) {
        arpc_call_fault(call, ARPC_STATUS_INTERNAL,
                        "a compressed message is not gzip, or does not end where it should");
    } else if (rc == AMP_EEXHAUSTED) {
        (void)snprintf(text, sizeof text, "message is over the limit of %zu bytes once it is inflated",
                       call->in.max_message);
        if (call->server)
            arpc_call_bad_request(call);
        arpc_call_fault(call, ARPC_STATUS_RESOURCE_EXHAUSTED, text);
    } else {
        arpc_call_fault(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "no memory to inflate a message");
    }
}

/* Whether the message is whole; then it lies in call->message. */
static bool compressed_ends(struct arpc_call *call)
{
    bool whole = arpc_inflate_is_whole(call->in.inflate);
    compressed_over(call);
    call->in.message_size = call->in.message.size;
    if (!whole)
        arpc_call_fault(call, ARPC_STATUS_INTERNAL, "a compressed message ends too early");
    return whole;
}

static void message_begins(struct arpc_call *call, const struct arpc_piece *piece)
{
    if (piece->flag > 1) {
        arpc_call_fault(call, ARPC_STATUS_INTERNAL, "a message's compressed flag is neither 0 nor 1");
        return;
    }
    if (piece->flag == 1 && call->head.encoding != ARPC_ENCODING_GZIP) {
        arpc_call_fault(call, ARPC_STATUS_INTERNAL, "compressed message, but grpc-encoding is not gzip");
        return;
    }
    if (call->in.single_inbound && call->in.messages > 0) {
        arpc_call_fault(call, call->server ? ARPC_STATUS_UNIMPLEMENTED : ARPC_STATUS_INTERNAL,
                        "more than one message where exactly one is expected");
        return;
    }
    if (piece->size > call->in.max_message) {
        char text[128];
        (void)snprintf(text, sizeof text, "message of %zu bytes is over the limit of %zu", piece->size,
                       call->in.max_message);
        if (call->server)
            arpc_call_bad_request(call);
        arpc_call_fault(call, ARPC_STATUS_RESOURCE_EXHAUSTED, text);
        return;
    }
    call->in.messages++;
    call->in.message_size = piece->size;
    call->in.whole = NULL;
    if (piece->flag == 1)
        compressed_begins(call);
    else if (call->handler->message != NULL)
        amp_buf_init(&call->in.message, piece->size);
    else if (call->handler->message_begin != NULL)
        call->handler->message_begin(call, piece->size);
}

static void message_continues(struct arpc_call *call, const struct arpc_piece *piece)
{
    if (call->in.inflate != NULL) {
        compressed_continues(call, piece);
        return;
    }
    if (call->handler->message == NULL) {
        if (call->handler->message_bytes != NULL)
            call->handler->message_bytes(call, piece->data, piece->size);
        message_changed(call);
        return;
    }
    /* Whole in the receive buffer, and delivered at once: no need to collect it. */
    if (piece->size == call->in.message_size && !call->in.single_inbound) {
        call->in.whole = piece->data;
        return;
    }
    if (amp_buf_append(&call->in.message, piece->data, piece->size) != 0)
        arpc_call_fault(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "no memory for the message");
    else
        message_changed(call);
}

void arpc_call_deliver(struct arpc_call *call)
{
    const uint8_t *data = call->in.whole != NULL          ? call->in.whole
                          : call->in.message.data != NULL ? call->in.message.data
                                                          : nothing;
    call->handler->message(call, data, call->in.message_size);
    arpc_call_forget_message(call);
}

/* One callback of an inflated message, for a handler that takes pieces. */
static void deliver_stage(struct arpc_call *call)
{
    const struct arpc_handler *handler = call->handler;
    enum arpc_stage stage = call->in.stage;
    call->in.stage = stage == ARPC_STAGE_END ? ARPC_STAGE_NONE : stage + 1;
    if (stage == ARPC_STAGE_BEGIN && handler->message_begin != NULL)
        handler->message_begin(call, call->in.message_size);
    if (stage == ARPC_STAGE_BYTES && handler->message_bytes != NULL && call->in.message_size > 0)
        handler->message_bytes(call, call->in.message.data, call->in.message_size);
    if (stage == ARPC_STAGE_END) {
        amp_buf_close(&call->in.message);
        if (handler->message_end != NULL)
            handler->message_end(call);
    }
    message_changed(call);
}

static void message_ends(struct arpc_call *call)
{
    bool compressed = call->in.inflate != NULL;
    if (compressed && !compressed_ends(call))
        return;
    if (call->counted != NULL)
        call->counted->received++;
    if (compressed && call->handler->message == NULL) {
        call->in.stage = ARPC_STAGE_BEGIN;
    } else if (call->handler->message == NULL) {
        if (call->handler->message_end != NULL)
            call->handler->message_end(call);
        message_changed(call);
    } else if (!call->in.single_inbound) {
        arpc_call_deliver(call);
    }
}

/* Delivers until the user pauses or ends the call; returns how many bytes were used up. */
static size_t deliver(struct arpc_call *call, const uint8_t *data, size_t size)
{
    size_t done = 0;
    while (is_reading(call) && !call->in.paused) {
        struct arpc_piece piece;
        if (call->in.stage != ARPC_STAGE_NONE) {
            deliver_stage(call);
            continue;
        }
        done += arpc_deframe(&call->in.deframer, data + done, size - done, &piece);
        switch (piece.kind) {
        case ARPC_PIECE_NONE:
            return done;
        case ARPC_PIECE_BEGIN:
            message_begins(call, &piece);
            break;
        case ARPC_PIECE_BYTES:
            message_continues(call, &piece);
            break;
        case ARPC_PIECE_END:
            message_ends(call);
            break;
        }
    }
    return is_reading(call) ? done : size;
}

/*
 * A call has more or fewer bytes buffered. One that has not moved bulk data yet has a small window, which a connection
 * may have filled on all its streams, and what it waits for may never come: such calls share a budget. What the others
 * hold is their window.
 */
static void buffered_changed(struct arpc_call *call)
{
    struct arpc_link *link = call->link;
    int64_t amount = charge_of(call->in.window_grown || arpc_call_is_over(call) ? 0 : call->in.buffered.size);
    if (amount == call->in.waiting.amount)
        return;
    int64_t now_ms = arpc_link_now(link);
    arpc_charge_set(&call->in.waiting, &link->host->waiting, amount, now_ms);
    struct arpc_charge *charge;
    while ((charge = arpc_charge_excess(&call->in.waiting, now_ms)) != NULL) {
        struct arpc_call *other = AMP_CONTAINER(charge, struct arpc_call, in.waiting);
        arpc_charge_set(charge, charge->account, 0, now_ms); /* the bytes go with the next flush */
        arpc_link_count(other->link, ARPC_ABUSE_WAITING);
        arpc_call_cancel(other, ARPC_STATUS_RESOURCE_EXHAUSTED,
                         "calls of this address that wait take too much memory: make fewer at a time");
    }
}

size_t arpc_call_receive(struct arpc_call *call, const uint8_t *data, size_t size)
{
    if (!is_reading(call))
        return size;
    size_t done = call->in.buffered.size > 0 ? 0 : deliver(call, data, size);
    if (done == size)
        return done;
    if (amp_buf_append(&call->in.buffered, data + done, size - done) != 0) {
        arpc_call_fault(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "no memory for the bytes of a paused call");
        return size;
    }
    call->link->buffered += size - done;
    buffered_changed(call);
    return done;
}

uint8_t *arpc_call_receive_buffer(struct arpc_call *call, size_t *size)
{
    const struct arpc_deframer *deframer = &call->in.deframer;
    bool passes = is_reading(call) && !call->in.paused && call->in.buffered.size == 0;
    bool plain = deframer->in_message && call->in.inflate == NULL && call->in.stage == ARPC_STAGE_NONE;
    if (!passes || !plain || call->handler->message != NULL || call->handler->message_buffer == NULL)
        return NULL;
    uint8_t *buffer = call->handler->message_buffer(call, size);
    if (buffer != NULL && *size > deframer->left)
        *size = deframer->left;
    return buffer;
}

size_t arpc_call_receive_buffered(struct arpc_call *call)
{
    size_t size = call->in.buffered.size;
    size_t done = deliver(call, size > 0 ? call->in.buffered.data : nothing, size);
    amp_buf_consume(&call->in.buffered, done);
    if (call->in.buffered.size == 0)
        amp_buf_close(&call->in.buffered);
    AMP_ASSERT(call->link->buffered >= done);
    call->link->buffered -= done;
    buffered_changed(call);
    return done;
}

static void server_end(struct arpc_call *call)
{
    if (call->in.single_inbound && call->in.messages == 0) {
        arpc_call_fault(call, ARPC_STATUS_UNIMPLEMENTED, "no message where exactly one is expected");
        return;
    }
    if (call->in.single_inbound && call->handler->message != NULL)
        arpc_call_deliver(call);
    if (is_reading(call) && call->handler->half_close != NULL)
        call->handler->half_close(call);
}

void arpc_call_receive_end(struct arpc_call *call)
{
    bool ended_before = call->state == ARPC_CALL_REMOTE_ENDED || call->state == ARPC_CALL_BOTH_ENDED;
    /* Resumed: the handler has not been told yet what it is to have before the end. */
    bool held = call->in.paused || call->in.resumed || call->in.buffered.size > 0;
    if (!call->in.end_seen || held || ended_before || !is_reading(call))
        return;
    if (!arpc_deframer_is_clean(&call->in.deframer) && (call->server || call->head.grpc_status == ARPC_STATUS_OK)) {
        arpc_call_fault(call, ARPC_STATUS_INTERNAL, "the stream ended inside a message");
        return;
    }
    if (!call->server && arpc_request_again(call))
        return;
    arpc_call_set_state(call, call->state == ARPC_CALL_OPEN ? ARPC_CALL_REMOTE_ENDED : ARPC_CALL_BOTH_ENDED);
    if (call->server)
        server_end(call);
    else
        arpc_request_end(call);
}

void arpc_call_pause(struct arpc_call *call)
{
    call->in.paused = true;
}

void arpc_call_resume(struct arpc_call *call)
{
    if (!call->in.paused)
        return;
    call->in.paused = false;
    call->in.resumed = true;
    arpc_call_watch_anew(call);
    arpc_call_mark_dirty(call);
}
