/*
 * Tells JSON that could not be read or written for lack of memory from JSON that makes no sense: jansson says NULL to both,
 * and drops characters of a long token when its buffer cannot grow. Around each use:
 *
 *     ampd_json_begin();
 *     ... jansson ...
 *     if (ampd_json_no_memory())
 *         the result, if there is one, is not to be used
 */
#ifndef AMPD_JSON_MEMORY_H
#define AMPD_JSON_MEMORY_H

#include <stdbool.h>

/* Forgets earlier failures of this thread. */
void ampd_json_begin(void);

/* Whether an allocation of jansson's has failed on this thread since then. */
bool ampd_json_no_memory(void);

#endif
