/*
 * DeleteModel: all shards delete a model, shard 0 last.
 *
 * With several shards the coordinator first stores a mark that the model is being deleted, so that a start goes on with
 * the deletion. Without the mark, a shard that has deleted the model while another still holds it would look like one
 * that has lost its disk. Then DELETE goes to the other shards, again in each new session, until all have answered;
 * then shard 0 deletes the model itself, and the caller is answered. DELETE has a round of its own, which its answer
 * names: a model of the same name may have been deleted just before, and an answer to that must not count.
 *
 * How a shard deletes a model is in shard/shard_delete.c.
 *
 * A model that a shard cannot make is taken back in the same way (sync.c), since the others may have stored it.
 */
#include "server/core/coordinator/delete.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/base/worker.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/coord_load.h"
#include "server/core/coordinator/sync.h"
#include "server/core/coordinator/workers.h"
#include "server/core/wire/bus.h"

#include <stdlib.h>
#include <string.h>

void ampd_delete_send(struct ampd_model *model, uint32_t shard)
{
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    const struct ampd_coord *coord = model->coord;
    if (shard == 0 || coord->delete_round == 0 || (coord->deleted & AMPD_BIT(shard)) != 0)
        return;
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_DELETE, shard);
    message->round = coord->delete_round;
    ampd_bus_send_take(model->core, message);
}

void ampd_delete_marked(struct ampd_model *model)
{
    AMP_ASSERT(model->core->config.shard == 0);
    model->coord->delete_round = ++model->core->sync.round;
    /* A shard that has answered may be another process now, which was filled with the model. */
    model->coord->deleted = 0;
    for (uint32_t k = AMPD_COUNT(model->core); k-- > 1;)
        ampd_delete_send(model, k);
    ampd_local_delete(model);
    ampd_local_delete_try(model);
}

void ampd_delete_answered(struct ampd_model *model, const struct ampd_message *message)
{
    AMP_ASSERT(model->core->config.shard == 0 && message->from < AMPD_COUNT(model->core));
    if (model->coord->state != AMPD_COORD_DELETING || message->round != model->coord->delete_round)
        return;
    model->coord->deleted |= AMPD_BIT(message->from);
    ampd_local_delete_try(model);
}

void ampd_delete_begin(struct ampd_model *model)
{
    AMP_ASSERT(model->core->config.shard == 0);
    ampd_coord_set(model, AMPD_COORD_DELETING);
    model->coord->rollback.state = AMPD_ROLLBACK_NONE;
    model->coord->checkpoint.writing_count = 0;
    model->coord->checkpoint.parts_sent = 0;                            /* no checkpoint of it is waited for */
    if (AMPD_COUNT(model->core) == 1 || !ampd_local_is_stored(model)) { /* or no epoch of it is stored */
        ampd_delete_marked(model);
        return;
    }
    struct ampd_persist *persist;
    (void)ampd_out_persist(model, AMPD_PERSIST_DELETING, 0, &persist);
}

void ampd_delete_call(struct ampd_core *core, uint64_t id, const struct ampd_event_act *act)
{
    struct ampd_model *model = core->config.shard == 0 ? ampd_core_model_named(core, act->model) : NULL;
    bool under_way = model != NULL && model->coord->state == AMPD_COORD_DELETING;
    /* By hand: its data are lost. Not while SYNC is running, whose end would take it for marked already. */
    bool given_up = model != NULL && act->force && ampd_sync_troubled(model) && !core->sync.running;
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
        return; /* the call waits for the deletion that is under way */
    ampd_out_log(core, AMP_LOG_WARN, model, "is being deleted, as %s has asked",
                 act->note->actor[0] != 0 ? act->note->actor : "an operator");
    model->coord->trouble[0] = 0; /* an operator deletes it, whatever it lacked */
    ampd_delete_begin(model);
}

/* Whether the coordinator's own part must wait for the other shards. */
bool ampd_local_delete_waits(const struct ampd_model *model)
{
    uint64_t others = AMPD_ALL_SHARDS(model->core) & ~AMPD_BIT(0);
    return model->core->config.shard == 0 && (model->coord->deleted & others) != others;
}
