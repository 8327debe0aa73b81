/*
 * The content of a message between shards as bytes, both ways. Numbers are little-endian and as wide as in their
 * struct; floats and doubles are their bits; lists and texts have their count before them. The order is that of the
 * structs.
 *
 * Shards speak with each other only if they have the same AMPD_PEER_FORMAT: it rises whenever a struct that travels
 * changes, and by itself with each row of proto/spec_fields.def.
 */
#ifndef AMPD_IO_PEER_BYTES_H
#define AMPD_IO_PEER_BYTES_H

#include "base/buf.h"
#include "base/err.h"
#include "proto/spec_fields.h"
#include "server/core/wire/messages.h"

/* One more for each field of a specification beyond the 45 that it had with the number 10. */
#define AMPD_SPEC_NUMBER(...) +1
#define AMPD_SPEC_CHOICE(...) +1
enum {
    AMPD_PEER_FORMAT = 12 - 45
#define AMPD_SPEC_PARTS AMPD_SPEC_ALL
#include "proto/spec_fields.def"
};
#undef AMPD_SPEC_NUMBER
#undef AMPD_SPEC_CHOICE

/*
 * Longest content. SYNCED is the longest: a specification of AMPD_PARAMETERS_MAX parameters has less than 2 MiB, and
 * AMPD_SYNC_CHECKPOINTS_MAX checkpoints of AMPD_PARTS_MAX parts have less than 1.5.
 */
#define AMPD_PEER_BODY_MAX ((size_t)4 << 20)

/*
 * Appends the content (not addresses, model and epoch) of a message. 0, AMP_EINVAL (it is none), AMP_EEXHAUSTED,
 * AMP_ENOMEM.
 */
int io_peer_body_encode(const struct ampd_message *message, struct amp_buf *out);

/*
 * Reads a content into *message, whose type is set. All of the bytes must be used, and every count, text and choice be
 * within its bound. On success what it owns is the message's (ampd_message_free). AMP_EINVAL with a text, AMP_ENOMEM.
 */
int io_peer_body_decode(struct ampd_message *message, const uint8_t *data, size_t size, struct amp_error *error);

/* What a store has, record by record, for a shard that has nothing (FetchRows). Each belongs to the MODEL before it. */
enum io_peer_item_kind {
    IO_ITEM_FENCE = 1,  /* shard, fence */
    IO_ITEM_MODEL,      /* spec, created_us, deleting */
    IO_ITEM_EPOCH,      /* epoch, row */
    IO_ITEM_ROW,        /* row: a step's or an operator action's; all by (epoch, step, sequence) */
    IO_ITEM_CHECKPOINT, /* checkpoint */
    IO_ITEM_END,        /* that was all */
};

struct io_peer_item {
    enum io_peer_item_kind kind;
    uint32_t shard;
    struct ampd_fence fence;
    struct ampd_model_spec spec; /* decoded: owned (ampd_model_spec_clear) */
    int64_t created_us;
    bool deleting;
    struct ampd_epoch_record epoch;
    struct ampd_step_row row;
    struct ampd_checkpoint_record checkpoint;
};

/* Appends an item, its size before it. Errors as io_peer_body_encode's; *out is as before on failure. */
int io_peer_item_encode(const struct io_peer_item *item, struct amp_buf *out);

/*
 * Reads the first item of some bytes; *used is its size, 0: it is not whole yet. Errors as io_peer_body_decode's;
 * nothing is the caller's then.
 */
int io_peer_item_decode(struct io_peer_item *item, const uint8_t *data, size_t size, size_t *used,
                        struct amp_error *error);

#endif
