#include "rpc/wire/text.h"

#include "base/err.h"

#include <stdio.h>
#include <string.h>

#define TIMEOUT_DIGITS_MAX 8        /* gRPC PROTOCOL-HTTP2: TimeoutValue */
#define TIMEOUT_VALUE_MAX  99999999 /* the largest number of that many digits */

static int64_t unit_ns(uint8_t unit)
{
    switch (unit) {
    case 'n':
        return 1;
    case 'u':
        return 1000;
    case 'm':
        return 1000 * 1000;
    case 'S':
        return 1000 * 1000 * 1000;
    case 'M':
        return INT64_C(60) * 1000 * 1000 * 1000;
    case 'H':
        return INT64_C(3600) * 1000 * 1000 * 1000;
    default:
        return 0;
    }
}

int arpc_timeout_parse(const uint8_t *text, size_t size, int64_t *timeout_ns)
{
    if (size < 2 || size > TIMEOUT_DIGITS_MAX + 1)
        return AMP_EINVAL;
    int64_t value = 0;
    for (size_t i = 0; i + 1 < size; i++) {
        if (text[i] < '0' || text[i] > '9')
            return AMP_EINVAL;
        value = value * 10 + (text[i] - '0');
    }
    int64_t unit = unit_ns(text[size - 1]);
    if (unit == 0)
        return AMP_EINVAL;
    *timeout_ns = value > INT64_MAX / unit ? INT64_MAX : value * unit;
    return 0;
}

size_t arpc_timeout_write(int64_t timeout_ms, char text[ARPC_TIMEOUT_TEXT_MAX])
{
    static const struct {
        int64_t ms;
        char unit;
    } units[] = {{1, 'm'}, {1000, 'S'}, {60 * 1000, 'M'}, {3600 * 1000, 'H'}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        int64_t value = timeout_ms / units[i].ms + (timeout_ms % units[i].ms != 0);
        if (value <= TIMEOUT_VALUE_MAX)
            return (size_t)snprintf(text, ARPC_TIMEOUT_TEXT_MAX, "%u%c", (unsigned)value, units[i].unit);
    }
    return (size_t)snprintf(text, ARPC_TIMEOUT_TEXT_MAX, "%dH", TIMEOUT_VALUE_MAX);
}

static bool percent_plain(uint8_t c)
{
    return c >= 0x20 && c <= 0x7e && c != '%';
}

/* Bytes of the character of UTF-8 that begins here; 1 for a byte that begins none. */
static size_t utf8_size(const uint8_t *text)
{
    size_t size = text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : text[0] >= 0xc0 ? 2 : 1;
    for (size_t i = 1; i < size; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 1;
    return size;
}

size_t arpc_percent_encode(const char *text, char *out, size_t capacity)
{
    static const char hex[] = "0123456789ABCDEF";
    const uint8_t *p = (const uint8_t *)text;
    size_t used = 0;
    while (*p != 0) {
        size_t size = utf8_size(p);
        /* RFC 9113 8.2.1: a field's value neither begins nor ends with a space. */
        bool outer = *p == ' ' && (used == 0 || p[1] == 0);
        size_t need = size == 1 && percent_plain(*p) && !outer ? 1 : 3 * size;
        if (need > capacity - used)
            break;
        if (need == 1)
            out[used++] = (char)*p;
        for (size_t i = 0; need > 1 && i < size; i++) {
            out[used++] = '%';
            out[used++] = hex[p[i] >> 4];
            out[used++] = hex[p[i] & 15];
        }
        p += size;
    }
    while (used > 0 && out[used - 1] == ' ') /* it was cut */
        used--;
    return used;
}

static int hex_value(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

size_t arpc_percent_decode(const uint8_t *text, size_t size, char *out, size_t capacity)
{
    size_t used = 0;
    for (size_t i = 0; i < size && used + 1 < capacity; i++) {
        int high = text[i] == '%' && i + 2 < size ? hex_value(text[i + 1]) : -1;
        int low = high >= 0 ? hex_value(text[i + 2]) : -1;
        if (low >= 0) {
            out[used++] = (char)(high << 4 | low);
            i += 2;
        } else {
            out[used++] = (char)text[i];
        }
    }
    out[used] = 0;
    return used;
}

size_t arpc_base64_encode(const uint8_t *data, size_t size, char *out)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t used = 0;
    uint32_t bits = 0;
    unsigned count = 0;
    for (size_t i = 0; i < size; i++) {
        bits = bits << 8 | data[i];
        for (count += 8; count >= 6; count -= 6)
            out[used++] = alphabet[bits >> (count - 6) & 63];
    }
    if (count > 0)
        out[used++] = alphabet[bits << (6 - count) & 63];
    return used;
}

static int base64_value(uint8_t c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int arpc_base64_decode(const uint8_t *text, size_t size, uint8_t *out, size_t *out_size)
{
    size_t padded = size;
    while (size > 0 && text[size - 1] == '=' && padded - size < 2)
        size--;
    if ((padded != size && padded % 4 != 0) || size % 4 == 1)
        return AMP_EINVAL;
    size_t used = 0;
    uint32_t bits = 0;
    unsigned count = 0;
    for (size_t i = 0; i < size; i++) {
        int value = base64_value(text[i]);
        if (value < 0)
            return AMP_EINVAL;
        bits = bits << 6 | (uint32_t)value;
        count += 6;
        if (count >= 8) {
            count -= 8;
            out[used++] = (uint8_t)(bits >> count);
        }
    }
    *out_size = used;
    return 0;
}

bool arpc_metadata_key_ok(const char *key)
{
    if (*key == 0 || strncmp(key, "grpc-", 5) == 0 || strcmp(key, "content-type") == 0 || strcmp(key, "te") == 0)
        return false;
    return key[strspn(key, "0123456789abcdefghijklmnopqrstuvwxyz_.-")] == 0;
}

bool arpc_metadata_text_ok(const uint8_t *value, size_t size)
{
    if (size > 0 && (value[0] == ' ' || value[size - 1] == ' '))
        return false;
    for (size_t i = 0; i < size; i++)
        if (value[i] < 0x20 || value[i] > 0x7e)
            return false;
    return true;
}

bool arpc_metadata_is_binary(const char *key, size_t size)
{
    return size > 4 && memcmp(key + size - 4, "-bin", 4) == 0;
}

bool arpc_list_has(const uint8_t *list, size_t size, const char *name)
{
    size_t name_size = strlen(name);
    for (;;) {
        while (size > 0 && *list == ' ') {
            list++;
            size--;
        }
        const uint8_t *comma = size > 0 ? memchr(list, ',', size) : NULL;
        size_t part = comma != NULL ? (size_t)(comma - list) : size;
        size_t used = part;
        while (used > 0 && list[used - 1] == ' ')
            used--;
        if (used == name_size && memcmp(list, name, used) == 0)
            return true;
        if (comma == NULL)
            return false;
        list = comma + 1;
        size -= part + 1;
    }
}
