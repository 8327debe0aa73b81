/*
 * Inside of the codec: the walk over bytes from a peer by the description of their message, and nanopb behind it.
 *
 * Bytes are first walked by ampd_codec_check, which knows the names; nanopb sees only what has passed. How the
 * description of a message, and its conversion, are made: codec_messages.h.
 */
#ifndef AMPD_PROTO_CODEC_H
#define AMPD_PROTO_CODEC_H

#include "base/buf.h"
#include "base/err.h"
#include "proto/msg.h"

#include "ampd/v1/common.pb.h"

#include <pb_decode.h>
#include <pb_encode.h>
#include <stdlib.h>
#include <string.h>

/* Most fields of a message: the walk counts them on its stack. ModelSpec has 23. */
#define AMPD_CODEC_FIELDS_MAX 32

enum ampd_codec_kind {
    AMPD_CODEC_BOOL,
    AMPD_CODEC_INT32,
    AMPD_CODEC_INT64,
    AMPD_CODEC_UINT32,
    AMPD_CODEC_UINT64,
    AMPD_CODEC_UENUM,
    AMPD_CODEC_FLOAT,
    AMPD_CODEC_FIXED64,
    AMPD_CODEC_DOUBLE,
    AMPD_CODEC_STRING,
    AMPD_CODEC_BYTES,
    AMPD_CODEC_MESSAGE,
};

struct ampd_codec_desc;

/* One field of a message. */
struct ampd_codec_field {
    uint32_t tag;
    const char *name;
    enum ampd_codec_kind kind;
    bool repeated;
    size_t max;                        /* bytes of a string or of bytes; elements of a repeated field; else 0 */
    const struct ampd_codec_desc *sub; /* of a submessage */
};

/* One message. */
struct ampd_codec_desc {
    const char *name; /* "ampd_v1_JoinRequest" */
    const struct ampd_codec_field *fields;
    size_t count;
    /* What the types do not say; may be NULL. NULL, or what is wrong. The bytes have passed all other tests. */
    const char *(*check_cb)(const uint8_t *data, size_t size);
};

/*
 * Walks a serialized message and all of its submessages. 0, or AMP_EINVAL with a text that names the field: not the
 * wire format, a wrong type, a value or text or list beyond its bound, a text that is no UTF-8 or holds a zero
 * byte, a submessage that comes twice.
 */
int ampd_codec_check(const struct ampd_codec_desc *desc, const uint8_t *data, size_t size, struct amp_error *error);

/* Serializes nanopb's struct behind *out. */
int ampd_codec_encode(const struct ampd_codec_desc *desc, const pb_msgdesc_t *fields, const void *from,
                      struct amp_buf *out);

/*
 * Checks, then decodes into nanopb's prepared struct. On failure, what the callbacks allocated is the caller's to
 * free.
 */
int ampd_codec_decode(const struct ampd_codec_desc *desc, const pb_msgdesc_t *fields, void *to, const void *data,
                      size_t size, struct amp_error *error);

/*
 * Makes room for one more item in a list of `count` items of `item_size`: NULL without memory, and items is
 * unchanged.
 */
void *ampd_codec_grow(void *items, size_t count, size_t item_size);

/* What a callback says without memory; ampd_codec_decode knows it by its address. */
extern const char ampd_codec_no_memory[];

/* Callbacks of bytes; the argument is a struct ampd_msg_bytes. */
bool ampd_codec_bytes_out(pb_ostream_t *stream, const pb_field_t *field, void *const *arg);
bool ampd_codec_bytes_in(pb_istream_t *stream, const pb_field_t *field, void **arg);

#endif
