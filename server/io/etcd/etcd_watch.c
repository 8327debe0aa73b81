#include "server/io/etcd/etcd_watch.h"

#include "base/assert.h"
#include "proto/msg_etcd.h"
#include "rpc/arpc_client.h"
#include "server/io/etcd/etcd.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#define PREFIX_MAX 256

/* A stream of changes from one endpoint, which is the preferred one. */
struct stream {
    struct io_etcd_watch *watch; /* NULL: the stream is being cancelled */
    struct arpc_call *call;
    uint32_t endpoint;
};

struct io_etcd_watch {
    struct io_etcd *etcd;
    const struct io_etcd_watch_events *events;
    void *arg;
    char prefix[PREFIX_MAX], end[PREFIX_MAX]; /* end: the first key behind all that begin with prefix */
    int64_t poll_ms;
    int64_t revision;                 /* of the state that was reported; 0: none yet */
    int64_t known;                    /* `revision` when the Range under way was sent */
    struct stream *stream;            /* NULL: none; only reads report changes */
    bool reading;                     /* a Range is under way */
    char failing[AMP_ERROR_TEXT_MAX]; /* why the last Range has failed, in a sentence; "": it has not */
    uv_timer_t again;                 /* the next Range */
    bool open, closing;
};

static void free_if_closed(struct io_etcd_watch *watch)
{
    if (watch->closing && !watch->open && !watch->reading)
        free(watch);
}

static struct ampd_msg_bytes bytes_of(const char *text)
{
    return (struct ampd_msg_bytes){(uint8_t *)(uintptr_t)text, strlen(text)};
}

static void on_again(uv_timer_t *timer)
{
    io_etcd_watch_look(timer->data);
}

static void look_in(struct io_etcd_watch *watch, int64_t ms)
{
    (void)uv_timer_start(&watch->again, on_again, (uint64_t)ms, 0); /* cannot fail: it is open */
}

/* ---- the stream ---- */

/* Reports the changes in one message of the stream. settled_cb, the last act, may close the watch. */
static void report_events(struct io_etcd_watch *watch, const struct ampd_etcd_watch_response *answer)
{
    int64_t before = watch->revision;
    for (size_t i = 0; i < answer->events.count; i++) {
        const struct ampd_etcd_event *event = &answer->events.items[i];
        const struct ampd_etcd_key_value *kv = &event->kv;
        if (!event->has_kv || kv->mod_revision <= before)
            continue; /* a Range has reported it already */
        if (kv->mod_revision > watch->revision)
            watch->revision = kv->mod_revision;
        if (event->type == AMPD_ETCD_DELETE)
            watch->events->remove_cb(watch->arg, kv->key.data, kv->key.size);
        else
            watch->events->put_cb(watch->arg, kv);
    }
    if (watch->revision > before)
        watch->events->settled_cb(watch->arg, watch->revision);
}

static void on_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct stream *stream = arpc_call_user(call);
    struct ampd_etcd_watch_response answer;
    struct amp_error error = {0};
    if (stream->watch == NULL)
        return;
    if (ampd_etcd_watch_response_decode(&answer, data, size, &error) != 0)
        arpc_call_cancel(call, ARPC_STATUS_INTERNAL, error.text);
    else if (answer.canceled)
        arpc_call_cancel(call, ARPC_STATUS_ABORTED, "etcd has ended the watch");
    else
        report_events(stream->watch, &answer);
    ampd_etcd_watch_response_free(&answer);
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct stream *stream = arpc_call_user(call);
    struct io_etcd_watch *watch = stream->watch;
    if (watch != NULL) {
        watch->stream = NULL;
        io_etcd_failed(watch->etcd, stream->endpoint);
        look_in(watch, IO_ETCD_AGAIN_MS); /* which also begins another stream */
    }
    free(stream);
}

static const struct arpc_handler handler = {.message = on_message, .closed = on_closed};

static void end_stream(struct io_etcd_watch *watch)
{
    struct stream *stream = watch->stream;
    watch->stream = NULL;
    if (stream == NULL)
        return;
    stream->watch = NULL;
    arpc_call_cancel(stream->call, ARPC_STATUS_CANCELLED, "not wanted any more");
}

static void begin_stream(struct io_etcd_watch *watch)
{
    struct ampd_etcd_watch_request request = {.has_create_request = true};
    request.create_request.key = bytes_of(watch->prefix);
    request.create_request.range_end = bytes_of(watch->end);
    request.create_request.start_revision = watch->revision + 1;
    uint32_t endpoint = io_etcd_preferred(watch->etcd);
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return;
    *stream = (struct stream){.watch = watch, .endpoint = endpoint};
    struct amp_buf buf;
    amp_buf_init(&buf, IO_ETCD_MESSAGE_MAX);
    int rc = ampd_etcd_watch_request_encode(&request, &buf);
    if (rc == 0)
        rc = io_etcd_stream(watch->etcd, endpoint, IO_ETCD_WATCH, &handler, stream, &stream->call);
    if (rc != 0) {
        free(stream);
    } else {
        watch->stream = stream;
        if (arpc_call_send(stream->call, buf.data, buf.size, NULL, 0, NULL, NULL) != 0)
            arpc_call_cancel(stream->call, ARPC_STATUS_RESOURCE_EXHAUSTED, "no memory for the request");
    }
    amp_buf_close(&buf);
}

/*
 * Sees to a stream to the preferred endpoint that begins behind the reported revision. If none can be begun, the state
 * is read again soon: without a stream only that reports changes.
 */
static void keep_stream(struct io_etcd_watch *watch)
{
    if (watch->stream != NULL && watch->stream->endpoint != io_etcd_preferred(watch->etcd))
        end_stream(watch);
    if (watch->stream == NULL)
        begin_stream(watch);
    if (watch->stream == NULL)
        look_in(watch, IO_ETCD_AGAIN_MS);
}

/* ---- reading all ---- */

/* Reports the whole state that a Range has read. settled_cb, the last act, may close the watch. */
static void report_all(struct io_etcd_watch *watch, const struct ampd_etcd_range_response *answer)
{
    watch->failing[0] = 0;
    int64_t revision = answer->header.revision;
    if (revision < watch->revision && revision >= watch->known) {
        keep_stream(watch); /* it is older than what the stream has reported meanwhile */
        return;
    }
    if (revision < watch->known) {
        /* Reads are linearizable, so etcd has lost what it had answered before this read was sent. */
        amp_log(io_etcd_log(watch->etcd), AMP_LOG_ERROR, "etcd",
                "msg=\"etcd has lost its data: its revision has gone back\" before=%" PRId64 " now=%" PRId64,
                watch->known, revision);
        end_stream(watch);
    }
    watch->revision = revision;
    watch->events->reset_cb(watch->arg);
    for (size_t i = 0; i < answer->kvs.count; i++)
        watch->events->put_cb(watch->arg, &answer->kvs.items[i]);
    keep_stream(watch);
    watch->events->settled_cb(watch->arg, watch->revision);
}

static void on_range(void *arg, const struct amp_error *error, const uint8_t *data, size_t size)
{
    struct io_etcd_watch *watch = arg;
    struct ampd_etcd_range_response answer = {0};
    struct amp_error wrong = *error;
    watch->reading = false;
    if (watch->closing) {
        free_if_closed(watch);
        return;
    }
    int rc = error->code;
    if (rc == 0)
        rc = ampd_etcd_range_response_decode(&answer, data, size, &wrong);
    look_in(watch, rc == 0 ? watch->poll_ms : IO_ETCD_AGAIN_MS);
    if (rc == 0) {
        report_all(watch, &answer);
    } else if (watch->failing[0] == 0) {
        (void)snprintf(watch->failing, sizeof watch->failing, "etcd cannot be asked: %.400s", wrong.text);
        watch->events->failed_cb(watch->arg, &wrong);
    }
    ampd_etcd_range_response_free(&answer);
}

void io_etcd_watch_look(struct io_etcd_watch *watch)
{
    struct ampd_etcd_range_request request = {.key = bytes_of(watch->prefix), .range_end = bytes_of(watch->end)};
    struct amp_buf buf;
    if (watch->reading || watch->closing)
        return;
    amp_buf_init(&buf, IO_ETCD_MESSAGE_MAX);
    watch->known = watch->revision;
    watch->reading = ampd_etcd_range_request_encode(&request, &buf) == 0 &&
                     io_etcd_call(watch->etcd, IO_ETCD_RANGE, &buf, on_range, watch) == 0;
    amp_buf_close(&buf);
    if (!watch->reading)
        look_in(watch, IO_ETCD_AGAIN_MS);
}

const char *io_etcd_watch_failing(const struct io_etcd_watch *watch)
{
    return watch->failing;
}

/* ---- life ---- */

int io_etcd_watch_new(struct io_etcd *etcd, const char *prefix, int64_t poll_ms,
                      const struct io_etcd_watch_events *events, void *arg, struct io_etcd_watch **out)
{
    struct io_etcd_watch *watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return AMP_ENOMEM;
    watch->etcd = etcd;
    watch->events = events;
    watch->arg = arg;
    watch->poll_ms = poll_ms;
    size_t size = strlen(prefix);
    AMP_ASSERT(size > 0 && size < PREFIX_MAX && (unsigned char)prefix[size - 1] < 0x7f);
    memcpy(watch->prefix, prefix, size + 1);
    memcpy(watch->end, prefix, size + 1);
    watch->end[size - 1]++;
    (void)uv_timer_init(io_etcd_loop(etcd), &watch->again); /* cannot fail */
    watch->again.data = watch;
    watch->open = true;
    *out = watch;
    look_in(watch, 0);
    return 0;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct io_etcd_watch *watch = handle->data;
    watch->open = false;
    free_if_closed(watch);
}

void io_etcd_watch_close(struct io_etcd_watch *watch)
{
    AMP_ASSERT(!watch->closing);
    watch->closing = true;
    end_stream(watch);
    uv_close((uv_handle_t *)&watch->again, on_handle_closed);
}
