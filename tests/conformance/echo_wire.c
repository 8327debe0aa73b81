#include "tests/conformance/echo_wire.h"

#include <pb_decode.h>
#include <pb_encode.h>

static bool find(const uint8_t *message, size_t size, uint32_t wanted, pb_wire_type_t type, pb_istream_t *at)
{
    *at = pb_istream_from_buffer(message, size);
    pb_wire_type_t found;
    uint32_t tag;
    bool eof;
    while (pb_decode_tag(at, &found, &tag, &eof)) {
        if (tag == wanted && found == type)
            return true;
        if (!pb_skip_field(at, found))
            return false;
    }
    return false;
}

uint64_t echo_get_number(const uint8_t *message, size_t size, uint32_t tag)
{
    pb_istream_t at;
    uint64_t value = 0;
    if (!find(message, size, tag, PB_WT_VARINT, &at) || !pb_decode_varint(&at, &value))
        return 0;
    return value;
}

bool echo_get_bytes(const uint8_t *message, size_t size, uint32_t tag, const uint8_t **data, size_t *data_size)
{
    pb_istream_t at;
    uint32_t length;
    if (!find(message, size, tag, PB_WT_STRING, &at) || !pb_decode_varint32(&at, &length) || length > at.bytes_left)
        return false;
    *data = message + (size - at.bytes_left);
    *data_size = length;
    return true;
}

static void put_varint(uint8_t *out, size_t *used, uint64_t value)
{
    pb_ostream_t stream = pb_ostream_from_buffer(out + *used, 10);
    (void)pb_encode_varint(&stream, value); /* ten bytes hold any */
    *used += stream.bytes_written;
}

void echo_put_number(uint8_t *out, size_t *used, uint32_t tag, uint64_t value)
{
    put_varint(out, used, (uint64_t)tag << 3 | PB_WT_VARINT);
    put_varint(out, used, value);
}

void echo_put_head(uint8_t *out, size_t *used, uint32_t tag, uint64_t size)
{
    put_varint(out, used, (uint64_t)tag << 3 | PB_WT_STRING);
    put_varint(out, used, size);
}
