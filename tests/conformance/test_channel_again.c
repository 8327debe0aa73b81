/*
 * Channels whose servers drain, refuse, cut and come back: over real sockets, against a server that follows a script,
 * and against our own one that is restarted under load.
 */
#include "tests/conformance/channel_fixture.h"

#include "tests/conformance/echo_wire.h"
#include "tests/unit/rpc_frames.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

/* ---- a server that follows a script ---- */

#define CONNS_MAX 128

struct peer;

struct peer_conn {
    uv_tcp_t socket;
    struct peer *peer;
    size_t index; /* from 0, in the order in which they came */
    bool open;
    bool greeted;
    size_t acted; /* requests that the script was told of */
    size_t goaways;
    size_t pings;
    struct frames_in in;
    uint8_t buffer[65536];
};

struct peer {
    struct fixture *fixture;
    uv_tcp_t listener;
    struct peer_conn *conns[CONNS_MAX];
    size_t conn_count;
    /* A whole request is here; may say something, or cut the connection. */
    void (*request_cb)(struct peer_conn *conn, const struct frames_request *request);
    size_t goaway_conns; /* that many connections begin with GOAWAY */
    bool listener_closed;
};

static void on_conn_closed(uv_handle_t *handle)
{
    struct peer_conn *conn = handle->data;
    conn->open = false;
}

static void cut(struct peer_conn *conn)
{
    if (!uv_is_closing((uv_handle_t *)&conn->socket))
        uv_close((uv_handle_t *)&conn->socket, on_conn_closed);
}

static void say(struct peer_conn *conn, const struct frames_out *out)
{
    uv_buf_t buf = uv_buf_init((char *)(uintptr_t)out->bytes, (unsigned)out->size);
    assert_int_equal(uv_try_write((uv_stream_t *)&conn->socket, &buf, 1), (int)out->size);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)suggested;
    struct peer_conn *conn = handle->data;
    *buf = uv_buf_init((char *)conn->buffer, sizeof conn->buffer);
}

static void greet(struct peer_conn *conn)
{
    struct frames_out out = {0};
    conn->greeted = true;
    frames_settings(&out);
    if (conn->index < conn->peer->goaway_conns)
        frames_goaway(&out, 0, H2_NO_ERROR, "");
    say(conn, &out);
}

static void on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buf)
{
    struct peer_conn *conn = stream->data;
    if (size < 0) {
        cut(conn);
        return;
    }
    frames_hear(&conn->in, (const uint8_t *)buf->base, (size_t)size);
    if (conn->in.preface && !conn->greeted)
        greet(conn);
    for (; conn->pings < conn->in.pings; conn->pings++) {
        struct frames_out out = {0};
        frames_ping_ack(&out, conn->in.last_ping);
        say(conn, &out);
    }
    while (conn->acted < conn->in.request_count && conn->in.requests[conn->acted].ended &&
           !uv_is_closing((uv_handle_t *)&conn->socket))
        conn->peer->request_cb(conn, &conn->in.requests[conn->acted++]);
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct peer *peer = listener->data;
    assert_int_equal(status, 0);
    assert_true(peer->conn_count < CONNS_MAX);
    struct peer_conn *conn = calloc(1, sizeof *conn);
    assert_non_null(conn);
    conn->peer = peer;
    conn->index = peer->conn_count;
    conn->open = true;
    conn->socket.data = conn;
    frames_in_open(&conn->in);
    peer->conns[peer->conn_count++] = conn;
    assert_int_equal(uv_tcp_init(listener->loop, &conn->socket), 0);
    assert_int_equal(uv_accept(listener, (uv_stream_t *)&conn->socket), 0);
    assert_int_equal(uv_read_start((uv_stream_t *)&conn->socket, on_alloc, on_read), 0);
}

static void open_peer(struct fixture *fixture, struct peer *peer,
                      void (*request_cb)(struct peer_conn *conn, const struct frames_request *request))
{
    struct sockaddr_in address;
    int size = sizeof address;
    peer->fixture = fixture;
    peer->request_cb = request_cb;
    assert_int_equal(uv_ip4_addr("127.0.0.1", 0, &address), 0);
    assert_int_equal(uv_tcp_init(&fixture->loop, &peer->listener), 0);
    peer->listener.data = peer;
    assert_int_equal(uv_tcp_bind(&peer->listener, (const struct sockaddr *)&address, 0), 0);
    assert_int_equal(uv_listen((uv_stream_t *)&peer->listener, 8, on_connection), 0);
    assert_int_equal(uv_tcp_getsockname(&peer->listener, (struct sockaddr *)&address, &size), 0);
    (void)snprintf(fixture->target, sizeof fixture->target, "127.0.0.1:%d", ntohs(address.sin_port));
    channel_start_channel(fixture, fixture->target);
}

static void on_listener_closed(uv_handle_t *handle)
{
    struct peer *peer = handle->data;
    peer->listener_closed = true;
}

static void close_peer(struct peer *peer)
{
    channel_stop_channel(peer->fixture);
    uv_close((uv_handle_t *)&peer->listener, on_listener_closed);
    for (size_t i = 0; i < peer->conn_count; i++)
        cut(peer->conns[i]);
    channel_run_until_bool(peer->fixture, &peer->listener_closed);
    for (size_t i = 0; i < peer->conn_count; i++) {
        while (peer->conns[i]->open)
            (void)uv_run(&peer->fixture->loop, UV_RUN_ONCE);
        frames_in_close(&peer->conns[i]->in);
        free(peer->conns[i]);
    }
}

static void answer(struct peer_conn *conn, const struct frames_request *request)
{
    struct frames_out out = {0};
    frames_answer(&out, request->stream, "well");
    say(conn, &out);
}

/* ---- calls ---- */

static const struct arpc_retry_policy quick = {.initial_backoff_ms = 5, .max_backoff_ms = 20};

static void begin(struct fixture *fixture, const struct arpc_retry_policy *policy, struct seen *seen)
{
    const struct arpc_call_options options = {
        .size = sizeof options, .deadline_ms = GUARD_MS, .single_response = true, .retry = policy};
    channel_call_with(fixture, PATH("Unary"), &options, seen, "hello", 5);
}

static void expect(struct fixture *fixture, struct seen *seen, int status)
{
    channel_run_until(fixture, &seen->closed);
    if (seen->status != status)
        (void)fprintf(stderr, "status %d: %s\n", seen->status, seen->message);
    assert_int_equal(seen->status, status);
    assert_int_equal(seen->closed, 1);
    if (status == ARPC_STATUS_OK)
        assert_int_equal(seen->messages, 1);
}

/* ---- GOAWAY, in each phase ---- */

static void goaway_that_comes_with_the_settings_costs_no_call(void **state)
{
    struct fixture *fixture = *state;
    struct peer peer = {.goaway_conns = 1};
    struct seen seen[3] = {{0}};
    open_peer(fixture, &peer, answer);
    for (int i = 0; i < 3; i++)
        begin(fixture, NULL, &seen[i]);
    for (int i = 0; i < 3; i++)
        expect(fixture, &seen[i], ARPC_STATUS_OK);
    assert_int_equal(peer.conn_count, 2);
    assert_int_equal(peer.conns[0]->in.request_count, 0);
    close_peer(&peer);
}

static void a_server_that_drains_each_connection_at_once_is_tried_less_and_less_often(void **state)
{
    struct fixture *fixture = *state;
    struct peer peer = {.goaway_conns = CONNS_MAX};
    struct seen seen = {0};
    const struct arpc_call_options options = {.size = sizeof options, .deadline_ms = 1500, .single_response = true};
    open_peer(fixture, &peer, answer);
    channel_call_with(fixture, PATH("Unary"), &options, &seen, "hello", 5);
    expect(fixture, &seen, ARPC_STATUS_DEADLINE_EXCEEDED);
    /* After 10, 20, 40, 80, 160, 320 and 640 ms; a busy machine makes them fewer. */
    assert_in_range(peer.conn_count, 2, 8);
    close_peer(&peer);
}

static void goaway_below(struct peer_conn *conn, const struct frames_request *request)
{
    struct frames_out out = {0};
    if (conn->index > 0) {
        answer(conn, request);
    } else if (conn->in.request_count == 2 && request->stream == 3) {
        frames_goaway(&out, 1, H2_NO_ERROR, "");
        say(conn, &out);
    }
}

static void streams_below_a_goaway_finish_and_those_above_move(void **state)
{
    struct fixture *fixture = *state;
    struct peer peer = {0};
    struct seen stays = {0};
    struct seen moves = {0};
    struct seen late = {0};
    open_peer(fixture, &peer, goaway_below);
    begin(fixture, NULL, &stays);
    begin(fixture, NULL, &moves);
    expect(fixture, &moves, ARPC_STATUS_OK);
    begin(fixture, NULL, &late);
    expect(fixture, &late, ARPC_STATUS_OK);
    assert_int_equal(stays.closed, 0);
    assert_int_equal(peer.conn_count, 2);
    assert_string_equal(peer.conns[1]->in.requests[0].previous_attempts, "");
    answer(peer.conns[0], frames_request_of(&peer.conns[0]->in, 1));
    expect(fixture, &stays, ARPC_STATUS_OK);
    close_peer(&peer);
}

static void goaway_in_the_answer(struct peer_conn *conn, const struct frames_request *request)
{
    struct frames_out out = {0};
    static const uint8_t message[] = {0, 0, 0, 0, 1, 'x'};
    frames_goaway(&out, 0x7fffffff, H2_NO_ERROR, "");
    frames_head(&out, request->stream);
    frames_goaway(&out, request->stream, H2_NO_ERROR, "");
    frames_data(&out, request->stream, false, message, sizeof message);
    frames_goaway(&out, request->stream, H2_CALM, "too_many_pings");
    frames_trailers(&out, request->stream, "0");
    say(conn, &out);
}

static void goaway_in_the_middle_of_an_answer_does_not_disturb_it(void **state)
{
    struct fixture *fixture = *state;
    struct peer peer = {0};
    open_peer(fixture, &peer, goaway_in_the_answer);
    for (int i = 0; i < 3; i++) {
        struct seen seen = {0};
        begin(fixture, NULL, &seen);
        expect(fixture, &seen, ARPC_STATUS_OK);
    }
    assert_int_equal(peer.conn_count, 3);
    close_peer(&peer);
}

static void goaway_and_cut(struct peer_conn *conn, const struct frames_request *request)
{
    struct frames_out out = {0};
    if (conn->index > 0) {
        answer(conn, request);
        return;
    }
    frames_goaway(&out, 0, H2_NO_ERROR, "");
    say(conn, &out);
    cut(conn);
}

static void goaway_and_the_end_of_the_connection_at_once_cost_no_call(void **state)
{
    struct fixture *fixture = *state;
    struct peer peer = {0};
    struct seen seen = {0};
    open_peer(fixture, &peer, goaway_and_cut);
    begin(fixture, NULL, &seen);
    expect(fixture, &seen, ARPC_STATUS_OK);
    close_peer(&peer);
}

/* ---- resets and cuts ---- */

static void refuse_first(struct peer_conn *conn, const struct frames_request *request)
{
    struct frames_out out = {0};
    if (request->stream > 1) {
        answer(conn, request);
        return;
    }
    frames_rst(&out, request->stream, H2_REFUSED);
    say(conn, &out);
}

static void a_refused_stream_is_tried_again_on_the_same_connection(void **state)
{
    struct fixture *fixture = *state;
    struct peer peer = {0};
    struct seen seen = {0};
    open_peer(fixture, &peer, refuse_first);
    begin(fixture, NULL, &seen);
    expect(fixture, &seen, ARPC_STATUS_OK);
    assert_int_equal(seen.started, 1);
    assert_int_equal(peer.conn_count, 1);
    close_peer(&peer);
}

static void cut_first(struct peer_conn *conn, const struct frames_request *request)
{
    if (conn->index == 0)
        cut(conn);
    else
        answer(conn, request);
}

static void a_cut_before_the_answer_is_tried_again_by_policy_only(void **state)
{
    struct fixture *fixture = *state;
    struct peer peer = {0};
    struct seen with = {0};
    struct seen without = {0};
    open_peer(fixture, &peer, cut_first);
    begin(fixture, &quick, &with);
    begin(fixture, NULL, &without);
    expect(fixture, &without, ARPC_STATUS_UNAVAILABLE);
    expect(fixture, &with, ARPC_STATUS_OK);
    assert_string_equal(peer.conns[1]->in.requests[0].previous_attempts, "1");
    close_peer(&peer);
}

static void cut_after_head(struct peer_conn *conn, const struct frames_request *request)
{
    struct frames_out out = {0};
    frames_head(&out, request->stream);
    say(conn, &out);
    cut(conn);
}

static void a_cut_after_the_headers_is_the_end(void **state)
{
    struct fixture *fixture = *state;
    struct peer peer = {0};
    struct seen seen = {0};
    open_peer(fixture, &peer, cut_after_head);
    begin(fixture, &quick, &seen);
    expect(fixture, &seen, ARPC_STATUS_UNAVAILABLE);
    assert_int_equal(seen.started, 1);
    assert_false(seen.from_peer);
    assert_int_equal(peer.conn_count, 1);
    close_peer(&peer);
}

static void say_busy(struct peer_conn *conn, const struct frames_request *request)
{
    struct frames_out out = {0};
    frames_trailers_only(&out, request->stream, "14", NULL);
    say(conn, &out);
}

static void a_server_that_stays_busy_is_asked_four_times_and_then_throttled(void **state)
{
    struct fixture *fixture = *state;
    struct peer peer = {0};
    struct seen first = {0};
    struct seen second = {0};
    open_peer(fixture, &peer, say_busy);
    begin(fixture, &quick, &first);
    expect(fixture, &first, ARPC_STATUS_UNAVAILABLE);
    assert_true(first.from_peer);
    assert_string_equal(first.message, "as the script says");
    assert_int_equal(peer.conns[0]->in.request_count, 4);
    assert_string_equal(peer.conns[0]->in.requests[3].previous_attempts, "3");
    begin(fixture, &quick, &second); /* 6 of 10 tokens are left: 5 after this failure */
    expect(fixture, &second, ARPC_STATUS_UNAVAILABLE);
    assert_int_equal(peer.conns[0]->in.request_count, 5);
    close_peer(&peer);
}

static void closing_a_channel_ends_calls_that_wait_to_begin_again(void **state)
{
    struct fixture *fixture = *state;
    struct peer peer = {0};
    struct seen seen = {0};
    const struct arpc_retry_policy slow = {.initial_backoff_ms = 60000, .max_backoff_ms = 60000};
    const struct arpc_call_options options = {.size = sizeof options, .retry = &slow};
    open_peer(fixture, &peer, say_busy);
    channel_call_with(fixture, PATH("Unary"), &options, &seen, "hello", 5);
    while (peer.conn_count == 0 || peer.conns[0]->acted == 0)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    for (int i = 0; i < 5; i++)
        (void)uv_run(&fixture->loop, UV_RUN_NOWAIT);
    assert_int_equal(seen.closed, 0);
    channel_stop_channel(fixture);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.status, ARPC_STATUS_CANCELLED);
    close_peer(&peer);
}

/* ---- a server that is restarted under load ---- */

#define LOAD_CALLS    1000
#define LOAD_AT_ONCE  20
#define LOAD_RESTARTS 10

struct load {
    struct fixture *fixture;
    int begun;
    int ended;
    int failed;
    struct seen seen[LOAD_CALLS];
};

static struct load *load_under_way; /* of the one test that has one */

static void begin_load(struct load *load);

static void on_load_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct load *load = load_under_way;
    channel_on_closed(call, result);
    load->ended++;
    if (result->status != ARPC_STATUS_OK) {
        load->failed++;
        (void)fprintf(stderr, "status %d: %s\n", result->status, result->message);
    }
    if (load->begun < LOAD_CALLS)
        begin_load(load);
}

static const struct arpc_handler load_handler = {.closed = on_load_closed};

/* Every third call takes some milliseconds, so that each drain finds some under way. */
static void begin_load(struct load *load)
{
    static const struct arpc_call_options options = {.size = sizeof options,
                                                     .deadline_ms = GUARD_MS,
                                                     .single_response = true,
                                                     .wait_for_ready = true,
                                                     .idempotent = true};
    struct seen *seen = &load->seen[load->begun];
    uint8_t request[16];
    size_t used = 0;
    bool sleeps = load->begun % 3 == 0;
    load->begun++;
    echo_put_number(request, &used, 1, 3);
    assert_int_equal(arpc_channel_call(load->fixture->channel, sleeps ? PATH("Sleep") : PATH("Unary"), &options,
                                       &load_handler, seen, &seen->call, NULL),
                     0);
    assert_int_equal(arpc_call_send(seen->call, request, used, NULL, 0, NULL, NULL), 0);
    arpc_call_half_close(seen->call);
}

static void a_thousand_calls_survive_ten_restarts_by_drain(void **state)
{
    struct fixture *fixture = *state;
    struct load *load = calloc(1, sizeof *load);
    struct arpc_server_stats stats;
    assert_non_null(load);
    load->fixture = fixture;
    load_under_way = load;
    while (load->begun < LOAD_AT_ONCE)
        begin_load(load);
    for (int restart = 1; restart <= LOAD_RESTARTS; restart++) {
        while (load->ended < restart * LOAD_CALLS / (LOAD_RESTARTS + 1))
            (void)uv_run(&fixture->loop, UV_RUN_ONCE);
        bool drained = false;
        arpc_server_drain(fixture->server, 10000, channel_set_flag, &drained);
        channel_run_until_bool(fixture, &drained);
        channel_stop_server(fixture);
        channel_start_server(fixture, fixture->target);
    }
    while (load->ended < LOAD_CALLS)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    assert_int_equal(load->failed, 0);
    for (int i = 0; i < LOAD_CALLS; i++)
        assert_int_equal(load->seen[i].closed, 1);
    arpc_server_stats(fixture->server, &stats);
    assert_true(stats.calls_total > 0);
    free(load);
}

int main(void)
{
#define WITH_LOOP(test) cmocka_unit_test_setup_teardown(test, channel_setup_bare, channel_teardown)
    const struct CMUnitTest tests[] = {
        WITH_LOOP(goaway_that_comes_with_the_settings_costs_no_call),
        WITH_LOOP(a_server_that_drains_each_connection_at_once_is_tried_less_and_less_often),
        WITH_LOOP(streams_below_a_goaway_finish_and_those_above_move),
        WITH_LOOP(goaway_in_the_middle_of_an_answer_does_not_disturb_it),
        WITH_LOOP(goaway_and_the_end_of_the_connection_at_once_cost_no_call),
        WITH_LOOP(a_refused_stream_is_tried_again_on_the_same_connection),
        WITH_LOOP(a_cut_before_the_answer_is_tried_again_by_policy_only),
        WITH_LOOP(a_cut_after_the_headers_is_the_end),
        WITH_LOOP(a_server_that_stays_busy_is_asked_four_times_and_then_throttled),
        WITH_LOOP(closing_a_channel_ends_calls_that_wait_to_begin_again),
        cmocka_unit_test_setup_teardown(a_thousand_calls_survive_ten_restarts_by_drain, channel_setup,
                                        channel_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
