#include "server/io/base/core_event.h"

#include "base/assert.h"
#include "base/stood_still.h"
#include "server/io/base/clock.h"
#include "server/io/base/server.h"

void io_core_event_open(struct ampd_server *server, const struct io_core_ops *ops)
{
    AMP_ASSERT(uv_timer_init(&server->loop, &server->core_event.timer) == 0);
    server->core_event.timer.data = server;
    server->core_event.ops = ops;
}

void io_core_event_close(struct ampd_server *server)
{
    uv_close((uv_handle_t *)&server->core_event.timer, NULL);
}

/*
 * If the process stood still (it was stopped, or its machine was), the core's clock goes on from a little before the
 * tick that was due then: what has come meanwhile, as a KeepAlive, is read before a lease counts as ended.
 */
static void set_back(struct ampd_server *server)
{
    struct io_core_event *driver = &server->core_event;
    uint64_t now_ms = io_core_now(server);
    if (driver->tick_ms <= AMP_STOOD_STILL_MS || driver->stood_still || now_ms <= driver->tick_ms + AMP_STOOD_STILL_MS)
        return;
    uint64_t from_ms = driver->tick_ms - AMP_STOOD_STILL_MS;
    from_ms = from_ms > driver->last_ms ? from_ms : driver->last_ms; /* it never goes back */
    driver->behind_ms += now_ms - from_ms;
    driver->stood_still = true;
}

static void on_timer(uv_timer_t *timer)
{
    struct ampd_server *server = timer->data;
    struct io_core_event *driver = &server->core_event;
    set_back(server);
    if (driver->tick_ms > io_core_now(server)) {
        io_core_event_tick_at(server, driver->tick_ms);
        return;
    }
    driver->tick_ms = 0;
    driver->stood_still = false;
    struct ampd_event event = {.type = AMPD_EVENT_TICK};
    io_core_event(server, &event);
}

void io_core_event_tick_at(struct ampd_server *server, uint64_t at_ms)
{
    uint64_t now_ms = io_core_now(server);
    server->core_event.tick_ms = at_ms;
    /* Cannot fail: the handle is open and has a callback. */
    (void)uv_timer_start(&server->core_event.timer, on_timer, at_ms > now_ms ? at_ms - now_ms : 0, 0);
}

void io_core_event(struct ampd_server *server, struct ampd_event *event)
{
    struct io_core_event *driver = &server->core_event;
    if (server->life.state == SERVER_CLOSING)
        return;                       /* no promise is open, and the threads end: the core is not run any more */
    AMP_ASSERT(server->core != NULL); /* no event can come before open_core */
    set_back(server);
    driver->ops->before_cb(server);
    event->utc_us = io_clock_utc_us();
    ampd_core_set_debug(server->core, amp_log_is_on(server->log, AMP_LOG_DEBUG));
    driver->last_ms = io_core_now(server);
    ampd_core_step(server->core, driver->last_ms, event);
    if (driver->stepping)
        return;
    driver->stepping = true;
    struct ampd_output output;
    while (ampd_core_next(server->core, &output))
        driver->ops->output_cb(server, &output);
    driver->stepping = false;
    driver->ops->after_cb(server);
}
