/*
 * Deletion marks, "models/NAME/shard-k-of-K.deleted" (checkpoint_remove.h). A shard deletes the model in its store
 * first and removes the files then; after a crash between these only the mark says that the files are to be removed.
 * The process that finds it may have another store, or be one of another number of shards.
 */
#include "storage/checkpoint_files.h"
#include "storage/checkpoint_remove.h"
#include "storage/datadir.h"
#include "storage/plain_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MARK_FORMAT(number) "shard-%" number "-of-%" number ".deleted"

static int folder_of(const struct ampd_checkpoint_path *where, char path[CHECKPOINT_PATH_MAX], struct amp_error *error)
{
    if (!ampd_datadir_name_ok(where->model))
        return amp_error_set(error, AMP_EINVAL, NULL, "model name \"%.100s\" cannot name a directory", where->model);
    int used = snprintf(path, CHECKPOINT_PATH_MAX, "%s/models/%s", where->data_dir, where->model);
    if (used < 0 || used >= CHECKPOINT_PATH_MAX - 64) /* and a mark's name */
        return amp_error_set(error, AMP_EINVAL, NULL, "the data directory's path is too long");
    return 0;
}

/* Whether `name` is the name of a mark that belongs to the shard that `where` names (checkpoint_remove.h). */
static bool is_own_mark(const struct ampd_checkpoint_path *where, const char *name)
{
    uint32_t shard, shards;
    int end = 0;
    if (sscanf(name, MARK_FORMAT(SCNu32) "%n", &shard, &shards, &end) != 2 || end == 0 || name[end] != 0 ||
        shard >= shards)
        return false;
    if (where->shards == 0 || shards == where->shards)
        return where->shards == 0 || shard == where->shard;
    return shard % where->shards == where->shard;
}

int ampd_checkpoint_mark_deleted(const struct ampd_checkpoint_path *where, struct amp_error *error)
{
    char path[CHECKPOINT_PATH_MAX];
    int rc = folder_of(where, path, error);
    if (rc != 0)
        return rc;
    size_t used = strlen(path);
    (void)snprintf(path + used, sizeof path - used, "/" MARK_FORMAT(PRIu32), where->shard, where->shards);
    int fd = ampd_plain_open(path, O_WRONLY | O_CREAT);
    if (fd < 0) /* without the directory there are no files either */
        return errno == ENOENT ? 0 : checkpoint_not_removed(error, "cannot mark the files for removal by", path);
    (void)close(fd); /* empty */
    return checkpoint_directory_sync(path, error);
}

/* Counts the marks of one model that belong to the shard, and with `remove` removes them. */
static int take_marks(const struct ampd_checkpoint_path *where, bool remove, unsigned *count, struct amp_error *error)
{
    char path[CHECKPOINT_PATH_MAX];
    *count = 0;
    int rc = folder_of(where, path, error);
    if (rc != 0)
        return rc;
    DIR *dir = opendir(path);
    if (dir == NULL && (errno == ENOENT || errno == ENOTDIR))
        return 0;
    if (dir == NULL)
        return remove ? checkpoint_not_removed(error, "cannot open", path)
                      : checkpoint_system_error(error, "cannot open", path);
    for (struct dirent *entry; rc == 0 && (entry = checkpoint_next_entry(dir)) != NULL;) {
        if (!is_own_mark(where, entry->d_name))
            continue;
        ++*count;
        if (remove && unlinkat(dirfd(dir), entry->d_name, 0) != 0 && errno != ENOENT)
            rc = checkpoint_not_removed(error, "cannot remove a mark below", path);
    }
    if (rc == 0 && errno != 0)
        rc = remove ? checkpoint_not_removed(error, "cannot read", path)
                    : checkpoint_system_error(error, "cannot read", path);
    (void)closedir(dir); /* only read */
    return rc;
}

int ampd_checkpoint_unmark_deleted(const struct ampd_checkpoint_path *where, struct amp_error *error)
{
    unsigned count;
    return take_marks(where, true, &count, error);
}

int checkpoint_is_marked(const struct ampd_checkpoint_path *where, bool *marked, struct amp_error *error)
{
    unsigned count = 0;
    int rc = take_marks(where, false, &count, error);
    *marked = count > 0;
    return rc;
}

int ampd_checkpoint_each_deleted(const struct ampd_checkpoint_path *of, void *arg, struct amp_error *error,
                                 int (*found_cb)(void *arg, const char *model))
{
    char path[CHECKPOINT_PATH_MAX];
    int used = snprintf(path, sizeof path, "%s/models", of->data_dir), rc = 0;
    if (used < 0 || (size_t)used >= sizeof path)
        return amp_error_set(error, AMP_EINVAL, NULL, "the data directory's path is too long");
    DIR *dir = opendir(path);
    if (dir == NULL)
        return errno == ENOENT ? 0 : checkpoint_system_error(error, "cannot open", path);
    for (struct dirent *entry; rc == 0 && (entry = checkpoint_next_entry(dir)) != NULL;) {
        struct ampd_checkpoint_path where = *of;
        unsigned count;
        where.model = entry->d_name;
        if (!ampd_datadir_name_ok(where.model))
            continue;
        rc = take_marks(&where, false, &count, error);
        if (rc == 0 && count > 0)
            rc = found_cb(arg, where.model);
    }
    if (rc == 0 && errno != 0)
        rc = checkpoint_system_error(error, "cannot read", path);
    (void)closedir(dir); /* only read */
    return rc;
}
