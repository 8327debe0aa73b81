/* The stream machine, both sides joined in memory: order of callbacks, back-pressure, deadlines, ownership. */
#include "tests/unit/rpc_pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define KIB         ((size_t)1 << 10)
#define MIB         ((size_t)1 << 20)
#define COUNT(a)    (sizeof a / sizeof *(a))
#define WINDOW      (256 * KIB) /* of a new stream */
#define MESSAGE_MAX 1000000

static void finish_at_half_close(struct arpc_call *call)
{
    rpc_noting.half_close(call);
    arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
}

static void echo(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)arpc_call_send(call, data, size, NULL, 0, NULL, NULL);
}

static void note_whole(struct arpc_call *call, const uint8_t *data, size_t size)
{
    rpc_noting.message_begin(call, size);
    rpc_noting.message_bytes(call, data, size);
    rpc_noting.message_end(call);
}

static void reply_whole(struct arpc_call *call, const uint8_t *data, size_t size)
{
    note_whole(call, data, size);
    (void)arpc_call_reply(call, data, size);
}

static void pause_at_begin(struct arpc_call *call, size_t size)
{
    rpc_noting.message_begin(call, size);
    arpc_call_pause(call);
}

static void cancel_at_bytes(struct arpc_call *call, const uint8_t *data, size_t size)
{
    rpc_noting.message_bytes(call, data, size);
    arpc_call_cancel(call, ARPC_STATUS_CANCELLED, "by the handler");
}

static void finish_at_begin(struct arpc_call *call, size_t size)
{
    rpc_noting.message_begin(call, size);
    arpc_call_finish(call, ARPC_STATUS_ABORTED, "no need to read", NULL);
}

#define PULL_PARTS 2
#define PULL_SIZE  (400 * KIB)

/* What a pull has still to send, kept where the user pointer of its call is. */
static int pull_left[64];
static size_t pull_count;

static void go_on_pulling(struct arpc_call *call)
{
    static const uint8_t part[PULL_SIZE];
    int *left = arpc_call_user(call);
    for (; *left > 0; --*left)
        if (arpc_call_send(call, part, sizeof part, NULL, 0, NULL, NULL) != 0)
            return; /* `writable` calls again */
    arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
}

static void begin_pull(struct arpc_call *call)
{
    pull_left[pull_count] = PULL_PARTS;
    arpc_call_set_user(call, &pull_left[pull_count++]);
    go_on_pulling(call);
}

static void end_pull(struct arpc_call *call, const struct arpc_result *result)
{
    (void)call;
    (void)result;
}

static const struct arpc_handler pulling = {.started = begin_pull, .writable = go_on_pulling, .closed = end_pull};

/* As when the connection is closed from inside a callback. */
static void break_link(struct arpc_call *call)
{
    rpc_noting.started(call);
    struct arpc_link *link = call->link;
    arpc_link_fail(link, AMP_EUNAVAILABLE, "closed");
    arpc_link_abort(link, ARPC_STATUS_UNAVAILABLE, "closed");
}

static struct arpc_handler noting, collecting, echoing, replying, pausing, cancelling, finishing, breaking;

static void make_handlers(void)
{
    noting = collecting = echoing = replying = pausing = cancelling = finishing = breaking = rpc_noting;
    collecting.half_close = finish_at_half_close;
    echoing.message = echo;
    echoing.half_close = finish_at_half_close;
    replying.message = reply_whole;
    pausing.message_begin = pause_at_begin;
    pausing.half_close = finish_at_half_close;
    cancelling.message_bytes = cancel_at_bytes;
    finishing.message_begin = finish_at_begin;
    breaking.started = break_link;
    pull_count = 0;
}

static const struct arpc_method methods[] = {
    {"t.T", "Note", ARPC_BIDI, false, 0, MESSAGE_MAX, &noting},
    {"t.T", "Collect", ARPC_CLIENT_STREAM, false, 0, MESSAGE_MAX, &collecting},
    {"t.T", "Echo", ARPC_BIDI, false, 0, MESSAGE_MAX, &echoing},
    {"t.T", "Unary", ARPC_UNARY, false, 0, MESSAGE_MAX, &replying},
    {"t.T", "Pause", ARPC_CLIENT_STREAM, false, 0, 64 * MIB, &pausing},
    {"t.T", "Cancel", ARPC_CLIENT_STREAM, false, 0, MESSAGE_MAX, &cancelling},
    {"t.T", "Finish", ARPC_CLIENT_STREAM, false, 0, MESSAGE_MAX, &finishing},
    {"t.T", "Break", ARPC_BIDI, false, 0, MESSAGE_MAX, &breaking},
    {"t.T", "Pull", ARPC_SERVER_STREAM, false, 0, MESSAGE_MAX, &pulling},
};

static struct rpc_pair pair;

/* What clients saw; calls may end as late as in the teardown. */
static struct rpc_seen client, other;

static int setup(void **state)
{
    (void)state;
    make_handlers();
    memset(&client, 0, sizeof client);
    memset(&other, 0, sizeof other);
    rpc_pair_open(&pair, methods, COUNT(methods));
    rpc_pair_run(&pair);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rpc_pair_close(&pair);
    assert_int_equal(rpc_seen_of_server.after_closed, 0);
    return 0;
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
    static const uint8_t zeros[16 << 20];
    assert_true(size <= sizeof zeros);
    assert_int_equal(arpc_call_send(call, NULL, 0, zeros, size, count_release, released), 0);
}

static void messages_are_the_same_for_every_chunking(void **state)
{
    (void)state;
    static const size_t chunks[] = {1, 2, 3, 5, 9, 14, 100, 0};
    struct rpc_seen *server = &rpc_seen_of_server;
    for (size_t i = 0; i < COUNT(chunks); i++) {
        memset(&client, 0, sizeof client);
        memset(server, 0, sizeof *server);
        pair.chunk = chunks[i];
        struct arpc_call *call = rpc_pair_call(&pair, "Echo", &rpc_noting, &client);
        send_text(call, "hello");
        send_text(call, "");
        send_text(call, "world!");
        arpc_call_half_close(call);
        rpc_pair_run(&pair);
        assert_int_equal(client.closed, 1);
        assert_int_equal(client.status, ARPC_STATUS_OK);
        assert_int_equal(client.begun, 3);
        assert_int_equal(client.ended, 3);
        assert_int_equal(client.bytes, 11);
        assert_memory_equal(client.data, "helloworld!", 11);
        assert_int_equal(client.after_closed, 0);
        assert_int_equal(server->half_closed, 1);
        assert_int_equal(server->closed, 1);
        assert_int_equal(server->status, ARPC_STATUS_OK);
    }
}

static void a_unary_request_is_given_whole_and_only_after_its_end(void **state)
{
    (void)state;
    pair.chunk = 7;
    struct arpc_call *call = rpc_pair_call(&pair, "Unary", &rpc_noting, &client);
    send_text(call, "one message");
    rpc_pair_run(&pair);
    assert_int_equal(rpc_seen_of_server.begun, 0);
    arpc_call_half_close(call);
    rpc_pair_run(&pair);
    assert_int_equal(rpc_seen_of_server.begun, 1);
    assert_int_equal(client.closed, 1);
    assert_memory_equal(client.data, "one message", 11);
}

static void unary_with_no_or_two_messages_is_unimplemented(void **state)
{
    (void)state;
    for (int count = 0; count <= 2; count += 2) {
        memset(&client, 0, sizeof client);
        memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
        struct arpc_call *call = rpc_pair_call(&pair, "Unary", &rpc_noting, &client);
        for (int i = 0; i < count; i++)
            send_text(call, "x");
        arpc_call_half_close(call);
        rpc_pair_run(&pair);
        assert_int_equal(client.closed, 1);
        assert_int_equal(client.status, ARPC_STATUS_UNIMPLEMENTED);
        assert_int_equal(rpc_seen_of_server.begun, 0);
    }
}

static void a_message_over_the_limit_is_refused_before_any_of_it_is_taken(void **state)
{
    (void)state;
    static int released;
    released = 0;
    struct arpc_call *call = rpc_pair_call(&pair, "Collect", &rpc_noting, &client);
    send_zeros(call, MESSAGE_MAX + 1, &released);
    rpc_pair_run(&pair);
    assert_int_equal(client.closed, 1);
    assert_int_equal(client.status, ARPC_STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(client.message, "1000001"));
    assert_int_equal(rpc_seen_of_server.begun, 0);
    assert_int_equal(rpc_seen_of_server.closed, 1);
    assert_int_equal(released, 1);
}

static void a_paused_call_holds_one_window_and_others_go_on(void **state)
{
    (void)state;
    static int released;
    released = 0;
    struct arpc_call *call = rpc_pair_call(&pair, "Pause", &rpc_noting, &client);
    send_zeros(call, 8 * MIB, &released);
    arpc_call_half_close(call);
    rpc_pair_run(&pair);
    static struct rpc_seen held;
    held = rpc_seen_of_server;
    assert_int_equal(held.begun, 1);
    assert_int_equal(held.bytes, 0);
    assert_true(pair.server.link.buffered <= WINDOW);
    assert_true(pair.server.link.buffered > WINDOW / 2);
    assert_int_equal(released, 0);

    memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    arpc_call_set_user(held.call, &held);
    struct arpc_call *unary = rpc_pair_call(&pair, "Unary", &rpc_noting, &other);
    send_text(unary, "through");
    arpc_call_half_close(unary);
    rpc_pair_run(&pair);
    assert_int_equal(other.closed, 1);
    assert_int_equal(other.status, ARPC_STATUS_OK);

    arpc_call_resume(held.call);
    rpc_pair_run(&pair);
    assert_int_equal(held.bytes, 8 * MIB);
    assert_int_equal(held.half_closed, 1);
    assert_int_equal(client.status, ARPC_STATUS_OK);
    assert_int_equal(released, 1);
    assert_int_equal(pair.server.link.buffered, 0);
}

static void a_paused_call_is_not_told_of_the_end_until_it_goes_on(void **state)
{
    (void)state;
    struct arpc_call *call = rpc_pair_call(&pair, "Pause", &rpc_noting, &client);
    send_text(call, "");
    arpc_call_half_close(call);
    rpc_pair_run(&pair);
    assert_int_equal(rpc_seen_of_server.ended, 0);
    assert_int_equal(rpc_seen_of_server.half_closed, 0);
    arpc_call_resume(rpc_seen_of_server.call);
    rpc_pair_run(&pair);
    assert_int_equal(rpc_seen_of_server.ended, 1);
    assert_int_equal(rpc_seen_of_server.half_closed, 1);
    assert_int_equal(client.closed, 1);
}

static void after_a_cancel_inside_a_message_only_closed_follows(void **state)
{
    (void)state;
    static int released;
    released = 0;
    pair.chunk = 1000;
    struct arpc_call *call = rpc_pair_call(&pair, "Cancel", &rpc_noting, &client);
    for (int i = 0; i < 5; i++)
        send_zeros(call, 100000, &released);
    rpc_pair_run(&pair);
    assert_int_equal(rpc_seen_of_server.closed, 1);
    assert_string_equal(rpc_seen_of_server.message, "by the handler");
    assert_true(rpc_seen_of_server.bytes < 100000);
    assert_int_equal(rpc_seen_of_server.ended, 0);
    assert_int_equal(client.closed, 1);
    assert_int_equal(client.status, ARPC_STATUS_CANCELLED);
    assert_int_equal(released, 5);
}

static void a_call_that_is_finished_early_stops_the_client_and_drops_the_rest(void **state)
{
    (void)state;
    static int released;
    released = 0;
    struct arpc_call *call = rpc_pair_call(&pair, "Finish", &rpc_noting, &client);
    for (int i = 0; i < 20; i++)
        send_zeros(call, MESSAGE_MAX, &released);
    rpc_pair_run(&pair);
    assert_int_equal(client.closed, 1);
    assert_int_equal(client.status, ARPC_STATUS_ABORTED);
    assert_true(client.from_peer);
    assert_int_equal(rpc_seen_of_server.begun, 1);
    assert_int_equal(rpc_seen_of_server.bytes, 0);
    assert_int_equal(rpc_seen_of_server.closed, 1);
    assert_int_equal(rpc_seen_of_server.status, ARPC_STATUS_ABORTED);
    assert_int_equal(released, 20);
    assert_int_equal(pair.client.link.queued, 0);
}

static void writable_comes_once_when_the_queue_has_fallen(void **state)
{
    (void)state;
    static int released;
    released = 0;
    struct arpc_call *call = rpc_pair_call(&pair, "Note", &rpc_noting, &client);
    send_zeros(call, 1000, &released);
    rpc_pair_run(&pair);
    assert_int_equal(client.writable, 0);
    send_zeros(call, MESSAGE_MAX, &released);
    assert_int_equal(arpc_call_queued(call), MESSAGE_MAX + 5);
    rpc_pair_run(&pair);
    assert_int_equal(client.writable, 1);
    assert_int_equal(arpc_call_queued(call), 0);
}

static void sending_over_the_connections_limit_is_refused_and_the_body_stays_the_callers(void **state)
{
    (void)state;
    static int released;
    released = 0;
    static const uint8_t zeros[1024];
    struct arpc_call *call = rpc_pair_call(&pair, "Note", &rpc_noting, &client);
    for (int i = 0; i < 4; i++)
        send_zeros(call, 16 * MIB - 5, &released);
    assert_int_equal(arpc_call_send(call, NULL, 0, zeros, sizeof zeros, count_release, &released), AMP_EEXHAUSTED);
    arpc_call_cancel(call, ARPC_STATUS_CANCELLED, NULL);
    rpc_pair_run(&pair);
    assert_int_equal(released, 4);
    assert_int_equal(client.closed, 1);
}

static void a_call_whose_message_was_refused_is_told_when_there_is_room(void **state)
{
    (void)state;
    static int released;
    static struct rpc_seen server_one;
    static const uint8_t zeros[1024];
    released = 0;
    memset(&server_one, 0, sizeof server_one);
    struct arpc_call *call = rpc_pair_call(&pair, "Pause", &rpc_noting, &client);
    rpc_pair_run(&pair);
    arpc_call_set_user(rpc_seen_of_server.call, &server_one);
    server_one.call = rpc_seen_of_server.call;
    struct arpc_call *starved = rpc_pair_call(&pair, "Note", &rpc_noting, &other);
    for (int i = 0; i < 4; i++)
        send_zeros(call, 16 * MIB - 5, &released);
    assert_int_equal(arpc_call_send(starved, zeros, 1, NULL, 0, NULL, NULL), AMP_EEXHAUSTED);
    rpc_pair_run(&pair);
    assert_int_equal(other.writable, 0);
    for (int i = 0; i < 4; i++) {
        arpc_call_resume(server_one.call);
        rpc_pair_run(&pair);
    }
    assert_int_equal(other.writable, 1);
    assert_int_equal(arpc_call_send(starved, zeros, 1, NULL, 0, NULL, NULL), 0);
}

static void slow_streams_that_fill_the_queue_leave_each_other_call_its_answer(void **state)
{
    (void)state;
    static struct rpc_seen second;
    static const uint8_t zeros[MESSAGE_MAX];
    static int released;
    released = 0;
    pair.server.config.max_queued = MIB;
    arpc_call_pause(rpc_pair_call(&pair, "Note", &rpc_noting, &client));
    rpc_pair_run(&pair);
    send_zeros(rpc_seen_of_server.call, 2 * MIB, &released);
    rpc_pair_run(&pair);
    (void)rpc_pair_call(&pair, "Note", &rpc_noting, &other);
    rpc_pair_run(&pair);
    struct arpc_call *call = rpc_seen_of_server.call;
    arpc_call_set_user(call, &second);
    assert_int_equal(arpc_call_send(call, zeros, sizeof zeros, NULL, 0, NULL, NULL), 0);
    assert_int_equal(arpc_call_send(call, zeros, 1, NULL, 0, NULL, NULL), AMP_EEXHAUSTED);
    rpc_pair_run(&pair);
    assert_int_equal(released, 0);
    assert_int_equal(other.bytes, sizeof zeros);
}

static void every_one_of_many_refused_calls_has_its_turn(void **state)
{
    (void)state;
    static struct rpc_seen pulls[40];
    memset(pulls, 0, sizeof pulls);
    pair.server.config.max_queued = MIB;
    for (size_t i = 0; i < COUNT(pulls); i++) {
        struct arpc_call *call = rpc_pair_call(&pair, "Pull", &rpc_noting, &pulls[i]);
        send_text(call, "");
        arpc_call_half_close(call);
    }
    rpc_pair_run(&pair);
    for (size_t i = 0; i < COUNT(pulls); i++) {
        assert_int_equal(pulls[i].closed, 1);
        assert_int_equal(pulls[i].status, ARPC_STATUS_OK);
        assert_int_equal(pulls[i].bytes, PULL_PARTS * PULL_SIZE);
    }
}

static void a_link_that_ends_inside_a_callback_begins_no_further_call(void **state)
{
    (void)state;
    static struct rpc_seen calls[4];
    memset(calls, 0, sizeof calls);
    for (size_t i = 0; i < COUNT(calls); i++)
        (void)rpc_pair_call(&pair, "Break", &rpc_noting, &calls[i]);
    rpc_pair_run(&pair); /* their four HEADERS are in one read */
    assert_int_equal(rpc_seen_of_server.started, 1);
    assert_int_equal(rpc_seen_of_server.closed, 1);
    assert_int_equal(pair.server.link.call_count, 0);
}

static void after_the_end_nothing_can_be_sent(void **state)
{
    (void)state;
    struct arpc_call *call = rpc_pair_call(&pair, "Note", &rpc_noting, &client);
    arpc_call_half_close(call);
    assert_int_equal(arpc_call_send(call, "x", 1, NULL, 0, NULL, NULL), AMP_ESTATE);
    rpc_pair_run(&pair);
    arpc_call_finish(rpc_seen_of_server.call, ARPC_STATUS_OK, NULL, NULL);
    assert_int_equal(arpc_call_send(rpc_seen_of_server.call, "x", 1, NULL, 0, NULL, NULL), AMP_ESTATE);
    arpc_call_finish(rpc_seen_of_server.call, ARPC_STATUS_INTERNAL, "twice", NULL);
    rpc_pair_run(&pair);
    assert_int_equal(client.status, ARPC_STATUS_OK);
}

static void the_deadline_is_told_to_the_handler_and_to_the_client(void **state)
{
    (void)state;
    struct arpc_call *call = rpc_pair_call(&pair, "Note", &rpc_noting, &client);
    call->deadline_ms = pair.now_ms + 100;
    rpc_pair_run(&pair);
    assert_int_equal(arpc_call_time_left_ms(rpc_seen_of_server.call), 100);
    call->deadline_ms = INT64_MAX; /* the client does not act: the server has to */
    rpc_pair_pass(&pair, 99);
    assert_int_equal(rpc_seen_of_server.closed, 0);
    rpc_pair_pass(&pair, 1);
    assert_int_equal(rpc_seen_of_server.closed, 1);
    assert_int_equal(rpc_seen_of_server.status, ARPC_STATUS_DEADLINE_EXCEEDED);
    assert_int_equal(client.closed, 1);
    assert_int_equal(client.status, ARPC_STATUS_DEADLINE_EXCEEDED);
    assert_true(client.from_peer);
}

static void a_deadline_after_the_first_message_is_told_to_the_client_too(void **state)
{
    (void)state;
    struct arpc_call *call = rpc_pair_call(&pair, "Note", &rpc_noting, &client);
    call->deadline_ms = pair.now_ms + 100;
    rpc_pair_run(&pair);
    call->deadline_ms = INT64_MAX;
    send_text(rpc_seen_of_server.call, "half an answer");
    rpc_pair_run(&pair);
    rpc_pair_pass(&pair, 100);
    assert_int_equal(rpc_seen_of_server.status, ARPC_STATUS_DEADLINE_EXCEEDED);
    assert_int_equal(client.closed, 1);
    assert_int_equal(client.status, ARPC_STATUS_DEADLINE_EXCEEDED);
    assert_true(client.from_peer);
}

static void a_stream_whose_peer_opens_no_window_is_cut(void **state)
{
    (void)state;
    static int released;
    released = 0;
    struct arpc_call *call = rpc_pair_call(&pair, "Note", &rpc_noting, &client);
    rpc_pair_run(&pair);
    arpc_call_pause(call);
    send_zeros(rpc_seen_of_server.call, MIB, &released);
    rpc_pair_run(&pair);
    assert_int_equal(released, 0);
    rpc_pair_pass(&pair, 29999);
    assert_int_equal(rpc_seen_of_server.closed, 0);
    rpc_pair_pass(&pair, 1);
    assert_int_equal(rpc_seen_of_server.closed, 1);
    assert_int_equal(rpc_seen_of_server.status, ARPC_STATUS_UNAVAILABLE);
    assert_int_equal(released, 1);
    arpc_call_resume(call);
    rpc_pair_run(&pair);
    assert_int_equal(client.closed, 1);
    assert_int_equal(client.status, ARPC_STATUS_UNAVAILABLE);
    assert_true(client.from_peer);
}

static void an_answer_that_has_used_up_its_window_ends_without_a_further_one(void **state)
{
    (void)state;
    static int released;
    released = 0;
    struct arpc_call *call = rpc_pair_call(&pair, "Note", &rpc_noting, &client);
    rpc_pair_run(&pair);
    arpc_call_pause(call);
    send_zeros(rpc_seen_of_server.call, ARPC_INITIAL_WINDOW - ARPC_PREFIX_SIZE, &released);
    rpc_pair_run(&pair);
    assert_int_equal(released, 1);
    arpc_call_finish(rpc_seen_of_server.call, ARPC_STATUS_OK, NULL, NULL);
    rpc_pair_run(&pair);
    assert_int_equal(rpc_seen_of_server.closed, 1);
    arpc_call_resume(call);
    rpc_pair_run(&pair);
    assert_int_equal(client.bytes, ARPC_INITIAL_WINDOW - ARPC_PREFIX_SIZE);
    assert_int_equal(client.status, ARPC_STATUS_OK);
}

static void a_stream_that_waits_for_a_slow_socket_is_not_cut(void **state)
{
    (void)state;
    static struct rpc_seen second;
    static int released;
    released = 0;
    struct arpc_link *server = &pair.server.link;
    struct arpc_batch *batch = &pair.server.batch;
    (void)rpc_pair_call(&pair, "Note", &rpc_noting, &client);
    rpc_pair_run(&pair);
    send_zeros(rpc_seen_of_server.call, MESSAGE_MAX, &released);
    (void)rpc_pair_call(&pair, "Note", &rpc_noting, &other);
    rpc_pair_run(&pair);
    send_zeros(rpc_seen_of_server.call, MESSAGE_MAX, &released);
    arpc_call_set_user(rpc_seen_of_server.call, &second);
    (void)arpc_link_flush(server);
    batch->most = 1 << 10; /* one of the two is in it, the other waits for its turn */
    assert_int_equal(arpc_link_produce(server, batch), 0);
    assert_int_equal(batch->pin_count, 1);
    for (int i = 0; i < 3; i++) {
        pair.now_ms += 30000;
        arpc_link_tick(server);
        (void)arpc_link_flush(server);
        assert_int_equal(rpc_seen_of_server.closed + second.closed, 0);
    }
    for (size_t i = 0; i < batch->count; i++)
        assert_int_equal(arpc_link_receive(&pair.client.link, batch->slots[i].iov_base, batch->slots[i].iov_len), 0);
    arpc_batch_done(server, batch);
    batch->most = 0;
    rpc_pair_run(&pair);
    assert_int_equal(released, 2);
    assert_int_equal(client.bytes + other.bytes, 2 * MESSAGE_MAX);
}

static void a_queue_that_begins_late_has_its_whole_time(void **state)
{
    (void)state;
    static int released;
    released = 0;
    struct arpc_call *call = rpc_pair_call(&pair, "Note", &rpc_noting, &client);
    rpc_pair_run(&pair);
    arpc_call_pause(call);
    pair.now_ms += 1000000; /* nobody told the links */
    send_zeros(rpc_seen_of_server.call, MIB, &released);
    rpc_pair_run(&pair);
    rpc_pair_pass(&pair, 29999);
    assert_int_equal(rpc_seen_of_server.closed, 0);
    rpc_pair_pass(&pair, 1);
    assert_int_equal(rpc_seen_of_server.closed, 1);
}

static void a_peer_that_says_nothing_is_given_up_after_the_handshake_time(void **state)
{
    (void)state;
    struct rpc_pair silent;
    rpc_pair_open(&silent, methods, COUNT(methods));
    silent.cut = true;
    rpc_pair_run(&silent);
    rpc_pair_pass(&silent, arpc_limits_default.preface_ms - 1);
    assert_int_equal(silent.server.link.error, 0);
    rpc_pair_pass(&silent, 1);
    assert_int_equal(silent.server.link.error, AMP_EDEADLINE);
    rpc_pair_pass(&silent, ARPC_HANDSHAKE_MS - arpc_limits_default.preface_ms - 1);
    assert_int_equal(silent.client.link.error, 0);
    rpc_pair_pass(&silent, 1);
    assert_int_equal(silent.client.link.error, AMP_EDEADLINE);
    rpc_pair_close(&silent);
}

static void a_client_with_a_call_pings_and_gives_a_dead_server_up(void **state)
{
    (void)state;
    (void)rpc_pair_call(&pair, "Note", &rpc_noting, &client);
    rpc_pair_run(&pair);
    rpc_pair_pass(&pair, 30000);
    assert_true(pair.client.link.keepalive.ping_ms == INT64_MAX); /* it was answered */
    pair.cut = true;
    rpc_pair_pass(&pair, 30000);
    assert_true(pair.client.link.keepalive.ping_ms == pair.now_ms);
    rpc_pair_pass(&pair, ARPC_PING_TIMEOUT_MS);
    assert_int_equal(pair.client.link.error, AMP_EDEADLINE);
}

static void an_idle_connection_is_closed_and_one_with_a_call_is_not(void **state)
{
    (void)state;
    struct arpc_call *call = rpc_pair_call(&pair, "Note", &rpc_noting, &client);
    rpc_pair_run(&pair);
    rpc_pair_pass(&pair, 300000);
    assert_false(arpc_link_is_over(&pair.server.link));
    arpc_call_cancel(call, ARPC_STATUS_CANCELLED, NULL);
    rpc_pair_run(&pair);
    rpc_pair_pass(&pair, 299999);
    assert_false(arpc_link_is_over(&pair.server.link));
    rpc_pair_pass(&pair, 1);
    assert_true(arpc_link_is_over(&pair.server.link));
    assert_true(pair.client.link.goaway.received);
}

static void a_drain_lets_calls_end_and_refuses_new_ones(void **state)
{
    (void)state;
    struct arpc_call *call = rpc_pair_call(&pair, "Collect", &rpc_noting, &client);
    rpc_pair_run(&pair);
    arpc_link_drain(&pair.server.link);
    rpc_pair_run(&pair);
    assert_true(pair.client.link.goaway.received);
    (void)rpc_pair_call(&pair, "Note", &rpc_noting, &other);
    rpc_pair_run(&pair);
    assert_int_equal(other.closed, 1);
    assert_int_equal(other.status, ARPC_STATUS_UNAVAILABLE);
    assert_false(arpc_link_is_over(&pair.server.link));
    arpc_call_half_close(call);
    rpc_pair_run(&pair);
    assert_int_equal(client.status, ARPC_STATUS_OK);
    assert_true(arpc_link_is_over(&pair.server.link));
}

static void a_lost_connection_releases_every_buffer_once_wherever_it_is(void **state)
{
    (void)state;
    for (size_t steps = 0; steps < 6; steps++) {
        struct rpc_pair lost;
        memset(&client, 0, sizeof client);
        int released = 0;
        rpc_pair_open(&lost, methods, COUNT(methods));
        struct arpc_call *call = rpc_pair_call(&lost, "Pause", &rpc_noting, &client);
        for (int i = 0; i < 3; i++)
            send_zeros(call, 300 * KIB, &released);
        if (steps > 0)
            rpc_pair_run(&lost);
        if (steps > 1)
            arpc_call_half_close(call);
        if (steps > 2)
            arpc_call_cancel(call, ARPC_STATUS_CANCELLED, NULL);
        if (steps > 3)
            (void)arpc_link_flush(&lost.client.link);
        if (steps > 4)
            rpc_pair_run(&lost);
        rpc_pair_close(&lost);
        assert_int_equal(released, 3);
        assert_int_equal(client.closed, 1);
        assert_int_equal(client.after_closed, 0);
    }
}

static void a_batch_under_way_pins_its_buffers_beyond_the_end_of_the_call(void **state)
{
    (void)state;
    static int released;
    released = 0;
    struct arpc_call *call = rpc_pair_call(&pair, "Note", &rpc_noting, &client);
    rpc_pair_run(&pair);
    send_zeros(call, 100 * KIB, &released);
    (void)arpc_link_flush(&pair.client.link);
    assert_int_equal(arpc_link_produce(&pair.client.link, &pair.client.batch), 0);
    assert_true(pair.client.batch.bytes > 100 * KIB);
    arpc_link_fail(&pair.client.link, AMP_EUNAVAILABLE, "lost");
    arpc_link_abort(&pair.client.link, ARPC_STATUS_UNAVAILABLE, "lost");
    while (arpc_link_flush(&pair.client.link))
        ;
    assert_int_equal(client.closed, 1);
    assert_int_equal(released, 0);
    arpc_batch_done(&pair.client.link, &pair.client.batch);
    assert_int_equal(released, 1);
}

/* nghttp2 puts trailers behind the last DATA frame without asking whether a batch has room for them. */
static void large_trailers_behind_small_pieces_fit_into_any_batch(void **state)
{
    (void)state;
    static char text[ARPC_STATUS_TEXT_MAX], value[256];
    static int released;
    memset(text, '\xff', sizeof text - 1);
    memset(value, '~', sizeof value);
    for (int few = 0; few <= 32; few++) {
        memset(&client, 0, sizeof client);
        memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
        arpc_call_half_close(rpc_pair_call(&pair, "Note", &rpc_noting, &client));
        rpc_pair_run(&pair);
        struct arpc_call *call = rpc_seen_of_server.call;
        /* Each frame has 32 messages; all bytes are copied, but for some of the third. */
        for (int i = 0; i < 4 * 32; i++) {
            bool small = i / 32 != 2 || i % 32 < few;
            assert_int_equal(
                arpc_call_send(call, value, small ? 250 : 0, value, small ? 256 : 0, count_release, &released), 0);
        }
        do /* each is another one, so that none is left to HPACK's table */
            value[0] = value[0] == '~' ? '!' : (char)(value[0] + 1);
        while (arpc_call_add_trailing(call, "x-much", value, sizeof value) == 0);
        arpc_call_finish(call, ARPC_STATUS_INTERNAL, text, NULL);
        rpc_pair_run(&pair);
        assert_int_equal(client.ended, 4 * 32);
        assert_int_equal(client.status, ARPC_STATUS_INTERNAL);
    }
}

static void uploads_share_the_connection_in_turns(void **state)
{
    (void)state;
    static struct rpc_seen server_one;
    static int released[2];
    memset(&server_one, 0, sizeof server_one);
    struct arpc_call *one = rpc_pair_call(&pair, "Note", &rpc_noting, &client);
    rpc_pair_run(&pair);
    arpc_call_set_user(rpc_seen_of_server.call, &server_one);
    struct arpc_call *two = rpc_pair_call(&pair, "Note", &rpc_noting, &other);
    rpc_pair_run(&pair);
    for (int i = 0; i < 40; i++) {
        send_zeros(one, 20 * KIB, &released[0]);
        send_zeros(two, 20 * KIB, &released[1]);
    }
    (void)arpc_link_flush(&pair.client.link);
    assert_int_equal(arpc_link_produce(&pair.client.link, &pair.client.batch), 0);
    assert_true(one->out.unsent < 40 * 20 * KIB);
    assert_true(two->out.unsent < 40 * 20 * KIB);
    arpc_batch_done(&pair.client.link, &pair.client.batch);
}

int main(void)
{
#define WITH_PAIR(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_PAIR(messages_are_the_same_for_every_chunking),
        WITH_PAIR(a_unary_request_is_given_whole_and_only_after_its_end),
        WITH_PAIR(unary_with_no_or_two_messages_is_unimplemented),
        WITH_PAIR(a_message_over_the_limit_is_refused_before_any_of_it_is_taken),
        WITH_PAIR(a_paused_call_holds_one_window_and_others_go_on),
        WITH_PAIR(a_paused_call_is_not_told_of_the_end_until_it_goes_on),
        WITH_PAIR(after_a_cancel_inside_a_message_only_closed_follows),
        WITH_PAIR(a_call_that_is_finished_early_stops_the_client_and_drops_the_rest),
        WITH_PAIR(writable_comes_once_when_the_queue_has_fallen),
        WITH_PAIR(sending_over_the_connections_limit_is_refused_and_the_body_stays_the_callers),
        WITH_PAIR(a_call_whose_message_was_refused_is_told_when_there_is_room),
        WITH_PAIR(slow_streams_that_fill_the_queue_leave_each_other_call_its_answer),
        WITH_PAIR(every_one_of_many_refused_calls_has_its_turn),
        WITH_PAIR(a_link_that_ends_inside_a_callback_begins_no_further_call),
        WITH_PAIR(after_the_end_nothing_can_be_sent),
        WITH_PAIR(the_deadline_is_told_to_the_handler_and_to_the_client),
        WITH_PAIR(a_deadline_after_the_first_message_is_told_to_the_client_too),
        WITH_PAIR(a_stream_whose_peer_opens_no_window_is_cut),
        WITH_PAIR(an_answer_that_has_used_up_its_window_ends_without_a_further_one),
        WITH_PAIR(a_stream_that_waits_for_a_slow_socket_is_not_cut),
        WITH_PAIR(a_queue_that_begins_late_has_its_whole_time),
        WITH_PAIR(a_peer_that_says_nothing_is_given_up_after_the_handshake_time),
        WITH_PAIR(a_client_with_a_call_pings_and_gives_a_dead_server_up),
        WITH_PAIR(an_idle_connection_is_closed_and_one_with_a_call_is_not),
        WITH_PAIR(a_drain_lets_calls_end_and_refuses_new_ones),
        WITH_PAIR(a_lost_connection_releases_every_buffer_once_wherever_it_is),
        WITH_PAIR(a_batch_under_way_pins_its_buffers_beyond_the_end_of_the_call),
        WITH_PAIR(large_trailers_behind_small_pieces_fit_into_any_batch),
        WITH_PAIR(uploads_share_the_connection_in_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
