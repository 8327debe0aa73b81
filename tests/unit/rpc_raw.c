#include "tests/unit/rpc_raw.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rpc_raw raw;

static void wake(struct arpc_link *link)
{
    (void)link;
}

static void copy(char *to, size_t capacity, const uint8_t *value, size_t size)
{
    (void)snprintf(to, capacity, "%.*s", (int)size, (const char *)value);
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_size,
                     const uint8_t *value, size_t value_size, uint8_t flags, void *arg)
{
    (void)session;
    (void)frame;
    (void)flags;
    (void)arg;
    size_t used = strlen(raw.headers);
    (void)snprintf(raw.headers + used, sizeof raw.headers - used, "%.*s: %.*s\n", (int)name_size, (const char *)name,
                   (int)value_size, (const char *)value);
    if (name_size == 7 && memcmp(name, ":status", 7) == 0)
        copy(raw.status, sizeof raw.status, value, value_size);
    if (name_size == 11 && memcmp(name, "grpc-status", 11) == 0)
        copy(raw.grpc_status, sizeof raw.grpc_status, value, value_size);
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data, size_t size, void *arg)
{
    (void)session;
    (void)flags;
    (void)id;
    (void)arg;
    for (size_t i = 0; i < size && raw.data_size + i < sizeof raw.data; i++)
        raw.data[raw.data_size + i] = data[i];
    raw.data_size += size;
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    (void)session;
    (void)arg;
    bool stream = frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA;
    if (stream && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0)
        raw.ended++;
    if (frame->hd.type == NGHTTP2_RST_STREAM)
        raw.resets++;
    if (frame->hd.type == NGHTTP2_GOAWAY) {
        raw.goaways++;
        raw.goaway_stream = frame->goaway.last_stream_id;
        raw.goaway_code = frame->goaway.error_code;
        copy(raw.goaway_debug, sizeof raw.goaway_debug, frame->goaway.opaque_data, frame->goaway.opaque_data_len);
    }
    return 0;
}

static int on_close(nghttp2_session *session, int32_t id, uint32_t code, void *arg)
{
    (void)session;
    (void)id;
    (void)arg;
    raw.closed++;
    raw.reset_code = code;
    return 0;
}

static ssize_t read_body(nghttp2_session *session, int32_t id, uint8_t *buf, size_t length, uint32_t *flags,
                         nghttp2_data_source *source, void *arg)
{
    (void)session;
    (void)id;
    (void)source;
    (void)arg;
    size_t left = raw.body_size - raw.body_used;
    size_t size = left < length ? left : length;
    if (size == 0 && !raw.end_stream)
        return NGHTTP2_ERR_DEFERRED;
    if (size > 0)
        memcpy(buf, raw.body + raw.body_used, size);
    raw.body_used += size;
    if (size == left && raw.end_stream)
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    return (ssize_t)size;
}

static void open_client(void)
{
    nghttp2_session_callbacks *callbacks;
    nghttp2_option *option;
    AMP_ASSERT(nghttp2_session_callbacks_new(&callbacks) == 0);
    AMP_ASSERT(nghttp2_option_new(&option) == 0);
    nghttp2_option_set_no_http_messaging(option, 1); /* it may send anything */
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
    AMP_ASSERT(nghttp2_session_client_new2(&raw.session, callbacks, NULL, option) == 0);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_option_del(option);
    AMP_ASSERT(nghttp2_submit_settings(raw.session, 0, NULL, 0) == 0);
}

void rpc_raw_open(const struct arpc_method *methods, size_t count, void (*prepare)(struct arpc_link_config *config))
{
    memset(&raw, 0, sizeof raw);
    memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    open_client();
    raw.now_ms = 1000;
    rpc_side_config(&raw.server, true, &raw.now_ms);
    if (prepare != NULL)
        prepare(&raw.server.config);
    AMP_ASSERT(arpc_method_table_add(&raw.server.config.methods, methods, count, NULL) == 0);
    AMP_ASSERT(arpc_link_init(&raw.server.link, &raw.server.config, wake, true) == 0);
}

void rpc_raw_close(void)
{
    struct arpc_link *link = &raw.server.link;
    if (link->error == 0)
        arpc_link_fail(link, AMP_EUNAVAILABLE, "over");
    arpc_link_abort(link, ARPC_STATUS_UNAVAILABLE, "the test is over");
    while (arpc_link_flush(link))
        ;
    arpc_link_close(link);
    arpc_method_table_close(&raw.server.config.methods);
    nghttp2_session_del(raw.session);
    AMP_ASSERT(raw.server.config.calls == 0);
    AMP_ASSERT(rpc_seen_of_server.after_closed == 0);
}

void rpc_raw_feed(const void *data, size_t size)
{
    (void)arpc_link_receive(&raw.server.link, data, size); /* tests look at the link's error */
    while (arpc_link_flush(&raw.server.link))
        ;
}

void rpc_raw_run(void)
{
    for (bool moved = true; moved;) {
        const uint8_t *data;
        moved = false;
        for (ssize_t size = nghttp2_session_mem_send(raw.session, &data); size > 0;
             size = nghttp2_session_mem_send(raw.session, &data)) {
            rpc_raw_feed(data, (size_t)size);
            moved = true;
        }
        while (arpc_link_flush(&raw.server.link))
            ;
        if (arpc_link_produce(&raw.server.link, &raw.server.batch) != 0)
            return;
        for (size_t i = 0; i < raw.server.batch.count; i++) {
            const struct iovec *slot = &raw.server.batch.slots[i];
            AMP_ASSERT(nghttp2_session_mem_recv(raw.session, slot->iov_base, slot->iov_len) >= 0);
            moved = true;
        }
        arpc_batch_done(&raw.server.link, &raw.server.batch);
    }
}

void rpc_raw_pass(int64_t ms)
{
    raw.now_ms += ms;
    arpc_link_tick(&raw.server.link);
    rpc_raw_run();
}

int32_t rpc_raw_submit(const struct rpc_raw_header *headers, size_t count, const void *body, size_t size,
                       bool end_stream)
{
    nghttp2_nv nv[RPC_RAW_HEADERS_MAX];
    nghttp2_data_provider provider = {.read_callback = read_body};
    AMP_ASSERT(count <= RPC_RAW_HEADERS_MAX);
    for (size_t i = 0; i < count; i++)
        nv[i] = (nghttp2_nv){(uint8_t *)(uintptr_t)headers[i].name, (uint8_t *)(uintptr_t)headers[i].value,
                             strlen(headers[i].name), strlen(headers[i].value), NGHTTP2_NV_FLAG_NONE};
    raw.body = body;
    raw.body_size = size;
    raw.body_used = 0;
    raw.end_stream = end_stream;
    raw.closed = raw.ended = raw.resets = 0;
    raw.data_size = 0;
    raw.headers[0] = raw.status[0] = raw.grpc_status[0] = 0;
    int32_t id = nghttp2_submit_request(raw.session, NULL, nv, count, body != NULL ? &provider : NULL, NULL);
    AMP_ASSERT(id > 0);
    rpc_raw_run();
    return id;
}

int32_t rpc_raw_request(const char *path, const char *name, const char *value, const void *body, size_t size, bool end)
{
    struct rpc_raw_header headers[8] = {{":method", "POST"}, {":scheme", "http"}, {":path", path},
                                        {":authority", "x"}, {"te", "trailers"},  {"content-type", "application/grpc"}};
    size_t count = 6;
    size_t at = 0;
    while (name != NULL && at < count && strcmp(headers[at].name, name) != 0)
        at++;
    if (name != NULL && value != NULL) {
        headers[at] = (struct rpc_raw_header){name, value};
        count += at == count;
    } else if (name != NULL && at < count) {
        headers[at] = headers[--count];
    }
    return rpc_raw_submit(headers, count, body, size, end);
}

const char *rpc_raw_value(const char *name, size_t index)
{
    static char value[sizeof raw.headers];
    size_t size = strlen(name);
    for (const char *line = raw.headers; *line != 0; line = strchr(line, '\n') + 1) {
        if (strncmp(line, name, size) != 0 || strncmp(line + size, ": ", 2) != 0 || index-- > 0)
            continue;
        copy(value, sizeof value, (const uint8_t *)line + size + 2, strcspn(line + size + 2, "\n"));
        return value;
    }
    return "";
}
