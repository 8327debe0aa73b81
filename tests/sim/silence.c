/*
 * A worker that is silent: it knows nothing of its lease, and does not ask. Once that has ended it is told so; and LATE
 * is told only to who has not counted.
 */
#include "client/core/machine.h"
#include "server/core/base/model.h"
#include "tests/sim/sim.h"

#include <stdio.h>
#include <string.h>

/* A program that calls its lease good. */
void sim_silent_answer(struct sim *sim, uint32_t w, const struct ampclient_output *output)
{
    struct sim_call *call = sim_call_new(sim, SIM_UNARY, output->shard, w, output->call);
    call->over = true;
    struct sim_message *message = sim_message_new(SIM_ENDED);
    message->answer.type = AMPCLIENT_EVENT_ENDED;
    struct ampclient_ended *ended = &message->answer.u.ended;
    ended->reason = ended->text = "";
    ended->u.keep_alive.epoch = sim->workers[w].epoch;
    ended->u.keep_alive.step = sim->workers[w].step;
    ended->u.keep_alive.valid = true;
    amp_list_push(&call->down, &message->node);
}

/* A long forward pass, after which it knows nothing of its lease, and does not ask. */
void sim_silent_begin(struct sim *sim, struct sim_worker *worker)
{
    if (sim->silent == 0 || sim->model.spec.world_size < 2 || sim_more(sim, 6) != 0)
        return;
    sim->silent--;
    worker->silent = true;
    worker->lates = 0; /* one that came before counts for nothing: its lease held then */
    worker->silent_as[0] = worker->core->incarnation.fence;
    worker->silent_as[1] = worker->core->incarnation.counter;
    worker->pause_ms = sim->now_ms + AMPD_LEASE_MS + 15000;
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu worker %u is silent\n", (unsigned long long)sim->now_ms, worker->rank);
}

/* Steps go on without some ranks. */
bool sim_leaves_ranks_out(const struct sim *sim)
{
    return sim->model.spec.sync == AMPD_SYNC_QUORUM || sim->model.spec.on_loss == AMPD_ON_LOSS_SHRINK;
}

/* It was told, and has joined again. */
void sim_silent_hears(struct sim_worker *worker)
{
    const struct ampclient_incarnation *now = &worker->core->incarnation;
    if (worker->silent_as[0] == now->fence && worker->silent_as[1] == now->counter)
        return;
    worker->silent = false;
    worker->lates = 0;
}

/* LATE is told only to who has not counted: of `sync`, where another incarnation of the rank has. */
void sim_check_late(struct sim *sim, struct sim_worker *worker, const struct ampclient_core_result *result)
{
    bool late = result->verdict == AMPCLIENT_CORE_LATE;
    sim_silent_hears(worker);
    worker->lates = late ? worker->lates + 1 : 0;
    if (!late)
        return;
    if (worker->silent && worker->lates > 2 && sim->model.spec.sync != AMPD_SYNC_QUORUM)
        sim_fail(sim, SIM_LEASE, "rank %u is late for step %llu again, and is not told that its lease has ended",
                 worker->rank, (unsigned long long)result->step);
    const struct ampd_step_row *row = sim->ledger[result->epoch][result->step];
    if (row == NULL)
        sim_fail(sim, SIM_COUNTED_ONCE, "rank %u is late for step %llu, which is not decided", worker->rank,
                 (unsigned long long)result->step);
    const struct ampclient_incarnation *now = &worker->core->incarnation;
    bool counted = false;
    bool rank_counted = sim_leaves_ranks_out(sim);
    for (uint32_t i = 0; i < row->contributors_count; i++) {
        const struct ampd_contributor *contributor = &row->contributors[i];
        if (contributor->rank != worker->rank)
            continue;
        rank_counted = true;
        counted = contributor->incarnation.fence == now->fence && contributor->incarnation.counter == now->counter;
    }
    /* A quorum does not wait for one to hear of its step; the step after it may have been rolled back since. */
    bool gone_on = result->step < SIM_STEPS_MAX && sim->ledger[result->epoch][result->step + 1] != NULL;
    if ((counted && !gone_on) || !rank_counted)
        sim_fail(sim, SIM_COUNTED_ONCE, "rank %u is late for step %llu", worker->rank,
                 (unsigned long long)result->step);
}
