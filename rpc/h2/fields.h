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

void arpc_fields_init(struct arpc_fields *fields, size_t max_bytes);
void arpc_fields_close(struct arpc_fields *fields);

/* Takes the memory for all that may be added, so that what is added never moves. 0 or AMP_ENOMEM. */
int arpc_fields_reserve(struct arpc_fields *fields);

/* Appends metadata of this program: checks name and text, writes base64 for "-bin". Also AMP_EINVAL. */
int arpc_fields_add_metadata(struct arpc_fields *fields, const char *key, const uint8_t *value, size_t size,
                             bool encoded);

/* Appends metadata of the peer, decoding "-bin", one field for each comma-separated part. Also AMP_EINVAL. */
int arpc_fields_keep(struct arpc_fields *fields, const char *key, const uint8_t *value, size_t size);

/* Goes through the fields: *cursor is 0 at first. False at the end. */
bool arpc_fields_next(const struct arpc_fields *fields, size_t *cursor, struct arpc_field *field);

#endif
