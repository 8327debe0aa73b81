/*
 * Messages between shards. Those of a process to itself go through a queue in memory and are handled after the event
 * that caused them, never inside it: so the shard and the coordinator of one process talk exactly as those of two
 * processes do. Other messages are outputs, which the I/O layer sends in order for each pair of shards.
 */
#include "server/core/wire/bus.h"

#include "base/assert.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/wire/fences.h"
#include "server/core/wire/messages.h"

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
    AMP_ASSERT(to < AMPD_COUNT(model->core));
    memcpy(message->model, model->spec.name, sizeof message->model);
    message->epoch = model->core->config.shard == 0 ? ampd_local_coord_epoch(model) : ampd_local_epoch(model);
    return message;
}

void ampd_bus_send_take(struct ampd_core *core, struct ampd_message *message)
{
    AMP_ASSERT(message->to < AMPD_COUNT(core));
    if (core->fenced) {
        ampd_message_free(message);
        return;
    }
    if (message->to != core->config.shard || core->config.carry_own) {
        ampd_out_message_take(core, message, ampd_message_free);
        return;
    }
    struct inbox_node *node = ampd_need(malloc(sizeof *node));
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

/* Time from one line of the log about a message that is refused to the next: its sender may send many. */
#define REFUSED_MS 1000

bool ampd_bus_may_log_refused(struct ampd_core *core)
{
    if (core->refused_ms != 0 && core->now_ms - core->refused_ms < REFUSED_MS)
        return false;
    core->refused_ms = core->now_ms;
    return true;
}

void ampd_bus_misfit(struct ampd_model *model, const struct ampd_message *message, const char *why)
{
    if (!ampd_bus_may_log_refused(model->core))
        return;
    ampd_out_log(model->core, AMP_LOG_ERROR, model,
                 "a message of shard %u (type %d) does not fit the model: refused%s%s", message->from,
                 (int)message->type, why[0] != 0 ? ", " : "", why);
}

void ampd_bus_close(struct ampd_core *core)
{
    AMP_ASSERT(amp_list_empty(&core->inbox)); /* each event ends with ampd_receive_own */
}

struct ampd_message *ampd_bus_next(struct ampd_core *core)
{
    struct amp_list *first = amp_list_shift(&core->inbox);
    if (first == NULL)
        return NULL;
    struct inbox_node *node = AMP_CONTAINER(first, struct inbox_node, node);
    struct ampd_message *message = node->message;
    free(node);
    return message;
}
