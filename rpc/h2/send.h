/* The sending half of a call. Internal to rpc/h2. */
#ifndef ARPC_H2_SEND_H
#define ARPC_H2_SEND_H

#include "base/list.h"
#include "rpc/arpc_call.h"
#include "rpc/h2/batch.h"
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
    size_t given;     /* bytes that are in batches, or were */
    unsigned pins;    /* batches that point into it */
    bool blank;       /* zeros go in place of the body that has not left */
    uint8_t head[];
};

struct arpc_outbound {
    struct amp_list messages; /* of struct arpc_out, in order; the first may have left in part */
    struct amp_list sent;     /* client: messages all of which is in batches, or was, kept to be sent again */
    size_t retained;          /* bytes of `sent` and of what has left of `messages` */
    struct arpc_batch *batch; /* the one under way, if it has bytes of this call, also when GONE; else NULL */
    size_t unsent;            /* bytes not yet given to a batch */
    size_t queued;            /* bytes that have not left */
    bool was_high;            /* queued was above the low-water mark: `writable` is due when it falls */
    bool head_submitted;      /* response or request HEADERS are with nghttp2 */
    bool compress;            /* server: answers of some size go compressed */
    bool deferred;            /* nghttp2 waits for arpc_call's word that there is data */
    bool ended;               /* no more messages from this side */
    bool trailers_sent;
    bool reset; /* RST_STREAM is wanted */
    bool reset_done;
    uint32_t reset_code;
    int64_t progress_ms;         /* since when progress_bytes are counted: the queue was empty, or it went well */
    size_t progress_bytes;       /* given to batches since then */
    struct arpc_fields initial;  /* of the head; client: request metadata */
    struct arpc_fields trailing; /* server */
};

/* Moves `size` unsent bytes into the batch. */
void arpc_out_give(struct arpc_call *call, struct arpc_batch *batch, size_t size);
/*
 * How many bytes, at most `limit`, one DATA frame may take now; *slots: an upper bound of what arpc_out_give then adds.
 */
size_t arpc_out_slots(struct arpc_call *call, size_t limit, size_t *slots);
/* Whether messages that were refused for want of room may be tried again. */
bool arpc_call_has_room(const struct arpc_call *call);
/* Drops what is not in a batch. */
void arpc_out_drop(struct arpc_call *call);
/* Drops what was kept to be sent again. */
void arpc_out_forget(struct arpc_call *call);
/* Everything is to be sent once more; no batch has bytes of it. */
void arpc_out_rewind(struct arpc_call *call);
/* Adds a copy of the bytes, which fit. */
void *arpc_batch_scratch(struct arpc_batch *batch, const void *data, size_t size);

#endif
