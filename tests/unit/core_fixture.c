#include "tests/unit/core_fixture.h"

#include "amp/kernels.h"
#include "server/core/model/layout.h"
#include "server/core/model/passes.h"
#include "server/core/model/spec.h"
#include "tests/whole_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ampd_parameter_spec parameters[] = {
    {.name = "a", .dimensions = 1, .shape = {100}},
    {.name = "b", .dimensions = 1, .shape = {10}},
};

void core_spec(struct ampd_model_spec *spec, uint32_t world_size)
{
    *spec = (struct ampd_model_spec){.parameters_count = 2,
                                     .parameters = parameters,
                                     .world_size = world_size,
                                     .optimizer = AMPD_OPTIMIZER_SGD,
                                     .lr = 1,
                                     .cast = AMP_F32,
                                     .scaler = {.init_scale = 1024}};
    (void)snprintf(spec->name, sizeof(spec->name), "model");
}

const struct ampd_copy_memory *core_copy_memory;

void core_host_init(struct core_host *host, uint64_t boot)
{
    memset(host, 0, sizeof(*host));
    host->now_ms = 1000;
    host->instance = 1;
    struct ampd_core_config config = {.fence = {.counter = boot},
                                      .block_elements = AMPD_ALIGN_ELEMENTS,
                                      .copy_memory = core_copy_memory,
                                      .check = true};
    assert_int_equal(0, ampd_core_new(&config, &host->core));
}

void core_host_close(struct core_host *host)
{
    ampd_core_free(host->core);
}

struct core_call *core_call(struct core_host *host, uint64_t call)
{
    assert_true(call > 0 && call < CORE_CALLS_MAX);
    return &host->calls[call];
}

/* ---- what outputs ask for ---- */

static void take_reply(struct core_host *host, const struct ampd_output *output)
{
    struct core_call *call = core_call(host, output->call);
    assert_false(call->answered);
    call->answered = true;
    call->reply = output->u.reply;
    if (output->u.reply.kind == AMPD_REPLY_STEP && output->u.reply.u.step.rows_count > 0)
        memcpy(call->rows, output->u.reply.u.step.rows, output->u.reply.u.step.rows_count * sizeof(call->rows[0]));
    if (output->u.reply.kind == AMPD_REPLY_KEEP_ALIVE)
        (void)snprintf(call->taken_by, sizeof(call->taken_by), "%s", output->u.reply.u.keep_alive.taken_by);
    if (output->u.reply.kind == AMPD_REPLY_PUSH_STATE && output->u.reply.u.push_state.ranges_count > 0)
        memcpy(call->ranges, output->u.reply.u.push_state.ranges,
               output->u.reply.u.push_state.ranges_count * sizeof(call->ranges[0]));
}

static void persist(struct core_host *host, const struct ampd_persist *order)
{
    struct ampd_event event = {.type = AMPD_EVENT_PERSISTED, .u.persisted = {order->token}};
    core_event(host, &event);
}

/* The file of a cut is written block by block, and finished when all are in. */
static void cut_end(struct core_host *host, int code)
{
    struct ampd_checkpoint_record record = {.step = host->cut.step};
    struct ampd_event event = {.type = AMPD_EVENT_PART_WRITTEN, .u.part = {host->cut.token, code, &record}};
    if (code == 0)
        host->cuts++;
    core_event(host, &event);
}

static void cut(struct core_host *host, const struct ampd_part_order *order)
{
    host->cut = *order;
    host->cut_left = order->count;
    host->file_state = *order->state;
    host->file_state.user_states = NULL;
    if (host->cut_left == 0)
        cut_end(host, 0);
}

static void cut_blocks(struct core_host *host, const struct ampd_part_blocks *blocks)
{
    uint64_t size = host->cut.layout->block_elements;
    assert_int_equal(host->cut.token, blocks->token);
    assert_int_equal(host->cut.count - host->cut_left, blocks->first);
    for (uint64_t b = 0; b < blocks->count; b++) {
        size_t bytes = ampd_layout_block_elements(host->cut.layout, blocks->first + b) * sizeof(float);
        memcpy(host->file + (blocks->first + b) * size, blocks->tensors.masters + b * size, bytes);
    }
    host->cut_left -= blocks->count;
    struct ampd_event event = {.type = AMPD_EVENT_PART_BLOCKS,
                               .u.part_blocks = {blocks->token, blocks->first, blocks->count}};
    core_event(host, &event);
    if (host->cut_left == 0 && !host->hold_seal)
        cut_end(host, 0);
}

void core_cut_end(struct core_host *host, int code)
{
    cut_end(host, code);
}

static void restore(struct core_host *host, const struct ampd_restore_order *order)
{
    struct ampd_checkpoint_state state = {.step = order->checkpoint->step, .version = order->checkpoint->version};
    amp_scaler_init(&order->spec->scaler, &state.carry.scaler);
    if (host->restore_state.step != 0 && host->restore_state.step == order->checkpoint->step)
        state.carry = host->restore_state.carry;
    if (host->has_file)
        memcpy(order->tensors.masters, host->file, order->layout->elements * sizeof(float));
    if (order->tensors.m != NULL) /* those of the first values */
        memset(order->tensors.m, 0, order->layout->elements * sizeof(float));
    host->restored_steps[host->restored_count++] = order->checkpoint->step;
    int code = host->restore_code != 0 ? host->restore_code : host->restore_codes;
    host->restore_code = 0;
    struct ampd_event event = {.type = AMPD_EVENT_RESTORED, .u.restored = {order->token, code, &state}};
    core_event(host, &event);
}

static void write_record(struct core_host *host, const struct ampd_vote_journal_order *order, const uint8_t *notes)
{
    assert_true(host->journal_count < CORE_STEPS_MAX && order->notes_size <= sizeof(host->journal[0].notes));
    struct core_record *record = &host->journal[host->journal_count++];
    record->key = order->key;
    memcpy(record->notes, notes, order->notes_size);
    record->notes_size = order->notes_size;
    record->has_g = order->g != NULL;
    if (record->has_g)
        memcpy(record->g, order->g, order->elements * sizeof(float));
    struct ampd_event event = {.type = AMPD_EVENT_JOURNALLED, .u.persisted = {order->token}};
    core_event(host, &event);
}

/* The newest record of the step. */
static void read_record(struct core_host *host, const struct ampd_replay_order *order)
{
    struct ampd_event event = {.type = AMPD_EVENT_REPLAYED,
                               .u.replayed = {.token = order->token, .code = AMP_ENOTFOUND}};
    for (uint32_t i = host->journal_count; i-- > 0;) {
        const struct core_record *record = &host->journal[i];
        if (record->key.epoch != order->epoch || record->key.step != order->step)
            continue;
        event.u.replayed = (struct ampd_event_replayed){.token = order->token,
                                                        .key = record->key,
                                                        .notes = record->notes,
                                                        .notes_size = record->notes_size,
                                                        .has_g = record->has_g};
        if (record->has_g)
            memcpy(order->g, record->g, order->elements * sizeof(float));
        break;
    }
    if (host->journal_code != 0)
        event.u.replayed = (struct ampd_event_replayed){.token = order->token, .code = host->journal_code};
    core_event(host, &event);
}

static void do_now(struct core_host *host, const struct ampd_output *output)
{
    if (output->type == AMPD_OUT_PERSIST) {
        persist(host, &output->u.persist);
    } else if (output->type == AMPD_OUT_CUT) {
        cut(host, &output->u.cut);
    } else if (output->type == AMPD_OUT_PART_BLOCKS) {
        cut_blocks(host, &output->u.part_blocks);
    } else if (output->type == AMPD_OUT_JOURNAL) {
        write_record(host, &output->u.journal, output->u.journal.notes);
    } else if (output->type == AMPD_OUT_REPLAY) {
        read_record(host, &output->u.replay);
    } else if (output->type == AMPD_OUT_RESTORE) {
        restore(host, &output->u.restore);
    } else {
        ampd_job_run(&output->u.job, &amp_kernels_ref);
        struct ampd_event event = {.type = AMPD_EVENT_JOB_DONE, .u.job = output->u.job};
        core_event(host, &event);
    }
}

/* What the core lends until the next output is copied. */
static void keep_notes(struct core_host *host)
{
    struct ampd_vote_journal_order *order = &host->tasks[host->tasks_count - 1].u.journal;
    assert_true(order->notes_size <= sizeof(host->notes));
    memcpy(host->notes, order->notes, order->notes_size);
    order->notes = host->notes;
}

static void keep(struct core_host *host, const struct ampd_output *output)
{
    assert_true(host->tasks_count < CORE_TASKS_MAX);
    host->tasks[host->tasks_count++] = *output;
    if (output->type == AMPD_OUT_JOURNAL)
        keep_notes(host);
    if (output->type == AMPD_OUT_CUT)
        host->removed_first = host->removed;
}

static void keep_row(struct core_host *host)
{
    if (host->rows_count < CORE_STEPS_MAX)
        host->rows[host->rows_count++] = host->row;
}

static void take_listed(struct core_host *host, const struct ampd_output *output)
{
    struct core_call *call = core_call(host, output->call);
    for (uint64_t b = 0; b < output->u.blocks.count; b++) {
        assert_int_equal(0, call->listed[output->u.blocks.first + b]);
        call->listed[output->u.blocks.first + b] = output->u.blocks.drop ? 2 : 1;
    }
}

static void take_line(struct core_host *host, const char *text)
{
    memcpy(host->logged_before, host->logged, sizeof(host->logged));
    (void)snprintf(host->logged, sizeof(host->logged), "%s", text);
    host->logged_count++;
}

static void take_drop(struct core_host *host, const struct ampd_output *output)
{
    if (!output->u.drop.file_only) {
        host->dropped++;
        return;
    }
    host->removed++;
    host->removed_step = output->u.drop.checkpoint->step;
}

static void take(struct core_host *host, const struct ampd_output *output)
{
    switch (output->type) {
    case AMPD_OUT_REPLY:
        take_reply(host, output);
        break;
    case AMPD_OUT_LOAD_GRANT:
        core_call(host, output->call)->granted = true;
        core_call(host, output->call)->load = output->u.load;
        break;
    case AMPD_OUT_PUSH_GRANT:
        core_call(host, output->call)->granted = true;
        core_call(host, output->call)->push = output->u.push;
        break;
    case AMPD_OUT_PULL_GRANT:
        core_call(host, output->call)->granted = true;
        core_call(host, output->call)->pull = output->u.pull;
        break;
    case AMPD_OUT_PUSH_BLOCKS:
    case AMPD_OUT_PULL_BLOCKS:
        take_listed(host, output);
        break;
    case AMPD_OUT_PUSH_REVOKE:
    case AMPD_OUT_PULL_REVOKE:
        core_call(host, output->call)->revoked = true;
        break;
    case AMPD_OUT_PERSIST:
        host->persists[output->u.persist.kind]++;
        if (output->u.persist.epoch != NULL)
            host->epoch = *output->u.persist.epoch, host->epoch_row = *output->u.persist.row;
        if (output->u.persist.kind == AMPD_PERSIST_ACT)
            host->act_row = *output->u.persist.row;
        keep(host, output);
        break;
    case AMPD_OUT_JOURNAL:
    case AMPD_OUT_JOB:
    case AMPD_OUT_CUT:
    case AMPD_OUT_PART_BLOCKS:
    case AMPD_OUT_RESTORE:
    case AMPD_OUT_REPLAY:
        keep(host, output);
        break;
    case AMPD_OUT_CUT_CANCEL:
        host->cancelled++;
        break;
    case AMPD_OUT_JOURNAL_PRUNE:
        host->pruned = output->u.journal_prune.step;
        break;
    case AMPD_OUT_DROP_CHECKPOINT:
        take_drop(host, output);
        break;
    case AMPD_OUT_NOTIFY:
        if (output->u.notify.row == NULL)
            break;
        host->notified++;
        host->row = *output->u.notify.row;
        keep_row(host);
        break;
    case AMPD_OUT_TIMER:
        host->timer_ms = output->u.timer.at_ms;
        break;
    case AMPD_OUT_LOG:
        take_line(host, output->u.log.text);
        break;
    case AMPD_OUT_DRAINED:
        host->drained++;
        break;
    default:
        break;
    }
}

static bool held(const struct core_host *host, const struct ampd_output *output)
{
    if (output->type == AMPD_OUT_PERSIST)
        return host->hold_persists;
    if (output->type == AMPD_OUT_JOURNAL)
        return host->hold_journal;
    return output->type == AMPD_OUT_JOB ? host->hold_jobs : host->hold_files;
}

void core_do_task(struct core_host *host, unsigned index)
{
    assert_true(index < host->tasks_count);
    struct ampd_output output = host->tasks[index];
    host->tasks_count--;
    memmove(&host->tasks[index], &host->tasks[index + 1], (host->tasks_count - index) * sizeof(output));
    do_now(host, &output);
}

void core_do_all(struct core_host *host)
{
    while (host->tasks_count > 0)
        core_do_task(host, 0);
}

void core_event(struct core_host *host, struct ampd_event *event)
{
    event->utc_us = host->utc_us;
    ampd_core_step(host->core, host->now_ms, event);
    struct ampd_output output;
    while (ampd_core_next(host->core, &output))
        take(host, &output);
    for (unsigned i = 0; i < host->tasks_count;) {
        if (held(host, &host->tasks[i]))
            i++;
        else
            core_do_task(host, i), i = 0;
    }
}

void core_tick(struct core_host *host, uint64_t now_ms)
{
    host->now_ms = now_ms;
    struct ampd_event event = {.type = AMPD_EVENT_TICK};
    core_event(host, &event);
}

/* ---- calls ---- */

static uint64_t send(struct core_host *host, struct ampd_event *event)
{
    event->call = ++host->last_call;
    core_event(host, event);
    return event->call;
}

uint64_t core_create(struct core_host *host, const struct ampd_model_spec *spec)
{
    struct ampd_model_spec whole = *spec;
    struct ampd_event event = {.type = AMPD_EVENT_CREATE_MODEL, .u.create = {.spec = whole_spec(&whole)}};
    return send(host, &event);
}

static uint32_t fill(float *to, uint64_t block, enum amp_dtype dtype, float value, const struct ampd_layout *layout,
                     struct ampd_segment_count *counts)
{
    uint32_t elements = ampd_layout_block_elements(layout, block);
    for (uint32_t i = 0; i < elements; i++)
        to[i] = value;
    return ampd_receive_block(layout, block, dtype, to, &amp_kernels_ref, counts);
}

uint64_t core_load(struct core_host *host, float value)
{
    struct ampd_event event = {.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "model"}};
    uint64_t call = send(host, &event);
    const struct ampd_load_grant *grant = &core_call(host, call)->load;
    for (uint64_t b = 0; core_call(host, call)->granted && b < grant->count; b++) {
        struct ampd_segment_count counts[8];
        struct ampd_event block = {.type = AMPD_EVENT_LOAD_BLOCK, .call = call};
        block.u.block.block = b;
        block.u.block.counts = counts;
        block.u.block.counts_count =
            fill(grant->planes[0] + b * grant->layout->block_elements, b, AMP_F32, value, grant->layout, counts);
        core_event(host, &block);
    }
    if (core_call(host, call)->granted && !core_call(host, call)->revoked) {
        struct ampd_event end = {.type = AMPD_EVENT_LOAD_END, .call = call};
        core_event(host, &end);
    }
    return call;
}

uint64_t core_join(struct core_host *host, const char *worker, int32_t rank)
{
    struct ampd_event event = {
        .type = AMPD_EVENT_JOIN,
        .u.join = {.model = "model", .worker = worker, .rank = rank, .instance = host->instance, .peer = "here:1"}};
    return send(host, &event);
}

struct ampd_incarnation core_joined(struct core_host *host, uint64_t call)
{
    const struct core_call *join = core_call(host, call);
    assert_true(join->answered);
    assert_int_equal(0, join->reply.error.code);
    return join->reply.u.join.incarnation;
}

uint64_t core_pull_step(struct core_host *host, uint64_t epoch, uint64_t step)
{
    struct ampd_event event = {.type = AMPD_EVENT_PULL,
                               .u.pull = {.model = "model", .by = AMPD_PULL_STEP, .epoch = epoch, .number = step}};
    return send(host, &event);
}

uint64_t core_pull_version(struct core_host *host, uint64_t version)
{
    struct ampd_event event = {.type = AMPD_EVENT_PULL,
                               .u.pull = {.model = "model", .by = AMPD_PULL_VERSION, .number = version}};
    return send(host, &event);
}

uint64_t core_pull_latest(struct core_host *host)
{
    struct ampd_event event = {.type = AMPD_EVENT_PULL, .u.pull = {.model = "model", .by = AMPD_PULL_LATEST}};
    return send(host, &event);
}

uint64_t core_push_event(struct core_host *host, const struct ampd_event_push *push)
{
    struct ampd_event event = {.type = AMPD_EVENT_PUSH_BEGIN, .u.push = *push};
    return send(host, &event);
}

uint64_t core_push_header(struct core_host *host, uint64_t step, uint32_t rank, struct ampd_incarnation incarnation)
{
    struct ampd_model_info info = core_info(host);
    struct ampd_event_push push = {.model = "model",
                                   .epoch = info.epoch,
                                   .step = step,
                                   .rank = rank,
                                   .incarnation = incarnation,
                                   .scale_id = info.step_scale_id,
                                   .dtype = AMP_F32,
                                   .weight = 1,
                                   .has_lr = info.spec->schedule == AMPD_SCHEDULE_WORKER,
                                   .lr = host->lr};
    return core_push_event(host, &push);
}

void core_push_block(struct core_host *host, uint64_t id, uint64_t block, float value)
{
    struct core_call *call = core_call(host, id);
    assert_true(call->granted && call->listed[block] == 1);
    struct ampd_segment_count counts[8];
    struct ampd_event event = {.type = AMPD_EVENT_PUSH_BLOCK, .call = id};
    float *to = (float *)(void *)(call->push.memory + block * call->push.stride);
    event.u.block.block = block;
    event.u.block.counts = counts;
    event.u.block.counts_count = fill(to, block, AMP_F32, value, call->push.layout, counts);
    core_event(host, &event);
}

void core_push_end(struct core_host *host, uint64_t id, const uint32_t *absent, uint32_t absent_count)
{
    struct ampd_event event = {
        .type = AMPD_EVENT_PUSH_END, .call = id, .u.push_end = {absent_count, absent, host->metrics}};
    core_event(host, &event);
}

uint64_t core_push_all(struct core_host *host, uint64_t step, uint32_t rank, struct ampd_incarnation incarnation,
                       float value)
{
    uint64_t call = core_push_header(host, step, rank, incarnation);
    for (uint64_t b = 0; b < 3; b++)
        core_push_block(host, call, b, value);
    core_push_end(host, call, NULL, 0);
    return call;
}

static uint64_t send_act(struct core_host *host, enum ampd_event_type type, struct ampd_event_act act, const char *id)
{
    struct ampd_note note = {.actor = "ann", .words = "why not"};
    (void)snprintf(note.request_id, sizeof(note.request_id), "%s", id);
    act.model = "model";
    act.note = &note;
    struct ampd_event event = {.type = type, .u.act = act};
    return send(host, &event);
}

uint64_t core_set_scale(struct core_host *host, float scale, const char *id)
{
    return send_act(host, AMPD_EVENT_SET_SCALE, (struct ampd_event_act){.scale = scale}, id);
}

uint64_t core_reset_scale(struct core_host *host, const char *id)
{
    return send_act(host, AMPD_EVENT_RESET_SCALE, (struct ampd_event_act){0}, id);
}

uint64_t core_set_lr(struct core_host *host, double lr, const char *id)
{
    return send_act(host, AMPD_EVENT_SET_LR, (struct ampd_event_act){.lr = lr}, id);
}

uint64_t core_evict(struct core_host *host, uint32_t rank, const char *id)
{
    return send_act(host, AMPD_EVENT_EVICT, (struct ampd_event_act){.rank = rank}, id);
}

uint64_t core_rollback(struct core_host *host, uint64_t epoch, uint64_t step, const char *id)
{
    return send_act(host, AMPD_EVENT_ROLLBACK, (struct ampd_event_act){.epoch = epoch, .step = step}, id);
}

uint64_t core_delete(struct core_host *host, bool force)
{
    return send_act(host, AMPD_EVENT_DELETE_MODEL, (struct ampd_event_act){.force = force}, "");
}

uint64_t core_checkpoint(struct core_host *host)
{
    struct ampd_event event = {.type = AMPD_EVENT_CHECKPOINT, .u.named = {"model"}};
    return send(host, &event);
}

uint64_t core_push_state(struct core_host *host, uint64_t epoch, uint64_t step, uint32_t rank,
                         struct ampd_incarnation incarnation)
{
    struct ampd_event event = {.type = AMPD_EVENT_GET_PUSH_STATE,
                               .u.push_state = {"model", epoch, step, rank, incarnation}};
    return send(host, &event);
}

void core_close_call(struct core_host *host, uint64_t call)
{
    struct ampd_event event = {.type = AMPD_EVENT_CALL_CLOSED, .call = call};
    core_event(host, &event);
}

void core_revoked(struct core_host *host, uint64_t call)
{
    struct ampd_event event = {.type = AMPD_EVENT_REVOKED, .call = call};
    core_event(host, &event);
}

void core_running(struct core_host *host, struct ampd_incarnation incarnations[2])
{
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    assert_int_equal(0, core_call(host, core_create(host, &spec))->reply.error.code);
    assert_int_equal(0, core_call(host, core_load(host, 1))->reply.error.code);
    incarnations[0] = core_joined(host, core_join(host, "w0", 0));
    incarnations[1] = core_joined(host, core_join(host, "w1", 1));
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(host).state);
}

/* ---- asserts ---- */

void core_assert_failed(struct core_host *host, uint64_t call, int code, const char *reason, const char *word)
{
    const struct core_call *made = core_call(host, call);
    assert_true(made->answered);
    assert_int_equal(code, made->reply.error.code);
    assert_string_equal(reason, made->reply.error.reason);
    if (strstr(made->reply.error.text, word) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", made->reply.error.text, word);
}

void core_assert_held(struct core_host *host, uint64_t call)
{
    assert_false(core_call(host, call)->answered);
    assert_false(core_call(host, call)->granted);
}

struct ampd_model_info core_info(struct core_host *host)
{
    struct ampd_model_info info;
    ampd_core_model(host->core, 0, &info);
    return info;
}
