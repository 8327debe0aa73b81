/* SetLearningRate: whose steps have the rate, what it outlives, and what refuses it. */
#include "tests/unit/core_fixture.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct ampd_incarnation incarnations[2];

static uint64_t push_step(struct core_host *host, uint64_t step)
{
    uint64_t call = core_push_all(host, step, 0, incarnations[0], 1024);
    (void)core_push_all(host, step, 1, incarnations[1], 1024);
    return call;
}

static double rate_of_step(struct core_host *host, uint64_t step)
{
    const struct core_call *made = core_call(host, push_step(host, step));
    assert_true(made->answered);
    assert_int_equal(0, made->reply.error.code);
    assert_int_equal(step, made->reply.u.step.step);
    return made->reply.u.step.lr;
}

static void assert_set(struct core_host *host, uint64_t call, double lr, uint64_t from_step)
{
    const struct core_call *made = core_call(host, call);
    assert_true(made->answered);
    assert_int_equal(0, made->reply.error.code);
    assert_int_equal(AMPD_REPLY_LR, made->reply.kind);
    assert_true(made->reply.u.lr.lr == lr);
    assert_int_equal(from_step, made->reply.u.lr.from_step);
}

static int setup(void **state)
{
    static struct core_host host;
    core_host_init(&host, 1);
    *state = &host;
    return 0;
}

static int setup_running(void **state)
{
    (void)setup(state);
    core_running(*state, incarnations);
    return 0;
}

static int teardown(void **state)
{
    core_host_close(*state);
    return 0;
}

/* A running model of this specification. */
static void run_model(struct core_host *host, const struct ampd_model_spec *spec)
{
    assert_int_equal(0, core_call(host, core_create(host, spec))->reply.error.code);
    assert_int_equal(0, core_call(host, core_load(host, 1))->reply.error.code);
    incarnations[0] = core_joined(host, core_join(host, "w0", 0));
    incarnations[1] = core_joined(host, core_join(host, "w1", 1));
}

/* ---- whose steps have it ---- */

static void the_open_step_has_the_rate_and_so_have_those_after_it(void **state)
{
    struct core_host *host = *state;
    assert_true(rate_of_step(host, 1) == 1); /* the specification's */
    assert_set(host, core_set_lr(host, 0.25, ""), 0.25, 2);
    assert_true(core_info(host).lr == 0.25);
    assert_true(rate_of_step(host, 2) == 0.25);
    assert_true(rate_of_step(host, 3) == 0.25);
    assert_set(host, core_set_lr(host, 2, ""), 2, 4);
    assert_true(rate_of_step(host, 4) == 2);
}

static void a_verdict_that_is_made_while_the_row_is_stored_comes_behind_it_and_has_the_rate(void **state)
{
    struct core_host *host = *state;
    host->hold_persists = true;
    uint64_t set = core_set_lr(host, 0.25, "");
    uint64_t push = push_step(host, 1);
    host->hold_persists = false;
    core_do_all(host);
    assert_set(host, set, 0.25, 1);
    assert_true(core_call(host, push)->reply.u.step.lr == 0.25);
    assert_int_equal(0, host->act_row.step);
    assert_true(host->row.after.lr == 0.25);
}

static void a_rate_that_is_set_while_a_verdict_is_stored_is_that_of_the_step_after_it(void **state)
{
    struct core_host *host = *state;
    host->hold_persists = true;
    uint64_t push = push_step(host, 1);
    uint64_t set = core_set_lr(host, 0.25, "");
    host->hold_persists = false;
    core_do_all(host);
    assert_true(core_call(host, push)->reply.u.step.lr == 1);
    assert_true(host->act_row.step == 1 && host->act_row.lr == 1);
    assert_set(host, set, 0.25, 2);
    assert_true(rate_of_step(host, 2) == 0.25);
}

static void the_schedule_goes_on_from_the_rate(void **state)
{
    struct core_host *host = *state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.schedule = AMPD_SCHEDULE_STEP;
    spec.step_every = 2;
    spec.step_factor = 0.5;
    run_model(host, &spec);
    const double wanted[] = {1, 1, 0.5, 4, 2};
    for (uint64_t step = 1; step <= 5; step++) {
        if (step == 4)
            assert_set(host, core_set_lr(host, 8, ""), 8, 4); /* half of it by now */
        assert_true(rate_of_step(host, step) == wanted[step - 1]);
    }
}

static void the_rate_says_nothing_about_the_scale(void **state)
{
    struct core_host *host = *state;
    (void)core_set_scale(host, 8, ""); /* of step 2 */
    (void)core_set_lr(host, 0.25, "");
    const struct core_call *first = core_call(host, push_step(host, 1));
    assert_true(first->reply.u.step.scale == 1024);
    assert_true(first->reply.u.step.new_scale == 8);
    assert_true(first->reply.u.step.lr == 0.25);
    (void)core_reset_scale(host, "");
    assert_true(rate_of_step(host, 2) == 0.25);
}

/* ---- the history, and repeated requests ---- */

static void the_row_says_who_why_and_from_when(void **state)
{
    struct core_host *host = *state;
    (void)push_step(host, 1);
    (void)core_set_lr(host, 0.25, "id-1");
    const struct ampd_step_row *row = &host->act_row;
    assert_int_equal(AMPD_ROW_LR, row->kind);
    assert_int_equal(1, row->step);
    assert_int_equal(2, row->from_step); /* which is open */
    assert_true(row->after.lr == 0.25);
    assert_true(row->lr == 1); /* that of the specification, until then */
    assert_int_equal(row->scale_id, row->after.scaler.scale_id);
    assert_string_equal("ann", row->note.actor);
    assert_string_equal("why not", row->note.words);
    assert_string_equal("id-1", row->note.request_id);
    (void)core_set_lr(host, 0.5, "id-2");
    assert_true(row->lr == 0.25 && row->after.lr == 0.5); /* the one set before, though no step had it */
    (void)core_set_scale(host, 8, "");
    assert_true(row->kind == AMPD_ROW_SET && row->lr == 0);
}

static void a_repeated_request_is_answered_and_not_done_again(void **state)
{
    struct core_host *host = *state;
    assert_set(host, core_set_lr(host, 0.25, "id-1"), 0.25, 1);
    (void)core_set_lr(host, 0.5, "id-2");
    assert_set(host, core_set_lr(host, 0.25, "id-1"), 0.25, 1);
    assert_int_equal(2, host->persists[AMPD_PERSIST_ACT]);
    assert_true(rate_of_step(host, 1) == 0.5);
    core_assert_failed(host, core_set_lr(host, 0.5, "id-1"), AMP_EINVAL, "REQUEST_ID_USED", "id-1");
    core_assert_failed(host, core_set_scale(host, 8, "id-1"), AMP_EINVAL, "REQUEST_ID_USED", "id-1");
}

static void a_rollback_brings_the_rate_of_the_checkpoint_back(void **state)
{
    struct core_host *host = *state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.checkpoint_every = 1;
    spec.keep_last = 8;
    run_model(host, &spec);
    (void)core_set_lr(host, 0.5, "");
    (void)push_step(host, 1);
    host->restore_state.carry = host->row.after; /* the checkpoint of step 1 */
    host->restore_state.step = 1;
    (void)core_set_lr(host, 0.25, "late");
    (void)push_step(host, 2);
    uint64_t back = core_rollback(host, 1, 1, "");
    assert_int_equal(0, core_call(host, back)->reply.error.code);
    assert_true(core_info(host).lr == 0.5);
    assert_non_null(strstr(host->logged_before, "the learning rate 0.25"));
    core_assert_failed(host, core_set_lr(host, 0.25, "late"), AMP_ESTATE, "ACT_LOST", "the learning rate");
    (void)core_set_lr(host, 4, "");
    assert_true(host->act_row.lr == 0.5); /* not the one that was rolled back */
}

/* ---- refused ---- */

static void what_is_no_rate_is_refused(void **state)
{
    struct core_host *host = *state;
    const double wrong[] = {0,         -0.0,  -1,      (double)NAN,        (double)INFINITY, (double)-INFINITY,
                            0x1p-1074, 1e-46, 1.4e-45, 2 * (double)FLT_MAX};
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        core_assert_failed(host, core_set_lr(host, wrong[i], ""), AMP_EINVAL, "INVALID_FIELD",
                           "from 1.4013e-45 to 3.40282e+38");
    assert_int_equal(0, host->persists[AMPD_PERSIST_ACT]);
    assert_set(host, core_set_lr(host, (double)FLT_MAX, ""), (double)FLT_MAX, 1);
    assert_set(host, core_set_lr(host, 1.4013e-45, ""), 1.4013e-45, 1);
}

static void a_model_whose_workers_give_the_rate_is_refused(void **state)
{
    struct core_host *host = *state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.schedule = AMPD_SCHEDULE_WORKER;
    run_model(host, &spec);
    core_assert_failed(host, core_set_lr(host, 0.25, ""), AMP_ESTATE, "WORKERS_GIVE_RATE", "in the workers");
}

static void a_model_that_is_done_or_not_there_is_refused(void **state)
{
    struct core_host *host = *state;
    struct ampd_model_spec spec;
    core_assert_failed(host, core_set_lr(host, 0.25, ""), AMP_ENOTFOUND, "MODEL_NOT_FOUND", "create it");
    core_spec(&spec, 2);
    spec.max_steps = 1;
    run_model(host, &spec);
    (void)push_step(host, 1);
    core_assert_failed(host, core_set_lr(host, 0.25, ""), AMP_ESTATE, "MODEL_DONE", "step 1");
}

#define RUNNING(test) cmocka_unit_test_setup_teardown(test, setup_running, teardown)
#define EMPTY(test)   cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUNNING(the_open_step_has_the_rate_and_so_have_those_after_it),
        RUNNING(a_verdict_that_is_made_while_the_row_is_stored_comes_behind_it_and_has_the_rate),
        RUNNING(a_rate_that_is_set_while_a_verdict_is_stored_is_that_of_the_step_after_it),
        EMPTY(the_schedule_goes_on_from_the_rate),
        RUNNING(the_rate_says_nothing_about_the_scale),
        RUNNING(the_row_says_who_why_and_from_when),
        RUNNING(a_repeated_request_is_answered_and_not_done_again),
        EMPTY(a_rollback_brings_the_rate_of_the_checkpoint_back),
        RUNNING(what_is_no_rate_is_refused),
        EMPTY(a_model_whose_workers_give_the_rate_is_refused),
        EMPTY(a_model_that_is_done_or_not_there_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
