/* The receiving half of a call: DATA bytes become messages. On the loop's thread; internal to rpc/h2. */
#ifndef ARPC_H2_RECEIVE_H
#define ARPC_H2_RECEIVE_H

#include "base/buf.h"
#include "rpc/h2/budget.h"
#include "rpc/wire/frame.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arpc_call;
struct arpc_inflate;

/* Window of a new stream in bytes, unless config.stream_window is less: one Push header and some blocks. */
#define ARPC_INITIAL_WINDOW ((size_t)256 << 10)

/* An inflated message is given to a handler of pieces in three callbacks, each of which may pause: the next one. */
enum arpc_stage { ARPC_STAGE_NONE, ARPC_STAGE_BEGIN, ARPC_STAGE_BYTES, ARPC_STAGE_END };

struct arpc_inbound {
    struct arpc_deframer deframer; /* finds the messages in the stream */
    size_t max_message;            /* largest message in bytes */
    struct amp_buf buffered;       /* bytes received while the call was paused */
    struct arpc_charge waiting;    /* for `buffered`, until window_grown */
    struct amp_buf message;        /* the message that is being collected, or was inflated */
    const uint8_t *whole;          /* the message if it lies in one piece in the receive buffer; else NULL */
    size_t message_size;           /* bytes of the message under way */
    struct arpc_inflate *inflate;  /* of the compressed message that is being received, or NULL */
    size_t user_holds;             /* bytes of the message that the user keeps (arpc_call_holds) */
    struct arpc_charge unfinished; /* for the message under way */
    enum arpc_stage stage;         /* the next callback of an inflated message */
    unsigned messages;             /* number of messages that have begun */
    bool single_inbound;           /* exactly one message is to come */
    bool paused;                   /* between arpc_call_pause and arpc_call_resume */
    bool resumed;                  /* buffered bytes are to be delivered by arpc_link_flush */
    bool window_grown;             /* the stream has its full window, for it moves bulk data */
    int64_t slow_since_ms;         /* since when slow_bytes count; INT64_MAX: no message is awaited */
    size_t slow_bytes;             /* bytes of the message received since then */
    size_t taken;                  /* bytes that were delivered or dropped */
    bool end_seen;                 /* END_STREAM has arrived */
};

/*
 * Takes DATA bytes: calls the message callbacks, and buffers what a paused call cannot take. Returns how many bytes
 * were delivered or dropped.
 */
size_t arpc_call_receive(struct arpc_call *call, const uint8_t *data, size_t size);
/* After a resume: delivers buffered bytes. Returns how many were delivered or dropped. */
size_t arpc_call_receive_buffered(struct arpc_call *call);
/* Where the user wants the next bytes of the message, and in *size how many at most. NULL: anywhere. */
uint8_t *arpc_call_receive_buffer(struct arpc_call *call, size_t *size);
/*
 * If END_STREAM has arrived and all before it is delivered: ends the remote side (`half_close`, or the result), once.
 */
void arpc_call_receive_end(struct arpc_call *call);
/* Gives the collected message to the user's `message`, and frees it. */
void arpc_call_deliver(struct arpc_call *call);
/* Frees the message under way, and ends its charge. */
void arpc_call_forget_message(struct arpc_call *call);

#endif
