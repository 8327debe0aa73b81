#include "tests/conformance/channel_fixture.h"

#include "base/crc32c.h"
#include "tests/conformance/echo_wire.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

static void on_guard(uv_timer_t *timer)
{
    (void)timer;
    (void)fprintf(stderr, "a test did not end in time\n");
    abort();
}

void channel_run_until(struct fixture *fixture, const int *flag)
{
    while (*flag == 0)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
}

void channel_run_until_bool(struct fixture *fixture, const bool *flag)
{
    while (!*flag)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
}

void channel_set_flag(void *arg)
{
    *(bool *)arg = true;
}

void channel_start_server(struct fixture *fixture, const char *address)
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

void channel_stop_server(struct fixture *fixture)
{
    if (fixture->server == NULL)
        return;
    arpc_server_close(fixture->server, channel_set_flag, &fixture->server_closed);
    channel_run_until_bool(fixture, &fixture->server_closed);
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

void channel_start_channel(struct fixture *fixture, const char *target)
{
    struct arpc_channel_options options = {
        .size = sizeof options, .arg = fixture, .state_cb = on_state, .initial_backoff_ms = 10, .seed = 1};
    assert_int_equal(arpc_channel_new(&fixture->loop, target, &options, &fixture->channel, NULL), 0);
    fixture->channel_closed = false;
}

void channel_stop_channel(struct fixture *fixture)
{
    if (fixture->channel == NULL)
        return;
    arpc_channel_close(fixture->channel, channel_set_flag, &fixture->channel_closed);
    channel_run_until_bool(fixture, &fixture->channel_closed);
    fixture->channel = NULL;
}

int channel_setup_bare(void **state)
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

int channel_setup(void **state)
{
    (void)channel_setup_bare(state);
    struct fixture *fixture = *state;
    channel_start_server(fixture, "127.0.0.1:0");
    (void)snprintf(fixture->target, sizeof fixture->target, "127.0.0.1:%d", fixture->port);
    channel_start_channel(fixture, fixture->target);
    return 0;
}

/* Everything is closed, and nothing of the loop is left: no handle leaks. */
int channel_teardown(void **state)
{
    struct fixture *fixture = *state;
    channel_stop_channel(fixture);
    channel_stop_server(fixture);
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

void channel_on_closed(struct arpc_call *call, const struct arpc_result *result)
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

const struct arpc_handler channel_client = {.started = on_started, .message = on_message, .closed = channel_on_closed};

void channel_call(struct fixture *fixture, const char *path, const struct arpc_call_options *options, struct seen *seen)
{
    assert_int_equal(arpc_channel_call(fixture->channel, path, options, &channel_client, seen, &seen->call, NULL), 0);
}

void channel_call_with(struct fixture *fixture, const char *path, const struct arpc_call_options *options,
                       struct seen *seen, const void *request, size_t size)
{
    channel_call(fixture, path, options, seen);
    assert_int_equal(arpc_call_send(seen->call, request, size, NULL, 0, NULL, NULL), 0);
    arpc_call_half_close(seen->call);
}

void channel_sleep_call(struct fixture *fixture, const struct arpc_call_options *options, struct seen *seen)
{
    uint8_t request[16];
    size_t used = 0;
    echo_put_number(request, &used, 1, 60000);
    channel_call_with(fixture, PATH("Sleep"), options, seen, request, used);
}

/* Runs until the server has `count` calls open. */
void channel_wait_open(struct fixture *fixture, uint64_t count)
{
    while (fixture->state.open != count)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
}

void channel_repeat_call(struct fixture *fixture, const struct arpc_call_options *options, struct seen *seen,
                         uint64_t messages, uint64_t size)
{
    uint8_t request[32];
    size_t used = 0;
    echo_put_number(request, &used, 1, messages);
    echo_put_number(request, &used, 2, size);
    channel_call_with(fixture, PATH("Repeat"), options, seen, request, used);
}

void channel_count_release(void *arg)
{
    (*(int *)arg)++;
}
