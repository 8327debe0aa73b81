/*
 * The stream machine at its edges, both sides joined in memory: limits of the peer, a server that goes away, numbers
 * and times out of range, and what a call still owns when it ends.
 */
#include "tests/unit/rpc_pair.h"

#include <nghttp2/nghttp2.h>

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define KIB         ((size_t)1 << 10)
#define MIB         ((size_t)1 << 20)
#define COUNT(a)    (sizeof a / sizeof *(a))
#define MESSAGE_MAX ((size_t)4 << 20)
#define CALLS       6

static struct rpc_pair pair;

/* What the clients saw, and the server's side of the calls in the order in which they began. */
static struct rpc_seen client[CALLS];
static struct arpc_call *served[CALLS];
static struct rpc_seen seen[CALLS];
static size_t served_count;

static void note_served(struct arpc_call *call)
{
    assert_true(served_count < CALLS);
    seen[served_count] = (struct rpc_seen){0};
    arpc_call_set_user(call, &seen[served_count]);
    served[served_count++] = call;
    rpc_noting.started(call);
}

static struct arpc_handler noting;

static const struct arpc_method methods[] = {{"t.T", "Note", ARPC_BIDI, false, 0, MESSAGE_MAX, &noting}};

static const char *const kept[] = {"x-head", "x-tail", NULL};

static int prepare(void **state)
{
    (void)state;
    noting = rpc_noting;
    noting.started = note_served;
    served_count = 0;
    memset(client, 0, sizeof client);
    memset(seen, 0, sizeof seen);
    rpc_pair_prepare(&pair, methods, COUNT(methods));
    return 0;
}

static int setup(void **state)
{
    (void)prepare(state);
    pair.client.config.keep_metadata = kept;
    rpc_pair_connect(&pair);
    rpc_pair_run(&pair);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rpc_pair_close(&pair);
    for (size_t i = 0; i < CALLS; i++) {
        assert_int_equal(client[i].after_closed, 0);
        assert_int_equal(seen[i].after_closed, 0);
    }
    return 0;
}

static struct arpc_call *begin(size_t index)
{
    return rpc_pair_call(&pair, "Note", &rpc_noting, &client[index]);
}

static void send_text(struct arpc_call *call, const char *text)
{
    assert_int_equal(arpc_call_send(call, text, strlen(text), NULL, 0, NULL, NULL), 0);
}

static void count_release(void *arg)
{
    (*(int *)arg)++;
}

static void send_zeros(struct arpc_call *call, size_t size, int *released)
{
    static const uint8_t zeros[1 << 20];
    assert_true(size <= sizeof zeros);
    assert_int_equal(arpc_call_send(call, NULL, 0, zeros, size, count_release, released), 0);
}

/* The server allows the client this many streams from now on. */
static void allow_streams(uint32_t count)
{
    const nghttp2_settings_entry entry = {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, count};
    assert_int_equal(nghttp2_submit_settings(pair.server.link.session, NGHTTP2_FLAG_NONE, &entry, 1), 0);
    rpc_pair_run(&pair);
}

static void calls_above_the_peers_limit_wait_in_order(void **state)
{
    (void)state;
    struct arpc_call *calls[4];
    allow_streams(2);
    for (size_t i = 0; i < COUNT(calls); i++)
        calls[i] = begin(i);
    rpc_pair_run(&pair);
    assert_int_equal(served_count, 2);
    for (size_t i = 0; i < COUNT(calls); i++) {
        send_text(calls[i], "x");
        arpc_call_half_close(calls[i]);
        rpc_pair_run(&pair);
        arpc_call_finish(served[i], ARPC_STATUS_OK, NULL, NULL);
        rpc_pair_run(&pair);
        assert_int_equal(client[i].closed, 1);
        assert_int_equal(client[i].status, ARPC_STATUS_OK);
        assert_int_equal(served_count, i + 3 < COUNT(calls) ? i + 3 : COUNT(calls));
    }
    assert_int_equal(pair.client.link.stream_count, 0);
}

static void more_streams_are_used_as_soon_as_they_are_allowed(void **state)
{
    (void)state;
    allow_streams(1);
    for (size_t i = 0; i < 3; i++)
        (void)begin(i);
    rpc_pair_run(&pair);
    assert_int_equal(served_count, 1);
    allow_streams(100);
    assert_int_equal(served_count, 3);
}

static void a_call_that_is_cancelled_while_it_waits_leaves_nothing_behind(void **state)
{
    (void)state;
    static int released;
    released = 0;
    allow_streams(1);
    (void)begin(0);
    rpc_pair_run(&pair);
    struct arpc_call *call = begin(1);
    send_zeros(call, MIB, &released);
    rpc_pair_run(&pair);
    arpc_call_cancel(call, ARPC_STATUS_CANCELLED, NULL);
    rpc_pair_run(&pair);
    assert_int_equal(client[1].closed, 1);
    assert_int_equal(released, 1);
    assert_int_equal(pair.client.config.calls, 1);
    assert_int_equal(pair.client.link.queued, 0);
    struct arpc_call *late = begin(2);
    late->deadline_ms = pair.now_ms + 10;
    send_zeros(late, MIB, &released);
    rpc_pair_run(&pair);
    arpc_link_due(&pair.client.link, late->deadline_ms);
    rpc_pair_pass(&pair, 10);
    assert_int_equal(client[2].status, ARPC_STATUS_DEADLINE_EXCEEDED);
    assert_int_equal(released, 2);
    assert_int_equal(pair.client.config.calls, 1);
}

static void calls_that_wait_are_unavailable_when_the_server_goes_away(void **state)
{
    (void)state;
    allow_streams(2);
    for (size_t i = 0; i < 4; i++)
        (void)begin(i);
    rpc_pair_run(&pair);
    arpc_link_drain(&pair.server.link);
    rpc_pair_run(&pair);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(client[i].closed, i >= 2);
    assert_int_equal(client[2].status, ARPC_STATUS_UNAVAILABLE);
    assert_int_equal(client[3].status, ARPC_STATUS_UNAVAILABLE);
    assert_false(arpc_link_takes_calls(&pair.client.link));
}

static void a_request_that_a_goaway_overtakes_is_unavailable(void **state)
{
    (void)state;
    (void)begin(0);
    rpc_pair_run(&pair);
    (void)begin(1);
    (void)arpc_link_flush(&pair.client.link); /* its HEADERS are with nghttp2, not on the way */
    arpc_link_drain(&pair.server.link);
    (void)rpc_pair_carry(&pair, &pair.server, &pair.client);
    assert_true(pair.client.link.goaway.received);
    rpc_pair_run(&pair);
    assert_int_equal(client[0].closed, 0);
    assert_int_equal(client[1].closed, 1);
    assert_int_equal(client[1].status, ARPC_STATUS_UNAVAILABLE);
    assert_int_equal(pair.client.link.stream_count, 1);
}

static void a_connection_without_stream_ids_takes_no_calls(void **state)
{
    (void)state;
    assert_int_equal(nghttp2_session_set_next_stream_id(pair.client.link.session, INT32_MAX), 0);
    assert_true(arpc_link_takes_calls(&pair.client.link));
    (void)begin(0);
    rpc_pair_run(&pair);
    assert_int_equal(served_count, 1);
    assert_false(arpc_link_takes_calls(&pair.client.link));
    (void)begin(1);
    rpc_pair_run(&pair);
    assert_int_equal(client[1].status, ARPC_STATUS_UNAVAILABLE);
    assert_int_equal(client[0].closed, 0);
}

static void a_peer_that_does_not_answer_a_drain_is_given_up(void **state)
{
    (void)state;
    rpc_pair_pass(&pair, 1);
    pair.cut = true;
    rpc_pair_pass(&pair, 300000); /* the server's idle time */
    assert_int_equal(pair.server.link.goaway.drain, ARPC_DRAIN_NOTICE);
    arpc_link_drain(&pair.client.link);
    rpc_pair_pass(&pair, ARPC_PING_TIMEOUT_MS - 1);
    assert_int_equal(pair.server.link.error, 0);
    rpc_pair_pass(&pair, 1);
    assert_int_equal(pair.server.link.error, AMP_EDEADLINE);
    assert_int_equal(pair.client.link.error, AMP_EDEADLINE);
}

/*
 * Closed at once, the connection would be reset by what the client sends after its GOAWAY, and the last answers lost.
 */
static void a_client_that_said_goaway_has_time_to_close(void **state)
{
    (void)state;
    struct arpc_link *link = &pair.server.link;
    rpc_pair_pass(&pair, 1);
    nghttp2_session *peer = pair.client.link.session;
    assert_int_equal(nghttp2_submit_goaway(peer, NGHTTP2_FLAG_NONE, 0, NGHTTP2_NO_ERROR, NULL, 0), 0);
    rpc_pair_run(&pair);
    assert_true(link->goaway.received);
    assert_false(arpc_link_is_over(link));
    rpc_pair_pass(&pair, link->watch.limits->goodbye_ms - 1);
    assert_false(arpc_link_is_over(link));
    rpc_pair_pass(&pair, 1);
    assert_true(arpc_link_is_over(link));
}

static void the_answer_to_an_older_ping_is_none_to_the_drain(void **state)
{
    (void)state;
    struct arpc_link *link = &pair.server.link;
    arpc_link_ask(link);
    (void)rpc_pair_carry(&pair, &pair.server, &pair.client);
    pair.now_ms += 1000;
    arpc_link_drain(link);
    (void)rpc_pair_carry(&pair, &pair.client, &pair.server);
    assert_int_equal(link->goaway.drain, ARPC_DRAIN_NOTICE);
    assert_true(link->keepalive.ping_ms == pair.now_ms);
    rpc_pair_run(&pair);
    assert_int_equal(link->goaway.drain, ARPC_DRAIN_FINAL);
    assert_true(link->keepalive.ping_ms == INT64_MAX);
}

static void times_without_end_never_come(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct arpc_link_config *config = i == 0 ? &pair.client.config : &pair.server.config;
        config->keepalive_ms = config->write_stall_ms = config->idle_ms = INT64_MAX;
    }
    rpc_pair_connect(&pair);
    struct arpc_call *call = begin(0);
    send_text(call, "x");
    rpc_pair_run(&pair);
    rpc_pair_pass(&pair, (int64_t)1 << 50);
    assert_int_equal(client[0].closed, 0);
    arpc_call_half_close(call);
    arpc_call_finish(served[0], ARPC_STATUS_OK, NULL, NULL);
    rpc_pair_run(&pair);
    assert_int_equal(client[0].status, ARPC_STATUS_OK);
    rpc_pair_pass(&pair, (int64_t)1 << 50);
    assert_int_equal(pair.server.link.error, 0);
    assert_int_equal(arpc_after(5, INT64_MAX), INT64_MAX);
    assert_int_equal(arpc_after(INT64_MAX, 5), INT64_MAX);
    assert_int_equal(arpc_after(5, 7), 12);
}

static void a_status_that_is_none_is_sent_as_unknown(void **state)
{
    (void)state;
    static const int bad[] = {17, 1000, 12345678, INT32_MAX, -1, INT32_MIN};
    for (size_t i = 0; i < COUNT(bad); i++) {
        memset(client, 0, sizeof client);
        served_count = 0;
        (void)begin(0);
        rpc_pair_run(&pair);
        arpc_call_finish(served[0], bad[i], "bad", NULL);
        rpc_pair_run(&pair);
        assert_int_equal(client[0].status, ARPC_STATUS_UNKNOWN);
        assert_string_equal(client[0].message, "bad");
        assert_int_equal(seen[0].status, ARPC_STATUS_UNKNOWN);
        struct arpc_call *call = begin(1);
        arpc_call_cancel(call, bad[i], NULL);
        rpc_pair_run(&pair);
        assert_int_equal(client[1].status, ARPC_STATUS_UNKNOWN);
    }
}

static void a_call_may_be_resumed_before_anything_has_come(void **state)
{
    (void)state;
    struct arpc_call *call = begin(0);
    rpc_pair_run(&pair);
    arpc_call_pause(served[0]);
    rpc_pair_run(&pair);
    arpc_call_resume(served[0]);
    rpc_pair_run(&pair);
    send_text(call, "later");
    arpc_call_half_close(call);
    rpc_pair_run(&pair);
    assert_int_equal(seen[0].ended, 1);
    assert_int_equal(seen[0].half_closed, 1);
}

static const uint8_t *taken;

static void take_pointer(struct arpc_call *call)
{
    size_t size;
    rpc_noting.started(call);
    assert_true(arpc_call_metadata(call, "x-head", 0, &taken, &size));
}

static void look_at_pointer(struct arpc_call *call, const struct arpc_result *result)
{
    const uint8_t *again;
    size_t size;
    rpc_noting.closed(call, result);
    assert_true(arpc_call_metadata(call, "x-head", 0, &again, &size));
    assert_ptr_equal(again, taken);
    assert_memory_equal(taken, "first", 5);
    assert_true(arpc_call_metadata(call, "x-tail", 0, &again, &size));
    assert_int_equal(size, 3000);
}

static void metadata_of_the_head_stays_where_it_is_when_the_trailers_come(void **state)
{
    (void)state;
    static const struct arpc_handler taking = {.started = take_pointer, .closed = look_at_pointer};
    static char tail[3000];
    memset(tail, 't', sizeof tail);
    (void)rpc_pair_call(&pair, "Note", &taking, &client[0]);
    rpc_pair_run(&pair);
    assert_int_equal(arpc_call_add_initial(served[0], "x-head", "first", 5), 0);
    send_text(served[0], "x");
    rpc_pair_run(&pair);
    assert_int_equal(client[0].started, 1);
    assert_int_equal(arpc_call_add_trailing(served[0], "x-tail", tail, sizeof tail), 0);
    arpc_call_finish(served[0], ARPC_STATUS_OK, NULL, NULL);
    rpc_pair_run(&pair);
    assert_int_equal(client[0].closed, 1);
}

static struct arpc_call *victim;

static void cancel_victim(struct arpc_call *call, const struct arpc_result *result)
{
    rpc_noting.closed(call, result);
    arpc_call_cancel(victim, ARPC_STATUS_CANCELLED, "not needed any more");
}

static void pause_after_two(struct arpc_call *call)
{
    const struct rpc_seen *mine = arpc_call_user(call);
    rpc_noting.message_end(call);
    if (mine->ended >= 2)
        arpc_call_pause(call);
}

/*
 * A response of 16 MiB, which its window lets through, and of which the client takes the first two. Returns the
 * client's call.
 */
static struct arpc_call *hold_response(size_t index, int *released)
{
    static struct arpc_handler holding;
    holding = rpc_noting;
    holding.message_end = pause_after_two;
    struct arpc_call *call = rpc_pair_call(&pair, "Note", &holding, &client[index]);
    arpc_call_half_close(call);
    rpc_pair_run(&pair);
    for (int i = 0; i < 16; i++)
        send_zeros(served[served_count - 1], MIB, released);
    rpc_pair_run(&pair);
    return call;
}

/* All that the server has to send comes to the client in one turn. */
static void receive_without_flush(void)
{
    struct arpc_batch *batch = &pair.server.batch;
    (void)arpc_link_flush(&pair.server.link);
    assert_int_equal(arpc_link_produce(&pair.server.link, batch), 0);
    for (size_t i = 0; i < batch->count; i++)
        assert_int_equal(arpc_link_receive(&pair.client.link, batch->slots[i].iov_base, batch->slots[i].iov_len), 0);
    arpc_batch_done(&pair.server.link, batch);
}

static void bytes_that_an_ended_call_held_are_given_back_to_the_connection(void **state)
{
    (void)state;
    static int released;
    static const struct arpc_handler cancelling = {.closed = cancel_victim};
    released = 0;
    pair.server.config.max_queued = 1024 * MIB;
    for (size_t i = 0; i < 5; i++)
        victim = hold_response(i, &released);
    assert_true(pair.client.link.uncredited > 0);
    struct arpc_call *trigger = rpc_pair_call(&pair, "Note", &cancelling, &client[5]);
    arpc_call_half_close(trigger);
    rpc_pair_run(&pair);
    arpc_call_finish(served[5], ARPC_STATUS_OK, NULL, NULL);
    arpc_call_finish(served[4], ARPC_STATUS_OK, NULL, NULL);
    receive_without_flush();
    rpc_pair_run(&pair); /* the victim is cancelled while its own end is being told */
    assert_int_equal(client[5].closed, 1);
    assert_int_equal(client[4].closed, 1);
    assert_int_equal(client[4].status, ARPC_STATUS_CANCELLED);
    assert_int_equal(pair.client.link.uncredited, 0);
}

static void a_paused_call_keeps_what_a_small_window_let_through(void **state)
{
    (void)state;
    static int released;
    released = 0;
    pair.server.config.stream_window = 16 * KIB;
    rpc_pair_connect(&pair);
    /* Before the server's SETTINGS: 65,535 bytes may come (RFC 9113 6.9.2). */
    struct arpc_call *call = begin(0);
    send_zeros(call, MIB, &released);
    arpc_call_half_close(call);
    (void)arpc_link_flush(&pair.client.link);
    (void)rpc_pair_carry(&pair, &pair.client, &pair.server);
    assert_int_equal(served_count, 1);
    arpc_call_pause(served[0]);
    rpc_pair_run(&pair);
    assert_int_equal(client[0].closed, 0);
    assert_true(pair.server.link.buffered < 64 * KIB);
    struct arpc_call *next = begin(1);
    rpc_pair_run(&pair);
    arpc_call_pause(served[1]);
    size_t before = pair.server.link.buffered;
    send_zeros(next, MIB, &released);
    rpc_pair_run(&pair);
    assert_true(pair.server.link.buffered - before <= 16 * KIB);
    arpc_call_resume(served[0]);
    arpc_call_resume(served[1]);
    rpc_pair_run(&pair);
    assert_int_equal(released, 2);
    assert_int_equal(seen[0].ended + seen[1].ended, 2);
}

static void a_response_head_over_the_limit_is_resource_exhausted(void **state)
{
    (void)state;
    static const size_t limits[] = {1500, 500}; /* over it, and so far over that it is not even read */
    static char text[1800];
    memset(text, 'x', sizeof text);
    for (size_t i = 0; i < COUNT(limits); i++) {
        pair.client.config.max_metadata_bytes = limits[i];
        (void)begin(i);
        rpc_pair_run(&pair);
        assert_int_equal(arpc_call_add_initial(served[i], "x-other", text, sizeof text), 0);
        send_text(served[i], "x");
        rpc_pair_run(&pair);
        assert_int_equal(client[i].closed, 1);
        assert_int_equal(client[i].status, ARPC_STATUS_RESOURCE_EXHAUSTED);
    }
}

int main(void)
{
#define WITH_PAIR(test)     cmocka_unit_test_setup_teardown(test, setup, teardown)
#define WITH_PREPARED(test) cmocka_unit_test_setup_teardown(test, prepare, teardown)
    const struct CMUnitTest tests[] = {
        WITH_PAIR(calls_above_the_peers_limit_wait_in_order),
        WITH_PAIR(more_streams_are_used_as_soon_as_they_are_allowed),
        WITH_PAIR(a_call_that_is_cancelled_while_it_waits_leaves_nothing_behind),
        WITH_PAIR(calls_that_wait_are_unavailable_when_the_server_goes_away),
        WITH_PAIR(a_request_that_a_goaway_overtakes_is_unavailable),
        WITH_PAIR(a_connection_without_stream_ids_takes_no_calls),
        WITH_PAIR(a_peer_that_does_not_answer_a_drain_is_given_up),
        WITH_PAIR(a_client_that_said_goaway_has_time_to_close),
        WITH_PAIR(the_answer_to_an_older_ping_is_none_to_the_drain),
        WITH_PREPARED(times_without_end_never_come),
        WITH_PAIR(a_status_that_is_none_is_sent_as_unknown),
        WITH_PAIR(a_call_may_be_resumed_before_anything_has_come),
        WITH_PAIR(metadata_of_the_head_stays_where_it_is_when_the_trailers_come),
        WITH_PAIR(bytes_that_an_ended_call_held_are_given_back_to_the_connection),
        WITH_PREPARED(a_paused_call_keeps_what_a_small_window_let_through),
        WITH_PAIR(a_response_head_over_the_limit_is_resource_exhausted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
