/* Gradient clipping: by value, by p-norm, the global norm of a dictionary; every case that the specification lists. */
#include "amp/cast.h"
#include "amp/clip.h"
#include "amp/cpu.h"
#include "amp/grad.h"
#include "amp/optim.h"

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

static struct amp_tensor f32(const char *name, float *data, size_t count)
{
    return (struct amp_tensor){name, data, count, AMP_F32};
}

static bool close_to(double have, double want)
{
    return fabs(have - want) <= 1e-6 * fabs(want);
}

/* ---- by value ---- */

static void clip_by_value_clamps_to_both_sides(void **state)
{
    float in[] = {-3, -1, -0.5f, -0.0f, 0, 0.5f, 1, 3, INFINITY, -INFINITY, NAN}, out[11];
    static const float expected[] = {-1, -1, -0.5f, -0.0f, 0, 0.5f, 1, 1, 1, -1};
    struct amp_tensor from = f32("g", in, 11), to = f32("g", out, 11);
    assert_int_equal(amp_clip_by_value(kernels, &from, 1, &to, &error), 0);
    assert_memory_equal(out, expected, sizeof expected);
    assert_true(isnan(out[10]) && in[0] == -3);
    assert_int_equal(amp_clip_by_value(kernels, &from, 1, &from, &error), 0);
    assert_memory_equal(in, out, sizeof out);
}

static void clip_by_value_takes_zero_and_infinity_as_limits(void **state)
{
    float data[] = {-3, 2, FLT_MAX};
    struct amp_tensor g = f32("g", data, 3);
    assert_int_equal(amp_clip_by_value(kernels, &g, INFINITY, &g, &error), 0);
    assert_true(data[0] == -3 && data[2] == FLT_MAX);
    assert_int_equal(amp_clip_by_value(kernels, &g, 0, &g, &error), 0);
    assert_true(data[0] == 0 && data[1] == 0 && data[2] == 0);
}

static void clip_by_value_works_on_each_dtype_and_any_length(void **state)
{
    static const enum amp_dtype dtypes[] = {AMP_F32, AMP_F16, AMP_BF16};
    static float values[3000], back[3000];
    static uint32_t stored[3000];
    for (size_t i = 0; i < 3000; i++)
        values[i] = (float)(i % 64) - 32;
    for (size_t d = 0; d < 3; d++) {
        struct amp_tensor g = {"g", stored, 2999, dtypes[d]};
        (void)kernels->store[dtypes[d]](stored, values, 3000);
        assert_int_equal(amp_clip_by_value(kernels, &g, 10, &g, &error), 0);
        kernels->load[dtypes[d]](back, stored, 3000);
        for (size_t i = 0; i < 2999; i++)
            assert_true(back[i] == fmaxf(-10, fminf(10, values[i])));
        assert_true(back[2999] == values[2999]);
    }
}

static void clip_by_value_refuses_negative_and_nan_limits(void **state)
{
    float data[] = {5};
    struct amp_tensor g = f32("g", data, 1);
    assert_int_equal(amp_clip_by_value(kernels, &g, -1, &g, &error), AMP_EINVAL);
    assert_int_equal(amp_clip_by_value(kernels, &g, NAN, &g, &error), AMP_EINVAL);
    assert_int_equal(amp_clip_by_value(kernels, &g, -INFINITY, &g, &error), AMP_EINVAL);
    assert_int_equal(amp_clip_by_value(kernels, NULL, 1, &g, &error), AMP_EINVAL);
    assert_true(data[0] == 5);
}

static void clip_by_value_passes_over_missing_and_empty_gradients(void **state)
{
    float data[] = {5};
    struct amp_tensor missing = {"none", NULL, 3, AMP_F32}, empty = f32("empty", data, 0);
    assert_int_equal(amp_clip_by_value(kernels, &missing, 1, &missing, &error), 0);
    assert_int_equal(amp_clip_by_value(kernels, &empty, 1, &empty, &error), 0);
    assert_true(data[0] == 5);
}

/* ---- the norm ---- */

static void compute_norm_is_the_global_norm_of_a_dictionary(void **state)
{
    float a[] = {3, 0}, b[] = {-4}, c[] = {12};
    struct amp_tensor grads[] = {f32("a", a, 2), f32("b", b, 1), {"none", NULL, 9, AMP_F32}, f32("c", c, 1)};
    static const double ps[] = {1, 2, 3, 2.5, 77};
    double norm = -1;
    for (size_t i = 0; i < sizeof ps / sizeof ps[0]; i++) {
        double expected = pow(pow(3, ps[i]) + pow(4, ps[i]) + pow(12, ps[i]), 1 / ps[i]);
        assert_int_equal(amp_grads_norm(kernels, grads, 4, ps[i], &norm, &error), 0);
        assert_true(close_to(norm, expected));
    }
    assert_int_equal(amp_grads_norm(kernels, grads, 4, 1, &norm, &error), 0);
    assert_true(norm == 19);
    assert_int_equal(amp_grads_norm(kernels, grads, 4, AMP_CLIP_L2, &norm, &error), 0);
    assert_true(norm == 13);
    assert_int_equal(amp_grads_norm(kernels, grads, 4, (double)INFINITY, &norm, &error), 0);
    assert_true(norm == 12);
}

static void compute_norm_of_nothing_is_zero(void **state)
{
    float data[] = {7};
    struct amp_tensor rows[] = {{"none", NULL, 9, AMP_F32}, f32("empty", data, 0)};
    for (int p = 1; p < 4; p++) {
        double norm = -1;
        assert_int_equal(amp_grads_norm(kernels, NULL, 0, p, &norm, &error), 0);
        assert_true(norm == 0);
        norm = -1;
        assert_int_equal(amp_grads_norm(kernels, rows, 2, p, &norm, &error), 0);
        assert_true(norm == 0);
    }
}

static void compute_norm_tells_inf_and_nan(void **state)
{
    float a[] = {1, -INFINITY}, b[] = {NAN};
    struct amp_tensor grads[] = {f32("a", a, 2), f32("b", b, 1)};
    static const double ps[] = {1, 2, 3.5, INFINITY};
    for (size_t i = 0; i < 4; i++) {
        double norm = 0;
        assert_int_equal(amp_grads_norm(kernels, grads, 1, ps[i], &norm, &error), 0);
        assert_true(norm == (double)INFINITY);
        assert_int_equal(amp_grads_norm(kernels, grads, 2, ps[i], &norm, &error), 0);
        assert_true(isnan(norm));
    }
}

static void compute_norm_of_extreme_gradients_neither_overflows_nor_vanishes(void **state)
{
    static const float values[] = {FLT_MAX, FLT_TRUE_MIN};
    static const double ps[] = {1, 2, 10, 1000};
    for (size_t v = 0; v < 2; v++) {
        float data[] = {values[v], values[v], -values[v], values[v]};
        struct amp_tensor g = f32("g", data, 4);
        for (size_t i = 0; i < 4; i++) {
            double norm;
            assert_int_equal(amp_grads_norm(kernels, &g, 1, ps[i], &norm, &error), 0);
            assert_true(close_to(norm, (double)values[v] * pow(4, 1 / ps[i])));
        }
    }
}

static void compute_norm_has_the_same_bits_in_every_kernel_table(void **state)
{
    static float a[70000], b[33];
    for (size_t i = 0; i < 70000; i++)
        a[i] = (float)(i * 2654435761u % 1000) - 500;
    for (size_t i = 0; i < 33; i++)
        b[i] = (float)i * 0.1f;
    struct amp_tensor grads[] = {f32("a", a, 70000), f32("b", b, 33)};
    static const double ps[] = {1, 2, 2.5, INFINITY};
    for (size_t i = 0; i < 4; i++) {
        double expected;
        assert_int_equal(amp_grads_norm(&amp_kernels_ref, grads, 2, ps[i], &expected, &error), 0);
        for (size_t k = 0; amp_cpu_isa(k) != NULL; k++) {
            const struct amp_kernels *table;
            double norm;
            if (amp_cpu_select(amp_cpu_isa(k), &table, &error) != 0)
                continue;
            assert_int_equal(amp_grads_norm(table, grads, 2, ps[i], &norm, &error), 0);
            assert_memory_equal(&norm, &expected, sizeof norm);
        }
    }
}

/* ---- by norm ---- */

static void clip_by_norm_scales_a_gradient_down_to_the_norm(void **state)
{
    float in[] = {3, 4}, out[2];
    struct amp_tensor from = f32("g", in, 2), to = f32("g", out, 2);
    double norm;
    float factor = (float)(1.0 / (5 + 1e-6));
    assert_int_equal(amp_grad_clip_by_norm(kernels, &from, 1, AMP_CLIP_L2, &to, &norm, &error), 0);
    assert_true(norm == 5 && out[0] == 3 * factor && out[1] == 4 * factor && in[0] == 3);
    assert_int_equal(amp_grads_norm(kernels, &to, 1, 2, &norm, &error), 0);
    assert_true(norm <= 1);
}

static void clip_by_norm_never_increases_a_gradient(void **state)
{
    uint32_t payload = 0x3f8fffffu;
    float data[2] = {0.25f};
    memcpy(&data[1], &payload, sizeof payload);
    float before[2];
    memcpy(before, data, sizeof data);
    static const double max_norms[] = {1.2, 2, 1e30, INFINITY};
    struct amp_tensor g = f32("g", data, 2);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(amp_grad_clip_by_norm(kernels, &g, max_norms[i], 2, &g, NULL, &error), 0);
        assert_memory_equal(data, before, sizeof data);
    }
    for (unsigned i = 1; i < 100; i++) {
        assert_int_equal(amp_grad_clip_by_norm(kernels, &g, i * 0.02, i, &g, NULL, &error), 0);
        assert_true(data[0] <= before[0] && data[1] <= before[1]);
        memcpy(data, before, sizeof data);
    }
}

static void clip_by_norm_takes_every_p(void **state)
{
    static const double ps[] = {1, 1.5, 2, 3, 10, INFINITY};
    for (size_t i = 0; i < 6; i++) {
        float data[] = {30, -40, 120};
        struct amp_tensor g = f32("g", data, 3);
        double before, after;
        assert_int_equal(amp_grad_clip_by_norm(kernels, &g, 6, ps[i], &g, &before, &error), 0);
        assert_int_equal(amp_grads_norm(kernels, &g, 1, ps[i], &after, &error), 0);
        assert_true(before >= 120 && close_to(after, 6));
        assert_true(close_to((double)data[1] / (double)data[0], -4.0 / 3));
    }
}

/* min(1, max_norm / ((sum of |x|^p)^(1/p) + 1e-6)), zeros and missing gradients among them. */
static void clip_by_norm_below_one_is_the_specifications_formula(void **state)
{
    static const double ps[] = {0.999, 0.5, 0.25, 0.1};
    static const double max_norms[] = {0, 1e-3, 6, 1e4, 1e30, INFINITY};
    for (size_t i = 0; i < 4 * 6; i++) {
        float a[] = {30, -40, 0}, b[] = {120};
        struct amp_tensor grads[] = {f32("a", a, 3), {"none", NULL, 9, AMP_F32}, f32("b", b, 1)};
        double p = ps[i / 6], max_norm = max_norms[i % 6], norm;
        double expected = pow(pow(30, p) + pow(40, p) + pow(120, p), 1 / p);
        double factor = fmin(1, max_norm / (expected + 1e-6));
        assert_int_equal(amp_grads_clip_by_norm(kernels, grads, 3, max_norm, p, grads, &norm, &error), 0);
        assert_true(close_to(norm, expected));
        assert_true(close_to((double)a[0], 30 * factor) && close_to((double)a[1], -40 * factor));
        assert_true(a[2] == 0 && close_to((double)b[0], 120 * factor));
    }
}

static void a_norm_beyond_a_double_clips_to_zeros_and_is_no_overflow(void **state)
{
    float data[] = {1, -2, 3, 4, 5, 6, 7, 8};
    struct amp_tensor g = f32("g", data, 8);
    double norm = 0;
    assert_int_equal(amp_grad_clip_by_norm(kernels, &g, INFINITY, 0.001, &g, &norm, &error), 0);
    assert_true(norm == (double)INFINITY && data[1] == -2 && data[7] == 8);
    assert_int_equal(amp_grad_clip_by_norm(kernels, &g, 1, 0.001, &g, &norm, &error), 0);
    assert_true(norm == (double)INFINITY && data[0] == 0 && data[1] == 0 && signbit(data[1]) && data[7] == 0);
    data[3] = INFINITY;
    assert_int_equal(amp_grad_clip_by_norm(kernels, &g, 1, 0.001, &g, &norm, &error), AMP_ERANGE);
}

static void clip_by_norm_of_a_dictionary_uses_one_factor_for_all(void **state)
{
    float a[] = {3}, a_out[1], b_back[1];
    uint16_t b[1];
    static const float minus_four = -4;
    (void)kernels->store[AMP_F16](b, &minus_four, 1);
    struct amp_tensor in[] = {f32("a", a, 1), {"b", b, 1, AMP_F16}, {"none", NULL, 1, AMP_F32}};
    struct amp_tensor out[] = {f32("a", a_out, 1), {"b", b, 1, AMP_F16}, {"none", NULL, 1, AMP_F32}};
    double norm = 0;
    assert_int_equal(amp_grads_clip_by_norm(kernels, in, 3, 2.5, 2, out, &norm, &error), 0);
    kernels->load[AMP_F16](b_back, b, 1);
    assert_true(norm == 5 && a_out[0] == 3 * (float)(2.5 / (5 + 1e-6)) && b_back[0] == -2);
    assert_true(a[0] == 3);
}

static void clip_by_norm_below_the_norm_leaves_every_bit(void **state)
{
    float a[] = {3, -0.0f}, out[2];
    struct amp_tensor in = f32("a", a, 2), to = f32("a", out, 2);
    assert_int_equal(amp_grads_clip_by_norm(kernels, &in, 1, 100, 2, &to, NULL, &error), 0);
    assert_memory_equal(a, out, sizeof a);
}

static void clip_by_norm_of_zeros_and_of_nothing_is_nothing(void **state)
{
    float zeros[] = {0, -0.0f};
    struct amp_tensor g = f32("g", zeros, 2);
    double norm = -1;
    assert_int_equal(amp_grad_clip_by_norm(kernels, &g, 1, 2, &g, &norm, &error), 0);
    assert_true(norm == 0 && zeros[0] == 0 && signbit(zeros[1]));
    assert_int_equal(amp_grads_clip_by_norm(kernels, NULL, 0, 1, 2, NULL, &norm, &error), 0);
    assert_true(norm == 0);
    assert_int_equal(amp_grad_clip_by_norm(kernels, &g, 0, 2, &g, &norm, &error), 0);
    assert_true(zeros[0] == 0);
}

static void clip_by_norm_to_zero_makes_zeros(void **state)
{
    float data[] = {3, -4};
    struct amp_tensor g = f32("g", data, 2);
    assert_int_equal(amp_grad_clip_by_norm(kernels, &g, 0, 2, &g, NULL, &error), 0);
    assert_true(data[0] == 0 && data[1] == 0);
}

/* The specification's formula would write 0 * Inf = NaN, or zeros: an overflow is told, and stays to be seen. */
static void clip_by_norm_refuses_a_norm_that_is_not_finite_and_writes_nothing(void **state)
{
    static const float bad[] = {INFINITY, NAN};
    for (size_t i = 0; i < 2; i++) {
        float data[] = {3, bad[i]};
        struct amp_tensor g = f32("g", data, 2);
        double norm = 0;
        assert_int_equal(amp_grad_clip_by_norm(kernels, &g, 1, 2, &g, &norm, &error), AMP_ERANGE);
        assert_true(!isfinite(norm) && data[0] == 3);
        assert_int_equal(amp_grad_clip_by_norm(kernels, &g, INFINITY, 2, &g, NULL, &error), AMP_ERANGE);
    }
}

static void values_of_p_and_of_the_norm_that_make_no_sense_are_refused(void **state)
{
    static const double ps[] = {0, -0.0, -1, -0.5, -INFINITY, NAN};
    static const double norms[] = {-1, -INFINITY, NAN};
    float data[] = {3};
    struct amp_tensor g = f32("g", data, 1);
    double norm = -7;
    for (size_t i = 0; i < sizeof ps / sizeof ps[0]; i++) {
        assert_int_equal(amp_grads_norm(kernels, &g, 1, ps[i], &norm, &error), AMP_EINVAL);
        assert_int_equal(amp_grad_clip_by_norm(kernels, &g, 1, ps[i], &g, &norm, &error), AMP_EINVAL);
        assert_non_null(strstr(error.text, "p is"));
    }
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(amp_grad_clip_by_norm(kernels, &g, norms[i], 2, &g, &norm, &error), AMP_EINVAL);
    assert_true(norm == -7 && data[0] == 3);
}

static void tensors_that_are_not_well_formed_are_refused(void **state)
{
    float data[] = {3, 4};
    struct amp_tensor g = f32("g", data, 1), wide = {"wide", data, 1, AMP_F64}, longer = f32("longer", data + 1, 2);
    double norm = -7;
    assert_int_equal(amp_grads_norm(kernels, &wide, 1, 2, &norm, &error), AMP_EINVAL);
    assert_int_equal(amp_grads_norm(kernels, NULL, 1, 2, &norm, &error), AMP_EINVAL);
    assert_int_equal(amp_grad_clip_by_norm(kernels, &g, 1, 2, &longer, &norm, &error), AMP_EINVAL);
    assert_int_equal(amp_clip_by_value(kernels, &g, 1, &longer, &error), AMP_EINVAL);
    assert_true(norm == -7 && data[1] == 4);
}

#ifdef __SSE__
#include <xmmintrin.h>
#define FLUSH 0x8040u /* FTZ and DAZ of MXCSR */

#define MODE 0xffc0u /* all of MXCSR that a program may set */

/* All of them, into 8 elements, a norm and what was measured (the inverse is a denormal); the codes ored. */
static int clip_all(float *out, double *norm, struct amp_grads_measured *measured)
{
    float data[] = {0x1p-140f, -0x1.8p-127f, 0x1p-130f, 0x1p-149f};
    struct amp_tensor g = f32("g", data, 4);
    struct amp_tensor a = f32("a", out, 4), b = f32("b", out + 4, 4);
    int codes = amp_clip_by_value(kernels, &g, 0x1p-128f, &a, &error);
    codes |= amp_grad_clip_by_norm(kernels, &g, 0x1p-129, 2, &b, NULL, &error);
    codes |= amp_grads_measure(kernels, &g, 1, 0x1.8p126f, 1, measured, &error);
    return codes | amp_grads_norm(kernels, &g, 1, 2, norm, &error);
}

static void clips_in_a_thread_that_flushes_denormals_are_the_same_and_it_keeps_its_mode(void **state)
{
    float expected[8], out[8];
    double expected_norm, norm;
    struct amp_grads_measured expected_measured = {0}, measured = {0};
    assert_int_equal(clip_all(expected, &expected_norm, &expected_measured), 0);
    assert_true(expected[0] > 0 && expected[1] == -0x1p-128f && expected_norm > 0);
    assert_true(expected_measured.inverse == (float)(1 / 0x1.8p126) && expected_measured.inverse > 0);
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH | 0x2000); /* and rounds down */
    unsigned mode = _mm_getcsr() & MODE;
    int codes = clip_all(out, &norm, &measured);
    unsigned after = _mm_getcsr() & MODE;
    _mm_setcsr(before);
    assert_int_equal(codes, 0);
    assert_memory_equal(out, expected, sizeof out);
    assert_memory_equal(&norm, &expected_norm, sizeof norm);
    assert_true(measured.inverse == expected_measured.inverse && measured.norm == expected_measured.norm);
    assert_true(measured.clip == expected_measured.clip && measured.overflow == expected_measured.overflow);
    assert_int_equal(after, mode);
}

/* Such a thread takes these numbers for zero. Limits below zero are refused all the same, a p above it is taken. */
static void limits_in_a_thread_that_reads_denormals_as_zero_are_the_same(void **state)
{
    float data[] = {3, -4};
    struct amp_tensor g = f32("g", data, 2);
    struct amp_grads_measured measured = {.norm = -7};
    double norm = -7;
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH);
    int by_value = amp_clip_by_value(kernels, &g, -0x1p-140f, &g, &error);
    int by_norm = amp_grad_clip_by_norm(kernels, &g, -0x1p-1070, 2, &g, &norm, &error);
    int measures = amp_grads_measure(kernels, &g, 1, 1, -0x1p-1070, &measured, &error);
    int of_p = amp_grads_norm(kernels, &g, 1, 0x1p-1070, &norm, &error);
    _mm_setcsr(before);
    assert_int_equal(by_value, AMP_EINVAL);
    assert_int_equal(by_norm, AMP_EINVAL);
    assert_int_equal(measures, AMP_EINVAL);
    assert_true(data[0] == 3 && data[1] == -4);
    assert_int_equal(of_p, 0);
    assert_true(norm == (double)INFINITY);
}
#endif

/* ---- measuring in one pass ---- */

/* Fills n elements of a dtype with numbers of many magnitudes; `from` seeds them. */
static void fill(struct amp_tensor *tensor, uint32_t from)
{
    static float values[70001];
    for (size_t i = 0; i < tensor->count; i++) {
        from = (uint32_t)((uint64_t)from * 1664525u + 1013904223u);
        values[i] = ldexpf((float)(int32_t)from, -40 + (int)(from >> 28));
    }
    amp_cast(kernels, tensor->data, tensor->dtype, values, AMP_F32, tensor->count);
}

/* What the separate passes tell of the same gradients. */
static struct amp_grads_measured measured_apart(const struct amp_tensor *gradients, size_t n, float scale,
                                                double max_norm)
{
    static float memory[3][70001];
    struct amp_tensor out[3];
    struct amp_grads_measured apart = {.inverse = (float)(1.0 / (double)scale), .clip = 1};
    for (size_t i = 0; i < n; i++)
        out[i] = f32(gradients[i].name, gradients[i].data != NULL ? memory[i] : NULL, gradients[i].count);
    assert_int_equal(amp_grads_unscale(&amp_kernels_ref, gradients, n, scale, out, &apart.overflow, &error), 0);
    assert_int_equal(amp_grads_norm(&amp_kernels_ref, out, n, AMP_CLIP_L2, &apart.norm, &error), 0);
    if (!apart.overflow && max_norm < INFINITY)
        apart.clip = amp_clip_coefficient(max_norm, apart.norm);
    return apart;
}

static void expect_measured_as_apart(const struct amp_tensor *gradients, size_t n, float scale, double max_norm)
{
    struct amp_grads_measured apart = measured_apart(gradients, n, scale, max_norm);
    for (size_t k = 0; amp_cpu_isa(k) != NULL; k++) {
        const struct amp_kernels *table;
        struct amp_grads_measured measured;
        if (amp_cpu_select(amp_cpu_isa(k), &table, &error) != 0)
            continue;
        assert_int_equal(amp_grads_measure(table, gradients, n, scale, max_norm, &measured, &error), 0);
        assert_int_equal(measured.overflow, apart.overflow);
        assert_true(isnan(apart.norm) ? isnan(measured.norm) : measured.norm == apart.norm);
        assert_true(measured.inverse == apart.inverse && measured.clip == apart.clip);
    }
}

static void one_pass_measures_the_same_bits_as_the_passes_one_by_one(void **state)
{
    static float a[70001], b[70001];
    static const size_t counts[] = {0, 1, 15, 17, 1024, 1025, 65536, 70001};
    static const float scales[] = {1, 3, 65536, 0.25f};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (int dtype = AMP_F32; dtype <= AMP_BF16; dtype++) {
            struct amp_tensor gradients[] = {{"a", a, counts[c], (enum amp_dtype)dtype},
                                             {"none", NULL, 0, AMP_F32},
                                             {"b", b, counts[7 - c], AMP_F32}};
            fill(&gradients[0], 1);
            fill(&gradients[2], 2);
            for (size_t s = 0; s < 4; s++)
                expect_measured_as_apart(gradients, 3, scales[s], s == 3 ? INFINITY : 1);
        }
    }
}

static void one_pass_finds_what_the_passes_find(void **state)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN, 0x1.fffffep127f};
    for (size_t i = 0; i < 4; i++) {
        float a[] = {1, 2}, b[3] = {1, bad[i], 2};
        struct amp_tensor gradients[] = {f32("a", a, 2), f32("b", b, 3)};
        expect_measured_as_apart(gradients, 2, 0.5f, 1); /* the largest number over 0.5 is Inf */
    }
    float both[] = {INFINITY, NAN};
    struct amp_tensor gradient = f32("a", both, 2);
    expect_measured_as_apart(&gradient, 1, 2, 1);
}

static void one_pass_finds_one_bad_element_wherever_it_is(void **state)
{
    static float memory[65601];
    static const size_t counts[] = {64, 130, 65600}, places[] = {0, 63, 127, 128, 65535, 65536, 65599};
    static const uint16_t bad_16[2] = {0x7c00, 0xff80}; /* Inf of f16, and of bf16 */
    for (size_t c = 0; c < 3; c++) {
        for (size_t p = 0; p < sizeof places / sizeof places[0] && places[p] < counts[c]; p++) {
            for (int dtype = AMP_F32; dtype <= AMP_BF16; dtype++) {
                struct amp_tensor gradient = {"a", memory + 1, counts[c], (enum amp_dtype)dtype};
                fill(&gradient, 3);
                char *at = (char *)gradient.data + places[p] * amp_dtype_size(gradient.dtype);
                float bad = p % 2 == 0 ? INFINITY : NAN;
                if (dtype == AMP_F32)
                    memcpy(at, &bad, sizeof bad);
                else
                    memcpy(at, &bad_16[dtype == AMP_BF16], sizeof bad_16[0]);
                expect_measured_as_apart(&gradient, 1, 1, 1);
            }
        }
    }
}

static void one_pass_reads_and_does_not_write(void **state)
{
    float a[] = {3, 4};
    struct amp_tensor gradient = f32("a", a, 2);
    struct amp_grads_measured measured;
    assert_int_equal(amp_grads_measure(kernels, &gradient, 1, 0.5f, 5, &measured, &error), 0);
    assert_true(a[0] == 3 && a[1] == 4);
    assert_true(measured.norm == 10 && measured.inverse == 2 && measured.clip == (float)(5 / (10 + 1e-6)));
}

static void one_pass_refuses_what_the_passes_refuse(void **state)
{
    float a[] = {3, 4};
    struct amp_tensor gradient = f32("a", a, 2);
    struct amp_grads_measured measured;
    assert_int_equal(amp_grads_measure(kernels, &gradient, 1, 0, 1, &measured, &error), AMP_EINVAL);
    assert_int_equal(amp_grads_measure(kernels, &gradient, 1, NAN, 1, &measured, &error), AMP_EINVAL);
    assert_int_equal(amp_grads_measure(kernels, &gradient, 1, 1, -1, &measured, &error), AMP_EINVAL);
    assert_int_equal(amp_grads_measure(kernels, &gradient, 1, 1, 1, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_grads_measure(kernels, NULL, 1, 1, 1, &measured, &error), AMP_EINVAL);
    assert_int_equal(amp_grads_measure(NULL, &gradient, 1, 1, 1, &measured, &error), AMP_EINVAL);
    assert_int_equal(amp_grads_measure(kernels, NULL, 0, 1, 1, &measured, &error), 0);
    assert_true(measured.norm == 0 && !measured.overflow && measured.clip == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clip_by_value_clamps_to_both_sides),
        cmocka_unit_test(clip_by_value_takes_zero_and_infinity_as_limits),
        cmocka_unit_test(clip_by_value_works_on_each_dtype_and_any_length),
        cmocka_unit_test(clip_by_value_refuses_negative_and_nan_limits),
        cmocka_unit_test(clip_by_value_passes_over_missing_and_empty_gradients),
        cmocka_unit_test(compute_norm_is_the_global_norm_of_a_dictionary),
        cmocka_unit_test(compute_norm_of_nothing_is_zero),
        cmocka_unit_test(compute_norm_tells_inf_and_nan),
        cmocka_unit_test(compute_norm_of_extreme_gradients_neither_overflows_nor_vanishes),
        cmocka_unit_test(compute_norm_has_the_same_bits_in_every_kernel_table),
        cmocka_unit_test(clip_by_norm_scales_a_gradient_down_to_the_norm),
        cmocka_unit_test(clip_by_norm_never_increases_a_gradient),
        cmocka_unit_test(clip_by_norm_takes_every_p),
        cmocka_unit_test(clip_by_norm_below_one_is_the_specifications_formula),
        cmocka_unit_test(a_norm_beyond_a_double_clips_to_zeros_and_is_no_overflow),
        cmocka_unit_test(clip_by_norm_of_a_dictionary_uses_one_factor_for_all),
        cmocka_unit_test(clip_by_norm_below_the_norm_leaves_every_bit),
        cmocka_unit_test(clip_by_norm_of_zeros_and_of_nothing_is_nothing),
        cmocka_unit_test(clip_by_norm_to_zero_makes_zeros),
        cmocka_unit_test(clip_by_norm_refuses_a_norm_that_is_not_finite_and_writes_nothing),
        cmocka_unit_test(values_of_p_and_of_the_norm_that_make_no_sense_are_refused),
        cmocka_unit_test(tensors_that_are_not_well_formed_are_refused),
#ifdef __SSE__
        cmocka_unit_test(clips_in_a_thread_that_flushes_denormals_are_the_same_and_it_keeps_its_mode),
        cmocka_unit_test(limits_in_a_thread_that_reads_denormals_as_zero_are_the_same),
#endif
        cmocka_unit_test(one_pass_measures_the_same_bits_as_the_passes_one_by_one),
        cmocka_unit_test(one_pass_finds_what_the_passes_find),
        cmocka_unit_test(one_pass_finds_one_bad_element_wherever_it_is),
        cmocka_unit_test(one_pass_reads_and_does_not_write),
        cmocka_unit_test(one_pass_refuses_what_the_passes_refuse),
    };
    return cmocka_run_group_tests(tests, pick_kernels, NULL);
}
