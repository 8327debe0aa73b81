#include "tests/unit/rpc_script.h"

#include "base/assert.h"
#include "rpc/h2/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

static void wake(struct arpc_link *link)
{
    (void)link;
}

static int64_t read_clock(void *clock)
{
    return *(int64_t *)clock;
}

int script_setup(void **state)
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

void script_flush(struct arpc_link *link)
{
    while (arpc_link_flush(link))
        ;
}

void script_batch_gone(struct script_conn *conn)
{
    conn->batch_out = false;
    arpc_batch_done(&conn->link, &conn->batch);
}

/* Everything goes as far as it can, on this connection. */
void script_run(struct script_conn *conn)
{
    for (int i = 0; i < 8; i++) {
        script_flush(&conn->link);
        if (conn->link.error != 0)
            return;
        assert_int_equal(arpc_link_produce(&conn->link, &conn->batch), 0);
        for (size_t k = 0; k < conn->batch.count; k++)
            frames_hear(&conn->in, conn->batch.slots[k].iov_base, conn->batch.slots[k].iov_len);
        arpc_batch_done(&conn->link, &conn->batch);
    }
    script_flush(conn->link.config->parking);
}

/* A connection that is ready; the calls that wait move to it. */
struct script_conn *script_connect(struct script *script)
{
    struct frames_out *out = calloc(1, sizeof *out);
    struct script_conn *conn = calloc(1, sizeof *conn);
    assert_true(out != NULL && conn != NULL && script->conn_count < SCRIPT_CONNS_MAX);
    assert_int_equal(arpc_link_init(&conn->link, &script->config, wake, true), 0);
    (void)snprintf(conn->link.peer, sizeof conn->link.peer, "test");
    frames_in_open(&conn->in);
    frames_settings(out);
    frames_settings_ack(out);
    script_run(conn);
    assert_int_equal(arpc_link_receive(&conn->link, out->bytes, out->size), 0);
    free(out);
    script->conns[script->conn_count++] = conn;
    arpc_link_tick(&script->parking);
    arpc_link_move(&script->parking, &conn->link);
    script_run(conn);
    return conn;
}

void script_say(struct script_conn *conn, const struct frames_out *out)
{
    assert_int_equal(arpc_link_receive(&conn->link, out->bytes, out->size), 0);
    script_run(conn);
}

void script_lose(struct script_conn *conn)
{
    arpc_link_fail(&conn->link, AMP_EUNAVAILABLE, "lost");
    arpc_link_lost(&conn->link, "the connection was cut");
    if (conn->batch_out)
        script_batch_gone(conn);
    script_flush(&conn->link);
    script_flush(conn->link.config->parking);
    assert_int_equal(conn->link.call_count, 0);
}

int script_teardown(void **state)
{
    struct script *script = *state;
    for (size_t i = 0; i < script->conn_count; i++) {
        struct script_conn *conn = script->conns[i];
        arpc_link_fail(&conn->link, AMP_EUNAVAILABLE, "over");
        arpc_link_abort(&conn->link, ARPC_STATUS_CANCELLED, "the test is over");
        if (conn->batch_out)
            script_batch_gone(conn);
        script_flush(&conn->link);
        arpc_link_close(&conn->link);
        frames_in_close(&conn->in);
        free(conn);
    }
    arpc_link_abort(&script->parking, ARPC_STATUS_CANCELLED, "the test is over");
    script_flush(&script->parking);
    arpc_link_close(&script->parking);
    assert_int_equal(script->config.calls, 0);
    assert_int_equal(script->config.retained, 0);
    free(script);
    return 0;
}

const struct arpc_retry_policy script_quick = {.max_attempts = 3, .initial_backoff_ms = 100};

/* A call with one small message and the end of it; `policy` may be NULL. */
struct arpc_call *script_begin(struct script *script, struct arpc_link *link, const struct arpc_retry_policy *policy,
                               struct rpc_seen *seen)
{
    struct arpc_call *call;
    assert_int_equal(arpc_request_new(link, "/t.T/Unary", NULL, 0, &rpc_noting, &call, NULL), 0);
    call->in.max_message = 4096;
    call->user = seen;
    if (policy != NULL)
        arpc_retry_init(&call->attempt.retry, policy);
    assert_int_equal(arpc_call_send(call, "hello", 5, NULL, 0, NULL, NULL), 0);
    (void)script;
    return call;
}

struct arpc_call *script_begin_whole(struct script *script, struct arpc_link *link,
                                     const struct arpc_retry_policy *policy, struct rpc_seen *seen)
{
    struct arpc_call *call = script_begin(script, link, policy, seen);
    arpc_call_half_close(call);
    return call;
}

void script_expect_request(struct script_conn *conn, uint32_t stream, const char *attempts)
{
    const struct frames_request *request = frames_request_of(&conn->in, stream);
    assert_non_null(request);
    assert_string_equal(request->path, "/t.T/Unary");
    assert_string_equal(request->previous_attempts, attempts);
    assert_int_equal(request->size, 10);
    assert_memory_equal(request->data + 5, "hello", 5);
    assert_true(request->ended);
}

void script_expect_ok(const struct rpc_seen *seen)
{
    assert_int_equal(seen->closed, 1);
    assert_int_equal(seen->status, ARPC_STATUS_OK);
    assert_int_equal(seen->started, 1);
    assert_int_equal(seen->ended, 1);
    assert_int_equal(seen->after_closed, 0);
}

void script_answer(struct script_conn *conn, uint32_t stream)
{
    struct frames_out out = {0};
    frames_answer(&out, stream, "well");
    script_say(conn, &out);
}

void script_expect_served(struct script_conn *conn, uint32_t stream, const char *attempts, const struct rpc_seen *seen)
{
    script_expect_request(conn, stream, attempts);
    script_answer(conn, stream);
    script_expect_ok(seen);
}

void script_pass(struct script *script, int64_t ms)
{
    script->now_ms += ms;
    arpc_link_tick(&script->parking);
    script_flush(&script->parking);
}

/* Moves what may begin by now. */
void script_move_due(struct script *script, struct script_conn *conn)
{
    arpc_link_move(&script->parking, &conn->link);
    script_run(conn);
}
