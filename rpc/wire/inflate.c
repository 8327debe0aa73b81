#include "rpc/wire/inflate.h"

#include "base/assert.h"
#include "base/err.h"

#include <limits.h>
#include <stdlib.h>
#include <zlib.h>

/* zlib: the largest window, in gzip's format. */
#define WINDOW_BITS (15 + 16)
/* Least room for one call of inflate. */
#define STEP ((size_t)4 << 10)
/* gzip's speed matters more than its ratio to a server that is asked for it; level 1 is three times as fast as 6. */
#define LEVEL     1
#define MEM_LEVEL 8

struct arpc_inflate {
    z_stream stream;
    bool whole;
};

struct arpc_inflate *arpc_inflate_new(void)
{
    struct arpc_inflate *state = calloc(1, sizeof *state);
    if (state != NULL && inflateInit2(&state->stream, WINDOW_BITS) == Z_OK)
        return state;
    free(state);
    return NULL;
}

void arpc_inflate_free(struct arpc_inflate *state)
{
    if (state == NULL)
        return;
    (void)inflateEnd(&state->stream); /* its state is sound */
    free(state);
}

/*
 * Makes room for at least one byte more, twice as much as there is if the limit allows; *room: how much there is now.
 */
static int make_room(struct amp_buf *out, size_t *room)
{
    size_t left = out->max - out->size;
    *room = out->capacity - out->size;
    if (*room == 0 && left > 0) {
        size_t more = out->size > STEP ? out->size : STEP;
        int rc = amp_buf_reserve(out, more < left ? more : left);
        if (rc != 0)
            return rc;
        *room = out->capacity - out->size;
    }
    return 0;
}

/* One call of zlib's. In a full buffer it is asked for one byte more: that it has one shows that there is too much. */
static int inflate_some(struct arpc_inflate *state, struct amp_buf *out)
{
    z_stream *stream = &state->stream;
    uint8_t beyond;
    size_t room;
    int rc = make_room(out, &room);
    if (rc != 0)
        return rc;
    bool full = room == 0;
    stream->next_out = full ? &beyond : out->data + out->size;
    stream->avail_out = full ? 1 : (uInt)(room < UINT_MAX ? room : UINT_MAX);
    uInt given = stream->avail_out;
    int status = inflate(stream, Z_NO_FLUSH);
    if (full && stream->avail_out == 0)
        return AMP_EEXHAUSTED;
    out->size += full ? 0 : given - stream->avail_out;
    state->whole = status == Z_STREAM_END;
    if (status == Z_MEM_ERROR)
        return AMP_ENOMEM;
    /* Z_BUF_ERROR: there was nothing to do, which is no error. */
    return status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR ? 0 : AMP_EINVAL;
}

int arpc_inflate_take(struct arpc_inflate *state, const uint8_t *data, size_t size, struct amp_buf *out)
{
    z_stream *stream = &state->stream;
    AMP_ASSERT(size <= UINT_MAX);
    stream->next_in = (Bytef *)(uintptr_t)data; /* zlib only reads it */
    stream->avail_in = (uInt)size;
    for (;;) {
        if (state->whole)
            return stream->avail_in == 0 ? 0 : AMP_EINVAL;
        uInt left = stream->avail_in;
        size_t had = out->size;
        int rc = inflate_some(state, out);
        if (rc != 0)
            return rc;
        if (stream->avail_in == left && out->size == had && !state->whole)
            return 0; /* it needs more bytes */
    }
}

bool arpc_inflate_is_whole(const struct arpc_inflate *state)
{
    return state->whole;
}

int arpc_deflate(const uint8_t *data, size_t size, struct amp_buf *out)
{
    z_stream stream = {0};
    size_t had = out->size;
    if (deflateInit2(&stream, LEVEL, Z_DEFLATED, WINDOW_BITS, MEM_LEVEL, Z_DEFAULT_STRATEGY) != Z_OK)
        return AMP_ENOMEM;
    size_t room = out->max - out->size;
    size_t bound = deflateBound(&stream, (uLong)size);
    AMP_ASSERT(size <= UINT_MAX && bound <= UINT_MAX);
    int rc = amp_buf_reserve(out, room < bound ? room : bound);
    if (rc == 0) {
        stream.next_in = (Bytef *)(uintptr_t)data;
        stream.avail_in = (uInt)size;
        stream.next_out = out->data + out->size;
        stream.avail_out = (uInt)(room < bound ? room : bound);
        rc = deflate(&stream, Z_FINISH) == Z_STREAM_END ? 0 : AMP_EEXHAUSTED;
        out->size = rc == 0 ? had + stream.total_out : had;
    }
    (void)deflateEnd(&stream); /* that there was more to come is no news */
    return rc;
}
