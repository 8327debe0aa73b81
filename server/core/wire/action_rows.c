/* The row of an action, the same on every shard but for the rate before, which shard 0 alone knows. */
#include "server/core/wire/action_rows.h"

#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/wire/step_messages.h"

#include <stdlib.h>
#include <string.h>

static void fill_row(const struct ampd_action *act, uint64_t epoch, uint64_t step, struct ampd_step_row *row)
{
    row->kind = act->kind;
    row->epoch = epoch;
    row->step = step;
    row->from_step = act->from_step;
    if (act->kind == AMPD_ROW_EVICT) {
        row->contributors_count = 1;
        row->contributors[0].rank = act->rank;
    }
    row->note = act->note;
    row->scale = act->scale;
    row->scale_id = act->scale_id;
    row->after = act->after;
    row->version = act->version;
    row->durable_step = act->durable_step;
    row->at_us = act->at_us;
}

void ampd_action_row_persist(struct ampd_model *model, uint64_t call, const struct ampd_action *act, double old_lr,
                             uint64_t epoch, uint64_t step)
{
    struct ampd_step_row *row = ampd_need(calloc(1, sizeof *row));
    fill_row(act, epoch, step, row);
    row->lr = old_lr;
    struct ampd_persist *persist;
    struct ampd_pending *pending = ampd_out_persist(model, AMPD_PERSIST_ACT, call, &persist);
    pending->act = (struct ampd_act_record){.kind = act->kind,
                                            .epoch = epoch,
                                            .step = step,
                                            .from_step = act->from_step,
                                            .rank = act->rank,
                                            .nobody = act->nobody,
                                            .after = act->after};
    memcpy(pending->act.request_id, act->note.request_id, sizeof pending->act.request_id);
    persist->row = ampd_out_own(model->core, row);
}
