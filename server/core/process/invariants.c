/*
 * What must hold of a model between two events, machine by machine. With config.check it is asserted after each event:
 * the simulator and the unit tests do that. It goes over all blocks and lists, so a server in use does not.
 *
 * That a state may follow the one before (states.h) is asserted where it changes. Here it is asserted what a state
 * means for everything around it.
 */
#include "server/core/process/invariants.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/base/worker.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/workers.h"
#include "server/core/model/tensors.h"
#include "server/core/shard/checkpoint_part.h"
#include "server/core/shard/push.h"
#include "server/core/shard/shard.h"

#include <string.h>

static uint64_t pendings_of(const struct ampd_model *model, enum ampd_persist_kind kind)
{
    uint64_t count = 0;
    AMP_LIST_EACH(it, next, &model->core->pendings)
    {
        const struct ampd_pending *pending = AMP_CONTAINER(it, struct ampd_pending, node);
        count += pending->model == model && pending->kind == kind ? 1 : 0;
    }
    return count;
}

static bool is_closed(enum ampd_step_state state)
{
    return state == AMPD_STEP_CLOSED || state == AMPD_STEP_VOTED;
}

/* ---- the step on a shard ---- */

/* The step that collects. */
static void check_collecting(const struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    const struct ampd_open_step *step = &shard->step;
    AMP_ASSERT(step->state <= AMPD_STEP_VOTED);
    if (step->state == AMPD_STEP_NONE) {
        AMP_ASSERT(step->plan == NULL && shard->journal.kept == NULL);
        return;
    }
    AMP_ASSERT(shard->memory == AMPD_MEMORY_READY && step->open.step == shard->decided.step + 1);
    AMP_ASSERT(step->state != AMPD_STEP_OPEN || step->plan == NULL || shard->journal.kept != NULL);
    if (!is_closed(step->state))
        return;
    const struct ampd_close *close = &step->close;
    AMP_ASSERT(step->plan != NULL && close->step == step->open.step && close->try_number == step->open.try_number);
    AMP_ASSERT(step->hash == ampd_contributors_hash(close->contributors, close->contributors_count));
    AMP_ASSERT(step->state != AMPD_STEP_VOTED ||
               (step->votes_left == 0 && shard->decided.state != AMPD_DECIDED_APPLYING));
    uint64_t left = 0;
    for (uint64_t local = 0; local < model->tensors.count; local++)
        left += shard->step.vote_states[local] != 2 ? 1 : 0;
    AMP_ASSERT(step->state != AMPD_STEP_CLOSED || left == step->votes_left);
}

/* The step before it. */
static void check_decided(const struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    const struct ampd_step_row *row = shard->decided.verdict == NULL ? NULL : &shard->decided.verdict->row;
    AMP_ASSERT(shard->decided.state == AMPD_DECIDED_NONE || shard->memory == AMPD_MEMORY_READY);
    if (shard->decided.state != AMPD_DECIDED_NONE) {
        bool applies = shard->decided.state == AMPD_DECIDED_APPLYING && row->verdict == AMPD_VERDICT_APPLIED;
        AMP_ASSERT(row->step == shard->decided.step && row->version == shard->version + (applies ? 1 : 0));
        AMP_ASSERT(!applies || shard->apply.plan != NULL);
        AMP_ASSERT(!applies || !shard->apply.copy_valid[(shard->version + 1) % AMPD_COPIES]);
    }
    AMP_ASSERT(!shard->apply.waits || shard->decided.state == AMPD_DECIDED_APPLYING);
    AMP_ASSERT(shard->jobs.bulk != AMPD_BULK_APPLY || shard->decided.state == AMPD_DECIDED_APPLYING);
    const struct ampd_verdict_message *waits = shard->decided.next;
    AMP_ASSERT(waits == NULL || (model->core->config.shard != 0 && waits->row.step == shard->decided.step + 1));
    AMP_ASSERT(waits == NULL || pendings_of(model, AMPD_PERSIST_VERDICT) > 0);
    AMP_ASSERT((shard->step.next_open == NULL && shard->step.next_close == NULL) || waits != NULL);
}

/* The jobs that compute threads have. */
static void check_jobs(const struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    uint64_t busy = 0, held = 0;
    for (uint64_t local = 0; local < model->tensors.count; local++) {
        busy += shard->jobs.busy[local];
        held += shard->apply.blocked[local];
        /* After a restore has ended the apply, the slots are emptied with the new epoch. */
        AMP_ASSERT(shard->apply.pending[local] == 0 || shard->decided.state == AMPD_DECIDED_APPLYING ||
                   shard->memory != AMPD_MEMORY_READY || shard->announced.deleting);
    }
    AMP_ASSERT(busy == shard->jobs.out && held == shard->apply.blocked_count);
    AMP_ASSERT(held == 0 || shard->jobs.bulk == AMPD_BULK_APPLY);
    AMP_ASSERT(shard->jobs.bulk == AMPD_BULK_NONE ||
               (shard->jobs.bulk_left > 0 && shard->jobs.bulk_left <= busy + held));
}

/* ---- slots and blocks ---- */

static void check_writer(const struct ampd_model *model, uint32_t rank)
{
    const struct ampd_slot *slot = &model->shard->slots[rank];
    if (slot->writer == 0)
        return;
    const struct ampd_call *call = ampd_call_find(model->core, slot->writer);
    AMP_ASSERT(call != NULL && call->kind == AMPD_CALL_PUSH && call->push.rank == rank);
    AMP_ASSERT(call->state == AMPD_CALL_STREAMING || call->state == AMPD_CALL_REVOKING);
}

static void check_slot(const struct ampd_model *model, uint32_t rank)
{
    const struct ampd_shard *shard = model->shard;
    const struct ampd_slot *slot = &shard->slots[rank];
    uint64_t present = 0, receiving = 0;
    for (uint64_t local = 0; local < model->tensors.count; local++) {
        uint8_t state = slot->states[local];
        AMP_ASSERT(state < AMPD_BLOCK_STATES);
        present += state == AMPD_BLOCK_PRESENT && shard->apply.pending[local] == 0 ? 1 : 0;
        receiving += state == AMPD_BLOCK_RECEIVING ? 1 : 0;
        AMP_ASSERT(state != AMPD_BLOCK_RECEIVING || shard->apply.pending[local] == 0);
    }
    check_writer(model, rank);
    AMP_ASSERT(present == slot->present);
    AMP_ASSERT(receiving == 0 || (slot->writer != 0 && !slot->ended));
    AMP_ASSERT(slot->has_header || (present == 0 && receiving == 0 && !slot->ended));
    AMP_ASSERT(!slot->complete || (slot->ended && shard->decided.state != AMPD_DECIDED_APPLYING));
}

/* ---- memory ---- */

static void check_memory(const struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    bool reads = shard->restore.waits || shard->restore.token != 0 || shard->jobs.bulk == AMPD_BULK_RESTORE;
    AMP_ASSERT(!reads || shard->memory == AMPD_MEMORY_RESTORING);
    bool replays = shard->memory == AMPD_MEMORY_RESTORING || shard->memory == AMPD_MEMORY_REPLAYING;
    AMP_ASSERT(!shard->journal.replay.on || replays || !model->core->started);
    AMP_ASSERT(shard->memory != AMPD_MEMORY_REPLAYING || shard->journal.replay.on);
    AMP_ASSERT(shard->memory != AMPD_MEMORY_RESTORED || shard->restore.refused ||
               (shard->restore.step == shard->restore.record.step && shard->restore.record.epoch != 0));
    AMP_ASSERT(!shard->restore.taken || shard->memory <= AMPD_MEMORY_RESTORED);
    bool stores = pendings_of(model, AMPD_PERSIST_MODEL) + pendings_of(model, AMPD_PERSIST_EPOCH) > 0;
    AMP_ASSERT(stores == (shard->new_epoch != 0) && (!stores || shard->new_epoch > shard->epoch));
    AMP_ASSERT(shard->memory != AMPD_MEMORY_LOADING || shard->load.granted != 0);
    AMP_ASSERT(shard->memory != AMPD_MEMORY_READY || shard->epoch != 0);
    AMP_ASSERT(shard->memory != AMPD_MEMORY_READY || shard->new_epoch != 0 ||
               shard->apply.copy_valid[shard->version % AMPD_COPIES]);
}

/* ---- the coordinator ---- */

/* The step that is open for all shards. */
static void check_open(const struct ampd_model *model)
{
    const struct ampd_coord *coord = model->coord;
    uint64_t all = AMPD_ALL_SHARDS(model->core);
    uint32_t complete = 0, votes = 0;
    AMP_ASSERT(coord->step.state <= AMPD_STEP_VOTED);
    AMP_ASSERT(coord->step.state == AMPD_STEP_NONE || ampd_coord_was_open(coord));
    for (uint32_t r = 0; r < model->spec.world_size; r++)
        complete += coord->step.complete[r] == all ? 1 : 0;
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++)
        votes += coord->step.votes[k] != NULL ? 1 : 0;
    AMP_ASSERT(complete == coord->step.complete_count && votes == coord->step.votes_count);
    if (coord->step.state == AMPD_STEP_CLOSED) {
        const struct ampd_close *close = &coord->step.close;
        AMP_ASSERT(close->step == coord->step.open.step && close->try_number == coord->step.open.try_number);
        AMP_ASSERT(coord->step.hash == ampd_contributors_hash(close->contributors, close->contributors_count));
        AMP_ASSERT(votes < AMPD_COUNT(model->core));
    }
    if (coord->step.state == AMPD_STEP_VOTED) {
        AMP_ASSERT(coord->decision.verdict->row.step == coord->step.open.step &&
                   pendings_of(model, AMPD_PERSIST_VERDICT) == 1);
        AMP_ASSERT(coord->decision.state !=
                   AMPD_DECIDED_APPLYING); /* each has voted, so each has applied the one before */
    }
}

/* What the model does, and what may be under way then. */
static void check_run(const struct ampd_model *model)
{
    const struct ampd_coord *coord = model->coord;
    enum ampd_coord_state state = coord->state;
    bool none = state == AMPD_COORD_CREATED || state == AMPD_COORD_LOADED || state == AMPD_COORD_WAITING ||
                state == AMPD_COORD_FINISHING || state == AMPD_COORD_DONE;
    AMP_ASSERT(!none || coord->step.state == AMPD_STEP_NONE);
    AMP_ASSERT(!ampd_coord_has_steps(coord) || !ampd_coord_is_frozen(model) || coord->step.state == AMPD_STEP_NONE ||
               coord->step.state == AMPD_STEP_VOTED); /* VOTED: adopted by a store that had lost the row of a scale */
    AMP_ASSERT(coord->decision.state != AMPD_DECIDED_APPLYING ||
               coord->decision.applied_bits != AMPD_ALL_SHARDS(model->core));
    bool ready = state > AMPD_COORD_STORING && state != AMPD_COORD_DELETING;
    AMP_ASSERT(!ready || (coord->has_record && coord->epoch != 0 && coord->checkpoint.durable_step <= coord->decided));
    AMP_ASSERT(state != AMPD_COORD_DONE || coord->checkpoint.durable_step == coord->decided);
    AMP_ASSERT(coord->rollback.state != AMPD_ROLLBACK_BEGUN || state == AMPD_COORD_SYNCING ||
               state == AMPD_COORD_RESTORING || state == AMPD_COORD_STORING);
    AMP_ASSERT(coord->actions.placed <= coord->actions.count);
    AMP_ASSERT(coord->actions.placed == coord->actions.count || coord->step.state == AMPD_STEP_VOTED);
    for (uint32_t i = 0; i < coord->checkpoint.writing_count; i++) {
        AMP_ASSERT(i == 0 || coord->checkpoint.writing[i].step > coord->checkpoint.writing[i - 1].step);
        AMP_ASSERT(coord->checkpoint.writing[i].bits != AMPD_ALL_SHARDS(model->core));
    }
}

/* ---- workers and leases ---- */

static void check_worker(const struct ampd_model *model, uint32_t rank)
{
    const struct ampd_worker *worker = &model->workers[rank];
    uint32_t writes = 0;
    AMP_LIST_EACH(it, next, &model->core->pendings)
    {
        const struct ampd_pending *pending = AMP_CONTAINER(it, struct ampd_pending, node);
        bool mine = pending->model == model && pending->kind == AMPD_PERSIST_WORKER;
        writes += mine && pending->worker.rank == rank ? 1 : 0;
    }
    AMP_ASSERT(writes == (worker->storing ? 1 : 0));
    AMP_ASSERT(worker->has_holder || (worker->lease == AMPD_LEASE_NONE && writes == 0));
    AMP_ASSERT(worker->lease != AMPD_LEASE_LIVE || (worker->lease_until_ms != 0 && !worker->record.left));
    AMP_ASSERT(worker->joined_epoch <= model->coord->epoch);
    for (uint32_t r = 0; worker->has_holder && r < rank; r++) {
        const struct ampd_worker *other = &model->workers[r];
        AMP_ASSERT(!other->has_holder || strcmp(other->record.name, worker->record.name) != 0);
    }
}

/* Writes of PARTS are counted: RESTORED and PART_DONE wait for them. */
static void check_parts(const struct ampd_model *model)
{
    uint32_t storing = 0;
    AMP_LIST_EACH(it, next, &model->core->pendings)
    {
        const struct ampd_pending *pending = AMP_CONTAINER(it, struct ampd_pending, node);
        storing += pending->model == model && pending->kind == AMPD_PERSIST_PARTS ? 1 : 0;
    }
    AMP_ASSERT(storing == model->shard->catalogue.parts_storing);
}

/* ---- all of them ---- */

void ampd_model_check(const struct ampd_model *model)
{
    if (model->gone)
        return;
    if (!model->shard->announced.deleting) {
        check_collecting(model);
        check_decided(model);
        check_memory(model);
    }
    check_jobs(model);
    ampd_part_check(model);
    check_parts(model);
    for (uint32_t r = 0; r < model->spec.world_size; r++)
        check_slot(model, r);
    if (model->core->config.shard != 0)
        return;
    if (model->coord->state != AMPD_COORD_DELETING) {
        check_open(model);
        check_run(model);
    }
    for (uint32_t r = 0; r < model->spec.world_size; r++)
        check_worker(model, r);
}
