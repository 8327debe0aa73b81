/*
 * The file is divided into windows. Window i is read into buffer i % BUFFERS. Windows are read in order, each by any
 * thread that is free, and fewer than BUFFERS windows after the caller's present one, whose buffer no thread touches.
 *
 * The threads report no errors: a window that could not be read completely is just shorter. If the caller asks for a
 * missing byte, it reads it itself through the page cache, and reports the error if that fails, too. So a disk that
 * only refuses direct reads is no error.
 */
#define _GNU_SOURCE /* O_DIRECT */
#include "storage/bulk_reader.h"

#include "base/assert.h"
#include "base/thread.h"
#include "storage/bulk.h"
#include "storage/plain_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WINDOW BULK_WINDOW

/* Reads in progress at a time: with one the disk is idle between two reads, and more than four made nothing faster. */
#define THREADS 4

/*
 * One is used by the caller and four by the threads; the others absorb times in which the disk or the caller is slow.
 */
#define BUFFERS 8

/* Bytes. A file of up to this size is read by the caller itself, in about a millisecond from the page cache. */
#define SMALL_FILE (2 * WINDOW)

/*
 * The most bytes that the caller gets at once: it reads them twice, and they are still in the processor's cache then.
 */
#define PART_MAX ((uint64_t)128 << 10)

struct window {
    uint8_t *data; /* [WINDOW] */
    uint64_t got;  /* bytes from the start of the window that could be read */
    bool is_read;  /* a thread reads into it now, perhaps a window that the caller no longer needs */
};

struct bulk_reader {
    int fd;
    uint64_t size;
    uint8_t *memory;        /* of all windows; without threads PART_MAX bytes */
    unsigned threads_count; /* 0: the caller reads itself */
    pthread_t threads[THREADS];
    pthread_mutex_t lock; /* protects the members below */
    pthread_cond_t changed;
    uint64_t first, next; /* indices of the caller's window and of the next to be read; all between are read or begun */
    bool stop;
    struct window windows[BUFFERS];
};

/* ---- the threads ---- */

/*
 * Reads a window; returns the number of bytes that could be read. Each pread asks for the rest of a whole window, since
 * direct reads need whole pages; at the end of the file the kernel returns fewer bytes.
 */
static uint64_t read_window(const struct bulk_reader *reader, uint8_t *data, uint64_t offset)
{
    uint64_t rest = reader->size - offset, wanted = rest < WINDOW ? rest : WINDOW, got = 0;
    while (got < wanted) {
        ssize_t part = pread(reader->fd, data + got, WINDOW - got, (off_t)(offset + got));
        if (part <= 0)
            break;
        got += (uint64_t)part;
    }
    return got < wanted ? got : wanted; /* a file may have grown */
}

/* Whether a thread may begin to read the next window. Called with the lock. */
static bool can_begin(const struct bulk_reader *reader)
{
    return reader->next < reader->first + BUFFERS && reader->next * WINDOW < reader->size &&
           !reader->windows[reader->next % BUFFERS].is_read;
}

static void *thread_main(void *arg)
{
    struct bulk_reader *reader = arg;
    (void)pthread_mutex_lock(&reader->lock); /* a plain mutex of our own: it cannot fail */
    while (!reader->stop) {
        if (!can_begin(reader)) {
            (void)pthread_cond_wait(&reader->changed, &reader->lock);
            continue;
        }
        uint64_t offset = reader->next * WINDOW;
        struct window *window = &reader->windows[reader->next++ % BUFFERS];
        window->is_read = true;
        (void)pthread_mutex_unlock(&reader->lock);
        uint64_t got = read_window(reader, window->data, offset);
        (void)pthread_mutex_lock(&reader->lock);
        window->got = got;
        window->is_read = false;
        (void)pthread_cond_broadcast(&reader->changed);
    }
    (void)pthread_mutex_unlock(&reader->lock);
    return NULL;
}

/* ---- the caller ---- */

/*
 * Reads the first bytes of [offset, offset + size) through the page cache. It clears O_DIRECT of the descriptor, so
 * that the threads read through the page cache, too, from then on.
 */
static int read_self(const struct bulk_reader *reader, uint8_t *to, uint64_t offset, uint64_t size, uint64_t *got,
                     struct amp_error *error)
{
    ssize_t part;
    (void)fcntl(reader->fd, F_SETFL, 0); /* it only takes a flag away */
    do
        part = pread(reader->fd, to, size, (off_t)offset);
    while (part < 0 && errno == EINTR);
    if (part < 0)
        return amp_error_set(error, AMP_EIO, NULL, "cannot read: %s", strerror(errno));
    if (part == 0)
        return amp_error_set(error, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "the file is cut off");
    *got = (uint64_t)part;
    return 0;
}

/*
 * Makes a window the caller's and waits until it has been read. If it is among the windows that were read ahead, these
 * are kept; else reading ahead starts again from it.
 */
static struct window *go_to(struct bulk_reader *reader, uint64_t index)
{
    struct window *window = &reader->windows[index % BUFFERS];
    (void)pthread_mutex_lock(&reader->lock);
    if (index != reader->first) {
        if (index < reader->first || index > reader->next)
            reader->next = index;
        reader->first = index;
        (void)pthread_cond_broadcast(&reader->changed);
    }
    while (index >= reader->next || window->is_read)
        (void)pthread_cond_wait(&reader->changed, &reader->lock);
    (void)pthread_mutex_unlock(&reader->lock);
    return window;
}

int bulk_reader_get(struct bulk_reader *reader, uint64_t offset, uint64_t size, const uint8_t **data, uint64_t *got,
                    struct amp_error *error)
{
    AMP_ASSERT(size > 0 && size <= reader->size && offset <= reader->size - size);
    *data = reader->memory;
    size = size < PART_MAX ? size : PART_MAX;
    if (reader->threads_count == 0)
        return read_self(reader, reader->memory, offset, size, got, error);
    const struct window *window = go_to(reader, offset / WINDOW);
    uint64_t at = offset % WINDOW;
    *data = window->data + at;
    if (at >= window->got)
        return read_self(reader, window->data + at, offset, size < WINDOW - at ? size : WINDOW - at, got, error);
    *got = size < window->got - at ? size : window->got - at;
    return 0;
}

uint64_t bulk_reader_size(const struct bulk_reader *reader)
{
    return reader->size;
}

/* ---- life ---- */

static int open_file(struct bulk_reader *reader, const char *path, struct amp_error *error)
{
    struct stat info;
    reader->fd = ampd_plain_open(path, O_RDONLY);
    if (reader->fd < 0 && errno == ENXIO)
        return amp_error_set(error, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "%s is not a regular file", path);
    if (reader->fd < 0)
        return amp_error_set(error,
                             errno == ENOENT   ? AMP_ENOTFOUND
                             : errno == EACCES ? AMP_EDENIED
                                               : AMP_EIO,
                             "CHECKPOINT_UNREADABLE", "cannot open %s: %s", path, ampd_plain_strerror(errno));
    if (fstat(reader->fd, &info) != 0)
        return amp_error_set(error, AMP_EIO, "CHECKPOINT_UNREADABLE", "cannot get the status of %s: %s", path,
                             strerror(errno));
    reader->size = (uint64_t)info.st_size;
    return 0;
}

/* Starts up to THREADS threads. If none can be started, the caller reads itself. */
static void start_threads(struct bulk_reader *reader)
{
    for (unsigned i = 0; i < BUFFERS; i++)
        reader->windows[i].data = reader->memory + i * WINDOW;
    (void)fcntl(reader->fd, F_SETFL, O_DIRECT); /* where there are no direct reads it stays as it is */
    while (reader->threads_count < THREADS &&
           amp_thread_start(&reader->threads[reader->threads_count], NULL, thread_main, reader) == 0)
        reader->threads_count++;
}

int bulk_reader_open(const char *path, struct bulk_reader **out, struct amp_error *error)
{
    *out = NULL;
    struct bulk_reader *reader = calloc(1, sizeof *reader);
    if (reader == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory reading %s", path);
    (void)pthread_mutex_init(&reader->lock, NULL); /* these cannot fail with default attributes on Linux */
    (void)pthread_cond_init(&reader->changed, NULL);
    int rc = open_file(reader, path, error);
    if (rc == 0) {
        reader->memory = reader->size > SMALL_FILE ? bulk_memory(BUFFERS) : malloc(PART_MAX);
        if (reader->memory == NULL)
            rc = amp_error_set(error, AMP_ENOMEM, NULL, "out of memory reading %s", path);
    }
    if (rc != 0) {
        bulk_reader_close(reader);
        return rc;
    }
    if (reader->size > SMALL_FILE)
        start_threads(reader);
    *out = reader;
    return 0;
}

void bulk_reader_close(struct bulk_reader *reader)
{
    if (reader == NULL)
        return;
    (void)pthread_mutex_lock(&reader->lock);
    reader->stop = true;
    (void)pthread_cond_broadcast(&reader->changed);
    (void)pthread_mutex_unlock(&reader->lock);
    for (unsigned i = 0; i < reader->threads_count; i++)
        (void)pthread_join(reader->threads[i], NULL); /* our own threads, joined once */
    if (reader->fd >= 0)
        (void)close(reader->fd); /* only read */
    (void)pthread_cond_destroy(&reader->changed);
    (void)pthread_mutex_destroy(&reader->lock);
    free(reader->memory);
    free(reader);
}
