/*
 * Encodes and decodes the content of messages between shards, and the records of a store for FetchRows. Numbers are
 * little-endian and as wide as in their struct; floats and doubles are their bits; a list or text follows its count.
 * The order is that of the members of the structs.
 *
 * Two shards talk to each other only if they have the same AMPD_PEER_FORMAT. It must be raised whenever a struct that
 * is sent changes; each row added to proto/spec_fields.def raises it automatically. All functions may run on any
 * thread.
 */
#ifndef AMPD_IO_PEER_BYTES_H
#define AMPD_IO_PEER_BYTES_H

#include "base/buf.h"
#include "base/err.h"
#include "proto/spec_fields.h"
#include "server/core/wire/messages.h"

/*
 * The number of the format: 18 with the 45 fields that a specification had then, and one more for each field that was
 * added since. To raise it for another reason, raise the 18.
 */
#define AMPD_SPEC_NUMBER(...) +1
#define AMPD_SPEC_CHOICE(...) +1
enum {
    AMPD_PEER_FORMAT = 18 - 45
#define AMPD_SPEC_PARTS AMPD_SPEC_ALL
#include "proto/spec_fields.def"
};
#undef AMPD_SPEC_NUMBER
#undef AMPD_SPEC_CHOICE

/*
 * Longest content in bytes. SYNCED is the longest: a specification of AMPD_PARAMETERS_MAX parameters takes less than
 * 2 MiB, and AMPD_SYNC_CHECKPOINTS_MAX checkpoints of AMPD_PARTS_MAX parts take less than 1.5 MiB.
 */
#define AMPD_PEER_BODY_MAX ((size_t)4 << 20)

/*
 * Appends the content of a message; what is in its envelope (shards, fences, model, epoch, round) is not part of it. 0;
 * AMP_EINVAL: the type or a value is not valid; AMP_EEXHAUSTED: *out is full; AMP_ENOMEM.
 */
int io_peer_body_encode(const struct ampd_message *message, struct amp_buf *out);

/*
 * Reads a content into *message, whose type is set. All bytes must be used, and every count, text and choice must be
 * within its bound. The message owns the memory that is made, also after an error (ampd_message_free). 0; AMP_EINVAL
 * with a text; AMP_ENOMEM.
 */
int io_peer_body_decode(struct ampd_message *message, const uint8_t *data, size_t size, struct amp_error *error);

/*
 * The records of a store, which a shard with an empty store fetches from another one (FetchRows). Epochs, rows and
 * checkpoints belong to the last MODEL before them.
 */
enum io_peer_item_kind {
    IO_ITEM_FENCE = 1,  /* uses shard, fence */
    IO_ITEM_MODEL,      /* uses spec, created_us, deleting */
    IO_ITEM_EPOCH,      /* uses epoch, row */
    IO_ITEM_ROW,        /* uses row: of a step or an operator's action; they come in order of (epoch, step, sequence) */
    IO_ITEM_CHECKPOINT, /* uses checkpoint */
    IO_ITEM_END,        /* no further item follows */
};

/* One record; `kind` says which other members are set. */
struct io_peer_item {
    enum io_peer_item_kind kind;
    uint32_t shard;
    struct ampd_fence fence;
    struct ampd_model_spec spec; /* if decoded, owned by the item: free it by ampd_model_spec_clear */
    int64_t created_us;
    bool deleting;
    struct ampd_epoch_record epoch;
    struct ampd_step_row row;
    struct ampd_checkpoint_record checkpoint;
};

/* Appends an item, preceded by its size. Has the errors of io_peer_body_encode; after one *out is as before. */
int io_peer_item_encode(const struct io_peer_item *item, struct amp_buf *out);

/*
 * Reads the first item in some bytes. *used: how many bytes it took; 0: the item is not complete yet, and *item is not
 * set. Has the errors of io_peer_body_decode; after one nothing is the caller's to free.
 */
int io_peer_item_decode(struct io_peer_item *item, const uint8_t *data, size_t size, size_t *used,
                        struct amp_error *error);

#endif
