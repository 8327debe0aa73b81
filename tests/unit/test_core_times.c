/* Where the time between two decisions goes: five parts that add up to it, from the times that events bring. */
#include "server/core/model/step_times.h"
#include "tests/unit/core_fixture.h"

#include <string.h>

static struct core_host host;
static struct ampd_incarnation incarnations[2];

static int setup(void **state)
{
    (void)state;
    core_host_init(&host, 7);
    host.utc_us = 100;
    core_running(&host, incarnations);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    core_host_close(&host);
    return 0;
}

static void assert_times(uint64_t apply, uint64_t pull, uint64_t wait, uint64_t push, uint64_t vote)
{
    const uint64_t wanted[AMPD_STEP_TIMES] = {apply, pull, wait, push, vote};
    for (int i = 0; i < AMPD_STEP_TIMES; i++)
        assert_int_equal(wanted[i], host.row.times_us[i]);
}

static uint64_t pull_of(uint64_t step, uint32_t rank)
{
    struct ampd_event event = {.type = AMPD_EVENT_PULL,
                               .call = ++host.last_call,
                               .u.pull = {.model = "model",
                                          .by = AMPD_PULL_STEP,
                                          .number = step,
                                          .has_worker = true,
                                          .rank = rank,
                                          .incarnation = incarnations[rank]}};
    core_event(&host, &event);
    assert_true(core_call(&host, event.call)->granted);
    return event.call;
}

static void pull(uint64_t step, uint32_t rank, int64_t served_us)
{
    uint64_t call = pull_of(step, rank);
    host.utc_us = served_us;
    core_close_call(&host, call);
}

static void push_rest(uint64_t call, float value)
{
    for (uint64_t b = 0; b < 3; b++)
        core_push_block(&host, call, b, value);
    core_push_end(&host, call, NULL, 0);
}

/* Step 1 is decided at 1000, and can be pulled at 1300. */
static void first_step(void)
{
    host.utc_us = 900;
    (void)core_push_all(&host, 1, 0, incarnations[0], 1);
    host.utc_us = 1000;
    host.hold_persists = true;
    (void)core_push_all(&host, 1, 1, incarnations[1], 1);
    host.utc_us = 1300;
    host.hold_persists = false;
    core_do_all(&host);
    assert_int_equal(1, host.row.step);
    assert_int_equal(1000, host.row.at_us);
}

static void decide_by(uint64_t step, int64_t at_us)
{
    host.utc_us = at_us;
    for (uint32_t r = 0; r < 2; r++)
        (void)core_push_all(&host, step, r, incarnations[r], 1);
    assert_int_equal(step, host.row.step);
}

static void each_part_ends_when_what_it_waits_for_has_come(void **state)
{
    (void)state;
    first_step();
    assert_times(0, 0, 0, 0, 0); /* nothing was decided before it */
    pull(2, 0, 1400);
    pull(2, 1, 1550);
    host.utc_us = 2000;
    uint64_t first = core_push_header(&host, 2, 0, incarnations[0]);
    host.utc_us = 2100;
    push_rest(first, 1);
    host.utc_us = 2200;
    uint64_t last = core_push_header(&host, 2, 1, incarnations[1]);
    host.utc_us = 2600;
    host.hold_jobs = true;
    push_rest(last, 1);
    host.utc_us = 2700;
    host.hold_jobs = false;
    core_do_all(&host);
    assert_int_equal(2, host.row.step);
    assert_times(300, 250, 450, 600, 100);
    assert_int_equal(1700, host.row.at_us - 1000);
}

static void a_worker_that_pulls_late_takes_the_wait_of_who_has_pushed(void **state)
{
    (void)state;
    first_step();
    pull(2, 0, 1400);
    host.utc_us = 1500;
    uint64_t first = core_push_header(&host, 2, 0, incarnations[0]);
    pull(2, 1, 2300); /* after the first push began */
    push_rest(first, 1);
    host.utc_us = 2400;
    (void)core_push_all(&host, 2, 1, incarnations[1], 1);
    assert_times(300, 1000, 0, 100, 0);
}

static void pulls_of_others_of_other_versions_and_behind_the_own_push_do_not_count(void **state)
{
    (void)state;
    first_step();
    pull(2, 0, 1400);
    uint64_t onlooker = core_pull_step(&host, 1, 2), latest = core_pull_latest(&host), slow = pull_of(2, 0);
    host.utc_us = 1700;
    core_close_call(&host, onlooker);
    core_close_call(&host, latest);
    host.utc_us = 1800;
    (void)core_push_all(&host, 2, 0, incarnations[0], 1);
    host.utc_us = 1900;
    core_close_call(&host, slow);
    host.utc_us = 2000;
    (void)core_push_all(&host, 2, 1, incarnations[1], 1);
    assert_times(300, 100, 400, 200, 0);
}

static void a_skipped_step_is_split_too_and_what_follows_it(void **state)
{
    (void)state;
    first_step();
    host.utc_us = 1500;
    (void)core_push_all(&host, 2, 0, incarnations[0], (float)(1 / 0.0));
    host.utc_us = 1600;
    (void)core_push_all(&host, 2, 1, incarnations[1], 1);
    assert_int_equal(AMPD_VERDICT_SKIPPED_OVERFLOW, host.row.verdict);
    assert_times(300, 0, 200, 100, 0);
    pull(3, 0, 1650);
    decide_by(3, 1700);
    assert_times(0, 50, 50, 0, 0);
}

static void a_clock_that_is_set_back_takes_no_time_and_the_next_step_is_whole_again(void **state)
{
    (void)state;
    first_step();
    decide_by(2, 500);
    assert_times(0, 0, 0, 0, 0);
    pull(3, 0, 520);
    decide_by(3, 600);
    assert_times(0, 20, 80, 0, 0);
}

static void the_first_step_of_an_epoch_has_no_times(void **state)
{
    (void)state;
    first_step();
    decide_by(2, 1500);
    uint64_t call = core_rollback(&host, 1, 0, "");
    assert_int_equal(0, core_call(&host, call)->reply.error.code);
    for (uint32_t r = 0; r < 2; r++)
        incarnations[r] = core_joined(&host, core_join(&host, r == 0 ? "w0" : "w1", (int32_t)r));
    decide_by(1, 2500);
    assert_int_equal(2, host.row.epoch);
    assert_times(0, 0, 0, 0, 0);
    pull(2, 1, 2600);
    decide_by(2, 2700);
    assert_times(0, 100, 100, 0, 0);
}

static void a_worker_that_joins_again_opens_a_try_and_what_the_other_had_pushed_counts(void **state)
{
    (void)state;
    first_step();
    host.utc_us = 1500;
    (void)core_push_all(&host, 2, 0, incarnations[0], 1);
    host.utc_us = 1600;
    incarnations[1] = core_joined(&host, core_join(&host, "w1", 1));
    host.utc_us = 1900;
    (void)core_push_all(&host, 2, 1, incarnations[1], 1);
    assert_int_equal(2, host.row.tries);
    assert_times(300, 0, 200, 400, 0);
}

/* ---- the function alone ---- */

static void assert_split(struct ampd_step_moments moments, const uint64_t wanted[AMPD_STEP_TIMES])
{
    uint64_t times_us[AMPD_STEP_TIMES], sum = 0;
    ampd_step_times(&moments, times_us);
    for (int i = 0; i < AMPD_STEP_TIMES; i++) {
        assert_int_equal(wanted[i], times_us[i]);
        sum += times_us[i];
    }
    bool known = moments.before > 0 && moments.decided > moments.before;
    assert_int_equal(known ? moments.decided - moments.before : 0, sum);
}

static void parts_are_never_negative_and_add_up_whatever_the_moments_are(void **state)
{
    (void)state;
    static const struct {
        struct ampd_step_moments moments;
        uint64_t wanted[AMPD_STEP_TIMES];
    } cases[] = {
        {{10, 20, 40, 70, 110, 160}, {10, 20, 30, 40, 50}},
        {{10, 0, 0, 0, 0, 160}, {0, 0, 0, 0, 150}},         /* nothing in between is known */
        {{10, 20, 0, 70, 0, 160}, {10, 0, 50, 0, 90}},      /* not all is */
        {{10, 70, 40, 20, 110, 160}, {60, 0, 0, 40, 50}},   /* in another order */
        {{10, 500, 600, 70, 900, 160}, {150, 0, 0, 0, 0}},  /* behind the decision */
        {{10, -5, 20, 30, 40, 50}, {0, 10, 10, 10, 10}},    /* before 1970 */
        {{10, 20, 40, 70, 110, 10}, {0, 0, 0, 0, 0}},       /* no time has passed */
        {{200, 20, 40, 70, 110, 160}, {0, 0, 0, 0, 0}},     /* less than none */
        {{0, 20, 40, 70, 110, 160}, {0, 0, 0, 0, 0}},       /* since when is not known */
        {{1, INT64_MAX, 3, 4, 5, INT64_MAX}, {INT64_MAX - 1, 0, 0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_split(cases[i].moments, cases[i].wanted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_part_ends_when_what_it_waits_for_has_come, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_that_pulls_late_takes_the_wait_of_who_has_pushed, setup, teardown),
        cmocka_unit_test_setup_teardown(pulls_of_others_of_other_versions_and_behind_the_own_push_do_not_count, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_skipped_step_is_split_too_and_what_follows_it, setup, teardown),
        cmocka_unit_test_setup_teardown(a_clock_that_is_set_back_takes_no_time_and_the_next_step_is_whole_again, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(the_first_step_of_an_epoch_has_no_times, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_that_joins_again_opens_a_try_and_what_the_other_had_pushed_counts,
                                        setup, teardown),
        cmocka_unit_test(parts_are_never_negative_and_add_up_whatever_the_moments_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
