#define _DEFAULT_SOURCE /* dirfd */
#include "server/io/base/open_files.h"

#include "server/io/base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>

uint64_t io_open_files_max(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? (uint64_t)limit.rlim_cur : 0;
}

uint64_t io_open_files_walk(const char *folder)
{
    DIR *entries = opendir(folder);
    if (entries == NULL) /* EMFILE: no descriptor is left, so the count is the limit */
        return errno == EMFILE ? io_open_files_max() : 0;
    uint64_t count = 0;
    for (const struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries))
        if (entry->d_name[0] != '.' && strtol(entry->d_name, NULL, 10) != dirfd(entries))
            count++;
    (void)closedir(entries); /* it was only read */
    return count;
}

uint64_t io_open_files_count(struct io_open_files *known, const char *folder, uint64_t now_us)
{
    if (known->until_us != 0 && now_us < known->until_us)
        return known->count;
    uint64_t begin_us = io_clock_now_us();
    known->count = io_open_files_walk(folder);
    uint64_t hold_us = (io_clock_now_us() - begin_us) * IO_OPEN_FILES_HOLD_TIMES;
    known->until_us = now_us + (hold_us > IO_OPEN_FILES_HOLD_US ? hold_us : IO_OPEN_FILES_HOLD_US);
    return known->count;
}
