/*
 * Sessions of shards with shard 0, and processes that have been replaced without knowing it.
 *
 * A zombie is a process of the server that was paused, or cut off, while another was started in its place with its disk:
 * it goes on with what is in its memory, but nothing that it stores comes back. Its sessions and its workers' connections
 * still live. It ends when a peer tells it that its fence is too low, or after a while.
 */
#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/messages.h"
#include "tests/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sim_shard *sim_process(struct sim *sim, const struct sim_call *call)
{
    return &sim->shard[call->zombie ? SIM_ZOMBIE : call->shard];
}

uint32_t sim_position(const struct sim *sim, const struct sim_shard *shard)
{
    return (uint32_t)(shard - sim->shard);
}

/* ---- messages ---- */

/* Those that may come again at any time, as in tests/model. All others rely on the order of a session (bus.c). */
static bool of_a_step(enum ampd_message_type type)
{
    return (type >= AMPD_MESSAGE_OPEN && type <= AMPD_MESSAGE_APPLIED) || type == AMPD_MESSAGE_PART_DONE ||
           type == AMPD_MESSAGE_STATE || type == AMPD_MESSAGE_LOAD_GRANT;
}

static void keep(struct amp_list *list, const struct ampd_message *message)
{
    struct sim_task *task = calloc(1, sizeof(*task));
    task->message = ampd_message_copy(message);
    amp_list_push(list, &task->node);
}

static void maybe_once_more(struct sim *sim, const struct ampd_message *message)
{
    uint64_t odds = message->type == AMPD_MESSAGE_OPEN ? (sim->restarts ? 1 : 4) : 15; /* few open another try */
    if (!of_a_step(message->type) || sim->repeats == 0 || sim_below(sim, odds) != 0)
        return;
    sim->repeats--;
    keep(&sim->late, message);
}

void sim_session_keep(struct sim *sim, struct sim_shard *shard, const struct ampd_message *message)
{
    if (message->to == shard->index) {
        keep(&shard->inbox, message);
        return;
    }
    sim_ends_said(sim, shard, message);
    bool sent = false;
    for (uint32_t q = 1; q <= SIM_ZOMBIE; q++) { /* to each process of that shard with which there is a session */
        struct sim_shard *other = &sim->shard[q];
        bool from_zero = shard->index == 0 && other->index == message->to && other->peer == sim_position(sim, shard);
        if (other->core == NULL || !other->up || other->index == 0 || (!from_zero && other != shard))
            continue;
        keep(other == shard ? &other->outbox : &other->inbox, message);
        sent = true;
    }
    if (sent)
        maybe_once_more(sim, message);
}

static void deliver(struct sim *sim, struct sim_shard *to, struct sim_task *task)
{
    amp_list_remove(&task->node);
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu message %d of shard %u to %u\n", (unsigned long long)sim->now_ms,
                      task->message->type, task->message->from, task->message->to);
    sim_ends_taken(sim, task->message);
    struct ampd_event event = {.type = AMPD_EVENT_PEER, .u.message = task->message};
    sim_server_event(sim, to, &event);
    sim_task_free(task);
}

void sim_session_deliver(struct sim *sim, struct sim_shard *shard, bool to_zero)
{
    struct amp_list *from = to_zero ? &shard->outbox : &shard->inbox;
    struct sim_task *task = AMP_CONTAINER(from->next, struct sim_task, node);
    if (sim->repeats > 0 && sim_below(sim, 30) == 0) { /* twice, one after the other */
        sim->repeats--;
        struct sim_task *second = calloc(1, sizeof(*second));
        second->message = ampd_message_copy(task->message);
        second->node.next = task->node.next;
        second->node.prev = &task->node;
        task->node.next->prev = &second->node;
        task->node.next = &second->node;
    }
    deliver(sim, to_zero ? &sim->shard[shard->peer] : shard, task);
}

uint64_t sim_session_late_count(const struct sim *sim)
{
    uint64_t count = 0;
    for (const struct amp_list *it = sim->late.next; it != &sim->late; it = it->next)
        count++;
    return count;
}

/* Messages are idempotent, and an old one has no effect: whatever of a session that is over may still come. */
void sim_session_late(struct sim *sim, uint64_t pick)
{
    struct amp_list *it = sim->late.next;
    while (pick-- > 0)
        it = it->next;
    struct sim_task *task = AMP_CONTAINER(it, struct sim_task, node);
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu message %d of shard %u to %u comes once more\n", (unsigned long long)sim->now_ms,
                      task->message->type, task->message->from, task->message->to);
    deliver(sim, &sim->shard[task->message->to], task);
}

/* One of an earlier try than the vote's. */
void sim_session_open_late(struct sim *sim)
{
    uint64_t pick = 0;
    for (struct amp_list *it = sim->late.next; it != &sim->late; it = it->next, pick++) {
        const struct ampd_message *message = AMP_CONTAINER(it, struct sim_task, node)->message;
        const struct sim_shard *shard = &sim->shard[message->to];
        if (message->type != AMPD_MESSAGE_OPEN || !sim_server_knows(shard))
            continue;
        const struct ampd_shard *inside = shard->core->models[0]->shard;
        if (inside->journal.kept == NULL || message->u.open.step != inside->step.open.step ||
            message->u.open.try_number >= inside->step.open.try_number || sim_below(sim, 2) != 0)
            continue;
        sim_session_late(sim, pick);
        return;
    }
}

/* ---- sessions ---- */

static bool is_zombie_zero(const struct sim *sim)
{
    const struct sim_shard *zombie = &sim->shard[SIM_ZOMBIE];
    return zombie->core != NULL && zombie->index == 0;
}

bool sim_session_can_begin(const struct sim *sim, const struct sim_shard *shard)
{
    return shard->index != 0 && !shard->up && shard->core != NULL &&
           (sim->shard[0].core != NULL || is_zombie_zero(sim)) && sim_net_session_up(sim, shard->index) &&
           sim_net_session_down(sim, shard->index);
}

/* Who looks for shard 0 may still find the one that was replaced. */
void sim_session_up(struct sim *sim, struct sim_shard *shard)
{
    bool stale = is_zombie_zero(sim) && (sim->shard[0].core == NULL || sim_below(sim, 3) == 0);
    shard->up = true;
    shard->session_ms = sim->now_ms;
    shard->peer = stale ? SIM_ZOMBIE : 0;
    shard->lost_peers = 0;
    sim->shard[shard->peer].lost_peers &= ~((uint64_t)1 << shard->index);
    struct ampd_event zero = {.type = AMPD_EVENT_PEER_UP, .u.shard = shard->index};
    struct ampd_event one = {.type = AMPD_EVENT_PEER_UP, .u.shard = 0};
    sim_server_event(sim, &sim->shard[shard->peer], &zero);
    sim_server_event(sim, shard, &one);
}

/* Another process of the same shard is in touch with that shard 0: one of the two was replaced. The server's newest session is told of. */
static bool has_another(const struct sim *sim, const struct sim_shard *shard)
{
    for (uint32_t q = 1; q <= SIM_ZOMBIE; q++) {
        const struct sim_shard *other = &sim->shard[q];
        if (other != shard && other->up && other->index == shard->index && other->peer == shard->peer)
            return true;
    }
    return false;
}

/* What is on its way is lost, in both directions, from some message on. */
void sim_session_cut(struct sim *sim, struct sim_shard *shard)
{
    sim_trace(sim, 902, sim_position(sim, shard));
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu session of shard %u cut\n", (unsigned long long)sim->now_ms, shard->index);
    if (shard->up) {
        sim_ends_lost(shard, 0);
        if (!has_another(sim, shard))
            sim_ends_lost(&sim->shard[shard->peer], shard->index);
    }
    shard->up = false;
    sim_disk_forget(&shard->inbox);
    sim_disk_forget(&shard->outbox);
}

/* A process ends: its sessions, and what it has told itself. */
void sim_session_end(struct sim *sim, struct sim_shard *shard)
{
    for (uint32_t q = 0; q <= SIM_ZOMBIE; q++) {
        struct sim_shard *other = &sim->shard[q];
        bool with = other->index != 0 && other->up && shard->index == 0 && other->peer == sim_position(sim, shard);
        if (other == shard || with)
            sim_session_cut(sim, other);
    }
}

/* ---- processes that were replaced ---- */

static void move_list(struct amp_list *from, struct amp_list *to)
{
    for (struct amp_list *node; (node = amp_list_shift(from)) != NULL;)
        amp_list_push(to, node);
}

bool sim_zombie_can_rise(const struct sim *sim, const struct sim_shard *shard)
{
    /* One that does not know the model answers NOT_FOUND, which ends a worker, as it should where nobody knows it. */
    return sim->shards > 1 && sim_server_knows(shard) && sim->shard[SIM_ZOMBIE].core == NULL &&
           sim->end <= SIM_DELETES && !shard->draining;
}

void sim_zombie_close(struct sim *sim)
{
    struct sim_shard *zombie = &sim->shard[SIM_ZOMBIE];
    if (zombie->store.undo.next != NULL)
        sim_disk_close(sim, zombie);
}

void sim_zombie_rise(struct sim *sim, struct sim_shard *shard)
{
    static const uint64_t lives[] = {50, 3000, 25000, 45000};
    struct sim_shard *zombie = &sim->shard[SIM_ZOMBIE];
    sim_trace(sim, 905, shard->index);
    sim_zombie_close(sim); /* what the one before has left */
    *zombie = (struct sim_shard){.index = shard->index, .core = shard->core, .timer_ms = shard->timer_ms};
    zombie->block = shard->block;
    zombie->blocks = shard->blocks;
    zombie->element = shard->element;
    zombie->elements = shard->elements;
    zombie->up = shard->up;
    zombie->peer = shard->peer;
    memcpy(zombie->got, shard->got, sizeof(zombie->got));
    zombie->lost_peers = shard->lost_peers;
    zombie->restart_ms = sim->now_ms + lives[sim_below(sim, 4)]; /* its end */
    struct amp_list *from[] = {&shard->tasks, &shard->jobs, &shard->inbox, &shard->outbox};
    struct amp_list *to[] = {&zombie->tasks, &zombie->jobs, &zombie->inbox, &zombie->outbox};
    for (unsigned i = 0; i < 4; i++) {
        amp_list_init(to[i]);
        move_list(from[i], to[i]);
    }
    amp_list_init(&zombie->store.undo);
    shard->core = NULL;
    shard->up = false;
    shard->lost_peers = 0;
    shard->restart_ms = sim->now_ms + 1 + sim_below(sim, 2000);
    for (uint32_t q = 1; q < sim->shards; q++) {
        if (shard->index == 0 && sim->shard[q].up)
            sim->shard[q].peer = SIM_ZOMBIE;
    }
    for (unsigned i = 0; i < sim->calls_end; i++) {
        if (sim->calls[i].used && sim->calls[i].shard == shard->index)
            sim->calls[i].zombie = true;
    }
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu shard %u is replaced, but does not end\n", (unsigned long long)sim->now_ms,
                      shard->index);
}

bool sim_is_zombie(const struct sim *sim, const struct sim_shard *shard)
{
    return shard == &sim->shard[SIM_ZOMBIE];
}
