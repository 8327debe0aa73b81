/* The step of any scaler: order, overflow before and after the division, failures, and a disabled scaler. */
#include "amp/cpu.h"
#include "amp/dynamic_scaler.h"
#include "amp/static_scaler.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct amp_kernels *kernels;
static struct amp_error error;

static int pick_kernels(void **state)
{
    return amp_cpu_select(NULL, &kernels, &error);
}

/* Grows at every clean step, so that an update too early would be seen. */
static struct amp_dynamic_scaler made(float scale, bool enabled)
{
    struct amp_dynamic_options options = amp_dynamic_options_fp16();
    struct amp_dynamic_scaler scaler;
    options.enable_dynamic_loss_scaling = enabled;
    options.initial_loss_scale = scale;
    options.min_loss_scale = 0x1p-100f;
    options.growth_interval = 1;
    assert_int_equal(amp_dynamic_scaler_init(&scaler, kernels, &options, &error), 0);
    return scaler;
}

/* An optimizer: w -= gradient; and what it saw. */
struct optimizer {
    float w;
    unsigned calls;
    int rc;
    const struct amp_dynamic_scaler *scaler;
    float scale_seen;
};

static int step(void *arg, const struct amp_tensor *gradients, size_t n, struct amp_error *told)
{
    struct optimizer *optimizer = arg;
    optimizer->calls++;
    optimizer->scale_seen = optimizer->scaler != NULL ? amp_dynamic_scaler_scale(optimizer->scaler) : 0;
    optimizer->w -= n > 0 ? *(const float *)gradients[0].data : 0;
    return optimizer->rc != 0 ? amp_error_set(told, optimizer->rc, NULL, "the optimizer") : 0;
}

static int run_step(struct amp_loss_scaler any, float *gradient, bool *skipped, struct optimizer *optimizer)
{
    struct amp_tensor g = {"g", gradient, 1, AMP_F32};
    return amp_loss_scaler_step(&any, &g, 1, skipped, &error, optimizer, step);
}

static void a_step_unscales_checks_steps_and_then_updates(void **state)
{
    struct amp_dynamic_scaler scaler = made(1024, true);
    struct optimizer optimizer = {.w = 5, .scaler = &scaler};
    float g = 3 * 1024;
    bool skipped = true;
    assert_int_equal(run_step(amp_dynamic_scaler_interface(&scaler), &g, &skipped, &optimizer), 0);
    assert_true(!skipped && optimizer.calls == 1 && optimizer.w == 2 && g == 3);
    assert_true(optimizer.scale_seen == 1024 && amp_dynamic_scaler_scale(&scaler) == 2048);
}

static void an_overflow_leaves_the_step_out_and_moves_the_scale(void **state)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < 3; i++) {
        struct amp_dynamic_scaler scaler = made(1024, true);
        struct optimizer optimizer = {.w = 5};
        float g = bad[i];
        bool skipped = false;
        assert_int_equal(run_step(amp_dynamic_scaler_interface(&scaler), &g, &skipped, &optimizer), 0);
        assert_true(skipped && optimizer.calls == 0 && optimizer.w == 5);
        assert_true(amp_dynamic_scaler_scale(&scaler) == 512);
    }
}

/* A scale below 1: the gradient is finite, the quotient is not. A check before the division alone would let it pass. */
static void a_quotient_that_overflows_leaves_the_step_out(void **state)
{
    struct amp_dynamic_scaler scaler = made(0x1p-10f, true);
    struct optimizer optimizer = {.w = 5};
    float g = FLT_MAX;
    bool skipped = false;
    assert_int_equal(run_step(amp_dynamic_scaler_interface(&scaler), &g, &skipped, &optimizer), 0);
    assert_true(skipped && optimizer.calls == 0 && amp_dynamic_scaler_scale(&scaler) == 0x1p-11f);
}

static void a_step_that_fails_moves_nothing(void **state)
{
    struct amp_dynamic_scaler scaler = made(1024, true);
    struct optimizer optimizer = {.rc = AMP_EIO};
    float g = 1024;
    bool skipped = true;
    assert_int_equal(run_step(amp_dynamic_scaler_interface(&scaler), &g, &skipped, &optimizer), AMP_EIO);
    assert_string_equal(error.text, "the optimizer");
    optimizer.rc = 7;
    assert_int_equal(run_step(amp_dynamic_scaler_interface(&scaler), &g, &skipped, &optimizer), 7);
    assert_true(skipped && amp_dynamic_scaler_scale(&scaler) == 1024 && scaler.state.attempted == 0);
}

static void gradients_that_are_refused_reach_no_step(void **state)
{
    struct amp_dynamic_scaler scaler = made(1024, true);
    struct amp_loss_scaler any = amp_dynamic_scaler_interface(&scaler);
    struct optimizer optimizer = {.w = 5};
    double wide[1] = {0};
    struct amp_tensor bad = {"wide", wide, 1, AMP_F64};
    bool skipped = true;
    assert_int_equal(amp_loss_scaler_step(&any, &bad, 1, &skipped, &error, &optimizer, step), AMP_EINVAL);
    assert_int_equal(amp_loss_scaler_step(&any, NULL, 1, &skipped, &error, &optimizer, step), AMP_EINVAL);
    assert_true(skipped && optimizer.calls == 0 && scaler.state.attempted == 0);
}

static void no_gradients_are_a_clean_step(void **state)
{
    struct amp_dynamic_scaler scaler = made(1024, true);
    struct amp_loss_scaler any = amp_dynamic_scaler_interface(&scaler);
    struct optimizer optimizer = {.w = 5};
    bool skipped = true;
    assert_int_equal(amp_loss_scaler_step(&any, NULL, 0, &skipped, &error, &optimizer, step), 0);
    assert_true(!skipped && optimizer.calls == 1 && amp_dynamic_scaler_scale(&scaler) == 2048);
}

static void a_disabled_scaler_steps_with_the_gradients_as_they_are(void **state)
{
    struct amp_dynamic_scaler scaler = made(1024, false);
    struct optimizer optimizer = {.w = 5};
    float g = 3;
    bool skipped = true;
    assert_int_equal(run_step(amp_dynamic_scaler_interface(&scaler), &g, &skipped, &optimizer), 0);
    assert_true(!skipped && optimizer.w == 2 && amp_dynamic_scaler_scale(&scaler) == 1024);
    g = INFINITY;
    assert_int_equal(run_step(amp_dynamic_scaler_interface(&scaler), &g, &skipped, &optimizer), 0);
    assert_true(!skipped && optimizer.calls == 2);
}

static void a_static_scaler_steps_alike(void **state)
{
    struct amp_static_scaler scaler;
    struct optimizer optimizer = {.w = 5};
    float g = 3 * 256;
    bool skipped = true;
    assert_int_equal(amp_static_scaler_init(&scaler, kernels, AMP_SCALE_CONSERVATIVE, true, &error), 0);
    assert_int_equal(run_step(amp_static_scaler_interface(&scaler), &g, &skipped, &optimizer), 0);
    assert_true(!skipped && optimizer.w == 2);
    g = NAN;
    assert_int_equal(run_step(amp_static_scaler_interface(&scaler), &g, &skipped, &optimizer), 0);
    assert_true(skipped && optimizer.calls == 1 && scaler.state.total_overflows == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_unscales_checks_steps_and_then_updates),
        cmocka_unit_test(an_overflow_leaves_the_step_out_and_moves_the_scale),
        cmocka_unit_test(a_quotient_that_overflows_leaves_the_step_out),
        cmocka_unit_test(a_step_that_fails_moves_nothing),
        cmocka_unit_test(gradients_that_are_refused_reach_no_step),
        cmocka_unit_test(no_gradients_are_a_clean_step),
        cmocka_unit_test(a_disabled_scaler_steps_with_the_gradients_as_they_are),
        cmocka_unit_test(a_static_scaler_steps_alike),
    };
    return cmocka_run_group_tests(tests, pick_kernels, NULL);
}
