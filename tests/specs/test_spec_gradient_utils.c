/* The specification of gradient utilities, section by section: GradientUtils, OverflowStats, GradientClipper. */
#include "amp/clip.h"
#include "amp/grad.h"
#include "tests/specs/spec.h"

#include <float.h>

/* Of a gradient {values} in fp32, over `scale`. */
static float unscaled(float value, float scale)
{
    float out = -77;
    struct amp_tensor from = spec_f32("g", &value, 1);
    struct amp_tensor to = spec_f32("g", &out, 1);
    assert_int_equal(amp_grad_unscale(kernels, &from, scale, &to, NULL, &fault), 0);
    return out;
}

static bool overflows(const struct amp_tensor *gradients, size_t n)
{
    bool found = false;
    assert_int_equal(amp_grads_overflow(kernels, gradients, n, &found, &fault), 0);
    return found;
}

static bool one_overflows(const struct amp_tensor *gradient)
{
    bool found = false;
    assert_int_equal(amp_grad_overflow(kernels, gradient, &found, &fault), 0);
    return found;
}

/* Whether a function that looks for something finds it in {1, value, 2}. */
static bool finds(int (*look)(const struct amp_kernels *, const struct amp_tensor *, bool *, struct amp_error *),
                  float value)
{
    float values[] = {1, value, 2};
    struct amp_tensor tensor = spec_f32("t", values, 3);
    bool found = false;
    assert_int_equal(look(kernels, &tensor, &found, &fault), 0);
    return found;
}

static double norm_of(const struct amp_tensor *gradients, size_t n, double p)
{
    double norm = -1;
    assert_int_equal(amp_grads_norm(kernels, gradients, n, p, &norm, &fault), 0);
    return norm;
}

/* A gradient of {3, 4}, clipped to the norm. */
static void clip_three_four(double max_norm, double p, float out[2])
{
    float in[] = {3, 4};
    struct amp_tensor from = spec_f32("g", in, 2);
    struct amp_tensor to = spec_f32("g", out, 2);
    assert_int_equal(amp_grad_clip_by_norm(kernels, &from, max_norm, p, &to, NULL, &fault), 0);
}

static void assert_near(double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-6 * (fabs(expected) + 1e-30)))
        fail_msg("%.9g is not %.9g", value, expected);
}

/* ---- 1. GradientUtils.Unscale(tensor, scale); success criterion "divides by scale factor correctly" ---- */

static void unscale_divides_every_element_by_the_scale(void **state)
{
    float in[] = {8, -12, 0.5f}, out[3];
    struct amp_tensor from = spec_f32("g", in, 3);
    struct amp_tensor to = spec_f32("g", out, 3);
    assert_int_equal(amp_grad_unscale(kernels, &from, 4, &to, NULL, &fault), 0);
    assert_true(spec_holds(&to, (float[]){2, -3, 0.125f}));
}

static void unscale_leaves_the_gradient_that_it_was_given(void **state)
{
    float in[] = {8, -12}, out[2];
    struct amp_tensor from = spec_f32("g", in, 2);
    struct amp_tensor to = spec_f32("g", out, 2);
    assert_int_equal(amp_grad_unscale(kernels, &from, 4, &to, NULL, &fault), 0);
    assert_true(spec_holds(&from, (float[]){8, -12}));
}

static void unscale_by_powers_of_two_is_exact(void **state)
{
    for (int exponent = -20; exponent <= 24; exponent++)
        assert_true(unscaled(1.37f, ldexpf(1, exponent)) == ldexpf(1.37f, -exponent));
}

static void unscale_by_a_scale_below_one_makes_gradients_larger(void **state)
{
    assert_true(unscaled(3, 0.5f) == 6);
    assert_true(unscaled(-3, 0.125f) == -24);
}

static void unscale_by_other_scales_is_the_product_with_the_inverse(void **state)
{
    static const float scales[] = {3, 10, 1000, 1e-3f, 12345.678f};
    for (size_t i = 0; i < COUNT(scales); i++) {
        float inverse = 1.0f / scales[i];
        assert_true(unscaled(7, scales[i]) == 7 * inverse);
        assert_near(unscaled(7, scales[i]), 7.0 / scales[i]);
    }
}

static void unscale_by_one_gives_the_gradient_back(void **state)
{
    static const float values[] = {0, -0.0f, 1.37f, -FLT_MAX, FLT_MIN, 0x1p-149f};
    for (size_t i = 0; i < COUNT(values); i++) {
        float out = unscaled(values[i], 1);
        assert_memory_equal(&out, &values[i], sizeof out);
    }
}

static void unscale_keeps_zero_and_its_sign(void **state)
{
    assert_true(unscaled(0, 65536) == 0 && !signbit(unscaled(0, 65536)));
    assert_true(unscaled(-0.0f, 65536) == 0 && signbit(unscaled(-0.0f, 65536)));
}

static void unscale_keeps_inf_and_nan(void **state)
{
    assert_true(unscaled(INFINITY, 65536) == INFINITY);
    assert_true(unscaled(-INFINITY, 65536) == -INFINITY);
    assert_true(isnan(unscaled(NAN, 65536)));
}

/* "Tensor.Scalar(1.0f / scale, gradient.Dtype)": the result has the gradient's dtype. */
static void unscale_works_in_the_dtype_of_the_gradient(void **state)
{
    static const enum amp_dtype dtypes[] = {AMP_F16, AMP_BF16, AMP_F32};
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        struct spec_memory in, out;
        struct amp_tensor from = spec_tensor(&in, dtypes[i], (float[]){64, -48, 0}, 3);
        struct amp_tensor to = spec_tensor(&out, dtypes[i], (float[]){9, 9, 9}, 3);
        assert_int_equal(amp_grad_unscale(kernels, &from, 16, &to, NULL, &fault), 0);
        assert_true(spec_holds(&to, (float[]){4, -3, 0}));
    }
}

/* ---- 1. GradientUtils.Unscale(dictionary, scale) ---- */

static void unscale_of_a_dictionary_unscales_every_entry(void **state)
{
    float a[] = {2, 4}, b[] = {-6}, a_out[2], b_out[1];
    struct amp_tensor in[] = {spec_f32("a", a, 2), spec_f32("b", b, 1)};
    struct amp_tensor out[] = {spec_f32("a", a_out, 2), spec_f32("b", b_out, 1)};
    assert_int_equal(amp_grads_unscale(kernels, in, 2, 2, out, NULL, &fault), 0);
    assert_true(spec_holds(&out[0], (float[]){1, 2}));
    assert_true(spec_holds(&out[1], (float[]){-3}));
}

static void unscale_of_a_dictionary_gives_what_unscale_of_each_gives(void **state)
{
    float a[] = {0.1f, 1e30f, -5}, all[3];
    struct amp_tensor in[] = {spec_f32("a", a, 3)};
    struct amp_tensor out[] = {spec_f32("a", all, 3)};
    assert_int_equal(amp_grads_unscale(kernels, in, 1, 777, out, NULL, &fault), 0);
    assert_true(spec_holds(&out[0], (float[]){unscaled(0.1f, 777), unscaled(1e30f, 777), unscaled(-5, 777)}));
}

static void unscale_of_a_dictionary_by_one_gives_the_same_gradients(void **state)
{
    float a[] = {1.5f, NAN}, out_a[] = {9, 9};
    struct amp_tensor in[] = {spec_f32("a", a, 2)};
    struct amp_tensor out[] = {spec_f32("a", out_a, 2)};
    assert_int_equal(amp_grads_unscale(kernels, in, 1, 1, out, NULL, &fault), 0);
    assert_memory_equal(a, out_a, sizeof a);
}

static void unscale_of_a_dictionary_takes_entries_of_different_dtypes(void **state)
{
    float a[] = {32};
    struct spec_memory low;
    struct amp_tensor grads[] = {spec_f32("a", a, 1), spec_tensor(&low, AMP_F16, (float[]){64}, 1)};
    assert_int_equal(amp_grads_unscale(kernels, grads, 2, 32, grads, NULL, &fault), 0);
    assert_true(a[0] == 1 && spec_at(&grads[1], 0) == 2);
}

/* ---- 1. GradientUtils.UnscaleInPlace ---- */

static void unscale_in_place_writes_into_the_gradient_itself(void **state)
{
    float values[] = {512, -256};
    struct amp_tensor gradient = spec_f32("g", values, 2);
    assert_int_equal(amp_grad_unscale_in_place(kernels, &gradient, 256, NULL, &fault), 0);
    assert_true(values[0] == 2 && values[1] == -1);
}

static void unscale_in_place_gives_what_unscale_gives(void **state)
{
    float values[] = {0.1f, -3e-20f};
    struct amp_tensor gradient = spec_f32("g", values, 2);
    float first = unscaled(values[0], 999), second = unscaled(values[1], 999);
    assert_int_equal(amp_grad_unscale_in_place(kernels, &gradient, 999, NULL, &fault), 0);
    assert_true(values[0] == first && values[1] == second);
}

static void unscale_in_place_by_one_changes_nothing(void **state)
{
    float values[] = {0.1f, -0.0f}, before[2];
    struct amp_tensor gradient = spec_f32("g", values, 2);
    memcpy(before, values, sizeof before);
    assert_int_equal(amp_grad_unscale_in_place(kernels, &gradient, 1, NULL, &fault), 0);
    assert_memory_equal(values, before, sizeof before);
}

/* ---- 1. CheckOverflow(tensor), IsInf, IsNaN, IsInfOrNaN: CheckOverflow is IsInf or IsNaN ---- */

static void check_overflow_detects_inf_of_either_sign(void **state)
{
    assert_true(finds(amp_grad_overflow, INFINITY));
    assert_true(finds(amp_grad_overflow, -INFINITY));
}

static void check_overflow_detects_nan(void **state)
{
    assert_true(finds(amp_grad_overflow, NAN));
    assert_true(finds(amp_grad_overflow, -NAN));
}

static void check_overflow_takes_no_finite_value_for_an_overflow(void **state)
{
    static const float values[] = {0, -0.0f, 1, FLT_MAX, -FLT_MAX, FLT_MIN, 0x1p-149f};
    for (size_t i = 0; i < COUNT(values); i++)
        assert_false(finds(amp_grad_overflow, values[i]));
}

static void is_inf_finds_inf_and_not_nan(void **state)
{
    assert_true(finds(amp_grad_is_inf, INFINITY));
    assert_true(finds(amp_grad_is_inf, -INFINITY));
    assert_false(finds(amp_grad_is_inf, NAN));
    assert_false(finds(amp_grad_is_inf, FLT_MAX));
}

static void is_nan_finds_nan_and_not_inf(void **state)
{
    assert_true(finds(amp_grad_is_nan, NAN));
    assert_false(finds(amp_grad_is_nan, INFINITY));
    assert_false(finds(amp_grad_is_nan, FLT_MAX));
}

static void is_inf_or_nan_finds_both(void **state)
{
    assert_true(finds(amp_grad_is_inf_or_nan, INFINITY));
    assert_true(finds(amp_grad_is_inf_or_nan, NAN));
    assert_false(finds(amp_grad_is_inf_or_nan, -FLT_MAX));
}

static void check_overflow_finds_one_element_wherever_it_is(void **state)
{
    for (size_t at = 0; at < SPEC_ELEMENTS_MAX; at++) {
        float values[SPEC_ELEMENTS_MAX] = {0};
        values[at] = at % 2 ? INFINITY : NAN;
        struct amp_tensor gradient = spec_f32("g", values, SPEC_ELEMENTS_MAX);
        assert_true(one_overflows(&gradient));
    }
}

static void check_overflow_detects_both_in_every_dtype(void **state)
{
    static const enum amp_dtype dtypes[] = {AMP_F16, AMP_BF16, AMP_F32};
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        struct spec_memory memory;
        struct amp_tensor gradient = spec_tensor(&memory, dtypes[i], (float[]){1, INFINITY}, 2);
        assert_true(one_overflows(&gradient));
        gradient = spec_tensor(&memory, dtypes[i], (float[]){NAN, 1}, 2);
        assert_true(one_overflows(&gradient));
        gradient = spec_tensor(&memory, dtypes[i], (float[]){-1, 1}, 2);
        assert_false(one_overflows(&gradient));
    }
}

static void a_gradient_beyond_the_range_of_fp16_is_an_overflow_in_fp16(void **state)
{
    struct spec_memory memory;
    struct amp_tensor gradient = spec_tensor(&memory, AMP_F16, (float[]){65504}, 1);
    assert_false(one_overflows(&gradient));
    gradient = spec_tensor(&memory, AMP_F16, (float[]){65536}, 1);
    assert_true(one_overflows(&gradient));
}

/* ---- 1. CheckOverflow(dictionary) and CheckOverflow(array): "True if any overflow detected" ---- */

static void check_overflow_of_several_tensors_finds_one_in_any_of_them(void **state)
{
    for (size_t at = 0; at < 3; at++) {
        float values[3] = {1, 2, 3};
        struct amp_tensor grads[] = {spec_f32("a", values, 1), spec_f32("b", values + 1, 1),
                                     spec_f32("c", values + 2, 1)};
        assert_false(overflows(grads, 3));
        values[at] = NAN;
        assert_true(overflows(grads, 3));
    }
}

static void check_overflow_of_an_array_does_not_need_names(void **state)
{
    float good[] = {1}, bad[] = {INFINITY};
    struct amp_tensor tensors[] = {spec_f32(NULL, good, 1), spec_f32(NULL, bad, 1)};
    assert_false(overflows(tensors, 1));
    assert_true(overflows(tensors, 2));
}

static void check_overflow_leaves_the_gradients_as_they_are(void **state)
{
    float values[] = {1, INFINITY, NAN}, before[3];
    struct amp_tensor gradient = spec_f32("g", values, 3);
    memcpy(before, values, sizeof before);
    assert_true(one_overflows(&gradient));
    assert_memory_equal(values, before, sizeof before);
}

/* ---- 1. FindOverflowGradients: "List of parameter names with overflow" ---- */

static void find_overflow_gradients_names_them_in_order(void **state)
{
    float good[] = {1}, inf[] = {0, INFINITY}, nan[] = {NAN};
    struct amp_tensor grads[] = {spec_f32("w1", inf, 2), spec_f32("b1", good, 1), spec_f32("w2", nan, 1)};
    const char *names[3];
    size_t count = 99;
    assert_int_equal(amp_grads_find_overflow(kernels, grads, 3, names, &count, &fault), 0);
    assert_int_equal(count, 2);
    assert_string_equal(names[0], "w1");
    assert_string_equal(names[1], "w2");
}

static void find_overflow_gradients_finds_none_where_all_are_finite(void **state)
{
    float good[] = {1, FLT_MAX};
    struct amp_tensor grads[] = {spec_f32("w", good, 2)};
    const char *names[1];
    size_t count = 99;
    assert_int_equal(amp_grads_find_overflow(kernels, grads, 1, names, &count, &fault), 0);
    assert_int_equal(count, 0);
}

static void find_overflow_gradients_names_one_with_many_overflows_once(void **state)
{
    float bad[] = {INFINITY, NAN, -INFINITY};
    struct amp_tensor grads[] = {spec_f32("w", bad, 3)};
    const char *names[1];
    size_t count = 99;
    assert_int_equal(amp_grads_find_overflow(kernels, grads, 1, names, &count, &fault), 0);
    assert_int_equal(count, 1);
}

/* ---- 2. OverflowStats and GetOverflowStats ---- */

static void overflow_stats_of_a_dictionary_count_gradients_and_overflows(void **state)
{
    float good[] = {1}, bad[] = {NAN};
    struct amp_tensor grads[] = {spec_f32("a", good, 1), spec_f32("b", bad, 1), spec_f32("c", good, 1),
                                 spec_f32("d", good, 1)};
    const char *names[4];
    struct amp_overflow_stats stats;
    assert_int_equal(amp_grads_overflow_stats(kernels, grads, 4, names, &stats, &fault), 0);
    assert_int_equal(stats.total_gradients, 4);
    assert_int_equal(stats.overflow_count, 1);
    assert_string_equal(stats.overflow_parameters[0], "b");
    assert_true(stats.overflow_rate == 0.25f);
    assert_true(amp_overflow_stats_has_overflow(&stats));
}

static void overflow_stats_without_an_overflow_have_none_and_rate_zero(void **state)
{
    float good[] = {1};
    struct amp_tensor grads[] = {spec_f32("a", good, 1)};
    const char *names[1];
    struct amp_overflow_stats stats;
    assert_int_equal(amp_grads_overflow_stats(kernels, grads, 1, names, &stats, &fault), 0);
    assert_int_equal(stats.overflow_count, 0);
    assert_true(stats.overflow_rate == 0);
    assert_false(amp_overflow_stats_has_overflow(&stats));
}

static void overflow_stats_are_made_of_the_counts_and_names_that_are_given(void **state)
{
    static const char *const names[] = {"x", "y"};
    struct amp_overflow_stats stats;
    assert_int_equal(amp_overflow_stats_init(&stats, 8, 2, names, &fault), 0);
    assert_int_equal(stats.total_gradients, 8);
    assert_int_equal(stats.overflow_count, 2);
    assert_string_equal(stats.overflow_parameters[1], "y");
    assert_true(stats.overflow_rate == 0.25f);
}

static void overflow_stats_with_all_gradients_overflowing_have_rate_one(void **state)
{
    static const char *const names[] = {"x", "y"};
    struct amp_overflow_stats stats;
    assert_int_equal(amp_overflow_stats_init(&stats, 2, 2, names, &fault), 0);
    assert_true(stats.overflow_rate == 1);
}

static void overflow_stats_have_a_string_with_their_counts_and_names(void **state)
{
    static const char *const names[] = {"conv1", "fc"};
    struct amp_overflow_stats stats;
    char text[128];
    assert_int_equal(amp_overflow_stats_init(&stats, 8, 2, names, &fault), 0);
    size_t length = amp_overflow_stats_text(&stats, text, sizeof text);
    assert_int_equal(length, strlen(text));
    assert_non_null(strstr(text, "8"));
    assert_non_null(strstr(text, "2"));
    assert_non_null(strstr(text, "conv1, fc"));
}

/* ---- 3. GradientClipper.ClipByValue: "clamp between -clipValue and +clipValue" ---- */

static void clip_by_value_clamps_to_both_sides_and_leaves_the_rest(void **state)
{
    float in[] = {-3, -1, -0.5f, 0, 0.5f, 1, 3}, out[7];
    struct amp_tensor from = spec_f32("g", in, 7);
    struct amp_tensor to = spec_f32("g", out, 7);
    assert_int_equal(amp_clip_by_value(kernels, &from, 1, &to, &fault), 0);
    assert_true(spec_holds(&to, (float[]){-1, -1, -0.5f, 0, 0.5f, 1, 1}));
}

static void clip_by_value_of_zero_makes_every_element_zero(void **state)
{
    float values[] = {-3, 0.5f};
    struct amp_tensor gradient = spec_f32("g", values, 2);
    assert_int_equal(amp_clip_by_value(kernels, &gradient, 0, &gradient, &fault), 0);
    assert_true(values[0] == 0 && values[1] == 0);
}

static void clip_by_value_works_in_every_dtype(void **state)
{
    static const enum amp_dtype dtypes[] = {AMP_F16, AMP_BF16, AMP_F32};
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        struct spec_memory memory;
        struct amp_tensor gradient = spec_tensor(&memory, dtypes[i], (float[]){-9, 1, 9}, 3);
        assert_int_equal(amp_clip_by_value(kernels, &gradient, 2, &gradient, &fault), 0);
        assert_true(spec_holds(&gradient, (float[]){-2, 1, 2}));
    }
}

/* ---- 3. GradientClipper.ClipByNorm(tensor): gradient * min(maxNorm / (norm + 1e-6), 1) ---- */

static void clip_by_norm_scales_a_gradient_down_to_the_norm(void **state)
{
    float out[2];
    clip_three_four(1, AMP_CLIP_L2, out);
    assert_near(out[0], 3 / (5 + 1e-6));
    assert_near(out[1], 4 / (5 + 1e-6));
}

static void clip_by_norm_never_increases_a_gradient(void **state)
{
    float out[2];
    clip_three_four(100, AMP_CLIP_L2, out);
    assert_true(out[0] == 3 && out[1] == 4);
}

static void clip_by_norm_adds_an_epsilon_to_the_norm(void **state)
{
    float value = 1e-6f, out;
    struct amp_tensor from = spec_f32("g", &value, 1);
    struct amp_tensor to = spec_f32("g", &out, 1);
    assert_int_equal(amp_grad_clip_by_norm(kernels, &from, 1e-6, AMP_CLIP_L2, &to, NULL, &fault), 0);
    assert_near(out, 0.5e-6);
}

static void the_usual_norm_of_clipping_is_l2(void **state)
{
    assert_true(AMP_CLIP_L2 == 2);
}

static void clip_by_norm_takes_other_norms(void **state)
{
    float out[2];
    clip_three_four(1, 1, out);
    assert_near(out[0], 3 / (7 + 1e-6));
    clip_three_four(1, 3, out);
    assert_near(out[1], 4 / (cbrt(27 + 64) + 1e-6));
}

static void clip_by_norm_of_zeros_gives_zeros(void **state)
{
    float values[] = {0, 0};
    struct amp_tensor gradient = spec_f32("g", values, 2);
    assert_int_equal(amp_grad_clip_by_norm(kernels, &gradient, 1, AMP_CLIP_L2, &gradient, NULL, &fault), 0);
    assert_true(values[0] == 0 && values[1] == 0);
}

static void clip_by_norm_to_a_norm_of_zero_gives_zeros(void **state)
{
    float out[2];
    clip_three_four(0, AMP_CLIP_L2, out);
    assert_true(out[0] == 0 && out[1] == 0);
}

/* ---- 3. GradientClipper.ClipByNorm(dictionary), ComputeNorm: (sum of norm^p)^(1/p) ---- */

static void clip_by_norm_of_a_dictionary_scales_all_by_the_norm_of_all(void **state)
{
    float a[] = {3}, b[] = {4};
    struct amp_tensor grads[] = {spec_f32("a", a, 1), spec_f32("b", b, 1)};
    assert_int_equal(amp_grads_clip_by_norm(kernels, grads, 2, 1, AMP_CLIP_L2, grads, NULL, &fault), 0);
    assert_near(a[0], 3 / (5 + 1e-6));
    assert_near(b[0], 4 / (5 + 1e-6));
}

static void clip_by_norm_of_a_dictionary_within_the_norm_changes_nothing(void **state)
{
    float a[] = {3}, b[] = {4};
    struct amp_tensor grads[] = {spec_f32("a", a, 1), spec_f32("b", b, 1)};
    assert_int_equal(amp_grads_clip_by_norm(kernels, grads, 2, 6, AMP_CLIP_L2, grads, NULL, &fault), 0);
    assert_true(a[0] == 3 && b[0] == 4);
}

static void compute_norm_of_one_gradient_is_its_l2_norm(void **state)
{
    float a[] = {3, -4};
    struct amp_tensor gradient = spec_f32("a", a, 2);
    assert_near(norm_of(&gradient, 1, AMP_CLIP_L2), 5);
}

static void compute_norm_of_a_dictionary_is_that_of_all_elements_together(void **state)
{
    float a[] = {1, 2}, b[] = {2}, c[] = {4};
    struct amp_tensor grads[] = {spec_f32("a", a, 2), spec_f32("b", b, 1), spec_f32("c", c, 1)};
    assert_near(norm_of(grads, 3, AMP_CLIP_L2), 5);
}

static void compute_norm_takes_other_norms(void **state)
{
    float a[] = {-1, 2}, b[] = {-3};
    struct amp_tensor grads[] = {spec_f32("a", a, 2), spec_f32("b", b, 1)};
    assert_near(norm_of(grads, 2, 1), 6);
    assert_near(norm_of(grads, 2, 3), cbrt(36));
    assert_near(norm_of(grads, 2, 0.5), pow(1 + sqrt(2) + sqrt(3), 2));
}

static void compute_norm_of_zeros_is_zero(void **state)
{
    float a[] = {0, -0.0f};
    struct amp_tensor gradient = spec_f32("a", a, 2);
    assert_true(norm_of(&gradient, 1, AMP_CLIP_L2) == 0);
}

/* ---- Usage examples ---- */

static void usage_basic_unscaling_hands_the_optimizer_the_gradients_of_the_unscaled_loss(void **state)
{
    float true_gradient = 1e-7f; /* less than the least of fp16, if it were not scaled */
    struct spec_memory scaled, result;
    struct amp_tensor gradient = spec_tensor(&scaled, AMP_F16, (float[]){true_gradient * 65536}, 1);
    struct amp_tensor out = spec_tensor(&result, AMP_F32, (float[]){0}, 1);
    assert_int_equal(amp_grads_unscale(kernels, &gradient, 1, 65536, &out, NULL, &fault), 0);
    assert_true(fabsf(spec_at(&out, 0) - true_gradient) < true_gradient / 1024);
}

static void usage_overflow_checking_asks_for_names_where_there_is_an_overflow(void **state)
{
    float good[] = {1}, bad[] = {INFINITY};
    struct amp_tensor grads[] = {spec_f32("fc.weight", bad, 1), spec_f32("fc.bias", good, 1)};
    const char *names[2];
    size_t count = 0;
    assert_true(overflows(grads, 2));
    assert_int_equal(amp_grads_find_overflow(kernels, grads, 2, names, &count, &fault), 0);
    assert_int_equal(count, 1);
    assert_string_equal(names[0], "fc.weight");
}

static void usage_gradient_clipping_makes_the_norm_at_most_the_limit(void **state)
{
    float a[] = {30}, b[] = {-40, 1};
    struct amp_tensor grads[] = {spec_f32("a", a, 1), spec_f32("b", b, 2)};
    assert_int_equal(amp_grads_clip_by_norm(kernels, grads, 2, 1, AMP_CLIP_L2, grads, NULL, &fault), 0);
    assert_true(norm_of(grads, 2, AMP_CLIP_L2) <= 1 + 1e-6);
}

static void usage_combined_unscales_checks_and_then_clips(void **state)
{
    float a[] = {3 * 1024.0f}, b[] = {4 * 1024.0f};
    struct amp_tensor grads[] = {spec_f32("a", a, 1), spec_f32("b", b, 1)};
    assert_int_equal(amp_grads_unscale(kernels, grads, 2, 1024, grads, NULL, &fault), 0);
    assert_false(overflows(grads, 2));
    assert_int_equal(amp_grads_clip_by_norm(kernels, grads, 2, 1, AMP_CLIP_L2, grads, NULL, &fault), 0);
    assert_near(a[0], 0.6 * 5 / (5 + 1e-6));
    assert_near(b[0], 0.8 * 5 / (5 + 1e-6));
}

/* ---- Testing requirements: edge cases (scale = 0, scale = Inf, empty gradients) ---- */

static void unscale_by_zero_or_inf_is_refused_and_writes_nothing(void **state)
{
    static const float scales[] = {0, -0.0f, INFINITY, -INFINITY, NAN, -2};
    for (size_t i = 0; i < COUNT(scales); i++) {
        float value = 5;
        struct amp_tensor gradient = spec_f32("g", &value, 1);
        spec_refused(amp_grad_unscale_in_place(kernels, &gradient, scales[i], NULL, &fault), AMP_EINVAL, "scale");
        assert_true(value == 5);
    }
}

static void an_empty_dictionary_is_unscaled_checked_and_measured_as_nothing(void **state)
{
    const char *names[1];
    struct amp_overflow_stats stats;
    assert_int_equal(amp_grads_unscale(kernels, NULL, 0, 2, NULL, NULL, &fault), 0);
    assert_false(overflows(NULL, 0));
    assert_true(norm_of(NULL, 0, AMP_CLIP_L2) == 0);
    assert_int_equal(amp_grads_overflow_stats(kernels, NULL, 0, names, &stats, &fault), 0);
    assert_int_equal(stats.total_gradients, 0);
    assert_false(amp_overflow_stats_has_overflow(&stats));
}

static void an_empty_gradient_has_no_overflow_and_norm_zero(void **state)
{
    float nothing[1] = {NAN};
    struct amp_tensor gradient = spec_f32("g", nothing, 0);
    assert_false(one_overflows(&gradient));
    assert_true(norm_of(&gradient, 1, AMP_CLIP_L2) == 0);
    assert_int_equal(amp_grad_unscale_in_place(kernels, &gradient, 2, NULL, &fault), 0);
}

int main(void)
{
    static const struct CMUnitTest unscale[] = {
        cmocka_unit_test(unscale_divides_every_element_by_the_scale),
        cmocka_unit_test(unscale_leaves_the_gradient_that_it_was_given),
        cmocka_unit_test(unscale_by_powers_of_two_is_exact),
        cmocka_unit_test(unscale_by_a_scale_below_one_makes_gradients_larger),
        cmocka_unit_test(unscale_by_other_scales_is_the_product_with_the_inverse),
        cmocka_unit_test(unscale_by_one_gives_the_gradient_back),
        cmocka_unit_test(unscale_keeps_zero_and_its_sign),
        cmocka_unit_test(unscale_keeps_inf_and_nan),
        cmocka_unit_test(unscale_works_in_the_dtype_of_the_gradient),
        cmocka_unit_test(unscale_of_a_dictionary_unscales_every_entry),
        cmocka_unit_test(unscale_of_a_dictionary_gives_what_unscale_of_each_gives),
        cmocka_unit_test(unscale_of_a_dictionary_by_one_gives_the_same_gradients),
        cmocka_unit_test(unscale_of_a_dictionary_takes_entries_of_different_dtypes),
        cmocka_unit_test(unscale_in_place_writes_into_the_gradient_itself),
        cmocka_unit_test(unscale_in_place_gives_what_unscale_gives),
        cmocka_unit_test(unscale_in_place_by_one_changes_nothing),
        cmocka_unit_test(unscale_by_zero_or_inf_is_refused_and_writes_nothing),
    };
    static const struct CMUnitTest overflow[] = {
        cmocka_unit_test(check_overflow_detects_inf_of_either_sign),
        cmocka_unit_test(check_overflow_detects_nan),
        cmocka_unit_test(check_overflow_takes_no_finite_value_for_an_overflow),
        cmocka_unit_test(is_inf_finds_inf_and_not_nan),
        cmocka_unit_test(is_nan_finds_nan_and_not_inf),
        cmocka_unit_test(is_inf_or_nan_finds_both),
        cmocka_unit_test(check_overflow_finds_one_element_wherever_it_is),
        cmocka_unit_test(check_overflow_detects_both_in_every_dtype),
        cmocka_unit_test(a_gradient_beyond_the_range_of_fp16_is_an_overflow_in_fp16),
        cmocka_unit_test(check_overflow_of_several_tensors_finds_one_in_any_of_them),
        cmocka_unit_test(check_overflow_of_an_array_does_not_need_names),
        cmocka_unit_test(check_overflow_leaves_the_gradients_as_they_are),
        cmocka_unit_test(find_overflow_gradients_names_them_in_order),
        cmocka_unit_test(find_overflow_gradients_finds_none_where_all_are_finite),
        cmocka_unit_test(find_overflow_gradients_names_one_with_many_overflows_once),
        cmocka_unit_test(overflow_stats_of_a_dictionary_count_gradients_and_overflows),
        cmocka_unit_test(overflow_stats_without_an_overflow_have_none_and_rate_zero),
        cmocka_unit_test(overflow_stats_are_made_of_the_counts_and_names_that_are_given),
        cmocka_unit_test(overflow_stats_with_all_gradients_overflowing_have_rate_one),
        cmocka_unit_test(overflow_stats_have_a_string_with_their_counts_and_names),
    };
    static const struct CMUnitTest clip[] = {
        cmocka_unit_test(clip_by_value_clamps_to_both_sides_and_leaves_the_rest),
        cmocka_unit_test(clip_by_value_of_zero_makes_every_element_zero),
        cmocka_unit_test(clip_by_value_works_in_every_dtype),
        cmocka_unit_test(clip_by_norm_scales_a_gradient_down_to_the_norm),
        cmocka_unit_test(clip_by_norm_never_increases_a_gradient),
        cmocka_unit_test(clip_by_norm_adds_an_epsilon_to_the_norm),
        cmocka_unit_test(the_usual_norm_of_clipping_is_l2),
        cmocka_unit_test(clip_by_norm_takes_other_norms),
        cmocka_unit_test(clip_by_norm_of_zeros_gives_zeros),
        cmocka_unit_test(clip_by_norm_to_a_norm_of_zero_gives_zeros),
        cmocka_unit_test(clip_by_norm_of_a_dictionary_scales_all_by_the_norm_of_all),
        cmocka_unit_test(clip_by_norm_of_a_dictionary_within_the_norm_changes_nothing),
        cmocka_unit_test(compute_norm_of_one_gradient_is_its_l2_norm),
        cmocka_unit_test(compute_norm_of_a_dictionary_is_that_of_all_elements_together),
        cmocka_unit_test(compute_norm_takes_other_norms),
        cmocka_unit_test(compute_norm_of_zeros_is_zero),
        cmocka_unit_test(usage_basic_unscaling_hands_the_optimizer_the_gradients_of_the_unscaled_loss),
        cmocka_unit_test(usage_overflow_checking_asks_for_names_where_there_is_an_overflow),
        cmocka_unit_test(usage_gradient_clipping_makes_the_norm_at_most_the_limit),
        cmocka_unit_test(usage_combined_unscales_checks_and_then_clips),
        cmocka_unit_test(an_empty_dictionary_is_unscaled_checked_and_measured_as_nothing),
        cmocka_unit_test(an_empty_gradient_has_no_overflow_and_norm_zero),
    };
    return cmocka_run_group_tests(unscale, spec_setup, NULL) + cmocka_run_group_tests(overflow, spec_setup, NULL) +
           cmocka_run_group_tests(clip, spec_setup, NULL);
}
