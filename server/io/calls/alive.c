#include "server/io/calls/alive.h"

#include "base/assert.h"
#include "base/stood_still.h"
#include "server/io/base/core_event.h"
#include "server/io/base/options.h"
#include "server/io/base/server.h"

#include <stdio.h>

static int64_t interval_ms(const struct ampd_server *server)
{
    int64_t lease_ms = server->options->times_ms[AMPD_TIME_WORKER_LEASE];
    if (lease_ms == 0)
        lease_ms = AMPD_LEASE_MS;
    return lease_ms / IO_ALIVE_PER_LEASE > 0 ? lease_ms / IO_ALIVE_PER_LEASE : 1;
}

void io_alive_renew(const struct io_alive *alive)
{
    struct ampd_event event = {
        .type = AMPD_EVENT_RENEW,
        .u.worker = {.model = alive->model, .rank = alive->rank, .incarnation = alive->incarnation}};
    io_core_event(alive->call->server, &event);
}

/*
 * Renews the lease if bytes came on the connection within two intervals, since the answer to a PING may take a little
 * longer than one. Sends a PING if the connection has been silent for half an interval.
 */
static void look_at(const struct io_alive *alive, int64_t every_ms)
{
    const struct io_server_call *call = alive->call;
    if (call->finished)
        return;
    bool lives = arpc_call_silent_ms(call->rpc) < 2 * every_ms;
    arpc_call_ask(call->rpc, every_ms / 2);
    if (lives)
        io_alive_renew(alive);
}

static void on_timer(uv_timer_t *timer)
{
    struct ampd_server *server = timer->data;
    int64_t every_ms = interval_ms(server);
    uint64_t now_ms = uv_now(&server->loop), next_ms = (uint64_t)every_ms;
    /*
     * If the process stood still, no lease ends for AMP_STOOD_STILL_MS (core_event.c): the answers to the PINGs that
     * are sent now are looked at before.
     */
    if (now_ms > server->alive->due_ms + AMP_STOOD_STILL_MS && next_ms > AMP_STOOD_STILL_MS / 2)
        next_ms = AMP_STOOD_STILL_MS / 2;
    server->alive->due_ms = now_ms + next_ms;
    (void)uv_timer_start(timer, on_timer, next_ms, 0); /* cannot fail: it is open and has a callback */
    /*
     * An event may end any call. So the calls still to be looked at are on a list of their own, which an end removes
     * from.
     */
    struct amp_list left;
    amp_list_init(&left);
    for (struct amp_list *node; (node = amp_list_shift(&server->alive->calls)) != NULL;)
        amp_list_push(&left, node);
    for (struct amp_list *node; (node = amp_list_shift(&left)) != NULL;) {
        amp_list_push(&server->alive->calls, node);
        if (server->life.state == SERVER_RUNNING)
            look_at(AMP_CONTAINER(node, struct io_alive, node), every_ms);
    }
}

void io_alive_begin(struct io_alive *alive, struct io_server_call *call, const char *model, uint32_t rank,
                    struct ampd_incarnation incarnation)
{
    alive->call = call;
    alive->rank = rank;
    alive->incarnation = incarnation;
    (void)snprintf(alive->model, sizeof alive->model, "%s", model);
    amp_list_push(&call->server->alive->calls, &alive->node);
}

void io_alive_end(struct io_alive *alive)
{
    if (alive->call != NULL)
        amp_list_remove(&alive->node);
    alive->call = NULL;
}

void io_alive_open(struct ampd_server *server)
{
    uint64_t every_ms = (uint64_t)interval_ms(server);
    uv_timer_t *timer = &server->alive->timer;
    amp_list_init(&server->alive->calls);
    AMP_ASSERT(uv_timer_init(&server->loop, timer) == 0);
    timer->data = server;
    server->alive->due_ms = uv_now(&server->loop) + every_ms;
    (void)uv_timer_start(timer, on_timer, every_ms, 0); /* cannot fail: it has a callback */
}

void io_alive_close(struct ampd_server *server)
{
    uv_close((uv_handle_t *)&server->alive->timer, NULL);
}
