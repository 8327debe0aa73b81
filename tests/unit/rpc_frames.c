#include "tests/unit/rpc_frames.h"

#include "base/assert.h"

#include <nghttp2/nghttp2.h>

#include <stdio.h>
#include <string.h>

#define HEAD    9
#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

static void put32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (24 - 8 * i));
}

static uint32_t get32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void frame(struct frames_out *out, int type, int flags, uint32_t stream, const void *body, size_t size)
{
    AMP_ASSERT(out->size + HEAD + size <= sizeof out->bytes);
    uint8_t *at = out->bytes + out->size;
    put32(at, (uint32_t)size << 8);
    at[3] = (uint8_t)type;
    at[4] = (uint8_t)flags;
    put32(at + 5, stream);
    if (size > 0)
        memcpy(at + HEAD, body, size);
    out->size += HEAD + size;
}

void frames_settings(struct frames_out *out)
{
    frame(out, FRAME_SETTINGS, 0, 0, NULL, 0);
}

void frames_settings_ack(struct frames_out *out)
{
    frame(out, FRAME_SETTINGS, FLAG_ACK, 0, NULL, 0);
}

void frames_ping_ack(struct frames_out *out, const uint8_t opaque[8])
{
    frame(out, FRAME_PING, FLAG_ACK, 0, opaque, 8);
}

void frames_goaway(struct frames_out *out, uint32_t last_id, uint32_t code, const char *debug)
{
    uint8_t body[64];
    size_t size = strlen(debug);
    AMP_ASSERT(size + 8 <= sizeof body);
    put32(body, last_id);
    put32(body + 4, code);
    memcpy(body + 8, debug, size);
    frame(out, FRAME_GOAWAY, 0, 0, body, size + 8);
}

void frames_rst(struct frames_out *out, uint32_t stream, uint32_t code)
{
    uint8_t body[4];
    put32(body, code);
    frame(out, FRAME_RST, 0, stream, body, sizeof body);
}

void frames_data(struct frames_out *out, uint32_t stream, bool end, const void *data, size_t size)
{
    frame(out, FRAME_DATA, end ? FLAG_END_STREAM : 0, stream, data, size);
}

/* Literal fields without indexing (RFC 7541 6.2.2), lengths below 127. */
void frames_headers(struct frames_out *out, uint32_t stream, bool end, const char *const *pairs)
{
    uint8_t block[512];
    size_t used = 0;
    for (size_t i = 0; pairs[i] != NULL; i++) {
        size_t size = strlen(pairs[i]);
        AMP_ASSERT(size < 127 && used + size + 2 <= sizeof block);
        if (i % 2 == 0)
            block[used++] = 0;
        block[used++] = (uint8_t)size;
        memcpy(block + used, pairs[i], size);
        used += size;
    }
    frame(out, FRAME_HEADERS, FLAG_END_HEADERS | (end ? FLAG_END_STREAM : 0), stream, block, used);
}

void frames_head(struct frames_out *out, uint32_t stream)
{
    static const char *const pairs[] = {":status", "200", "content-type", "application/grpc", NULL};
    frames_headers(out, stream, false, pairs);
}

void frames_trailers(struct frames_out *out, uint32_t stream, const char *status)
{
    const char *const pairs[] = {"grpc-status", status, NULL};
    frames_headers(out, stream, true, pairs);
}

void frames_trailers_only(struct frames_out *out, uint32_t stream, const char *status, const char *pushback)
{
    const char *const pairs[] = {":status",
                                 "200",
                                 "content-type",
                                 "application/grpc",
                                 "grpc-status",
                                 status,
                                 "grpc-message",
                                 "as the script says",
                                 pushback != NULL ? "grpc-retry-pushback-ms" : NULL,
                                 pushback,
                                 NULL};
    frames_headers(out, stream, true, pairs);
}

void frames_answer(struct frames_out *out, uint32_t stream, const char *message)
{
    uint8_t body[128] = {0};
    size_t size = strlen(message);
    AMP_ASSERT(size + 5 <= sizeof body);
    body[4] = (uint8_t)size;
    memcpy(body + 5, message, size);
    frames_head(out, stream);
    frames_data(out, stream, false, body, size + 5);
    frames_trailers(out, stream, "0");
}

/* ---- hearing ---- */

void frames_in_open(struct frames_in *in)
{
    memset(in, 0, sizeof *in);
    AMP_ASSERT(nghttp2_hd_inflate_new(&in->inflater) == 0);
}

void frames_in_close(struct frames_in *in)
{
    nghttp2_hd_inflate_del(in->inflater);
    in->inflater = NULL;
}

struct frames_request *frames_request_of(struct frames_in *in, uint32_t stream)
{
    for (size_t i = 0; i < in->request_count; i++)
        if (in->requests[i].stream == stream)
            return &in->requests[i];
    return NULL;
}

static void keep(char *to, size_t room, const nghttp2_nv *nv)
{
    (void)snprintf(to, room, "%.*s", (int)nv->valuelen, (const char *)nv->value);
}

static void hear_headers(struct frames_in *in, uint32_t stream, int flags, const uint8_t *block, size_t size)
{
    AMP_ASSERT(in->request_count < FRAMES_REQUESTS && (flags & FLAG_END_HEADERS) != 0);
    struct frames_request *request = &in->requests[in->request_count++];
    *request = (struct frames_request){.stream = stream, .ended = (flags & FLAG_END_STREAM) != 0};
    for (;;) {
        nghttp2_nv nv;
        int inflate = 0;
        ssize_t used = nghttp2_hd_inflate_hd2(in->inflater, &nv, &inflate, block, size, 1);
        AMP_ASSERT(used >= 0);
        block += used;
        size -= (size_t)used;
        if ((inflate & NGHTTP2_HD_INFLATE_EMIT) != 0) {
            const char *name = (const char *)nv.name;
            if (nv.namelen == 5 && memcmp(name, ":path", 5) == 0)
                keep(request->path, sizeof request->path, &nv);
            else if (nv.namelen == 26 && memcmp(name, "grpc-previous-rpc-attempts", 26) == 0)
                keep(request->previous_attempts, sizeof request->previous_attempts, &nv);
            else if (nv.namelen == 12 && memcmp(name, "grpc-timeout", 12) == 0)
                keep(request->timeout, sizeof request->timeout, &nv);
        }
        if ((inflate & NGHTTP2_HD_INFLATE_FINAL) != 0)
            break;
    }
    (void)nghttp2_hd_inflate_end_headers(in->inflater);
}

static void hear_frame(struct frames_in *in, int type, int flags, uint32_t stream, const uint8_t *body, size_t size)
{
    struct frames_request *request = frames_request_of(in, stream);
    if (type == FRAME_HEADERS) {
        hear_headers(in, stream, flags, body, size);
    } else if (type == FRAME_DATA) {
        AMP_ASSERT(request != NULL);
        for (size_t i = 0; i < size && request->size + i < sizeof request->data; i++)
            request->data[request->size + i] = body[i];
        request->size += size;
        request->ended = request->ended || (flags & FLAG_END_STREAM) != 0;
    } else if (type == FRAME_RST && request != NULL) {
        request->reset = true;
        request->reset_code = get32(body);
    } else if (type == FRAME_PING && (flags & FLAG_ACK) == 0) {
        in->pings++;
        memcpy(in->last_ping, body, 8);
    } else if (type == FRAME_GOAWAY) {
        in->goaways++;
    }
}

void frames_hear(struct frames_in *in, const uint8_t *data, size_t size)
{
    AMP_ASSERT(in->size + size <= sizeof in->bytes);
    memcpy(in->bytes + in->size, data, size);
    in->size += size;
    size_t at = 0;
    if (!in->preface && in->size >= sizeof PREFACE - 1) {
        AMP_ASSERT(memcmp(in->bytes, PREFACE, sizeof PREFACE - 1) == 0);
        in->preface = true;
        at = sizeof PREFACE - 1;
    }
    while (in->preface && in->size - at >= HEAD) {
        const uint8_t *head = in->bytes + at;
        size_t length = get32(head) >> 8;
        if (in->size - at < HEAD + length)
            break;
        hear_frame(in, head[3], head[4], get32(head + 5) & 0x7fffffff, head + HEAD, length);
        at += HEAD + length;
    }
    memmove(in->bytes, in->bytes + at, in->size - at);
    in->size -= at;
}
