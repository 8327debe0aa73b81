#include "server/io/host/shared_fill.h"

#include "base/shared.h"
#include "server/io/base/server.h"

static void fill_part(struct io_task *task)
{
    struct io_shared_fill *fill = AMP_CONTAINER(task, struct io_shared_fill, task);
    fill->code = amp_shared_fill(fill->fd, fill->memory, fill->size, fill->at, &fill->huge);
    fill->at += AMP_SHARED_FILL;
}

static void part_filled(struct io_task *task)
{
    struct io_shared_fill *fill = AMP_CONTAINER(task, struct io_shared_fill, task);
    /* A server that closes submits nothing more. */
    if (fill->server->life.state == SERVER_CLOSING)
        fill->stopped = true;
    if (fill->code == 0 && fill->at < fill->size && !fill->stopped) {
        io_threads_submit(fill->server->pools.compute, task);
        return;
    }
    fill->running = false;
    fill->done_cb(fill);
}

void io_shared_fill_start(struct io_shared_fill *fill)
{
    fill->task = (struct io_task){.run_cb = fill_part, .done_cb = part_filled};
    fill->running = true;
    io_threads_submit(fill->server->pools.compute, &fill->task);
}

bool io_shared_fill_stop(struct io_shared_fill *fill)
{
    fill->stopped = true;
    if (fill->running && io_threads_take_back(fill->server->pools.compute, &fill->task))
        fill->running = false;
    return !fill->running;
}
