#define _GNU_SOURCE /* syscall, the calls with 64 in their names */
#include "tests/unit/storage_record.h"

#include "base/assert.h"
#include "base/random.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xxhash.h>

#define FDS_MAX   256
#define FILES_MAX 4096
#define PATH_SIZE 4096
#define ROOT      0u
#define NOBODY    UINT32_MAX

/* A name in a directory. */
struct entry {
    uint32_t dir, file;
    const char *name; /* of the call that gave it */
    bool is_dir;
};

struct bytes {
    uint8_t *data;
    uint64_t size, room;
};

/* A disk in memory. */
struct disk {
    struct entry *entries; /* [FILES_MAX] */
    uint32_t entries_count;
    struct bytes *files; /* [FILES_MAX] */
};

/* A checkpoint file is written by a thread of its own. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    bool on, mute;
    char root[PATH_SIZE];
    size_t root_size;
    struct record_op *ops;
    uint32_t count, room;
    uint32_t fds[FDS_MAX]; /* file of a descriptor, or NOBODY */
    uint32_t files;        /* ids given */
    uint32_t syncs_left;   /* which of the next syncs fails, from 1; 0: none does */
    bool failed;           /* that sync has come */
    struct disk now;       /* names alone */
} record;

/* ---- names ---- */

static struct entry *find(struct disk *disk, uint32_t dir, const char *name)
{
    for (uint32_t i = 0; i < disk->entries_count; i++)
        if (disk->entries[i].dir == dir && strcmp(disk->entries[i].name, name) == 0)
            return &disk->entries[i];
    return NULL;
}

static void enter(struct disk *disk, uint32_t dir, const char *name, uint32_t file, bool is_dir)
{
    struct entry *entry = find(disk, dir, name);
    AMP_ASSERT(entry != NULL || disk->entries_count < FILES_MAX);
    if (entry == NULL)
        entry = &disk->entries[disk->entries_count++];
    *entry = (struct entry){dir, file, name, is_dir};
}

static void leave(struct disk *disk, uint32_t dir, const char *name)
{
    struct entry *entry = find(disk, dir, name);
    if (entry != NULL)
        *entry = disk->entries[--disk->entries_count];
}

static void disk_init(struct disk *disk)
{
    disk->entries = calloc(FILES_MAX, sizeof *disk->entries);
    disk->files = calloc(FILES_MAX, sizeof *disk->files);
    disk->entries_count = 0;
    AMP_ASSERT(disk->entries != NULL && disk->files != NULL);
}

static void disk_close(struct disk *disk)
{
    for (uint32_t i = 0; disk->files != NULL && i < FILES_MAX; i++)
        free(disk->files[i].data);
    free(disk->files);
    free(disk->entries);
}

/* Where a path below the root leads: its directory and last name, "" for the root. False: it is none of ours. */
static bool locate(const char *path, uint32_t *dir, const char **name)
{
    size_t size = strlen(path);
    if (!record.on || strncmp(path, record.root, record.root_size) != 0 ||
        (path[record.root_size] != '/' && path[record.root_size] != 0) ||
        (size > 4 && strcmp(path + size - 4, "-shm") == 0))
        return false;
    *dir = ROOT;
    *name = path + record.root_size + (path[record.root_size] == '/' ? 1 : 0);
    for (const char *slash; (slash = strchr(*name, '/')) != NULL; *name = slash + 1) {
        char part[PATH_SIZE];
        (void)snprintf(part, sizeof part, "%.*s", (int)(slash - *name), *name);
        const struct entry *entry = find(&record.now, *dir, part);
        if (entry == NULL)
            return false;
        *dir = entry->file;
    }
    return true;
}

/* ---- writing down ---- */

static struct record_op *note(enum record_kind kind, uint32_t file)
{
    if (record.count == record.room) {
        record.room = record.room * 2 + 64;
        record.ops = realloc(record.ops, record.room * sizeof *record.ops);
        AMP_ASSERT(record.ops != NULL);
    }
    struct record_op *op = &record.ops[record.count++];
    *op = (struct record_op){.kind = kind, .file = file, .synced_at = RECORD_NEVER, .lost_at = RECORD_NEVER};
    return op;
}

static struct record_op *note_name(enum record_kind kind, uint32_t file, uint32_t dir, const char *name)
{
    struct record_op *op = note(kind, file);
    op->dir = dir;
    op->name = strdup(name);
    AMP_ASSERT(op->name != NULL);
    return op;
}

static void note_new(uint32_t dir, const char *name, bool is_dir)
{
    AMP_ASSERT(record.files < FILES_MAX);
    struct record_op *op = note_name(RECORD_ENTER, record.files++, dir, name);
    op->is_dir = is_dir;
    enter(&record.now, dir, op->name, op->file, is_dir);
}

static void note_sync(uint32_t file)
{
    for (uint32_t i = 0; i < record.count; i++) {
        struct record_op *op = &record.ops[i];
        bool bytes = op->kind == RECORD_WRITE || op->kind == RECORD_SIZE;
        if (op->kind != RECORD_SYNC && op->lost_at == RECORD_NEVER && op->synced_at == RECORD_NEVER &&
            (bytes ? op->file : op->dir) == file)
            op->synced_at = record.count;
    }
    (void)note(RECORD_SYNC, file);
}

/* Names and sizes are written with the next sync all the same: the file system keeps them itself. */
static int fail_sync(uint32_t file)
{
    for (uint32_t i = 0; i < record.count; i++) {
        struct record_op *op = &record.ops[i];
        if (op->kind == RECORD_WRITE && op->file == file && op->synced_at == RECORD_NEVER &&
            op->lost_at == RECORD_NEVER)
            op->lost_at = record.count;
    }
    record.failed = true;
    errno = EIO;
    return -1;
}

static uint32_t file_of(int fd)
{
    return record.on && fd >= 0 && fd < FDS_MAX ? record.fds[fd] : NOBODY;
}

static void note_write(int fd, const void *data, ssize_t size, off64_t offset)
{
    (void)pthread_mutex_lock(&lock);
    uint32_t file = file_of(fd);
    if (file != NOBODY && size > 0) {
        struct record_op *op = note(RECORD_WRITE, file);
        op->offset = (uint64_t)offset;
        op->size = (uint64_t)size;
        op->data = malloc((size_t)size);
        AMP_ASSERT(op->data != NULL);
        memcpy(op->data, data, (size_t)size);
    }
    (void)pthread_mutex_unlock(&lock);
}

static void note_size(int fd, uint64_t size)
{
    (void)pthread_mutex_lock(&lock);
    if (file_of(fd) != NOBODY)
        note(RECORD_SIZE, file_of(fd))->size = size;
    (void)pthread_mutex_unlock(&lock);
}

static void note_open(int fd, const char *path, int flags, bool was_there)
{
    uint32_t dir;
    const char *name;
    if (fd < 0 || fd >= FDS_MAX)
        return;
    record.fds[fd] = NOBODY;
    if (!locate(path, &dir, &name))
        return;
    if (!was_there)
        note_new(dir, name, false);
    record.fds[fd] = name[0] == 0 ? dir : find(&record.now, dir, name)->file;
    if (was_there && (flags & O_TRUNC) != 0)
        note(RECORD_SIZE, record.fds[fd])->size = 0;
}

static int shim_open(const char *path, int flags, mode_t mode)
{
    uint32_t dir;
    const char *name;
    (void)pthread_mutex_lock(&lock);
    bool ours = locate(path, &dir, &name);
    bool was_there = ours && (name[0] == 0 || find(&record.now, dir, name) != NULL);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    note_open(fd, path, flags, was_there);
    (void)pthread_mutex_unlock(&lock);
    return fd;
}

/* ---- the C library's calls ---- */

#define CALL __attribute__((visibility("default")))

#include "tests/unit/shim_open.h"

CALL int close(int fd)
{
    (void)pthread_mutex_lock(&lock);
    if (fd >= 0 && fd < FDS_MAX)
        record.fds[fd] = NOBODY;
    int rc = (int)syscall(SYS_close, fd);
    (void)pthread_mutex_unlock(&lock);
    return rc;
}

CALL ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    ssize_t put = syscall(SYS_pwrite64, fd, data, size, offset);
    note_write(fd, data, put, offset);
    return put;
}

CALL ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return pwrite64(fd, data, size, offset);
}

CALL ssize_t write(int fd, const void *data, size_t size)
{
    off64_t offset = lseek64(fd, 0, SEEK_CUR); /* not of a file: then nobody will ask for it */
    ssize_t put = syscall(SYS_write, fd, data, size);
    note_write(fd, data, put, offset);
    return put;
}

CALL int ftruncate64(int fd, off64_t size)
{
    int rc = (int)syscall(SYS_ftruncate, fd, size);
    if (rc == 0)
        note_size(fd, (uint64_t)size);
    return rc;
}

CALL int ftruncate(int fd, off_t size)
{
    return ftruncate64(fd, size);
}

/* Room for bytes makes a file longer, never shorter. */
CALL int fallocate(int fd, int mode, off_t offset, off_t size)
{
    struct stat info;
    if (syscall(SYS_fallocate, fd, mode, offset, size) != 0)
        return -1;
    if (fstat(fd, &info) == 0)
        note_size(fd, (uint64_t)info.st_size);
    return 0;
}

CALL int fsync(int fd)
{
    int rc = record.mute ? 0 : (int)syscall(SYS_fsync, fd);
    (void)pthread_mutex_lock(&lock);
    if (rc == 0 && file_of(fd) != NOBODY && record.syncs_left > 0 && --record.syncs_left == 0)
        rc = fail_sync(file_of(fd));
    if (rc == 0 && file_of(fd) != NOBODY)
        note_sync(file_of(fd));
    (void)pthread_mutex_unlock(&lock);
    return rc;
}

CALL int fdatasync(int fd)
{
    return fsync(fd);
}

CALL int mkdir(const char *path, mode_t mode)
{
    uint32_t dir;
    const char *name;
    (void)pthread_mutex_lock(&lock);
    int rc = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (rc == 0 && locate(path, &dir, &name))
        note_new(dir, name, true);
    (void)pthread_mutex_unlock(&lock);
    return rc;
}

static int leave_any(const char *path, int flags)
{
    uint32_t dir;
    const char *name;
    (void)pthread_mutex_lock(&lock);
    int rc = (int)syscall(SYS_unlinkat, AT_FDCWD, path, flags);
    if (rc == 0 && locate(path, &dir, &name)) {
        (void)note_name(RECORD_LEAVE, NOBODY, dir, name);
        leave(&record.now, dir, name);
    }
    (void)pthread_mutex_unlock(&lock);
    return rc;
}

CALL int unlink(const char *path)
{
    return leave_any(path, 0);
}

CALL int rmdir(const char *path)
{
    return leave_any(path, AT_REMOVEDIR);
}

static void note_rename(const char *from, const char *to)
{
    uint32_t dir, to_dir;
    const char *name, *to_name;
    if (!locate(from, &dir, &name) || !locate(to, &to_dir, &to_name))
        return;
    AMP_ASSERT(dir == to_dir); /* nothing in storage moves from one directory to another */
    struct record_op *op = note_name(RECORD_RENAME, find(&record.now, dir, name)->file, dir, name);
    op->to_name = strdup(to_name);
    AMP_ASSERT(op->to_name != NULL);
    leave(&record.now, dir, name);
    enter(&record.now, dir, op->to_name, op->file, false);
}

CALL int rename(const char *from, const char *to)
{
    (void)pthread_mutex_lock(&lock);
    int rc = (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
    if (rc == 0)
        note_rename(from, to);
    (void)pthread_mutex_unlock(&lock);
    return rc;
}

/* ---- life ---- */

static void forget_from(uint32_t first)
{
    for (uint32_t i = first; i < record.count; i++) {
        free(record.ops[i].name);
        free(record.ops[i].to_name);
        free(record.ops[i].data);
    }
    record.count = first < record.count ? first : record.count;
    for (uint32_t i = 0; i < record.count; i++) {
        if (record.ops[i].synced_at >= record.count)
            record.ops[i].synced_at = RECORD_NEVER;
        if (record.ops[i].lost_at > record.count)
            record.ops[i].lost_at = RECORD_NEVER;
    }
}

void storage_record_begin(const char *root)
{
    storage_record_end();
    record.root_size = (size_t)snprintf(record.root, sizeof record.root, "%s", root);
    record.files = ROOT + 1;
    for (int fd = 0; fd < FDS_MAX; fd++)
        record.fds[fd] = NOBODY;
    disk_init(&record.now);
    record.on = true;
    record.mute = true;
}

void storage_record_fail_sync(uint32_t n)
{
    record.syncs_left = n;
    record.failed = false;
}

bool storage_record_failed(void)
{
    return record.failed;
}

void storage_record_stop(void)
{
    record.on = false;
}

void storage_record_end(void)
{
    forget_from(0);
    free(record.ops);
    disk_close(&record.now);
    memset(&record, 0, sizeof record);
}

uint32_t storage_record_count(void)
{
    return record.count;
}

const struct record_op *storage_record_op(uint32_t i)
{
    AMP_ASSERT(i < record.count);
    return &record.ops[i];
}

bool storage_record_open(uint32_t i, uint32_t prefix)
{
    const struct record_op *op = storage_record_op(i);
    return i < prefix && op->kind != RECORD_SYNC && (op->synced_at == RECORD_NEVER || op->synced_at >= prefix);
}

/* ---- disks ---- */

static void resize(struct bytes *file, uint64_t size)
{
    if (size > file->room) {
        file->room = size * 2;
        file->data = realloc(file->data, file->room);
        AMP_ASSERT(file->data != NULL);
    }
    if (size > file->size)
        memset(file->data + file->size, 0, size - file->size);
    file->size = size;
}

/* The bytes [first, end) of a write. */
static void put(struct disk *disk, const struct record_op *op, uint64_t first, uint64_t end)
{
    struct bytes *file = &disk->files[op->file];
    if (first >= end)
        return;
    if (op->offset + end > file->size)
        resize(file, op->offset + end);
    memcpy(file->data + op->offset + first, op->data + first, end - first);
}

/* Where the n-th sector of a write begins, counted from the one that its first byte is in. */
static uint64_t sector_at(const struct record_op *op, uint32_t n)
{
    uint64_t at = (op->offset / RECORD_SECTOR + n) * RECORD_SECTOR;
    uint64_t within = at > op->offset ? at - op->offset : 0;
    return within < op->size ? within : op->size;
}

static void apply(struct disk *disk, const struct record_op *op)
{
    switch (op->kind) {
    case RECORD_WRITE:
        put(disk, op, 0, op->size);
        break;
    case RECORD_SIZE:
        resize(&disk->files[op->file], op->size);
        break;
    case RECORD_ENTER:
        enter(disk, op->dir, op->name, op->file, op->is_dir);
        break;
    case RECORD_LEAVE:
        leave(disk, op->dir, op->name);
        break;
    case RECORD_RENAME:
        leave(disk, op->dir, op->name);
        enter(disk, op->dir, op->to_name, op->file, false);
        break;
    case RECORD_SYNC:
        break;
    }
}

/* A write that was lost in part: without the sector, or without it and all after it. */
static void apply_torn(struct disk *disk, const struct record_op *op, uint32_t sector, bool rest_too)
{
    put(disk, op, 0, sector_at(op, sector));
    if (!rest_too)
        put(disk, op, sector_at(op, sector + 1), op->size);
}

static void apply_random(struct disk *disk, const struct record_op *op, struct amp_random *random)
{
    uint64_t draw = amp_random_below(random, op->kind == RECORD_WRITE ? 4 : 2);
    uint32_t sectors = (uint32_t)(op->size / RECORD_SECTOR + 1);
    if (draw == 0)
        apply(disk, op);
    else if (draw > 1)
        apply_torn(disk, op, (uint32_t)amp_random_below(random, sectors), draw == 2);
}

static void replay(struct disk *disk, const struct record_crash *crash)
{
    struct amp_random random;
    disk_init(disk);
    amp_random_init(&random, crash->seed);
    for (uint32_t i = 0; i < crash->prefix; i++) {
        const struct record_op *op = &record.ops[i];
        bool open = storage_record_open(i, crash->prefix), it = i == crash->call;
        if (!open || crash->loss == RECORD_LOSE_NOTHING)
            apply(disk, op);
        else if (crash->loss == RECORD_LOSE_RANDOM)
            apply_random(disk, op, &random);
        else if (crash->loss == RECORD_LOSE_UNSYNCED)
            continue;
        else if (!it)
            apply(disk, op);
        else if (crash->loss != RECORD_LOSE_ONE)
            apply_torn(disk, op, crash->sector, crash->loss == RECORD_LOSE_FROM);
    }
}

uint64_t storage_record_hash(const struct record_crash *crash)
{
    struct disk disk;
    uint64_t hash = 0;
    replay(&disk, crash);
    for (uint32_t i = 0; i < disk.entries_count; i++) {
        const struct entry *entry = &disk.entries[i];
        const struct bytes *file = &disk.files[entry->file];
        uint64_t one = XXH3_64bits_withSeed(entry->name, strlen(entry->name), entry->dir * 65536u + entry->file);
        hash += XXH3_64bits_withSeed(file->data, file->size, one); /* in whatever order the names stand */
    }
    disk_close(&disk);
    return hash;
}

void storage_record_resume(const char *root, uint32_t prefix)
{
    const struct record_crash killed = {.prefix = prefix, .loss = RECORD_LOSE_NOTHING};
    AMP_ASSERT(!record.on && prefix <= record.count);
    forget_from(prefix);
    record.files = ROOT + 1;
    for (uint32_t i = 0; i < record.count; i++)
        record.files += record.ops[i].kind == RECORD_ENTER;
    disk_close(&record.now);
    replay(&record.now, &killed);
    record.root_size = (size_t)snprintf(record.root, sizeof record.root, "%s", root);
    for (int fd = 0; fd < FDS_MAX; fd++)
        record.fds[fd] = NOBODY;
    record.on = true;
}

static void make_file(const struct bytes *file, const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    AMP_ASSERT(fd >= 0);
    for (uint64_t at = 0; at < file->size;) {
        ssize_t put_bytes = pwrite(fd, file->data + at, file->size - at, (off_t)at);
        AMP_ASSERT(put_bytes > 0);
        at += (uint64_t)put_bytes;
    }
    (void)close(fd); /* thrown away soon */
}

static void make_directory(const struct disk *disk, uint32_t dir, const char *path)
{
    for (uint32_t i = 0; i < disk->entries_count; i++) {
        const struct entry *entry = &disk->entries[i];
        char below[PATH_SIZE];
        if (entry->dir != dir)
            continue;
        AMP_ASSERT((size_t)snprintf(below, sizeof below, "%s/%s", path, entry->name) < sizeof below);
        if (!entry->is_dir) {
            make_file(&disk->files[entry->file], below);
            continue;
        }
        AMP_ASSERT(mkdir(below, 0700) == 0);
        make_directory(disk, entry->file, below);
    }
}

void storage_record_make(const struct record_crash *crash, const char *target)
{
    struct disk disk;
    AMP_ASSERT(!record.on);
    replay(&disk, crash);
    make_directory(&disk, ROOT, target);
    disk_close(&disk);
}
