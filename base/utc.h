/* Parses times that users write. */
#ifndef AMP_UTC_H
#define AMP_UTC_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Parses "2027-01-31" (midnight at its beginning) or "2027-01-31T12:00:00Z" into UTC microseconds since 1970. False: it
 * is neither, there is no such day or time of day, or it is before 1970; *us does not change. Any thread.
 */
bool amp_utc_parse(const char *text, int64_t *us);

#endif
