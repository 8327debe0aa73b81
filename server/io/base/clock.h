/* The two clocks of the machine. Any thread. */
#ifndef AMPD_IO_CLOCK_H
#define AMPD_IO_CLOCK_H

#include <stdint.h>

/* UTC now, microseconds since 1970; it may be set either way. */
int64_t io_clock_utc_us(void);

/* Microseconds of a clock that does not go back, from any beginning. */
uint64_t io_clock_now_us(void);

#endif
