/*
 * For LD_PRELOAD, in front of ampd's C library: nothing is synced, and no checkpoint is read, while the file HANG_WHILE
 * is there, as on a disk that does not answer. With HANG_BELOW nothing is synced, read or unlinked that has this text
 * in its path, nor is such a directory opened, and all else is.
 */
#define _GNU_SOURCE /* syscall, pread64, RTLD_NEXT */
#include <dirent.h>
#include <dlfcn.h>
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

/* Of a file that has `below` in its path; NULL: of any. */
static void hang_at(int fd, const char *below)
{
    char link[64], path[4096] = "";
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    bool named = below != NULL && readlink(link, path, sizeof path - 1) > 0; /* the rest stays 0 */
    if (below == NULL || (named && strstr(path, below) != NULL))
        hang();
}

/* Of a path that has HANG_BELOW in it. */
static void hang_on(const char *path)
{
    const char *below = getenv("HANG_BELOW");
    if (below != NULL && strstr(path, below) != NULL)
        hang();
}

CALL DIR *opendir(const char *path)
{
    DIR *(*next)(const char *);
    *(void **)&next = dlsym(RTLD_NEXT, "opendir");
    hang_on(path);
    return next(path);
}

CALL int unlink(const char *path)
{
    hang_on(path);
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

CALL int fsync(int fd)
{
    hang_at(fd, getenv("HANG_BELOW"));
    return (int)syscall(SYS_fsync, fd);
}

CALL int fdatasync(int fd)
{
    hang_at(fd, getenv("HANG_BELOW"));
    return (int)syscall(SYS_fdatasync, fd);
}

CALL ssize_t pread64(int fd, void *data, size_t size, off64_t offset)
{
    const char *below = getenv("HANG_BELOW");
    hang_at(fd, below != NULL ? below : ".safetensors");
    return syscall(SYS_pread64, fd, data, size, offset);
}

CALL ssize_t pread(int fd, void *data, size_t size, off_t offset)
{
    return pread64(fd, data, size, offset);
}
