/*
 * Processes that end in order (server/core/process/leave.c): one of them, shard 0, all at once, or all of them one after the other.
 * Who is let go leaves all that was decided in checkpoints, and no step is decided without it; nobody is given up who could
 * have been asked. Shard 0 gives up for others, too: who has asked to end while a third one is away is let go without.
 */
#include "server/core/base/model.h"
#include "server/core/coordinator/coord.h"
#include "server/core/base/process.h"
#include "server/core/shard/shard.h"
#include "server/core/process/leave.h"
#include "tests/sim/sim.h"

#include <stdio.h>

#define ALONE_MS 10000 /* who hears nothing for so long may end all the same */

bool sim_ends_in_order(uint64_t seed)
{
    return seed % 11 == 4;
}

void sim_ends_lost(struct sim_shard *shard, uint32_t peer)
{
    if (shard->core != NULL)
        shard->lost_peers |= (uint64_t)1 << peer;
}

static void tell_lost(struct sim *sim, struct sim_shard *shard)
{
    for (uint32_t k = 0; k < SIM_SHARDS_MAX; k++) {
        uint64_t bit = (uint64_t)1 << k;
        if (shard->core == NULL || (shard->lost_peers & bit) == 0)
            continue;
        shard->lost_peers &= ~bit;
        struct ampd_event event = {.type = AMPD_EVENT_PEER_DOWN, .u.shard = k};
        sim_server_event(sim, shard, &event);
    }
}

/* ---- beginning ---- */

static bool holds(const struct sim_store *store, uint64_t step)
{
    for (uint32_t i = 0; i < store->checkpoints_count; i++) {
        if (store->checkpoints[i].step == step)
            return true;
    }
    return false;
}

/* Seeds in which there is a last checkpoint to be cut, and it has to wait: for a third shard that is away, or whose disk is full. */
static bool is_hindered(uint64_t seed)
{
    return seed % 55 == 4;
}

static bool is_time(const struct sim *sim)
{
    const struct sim_store *store = &sim->shard[0].store;
    return !is_hindered(sim->seed) || (store->last_step > 0 && !holds(store, store->last_step));
}

static void hinder(struct sim *sim, uint32_t ending)
{
    static const uint64_t times[] = {2000, 8000, 15000, 45000};
    uint64_t until_ms = sim->now_ms + times[sim_below(sim, 4)];
    uint32_t k = sim->shards < 2 ? 0 : 1 + (uint32_t)sim_below(sim, sim->shards - 1);
    if (k == ending && k != 0)
        k = 1 + k % (sim->shards - 1); /* the next one */
    struct sim_shard *third = &sim->shard[k];
    if (third->core == NULL || k == 0 || k == ending)
        return;
    if (sim_below(sim, 2) == 0) {
        third->store.full_until_ms = until_ms;
        return;
    }
    sim_session_cut(sim, third);
    sim->peers[third->index].up_until_ms = until_ms;
}

static void drain(struct sim *sim, uint32_t k)
{
    struct sim_shard *shard = &sim->shard[k];
    if (shard->core == NULL || shard->draining)
        return;
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu shard %u is to end\n", (unsigned long long)sim->now_ms, k);
    sim_trace(sim, 906, k);
    shard->draining = true;
    shard->leave_ms = shard->index == 0 ? sim->now_ms : shard->leave_ms;
    struct ampd_event event = {.type = AMPD_EVENT_DRAIN};
    sim_server_event(sim, shard, &event);
    if (is_hindered(sim->seed))
        hinder(sim, k);
}

static void begin(struct sim *sim)
{
    uint32_t first = (uint32_t)sim_below(sim, sim->shards);
    sim->ends--;
    switch (sim_below(sim, 4)) {
    case 0:
        drain(sim, first);
        break;
    case 1:
        drain(sim, 0);
        break;
    case 2:
        for (uint32_t i = 0; i < sim->shards; i++)
            drain(sim, (first + i) % sim->shards);
        break;
    default:
        sim->in_turn = UINT64_MAX >> (64 - sim->shards);
        break;
    }
}

static bool all_there(const struct sim *sim)
{
    for (uint32_t k = 0; k < sim->shards; k++) {
        if (sim->shard[k].core == NULL || sim->shard[k].draining)
            return false;
    }
    return true;
}

/* The next one of a rolling restart: when the one before is back, be it sooner or later. */
static void go_on(struct sim *sim)
{
    if (sim->in_turn == 0 || !all_there(sim) || sim_below(sim, 50) != 0)
        return;
    uint32_t k = 0;
    while ((sim->in_turn & ((uint64_t)1 << k)) == 0)
        k++;
    sim->in_turn &= ~((uint64_t)1 << k);
    drain(sim, k);
}

/* ---- what must hold ---- */

/* What it had begun to store is stored. */
static void check_idle(struct sim *sim, struct sim_shard *shard)
{
    for (struct amp_list *it = shard->tasks.next; it != &shard->tasks; it = it->next) {
        enum ampd_output_type type = AMP_CONTAINER(it, struct sim_task, node)->output.type;
        if (type != AMPD_OUT_RESTORE && type != AMPD_OUT_REPLAY && type != AMPD_OUT_RAISE_EPOCH)
            sim_fail(sim, SIM_DURABLE, "shard %u ends while it stores something", shard->index);
    }
    if (!amp_list_empty(&shard->jobs))
        sim_fail(sim, SIM_DURABLE, "shard %u ends while a job runs", shard->index);
}

static bool long_ago(const struct sim *sim, uint64_t ms)
{
    return ms + ALONE_MS <= sim->now_ms;
}

/* Whether this shard and shard 0 have been in touch all the time, and have nothing more to say to one another. */
static bool in_touch(const struct sim *sim, const struct sim_shard *shard)
{
    const struct sim_shard *zero = &sim->shard[0];
    const struct sim_link *link = &sim->peers[shard->index];
    return shard->up && shard->peer == 0 && long_ago(sim, shard->session_ms) && long_ago(sim, link->up_until_ms) &&
           long_ago(sim, link->down_until_ms) && amp_list_empty(&shard->outbox) && amp_list_empty(&shard->inbox) &&
           amp_list_empty(&zero->tasks) && amp_list_empty(&shard->tasks);
}

static void check_given_up(struct sim *sim, const struct sim_shard *shard)
{
    bool all = true;
    for (uint32_t k = 1; k < sim->shards; k++)
        all = all && in_touch(sim, &sim->shard[k]);
    if (shard->index == 0 ? all : in_touch(sim, shard))
        sim_fail(sim, SIM_PROGRESS, "shard %u gives the last checkpoint up, though all it takes is there",
                 shard->index);
}

/* ---- shard 0 gives up for one that has asked ---- */

void sim_ends_start(struct sim *sim, struct sim_shard *shard)
{
    shard->left = shard->let_go_without = false;
    shard->leave_ms = 0;
    for (uint32_t k = 0; shard->index == 0 && k < sim->shards; k++)
        sim->shard[k].leave_ms = 0; /* that was said to the process before */
}

void sim_ends_taken(struct sim *sim, const struct ampd_message *message)
{
    if (message->type == AMPD_MESSAGE_LEAVE && sim->shard[message->from].leave_ms == 0) /* it comes again, and its time goes on */
        sim->shard[message->from].leave_ms = sim->now_ms;
}

static bool anybody_away(const struct sim *sim, const struct sim_shard *zero)
{
    for (uint32_t k = 1; k < sim->shards; k++) {
        if (!sim->shard[k].up || sim->shard[k].peer != sim_position(sim, zero))
            return true;
    }
    return false;
}

/* Whether the first of those that are to end has waited for ALONE_MS: then shard 0 gives up for all of them. */
static bool waits_long(const struct sim *sim)
{
    bool waits = false;
    for (uint32_t k = 0; k < sim->shards; k++)
        waits = waits || (sim->shard[k].leave_ms != 0 && long_ago(sim, sim->shard[k].leave_ms));
    return waits;
}

/*
 * The message does not tell whether the last checkpoint is there or has been given up. It may have been if somebody has
 * waited for ALONE_MS, and a session is over: this looks at the clock and at the sessions, not at what the core has concluded.
 * Who is let go at any other time is held to what must be kept.
 */
void sim_ends_said(struct sim *sim, const struct sim_shard *zero, const struct ampd_message *message)
{
    if (message->type != AMPD_MESSAGE_MAY_LEAVE)
        return;
    struct sim_shard *shard = &sim->shard[message->to];
    shard->let_go_without =
        message->round != 0 && shard->leave_ms != 0 && waits_long(sim) && anybody_away(sim, zero);
}

/*
 * With a journal a restart costs no step; else the last decided one must be in a checkpoint. Not so of a process that was
 * started in the place of one that was killed, and has restored nothing yet: nobody can give back what that one had in memory, shard 0
 * may not know of it, and it needs no leave.
 */
static void check_kept(struct sim *sim, const struct sim_shard *shard)
{
    const struct sim_shard *zero = &sim->shard[0];
    if (shard->anew || shard->let_go_without || !sim_server_knows(zero) || !sim_server_knows(shard) ||
        sim->model.spec.durability != AMPD_DURABILITY_CHECKPOINT ||
        !ampd_coord_has_steps(zero->core->models[0]->coord))
        return;
    for (uint32_t k = 0; k < sim->shards; k++) {
        if (!holds(&sim->shard[k].store, zero->store.last_step))
            sim_fail(sim, SIM_DURABLE, "shard %u was let go, but shard %u has no checkpoint of step %llu", shard->index,
                     k, (unsigned long long)zero->store.last_step);
    }
    if (!sim->destroyed && sim->durable_told < zero->store.last_step)
        sim->durable_told = zero->store.last_step;
}

/* All votes are taken in one event, and the verdict is being stored: what comes after that cannot stop it. */
void sim_ends_event(struct sim *sim)
{
    const struct sim_shard *zero = &sim->shard[0];
    bool knows = zero->core != NULL && sim_server_knows(zero);
    bool voted = knows && zero->core->models[0]->coord->step.state == AMPD_STEP_VOTED;
    if (voted && !sim->voted && sim->paused && sim->model.spec.durability == AMPD_DURABILITY_CHECKPOINT)
        sim_fail(sim, SIM_DURABLE, "a step is decided, though shard 0 knows of one that is about to end");
    sim->voted = voted;
    sim->paused = knows && ampd_core_pauses(zero->core);
}

void sim_ends_row(struct sim *sim)
{
    const struct sim_shard *zero = &sim->shard[0];
    if (sim->model.spec.durability != AMPD_DURABILITY_CHECKPOINT || !sim_server_knows(zero) ||
        !ampd_coord_has_steps(zero->core->models[0]->coord))
        return; /* SYNC has come between */
    for (uint32_t k = 0; k < sim->shards; k++) {
        if (sim->shard[k].left)
            sim_fail(sim, SIM_DURABLE, "a step is decided, though shard %u has been let go", k);
    }
}

void sim_ends_end(struct sim *sim, struct sim_shard *shard)
{
    check_idle(sim, shard);
    bool given_up = shard->core->leave.given_up;
    if (given_up)
        check_given_up(sim, shard);
    else
        check_kept(sim, shard);
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu shard %u ends, %s\n", (unsigned long long)sim->now_ms, shard->index,
                      given_up                ? "alone"
                      : shard->let_go_without ? "without the last checkpoint"
                                              : "in order");
    bool anew = shard->anew;
    sim_server_kill(sim, shard);
    shard->left = !given_up && !anew;
    if (sim_below(sim, 4) == 0)
        shard->restart_ms = sim->now_ms + 15000; /* so long that others give up waiting for it */
}

/* ---- */

bool sim_ends_under_way(const struct sim *sim)
{
    for (uint32_t k = 0; k < sim->shards; k++) {
        if (sim->shard[k].draining)
            return true;
    }
    return false;
}

void sim_ends_act(struct sim *sim)
{
    for (uint32_t q = 0; q <= SIM_ZOMBIE; q++) {
        struct sim_shard *shard = &sim->shard[q];
        if (shard->core != NULL)
            tell_lost(sim, shard);
    }
    if (sim->ends > 0 && sim->in_turn == 0 && is_time(sim) && sim_below(sim, 100) == 0)
        begin(sim);
    go_on(sim);
}
