/*
 * DeleteModel: all shards forget a model, the coordinator last.
 *
 * With several shards the coordinator first stores that the model is to go, so that a start goes on with it: a shard that
 * had forgotten the model while another still held it would look like one that lost its disk. Then DELETE goes to the
 * others, again with each new session, until all have answered; then it forgets the model itself, and answers the caller.
 *
 * A shard forgets a model when nothing is under way any more: streams have let go, jobs are done, the part of a checkpoint
 * that is being written has ended. From the first moment on nobody finds the model by its name; the name is free when all
 * is over.
 *
 * A model that a shard cannot make is taken back in the same way (sync.c): the others may have stored it.
 */
#include "base/assert.h"
#include "server/core/model.h"

#include <stdlib.h>
#include <string.h>

/* ---- a shard ---- */

static void end_calls(struct ampd_model *model)
{
    struct amp_list *lists[] = {&model->pushes,      &model->pulls,   &model->loads,
                                &model->checkpoints, &model->creates, &model->rollbacks};
    for (unsigned l = 0; l < sizeof(lists) / sizeof(lists[0]); l++) {
        AMP_LIST_EACH(it, next, lists[l])
        {
            ampd_call_end(AMP_CONTAINER(it, struct ampd_call, node), AMP_ENOTFOUND, "MODEL_NOT_FOUND",
                          "model: %s is being deleted", model->spec.name);
        }
    }
}

static void begin(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    if (shard->deleting)
        return;
    shard->deleting = true;
    shard->restore_waits = false;
    shard->restore_retry_ms = 0;
    shard->frozen = false;
    ampd_sums_stop(model);
    ampd_shard_forget(model);
    ampd_snapshot_void(model);
    end_calls(model);
    ampd_delete_try(model);
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

/* Whether the coordinator's own part must wait for the other shards. */
static bool waits_for_others(const struct ampd_model *model)
{
    uint64_t others = AMPD_ALL_SHARDS(model->core) & ~AMPD_BIT(0);
    return model->core->config.shard == 0 && (model->coord.deleted & others) != others;
}

void ampd_delete_try(struct ampd_model *model)
{
    const struct ampd_shard *shard = &model->shard;
    bool busy = shard->jobs_out != 0 || shard->restore_token != 0 || shard->journal_token != 0 ||
                shard->replay.token != 0 || shard->snapshot != AMPD_SNAPSHOT_FREE || !amp_list_empty(&model->pushes) ||
                !amp_list_empty(&model->pulls) || !amp_list_empty(&model->loads);
    if (!shard->deleting || model->gone || busy || is_pending(model) || waits_for_others(model))
        return;
    struct ampd_persist *persist;
    (void)ampd_out_persist(model, AMPD_PERSIST_DELETE, 0, &persist);
}

static void answer(struct ampd_core *core, const char *name)
{
    struct ampd_message *message = ampd_bus_plain(core, AMPD_MESSAGE_DELETED, 0);
    (void)memcpy(message->model, name, sizeof(message->model));
    ampd_bus_send_take(core, message);
}

void ampd_delete_asked(struct ampd_core *core, const struct ampd_message *message)
{
    struct ampd_model *model = ampd_core_model_named(core, message->model);
    if (model == NULL)
        answer(core, message->model); /* done before, or never known */
    else
        begin(model);
}

/* The store has forgotten it: so does the core. */
void ampd_delete_stored(struct ampd_model *model)
{
    struct ampd_core *core = model->core;
    char name[AMPD_NAME_MAX];
    memcpy(name, model->spec.name, sizeof(name));
    ampd_out_log(core, AMPD_LOG_INFO, model, "deleted");
    AMP_LIST_EACH(it, next, &model->deletes)
    {
        (void)ampd_call_reply(core, AMP_CONTAINER(it, struct ampd_call, node)->id, AMPD_REPLY_NONE);
    }
    ampd_model_forget(model);
    if (core->config.shard != 0)
        answer(core, name);
}

/* ---- the coordinator ---- */

void ampd_delete_send(struct ampd_model *model, uint32_t shard)
{
    if (shard == 0 || (model->coord.deleted & AMPD_BIT(shard)) != 0)
        return;
    ampd_bus_send_take(model->core, ampd_bus_message(model, AMPD_MESSAGE_DELETE, shard));
}

void ampd_delete_marked(struct ampd_model *model)
{
    for (uint32_t k = AMPD_COUNT(model->core); k-- > 1;)
        ampd_delete_send(model, k);
    begin(model);
    ampd_delete_try(model);
}

void ampd_delete_answered(struct ampd_model *model, const struct ampd_message *message)
{
    if (model->coord.state != AMPD_COORD_DELETING)
        return;
    model->coord.deleted |= AMPD_BIT(message->from);
    ampd_delete_try(model);
}

void ampd_delete_begin(struct ampd_model *model)
{
    const struct ampd_shard *shard = &model->shard;
    ampd_coord_set(model, AMPD_COORD_DELETING);
    model->coord.rollback.active = false;
    model->coord.cuts_count = 0;
    model->coord.parts_told = 0; /* nobody waits for a checkpoint of it */
    if (AMPD_COUNT(model->core) == 1 || (!shard->stored && shard->new_epoch == 0)) { /* or no store knows it */
        ampd_delete_marked(model);
        return;
    }
    struct ampd_persist *persist;
    (void)ampd_out_persist(model, AMPD_PERSIST_DELETING, 0, &persist);
}

void ampd_delete_call(struct ampd_core *core, uint64_t id, const struct ampd_event_act *act)
{
    struct ampd_model *model = core->config.shard == 0 ? ampd_core_model_named(core, act->model) : NULL;
    bool under_way = model != NULL && model->coord.state == AMPD_COORD_DELETING;
    bool given_up = model != NULL && act->force && ampd_sync_troubled(model); /* by hand: its data are lost */
    bool creates = model != NULL && ampd_coord_creates(model);
    if (!under_way && !given_up && !creates)
        model = ampd_core_coordinated(core, id, act->model);
    if (model == NULL)
        return;
    uint32_t rank;
    if (!under_way && !act->force && ampd_workers_holds_lease(model, &rank)) {
        ampd_call_fail(core, id, model, AMP_ESTATE, "MODEL_IN_USE",
                       "rank %u (%s) of %s holds a lease; let the workers leave, or delete by force", rank,
                       model->workers[rank].record.name, model->spec.name);
        return;
    }
    if (ampd_call_begin(core, id, AMPD_CALL_DELETE, model) == NULL) {
        ampd_call_fail(core, id, model, AMP_EEXHAUSTED, "TOO_MANY_CALLS", "too many calls wait on this server");
        return;
    }
    if (under_way)
        return; /* it waits with the one before */
    ampd_out_log(core, AMPD_LOG_WARN, model, "is being deleted, as %s has asked",
                 act->note->actor[0] != 0 ? act->note->actor : "an operator");
    ampd_delete_begin(model);
}
