/* Lists of header fields: what was kept of the peer's metadata, and what is to be sent. */
#ifndef ARPC_H2_FIELDS_H
#define ARPC_H2_FIELDS_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Fields that one side may add to one header block: enough for any metadata of ours, small beside the peer's limit. */
#define ARPC_FIELDS_MAX       32
#define ARPC_FIELDS_BYTES_MAX 4096

/* Names and values lie one after another in `bytes`, each with a final zero; allocates nothing while empty. */
struct arpc_fields {
    struct amp_buf bytes;
    size_t count;
};

struct arpc_field {
    const char *name;
    size_t name_size;
    const uint8_t *value;
    size_t value_size;
};

/* An empty list, whose names and values may have max_bytes together. */
void arpc_fields_init(struct arpc_fields *fields, size_t max_bytes);
/* Frees the memory; the list is empty then. */
void arpc_fields_close(struct arpc_fields *fields);

/* Allocates the memory for all fields that may be added, so that fields never move. 0; AMP_ENOMEM. */
int arpc_fields_reserve(struct arpc_fields *fields);

/*
 * Appends a copy of metadata of this program, and writes the value of a "-bin" key in base64 unless it is `encoded`
 * already. 0; AMP_EINVAL (key or text), AMP_EEXHAUSTED (too many fields or bytes), AMP_ENOMEM.
 */
int arpc_fields_add_metadata(struct arpc_fields *fields, const char *key, const uint8_t *value, size_t size,
                             bool encoded);

/*
 * Appends a copy of metadata of the peer. The value of a "-bin" key is decoded, one field for each comma-separated
 * part. 0; AMP_EINVAL (a part is not base64), AMP_EEXHAUSTED (too many fields or bytes), AMP_ENOMEM.
 */
int arpc_fields_keep(struct arpc_fields *fields, const char *key, const uint8_t *value, size_t size);

/* Gives the fields one after another as views; *cursor is 0 at first. False: there are no more. */
bool arpc_fields_next(const struct arpc_fields *fields, size_t *cursor, struct arpc_field *field);

#endif
