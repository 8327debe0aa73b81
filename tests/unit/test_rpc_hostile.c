/*
 * Requests that no good client sends: a bare nghttp2 session on one side, our server's link on the other. What is
 * compared is the answer on the wire: HTTP status, grpc-status, reset code.
 */
#include "tests/unit/rpc_pair.h"

#include <nghttp2/nghttp2.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* The answer to the last request, and the body of the next one. */
struct raw {
    nghttp2_session *session;
    struct rpc_side server;
    int64_t now_ms;
    const uint8_t *body;
    size_t body_size;
    size_t body_used;
    bool end_stream;
    char status[8];
    char grpc_status[8];
    char message[256];
    char accept[32];
    size_t data_size;
    int ended;
    int closed;
    uint32_t reset_code;
};

static struct raw raw;

static void note_closed_call(struct arpc_call *call, const struct arpc_result *result)
{
    rpc_noting.closed(call, result);
}

static void finish(struct arpc_call *call)
{
    rpc_noting.half_close(call);
    arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
}

static struct arpc_handler handler, unary_handler;

static void reply(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)arpc_call_reply(call, data, size);
}

static const struct arpc_method methods[] = {
    {"t.T", "Stream", ARPC_CLIENT_STREAM, false, 0, 1000, &handler},
    {"t.T", "Unary", ARPC_UNARY, false, 0, 1000, &unary_handler},
    {"t.T", "Empty", ARPC_UNARY, false, 0, 1000, NULL},
};

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
    static const struct {
        const char *name;
        char *to;
        size_t capacity;
    } wanted[] = {{":status", raw.status, sizeof raw.status},
                  {"grpc-status", raw.grpc_status, sizeof raw.grpc_status},
                  {"grpc-message", raw.message, sizeof raw.message},
                  {"grpc-accept-encoding", raw.accept, sizeof raw.accept}};
    for (size_t i = 0; i < COUNT(wanted); i++)
        if (strlen(wanted[i].name) == name_size && memcmp(wanted[i].name, name, name_size) == 0)
            copy(wanted[i].to, wanted[i].capacity, value, value_size);
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data, size_t size, void *arg)
{
    (void)session;
    (void)flags;
    (void)id;
    (void)data;
    (void)arg;
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

static int setup(void **state)
{
    (void)state;
    memset(&raw, 0, sizeof raw);
    memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    handler = unary_handler = rpc_noting;
    handler.half_close = finish;
    handler.closed = note_closed_call;
    unary_handler.message = reply;
    nghttp2_session_callbacks *callbacks;
    nghttp2_option *option;
    assert_int_equal(nghttp2_session_callbacks_new(&callbacks), 0);
    assert_int_equal(nghttp2_option_new(&option), 0);
    nghttp2_option_set_no_http_messaging(option, 1); /* it may send anything */
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
    assert_int_equal(nghttp2_session_client_new2(&raw.session, callbacks, NULL, option), 0);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_option_del(option);
    assert_int_equal(nghttp2_submit_settings(raw.session, 0, NULL, 0), 0);
    raw.now_ms = 1000;
    rpc_side_config(&raw.server, true, &raw.now_ms);
    assert_int_equal(arpc_method_table_add(&raw.server.config.methods, methods, COUNT(methods), NULL), 0);
    assert_int_equal(arpc_link_init(&raw.server.link, &raw.server.config, wake, true), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    struct arpc_link *link = &raw.server.link;
    if (link->error == 0)
        arpc_link_fail(link, AMP_EUNAVAILABLE, "over");
    arpc_link_abort(link, ARPC_STATUS_UNAVAILABLE, "the test is over");
    while (arpc_link_flush(link))
        ;
    arpc_link_close(link);
    arpc_method_table_close(&raw.server.config.methods);
    nghttp2_session_del(raw.session);
    assert_int_equal(raw.server.config.calls, 0);
    assert_int_equal(rpc_seen_of_server.after_closed, 0);
    return 0;
}

static void feed(const uint8_t *data, size_t size)
{
    (void)arpc_link_receive(&raw.server.link, data, size); /* tests look at the link's error */
    while (arpc_link_flush(&raw.server.link))
        ;
}

static void run(void)
{
    for (bool moved = true; moved;) {
        const uint8_t *data;
        moved = false;
        for (ssize_t size = nghttp2_session_mem_send(raw.session, &data); size > 0;
             size = nghttp2_session_mem_send(raw.session, &data)) {
            feed(data, (size_t)size);
            moved = true;
        }
        while (arpc_link_flush(&raw.server.link))
            ;
        if (arpc_link_produce(&raw.server.link, &raw.server.batch) != 0)
            return;
        for (size_t i = 0; i < raw.server.batch.count; i++) {
            const struct iovec *slot = &raw.server.batch.slots[i];
            assert_true(nghttp2_session_mem_recv(raw.session, slot->iov_base, slot->iov_len) >= 0);
            moved = true;
        }
        arpc_batch_done(&raw.server.link, &raw.server.batch);
    }
}

struct header {
    const char *name;
    const char *value;
};

#define HEADERS_MAX 160

static void submit(const struct header *headers, size_t count, const void *body, size_t size, bool end_stream)
{
    nghttp2_nv nv[HEADERS_MAX];
    nghttp2_data_provider provider = {.read_callback = read_body};
    assert_true(count <= HEADERS_MAX);
    for (size_t i = 0; i < count; i++)
        nv[i] = (nghttp2_nv){(uint8_t *)(uintptr_t)headers[i].name, (uint8_t *)(uintptr_t)headers[i].value,
                             strlen(headers[i].name), strlen(headers[i].value), NGHTTP2_NV_FLAG_NONE};
    raw.body = body;
    raw.body_size = size;
    raw.body_used = 0;
    raw.end_stream = end_stream;
    raw.closed = raw.ended = 0;
    raw.status[0] = raw.grpc_status[0] = raw.message[0] = raw.accept[0] = 0;
    assert_true(nghttp2_submit_request(raw.session, NULL, nv, count, &provider, NULL) > 0);
    run();
}

/* A request with one more header than a good one has, or another value for one of its headers. */
static void request(const char *path, const char *name, const char *value, const void *body, size_t size, bool end)
{
    struct header headers[8] = {{":method", "POST"}, {":scheme", "http"}, {":path", path},
                                {":authority", "x"}, {"te", "trailers"},  {"content-type", "application/grpc"}};
    size_t count = 6;
    bool known = name == NULL;
    for (size_t i = 0; i < count && !known; i++)
        if (strcmp(headers[i].name, name) == 0) {
            headers[i].value = value;
            known = true;
        }
    if (!known)
        headers[count++] = (struct header){name, value};
    submit(headers, count, body, size, end);
}

static void expect_grpc(int status)
{
    char text[8];
    (void)snprintf(text, sizeof text, "%d", status);
    assert_string_equal(raw.status, "200");
    assert_string_equal(raw.grpc_status, text);
    assert_int_equal(raw.ended, 1);
    assert_int_equal(raw.closed, 1);
    assert_int_equal(raw.data_size, 0);
}

static void another_method_is_405_and_another_content_type_415(void **state)
{
    (void)state;
    request("/t.T/Stream", ":method", "GET", "", 0, true);
    assert_string_equal(raw.status, "405");
    static const char *const types[] = {"text/html", "application/json", "application/grpc+json", "application/grpcx",
                                        "application/grp"};
    for (size_t i = 0; i < COUNT(types); i++) {
        request("/t.T/Stream", "content-type", types[i], "", 0, true);
        assert_string_equal(raw.status, "415");
        assert_string_equal(raw.grpc_status, "");
        assert_int_equal(raw.closed, 1);
    }
    static const char *const good[] = {"application/grpc+proto", "application/grpc;charset=utf-8",
                                       "application/grpc+proto; x"};
    for (size_t i = 0; i < COUNT(good); i++) {
        memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
        request("/t.T/Stream", "content-type", good[i], "", 0, true);
        expect_grpc(ARPC_STATUS_OK);
    }
}

static void paths_match_exactly_or_are_unimplemented(void **state)
{
    (void)state;
    static const char *const paths[] = {"/",
                                        "//",
                                        "/t.T",
                                        "/t.T/",
                                        "/t.T/stream",
                                        "/T.t/Stream",
                                        "/t.T/Stream/",
                                        "//t.T/Stream",
                                        "/t.T//Stream",
                                        "/t.T%2fStream",
                                        "/t.T/Stream?x",
                                        "/t.T/Strea",
                                        "/t.T/Streams",
                                        "/t.TT/Stream",
                                        "/x/../t.T/Stream",
                                        "/t.T/Empty"};
    for (size_t i = 0; i < COUNT(paths); i++) {
        request(paths[i], NULL, NULL, "", 0, true);
        expect_grpc(ARPC_STATUS_UNIMPLEMENTED);
    }
    assert_int_equal(rpc_seen_of_server.started, 0);
}

static void a_bad_timeout_is_never_ignored(void **state)
{
    (void)state;
    static const char *const bad[] = {"1", "S", "1s", "-1S", "100000000S", "1 S"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        request("/t.T/Stream", "grpc-timeout", bad[i], "", 0, true);
        expect_grpc(ARPC_STATUS_INVALID_ARGUMENT);
    }
    assert_int_equal(rpc_seen_of_server.started, 0);
}

static void an_unknown_encoding_is_unimplemented_and_names_what_is_accepted(void **state)
{
    (void)state;
    request("/t.T/Stream", "grpc-encoding", "gzip", "", 0, true);
    expect_grpc(ARPC_STATUS_UNIMPLEMENTED);
    assert_string_equal(raw.accept, "identity");
    request("/t.T/Stream", "grpc-encoding", "identity", "", 0, true);
    expect_grpc(ARPC_STATUS_OK);
}

static void a_compressed_message_without_encoding_is_internal(void **state)
{
    (void)state;
    request("/t.T/Stream", NULL, NULL, "\1\0\0\0\1x", 6, true);
    expect_grpc(ARPC_STATUS_INTERNAL);
    assert_int_equal(rpc_seen_of_server.begun, 0);
    assert_int_equal(rpc_seen_of_server.closed, 1);
}

static void a_message_that_is_cut_off_by_the_end_is_internal(void **state)
{
    (void)state;
    static const uint8_t body[] = "\0\0\0\0\5hello\0\0\0\0\3abc";
    for (size_t size = 1; size < sizeof body - 1; size++) {
        memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
        request("/t.T/Stream", NULL, NULL, body, size, true);
        expect_grpc(size == 10 ? ARPC_STATUS_OK : ARPC_STATUS_INTERNAL);
        assert_int_equal(rpc_seen_of_server.closed, 1);
        assert_int_equal(rpc_seen_of_server.half_closed, size == 10);
    }
}

static void a_prefix_of_4_gib_is_refused_without_waiting_for_it(void **state)
{
    (void)state;
    request("/t.T/Stream", NULL, NULL, "\0\xff\xff\xff\xff", 5, false);
    expect_grpc(ARPC_STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(raw.reset_code, NGHTTP2_NO_ERROR);
    assert_int_equal(rpc_seen_of_server.begun, 0);
    memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    request("/t.T/Unary", NULL, NULL, "\0\xff\xff\xff\xff", 5, false);
    expect_grpc(ARPC_STATUS_RESOURCE_EXHAUSTED);
}

static void an_answer_before_the_end_of_the_request_resets_with_no_error(void **state)
{
    (void)state;
    request("/t.T/Nowhere", NULL, NULL, "\0\0\0\0\1x", 6, false);
    expect_grpc(ARPC_STATUS_UNIMPLEMENTED);
    assert_int_equal(raw.reset_code, NGHTTP2_NO_ERROR);
}

static void too_many_or_too_large_headers_are_refused_and_the_connection_lives(void **state)
{
    (void)state;
    static char big[9000];
    memset(big, 'v', sizeof big - 1);
    request("/t.T/Stream", "x-big", big, "", 0, true);
    expect_grpc(ARPC_STATUS_RESOURCE_EXHAUSTED);
    static char names[HEADERS_MAX][8];
    struct header headers[HEADERS_MAX] = {{":method", "POST"},      {":scheme", "http"},
                                          {":path", "/t.T/Stream"}, {":authority", "x"},
                                          {"te", "trailers"},       {"content-type", "application/grpc"}};
    for (size_t i = 6; i < HEADERS_MAX; i++) {
        (void)snprintf(names[i], sizeof names[i], "h%zu", i);
        headers[i] = (struct header){names[i], "v"};
    }
    submit(headers, 70, "", 0, true);
    expect_grpc(ARPC_STATUS_RESOURCE_EXHAUSTED);
    submit(headers, HEADERS_MAX, "", 0, true); /* far beyond: not even answered */
    assert_int_equal(raw.closed, 1);
    assert_int_equal(raw.reset_code, NGHTTP2_INTERNAL_ERROR);
    submit(headers, 20, "", 0, true);
    expect_grpc(ARPC_STATUS_OK);
}

static void a_header_block_that_does_not_end_is_given_up_and_a_refused_one_is_not(void **state)
{
    (void)state;
    /* HEADERS of stream 3 with 100 bytes announced and one there. */
    static const uint8_t begun[] = {0, 0, 100, 1, 4, 0, 0, 0, 3, 0x82};
    struct arpc_link *link = &raw.server.link;
    request("/t.T/Stream", "X-Upper", "is malformed", "", 0, true);
    assert_int_equal(raw.closed, 1);
    raw.now_ms += ARPC_HANDSHAKE_MS;
    arpc_link_tick(link);
    assert_int_equal(link->error, 0);
    feed(begun, sizeof begun);
    raw.now_ms += ARPC_HANDSHAKE_MS - 1;
    arpc_link_tick(link);
    assert_int_equal(link->error, 0);
    raw.now_ms += 1;
    arpc_link_tick(link);
    assert_int_equal(link->error, AMP_EDEADLINE);
}

static void http_1_is_refused_at_the_first_bytes(void **state)
{
    (void)state;
    static const char text[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    feed((const uint8_t *)text, sizeof text - 1);
    assert_int_not_equal(raw.server.link.error, 0);
    assert_true(arpc_link_is_over(&raw.server.link));
}

static void a_flood_of_pings_ends_the_connection(void **state)
{
    (void)state;
    const uint8_t *data;
    run();
    for (int i = 0; i < 5000 && raw.server.link.error == 0; i++) {
        assert_int_equal(nghttp2_submit_ping(raw.session, 0, NULL), 0);
        for (ssize_t size = nghttp2_session_mem_send(raw.session, &data); size > 0;
             size = nghttp2_session_mem_send(raw.session, &data))
            feed(data, (size_t)size);
    }
    assert_int_not_equal(raw.server.link.error, 0);
}

static void rapid_resets_end_the_connection_and_leave_no_call(void **state)
{
    (void)state;
    static const struct header headers[] = {
        {":method", "POST"}, {":scheme", "http"}, {":path", "/t.T/Unary"},
        {":authority", "x"}, {"te", "trailers"},  {"content-type", "application/grpc"},
    };
    run();
    for (int i = 0; i < 3000 && nghttp2_session_want_read(raw.session) != 0; i++) {
        memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
        submit(headers, COUNT(headers), "", 0, false);
        (void)nghttp2_submit_rst_stream(raw.session, 0, 2 * i + 1, NGHTTP2_CANCEL);
        run();
        assert_true(raw.server.config.calls <= 1);
        if (nghttp2_session_check_request_allowed(raw.session) == 0)
            break;
    }
    assert_int_equal(nghttp2_session_check_request_allowed(raw.session), 0);
}

static void random_bytes_after_the_preface_never_break_the_link(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 300; round++) {
        uint8_t bytes[600];
        (void)teardown(state);
        (void)setup(state);
        if (round % 2 == 0)
            run();
        else
            feed((const uint8_t *)NGHTTP2_CLIENT_MAGIC, NGHTTP2_CLIENT_MAGIC_LEN);
        for (size_t i = 0; i < sizeof bytes; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = (uint8_t)(seed >> 56);
        }
        /* Plausible frame headers in front get further than noise. */
        for (size_t i = 0; i + 60 < sizeof bytes; i += 60) {
            bytes[i] = bytes[i + 1] = 0;
            bytes[i + 2] = 51;
            bytes[i + 3] %= 10;
            bytes[i + 5] = bytes[i + 6] = bytes[i + 7] = 0;
            bytes[i + 8] %= 8;
        }
        feed(bytes, sizeof bytes);
        (void)arpc_link_produce(&raw.server.link, &raw.server.batch); /* whatever it says */
        arpc_batch_done(&raw.server.link, &raw.server.batch);
    }
    assert_true(raw.server.config.calls <= 256);
}

int main(void)
{
#define WITH_RAW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_RAW(another_method_is_405_and_another_content_type_415),
        WITH_RAW(paths_match_exactly_or_are_unimplemented),
        WITH_RAW(a_bad_timeout_is_never_ignored),
        WITH_RAW(an_unknown_encoding_is_unimplemented_and_names_what_is_accepted),
        WITH_RAW(a_compressed_message_without_encoding_is_internal),
        WITH_RAW(a_message_that_is_cut_off_by_the_end_is_internal),
        WITH_RAW(a_prefix_of_4_gib_is_refused_without_waiting_for_it),
        WITH_RAW(an_answer_before_the_end_of_the_request_resets_with_no_error),
        WITH_RAW(too_many_or_too_large_headers_are_refused_and_the_connection_lives),
        WITH_RAW(a_header_block_that_does_not_end_is_given_up_and_a_refused_one_is_not),
        WITH_RAW(http_1_is_refused_at_the_first_bytes),
        WITH_RAW(a_flood_of_pings_ends_the_connection),
        WITH_RAW(rapid_resets_end_the_connection_and_leave_no_call),
        WITH_RAW(random_bytes_after_the_preface_never_break_the_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
