#define _DEFAULT_SOURCE /* flock */
#include "client/ampctl/events/tfevents_folder.h"

#include "client/ampctl/events/tfevents.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* TensorBoard reads the files of a folder by their names; each run's is behind those before it. */
#define PREFIX     "events.out.tfevents."
#define SUFFIX     ".ampd"
#define TIME_WIDTH 10
#define NAME_SIZE  256

/* Runs of ampctl in one folder: more are a script in a loop. */
#define FILES_MAX 100000

#define READ_SIZE (64u << 10)

/* ---- what is there ---- */

static int name_failed(struct amp_error *error, const char *folder, const char *name, const char *what)
{
    return amp_error_set(error, AMP_EINVAL, NULL, "%.200s/%.100s %s", folder, name, what);
}

/* Takes one event into account. */
static int take_event(struct ampctl_tffolder *folder, const char *name, const struct ampctl_tfevent *event,
                      struct amp_error *error)
{
    float epoch;
    char model[sizeof folder->model];
    if (event->restarts && event->step > 0 && event->step <= folder->step)
        folder->step = event->step - 1;
    if (ampctl_tfevents_text(event, AMPCTL_TFEVENTS_MODEL, model, sizeof model)) {
        if (folder->model[0] != 0 && strcmp(folder->model, model) != 0)
            return name_failed(error, folder->path, name, "is of another model than the files before it; move it away");
        memcpy(folder->model, model, sizeof model);
    }
    if (ampctl_tfevents_number(event, AMPCTL_TFEVENTS_EPOCH, &epoch)) {
        folder->epoch = (uint64_t)epoch;
        folder->step = event->step;
    }
    return 0;
}

/* Takes the whole records at the front of `bytes`. */
static int take_records(struct ampctl_tffolder *folder, const char *name, struct amp_buf *bytes, uint64_t *at,
                        struct amp_error *error)
{
    struct ampctl_tfevent event;
    size_t used, done = 0;
    int rc;
    while ((rc = ampctl_tfevents_read(bytes->data + done, bytes->size - done, &event, &used)) == 1) {
        rc = take_event(folder, name, &event, error);
        if (rc != 0)
            return rc;
        done += used;
    }
    *at += done;
    amp_buf_consume(bytes, done);
    if (rc == 0)
        return 0;
    return amp_error_set(error, AMP_EINVAL, NULL,
                         "%.200s/%.100s is damaged at byte %" PRIu64 "; move it away, or give another folder",
                         folder->path, name, *at);
}

static int read_file(struct ampctl_tffolder *folder, const char *name, struct amp_error *error)
{
    int fd = openat(folder->lock, name, O_RDONLY | O_CLOEXEC);
    struct amp_buf bytes;
    uint64_t at = 0;
    int rc = 0;
    ssize_t got = -1;
    amp_buf_init(&bytes, AMPCTL_TFEVENTS_EVENT_MAX + AMPCTL_TFEVENTS_FRAME + READ_SIZE);
    while (fd >= 0 && rc == 0) {
        rc = amp_buf_reserve(&bytes, READ_SIZE);
        if (rc != 0)
            rc = amp_error_set(error, rc, NULL, "there is no memory to read %.200s/%.100s", folder->path, name);
        got = rc == 0 ? read(fd, bytes.data + bytes.size, READ_SIZE) : 0;
        if (got <= 0)
            break;
        bytes.size += (size_t)got;
        rc = take_records(folder, name, &bytes, &at, error);
    }
    /* What is left is a record that a run was cut off in. */
    if (rc == 0 && got < 0)
        rc = amp_error_set(error, AMP_EIO, NULL, "%.200s/%.100s cannot be read: %s", folder->path, name,
                           strerror(errno));
    amp_buf_close(&bytes);
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t size = strlen(name), wanted = strlen(suffix);
    return size >= wanted && strcmp(name + size - wanted, suffix) == 0;
}

static int compare(const void *left, const void *right)
{
    return strcmp(left, right);
}

static int unread(const struct ampctl_tffolder *folder, struct amp_error *error)
{
    return amp_error_set(error, AMP_EIO, NULL, "%.200s cannot be read: %s", folder->path, strerror(errno));
}

/* Appends a name to the list, unless it is of no event file. */
static int take_name(const struct ampctl_tffolder *folder, const char *name, char (**names)[NAME_SIZE], size_t *count,
                     struct amp_error *error)
{
    if (strstr(name, "tfevents") == NULL)
        return 0;
    if (strncmp(name, PREFIX, sizeof PREFIX - 1) != 0 || !has_suffix(name, SUFFIX))
        return name_failed(error, folder->path, name,
                           "is another program's; give a folder of its own, beside that one");
    void *more = *count < FILES_MAX ? realloc(*names, (*count + 1) * sizeof **names) : NULL;
    if (more == NULL)
        return amp_error_set(error, AMP_EEXHAUSTED, NULL, "%.200s has %zu event files; give another folder",
                             folder->path, *count);
    *names = more;
    (void)snprintf((*names)[(*count)++], NAME_SIZE, "%s", name);
    return 0;
}

/* The names of our files, sorted; *names is the caller's to free. */
static int list_files(const struct ampctl_tffolder *folder, char (**names)[NAME_SIZE], size_t *count,
                      struct amp_error *error)
{
    int fd = openat(folder->lock, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    int rc = dir != NULL ? 0 : unread(folder, error);
    while (rc == 0) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            rc = errno != 0 ? unread(folder, error) : 0; /* or its end */
            break;
        }
        rc = take_name(folder, entry->d_name, names, count, error);
    }
    if (dir != NULL)
        (void)closedir(dir);
    else if (fd >= 0)
        (void)close(fd);
    if (rc == 0 && *count > 0)
        qsort(*names, *count, sizeof **names, compare);
    return rc;
}

static int read_files(struct ampctl_tffolder *folder, struct amp_error *error)
{
    char(*names)[NAME_SIZE] = NULL;
    size_t count = 0;
    int rc = list_files(folder, &names, &count, error);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        uint64_t time = strtoull(names[i] + sizeof PREFIX - 1, NULL, 10);
        folder->newest_time = time > folder->newest_time ? time : folder->newest_time;
        folder->files++;
        rc = read_file(folder, names[i], error);
    }
    free(names);
    return rc;
}

/* With the folders above it, as mkdir -p. */
static int make_folder(const char *path, struct amp_error *error)
{
    char part[PATH_MAX];
    size_t size = strlen(path);
    if (size >= sizeof part)
        return amp_error_set(error, AMP_EINVAL, NULL, "%.200s... is too long for the path of a folder", path);
    for (size_t end = 1; end <= size; end++) {
        if (path[end] != '/' && path[end] != 0)
            continue;
        (void)snprintf(part, sizeof part, "%.*s", (int)end, path);
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return amp_error_set(error, AMP_EIO, NULL, "%.200s cannot be made: %s", part, strerror(errno));
    }
    return 0;
}

int ampctl_tffolder_open(struct ampctl_tffolder *folder, const char *path, struct amp_error *error)
{
    *folder = (struct ampctl_tffolder){.path = path, .lock = -1, .file = -1};
    int rc = make_folder(path, error);
    if (rc != 0)
        return rc;
    folder->lock = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->lock < 0)
        return amp_error_set(error, AMP_EIO, NULL, "%.200s cannot be opened: %s", path, strerror(errno));
    if (flock(folder->lock, LOCK_EX | LOCK_NB) != 0)
        return amp_error_set(error, AMP_ESTATE, NULL, "another ampctl writes to %.200s; end it, or give another folder",
                             path);
    return read_files(folder, error);
}

void ampctl_tffolder_close(struct ampctl_tffolder *folder)
{
    if (folder->file >= 0)
        (void)close(folder->file);
    if (folder->lock >= 0)
        (void)close(folder->lock);
    folder->file = folder->lock = -1;
}

/* ---- what comes ---- */

/* Behind all names that are there, also where a clock has gone back. */
static int make_file(struct ampctl_tffolder *folder, struct amp_error *error)
{
    char host[64] = "", name[NAME_SIZE];
    uint64_t now = (uint64_t)time(NULL);
    (void)gethostname(host, sizeof host - 1);
    for (char *at = host; *at != 0; at++)
        if (*at == '/')
            *at = '_';
    folder->newest_time = now > folder->newest_time ? now : folder->newest_time + 1;
    (void)snprintf(name, sizeof name, PREFIX "%0*" PRIu64 ".%s" SUFFIX, TIME_WIDTH, folder->newest_time,
                   host[0] != 0 ? host : "host");
    folder->file = openat(folder->lock, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (folder->file < 0)
        return amp_error_set(error, AMP_EIO, NULL, "%.200s/%.100s cannot be made: %s", folder->path, name,
                             strerror(errno));
    return 0;
}

int ampctl_tffolder_write(struct ampctl_tffolder *folder, const struct amp_buf *records, struct amp_error *error)
{
    int rc = folder->file < 0 ? make_file(folder, error) : 0;
    for (size_t done = 0; rc == 0 && done < records->size;) {
        ssize_t size = write(folder->file, records->data + done, records->size - done);
        if (size < 0 && errno != EINTR)
            rc = amp_error_set(error, AMP_EIO, NULL, "events cannot be written to %.200s: %s", folder->path,
                               strerror(errno));
        done += size > 0 ? (size_t)size : 0;
    }
    return rc;
}
