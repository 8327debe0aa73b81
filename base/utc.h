/* A time as people write it. */
#ifndef AMP_UTC_H
#define AMP_UTC_H

#include <stdbool.h>
#include <stdint.h>

/*
 * "2027-01-31" (its first instant) or "2027-01-31T12:00:00Z", from 1970 on, as microseconds of UTC. False: it is none,
 * or there is no such day or hour; *us is then as it was. Any thread.
 */
bool amp_utc_parse(const char *text, int64_t *us);

#endif
