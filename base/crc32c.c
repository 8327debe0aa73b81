#include "base/crc32c.h"

#include <isa-l/crc.h>

/* isa-l takes an int length. */
#define CRC_CHUNK_BYTES ((size_t)1 << 30)

uint32_t amp_crc32c(uint32_t crc, const void *data, size_t size)
{
    const uint8_t *at = data;
    while (size > 0) {
        size_t chunk = size < CRC_CHUNK_BYTES ? size : CRC_CHUNK_BYTES;
        /* isa-l neither inverts nor writes, but its prototype lacks const. */
        crc = ~crc32_iscsi((unsigned char *)(uintptr_t)at, (int)chunk, ~crc);
        at += chunk;
        size -= chunk;
    }
    return crc;
}
