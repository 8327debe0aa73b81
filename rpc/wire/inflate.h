/*
 * Messages compressed by gzip (grpc-encoding "gzip"), which foreign clients may send and ask for. No I/O; zlib's memory
 * is that of one message under way, and goes with it.
 */
#ifndef ARPC_WIRE_INFLATE_H
#define ARPC_WIRE_INFLATE_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What inflates one message, and what it takes while that is under way: zlib's window and tables. */
#define ARPC_INFLATE_BYTES ((size_t)40 << 10)
struct arpc_inflate;

/* NULL: out of memory. */
struct arpc_inflate *arpc_inflate_new(void);
void arpc_inflate_free(struct arpc_inflate *state);

/*
 * Takes the next compressed bytes and appends to `out` what they are, as far as out->max: memory is taken as it fills,
 * so that a small message that claims to be a large one costs nothing. 0; AMP_EINVAL (the bytes are not gzip, or go on
 * after its end), AMP_EEXHAUSTED (it is more than out->max), AMP_ENOMEM.
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
