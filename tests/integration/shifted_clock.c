/*
 * For LD_PRELOAD, in front of ampd's C library: the clock of the day is SHIFTED_CLOCK_S seconds ahead, or behind; the monotonic ones
 * are as they are, as on a machine whose clock nobody has set.
 */
#define _GNU_SOURCE /* syscall */
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define CALL __attribute__((visibility("default")))

static long shift_s(void)
{
    const char *text = getenv("SHIFTED_CLOCK_S");
    return text != NULL ? strtol(text, NULL, 10) : 0;
}

CALL int clock_gettime(clockid_t clock, struct timespec *time)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, time);
    bool of_day = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (rc == 0 && of_day)
        time->tv_sec += shift_s();
    return rc;
}

CALL int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec time;
    (void)zone;
    int rc = clock_gettime(CLOCK_REALTIME, &time);
    *now = (struct timeval){.tv_sec = time.tv_sec, .tv_usec = time.tv_nsec / 1000};
    return rc;
}

CALL time_t time(time_t *out)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL)
        *out = now.tv_sec;
    return now.tv_sec;
}
