/*
 * A client without sockets against a server that follows a script: a parking link and connections in memory, a clock of
 * the test's own. What the server hears and what a call's user sees can both be compared. For unit tests; asserts by
 * cmocka.
 */
#ifndef TESTS_UNIT_RPC_SCRIPT_H
#define TESTS_UNIT_RPC_SCRIPT_H

#include "rpc/h2/call.h"
#include "tests/unit/rpc_frames.h"
#include "tests/unit/rpc_pair.h"

#define SCRIPT_CONNS_MAX 8

struct script_conn {
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
    struct script_conn *conns[SCRIPT_CONNS_MAX];
    size_t conn_count;
};

/* Fixtures: *state is a struct script. At the end every call has been told, and nothing is retained. */
int script_setup(void **state);
int script_teardown(void **state);

/* A connection that is ready; the calls that wait move to it. */
struct script_conn *script_connect(struct script *script);
/* Everything goes as far as it can on this connection. */
void script_run(struct script_conn *conn);
/* The server says this. */
void script_say(struct script_conn *conn, const struct frames_out *out);
/* The server answers a unary call with one message and OK. */
void script_answer(struct script_conn *conn, uint32_t stream);
/* The connection is cut. */
void script_lose(struct script_conn *conn);
/* The batch that was produced by hand (batch_out) is gone. */
void script_batch_gone(struct script_conn *conn);
/* Does what calls of a link asked for. */
void script_flush(struct arpc_link *link);
/* Moves the clock of the calls that wait. */
void script_pass(struct script *script, int64_t ms);
/* Moves what may begin by now to this connection. */
void script_move_due(struct script *script, struct script_conn *conn);

/* Three attempts, the second after 100 ms. */
extern const struct arpc_retry_policy script_quick;

/* A call with one small message, and one with the end of it; `policy` may be NULL. */
struct arpc_call *script_begin(struct script *script, struct arpc_link *link, const struct arpc_retry_policy *policy,
                               struct rpc_seen *seen);
struct arpc_call *script_begin_whole(struct script *script, struct arpc_link *link,
                                     const struct arpc_retry_policy *policy, struct rpc_seen *seen);

/* The server has heard a whole call of that kind; the user has seen one message and OK. */
void script_expect_request(struct script_conn *conn, uint32_t stream, const char *attempts);
void script_expect_ok(const struct rpc_seen *seen);
/* Both, with the server's answer between them. */
void script_expect_served(struct script_conn *conn, uint32_t stream, const char *attempts, const struct rpc_seen *seen);

#endif
