/*
 * Gives shared memory its pages, a part (AMP_SHARED_FILL bytes) at a time on a compute thread: zeroing gigabytes takes
 * seconds, and neither the loop nor a step waits for it longer than for one part. The memory may be used meanwhile. On
 * the loop.
 */
#ifndef AMPD_IO_SHARED_FILL_H
#define AMPD_IO_SHARED_FILL_H

#include "server/io/base/threads.h"

struct ampd_server;

/*
 * Embedded in what has the memory; that stays alive, and the memory mapped, until done_cb or a stop that returned true.
 */
struct io_shared_fill {
    struct io_task task;
    struct ampd_server *server;
    int fd;
    void *memory;
    size_t size;
    size_t at;    /* where the next part begins */
    bool huge;    /* huge pages can be had so far */
    bool running; /* done_cb is still to come */
    bool stopped; /* no further part is begun */
    int code;     /* 0; AMP_ENOMEM; AMP_ECANCELLED: stopped */
    void (*done_cb)(struct io_shared_fill *fill);
};

/* Begins. `server`, `fd`, `memory`, `size` and `done_cb` are set, all else is zero. done_cb does not run within it. */
void io_shared_fill_start(struct io_shared_fill *fill);

/* No further parts. True: nothing runs, and done_cb will not come. False: a part is under way, then done_cb comes. */
bool io_shared_fill_stop(struct io_shared_fill *fill);

#endif
