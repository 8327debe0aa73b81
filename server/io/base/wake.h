/*
 * Wakes the loop from other threads.
 *
 * uv_async_send is not for this in libuv 1.44 (Debian 12): the loop spins as long as a sender is inside it, and a
 * sender is, while the kernel lets the loop that it has just woken have its core. With other work on the machine the
 * sender may be away for hundreds of milliseconds then, and all calls with it. libuv 1.45 does not spin; here nothing
 * does with any.
 */
#ifndef AMPD_IO_WAKE_H
#define AMPD_IO_WAKE_H

#include <stdatomic.h>
#include <uv.h>

struct io_wake {
    uv_poll_t poll;
    int fd;
    atomic_bool sent; /* and not heard yet: nothing need be written again */
    void (*heard_cb)(struct io_wake *wake);
    void (*closed_cb)(struct io_wake *wake);
};

/* On the loop, as all but io_wake_send. 0, or AMP_EIO (no descriptor), and nothing to close. */
int io_wake_init(struct io_wake *wake, uv_loop_t *loop, void (*heard_cb)(struct io_wake *wake));

/*
 * heard_cb is called on the loop after this, once for all calls of which it has not heard. On any thread, without a
 * lock that heard_cb takes. Until io_wake_close.
 */
void io_wake_send(struct io_wake *wake);

/* Nobody sends any more. closed_cb on the loop, after which the memory is the caller's. */
void io_wake_close(struct io_wake *wake, void (*closed_cb)(struct io_wake *wake));

#endif
