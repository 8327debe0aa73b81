/* A number of bytes as people write it. */
#ifndef AMP_SIZE_H
#define AMP_SIZE_H

#include <stdbool.h>
#include <stdint.h>

/* "1073741824", "1048576K", "1024M" and "1G" are the same. False: it is none, or 0, or too large. Any thread. */
bool amp_size_parse(const char *text, uint64_t *bytes);

#endif
