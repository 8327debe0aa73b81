/*
 * Shard 0 has the leases, but a worker may be silent there while it sends to, or waits on, other shards. So the other
 * shards report to shard 0 which workers they hear from, all of a model in one message, eight times in a lease
 * (base/ranks.c).
 */
#include "server/core/shard/alive.h"

#include "base/assert.h"
#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/base/worker.h"
#include "server/core/wire/bus.h"
#include "server/core/wire/messages.h"

void ampd_alive_send(struct ampd_model *model)
{
    AMP_ASSERT(model->alive_due_ms == 0 || model->core->config.shard != 0);
    if (model->alive_due_ms == 0 || model->alive_due_ms > model->core->now_ms)
        return;
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_ALIVE, 0);
    struct ampd_alive *alive = &message->u.alive;
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        if (model->workers[r].alive.counter != 0)
            alive->workers[alive->count++] = (struct ampd_expected){r, model->workers[r].alive};
        model->workers[r].alive = (struct ampd_incarnation){0};
    }
    model->alive_due_ms = 0;
    model->alive_sent_ms = model->core->now_ms;
    if (model->core->peers[0].up)
        ampd_bus_send_take(model->core, message);
    else
        ampd_message_free(message); /* when a session begins, it would be out of date */
}
