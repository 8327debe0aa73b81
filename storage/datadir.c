#define _DEFAULT_SOURCE /* flock, which POSIX leaves out */
#include "storage/datadir.h"

#include "storage/plain_file.h"
#include "storage/records.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* A pid or a version number as text, with the final zero. */
#define NUMBER_TEXT_MAX 32

bool ampd_datadir_name_ok(const char *name)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t size = strnlen(name, AMPD_NAME_MAX);
    return size > 0 && size < AMPD_NAME_MAX && name[0] != '.' && strspn(name, allowed) == size;
}

static int system_error(struct amp_error *error, const char *what, const char *path)
{
    int cause = errno;
    if (cause == ENOSPC || cause == EDQUOT)
        return amp_error_set(error, AMP_EEXHAUSTED, "NO_SPACE", "%s %s: the disk is full", what, path);
    bool given_wrong = cause == EACCES || cause == EPERM || cause == ENOENT || cause == ENOTDIR || cause == EROFS ||
                       cause == ELOOP || cause == ENXIO || cause == EISDIR;
    if (given_wrong)
        return amp_error_set(error, AMP_EINVAL, "DATA_DIR",
                             "%s %s: %s; see that its folder is there and that this user may write to it, or choose "
                             "another",
                             what, path, ampd_plain_strerror(cause));
    return amp_error_set(error, AMP_EIO, "DATA_DIR", "%s %s: %s", what, path, ampd_plain_strerror(cause));
}

/* The number at the start of a small file; -1 if there is none. */
static long long read_number(int fd)
{
    char text[NUMBER_TEXT_MAX];
    ssize_t got = pread(fd, text, sizeof text - 1, 0);
    if (got <= 0)
        return -1;
    text[got] = 0;
    char *end;
    long long number = strtoll(text, &end, 10);
    return end == text || number < 0 ? -1 : number;
}

/* Whether a file has only a beginning of this number's text, or nothing: what is left when the disk was full. */
static bool is_torn(int fd, long long number)
{
    char text[NUMBER_TEXT_MAX], found[NUMBER_TEXT_MAX];
    int size = snprintf(text, sizeof text, "%lld\n", number);
    ssize_t got = pread(fd, found, sizeof found, 0);
    return got >= 0 && got < size && memcmp(text, found, (size_t)got) == 0;
}

static int write_number(int fd, long long number)
{
    char text[NUMBER_TEXT_MAX];
    int size = snprintf(text, sizeof text, "%lld\n", number);
    if (ftruncate(fd, 0) != 0)
        return -1;
    return pwrite(fd, text, (size_t)size, 0) == size ? 0 : -1;
}

/* By whom a lock is held, as its file says; the disk may have had no room for that. */
static void name_holder(int fd, char text[2 * NUMBER_TEXT_MAX])
{
    long long pid = read_number(fd);
    if (pid > 0)
        (void)snprintf(text, (size_t)2 * NUMBER_TEXT_MAX, "process %lld", pid);
    else
        (void)snprintf(text, (size_t)2 * NUMBER_TEXT_MAX, "another process");
}

static int lock(int fd, const char *path, const char *what, const char *option, struct amp_error *error)
{
    char holder[2 * NUMBER_TEXT_MAX];
    int rc;
    do
        rc = flock(fd, LOCK_EX | LOCK_NB);
    while (rc != 0 && errno == EINTR);
    if (rc == 0)
        return 0;
    if (errno == EWOULDBLOCK) {
        name_holder(fd, holder);
        return amp_error_set(error, AMP_ELOCKED, "DATA_DIR_LOCKED",
                             "%s %s is in use by %s: stop it, or choose another %s", what, path, holder, option);
    }
    return amp_error_set(error, AMP_EINVAL, "DATA_DIR",
                         "%s %s cannot be locked: %s; choose a %s on a file system that has locks (NFS needs its lock "
                         "service)",
                         what, path, strerror(errno), option);
}

int ampd_datadir_lock(const char *path, const char *name, const char *what, const char *option, int *lock_fd,
                      struct amp_error *error)
{
    char file[AMPD_DATADIR_PATH_MAX + 64];
    *lock_fd = -1;
    if (snprintf(file, sizeof file, "%s/%s", path, name) >= (int)sizeof file)
        return amp_error_set(error, AMP_EINVAL, "DATA_DIR", "%s %.200s: the path is too long", what, path);
    int fd = ampd_plain_open(file, O_RDWR | O_CREAT);
    if (fd < 0)
        return system_error(error, "cannot open", file);
    int rc = lock(fd, path, what, option, error);
    if (rc != 0) {
        (void)close(fd); /* nothing in it counts */
        return rc;
    }
    (void)write_number(fd, (long long)getpid()); /* only a hint: a full disk has no room for it, and the lock counts */
    *lock_fd = fd;
    return 0;
}

int ampd_datadir_check_writable(const char *path, const char *what, struct amp_error *error)
{
    char name[AMPD_DATADIR_PATH_MAX + 32], text[96];
    if (snprintf(name, sizeof name, "%s/.ampd-try-XXXXXX", path) >= (int)sizeof name)
        return amp_error_set(error, AMP_EINVAL, "DATA_DIR", "%s %.200s: the path is too long", what, path);
    int fd = mkstemp(name);
    if (fd < 0 && (errno == ENOSPC || errno == EDQUOT))
        return 0; /* the disk is full: later writes wait for room */
    (void)snprintf(text, sizeof text, "%s cannot be written; is it mounted, and this user's? Making a file in", what);
    if (fd < 0)
        return system_error(error, text, path);
    (void)close(fd); /* empty */
    return unlink(name) == 0 || errno == ENOENT ? 0 : system_error(error, text, path);
}

/* Whether every user of the machine may create and remove files in a directory, so that none in it can be trusted. */
static bool is_open_to_all(const struct stat *about)
{
    return (about->st_mode & S_IWOTH) != 0 && (about->st_mode & S_ISVTX) == 0;
}

bool ampd_datadir_writable_by_others(const char *path, char *text, size_t size)
{
    struct stat about;
    if (stat(path, &about) != 0)
        return false;
    if (is_open_to_all(&about))
        (void)snprintf(text, size, "every user of this machine can write to it (mode %04o)", about.st_mode & 07777u);
    else if (about.st_uid != geteuid() && about.st_uid != 0)
        (void)snprintf(text, size, "it belongs to user %u, who can change what is in it", (unsigned)about.st_uid);
    else
        return false;
    return true;
}

static int check_mode(const char *path, struct amp_error *error)
{
    struct stat about;
    if (stat(path, &about) != 0)
        return system_error(error, "cannot get the status of data directory", path);
    if (!is_open_to_all(&about))
        return 0;
    return amp_error_set(error, AMP_EINVAL, "DATA_DIR",
                         "data directory %s can be written by every user of this machine (mode %04o): chmod o-w it, or "
                         "give one below it, which is made with mode 0700",
                         path, about.st_mode & 07777u);
}

int ampd_datadir_sync(const char *path, struct amp_error *error)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return system_error(error, "cannot open", path);
    int rc = fsync(fd) == 0 ? 0 : system_error(error, "cannot fsync", path);
    (void)close(fd); /* read-only: nothing to lose */
    return rc;
}

/*
 * Syncs the parent of a directory, so that the directory's entry survives power loss. Also done if the directory was
 * there: an earlier run may have created it and ended before the sync. A parent that this process may not read cannot
 * be synced; then that is left to the user that created the directory.
 */
static int sync_parent(const char *path, struct amp_error *error)
{
    char parent[AMPD_DATADIR_PATH_MAX];
    size_t size = strlen(path);
    if (size >= sizeof parent)
        return amp_error_set(error, AMP_EINVAL, "DATA_DIR", "directory %.200s: the path is too long", path);
    memcpy(parent, path, size + 1);
    while (size > 1 && parent[size - 1] == '/')
        parent[--size] = 0;
    char *slash = strrchr(parent, '/');
    if (slash == NULL)
        memcpy(parent, ".", 2);
    else
        slash[slash == parent ? 1 : 0] = 0;
    return access(parent, R_OK) == 0 ? ampd_datadir_sync(parent, error) : 0;
}

int ampd_datadir_make(const char *path, const char *what, struct amp_error *error)
{
    char text[64];
    (void)snprintf(text, sizeof text, "cannot create %s", what);
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return system_error(error, text, path);
    struct stat about;
    if (stat(path, &about) == 0 && !S_ISDIR(about.st_mode))
        return amp_error_set(error, AMP_EINVAL, "DATA_DIR", "%s %s is not a directory; give another path", what, path);
    return sync_parent(path, error);
}

/* Writes VERSION into a new directory, so that later programs can recognise its layout. */
static int write_version(int fd, const struct ampd_datadir *dir, const char *path, struct amp_error *error)
{
    if (write_number(fd, AMPD_DATADIR_VERSION) != 0 || fsync(fd) != 0)
        return system_error(error, "cannot write", path);
    return ampd_datadir_sync(dir->path, error);
}

static int check_version(struct ampd_datadir *dir, struct amp_error *error)
{
    char path[AMPD_DATADIR_PATH_MAX + 16];
    (void)snprintf(path, sizeof path, "%s/VERSION", dir->path);
    int fd = ampd_plain_open(path, O_RDWR | O_CREAT);
    if (fd < 0)
        return system_error(error, "cannot open", path);
    long long version = read_number(fd);
    int rc = 0;
    if (is_torn(fd, AMPD_DATADIR_VERSION))
        rc = write_version(fd, dir, path, error);
    else if (version < 1)
        rc = amp_error_set(error, AMP_EINVAL, "DATA_DIR", "%s is not a version number: not a data directory of ampd",
                           path);
    else if (version > AMPD_DATADIR_VERSION)
        rc = amp_error_set(error, AMP_EVERSION, "DATA_DIR_NEWER",
                           "data directory %s has layout %lld, this ampd knows up to %d: use the newer ampd", dir->path,
                           version, AMPD_DATADIR_VERSION);
    (void)close(fd); /* fsynced where it was written */
    return rc;
}

int ampd_datadir_open(struct ampd_datadir *dir, const char *path, struct amp_error *error)
{
    dir->lock_fd = -1;
    size_t size = strlen(path);
    if (size == 0 || size >= sizeof dir->path)
        return amp_error_set(error, AMP_EINVAL, "DATA_DIR", "the data directory's path must have 1 to %zu bytes",
                             sizeof dir->path - 1);
    memcpy(dir->path, path, size + 1);
    int rc = ampd_datadir_make(path, "data directory", error);
    if (rc == 0)
        rc = check_mode(path, error);
    if (rc == 0)
        rc = ampd_datadir_lock(path, "LOCK", "data directory", "--data-dir", &dir->lock_fd, error);
    if (rc != 0)
        return rc;
    rc = check_version(dir, error);
    if (rc != 0)
        ampd_datadir_close(dir);
    return rc;
}

void ampd_datadir_close(struct ampd_datadir *dir)
{
    if (dir->lock_fd >= 0)
        (void)close(dir->lock_fd); /* lets the lock go; its text is only a hint */
    dir->lock_fd = -1;
}
