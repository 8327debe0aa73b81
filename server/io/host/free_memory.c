#include "server/io/host/free_memory.h"

#include "base/large.h"
#include "base/shared.h"
#include "server/io/base/server.h"

#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/*
 * Bytes of a piece: while the kernel takes it back, no thread of this process can map memory. As many as are allocated
 * in a turn (host/shared_fill.c), so that memory comes back as fast as a new model takes it.
 */
#define PIECE AMP_SHARED_FILL

struct freeing {
    struct io_task task;
    struct ampd_server *server;
    void *memory;
    size_t size, done; /* bytes: of the memory, and of the pieces that have gone */
    int fd;            /* of shared memory; -1: the memory is malloc's */
};

static void free_piece(struct io_task *task)
{
    struct freeing *own = AMP_CONTAINER(task, struct freeing, task);
    uint8_t *at = (uint8_t *)own->memory + own->done;
    size_t piece = PIECE - (uintptr_t)at % AMP_HUGE_PAGE; /* so that no huge page is cut */
    if (piece > own->size - own->done)
        piece = own->size - own->done;
    own->done += piece;
    if (own->fd >= 0)
        amp_shared_unmap(at, piece);
    else
        amp_large_drop(at, piece);
    if (own->done < own->size)
        return;
    if (own->fd >= 0)
        (void)close(own->fd);
    else
        free(own->memory);
}

static void piece_freed(struct io_task *task)
{
    struct freeing *own = AMP_CONTAINER(task, struct freeing, task);
    if (own->done < own->size && own->server->life.state != SERVER_CLOSING) {
        io_threads_submit(own->server->pools.compute, task);
        return;
    }
    while (own->done < own->size)
        free_piece(task);
    free(own);
}

static void free_later(struct ampd_server *server, int fd, void *memory, size_t size)
{
    struct freeing *own = server->life.state != SERVER_CLOSING ? malloc(sizeof *own) : NULL;
    struct freeing now = {.task = {.run_cb = free_piece, .done_cb = piece_freed},
                          .server = server,
                          .memory = memory,
                          .size = size,
                          .fd = fd};
    if (own != NULL) {
        *own = now;
        io_threads_submit(server->pools.compute, &own->task);
        return;
    }
    while (now.done < size) /* or there is no memory for a task */
        free_piece(&now.task);
}

void io_shared_free(struct ampd_server *server, int fd, void *memory, size_t size)
{
    free_later(server, fd, memory, size);
}

void io_large_memory_free(void *arg, void *memory, size_t size)
{
    free_later(arg, -1, memory, size);
}
