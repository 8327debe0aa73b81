/*
 * For LD_PRELOAD, in front of ampd's C library: nothing is synced while the file HANG_WHILE is there, as on a disk that
 * does not answer.
 */
#define _GNU_SOURCE /* syscall */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CALL __attribute__((visibility("default")))

static void hang(void)
{
    const char *path = getenv("HANG_WHILE");
    const struct timespec pause = {0, 20000000};
    while (path != NULL && access(path, F_OK) == 0)
        (void)nanosleep(&pause, NULL); /* an early end is as good */
}

CALL int fsync(int fd)
{
    hang();
    return (int)syscall(SYS_fsync, fd);
}

CALL int fdatasync(int fd)
{
    hang();
    return (int)syscall(SYS_fdatasync, fd);
}
