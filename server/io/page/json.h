/*
 * Writes JSON from front to back into a buffer of bounded size. It builds no tree, so that a plot of 40,000 numbers
 * needs no more memory than its text. After a failure nothing more is written, and io_json.error keeps the code. Any
 * thread, one at a time for each text.
 */
#ifndef AMPD_IO_JSON_H
#define AMPD_IO_JSON_H

#include "base/buf.h"

#include <stdbool.h>

struct io_json {
    struct amp_buf buf; /* the text so far */
    bool comma;         /* the next value of the open object or list needs a comma before it */
    int error;          /* 0; AMP_ENOMEM; AMP_EEXHAUSTED: the text would be longer than its bound */
};

/* Begins an empty text of at most `max` bytes; io_json_close frees it. */
void io_json_init(struct io_json *json, size_t max);
void io_json_close(struct io_json *json);

/*
 * Opens an object ('{') or a list ('['), and closes it ('}' or ']'). Here and below `name` is the name of the value in
 * its object; it is NULL in a list, and for the outermost value.
 */
void io_json_open(struct io_json *json, const char *name, char bracket);
void io_json_shut(struct io_json *json, char bracket);

/*
 * Writes a string. Quotes, control characters, and characters that a page could take for a tag or for the end of a line
 * are escaped; bytes that are not UTF-8 become U+FFFD.
 */
void io_json_text(struct io_json *json, const char *name, const char *text);

/* Writes a number: `number` with nine digits, from which a float is read back exactly, or null if it is not finite. */
void io_json_number(struct io_json *json, const char *name, double value);
void io_json_count(struct io_json *json, const char *name, uint64_t value);
void io_json_truth(struct io_json *json, const char *name, bool value);

/* Writes null. */
void io_json_none(struct io_json *json, const char *name);

/* Writes one value that is JSON already. */
void io_json_value(struct io_json *json, const char *name, const void *text, size_t size);

/* Writes bytes as they are, with no comma; for what stands outside of all values. */
void io_json_raw(struct io_json *json, const char *text);

#endif
