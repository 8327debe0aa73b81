/*
 * Load: the first values of a model. One client (the loader) writes them straight into the masters, by one stream to
 * each shard, all under one number. Other loads wait. When the values are in, and checkpoint 0 holds them, all loads
 * are answered. Without checkpoint 0 a model is not loaded: a server that ends before loses the values, and the loader,
 * which has no answer yet, sends them again.
 *
 * The coordinator decides which load may write. A shard with a waiting load sends LOAD_WANT, and LOAD_GRANT names one
 * load to all shards, the only one of its epoch. A new epoch begins when a stream of that load breaks off before its
 * end (LOAD_GONE), or when another load waits and no LOAD_WANT has come for this one for the time of a lease: the
 * values of two loads must not meet in one model, and some may have been read already. A shard goes on to send
 * LOAD_WANT for the load with the grant only while that brings blocks that were not here, and while they are cast. If
 * an open stream were enough, a loader that sends nothing more would keep the model for ever.
 *
 * A full load brings a model from elsewhere, with moments and user states. It names the step that they go on from, with
 * version and scale record: its base. Each epoch has a base, too, from its beginning, and LOAD_WANT names that of the
 * load: for a load with another base than the epoch's a new epoch begins (coord_load.c). So the first row of an epoch
 * always says what its first step follows from. A shard checks here that the stream has the epoch's base.
 */
#include "server/core/shard/load.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/model/tensors.h"
#include "server/core/shard/bulk.h"
#include "server/core/shard/memory.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/bus.h"

#include <stdlib.h>
#include <string.h>

static bool is_mine(const struct ampd_model *model, const struct ampd_message *message)
{
    return message->epoch == model->shard->epoch;
}

void ampd_load_begin(struct ampd_core *core, uint64_t id, const struct ampd_event_load *load)
{
    struct ampd_model *model = ampd_core_known(core, id, load->model); /* it may still be being made ready */
    if (model == NULL)
        return;
    if (load->loader == 0 && AMPD_COUNT(core) > 1) {
        ampd_call_fail(core, id, model, AMP_EINVAL, "LOADER",
                       "load: this model has %u shards; give its load one number, the same on each of them",
                       AMPD_COUNT(core));
        return;
    }
    struct amp_error error = {0};
    if (load->base != NULL && ampd_load_base_check(&model->spec, load->base, &error) != 0) {
        ampd_call_fail_with(core, id, model, &error);
        return;
    }
    struct ampd_call *call = ampd_call_begin(core, id, AMPD_CALL_LOAD, model);
    if (call == NULL) {
        ampd_call_fail(core, id, model, AMP_EEXHAUSTED, "TOO_MANY_CALLS", "too many calls wait on this server");
        return;
    }
    call->loader = load->loader == 0 ? id : load->loader;
    call->is_full = load->base != NULL;
    call->base = load->base != NULL ? *load->base : ampd_load_base_first(&model->spec);
    ampd_load_next(model);
}

static void clear_states(struct ampd_model *model)
{
    for (uint32_t r = 0; r < model->spec.world_size; r++)
        ampd_memory_take_user_state(model, r, NULL, 0);
}

static void grant(struct ampd_model *model, struct ampd_call *call)
{
    struct ampd_shard *shard = model->shard;
    float *const planes[AMPD_PLANES_MAX] = {model->tensors.masters, model->tensors.m, model->tensors.v};
    AMP_ASSERT(shard->memory == AMPD_MEMORY_EMPTY);
    if (!ampd_load_base_same(&call->base, &shard->load.base)) { /* the streams of one load differ */
        ampd_call_end(call, AMP_EINVAL, "INVALID_FIELD",
                      "state: another shard was given another one; send the same with each stream of a load");
        return;
    }
    ampd_memory_set(shard, AMPD_MEMORY_LOADING);
    shard->load.loader = call->id;
    shard->load.planes = call->is_full ? 1 + model->tensors.moments : 1;
    shard->load.count = 0;
    shard->load.moved = true;
    memset(shard->load.have, 0, model->tensors.count);
    clear_states(model);
    ampd_call_set(call, AMPD_CALL_STREAMING);
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_LOAD_GRANT, call->id);
    output->u.load = (struct ampd_load_grant){.model = model->index,
                                              .layout = model->layout,
                                              .first = model->tensors.first,
                                              .count = model->tensors.count,
                                              .planes_count = shard->load.planes,
                                              .world_size = call->is_full ? model->spec.world_size : 0};
    memcpy(output->u.load.planes, planes, shard->load.planes * sizeof planes[0]);
}

/*
 * Whether the present coordinator has said, about the memory as it is now, that the model is loaded. What a shard finds
 * on its disk does not count: its checkpoint 0, and its journal, may be void because another shard has lost its part,
 * and a loader would take it for the answer and never send the values again.
 */
static bool is_loaded(const struct ampd_shard *shard)
{
    return shard->memory == AMPD_MEMORY_READY && shard->announced.state >= AMPD_MODEL_WAITING &&
           shard->announced.loaded_is_confirmed;
}

void ampd_load_next(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    AMP_LIST_EACH(it, next, &model->loads)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (is_loaded(shard)) {
            bool already = call->id != shard->load.loader;
            ampd_call_reply(model->core, call->id, AMPD_REPLY_LOAD)->u.load.already_loaded = already;
        } else if (shard->memory == AMPD_MEMORY_EMPTY && shard->load.loader == 0 && call->state == AMPD_CALL_HELD &&
                   call->loader == shard->load.granted) {
            grant(model, call);
        }
    }
    if (shard->announced.state >= AMPD_MODEL_WAITING)
        shard->load.loader = 0;
    else if (shard->memory == AMPD_MEMORY_EMPTY && shard->load.loader == 0)
        ampd_load_wants(model);
}

static void send_want(struct ampd_model *model, const struct ampd_call *call)
{
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_LOAD_WANT, 0);
    message->u.want.loader = call->loader;
    message->u.want.base = call->base;
    ampd_bus_send_take(model->core, message);
}

/* The call of the load that has the grant, or NULL. */
static const struct ampd_call *find_granted(const struct ampd_model *model)
{
    AMP_LIST_EACH(it, next, &model->loads)
    {
        const struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (call->loader == model->shard->load.granted)
            return call;
    }
    return NULL;
}

void ampd_load_wants(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    if (shard->announced.state >= AMPD_MODEL_WAITING || shard->memory < AMPD_MEMORY_EMPTY)
        return;
    bool is_casting = shard->memory == AMPD_MEMORY_LOADING && shard->jobs.bulk != AMPD_BULK_NONE;
    bool moved = shard->load.moved || is_casting;
    shard->load.moved = false;
    const struct ampd_call *granted = moved && shard->load.granted != 0 ? find_granted(model) : NULL;
    if (granted != NULL) {
        send_want(model, granted);
        return;
    }
    AMP_LIST_EACH(it, next, &model->loads)
    {
        const struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (call->state != AMPD_CALL_HELD || call->loader == shard->load.granted)
            continue;
        send_want(model, call);
        return;
    }
}

/* The loader's stream broke off, and some of its values are here. */
static bool is_broken(const struct ampd_shard *shard)
{
    return shard->memory == AMPD_MEMORY_LOADING && shard->load.loader == 0;
}

/* Sends LOAD_GONE to the coordinator, if a load has broken off here. */
static void send_gone(struct ampd_model *model)
{
    if (is_broken(model->shard))
        ampd_bus_send_take(model->core, ampd_bus_message(model, AMPD_MESSAGE_LOAD_GONE, 0));
}

/* Also LOAD_WANT for the load that has the grant: a coordinator that has started again knows of no load. */
void ampd_load_resend(struct ampd_model *model)
{
    ampd_load_loaded(model);
    send_gone(model);
    model->shard->load.moved = true;
    ampd_load_wants(model);
}

void ampd_load_granted(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_shard *shard = model->shard;
    uint64_t loader = message->u.load;
    bool trains = shard->step.state != AMPD_STEP_NONE || shard->decided.step > shard->base_step; /* nothing is loaded */
    AMP_ASSERT(message->from == 0);
    if (!is_mine(model, message) || shard->announced.state >= AMPD_MODEL_WAITING || trains ||
        shard->memory < AMPD_MEMORY_EMPTY || shard->new_epoch != 0 || loader == 0 ||
        (shard->load.granted != 0 && shard->load.granted != loader))
        return;
    shard->load.granted = loader;
    ampd_load_loaded(model);
    ampd_load_next(model);
}

bool ampd_load_streams(const struct ampd_model *model)
{
    AMP_LIST_EACH(it, next, &model->loads)
    {
        if (AMP_CONTAINER(it, struct ampd_call, node)->state != AMPD_CALL_HELD)
            return true;
    }
    return false;
}

void ampd_load_void(struct ampd_model *model)
{
    AMP_LIST_EACH(it, next, &model->loads)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (call->state != AMPD_CALL_HELD) /* a load that has sent nothing yet may go on waiting */
            ampd_call_end(call, AMP_EUNAVAILABLE, "RECOVERING", "%s starts again; load again", model->spec.name);
    }
}

/* The first of n values, none of them NaN, that is below 0; n: none. */
static size_t first_negative(const float *values, size_t n)
{
    size_t first = 0;
    while (first < n && values[first] >= 0)
        first++;
    return first;
}

/*
 * False, and the call has ended: the block is of the moment that is made of squares (m of Adagrad and RMSProp, v of the
 * others; SGD and Lion have none) and has an element below 0. Its root would make the master NaN, without any overflow
 * that tells of it.
 */
static bool check_squares(struct ampd_call *call, const struct ampd_event_block *block)
{
    const struct ampd_model *model = call->model;
    enum amp_optimizer optimizer = (enum amp_optimizer)model->spec.optimizer;
    uint32_t plane = amp_optim_squares(optimizer) ? amp_optim_moments(optimizer, 0) : 0;
    if (block->plane == 0 || block->plane != plane)
        return true;
    const float *moments = plane == 1 ? model->tensors.m : model->tensors.v;
    const float *values = moments + (block->block - model->tensors.first) * model->layout->block_elements;
    uint32_t count;
    const struct ampd_segment *segments = ampd_layout_block(model->layout, block->block, &count);
    for (uint32_t i = 0; i < count; i++) {
        size_t first = first_negative(values + segments[i].offset, segments[i].count);
        if (first == segments[i].count)
            continue;
        ampd_call_end(call, AMP_EINVAL, "INVALID_TENSOR",
                      "%s: element %llu of %s is below 0, but this moment is made of squares (torch: exp_avg_sq, "
                      "square_avg, sum); give the moments in the order m, v",
                      model->spec.parameters[segments[i].parameter].name,
                      (unsigned long long)(segments[i].first + first), plane == 1 ? "m" : "v");
        return false;
    }
    return true;
}

void ampd_load_block(struct ampd_call *call, const struct ampd_event_block *block)
{
    struct ampd_model *model = call->model;
    struct ampd_shard *shard = model->shard;
    uint64_t local = block->block - model->tensors.first;
    if (call->state != AMPD_CALL_STREAMING || local >= model->tensors.count || block->plane >= shard->load.planes)
        return;
    if (block->bad_checksum) {
        ampd_call_end(call, AMP_EDATALOSS, "BLOCK_CHECKSUM", "block %llu: its CRC32C does not match; load again",
                      (unsigned long long)block->block);
        return;
    }
    for (uint32_t i = 0; i < block->counts_count; i++) {
        const struct ampd_segment_count *count = &block->counts[i];
        /*
         * A moment may have become Inf in training (docs/numerics.md), and training goes on with it; so may a loaded
         * one.
         */
        if (count->nan_count + (block->plane == 0 ? count->inf_count : 0) == 0)
            continue;
        ampd_call_end(call, AMP_EINVAL, "INVALID_TENSOR",
                      block->plane == 0 ? "%s: element %llu of its values is Inf or NaN; give finite ones"
                                        : "%s: from element %llu on its moments have NaN; give numbers",
                      model->spec.parameters[count->parameter].name, (unsigned long long)count->first_index);
        return;
    }
    if (!check_squares(call, block))
        return;
    if ((shard->load.have[local] >> block->plane & 1) == 0) {
        shard->load.have[local] |= (uint8_t)(1u << block->plane);
        shard->load.count++;
        shard->load.moved = true;
    }
}

void ampd_load_state(struct ampd_call *call, const struct ampd_event_load_state *state)
{
    struct ampd_model *model = call->model;
    if (call->state != AMPD_CALL_STREAMING || !call->is_full)
        return;
    AMP_ASSERT(state->rank < model->spec.world_size && state->size <= AMPD_USER_STATE_MAX);
    ampd_memory_take_user_state(model, state->rank, state->data, state->size);
    model->shard->load.moved = true;
}

/* Masters -> cast copy of the base's version; the moments begin at zero, if they were not sent. */
static void cast_all(struct ampd_model *model, bool is_full)
{
    struct ampd_plan *plan = ampd_need(ampd_plan_new(&model->tensors, 0));
    ampd_plan_copy(plan, (unsigned)(model->shard->version % AMPD_COPIES), true);
    plan->saturate = model->spec.cast_overflow == AMPD_CAST_SATURATE;
    ampd_shard_bulk(model, AMPD_BULK_LOAD, is_full ? AMPD_JOB_CAST : AMPD_JOB_CAST | AMPD_JOB_RESET, plan);
    ampd_plan_unref(plan);
}

void ampd_load_end(struct ampd_core *core, struct ampd_call *call)
{
    struct ampd_model *model = call->model;
    struct ampd_shard *shard = model->shard;
    if (call->kind != AMPD_CALL_LOAD || call->state != AMPD_CALL_STREAMING)
        return;
    ampd_call_set(call, AMPD_CALL_ENDED);
    uint64_t wanted = model->tensors.count * shard->load.planes;
    if (shard->load.count == wanted) {
        cast_all(model, call->is_full);
        return;
    }
    uint64_t missing = 0;
    while (shard->load.have[missing] == (1u << shard->load.planes) - 1)
        missing++;
    uint64_t id = call->id;
    ampd_call_fail(core, id, model, AMP_ESTATE, "INCOMPLETE_LOAD",
                   "block %llu is missing%s, and %llu more; send every block, then end the stream",
                   (unsigned long long)(model->tensors.first + missing),
                   (shard->load.have[missing] & 1) != 0 ? " in the moments" : "",
                   (unsigned long long)(wanted - shard->load.count - 1));
    ampd_load_closed(model, id);
}

void ampd_load_closed(struct ampd_model *model, uint64_t id)
{
    struct ampd_shard *shard = model->shard;
    if (shard->load.loader != id)
        return;
    shard->load.loader = 0;
    if (shard->jobs.bulk ==
        AMPD_BULK_NONE) /* else all its values are here: the model is loaded, though its client has gone */
        send_gone(model);
}

void ampd_load_loaded(struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    if (shard->memory != AMPD_MEMORY_READY || shard->announced.state >= AMPD_MODEL_WAITING)
        return;
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_LOADED, 0);
    message->u.applied = shard->apply.warnings;
    ampd_bus_send_take(model->core, message);
}

void ampd_load_cast_done(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    ampd_memory_set(shard, AMPD_MEMORY_READY);
    AMP_ASSERT(shard->version == shard->load.base.version);
    shard->apply.copy_valid[shard->version % AMPD_COPIES] = true;
    ampd_load_loaded(model);
}
