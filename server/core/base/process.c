/* Queries about the process that every state machine may need. */
#include "server/core/base/process.h"

#include "base/assert.h"
#include "server/core/base/model.h"

#include <string.h>

const char *ampd_checkpoint_dir(const struct ampd_core *core)
{
    return core->config.checkpoint_dir == NULL ? "its directory" : core->config.checkpoint_dir;
}

int64_t ampd_core_find(const struct ampd_core *core, const char *name)
{
    for (uint32_t i = 0; i < core->models_count; i++) {
        if (!core->models[i]->gone && strcmp(core->models[i]->spec.name, name) == 0)
            return i;
    }
    return -1;
}

struct ampd_model *ampd_core_model_named(struct ampd_core *core, const char *name)
{
    int64_t index = ampd_core_find(core, name);
    return index < 0 ? NULL : core->models[index];
}

bool ampd_core_leaves(const struct ampd_core *core, uint32_t shard)
{
    AMP_ASSERT(shard < AMPD_COUNT(core));
    if (shard == core->config.shard)
        return core->leave.draining;
    const struct ampd_peer *peer = &core->peers[shard];
    return peer->leaving != 0 && peer->leaving == peer->fence.counter; /* not an earlier process of that shard */
}

bool ampd_core_pauses(const struct ampd_core *core)
{
    if (core->leave.draining)
        return true;
    for (uint32_t k = 1; core->config.shard == 0 && k < AMPD_COUNT(core); k++) {
        if (ampd_core_leaves(core, k))
            return true;
    }
    return false;
}
