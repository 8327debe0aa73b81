/*
 * The sending half of a call: messages into batches of iovecs.
 *
 * A body is never copied: its slot in the batch points to where it lies, and its release callback waits until no batch
 * points there. Should the owner need the memory back earlier (arpc_call_blank), the slots that point there are turned
 * to a page of zeros instead: nothing but slots ever points to a body, and only until the bytes are with the kernel.
 * Small pieces (frame headers, prefixes) are copied into the batch's scratch, where neighbours merge into one slot.
 */
#include "rpc/h2/call.h"

#include "base/assert.h"
#include "base/err.h"
#include "rpc/arpc_client.h"
#include "rpc/arpc_server.h"
#include "rpc/arpc_stats.h"
#include "rpc/h2/abuse.h"
#include "rpc/wire/inflate.h"

#include <stdlib.h>
#include <string.h>

/* Up to this size a copy costs less than a slot of its own. */
#define COPY_MAX 256

/*
 * Messages of this size are compressed where a client asks for it and the server does it: below, the gain is less than
 * a packet; above, the loop's thread would be held up for more than some milliseconds. Tensors, which are sent by
 * reference, never are.
 */
#define COMPRESS_MIN ((size_t)1 << 10)
#define COMPRESS_MAX ((size_t)1 << 20)

/* Most messages that one DATA frame takes from, so that the slots and the scratch it needs are bounded. */
#define FRAME_MESSAGES 32

_Static_assert(ARPC_FRAME_SCRATCH >= FRAME_MESSAGES * 2 * COPY_MAX + 9 + (16 << 10) + 9, "both kinds of frame fit");
_Static_assert(ARPC_BATCH_SCRATCH >= 2 * ARPC_FRAME_SCRATCH, "one frame is no whole batch");

/* What goes in place of a body that was taken back: one piece is never longer. Never written to. */
static uint8_t zeros[ARPC_FRAME_OUT_MAX];

/* The bytes of a message if all of it is a copy; 0 if its body is lent, although its prefix and head are copies. */
static size_t copied_of(const struct arpc_out *out)
{
    return out->head_size == out->size ? out->size : 0;
}

/* A call has more or fewer copies to send. */
static void charge_copies(struct arpc_call *call)
{
    if (call->link == NULL) /* GONE, and charged with nothing any more */
        return;
    int64_t amount = arpc_call_is_over(call) ? 0 : (int64_t)call->out.copied;
    arpc_charge_set(&call->out.copies, &call->link->host->unsent, amount, arpc_link_now(call->link));
}

static void out_release(struct arpc_out *out)
{
    struct arpc_call *call = out->call;
    call->out.copied -= copied_of(out);
    charge_copies(call);
    if (out->release_cb != NULL)
        out->release_cb(out->release_arg);
    free(out);
    arpc_call_unref(call);
}

/* A client may fill the connection by one call: what it sends is its own. SIZE_MAX: no limit. */
static size_t stream_limit(const struct arpc_call *call)
{
    size_t most = (size_t)call->link->watch.limits->stream_queued;
    return call->server && most > 0 ? most : SIZE_MAX;
}

static bool fits_in(size_t queued, size_t size, size_t most)
{
    return queued == 0 || (queued < most && size <= most - queued);
}

/*
 * Whether a call may send one message however large it is, and however full the connection: a server's with nothing
 * queued, so that slow streams do not keep the answers from the others.
 */
static bool is_first(const struct arpc_call *call)
{
    return call->server && call->out.queued == 0;
}

static bool link_has_room(const struct arpc_link *link)
{
    return link->queued <= link->config->max_queued / 2;
}

bool arpc_call_has_room(const struct arpc_call *call)
{
    return is_first(call) || (link_has_room(call->link) && call->out.queued <= stream_limit(call) / 2);
}

/*
 * Wakes the calls whose message was refused, when half of the limit is free again. Each leaves the list only when it is
 * told, and goes to its end when it is refused again, so that all have their turn.
 */
static void wake_refused(struct arpc_link *link)
{
    if (!link_has_room(link))
        return;
    AMP_LIST_EACH(it, safe, &link->refused)
    {
        struct arpc_call *call = AMP_CONTAINER(it, struct arpc_call, in_refused);
        if (arpc_call_has_room(call))
            arpc_call_mark_event(call);
    }
}

/*
 * Drops the messages in the queue behind its first `keep` bytes. copies_only: of these only the ones that are copies
 * and have no release callback.
 */
static void drop_behind(struct arpc_call *call, size_t keep, bool copies_only)
{
    size_t kept = 0;
    AMP_LIST_EACH(it, safe, &call->out.messages)
    {
        struct arpc_out *out = AMP_CONTAINER(it, struct arpc_out, node);
        size_t rest = out->size - out->given;
        if (kept < keep) {
            kept += rest;
            continue;
        }
        if (copies_only && (copied_of(out) == 0 || out->release_cb != NULL))
            continue;
        amp_list_remove(&out->node);
        call->out.unsent -= rest;
        call->out.queued -= rest;
        call->link->queued -= rest;
        if (out->pins == 0)
            out_release(out);
    }
    wake_refused(call->link);
}

void arpc_out_drop(struct arpc_call *call)
{
    drop_behind(call, 0, false);
}

void arpc_out_drop_useless(struct arpc_call *call)
{
    drop_behind(call, call->out.framed, false);
}

/*
 * All calls of a server share a budget of copies, however slowly their peers read. The oldest of the address that has
 * most ends if that is too much, and its copies go at once: its connection may be long in having its turn.
 */
static void end_excess(struct arpc_call *call)
{
    int64_t now_ms = arpc_link_now(call->link);
    struct arpc_charge *charge;
    while ((charge = arpc_charge_excess(&call->out.copies, now_ms)) != NULL) {
        struct arpc_call *other = AMP_CONTAINER(charge, struct arpc_call, out.copies);
        arpc_charge_set(charge, charge->account, 0, now_ms);
        arpc_link_count(other->link, ARPC_ABUSE_UNSENT);
        arpc_call_cancel(other, ARPC_STATUS_RESOURCE_EXHAUSTED,
                         "answers to this address that have not left take too much memory: read them, or ask for less");
        drop_behind(other, other->out.framed, true);
    }
}

/* Queues one message as it is; `flag` goes in front of its length. */
static int send_as_is(struct arpc_call *call, uint8_t flag, const void *head, size_t head_size, const void *body,
                      size_t body_size, arpc_release_cb release_cb, void *release_arg)
{
    if (head_size > UINT32_MAX || body_size > UINT32_MAX - head_size)
        return AMP_EINVAL;
    size_t copied = head_size + (release_cb == NULL ? body_size : 0);
    size_t size = ARPC_PREFIX_SIZE + head_size + body_size;
    /* A single message goes however large it is: else one over the limit could never be sent. */
    bool fits = is_first(call) || (fits_in(call->link->queued, size, call->link->config->max_queued) &&
                                   fits_in(call->out.queued, size, stream_limit(call)));
    if (!fits) {
        if (amp_list_empty(&call->in_refused))
            amp_list_push(&call->link->refused, &call->in_refused);
        return AMP_EEXHAUSTED;
    }
    struct arpc_out *out = malloc(sizeof *out + ARPC_PREFIX_SIZE + copied);
    if (out == NULL)
        return AMP_ENOMEM;
    *out = (struct arpc_out){.call = arpc_call_ref(call), .size = size};
    arpc_prefix_write(out->head, flag, (uint32_t)(head_size + body_size));
    if (head_size > 0)
        memcpy(out->head + ARPC_PREFIX_SIZE, head, head_size);
    if (release_cb == NULL && body_size > 0)
        memcpy(out->head + ARPC_PREFIX_SIZE + head_size, body, body_size);
    out->head_size = ARPC_PREFIX_SIZE + copied;
    out->body = body;
    out->release_cb = release_cb;
    out->release_arg = release_arg;
    amp_list_push(&call->out.messages, &out->node);
    if (call->out.unsent == 0) {
        arpc_call_begin_progress(call);
        arpc_link_due(call->link, arpc_after(call->out.progress_ms, call->link->config->write_stall_ms));
    }
    call->out.unsent += size;
    call->out.queued += size;
    call->link->queued += size;
    call->out.was_high = call->out.was_high || call->out.queued > ARPC_LOW_WATER;
    if (call->counted != NULL)
        call->counted->sent++;
    call->out.copied += copied_of(out);
    charge_copies(call);
    end_excess(call);
    arpc_call_mark_dirty(call);
    return 0;
}

int arpc_call_send(struct arpc_call *call, const void *head, size_t head_size, const void *body, size_t body_size,
                   arpc_release_cb release_cb, void *release_arg)
{
    if (call->out.ended || arpc_call_is_over(call))
        return AMP_ESTATE;
    bool may = call->out.compress && body_size == 0 && head_size >= COMPRESS_MIN && head_size <= COMPRESS_MAX;
    if (may) {
        struct amp_buf packed;
        amp_buf_init(&packed, head_size - 1);
        int rc = arpc_deflate(head, head_size, &packed);
        if (rc == 0)
            rc = send_as_is(call, 1, packed.data, packed.size, NULL, 0, release_cb, release_arg);
        else
            may = false; /* it would not be smaller, or there is no memory to try */
        amp_buf_close(&packed);
        if (may)
            return rc;
    }
    return send_as_is(call, 0, head, head_size, body, body_size, release_cb, release_arg);
}

size_t arpc_call_queued(const struct arpc_call *call)
{
    return call->out.queued;
}

/* Adds bytes where they lie. */
static void batch_add(struct arpc_batch *batch, const void *data, size_t size)
{
    struct iovec *last = batch->count > 0 ? &batch->slots[batch->count - 1] : NULL;
    batch->bytes += size;
    if (last != NULL && (const uint8_t *)last->iov_base + last->iov_len == data) {
        last->iov_len += size;
        return;
    }
    AMP_ASSERT(batch->count < ARPC_BATCH_SLOTS);
    batch->slots[batch->count++] = (struct iovec){(void *)(uintptr_t)data, size};
}

void *arpc_batch_scratch(struct arpc_batch *batch, const void *data, size_t size)
{
    AMP_ASSERT(size <= ARPC_BATCH_SCRATCH - batch->scratch_used);
    void *copy = batch->scratch + batch->scratch_used;
    memcpy(copy, data, size);
    batch->scratch_used += size;
    batch_add(batch, copy, size);
    return copy;
}

static void give_piece(struct arpc_batch *batch, const uint8_t *data, size_t size)
{
    if (size <= COPY_MAX)
        (void)arpc_batch_scratch(batch, data, size);
    else
        batch_add(batch, data, size);
}

/* Puts up to `limit` bytes of one message into the batch; returns how many. */
static size_t give_out(struct arpc_out *out, struct arpc_batch *batch, size_t limit)
{
    size_t total = 0;
    if (out->given < out->head_size) {
        size_t size = out->head_size - out->given < limit ? out->head_size - out->given : limit;
        give_piece(batch, out->head + out->given, size);
        out->given += size;
        total += size;
    }
    if (total < limit && out->given < out->size) {
        size_t size = out->size - out->given < limit - total ? out->size - out->given : limit - total;
        give_piece(batch, out->blank ? zeros : out->body + (out->given - out->head_size), size);
        out->given += size;
        total += size;
    }
    return total;
}

/*
 * What left has to be kept as long as the call may begin again; bodies of the user's cannot be, and there are bounds.
 */
static void retain(struct arpc_call *call, const struct arpc_out *out, size_t size)
{
    struct arpc_link_config *config = call->link->config;
    if (call->attempt.retry.committed)
        return;
    call->out.retained += size;
    config->retained += size;
    if (out->release_cb != NULL || call->out.retained > config->max_retained_call ||
        config->retained > config->max_retained)
        arpc_call_commit(call);
}

void arpc_out_forget(struct arpc_call *call)
{
    call->link->config->retained -= call->out.retained;
    call->out.retained = 0;
    for (struct amp_list *it = amp_list_shift(&call->out.sent); it != NULL; it = amp_list_shift(&call->out.sent)) {
        struct arpc_out *out = AMP_CONTAINER(it, struct arpc_out, node);
        if (out->pins == 0) /* else its batch does it */
            out_release(out);
    }
}

void arpc_out_rewind(struct arpc_call *call)
{
    struct amp_list rest;
    AMP_ASSERT(call->out.batch == NULL && call->out.queued == call->out.unsent);
    amp_list_init(&rest);
    for (struct amp_list *it = amp_list_shift(&call->out.messages); it != NULL;
         it = amp_list_shift(&call->out.messages))
        amp_list_push(&rest, it);
    for (struct amp_list *it = amp_list_shift(&call->out.sent); it != NULL; it = amp_list_shift(&call->out.sent))
        amp_list_push(&call->out.messages, it);
    for (struct amp_list *it = amp_list_shift(&rest); it != NULL; it = amp_list_shift(&rest))
        amp_list_push(&call->out.messages, it);
    size_t size = 0;
    for (struct amp_list *it = call->out.messages.next; it != &call->out.messages; it = it->next) {
        struct arpc_out *out = AMP_CONTAINER(it, struct arpc_out, node);
        AMP_ASSERT(out->pins == 0);
        out->given = 0;
        size += out->size;
    }
    call->link->queued += size - call->out.queued;
    call->out.queued = size;
    call->out.unsent = size;
    call->out.was_high = call->out.was_high || call->out.queued > ARPC_LOW_WATER;
    call->link->config->retained -= call->out.retained;
    call->out.retained = 0;
}

void arpc_out_give(struct arpc_call *call, struct arpc_batch *batch, size_t size)
{
    call->out.framed = 0;
    call->out.unsent -= size;
    arpc_call_progress(call, size);
    while (size > 0) {
        AMP_ASSERT(!amp_list_empty(&call->out.messages));
        struct arpc_out *out = AMP_CONTAINER(call->out.messages.next, struct arpc_out, node);
        struct arpc_batch_pin *pin = batch->pin_count > 0 ? &batch->pins[batch->pin_count - 1] : NULL;
        if (pin == NULL || pin->out != out) {
            AMP_ASSERT(batch->pin_count < ARPC_BATCH_SLOTS);
            pin = &batch->pins[batch->pin_count++];
            *pin = (struct arpc_batch_pin){.out = out, .first_slot = batch->count};
            out->pins++;
            AMP_ASSERT(call->out.batch == NULL || call->out.batch == batch);
            call->out.batch = batch;
        }
        size_t given = give_out(out, batch, size);
        pin->bytes += given;
        size -= given;
        retain(call, out, given);
        if (out->given < out->size)
            continue;
        amp_list_remove(&out->node);
        if (!call->attempt.retry.committed)
            amp_list_push(&call->out.sent, &out->node);
    }
}

size_t arpc_out_slots(struct arpc_call *call, size_t limit, size_t *slots)
{
    size_t total = 0;
    size_t messages = 0;
    for (struct amp_list *it = call->out.messages.next;
         it != &call->out.messages && total < limit && messages < FRAME_MESSAGES; it = it->next) {
        const struct arpc_out *out = AMP_CONTAINER(it, struct arpc_out, node);
        total += out->size - out->given;
        messages++;
    }
    *slots = 2 * messages + 1;
    return total < limit ? total : limit;
}

void arpc_batch_done(struct arpc_link *link, struct arpc_batch *batch)
{
    /*
     * Before any release callback, which may blank other calls of this batch: pins below then point to freed messages.
     */
    for (size_t i = 0; i < batch->pin_count; i++)
        batch->pins[i].out->call->out.batch = NULL;
    for (size_t i = 0; i < batch->pin_count; i++) {
        struct arpc_out *out = batch->pins[i].out;
        struct arpc_call *call = out->call;
        call->out.queued -= batch->pins[i].bytes;
        link->queued -= batch->pins[i].bytes;
        bool waits = !amp_list_empty(&call->in_refused);
        if (call->attempt.again || (call->out.was_high && call->out.queued <= ARPC_LOW_WATER) ||
            (waits && is_first(call)))
            arpc_call_mark_event(call);
        /* Not in its call's queue any more: all given, or dropped. */
        if (--out->pins == 0 && amp_list_empty(&out->node))
            out_release(out);
    }
    batch->count = 0;
    batch->bytes = 0;
    batch->pin_count = 0;
    batch->scratch_used = 0;
    wake_refused(link);
}

/* Turns the slots of one pin that point into the body to zeros. */
static void blank_slots(struct arpc_batch *batch, size_t pin)
{
    const struct arpc_out *out = batch->pins[pin].out;
    uintptr_t body = (uintptr_t)out->body;
    size_t end = pin + 1 < batch->pin_count ? batch->pins[pin + 1].first_slot : batch->count;
    for (size_t i = batch->pins[pin].first_slot; i < end; i++) {
        struct iovec *slot = &batch->slots[i];
        if ((uintptr_t)slot->iov_base - body >= out->size - out->head_size)
            continue; /* a frame's or a message's head */
        AMP_ASSERT(slot->iov_len <= sizeof zeros);
        slot->iov_base = zeros;
    }
}

/* Gives the memory of a blank message back, once. */
static void release_blank(struct arpc_out *out)
{
    arpc_release_cb release_cb = out->release_cb;
    if (!out->blank || release_cb == NULL)
        return;
    out->release_cb = NULL;
    release_cb(out->release_arg);
}

/* The first blank message in the queue whose memory is still to be given back. NULL: none. */
static struct arpc_out *find_blank(struct arpc_call *call)
{
    for (struct amp_list *it = call->out.messages.next; it != &call->out.messages; it = it->next) {
        struct arpc_out *out = AMP_CONTAINER(it, struct arpc_out, node);
        if (out->blank && out->release_cb != NULL)
            return out;
    }
    return NULL;
}

void arpc_call_blank(struct arpc_call *call)
{
    struct arpc_batch *batch = call->out.batch;
    size_t pins = batch != NULL ? batch->pin_count : 0;
    for (size_t i = 0; i < pins; i++) {
        struct arpc_out *out = batch->pins[i].out;
        if (out->call != call || out->release_cb == NULL)
            continue;
        out->blank = true;
        blank_slots(batch, i);
    }
    AMP_LIST_EACH(it, safe, &call->out.messages)
    {
        struct arpc_out *out = AMP_CONTAINER(it, struct arpc_out, node);
        out->blank = out->blank || out->release_cb != NULL;
    }
    /* Nothing points to the bodies any more: from here on the callbacks may do as they like. */
    arpc_call_ref(call);
    for (size_t i = 0; i < pins; i++)
        if (batch->pins[i].out->call == call)
            release_blank(batch->pins[i].out);
    for (struct arpc_out *out = find_blank(call); out != NULL; out = find_blank(call))
        release_blank(out);
    arpc_call_unref(call);
}

void arpc_call_half_close(struct arpc_call *call)
{
    if (call->out.ended || arpc_call_is_over(call))
        return;
    call->out.ended = true;
    arpc_call_set_state(call, call->state == ARPC_CALL_OPEN ? ARPC_CALL_LOCAL_ENDED : ARPC_CALL_BOTH_ENDED);
    arpc_call_mark_dirty(call);
}
