/* The worker's machine: what goes out when, what is tried again, and what the user is told. */
#include "client/core/client_requests.h"
#include "client/core/machine.h"
#include "tests/unit/client_core_fixture.h"

#include <math.h>

static uint16_t first[100];

/* ---- tests ---- */

static void a_block_goes_out_when_its_parameters_are_pushed(void **state)
{
    (void)state;
    begin(1, 1);
    push(1, second);
    struct ampclient_output header = take(AMPCLIENT_OUT_PUSH);
    assert_int_equal(5, header.u.push.scale_id);
    assert_int_equal(1, header.u.push.step);
    assert_int_equal(AMP_F16, header.u.push.dtype);
    assert_int_equal(2, take(AMPCLIENT_OUT_PUSH_BLOCKS).u.blocks.first);
    assert_int_equal(0, have(AMPCLIENT_OUT_PUSH_BLOCKS));
    push(0, first);
    assert_int_equal(0, take(AMPCLIENT_OUT_PUSH_BLOCKS).u.blocks.first);
    assert_int_equal(1, take(AMPCLIENT_OUT_PUSH_BLOCKS).u.blocks.first);
    assert_int_equal(0, have(AMPCLIENT_OUT_PUSH_END));
    request(AMPCLIENT_EVENT_STEP_END);
    assert_int_equal(header.call, take(AMPCLIENT_OUT_PUSH_END).call);
    assert_int_equal(0, absent_count);
    answer_push(header.call, 1, 1);
    assert_int_equal(AMPCLIENT_CORE_APPLIED, done(AMPCLIENT_EVENT_STEP_END, 0).result.verdict);
}

static void what_is_not_pushed_by_step_end_is_absent(void **state)
{
    (void)state;
    begin(1, 1);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    (void)take(AMPCLIENT_OUT_PUSH_END);
    assert_int_equal(1, absent_count);
    assert_int_equal(0, absent[0]);
    assert_int_equal(1, have(AMPCLIENT_OUT_PUSH_BLOCKS));
}

static void a_block_in_one_piece_is_a_view_and_others_are_gathered_with_zeros(void **state)
{
    (void)state;
    begin(1, 1);
    first[70] = 0x3c00;
    push(0, first);
    uint16_t scratch[BLOCK];
    size_t size;
    assert_ptr_equal(first, ampclient_core_block(core, 0, scratch, &size));
    assert_int_equal(BLOCK * 2, size);
    memset(scratch, 0xff, sizeof scratch);
    assert_ptr_equal(scratch, ampclient_core_block(core, 1, scratch, &size)); /* 36 elements and pad */
    assert_int_equal(0x3c00, scratch[6]);
    assert_int_equal(0, scratch[36]);
    assert_int_equal(0, scratch[63]);
    first[70] = 0;
}

static void a_push_that_broke_off_asks_what_is_there_and_sends_the_rest(void **state)
{
    (void)state;
    begin(1, 1);
    push(0, first);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    uint64_t old = take(AMPCLIENT_OUT_PUSH).call;
    count = 0;
    fail_call(old, AMP_EUNAVAILABLE, "", 0, 0);
    assert_int_equal(0, have(AMPCLIENT_OUT_GET_PUSH_STATE)); /* a pause first */
    tick(AMPCLIENT_BACKOFF_MS);
    uint64_t ask = take(AMPCLIENT_OUT_GET_PUSH_STATE).call;
    const struct ampclient_range ranges[] = {{0, 1}, {2, 1}};
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PUSH_STATE, .call = ask};
    event.u.push_state.ranges = ranges;
    event.u.push_state.ranges_count = 2;
    send(&event);
    end_with(ask, (struct ampclient_ended){0});
    uint64_t call = take(AMPCLIENT_OUT_PUSH).call;
    assert_int_equal(1, take(AMPCLIENT_OUT_PUSH_BLOCKS).u.blocks.first);
    assert_int_equal(0, have(AMPCLIENT_OUT_PUSH_BLOCKS));
    (void)take(AMPCLIENT_OUT_PUSH_END);
    answer_push(call, 1, 1);
    (void)done(AMPCLIENT_EVENT_STEP_END, 0);
}

/* It was replaced, and neither it nor the connection to it has noticed. */
static void a_process_that_knows_less_than_the_others_is_asked_again(void **state)
{
    (void)state;
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_ESTATE, "STEP_AHEAD", 1, 1);
    assert_int_equal(0, have(AMPCLIENT_OUT_PULL)); /* a pause first */
    tick(AMPCLIENT_BACKOFF_MS);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_ESTATE, "ANY_OTHER", 1, 1);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, AMP_ESTATE);
}

/* Its values were never loaded, or only since it was replaced. */
static void a_process_without_values_is_asked_again_by_who_has_had_them(void **state)
{
    (void)state;
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_ESTATE, "MODEL_NOT_LOADED", 1, 1);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, AMP_ESTATE);
    begin(1, 1);
    push(0, first);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    fail_call(take(AMPCLIENT_OUT_PUSH).call, AMP_ESTATE, "MODEL_NOT_LOADED", 1, 1);
    assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE));
    count = 0;
    tick(AMPCLIENT_BACKOFF_MS);
    end_with(take(AMPCLIENT_OUT_GET_PUSH_STATE).call, (struct ampclient_ended){0});
    uint64_t call = take(AMPCLIENT_OUT_PUSH).call;
    assert_int_equal(3, have(AMPCLIENT_OUT_PUSH_BLOCKS));
    answer_push(call, 1, 1);
    (void)done(AMPCLIENT_EVENT_STEP_END, 0);
}

/* Only a process that has been replaced can say so: the step is open on all shards. */
static void a_process_that_takes_the_model_for_frozen_is_asked_again_by_who_has_begun_a_step(void **state)
{
    (void)state;
    static const char *const reasons[] = {"MODEL_FROZEN", "MODEL_UNSTABLE"};
    for (uint64_t step = 1; step <= 2; step++) {
        begin(1, step);
        push(0, first);
        push(1, second);
        request(AMPCLIENT_EVENT_STEP_END);
        fail_call(take(AMPCLIENT_OUT_PUSH).call, AMP_ESTATE, reasons[step - 1], 1, step);
        assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE));
        count = 0;
        tick(AMPCLIENT_BACKOFF_MS);
        end_with(take(AMPCLIENT_OUT_GET_PUSH_STATE).call, (struct ampclient_ended){0});
        answer_push(take(AMPCLIENT_OUT_PUSH).call, 1, step);
        (void)done(AMPCLIENT_EVENT_STEP_END, 0);
        count = 0;
    }
    request(AMPCLIENT_EVENT_STEP_BEGIN); /* which may be so */
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_ESTATE, "MODEL_FROZEN", 1, 3);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, AMP_ESTATE);
}

/* It was told by a process that has been replaced that all is there, and the one in its place holds nothing. */
static void a_push_that_is_incomplete_by_what_it_was_told_asks_again(void **state)
{
    (void)state;
    begin(1, 1);
    push(0, first);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    fail_call(take(AMPCLIENT_OUT_PUSH).call, AMP_EUNAVAILABLE, "", 0, 0);
    count = 0;
    tick(AMPCLIENT_BACKOFF_MS);
    uint64_t ask = take(AMPCLIENT_OUT_GET_PUSH_STATE).call;
    const struct ampclient_range all = {0, 3};
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PUSH_STATE, .call = ask};
    event.u.push_state.ranges = &all;
    event.u.push_state.ranges_count = 1;
    send(&event);
    end_with(ask, (struct ampclient_ended){0});
    assert_int_equal(0, have(AMPCLIENT_OUT_PUSH_BLOCKS));
    uint64_t call = take(AMPCLIENT_OUT_PUSH).call;
    count = 0;
    fail_call(call, AMP_EINVAL, "INCOMPLETE_PUSH", 0, 0);
    assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE));
    tick(2 * AMPCLIENT_BACKOFF_MS);
    end_with(take(AMPCLIENT_OUT_GET_PUSH_STATE).call, (struct ampclient_ended){0});
    call = take(AMPCLIENT_OUT_PUSH).call;
    assert_int_equal(3, have(AMPCLIENT_OUT_PUSH_BLOCKS));
    answer_push(call, 1, 1);
    (void)done(AMPCLIENT_EVENT_STEP_END, 0);
}

static void pauses_double_up_to_their_bound(void **state)
{
    (void)state;
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    for (uint64_t pause = AMPCLIENT_BACKOFF_MS; pause <= 4 * AMPCLIENT_BACKOFF_MAX_MS; pause *= 2) {
        fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_EUNAVAILABLE, "", 0, 0);
        uint64_t wait = pause < AMPCLIENT_BACKOFF_MAX_MS ? pause : AMPCLIENT_BACKOFF_MAX_MS;
        tick(wait - 1);
        assert_int_equal(0, have(AMPCLIENT_OUT_PULL));
        tick(1);
        assert_int_equal(1, have(AMPCLIENT_OUT_PULL));
    }
}

static void after_the_reconnect_timeout_the_user_is_told(void **state)
{
    (void)state;
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    uint64_t begun = now_ms;
    while (have(AMPCLIENT_OUT_USER_DONE) == 0) {
        if (have(AMPCLIENT_OUT_PULL) > 0)
            fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_EUNAVAILABLE, "", 0, 0);
        count = have(AMPCLIENT_OUT_USER_DONE) > 0 || have(AMPCLIENT_OUT_PULL) > 0 ? count : 0;
        if (have(AMPCLIENT_OUT_USER_DONE) == 0)
            tick(500);
        assert_true(now_ms - begun < 2 * AMPCLIENT_RECONNECT_MS);
    }
    struct ampclient_user_done result = done(AMPCLIENT_EVENT_STEP_BEGIN, AMP_EUNAVAILABLE);
    assert_true(now_ms - begun >= AMPCLIENT_RECONNECT_MS);
    assert_string_equal("text", result.error.text);
    assert_int_equal(AMPCLIENT_STATE_READY, ampclient_core_state(core));
}

/* A step whose block never comes whole. */
static void end_in_vain(void)
{
    begin(1, 1);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    for (unsigned i = 0; i < AMPCLIENT_BLOCK_RESENDS_MAX; i++) {
        fail_call(take(AMPCLIENT_OUT_PUSH).call, AMP_EDATALOSS, "BLOCK_CHECKSUM", 1, 1);
        end_with(take(AMPCLIENT_OUT_GET_PUSH_STATE).call, (struct ampclient_ended){0});
    }
    fail_call(take(AMPCLIENT_OUT_PUSH).call, AMP_EDATALOSS, "BLOCK_CHECKSUM", 1, 1);
    (void)done(AMPCLIENT_EVENT_STEP_END, AMP_EDATALOSS);
}

static void a_block_is_sent_again_three_times_and_no_more(void **state)
{
    (void)state;
    end_in_vain();
}

static void a_higher_epoch_rolls_the_step_back(void **state)
{
    (void)state;
    begin(1, 4);
    push(1, second);
    uint64_t call = take(AMPCLIENT_OUT_PUSH).call;
    fail_call(call, AMP_EABORTED, "ROLLED_BACK", 2, 3);
    answer_join(2, 3, 2);
    assert_int_equal(AMPCLIENT_STATE_ROLLED_BACK, ampclient_core_state(core));
    count = 0;
    push(0, first); /* does nothing and succeeds */
    assert_int_equal(0, have(AMPCLIENT_OUT_PUSH));
    request(AMPCLIENT_EVENT_STEP_END);
    assert_int_equal(AMPCLIENT_CORE_ROLLED_BACK, done(AMPCLIENT_EVENT_STEP_END, 0).result.verdict);
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    assert_int_equal(3, outputs[0].u.pull.number);
    answer_pull(2, 3, 2);
    struct ampclient_user_done result = done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
    assert_true(result.step.rolled_back);
    assert_int_equal(3, result.step.step);
}

static void only_the_first_step_after_a_rollback_says_so(void **state)
{
    a_higher_epoch_rolls_the_step_back(state); /* to step 3; step 4 was begun before, too */
    request(AMPCLIENT_EVENT_STEP_END);
    answer_push(take(AMPCLIENT_OUT_PUSH).call, 2, 3);
    (void)done(AMPCLIENT_EVENT_STEP_END, 0);
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    answer_pull(2, 4, 3);
    assert_false(done(AMPCLIENT_EVENT_STEP_BEGIN, 0).step.rolled_back);
}

static void a_lease_that_ended_is_mended_and_the_push_begins_anew(void **state)
{
    (void)state;
    begin(1, 1);
    push(0, first);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    uint64_t call = take(AMPCLIENT_OUT_PUSH).call;
    count = 0;
    fail_call(call, AMP_EABORTED, "FENCED", 1, 1);
    answer_keep_alive(1, false, NULL);
    answer_join(1, 1, 2);
    struct ampclient_output header = take(AMPCLIENT_OUT_PUSH);
    assert_int_equal(2, header.incarnation.counter);
    assert_int_equal(3, have(AMPCLIENT_OUT_PUSH_BLOCKS));
    answer_push(header.call, 1, 1);
    (void)done(AMPCLIENT_EVENT_STEP_END, 0);
}

static void keep_alive_goes_out_three_times_a_lease_and_may_end_the_membership(void **state)
{
    (void)state;
    tick(10000);
    struct ampclient_output keep = take(AMPCLIENT_OUT_KEEP_ALIVE);
    struct ampclient_ended ended = {0};
    ended.u.keep_alive.epoch = 1;
    ended.u.keep_alive.valid = true;
    end_with(keep.call, ended);
    assert_int_equal(0, have(AMPCLIENT_OUT_JOIN));
    tick(10000);
    ended.u.keep_alive.valid = false;
    end_with(take(AMPCLIENT_OUT_KEEP_ALIVE).call, ended);
    assert_int_equal(1, have(AMPCLIENT_OUT_JOIN));
}

/*
 * The keep-alive waits while the server is away; the pull that waits with it is the first to hear that the epoch is
 * over.
 */
static void what_a_keep_alive_hears_of_the_incarnation_of_before_does_not_count(void **state)
{
    (void)state;
    tick(10000);
    uint64_t old = take(AMPCLIENT_OUT_KEEP_ALIVE).call;
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_EABORTED, "ROLLED_BACK", 2, 1);
    answer_join(2, 1, 2);
    fail_call(old, AMP_EABORTED, "FENCED", 2, 1);
    assert_int_equal(0, have(AMPCLIENT_OUT_JOIN));
    answer_pull(2, 1, 0);
    assert_int_equal(2, done(AMPCLIENT_EVENT_STEP_BEGIN, 0).step.epoch);
    tick(10000);
    struct ampclient_ended valid = {.u.keep_alive = {.epoch = 2, .valid = true}};
    end_with(take(AMPCLIENT_OUT_KEEP_ALIVE).call, valid);
    assert_int_equal(0, have(AMPCLIENT_OUT_JOIN));
}

static void after_a_skip_no_blocks_are_asked_for(void **state)
{
    (void)state;
    begin(1, 1);
    request(AMPCLIENT_EVENT_STEP_END);
    answer_push(take(AMPCLIENT_OUT_PUSH).call, 1, 1);
    (void)done(AMPCLIENT_EVENT_STEP_END, 0);
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    struct ampclient_output pull = outputs[count - 1].type == AMPCLIENT_OUT_PULL ? outputs[count - 1] : outputs[0];
    assert_int_equal(1, pull.u.pull.have_epoch);
    assert_int_equal(0, pull.u.pull.have_version);
    answer_pull(1, 2, 0);
    assert_int_equal(0, done(AMPCLIENT_EVENT_STEP_BEGIN, 0).step.version);
}

static void a_pull_that_broke_off_leaves_no_version_behind(void **state)
{
    (void)state;
    begin(1, 2); /* version 1 */
    request(AMPCLIENT_EVENT_STEP_END);
    answer_push(take(AMPCLIENT_OUT_PUSH).call, 1, 2);
    (void)done(AMPCLIENT_EVENT_STEP_END, 0);
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    struct ampclient_output pull = take(AMPCLIENT_OUT_PULL);
    assert_int_equal(1, pull.u.pull.have_version);
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PULL_HEADER, .call = pull.call};
    event.u.header = (struct ampclient_pull_header){1, 3, 2, 5, 1024, NULL};
    send(&event);
    fail_call(pull.call, AMP_EABORTED, "PULL_OUTRUN", 1, 3);
    assert_int_equal(0, take(AMPCLIENT_OUT_PULL).u.pull.have_version);
}

static void a_model_that_is_done_ends_the_loop(void **state)
{
    (void)state;
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_ESTATE, "MODEL_DONE", 1, 2);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 1);
    request(AMPCLIENT_EVENT_PULL_LATEST);
    answer_pull(1, 2, 1);
    assert_int_equal(1, done(AMPCLIENT_EVENT_PULL_LATEST, 0).step.version);
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_ESTATE, "MODEL_DONE", 1, 2);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 1);
}

static void a_model_that_was_done_and_is_rolled_back_has_steps_again(void **state)
{
    (void)state;
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_ESTATE, "MODEL_DONE", 1, 2);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 1);
    tick(60000); /* the lease ends meanwhile: there is nothing to do for this worker */
    assert_int_equal(0, have(AMPCLIENT_OUT_KEEP_ALIVE));
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_EABORTED, "STALE_EPOCH", 2, 1);
    answer_join(2, 1, 2);
    answer_pull(2, 1, 0);
    assert_int_equal(1, done(AMPCLIENT_EVENT_STEP_BEGIN, 0).step.step);
}

static void a_model_that_fails_at_its_floor_is_told_as_unstable(void **state)
{
    (void)state;
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_ESTATE, "MODEL_UNSTABLE", 1, 2);
    assert_string_equal("MODEL_UNSTABLE", done(AMPCLIENT_EVENT_STEP_BEGIN, AMP_EUNSTABLE).error.reason);
    request(AMPCLIENT_EVENT_STEP_BEGIN); /* an operator has set the scale meanwhile */
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_ESTATE, "MODEL_FROZEN", 1, 2);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, AMP_ESTATE);
}

static void a_step_end_that_takes_too_long_lets_the_push_go_on(void **state)
{
    (void)state;
    begin(1, 1);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    uint64_t call = take(AMPCLIENT_OUT_PUSH).call;
    tick(AMPCLIENT_STEP_TIMEOUT_MS);
    (void)done(AMPCLIENT_EVENT_STEP_END, AMP_EDEADLINE);
    assert_int_equal(0, have(AMPCLIENT_OUT_CANCEL) + have(AMPCLIENT_OUT_GET_PUSH_STATE));
    answer_push(call, 1, 1);
    request(AMPCLIENT_EVENT_STEP_END);
    assert_int_equal(AMPCLIENT_CORE_APPLIED, done(AMPCLIENT_EVENT_STEP_END, 0).result.verdict);
    assert_int_equal(0, have(AMPCLIENT_OUT_PUSH));
}

static void an_interrupted_request_leaves_all_as_its_deadline_does(void **state)
{
    (void)state;
    request(AMPCLIENT_EVENT_INTERRUPT); /* nothing waits */
    assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE));
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    uint64_t pull = take(AMPCLIENT_OUT_PULL).call;
    request(AMPCLIENT_EVENT_INTERRUPT);
    request(AMPCLIENT_EVENT_INTERRUPT); /* once more while the stream is being cut */
    assert_int_equal(pull, take(AMPCLIENT_OUT_CANCEL).call);
    assert_int_equal(0, have(AMPCLIENT_OUT_CANCEL) + have(AMPCLIENT_OUT_USER_DONE));
    fail_call(pull, AMP_ECANCELLED, "", 0, 0);
    assert_non_null(strstr(done(AMPCLIENT_EVENT_STEP_BEGIN, AMP_ECANCELLED).error.text, "interrupted"));
    begin(1, 1);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    request(AMPCLIENT_EVENT_INTERRUPT);
    (void)done(AMPCLIENT_EVENT_STEP_END, AMP_ECANCELLED);
    assert_int_equal(0, have(AMPCLIENT_OUT_CANCEL)); /* the push goes on */
    assert_int_equal(AMPCLIENT_STATE_COMPUTING, ampclient_core_state(core));
}

static void after_the_end_of_a_step_was_asked_for_nothing_more_is_pushed(void **state)
{
    (void)state;
    struct amp_error error = {0};
    begin(1, 1);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    request(AMPCLIENT_EVENT_INTERRUPT);
    (void)done(AMPCLIENT_EVENT_STEP_END, AMP_ECANCELLED);
    assert_int_equal(AMP_ESTATE, ampclient_core_push(core, now_ms, 0, first, AMP_F16, &error));
    assert_non_null(strstr(error.text, "step_end again"));
}

static void a_step_that_is_begun_again_has_nothing_of_what_was_pushed(void **state)
{
    (void)state;
    begin(1, 1);
    push(1, second);
    uint64_t call = take(AMPCLIENT_OUT_PUSH).call;
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    assert_int_equal(call, take(AMPCLIENT_OUT_CANCEL).call);
    fail_call(call, AMP_ECANCELLED, "", 0, 0);
    assert_int_equal(0, have(AMPCLIENT_OUT_PULL) + have(AMPCLIENT_OUT_JOIN));
    answer_keep_alive(1, true, NULL); /* nobody else has the rank */
    answer_join(1, 1, 2);             /* the server has no block of this incarnation */
    answer_pull(1, 1, 0);
    assert_int_equal(1, done(AMPCLIENT_EVENT_STEP_BEGIN, 0).step.step);
    count = 0;
    push(0, first);
    request(AMPCLIENT_EVENT_STEP_END);
    (void)take(AMPCLIENT_OUT_PUSH_END);
    assert_int_equal(1, absent_count);
    assert_int_equal(1, absent[0]);
}

static void a_step_that_is_begun_again_takes_no_rank_back(void **state)
{
    (void)state;
    begin(1, 1);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    fail_call(take(AMPCLIENT_OUT_CANCEL).call, AMP_ECANCELLED, "", 0, 0);
    answer_keep_alive(1, false, "another process has the rank");
    assert_string_equal("RANK_TAKEN", done(AMPCLIENT_EVENT_STEP_BEGIN, AMP_EABORTED).error.reason);
    assert_int_equal(0, have(AMPCLIENT_OUT_JOIN));
}

static void a_step_whose_end_failed_has_nothing_of_what_was_pushed(void **state)
{
    (void)state;
    end_in_vain();
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    answer_keep_alive(1, true, NULL);
    answer_join(1, 1, 2);
    answer_pull(1, 1, 0);
    assert_int_equal(1, done(AMPCLIENT_EVENT_STEP_BEGIN, 0).step.step);
}

static void a_step_that_is_begun_again_before_anything_was_pushed_needs_no_join(void **state)
{
    (void)state;
    begin(1, 1);
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    assert_int_equal(0, have(AMPCLIENT_OUT_JOIN));
    answer_pull(1, 1, 0);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
}

static void tell(float loss, const char *name, float value, int code)
{
    struct amp_error error = {0};
    assert_int_equal(code, ampclient_core_loss(core, loss, &error));
    assert_int_equal(code, ampclient_core_metric(core, name, value, &error));
    assert_true(code == 0 || strlen(error.text) > 20);
}

static void loss_and_metrics_go_with_the_trailer_and_are_forgotten_with_the_step(void **state)
{
    (void)state;
    tell(1, "accuracy", 1, AMP_ESTATE); /* no step is begun */
    begin(1, 1);
    tell(1, "accuracy", 0.5f, 0);
    push(0, first);
    tell(NAN, "accuracy", 0.75f, 0); /* the newer ones count */
    push(1, second);
    tell(INFINITY, "größe", 0.25f, 0);
    request(AMPCLIENT_EVENT_STEP_END);
    struct ampclient_output end = take(AMPCLIENT_OUT_PUSH_END);
    assert_true(end.u.end.metrics->has_loss && end.u.end.metrics->loss == INFINITY);
    assert_int_equal(2, end.u.end.metrics->count);
    assert_string_equal("accuracy", end.u.end.metrics->items[0].name);
    assert_true(end.u.end.metrics->items[0].value == 0.75f);
    assert_string_equal("größe", end.u.end.metrics->items[1].name);
    tell(2, "accuracy", 1, AMP_ESTATE); /* the step is being ended */
    answer_push(end.call, 1, 1);
    (void)done(AMPCLIENT_EVENT_STEP_END, 0);
    tell(2, "accuracy", 1, AMP_ESTATE);
    begin(1, 2);
    request(AMPCLIENT_EVENT_STEP_END);
    end = take(AMPCLIENT_OUT_PUSH_END);
    assert_true(!end.u.end.metrics->has_loss && end.u.end.metrics->count == 0);
}

static void a_push_that_begins_again_tells_the_same_loss(void **state)
{
    (void)state;
    begin(1, 1);
    tell(3, "accuracy", 1, 0);
    push(0, first);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    uint64_t old = take(AMPCLIENT_OUT_PUSH_END).call;
    count = 0;
    fail_call(old, AMP_EUNAVAILABLE, "", 0, 0);
    tick(AMPCLIENT_BACKOFF_MS);
    end_with(take(AMPCLIENT_OUT_GET_PUSH_STATE).call, (struct ampclient_ended){0});
    struct ampclient_output end = take(AMPCLIENT_OUT_PUSH_END);
    assert_true(end.u.end.metrics->loss == 3 && end.u.end.metrics->count == 1);
    struct amp_error error;
    request(AMPCLIENT_EVENT_INTERRUPT); /* the user waits no longer, and will end it again */
    (void)done(AMPCLIENT_EVENT_STEP_END, AMP_ECANCELLED);
    assert_int_equal(AMP_ESTATE, ampclient_core_loss(core, 4, &error));
    assert_non_null(strstr(error.text, "step 1 has been ended"));
}

static void nothing_is_told_of_a_step_that_a_rollback_has_voided(void **state)
{
    (void)state;
    begin(1, 1);
    ampclient_core_void_step(core);
    tell(3, "accuracy", 1, 0);
    assert_false(core->push.metrics.has_loss);
}

static void metrics_that_the_server_would_refuse_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "a=b", "a;b", "a\nb", "\xff", "123456789012345678901234567890123"};
    struct amp_error error;
    begin(1, 1);
    assert_int_equal(AMP_EINVAL, ampclient_core_metric(core, NULL, 1, &error));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(AMP_EINVAL, ampclient_core_metric(core, bad[i], 1, &error));
    for (char name[] = "0"; name[0] < '0' + AMPCLIENT_METRICS_MAX; name[0]++)
        assert_int_equal(0, ampclient_core_metric(core, name, 1, &error));
    assert_int_equal(AMP_EINVAL, ampclient_core_metric(core, "one more", 1, &error));
    assert_non_null(strstr(error.text, "one more"));
    assert_int_equal(0, ampclient_core_metric(core, "3", 2, &error));
    assert_int_equal(AMPCLIENT_METRICS_MAX, core->push.metrics.count);
    assert_true(core->push.metrics.items[3].value == 2);
}

static void set_weight(float weight, int code)
{
    struct amp_error error = {0};
    assert_int_equal(code, ampclient_core_weight(core, weight, &error));
    assert_true((code != 0) == (error.text[0] != 0));
}

static void a_weight_counts_from_the_step_whose_first_push_was_not_made(void **state)
{
    (void)state;
    begin(1, 1);
    set_weight(2, 0);
    push(1, second);
    set_weight(3, AMP_ESTATE);
    struct ampclient_output header = take(AMPCLIENT_OUT_PUSH);
    assert_true(header.u.push.weight == 2);
    request(AMPCLIENT_EVENT_STEP_END);
    set_weight(3, AMP_ESTATE);
    answer_push(header.call, 1, 1);
    (void)done(AMPCLIENT_EVENT_STEP_END, 0);
    set_weight(3, 0);
    begin(1, 2);
    push(1, second);
    assert_true(take(AMPCLIENT_OUT_PUSH).u.push.weight == 3);
}

static void set_rate(double lr, int code)
{
    struct amp_error error = {0};
    assert_int_equal(code, ampclient_core_learning_rate(core, lr, &error));
    assert_true((code != 0) == (error.text[0] != 0));
}

static void a_learning_rate_counts_from_the_step_whose_first_push_was_not_made(void **state)
{
    (void)state;
    begin(1, 1);
    set_rate(0.1, 0);
    push(1, second);
    set_rate(0.05, AMP_ESTATE);
    struct ampclient_output header = take(AMPCLIENT_OUT_PUSH);
    assert_true(header.u.push.has_lr && header.u.push.lr == 0.1);
    request(AMPCLIENT_EVENT_STEP_END);
    set_rate(0.05, AMP_ESTATE);
    answer_push(header.call, 1, 1);
    (void)done(AMPCLIENT_EVENT_STEP_END, 0);
    begin(1, 2);
    push(1, second);
    header = take(AMPCLIENT_OUT_PUSH); /* it stays */
    assert_true(header.u.push.has_lr && header.u.push.lr == 0.1);
}

static void no_learning_rate_is_named_before_one_is_given_and_none_out_of_range(void **state)
{
    (void)state;
    const double refused[] = {-1, NAN, INFINITY, -INFINITY, 1e39};
    for (unsigned i = 0; i < sizeof refused / sizeof refused[0]; i++)
        set_rate(refused[i], AMP_EINVAL);
    begin(1, 1);
    push(1, second);
    assert_false(take(AMPCLIENT_OUT_PUSH).u.push.has_lr);
}

static void weights_beyond_what_the_server_takes_are_refused(void **state)
{
    (void)state;
    set_weight(0, 0);
    set_weight(0x1p-60f, 0);
    set_weight(0x1p24f, 0);
    set_weight(-1, AMP_EINVAL);
    set_weight(0x1p-61f, AMP_EINVAL);
    set_weight(0x1p25f, AMP_EINVAL);
    set_weight(NAN, AMP_EINVAL);
    set_weight(INFINITY, AMP_EINVAL);
    begin(1, 1);
    push(1, second);
    assert_true(take(AMPCLIENT_OUT_PUSH).u.push.weight == 0x1p24f);
}

static void accumulated_gradients_go_out_once_as_their_fp32_sum(void **state)
{
    (void)state;
    ampclient_core_free(core);
    make(2);
    begin(1, 1);
    for (unsigned i = 0; i < 10; i++)
        second[i] = 0x3c00; /* 1 */
    push(1, second);
    assert_int_equal(0, have(AMPCLIENT_OUT_PUSH));
    push(1, second);
    assert_int_equal(AMP_F32, take(AMPCLIENT_OUT_PUSH).u.push.dtype);
    assert_int_equal(2, take(AMPCLIENT_OUT_PUSH_BLOCKS).u.blocks.first);
    float scratch[BLOCK];
    size_t size;
    const float *data = ampclient_core_block(core, 2, scratch, &size);
    assert_int_equal(BLOCK * 4, size);
    assert_true(data[0] == 2 && data[9] == 2 && data[10] == 0);
    struct amp_error error = {0};
    assert_int_equal(AMP_ESTATE, ampclient_core_push(core, now_ms, 1, second, AMP_F16, &error));
    memset(second, 0, sizeof second);
}

static void bad_arguments_are_errors_that_say_why(void **state)
{
    (void)state;
    struct amp_error error = {0};
    assert_int_equal(AMP_ESTATE, ampclient_core_push(core, now_ms, 0, first, AMP_F16, &error));
    begin(1, 1);
    assert_int_equal(AMP_ERANGE, ampclient_core_push(core, now_ms, 2, first, AMP_F16, &error));
    assert_int_equal(AMP_EINVAL, ampclient_core_push(core, now_ms, 0, NULL, AMP_F16, &error));
    assert_int_equal(AMP_EINVAL, ampclient_core_push(core, now_ms, 0, first, AMP_F64, &error));
    push(0, first);
    assert_int_equal(AMP_EINVAL, ampclient_core_push(core, now_ms, 1, second, AMP_BF16, &error));
    assert_int_equal(AMP_ESTATE, ampclient_core_push(core, now_ms, 0, first, AMP_F16, &error));
    assert_true(strlen(error.text) > 10);
    request(AMPCLIENT_EVENT_JOIN);
    (void)done(AMPCLIENT_EVENT_JOIN, AMP_ESTATE);
}

/* By then the model may have gone on by more than one step (quorum). */
static void what_one_shard_has_answered_is_the_verdict_where_another_one_has_forgotten_it(void **state)
{
    (void)state;
    ampclient_core_free(core);
    make_with((struct ampclient_core_config){.model = "m", .rank = 1, .world_size = -1, .shards = 2});
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    for (uint32_t k = 0; k < 2; k++)
        answer_pull(1, 1, 0);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
    push(0, first);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    uint64_t one = take(AMPCLIENT_OUT_PUSH).call, other = take(AMPCLIENT_OUT_PUSH).call;
    answer_push(one, 1, 1);
    fail_call(other, AMP_EABORTED, "STALE_STEP", 1, 3);
    assert_int_equal(AMPCLIENT_CORE_APPLIED, done(AMPCLIENT_EVENT_STEP_END, 0).result.verdict);
}

static void headers_of_different_shards_must_agree(void **state)
{
    (void)state;
    ampclient_core_free(core);
    make_with((struct ampclient_core_config){.model = "m", .rank = 1, .world_size = -1, .shards = 2});
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    uint64_t calls[2] = {take(AMPCLIENT_OUT_PULL).call, take(AMPCLIENT_OUT_PULL).call};
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PULL_HEADER, .call = calls[0]};
    event.u.header = (struct ampclient_pull_header){1, 1, 0, 5, 1024, NULL};
    send(&event);
    event.call = calls[1];
    event.u.header.version = 1;
    send(&event);
    assert_int_equal(2, have(AMPCLIENT_OUT_CANCEL));
    fail_call(calls[0], AMP_ECANCELLED, "", 0, 0);
    tick(AMPCLIENT_BACKOFF_MS);
    assert_int_equal(0, have(AMPCLIENT_OUT_PULL)); /* one stream may still write */
    fail_call(calls[1], AMP_ECANCELLED, "", 0, 0);
    assert_int_equal(2, have(AMPCLIENT_OUT_PULL));
}

int main(void)
{
#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_block_goes_out_when_its_parameters_are_pushed),
        TEST(what_is_not_pushed_by_step_end_is_absent),
        TEST(a_block_in_one_piece_is_a_view_and_others_are_gathered_with_zeros),
        TEST(a_push_that_broke_off_asks_what_is_there_and_sends_the_rest),
        TEST(a_process_that_knows_less_than_the_others_is_asked_again),
        TEST(a_process_without_values_is_asked_again_by_who_has_had_them),
        TEST(a_process_that_takes_the_model_for_frozen_is_asked_again_by_who_has_begun_a_step),
        TEST(a_push_that_is_incomplete_by_what_it_was_told_asks_again),
        TEST(pauses_double_up_to_their_bound),
        TEST(after_the_reconnect_timeout_the_user_is_told),
        TEST(a_block_is_sent_again_three_times_and_no_more),
        TEST(a_higher_epoch_rolls_the_step_back),
        TEST(only_the_first_step_after_a_rollback_says_so),
        TEST(a_lease_that_ended_is_mended_and_the_push_begins_anew),
        TEST(keep_alive_goes_out_three_times_a_lease_and_may_end_the_membership),
        TEST(what_a_keep_alive_hears_of_the_incarnation_of_before_does_not_count),
        TEST(after_a_skip_no_blocks_are_asked_for),
        TEST(a_pull_that_broke_off_leaves_no_version_behind),
        TEST(a_model_that_is_done_ends_the_loop),
        TEST(a_model_that_was_done_and_is_rolled_back_has_steps_again),
        TEST(a_model_that_fails_at_its_floor_is_told_as_unstable),
        TEST(a_step_end_that_takes_too_long_lets_the_push_go_on),
        TEST(an_interrupted_request_leaves_all_as_its_deadline_does),
        TEST(after_the_end_of_a_step_was_asked_for_nothing_more_is_pushed),
        TEST(a_step_that_is_begun_again_has_nothing_of_what_was_pushed),
        TEST(a_step_that_is_begun_again_takes_no_rank_back),
        TEST(a_step_whose_end_failed_has_nothing_of_what_was_pushed),
        TEST(a_step_that_is_begun_again_before_anything_was_pushed_needs_no_join),
        TEST(loss_and_metrics_go_with_the_trailer_and_are_forgotten_with_the_step),
        TEST(a_push_that_begins_again_tells_the_same_loss),
        TEST(nothing_is_told_of_a_step_that_a_rollback_has_voided),
        TEST(metrics_that_the_server_would_refuse_are_refused),
        TEST(a_weight_counts_from_the_step_whose_first_push_was_not_made),
        TEST(a_learning_rate_counts_from_the_step_whose_first_push_was_not_made),
        TEST(no_learning_rate_is_named_before_one_is_given_and_none_out_of_range),
        TEST(weights_beyond_what_the_server_takes_are_refused),
        TEST(accumulated_gradients_go_out_once_as_their_fp32_sum),
        TEST(bad_arguments_are_errors_that_say_why),
        TEST(what_one_shard_has_answered_is_the_verdict_where_another_one_has_forgotten_it),
        TEST(headers_of_different_shards_must_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
