/*
 * GetPushState, asked at any moment: in the middle of a push, while the step before is applied, after a restart. Whatever it names
 * PRESENT must have come to this process, of just this push: a client does not send such a block again.
 */
#include "client/core/internal.h"
#include "server/core/model.h"
#include "tests/sim/sim.h"

#include <stdio.h>
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
    const struct ampd_shard *inside = &shard->core->models[0]->shard;
    return inside->kept != NULL || inside->decided_step >= asked->step;
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
    call->asked = (struct sim_asked){worker->epoch, worker->step, w, {incarnation->fence, incarnation->counter}};
    message->request.u.push_state = (struct ampd_event_push_state){message->text[0], call->asked.epoch,
                                                                   call->asked.step, w, call->asked.incarnation};
    amp_list_push(&call->up, &message->node);
}
