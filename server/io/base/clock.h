/* The machine's wall clock and its monotonic clock. Any thread. */
#ifndef AMPD_IO_CLOCK_H
#define AMPD_IO_CLOCK_H

#include <stdint.h>

/* UTC in microseconds since 1970. An operator or NTP may set it forwards and backwards. */
int64_t io_clock_utc_us(void);

/* Microseconds of a monotonic clock with an arbitrary beginning. */
uint64_t io_clock_now_us(void);

#endif
