/*
 * Gives each message of a shard, this one included, to the machine that it is for. Messages of the process to itself
 * are handled after the event that caused them, never inside it: so the shard and the coordinator of one process talk
 * exactly as those of two processes do.
 */
#include "server/core/process/receive.h"

#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/coordinator/checkpoints.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/coord_load.h"
#include "server/core/coordinator/delete.h"
#include "server/core/coordinator/epochs.h"
#include "server/core/coordinator/rollback.h"
#include "server/core/coordinator/sync.h"
#include "server/core/coordinator/workers.h"
#include "server/core/process/leave.h"
#include "server/core/process/resend.h"
#include "server/core/shard/catalogue.h"
#include "server/core/shard/checkpoint_part.h"
#include "server/core/shard/load.h"
#include "server/core/shard/memory.h"
#include "server/core/shard/received_actions.h"
#include "server/core/shard/shard.h"
#include "server/core/shard/shard_delete.h"
#include "server/core/shard/sync_answer.h"
#include "server/core/wire/bus.h"
#include "server/core/wire/fences.h"
#include "server/core/wire/fits.h"
#include "server/core/wire/messages.h"

static void to_coordinator(struct ampd_model *model, const struct ampd_message *message)
{
    switch (message->type) {
    case AMPD_MESSAGE_LOADED:
        ampd_coord_loaded(model, message);
        break;
    case AMPD_MESSAGE_LOAD_WANT:
        ampd_coord_want(model, message);
        break;
    case AMPD_MESSAGE_LOAD_GONE:
        ampd_coord_gone(model, message);
        break;
    case AMPD_MESSAGE_NOT_CREATED:
        ampd_sync_not_created(model, message);
        break;
    case AMPD_MESSAGE_RESTORED:
        ampd_sync_restored(model, message);
        break;
    case AMPD_MESSAGE_EPOCH_STORED:
        ampd_epochs_stored(model, message);
        break;
    case AMPD_MESSAGE_COMPLETE:
        ampd_coord_complete(model, message);
        break;
    case AMPD_MESSAGE_VOTE:
        ampd_coord_vote(model, message);
        break;
    case AMPD_MESSAGE_APPLIED:
        ampd_coord_applied(model, message);
        break;
    case AMPD_MESSAGE_PART_DONE:
        ampd_coord_part_done(model, message);
        break;
    case AMPD_MESSAGE_HELD:
        ampd_rollback_held(model, message);
        break;
    case AMPD_MESSAGE_DELETED:
        ampd_delete_answered(model, message);
        break;
    case AMPD_MESSAGE_ALIVE:
        ampd_workers_alive(model, &message->u.alive);
        break;
    default:
        break;
    }
}

static void to_shard(struct ampd_model *model, const struct ampd_message *message)
{
    switch (message->type) {
    case AMPD_MESSAGE_LOAD_GRANT:
        ampd_load_granted(model, message);
        break;
    case AMPD_MESSAGE_UNFIT:
        ampd_shard_unfit(model, message);
        break;
    case AMPD_MESSAGE_RESTORE:
        ampd_memory_restore(model, message);
        break;
    case AMPD_MESSAGE_EPOCH:
        ampd_memory_epoch(model, message);
        break;
    case AMPD_MESSAGE_OPEN:
        ampd_shard_open(model, message);
        break;
    case AMPD_MESSAGE_CLOSE:
        ampd_shard_take_close(model, message);
        break;
    case AMPD_MESSAGE_VERDICT:
        ampd_decided_verdict(model, message);
        break;
    case AMPD_MESSAGE_ACTS:
        ampd_received_actions(model, message);
        break;
    case AMPD_MESSAGE_CUT:
        ampd_part_begin(model, message);
        break;
    case AMPD_MESSAGE_STATE:
        ampd_shard_state(model, message);
        break;
    case AMPD_MESSAGE_PARTS:
        ampd_catalogue_parts(model, &message->u.parts);
        break;
    case AMPD_MESSAGE_HOLDS:
        ampd_catalogue_holds(model, message);
        break;
    default:
        break;
    }
}

static void sync_asked(struct ampd_core *core, const struct ampd_message *message)
{
    if (!ampd_sync_asked(core, message))
        return;
    /* An earlier LEAVE went to another process of shard 0, or came there while our fence was being stored. */
    ampd_leave_ask(core);
    ampd_sync_try_answer(core);
}

/* Handles a message about the process, or about a model that may not be here. False: it is none of these. */
static bool of_the_process(struct ampd_core *core, const struct ampd_message *message)
{
    bool coordinator = core->config.shard == 0;
    switch (message->type) {
    case AMPD_MESSAGE_TOO_LOW:
        ampd_fences_too_low(core, message);
        return true;
    case AMPD_MESSAGE_HELLO:
        if (coordinator && ampd_sync_hello(core, message))
            ampd_resend_to_shard(core, message->from);
        return true;
    case AMPD_MESSAGE_SYNC:
        if (message->from == 0)
            sync_asked(core, message);
        return true;
    case AMPD_MESSAGE_SYNCED:
        if (coordinator)
            ampd_sync_answer(core, message);
        return true;
    case AMPD_MESSAGE_SYNC_DONE:
        if (coordinator)
            ampd_sync_done(core, message);
        return true;
    case AMPD_MESSAGE_CREATE:
        if (message->from == 0)
            ampd_sync_create(core, message);
        return true;
    case AMPD_MESSAGE_LEAVE:
        if (coordinator)
            ampd_leave_asked(core, message);
        return true;
    case AMPD_MESSAGE_MAY_LEAVE:
        if (message->from == 0 && !coordinator)
            ampd_leave_answered(core, message);
        return true;
    case AMPD_MESSAGE_DELETE:
        if (message->from == 0)
            ampd_delete_asked(core, message);
        return true;
    default:
        return false;
    }
}

void ampd_receive(struct ampd_core *core, const struct ampd_message *message)
{
    if (message->to != core->config.shard || message->from >= AMPD_COUNT(core) || core->fenced ||
        !ampd_fences_admit(core, message))
        return;
    if (message->from == 0)
        ampd_resend_heard(core);
    if (of_the_process(core, message))
        return;
    struct ampd_model *model = ampd_core_model_named(core, message->model);
    if (model == NULL)
        return; /* this shard does not have the model: the coordinator learns that by SYNC */
    if (ampd_fits_not(model, message))
        return;
    if (core->config.shard == 0)
        to_coordinator(model, message);
    if (message->from == 0 && !model->shard->announced.deleting)
        to_shard(model, message);
}

void ampd_receive_own(struct ampd_core *core)
{
    for (struct ampd_message *message; (message = ampd_bus_next(core)) != NULL;) {
        ampd_receive(core, message);
        ampd_message_free(message);
    }
}
