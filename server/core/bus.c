/*
 * Messages between shards. Those to this shard go through a queue in memory and are taken after the event that caused
 * them, never inside it: so the machines of one process talk exactly as those of two do. Others go out through the host,
 * in order for each pair of shards.
 */
#include "base/assert.h"
#include "server/core/model.h"

#include <stdlib.h>
#include <string.h>

struct inbox_node {
    struct amp_list node;
    struct ampd_message *message;
};

struct ampd_message *ampd_bus_plain(struct ampd_core *core, enum ampd_message_type type, uint32_t to)
{
    struct ampd_message *message = ampd_need(ampd_message_new(type));
    message->from = core->config.shard;
    message->to = to;
    message->from_fence = core->config.fence;
    message->to_fence = ampd_fences_of(core, to);
    return message;
}

struct ampd_message *ampd_bus_message(struct ampd_model *model, enum ampd_message_type type, uint32_t to)
{
    struct ampd_message *message = ampd_bus_plain(model->core, type, to);
    memcpy(message->model, model->spec.name, sizeof(message->model));
    message->epoch = model->core->config.shard == 0 ? model->coord.epoch : model->shard.epoch;
    return message;
}

void ampd_bus_send_take(struct ampd_core *core, struct ampd_message *message)
{
    if (core->fenced) {
        ampd_message_free(message);
        return;
    }
    if (message->to != core->config.shard || core->config.carry_own) {
        ampd_out_message_take(core, message);
        return;
    }
    struct inbox_node *node = ampd_need(malloc(sizeof(*node)));
    node->message = message;
    amp_list_push(&core->inbox, &node->node);
}

void ampd_bus_send_all_take(struct ampd_core *core, struct ampd_message *message)
{
    for (uint32_t k = 1; k < AMPD_COUNT(core); k++) {
        struct ampd_message *copy = ampd_need(ampd_message_copy(message));
        copy->to = k;
        copy->to_fence = ampd_fences_of(core, k);
        ampd_bus_send_take(core, copy);
    }
    message->to = 0;
    message->to_fence = core->config.fence;
    ampd_bus_send_take(core, message);
}

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
        ampd_sync_epoch_stored(model, message);
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
        ampd_ranks_alive(model, &message->u.alive);
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
        ampd_shard_verdict(model, message);
        break;
    case AMPD_MESSAGE_ACTS:
        ampd_acts_told(model, message);
        break;
    case AMPD_MESSAGE_CUT:
        ampd_snapshot_cut(model, message);
        break;
    case AMPD_MESSAGE_STATE:
        ampd_shard_state(model, message);
        break;
    case AMPD_MESSAGE_PARTS:
        ampd_catalogue_parts(model, &message->u.parts);
        break;
    case AMPD_MESSAGE_HOLDS:
        ampd_rollback_holds(model, message);
        break;
    default:
        break;
    }
}

/* Messages about the process, or about a model that may not be here. True: it was one. */
static bool of_the_process(struct ampd_core *core, const struct ampd_message *message)
{
    bool coordinator = core->config.shard == 0;
    switch (message->type) {
    case AMPD_MESSAGE_TOO_LOW:
        ampd_fences_too_low(core, message);
        return true;
    case AMPD_MESSAGE_HELLO:
        if (coordinator)
            ampd_sync_hello(core, message);
        return true;
    case AMPD_MESSAGE_SYNC:
        if (message->from == 0)
            ampd_sync_asked(core, message);
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
            ampd_leave_told(core, message);
        return true;
    case AMPD_MESSAGE_DELETE:
        if (message->from == 0)
            ampd_delete_asked(core, message);
        return true;
    default:
        return false;
    }
}

/* From one line of the log about such a message to the next: their sender may have many. */
#define MISFIT_MS 1000

void ampd_bus_misfit(struct ampd_model *model, const struct ampd_message *message, const char *why)
{
    struct ampd_core *core = model->core;
    if (core->misfit_ms != 0 && core->now_ms - core->misfit_ms < MISFIT_MS)
        return;
    core->misfit_ms = core->now_ms;
    ampd_out_log(core, AMPD_LOG_ERROR, model, "a message of shard %u (type %d) does not fit the model: refused%s%s",
                 message->from, (int)message->type, why[0] != 0 ? ", " : "", why);
}

bool ampd_bus_refuses(struct ampd_model *model, const struct ampd_message *message)
{
    bool fits = ampd_message_fits(model, message);
    if (!fits)
        ampd_bus_misfit(model, message, "");
    return !fits;
}

void ampd_bus_receive(struct ampd_core *core, const struct ampd_message *message)
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
        return; /* one that this shard does not have: the coordinator finds out by SYNC */
    if (ampd_bus_refuses(model, message))
        return;
    if (core->config.shard == 0)
        to_coordinator(model, message);
    if (message->from == 0 && !model->shard.deleting)
        to_shard(model, message);
}

void ampd_bus_drain(struct ampd_core *core)
{
    for (struct amp_list *first; (first = amp_list_shift(&core->inbox)) != NULL;) {
        struct inbox_node *node = AMP_CONTAINER(first, struct inbox_node, node);
        ampd_bus_receive(core, node->message);
        ampd_message_free(node->message);
        free(node);
    }
}

void ampd_bus_close(struct ampd_core *core)
{
    AMP_ASSERT(amp_list_empty(&core->inbox)); /* each event ends with ampd_bus_drain */
}
