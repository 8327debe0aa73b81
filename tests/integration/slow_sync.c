/*
 * For LD_PRELOAD, in front of ampd's C library: what is synced is on the disk SLOW_SYNC_MS later, as where other programs keep the
 * disk busy.
 */
#define _GNU_SOURCE /* syscall */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CALL __attribute__((visibility("default")))

static void wait_a_little(void)
{
    const char *text = getenv("SLOW_SYNC_MS");
    long ms = text != NULL ? strtol(text, NULL, 10) : 0;
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    (void)nanosleep(&pause, NULL); /* an early end is as good */
}

CALL int fsync(int fd)
{
    wait_a_little();
    return (int)syscall(SYS_fsync, fd);
}

CALL int fdatasync(int fd)
{
    wait_a_little();
    return (int)syscall(SYS_fdatasync, fd);
}
