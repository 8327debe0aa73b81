/* What the files of rpc/h2 that speak with nghttp2 share. */
#ifndef ARPC_H2_BODY_H
#define ARPC_H2_BODY_H

#include "rpc/h2/fields.h"

#include <nghttp2/nghttp2.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* nghttp2's read callback for the body of the call that source->ptr is. */
ssize_t arpc_link_read_body(nghttp2_session *session, int32_t stream_id, uint8_t *buf, size_t length, uint32_t *flags,
                            nghttp2_data_source *source, void *arg);

/* Whether a name or a value of a header block is this text. */
static inline bool arpc_nv_is(const uint8_t *bytes, size_t size, const char *text)
{
    return strlen(text) == size && memcmp(bytes, text, size) == 0;
}

/* Adds a field to a header block, which points to both until nghttp2 has it. */
static inline void arpc_nv_add(nghttp2_nv *nv, size_t *count, const char *name, const void *value, size_t size)
{
    nv[(*count)++] =
        (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, strlen(name), size, NGHTTP2_NV_FLAG_NONE};
}

static inline void arpc_nv_add_fields(nghttp2_nv *nv, size_t *count, const struct arpc_fields *fields)
{
    size_t cursor = 0;
    struct arpc_field field;
    while (arpc_fields_next(fields, &cursor, &field))
        arpc_nv_add(nv, count, field.name, field.value, field.value_size);
}

#endif
