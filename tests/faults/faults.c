#define _GNU_SOURCE /* syscall, the 64-bit names that SQLite calls */
#include "tests/faults/faults.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SHIM __attribute__((visibility("default")))

static struct faults own;
struct faults *faults = &own;

void faults_arm(unsigned what, uint64_t n, bool forever, int cause)
{
    atomic_store(&faults->what, 0u);
    atomic_store(&faults->cause, cause);
    atomic_store(&faults->forever, forever);
    atomic_store(&faults->left, (int_least64_t)n - 1);
    atomic_store(&faults->seen, 0);
    atomic_store(&faults->failed, 0);
    atomic_store(&faults->what, what);
}

uint64_t faults_disarm(void)
{
    atomic_store(&faults->what, 0u);
    return atomic_load(&faults->failed);
}

/* Whether this call fails. */
static bool fails(unsigned class, const char *name)
{
    if ((atomic_load(&faults->what) & class) == 0)
        return false;
    atomic_fetch_add(&faults->seen, 1);
    int_least64_t left = atomic_fetch_sub(&faults->left, 1);
    if (left > 0 || (left < 0 && atomic_load(&faults->forever) == 0))
        return false;
    atomic_fetch_add(&faults->failed, 1);
    (void)strncpy(faults->last, name, sizeof faults->last - 1);
    return true;
}

/* ---- memory ---- */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *data, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *data, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);

void *__wrap_malloc(size_t size)
{
    return fails(FAULTS_OURS, "malloc") ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails(FAULTS_OURS, "calloc") ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *data, size_t size)
{
    return fails(FAULTS_OURS, "realloc") ? NULL : __real_realloc(data, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fails(FAULTS_OURS, "aligned_alloc") ? NULL : __real_aligned_alloc(alignment, size);
}

char *__wrap_strdup(const char *text)
{
    return fails(FAULTS_OURS, "strdup") ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t size)
{
    return fails(FAULTS_OURS, "strndup") ? NULL : __real_strndup(text, size);
}

/* In front of each block of SQLite's, which asks for sizes. */
struct block {
    _Alignas(16) int size;
};

static void *sqlite_malloc(int size)
{
    struct block *block = fails(FAULTS_SQLITE, "SQLite's malloc") ? NULL : __real_malloc(sizeof *block + (size_t)size);
    if (block == NULL)
        return NULL;
    block->size = size;
    return block + 1;
}

static void sqlite_free(void *data)
{
    if (data != NULL)
        free((struct block *)data - 1);
}

static void *sqlite_realloc(void *data, int size)
{
    struct block *block = data;
    block = fails(FAULTS_SQLITE, "SQLite's realloc") ? NULL : __real_realloc(block - 1, sizeof *block + (size_t)size);
    if (block == NULL)
        return NULL;
    block->size = size;
    return block + 1;
}

static int sqlite_size(void *data)
{
    return data != NULL ? ((struct block *)data - 1)->size : 0;
}

static int sqlite_roundup(int size)
{
    return (size + 7) / 8 * 8;
}

static int sqlite_init(void *arg)
{
    return SQLITE_OK;
}

static void sqlite_shutdown(void *arg)
{
}

void faults_install(void)
{
    static const sqlite3_mem_methods methods = {.xMalloc = sqlite_malloc,
                                                .xFree = sqlite_free,
                                                .xRealloc = sqlite_realloc,
                                                .xSize = sqlite_size,
                                                .xRoundup = sqlite_roundup,
                                                .xInit = sqlite_init,
                                                .xShutdown = sqlite_shutdown};
    if (sqlite3_config(SQLITE_CONFIG_MALLOC, &methods) != SQLITE_OK)
        abort();
    json_set_alloc_funcs(__wrap_malloc, free);
}

/* ---- the disk ---- */

static bool path_counts(const char *path)
{
    if (faults->dir[0] != 0)
        return strncmp(path, faults->dir, strlen(faults->dir)) == 0;
    return strncmp(path, "/dev/", 5) != 0 && strncmp(path, "/proc/", 6) != 0 && strncmp(path, "/etc/", 5) != 0;
}

static bool path_fails(unsigned class, const char *name, const char *path)
{
    if ((atomic_load(&faults->what) & class) == 0 || !path_counts(path) || !fails(class, name))
        return false;
    errno = atomic_load(&faults->cause);
    return true;
}

/* Sockets, pipes and the standard streams are none of ours. */
static bool file_fails(unsigned class, const char *name, int fd)
{
    struct stat info;
    int before = errno;
    if ((atomic_load(&faults->what) & class) == 0 || fd <= 2 || fstat(fd, &info) != 0 ||
        (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))) {
        errno = before;
        return false;
    }
    errno = before;
    if (!fails(class, name))
        return false;
    errno = atomic_load(&faults->cause);
    return true;
}

static int shim_open(const char *path, int flags, mode_t mode)
{
    if (path_fails(FAULTS_OPEN, "open", path))
        return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

#include "tests/unit/shim_open.h"

static ssize_t half_written(int fd, const void *data, size_t size, off64_t offset)
{
    if (atomic_load(&faults->half) != 0 && size > 1)
        (void)syscall(SYS_pwrite64, fd, data, size / 2, offset);
    errno = atomic_load(&faults->cause);
    return -1;
}

SHIM ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    if (file_fails(FAULTS_WRITE, "pwrite", fd))
        return half_written(fd, data, size, offset);
    return syscall(SYS_pwrite64, fd, data, size, offset);
}

SHIM ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return pwrite64(fd, data, size, offset);
}

SHIM ssize_t write(int fd, const void *data, size_t size)
{
    if (file_fails(FAULTS_WRITE, "write", fd))
        return -1;
    return syscall(SYS_write, fd, data, size);
}

SHIM ssize_t pread64(int fd, void *data, size_t size, off64_t offset)
{
    if (file_fails(FAULTS_READ, "pread", fd))
        return -1;
    return syscall(SYS_pread64, fd, data, size, offset);
}

SHIM ssize_t pread(int fd, void *data, size_t size, off_t offset)
{
    return pread64(fd, data, size, offset);
}

static int synced(int fd, const char *name, long number)
{
    if (file_fails(FAULTS_SYNC, name, fd))
        return -1;
    return atomic_load(&faults->real_sync) != 0 ? (int)syscall(number, fd) : 0;
}

SHIM int fsync(int fd)
{
    return synced(fd, "fsync", SYS_fsync);
}

SHIM int fdatasync(int fd)
{
    return synced(fd, "fdatasync", SYS_fdatasync);
}

SHIM int ftruncate64(int fd, off64_t size)
{
    if (file_fails(FAULTS_TRUNCATE, "ftruncate", fd))
        return -1;
    return (int)syscall(SYS_ftruncate, fd, size);
}

SHIM int ftruncate(int fd, off_t size)
{
    return ftruncate64(fd, size);
}

SHIM int fallocate64(int fd, int mode, off64_t offset, off64_t size)
{
    if (file_fails(FAULTS_TRUNCATE, "fallocate", fd))
        return -1;
    return (int)syscall(SYS_fallocate, fd, mode, offset, size);
}

SHIM int fallocate(int fd, int mode, off_t offset, off_t size)
{
    return fallocate64(fd, mode, offset, size);
}

SHIM int rename(const char *from, const char *to)
{
    if (path_fails(FAULTS_RENAME, "rename", to))
        return -1;
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

SHIM int unlink(const char *path)
{
    if (path_fails(FAULTS_UNLINK, "unlink", path))
        return -1;
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

SHIM int rmdir(const char *path)
{
    if (path_fails(FAULTS_UNLINK, "rmdir", path))
        return -1;
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

SHIM int mkdir(const char *path, mode_t mode)
{
    if (path_fails(FAULTS_MKDIR, "mkdir", path))
        return -1;
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

SHIM int close(int fd)
{
    bool failed = file_fails(FAULTS_CLOSE, "close", fd);
    int rc = (int)syscall(SYS_close, fd);
    if (failed)
        errno = atomic_load(&faults->cause);
    return failed ? -1 : rc;
}
