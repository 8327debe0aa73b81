/* Reading and writing protobuf fields one by one, for servers whose messages have no bound. Test only. */
#ifndef TESTS_CONFORMANCE_FOREIGN_WIRE_H
#define TESTS_CONFORMANCE_FOREIGN_WIRE_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A piece of a message, borrowed. */
struct wire_span {
    const uint8_t *data;
    size_t size;
};

/* One field: `number` of a varint, or `bytes` of a length-delimited one; the other is zero. */
struct wire_field {
    uint32_t tag;
    uint64_t number;
    struct wire_span bytes;
};

/* Reads the next field and moves the span behind it; false at the end, or where the message is broken. */
bool wire_next(struct wire_span *rest, struct wire_field *field);

/* The last varint field of this tag, or 0; the last bytes field, or {NULL, 0}. */
uint64_t wire_number(struct wire_span message, uint32_t tag);
struct wire_span wire_bytes(struct wire_span message, uint32_t tag);

/* Append a field. Without memory the program ends: these are tests. */
void wire_put_number(struct amp_buf *out, uint32_t tag, uint64_t number);
void wire_put_bytes(struct amp_buf *out, uint32_t tag, const void *data, size_t size);
/* Tag and length of a bytes field whose bytes are appended by the caller, or sent by reference. */
void wire_put_head(struct amp_buf *out, uint32_t tag, size_t size);
/* A message that was built in `part`, which is closed. */
void wire_put_message(struct amp_buf *out, uint32_t tag, struct amp_buf *part);

#endif
