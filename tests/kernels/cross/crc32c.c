/* CRC32C bit by bit, for a foreign processor without isa-l: an independent second computation of the golden hashes. */
#include "base/crc32c.h"

#define POLYNOMIAL 0x82f63b78u /* reflected */

uint32_t amp_crc32c(uint32_t crc, const void *data, size_t size)
{
    const uint8_t *at = data;
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
    }
    return ~crc;
}
