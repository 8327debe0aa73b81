#define _GNU_SOURCE /* syscall, pwrite64, O_DIRECT */
#include "tests/unit/storage_faults.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

struct storage_faults storage_faults;

/* A writer's or reader's thread may be at a call while its owner clears the faults. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void storage_faults_clear(void)
{
    (void)pthread_mutex_lock(&lock);
    memset(&storage_faults, 0, sizeof storage_faults);
    (void)pthread_mutex_unlock(&lock);
}

static bool fails(unsigned *seen, const unsigned *at, const int *cause)
{
    (void)pthread_mutex_lock(&lock);
    (*seen)++;
    bool now = *at != 0 && *seen >= *at;
    if (now)
        errno = *cause;
    (void)pthread_mutex_unlock(&lock);
    return now;
}

static const int io_error = EIO;

static bool refuses(int fd)
{
    (void)pthread_mutex_lock(&lock);
    bool direct = storage_faults.refuse_direct != 0;
    (void)pthread_mutex_unlock(&lock);
    return direct && (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
}

__attribute__((visibility("default"))) int fsync(int fd)
{
    if (fails(&storage_faults.fsyncs, &storage_faults.fail_fsync_at, &io_error))
        return -1;
    return (int)syscall(SYS_fsync, fd);
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
    if (fails(&storage_faults.fsyncs, &storage_faults.fail_fsync_at, &io_error))
        return -1;
    return (int)syscall(SYS_fdatasync, fd);
}

__attribute__((visibility("default"))) ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    if (fails(&storage_faults.writes, &storage_faults.fail_write_at, &storage_faults.write_errno))
        return -1;
    if (refuses(fd)) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_pwrite64, fd, data, size, offset);
}

__attribute__((visibility("default"))) ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return pwrite64(fd, data, size, offset);
}

__attribute__((visibility("default"))) ssize_t pread64(int fd, void *data, size_t size, off64_t offset)
{
    if (fails(&storage_faults.reads, &storage_faults.fail_read_at, &io_error))
        return -1;
    if (refuses(fd)) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_pread64, fd, data, size, offset);
}

__attribute__((visibility("default"))) ssize_t pread(int fd, void *data, size_t size, off_t offset)
{
    return pread64(fd, data, size, offset);
}

__attribute__((visibility("default"))) int fallocate(int fd, int mode, off_t offset, off_t size)
{
    if (storage_faults.no_fallocate != 0) {
        errno = EOPNOTSUPP;
        return -1;
    }
    if (storage_faults.scarce_room != 0) {
        (void)syscall(SYS_fallocate, fd, mode, offset, size / 2);
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_fallocate, fd, mode, offset, size);
}

__attribute__((visibility("default"))) ssize_t write(int fd, const void *data, size_t size)
{
    if (fd > 2 && fails(&storage_faults.writes, &storage_faults.fail_write_at, &storage_faults.write_errno))
        return -1;
    return syscall(SYS_write, fd, data, size);
}

__attribute__((visibility("default"))) int flock(int fd, int operation)
{
    if (storage_faults.fail_locks > 0) {
        storage_faults.fail_locks--;
        errno = storage_faults.lock_errno;
        return -1;
    }
    return (int)syscall(SYS_flock, fd, operation);
}
