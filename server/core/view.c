/* How far each shard is, as this process knows it: for an operator, nothing is decided by it. */
#include "base/assert.h"
#include "server/core/model.h"

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
