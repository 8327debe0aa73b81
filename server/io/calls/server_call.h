/*
 * A call as the server keeps it: the object that joins the rpc library's call (struct arpc_call) with the core's, which
 * is known by a number alone.
 *
 * It is in the server's table from io_server_call_open until its last reference goes. That is so once both sides are
 * done with it: the rpc library has called `closed`, and the core has either answered or got AMPD_EVENT_CALL_CLOSED.
 * References are held by the rpc library's call, by tasks on other threads, and by bodies that are being sent.
 *
 * All functions are called on the loop.
 */
#ifndef AMPD_IO_SERVER_CALL_H
#define AMPD_IO_SERVER_CALL_H

#include "base/buf.h"
#include "base/list.h"
#include "rpc/arpc_server.h"
#include "server/core/core.h"

struct ampd_server;
struct io_server_call;
struct io_task;

/* What each kind of call does in its own way. A callback that the kind never needs is NULL. */
struct io_server_call_ops {
    /* Sends an answer of the core that is not an error; errors are sent by io_server_call_answer itself. */
    void (*reply_cb)(struct io_server_call *call, const struct ampd_reply *reply);
    /* Takes a grant, a list of blocks or a revocation, which the core has put out for this call. */
    void (*output_cb)(struct io_server_call *call, const struct ampd_output *output);
    /* Frees what the kind owns, just before the memory of the call itself is freed. */
    void (*free_cb)(struct io_server_call *call);
};

/* Of calls whose answers do not come from the core, and that own nothing. */
extern const struct io_server_call_ops io_server_call_plain;

/* What all kinds of calls have; the member `call` in the struct of each kind. */
struct io_server_call {
    struct amp_list node; /* in io_server_calls.buckets */
    struct ampd_server *server;
    struct arpc_call *rpc; /* NULL once the rpc library has called `closed` */
    const struct io_server_call_ops *ops;
    uint64_t id;             /* the number by which the core knows the call; never used twice in one process */
    unsigned refs;           /* the call is freed when this falls to 0 */
    unsigned pins;           /* bodies in a model's memory that the rpc library has not yet released */
    bool at_core;            /* the core got an event of this call, and has neither answered nor got CALL_CLOSED */
    bool finished;           /* the rpc library has the status, or has called `closed`: nothing more can be sent */
    struct ampd_model *held; /* the model whose specification this call reads (ampd_core_hold), or NULL */
    struct io_task *reading; /* the task of io_server_call_read, until it is done; or NULL */
    struct amp_list in_turn; /* in io_server_calls.turns while that task waits for its turn */
};

/* Buckets of the table. With tens of thousands of calls the lists in them are still short. */
#define IO_SERVER_CALL_BUCKETS 1024

/* Sources of calls that have turns of their own; those beyond share them. */
#define IO_SERVER_CALL_TURNS 256

/* All calls of the server. */
struct io_server_calls {
    struct amp_list buckets[IO_SERVER_CALL_BUCKETS]; /* struct io_server_call; the id modulo the number of buckets */
    uint64_t last;                                   /* the id that was given last; 0: none yet */
    struct amp_list turns[IO_SERVER_CALL_TURNS];     /* calls whose reads wait, by the source of their peer */
    unsigned turn;                                   /* counts turns: whose it is, modulo their number */
    unsigned reads;                                  /* tasks that the readers have of calls */
    unsigned readings;                               /* open ReadCheckpoint calls (read_checkpoint.c) */
    unsigned fetchings;                              /* open FetchRows calls (fetch_rows.c) */
};

void io_server_calls_init(struct io_server_calls *calls);

/*
 * Makes the object of a new rpc call, in `size` zeroed bytes of which struct io_server_call is the first member, and
 * makes it the rpc call's user pointer. The object has one reference, which io_server_call_closed drops. NULL: the
 * rpc call has been ended with an error, since the process is no shard yet (STANDBY), is ending (DRAINING), or is out
 * of memory.
 */
struct io_server_call *io_server_call_open(struct arpc_call *rpc, size_t size, const struct io_server_call_ops *ops);

/* The object of an rpc call, for a handler's callbacks. NULL: none was made, or `closed` has been called. */
struct io_server_call *io_server_call_of(struct arpc_call *rpc);

/* The call with this number, or NULL when it is no longer in the table. No reference is taken. */
struct io_server_call *io_server_call_find(struct ampd_server *server, uint64_t id);

/*
 * The `closed` callback of every handler. Drops the reference of the rpc call, takes back a task that no reader has
 * begun, and gives the core CALL_CLOSED if it still has the call. If the call has pins, the core gets CALL_CLOSED when
 * the last of them goes.
 */
void io_server_call_closed(struct arpc_call *rpc, const struct arpc_result *result);

/*
 * Gives the core an event of this call; the call's number is filled in. The core may answer, grant or revoke before
 * this returns, so a caller that uses the call afterwards holds a reference of its own.
 */
void io_server_call_event(struct io_server_call *call, struct ampd_event *event);

/*
 * Before a body is sent from a model's memory: counts a pin, and takes a reference. io_server_call_unpin has the form
 * of a release callback, whose `arg` is the call; it undoes both, and gives the core CALL_CLOSED if that was due.
 */
void io_server_call_pin(struct io_server_call *call);
void io_server_call_unpin(void *arg);

/*
 * Gives a task to the readers' thread and takes a reference, which the task's done_cb has to drop. A call has at most
 * one such task at a time. Each address has its turn, however many tasks wait for others. If the rpc call
 * closes before a reader has begun the task, run_cb is never called, and done_cb is called at once: a client that opens
 * calls and resets them causes no reads and no queue of them.
 */
void io_server_call_read(struct io_server_call *call, struct io_task *task);
/* Has to be the first thing that the task's done_cb calls: from here on the call has no task. */
void io_server_call_was_read(struct io_server_call *call);

void io_server_call_ref(struct io_server_call *call);
/* Drops a reference. The last one may go only when neither the rpc library nor the core has the call any more. */
void io_server_call_unref(struct io_server_call *call);

/* ---- answering: nothing is sent once the call is finished or closed ---- */

/* Takes the core's answer: sends its error, or has the kind's reply_cb send the answer. */
void io_server_call_answer(struct io_server_call *call, const struct ampd_reply *reply);

/* Ends the call with an error that is not the core's: one at hand, or one made of a code, a reason and a text. */
void io_server_call_fail(struct io_server_call *call, const struct amp_error *error);
void io_server_call_refuse(struct io_server_call *call, int code, const char *reason, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/*
 * Answers with one message and the status OK. `encoded` is what encoding the message into `buf` returned; if it is not
 * 0, the call ends with that error. The buffer is closed in any case.
 */
void io_server_call_reply_buf(struct io_server_call *call, struct amp_buf *buf, int encoded);

/* Ends a stream with the status OK; no further message is sent. */
void io_server_call_end(struct io_server_call *call);

#endif
