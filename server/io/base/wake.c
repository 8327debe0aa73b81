#include "server/io/base/wake.h"

#include "base/assert.h"
#include "base/err.h"
#include "base/list.h"

#include <errno.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct io_wake *wake = AMP_CONTAINER(poll, struct io_wake, poll);
    uint64_t count;
    (void)status;
    (void)events;
    (void)read(wake->fd, &count, sizeof count); /* 8 bytes, or none: woken_cb is called either way */
    /*
     * What a sender did before it found `sent` true is seen by woken_cb below. A sender that finds it false from here
     * on writes again.
     */
    (void)atomic_exchange(&wake->sent, false);
    wake->woken_cb(wake);
}

int io_wake_init(struct io_wake *wake, uv_loop_t *loop, void (*woken_cb)(struct io_wake *wake))
{
    wake->woken_cb = woken_cb;
    atomic_init(&wake->sent, false);
    wake->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake->fd < 0)
        return AMP_EIO;
    if (uv_poll_init(loop, &wake->poll, wake->fd) != 0) {
        (void)close(wake->fd);
        return AMP_EIO;
    }
    (void)uv_poll_start(&wake->poll, UV_READABLE, on_readable); /* fails only on a handle that is closing */
    return 0;
}

void io_wake_send(struct io_wake *wake)
{
    static const uint64_t one = 1;
    if (atomic_exchange(&wake->sent, true))
        return;
    ssize_t rc;
    do
        rc = write(wake->fd, &one, sizeof one);
    while (rc < 0 && errno == EINTR);
    AMP_ASSERT(rc == sizeof one); /* one write at a time never fills the counter */
}

static void on_closed(uv_handle_t *handle)
{
    struct io_wake *wake = AMP_CONTAINER((uv_poll_t *)handle, struct io_wake, poll);
    (void)close(wake->fd);
    wake->closed_cb(wake);
}

void io_wake_close(struct io_wake *wake, void (*closed_cb)(struct io_wake *wake))
{
    wake->closed_cb = closed_cb;
    uv_close((uv_handle_t *)&wake->poll, on_closed);
}
