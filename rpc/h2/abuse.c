/*
 * The limits of rpc/arpc_limits.h at work on a link.
 *
 * Three things see what a peer does: the scanner of frames (watch.c), which runs before nghttp2; nghttp2's callbacks,
 * which know whether a reset call was answered and what was invalid; and the clock (tick.c). A peer that breaks a limit
 * gets GOAWAY with ENHANCE_YOUR_CALM and the reason, and is not read any more; one that did not get as far as HTTP/2 is
 * dropped.
 */
#include "rpc/h2/abuse.h"

#include <stdio.h>

/* Of bytes that are mostly frame heads nghttp2 gets this much at a time, so that what it counts stops it soon. */
#define SLICE ((size_t)4 << 10)
/* Frames on average shorter than this are mostly heads. */
#define SHORT_FRAME 256

static const struct arpc_limits *limits_of(const struct arpc_link *link)
{
    return link->watch.limits;
}

void arpc_link_count(struct arpc_link *link, enum arpc_abuse cause)
{
    struct arpc_link_config *config = link->config;
    config->abuses[cause]++;
    if (config->abuse_cb == NULL)
        return;
    const struct arpc_limits *limits = limits_of(link);
    arpc_bucket_fill(&config->reports, limits->reports_burst, limits->reports_per_s, arpc_link_now(link));
    if (!arpc_bucket_take(&config->reports, limits->reports_burst)) {
        config->unreported++;
        return;
    }
    config->abuse_cb(link->peer, cause, config->unreported, config->arg);
    config->unreported = 0;
}

void arpc_link_punish(struct arpc_link *link, enum arpc_abuse cause)
{
    if (cause == ARPC_ABUSE_NONE || link->abuse != ARPC_ABUSE_NONE || link->error != 0)
        return;
    link->abuse = cause;
    arpc_link_count(link, cause);
    arpc_link_expel(link, NGHTTP2_ENHANCE_YOUR_CALM, arpc_abuse_text(cause));
}

void arpc_link_drop(struct arpc_link *link, int code, enum arpc_abuse cause)
{
    if (link->error != 0)
        return;
    if (link->abuse == ARPC_ABUSE_NONE) {
        link->abuse = cause;
        arpc_link_count(link, cause);
    }
    arpc_link_fail(link, code, arpc_abuse_text(cause));
}

size_t arpc_link_watch(struct arpc_link *link, const uint8_t *data, size_t size)
{
    struct arpc_watch *watch = &link->watch;
    uint64_t before = watch->frame_count;
    arpc_link_punish(link, arpc_watch_scan(watch, data, size, arpc_link_now(link)));
    if (link->goaway.expelled)
        return 0;
    return (watch->frame_count - before) * SHORT_FRAME > size ? SLICE : size;
}

void arpc_link_watch_received(struct arpc_link *link, const nghttp2_frame *frame, const struct arpc_call *call)
{
    bool ack = (frame->hd.flags & NGHTTP2_FLAG_ACK) != 0;
    link->handshake.acked = link->handshake.acked || (frame->hd.type == NGHTTP2_SETTINGS && ack);
    /* A reset after the answer is a client that does not wait for our END_STREAM. */
    bool early = frame->hd.type == NGHTTP2_RST_STREAM && call != NULL && !call->out.trailers_sent;
    if (link->config->server && early)
        arpc_link_punish(link, arpc_watch_reset(&link->watch, arpc_link_now(link)));
}

void arpc_call_bad_request(struct arpc_call *call)
{
    struct arpc_link *link = call->link;
    arpc_link_punish(link, arpc_watch_bad_request(&link->watch, arpc_link_now(link)));
}

int arpc_link_watch_invalid(nghttp2_session *session, const nghttp2_frame *frame, int error, void *arg)
{
    (void)session;
    struct arpc_link *link = arg;
    /* grpc-go's last GOAWAY names its own last stream, where ours should stand, and nghttp2 takes offence. */
    if (frame->hd.type == NGHTTP2_GOAWAY) {
        link->goaway.farewell = true;
        return 0;
    }
    int64_t now_ms = arpc_link_now(link);
    bool refused = error == NGHTTP2_ERR_REFUSED_STREAM;
    arpc_link_punish(link, refused ? arpc_watch_refusal(&link->watch, now_ms) : arpc_watch_fault(&link->watch, now_ms));
    return 0;
}

void arpc_link_watch_sent(struct arpc_link *link, const nghttp2_frame *frame)
{
    bool error = frame->hd.type == NGHTTP2_GOAWAY && frame->goaway.error_code != NGHTTP2_NO_ERROR;
    if (error && !link->goaway.expelled) {
        /*
         * nghttp2's own verdict: what the peer still sends is of no interest, and after CVE-2026-27135 not to be
         * parsed.
         */
        link->goaway.expelled = true;
        if (!link->goaway.farewell) {
            link->abuse = ARPC_ABUSE_PROTOCOL;
            arpc_link_count(link, ARPC_ABUSE_PROTOCOL);
        }
        arpc_link_goodbye(link);
    }
    if (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA)
        arpc_watch_sent(&link->watch, frame->hd.length);
    /* NO_ERROR and CANCEL are this side's own will, what was refused is counted when it comes. */
    uint32_t code = frame->hd.type == NGHTTP2_RST_STREAM ? frame->rst_stream.error_code : NGHTTP2_NO_ERROR;
    if (code != NGHTTP2_NO_ERROR && code != NGHTTP2_CANCEL && code != NGHTTP2_REFUSED_STREAM)
        arpc_link_punish(link, arpc_watch_fault(&link->watch, arpc_link_now(link)));
}

void arpc_link_watch_queue(struct arpc_link *link)
{
    /* Every call may have its own frames there. */
    int64_t most = limits_of(link)->outbound_frames;
    size_t queued = nghttp2_session_get_outbound_queue_size(link->session);
    if (most > 0 && queued > (size_t)most + link->call_count)
        arpc_link_drop(link, AMP_EEXHAUSTED, ARPC_ABUSE_UNREAD_ANSWERS);
}

/* Whether the peer is the one that keeps a message from going on. */
static bool awaits_bytes(const struct arpc_call *call)
{
    if (!call->server || arpc_call_is_over(call) || call->out.ended || call->in.end_seen)
        return false;
    return !arpc_deframer_is_clean(&call->in.deframer) || (call->in.single_inbound && call->in.messages == 0);
}

/* Whether this side does: the bytes are not wanted yet. */
static bool is_held_back(const struct arpc_call *call)
{
    return call->in.paused || call->in.buffered.size > 0 || call->link->uncredited > 0;
}

/* Bytes that are due in this time. */
static int64_t least_of(int64_t bytes_per_s, int64_t time_ms)
{
    if (time_ms > INT32_MAX)
        return 1; /* a time that never comes asks for nothing */
    return time_ms > 0 && bytes_per_s > INT64_MAX / time_ms ? INT64_MAX : bytes_per_s * time_ms / 1000;
}

static void restart_message(struct arpc_call *call)
{
    call->in.slow_since_ms = arpc_link_now(call->link);
    call->in.slow_bytes = 0;
}

void arpc_call_watch_message(struct arpc_call *call, size_t size)
{
    if (call->link == NULL || !awaits_bytes(call)) {
        call->in.slow_since_ms = INT64_MAX;
    } else if (call->in.slow_since_ms == INT64_MAX) {
        restart_message(call);
        arpc_link_due(call->link, arpc_call_slow_ms(call));
    } else {
        call->in.slow_bytes += size;
        if ((int64_t)call->in.slow_bytes >=
            least_of(limits_of(call->link)->message_min_rate, limits_of(call->link)->message_window_ms))
            restart_message(call);
    }
}

void arpc_call_watch_anew(struct arpc_call *call)
{
    if (call->link != NULL && call->in.slow_since_ms != INT64_MAX)
        restart_message(call);
}

int64_t arpc_call_slow_ms(const struct arpc_call *call)
{
    int64_t window_ms = limits_of(call->link)->message_window_ms;
    if (call->in.slow_since_ms == INT64_MAX || window_ms == 0 || !awaits_bytes(call))
        return INT64_MAX;
    return arpc_after(call->in.slow_since_ms, window_ms);
}

void arpc_call_slow(struct arpc_call *call, int64_t now_ms)
{
    const struct arpc_limits *limits = limits_of(call->link);
    if (arpc_call_slow_ms(call) > now_ms)
        return;
    if (is_held_back(call)) {
        restart_message(call);
        return;
    }
    arpc_link_count(call->link, ARPC_ABUSE_SLOW_MESSAGE);
    char text[128];
    (void)snprintf(text, sizeof text, "the message came at less than %lld bytes a second: send it again",
                   (long long)limits->message_min_rate);
    arpc_call_fault(call, ARPC_STATUS_UNAVAILABLE, text); /* of an honest client its network was away */
}

int64_t arpc_call_stall_ms(const struct arpc_call *call)
{
    /* A client's stream may be held by the server on purpose. */
    if (!call->server || call->out.reset || call->out.unsent == 0)
        return INT64_MAX;
    return arpc_after(call->out.progress_ms, call->link->config->write_stall_ms);
}

void arpc_call_begin_progress(struct arpc_call *call)
{
    call->out.progress_ms = arpc_link_now(call->link);
    call->out.progress_bytes = 0;
}

void arpc_call_progress(struct arpc_call *call, size_t size)
{
    call->out.progress_bytes += size;
    const struct arpc_link *link = call->link;
    if ((int64_t)call->out.progress_bytes >= least_of(limits_of(link)->write_min_rate, link->config->write_stall_ms))
        arpc_call_begin_progress(call);
}

/* Whether no window keeps the call from sending: its bytes are in a batch, or wait for their turn to be in one. */
static bool has_window(const struct arpc_call *call)
{
    nghttp2_session *session = call->link->session;
    return call->out.batch != NULL || (nghttp2_session_get_remote_window_size(session) > 0 &&
                                       nghttp2_session_get_stream_remote_window_size(session, call->stream_id) > 0);
}

void arpc_call_stall(struct arpc_call *call, int64_t now_ms)
{
    struct arpc_link *link = call->link;
    if (arpc_call_stall_ms(call) > now_ms)
        return;
    if (has_window(call)) { /* then it waits for the socket, which has a time of its own (conn.c) */
        arpc_call_begin_progress(call);
        return;
    }
    arpc_link_count(link, ARPC_ABUSE_STALLED);
    char text[128];
    (void)snprintf(text, sizeof text, "the answer was taken at less than %lld bytes a second: ask for it again",
                   (long long)limits_of(link)->write_min_rate);
    arpc_call_cancel(call, ARPC_STATUS_UNAVAILABLE, text); /* as in arpc_call_slow */
    /* A peer that does it again and again is not only slow. */
    arpc_link_punish(link, arpc_watch_fault(&link->watch, now_ms));
}
