/*
 * A shard's memory of a model: lost at a start, brought back from a checkpoint, and cut into checkpoints (STEP section 6).
 *
 *   LOST      -> RESTORING, EMPTY      RESTORE came; or a new epoch without a checkpoint
 *   RESTORING -> RESTORED, LOST        in memory and verified; or damaged
 *   RESTORED  -> READY, RESTORING      the new epoch is stored; or another checkpoint is asked for
 *   EMPTY     -> LOADING               a loader has the grant
 *   LOADING   -> READY, EMPTY          every block is in; or the loader's stream is gone
 *   READY     -> RESTORING
 *
 * The snapshot: masters and moments are copied to memory of their own by the jobs of apply (or by jobs of their own after
 * a skipped step), so that the step goes on while the file is written. There is one snapshot, so the next cut waits for
 * the file of the one before.
 *
 *   FREE    -> FILLING
 *   FILLING -> WRITING, FREE
 *   WRITING -> STORING, FREE     the file is there; or the epoch that it belongs to is over
 *   STORING -> FREE              the catalogue has it
 */
#include "base/assert.h"
#include "server/core/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Between two tries to read a checkpoint: long enough for a log line each. */
#define RESTORE_RETRY_MS 5000

static void set_memory(struct ampd_shard *shard, enum ampd_memory_state to)
{
    AMP_ASSERT(ampd_machine_allows(&ampd_machine_memory, shard->memory, to));
    shard->memory = to;
}

static void set_snapshot(struct ampd_shard *shard, enum ampd_snapshot_state to)
{
    AMP_ASSERT(ampd_machine_allows(&ampd_machine_snapshot, shard->snapshot, to));
    shard->snapshot = to;
}

/* ---- the catalogue ---- */

int ampd_memory_catalogue(struct ampd_shard *shard, const struct ampd_checkpoint_record *record)
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

/* Checkpoints beyond keep_last go, oldest first. Another shard may be one part behind: then one more is kept. */
static void prune(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    uint32_t keep = model->spec.keep_last + (AMPD_COUNT(model->core) > 1 ? 1 : 0);
    while (shard->checkpoints_count > keep) {
        struct ampd_checkpoint_record *record = ampd_need(ampd_copy(&shard->checkpoints[0], sizeof(*record)));
        struct ampd_output *output = ampd_out(model->core, AMPD_OUT_DROP_CHECKPOINT, 0);
        output->u.drop.model = model->spec.name;
        output->u.drop.checkpoint = ampd_out_own(model->core, record);
        shard->checkpoints_count--;
        memmove(shard->checkpoints, shard->checkpoints + 1, shard->checkpoints_count * sizeof(*shard->checkpoints));
    }
}

/* A new epoch voids what lies above its base. */
static void void_above(struct ampd_shard *shard, uint64_t base_step)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < shard->checkpoints_count; i++) {
        if (shard->checkpoints[i].step <= base_step)
            shard->checkpoints[kept++] = shard->checkpoints[i];
    }
    shard->checkpoints_count = kept;
}

static const struct ampd_checkpoint_record *find_checkpoint(const struct ampd_shard *shard, uint64_t epoch,
                                                            uint64_t step)
{
    for (uint32_t i = 0; i < shard->checkpoints_count; i++) {
        if (shard->checkpoints[i].epoch == epoch && shard->checkpoints[i].step == step)
            return &shard->checkpoints[i];
    }
    return NULL;
}

/* ---- SYNC and RESTORE ---- */

void ampd_memory_sync(struct ampd_model *model, const struct ampd_message *message)
{
    (void)message;
    const struct ampd_shard *shard = &model->shard;
    struct ampd_message *answer = ampd_bus_message(model, AMPD_MESSAGE_SYNCED, 0);
    answer->u.sync.lost = shard->memory <= AMPD_MEMORY_RESTORED;
    answer->u.sync.highest_epoch = shard->epoch;
    answer->u.sync.checkpoints_count = shard->checkpoints_count;
    if (shard->checkpoints_count > 0)
        answer->u.sync.checkpoints =
            ampd_need(ampd_copy(shard->checkpoints, shard->checkpoints_count * sizeof(*shard->checkpoints)));
    ampd_bus_send_take(model, answer);
}

static void answer_restore(struct ampd_model *model, bool ok)
{
    const struct ampd_shard *shard = &model->shard;
    struct ampd_message *answer = ampd_bus_message(model, AMPD_MESSAGE_RESTORED, 0);
    answer->u.restore.epoch = shard->restore_record.epoch;
    answer->u.restore.step = shard->restore_record.step;
    answer->u.restore.ok = ok;
    answer->u.restore.version = shard->restored_version;
    answer->u.restore.scaler = shard->restored_scaler;
    ampd_bus_send_take(model, answer);
}

/* Ends every stream, so that the tensors can be written over. */
static void end_streams(struct ampd_model *model)
{
    struct amp_list *lists[] = {&model->pushes, &model->pulls};
    for (unsigned l = 0; l < sizeof(lists) / sizeof(lists[0]); l++) {
        AMP_LIST_EACH(it, next, lists[l])
        {
            ampd_call_end(AMP_CONTAINER(it, struct ampd_call, node), AMP_EUNAVAILABLE, "RECOVERING",
                          "%s goes back to a checkpoint; try again in a moment", model->spec.name);
        }
    }
}

void ampd_memory_restore(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_shard *shard = &model->shard;
    const struct ampd_checkpoint_record *record =
        find_checkpoint(shard, message->u.restore.epoch, message->u.restore.step);
    shard->restore_record =
        (struct ampd_checkpoint_record){.epoch = message->u.restore.epoch, .step = message->u.restore.step};
    if (record == NULL) {
        answer_restore(model, false);
        return;
    }
    shard->restore_record = *record;
    set_memory(shard, AMPD_MEMORY_RESTORING);
    shard->restore_waits = true;
    end_streams(model);
    ampd_memory_try_restore(model);
}

void ampd_memory_try_restore(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    if (!shard->restore_waits || shard->jobs_out != 0 || !amp_list_empty(&model->pushes) ||
        !amp_list_empty(&model->pulls))
        return;
    shard->restore_waits = false;
    shard->restore_token = ++model->core->last_token;
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_RESTORE, 0);
    output->u.restore = (struct ampd_restore_order){
        .token = shard->restore_token,
        .model = model->index,
        .spec = &model->spec,
        .layout = model->layout,
        .checkpoint = &shard->restore_record,
        .tensors = {model->tensors.masters, model->tensors.m, model->tensors.v},
    };
}

/* User states of the restored step: those that Join gives out, and those that the next cut starts from. */
static void take_states(struct ampd_model *model, const struct ampd_checkpoint_state *state)
{
    struct ampd_shard *shard = &model->shard;
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        bool given = state->user_states != NULL && r < state->world_size && state->user_states[r].size > 0;
        struct ampd_bytes *both[] = {&shard->user_states[r], &shard->base_user_states[r]};
        for (unsigned i = 0; i < 2; i++) {
            free(both[i]->data);
            *both[i] = (struct ampd_bytes){0};
            if (!given)
                continue;
            both[i]->size = state->user_states[r].size;
            both[i]->data = ampd_need(ampd_copy(state->user_states[r].data, both[i]->size));
        }
    }
}

/* Whether the file itself is at fault. Anything else (memory, descriptors, the disk's mood) may pass. */
static bool is_gone(int code)
{
    return code == AMP_EDATALOSS || code == AMP_ENOTFOUND;
}

/*
 * A durable checkpoint is not given up for an error that may pass: the model stays RECOVERING, and the file is read
 * again. Should it never be readable, an operator who moves it away makes it ENOTFOUND.
 */
static void read_later(struct ampd_model *model, int code)
{
    struct ampd_shard *shard = &model->shard;
    shard->restore_retry_ms = model->core->now_ms + RESTORE_RETRY_MS;
    ampd_out_log(model->core, AMPD_LOG_ERROR, model,
                 "checkpoint %llu cannot be read now: %s; reading it again every %d ms (remove the file to give it up)",
                 (unsigned long long)shard->restore_record.step, amp_strerror(code), RESTORE_RETRY_MS);
}

void ampd_memory_tick(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    if (shard->restore_retry_ms == 0 || shard->restore_retry_ms > model->core->now_ms)
        return;
    shard->restore_retry_ms = 0;
    shard->restore_waits = true;
    ampd_memory_try_restore(model);
}

void ampd_memory_restored(struct ampd_model *model, const struct ampd_event_restored *restored)
{
    struct ampd_shard *shard = &model->shard;
    shard->restore_token = 0;
    bool ok = restored->code == 0 && restored->state->step == shard->restore_record.step;
    if (!ok && restored->code != 0 && !is_gone(restored->code)) {
        read_later(model, restored->code);
        return;
    }
    if (!ok) {
        ampd_out_log(model->core, AMPD_LOG_ERROR, model, "checkpoint %llu cannot be used: %s; taking the one before",
                     (unsigned long long)shard->restore_record.step,
                     restored->code == 0 ? "it is of another step" : amp_strerror(restored->code));
        set_memory(shard, AMPD_MEMORY_LOST);
        answer_restore(model, false);
        return;
    }
    shard->restored_step = restored->state->step;
    shard->restored_version = restored->state->version;
    shard->restored_scaler = restored->state->scaler;
    take_states(model, restored->state);
    struct ampd_plan *plan = ampd_need(ampd_plan_new(&model->tensors, 0));
    plan->copy = (unsigned)(shard->restored_version % AMPD_COPIES);
    plan->saturate = model->spec.cast_overflow == AMPD_CAST_SATURATE;
    ampd_shard_bulk(model, AMPD_BULK_RESTORE, AMPD_JOB_CAST, plan);
    ampd_plan_unref(plan);
}

void ampd_memory_cast_done(struct ampd_model *model)
{
    set_memory(&model->shard, AMPD_MEMORY_RESTORED);
    answer_restore(model, true);
}

/* ---- EPOCH ---- */

static void fill_epoch_row(const struct ampd_model *model, const struct ampd_epoch_message *message,
                           struct ampd_step_row *row)
{
    const struct ampd_epoch_record *record = &message->record;
    const struct ampd_shard *shard = &model->shard;
    row->kind = AMPD_ROW_EPOCH;
    row->epoch = record->epoch;
    row->step = record->base_step;
    row->parent_epoch = record->parent;
    row->parent_step = message->parent_step;
    row->after = shard->scaler;
    row->scale = shard->scaler.scale;
    row->scale_id = shard->scaler.scale_id;
    row->version = shard->version;
    row->durable_step = record->base_step;
}

void ampd_epoch_persist(struct ampd_model *model, const struct ampd_epoch_message *message, enum ampd_persist_kind kind)
{
    const struct ampd_epoch_record *record = &message->record;
    struct ampd_core *core = model->core;
    struct ampd_epoch_record *epoch = ampd_need(ampd_copy(record, sizeof(*record)));
    struct ampd_step_row *row = ampd_need(calloc(1, sizeof(*row)));
    epoch->at_us = core->utc_us;
    fill_epoch_row(model, message, row);
    row->at_us = core->utc_us;
    struct ampd_persist *persist;
    (void)ampd_out_persist(model, kind, 0, &persist);
    persist->full = true;
    persist->spec = &model->spec;
    persist->epoch = ampd_out_own(core, epoch);
    persist->row = ampd_out_own(core, row);
}

/* What the memory holds from now on: the base of the epoch, or nothing. */
static void take_base(struct ampd_model *model, const struct ampd_epoch_record *record)
{
    struct ampd_shard *shard = &model->shard;
    bool restored = shard->memory == AMPD_MEMORY_RESTORED;
    AMP_ASSERT(!restored || shard->restored_step == record->base_step);
    if (restored) {
        shard->scaler = shard->restored_scaler;
        shard->version = shard->restored_version;
    } else {
        amp_scaler_init(&model->spec.scaler, &shard->scaler);
        shard->version = 0;
    }
    for (unsigned c = 0; c < AMPD_COPIES; c++)
        shard->copy_valid[c] = restored && c == shard->version % AMPD_COPIES;
    shard->copy_version[shard->version % AMPD_COPIES] = shard->version;
    shard->decided_step = record->base_step;
    shard->decided_state = AMPD_STEP_NONE;
    shard->step.state = AMPD_STEP_NONE;
    shard->apply_waits = false;
    ampd_plan_unref(shard->step.plan);
    ampd_plan_unref(shard->apply_plan);
    shard->step.plan = NULL;
    shard->apply_plan = NULL;
    free(shard->verdict);
    shard->verdict = NULL;
    memset(shard->pending, 0, model->tensors.count);
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        ampd_slot_empty(model, r);
        ampd_slot_next(model, r);
    }
}

void ampd_memory_epoch(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_shard *shard = &model->shard;
    const struct ampd_epoch_record *record = &message->u.epoch.record;
    if (record->epoch <= shard->epoch)
        return; /* stored, and answered, before */
    if (shard->memory != AMPD_MEMORY_RESTORED && shard->memory != AMPD_MEMORY_LOST)
        return;
    void_above(shard, record->base_step);
    if (shard->snapshot == AMPD_SNAPSHOT_WRITING) {
        shard->snapshot_void = true;
        ampd_out(model->core, AMPD_OUT_CUT_CANCEL, 0)->u.token = shard->snapshot_token;
    }
    take_base(model, record);
    shard->base_epoch = record->base_epoch;
    shard->base_step = record->base_step;
    shard->new_epoch = record->epoch;
    ampd_epoch_persist(model, &message->u.epoch, AMPD_PERSIST_EPOCH);
}

void ampd_memory_epoch_stored(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    shard->epoch = shard->new_epoch;
    shard->state_sequence = 0;
    shard->stalled = false;
    shard->done = false;
    shard->loaded = shard->memory == AMPD_MEMORY_RESTORED;
    set_memory(shard, shard->memory == AMPD_MEMORY_RESTORED ? AMPD_MEMORY_READY : AMPD_MEMORY_EMPTY);
    struct ampd_message *answer = ampd_bus_message(model, AMPD_MESSAGE_EPOCH_STORED, 0);
    answer->epoch = shard->epoch;
    ampd_bus_send_take(model, answer);
}

/* ---- checkpoints ---- */

static void try_cut(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    if (!shard->cut_waits || shard->snapshot != AMPD_SNAPSHOT_FREE || shard->bulk != AMPD_BULK_NONE)
        return;
    shard->cut_waits = false;
    ampd_memory_cut_begin(model);
    struct ampd_plan *plan = ampd_need(ampd_plan_new(&model->tensors, 0));
    ampd_shard_bulk(model, AMPD_BULK_SNAPSHOT, AMPD_JOB_SNAPSHOT, plan);
    ampd_plan_unref(plan);
}

void ampd_memory_cut(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_shard *shard = &model->shard;
    bool here = message->epoch == shard->epoch && shard->memory == AMPD_MEMORY_READY &&
                message->u.restore.step == shard->decided_step && shard->decided_state != AMPD_STEP_DECIDED;
    if (!here)
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

void ampd_memory_cut_begin(struct ampd_model *model)
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

void ampd_memory_cut_filled(struct ampd_model *model)
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

void ampd_memory_written(struct ampd_model *model, const struct ampd_event_part *part)
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

void ampd_memory_stored(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    AMP_ASSERT(ampd_memory_catalogue(shard, &shard->snapshot_record) == 0);
    prune(model);
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_PART_DONE, 0);
    message->epoch = shard->snapshot_epoch;
    message->u.restore.epoch = shard->snapshot_epoch;
    message->u.restore.step = shard->snapshot_step;
    message->u.restore.version = shard->snapshot_record.version;
    ampd_bus_send_take(model, message);
    snapshot_free(model);
}
