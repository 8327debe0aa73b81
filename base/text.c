#include "base/text.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define REPLACEMENT 0xfffd /* U+FFFD stands for what could not be read */

size_t amp_text_char(const char *at, size_t left)
{
    const uint8_t *byte = (const uint8_t *)at;
    if (byte[0] < 0x80)
        return byte[0] != 0 ? 1 : 0;
    size_t length = byte[0] >= 0xf0 ? 4 : byte[0] >= 0xe0 ? 3 : 2;
    if (byte[0] < 0xc2 || byte[0] > 0xf4 || left < length)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((byte[i] & 0xc0) != 0x80)
            return 0;
    }
    bool overlong = (byte[0] == 0xe0 && byte[1] < 0xa0) || (byte[0] == 0xf0 && byte[1] < 0x90);
    bool surrogate = byte[0] == 0xed && byte[1] >= 0xa0;
    bool beyond = byte[0] == 0xf4 && byte[1] >= 0x90;
    return overlong || surrogate || beyond ? 0 : length;
}

/*
 * The code of a control character of `length` bytes, or of one that turns the direction of the text behind it around
 * (U+202A to U+202E, U+2066 to U+2069); U+FFFD if length is 0 (no character), 0 if it may be printed.
 */
static unsigned unprintable(const char *at, size_t length)
{
    const uint8_t *byte = (const uint8_t *)at;
    if (length == 3 && byte[0] == 0xe2 &&
        ((byte[1] == 0x80 && byte[2] >= 0xaa && byte[2] <= 0xae) ||
         (byte[1] == 0x81 && byte[2] >= 0xa6 && byte[2] <= 0xa9)))
        return 0x2000u | (byte[1] & 0x3fu) << 6 | (byte[2] & 0x3fu);
    if (length == 0)
        return REPLACEMENT;
    if (length == 1)
        return byte[0] < ' ' || byte[0] == 0x7f ? byte[0] : 0;
    return byte[0] == 0xc2 && byte[1] < 0xa0 ? byte[1] : 0; /* U+0080 to U+009F: a terminal may take U+009B for ESC [ */
}

void amp_text_repair(char *text)
{
    for (size_t left = strlen(text), length; left > 0; text += length, left -= length) {
        length = amp_text_char(text, left);
        if (length == 0) {
            *text = '?';
            length = 1;
        }
    }
}

bool amp_text_is_name(const char *text, size_t max, const char *without)
{
    size_t used = 0;
    while (used <= max && text[used] != 0) {
        size_t left = strnlen(text + used, max + 1 - used), length = amp_text_char(text + used, left);
        if (unprintable(text + used, length) != 0 || strchr(without, text[used]) != NULL)
            return false;
        used += length;
    }
    return used > 0 && used <= max;
}

bool amp_text_escape(const char *text, const char *also, char *out, size_t capacity)
{
    size_t used = 0, left = strlen(text);
    while (left > 0) {
        char form[AMP_TEXT_ESCAPED_MAX + 1];
        size_t length = amp_text_char(text, left);
        unsigned code = unprintable(text, length);
        if (code == '\n' || code == '\r' || code == '\t')
            (void)snprintf(form, sizeof form, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
        else if (code != 0)
            (void)snprintf(form, sizeof form, "\\u%04x", code & 0xffff);
        else
            (void)snprintf(form, sizeof form, "%s%.*s", strchr(also, text[0]) != NULL ? "\\" : "", (int)length, text);
        size_t size = strlen(form);
        if (size >= capacity - used)
            break;
        memcpy(out + used, form, size);
        used += size;
        text += length > 0 ? length : 1;
        left -= length > 0 ? length : 1;
    }
    out[used] = 0;
    return left == 0;
}
