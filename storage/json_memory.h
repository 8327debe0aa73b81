/*
 * JSON with jansson, with lack of memory reported apart from invalid JSON: jansson returns NULL for both. (Where its
 * buffer for a token cannot grow, it even drops characters and then aborts; ampd_json_read prevents that.)
 *
 * Any thread; the failures that are remembered are those of the calling thread.
 */
#ifndef AMPD_JSON_MEMORY_H
#define AMPD_JSON_MEMORY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Forgets earlier failures of this thread. Called before JSON values are built or written as text. */
void ampd_json_begin(void);

/* Whether an allocation by jansson has failed on this thread since ampd_json_begin or the begin of ampd_json_read. */
bool ampd_json_no_memory(void);

/*
 * Parses a text of `size` bytes; an object with a key twice is refused. The value is the caller's (json_decref). NULL:
 * memory ran out if ampd_json_no_memory() is true, else the text is not valid JSON.
 */
json_t *ampd_json_read(const char *text, size_t size);

#endif
