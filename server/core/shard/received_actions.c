/*
 * The coordinator stores what an operator does to the scale (coordinator/actions.c); the other shards store the same
 * rows.
 */
#include "server/core/shard/received_actions.h"

#include "base/assert.h"
#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/action_rows.h"
#include "server/core/wire/messages.h"
#include "server/core/wire/verdict_rows.h"

void ampd_received_actions_persist(struct ampd_model *model, const struct ampd_verdict_message *verdict)
{
    for (uint32_t i = 0; i < verdict->acts_count; i++)
        ampd_action_row_persist(model, 0, &verdict->acts[i], 0, verdict->row.epoch, verdict->row.step - 1);
}

/*
 * Actions behind a step that this shard has not decided are left out: they come again with its next verdict, or in the
 * next session.
 */
void ampd_received_actions(struct ampd_model *model, const struct ampd_message *message)
{
    const struct ampd_shard *shard = model->shard;
    const struct ampd_actions_message *acts = &message->u.acts;
    uint64_t decided = shard->decided.next != NULL ? shard->decided.next->row.step : shard->decided.step;
    bool here = shard->memory >= AMPD_MEMORY_EMPTY && shard->new_epoch == 0 && message->epoch == shard->epoch;
    AMP_ASSERT(message->from == 0);
    if (model->core->config.shard == 0 || !here || acts->step != decided)
        return;
    for (uint32_t i = 0; i < acts->count; i++)
        ampd_action_row_persist(model, 0, &acts->acts[i], 0, message->epoch, acts->step);
}
