/*
 * Load: the first values of a model, written by one client stream straight into the masters. Others wait; when the
 * values are in, and checkpoint 0 holds them, all are answered. A model without checkpoint 0 is not loaded: a server
 * that ends before forgets the values, and the loader, who has no answer yet, sends them again.
 */
#include "base/assert.h"
#include "server/core/model.h"

#include <stdlib.h>
#include <string.h>

void ampd_load_begin(struct ampd_core *core, uint64_t id, const struct ampd_event_named *named)
{
    struct ampd_model *model = ampd_core_usable(core, id, named->model);
    if (model == NULL)
        return;
    if (ampd_call_begin(core, id, AMPD_CALL_LOAD, model) == NULL) {
        ampd_call_fail(core, id, model, AMP_EEXHAUSTED, "TOO_MANY_CALLS", "too many calls wait on this server");
        return;
    }
    ampd_load_next(model);
}

static void grant(struct ampd_model *model, struct ampd_call *call)
{
    struct ampd_shard *shard = &model->shard;
    AMP_ASSERT(shard->memory == AMPD_MEMORY_EMPTY);
    shard->memory = AMPD_MEMORY_LOADING;
    shard->loader = call->id;
    shard->load_count = 0;
    memset(shard->load_have, 0, model->tensors.count);
    ampd_call_set(call, AMPD_CALL_STREAMING);
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_LOAD_GRANT, call->id);
    output->u.load = (struct ampd_load_grant){.model = model->index,
                                              .layout = model->layout,
                                              .first = model->tensors.first,
                                              .count = model->tensors.count,
                                              .masters = model->tensors.masters};
}

void ampd_load_next(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    AMP_LIST_EACH(it, next, &model->loads)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (shard->memory == AMPD_MEMORY_READY && shard->loaded) {
            bool already = call->id != shard->loader;
            ampd_call_reply(model->core, call->id, AMPD_REPLY_LOAD)->u.load.already_loaded = already;
        } else if (shard->memory == AMPD_MEMORY_EMPTY && shard->loader == 0 && call->state == AMPD_CALL_HELD) {
            grant(model, call);
        }
    }
    if (shard->loaded)
        shard->loader = 0;
}

void ampd_load_block(struct ampd_core *core, struct ampd_call *call, const struct ampd_event_block *block)
{
    (void)core;
    struct ampd_model *model = call->model;
    struct ampd_shard *shard = &model->shard;
    uint64_t local = block->block - model->tensors.first;
    if (call->state != AMPD_CALL_STREAMING || local >= model->tensors.count)
        return;
    if (block->bad_checksum) {
        ampd_call_end(call, AMP_EDATALOSS, "BLOCK_CHECKSUM", "block %llu: its CRC32C does not match; load again",
                      (unsigned long long)block->block);
        return;
    }
    for (uint32_t i = 0; i < block->counts_count; i++) {
        const struct ampd_segment_count *count = &block->counts[i];
        if (count->inf_count + count->nan_count == 0)
            continue;
        ampd_call_end(call, AMP_EINVAL, "INVALID_TENSOR", "%s: element %llu is Inf or NaN; give finite first values",
                      model->spec.parameters[count->parameter].name, (unsigned long long)count->first_index);
        return;
    }
    if (shard->load_have[local] == 0) {
        shard->load_have[local] = 1;
        shard->load_count++;
    }
}

/* Masters -> cast copy of version 0, which is even; the moments begin at zero. */
static void cast_all(struct ampd_model *model)
{
    struct ampd_plan *plan = ampd_need(ampd_plan_new(&model->tensors, 0));
    plan->copy = 0;
    plan->saturate = model->spec.cast_overflow == AMPD_CAST_SATURATE;
    ampd_shard_bulk(model, AMPD_BULK_LOAD, AMPD_JOB_CAST | AMPD_JOB_RESET, plan);
    ampd_plan_unref(plan);
}

void ampd_load_end(struct ampd_core *core, struct ampd_call *call)
{
    struct ampd_model *model = call->model;
    struct ampd_shard *shard = &model->shard;
    if (call->kind != AMPD_CALL_LOAD || call->state != AMPD_CALL_STREAMING)
        return;
    ampd_call_set(call, AMPD_CALL_ENDED);
    if (shard->load_count == model->tensors.count) {
        cast_all(model);
        return;
    }
    uint64_t missing = 0;
    while (shard->load_have[missing] != 0)
        missing++;
    uint64_t id = call->id;
    ampd_call_fail(core, id, model, AMP_ESTATE, "INCOMPLETE_LOAD",
                   "block %llu is missing, and %llu more; send every block, then end the stream",
                   (unsigned long long)(model->tensors.first + missing),
                   (unsigned long long)(model->tensors.count - shard->load_count - 1));
    ampd_load_closed(model, id);
}

void ampd_load_closed(struct ampd_model *model, uint64_t id)
{
    struct ampd_shard *shard = &model->shard;
    if (shard->loader != id)
        return;
    shard->loader = 0;
    if (shard->memory != AMPD_MEMORY_LOADING || shard->bulk == AMPD_BULK_LOAD)
        return; /* all its values are here: it is a load, whoever still waits for the answer */
    shard->memory = AMPD_MEMORY_EMPTY;
    ampd_load_next(model);
}

void ampd_load_cast_done(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    shard->memory = AMPD_MEMORY_READY;
    shard->version = 0;
    shard->copy_valid[0] = true;
    shard->copy_version[0] = 0;
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_LOADED, 0);
    message->u.applied = shard->applied;
    ampd_bus_send_take(model, message);
}
