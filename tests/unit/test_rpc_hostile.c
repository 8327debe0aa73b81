/*
 * Requests that no good client sends: a bare nghttp2 session on one side, our server's link on the other. What is
 * compared is the answer on the wire: HTTP status, grpc-status, reset code.
 */
#include "tests/unit/rpc_raw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define COUNT(a) (sizeof a / sizeof *(a))
#define KIB      ((size_t)1024)

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

/* Of many calls at once, of which the notes would be about the last. */
static void note_nothing(struct arpc_call *call, const struct arpc_result *result)
{
    (void)call;
    (void)result;
}

static const struct arpc_handler unnoted = {.closed = note_nothing};

static const struct arpc_method methods[] = {
    {"t.T", "Stream", ARPC_CLIENT_STREAM, false, 0, 1000, &handler},
    {"t.T", "Unary", ARPC_UNARY, false, 0, 1000, &unary_handler},
    {"t.T", "Unnoted", ARPC_CLIENT_STREAM, false, 0, 1000, &unnoted},
    {"t.T", "Empty", ARPC_UNARY, false, 0, 1000, NULL},
};

static int setup(void **state)
{
    (void)state;
    handler = unary_handler = rpc_noting;
    handler.half_close = finish;
    handler.closed = note_closed_call;
    unary_handler.message = reply;
    rpc_raw_open(methods, COUNT(methods), NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rpc_raw_close();
    return 0;
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
    rpc_raw_request("/t.T/Stream", ":method", "GET", "", 0, true);
    assert_string_equal(raw.status, "405");
    static const char *const types[] = {"text/html", "application/json", "application/grpc+json", "application/grpcx",
                                        "application/grp"};
    for (size_t i = 0; i < COUNT(types); i++) {
        rpc_raw_request("/t.T/Stream", "content-type", types[i], "", 0, true);
        assert_string_equal(raw.status, "415");
        assert_string_equal(raw.grpc_status, "");
        assert_int_equal(raw.closed, 1);
    }
    static const char *const good[] = {"application/grpc+proto", "application/grpc;charset=utf-8",
                                       "application/grpc+proto; x"};
    for (size_t i = 0; i < COUNT(good); i++) {
        memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
        rpc_raw_request("/t.T/Stream", "content-type", good[i], "", 0, true);
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
        rpc_raw_request(paths[i], NULL, NULL, "", 0, true);
        expect_grpc(ARPC_STATUS_UNIMPLEMENTED);
    }
    assert_int_equal(rpc_seen_of_server.started, 0);
}

static void a_bad_timeout_is_never_ignored(void **state)
{
    (void)state;
    static const char *const bad[] = {"1", "S", "1s", "-1S", "100000000S", "1 S"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        rpc_raw_request("/t.T/Stream", "grpc-timeout", bad[i], "", 0, true);
        expect_grpc(ARPC_STATUS_INVALID_ARGUMENT);
    }
    const struct rpc_raw_header twice[] = {
        {":method", "POST"}, {":scheme", "http"},    {":path", "/t.T/Stream"},
        {":authority", "x"}, {"grpc-timeout", "1s"}, {"content-type", "application/grpc"},
        {"te", "trailers"},  {"grpc-timeout", "1S"},
    };
    rpc_raw_submit(twice, COUNT(twice), "", 0, true);
    expect_grpc(ARPC_STATUS_INVALID_ARGUMENT);
    assert_int_equal(rpc_seen_of_server.started, 0);
}

static void an_unknown_encoding_is_unimplemented_and_names_what_is_accepted(void **state)
{
    (void)state;
    static const char *const unknown[] = {"deflate", "br", "GZIP", "gzip,identity", ""};
    for (size_t i = 0; i < COUNT(unknown); i++) {
        rpc_raw_request("/t.T/Stream", "grpc-encoding", unknown[i], "", 0, true);
        expect_grpc(ARPC_STATUS_UNIMPLEMENTED);
        assert_string_equal(rpc_raw_value("grpc-accept-encoding", 0), "identity,gzip");
    }
    rpc_raw_request("/t.T/Stream", "grpc-encoding", "identity", "", 0, true);
    expect_grpc(ARPC_STATUS_OK);
}

static void a_compressed_message_without_encoding_is_internal(void **state)
{
    (void)state;
    rpc_raw_request("/t.T/Stream", NULL, NULL, "\1\0\0\0\1x", 6, true);
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
        rpc_raw_request("/t.T/Stream", NULL, NULL, body, size, true);
        expect_grpc(size == 10 ? ARPC_STATUS_OK : ARPC_STATUS_INTERNAL);
        assert_int_equal(rpc_seen_of_server.closed, 1);
        assert_int_equal(rpc_seen_of_server.half_closed, size == 10);
    }
}

static void a_prefix_of_4_gib_is_refused_without_waiting_for_it(void **state)
{
    (void)state;
    rpc_raw_request("/t.T/Stream", NULL, NULL, "\0\xff\xff\xff\xff", 5, false);
    expect_grpc(ARPC_STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(raw.reset_code, NGHTTP2_NO_ERROR);
    assert_int_equal(rpc_seen_of_server.begun, 0);
    memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    rpc_raw_request("/t.T/Unary", NULL, NULL, "\0\xff\xff\xff\xff", 5, false);
    expect_grpc(ARPC_STATUS_RESOURCE_EXHAUSTED);
}

static void an_answer_before_the_end_of_the_request_resets_with_no_error(void **state)
{
    (void)state;
    rpc_raw_request("/t.T/Nowhere", NULL, NULL, "\0\0\0\0\1x", 6, false);
    expect_grpc(ARPC_STATUS_UNIMPLEMENTED);
    assert_int_equal(raw.reset_code, NGHTTP2_NO_ERROR);
}

/* What nghttp2 has made the head of goes as it is, for a client may take it for whole. */
static void a_cancel_drops_all_but_the_frame_under_way(void **state)
{
    (void)state;
    static const uint8_t zeros[6 * KIB];
    struct arpc_link *link = &raw.server.link;
    raw.server.batch.most = 4 * KIB;
    (void)rpc_raw_request("/t.T/Stream", NULL, NULL, "", 0, false);
    struct arpc_call *call = rpc_seen_of_server.call;
    for (int i = 0; i < 3; i++)
        assert_int_equal(arpc_call_send(call, zeros, sizeof zeros - ARPC_PREFIX_SIZE, NULL, 0, NULL, NULL), 0);
    while (arpc_link_flush(link))
        ;
    assert_int_equal(arpc_link_produce(link, &raw.server.batch), 0);
    for (size_t i = 0; i < raw.server.batch.count; i++)
        assert_true(nghttp2_session_mem_recv(raw.session, raw.server.batch.slots[i].iov_base,
                                             raw.server.batch.slots[i].iov_len) >= 0);
    arpc_batch_done(link, &raw.server.batch);
    assert_int_equal(link->queued, 14 * KIB); /* the next frame has the last 2 KiB of the first message */
    arpc_call_cancel(call, ARPC_STATUS_ABORTED, "a test");
    while (arpc_link_flush(link))
        ;
    assert_int_equal(link->queued, 8 * KIB);
    rpc_raw_run();
    assert_int_equal(raw.data_size, 8 * KIB);
    assert_string_equal(raw.grpc_status, "10");
    assert_int_equal(link->queued, 0);
}

static void too_many_or_too_large_headers_are_refused_and_the_connection_lives(void **state)
{
    (void)state;
    static char big[9000];
    memset(big, 'v', sizeof big - 1);
    rpc_raw_request("/t.T/Stream", "x-big", big, "", 0, true);
    expect_grpc(ARPC_STATUS_RESOURCE_EXHAUSTED);
    static char names[RPC_RAW_HEADERS_MAX][8];
    struct rpc_raw_header headers[RPC_RAW_HEADERS_MAX] = {
        {":method", "POST"}, {":scheme", "http"}, {":path", "/t.T/Stream"},
        {":authority", "x"}, {"te", "trailers"},  {"content-type", "application/grpc"}};
    for (size_t i = 6; i < RPC_RAW_HEADERS_MAX; i++) {
        (void)snprintf(names[i], sizeof names[i], "h%zu", i);
        headers[i] = (struct rpc_raw_header){names[i], "v"};
    }
    rpc_raw_submit(headers, 70, "", 0, true);
    expect_grpc(ARPC_STATUS_RESOURCE_EXHAUSTED);
    rpc_raw_submit(headers, RPC_RAW_HEADERS_MAX, "", 0, true);
    expect_grpc(ARPC_STATUS_RESOURCE_EXHAUSTED);
    rpc_raw_submit(headers, 20, "", 0, true);
    expect_grpc(ARPC_STATUS_OK);
}

static void a_header_block_that_does_not_end_is_given_up_and_a_refused_one_is_not(void **state)
{
    (void)state;
    /* HEADERS of stream 3 with 100 bytes announced and one there. */
    static const uint8_t begun[] = {0, 0, 100, 1, 4, 0, 0, 0, 3, 0x82};
    struct arpc_link *link = &raw.server.link;
    rpc_raw_request("/t.T/Stream", "X-Upper", "is malformed", "", 0, true);
    assert_int_equal(raw.closed, 1);
    raw.now_ms += ARPC_HANDSHAKE_MS;
    arpc_link_tick(link);
    assert_int_equal(link->error, 0);
    rpc_raw_feed(begun, sizeof begun);
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
    rpc_raw_feed(text, sizeof text - 1);
    assert_int_not_equal(raw.server.link.error, 0);
    assert_true(arpc_link_is_over(&raw.server.link));
}

/* Frames of 1 MiB are offered, header blocks of 64 KiB are taken; the head of the frame is enough. */
static void a_header_frame_larger_than_any_block_ends_the_connection(void **state)
{
    (void)state;
    static const uint8_t head[9] = {0x10, 0, 1, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 0, 0, 0, 1};
    rpc_raw_run();
    rpc_raw_feed(head, sizeof head);
    rpc_raw_run();
    assert_int_equal(raw.goaways, 1);
    assert_int_equal(raw.goaway_code, NGHTTP2_ENHANCE_YOUR_CALM);
}

static void a_flood_of_pings_ends_the_connection(void **state)
{
    (void)state;
    const uint8_t *data;
    raw.server.config.min_ping_interval_ms = 0; /* also where they are not counted as strikes */
    rpc_raw_run();
    for (int i = 0; i < 5000 && !raw.server.link.goaway.expelled; i++) {
        assert_int_equal(nghttp2_submit_ping(raw.session, 0, NULL), 0);
        for (ssize_t size = nghttp2_session_mem_send(raw.session, &data); size > 0;
             size = nghttp2_session_mem_send(raw.session, &data))
            rpc_raw_feed(data, (size_t)size);
    }
    assert_int_equal(raw.server.link.abuse, ARPC_ABUSE_PINGS);
}

static void rapid_resets_end_the_connection_and_leave_no_call(void **state)
{
    (void)state;
    static const struct rpc_raw_header headers[] = {
        {":method", "POST"}, {":scheme", "http"}, {":path", "/t.T/Unary"},
        {":authority", "x"}, {"te", "trailers"},  {"content-type", "application/grpc"},
    };
    rpc_raw_run();
    for (int i = 0; i < 3000 && nghttp2_session_want_read(raw.session) != 0; i++) {
        memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
        rpc_raw_submit(headers, COUNT(headers), "", 0, false);
        (void)nghttp2_submit_rst_stream(raw.session, 0, 2 * i + 1, NGHTTP2_CANCEL);
        rpc_raw_run();
        assert_true(raw.server.config.calls <= 1);
        if (nghttp2_session_check_request_allowed(raw.session) == 0)
            break;
    }
    assert_int_equal(nghttp2_session_check_request_allowed(raw.session), 0);
}

/* Gives the server what the client has to say, and has it tell no call anything: more comes in the same turn. */
static void say_in_one_turn(void)
{
    const uint8_t *data;
    ssize_t size;
    while ((size = nghttp2_session_mem_send(raw.session, &data)) > 0)
        assert_int_equal(arpc_link_receive(&raw.server.link, data, (size_t)size), 0);
}

static void a_request_behind_many_that_were_cancelled_in_the_same_turn_is_refused_and_may_come_again(void **state)
{
    (void)state;
    static const char *const fields[][2] = {{":method", "POST"},       {":scheme", "http"},
                                            {":path", "/t.T/Unnoted"}, {":authority", "x"},
                                            {"te", "trailers"},        {"content-type", "application/grpc"}};
    nghttp2_nv nv[COUNT(fields)];
    for (size_t i = 0; i < COUNT(fields); i++)
        nv[i] = (nghttp2_nv){(uint8_t *)(uintptr_t)fields[i][0], (uint8_t *)(uintptr_t)fields[i][1],
                             strlen(fields[i][0]), strlen(fields[i][1]), NGHTTP2_NV_FLAG_NONE};
    rpc_raw_run();
    raw.server.config.max_streams = 4;
    size_t most = 4 * (size_t)arpc_limits_default.calls_factor;
    for (size_t i = 0; i < most; i++) {
        int32_t id = nghttp2_submit_request(raw.session, NULL, nv, COUNT(nv), NULL, NULL);
        say_in_one_turn();
        (void)nghttp2_submit_rst_stream(raw.session, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
        say_in_one_turn();
    }
    assert_int_equal(raw.server.link.call_count, most);
    rpc_raw_request("/t.T/Stream", NULL, NULL, NULL, 0, true);
    assert_int_equal(raw.resets, 1);
    assert_int_equal(raw.reset_code, NGHTTP2_REFUSED_STREAM);
    rpc_raw_request("/t.T/Stream", NULL, NULL, NULL, 0, true);
    expect_grpc(ARPC_STATUS_OK);
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
            rpc_raw_run();
        else
            rpc_raw_feed(NGHTTP2_CLIENT_MAGIC, NGHTTP2_CLIENT_MAGIC_LEN);
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
        rpc_raw_feed(bytes, sizeof bytes);
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
        WITH_RAW(a_cancel_drops_all_but_the_frame_under_way),
        WITH_RAW(too_many_or_too_large_headers_are_refused_and_the_connection_lives),
        WITH_RAW(a_header_block_that_does_not_end_is_given_up_and_a_refused_one_is_not),
        WITH_RAW(http_1_is_refused_at_the_first_bytes),
        WITH_RAW(a_header_frame_larger_than_any_block_ends_the_connection),
        WITH_RAW(a_flood_of_pings_ends_the_connection),
        WITH_RAW(rapid_resets_end_the_connection_and_leave_no_call),
        WITH_RAW(a_request_behind_many_that_were_cancelled_in_the_same_turn_is_refused_and_may_come_again),
        WITH_RAW(random_bytes_after_the_preface_never_break_the_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
