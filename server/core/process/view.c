/* The queries of core_info.h about models, workers and shards. No decision depends on them. */
#include "base/assert.h"
#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/base/ranks.h"
#include "server/core/base/worker.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/health.h"
#include "server/core/core.h"
#include "server/core/model/spec.h"
#include "server/core/model/tensors.h"
#include "server/core/process/leave.h"
#include "server/core/shard/journal.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/fences.h"
#include "server/core/wire/verdict_rows.h"

/* ---- a model ---- */

/* The state on another shard than 0: by what STATE has said in this epoch, and by what the shard itself has. */
static enum ampd_model_state announced_state(const struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    if (shard->memory <= AMPD_MEMORY_RESTORED)
        return AMPD_MODEL_WAITING; /* what shard 0 says, too, of a model that is being brought back */
    if (shard->announced.state >= AMPD_MODEL_WAITING)
        return shard->announced.state;
    return shard->memory == AMPD_MEMORY_EMPTY ? AMPD_MODEL_CREATED : AMPD_MODEL_LOADING;
}

/*
 * The durable step on another shard than 0: the one that the last verdict names. That this store knows all parts of a
 * newer checkpoint does not mean that all other stores know them.
 */
static uint64_t announced_durable(const struct ampd_shard *shard)
{
    if (shard->announced.state == AMPD_MODEL_DONE)
        return shard->decided.step;
    uint64_t told = shard->decided.verdict == NULL ? 0 : shard->decided.verdict->row.durable_step;
    return told > shard->base_step ? told : shard->base_step;
}

/* With a journal every decided step survives a crash; else what the checkpoints hold. */
static uint64_t durable_step(const struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    if (model->spec.durability == AMPD_DURABILITY_STEP && shard->memory == AMPD_MEMORY_READY)
        return shard->decided.step;
    return model->core->config.shard == 0 ? model->coord->checkpoint.durable_step : announced_durable(shard);
}

/* Whether the model is being brought back. One that is being created or deleted is not. */
static bool is_recovering(const struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    enum ampd_coord_state state = model->coord->state;
    bool lost = shard->memory <= AMPD_MEMORY_RESTORED;
    if (shard->announced.deleting || state == AMPD_COORD_DELETING)
        return false;
    if (model->core->config.shard != 0)
        return shard->epoch != 0 && lost;
    return state != AMPD_COORD_CREATING && (lost || state <= AMPD_COORD_STORING);
}

uint32_t ampd_core_count_whole(const struct ampd_model_info *info)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < info->checkpoints_whole; i++)
        count += ampd_core_is_whole(info, i) ? 1 : 0;
    return count;
}

/*
 * How many checkpoints, from the first on, there are up to the newest that all shards hold as far as is known here.
 * Shard 0 may have its part of one that others are still writing. Where it does not know what they have, and on other
 * shards, it is the newest of which the store has been told all parts: then all were there.
 */
static uint32_t count_whole(const struct ampd_model *model)
{
    const struct ampd_coord_checkpoints *known = &model->coord->checkpoint;
    const struct ampd_catalogue *catalogue = &model->shard->catalogue;
    bool decides = model->core->config.shard == 0 && !is_recovering(model);
    uint32_t count = catalogue->count;
    if (AMPD_COUNT(model->core) == 1)
        return count;
    for (; count > 0; count--) {
        const struct ampd_checkpoint_record *newest = &catalogue->records[count - 1];
        bool here = newest->parts_count == AMPD_COUNT(model->core);
        if (decides ? known->exists && newest->step <= known->durable_step : here)
            break;
    }
    return count;
}

bool ampd_core_is_whole(const struct ampd_model_info *info, uint32_t i)
{
    AMP_ASSERT(i < info->checkpoints_count);
    return i < info->checkpoints_whole &&
           (info->parts_count == 1 || info->checkpoints[i].parts_count == info->parts_count);
}

static const char *trouble_of(const struct ampd_model *model)
{
    if (model->coord->trouble[0] != 0)
        return model->coord->trouble;
    if (model->shard->restore.unread[0] != 0)
        return model->shard->restore.unread;
    if (model->shard->announced.troubled)
        return "a shard cannot bring the model back now; the log of each shard says what it lacks";
    return NULL;
}

void ampd_core_model(const struct ampd_core *core, uint32_t index, struct ampd_model_info *info)
{
    AMP_ASSERT(index < core->models_count);
    const struct ampd_model *model = core->models[index];
    const struct ampd_shard *shard = model->shard;
    const struct ampd_coord *coord = model->coord;
    bool decides = core->config.shard == 0;
    bool is_open = coord->step.state == AMPD_STEP_OPEN || coord->step.state == AMPD_STEP_CLOSED;
    const struct ampd_carry *carry = decides && coord->state >= AMPD_COORD_CREATED ? &coord->carry : &shard->carry;
    *info = (struct ampd_model_info){
        .spec = &model->spec,
        .layout = model->layout,
        .state = decides ? ampd_coord_public(model) : announced_state(model),
        .recovering = is_recovering(model),
        .trouble = is_recovering(model) ? trouble_of(model) : NULL,
        .deleted = model->gone,
        .deleting = shard->announced.deleting || coord->state == AMPD_COORD_DELETING,
        .unstable = ampd_is_unstable(&model->spec, &carry->scaler),
        .frozen = shard->announced.frozen,
        .epoch = shard->epoch,
        .base_epoch = shard->base_epoch,
        .base_step = shard->base_step,
        .step = ampd_shard_next_step(model),
        .decided_step = shard->decided.step,
        .version = shard->version,
        .durable_step = durable_step(model),
        .scaler = carry->scaler,
        .lr = model->spec.schedule == AMPD_SCHEDULE_WORKER ? 0 : ampd_spec_base_lr(&model->spec, carry),
        .step_scale_id = shard->step.state != AMPD_STEP_NONE ? shard->step.open.scale_id : shard->carry.scaler.scale_id,
        .last = shard->decided.verdict == NULL ? NULL : &shard->decided.verdict->row,
        .waits.open_since_ms = decides && is_open ? coord->step.opened_ms : 0,
        .waits.awaited_since_ms = decides ? ampd_health_awaited_ms(model) : 0,
        .waits.awaited_late_ms = decides ? ampd_health_late_ms(model) : 0,
        .waits.missing_rank = decides ? coord->missing_rank : shard->announced.missing_rank,
        .checkpoints_count = shard->catalogue.count,
        .checkpoints_whole = count_whole(model),
        .parts_count = AMPD_COUNT(core),
        .checkpoints = shard->catalogue.records,
        .range_total = shard->apply.warnings.range_total,
        .memory_bytes = model->tensors.bytes,
        .first_block = model->tensors.first,
        .block_count = model->tensors.count,
        .copies = model->tensors.copies,
        .copy_bytes = model->tensors.copy_bytes,
        .created_us = model->created_us,
    };
}

/* ---- a worker ---- */

bool ampd_core_vote_terms(const struct ampd_core *core, uint32_t index, uint32_t rank, struct ampd_vote_terms *terms)
{
    AMP_ASSERT(index < core->models_count && rank < core->models[index]->spec.world_size);
    return ampd_shard_vote_terms(core->models[index], rank, terms);
}

bool ampd_core_wants_vote(const struct ampd_core *core, uint32_t index)
{
    AMP_ASSERT(index < core->models_count);
    return ampd_shard_journal_wanted(core->models[index]);
}

const char *ampd_core_worker_name(const struct ampd_core *core, uint32_t index, uint32_t rank,
                                  struct ampd_incarnation incarnation)
{
    AMP_ASSERT(index < core->models_count && rank < core->models[index]->spec.world_size);
    const struct ampd_worker *worker = &core->models[index]->workers[rank];
    bool known = !ampd_incarnation_newer(worker->named, incarnation) &&
                 !ampd_incarnation_newer(incarnation, worker->record.incarnation);
    return known ? worker->record.name : "";
}

/* ---- the shards ---- */

static void add_model(const struct ampd_model *model, uint32_t shard, struct ampd_shard_info *info)
{
    const struct ampd_coord *coord = model->coord;
    uint64_t bit = AMPD_BIT(shard);
    if (model->core->config.shard != 0) { /* this shard alone is known */
        bool mine = shard == model->core->config.shard;
        info->decided_step = mine ? model->shard->decided.step : 0;
        info->applied_step = info->decided_step;
        return;
    }
    bool behind = coord->decision.state == AMPD_DECIDED_APPLYING && (coord->decision.applied_bits & bit) == 0;
    bool voting = coord->step.state == AMPD_STEP_CLOSED && coord->step.votes_count > 0;
    info->decided_step = coord->decided;
    info->applied_step = coord->decided - (behind ? 1 : 0);
    info->behind += behind ? 1 : 0;
    info->awaited += voting && coord->step.votes[shard] == NULL ? 1 : 0;
}

void ampd_core_shard(const struct ampd_core *core, uint32_t shard, int64_t model, struct ampd_shard_info *info)
{
    AMP_ASSERT(shard < AMPD_COUNT(core) && model < (int64_t)core->models_count);
    *info = (struct ampd_shard_info){.fence = ampd_fences_of(core, shard),
                                     .up = shard == core->config.shard || core->peers[shard].up,
                                     .leaving = ampd_core_leaves(core, shard)};
    for (uint32_t i = 0; i < core->models_count; i++) {
        if (!core->models[i]->gone && (model < 0 || model == (int64_t)i))
            add_model(core->models[i], shard, info);
    }
    if (model < 0)
        info->decided_step = info->applied_step = 0;
}
