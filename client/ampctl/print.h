/*
 * How ampctl prints texts that come from a server, a worker or a file. JSON does not need it, having its own escapes.
 */
#ifndef AMPCTL_PRINT_H
#define AMPCTL_PRINT_H

#include <jansson.h>
#include <stdio.h>

/*
 * The text as one line that cannot control a terminal: control characters and what is not UTF-8 become \n, \u001b or
 * \ufffd (base/text.h). The caller frees it; NULL: out of memory.
 */
char *ampctl_text(const char *text);

/* The text as a value of JSON, which is UTF-8: each other byte becomes '?'. NULL: out of memory. */
json_t *ampctl_json_text(const char *text);

/*
 * Prints a formatted line and a newline; control characters in it are escaped. 0; -1: out of memory, or `out` failed.
 */
int ampctl_print(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
