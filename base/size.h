/* Numbers, and numbers of bytes, as people write them. */
#ifndef AMP_SIZE_H
#define AMP_SIZE_H

#include <stdbool.h>
#include <stdint.h>

/* "1073741824", "1048576K", "1024M" and "1G" are the same. False: it is none, or 0, or too large. Any thread. */
bool amp_size_parse(const char *text, uint64_t *bytes);

/* The same of a number that has no unit. */
bool amp_count_parse(const char *text, uint64_t *count);

#endif
