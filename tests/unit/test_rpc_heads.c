/*
 * What stands in the heads and trailers of good requests and of their answers: forms of deadlines, of metadata, of the
 * end, and that no call waits for another one's bytes.
 */
#include "tests/unit/rpc_raw.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define COUNT(a) (sizeof a / sizeof *(a))
#define MIB      ((size_t)1 << 20)

static const char hello[] = "\0\0\0\0\5hello";
#define HELLO_SIZE (sizeof hello - 1)

/* ---- handlers ---- */

static struct arpc_details details;
static int finish_status;
static const char *finish_text;

static void finish(struct arpc_call *call)
{
    rpc_noting.half_close(call);
    arpc_call_finish(call, finish_status, finish_text, &details);
}

static void reply(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)arpc_call_reply(call, data, size);
}

/* The values of two keys, as the handler finds them: each in brackets. */
static char found[256];

static void find_metadata(struct arpc_call *call)
{
    static const char *const keys[] = {"x-text", "x-data-bin"};
    const uint8_t *value;
    size_t size;
    found[0] = 0;
    for (size_t k = 0; k < COUNT(keys); k++)
        for (size_t i = 0; arpc_call_metadata(call, keys[k], i, &value, &size); i++) {
            size_t used = strlen(found);
            (void)snprintf(found + used, sizeof found - used, "[%.*s]", (int)size, (const char *)value);
        }
    rpc_noting.started(call);
}

static const uint8_t zeros[MIB];
#define PULL_SIZE (32 * MIB)

static void no_release(void *arg)
{
    (void)arg;
}

static size_t unsent;

static void send_more(struct arpc_call *call)
{
    for (; unsent > 0 && arpc_call_queued(call) < ARPC_HIGH_WATER; unsent -= MIB)
        assert_int_equal(arpc_call_send(call, NULL, 0, zeros, MIB, no_release, NULL), 0);
    if (unsent == 0)
        arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
}

static void send_much(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    unsent = PULL_SIZE;
    send_more(call);
}

static void ignore_closed(struct arpc_call *call, const struct arpc_result *result)
{
    (void)call;
    (void)result;
}

static struct arpc_handler stream;
static const struct arpc_handler unary = {.message = reply, .closed = ignore_closed};
static const struct arpc_handler pull = {.message = send_much, .writable = send_more, .closed = ignore_closed};

static const struct arpc_method methods[] = {
    {"t.T", "Stream", ARPC_CLIENT_STREAM, false, 0, 1000, &stream},
    {"t.T", "Unary", ARPC_UNARY, false, 0, 1000, &unary},
    {"t.T", "Pull", ARPC_SERVER_STREAM, false, 0, 1000, &pull},
};

static const char *const kept[] = {"x-text", "x-data-bin", NULL};

static void prepare(struct arpc_link_config *config)
{
    config->keep_metadata = kept;
}

static int setup(void **state)
{
    (void)state;
    stream = rpc_noting;
    stream.started = find_metadata;
    stream.half_close = finish;
    details = (struct arpc_details){0};
    finish_status = ARPC_STATUS_OK;
    finish_text = "";
    rpc_raw_open(methods, COUNT(methods), prepare);
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
}

/* ---- heads ---- */

static void a_request_without_te_is_served_and_one_with_another_te_is_malformed(void **state)
{
    (void)state;
    rpc_raw_request("/t.T/Stream", "te", NULL, "", 0, true);
    expect_grpc(ARPC_STATUS_OK);
    rpc_raw_request("/t.T/Stream", "te", "gzip", "", 0, true);
    assert_string_equal(raw.status, "");
    assert_int_equal(raw.reset_code, NGHTTP2_PROTOCOL_ERROR);
    assert_int_equal(rpc_seen_of_server.started, 1);
}

static void the_answer_has_the_content_type_of_the_request(void **state)
{
    (void)state;
    static const char *const types[][2] = {{"application/grpc", "application/grpc"},
                                           {"application/grpc+proto", "application/grpc+proto"},
                                           {"application/grpc;charset=utf-8", "application/grpc"}};
    for (size_t i = 0; i < COUNT(types); i++) {
        rpc_raw_request("/t.T/Unary", "content-type", types[i][0], hello, HELLO_SIZE, true);
        expect_grpc(ARPC_STATUS_OK);
        assert_string_equal(rpc_raw_value("content-type", 0), types[i][1]);
        rpc_raw_request("/t.T/Nowhere", "content-type", types[i][0], "", 0, true); /* Trailers-Only */
        assert_string_equal(rpc_raw_value("content-type", 0), types[i][1]);
    }
}

static void a_deadline_of_zero_has_passed_before_the_handler_hears_of_the_call(void **state)
{
    (void)state;
    static const char *const zero[] = {"0n", "0S", "00000000H"};
    for (size_t i = 0; i < COUNT(zero); i++) {
        rpc_raw_request("/t.T/Stream", "grpc-timeout", zero[i], "", 0, true);
        expect_grpc(ARPC_STATUS_DEADLINE_EXCEEDED);
    }
    assert_int_equal(rpc_seen_of_server.started, 0);
}

static void the_longest_deadline_is_kept_and_none_is_added(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t ms;
    } rows[] = {{"99999999H", INT64_C(99999999) * 3600000}, {"1n", 1}, {"99999999m", 99999999}, {NULL, INT64_MAX}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        rpc_raw_request("/t.T/Stream", rows[i].text != NULL ? "grpc-timeout" : NULL, rows[i].text, hello, 0, false);
        /* 99999999 hours are more nanoseconds than 64 bits hold: no deadline. */
        int64_t left_ms = arpc_call_time_left_ms(rpc_seen_of_server.call);
        assert_true(left_ms == rows[i].ms || (i == 0 && left_ms == INT64_MAX));
        arpc_call_finish(rpc_seen_of_server.call, ARPC_STATUS_OK, NULL, NULL);
        rpc_raw_run();
        memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    }
}

static void metadata_keeps_its_order_and_binary_values_their_bytes(void **state)
{
    (void)state;
    const struct rpc_raw_header headers[] = {
        {":method", "POST"},
        {":scheme", "http"},
        {":path", "/t.T/Stream"},
        {":authority", "x"},
        {"te", "trailers"},
        {"content-type", "application/grpc"},
        {"x-data-bin", "b25l"}, /* one */
        {"x-text", "first"},
        {"x-data-bin", "dHc,dGhyZWU="}, /* tw, three, padded */
        {"x-text", "second, and not split"},
        {"x-data-bin", ""},
        {"x-other", "dropped"},
    };
    rpc_raw_submit(headers, COUNT(headers), "", 0, true);
    expect_grpc(ARPC_STATUS_OK);
    assert_string_equal(found, "[first][second, and not split][one][tw][three][]");
    memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    rpc_raw_request("/t.T/Stream", "x-data-bin", "not base64!", "", 0, true);
    expect_grpc(ARPC_STATUS_INTERNAL);
}

static void the_end_of_a_request_has_three_forms(void **state)
{
    (void)state;
    rpc_raw_request("/t.T/Stream", NULL, NULL, NULL, 0, true); /* on the HEADERS */
    expect_grpc(ARPC_STATUS_OK);
    assert_int_equal(rpc_seen_of_server.ended, 0);
    memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    rpc_raw_request("/t.T/Stream", NULL, NULL, hello, HELLO_SIZE, true); /* on the last DATA */
    expect_grpc(ARPC_STATUS_OK);
    assert_int_equal(rpc_seen_of_server.ended, 1);
    memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    int32_t id = rpc_raw_request("/t.T/Stream", NULL, NULL, hello, HELLO_SIZE, false);
    assert_int_equal(rpc_seen_of_server.ended, 1);
    assert_int_equal(raw.closed, 0);
    raw.end_stream = true; /* on an empty DATA */
    assert_int_equal(nghttp2_session_resume_data(raw.session, id), 0);
    rpc_raw_run();
    expect_grpc(ARPC_STATUS_OK);
    assert_int_equal(rpc_seen_of_server.ended, 1);
}

static void an_error_with_a_time_to_wait_has_it_for_retries_too(void **state)
{
    (void)state;
    finish_status = ARPC_STATUS_RESOURCE_EXHAUSTED;
    rpc_raw_request("/t.T/Stream", NULL, NULL, "", 0, true);
    expect_grpc(ARPC_STATUS_RESOURCE_EXHAUSTED);
    assert_string_equal(rpc_raw_value("grpc-retry-pushback-ms", 0), "");
    assert_string_equal(rpc_raw_value("grpc-status-details-bin", 0), "");
    memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    details = (struct arpc_details){.reason = "QUEUE_FULL", .retry_ms = 1500};
    rpc_raw_request("/t.T/Stream", NULL, NULL, "", 0, true);
    expect_grpc(ARPC_STATUS_RESOURCE_EXHAUSTED);
    assert_string_equal(rpc_raw_value("grpc-retry-pushback-ms", 0), "1500");
    assert_string_not_equal(rpc_raw_value("grpc-status-details-bin", 0), "");
    assert_null(strchr(rpc_raw_value("grpc-status-details-bin", 0), '=')); /* unpadded */
}

static void a_refusal_that_another_server_is_for_says_never_to_try_here_again(void **state)
{
    (void)state;
    finish_status = ARPC_STATUS_UNAVAILABLE;
    details = (struct arpc_details){.reason = "STANDBY"};
    rpc_raw_request("/t.T/Stream", NULL, NULL, "", 0, true);
    size_t size = strlen(rpc_raw_value("grpc-status-details-bin", 0));
    memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    details.retry_ms = -1;
    rpc_raw_request("/t.T/Stream", NULL, NULL, "", 0, true);
    expect_grpc(ARPC_STATUS_UNAVAILABLE);
    assert_string_equal(rpc_raw_value("grpc-retry-pushback-ms", 0), "-1");
    assert_int_equal(strlen(rpc_raw_value("grpc-status-details-bin", 0)), size); /* no RetryInfo */
}

/* ---- turns ---- */

/* One batch each way. */
static void exchange(struct rpc_pair *pair)
{
    while (arpc_link_flush(&pair->client.link))
        ;
    (void)rpc_pair_carry(pair, &pair->client, &pair->server);
    while (arpc_link_flush(&pair->server.link))
        ;
    (void)rpc_pair_carry(pair, &pair->server, &pair->client);
}

static void a_unary_answer_does_not_wait_for_a_large_pull(void **state)
{
    (void)state;
    struct rpc_pair pair;
    struct rpc_seen pulled = {0}, asked[4] = {{0}};
    rpc_pair_open(&pair, methods, COUNT(methods));
    struct arpc_call *call = rpc_pair_call(&pair, "Pull", &rpc_noting, &pulled);
    assert_int_equal(arpc_call_send(call, "", 0, NULL, 0, NULL, NULL), 0);
    arpc_call_half_close(call);
    while (pulled.bytes < MIB)
        exchange(&pair);
    for (size_t i = 0; i < COUNT(asked); i++) {
        size_t before = pulled.bytes;
        call = rpc_pair_call(&pair, "Unary", &rpc_noting, &asked[i]);
        assert_int_equal(arpc_call_send(call, "x", 1, NULL, 0, NULL, NULL), 0);
        arpc_call_half_close(call);
        while (asked[i].closed == 0)
            exchange(&pair);
        assert_int_equal(asked[i].status, ARPC_STATUS_OK);
        assert_true(pulled.bytes - before <= 4 * ARPC_BATCH_BYTES);
    }
    assert_true(pulled.bytes < PULL_SIZE);
    rpc_pair_run(&pair);
    assert_int_equal(pulled.bytes, PULL_SIZE);
    assert_int_equal(pulled.status, ARPC_STATUS_OK);
    rpc_pair_close(&pair);
}

static void our_client_says_who_it_is_and_what_it_reads(void **state)
{
    (void)state;
    static const char *const names[] = {"user-agent", NULL};
    struct rpc_pair pair;
    struct rpc_seen seen = {0};
    const uint8_t *value;
    size_t size;
    rpc_pair_prepare(&pair, methods, COUNT(methods));
    pair.server.config.keep_metadata = names;
    rpc_pair_connect(&pair);
    (void)rpc_pair_call(&pair, "Stream", &rpc_noting, &seen);
    rpc_pair_run(&pair);
    const struct arpc_call *call = rpc_seen_of_server.call;
    assert_true(arpc_call_metadata(call, names[0], 0, &value, &size));
    static const char agent[] = "grpc-c-ampd/";
    assert_true(size >= sizeof agent + 2 && memcmp(value, agent, sizeof agent - 1) == 0);
    for (size_t i = sizeof agent - 1; i < size; i++)
        assert_non_null(strchr("0123456789.", value[i]));
    assert_true(call->head.accepts_gzip);
    rpc_pair_close(&pair);
}

static void our_client_reads_a_status_text_that_has_spaces_at_its_ends(void **state)
{
    (void)state;
    static const char *const texts[] = {"there is none named w ", " w", " ", "  a tab\t"};
    struct rpc_pair pair;
    finish_status = ARPC_STATUS_NOT_FOUND;
    rpc_pair_open(&pair, methods, COUNT(methods));
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct rpc_seen seen = {0};
        finish_text = texts[i];
        arpc_call_half_close(rpc_pair_call(&pair, "Stream", &rpc_noting, &seen));
        rpc_pair_run(&pair);
        assert_int_equal(seen.status, ARPC_STATUS_NOT_FOUND);
        assert_string_equal(seen.message, texts[i]);
        memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    }
    rpc_pair_close(&pair);
}

int main(void)
{
#define WITH_RAW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_RAW(a_request_without_te_is_served_and_one_with_another_te_is_malformed),
        WITH_RAW(the_answer_has_the_content_type_of_the_request),
        WITH_RAW(a_deadline_of_zero_has_passed_before_the_handler_hears_of_the_call),
        WITH_RAW(the_longest_deadline_is_kept_and_none_is_added),
        WITH_RAW(metadata_keeps_its_order_and_binary_values_their_bytes),
        WITH_RAW(the_end_of_a_request_has_three_forms),
        WITH_RAW(an_error_with_a_time_to_wait_has_it_for_retries_too),
        WITH_RAW(a_refusal_that_another_server_is_for_says_never_to_try_here_again),
        WITH_RAW(a_unary_answer_does_not_wait_for_a_large_pull),
        WITH_RAW(our_client_says_who_it_is_and_what_it_reads),
        WITH_RAW(our_client_reads_a_status_text_that_has_spaces_at_its_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
