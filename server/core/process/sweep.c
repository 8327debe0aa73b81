/* Nothing waits without a deadline: a call that has waited too long ends with an error that says what it waited for. */
#include "server/core/process/sweep.h"

#include "base/list.h"
#include "server/core/base/calls.h"
#include "server/core/base/limits.h"
#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/coordinator/coord_load.h"
#include "server/core/coordinator/health.h"
#include "server/core/shard/load.h"

static void sweep_list(struct ampd_core *core, struct amp_list *list, uint64_t longest_ms)
{
    AMP_LIST_EACH(it, next, list)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        bool waits = call->state == AMPD_CALL_HELD || call->state == AMPD_CALL_ENDED;
        if (!waits || core->now_ms - call->begun_ms < longest_ms)
            continue;
        char ranks[AMPD_AWAITED_NAMES_MAX] = "";
        if (core->config.shard == 0)
            ampd_health_names(call->model, ranks, sizeof ranks);
        ampd_call_end(call, AMP_EUNAVAILABLE, "WAITED_TOO_LONG",
                      "%s was not ready for this call in %llu ms%s%s; what you pushed is kept: call again",
                      call->model->spec.name, (unsigned long long)longest_ms, ranks[0] != 0 ? ", as it waits for " : "",
                      ranks);
    }
}

void ampd_calls_sweep(struct ampd_core *core)
{
    for (uint32_t i = 0; i < core->models_count; i++) {
        struct ampd_model *model = core->models[i];
        if (model->gone)
            continue;
        struct amp_list *lists[] = {&model->pushes,      &model->pulls,     &model->loads,
                                    &model->checkpoints, &model->rollbacks, &model->deletes};
        uint64_t longest_ms = core->config.lease_ms + model->spec.loss_timeout_ms;
        for (unsigned l = 0; l < sizeof lists / sizeof lists[0]; l++)
            sweep_list(core, lists[l], longest_ms);
        ampd_coord_sweep(model);
        ampd_load_wants(model);
    }
}
