#include "proto/codec.h"

#include <stdint.h>

const char ampd_codec_no_memory[] = "out of memory";

/* The writer of a message and what it came to, so that the right code is returned. */
struct sink {
    struct amp_buf *out;
    int rc;
};

static bool sink_write(pb_ostream_t *stream, const pb_byte_t *data, size_t size)
{
    struct sink *sink = stream->state;
    sink->rc = amp_buf_append(sink->out, data, size);
    return sink->rc == 0;
}

int ampd_codec_encode(const struct ampd_codec_desc *desc, const pb_msgdesc_t *fields, const void *from,
                      struct amp_buf *out)
{
    struct sink sink = {.out = out};
    pb_ostream_t stream = {.callback = sink_write, .state = &sink, .max_size = SIZE_MAX};
    size_t before = out->size;
    int rc = 0;
    if (!pb_encode(&stream, fields, from))
        rc = sink.rc != 0 ? sink.rc : AMP_EINVAL;
    /* What the peer would refuse is refused here, where its author is. */
    if (rc == 0 && out->size > before)
        rc = ampd_codec_check(desc, out->data + before, out->size - before, NULL);
    if (rc != 0)
        out->size = before;
    return rc;
}

int ampd_codec_decode(const struct ampd_codec_desc *desc, const pb_msgdesc_t *fields, void *to, const void *data,
                      size_t size, struct amp_error *error)
{
    int rc = ampd_codec_check(desc, data, size, error);
    if (rc != 0)
        return rc;
    pb_istream_t stream = pb_istream_from_buffer(data, size);
    if (pb_decode_ex(&stream, fields, to, PB_DECODE_NOINIT))
        return 0;
    if (stream.errmsg == ampd_codec_no_memory)
        return amp_error_set(error, AMP_ENOMEM, NULL, "%s: %s", desc->name, ampd_codec_no_memory);
    return amp_error_set(error, AMP_EINVAL, NULL, "%s: %s", desc->name, PB_GET_ERROR(&stream));
}

void *ampd_codec_grow(void *items, size_t count, size_t item_size)
{
    /* The capacity is the power of two that is at least count, so it need not be kept. */
    if (count > 0 && (count & (count - 1)) != 0)
        return items;
    return realloc(items, (count > 0 ? 2 * count : 1) * item_size);
}

bool ampd_codec_bytes_out(pb_ostream_t *stream, const pb_field_t *field, void *const *arg)
{
    const struct ampd_msg_bytes *bytes = *arg;
    if (bytes->size == 0)
        return true;
    return pb_encode_tag_for_field(stream, field) && pb_encode_string(stream, bytes->data, bytes->size);
}

bool ampd_codec_bytes_in(pb_istream_t *stream, const pb_field_t *field, void **arg)
{
    struct ampd_msg_bytes *bytes = *arg;
    size_t size = stream->bytes_left;
    if (size == 0)
        return true;
    uint8_t *data = malloc(size);
    if (data == NULL) {
        stream->errmsg = ampd_codec_no_memory;
        return false;
    }
    free(bytes->data);
    bytes->data = data;
    bytes->size = size;
    return pb_read(stream, data, size);
}
