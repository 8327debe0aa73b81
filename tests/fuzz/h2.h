/*
 * For the targets of HTTP/2: a link with small limits and a clock of the input's, calls whose user does what the bytes
 * of messages say, and the invariants of both. No I/O.
 */
#ifndef TESTS_FUZZ_H2_H
#define TESTS_FUZZ_H2_H

#include "base/list.h"
#include "rpc/arpc_client.h"
#include "rpc/arpc_server.h"
#include "rpc/h2/call.h"
#include "rpc/h2/link.h"
#include "tests/fuzz/fuzz.h"

/* Calls at a time that the user knows of. */
#define FUZZ_CALLS_MAX 64

/* What a call's user knows; the user pointer of the call. */
struct fuzz_call {
    struct amp_list node;
    struct arpc_call *call;
    bool server;
    bool started;
    bool in_message;
    bool half_closed;
    bool finished; /* by arpc_call_finish or _cancel: only `closed` may follow */
    bool flood;    /* sends on whenever it may */
    bool echo;     /* answers each message */
    size_t announced;
    size_t got;
    size_t messages;
};

/* Everything of one input. */
struct fuzz_h2 {
    int64_t now_ms;
    struct arpc_link_config config;
    struct arpc_limits limits;
    struct amp_list open; /* fuzz_call, the oldest first */
    size_t open_count;
    size_t borrowed;           /* bodies sent by reference */
    size_t released;           /* ... and given back */
    struct arpc_call *kept[4]; /* references that outlive their calls */
    size_t kept_count;
    long allocations; /* of nghttp2, until one fails; negative: none does */
};

extern struct fuzz_h2 fuzz_h2;

/* The beginning: a clock, limits, a configuration. `choices` is a byte of the input. */
void fuzz_h2_open(bool server, unsigned choices);

/* Handlers of calls: those of a server collect messages or take pieces, a client's take pieces. */
extern const struct arpc_handler fuzz_collecting;
extern const struct arpc_handler fuzz_taking;

/* Makes the user of a call that this side begins. NULL: there are enough. */
struct fuzz_call *fuzz_call_new(void);

/* Sends a message: a copy, or by reference. */
void fuzz_call_send(struct fuzz_call *call, size_t size, bool by_reference);

/* What a script asks of the calls' users: resume, answer, cancel, blank, pause, send; others have no effect. */
void fuzz_h2_act(unsigned act);

/* How far an act moves the clock; 0: not at all. */
int64_t fuzz_h2_wait_ms(unsigned act);

/* A connection. */
struct fuzz_conn {
    struct arpc_link link;
    struct arpc_batch batch;
    bool open;
    bool batch_out; /* the batch is with the kernel */
};

void fuzz_conn_open(struct fuzz_conn *conn);
/* Flushes, and unless `stuck`, fills batches, which leave at once or, `late`, the next time. */
void fuzz_conn_pump(struct fuzz_conn *conn, bool stuck, bool late);
/* The connection is lost; its calls end, or go elsewhere. */
void fuzz_conn_close(struct fuzz_conn *conn);

/* Gives the link bytes as a connection does: what has a place goes there first. */
void fuzz_link_receive(struct arpc_link *link, const uint8_t *data, size_t size);

/* The sums and bounds of a link. */
void fuzz_link_check(const struct arpc_link *link, bool batch_out);

/* The end: nobody has a call, a borrowed body or a retained byte any more. */
void fuzz_h2_close(void);

/* Acts that these names are needed for; the others are in h2.c. */
enum {
    FUZZ_ACT_STUCK = 1,
    FUZZ_ACT_LATE = 2,
    FUZZ_ACT_DRAIN = 16,
    FUZZ_ACT_EXPEL = 17,
    FUZZ_ACT_PIECES = 22,
    FUZZ_ACT_OWN = 24
};

#endif
