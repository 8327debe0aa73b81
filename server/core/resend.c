/*
 * What a broken session may have lost is said again: every message is idempotent (STEP section 2). The shard begins, with
 * HELLO and then all that it has told in its present state; the coordinator answers HELLO with all that it has asked.
 */
#include "server/core/model.h"

void ampd_resend_to_shard(struct ampd_core *core, uint32_t shard)
{
    for (uint32_t i = 0; i < core->models_count; i++) {
        if (!core->models[i]->gone)
            ampd_coord_resend(core->models[i], shard);
    }
}

void ampd_resend_to_coordinator(struct ampd_core *core)
{
    struct ampd_message *hello = ampd_bus_plain(core, AMPD_MESSAGE_HELLO, 0);
    hello->to_fence = (struct ampd_fence){0}; /* whoever it is by now */
    ampd_bus_send_take(core, hello);
    ampd_leave_ask(core);
    for (uint32_t i = 0; i < core->models_count; i++) {
        struct ampd_model *model = core->models[i];
        if (model->gone)
            continue;
        ampd_memory_tell(model);
        ampd_load_loaded(model);
        ampd_load_wants(model);
        ampd_snapshot_tell(model); /* before the vote: after it another cut may begin */
        ampd_shard_tell(model);
    }
}
