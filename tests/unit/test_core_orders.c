/*
 * What docs/architecture.md section 2 says of the result, at the level of cores: whatever the order in which four workers' pushes arrive, into however many
 * shards the model is cut, and however many threads run the jobs: one result, bit for bit.
 *
 * The host below does what outputs ask for at once; jobs are run by threads, all that are out at the same time, with the
 * kernels of this processor.
 */
#include "amp/cpu.h"
#include "amp/kernels.h"
#include "base/random.h"
#include "server/core/core.h"
#include "server/core/model/layout.h"
#include "server/core/model/passes.h"
#include "server/core/wire/messages.h"
#include "tests/whole_spec.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WORLD        4
#define ORDERS       24 /* of four workers */
#define STEPS        3
#define SHARDS_MAX   4
#define THREADS_MAX  2
#define ELEMENTS_MAX 2048
#define QUEUE_MAX    512
#define CALLS_MAX    512

static struct ampd_parameter_spec parameters[] = {
    {.name = "a", .dimensions = 2, .shape = {25, 40}},
    {.name = "b", .dimensions = 1, .shape = {37}},
    {.name = "c", .dimensions = 1, .shape = {301}},
    {.name = "scalar", .dimensions = 0},
};

static const struct amp_kernels *kernels; /* of this processor */

struct call {
    unsigned shard;
    bool granted, answered;
    struct ampd_push_grant push;
    struct ampd_load_grant load;
    struct ampd_reply reply;
};

struct world {
    unsigned shards, threads;
    struct ampd_core *core[SHARDS_MAX];
    struct ampd_message *messages[QUEUE_MAX]; /* a ring: first in, first out */
    unsigned first, last;
    struct ampd_job jobs[QUEUE_MAX];
    unsigned job_shards[QUEUE_MAX];
    unsigned jobs_count;
    struct ampd_event done[QUEUE_MAX]; /* what is stored and written: told after the event that asked for it */
    unsigned done_shards[QUEUE_MAX], done_count;
    struct ampd_checkpoint_record record;
    atomic_uint next_job;
    struct call calls[CALLS_MAX];
    uint64_t calls_count;
    struct ampd_step_row row;                                      /* the last that was decided */
    float masters[ELEMENTS_MAX], m[ELEMENTS_MAX], v[ELEMENTS_MAX]; /* of the last checkpoint */
    const struct ampd_layout *layout;
    uint64_t cut_left[SHARDS_MAX]; /* blocks that a part lacks */
};

/* ---- what outputs ask for ---- */

static void later(struct world *world, unsigned shard, const struct ampd_event *what)
{
    assert_true(world->done_count < QUEUE_MAX);
    world->done_shards[world->done_count] = shard;
    world->done[world->done_count++] = *what;
}

static void part_written(struct world *world, unsigned shard, uint64_t token)
{
    struct ampd_event written = {.type = AMPD_EVENT_PART_WRITTEN, .u.part = {token, 0, &world->record}};
    later(world, shard, &written);
}

static void cut(struct world *world, unsigned shard, const struct ampd_part_order *order)
{
    world->layout = order->layout;
    world->cut_left[shard] = order->count;
    if (order->count == 0)
        part_written(world, shard, order->token);
}

static void cut_blocks(struct world *world, unsigned shard, const struct ampd_part_blocks *blocks)
{
    uint64_t element = blocks->first * world->layout->block_elements;
    uint64_t end = (blocks->first + blocks->count) * world->layout->block_elements;
    uint64_t elements = (end < world->layout->elements ? end : world->layout->elements) - element;
    memcpy(world->masters + element, blocks->tensors.masters, elements * sizeof(float));
    memcpy(world->m + element, blocks->tensors.m, elements * sizeof(float));
    memcpy(world->v + element, blocks->tensors.v, elements * sizeof(float));
    world->cut_left[shard] -= blocks->count;
    struct ampd_event done = {.type = AMPD_EVENT_PART_BLOCKS,
                              .u.part_blocks = {blocks->token, blocks->first, blocks->count}};
    later(world, shard, &done);
    if (world->cut_left[shard] == 0)
        part_written(world, shard, blocks->token);
}

static void take(struct world *world, unsigned shard, const struct ampd_output *output)
{
    struct call *call = &world->calls[output->call];
    struct ampd_event stored = {.type = AMPD_EVENT_PERSISTED, .u.persisted = {output->u.persist.token}};
    switch (output->type) {
    case AMPD_OUT_REPLY:
        assert_false(call->answered);
        call->answered = true;
        call->reply = output->u.reply;
        break;
    case AMPD_OUT_LOAD_GRANT:
        call->granted = true;
        call->load = output->u.load;
        break;
    case AMPD_OUT_PUSH_GRANT:
        call->granted = true;
        call->push = output->u.push;
        break;
    case AMPD_OUT_JOB:
        assert_true(world->jobs_count < QUEUE_MAX);
        world->job_shards[world->jobs_count] = shard;
        world->jobs[world->jobs_count++] = output->u.job;
        break;
    case AMPD_OUT_PERSIST:
        if (output->u.persist.kind == AMPD_PERSIST_VERDICT && shard == 0)
            world->row = *output->u.persist.row;
        later(world, shard, &stored);
        break;
    case AMPD_OUT_CUT:
        cut(world, shard, &output->u.cut);
        break;
    case AMPD_OUT_PART_BLOCKS:
        cut_blocks(world, shard, &output->u.part_blocks);
        break;
    case AMPD_OUT_SEND:
        world->messages[world->last++ % QUEUE_MAX] = ampd_message_copy(output->u.message);
        assert_true(world->last - world->first < QUEUE_MAX);
        break;
    default:
        break;
    }
}

static void event(struct world *world, unsigned shard, struct ampd_event *what)
{
    ampd_core_step(world->core[shard], 1000, what);
    struct ampd_output output;
    while (ampd_core_next(world->core[shard], &output))
        take(world, shard, &output);
}

/* ---- jobs ---- */

static void *run_jobs(void *argument)
{
    struct world *world = argument;
    for (;;) {
        unsigned i = atomic_fetch_add(&world->next_job, 1);
        if (i >= world->jobs_count)
            return NULL;
        ampd_job_run(&world->jobs[i], kernels);
    }
}

/* All that are out, by as many threads as there are; reported back to front, which is as good as any order. */
static void run_all_jobs(struct world *world)
{
    pthread_t threads[THREADS_MAX];
    atomic_store(&world->next_job, 0);
    for (unsigned t = 0; t < world->threads; t++)
        assert_int_equal(0, pthread_create(&threads[t], NULL, run_jobs, world));
    for (unsigned t = 0; t < world->threads; t++)
        assert_int_equal(0, pthread_join(threads[t], NULL));
    static struct ampd_job done[QUEUE_MAX];
    static unsigned shards[QUEUE_MAX];
    unsigned count = world->jobs_count;
    memcpy(done, world->jobs, count * sizeof(done[0]));
    memcpy(shards, world->job_shards, count * sizeof(shards[0]));
    world->jobs_count = 0;
    while (count-- > 0) {
        struct ampd_event reported = {.type = AMPD_EVENT_JOB_DONE, .u.job = done[count]};
        event(world, shards[count], &reported);
    }
}

static void settle(struct world *world)
{
    while (world->done_count > 0 || world->jobs_count > 0 || world->first != world->last) {
        if (world->done_count > 0) { /* in order */
            struct ampd_event first = world->done[0];
            unsigned shard = world->done_shards[0];
            world->done_count--;
            memmove(world->done, world->done + 1, world->done_count * sizeof(world->done[0]));
            memmove(world->done_shards, world->done_shards + 1, world->done_count * sizeof(world->done_shards[0]));
            event(world, shard, &first);
        } else if (world->first != world->last) {
            struct ampd_message *message = world->messages[world->first++ % QUEUE_MAX];
            struct ampd_event peer = {.type = AMPD_EVENT_PEER, .u.message = message};
            event(world, message->to, &peer);
            ampd_message_free(message);
        } else {
            run_all_jobs(world);
        }
    }
}

/* ---- calls ---- */

static struct call *call(struct world *world, unsigned shard, struct ampd_event *what)
{
    what->call = ++world->calls_count;
    assert_true(what->call < CALLS_MAX);
    world->calls[what->call] = (struct call){.shard = shard};
    event(world, shard, what);
    return &world->calls[what->call];
}

static void spec_of(struct ampd_model_spec *spec)
{
    *spec = (struct ampd_model_spec){.parameters_count = sizeof(parameters) / sizeof(parameters[0]),
                                     .parameters = parameters,
                                     .world_size = WORLD,
                                     .optimizer = AMPD_OPTIMIZER_ADAMW,
                                     .lr = 1e-2,
                                     .clip_max_norm = 0.5f,
                                     .cast = AMP_F16,
                                     .weighting = AMPD_WEIGHTING_PUSHED,
                                     .max_steps = STEPS,
                                     .scaler = {.init_scale = 1024, .growth_interval = 1}};
    (void)snprintf(spec->name, sizeof(spec->name), "model");
}

static void load(struct world *world, unsigned shard)
{
    struct ampd_event begin = {.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "model", .loader = 7}};
    struct call *loading = call(world, shard, &begin);
    uint64_t id = world->calls_count;
    settle(world);
    assert_true(loading->granted);
    const struct ampd_load_grant *grant = &loading->load;
    for (uint64_t b = grant->first; b < grant->first + grant->count; b++) {
        struct ampd_segment_count counts[16];
        float *to = grant->planes[0] + (b - grant->first) * grant->layout->block_elements;
        for (uint32_t i = 0; i < ampd_layout_block_elements(grant->layout, b); i++)
            to[i] = (float)((b * 31 + i) % 97) * 0.01f - 0.4f;
        struct ampd_event block = {.type = AMPD_EVENT_LOAD_BLOCK, .call = id};
        block.u.block.block = b;
        block.u.block.counts = counts;
        block.u.block.counts_count = ampd_receive_block(grant->layout, b, AMP_F32, to, kernels, counts);
        event(world, shard, &block);
    }
    struct ampd_event end = {.type = AMPD_EVENT_LOAD_END, .call = id};
    event(world, shard, &end);
}

static struct ampd_incarnation join(struct world *world, int32_t rank)
{
    struct ampd_event joining = {.type = AMPD_EVENT_JOIN,
                                 .u.join = {.model = "model", .worker = "", .rank = rank, .world_size = WORLD}};
    const struct call *answer = call(world, 0, &joining);
    settle(world);
    assert_true(answer->answered && answer->reply.error.code == 0);
    return answer->reply.u.join.incarnation;
}

/* Magnitudes from 2^-12 to 2^3, so that the order of a sum shows in its bits. */
static float gradient(uint64_t step, uint32_t rank, uint64_t block, uint32_t i)
{
    struct amp_random random;
    amp_random_init(&random, ((step * 8 + rank) * 64 + block) * 4096 + i);
    double unit = amp_random_unit(&random) - 0.5;
    return (float)(unit * (double)(1u << (amp_random_next(&random) % 16)) * 0x1p-12 * 1024);
}

static uint64_t push(struct world *world, unsigned shard, uint64_t step, uint32_t rank,
                     struct ampd_incarnation incarnation)
{
    struct ampd_model_info info;
    ampd_core_model(world->core[0], 0, &info);
    struct ampd_event begin = {.type = AMPD_EVENT_PUSH_BEGIN};
    begin.u.push = (struct ampd_event_push){.model = "model",
                                            .epoch = info.epoch,
                                            .step = step,
                                            .rank = rank,
                                            .incarnation = incarnation,
                                            .scale_id = info.scaler.scale_id,
                                            .dtype = AMP_F32,
                                            .weight = (float)(rank + 1)};
    const struct call *pushing = call(world, shard, &begin);
    uint64_t id = world->calls_count;
    assert_true(pushing->granted);
    const struct ampd_push_grant *grant = &pushing->push;
    for (uint64_t b = grant->first; b < grant->first + grant->count; b++) {
        struct ampd_segment_count counts[16];
        float *to = (float *)(void *)(grant->memory + (b - grant->first) * grant->stride);
        for (uint32_t i = 0; i < ampd_layout_block_elements(grant->layout, b); i++)
            to[i] = gradient(step, rank, b, i);
        struct ampd_event block = {.type = AMPD_EVENT_PUSH_BLOCK, .call = id};
        block.u.block.block = b;
        block.u.block.counts = counts;
        block.u.block.counts_count = ampd_receive_block(grant->layout, b, AMP_F32, to, kernels, counts);
        event(world, shard, &block);
    }
    struct ampd_event end = {.type = AMPD_EVENT_PUSH_END, .call = id};
    event(world, shard, &end);
    return id;
}

/* The n-th of the 24 orders of four. */
static void order_of(unsigned n, uint32_t order[WORLD])
{
    uint32_t left[WORLD] = {0, 1, 2, 3};
    for (unsigned count = WORLD, i = 0; count > 0; count--, i++) {
        unsigned pick = n % count;
        n /= count;
        order[i] = left[pick];
        memmove(&left[pick], &left[pick + 1], (count - pick - 1) * sizeof(left[0]));
    }
}

/* ---- a run ---- */

static void begin(struct world *world, unsigned shards, unsigned threads, struct ampd_incarnation incarnations[WORLD])
{
    world->shards = shards;
    world->threads = threads;
    for (unsigned k = 0; k < shards; k++) {
        struct ampd_core_config config = {
            .shard = k, .shards = shards, .fence = {.counter = 1}, .block_elements = AMPD_ALIGN_ELEMENTS};
        assert_int_equal(0, ampd_core_new(&config, &world->core[k]));
        struct ampd_event start = {.type = AMPD_EVENT_START};
        event(world, k, &start);
    }
    for (unsigned k = 1; k < shards; k++) {
        struct ampd_event up = {.type = AMPD_EVENT_PEER_UP, .u.shard = 0};
        event(world, k, &up);
        settle(world);
    }
    struct ampd_model_spec spec;
    spec_of(&spec);
    struct ampd_event create = {.type = AMPD_EVENT_CREATE_MODEL, .u.create = {.spec = whole_spec(&spec)}};
    (void)call(world, 0, &create);
    settle(world);
    for (unsigned k = 0; k < shards; k++)
        load(world, k);
    settle(world);
    for (uint32_t r = 0; r < WORLD; r++)
        incarnations[r] = join(world, (int32_t)r);
    settle(world);
}

/* Trains STEPS steps; the pushes of each come in this order, from another one on, on each shard. */
static struct world *train(unsigned shards, unsigned threads, unsigned n)
{
    struct world *world = calloc(1, sizeof(*world));
    struct ampd_incarnation incarnations[WORLD];
    begin(world, shards, threads, incarnations);
    for (uint64_t step = 1; step <= STEPS; step++) {
        uint32_t order[WORLD];
        uint64_t pushes[WORLD * SHARDS_MAX];
        order_of(n, order);
        for (unsigned i = 0; i < WORLD; i++) {
            for (unsigned k = 0; k < shards; k++) {
                uint32_t rank = order[(i + k) % WORLD];
                pushes[i * shards + k] = push(world, k, step, rank, incarnations[rank]);
                if ((n + i + k) % 3 == 0)
                    settle(world); /* now and then while others still push */
            }
        }
        settle(world);
        for (unsigned i = 0; i < WORLD * shards; i++) {
            const struct ampd_reply *reply = &world->calls[pushes[i]].reply;
            assert_true(world->calls[pushes[i]].answered && reply->error.code == 0);
            assert_int_equal(AMPD_VERDICT_APPLIED, reply->u.step.verdict);
        }
    }
    struct ampd_model_info info;
    ampd_core_model(world->core[0], 0, &info);
    assert_int_equal(AMPD_MODEL_DONE, info.state);
    assert_int_equal(STEPS, info.version);
    for (unsigned k = 0; k < shards; k++)
        ampd_core_free(world->core[k]);
    return world;
}

static void assert_same(const struct world *want, const struct world *have, uint64_t elements)
{
    assert_memory_equal(want->masters, have->masters, elements * sizeof(float));
    assert_memory_equal(want->m, have->m, elements * sizeof(float));
    assert_memory_equal(want->v, have->v, elements * sizeof(float));
    assert_memory_equal(&want->row.norm, &have->row.norm, sizeof(want->row.norm));
    assert_memory_equal(&want->row.clip, &have->row.clip, sizeof(want->row.clip));
    assert_memory_equal(&want->row.after.scaler.scale, &have->row.after.scaler.scale,
                        sizeof(want->row.after.scaler.scale));
}

static void all_orders_shards_and_threads_give_one_result(void **state)
{
    (void)state;
    static const unsigned shards[] = {1, 2, 4};
    struct world *want = train(1, 1, 0);
    unsigned runs = 0;
    for (unsigned s = 0; s < 3; s++) {
        for (unsigned threads = 1; threads <= THREADS_MAX; threads++) {
            for (unsigned n = 0; n < ORDERS; n++) {
                struct world *have = train(shards[s], threads, n);
                assert_same(want, have, 1000 + 37 + 301 + 1);
                free(have);
                runs++;
            }
        }
    }
    assert_int_equal(3 * THREADS_MAX * ORDERS, runs);
    free(want);
}

/* The other end of the test above: what is pushed does depend on who pushes it. */
static void another_gradient_gives_another_result(void **state)
{
    (void)state;
    uint32_t seen[ORDERS];
    for (unsigned n = 0; n < ORDERS; n++) {
        uint32_t order[WORLD];
        order_of(n, order);
        seen[n] = order[0] * 64 + order[1] * 16 + order[2] * 4 + order[3];
        for (unsigned i = 0; i < n; i++)
            assert_int_not_equal(seen[i], seen[n]);
    }
    /* Summed back to front in fp32 some element has other bits: an order that leaked into the sum would show. */
    unsigned differ = 0;
    for (uint32_t i = 0; i < 64; i++) {
        float up = 0, down = 0;
        for (uint32_t r = 0; r < WORLD; r++) {
            up += (float)(r + 1) * gradient(1, r, 0, i);
            down += (float)(WORLD - r) * gradient(1, WORLD - 1 - r, 0, i);
        }
        differ += memcmp(&up, &down, sizeof(up)) != 0 ? 1 : 0;
    }
    assert_true(differ > 0);
}

int main(void)
{
    struct amp_error error = {0};
    if (amp_cpu_select(getenv("AMPD_ISA"), &kernels, &error) != 0)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_orders_shards_and_threads_give_one_result),
        cmocka_unit_test(another_gradient_gives_another_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
