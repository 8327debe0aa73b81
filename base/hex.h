/* Bytes as hexadecimal digits. */
#ifndef AMP_HEX_H
#define AMP_HEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether `text` is exactly 2 * size hexadecimal digits, of either case; then bytes[0..size) are what they say. */
bool amp_hex_parse(const char *text, uint8_t *bytes, size_t size);

#endif
