/* Channels that are closed where it is least expected, names that are resolved, and peers that are not gRPC. */
#include "tests/conformance/channel_fixture.h"

#include "tests/conformance/echo_wire.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

/* ---- closing from inside callbacks ---- */

static void close_channel_at_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    struct seen *seen = arpc_call_user(call);
    seen->messages++;
    if (seen->messages == 1)
        arpc_channel_close(seen->fixture->channel, channel_set_flag, &seen->fixture->channel_closed);
}

static void close_server_at_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct seen *seen = arpc_call_user(call);
    channel_on_closed(call, result);
    arpc_server_close(seen->fixture->server, channel_set_flag, &seen->fixture->server_closed);
    arpc_channel_close(seen->fixture->channel, channel_set_flag, &seen->fixture->channel_closed);
}

static void a_channel_may_be_closed_inside_a_message(void **state)
{
    struct fixture *fixture = *state;
    static const struct arpc_handler handler = {.message = close_channel_at_message, .closed = channel_on_closed};
    struct seen seen = {.fixture = fixture};
    struct seen other = {0};
    uint8_t request[32];
    size_t used = 0;
    echo_put_number(request, &used, 1, 100);
    echo_put_number(request, &used, 2, MIB);
    channel_sleep_call(fixture, NULL, &other);
    assert_int_equal(arpc_channel_call(fixture->channel, PATH("Repeat"), NULL, &handler, &seen, &seen.call, NULL), 0);
    assert_int_equal(arpc_call_send(seen.call, request, used, NULL, 0, NULL, NULL), 0);
    arpc_call_half_close(seen.call);
    channel_run_until_bool(fixture, &fixture->channel_closed);
    fixture->channel = NULL;
    assert_int_equal(seen.messages, 1);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.status, ARPC_STATUS_CANCELLED);
    assert_int_equal(other.closed, 1);
    channel_wait_open(fixture, 0);
}

static void server_and_channel_may_be_closed_inside_closed(void **state)
{
    struct fixture *fixture = *state;
    static const struct arpc_handler handler = {.closed = close_server_at_closed};
    struct seen seen = {.fixture = fixture};
    struct seen other = {0};
    channel_sleep_call(fixture, NULL, &other);
    assert_int_equal(arpc_channel_call(fixture->channel, PATH("Missing"), NULL, &handler, &seen, &seen.call, NULL), 0);
    arpc_call_half_close(seen.call);
    channel_run_until_bool(fixture, &fixture->channel_closed);
    channel_run_until_bool(fixture, &fixture->server_closed);
    fixture->channel = NULL;
    fixture->server = NULL;
    assert_int_equal(seen.status, ARPC_STATUS_UNIMPLEMENTED);
    assert_int_equal(other.closed, 1);
}

static void names_are_resolved_and_unknown_ones_are_unavailable(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    char target[64];
    static const char long_name[] =
        "a-label-as-long-as-one-may-be.a-label-as-long-as-one-may-be.and-a-last-one.invalid:1";
    channel_stop_channel(fixture);
    (void)snprintf(target, sizeof target, "localhost:%d", fixture->port);
    channel_start_channel(fixture, target);
    channel_call_with(fixture, PATH("Unary"), NULL, &seen, "x", 1);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    channel_stop_channel(fixture);
    memset(&seen, 0, sizeof seen);
    channel_start_channel(fixture, "name.invalid:1");
    channel_call_with(fixture, PATH("Unary"), NULL, &seen, "x", 1);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_UNAVAILABLE);
    assert_non_null(strstr(seen.message, "name.invalid:1"));
    channel_stop_channel(fixture);
    memset(&seen, 0, sizeof seen);
    channel_start_channel(fixture, long_name);
    channel_call_with(fixture, PATH("Unary"), NULL, &seen, "x", 1);
    channel_run_until(fixture, &seen.closed);
    assert_non_null(strstr(seen.message, long_name));
}

static void a_channel_may_be_closed_while_it_resolves(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    channel_stop_channel(fixture);
    channel_start_channel(fixture, "localhost:1");
    channel_call_with(fixture, PATH("Unary"), NULL, &seen, "x", 1);
    (void)uv_run(&fixture->loop, UV_RUN_NOWAIT);
    channel_stop_channel(fixture);
    assert_int_equal(seen.closed, 1);
}

/* ---- a peer that is not gRPC ---- */

static void say_http_1(uv_stream_t *listener, int status)
{
    static const char text[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    uv_tcp_t *peer = listener->data;
    uv_buf_t buf = uv_buf_init((char *)(uintptr_t)text, sizeof text - 1);
    assert_int_equal(status, 0);
    assert_int_equal(uv_tcp_init(listener->loop, peer), 0);
    assert_int_equal(uv_accept(listener, (uv_stream_t *)peer), 0);
    assert_true(uv_try_write((uv_stream_t *)peer, &buf, 1) > 0);
    uv_close((uv_handle_t *)peer, NULL);
}

static void a_server_that_is_not_grpc_is_unavailable(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    struct sockaddr_in address;
    int size = sizeof address;
    uv_tcp_t listener;
    static uv_tcp_t peer;
    assert_int_equal(uv_ip4_addr("127.0.0.1", 0, &address), 0);
    assert_int_equal(uv_tcp_init(&fixture->loop, &listener), 0);
    assert_int_equal(uv_tcp_bind(&listener, (const struct sockaddr *)&address, 0), 0);
    listener.data = &peer;
    assert_int_equal(uv_listen((uv_stream_t *)&listener, 8, say_http_1), 0);
    assert_int_equal(uv_tcp_getsockname(&listener, (struct sockaddr *)&address, &size), 0);
    (void)snprintf(fixture->target, sizeof fixture->target, "127.0.0.1:%d", ntohs(address.sin_port));
    channel_start_channel(fixture, fixture->target);
    channel_call_with(fixture, PATH("Unary"), NULL, &seen, "x", 1);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_UNAVAILABLE);
    assert_int_equal(arpc_channel_state(fixture->channel), ARPC_CHANNEL_BACKOFF);
    channel_stop_channel(fixture);
    uv_close((uv_handle_t *)&listener, NULL);
    (void)uv_run(&fixture->loop, UV_RUN_NOWAIT);
}

static void connections_over_the_limit_are_closed(void **state)
{
    struct fixture *fixture = *state;
    struct arpc_server_options options = {.size = sizeof options, .arg = &fixture->state, .max_connections = 1};
    struct seen first = {0};
    struct seen second = {0};
    struct arpc_channel *kept;
    assert_int_equal(arpc_server_new(&fixture->loop, &options, echo_methods, echo_method_count, &fixture->server, NULL),
                     0);
    assert_int_equal(arpc_server_listen(fixture->server, "127.0.0.1:0", &fixture->port, NULL), 0);
    (void)snprintf(fixture->target, sizeof fixture->target, "127.0.0.1:%d", fixture->port);
    channel_start_channel(fixture, fixture->target);
    channel_call_with(fixture, PATH("Unary"), NULL, &first, "x", 1);
    channel_run_until(fixture, &first.closed);
    assert_int_equal(first.status, ARPC_STATUS_OK);
    kept = fixture->channel;
    channel_start_channel(fixture, fixture->target);
    channel_call_with(fixture, PATH("Unary"), NULL, &second, "x", 1);
    channel_run_until(fixture, &second.closed);
    assert_int_equal(second.status, ARPC_STATUS_UNAVAILABLE);
    channel_stop_channel(fixture);
    fixture->channel = kept;
}

int main(void)
{
#define WITH_BOTH(test) cmocka_unit_test_setup_teardown(test, channel_setup, channel_teardown)
    const struct CMUnitTest tests[] = {
        WITH_BOTH(a_channel_may_be_closed_inside_a_message),
        WITH_BOTH(server_and_channel_may_be_closed_inside_closed),
        WITH_BOTH(names_are_resolved_and_unknown_ones_are_unavailable),
        WITH_BOTH(a_channel_may_be_closed_while_it_resolves),
        cmocka_unit_test_setup_teardown(a_server_that_is_not_grpc_is_unavailable, channel_setup_bare, channel_teardown),
        cmocka_unit_test_setup_teardown(connections_over_the_limit_are_closed, channel_setup_bare, channel_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
