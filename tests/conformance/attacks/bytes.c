#include "tests/conformance/attacks/bytes.h"

#include <stdlib.h>
#include <string.h>

static void *grow(void *memory, size_t *capacity, size_t wanted, size_t each)
{
    if (wanted <= *capacity)
        return memory;
    *capacity = wanted * 2;
    memory = realloc(memory, *capacity * each);
    if (memory == NULL)
        abort();
    return memory;
}

void bytes_add(struct bytes *bytes, const void *data, size_t size)
{
    if (size == 0)
        return;
    bytes->data = grow(bytes->data, &bytes->capacity, bytes->size + size, 1);
    memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

void bytes_text(struct bytes *bytes, const char *text)
{
    bytes_add(bytes, text, strlen(text));
}

void bytes_zeros(struct bytes *bytes, size_t size)
{
    static const uint8_t zeros[4096];
    for (; size > sizeof zeros; size -= sizeof zeros)
        bytes_add(bytes, zeros, sizeof zeros);
    bytes_add(bytes, zeros, size);
}

static void put_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (24 - 8 * i));
}

void bytes_u32(struct bytes *bytes, uint32_t value)
{
    uint8_t four[4];
    put_u32(four, value);
    bytes_add(bytes, four, 4);
}

void bytes_free(struct bytes *bytes)
{
    free(bytes->data);
    free(bytes->ids);
    *bytes = (struct bytes){0};
}

void bytes_head(struct bytes *bytes, size_t size, unsigned type, unsigned flags, uint32_t stream)
{
    uint8_t head[5] = {(uint8_t)(size >> 16), (uint8_t)(size >> 8), (uint8_t)size, (uint8_t)type, (uint8_t)flags};
    bytes_add(bytes, head, sizeof head);
    if ((stream & 0x80000000u) != 0) {
        bytes->ids = grow(bytes->ids, &bytes->id_capacity, bytes->id_count + 1, sizeof *bytes->ids);
        bytes->ids[bytes->id_count++] = (struct bytes_id){bytes->size, stream & 0x7fffffff};
    }
    bytes_u32(bytes, stream & 0x7fffffff);
}

void bytes_frame(struct bytes *bytes, unsigned type, unsigned flags, uint32_t stream, const void *payload, size_t size)
{
    bytes_head(bytes, size, type, flags, stream);
    bytes_add(bytes, payload, size);
}

void bytes_u32_frame(struct bytes *bytes, unsigned type, uint32_t stream, uint32_t value)
{
    bytes_head(bytes, 4, type, 0, stream);
    bytes_u32(bytes, value);
}

void bytes_setting(struct bytes *bytes, unsigned id, uint32_t value)
{
    uint8_t two[2] = {(uint8_t)(id >> 8), (uint8_t)id};
    bytes_head(bytes, 6, H2_SETTINGS, 0, 0);
    bytes_add(bytes, two, 2);
    bytes_u32(bytes, value);
}

void bytes_preface(struct bytes *bytes)
{
    bytes_text(bytes, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    bytes_head(bytes, 0, H2_SETTINGS, 0, 0);
    bytes_head(bytes, 0, H2_SETTINGS, H2_ACK, 0); /* the server has sent its own before it reads */
}

static void string(struct bytes *block, const char *text)
{
    uint8_t size = (uint8_t)strlen(text); /* below 127 */
    bytes_add(block, &size, 1);
    bytes_text(block, text);
}

void bytes_field(struct bytes *block, const char *name, const char *value)
{
    bytes_add(block, "", 1); /* literal, not indexed, new name */
    string(block, name);
    string(block, value);
}

void bytes_block(struct bytes *block, const char *path, const char *content_type)
{
    bytes_text(block, "\x83\x86\x04"); /* POST, http, :path */
    string(block, path);
    bytes_text(block, "\x01\x01x\x0f\x10"); /* :authority x, content-type */
    string(block, content_type != NULL ? content_type : "application/grpc");
    bytes_field(block, "te", "trailers");
}

void bytes_request(struct bytes *bytes, uint32_t stream, const char *path, unsigned flags)
{
    struct bytes block = {0};
    bytes_block(&block, path, NULL);
    bytes_frame(bytes, H2_HEADERS, flags | H2_END_HEADERS, stream, block.data, block.size);
    bytes_free(&block);
}

void bytes_message(struct bytes *bytes, uint32_t stream, const void *message, size_t size, unsigned flags)
{
    bytes_head(bytes, 5 + size, H2_DATA, flags, stream);
    bytes_add(bytes, "", 1);
    bytes_u32(bytes, (uint32_t)size);
    bytes_add(bytes, message, size);
}

void bytes_set_round(struct bytes *bytes, uint32_t first)
{
    for (size_t i = 0; i < bytes->id_count; i++)
        put_u32(bytes->data + bytes->ids[i].at, first + bytes->ids[i].offset);
}

static void payload_byte(struct frames_seen *seen, const uint8_t *data, size_t size)
{
    size_t room = sizeof seen->payload - seen->payload_used;
    if (size > room)
        size = room;
    memcpy(seen->payload + seen->payload_used, data, size);
    seen->payload_used += size;
}

void frames_take(struct frames_seen *seen, const uint8_t *data, size_t size)
{
    while (size > 0) {
        size_t step;
        if (seen->head_used < 9) {
            step = 9 - seen->head_used < size ? 9 - seen->head_used : size;
            memcpy(seen->head + seen->head_used, data, step);
            seen->head_used += step;
            if (seen->head_used < 9)
                return;
            seen->left = (size_t)seen->head[0] << 16 | (size_t)seen->head[1] << 8 | seen->head[2];
            seen->payload_used = 0;
        } else {
            step = seen->left < size ? seen->left : size;
            payload_byte(seen, data, step);
            seen->left -= step;
        }
        data += step;
        size -= step;
        if (seen->head_used < 9 || seen->left > 0)
            continue;
        const uint8_t *head = seen->head;
        size_t whole = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        uint32_t stream = (uint32_t)head[5] << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8];
        seen->head_used = 0;
        seen->frame_cb(seen, head[3], head[4], stream & 0x7fffffff, whole);
    }
}
