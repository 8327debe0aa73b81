/*
 * The file is divided into windows. A window gets a buffer when its first bytes are put. When it is full, or when it is
 * the oldest of FILLING_MAX windows and another one needs a buffer, it is handed to the thread, which writes it and
 * returns the buffer.
 *
 * Direct writes need whole grains (pages). A grain that is filled completely within a window is written directly, and
 * only once. Parts of grains, at the ends of a window's spans, are written through the page cache, where several of
 * them may form one page.
 */
#define _GNU_SOURCE /* O_DIRECT */
#include "storage/bulk_writer.h"

#include "base/assert.h"
#include "base/list.h"
#include "base/thread.h"
#include "storage/bulk.h"
#include "storage/checkpoint_files.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WINDOW BULK_WINDOW

/*
 * The number of buffers. At most FILLING_MAX of them belong to windows that the caller still fills: one for each of the
 * three streams (values, m, v), and one to spare.
 */
#define BUFFERS     8
#define FILLING_MAX 4

/* The most separate spans of bytes in a window; a window with more is written before it is full. */
#define SPANS_MAX 4

/* Bytes. The alignment of direct writes, which is enough for nearly all disks. */
#define GRAIN_MIN 4096

struct span {
    uint64_t begin, end; /* offsets in the window, in bytes */
};

struct window {
    struct amp_list node; /* in writer->filling, full or spare */
    uint64_t offset;      /* of the window in the file */
    unsigned spans_count;
    struct span spans[SPANS_MAX]; /* the bytes that were put, in no order */
    uint8_t *data;                /* WINDOW bytes, or as many as a smaller file has; aligned to a grain */
};

struct bulk_writer {
    int fd, direct;          /* direct: with O_DIRECT, -1: not possible; used by the thread only */
    uint64_t size, grain;    /* bytes of the file; the alignment of direct writes */
    struct amp_list filling; /* windows that the caller fills, oldest first; used by the caller only */
    unsigned filling_count;
    uint8_t *memory; /* of all windows */
    struct window windows[BUFFERS];
    pthread_t thread;
    pthread_mutex_t lock; /* protects the members below */
    /*
     * `more` is signalled to the thread when `full` has more windows, `stop` is set, or `failed` was cleared; `less` to
     * the caller when `full` has fewer windows or `failed` was set.
     */
    pthread_cond_t more, less;
    struct amp_list full, spare; /* windows to be written; windows without bytes */
    bool stop;
    /* Code of the last write. If it is not 0 the thread pauses: after AMP_EEXHAUSTED until the caller tries again. */
    int failed;
    struct amp_error trouble; /* the error of that write */
    char path[];
};

/* ---- the thread ---- */

static int write_span(struct bulk_writer *writer, const uint8_t *data, uint64_t size, uint64_t offset,
                      struct amp_error *error)
{
    while (size > 0) {
        uint64_t over = offset % writer->grain, part = size;
        bool direct = writer->direct >= 0 && over == 0 && size >= writer->grain;
        if (direct)
            part -= size % writer->grain;
        else if (writer->direct >= 0 && part > writer->grain - over)
            part = writer->grain - over;
        ssize_t put = pwrite(direct ? writer->direct : writer->fd, data, part, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0 && errno == EINVAL && direct) { /* a disk with larger grains: it goes on through the page cache */
            (void)close(writer->direct);
            writer->direct = -1;
            continue;
        }
        if (put <= 0)
            return checkpoint_system_error(error, "cannot write", writer->path);
        data += put;
        offset += (uint64_t)put;
        size -= (uint64_t)put;
    }
    return 0;
}

static int write_window(struct bulk_writer *writer, const struct window *window, struct amp_error *error)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < window->spans_count; i++) {
        const struct span *span = &window->spans[i];
        rc = write_span(writer, window->data + span->begin, span->end - span->begin, window->offset + span->begin,
                        error);
    }
    return rc;
}

static void *thread_main(void *arg)
{
    struct bulk_writer *writer = arg;
    (void)pthread_mutex_lock(&writer->lock); /* a plain mutex of our own: it cannot fail */
    for (;;) {
        while (!writer->stop && (amp_list_empty(&writer->full) || writer->failed != 0))
            (void)pthread_cond_wait(&writer->more, &writer->lock);
        if (writer->stop)
            break;
        struct window *window = AMP_CONTAINER(writer->full.next, struct window, node);
        (void)pthread_mutex_unlock(&writer->lock);
        struct amp_error error = {0};
        int rc = write_window(writer, window, &error);
        (void)pthread_mutex_lock(&writer->lock);
        if (rc == 0) {
            amp_list_remove(&window->node);
            amp_list_push(&writer->spare, &window->node);
        }
        writer->failed = rc;
        writer->trouble = error;
        (void)pthread_cond_signal(&writer->less);
    }
    (void)pthread_mutex_unlock(&writer->lock);
    return NULL;
}

/* ---- windows ---- */

/* Takes the error of the thread, if any; after a full disk the thread then tries again. Called with the lock. */
static int take_trouble(struct bulk_writer *writer, struct amp_error *error)
{
    int rc = writer->failed;
    if (error != NULL)
        *error = writer->trouble;
    if (rc == AMP_EEXHAUSTED) {
        writer->failed = 0;
        (void)pthread_cond_signal(&writer->more);
    }
    return rc;
}

static void hand_over(struct bulk_writer *writer, struct window *window)
{
    amp_list_remove(&window->node);
    writer->filling_count--;
    (void)pthread_mutex_lock(&writer->lock);
    amp_list_push(&writer->full, &window->node);
    (void)pthread_cond_signal(&writer->more);
    (void)pthread_mutex_unlock(&writer->lock);
}

static int window_at(struct bulk_writer *writer, uint64_t offset, struct window **out, struct amp_error *error)
{
    AMP_LIST_EACH(it, safe, &writer->filling)
    {
        *out = AMP_CONTAINER(it, struct window, node);
        if ((*out)->offset == offset)
            return 0;
    }
    if (writer->filling_count == FILLING_MAX)
        hand_over(writer, AMP_CONTAINER(writer->filling.next, struct window, node));
    (void)pthread_mutex_lock(&writer->lock);
    while (amp_list_empty(&writer->spare) && writer->failed == 0)
        (void)pthread_cond_wait(&writer->less, &writer->lock);
    int rc = take_trouble(writer, error);
    struct amp_list *node = rc == 0 ? amp_list_shift(&writer->spare) : NULL;
    (void)pthread_mutex_unlock(&writer->lock);
    if (rc != 0)
        return rc;
    *out = AMP_CONTAINER(node, struct window, node);
    (*out)->offset = offset;
    (*out)->spans_count = 0;
    amp_list_push(&writer->filling, node);
    writer->filling_count++;
    return 0;
}

/* Adds [begin, end) to the spans of a window, joined with adjacent ones. False: there are SPANS_MAX others already. */
static bool add_span(struct window *window, uint64_t begin, uint64_t end)
{
    struct span *spans = window->spans;
    for (unsigned i = 0; i < window->spans_count; i++) {
        if (spans[i].begin != end && spans[i].end != begin)
            continue;
        struct span joined = {spans[i].end == begin ? spans[i].begin : begin,
                              spans[i].begin == end ? spans[i].end : end};
        spans[i] = spans[--window->spans_count];
        return add_span(window, joined.begin, joined.end); /* it may fill the gap before another */
    }
    if (window->spans_count == SPANS_MAX)
        return false;
    spans[window->spans_count++] = (struct span){begin, end};
    return true;
}

static bool is_full(const struct bulk_writer *writer, const struct window *window)
{
    uint64_t rest = writer->size - window->offset;
    return window->spans_count == 1 && window->spans[0].begin == 0 &&
           window->spans[0].end == (rest < WINDOW ? rest : WINDOW);
}

int bulk_writer_put(struct bulk_writer *writer, const void *data, uint64_t size, uint64_t offset, uint64_t *taken,
                    struct amp_error *error)
{
    AMP_ASSERT(size <= writer->size && offset <= writer->size - size);
    *taken = 0;
    while (*taken < size) {
        struct window *window;
        uint64_t at = (offset + *taken) % WINDOW;
        uint64_t part = size - *taken < WINDOW - at ? size - *taken : WINDOW - at;
        int rc = window_at(writer, offset + *taken - at, &window, error);
        if (rc != 0)
            return rc;
        if (!add_span(window, at, at + part)) {
            hand_over(writer, window);
            continue;
        }
        memcpy(window->data + at, (const uint8_t *)data + *taken, part);
        *taken += part;
        if (is_full(writer, window))
            hand_over(writer, window);
    }
    return 0;
}

/* ---- life ---- */

static int start(struct bulk_writer *writer)
{
    uint64_t count = (writer->size + WINDOW - 1) / WINDOW, each = WINDOW;
    if (count <= 1) {
        each = (writer->size + writer->grain) / writer->grain * writer->grain;
        count = 1;
    }
    /* One more than the file has windows: a window may be handed over before it is full and then be filled again. */
    count = count < BUFFERS ? count + 1 : BUFFERS;
    writer->memory = each == WINDOW ? bulk_memory(count) : aligned_alloc(writer->grain, count * each);
    if (writer->memory == NULL)
        return AMP_ENOMEM;
    for (uint64_t i = 0; i < count; i++) {
        writer->windows[i].data = writer->memory + i * each;
        amp_list_push(&writer->spare, &writer->windows[i].node);
    }
    return amp_thread_start(&writer->thread, NULL, thread_main, writer) == 0 ? 0 : AMP_ENOMEM;
}

/*
 * Creates a new file, also if there is one of that name. In a directory that shards share, an earlier process of this
 * shard may have been suspended while it wrote and have been replaced since; if it wakes up, what it still writes must
 * not get into the file of its successor.
 */
static int create(struct bulk_writer *writer, struct amp_error *error)
{
    if (unlink(writer->path) != 0 && errno != ENOENT)
        return checkpoint_not_opened(error, "cannot replace", writer->path);
    writer->fd = open(writer->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (writer->fd < 0)
        return checkpoint_not_opened(error, "cannot create", writer->path);
    writer->direct = open(writer->path, O_WRONLY | O_DIRECT | O_CLOEXEC);
    int rc = checkpoint_make_room(writer->fd, writer->size, writer->path, error);
    if (rc != 0)
        return rc;
    return start(writer) == 0 ? 0 : amp_error_set(error, AMP_ENOMEM, NULL, "out of memory writing %s", writer->path);
}

static int release(struct bulk_writer *writer)
{
    int rc = writer->fd < 0 ? 0 : close(writer->fd), cause = errno;
    if (writer->direct >= 0)
        (void)close(writer->direct); /* the same file: the other one speaks for both */
    (void)pthread_cond_destroy(&writer->more);
    (void)pthread_cond_destroy(&writer->less);
    (void)pthread_mutex_destroy(&writer->lock);
    free(writer->memory);
    free(writer);
    errno = cause;
    return rc;
}

int bulk_writer_open(const char *path, uint64_t size, struct bulk_writer **out, struct amp_error *error)
{
    *out = NULL;
    long page = sysconf(_SC_PAGESIZE);
    struct bulk_writer *writer = calloc(1, sizeof *writer + strlen(path) + 1);
    if (writer == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory writing %s", path);
    memcpy(writer->path, path, strlen(path) + 1);
    writer->fd = writer->direct = -1;
    writer->size = size;
    writer->grain = page > GRAIN_MIN ? (uint64_t)page : GRAIN_MIN;
    amp_list_init(&writer->filling);
    amp_list_init(&writer->full);
    amp_list_init(&writer->spare);
    (void)pthread_mutex_init(&writer->lock, NULL); /* these cannot fail with default attributes on Linux */
    (void)pthread_cond_init(&writer->more, NULL);
    (void)pthread_cond_init(&writer->less, NULL);
    int rc = create(writer, error);
    if (rc != 0) {
        bool made = writer->fd >= 0;
        (void)release(writer);
        if (made)
            (void)unlink(path); /* a sweep finds what is left */
        return rc;
    }
    *out = writer;
    return 0;
}

int bulk_writer_status(const struct bulk_writer *writer, struct stat *status)
{
    return fstat(writer->fd, status);
}

int bulk_writer_flush(struct bulk_writer *writer, struct amp_error *error)
{
    while (!amp_list_empty(&writer->filling))
        hand_over(writer, AMP_CONTAINER(writer->filling.next, struct window, node));
    (void)pthread_mutex_lock(&writer->lock);
    while (!amp_list_empty(&writer->full) && writer->failed == 0)
        (void)pthread_cond_wait(&writer->less, &writer->lock);
    int rc = take_trouble(writer, error);
    (void)pthread_mutex_unlock(&writer->lock);
    return rc;
}

int bulk_writer_sync(struct bulk_writer *writer)
{
    AMP_ASSERT(amp_list_empty(&writer->filling));
    int rc = fsync(writer->fd);
    /* Where its pages are in the page cache, they are better used for others. Only advice. */
    if (rc == 0)
        (void)posix_fadvise(writer->fd, 0, 0, POSIX_FADV_DONTNEED);
    return rc;
}

int bulk_writer_close(struct bulk_writer *writer)
{
    if (writer == NULL)
        return 0;
    (void)pthread_mutex_lock(&writer->lock);
    writer->stop = true;
    (void)pthread_cond_signal(&writer->more);
    (void)pthread_mutex_unlock(&writer->lock);
    (void)pthread_join(writer->thread, NULL); /* our own thread, joined once */
    return release(writer);
}
