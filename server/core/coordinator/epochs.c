/*
 * How an epoch begins: it gets a number, and all shards store it (docs/step-protocol.md section 6). Which checkpoint it
 * goes on from is decided before (sync.c, rollback.c).
 */
#include "server/core/coordinator/epochs.h"

#include "base/assert.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/coordinator/checkpoints.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/coord_load.h"
#include "server/core/coordinator/rollback.h"
#include "server/core/coordinator/workers.h"
#include "server/core/model/spec.h"
#include "server/core/wire/bus.h"

#include <stdio.h>
#include <string.h>

void ampd_epochs_create(struct ampd_model *model, uint32_t shard)
{
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_CREATE, shard);
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    AMP_NEED(ampd_spec_copy(&message->u.spec, &model->spec) == 0);
    ampd_bus_send_take(model->core, message);
}

/* EPOCH for one shard, after CREATE if the model may be new to it. */
void ampd_epochs_send(struct ampd_model *model, uint32_t shard)
{
    struct ampd_coord *coord = model->coord;
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    if (coord->epoch == 0 && shard != 0)
        ampd_epochs_create(model, shard);
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_EPOCH, shard);
    message->round = model->core->sync.round;
    message->u.epoch.created_us = model->created_us;
    message->u.epoch.parent_step = coord->parent_step;
    struct ampd_epoch_record *record = &message->u.epoch.record;
    record->parent = coord->epoch;
    record->epoch = coord->begins.epoch;
    record->base_epoch = coord->base_epoch;
    record->base_step = coord->base_step;
    memcpy(record->reason, coord->reason, sizeof record->reason);
    if (coord->rollback.state == AMPD_ROLLBACK_BEGUN)
        message->u.epoch.note = coord->rollback.note;
    else if (coord->epoch == 0) /* a start finds in this row who created the model */
        memcpy(message->u.epoch.note.actor, model->owner, sizeof model->owner);
    ampd_bus_send_take(model->core, message);
}

static void send_epochs(struct ampd_model *model, uint64_t number)
{
    model->coord->begins.token = 0;
    model->coord->begins.epoch = number;
    for (uint32_t k = AMPD_COUNT(model->core); k-- > 0;)
        ampd_epochs_send(model, k);
}

void ampd_epochs_store(struct ampd_model *model)
{
    struct ampd_core *core = model->core;
    struct ampd_coord *coord = model->coord;
    /*
     * A new model may have the name of one that was deleted while its workers have not noticed it: an epoch and a step
     * of that one must not be found here again.
     */
    uint64_t number = (coord->epoch == 0 ? core->deleted_epoch : coord->epoch) + 1;
    AMP_ASSERT(model->core->config.shard == 0);
    coord->answered = 0;
    if (!core->config.asks_epochs) {
        send_epochs(model, number);
        return;
    }
    coord->begins.epoch = 0;
    coord->begins.token = ++core->last_token;
    struct ampd_output *output = ampd_out(core, AMPD_OUT_RAISE_EPOCH, 0);
    output->u.raise.token = coord->begins.token;
    output->u.raise.model = model->spec.name;
    output->u.raise.epoch = number;
}

void ampd_epochs_reason(struct ampd_coord *coord, const char *reason)
{
    (void)snprintf(coord->reason, sizeof coord->reason, "%s", reason);
}

void ampd_epochs_first(struct ampd_model *model)
{
    AMP_ASSERT(model->core->config.shard == 0);
    ampd_epochs_reason(model->coord, "CREATED");
    ampd_epochs_store(model);
}

void ampd_epochs_raised(struct ampd_core *core, const struct ampd_event_raised *raised)
{
    AMP_ASSERT(core->config.shard == 0);
    for (uint32_t i = 0; i < core->models_count; i++) {
        struct ampd_model *model = core->models[i];
        const struct ampd_coord *coord = model->coord;
        bool waits = coord->state == AMPD_COORD_STORING || coord->state == AMPD_COORD_CREATING;
        if (model->gone || !waits || coord->begins.token == 0 || coord->begins.token != raised->token)
            continue; /* a SYNC has come between: the number is never used */
        AMP_ASSERT(raised->epoch > coord->epoch);
        send_epochs(model, raised->epoch);
        return;
    }
}

static void log_epoch(const struct ampd_model *model)
{
    const struct ampd_coord *coord = model->coord;
    if (coord->checkpoint.exists)
        ampd_out_log(model->core, AMP_LOG_INFO, model, "epoch %llu begins from the checkpoint of step %llu",
                     (unsigned long long)coord->epoch, (unsigned long long)coord->base_step);
    else if (strcmp(coord->reason, "IMPORT") == 0)
        ampd_out_log(model->core, AMP_LOG_INFO, model, "epoch %llu begins after step %llu, for a load from elsewhere",
                     (unsigned long long)coord->epoch, (unsigned long long)coord->base_step);
    else if (strcmp(coord->reason, "CREATED") != 0)
        ampd_out_log(model->core, AMP_LOG_WARN, model, "epoch %llu begins without a checkpoint: load the model again",
                     (unsigned long long)coord->epoch);
}

void ampd_epochs_stored(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_coord *coord = model->coord;
    bool waits = coord->state == AMPD_COORD_STORING || coord->state == AMPD_COORD_CREATING;
    AMP_ASSERT(model->core->config.shard == 0 && message->from < AMPD_COUNT(model->core));
    if (!waits || coord->begins.token != 0 || message->epoch != coord->begins.epoch)
        return;
    coord->answered |= AMPD_BIT(message->from);
    if (coord->answered != AMPD_ALL_SHARDS(model->core))
        return;
    ampd_coord_forget_step(model);
    coord->epoch = coord->begins.epoch;
    coord->decided = coord->base_step;
    coord->checkpoint.durable_step = coord->base_step;
    coord->version = coord->begins.version;
    ampd_checkpoints_begin(model);
    ampd_coord_record(coord, &coord->begins.carry);
    coord->state_sequence = 0;
    bool done = model->spec.max_steps != 0 && coord->decided >= model->spec.max_steps;
    if (!coord->checkpoint.exists)
        ampd_coord_set(model, AMPD_COORD_CREATED);
    else
        ampd_coord_set(model, done ? AMPD_COORD_DONE : AMPD_COORD_WAITING);
    log_epoch(model);
    ampd_rollback_done(model);
    ampd_coord_created(model);
    ampd_coord_send_state(model);
    for (uint32_t k = AMPD_COUNT(model->core); k-- > 0;)
        ampd_rollback_resend(model, k); /* a rollback that was asked for and has not begun */
    ampd_rollback_try(model);
}
