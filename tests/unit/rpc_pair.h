/* Two links joined in memory, with a clock of their own: a whole connection without a socket. For unit tests. */
#ifndef TESTS_UNIT_RPC_PAIR_H
#define TESTS_UNIT_RPC_PAIR_H

#include "rpc/arpc_client.h"
#include "rpc/arpc_server.h"
#include "rpc/h2/call.h"
#include "rpc/h2/link.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rpc_side {
    struct arpc_link link;
    struct arpc_link_config config;
    struct arpc_batch batch;
    size_t woken;
};

struct rpc_pair {
    struct rpc_side client;
    struct rpc_side server;
    size_t chunk; /* bytes that one receive gets; 0: all there are */
    int64_t now_ms;
    bool cut; /* bytes go nowhere */
};

/* A pair whose server has these rows. Asserts on failure. */
void rpc_pair_open(struct rpc_pair *pair, const struct arpc_method *methods, size_t count);

/* The two halves of it, for tests that change a configuration in between. */
void rpc_pair_prepare(struct rpc_pair *pair, const struct arpc_method *methods, size_t count);
void rpc_pair_connect(struct rpc_pair *pair);

/* Gives one side what the other has to send now. False if that is nothing. */
bool rpc_pair_carry(struct rpc_pair *pair, struct rpc_side *from, struct rpc_side *to);

/* Moves bytes and tells users until nothing happens any more. */
void rpc_pair_run(struct rpc_pair *pair);

/* Moves the clock of both sides, and runs. */
void rpc_pair_pass(struct rpc_pair *pair, int64_t ms);

/* Ends what is open and frees both. Every call has then been told. */
void rpc_pair_close(struct rpc_pair *pair);

/* A call of "/t.T/<method>". */
struct arpc_call *rpc_pair_call(struct rpc_pair *pair, const char *method, const struct arpc_handler *handler,
                                void *user);

/* One side: 0 or AMP_ENOMEM, then there is nothing to close. Closing frees its rows too. */
int rpc_side_open(struct rpc_side *side);
void rpc_side_close(struct rpc_side *side);

/* Fills the configuration of one side with the defaults of the real one, and a clock that reads *clock_ms. */
void rpc_side_config(struct rpc_side *side, bool server, int64_t *clock_ms);

/* What a handler of these tests saw; the user pointer of its calls. */
struct rpc_seen {
    struct arpc_call *call;
    int started;
    int begun;
    int ended; /* messages that ended */
    size_t bytes;
    size_t last_begin;
    uint8_t data[256]; /* the first bytes of all messages */
    int half_closed;
    int writable;
    int closed;
    int status;
    char message[128];
    bool from_peer;
    int after_closed; /* callbacks that came too late: must stay 0 */
};

/* Notes everything. On the server the user pointer of a call is set to `rpc_seen_of_server` at `started`. */
extern const struct arpc_handler rpc_noting;
extern struct rpc_seen rpc_seen_of_server;

#endif
