/* When a call begins again on another connection or stream, and when not. */
#include "tests/unit/rpc_script.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

/* ---- transparent retries ---- */

static void a_goaway_below_a_stream_sends_it_to_the_next_connection_and_the_others_finish(void **state)
{
    struct script *script = *state;
    struct rpc_seen first = {0};
    struct rpc_seen second = {0};
    struct frames_out out = {0};
    struct script_conn *conn = script_connect(script);
    (void)script_begin_whole(script, &conn->link, NULL, &first);
    (void)script_begin_whole(script, &conn->link, NULL, &second);
    script_run(conn);
    script_expect_request(conn, 1, "");
    script_expect_request(conn, 3, "");
    frames_goaway(&out, 1, H2_NO_ERROR, "");
    script_say(conn, &out);
    assert_false(arpc_link_takes_calls(&conn->link));
    assert_int_equal(second.closed, 0);
    assert_true(arpc_link_has_parked(&script->parking));
    struct script_conn *next = script_connect(script);
    script_expect_request(next, 1, ""); /* a transparent retry is no attempt */
    script_answer(next, 1);
    script_expect_ok(&second);
    script_answer(conn, 1);
    script_expect_ok(&first);
}

static void a_call_that_waits_for_a_stream_moves_when_goaway_comes(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct script_conn *conn = script_connect(script);
    frames_goaway(&out, 0x7fffffff, H2_NO_ERROR, "");
    assert_int_equal(arpc_link_receive(&conn->link, out.bytes, out.size), 0);
    (void)script_begin_whole(script, &conn->link, NULL, &seen); /* the channel had not looked yet */
    script_run(conn);
    assert_int_equal(conn->in.request_count, 0);
    struct script_conn *next = script_connect(script);
    script_expect_served(next, 1, "", &seen);
}

static void a_request_that_nghttp2_still_has_moves_when_the_connection_is_lost(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct script_conn *conn = script_connect(script);
    (void)script_begin_whole(script, &conn->link, NULL, &seen);
    script_flush(&conn->link); /* submitted, not produced */
    script_lose(conn);
    struct script_conn *next = script_connect(script);
    script_expect_served(next, 1, "", &seen);
}

static void a_request_that_goaway_finds_with_nghttp2_moves(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct script_conn *conn = script_connect(script);
    (void)script_begin_whole(script, &conn->link, NULL, &seen);
    script_flush(&conn->link);
    frames_goaway(&out, 0, H2_NO_ERROR, "");
    script_say(conn, &out);
    assert_int_equal(conn->in.request_count, 0);
    struct script_conn *next = script_connect(script);
    script_expect_served(next, 1, "", &seen);
}

static void a_refused_stream_is_tried_again_once_without_a_policy(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct script_conn *conn = script_connect(script);
    (void)script_begin_whole(script, &conn->link, NULL, &seen);
    script_run(conn);
    for (uint32_t stream = 1; stream <= 3; stream += 2) {
        struct frames_out out = {0};
        script_expect_request(conn, stream, "");
        frames_rst(&out, stream, H2_REFUSED);
        script_say(conn, &out);
        script_move_due(script, conn);
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
    struct script_conn *conn = script_connect(script);
    struct arpc_call *call = script_begin(script, &conn->link, NULL, &seen);
    script_run(conn);
    frames_rst(&out, 1, H2_REFUSED);
    assert_int_equal(arpc_link_receive(&conn->link, out.bytes, out.size), 0);
    assert_int_equal(arpc_call_send(call, "more", 4, NULL, 0, NULL, NULL), 0);
    script_run(conn);
    assert_int_equal(arpc_call_send(call, "end", 3, NULL, 0, NULL, NULL), 0);
    arpc_call_half_close(call);
    script_move_due(script, conn);
    const struct frames_request *request = frames_request_of(&conn->in, 3);
    assert_int_equal(request->size, 10 + 9 + 8);
    assert_memory_equal(request->data + 5, "hello", 5);
    assert_memory_equal(request->data + 15, "more", 4);
    assert_memory_equal(request->data + 24, "end", 3);
    assert_true(request->ended);
    script_answer(conn, 3);
    script_expect_ok(&seen);
}

/* ---- retries by policy ---- */

static void trailers_only_are_tried_again_after_the_back_off(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct script_conn *conn = script_connect(script);
    (void)script_begin_whole(script, &conn->link, &script_quick, &seen);
    script_run(conn);
    for (uint32_t attempt = 0; attempt < 2; attempt++) {
        struct frames_out out = {0};
        script_expect_request(conn, 2 * attempt + 1, attempt == 0 ? "" : "1");
        frames_trailers_only(&out, 2 * attempt + 1, "14", NULL);
        script_say(conn, &out);
        assert_int_equal(script->parking.call_count, 1);
        assert_false(arpc_link_has_parked(&script->parking));
        assert_true(script->parking.next_due_ms <= script->now_ms + 240);
        script_pass(script, 79 * (attempt + 1));
        assert_false(arpc_link_has_parked(&script->parking));
        script_pass(script, 42 * (attempt + 1));
        assert_true(arpc_link_has_parked(&script->parking));
        script_move_due(script, conn);
    }
    script_expect_request(conn, 5, "2");
    struct frames_out out = {0};
    frames_trailers_only(&out, 5, "14", NULL);
    script_say(conn, &out);
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
    struct script_conn *conn = script_connect(script);
    struct arpc_call *call = script_begin(script, &conn->link, &script_quick, &seen);
    script_run(conn);
    frames_trailers_only(&out, 1, "14", "50");
    script_say(conn, &out);
    assert_true(frames_request_of(&conn->in, 1)->reset);
    assert_int_equal(frames_request_of(&conn->in, 1)->reset_code, H2_NO_ERROR);
    script_pass(script, 49);
    assert_false(arpc_link_has_parked(&script->parking));
    script_pass(script, 1); /* pushback has no jitter */
    arpc_call_half_close(call);
    script_move_due(script, conn);
    script_expect_served(conn, 3, "1", &seen);
}

static void trailers_that_come_before_the_end_of_the_request_has_left_reset_its_stream_too(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct script_conn *conn = script_connect(script);
    struct arpc_call *call = script_begin(script, &conn->link, &script_quick, &seen);
    script_run(conn);
    arpc_call_half_close(call);
    frames_trailers_only(&out, 1, "14", "50");
    script_say(conn, &out);
    assert_true(frames_request_of(&conn->in, 1)->reset);
    script_pass(script, 50);
    script_move_due(script, conn);
    script_expect_served(conn, 3, "1", &seen);
}

static void an_answer_before_the_end_of_the_request_resets_its_stream_without_an_error(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct script_conn *conn = script_connect(script);
    (void)script_begin(script, &conn->link, NULL, &seen);
    script_run(conn);
    script_answer(conn, 1);
    script_expect_ok(&seen);
    assert_true(frames_request_of(&conn->in, 1)->reset);
    assert_int_equal(frames_request_of(&conn->in, 1)->reset_code, H2_NO_ERROR);
}

static void pushback_that_says_no_ends_the_call(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct script_conn *conn = script_connect(script);
    (void)script_begin_whole(script, &conn->link, &script_quick, &seen);
    script_run(conn);
    frames_trailers_only(&out, 1, "14", "-1");
    script_say(conn, &out);
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
    struct script_conn *conn = script_connect(script);
    (void)script_begin_whole(script, &conn->link, &script_quick, &seen);
    script_run(conn);
    frames_headers(&out, 1, true, pairs);
    script_say(conn, &out);
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
    struct script_conn *conn = script_connect(script);
    (void)script_begin_whole(script, &conn->link, &script_quick, &trailed);
    (void)script_begin_whole(script, &conn->link, &script_quick, &reset);
    (void)script_begin_whole(script, &conn->link, &script_quick, &refused);
    (void)script_begin_whole(script, &conn->link, &script_quick, &cut);
    script_run(conn);
    assert_true(script->config.retained > 0);
    for (uint32_t stream = 1; stream <= 7; stream += 2)
        frames_head(&out, stream);
    script_say(conn, &out);
    assert_int_equal(script->config.retained, 0); /* committed */
    out.size = 0;
    frames_trailers(&out, 1, "14");
    frames_rst(&out, 3, H2_INTERNAL);
    frames_rst(&out, 5, H2_REFUSED);
    script_say(conn, &out);
    script_lose(conn);
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
    struct script_conn *conn = script_connect(script);
    (void)script_begin_whole(script, &conn->link, &script_quick, &with);
    (void)script_begin_whole(script, &conn->link, NULL, &without);
    script_run(conn);
    script_lose(conn);
    assert_int_equal(without.closed, 1);
    assert_int_equal(without.status, ARPC_STATUS_UNAVAILABLE);
    assert_string_equal(without.message, "the connection was cut");
    assert_int_equal(with.closed, 0);
    script_pass(script, 120);
    struct script_conn *next = script_connect(script);
    script_expect_served(next, 1, "1", &with);
}

/* Each RST code: those that gRPC calls UNAVAILABLE begin again, the others end the call. */
static void reset_codes_are_mapped_first(void **state)
{
    struct script *script = *state;
    static const int again[] = {H2_REFUSED};
    struct script_conn *conn = script_connect(script);
    uint32_t stream = 1;
    for (int code = 0; code <= 13; code++) {
        struct rpc_seen seen = {0};
        struct frames_out out = {0};
        struct arpc_call *call = script_begin_whole(script, &conn->link, &script_quick, &seen);
        script_run(conn);
        frames_rst(&out, stream, (uint32_t)code);
        script_say(conn, &out);
        stream += 2;
        assert_int_equal(seen.closed, code == again[0] ? 0 : 1);
        if (seen.closed == 0) {
            arpc_call_cancel(call, ARPC_STATUS_CANCELLED, "enough");
            script_flush(&script->parking);
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
    struct script_conn *conn = script_connect(script);
    (void)script_begin_whole(script, &conn->link, &script_quick, &seen);
    script_run(conn);
    frames_headers(&out, 1, false, busy);
    frames_data(&out, 1, true, "<p>busy", 7);
    script_say(conn, &out);
    script_pass(script, 120);
    script_move_due(script, conn);
    script_expect_request(conn, 3, "1");
    out.size = 0;
    frames_headers(&out, 3, true, absent);
    script_say(conn, &out);
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
    (void)script_begin_whole(script, &script->parking, NULL, &plain);
    (void)script_begin_whole(script, &script->parking, &script_quick, &policy);
    script_begin_whole(script, &script->parking, NULL, &waiting)->wait_for_ready = true;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(policy.closed, 0);
        arpc_link_fail_parked(&script->parking, "nobody is there");
        script_flush(&script->parking);
        assert_int_equal(plain.closed, 1);
        arpc_link_fail_parked(&script->parking, "nobody is there"); /* it waits for its time: no attempt of its */
        script_pass(script, 1000);
    }
    assert_int_equal(policy.closed, 1);
    assert_string_equal(policy.message, "nobody is there");
    assert_int_equal(waiting.closed, 0);
    struct script_conn *conn = script_connect(script);
    script_expect_served(conn, 1, "", &waiting);
}

static void the_deadline_covers_all_attempts(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct script_conn *conn = script_connect(script);
    struct arpc_call *call = script_begin_whole(script, &conn->link, &script_quick, &seen);
    call->deadline_ms = script->now_ms + 1000;
    arpc_link_due(&conn->link, call->deadline_ms);
    script_run(conn);
    assert_string_equal(frames_request_of(&conn->in, 1)->timeout, "1000m");
    frames_trailers_only(&out, 1, "14", "600");
    script_say(conn, &out);
    script_pass(script, 600);
    script_move_due(script, conn);
    script_expect_request(conn, 3, "1");
    assert_string_equal(frames_request_of(&conn->in, 3)->timeout, "400m");
    script->now_ms += 400;
    arpc_link_tick(&conn->link);
    script_run(conn);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.status, ARPC_STATUS_DEADLINE_EXCEEDED);
}

static void the_deadline_ends_a_call_that_waits_to_begin_again(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct script_conn *conn = script_connect(script);
    struct arpc_call *call = script_begin_whole(script, &conn->link, &script_quick, &seen);
    call->deadline_ms = script->now_ms + 500;
    script_run(conn);
    script_lose(conn);
    assert_int_equal(seen.closed, 0);
    script_pass(script, 120); /* it may begin, but there is no connection */
    assert_int_equal(seen.closed, 0);
    script_pass(script, 380);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.status, ARPC_STATUS_DEADLINE_EXCEEDED);
}

static void a_cancelled_call_does_not_begin_again(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct script_conn *conn = script_connect(script);
    struct arpc_call *call = script_begin(script, &conn->link, &script_quick, &seen);
    script_run(conn);
    frames_trailers_only(&out, 1, "14", "0");
    assert_int_equal(arpc_link_receive(&conn->link, out.bytes, out.size), 0);
    assert_true(call->attempt.again);
    arpc_call_cancel(call, ARPC_STATUS_CANCELLED, "enough");
    script_run(conn);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.status, ARPC_STATUS_CANCELLED);
    assert_int_equal(script->parking.call_count, 0);
    assert_int_equal(conn->link.call_count, 0);
}

int main(void)
{
#define WITH_SCRIPT(test) cmocka_unit_test_setup_teardown(test, script_setup, script_teardown)
    const struct CMUnitTest tests[] = {
        WITH_SCRIPT(a_goaway_below_a_stream_sends_it_to_the_next_connection_and_the_others_finish),
        WITH_SCRIPT(a_call_that_waits_for_a_stream_moves_when_goaway_comes),
        WITH_SCRIPT(a_request_that_nghttp2_still_has_moves_when_the_connection_is_lost),
        WITH_SCRIPT(a_request_that_goaway_finds_with_nghttp2_moves),
        WITH_SCRIPT(a_refused_stream_is_tried_again_once_without_a_policy),
        WITH_SCRIPT(what_was_not_sent_yet_is_sent_too),
        WITH_SCRIPT(trailers_only_are_tried_again_after_the_back_off),
        WITH_SCRIPT(trailers_before_the_end_of_the_request_reset_its_stream),
        WITH_SCRIPT(trailers_that_come_before_the_end_of_the_request_has_left_reset_its_stream_too),
        WITH_SCRIPT(an_answer_before_the_end_of_the_request_resets_its_stream_without_an_error),
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
