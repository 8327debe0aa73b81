/*
 * SYNC: how a coordinator that starts finds out what the shards hold, and where the model goes on (STEP section 6).
 *
 * With `durability: checkpoint` every restart is lost memory: a new epoch, 1 + the highest that any shard has stored,
 * from the newest checkpoint that all hold. It is read and verified into memory before the epoch is stored; a damaged
 * one is passed over for the one before. Without any, the model is CREATED again and waits for Load.
 */
#include "base/assert.h"
#include "server/core/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t all_shards(const struct ampd_model *model)
{
    uint32_t shards = AMPD_COUNT(model->core);
    return shards == 64 ? UINT64_MAX : ((uint64_t)1 << shards) - 1;
}

void ampd_sync_start(struct ampd_model *model)
{
    model->coord.answered = 0;
    ampd_bus_send_all_take(model, ampd_bus_message(model, AMPD_MESSAGE_SYNC, 0));
}

/* Whether shard k holds the checkpoint. */
static bool holds(const struct ampd_coord *coord, uint32_t k, uint64_t epoch, uint64_t step)
{
    const struct ampd_sync_state *sync = &coord->synced[k]->u.sync;
    for (uint32_t i = 0; i < sync->checkpoints_count; i++) {
        if (sync->checkpoints[i].epoch == epoch && sync->checkpoints[i].step == step)
            return true;
    }
    return false;
}

/* Takes the newest checkpoint that all hold out of shard 0's answer; false if there is none. */
static bool take_newest(struct ampd_model *model, struct ampd_checkpoint_record *newest)
{
    struct ampd_coord *coord = &model->coord;
    struct ampd_sync_state *mine = &coord->synced[0]->u.sync;
    while (mine->checkpoints_count > 0) {
        *newest = mine->checkpoints[--mine->checkpoints_count];
        bool all = true;
        for (uint32_t k = 1; k < AMPD_COUNT(model->core); k++)
            all = all && holds(coord, k, newest->epoch, newest->step);
        if (all)
            return true;
    }
    return false;
}

static void store_epoch(struct ampd_model *model)
{
    struct ampd_coord *coord = &model->coord;
    ampd_coord_set(model, AMPD_COORD_STORING);
    coord->answered = 0;
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_EPOCH, 0);
    message->u.epoch.parent_step = coord->parent_step;
    struct ampd_epoch_record *record = &message->u.epoch.record;
    record->parent = coord->epoch;
    record->epoch = coord->epoch + 1;
    record->base_epoch = coord->base_epoch;
    record->base_step = coord->base_step;
    (void)snprintf(record->reason, sizeof(record->reason), "RESTART");
    ampd_bus_send_all_take(model, message);
}

static void restore_next(struct ampd_model *model)
{
    struct ampd_coord *coord = &model->coord;
    struct ampd_checkpoint_record newest;
    coord->answered = 0;
    coord->restore_failed = false;
    if (!take_newest(model, &newest)) {
        coord->base_epoch = 0;
        coord->base_step = 0;
        coord->version = 0;
        coord->has_checkpoint = false;
        amp_scaler_init(&model->spec.scaler, &coord->scaler);
        store_epoch(model);
        return;
    }
    ampd_coord_set(model, AMPD_COORD_RESTORING);
    coord->base_epoch = newest.epoch;
    coord->base_step = newest.step;
    coord->has_checkpoint = true;
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_RESTORE, 0);
    message->u.restore.epoch = newest.epoch;
    message->u.restore.step = newest.step;
    ampd_bus_send_all_take(model, message);
}

void ampd_sync_answer(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_coord *coord = &model->coord;
    if (coord->state != AMPD_COORD_SYNCING)
        return;
    ampd_message_free(coord->synced[message->from]);
    coord->synced[message->from] = ampd_need(ampd_message_copy(message));
    coord->answered |= (uint64_t)1 << message->from;
    if (coord->answered != all_shards(model))
        return;
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++) {
        if (coord->synced[k]->u.sync.highest_epoch > coord->epoch)
            coord->epoch = coord->synced[k]->u.sync.highest_epoch;
    }
    restore_next(model);
}

void ampd_sync_restored(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_coord *coord = &model->coord;
    const struct ampd_restore *restore = &message->u.restore;
    if (coord->state != AMPD_COORD_RESTORING || restore->epoch != coord->base_epoch ||
        restore->step != coord->base_step)
        return;
    coord->restore_failed = coord->restore_failed || !restore->ok;
    if (message->from == 0) {
        coord->version = restore->version;
        coord->scaler = restore->scaler;
    }
    coord->answered |= (uint64_t)1 << message->from;
    if (coord->answered != all_shards(model))
        return;
    if (coord->restore_failed)
        restore_next(model);
    else
        store_epoch(model);
}

void ampd_sync_epoch_stored(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_coord *coord = &model->coord;
    if (coord->state != AMPD_COORD_STORING || message->epoch != coord->epoch + 1)
        return;
    coord->answered |= (uint64_t)1 << message->from;
    if (coord->answered != all_shards(model))
        return;
    coord->epoch++;
    coord->decided = coord->base_step;
    coord->durable_step = coord->base_step;
    coord->state_sequence = 0;
    coord->unstable = coord->scaler.consecutive_overflows >= model->spec.max_consecutive_overflows;
    bool done = model->spec.max_steps != 0 && coord->decided >= model->spec.max_steps;
    if (!coord->has_checkpoint)
        ampd_coord_set(model, AMPD_COORD_CREATED);
    else
        ampd_coord_set(model, done ? AMPD_COORD_DONE : AMPD_COORD_WAITING);
    if (coord->has_checkpoint)
        ampd_out_log(model->core, AMPD_LOG_INFO, model, "epoch %llu begins from the checkpoint of step %llu",
                     (unsigned long long)coord->epoch, (unsigned long long)coord->base_step);
    else
        ampd_out_log(model->core, AMPD_LOG_WARN, model, "epoch %llu begins without a checkpoint: load the model again",
                     (unsigned long long)coord->epoch);
    ampd_coord_tell_state(model);
}
