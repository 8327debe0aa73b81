/*
 * The host of a worker's core, and the program that trains with it: create, load, join; then begin, push in any order,
 * end, until the model is done; then pull the result.
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

#define PAUSE_MS 100 /* of the program, before it asks again */
/*
 * A step that ends at its deadline is begun again by another incarnation, which heals whatever stood still. So with half
 * of the seeds, of all kinds, there is none: then what stands still does so to the end of the run.
 */
#define NEVER_MS (UINT64_C(1) << 50)

static void drain(struct sim *sim, uint32_t w);

static void worker_event(struct sim *sim, uint32_t w, struct ampclient_event *event)
{
    struct sim_worker *worker = &sim->workers[w];
    sim_trace(sim, 1000 + event->type, event->call * 8 + w);
    ampclient_core_step(worker->core, sim->now_ms, event);
    drain(sim, w);
}

static void user_request(struct sim *sim, uint32_t w, enum ampclient_event_type type)
{
    struct ampclient_event event = {.type = type};
    worker_event(sim, w, &event);
}

/* ---- requests ---- */

static struct sim_message *request(struct sim *sim, struct sim_call *call, enum ampd_event_type type)
{
    struct sim_message *message = sim_message_new(SIM_REQUEST);
    message->request.type = type;
    (void)snprintf(message->text[0], AMPD_NAME_MAX, "%s", sim->model.spec.name);
    amp_list_push(&call->up, &message->node);
    return message;
}

static void send_worker(struct sim *sim, uint32_t w, const struct ampclient_output *output, enum ampd_event_type type)
{
    struct sim_call *call = sim_call_new(sim, SIM_UNARY, output->shard, w, output->call);
    struct sim_message *message = request(sim, call, type);
    struct ampd_incarnation incarnation = {output->incarnation.fence, output->incarnation.counter};
    call->asked = (struct sim_asked){output->u.push.epoch, output->u.push.step, (uint32_t)output->rank, incarnation};
    call->leaves = type == AMPD_EVENT_LEAVE;
    if (type == AMPD_EVENT_GET_PUSH_STATE)
        message->request.u.push_state = (struct ampd_event_push_state){
            message->text[0], output->u.push.epoch, output->u.push.step, (uint32_t)output->rank, incarnation};
    else
        message->request.u.worker = (struct ampd_event_worker){message->text[0], (uint32_t)output->rank, incarnation};
}

static void send_join(struct sim *sim, uint32_t w, const struct ampclient_output *output)
{
    struct sim_call *call = sim_call_new(sim, SIM_UNARY, output->shard, w, output->call);
    struct sim_message *message = request(sim, call, AMPD_EVENT_JOIN);
    call->joins = true;
    (void)snprintf(message->text[1], AMPD_NAME_MAX, "%s", output->worker);
    message->request.u.join = (struct ampd_event_join){.model = message->text[0],
                                                       .worker = message->text[1],
                                                       .rank = output->rank,
                                                       .world_size = sim->model.spec.world_size,
                                                       .instance = sim_member_instance(sim, w),
                                                       .replace = output->replace};
}

static void send_pull(struct sim *sim, uint32_t w, const struct ampclient_output *output)
{
    struct sim_call *call = sim_call_new(sim, SIM_PULL, output->shard, w, output->call);
    call->pull_memory = output->u.pull.memory;
    call->pull_stride = output->u.pull.stride;
    call->in_memory = output->u.pull.in_memory;
    struct sim_message *message = request(sim, call, AMPD_EVENT_PULL);
    message->request.u.pull =
        (struct ampd_event_pull){.model = message->text[0],
                                 .by = (enum ampd_pull_by)output->u.pull.by,
                                 .epoch = output->u.pull.epoch,
                                 .number = output->u.pull.number,
                                 .have_epoch = output->u.pull.have_epoch,
                                 .have_version = output->u.pull.have_version,
                                 .has_worker = true,
                                 .rank = (uint32_t)output->rank,
                                 .incarnation = {output->incarnation.fence, output->incarnation.counter},
                                 .in_memory = call->in_memory};
}

static void send_push(struct sim *sim, uint32_t w, const struct ampclient_output *output)
{
    struct sim_call *call = sim_call_new(sim, SIM_PUSH, output->shard, w, output->call);
    struct sim_message *message = request(sim, call, AMPD_EVENT_PUSH_BEGIN);
    const struct ampclient_out_push *push = &output->u.push;
    float weight = push->weight;
    double lr = push->lr;
    if (sim->unlike > 0 && sim_more(sim, 8) == 0) {
        sim->unlike--;
        sim->workers[w].unlike = true;
        double more = 1 + (double)output->shard; /* and no other shard is given the same */
        if (sim->model.weights)
            weight += (float)more;
        else
            lr += more;
    }
    call->asked = (struct sim_asked){
        push->epoch, push->step, (uint32_t)output->rank, {output->incarnation.fence, output->incarnation.counter}};
    message->bytes = malloc(push->user_state_size + (size_t)1);
    if (push->user_state_size > 0)
        memcpy(message->bytes, push->user_state, push->user_state_size);
    message->request.u.push = (struct ampd_event_push){message->text[0],
                                                       push->epoch,
                                                       push->step,
                                                       (uint32_t)output->rank,
                                                       {output->incarnation.fence, output->incarnation.counter},
                                                       push->scale_id,
                                                       push->dtype,
                                                       weight,
                                                       push->has_lr,
                                                       lr,
                                                       message->bytes,
                                                       push->user_state_size};
}

static struct sim_call *call_of(struct sim *sim, uint32_t w, uint64_t client_call)
{
    for (unsigned i = 0; i < sim->calls_end; i++) {
        struct sim_call *call = &sim->calls[i];
        if (call->used && call->worker == w && call->life == sim->workers[w].life && call->client_call == client_call)
            return call;
    }
    return NULL;
}

static void send_blocks(struct sim *sim, uint32_t w, const struct ampclient_output *output)
{
    struct sim_call *call = call_of(sim, w, output->call);
    if (call == NULL || call->over || call->lost)
        return;
    for (uint64_t i = 0; i < output->u.blocks.count; i++) {
        struct sim_message *message = sim_message_new(SIM_BLOCK);
        message->block = output->u.blocks.first + i;
        amp_list_push(&call->up, &message->node);
    }
}

/* What a careless client might send where it has no gradient: it must not matter. */
static void soil(struct sim *sim, const struct sim_worker *worker, struct sim_message *message)
{
    uint32_t count;
    const struct ampd_segment *segments = ampd_layout_block(sim->model.layout, message->block, &count);
    size_t size = message->size / ampd_layout_block_elements(sim->model.layout, message->block);
    for (uint32_t i = 0; i < count; i++) {
        if (sim_model_absent(&sim->model, &worker->key, segments[i].parameter))
            memset(message->data + segments[i].offset * size, i % 2 == 0 ? 0x7c : 0x3c, segments[i].count * size);
    }
}

void sim_message_fill(struct sim *sim, struct sim_call *call, struct sim_message *message)
{
    const struct sim_worker *worker = &sim->workers[call->worker];
    if (message->type != SIM_BLOCK || message->data != NULL)
        return;
    uint8_t scratch[SIM_BLOCK_ELEMENTS_MAX * sizeof(float)];
    if (worker->core == NULL || worker->life != call->life)
        sim_fail(sim, SIM_COUNTED_ONCE, "a block of a worker that is gone is sent");
    const void *data = ampclient_core_block(worker->core, message->block, scratch, &message->size);
    message->data = malloc(message->size);
    memcpy(message->data, data, message->size);
    soil(sim, worker, message);
}

static void send_end(struct sim *sim, uint32_t w, const struct ampclient_output *output)
{
    struct sim_call *call = call_of(sim, w, output->call);
    if (call == NULL || call->over || call->lost)
        return;
    struct sim_message *message = sim_message_new(SIM_END);
    message->absent_count = output->u.end.absent_count;
    message->absent = calloc(message->absent_count + (size_t)1, sizeof(*message->absent));
    if (message->absent_count > 0)
        memcpy(message->absent, output->u.end.absent, message->absent_count * sizeof(*message->absent));
    const struct ampclient_core_metrics *told = output->u.end.metrics;
    message->metrics = (struct ampd_metrics){
        .loss = told->loss, .loss_workers = told->has_loss ? 1 : 0, .count = told->count};
    for (uint32_t i = 0; i < told->count; i++) {
        memcpy(message->metrics.items[i].name, told->items[i].name, AMPD_METRIC_NAME_MAX);
        message->metrics.items[i].value = told->items[i].value;
        message->metrics.items[i].workers = 1;
    }
    amp_list_push(&call->up, &message->node);
}

/* ---- the program ---- */

static void free_gradients(struct sim *sim, struct sim_worker *worker)
{
    for (uint32_t p = 0; worker->gradients != NULL && p < sim->model.spec.parameters_count; p++)
        free(worker->gradients[p]);
    free(worker->gradients);
    free(worker->order);
    worker->gradients = NULL;
    worker->order = NULL;
    worker->order_count = 0;
}

/* The user state says which step it belongs to, and whose it is. It may come before the pushes, among or after them. */
static void give_user_state(struct sim_worker *worker)
{
    uint64_t state[2] = {worker->step, worker->rank};
    struct amp_error error;
    (void)ampclient_core_set_user_state(worker->core, state, sizeof(state), &error);
}

static void tell(struct sim *sim, struct sim_worker *worker)
{
    struct ampd_metrics told = sim_told(&sim->model, &worker->key);
    struct amp_error error = {0};
    int rc = told.loss_workers > 0 ? ampclient_core_loss(worker->core, told.loss, &error) : 0;
    for (uint32_t i = 0; rc == 0 && i < told.count; i++)
        rc = ampclient_core_metric(worker->core, told.items[i].name, told.items[i].value, &error);
    if (rc != 0)
        sim_fail(sim, SIM_ITSELF, "worker %u: %s", worker->rank, error.text);
}

/* A step is in hand: its gradients, and the order in which they get ready. */
static void take_step(struct sim *sim, struct sim_worker *worker, const struct ampclient_user_done *done)
{
    const struct sim_model *model = &sim->model;
    worker->epoch = done->step.epoch;
    worker->step = done->step.step;
    worker->version = done->step.version;
    worker->scale = done->step.scale;
    if (!sim_map_took(sim, worker))
        sim_check_pulled(sim, worker);
    worker->key = (struct sim_key){worker->step, worker->rank, model->by_actor ? worker->life : 0};
    free_gradients(sim, worker);
    uint32_t parameters = model->spec.parameters_count;
    worker->gradients = calloc(parameters, sizeof(*worker->gradients));
    worker->order = calloc(parameters, sizeof(*worker->order));
    for (uint32_t p = 0; p < parameters; p++) {
        if (sim_model_absent(model, &worker->key, p))
            continue;
        worker->gradients[p] = malloc(model->layout->sizes[p] * sizeof(float));
        sim_model_gradient(model, &worker->key, worker->scale, p, worker->gradients[p]);
        uint32_t at = (uint32_t)sim_below(sim, worker->order_count + 1);
        worker->order[worker->order_count++] = worker->order[at];
        worker->order[at] = p;
    }
    struct amp_error error = {0};
    if (ampclient_core_weight(worker->core, sim_model_weight(model, &worker->key), &error) != 0)
        sim_fail(sim, SIM_ITSELF, "worker %u: %s", worker->rank, error.text);
    double lr = sim_model_rate(model, worker->step) + (worker->wrong ? 5 : 0);
    if (model->rates && ampclient_core_learning_rate(worker->core, lr, &error) != 0)
        sim_fail(sim, SIM_ITSELF, "worker %u: %s", worker->rank, error.text);
    tell(sim, worker);
    sim_silent_begin(sim, worker);
    worker->state_at = sim_below(sim, 2) == 0 ? worker->order_count : 0;
    if (sim_has(sim->seed, SIM_STATES)) /* streams to some shards begin before it, and others after it */
        worker->state_at = (uint32_t)sim_more(sim, worker->order_count + 1);
}

static void check_user_state(struct sim *sim, struct sim_worker *worker)
{
    size_t size;
    const uint8_t *data = ampclient_core_user_state(worker->core, &size);
    const struct sim_store *store = &sim->shard[0].store;
    if (worker->core->epoch < store->epoch) /* an epoch began while the answer was on its way: it joins again */
        return;
    uint64_t base = store->lost ? store->lost_base_step : store->base_step;
    uint64_t state[2];
    bool quorum = sim_leaves_ranks_out(sim); /* then of the last step in which the rank has counted */
    bool journal = sim->model.spec.durability == AMPD_DURABILITY_STEP; /* then of the last one before a restart */
    uint64_t last = !journal ? base : store->lost ? store->lost_last_step : store->last_step;
    if (size == 0 && (base == 0 || quorum))
        return;
    if (size != sizeof(state))
        sim_fail(sim, SIM_USER_STATE, "rank %u: the user state of step %llu is missing", worker->rank,
                 (unsigned long long)base);
    memcpy(state, data, sizeof(state));
    bool other = quorum || journal ? state[0] > last || (!quorum && state[0] < base) : state[0] != base;
    if (other || state[1] != worker->rank)
        sim_fail(sim, SIM_USER_STATE, "rank %u: the user state is that of step %llu, not of %llu", worker->rank,
                 (unsigned long long)state[0], (unsigned long long)base);
}

static void user_done(struct sim *sim, uint32_t w, const struct ampclient_user_done *done)
{
    struct sim_worker *worker = &sim->workers[w];
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu worker %u: request %d -> %d %s\n", (unsigned long long)sim->now_ms, w,
                      done->request, done->code, done->error.text);
    bool barred = done->code == AMP_ESTATE && strcmp(done->error.reason, "QUARANTINED") == 0;
    bool other_rate = sim->rates_differed && strcmp(done->error.reason, "LEARNING_RATE") == 0;
    if (other_rate && sim->workers[0].wrong && sim->workers[0].core != NULL)
        sim->workers[0].program = SIM_DO_QUIT; /* it was whole first: whoever runs them ends it, too */
    bool ends = barred || done->request == AMPCLIENT_EVENT_LEAVE || sim_member_is_taken(sim, done->code, &done->error);
    if (ends || (done->code == AMP_EINVAL && (worker->unlike || other_rate))) { /* who runs it starts another one */
        worker->program = SIM_DO_QUIT;
        return;
    }
    bool held = sim_member_waits(sim, w, &done->error);
    if (held)
        worker->pause_ms = sim->now_ms + 1000;
    /* One that was replaced, and does not know it, may answer for a model that was taken back and has been made anew since. */
    bool of_before = done->code == AMP_ENOTFOUND && sim->more_memory_ms != 0 && sim->shard[SIM_ZOMBIE].restart_ms != 0;
    bool frozen = sim_floors_refuse(sim, &done->error) && done->request != AMPCLIENT_EVENT_STEP_END;
    if (frozen)
        worker->pause_ms = sim->now_ms + PAUSE_MS;
    if (done->code < 0 && done->code != AMP_EUNAVAILABLE && done->code != AMP_EDEADLINE && !of_before && !frozen && !held)
        sim_fail(sim, SIM_ONE_ANSWER, "worker %u: request %d failed: %s", w, done->request, done->error.text);
    switch (done->request) {
    case AMPCLIENT_EVENT_JOIN:
        worker->program = done->code == 0 ? SIM_DO_BEGIN : SIM_DO_JOIN;
        worker->silent = worker->silent && done->code != 0;
        if (done->code == 0)
            check_user_state(sim, worker);
        break;
    case AMPCLIENT_EVENT_STEP_BEGIN:
        worker->program = done->code == 0 ? SIM_DO_PUSH : done->code == 1 ? SIM_DO_PULL : SIM_DO_BEGIN;
        if (done->code == 0)
            take_step(sim, worker, done);
        break;
    case AMPCLIENT_EVENT_STEP_END:
        if (done->code == 0) {
            worker->results++;
            sim_check_late(sim, worker, &done->result);
            if (done->result.verdict != AMPCLIENT_CORE_ROLLED_BACK && done->result.verdict != AMPCLIENT_CORE_LATE) {
                sim_check_result(sim, &done->result);
                sim_map_counted(sim, worker);
            }
            if (done->result.verdict == AMPCLIENT_CORE_APPLIED)
                sim_asks_push(sim, w, &done->result);
            free_gradients(sim, worker);
        }
        worker->program = SIM_DO_BEGIN;
        break;
    default:
        worker->program = done->code == 0 ? SIM_FINISHED : SIM_DO_PULL;
        if (done->code == 0) {
            worker->epoch = done->step.epoch;
            worker->version = done->step.version;
            worker->step = done->step.step;
            sim_check_pulled(sim, worker);
        }
        break;
    }
}

static void drain(struct sim *sim, uint32_t w)
{
    struct sim_worker *worker = &sim->workers[w];
    struct ampclient_output output;
    while (ampclient_core_next(worker->core, &output)) {
        sim_trace(sim, 1100 + output.type, output.call * 8 + w);
        if (sim->verbose)
            (void)fprintf(stderr, "%8llu worker %u: output %d, call %llu\n", (unsigned long long)sim->now_ms, w,
                          output.type, (unsigned long long)output.call);
        struct sim_call *call;
        switch (output.type) {
        case AMPCLIENT_OUT_JOIN:
            send_join(sim, w, &output);
            break;
        case AMPCLIENT_OUT_KEEP_ALIVE:
            sim_silent_hears(worker);
            if (worker->silent)
                sim_silent_answer(sim, w, &output);
            else
                send_worker(sim, w, &output, AMPD_EVENT_KEEP_ALIVE);
            break;
        case AMPCLIENT_OUT_LEAVE:
            send_worker(sim, w, &output, AMPD_EVENT_LEAVE);
            break;
        case AMPCLIENT_OUT_GET_PUSH_STATE:
            send_worker(sim, w, &output, AMPD_EVENT_GET_PUSH_STATE);
            break;
        case AMPCLIENT_OUT_PULL:
            send_pull(sim, w, &output);
            break;
        case AMPCLIENT_OUT_PUSH:
            send_push(sim, w, &output);
            break;
        case AMPCLIENT_OUT_PUSH_BLOCKS:
            send_blocks(sim, w, &output);
            break;
        case AMPCLIENT_OUT_PUSH_END:
            send_end(sim, w, &output);
            break;
        case AMPCLIENT_OUT_CANCEL:
            call = call_of(sim, w, output.call);
            if (call != NULL && !call->lost)
                sim_call_lose(sim, call);
            break;
        case AMPCLIENT_OUT_USER_DONE:
            user_done(sim, w, &output.u.done);
            break;
        case AMPCLIENT_OUT_TIMER:
            worker->timer_ms = output.u.at_ms < NEVER_MS ? output.u.at_ms : 0;
            break;
        case AMPCLIENT_OUT_LOG:
            break;
        }
    }
}

/* ---- answers ---- */

/* One stream of a load has ended: what becomes of the load is known with the last. */
static void load_answer(struct sim *sim, struct sim_worker *worker, int code)
{
    for (unsigned i = 0; code != 0 && !worker->load_failed && i < sim->calls_end; i++) {
        struct sim_call *call = &sim->calls[i];
        bool other = call->used && call->kind == SIM_LOAD && call->worker == worker->rank &&
                     call->life == worker->life && !call->client_gone && !call->lost;
        if (other) /* the rest of the load is of no use: it would wait for what does not come */
            sim_call_lose(sim, call);
    }
    worker->loads--;
    sim->loaded = sim->loaded || code == 0; /* of any shard: who loads does not send that one's values again */
    worker->load_failed = worker->load_failed || code != 0;
    if (worker->program == SIM_WAIT_LOAD && code == AMP_ENOTFOUND)
        worker->after = SIM_DO_CREATE; /* the server ended before the model was stored */
    if (worker->loads > 0)
        return;
    worker->program = worker->load_failed ? worker->after : SIM_DO_JOIN;
    worker->pause_ms = worker->load_failed ? sim->now_ms + PAUSE_MS : 0;
}

/* The program's own calls: CreateModel and Load. */
static void program_answer(struct sim *sim, struct sim_call *call, const struct sim_message *message)
{
    struct sim_worker *worker = &sim->workers[call->worker];
    bool create = call->kind == SIM_CREATE;
    int code = message->error.code;
    bool limited = create && code == AMP_EEXHAUSTED && sim_has(sim->seed, SIM_MEMORY); /* perhaps it has more by now */
    if (code != 0 && code != AMP_EUNAVAILABLE && (code != AMP_ENOTFOUND || create) && !limited)
        sim_fail(sim, SIM_ONE_ANSWER, "worker %u: %s failed: %s", call->worker, create ? "create" : "load",
                 message->error.text);
    if (!create) {
        load_answer(sim, worker, code);
        return;
    }
    worker->program = code == 0 ? SIM_DO_LOAD : SIM_DO_CREATE;
    worker->pause_ms = code == 0 ? 0 : sim->now_ms + (limited ? 5000 : PAUSE_MS);
}

static void fill_all(struct sim *sim, struct sim_call *call)
{
    for (struct amp_list *it = call->up.next; it != &call->up; it = it->next)
        sim_message_fill(sim, call, AMP_CONTAINER(it, struct sim_message, node));
}

void sim_observe(struct sim *sim)
{
    struct sim_call *call = sim_call_new(sim, SIM_OBSERVE, (uint32_t)sim_below(sim, sim->shards), 0, 0);
    call->own = calloc(sim->model.layout->elements, sizeof(float));
    struct sim_message *message = request(sim, call, AMPD_EVENT_PULL);
    message->request.u.pull = (struct ampd_event_pull){.model = message->text[0], .by = AMPD_PULL_LATEST};
    const struct sim_shard *shard = &sim->shard[call->shard];
    if (sim->seed % 4 == 1 && sim_server_knows(shard) &&
        sim_below(sim, 3) != 0) { /* one that is held, was, or will be */
        message->request.u.pull.by = AMPD_PULL_VERSION;
        message->request.u.pull.number = shard->core->models[0]->shard->version + sim_below(sim, 4);
        message->request.u.pull.number -= message->request.u.pull.number < 2 ? 0 : 2;
    }
    sim->observers--;
}

static void observed(struct sim *sim, struct sim_call *call, struct sim_message *message)
{
    size_t stride = sim->model.layout->block_elements * amp_dtype_size(sim->model.spec.cast);
    if (message->type == SIM_HEADER)
        call->seen = message->answer.u.header;
    else if (message->type == SIM_BLOCK)
        memcpy(call->own + message->block * stride, message->data, message->size);
    else if (message->type == SIM_ENDED && message->error.code == 0 && !call->pull.unchanged)
        sim_check_observed(sim, call);
    if (message->type == SIM_ENDED)
        call->client_gone = true;
    sim_message_free(message);
}

void sim_worker_answer(struct sim *sim, struct sim_call *call, struct sim_message *message)
{
    struct sim_worker *worker = &sim->workers[call->worker];
    bool mine = worker->core != NULL && call->life == worker->life;
    if (call->kind == SIM_OBSERVE) {
        observed(sim, call, message);
        return;
    }
    if (call->kind == SIM_ACT) {
        call->client_gone = true;
        sim_operator_answer(sim, message);
        sim_message_free(message);
        return;
    }
    if (mine && message->type == SIM_BLOCK && !call->in_memory)
        memcpy(call->pull_memory + message->block * call->pull_stride, message->data, message->size);
    bool ended = message->type == SIM_ENDED;
    if (message->type == SIM_HEADER)
        call->seen = message->answer.u.header;
    if (mine && message->type == SIM_HEADER && call->in_memory) {
        message->answer.u.header.place = sim_map_place(worker, call->seen.version);
        if (message->answer.u.header.place == NULL) { /* the client cannot use it */
            sim_message_free(message);
            sim_call_lose(sim, call);
            return;
        }
    }
    bool joined = call->joins && message->error.code == 0; /* as another incarnation */
    if (mine && ended && (joined || strcmp(message->error.reason, "NOT_ATTACHED") == 0))
        sim_map_lost(worker);
    if (mine && ended && call->kind == SIM_PULL && !call->in_memory && message->error.code == 0 && !call->pull.unchanged)
        sim_values_pulled(sim, call->seen.epoch, call->seen.version, call->shard,
                          call->pull_memory + sim->shard[call->shard].block * call->pull_stride);
    uint32_t w = call->worker;
    if (ended && mine)
        fill_all(sim, call); /* up to here the host reads gradients */
    if (ended)
        call->client_gone = true;
    if (mine && call->client_call == 0) {
        if (ended)
            program_answer(sim, call, message);
    } else if (mine) {
        struct ampclient_event *event = &message->answer;
        event->call = call->client_call;
        if (sim->verbose && ended)
            (void)fprintf(stderr, "%8llu worker %u: call %llu ended with %d %s\n", (unsigned long long)sim->now_ms, w,
                          (unsigned long long)event->call, message->error.code, message->error.text);
        worker_event(sim, w, event);
    }
    sim_message_free(message);
}

/* ---- acting ---- */

bool sim_worker_can_act(const struct sim *sim, uint32_t w)
{
    const struct sim_worker *worker = &sim->workers[w];
    if (worker->core == NULL || worker->pause_ms > sim->now_ms)
        return false;
    return worker->program != SIM_WAIT && worker->program != SIM_FINISHED && worker->program != SIM_WAIT_CREATE &&
           worker->program != SIM_WAIT_LOAD && worker->program != SIM_DEAD;
}

/* Blocks as Load numbers them: those of the moments follow those of the masters. */
static void load_plane(struct sim *sim, struct sim_call *call, const struct sim_shard *shard, uint32_t plane)
{
    const struct ampd_layout *layout = sim->model.layout;
    const float *values = sim->values[sim->values[1] == NULL ? 0 : sim->last_loader % SIM_VALUES];
    for (uint64_t b = shard->block; b < shard->block + shard->blocks; b++) {
        struct sim_message *block = sim_message_new(SIM_BLOCK);
        uint32_t elements = ampd_layout_block_elements(layout, b);
        block->block = plane * layout->blocks + b;
        block->size = elements * sizeof(float);
        block->data = malloc(block->size);
        const float *from = values + b * layout->block_elements;
        for (uint32_t i = 0; i < elements; i++) {
            float value = plane == 0 ? from[i] : sim_model_moment(plane, from[i]);
            memcpy(block->data + i * sizeof(value), &value, sizeof(value));
        }
        amp_list_push(&call->up, &block->node);
    }
}

static void load_shard(struct sim *sim, uint32_t w, const struct sim_shard *shard)
{
    struct sim_call *call = sim_call_new(sim, SIM_LOAD, shard->index, w, 0);
    struct sim_message *message = request(sim, call, AMPD_EVENT_LOAD_BEGIN);
    message->request.u.load = (struct ampd_event_load){.model = message->text[0], .loader = sim->last_loader};
    bool full = sim_model_is_full(&sim->model, sim->last_loader);
    message->request.u.load.base = full ? &sim->model.base : NULL;
    for (uint32_t plane = 0; plane < (full ? 1 + ampd_tensors_moments(&sim->model.spec) : 1); plane++)
        load_plane(sim, call, shard, plane);
    struct sim_message *end = sim_message_new(SIM_END);
    amp_list_push(&call->up, &end->node);
}

static void do_load(struct sim *sim, uint32_t w)
{
    struct sim_worker *worker = &sim->workers[w];
    sim->last_loader++;
    worker->loads = sim->shards;
    worker->load_failed = false;
    worker->after = SIM_DO_LOAD;
    for (uint32_t k = 0; k < sim->shards; k++)
        load_shard(sim, w, &sim->shard[k]);
}

static void do_push(struct sim *sim, uint32_t w)
{
    struct sim_worker *worker = &sim->workers[w];
    if (worker->order_count == 0) {
        worker->program = SIM_DO_END;
        return;
    }
    if (worker->order_count == worker->state_at)
        give_user_state(worker);
    sim_map_looks(sim, worker);
    uint32_t p = worker->order[--worker->order_count];
    struct amp_error error = {0};
    int rc = ampclient_core_push(worker->core, sim->now_ms, p, worker->gradients[p],
                                 sim_model_dtype(&sim->model, &worker->key), &error);
    if (sim_member_is_taken(sim, rc, &error)) {
        worker->program = SIM_DO_QUIT;
        return;
    }
    if (rc != 0)
        sim_fail(sim, SIM_ONE_ANSWER, "worker %u: push failed: %s", w, error.text);
    sim_trace(sim, 1200, p * 8 + w);
    drain(sim, w);
}

void sim_worker_act(struct sim *sim, uint32_t w)
{
    struct sim_worker *worker = &sim->workers[w];
    struct sim_call *call;
    struct sim_message *message;
    if (sim_member_leaves(sim, w)) {
        worker->program = SIM_WAIT;
        user_request(sim, w, AMPCLIENT_EVENT_LEAVE);
        return;
    }
    switch (worker->program) {
    case SIM_DO_CREATE:
        call = sim_call_new(sim, SIM_CREATE, 0, w, 0);
        message = request(sim, call, AMPD_EVENT_CREATE_MODEL);
        message->request.u.create.spec = &sim->model.spec;
        worker->program = SIM_WAIT_CREATE;
        break;
    case SIM_DO_LOAD:
        do_load(sim, w);
        worker->program = SIM_WAIT_LOAD;
        break;
    case SIM_DO_JOIN:
        worker->program = SIM_WAIT;
        user_request(sim, w, AMPCLIENT_EVENT_JOIN);
        break;
    case SIM_DO_BEGIN:
        worker->program = SIM_WAIT;
        sim_map_begin(sim, w);
        user_request(sim, w, AMPCLIENT_EVENT_STEP_BEGIN);
        break;
    case SIM_DO_PUSH:
        do_push(sim, w);
        break;
    case SIM_DO_END:
        worker->program = SIM_WAIT;
        sim_map_looks(sim, worker);
        if (worker->state_at == 0)
            give_user_state(worker);
        drain(sim, w);
        user_request(sim, w, AMPCLIENT_EVENT_STEP_END);
        break;
    case SIM_DO_PULL:
        worker->program = SIM_WAIT;
        user_request(sim, w, AMPCLIENT_EVENT_PULL_LATEST);
        break;
    case SIM_DO_QUIT:
        sim_worker_kill(sim, w);
        break;
    default:
        break;
    }
}

void sim_worker_tick(struct sim *sim, uint32_t w)
{
    struct sim_worker *worker = &sim->workers[w];
    worker->timer_ms = 0;
    user_request(sim, w, AMPCLIENT_EVENT_TICK);
}

/* ---- life ---- */

void sim_worker_start(struct sim *sim, uint32_t w)
{
    struct sim_worker *worker = &sim->workers[w];
    char name[32];
    worker->rank = w;
    worker->life++;
    sim_member_name(sim, w, name, sizeof(name));
    worker->restart_ms = 0;
    worker->timer_ms = 0;
    worker->pause_ms = 0;
    worker->unlike = worker->silent = false;
    worker->wrong = w == 0 && sim->wrong > 0 && sim_more(sim, 2) == 0;
    sim->wrong -= worker->wrong ? 1 : 0;
    sim->rates_differed = sim->rates_differed || worker->wrong;
    worker->lates = 0;
    struct ampclient_core_config config = {.model = sim->model.spec.name,
                                           .worker = name,
                                           .rank = (int32_t)w,
                                           .world_size = (int32_t)sim->model.spec.world_size,
                                           .replace = worker->names > 0,
                                           .step_timeout_ms = sim->seed / 64 % 2 == 0 ? 0 : NEVER_MS,
                                           .shards = sim->shards};
    if (ampclient_core_new(&config, &worker->core) != 0)
        sim_fail(sim, SIM_ITSELF, "no worker");
    worker->program = SIM_DO_CREATE;
}

void sim_worker_kill(struct sim *sim, uint32_t w)
{
    struct sim_worker *worker = &sim->workers[w];
    sim_trace(sim, 901, w);
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu worker %u killed\n", (unsigned long long)sim->now_ms, w);
    for (unsigned i = 0; i < sim->calls_end; i++) {
        struct sim_call *call = &sim->calls[i];
        if (!call->used || call->kind == SIM_ACT || call->worker != w || call->life != worker->life)
            continue;
        fill_all(sim, call);
        if (!call->lost)
            sim_call_lose(sim, call); /* the server notices later; what is on its way arrives */
        call->client_gone = true;
    }
    ampclient_core_free(worker->core);
    worker->core = NULL;
    sim_map_free(worker);
    free_gradients(sim, worker);
    worker->program = SIM_DEAD;
    static const uint64_t pauses[] = {200, 200, 200, 40000, 700000};
    worker->restart_ms = sim->now_ms + pauses[sim_below(sim, 5)];
}

void sim_worker_end(struct sim *sim, uint32_t w)
{
    if (sim->workers[w].core != NULL)
        sim_worker_kill(sim, w);
    sim->workers[w].program = SIM_FINISHED;
    sim->workers[w].restart_ms = 0;
}

void sim_worker_close(struct sim *sim, uint32_t w)
{
    ampclient_core_free(sim->workers[w].core);
    sim_map_free(&sim->workers[w]);
    free_gradients(sim, &sim->workers[w]);
}
