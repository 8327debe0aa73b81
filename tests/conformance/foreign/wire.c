#include "tests/conformance/foreign/wire.h"

#include <stdlib.h>

#include <pb_decode.h>
#include <pb_encode.h>

bool wire_next(struct wire_span *rest, struct wire_field *field)
{
    pb_istream_t stream = pb_istream_from_buffer(rest->data, rest->size);
    pb_wire_type_t type;
    bool eof;
    uint32_t length;
    *field = (struct wire_field){0};
    if (!pb_decode_tag(&stream, &type, &field->tag, &eof))
        return false;
    if (type == PB_WT_VARINT) {
        if (!pb_decode_varint(&stream, &field->number))
            return false;
    } else if (type == PB_WT_STRING) {
        if (!pb_decode_varint32(&stream, &length) || length > stream.bytes_left)
            return false;
        field->bytes = (struct wire_span){rest->data + (rest->size - stream.bytes_left), length};
        if (!pb_read(&stream, NULL, length))
            return false;
    } else if (!pb_skip_field(&stream, type)) {
        return false;
    }
    rest->data += rest->size - stream.bytes_left;
    rest->size = stream.bytes_left;
    return true;
}

uint64_t wire_number(struct wire_span message, uint32_t tag)
{
    struct wire_field field;
    uint64_t number = 0;
    while (wire_next(&message, &field))
        if (field.tag == tag)
            number = field.number;
    return number;
}

struct wire_span wire_bytes(struct wire_span message, uint32_t tag)
{
    struct wire_field field;
    struct wire_span bytes = {0};
    while (wire_next(&message, &field))
        if (field.tag == tag)
            bytes = field.bytes;
    return bytes;
}

static void append(struct amp_buf *out, const void *data, size_t size)
{
    if (size > 0 && amp_buf_append(out, data, size) != 0)
        abort();
}

static void put_varint(struct amp_buf *out, uint64_t value)
{
    uint8_t bytes[10]; /* hold any */
    pb_ostream_t stream = pb_ostream_from_buffer(bytes, sizeof bytes);
    (void)pb_encode_varint(&stream, value);
    append(out, bytes, stream.bytes_written);
}

void wire_put_number(struct amp_buf *out, uint32_t tag, uint64_t number)
{
    put_varint(out, (uint64_t)tag << 3 | PB_WT_VARINT);
    put_varint(out, number);
}

void wire_put_head(struct amp_buf *out, uint32_t tag, size_t size)
{
    put_varint(out, (uint64_t)tag << 3 | PB_WT_STRING);
    put_varint(out, size);
}

void wire_put_bytes(struct amp_buf *out, uint32_t tag, const void *data, size_t size)
{
    wire_put_head(out, tag, size);
    append(out, data, size);
}

void wire_put_message(struct amp_buf *out, uint32_t tag, struct amp_buf *part)
{
    wire_put_bytes(out, tag, part->data, part->size);
    amp_buf_close(part);
}
