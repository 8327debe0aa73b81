/*
 * Texts that others have written: whether they are UTF-8, and how they are printed without doing anything to a
 * terminal.
 */
#ifndef AMP_BASE_TEXT_H
#define AMP_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Longest form that amp_text_escape gives to one byte of a text: \uXXXX. */
#define AMP_TEXT_ESCAPED_MAX 6

/*
 * Bytes of the UTF-8 character at `at` (RFC 3629 section 4), 0 where there is none or a zero byte. `left` is 1 or more.
 */
size_t amp_text_char(const char *at, size_t left);

/* Writes '?' over each byte that is of no UTF-8 character, as a text has that was cut in the middle of one. */
void amp_text_mend(char *text);

/*
 * Whether `text` can be a name: 1 to `max` bytes of UTF-8, without control characters (U+0000 to U+001F, U+007F to
 * U+009F) and those of `without`.
 */
bool amp_text_is_name(const char *text, size_t max, const char *without);

/*
 * Copies `text` into out[0..capacity), with a final zero and the escapes of JSON (RFC 8259 section 7): a control
 * character (U+0000 to U+001F, U+007F to U+009F) becomes \n, \r, \t or \u001b, a byte that is no UTF-8 becomes \ufffd,
 * and a character that `also` lists gets a backslash. False: it was cut, between two characters.
 */
bool amp_text_escape(const char *text, const char *also, char *out, size_t capacity);

#endif
