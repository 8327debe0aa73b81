/*
 * A client's calls between connections: those that wait for one, and those that begin again.
 *
 * A call whose attempt has failed, and that is to be tried again (wire/retry.h decides), is `again`: it ignores its
 * stream. When that stream is over and no batch has bytes of the call any more, it moves to the channel's parking link:
 * the attempt is forgotten, and all messages are to be sent again. From there it goes on like a call that never had a
 * connection. Its user notices nothing, since no part of a response was delivered before.
 *
 * What is kept for that: the messages that were copied, up to bounds for the call and for the channel. A message that
 * is sent from the user's memory commits its call when its first byte leaves, because that memory goes back to the
 * user.
 *
 * A call whose whole answer has come, but whose user has paused it, outlives its connection here too: its stream is
 * over, and what is buffered is delivered when the user goes on.
 */
#include "rpc/h2/call.h"

#include "base/assert.h"
#include "base/err.h"

#include <stdlib.h>

void arpc_call_commit(struct arpc_call *call)
{
    if (call->attempt.retry.committed)
        return;
    call->attempt.retry.committed = true;
    arpc_out_forget(call);
}

bool arpc_call_try_again(struct arpc_call *call, int status, enum arpc_reach reach)
{
    struct arpc_link_config *config = call->link->config;
    if (call->attempt.again)
        return true;
    if (call->server || arpc_call_is_over(call) || config->parking == NULL)
        return false;
    const struct arpc_attempt_end end = {.status = status,
                                         .reach = reach,
                                         .pushback = call->head.pushback,
                                         .pushback_ms = call->head.pushback_ms,
                                         .time_left_ms = arpc_call_time_left_ms(call)};
    int64_t delay_ms;
    if (!arpc_retry_decide(&call->attempt.retry, &config->throttle, &end, amp_random_unit(config->random), &delay_ms))
        return false;
    call->attempt.begin_ms = arpc_after(arpc_link_now(call->link), delay_ms);
    if (call->link == config->parking && !call->stream_over) {
        arpc_link_due(call->link, call->attempt.begin_ms);
        return true;
    }
    call->attempt.again = true;
    arpc_call_mark_event(call);
    return true;
}

/* ---- moving ---- */

static void move(struct arpc_call *call, struct arpc_link *to)
{
    struct arpc_link *from = call->link;
    bool refused = !amp_list_empty(&call->in_refused);
    amp_list_remove(&call->in_link);
    amp_list_remove(&call->in_dirty);
    amp_list_remove(&call->in_events);
    amp_list_remove(&call->in_waiting);
    amp_list_remove(&call->in_refused);
    from->call_count--;
    from->queued -= call->out.queued;
    if (from->call_count == 0) {
        from->age.idle_since_ms = arpc_link_now(from);
        arpc_link_due(from, arpc_after(from->age.idle_since_ms, from->config->idle_ms));
    }
    call->link = to;
    amp_list_push(&to->calls, &call->in_link);
    to->call_count++;
    to->queued += call->out.queued;
    to->age.idle_since_ms = INT64_MAX;
    arpc_call_mark_dirty(call);
    if (refused) /* it waited for room on the other link */
        amp_list_push(&to->refused, &call->in_refused);
    if (refused || call->out.was_high)
        arpc_call_mark_event(call);
    arpc_link_due(to, call->deadline_ms);
}

/* What the attempt left in the call. */
static void forget_attempt(struct arpc_call *call)
{
    AMP_ASSERT(call->in.buffered.size == 0 && call->in.messages == 0 && call->in.inflate == NULL);
    free(call->head.message);
    free(call->head.details);
    call->head = (struct arpc_head){.timeout_ns = INT64_MAX, .grpc_status = -1};
    arpc_fields_close(&call->kept);
    arpc_fields_init(&call->kept, call->link->config->max_metadata_bytes);
    call->in.deframer = (struct arpc_deframer){0};
    call->stream_id = 0;
    call->in.window_grown = false;
    call->in.slow_since_ms = INT64_MAX;
    call->in.slow_bytes = 0;
    call->out.progress_bytes = 0;
    call->in.taken = 0;
    call->in.end_seen = false;
    call->stream_over = false;
    call->out.head_submitted = false;
    call->attempt.head_left = false;
    call->out.deferred = false;
    call->out.reset = false;
    call->out.reset_done = false;
    call->attempt.again = false;
}

void arpc_call_begin_again(struct arpc_call *call)
{
    struct arpc_link *parking = call->link->config->parking;
    forget_attempt(call);
    arpc_out_rewind(call);
    move(call, parking);
    arpc_link_due(parking, call->attempt.begin_ms);
    parking->wake_cb(parking);
}

static bool may_begin(const struct arpc_call *call, int64_t now_ms)
{
    return !arpc_call_is_over(call) && !call->stream_over && call->attempt.begin_ms <= now_ms;
}

bool arpc_link_has_parked(const struct arpc_link *link)
{
    int64_t now_ms = arpc_link_now(link);
    for (struct amp_list *it = link->calls.next; it != &link->calls; it = it->next)
        if (may_begin(AMP_CONTAINER(it, struct arpc_call, in_link), now_ms))
            return true;
    return false;
}

void arpc_link_move(struct arpc_link *from, struct arpc_link *to)
{
    int64_t now_ms = arpc_link_now(from);
    AMP_LIST_EACH(it, safe, &from->calls)
    {
        struct arpc_call *call = AMP_CONTAINER(it, struct arpc_call, in_link);
        if (may_begin(call, now_ms))
            move(call, to);
    }
}

/* ---- failures ---- */

void arpc_link_fail_parked(struct arpc_link *link, const char *message)
{
    int64_t now_ms = arpc_link_now(link);
    AMP_ASSERT(link->session == NULL);
    AMP_LIST_EACH(it, safe, &link->calls)
    {
        struct arpc_call *call = AMP_CONTAINER(it, struct arpc_call, in_link);
        /* Not a transparent retry, although nothing was sent: that would be to wait for ready. */
        if (!call->wait_for_ready && may_begin(call, now_ms) &&
            !arpc_call_try_again(call, ARPC_STATUS_UNAVAILABLE, ARPC_REACH_SERVER))
            arpc_call_close(call, ARPC_STATUS_UNAVAILABLE, message);
    }
}

/* The whole answer is here, and no batch has bytes of the call. */
static bool keep_answer(struct arpc_call *call)
{
    struct arpc_link *link = call->link;
    struct arpc_link *parking = link->config->parking;
    if (call->server || parking == NULL || !call->in.end_seen || arpc_call_ignores_input(call) ||
        call->out.batch != NULL)
        return false;
    arpc_call_stream_over(call);
    if (call->attempt.retry.committed) /* else the answer, when it is looked at, may be a reason to begin again */
        arpc_out_drop(call);
    link->buffered -= call->in.buffered.size;
    parking->buffered += call->in.buffered.size;
    move(call, parking);
    return true;
}

void arpc_link_lost(struct arpc_link *link, const char *message)
{
    AMP_LIST_EACH(it, safe, &link->calls)
    {
        struct arpc_call *call = AMP_CONTAINER(it, struct arpc_call, in_link);
        if (keep_answer(call))
            continue;
        enum arpc_reach reach = call->attempt.head_left ? ARPC_REACH_SERVER : ARPC_REACH_NONE;
        if (!arpc_call_try_again(call, ARPC_STATUS_UNAVAILABLE, reach))
            arpc_call_close(call, ARPC_STATUS_UNAVAILABLE, message);
        arpc_call_stream_over(call);
    }
}
