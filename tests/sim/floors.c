/*
 * Models that stop when their scale is at its floor: an operator sets it, perhaps after acts that cannot help. No shard
 * takes such a model for one that goes on, or the other way round, once it has heard all; and a step opens as soon
 * as the scale is set.
 */
#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/workers.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/verdict_rows.h"
#include "tests/sim/sim.h"

#include <stdio.h>
#include <string.h>

/* Of the seed's bits alone: no draw of any generator. */
void sim_floors_spec(struct ampd_model_spec *spec, uint64_t seed)
{
    if (!sim_has(seed, SIM_FLOORS))
        return;
    spec->floor_policy = seed % 2 == 0 ? AMPD_FLOOR_FREEZE : AMPD_FLOOR_FAIL;
    spec->max_consecutive_overflows = 1 + (uint32_t)(seed / 2 % 2);
    spec->scaler.policy = AMP_SCALER_DYNAMIC;
    spec->scaler.min_scale = spec->scaler.init_scale / (float)(1 + seed / 4 % 2);
}

bool sim_is_frozen(const struct sim *sim)
{
    const struct sim_shard *zero = &sim->shard[0];
    return sim_has(sim->seed, SIM_FLOORS) && sim->end < SIM_DELETING && sim_server_knows(zero) &&
           ampd_coord_has_steps(zero->core->models[0]->coord) && ampd_coord_is_frozen(zero->core->models[0]);
}

bool sim_floors_refuse(const struct sim *sim, const struct amp_error *error)
{
    const char *reason = sim->model.spec.floor_policy == AMPD_FLOOR_FAIL ? "MODEL_UNSTABLE" : "MODEL_FROZEN";
    return sim_has(sim->seed, SIM_FLOORS) && strcmp(error->reason, reason) == 0;
}

/* What the operator does about it. Half of what is asked for cannot help: then the next thing is. */
void sim_floors_choose(struct sim *sim)
{
    static const enum ampd_event_type types[] = {AMPD_EVENT_SET_SCALE, AMPD_EVENT_RESET_SCALE, AMPD_EVENT_EVICT,
                                                 AMPD_EVENT_SET_LR};
    struct sim_operator *act = &sim->operator;
    const struct amp_scaler_config *config = &sim->model.spec.scaler;
    uint32_t count = sim->model.spec.schedule == AMPD_SCHEDULE_WORKER || !sim_has(sim->seed, SIM_SET_RATES) ? 3 : 4;
    act->type = types[sim_more(sim, count)];
    act->rank = (uint32_t)sim_more(sim, sim->model.spec.world_size);
    act->held = sim->shard[0].store.workers[act->rank].incarnation;
    act->scale = sim_more(sim, 2) == 0 ? config->min_scale : config->init_scale;
    act->lr = sim->model.spec.lr * (double)(1 + sim_more(sim, 5)) / 4;
    act->asking = true;
    memset(&act->note, 0, sizeof act->note);
    (void)snprintf(act->note.request_id, sizeof act->note.request_id, "floor-%u", sim->thaws++);
}

/* Nothing is on its way between the coordinator and the shard, and all that it was asked to do is done. */
static bool has_heard_all(const struct sim *sim, const struct sim_shard *shard)
{
    const struct sim_shard *zero = &sim->shard[0];
    bool up = shard == zero || (shard->up && shard->peer == 0 && zero->lost_peers == 0 && shard->lost_peers == 0);
    return up && sim_server_knows(shard) && amp_list_empty(&shard->inbox) && amp_list_empty(&shard->outbox) &&
           amp_list_empty(&shard->tasks) && amp_list_empty(&zero->tasks) &&
           shard->core->models[0]->shard->memory == AMPD_MEMORY_READY &&
           shard->core->models[0]->shard->epoch == zero->core->models[0]->coord->epoch;
}

/* After every event. */
void sim_floors_check(struct sim *sim)
{
    const struct sim_shard *zero = &sim->shard[0];
    if (!sim_has(sim->seed, SIM_FLOORS) || !sim_server_knows(zero) || ampd_core_pauses(zero->core))
        return;
    const struct ampd_coord *coord = zero->core->models[0]->coord;
    bool over = coord->state == AMPD_COORD_FINISHING || coord->state == AMPD_COORD_DONE; /* no step opens anyway */
    bool frozen = !over && ampd_floor_stops(&sim->model.spec, &coord->carry.scaler);
    if (!over && coord->state != AMPD_COORD_RUNNING)
        return;
    if (!frozen && !over && coord->step.state == AMPD_STEP_NONE && coord->actions.storing == 0 &&
        ampd_workers_enough(zero->core->models[0]))
        sim_fail(sim, SIM_PROGRESS, "no step is open, though nothing keeps one from opening");
    for (uint32_t k = 0; k < sim->shards; k++) {
        const struct sim_shard *shard = &sim->shard[k];
        if (has_heard_all(sim, shard) && shard->core->models[0]->shard->announced.frozen != frozen)
            sim_fail(sim, SIM_PROGRESS, "shard %u has heard that the model is %s, which is %s", k,
                     frozen ? "not frozen" : "frozen", frozen ? "frozen" : "not");
    }
}
