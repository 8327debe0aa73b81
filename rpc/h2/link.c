/*
 * The link: nghttp2's callbacks and flow control. (Deadlines are in tick.c; PINGs, ages and GOAWAYs in life.c.)
 *
 * nghttp2 is entered by arpc_link_receive (mem_recv), by arpc_link_produce (mem_send), and by the submit functions that
 * flush, tick and drain call. Inside its own callbacks only functions that queue are used (consume, rst_stream,
 * trailer). User callbacks run inside mem_recv (messages) and from flush (everything else), and can only mark calls. So
 * nothing re-enters it.
 *
 * Flow control is manual. The stream's window is reopened as the user takes bytes; the connection's at once, so that a
 * paused call does not stop the others, until paused calls hold HELD_CREDIT_MAX: from then on only as bytes are taken.
 * Streams begin with a small window, which grows when a call shows that it moves bulk data, beyond its first message: a
 * held push costs 256 KiB, a running one is not slowed down.
 */
#include "rpc/h2/call.h"

#include "base/assert.h"
#include "rpc/h2/abuse.h"
#include "rpc/h2/body.h"
#include "rpc/h2/memory.h"
#include "rpc/h2/request.h"
#include "rpc/h2/serve.h"
#include "rpc/h2/stats.h"

#include <nghttp2/nghttp2.h>

#include <stdlib.h>
#include <string.h>

/* A call that took this much moves bulk data. */
#define GROW_AFTER ((size_t)64 << 10)
/*
 * Resets of any kind that nghttp2 lets through. What is counted are those before the answer (arpc_limits.resets_burst),
 * which nghttp2 cannot tell from those after it: its own limit is only the net below.
 */
#define ANY_RESET_BURST 1000000
#define ANY_RESET_RATE  100000
/* Calls that one flush does something for: some 100 us, so that a connection with many holds up no other for long. */
#define FLUSH_CALLS 64

static void ignore_closed(struct arpc_call *call, const struct arpc_result *result)
{
    (void)call;
    (void)result;
}

/* Of a request whose row is not known yet, or that is refused. */
static const struct arpc_handler no_handler = {.closed = ignore_closed};

struct nghttp2_session *arpc_call_session(const struct arpc_call *call)
{
    return call->link->session;
}

void arpc_link_due(struct arpc_link *link, int64_t when_ms)
{
    if (when_ms >= link->next_due_ms)
        return;
    link->next_due_ms = when_ms;
    link->wake_cb(link);
}

void arpc_link_fail(struct arpc_link *link, int code, const char *why)
{
    if (link->error != 0)
        return;
    link->error = code;
    link->error_text = why;
}

int arpc_head_keep(struct arpc_call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                   size_t value_size)
{
    const char *const *keep = call->link->config->keep_metadata;
    for (; keep != NULL && *keep != NULL; keep++) {
        /* The first letter first: most fields of most calls are none of these. */
        if (name_size == 0 || (*keep)[0] != (char)name[0] || strlen(*keep) != name_size ||
            memcmp(*keep, name, name_size) != 0)
            continue;
        /* A client's trailers come after callbacks that may have taken pointers. */
        int rc = call->server ? 0 : arpc_fields_reserve(&call->kept);
        if (rc == 0)
            rc = arpc_fields_keep(&call->kept, *keep, value, value_size);
        call->head.bad_metadata = call->head.bad_metadata || rc == AMP_EINVAL;
        call->head.too_large = call->head.too_large || rc == AMP_EEXHAUSTED;
        return rc == AMP_ENOMEM ? rc : 0;
    }
    return 0;
}

/*
 * What a callback that may have run a user's returns: a link that ended meanwhile takes nothing more, or calls would
 * begin on it that nobody ends.
 */
static int go_on(const struct arpc_link *link)
{
    return link->error == 0 ? 0 : NGHTTP2_ERR_CALLBACK_FAILURE;
}

static struct arpc_call *call_of(nghttp2_session *session, int32_t stream_id)
{
    return nghttp2_session_get_stream_user_data(session, stream_id);
}

/*
 * Until a call was let in there are few, since no budget counts their metadata. After that nghttp2 counts open streams;
 * calls whose end is still to be reported are bounded here.
 */
static bool has_too_many_calls(const struct arpc_link *link)
{
    const struct arpc_limits *limits = link->watch.limits;
    bool unadmitted = !link->was_admitted && limits->unadmitted_calls > 0;
    return link->call_count >= (size_t)limits->calls_factor * link->config->max_streams ||
           (unadmitted && link->call_count >= (size_t)limits->unadmitted_calls);
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct arpc_link *link = arg;
    link->handshake.header_stream = frame->hd.stream_id;
    link->handshake.header_since_ms = arpc_link_now(link);
    arpc_link_due(link, arpc_after(link->handshake.header_since_ms, link->watch.limits->headers_ms));
    if (!link->config->server || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    if (arpc_link_is_too_late(link, frame->hd.stream_id))
        return 0;
    bool too_many = has_too_many_calls(link);
    struct arpc_call *call = too_many ? NULL : arpc_call_create(link, &no_handler);
    if (too_many) /* a lack of memory is not the client's fault */
        arpc_link_punish(link, arpc_watch_refusal(&link->watch, arpc_link_now(link)));
    if (call == NULL) /* the client may send it again */
        return nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_REFUSED_STREAM);
    call->quiet = true;
    call->stream_id = frame->hd.stream_id;
    (void)nghttp2_session_set_stream_user_data(session, call->stream_id, call); /* the stream is there */
    /* Without `incremental` streams are served strictly in turn: a pull would starve every reply behind it. */
    const nghttp2_extpri turns = {.urgency = NGHTTP2_EXTPRI_DEFAULT_URGENCY, .inc = 1};
    if (nghttp2_session_change_extpri_stream_priority(session, call->stream_id, &turns, 1) != 0)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    return 0;
}

/* Counts a field; false if the block is over a limit and its fields are of no interest any more. */
static bool count_field(struct arpc_call *call, size_t name_size, size_t value_size)
{
    struct arpc_head *head = &call->head;
    const struct arpc_link_config *config = call->link->config;
    head->count++;
    head->bytes += name_size + value_size + 32;
    if (head->bytes > config->max_metadata_bytes || head->count > config->max_metadata_count)
        head->too_large = true;
    return !head->too_large;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_size,
                     const uint8_t *value, size_t value_size, uint8_t flags, void *arg)
{
    (void)flags;
    struct arpc_link *link = arg;
    struct arpc_call *call = call_of(session, frame->hd.stream_id);
    if (call == NULL || arpc_call_ignores_input(call))
        return 0;
    if (!count_field(call, name_size, value_size)) {
        size_t factor = (size_t)link->watch.limits->metadata_hard_factor;
        bool hopeless = call->head.bytes > factor * link->config->max_metadata_bytes ||
                        call->head.count > factor * link->config->max_metadata_count;
        if (!hopeless)
            return 0;
        if (link->config->server) {
            /* The rest of the block would have to be decoded, for the sake of HPACK's table: an HPACK bomb's work. */
            arpc_link_punish(link, ARPC_ABUSE_METADATA);
            return NGHTTP2_ERR_PAUSE;
        }
        arpc_call_close(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "the response's metadata is too large");
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    int rc = 0;
    if (!link->config->server)
        rc = arpc_request_field(call, name, name_size, value, value_size);
    else if (frame->headers.cat == NGHTTP2_HCAT_REQUEST)
        rc = arpc_serve_field(call, name, name_size, value, value_size);
    return rc == 0 ? 0 : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

static void headers_complete(struct arpc_link *link, struct arpc_call *call, const nghttp2_frame *frame)
{
    bool end = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    if (link->config->server) {
        if (frame->headers.cat == NGHTTP2_HCAT_REQUEST)
            arpc_serve_begin(call);
    } else if (!end && call->head.http_status >= 200) {
        arpc_request_head(call);
    }
}

/* The header block under way is complete, or its stream is gone. */
static void header_block_over(struct arpc_link *link, int32_t stream_id)
{
    if (link->handshake.header_stream == stream_id)
        link->handshake.header_since_ms = INT64_MAX;
}

static int on_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *hd, void *arg)
{
    (void)session;
    struct arpc_link *link = arg;
    arpc_link_refuse_late(link);
    if (hd->type == NGHTTP2_HEADERS && link->config->server && arpc_link_is_too_late(link, hd->stream_id))
        link->goaway.late_stream = hd->stream_id;
    /* Nothing but CONTINUATION may follow an unfinished block (RFC 9113 6.10). */
    if (hd->type != NGHTTP2_CONTINUATION)
        header_block_over(link, link->handshake.header_stream);
    return 0;
}

static int on_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct arpc_link *link = arg;
    if (frame->hd.type == NGHTTP2_SETTINGS && (frame->hd.flags & NGHTTP2_FLAG_ACK) == 0)
        link->handshake.peer_settings = true;
    if (frame->hd.type == NGHTTP2_GOAWAY)
        arpc_link_goaway_received(link, frame->goaway.error_code, frame->goaway.opaque_data,
                                  frame->goaway.opaque_data_len);
    if (frame->hd.type == NGHTTP2_PING && (frame->hd.flags & NGHTTP2_FLAG_ACK) != 0)
        arpc_link_ping_answered(link, frame->ping.opaque_data);
    else if (frame->hd.type == NGHTTP2_PING)
        arpc_link_ping_received(link);
    struct arpc_call *call = call_of(session, frame->hd.stream_id);
    arpc_link_watch_received(link, frame, call);
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA)
        return 0;
    if (frame->hd.type == NGHTTP2_HEADERS) {
        header_block_over(link, frame->hd.stream_id);
        if (call != NULL && !arpc_call_ignores_input(call))
            headers_complete(link, call, frame);
    }
    if (call != NULL && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
        call->in.end_seen = true;
        arpc_call_receive_end(call);
    }
    if (call != NULL && frame->hd.type == NGHTTP2_HEADERS)
        arpc_call_watch_message(call, 0);
    return go_on(link);
}

/* Bytes that are done with: reopens the stream's window, and grows it once for a call that moves bulk data. */
static void consume_stream(struct arpc_call *call, size_t size)
{
    struct arpc_link *link = call->link;
    if (size == 0 || link == NULL || link->session == NULL || call->stream_over)
        return;
    /* Failures: no memory (the window stays shut, the deadline ends the call) or a stream that is gone. */
    (void)nghttp2_session_consume_stream(link->session, call->stream_id, size);
    call->in.taken += size;
    /*
     * Small messages are no bulk data, however many they are. A first message of many may be all that is taken before a
     * long wait, however much it has in front of what is waited for.
     */
    bool bulk = call->in.max_message >= GROW_AFTER && (call->in.single_inbound || call->in.messages > 1);
    if (call->in.window_grown || !bulk || call->in.taken < GROW_AFTER ||
        link->config->stream_window <= ARPC_INITIAL_WINDOW)
        return;
    call->in.window_grown = true;
    (void)nghttp2_session_set_local_window_size(link->session, NGHTTP2_FLAG_NONE, call->stream_id,
                                                (int32_t)link->config->stream_window);
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t stream_id, const uint8_t *data, size_t size,
                   void *arg)
{
    (void)flags;
    struct arpc_link *link = arg;
    struct arpc_call *call = call_of(session, stream_id);
    size_t done = size;
    if (call != NULL) {
        done = arpc_call_receive(call, data, size);
        consume_stream(call, done);
        arpc_call_watch_message(call, size);
    }
    size_t credit = link->buffered <= (size_t)link->watch.limits->buffered ? size : done;
    link->uncredited += size - credit;
    (void)nghttp2_session_consume_connection(session, credit);
    return go_on(link);
}

static int on_stream_close(nghttp2_session *session, int32_t stream_id, uint32_t error_code, void *arg)
{
    header_block_over(arg, stream_id);
    struct arpc_call *call = call_of(session, stream_id);
    if (call == NULL)
        return 0;
    arpc_call_stream_closed(call, error_code);
    (void)nghttp2_session_set_stream_user_data(session, stream_id, NULL);
    return 0;
}

static void note_head_left(struct arpc_call *call)
{
    if (call != NULL)
        call->attempt.head_left = true;
}

static int on_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct arpc_link *link = arg;
    if (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA)
        link->keepalive.sent_since_ping = true;
    arpc_link_watch_sent(link, frame);
    link->goaway.expulsion_sent =
        link->goaway.expulsion_sent || (link->goaway.expelled && frame->hd.type == NGHTTP2_GOAWAY);
    if (!link->config->server && frame->hd.type == NGHTTP2_HEADERS)
        note_head_left(call_of(session, frame->hd.stream_id));
    bool last = frame->hd.type == NGHTTP2_HEADERS && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    struct arpc_call *call = last && link->config->server ? call_of(session, frame->hd.stream_id) : NULL;
    if (call == NULL)
        return 0;
    call->out.trailers_sent = true;
    /* The client need not send the rest (RFC 9113 8.1). */
    if (!call->in.end_seen)
        (void)nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_NO_ERROR);
    return 0;
}

ssize_t arpc_link_read_body(nghttp2_session *session, int32_t stream_id, uint8_t *buf, size_t length, uint32_t *flags,
                            nghttp2_data_source *source, void *arg)
{
    (void)session;
    (void)stream_id;
    (void)buf;
    (void)arg;
    struct arpc_call *call = source->ptr;
    bool ends = call->attempt.again || call->out.reset; /* what is left of the queue may have a gap */
    if (ends || (call->out.unsent == 0 && !call->out.ended)) {
        call->out.deferred = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    size_t slots;
    size_t size = arpc_out_slots(call, length, &slots);
    call->out.framed = size;
    if (size > 0)
        *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (size < call->out.unsent || !call->out.ended)
        return (ssize_t)size;
    *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (call->server) {
        *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
        if (arpc_serve_trailers(call) != 0)
            return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    return (ssize_t)size;
}

static size_t batch_most(const struct arpc_batch *batch)
{
    return batch->most > 0 && batch->most < ARPC_BATCH_BYTES ? batch->most : ARPC_BATCH_BYTES;
}

static bool batch_has_room(const struct arpc_batch *batch, size_t slots)
{
    return batch->bytes < batch_most(batch) && batch->count + slots + 1 <= ARPC_BATCH_SLOTS &&
           batch->pin_count + slots <= ARPC_BATCH_SLOTS &&
           batch->scratch_used + ARPC_FRAME_SCRATCH <= ARPC_BATCH_SCRATCH;
}

static int on_send_data(nghttp2_session *session, nghttp2_frame *frame, const uint8_t *framehd, size_t length,
                        nghttp2_data_source *source, void *arg)
{
    (void)session;
    (void)frame;
    struct arpc_link *link = arg;
    struct arpc_call *call = source->ptr;
    size_t slots;
    (void)arpc_out_slots(call, length, &slots);
    if (!batch_has_room(link->batch, slots))
        return NGHTTP2_ERR_WOULDBLOCK;
    (void)arpc_batch_scratch(link->batch, framehd, 9);
    arpc_out_give(call, link->batch, length);
    return 0;
}

static ssize_t on_read_length(nghttp2_session *session, uint8_t type, int32_t stream_id, int32_t session_window,
                              int32_t stream_window, uint32_t remote_max_frame_size, void *arg)
{
    (void)session;
    (void)type;
    (void)stream_id;
    const struct arpc_link *link = arg;
    size_t size = ARPC_FRAME_OUT_MAX;
    if (link->batch != NULL && batch_most(link->batch) < size)
        size = batch_most(link->batch);
    if ((size_t)session_window < size)
        size = (size_t)session_window;
    if ((size_t)stream_window < size)
        size = (size_t)stream_window;
    return (ssize_t)(remote_max_frame_size < size ? remote_max_frame_size : size);
}

static int make_callbacks(nghttp2_session_callbacks **out)
{
    nghttp2_session_callbacks *callbacks;
    if (nghttp2_session_callbacks_new(&callbacks) != 0)
        return AMP_ENOMEM;
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, on_begin_frame);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame_recv);
    nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(callbacks, arpc_link_watch_invalid);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_frame_send);
    nghttp2_session_callbacks_set_send_data_callback(callbacks, on_send_data);
    nghttp2_session_callbacks_set_data_source_read_length_callback(callbacks, on_read_length);
    *out = callbacks;
    return 0;
}

static void set_limits(nghttp2_option *option, const struct arpc_limits *limits)
{
    nghttp2_option_set_max_outbound_ack(option, (size_t)limits->outbound_acks);
    nghttp2_option_set_max_settings(option, (size_t)limits->settings_entries);
    nghttp2_option_set_max_deflate_dynamic_table_size(option, (size_t)limits->hpack_table);
    nghttp2_option_set_stream_reset_rate_limit(option, ANY_RESET_BURST, ANY_RESET_RATE);
    /* nghttp2 1.52 counts one for each receive call that the frame head is spread over; watch.c counts frames. */
    nghttp2_option_set_max_continuations(option, SIZE_MAX);
}

static int make_session(struct arpc_link *link)
{
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_option *option = NULL;
    int rc = AMP_ENOMEM;
    link->memory = arpc_memory_new(link->config->memory);
    if (link->memory == NULL || make_callbacks(&callbacks) != 0)
        return AMP_ENOMEM;
    if (nghttp2_option_new(&option) != 0)
        goto free_callbacks;
    nghttp2_option_set_no_auto_window_update(option, 1);
    set_limits(option, link->watch.limits);
    if (link->config->server)
        rc = nghttp2_session_server_new3(&link->session, callbacks, link, option, &link->memory->mem);
    else
        rc = nghttp2_session_client_new3(&link->session, callbacks, link, option, &link->memory->mem);
    rc = rc == 0 ? 0 : AMP_ENOMEM;
    nghttp2_option_del(option);
free_callbacks:
    nghttp2_session_callbacks_del(callbacks);
    return rc;
}

static int submit_settings(struct arpc_link *link)
{
    const struct arpc_link_config *config = link->config;
    size_t window = config->stream_window < ARPC_INITIAL_WINDOW ? config->stream_window : ARPC_INITIAL_WINDOW;
    nghttp2_settings_entry entries[6] = {
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, (uint32_t)window},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, (uint32_t)link->watch.limits->frame_in},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, (uint32_t)config->max_metadata_bytes},
    };
    size_t count = 3;
    if (config->server) {
        entries[count++] =
            (nghttp2_settings_entry){NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, (uint32_t)config->max_streams};
        /* All streams then have equal turns (each is made incremental), and priority trees cost nothing. */
        entries[count++] = (nghttp2_settings_entry){NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1};
    } else {
        entries[count++] = (nghttp2_settings_entry){NGHTTP2_SETTINGS_ENABLE_PUSH, 0};
    }
    if (nghttp2_submit_settings(link->session, NGHTTP2_FLAG_NONE, entries, count) != 0)
        return AMP_ENOMEM;
    if (nghttp2_session_set_local_window_size(link->session, NGHTTP2_FLAG_NONE, 0, (int32_t)config->stream_window) != 0)
        return AMP_ENOMEM;
    return 0;
}

static void close_session(struct arpc_link *link)
{
    arpc_memory_free(link->memory);
    link->memory = NULL;
    link->session = NULL;
}

int arpc_link_init(struct arpc_link *link, struct arpc_link_config *config, void (*wake_cb)(struct arpc_link *),
                   bool session)
{
    int64_t now_ms = config->now_cb(config->clock);
    *link = (struct arpc_link){.config = config, .wake_cb = wake_cb};
    amp_list_init(&link->calls);
    amp_list_init(&link->dirty);
    amp_list_init(&link->events);
    amp_list_init(&link->refused);
    amp_list_init(&link->waiting);
    link->age.opened_ms = now_ms;
    link->keepalive.received_ms = now_ms;
    link->age.idle_since_ms = now_ms;
    link->keepalive.ping_ms = INT64_MAX;
    link->handshake.header_since_ms = INT64_MAX;
    link->next_due_ms = INT64_MAX;
    link->goaway.leave_due_ms = INT64_MAX;
    link->goaway.goodbye_due_ms = INT64_MAX;
    const struct arpc_limits *limits = config->limits != NULL ? config->limits : &arpc_limits_default;
    arpc_watch_init(&link->watch, limits, config->server, now_ms);
    arpc_host_init(&link->own_host, NULL, limits, now_ms);
    link->host = &link->own_host;
    link->peer_info = (struct arpc_peer){.address = link->peer, .pid = -1, .uid = -1, .gid = -1};
    arpc_link_life_init(link);
    if (!session)
        return 0;
    link->next_due_ms = arpc_after(now_ms, config->server ? limits->preface_ms : ARPC_HANDSHAKE_MS);
    if (arpc_link_idle_due_ms(link) < link->next_due_ms)
        link->next_due_ms = arpc_link_idle_due_ms(link);
    if (link->age.due_ms < link->next_due_ms)
        link->next_due_ms = link->age.due_ms;
    int rc = make_session(link);
    if (rc == 0)
        rc = submit_settings(link);
    if (rc != 0)
        close_session(link);
    return rc;
}

void arpc_link_close(struct arpc_link *link)
{
    AMP_ASSERT(amp_list_empty(&link->calls) && link->queued == 0);
    close_session(link);
}

int arpc_link_receive(struct arpc_link *link, const uint8_t *data, size_t size)
{
    if (link->error != 0 || link->goaway.expelled)
        return link->error;
    arpc_link_received(link);
    size_t slice = arpc_link_watch(link, data, size);
    while (size > 0 && link->error == 0 && !link->goaway.expelled) {
        size_t part = size < slice ? size : slice;
        ssize_t rc = nghttp2_session_mem_recv(link->session, data, part);
        arpc_link_refuse_late(link);
        if (rc < 0)
            arpc_link_fail(link, rc == NGHTTP2_ERR_NOMEM ? AMP_ENOMEM : AMP_EINVAL, nghttp2_strerror((int)rc));
        arpc_link_watch_queue(link);
        data += part;
        size -= part;
    }
    link->wake_cb(link); /* acknowledgements and window updates may be due */
    return link->error;
}

uint8_t *arpc_link_receive_buffer(struct arpc_link *link, size_t *size)
{
    int32_t stream_id;
    size_t left = arpc_watch_data_left(&link->watch, &stream_id);
    if (left == 0 || link->error != 0 || link->goaway.expelled || link->session == NULL)
        return NULL;
    struct arpc_call *call = call_of(link->session, stream_id);
    uint8_t *buffer = call != NULL ? arpc_call_receive_buffer(call, size) : NULL;
    if (buffer != NULL && *size > left)
        *size = left;
    return buffer;
}

int arpc_link_produce(struct arpc_link *link, struct arpc_batch *batch)
{
    link->batch = batch;
    while (link->error == 0 && !link->goaway.expulsion_sent && batch_has_room(batch, 1)) {
        const uint8_t *data;
        ssize_t size = nghttp2_session_mem_send(link->session, &data);
        if (size < 0)
            arpc_link_fail(link, size == NGHTTP2_ERR_NOMEM ? AMP_ENOMEM : AMP_EINTERNAL, nghttp2_strerror((int)size));
        if (size <= 0)
            break;
        AMP_ASSERT((size_t)size <= ARPC_FRAME_SCRATCH);
        (void)arpc_batch_scratch(batch, data, (size_t)size);
    }
    link->batch = NULL;
    return link->error;
}

void arpc_link_credit(struct arpc_link *link, size_t size)
{
    size_t credit = size < link->uncredited ? size : link->uncredited;
    link->uncredited -= credit;
    if (credit > 0)
        (void)nghttp2_session_consume_connection(link->session, credit); /* as in consume_stream */
}

static void flush_buffered(struct arpc_call *call)
{
    struct arpc_link *link = call->link;
    bool wanted = !arpc_call_is_over(call) && !(call->server && call->out.ended);
    if (wanted && (!call->in.resumed || call->in.paused))
        return;
    call->in.resumed = false;
    size_t done = arpc_call_receive_buffered(call);
    consume_stream(call, done);
    arpc_link_credit(link, done);
}

static void flush_parked(struct arpc_call *call)
{
    if (call->in.end_seen) { /* it has outlived its connection */
        flush_buffered(call);
        arpc_call_receive_end(call);
    }
    if (arpc_call_is_over(call))
        arpc_call_stream_over(call);
}

static void flush_call(struct arpc_call *call)
{
    struct arpc_link *link = call->link;
    if (link->session == NULL)
        flush_parked(call);
    if (link->session == NULL || link->error != 0)
        return;
    flush_buffered(call);
    arpc_call_receive_end(call);
    if (call->server) {
        arpc_serve_flush(call);
        return;
    }
    arpc_request_flush(call);
    if (!call->out.reset || call->out.reset_done || call->stream_over)
        return;
    call->out.reset_done = true;
    if (call->stream_id == 0)
        arpc_call_stream_over(call);
    else
        (void)nghttp2_submit_rst_stream(link->session, NGHTTP2_FLAG_NONE, call->stream_id, call->out.reset_code);
}

/* Takes up to FLUSH_CALLS off the front; what is added meanwhile is for the next round, so that a round is finite. */
static void take_some(struct amp_list *from, struct amp_list *some)
{
    amp_list_init(some);
    for (unsigned i = 0; i < FLUSH_CALLS && !amp_list_empty(from); i++)
        amp_list_push(some, amp_list_shift(from));
}

bool arpc_link_has_news(const struct arpc_link *link)
{
    return !amp_list_empty(&link->dirty) || !amp_list_empty(&link->events);
}

bool arpc_link_flush(struct arpc_link *link)
{
    struct amp_list work;
    take_some(&link->dirty, &work);
    for (struct amp_list *it = amp_list_shift(&work); it != NULL; it = amp_list_shift(&work))
        flush_call(AMP_CONTAINER(it, struct arpc_call, in_dirty));
    if (link->session != NULL && link->error == 0 && !link->config->server)
        arpc_request_begin(link);
    take_some(&link->events, &work);
    for (struct amp_list *it = amp_list_shift(&work); it != NULL; it = amp_list_shift(&work))
        arpc_call_notify(AMP_CONTAINER(it, struct arpc_call, in_events));
    return arpc_link_has_news(link);
}

void arpc_link_abort(struct arpc_link *link, int status, const char *message)
{
    AMP_LIST_EACH(it, safe, &link->calls)
    {
        struct arpc_call *call = AMP_CONTAINER(it, struct arpc_call, in_link);
        arpc_call_close(call, status, message);
        arpc_call_stream_over(call);
    }
}

bool arpc_link_takes_calls(const struct arpc_link *link)
{
    return link->error == 0 && nghttp2_session_check_request_allowed(link->session) != 0;
}

bool arpc_link_has_output(const struct arpc_link *link)
{
    return link->error != 0 || nghttp2_session_want_write(link->session) != 0;
}

bool arpc_link_is_over(const struct arpc_link *link)
{
    if (link->error != 0 || link->goaway.expulsion_sent)
        return true;
    if (nghttp2_session_want_write(link->session))
        return false;
    bool drained = link->goaway.drain == ARPC_DRAIN_FINAL && link->call_count == 0;
    bool lingers = link->goaway.leave_due_ms != INT64_MAX && arpc_link_now(link) < link->goaway.leave_due_ms;
    return drained || (!lingers && !nghttp2_session_want_read(link->session));
}
