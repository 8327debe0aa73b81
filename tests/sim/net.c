/*
 * The network: connections from workers to shards, and sessions from shards to shard 0.
 *
 * TCP: what was sent comes in order or not at all, and a connection that lets nothing through lives until an end gives it
 * up (keepalive), each in its own time: so one end may take it for alive when the other has long forgotten it. A link that
 * comes back before that was only slow. A link may fail in one direction alone.
 *
 * Calls are made twice where somebody on the way has had no answer and tries again: the second may come much later, when
 * its sender has gone on, or is dead.
 */
#include "tests/sim/sim.h"
#include "server/core/shard/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- links ---- */

static struct sim_link *link_of(struct sim *sim, const struct sim_call *call)
{
    return &sim->links[call->worker][call->shard];
}

static bool is_clear(const struct sim *sim, const struct sim_link *link)
{
    return link->up_until_ms <= sim->now_ms && link->down_until_ms <= sim->now_ms;
}

bool sim_net_up(const struct sim *sim, const struct sim_call *call)
{
    return call->not_before_ms <= sim->now_ms && sim->links[call->worker][call->shard].up_until_ms <= sim->now_ms;
}

bool sim_net_down(const struct sim *sim, const struct sim_call *call)
{
    /* What the client's own side has found out needs no network. */
    return call->lost || sim->links[call->worker][call->shard].down_until_ms <= sim->now_ms;
}

bool sim_net_session_up(const struct sim *sim, uint32_t k)
{
    return sim->peers[k].up_until_ms <= sim->now_ms;
}

bool sim_net_session_down(const struct sim *sim, uint32_t k)
{
    return sim->peers[k].down_until_ms <= sim->now_ms;
}

/* Both ends of a call notice, each in its own time. */
static void arm(struct sim *sim, struct sim_call *call)
{
    if (call->client_ends_ms == 0)
        call->client_ends_ms = sim->now_ms + 1 + sim_below(sim, SIM_KEEPALIVE_MS);
    if (call->server_ends_ms == 0)
        call->server_ends_ms = sim->now_ms + 1 + sim_below(sim, SIM_KEEPALIVE_MS);
}

void sim_net_begin(struct sim *sim, struct sim_call *call)
{
    if (!is_clear(sim, link_of(sim, call)))
        arm(sim, call);
}

static void cut_link(struct sim *sim, struct sim_link *link, uint64_t until_ms)
{
    uint64_t way = sim_below(sim, 4); /* both, or one of them */
    if (way != 1 && link->up_until_ms < until_ms)
        link->up_until_ms = until_ms;
    if (way != 2 && link->down_until_ms < until_ms)
        link->down_until_ms = until_ms;
}

static void cut_worker(struct sim *sim, uint32_t w, uint32_t k, uint64_t until_ms)
{
    cut_link(sim, &sim->links[w][k], until_ms);
    for (unsigned i = 0; i < sim->calls_end; i++) {
        struct sim_call *call = &sim->calls[i];
        if (call->used && call->worker == w && call->shard == k)
            arm(sim, call);
    }
}

static void cut_peer(struct sim *sim, uint32_t k, uint64_t until_ms)
{
    if (k == 0)
        return;
    cut_link(sim, &sim->peers[k], until_ms);
    if (sim->peers[k].session_ends_ms == 0)
        sim->peers[k].session_ends_ms = sim->now_ms + 1 + sim_below(sim, SIM_KEEPALIVE_MS);
}

/* A worker from one shard or from all, a shard from all others, or two shards from one another. */
void sim_net_partition(struct sim *sim)
{
    static const uint64_t times[] = {20, 1000, 8000, 15000, 45000, 45000, 700000};
    uint64_t until_ms = sim->now_ms + times[sim_below(sim, 7)];
    uint32_t w = (uint32_t)sim_below(sim, sim->model.spec.world_size);
    uint32_t k = (uint32_t)sim_below(sim, sim->shards);
    uint64_t kind = sim_below(sim, 4);
    sim_trace(sim, 903, kind * 64 + w * 8 + k);
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu partition of kind %llu, worker %u, shard %u, until %llu\n",
                      (unsigned long long)sim->now_ms, (unsigned long long)kind, w, k, (unsigned long long)until_ms);
    if (kind == 0)
        cut_worker(sim, w, k, until_ms);
    for (uint32_t j = 0; kind == 1 && j < sim->shards; j++)
        cut_worker(sim, w, j, until_ms);
    for (uint32_t v = 0; kind == 2 && v < sim->model.spec.world_size; v++)
        cut_worker(sim, v, k, until_ms);
    if (kind >= 2)
        cut_peer(sim, k, until_ms);
    for (uint32_t j = 1; kind == 2 && k == 0 && j < sim->shards; j++)
        cut_peer(sim, j, until_ms);
}

/* ---- time ---- */

static void earliest(uint64_t *next, uint64_t at_ms, uint64_t after_ms)
{
    if (at_ms > after_ms && at_ms < *next)
        *next = at_ms;
}

uint64_t sim_net_next(const struct sim *sim)
{
    uint64_t next = UINT64_MAX;
    for (uint32_t k = 0; k < sim->shards; k++) {
        for (uint32_t w = 0; w < sim->model.spec.world_size; w++) {
            earliest(&next, sim->links[w][k].up_until_ms, sim->now_ms);
            earliest(&next, sim->links[w][k].down_until_ms, sim->now_ms);
        }
        earliest(&next, sim->peers[k].up_until_ms, sim->now_ms);
        earliest(&next, sim->peers[k].down_until_ms, sim->now_ms);
        earliest(&next, sim->peers[k].session_ends_ms, 0);
    }
    for (unsigned i = 0; i < sim->calls_end; i++) {
        const struct sim_call *call = &sim->calls[i];
        if (!call->used)
            continue;
        earliest(&next, call->client_ends_ms, 0);
        earliest(&next, call->server_ends_ms, 0);
        earliest(&next, call->not_before_ms, sim->now_ms);
    }
    return next;
}

/* The server gives a call up; the client hears of that when the link is back, or finds out itself. */
static void server_gives_up(struct sim *sim, struct sim_call *call)
{
    call->server_ends_ms = 0;
    if (!call->begun || call->over || sim_process(sim, call)->core == NULL)
        return;
    call->half = true;
    sim_call_close(sim, call);
}

static void client_gives_up(struct sim *sim, struct sim_call *call)
{
    call->client_ends_ms = 0;
    if (!call->lost && !call->client_gone)
        sim_call_lose(sim, call);
}

static void run_call(struct sim *sim, struct sim_call *call)
{
    bool clear = is_clear(sim, link_of(sim, call));
    if (clear && call->half)
        call->client_ends_ms = sim->now_ms; /* a reset comes */
    else if (clear)
        call->client_ends_ms = call->server_ends_ms = 0; /* it was slow, no more */
    if (call->server_ends_ms != 0 && call->server_ends_ms <= sim->now_ms)
        server_gives_up(sim, call);
    if (call->client_ends_ms != 0 && call->client_ends_ms <= sim->now_ms)
        client_gives_up(sim, call);
}

void sim_net_run(struct sim *sim)
{
    for (unsigned i = 0; i < sim->calls_end; i++) {
        struct sim_call *call = &sim->calls[i];
        if (call->used && (call->client_ends_ms != 0 || call->server_ends_ms != 0 || call->half))
            run_call(sim, call);
    }
    for (uint32_t k = 1; k < sim->shards; k++) {
        struct sim_link *link = &sim->peers[k];
        if (link->session_ends_ms == 0)
            continue;
        if (is_clear(sim, link)) {
            link->session_ends_ms = 0;
        } else if (link->session_ends_ms <= sim->now_ms) {
            link->session_ends_ms = 0;
            sim_session_cut(sim, &sim->shard[k]);
        }
    }
}

/* ---- calls that are made twice ---- */

static struct sim_message *copy_message(const struct sim_message *from)
{
    struct sim_message *to = sim_message_new(from->type);
    *to = *from;
    to->data = from->data == NULL ? NULL : memcpy(malloc(from->size + 1), from->data, from->size);
    size_t absent = from->absent_count * sizeof(*from->absent);
    to->absent = from->absent == NULL ? NULL : memcpy(malloc(absent + 1), from->absent, absent);
    to->ranges = NULL;
    to->bytes = NULL;
    to->request.u = from->request.u;
    switch (from->request.type) { /* what the request points to is the copy's own */
    case AMPD_EVENT_JOIN:
        to->request.u.join.model = to->text[0];
        to->request.u.join.worker = to->text[1];
        break;
    case AMPD_EVENT_KEEP_ALIVE:
    case AMPD_EVENT_LEAVE:
        to->request.u.worker.model = to->text[0];
        break;
    case AMPD_EVENT_GET_PUSH_STATE:
        to->request.u.push_state.model = to->text[0];
        break;
    case AMPD_EVENT_PUSH_BEGIN:
        to->request.u.push.model = to->text[0];
        to->bytes = malloc(from->request.u.push.user_state_size + (size_t)1);
        memcpy(to->bytes, from->bytes, from->request.u.push.user_state_size);
        to->request.u.push.user_state = to->bytes;
        break;
    default:
        break;
    }
    return to;
}

static bool may_come_twice(const struct sim_call *call, const struct sim_message *message)
{
    enum ampd_event_type type = message->request.type;
    return call->client_call != 0 &&
           (type == AMPD_EVENT_JOIN || type == AMPD_EVENT_KEEP_ALIVE || type == AMPD_EVENT_LEAVE ||
            type == AMPD_EVENT_GET_PUSH_STATE || type == AMPD_EVENT_PUSH_BEGIN);
}

static struct sim_call *copy_of(struct sim *sim, const struct sim_call *call)
{
    for (unsigned i = 0; i < sim->calls_end && call->copy != 0; i++) {
        if (sim->calls[i].used && sim->calls[i].id == call->copy)
            return &sim->calls[i];
    }
    return NULL;
}

void sim_net_copy(struct sim *sim, struct sim_call *call, const struct sim_message *message)
{
    static const uint64_t delays[] = {0, 0, 1, 300, 5000, 40000};
    struct sim_call *copy = copy_of(sim, call);
    if (message->type == SIM_REQUEST && sim->copies > 0 && may_come_twice(call, message) && sim_below(sim, 8) == 0) {
        sim->copies--;
        copy = sim_call_new(sim, call->kind, call->shard, call->worker, 0);
        copy->life = call->life;
        copy->asked = call->asked;
        copy->lost = true; /* nobody waits for it: it may end at any time */
        copy->client_gone = true;
        copy->not_before_ms = sim->now_ms + delays[sim_below(sim, 6)];
        call->copy = copy->id;
    }
    if (copy == NULL || copy->over)
        return;
    struct sim_message *second = copy_message(message);
    amp_list_push(&copy->up, &second->node);
}
