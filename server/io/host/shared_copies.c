#include "server/io/host/shared_copies.h"

#include "base/assert.h"
#include "base/large.h"
#include "base/list.h"
#include "base/shared.h"
#include "rpc/arpc_limits.h"
#include "server/io/base/open_files.h"
#include "server/io/base/server.h"
#include "server/io/host/free_memory.h"
#include "server/io/host/shared_fill.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

struct copy {
    struct amp_list node; /* in io_shared_copies.copies, until the model has freed it */
    void *memory;
    size_t size;
    uint64_t serial; /* no other copy of this process has it: addresses and descriptors are used again; 0: fd is -1 */
    int fd;          /* memfd; -1: ordinary memory, since there were no descriptors or no shared memory left */
    bool given;      /* the descriptor was given to a worker, which may have the copy mapped from then on */
    bool freed;      /* the model has freed it; it is destroyed when the fill has ended */
    struct io_shared_fill fill;
};

struct io_shared_copies {
    struct ampd_server *server;
    struct ampd_copy_memory ops;
    struct amp_list copies;
    uint64_t serials; /* that were given */
};

int io_shared_new(const char *name, size_t size, bool sole_writer, int *fd, void **memory, struct amp_error *error)
{
    uint64_t most = io_open_files_max(), room = arpc_limits_descriptors(&arpc_limits_default, most);
    int rc = amp_shared_new(name, size, sole_writer, fd, memory, error);
    if (rc != 0 || most == 0 || (uint64_t)*fd < room) /* the kernel gives the lowest free descriptor */
        return rc;
    amp_shared_unmap(*memory, size);
    (void)close(*fd);
    *memory = NULL;
    return amp_error_set(error, AMP_EEXHAUSTED, NULL,
                         "shared memory: the process may have %llu descriptors, of which the last %llu are kept for "
                         "storage; raise its limit of open files",
                         (unsigned long long)most, (unsigned long long)(most - room));
}

static void destroy(struct copy *copy)
{
    if (copy->fd >= 0)
        io_shared_free(copy->fill.server, copy->fd, copy->memory, copy->size);
    else
        amp_large_free(copy->memory, copy->size);
    free(copy);
}

/* The fill has ended. Pages that it could not allocate are allocated when they are first written. */
static void filled(struct io_shared_fill *fill)
{
    struct copy *copy = AMP_CONTAINER(fill, struct copy, fill);
    if (copy->freed)
        destroy(copy);
}

static struct copy *find(const struct io_shared_copies *shared, const void *memory)
{
    AMP_LIST_EACH(node, next, &shared->copies)
    {
        struct copy *copy = AMP_CONTAINER(node, struct copy, node);
        if (copy->memory == memory)
            return copy;
    }
    return NULL;
}

static void *new_copy(void *arg, size_t size, void *before)
{
    struct io_shared_copies *shared = arg;
    struct amp_error error = {0};
    if (before != NULL && !find(shared, before)->given)
        return before;
    struct copy *copy = calloc(1, sizeof *copy);
    if (copy == NULL)
        return NULL;
    copy->size = size > 0 ? size : 1;
    if (io_shared_new("ampd-copy", copy->size, true, &copy->fd, &copy->memory, &error) != 0) {
        amp_log(shared->server->log, AMP_LOG_WARN, "server", "msg=\"%s\" err=\"%s\"",
                before == NULL ? "a model is not shared with workers of this host"
                               : "there is no memory in place of what workers of this host have mapped",
                error.text);
        copy->fd = -1;
        /* In place of a shared copy, ordinary memory would end the sharing for good: copies do not move later. */
        copy->memory = before == NULL ? amp_large_new(copy->size) : NULL;
    }
    if (copy->memory == NULL) {
        free(copy);
        return NULL;
    }
    copy->serial = copy->fd >= 0 ? ++shared->serials : 0;
    amp_list_push(&shared->copies, &copy->node);
    copy->fill = (struct io_shared_fill){.server = shared->server,
                                         .fd = copy->fd,
                                         .memory = copy->memory,
                                         .size = copy->size,
                                         .huge = true,
                                         .done_cb = filled};
    if (copy->fd >= 0)
        io_shared_fill_start(&copy->fill);
    return copy->memory;
}

static void free_copy(void *arg, void *memory, size_t size)
{
    struct copy *copy = find(arg, memory);
    (void)size;
    AMP_ASSERT(copy != NULL);
    amp_list_remove(&copy->node);
    copy->freed = true;
    if (io_shared_fill_stop(&copy->fill))
        destroy(copy);
}

/*
 * Whether memory of a memfd may be missing when it is written: with vm.overcommit_memory=2 it is not reserved before,
 * and a write without a free page is SIGBUS.
 */
static bool is_promised_nothing(void)
{
    char mode = 0;
    int fd = open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
    bool strict = fd >= 0 && read(fd, &mode, 1) == 1 && mode == '2';
    if (fd >= 0)
        (void)close(fd);
    return strict;
}

const struct ampd_copy_memory *io_shared_copies_open(struct ampd_server *server)
{
    struct amp_error error = {0};
    int fd;
    void *memory;
    if (server->options->no_shared_memory)
        return NULL;
    if (is_promised_nothing()) {
        amp_log(server->log, AMP_LOG_WARN, "server",
                "msg=\"no shared memory with workers of this host\" err=\"vm.overcommit_memory is 2, so that its pages "
                "may be missing when they are written; set it to 0 or 1\"");
        return NULL;
    }
    if (amp_shared_new("ampd-probe", 1, true, &fd, &memory, &error) != 0) {
        amp_log(server->log, AMP_LOG_WARN, "server", "msg=\"no shared memory with workers of this host\" err=\"%s\"",
                error.text);
        return NULL;
    }
    amp_shared_unmap(memory, 1);
    (void)close(fd);
    struct io_shared_copies *shared = calloc(1, sizeof *shared);
    if (shared == NULL)
        return NULL;
    shared->server = server;
    shared->ops = (struct ampd_copy_memory){new_copy, free_copy, shared};
    amp_list_init(&shared->copies);
    server->shared_copies = shared;
    return &shared->ops;
}

void io_shared_copies_close(struct ampd_server *server)
{
    AMP_ASSERT(server->shared_copies == NULL || amp_list_empty(&server->shared_copies->copies));
    free(server->shared_copies);
    server->shared_copies = NULL;
}

uint64_t io_shared_copies_give(const struct ampd_server *server, const void *copy, int *fd)
{
    struct copy *found = find(server->shared_copies, copy);
    AMP_ASSERT(found != NULL && found->fd >= 0);
    found->given = true;
    *fd = found->fd;
    return found->serial;
}

uint64_t io_shared_copies_serial(const struct ampd_server *server, const void *copy)
{
    const struct copy *found = server->shared_copies != NULL ? find(server->shared_copies, copy) : NULL;
    return found != NULL ? found->serial : 0;
}
