/* Bytes as hexadecimal digits. */
#ifndef AMP_HEX_H
#define AMP_HEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads exactly 2 * size hexadecimal digits, of either case, into bytes[0..size). False: `text` is something else. */
bool amp_hex_parse(const char *text, uint8_t *bytes, size_t size);

#endif
