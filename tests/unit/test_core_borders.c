/*
 * The same pushes into a model that is cut for one shard, two, three or five: the rows of its steps are the same, bit by bit. Its
 * first parameter reaches over the borders; many small ones overflow together.
 */
#include "amp/kernels.h"
#include "server/core/core.h"
#include "server/core/model/passes.h"
#include "server/core/wire/messages.h"
#include "server/core/model/spec.h"
#include "tests/whole_spec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARDS_MAX 5
#define WORLD      3
#define LARGE      640 /* elements of the first parameter: ten blocks */
#define SMALL      30  /* parameters of one block each, behind it */
#define BLOCK      AMPD_ALIGN_ELEMENTS
#define QUEUE_MAX  512
#define STEPS      7

struct world {
    uint32_t shards;
    struct ampd_core *core[SHARDS_MAX];
    struct ampd_message *messages[QUEUE_MAX];
    unsigned first, last;
    uint64_t calls;
    struct ampd_reply reply; /* of the last call that was answered */
    struct ampd_load_grant load;
    struct ampd_push_grant push;
    bool granted;
    uint64_t cut_token[SHARDS_MAX],
        cut_left[SHARDS_MAX]; /* of the part that is written, and the blocks that it lacks */
    struct ampd_incarnation incarnation[WORLD];
    struct ampd_step_row rows[STEPS + 1]; /* by step, as shard 0 tells them */
    bool weighs;                          /* `weighting: pushed`, and rank 1 has weight 0 and pushes two blocks */
};

static void step(struct world *world, uint32_t shard, const struct ampd_event *event);

static void cut_blocks(struct world *world, uint32_t shard, const struct ampd_part_blocks *blocks)
{
    static const struct ampd_checkpoint_record record = {.size_bytes = 1};
    struct ampd_event event = {.type = AMPD_EVENT_PART_BLOCKS,
                               .u.part_blocks = {blocks->token, blocks->first, blocks->count}};
    world->cut_left[shard] -= blocks->count;
    bool last = world->cut_left[shard] == 0;
    step(world, shard, &event);
    event = (struct ampd_event){.type = AMPD_EVENT_PART_WRITTEN, .u.part = {world->cut_token[shard], 0, &record}};
    if (last)
        step(world, shard, &event);
}

static void take(struct world *world, uint32_t shard, const struct ampd_output *output)
{
    struct ampd_event event;
    switch (output->type) {
    case AMPD_OUT_REPLY:
        world->reply = output->u.reply;
        break;
    case AMPD_OUT_LOAD_GRANT:
        world->load = output->u.load;
        world->granted = true;
        break;
    case AMPD_OUT_PUSH_GRANT:
        world->push = output->u.push;
        world->granted = true;
        break;
    case AMPD_OUT_PERSIST:
        event = (struct ampd_event){.type = AMPD_EVENT_PERSISTED, .u.persisted = {output->u.persist.token}};
        step(world, shard, &event);
        break;
    case AMPD_OUT_JOB:
        ampd_job_run(&output->u.job, &amp_kernels_ref);
        event = (struct ampd_event){.type = AMPD_EVENT_JOB_DONE, .u.job = output->u.job};
        step(world, shard, &event);
        break;
    case AMPD_OUT_PART_BLOCKS:
        cut_blocks(world, shard, &output->u.part_blocks);
        break;
    case AMPD_OUT_CUT:
        world->cut_token[shard] = output->u.cut.token;
        world->cut_left[shard] = output->u.cut.count;
        break;
    case AMPD_OUT_NOTIFY:
        if (shard == 0 && output->u.notify.row != NULL && output->u.notify.row->step <= STEPS)
            world->rows[output->u.notify.row->step] = *output->u.notify.row;
        break;
    case AMPD_OUT_SEND:
        assert_true(world->last < QUEUE_MAX);
        world->messages[world->last++] = ampd_message_copy(output->u.message);
        break;
    default:
        break;
    }
}

static void step(struct world *world, uint32_t shard, const struct ampd_event *event)
{
    struct ampd_output output;
    ampd_core_step(world->core[shard], 1000, event);
    while (ampd_core_next(world->core[shard], &output))
        take(world, shard, &output);
}

/* One event, and all that follows. */
static void send(struct world *world, uint32_t shard, struct ampd_event event)
{
    step(world, shard, &event);
    while (world->first < world->last) {
        struct ampd_message *message = world->messages[world->first++];
        struct ampd_event given = {.type = AMPD_EVENT_PEER, .u.message = message};
        step(world, message->to, &given);
        ampd_message_free(message);
    }
    world->first = world->last = 0;
}

static uint64_t call(struct world *world, uint32_t shard, struct ampd_event event)
{
    event.call = ++world->calls;
    world->granted = false;
    send(world, shard, event);
    return event.call;
}

/* ---- what is pushed ---- */

static bool at(uint64_t step, uint32_t rank, uint32_t parameter, uint64_t index, uint64_t of_step, uint32_t ranks,
               uint64_t of_index)
{
    return step == of_step && (ranks >> rank & 1) != 0 && parameter == 0 && index == of_index;
}

static float value(uint64_t step, uint32_t rank, uint32_t parameter, uint64_t index)
{
    /* step 1 is finite; 2: Inf and NaN of two ranks on either side of all borders, and their largest elsewhere */
    if (at(step, rank, parameter, index, 2, 1, 10) || at(step, rank, parameter, index, 4, 4, LARGE - 1))
        return INFINITY;
    if (at(step, rank, parameter, index, 2, 2, LARGE - 10))
        return NAN;
    if (at(step, rank, parameter, index, 2, 7, 400 + rank))
        return 9e9f;
    /* 3: the sum alone, on either side; 4: the sum on one side, an input on the other, so that nothing is said of the sum */
    if (at(step, rank, parameter, index, 3, 3, 5) || at(step, rank, parameter, index, 4, 3, 3))
        return 3e38f;
    if (at(step, rank, parameter, index, 3, 3, LARGE - 20))
        return -3e38f;
    if (at(step, rank, parameter, index, 3, 4, LARGE / 2))
        return 1e20f;
    /* 5: more than there is room for; 6: the range of the sum, on either side */
    if (step == 5 && (index == 0 || (parameter == 0 && index > LARGE - 3)))
        return (rank + parameter) % 2 == 0 ? INFINITY : NAN;
    if (at(step, rank, parameter, index, 6, 7, 20) || at(step, rank, parameter, index, 6, 7, LARGE - 20))
        return 2e22f;
    return (float)(rank + 1) * ((float)(index % 7) - 3) * 0.25f + (float)parameter;
}

static uint32_t fill(const struct ampd_layout *layout, uint64_t block, uint64_t of_step, uint32_t rank, float *to,
                     struct ampd_segment_count *counts)
{
    uint64_t element = block * BLOCK;
    uint32_t parameter = 0;
    while (parameter < SMALL && layout->starts[parameter + 1] <= element)
        parameter++;
    for (uint64_t i = 0; i < BLOCK; i++)
        to[i] = value(of_step, rank, parameter, element - layout->starts[parameter] + i);
    return ampd_receive_block(layout, block, AMP_F32, to, &amp_kernels_ref, counts);
}

static void load(struct world *world, uint32_t shard)
{
    struct ampd_event begin = {.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "model", .loader = 7}};
    uint64_t id = call(world, shard, begin);
    assert_true(world->granted);
    const struct ampd_load_grant grant = world->load;
    for (uint64_t b = grant.first; b < grant.first + grant.count; b++) {
        struct ampd_segment_count counts[4];
        struct ampd_event block = {
            .type = AMPD_EVENT_LOAD_BLOCK, .call = id, .u.block = {.block = b, .counts = counts}};
        block.u.block.counts_count = fill(grant.layout, b, 1, 0, grant.planes[0] + (b - grant.first) * BLOCK, counts);
        send(world, shard, block);
    }
    send(world, shard, (struct ampd_event){.type = AMPD_EVENT_LOAD_END, .call = id});
}

static void push(struct world *world, uint32_t shard, uint64_t of_step, uint32_t rank)
{
    struct ampd_model_info info;
    ampd_core_model(world->core[shard], 0, &info);
    struct ampd_event begin = {.type = AMPD_EVENT_PUSH_BEGIN,
                               .u.push = {.model = "model",
                                          .epoch = 1,
                                          .step = of_step,
                                          .rank = rank,
                                          .incarnation = world->incarnation[rank],
                                          .scale_id = info.step_scale_id,
                                          .dtype = AMP_F32,
                                          .weight = world->weighs && rank == 1 ? 0 : 1}};
    uint64_t id = call(world, shard, begin);
    assert_true(world->granted);
    const struct ampd_push_grant grant = world->push;
    for (uint64_t b = grant.first; b < grant.first + grant.count; b++) {
        if (begin.u.push.weight == 0 && b / 2 != 4) /* all that a shard of five has of p0, with the NaN of step 2 */
            continue;
        struct ampd_segment_count counts[4];
        struct ampd_event block = {
            .type = AMPD_EVENT_PUSH_BLOCK, .call = id, .u.block = {.block = b, .counts = counts}};
        float *to = (float *)(void *)(grant.memory + (b - grant.first) * grant.stride);
        block.u.block.counts_count = fill(grant.layout, b, of_step, rank, to, counts);
        send(world, shard, block);
    }
    struct ampd_metrics told = {.loss = (float)rank - 0.1f * (float)of_step, .loss_workers = 1};
    send(world, shard, (struct ampd_event){.type = AMPD_EVENT_PUSH_END, .call = id, .u.push_end.metrics = &told});
}

/* ---- a model on so many shards, and its steps ---- */

static void begin(struct world *world)
{
    static struct ampd_parameter_spec parameters[SMALL + 1];
    for (uint32_t i = 0; i <= SMALL; i++) {
        parameters[i] = (struct ampd_parameter_spec){.dimensions = 1, .shape = {i == 0 ? LARGE : BLOCK}};
        (void)snprintf(parameters[i].name, sizeof(parameters[i].name), "p%u", i);
    }
    struct ampd_model_spec spec = {.name = "model",
                                   .parameters_count = SMALL + 1,
                                   .parameters = parameters,
                                   .world_size = WORLD,
                                   .weighting = world->weighs ? AMPD_WEIGHTING_PUSHED : AMPD_WEIGHTING_EQUAL,
                                   .cast = AMP_F16,
                                   .scaler = {.init_scale = 1024}};
    for (uint32_t k = 0; k < world->shards; k++) {
        struct ampd_core_config config = {
            .shard = k, .shards = world->shards, .fence = {.counter = 1}, .block_elements = BLOCK, .check = true};
        assert_int_equal(0, ampd_core_new(&config, &world->core[k]));
    }
    for (uint32_t k = 0; k < world->shards; k++)
        send(world, k, (struct ampd_event){.type = AMPD_EVENT_START});
    for (uint32_t k = 1; k < world->shards; k++)
        send(world, k, (struct ampd_event){.type = AMPD_EVENT_PEER_UP, .u.shard = 0});
    struct ampd_event create = {.type = AMPD_EVENT_CREATE_MODEL, .u.create = {.spec = whole_spec(&spec)}};
    (void)call(world, 0, create);
    assert_int_equal(0, world->reply.error.code);
    for (uint32_t k = 0; k < world->shards; k++)
        load(world, k);
    for (uint32_t r = 0; r < WORLD; r++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "w%u", r);
        struct ampd_event join = {
            .type = AMPD_EVENT_JOIN,
            .u.join = {.model = "model", .worker = name, .rank = (int32_t)r, .world_size = WORLD}};
        (void)call(world, 0, join);
        assert_int_equal(0, world->reply.error.code);
        world->incarnation[r] = world->reply.u.join.incarnation;
    }
}

static struct world *run(uint32_t shards, bool weighs)
{
    struct world *world = calloc(1, sizeof(*world));
    assert_non_null(world);
    world->shards = shards;
    world->weighs = weighs;
    begin(world);
    for (uint64_t n = 1; n <= STEPS; n++) {
        for (uint32_t i = 0; i < shards * WORLD; i++)
            push(world, (i / WORLD + (uint32_t)n) % shards, n, i % WORLD);
        assert_int_equal(n, world->rows[n].step);
    }
    for (uint32_t k = 0; k < shards; k++)
        ampd_core_free(world->core[k]);
    return world;
}

static void assert_same(const struct ampd_step_row *one, const struct ampd_step_row *row)
{
    assert_int_equal(one->verdict, row->verdict);
    assert_int_equal(one->overflow_params, row->overflow_params);
    assert_int_equal(one->inf_total, row->inf_total);
    assert_int_equal(one->nan_total, row->nan_total);
    assert_memory_equal(&one->norm, &row->norm, sizeof(one->norm));
    assert_memory_equal(&one->metrics, &row->metrics, sizeof(one->metrics));
    assert_int_equal(one->rows_count, row->rows_count);
    for (uint32_t i = 0; i < one->rows_count; i++) {
        const struct ampd_overflow_row *a = &one->rows[i], *b = &row->rows[i];
        assert_int_equal(a->parameter, b->parameter);
        assert_int_equal(a->rank, b->rank);
        assert_int_equal(a->inf_count, b->inf_count);
        assert_int_equal(a->nan_count, b->nan_count);
        assert_int_equal(a->first_index, b->first_index);
        assert_memory_equal(&a->largest, &b->largest, sizeof(a->largest));
    }
}

static void the_rows_of_a_step_do_not_depend_on_how_the_model_is_cut(void **state)
{
    (void)state;
    struct world *one = run(1, false);
    assert_int_equal(AMPD_VERDICT_APPLIED, one->rows[1].verdict);
    assert_int_equal(2, one->rows[2].rows_count);
    assert_true(one->rows[2].rows[0].largest == 9e9f && one->rows[2].rows[1].first_index == LARGE - 10);
    assert_int_equal(1, one->rows[3].rows_count);
    assert_int_equal(AMPD_RANK_SUM, one->rows[3].rows[0].rank);
    assert_int_equal(2, one->rows[3].inf_total);
    assert_int_equal(1, one->rows[4].rows_count);
    assert_int_equal(2, one->rows[4].rows[0].rank);
    assert_int_equal(AMPD_OVERFLOW_ROWS_MAX, one->rows[5].rows_count);
    assert_int_equal((SMALL + 1) * WORLD, one->rows[5].overflow_params);
    assert_int_equal(AMPD_RANK_RANGE, one->rows[6].rows[0].rank);
    assert_int_equal(2, one->rows[6].rows[0].inf_count);
    assert_int_equal(AMPD_VERDICT_APPLIED, one->rows[7].verdict);
    static const uint32_t shards[] = {2, 3, SHARDS_MAX};
    for (unsigned i = 0; i < 3; i++) {
        struct world *cut = run(shards[i], false);
        for (unsigned n = 1; n <= STEPS; n++)
            assert_same(&one->rows[n], &cut->rows[n]);
        free(cut);
    }
    assert_int_equal(WORLD, one->rows[1].metrics.loss_workers);
    free(one);
}

static void a_push_of_weight_0_that_leaves_blocks_out_counts_for_nothing_however_the_model_is_cut(void **state)
{
    (void)state;
    struct world *one = run(1, true);
    assert_int_equal(1, one->rows[2].rows_count); /* the Inf of rank 0 */
    assert_int_equal(0, one->rows[2].rows[0].rank);
    static const uint32_t shards[] = {2, 3, SHARDS_MAX};
    for (unsigned i = 0; i < 3; i++) {
        struct world *cut = run(shards[i], true);
        for (unsigned n = 1; n <= STEPS; n++)
            assert_same(&one->rows[n], &cut->rows[n]);
        free(cut);
    }
    free(one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rows_of_a_step_do_not_depend_on_how_the_model_is_cut),
        cmocka_unit_test(a_push_of_weight_0_that_leaves_blocks_out_counts_for_nothing_however_the_model_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
