/*
 * Push: the staging slots of the ranks, and the streams that fill them (docs/step-protocol.md sections 2 and 5).
 *
 * Each block of a slot:
 *
 *   EMPTY     -> RECEIVING           granted to the one stream that may write the slot
 *   RECEIVING -> PRESENT, EMPTY      all its bytes came; or bad checksum, revoked or broken stream
 *   PRESENT   -> EMPTY               read by apply, or the step skipped; or an OPEN did not list the incarnation
 *
 * shard->apply.pending marks blocks that still hold bytes of the step being applied. Such a block is PRESENT for that
 * step alone, and is granted for the next step once apply has read it. Nor is a block granted while a pass of an
 * earlier try reads it.
 */
#include "server/core/shard/push.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/limits.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/base/ranks.h"
#include "server/core/model/layout.h"
#include "server/core/model/metrics.h"
#include "server/core/model/spec.h"
#include "server/core/model/states.h"
#include "server/core/model/tensors.h"
#include "server/core/shard/memory.h"
#include "server/core/shard/push_answer.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/messages.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void set_block(struct ampd_slot *slot, uint64_t local, enum ampd_block_state to)
{
    AMP_ASSERT(ampd_machine_allows(&ampd_machine_block, slot->states[local], to));
    slot->states[local] = (uint8_t)to;
}

static bool bit(const uint8_t *bits, uint32_t i)
{
    return bits != NULL && (bits[i / 8] >> (i % 8) & 1) != 0;
}

/* ---- slots ---- */

static void forget_header(struct ampd_model *model, struct ampd_slot *slot)
{
    slot->has_header = false;
    slot->ended = false;
    slot->complete = false;
    slot->vanished = 0;
    slot->present = 0;
    free(slot->absent);
    slot->absent = NULL;
    slot->metrics = (struct ampd_metrics){0};
    free(slot->user_state);
    slot->user_state = NULL;
    slot->user_state_size = 0;
    memset(slot->counts, 0, model->spec.parameters_count * sizeof *slot->counts);
    for (uint32_t p = 0; p < model->spec.parameters_count; p++)
        slot->counts[p].first_index = UINT64_MAX;
}

/* Blocks that a stream was to fill become EMPTY again. */
static void stop_receiving(struct ampd_model *model, struct ampd_slot *slot)
{
    for (uint64_t local = 0; local < model->tensors.count; local++) {
        if (slot->states[local] == AMPD_BLOCK_RECEIVING)
            set_block(slot, local, AMPD_BLOCK_EMPTY);
    }
}

/* Ends a push whose incarnation the open step does not have. */
static void end_without(struct ampd_call *call)
{
    struct amp_error error = {0};
    uint32_t rank = call->push.rank;
    if (!ampd_ranks_refuse(call->model, rank, call->push.incarnation, &error))
        (void)amp_error_set(&error, AMP_EABORTED, "FENCED", "the step was opened without rank %u; join again", rank);
    ampd_call_end(call, error.code, error.reason, "%s", error.text);
}

/* Ends the pushes of the slot's incarnation whose trailer is here: what they wait for cannot come any more. */
static void end_waiting(struct ampd_model *model, uint32_t rank)
{
    const struct ampd_slot *slot = &model->shard->slots[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    AMP_LIST_EACH(it, next, &model->pushes)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (call->state == AMPD_CALL_ENDED && call->push.rank == rank &&
            ampd_incarnation_same(call->push.incarnation, slot->incarnation))
            end_without(call);
    }
}

void ampd_slot_empty(struct ampd_model *model, uint32_t rank)
{
    struct ampd_slot *slot = &model->shard->slots[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    if (slot->has_header)
        end_waiting(model, rank);
    stop_receiving(model, slot);
    for (uint64_t local = 0; local < model->tensors.count; local++) {
        if (slot->states[local] == AMPD_BLOCK_PRESENT && model->shard->apply.pending[local] == 0)
            set_block(slot, local, AMPD_BLOCK_EMPTY);
    }
    forget_header(model, slot);
    struct ampd_call *writer = slot->writer == 0 ? NULL : ampd_call_find(model->core, slot->writer);
    if (writer != NULL)
        end_without(writer);
}

/* Says what a push does not agree with, as a sentence. 17 digits distinguish any two doubles. */
static void say_unfit(const struct ampd_slot *slot, const struct ampd_unfit *unfit, struct amp_error *error)
{
    uint32_t rank = unfit->push.contributor.rank;
    if (unfit->other != rank)
        (void)amp_error_set(error, AMP_EINVAL, "LEARNING_RATE",
                            "learning_rate: %.17g of rank %u, but %.17g of rank %u, whose push is complete; give the "
                            "same with all pushes of a step",
                            unfit->push.lr, rank, unfit->other_lr, unfit->other);
    else if (unfit->push.contributor.weight != unfit->other_weight)
        (void)amp_error_set(error, AMP_EINVAL, "WEIGHT",
                            "weight: %g here, and another on another shard; give the same to all shards",
                            (double)slot->weight);
    else
        (void)amp_error_set(
            error, AMP_EINVAL, "LEARNING_RATE",
            "learning_rate: rank %u gave %.17g to one shard and %.17g to another; give the same to all shards", rank,
            unfit->other_lr, unfit->push.lr);
}

void ampd_slot_unfit(struct ampd_model *model, const struct ampd_unfit *unfit)
{
    uint32_t rank = unfit->push.contributor.rank;
    const struct ampd_slot *slot = &model->shard->slots[rank];
    struct amp_error error = {0};
    AMP_ASSERT(rank < model->spec.world_size);
    say_unfit(slot, unfit, &error);
    AMP_LIST_EACH(it, next, &model->pushes)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (call->state != AMPD_CALL_HELD && call->push.rank == rank && slot->has_header &&
            ampd_incarnation_same(call->push.incarnation, slot->incarnation))
            ampd_call_end(call, error.code, error.reason, "%s", error.text);
    }
    ampd_slot_empty(model, rank);
}

/*
 * The step was decided without this push (quorum): it is answered LATE as soon as the I/O layer has let go of the slot.
 */
static void revoke_late(struct ampd_model *model, struct ampd_call *call)
{
    call->later = ampd_need(calloc(1, sizeof *call->later));
    call->later->kind = AMPD_REPLY_STEP;
    call->late = ampd_need(ampd_copy(model->shard->decided.verdict, sizeof *call->late));
    ampd_call_set(call, AMPD_CALL_REVOKING);
    (void)ampd_out(model->core, AMPD_OUT_PUSH_REVOKE, call->id);
}

void ampd_slot_next(struct ampd_model *model, uint32_t rank)
{
    struct ampd_slot *slot = &model->shard->slots[rank];
    struct ampd_call *writer = slot->writer == 0 ? NULL : ampd_call_find(model->core, slot->writer);
    bool late =
        writer != NULL && writer->state == AMPD_CALL_STREAMING && !slot->ended && model->shard->decided.verdict != NULL;
    AMP_ASSERT(rank < model->spec.world_size);
    stop_receiving(model, slot);
    forget_header(model, slot);
    if (late)
        revoke_late(model, writer); /* the slot has a writer until it has let go */
    else if (writer == NULL || writer->state != AMPD_CALL_REVOKING)
        slot->writer = 0;
}

static void count_segments(struct ampd_slot *slot, const struct ampd_event_block *block)
{
    for (uint32_t i = 0; i < block->counts_count; i++) {
        const struct ampd_segment_count *from = &block->counts[i];
        struct ampd_segment_count *to = &slot->counts[from->parameter];
        to->parameter = from->parameter;
        to->inf_count += from->inf_count;
        to->nan_count += from->nan_count;
        if (from->first_index < to->first_index)
            to->first_index = from->first_index;
        if (from->largest > to->largest)
            to->largest = from->largest;
    }
}

/* ---- granting ---- */

static void list_blocks(struct ampd_model *model, uint64_t id, uint64_t first, uint64_t count, bool drop)
{
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_PUSH_BLOCKS, id);
    output->u.blocks = (struct ampd_blocks){.first = model->tensors.first + first, .count = count, .drop = drop};
}

enum listing { LIST_LATER, LIST_RECEIVE, LIST_DROP };

static enum listing listing_of(const struct ampd_model *model, const struct ampd_slot *slot, uint64_t local)
{
    AMP_ASSERT(local < model->tensors.count);
    if (slot->ended)
        return LIST_DROP; /* the trailer has said what the push holds: nothing is written any more */
    if (model->shard->apply.pending[local] != 0)
        return LIST_LATER;
    if (slot->states[local] == AMPD_BLOCK_PRESENT)
        return LIST_DROP;
    return model->shard->jobs.busy[local] == 0 ? LIST_RECEIVE : LIST_LATER;
}

/* Lists every block that can be listed now, in runs. */
static void list_all(struct ampd_model *model, struct ampd_slot *slot, uint64_t id)
{
    uint64_t count = model->tensors.count;
    for (uint64_t first = 0; first < count;) {
        enum listing listing = listing_of(model, slot, first);
        uint64_t end = first;
        while (end < count && listing_of(model, slot, end) == listing)
            end++;
        for (uint64_t local = first; listing == LIST_RECEIVE && local < end; local++)
            set_block(slot, local, AMPD_BLOCK_RECEIVING);
        if (listing != LIST_LATER)
            list_blocks(model, id, first, end - first, listing == LIST_DROP);
        first = end;
    }
}

void ampd_push_unblock(struct ampd_model *model, uint64_t local)
{
    AMP_ASSERT(local < model->tensors.count);
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        struct ampd_slot *slot = &model->shard->slots[r];
        if (slot->writer == 0 || !slot->has_header || slot->states[local] != AMPD_BLOCK_EMPTY)
            continue;
        struct ampd_call *call = ampd_call_find(model->core, slot->writer);
        if (call == NULL || call->state != AMPD_CALL_STREAMING || listing_of(model, slot, local) != LIST_RECEIVE)
            continue;
        set_block(slot, local, AMPD_BLOCK_RECEIVING);
        list_blocks(model, call->id, local, 1, false);
    }
}

static void take_user_state(struct ampd_slot *slot, struct ampd_call *call)
{
    free(slot->user_state);
    slot->user_state = call->user_state;
    slot->user_state_size = call->push.user_state_size;
    call->user_state = NULL;
}

/* Writes the dtype of a contribution to the plan. It is known from the first header on, before any job reads it. */
static void set_plan_dtype(struct ampd_model *model, uint32_t rank, enum amp_dtype dtype)
{
    struct ampd_plan *plan = model->shard->step.plan;
    for (uint32_t i = 0; plan != NULL && i < plan->inputs_count; i++) {
        if (plan->inputs[i].rank == rank)
            plan->inputs[i].dtype = dtype;
    }
}

/*
 * Whether blocks of that dtype lie at other places in the slot than those that jobs may still read there, for the step
 * being applied or an earlier try: a new block would then be written over parts of several old ones.
 */
static bool lies_otherwise(const struct ampd_model *model, const struct ampd_slot *slot, enum amp_dtype dtype)
{
    if (slot->has_header || slot->dtype == AMP_DTYPE_NONE || amp_dtype_size(slot->dtype) == amp_dtype_size(dtype))
        return false;
    bool is_read = model->shard->jobs.out > 0;
    for (uint64_t local = 0; local < model->tensors.count && !is_read; local++)
        is_read = model->shard->apply.pending[local] != 0; /* apply waits for a checkpoint */
    return is_read;
}

static void grant(struct ampd_model *model, struct ampd_call *call)
{
    const struct ampd_event_push *push = &call->push;
    struct ampd_slot *slot = &model->shard->slots[push->rank];
    if (slot->writer != 0) {
        struct ampd_call *writer = ampd_call_find(model->core, slot->writer);
        AMP_ASSERT(writer != NULL && writer != call);
        ampd_call_end(writer, AMP_EABORTED, "REPLACED", "a newer push of rank %u has taken over", push->rank);
        return; /* held until the older stream has let go */
    }
    if (slot->has_header && (slot->dtype != push->dtype || slot->weight != push->weight)) {
        ampd_call_end(call, AMP_EINVAL, "INVALID_TENSOR",
                      "dtype and weight: a resumed push must have those of the one it goes on with, %s and %g",
                      amp_dtype_name(slot->dtype), (double)slot->weight);
        return;
    }
    if (slot->has_header && slot->lr != push->lr) {
        ampd_call_end(call, AMP_EINVAL, "LEARNING_RATE",
                      "learning_rate: %.17g, but a resumed push must have that of the one it goes on with, %.17g",
                      push->lr, slot->lr);
        return;
    }
    if (lies_otherwise(model, slot, push->dtype))
        return; /* held until the last of those jobs is done */
    if (!slot->has_header) {
        slot->has_header = true;
        slot->incarnation = push->incarnation;
        slot->dtype = push->dtype;
        slot->weight = push->weight;
        slot->lr = push->lr;
        if (model->shard->step.seen.pushed_us == 0)
            model->shard->step.seen.pushed_us = model->core->utc_us;
        set_plan_dtype(model, push->rank, push->dtype);
    }
    if (!slot->ended) /* else the trailer was that of a later header: this one was long on its way */
        take_user_state(slot, call);
    slot->writer = call->id;
    ampd_call_set(call, AMPD_CALL_STREAMING);
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_PUSH_GRANT, call->id);
    output->u.push = (struct ampd_push_grant){.model = model->index,
                                              .layout = model->layout,
                                              .first = model->tensors.first,
                                              .count = model->tensors.count,
                                              .memory = model->tensors.slots[push->rank],
                                              .stride = ampd_tensors_stride(&model->tensors, push->dtype),
                                              .dtype = push->dtype};
    list_all(model, slot, call->id);
}

/* ---- the table "The life of a step" of docs/protocol.md ---- */

/* A push of the open step. */
static void judge_open(struct ampd_model *model, struct ampd_call *call)
{
    const struct ampd_event_push *push = &call->push;
    const struct ampd_expected *expected = ampd_shard_expected(model, push->rank);
    if (expected == NULL || ampd_incarnation_newer(push->incarnation, expected->incarnation)) {
        if (model->shard->announced.state == AMPD_MODEL_STALLED)
            ampd_push_stalled(model, call);
        return; /* held until an OPEN lists it */
    }
    if (push->scale_id != model->shard->step.open.scale_id) {
        ampd_call_end(
            call, AMP_ESTATE, "SCALE_ID",
            "scale_id: %llu here, but step %llu has scale id %llu; pull the step and scale the loss by its scale",
            (unsigned long long)push->scale_id, (unsigned long long)push->step,
            (unsigned long long)model->shard->step.open.scale_id);
        return;
    }
    grant(model, call);
}

static void judge(struct ampd_model *model, struct ampd_call *call)
{
    const struct ampd_shard *shard = model->shard;
    const struct ampd_event_push *push = &call->push;
    uint64_t next = ampd_shard_next_step(model);
    bool open = shard->step.state != AMPD_STEP_NONE;
    struct amp_error error = {0};
    if (push->epoch == shard->epoch && push->step == shard->decided.step && shard->decided.verdict != NULL) {
        ampd_push_answer_decided(model, call);
    } else if (ampd_ranks_refuse(model, push->rank, push->incarnation, &error)) {
        ampd_call_end(call, error.code, error.reason, "%s", error.text);
    } else if (push->epoch < shard->epoch) {
        ampd_call_end(call, AMP_EABORTED, "ROLLED_BACK", "epoch %llu is over; join again: the model is in epoch %llu",
                      (unsigned long long)push->epoch, (unsigned long long)shard->epoch);
    } else if (push->epoch > shard->epoch) {
        ampd_call_end(call, AMP_ESTATE, "EPOCH_AHEAD", "epoch: %llu does not exist; the model is in epoch %llu",
                      (unsigned long long)push->epoch, (unsigned long long)shard->epoch);
    } else if (push->step < next) {
        ampd_call_end(call, AMP_EABORTED, "STALE_STEP", "step %llu is decided; the model is at step %llu",
                      (unsigned long long)push->step, (unsigned long long)next);
    } else if (shard->announced.state == AMPD_MODEL_DONE) {
        ampd_call_end(call, AMP_ESTATE, "MODEL_DONE", "%s is done after step %llu", model->spec.name,
                      (unsigned long long)shard->decided.step);
    } else if (push->step > next + (open ? 1 : 0)) {
        ampd_call_end(call, AMP_ESTATE, "STEP_AHEAD", "step: %llu is a later step than %llu, which is open; pull that",
                      (unsigned long long)push->step, (unsigned long long)next);
    } else if (open && push->step == next) {
        judge_open(model, call);
    } else if (shard->announced.frozen) {
        ampd_call_frozen(call);
    } else if (shard->announced.state == AMPD_MODEL_STALLED) {
        ampd_push_stalled(model, call);
    }
}

void ampd_push_stalled(struct ampd_model *model, struct ampd_call *call)
{
    ampd_call_end(call, AMP_EUNAVAILABLE, "MODEL_STALLED",
                  "%s waits for rank %u, which has been gone too long; what you pushed is kept", model->spec.name,
                  model->shard->announced.missing_rank);
}

static int check_lr(const struct ampd_model *model, const struct ampd_event_push *push, struct amp_error *error)
{
    const char *name = model->spec.name;
    if (model->spec.schedule != AMPD_SCHEDULE_WORKER && push->has_lr)
        return amp_error_set(error, AMP_EINVAL, "LEARNING_RATE",
                             "learning_rate: %s has a schedule of its own; leave it out", name);
    if (model->spec.schedule == AMPD_SCHEDULE_WORKER && !push->has_lr)
        return amp_error_set(error, AMP_EINVAL, "LEARNING_RATE",
                             "learning_rate: %s has schedule WORKER; give that of the step with each push", name);
    if (push->has_lr && !ampd_spec_takes_lr(push->lr))
        return amp_error_set(error, AMP_EINVAL, "LEARNING_RATE",
                             "learning_rate: %g; give a finite number, 0 or more, within the range of fp32", push->lr);
    return 0;
}

static int check_header(const struct ampd_model *model, const struct ampd_event_push *push, struct amp_error *error)
{
    if (push->rank >= model->spec.world_size)
        return amp_error_set(error, AMP_EINVAL, "RANK", "rank: %u is not below the world_size of %s, %u", push->rank,
                             model->spec.name, model->spec.world_size);
    if (push->dtype != AMP_F32 && push->dtype != AMP_F16 && push->dtype != AMP_BF16)
        return amp_error_set(error, AMP_EINVAL, "INVALID_TENSOR", "dtype: %d cannot be pushed; use F32, F16 or BF16",
                             (int)push->dtype);
    if (push->user_state_size > AMPD_USER_STATE_MAX)
        return amp_error_set(error, AMP_EINVAL, "USER_STATE", "user_state: %u bytes; at most %d", push->user_state_size,
                             AMPD_USER_STATE_MAX);
    if (model->spec.weighting == AMPD_WEIGHTING_EQUAL && push->weight != 1)
        return amp_error_set(error, AMP_EINVAL, "WEIGHT", "weight: %g, but weighting is EQUAL; leave it out",
                             (double)push->weight);
    bool fits = push->weight == 0 || (push->weight >= AMPD_WEIGHT_MIN && push->weight <= AMPD_WEIGHT_MAX);
    if (!fits)
        return amp_error_set(error, AMP_EINVAL, "WEIGHT", "weight: %g; give 0, or a number from 2^-60 to 2^24",
                             (double)push->weight);
    return check_lr(model, push, error);
}

/* Bounds the held pushes of one rank, whichever client sends them: the oldest gives way to the newest. */
static void bound_held(struct ampd_model *model, uint32_t rank)
{
    struct ampd_call *oldest = NULL;
    unsigned held = 0;
    AMP_LIST_EACH(it, next, &model->pushes)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (call->state != AMPD_CALL_HELD || call->push.rank != rank)
            continue;
        if (held++ == 0)
            oldest = call;
    }
    if (held > AMPD_HELD_PUSHES)
        ampd_call_end(oldest, AMP_EABORTED, "REPLACED", "newer pushes of rank %u wait for their step", rank);
}

void ampd_push_begin(struct ampd_core *core, uint64_t id, const struct ampd_event_push *push)
{
    struct ampd_model *model = ampd_core_usable(core, id, push->model);
    if (model == NULL)
        return;
    struct amp_error error = {0};
    if (check_header(model, push, &error) != 0) {
        ampd_call_fail_with(core, id, model, &error);
        return;
    }
    if (model->shard->memory != AMPD_MEMORY_READY) {
        ampd_call_fail(core, id, model, AMP_ESTATE, "MODEL_NOT_LOADED", "%s has no values yet; load it first",
                       model->spec.name);
        return;
    }
    struct ampd_call *call = ampd_call_begin(core, id, AMPD_CALL_PUSH, model);
    uint8_t *user_state = call == NULL ? NULL : ampd_copy(push->user_state, push->user_state_size);
    if (user_state == NULL) {
        ampd_call_fail(core, id, model, AMP_EEXHAUSTED, "TOO_MANY_CALLS", "too many calls wait on this server");
        return;
    }
    call->push = *push;
    call->push.model = model->spec.name;
    call->push.user_state = NULL;
    call->push.lr = push->has_lr && push->lr > 0 ? push->lr : 0; /* -0 is 0: equal rates have equal bits */
    call->user_state = user_state;
    (void)ampd_ranks_renew(model, push->rank, push->incarnation); /* if the lease has ended, judge() refuses the push */
    judge(model, call);
    bound_held(model, push->rank);
}

void ampd_push_retry(struct ampd_model *model)
{
    AMP_LIST_EACH(it, next, &model->pushes)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (call->state == AMPD_CALL_HELD)
            judge(model, call);
    }
}

/* ---- blocks and trailer ---- */

void ampd_push_block(struct ampd_call *call, const struct ampd_event_block *block)
{
    struct ampd_model *model = call->model;
    uint64_t local = block->block - model->tensors.first;
    if (call->kind != AMPD_CALL_PUSH || call->state != AMPD_CALL_STREAMING || local >= model->tensors.count)
        return;
    struct ampd_slot *slot = &model->shard->slots[call->push.rank];
    AMP_ASSERT(slot->writer == call->id);
    if (slot->states[local] != AMPD_BLOCK_RECEIVING)
        return;
    if (block->bad_checksum) {
        set_block(slot, local, AMPD_BLOCK_EMPTY);
        ampd_call_end(call, AMP_EDATALOSS, "BLOCK_CHECKSUM",
                      "block %llu: its CRC32C does not match; ask GetPushState and send the rest again",
                      (unsigned long long)block->block);
        return;
    }
    set_block(slot, local, AMPD_BLOCK_PRESENT);
    slot->present++;
    count_segments(slot, block);
    ampd_shard_take_votes(model, local, call->push.rank, block);
    ampd_shard_try_block(model, local);
}

/* The push cannot count as it is: the calls that wait with it get the reason, and a complete trailer may come later. */
static void refuse_trailer(struct ampd_model *model, uint32_t rank, const char *parameter)
{
    struct ampd_slot *slot = &model->shard->slots[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    slot->ended = false;
    free(slot->absent);
    slot->absent = NULL;
    slot->metrics = (struct ampd_metrics){0};
    bool vanished = slot->vanished > 0;
    slot->vanished -= vanished ? 1 : 0;
    AMP_LIST_EACH(it, next, &model->pushes)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (call->state != AMPD_CALL_ENDED || call->push.rank != rank ||
            !ampd_incarnation_same(call->push.incarnation, slot->incarnation))
            continue;
        if (vanished)
            ampd_call_end(call, AMP_EABORTED, "REPLACED",
                          "the server has started again; ask GetPushState and begin again");
        else
            ampd_call_end(call, AMP_EINVAL, "INCOMPLETE_PUSH",
                          "a block is missing that holds a part of %s; send all blocks, and list each parameter "
                          "without a gradient in trailer.absent",
                          parameter);
    }
    struct ampd_call *writer = slot->writer == 0 ? NULL : ampd_call_find(model->core, slot->writer);
    if (writer != NULL) /* it drops blocks that are wanted now */
        ampd_call_end(writer, AMP_EABORTED, "REPLACED",
                      "the trailer before was refused; ask GetPushState and begin again");
}

/* Whether every parameter of a block is in the absent list; else *parameter is one that is not. */
static bool all_absent(const struct ampd_model *model, const struct ampd_slot *slot, uint64_t block,
                       uint32_t *parameter)
{
    uint32_t count;
    const struct ampd_segment *segments = ampd_layout_block(model->layout, block, &count);
    for (uint32_t i = 0; i < count; i++) {
        if (!bit(slot->absent, segments[i].parameter)) {
            *parameter = segments[i].parameter;
            return false;
        }
    }
    return true;
}

bool ampd_slot_any_absent(const struct ampd_model *model, const struct ampd_slot *slot, uint64_t block)
{
    uint32_t count;
    const struct ampd_segment *segments = ampd_layout_block(model->layout, block, &count);
    for (uint32_t i = 0; i < count; i++) {
        if (bit(slot->absent, segments[i].parameter))
            return true;
    }
    return false;
}

static void set_bit(uint8_t *bits, uint32_t i)
{
    bits[i / 8] |= (uint8_t)(1u << (i % 8));
}

/* Judges a slot whose trailer is here, once no block of it waits for apply. */
static void check_end(struct ampd_model *model, uint32_t rank)
{
    struct ampd_slot *slot = &model->shard->slots[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    if (!slot->ended || slot->complete || model->shard->decided.state == AMPD_DECIDED_APPLYING)
        return;
    for (uint64_t local = 0; local < model->tensors.count; local++) {
        uint32_t parameter = 0;
        uint64_t block = model->tensors.first + local;
        if (slot->states[local] == AMPD_BLOCK_PRESENT || all_absent(model, slot, block, &parameter))
            continue;
        refuse_trailer(model, rank, model->spec.parameters[parameter].name);
        return;
    }
    slot->complete = true;
    ampd_shard_completed(model, rank);
    for (uint64_t local = 0; local < model->tensors.count; local++) {
        if (slot->states[local] == AMPD_BLOCK_PRESENT &&
            ampd_slot_any_absent(model, slot, model->tensors.first + local))
            ampd_shard_revote(model, local, rank);
        ampd_shard_try_block(model, local);
    }
    ampd_shard_try_vote(model);
}

void ampd_push_check_ends(struct ampd_model *model)
{
    for (uint32_t r = 0; r < model->spec.world_size; r++)
        check_end(model, r);
}

static int set_absent(const struct ampd_model *model, struct ampd_slot *slot, const struct ampd_event_push_end *end,
                      struct amp_error *error)
{
    uint32_t parameters = model->spec.parameters_count;
    size_t size = (parameters + 7) / 8;
    if (end->absent_count == 0 && slot->weight != 0)
        return 0;
    uint8_t *absent = ampd_need(calloc(1, size));
    for (uint32_t i = 0; i < end->absent_count; i++) {
        uint32_t p = end->absent[i];
        if (p >= parameters || bit(absent, p)) {
            free(absent);
            return amp_error_set(error, AMP_EINVAL, "INVALID_TENSOR", "trailer.absent: give each index below %u once",
                                 parameters);
        }
        set_bit(absent, p);
    }
    if (slot->weight == 0) /* it counts for nothing, whatever blocks it has sent (docs/step-protocol.md section 4) */
        memset(absent, 0xff, size);
    slot->absent = absent;
    return 0;
}

/* Takes what the trailer says into the slot: the first trailer of a push counts. */
static int take_trailer(const struct ampd_model *model, struct ampd_slot *slot, const struct ampd_event_push_end *end,
                        struct amp_error *error)
{
    int rc = end->metrics == NULL ? 0 : ampd_metrics_check(end->metrics, error);
    if (rc == 0)
        rc = set_absent(model, slot, end, error);
    if (rc != 0)
        return rc;
    if (end->metrics != NULL)
        slot->metrics = *end->metrics;
    slot->ended = true;
    return 0;
}

void ampd_push_end(struct ampd_core *core, struct ampd_call *call, const struct ampd_event_push_end *end)
{
    struct ampd_model *model = call->model;
    if (call->kind != AMPD_CALL_PUSH || call->state != AMPD_CALL_STREAMING)
        return;
    uint32_t rank = call->push.rank;
    struct ampd_slot *slot = &model->shard->slots[rank];
    AMP_ASSERT(slot->writer == call->id);
    slot->writer = 0;
    stop_receiving(model, slot);
    ampd_call_set(call, AMPD_CALL_ENDED);
    struct amp_error error = {0};
    if (!slot->ended && take_trailer(model, slot, end, &error) != 0) {
        ampd_call_fail_with(core, call->id, model, &error);
        ampd_push_retry(model);
        return;
    }
    uint64_t id = call->id;
    check_end(model, rank);
    call = ampd_call_find(core, id);
    if (call != NULL && model->shard->announced.state == AMPD_MODEL_STALLED)
        ampd_push_stalled(model, call);
    ampd_push_retry(model);
}

void ampd_push_closed(struct ampd_model *model, uint64_t id)
{
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        struct ampd_slot *slot = &model->shard->slots[r];
        if (slot->writer != id)
            continue;
        slot->writer = 0;
        stop_receiving(model, slot);
    }
    ampd_push_retry(model);
    ampd_memory_try_restore(model);
}

void ampd_push_answer(struct ampd_model *model)
{
    AMP_LIST_EACH(it, next, &model->pushes)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (call->push.step == model->shard->decided.step && call->state != AMPD_CALL_REVOKING)
            ampd_push_answer_decided(model, call);
    }
}
