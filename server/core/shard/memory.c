/*
 * A shard's memory of a model: lost at a start, and brought back from a checkpoint (docs/step-protocol.md section 6).
 * How checkpoints of it are written is in checkpoint_part.c; which of them are kept, in catalogue.c.
 *
 *   LOST      -> RESTORING, EMPTY            RESTORE came; or a new epoch without a checkpoint
 *   RESTORING -> RESTORED, REPLAYING, LOST   in memory and verified; or damaged, or there is no checkpoint
 *   REPLAYING -> READY, LOST, RESTORING      all steps of the journal are applied (journal.c); or one is missing
 *   RESTORED  -> READY, RESTORING            the new epoch is stored; or another checkpoint is asked for
 *   EMPTY     -> LOADING, RESTORING          a loader has the grant
 *   LOADING   -> READY, RESTORING            every block is in
 *   READY     -> RESTORING
 *
 * RESTORE is sent to all shards of a model, also to those that have lost nothing: what they were doing ends first. With
 * `durability: step` nothing is lost by that until a new epoch is stored: if a SYNC comes before, the memory is brought
 * back from checkpoint and journal, as after a start. So a rollback that comes to nothing costs no step.
 */
#include "server/core/shard/memory.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/model/states.h"
#include "server/core/model/tensors.h"
#include "server/core/shard/bulk.h"
#include "server/core/shard/catalogue.h"
#include "server/core/shard/checkpoint_part.h"
#include "server/core/shard/journal.h"
#include "server/core/shard/load.h"
#include "server/core/shard/shard.h"
#include "server/core/shard/sync_answer.h"
#include "server/core/wire/bus.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Time between two tries to read a checkpoint: long enough for each to write a line of the log. */
#ifndef RESTORE_RETRY_MS /* tests/faults makes it shorter */
#define RESTORE_RETRY_MS 5000
#endif

void ampd_memory_set(struct ampd_shard *shard, enum ampd_memory_state to)
{
    AMP_ASSERT(ampd_machine_allows(&ampd_machine_memory, shard->memory, to));
    shard->memory = to;
}

/* ---- RESTORE ---- */

static void answer_restore(struct ampd_model *model, bool ok)
{
    const struct ampd_shard *shard = model->shard;
    struct ampd_message *answer = ampd_bus_message(model, AMPD_MESSAGE_RESTORED, 0);
    answer->round = shard->restore.round;
    answer->u.restore.epoch = shard->restore.record.epoch;
    answer->u.restore.step = shard->restore.record.step;
    answer->u.restore.ok = ok;
    answer->u.restore.waits = !ok && !shard->restore.refused && shard->restore.retry_ms != 0;
    answer->u.restore.absent = shard->restore.refused || (answer->u.restore.waits && shard->restore.missing);
    answer->u.restore.version = shard->restore.version;
    answer->u.restore.carry = shard->restore.carry;
    ampd_bus_send_take(model->core, answer);
}

/*
 * Answers that the checkpoint is in memory. The epoch that follows voids all checkpoints above it, so that this store
 * must know all parts of it before.
 */
static void answer_restored(struct ampd_model *model)
{
    if (model->shard->catalogue.parts_storing == 0) /* else catalogue.c answers when they are stored */
        answer_restore(model, true);
}

/* Ends every stream, so that the tensors can be written over. */
static void end_streams(struct ampd_model *model)
{
    struct amp_list *lists[] = {&model->pushes, &model->pulls};
    for (unsigned l = 0; l < sizeof lists / sizeof lists[0]; l++) {
        AMP_LIST_EACH(it, next, lists[l])
        {
            ampd_call_end(AMP_CONTAINER(it, struct ampd_call, node), AMP_EUNAVAILABLE, "RECOVERING",
                          "%s goes back to a checkpoint; try again in a moment", model->spec.name);
        }
    }
    ampd_load_void(model);
}

/* Whether a RESTORE or EPOCH belongs to an earlier SYNC than the newest that has come. */
static bool is_stale(const struct ampd_model *model, const struct ampd_message *message)
{
    return message->round < model->core->sync.seen;
}

static bool same_checkpoint(const struct ampd_checkpoint_record *a, const struct ampd_restore *b)
{
    return a->epoch == b->epoch && a->step == b->step;
}

void ampd_memory_restore(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_shard *shard = model->shard;
    const struct ampd_restore *restore = &message->u.restore;
    AMP_ASSERT(message->from == 0);
    AMP_ASSERT(!shard->announced.deleting); /* process/receive.c: such a model gets no orders */
    if (is_stale(model, message))
        return;
    if (message->round == shard->restore.round && same_checkpoint(&shard->restore.record, restore)) {
        ampd_memory_resend(model); /* repeated */
        return;
    }
    shard->restore.round = message->round;
    ampd_catalogue_hold(shard, restore);
    const struct ampd_checkpoint_record *record = ampd_catalogue_find(shard, restore->epoch, restore->step);
    shard->restore.record = (struct ampd_checkpoint_record){.epoch = restore->epoch, .step = restore->step};
    if (record != NULL)
        shard->restore.record = *record;
    if (restore->epoch == 0)
        shard->load.base = (struct ampd_load_base){restore->step, restore->version, restore->carry};
    shard->restore.refused = record == NULL && restore->epoch != 0;
    if (shard->restore.refused) { /* the memory stays as it is */
        answer_restore(model, false);
        return;
    }
    bool whole = shard->memory == AMPD_MEMORY_READY || shard->journal.replay.on;
    if (whole && model->spec.durability == AMPD_DURABILITY_STEP && shard->catalogue.count > 0)
        shard->restore.taken = true;
    if (shard->memory != AMPD_MEMORY_RESTORING)
        ampd_memory_set(shard, AMPD_MEMORY_RESTORING);
    shard->restore.waits = true;
    shard->restore.retry_ms = 0;
    shard->restore.unread[0] = 0;
    ampd_shard_journal_stop(model);
    ampd_shard_forget(model);
    ampd_part_end(model);
    end_streams(model);
    ampd_memory_try_restore(model);
}

/*
 * Workers that have the copies mapped may compute on one of them: if the memory is given back, their step goes on, and
 * what they push counts. So the copies are not written over, but left to them. 0; AMP_ENOMEM.
 */
static int leave_copies(struct ampd_model *model)
{
    bool *valid = model->shard->apply.copy_valid;
    if (!model->shard->restore.taken || (!valid[0] && !valid[1]))
        return 0;
    int rc = ampd_tensors_renew_copies(&model->tensors);
    if (rc == 0)
        valid[0] = valid[1] = false;
    return rc;
}

void ampd_memory_try_restore(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    if (!shard->restore.waits || shard->restore.token != 0 || shard->jobs.out != 0 || !amp_list_empty(&model->pushes) ||
        !amp_list_empty(&model->pulls) || ampd_load_streams(model) || ampd_part_reads(shard))
        return;
    if (shard->journal.token != 0 || shard->journal.replay.token != 0)
        return; /* g is being written to the journal, or read */
    shard->restore.waits = false;
    if (shard->restore.record.epoch == 0) {
        ampd_memory_set(shard, AMPD_MEMORY_LOST);
        answer_restore(model, true);
        return;
    }
    if (leave_copies(model) != 0) {
        shard->restore.missing = false;
        ampd_memory_read_later(model,
                               "there is no memory to restore %s in, beside what its workers have mapped; it is "
                               "restored as soon as there is",
                               model->spec.name);
        return;
    }
    shard->restore.token = ++model->core->last_token;
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_RESTORE, 0);
    output->u.restore = (struct ampd_restore_order){
        .token = shard->restore.token,
        .model = model->index,
        .spec = &model->spec,
        .layout = model->layout,
        .checkpoint = &shard->restore.record,
        .first = model->tensors.first,
        .count = model->tensors.count,
        .tensors = {model->tensors.masters, model->tensors.m, model->tensors.v},
    };
}

/* One copy is for Join to give out, the other for the next checkpoint. */
void ampd_memory_take_user_state(struct ampd_model *model, uint32_t rank, const uint8_t *data, uint32_t size)
{
    struct ampd_shard *shard = model->shard;
    struct ampd_bytes *both[] = {&shard->decided.user_states[rank], &shard->decided.base_user_states[rank]};
    AMP_ASSERT(rank < model->spec.world_size);
    for (unsigned i = 0; i < 2; i++) {
        free(both[i]->data);
        *both[i] = (struct ampd_bytes){0};
        if (size == 0)
            continue;
        both[i]->size = size;
        both[i]->data = ampd_need(ampd_copy(data, size));
    }
}

static void take_states(struct ampd_model *model, const struct ampd_checkpoint_state *state)
{
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        bool given = state->user_states != NULL && r < state->world_size;
        ampd_memory_take_user_state(model, r, given ? state->user_states[r].data : NULL,
                                    given ? state->user_states[r].size : 0);
    }
}

void ampd_memory_read_later(struct ampd_model *model, const char *format, ...)
{
    struct ampd_shard *shard = model->shard;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(shard->restore.unread, sizeof shard->restore.unread, format, arguments);
    va_end(arguments);
    ampd_out_log(model->core, AMP_LOG_ERROR, model, "%s", shard->restore.unread);
    shard->restore.retry_ms = model->core->now_ms + RESTORE_RETRY_MS;
    if (shard->journal.replay.on)
        ampd_sync_try_answer(model->core);
    else
        answer_restore(model, false);
}

/*
 * A durable checkpoint is given up only if its file is there and damaged. If the file is not there, its directory may
 * not be mounted; if it cannot be read, it may be readable later. Until it can be read the model stays RECOVERING, and
 * the other models go on.
 */
static void read_later(struct ampd_model *model, int code)
{
    struct ampd_shard *shard = model->shard;
    shard->restore.missing = code == AMP_ENOTFOUND;
    ampd_memory_read_later(model,
                           "checkpoint %llu of %s %s; it is read as soon as it can be: is the checkpoint directory "
                           "mounted (here it is %s)? Only if its file is lost for good, put an empty one in its place: "
                           "then the checkpoint before it is used",
                           (unsigned long long)shard->restore.record.step, model->spec.name,
                           shard->restore.missing ? "is not there"
                           : code == AMP_EDENIED  ? "may not be read by ampd's user"
                                                  : "cannot be read now",
                           ampd_checkpoint_dir(model->core));
}

void ampd_memory_tick(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    if (shard->restore.retry_ms == 0 || shard->restore.retry_ms > model->core->now_ms)
        return;
    shard->restore.retry_ms = 0;
    if (shard->memory == AMPD_MEMORY_REPLAYING) {
        ampd_shard_journal_read_on(model);
        return;
    }
    shard->restore.waits = true;
    ampd_memory_try_restore(model);
}

void ampd_memory_restored(struct ampd_model *model, const struct ampd_event_restored *restored)
{
    struct ampd_shard *shard = model->shard;
    shard->restore.token = 0;
    if (shard->announced.deleting)
        return;
    if (shard->restore.waits) { /* another checkpoint has been asked for meanwhile */
        ampd_memory_try_restore(model);
        return;
    }
    bool ok = restored->code == 0 && restored->state->step == shard->restore.record.step;
    if (!ok && restored->code != 0 && restored->code != AMP_EDATALOSS) {
        read_later(model, restored->code);
        return;
    }
    shard->restore.unread[0] = 0;
    if (!ok) {
        ampd_out_log(model->core, AMP_LOG_ERROR, model,
                     "checkpoint %llu of epoch %llu in %s cannot be used: %s; the one before is tried",
                     (unsigned long long)shard->restore.record.step, (unsigned long long)shard->restore.record.epoch,
                     ampd_checkpoint_dir(model->core),
                     restored->code == 0 ? "it is of another step" : amp_strerror(restored->code));
        ampd_memory_set(shard, AMPD_MEMORY_LOST);
        if (shard->journal.replay.on)
            ampd_shard_journal_give_up(model, "its checkpoint is lost");
        else
            answer_restore(model, false);
        return;
    }
    shard->restore.step = restored->state->step;
    shard->restore.version = restored->state->version;
    shard->restore.carry = restored->state->carry;
    take_states(model, restored->state);
    struct ampd_plan *plan = ampd_need(ampd_plan_new(&model->tensors, 0));
    ampd_plan_copy(plan, (unsigned)(shard->restore.version % AMPD_COPIES), true);
    plan->saturate = model->spec.cast_overflow == AMPD_CAST_SATURATE;
    ampd_shard_bulk(model, AMPD_BULK_RESTORE, AMPD_JOB_CAST, plan);
    ampd_plan_unref(plan);
}

void ampd_memory_cast_done(struct ampd_model *model)
{
    if (model->shard->restore.waits)
        return; /* another checkpoint has been asked for: it is read when the last job is back */
    if (model->shard->journal.replay.on) {
        ampd_memory_set(model->shard, AMPD_MEMORY_REPLAYING);
        ampd_shard_journal_restored(model);
        return;
    }
    ampd_memory_set(model->shard, AMPD_MEMORY_RESTORED);
    answer_restored(model);
}

/* ---- durability: step ---- */

void ampd_memory_give_back(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    if (!shard->restore.taken || shard->journal.replay.on || shard->new_epoch != 0 || shard->announced.deleting ||
        shard->catalogue.count == 0)
        return;
    shard->journal.replay.on = true;
    shard->restore.refused = false;
    shard->restore.retry_ms = 0;
    ampd_memory_begin_replay(model);
}

void ampd_memory_begin_replay(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    if (shard->memory != AMPD_MEMORY_RESTORING)
        ampd_memory_set(shard, AMPD_MEMORY_RESTORING);
    shard->restore.record = shard->catalogue.records[shard->catalogue.count - 1];
    shard->restore.waits = true;
    ampd_memory_try_restore(model);
}

void ampd_memory_end_replay(struct ampd_model *model, bool ok)
{
    ampd_memory_set(model->shard, ok ? AMPD_MEMORY_READY : AMPD_MEMORY_LOST);
    model->shard->restore.taken = false;
}

/* ---- EPOCH ---- */

static void fill_epoch_row(const struct ampd_model *model, const struct ampd_epoch_message *message,
                           struct ampd_step_row *row)
{
    const struct ampd_epoch_record *record = &message->record;
    const struct ampd_shard *shard = model->shard;
    row->kind = AMPD_ROW_EPOCH;
    row->epoch = record->epoch;
    row->step = record->base_step;
    row->parent_epoch = record->parent;
    row->parent_step = message->parent_step;
    row->after = shard->carry;
    row->scale = shard->carry.scaler.scale;
    row->scale_id = shard->carry.scaler.scale_id;
    row->version = shard->version;
    row->durable_step = record->base_step;
    row->note = message->note;
}

static void persist_epoch(struct ampd_model *model, const struct ampd_epoch_message *message)
{
    const struct ampd_epoch_record *record = &message->record;
    struct ampd_core *core = model->core;
    struct ampd_epoch_record *epoch = ampd_need(ampd_copy(record, sizeof *record));
    struct ampd_step_row *row = ampd_need(calloc(1, sizeof *row));
    epoch->at_us = core->utc_us;
    fill_epoch_row(model, message, row);
    row->at_us = core->utc_us;
    if (model->shard->epoch == 0)
        model->created_us = message->created_us; /* shard 0's, so that all shards have the same */
    struct ampd_persist *persist;
    (void)ampd_out_persist(model, model->shard->epoch != 0 ? AMPD_PERSIST_EPOCH : AMPD_PERSIST_MODEL, 0, &persist);
    persist->at_us = model->created_us;
    persist->spec = &model->spec;
    persist->epoch = ampd_out_own(core, epoch);
    persist->row = ampd_out_own(core, row);
}

/* Takes what the memory holds as the epoch's base: the restored checkpoint, or nothing. */
static void take_base(struct ampd_model *model, const struct ampd_epoch_record *record)
{
    struct ampd_shard *shard = model->shard;
    bool restored = shard->memory == AMPD_MEMORY_RESTORED;
    AMP_ASSERT(!restored || shard->restore.step == record->base_step);
    if (restored) {
        shard->carry = shard->restore.carry;
        shard->version = shard->restore.version;
    } else {
        shard->carry = shard->load.base.carry;
        shard->version = shard->load.base.version;
    }
    for (unsigned c = 0; c < AMPD_COPIES; c++)
        shard->apply.copy_valid[c] = restored && c == shard->version % AMPD_COPIES;
    shard->decided.step = record->base_step;
    shard->restore.taken = false;
    ampd_shard_journal_clear(model);
    ampd_shard_begin_anew(model);
}

/* Whether the epoch is to be stored: it is newer, of the newest SYNC, and goes on from what is in memory. */
static bool takes_epoch(const struct ampd_model *model, const struct ampd_message *message)
{
    const struct ampd_shard *shard = model->shard;
    const struct ampd_epoch_record *record = &message->u.epoch.record;
    if (is_stale(model, message) || record->epoch <= shard->epoch || shard->new_epoch != 0)
        return false;
    if (shard->memory == AMPD_MEMORY_RESTORED && shard->restore.refused)
        return false; /* what is in memory is not the checkpoint that was asked for last */
    if (shard->memory == AMPD_MEMORY_RESTORED)
        return shard->restore.step == record->base_step && shard->restore.record.epoch == record->base_epoch;
    return shard->memory == AMPD_MEMORY_LOST && record->base_epoch == 0 && record->base_step == shard->load.base.step;
}

void ampd_memory_epoch(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_shard *shard = model->shard;
    const struct ampd_epoch_record *record = &message->u.epoch.record;
    AMP_ASSERT(message->from == 0);
    if (!takes_epoch(model, message)) {
        if (record->epoch == shard->epoch)
            ampd_memory_resend(model); /* repeated */
        return;
    }
    ampd_catalogue_void(shard, record);
    ampd_part_end(model);
    take_base(model, record);
    shard->base_epoch = record->base_epoch;
    shard->base_step = record->base_step;
    shard->new_epoch = record->epoch;
    persist_epoch(model, &message->u.epoch);
}

static void answer_epoch(struct ampd_model *model)
{
    struct ampd_message *answer = ampd_bus_message(model, AMPD_MESSAGE_EPOCH_STORED, 0);
    answer->epoch = model->shard->epoch;
    ampd_bus_send_take(model->core, answer);
}

void ampd_memory_epoch_stored(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    shard->epoch = shard->new_epoch;
    shard->new_epoch = 0;
    shard->restore.refused = false;
    shard->catalogue.found_durable_step = shard->base_epoch != 0 ? shard->base_step : 0;
    shard->announced.sequence = 0;
    shard->announced.state = shard->memory == AMPD_MEMORY_RESTORED ? AMPD_MODEL_WAITING : AMPD_MODEL_CREATED;
    shard->announced.frozen = false;
    shard->announced.loaded_is_confirmed = false;
    shard->announced.troubled = false;
    shard->load.loader = 0; /* its stream ended before the epoch began */
    shard->load.granted = 0;
    ampd_memory_set(shard, shard->memory == AMPD_MEMORY_RESTORED ? AMPD_MEMORY_READY : AMPD_MEMORY_EMPTY);
    ampd_shard_journal_prune(model, shard->base_step);
    if (model->core->config.shard == 0)
        ampd_local_epoch_began(model, shard->epoch, shard->base_epoch, shard->base_step);
    answer_epoch(model);
}

void ampd_memory_resend(struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    bool lost = shard->memory == AMPD_MEMORY_LOST && shard->restore.round != 0 && shard->restore.record.epoch == 0;
    bool unread = shard->memory == AMPD_MEMORY_RESTORING && !shard->journal.replay.on && shard->restore.retry_ms != 0;
    if (shard->restore.refused || unread)
        answer_restore(model, false);
    else if (shard->memory == AMPD_MEMORY_RESTORED)
        answer_restored(model);
    else if (lost)
        answer_restore(model, true);
    else if (shard->memory == AMPD_MEMORY_LOST && shard->restore.round != 0)
        answer_restore(model, false);
    else if (shard->memory >= AMPD_MEMORY_EMPTY && shard->new_epoch == 0)
        answer_epoch(model);
}
