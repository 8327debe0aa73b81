/*
 * Runs the core: gives it one event, and then does all its outputs, in order. Only this file calls ampd_core_step and
 * ampd_core_next. How an output is done is defined in process/core_outputs.c, by the callbacks below: every folder
 * gives events to the core, and none may include that one. On the loop's thread.
 */
#ifndef AMPD_IO_CORE_EVENT_H
#define AMPD_IO_CORE_EVENT_H

#include "server/core/core.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct ampd_server;

struct io_core_ops {
    /* Called before each event: ends the process if it may not speak for the shard any more. */
    void (*before_cb)(const struct ampd_server *server);
    /*
     * Does what one output asks for. What the output points to is valid until this returns or gives the core an event.
     */
    void (*output_cb)(struct ampd_server *server, const struct ampd_output *output);
    /* Called when all outputs of an event are done. */
    void (*after_cb)(struct ampd_server *server);
};

struct io_core_event {
    const struct io_core_ops *ops;
    bool stepping;      /* an outer io_core_event is doing outputs */
    uv_timer_t timer;   /* for the event TICK */
    uint64_t tick_ms;   /* the time of the next TICK, by the core's clock; 0: none is due */
    uint64_t last_ms;   /* the core's clock at its last event */
    uint64_t behind_ms; /* by how much the core's clock is behind the loop's: the process stood still (core_event.c) */
    bool stood_still;   /* the clock was set back since the last TICK */
};

/* Opens the timer. `ops` must outlive it. To be called before the first event. */
void io_core_event_open(struct ampd_server *server, const struct io_core_ops *ops);

/* Closes the timer; the loop must run on. */
void io_core_event_close(struct ampd_server *server);

/*
 * Gives the core one event, whose utc_us is set here, and does the outputs. Called from within output_cb, it gives the
 * event at once, but leaves the outputs to the outer call; what the present output points to is not valid afterwards.
 * The core must exist. No effect when the process is closing. The event stays the caller's.
 */
void io_core_event(struct ampd_server *server, struct ampd_event *event);

/* Gives the core TICK at that time of its clock (io_core_now). It replaces the time of an earlier call. */
void io_core_event_tick_at(struct ampd_server *server, uint64_t at_ms);

#endif
