/*
 * Messages between shards. Those to this shard go through a queue in memory and are taken after the event that caused
 * them, never inside it: so the machines of one process talk exactly as those of two do. Others go out through the host,
 * in order for each pair of shards.
 */
#include "base/assert.h"
#include "server/core/model.h"

#include <stdlib.h>

struct inbox_node {
    struct amp_list node;
    struct ampd_message *message;
};

struct ampd_message *ampd_bus_message(struct ampd_model *model, enum ampd_message_type type, uint32_t to)
{
    struct ampd_core *core = model->core;
    struct ampd_message *message = ampd_need(ampd_message_new(type));
    message->from = core->config.shard;
    message->to = to;
    message->from_fence = core->config.fence;
    message->model = model->index;
    message->epoch = core->config.shard == 0 ? model->coord.epoch : model->shard.epoch;
    return message;
}

void ampd_bus_send_take(struct ampd_model *model, struct ampd_message *message)
{
    struct ampd_core *core = model->core;
    if (message->to != core->config.shard || core->config.carry_own) {
        ampd_out_message_take(core, message);
        return;
    }
    struct inbox_node *node = ampd_need(malloc(sizeof(*node)));
    node->message = message;
    amp_list_push(&core->inbox, &node->node);
}

void ampd_bus_send_all_take(struct ampd_model *model, struct ampd_message *message)
{
    for (uint32_t k = 1; k < AMPD_COUNT(model->core); k++) {
        struct ampd_message *copy = ampd_need(ampd_message_copy(message));
        copy->to = k;
        ampd_bus_send_take(model, copy);
    }
    message->to = 0;
    ampd_bus_send_take(model, message);
}

static void to_coordinator(struct ampd_model *model, const struct ampd_message *message)
{
    switch (message->type) {
    case AMPD_MESSAGE_LOADED:
        ampd_coord_loaded(model, message);
        break;
    case AMPD_MESSAGE_SYNCED:
        ampd_sync_answer(model, message);
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
    default:
        break;
    }
}

static void to_shard(struct ampd_model *model, const struct ampd_message *message)
{
    switch (message->type) {
    case AMPD_MESSAGE_SYNC:
        ampd_memory_sync(model, message);
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
    case AMPD_MESSAGE_CUT:
        ampd_memory_cut(model, message);
        break;
    case AMPD_MESSAGE_STATE:
        ampd_shard_state(model, message);
        break;
    default:
        break;
    }
}

void ampd_bus_receive(struct ampd_core *core, const struct ampd_message *message)
{
    if (message->model >= core->models_count || message->to != core->config.shard)
        return; /* a model that this shard does not have yet: the coordinator asks again by SYNC */
    struct ampd_model *model = core->models[message->model];
    if (core->config.shard == 0)
        to_coordinator(model, message);
    if (message->from == 0)
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
    for (struct amp_list *first; (first = amp_list_shift(&core->inbox)) != NULL;) {
        struct inbox_node *node = AMP_CONTAINER(first, struct inbox_node, node);
        ampd_message_free(node->message);
        free(node);
    }
}
