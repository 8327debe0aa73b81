/*
 * Tells JSON that could not be read or written for lack of memory from JSON that makes no sense: jansson says NULL to
 * both. While it reads a token that its buffer has no room for it even drops characters, and then aborts.
 */
#ifndef AMPD_JSON_MEMORY_H
#define AMPD_JSON_MEMORY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Forgets earlier failures of this thread. Before anything is made or dumped. */
void ampd_json_begin(void);

/* Whether an allocation of jansson's has failed on this thread since then. */
bool ampd_json_no_memory(void);

/*
 * Reads a text, without duplicate keys. The value is the caller's (json_decref). NULL: not JSON; or, says
 * ampd_json_no_memory, there was no memory.
 */
json_t *ampd_json_read(const char *text, size_t size);

#endif
