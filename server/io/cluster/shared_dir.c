#define _DEFAULT_SOURCE /* getrandom */
#include "server/io/cluster/shared_dir.h"

#include "server/io/cluster/cluster_address.h"
#include "storage/datadir.h"
#include "storage/plain_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define OWNER_FILE "CLUSTER"

/* Longest path of a file in the shared directory, with the final zero. */
#define FILE_PATH_MAX 4096

static int failed(struct amp_error *error, const char *what, const char *path)
{
    return amp_error_set(error, errno == ENOSPC || errno == EDQUOT ? AMP_EEXHAUSTED : AMP_EIO, NULL, "cannot %s %s: %s",
                         what, path, ampd_plain_strerror(errno));
}

/* Reads the cluster's name from the file. AMP_ENOTFOUND: there is no such file. */
static int read_owner(const char *path, char name[IO_CLUSTER_NAME_MAX], struct amp_error *error)
{
    int fd = ampd_plain_open(path, O_RDONLY);
    if (fd < 0)
        return errno == ENOENT ? AMP_ENOTFOUND : failed(error, "open", path);
    ssize_t size = read(fd, name, IO_CLUSTER_NAME_MAX - 1);
    int rc = size >= 0 ? 0 : failed(error, "read", path);
    (void)close(fd); /* only read */
    name[size > 0 ? size : 0] = 0;
    name[strcspn(name, "\n")] = 0;
    return rc;
}

static int write_whole(const char *path, const char *cluster, struct amp_error *error)
{
    char text[IO_CLUSTER_NAME_MAX + 1];
    int size = snprintf(text, sizeof text, "%s\n", cluster);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return failed(error, "make", path);
    int rc = write(fd, text, (size_t)size) == size && fsync(fd) == 0 ? 0 : failed(error, "write", path);
    (void)close(fd); /* synced, or given up */
    return rc;
}

/*
 * Writes the file so that it appears at once and complete. Where several processes, also on several machines, do it at
 * the same time, the file of the first one stays.
 */
static int write_owner(const char *dir, const char *path, const char *cluster, struct amp_error *error)
{
    char own[FILE_PATH_MAX];
    uint64_t id;
    if (getrandom(&id, sizeof id, 0) != sizeof id)
        return amp_error_set(error, AMP_EIO, NULL, "no random numbers from the system");
    (void)snprintf(own, sizeof own, "%s/." OWNER_FILE "-%016" PRIx64, dir, id);
    int rc = write_whole(own, cluster, error);
    if (rc == 0 && link(own, path) != 0 && errno != EEXIST)
        rc = failed(error, "make", path);
    (void)unlink(own); /* if it stays, no harm is done */
    return rc;
}

int io_shared_dir_claim(const char *path, const char *cluster, struct amp_error *error)
{
    char file[FILE_PATH_MAX], owner[IO_CLUSTER_NAME_MAX] = "";
    if (strlen(path) + sizeof OWNER_FILE + 32 > sizeof file)
        return amp_error_set(error, AMP_EINVAL, NULL, "--checkpoint-dir %.200s: the path is too long", path);
    int rc = ampd_datadir_make(path, "checkpoint directory", error);
    if (rc == 0)
        rc = ampd_datadir_check_writable(path, "checkpoint directory", error);
    if (rc != 0)
        return rc;
    (void)snprintf(file, sizeof file, "%s/" OWNER_FILE, path);
    rc = read_owner(file, owner, error);
    if (rc == AMP_ENOTFOUND) {
        rc = write_owner(path, file, cluster, error);
        if (rc == 0)
            rc = ampd_datadir_sync(path, error);
        if (rc == 0)
            rc = read_owner(file, owner, error);
    }
    if (rc != 0 || strcmp(owner, cluster) == 0)
        return rc;
    return amp_error_set(
        error, AMP_ESTATE, NULL,
        "--checkpoint-dir %s belongs to cluster \"%s\", as %s says, and this is cluster %s: give each cluster a "
        "directory of its own; or, if it is the same cluster under another name, write that name into the file",
        path, owner, file, cluster);
}
