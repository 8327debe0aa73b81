/* Parses counts and sizes in bytes that users write. */
#ifndef AMP_SIZE_H
#define AMP_SIZE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Parses a size in bytes, with an optional unit K, M or G (powers of 1024): "1073741824", "1048576K", "1024M" and "1G"
 * are the same. False: it is not a size, or it is 0 or does not fit; *bytes does not change. Any thread.
 */
bool amp_size_parse(const char *text, uint64_t *bytes);

/* As amp_size_parse, for a number without a unit. */
bool amp_count_parse(const char *text, uint64_t *count);

#endif
