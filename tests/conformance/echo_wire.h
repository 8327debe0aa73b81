/* Reading and writing the flat messages of echo.proto. Test only. */
#ifndef ECHO_WIRE_H
#define ECHO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Number of a varint field, or 0. */
uint64_t echo_get_number(const uint8_t *message, size_t size, uint32_t tag);

/* Bytes of a length-delimited field; false if it is absent. */
bool echo_get_bytes(const uint8_t *message, size_t size, uint32_t tag, const uint8_t **data, size_t *data_size);

/* Appends a varint field at out + *used. */
void echo_put_number(uint8_t *out, size_t *used, uint32_t tag, uint64_t value);

/* Appends tag and length of a bytes field whose bytes follow. */
void echo_put_head(uint8_t *out, size_t *used, uint32_t tag, uint64_t size);

#endif
