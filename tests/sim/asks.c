/*
 * GetPushState, asked at any moment: in the middle of a push, while the step before is applied, after a restart; and pushes that begin as
 * soon as the step before is decided, without a Pull. Whatever it names
 * PRESENT must have come to this process, of just this push: a client does not send such a block again.
 */
#include "client/core/machine.h"
#include "server/core/coordinator/workers.h"
#include "server/core/base/model.h"
#include "server/core/model/layout.h"
#include "server/core/base/process.h"
#include "server/core/shard/shard.h"
#include "tests/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool same(const struct sim_asked *a, const struct sim_asked *b)
{
    return a->epoch == b->epoch && a->step == b->step && a->rank == b->rank &&
           ampd_incarnation_same(a->incarnation, b->incarnation);
}

void sim_asks_block(struct sim *sim, const struct sim_call *call, uint64_t block)
{
    struct sim_got *got = &sim_process(sim, call)->got[call->asked.rank];
    if (!same(&got->push, &call->asked))
        *got = (struct sim_got){.push = call->asked};
    got->blocks |= (uint64_t)1 << block;
}

/* Of a step that is decided, or whose vote is in the journal, all is there. */
static bool is_over(const struct sim_shard *shard, const struct sim_asked *asked)
{
    const struct ampd_shard *inside = shard->core->models[0]->shard;
    return inside->journal.kept != NULL || inside->decided.step >= asked->step;
}

void sim_asks_reply(struct sim *sim, const struct sim_call *call, const struct ampd_reply *reply)
{
    const struct sim_shard *shard = sim_process(sim, call);
    if (reply->error.code != 0 || reply->kind != AMPD_REPLY_PUSH_STATE || is_over(shard, &call->asked))
        return;
    const struct sim_got *got = &shard->got[call->asked.rank];
    uint64_t here = same(&got->push, &call->asked) ? got->blocks : 0, told = 0;
    for (uint64_t i = 0; i < reply->u.push_state.ranges_count; i++) {
        const struct ampd_block_range *range = &reply->u.push_state.ranges[i];
        for (uint64_t b = range->first; b < range->first + range->count; b++)
            told |= (uint64_t)1 << b;
    }
    if ((told & ~here) != 0)
        sim_fail(sim, SIM_COUNTED_ONCE,
                 "rank %u is told that shard %u has blocks %llx of step %llu, but %llx have come", call->asked.rank,
                 shard->index, (unsigned long long)told, (unsigned long long)call->asked.step,
                 (unsigned long long)here);
}

/* Nobody waits for the answer: the worker goes on as if nothing had been asked. */
void sim_asks_act(struct sim *sim)
{
    uint32_t w = (uint32_t)sim_more(sim, sim->model.spec.world_size);
    const struct sim_worker *worker = &sim->workers[w];
    if (worker->core == NULL || worker->silent || worker->step == 0 || worker->program == SIM_FINISHED)
        return;
    sim->asks--;
    struct sim_call *call = sim_call_new(sim, SIM_UNARY, (uint32_t)sim_more(sim, sim->shards), w, 0);
    call->lost = call->client_gone = true;
    struct sim_message *message = sim_message_new(SIM_REQUEST);
    message->request.type = AMPD_EVENT_GET_PUSH_STATE;
    (void)snprintf(message->text[0], AMPD_NAME_MAX, "%s", sim->model.spec.name);
    const struct ampclient_incarnation *incarnation = &worker->core->incarnation;
    uint64_t step = worker->step + sim_more(sim, 2); /* the one in hand, or the next */
    call->asked = (struct sim_asked){worker->epoch, step, w, {incarnation->fence, incarnation->counter}};
    message->request.u.push_state = (struct ampd_event_push_state){message->text[0], call->asked.epoch,
                                                                   call->asked.step, w, call->asked.incarnation};
    amp_list_push(&call->up, &message->node);
}

/* The bytes of a block, as a client makes them of its gradients. */
static void fill_block(const struct sim_model *model, const struct sim_key *key, float scale,
                       struct sim_message *message)
{
    uint32_t count;
    const struct ampd_segment *segments = ampd_layout_block(model->layout, message->block, &count);
    size_t element = amp_dtype_size(sim_model_dtype(model, key));
    message->size = ampd_layout_block_elements(model->layout, message->block) * element;
    message->data = calloc(1, message->size);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t gradient[256];
        if (sim_model_absent(model, key, segments[i].parameter))
            continue;
        sim_model_gradient(model, key, scale, segments[i].parameter, gradient);
        memcpy(message->data + segments[i].offset * element, (const uint8_t *)gradient + segments[i].first * element,
               segments[i].count * element);
    }
}

/* Some parameter is not absent: then the push of the client's core has this dtype, too. */
static bool has_any(const struct sim_model *model, const struct sim_key *key)
{
    bool any = false;
    for (uint32_t p = 0; p < model->spec.parameters_count; p++)
        any = any || !sim_model_absent(model, key, p);
    return any;
}

/*
 * A step is decided: its push knows the scale of the next one, and begins that, while the verdict may still be applied. It breaks off
 * at any time; what has come by then is part of the push that the client's core makes.
 */
void sim_asks_push(struct sim *sim, uint32_t w, const struct ampclient_core_result *result)
{
    const struct sim_worker *worker = &sim->workers[w];
    const struct sim_model *model = &sim->model;
    struct sim_key key = {result->step + 1, worker->rank, model->by_actor ? worker->life : 0};
    if (sim->asks == 0 || worker->silent || key.step > model->spec.max_steps || !has_any(model, &key) ||
        sim_more(sim, 4) != 0)
        return;
    const struct sim_shard *shard = &sim->shard[sim_more(sim, sim->shards)];
    const struct ampclient_incarnation *incarnation = &worker->core->incarnation;
    struct sim_call *call = sim_call_new(sim, SIM_PUSH, shard->index, w, 0);
    call->lost = call->client_gone = true;
    call->asked = (struct sim_asked){result->epoch, key.step, w, {incarnation->fence, incarnation->counter}};
    struct sim_message *message = sim_message_new(SIM_REQUEST);
    message->request.type = AMPD_EVENT_PUSH_BEGIN;
    (void)snprintf(message->text[0], AMPD_NAME_MAX, "%s", model->spec.name);
    uint64_t state[2] = {key.step, w};
    message->bytes = memcpy(malloc(sizeof(state)), state, sizeof(state));
    message->request.u.push = (struct ampd_event_push){.model = message->text[0],
                                                       .epoch = call->asked.epoch,
                                                       .step = call->asked.step,
                                                       .rank = w,
                                                       .incarnation = call->asked.incarnation,
                                                       .scale_id = result->new_scale_id,
                                                       .dtype = sim_model_dtype(model, &key),
                                                       .weight = sim_model_weight(model, &key),
                                                       .has_lr = model->rates,
                                                       .lr = sim_model_rate(model, key.step) + (worker->wrong ? 5 : 0),
                                                       .user_state = message->bytes,
                                                       .user_state_size = sizeof(state)};
    amp_list_push(&call->up, &message->node);
    for (uint64_t b = shard->block; b < shard->block + shard->blocks && sim_more(sim, 3) != 0; b++) {
        struct sim_message *block = sim_message_new(SIM_BLOCK);
        block->block = b;
        fill_block(model, &key, result->new_scale, block);
        amp_list_push(&call->up, &block->node);
    }
}
