/* The receiving half of a call. Internal to rpc/h2. */
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

/* Window of a new stream, where config.stream_window is not less: one Push header and some blocks. */
#define ARPC_INITIAL_WINDOW ((size_t)256 << 10)

/*
 * An inflated message is given to a handler of pieces as three callbacks, at each of which it may pause: which is next.
 */
enum arpc_stage { ARPC_STAGE_NONE, ARPC_STAGE_BEGIN, ARPC_STAGE_BYTES, ARPC_STAGE_END };

struct arpc_inbound {
    struct arpc_deframer deframer;
    size_t max_message;
    struct amp_buf buffered; /* received while paused */
    struct arpc_charge waiting;
    struct amp_buf message; /* being collected */
    const uint8_t *whole;   /* the message lies in one piece in the receive buffer */
    size_t message_size;
    struct arpc_inflate *inflate; /* of the compressed message that is being received, or NULL */
    size_t user_holds;            /* what the user has of it in memory of his own */
    struct arpc_charge unfinished;
    enum arpc_stage stage; /* what of a message that was inflated is to be told next */
    unsigned messages;     /* begun so far */
    bool single_inbound;   /* exactly one message is to come */
    bool paused;
    bool resumed; /* buffered bytes are to be delivered */
    bool window_grown;
    int64_t slow_since_ms; /* since when slow_bytes are counted; INT64_MAX: no message is awaited */
    size_t slow_bytes;
    size_t taken;  /* bytes that the user is done with */
    bool end_seen; /* END_STREAM is here */
};

/* Takes DATA bytes; returns how many are done with, the others are buffered. */
size_t arpc_call_receive(struct arpc_call *call, const uint8_t *data, size_t size);
/* Delivers buffered bytes after a resume; returns how many are done with. */
size_t arpc_call_receive_buffered(struct arpc_call *call);
/* Where the user wants the next bytes of the stream, and in *size how many; NULL: anywhere. */
uint8_t *arpc_call_receive_buffer(struct arpc_call *call, size_t *size);
/* Tells the end of the peer's messages, if it has come and nothing is buffered. */
void arpc_call_receive_end(struct arpc_call *call);
/* Gives the collected message to the user. */
void arpc_call_deliver(struct arpc_call *call);
/* Frees what there is of the message under way. */
void arpc_call_forget_message(struct arpc_call *call);

#endif
