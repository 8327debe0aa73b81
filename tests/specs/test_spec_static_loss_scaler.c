/* The specification of the static loss scaler, section by section: StaticLossScaler, ILossScaler, ScaleFactor. */
#include "amp/dynamic_scaler.h"
#include "amp/static_scaler.h"
#include "tests/specs/spec.h"

#include <float.h>

static const enum amp_dtype dtypes[] = {AMP_F16, AMP_BF16, AMP_F32};

static struct amp_static_scaler scaler_of(float scale, bool enabled)
{
    struct amp_static_scaler scaler;
    assert_int_equal(amp_static_scaler_init(&scaler, kernels, scale, enabled, &fault), 0);
    return scaler;
}

/* The one value of `loss`, scaled. */
static float scaled(const struct amp_static_scaler *scaler, float loss)
{
    float out = -77;
    struct amp_tensor from = spec_f32("loss", &loss, 1);
    struct amp_tensor to = spec_f32("loss", &out, 1);
    assert_int_equal(amp_static_scaler_scale_loss(scaler, &from, &to, &fault), 0);
    return out;
}

static float unscaled(const struct amp_static_scaler *scaler, float gradient)
{
    float out = -77;
    struct amp_tensor from = spec_f32("g", &gradient, 1);
    struct amp_tensor to = spec_f32("g", &out, 1);
    assert_int_equal(amp_static_scaler_unscale_one(scaler, &from, &to, NULL, &fault), 0);
    return out;
}

static bool overflows(const struct amp_static_scaler *scaler, float value)
{
    float values[] = {1, value, 2};
    struct amp_tensor gradient = spec_f32("g", values, 3);
    bool one = false, all = false;
    assert_int_equal(amp_static_scaler_check_overflow_one(scaler, &gradient, &one, &fault), 0);
    assert_int_equal(amp_static_scaler_check_overflow(scaler, &gradient, 1, &all, &fault), 0);
    assert_int_equal(one, all);
    return one;
}

/* ---- 1. StaticLossScaler: constructor, Scale, Enabled ---- */

static void the_default_scale_is_two_to_the_sixteenth(void **state)
{
    struct amp_static_scaler scaler = scaler_of(AMP_STATIC_SCALER_DEFAULT, true);
    assert_true(amp_static_scaler_scale(&scaler) == 65536);
}

static void a_scaler_has_the_scale_that_it_was_made_with(void **state)
{
    static const float scales[] = {1, 2, 256, 3000.7f, 1048576, 0.5f};
    for (size_t i = 0; i < COUNT(scales); i++) {
        struct amp_static_scaler scaler = scaler_of(scales[i], true);
        assert_true(amp_static_scaler_scale(&scaler) == scales[i]);
    }
}

static void a_scaler_tells_whether_it_is_enabled(void **state)
{
    struct amp_static_scaler on = scaler_of(2, true), off = scaler_of(2, false);
    assert_true(amp_static_scaler_enabled(&on));
    assert_false(amp_static_scaler_enabled(&off));
}

/* ---- 1. ScaleLoss: "Multiply loss by scale before backward pass" ---- */

static void scale_loss_multiplies_the_loss_by_the_scale(void **state)
{
    static const float scales[] = {1, 2, 256, 65536, 1048576, 0.25f, 3000.7f};
    for (size_t i = 0; i < COUNT(scales); i++) {
        struct amp_static_scaler scaler = scaler_of(scales[i], true);
        assert_true(scaled(&scaler, 0.731f) == 0.731f * scales[i]);
        assert_true(scaled(&scaler, -2) == -2 * scales[i]);
    }
}

static void scale_loss_leaves_the_loss_that_it_was_given(void **state)
{
    float loss[] = {3}, out[1];
    struct amp_static_scaler scaler = scaler_of(8, true);
    struct amp_tensor from = spec_f32("loss", loss, 1);
    struct amp_tensor to = spec_f32("loss", out, 1);
    assert_int_equal(amp_static_scaler_scale_loss(&scaler, &from, &to, &fault), 0);
    assert_true(loss[0] == 3 && out[0] == 24);
}

static void scale_loss_of_zero_is_zero(void **state)
{
    struct amp_static_scaler scaler = scaler_of(65536, true);
    assert_true(scaled(&scaler, 0) == 0);
}

static void scale_loss_works_in_place(void **state)
{
    float loss[] = {3};
    struct amp_static_scaler scaler = scaler_of(8, true);
    struct amp_tensor tensor = spec_f32("loss", loss, 1);
    assert_int_equal(amp_static_scaler_scale_loss(&scaler, &tensor, &tensor, &fault), 0);
    assert_true(loss[0] == 24);
}

static void scale_loss_works_in_every_dtype(void **state)
{
    struct amp_static_scaler scaler = scaler_of(256, true);
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        struct spec_memory memory;
        struct amp_tensor loss = spec_tensor(&memory, dtypes[i], (float[]){1.5f, -0.25f}, 2);
        assert_int_equal(amp_static_scaler_scale_loss(&scaler, &loss, &loss, &fault), 0);
        assert_true(spec_holds(&loss, (float[]){384, -64}));
    }
}

/* ---- 1. UnscaleGradients, UnscaleGradient: "Divide gradients by scale after backward pass" ---- */

static void unscale_divides_every_gradient_by_the_scale(void **state)
{
    float a[] = {512, -256}, b[] = {128};
    struct amp_static_scaler scaler = scaler_of(256, true);
    struct amp_tensor grads[] = {spec_f32("a", a, 2), spec_f32("b", b, 1)};
    assert_int_equal(amp_static_scaler_unscale(&scaler, grads, 2, grads, NULL, &fault), 0);
    assert_true(a[0] == 2 && a[1] == -1 && b[0] == 0.5f);
}

static void unscale_of_one_gradient_does_what_that_of_a_dictionary_does(void **state)
{
    float value = 0.37f, out = 0;
    struct amp_static_scaler scaler = scaler_of(1000, true);
    struct amp_tensor from = spec_f32("g", &value, 1);
    struct amp_tensor to = spec_f32("g", &out, 1);
    assert_int_equal(amp_static_scaler_unscale(&scaler, &from, 1, &to, NULL, &fault), 0);
    assert_true(out == unscaled(&scaler, value));
    assert_true(value == 0.37f);
}

static void unscaling_what_was_scaled_gives_it_back_exactly_for_powers_of_two(void **state)
{
    for (int exponent = 0; exponent <= 20; exponent++) {
        struct amp_static_scaler scaler = scaler_of(ldexpf(1, exponent), true);
        assert_true(unscaled(&scaler, scaled(&scaler, 0.1f)) == 0.1f);
    }
}

static void unscaling_by_other_scales_is_accurate_to_a_rounding_or_two(void **state)
{
    static const float scales[] = {3, 1000, 3000.7f, 12345.678f};
    for (size_t i = 0; i < COUNT(scales); i++) {
        struct amp_static_scaler scaler = scaler_of(scales[i], true);
        double exact = 0.731f / (double)scales[i];
        assert_true(fabs(unscaled(&scaler, 0.731f) - exact) <= 1.5 * FLT_EPSILON * exact);
    }
}

static void scaling_and_unscaling_gives_the_value_back_in_every_dtype(void **state)
{
    struct amp_static_scaler scaler = scaler_of(1024, true);
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        struct spec_memory memory;
        struct amp_tensor tensor = spec_tensor(&memory, dtypes[i], (float[]){1.5f, -3, 0.125f}, 3);
        assert_int_equal(amp_static_scaler_scale_loss(&scaler, &tensor, &tensor, &fault), 0);
        assert_int_equal(amp_static_scaler_unscale_one(&scaler, &tensor, &tensor, NULL, &fault), 0);
        assert_true(spec_holds(&tensor, (float[]){1.5f, -3, 0.125f}));
    }
}

static void unscale_of_no_gradients_is_nothing(void **state)
{
    struct amp_static_scaler scaler = scaler_of(2, true);
    bool overflow = true;
    assert_int_equal(amp_static_scaler_unscale(&scaler, NULL, 0, NULL, &overflow, &fault), 0);
    assert_false(overflow);
}

/* "Prevents gradient underflow in FP16 training": what the class is for. */
static void a_gradient_that_fp16_would_lose_survives_where_the_loss_was_scaled(void **state)
{
    struct amp_static_scaler scaler = scaler_of(65536, true);
    struct spec_memory plain, kept, result;
    float gradient = 2e-8f;
    struct amp_tensor lost = spec_tensor(&plain, AMP_F16, &gradient, 1);
    struct amp_tensor saved = spec_tensor(&kept, AMP_F16, (float[]){scaled(&scaler, gradient)}, 1);
    struct amp_tensor out = spec_tensor(&result, AMP_F32, (float[]){0}, 1);
    assert_int_equal(amp_static_scaler_unscale_one(&scaler, &saved, &out, NULL, &fault), 0);
    assert_true(spec_at(&lost, 0) == 0);
    assert_true(fabsf(spec_at(&out, 0) - gradient) < gradient / 1024);
}

/* ---- 1. CheckOverflow(dictionary), CheckOverflow(tensor): Inf or NaN ---- */

static void check_overflow_detects_inf_and_nan(void **state)
{
    struct amp_static_scaler scaler = scaler_of(65536, true);
    assert_true(overflows(&scaler, INFINITY));
    assert_true(overflows(&scaler, -INFINITY));
    assert_true(overflows(&scaler, NAN));
}

static void check_overflow_takes_no_finite_gradient_for_an_overflow(void **state)
{
    static const float values[] = {0, -1, FLT_MAX, -FLT_MAX, 0x1p-149f};
    struct amp_static_scaler scaler = scaler_of(65536, true);
    for (size_t i = 0; i < COUNT(values); i++)
        assert_false(overflows(&scaler, values[i]));
}

static void check_overflow_looks_at_every_gradient_of_a_dictionary(void **state)
{
    struct amp_static_scaler scaler = scaler_of(2, true);
    for (size_t at = 0; at < 3; at++) {
        float values[3] = {0};
        values[at] = NAN;
        struct amp_tensor grads[] = {spec_f32("a", values, 1), spec_f32("b", values + 1, 1),
                                     spec_f32("c", values + 2, 1)};
        bool found = false;
        assert_int_equal(amp_static_scaler_check_overflow(&scaler, grads, 3, &found, &fault), 0);
        assert_true(found);
    }
}

static void check_overflow_detects_both_in_every_dtype(void **state)
{
    struct amp_static_scaler scaler = scaler_of(2, true);
    static const float bad[] = {INFINITY, NAN, -INFINITY};
    for (size_t i = 0; i < COUNT(dtypes); i++)
        for (size_t j = 0; j < COUNT(bad); j++) {
            struct spec_memory memory;
            struct amp_tensor gradient = spec_tensor(&memory, dtypes[i], (float[]){1, bad[j]}, 2);
            bool found = false;
            assert_int_equal(amp_static_scaler_check_overflow_one(&scaler, &gradient, &found, &fault), 0);
            assert_true(found);
        }
}

static void check_overflow_of_no_gradients_is_false(void **state)
{
    struct amp_static_scaler scaler = scaler_of(2, true);
    bool found = true;
    assert_int_equal(amp_static_scaler_check_overflow(&scaler, NULL, 0, &found, &fault), 0);
    assert_false(found);
}

/* "Overflow Check: Check for Inf/NaN in unscaled gradients" */
static void what_overflows_is_found_in_the_unscaled_gradients_too(void **state)
{
    struct amp_static_scaler scaler = scaler_of(65536, true);
    assert_true(overflows(&scaler, unscaled(&scaler, INFINITY)));
    assert_true(overflows(&scaler, unscaled(&scaler, NAN)));
    assert_false(overflows(&scaler, unscaled(&scaler, FLT_MAX)));
}

/* ---- 1. UpdateScale: "no-op for static scaler" ---- */

static void update_never_moves_the_scale(void **state)
{
    struct amp_static_scaler scaler = scaler_of(256, true);
    for (unsigned step = 0; step < 5000; step++) {
        (void)amp_static_scaler_update(&scaler, step % 3 == 0);
        assert_true(amp_static_scaler_scale(&scaler) == 256);
    }
    assert_true(scaled(&scaler, 1) == 256);
}

/* ---- 1. GetScaleTensor, GetInverseScaleTensor ---- */

static void the_scale_tensor_is_a_scalar_of_the_scale(void **state)
{
    struct amp_static_scaler scaler = scaler_of(256, true);
    struct amp_tensor tensor = amp_static_scaler_scale_tensor(&scaler);
    assert_int_equal(tensor.count, 1);
    assert_true(spec_at(&tensor, 0) == 256);
}

static void the_inverse_tensor_is_a_scalar_of_one_over_the_scale(void **state)
{
    struct amp_static_scaler scaler = scaler_of(3000, true);
    struct amp_tensor tensor = amp_static_scaler_inverse_tensor(&scaler);
    assert_int_equal(tensor.count, 1);
    assert_true(spec_at(&tensor, 0) == 1.0f / 3000);
}

/* "Cache scale and inverse scale as scalar tensors" */
static void the_scale_tensors_are_kept_and_not_made_anew(void **state)
{
    struct amp_static_scaler scaler = scaler_of(256, true);
    assert_ptr_equal(amp_static_scaler_scale_tensor(&scaler).data, amp_static_scaler_scale_tensor(&scaler).data);
    assert_ptr_equal(amp_static_scaler_inverse_tensor(&scaler).data, amp_static_scaler_inverse_tensor(&scaler).data);
}

/* ---- Success criterion "Disabled scaler passes through unchanged values" ---- */

static void a_disabled_scaler_passes_the_loss_through(void **state)
{
    struct amp_static_scaler scaler = scaler_of(65536, false);
    assert_true(scaled(&scaler, 0.731f) == 0.731f);
}

static void a_disabled_scaler_passes_gradients_through(void **state)
{
    struct amp_static_scaler scaler = scaler_of(65536, false);
    float values[] = {0.731f, INFINITY, -0.0f}, out[3];
    struct amp_tensor from = spec_f32("g", values, 3);
    struct amp_tensor to = spec_f32("g", out, 3);
    assert_int_equal(amp_static_scaler_unscale(&scaler, &from, 1, &to, NULL, &fault), 0);
    assert_memory_equal(values, out, sizeof values);
    assert_true(unscaled(&scaler, 8) == 8);
}

static void a_disabled_scaler_keeps_its_scale_and_skips_no_step(void **state)
{
    struct amp_static_scaler scaler = scaler_of(65536, false);
    assert_false(amp_static_scaler_update(&scaler, true));
    assert_true(amp_static_scaler_scale(&scaler) == 65536);
}

/* ---- Testing requirements: edge cases (scale = 0, scale = Inf, etc.) ---- */

static void a_scale_of_zero_inf_nan_or_below_zero_is_refused(void **state)
{
    static const float scales[] = {0, -0.0f, -1, INFINITY, -INFINITY, NAN};
    struct amp_static_scaler scaler;
    for (size_t i = 0; i < COUNT(scales); i++) {
        spec_refused(amp_static_scaler_init(&scaler, kernels, scales[i], true, &fault), AMP_EINVAL, "scale");
        spec_refused(amp_static_scaler_init(&scaler, kernels, scales[i], false, &fault), AMP_EINVAL, "scale");
    }
}

static void the_least_and_the_largest_usable_scales_are_taken(void **state)
{
    struct amp_static_scaler least = scaler_of(FLT_MIN, true), largest = scaler_of(FLT_MAX, true);
    assert_true(scaled(&least, 1) == FLT_MIN);
    assert_true(scaled(&largest, 1) == FLT_MAX);
}

static void a_loss_that_the_scale_takes_beyond_the_range_becomes_inf(void **state)
{
    struct amp_static_scaler scaler = scaler_of(65536, true);
    assert_true(scaled(&scaler, FLT_MAX) == INFINITY);
    assert_true(scaled(&scaler, -FLT_MAX) == -INFINITY);
}

/* ---- 2. ILossScaler: the same six members for both scalers ---- */

static void a_static_scaler_has_the_interface(void **state)
{
    struct amp_static_scaler scaler = scaler_of(4, true);
    struct amp_loss_scaler any = amp_static_scaler_interface(&scaler);
    float value[] = {3};
    struct amp_tensor tensor = spec_f32("t", value, 1);
    bool found = true;
    assert_true(any.ops->scale(any.scaler) == 4);
    assert_true(any.ops->enabled(any.scaler));
    assert_int_equal(any.ops->scale_loss(any.scaler, &tensor, &tensor, &fault), 0);
    assert_true(value[0] == 12);
    assert_int_equal(any.ops->check_overflow(any.scaler, &tensor, 1, &found, &fault), 0);
    assert_false(found);
    assert_int_equal(any.ops->unscale(any.scaler, &tensor, 1, &tensor, NULL, &fault), 0);
    assert_true(value[0] == 3);
    (void)any.ops->update(any.scaler, true);
    assert_true(any.ops->scale(any.scaler) == 4);
}

static void a_dynamic_scaler_has_the_same_interface(void **state)
{
    struct amp_dynamic_scaler scaler;
    assert_int_equal(amp_dynamic_scaler_init(&scaler, kernels, NULL, &fault), 0);
    struct amp_loss_scaler any = amp_dynamic_scaler_interface(&scaler);
    float before = any.ops->scale(any.scaler);
    assert_true(any.ops->enabled(any.scaler));
    assert_true(any.ops->update(any.scaler, true));
    assert_true(any.ops->scale(any.scaler) == before / 2);
}

/* ---- 3. ScaleFactor ---- */

static void the_named_scales_are_those_of_the_specification(void **state)
{
    assert_true(AMP_SCALE_NONE == 1.0f);
    assert_true(AMP_SCALE_CONSERVATIVE == 256.0f);
    assert_true(AMP_SCALE_MODERATE == 65536.0f);
    assert_true(AMP_SCALE_AGGRESSIVE == 1048576.0f);
}

static void power_of_two_is_two_to_the_exponent(void **state)
{
    for (int exponent = -126; exponent <= 127; exponent++) {
        float scale = 0;
        assert_int_equal(amp_scale_power_of_two(exponent, &scale, &fault), 0);
        assert_true(scale == ldexpf(1, exponent));
    }
}

static void power_of_two_makes_the_named_scales(void **state)
{
    float scale = 0;
    assert_int_equal(amp_scale_power_of_two(0, &scale, &fault), 0);
    assert_true(scale == AMP_SCALE_NONE);
    assert_int_equal(amp_scale_power_of_two(8, &scale, &fault), 0);
    assert_true(scale == AMP_SCALE_CONSERVATIVE);
    assert_int_equal(amp_scale_power_of_two(16, &scale, &fault), 0);
    assert_true(scale == AMP_SCALE_MODERATE);
    assert_int_equal(amp_scale_power_of_two(20, &scale, &fault), 0);
    assert_true(scale == AMP_SCALE_AGGRESSIVE);
}

static void power_of_two_refuses_exponents_that_fp32_does_not_have(void **state)
{
    static const int exponents[] = {-127, 128, -10000, 10000};
    for (size_t i = 0; i < COUNT(exponents); i++) {
        float scale = 5;
        spec_refused(amp_scale_power_of_two(exponents[i], &scale, &fault), AMP_ERANGE, "exponent");
        assert_true(scale == 5);
    }
}

static void the_recommended_scale_helps_fp16_and_leaves_the_others_alone(void **state)
{
    assert_true(amp_scale_recommended(AMP_F16) == 65536);
    assert_true(amp_scale_recommended(AMP_BF16) == AMP_SCALE_NONE);
    assert_true(amp_scale_recommended(AMP_F32) == AMP_SCALE_NONE);
}

/* ---- Usage example: scale, backward, check, unscale, step ---- */

struct example {
    float weight;
    unsigned steps;
};

static int descend(void *arg, const struct amp_tensor *gradients, size_t n, struct amp_error *error)
{
    struct example *example = arg;
    (void)error;
    assert_int_equal(n, 1);
    example->weight -= 0.25f * spec_at(&gradients[0], 0);
    example->steps++;
    return 0;
}

static void usage_a_training_loop_steps_by_the_gradients_of_the_unscaled_loss(void **state)
{
    struct amp_static_scaler scaler = scaler_of(65536, true);
    struct amp_loss_scaler any = amp_static_scaler_interface(&scaler);
    struct example example = {.weight = 8};
    for (unsigned epoch = 0; epoch < 4; epoch++) {
        float gradient = scaled(&scaler, 2 * example.weight); /* of weight^2 */
        struct amp_tensor grads[] = {spec_f32("w", &gradient, 1)};
        bool skipped = true;
        assert_int_equal(amp_loss_scaler_step(&any, grads, 1, &skipped, &fault, &example, descend), 0);
        assert_false(skipped);
    }
    assert_true(example.weight == 0.5f && example.steps == 4);
}

static void usage_an_overflow_skips_the_update_and_training_goes_on(void **state)
{
    struct amp_static_scaler scaler = scaler_of(65536, true);
    struct amp_loss_scaler any = amp_static_scaler_interface(&scaler);
    struct example example = {.weight = 8};
    static const float gradients[] = {65536, INFINITY, NAN, 65536};
    static const bool expected[] = {false, true, true, false};
    for (size_t i = 0; i < COUNT(gradients); i++) {
        float gradient = gradients[i];
        struct amp_tensor grads[] = {spec_f32("w", &gradient, 1)};
        bool skipped = !expected[i];
        assert_int_equal(amp_loss_scaler_step(&any, grads, 1, &skipped, &fault, &example, descend), 0);
        assert_int_equal(skipped, expected[i]);
    }
    assert_true(example.weight == 7.5f && example.steps == 2);
}

static void usage_check_and_unscale_can_be_called_one_by_one(void **state)
{
    struct amp_static_scaler scaler = scaler_of(65536, true);
    float gradient = scaled(&scaler, 3);
    struct amp_tensor grads[] = {spec_f32("w", &gradient, 1)};
    bool overflow = true;
    assert_int_equal(amp_static_scaler_check_overflow(&scaler, grads, 1, &overflow, &fault), 0);
    assert_false(overflow);
    assert_int_equal(amp_static_scaler_unscale(&scaler, grads, 1, grads, NULL, &fault), 0);
    assert_true(gradient == 3);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_scale_is_two_to_the_sixteenth),
        cmocka_unit_test(a_scaler_has_the_scale_that_it_was_made_with),
        cmocka_unit_test(a_scaler_tells_whether_it_is_enabled),
        cmocka_unit_test(scale_loss_multiplies_the_loss_by_the_scale),
        cmocka_unit_test(scale_loss_leaves_the_loss_that_it_was_given),
        cmocka_unit_test(scale_loss_of_zero_is_zero),
        cmocka_unit_test(scale_loss_works_in_place),
        cmocka_unit_test(scale_loss_works_in_every_dtype),
        cmocka_unit_test(unscale_divides_every_gradient_by_the_scale),
        cmocka_unit_test(unscale_of_one_gradient_does_what_that_of_a_dictionary_does),
        cmocka_unit_test(unscaling_what_was_scaled_gives_it_back_exactly_for_powers_of_two),
        cmocka_unit_test(unscaling_by_other_scales_is_accurate_to_a_rounding_or_two),
        cmocka_unit_test(scaling_and_unscaling_gives_the_value_back_in_every_dtype),
        cmocka_unit_test(unscale_of_no_gradients_is_nothing),
        cmocka_unit_test(a_gradient_that_fp16_would_lose_survives_where_the_loss_was_scaled),
        cmocka_unit_test(check_overflow_detects_inf_and_nan),
        cmocka_unit_test(check_overflow_takes_no_finite_gradient_for_an_overflow),
        cmocka_unit_test(check_overflow_looks_at_every_gradient_of_a_dictionary),
        cmocka_unit_test(check_overflow_detects_both_in_every_dtype),
        cmocka_unit_test(check_overflow_of_no_gradients_is_false),
        cmocka_unit_test(what_overflows_is_found_in_the_unscaled_gradients_too),
        cmocka_unit_test(update_never_moves_the_scale),
        cmocka_unit_test(the_scale_tensor_is_a_scalar_of_the_scale),
        cmocka_unit_test(the_inverse_tensor_is_a_scalar_of_one_over_the_scale),
        cmocka_unit_test(the_scale_tensors_are_kept_and_not_made_anew),
        cmocka_unit_test(a_disabled_scaler_passes_the_loss_through),
        cmocka_unit_test(a_disabled_scaler_passes_gradients_through),
        cmocka_unit_test(a_disabled_scaler_keeps_its_scale_and_skips_no_step),
        cmocka_unit_test(a_scale_of_zero_inf_nan_or_below_zero_is_refused),
        cmocka_unit_test(the_least_and_the_largest_usable_scales_are_taken),
        cmocka_unit_test(a_loss_that_the_scale_takes_beyond_the_range_becomes_inf),
        cmocka_unit_test(a_static_scaler_has_the_interface),
        cmocka_unit_test(a_dynamic_scaler_has_the_same_interface),
        cmocka_unit_test(the_named_scales_are_those_of_the_specification),
        cmocka_unit_test(power_of_two_is_two_to_the_exponent),
        cmocka_unit_test(power_of_two_makes_the_named_scales),
        cmocka_unit_test(power_of_two_refuses_exponents_that_fp32_does_not_have),
        cmocka_unit_test(the_recommended_scale_helps_fp16_and_leaves_the_others_alone),
        cmocka_unit_test(usage_a_training_loop_steps_by_the_gradients_of_the_unscaled_loss),
        cmocka_unit_test(usage_an_overflow_skips_the_update_and_training_goes_on),
        cmocka_unit_test(usage_check_and_unscale_can_be_called_one_by_one),
    };
    return cmocka_run_group_tests(tests, spec_setup, NULL);
}
