/*
 * JSON, written from front to back into a bounded buffer: no tree, so that 40,000 numbers of a plot need none. After a
 * failure nothing more is added. Any thread.
 */
#ifndef AMPD_IO_JSON_H
#define AMPD_IO_JSON_H

#include "base/buf.h"

#include <stdbool.h>

struct io_json {
    struct amp_buf buf;
    bool comma; /* a value stands before what comes next */
    int error;  /* 0, AMP_ENOMEM, AMP_EEXHAUSTED */
};

/* An empty text of at most `max` bytes. */
void io_json_init(struct io_json *json, size_t max);
void io_json_close(struct io_json *json);

/* Begins an object or a list, '{' or '['; and ends it, '}' or ']'. `name` is NULL in a list and outside of all. */
void io_json_open(struct io_json *json, const char *name, char bracket);
void io_json_shut(struct io_json *json, char bracket);

/*
 * Any text: what would end it, control characters, and what a page could take for a tag or the end of a line are
 * escaped; bytes that are no UTF-8 become U+FFFD.
 */
void io_json_text(struct io_json *json, const char *name, const char *text);

/* Nine digits, which give a float back; null where it is not finite. */
void io_json_number(struct io_json *json, const char *name, double value);
void io_json_count(struct io_json *json, const char *name, uint64_t value);
void io_json_truth(struct io_json *json, const char *name, bool value);

/* null */
void io_json_none(struct io_json *json, const char *name);

/* What was written already as JSON, as one value. */
void io_json_value(struct io_json *json, const char *name, const void *text, size_t size);

/* Bytes as they are, outside of all values. */
void io_json_raw(struct io_json *json, const char *text);

#endif
