/*
 * The sending half of a call: a queue of messages, whose bytes go into batches. On the loop's thread; in rpc/h2 only.
 */
#ifndef ARPC_H2_SEND_H
#define ARPC_H2_SEND_H

#include "base/list.h"
#include "rpc/arpc_call.h"
#include "rpc/h2/batch.h"
#include "rpc/h2/budget.h"
#include "rpc/h2/fields.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arpc_call;
struct arpc_link;

/* A message on its way out: the prefix, the copied head, then the body, borrowed or copied behind the head. */
struct arpc_out {
    struct amp_list node;
    struct arpc_call *call; /* referenced */
    arpc_release_cb release_cb;
    void *release_arg;
    const uint8_t *body;
    size_t head_size; /* with the prefix */
    size_t size;      /* head and body */
    size_t given;     /* bytes that were put into a batch, which may have left already */
    unsigned pins;    /* batches that point into it; it is not freed before they are done */
    bool blank;       /* zeros are sent in place of what has not left of the body (arpc_call_blank) */
    uint8_t head[];
};

struct arpc_outbound {
    struct amp_list messages;    /* of struct arpc_out, in order; some bytes of the first may have left */
    struct amp_list sent;        /* client: messages that were put into batches as a whole, kept to be sent again */
    size_t retained;             /* bytes kept to be sent again: all of `sent`, and what has left of `messages` */
    struct arpc_batch *batch;    /* the batch under way if it has bytes of this call, also when GONE; else NULL */
    size_t unsent;               /* bytes that were not put into a batch yet */
    size_t queued;               /* bytes that have not left the process */
    size_t copied;               /* bytes of messages that are copies as a whole, until they are freed */
    struct arpc_charge copies;   /* for `copied` */
    size_t framed;               /* bytes of the frame that nghttp2 has begun, and will ask for */
    bool was_high;               /* queued was above ARPC_LOW_WATER: `writable` is due when it falls to that */
    bool head_submitted;         /* nghttp2 has the HEADERS of the request or response */
    bool compress;               /* server: answers above some size are sent compressed */
    bool deferred;               /* nghttp2 waits for nghttp2_session_resume_data before it asks for data again */
    bool ended;                  /* this side sends no more messages */
    bool last_submitted;         /* server: nghttp2 has the trailers, or the head of an answer without any */
    bool trailers_sent;          /* server: the trailers have left */
    bool reset;                  /* the stream is to end early: client by RST_STREAM, server by its trailers */
    bool reset_done;             /* client: nghttp2 has the RST_STREAM */
    uint32_t reset_code;         /* client: the HTTP/2 error code of the RST_STREAM */
    int64_t progress_ms;         /* since when progress_bytes count: the queue was empty, or enough bytes had left */
    size_t progress_bytes;       /* bytes put into batches since then */
    struct arpc_fields initial;  /* server: metadata of the response's head; client: request metadata */
    struct arpc_fields trailing; /* server: metadata of the trailers */
};

/* Puts `size` bytes into the batch, which has room for them; at most call->out.unsent. */
void arpc_out_give(struct arpc_call *call, struct arpc_batch *batch, size_t size);
/*
 * How many bytes, at most `limit`, one DATA frame may take now. *slots gets an upper bound of the slots that
 * arpc_out_give then needs in the batch.
 */
size_t arpc_out_slots(struct arpc_call *call, size_t limit, size_t *slots);
/*
 * Whether a message that was refused (AMP_EEXHAUSTED) may be sent: half of the limits of link and call is free, or a
 * server's call has nothing queued.
 */
bool arpc_call_has_room(const struct arpc_call *call);
/* Drops all messages in the queue; release callbacks come at once, or when the batch that has bytes of one is done. */
void arpc_out_drop(struct arpc_call *call);
/* Server, for a call that was cancelled: drops what the frame that nghttp2 has begun does not need. */
void arpc_out_drop_useless(struct arpc_call *call);
/* Drops the messages that were kept to be sent again. */
void arpc_out_forget(struct arpc_call *call);
/* For the next attempt: queues all messages again from their first byte. No batch may have bytes of the call. */
void arpc_out_rewind(struct arpc_call *call);
/* Copies bytes into the batch's scratch, which must have room for them (asserted), and adds them. Returns the copy. */
void *arpc_batch_scratch(struct arpc_batch *batch, const void *data, size_t size);

#endif
