/*
 * Workers that wait: while a call of theirs is open and its connection lives, their lease is renewed. A connection
 * lives if something comes on it; where nothing does, the server sends a PING, IO_ALIVE_PER_LEASE times in a lease. A
 * process that is stopped answers none, and loses its lease as one that has ended.
 */
#ifndef AMPD_IO_ALIVE_H
#define AMPD_IO_ALIVE_H

#include "base/list.h"
#include "server/core/events.h"
#include "server/io/calls/server_call.h"

#include <uv.h>

#define IO_ALIVE_PER_LEASE 8

/* All calls that renew a lease. */
struct io_alive_calls {
    struct amp_list calls; /* io_alive */
    uv_timer_t timer;
};

/* The worker that a call names; a member of the call. All zero: none. */
struct io_alive {
    struct amp_list node; /* in server->alive->calls */
    struct io_server_call *call;
    char model[AMPD_NAME_MAX];
    uint32_t rank;
    struct ampd_incarnation incarnation;
};

/* From now on the open call renews the worker's lease; until io_alive_end, which any call's free_cb may call. */
void io_alive_begin(struct io_alive *alive, struct io_server_call *call, const char *model, uint32_t rank,
                    struct ampd_incarnation incarnation);
void io_alive_end(struct io_alive *alive);

/* Opens the timer, and begins to look at them. The loop must run on after the second. */
void io_alive_open(struct ampd_server *server);
void io_alive_close(struct ampd_server *server);

#endif
