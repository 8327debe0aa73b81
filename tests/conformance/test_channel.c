/* Our own client against our own server, over real sockets on one loop: what happens between connections. */
#include "base/crc32c.h"
#include "rpc/arpc_client.h"
#include "tests/conformance/echo_service.h"
#include "tests/conformance/echo_wire.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define MIB          ((size_t)1 << 20)
#define BULK         (64 * MIB)
#define GUARD_MS     30000 /* a test that hangs ends here */
#define PATH(method) "/ampd.test.v1.Echo/" method

struct fixture;

/* What a client saw of one call. */
struct seen {
    struct fixture *fixture; /* for those that close it */
    struct arpc_call *call;
    int started;
    uint64_t messages;
    uint64_t bytes;
    uint32_t crc;
    uint8_t last[64];
    size_t last_size;
    int closed;
    int status;
    char message[256];
    char reason[32];
    char pair[32];
    int64_t retry_ms;
    bool from_peer;
    uint64_t pause_at; /* pauses when this many messages have come */
};

struct fixture {
    uv_loop_t loop;
    uv_timer_t guard;
    struct echo_state state;
    struct arpc_server *server;
    struct arpc_channel *channel;
    int port;
    char target[128];
    int states[16];
    size_t state_count;
    int released;
    bool server_closed;
    bool channel_closed;
};

static void on_guard(uv_timer_t *timer)
{
    (void)timer;
    (void)fprintf(stderr, "a test did not end in time\n");
    abort();
}

static void run_until(struct fixture *fixture, const int *flag)
{
    while (*flag == 0)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
}

static void run_until_bool(struct fixture *fixture, const bool *flag)
{
    while (!*flag)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
}

static void set_flag(void *arg)
{
    *(bool *)arg = true;
}

static void start_server(struct fixture *fixture, const char *address)
{
    struct arpc_server_options options = {
        .size = sizeof options, .arg = &fixture->state, .keep_metadata = echo_metadata};
    struct amp_error error = {0};
    assert_int_equal(
        arpc_server_new(&fixture->loop, &options, echo_methods, echo_method_count, &fixture->server, &error), 0);
    int rc = arpc_server_listen(fixture->server, address, &fixture->port, &error);
    if (rc != 0)
        (void)fprintf(stderr, "%s\n", error.text);
    assert_int_equal(rc, 0);
    fixture->server_closed = false;
}

static void stop_server(struct fixture *fixture)
{
    if (fixture->server == NULL)
        return;
    arpc_server_close(fixture->server, set_flag, &fixture->server_closed);
    run_until_bool(fixture, &fixture->server_closed);
    fixture->server = NULL;
}

static void on_state(struct arpc_channel *channel, enum arpc_channel_state state, const struct amp_error *error,
                     void *arg)
{
    (void)channel;
    (void)error;
    struct fixture *fixture = arg;
    if (fixture->state_count < 16)
        fixture->states[fixture->state_count++] = (int)state;
}

static void start_channel(struct fixture *fixture, const char *target)
{
    struct arpc_channel_options options = {
        .size = sizeof options, .arg = fixture, .state_cb = on_state, .backoff_min_ms = 10, .seed = 1};
    assert_int_equal(arpc_channel_new(&fixture->loop, target, &options, &fixture->channel, NULL), 0);
    fixture->channel_closed = false;
}

static void stop_channel(struct fixture *fixture)
{
    if (fixture->channel == NULL)
        return;
    arpc_channel_close(fixture->channel, set_flag, &fixture->channel_closed);
    run_until_bool(fixture, &fixture->channel_closed);
    fixture->channel = NULL;
}

static int setup_bare(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    assert_non_null(fixture);
    (void)signal(SIGPIPE, SIG_IGN);
    assert_int_equal(uv_loop_init(&fixture->loop), 0);
    assert_int_equal(uv_timer_init(&fixture->loop, &fixture->guard), 0);
    assert_int_equal(uv_timer_start(&fixture->guard, on_guard, GUARD_MS, 0), 0);
    fixture->state.loop = &fixture->loop;
    *state = fixture;
    return 0;
}

static int setup(void **state)
{
    (void)setup_bare(state);
    struct fixture *fixture = *state;
    start_server(fixture, "127.0.0.1:0");
    (void)snprintf(fixture->target, sizeof fixture->target, "127.0.0.1:%d", fixture->port);
    start_channel(fixture, fixture->target);
    return 0;
}

/* Everything is closed, and nothing of the loop is left: no handle leaks. */
static int teardown(void **state)
{
    struct fixture *fixture = *state;
    stop_channel(fixture);
    stop_server(fixture);
    assert_int_equal(fixture->state.open, 0);
    uv_close((uv_handle_t *)&fixture->guard, NULL);
    (void)uv_run(&fixture->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&fixture->loop), 0);
    free(fixture);
    return 0;
}

static void on_started(struct arpc_call *call)
{
    struct seen *seen = arpc_call_user(call);
    seen->started++;
}

static void on_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct seen *seen = arpc_call_user(call);
    seen->messages++;
    seen->bytes += size;
    seen->crc = amp_crc32c(seen->crc, data, size);
    seen->last_size = size < sizeof seen->last ? size : sizeof seen->last;
    memcpy(seen->last, data, seen->last_size);
    if (seen->pause_at != 0 && seen->messages == seen->pause_at)
        arpc_call_pause(call);
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct seen *seen = arpc_call_user(call);
    const char *value = arpc_details_find(&result->details, "key");
    seen->closed++;
    seen->status = result->status;
    seen->from_peer = result->from_peer;
    seen->retry_ms = result->details.retry_ms;
    (void)snprintf(seen->message, sizeof seen->message, "%s", result->message);
    (void)snprintf(seen->reason, sizeof seen->reason, "%s",
                   result->details.reason != NULL ? result->details.reason : "");
    (void)snprintf(seen->pair, sizeof seen->pair, "%s", value != NULL ? value : "");
}

static const struct arpc_handler client = {.started = on_started, .message = on_message, .closed = on_closed};

static void call(struct fixture *fixture, const char *path, const struct arpc_call_options *options, struct seen *seen)
{
    assert_int_equal(arpc_channel_call(fixture->channel, path, options, &client, seen, &seen->call, NULL), 0);
}

static void call_with(struct fixture *fixture, const char *path, const struct arpc_call_options *options,
                      struct seen *seen, const void *request, size_t size)
{
    call(fixture, path, options, seen);
    assert_int_equal(arpc_call_send(seen->call, request, size, NULL, 0, NULL, NULL), 0);
    arpc_call_half_close(seen->call);
}

static void sleep_call(struct fixture *fixture, const struct arpc_call_options *options, struct seen *seen)
{
    uint8_t request[16];
    size_t used = 0;
    echo_put_number(request, &used, 1, 60000);
    call_with(fixture, PATH("Sleep"), options, seen, request, used);
}

/* Runs until the server has `count` calls open. */
static void wait_open(struct fixture *fixture, uint64_t count)
{
    while (fixture->state.open != count)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
}

static void a_unary_call_connects_by_itself_and_comes_back(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    struct arpc_call_options options = {.size = sizeof options, .deadline_ms = 10000, .single_response = true};
    call_with(fixture, PATH("Unary"), &options, &seen, "hello", 5);
    run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    assert_true(seen.from_peer);
    assert_int_equal(seen.started, 1);
    assert_int_equal(seen.messages, 1);
    assert_memory_equal(seen.last, "hello", 5);
    assert_int_equal(fixture->state_count, 2);
    assert_int_equal(fixture->states[0], ARPC_CHANNEL_CONNECTING);
    assert_int_equal(fixture->states[1], ARPC_CHANNEL_READY);
}

static void count_release(void *arg)
{
    (*(int *)arg)++;
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
    call(fixture, PATH("Collect"), NULL, &seen);
    for (size_t i = 0; i < BULK / MIB; i++) {
        assert_int_equal(arpc_call_send(seen.call, head, used, body, MIB, count_release, &fixture->released), 0);
        crc = amp_crc32c(crc, body, MIB);
    }
    arpc_call_half_close(seen.call);
    run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    assert_int_equal(fixture->released, BULK / MIB);
    assert_int_equal(echo_get_number(seen.last, seen.last_size, 1), BULK / MIB);
    assert_int_equal(echo_get_number(seen.last, seen.last_size, 2), BULK);
    assert_int_equal(echo_get_number(seen.last, seen.last_size, 3), crc);
    free(body);
}

static void repeat_call(struct fixture *fixture, const struct arpc_call_options *options, struct seen *seen,
                        uint64_t messages, uint64_t size)
{
    uint8_t request[32];
    size_t used = 0;
    echo_put_number(request, &used, 1, messages);
    echo_put_number(request, &used, 2, size);
    call_with(fixture, PATH("Repeat"), options, seen, request, used);
}

static void pull_of_64_mib_arrives(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    repeat_call(fixture, NULL, &seen, BULK / MIB, MIB);
    run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    assert_int_equal(seen.messages, BULK / MIB);
    assert_true(seen.bytes > BULK);
}

static void a_paused_pull_keeps_its_place_and_does_not_stop_other_calls(void **state)
{
    struct fixture *fixture = *state;
    struct seen pull = {.pause_at = 3};
    struct seen unary = {0};
    repeat_call(fixture, NULL, &pull, 40, MIB);
    while (pull.messages < 3)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    call_with(fixture, PATH("Unary"), NULL, &unary, "x", 1);
    run_until(fixture, &unary.closed);
    assert_int_equal(unary.status, ARPC_STATUS_OK);
    assert_int_equal(pull.messages, 3);
    assert_int_equal(pull.closed, 0);
    arpc_call_resume(pull.call);
    run_until(fixture, &pull.closed);
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
    call_with(fixture, PATH("Fail"), NULL, &seen, request, used);
    run_until(fixture, &seen.closed);
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
    struct seen seen = {0};
    struct arpc_call_options options = {.size = sizeof options, .deadline_ms = 50};
    sleep_call(fixture, &options, &seen);
    run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_DEADLINE_EXCEEDED);
    wait_open(fixture, 0);
    assert_int_equal(fixture->state.cancelled, 1);
}

static void a_cancel_ends_both_sides(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    sleep_call(fixture, NULL, &seen);
    wait_open(fixture, 1);
    arpc_call_cancel(seen.call, ARPC_STATUS_CANCELLED, "enough");
    assert_int_equal(seen.closed, 0); /* never inside the function */
    run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_CANCELLED);
    assert_string_equal(seen.message, "enough");
    wait_open(fixture, 0);
    assert_int_equal(fixture->state.cancelled, 1);
}

static void closing_the_channel_cancels_its_calls_and_releases_their_buffers(void **state)
{
    struct fixture *fixture = *state;
    struct seen sleeping = {0};
    struct seen pushing = {0};
    uint8_t *body = calloc(1, MIB);
    assert_non_null(body);
    sleep_call(fixture, NULL, &sleeping);
    call(fixture, PATH("Hold"), NULL, &pushing);
    for (int i = 0; i < 40; i++)
        assert_int_equal(arpc_call_send(pushing.call, NULL, 0, body, MIB, count_release, &fixture->released), 0);
    wait_open(fixture, 2);
    stop_channel(fixture);
    assert_int_equal(sleeping.closed, 1);
    assert_int_equal(sleeping.status, ARPC_STATUS_CANCELLED);
    assert_int_equal(pushing.closed, 1);
    assert_int_equal(fixture->released, 40);
    wait_open(fixture, 0);
    free(body);
}

static void a_lost_server_fails_its_calls_and_the_next_call_connects_again(void **state)
{
    struct fixture *fixture = *state;
    struct seen sleeping = {0};
    struct seen waiting = {0};
    sleep_call(fixture, NULL, &sleeping);
    wait_open(fixture, 1);
    stop_server(fixture);
    run_until(fixture, &sleeping.closed);
    assert_int_equal(sleeping.status, ARPC_STATUS_UNAVAILABLE);
    assert_false(sleeping.from_peer);
    struct seen failing = {0};
    call_with(fixture, PATH("Unary"), NULL, &failing, "x", 1);
    run_until(fixture, &failing.closed);
    assert_int_equal(failing.status, ARPC_STATUS_UNAVAILABLE);
    struct arpc_call_options options = {.size = sizeof options, .wait_for_ready = true};
    call_with(fixture, PATH("Unary"), &options, &waiting, "x", 1);
    for (int i = 0; i < 20; i++)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    assert_int_equal(waiting.closed, 0);
    start_server(fixture, fixture->target);
    run_until(fixture, &waiting.closed);
    assert_int_equal(waiting.status, ARPC_STATUS_OK);
}

static void waiting_for_ready_ends_at_the_deadline(void **state)
{
    struct fixture *fixture = *state;
    stop_server(fixture);
    struct seen seen = {0};
    struct arpc_call_options options = {.size = sizeof options, .wait_for_ready = true, .deadline_ms = 100};
    call_with(fixture, PATH("Unary"), &options, &seen, "x", 1);
    run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_DEADLINE_EXCEEDED);
}

static void a_draining_server_finishes_calls_and_takes_no_new_ones(void **state)
{
    struct fixture *fixture = *state;
    struct seen pull = {.pause_at = 1};
    bool drained = false;
    repeat_call(fixture, NULL, &pull, 40, MIB);
    while (pull.messages < 1)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    arpc_server_drain(fixture->server, GUARD_MS, set_flag, &drained);
    while (arpc_channel_state(fixture->channel) == ARPC_CHANNEL_READY)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    struct seen late = {0};
    call_with(fixture, PATH("Unary"), NULL, &late, "x", 1);
    run_until(fixture, &late.closed);
    assert_int_equal(late.status, ARPC_STATUS_UNAVAILABLE);
    assert_false(drained);
    arpc_call_resume(pull.call);
    run_until(fixture, &pull.closed);
    assert_int_equal(pull.status, ARPC_STATUS_OK);
    assert_int_equal(pull.messages, 40);
    run_until_bool(fixture, &drained);
}

static void the_grace_of_a_drain_ends_calls_that_do_not(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    bool drained = false;
    sleep_call(fixture, NULL, &seen);
    wait_open(fixture, 1);
    arpc_server_drain(fixture->server, 50, set_flag, &drained);
    run_until_bool(fixture, &drained);
    run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_UNAVAILABLE);
}

static void a_drain_ends_watches_of_health(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    bool drained = false;
    call_with(fixture, "/grpc.health.v1.Health/Watch", NULL, &seen, "", 0);
    while (seen.messages == 0)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    arpc_server_drain(fixture->server, 10 * GUARD_MS, set_flag, &drained);
    run_until_bool(fixture, &drained);
    run_until(fixture, &seen.closed);
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
                                           .keepalive_ms = INT64_MAX,
                                           .write_stall_ms = INT64_MAX,
                                           .backoff_min_ms = INT64_MAX,
                                           .backoff_max_ms = INT64_MAX};
    struct arpc_call_options forever = {.size = sizeof forever, .deadline_ms = INT64_MAX};
    struct seen seen = {0};
    struct seen refused = {0};
    stop_channel(fixture);
    assert_int_equal(arpc_channel_new(&fixture->loop, fixture->target, &options, &fixture->channel, NULL), 0);
    call_with(fixture, PATH("Unary"), &forever, &seen, "x", 1);
    assert_true(arpc_call_time_left_ms(seen.call) == INT64_MAX);
    run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    stop_server(fixture);
    while (arpc_channel_state(fixture->channel) != ARPC_CHANNEL_IDLE)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    call_with(fixture, PATH("Unary"), &forever, &refused, "x", 1);
    run_until(fixture, &refused.closed);
    assert_int_equal(refused.status, ARPC_STATUS_UNAVAILABLE);
    assert_int_equal(arpc_channel_state(fixture->channel), ARPC_CHANNEL_BACKOFF);
}

static void a_response_over_the_limit_of_the_call_is_refused(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    struct arpc_call_options options = {.size = sizeof options, .max_message = 1000};
    repeat_call(fixture, &options, &seen, 2, 2000);
    run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(seen.messages, 0);
    wait_open(fixture, 0);
}

static void a_thousand_calls_share_one_connection(void **state)
{
    struct fixture *fixture = *state;
    static struct seen seen[1000];
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < 1000; i++) {
        char text[16];
        int size = snprintf(text, sizeof text, "call %d", i);
        call_with(fixture, PATH("Unary"), NULL, &seen[i], text, (size_t)size);
    }
    for (int i = 0; i < 1000; i++) {
        char text[16];
        int size = snprintf(text, sizeof text, "call %d", i);
        run_until(fixture, &seen[i].closed);
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
        repeat_call(fixture, NULL, &pulls[i], 64, MIB);
    while (pulls[3].messages < 2)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    call_with(fixture, PATH("Unary"), NULL, &unary, "x", 1);
    run_until(fixture, &unary.closed);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pulls[i].closed, 0);
    for (int i = 0; i < 4; i++)
        run_until(fixture, &pulls[i].closed);
}

static void unix_sockets_work_and_a_used_path_is_an_error(void **state)
{
    struct fixture *fixture = *state;
    char directory[] = "/tmp/arpc-test-XXXXXX";
    assert_non_null(mkdtemp(directory));
    (void)snprintf(fixture->target, sizeof fixture->target, "unix:%s/socket", directory);
    start_server(fixture, fixture->target);
    assert_int_equal(fixture->port, 0);
    struct amp_error error;
    assert_int_equal(arpc_server_listen(fixture->server, fixture->target, NULL, &error), AMP_EEXIST);
    start_channel(fixture, fixture->target);
    struct seen seen = {0};
    call_with(fixture, PATH("Unary"), NULL, &seen, "x", 1);
    run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    stop_server(fixture);
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
    call(fixture, PATH("Chat"), NULL, &seen);
    struct arpc_call *kept = arpc_call_ref(seen.call);
    stop_channel(fixture);
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
        assert_int_equal(arpc_channel_call(fixture->channel, paths[i], NULL, &client, &seen, NULL, &error), AMP_EINVAL);
    static const struct arpc_pair pairs[] = {{"Upper", "x"}, {"grpc-x", "x"}, {"ok", "\n"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct arpc_call_options options = {.size = sizeof options, .metadata = &pairs[i], .metadata_count = 1};
        assert_int_equal(arpc_channel_call(fixture->channel, PATH("Unary"), &options, &client, &seen, NULL, &error),
                         AMP_EINVAL);
    }
    assert_int_equal(seen.closed, 0);
}

/* ---- closing from inside callbacks ---- */

static void close_channel_at_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    struct seen *seen = arpc_call_user(call);
    seen->messages++;
    if (seen->messages == 1)
        arpc_channel_close(seen->fixture->channel, set_flag, &seen->fixture->channel_closed);
}

static void close_server_at_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct seen *seen = arpc_call_user(call);
    on_closed(call, result);
    arpc_server_close(seen->fixture->server, set_flag, &seen->fixture->server_closed);
    arpc_channel_close(seen->fixture->channel, set_flag, &seen->fixture->channel_closed);
}

static void a_channel_may_be_closed_inside_a_message(void **state)
{
    struct fixture *fixture = *state;
    static const struct arpc_handler handler = {.message = close_channel_at_message, .closed = on_closed};
    struct seen seen = {.fixture = fixture};
    struct seen other = {0};
    uint8_t request[32];
    size_t used = 0;
    echo_put_number(request, &used, 1, 100);
    echo_put_number(request, &used, 2, MIB);
    sleep_call(fixture, NULL, &other);
    assert_int_equal(arpc_channel_call(fixture->channel, PATH("Repeat"), NULL, &handler, &seen, &seen.call, NULL), 0);
    assert_int_equal(arpc_call_send(seen.call, request, used, NULL, 0, NULL, NULL), 0);
    arpc_call_half_close(seen.call);
    run_until_bool(fixture, &fixture->channel_closed);
    fixture->channel = NULL;
    assert_int_equal(seen.messages, 1);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.status, ARPC_STATUS_CANCELLED);
    assert_int_equal(other.closed, 1);
    wait_open(fixture, 0);
}

static void server_and_channel_may_be_closed_inside_closed(void **state)
{
    struct fixture *fixture = *state;
    static const struct arpc_handler handler = {.closed = close_server_at_closed};
    struct seen seen = {.fixture = fixture};
    struct seen other = {0};
    sleep_call(fixture, NULL, &other);
    assert_int_equal(arpc_channel_call(fixture->channel, PATH("Missing"), NULL, &handler, &seen, &seen.call, NULL), 0);
    arpc_call_half_close(seen.call);
    run_until_bool(fixture, &fixture->channel_closed);
    run_until_bool(fixture, &fixture->server_closed);
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
    stop_channel(fixture);
    (void)snprintf(target, sizeof target, "localhost:%d", fixture->port);
    start_channel(fixture, target);
    call_with(fixture, PATH("Unary"), NULL, &seen, "x", 1);
    run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    stop_channel(fixture);
    memset(&seen, 0, sizeof seen);
    start_channel(fixture, "name.invalid:1");
    call_with(fixture, PATH("Unary"), NULL, &seen, "x", 1);
    run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_UNAVAILABLE);
    assert_non_null(strstr(seen.message, "name.invalid:1"));
    stop_channel(fixture);
    memset(&seen, 0, sizeof seen);
    start_channel(fixture, long_name);
    call_with(fixture, PATH("Unary"), NULL, &seen, "x", 1);
    run_until(fixture, &seen.closed);
    assert_non_null(strstr(seen.message, long_name));
}

static void a_channel_may_be_closed_while_it_resolves(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    stop_channel(fixture);
    start_channel(fixture, "localhost:1");
    call_with(fixture, PATH("Unary"), NULL, &seen, "x", 1);
    (void)uv_run(&fixture->loop, UV_RUN_NOWAIT);
    stop_channel(fixture);
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
    start_channel(fixture, fixture->target);
    call_with(fixture, PATH("Unary"), NULL, &seen, "x", 1);
    run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_UNAVAILABLE);
    assert_int_equal(arpc_channel_state(fixture->channel), ARPC_CHANNEL_BACKOFF);
    stop_channel(fixture);
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
    start_channel(fixture, fixture->target);
    call_with(fixture, PATH("Unary"), NULL, &first, "x", 1);
    run_until(fixture, &first.closed);
    assert_int_equal(first.status, ARPC_STATUS_OK);
    kept = fixture->channel;
    start_channel(fixture, fixture->target);
    call_with(fixture, PATH("Unary"), NULL, &second, "x", 1);
    run_until(fixture, &second.closed);
    assert_int_equal(second.status, ARPC_STATUS_UNAVAILABLE);
    stop_channel(fixture);
    fixture->channel = kept;
}

int main(void)
{
#define WITH_BOTH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
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
        cmocka_unit_test_setup_teardown(unix_sockets_work_and_a_used_path_is_an_error, setup_bare, teardown),
        WITH_BOTH(a_used_port_is_reported_at_listen),
        WITH_BOTH(a_call_that_is_kept_by_reference_stays_valid_after_closed),
        WITH_BOTH(a_channel_may_be_closed_inside_a_message),
        WITH_BOTH(server_and_channel_may_be_closed_inside_closed),
        WITH_BOTH(names_are_resolved_and_unknown_ones_are_unavailable),
        WITH_BOTH(a_channel_may_be_closed_while_it_resolves),
        cmocka_unit_test_setup_teardown(a_server_that_is_not_grpc_is_unavailable, setup_bare, teardown),
        cmocka_unit_test_setup_teardown(connections_over_the_limit_are_closed, setup_bare, teardown),
        WITH_BOTH(bad_paths_and_metadata_are_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
