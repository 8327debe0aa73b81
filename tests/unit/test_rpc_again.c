/*
 * Calls that begin again, against a server that follows a script: a parking link and connections in memory, a clock of the
 * test's own. What the server hears and what the call's user sees are both compared.
 */
#include "rpc/h2/call.h"
#include "tests/unit/rpc_frames.h"
#include "tests/unit/rpc_pair.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define CONNS_MAX 8

struct conn {
    struct arpc_link link;
    struct arpc_batch batch;
    bool batch_out; /* the batch is with the kernel */
    struct frames_in in;
};

struct script {
    struct arpc_link_config config;
    struct arpc_link parking;
    struct amp_random random;
    int64_t now_ms;
    struct conn *conns[CONNS_MAX];
    size_t conn_count;
};

static void wake(struct arpc_link *link)
{
    (void)link;
}

static int64_t read_clock(void *clock)
{
    return *(int64_t *)clock;
}

static int setup(void **state)
{
    struct script *script = calloc(1, sizeof *script);
    assert_non_null(script);
    script->now_ms = 1000;
    script->config = (struct arpc_link_config){.now_cb = read_clock,
                                               .clock = &script->now_ms,
                                               .max_streams = 1024,
                                               .max_metadata_bytes = 8192,
                                               .max_metadata_count = 64,
                                               .max_queued = (size_t)64 << 20,
                                               .stream_window = (size_t)16 << 20,
                                               .keepalive_ms = INT64_MAX,
                                               .write_stall_ms = 30000,
                                               .parking = &script->parking,
                                               .random = &script->random,
                                               .max_retained = 4096,
                                               .max_retained_call = 1024};
    arpc_retry_throttle_init(&script->config.throttle, 1000, 0.1);
    amp_random_init(&script->random, 1);
    assert_int_equal(arpc_link_init(&script->parking, &script->config, wake, false), 0);
    *state = script;
    return 0;
}

static void flush(struct arpc_link *link)
{
    while (arpc_link_flush(link))
        ;
}

static void batch_gone(struct conn *conn)
{
    conn->batch_out = false;
    arpc_batch_done(&conn->link, &conn->batch);
}

/* Everything goes as far as it can, on this connection. */
static void run(struct conn *conn)
{
    for (int i = 0; i < 8; i++) {
        flush(&conn->link);
        if (conn->link.error != 0)
            return;
        assert_int_equal(arpc_link_produce(&conn->link, &conn->batch), 0);
        for (size_t k = 0; k < conn->batch.count; k++)
            frames_hear(&conn->in, conn->batch.slots[k].iov_base, conn->batch.slots[k].iov_len);
        arpc_batch_done(&conn->link, &conn->batch);
    }
    flush(conn->link.config->parking);
}

/* A connection that is ready; the calls that wait move to it. */
static struct conn *connect_one(struct script *script)
{
    struct frames_out *out = calloc(1, sizeof *out);
    struct conn *conn = calloc(1, sizeof *conn);
    assert_true(out != NULL && conn != NULL && script->conn_count < CONNS_MAX);
    assert_int_equal(arpc_link_init(&conn->link, &script->config, wake, true), 0);
    (void)snprintf(conn->link.peer, sizeof conn->link.peer, "test");
    frames_in_open(&conn->in);
    frames_settings(out);
    frames_settings_ack(out);
    run(conn);
    assert_int_equal(arpc_link_receive(&conn->link, out->bytes, out->size), 0);
    free(out);
    script->conns[script->conn_count++] = conn;
    arpc_link_tick(&script->parking);
    arpc_link_move(&script->parking, &conn->link);
    run(conn);
    return conn;
}

static void say(struct conn *conn, const struct frames_out *out)
{
    assert_int_equal(arpc_link_receive(&conn->link, out->bytes, out->size), 0);
    run(conn);
}

static void lose(struct conn *conn)
{
    arpc_link_fail(&conn->link, AMP_EUNAVAILABLE, "lost");
    arpc_link_lost(&conn->link, "the connection was cut");
    if (conn->batch_out)
        batch_gone(conn);
    flush(&conn->link);
    flush(conn->link.config->parking);
    assert_int_equal(conn->link.call_count, 0);
}

static int teardown(void **state)
{
    struct script *script = *state;
    for (size_t i = 0; i < script->conn_count; i++) {
        struct conn *conn = script->conns[i];
        arpc_link_fail(&conn->link, AMP_EUNAVAILABLE, "over");
        arpc_link_abort(&conn->link, ARPC_STATUS_CANCELLED, "the test is over");
        if (conn->batch_out)
            batch_gone(conn);
        flush(&conn->link);
        arpc_link_close(&conn->link);
        frames_in_close(&conn->in);
        free(conn);
    }
    arpc_link_abort(&script->parking, ARPC_STATUS_CANCELLED, "the test is over");
    flush(&script->parking);
    arpc_link_close(&script->parking);
    assert_int_equal(script->config.calls, 0);
    assert_int_equal(script->config.retained, 0);
    free(script);
    return 0;
}

static const struct arpc_retry_policy quick = {.max_attempts = 3, .initial_backoff_ms = 100};

/* A call with one small message and the end of it; `policy` may be NULL. */
static struct arpc_call *begin(struct script *script, struct arpc_link *link, const struct arpc_retry_policy *policy,
                               struct rpc_seen *seen)
{
    struct arpc_call *call;
    assert_int_equal(arpc_request_new(link, "/t.T/Unary", NULL, 0, &rpc_noting, &call, NULL), 0);
    call->max_message = 4096;
    call->user = seen;
    if (policy != NULL)
        arpc_retry_init(&call->retry, policy);
    assert_int_equal(arpc_call_send(call, "hello", 5, NULL, 0, NULL, NULL), 0);
    (void)script;
    return call;
}

static struct arpc_call *begin_whole(struct script *script, struct arpc_link *link,
                                     const struct arpc_retry_policy *policy, struct rpc_seen *seen)
{
    struct arpc_call *call = begin(script, link, policy, seen);
    arpc_call_half_close(call);
    return call;
}

static void expect_request(struct conn *conn, uint32_t stream, const char *attempts)
{
    const struct frames_request *request = frames_request_of(&conn->in, stream);
    assert_non_null(request);
    assert_string_equal(request->path, "/t.T/Unary");
    assert_string_equal(request->previous_attempts, attempts);
    assert_int_equal(request->size, 10);
    assert_memory_equal(request->data + 5, "hello", 5);
    assert_true(request->ended);
}

static void expect_ok(const struct rpc_seen *seen)
{
    assert_int_equal(seen->closed, 1);
    assert_int_equal(seen->status, ARPC_STATUS_OK);
    assert_int_equal(seen->started, 1);
    assert_int_equal(seen->ended, 1);
    assert_int_equal(seen->after_closed, 0);
}

static void answer(struct conn *conn, uint32_t stream)
{
    struct frames_out out = {0};
    frames_answer(&out, stream, "well");
    say(conn, &out);
}

static void pass(struct script *script, int64_t ms)
{
    script->now_ms += ms;
    arpc_link_tick(&script->parking);
    flush(&script->parking);
}

/* Moves what may begin by now. */
static void move_due(struct script *script, struct conn *conn)
{
    arpc_link_move(&script->parking, &conn->link);
    run(conn);
}

/* ---- transparent retries ---- */

static void a_goaway_below_a_stream_sends_it_to_the_next_connection_and_the_others_finish(void **state)
{
    struct script *script = *state;
    struct rpc_seen first = {0};
    struct rpc_seen second = {0};
    struct frames_out out = {0};
    struct conn *conn = connect_one(script);
    (void)begin_whole(script, &conn->link, NULL, &first);
    (void)begin_whole(script, &conn->link, NULL, &second);
    run(conn);
    expect_request(conn, 1, "");
    expect_request(conn, 3, "");
    frames_goaway(&out, 1, H2_NO_ERROR, "");
    say(conn, &out);
    assert_false(arpc_link_takes_calls(&conn->link));
    assert_int_equal(second.closed, 0);
    assert_true(arpc_link_has_parked(&script->parking));
    struct conn *next = connect_one(script);
    expect_request(next, 1, ""); /* a transparent retry is no attempt */
    answer(next, 1);
    expect_ok(&second);
    answer(conn, 1);
    expect_ok(&first);
}

static void a_call_that_waits_for_a_stream_moves_when_goaway_comes(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct conn *conn = connect_one(script);
    frames_goaway(&out, 0x7fffffff, H2_NO_ERROR, "");
    assert_int_equal(arpc_link_receive(&conn->link, out.bytes, out.size), 0);
    (void)begin_whole(script, &conn->link, NULL, &seen); /* the channel had not looked yet */
    run(conn);
    assert_int_equal(conn->in.request_count, 0);
    struct conn *next = connect_one(script);
    expect_request(next, 1, "");
    answer(next, 1);
    expect_ok(&seen);
}

static void a_request_that_nghttp2_still_has_moves_when_the_connection_is_lost(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct conn *conn = connect_one(script);
    (void)begin_whole(script, &conn->link, NULL, &seen);
    flush(&conn->link); /* submitted, not produced */
    lose(conn);
    struct conn *next = connect_one(script);
    expect_request(next, 1, "");
    answer(next, 1);
    expect_ok(&seen);
}

static void a_request_that_goaway_finds_with_nghttp2_moves(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct conn *conn = connect_one(script);
    (void)begin_whole(script, &conn->link, NULL, &seen);
    flush(&conn->link);
    frames_goaway(&out, 0, H2_NO_ERROR, "");
    say(conn, &out);
    assert_int_equal(conn->in.request_count, 0);
    struct conn *next = connect_one(script);
    expect_request(next, 1, "");
    answer(next, 1);
    expect_ok(&seen);
}

static void a_refused_stream_is_tried_again_once_without_a_policy(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct conn *conn = connect_one(script);
    (void)begin_whole(script, &conn->link, NULL, &seen);
    run(conn);
    for (uint32_t stream = 1; stream <= 3; stream += 2) {
        struct frames_out out = {0};
        expect_request(conn, stream, "");
        frames_rst(&out, stream, H2_REFUSED);
        say(conn, &out);
        move_due(script, conn);
    }
    assert_int_equal(conn->in.request_count, 2);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.status, ARPC_STATUS_UNAVAILABLE);
}

static void what_was_not_sent_yet_is_sent_too(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct conn *conn = connect_one(script);
    struct arpc_call *call = begin(script, &conn->link, NULL, &seen);
    run(conn);
    frames_rst(&out, 1, H2_REFUSED);
    assert_int_equal(arpc_link_receive(&conn->link, out.bytes, out.size), 0);
    assert_int_equal(arpc_call_send(call, "more", 4, NULL, 0, NULL, NULL), 0);
    run(conn);
    assert_int_equal(arpc_call_send(call, "end", 3, NULL, 0, NULL, NULL), 0);
    arpc_call_half_close(call);
    move_due(script, conn);
    const struct frames_request *request = frames_request_of(&conn->in, 3);
    assert_int_equal(request->size, 10 + 9 + 8);
    assert_memory_equal(request->data + 5, "hello", 5);
    assert_memory_equal(request->data + 15, "more", 4);
    assert_memory_equal(request->data + 24, "end", 3);
    assert_true(request->ended);
    answer(conn, 3);
    expect_ok(&seen);
}

/* ---- retries by policy ---- */

static void trailers_only_are_tried_again_after_the_back_off(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct conn *conn = connect_one(script);
    (void)begin_whole(script, &conn->link, &quick, &seen);
    run(conn);
    for (uint32_t attempt = 0; attempt < 2; attempt++) {
        struct frames_out out = {0};
        expect_request(conn, 2 * attempt + 1, attempt == 0 ? "" : "1");
        frames_trailers_only(&out, 2 * attempt + 1, "14", NULL);
        say(conn, &out);
        assert_int_equal(script->parking.call_count, 1);
        assert_false(arpc_link_has_parked(&script->parking));
        assert_true(script->parking.next_due_ms <= script->now_ms + 240);
        pass(script, 79 * (attempt + 1));
        assert_false(arpc_link_has_parked(&script->parking));
        pass(script, 42 * (attempt + 1));
        assert_true(arpc_link_has_parked(&script->parking));
        move_due(script, conn);
    }
    expect_request(conn, 5, "2");
    struct frames_out out = {0};
    frames_trailers_only(&out, 5, "14", NULL);
    say(conn, &out);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.status, ARPC_STATUS_UNAVAILABLE);
    assert_string_equal(seen.message, "as the script says");
    assert_true(seen.from_peer);
}

static void trailers_before_the_end_of_the_request_reset_its_stream(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct conn *conn = connect_one(script);
    struct arpc_call *call = begin(script, &conn->link, &quick, &seen);
    run(conn);
    frames_trailers_only(&out, 1, "14", "50");
    say(conn, &out);
    assert_true(frames_request_of(&conn->in, 1)->reset);
    pass(script, 49);
    assert_false(arpc_link_has_parked(&script->parking));
    pass(script, 1); /* pushback has no jitter */
    arpc_call_half_close(call);
    move_due(script, conn);
    expect_request(conn, 3, "1");
    answer(conn, 3);
    expect_ok(&seen);
}

static void pushback_that_says_no_ends_the_call(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct conn *conn = connect_one(script);
    (void)begin_whole(script, &conn->link, &quick, &seen);
    run(conn);
    frames_trailers_only(&out, 1, "14", "-1");
    say(conn, &out);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.status, ARPC_STATUS_UNAVAILABLE);
    assert_int_equal(script->config.throttle.tokens, 999000);
}

static void a_pushback_that_comes_twice_ends_the_call(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    static const char *const pairs[] = {":status",
                                        "200",
                                        "content-type",
                                        "application/grpc",
                                        "grpc-status",
                                        "14",
                                        "grpc-retry-pushback-ms",
                                        "1",
                                        "grpc-retry-pushback-ms",
                                        "1",
                                        NULL};
    struct conn *conn = connect_one(script);
    (void)begin_whole(script, &conn->link, &quick, &seen);
    run(conn);
    frames_headers(&out, 1, true, pairs);
    say(conn, &out);
    assert_int_equal(seen.closed, 1);
}

static void nothing_is_tried_again_after_the_headers(void **state)
{
    struct script *script = *state;
    struct rpc_seen trailed = {0};
    struct rpc_seen reset = {0};
    struct rpc_seen refused = {0};
    struct rpc_seen cut = {0};
    struct frames_out out = {0};
    struct conn *conn = connect_one(script);
    (void)begin_whole(script, &conn->link, &quick, &trailed);
    (void)begin_whole(script, &conn->link, &quick, &reset);
    (void)begin_whole(script, &conn->link, &quick, &refused);
    (void)begin_whole(script, &conn->link, &quick, &cut);
    run(conn);
    assert_true(script->config.retained > 0);
    for (uint32_t stream = 1; stream <= 7; stream += 2)
        frames_head(&out, stream);
    say(conn, &out);
    assert_int_equal(script->config.retained, 0); /* committed */
    out.size = 0;
    frames_trailers(&out, 1, "14");
    frames_rst(&out, 3, H2_INTERNAL);
    frames_rst(&out, 5, H2_REFUSED);
    say(conn, &out);
    lose(conn);
    const struct rpc_seen *all[] = {&trailed, &reset, &refused, &cut};
    const int statuses[] = {ARPC_STATUS_UNAVAILABLE, ARPC_STATUS_INTERNAL, ARPC_STATUS_UNAVAILABLE,
                            ARPC_STATUS_UNAVAILABLE};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(all[i]->started, 1);
        assert_int_equal(all[i]->closed, 1);
        assert_int_equal(all[i]->status, statuses[i]);
    }
    assert_int_equal(script->parking.call_count, 0);
}

static void a_lost_connection_is_a_failed_attempt(void **state)
{
    struct script *script = *state;
    struct rpc_seen with = {0};
    struct rpc_seen without = {0};
    struct conn *conn = connect_one(script);
    (void)begin_whole(script, &conn->link, &quick, &with);
    (void)begin_whole(script, &conn->link, NULL, &without);
    run(conn);
    lose(conn);
    assert_int_equal(without.closed, 1);
    assert_int_equal(without.status, ARPC_STATUS_UNAVAILABLE);
    assert_string_equal(without.message, "the connection was cut");
    assert_int_equal(with.closed, 0);
    pass(script, 120);
    struct conn *next = connect_one(script);
    expect_request(next, 1, "1");
    answer(next, 1);
    expect_ok(&with);
}

/* Each RST code: those that gRPC calls UNAVAILABLE begin again, the others end the call. */
static void reset_codes_are_mapped_first(void **state)
{
    struct script *script = *state;
    static const int again[] = {H2_REFUSED};
    struct conn *conn = connect_one(script);
    uint32_t stream = 1;
    for (int code = 0; code <= 13; code++) {
        struct rpc_seen seen = {0};
        struct frames_out out = {0};
        struct arpc_call *call = begin_whole(script, &conn->link, &quick, &seen);
        run(conn);
        frames_rst(&out, stream, (uint32_t)code);
        say(conn, &out);
        stream += 2;
        assert_int_equal(seen.closed, code == again[0] ? 0 : 1);
        if (seen.closed == 0) {
            arpc_call_cancel(call, ARPC_STATUS_CANCELLED, "enough");
            flush(&script->parking);
        }
        assert_int_equal(seen.closed, 1);
        assert_int_equal(script->parking.call_count, 0);
    }
}

static void answers_of_a_proxy_are_tried_again_by_their_http_status(void **state)
{
    struct script *script = *state;
    static const char *const busy[] = {":status", "503", "content-type", "text/html", NULL};
    static const char *const absent[] = {":status", "404", NULL};
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct conn *conn = connect_one(script);
    (void)begin_whole(script, &conn->link, &quick, &seen);
    run(conn);
    frames_headers(&out, 1, false, busy);
    frames_data(&out, 1, true, "<p>busy", 7);
    say(conn, &out);
    pass(script, 120);
    move_due(script, conn);
    expect_request(conn, 3, "1");
    out.size = 0;
    frames_headers(&out, 3, true, absent);
    say(conn, &out);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.status, ARPC_STATUS_UNIMPLEMENTED);
    assert_int_equal(seen.started, 0);
}

static void no_connection_is_a_failed_attempt_unless_the_call_waits(void **state)
{
    struct script *script = *state;
    struct rpc_seen plain = {0};
    struct rpc_seen policy = {0};
    struct rpc_seen waiting = {0};
    (void)begin_whole(script, &script->parking, NULL, &plain);
    (void)begin_whole(script, &script->parking, &quick, &policy);
    begin_whole(script, &script->parking, NULL, &waiting)->wait_for_ready = true;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(policy.closed, 0);
        arpc_link_fail_parked(&script->parking, "nobody is there");
        flush(&script->parking);
        assert_int_equal(plain.closed, 1);
        arpc_link_fail_parked(&script->parking, "nobody is there"); /* it waits for its time: no attempt of its */
        pass(script, 1000);
    }
    assert_int_equal(policy.closed, 1);
    assert_string_equal(policy.message, "nobody is there");
    assert_int_equal(waiting.closed, 0);
    struct conn *conn = connect_one(script);
    expect_request(conn, 1, "");
    answer(conn, 1);
    expect_ok(&waiting);
}

static void the_deadline_covers_all_attempts(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct conn *conn = connect_one(script);
    struct arpc_call *call = begin_whole(script, &conn->link, &quick, &seen);
    call->deadline_ms = script->now_ms + 1000;
    arpc_link_due(&conn->link, call->deadline_ms);
    run(conn);
    assert_string_equal(frames_request_of(&conn->in, 1)->timeout, "1000m");
    frames_trailers_only(&out, 1, "14", "600");
    say(conn, &out);
    pass(script, 600);
    move_due(script, conn);
    expect_request(conn, 3, "1");
    assert_string_equal(frames_request_of(&conn->in, 3)->timeout, "400m");
    script->now_ms += 400;
    arpc_link_tick(&conn->link);
    run(conn);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.status, ARPC_STATUS_DEADLINE_EXCEEDED);
}

static void the_deadline_ends_a_call_that_waits_to_begin_again(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct conn *conn = connect_one(script);
    struct arpc_call *call = begin_whole(script, &conn->link, &quick, &seen);
    call->deadline_ms = script->now_ms + 500;
    run(conn);
    lose(conn);
    assert_int_equal(seen.closed, 0);
    pass(script, 120); /* it may begin, but there is no connection */
    assert_int_equal(seen.closed, 0);
    pass(script, 380);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.status, ARPC_STATUS_DEADLINE_EXCEEDED);
}

static void a_cancelled_call_does_not_begin_again(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct conn *conn = connect_one(script);
    struct arpc_call *call = begin(script, &conn->link, &quick, &seen);
    run(conn);
    frames_trailers_only(&out, 1, "14", "0");
    assert_int_equal(arpc_link_receive(&conn->link, out.bytes, out.size), 0);
    assert_true(call->again);
    arpc_call_cancel(call, ARPC_STATUS_CANCELLED, "enough");
    run(conn);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.status, ARPC_STATUS_CANCELLED);
    assert_int_equal(script->parking.call_count, 0);
    assert_int_equal(conn->link.call_count, 0);
}

/* ---- what is kept ---- */

static void count_release(void *arg)
{
    (*(int *)arg)++;
}

static void a_body_of_the_user_commits_the_call_when_it_leaves_not_before(void **state)
{
    struct script *script = *state;
    struct rpc_seen early = {0};
    struct rpc_seen late = {0};
    static uint8_t body[300];
    int released = 0;
    struct conn *conn = connect_one(script);
    struct arpc_call *call = begin(script, &conn->link, &quick, &early);
    assert_int_equal(arpc_call_send(call, NULL, 0, body, sizeof body, count_release, &released), 0);
    lose(conn); /* nothing of it has left */
    assert_int_equal(early.closed, 0);
    assert_int_equal(released, 0);
    struct conn *next = connect_one(script);
    assert_int_equal(frames_request_of(&next->in, 1)->size, 10 + 305);
    assert_int_equal(released, 1);
    assert_int_equal(script->config.retained, 0);
    lose(next);
    assert_int_equal(early.closed, 1);
    assert_int_equal(early.status, ARPC_STATUS_UNAVAILABLE);
    (void)late;
}

static void a_call_with_more_than_the_bound_is_committed(void **state)
{
    struct script *script = *state;
    static struct rpc_seen small; /* the teardown ends the call */
    static struct rpc_seen large; /* the teardown ends the call */
    static uint8_t body[1020];
    struct conn *conn = connect_one(script);
    struct arpc_call *first = begin(script, &conn->link, &quick, &small);
    struct arpc_call *second = begin(script, &conn->link, &quick, &large);
    assert_int_equal(arpc_call_send(first, NULL, 0, body, 1009, NULL, NULL), 0); /* 1024 with the prefixes */
    assert_int_equal(arpc_call_send(second, NULL, 0, body, 1010, NULL, NULL), 0);
    run(conn);
    assert_int_equal(script->config.retained, 1024);
    lose(conn);
    assert_int_equal(small.closed, 0);
    assert_int_equal(large.closed, 1);
    pass(script, 120);
    struct conn *next = connect_one(script);
    assert_int_equal(next->in.request_count, 1);
    assert_int_equal(frames_request_of(&next->in, 1)->size, 1024);
}

static void all_calls_together_keep_no_more_than_the_channel_may(void **state)
{
    struct script *script = *state;
    static struct rpc_seen seen[6]; /* the teardown ends the call */
    static uint8_t body[1000];
    struct conn *conn = connect_one(script);
    for (int i = 0; i < 6; i++) {
        struct arpc_call *call = begin(script, &conn->link, &quick, &seen[i]);
        assert_int_equal(arpc_call_send(call, NULL, 0, body, 985, NULL, NULL), 0); /* 1000 each */
    }
    run(conn);
    assert_true(script->config.retained <= 4096);
    lose(conn);
    int again = 0;
    for (int i = 0; i < 6; i++)
        again += seen[i].closed == 0;
    assert_int_equal(again, 4);
}

static void bytes_that_the_kernel_still_has_are_waited_for(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct conn *conn = connect_one(script);
    (void)begin_whole(script, &conn->link, NULL, &seen);
    flush(&conn->link);
    assert_int_equal(arpc_link_produce(&conn->link, &conn->batch), 0);
    conn->batch_out = true;
    frames_goaway(&out, 0, H2_NO_ERROR, "");
    assert_int_equal(arpc_link_receive(&conn->link, out.bytes, out.size), 0);
    flush(&conn->link);
    assert_int_equal(script->parking.call_count, 0);
    batch_gone(conn);
    flush(&conn->link);
    assert_int_equal(script->parking.call_count, 1);
    struct conn *next = connect_one(script);
    expect_request(next, 1, "");
    answer(next, 1);
    expect_ok(&seen);
}

static void a_server_that_answers_ok_fills_the_bucket_of_tokens(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct conn *conn = connect_one(script);
    script->config.throttle.tokens = 500000;
    (void)begin_whole(script, &conn->link, &quick, &seen);
    run(conn);
    answer(conn, 1);
    expect_ok(&seen);
    assert_int_equal(script->config.throttle.tokens, 500100);
}

static void throttled_calls_end_with_what_the_server_said(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct conn *conn = connect_one(script);
    script->config.throttle.tokens = 501000;
    (void)begin_whole(script, &conn->link, &quick, &seen);
    run(conn);
    frames_trailers_only(&out, 1, "14", NULL);
    say(conn, &out);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.status, ARPC_STATUS_UNAVAILABLE);
}

int main(void)
{
#define WITH_SCRIPT(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_SCRIPT(a_goaway_below_a_stream_sends_it_to_the_next_connection_and_the_others_finish),
        WITH_SCRIPT(a_call_that_waits_for_a_stream_moves_when_goaway_comes),
        WITH_SCRIPT(a_request_that_nghttp2_still_has_moves_when_the_connection_is_lost),
        WITH_SCRIPT(a_request_that_goaway_finds_with_nghttp2_moves),
        WITH_SCRIPT(a_refused_stream_is_tried_again_once_without_a_policy),
        WITH_SCRIPT(what_was_not_sent_yet_is_sent_too),
        WITH_SCRIPT(trailers_only_are_tried_again_after_the_back_off),
        WITH_SCRIPT(trailers_before_the_end_of_the_request_reset_its_stream),
        WITH_SCRIPT(pushback_that_says_no_ends_the_call),
        WITH_SCRIPT(a_pushback_that_comes_twice_ends_the_call),
        WITH_SCRIPT(nothing_is_tried_again_after_the_headers),
        WITH_SCRIPT(a_lost_connection_is_a_failed_attempt),
        WITH_SCRIPT(reset_codes_are_mapped_first),
        WITH_SCRIPT(answers_of_a_proxy_are_tried_again_by_their_http_status),
        WITH_SCRIPT(no_connection_is_a_failed_attempt_unless_the_call_waits),
        WITH_SCRIPT(the_deadline_covers_all_attempts),
        WITH_SCRIPT(the_deadline_ends_a_call_that_waits_to_begin_again),
        WITH_SCRIPT(a_cancelled_call_does_not_begin_again),
        WITH_SCRIPT(a_body_of_the_user_commits_the_call_when_it_leaves_not_before),
        WITH_SCRIPT(a_call_with_more_than_the_bound_is_committed),
        WITH_SCRIPT(all_calls_together_keep_no_more_than_the_channel_may),
        WITH_SCRIPT(bytes_that_the_kernel_still_has_are_waited_for),
        WITH_SCRIPT(a_server_that_answers_ok_fills_the_bucket_of_tokens),
        WITH_SCRIPT(throttled_calls_end_with_what_the_server_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
