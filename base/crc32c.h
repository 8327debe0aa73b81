/* CRC32C (Castagnoli), as in iSCSI: crc of "123456789" is 0xe3069283. */
#ifndef AMP_BASE_CRC32C_H
#define AMP_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/*
 * Continues a checksum over `size` more bytes. `crc` is the checksum of the bytes before them, 0 at the start. Any
 * thread.
 */
uint32_t amp_crc32c(uint32_t crc, const void *data, size_t size);

#endif
