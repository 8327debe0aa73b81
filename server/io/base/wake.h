/*
 * Wakes the loop from other threads, by an eventfd.
 *
 * uv_async_send of libuv 1.44 (Debian 12) is unsuitable: the loop spins while a sender is inside it, and a sender stays
 * inside while the kernel gives its core to the loop that it has just woken. With other work on the machine the sender
 * may not run for hundreds of milliseconds then, during which no call is answered. libuv 1.45 does not spin; this file
 * does not with any version.
 */
#ifndef AMPD_IO_WAKE_H
#define AMPD_IO_WAKE_H

#include <stdatomic.h>
#include <uv.h>

struct io_wake {
    uv_poll_t poll;
    int fd;           /* the eventfd */
    atomic_bool sent; /* io_wake_send was called, and woken_cb has not come yet: no further write is needed */
    void (*woken_cb)(struct io_wake *wake);
    void (*closed_cb)(struct io_wake *wake);
};

/*
 * Opens it. 0; AMP_EIO: no descriptor is left, and nothing is to be closed. On the loop's thread, like all but
 * io_wake_send.
 */
int io_wake_init(struct io_wake *wake, uv_loop_t *loop, void (*woken_cb)(struct io_wake *wake));

/*
 * Makes the loop call woken_cb, at least once after this call; several calls may share one woken_cb. Any thread, which
 * must not hold a lock that woken_cb takes. Not after io_wake_close.
 */
void io_wake_send(struct io_wake *wake);

/* Closes it; no thread may send any more. closed_cb comes from the loop, and then the memory is the caller's again. */
void io_wake_close(struct io_wake *wake, void (*closed_cb)(struct io_wake *wake));

#endif
