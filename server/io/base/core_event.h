/*
 * Runs the core: one event in, all its outputs done, in order. The only place that calls ampd_core_step and _next. What
 * becomes of an output is said by who stands above (process/core_outputs.c): events come from every folder, and none of
 * them knows that one.
 */
#ifndef AMPD_IO_CORE_EVENT_H
#define AMPD_IO_CORE_EVENT_H

#include "server/core/core.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct ampd_server;

struct io_core_ops {
    /* Before each event: ends the process if it may not speak for the shard any more. */
    void (*before_cb)(const struct ampd_server *server);
    /* Does what one output asks for. */
    void (*output_cb)(struct ampd_server *server, const struct ampd_output *output);
    /* All outputs are done. */
    void (*after_cb)(struct ampd_server *server);
};

struct io_core_event {
    const struct io_core_ops *ops;
    bool stepping; /* outputs of the core are being drained */
    uv_timer_t timer;
};

/* Opens the timer; no event may come before. */
void io_core_event_open(struct ampd_server *server, const struct io_core_ops *ops);

/* Closes the timer; the loop must run on. */
void io_core_event_close(struct ampd_server *server);

/*
 * Hands the core one event and does what it asks for. When called from within an output, the outputs that follow are
 * done by the outer call: what the output at hand points to is then no longer valid.
 */
void io_core_event(struct ampd_server *server, struct ampd_event *event);

/* The core wants a TICK at that time of the loop's clock; the one that it wanted before is off. */
void io_core_event_tick_at(struct ampd_server *server, uint64_t at_ms);

#endif
