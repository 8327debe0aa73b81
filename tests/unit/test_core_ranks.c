/* Who holds a rank, whose calls are refused, and what the log and the status are told of that. */
#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "tests/unit/core_fixture.h"

#include <string.h>

#define LOG_AGAIN_MS 10000 /* as in ranks.c */

static struct core_host host;
static struct ampd_incarnation incarnations[2];

static int setup(void **state)
{
    (void)state;
    core_host_init(&host, 7);
    core_running(&host, incarnations);
    core_tick(&host, host.now_ms + LOG_AGAIN_MS); /* the Joins' lines are of before */
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    core_host_close(&host);
    return 0;
}

/* A Join of rank 0 by another process. */
static struct ampd_incarnation taken(uint64_t instance)
{
    host.instance = instance;
    struct ampd_incarnation incarnation = core_joined(&host, core_join(&host, "w0", 0));
    host.instance = 1;
    return incarnation;
}

static const struct core_call *keep_alive(uint32_t rank, struct ampd_incarnation incarnation)
{
    static uint64_t call = 1000;
    struct ampd_event event = {.type = AMPD_EVENT_KEEP_ALIVE, .call = --call, .u.worker = {"model", rank, incarnation}};
    core_event(&host, &event);
    return core_call(&host, call);
}

static struct ampd_worker_info worker(uint32_t rank)
{
    struct ampd_worker_info info;
    ampd_core_worker(host.core, 0, rank, host.now_ms, &info);
    return info;
}

/* ---- two processes under one rank ---- */

static void the_older_of_two_processes_is_told_who_has_taken_its_rank(void **state)
{
    (void)state;
    uint64_t open = core_push_all(&host, 1, 0, incarnations[0], 1);
    struct ampd_incarnation newer = taken(2);
    core_assert_failed(&host, open, AMP_EABORTED, "RANK_TAKEN", "rank 0 was taken by w0 at here:1, 0 s ago");
    core_tick(&host, host.now_ms + 3000);
    core_assert_failed(&host, core_push_header(&host, 1, 0, incarnations[0]), AMP_EABORTED, "RANK_TAKEN", "3 s ago");
    core_assert_failed(&host, core_push_header(&host, 1, 0, incarnations[0]), AMP_EABORTED, "RANK_TAKEN",
                       "stop one of them, or give it another RANK and worker_name");
    core_assert_failed(&host, core_push_state(&host, 1, 1, 0, incarnations[0]), AMP_EABORTED, "RANK_TAKEN", "w0");
    const struct core_call *asked = keep_alive(0, incarnations[0]);
    assert_false(asked->reply.u.keep_alive.valid);
    assert_non_null(strstr(asked->taken_by, "rank 0 was taken by w0"));
    asked = keep_alive(0, newer);
    assert_true(asked->reply.u.keep_alive.valid);
    assert_string_equal("", asked->taken_by);
}

static void a_process_that_joins_again_has_taken_nothing_from_itself(void **state)
{
    (void)state;
    (void)taken(1);
    core_assert_failed(&host, core_push_header(&host, 1, 0, incarnations[0]), AMP_EABORTED, "FENCED", "join again");
    assert_string_equal("", keep_alive(0, incarnations[0])->taken_by);
    assert_int_equal(0, worker(0).replacements);
}

static void who_has_taken_a_rank_may_join_again_and_has_it_still_taken(void **state)
{
    (void)state;
    struct ampd_incarnation newer = taken(2);
    (void)taken(2);
    core_assert_failed(&host, core_push_header(&host, 1, 0, incarnations[0]), AMP_EABORTED, "RANK_TAKEN", "w0");
    core_assert_failed(&host, core_push_header(&host, 1, 0, newer), AMP_EABORTED, "FENCED", "join again");
}

static void a_join_that_names_no_process_counts_as_of_another(void **state)
{
    (void)state;
    struct ampd_incarnation first = taken(0);
    (void)taken(0);
    core_assert_failed(&host, core_push_header(&host, 1, 0, first), AMP_EABORTED, "RANK_TAKEN", "w0");
    assert_int_equal(2, worker(0).replacements);
}

static void a_rank_whose_lease_had_ended_is_taken_but_not_replaced(void **state)
{
    (void)state;
    core_tick(&host, host.now_ms + AMPD_LEASE_MS);
    (void)taken(2);
    core_assert_failed(&host, core_push_header(&host, 1, 0, incarnations[0]), AMP_EABORTED, "RANK_TAKEN", "w0");
    assert_int_equal(0, worker(0).replacements);
}

static void a_lease_that_has_ended_says_how_it_is_kept(void **state)
{
    (void)state;
    core_tick(&host, host.now_ms + AMPD_LEASE_MS);
    core_assert_failed(&host, core_push_header(&host, 1, 0, incarnations[0]), AMP_EABORTED, "FENCED",
                       "send KeepAlive at least every 10000 ms");
}

/* ---- calls of who holds the rank no more ---- */

static uint64_t pull(uint32_t rank, struct ampd_incarnation incarnation, uint64_t step)
{
    static uint64_t call = 800;
    struct ampd_event event = {.type = AMPD_EVENT_PULL, .call = --call};
    event.u.pull = (struct ampd_event_pull){.model = "model",
                                            .by = AMPD_PULL_STEP,
                                            .epoch = 1,
                                            .number = step,
                                            .has_worker = true,
                                            .rank = rank,
                                            .incarnation = incarnation};
    core_event(&host, &event);
    return call;
}

static int setup_shrink(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_host_init(&host, 7);
    core_spec(&spec, 2);
    spec.on_loss = AMPD_ON_LOSS_SHRINK;
    spec.min_workers = 1;
    assert_int_equal(0, core_call(&host, core_create(&host, &spec))->reply.error.code);
    assert_int_equal(0, core_call(&host, core_load(&host, 1))->reply.error.code);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    incarnations[1] = core_joined(&host, core_join(&host, "w1", 1));
    (void)core_push_all(&host, 1, 0, incarnations[0], 1); /* step 1 had opened with rank 0 alone */
    assert_int_equal(2, core_info(&host).step);
    return 0;
}

/* Rank 1 is silent until its lease has ended; rank 0 is not. */
static void let_rank_1_end(void)
{
    for (unsigned i = 0; i < 3; i++) {
        core_tick(&host, host.now_ms + AMPD_LEASE_MS / 3);
        (void)keep_alive(0, incarnations[0]);
    }
}

static void a_rank_whose_lease_has_ended_is_aborted_at_each_call_until_it_joins(void **state)
{
    (void)state;
    let_rank_1_end();
    for (uint64_t step = 2; step < 5; step++) {
        (void)core_push_all(&host, step, 0, incarnations[0], 1);
        assert_int_equal(step, core_info(&host).decided_step);
        core_assert_failed(&host, core_push_header(&host, step, 1, incarnations[1]), AMP_EABORTED, "FENCED", "lease");
        core_assert_failed(&host, core_push_header(&host, step + 1, 1, incarnations[1]), AMP_EABORTED, "FENCED",
                           "lease");
        core_assert_failed(&host, core_push_state(&host, 1, step, 1, incarnations[1]), AMP_EABORTED, "FENCED", "lease");
        core_assert_failed(&host, core_push_state(&host, 1, step + 1, 1, incarnations[1]), AMP_EABORTED, "FENCED",
                           "lease");
        core_assert_failed(&host, pull(1, incarnations[1], step + 1), AMP_EABORTED, "FENCED", "lease");
        assert_false(keep_alive(1, incarnations[1])->reply.u.keep_alive.valid);
    }
    struct ampd_incarnation again = core_joined(&host, core_join(&host, "w1", 1));
    core_assert_held(&host, core_push_header(&host, 5, 1, again)); /* in with the step after it */
    assert_true(core_call(&host, pull(1, again, 5))->granted);
}

static void a_push_that_has_counted_gets_its_result_also_when_the_lease_has_ended(void **state)
{
    (void)state;
    (void)core_push_all(&host, 2, 0, incarnations[0], 1);
    (void)core_push_all(&host, 2, 1, incarnations[1], 1);
    let_rank_1_end();
    uint64_t again = core_push_header(&host, 2, 1, incarnations[1]);
    assert_int_equal(0, core_call(&host, again)->reply.error.code);
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(&host, again)->reply.u.step.verdict);
    core_assert_failed(&host, core_push_header(&host, 3, 1, incarnations[1]), AMP_EABORTED, "FENCED", "lease");
}

static void calls_that_wait_end_when_their_worker_has_lost_its_rank(void **state)
{
    (void)state;
    uint64_t waits = pull(1, incarnations[1], 3);
    uint64_t ahead = core_push_header(&host, 3, 1, incarnations[1]);
    core_assert_held(&host, waits);
    core_assert_held(&host, ahead);
    let_rank_1_end();
    core_assert_failed(&host, waits, AMP_EABORTED, "FENCED", "lease");
    core_assert_failed(&host, ahead, AMP_EABORTED, "FENCED", "lease");
}

static void a_call_that_names_a_rank_that_nobody_has_joined_is_aborted(void **state)
{
    (void)state;
    core_assert_failed(&host, pull(1, (struct ampd_incarnation){0, 0}, 1), AMP_EABORTED, "FENCED", "join again");
    core_assert_failed(&host, pull(2, incarnations[1], 1), AMP_EINVAL, "RANK", "world_size");
    assert_true(core_call(&host, pull(1, incarnations[1], 1))->granted);
}

static void an_incarnation_that_is_guessed_is_refused(void **state)
{
    (void)state;
    struct ampd_event join = {
        .type = AMPD_EVENT_JOIN,
        .call = 901,
        .u.join = {.model = "model", .worker = "w0", .rank = 0, .instance = 1, .random = 0xfffff123456789ab}};
    core_event(&host, &join);
    struct ampd_incarnation given = core_joined(&host, 901), guess = given;
    assert_int_equal((uint64_t)0x123456789ab & AMPD_INCARNATION_SECRET_MAX,
                     given.counter >> AMPD_INCARNATION_NUMBER_BITS);
    guess.counter ^= (uint64_t)1 << AMPD_INCARNATION_NUMBER_BITS;
    core_assert_failed(&host, core_push_header(&host, 1, 0, guess), AMP_EABORTED, "FENCED", "another incarnation");
    core_assert_failed(&host, core_push_state(&host, 1, 1, 0, guess), AMP_EABORTED, "FENCED", "another incarnation");
    core_assert_failed(&host, pull(0, guess, 1), AMP_EABORTED, "FENCED", "another incarnation");
    assert_false(keep_alive(0, guess)->reply.u.keep_alive.valid);
    struct ampd_event leave = {.type = AMPD_EVENT_LEAVE, .call = 902, .u.worker = {"model", 0, guess}};
    core_event(&host, &leave);
    core_assert_failed(&host, 902, AMP_EABORTED, "FENCED", "another incarnation");
    assert_int_equal(5, worker(0).fences);
    (void)keep_alive(0, incarnations[0]); /* of a worker of before: it has guessed nothing */
    assert_int_equal(5, worker(0).fences);
    assert_true(core_call(&host, core_push_header(&host, 1, 0, given))->granted);
    struct ampd_incarnation next = taken(1); /* of a smaller secret, and newer all the same */
    assert_true(ampd_incarnation_newer(next, given));
}

/* ---- what is told ---- */

static void joins_replacements_leaves_and_fences_are_counted(void **state)
{
    (void)state;
    assert_int_equal(1, worker(0).joins);
    struct ampd_incarnation newer = taken(2);
    (void)core_push_header(&host, 1, 0, incarnations[0]);
    (void)core_push_state(&host, 1, 1, 0, incarnations[0]);
    struct ampd_event leave = {.type = AMPD_EVENT_LEAVE, .call = 900, .u.worker = {"model", 0, newer}};
    core_event(&host, &leave);
    struct ampd_worker_info info = worker(0);
    assert_int_equal(2, info.joins);
    assert_int_equal(1, info.replacements);
    assert_int_equal(1, info.leaves);
    assert_int_equal(2, info.fences);
    assert_string_equal("here:1", info.peer);
    assert_int_equal(0, worker(1).fences);
}

static void a_rank_gets_one_line_of_the_log_in_ten_seconds_with_what_was_left_out(void **state)
{
    (void)state;
    unsigned before = host.logged_count;
    (void)taken(2);
    assert_int_equal(before + 1, host.logged_count);
    assert_non_null(strstr(host.logged, "has taken it from another process"));
    for (unsigned i = 0; i < 7; i++) {
        (void)core_push_header(&host, 1, 0, incarnations[0]);
        (void)taken(3 + i);
    }
    assert_int_equal(before + 1, host.logged_count);
    core_tick(&host, host.now_ms + LOG_AGAIN_MS);
    assert_int_equal(before + 2, host.logged_count);
    assert_non_null(strstr(host.logged, "7 more Joins, of these 7 by another process"));
    assert_non_null(strstr(host.logged, "7 refused calls"));
    core_tick(&host, host.now_ms + LOG_AGAIN_MS - 1);
    assert_int_equal(before + 2, host.logged_count); /* nothing more has come */
}

int main(void)
{
#define TEST_OF(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define SHRINK(name)  cmocka_unit_test_setup_teardown(name, setup_shrink, teardown)
    const struct CMUnitTest tests[] = {
        TEST_OF(the_older_of_two_processes_is_told_who_has_taken_its_rank),
        TEST_OF(a_process_that_joins_again_has_taken_nothing_from_itself),
        TEST_OF(who_has_taken_a_rank_may_join_again_and_has_it_still_taken),
        TEST_OF(a_join_that_names_no_process_counts_as_of_another),
        TEST_OF(a_rank_whose_lease_had_ended_is_taken_but_not_replaced),
        TEST_OF(a_lease_that_has_ended_says_how_it_is_kept),
        SHRINK(a_rank_whose_lease_has_ended_is_aborted_at_each_call_until_it_joins),
        SHRINK(a_push_that_has_counted_gets_its_result_also_when_the_lease_has_ended),
        SHRINK(calls_that_wait_end_when_their_worker_has_lost_its_rank),
        TEST_OF(a_call_that_names_a_rank_that_nobody_has_joined_is_aborted),
        TEST_OF(an_incarnation_that_is_guessed_is_refused),
        TEST_OF(joins_replacements_leaves_and_fences_are_counted),
        TEST_OF(a_rank_gets_one_line_of_the_log_in_ten_seconds_with_what_was_left_out),
    };
#undef TEST_OF
#undef SHRINK
    return cmocka_run_group_tests(tests, NULL, NULL);
}
