/* Gives memory that many connections used back to the system, once they are closed. On the loop. */
#ifndef AMPD_IO_TRIM_H
#define AMPD_IO_TRIM_H

#include <stdint.h>
#include <uv.h>

struct ampd_server;

struct io_trim {
    uv_timer_t timer;     /* checks every 5 s whether there have been enough new connections */
    uint64_t connections; /* connections since the start of the process, when memory was last given back */
};

/* Opens and starts the timer. */
void io_trim_open(struct ampd_server *server);
/* Closes the timer's handle; the loop must run until that is done. */
void io_trim_close(struct ampd_server *server);

#endif
