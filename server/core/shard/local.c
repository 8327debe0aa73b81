/* What the coordinator and the files below ask the shard of their process without a message (base/local.h). */
#include "server/core/base/local.h"

#include "base/assert.h"
#include "server/core/base/model.h"
#include "server/core/shard/catalogue.h"
#include "server/core/shard/load.h"
#include "server/core/shard/pull.h"
#include "server/core/shard/push.h"
#include "server/core/shard/shard.h"

uint64_t ampd_local_epoch(const struct ampd_model *model)
{
    return model->shard->epoch;
}

uint64_t ampd_local_next_step(const struct ampd_model *model)
{
    return ampd_shard_next_step(model);
}

struct ampd_seen ampd_local_seen(const struct ampd_model *model)
{
    return model->shard->step.seen;
}

uint64_t ampd_local_goes_without(const struct ampd_model *model, uint32_t rank)
{
    const struct ampd_open_step *step = &model->shard->step;
    bool without = step->state != AMPD_STEP_NONE && ampd_shard_expected(model, rank) == NULL;
    return without ? step->open.step : 0;
}

struct ampd_found ampd_local_found(const struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    const struct ampd_found *found = &shard->journal.found;
    return (struct ampd_found){.base_epoch = shard->base_epoch,
                               .base_step = shard->base_step,
                               .has_carry = found->has_carry,
                               .carry = found->carry,
                               .late_action = found->late_action,
                               .open_scale = found->open_scale,
                               .open_scale_id = found->open_scale_id};
}

struct ampd_carry ampd_local_carry(const struct ampd_model *model)
{
    return model->shard->carry;
}

bool ampd_local_loads(const struct ampd_model *model)
{
    return model->shard->memory == AMPD_MEMORY_LOADING;
}

bool ampd_local_is_stored(const struct ampd_model *model)
{
    return model->shard->epoch != 0 || model->shard->new_epoch != 0;
}

const struct ampd_checkpoint_record *ampd_local_checkpoint(const struct ampd_model *model, uint64_t epoch,
                                                           uint64_t step)
{
    return ampd_catalogue_find(model->shard, epoch, step);
}

const struct ampd_bytes *ampd_local_user_state(const struct ampd_model *model, uint32_t rank)
{
    AMP_ASSERT(rank < model->spec.world_size);
    return &model->shard->decided.base_user_states[rank];
}

void ampd_local_load_closed(struct ampd_model *model, uint64_t call)
{
    ampd_load_closed(model, call);
}

void ampd_local_new_coordinator(struct ampd_model *model)
{
    model->shard->restore.round = 0;
    model->shard->announced.sequence = 0;
    model->shard->announced.loaded_is_confirmed = false;
}

void ampd_local_retry(struct ampd_model *model)
{
    ampd_pull_retry(model);
    ampd_push_retry(model);
}
