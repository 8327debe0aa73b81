/*
 * Leases of workers that wait. While a worker has a Push, a Pull or a WatchSteps open, and the call's connection lives,
 * the server renews the worker's lease by itself. A connection lives if bytes arrive on it. Where none do, the server
 * sends a PING, which every gRPC client answers, IO_ALIVE_PER_LEASE times in a lease. A stopped process does not
 * answer, so it loses its lease as one that has ended does (docs/protocol.md, "The lease of a worker"). All on the
 * loop.
 */
#ifndef AMPD_IO_ALIVE_H
#define AMPD_IO_ALIVE_H

#include "base/list.h"
#include "server/core/events.h"
#include "server/io/calls/server_call.h"

#include <uv.h>

/* How often in the time of one lease each connection is looked at, and the lease renewed. */
#define IO_ALIVE_PER_LEASE 8

/* All open calls that renew a lease. */
struct io_alive_calls {
    struct amp_list calls; /* struct io_alive */
    uv_timer_t timer;      /* IO_ALIVE_PER_LEASE times in a lease; once more soon after the process stood still */
    uint64_t due_ms;       /* when the timer is due, by the loop's clock */
};

/* The worker whose lease a call renews. A member of the call's own struct; all zero: the call renews none. */
struct io_alive {
    struct amp_list node;        /* in server->alive->calls */
    struct io_server_call *call; /* NULL: the call renews no lease */
    char model[AMPD_NAME_MAX];   /* name of the model */
    uint32_t rank;
    struct ampd_incarnation incarnation;
};

/* From now on the call renews this worker's lease as long as it is open and its connection lives. */
void io_alive_begin(struct io_alive *alive, struct io_server_call *call, const char *model, uint32_t rank,
                    struct ampd_incarnation incarnation);
/* Renews it now. Calls into the core, last. */
void io_alive_renew(const struct io_alive *alive);
/* Ends that; for the call's free_cb. No effect on one that is all zero. */
void io_alive_end(struct io_alive *alive);

/* Starts the timer. */
void io_alive_open(struct ampd_server *server);
/* Closes the timer's handle; the loop must run until that is done. */
void io_alive_close(struct ampd_server *server);

#endif
