/* A batch: the bytes that a link gives its owner to send. Internal to rpc/. */
#ifndef ARPC_H2_BATCH_H
#define ARPC_H2_BATCH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct arpc_link;
struct arpc_out;

/* Slots of one writev, and what control frames and frame headers of one batch may take. */
#define ARPC_BATCH_SLOTS   512
#define ARPC_BATCH_SCRATCH ((size_t)80 << 10)
/*
 * Scratch that the next frames may need: the small pieces of a DATA frame, and a whole header frame of 16 KiB, which
 * nghttp2 may put behind it without returning.
 */
#define ARPC_FRAME_SCRATCH ((size_t)36 << 10)
/* A batch ends when it has this much: what is queued behind it in the socket delays every other stream. */
#define ARPC_BATCH_BYTES ((size_t)1 << 20)
/* Largest frame that is sent (nghttp2 keeps a buffer of that size even for NO_COPY); so no slot is longer. */
#define ARPC_FRAME_OUT_MAX ((size_t)256 << 10)

/* Bytes of one message in a batch: they lie in the slots from first_slot to the first_slot of the next pin. */
struct arpc_batch_pin {
    struct arpc_out *out;
    size_t bytes;
    size_t first_slot;
};

/*
 * Bytes to send, in order. Their memory stays valid until arpc_batch_done; but arpc_call_blank may make slots point
 * elsewhere meanwhile, so the writer has to read each slot again after anything else has run. A link has one batch at a
 * time.
 */
struct arpc_batch {
    size_t count;
    size_t bytes;
    size_t pin_count;
    size_t scratch_used;
    size_t most; /* bytes, after which it is full; at most ARPC_BATCH_BYTES; 0 is that too */
    struct iovec slots[ARPC_BATCH_SLOTS];
    struct arpc_batch_pin pins[ARPC_BATCH_SLOTS];
    uint8_t scratch[ARPC_BATCH_SCRATCH];
};

/* Fills an empty batch; it stays empty if there is nothing to send. 0; the link's error. */
int arpc_link_produce(struct arpc_link *link, struct arpc_batch *batch);

/* The batch has left, or never will: calls the release callbacks that are due, and empties it. */
void arpc_batch_done(struct arpc_link *link, struct arpc_batch *batch);

#endif
