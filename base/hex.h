/* Bytes as hexadecimal digits. */
#ifndef AMP_HEX_H
#define AMP_HEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads exactly 2 * size hexadecimal digits, of either case, into bytes[0..size). False: `text` is something else. */
bool amp_hex_parse(const char *text, uint8_t *bytes, size_t size);

/* Writes bytes[0..size) as 2 * size digits in lower case and a final zero. */
void amp_hex_write(const uint8_t *bytes, size_t size, char *text);

#endif
