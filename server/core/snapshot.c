/*
 * Checkpoint parts of one shard, written in the background: training does not stop for them (STEP section 6).
 *
 *   FREE    -> WRITING           a cut: the masters as they are, between apply of s and apply of s+1
 *   WRITING -> SEALING, ENDING   every block is in the file; or the masters are wanted for something else
 *   SEALING -> STORING, ENDING   the file is durable; or the epoch that it belongs to is over
 *   ENDING  -> FREE              the host has let go
 *   STORING -> FREE              the catalogue has it
 *
 * Nothing is copied at a cut. The blocks go to the host in ascending order, a few at a time, straight from the masters; apply
 * goes upwards too, and the host mostly ahead of it. Where apply comes to a block first, its job saves masters and moments
 * of that block to a place of their own before it writes over them, and the host reads them there. There are places for
 * 5 % of the model's memory; when all are taken, the apply of such a block is held until the host has it, or until a place is
 * free. So a slow disk makes apply wait for single blocks and never changes a bit. Each block:
 *
 *   DONE   -> WAITS                a cut begins
 *   WAITS  -> SAVING, OUT, DONE    apply comes first; the host does; the part is abandoned
 *   SAVING -> SAVED, DONE          the job is back
 *   SAVED  -> OUT, DONE            the host reads the copy
 *   OUT    -> DONE                 it is in the file
 *
 * One part is written at a time. A cut that comes meanwhile waits, with the user states and the scale of its step, and no
 * apply begins before it.
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

static void set_block(struct ampd_shard *shard, uint64_t local, enum ampd_cut_block_state to)
{
    AMP_ASSERT(ampd_machine_allows(&ampd_machine_cut_block, shard->cut_blocks[local], to));
    shard->cut_blocks[local] = (uint8_t)to;
}

/* ---- life ---- */

int ampd_snapshot_init(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    size_t count = model->tensors.count + 1; /* never zero */
    shard->cut_blocks = calloc(count, 1);
    shard->cut_places = calloc(count, sizeof(*shard->cut_places));
    shard->free_places = calloc(model->tensors.saved_places + (size_t)1, sizeof(*shard->free_places));
    if (shard->cut_blocks == NULL || shard->cut_places == NULL || shard->free_places == NULL)
        return AMP_ENOMEM;
    for (uint64_t local = 0; local < model->tensors.count; local++)
        shard->cut_places[local] = AMPD_NO_PLACE;
    while (shard->free_count < model->tensors.saved_places) {
        shard->free_places[shard->free_count] = shard->free_count;
        shard->free_count++;
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

void ampd_snapshot_close(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    clear_state(model, &shard->snapshot_state);
    clear_state(model, &shard->cut_state);
    free(shard->cut_blocks);
    free(shard->cut_places);
    free(shard->free_places);
}

void ampd_snapshot_check(const struct ampd_model *model)
{
    const struct ampd_shard *shard = &model->shard;
    uint64_t left = 0, out = 0, saving = 0, places = 0;
    for (uint64_t local = 0; local < model->tensors.count; local++) {
        uint8_t state = shard->cut_blocks[local];
        left += state != AMPD_CUT_BLOCK_DONE;
        out += state == AMPD_CUT_BLOCK_OUT;
        saving += state == AMPD_CUT_BLOCK_SAVING;
        places += shard->cut_places[local] != AMPD_NO_PLACE;
    }
    AMP_ASSERT(left == shard->cut_left && out == shard->cut_out && saving == shard->cut_saving);
    AMP_ASSERT(places + shard->free_count == model->tensors.saved_places);
    AMP_ASSERT(left == 0 || shard->snapshot == AMPD_SNAPSHOT_WRITING || shard->snapshot == AMPD_SNAPSHOT_ENDING);
}

/* ---- blocks ---- */

static void block_done(struct ampd_shard *shard, uint64_t local)
{
    set_block(shard, local, AMPD_CUT_BLOCK_DONE);
    shard->cut_left--;
    if (shard->cut_places[local] != AMPD_NO_PLACE)
        shard->free_places[shard->free_count++] = shard->cut_places[local];
    shard->cut_places[local] = AMPD_NO_PLACE;
}

static void give_out(struct ampd_model *model, uint64_t local, uint64_t count, struct ampd_tensor_view tensors)
{
    struct ampd_shard *shard = &model->shard;
    for (uint64_t i = 0; i < count; i++)
        set_block(shard, local + i, AMPD_CUT_BLOCK_OUT);
    shard->cut_out += count;
    shard->cut_next = local + count;
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_CUT_BLOCKS, 0);
    output->u.cut_blocks = (struct ampd_cut_blocks){
        .token = shard->snapshot_token, .first = model->tensors.first + local, .count = count, .tensors = tensors};
}

/* Gives the host the next blocks: saved ones one by one, others in batches. */
static void feed(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    while (shard->snapshot == AMPD_SNAPSHOT_WRITING && shard->cut_next < model->tensors.count &&
           shard->cut_out < AMPD_CUT_OUT_MAX) {
        uint64_t local = shard->cut_next, count = 1;
        if (shard->cut_blocks[local] == AMPD_CUT_BLOCK_SAVING)
            return; /* its job is on its way */
        if (shard->cut_blocks[local] == AMPD_CUT_BLOCK_SAVED) {
            give_out(model, local, 1, ampd_tensors_saved(&model->tensors, shard->cut_places[local]));
            continue;
        }
        while (count < AMPD_CUT_BATCH && count < AMPD_CUT_OUT_MAX - shard->cut_out &&
               local + count < model->tensors.count && shard->cut_blocks[local + count] == AMPD_CUT_BLOCK_WAITS)
            count++;
        give_out(model, local, count, ampd_tensors_block(&model->tensors, model->tensors.first + local));
    }
}

bool ampd_snapshot_spares(struct ampd_model *model, uint64_t local, struct ampd_job *job)
{
    struct ampd_shard *shard = &model->shard;
    uint8_t state = shard->cut_blocks[local];
    bool saved = shard->cut_places[local] != AMPD_NO_PLACE;
    AMP_ASSERT(state != AMPD_CUT_BLOCK_SAVING);
    if (state == AMPD_CUT_BLOCK_DONE || saved)
        return true;
    if (state == AMPD_CUT_BLOCK_OUT || shard->free_count == 0)
        return false;
    job->saved = shard->free_places[--shard->free_count];
    job->work |= AMPD_JOB_SAVE;
    shard->cut_places[local] = job->saved;
    set_block(shard, local, AMPD_CUT_BLOCK_SAVING);
    shard->cut_saving++;
    return true;
}

/* ---- the part that is written ---- */

/* The next part may begin: what waited for it goes on. */
static void snapshot_free(struct ampd_model *model);

/* Lets an abandoned part go once neither the host nor a job touches it. */
static void try_end(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    if (shard->snapshot != AMPD_SNAPSHOT_ENDING || !shard->part_over || shard->cut_saving != 0)
        return;
    for (uint64_t local = 0; shard->cut_left != 0 && local < model->tensors.count; local++) {
        if (shard->cut_blocks[local] != AMPD_CUT_BLOCK_DONE)
            block_done(shard, local);
    }
    shard->cut_out = 0;
    ampd_snapshot_check(model);
    snapshot_free(model);
}

static void begin(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    shard->cut_waits = false;
    ampd_snapshot_check(model);
    set_snapshot(shard, AMPD_SNAPSHOT_WRITING);
    clear_state(model, &shard->snapshot_state);
    shard->snapshot_state = shard->cut_state;
    shard->cut_state = (struct ampd_checkpoint_state){0};
    shard->snapshot_void = false;
    shard->part_over = false;
    shard->snapshot_epoch = shard->cut_epoch;
    shard->snapshot_step = shard->snapshot_state.step;
    shard->snapshot_token = ++model->core->last_token;
    shard->cut_held_ms = 0;
    shard->cut_next = 0;
    shard->cut_left = model->tensors.count;
    for (uint64_t local = 0; local < model->tensors.count; local++)
        set_block(shard, local, AMPD_CUT_BLOCK_WAITS);
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_CUT, 0);
    output->u.cut = (struct ampd_cut_order){
        .token = shard->snapshot_token,
        .model = model->index,
        .spec = &model->spec,
        .layout = model->layout,
        .epoch = shard->snapshot_epoch,
        .step = shard->snapshot_step,
        .first = model->tensors.first,
        .count = model->tensors.count,
        .has_m = model->tensors.m != NULL,
        .has_v = model->tensors.v != NULL,
        .state = &shard->snapshot_state,
    };
    if (shard->cut_left == 0)
        set_snapshot(shard, AMPD_SNAPSHOT_SEALING);
    feed(model);
}

static void try_cut(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    if (shard->cut_waits && shard->snapshot == AMPD_SNAPSHOT_FREE && shard->bulk == AMPD_BULK_NONE)
        begin(model);
}

/* A CUT that came while two parts were under way, if its step is still the last one. */
static void take_asked(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    if (!shard->cut_is_asked || shard->cut_waits)
        return;
    shard->cut_is_asked = false;
    if (shard->memory == AMPD_MEMORY_READY && shard->cut_asked == shard->decided_step &&
        shard->decided_state != AMPD_STEP_DECIDED)
        ampd_snapshot_request(model);
}

static void snapshot_free(struct ampd_model *model)
{
    set_snapshot(&model->shard, AMPD_SNAPSHOT_FREE);
    try_cut(model);
    take_asked(model);
    ampd_shard_try_held(model);
    ampd_shard_try_apply(model);
    ampd_memory_try_restore(model);
}

void ampd_snapshot_saved(struct ampd_model *model, uint64_t local)
{
    struct ampd_shard *shard = &model->shard;
    set_block(shard, local, AMPD_CUT_BLOCK_SAVED);
    shard->cut_saving--;
    feed(model);
    try_end(model);
}

void ampd_snapshot_blocks(struct ampd_model *model, const struct ampd_event_part_blocks *blocks)
{
    struct ampd_shard *shard = &model->shard;
    AMP_ASSERT(blocks->count <= shard->cut_out);
    for (uint64_t i = 0; i < blocks->count; i++)
        block_done(shard, blocks->first - model->tensors.first + i);
    shard->cut_out -= blocks->count;
    if (shard->snapshot == AMPD_SNAPSHOT_WRITING && shard->cut_left == 0) {
        ampd_snapshot_check(model);
        set_snapshot(shard, AMPD_SNAPSHOT_SEALING);
    }
    feed(model);
    ampd_shard_try_held(model);
}

static struct ampd_checkpoint_record part_record(const struct ampd_model *model, const struct ampd_event_part *part)
{
    const struct ampd_shard *shard = &model->shard;
    struct ampd_checkpoint_record record = *part->record;
    record.epoch = shard->snapshot_epoch;
    record.step = shard->snapshot_step;
    record.version = shard->snapshot_state.version;
    record.scale = shard->snapshot_state.scaler.scale;
    record.at_us = model->core->utc_us;
    return record;
}

void ampd_snapshot_written(struct ampd_model *model, const struct ampd_event_part *part)
{
    struct ampd_shard *shard = &model->shard;
    shard->snapshot_token = 0;
    if (shard->snapshot == AMPD_SNAPSHOT_ENDING) {
        struct ampd_checkpoint_record record;
        if (part->code == 0) { /* done before the host heard of it: a file that nobody will ask for */
            record = part_record(model, part);
            ampd_catalogue_drop(model, &record);
        }
        shard->part_over = true;
        try_end(model);
        return;
    }
    AMP_ASSERT(part->code == 0); /* the host tries until it is written, or ends */
    shard->snapshot_record = part_record(model, part);
    set_snapshot(shard, AMPD_SNAPSHOT_STORING);
    if (shard->cut_held_ms > 0)
        ampd_out_log(model->core, AMPD_LOG_INFO, model, "apply waited %llu ms for checkpoint %llu to be written",
                     (unsigned long long)shard->cut_held_ms, (unsigned long long)shard->snapshot_step);
    struct ampd_persist *persist;
    (void)ampd_out_persist(model, AMPD_PERSIST_CHECKPOINT, 0, &persist);
    persist->checkpoint =
        ampd_out_own(model->core, ampd_need(ampd_copy(&shard->snapshot_record, sizeof(shard->snapshot_record))));
}

/* ---- the coordinator's side of it ---- */

static void tell_part(struct ampd_model *model, const struct ampd_checkpoint_record *record)
{
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_PART_DONE, 0);
    message->epoch = record->epoch;
    message->u.restore.epoch = record->epoch;
    message->u.restore.step = record->step;
    message->u.restore.version = record->version;
    message->u.restore.ok = ampd_catalogue_knows(model, record);
    memcpy(message->u.restore.manifest, record->manifest, sizeof(record->manifest));
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

void ampd_snapshot_tell_known(struct ampd_model *model)
{
    const struct ampd_shard *shard = &model->shard;
    for (uint32_t i = shard->checkpoints_count; i-- > 0;) {
        const struct ampd_checkpoint_record *record = &shard->checkpoints[i];
        if (record->epoch != shard->epoch || !ampd_catalogue_knows(model, record))
            continue;
        tell_part(model, record);
        return;
    }
}

void ampd_snapshot_stored(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    bool above = shard->base_epoch == 0 || shard->snapshot_step > shard->base_step;
    bool is_void = shard->snapshot_void && above;
    if (!is_void) {
        AMP_NEED(ampd_catalogue_add(shard, &shard->snapshot_record) == 0);
        ampd_catalogue_prune(model);
        if (!shard->taken) { /* else a replay may need them */
            ampd_sums_prune(model, shard->snapshot_step);
            ampd_sums_trim(model, shard->snapshot_step);
        }
        tell_part(model, &shard->snapshot_record);
    }
    snapshot_free(model);
}

void ampd_snapshot_request(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    AMP_ASSERT(!shard->cut_waits);
    shard->cut_waits = true;
    shard->cut_epoch = shard->epoch;
    struct ampd_checkpoint_state *state = &shard->cut_state;
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
    try_cut(model);
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
    bool written =
        shard->snapshot != AMPD_SNAPSHOT_FREE && shard->snapshot_step == step && shard->snapshot_epoch == shard->epoch;
    bool waits = shard->cut_waits && shard->cut_state.step == step;
    if (!here || written || waits || step != shard->decided_step || shard->decided_state == AMPD_STEP_DECIDED)
        return;
    shard->cut_is_asked = true;
    shard->cut_asked = step;
    take_asked(model);
}

/* ---- interruptions ---- */

void ampd_snapshot_forget(struct ampd_model *model)
{
    model->shard.cut_waits = false;
    model->shard.cut_is_asked = false;
    clear_state(model, &model->shard.cut_state);
}

bool ampd_snapshot_reads(const struct ampd_shard *shard)
{
    return shard->snapshot == AMPD_SNAPSHOT_WRITING || shard->snapshot == AMPD_SNAPSHOT_ENDING;
}

void ampd_snapshot_end(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    ampd_snapshot_forget(model);
    if (shard->snapshot != AMPD_SNAPSHOT_WRITING && shard->snapshot != AMPD_SNAPSHOT_SEALING)
        return;
    set_snapshot(shard, AMPD_SNAPSHOT_ENDING);
    ampd_out(model->core, AMPD_OUT_CUT_CANCEL, 0)->u.token = shard->snapshot_token;
}

void ampd_snapshot_void(struct ampd_model *model)
{
    ampd_snapshot_end(model);
    model->shard.snapshot_void = true;
}
