/*
 * A call as this room holds it: between an arpc call and the core's call of a number.
 *
 * It is in the server's table from io_call_open until both sides are done with it: rpc has called `closed`, and the core
 * has answered or been told CALL_CLOSED. `refs` counts who points to it: the arpc call, tasks on threads, bodies being
 * sent. All on the loop.
 */
#ifndef AMPD_IO_CALL_H
#define AMPD_IO_CALL_H

#include "base/buf.h"
#include "rpc/arpc_server.h"
#include "server/io/server.h"

struct io_call;

/* What differs from kind to kind. Only `reply` must be there for calls that the core answers. */
struct io_call_ops {
    /* The core's answer. The default sends its error; only answers without one get here. */
    void (*reply_cb)(struct io_call *call, const struct ampd_reply *reply);
    /* A grant, blocks or a revocation for this call. */
    void (*output_cb)(struct io_call *call, const struct ampd_output *output);
    /* The memory goes: frees what the kind owns. May be NULL. */
    void (*free_cb)(struct io_call *call);
};

/* The first member of each kind of call. */
struct io_call {
    struct amp_list node; /* in server->calls */
    struct ampd_server *server;
    struct arpc_call *rpc; /* NULL once it is over */
    const struct io_call_ops *ops;
    uint64_t id;
    unsigned refs;
    unsigned pins; /* bodies of the model's memory that rpc still holds */
    bool at_core;  /* the core has it: neither answered nor closed */
    bool finished; /* rpc has its status */
    bool detached; /* answered before the core has: the core is not told when rpc is over */
    struct ampd_model *held; /* the model whose specification it looks at, or NULL */
    struct io_task *reading; /* with the readers, and of no use to anybody else: taken back when rpc is over; or NULL */
};

/*
 * Makes the call object of an arpc call in memory of `size` bytes (zeroed) and makes it the arpc call's user. NULL: out
 * of memory or draining; the arpc call is then failed.
 */
struct io_call *io_call_open(struct arpc_call *rpc, size_t size, const struct io_call_ops *ops);

/* For a handler's callbacks: the object, or NULL if there is none (any more). */
struct io_call *io_call_of(struct arpc_call *rpc);

/* The call of a number, or NULL. */
struct io_call *io_call_find(struct ampd_server *server, uint64_t id);

/* Handlers' `closed`: tells the core if it still has the call and no memory of it is in use, and lets go. */
void io_call_closed(struct arpc_call *rpc, const struct arpc_result *result);

/* Hands the core an event of this call. */
void io_call_event(struct io_call *call, struct ampd_event *event);

/* Release callback for bodies of a model's memory: `arg` is the call, whose pins and refs were raised by io_call_pin. */
void io_call_pin(struct io_call *call);
void io_call_unpin(void *arg);

/*
 * Gives the readers a task of this call alone, which holds a reference until done_cb has run. When rpc is over before a reader has
 * begun, done_cb is called at once: who opens calls and resets them makes neither reads nor a queue of them.
 */
void io_call_read(struct io_call *call, struct io_task *task);
/* In its done_cb, first. */
void io_call_was_read(struct io_call *call);

void io_call_ref(struct io_call *call);
void io_call_unref(struct io_call *call);

/* ---- answering; no effect when the call is over ---- */

/* The core has answered: sends the error, or calls the kind's reply_cb. */
void io_call_answer(struct io_call *call, const struct ampd_reply *reply);

/* Fails the call for a reason of this room's own. */
void io_call_fail(struct io_call *call, const struct amp_error *error);
void io_call_refuse(struct io_call *call, int code, const char *reason, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* OK with one message; the buffer is closed. `encoded` is what encoding it returned: not 0 fails the call. */
void io_call_reply_buf(struct io_call *call, struct amp_buf *buf, int encoded);

/* OK without a further message. */
void io_call_end(struct io_call *call);

/* A buffer for one message. */
struct amp_buf io_message_buf(void);

#endif
