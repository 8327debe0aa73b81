/*
 * How connections live and end: strikes for PINGs, ages, drains. The wire is looked at by a bare client; what our own
 * client makes of it by a pair.
 */
#include "tests/unit/rpc_raw.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define COUNT(a)    (sizeof a / sizeof *(a))
#define MINUTE_MS   60000
#define INTERVAL_MS (5 * MINUTE_MS)

static void reply(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)arpc_call_reply(call, data, size);
}

static int started; /* calls on the server */

static void count_started(struct arpc_call *call)
{
    (void)call;
    started++;
}

static void ignore_closed(struct arpc_call *call, const struct arpc_result *result)
{
    (void)call;
    (void)result;
}

static const struct arpc_handler unary = {.started = count_started, .message = reply, .closed = ignore_closed};
/* Answers nothing and keeps its client waiting. */
static const struct arpc_handler note = {.started = count_started, .closed = ignore_closed};

static void ask_soon(struct arpc_call *call)
{
    arpc_call_keepalive(call, 2000, 4000);
}

static const struct arpc_handler missed = {.started = ask_soon, .closed = ignore_closed};

static const struct arpc_method methods[] = {
    {"t.T", "Missed", ARPC_BIDI, false, 0, 1000, &missed},
    {"t.T", "Note", ARPC_BIDI, false, 0, 1000, &note},
    {"t.T", "Unary", ARPC_UNARY, false, 0, 1000, &unary},
};

static const char empty_message[5];

static int64_t max_age_ms, max_age_grace_ms, idle_ms;
static uint64_t jitter;
static const char *retired_why;
static int retired;

static void count_retired(const char *peer, const char *why, void *arg)
{
    (void)peer;
    (void)arg;
    retired_why = why;
    retired++;
}

static void prepare(struct arpc_link_config *config)
{
    config->max_age_ms = max_age_ms;
    config->max_age_grace_ms = max_age_grace_ms;
    config->idle_ms = idle_ms;
    config->jitter = jitter;
    config->retired_cb = count_retired;
    retired = 0;
}

static void open_raw(void)
{
    started = 0;
    rpc_raw_open(methods, COUNT(methods), prepare);
    rpc_raw_run();
}

static int setup(void **state)
{
    (void)state;
    max_age_ms = max_age_grace_ms = idle_ms = 0;
    jitter = 1;
    open_raw();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rpc_raw_close();
    return 0;
}

/* A PING of the client, after a time. */
static void ping_after(int64_t ms)
{
    static const uint8_t opaque[8] = {1};
    raw.now_ms += ms;
    assert_int_equal(nghttp2_submit_ping(raw.session, NGHTTP2_FLAG_NONE, opaque), 0);
    rpc_raw_run();
}

static void expect_expelled(void)
{
    assert_int_equal(raw.goaways, 1);
    assert_int_equal(raw.goaway_code, NGHTTP2_ENHANCE_YOUR_CALM);
    assert_string_equal(raw.goaway_debug, "too_many_pings");
    assert_true(arpc_link_is_over(&raw.server.link));
}

static void the_third_ping_that_comes_too_early_ends_the_connection(void **state)
{
    (void)state;
    ping_after(0);
    ping_after(INTERVAL_MS - 1);
    ping_after(1);
    assert_int_equal(raw.goaways, 0);
    ping_after(INTERVAL_MS - 1);
    expect_expelled();
}

static void the_third_early_ping_ends_a_connection_with_calls_too(void **state)
{
    (void)state;
    rpc_raw_request("/t.T/Note", NULL, NULL, empty_message, sizeof empty_message, false);
    for (int i = 0; i < 4; i++)
        ping_after(ARPC_PING_FLOOD_MS);
    expect_expelled();
    /* A keepalive that is too short: its address gets no strike. */
    assert_int_equal(raw.server.link.abuse, ARPC_ABUSE_NONE);
    /* What still comes is not looked at. */
    rpc_raw_feed("not a frame", 11);
    assert_int_equal(raw.server.link.error, 0);
}

static void pings_closer_than_any_keepalive_are_held_against_the_address(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        ping_after(ARPC_PING_FLOOD_MS - 1);
    expect_expelled();
    assert_int_equal(raw.server.link.abuse, ARPC_ABUSE_PINGS);
    assert_int_equal(raw.server.config.abuses[ARPC_ABUSE_PINGS], 1);
}

static void pings_at_the_interval_are_answered_for_ever(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++)
        ping_after(INTERVAL_MS);
    assert_int_equal(raw.goaways, 0);
    assert_int_equal(raw.server.link.error, 0);
}

static void what_the_server_sends_wipes_strikes_out(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        ping_after(10);
        ping_after(10);
        ping_after(10);
        rpc_raw_request("/t.T/Unary", NULL, NULL, empty_message, sizeof empty_message, true);
        assert_string_equal(raw.grpc_status, "0");
    }
    assert_int_equal(raw.goaways, 0);
    assert_int_equal(raw.server.link.error, 0);
}

static void our_client_asks_half_as_often_once_it_was_told_so(void **state)
{
    (void)state;
    struct rpc_pair pair;
    rpc_pair_open(&pair, methods, COUNT(methods));
    struct rpc_seen seen = {0};
    (void)rpc_pair_call(&pair, "Note", &rpc_noting, &seen);
    rpc_pair_run(&pair);
    for (int i = 0; i < 4; i++)
        rpc_pair_pass(&pair, 30000);
    assert_true(pair.client.link.goaway.received);
    assert_true(arpc_link_is_over(&pair.server.link));
    assert_int_equal(pair.client.config.keepalive_ms, 60000);
    rpc_pair_close(&pair);
}

static void a_connection_with_a_call_whose_peer_is_missed_soon_is_lost_when_that_is_gone_without_a_word(void **state)
{
    (void)state;
    struct rpc_pair pair;
    rpc_pair_open(&pair, methods, COUNT(methods));
    struct rpc_seen seen = {0};
    (void)rpc_pair_call(&pair, "Missed", &rpc_noting, &seen);
    rpc_pair_run(&pair);
    for (int i = 0; i < 10; i++) /* a peer that is there and says nothing of its own accord */
        rpc_pair_pass(&pair, 2000);
    assert_int_equal(pair.server.link.error, 0);
    pair.cut = true;
    rpc_pair_pass(&pair, 2000);
    rpc_pair_pass(&pair, 3999);
    assert_int_equal(pair.server.link.error, 0);
    rpc_pair_pass(&pair, 1);
    assert_int_equal(pair.server.link.error, AMP_EDEADLINE);
    rpc_pair_close(&pair);
}

/* A pair whose client asks after 2 s and waits 4 s, with a message on its way that the network takes long for. */
static void open_slow(struct rpc_pair *pair, struct rpc_seen *seen)
{
    rpc_pair_prepare(pair, methods, COUNT(methods));
    pair->client.config.keepalive_ms = 2000;
    pair->client.config.keepalive_timeout_ms = 4000;
    rpc_pair_connect(pair);
    struct arpc_call *call = rpc_pair_call(pair, "Note", &rpc_noting, seen);
    rpc_pair_run(pair);
    assert_int_equal(arpc_call_send(call, "slow", 4, NULL, 0, NULL, NULL), 0);
    (void)arpc_link_flush(&pair->client.link);
    assert_int_equal(arpc_link_produce(&pair->client.link, &pair->client.batch), 0);
    pair->now_ms += 2000;
    arpc_link_tick(&pair->client.link);
    assert_true(pair->client.link.keepalive.ping_ms == pair->now_ms);
}

static void close_slow(struct rpc_pair *pair)
{
    arpc_batch_done(&pair->client.link, &pair->client.batch);
    rpc_pair_close(pair);
}

static void a_peer_that_takes_bytes_slowly_is_not_lost_until_it_takes_none(void **state)
{
    (void)state;
    for (int drained = 0; drained < 2; drained++) {
        struct rpc_pair pair;
        struct rpc_seen seen = {0};
        open_slow(&pair, &seen);
        struct arpc_link *link = &pair.client.link;
        if (drained)
            arpc_link_drain(link);
        for (int i = 0; i < 10; i++) {
            pair.now_ms += 4000;
            arpc_link_taken(link);
            arpc_link_tick(link);
            assert_int_equal(link->error, 0);
        }
        pair.now_ms += 3999;
        arpc_link_tick(link);
        assert_int_equal(link->error, 0);
        pair.now_ms++;
        arpc_link_tick(link);
        assert_int_equal(link->error, AMP_EDEADLINE);
        close_slow(&pair);
    }
}

static void a_peer_that_sends_bytes_is_not_lost_while_the_ping_is_on_its_way(void **state)
{
    (void)state;
    struct rpc_pair pair;
    struct rpc_seen seen = {0};
    open_slow(&pair, &seen);
    struct arpc_link *server = &pair.server.link;
    struct arpc_call *call = AMP_CONTAINER(server->calls.next, struct arpc_call, in_link);
    for (int i = 0; i < 10; i++) {
        pair.now_ms += 3999;
        assert_int_equal(arpc_call_send(call, "news", 4, NULL, 0, NULL, NULL), 0);
        (void)arpc_link_flush(server);
        assert_true(rpc_pair_carry(&pair, &pair.server, &pair.client));
        arpc_link_tick(&pair.client.link);
        assert_int_equal(pair.client.link.error, 0);
    }
    pair.now_ms += 4000;
    arpc_link_tick(&pair.client.link);
    assert_int_equal(pair.client.link.error, AMP_EDEADLINE);
    assert_int_equal(seen.ended, 10);
    close_slow(&pair);
}

static void a_peer_without_calls_that_takes_bytes_is_lost_all_the_same(void **state)
{
    (void)state;
    struct arpc_link *link = &raw.server.link;
    arpc_link_drain(link);
    raw.now_ms += ARPC_PING_TIMEOUT_MS;
    arpc_link_taken(link);
    arpc_link_tick(link);
    assert_int_equal(link->error, AMP_EDEADLINE);
}

static void a_connection_that_is_old_is_drained_with_its_reason(void **state)
{
    rpc_raw_close();
    (void)state;
    max_age_ms = 10 * MINUTE_MS;
    open_raw();
    rpc_raw_request("/t.T/Note", NULL, NULL, empty_message, sizeof empty_message, false);
    rpc_raw_pass(max_age_ms - max_age_ms / 10 - 1);
    assert_int_equal(raw.goaways, 0);
    rpc_raw_pass(max_age_ms / 5 + 1);
    assert_int_equal(raw.goaways, 2);
    assert_int_equal(raw.goaway_code, NGHTTP2_NO_ERROR);
    assert_string_equal(raw.goaway_debug, "max_age");
    assert_false(arpc_link_is_over(&raw.server.link));
}

static void an_age_below_every_other_wait_is_not_late(void **state)
{
    (void)state;
    rpc_raw_close();
    max_age_ms = 200;
    open_raw();
    rpc_raw_request("/t.T/Note", NULL, NULL, empty_message, sizeof empty_message, false);
    rpc_raw_pass(220);
    assert_int_equal(raw.goaways, 2);
}

static void ages_differ_by_a_tenth_at_most_and_not_all_are_equal(void **state)
{
    (void)state;
    int64_t least = INT64_MAX, most = 0;
    for (int i = 0; i < 100; i++) {
        rpc_raw_close();
        max_age_ms = 10000;
        jitter = raw.server.config.jitter;
        open_raw();
        int64_t age = raw.server.link.age.due_ms - raw.server.link.age.opened_ms;
        least = age < least ? age : least;
        most = age > most ? age : most;
    }
    assert_true(least >= 9000 && least < 9300);
    assert_true(most <= 11000 && most > 10700);
}

static void a_call_that_outlasts_the_grace_of_an_old_connection_is_cut(void **state)
{
    (void)state;
    rpc_raw_close();
    max_age_ms = 10 * MINUTE_MS;
    max_age_grace_ms = MINUTE_MS;
    open_raw();
    rpc_raw_request("/t.T/Note", NULL, NULL, empty_message, sizeof empty_message, false);
    rpc_raw_pass(max_age_ms + max_age_ms / 10);
    assert_int_equal(raw.goaways, 2);
    assert_false(arpc_link_is_over(&raw.server.link));
    rpc_raw_pass(max_age_grace_ms - 1);
    assert_int_equal(raw.server.link.error, 0);
    rpc_raw_pass(1);
    assert_int_equal(raw.server.link.error, AMP_EUNAVAILABLE);
}

static void an_idle_connection_is_drained_with_its_reason(void **state)
{
    (void)state;
    rpc_raw_close();
    idle_ms = MINUTE_MS;
    open_raw();
    rpc_raw_pass(MINUTE_MS);
    assert_int_equal(raw.goaways, 1); /* a client without streams reads no further */
    assert_int_equal(raw.server.link.goaway.drain, ARPC_DRAIN_FINAL);
    assert_string_equal(raw.server.link.goaway.why, "max_idle");
    assert_int_equal(retired, 1);
    assert_string_equal(retired_why, "max_idle");
    assert_true(arpc_link_is_over(&raw.server.link));
}

/* The server gets the head of a request as if the client had sent it; the bare client itself no longer would. */
static void feed_request(int32_t id, const char *path)
{
    const char *const fields[][2] = {{":method", "POST"}, {":scheme", "http"}, {":path", path},
                                     {":authority", "x"}, {"te", "trailers"},  {"content-type", "application/grpc"}};
    nghttp2_nv nv[COUNT(fields)];
    for (size_t i = 0; i < COUNT(fields); i++)
        nv[i] = (nghttp2_nv){(uint8_t *)(uintptr_t)fields[i][0], (uint8_t *)(uintptr_t)fields[i][1],
                             strlen(fields[i][0]), strlen(fields[i][1]), NGHTTP2_NV_FLAG_NONE};
    nghttp2_hd_deflater *deflater;
    uint8_t frame[256] = {0};
    assert_int_equal(nghttp2_hd_deflate_new(&deflater, 0), 0);
    ssize_t size = nghttp2_hd_deflate_hd(deflater, frame + 9, sizeof frame - 9, nv, COUNT(nv));
    nghttp2_hd_deflate_del(deflater);
    assert_in_range(size, 1, 255);
    frame[2] = (uint8_t)size;
    frame[3] = NGHTTP2_HEADERS;
    frame[4] = NGHTTP2_FLAG_END_HEADERS;
    frame[7] = (uint8_t)(id >> 8);
    frame[8] = (uint8_t)id;
    rpc_raw_feed(frame, (size_t)size + 9);
}

/*
 * What the server sends now goes to the client, without a word back. Returns the code of the RST_STREAM of a stream, or
 * -1.
 */
static int carry_to_client(int32_t id)
{
    struct rpc_side *server = &raw.server;
    int code = -1;
    assert_int_equal(arpc_link_produce(&server->link, &server->batch), 0);
    for (size_t i = 0; i < server->batch.count; i++) {
        const uint8_t *data = server->batch.slots[i].iov_base;
        size_t size = server->batch.slots[i].iov_len;
        for (size_t at = 0; at + 13 <= size; at += 9 + ((size_t)data[at + 1] << 8 | data[at + 2]))
            if (data[at + 3] == NGHTTP2_RST_STREAM && data[at + 8] == id)
                code = data[at + 12];
        assert_true(nghttp2_session_mem_recv(raw.session, data, size) >= 0);
    }
    arpc_batch_done(&server->link, &server->batch);
    return code;
}

static void a_drain_says_goaway_twice_and_serves_what_is_on_its_way(void **state)
{
    (void)state;
    rpc_raw_request("/t.T/Note", NULL, NULL, empty_message, sizeof empty_message, false);
    arpc_link_drain(&raw.server.link);
    assert_int_equal(carry_to_client(3), -1);
    assert_int_equal(raw.goaways, 1);
    assert_int_equal(raw.goaway_stream, INT32_MAX);
    feed_request(3, "/t.T/Note"); /* sent before the client knew */
    assert_int_equal(started, 2);
    rpc_raw_run(); /* the answer to the PING */
    assert_int_equal(raw.goaways, 2);
    assert_int_equal(raw.goaway_stream, 3);
    assert_int_equal(raw.goaway_code, NGHTTP2_NO_ERROR);
    assert_false(arpc_link_is_over(&raw.server.link));
}

static void a_request_after_the_final_goaway_is_refused_and_not_begun(void **state)
{
    (void)state;
    rpc_raw_request("/t.T/Note", NULL, NULL, empty_message, sizeof empty_message, false);
    arpc_link_drain(&raw.server.link);
    rpc_raw_run();
    assert_int_equal(raw.goaway_stream, 1);
    feed_request(3, "/t.T/Note");
    assert_int_equal(carry_to_client(3), NGHTTP2_REFUSED_STREAM);
    assert_int_equal(started, 1);
    assert_int_equal(raw.server.link.call_count, 1);
    assert_int_equal(raw.server.link.error, 0);
}

static void a_request_that_comes_before_the_final_goaway_has_left_is_refused_too(void **state)
{
    (void)state;
    rpc_raw_request("/t.T/Note", NULL, NULL, empty_message, sizeof empty_message, false);
    arpc_link_drain(&raw.server.link);
    assert_int_equal(carry_to_client(3), -1);
    /* The client's answer to the PING, which makes the server queue the final GOAWAY; and at once one more request. */
    const uint8_t *data;
    for (ssize_t size = nghttp2_session_mem_send(raw.session, &data); size > 0;
         size = nghttp2_session_mem_send(raw.session, &data))
        rpc_raw_feed(data, (size_t)size);
    assert_int_equal(raw.server.link.goaway.drain, ARPC_DRAIN_FINAL);
    feed_request(3, "/t.T/Note");
    assert_int_equal(started, 1);
    assert_int_equal(carry_to_client(3), NGHTTP2_REFUSED_STREAM);
    assert_int_equal(raw.goaway_stream, 1);
}

static void requests_after_the_final_goaway_are_forgiven_for_a_while_only(void **state)
{
    (void)state;
    rpc_raw_request("/t.T/Note", NULL, NULL, empty_message, sizeof empty_message, false);
    arpc_link_drain(&raw.server.link);
    rpc_raw_run();
    struct rpc_side *server = &raw.server;
    int64_t burst = arpc_limits_default.refusals_burst;
    int32_t id = 3;
    for (int i = 0; i < burst + 1 && !server->link.goaway.expelled; i++, id += 2) {
        assert_true(i <= burst);
        feed_request(id, "/t.T/Note");
        assert_int_equal(arpc_link_produce(&server->link, &server->batch), 0); /* the peer reads its refusals */
        arpc_batch_done(&server->link, &server->batch);
    }
    assert_int_equal(server->link.abuse, ARPC_ABUSE_REFUSALS);
    assert_int_equal(started, 1);
}

/* An answer to a PING that was not sent. */
static void feed_false_answer(char letter)
{
    const uint8_t frame[17] = {0, 0, 8, NGHTTP2_PING, NGHTTP2_FLAG_ACK, 0, 0, 0, 0, (uint8_t)letter};
    rpc_raw_feed(frame, sizeof frame);
}

static void answers_to_no_ping_do_not_put_off_the_end_of_a_drain(void **state)
{
    (void)state;
    rpc_raw_request("/t.T/Note", NULL, NULL, empty_message, sizeof empty_message, false);
    arpc_link_drain(&raw.server.link);
    (void)carry_to_client(1);
    for (int ms = 0; ms < ARPC_PING_TIMEOUT_MS; ms += 1000) {
        assert_int_equal(raw.server.link.error, 0);
        feed_false_answer('x');
        raw.now_ms += 1000;
        arpc_link_tick(&raw.server.link);
    }
    assert_int_equal(raw.server.link.error, AMP_EDEADLINE);
}

static void a_drain_for_another_reason_does_not_keep_an_old_connection_from_being_cut(void **state)
{
    (void)state;
    rpc_raw_close();
    max_age_ms = 10 * MINUTE_MS;
    max_age_grace_ms = MINUTE_MS;
    open_raw();
    rpc_raw_request("/t.T/Note", NULL, NULL, empty_message, sizeof empty_message, false);
    arpc_link_drain(&raw.server.link);
    rpc_raw_run();
    assert_int_equal(raw.goaways, 2);
    rpc_raw_pass(max_age_ms + max_age_ms / 10);
    assert_int_equal(raw.server.link.error, 0);
    rpc_raw_pass(max_age_grace_ms);
    assert_int_equal(raw.server.link.error, AMP_EUNAVAILABLE);
}

static void who_asks_too_often_and_does_not_read_is_cut_soon(void **state)
{
    (void)state;
    const uint8_t frame[17] = {0, 0, 8, NGHTTP2_PING};
    for (int i = 0; i < 4; i++)
        rpc_raw_feed(frame, sizeof frame);
    assert_true(raw.server.link.goaway.expelled && raw.server.link.error == 0);
    raw.now_ms += arpc_limits_default.goodbye_ms;
    arpc_link_tick(&raw.server.link);
    assert_int_equal(raw.server.link.error, AMP_EDEADLINE);
}

int main(void)
{
#define WITH_RAW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_RAW(the_third_ping_that_comes_too_early_ends_the_connection),
        WITH_RAW(the_third_early_ping_ends_a_connection_with_calls_too),
        WITH_RAW(pings_closer_than_any_keepalive_are_held_against_the_address),
        WITH_RAW(pings_at_the_interval_are_answered_for_ever),
        WITH_RAW(what_the_server_sends_wipes_strikes_out),
        WITH_RAW(our_client_asks_half_as_often_once_it_was_told_so),
        WITH_RAW(a_connection_with_a_call_whose_peer_is_missed_soon_is_lost_when_that_is_gone_without_a_word),
        WITH_RAW(a_peer_that_takes_bytes_slowly_is_not_lost_until_it_takes_none),
        WITH_RAW(a_peer_that_sends_bytes_is_not_lost_while_the_ping_is_on_its_way),
        WITH_RAW(a_peer_without_calls_that_takes_bytes_is_lost_all_the_same),
        WITH_RAW(a_connection_that_is_old_is_drained_with_its_reason),
        WITH_RAW(an_age_below_every_other_wait_is_not_late),
        WITH_RAW(ages_differ_by_a_tenth_at_most_and_not_all_are_equal),
        WITH_RAW(a_call_that_outlasts_the_grace_of_an_old_connection_is_cut),
        WITH_RAW(an_idle_connection_is_drained_with_its_reason),
        WITH_RAW(a_drain_says_goaway_twice_and_serves_what_is_on_its_way),
        WITH_RAW(a_request_after_the_final_goaway_is_refused_and_not_begun),
        WITH_RAW(a_request_that_comes_before_the_final_goaway_has_left_is_refused_too),
        WITH_RAW(requests_after_the_final_goaway_are_forgiven_for_a_while_only),
        WITH_RAW(answers_to_no_ping_do_not_put_off_the_end_of_a_drain),
        WITH_RAW(a_drain_for_another_reason_does_not_keep_an_old_connection_from_being_cut),
        WITH_RAW(who_asks_too_often_and_does_not_read_is_cut_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
