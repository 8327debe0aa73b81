/*
 * For LD_PRELOAD, in front of ampd's C library: nothing is synced while the file HANG_WHILE is there, as on a disk that
 * does not answer. With HANG_BELOW nothing is synced or unlinked that has this text in its path, and all else is.
 */
#define _GNU_SOURCE /* syscall */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static void hang_at(int fd)
{
    char link[64], path[4096] = "";
    const char *below = getenv("HANG_BELOW");
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    bool named = below != NULL && readlink(link, path, sizeof path - 1) > 0; /* the rest stays 0 */
    if (below == NULL || (named && strstr(path, below) != NULL))
        hang();
}

CALL int unlink(const char *path)
{
    const char *below = getenv("HANG_BELOW");
    if (below != NULL && strstr(path, below) != NULL)
        hang();
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

CALL int fsync(int fd)
{
    hang_at(fd);
    return (int)syscall(SYS_fsync, fd);
}

CALL int fdatasync(int fd)
{
    hang_at(fd);
    return (int)syscall(SYS_fdatasync, fd);
}
