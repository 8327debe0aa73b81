/*
 * How a shard answers the coordinator: to SYNC with what its store and its memory hold of each model (what follows from
 * that is in coordinator/sync.c), and to CREATE by making a model that it did not know.
 */
#include "server/core/shard/sync_answer.h"

#include "base/assert.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/model/spec.h"
#include "server/core/shard/catalogue.h"
#include "server/core/shard/memory.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/bus.h"

#include <string.h>

bool ampd_sync_asked(struct ampd_core *core, const struct ampd_message *message)
{
    if (message->round < core->sync.seen)
        return false;
    core->sync.seen = message->round;
    core->sync.asked = message->round;
    for (uint32_t i = 0; i < core->models_count; i++) {
        if (!core->models[i]->gone)
            ampd_memory_give_back(core->models[i]);
    }
    return true;
}

static void fill_steps(const struct ampd_model *model, struct ampd_sync_state *state)
{
    const struct ampd_shard *shard = model->shard;
    state->ready = shard->memory == AMPD_MEMORY_READY;
    state->voted = shard->step.state == AMPD_STEP_VOTED ? shard->step.hash : 0;
    state->decided = shard->decided.step;
    state->version = shard->decided.verdict == NULL ? shard->version : shard->decided.verdict->row.version;
    state->carry = shard->carry;
    state->has_last = shard->decided.verdict != NULL;
    if (state->has_last)
        state->last = shard->decided.verdict->row;
}

static void send_synced(struct ampd_model *model, uint64_t round)
{
    const struct ampd_shard *shard = model->shard;
    struct ampd_message *answer = ampd_bus_message(model, AMPD_MESSAGE_SYNCED, 0);
    answer->round = round;
    struct ampd_sync_state *state = &answer->u.sync;
    AMP_NEED(ampd_spec_copy(&state->spec, &model->spec) == 0);
    state->created_us = model->created_us;
    state->waits = model->shard->sync_waits = shard->journal.replay.on;
    state->lost = shard->memory <= AMPD_MEMORY_RESTORED;
    uint64_t above = state->lost ? model->core->config.epoch_above : 0; /* else the present epoch may go on */
    state->highest_epoch = shard->epoch > above ? shard->epoch : above;
    state->durable_step = ampd_catalogue_durable(shard);
    if (!state->waits)
        fill_steps(model, state);
    uint32_t count =
        shard->catalogue.count < AMPD_SYNC_CHECKPOINTS_MAX ? shard->catalogue.count : AMPD_SYNC_CHECKPOINTS_MAX;
    state->checkpoints_count = count;
    if (count > 0)
        state->checkpoints = ampd_need(ampd_copy(&shard->catalogue.records[shard->catalogue.count - count],
                                                 count * sizeof *shard->catalogue.records));
    ampd_bus_send_take(model->core, answer);
}

/*
 * Whether something that the answer to SYNC names is being stored or replayed. A replay that waits for a disk which
 * cannot be read now does not count: it holds up its own model alone.
 */
static bool is_changing(const struct ampd_core *core)
{
    for (uint32_t i = 0; core->sync.asked != 0 && i < core->models_count; i++) {
        const struct ampd_shard *shard = core->models[i]->shard;
        if (shard->journal.replay.on && shard->restore.retry_ms == 0)
            return true;
    }
    AMP_LIST_EACH(it, next, &core->pendings)
    {
        enum ampd_persist_kind kind = AMP_CONTAINER(it, struct ampd_pending, node)->kind;
        if (kind == AMPD_PERSIST_MODEL || kind == AMPD_PERSIST_EPOCH || kind == AMPD_PERSIST_VERDICT ||
            kind == AMPD_PERSIST_ACT || kind == AMPD_PERSIST_DELETING || kind == AMPD_PERSIST_DELETE ||
            kind == AMPD_PERSIST_PARTS)
            return true;
    }
    return false;
}

void ampd_sync_try_answer(struct ampd_core *core)
{
    struct ampd_sync_round *sync = &core->sync;
    if (sync->seen == 0 || !core->started || is_changing(core))
        return;
    for (uint32_t i = 0; i < core->models_count; i++) {
        struct ampd_model *model = core->models[i];
        bool owed = sync->asked != 0 || (model->shard->sync_waits && !model->shard->journal.replay.on);
        if (!model->gone && owed)
            send_synced(model, sync->seen);
    }
    if (sync->asked == 0)
        return;
    struct ampd_message *done = ampd_bus_plain(core, AMPD_MESSAGE_SYNC_DONE, 0);
    done->round = sync->asked;
    sync->asked = 0;
    ampd_bus_send_take(core, done);
}

void ampd_sync_create(struct ampd_core *core, const struct ampd_message *message)
{
    struct ampd_model *model = ampd_core_model_named(core, message->u.spec.name);
    if (model != NULL)
        return;
    struct amp_error error = {0};
    if (ampd_spec_check(&message->u.spec, &error) == 0 && ampd_model_new(core, &message->u.spec, &model, &error) == 0)
        return;
    ampd_out_log(core, AMP_LOG_ERROR, NULL, "%s cannot be made here: %s", message->u.spec.name, error.text);
    struct ampd_message *answer = ampd_bus_plain(core, AMPD_MESSAGE_NOT_CREATED, 0);
    memcpy(answer->model, message->model, sizeof answer->model);
    memcpy(answer->u.why, error.text, sizeof answer->u.why);
    ampd_bus_send_take(core, answer);
}
