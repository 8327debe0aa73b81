/*
 * Allocates the pages of shared memory in advance, on a compute thread and in parts of AMP_SHARED_FILL bytes: zeroing
 * gigabytes takes seconds, and neither the loop nor a step should wait longer than for one part. The memory may be used
 * meanwhile. Functions run on the loop's thread.
 */
#ifndef AMPD_IO_SHARED_FILL_H
#define AMPD_IO_SHARED_FILL_H

#include "server/io/base/threads.h"

struct ampd_server;

/*
 * Embedded in the owner of the memory, which must stay alive, with the memory mapped, until done_cb has come or
 * io_shared_fill_stop has returned true.
 */
struct io_shared_fill {
    struct io_task task;
    struct ampd_server *server;
    int fd;       /* memfd of the memory */
    void *memory; /* its mapping */
    size_t size;  /* in bytes */
    size_t at;    /* byte offset of the next part */
    bool huge;    /* huge pages are wanted, and the parts so far have got them */
    bool running; /* done_cb is still to come */
    bool stopped; /* no further part is begun */
    int code;     /* in done_cb: 0, and all pages are there unless it was stopped; AMP_ENOMEM */
    void (*done_cb)(struct io_shared_fill *fill);
};

/*
 * Begins. `server`, `fd`, `memory`, `size`, `huge` and `done_cb` must be set, and all else zero. done_cb comes once,
 * from the loop, not from within this call.
 */
void io_shared_fill_start(struct io_shared_fill *fill);

/*
 * Begins no further part. True: nothing is under way, and done_cb does not come. False: done_cb comes after this part.
 */
bool io_shared_fill_stop(struct io_shared_fill *fill);

#endif
