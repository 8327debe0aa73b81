/*
 * Two shards, and whoever may speak to them. An input is a program: each byte says what happens next, and those behind
 * it how. The hosts keep to what events.h and outputs.h ask of them, in any order that leaves; workers and operators
 * call what they like. The other shard is not to be trusted: its messages come late, again, changed in any byte that
 * can be decoded, or were never sent. Whatever it says, no invariant may break (config.check), nor any assert.
 */
#include "tests/fuzz/fuzz.h"

#include "amp/kernels.h"
#include "server/core/core.h"
#include "server/core/base/model.h"
#include "server/core/model/passes.h"
#include "server/core/base/process.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/fences.h"
#include "server/core/wire/messages.h"
#include "server/io/base/peer_bytes.h"
#include "tests/whole_spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARDS     2
#define WORLD      2
#define CALLS_MAX  64
#define KEPT       16    /* messages that can come again */
#define SETTLE_MAX 4000  /* events until all that the hosts have to do is done: else something goes round */
#define RUN_MAX    20000 /* events of an input */
#define BLOCKS_MAX 4
#define PATCH_MAX  4

/* What a host has to do, each kind in its order but for the jobs. */
enum queue_kind { QUEUE_STORE, QUEUE_JOURNAL, QUEUE_FILES, QUEUE_JOBS, QUEUES_COUNT };

struct task {
    struct amp_list node;
    struct ampd_event event;
    struct ampd_checkpoint_state state; /* that RESTORED points to */
};

struct call {
    enum ampd_event_type type;
    unsigned shard;
    uint32_t rank;
    bool open, granted, revoked, ended;
    uint64_t first, count;
    uint8_t *memory;
    size_t stride;
    enum amp_dtype dtype;
    const struct ampd_layout *layout;
    bool listed[BLOCKS_MAX];
};

struct message {
    struct amp_list node;
    struct ampd_message *message;
};

struct world {
    struct fuzz_input *input;
    struct ampd_core *core[SHARDS];
    bool gone[SHARDS]; /* another process has its place */
    struct amp_list queues[SHARDS][QUEUES_COUNT];
    struct amp_list wire[SHARDS]; /* to each */
    uint64_t cut_token[SHARDS], cut_left[SHARDS], timer_ms[SHARDS];
    struct ampd_message *kept[KEPT];
    unsigned kept_next;
    uint64_t now_ms, events, calls_count;
    struct call calls[CALLS_MAX + 1]; /* by number */
    struct ampd_incarnation incarnations[WORLD];
};

static struct ampd_parameter_spec parameters[] = {{.name = "a", .dimensions = 1, .shape = {100}},
                                                  {.name = "b", .dimensions = 1, .shape = {10}}};
static const struct ampd_checkpoint_record written = {.size_bytes = 1};

static void step(struct world *world, unsigned shard, struct ampd_event *event);

static uint64_t draw(struct world *world, uint64_t below)
{
    return fuzz_byte(world->input) % below;
}

/* ---- what a host is asked for ---- */

static struct task *later(struct world *world, unsigned shard, enum queue_kind kind, const struct ampd_event *event)
{
    struct task *task = calloc(1, sizeof *task);
    AMP_ASSERT(task != NULL);
    task->event = *event;
    amp_list_push(&world->queues[shard][kind], &task->node);
    return task;
}

static void part_over(struct world *world, unsigned shard, int code)
{
    struct ampd_event event = {.type = AMPD_EVENT_PART_WRITTEN, .u.part = {world->cut_token[shard], code, &written}};
    (void)later(world, shard, QUEUE_FILES, &event);
    world->cut_token[shard] = 0;
}

static void cut_blocks(struct world *world, unsigned shard, const struct ampd_part_blocks *blocks)
{
    struct ampd_event event = {.type = AMPD_EVENT_PART_BLOCKS,
                               .u.part_blocks = {blocks->token, blocks->first, blocks->count}};
    (void)later(world, shard, QUEUE_FILES, &event);
    world->cut_left[shard] -= blocks->count;
    if (world->cut_left[shard] == 0)
        part_over(world, shard, 0);
}

static void restore(struct world *world, unsigned shard, const struct ampd_restore_order *order)
{
    struct ampd_event event = {.type = AMPD_EVENT_RESTORED, .u.restored = {.token = order->token}};
    struct task *task = later(world, shard, QUEUE_FILES, &event);
    task->state.step = order->checkpoint->step;
    task->state.version = order->checkpoint->version;
    amp_scaler_init(&order->spec->scaler, &task->state.carry.scaler);
    task->event.u.restored.state = &task->state;
}

static void keep(struct world *world, const struct ampd_message *message)
{
    struct message *sent = malloc(sizeof *sent);
    AMP_ASSERT(sent != NULL);
    sent->message = ampd_message_copy(message);
    amp_list_push(&world->wire[message->to], &sent->node);
    struct ampd_message **place = &world->kept[world->kept_next++ % KEPT];
    ampd_message_free(*place);
    *place = ampd_message_copy(message);
}

static void reply(struct world *world, struct call *call, const struct ampd_reply *reply)
{
    AMP_ASSERT(call->open);
    call->open = false;
    if (call->type == AMPD_EVENT_JOIN && reply->error.code == 0)
        world->incarnations[reply->u.join.rank] = reply->u.join.incarnation;
}

static void grant(struct call *call, const struct ampd_push_grant *given, bool all)
{
    AMP_ASSERT(call->open && !call->granted && given->count <= BLOCKS_MAX);
    call->granted = true;
    call->first = given->first;
    call->count = given->count;
    call->memory = given->memory;
    call->stride = given->stride;
    call->dtype = given->dtype;
    call->layout = given->layout;
    for (uint64_t i = 0; i < given->count; i++)
        call->listed[i] = all;
}

static void grant_load(struct call *call, const struct ampd_load_grant *load)
{
    struct ampd_push_grant given = {.layout = load->layout,
                                    .first = load->first,
                                    .count = load->count,
                                    .memory = (uint8_t *)load->planes[0],
                                    .stride = load->layout->block_elements * sizeof(float),
                                    .dtype = AMP_F32};
    grant(call, &given, true);
}

static void list_blocks(struct call *call, const struct ampd_blocks *blocks)
{
    for (uint64_t b = blocks->first; b < blocks->first + blocks->count; b++)
        call->listed[b - call->first] = !blocks->drop;
}

static void take_of_call(struct world *world, const struct ampd_output *output)
{
    struct call *call = &world->calls[output->call];
    switch (output->type) {
    case AMPD_OUT_REPLY:
        reply(world, call, &output->u.reply);
        break;
    case AMPD_OUT_LOAD_GRANT:
        grant_load(call, &output->u.load);
        break;
    case AMPD_OUT_PUSH_GRANT:
        grant(call, &output->u.push, false);
        break;
    case AMPD_OUT_PUSH_BLOCKS:
        list_blocks(call, &output->u.blocks);
        break;
    case AMPD_OUT_PUSH_REVOKE:
    case AMPD_OUT_PULL_REVOKE:
        call->revoked = true;
        break;
    default:
        break;
    }
}

static void take(struct world *world, unsigned shard, const struct ampd_output *output)
{
    struct ampd_event event = {.type = AMPD_EVENT_PERSISTED, .u.persisted = {output->u.persist.token}};
    switch (output->type) {
    case AMPD_OUT_PERSIST:
        (void)later(world, shard, QUEUE_STORE, &event);
        break;
    case AMPD_OUT_JOURNAL:
        event.type = AMPD_EVENT_JOURNALLED;
        event.u.persisted.token = output->u.journal.token;
        (void)later(world, shard, QUEUE_JOURNAL, &event);
        break;
    case AMPD_OUT_REPLAY:
        event = (struct ampd_event){.type = AMPD_EVENT_REPLAYED,
                                    .u.replayed = {.token = output->u.replay.token, .code = AMP_ENOTFOUND}};
        (void)later(world, shard, QUEUE_JOURNAL, &event);
        break;
    case AMPD_OUT_JOB:
        event = (struct ampd_event){.type = AMPD_EVENT_JOB_DONE, .u.job = output->u.job};
        (void)later(world, shard, QUEUE_JOBS, &event);
        break;
    case AMPD_OUT_CUT:
        AMP_ASSERT(world->cut_token[shard] == 0);
        world->cut_token[shard] = output->u.cut.token;
        world->cut_left[shard] = output->u.cut.count;
        break;
    case AMPD_OUT_PART_BLOCKS:
        if (output->u.part_blocks.token == world->cut_token[shard])
            cut_blocks(world, shard, &output->u.part_blocks);
        break;
    case AMPD_OUT_CUT_CANCEL:
        if (output->u.token == world->cut_token[shard])
            part_over(world, shard, AMP_ECANCELLED);
        break;
    case AMPD_OUT_RESTORE:
        restore(world, shard, &output->u.restore);
        break;
    case AMPD_OUT_TIMER:
        world->timer_ms[shard] = output->u.timer.at_ms;
        break;
    case AMPD_OUT_SEND:
        keep(world, output->u.message);
        break;
    case AMPD_OUT_FENCED:
        world->gone[shard] = true;
        break;
    default:
        take_of_call(world, output);
        break;
    }
}

static void step(struct world *world, unsigned shard, struct ampd_event *event)
{
    struct ampd_output output;
    if (world->gone[shard] || world->events++ > RUN_MAX)
        return;
    ampd_core_step(world->core[shard], world->now_ms, event);
    while (ampd_core_next(world->core[shard], &output))
        take(world, shard, &output);
}

/* The task at that place in its queue, which it leaves. */
static void do_task(struct world *world, unsigned shard, enum queue_kind kind, uint64_t place, int code)
{
    struct amp_list *queue = &world->queues[shard][kind], *node = queue->next;
    for (uint64_t i = 0; i < place && node->next != queue; i++)
        node = node->next;
    if (node == queue || world->gone[shard])
        return;
    amp_list_remove(node);
    struct task *task = AMP_CONTAINER(node, struct task, node);
    if (kind == QUEUE_JOBS)
        ampd_job_run(&task->event.u.job, &amp_kernels_ref);
    if (task->event.type == AMPD_EVENT_RESTORED)
        task->event.u.restored.code = code;
    step(world, shard, &task->event);
    free(task);
}

/* ---- what comes over the wire ---- */

static void hear(struct world *world, unsigned shard, const struct ampd_message *message)
{
    struct ampd_event event = {.type = AMPD_EVENT_PEER, .u.message = message};
    if (message->from != shard) /* what a core says to itself it takes itself */
        step(world, shard, &event);
}

static void deliver(struct world *world, unsigned shard)
{
    struct amp_list *node = amp_list_shift(&world->wire[shard]);
    if (node == NULL)
        return;
    struct message *sent = AMP_CONTAINER(node, struct message, node);
    hear(world, shard, sent->message);
    ampd_message_free(sent->message);
    free(sent);
}

static bool deliver_or_do(struct world *world, unsigned shard)
{
    for (unsigned kind = 0; kind < QUEUES_COUNT; kind++) {
        if (!world->gone[shard] && !amp_list_empty(&world->queues[shard][kind])) {
            do_task(world, shard, (enum queue_kind)kind, 0, 0);
            return true;
        }
    }
    bool any = !amp_list_empty(&world->wire[shard]);
    deliver(world, shard);
    return any;
}

static void settle(struct world *world)
{
    for (unsigned i = 0; i < SETTLE_MAX && (deliver_or_do(world, 0) || deliver_or_do(world, 1)); i++)
        ;
}

/* Some bytes of its content are others, if that can be decoded. */
static void patch(struct world *world, struct ampd_message *message)
{
    struct ampd_message *changed = ampd_message_new(message->type);
    struct amp_buf bytes;
    amp_buf_init(&bytes, AMPD_PEER_BODY_MAX);
    AMP_ASSERT(changed != NULL && io_peer_body_encode(message, &bytes) == 0);
    for (uint64_t n = draw(world, PATCH_MAX + 1); n > 0 && bytes.size > 0; n--) {
        size_t at = fuzz_byte(world->input);
        at = (at | (size_t)fuzz_byte(world->input) << 8) % bytes.size;
        bytes.data[at] = fuzz_byte(world->input);
    }
    if (io_peer_body_decode(changed, bytes.data, bytes.size, NULL) == 0) {
        memcpy(changed->model, message->model, sizeof changed->model);
        changed->from = message->from;
        changed->to = message->to;
        changed->epoch = message->epoch;
        changed->round = message->round;
        changed->from_fence = message->from_fence;
        changed->to_fence = message->to_fence;
        hear(world, changed->to, changed);
    }
    ampd_message_free(changed);
    amp_buf_close(&bytes);
}

/* Its head, as the sender may write it. */
static void change_head(struct world *world, struct ampd_message *message)
{
    uint8_t how = fuzz_byte(world->input);
    message->epoch += (how & 1) != 0 ? 1 : 0;
    message->epoch -= (how & 2) != 0 && message->epoch > 0 ? 1 : 0;
    message->round += (how & 4) != 0 ? 1 : 0;
    message->round -= (how & 8) != 0 && message->round > 0 ? 1 : 0;
    message->from_fence.counter += (how & 0x30) == 0x30 ? 1 : 0;
    message->from_fence.boot_id[0] ^= (how & 0xc0) == 0xc0 ? 1 : 0;
}

static void say_again(struct world *world)
{
    const struct ampd_message *before = world->kept[draw(world, KEPT)];
    if (before == NULL)
        return;
    struct ampd_message *message = ampd_message_copy(before);
    change_head(world, message);
    patch(world, message);
    ampd_message_free(message);
}

static void forge(struct world *world, unsigned to)
{
    struct ampd_message *message = ampd_message_new((enum ampd_message_type)(1 + draw(world, AMPD_MESSAGE_PARTS)));
    message->to = to;
    message->from = 1 - to;
    message->from_fence = ampd_fences_of(world->core[to], 1 - to);
    message->epoch = 1;
    if (ampd_core_models_count(world->core[to]) > 0)
        message->epoch = world->core[to]->models[0]->shard->epoch;
    message->round = world->core[0]->sync.round;
    (void)snprintf(message->model, sizeof message->model, "model");
    change_head(world, message);
    patch(world, message);
    ampd_message_free(message);
}

/* ---- what workers and operators ask for ---- */

static struct call *call(struct world *world, unsigned shard, uint32_t rank, struct ampd_event *event)
{
    if (world->calls_count == CALLS_MAX)
        return NULL;
    event->call = ++world->calls_count;
    struct call *made = &world->calls[event->call];
    *made = (struct call){.type = event->type, .shard = shard, .rank = rank, .open = true};
    step(world, shard, event);
    return made;
}

static void create(struct world *world)
{
    uint8_t how = fuzz_byte(world->input);
    struct ampd_model_spec spec = {.parameters_count = 2,
                                   .parameters = parameters,
                                   .world_size = WORLD,
                                   .optimizer = (how & 1) != 0 ? AMPD_OPTIMIZER_ADAMW : AMPD_OPTIMIZER_SGD,
                                   .lr = 1,
                                   .cast = AMP_F32,
                                   .sync = (how & 2) != 0 ? AMPD_SYNC_QUORUM : AMPD_SYNC_ALL,
                                   .quorum = (how & 2) != 0 ? 1 : 0,
                                   .on_loss = (how & 4) != 0 ? AMPD_ON_LOSS_SHRINK : AMPD_ON_LOSS_WAIT,
                                   .weighting = (how & 8) != 0 ? AMPD_WEIGHTING_PUSHED : AMPD_WEIGHTING_EQUAL,
                                   .durability = (how & 16) != 0 ? AMPD_DURABILITY_STEP : AMPD_DURABILITY_CHECKPOINT,
                                   .checkpoint_every = (how & 32) != 0 ? 2 : 100,
                                   .max_steps = (how & 64) != 0 ? 4 : 0,
                                   .scaler = {.init_scale = 1024}};
    (void)snprintf(spec.name, sizeof spec.name, "model");
    struct ampd_event event = {.type = AMPD_EVENT_CREATE_MODEL, .u.create = {.spec = whole_spec(&spec)}};
    (void)call(world, 0, 0, &event);
}

static void send_block(struct world *world, uint64_t number, uint64_t i, uint8_t value)
{
    struct call *made = &world->calls[number];
    struct ampd_segment_count counts[4];
    float *to = (float *)(void *)(made->memory + i * made->stride);
    for (uint64_t e = 0; e < made->layout->block_elements; e++)
        to[e] = value < 250 ? (float)value : INFINITY;
    struct ampd_event event = {
        .call = number, .type = made->type == AMPD_EVENT_LOAD_BEGIN ? AMPD_EVENT_LOAD_BLOCK : AMPD_EVENT_PUSH_BLOCK};
    event.u.block.block = made->first + i;
    event.u.block.counts = counts;
    event.u.block.counts_count =
        ampd_receive_block(made->layout, event.u.block.block, made->dtype, to, &amp_kernels_ref, counts);
    made->listed[i] = false;
    step(world, made->shard, &event);
}

/* The stream goes on: what it may send, and its end. */
static void stream(struct world *world, uint64_t number, uint8_t value, bool whole)
{
    struct call *made = &world->calls[number];
    bool sends = made->type == AMPD_EVENT_PUSH_BEGIN || made->type == AMPD_EVENT_LOAD_BEGIN;
    for (uint64_t i = 0; sends && i < made->count; i++) {
        if (made->open && made->granted && !made->revoked && !made->ended && made->listed[i]) {
            send_block(world, number, i, value);
            if (!whole)
                return;
        }
    }
    if (!sends || !made->open || !made->granted || made->revoked || made->ended)
        return;
    made->ended = true;
    struct ampd_event event = {.call = number,
                               .type = made->type == AMPD_EVENT_LOAD_BEGIN ? AMPD_EVENT_LOAD_END : AMPD_EVENT_PUSH_END};
    step(world, made->shard, &event);
}

static void close_call(struct world *world, uint64_t number)
{
    struct call *made = &world->calls[number];
    if (!made->open)
        return;
    struct ampd_event event = {.call = number, .type = made->revoked ? AMPD_EVENT_REVOKED : AMPD_EVENT_CALL_CLOSED};
    if (!made->revoked)
        made->open = false;
    made->revoked = false;
    made->granted = false; /* it touches that memory no more */
    step(world, made->shard, &event);
}

static void push(struct world *world, unsigned shard, uint32_t rank, uint8_t how)
{
    if (ampd_core_models_count(world->core[shard]) == 0)
        return;
    struct ampd_model_info info;
    ampd_core_model(world->core[shard], 0, &info);
    struct ampd_event event = {.type = AMPD_EVENT_PUSH_BEGIN};
    event.u.push = (struct ampd_event_push){.model = "model",
                                            .epoch = info.epoch - (how == 1 ? 1 : 0),
                                            .step = info.step + (how == 2 ? 1 : 0) - (how == 3 ? 1 : 0),
                                            .rank = rank,
                                            .incarnation = world->incarnations[rank],
                                            .scale_id = info.step_scale_id + (how == 4 ? 1 : 0),
                                            .dtype = AMP_F32,
                                            .weight = how == 5 ? 3 : 1};
    (void)call(world, shard, rank, &event);
}

static void push_whole(struct world *world, uint8_t value)
{
    for (unsigned shard = 0; shard < SHARDS; shard++) {
        for (uint32_t rank = 0; rank < WORLD; rank++) {
            push(world, shard, rank, 0);
            settle(world);
            stream(world, world->calls_count, value, true);
        }
    }
}

static void join(struct world *world, uint32_t rank)
{
    struct ampd_event event = {
        .type = AMPD_EVENT_JOIN,
        .u.join = {.model = "model", .worker = "", .rank = (int32_t)rank, .world_size = WORLD, .replace = true}};
    (void)call(world, 0, rank, &event);
}

static void load(struct world *world, unsigned shard, uint64_t loader)
{
    struct ampd_event event = {.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "model", .loader = loader}};
    (void)call(world, shard, 0, &event);
}

static void act(struct world *world)
{
    static const enum ampd_event_type types[] = {AMPD_EVENT_SET_SCALE, AMPD_EVENT_RESET_SCALE, AMPD_EVENT_ROLLBACK,
                                                 AMPD_EVENT_DELETE_MODEL, AMPD_EVENT_SET_LR};
    struct ampd_note note = {.actor = "a"};
    struct ampd_event event = {.type = types[draw(world, 5)]};
    (void)snprintf(note.request_id, sizeof note.request_id, "%u", (unsigned)draw(world, 4));
    event.u.act = (struct ampd_event_act){.model = "model", .note = &note, .scale = 512, .lr = 0.5, .force = true};
    event.u.act.epoch = 1 + draw(world, 4);
    event.u.act.step = draw(world, 8);
    (void)call(world, 0, 0, &event);
}

static void ask(struct world *world, unsigned shard, uint32_t rank)
{
    static const enum ampd_event_type types[] = {AMPD_EVENT_KEEP_ALIVE,     AMPD_EVENT_LEAVE,      AMPD_EVENT_RENEW,
                                                 AMPD_EVENT_GET_PUSH_STATE, AMPD_EVENT_CHECKPOINT, AMPD_EVENT_PULL};
    struct ampd_event event = {.type = types[draw(world, 6)]};
    if (event.type == AMPD_EVENT_PULL)
        event.u.pull = (struct ampd_event_pull){.model = "model", .by = AMPD_PULL_LATEST};
    else if (event.type == AMPD_EVENT_CHECKPOINT)
        event.u.named.model = "model";
    else if (event.type == AMPD_EVENT_GET_PUSH_STATE)
        event.u.push_state = (struct ampd_event_push_state){.model = "model",
                                                            .epoch = 1 + draw(world, 3),
                                                            .step = 1 + draw(world, 8),
                                                            .rank = rank,
                                                            .incarnation = world->incarnations[rank]};
    else
        event.u.worker = (struct ampd_event_worker){"model", rank, world->incarnations[rank]};
    if (event.type == AMPD_EVENT_RENEW)
        step(world, shard, &event);
    else
        (void)call(world, event.type == AMPD_EVENT_PULL || event.type == AMPD_EVENT_GET_PUSH_STATE ? shard : 0, rank,
                   &event);
}

/* ---- the program ---- */

static void pass_time(struct world *world)
{
    static const uint64_t times[] = {0, 1, 500, 5000, 31000, 700000};
    world->now_ms += times[draw(world, 6)];
    for (unsigned shard = 0; shard < SHARDS; shard++) {
        struct ampd_event event = {.type = AMPD_EVENT_TICK};
        if (world->timer_ms[shard] == 0 || world->timer_ms[shard] > world->now_ms)
            continue;
        world->timer_ms[shard] = 0;
        step(world, shard, &event);
    }
}

static void session(struct world *world, unsigned shard, bool up)
{
    struct ampd_event event = {.type = up ? AMPD_EVENT_PEER_UP : AMPD_EVENT_PEER_DOWN, .u.shard = 1 - shard};
    step(world, shard, &event);
}

static void do_any(struct world *world, unsigned shard)
{
    static const int codes[] = {0, AMP_EDATALOSS, AMP_EIO};
    enum queue_kind kind = (enum queue_kind)draw(world, QUEUES_COUNT);
    uint64_t place = kind == QUEUE_JOBS ? draw(world, 8) : 0;
    do_task(world, shard, kind, place, codes[draw(world, 3)]);
}

static void begin_model(struct world *world)
{
    create(world);
    settle(world);
    for (unsigned shard = 0; shard < SHARDS; shard++) {
        load(world, shard, 7);
        settle(world);
        stream(world, world->calls_count, 1, true);
    }
    settle(world);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        join(world, rank);
    settle(world);
}

static void one_thing(struct world *world)
{
    uint8_t byte = fuzz_byte(world->input);
    unsigned shard = byte & 1;
    uint32_t rank = (byte >> 1) & 1;
    uint64_t number = world->calls_count == 0 ? 0 : 1 + draw(world, world->calls_count);
    switch ((byte >> 2) % 18) {
    case 0:
        settle(world);
        break;
    case 1:
        deliver(world, shard);
        break;
    case 2:
    case 3:
        say_again(world);
        break;
    case 4:
    case 5:
        forge(world, shard);
        break;
    case 6:
        do_any(world, shard);
        break;
    case 7:
        push_whole(world, fuzz_byte(world->input));
        break;
    case 8:
        push(world, shard, rank, (uint8_t)draw(world, 8));
        break;
    case 9:
        stream(world, number, fuzz_byte(world->input), byte > 127);
        break;
    case 10:
        close_call(world, number);
        break;
    case 11:
        act(world);
        break;
    case 12:
        ask(world, shard, rank);
        break;
    case 13:
        join(world, rank);
        break;
    case 14:
        load(world, shard, draw(world, 3));
        break;
    case 15:
        pass_time(world);
        break;
    case 16:
        session(world, shard, rank == 0);
        break;
    default:
        create(world);
        break;
    }
}

static void begin(struct world *world)
{
    for (unsigned k = 0; k < SHARDS; k++) {
        struct ampd_core_config config = {.shard = k,
                                          .shards = SHARDS,
                                          .fence = {.counter = 1 + k, .boot_id = {1}},
                                          .block_elements = AMPD_ALIGN_ELEMENTS,
                                          .check = true};
        AMP_ASSERT(ampd_core_new(&config, &world->core[k]) == 0);
        amp_list_init(&world->wire[k]);
        for (unsigned kind = 0; kind < QUEUES_COUNT; kind++)
            amp_list_init(&world->queues[k][kind]);
    }
    for (unsigned k = 0; k < SHARDS; k++) {
        struct ampd_event event = {.type = AMPD_EVENT_START};
        step(world, k, &event);
        session(world, k, true);
    }
    settle(world);
}

static void end(struct world *world)
{
    for (unsigned k = 0; k < SHARDS; k++) {
        struct amp_list *node;
        while ((node = amp_list_shift(&world->wire[k])) != NULL) {
            struct message *sent = AMP_CONTAINER(node, struct message, node);
            ampd_message_free(sent->message);
            free(sent);
        }
        for (unsigned kind = 0; kind < QUEUES_COUNT; kind++) {
            while ((node = amp_list_shift(&world->queues[k][kind])) != NULL)
                free(AMP_CONTAINER(node, struct task, node));
        }
        ampd_core_free(world->core[k]);
    }
    for (unsigned i = 0; i < KEPT; i++)
        ampd_message_free(world->kept[i]);
}

void fuzz_one(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {data, size};
    struct world *world = calloc(1, sizeof *world);
    AMP_ASSERT(world != NULL);
    world->input = &input;
    world->now_ms = 1000;
    begin(world);
    if ((fuzz_byte(&input) & 1) != 0)
        begin_model(world);
    for (unsigned i = 0; i < FUZZ_STEPS_MAX && input.size > 0; i++)
        one_thing(world);
    end(world);
    free(world);
}
