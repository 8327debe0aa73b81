/*
 * For LD_PRELOAD, in front of ampd's C library: nothing is synced, and no checkpoint is read, while the file HANG_WHILE
 * is there, as on a disk that does not answer.
 */
#define _GNU_SOURCE /* syscall, pread64 */
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

CALL ssize_t pread64(int fd, void *data, size_t size, off64_t offset)
{
    char link[64], path[4096];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    if (strstr(path, ".safetensors") != NULL)
        hang();
    return syscall(SYS_pread64, fd, data, size, offset);
}

CALL ssize_t pread(int fd, void *data, size_t size, off_t offset)
{
    return pread64(fd, data, size, offset);
}
