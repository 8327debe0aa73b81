/* The table "The life of a step" of docs/protocol.md: what a repeated or stray call gets. One test a row. */
#include "tests/unit/core_fixture.h"

#include <string.h>

static struct core_host host;
static struct ampd_incarnation incarnations[2];

static int setup(void **state)
{
    (void)state;
    core_host_init(&host, 7);
    core_running(&host, incarnations);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    core_host_close(&host);
    return 0;
}

static uint64_t decide_step_1(uint64_t *other)
{
    uint64_t first = core_push_all(&host, 1, 0, incarnations[0], 1);
    *other = core_push_all(&host, 1, 1, incarnations[1], 3);
    return first;
}

static void a_push_of_the_open_step_by_the_same_incarnation_is_resumed(void **state)
{
    (void)state;
    uint64_t first = core_push_header(&host, 1, 0, incarnations[0]);
    core_push_block(&host, first, 1, 5);
    core_close_call(&host, first);
    uint64_t ask = core_push_state(&host, 1, 1, 0, incarnations[0]);
    const struct core_call *state_call = core_call(&host, ask);
    assert_int_equal(1, state_call->reply.u.push_state.ranges_count);
    assert_int_equal(1, state_call->ranges[0].first);
    assert_int_equal(1, state_call->ranges[0].count);
    assert_false(state_call->reply.u.push_state.complete);
    uint64_t second = core_push_header(&host, 1, 0, incarnations[0]);
    assert_int_equal(1, core_call(&host, second)->listed[0]);
    assert_int_equal(2, core_call(&host, second)->listed[1]); /* there already: dropped */
    assert_int_equal(1, core_call(&host, second)->listed[2]);
    core_push_block(&host, second, 0, 5);
    core_push_block(&host, second, 2, 5);
    core_push_end(&host, second, NULL, 0);
    uint64_t other = core_push_all(&host, 1, 1, incarnations[1], 5);
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(&host, second)->reply.u.step.verdict);
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(&host, other)->reply.u.step.verdict);
}

static void a_new_stream_waits_until_the_old_one_has_let_go(void **state)
{
    (void)state;
    uint64_t first = core_push_header(&host, 1, 0, incarnations[0]);
    uint64_t second = core_push_header(&host, 1, 0, incarnations[0]);
    assert_true(core_call(&host, first)->revoked);
    core_assert_held(&host, second);
    core_revoked(&host, first);
    core_assert_failed(&host, first, AMP_EABORTED, "REPLACED", "rank 0");
    assert_true(core_call(&host, second)->granted);
}

static void a_push_of_the_step_after_the_open_one_is_held(void **state)
{
    (void)state;
    uint64_t early = core_push_header(&host, 2, 0, incarnations[0]);
    core_assert_held(&host, early);
    uint64_t other;
    (void)decide_step_1(&other);
    assert_true(core_call(&host, early)->granted);
}

static void a_push_by_an_incarnation_that_nobody_was_given_is_aborted(void **state)
{
    (void)state;
    host.hold_persists = true;
    uint64_t join = core_join(&host, "w0", 0);
    struct ampd_incarnation newer = {incarnations[0].fence, incarnations[1].counter + 1};
    core_assert_failed(&host, core_push_header(&host, 1, 0, newer), AMP_EABORTED, "FENCED", "join again");
    core_do_all(&host);
    host.hold_persists = false;
    assert_int_equal(newer.counter, core_joined(&host, join).counter);
    assert_true(core_call(&host, core_push_header(&host, 1, 0, newer))->granted); /* the new try lists it */
}

static void a_push_of_the_last_decided_step_gets_its_stored_result(void **state)
{
    (void)state;
    uint64_t other;
    uint64_t first = decide_step_1(&other);
    uint64_t again = core_push_header(&host, 1, 0, incarnations[0]);
    const struct core_call *call = core_call(&host, again);
    assert_true(call->answered);
    assert_false(call->granted); /* the body is not read */
    const struct ampd_step_result *result = &core_call(&host, first)->reply.u.step;
    assert_int_equal(1, call->reply.u.step.step);
    assert_int_equal(result->verdict, call->reply.u.step.verdict);
    assert_memory_equal(&result->norm, &call->reply.u.step.norm, sizeof(result->norm));
    assert_int_equal(result->version, call->reply.u.step.version);
}

static void a_push_of_the_last_decided_step_that_is_not_listed_is_late(void **state)
{
    (void)state;
    uint64_t other;
    (void)decide_step_1(&other);
    struct ampd_incarnation newer = core_joined(&host, core_join(&host, "w0", 0));
    uint64_t push = core_push_header(&host, 1, 0, newer);
    assert_int_equal(0, core_call(&host, push)->reply.error.code);
    assert_int_equal(AMPD_VERDICT_LATE, core_call(&host, push)->reply.u.step.verdict);
}

static void an_older_step_is_aborted_with_the_present_one(void **state)
{
    (void)state;
    uint64_t other;
    (void)decide_step_1(&other);
    (void)core_push_all(&host, 2, 0, incarnations[0], 1);
    (void)core_push_all(&host, 2, 1, incarnations[1], 1);
    uint64_t push = core_push_header(&host, 1, 0, incarnations[0]);
    core_assert_failed(&host, push, AMP_EABORTED, "STALE_STEP", "step 3");
    assert_int_equal(1, core_call(&host, push)->reply.epoch);
    assert_int_equal(3, core_call(&host, push)->reply.step);
    core_assert_failed(&host, core_pull_step(&host, 1, 1), AMP_EABORTED, "STALE_STEP", "step 3");
    core_assert_failed(&host, core_push_state(&host, 1, 1, 0, incarnations[0]), AMP_EABORTED, "STALE_STEP", "step 3");
}

static void an_older_incarnation_is_aborted(void **state)
{
    (void)state;
    (void)core_joined(&host, core_join(&host, "w0", 0));
    core_assert_failed(&host, core_push_header(&host, 1, 0, incarnations[0]), AMP_EABORTED, "FENCED", "join again");
    core_assert_failed(&host, core_push_state(&host, 1, 1, 0, incarnations[0]), AMP_EABORTED, "FENCED", "join again");
}

static void an_epoch_that_is_not_the_present_one_is_refused(void **state)
{
    (void)state;
    struct ampd_event_push push = {"model", 2, 1, 0, incarnations[0], 1, AMP_F32, 1, false, 0, NULL, 0};
    core_assert_failed(&host, core_push_event(&host, &push), AMP_ESTATE, "EPOCH_AHEAD", "epoch 1");
    core_assert_failed(&host, core_pull_step(&host, 2, 1), AMP_ESTATE, "EPOCH_AHEAD", "epoch 1");
}

static void a_later_step_is_a_failed_precondition(void **state)
{
    (void)state;
    core_assert_failed(&host, core_push_header(&host, 3, 0, incarnations[0]), AMP_ESTATE, "STEP_AHEAD", "pull that");
    core_assert_failed(&host, core_pull_step(&host, 1, 3), AMP_ESTATE, "STEP_AHEAD", "step 3");
    core_assert_held(&host, core_pull_step(&host, 1, 2));
}

static void another_scale_id_is_a_failed_precondition(void **state)
{
    (void)state;
    struct ampd_event_push push = {"model", 1, 1, 0, incarnations[0], 9, AMP_F32, 1, false, 0, NULL, 0};
    core_assert_failed(&host, core_push_event(&host, &push), AMP_ESTATE, "SCALE_ID", "scale id 1");
}

static void a_block_with_a_bad_checksum_is_data_loss_and_can_be_sent_again(void **state)
{
    (void)state;
    uint64_t push = core_push_header(&host, 1, 0, incarnations[0]);
    core_push_block(&host, push, 0, 1);
    struct ampd_event event = {.type = AMPD_EVENT_PUSH_BLOCK, .call = push};
    event.u.block.block = 1;
    event.u.block.bad_checksum = true;
    core_event(&host, &event);
    core_revoked(&host, push);
    core_assert_failed(&host, push, AMP_EDATALOSS, "BLOCK_CHECKSUM", "block 1");
    uint64_t again = core_push_header(&host, 1, 0, incarnations[0]);
    assert_int_equal(2, core_call(&host, again)->listed[0]);
    assert_int_equal(1, core_call(&host, again)->listed[1]);
}

static void any_call_while_the_server_drains_is_unavailable(void **state)
{
    (void)state;
    uint64_t waiting = core_pull_step(&host, 1, 2);
    struct ampd_event event = {.type = AMPD_EVENT_DRAIN};
    core_event(&host, &event);
    core_assert_failed(&host, waiting, AMP_EUNAVAILABLE, "DRAINING", "try again");
    core_assert_failed(&host, core_push_header(&host, 1, 0, incarnations[0]), AMP_EUNAVAILABLE, "DRAINING",
                       "try again");
    core_assert_failed(&host, core_pull_latest(&host), AMP_EUNAVAILABLE, "DRAINING", "try again");
    core_assert_failed(&host, core_join(&host, "w0", 0), AMP_EUNAVAILABLE, "DRAINING", "try again");
    assert_true(core_call(&host, host.last_call)->reply.retry_ms > 0);
    assert_int_equal(1, host.drained);
}

static void push_after_lease_expiry_is_rejected(void **state)
{
    (void)state;
    core_tick(&host, host.now_ms + AMPD_LEASE_MS);
    core_assert_failed(&host, core_push_header(&host, 1, 0, incarnations[0]), AMP_EABORTED, "FENCED", "join again");
    core_assert_failed(&host, core_push_state(&host, 1, 1, 1, incarnations[1]), AMP_EABORTED, "FENCED", "join again");
}

static void a_push_with_missing_blocks_is_refused_and_may_be_completed(void **state)
{
    (void)state;
    uint64_t push = core_push_header(&host, 1, 0, incarnations[0]);
    core_push_block(&host, push, 0, 1);
    const uint32_t absent[] = {1};
    core_push_end(&host, push, absent, 1);
    core_assert_failed(&host, push, AMP_EINVAL, "INCOMPLETE_PUSH", "a part of a");
    uint64_t again = core_push_header(&host, 1, 0, incarnations[0]);
    core_push_block(&host, again, 1, 1);
    core_push_end(&host, again, absent, 1);
    assert_false(core_call(&host, again)->answered); /* it waits for rank 1 */
    uint64_t other = core_push_all(&host, 1, 1, incarnations[1], 1);
    assert_int_equal(0, core_call(&host, other)->reply.error.code);
    assert_int_equal(0, core_call(&host, again)->reply.error.code);
}

static void a_refused_header_leaves_the_step_untouched(void **state)
{
    (void)state;
    struct ampd_event_push push = {"model", 1, 1, 2, incarnations[0], 1, AMP_F32, 1, false, 0, NULL, 0};
    core_assert_failed(&host, core_push_event(&host, &push), AMP_EINVAL, "RANK", "world_size");
    push.rank = 0;
    push.dtype = AMP_F64;
    core_assert_failed(&host, core_push_event(&host, &push), AMP_EINVAL, "INVALID_TENSOR", "dtype");
    push.dtype = AMP_F32;
    push.weight = 2;
    core_assert_failed(&host, core_push_event(&host, &push), AMP_EINVAL, "WEIGHT", "EQUAL");
    push.weight = 1;
    push.model = "nobody";
    core_assert_failed(&host, core_push_event(&host, &push), AMP_ENOTFOUND, "MODEL_NOT_FOUND", "create it");
    struct ampd_worker_info info;
    ampd_core_worker(host.core, 0, 0, host.now_ms, &info);
    assert_int_equal(0, info.blocks_present);
    uint64_t other;
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(&host, decide_step_1(&other))->reply.u.step.verdict);
}

/* Two streams of one push; the header of the older one is read after the trailer of the newer (simulator, seed 939). */
static void an_older_header_that_comes_late_does_not_take_the_user_state_away(void **state)
{
    (void)state;
    uint64_t first;
    decide_step_1(&first);
    struct ampd_event checkpoint = {.type = AMPD_EVENT_CHECKPOINT, .call = ++host.last_call, .u.named = {"model"}};
    core_event(&host, &checkpoint); /* of the next step */
    struct ampd_model_info info = core_info(&host);
    struct ampd_event_push push = {.model = "model",
                                   .epoch = info.epoch,
                                   .step = 2,
                                   .rank = 0,
                                   .incarnation = incarnations[0],
                                   .scale_id = info.scaler.scale_id,
                                   .dtype = AMP_F32,
                                   .weight = 1,
                                   .user_state = (const uint8_t *)"new",
                                   .user_state_size = 3};
    uint64_t call = core_push_event(&host, &push);
    for (uint64_t b = 0; b < 3; b++)
        core_push_block(&host, call, b, 1);
    core_push_end(&host, call, NULL, 0);
    push.user_state_size = 0;
    assert_true(core_call(&host, core_push_event(&host, &push))->granted);
    host.hold_files = true;
    uint64_t other = core_push_all(&host, 2, 1, incarnations[1], 1);
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(&host, other)->reply.u.step.verdict);
    assert_int_equal(2, host.tasks_count); /* the part and its blocks */
    assert_int_equal(AMPD_OUT_CUT, host.tasks[0].type);
    const struct ampd_checkpoint_state *kept = host.tasks[0].u.cut.state;
    assert_int_equal(3, kept->user_states[0].size);
    assert_memory_equal("new", kept->user_states[0].data, 3);
    core_do_all(&host);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(a_push_of_the_open_step_by_the_same_incarnation_is_resumed),
        ROW(a_new_stream_waits_until_the_old_one_has_let_go),
        ROW(a_push_of_the_step_after_the_open_one_is_held),
        ROW(a_push_by_an_incarnation_that_nobody_was_given_is_aborted),
        ROW(a_push_of_the_last_decided_step_gets_its_stored_result),
        ROW(a_push_of_the_last_decided_step_that_is_not_listed_is_late),
        ROW(an_older_step_is_aborted_with_the_present_one),
        ROW(an_older_incarnation_is_aborted),
        ROW(an_epoch_that_is_not_the_present_one_is_refused),
        ROW(a_later_step_is_a_failed_precondition),
        ROW(another_scale_id_is_a_failed_precondition),
        ROW(a_block_with_a_bad_checksum_is_data_loss_and_can_be_sent_again),
        ROW(any_call_while_the_server_drains_is_unavailable),
        ROW(push_after_lease_expiry_is_rejected),
        ROW(a_push_with_missing_blocks_is_refused_and_may_be_completed),
        ROW(a_refused_header_leaves_the_step_untouched),
        ROW(an_older_header_that_comes_late_does_not_take_the_user_state_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
