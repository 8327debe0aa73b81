/*
 * test_foreign_faults PYTHON H2_SERVER: our client against servers with bad habits (h2_server.py), each made by another
 * HTTP/2 implementation.
 */
#include "tests/conformance/channel_fixture.h"
#include "tests/conformance/peers/process.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define AT_ONCE 10

static char **command; /* python3 h2_server.py */
static struct peer_process peer;
static const struct arpc_call_options unary = {.size = sizeof unary, .deadline_ms = 60000, .single_response = true};

/* A channel to a server with this habit. */
static struct fixture *begin(void **state, char *habit)
{
    struct fixture *fixture = *state;
    char *argv[] = {command[0], command[1], habit, NULL};
    peer_start(&peer, argv);
    (void)snprintf(fixture->target, sizeof fixture->target, "127.0.0.1:%d", peer.port);
    channel_start_channel(fixture, fixture->target);
    return fixture;
}

/* The server found no fault with us. */
static int teardown(void **state)
{
    int rc = channel_teardown(state);
    assert_int_equal(peer_stop(&peer), 0);
    return rc;
}

static void call_once(struct fixture *fixture, struct seen *seen)
{
    memset(seen, 0, sizeof *seen);
    channel_call_with(fixture, PATH("Unary"), &unary, seen, "hello", 5);
    channel_run_until(fixture, &seen->closed);
}

static void calls_after_a_goaway_go_by_another_connection(void **state)
{
    struct fixture *fixture = begin(state, "goaway");
    struct seen seen;
    for (int i = 0; i < 5; i++) {
        call_once(fixture, &seen);
        assert_string_equal(seen.message, "");
        assert_int_equal(seen.status, ARPC_STATUS_OK);
        assert_memory_equal(seen.last, "hello", 5);
    }
}

static void a_call_that_a_goaway_leaves_out_is_sent_again(void **state)
{
    struct fixture *fixture = begin(state, "goaway_unseen");
    struct seen seen;
    call_once(fixture, &seen);
    assert_string_equal(seen.message, "");
    assert_int_equal(seen.status, ARPC_STATUS_OK);
}

static void a_refused_call_is_sent_again(void **state)
{
    struct fixture *fixture = begin(state, "refused");
    struct seen seen;
    call_once(fixture, &seen);
    assert_string_equal(seen.message, "");
    assert_int_equal(seen.status, ARPC_STATUS_OK);
}

static void rst_after_the_head_is_an_error(void **state)
{
    struct seen seen;
    call_once(begin(state, "rst_after_header"), &seen);
    assert_int_equal(seen.status, ARPC_STATUS_INTERNAL);
    assert_false(seen.from_peer);
}

static void rst_in_the_message_is_an_error(void **state)
{
    struct seen seen;
    call_once(begin(state, "rst_during_data"), &seen);
    assert_int_equal(seen.status, ARPC_STATUS_INTERNAL);
    assert_int_equal(seen.messages, 0);
}

static void rst_in_place_of_trailers_is_an_error(void **state)
{
    struct seen seen;
    call_once(begin(state, "rst_after_data"), &seen);
    assert_int_equal(seen.status, ARPC_STATUS_INTERNAL);
}

static void pings_are_answered(void **state)
{
    struct fixture *fixture = begin(state, "ping");
    struct seen seen;
    for (int i = 0; i < 3; i++) {
        call_once(fixture, &seen);
        assert_int_equal(seen.status, ARPC_STATUS_OK);
    }
}

static void calls_above_the_limit_of_streams_wait(void **state)
{
    struct fixture *fixture = begin(state, "max_streams");
    struct seen first;
    struct seen seen[AT_ONCE];
    call_once(fixture, &first);
    assert_int_equal(first.status, ARPC_STATUS_OK);
    memset(seen, 0, sizeof seen);
    for (size_t i = 0; i < AT_ONCE; i++)
        channel_call_with(fixture, PATH("Unary"), &unary, &seen[i], "hello", 5);
    for (size_t i = 0; i < AT_ONCE; i++) {
        channel_run_until(fixture, &seen[i].closed);
        assert_int_equal(seen[i].status, ARPC_STATUS_OK);
    }
}

static void a_connection_lost_in_the_answer_is_unavailable(void **state)
{
    struct seen seen;
    call_once(begin(state, "lost"), &seen);
    assert_int_equal(seen.status, ARPC_STATUS_UNAVAILABLE);
}

static void an_http_503_is_unavailable(void **state)
{
    struct seen seen;
    call_once(begin(state, "http_503"), &seen);
    assert_int_equal(seen.status, ARPC_STATUS_UNAVAILABLE);
    assert_non_null(strstr(seen.message, "503"));
}

static void an_answer_without_a_status_is_an_error(void **state)
{
    struct seen seen;
    call_once(begin(state, "no_status"), &seen);
    assert_int_equal(seen.status, ARPC_STATUS_UNKNOWN);
}

int main(int argc, char **argv)
{
#define TEST(test) cmocka_unit_test_setup_teardown(test, channel_setup_bare, teardown)
    const struct CMUnitTest tests[] = {
        TEST(calls_after_a_goaway_go_by_another_connection),
        TEST(a_call_that_a_goaway_leaves_out_is_sent_again),
        TEST(a_refused_call_is_sent_again),
        TEST(rst_after_the_head_is_an_error),
        TEST(rst_in_the_message_is_an_error),
        TEST(rst_in_place_of_trailers_is_an_error),
        TEST(pings_are_answered),
        TEST(calls_above_the_limit_of_streams_wait),
        TEST(a_connection_lost_in_the_answer_is_unavailable),
        TEST(an_http_503_is_unavailable),
        TEST(an_answer_without_a_status_is_an_error),
    };
    if (argc != 3) {
        (void)fprintf(stderr, "usage: test_foreign_faults PYTHON H2_SERVER\n");
        return 2;
    }
    command = argv + 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
