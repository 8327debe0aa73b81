/*
 * Texts from outside the program: checks that they are UTF-8, and makes them safe to print on a terminal. Any thread.
 */
#ifndef AMP_BASE_TEXT_H
#define AMP_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* The most bytes that amp_text_escape writes for one byte of a text: \uXXXX. */
#define AMP_TEXT_ESCAPED_MAX 6

/*
 * The length in bytes of the UTF-8 character at `at` (RFC 3629 section 4), of which `left` bytes (at least 1) may be
 * read. 0: there is a zero byte, or no valid character.
 */
size_t amp_text_char(const char *at, size_t left);

/* Replaces each byte that is not part of a UTF-8 character by '?'. For a text that may have been cut inside one. */
void amp_text_repair(char *text);

/*
 * Whether `text` can be a name: 1 to `max` bytes of UTF-8, without control characters (U+0000 to U+001F, U+007F to
 * U+009F), those that turn the direction of text around (U+202A to U+202E, U+2066 to U+2069), and the (ASCII)
 * characters in `without`.
 */
bool amp_text_is_name(const char *text, size_t max, const char *without);

/*
 * Copies `text` into out[0..capacity), with a final zero and the escapes of JSON (RFC 8259 section 7). A control
 * character (U+0000 to U+001F, U+007F to U+009F) becomes \n, \r, \t or a form like \u001b, as does one that turns the
 * direction of text around; a byte that is not UTF-8 becomes \ufffd; a character listed in `also` gets a backslash
 * before it. False: the text did not fit and was cut between two characters.
 */
bool amp_text_escape(const char *text, const char *also, char *out, size_t capacity);

#endif
