/*
 * Messages compressed by gzip (grpc-encoding "gzip"), which clients of other gRPC implementations may send and accept.
 * No I/O. zlib's memory is allocated for each message and freed after it.
 */
#ifndef ARPC_WIRE_INFLATE_H
#define ARPC_WIRE_INFLATE_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that a struct arpc_inflate takes: zlib's window and tables. */
#define ARPC_INFLATE_BYTES ((size_t)40 << 10)
struct arpc_inflate;

/* NULL: out of memory. */
struct arpc_inflate *arpc_inflate_new(void);
void arpc_inflate_free(struct arpc_inflate *state);

/*
 * Inflates the next compressed bytes and appends the result to `out`, up to out->max. Memory is allocated as the result
 * grows, so that a small message that claims to be a large one costs nothing. 0; AMP_EINVAL (the bytes are not gzip, or
 * go on after its end), AMP_EEXHAUSTED (the result is larger than out->max), AMP_ENOMEM.
 */
int arpc_inflate_take(struct arpc_inflate *state, const uint8_t *data, size_t size, struct amp_buf *out);

/*
 * Whether the end of the compressed bytes has come, with the right checksum. A message that ends before it is broken.
 */
bool arpc_inflate_is_whole(const struct arpc_inflate *state);

/*
 * Appends a message compressed by gzip. 0; AMP_EEXHAUSTED (out->max: it would be no smaller than that), AMP_ENOMEM;
 * then `out` is as before.
 */
int arpc_deflate(const uint8_t *data, size_t size, struct amp_buf *out);

#endif
