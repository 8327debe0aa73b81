/*
 * How a shard deletes a model: when nothing of it is under way any more, that is, streams have let go, jobs are done,
 * and the checkpoint part that was being written has ended. From the beginning no call finds the model by its name; the
 * name is free for another model at the end. The coordinator's side is in coordinator/delete.c.
 */
#include "server/core/shard/shard_delete.h"

#include "base/list.h"
#include "server/core/base/calls.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/bus.h"

#include <string.h>

/*
 * Calls that wait for a creation which is taken back are answered here, too: by now the store has a mark of it, with
 * which a start goes on.
 */
static void end_calls(struct ampd_model *model)
{
    struct amp_list *lists[] = {&model->pushes, &model->pulls, &model->loads, &model->checkpoints, &model->rollbacks};
    for (unsigned l = 0; l < sizeof lists / sizeof lists[0]; l++) {
        AMP_LIST_EACH(it, next, lists[l])
        {
            ampd_call_end(AMP_CONTAINER(it, struct ampd_call, node), AMP_ENOTFOUND, "MODEL_NOT_FOUND",
                          "model: %s is being deleted", model->spec.name);
        }
    }
    AMP_LIST_EACH(it, next, &model->creates)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (ampd_local_trouble(model)[0] != 0)
            ampd_call_end(call, AMP_EEXHAUSTED, "NO_MEMORY", "%s", ampd_local_trouble(model));
        else
            ampd_call_end(call, AMP_ENOTFOUND, "MODEL_NOT_FOUND", "model: %s is being deleted", model->spec.name);
    }
}

void ampd_local_delete(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    if (shard->announced.deleting)
        return;
    shard->announced.deleting = true;
    shard->restore.waits = false;
    shard->restore.retry_ms = 0;
    shard->announced.frozen = false;
    ampd_shard_journal_stop(model);
    ampd_shard_forget(model);
    ampd_part_end(model);
    end_calls(model);
    ampd_local_delete_try(model);
}

static bool is_pending(const struct ampd_model *model)
{
    AMP_LIST_EACH(it, next, &model->core->pendings)
    {
        if (AMP_CONTAINER(it, struct ampd_pending, node)->model == model)
            return true;
    }
    return false;
}

void ampd_local_delete_try(struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    bool busy = shard->jobs.out != 0 || shard->restore.token != 0 || shard->journal.token != 0 ||
                shard->journal.replay.token != 0 || shard->part.state != AMPD_PART_FREE ||
                !amp_list_empty(&model->pushes) || !amp_list_empty(&model->pulls) || !amp_list_empty(&model->loads);
    if (!shard->announced.deleting || model->gone || busy || is_pending(model) || ampd_local_delete_waits(model))
        return;
    struct ampd_persist *persist;
    (void)ampd_out_persist(model, AMPD_PERSIST_DELETE, 0, &persist);
}

static void answer(struct ampd_core *core, const char *name, uint64_t round)
{
    struct ampd_message *message = ampd_bus_plain(core, AMPD_MESSAGE_DELETED, 0);
    message->round = round;
    (void)memcpy(message->model, name, sizeof message->model);
    ampd_bus_send_take(core, message);
}

void ampd_delete_asked(struct ampd_core *core, const struct ampd_message *message)
{
    struct ampd_model *model = ampd_core_model_named(core, message->model);
    if (model == NULL) {
        answer(core, message->model, message->round); /* it was deleted before, or was never here */
        return;
    }
    model->shard->announced.delete_round = message->round;
    ampd_local_delete(model);
}

void ampd_delete_stored(struct ampd_model *model)
{
    struct ampd_core *core = model->core;
    uint64_t round = model->shard->announced.delete_round;
    char name[AMPD_NAME_MAX];
    memcpy(name, model->spec.name, sizeof name);
    ampd_out_log(core, AMP_LOG_INFO, model, "deleted");
    AMP_LIST_EACH(it, next, &model->deletes)
    {
        (void)ampd_call_reply(core, AMP_CONTAINER(it, struct ampd_call, node)->id, AMPD_REPLY_NONE);
    }
    ampd_model_forget(model);
    if (core->config.shard != 0)
        answer(core, name, round);
}
