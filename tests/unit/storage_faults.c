#define _GNU_SOURCE /* syscall, pwrite64 */
#include "tests/unit/storage_faults.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct storage_faults storage_faults;

void storage_faults_clear(void)
{
    memset(&storage_faults, 0, sizeof storage_faults);
}

static bool fails(unsigned *seen, unsigned at, int cause)
{
    (*seen)++;
    if (at == 0 || *seen < at)
        return false;
    errno = cause;
    return true;
}

__attribute__((visibility("default"))) int fsync(int fd)
{
    if (fails(&storage_faults.fsyncs, storage_faults.fail_fsync_at, EIO))
        return -1;
    return (int)syscall(SYS_fsync, fd);
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
    if (fails(&storage_faults.fsyncs, storage_faults.fail_fsync_at, EIO))
        return -1;
    return (int)syscall(SYS_fdatasync, fd);
}

__attribute__((visibility("default"))) ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    if (fails(&storage_faults.writes, storage_faults.fail_write_at, storage_faults.write_errno))
        return -1;
    return syscall(SYS_pwrite64, fd, data, size, offset);
}

__attribute__((visibility("default"))) ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return pwrite64(fd, data, size, offset);
}

__attribute__((visibility("default"))) ssize_t write(int fd, const void *data, size_t size)
{
    if (fd > 2 && fails(&storage_faults.writes, storage_faults.fail_write_at, storage_faults.write_errno))
        return -1;
    return syscall(SYS_write, fd, data, size);
}
