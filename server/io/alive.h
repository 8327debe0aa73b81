/*
 * Workers that wait: while a call of theirs is open and its connection lives, their lease is renewed. A connection lives if something
 * comes on it; where nothing does, the server sends a PING, IO_ALIVE_PER_LEASE times in a lease. A process that is stopped answers
 * none, and loses its lease as one that has ended.
 */
#ifndef AMPD_IO_ALIVE_H
#define AMPD_IO_ALIVE_H

#include "base/list.h"
#include "server/core/events.h"
#include "server/io/call.h"

#define IO_ALIVE_PER_LEASE 8

/* The worker that a call names; a member of the call. All zero: none. */
struct io_alive {
    struct amp_list node; /* in server->alive */
    struct io_call *call;
    char model[AMPD_NAME_MAX];
    uint32_t rank;
    struct ampd_incarnation incarnation;
};

/* From now on the open call renews the worker's lease; until io_alive_end, which any call's free_cb may call. */
void io_alive_begin(struct io_alive *alive, struct io_call *call, const char *model, uint32_t rank,
                    struct ampd_incarnation incarnation);
void io_alive_end(struct io_alive *alive);

/* Begins to look at them; the timer is open. */
void io_alive_start(struct ampd_server *server);

#endif
