/*
 * Compressed messages: the inflater alone, requests of a bare client that are compressed well or badly, and our two
 * sides together. Compressed bytes are made by zlib itself.
 */
#include "rpc/wire/inflate.h"
#include "tests/unit/rpc_raw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define COUNT(a)    (sizeof a / sizeof *(a))
#define MESSAGE_MAX 20000

/* ---- the inflater ---- */

struct bytes {
    uint8_t data[70000];
    size_t size;
};

static struct bytes packed;

/* Compresses bytes as gzip, at the best level, behind a message's prefix if `prefix`. */
static void pack(const void *data, size_t size, bool prefix)
{
    z_stream stream = {0};
    size_t head = prefix ? ARPC_PREFIX_SIZE : 0;
    assert_int_equal(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
    stream.next_in = (Bytef *)(uintptr_t)data;
    stream.avail_in = (uInt)size;
    stream.next_out = packed.data + head;
    stream.avail_out = (uInt)(sizeof packed.data - head);
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    packed.size = head + stream.total_out;
    if (prefix)
        arpc_prefix_write(packed.data, 1, (uint32_t)stream.total_out);
    assert_int_equal(deflateEnd(&stream), Z_OK);
}

static const uint8_t *noise(size_t size)
{
    static uint8_t data[65536];
    uint64_t seed = 7;
    assert_true(size <= sizeof data);
    for (size_t i = 0; i < size; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        data[i] = (uint8_t)(seed >> 56);
    }
    return data;
}

/* What taking the packed bytes in pieces of one size returns; `out` has the result. */
static int take(size_t size, size_t piece, size_t max, struct amp_buf *out, bool *whole)
{
    struct arpc_inflate *state = arpc_inflate_new();
    int rc = 0;
    assert_non_null(state);
    amp_buf_init(out, max);
    for (size_t at = 0; at < size && rc == 0; at += piece)
        rc = arpc_inflate_take(state, packed.data + at, size - at < piece ? size - at : piece, out);
    *whole = arpc_inflate_is_whole(state);
    arpc_inflate_free(state);
    return rc;
}

static void what_is_inflated_is_the_same_for_every_split(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 255, 4096, 4097, 8192, 65536};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        pack(noise(sizes[i]), sizes[i], false);
        for (size_t piece = 1; piece <= packed.size; piece = piece * 3 + 1) {
            struct amp_buf out;
            bool whole;
            assert_int_equal(take(packed.size, piece, sizes[i], &out, &whole), 0);
            assert_true(whole);
            assert_int_equal(out.size, sizes[i]);
            if (sizes[i] > 0)
                assert_memory_equal(out.data, noise(sizes[i]), sizes[i]);
            amp_buf_close(&out);
        }
    }
}

static void a_bomb_stops_at_the_limit_and_takes_no_more_memory_than_that(void **state)
{
    (void)state;
    static uint8_t zeros[1 << 20];
    static const size_t limits[] = {0, 1, 1000, 4096, 65536, (1 << 20) - 1};
    pack(zeros, sizeof zeros, false);
    assert_true(packed.size < 1100);
    for (size_t i = 0; i < COUNT(limits); i++) {
        struct amp_buf out;
        bool whole;
        assert_int_equal(take(packed.size, packed.size, limits[i], &out, &whole), AMP_EEXHAUSTED);
        assert_true(out.size <= limits[i]);
        assert_true(out.capacity <= limits[i]);
        amp_buf_close(&out);
    }
}

static void what_is_cut_short_is_never_whole(void **state)
{
    (void)state;
    pack(noise(500), 500, false);
    for (size_t size = 0; size < packed.size; size++) {
        struct amp_buf out;
        bool whole;
        assert_int_equal(take(size, 64, 500, &out, &whole), 0);
        assert_false(whole);
        amp_buf_close(&out);
    }
}

static void what_is_damaged_or_goes_on_after_its_end_is_refused(void **state)
{
    (void)state;
    pack("hello, hello, hello", 19, false);
    size_t refused = 0;
    for (size_t i = 0; i < packed.size; i++) {
        struct amp_buf out;
        bool whole;
        packed.data[i] ^= 0xff;
        int rc = take(packed.size, 7, 1000, &out, &whole);
        /* A header byte that means nothing (time, system) may be anything; whatever is whole has the right checksum. */
        if (rc == 0 && whole)
            assert_true(out.size == 19 && memcmp(out.data, "hello, hello, hello", 19) == 0);
        refused += rc != 0 || !whole;
        amp_buf_close(&out);
        packed.data[i] ^= 0xff;
    }
    assert_true(refused > packed.size / 2);
    struct amp_buf out;
    bool whole;
    packed.data[packed.size] = 0;
    assert_int_equal(take(packed.size + 1, 1000, 1000, &out, &whole), AMP_EINVAL);
    amp_buf_close(&out);
}

static void what_is_deflated_comes_back_or_is_not_smaller(void **state)
{
    (void)state;
    struct amp_buf out, back;
    bool whole;
    char text[4000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "abcdefgh"[i / 3 % 8];
    amp_buf_init(&out, sizeof text - 1);
    assert_int_equal(arpc_deflate((const uint8_t *)text, sizeof text, &out), 0);
    assert_true(out.size < 400);
    memcpy(packed.data, out.data, out.size);
    assert_int_equal(take(out.size, out.size, sizeof text, &back, &whole), 0);
    assert_true(whole);
    assert_int_equal(back.size, sizeof text);
    assert_memory_equal(back.data, text, sizeof text);
    amp_buf_close(&back);
    amp_buf_close(&out);
    amp_buf_init(&out, 4095);
    assert_int_equal(arpc_deflate(noise(4096), 4096, &out), AMP_EEXHAUSTED);
    assert_int_equal(out.size, 0);
    amp_buf_close(&out);
}

/* ---- requests ---- */

static int pause_at; /* callback of a piecewise handler at which the call is paused: 1 begin, 2 bytes, 3 end */

static void pause_here(struct arpc_call *call, int stage)
{
    if (pause_at == stage)
        arpc_call_pause(call);
}

static void piece_begin(struct arpc_call *call, size_t size)
{
    rpc_noting.message_begin(call, size);
    pause_here(call, 1);
}

static void piece_bytes(struct arpc_call *call, const uint8_t *data, size_t size)
{
    rpc_noting.message_bytes(call, data, size);
    pause_here(call, 2);
}

static void piece_end(struct arpc_call *call)
{
    rpc_noting.message_end(call);
    pause_here(call, 3);
}

static void finish(struct arpc_call *call)
{
    rpc_noting.half_close(call);
    arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
}

static void echo(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)arpc_call_reply(call, data, size);
}

static struct arpc_handler pieces, unary;

static const struct arpc_method methods[] = {
    {"t.T", "Pieces", ARPC_CLIENT_STREAM, false, 0, MESSAGE_MAX, &pieces},
    {"t.T", "Unary", ARPC_UNARY, false, 0, MESSAGE_MAX, &unary},
};

static bool compresses;

static void prepare(struct arpc_link_config *config)
{
    config->compress = compresses;
}

static int setup(void **state)
{
    (void)state;
    pieces = unary = rpc_noting;
    pieces.message_begin = piece_begin;
    pieces.message_bytes = piece_bytes;
    pieces.message_end = piece_end;
    pieces.half_close = finish;
    unary.message = echo;
    pause_at = 0;
    rpc_raw_open(methods, COUNT(methods), prepare);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rpc_raw_close();
    compresses = false;
    return 0;
}

static void expect_status(int status)
{
    char text[8];
    (void)snprintf(text, sizeof text, "%d", status);
    assert_string_equal(raw.status, "200");
    assert_string_equal(raw.grpc_status, text);
    assert_int_equal(raw.closed, 1);
    assert_int_equal(rpc_seen_of_server.closed, 1);
    memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
}

static void send_packed(const char *path)
{
    rpc_raw_request(path, "grpc-encoding", "gzip", packed.data, packed.size, true);
}

static void a_compressed_request_is_inflated(void **state)
{
    (void)state;
    pack("hello", 5, true);
    send_packed("/t.T/Unary");
    assert_int_equal(raw.data_size, 10);
    assert_memory_equal(raw.data, "\0\0\0\0\5hello", 10);
    expect_status(ARPC_STATUS_OK);
    pack("", 0, true);
    send_packed("/t.T/Unary");
    assert_int_equal(raw.data_size, 5);
    expect_status(ARPC_STATUS_OK);
}

static void plain_and_compressed_messages_may_alternate(void **state)
{
    (void)state;
    uint8_t body[200];
    size_t size = 0;
    for (int i = 0; i < 3; i++) {
        pack("packed", 6, true);
        memcpy(body + size, packed.data, packed.size);
        size += packed.size;
        memcpy(body + size, "\0\0\0\0\5plain", 10);
        size += 10;
    }
    rpc_raw_request("/t.T/Pieces", "grpc-encoding", "gzip", body, size, true);
    assert_int_equal(rpc_seen_of_server.ended, 6);
    assert_int_equal(rpc_seen_of_server.bytes, 33);
    assert_memory_equal(rpc_seen_of_server.data, "packedplainpackedplainpackedplain", 33);
    expect_status(ARPC_STATUS_OK);
}

static void an_inflated_message_waits_wherever_the_call_is_paused(void **state)
{
    (void)state;
    for (pause_at = 1; pause_at <= 3; pause_at++) {
        const struct rpc_seen *seen = &rpc_seen_of_server;
        pack("hello", 5, true);
        send_packed("/t.T/Pieces");
        assert_int_equal(seen->begun, 1);
        assert_int_equal(seen->last_begin, 5);
        assert_int_equal(seen->bytes, pause_at > 1 ? 5 : 0);
        assert_int_equal(seen->ended, pause_at > 2);
        assert_int_equal(seen->half_closed, 0);
        for (int i = 0; i < 3 && seen->half_closed == 0; i++) {
            arpc_call_resume(seen->call);
            rpc_raw_run();
        }
        assert_memory_equal(seen->data, "hello", 5);
        assert_int_equal(seen->ended, 1);
        assert_int_equal(seen->half_closed, 1);
        expect_status(ARPC_STATUS_OK);
    }
}

static void a_message_that_inflates_beyond_the_methods_limit_is_resource_exhausted(void **state)
{
    (void)state;
    static uint8_t zeros[MESSAGE_MAX + 1];
    static const char *const paths[] = {"/t.T/Unary", "/t.T/Pieces"};
    for (size_t i = 0; i < COUNT(paths); i++) {
        pack(zeros, MESSAGE_MAX, true);
        send_packed(paths[i]);
        expect_status(ARPC_STATUS_OK);
        pack(zeros, MESSAGE_MAX + 1, true);
        send_packed(paths[i]);
        assert_int_equal(rpc_seen_of_server.begun, 0);
        assert_non_null(strstr(rpc_raw_value("grpc-message", 0), "once it is inflated"));
        expect_status(ARPC_STATUS_RESOURCE_EXHAUSTED);
    }
}

static void a_connection_whose_messages_inflate_by_far_has_to_wait(void **state)
{
    (void)state;
    static uint8_t zeros[MESSAGE_MAX];
    const struct arpc_limits *limits = raw.server.link.watch.limits;
    pack(zeros, MESSAGE_MAX, true);
    size_t enough = (size_t)limits->inflated_burst / (MESSAGE_MAX - 16 * packed.size) + 1;
    size_t served = 0;
    for (int i = 0; i < 2; i++) {
        for (;;) {
            send_packed("/t.T/Pieces");
            if (strcmp(raw.grpc_status, "0") != 0)
                break;
            expect_status(ARPC_STATUS_OK);
            served++;
        }
        assert_non_null(strstr(rpc_raw_value("grpc-message", 0), "inflate to too much"));
        expect_status(ARPC_STATUS_RESOURCE_EXHAUSTED);
        assert_in_range(served, enough * (size_t)(i + 1) * 98 / 100, enough * (size_t)(i + 1) * 102 / 100);
        raw.now_ms += limits->inflated_burst / limits->inflated_per_s * 1000;
    }
    /* What is compressed as data is costs nothing. */
    for (size_t i = 0; i < 2 * enough; i++) {
        pack(noise(MESSAGE_MAX - 1000), MESSAGE_MAX - 1000, true);
        send_packed("/t.T/Pieces");
        expect_status(ARPC_STATUS_OK);
    }
}

static void a_message_that_is_not_gzip_or_ends_early_is_internal(void **state)
{
    (void)state;
    rpc_raw_request("/t.T/Pieces", "grpc-encoding", "gzip", "\1\0\0\0\5hello", 10, true);
    expect_status(ARPC_STATUS_INTERNAL);
    pack("hello", 5, true);
    packed.size--;
    packed.data[4]--;
    send_packed("/t.T/Pieces");
    expect_status(ARPC_STATUS_INTERNAL);
    rpc_raw_request("/t.T/Unary", "grpc-encoding", "gzip", "\1\0\0\0\0", 5, true);
    expect_status(ARPC_STATUS_INTERNAL);
}

static void a_flag_that_is_neither_0_nor_1_is_internal(void **state)
{
    (void)state;
    rpc_raw_request("/t.T/Pieces", "grpc-encoding", "gzip", "\2\0\0\0\5hello", 10, true);
    expect_status(ARPC_STATUS_INTERNAL);
    rpc_raw_request("/t.T/Pieces", NULL, NULL, "\1\0\0\0\5hello", 10, true);
    expect_status(ARPC_STATUS_INTERNAL);
    rpc_raw_request("/t.T/Pieces", "grpc-encoding", "identity", "\1\0\0\0\5hello", 10, true);
    expect_status(ARPC_STATUS_INTERNAL);
}

static void a_call_that_ends_inside_a_compressed_message_leaves_no_memory(void **state)
{
    (void)state;
    pack(noise(5000), 5000, true);
    rpc_raw_request("/t.T/Pieces", "grpc-encoding", "gzip", packed.data, 3000, false);
    assert_int_equal(raw.closed, 0);
    arpc_call_cancel(rpc_seen_of_server.call, ARPC_STATUS_CANCELLED, NULL);
    rpc_raw_run();
    assert_int_equal(raw.server.link.call_count, 0);
    assert_int_equal(rpc_seen_of_server.closed, 1);
}

/* ---- answers ---- */

static uint8_t plain[5 + 2000];

static void answers_are_compressed_for_those_who_ask_where_it_is_enabled(void **state)
{
    (void)state;
    arpc_prefix_write(plain, 0, 2000);
    rpc_raw_request("/t.T/Unary", "grpc-accept-encoding", "identity, deflate ,gzip", plain, sizeof plain, true);
    assert_int_equal(raw.data_size, sizeof plain);
    assert_string_equal(rpc_raw_value("grpc-encoding", 0), "");
    memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    (void)teardown(state);
    compresses = true;
    (void)setup(state);
    rpc_raw_request("/t.T/Unary", "grpc-accept-encoding", "identity, deflate ,gzip", plain, sizeof plain, true);
    assert_true(raw.data_size < 100);
    assert_int_equal(raw.data[0], 1);
    assert_string_equal(rpc_raw_value("grpc-encoding", 0), "gzip");
    expect_status(ARPC_STATUS_OK);
    rpc_raw_request("/t.T/Unary", "grpc-accept-encoding", "identity,xgzip,gzipx", plain, sizeof plain, true);
    assert_int_equal(raw.data_size, sizeof plain);
    assert_string_equal(rpc_raw_value("grpc-encoding", 0), "");
    expect_status(ARPC_STATUS_OK);
}

static void our_client_inflates_what_it_asked_for(void **state)
{
    (void)state;
    struct rpc_pair pair;
    struct rpc_seen seen = {0};
    rpc_pair_prepare(&pair, methods, COUNT(methods));
    pair.server.config.compress = true;
    pair.chunk = 3;
    rpc_pair_connect(&pair);
    struct arpc_call *call = rpc_pair_call(&pair, "Unary", &rpc_noting, &seen);
    assert_int_equal(arpc_call_send(call, NULL, 0, plain, 2000, NULL, NULL), 0);
    arpc_call_half_close(call);
    rpc_pair_run(&pair);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.bytes, 2000);
    assert_int_equal(seen.last_begin, 2000);
    rpc_pair_close(&pair);
}

int main(void)
{
#define WITH_RAW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_inflated_is_the_same_for_every_split),
        cmocka_unit_test(a_bomb_stops_at_the_limit_and_takes_no_more_memory_than_that),
        cmocka_unit_test(what_is_cut_short_is_never_whole),
        cmocka_unit_test(what_is_damaged_or_goes_on_after_its_end_is_refused),
        cmocka_unit_test(what_is_deflated_comes_back_or_is_not_smaller),
        WITH_RAW(a_compressed_request_is_inflated),
        WITH_RAW(plain_and_compressed_messages_may_alternate),
        WITH_RAW(an_inflated_message_waits_wherever_the_call_is_paused),
        WITH_RAW(a_message_that_inflates_beyond_the_methods_limit_is_resource_exhausted),
        WITH_RAW(a_connection_whose_messages_inflate_by_far_has_to_wait),
        WITH_RAW(a_message_that_is_not_gzip_or_ends_early_is_internal),
        WITH_RAW(a_flag_that_is_neither_0_nor_1_is_internal),
        WITH_RAW(a_call_that_ends_inside_a_compressed_message_leaves_no_memory),
        WITH_RAW(answers_are_compressed_for_those_who_ask_where_it_is_enabled),
        WITH_RAW(our_client_inflates_what_it_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
