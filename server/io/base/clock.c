#include "server/io/base/clock.h"

#include <time.h>
#include <uv.h>

int64_t io_clock_utc_us(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail for this clock */
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

uint64_t io_clock_now_us(void)
{
    return uv_hrtime() / 1000;
}
