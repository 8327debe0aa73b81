/* Gradient utilities: unscale, overflow checks, statistics; every case that the specification lists, and bad input. */
#include "amp/cpu.h"
#include "amp/grad.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct amp_kernels *kernels;
static struct amp_error error;

static int pick_kernels(void **state)
{
    return amp_cpu_select(NULL, &kernels, &error);
}

#define COUNT(array) (sizeof array / sizeof((array)[0]))
#define F32(name, array)                                                                                               \
    (struct amp_tensor)                                                                                                \
    {                                                                                                                  \
        name, array, COUNT(array), AMP_F32                                                                             \
    }

static uint16_t half(float x)
{
    uint16_t h;
    (void)kernels->store[AMP_F16](&h, &x, 1);
    return h;
}

static bool overflow_of(float value)
{
    float data[3] = {1, value, 2};
    struct amp_tensor tensor = F32("g", data);
    bool found;
    assert_int_equal(amp_grad_overflow(kernels, &tensor, &found, &error), 0);
    return found;
}

/* ---- unscale ---- */

static void unscale_divides_by_various_scale_factors(void **state)
{
    static const float scales[] = {0x1p-126f, 0.25f, 1, 2, 256, 65536, 0x1p20f, 0x1p127f};
    for (size_t i = 0; i < COUNT(scales); i++) {
        float in[] = {0, -0.0f, 3, -5.5f, 1e-3f};
        float out[5];
        bool overflow = true;
        struct amp_tensor from = F32("g", in);
        struct amp_tensor to = F32("g", out);
        bool large = scales[i] < 1e-30f;
        assert_int_equal(amp_grad_unscale(kernels, &from, scales[i], &to, &overflow, &error), 0);
        for (size_t j = 0; j < 5; j++) {
            float expected = in[j] / scales[i];
            assert_memory_equal(&out[j], &expected, sizeof expected);
        }
        assert_true(overflow == large); /* 3 * 2^126 and 5.5 * 2^126 are beyond fp32 */
        assert_true(in[2] == 3);
    }
}

static void unscale_by_another_number_takes_the_reciprocal_rounded_once(void **state)
{
    float in[] = {1, 7, 1e20f, 0x1p-130f};
    float out[4];
    struct amp_tensor from = F32("g", in);
    struct amp_tensor to = F32("g", out);
    float inverse = (float)(1.0 / 3000.7f);
    assert_int_equal(amp_grad_unscale(kernels, &from, 3000.7f, &to, NULL, &error), 0);
    for (size_t i = 0; i < 4; i++) {
        float expected = in[i] * inverse;
        assert_memory_equal(&out[i], &expected, sizeof expected);
    }
}

static void unscale_by_one_leaves_every_bit(void **state)
{
    uint32_t payload = 0x7fc12345u;
    float in[2] = {1.5f};
    memcpy(&in[1], &payload, sizeof payload);
    float out[2];
    bool overflow = false;
    struct amp_tensor from = F32("g", in);
    struct amp_tensor to = F32("g", out);
    assert_int_equal(amp_grad_unscale(kernels, &from, 1, &to, &overflow, &error), 0);
    assert_memory_equal(in, out, sizeof in);
    assert_true(overflow);
    assert_int_equal(amp_grad_unscale_in_place(kernels, &from, 1, NULL, &error), 0);
    assert_memory_equal(in, out, sizeof in);
}

static void unscale_of_a_dictionary_unscales_each_and_passes_over_missing_ones(void **state)
{
    float a[] = {2, 4}, a_out[2];
    uint16_t b[] = {half(8)}, b_out[1];
    float untouched[] = {9};
    struct amp_tensor in[] = {F32("a", a), {"none", NULL, 7, AMP_F32}, {"b", b, 1, AMP_F16}, {"e", a, 0, AMP_F32}};
    struct amp_tensor out[] = {
        F32("a", a_out), F32("none", untouched), {"b", b_out, 1, AMP_F16}, {"e", a_out, 0, AMP_F32}};
    bool overflow = true;
    assert_int_equal(amp_grads_unscale(kernels, in, 4, 2, out, &overflow, &error), 0);
    assert_false(overflow);
    assert_true(a_out[0] == 1 && a_out[1] == 2 && untouched[0] == 9);
    assert_int_equal(b_out[0], half(4));
    assert_true(a[0] == 2 && b[0] == half(8));
}

static void what_stands_in_the_place_of_a_missing_gradient_is_no_overflow(void **state)
{
    float a[] = {2, 4}, a_out[2];
    float old[] = {INFINITY, NAN};
    struct amp_tensor in[] = {F32("a", a), {"none", NULL, 2, AMP_F32}};
    struct amp_tensor out[] = {F32("a", a_out), F32("none", old)};
    for (float scale = 1; scale <= 2; scale++) {
        bool overflow = true;
        assert_int_equal(amp_grads_unscale(kernels, in, 2, scale, out, &overflow, &error), 0);
        assert_false(overflow);
        assert_true(a_out[1] == 4 / scale && old[0] > FLT_MAX);
    }
}

static void unscale_by_one_tells_what_a_narrower_dtype_does_not_hold(void **state)
{
    float a[] = {1, 65520};
    uint16_t narrow[2];
    struct amp_tensor in = F32("a", a), out = {"a", narrow, 2, AMP_F16};
    bool overflow = false;
    assert_int_equal(amp_grads_unscale(kernels, &in, 1, 1, &out, &overflow, &error), 0);
    assert_true(overflow);
    a[1] = 65519;
    assert_int_equal(amp_grads_unscale(kernels, &in, 1, 1, &out, &overflow, &error), 0);
    assert_false(overflow);
}

static void unscale_of_an_empty_dictionary_is_nothing(void **state)
{
    bool overflow = true;
    assert_int_equal(amp_grads_unscale(kernels, NULL, 0, 2, NULL, &overflow, &error), 0);
    assert_false(overflow);
    overflow = true;
    assert_int_equal(amp_grads_unscale(kernels, NULL, 0, 1, NULL, &overflow, &error), 0);
    assert_false(overflow);
}

static void unscale_in_place_modifies_the_tensor_itself(void **state)
{
    float a[3000];
    uint16_t b[] = {half(8), half(-0.5f)};
    for (size_t i = 0; i < COUNT(a); i++)
        a[i] = (float)i;
    struct amp_tensor grads[] = {F32("a", a), {"b", b, 2, AMP_F16}, {"none", NULL, 0, AMP_F32}};
    bool overflow = true;
    assert_int_equal(amp_grads_unscale_in_place(kernels, grads, 3, 1024, &overflow, &error), 0);
    assert_false(overflow);
    for (size_t i = 0; i < COUNT(a); i++)
        assert_true(a[i] == (float)i / 1024);
    assert_true(b[0] == half(0x1p-7f) && b[1] == half(-0x1p-11f));
    assert_int_equal(amp_grad_unscale_in_place(kernels, &grads[1], 0x1p-1f, NULL, &error), 0);
    assert_true(b[0] == half(0x1p-6f) && b[1] == half(-0x1p-10f));
}

static void unscale_to_fp32_keeps_what_fp16_would_lose(void **state)
{
    uint16_t in[] = {half(0x1p-24f), half(65504)};
    float out[2];
    uint16_t narrow[2];
    struct amp_tensor from = {"g", in, 2, AMP_F16};
    struct amp_tensor to = F32("g", out);
    struct amp_tensor same = {"g", narrow, 2, AMP_F16};
    assert_int_equal(amp_grad_unscale(kernels, &from, 65536, &to, NULL, &error), 0);
    assert_true(out[0] == 0x1p-40f && out[1] == 65504.0f / 65536);
    assert_int_equal(amp_grad_unscale(kernels, &from, 65536, &same, NULL, &error), 0);
    assert_int_equal(narrow[0], 0);
}

/* torch tests the scaled value alone; a product that leaves the range would then be applied. */
static void unscale_tells_of_results_that_leave_the_range_of_their_dtype(void **state)
{
    static const enum amp_dtype dtypes[] = {AMP_F32, AMP_F16, AMP_BF16};
    static const float fits[] = {0x1.fffffep127f, 65519, 0x1.fefffep127f};
    static const float leaves[] = {INFINITY, 65520, 0x1.ffp127f};
    for (size_t i = 0; i < 3; i++) {
        float in[2] = {1, fits[i] / 2};
        uint32_t out[2];
        bool overflow = true;
        struct amp_tensor from = F32("g", in);
        struct amp_tensor to = {"g", out, 2, dtypes[i]};
        assert_int_equal(amp_grad_unscale(kernels, &from, 0.5f, &to, &overflow, &error), 0);
        assert_false(overflow);
        in[1] = leaves[i] / 2;
        assert_int_equal(amp_grad_unscale(kernels, &from, 0.5f, &to, &overflow, &error), 0);
        assert_true(overflow);
        assert_int_equal(amp_grad_overflow(kernels, &to, &overflow, &error), 0);
        assert_true(overflow);
    }
}

static void unscale_never_makes_an_overflow_finite(void **state)
{
    static const float scales[] = {0x1p-126f, 1, 3, 0x1.fffffep127f};
    for (size_t i = 0; i < COUNT(scales); i++) {
        float data[] = {INFINITY, -INFINITY, NAN};
        struct amp_tensor g = F32("g", data);
        bool overflow = false;
        assert_int_equal(amp_grad_unscale_in_place(kernels, &g, scales[i], &overflow, &error), 0);
        assert_true(overflow && data[0] == INFINITY && data[1] == -INFINITY && isnan(data[2]));
    }
}

static void unscale_refuses_scales_that_are_zero_negative_denormal_or_not_finite(void **state)
{
    static const float scales[] = {0, -0.0f, -2, INFINITY, -INFINITY, NAN, 0x1p-127f, FLT_TRUE_MIN};
    for (size_t i = 0; i < COUNT(scales); i++) {
        float data[] = {4};
        struct amp_tensor g = F32("g", data);
        bool overflow = true;
        assert_int_equal(amp_grad_unscale(kernels, &g, scales[i], &g, &overflow, &error), AMP_EINVAL);
        assert_non_null(strstr(error.text, "scale"));
        assert_int_equal(amp_grads_unscale_in_place(kernels, &g, 1, scales[i], &overflow, &error), AMP_EINVAL);
        assert_int_equal(amp_loss_scale(kernels, &g, scales[i], &g, &error), AMP_EINVAL);
        assert_true(data[0] == 4 && overflow);
    }
}

static void every_kernel_table_gives_the_same_bits(void **state)
{
    uint16_t in[2000];
    for (size_t i = 0; i < COUNT(in); i++)
        in[i] = (uint16_t)(i * 32769u);
    float expected[2000];
    struct amp_tensor from = {"g", in, COUNT(in), AMP_F16};
    struct amp_tensor to = F32("g", expected);
    assert_int_equal(amp_grad_unscale(&amp_kernels_ref, &from, 3, &to, NULL, &error), 0);
    for (size_t i = 0; amp_cpu_isa(i) != NULL; i++) {
        const struct amp_kernels *table;
        float out[2000];
        to.data = out;
        if (amp_cpu_select(amp_cpu_isa(i), &table, &error) != 0)
            continue;
        assert_int_equal(amp_grad_unscale(table, &from, 3, &to, NULL, &error), 0);
        assert_memory_equal(out, expected, sizeof out);
    }
}

/* ---- overflow checks ---- */

static void check_overflow_detects_inf_values(void **state)
{
    assert_true(overflow_of(INFINITY));
    assert_true(overflow_of(-INFINITY));
    assert_false(overflow_of(FLT_MAX));
    assert_false(overflow_of(FLT_TRUE_MIN));
}

static void check_overflow_detects_nan_values(void **state)
{
    assert_true(overflow_of(NAN));
    assert_true(overflow_of(-NAN));
    assert_false(overflow_of(0));
}

static void check_overflow_looks_at_every_element_of_every_dtype(void **state)
{
    static const enum amp_dtype dtypes[] = {AMP_F32, AMP_F16, AMP_BF16};
    static float values[9000];
    static uint32_t stored[9000];
    static const size_t at[] = {0, 1, 4095, 4096, 8191, 8192, 8999};
    for (size_t d = 0; d < 3; d++) {
        for (size_t i = 0; i < COUNT(at); i++) {
            struct amp_tensor tensor = {"g", stored, COUNT(values), dtypes[d]};
            bool inf, nan;
            values[at[i]] = i % 2 ? INFINITY : NAN;
            (void)kernels->store[dtypes[d]](stored, values, COUNT(values));
            assert_int_equal(amp_grad_is_inf(kernels, &tensor, &inf, &error), 0);
            assert_int_equal(amp_grad_is_nan(kernels, &tensor, &nan, &error), 0);
            assert_true(inf == (i % 2 == 1) && nan == (i % 2 == 0));
            values[at[i]] = 1;
            (void)kernels->store[dtypes[d]](stored, values, COUNT(values));
            assert_int_equal(amp_grad_is_inf_or_nan(kernels, &tensor, &inf, &error), 0);
            assert_false(inf);
        }
    }
}

static void is_inf_is_nan_and_either_tell_the_kinds_apart(void **state)
{
    static const struct {
        float value;
        bool inf, nan;
    } rows[] = {{1, false, false}, {INFINITY, true, false}, {-INFINITY, true, false}, {NAN, false, true}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        float data[] = {0, rows[i].value};
        struct amp_tensor tensor = F32("g", data);
        bool inf, nan, either;
        assert_int_equal(amp_grad_is_inf(kernels, &tensor, &inf, &error), 0);
        assert_int_equal(amp_grad_is_nan(kernels, &tensor, &nan, &error), 0);
        assert_int_equal(amp_grad_is_inf_or_nan(kernels, &tensor, &either, &error), 0);
        assert_true(inf == rows[i].inf && nan == rows[i].nan && either == (inf || nan));
    }
}

static void check_overflow_of_several_tensors_finds_one_in_any(void **state)
{
    float a[] = {1, 2}, b[] = {3}, c[] = {4, 5, 6};
    struct amp_tensor grads[] = {F32("a", a), F32("b", b), {"none", NULL, 3, AMP_F32}, F32("c", c)};
    bool overflow = true;
    assert_int_equal(amp_grads_overflow(kernels, grads, 4, &overflow, &error), 0);
    assert_false(overflow);
    float *places[] = {&a[1], &b[0], &c[2]};
    for (size_t i = 0; i < COUNT(places); i++) {
        float kept = *places[i];
        *places[i] = NAN;
        assert_int_equal(amp_grads_overflow(kernels, grads, 4, &overflow, &error), 0);
        assert_true(overflow);
        *places[i] = kept;
    }
}

static void check_overflow_of_nothing_is_false(void **state)
{
    float data[] = {NAN};
    struct amp_tensor rows[] = {{"none", NULL, 5, AMP_F32}, {"empty", data, 0, AMP_F32}};
    bool overflow = true;
    assert_int_equal(amp_grads_overflow(kernels, NULL, 0, &overflow, &error), 0);
    assert_false(overflow);
    overflow = true;
    assert_int_equal(amp_grads_overflow(kernels, rows, 2, &overflow, &error), 0);
    assert_false(overflow);
}

static size_t elements_read;
static amp_check_fn *real_check;

static void counting_check(const void *src, size_t n, uint64_t base, struct amp_check *check)
{
    elements_read += n;
    real_check(src, n, base, check);
}

static void check_overflow_stops_at_the_first_one(void **state)
{
    static float large[100000];
    struct amp_kernels counting = *kernels;
    real_check = kernels->check[AMP_F32];
    counting.check[AMP_F32] = counting_check;
    struct amp_tensor grads[] = {F32("a", large), F32("b", large)};
    bool overflow;
    elements_read = 0;
    assert_int_equal(amp_grads_overflow(&counting, grads, 2, &overflow, &error), 0);
    assert_int_equal(elements_read, 200000);
    large[5000] = INFINITY;
    elements_read = 0;
    assert_int_equal(amp_grads_overflow(&counting, grads, 2, &overflow, &error), 0);
    assert_true(overflow);
    assert_int_equal(elements_read, 8192);
    large[5000] = 0;
}

/* ---- statistics ---- */

static void find_overflow_gradients_returns_the_right_parameters(void **state)
{
    float good[] = {1}, inf[] = {0, INFINITY}, nan[] = {NAN};
    struct amp_tensor grads[] = {F32("a", good), F32("b", inf), {"none", NULL, 1, AMP_F32}, F32("c", nan)};
    const char *names[4];
    size_t count = 99;
    assert_int_equal(amp_grads_find_overflow(kernels, grads, 4, names, &count, &error), 0);
    assert_int_equal(count, 2);
    assert_string_equal(names[0], "b");
    assert_string_equal(names[1], "c");
    assert_int_equal(amp_grads_find_overflow(kernels, grads, 1, names, &count, &error), 0);
    assert_int_equal(count, 0);
    assert_int_equal(amp_grads_find_overflow(kernels, NULL, 0, NULL, &count, &error), 0);
    assert_int_equal(count, 0);
}

static void overflow_stats_count_gradients_overflows_and_their_rate(void **state)
{
    float good[] = {1}, inf[] = {INFINITY};
    struct amp_tensor grads[] = {F32("a", good), F32("b", inf), {"none", NULL, 1, AMP_F32}, F32("c", good)};
    const char *names[4];
    struct amp_overflow_stats stats;
    assert_int_equal(amp_grads_overflow_stats(kernels, grads, 4, names, &stats, &error), 0);
    assert_int_equal(stats.total_gradients, 4);
    assert_int_equal(stats.overflow_count, 1);
    assert_string_equal(stats.overflow_parameters[0], "b");
    assert_true(stats.overflow_rate == 0.25f && amp_overflow_stats_has_overflow(&stats));
    assert_int_equal(amp_grads_overflow_stats(kernels, grads, 1, names, &stats, &error), 0);
    assert_true(stats.overflow_rate == 0 && !amp_overflow_stats_has_overflow(&stats));
}

static void overflow_stats_of_an_empty_dictionary_have_rate_zero(void **state)
{
    struct amp_overflow_stats stats;
    assert_int_equal(amp_grads_overflow_stats(kernels, NULL, 0, NULL, &stats, &error), 0);
    assert_true(stats.total_gradients == 0 && stats.overflow_rate == 0 && !amp_overflow_stats_has_overflow(&stats));
}

static void overflow_stats_refuse_counts_that_cannot_be(void **state)
{
    struct amp_overflow_stats stats;
    const char *names[] = {"a"};
    assert_int_equal(amp_overflow_stats_init(&stats, 1, 1, names, &error), 0);
    assert_int_equal(amp_overflow_stats_init(&stats, 0, 1, names, &error), AMP_EINVAL);
    assert_int_equal(amp_overflow_stats_init(&stats, 1, 1, NULL, &error), AMP_EINVAL);
}

static void overflow_stats_have_a_text_form_that_fits_any_buffer(void **state)
{
    static const char full[] = "Gradients: 3, Overflows: 2 (66.67%), Parameters: a, (unnamed)";
    const char *names[] = {"a", NULL};
    struct amp_overflow_stats stats;
    assert_int_equal(amp_overflow_stats_init(&stats, 3, 2, names, &error), 0);
    char text[128];
    for (size_t size = 0; size <= sizeof full + 1; size++) {
        memset(text, '#', sizeof text);
        assert_int_equal(amp_overflow_stats_text(&stats, text, size), sizeof full - 1);
        size_t fits = size < sizeof full ? size : sizeof full;
        if (fits > 0) {
            assert_memory_equal(text, full, fits - 1);
            assert_true(text[fits - 1] == '\0');
        }
        assert_true(text[fits] == '#');
    }
    assert_int_equal(amp_overflow_stats_init(&stats, 2, 0, NULL, &error), 0);
    (void)amp_overflow_stats_text(&stats, text, sizeof text);
    assert_string_equal(text, "Gradients: 2, Overflows: 0 (0.00%)");
}

/* ---- bad input ---- */

static void tensors_that_are_not_well_formed_are_refused_before_anything_is_written(void **state)
{
    float data[4] = {2, 2, 2, 2}, other[4] = {0};
    struct amp_tensor good = F32("good", data);
    const struct {
        struct amp_tensor in, out;
    } rows[] = {
        {{"f64", data, 1, AMP_F64}, {"f64", other, 1, AMP_F32}},
        {{"none", data, 1, AMP_DTYPE_NONE}, {"none", other, 1, AMP_F32}},
        {{"odd", (char *)data + 1, 1, AMP_F32}, {"odd", other, 1, AMP_F32}},
        {{"odd", data, 1, AMP_F32}, {"odd", (char *)other + 1, 1, AMP_F16}},
        {{"long", data, SIZE_MAX / 2, AMP_F32}, {"long", other, 1, AMP_F32}},
        {{"sizes", data, 2, AMP_F32}, {"sizes", other, 3, AMP_F32}},
        {{"no place", data, 1, AMP_F32}, {"no place", NULL, 1, AMP_F32}},
        {{"overlap", data, 2, AMP_F32}, {"overlap", data + 1, 2, AMP_F32}},
        {{"overlap", data + 1, 2, AMP_F32}, {"overlap", data, 2, AMP_F32}},
        {{"widths", data, 2, AMP_F32}, {"widths", data, 2, AMP_F16}},
        {{"dtype of out", data, 1, AMP_F32}, {"dtype of out", other, 1, AMP_F64}},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct amp_tensor in[] = {good, rows[i].in};
        struct amp_tensor out[] = {good, rows[i].out};
        assert_int_equal(amp_grads_unscale(kernels, in, 2, 2, out, NULL, &error), AMP_EINVAL);
        assert_non_null(strstr(error.text, rows[i].in.name));
        assert_int_equal(amp_grads_copy(kernels, in, 2, out, &error), AMP_EINVAL);
        assert_true(data[0] == 2 && data[1] == 2 && other[0] == 0);
    }
}

static void checks_refuse_what_is_not_a_tensor(void **state)
{
    float data[2] = {0};
    struct amp_tensor bad = {NULL, data, 1, AMP_F64};
    const char *names[1];
    bool found = true;
    size_t count = 7;
    struct amp_overflow_stats stats;
    assert_int_equal(amp_grad_overflow(kernels, NULL, &found, &error), AMP_EINVAL);
    assert_int_equal(amp_grads_overflow(kernels, NULL, 2, &found, &error), AMP_EINVAL);
    assert_int_equal(amp_grad_is_inf(kernels, &bad, &found, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "(unnamed)"));
    assert_int_equal(amp_grads_find_overflow(kernels, &bad, 1, names, &count, &error), AMP_EINVAL);
    assert_int_equal(amp_grads_overflow_stats(kernels, &bad, 1, names, &stats, &error), AMP_EINVAL);
    assert_int_equal(amp_grad_unscale(kernels, NULL, 2, NULL, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_grad_unscale_in_place(kernels, NULL, 2, NULL, &error), AMP_EINVAL);
    assert_true(found && count == 7);
}

static void entries_that_share_memory_are_done_in_order(void **state)
{
    float data[] = {64};
    struct amp_tensor grads[] = {F32("a", data), F32("the same", data)};
    assert_int_equal(amp_grads_unscale_in_place(kernels, grads, 2, 4, NULL, &error), 0);
    assert_true(data[0] == 4);
}

#ifdef __SSE__
#include <xmmintrin.h>
/* Of MXCSR: FTZ and DAZ; the same, rounding up; and all that a program may set. */
#define FLUSH       0x8040u
#define FLUSH_UP    (FLUSH | 0x4000u)
#define MODE        0xffc0u
#define DENORMAL_IN 0x1p-140f

static void a_thread_that_flushes_denormals_gets_the_same_bits_and_keeps_its_mode(void **state)
{
    static const float in[] = {DENORMAL_IN, 0x1p-126f, 1.1f, -0x1.8p-149f, 3};
    float unscaled[5], scaled[5];
    struct amp_tensor g = {"g", (void *)(uintptr_t)in, 5, AMP_F32}, u = F32("u", unscaled), l = F32("l", scaled);
    for (unsigned flags = FLUSH; flags <= FLUSH_UP; flags += FLUSH_UP - FLUSH) {
        float expected_unscaled[5], expected_scaled[5];
        struct amp_tensor eu = F32("eu", expected_unscaled), el = F32("el", expected_scaled);
        bool overflow = true;
        assert_int_equal(amp_grad_unscale(kernels, &g, 3, &eu, NULL, &error), 0);
        assert_int_equal(amp_loss_scale(kernels, &g, 3, &el, &error), 0);
        assert_true(expected_scaled[0] > 0 && expected_unscaled[1] > 0);
        unsigned before = _mm_getcsr();
        _mm_setcsr((before & ~0x6000u) | flags);
        unsigned mode = _mm_getcsr() & MODE;
        int codes = amp_grad_unscale(kernels, &g, 3, &u, &overflow, &error);
        unsigned after_unscale = _mm_getcsr() & MODE;
        codes |= amp_loss_scale(kernels, &g, 3, &l, &error);
        unsigned after_scale = _mm_getcsr() & MODE;
        codes |= amp_grad_unscale(NULL, &g, 3, &u, &overflow, &error) == AMP_EINVAL ? 0 : -1;
        unsigned after_failure = _mm_getcsr() & MODE;
        _mm_setcsr(before);
        assert_int_equal(codes, 0);
        assert_false(overflow);
        assert_memory_equal(unscaled, expected_unscaled, sizeof unscaled);
        assert_memory_equal(scaled, expected_scaled, sizeof scaled);
        assert_true(after_unscale == mode && after_scale == mode && after_failure == mode);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unscale_divides_by_various_scale_factors),
        cmocka_unit_test(unscale_by_another_number_takes_the_reciprocal_rounded_once),
        cmocka_unit_test(unscale_by_one_leaves_every_bit),
        cmocka_unit_test(unscale_of_a_dictionary_unscales_each_and_passes_over_missing_ones),
        cmocka_unit_test(unscale_of_an_empty_dictionary_is_nothing),
        cmocka_unit_test(what_stands_in_the_place_of_a_missing_gradient_is_no_overflow),
        cmocka_unit_test(unscale_by_one_tells_what_a_narrower_dtype_does_not_hold),
        cmocka_unit_test(unscale_in_place_modifies_the_tensor_itself),
        cmocka_unit_test(unscale_to_fp32_keeps_what_fp16_would_lose),
        cmocka_unit_test(unscale_tells_of_results_that_leave_the_range_of_their_dtype),
        cmocka_unit_test(unscale_never_makes_an_overflow_finite),
        cmocka_unit_test(unscale_refuses_scales_that_are_zero_negative_denormal_or_not_finite),
        cmocka_unit_test(every_kernel_table_gives_the_same_bits),
        cmocka_unit_test(check_overflow_detects_inf_values),
        cmocka_unit_test(check_overflow_detects_nan_values),
        cmocka_unit_test(check_overflow_looks_at_every_element_of_every_dtype),
        cmocka_unit_test(is_inf_is_nan_and_either_tell_the_kinds_apart),
        cmocka_unit_test(check_overflow_of_several_tensors_finds_one_in_any),
        cmocka_unit_test(check_overflow_of_nothing_is_false),
        cmocka_unit_test(check_overflow_stops_at_the_first_one),
        cmocka_unit_test(find_overflow_gradients_returns_the_right_parameters),
        cmocka_unit_test(overflow_stats_count_gradients_overflows_and_their_rate),
        cmocka_unit_test(overflow_stats_of_an_empty_dictionary_have_rate_zero),
        cmocka_unit_test(overflow_stats_refuse_counts_that_cannot_be),
        cmocka_unit_test(overflow_stats_have_a_text_form_that_fits_any_buffer),
        cmocka_unit_test(tensors_that_are_not_well_formed_are_refused_before_anything_is_written),
        cmocka_unit_test(checks_refuse_what_is_not_a_tensor),
        cmocka_unit_test(entries_that_share_memory_are_done_in_order),
#ifdef __SSE__
        cmocka_unit_test(a_thread_that_flushes_denormals_gets_the_same_bits_and_keeps_its_mode),
#endif
    };
    return cmocka_run_group_tests(tests, pick_kernels, NULL);
}
