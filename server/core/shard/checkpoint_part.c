/*
 * Checkpoint parts of one shard, written in the background: training does not stop for them (docs/step-protocol.md
 * section 6).
 *
 *   FREE    -> WRITING           a part begins: the masters as they are, between apply of s and apply of s+1
 *   WRITING -> SEALING, ENDING   every block is in the file; or the masters are wanted for something else
 *   SEALING -> STORING, ENDING   the file is durable; or the epoch that it belongs to is over
 *   ENDING  -> FREE              the I/O layer has let go
 *   STORING -> FREE              the store's catalogue has it
 *
 * Nothing is copied when a part begins. The blocks go to the I/O layer in ascending order, a few at a time, straight
 * from the masters. Apply goes upwards too, and the writer is mostly ahead of it. Where apply comes to a block first,
 * its job copies masters and moments of the block to a buffer before it writes over them, and the writer reads them
 * there. There are buffers (saved_buffers) for a share of the blocks (AMPD_CHECKPOINT_MEMORY); when all are taken, the
 * apply of such a block waits until the writer has read it, or until a buffer is free. So a slow disk makes apply wait
 * for single blocks and never changes a bit.
 *
 * Each block:
 *
 *   DONE   -> WAITS                a part begins
 *   WAITS  -> SAVING, OUT, DONE    apply comes first; the writer does; the part is abandoned
 *   SAVING -> SAVED, DONE          the job is back
 *   SAVED  -> OUT, DONE            the writer reads the copy
 *   OUT    -> DONE                 it is in the file
 *
 * One part is written at a time. A checkpoint that is asked for meanwhile waits, with the user states and the scale of
 * its step, and no apply begins before its part does.
 */
#include "server/core/shard/checkpoint_part.h"

#include "base/assert.h"
#include "server/core/base/limits.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/model/states.h"
#include "server/core/model/tensors.h"
#include "server/core/shard/bulk.h"
#include "server/core/shard/catalogue.h"
#include "server/core/shard/journal.h"
#include "server/core/shard/memory.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/bus.h"

#include <stdlib.h>
#include <string.h>

static void set_part(struct ampd_shard *shard, enum ampd_part_state to)
{
    AMP_ASSERT(ampd_machine_allows(&ampd_machine_part, shard->part.state, to));
    shard->part.state = to;
}

static void set_block(struct ampd_shard *shard, uint64_t local, enum ampd_part_block_state to)
{
    AMP_ASSERT(ampd_machine_allows(&ampd_machine_part_block, shard->part.blocks[local], to));
    shard->part.blocks[local] = (uint8_t)to;
}

/* ---- life ---- */

int ampd_part_init(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    size_t count = model->tensors.count + 1; /* never zero */
    shard->part.blocks = calloc(count, 1);
    shard->part.buffers = calloc(count, sizeof *shard->part.buffers);
    shard->part.free_buffers = calloc(model->tensors.saved_buffers + (size_t)1, sizeof *shard->part.free_buffers);
    if (shard->part.blocks == NULL || shard->part.buffers == NULL || shard->part.free_buffers == NULL)
        return AMP_ENOMEM;
    for (uint64_t local = 0; local < model->tensors.count; local++)
        shard->part.buffers[local] = AMPD_NO_BUFFER;
    while (shard->part.free_count < model->tensors.saved_buffers) {
        shard->part.free_buffers[shard->part.free_count] = shard->part.free_count;
        shard->part.free_count++;
    }
    return 0;
}

static void clear_state(const struct ampd_model *model, struct ampd_checkpoint_state *state)
{
    for (uint32_t r = 0; state->user_states != NULL && r < model->spec.world_size; r++)
        free(state->user_states[r].data);
    free(state->user_states);
    *state = (struct ampd_checkpoint_state){0};
}

void ampd_part_close(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    clear_state(model, &shard->part.content);
    clear_state(model, &shard->next_part.content);
    free(shard->part.blocks);
    free(shard->part.buffers);
    free(shard->part.free_buffers);
}

void ampd_part_check(const struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    uint64_t left = 0, out = 0, saving = 0, places = 0;
    for (uint64_t local = 0; local < model->tensors.count; local++) {
        uint8_t state = shard->part.blocks[local];
        left += state != AMPD_PART_BLOCK_DONE;
        out += state == AMPD_PART_BLOCK_OUT;
        saving += state == AMPD_PART_BLOCK_SAVING;
        places += shard->part.buffers[local] != AMPD_NO_BUFFER;
    }
    AMP_ASSERT(left == shard->part.left && out == shard->part.out && saving == shard->part.saving);
    AMP_ASSERT(places + shard->part.free_count == model->tensors.saved_buffers);
    AMP_ASSERT(left == 0 || shard->part.state == AMPD_PART_WRITING || shard->part.state == AMPD_PART_ENDING);
}

/* ---- blocks ---- */

static void block_done(struct ampd_shard *shard, uint64_t local)
{
    set_block(shard, local, AMPD_PART_BLOCK_DONE);
    shard->part.left--;
    if (shard->part.buffers[local] != AMPD_NO_BUFFER)
        shard->part.free_buffers[shard->part.free_count++] = shard->part.buffers[local];
    shard->part.buffers[local] = AMPD_NO_BUFFER;
}

static void give_out(struct ampd_model *model, uint64_t local, uint64_t count, struct ampd_tensor_view tensors)
{
    struct ampd_shard *shard = model->shard;
    for (uint64_t i = 0; i < count; i++)
        set_block(shard, local + i, AMPD_PART_BLOCK_OUT);
    shard->part.out += count;
    shard->part.next = local + count;
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_PART_BLOCKS, 0);
    output->u.part_blocks = (struct ampd_part_blocks){
        .token = shard->part.token, .first = model->tensors.first + local, .count = count, .tensors = tensors};
}

/* Gives the writer the next blocks: saved ones one by one, others in batches. */
static void feed(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    while (shard->part.state == AMPD_PART_WRITING && shard->part.next < model->tensors.count &&
           shard->part.out < AMPD_PART_OUT_MAX) {
        uint64_t local = shard->part.next, count = 1;
        if (shard->part.blocks[local] == AMPD_PART_BLOCK_SAVING)
            return; /* its job is on its way */
        if (shard->part.blocks[local] == AMPD_PART_BLOCK_SAVED) {
            give_out(model, local, 1, ampd_tensors_saved(&model->tensors, shard->part.buffers[local]));
            continue;
        }
        while (count < AMPD_PART_BATCH && count < AMPD_PART_OUT_MAX - shard->part.out &&
               local + count < model->tensors.count && shard->part.blocks[local + count] == AMPD_PART_BLOCK_WAITS)
            count++;
        give_out(model, local, count, ampd_tensors_block(&model->tensors, model->tensors.first + local));
    }
}

bool ampd_part_may_overwrite(struct ampd_model *model, uint64_t local, struct ampd_job *job)
{
    struct ampd_shard *shard = model->shard;
    uint8_t state = shard->part.blocks[local];
    bool saved = shard->part.buffers[local] != AMPD_NO_BUFFER;
    AMP_ASSERT(local < model->tensors.count);
    AMP_ASSERT(state != AMPD_PART_BLOCK_SAVING);
    if (state == AMPD_PART_BLOCK_DONE || saved)
        return true;
    if (state == AMPD_PART_BLOCK_OUT || shard->part.free_count == 0)
        return false;
    job->saved = shard->part.free_buffers[--shard->part.free_count];
    job->work |= AMPD_JOB_SAVE;
    shard->part.buffers[local] = job->saved;
    set_block(shard, local, AMPD_PART_BLOCK_SAVING);
    shard->part.saving++;
    return true;
}

/* ---- the part that is written ---- */

/* The part is FREE: the next one may begin, and what waited for this one goes on. */
static void free_part(struct ampd_model *model);

/* Ends an abandoned part once neither the I/O layer nor a job touches it. */
static void try_end(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    if (shard->part.state != AMPD_PART_ENDING || shard->part.token != 0 || shard->part.saving != 0)
        return;
    for (uint64_t local = 0; shard->part.left != 0 && local < model->tensors.count; local++) {
        if (shard->part.blocks[local] != AMPD_PART_BLOCK_DONE)
            block_done(shard, local);
    }
    shard->part.out = 0;
    ampd_part_check(model);
    free_part(model);
}

static void begin(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    shard->next_part.waits = false;
    ampd_part_check(model);
    ampd_catalogue_remove_voids(model);
    AMP_ASSERT(shard->catalogue.voids_count == 0); /* a later removal might meet this part's file */
    set_part(shard, AMPD_PART_WRITING);
    clear_state(model, &shard->part.content);
    shard->part.content = shard->next_part.content;
    shard->next_part.content = (struct ampd_checkpoint_state){0};
    shard->part.epoch = shard->epoch; /* that in which it was requested: a new one ends what waits */
    shard->part.token = ++model->core->last_token;
    shard->part.blocked_ms = 0;
    shard->part.next = 0;
    shard->part.left = model->tensors.count;
    for (uint64_t local = 0; local < model->tensors.count; local++)
        set_block(shard, local, AMPD_PART_BLOCK_WAITS);
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_CUT, 0);
    output->u.cut = (struct ampd_part_order){
        .token = shard->part.token,
        .model = model->index,
        .spec = &model->spec,
        .layout = model->layout,
        .epoch = shard->part.epoch,
        .step = shard->part.content.step,
        .first = model->tensors.first,
        .count = model->tensors.count,
        .has_m = model->tensors.m != NULL,
        .has_v = model->tensors.v != NULL,
        .state = &shard->part.content,
    };
    if (shard->part.left == 0)
        set_part(shard, AMPD_PART_SEALING);
    feed(model);
}

static void try_cut(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    if (shard->next_part.waits && shard->part.state == AMPD_PART_FREE && shard->jobs.bulk == AMPD_BULK_NONE)
        begin(model);
}

/* A CUT that came while two parts were under way, if its step is still the last one. */
static void take_asked(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    if (!shard->next_part.is_asked || shard->next_part.waits)
        return;
    shard->next_part.is_asked = false;
    if (shard->memory == AMPD_MEMORY_READY && shard->next_part.asked_step == shard->decided.step &&
        shard->decided.state != AMPD_DECIDED_APPLYING)
        ampd_part_request(model);
}

static void free_part(struct ampd_model *model)
{
    set_part(model->shard, AMPD_PART_FREE);
    try_cut(model);
    take_asked(model);
    ampd_shard_try_blocked(model);
    ampd_shard_try_apply(model);
    ampd_memory_try_restore(model);
}

void ampd_part_saved(struct ampd_model *model, uint64_t local)
{
    struct ampd_shard *shard = model->shard;
    set_block(shard, local, AMPD_PART_BLOCK_SAVED);
    shard->part.saving--;
    feed(model);
    try_end(model);
}

void ampd_part_blocks(struct ampd_model *model, const struct ampd_event_part_blocks *blocks)
{
    struct ampd_shard *shard = model->shard;
    AMP_ASSERT(blocks->count <= shard->part.out);
    for (uint64_t i = 0; i < blocks->count; i++)
        block_done(shard, blocks->first - model->tensors.first + i);
    shard->part.out -= blocks->count;
    if (shard->part.state == AMPD_PART_WRITING && shard->part.left == 0) {
        ampd_part_check(model);
        set_part(shard, AMPD_PART_SEALING);
    }
    feed(model);
    ampd_shard_try_blocked(model);
}

static struct ampd_checkpoint_record part_record(const struct ampd_model *model, const struct ampd_event_part *part)
{
    const struct ampd_shard *shard = model->shard;
    struct ampd_checkpoint_record record = *part->record;
    record.epoch = shard->part.epoch;
    record.step = shard->part.content.step;
    record.version = shard->part.content.version;
    record.scale = shard->part.content.carry.scaler.scale;
    record.at_us = model->core->utc_us;
    return record;
}

void ampd_part_written(struct ampd_model *model, const struct ampd_event_part *part)
{
    struct ampd_shard *shard = model->shard;
    shard->part.token = 0;
    if (shard->part.state == AMPD_PART_ENDING) {
        struct ampd_checkpoint_record record;
        if (part->code == 0) { /* it was durable before the I/O layer could stop it: no catalogue has it */
            record = part_record(model, part);
            ampd_catalogue_add_void(shard, &record); /* its step may be written again: the file goes before that */
        }
        try_end(model);
        return;
    }
    AMP_ASSERT(part->code == 0); /* the I/O layer tries until it is written, or ends the process */
    shard->part.record = part_record(model, part);
    set_part(shard, AMPD_PART_STORING);
    struct ampd_persist *persist;
    (void)ampd_out_persist(model, AMPD_PERSIST_CHECKPOINT, 0, &persist);
    persist->checkpoint =
        ampd_out_own(model->core, ampd_need(ampd_copy(&shard->part.record, sizeof shard->part.record)));
}

/* ---- PART_DONE and CUT ---- */

static void send_part_done(struct ampd_model *model, const struct ampd_checkpoint_record *record)
{
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_PART_DONE, 0);
    message->epoch = record->epoch;
    message->u.restore.step = record->step;
    message->u.restore.ok = ampd_catalogue_knows(model, record);
    memcpy(message->u.restore.manifest, record->manifest, sizeof record->manifest);
    ampd_bus_send_take(model->core, message);
}

void ampd_part_resend(struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    for (uint32_t i = 0; i < shard->catalogue.count; i++) {
        if (shard->catalogue.records[i].epoch == shard->epoch)
            send_part_done(model, &shard->catalogue.records[i]);
    }
}

void ampd_part_send_known(struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    for (uint32_t i = shard->catalogue.count; i-- > 0;) {
        const struct ampd_checkpoint_record *record = &shard->catalogue.records[i];
        if (record->epoch != shard->epoch || !ampd_catalogue_knows(model, record))
            continue;
        send_part_done(model, record);
        return;
    }
}

void ampd_part_stored(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    bool above = shard->base_epoch == 0 || shard->part.content.step > shard->base_step;
    bool over = shard->new_epoch != 0 || shard->part.epoch != shard->epoch || shard->announced.deleting;
    bool is_void = over && above;
    if (!is_void) {
        AMP_NEED(ampd_catalogue_add(shard, &shard->part.record) == 0);
        ampd_catalogue_prune(model);
        if (!shard->restore.taken) { /* else a replay may need them */
            ampd_shard_journal_prune(model, shard->part.content.step);
            ampd_shard_journal_trim(model, shard->part.content.step);
        }
        send_part_done(model, &shard->part.record);
    } else {
        ampd_catalogue_add_void(shard, &shard->part.record);
    }
    ampd_shard_watch_blocked(model);
    if (shard->part.blocked_ms > 0)
        ampd_out_log(model->core, AMP_LOG_INFO, model, "apply waited %llu ms for checkpoint %llu to be written",
                     (unsigned long long)shard->part.blocked_ms, (unsigned long long)shard->part.content.step);
    free_part(model);
}

void ampd_part_request(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    AMP_ASSERT(!shard->next_part.waits);
    shard->next_part.waits = true;
    struct ampd_checkpoint_state *state = &shard->next_part.content;
    state->step = shard->decided.step;
    state->version = shard->decided.verdict == NULL ? shard->version : shard->decided.verdict->row.version;
    state->carry = shard->carry;
    state->optimizer = (enum amp_optimizer)model->spec.optimizer;
    if (model->spec.optimizer == AMPD_OPTIMIZER_RMSPROP)
        state->centered = model->spec.centered ? AMPD_CENTERED : AMPD_CENTERED_NOT;
    state->world_size = model->spec.world_size;
    state->user_states = ampd_need(calloc(model->spec.world_size, sizeof *state->user_states));
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        if (shard->decided.user_states[r].size == 0)
            continue;
        state->user_states[r].size = shard->decided.user_states[r].size;
        state->user_states[r].data =
            ampd_need(ampd_copy(shard->decided.user_states[r].data, shard->decided.user_states[r].size));
    }
    try_cut(model);
}

void ampd_part_begin(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_shard *shard = model->shard;
    uint64_t step = message->u.restore.step;
    const struct ampd_checkpoint_record *done = ampd_catalogue_find(shard, shard->epoch, step);
    bool here = message->epoch == shard->epoch && shard->memory == AMPD_MEMORY_READY;
    AMP_ASSERT(message->from == 0);
    if (here && done != NULL) {
        send_part_done(model, done);
        return;
    }
    bool written =
        shard->part.state != AMPD_PART_FREE && shard->part.content.step == step && shard->part.epoch == shard->epoch;
    bool waits = shard->next_part.waits && shard->next_part.content.step == step;
    if (!here || written || waits || step != shard->decided.step || shard->decided.state == AMPD_DECIDED_APPLYING)
        return;
    shard->next_part.is_asked = true;
    shard->next_part.asked_step = step;
    take_asked(model);
}

/* ---- interruptions ---- */

void ampd_part_forget(struct ampd_model *model)
{
    model->shard->next_part.waits = false;
    model->shard->next_part.is_asked = false;
    clear_state(model, &model->shard->next_part.content);
    ampd_shard_watch_blocked(model);
}

bool ampd_part_reads(const struct ampd_shard *shard)
{
    return shard->part.state == AMPD_PART_WRITING || shard->part.state == AMPD_PART_ENDING;
}

void ampd_part_end(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    ampd_part_forget(model);
    if (shard->part.state != AMPD_PART_WRITING && shard->part.state != AMPD_PART_SEALING)
        return;
    set_part(shard, AMPD_PART_ENDING);
    ampd_out(model->core, AMPD_OUT_CUT_CANCEL, 0)->u.token = shard->part.token;
}
