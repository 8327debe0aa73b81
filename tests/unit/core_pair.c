#include "tests/unit/core_pair.h"

#include "amp/kernels.h"
#include "server/core/coordinator/coord.h"
#include "server/core/base/model.h"
#include "server/core/model/passes.h"
#include "server/core/wire/messages.h"
#include "tests/whole_spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_MAX 64

struct done {
    unsigned shard;
    struct ampd_event event;
};

struct ampd_core *pair_core[2];
uint64_t pair_now_ms, pair_calls_count;
struct core_call pair_calls[PAIR_CALLS_MAX];
unsigned pair_messages_count;
bool pair_hold_messages, pair_drained[2];
enum ampd_persist_kind pair_hold_kind;
uint64_t pair_held_token;
enum ampd_model_state pair_notified[2];
int pair_restore_code[2];
uint64_t pair_acts[2][16];
unsigned pair_acts_count[2];
char pair_logged[AMP_ERROR_TEXT_MAX];
char pair_logged_before[AMP_ERROR_TEXT_MAX];
struct ampd_message *pair_last;
struct ampd_incarnation pair_incarnation;
double pair_lr = NAN;
float pair_gradient;
enum ampd_floor_policy pair_floor;
enum ampd_durability pair_durability;

static uint64_t cut_left[2];
static struct ampd_message *messages[QUEUE_MAX];
static struct done done[QUEUE_MAX];
static unsigned done_count;
static struct ampd_checkpoint_record record = {.size_bytes = 1};
static struct ampd_checkpoint_state restored;
static struct core_record votes[2]; /* the last of each, with pair_durability */

/* ---- two hosts ---- */

static void later(unsigned shard, const struct ampd_event *event)
{
    assert_true(done_count < QUEUE_MAX);
    done[done_count++] = (struct done){shard, *event};
}

static void part_over(unsigned shard, uint64_t token)
{
    struct ampd_event event = {.type = AMPD_EVENT_PART_WRITTEN, .u.part = {token, 0, &record}};
    later(shard, &event);
}

static void restore(unsigned shard, const struct ampd_restore_order *order)
{
    restored.step = order->checkpoint->step;
    restored.version = order->checkpoint->version;
    amp_scaler_init(&order->spec->scaler, &restored.carry.scaler);
    struct ampd_event event = {.type = AMPD_EVENT_RESTORED,
                               .u.restored = {order->token, pair_restore_code[shard], &restored}};
    pair_restore_code[shard] = 0;
    later(shard, &event);
}

static void persist(unsigned shard, const struct ampd_persist *order)
{
    struct ampd_event event = {.type = AMPD_EVENT_PERSISTED, .u.persisted = {order->token}};
    if (order->kind == AMPD_PERSIST_ACT)
        pair_acts[shard][pair_acts_count[shard]++] = order->row->after.scaler.scale_id;
    if (order->kind == pair_hold_kind)
        pair_held_token = order->token;
    else
        later(shard, &event);
}

static void write_vote(struct core_record *vote, const struct ampd_vote_journal_order *order)
{
    assert_true(order->notes_size <= sizeof(vote->notes));
    vote->key = order->key;
    vote->notes_size = order->notes_size;
    memcpy(vote->notes, order->notes, order->notes_size);
    vote->has_g = order->g != NULL;
    if (vote->has_g)
        memcpy(vote->g, order->g, order->elements * sizeof(float));
}

static void read_vote(const struct core_record *vote, const struct ampd_replay_order *order,
                      struct ampd_event_replayed *found)
{
    *found = (struct ampd_event_replayed){.token = order->token, .code = AMP_ENOTFOUND};
    if (pair_durability != AMPD_DURABILITY_STEP || vote->key.epoch != order->epoch || vote->key.step != order->step)
        return;
    found->code = 0;
    found->key = vote->key;
    found->notes = vote->notes;
    found->notes_size = vote->notes_size;
    found->has_g = vote->has_g;
    if (vote->has_g)
        memcpy(order->g, vote->g, order->elements * sizeof(float));
}

/* It takes each vote, and a start finds none in it; with pair_durability it finds the last one. */
static void journal(unsigned shard, const struct ampd_output *output)
{
    struct ampd_event event = {.type = AMPD_EVENT_JOURNALLED, .u.persisted = {.token = output->u.journal.token}};
    if (output->type == AMPD_OUT_REPLAY) {
        event = (struct ampd_event){.type = AMPD_EVENT_REPLAYED};
        read_vote(&votes[shard], &output->u.replay, &event.u.replayed);
    } else if (pair_durability == AMPD_DURABILITY_STEP) {
        write_vote(&votes[shard], &output->u.journal);
    }
    later(shard, &event);
}

static void take(unsigned shard, const struct ampd_output *output)
{
    struct core_call *call = &pair_calls[output->call];
    struct ampd_model_info info;
    struct ampd_event event;
    switch (output->type) {
    case AMPD_OUT_REPLY:
        assert_false(call->answered);
        call->answered = true;
        call->reply = output->u.reply;
        break;
    case AMPD_OUT_PUSH_GRANT:
        call->granted = true;
        call->push = output->u.push;
        break;
    case AMPD_OUT_LOAD_GRANT:
        call->granted = true;
        call->load = output->u.load;
        break;
    case AMPD_OUT_PERSIST:
        persist(shard, &output->u.persist);
        break;
    case AMPD_OUT_JOURNAL:
    case AMPD_OUT_REPLAY:
        journal(shard, output);
        break;
    case AMPD_OUT_JOB:
        ampd_job_run(&output->u.job, &amp_kernels_ref);
        event = (struct ampd_event){.type = AMPD_EVENT_JOB_DONE, .u.job = output->u.job};
        later(shard, &event);
        break;
    case AMPD_OUT_CUT:
        cut_left[shard] = output->u.cut.count;
        break;
    case AMPD_OUT_PART_BLOCKS:
        event = (struct ampd_event){
            .type = AMPD_EVENT_PART_BLOCKS,
            .u.part_blocks = {output->u.part_blocks.token, output->u.part_blocks.first, output->u.part_blocks.count}};
        later(shard, &event);
        cut_left[shard] -= output->u.part_blocks.count;
        if (cut_left[shard] == 0)
            part_over(shard, output->u.part_blocks.token);
        break;
    case AMPD_OUT_RESTORE:
        restore(shard, &output->u.restore);
        break;
    case AMPD_OUT_LOG:
        memcpy(pair_logged_before, pair_logged, sizeof(pair_logged));
        (void)snprintf(pair_logged, sizeof(pair_logged), "%s", output->u.log.text);
        break;
    case AMPD_OUT_NOTIFY:
        ampd_core_model(pair_core[shard], output->u.notify.model, &info);
        pair_notified[shard] = info.state;
        break;
    case AMPD_OUT_DRAINED:
        pair_drained[shard] = true;
        break;
    case AMPD_OUT_SEND:
        assert_true(pair_messages_count < QUEUE_MAX);
        ampd_message_free(pair_last);
        pair_last = ampd_message_copy(output->u.message);
        messages[pair_messages_count++] = ampd_message_copy(output->u.message);
        break;
    default:
        break;
    }
}

void pair_step(unsigned shard, struct ampd_event *event)
{
    struct ampd_output output;
    event->utc_us = (int64_t)(pair_now_ms * 1000 + shard); /* no two clocks agree */
    ampd_core_step(pair_core[shard], pair_now_ms, event);
    while (ampd_core_next(pair_core[shard], &output))
        take(shard, &output);
}

const struct ampd_message *pair_first(void)
{
    assert_true(pair_messages_count > 0);
    return messages[0];
}

void pair_deliver_first(void)
{
    assert_true(pair_messages_count > 0);
    struct ampd_message *message = messages[0];
    memmove(messages, messages + 1, --pair_messages_count * sizeof(messages[0]));
    struct ampd_event event = {.type = AMPD_EVENT_PEER, .u.message = message};
    pair_step(message->to, &event);
    ampd_message_free(message);
}

void pair_settle(void)
{
    while (done_count > 0 || (pair_messages_count > 0 && !pair_hold_messages)) {
        if (done_count > 0) {
            struct done first = done[0];
            memmove(done, done + 1, --done_count * sizeof(done[0]));
            pair_step(first.shard, &first.event);
        } else {
            pair_deliver_first();
        }
    }
}

void pair_forget_messages(void)
{
    while (pair_messages_count > 0)
        ampd_message_free(messages[--pair_messages_count]);
}

struct core_call *pair_call(unsigned shard, struct ampd_event *event)
{
    event->call = ++pair_calls_count;
    assert_true(pair_calls_count < sizeof(pair_calls) / sizeof(pair_calls[0]));
    memset(&pair_calls[pair_calls_count], 0, sizeof(pair_calls[0]));
    pair_step(shard, event);
    pair_settle();
    return &pair_calls[event->call];
}

/* ---- the model ---- */

void pair_start(unsigned shard, uint64_t boot)
{
    struct ampd_core_config config = {
        .shard = shard, .shards = 2, .fence = {.counter = boot}, .block_elements = AMPD_ALIGN_ELEMENTS, .check = true};
    assert_int_equal(0, ampd_core_new(&config, &pair_core[shard]));
}

void pair_send_start(unsigned shard)
{
    struct ampd_event event = {.type = AMPD_EVENT_START};
    pair_step(shard, &event);
    event = (struct ampd_event){.type = AMPD_EVENT_PEER_UP, .u.shard = shard == 0 ? 1 : 0};
    pair_step(shard, &event);
    pair_settle();
}

void pair_load(unsigned shard)
{
    struct ampd_event event = {.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "model", .loader = 7}};
    struct core_call *loading = pair_call(shard, &event);
    uint64_t id = event.call;
    assert_true(loading->granted);
    const struct ampd_load_grant grant = loading->load;
    for (uint64_t b = grant.first; b < grant.first + grant.count; b++) {
        struct ampd_segment_count counts[4];
        float *to = grant.planes[0] + (b - grant.first) * grant.layout->block_elements;
        struct ampd_event block = {.type = AMPD_EVENT_LOAD_BLOCK, .call = id};
        block.u.block.block = b;
        block.u.block.counts = counts;
        block.u.block.counts_count = ampd_receive_block(grant.layout, b, AMP_F32, to, &amp_kernels_ref, counts);
        pair_step(shard, &block);
    }
    struct ampd_event end = {.type = AMPD_EVENT_LOAD_END, .call = id};
    pair_step(shard, &end);
}

struct core_call *pair_push(unsigned shard, uint64_t number, float weight)
{
    struct ampd_model_info info;
    ampd_core_model(pair_core[0], 0, &info);
    struct ampd_event event = {.type = AMPD_EVENT_PUSH_BEGIN};
    event.u.push = (struct ampd_event_push){.model = "model",
                                            .epoch = info.epoch,
                                            .step = number,
                                            .incarnation = pair_incarnation,
                                            .scale_id = info.step_scale_id,
                                            .dtype = AMP_F32,
                                            .weight = weight,
                                            .has_lr = !isnan(pair_lr),
                                            .lr = pair_lr};
    struct core_call *pushing = pair_call(shard, &event);
    uint64_t id = event.call;
    if (!pushing->granted)
        return pushing;
    const struct ampd_push_grant grant = pushing->push;
    for (uint64_t b = grant.first; b < grant.first + grant.count; b++) {
        struct ampd_segment_count counts[4];
        uint8_t *to = grant.memory + (b - grant.first) * grant.stride;
        for (uint64_t i = 0; i < grant.stride / sizeof(float); i++)
            memcpy(to + i * sizeof(float), &pair_gradient, sizeof(float));
        struct ampd_event block = {.type = AMPD_EVENT_PUSH_BLOCK, .call = id};
        block.u.block.block = b;
        block.u.block.counts = counts;
        block.u.block.counts_count = ampd_receive_block(grant.layout, b, AMP_F32, to, &amp_kernels_ref, counts);
        pair_step(shard, &block);
    }
    struct ampd_event end = {.type = AMPD_EVENT_PUSH_END, .call = id};
    pair_step(shard, &end);
    pair_settle();
    return pushing;
}

static void create(enum ampd_weighting weighting)
{
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    spec.weighting = weighting;
    spec.schedule = isnan(pair_lr) ? AMPD_SCHEDULE_CONSTANT : AMPD_SCHEDULE_WORKER;
    spec.checkpoint_every = 100;
    spec.durability = pair_durability;
    if (pair_floor != 0) {
        spec.floor_policy = pair_floor;
        spec.max_consecutive_overflows = 1;
        spec.scaler = (struct amp_scaler_config){.policy = AMP_SCALER_DYNAMIC, .init_scale = 1, .min_scale = 1};
    }
    struct ampd_event event = {.type = AMPD_EVENT_CREATE_MODEL, .u.create = {.spec = whole_spec(&spec)}};
    assert_int_equal(0, pair_call(0, &event)->reply.error.code);
    pair_load(0);
    pair_load(1);
    pair_settle();
    event = (struct ampd_event){.type = AMPD_EVENT_JOIN,
                                .u.join = {.model = "model", .worker = "w0", .rank = 0, .world_size = 1}};
    const struct core_call *joined = pair_call(0, &event);
    assert_int_equal(0, joined->reply.error.code);
    pair_incarnation = joined->reply.u.join.incarnation;
}

void pair_begin(enum ampd_weighting weighting)
{
    pair_now_ms = 1000;
    pair_hold_messages = false;
    pair_drained[0] = pair_drained[1] = false;
    pair_acts_count[0] = pair_acts_count[1] = 0;
    for (unsigned k = 0; k < 2; k++)
        pair_start(k, 1);
    for (unsigned k = 0; k < 2; k++)
        pair_send_start(k);
    create(weighting);
}

int pair_setup(void **state)
{
    (void)state;
    pair_begin(AMPD_WEIGHTING_EQUAL);
    assert_true(pair_push(0, 1, 1) != NULL && pair_push(1, 1, 1)->answered);
    return 0;
}

int pair_teardown(void **state)
{
    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        ampd_core_free(pair_core[k]);
        pair_core[k] = NULL;
    }
    pair_forget_messages();
    ampd_message_free(pair_last);
    pair_last = NULL;
    pair_lr = NAN;
    pair_gradient = 0;
    pair_floor = (enum ampd_floor_policy)0;
    pair_durability = (enum ampd_durability)0;
    done_count = 0;
    pair_calls_count = 0;
    return 0;
}

struct ampd_model *pair_model(unsigned shard)
{
    return pair_core[shard]->models[0];
}

struct ampd_message *pair_message(enum ampd_message_type type, unsigned from, unsigned to)
{
    struct ampd_message *message = ampd_message_new(type);
    message->from = from;
    message->to = to;
    message->from_fence = pair_core[from]->config.fence;
    message->to_fence = pair_core[to]->config.fence;
    message->epoch = pair_model(0)->coord->epoch;
    message->round = pair_core[0]->sync.round;
    (void)snprintf(message->model, sizeof(message->model), "model");
    return message;
}

struct ampd_message *pair_verdict(uint64_t step)
{
    struct ampd_message *message = pair_message(AMPD_MESSAGE_VERDICT, 0, 1);
    message->u.verdict.row.step = step;
    message->u.verdict.row.after = pair_model(0)->coord->carry;
    return message;
}

void pair_send_take(struct ampd_message *message)
{
    struct ampd_event event = {.type = AMPD_EVENT_PEER, .u.message = message};
    pair_step(message->to, &event);
    pair_settle();
    ampd_message_free(message);
}

void pair_start_with(unsigned shard, struct ampd_model_record *given, uint64_t memory_max)
{
    struct ampd_core_config config = {.shard = shard,
                                      .shards = 2,
                                      .fence = {.counter = pair_core[shard]->config.fence.counter + 1},
                                      .block_elements = AMPD_ALIGN_ELEMENTS,
                                      .memory_max = memory_max,
                                      .check = true};
    if (given != NULL)
        given->spec = pair_model(1 - shard)->spec;
    ampd_core_free(pair_core[shard]);
    assert_int_equal(0, ampd_core_new(&config, &pair_core[shard]));
    struct ampd_event found = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = given};
    if (given != NULL)
        pair_step(shard, &found);
}

void pair_start_zero(struct ampd_model_record *given, uint64_t memory_max)
{
    pair_start_with(0, given, memory_max);
    pair_hold_messages = true;
    pair_send_start(0);
    pair_forget_messages(); /* there was no session for them */
    pair_hold_messages = false;
    struct ampd_event up = {.type = AMPD_EVENT_PEER_UP, .u.shard = 0};
    pair_step(1, &up);
    pair_settle();
}
