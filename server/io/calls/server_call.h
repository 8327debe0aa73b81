/*
 * A call as server/io holds it: between an arpc call and the core's call of a number.
 *
 * It is in the server's table from io_server_call_open until both sides are done with it: rpc has called `closed`, and
 * the core has answered or been told CALL_CLOSED. `refs` counts who points to it: the arpc call, tasks on threads,
 * bodies being sent. All on the loop.
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

/* What differs from kind to kind. Only `reply` must be there for calls that the core answers. */
struct io_server_call_ops {
    /* The core's answer. The default sends its error; only answers without one get here. */
    void (*reply_cb)(struct io_server_call *call, const struct ampd_reply *reply);
    /* A grant, blocks or a revocation for this call. */
    void (*output_cb)(struct io_server_call *call, const struct ampd_output *output);
    /* The memory goes: frees what the kind owns. May be NULL. */
    void (*free_cb)(struct io_server_call *call);
};

/* The first member of each kind of call. */
struct io_server_call {
    struct amp_list node; /* in io_server_calls */
    struct ampd_server *server;
    struct arpc_call *rpc; /* NULL once it is over */
    const struct io_server_call_ops *ops;
    uint64_t id;
    unsigned refs;
    unsigned pins;           /* bodies of the model's memory that rpc still holds */
    bool at_core;            /* the core has it: neither answered nor closed */
    bool finished;           /* rpc has its status */
    bool detached;           /* answered before the core has: the core is not told when rpc is over */
    struct ampd_model *held; /* the model whose specification it looks at, or NULL */
    struct io_task *reading; /* with the readers, and of no use to anybody else: taken back when rpc is over; or NULL */
};

/* The table has short chains up to tens of thousands of calls. */
#define IO_SERVER_CALL_BUCKETS 1024

/* All calls there are. */
struct io_server_calls {
    struct amp_list buckets[IO_SERVER_CALL_BUCKETS]; /* io_server_call, by id */
    uint64_t last;                                   /* id given last */
    unsigned readings;                               /* ReadCheckpoint streams (read_checkpoint.c) */
    unsigned fetchings;                              /* FetchRows streams (fetch_rows.c) */
};

void io_server_calls_init(struct io_server_calls *calls);

/*
 * Makes the call object of an arpc call in memory of `size` bytes (zeroed) and makes it the arpc call's user. NULL: out
 * of memory or draining; the arpc call is then failed.
 */
struct io_server_call *io_server_call_open(struct arpc_call *rpc, size_t size, const struct io_server_call_ops *ops);

/* For a handler's callbacks: the object, or NULL if there is none (any more). */
struct io_server_call *io_server_call_of(struct arpc_call *rpc);

/* The call of a number, or NULL. */
struct io_server_call *io_server_call_find(struct ampd_server *server, uint64_t id);

/* Handlers' `closed`: tells the core if it still has the call and no memory of it is in use, and lets go. */
void io_server_call_closed(struct arpc_call *rpc, const struct arpc_result *result);

/* Hands the core an event of this call. */
void io_server_call_event(struct io_server_call *call, struct ampd_event *event);

/*
 * Release callback for bodies of a model's memory: `arg` is the call, whose pins and refs were raised by
 * io_server_call_pin.
 */
void io_server_call_pin(struct io_server_call *call);
void io_server_call_unpin(void *arg);

/*
 * Gives the readers a task of this call alone, which holds a reference until done_cb has run. When rpc is over before a
 * reader has begun, done_cb is called at once: who opens calls and resets them makes neither reads nor a queue of them.
 */
void io_server_call_read(struct io_server_call *call, struct io_task *task);
/* In its done_cb, first. */
void io_server_call_was_read(struct io_server_call *call);

void io_server_call_ref(struct io_server_call *call);
void io_server_call_unref(struct io_server_call *call);

/* ---- answering; no effect when the call is over ---- */

/* The core has answered: sends the error, or calls the kind's reply_cb. */
void io_server_call_answer(struct io_server_call *call, const struct ampd_reply *reply);

/* Fails the call for a reason of the server's own, not the core's. */
void io_server_call_fail(struct io_server_call *call, const struct amp_error *error);
void io_server_call_refuse(struct io_server_call *call, int code, const char *reason, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* OK with one message; the buffer is closed. `encoded` is what encoding it returned: not 0 fails the call. */
void io_server_call_reply_buf(struct io_server_call *call, struct amp_buf *buf, int encoded);

/* OK without a further message. */
void io_server_call_end(struct io_server_call *call);

#endif
