#include "rpc/h2/fields.h"

#include "base/err.h"
#include "rpc/wire/text.h"

#include <stdlib.h>
#include <string.h>

/* In front of each field: the two sizes, so that a value may hold any byte. */
struct sizes {
    uint32_t name;
    uint32_t value;
};

void arpc_fields_init(struct arpc_fields *fields, size_t max_bytes)
{
    amp_buf_init(&fields->bytes, max_bytes + ARPC_FIELDS_MAX * (sizeof(struct sizes) + 2));
    fields->count = 0;
}

void arpc_fields_close(struct arpc_fields *fields)
{
    amp_buf_close(&fields->bytes);
    fields->count = 0;
}

int arpc_fields_reserve(struct arpc_fields *fields)
{
    return amp_buf_reserve(&fields->bytes, fields->bytes.max - fields->bytes.size);
}

/* Appends a field as it is. 0, AMP_EEXHAUSTED (count or bytes), AMP_ENOMEM. */
static int add_field(struct arpc_fields *fields, const char *name, size_t name_size, const uint8_t *value,
                     size_t value_size)
{
    if (fields->count >= ARPC_FIELDS_MAX)
        return AMP_EEXHAUSTED;
    struct sizes sizes = {(uint32_t)name_size, (uint32_t)value_size};
    int rc = amp_buf_reserve(&fields->bytes, sizeof sizes + name_size + value_size + 2);
    if (rc != 0)
        return rc;
    /* Nothing fails from here: the room is reserved. */
    (void)amp_buf_append(&fields->bytes, &sizes, sizeof sizes);
    (void)amp_buf_append(&fields->bytes, name, name_size);
    (void)amp_buf_append(&fields->bytes, "", 1);
    (void)amp_buf_append(&fields->bytes, value, value_size);
    (void)amp_buf_append(&fields->bytes, "", 1);
    fields->count++;
    return 0;
}

int arpc_fields_add_metadata(struct arpc_fields *fields, const char *key, const uint8_t *value, size_t size,
                             bool encoded)
{
    size_t key_size = strlen(key);
    if (!arpc_metadata_key_ok(key))
        return AMP_EINVAL;
    if (size > ARPC_FIELDS_BYTES_MAX)
        return AMP_EEXHAUSTED;
    if (encoded || !arpc_metadata_is_binary(key, key_size)) {
        if (!arpc_metadata_text_ok(value, size))
            return AMP_EINVAL;
        return add_field(fields, key, key_size, value, size);
    }
    char text[ARPC_BASE64_SIZE(ARPC_FIELDS_BYTES_MAX)];
    size_t text_size = arpc_base64_encode(value, size, text);
    return add_field(fields, key, key_size, (const uint8_t *)text, text_size);
}

static int keep_binary(struct arpc_fields *fields, const char *key, const uint8_t *part, size_t size)
{
    uint8_t *raw = malloc(size + 1);
    if (raw == NULL)
        return AMP_ENOMEM;
    size_t raw_size = 0;
    int rc = arpc_base64_decode(part, size, raw, &raw_size);
    if (rc == 0)
        rc = add_field(fields, key, strlen(key), raw, raw_size);
    free(raw);
    return rc;
}

int arpc_fields_keep(struct arpc_fields *fields, const char *key, const uint8_t *value, size_t size)
{
    if (!arpc_metadata_is_binary(key, strlen(key)))
        return add_field(fields, key, strlen(key), value, size);
    for (;;) {
        const uint8_t *comma = size > 0 ? memchr(value, ',', size) : NULL;
        size_t part = comma != NULL ? (size_t)(comma - value) : size;
        int rc = keep_binary(fields, key, value, part);
        if (rc != 0 || comma == NULL)
            return rc;
        value = comma + 1;
        size -= part + 1;
    }
}

bool arpc_fields_next(const struct arpc_fields *fields, size_t *cursor, struct arpc_field *field)
{
    if (*cursor >= fields->bytes.size)
        return false;
    struct sizes sizes;
    const uint8_t *at = fields->bytes.data + *cursor;
    memcpy(&sizes, at, sizeof sizes);
    field->name = (const char *)at + sizeof sizes;
    field->name_size = sizes.name;
    field->value = at + sizeof sizes + sizes.name + 1;
    field->value_size = sizes.value;
    *cursor += sizeof sizes + sizes.name + sizes.value + 2;
    return true;
}
