/* The text forms of gRPC over HTTP/2: grpc-timeout, percent-encoded grpc-message, base64 of "-bin" values,
 * keys. */
#ifndef ARPC_WIRE_TEXT_H
#define ARPC_WIRE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Parses "1 to 8 digits, then one of H M S m u n" into nanoseconds; a value over INT64_MAX becomes INT64_MAX.
 * Returns 0, or AMP_EINVAL for anything else (a sign, a space, nine digits).
 */
int arpc_timeout_parse(const uint8_t *text, size_t size, int64_t *timeout_ns);

/* Writes a timeout of at least 0 milliseconds, rounded up where 8 digits do not hold it. Returns the length.
 */
#define ARPC_TIMEOUT_TEXT_MAX 10 /* 8 digits, the unit, the final zero */
size_t arpc_timeout_write(int64_t timeout_ms, char text[ARPC_TIMEOUT_TEXT_MAX]);

/*
 * Percent-encodes what is outside %x20-24 and %x26-7E, and a space at either end, into out (capacity bytes, no final
 * zero). Returns the length; a text that does not fit is cut between two characters of UTF-8, and before its spaces.
 */
size_t arpc_percent_encode(const char *text, char *out, size_t capacity);

/* The reverse, into out with a final zero, cut to the capacity. A "%" without two hex digits is kept as it
 * is. */
size_t arpc_percent_decode(const uint8_t *text, size_t size, char *out, size_t capacity);

/* Length of the unpadded base64 of `size` bytes. */
#define ARPC_BASE64_SIZE(size) (((size)*4 + 2) / 3)

/* Writes unpadded base64 into out (ARPC_BASE64_SIZE(size) bytes). Returns the length. */
size_t arpc_base64_encode(const uint8_t *data, size_t size, char *out);

/*
 * Decodes base64, padded or not, into out (at least size * 3 / 4 bytes). 0 and *out_size, or AMP_EINVAL for a
 * character outside the alphabet, a wrong length or wrong padding.
 */
int arpc_base64_decode(const uint8_t *text, size_t size, uint8_t *out, size_t *out_size);

/* Whether the name is metadata a caller may send: [0-9a-z_.-]+, not reserved ("grpc-", "content-type", "te").
 */
bool arpc_metadata_key_ok(const char *key);

/* Whether the bytes are a metadata value in text form: %x20-7E, no space at either end. */
bool arpc_metadata_text_ok(const uint8_t *value, size_t size);

/* Whether the key's values are binary, that is, base64 on the wire. */
bool arpc_metadata_is_binary(const char *key, size_t size);

/* Whether a comma-separated list of names, as in grpc-accept-encoding, has this one. */
bool arpc_list_has(const uint8_t *list, size_t size, const char *name);

#endif
