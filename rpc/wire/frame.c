#include "rpc/wire/frame.h"

#include <string.h>

void arpc_prefix_write(uint8_t prefix[ARPC_PREFIX_SIZE], uint8_t flag, uint32_t size)
{
    prefix[0] = flag;
    prefix[1] = (uint8_t)(size >> 24);
    prefix[2] = (uint8_t)(size >> 16);
    prefix[3] = (uint8_t)(size >> 8);
    prefix[4] = (uint8_t)size;
}

static size_t take_prefix(struct arpc_deframer *deframer, const uint8_t *data, size_t size, struct arpc_piece *piece)
{
    size_t missing = ARPC_PREFIX_SIZE - deframer->have;
    size_t used = size < missing ? size : missing;
    if (used > 0)
        memcpy(deframer->prefix + deframer->have, data, used);
    deframer->have = (uint8_t)(deframer->have + used);
    if (deframer->have < ARPC_PREFIX_SIZE)
        return used;
    const uint8_t *p = deframer->prefix;
    deframer->left = (uint32_t)p[1] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 8 | p[4];
    deframer->in_message = true;
    *piece = (struct arpc_piece){.kind = ARPC_PIECE_BEGIN, .flag = p[0], .size = deframer->left};
    return used;
}

size_t arpc_deframe(struct arpc_deframer *deframer, const uint8_t *data, size_t size, struct arpc_piece *piece)
{
    *piece = (struct arpc_piece){.kind = ARPC_PIECE_NONE};
    if (!deframer->in_message)
        return take_prefix(deframer, data, size, piece);
    if (deframer->left == 0) {
        deframer->in_message = false;
        deframer->have = 0;
        piece->kind = ARPC_PIECE_END;
        return 0;
    }
    if (size == 0)
        return 0;
    size_t used = size < deframer->left ? size : deframer->left;
    deframer->left -= (uint32_t)used;
    *piece = (struct arpc_piece){.kind = ARPC_PIECE_BYTES, .data = data, .size = used};
    return used;
}

bool arpc_deframer_is_clean(const struct arpc_deframer *deframer)
{
    return !deframer->in_message && deframer->have == 0;
}
