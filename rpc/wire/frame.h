/* The five bytes in front of each gRPC message, across any split of the bytes. */
#ifndef ARPC_WIRE_FRAME_H
#define ARPC_WIRE_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Compressed flag, then the length in big-endian order (gRPC PROTOCOL-HTTP2, Length-Prefixed-Message). */
#define ARPC_PREFIX_SIZE 5

struct arpc_deframer {
    uint8_t prefix[ARPC_PREFIX_SIZE];
    uint8_t have;    /* bytes of the prefix that are here */
    bool in_message; /* the prefix is complete, the message is not */
    uint32_t left;   /* bytes of the message to come */
};

enum arpc_piece_kind {
    ARPC_PIECE_NONE,  /* all bytes are used up; more are needed */
    ARPC_PIECE_BEGIN, /* a message of `size` bytes begins */
    ARPC_PIECE_BYTES, /* `size` bytes of it at `data`, inside what was given */
    ARPC_PIECE_END    /* it is complete */
};

struct arpc_piece {
    enum arpc_piece_kind kind;
    uint8_t flag; /* of BEGIN: 0, or 1 for a compressed message; any other number is an error */
    const uint8_t *data;
    size_t size;
};

/* Writes the prefix of a message; flag: 1 if it is compressed. */
void arpc_prefix_write(uint8_t prefix[ARPC_PREFIX_SIZE], uint8_t flag, uint32_t size);

/* The next piece; returns how many of the bytes it used up (0 for END). Call again with the rest until NONE.
 */
size_t arpc_deframe(struct arpc_deframer *deframer, const uint8_t *data, size_t size, struct arpc_piece *piece);

/* Whether a stream that ends here ends between two messages. */
bool arpc_deframer_is_clean(const struct arpc_deframer *deframer);

#endif
