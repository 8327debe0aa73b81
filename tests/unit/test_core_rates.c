/* Schedule WORKER: the learning rate of a step is the one that its pushes name. */
#include "server/core/base/model.h"
#include "server/core/coordinator/coord.h"
#include "tests/unit/core_fixture.h"

#include <float.h>
#include <math.h>
#include <string.h>

static struct core_host host;
static struct ampd_incarnation incarnations[3];

static void worker_spec(struct ampd_model_spec *spec, uint32_t world_size)
{
    core_spec(spec, world_size);
    spec->schedule = AMPD_SCHEDULE_WORKER;
}

static void begin(const struct ampd_model_spec *spec)
{
    static const char *const names[] = {"w0", "w1", "w2"};
    core_host_init(&host, 7);
    assert_int_equal(0, core_call(&host, core_create(&host, spec))->reply.error.code);
    assert_int_equal(0, core_call(&host, core_load(&host, 1))->reply.error.code);
    for (uint32_t r = 0; r < spec->world_size; r++)
        incarnations[r] = core_joined(&host, core_join(&host, names[r], (int32_t)r));
}

static int setup(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    worker_spec(&spec, 2);
    begin(&spec);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    core_host_close(&host);
    return 0;
}

static uint64_t push(uint64_t step, uint32_t rank, double lr, float value)
{
    host.lr = lr;
    return core_push_all(&host, step, rank, incarnations[rank], value);
}

static float pulled(uint32_t parameter)
{
    uint64_t call = core_pull_latest(&host);
    const struct ampd_pull_grant *grant = &core_call(&host, call)->pull;
    assert_true(core_call(&host, call)->granted);
    float value;
    memcpy(&value, grant->memory + grant->layout->starts[parameter] * sizeof(float), sizeof value);
    core_close_call(&host, call);
    return value;
}

static void a_step_has_the_rate_that_its_pushes_name(void **state)
{
    (void)state;
    (void)push(1, 0, 0.25, 1024);
    uint64_t call = push(1, 1, 0.25, 1024);
    assert_true(core_call(&host, call)->reply.u.step.lr == 0.25);
    assert_true(host.row.lr == 0.25);
    assert_true(pulled(0) == 0.75f);
    (void)push(2, 1, 0.125, 1024);
    call = push(2, 0, 0.125, 1024);
    assert_true(core_call(&host, call)->reply.u.step.lr == 0.125);
    assert_true(pulled(0) == 0.625f);
    (void)push(3, 1, 0, 1024);
    call = push(3, 0, -0.0, 1024); /* which is 0 */
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(&host, call)->reply.u.step.verdict);
    assert_true(host.row.lr == 0 && !signbit(host.row.lr));
    assert_true(pulled(0) == 0.625f);
}

static void a_skipped_step_has_no_rate(void **state)
{
    (void)state;
    (void)push(1, 0, 0.25, INFINITY);
    uint64_t call = push(1, 1, 0.25, 1024);
    assert_int_equal(AMPD_VERDICT_SKIPPED_OVERFLOW, core_call(&host, call)->reply.u.step.verdict);
    assert_true(host.row.lr == 0);
}

static void the_factor_of_a_group_multiplies_the_rate(void **state)
{
    (void)state;
    struct ampd_parameter_spec parameters[2];
    struct ampd_model_spec spec;
    worker_spec(&spec, 1);
    memcpy(parameters, spec.parameters, sizeof parameters);
    parameters[1].group = 1;
    spec.parameters = parameters;
    spec.groups_count = 2;
    spec.groups[0].lr_scale = 1;
    spec.groups[1].lr_scale = 0.5;
    begin(&spec);
    (void)push(1, 0, 0.25, 1024);
    assert_true(host.row.lr == 0.25);
    assert_true(pulled(0) == 0.75f && pulled(1) == 0.875f);
}

static void the_greatest_rate_is_finite_with_every_factor(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    worker_spec(&spec, 1);
    spec.groups_count = 1;
    spec.groups[0].lr_scale = (double)FLT_MAX;
    begin(&spec);
    (void)push(1, 0, (double)FLT_MAX, 0);
    assert_int_equal(AMPD_VERDICT_APPLIED, host.row.verdict);
    assert_true(pulled(0) == 1);
}

static void a_push_without_a_rate_or_with_one_out_of_range_is_refused(void **state)
{
    (void)state;
    struct ampd_event_push header = {.model = "model",
                                     .epoch = 1,
                                     .step = 1,
                                     .incarnation = incarnations[0],
                                     .scale_id = 1,
                                     .dtype = AMP_F32,
                                     .weight = 1};
    core_assert_failed(&host, core_push_event(&host, &header), AMP_EINVAL, "LEARNING_RATE", "schedule WORKER");
    const double rates[] = {NAN, INFINITY, -INFINITY, -1, -DBL_MIN, 1e39};
    header.has_lr = true;
    for (unsigned i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        header.lr = rates[i];
        core_assert_failed(&host, core_push_event(&host, &header), AMP_EINVAL, "LEARNING_RATE", "finite");
    }
    header.lr = (double)FLT_MAX;
    assert_true(core_call(&host, core_push_event(&host, &header))->granted);
}

static void a_rate_with_another_schedule_is_refused(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    begin(&spec);
    struct ampd_event_push header = {.model = "model",
                                     .epoch = 1,
                                     .step = 1,
                                     .incarnation = incarnations[0],
                                     .scale_id = 1,
                                     .dtype = AMP_F32,
                                     .weight = 1,
                                     .has_lr = true};
    core_assert_failed(&host, core_push_event(&host, &header), AMP_EINVAL, "LEARNING_RATE", "leave it out");
}

static void a_warm_up_before_the_rates_of_workers_is_refused(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    worker_spec(&spec, 1);
    spec.warmup_steps = 3;
    core_host_init(&host, 7);
    core_assert_failed(&host, core_create(&host, &spec), AMP_EINVAL, "INVALID_SPEC", "schedule.warmup_steps");
}

static void a_push_of_another_rate_than_a_whole_one_is_refused_and_may_come_again(void **state)
{
    (void)state;
    uint64_t first = push(1, 0, 0.1, 1024);
    uint64_t second = push(1, 1, nextafter(0.1, 1), 1024);
    core_assert_failed(&host, second, AMP_EINVAL, "LEARNING_RATE", "0.10000000000000002 of rank 1");
    assert_non_null(strstr(core_call(&host, second)->reply.error.text, "0.10000000000000001 of rank 0"));
    assert_false(core_call(&host, first)->answered);
    assert_int_equal(0, core_info(&host).decided_step);
    uint64_t asked = core_push_state(&host, 1, 1, 1, incarnations[1]);
    assert_int_equal(0, core_call(&host, asked)->reply.u.push_state.ranges_count); /* nothing of it is kept */
    second = push(1, 1, 0.1, 2048);
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(&host, second)->reply.u.step.verdict);
    assert_true(core_call(&host, first)->answered && host.row.lr == 0.1 && host.row.norm == sqrt(2.25 * 110));
}

static void a_worker_that_joins_anew_takes_its_rate_back(void **state)
{
    (void)state;
    uint64_t first = push(1, 0, 0.5, 1024);
    core_assert_failed(&host, push(1, 1, 0.25, 1024), AMP_EINVAL, "LEARNING_RATE", "rank 0");
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    assert_int_equal(AMP_EABORTED, core_call(&host, first)->reply.error.code);
    (void)push(1, 1, 0.25, 1024);
    (void)push(1, 0, 0.25, 1024);
    assert_int_equal(1, core_info(&host).decided_step);
    assert_true(host.row.lr == 0.25);
}

static void a_resumed_push_keeps_its_rate(void **state)
{
    (void)state;
    host.lr = 0.5;
    uint64_t cut = core_push_header(&host, 1, 0, incarnations[0]);
    core_push_block(&host, cut, 0, 1024);
    core_close_call(&host, cut);
    host.lr = 0.25;
    core_assert_failed(&host, core_push_header(&host, 1, 0, incarnations[0]), AMP_EINVAL, "LEARNING_RATE", "resumed");
}

static void nothing_is_summed_before_the_rates_agree(void **state)
{
    (void)state;
    host.hold_jobs = true;
    (void)push(1, 0, 0.5, 1024);
    host.lr = 0.5;
    uint64_t last = core_push_header(&host, 1, 1, incarnations[1]);
    for (uint64_t b = 0; b < 3; b++)
        core_push_block(&host, last, b, 1024);
    assert_int_equal(0, host.tasks_count);
    core_push_end(&host, last, NULL, 0);
    assert_int_equal(3, host.tasks_count);
    host.hold_jobs = false;
    core_do_all(&host);
    assert_true(host.row.lr == 0.5);
}

static void who_is_late_for_a_quorum_is_late_with_any_rate(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    worker_spec(&spec, 3);
    spec.sync = AMPD_SYNC_QUORUM;
    spec.quorum = 2;
    begin(&spec);
    host.hold_persists = true; /* the verdict */
    (void)push(1, 0, 0.5, 1024);
    core_assert_failed(&host, push(1, 1, 0.25, 1024), AMP_EINVAL, "LEARNING_RATE", "rank 0");
    (void)push(1, 2, 0.5, 1024);
    uint64_t late = push(1, 1, 0.25, 1024); /* the contributors are known by now */
    host.hold_persists = false;
    core_do_all(&host);
    assert_int_equal(AMPD_VERDICT_LATE, core_call(&host, late)->reply.u.step.verdict);
    assert_true(host.row.lr == 0.5 && host.row.contributors_count == 2);
}

int main(void)
{
#define RATE(test)  cmocka_unit_test_setup_teardown(test, setup, teardown)
#define OTHER(test) cmocka_unit_test_teardown(test, teardown)
    const struct CMUnitTest tests[] = {
        RATE(a_step_has_the_rate_that_its_pushes_name),
        RATE(a_skipped_step_has_no_rate),
        OTHER(the_factor_of_a_group_multiplies_the_rate),
        OTHER(the_greatest_rate_is_finite_with_every_factor),
        RATE(a_push_without_a_rate_or_with_one_out_of_range_is_refused),
        OTHER(a_rate_with_another_schedule_is_refused),
        OTHER(a_warm_up_before_the_rates_of_workers_is_refused),
        RATE(a_push_of_another_rate_than_a_whole_one_is_refused_and_may_come_again),
        RATE(a_worker_that_joins_anew_takes_its_rate_back),
        RATE(a_resumed_push_keeps_its_rate),
        RATE(nothing_is_summed_before_the_rates_agree),
        OTHER(who_is_late_for_a_quorum_is_late_with_any_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
