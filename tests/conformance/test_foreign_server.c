/*
 * test_foreign_server SERVER ARGUMENTS...: our client against a server of echo.proto that another implementation made.
 */
#include "tests/conformance/channel_fixture.h"
#include "tests/conformance/echo_wire.h"
#include "tests/conformance/peers/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define CALL_MS 60000

static struct peer_process peer;
static const struct arpc_call_options unary = {.size = sizeof unary, .deadline_ms = CALL_MS, .single_response = true};
static const struct arpc_call_options stream = {.size = sizeof stream, .deadline_ms = CALL_MS};

static int setup(void **state)
{
    (void)channel_setup_bare(state);
    struct fixture *fixture = *state;
    (void)snprintf(fixture->target, sizeof fixture->target, "127.0.0.1:%d", peer.port);
    channel_start_channel(fixture, fixture->target);
    return 0;
}

/* A Payload of `size` bytes of one value. */
static uint8_t *make_payload(size_t size, uint8_t value, size_t *total)
{
    uint8_t *message = malloc(size + 16);
    *total = 0;
    assert_non_null(message);
    if (size > 0)
        echo_put_head(message, total, 1, size);
    memset(message + *total, value, size);
    *total += size;
    return message;
}

static void send_payload(struct seen *seen, size_t size, uint8_t value)
{
    size_t total;
    uint8_t *message = make_payload(size, value, &total);
    assert_int_equal(arpc_call_send(seen->call, message, total, NULL, 0, NULL, NULL), 0);
    free(message);
}

static void messages_of_all_sizes_come_back(void **state)
{
    static const size_t sizes[] = {0, 1, 5, 16383, 16384, 65536, MIB, 3 * MIB};
    struct fixture *fixture = *state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct seen seen = {0};
        size_t total;
        uint8_t *message = make_payload(sizes[i], 'x', &total);
        channel_call_with(fixture, PATH("Unary"), &unary, &seen, message, total);
        channel_run_until(fixture, &seen.closed);
        assert_string_equal(seen.message, "");
        assert_int_equal(seen.status, ARPC_STATUS_OK);
        assert_int_equal(seen.bytes, total);
        free(message);
    }
}

static void a_push_of_32_mib_arrives(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    channel_call(fixture, PATH("Collect"), &unary, &seen);
    for (int i = 0; i < 32; i++)
        send_payload(&seen, MIB, 'y');
    arpc_call_half_close(seen.call);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    assert_int_equal(echo_get_number(seen.last, seen.last_size, 1), 32);
    assert_int_equal(echo_get_number(seen.last, seen.last_size, 2), 32 * MIB);
}

static void a_pull_of_32_mib_arrives(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    channel_repeat_call(fixture, &stream, &seen, 32, MIB);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    assert_int_equal(seen.messages, 32);
    assert_in_range(seen.bytes, 32 * MIB, 32 * MIB + 32 * 16);
}

static void messages_go_both_ways_in_order(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    channel_call(fixture, PATH("Chat"), &stream, &seen);
    for (size_t i = 0; i < 500; i++)
        send_payload(&seen, i + 1, (uint8_t)i);
    arpc_call_half_close(seen.call);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    assert_int_equal(seen.messages, 500);
    /* The last one has 500 bytes of this value behind its head. */
    assert_int_equal(seen.last[8], (uint8_t)499);
}

static void fail_call(struct fixture *fixture, struct seen *seen, uint64_t code, const char *text, uint64_t after)
{
    uint8_t request[256];
    size_t used = 0;
    echo_put_number(request, &used, 1, code);
    echo_put_head(request, &used, 2, strlen(text));
    memcpy(request + used, text, strlen(text));
    used += strlen(text);
    echo_put_number(request, &used, 5, after);
    channel_call_with(fixture, PATH("Fail"), &stream, seen, request, used);
    channel_run_until(fixture, &seen->closed);
}

static void status_and_text_arrive_whatever_they_contain(void **state)
{
    static const char text[] = "\t\r\n line %41 \xc3\xbc \xe4\xb8\x96 \xf0\x9f\x98\x80 end";
    struct fixture *fixture = *state;
    for (int code = 1; code <= 16; code++) {
        struct seen seen = {0};
        fail_call(fixture, &seen, (uint64_t)code, text, 0);
        assert_int_equal(seen.status, code);
        assert_string_equal(seen.message, text);
        assert_true(seen.from_peer);
    }
}

static void a_status_comes_after_the_messages_before_it(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    fail_call(fixture, &seen, ARPC_STATUS_ABORTED, "late", 3);
    assert_int_equal(seen.messages, 3);
    assert_int_equal(seen.status, ARPC_STATUS_ABORTED);
}

static void an_unknown_method_is_unimplemented(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    channel_call_with(fixture, PATH("Nowhere"), &unary, &seen, NULL, 0);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_UNIMPLEMENTED);
}

static void a_deadline_ends_the_call(void **state)
{
    struct fixture *fixture = *state;
    struct arpc_call_options soon = {.size = sizeof soon, .deadline_ms = 200, .single_response = true};
    struct seen seen = {0};
    channel_sleep_call(fixture, &soon, &seen);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_DEADLINE_EXCEEDED);
}

static void a_cancelled_pull_does_not_disturb_the_next_call(void **state)
{
    struct fixture *fixture = *state;
    struct seen pull = {0};
    struct seen after = {0};
    channel_repeat_call(fixture, &stream, &pull, 1u << 20, 10000);
    while (pull.messages == 0)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    arpc_call_cancel(pull.call, ARPC_STATUS_CANCELLED, "enough");
    channel_run_until(fixture, &pull.closed);
    assert_int_equal(pull.status, ARPC_STATUS_CANCELLED);
    channel_call_with(fixture, PATH("Unary"), &unary, &after, NULL, 0);
    channel_run_until(fixture, &after.closed);
    assert_int_equal(after.status, ARPC_STATUS_OK);
}

static void a_hundred_calls_at_once_come_back(void **state)
{
    enum { COUNT = 100 };
    struct fixture *fixture = *state;
    struct seen seen[COUNT];
    memset(seen, 0, sizeof seen);
    for (size_t i = 0; i < COUNT; i++) {
        channel_call(fixture, PATH("Unary"), &unary, &seen[i]);
        send_payload(&seen[i], 1000 + i, (uint8_t)i);
        arpc_call_half_close(seen[i].call);
    }
    for (size_t i = 0; i < COUNT; i++) {
        channel_run_until(fixture, &seen[i].closed);
        assert_int_equal(seen[i].status, ARPC_STATUS_OK);
        assert_int_equal(seen[i].last[8], i);
    }
}

/* ---- metadata ---- */

static char initial[64];
static uint8_t trailing[8];
static size_t trailing_size;

static void note_metadata(struct arpc_call *call, const struct arpc_result *result)
{
    const uint8_t *value;
    size_t size;
    for (size_t i = 0; arpc_call_metadata(call, "x-echo-initial", i, &value, &size); i++)
        (void)snprintf(initial + strlen(initial), sizeof initial - strlen(initial), "%.*s;", (int)size,
                       (const char *)value);
    if (arpc_call_metadata(call, "x-echo-trailing-bin", 0, &value, &size) && size <= sizeof trailing) {
        memcpy(trailing, value, size);
        trailing_size = size;
    }
    channel_on_closed(call, result);
}

static void metadata_comes_back_in_order_and_binary_too(void **state)
{
    static const struct arpc_handler handler = {.closed = note_metadata};
    static const struct arpc_pair pairs[] = {
        {"x-echo-initial", "one"}, {"x-echo-initial", "two"}, {"x-echo-trailing-bin", "AP+r"}, {"x-dropped", "three"}};
    struct fixture *fixture = *state;
    struct arpc_channel_options options = {.size = sizeof options, .keep_metadata = echo_metadata};
    struct arpc_call_options with = {
        .size = sizeof with, .deadline_ms = CALL_MS, .single_response = true, .metadata = pairs, .metadata_count = 4};
    struct seen seen = {0};
    channel_stop_channel(fixture);
    fixture->channel_closed = false;
    assert_int_equal(arpc_channel_new(&fixture->loop, fixture->target, &options, &fixture->channel, NULL), 0);
    assert_int_equal(arpc_channel_call(fixture->channel, PATH("Unary"), &with, &handler, &seen, &seen.call, NULL), 0);
    assert_int_equal(arpc_call_send(seen.call, NULL, 0, NULL, 0, NULL, NULL), 0);
    arpc_call_half_close(seen.call);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    assert_string_equal(initial, "one;two;");
    assert_int_equal(trailing_size, 3);
    assert_memory_equal(trailing, "\x00\xff\xab", 3);
}

int main(int argc, char **argv)
{
#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, channel_teardown)
    const struct CMUnitTest tests[] = {
        TEST(messages_of_all_sizes_come_back),
        TEST(a_push_of_32_mib_arrives),
        TEST(a_pull_of_32_mib_arrives),
        TEST(messages_go_both_ways_in_order),
        TEST(status_and_text_arrive_whatever_they_contain),
        TEST(a_status_comes_after_the_messages_before_it),
        TEST(an_unknown_method_is_unimplemented),
        TEST(a_deadline_ends_the_call),
        TEST(a_cancelled_pull_does_not_disturb_the_next_call),
        TEST(a_hundred_calls_at_once_come_back),
        TEST(metadata_comes_back_in_order_and_binary_too),
    };
    if (argc < 2) {
        (void)fprintf(stderr, "usage: test_foreign_server SERVER ARGUMENTS...\n");
        return 2;
    }
    peer_start(&peer, argv + 1);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return peer_stop(&peer) == 0 ? failed : 1;
}
