/* For LD_PRELOAD, in front of ampd's C library: a disk on which the rename of a store takes longer than a shard may be silent. */
#define _GNU_SOURCE /* syscall */
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CALL   __attribute__((visibility("default")))
#define SLOW_S 11

CALL int rename(const char *from, const char *to)
{
    static const char name[] = "/joining/ampd.db";
    size_t size = strlen(from), own = strlen(name);
    const struct timespec slow = {.tv_sec = SLOW_S};
    if (size >= own && strcmp(from + size - own, name) == 0)
        (void)nanosleep(&slow, NULL);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
