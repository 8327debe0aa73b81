/*
 * HTTP/2 frames as bytes, also those that nobody should send; and the frames of a server, as far as they matter. Test
 * only.
 */
#ifndef TESTS_ATTACKS_BYTES_H
#define TESTS_ATTACKS_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Growing bytes, and where stream ids stand in them: each is the first id of a round plus its offset. */
struct bytes {
    uint8_t *data;
    size_t size;
    size_t capacity;
    struct bytes_id {
        size_t at;
        uint32_t offset;
    } * ids;
    size_t id_count;
    size_t id_capacity;
};

enum h2_type {
    H2_DATA,
    H2_HEADERS,
    H2_PRIORITY,
    H2_RST_STREAM,
    H2_SETTINGS,
    H2_PUSH_PROMISE,
    H2_PING,
    H2_GOAWAY,
    H2_WINDOW_UPDATE,
    H2_CONTINUATION,
    H2_ALTSVC = 10,
    H2_PRIORITY_UPDATE = 16,
    H2_UNKNOWN = 77
};
#define H2_ACK         1
#define H2_END_STREAM  1
#define H2_END_HEADERS 4

/* A stream id for bytes_frame: the round's first plus 2 * n; without it an id is as it is. */
#define ROUND_STREAM(n) (0x80000000u | (uint32_t)(n)*2)

void bytes_add(struct bytes *bytes, const void *data, size_t size);
void bytes_text(struct bytes *bytes, const char *text);
void bytes_zeros(struct bytes *bytes, size_t size);
void bytes_u32(struct bytes *bytes, uint32_t value);
void bytes_free(struct bytes *bytes);

/* A frame head, and the payload if there is any. */
void bytes_head(struct bytes *bytes, size_t size, unsigned type, unsigned flags, uint32_t stream);
void bytes_frame(struct bytes *bytes, unsigned type, unsigned flags, uint32_t stream, const void *payload, size_t size);
void bytes_u32_frame(struct bytes *bytes, unsigned type, uint32_t stream, uint32_t value);
void bytes_setting(struct bytes *bytes, unsigned id, uint32_t value); /* a SETTINGS frame with one entry */

/* Preface, empty SETTINGS and the answer to those of the server. */
void bytes_preface(struct bytes *bytes);

/* The header block of a request, nothing of it in HPACK's table. NULL: "application/grpc". */
void bytes_block(struct bytes *block, const char *path, const char *content_type);
void bytes_field(struct bytes *block, const char *name, const char *value);
/* HEADERS with that block, and nothing else. */
void bytes_request(struct bytes *bytes, uint32_t stream, const char *path, unsigned flags);
/* DATA with one gRPC message. */
void bytes_message(struct bytes *bytes, uint32_t stream, const void *message, size_t size, unsigned flags);

/* Writes the ids of a round. */
void bytes_set_round(struct bytes *bytes, uint32_t first);

/* What a server sent. */
struct frames_seen {
    uint8_t head[9];
    size_t head_used;
    size_t left;
    uint8_t payload[8]; /* the first of it */
    size_t payload_used;
    void (*frame_cb)(struct frames_seen *seen, unsigned type, unsigned flags, uint32_t stream, size_t size);
};
void frames_take(struct frames_seen *seen, const uint8_t *data, size_t size);

#endif
