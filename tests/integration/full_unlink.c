/*
 * For LD_PRELOAD, in front of ampd's C library: while the file FULL_WHILE is there no checkpoint can be removed for a
 * lack of room, as on a file system that copies before it writes.
 */
#define _GNU_SOURCE /* syscall */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((visibility("default"))) int unlink(const char *path)
{
    const char *flag = getenv("FULL_WHILE");
    if (flag != NULL && access(flag, F_OK) == 0 && strstr(path, ".safetensors") != NULL) {
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}
