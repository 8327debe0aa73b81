/* Our own client against our own server, over real sockets on one loop: what happens between connections. */
#include "tests/conformance/channel_fixture.h"

#include "base/crc32c.h"
#include "tests/conformance/echo_wire.h"
#include "tests/temp_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define BULK (64 * MIB)

static void a_unary_call_connects_by_itself_and_comes_back(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    struct arpc_call_options options = {.size = sizeof options, .deadline_ms = GUARD_MS, .single_response = true};
    channel_call_with(fixture, PATH("Unary"), &options, &seen, "hello", 5);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    assert_true(seen.from_peer);
    assert_int_equal(seen.started, 1);
    assert_int_equal(seen.messages, 1);
    assert_memory_equal(seen.last, "hello", 5);
    assert_int_equal(fixture->state_count, 2);
    assert_int_equal(fixture->states[0], ARPC_CHANNEL_CONNECTING);
    assert_int_equal(fixture->states[1], ARPC_CHANNEL_READY);
}

static void push_of_64_mib_by_reference_arrives_and_every_buffer_is_released(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    uint8_t *body = malloc(MIB);
    assert_non_null(body);
    uint32_t crc = 0;
    for (size_t i = 0; i < MIB; i++)
        body[i] = (uint8_t)(i * 7 + i / 256);
    uint8_t head[16];
    size_t used = 0;
    echo_put_head(head, &used, 1, MIB);
    channel_call(fixture, PATH("Collect"), NULL, &seen);
    for (size_t i = 0; i < BULK / MIB; i++) {
        assert_int_equal(arpc_call_send(seen.call, head, used, body, MIB, channel_count_release, &fixture->released),
                         0);
        crc = amp_crc32c(crc, body, MIB);
    }
    arpc_call_half_close(seen.call);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    assert_int_equal(fixture->released, BULK / MIB);
    assert_int_equal(echo_get_number(seen.last, seen.last_size, 1), BULK / MIB);
    assert_int_equal(echo_get_number(seen.last, seen.last_size, 2), BULK);
    assert_int_equal(echo_get_number(seen.last, seen.last_size, 3), crc);
    free(body);
}

static void pull_of_64_mib_arrives(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    channel_repeat_call(fixture, NULL, &seen, BULK / MIB, MIB);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    assert_int_equal(seen.messages, BULK / MIB);
    assert_true(seen.bytes > BULK);
}

static void a_paused_pull_keeps_its_place_and_does_not_stop_other_calls(void **state)
{
    struct fixture *fixture = *state;
    struct seen pull = {.pause_at = 3};
    struct seen unary = {0};
    channel_repeat_call(fixture, NULL, &pull, 40, MIB);
    while (pull.messages < 3)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    channel_call_with(fixture, PATH("Unary"), NULL, &unary, "x", 1);
    channel_run_until(fixture, &unary.closed);
    assert_int_equal(unary.status, ARPC_STATUS_OK);
    assert_int_equal(pull.messages, 3);
    assert_int_equal(pull.closed, 0);
    arpc_call_resume(pull.call);
    channel_run_until(fixture, &pull.closed);
    assert_int_equal(pull.messages, 40);
    assert_int_equal(pull.status, ARPC_STATUS_OK);
}

static void details_of_a_failure_are_parsed(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    uint8_t request[64];
    size_t used = 0;
    echo_put_number(request, &used, 1, ARPC_STATUS_FAILED_PRECONDITION);
    echo_put_head(request, &used, 2, 5);
    memcpy(request + used, "no \xc3\xbc", 5);
    used += 5;
    echo_put_head(request, &used, 3, 10);
    memcpy(request + used, "MODEL_DONE", 10);
    used += 10;
    echo_put_number(request, &used, 4, 1500);
    channel_call_with(fixture, PATH("Fail"), NULL, &seen, request, used);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_FAILED_PRECONDITION);
    assert_string_equal(seen.message, "no \xc3\xbc");
    assert_string_equal(seen.reason, "MODEL_DONE");
    assert_string_equal(seen.pair, "value");
    assert_int_equal(seen.retry_ms, 1500);
    assert_int_equal(seen.started, 0); /* Trailers-Only has no head */
}

static void a_deadline_ends_both_sides(void **state)
{
    struct fixture *fixture = *state;
    struct arpc_call_options options = {.size = sizeof options, .deadline_ms = 50};
    /* On a busy machine it may pass before the server has heard of the call. */
    for (; fixture->state.cancelled == 0; options.deadline_ms *= 2) {
        struct seen seen = {0};
        channel_sleep_call(fixture, &options, &seen);
        channel_run_until(fixture, &seen.closed);
        assert_int_equal(seen.status, ARPC_STATUS_DEADLINE_EXCEEDED);
        channel_wait_open(fixture, 0);
    }
}

static void a_cancel_ends_both_sides(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    channel_sleep_call(fixture, NULL, &seen);
    channel_wait_open(fixture, 1);
    arpc_call_cancel(seen.call, ARPC_STATUS_CANCELLED, "enough");
    assert_int_equal(seen.closed, 0); /* never inside the function */
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_CANCELLED);
    assert_string_equal(seen.message, "enough");
    channel_wait_open(fixture, 0);
    assert_int_equal(fixture->state.cancelled, 1);
}

static void closing_the_channel_cancels_its_calls_and_releases_their_buffers(void **state)
{
    struct fixture *fixture = *state;
    struct seen sleeping = {0};
    struct seen pushing = {0};
    uint8_t *body = calloc(1, MIB);
    assert_non_null(body);
    channel_sleep_call(fixture, NULL, &sleeping);
    channel_call(fixture, PATH("Hold"), NULL, &pushing);
    for (int i = 0; i < 40; i++)
        assert_int_equal(arpc_call_send(pushing.call, NULL, 0, body, MIB, channel_count_release, &fixture->released),
                         0);
    channel_wait_open(fixture, 2);
    channel_stop_channel(fixture);
    assert_int_equal(sleeping.closed, 1);
    assert_int_equal(sleeping.status, ARPC_STATUS_CANCELLED);
    assert_int_equal(pushing.closed, 1);
    assert_int_equal(fixture->released, 40);
    channel_wait_open(fixture, 0);
    free(body);
}

static void a_lost_server_fails_its_calls_and_the_next_call_connects_again(void **state)
{
    struct fixture *fixture = *state;
    struct seen sleeping = {0};
    struct seen waiting = {0};
    channel_sleep_call(fixture, NULL, &sleeping);
    channel_wait_open(fixture, 1);
    channel_stop_server(fixture);
    channel_run_until(fixture, &sleeping.closed);
    assert_int_equal(sleeping.status, ARPC_STATUS_UNAVAILABLE);
    assert_false(sleeping.from_peer);
    struct seen failing = {0};
    channel_call_with(fixture, PATH("Unary"), NULL, &failing, "x", 1);
    channel_run_until(fixture, &failing.closed);
    assert_int_equal(failing.status, ARPC_STATUS_UNAVAILABLE);
    struct arpc_call_options options = {.size = sizeof options, .wait_for_ready = true};
    channel_call_with(fixture, PATH("Unary"), &options, &waiting, "x", 1);
    for (int i = 0; i < 20; i++)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    assert_int_equal(waiting.closed, 0);
    channel_start_server(fixture, fixture->target);
    channel_run_until(fixture, &waiting.closed);
    assert_int_equal(waiting.status, ARPC_STATUS_OK);
}

static void waiting_for_ready_ends_at_the_deadline(void **state)
{
    struct fixture *fixture = *state;
    channel_stop_server(fixture);
    struct seen seen = {0};
    struct arpc_call_options options = {.size = sizeof options, .wait_for_ready = true, .deadline_ms = 100};
    channel_call_with(fixture, PATH("Unary"), &options, &seen, "x", 1);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_DEADLINE_EXCEEDED);
}

static void a_draining_server_finishes_calls_and_takes_no_new_ones(void **state)
{
    struct fixture *fixture = *state;
    struct seen pull = {.pause_at = 1};
    bool drained = false;
    channel_repeat_call(fixture, NULL, &pull, 40, MIB);
    while (pull.messages < 1)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    arpc_server_drain(fixture->server, GUARD_MS, channel_set_flag, &drained);
    while (arpc_channel_state(fixture->channel) == ARPC_CHANNEL_READY)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    struct seen late = {0};
    channel_call_with(fixture, PATH("Unary"), NULL, &late, "x", 1);
    channel_run_until(fixture, &late.closed);
    assert_int_equal(late.status, ARPC_STATUS_UNAVAILABLE);
    assert_false(drained);
    arpc_call_resume(pull.call);
    channel_run_until(fixture, &pull.closed);
    assert_int_equal(pull.status, ARPC_STATUS_OK);
    assert_int_equal(pull.messages, 40);
    channel_run_until_bool(fixture, &drained);
}

static void the_grace_of_a_drain_ends_calls_that_do_not(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    bool drained = false;
    channel_sleep_call(fixture, NULL, &seen);
    channel_wait_open(fixture, 1);
    arpc_server_drain(fixture->server, 50, channel_set_flag, &drained);
    channel_run_until_bool(fixture, &drained);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_UNAVAILABLE);
}

static void a_drain_ends_watches_of_health(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    bool drained = false;
    channel_call_with(fixture, "/grpc.health.v1.Health/Watch", NULL, &seen, "", 0);
    while (seen.messages == 0)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    arpc_server_drain(fixture->server, 10 * GUARD_MS, channel_set_flag, &drained);
    channel_run_until_bool(fixture, &drained);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.messages, 2);
    assert_int_equal(echo_get_number(seen.last, seen.last_size, 1), 2); /* NOT_SERVING */
    assert_int_equal(seen.status, ARPC_STATUS_UNAVAILABLE);
    assert_true(seen.from_peer);
}

static void times_without_end_are_none(void **state)
{
    struct fixture *fixture = *state;
    struct arpc_channel_options options = {.size = sizeof options,
                                           .connect_ms = INT64_MAX,
                                           .keepalive_time_ms = INT64_MAX,
                                           .write_stall_ms = INT64_MAX,
                                           .initial_backoff_ms = INT64_MAX,
                                           .max_backoff_ms = INT64_MAX};
    struct arpc_call_options forever = {.size = sizeof forever, .deadline_ms = INT64_MAX};
    struct seen seen = {0};
    struct seen refused = {0};
    channel_stop_channel(fixture);
    assert_int_equal(arpc_channel_new(&fixture->loop, fixture->target, &options, &fixture->channel, NULL), 0);
    channel_call_with(fixture, PATH("Unary"), &forever, &seen, "x", 1);
    assert_true(arpc_call_time_left_ms(seen.call) == INT64_MAX);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    channel_stop_server(fixture);
    while (arpc_channel_state(fixture->channel) != ARPC_CHANNEL_IDLE)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    channel_call_with(fixture, PATH("Unary"), &forever, &refused, "x", 1);
    channel_run_until(fixture, &refused.closed);
    assert_int_equal(refused.status, ARPC_STATUS_UNAVAILABLE);
    assert_int_equal(arpc_channel_state(fixture->channel), ARPC_CHANNEL_BACKOFF);
}

static void a_response_over_the_limit_of_the_call_is_refused(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    struct arpc_call_options options = {.size = sizeof options, .max_message = 1000};
    channel_repeat_call(fixture, &options, &seen, 2, 2000);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(seen.messages, 0);
    channel_wait_open(fixture, 0);
}

static void a_thousand_calls_share_one_connection(void **state)
{
    struct fixture *fixture = *state;
    static struct seen seen[1000];
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < 1000; i++) {
        char text[16];
        int size = snprintf(text, sizeof text, "call %d", i);
        channel_call_with(fixture, PATH("Unary"), NULL, &seen[i], text, (size_t)size);
    }
    for (int i = 0; i < 1000; i++) {
        char text[16];
        int size = snprintf(text, sizeof text, "call %d", i);
        channel_run_until(fixture, &seen[i].closed);
        assert_int_equal(seen[i].status, ARPC_STATUS_OK);
        assert_memory_equal(seen[i].last, text, (size_t)size);
    }
    struct arpc_server_stats stats;
    arpc_server_stats(fixture->server, &stats);
    assert_int_equal(stats.connections_total, 1);
    assert_int_equal(stats.calls_total, 1000);
}

static void a_unary_reply_overtakes_pulls_that_fill_the_connection(void **state)
{
    struct fixture *fixture = *state;
    struct seen pulls[4] = {0};
    struct seen unary = {0};
    for (int i = 0; i < 4; i++)
        channel_repeat_call(fixture, NULL, &pulls[i], 64, MIB);
    while (pulls[3].messages < 2)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    channel_call_with(fixture, PATH("Unary"), NULL, &unary, "x", 1);
    channel_run_until(fixture, &unary.closed);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pulls[i].closed, 0);
    for (int i = 0; i < 4; i++)
        channel_run_until(fixture, &pulls[i].closed);
}

static void unix_sockets_work_and_a_used_path_is_an_error(void **state)
{
    struct fixture *fixture = *state;
    char directory[TEMP_FOLDER_MAX];
    assert_true(temp_folder(directory, "arpc"));
    (void)snprintf(fixture->target, sizeof fixture->target, "unix:%s/socket", directory);
    channel_start_server(fixture, fixture->target);
    assert_int_equal(fixture->port, 0);
    struct amp_error error;
    assert_int_equal(arpc_server_listen(fixture->server, fixture->target, NULL, &error), AMP_EEXIST);
    channel_start_channel(fixture, fixture->target);
    struct seen seen = {0};
    channel_call_with(fixture, PATH("Unary"), NULL, &seen, "x", 1);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    channel_stop_server(fixture);
    (void)unlink(fixture->target + 5);
    (void)rmdir(directory);
}

static void a_used_port_is_reported_at_listen(void **state)
{
    struct fixture *fixture = *state;
    struct amp_error error;
    assert_int_equal(arpc_server_listen(fixture->server, fixture->target, NULL, &error), AMP_EEXIST);
    assert_non_null(strstr(error.text, fixture->target));
    assert_int_equal(arpc_server_listen(fixture->server, "nonsense", NULL, &error), AMP_EINVAL);
    assert_int_equal(arpc_server_listen(fixture->server, "127.0.0.1:99999", NULL, &error), AMP_EINVAL);
}

static void a_call_that_is_kept_by_reference_stays_valid_after_closed(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    channel_call(fixture, PATH("Chat"), NULL, &seen);
    struct arpc_call *kept = arpc_call_ref(seen.call);
    channel_stop_channel(fixture);
    assert_int_equal(seen.closed, 1);
    assert_true(arpc_call_is_closed(kept));
    assert_int_equal(arpc_call_send(kept, "x", 1, NULL, 0, NULL, NULL), AMP_ESTATE);
    arpc_call_half_close(kept);
    arpc_call_pause(kept);
    arpc_call_resume(kept);
    arpc_call_cancel(kept, ARPC_STATUS_CANCELLED, NULL);
    arpc_call_unref(kept);
}

static void bad_paths_and_metadata_are_refused_at_once(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    struct amp_error error;
    static const char *const paths[] = {"", "x", "/", "/a", "/a/", "//b", "/a/b\n"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        assert_int_equal(arpc_channel_call(fixture->channel, paths[i], NULL, &channel_client, &seen, NULL, &error),
                         AMP_EINVAL);
    static const struct arpc_pair pairs[] = {{"Upper", "x"}, {"grpc-x", "x"}, {"ok", "\n"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct arpc_call_options options = {.size = sizeof options, .metadata = &pairs[i], .metadata_count = 1};
        assert_int_equal(
            arpc_channel_call(fixture->channel, PATH("Unary"), &options, &channel_client, &seen, NULL, &error),
            AMP_EINVAL);
    }
    assert_int_equal(seen.closed, 0);
}

int main(void)
{
#define WITH_BOTH(test) cmocka_unit_test_setup_teardown(test, channel_setup, channel_teardown)
    const struct CMUnitTest tests[] = {
        WITH_BOTH(a_unary_call_connects_by_itself_and_comes_back),
        WITH_BOTH(push_of_64_mib_by_reference_arrives_and_every_buffer_is_released),
        WITH_BOTH(pull_of_64_mib_arrives),
        WITH_BOTH(a_paused_pull_keeps_its_place_and_does_not_stop_other_calls),
        WITH_BOTH(details_of_a_failure_are_parsed),
        WITH_BOTH(a_deadline_ends_both_sides),
        WITH_BOTH(a_cancel_ends_both_sides),
        WITH_BOTH(closing_the_channel_cancels_its_calls_and_releases_their_buffers),
        WITH_BOTH(a_lost_server_fails_its_calls_and_the_next_call_connects_again),
        WITH_BOTH(waiting_for_ready_ends_at_the_deadline),
        WITH_BOTH(a_draining_server_finishes_calls_and_takes_no_new_ones),
        WITH_BOTH(the_grace_of_a_drain_ends_calls_that_do_not),
        WITH_BOTH(a_drain_ends_watches_of_health),
        WITH_BOTH(times_without_end_are_none),
        WITH_BOTH(a_response_over_the_limit_of_the_call_is_refused),
        WITH_BOTH(a_thousand_calls_share_one_connection),
        WITH_BOTH(a_unary_reply_overtakes_pulls_that_fill_the_connection),
        cmocka_unit_test_setup_teardown(unix_sockets_work_and_a_used_path_is_an_error, channel_setup_bare,
                                        channel_teardown),
        WITH_BOTH(a_used_port_is_reported_at_listen),
        WITH_BOTH(a_call_that_is_kept_by_reference_stays_valid_after_closed),
        WITH_BOTH(bad_paths_and_metadata_are_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
