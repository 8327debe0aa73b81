/*
 * The stream messages that carry tensor bytes (LoadRequest, PullResponse, PushRequest): a reader that puts the bytes
 * straight where they go, and a writer that leaves them where they lie.
 *
 * All three have the same fields: header = 1, index = 2, crc32c = 3, trailer = 4 (PushRequest only), placed = 5 (blocks
 * that lie in shared memory; not LoadRequest), data = 15. A stream is one header, then blocks or what is placed, then
 * at most one trailer, each a message of its own.
 *
 * The reader takes the bytes of a message in pieces of any length; it is not reentrant, and one reader belongs to one
 * thread at a time. Nothing is allocated for a block whose index and crc32c come before its data, the order that every
 * protobuf writer uses; for another order the data is kept until the message ends.
 */
#ifndef AMPD_PROTO_BLOCK_H
#define AMPD_PROTO_BLOCK_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Most bytes of one block: 65536 elements of 4 bytes. */
#define AMPD_BLOCK_DATA_MAX 262144

/* Most bytes of a header or trailer: 64 KiB of user state and its small fields; 8192 indexes of up to 5 bytes. */
#define AMPD_BLOCK_PART_MAX 73728

/* Most bytes that ampd_block_head_encode writes: three tags, two varints of 32 bits, the checksum. */
#define AMPD_BLOCK_HEAD_MAX 17

/* Which submessage of a stream message; the value is the field number. */
enum ampd_block_part { AMPD_BLOCK_HEADER = 1, AMPD_BLOCK_TRAILER = 4, AMPD_BLOCK_PLACED = 5 };

/* A block of a stream, as its sender describes it. */
struct ampd_block {
    uint32_t index;  /* within the flat space of the model */
    uint32_t crc32c; /* of data, as sent */
    uint32_t size;   /* bytes of data */
};

/*
 * Who uses the reader. Each returns 0, or a negative code with a text in *error (never NULL), which ends the
 * stream: the reader's function returns it. None may call the reader, but ampd_block_reader_discard and _copy_by.
 */
struct ampd_block_reader_ops {
    /* The header, what is placed, or the trailer, for ampd_msg_..._decode; the bytes are valid during the call only. */
    int (*part_cb)(void *arg, enum ampd_block_part part, const uint8_t *data, size_t size, struct amp_error *error);
    /*
     * A block begins. *destination (NULL before) gets where block->size bytes go, which must stay valid until
     * `end`, the failure of the reader, or ampd_block_reader_discard; or stays NULL: the bytes are dropped and
     * `end` does not come.
     */
    int (*begin_cb)(void *arg, const struct ampd_block *block, uint8_t **destination, struct amp_error *error);
    /* All bytes are in their place; `intact` tells whether their checksum is the one that was sent. */
    int (*end_cb)(void *arg, const struct ampd_block *block, bool intact, struct amp_error *error);
};

/* Copies as memcpy does. */
typedef void ampd_block_copy_fn(void *to, const void *from, size_t size);

/* What the reader is at within a message; see block_reader.c. */
enum ampd_block_reader_state {
    AMPD_BLOCK_READER_IDLE, /* between messages */
    AMPD_BLOCK_READER_TAG,
    AMPD_BLOCK_READER_VARINT,
    AMPD_BLOCK_READER_FIXED,
    AMPD_BLOCK_READER_LENGTH,
    AMPD_BLOCK_READER_COLLECT, /* a header or trailer */
    AMPD_BLOCK_READER_DATA,    /* data on its way to its destination */
    AMPD_BLOCK_READER_KEEP,    /* data that came before its index or crc32c */
    AMPD_BLOCK_READER_SKIP,    /* an unknown field, or data that nobody wants */
    AMPD_BLOCK_READER_FAILED,
};

/* One stream. Caller memory; all fields are the reader's own. */
struct ampd_block_reader {
    const struct ampd_block_reader_ops *ops;
    void *arg;
    bool has_trailer; /* the stream's messages may have one */
    enum ampd_block_reader_state state;
    int code;            /* of the failure, in FAILED */
    bool header_seen;    /* the stream has had its header */
    bool trailer_seen;   /* the stream has had its trailer */
    uint32_t seen;       /* bit n: field n of this message has come */
    bool kept;           /* data of this message is in the buffer */
    size_t message_left; /* bytes of this message still to come */
    uint32_t field;      /* number of the field under way */
    uint64_t varint;     /* the varint or fixed value under way */
    uint32_t varint_bits;
    size_t field_left; /* bytes of the field under way still to come */
    struct ampd_block block;
    uint8_t *destination;
    ampd_block_copy_fn *copy; /* NULL: memcpy */
    uint32_t crc;             /* of the bytes put to the destination */
    struct amp_buf buffer;    /* a header, a trailer, or data that came too early */
};

/* Readies a reader for a new stream; allocates nothing. `ops`, `arg` outlive it. has_trailer: of PushRequest alone. */
void ampd_block_reader_init(struct ampd_block_reader *reader, const struct ampd_block_reader_ops *ops, void *arg,
                            bool has_trailer);

/* Frees what the reader holds. A block under way gets no `end`. */
void ampd_block_reader_close(struct ampd_block_reader *reader);

/*
 * A message of `size` bytes begins; its bytes follow by ampd_block_reader_bytes, then ampd_block_reader_end. 0 or, for
 * all three: AMP_EINVAL (not such a message, or not in the order of a stream; the text names the field),
 * AMP_ENOMEM, or the code of a callback. After a failure each further call returns the same code.
 */
int ampd_block_reader_begin(struct ampd_block_reader *reader, size_t size, struct amp_error *error);
int ampd_block_reader_bytes(struct ampd_block_reader *reader, const uint8_t *data, size_t size,
                            struct amp_error *error);
int ampd_block_reader_end(struct ampd_block_reader *reader, struct amp_error *error);

/*
 * From now on nothing is written to the destination of the block under way, and its `end` does not come; the stream
 * goes on. No effect when no block is under way. Also from inside a callback.
 */
void ampd_block_reader_discard(struct ampd_block_reader *reader);

/*
 * From now on `copy`, which does what memcpy does, puts the bytes to their places: one that suits tensors which are
 * larger than the caches. Also from inside a callback.
 */
void ampd_block_reader_copy_by(struct ampd_block_reader *reader, ampd_block_copy_fn *copy);

/*
 * Where the next bytes of the block under way belong, and in *size how many; NULL if they belong nowhere. Who can put
 * bytes there itself and then gives them to ampd_block_reader_bytes from there saves their copy; what was put there and
 * not given is of no effect. Valid until the next call with this reader.
 */
uint8_t *ampd_block_reader_place(const struct ampd_block_reader *reader, size_t *size);

/* Whether the stream has had its header. */
bool ampd_block_reader_has_header(const struct ampd_block_reader *reader);

/*
 * Writes all of a block's message but its data, which must follow at once: head_size + size bytes are the message.
 * Returns head_size. size is at most AMPD_BLOCK_DATA_MAX.
 */
size_t ampd_block_head_encode(const struct ampd_block *block, uint8_t head[AMPD_BLOCK_HEAD_MAX]);

/*
 * Appends the message that holds a header or trailer alone; `body` is what ampd_msg_..._encode wrote. 0, AMP_EINVAL
 * (over AMPD_BLOCK_PART_MAX), AMP_ENOMEM, AMP_EEXHAUSTED; *out is unchanged on failure.
 */
int ampd_block_part_encode(enum ampd_block_part part, const struct amp_buf *body, struct amp_buf *out);

#endif
