/* The scalars of a step: coefficient, clip coefficient, powers, schedules, and what a specification may ask for. */
#include "amp/optim.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void coefficient_is_the_reciprocal_rounded_once(void **state)
{
    assert_true(amp_coefficient(65536, 2) == 0x1p-17f);
    assert_true(amp_coefficient(1, 3) == (float)(1.0 / 3.0));
    /* In single precision 3 * 0.1f would round first. */
    assert_true(amp_coefficient(3, (double)0.1f) == (float)(1 / (3 * (double)0.1f)));
}

static void clip_coefficient_is_one_up_to_the_norm_and_falls_beyond(void **state)
{
    assert_true(amp_clip_coefficient(1, 0) == 1);
    assert_true(amp_clip_coefficient(1, 0.5) == 1);
    assert_true(amp_clip_coefficient(1, 4) == (float)(1 / (4 + 1e-6)));
    assert_true(amp_clip_coefficient(0, 4) == 0);
    assert_true(amp_clip_coefficient(1, INFINITY) == 0);
    assert_true(amp_clip_coefficient(1, NAN) == 0);
}

static void power_is_near_to_the_true_one_and_exact_for_halves(void **state)
{
    assert_true(amp_power(0.5, 10) == 0x1p-10);
    assert_true(amp_power(0.9, 0) == 1);
    assert_true(amp_power(0.9, 1) == 0.9);
    assert_true(amp_power(0, 1) == 0);
    for (uint64_t t = 1; t < 100000; t = t * 3 + 1) {
        double expected = pow(0.999, (double)t);
        assert_true(fabs(amp_power(0.999, t) - expected) <= 1e-12 * expected);
    }
    assert_true(amp_bias_correction(0.9, 1) == 1 - 0.9);
    assert_true(amp_bias_correction(0.999, UINT64_MAX) == 1);
}

static void cosine_is_within_1e_15(void **state)
{
    for (unsigned i = 0; i <= 100000; i++) {
        double x = i / 100000.0;
        assert_true(fabs(amp_cos_pi(x) - (double)cosl(3.14159265358979323846264338327950288L * x)) < 1e-15);
    }
    assert_true(amp_cos_pi(0) == 1 && amp_cos_pi(1) == -1 && amp_cos_pi(0.5) == 0);
}

static void warm_up_rises_linearly_and_reaches_the_base(void **state)
{
    struct amp_schedule s = {.kind = AMP_SCHEDULE_LINEAR_WARMUP, .warmup_steps = 4};
    assert_int_equal(amp_schedule_check(&s, NULL), 0);
    assert_true(amp_schedule_lr(&s, 8, 0) == 2);
    assert_true(amp_schedule_lr(&s, 8, 2) == 6);
    assert_true(amp_schedule_lr(&s, 8, 3) == 8);
    assert_true(amp_schedule_lr(&s, 8, 1000) == 8);
}

static void step_schedule_multiplies_by_gamma(void **state)
{
    struct amp_schedule s = {.kind = AMP_SCHEDULE_STEP, .step_size = 10, .gamma = 0.5};
    assert_int_equal(amp_schedule_check(&s, NULL), 0);
    assert_true(amp_schedule_lr(&s, 1, 9) == 1);
    assert_true(amp_schedule_lr(&s, 1, 10) == 0.5);
    assert_true(amp_schedule_lr(&s, 1, 35) == 0.125);
    s.gamma = 2; /* never an Inf: times a factor of 0 it would be a NaN */
    assert_true(amp_schedule_lr(&s, 1, UINT64_MAX) == (double)FLT_MAX);
}

static void cosine_schedule_goes_from_base_to_minimum(void **state)
{
    struct amp_schedule s = {.kind = AMP_SCHEDULE_COSINE, .warmup_steps = 2, .total_steps = 12, .min_lr = 0.1};
    assert_int_equal(amp_schedule_check(&s, NULL), 0);
    assert_true(amp_schedule_lr(&s, 1, 0) == 0.5);
    assert_true(amp_schedule_lr(&s, 1, 2) == 1);
    assert_true(fabs(amp_schedule_lr(&s, 1, 7) - 0.55) < 1e-15);
    assert_true(amp_schedule_lr(&s, 1, 12) == 0.1);
    assert_true(amp_schedule_lr(&s, 1, 5000) == 0.1);
    for (uint64_t k = 2; k < 12; k++)
        assert_true(amp_schedule_lr(&s, 1, k) >= amp_schedule_lr(&s, 1, k + 1));
}

static void constant_and_worker_schedules_leave_the_base(void **state)
{
    struct amp_schedule s = {.kind = AMP_SCHEDULE_CONSTANT};
    assert_true(amp_schedule_lr(&s, 0.25, 77) == 0.25);
    s.kind = AMP_SCHEDULE_WORKER;
    assert_true(amp_schedule_lr(&s, 0.25, 77) == 0.25);
}

static void bad_schedules_are_refused_by_field(void **state)
{
    static const struct {
        struct amp_schedule schedule;
        const char *field;
    } rows[] = {
        {{.kind = (enum amp_schedule_kind)77}, "kind"},
        {{.kind = AMP_SCHEDULE_LINEAR_WARMUP}, "warmup_steps"},
        {{.kind = AMP_SCHEDULE_WORKER, .warmup_steps = 1}, "warmup_steps"},
        {{.kind = AMP_SCHEDULE_STEP, .gamma = 1}, "step_size"},
        {{.kind = AMP_SCHEDULE_STEP, .step_size = 1, .gamma = NAN}, "gamma"},
        {{.kind = AMP_SCHEDULE_COSINE, .warmup_steps = 5, .total_steps = 5}, "total_steps"},
        {{.kind = AMP_SCHEDULE_COSINE, .total_steps = 5, .min_lr = -1}, "min_lr"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct amp_error error;
        assert_int_equal(amp_schedule_check(&rows[i].schedule, &error), AMP_EINVAL);
        assert_non_null(strstr(error.text, rows[i].field));
    }
}

static void bad_optimizers_are_refused_by_field(void **state)
{
    const struct amp_optim_config sgd = {.optimizer = AMP_OPT_SGD, .lr = 0.1, .momentum = 0.9};
    const struct amp_optim_config adamw = {
        .optimizer = AMP_OPT_ADAMW, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    struct {
        struct amp_optim_config config;
        int code;
        const char *field;
    } rows[] = {
        {{.lr = 1}, AMP_EINVAL, "optimizer"},
        {{.optimizer = (enum amp_optimizer)99, .lr = 1}, AMP_EINVAL, "99"},
        {sgd, AMP_EINVAL, "lr"},
        {sgd, AMP_EINVAL, "weight_decay"},
        {sgd, AMP_EINVAL, "momentum"},
        {sgd, AMP_EINVAL, "dampening"},
        {sgd, AMP_EINVAL, "nesterov"},
        {adamw, AMP_EINVAL, "beta1"},
        {adamw, AMP_EINVAL, "beta2"},
        {adamw, AMP_EINVAL, "eps"},
    };
    rows[2].config.lr = NAN;
    rows[3].config.weight_decay = INFINITY;
    rows[4].config.momentum = 1;
    rows[5].config.dampening = -0.1;
    rows[6].config.nesterov = true;
    rows[6].config.dampening = 0.5;
    rows[7].config.beta1 = 1;
    rows[8].config.beta2 = -0.5;
    rows[9].config.eps = 0;
    assert_int_equal(amp_optim_check(&sgd, NULL), 0);
    assert_int_equal(amp_optim_check(&adamw, NULL), 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct amp_error error;
        assert_int_equal(amp_optim_check(&rows[i].config, &error), rows[i].code);
        assert_non_null(strstr(error.text, rows[i].field));
    }
}

static void the_defaults_of_every_optimizer_pass_its_check(void **state)
{
    struct amp_optim_config config;
    for (unsigned i = AMP_OPT_SGD; i < AMP_OPTIMIZERS; i++) {
        amp_optim_defaults((enum amp_optimizer)i, &config);
        assert_int_equal(config.optimizer, i);
        assert_int_equal(amp_optim_check(&config, NULL), 0);
    }
    amp_optim_defaults((enum amp_optimizer)99, &config);
    assert_int_equal(config.optimizer, AMP_OPT_UNSET);
    assert_int_equal(amp_optim_check(&config, NULL), AMP_EINVAL);
}

/* One field of a valid configuration is spoiled; the text names it. */
static void each_optimizer_refuses_its_own_bad_fields(void **state)
{
    static const struct {
        enum amp_optimizer optimizer;
        const char *field;
        double value;
    } rows[] = {
        {AMP_OPT_ADAM, "beta1", 1},         {AMP_OPT_ADAM, "beta2", NAN},     {AMP_OPT_ADAM, "eps", 0},
        {AMP_OPT_ADAM, "eps", 2},           {AMP_OPT_ADAGRAD, "eps", -1},     {AMP_OPT_ADAGRAD, "lr_decay", -0.1},
        {AMP_OPT_ADAGRAD, "lr_decay", NAN}, {AMP_OPT_RMSPROP, "alpha", 1},    {AMP_OPT_RMSPROP, "momentum", -0.5},
        {AMP_OPT_RMSPROP, "eps", 0x1p-101}, {AMP_OPT_LION, "beta1", -0.1},    {AMP_OPT_LION, "beta2", 1},
        {AMP_OPT_LAMB, "eps", INFINITY},    {AMP_OPT_LAMB, "beta1", INFINITY}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct amp_optim_config config;
        struct amp_error error;
        amp_optim_defaults(rows[i].optimizer, &config);
        double *fields[] = {&config.beta1,    &config.beta2, &config.eps,
                            &config.lr_decay, &config.alpha, &config.momentum};
        static const char *const names[] = {"beta1", "beta2", "eps", "lr_decay", "alpha", "momentum"};
        for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++)
            if (strcmp(names[f], rows[i].field) == 0)
                *fields[f] = rows[i].value;
        assert_int_equal(amp_optim_check(&config, &error), AMP_EINVAL);
        assert_non_null(strstr(error.text, rows[i].field));
    }
}

static void rmsprop_has_momentum_or_is_centered(void **state)
{
    struct amp_optim_config config;
    struct amp_error error;
    amp_optim_defaults(AMP_OPT_RMSPROP, &config);
    assert_int_equal(amp_optim_config_moments(&config), 1);
    config.centered = true;
    assert_int_equal(amp_optim_check(&config, &error), 0);
    assert_int_equal(amp_optim_config_moments(&config), 2);
    config.momentum = 0.9;
    assert_int_equal(amp_optim_check(&config, &error), AMP_EUNIMPLEMENTED);
    assert_non_null(strstr(error.text, "centered"));
    config.centered = false;
    assert_int_equal(amp_optim_check(&config, &error), 0);
    assert_int_equal(amp_optim_config_moments(&config), 2);
}

static void adagrads_rate_decays_with_the_applied_count(void **state)
{
    struct amp_apply apply;
    struct amp_optim_config config;
    amp_optim_defaults(AMP_OPT_ADAGRAD, &config);
    config.lr_decay = 0.25;
    amp_optim_scalars(&config, 1, 0.5, 1, &apply);
    assert_true(apply.lr == 0.5);
    amp_optim_scalars(&config, 5, 0.5, 1, &apply);
    assert_true(apply.lr == 0.25);
}

static void lambs_trust_is_the_quotient_of_norms_or_one(void **state)
{
    assert_true(amp_lamb_trust(16, 4) == 2);
    assert_true(amp_lamb_trust(0, 4) == 1);
    assert_true(amp_lamb_trust(4, 0) == 1);
    assert_true(amp_lamb_trust(NAN, 4) == 1);
}

static void optimizers_tell_their_moments_and_whether_they_square(void **state)
{
    assert_int_equal(amp_optim_moments(AMP_OPT_SGD, 0), 0);
    assert_int_equal(amp_optim_moments(AMP_OPT_SGD, 0.9), 1);
    assert_int_equal(amp_optim_moments(AMP_OPT_ADAMW, 0), 2);
    assert_int_equal(amp_optim_moments(AMP_OPT_RMSPROP, 0), 1);
    assert_int_equal(amp_optim_moments(AMP_OPT_RMSPROP, 0.5), 2);
    assert_int_equal(amp_optim_moments(AMP_OPT_ADAGRAD, 0), 1);
    assert_int_equal(amp_optim_moments(AMP_OPT_LION, 0), 1);
    assert_int_equal(amp_optim_moments(AMP_OPT_LAMB, 0), 2);
    assert_false(amp_optim_squares(AMP_OPT_SGD));
    assert_false(amp_optim_squares(AMP_OPT_LION));
    assert_true(amp_optim_squares(AMP_OPT_ADAMW));
    assert_string_equal(amp_optim_name(AMP_OPT_ADAMW), "adamw");
    assert_string_equal(amp_optim_name((enum amp_optimizer)99), "unset");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coefficient_is_the_reciprocal_rounded_once),
        cmocka_unit_test(clip_coefficient_is_one_up_to_the_norm_and_falls_beyond),
        cmocka_unit_test(power_is_near_to_the_true_one_and_exact_for_halves),
        cmocka_unit_test(cosine_is_within_1e_15),
        cmocka_unit_test(warm_up_rises_linearly_and_reaches_the_base),
        cmocka_unit_test(step_schedule_multiplies_by_gamma),
        cmocka_unit_test(cosine_schedule_goes_from_base_to_minimum),
        cmocka_unit_test(constant_and_worker_schedules_leave_the_base),
        cmocka_unit_test(bad_schedules_are_refused_by_field),
        cmocka_unit_test(bad_optimizers_are_refused_by_field),
        cmocka_unit_test(the_defaults_of_every_optimizer_pass_its_check),
        cmocka_unit_test(each_optimizer_refuses_its_own_bad_fields),
        cmocka_unit_test(rmsprop_has_momentum_or_is_centered),
        cmocka_unit_test(adagrads_rate_decays_with_the_applied_count),
        cmocka_unit_test(lambs_trust_is_the_quotient_of_norms_or_one),
        cmocka_unit_test(optimizers_tell_their_moments_and_whether_they_square),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
