#include "server/io/page/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void io_json_init(struct io_json *json, size_t max)
{
    *json = (struct io_json){0};
    amp_buf_init(&json->buf, max);
}

void io_json_close(struct io_json *json)
{
    amp_buf_close(&json->buf);
}

static void put(struct io_json *json, const void *bytes, size_t size)
{
    if (json->error == 0)
        json->error = amp_buf_append(&json->buf, bytes, size);
}

void io_json_raw(struct io_json *json, const char *text)
{
    put(json, text, strlen(text));
}

/* ---- texts ---- */

/* How many bytes the UTF-8 character at `at` has (RFC 3629); 0: there is no valid one. */
static size_t character(const unsigned char *at)
{
    static const struct {
        unsigned char mask, lead;
        size_t size;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 1, 0}, {0xe0, 0xc0, 2, 0x80}, {0xf0, 0xe0, 3, 0x800}, {0xf8, 0xf0, 4, 0x10000}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if ((at[0] & forms[i].mask) != forms[i].lead)
            continue;
        uint32_t code = at[0] & (unsigned char)~forms[i].mask;
        for (size_t k = 1; k < forms[i].size; k++) {
            if ((at[k] & 0xc0) != 0x80) /* also the final zero */
                return 0;
            code = code << 6 | (at[k] & 0x3f);
        }
        bool fits = code >= forms[i].least && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
        return fits ? forms[i].size : 0;
    }
    return 0;
}

static bool is_plain(const unsigned char *at, size_t size)
{
    if (size > 1) /* the two ends of a line that are not ASCII: U+2028, U+2029 */
        return !(at[0] == 0xe2 && at[1] == 0x80 && (at[2] == 0xa8 || at[2] == 0xa9));
    return at[0] >= 0x20 && at[0] < 0x7f && strchr("\"\\<>&'", at[0]) == NULL;
}

/* Writes a character as \u and its number. */
static void put_escaped(struct io_json *json, const unsigned char *at, size_t size)
{
    char text[8];
    unsigned code = size == 1 ? at[0] : 0x2000u | (at[1] & 0x3fu) << 6 | (at[2] & 0x3fu);
    (void)snprintf(text, sizeof text, "\\u%04x", code);
    io_json_raw(json, text);
}

static void put_text(struct io_json *json, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    io_json_raw(json, "\"");
    while (*at != 0) {
        size_t size = character(at);
        if (size == 0)
            io_json_raw(json, "\xef\xbf\xbd");
        else if (is_plain(at, size))
            put(json, at, size);
        else
            put_escaped(json, at, size);
        at += size > 0 ? size : 1;
    }
    io_json_raw(json, "\"");
}

/* ---- values ---- */

static void begin(struct io_json *json, const char *name)
{
    if (json->comma)
        io_json_raw(json, ",");
    json->comma = true;
    if (name == NULL)
        return;
    put_text(json, name);
    io_json_raw(json, ":");
}

void io_json_open(struct io_json *json, const char *name, char bracket)
{
    begin(json, name);
    put(json, &bracket, 1);
    json->comma = false;
}

void io_json_shut(struct io_json *json, char bracket)
{
    put(json, &bracket, 1);
    json->comma = true;
}

void io_json_text(struct io_json *json, const char *name, const char *text)
{
    begin(json, name);
    put_text(json, text);
}

void io_json_number(struct io_json *json, const char *name, double value)
{
    char text[32] = "null";
    begin(json, name);
    if (isfinite(value))
        (void)snprintf(text, sizeof text, "%.9g", value);
    io_json_raw(json, text);
}

void io_json_count(struct io_json *json, const char *name, uint64_t value)
{
    char text[24];
    begin(json, name);
    (void)snprintf(text, sizeof text, "%" PRIu64, value);
    io_json_raw(json, text);
}

void io_json_truth(struct io_json *json, const char *name, bool value)
{
    begin(json, name);
    io_json_raw(json, value ? "true" : "false");
}

void io_json_none(struct io_json *json, const char *name)
{
    begin(json, name);
    io_json_raw(json, "null");
}

void io_json_value(struct io_json *json, const char *name, const void *text, size_t size)
{
    begin(json, name);
    put(json, text, size);
}
