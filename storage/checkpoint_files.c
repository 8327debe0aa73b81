#define _GNU_SOURCE /* fallocate */
#include "storage/checkpoint_files.h"

#include "storage/checkpoint_remove.h"
#include "storage/datadir.h"
#include "storage/plain_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEP_PREFIX "step-"
#define FILE_PREFIX "shard-"
#define FILE_SUFFIX ".safetensors"

/* Bytes of the path of a step directory relative to data_dir, with the final zero. */
#define STEP_PATH_MAX 512

int checkpoint_system_error(struct amp_error *error, const char *what, const char *path)
{
    int cause = errno;
    if (cause == ENOSPC || cause == EDQUOT)
        return amp_error_set(error, AMP_EEXHAUSTED, "NO_SPACE", "%s %s: the disk is full", what, path);
    if (cause == EMFILE || cause == ENFILE)
        return amp_error_set(error, AMP_EEXHAUSTED, "NO_DESCRIPTORS",
                             "%s %s: %s; raise the limit of open files (ulimit -n)", what, path, strerror(cause));
    return checkpoint_final_error(error, what, path);
}

int checkpoint_not_opened(struct amp_error *error, const char *what, const char *path)
{
    if (errno != EACCES && errno != EPERM && errno != EROFS)
        return checkpoint_system_error(error, what, path);
    return amp_error_set(error, AMP_EDENIED, "NO_ACCESS", "%s %s: %s; %s", what, path, strerror(errno),
                         errno == EROFS ? "mount its disk for writing"
                                        : "see that it and its directory belong to ampd's user");
}

int checkpoint_final_error(struct amp_error *error, const char *what, const char *path)
{
    int cause = errno == ENOSPC || errno == EDQUOT ? EIO : errno;
    return amp_error_set(error, AMP_EIO, "STORE_FAILED", "%s %s: %s", what, path, ampd_plain_strerror(cause));
}

bool ampd_checkpoint_file_shard(const char *file, uint32_t *shard, uint32_t *shards)
{
    const char *slash = strrchr(file, '/'), *name = slash != NULL ? slash + 1 : file;
    int end = 0;
    return sscanf(name, FILE_PREFIX "%" SCNu32 "-of-%" SCNu32 FILE_SUFFIX "%n", shard, shards, &end) == 2 && end > 0 &&
           *shard < *shards;
}

int ampd_checkpoint_file(const struct ampd_checkpoint_path *where, uint64_t step, char *file, size_t file_size,
                         struct amp_error *error)
{
    char path[CHECKPOINT_PATH_MAX];
    return checkpoint_path_make(where, step, path, file, file_size, error);
}

bool ampd_checkpoint_file_is_of(const char *file, const char *model, uint64_t step)
{
    struct ampd_checkpoint_path where = {.data_dir = "", .model = model};
    char made[CHECKPOINT_PATH_MAX];
    return ampd_checkpoint_file_shard(file, &where.shard, &where.shards) &&
           ampd_checkpoint_file(&where, step, made, sizeof made, NULL) == 0 && strcmp(made, file) == 0;
}

int checkpoint_path_make(const struct ampd_checkpoint_path *where, uint64_t step, char path[CHECKPOINT_PATH_MAX],
                         char *file, size_t file_size, struct amp_error *error)
{
    if (!ampd_datadir_name_ok(where->model))
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "model name \"%.100s\" cannot name a directory: use letters, digits, '.', '_' and '-'",
                             where->model);
    int used = snprintf(file, file_size,
                        "models/%s/checkpoints/" STEP_PREFIX "%010" PRIu64 "/" FILE_PREFIX "%" PRIu32
                        "-of-%" PRIu32 FILE_SUFFIX,
                        where->model, step, where->shard, where->shards);
    if (used < 0 || (size_t)used >= file_size)
        return amp_error_set(error, AMP_EINVAL, NULL, "the name of a checkpoint file is too long");
    used = snprintf(path, CHECKPOINT_PATH_MAX, "%s/%s", where->data_dir, file);
    if (used < 0 || used >= CHECKPOINT_PATH_MAX)
        return amp_error_set(error, AMP_EINVAL, NULL, "the data directory's path is too long");
    return 0;
}

/* Not posix_fallocate: where the file system cannot, that reads what is there, for which the file is not open. */
int checkpoint_make_room(int fd, uint64_t size, const char *path, struct amp_error *error)
{
    if (size == 0 || fallocate(fd, 0, 0, (off_t)size) == 0 || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)
        return 0;
    return checkpoint_system_error(error, "cannot make room in", path);
}

struct dirent *checkpoint_next_entry(DIR *dir)
{
    errno = 0;
    return readdir(dir);
}

int checkpoint_directory_sync(const char *path, struct amp_error *error)
{
    char dir[CHECKPOINT_PATH_MAX];
    const char *slash = strrchr(path, '/');
    (void)snprintf(dir, sizeof dir, "%.*s", slash != NULL ? (int)(slash - path) : 1, slash != NULL ? path : ".");
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return checkpoint_not_opened(error, "cannot open", dir);
    int rc = fsync(fd) == 0 ? 0 : checkpoint_final_error(error, "cannot fsync", dir);
    (void)close(fd); /* a directory: nothing to lose */
    return rc;
}

int checkpoint_directories_make(const char *data_dir, const char *file, bool durable, struct amp_error *error)
{
    for (const char *slash = strchr(file, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        char path[CHECKPOINT_PATH_MAX];
        (void)snprintf(path, sizeof path, "%s/%.*s", data_dir, (int)(slash - file), file);
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return checkpoint_not_opened(error, "cannot create", path);
        /* Also if it was there: a run that created it may have ended before the fsync. */
        int rc = durable ? checkpoint_directory_sync(path, error) : 0;
        if (rc != 0)
            return rc;
    }
    return 0;
}

int checkpoint_not_removed(struct amp_error *error, const char *what, const char *path)
{
    int cause = errno, rc = checkpoint_system_error(error, what, path);
    if (rc != AMP_EIO)
        return rc;
    return amp_error_set(error, rc, AMPD_CHECKPOINT_NOT_REMOVED, "%s %s: %s", what, path, strerror(cause));
}

/* Removes the step directory that has the file `path`, if it is empty, and syncs the removal. Changes the path. */
static int remove_step_directory(char *path, struct amp_error *error)
{
    char *slash = strrchr(path, '/');
    *slash = 0;
    if (rmdir(path) == 0) {
        int rc = checkpoint_directory_sync(path, error);
        *strrchr(path, '/') = 0;
        /*
         * The whole model may be removed at the same time: with the parent gone there is nothing to make durable. And
         * where the parent may not be opened, a power loss may bring the empty directory back, which a sweep finds.
         */
        return rc == AMP_EDENIED || (rc != 0 && access(path, F_OK) != 0 && errno == ENOENT) ? 0 : rc;
    }
    if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOENT)
        return 0;
    return checkpoint_not_removed(error, "cannot remove", path);
}

int ampd_checkpoint_remove(const char *data_dir, const char *file, struct amp_error *error)
{
    char path[CHECKPOINT_PATH_MAX];
    int used = snprintf(path, sizeof path, "%s/%s", data_dir, file);
    if (used < 0 || (size_t)used >= sizeof path)
        return amp_error_set(error, AMP_EINVAL, NULL, "the data directory's path is too long");
    if (unlink(path) != 0 && errno != ENOENT)
        return checkpoint_not_removed(error, "cannot remove", path);
    return remove_step_directory(path, error);
}

/*
 * Whether the shard that `where` names may remove a file of this name (checkpoint_remove.h). `is_left`: complete files
 * of another number of shards are not needed any more.
 */
static bool is_own(const struct ampd_checkpoint_path *where, const char *name, bool is_left)
{
    uint32_t shard, shards;
    if (!ampd_checkpoint_file_shard(name, &shard, &shards))
        return false;
    const char *suffix = strstr(name, FILE_SUFFIX) + strlen(FILE_SUFFIX); /* the name has one */
    bool whole = *suffix == 0;
    if (!whole && strcmp(suffix, CHECKPOINT_TEMPORARY) != 0)
        return false;
    if (where->shards == 0)
        return true;
    if (shards == where->shards)
        return shard == where->shard;
    return shard % where->shards == where->shard && (is_left || !whole);
}

static bool is_kept(const char *file, const struct ampd_checkpoint_record *keep, uint32_t keep_count)
{
    for (uint32_t i = 0; i < keep_count; i++)
        if (strcmp(keep[i].file, file) == 0)
            return true;
    return false;
}

/* What a sweep removes of the files that belong to the shard. */
struct sweep {
    bool complete;       /* also complete files, without those in `keep` */
    uint64_t left_below; /* in steps below this also those of another number of shards: no restore needs them */
    uint64_t up_to;      /* files of later steps stay */
    const struct ampd_checkpoint_record *keep;
    uint32_t keep_count;
};

static bool is_complete(const char *name)
{
    size_t size = strlen(name), suffix = strlen(FILE_SUFFIX);
    return size >= suffix && strcmp(name + size - suffix, FILE_SUFFIX) == 0;
}

bool ampd_checkpoint_only_stays(int rc, const struct amp_error *error)
{
    return rc == AMP_EIO && strcmp(error->reason, AMPD_CHECKPOINT_NOT_REMOVED) == 0;
}

/* Whether a removal ended with an error that loses nothing: then it is kept in *stays, and the sweep goes on. */
static bool only_stays(int rc, const struct amp_error *given, struct amp_error *stays)
{
    bool stayed = ampd_checkpoint_only_stays(rc, given);
    if (stayed)
        *stays = *given;
    return stayed;
}

/* The end of a removal with the error *own: 0 if something only stays, as told in *stays, else `rc` with *error. */
static int or_stays(int rc, const struct amp_error *own, struct amp_error *stays, struct amp_error *error)
{
    if (rc == 0 || only_stays(rc, own, stays))
        return 0;
    return amp_error_set(error, rc, own->reason, "%s", own->text);
}

/* Sweeps one step directory, given relative to the data directory. What stays is told in *stays, and is no error. */
static int sweep_step(const struct ampd_checkpoint_path *where, const char *step, bool is_left,
                      const struct sweep *sweep, struct amp_error *stays, struct amp_error *error)
{
    char path[CHECKPOINT_PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/%s", where->data_dir, step);
    struct amp_error own = {0};
    DIR *dir = opendir(path);
    if (dir == NULL && errno == ENOENT) /* a dropped checkpoint's file, and this with it, may be removed meanwhile */
        return 0;
    if (dir == NULL)
        return or_stays(checkpoint_not_removed(&own, "cannot open", path), &own, stays, error);
    int rc = 0;
    for (struct dirent *entry; rc == 0 && (entry = checkpoint_next_entry(dir)) != NULL;) {
        const char *name = entry->d_name;
        bool ours = is_own(where, name, is_left) && (sweep->complete || !is_complete(name));
        char file[CHECKPOINT_PATH_MAX];
        int used = snprintf(file, sizeof file, "%s/%s", step, name);
        if (ours && used > 0 && (size_t)used < sizeof file && !is_kept(file, sweep->keep, sweep->keep_count))
            rc = ampd_checkpoint_remove(where->data_dir, file, &own);
        if (only_stays(rc, &own, stays))
            rc = 0;
    }
    if (rc == 0 && errno != 0)
        rc = checkpoint_not_removed(&own, "cannot read", path);
    (void)closedir(dir); /* only read */
    if (rc == 0 && rmdir(path) != 0 && errno != ENOTEMPTY && errno != EEXIST && errno != ENOENT)
        rc = checkpoint_not_removed(&own, "cannot remove", path);
    return or_stays(rc, &own, stays, error);
}

static bool is_step_name(const char *name)
{
    size_t prefix = strlen(STEP_PREFIX);
    size_t digits = strncmp(name, STEP_PREFIX, prefix) == 0 ? strspn(name + prefix, "0123456789") : 0;
    return digits >= 10 && name[prefix + digits] == 0;
}

/* The lowest step in `keep`; 0 if it is empty. */
static uint64_t oldest_step(const struct ampd_checkpoint_record *keep, uint32_t keep_count)
{
    uint64_t oldest = keep_count > 0 ? keep[0].step : 0;
    for (uint32_t i = 1; i < keep_count; i++)
        oldest = keep[i].step < oldest ? keep[i].step : oldest;
    return oldest;
}

/* Opens the directory that has the step directories of a model; *dir is NULL if it is not there. */
static int open_steps(const struct ampd_checkpoint_path *where, DIR **dir, struct amp_error *error)
{
    char path[CHECKPOINT_PATH_MAX];
    *dir = NULL;
    if (!ampd_datadir_name_ok(where->model))
        return amp_error_set(error, AMP_EINVAL, NULL, "model name \"%.100s\" cannot name a directory", where->model);
    int used = snprintf(path, sizeof path, "%s/models/%s/checkpoints", where->data_dir, where->model);
    if (used < 0 || (size_t)used >= sizeof path)
        return amp_error_set(error, AMP_EINVAL, NULL, "the data directory's path is too long");
    *dir = opendir(path);
    return *dir != NULL || errno == ENOENT ? 0 : checkpoint_system_error(error, "cannot open", path);
}

/* The next step directory, relative to the data directory. False, with errno as by checkpoint_next_entry: no more. */
static bool next_step(DIR *dir, const struct ampd_checkpoint_path *where, char step[STEP_PATH_MAX], uint64_t *number)
{
    for (struct dirent *entry; (entry = checkpoint_next_entry(dir)) != NULL;) {
        if (!is_step_name(entry->d_name))
            continue;
        (void)snprintf(step, STEP_PATH_MAX, "models/%s/checkpoints/%s", where->model, entry->d_name);
        *number = strtoull(entry->d_name + strlen(STEP_PREFIX), NULL, 10);
        return true;
    }
    return false;
}

/* Sweeps the step directories of a model. Where something stays, the rest is swept all the same. */
static int sweep_steps(const struct ampd_checkpoint_path *where, const struct sweep *sweep, struct amp_error *error)
{
    char step[STEP_PATH_MAX];
    uint64_t number;
    DIR *dir;
    struct amp_error stays = {0}, own = {0};
    int rc = open_steps(where, &dir, &own);
    if (rc != 0) /* AMP_EIO: the directory cannot be opened, so that all that is in it stays */
        return amp_error_set(error, rc, rc == AMP_EIO ? AMPD_CHECKPOINT_NOT_REMOVED : own.reason, "%s", own.text);
    while (rc == 0 && dir != NULL && next_step(dir, where, step, &number))
        if (number <= sweep->up_to)
            rc = sweep_step(where, step, number < sweep->left_below, sweep, &stays, error);
    if (rc == 0 && dir != NULL && errno != 0)
        rc = or_stays(checkpoint_not_removed(&own, "cannot read the steps of", where->model), &own, &stays, error);
    if (dir != NULL)
        (void)closedir(dir); /* only read */
    if (rc != 0 || stays.code == 0)
        return rc;
    return amp_error_set(error, stays.code, stays.reason, "%s", stays.text);
}

int ampd_checkpoint_sweep(const struct ampd_checkpoint_path *where, const struct ampd_checkpoint_record *keep,
                          uint32_t keep_count, uint64_t up_to, struct amp_error *error)
{
    const struct sweep sweep = {true, oldest_step(keep, keep_count), up_to, keep, keep_count};
    return sweep_steps(where, &sweep, error);
}

int ampd_checkpoint_sweep_temporary(const struct ampd_checkpoint_path *where, struct amp_error *error)
{
    return sweep_steps(where, &(const struct sweep){.up_to = UINT64_MAX}, error);
}

/* Finds a complete file of a step directory that belongs to the shard; file[0] stays 0 if there is none. */
static int find_in_step(const struct ampd_checkpoint_path *where, const char *step, char *file, size_t file_size,
                        struct amp_error *error)
{
    char path[CHECKPOINT_PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/%s", where->data_dir, step);
    DIR *dir = opendir(path);
    if (dir == NULL)
        return errno == ENOENT ? 0 : checkpoint_system_error(error, "cannot open", path);
    for (struct dirent *entry; file[0] == 0 && (entry = checkpoint_next_entry(dir)) != NULL;) {
        const char *name = entry->d_name, *suffix = strstr(name, FILE_SUFFIX);
        if (is_own(where, name, true) && suffix != NULL && suffix[strlen(FILE_SUFFIX)] == 0)
            (void)snprintf(file, file_size, "%s/%s", step, name);
    }
    int rc = file[0] == 0 && errno != 0 ? checkpoint_system_error(error, "cannot read", path) : 0;
    (void)closedir(dir); /* only read */
    return rc;
}

static int find_any(const struct ampd_checkpoint_path *where, char *file, size_t file_size, struct amp_error *error)
{
    char step[STEP_PATH_MAX];
    uint64_t number;
    DIR *dir;
    int rc = open_steps(where, &dir, error);
    file[0] = 0;
    while (rc == 0 && dir != NULL && file[0] == 0 && next_step(dir, where, step, &number))
        rc = find_in_step(where, step, file, file_size, error);
    if (rc == 0 && dir != NULL && file[0] == 0 && errno != 0)
        rc = checkpoint_system_error(error, "cannot read the steps of", where->model);
    if (dir != NULL)
        (void)closedir(dir); /* only read */
    return rc;
}

int ampd_checkpoint_any(const struct ampd_checkpoint_path *where, char *file, size_t file_size, struct amp_error *error)
{
    bool marked = false;
    int rc = find_any(where, file, file_size, error);
    if (rc != 0 || file[0] == 0)
        return rc;
    rc = checkpoint_is_marked(where, &marked, error);
    if (rc == 0 && !marked) /* look again: a deletion may have removed the file and the mark between the two checks */
        return find_any(where, file, file_size, error);
    file[0] = 0;
    return rc;
}

int ampd_checkpoint_remove_model(const struct ampd_checkpoint_path *where, struct amp_error *error)
{
    char path[CHECKPOINT_PATH_MAX];
    struct amp_error own = {0}, stays = {0};
    int rc = sweep_steps(where, &(const struct sweep){true, .left_below = UINT64_MAX, .up_to = UINT64_MAX}, &own);
    rc = or_stays(rc, &own, &stays, error);
    /*
     * Also where files stay: with the mark their name would count as free, and a later start would remove the files of
     * the model that has it by then.
     */
    if (rc == 0)
        rc = or_stays(ampd_checkpoint_unmark_deleted(where, &own), &own, &stays, error);
    if (rc != 0)
        return rc;
    if (stays.code != 0)
        return amp_error_set(error, stays.code, stays.reason, "%s", stays.text);
    /* A directory that is not empty has files of others, and stays. */
    for (unsigned i = 0; i < 2; i++) {
        int size =
            snprintf(path, sizeof path, "%s/models/%s%s", where->data_dir, where->model, i == 0 ? "/checkpoints" : "");
        if (size > 0 && (size_t)size < sizeof path)
            (void)rmdir(path);
    }
    return 0;
}
