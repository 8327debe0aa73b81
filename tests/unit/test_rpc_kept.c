/* What a call keeps to begin again, how much, and until when; and what it keeps of an answer. */
#include "tests/unit/rpc_script.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

static void count_release(void *arg)
{
    (*(int *)arg)++;
}

static void a_body_of_the_user_commits_the_call_when_it_leaves_not_before(void **state)
{
    struct script *script = *state;
    struct rpc_seen early = {0};
    static uint8_t body[300];
    int released = 0;
    struct script_conn *conn = script_connect(script);
    struct arpc_call *call = script_begin(script, &conn->link, &script_quick, &early);
    assert_int_equal(arpc_call_send(call, NULL, 0, body, sizeof body, count_release, &released), 0);
    script_lose(conn); /* nothing of it has left */
    assert_int_equal(early.closed, 0);
    assert_int_equal(released, 0);
    struct script_conn *next = script_connect(script);
    assert_int_equal(frames_request_of(&next->in, 1)->size, 10 + 305);
    assert_int_equal(released, 1);
    assert_int_equal(script->config.retained, 0);
    script_lose(next);
    assert_int_equal(early.closed, 1);
    assert_int_equal(early.status, ARPC_STATUS_UNAVAILABLE);
}

static void a_call_with_more_than_the_bound_is_committed(void **state)
{
    struct script *script = *state;
    static struct rpc_seen small; /* the teardown ends the call */
    static struct rpc_seen large;
    static uint8_t body[1020];
    struct script_conn *conn = script_connect(script);
    struct arpc_call *first = script_begin(script, &conn->link, &script_quick, &small);
    struct arpc_call *second = script_begin(script, &conn->link, &script_quick, &large);
    assert_int_equal(arpc_call_send(first, NULL, 0, body, 1009, NULL, NULL), 0); /* 1024 with the prefixes */
    assert_int_equal(arpc_call_send(second, NULL, 0, body, 1010, NULL, NULL), 0);
    script_run(conn);
    assert_int_equal(script->config.retained, 1024);
    script_lose(conn);
    assert_int_equal(small.closed, 0);
    assert_int_equal(large.closed, 1);
    script_pass(script, 120);
    struct script_conn *next = script_connect(script);
    assert_int_equal(next->in.request_count, 1);
    assert_int_equal(frames_request_of(&next->in, 1)->size, 1024);
}

static void all_calls_together_keep_no_more_than_the_channel_may(void **state)
{
    struct script *script = *state;
    static struct rpc_seen seen[6]; /* the teardown ends the calls */
    static uint8_t body[1000];
    struct script_conn *conn = script_connect(script);
    for (int i = 0; i < 6; i++) {
        struct arpc_call *call = script_begin(script, &conn->link, &script_quick, &seen[i]);
        assert_int_equal(arpc_call_send(call, NULL, 0, body, 985, NULL, NULL), 0); /* 1000 each */
    }
    script_run(conn);
    assert_true(script->config.retained <= 4096);
    script_lose(conn);
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
    struct script_conn *conn = script_connect(script);
    (void)script_begin_whole(script, &conn->link, NULL, &seen);
    script_flush(&conn->link);
    assert_int_equal(arpc_link_produce(&conn->link, &conn->batch), 0);
    conn->batch_out = true;
    frames_goaway(&out, 0, H2_NO_ERROR, "");
    assert_int_equal(arpc_link_receive(&conn->link, out.bytes, out.size), 0);
    script_flush(&conn->link);
    assert_int_equal(script->parking.call_count, 0);
    script_batch_gone(conn);
    script_flush(&conn->link);
    assert_int_equal(script->parking.call_count, 1);
    struct script_conn *next = script_connect(script);
    script_expect_served(next, 1, "", &seen);
}

static void a_paused_answer_outlives_its_connection(void **state)
{
    struct script *script = *state;
    struct rpc_seen whole = {0};
    struct rpc_seen part = {0};
    struct rpc_seen dropped = {0};
    struct frames_out out = {0};
    static const uint8_t message[] = {0, 0, 0, 0, 2, 'h', 'i'};
    struct script_conn *conn = script_connect(script);
    struct arpc_call *calls[] = {script_begin_whole(script, &conn->link, NULL, &whole),
                                 script_begin_whole(script, &conn->link, NULL, &part),
                                 script_begin(script, &conn->link, NULL, &dropped)};
    for (size_t i = 0; i < 3; i++)
        arpc_call_pause(calls[i]);
    script_run(conn);
    for (uint32_t stream = 1; stream <= 5; stream += 2) {
        frames_head(&out, stream);
        frames_data(&out, stream, false, message, sizeof message);
        if (stream != 3)
            frames_trailers(&out, stream, "0");
    }
    script_say(conn, &out);
    script_lose(conn);
    assert_int_equal(part.closed, 1);
    assert_int_equal(part.status, ARPC_STATUS_UNAVAILABLE);
    assert_int_equal(whole.closed, 0);
    assert_int_equal(whole.bytes, 0);
    assert_false(arpc_link_has_parked(&script->parking)); /* it wants no connection */
    arpc_link_fail_parked(&script->parking, "nobody is there");
    script_flush(&script->parking);
    assert_int_equal(whole.closed, 0);
    arpc_call_resume(calls[0]);
    script_flush(&script->parking);
    assert_int_equal(whole.bytes, 2);
    script_expect_ok(&whole);
    arpc_call_cancel(calls[2], ARPC_STATUS_CANCELLED, "enough");
    script_flush(&script->parking);
    assert_int_equal(dropped.status, ARPC_STATUS_CANCELLED);
    assert_int_equal(script->parking.buffered, 0);
    assert_int_equal(script->parking.call_count, 0);
}

static void a_paused_refusal_that_has_outlived_its_connection_begins_the_call_again(void **state)
{
    struct script *script = *state;
    struct rpc_seen again = {0};
    struct rpc_seen refused = {0};
    struct frames_out out = {0};
    struct script_conn *conn = script_connect(script);
    struct arpc_call *calls[] = {script_begin_whole(script, &conn->link, &script_quick, &again),
                                 script_begin_whole(script, &conn->link, &script_quick, &refused)};
    arpc_call_pause(calls[0]);
    arpc_call_pause(calls[1]);
    script_run(conn);
    frames_trailers_only(&out, 1, "14", NULL);
    frames_trailers_only(&out, 3, "5", NULL);
    script_say(conn, &out);
    script_lose(conn);
    assert_int_equal(again.closed + refused.closed, 0);
    assert_false(arpc_link_has_parked(&script->parking));
    arpc_call_resume(calls[0]);
    arpc_call_resume(calls[1]);
    script_flush(&script->parking);
    assert_int_equal(refused.status, ARPC_STATUS_NOT_FOUND);
    assert_int_equal(again.closed, 0);
    script_pass(script, 120);
    assert_true(arpc_link_has_parked(&script->parking));
    struct script_conn *next = script_connect(script);
    script_expect_served(next, 1, "1", &again);
}

static void a_server_that_answers_ok_fills_the_bucket_of_tokens(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct script_conn *conn = script_connect(script);
    script->config.throttle.tokens = 500000;
    (void)script_begin_whole(script, &conn->link, &script_quick, &seen);
    script_run(conn);
    script_answer(conn, 1);
    script_expect_ok(&seen);
    assert_int_equal(script->config.throttle.tokens, 500100);
}

static void throttled_calls_end_with_what_the_server_said(void **state)
{
    struct script *script = *state;
    struct rpc_seen seen = {0};
    struct frames_out out = {0};
    struct script_conn *conn = script_connect(script);
    script->config.throttle.tokens = 501000;
    (void)script_begin_whole(script, &conn->link, &script_quick, &seen);
    script_run(conn);
    frames_trailers_only(&out, 1, "14", NULL);
    script_say(conn, &out);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.status, ARPC_STATUS_UNAVAILABLE);
}

int main(void)
{
#define WITH_SCRIPT(test) cmocka_unit_test_setup_teardown(test, script_setup, script_teardown)
    const struct CMUnitTest tests[] = {
        WITH_SCRIPT(a_body_of_the_user_commits_the_call_when_it_leaves_not_before),
        WITH_SCRIPT(a_call_with_more_than_the_bound_is_committed),
        WITH_SCRIPT(all_calls_together_keep_no_more_than_the_channel_may),
        WITH_SCRIPT(bytes_that_the_kernel_still_has_are_waited_for),
        WITH_SCRIPT(a_paused_answer_outlives_its_connection),
        WITH_SCRIPT(a_paused_refusal_that_has_outlived_its_connection_begins_the_call_again),
        WITH_SCRIPT(a_server_that_answers_ok_fills_the_bucket_of_tokens),
        WITH_SCRIPT(throttled_calls_end_with_what_the_server_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
