/*
 * The memory that a process may use, by cgroups(7). /proc/self/cgroup has a line for each hierarchy:
 *
 *     0::/system.slice/ampd.service         v2: the limit is <mount>/<path>/memory.max, "max" for none
 *     5:memory:/docker/1f0c...              v1: <mount>/memory/<path>/memory.limit_in_bytes, a huge number for none
 *
 * The limit of a group holds for all groups below it, so the limits of all groups on the path up to the mount are read.
 * Inside a container the path may be one of the machine's own, which does not exist there: the container's limit is
 * then at the mount itself.
 */
#define _DEFAULT_SOURCE /* _SC_PHYS_PAGES */
#include "server/io/process/memory_limit.h"

#include "proto/msg_common.h"
#include "rpc/arpc_limits.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/*
 * Parts of --memory-max, which by default is three quarters of all memory. One quarter is left for all but tensors, a
 * third of --memory-max: all these parts together are a little less.
 */
#define SHARE         16
#define WAITING_SHARE 8
/* Memory for 64 pushes that wait, each with the bytes that it may have before its grant (rpc/h2/receive.h). */
#define WAITING_LEAST (64 * ((uint64_t)256 << 10))

/* PATH_MAX of Linux: a longer path cannot be opened. */
#define PATH_SIZE 4096

/* The number at the beginning of a file; UINT64_MAX (no limit) if there is no number or no file. */
static uint64_t read_limit(const char *path)
{
    uint64_t limit = UINT64_MAX;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return limit;
    if (fscanf(file, "%" SCNu64, &limit) != 1)
        limit = UINT64_MAX;
    (void)fclose(file); /* it was only read */
    return limit;
}

/* The least limit of the group and of those above it. */
static uint64_t least_limit(const char *mount, const char *group, const char *file)
{
    char path[PATH_SIZE + 64];
    char at[PATH_SIZE];
    uint64_t least = UINT64_MAX;
    (void)snprintf(at, sizeof at, "%s%s", mount, group); /* a path that is too long cannot exist */
    size_t size = strlen(at);
    for (size_t stop = strlen(mount); size >= stop && stop > 0; at[size] = 0) {
        (void)snprintf(path, sizeof path, "%s/%s", at, file);
        uint64_t limit = read_limit(path);
        least = limit < least ? limit : least;
        if (size == stop)
            break;
        while (size > stop && at[size] != '/')
            size--;
    }
    return least;
}

/* Whether the list of controllers in a v1 line has "memory". */
static bool has_memory(const char *controllers, size_t size)
{
    static const char wanted[] = "memory";
    for (const char *at = controllers; at < controllers + size;) {
        size_t word = strcspn(at, ",:");
        if (word == strlen(wanted) && memcmp(at, wanted, word) == 0)
            return true;
        at += word + 1;
    }
    return false;
}

static uint64_t limit_of_line(const char *line, const char *mount)
{
    char memory[PATH_SIZE];
    const char *controllers = strchr(line, ':');
    const char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
    if (group == NULL)
        return UINT64_MAX;
    size_t size = (size_t)(group - controllers - 1);
    if (size == 0)
        return least_limit(mount, group + 1, "memory.max");
    if (!has_memory(controllers + 1, size))
        return UINT64_MAX;
    (void)snprintf(memory, sizeof memory, "%s/memory", mount);
    return least_limit(memory, group + 1, "memory.limit_in_bytes");
}

uint64_t io_memory_limit_of(const char *groups, const char *mount, uint64_t physical_bytes)
{
    char line[PATH_SIZE];
    uint64_t least = physical_bytes == 0 ? UINT64_MAX : physical_bytes;
    FILE *file = fopen(groups, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = 0;
        uint64_t limit = limit_of_line(line, mount);
        least = limit < least ? limit : least;
    }
    if (file != NULL)
        (void)fclose(file); /* it was only read */
    return least == UINT64_MAX ? 0 : least;
}

static void lower(int64_t *limit, uint64_t share, uint64_t least)
{
    share = share > least ? share : least;
    if (share < (uint64_t)*limit)
        *limit = (int64_t)share;
}

void io_memory_bound_calls(uint64_t memory_max, struct arpc_limits *limits)
{
    if (memory_max == 0)
        return;
    lower(&limits->unfinished, memory_max / SHARE, 4 * AMPD_MSG_SIZE_MAX);
    lower(&limits->unfinished_per_address, (uint64_t)limits->unfinished / 2, 0);
    lower(&limits->waiting, memory_max / WAITING_SHARE, WAITING_LEAST);
    lower(&limits->open, memory_max / SHARE, WAITING_LEAST);
    lower(&limits->unsent, memory_max / SHARE, 16 * AMPD_MSG_SIZE_MAX);
}

uint64_t io_memory_limit(void)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    uint64_t physical = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    return io_memory_limit_of("/proc/self/cgroup", "/sys/fs/cgroup", physical);
}
