/*
 * What a broken session may have lost is sent again: every message is idempotent (docs/step-protocol.md section 2). The
 * shard begins, with HELLO and then all that it has reported in its present state; the coordinator answers HELLO with
 * all that it has asked and that is not answered.
 *
 * A shard that waits for the coordinator, and hears nothing of it, does the same in a session that lives: a message may
 * be lost all the same, and nothing else would make the coordinator send it again.
 */
#include "server/core/process/resend.h"

#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/coordinator/coord.h"
#include "server/core/process/leave.h"
#include "server/core/shard/checkpoint_part.h"
#include "server/core/shard/load.h"
#include "server/core/shard/memory.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/bus.h"

/*
 * How long a coordinator that owes a message may be silent: longer than an answer that it gives at once takes, and
 * shorter than a person waits.
 */
#define AMPD_HELLO_AGAIN_MS 5000
/* The silence doubles each time, to 320 s at most: messages sent before there is a connection wait for it. */
#define AMPD_HELLO_DOUBLINGS 6

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
    hello->to_fence = (struct ampd_fence){0}; /* whichever process is shard 0 by now */
    core->hello.again_ms = 0;
    ampd_bus_send_take(core, hello);
    ampd_leave_ask(core);
    for (uint32_t i = 0; i < core->models_count; i++) {
        struct ampd_model *model = core->models[i];
        if (model->gone)
            continue;
        ampd_memory_resend(model);
        ampd_load_resend(model);
        ampd_part_resend(model); /* before the vote: after it another cut may begin */
        ampd_shard_resend(model);
    }
}

/*
 * Whether the coordinator owes a message: an answer to HELLO, or what the memory of a model goes on from. Without a
 * model it owes nothing but SYNC.
 */
static bool waits(const struct ampd_core *core)
{
    if (core->config.shard == 0 || !core->started || !core->peers[0].up || core->fenced)
        return false;
    for (uint32_t i = 0; i < core->models_count; i++) {
        const struct ampd_shard *shard = core->models[i]->shard;
        bool is_owed = shard->memory == AMPD_MEMORY_LOST || shard->memory == AMPD_MEMORY_RESTORED || !core->hello.heard;
        if (!core->models[i]->gone && is_owed && shard->new_epoch == 0)
            return true;
    }
    return core->sync.seen == 0;
}

void ampd_resend_heard(struct ampd_core *core)
{
    core->hello.heard = true;
    core->hello.agains = 0;
    core->hello.again_ms = 0;
}

void ampd_resend_arm(struct ampd_core *core)
{
    if (!waits(core))
        core->hello.again_ms = 0;
    else if (core->hello.again_ms == 0)
        core->hello.again_ms = core->now_ms + ((uint64_t)AMPD_HELLO_AGAIN_MS << core->hello.agains);
}

void ampd_resend_tick(struct ampd_core *core)
{
    if (core->hello.again_ms == 0 || core->hello.again_ms > core->now_ms)
        return;
    core->hello.agains += core->hello.agains < AMPD_HELLO_DOUBLINGS ? 1 : 0;
    ampd_resend_to_coordinator(core);
}
