/* Incarnations and leases, seen from outside (docs/step-protocol.md section 1). */
#include "server/core/base/model.h"
#include "server/core/base/worker.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/workers.h"
#include "server/core/base/process.h"
#include "server/core/shard/shard.h"
#include "server/core/process/leave.h"
#include "tests/sim/sim.h"

#include <string.h>

/* Who has sent the event; false: it is no sign of life. */
static bool sender(const struct ampd_event *event, uint32_t *rank, struct ampd_incarnation *incarnation)
{
    switch (event->type) {
    case AMPD_EVENT_KEEP_ALIVE:
        *rank = event->u.worker.rank;
        *incarnation = event->u.worker.incarnation;
        return true;
    case AMPD_EVENT_PUSH_BEGIN:
        *rank = event->u.push.rank;
        *incarnation = event->u.push.incarnation;
        return true;
    case AMPD_EVENT_PULL:
        *rank = event->u.pull.rank;
        *incarnation = event->u.pull.incarnation;
        return event->u.pull.has_worker;
    case AMPD_EVENT_GET_PUSH_STATE:
        *rank = event->u.push_state.rank;
        *incarnation = event->u.push_state.incarnation;
        return true;
    default:
        return false;
    }
}

/* Other shards have heard of some. */
static void heard(struct sim *sim, const struct ampd_alive *alive)
{
    for (uint32_t i = 0; i < alive->count; i++) {
        struct sim_lease *lease = &sim->leases[alive->workers[i].rank];
        bool same = ampd_incarnation_same(lease->incarnation, alive->workers[i].incarnation);
        if (same && lease->until_ms > sim->now_ms)
            lease->until_ms = sim->now_ms + AMPD_LEASE_MS;
    }
}

void sim_lease_event(struct sim *sim, const struct ampd_event *event)
{
    uint32_t rank;
    struct ampd_incarnation incarnation;
    sim->lease_over = false;
    if (event->type == AMPD_EVENT_PEER && event->u.message->type == AMPD_MESSAGE_ALIVE)
        heard(sim, &event->u.message->u.alive);
    if (!sender(event, &rank, &incarnation) || !ampd_incarnation_same(sim->leases[rank].incarnation, incarnation))
        return;
    if (sim->leases[rank].until_ms > sim->now_ms)
        sim->leases[rank].until_ms = sim->now_ms + AMPD_LEASE_MS; /* or not, if it is refused: later is safe */
    else
        sim->lease_over = true;
}

void sim_lease_reply(struct sim *sim, const struct ampd_reply *reply)
{
    if (reply->error.code != 0)
        return;
    if (reply->kind == AMPD_REPLY_KEEP_ALIVE && reply->u.keep_alive.valid && sim->lease_over)
        sim_fail(sim, SIM_LEASE, "a lease that has ended is valid again");
    if (reply->kind != AMPD_REPLY_JOIN)
        return;
    const struct ampd_join_result *join = &reply->u.join;
    if (!ampd_incarnation_newer(join->incarnation, sim->last_given))
        sim_fail(sim, SIM_INCARNATION, "rank %u gets incarnation (%llu, %llu) after (%llu, %llu)", join->rank,
                 (unsigned long long)join->incarnation.fence, (unsigned long long)join->incarnation.counter,
                 (unsigned long long)sim->last_given.fence, (unsigned long long)sim->last_given.counter);
    sim->last_given = join->incarnation;
    sim->leases[join->rank] = (struct sim_lease){join->incarnation, sim->now_ms + AMPD_LEASE_MS};
}

/* SHRINK: enough are left, but the step waits for one that is gone. */
static bool waits_for_gone(const struct ampd_model *model, uint32_t *rank)
{
    const struct ampd_coord *coord = model->coord;
    bool open = coord->step.state == AMPD_STEP_OPEN || coord->step.state == AMPD_STEP_CLOSED;
    uint32_t live = 0, wanted = model->spec.min_workers;
    for (uint32_t r = 0; r < model->spec.world_size; r++)
        live += model->workers[r].lease == AMPD_LEASE_LIVE && model->workers[r].joined_epoch == coord->epoch ? 1 : 0;
    if (model->spec.sync == AMPD_SYNC_QUORUM && model->spec.quorum > wanted)
        wanted = model->spec.quorum;
    if (model->spec.on_loss != AMPD_ON_LOSS_SHRINK || !open || live < wanted || ampd_core_pauses(model->core) ||
        (coord->state != AMPD_COORD_RUNNING && coord->state != AMPD_COORD_STALLED))
        return false;
    for (uint32_t i = 0; i < coord->step.open.expected_count; i++) {
        *rank = coord->step.open.expected[i].rank;
        const struct ampd_close *close = &coord->step.close;
        if (coord->step.state == AMPD_STEP_CLOSED &&
            ampd_contributor_of(close->contributors, close->contributors_count, *rank) == NULL)
            continue; /* a quorum has closed without it */
        if (model->workers[*rank].lease != AMPD_LEASE_LIVE &&
            coord->step.complete[*rank] != AMPD_ALL_SHARDS(model->core))
            return true;
    }
    return false;
}

/* A model is stalled only while a step waits for a rank that has been gone too long, or until its verdict is stored. */
static void check_stalled(struct sim *sim, const struct ampd_model *model)
{
    const struct ampd_coord *coord = model->coord;
    if (coord->state == AMPD_COORD_STALLED && coord->step.state != AMPD_STEP_VOTED && !ampd_core_pauses(model->core) &&
        ampd_workers_gone(model) == AMPD_NO_RANK)
        sim_fail(sim, SIM_LEASE, "the model is stalled for rank %u, which no step waits for", coord->missing_rank);
}

/* Leases that run when a recovery ends are taken to have been kept meanwhile: nobody could be heard. */
static void recovered(struct sim *sim, const struct ampd_model *model)
{
    bool recovers = model->coord->state <= AMPD_COORD_STORING;
    for (uint32_t r = 0; sim->recovers && !recovers && r < sim->model.spec.world_size; r++) {
        const struct ampd_worker *worker = &model->workers[r];
        struct sim_lease *lease = &sim->leases[r];
        if (worker->lease == AMPD_LEASE_LIVE && worker->lease_until_ms > lease->until_ms &&
            ampd_incarnation_same(lease->incarnation, worker->record.incarnation))
            lease->until_ms = worker->lease_until_ms;
    }
    sim->recovers = recovers;
}

void sim_lease_stepped(struct sim *sim, const struct ampd_event *event)
{
    const struct ampd_core *core = sim->shard[0].core;
    uint32_t rank;
    if (!sim_server_knows(&sim->shard[0]))
        return; /* the place of a model that is gone */
    if (core != NULL && core->models_count > 0)
        recovered(sim, core->models[0]);
    if (core != NULL && core->models_count > 0)
        check_stalled(sim, core->models[0]);
    if (event->type != AMPD_EVENT_TICK)
        return; /* what ends does so by time alone */
    if (core != NULL && core->models_count > 0 && waits_for_gone(core->models[0], &rank))
        sim_fail(sim, SIM_LEASE, "the step waits for rank %u, which is gone", rank);
    for (uint32_t r = 0; core != NULL && core->models_count > 0 && r < sim->model.spec.world_size; r++) {
        const struct ampd_worker *worker = &core->models[0]->workers[r];
        if (worker->lease == AMPD_LEASE_LIVE && worker->lease_until_ms <= sim->now_ms)
            sim_fail(sim, SIM_LEASE, "rank %u lives, though its lease has ended", r);
    }
}

void sim_lease_boot(struct sim *sim)
{
    memset(sim->leases, 0, sizeof(sim->leases));
}
