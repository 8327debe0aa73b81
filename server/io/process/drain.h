/* The end of the process: by a signal, by the RPC Drain, or after a failed start. All on the loop. */
#ifndef AMPD_IO_DRAIN_H
#define AMPD_IO_DRAIN_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct ampd_server;

struct io_drain {
    uv_timer_t timer; /* ends the process when the drain has taken too long */
    uv_signal_t on_term, on_int, on_hup;
    uint64_t due_ms;  /* by when all has to be over, on the loop's clock; 0: no drain has begun */
    uint64_t time_ms; /* --drain-time as it was when the drain began; 0: none has, or the default */
    int64_t grace_ms; /* how long calls under way may go on once the core is drained */
    bool open;        /* the handles above are open, and so are those that start.c opens before them */
};

/*
 * For the beginning of the process: until io_drain_open, SIGTERM and SIGINT end it at once with AMPD_EXIT_OK, also
 * where it waits for a disk; SIGHUP is kept until then.
 */
void io_drain_hold(void);

/*
 * Opens the handles, and watches the signals. The first SIGTERM or SIGINT drains (or ends a process that
 * stands by), the second ends the process at once. SIGHUP reads options, certificates and tokens again. 0 or AMP_EIO.
 */
int io_drain_open(struct ampd_server *server);

/*
 * Begins the drain of a server that runs: new calls are refused, health is NOT_SERVING, and the core gets
 * AMPD_EVENT_DRAIN. `cause` is for the log. No effect in any other state of the server.
 */
void io_drain_begin(struct ampd_server *server, const char *cause, int64_t grace_ms);

/*
 * For AMPD_OUT_DRAINED: the core has nothing left to do. Connections get GOAWAY, and calls under way grace_ms; then
 * everything is closed (io_drain_close). No effect unless the server is draining.
 */
void io_drain_core_done(struct ampd_server *server);

/* Closes everything that is open. The loop must run afterwards until it has no handles. No effect the second time. */
void io_drain_close(struct ampd_server *server);

#endif
