/*
 * The receiving half of a call: DATA bytes into messages.
 *
 * Bytes are delivered as they come, with pointers into the receive buffer. While the user has paused the call they are
 * held; the stream's window is then not reopened, so that at most a window of them can come.
 *
 * A compressed message is inflated as it comes, into memory that the method's largest message bounds, and delivered when it
 * is whole: its size is not known before.
 */
#include "rpc/h2/call.h"

#include "base/assert.h"
#include "rpc/arpc_stats.h"
#include "rpc/wire/inflate.h"

#include <stdio.h>

static bool is_reading(const struct arpc_call *call)
{
    return !arpc_call_is_deaf(call) && !(call->server && call->ended);
}

/* Where "no bytes" are. */
static const uint8_t nothing[1];

static void compressed_over(struct arpc_call *call)
{
    arpc_inflate_free(call->inflate);
    call->inflate = NULL;
}

static void compressed_begins(struct arpc_call *call)
{
    AMP_ASSERT(call->inflate == NULL);
    amp_buf_init(&call->message, call->max_message);
    call->inflate = arpc_inflate_new();
    if (call->inflate == NULL)
        arpc_call_fault(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "no memory to inflate a message");
}

static void compressed_continues(struct arpc_call *call, const struct arpc_piece *piece)
{
    char text[128];
    struct arpc_watch *watch = &call->link->watch;
    if (!arpc_watch_may_inflate(watch, arpc_link_now(call->link))) {
        compressed_over(call);
        arpc_call_fault(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "this connection's messages inflate to too much; wait");
        return;
    }
    size_t before = call->message.size;
    int rc = arpc_inflate_take(call->inflate, piece->data, piece->size, &call->message);
    arpc_watch_inflated(watch, piece->size, call->message.size - before);
    if (rc == 0)
        return;
    compressed_over(call);
    if (rc == AMP_EINVAL) {
        arpc_call_fault(call, ARPC_STATUS_INTERNAL,
                        "a compressed message is not gzip, or does not end where it should");
    } else if (rc == AMP_EEXHAUSTED) {
        (void)snprintf(text, sizeof text, "message is over the limit of %zu bytes once it is inflated",
                       call->max_message);
        if (call->server)
            arpc_call_nonsense(call);
        arpc_call_fault(call, ARPC_STATUS_RESOURCE_EXHAUSTED, text);
    } else {
        arpc_call_fault(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "no memory to inflate a message");
    }
}

/* Whether the message is whole; then it lies in call->message. */
static bool compressed_ends(struct arpc_call *call)
{
    bool whole = arpc_inflate_is_whole(call->inflate);
    compressed_over(call);
    call->message_size = call->message.size;
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
    if (call->single_inbound && call->messages > 0) {
        arpc_call_fault(call, call->server ? ARPC_STATUS_UNIMPLEMENTED : ARPC_STATUS_INTERNAL,
                        "more than one message where exactly one is expected");
        return;
    }
    if (piece->size > call->max_message) {
        char text[128];
        (void)snprintf(text, sizeof text, "message of %zu bytes is over the limit of %zu", piece->size,
                       call->max_message);
        if (call->server)
            arpc_call_nonsense(call);
        arpc_call_fault(call, ARPC_STATUS_RESOURCE_EXHAUSTED, text);
        return;
    }
    call->messages++;
    call->message_size = piece->size;
    call->whole = NULL;
    if (piece->flag == 1)
        compressed_begins(call);
    else if (call->handler->message != NULL)
        amp_buf_init(&call->message, piece->size);
    else if (call->handler->message_begin != NULL)
        call->handler->message_begin(call, piece->size);
}

static void message_continues(struct arpc_call *call, const struct arpc_piece *piece)
{
    if (call->inflate != NULL) {
        compressed_continues(call, piece);
        return;
    }
    if (call->handler->message == NULL) {
        if (call->handler->message_bytes != NULL)
            call->handler->message_bytes(call, piece->data, piece->size);
        return;
    }
    /* Whole in the receive buffer, and delivered at once: no need to collect it. */
    if (piece->size == call->message_size && !call->single_inbound) {
        call->whole = piece->data;
        return;
    }
    if (amp_buf_append(&call->message, piece->data, piece->size) != 0)
        arpc_call_fault(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "no memory for the message");
}

void arpc_call_deliver(struct arpc_call *call)
{
    const uint8_t *data = call->whole != NULL ? call->whole : call->message.data != NULL ? call->message.data : nothing;
    call->handler->message(call, data, call->message_size);
    amp_buf_close(&call->message);
}

/* One callback of an inflated message, for a handler that takes pieces. */
static void tell_stage(struct arpc_call *call)
{
    const struct arpc_handler *handler = call->handler;
    enum arpc_stage stage = call->stage;
    call->stage = stage == ARPC_STAGE_END ? ARPC_STAGE_NONE : stage + 1;
    if (stage == ARPC_STAGE_BEGIN && handler->message_begin != NULL)
        handler->message_begin(call, call->message_size);
    if (stage == ARPC_STAGE_BYTES && handler->message_bytes != NULL && call->message_size > 0)
        handler->message_bytes(call, call->message.data, call->message_size);
    if (stage != ARPC_STAGE_END)
        return;
    amp_buf_close(&call->message);
    if (handler->message_end != NULL)
        handler->message_end(call);
}

static void message_ends(struct arpc_call *call)
{
    bool compressed = call->inflate != NULL;
    if (compressed && !compressed_ends(call))
        return;
    if (call->counted != NULL)
        call->counted->received++;
    if (compressed && call->handler->message == NULL) {
        call->stage = ARPC_STAGE_BEGIN;
    } else if (call->handler->message == NULL) {
        if (call->handler->message_end != NULL)
            call->handler->message_end(call);
    } else if (!call->single_inbound) {
        arpc_call_deliver(call);
    }
}

/* Delivers until the user pauses or ends the call; returns how many bytes were used up. */
static size_t deliver(struct arpc_call *call, const uint8_t *data, size_t size)
{
    size_t done = 0;
    while (is_reading(call) && !call->paused) {
        struct arpc_piece piece;
        if (call->stage != ARPC_STAGE_NONE) {
            tell_stage(call);
            continue;
        }
        done += arpc_deframe(&call->deframer, data + done, size - done, &piece);
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

size_t arpc_call_receive(struct arpc_call *call, const uint8_t *data, size_t size)
{
    if (!is_reading(call))
        return size;
    size_t done = call->held.size > 0 ? 0 : deliver(call, data, size);
    if (done == size)
        return done;
    if (amp_buf_append(&call->held, data + done, size - done) != 0) {
        arpc_call_fault(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "no memory for the bytes of a paused call");
        return size;
    }
    call->link->held += size - done;
    return done;
}

uint8_t *arpc_call_place(struct arpc_call *call, size_t *size)
{
    const struct arpc_deframer *deframer = &call->deframer;
    bool passes = is_reading(call) && !call->paused && call->held.size == 0;
    bool plain = deframer->in_message && call->inflate == NULL && call->stage == ARPC_STAGE_NONE;
    if (!passes || !plain || call->handler->message != NULL || call->handler->message_place == NULL)
        return NULL;
    uint8_t *place = call->handler->message_place(call, size);
    if (place != NULL && *size > deframer->left)
        *size = deframer->left;
    return place;
}

size_t arpc_call_receive_held(struct arpc_call *call)
{
    size_t size = call->held.size;
    size_t done = deliver(call, size > 0 ? call->held.data : nothing, size);
    amp_buf_consume(&call->held, done);
    if (call->held.size == 0)
        amp_buf_close(&call->held);
    AMP_ASSERT(call->link->held >= done);
    call->link->held -= done;
    return done;
}

static void server_end(struct arpc_call *call)
{
    if (call->single_inbound && call->messages == 0) {
        arpc_call_fault(call, ARPC_STATUS_UNIMPLEMENTED, "no message where exactly one is expected");
        return;
    }
    if (call->single_inbound && call->handler->message != NULL)
        arpc_call_deliver(call);
    if (is_reading(call) && call->handler->half_close != NULL)
        call->handler->half_close(call);
}

void arpc_call_receive_end(struct arpc_call *call)
{
    bool ended_before = call->state == ARPC_CALL_REMOTE_ENDED || call->state == ARPC_CALL_BOTH_ENDED;
    if (!call->end_seen || call->paused || call->held.size > 0 || ended_before || !is_reading(call))
        return;
    if (!arpc_deframer_is_clean(&call->deframer) && (call->server || call->head.grpc_status == ARPC_STATUS_OK)) {
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
    call->paused = true;
}

void arpc_call_resume(struct arpc_call *call)
{
    if (!call->paused)
        return;
    call->paused = false;
    call->resumed = true;
    arpc_call_mark_dirty(call);
}
