/*
 * The host of the server's core: what server/io does with threads, sockets and files, here in memory and one thing at a
 * time. A kill loses everything but the store and the files that were finished.
 */
#include "tests/sim/sim.h"

#include "base/crc32c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    free(call->own);
    memset(call, 0, sizeof(*call));
}

struct sim_call *sim_call_new(struct sim *sim, enum sim_call_kind kind, uint32_t worker, uint64_t client_call)
{
    for (unsigned i = 0; i < SIM_CALLS_MAX; i++) {
        struct sim_call *call = &sim->calls[i];
        if (call->used)
            continue;
        memset(call, 0, sizeof(*call));
        call->used = true;
        call->id = ++sim->last_call;
        call->kind = kind;
        call->worker = worker;
        call->life = sim->workers[worker].life;
        call->client_call = client_call;
        call->listed = calloc(sim->model.layout->blocks + 1, 1);
        call->to_send = calloc(sim->model.layout->blocks + 1, sizeof(uint64_t));
        amp_list_init(&call->up);
        amp_list_init(&call->down);
        return call;
    }
    sim_fail(sim, "more than %d calls: something waits for ever", SIM_CALLS_MAX);
}

static struct sim_call *find_call(struct sim *sim, uint64_t id)
{
    for (unsigned i = 0; i < SIM_CALLS_MAX; i++) {
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
    to->incarnation = (struct ampclient_incarnation){from->incarnation.fence, from->incarnation.counter};
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
    message->answer.u.push_state.complete = reply->u.push_state.complete;
    send_down(call, message);
}

static void do_reply(struct sim *sim, uint64_t id, const struct ampd_reply *reply)
{
    struct sim_call *call = find_call(sim, id);
    if (call == NULL || call->over)
        sim_fail(sim, "call %llu was answered after its end", (unsigned long long)id);
    call->over = true;
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
        fill_state(call, reply);
    }
    send_down(call, message);
}

static void do_pull_grant(struct sim *sim, struct sim_call *call, const struct ampd_pull_grant *grant)
{
    call->granted = true;
    call->pull = *grant;
    struct sim_message *message = sim_message_new(SIM_HEADER);
    message->answer.type = AMPCLIENT_EVENT_PULL_HEADER;
    message->answer.u.header = (struct ampclient_pull_header){grant->epoch,    grant->step,  grant->version,
                                                              grant->scale_id, grant->scale, grant->dtype};
    send_down(call, message);
    (void)sim;
}

static void do_blocks(struct sim *sim, struct sim_call *call, const struct ampd_blocks *blocks)
{
    for (uint64_t b = blocks->first; b < blocks->first + blocks->count; b++) {
        if (b >= sim->model.layout->blocks || call->listed[b] != 0)
            sim_fail(sim, "block %llu was listed twice, or does not exist", (unsigned long long)b);
        call->listed[b] = blocks->drop ? 2 : 1;
        if (call->kind == SIM_PULL || call->kind == SIM_OBSERVE)
            call->to_send[call->to_send_count++] = b;
    }
}

static void task_free(struct sim_task *task)
{
    free(task->row);
    ampd_message_free(task->message);
    free(task);
}

static void keep_task(struct sim *sim, const struct ampd_output *output)
{
    struct sim_task *task = calloc(1, sizeof(*task));
    task->output = *output;
    if (output->type == AMPD_OUT_PERSIST) {
        const struct ampd_persist *persist = &output->u.persist;
        if (persist->row != NULL) {
            task->row = malloc(sizeof(*task->row));
            *task->row = *persist->row;
        }
        if (persist->epoch != NULL)
            task->epoch = *persist->epoch;
        if (persist->worker != NULL)
            task->worker = *persist->worker;
        if (persist->checkpoint != NULL)
            task->checkpoint = *persist->checkpoint;
    }
    if (output->type == AMPD_OUT_RESTORE)
        task->checkpoint = *output->u.restore.checkpoint;
    if (output->type == AMPD_OUT_SEND)
        task->message = ampd_message_copy(output->u.message);
    amp_list_push(output->type == AMPD_OUT_JOB ? &sim->jobs : &sim->tasks, &task->node);
}

static void drop_checkpoint(struct sim *sim, const struct ampd_checkpoint_record *record)
{
    struct sim_store *store = &sim->store;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < store->checkpoints_count; i++) {
        if (store->checkpoints[i].step != record->step)
            store->checkpoints[kept++] = store->checkpoints[i];
    }
    store->checkpoints_count = kept;
}

static void do_output(struct sim *sim, const struct ampd_output *output)
{
    struct sim_call *call = output->call == 0 ? NULL : find_call(sim, output->call);
    sim_trace(sim, 100 + output->type, output->call);
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
    case AMPD_OUT_RESTORE:
    case AMPD_OUT_CUT:
        keep_task(sim, output);
        break;
    case AMPD_OUT_DROP_CHECKPOINT:
        drop_checkpoint(sim, output->u.drop.checkpoint);
        break;
    case AMPD_OUT_NOTIFY:
        break;
    case AMPD_OUT_TIMER:
        sim->server_timer_ms = output->u.timer.at_ms;
        break;
    case AMPD_OUT_SEND:
        keep_task(sim, output);
        break;
    case AMPD_OUT_LOG:
        if (sim->verbose)
            (void)fprintf(stderr, "%8llu server: %s\n", (unsigned long long)sim->now_ms, output->u.log.text);
        break;
    default:
        break;
    }
}

void sim_server_event(struct sim *sim, struct ampd_event *event)
{
    if (sim->core == NULL)
        return;
    event->utc_us = (int64_t)sim->now_ms * 1000;
    sim_trace(sim, event->type, event->call);
    ampd_core_step(sim->core, sim->now_ms, event);
    struct ampd_output output;
    while (ampd_core_next(sim->core, &output))
        do_output(sim, &output);
}

/* ---- jobs, store, files ---- */

static uint64_t list_count(const struct amp_list *list)
{
    uint64_t count = 0;
    for (const struct amp_list *it = list->next; it != list; it = it->next)
        count++;
    return count;
}

uint64_t sim_server_tasks(const struct sim *sim)
{
    return list_count(&sim->tasks) + list_count(&sim->jobs);
}

static void store_checkpoint(struct sim *sim, const struct ampd_checkpoint_record *record)
{
    drop_checkpoint(sim, record);
    sim->store.checkpoints[sim->store.checkpoints_count++] = *record;
}

static void store_epoch(struct sim *sim, const struct ampd_epoch_record *epoch)
{
    struct sim_store *store = &sim->store;
    if (epoch->epoch <= store->epoch)
        sim_fail(sim, "epoch %llu is stored after %llu", (unsigned long long)epoch->epoch,
                 (unsigned long long)store->epoch);
    store->epoch = epoch->epoch;
    store->base_epoch = epoch->base_epoch;
    store->base_step = epoch->base_step;
    store->last_step = epoch->base_step;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < store->checkpoints_count; i++) {
        if (store->checkpoints[i].step <= epoch->base_step)
            store->checkpoints[kept++] = store->checkpoints[i];
    }
    store->checkpoints_count = kept;
    sim_check_epoch(sim, epoch);
}

static void do_persist(struct sim *sim, struct sim_task *task)
{
    struct sim_store *store = &sim->store;
    switch (task->output.u.persist.kind) {
    case AMPD_PERSIST_MODEL:
        store->has_model = true;
        store_epoch(sim, &task->epoch);
        break;
    case AMPD_PERSIST_EPOCH:
        store_epoch(sim, &task->epoch);
        break;
    case AMPD_PERSIST_WORKER:
        store->workers[task->worker.rank] = task->worker;
        store->has_worker[task->worker.rank] = true;
        break;
    case AMPD_PERSIST_VERDICT:
        sim_check_row(sim, task->row);
        store->rows[task->row->step] = *task->row;
        store->last_step = task->row->step;
        break;
    case AMPD_PERSIST_CHECKPOINT:
        store_checkpoint(sim, &task->checkpoint);
        break;
    default:
        break;
    }
    struct ampd_event event = {.type = AMPD_EVENT_PERSISTED, .u.persisted = {task->output.u.persist.token}};
    sim_server_event(sim, &event);
}

static float *copy_floats(const float *from, uint64_t count)
{
    if (from == NULL)
        return NULL;
    float *to = malloc(count * sizeof(*to));
    memcpy(to, from, count * sizeof(*to));
    return to;
}

static void file_free(struct sim_file *file, uint32_t world)
{
    free(file->master);
    free(file->m);
    free(file->v);
    for (uint32_t r = 0; file->state.user_states != NULL && r < world; r++)
        free(file->state.user_states[r].data);
    free(file->state.user_states);
    memset(file, 0, sizeof(*file));
}

static void do_cut(struct sim *sim, const struct sim_task *task)
{
    const struct ampd_cut_order *order = &task->output.u.cut;
    struct ampd_checkpoint_record record = {.size_bytes = 1};
    struct ampd_event event = {.type = AMPD_EVENT_PART_WRITTEN, .u.part = {order->token, 0, &record}};
    if (task->cancelled)
        event.u.part.code = AMP_ECANCELLED;
    struct sim_file *file = &sim->store.files[order->step];
    file_free(file, sim->model.spec.world_size);
    uint64_t elements = sim->model.layout->elements;
    file->used = true;
    file->step = order->step;
    file->master = copy_floats(order->tensors.masters, elements);
    file->m = copy_floats(order->tensors.m, elements);
    file->v = copy_floats(order->tensors.v, elements);
    file->state = *order->state;
    file->state.user_states = calloc(sim->model.spec.world_size, sizeof(*file->state.user_states));
    for (uint32_t r = 0; r < sim->model.spec.world_size; r++) {
        uint32_t size = order->state->user_states[r].size;
        file->state.user_states[r].size = size;
        file->state.user_states[r].data = malloc(size + (size_t)1);
        if (size > 0)
            memcpy(file->state.user_states[r].data, order->state->user_states[r].data, size);
    }
    sim_check_file(sim, file);
    sim_server_event(sim, &event);
}

/* A file may be found damaged if an older one is there, and the workers still train: then they go on from that one. */
static bool may_damage(const struct sim *sim, uint64_t step)
{
    return sim->store.last_step < sim->model.spec.max_steps && sim->store.checkpoints_count > 1 &&
           step != sim->store.checkpoints[0].step;
}

static void do_restore(struct sim *sim, const struct sim_task *task)
{
    const struct ampd_restore_order *order = &task->output.u.restore;
    const struct sim_file *file = &sim->store.files[task->checkpoint.step];
    struct ampd_event event = {.type = AMPD_EVENT_RESTORED, .u.restored = {order->token, 0, &file->state}};
    size_t bytes = sim->model.layout->elements * sizeof(float);
    bool damaged = may_damage(sim, task->checkpoint.step) && sim_below(sim, 10) == 0;
    if (sim_below(sim, 10) == 0) { /* what may pass costs no checkpoint */
        event.u.restored.code = sim_below(sim, 2) == 0 ? AMP_ENOMEM : AMP_EIO;
        memset(order->tensors.masters, 0x55, bytes);
    } else if (damaged) {
        event.u.restored.code = AMP_EDATALOSS;
        sim->durable_told = 0; /* what a disk destroys is not the server's promise */
        memset(order->tensors.masters, 0x55, bytes);
    } else {
        memcpy(order->tensors.masters, file->master, bytes);
        if (order->tensors.m != NULL)
            memcpy(order->tensors.m, file->m, bytes);
        if (order->tensors.v != NULL)
            memcpy(order->tensors.v, file->v, bytes);
    }
    sim_server_event(sim, &event);
}

static struct sim_task *nth(struct amp_list *list, uint64_t n)
{
    struct amp_list *it = list->next;
    while (n-- > 0)
        it = it->next;
    return AMP_CONTAINER(it, struct sim_task, node);
}

static void do_peer(struct sim *sim, const struct sim_task *task)
{
    struct ampd_event event = {.type = AMPD_EVENT_PEER, .u.message = task->message};
    sim_server_event(sim, &event);
}

/* Writes of the store go in order, and so do messages between shards; files go in any order. */
static struct sim_task *first_of_kind(struct sim *sim, struct sim_task *task)
{
    if (task->output.type != AMPD_OUT_PERSIST && task->output.type != AMPD_OUT_SEND)
        return task;
    for (struct amp_list *it = sim->tasks.next;; it = it->next) {
        struct sim_task *earlier = AMP_CONTAINER(it, struct sim_task, node);
        if (earlier->output.type == task->output.type)
            return earlier;
    }
}

/* Jobs run, and are reported, in any order. */
bool sim_server_run_task(struct sim *sim, uint64_t pick)
{
    uint64_t jobs = list_count(&sim->jobs);
    if (pick < jobs) {
        struct sim_task *task = nth(&sim->jobs, pick);
        if (!task->ran) {
            ampd_job_run(&task->output.u.job, &amp_kernels_ref);
            task->ran = true;
            return true;
        }
        amp_list_remove(&task->node);
        struct ampd_event event = {.type = AMPD_EVENT_JOB_DONE, .u.job = task->output.u.job};
        task_free(task);
        sim_server_event(sim, &event);
        return true;
    }
    struct sim_task *task = first_of_kind(sim, nth(&sim->tasks, pick - jobs));
    if (task->output.type == AMPD_OUT_CUT && sim->slow_disk && sim_below(sim, 60) != 0)
        return false;
    amp_list_remove(&task->node);
    if (task->output.type == AMPD_OUT_PERSIST)
        do_persist(sim, task);
    else if (task->output.type == AMPD_OUT_CUT)
        do_cut(sim, task);
    else if (task->output.type == AMPD_OUT_SEND)
        do_peer(sim, task);
    else
        do_restore(sim, task);
    task_free(task);
    return true;
}

/* ---- streams ---- */

/* Whether the first message that goes up can be taken by the server now. */
bool sim_call_can_go_up(const struct sim *sim, const struct sim_call *call)
{
    if (amp_list_empty(&call->up) || sim->core == NULL)
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
    sim_message_fill(sim, call, message);
    if (!load && call->listed[message->block] == 2)
        return;
    uint8_t *to =
        load ? (uint8_t *)call->load.masters + message->block * sim->model.layout->block_elements * sizeof(float)
             : call->push.memory + message->block * call->push.stride;
    memcpy(to, message->data, message->size);
    struct ampd_event event = {.type = load ? AMPD_EVENT_LOAD_BLOCK : AMPD_EVENT_PUSH_BLOCK, .call = call->id};
    event.u.block.block = message->block;
    event.u.block.counts = counts;
    if (!load && sim->flips > 0 && sim_below(sim, 40) == 0) {
        sim->flips--;
        memset(to, 0x7c, message->size);
        event.u.block.bad_checksum = true;
    } else {
        event.u.block.counts_count = ampd_receive_block(
            sim->model.layout, message->block, load ? AMP_F32 : call->push.dtype, to, &amp_kernels_ref, counts);
    }
    sim_server_event(sim, &event);
}

void sim_call_go_up(struct sim *sim, struct sim_call *call)
{
    struct sim_message *message = AMP_CONTAINER(amp_list_shift(&call->up), struct sim_message, node);
    if (message->type == SIM_REQUEST) {
        call->begun = true;
        message->request.call = call->id;
        sim_server_event(sim, &message->request);
    } else if (message->type == SIM_BLOCK) {
        receive_block(sim, call, message);
    } else {
        struct ampd_event event = {.type = call->kind == SIM_LOAD ? AMPD_EVENT_LOAD_END : AMPD_EVENT_PUSH_END,
                                   .call = call->id};
        event.u.push_end.absent = message->absent;
        event.u.push_end.absent_count = message->absent_count;
        sim_server_event(sim, &event);
    }
    sim_message_free(message);
}

void sim_call_send(struct sim *sim, struct sim_call *call)
{
    uint64_t block = call->to_send[--call->to_send_count];
    const struct ampd_pull_grant *grant = &call->pull;
    struct sim_message *message = sim_message_new(SIM_BLOCK);
    message->block = block;
    message->size = ampd_layout_block_elements(sim->model.layout, block) * amp_dtype_size(grant->dtype);
    message->data = malloc(message->size);
    memcpy(message->data, grant->memory + (block - grant->first) * grant->stride, message->size);
    if (amp_crc32c(0, message->data, message->size) != grant->crcs[block - grant->first])
        sim_fail(sim, "a pull sends a block that is written at the same time");
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
    sim_server_event(sim, &event);
}

void sim_call_close(struct sim *sim, struct sim_call *call)
{
    flush(&call->up);
    call->to_send_count = 0;
    if (call->begun && !call->over && sim->core != NULL) {
        call->over = true;
        struct ampd_event event = {.type = AMPD_EVENT_CALL_CLOSED, .call = call->id};
        sim_server_event(sim, &event);
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
}

/* ---- life ---- */

static void find_model(struct sim *sim)
{
    struct sim_store *store = &sim->store;
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
                                       .base_step = store->base_step,
                                       .workers_count = count,
                                       .workers = workers,
                                       .checkpoints_count = store->checkpoints_count,
                                       .checkpoints = store->checkpoints};
    if (store->last_step > store->base_step)
        record.last = &store->rows[store->last_step];
    struct ampd_event event = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    sim_server_event(sim, &event);
}

void sim_server_start(struct sim *sim)
{
    sim->store.boots++;
    memset(sim->actors, 0, sizeof(sim->actors));
    struct ampd_core_config config = {.fence = {.counter = sim->store.boots},
                                      .block_elements = sim->model.layout->block_elements,
                                      .carry_own = sim->seed % 2 == 0};
    if (ampd_core_new(&config, &sim->core) != 0)
        sim_fail(sim, "no core");
    sim->server_restart_ms = 0;
    sim->server_timer_ms = 0;
    find_model(sim);
    struct ampd_event event = {.type = AMPD_EVENT_START};
    sim_server_event(sim, &event);
}

static void drop_tasks(struct amp_list *list)
{
    for (struct amp_list *it; (it = amp_list_shift(list)) != NULL;)
        task_free(AMP_CONTAINER(it, struct sim_task, node));
}

void sim_server_kill(struct sim *sim)
{
    sim_trace(sim, 900, sim->now_ms);
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu server killed\n", (unsigned long long)sim->now_ms);
    ampd_core_free(sim->core);
    sim->core = NULL;
    drop_tasks(&sim->tasks);
    drop_tasks(&sim->jobs);
    for (unsigned i = 0; i < SIM_CALLS_MAX; i++) {
        struct sim_call *call = &sim->calls[i];
        if (!call->used)
            continue;
        bool answered = call->over && !amp_list_empty(&call->down);
        if (answered && sim_below(sim, 2) == 0)
            continue; /* the answer is on its way already */
        sim_call_close(sim, call);
        if (!call->lost)
            sim_call_lose(sim, call);
    }
    sim->server_restart_ms = sim->now_ms + 1 + sim_below(sim, 2000);
}

void sim_server_close(struct sim *sim)
{
    ampd_core_free(sim->core);
    drop_tasks(&sim->tasks);
    drop_tasks(&sim->jobs);
    for (unsigned i = 0; i < SIM_CALLS_MAX; i++) {
        if (sim->calls[i].used)
            sim_call_free(&sim->calls[i]);
    }
    for (unsigned s = 0; s <= SIM_STEPS_MAX; s++)
        file_free(&sim->store.files[s], sim->model.spec.world_size);
}
