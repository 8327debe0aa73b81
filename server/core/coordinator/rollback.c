/*
 * Rollback: an operator puts a model back to a checkpoint (docs/step-protocol.md section 6).
 *
 * First the shards are asked whether they hold the checkpoint, while the model goes on: a wrong number costs nothing.
 * When all do, and nothing of the model is being stored, RESTORE goes to all of them as after a start, and then a new
 * epoch is stored, whose row says who asked and why. Before RESTORE all shards are sent the manifests of the parts
 * (PARTS), so that each has stored them before the row of the new epoch: the model depends on this checkpoint from then
 * on, and a shard that loses its disk finds its part by them. From RESTORE on the rollback goes through: if SYNC comes
 * between, it begins again after that. Before RESTORE it ends when its caller goes, so that no model is rolled back by
 * a request that was given up.
 *
 * If the checkpoint turns out to be damaged, the shards that were reading their parts have lost their memory: SYNC then
 * takes the newest checkpoint that all hold, as after a start, and the caller gets an error.
 */
#include "server/core/coordinator/rollback.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/coordinator/actions.h"
#include "server/core/coordinator/checkpoints.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/sync.h"
#include "server/core/wire/bus.h"

#include <stdlib.h>
#include <string.h>

static void ask(struct ampd_model *model, uint32_t shard)
{
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_HOLDS, shard);
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    message->u.restore.epoch = model->coord->rollback.epoch;
    message->u.restore.step = model->coord->rollback.step;
    ampd_bus_send_take(model->core, message);
}

/* A repeated request waits with the first one; any other is asked to come again. */
static bool is_the_same(const struct ampd_coord *coord, const struct ampd_event_act *act)
{
    return act->note->request_id[0] != 0 && strcmp(act->note->request_id, coord->rollback.note.request_id) == 0 &&
           act->epoch == coord->rollback.epoch && act->step == coord->rollback.step;
}

static bool wait_for(struct ampd_model *model, uint64_t id)
{
    if (ampd_call_begin(model->core, id, AMPD_CALL_ROLLBACK, model) != NULL)
        return true;
    ampd_call_fail(model->core, id, model, AMP_EEXHAUSTED, "TOO_MANY_CALLS", "too many calls wait on this server");
    return false;
}

/* Whether the request meets a rollback that is under way; then it has its answer, or waits for it. */
static bool meets_another(struct ampd_core *core, uint64_t id, const struct ampd_event_act *act)
{
    struct ampd_model *model = core->config.shard == 0 ? ampd_core_model_named(core, act->model) : NULL;
    if (model == NULL || model->coord->rollback.state == AMPD_ROLLBACK_NONE)
        return false;
    if (model->coord->rollback.state == AMPD_ROLLBACK_ASKING && amp_list_empty(&model->rollbacks)) { /* given up */
        model->coord->rollback.state = AMPD_ROLLBACK_NONE;
        return false;
    }
    if (is_the_same(model->coord, act))
        (void)wait_for(model, id);
    else
        ampd_call_fail(core, id, model, AMP_EUNAVAILABLE, "ROLLING_BACK",
                       "%s is being rolled back to step %llu already; ask again when it has been", model->spec.name,
                       (unsigned long long)model->coord->rollback.step);
    return true;
}

void ampd_rollback_call(struct ampd_core *core, uint64_t id, const struct ampd_event_act *act)
{
    if (meets_another(core, id, act))
        return;
    struct ampd_model *model = ampd_core_coordinated(core, id, act->model);
    if (model == NULL || ampd_actions_known(model, id, act, AMPD_ROW_EPOCH))
        return;
    if (ampd_local_checkpoint(model, act->epoch, act->step) == NULL) {
        ampd_call_fail(core, id, model, AMP_ENOTFOUND, "CHECKPOINT_NOT_FOUND",
                       "%s has no checkpoint of epoch %llu, step %llu; ampctl checkpoints lists those it has",
                       model->spec.name, (unsigned long long)act->epoch, (unsigned long long)act->step);
        return;
    }
    if (!wait_for(model, id))
        return;
    struct ampd_coord *coord = model->coord;
    coord->rollback.state = AMPD_ROLLBACK_ASKING;
    coord->rollback.epoch = act->epoch;
    coord->rollback.step = act->step;
    coord->rollback.held = 0;
    coord->rollback.note = *act->note;
    for (uint32_t k = AMPD_COUNT(core); k-- > 0;)
        ask(model, k);
}

void ampd_rollback_fail(struct ampd_model *model, int code, const char *reason, const char *text)
{
    model->coord->rollback.state = AMPD_ROLLBACK_NONE;
    AMP_LIST_EACH(it, next, &model->rollbacks)
    {
        ampd_call_end(AMP_CONTAINER(it, struct ampd_call, node), code, reason, "%s: %s", model->spec.name, text);
    }
}

void ampd_rollback_held(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_coord *coord = model->coord;
    const struct ampd_restore *answer = &message->u.restore;
    AMP_ASSERT(model->core->config.shard == 0 && message->from < AMPD_COUNT(model->core));
    if (coord->rollback.state != AMPD_ROLLBACK_ASKING || answer->epoch != coord->rollback.epoch ||
        answer->step != coord->rollback.step)
        return;
    if (!answer->ok) {
        ampd_rollback_fail(model, AMP_ENOTFOUND, "CHECKPOINT_NOT_FOUND",
                           "a shard has no part of this checkpoint any more; ampctl checkpoints lists what is left");
        return;
    }
    coord->rollback.held |= AMPD_BIT(message->from);
    memcpy(coord->rollback.manifests[message->from], answer->manifest, sizeof answer->manifest);
    ampd_rollback_try(model);
}

/* Whether something of the model is on its way to the store that the new epoch would find half done. */
static bool is_storing(const struct ampd_model *model)
{
    return model->coord->step.state == AMPD_STEP_VOTED || model->coord->actions.storing > 0;
}

void ampd_rollback_try(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    AMP_ASSERT(model->core->config.shard == 0);
    if (coord->rollback.state != AMPD_ROLLBACK_ASKING || coord->rollback.held != AMPD_ALL_SHARDS(model->core) ||
        coord->state <= AMPD_COORD_LOADED || coord->state == AMPD_COORD_DELETING || is_storing(model))
        return;
    if (amp_list_empty(&model->rollbacks)) { /* all callers have gone */
        coord->rollback.state = AMPD_ROLLBACK_NONE;
        return;
    }
    coord->rollback.state = AMPD_ROLLBACK_BEGUN;
    ampd_out_log(model->core, AMP_LOG_WARN, model, "rolling back to step %llu of epoch %llu, as %s has asked",
                 (unsigned long long)coord->rollback.step, (unsigned long long)coord->rollback.epoch,
                 coord->rollback.note.actor[0] != 0 ? coord->rollback.note.actor : "an operator");
    AMP_LIST_EACH(it, next, &model->checkpoints)
    {
        ampd_call_end(AMP_CONTAINER(it, struct ampd_call, node), AMP_EUNAVAILABLE, "ROLLING_BACK",
                      "%s is being rolled back; ask again in a moment", model->spec.name);
    }
    ampd_checkpoints_send_parts(model, coord->rollback.epoch, coord->rollback.step,
                                (const uint8_t(*)[16])coord->rollback.manifests);
    ampd_sync_roll_back(model);
}

void ampd_rollback_resend(struct ampd_model *model, uint32_t shard)
{
    struct ampd_coord *coord = model->coord;
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    if (coord->rollback.state != AMPD_ROLLBACK_ASKING)
        return;
    coord->rollback.held &= ~AMPD_BIT(shard); /* it may be another process now, which has other files */
    ask(model, shard);
}

/* The new epoch is stored on all shards. */
void ampd_rollback_done(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    AMP_ASSERT(model->core->config.shard == 0);
    if (coord->rollback.state != AMPD_ROLLBACK_BEGUN)
        return;
    coord->rollback.state = AMPD_ROLLBACK_NONE;
    struct ampd_act_record act = {.kind = AMPD_ROW_EPOCH,
                                  .epoch = coord->epoch,
                                  .step = coord->base_step,
                                  .base_epoch = coord->base_epoch,
                                  .after = coord->carry};
    memcpy(act.request_id, coord->rollback.note.request_id, sizeof act.request_id);
    ampd_actions_remember(coord, &act);
    AMP_LIST_EACH(it, next, &model->rollbacks)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        struct ampd_reply *reply = ampd_call_reply(model->core, call->id, AMPD_REPLY_ROLLBACK);
        reply->u.rollback.epoch = coord->epoch;
        reply->u.rollback.step = coord->base_step + 1;
    }
}
