/*
 * Units of the worker's machine: what is pulled and pushed when, what is forgotten, and when a step is void.
 *
 * The model: parameters of 200, 100 and 300 elements in blocks of 192. Block 1 has the end of the first and all of the
 * second, block 0 the first alone, blocks 2 and 3 the third. Unit 0 is parameter 0, unit 1 parameters 2 and 1.
 */
#include "tests/unit/client_core_fixture.h"

#define UNIT_BLOCK 192
#define BLOCKS     4

static const uint64_t sizes[] = {200, 100, 300};
static uint16_t gradient_0[200], gradient_1[100], gradient_2[300];
static struct amp_error said;

/* ---- the model ---- */

static void answer_units_join(uint64_t epoch, uint64_t step, uint64_t incarnation)
{
    struct ampclient_ended ended = {0};
    ended.u.join = (struct ampclient_join_answer){.rank = 1,
                                                  .world_size = 2,
                                                  .shards = shards,
                                                  .incarnation = {.fence = 1, .counter = incarnation},
                                                  .epoch = epoch,
                                                  .step = step,
                                                  .lease_ms = 30000,
                                                  .parameters_count = 3,
                                                  .elements = sizes,
                                                  .block_elements = UNIT_BLOCK,
                                                  .cast = AMP_F16};
    end_with(take(AMPCLIENT_OUT_JOIN).call, ended);
}

static void make_units(uint32_t on_shards)
{
    static const uint32_t first[] = {0}, rest[] = {2, 1};
    const struct ampclient_core_config config = {
        .model = "m", .worker = "w", .rank = 1, .world_size = 2, .units = true, .shards = on_shards};
    uint32_t unit = 9;
    now_ms = 1000;
    count = 0;
    shards = on_shards;
    said = (struct amp_error){0};
    assert_int_equal(0, ampclient_core_new(&config, &core));
    request(AMPCLIENT_EVENT_JOIN);
    answer_units_join(1, 1, 1);
    (void)done(AMPCLIENT_EVENT_JOIN, 0);
    assert_int_equal(0, ampclient_core_unit_add(core, first, 1, &unit, &said));
    assert_int_equal(0, unit);
    assert_int_equal(0, ampclient_core_unit_add(core, rest, 2, &unit, &said));
    assert_int_equal(1, unit);
}

static int setup_units(void **state)
{
    (void)state;
    make_units(1);
    return 0;
}

/* ---- the servers ---- */

static void header(uint64_t call, uint64_t epoch, uint64_t step, uint64_t version)
{
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PULL_HEADER, .call = call};
    event.u.header = (struct ampclient_pull_header){epoch, step, version, 5, 1024, NULL};
    send(&event);
}

/* A block of the pull, with bytes of its number. */
static void block(const struct ampclient_output *pull, uint64_t b)
{
    size_t size = ampclient_core_block_elements(core, b) * sizeof(uint16_t);
    memset(pull->u.pull.memory + (b - pull->u.pull.first_block) * pull->u.pull.stride, (int)b + 1, size);
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PULL_BLOCK, .call = pull->call, .u.block = b};
    send(&event);
}

static void begin_step(uint64_t epoch, uint64_t step)
{
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    for (uint32_t k = 0; k < shards; k++) {
        struct ampclient_output pull = take(AMPCLIENT_OUT_PULL);
        assert_null(pull.u.pull.memory);
        assert_int_equal(1, pull.u.pull.block_count);
        header(pull.call, epoch, step, step - 1);
        end_with(pull.call, (struct ampclient_ended){0});
    }
    assert_int_equal(step, done(AMPCLIENT_EVENT_STEP_BEGIN, 0).step.step);
}

static void ask_gather(uint32_t unit)
{
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_GATHER, .u.unit = unit};
    send(&event);
}

/* Answers the oldest pull, which must be of these blocks. */
static void answer_piece(uint64_t first, uint64_t blocks, uint64_t step)
{
    struct ampclient_output pull = take(AMPCLIENT_OUT_PULL);
    assert_int_equal(first, pull.u.pull.first_block);
    assert_int_equal(blocks, pull.u.pull.block_count);
    header(pull.call, 1, step, step - 1);
    for (uint64_t b = first; b < first + blocks; b++)
        block(&pull, b);
    end_with(pull.call, (struct ampclient_ended){0});
}

static void gather(uint32_t unit, uint64_t step)
{
    ask_gather(unit);
    if (unit == 0)
        answer_piece(0, 2, step);
    else
        answer_piece(1, 3, step);
    (void)done(AMPCLIENT_EVENT_GATHER, 0);
}

static int scatter(uint32_t unit)
{
    const void *gradients[2] = {unit == 0 ? gradient_0 : gradient_2, gradient_1};
    int rc = ampclient_core_scatter(core, now_ms, unit, gradients, AMP_F16, &said);
    drain();
    return rc;
}

/* The blocks named on this stream have left. */
static void left(uint64_t call)
{
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PUSH_DRAINED, .call = call};
    send(&event);
}

/* Scatters unit 0 and lets its gradients go; the stream. */
static uint64_t scatter_0(void)
{
    assert_int_equal(0, scatter(0));
    uint64_t call = take(AMPCLIENT_OUT_PUSH).call;
    assert_int_equal(0, take(AMPCLIENT_OUT_PUSH_BLOCKS).u.blocks.first);
    left(call);
    request(AMPCLIENT_EVENT_DRAIN);
    (void)done(AMPCLIENT_EVENT_DRAIN, 0);
    return call;
}

/* The stream breaks, and the server has the blocks [first, first + n) then. */
static void breaks(uint64_t call, uint64_t first, uint64_t n)
{
    const struct ampclient_range range = {first, n};
    fail_call(call, AMP_EUNAVAILABLE, "", 0, 0);
    tick(AMPCLIENT_BACKOFF_MAX_MS);
    uint64_t ask = take(AMPCLIENT_OUT_GET_PUSH_STATE).call;
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PUSH_STATE, .call = ask};
    event.u.push_state.ranges = &range;
    event.u.push_state.ranges_count = n > 0 ? 1 : 0;
    send(&event);
    end_with(ask, (struct ampclient_ended){0});
}

/* ---- gathering ---- */

static void a_step_brings_no_parameters_and_a_gather_those_of_its_unit(void **state)
{
    (void)state;
    uint64_t elements;
    ask_gather(0);
    (void)done(AMPCLIENT_EVENT_GATHER, AMP_ESTATE); /* no step, nothing pulled */
    begin_step(1, 1);
    assert_int_equal(0, ampclient_core_held(core));
    assert_null(ampclient_core_parameter(core, 0, &elements));
    gather(1, 1);
    assert_int_equal(3 * UNIT_BLOCK * 2, ampclient_core_held(core));
    assert_null(ampclient_core_parameter(core, 0, &elements));
    const uint8_t *second_of_unit = ampclient_core_parameter(core, 1, &elements);
    assert_int_equal(100, elements);
    assert_int_equal(2, second_of_unit[0]);      /* of block 1 */
    assert_int_equal(2, second_of_unit[2 * 99]); /* to its end */
    const uint8_t *third = ampclient_core_parameter(core, 2, &elements);
    assert_int_equal(3, third[0]);
    assert_int_equal(4, third[2 * 299]);
    assert_ptr_equal(second_of_unit + 2 * 128, third); /* as in the flat space */
}

static void units_come_one_at_a_time_in_the_order_asked_for(void **state)
{
    (void)state;
    begin_step(1, 1);
    assert_int_equal(0, ampclient_core_prefetch(core, now_ms, 1, &said));
    ask_gather(0);
    drain();
    assert_int_equal(1, have(AMPCLIENT_OUT_PULL));
    answer_piece(1, 3, 1);
    assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE));
    answer_piece(0, 2, 1);
    (void)done(AMPCLIENT_EVENT_GATHER, 0);
    ask_gather(1); /* here already, and asked for twice */
    (void)done(AMPCLIENT_EVENT_GATHER, 0);
    assert_int_equal(0, ampclient_core_prefetch(core, now_ms, 1, &said));
    drain();
    assert_int_equal(0, have(AMPCLIENT_OUT_PULL));
}

static void a_unit_is_released_once_and_may_be_gathered_again(void **state)
{
    (void)state;
    begin_step(1, 1);
    assert_int_equal(AMP_ESTATE, ampclient_core_release(core, 0, &said));
    assert_non_null(strstr(said.text, "not gathered"));
    gather(0, 1);
    assert_int_equal(0, ampclient_core_release(core, 0, &said));
    assert_int_equal(0, ampclient_core_held(core));
    assert_int_equal(AMP_ESTATE, ampclient_core_release(core, 0, &said));
    gather(0, 1);
    begin_step(1, 2); /* views end with the step */
    assert_int_equal(0, ampclient_core_held(core));
    assert_int_equal(AMP_ERANGE, ampclient_core_release(core, 2, &said));
    ask_gather(2);
    (void)done(AMPCLIENT_EVENT_GATHER, AMP_ERANGE);
}

static void a_unit_released_on_its_way_is_freed_when_no_stream_writes_it(void **state)
{
    (void)state;
    begin_step(1, 1);
    assert_int_equal(0, ampclient_core_prefetch(core, now_ms, 0, &said));
    drain();
    struct ampclient_output pull = take(AMPCLIENT_OUT_PULL);
    assert_int_equal(0, ampclient_core_release(core, 0, &said));
    drain();
    assert_int_equal(pull.call, take(AMPCLIENT_OUT_CANCEL).call);
    assert_int_equal(2 * UNIT_BLOCK * 2, ampclient_core_held(core));
    ask_gather(0); /* in the same memory, but not before the stream has ended */
    assert_int_equal(0, have(AMPCLIENT_OUT_PULL));
    header(pull.call, 1, 1, 0); /* is nothing to anybody */
    fail_call(pull.call, AMP_ECANCELLED, "", 0, 0);
    answer_piece(0, 2, 1);
    (void)done(AMPCLIENT_EVENT_GATHER, 0);
    assert_int_equal(2 * UNIT_BLOCK * 2, ampclient_core_held(core));
    assert_int_equal(0, ampclient_core_prefetch(core, now_ms, 1, &said));
    drain();
    pull = take(AMPCLIENT_OUT_PULL);
    assert_int_equal(0, ampclient_core_release(core, 1, &said));
    drain();
    fail_call(pull.call, AMP_ECANCELLED, "", 0, 0);
    assert_int_equal(2 * UNIT_BLOCK * 2, ampclient_core_held(core)); /* of unit 0 */
}

static void a_server_gone_in_the_middle_of_a_gather_is_asked_again(void **state)
{
    (void)state;
    begin_step(1, 1);
    ask_gather(1);
    struct ampclient_output pull = take(AMPCLIENT_OUT_PULL);
    header(pull.call, 1, 1, 0);
    block(&pull, 1);
    fail_call(pull.call, AMP_EUNAVAILABLE, "", 0, 0);
    assert_int_equal(0, have(AMPCLIENT_OUT_PULL));
    tick(AMPCLIENT_BACKOFF_MS);
    pull = take(AMPCLIENT_OUT_PULL);
    header(pull.call, 1, 1, 0);
    block(&pull, 1);
    block(&pull, 3);
    end_with(pull.call, (struct ampclient_ended){0}); /* without block 2 */
    tick(2 * AMPCLIENT_BACKOFF_MS);
    pull = take(AMPCLIENT_OUT_PULL);
    header(pull.call, 1, 1, 7); /* another version */
    assert_int_equal(pull.call, take(AMPCLIENT_OUT_CANCEL).call);
    fail_call(pull.call, AMP_ECANCELLED, "", 0, 0);
    tick(4 * AMPCLIENT_BACKOFF_MS);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_EDATALOSS, "", 0, 0); /* a damaged block: at once */
    answer_piece(1, 3, 1);
    (void)done(AMPCLIENT_EVENT_GATHER, 0);
}

static void a_gather_ends_with_what_is_not_tried_again_and_in_time(void **state)
{
    (void)state;
    begin_step(1, 1);
    ask_gather(1);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_EDENIED, "", 0, 0);
    (void)done(AMPCLIENT_EVENT_GATHER, AMP_EDENIED);
    assert_int_equal(0, ampclient_core_held(core));
    ask_gather(1);
    struct ampclient_output pull = take(AMPCLIENT_OUT_PULL);
    tick(AMPCLIENT_STEP_TIMEOUT_MS);
    (void)done(AMPCLIENT_EVENT_GATHER, AMP_EDEADLINE);
    ask_gather(1); /* goes on */
    header(pull.call, 1, 1, 0);
    for (uint64_t b = 1; b < BLOCKS; b++)
        block(&pull, b);
    end_with(pull.call, (struct ampclient_ended){0});
    (void)done(AMPCLIENT_EVENT_GATHER, 0);
}

static void a_step_decided_without_this_worker_is_void_and_late(void **state)
{
    (void)state;
    begin_step(1, 1);
    (void)scatter_0();
    ask_gather(1);
    uint64_t call = take(AMPCLIENT_OUT_PULL).call;
    fail_call(call, AMP_EABORTED, "STALE_STEP", 1, 3);
    fail_call(take(AMPCLIENT_OUT_CANCEL).call, AMP_ECANCELLED, "", 0, 0); /* the push */
    (void)done(AMPCLIENT_EVENT_GATHER, 1);
    assert_int_equal(1, ampclient_core_prefetch(core, now_ms, 1, &said));
    assert_int_equal(1, scatter(1));
    request(AMPCLIENT_EVENT_DRAIN);
    (void)done(AMPCLIENT_EVENT_DRAIN, 1);
    request(AMPCLIENT_EVENT_STEP_END);
    assert_int_equal(AMPCLIENT_CORE_LATE, done(AMPCLIENT_EVENT_STEP_END, 0).result.verdict);
}

static void a_gather_after_a_step_end_that_took_too_long_does_not_make_the_step_late(void **state)
{
    (void)state;
    begin_step(1, 1);
    assert_int_equal(0, scatter(0));
    assert_int_equal(0, scatter(1));
    uint64_t call = take(AMPCLIENT_OUT_PUSH).call;
    request(AMPCLIENT_EVENT_STEP_END);
    tick(AMPCLIENT_STEP_TIMEOUT_MS);
    (void)done(AMPCLIENT_EVENT_STEP_END, AMP_EDEADLINE);
    ask_gather(1);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_EABORTED, "STALE_STEP", 1, 2);
    (void)done(AMPCLIENT_EVENT_GATHER, 1);
    answer_push(call, 1, 1);
    request(AMPCLIENT_EVENT_STEP_END);
    assert_int_equal(AMPCLIENT_CORE_APPLIED, done(AMPCLIENT_EVENT_STEP_END, 0).result.verdict);
}

static void a_new_epoch_makes_the_step_void_and_leaves_what_the_user_reads(void **state)
{
    (void)state;
    uint64_t elements;
    begin_step(1, 4);
    gather(0, 4);
    const void *view = ampclient_core_parameter(core, 0, &elements);
    ask_gather(1);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_EABORTED, "ROLLED_BACK", 2, 3);
    answer_units_join(2, 3, 2);
    (void)done(AMPCLIENT_EVENT_GATHER, 1);
    assert_ptr_equal(view, ampclient_core_parameter(core, 0, &elements));
    assert_int_equal(1, scatter(0));
    request(AMPCLIENT_EVENT_STEP_END);
    assert_int_equal(AMPCLIENT_CORE_ROLLED_BACK, done(AMPCLIENT_EVENT_STEP_END, 0).result.verdict);
    begin_step(2, 3);
}

static void outside_of_a_step_the_version_pulled_is_gathered_while_it_is_held(void **state)
{
    (void)state;
    request(AMPCLIENT_EVENT_PULL_LATEST);
    struct ampclient_output pull = take(AMPCLIENT_OUT_PULL);
    assert_int_equal(AMPCLIENT_PULL_LATEST, pull.u.pull.by);
    header(pull.call, 1, 8, 7);
    end_with(pull.call, (struct ampclient_ended){0});
    (void)done(AMPCLIENT_EVENT_PULL_LATEST, 0);
    ask_gather(0);
    pull = take(AMPCLIENT_OUT_PULL);
    assert_int_equal(AMPCLIENT_PULL_VERSION, pull.u.pull.by);
    assert_int_equal(7, pull.u.pull.number);
    header(pull.call, 1, 8, 7);
    block(&pull, 0);
    block(&pull, 1);
    end_with(pull.call, (struct ampclient_ended){0});
    (void)done(AMPCLIENT_EVENT_GATHER, 0);
    ask_gather(1);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_EABORTED, "STALE_VERSION", 0, 0);
    (void)done(AMPCLIENT_EVENT_GATHER, 1);
    ask_gather(1);
    (void)done(AMPCLIENT_EVENT_GATHER, AMP_ESTATE);
}

static void a_unit_on_two_shards_is_pulled_from_both(void **state)
{
    (void)state;
    ampclient_core_free(core);
    make_units(2);
    begin_step(1, 1);
    ask_gather(1);
    assert_int_equal(2, have(AMPCLIENT_OUT_PULL));
    struct ampclient_output first = take(AMPCLIENT_OUT_PULL), second_pull = take(AMPCLIENT_OUT_PULL);
    assert_int_equal(0, first.shard);
    assert_int_equal(1, first.u.pull.block_count);
    assert_int_equal(1, second_pull.shard);
    assert_int_equal(2, second_pull.u.pull.first_block);
    header(second_pull.call, 1, 1, 0);
    block(&second_pull, 2);
    block(&second_pull, 3);
    end_with(second_pull.call, (struct ampclient_ended){0});
    header(first.call, 1, 1, 0);
    block(&first, 1);
    end_with(first.call, (struct ampclient_ended){0});
    (void)done(AMPCLIENT_EVENT_GATHER, 0);
}

/* ---- scattering ---- */

static void a_scatter_is_read_until_it_has_left_and_a_border_waits_in_a_copy(void **state)
{
    (void)state;
    uint16_t scratch[UNIT_BLOCK];
    size_t size;
    begin_step(1, 1);
    gradient_0[199] = 0x3c00;
    assert_int_equal(0, scatter(0));
    uint64_t call = take(AMPCLIENT_OUT_PUSH).call;
    assert_int_equal(0, take(AMPCLIENT_OUT_PUSH_BLOCKS).u.blocks.first);
    assert_int_equal(0, have(AMPCLIENT_OUT_PUSH_BLOCKS)); /* block 1 waits for unit 1 */
    request(AMPCLIENT_EVENT_DRAIN);
    assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE));
    assert_ptr_equal(gradient_0, ampclient_core_block(core, 0, scratch, &size));
    left(call);
    (void)done(AMPCLIENT_EVENT_DRAIN, 0);
    gradient_0[199] = 0x4000; /* the user's again */
    gradient_1[0] = 0x4400;
    assert_int_equal(0, scatter(1));
    assert_int_equal(2, take(AMPCLIENT_OUT_PUSH_BLOCKS).u.blocks.first); /* parameter 2 is the unit's first */
    assert_int_equal(3, take(AMPCLIENT_OUT_PUSH_BLOCKS).u.blocks.first);
    assert_int_equal(1, take(AMPCLIENT_OUT_PUSH_BLOCKS).u.blocks.first);
    memset(scratch, 0xff, sizeof scratch);
    assert_ptr_equal(scratch, ampclient_core_block(core, 1, scratch, &size));
    assert_int_equal(0x3c00, scratch[7]);  /* element 199 */
    assert_int_equal(0, scratch[8]);       /* pad */
    assert_int_equal(0x4400, scratch[64]); /* element 256 */
    assert_true(ampclient_core_held(core) > 0);
    left(call);
    request(AMPCLIENT_EVENT_DRAIN);
    (void)done(AMPCLIENT_EVENT_DRAIN, 0);
    assert_int_equal(0, ampclient_core_held(core));
    request(AMPCLIENT_EVENT_STEP_END);
    (void)take(AMPCLIENT_OUT_PUSH_END);
    assert_int_equal(0, absent_count);
    answer_push(call, 1, 1);
    assert_int_equal(AMPCLIENT_CORE_APPLIED, done(AMPCLIENT_EVENT_STEP_END, 0).result.verdict);
}

static void a_gradient_left_out_is_absent_and_its_border_goes_at_the_end(void **state)
{
    (void)state;
    const void *none[2] = {NULL, NULL};
    begin_step(1, 1);
    (void)scatter_0();
    assert_int_equal(0, ampclient_core_scatter(core, now_ms, 1, none, AMP_F16, &said));
    request(AMPCLIENT_EVENT_STEP_END);
    assert_int_equal(1, take(AMPCLIENT_OUT_PUSH_BLOCKS).u.blocks.first);
    assert_int_equal(0, have(AMPCLIENT_OUT_PUSH_BLOCKS));
    (void)take(AMPCLIENT_OUT_PUSH_END);
    assert_int_equal(2, absent_count);
}

static void a_server_that_lacks_what_is_gone_makes_the_step_void(void **state)
{
    (void)state;
    begin_step(1, 1);
    breaks(scatter_0(), 0, 0);
    assert_int_equal(AMPCLIENT_STATE_ROLLED_BACK, ampclient_core_state(core));
    ask_gather(1);
    (void)done(AMPCLIENT_EVENT_GATHER, 1);
    request(AMPCLIENT_EVENT_STEP_END);
    assert_int_equal(AMPCLIENT_CORE_ROLLED_BACK, done(AMPCLIENT_EVENT_STEP_END, 0).result.verdict);
    begin_step(1, 1); /* the same one; all of it is sent again */
    assert_int_equal(0, ampclient_core_held(core));
    uint64_t call = scatter_0();
    assert_int_equal(0, scatter(1));
    assert_int_equal(3, have(AMPCLIENT_OUT_PUSH_BLOCKS));
    request(AMPCLIENT_EVENT_STEP_END);
    answer_push(call, 1, 1);
    assert_int_equal(AMPCLIENT_CORE_APPLIED, done(AMPCLIENT_EVENT_STEP_END, 0).result.verdict);
}

static void a_server_that_has_what_is_gone_gets_the_rest(void **state)
{
    (void)state;
    begin_step(1, 1);
    uint64_t call = scatter_0();
    assert_int_equal(0, scatter(1)); /* is not gone yet */
    count = 0;
    request(AMPCLIENT_EVENT_DRAIN);
    breaks(call, 0, 2);
    call = take(AMPCLIENT_OUT_PUSH).call;
    assert_int_equal(2, take(AMPCLIENT_OUT_PUSH_BLOCKS).u.blocks.first);
    assert_int_equal(3, take(AMPCLIENT_OUT_PUSH_BLOCKS).u.blocks.first);
    assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE));
    left(call);
    (void)done(AMPCLIENT_EVENT_DRAIN, 0);
    request(AMPCLIENT_EVENT_STEP_END);
    breaks(call, 0, BLOCKS); /* the trailer alone is missing */
    call = take(AMPCLIENT_OUT_PUSH).call;
    assert_int_equal(0, have(AMPCLIENT_OUT_PUSH_BLOCKS));
    answer_push(call, 1, 1);
    (void)done(AMPCLIENT_EVENT_STEP_END, 0);
}

static void a_verdict_is_waited_for_in_vain_when_the_bytes_are_nowhere(void **state)
{
    (void)state;
    begin_step(1, 1);
    uint64_t call = scatter_0();
    request(AMPCLIENT_EVENT_STEP_END);
    breaks(call, 1, 1);
    assert_int_equal(AMPCLIENT_CORE_ROLLED_BACK, done(AMPCLIENT_EVENT_STEP_END, 0).result.verdict);
    assert_int_equal(AMPCLIENT_STATE_READY, ampclient_core_state(core));
}

static void a_new_incarnation_asks_whether_the_step_was_decided(void **state)
{
    (void)state;
    begin_step(1, 1);
    uint64_t call = scatter_0();
    request(AMPCLIENT_EVENT_STEP_END);
    fail_call(call, AMP_EABORTED, "FENCED", 0, 0);
    answer_keep_alive(1, false, NULL);
    answer_units_join(1, 1, 2);
    const struct ampclient_range all = {0, BLOCKS};
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PUSH_STATE, .u.push_state = {&all, 1}};
    event.call = take(AMPCLIENT_OUT_GET_PUSH_STATE).call;
    count = 0;
    send(&event);
    end_with(event.call, (struct ampclient_ended){0});
    assert_int_equal(0, have(AMPCLIENT_OUT_PUSH_BLOCKS));
    (void)take(AMPCLIENT_OUT_PUSH_END);
    answer_push(take(AMPCLIENT_OUT_PUSH).call, 1, 1);
    assert_int_equal(AMPCLIENT_CORE_APPLIED, done(AMPCLIENT_EVENT_STEP_END, 0).result.verdict);
}

static void what_one_shard_has_answered_is_the_result_of_all(void **state)
{
    (void)state;
    ampclient_core_free(core);
    make_units(2);
    begin_step(1, 1);
    assert_int_equal(0, scatter(0));
    assert_int_equal(0, scatter(1));
    uint64_t one = take(AMPCLIENT_OUT_PUSH).call, other = take(AMPCLIENT_OUT_PUSH).call;
    left(one);
    left(other);
    request(AMPCLIENT_EVENT_DRAIN);
    (void)done(AMPCLIENT_EVENT_DRAIN, 0);
    request(AMPCLIENT_EVENT_STEP_END);
    answer_push(one, 1, 1);
    breaks(other, 0, 0);
    assert_int_equal(AMPCLIENT_CORE_APPLIED, done(AMPCLIENT_EVENT_STEP_END, 0).result.verdict);
}

static void a_drain_that_takes_too_long_lets_the_push_go_on_and_is_asked_again(void **state)
{
    (void)state;
    begin_step(1, 1);
    assert_int_equal(0, scatter(0));
    uint64_t call = take(AMPCLIENT_OUT_PUSH).call;
    count = 0;
    request(AMPCLIENT_EVENT_DRAIN);
    tick(AMPCLIENT_STEP_TIMEOUT_MS);
    (void)done(AMPCLIENT_EVENT_DRAIN, AMP_EDEADLINE);
    request(AMPCLIENT_EVENT_DRAIN);
    assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE) + have(AMPCLIENT_OUT_CANCEL));
    left(call);
    (void)done(AMPCLIENT_EVENT_DRAIN, 0);
}

static void a_push_that_is_refused_ends_the_drain_and_the_step(void **state)
{
    (void)state;
    begin_step(1, 1);
    assert_int_equal(0, scatter(0));
    request(AMPCLIENT_EVENT_DRAIN);
    fail_call(take(AMPCLIENT_OUT_PUSH).call, AMP_EINVAL, "WEIGHT", 0, 0);
    (void)done(AMPCLIENT_EVENT_DRAIN, AMP_EINVAL);
    request(AMPCLIENT_EVENT_STEP_END);
    (void)done(AMPCLIENT_EVENT_STEP_END, AMP_EINVAL);
}

static void a_rank_that_is_taken_ends_gather_and_drain(void **state)
{
    (void)state;
    begin_step(1, 1);
    ask_gather(1);
    uint64_t call = take(AMPCLIENT_OUT_PULL).call;
    tick(30000 / AMPCLIENT_KEEP_ALIVE_DIVISOR);
    answer_keep_alive(1, true, "rank 1 is another's");
    fail_call(call, AMP_ECANCELLED, "", 0, 0);
    (void)done(AMPCLIENT_EVENT_GATHER, AMP_EABORTED);
    request(AMPCLIENT_EVENT_DRAIN);
    (void)done(AMPCLIENT_EVENT_DRAIN, AMP_EABORTED);
    assert_int_equal(AMP_EABORTED, ampclient_core_prefetch(core, now_ms, 0, &said));
    count = 0;
    tick(1);
    assert_int_equal(0, have(AMPCLIENT_OUT_PULL));
}

static void a_gather_that_hears_that_the_rank_is_taken_ends_the_push_too(void **state)
{
    (void)state;
    begin_step(1, 1);
    assert_int_equal(0, scatter(0));
    uint64_t push_call = take(AMPCLIENT_OUT_PUSH).call;
    ask_gather(1);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_EABORTED, "RANK_TAKEN", 1, 1);
    assert_int_equal(push_call, take(AMPCLIENT_OUT_CANCEL).call); /* drain and step_end give the gradients back */
    fail_call(push_call, AMP_ECANCELLED, "", 0, 0);
    (void)done(AMPCLIENT_EVENT_GATHER, AMP_EABORTED);
    request(AMPCLIENT_EVENT_DRAIN);
    (void)done(AMPCLIENT_EVENT_DRAIN, AMP_EABORTED);
}

static void a_push_that_hears_that_the_rank_is_taken_ends_the_gather_too(void **state)
{
    (void)state;
    begin_step(1, 1);
    assert_int_equal(0, scatter(0));
    assert_int_equal(0, ampclient_core_prefetch(core, now_ms, 1, &said));
    ask_gather(0); /* would be pulled after unit 1 */
    fail_call(take(AMPCLIENT_OUT_PUSH).call, AMP_EABORTED, "RANK_TAKEN", 1, 1);
    (void)done(AMPCLIENT_EVENT_GATHER, AMP_EABORTED);
}

static void gradients_that_a_refused_join_gave_back_are_not_sent_after_a_later_one(void **state)
{
    (void)state;
    ampclient_core_free(core);
    make_units(2);
    begin_step(1, 1);
    assert_int_equal(0, scatter(0));
    assert_int_equal(0, scatter(1));
    uint64_t one = take(AMPCLIENT_OUT_PUSH).call, other = take(AMPCLIENT_OUT_PUSH).call;
    count = 0;
    request(AMPCLIENT_EVENT_DRAIN);
    fail_call(one, AMP_EABORTED, "ROLLED_BACK", 2, 1);
    fail_call(take(AMPCLIENT_OUT_JOIN).call, AMP_EDENIED, "", 0, 0);
    assert_int_equal(other, take(AMPCLIENT_OUT_CANCEL).call);
    assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE)); /* the stream may still read */
    fail_call(other, AMP_ECANCELLED, "", 0, 0);
    (void)done(AMPCLIENT_EVENT_DRAIN, AMP_EDENIED);
    tick(AMPCLIENT_BACKOFF_MAX_MS);
    answer_units_join(1, 1, 2);
    assert_int_equal(0, have(AMPCLIENT_OUT_GET_PUSH_STATE));
    request(AMPCLIENT_EVENT_STEP_END);
    (void)done(AMPCLIENT_EVENT_STEP_END, AMP_EDENIED);
}

/* ---- what is refused ---- */

static void units_that_cannot_be_are_refused_and_change_nothing(void **state)
{
    (void)state;
    static const uint32_t zero[] = {0}, twice[] = {3, 3}, beyond[] = {4};
    static const uint64_t four[] = {64, 64, 64, 64};
    uint32_t unit = 9;
    assert_int_equal(AMP_EINVAL, ampclient_core_unit_add(core, zero, 0, &unit, &said));
    assert_int_equal(AMP_EINVAL, ampclient_core_unit_add(core, NULL, 1, &unit, &said));
    assert_int_equal(AMP_EINVAL, ampclient_core_unit_add(core, zero, 1, &unit, &said));
    assert_non_null(strstr(said.text, "parameter 0 is in unit 0"));
    assert_int_equal(AMP_ERANGE, ampclient_core_unit_add(core, beyond, 1, &unit, &said));
    ampclient_core_free(core);
    const struct ampclient_core_config config = {
        .model = "m", .worker = "w", .rank = 1, .units = true, .accumulate = 2};
    assert_int_equal(AMP_EINVAL, ampclient_core_new(&config, &core));
    assert_null(core);
    struct ampclient_core_config four_config = config;
    four_config.accumulate = 1;
    assert_int_equal(0, ampclient_core_new(&four_config, &core));
    assert_int_equal(AMP_ESTATE, ampclient_core_unit_add(core, zero, 1, &unit, &said)); /* before the Join */
    count = 0;
    request(AMPCLIENT_EVENT_JOIN);
    struct ampclient_ended ended = {.u.join = {.rank = 1,
                                               .world_size = 2,
                                               .shards = 1,
                                               .incarnation = {.fence = 1, .counter = 1},
                                               .epoch = 1,
                                               .step = 1,
                                               .lease_ms = 30000,
                                               .parameters_count = 4,
                                               .elements = four,
                                               .block_elements = 64,
                                               .cast = AMP_F16}};
    end_with(take(AMPCLIENT_OUT_JOIN).call, ended);
    assert_int_equal(AMP_EINVAL, ampclient_core_unit_add(core, twice, 2, &unit, &said));
    assert_non_null(strstr(said.text, "twice"));
    for (uint32_t p = 0; p < 4; p++) { /* the marks of what was refused are gone */
        assert_int_equal(0, ampclient_core_unit_add(core, &p, 1, &unit, &said));
        assert_int_equal(p, unit);
    }
}

static void a_scatter_that_cannot_be_is_refused_as_a_whole(void **state)
{
    (void)state;
    const void *both[2] = {gradient_2, gradient_1};
    begin_step(1, 1);
    assert_int_equal(AMP_EINVAL, ampclient_core_scatter(core, now_ms, 0, NULL, AMP_F16, &said));
    assert_int_equal(AMP_ERANGE, ampclient_core_scatter(core, now_ms, 2, both, AMP_F16, &said));
    assert_int_equal(AMP_EINVAL, ampclient_core_scatter(core, now_ms, 1, both, AMP_F64, &said));
    (void)scatter_0();
    assert_int_equal(AMP_ESTATE, scatter(0));
    assert_non_null(strstr(said.text, "scatter each unit once"));
    assert_int_equal(AMP_EINVAL, ampclient_core_scatter(core, now_ms, 1, both, AMP_F32, &said));
    assert_non_null(strstr(said.text, "one dtype"));
    assert_int_equal(0, have(AMPCLIENT_OUT_PUSH_BLOCKS));
    request(AMPCLIENT_EVENT_STEP_END);
    count = 0;
    assert_int_equal(AMP_ESTATE, scatter(1)); /* step_end is under way */
}

static void a_unit_is_scattered_once_in_a_step_also_without_gradients(void **state)
{
    const void *none[2] = {NULL, NULL};
    (void)state;
    begin_step(1, 1);
    assert_int_equal(0, ampclient_core_scatter(core, now_ms, 1, none, AMP_F16, &said));
    assert_int_equal(AMP_ESTATE, scatter(1));
    begin_step(1, 1);
    assert_int_equal(0, scatter(1));
}

static void a_handle_without_units_has_none_of_their_calls(void **state)
{
    (void)state;
    const uint32_t parameter = 0;
    uint32_t unit;
    ampclient_core_free(core);
    make(1);
    assert_int_equal(AMP_ESTATE, ampclient_core_unit_add(core, &parameter, 1, &unit, &said));
    assert_int_equal(AMP_ESTATE, ampclient_core_release(core, 0, &said));
    assert_int_equal(AMP_ESTATE, scatter(0));
    ask_gather(0);
    (void)done(AMPCLIENT_EVENT_GATHER, AMP_ESTATE);
    begin(1, 1);
    request(AMPCLIENT_EVENT_DRAIN);
    (void)done(AMPCLIENT_EVENT_DRAIN, AMP_ESTATE);
    push(1, second);
    assert_int_equal(0, ampclient_core_set_user_state(core, "here", 4, &said)); /* it sends all again */
}

/* The stream would begin anew, and what was on its way and is gone would be missing: in every step. */
static void a_user_state_comes_before_the_first_scatter(void **state)
{
    (void)state;
    assert_int_equal(0, ampclient_core_set_user_state(core, "here", 4, &said));
    begin_step(1, 1);
    assert_int_equal(0, ampclient_core_set_user_state(core, "here", 4, &said));
    uint64_t call = scatter_0();
    assert_int_equal(AMP_ESTATE, ampclient_core_set_user_state(core, "here", 4, &said));
    assert_non_null(strstr(said.text, "before the first scatter"));
    breaks(call, 0, 0);
    assert_int_equal(0, ampclient_core_set_user_state(core, "here", 4, &said)); /* void */
}

#define UNITS_TEST(name) cmocka_unit_test_setup_teardown(name, setup_units, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        UNITS_TEST(a_step_brings_no_parameters_and_a_gather_those_of_its_unit),
        UNITS_TEST(units_come_one_at_a_time_in_the_order_asked_for),
        UNITS_TEST(a_unit_is_released_once_and_may_be_gathered_again),
        UNITS_TEST(a_unit_released_on_its_way_is_freed_when_no_stream_writes_it),
        UNITS_TEST(a_server_gone_in_the_middle_of_a_gather_is_asked_again),
        UNITS_TEST(a_gather_ends_with_what_is_not_tried_again_and_in_time),
        UNITS_TEST(a_step_decided_without_this_worker_is_void_and_late),
        UNITS_TEST(a_gather_after_a_step_end_that_took_too_long_does_not_make_the_step_late),
        UNITS_TEST(a_new_epoch_makes_the_step_void_and_leaves_what_the_user_reads),
        UNITS_TEST(outside_of_a_step_the_version_pulled_is_gathered_while_it_is_held),
        UNITS_TEST(a_unit_on_two_shards_is_pulled_from_both),
        UNITS_TEST(a_scatter_is_read_until_it_has_left_and_a_border_waits_in_a_copy),
        UNITS_TEST(a_gradient_left_out_is_absent_and_its_border_goes_at_the_end),
        UNITS_TEST(a_server_that_lacks_what_is_gone_makes_the_step_void),
        UNITS_TEST(a_server_that_has_what_is_gone_gets_the_rest),
        UNITS_TEST(a_verdict_is_waited_for_in_vain_when_the_bytes_are_nowhere),
        UNITS_TEST(a_new_incarnation_asks_whether_the_step_was_decided),
        UNITS_TEST(what_one_shard_has_answered_is_the_result_of_all),
        UNITS_TEST(a_drain_that_takes_too_long_lets_the_push_go_on_and_is_asked_again),
        UNITS_TEST(a_push_that_is_refused_ends_the_drain_and_the_step),
        UNITS_TEST(a_rank_that_is_taken_ends_gather_and_drain),
        UNITS_TEST(a_gather_that_hears_that_the_rank_is_taken_ends_the_push_too),
        UNITS_TEST(a_push_that_hears_that_the_rank_is_taken_ends_the_gather_too),
        UNITS_TEST(gradients_that_a_refused_join_gave_back_are_not_sent_after_a_later_one),
        UNITS_TEST(units_that_cannot_be_are_refused_and_change_nothing),
        UNITS_TEST(a_scatter_that_cannot_be_is_refused_as_a_whole),
        UNITS_TEST(a_unit_is_scattered_once_in_a_step_also_without_gradients),
        UNITS_TEST(a_handle_without_units_has_none_of_their_calls),
        UNITS_TEST(a_user_state_comes_before_the_first_scatter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
