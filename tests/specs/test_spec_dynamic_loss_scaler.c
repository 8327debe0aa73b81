/* The specification of the dynamic loss scaler, section by section; its own tests are left to another specification. */
#include "amp/dynamic_scaler.h"
#include "tests/specs/spec.h"

#include <float.h>

/* From 1024 within [1, 4096], times 2 after 3 steps, half at overflow, stable below 3 in a row. */
static struct amp_dynamic_options small_options(void)
{
    struct amp_dynamic_options options = amp_dynamic_options_fp16();
    options.initial_loss_scale = 1024;
    options.growth_factor = 2;
    options.backoff_factor = 0.5f;
    options.growth_interval = 3;
    options.min_loss_scale = 1;
    options.max_loss_scale = 4096;
    options.max_consecutive_overflows = 3;
    return options;
}

static struct amp_dynamic_scaler scaler_with(struct amp_dynamic_options options)
{
    struct amp_dynamic_scaler scaler;
    assert_int_equal(amp_dynamic_scaler_init(&scaler, kernels, &options, &fault), 0);
    return scaler;
}

static struct amp_dynamic_scaler small_scaler(void)
{
    return scaler_with(small_options());
}

static struct amp_dynamic_scaler disabled_scaler(void)
{
    struct amp_dynamic_options options = small_options();
    options.enable_dynamic_loss_scaling = false;
    return scaler_with(options);
}

static float scale_of(const struct amp_dynamic_scaler *scaler)
{
    return amp_dynamic_scaler_scale(scaler);
}

static void overflow(struct amp_dynamic_scaler *scaler, unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        assert_true(amp_dynamic_scaler_update(scaler, true));
}

static void succeed(struct amp_dynamic_scaler *scaler, unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        assert_false(amp_dynamic_scaler_update(scaler, false));
}

static void assert_counts(const struct amp_dynamic_scaler *scaler, unsigned steps, unsigned consecutive, unsigned total)
{
    assert_int_equal(amp_dynamic_scaler_steps_since_overflow(scaler), steps);
    assert_int_equal(amp_dynamic_scaler_consecutive_overflows(scaler), consecutive);
    assert_int_equal(amp_dynamic_scaler_total_overflows(scaler), total);
}

/* What CheckOverflow says of a dictionary with {1, value}. */
static bool overflows(const struct amp_dynamic_scaler *scaler, float value)
{
    float first[] = {1}, second[] = {2, value};
    struct amp_tensor grads[] = {spec_f32("a", first, 1), spec_f32("b", second, 2)};
    bool found = false;
    assert_int_equal(amp_dynamic_scaler_check_overflow(scaler, grads, 2, &found, &fault), 0);
    return found;
}

static bool check_and_update(struct amp_dynamic_scaler *scaler, float value)
{
    struct amp_tensor gradient = spec_f32("g", &value, 1);
    bool skip = false;
    assert_int_equal(amp_dynamic_scaler_check_and_update(scaler, &gradient, 1, &skip, &fault), 0);
    return skip;
}

static void assert_text(const struct amp_dynamic_scaler *scaler, const char *expected)
{
    char text[256];
    struct amp_dynamic_stats stats = amp_dynamic_scaler_stats(scaler);
    size_t length = amp_dynamic_stats_text(&stats, text, sizeof text);
    assert_int_equal(length, strlen(expected));
    assert_string_equal(text, expected);
}

/* ---- Constructors ---- */

static void a_new_scaler_has_the_initial_scale_and_no_counts(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    assert_true(scale_of(&scaler) == 1024);
    assert_counts(&scaler, 0, 0, 0);
}

static void a_scaler_without_options_has_those_for_fp16(void **state)
{
    struct amp_dynamic_options options = amp_dynamic_options_fp16();
    struct amp_dynamic_scaler scaler;
    assert_int_equal(amp_dynamic_scaler_init(&scaler, kernels, NULL, &fault), 0);
    assert_true(scale_of(&scaler) == options.initial_loss_scale);
    assert_true(amp_dynamic_scaler_enabled(&scaler));
    assert_int_equal(amp_dynamic_scaler_stats(&scaler).growth_interval, options.growth_interval);
}

static void the_options_for_fp16_pass_their_own_check(void **state)
{
    struct amp_dynamic_options options = amp_dynamic_options_fp16();
    assert_int_equal(amp_dynamic_options_check(&options, &fault), 0);
    assert_true(options.enable_dynamic_loss_scaling);
}

/* "options.Validate()" in the constructor */
static void a_constructor_refuses_options_that_are_not_valid(void **state)
{
    struct amp_dynamic_options options = small_options();
    struct amp_dynamic_scaler scaler;
    options.initial_loss_scale = 8192; /* above the maximum */
    spec_refused(amp_dynamic_scaler_init(&scaler, kernels, &options, &fault), AMP_EINVAL, "scale");
    options = small_options();
    options.growth_interval = 0;
    spec_refused(amp_dynamic_scaler_init(&scaler, kernels, &options, &fault), AMP_EINVAL, "growth_interval");
}

static void options_with_factors_the_wrong_way_round_are_not_valid(void **state)
{
    struct amp_dynamic_options options = small_options();
    options.growth_factor = 0.5f;
    spec_refused(amp_dynamic_options_check(&options, &fault), AMP_EINVAL, "growth");
    options = small_options();
    options.backoff_factor = 2;
    spec_refused(amp_dynamic_options_check(&options, &fault), AMP_EINVAL, "backoff");
    options = small_options();
    options.min_loss_scale = 0;
    spec_refused(amp_dynamic_options_check(&options, &fault), AMP_EINVAL, "min");
}

static void the_options_are_those_of_the_time_the_scaler_was_made(void **state)
{
    struct amp_dynamic_options options = small_options();
    struct amp_dynamic_scaler scaler = scaler_with(options);
    options.initial_loss_scale = 2;
    amp_dynamic_scaler_reset(&scaler);
    assert_true(scale_of(&scaler) == 1024);
}

/* ---- Properties ---- */

static void is_enabled_is_what_the_options_say(void **state)
{
    struct amp_dynamic_scaler on = small_scaler(), off = disabled_scaler();
    assert_true(amp_dynamic_scaler_enabled(&on));
    assert_false(amp_dynamic_scaler_enabled(&off));
}

static void total_overflows_counts_those_that_are_not_consecutive_too(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    overflow(&scaler, 2);
    succeed(&scaler, 1);
    overflow(&scaler, 1);
    assert_counts(&scaler, 0, 1, 3);
}

/* ---- ScaleLoss ---- */

static void scale_loss_multiplies_by_the_current_scale(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    float values[] = {0.5f, -3}, out[2];
    struct amp_tensor loss = spec_f32("loss", values, 2);
    struct amp_tensor to = spec_f32("loss", out, 2);
    assert_int_equal(amp_dynamic_scaler_scale_loss(&scaler, &loss, &to, &fault), 0);
    assert_true(out[0] == 512 && out[1] == -3072);
    assert_true(values[0] == 0.5f && values[1] == -3);
}

static void scale_loss_follows_the_scale(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    float value = 1, out = 0;
    struct amp_tensor loss = spec_f32("loss", &value, 1);
    struct amp_tensor to = spec_f32("loss", &out, 1);
    overflow(&scaler, 1);
    assert_int_equal(amp_dynamic_scaler_scale_loss(&scaler, &loss, &to, &fault), 0);
    assert_true(out == 512);
}

static void scale_loss_of_a_null_loss_is_refused(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    float out = 5;
    struct amp_tensor to = spec_f32("loss", &out, 1);
    spec_refused(amp_dynamic_scaler_scale_loss(&scaler, NULL, &to, &fault), AMP_EINVAL, "loss");
    assert_true(out == 5);
}

static void scale_loss_of_a_disabled_scaler_is_the_loss(void **state)
{
    struct amp_dynamic_scaler scaler = disabled_scaler();
    float value = 0.731f, out = 0;
    struct amp_tensor loss = spec_f32("loss", &value, 1);
    struct amp_tensor to = spec_f32("loss", &out, 1);
    assert_int_equal(amp_dynamic_scaler_scale_loss(&scaler, &loss, &to, &fault), 0);
    assert_true(out == value);
}

/* ---- UnscaleGradients ---- */

static void unscale_divides_every_gradient_by_the_current_scale(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    float a[] = {2048, -512}, b[] = {1024};
    struct amp_tensor grads[] = {spec_f32("a", a, 2), spec_f32("b", b, 1)};
    assert_int_equal(amp_dynamic_scaler_unscale(&scaler, grads, 2, grads, NULL, &fault), 0);
    assert_true(a[0] == 2 && a[1] == -0.5f && b[0] == 1);
}

static void unscale_gives_new_gradients_and_leaves_the_scaled_ones(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    float value = 2048, out = 0;
    struct amp_tensor from = spec_f32("g", &value, 1);
    struct amp_tensor to = spec_f32("g", &out, 1);
    assert_int_equal(amp_dynamic_scaler_unscale(&scaler, &from, 1, &to, NULL, &fault), 0);
    assert_true(value == 2048 && out == 2);
}

static void unscale_of_null_gradients_is_refused_and_of_none_is_nothing(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    spec_refused(amp_dynamic_scaler_unscale(&scaler, NULL, 1, NULL, NULL, &fault), AMP_EINVAL, "NULL");
    assert_int_equal(amp_dynamic_scaler_unscale(&scaler, NULL, 0, NULL, NULL, &fault), 0);
}

static void unscale_of_a_disabled_scaler_gives_the_gradients(void **state)
{
    struct amp_dynamic_scaler scaler = disabled_scaler();
    float values[] = {0.731f, NAN}, out[2];
    struct amp_tensor from = spec_f32("g", values, 2);
    struct amp_tensor to = spec_f32("g", out, 2);
    assert_int_equal(amp_dynamic_scaler_unscale(&scaler, &from, 1, &to, NULL, &fault), 0);
    assert_memory_equal(values, out, sizeof values);
}

/* ---- CheckOverflow, HasOverflow ---- */

static void check_overflow_detects_nan_and_inf(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    assert_true(overflows(&scaler, NAN));
    assert_true(overflows(&scaler, INFINITY));
    assert_true(overflows(&scaler, -INFINITY));
    assert_false(overflows(&scaler, FLT_MAX));
    assert_false(overflows(&scaler, 0));
}

static void check_overflow_moves_nothing(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    assert_true(overflows(&scaler, NAN));
    assert_true(scale_of(&scaler) == 1024);
    assert_counts(&scaler, 0, 0, 0);
}

static void check_overflow_of_null_gradients_is_refused_and_of_none_is_false(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    bool found = true;
    spec_refused(amp_dynamic_scaler_check_overflow(&scaler, NULL, 1, &found, &fault), AMP_EINVAL, "NULL");
    assert_int_equal(amp_dynamic_scaler_check_overflow(&scaler, NULL, 0, &found, &fault), 0);
    assert_false(found);
}

static void check_overflow_of_a_disabled_scaler_is_false(void **state)
{
    struct amp_dynamic_scaler scaler = disabled_scaler();
    assert_false(overflows(&scaler, NAN));
}

/* ---- UpdateScale: HandleOverflow, "scale = max(scale * backoff_factor, min_scale)" ---- */

static void an_overflow_reduces_the_scale_and_skips_the_step(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    assert_true(amp_dynamic_scaler_update(&scaler, true));
    assert_true(scale_of(&scaler) == 512);
    assert_counts(&scaler, 0, 1, 1);
}

static void every_overflow_reduces_the_scale_again(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    overflow(&scaler, 4);
    assert_true(scale_of(&scaler) == 64);
    assert_counts(&scaler, 0, 4, 4);
}

static void the_scale_backs_off_by_the_factor_of_the_options(void **state)
{
    struct amp_dynamic_options options = small_options();
    options.backoff_factor = 0.3f;
    struct amp_dynamic_scaler scaler = scaler_with(options);
    overflow(&scaler, 1);
    assert_true(scale_of(&scaler) == 1024 * 0.3f);
}

static void the_scale_never_falls_below_the_minimum(void **state)
{
    struct amp_dynamic_options options = small_options();
    options.min_loss_scale = 300;
    struct amp_dynamic_scaler scaler = scaler_with(options);
    overflow(&scaler, 2);
    assert_true(scale_of(&scaler) == 300);
    overflow(&scaler, 100);
    assert_true(scale_of(&scaler) == 300);
}

static void an_overflow_at_the_minimum_is_counted_and_skips_the_step(void **state)
{
    struct amp_dynamic_options options = small_options();
    options.initial_loss_scale = options.min_loss_scale;
    struct amp_dynamic_scaler scaler = scaler_with(options);
    assert_true(amp_dynamic_scaler_update(&scaler, true));
    assert_counts(&scaler, 0, 1, 1);
}

static void an_overflow_resets_the_steps_towards_growth(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    succeed(&scaler, 2);
    overflow(&scaler, 1);
    succeed(&scaler, 2);
    assert_true(scale_of(&scaler) == 512);
    succeed(&scaler, 1);
    assert_true(scale_of(&scaler) == 1024);
}

/* ---- UpdateScale: HandleSuccess, "After N steps, scale = min(scale * growth_factor, max_scale)" ---- */

static void a_success_lets_the_step_proceed_and_counts_it(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    assert_false(amp_dynamic_scaler_update(&scaler, false));
    assert_true(scale_of(&scaler) == 1024);
    assert_counts(&scaler, 1, 0, 0);
}

static void a_success_ends_a_run_of_overflows(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    overflow(&scaler, 2);
    succeed(&scaler, 1);
    assert_counts(&scaler, 1, 0, 2);
}

static void the_scale_grows_at_the_interval_and_not_before(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    succeed(&scaler, 2);
    assert_true(scale_of(&scaler) == 1024);
    succeed(&scaler, 1);
    assert_true(scale_of(&scaler) == 2048);
}

static void growth_begins_the_count_of_steps_anew(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    succeed(&scaler, 3);
    assert_counts(&scaler, 0, 0, 0);
    succeed(&scaler, 2);
    assert_true(scale_of(&scaler) == 2048);
    succeed(&scaler, 1);
    assert_true(scale_of(&scaler) == 4096);
}

static void an_interval_of_one_grows_the_scale_at_every_success(void **state)
{
    struct amp_dynamic_options options = small_options();
    options.growth_interval = 1;
    struct amp_dynamic_scaler scaler = scaler_with(options);
    succeed(&scaler, 1);
    assert_true(scale_of(&scaler) == 2048);
    succeed(&scaler, 1);
    assert_true(scale_of(&scaler) == 4096);
}

static void the_scale_grows_by_the_factor_of_the_options(void **state)
{
    struct amp_dynamic_options options = small_options();
    options.growth_factor = 1.7f;
    struct amp_dynamic_scaler scaler = scaler_with(options);
    succeed(&scaler, 3);
    assert_true(scale_of(&scaler) == 1024 * 1.7f);
}

static void the_scale_never_rises_above_the_maximum(void **state)
{
    struct amp_dynamic_options options = small_options();
    options.max_loss_scale = 3000;
    struct amp_dynamic_scaler scaler = scaler_with(options);
    succeed(&scaler, 6);
    assert_true(scale_of(&scaler) == 3000);
    succeed(&scaler, 300);
    assert_true(scale_of(&scaler) == 3000);
    assert_counts(&scaler, 0, 0, 0);
}

/* "Bounds: Scale always stays in [min_scale, max_scale]" */
static void the_scale_stays_within_its_bounds_whatever_happens(void **state)
{
    struct amp_dynamic_options options = small_options();
    options.growth_interval = 2;
    options.min_loss_scale = 3;
    options.max_loss_scale = 5000;
    struct amp_dynamic_scaler scaler = scaler_with(options);
    uint32_t random = 1;
    for (unsigned step = 0; step < 20000; step++) {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        (void)amp_dynamic_scaler_update(&scaler, random % 7 < step / 5000);
        assert_true(scale_of(&scaler) >= 3 && scale_of(&scaler) <= 5000);
    }
}

/* The two rules as the specification writes them, beside the scaler. */
static void a_long_history_gives_the_scales_of_the_specified_formulas(void **state)
{
    struct amp_dynamic_options options = small_options();
    options.growth_factor = 1.7f;
    options.backoff_factor = 0.3f;
    struct amp_dynamic_scaler scaler = scaler_with(options);
    float scale = options.initial_loss_scale;
    unsigned steps = 0;
    for (unsigned step = 1; step <= 3000; step++) {
        bool bad = step % 11 == 0 || step % 13 == 5;
        if (bad)
            scale = fmaxf(scale * options.backoff_factor, options.min_loss_scale);
        steps = bad ? 0 : steps + 1;
        if (steps == options.growth_interval) {
            scale = fminf(scale * options.growth_factor, options.max_loss_scale);
            steps = 0;
        }
        assert_int_equal(amp_dynamic_scaler_update(&scaler, bad), bad);
        assert_true(scale_of(&scaler) == scale);
        assert_int_equal(amp_dynamic_scaler_steps_since_overflow(&scaler), steps);
    }
}

static void update_of_a_disabled_scaler_moves_nothing_and_skips_nothing(void **state)
{
    struct amp_dynamic_scaler scaler = disabled_scaler();
    for (unsigned step = 0; step < 10; step++)
        assert_false(amp_dynamic_scaler_update(&scaler, step % 2 == 0));
    assert_true(scale_of(&scaler) == 1024);
    assert_counts(&scaler, 0, 0, 0);
}

/* ---- CheckOverflowAndUpdate ---- */

static void check_and_update_backs_off_where_a_gradient_overflowed(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    assert_true(check_and_update(&scaler, INFINITY));
    assert_true(scale_of(&scaler) == 512);
    assert_counts(&scaler, 0, 1, 1);
}

static void check_and_update_counts_a_clean_step(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    assert_false(check_and_update(&scaler, 1));
    assert_counts(&scaler, 1, 0, 0);
}

static void check_and_update_of_null_gradients_is_refused_and_moves_nothing(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    bool skip = true;
    spec_refused(amp_dynamic_scaler_check_and_update(&scaler, NULL, 1, &skip, &fault), AMP_EINVAL, "NULL");
    assert_true(scale_of(&scaler) == 1024);
    assert_counts(&scaler, 0, 0, 0);
}

static void check_and_update_of_a_disabled_scaler_skips_nothing(void **state)
{
    struct amp_dynamic_scaler scaler = disabled_scaler();
    assert_false(check_and_update(&scaler, NAN));
}

/* ---- Reset ---- */

static void reset_gives_the_initial_state_back(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    overflow(&scaler, 5);
    succeed(&scaler, 2);
    amp_dynamic_scaler_reset(&scaler);
    assert_true(scale_of(&scaler) == 1024);
    assert_counts(&scaler, 0, 0, 0);
}

static void after_a_reset_growth_takes_a_whole_interval(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    succeed(&scaler, 2);
    amp_dynamic_scaler_reset(&scaler);
    succeed(&scaler, 2);
    assert_true(scale_of(&scaler) == 1024);
    succeed(&scaler, 1);
    assert_true(scale_of(&scaler) == 2048);
}

/* ---- GetStats, LossScalerStats ---- */

static void statistics_have_the_state_and_the_options(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    overflow(&scaler, 2);
    struct amp_dynamic_stats stats = amp_dynamic_scaler_stats(&scaler);
    assert_true(stats.current_scale == 256);
    assert_int_equal(stats.steps_since_last_overflow, 0);
    assert_int_equal(stats.consecutive_overflows, 2);
    assert_int_equal(stats.total_overflows, 2);
    assert_int_equal(stats.growth_interval, 3);
    assert_int_equal(stats.max_consecutive_overflows, 3);
}

static void training_is_stable_below_the_maximum_of_overflows_in_a_row(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    assert_true(amp_dynamic_scaler_stats(&scaler).is_stable);
    overflow(&scaler, 2);
    assert_true(amp_dynamic_scaler_stats(&scaler).is_stable);
    overflow(&scaler, 1);
    assert_false(amp_dynamic_scaler_stats(&scaler).is_stable);
    succeed(&scaler, 1);
    assert_true(amp_dynamic_scaler_stats(&scaler).is_stable);
}

static void statistics_are_those_of_the_moment(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    struct amp_dynamic_stats before = amp_dynamic_scaler_stats(&scaler);
    overflow(&scaler, 1);
    assert_true(before.current_scale == 1024 && before.total_overflows == 0);
}

static void statistics_have_the_specified_string(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    succeed(&scaler, 2);
    assert_text(&scaler, "Scale: 1024.00, Steps since overflow: 2, Consecutive overflows: 0, Total overflows: 0, "
                         "Stable: True");
}

static void the_string_tells_of_unstable_training_and_of_fractions(void **state)
{
    struct amp_dynamic_options options = small_options();
    options.initial_loss_scale = 10;
    struct amp_dynamic_scaler scaler = scaler_with(options);
    overflow(&scaler, 3);
    assert_text(&scaler, "Scale: 1.25, Steps since overflow: 0, Consecutive overflows: 3, Total overflows: 3, "
                         "Stable: False");
}

/* ---- Algorithm details: loss scaling flow ---- */

static void the_flow_scales_unscales_checks_and_skips_or_proceeds(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    static const float losses[] = {1, 0x1p120f, 1}; /* the second is beyond fp32 once scaled */
    static const bool skips[] = {false, true, false};
    for (size_t step = 0; step < COUNT(losses); step++) {
        float value = losses[step];
        struct amp_tensor tensor = spec_f32("g", &value, 1);
        bool skip = !skips[step];
        assert_int_equal(amp_dynamic_scaler_scale_loss(&scaler, &tensor, &tensor, &fault), 0);
        assert_int_equal(amp_dynamic_scaler_unscale(&scaler, &tensor, 1, &tensor, NULL, &fault), 0);
        assert_int_equal(amp_dynamic_scaler_check_and_update(&scaler, &tensor, 1, &skip, &fault), 0);
        assert_int_equal(skip, skips[step]);
        assert_true(skip ? value == INFINITY : value == losses[step]);
    }
    assert_true(scale_of(&scaler) == 512);
}

/* ---- Non-functional requirement "Handle null inputs gracefully" ---- */

static void a_null_scaler_or_kernels_is_refused(void **state)
{
    struct amp_dynamic_scaler scaler;
    spec_refused(amp_dynamic_scaler_init(NULL, kernels, NULL, &fault), AMP_EINVAL, "scaler");
    spec_refused(amp_dynamic_scaler_init(&scaler, NULL, NULL, &fault), AMP_EINVAL, "kernels");
    spec_refused(amp_dynamic_options_check(NULL, &fault), AMP_EINVAL, "options");
}

static void a_null_gradient_in_a_dictionary_is_passed_over(void **state)
{
    struct amp_dynamic_scaler scaler = small_scaler();
    float value = 1024;
    struct amp_tensor grads[] = {spec_null("a"), spec_f32("b", &value, 1)};
    bool found = true;
    assert_int_equal(amp_dynamic_scaler_unscale(&scaler, grads, 2, grads, NULL, &fault), 0);
    assert_true(value == 1);
    assert_int_equal(amp_dynamic_scaler_check_overflow(&scaler, grads, 2, &found, &fault), 0);
    assert_false(found);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_scaler_has_the_initial_scale_and_no_counts),
        cmocka_unit_test(a_scaler_without_options_has_those_for_fp16),
        cmocka_unit_test(the_options_for_fp16_pass_their_own_check),
        cmocka_unit_test(a_constructor_refuses_options_that_are_not_valid),
        cmocka_unit_test(options_with_factors_the_wrong_way_round_are_not_valid),
        cmocka_unit_test(the_options_are_those_of_the_time_the_scaler_was_made),
        cmocka_unit_test(is_enabled_is_what_the_options_say),
        cmocka_unit_test(total_overflows_counts_those_that_are_not_consecutive_too),
        cmocka_unit_test(scale_loss_multiplies_by_the_current_scale),
        cmocka_unit_test(scale_loss_follows_the_scale),
        cmocka_unit_test(scale_loss_of_a_null_loss_is_refused),
        cmocka_unit_test(scale_loss_of_a_disabled_scaler_is_the_loss),
        cmocka_unit_test(unscale_divides_every_gradient_by_the_current_scale),
        cmocka_unit_test(unscale_gives_new_gradients_and_leaves_the_scaled_ones),
        cmocka_unit_test(unscale_of_null_gradients_is_refused_and_of_none_is_nothing),
        cmocka_unit_test(unscale_of_a_disabled_scaler_gives_the_gradients),
        cmocka_unit_test(check_overflow_detects_nan_and_inf),
        cmocka_unit_test(check_overflow_moves_nothing),
        cmocka_unit_test(check_overflow_of_null_gradients_is_refused_and_of_none_is_false),
        cmocka_unit_test(check_overflow_of_a_disabled_scaler_is_false),
        cmocka_unit_test(an_overflow_reduces_the_scale_and_skips_the_step),
        cmocka_unit_test(every_overflow_reduces_the_scale_again),
        cmocka_unit_test(the_scale_backs_off_by_the_factor_of_the_options),
        cmocka_unit_test(the_scale_never_falls_below_the_minimum),
        cmocka_unit_test(an_overflow_at_the_minimum_is_counted_and_skips_the_step),
        cmocka_unit_test(an_overflow_resets_the_steps_towards_growth),
        cmocka_unit_test(a_success_lets_the_step_proceed_and_counts_it),
        cmocka_unit_test(a_success_ends_a_run_of_overflows),
        cmocka_unit_test(the_scale_grows_at_the_interval_and_not_before),
        cmocka_unit_test(growth_begins_the_count_of_steps_anew),
        cmocka_unit_test(an_interval_of_one_grows_the_scale_at_every_success),
        cmocka_unit_test(the_scale_grows_by_the_factor_of_the_options),
        cmocka_unit_test(the_scale_never_rises_above_the_maximum),
        cmocka_unit_test(the_scale_stays_within_its_bounds_whatever_happens),
        cmocka_unit_test(a_long_history_gives_the_scales_of_the_specified_formulas),
        cmocka_unit_test(update_of_a_disabled_scaler_moves_nothing_and_skips_nothing),
        cmocka_unit_test(check_and_update_backs_off_where_a_gradient_overflowed),
        cmocka_unit_test(check_and_update_counts_a_clean_step),
        cmocka_unit_test(check_and_update_of_null_gradients_is_refused_and_moves_nothing),
        cmocka_unit_test(check_and_update_of_a_disabled_scaler_skips_nothing),
        cmocka_unit_test(reset_gives_the_initial_state_back),
        cmocka_unit_test(after_a_reset_growth_takes_a_whole_interval),
        cmocka_unit_test(statistics_have_the_state_and_the_options),
        cmocka_unit_test(training_is_stable_below_the_maximum_of_overflows_in_a_row),
        cmocka_unit_test(statistics_are_those_of_the_moment),
        cmocka_unit_test(statistics_have_the_specified_string),
        cmocka_unit_test(the_string_tells_of_unstable_training_and_of_fractions),
        cmocka_unit_test(the_flow_scales_unscales_checks_and_skips_or_proceeds),
        cmocka_unit_test(a_null_scaler_or_kernels_is_refused),
        cmocka_unit_test(a_null_gradient_in_a_dictionary_is_passed_over),
    };
    return cmocka_run_group_tests(tests, spec_setup, NULL);
}
