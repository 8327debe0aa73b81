#include "proto/block.h"

#include "base/assert.h"

/* Keys of the fields: number << 3 | wire type. */
#define KEY_INDEX  0x10 /* 2, varint */
#define KEY_CRC32C 0x1d /* 3, four bytes */
#define KEY_DATA   0x7a /* 15, bytes */

/* Longest varint of 32 bits. */
#define VARINT32_MAX 5

static size_t put_varint(uint8_t *at, uint32_t value)
{
    size_t size = 0;
    for (; value >= 0x80; value >>= 7)
        at[size++] = (uint8_t)(value | 0x80);
    at[size++] = (uint8_t)value;
    return size;
}

size_t ampd_block_head_encode(const struct ampd_block *block, uint8_t head[AMPD_BLOCK_HEAD_MAX])
{
    AMP_ASSERT(block->size <= AMPD_BLOCK_DATA_MAX);
    size_t size = 0;
    head[size++] = KEY_INDEX;
    size += put_varint(head + size, block->index);
    head[size++] = KEY_CRC32C;
    for (unsigned shift = 0; shift < 32; shift += 8)
        head[size++] = (uint8_t)(block->crc32c >> shift);
    head[size++] = KEY_DATA;
    return size + put_varint(head + size, block->size);
}

int ampd_block_part_encode(enum ampd_block_part part, const struct amp_buf *body, struct amp_buf *out)
{
    if (body->size > AMPD_BLOCK_PART_MAX)
        return AMP_EINVAL;
    uint8_t head[1 + VARINT32_MAX] = {(uint8_t)((unsigned)part << 3 | 2)};
    size_t size = 1 + put_varint(head + 1, (uint32_t)body->size);
    int rc = amp_buf_reserve(out, size + body->size);
    if (rc != 0)
        return rc;
    (void)amp_buf_append(out, head, size); /* there is room */
    (void)amp_buf_append(out, body->data, body->size);
    return 0;
}
