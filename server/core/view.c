/* How a model stands and how far each shard is, as this process knows it: nothing is decided by it. */
#include "base/assert.h"
#include "server/core/model.h"

/* ---- a model ---- */

/* Of another shard than 0: what it has been told of this epoch, and what it sees itself. */
static enum ampd_model_state told_state(const struct ampd_model *model)
{
    const struct ampd_shard *shard = &model->shard;
    if (shard->memory <= AMPD_MEMORY_RESTORED)
        return AMPD_MODEL_WAITING; /* as shard 0 says of a model that is being brought back */
    if (shard->memory == AMPD_MEMORY_EMPTY)
        return AMPD_MODEL_CREATED;
    if (!shard->loaded)
        return AMPD_MODEL_LOADING;
    if (shard->done || shard->stalled)
        return shard->done ? AMPD_MODEL_DONE : AMPD_MODEL_STALLED;
    bool began = shard->step.state != AMPD_STEP_NONE || shard->decided_step > shard->base_step || shard->frozen;
    return began ? AMPD_MODEL_RUNNING : AMPD_MODEL_WAITING;
}

/* Of another shard than 0: what the last verdict has said. That all parts are known here does not say that all others know them. */
static uint64_t told_durable(const struct ampd_shard *shard)
{
    if (shard->done)
        return shard->decided_step;
    uint64_t told = shard->verdict == NULL ? 0 : shard->verdict->row.durable_step;
    return told > shard->base_step ? told : shard->base_step;
}

/* With a journal every decided step survives a crash; else what the checkpoints hold. */
static uint64_t durable_step(const struct ampd_model *model)
{
    const struct ampd_shard *shard = &model->shard;
    if (model->spec.durability == AMPD_DURABILITY_STEP && shard->memory == AMPD_MEMORY_READY)
        return shard->decided_step;
    return model->core->config.shard == 0 ? model->coord.durable_step : told_durable(shard);
}

/* Not one that is being created or deleted: nobody waits for what it had. */
static bool is_recovering(const struct ampd_model *model)
{
    const struct ampd_shard *shard = &model->shard;
    enum ampd_coord_state state = model->coord.state;
    bool lost = shard->memory <= AMPD_MEMORY_RESTORED;
    if (shard->deleting || state == AMPD_COORD_DELETING)
        return false;
    if (model->core->config.shard != 0)
        return shard->stored && lost;
    return state != AMPD_COORD_CREATING && (lost || state <= AMPD_COORD_STORING);
}

static const char *trouble_of(const struct ampd_model *model)
{
    if (model->coord.trouble[0] != 0)
        return model->coord.trouble;
    if (model->shard.unread[0] != 0)
        return model->shard.unread;
    if (model->shard.troubled)
        return "a shard cannot bring the model back now; the log of each shard says what it lacks";
    return NULL;
}

void ampd_core_model(const struct ampd_core *core, uint32_t index, struct ampd_model_info *info)
{
    AMP_ASSERT(index < core->models_count);
    const struct ampd_model *model = core->models[index];
    const struct ampd_shard *shard = &model->shard;
    const struct ampd_coord *coord = &model->coord;
    bool decides = core->config.shard == 0;
    bool is_open = coord->step == AMPD_STEP_OPEN || coord->step == AMPD_STEP_CLOSED;
    *info = (struct ampd_model_info){
        .spec = &model->spec,
        .layout = model->layout,
        .state = decides ? ampd_coord_public(model) : told_state(model),
        .recovering = is_recovering(model),
        .trouble = is_recovering(model) ? trouble_of(model) : NULL,
        .deleted = model->gone,
        .deleting = shard->deleting || coord->state == AMPD_COORD_DELETING,
        .unstable =
            decides ? coord->unstable : shard->scaler.consecutive_overflows >= model->spec.max_consecutive_overflows,
        .frozen = shard->frozen,
        .epoch = shard->epoch,
        .base_epoch = shard->base_epoch,
        .base_step = shard->base_step,
        .step = ampd_shard_next_step(model),
        .decided_step = shard->decided_step,
        .version = shard->version,
        .durable_step = durable_step(model),
        .scaler = decides && coord->state >= AMPD_COORD_CREATED ? coord->scaler : shard->scaler,
        .step_scale_id = shard->step.state != AMPD_STEP_NONE ? shard->step.open.scale_id : shard->scaler.scale_id,
        .last = shard->verdict == NULL ? NULL : &shard->verdict->row,
        .open_since_ms = decides && is_open ? coord->opened_ms : 0,
        .awaited_since_ms = decides ? ampd_health_awaited_ms(model) : 0,
        .awaited_late_ms = decides ? ampd_health_late_ms(model) : 0,
        .missing_rank = decides ? coord->missing_rank : shard->missing_rank,
        .checkpoints_count = shard->checkpoints_count,
        .checkpoints = shard->checkpoints,
        .range_total = shard->applied.range_total,
        .memory_bytes = model->tensors.bytes,
        .created_us = model->created_us,
    };
}

/* ---- the shards ---- */

static void add_model(const struct ampd_model *model, uint32_t shard, struct ampd_shard_info *info)
{
    const struct ampd_coord *coord = &model->coord;
    uint64_t bit = AMPD_BIT(shard);
    if (model->core->config.shard != 0) { /* only its own part is known */
        bool mine = shard == model->core->config.shard;
        info->decided_step = mine ? model->shard.decided_step : 0;
        info->applied_step = info->decided_step;
        return;
    }
    bool behind = coord->decided_state == AMPD_STEP_DECIDED && (coord->applied_bits & bit) == 0;
    bool voting = coord->step == AMPD_STEP_CLOSED && coord->votes_count > 0;
    info->decided_step = coord->decided;
    info->applied_step = coord->decided - (behind ? 1 : 0);
    info->behind += behind ? 1 : 0;
    info->awaited += voting && coord->votes[shard] == NULL ? 1 : 0;
}

void ampd_core_shard(const struct ampd_core *core, uint32_t shard, int64_t model, struct ampd_shard_info *info)
{
    AMP_ASSERT(shard < AMPD_COUNT(core) && model < (int64_t)core->models_count);
    *info = (struct ampd_shard_info){.fence = ampd_fences_of(core, shard),
                                     .up = shard == core->config.shard || core->peers[shard].up,
                                     .leaving = ampd_leave_leaves(core, shard)};
    for (uint32_t i = 0; i < core->models_count; i++) {
        if (!core->models[i]->gone && (model < 0 || model == (int64_t)i))
            add_model(core->models[i], shard, info);
    }
    if (model < 0)
        info->decided_step = info->applied_step = 0;
}
