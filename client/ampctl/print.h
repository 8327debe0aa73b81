/*
 * What ampctl prints of a text that a server, a worker or a file has brought. Only JSON does without: it has escapes of
 * its own.
 */
#ifndef AMPCTL_PRINT_H
#define AMPCTL_PRINT_H

#include <stdio.h>

/*
 * The text as one line that does nothing to a terminal: control characters and what is no UTF-8 are \n, \u001b, \ufffd
 * (base/text.h). The caller frees it; NULL: out of memory.
 */
char *ampctl_text(const char *text);

/* Prints a line; the newline at its end is put there, any other one is escaped with the rest. 0, or -1. */
int ampctl_print(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
