/* The end of the process. */
#ifndef AMPD_IO_DRAIN_H
#define AMPD_IO_DRAIN_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct ampd_server;

struct io_drain {
    uv_timer_t timer;
    uv_signal_t on_term, on_int, on_hup;
    int64_t grace_ms; /* for calls under way, once the core has nothing left to do */
    bool open;        /* handles are open: those above, and the timers of the other parts */
};

/*
 * SIGTERM, SIGINT: the first drains, the second ends the process at once. SIGHUP: certificates and tokens are read
 * anew.
 */
int io_drain_open(struct ampd_server *server);

/* Begins the end, once the server runs: `cause` is for the log. No effect when it has begun. */
void io_drain_begin(struct ampd_server *server, const char *cause, int64_t grace_ms);

/* The core has nothing left to do: connections are closed, then the loop ends. */
void io_drain_core_done(struct ampd_server *server);

/* Closes everything that is open; the loop must run afterwards until it is empty. */
void io_drain_close(struct ampd_server *server);

#endif
