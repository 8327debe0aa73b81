/* The session with shard 0: what there is no memory for is tried again, and how much may wait. Channels and calls are fakes. */
#include "server/io/cluster/peers.h"

#include "rpc/arpc_client.h"
#include "server/io/auth/auth_options.h"
#include "server/io/base/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

static struct {
    char address[IO_CLUSTER_ADDRESS_MAX]; /* of shard 0 */
    unsigned refuses;                     /* channels that there is no memory for */
    unsigned asked, channels, closed, calls;
    char target[IO_CLUSTER_ADDRESS_MAX]; /* of the newest channel */
    const struct arpc_handler *handler;
    void *call; /* the user of the newest call */
    size_t queued;
    unsigned cancelled;
} fake;

static struct ampd_server server;
static const struct ampd_auth_options nothing; /* is shown to shard 0 */
static char cluster, channel; /* addresses of what is never looked into */

/* ---- in front of the cluster's map, rpc and the core (--wrap) ---- */

const struct io_cluster_member *__wrap_io_cluster_member(const struct io_cluster *of, uint32_t shard);
const struct io_cluster_member *__wrap_io_cluster_member(const struct io_cluster *of, uint32_t shard)
{
    static struct io_cluster_member member;
    (void)snprintf(member.address, sizeof member.address, "%s", shard == 0 ? fake.address : "");
    return &member;
}

const char *__wrap_io_membership_address(const struct ampd_server *of);
const char *__wrap_io_membership_address(const struct ampd_server *of)
{
    return "here:1";
}

int __wrap_arpc_channel_new(uv_loop_t *loop, const char *target, const struct arpc_channel_options *options,
                            struct arpc_channel **out, struct amp_error *error);
int __wrap_arpc_channel_new(uv_loop_t *loop, const char *target, const struct arpc_channel_options *options,
                            struct arpc_channel **out, struct amp_error *error)
{
    fake.asked++;
    if (fake.refuses > 0) {
        fake.refuses--;
        return amp_error_set(error, AMP_ENOMEM, NULL, "no memory for a channel");
    }
    fake.channels++;
    (void)snprintf(fake.target, sizeof fake.target, "%s", target);
    *out = (struct arpc_channel *)&channel;
    return 0;
}

static void end_call(void)
{
    const struct arpc_result result = {.status = ARPC_STATUS_CANCELLED};
    void *call = fake.call;
    if (call != NULL)
        fake.handler->closed(call, &result);
    fake.call = NULL;
}

void __wrap_arpc_channel_close(struct arpc_channel *of, void (*closed_cb)(void *arg), void *arg);
void __wrap_arpc_channel_close(struct arpc_channel *of, void (*closed_cb)(void *arg), void *arg)
{
    fake.closed++;
    end_call();
}

int __wrap_arpc_channel_call(struct arpc_channel *of, const char *path, const struct arpc_call_options *options,
                             const struct arpc_handler *handler, void *user, struct arpc_call **out,
                             struct amp_error *error);
int __wrap_arpc_channel_call(struct arpc_channel *of, const char *path, const struct arpc_call_options *options,
                             const struct arpc_handler *handler, void *user, struct arpc_call **out,
                             struct amp_error *error)
{
    fake.calls++;
    fake.handler = handler;
    fake.call = user;
    *out = user;
    return 0;
}

void *__wrap_arpc_call_user(const struct arpc_call *call);
void *__wrap_arpc_call_user(const struct arpc_call *call)
{
    return fake.call;
}

void __wrap_arpc_call_cancel(struct arpc_call *call, int status, const char *message);
void __wrap_arpc_call_cancel(struct arpc_call *call, int status, const char *message)
{
    fake.cancelled++;
}

int __wrap_arpc_call_send(struct arpc_call *call, const void *head, size_t head_size, const void *body,
                          size_t body_size, arpc_release_cb release_cb, void *release_arg);
int __wrap_arpc_call_send(struct arpc_call *call, const void *head, size_t head_size, const void *body,
                          size_t body_size, arpc_release_cb release_cb, void *release_arg)
{
    fake.queued += head_size + body_size;
    return 0;
}

size_t __wrap_arpc_call_queued(const struct arpc_call *call);
size_t __wrap_arpc_call_queued(const struct arpc_call *call)
{
    return fake.queued;
}

void __wrap_io_core_event(struct ampd_server *of, struct ampd_event *event);
void __wrap_io_core_event(struct ampd_server *of, struct ampd_event *event)
{
}

/* ---- tests ---- */

/* Shard 1 of two, which has a session with shard 0. */
static void begin(void)
{
    static const struct amp_log quiet;
    static const struct io_cluster_url url;
    struct amp_error error = {0};
    memset(&server, 0, sizeof server);
    memset(&fake, 0, sizeof fake);
    (void)snprintf(fake.address, sizeof fake.address, "first:1");
    server.own_options = (struct ampd_server_options){.shards = 2, .shard = 1, .cluster = &url, .auth = &nothing};
    server.options = &server.own_options;
    server.log = &quiet;
    server.cluster = (struct io_cluster *)&cluster;
    assert_int_equal(uv_loop_init(&server.loop), 0);
    assert_int_equal(io_peers_new(&server, &error), 0);
    assert_int_equal(io_peers_start(&server, &error), 0);
    assert_int_equal(fake.calls, 1);
}

static void end(void)
{
    io_peers_close(&server);
    assert_int_equal(uv_run(&server.loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&server.loop), 0);
    io_peers_free(&server);
}

/* The loop has its timer, which is due soon, or nothing to do. */
static void let_it_try(void)
{
    assert_in_range(uv_backend_timeout(&server.loop), 0, 1000);
    assert_true(uv_loop_alive(&server.loop));
    (void)uv_run(&server.loop, UV_RUN_ONCE);
}

static void a_channel_to_the_new_shard_0_that_there_was_no_memory_for_is_made_later(void **state)
{
    begin();
    (void)snprintf(fake.address, sizeof fake.address, "second:2");
    fake.refuses = 5;
    io_peers_moved(&server, 0);
    assert_int_equal(fake.closed, 1);
    /* A turn of the loop may try twice on a busy machine, or not at all. */
    for (unsigned turns = 0; fake.channels < 2; turns++) {
        assert_true(turns < 20);
        let_it_try();
    }
    assert_int_equal(fake.refuses, 0);
    assert_string_equal(fake.target, "second:2");
    assert_int_equal(fake.channels, 2);
    assert_int_equal(fake.calls, 2);
    end();
}

static void where_nobody_is_shard_0_no_channel_is_tried(void **state)
{
    begin();
    fake.address[0] = 0;
    io_peers_moved(&server, 0);
    let_it_try(); /* the session that has ended */
    assert_int_equal(fake.asked, 1);
    assert_false(uv_loop_alive(&server.loop));
    (void)snprintf(fake.address, sizeof fake.address, "second:2");
    io_peers_moved(&server, 0);
    assert_int_equal(fake.calls, 2);
    end();
}

static void say(enum ampd_message_type type, uint32_t checkpoints)
{
    struct ampd_message *message = ampd_message_new(type);
    assert_non_null(message);
    message->from = 1;
    if (type == AMPD_MESSAGE_SYNCED) {
        message->u.sync.checkpoints = calloc(checkpoints, sizeof *message->u.sync.checkpoints);
        assert_non_null(message->u.sync.checkpoints);
        message->u.sync.checkpoints_count = checkpoints;
        for (uint32_t i = 0; i < checkpoints; i++)
            message->u.sync.checkpoints[i].parts_count = AMPD_PARTS_MAX;
    }
    io_peers_send(&server, message);
    ampd_message_free(message);
}

static void what_all_models_hold_may_be_more_than_else_may_wait(void **state)
{
    begin();
    for (int i = 0; i < 64; i++)
        say(AMPD_MESSAGE_SYNCED, AMPD_SYNC_CHECKPOINTS_MAX);
    say(AMPD_MESSAGE_SYNC_DONE, 0);
    assert_true(fake.queued > (size_t)64 << 20);
    assert_int_equal(fake.cancelled, 0);
    fake.queued = 0; /* it has gone */
    say(AMPD_MESSAGE_HELLO, 0);
    fake.queued = (size_t)40 << 20;
    say(AMPD_MESSAGE_APPLIED, 0);
    assert_int_equal(fake.cancelled, 1);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_all_models_hold_may_be_more_than_else_may_wait),
        cmocka_unit_test(a_channel_to_the_new_shard_0_that_there_was_no_memory_for_is_made_later),
        cmocka_unit_test(where_nobody_is_shard_0_no_channel_is_tried)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
