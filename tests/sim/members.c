/*
 * Workers that leave and come back, under another name perhaps, are evicted, or push Inf in step after step and are
 * put in quarantine (docs/step-protocol.md section 1, server/core/coordinator/health.c). Who has left counts in no step
 * after the one that was open then. A rank that left is waited for by nobody when all have left, and is missed by the
 * others as soon as its time is over. A rank in quarantine counts nowhere, and nobody joins as it.
 */
#include "client/core/machine.h"
#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/base/worker.h"
#include "server/core/coordinator/coord.h"
#include "server/core/shard/shard.h"
#include "tests/sim/sim.h"

#include <stdio.h>
#include <string.h>

/* ---- what they do ---- */

bool sim_member_leaves(struct sim *sim, uint32_t w)
{
    const struct sim_worker *worker = &sim->workers[w];
    bool can = worker->core->has_model && !worker->silent &&
               ampclient_state_allowed(ampclient_core_state(worker->core), AMPCLIENT_STATE_LEAVING);
    if (sim->leaves == 0 || !can || sim_more(sim, 25) != 0)
        return false;
    sim->leaves--;
    return true;
}

void sim_member_name(struct sim *sim, uint32_t w, char *name, size_t size)
{
    struct sim_worker *worker = &sim->workers[w];
    bool renames = worker->life > 1 && sim_has(sim->seed, SIM_LEAVES) && sim_more(sim, 3) == 0;
    worker->names += renames ? 1 : 0;
    if (worker->names == 0)
        (void)snprintf(name, size, "worker-%u", w);
    else
        (void)snprintf(name, size, "worker-%u-%u", w, worker->names);
}

uint64_t sim_member_instance(const struct sim *sim, uint32_t w)
{
    return w + 1 + (sim_has(sim->seed, SIM_LEAVES) ? (uint64_t)sim->workers[w].life * SIM_WORLD_MAX : 0);
}

/* Who runs it starts another one: an operator has ended its lease, or a late Join of the process before it. */
bool sim_member_is_taken(const struct sim *sim, int code, const struct amp_error *error)
{
    bool taken = sim_has(sim->seed, SIM_LEAVES) && strcmp(error->reason, "RANK_TAKEN") == 0;
    return code == AMP_EABORTED && (taken || strstr(error->text, "was evicted by an operator") != NULL);
}

/* The worker before, which had another name, has not left: it is waited for until its lease has ended. */
bool sim_member_waits(const struct sim *sim, uint32_t w, const struct amp_error *error)
{
    return sim->workers[w].names > 0 && strcmp(error->reason, "NO_FREE_RANK") == 0;
}

/* ---- what must hold ---- */

void sim_members_boot(struct sim *sim)
{
    const struct sim_store *store = &sim->shard[0].store;
    for (uint32_t r = 0; r < SIM_WORLD_MAX; r++) {
        struct sim_left *left = &sim->left[r];
        bool stays = store->has_worker[r] && store->workers[r].left &&
                     ampd_incarnation_same(store->workers[r].incarnation, left->incarnation);
        *left = stays ? (struct sim_left){.incarnation = left->incarnation, .epoch = left->epoch, .step = left->step}
                      : (struct sim_left){0};
    }
    memset(&sim->sick, 0, sizeof sim->sick);
}

static void check_contributor(const struct sim *sim, const struct ampd_step_row *row,
                              const struct ampd_contributor *contributor)
{
    const struct sim_left *left = &sim->left[contributor->rank];
    bool late = row->epoch > left->epoch || row->step > left->step + 1;
    if (ampd_incarnation_same(left->incarnation, contributor->incarnation) && late)
        sim_fail(sim, SIM_COUNTED_ONCE, "rank %u counts in step %llu, and has left, or was evicted, after step %llu",
                 contributor->rank, (unsigned long long)row->step, (unsigned long long)left->step);
    const struct sim_sick *sick = &sim->sick;
    bool barred = sick->until_ms != 0 && contributor->rank == sim->model.sick_rank && row->epoch == sick->epoch &&
                  row->step > sick->step;
    if (barred && (sim->now_ms < sick->until_ms || ampd_incarnation_same(sick->incarnation, contributor->incarnation)))
        sim_fail(sim, SIM_COUNTED_ONCE, "rank %u counts in step %llu, and is in quarantine after step %llu",
                 contributor->rank, (unsigned long long)row->step, (unsigned long long)sick->step);
}

void sim_members_row(const struct sim *sim, const struct ampd_step_row *row)
{
    for (uint32_t i = 0; i < row->contributors_count; i++)
        check_contributor(sim, row, &row->contributors[i]);
}

void sim_members_reply(const struct sim *sim, const struct sim_call *call, const struct ampd_reply *reply)
{
    const struct ampd_join_result *join = &reply->u.join;
    const struct sim_sick *sick = &sim->sick;
    if (reply->error.code != 0)
        return;
    if (reply->kind == AMPD_REPLY_JOIN && sim->model.sick && join->rank == sim->model.sick_rank &&
        join->epoch == sick->epoch && sim->now_ms < sick->until_ms)
        sim_fail(sim, SIM_LEASE, "a worker has joined as rank %u, which is in quarantine", join->rank);
    const struct sim_store *store = &sim->shard[0].store;
    uint32_t rank = call->asked.rank;
    if (call->leaves && store->has_worker[rank] && !store->workers[rank].left &&
        ampd_incarnation_same(store->workers[rank].incarnation, call->asked.incarnation))
        sim_fail(sim, SIM_LEASE, "rank %u is told that it has left, and it is held as before", rank);
}

/* All workers of the epoch have left in order. */
static bool all_left(const struct ampd_model *model)
{
    bool all = true;
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        const struct ampd_worker *worker = &model->workers[r];
        all = all && (worker->joined_epoch != model->coord->epoch || worker->lease == AMPD_LEASE_LEFT);
    }
    return all;
}

/* Notes what a rank's worker has left behind, and since when it is gone, as far as it can be missed. */
static void note_gone(struct sim *sim, const struct ampd_model *model, uint32_t r)
{
    const struct ampd_worker *worker = &model->workers[r];
    const struct ampd_coord *coord = model->coord;
    struct sim_left *left = &sim->left[r];
    bool has_left = worker->lease == AMPD_LEASE_LEFT, known = coord->state > AMPD_COORD_STORING;
    if (has_left && known && !ampd_incarnation_same(left->incarnation, worker->record.incarnation)) {
        *left = (struct sim_left){.incarnation = worker->record.incarnation,
                                  .epoch = coord->epoch,
                                  .step = coord->decided,
                                  .left_ms = left->left_ms}; /* SYNC may have been under way since then */
        if (ampd_incarnation_same(sim->leases[r].incarnation, worker->record.incarnation))
            sim->leases[r].until_ms = 0; /* no sign of life gives it back */
    }
    bool idle = all_left(model);
    bool runs = coord->state == AMPD_COORD_RUNNING || coord->state == AMPD_COORD_STALLED;
    bool gone = worker->lease != AMPD_LEASE_LIVE;
    left->left_ms = has_left && !idle && left->left_ms != 0 ? left->left_ms : sim->now_ms;
    bool missed = gone && !idle && runs && !ampd_core_pauses(model->core);
    bool goes_on = missed && left->missed && left->lease == worker->lease;
    left->gone_ms = goes_on ? left->gone_ms : sim->now_ms;
    left->missed = missed;
    left->lease = worker->lease;
}

/* on_loss WAIT: whoever is gone is missed in time, and not before. */
static void check_missed(const struct sim *sim, const struct ampd_model *model, uint32_t r)
{
    const struct ampd_coord *coord = model->coord;
    const struct sim_left *left = &sim->left[r];
    uint64_t timeout = model->spec.loss_timeout_ms;
    bool open = coord->step.state == AMPD_STEP_OPEN || coord->step.state == AMPD_STEP_CLOSED;
    bool waits = coord->state == AMPD_COORD_RUNNING && open && model->spec.on_loss == AMPD_ON_LOSS_WAIT &&
                 model->spec.sync == AMPD_SYNC_ALL && !ampd_core_pauses(model->core) &&
                 coord->step.complete[r] != AMPD_ALL_SHARDS(model->core);
    if (waits && model->workers[r].lease != AMPD_LEASE_LIVE && sim->now_ms >= left->gone_ms + timeout)
        sim_fail(sim, SIM_LEASE, "rank %u is gone since %llu ms, and the model is not stalled", r,
                 (unsigned long long)left->gone_ms);
    bool stalled = coord->state == AMPD_COORD_STALLED && coord->missing_rank == r;
    if (stalled && model->workers[r].lease == AMPD_LEASE_LEFT && sim->now_ms < left->left_ms + timeout)
        sim_fail(sim, SIM_LEASE, "the model is stalled for rank %u, which is missed since %llu ms", r,
                 (unsigned long long)left->left_ms);
}

/* ---- quarantine ---- */

static bool is_bad(const struct ampd_step_row *row, uint32_t rank)
{
    bool bad = false;
    for (uint32_t i = 0; i < row->rows_count; i++)
        bad = bad || row->rows[i].rank == rank;
    return bad;
}

/* Whether enough others are left to go on with. */
static bool can_do_without(const struct ampd_model *model, uint32_t rank)
{
    const struct ampd_model_spec *spec = &model->spec;
    bool quorum = spec->sync == AMPD_SYNC_QUORUM, shrinks = spec->on_loss == AMPD_ON_LOSS_SHRINK;
    uint32_t others = 0, wanted = shrinks ? spec->min_workers : spec->world_size;
    for (uint32_t r = 0; r < spec->world_size; r++) {
        const struct ampd_worker *worker = &model->workers[r];
        bool here = !shrinks || worker->joined_epoch == model->coord->epoch;
        others += r != rank && worker->lease == AMPD_LEASE_LIVE && here ? 1 : 0;
    }
    wanted = quorum && (!shrinks || spec->quorum > wanted) ? spec->quorum : wanted;
    return others >= wanted;
}

/* A verdict is stored: what it says of the rank that is sick. Others have Inf only where the scale is too large. */
static void count_push(struct sim *sim, const struct ampd_model *model, const struct ampd_step_row *row)
{
    uint32_t rank = sim->model.sick_rank;
    const struct ampd_worker *worker = &model->workers[rank];
    struct sim_sick *sick = &sim->sick;
    bool bad = is_bad(row, rank), barred = worker->health.quarantined_until_ms != sick->health_until_ms;
    uint32_t others = 0;
    for (uint32_t i = 0; i < row->contributors_count; i++)
        others += row->contributors[i].rank != rank && is_bad(row, row->contributors[i].rank) ? 1 : 0;
    sick->health_until_ms = worker->health.quarantined_until_ms;
    bool counts = row->contributors_count > 1 && (!bad || 2 * (others + 1) <= row->contributors_count) &&
                  ampd_contributor_of(row->contributors, row->contributors_count, rank) != NULL;
    if (!counts)
        return;
    sick->in_row = !bad ? 0 : sick->in_row < AMPD_QUARANTINE_PUSHES ? sick->in_row + 1 : sick->in_row;
    sick->all += bad ? 1 : 0;
    bool enough = sick->in_row == AMPD_QUARANTINE_PUSHES;
    bool due = enough && worker->joined_epoch == model->coord->epoch && can_do_without(model, rank);
    bool share = sick->all >= AMPD_QUARANTINE_SHARE; /* then how many of the newest were bad may have been enough */
    if (barred != due && !(barred && share))
        sim_fail(sim, SIM_LEASE, "rank %u is %s after step %llu, with %u pushes in a row that had Inf", rank,
                 barred ? "put in quarantine" : "not put in quarantine", (unsigned long long)row->step, sick->in_row);
    if (!barred)
        return;
    sick->in_row = AMPD_QUARANTINE_PUSHES - 1; /* the next one is enough */
    sick->all = 0;
    sick->incarnation = worker->record.incarnation;
    sick->epoch = row->epoch;
    sick->step = row->step;
    sick->until_ms = sim->now_ms + AMPD_QUARANTINE_MS;
    sim->quarantines++;
    if (ampd_incarnation_same(sim->leases[rank].incarnation, worker->record.incarnation))
        sim->leases[rank].until_ms = 0;
}

static void watch_sick(struct sim *sim, const struct ampd_model *model)
{
    const struct ampd_coord *coord = model->coord;
    const struct ampd_worker *worker = &model->workers[sim->model.sick_rank];
    struct sim_sick *sick = &sim->sick;
    if (strncmp(sick->name, worker->record.name, sizeof sick->name) != 0) { /* nothing is known of its pushes */
        memcpy(sick->name, worker->record.name, sizeof sick->name);
        sick->in_row = sick->all = 0;
    }
    bool next = sick->based && coord->epoch == sick->seen_epoch && coord->decided == sick->seen_step + 1;
    if (!sick->based && coord->state <= AMPD_COORD_STORING)
        return; /* what was decided before the start is not known yet */
    sick->based = true;
    sick->seen_epoch = coord->epoch;
    sick->seen_step = coord->decided;
    const struct ampd_step_row *row = sim->ledger[coord->epoch][coord->decided];
    if (next && row != NULL)
        count_push(sim, model, row);
}

void sim_members_stepped(struct sim *sim, const struct ampd_event *event)
{
    const struct ampd_core *core = sim->shard[0].core;
    if (!sim_server_knows(&sim->shard[0]))
        return;
    const struct ampd_model *model = core->models[0];
    if (model->coord->state == AMPD_COORD_DELETING)
        return;
    if (model->coord->state == AMPD_COORD_STALLED && all_left(model))
        sim_fail(sim, SIM_LEASE, "the model is stalled for rank %u, and all ranks have left",
                 model->coord->missing_rank);
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        note_gone(sim, model, r);
        if (event->type == AMPD_EVENT_TICK || model->coord->state == AMPD_COORD_STALLED)
            check_missed(sim, model, r);
    }
    if (sim->model.sick)
        watch_sick(sim, model);
}
