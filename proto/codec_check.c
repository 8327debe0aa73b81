/*
 * The walk over a serialized message before nanopb sees it.
 *
 * nanopb refuses what is malformed, too, but cannot say which field; it cuts a text at a zero byte in silence,
 * takes any bytes for text, and leaves the bounds of callbacks to their author. The walk needs no memory, descends
 * only into submessages that the schema has, and so is as deep as the schema.
 */
#include "proto/codec.h"

#include "base/text.h"

#include <stdio.h>

/* Wire types, protobuf encoding guide. Groups (3, 4) are not part of proto3. */
enum wire { WIRE_VARINT = 0, WIRE_I64 = 1, WIRE_LEN = 2, WIRE_I32 = 5 };

/* The rest of a message. */
struct cursor {
    const uint8_t *at;
    const uint8_t *end;
};

/* One field as it lies on the wire: a number, or bytes. */
struct item {
    uint32_t tag;
    enum wire wire;
    uint64_t value;
    const uint8_t *data;
    size_t size;
};

static bool read_varint(struct cursor *cursor, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (cursor->at == cursor->end)
            return false;
        uint8_t byte = *cursor->at++;
        if (shift == 63 && byte > 1)
            return false;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

static bool read_bytes(struct cursor *cursor, uint64_t size, struct item *item)
{
    if (size > (uint64_t)(cursor->end - cursor->at))
        return false;
    item->data = cursor->at;
    item->size = (size_t)size;
    cursor->at += size;
    return true;
}

/* The next field; false when the bytes are not the wire format. */
static bool read_item(struct cursor *cursor, struct item *item)
{
    uint64_t key;
    *item = (struct item){0};
    if (!read_varint(cursor, &key) || key > UINT32_MAX || key >> 3 == 0)
        return false;
    item->tag = (uint32_t)(key >> 3);
    item->wire = (enum wire)(key & 7);
    uint64_t size;
    switch (item->wire) {
    case WIRE_VARINT:
        return read_varint(cursor, &item->value);
    case WIRE_I64:
        return read_bytes(cursor, 8, item);
    case WIRE_I32:
        return read_bytes(cursor, 4, item);
    case WIRE_LEN:
        return read_varint(cursor, &size) && read_bytes(cursor, size, item);
    default:
        return false;
    }
}

static enum wire wire_of(enum ampd_codec_kind kind)
{
    switch (kind) {
    case AMPD_CODEC_FLOAT:
        return WIRE_I32;
    case AMPD_CODEC_FIXED64:
    case AMPD_CODEC_DOUBLE:
        return WIRE_I64;
    case AMPD_CODEC_STRING:
    case AMPD_CODEC_BYTES:
    case AMPD_CODEC_MESSAGE:
        return WIRE_LEN;
    default:
        return WIRE_VARINT;
    }
}

static bool value_fits(enum ampd_codec_kind kind, uint64_t value)
{
    switch (kind) {
    case AMPD_CODEC_UINT32:
    case AMPD_CODEC_UENUM:
        return value <= UINT32_MAX;
    case AMPD_CODEC_INT32:
        return value <= INT32_MAX || value >= (uint64_t)INT32_MIN;
    case AMPD_CODEC_BOOL:
        return value <= 1;
    default:
        return true;
    }
}

static bool is_text(const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size;) {
        size_t length = amp_text_char((const char *)data + i, size - i);
        if (length == 0)
            return false;
        i += length;
    }
    return true;
}

/* Counts the elements of a packed field; false when they are malformed or out of range. */
static bool count_packed(enum ampd_codec_kind kind, const struct item *item, size_t *count)
{
    size_t width = wire_of(kind) == WIRE_I32 ? 4 : wire_of(kind) == WIRE_I64 ? 8 : 0;
    if (width > 0) {
        *count += item->size / width;
        return item->size % width == 0;
    }
    struct cursor cursor = {item->data, item->data + item->size};
    while (cursor.at < cursor.end) {
        uint64_t value;
        if (!read_varint(&cursor, &value) || !value_fits(kind, value))
            return false;
        ++*count;
    }
    return true;
}

static int fail(struct amp_error *error, const struct ampd_codec_field *field, const char *what)
{
    return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "%s %s", field->name, what);
}

static int check_fields(const struct ampd_codec_desc *desc, const uint8_t *data, size_t size, struct amp_error *error);

static int check_message(const struct ampd_codec_field *field, const struct item *item, size_t number,
                         struct amp_error *error)
{
    int rc = check_fields(field->sub, item->data, item->size, error);
    if (rc != 0 && field->repeated)
        amp_error_wrap(error, "%s[%zu]", field->name, number);
    else if (rc != 0)
        amp_error_wrap(error, "%s", field->name);
    return rc;
}

/* One occurrence of a field; *count is how often it came before. */
static int check_field(const struct ampd_codec_field *field, const struct item *item, size_t *count,
                       struct amp_error *error)
{
    size_t number = *count;
    enum wire wire = wire_of(field->kind);
    if (field->repeated && item->wire == WIRE_LEN && wire != WIRE_LEN) {
        if (!count_packed(field->kind, item, count))
            return fail(error, field, "holds a malformed value or one that is out of range");
    } else if (item->wire != wire) {
        return fail(error, field, "has a wrong wire type: the schemas differ");
    } else {
        ++*count;
    }
    if (field->repeated && *count > field->max)
        return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "%s has more than %zu elements", field->name,
                             field->max);
    switch (field->kind) {
    case AMPD_CODEC_MESSAGE:
        if (!field->repeated && number > 0)
            return fail(error, field, "is given twice");
        return check_message(field, item, number, error);
    case AMPD_CODEC_STRING:
    case AMPD_CODEC_BYTES:
        if (item->size > field->max)
            return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "%s is longer than %zu bytes", field->name,
                                 field->max);
        if (field->kind == AMPD_CODEC_STRING && !is_text(item->data, item->size))
            return fail(error, field, "is not UTF-8 text without zero bytes");
        return 0;
    default:
        if (item->wire == WIRE_VARINT && !value_fits(field->kind, item->value))
            return fail(error, field, "is out of the range of its type");
        return 0;
    }
}

static int check_fields(const struct ampd_codec_desc *desc, const uint8_t *data, size_t size, struct amp_error *error)
{
    size_t counts[AMPD_CODEC_FIELDS_MAX] = {0};
    struct cursor cursor = {data, data + size};
    while (cursor.at < cursor.end) {
        struct item item;
        if (!read_item(&cursor, &item))
            return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "malformed or cut off at byte %zu of %zu",
                                 (size_t)(cursor.at - data), size);
        for (size_t i = 0; i < desc->count; i++) {
            if (desc->fields[i].tag != item.tag)
                continue;
            int rc = check_field(&desc->fields[i], &item, &counts[i], error);
            if (rc != 0)
                return rc;
        }
    }
    const char *wrong = desc->check_cb != NULL ? desc->check_cb(data, size) : NULL;
    return wrong == NULL ? 0 : amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "%s", wrong);
}

int ampd_codec_check(const struct ampd_codec_desc *desc, const uint8_t *data, size_t size, struct amp_error *error)
{
    /* An empty message may come without an address. */
    static const uint8_t nothing[1];
    int rc = check_fields(desc, size > 0 ? data : nothing, size, error);
    const char *name = strrchr(desc->name, '_');
    if (rc != 0)
        amp_error_wrap(error, "%s", name != NULL ? name + 1 : desc->name);
    return rc;
}
