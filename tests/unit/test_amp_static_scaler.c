/* The static loss scaler and the scale presets: every case that the specification lists, and bad input. */
#include "amp/cpu.h"
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

static struct amp_static_scaler made(float scale, bool enabled)
{
    struct amp_static_scaler scaler;
    assert_int_equal(amp_static_scaler_init(&scaler, kernels, scale, enabled, &error), 0);
    return scaler;
}

static const enum amp_dtype dtypes[] = {AMP_F32, AMP_F16, AMP_BF16};

/* ---- the scaler ---- */

static void loss_is_scaled_by_various_factors(void **state)
{
    static const float scales[] = {1, 2, 256, 65536, 0x1p20f, 0.5f, 3};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        struct amp_static_scaler scaler = made(scales[i], true);
        float loss = 2.5f, scaled = 0;
        struct amp_tensor in = {"loss", &loss, 1, AMP_F32}, out = {"scaled", &scaled, 1, AMP_F32};
        assert_int_equal(amp_static_scaler_scale_loss(&scaler, &in, &out, &error), 0);
        assert_true(scaled == 2.5f * scales[i] && loss == 2.5f);
        assert_int_equal(amp_static_scaler_scale_loss(&scaler, &in, &in, &error), 0);
        assert_true(loss == scaled);
    }
}

static void gradients_are_unscaled_accurately(void **state)
{
    struct amp_static_scaler scaler = made(AMP_STATIC_SCALER_DEFAULT, true);
    float a[] = {65536, -1, 1e-30f}, b[] = {3};
    float a_out[3], b_out[1];
    struct amp_tensor in[] = {{"a", a, 3, AMP_F32}, {"b", b, 1, AMP_F32}, {"none", NULL, 0, AMP_F32}};
    struct amp_tensor out[] = {{"a", a_out, 3, AMP_F32}, {"b", b_out, 1, AMP_F32}, {"none", NULL, 0, AMP_F32}};
    bool overflow = true;
    assert_int_equal(amp_static_scaler_unscale(&scaler, in, 3, out, &overflow, &error), 0);
    assert_false(overflow);
    for (size_t i = 0; i < 3; i++)
        assert_true(a_out[i] == a[i] / 65536);
    assert_true(b_out[0] == 3.0f / 65536);
    assert_int_equal(amp_static_scaler_unscale_one(&scaler, &in[1], &in[1], NULL, &error), 0);
    assert_true(b[0] == 3.0f / 65536);
}

/* What was scaled by a power of two comes back with its bits, denormals of fp16 apart. */
static void scaling_and_unscaling_with_each_dtype_gives_the_value_back(void **state)
{
    struct amp_static_scaler scaler = made(256, true);
    for (size_t d = 0; d < 3; d++) {
        float values[] = {1, -0.375f, 100, 0}, back[4];
        uint32_t stored[4];
        struct amp_tensor tensor = {"g", stored, 4, dtypes[d]};
        (void)kernels->store[dtypes[d]](stored, values, 4);
        assert_int_equal(amp_static_scaler_scale_loss(&scaler, &tensor, &tensor, &error), 0);
        kernels->load[dtypes[d]](back, stored, 4);
        assert_true(back[0] == 256 && back[1] == -96 && back[2] == 25600);
        assert_int_equal(amp_static_scaler_unscale_one(&scaler, &tensor, &tensor, NULL, &error), 0);
        kernels->load[dtypes[d]](back, stored, 4);
        assert_memory_equal(back, values, sizeof values);
    }
}

static void overflow_is_detected_in_inf_and_nan_gradients(void **state)
{
    struct amp_static_scaler scaler = made(1024, true);
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (size_t d = 0; d < 3; d++) {
        for (size_t i = 0; i < 3; i++) {
            float values[] = {1, bad[i]};
            uint32_t good[2], stored[2];
            (void)kernels->store[dtypes[d]](good, values, 1);
            (void)kernels->store[dtypes[d]](stored, values, 2);
            struct amp_tensor grads[] = {{"a", good, 1, dtypes[d]}, {"b", stored, 2, dtypes[d]}};
            bool overflow = false;
            assert_int_equal(amp_static_scaler_check_overflow(&scaler, grads, 2, &overflow, &error), 0);
            assert_true(overflow);
            assert_int_equal(amp_static_scaler_check_overflow_one(&scaler, &grads[0], &overflow, &error), 0);
            assert_false(overflow);
            assert_int_equal(amp_static_scaler_unscale(&scaler, grads, 2, grads, &overflow, &error), 0);
            assert_true(overflow);
        }
    }
}

static void a_disabled_scaler_passes_values_through_and_checks_nothing(void **state)
{
    struct amp_static_scaler scaler = made(1024, false);
    float data[] = {3, NAN}, out[2] = {0};
    struct amp_tensor in = {"g", data, 2, AMP_F32}, to = {"g", out, 2, AMP_F32};
    bool overflow = true;
    assert_false(amp_static_scaler_enabled(&scaler));
    assert_true(amp_static_scaler_scale(&scaler) == 1024);
    assert_int_equal(amp_static_scaler_scale_loss(&scaler, &in, &to, &error), 0);
    assert_memory_equal(out, data, sizeof data);
    out[0] = 0;
    assert_int_equal(amp_static_scaler_unscale(&scaler, &in, 1, &to, &overflow, &error), 0);
    assert_memory_equal(out, data, sizeof data);
    assert_false(overflow);
    assert_int_equal(amp_static_scaler_unscale_one(&scaler, &in, &in, NULL, &error), 0);
    overflow = true;
    assert_int_equal(amp_static_scaler_check_overflow(&scaler, &in, 1, &overflow, &error), 0);
    assert_false(overflow);
    assert_false(amp_static_scaler_update(&scaler, true));
    assert_int_equal(scaler.state.attempted, 0);
    assert_true(*(float *)amp_static_scaler_scale_tensor(&scaler).data == 1);
    assert_true(*(float *)amp_static_scaler_inverse_tensor(&scaler).data == 1);
}

static void update_never_moves_the_scale_and_tells_what_to_skip(void **state)
{
    struct amp_static_scaler scaler = made(8, true);
    for (unsigned i = 0; i < 5000; i++)
        assert_true(amp_static_scaler_update(&scaler, i % 3 == 0) == (i % 3 == 0));
    assert_true(amp_static_scaler_scale(&scaler) == 8 && scaler.state.scale == 8);
    assert_int_equal(scaler.state.attempted, 5000);
    assert_int_equal(scaler.state.total_overflows, 1667);
}

static void scale_and_inverse_are_scalar_tensors(void **state)
{
    struct amp_static_scaler scaler = made(3, true);
    struct amp_tensor scale = amp_static_scaler_scale_tensor(&scaler);
    struct amp_tensor inverse = amp_static_scaler_inverse_tensor(&scaler);
    assert_true(scale.count == 1 && scale.dtype == AMP_F32 && *(float *)scale.data == 3);
    assert_true(inverse.count == 1 && inverse.dtype == AMP_F32 && *(float *)inverse.data == (float)(1.0 / 3));
}

static void scales_of_zero_inf_and_other_edges_are_refused(void **state)
{
    static const float scales[] = {0, -0.0f, -1, INFINITY, -INFINITY, NAN, FLT_TRUE_MIN, 0x1.fffp-127f};
    struct amp_static_scaler scaler = made(2, true);
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        assert_int_equal(amp_static_scaler_init(&scaler, kernels, scales[i], true, &error), AMP_EINVAL);
        assert_int_equal(amp_static_scaler_init(&scaler, kernels, scales[i], false, &error), AMP_EINVAL);
        assert_non_null(strstr(error.text, "scale"));
    }
    assert_true(amp_static_scaler_scale(&scaler) == 2);
    assert_int_equal(amp_static_scaler_init(NULL, kernels, 2, true, &error), AMP_EINVAL);
    assert_int_equal(amp_static_scaler_init(&scaler, NULL, 2, true, &error), AMP_EINVAL);
    (void)made(FLT_MIN, true);
    (void)made(FLT_MAX, true);
}

static void bad_tensors_are_refused_enabled_or_not(void **state)
{
    double wide[1] = {1};
    struct amp_tensor bad = {"wide", wide, 1, AMP_F64};
    for (int enabled = 0; enabled < 2; enabled++) {
        struct amp_static_scaler scaler = made(2, enabled);
        bool overflow = true;
        assert_int_equal(amp_static_scaler_scale_loss(&scaler, NULL, &bad, &error), AMP_EINVAL);
        assert_int_equal(amp_static_scaler_scale_loss(&scaler, &bad, &bad, &error), AMP_EINVAL);
        assert_int_equal(amp_static_scaler_unscale(&scaler, NULL, 1, &bad, &overflow, &error), AMP_EINVAL);
        assert_int_equal(amp_static_scaler_check_overflow(&scaler, &bad, 1, &overflow, &error), AMP_EINVAL);
        assert_int_equal(amp_static_scaler_check_overflow_one(&scaler, NULL, &overflow, &error), AMP_EINVAL);
        assert_true(overflow && wide[0] == 1);
        assert_int_equal(amp_static_scaler_check_overflow(&scaler, NULL, 0, &overflow, &error), 0);
        assert_false(overflow);
    }
}

static void the_interface_does_what_the_scaler_does(void **state)
{
    struct amp_static_scaler scaler = made(4, true);
    struct amp_loss_scaler any = amp_static_scaler_interface(&scaler);
    float data[] = {1};
    struct amp_tensor tensor = {"g", data, 1, AMP_F32};
    bool overflow = true;
    assert_true(any.ops->scale(any.scaler) == 4 && any.ops->enabled(any.scaler));
    assert_int_equal(any.ops->scale_loss(any.scaler, &tensor, &tensor, &error), 0);
    assert_true(data[0] == 4);
    assert_int_equal(any.ops->unscale(any.scaler, &tensor, 1, &tensor, &overflow, &error), 0);
    assert_true(data[0] == 1 && !overflow);
    assert_int_equal(any.ops->check_overflow(any.scaler, &tensor, 1, &overflow, &error), 0);
    assert_false(overflow);
    assert_true(any.ops->update(any.scaler, true));
    assert_int_equal(scaler.state.total_overflows, 1);
}

/* ---- presets ---- */

static void presets_are_the_powers_of_two_that_they_name(void **state)
{
    assert_true(AMP_SCALE_NONE == 1 && AMP_SCALE_CONSERVATIVE == 0x1p8f && AMP_SCALE_MODERATE == 0x1p16f &&
                AMP_SCALE_AGGRESSIVE == 0x1p20f);
    assert_true(AMP_STATIC_SCALER_DEFAULT == 65536);
}

static void every_power_of_two_that_fp32_has_as_a_normal_number_is_exact(void **state)
{
    for (int exponent = -126; exponent <= 127; exponent++) {
        float scale = 0;
        assert_int_equal(amp_scale_power_of_two(exponent, &scale, &error), 0);
        assert_true(scale == ldexpf(1, exponent));
        (void)made(scale, true);
    }
}

static void exponents_without_a_normal_number_are_refused(void **state)
{
    static const int exponents[] = {-127, 128, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < 4; i++) {
        float scale = 7;
        assert_int_equal(amp_scale_power_of_two(exponents[i], &scale, &error), AMP_ERANGE);
        assert_true(scale == 7);
    }
}

static void only_fp16_is_recommended_a_scale(void **state)
{
    assert_true(amp_scale_recommended(AMP_F16) == AMP_SCALE_MODERATE);
    assert_true(amp_scale_recommended(AMP_BF16) == 1 && amp_scale_recommended(AMP_F32) == 1);
    assert_true(amp_scale_recommended(AMP_F64) == 1 && amp_scale_recommended(AMP_DTYPE_NONE) == 1);
}

#ifdef __SSE__
#include <xmmintrin.h>

static void the_inverse_is_the_same_where_denormals_are_flushed(void **state)
{
    struct amp_static_scaler scaler;
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040u); /* FTZ and DAZ */
    int code = amp_static_scaler_init(&scaler, kernels, 0x1p127f, true, &error);
    unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    assert_int_equal(code, 0);
    assert_int_equal(after & 0x8040u, 0x8040u);
    assert_true(scaler.inverse == 0x1p-127f);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_is_scaled_by_various_factors),
        cmocka_unit_test(gradients_are_unscaled_accurately),
        cmocka_unit_test(scaling_and_unscaling_with_each_dtype_gives_the_value_back),
        cmocka_unit_test(overflow_is_detected_in_inf_and_nan_gradients),
        cmocka_unit_test(a_disabled_scaler_passes_values_through_and_checks_nothing),
        cmocka_unit_test(update_never_moves_the_scale_and_tells_what_to_skip),
        cmocka_unit_test(scale_and_inverse_are_scalar_tensors),
#ifdef __SSE__
        cmocka_unit_test(the_inverse_is_the_same_where_denormals_are_flushed),
#endif
        cmocka_unit_test(scales_of_zero_inf_and_other_edges_are_refused),
        cmocka_unit_test(bad_tensors_are_refused_enabled_or_not),
        cmocka_unit_test(the_interface_does_what_the_scaler_does),
        cmocka_unit_test(presets_are_the_powers_of_two_that_they_name),
        cmocka_unit_test(every_power_of_two_that_fp32_has_as_a_normal_number_is_exact),
        cmocka_unit_test(exponents_without_a_normal_number_are_refused),
        cmocka_unit_test(only_fp16_is_recommended_a_scale),
    };
    return cmocka_run_group_tests(tests, pick_kernels, NULL);
}
