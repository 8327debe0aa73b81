/* The answers to pushes whose step is decided, and to GetPushState (docs/step-protocol.md section 5). */
#include "server/core/shard/push_answer.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/base/ranks.h"
#include "server/core/model/tensors.h"
#include "server/core/shard/push.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/verdict_rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- results ---- */

void ampd_push_result(const struct ampd_model *model, const struct ampd_verdict_message *verdict, bool counted,
                      struct ampd_step_result *result)
{
    struct ampd_core *core = model->core;
    const struct ampd_step_row *row = &verdict->row;
    bool last = model->spec.max_steps != 0 && row->step >= model->spec.max_steps; /* no step would follow anyway */
    bool stops = !last && ampd_floor_stops(&model->spec, &row->after.scaler);
    *result = (struct ampd_step_result){
        .epoch = row->epoch,
        .step = row->step,
        .verdict = counted ? row->verdict : AMPD_VERDICT_LATE,
        .applied = row->after.scaler.applied,
        .version = row->version,
        .norm = row->norm,
        .scale = row->scale,
        .scale_id = row->scale_id,
        .new_scale = row->after.scaler.scale,
        .new_scale_id = row->after.scaler.scale_id,
        .overflow_params = row->overflow_params,
        .inf_total = row->inf_total,
        .nan_total = row->nan_total,
        .rows_count = row->rows_count,
        .range_total = verdict->range_total,
        .range_count = verdict->range_count,
        .durable_step = model->spec.durability == AMPD_DURABILITY_STEP ? row->step : row->durable_step,
        .lr = row->lr,
        .consecutive_overflows = row->after.scaler.consecutive_overflows,
        .unstable = ampd_is_unstable(&model->spec, &row->after.scaler),
        .frozen = stops && model->spec.floor_policy == AMPD_FLOOR_FREEZE,
        .failed = stops && model->spec.floor_policy == AMPD_FLOOR_FAIL,
        .clips_count = row->clips_count,
    };
    memcpy(result->clips, row->clips, row->clips_count * sizeof row->clips[0]);
    size_t rows = row->rows_count * sizeof row->rows[0];
    size_t contributors = row->contributors_count * sizeof row->contributors[0];
    size_t range = verdict->range_count * sizeof verdict->range[0];
    result->rows = ampd_out_own(core, ampd_need(ampd_copy(row->rows, rows)));
    result->contributors_count = row->contributors_count;
    result->contributors = ampd_out_own(core, ampd_need(ampd_copy(row->contributors, contributors)));
    result->range = ampd_out_own(core, ampd_need(ampd_copy(verdict->range, range)));
}

/* Whether the gradient of this incarnation counted in the last decided step. */
static bool has_counted(const struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation)
{
    const struct ampd_step_row *row = &model->shard->decided.verdict->row;
    const struct ampd_contributor *its = ampd_contributor_of(row->contributors, row->contributors_count, rank);
    return its != NULL && ampd_incarnation_same(its->incarnation, incarnation);
}

/* An incarnation that contributed gets the result, also if it has lost its rank since. */
void ampd_push_answer_decided(struct ampd_model *model, struct ampd_call *call)
{
    const struct ampd_event_push *push = &call->push;
    struct amp_error error = {0};
    bool listed = has_counted(model, push->rank, push->incarnation);
    if (!listed && ampd_ranks_refuse(model, push->rank, push->incarnation, &error)) {
        ampd_call_end(call, error.code, error.reason, "%s", error.text);
        return;
    }
    struct ampd_reply *reply = ampd_call_reply(model->core, call->id, AMPD_REPLY_STEP);
    ampd_push_result(model, model->shard->decided.verdict, listed, &reply->u.step);
}

/* ---- GetPushState ---- */

static void reply_ranges(struct ampd_model *model, uint64_t id, const struct ampd_slot *slot)
{
    uint64_t count = model->tensors.count;
    struct ampd_block_range *ranges = ampd_need(calloc(count / 2 + 1, sizeof *ranges));
    uint64_t n = 0;
    for (uint64_t local = 0; local < count; local++) {
        bool here =
            slot != NULL && slot->states[local] == AMPD_BLOCK_PRESENT && model->shard->apply.pending[local] == 0;
        if (!here)
            continue;
        uint64_t block = model->tensors.first + local;
        if (n > 0 && ranges[n - 1].first + ranges[n - 1].count == block)
            ranges[n - 1].count++;
        else
            ranges[n++] = (struct ampd_block_range){block, 1};
    }
    struct ampd_reply *reply = ampd_call_reply(model->core, id, AMPD_REPLY_PUSH_STATE);
    reply->u.push_state.ranges_count = n;
    reply->u.push_state.ranges = ampd_out_own(model->core, ranges);
    reply->u.push_state.complete = slot != NULL && slot->complete;
}

static void reply_decided(struct ampd_model *model, uint64_t id)
{
    struct ampd_reply *reply = ampd_call_reply(model->core, id, AMPD_REPLY_PUSH_STATE);
    struct ampd_block_range all = {model->tensors.first, model->tensors.count};
    reply->u.push_state.ranges_count = all.count > 0 ? 1 : 0;
    reply->u.push_state.ranges = ampd_out_own(model->core, ampd_need(ampd_copy(&all, sizeof all)));
    reply->u.push_state.complete = true;
}

void ampd_push_state(struct ampd_core *core, uint64_t id, const struct ampd_event_push_state *state)
{
    struct ampd_model *model = ampd_core_usable(core, id, state->model);
    if (model == NULL)
        return;
    const struct ampd_shard *shard = model->shard;
    uint64_t next = ampd_shard_next_step(model);
    if (state->rank >= model->spec.world_size) {
        ampd_call_fail(core, id, model, AMP_EINVAL, "RANK", "rank: %u is not below the world_size of %s, %u",
                       state->rank, model->spec.name, model->spec.world_size);
        return;
    }
    struct amp_error error = {0};
    (void)ampd_ranks_renew(model, state->rank, state->incarnation);
    bool decided = state->epoch == shard->epoch && state->step == shard->decided.step && shard->decided.verdict != NULL;
    bool counted = decided && has_counted(model, state->rank, state->incarnation);
    if (!counted && ampd_ranks_refuse(model, state->rank, state->incarnation, &error)) {
        ampd_call_fail_with(core, id, model, &error);
    } else if (decided) {
        reply_decided(model, id);
    } else if (state->epoch < shard->epoch) {
        ampd_call_fail(core, id, model, AMP_EABORTED, "ROLLED_BACK",
                       "epoch %llu is over; join again: the model is in epoch %llu", (unsigned long long)state->epoch,
                       (unsigned long long)shard->epoch);
    } else if (state->epoch > shard->epoch || state->step > next + 1) {
        ampd_call_fail(core, id, model, AMP_ESTATE, "STEP_AHEAD", "step: epoch %llu, step %llu does not exist yet",
                       (unsigned long long)state->epoch, (unsigned long long)state->step);
    } else if (state->step < next) {
        ampd_call_fail(core, id, model, AMP_EABORTED, "STALE_STEP", "step %llu is decided; the model is at step %llu",
                       (unsigned long long)state->step, (unsigned long long)next);
    } else {
        const struct ampd_slot *slot = &shard->slots[state->rank];
        bool mine =
            state->step == next && slot->has_header && ampd_incarnation_same(slot->incarnation, state->incarnation);
        reply_ranges(model, id, mine ? slot : NULL);
    }
}

/* ---- calls of a model that does not go on ---- */

/* Writes the parameters that overflowed in the last decided step, as "fc1.weight, fc2.weight". */
static void name_parameters(const struct ampd_model *model, const struct ampd_verdict_message *last_verdict, char *text,
                            size_t size)
{
    const struct ampd_step_row *row = last_verdict == NULL ? NULL : &last_verdict->row;
    size_t used = 0;
    uint32_t last = UINT32_MAX;
    text[0] = 0;
    for (uint32_t i = 0; row != NULL && i < row->rows_count && used < size; i++) {
        if (row->rows[i].parameter == last)
            continue;
        last = row->rows[i].parameter;
        used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "",
                                 model->spec.parameters[last].name); /* truncated if it does not fit */
    }
}

void ampd_call_frozen(struct ampd_call *call)
{
    const struct ampd_model *model = call->model;
    const struct ampd_shard *shard = model->shard;
    const struct ampd_verdict_message *next = shard->decided.next; /* being stored: what shard 0 speaks of */
    const struct amp_scaler_state *scaler = next != NULL ? &next->row.after.scaler : &shard->carry.scaler;
    const struct ampd_verdict_message *last = next != NULL ? next : shard->decided.verdict;
    const struct ampd_metrics *metrics = last != NULL ? &last->row.metrics : NULL;
    char names[160];
    name_parameters(model, last, names, sizeof names);
    bool fails = model->spec.floor_policy == AMPD_FLOOR_FAIL;
    bool lost = metrics != NULL && metrics->loss_workers > 0 && !isfinite(metrics->loss);
    ampd_call_end(
        call, AMP_ESTATE, fails ? "MODEL_UNSTABLE" : "MODEL_FROZEN",
        "%s: %u overflows in a row and the scale is at its floor, %.9g%s%s%s; see why by ampctl explain, then set or "
        "reset the scale, or roll back",
        model->spec.name, scaler->consecutive_overflows, (double)scaler->scale,
        lost ? "; the loss itself is no finite number, which no scale can fix" : "",
        names[0] != 0 ? "; overflowing: " : "", names);
}

void ampd_call_let_go(struct ampd_core *core, struct ampd_call *call)
{
    AMP_ASSERT(call->state == AMPD_CALL_REVOKING);
    struct ampd_reply answer = *call->later;
    struct ampd_verdict_message *late = call->late;
    const struct ampd_model *model = call->model;
    uint64_t id = call->id;
    call->late = NULL;
    struct ampd_reply *reply = ampd_call_reply(core, id, AMPD_REPLY_NONE);
    *reply = answer;
    if (late != NULL)
        ampd_push_result(model, late, false, &reply->u.step);
    free(late);
}
