#define _XOPEN_SOURCE 700 /* nftw */
#include "server/io/cluster/stale.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MARK ".stale-"

/* Descriptors that a walk through a directory may hold open. */
#define WALK_OPEN 8

/* ---- comparing ---- */

static const struct ampd_model_record *named(const struct ampd_model_record *records, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(records[i].spec.name, name) == 0)
            return &records[i];
    return NULL;
}

bool io_stale_is_older(const struct ampd_model_record *own, size_t own_count, const struct ampd_model_record *now,
                       size_t now_count)
{
    for (size_t i = 0; i < now_count; i++) {
        const struct ampd_model_record *mine = named(own, own_count, now[i].spec.name);
        if (mine == NULL || mine->epoch < now[i].epoch)
            return true;
    }
    for (size_t i = 0; i < own_count; i++)
        if (named(now, now_count, own[i].spec.name) == NULL)
            return true;
    return false;
}

/* ---- setting aside ---- */

static int failed(struct amp_error *error, const char *what, const char *path)
{
    return amp_error_set(error, errno == ENOSPC ? AMP_EEXHAUSTED : AMP_EIO, NULL, "cannot %s %s: %s", what, path,
                         strerror(errno));
}

/* N of an entry "NAME.stale-N", which directory `name` was renamed to. 0: the entry is something else. */
static uint32_t number_of(const char *entry, const char *name)
{
    size_t size = strlen(name), mark = strlen(MARK);
    if (strncmp(entry, name, size) != 0 || strncmp(entry + size, MARK, mark) != 0)
        return 0;
    const char *digits = entry + size + mark;
    size_t count = strspn(digits, "0123456789");
    return count > 0 && count < 10 && digits[count] == 0 ? (uint32_t)strtoul(digits, NULL, 10) : 0;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    return remove(path);
}

/* Finds the highest N of all "NAME.stale-N" in `parent` (0: none), and removes those whose N is less than `below`. */
static int walk(const char *parent, const char *name, uint32_t below, uint32_t *highest, struct amp_error *error)
{
    char path[2 * AMPD_DATADIR_PATH_MAX];
    DIR *dir = opendir(parent);
    int rc = dir != NULL ? 0 : failed(error, "read", parent);
    *highest = 0;
    while (rc == 0) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            rc = errno != 0 ? failed(error, "read", parent) : 0; /* or its end */
            break;
        }
        uint32_t number = number_of(entry->d_name, name);
        *highest = number > *highest ? number : *highest;
        if (number == 0 || number >= below)
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", parent, entry->d_name);
        if (nftw(path, remove_entry, WALK_OPEN, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) != 0)
            rc = failed(error, "remove", path);
    }
    if (dir != NULL)
        (void)closedir(dir); /* only read */
    return rc;
}

/* Splits "a/b" into "a" and "b"; a path without a slash into "." and itself. */
static void split(const char *path, char parent[AMPD_DATADIR_PATH_MAX], const char **name)
{
    const char *slash = strrchr(path, '/');
    *name = slash != NULL ? slash + 1 : path;
    if (slash == NULL)
        (void)snprintf(parent, AMPD_DATADIR_PATH_MAX, ".");
    else
        (void)snprintf(parent, AMPD_DATADIR_PATH_MAX, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

int io_stale_set_aside(struct ampd_datadir *dir, char aside[AMPD_DATADIR_PATH_MAX], struct amp_error *error)
{
    char path[AMPD_DATADIR_PATH_MAX], parent[AMPD_DATADIR_PATH_MAX];
    const char *name;
    uint32_t highest;
    memcpy(path, dir->path, sizeof path);
    split(path, parent, &name);
    int rc = walk(parent, name, 0, &highest, error);
    int size = snprintf(aside, AMPD_DATADIR_PATH_MAX, "%s" MARK "%" PRIu32, path, highest + 1);
    if (rc == 0 && size >= AMPD_DATADIR_PATH_MAX)
        rc = amp_error_set(error, AMP_EINVAL, NULL, "%.200s: the path is too long for what is set aside", path);
    if (rc != 0)
        return rc;
    ampd_datadir_close(dir);
    if (rename(path, aside) != 0)
        return failed(error, "rename", path);
    rc = ampd_datadir_open(dir, path, error); /* which syncs the parent, so that both names are durable */
    if (rc == 0 && highest + 1 > IO_STALE_KEPT)
        rc = walk(parent, name, highest + 2 - IO_STALE_KEPT, &highest, error);
    return rc;
}
