/*
 * A model of a million blocks: what a push or an event costs depends on what it is about, not on the model. With a look
 * at all blocks for each of them these tests take ten minutes, longer than they may (TIMEOUT).
 */
#include "tests/unit/client_core_fixture.h"

#define BLOCKS     1000000
#define PARAMETERS 8000

static uint64_t elements[PARAMETERS];

static void join(bool units)
{
    const struct ampclient_core_config config = {
        .model = "m", .worker = "w", .rank = 0, .world_size = 1, .units = units};
    struct ampclient_ended ended = {0};
    now_ms = 1000;
    count = 0;
    for (uint32_t p = 0; p < PARAMETERS; p++)
        elements[p] = (uint64_t)BLOCKS / PARAMETERS * BLOCK;
    assert_int_equal(0, ampclient_core_new(&config, &core));
    request(AMPCLIENT_EVENT_JOIN);
    ended.u.join = (struct ampclient_join_answer){.world_size = 1,
                                                  .shards = 1,
                                                  .incarnation = {.fence = 1, .counter = 1},
                                                  .epoch = 1,
                                                  .step = 1,
                                                  .lease_ms = 30000,
                                                  .parameters_count = PARAMETERS,
                                                  .elements = elements,
                                                  .block_elements = BLOCK,
                                                  .cast = AMP_F16};
    end_with(take(AMPCLIENT_OUT_JOIN).call, ended);
    (void)done(AMPCLIENT_EVENT_JOIN, 0);
}

/* Answers the oldest pull with these blocks. */
static void answer_blocks(uint64_t first, uint64_t blocks)
{
    uint64_t call = take(AMPCLIENT_OUT_PULL).call;
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PULL_HEADER, .call = call};
    event.u.header = (struct ampclient_pull_header){1, 1, 0, 5, 1024, NULL};
    send(&event);
    for (uint64_t b = first; b < first + blocks; b++) {
        event = (struct ampclient_event){.type = AMPCLIENT_EVENT_PULL_BLOCK, .call = call, .u.block = b};
        send(&event);
    }
    end_with(call, (struct ampclient_ended){0});
}

static void a_push_goes_through_the_blocks_of_its_parameter_alone(void **state)
{
    (void)state;
    struct amp_error error = {0};
    uint64_t named = 0;
    join(false);
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    answer_blocks(0, BLOCKS);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
    for (uint32_t p = PARAMETERS; p-- > 0;) {
        struct ampclient_output output;
        /* The core does not read the gradients of whole blocks. */
        assert_int_equal(0, ampclient_core_push(core, now_ms, p, second, AMP_F16, &error));
        while (ampclient_core_next(core, &output))
            named += output.type == AMPCLIENT_OUT_PUSH_BLOCKS ? output.u.blocks.count : 0;
    }
    assert_int_equal(BLOCKS, named);
}

static void a_block_of_a_unit_arrives_without_a_look_at_the_others(void **state)
{
    (void)state;
    static uint32_t half[PARAMETERS / 2];
    struct ampclient_event gather = {.type = AMPCLIENT_EVENT_GATHER};
    struct amp_error error = {0};
    join(true);
    for (uint32_t p = 0; p < PARAMETERS / 2; p++)
        half[p] = p;
    assert_int_equal(0, ampclient_core_unit_add(core, half, PARAMETERS / 2, &gather.u.unit, &error));
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    answer_blocks(0, 0);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
    send(&gather);
    answer_blocks(0, BLOCKS / 2);
    (void)done(AMPCLIENT_EVENT_GATHER, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_push_goes_through_the_blocks_of_its_parameter_alone, teardown),
        cmocka_unit_test_teardown(a_block_of_a_unit_arrives_without_a_look_at_the_others, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
