/*
 * Checkpoints of one shard: the snapshot, the file, the catalogue (STEP section 6).
 *
 * The snapshot: masters and moments are copied to memory of their own by the jobs of apply (or by jobs of their own after
 * a skipped step), so that the step goes on while the file is written. There is one snapshot, so the next cut waits for
 * the file of the one before.
 *
 *   FREE    -> FILLING
 *   FILLING -> WRITING, FREE     every block is copied; or a restore has made it pointless
 *   WRITING -> STORING, FREE     the file is there; or the epoch that it belongs to is over
 *   STORING -> FREE              the catalogue has it
 */
#include "base/assert.h"
#include "server/core/model.h"

#include <stdlib.h>
#include <string.h>

static void set_snapshot(struct ampd_shard *shard, enum ampd_snapshot_state to)
{
    AMP_ASSERT(ampd_machine_allows(&ampd_machine_snapshot, shard->snapshot, to));
    shard->snapshot = to;
}

/* ---- the catalogue ---- */

int ampd_catalogue_add(struct ampd_shard *shard, const struct ampd_checkpoint_record *record)
{
    for (uint32_t i = 0; i < shard->checkpoints_count; i++) {
        if (shard->checkpoints[i].epoch == record->epoch && shard->checkpoints[i].step == record->step) {
            shard->checkpoints[i] = *record;
            return 0;
        }
    }
    if (shard->checkpoints_count == shard->checkpoints_room) {
        uint32_t room = shard->checkpoints_room * 2 + 4;
        void *grown = realloc(shard->checkpoints, room * sizeof(*shard->checkpoints));
        if (grown == NULL)
            return AMP_ENOMEM;
        shard->checkpoints = grown;
        shard->checkpoints_room = room;
    }
    shard->checkpoints[shard->checkpoints_count++] = *record;
    return 0;
}

/* The newest step that all shards are known to hold: nothing above it replaces what lies below. */
static uint64_t common_step(const struct ampd_model *model)
{
    const struct ampd_shard *shard = &model->shard;
    if (AMPD_COUNT(model->core) == 1)
        return UINT64_MAX;
    return shard->verdict == NULL ? shard->base_step : shard->verdict->row.durable_step;
}

/* Of the checkpoints that exist on all shards, those beyond keep_last go, oldest first. */
static void prune(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    uint64_t common = common_step(model);
    uint32_t exist = 0;
    while (exist < shard->checkpoints_count && shard->checkpoints[exist].step <= common)
        exist++;
    for (; exist > model->spec.keep_last; exist--) {
        struct ampd_checkpoint_record *record = ampd_need(ampd_copy(&shard->checkpoints[0], sizeof(*record)));
        struct ampd_output *output = ampd_out(model->core, AMPD_OUT_DROP_CHECKPOINT, 0);
        output->u.drop.model = model->spec.name;
        output->u.drop.checkpoint = ampd_out_own(model->core, record);
        shard->checkpoints_count--;
        memmove(shard->checkpoints, shard->checkpoints + 1, shard->checkpoints_count * sizeof(*shard->checkpoints));
    }
}

/* A new epoch voids what lies above its base, and everything if it has none. */
void ampd_catalogue_void(struct ampd_shard *shard, uint64_t base_epoch, uint64_t base_step)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < shard->checkpoints_count; i++) {
        if (base_epoch != 0 && shard->checkpoints[i].step <= base_step)
            shard->checkpoints[kept++] = shard->checkpoints[i];
    }
    shard->checkpoints_count = kept;
}

const struct ampd_checkpoint_record *ampd_catalogue_find(const struct ampd_shard *shard, uint64_t epoch, uint64_t step)
{
    for (uint32_t i = 0; i < shard->checkpoints_count; i++) {
        if (shard->checkpoints[i].epoch == epoch && shard->checkpoints[i].step == step)
            return &shard->checkpoints[i];
    }
    return NULL;
}

/* ---- checkpoints ---- */

static void try_cut(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    if (!shard->cut_waits || shard->snapshot != AMPD_SNAPSHOT_FREE || shard->bulk != AMPD_BULK_NONE)
        return;
    shard->cut_waits = false;
    ampd_snapshot_begin(model);
    struct ampd_plan *plan = ampd_need(ampd_plan_new(&model->tensors, 0));
    ampd_shard_bulk(model, AMPD_BULK_SNAPSHOT, AMPD_JOB_SNAPSHOT, plan);
    ampd_plan_unref(plan);
}

static void tell_part(struct ampd_model *model, const struct ampd_checkpoint_record *record)
{
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_PART_DONE, 0);
    message->epoch = record->epoch;
    message->u.restore.epoch = record->epoch;
    message->u.restore.step = record->step;
    message->u.restore.version = record->version;
    ampd_bus_send_take(model->core, message);
}

void ampd_snapshot_tell(struct ampd_model *model)
{
    const struct ampd_shard *shard = &model->shard;
    for (uint32_t i = 0; i < shard->checkpoints_count; i++) {
        if (shard->checkpoints[i].epoch == shard->epoch)
            tell_part(model, &shard->checkpoints[i]);
    }
}

void ampd_snapshot_cut(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_shard *shard = &model->shard;
    uint64_t step = message->u.restore.step;
    const struct ampd_checkpoint_record *done = ampd_catalogue_find(shard, shard->epoch, step);
    bool here = message->epoch == shard->epoch && shard->memory == AMPD_MEMORY_READY;
    if (here && done != NULL) {
        tell_part(model, done);
        return;
    }
    bool under_way =
        shard->snapshot != AMPD_SNAPSHOT_FREE && shard->snapshot_step == step && shard->snapshot_epoch == shard->epoch;
    if (!here || under_way || step != shard->decided_step || shard->decided_state == AMPD_STEP_DECIDED)
        return;
    shard->cut_waits = true;
    try_cut(model);
}

static void free_snapshot_states(struct ampd_model *model)
{
    struct ampd_checkpoint_state *state = &model->shard.snapshot_state;
    for (uint32_t r = 0; state->user_states != NULL && r < model->spec.world_size; r++)
        free(state->user_states[r].data);
    free(state->user_states);
    *state = (struct ampd_checkpoint_state){0};
}

void ampd_snapshot_begin(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    AMP_ASSERT(ampd_tensors_need_snapshot(&model->tensors) == 0);
    set_snapshot(shard, AMPD_SNAPSHOT_FILLING);
    shard->snapshot_void = false;
    shard->snapshot_epoch = shard->epoch;
    shard->snapshot_step = shard->decided_step;
    free_snapshot_states(model);
    struct ampd_checkpoint_state *state = &shard->snapshot_state;
    state->step = shard->decided_step;
    state->version = shard->verdict == NULL ? shard->version : shard->verdict->row.version;
    state->scaler = shard->scaler;
    state->world_size = model->spec.world_size;
    state->user_states = ampd_need(calloc(model->spec.world_size, sizeof(*state->user_states)));
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        if (shard->user_states[r].size == 0)
            continue;
        state->user_states[r].size = shard->user_states[r].size;
        state->user_states[r].data = ampd_need(ampd_copy(shard->user_states[r].data, shard->user_states[r].size));
    }
}

void ampd_snapshot_filled(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    set_snapshot(shard, AMPD_SNAPSHOT_WRITING);
    shard->snapshot_token = ++model->core->last_token;
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_CUT, 0);
    output->u.cut = (struct ampd_cut_order){
        .token = shard->snapshot_token,
        .model = model->index,
        .spec = &model->spec,
        .layout = model->layout,
        .epoch = shard->snapshot_epoch,
        .step = shard->snapshot_step,
        .tensors = {model->tensors.snapshot, model->tensors.snapshot_m, model->tensors.snapshot_v},
        .state = &shard->snapshot_state,
    };
}

/* The snapshot may be filled again: what waited for it goes on. */
static void snapshot_free(struct ampd_model *model)
{
    set_snapshot(&model->shard, AMPD_SNAPSHOT_FREE);
    try_cut(model);
    ampd_shard_try_apply(model);
}

void ampd_snapshot_written(struct ampd_model *model, const struct ampd_event_part *part)
{
    struct ampd_shard *shard = &model->shard;
    shard->snapshot_token = 0;
    if (part->code != 0 || shard->snapshot_void) {
        if (part->code != 0 && part->code != AMP_ECANCELLED)
            ampd_out_log(model->core, AMPD_LOG_ERROR, model, "checkpoint %llu was not written: %s",
                         (unsigned long long)shard->snapshot_step, amp_strerror(part->code));
        snapshot_free(model);
        return;
    }
    struct ampd_checkpoint_record *record = &shard->snapshot_record;
    *record = *part->record;
    record->epoch = shard->snapshot_epoch;
    record->step = shard->snapshot_step;
    record->version = shard->snapshot_state.version;
    record->at_us = model->core->utc_us;
    set_snapshot(shard, AMPD_SNAPSHOT_STORING);
    struct ampd_persist *persist;
    (void)ampd_out_persist(model, AMPD_PERSIST_CHECKPOINT, 0, &persist);
    persist->full = true;
    persist->checkpoint = ampd_out_own(model->core, ampd_need(ampd_copy(record, sizeof(*record))));
}

void ampd_snapshot_stored(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    bool above = shard->base_epoch == 0 || shard->snapshot_step > shard->base_step;
    bool is_void = shard->snapshot_void && above;
    if (!is_void) {
        AMP_ASSERT(ampd_catalogue_add(shard, &shard->snapshot_record) == 0);
        prune(model);
        tell_part(model, &shard->snapshot_record);
    }
    snapshot_free(model);
}

void ampd_snapshot_void(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    shard->snapshot_void = true;
    shard->cut_waits = false;
    if (shard->snapshot == AMPD_SNAPSHOT_WRITING)
        ampd_out(model->core, AMPD_OUT_CUT_CANCEL, 0)->u.token = shard->snapshot_token;
}

void ampd_snapshot_drop(struct ampd_model *model)
{
    if (model->shard.snapshot == AMPD_SNAPSHOT_FILLING)
        set_snapshot(&model->shard, AMPD_SNAPSHOT_FREE);
}
