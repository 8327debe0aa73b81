/*
 * The host of the server's core: what server/io does with threads, sockets and files, here in memory and one thing at a
 * time. A kill loses everything but the store and the files that were finished.
 */
#include "server/core/base/model.h"
#include "server/core/coordinator/workers.h"
#include "server/core/model/layout.h"
#include "server/core/model/passes.h"
#include "server/core/base/process.h"
#include "server/core/shard/shard.h"
#include "tests/sim/sim.h"

#include "base/crc32c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool unchecked;

void sim_server_unchecked(void)
{
    unchecked = true;
}

/* ---- messages and calls ---- */

struct sim_message *sim_message_new(enum sim_message_type type)
{
    struct sim_message *message = calloc(1, sizeof(*message));
    message->type = type;
    return message;
}

void sim_message_free(struct sim_message *message)
{
    free(message->data);
    free(message->absent);
    free(message->ranges);
    free(message->bytes);
    free(message);
}

static void flush(struct amp_list *list)
{
    for (struct amp_list *node; (node = amp_list_shift(list)) != NULL;)
        sim_message_free(AMP_CONTAINER(node, struct sim_message, node));
}

void sim_call_free(struct sim_call *call)
{
    flush(&call->up);
    flush(&call->down);
    free(call->listed);
    free(call->to_send);
    free(call->crcs);
    free(call->own);
    memset(call, 0, sizeof(*call));
}

struct sim_call *sim_call_new(struct sim *sim, enum sim_call_kind kind, uint32_t shard, uint32_t worker,
                              uint64_t client_call)
{
    for (unsigned i = 0; i < SIM_CALLS_MAX; i++) {
        struct sim_call *call = &sim->calls[i];
        if (call->used)
            continue;
        memset(call, 0, sizeof(*call));
        call->used = true;
        if (i >= sim->calls_end)
            sim->calls_end = i + 1;
        call->id = ++sim->last_call;
        call->kind = kind;
        call->shard = shard;
        call->worker = worker;
        call->life = sim->workers[worker].life;
        const struct sim_shard *zombie = &sim->shard[SIM_ZOMBIE];
        call->zombie = zombie->core != NULL && zombie->index == shard && sim_below(sim, 3) == 0; /* an old address */
        call->client_call = client_call;
        call->listed = calloc(sim->model.layout->blocks + 1, 1);
        call->to_send = calloc(sim->model.layout->blocks + 1, sizeof(uint64_t));
        call->crcs = calloc(sim->model.layout->blocks + 1, sizeof(uint32_t));
        amp_list_init(&call->up);
        amp_list_init(&call->down);
        sim_net_begin(sim, call);
        return call;
    }
    sim_fail(sim, SIM_PROGRESS, "more than %d calls: something waits for ever", SIM_CALLS_MAX);
}

static struct sim_call *find_call(struct sim *sim, uint64_t id)
{
    for (unsigned i = 0; i < sim->calls_end; i++) {
        if (sim->calls[i].used && sim->calls[i].id == id)
            return &sim->calls[i];
    }
    return NULL;
}

static void send_down(struct sim_call *call, struct sim_message *message)
{
    if (call->client_gone || call->lost)
        sim_message_free(message);
    else
        amp_list_push(&call->down, &message->node);
}

/* ---- outputs ---- */

static struct sim_message *ended_message(const struct amp_error *error, uint64_t epoch, uint64_t step,
                                         uint64_t retry_ms)
{
    struct sim_message *message = sim_message_new(SIM_ENDED);
    message->answer.type = AMPCLIENT_EVENT_ENDED;
    message->error = *error;
    struct ampclient_ended *ended = &message->answer.u.ended;
    ended->code = error->code;
    ended->reason = message->error.reason;
    ended->text = message->error.text;
    ended->epoch = epoch;
    ended->step = step;
    ended->retry_ms = retry_ms;
    return message;
}

static void fill_join(struct sim *sim, const struct ampd_join_result *from, struct sim_message *message)
{
    struct ampclient_join_answer *to = &message->answer.u.ended.u.join;
    to->rank = from->rank;
    to->world_size = from->world_size;
    to->incarnation.fence = from->incarnation.fence;
    to->incarnation.counter = from->incarnation.counter;
    to->epoch = from->epoch;
    to->step = from->step;
    to->lease_ms = from->lease_ms;
    to->parameters_count = sim->model.spec.parameters_count;
    to->elements = sim->model.layout->sizes;
    to->block_elements = sim->model.layout->block_elements;
    to->cast = sim->model.spec.cast;
    to->user_state_size = from->user_state_size;
    message->bytes = malloc(from->user_state_size + 1);
    if (from->user_state_size > 0)
        memcpy(message->bytes, from->user_state, from->user_state_size);
    to->user_state = message->bytes;
}

static void fill_result(const struct ampd_step_result *from, struct ampclient_core_result *to)
{
    *to = (struct ampclient_core_result){
        .epoch = from->epoch,
        .step = from->step,
        .verdict = (enum ampclient_core_verdict)from->verdict,
        .applied = from->applied,
        .version = from->version,
        .norm = from->norm,
        .clip = from->clips_count > 0 ? from->clips[0] : 0,
        .scale = from->scale,
        .new_scale = from->new_scale,
        .scale_id = from->scale_id,
        .new_scale_id = from->new_scale_id,
        .overflow_parameters = from->overflow_params,
        .range_warnings = from->range_total,
        .durable_step = from->durable_step,
    };
}

static void fill_state(struct sim_call *call, const struct ampd_reply *reply)
{
    struct sim_message *message = sim_message_new(SIM_STATE);
    uint64_t count = reply->u.push_state.ranges_count;
    message->ranges = calloc(count + 1, sizeof(*message->ranges));
    for (uint64_t i = 0; i < count; i++)
        message->ranges[i] =
            (struct ampclient_range){reply->u.push_state.ranges[i].first, reply->u.push_state.ranges[i].count};
    message->answer.type = AMPCLIENT_EVENT_PUSH_STATE;
    message->answer.u.push_state.ranges = message->ranges;
    message->answer.u.push_state.ranges_count = count;
    send_down(call, message);
}

static void do_reply(struct sim *sim, uint64_t id, const struct ampd_reply *reply)
{
    struct sim_call *call = find_call(sim, id);
    if (call == NULL || call->over)
        sim_fail(sim, SIM_ONE_ANSWER, "call %llu was answered after its end", (unsigned long long)id);
    call->over = true;
    if (call->shard == 0 && !call->zombie) {
        sim_lease_reply(sim, reply);
        sim_members_reply(sim, call, reply);
    }
    if (call->kind == SIM_ACT && call->shard == 0 && !call->zombie && !call->client_gone)
        sim_check_act_reply(sim, reply);
    flush(&call->up);
    call->to_send_count = 0;
    struct sim_message *message = ended_message(&reply->error, reply->epoch, reply->step, reply->retry_ms);
    struct ampclient_ended *ended = &message->answer.u.ended;
    if (reply->kind == AMPD_REPLY_JOIN) {
        fill_join(sim, &reply->u.join, message);
    } else if (reply->kind == AMPD_REPLY_KEEP_ALIVE) {
        ended->u.keep_alive.epoch = reply->u.keep_alive.epoch;
        ended->u.keep_alive.step = reply->u.keep_alive.step;
        ended->u.keep_alive.valid = reply->u.keep_alive.valid;
    } else if (reply->kind == AMPD_REPLY_STEP) {
        fill_result(&reply->u.step, &ended->u.push);
    } else if (reply->kind == AMPD_REPLY_PUSH_STATE) {
        sim_asks_reply(sim, call, reply);
        fill_state(call, reply);
    }
    send_down(call, message);
}

static void do_pull_grant(struct sim *sim, struct sim_call *call, const struct ampd_pull_grant *grant)
{
    if (grant->dtype != sim->model.spec.cast)
        sim_fail(sim, SIM_BITWISE, "a pull has another dtype than the model's cast");
    call->granted = true;
    call->pull = *grant;
    struct sim_message *message = sim_message_new(SIM_HEADER);
    message->answer.type = AMPCLIENT_EVENT_PULL_HEADER;
    message->answer.u.header = (struct ampclient_pull_header){grant->epoch,    grant->step,  grant->version,
                                                              grant->scale_id, grant->scale, NULL};
    send_down(call, message);
}

static size_t block_size(const struct sim *sim, const struct sim_call *call, uint64_t block)
{
    return ampd_layout_block_elements(sim->model.layout, block) * amp_dtype_size(call->pull.dtype);
}

/* From now on nobody writes the block until it is sent, or its call has let go. */
static void list_to_send(struct sim *sim, struct sim_call *call, uint64_t block)
{
    const struct ampd_pull_grant *grant = &call->pull;
    uint64_t local = block - grant->first;
    call->to_send[call->to_send_count++] = block;
    call->crcs[block] = amp_crc32c(0, grant->memory + local * grant->stride, block_size(sim, call, block));
    if (!call->in_memory && grant->crcs != NULL && grant->crcs[local] != call->crcs[block]) /* in_memory needs none */
        sim_fail(sim, SIM_BITWISE, "a pull would send block %llu with another CRC32C", (unsigned long long)block);
}

static void do_blocks(struct sim *sim, struct sim_call *call, const struct ampd_blocks *blocks)
{
    for (uint64_t b = blocks->first; b < blocks->first + blocks->count; b++) {
        if (b >= sim->model.layout->blocks || call->listed[b] != 0)
            sim_fail(sim, SIM_COUNTED_ONCE, "block %llu was listed twice, or does not exist", (unsigned long long)b);
        call->listed[b] = blocks->drop ? 2 : 1;
        if (call->kind == SIM_PULL || call->kind == SIM_OBSERVE)
            list_to_send(sim, call, b);
    }
}

static void do_output(struct sim *sim, struct sim_shard *shard, const struct ampd_output *output)
{
    struct sim_call *call = output->call == 0 ? NULL : find_call(sim, output->call);
    sim_trace(sim, 100 + output->type + 10000 * shard->index, output->call);
    if (call != NULL && call->over)
        return; /* the stream was closed meanwhile: the core will hear of it */
    switch (output->type) {
    case AMPD_OUT_REPLY:
        do_reply(sim, output->call, &output->u.reply);
        break;
    case AMPD_OUT_LOAD_GRANT:
        call->granted = true;
        call->load = output->u.load;
        break;
    case AMPD_OUT_PUSH_GRANT:
        call->granted = true;
        call->push = output->u.push;
        break;
    case AMPD_OUT_PULL_GRANT:
        do_pull_grant(sim, call, &output->u.pull);
        break;
    case AMPD_OUT_PUSH_BLOCKS:
    case AMPD_OUT_PULL_BLOCKS:
        do_blocks(sim, call, &output->u.blocks);
        break;
    case AMPD_OUT_PUSH_REVOKE:
    case AMPD_OUT_PULL_REVOKE:
        call->revoked = true;
        break;
    case AMPD_OUT_JOB:
    case AMPD_OUT_PERSIST:
    case AMPD_OUT_JOURNAL:
    case AMPD_OUT_REPLAY:
    case AMPD_OUT_RESTORE:
    case AMPD_OUT_CUT:
    case AMPD_OUT_PART_BLOCKS:
    case AMPD_OUT_RAISE_EPOCH:
        sim_disk_keep(sim, shard, output);
        break;
    case AMPD_OUT_CUT_CANCEL:
        sim_disk_cancel(shard, output->u.token);
        break;
    case AMPD_OUT_DROP_CHECKPOINT:
        if (!sim_is_zombie(sim, shard) && output->u.drop.file_only)
            sim_disk_remove(sim, shard, output->u.drop.checkpoint);
        else if (!sim_is_zombie(sim, shard))
            sim_disk_drop(&shard->store, output->u.drop.checkpoint);
        break;
    case AMPD_OUT_TIMER:
        shard->timer_ms = output->u.timer.at_ms;
        break;
    case AMPD_OUT_SEND:
        sim_session_keep(sim, shard, output->u.message);
        break;
    case AMPD_OUT_FENCED:
        if (!sim_is_zombie(sim, shard))
            sim_fail(sim, SIM_FENCES, "shard %u was told that another process has its place", shard->index);
        shard->fenced = true;
        break;
    case AMPD_OUT_JOURNAL_PRUNE:
        sim_journal_prune(shard, output->u.journal_prune.epoch, output->u.journal_prune.step);
        break;
    case AMPD_OUT_LOG:
        if (sim->verbose)
            (void)fprintf(stderr, "%8llu shard %u: %s\n", (unsigned long long)sim->now_ms, shard->index,
                          output->u.log.text);
        break;
    default:
        break;
    }
}

void sim_server_event(struct sim *sim, struct sim_shard *shard, struct ampd_event *event)
{
    if (shard->core == NULL)
        return;
    event->utc_us = (int64_t)sim->now_ms * 1000;
    sim_trace(sim, event->type + 10000 * (uint64_t)shard->index, event->call);
    bool zero = shard == &sim->shard[0];
    if (zero)
        sim_lease_event(sim, event);
    ampd_core_step(shard->core, sim->now_ms, event);
    struct ampd_output output;
    while (ampd_core_next(shard->core, &output)) {
        do_output(sim, shard, &output);
        shard->drained = shard->drained || output.type == AMPD_OUT_DRAINED;
    }
    if (zero) {
        sim_lease_stepped(sim, event);
        sim_members_stepped(sim, event);
    }
    if (shard->fenced)
        sim_server_kill(sim, shard);
    else if (shard->drained)
        sim_ends_end(sim, shard);
}

/* An event of a call, to the shard that it goes to. */
static void call_event(struct sim *sim, const struct sim_call *call, struct ampd_event *event)
{
    sim_server_event(sim, sim_process(sim, call), event);
}

/* ---- streams ---- */

/* Whether the first message that goes up can be taken by the server now. */
bool sim_call_can_go_up(struct sim *sim, const struct sim_call *call)
{
    if (amp_list_empty(&call->up) || sim_process(sim, call)->core == NULL || !sim_net_up(sim, call))
        return false;
    const struct sim_message *message = AMP_CONTAINER(call->up.next, struct sim_message, node);
    if (message->type == SIM_REQUEST)
        return true;
    if (!call->granted || call->over)
        return false; /* (a stream that is revoked goes on until its loop has seen it) */
    if (message->type == SIM_END || call->kind == SIM_LOAD)
        return true;
    return call->listed[message->block] != 0;
}

static void receive_block(struct sim *sim, struct sim_call *call, struct sim_message *message)
{
    struct ampd_segment_count counts[64];
    bool load = call->kind == SIM_LOAD;
    uint32_t plane = load ? (uint32_t)(message->block / sim->model.layout->blocks) : 0;
    uint64_t number = message->block - plane * sim->model.layout->blocks;
    if (!load && call->listed[message->block] == 2)
        return;
    uint8_t *to = load ? (uint8_t *)call->load.planes[plane] +
                             (number - call->load.first) * sim->model.layout->block_elements * sizeof(float)
                       : call->push.memory + (message->block - call->push.first) * call->push.stride;
    /* By terms of the block before: they may be old by now, as those of a take are that a thread has begun. */
    struct amp_pass_vote votes[64];
    struct ampd_vote_terms terms = call->terms;
    bool has_terms = !load && call->has_terms;
    call->has_terms = !load && ampd_core_vote_terms(sim_process(sim, call)->core, call->push.model, call->asked.rank,
                                                    &call->terms);
    struct ampd_event event = {.type = load ? AMPD_EVENT_LOAD_BLOCK : AMPD_EVENT_PUSH_BLOCK, .call = call->id};
    event.u.block.block = number;
    event.u.block.plane = plane;
    event.u.block.counts = counts;
    if (!load && sim->flips > 0 && sim_below(sim, 40) == 0) {
        sim->flips--;
        memset(to, 0x7c, message->size);
        event.u.block.bad_checksum = true;
    } else {
        event.u.block.terms = has_terms ? &terms : NULL;
        event.u.block.votes = votes;
        event.u.block.counts_count =
            ampd_take_block(sim->model.layout, number, load ? AMP_F32 : call->push.dtype, message->data, to,
                            &amp_kernels_ref, event.u.block.terms, counts, votes);
    }
    if (!load && !event.u.block.bad_checksum)
        sim_asks_block(sim, call, message->block);
    call_event(sim, call, &event);
}

/* What each rank would have pushed with the step that the load is after. */
static void load_states(struct sim *sim, struct sim_call *call)
{
    for (uint32_t rank = 0; rank < sim->model.spec.world_size; rank++) {
        uint64_t state[2] = {SIM_FULL_STEP, rank};
        struct ampd_event event = {.type = AMPD_EVENT_LOAD_STATE, .call = call->id};
        event.u.load_state.rank = rank;
        event.u.load_state.data = (const uint8_t *)state;
        event.u.load_state.size = sizeof(state);
        call_event(sim, call, &event);
    }
}

/* The host does, and the core never hears of the call. */
static void refuse(struct sim_call *call, int code, const char *reason)
{
    struct amp_error error = {0};
    (void)amp_error_set(&error, code, reason, "refused");
    call->over = true;
    flush(&call->up);
    send_down(call, ended_message(&error, 0, 0, 0));
}

void sim_call_go_up(struct sim *sim, struct sim_call *call)
{
    struct sim_message *message = AMP_CONTAINER(amp_list_shift(&call->up), struct sim_message, node);
    sim_message_fill(sim, call, message);
    sim_net_copy(sim, call, message);
    if (message->type == SIM_REQUEST && call->in_memory &&
        !sim_map_serves(sim, call, message->request.u.pull.incarnation)) {
        refuse(call, AMP_EUNAVAILABLE, "NOT_ATTACHED");
    } else if (message->type == SIM_REQUEST) {
        call->begun = true;
        message->request.call = call->id;
        call_event(sim, call, &message->request);
    } else if (message->type == SIM_BLOCK) {
        receive_block(sim, call, message);
    } else {
        if (call->kind == SIM_LOAD && call->load.world_size > 0)
            load_states(sim, call);
        struct ampd_event event = {.type = call->kind == SIM_LOAD ? AMPD_EVENT_LOAD_END : AMPD_EVENT_PUSH_END,
                                   .call = call->id};
        event.u.push_end.absent = message->absent;
        event.u.push_end.absent_count = message->absent_count;
        event.u.push_end.metrics = &message->metrics;
        call_event(sim, call, &event);
    }
    sim_message_free(message);
}

void sim_call_send(struct sim *sim, struct sim_call *call)
{
    uint64_t block = call->to_send[--call->to_send_count];
    const struct ampd_pull_grant *grant = &call->pull;
    struct sim_message *message = sim_message_new(SIM_BLOCK);
    message->block = block;
    message->size = block_size(sim, call, block);
    message->data = malloc(message->size);
    memcpy(message->data, grant->memory + (block - grant->first) * grant->stride, message->size);
    if (amp_crc32c(0, message->data, message->size) != call->crcs[block])
        sim_fail(sim, SIM_BITWISE, "a pull sends a block that is written at the same time");
    message->answer.type = AMPCLIENT_EVENT_PULL_BLOCK;
    message->answer.u.block = block;
    send_down(call, message);
    call->sent++;
}

void sim_call_let_go(struct sim *sim, struct sim_call *call)
{
    call->revoked = false;
    call->granted = false;
    call->to_send_count = 0;
    flush(&call->up);
    struct ampd_event event = {.type = AMPD_EVENT_REVOKED, .call = call->id};
    call_event(sim, call, &event);
}

void sim_call_close(struct sim *sim, struct sim_call *call)
{
    flush(&call->up);
    call->to_send_count = 0;
    if (call->begun && !call->over && sim_process(sim, call)->core != NULL) {
        call->over = true;
        struct ampd_event event = {.type = AMPD_EVENT_CALL_CLOSED, .call = call->id};
        call_event(sim, call, &event);
    }
    call->over = true;
}

void sim_call_lose(struct sim *sim, struct sim_call *call)
{
    flush(&call->down);
    struct amp_error error = {.code = AMP_EUNAVAILABLE, .text = "the connection is lost"};
    if (!call->client_gone)
        amp_list_push(&call->down, &ended_message(&error, 0, 0, 0)->node);
    call->lost = true;
    bool long_away = sim_ends_in_order(sim->seed) || sim_has(sim->seed, SIM_STARTS); /* perhaps */
    bool nobody = long_away && sim_process(sim, call)->core == NULL;
    if (!call->begun && (nobody || !sim_net_up(sim, call)))
        sim_call_close(sim, call); /* it has not come through, and is taken back */
}

/* ---- life ---- */

/* What ampd_store_load gives of a model with a journal: its rows from the newest checkpoint's step on, and the acts before. */
static struct ampd_step_row *find_rows(const struct sim *sim, const struct sim_store *store, uint32_t *count)
{
    if (sim->model.spec.durability != AMPD_DURABILITY_STEP || store->checkpoints_count == 0)
        return NULL;
    uint64_t newest = 0;
    for (uint32_t i = 0; i < store->checkpoints_count; i++)
        newest = store->checkpoints[i].step > newest ? store->checkpoints[i].step : newest;
    struct ampd_step_row *rows = calloc(SIM_STEPS_MAX + 1 + SIM_ACTS_MAX, sizeof(*rows));
    for (uint64_t s = newest > 0 ? newest - 1 : 0; s <= store->last_step; s++) {
        if (store->rows[s].epoch == store->epoch && s > store->base_step && s >= newest)
            rows[(*count)++] = store->rows[s];
        for (uint32_t i = 0; i < store->act_rows_count; i++) {
            if (store->act_rows[i].epoch == store->epoch && store->act_rows[i].step == s)
                rows[(*count)++] = store->act_rows[i];
        }
    }
    return rows;
}

/* The newest row of the epoch, an act's perhaps. */
static struct ampd_step_row *find_last(struct sim_store *store)
{
    struct ampd_step_row *last = store->last_step > store->base_step ? &store->rows[store->last_step] : NULL;
    for (uint32_t i = 0; i < store->act_rows_count; i++) {
        if (store->act_rows[i].epoch == store->epoch && store->act_rows[i].step == store->last_step)
            last = &store->act_rows[i];
    }
    return last;
}

static void find_model(struct sim *sim, struct sim_shard *shard)
{
    struct sim_store *store = &shard->store;
    if (!store->has_model)
        return;
    struct ampd_worker_record workers[SIM_WORLD_MAX];
    uint32_t count = 0;
    for (uint32_t r = 0; r < sim->model.spec.world_size; r++) {
        if (store->has_worker[r])
            workers[count++] = store->workers[r];
    }
    struct ampd_model_record record = {.spec = sim->model.spec,
                                       .epoch = store->epoch,
                                       .base_epoch = store->base_epoch,
                                       .base_step = store->base_step,
                                       .workers_count = count,
                                       .workers = workers,
                                       .checkpoints_count = store->checkpoints_count,
                                       .checkpoints = store->checkpoints};
    record.deleting = store->deleting;
    record.no_journal = store->no_journal;
    record.acts_count = store->acts_count;
    memcpy(record.acts, store->acts, sizeof(record.acts));
    record.last = find_last(store);
    struct ampd_step_row *rows = find_rows(sim, store, &record.rows_count);
    record.rows = rows;
    struct ampd_event event = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    sim_server_event(sim, shard, &event);
    free(rows);
}

static void find_fences(struct sim *sim, struct sim_shard *shard)
{
    for (uint32_t k = 0; k < sim->shards; k++) {
        struct ampd_event event = {.type = AMPD_EVENT_FENCE_FOUND, .u.fence = {k, shard->store.fences[k]}};
        if (event.u.fence.fence.counter != 0)
            sim_server_event(sim, shard, &event);
    }
}

void sim_server_init(struct sim *sim, bool disturbed)
{
    static const uint32_t counts[] = {1, 1, 2, 2, 3, 4};
    sim->shards = counts[sim->seed / 7 % 6];
    if ((sim->restarts || sim_loses_disks(sim->seed)) && sim->shards == 1)
        sim->shards = 2;
    amp_list_init(&sim->late);
    sim_kinds_init(sim, disturbed);
    for (uint32_t k = 0; k < sim->shards; k++) {
        struct sim_shard *shard = &sim->shard[k];
        const struct ampd_layout *layout = sim->model.layout;
        shard->index = k;
        amp_list_init(&shard->tasks);
        amp_list_init(&shard->jobs);
        amp_list_init(&shard->store.undo);
        amp_list_init(&shard->inbox);
        amp_list_init(&shard->outbox);
        ampd_layout_shard(layout, k, sim->shards, &shard->block, &shard->blocks);
        uint64_t end = (shard->block + shard->blocks) * layout->block_elements;
        shard->element = shard->block * layout->block_elements;
        shard->elements = (end < layout->elements ? end : layout->elements) - shard->element;
        if (shard->blocks == 0)
            shard->elements = 0;
        sim_server_start(sim, shard);
    }
}

void sim_server_start(struct sim *sim, struct sim_shard *shard)
{
    if (shard->store.lost && !sim_disk_refill(sim, shard)) {
        shard->restart_ms = sim->now_ms + 300;
        return;
    }
    shard->store.boots++;
    sim_disk_synced(&shard->store); /* the boot counter is committed with FULL sync */
    if (shard->index == 0) {
        sim_lease_boot(sim);
        sim_members_boot(sim);
    }
    struct ampd_core_config config = {.shard = shard->index,
                                      .shards = sim->shards,
                                      .fence = {.counter = shard->store.boots},
                                      .block_elements = sim->model.layout->block_elements,
                                      .carry_own = sim->seed % 2 == 0,
                                      .memory_max = sim_memory_max(sim, shard),
                                      .asks_epochs = sim_loses_disks(sim->seed),
                                      .copy_memory = sim_has(sim->seed, SIM_SHARED) ? &sim_copy_memory : NULL,
                                      .check = !unchecked};
    if (ampd_core_new(&config, &shard->core) != 0)
        sim_fail(sim, SIM_ITSELF, "no core");
    shard->restart_ms = 0;
    shard->timer_ms = 0;
    shard->anew = true;
    memset(shard->got, 0, sizeof(shard->got));
    sim_ends_start(sim, shard);
    find_fences(sim, shard);
    find_model(sim, shard);
    struct ampd_event event = {.type = AMPD_EVENT_START};
    sim_server_event(sim, shard, &event);
}

bool sim_server_knows(const struct sim_shard *shard)
{
    return shard->core != NULL && ampd_core_models_count(shard->core) > 0 && !shard->core->models[0]->gone;
}

void sim_server_kill(struct sim *sim, struct sim_shard *shard)
{
    sim_trace(sim, 900 + 10000 * (uint64_t)shard->index, sim->now_ms);
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu shard %u killed\n", (unsigned long long)sim->now_ms, shard->index);
    sim_journal_crash(sim, shard);
    sim_map_process_ends(sim, shard);
    ampd_core_free(shard->core);
    shard->core = NULL;
    shard->fenced = shard->draining = shard->drained = false;
    shard->lost_peers = 0;
    if (!sim_is_zombie(sim, shard))
        sim_disk_tear(sim, shard);
    sim_disk_forget(&shard->tasks);
    sim_disk_forget(&shard->jobs);
    sim_session_end(sim, shard);
    for (unsigned i = 0; i < sim->calls_end; i++) {
        struct sim_call *call = &sim->calls[i];
        if (!call->used || sim_process(sim, call) != shard)
            continue;
        bool answered = call->over && !amp_list_empty(&call->down);
        if (answered && sim_below(sim, 2) == 0)
            continue; /* the answer is on its way already */
        sim_call_close(sim, call);
        if (!call->lost)
            sim_call_lose(sim, call);
    }
    shard->restart_ms = sim->now_ms + 1 + sim_below(sim, 2000);
}

void sim_server_close(struct sim *sim)
{
    if (sim->shard[SIM_ZOMBIE].core != NULL)
        sim_server_kill(sim, &sim->shard[SIM_ZOMBIE]);
    sim_zombie_close(sim);
    for (uint32_t k = 0; k < sim->shards; k++) {
        struct sim_shard *shard = &sim->shard[k];
        ampd_core_free(shard->core);
        sim_disk_forget(&shard->tasks);
        sim_disk_forget(&shard->jobs);
        sim_disk_forget(&shard->inbox);
        sim_disk_forget(&shard->outbox);
        sim_disk_close(sim, shard);
    }
    sim_snapshots_close(sim);
    sim_disk_forget(&sim->late);
    for (unsigned i = 0; i < sim->calls_end; i++) {
        if (sim->calls[i].used)
            sim_call_free(&sim->calls[i]);
    }
}
