/* Norms against long double, bad numbers, and one result for every cut into threads. */
#include "amp/clip.h"
#include "amp/cpu.h"
#include "amp/norm.h"
#include "amp/kernels.h"
#include "amp/reduce.h"
#include "base/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* More than three blocks, the last of them short. */
#define N (3 * AMP_NORM_BLOCK + 777)

static float values[N];

static void fill(int low, int high)
{
    struct amp_random random;
    amp_random_init(&random, 5);
    for (size_t i = 0; i < N; i++) {
        int e = low + (int)amp_random_below(&random, (uint64_t)(high - low));
        double x = ldexp(1 + amp_random_unit(&random), e);
        values[i] = (float)(amp_random_next(&random) & 1 ? -x : x);
    }
}

static double norm_of(float *x, size_t n, double p)
{
    const struct amp_kernels *kernels;
    double norm = -1;
    const struct amp_tensor tensor = {"x", x, n, AMP_F32};
    assert_int_equal(amp_cpu_select(NULL, &kernels, NULL), 0);
    assert_int_equal(amp_grads_norm(kernels, &tensor, 1, p, &norm, NULL), 0);
    return norm;
}

static long double expected_norm(const float *x, size_t n, double p)
{
    long double largest = 0, sum = 0;
    for (size_t i = 0; i < n; i++)
        largest = fabsl((long double)x[i]) > largest ? fabsl((long double)x[i]) : largest;
    if (isinf(p) || largest == 0)
        return largest;
    for (size_t i = 0; i < n; i++)
        sum += powl(fabsl((long double)x[i]) / largest, p);
    return largest * powl(sum, 1 / (long double)p);
}

static void norms_of_every_p_agree_with_long_double(void **state)
{
    static const double ps[] = {1, 1.000001, 1.25, 1.5, 2, 2.5, 3, 4, 7, 16, 100, 1e4, 1e9, 1e300, INFINITY};
    static const int ranges[][2] = {{-10, 4}, {-149, -100}, {100, 127}, {-149, 127}};
    for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
        fill(ranges[r][0], ranges[r][1]);
        for (size_t i = 0; i < sizeof ps / sizeof ps[0]; i++) {
            long double expected = expected_norm(values, 20000, ps[i]);
            long double error = fabsl(norm_of(values, 20000, ps[i]) - expected) / expected;
            if (!(error <= 0x1p-45L))
                print_message("p %g, range %zu: relative error %Lg\n", ps[i], r, error);
            assert_true(error <= 0x1p-45L);
        }
    }
}

/* A lane begins with 1, and loses each of the 4,095 terms that follow: half an ulp of its sum at most. */
static void what_a_lane_loses_is_within_the_bound(void **state)
{
    static const struct {
        double p;
        float small;
    } rows[] = {{1, 0x1p-53f}, {1.5, 0x1p-36f}, {2, 0x1p-27f}, {4, 0x1.6ap-14f}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (size_t k = 0; k < AMP_NORM_BLOCK; k++)
            values[k] = k < AMP_SQUARE_LANES ? 1 : rows[i].small;
        long double expected = expected_norm(values, AMP_NORM_BLOCK, rows[i].p);
        long double error = fabsl(norm_of(values, AMP_NORM_BLOCK, rows[i].p) - expected) / expected;
        assert_true(error <= 0x1p-40L);
        assert_true(error > 0x1p-45L); /* more than that of random elements */
    }
}

/* The error of the sum's logarithm is divided by p. */
static void norms_with_p_below_one_agree_with_long_double(void **state)
{
    static const double ps[] = {0.999999, 0.75, 0.5, 0.25, 0.1, 0.02};
    static const int ranges[][2] = {{-10, 4}, {-149, -100}, {-149, 20}};
    for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
        fill(ranges[r][0], ranges[r][1]);
        for (size_t i = 0; i < sizeof ps / sizeof ps[0]; i++) {
            long double expected = expected_norm(values, 20000, ps[i]);
            long double error = fabsl(norm_of(values, 20000, ps[i]) - expected) / expected;
            if (!(error <= 0x1p-45L / ps[i]))
                print_message("p %g, range %zu: relative error %Lg\n", ps[i], r, error);
            assert_true(error <= 0x1p-45L / ps[i]);
        }
    }
}

/* Four equal elements: 4^(1/p) times one of them, beyond exp2's range and not yet, or already, beyond a double. */
static void norms_with_tiny_p_are_infinite_only_beyond_a_double(void **state)
{
    float x[4];
    for (int i = 0; i < 4; i++)
        x[i] = i % 2 ? -0x1p-149f : 0x1p-149f;
    assert_true(fabs(norm_of(x, 4, 2.0 / 1100) / 0x1p951 - 1) < 1e-9);
    assert_true(norm_of(x, 4, 2.0 / 1300) == (double)INFINITY);
    assert_true(norm_of(x, 4, 1e-300) == (double)INFINITY);
    assert_true(norm_of(x, 1, 1e-300) == 0x1p-149 && norm_of(x, 1, 0x1p-1074) == 0x1p-149);
}

static void real_powers_are_within_their_bound(void **state)
{
    struct amp_random random;
    amp_random_init(&random, 6);
    for (unsigned i = 0; i < 200000; i++) {
        double x = ldexp(amp_random_unit(&random), -(int)amp_random_below(&random, 60));
        double p = ldexp(1 + amp_random_unit(&random), (int)amp_random_below(&random, 16) - 10);
        long double expected = powl(x, p);
        double got = amp_real_power(x, p);
        if (expected < 0x1p-1020L)
            continue;
        long double bound = 0x1p-48L * (1 + fabsl(p * log2l(x)));
        assert_true(fabsl(got - expected) <= bound * expected);
    }
    assert_true(amp_real_power(0, 3) == 0);
    assert_true(amp_real_power(1, 1e300) == 1);
    assert_true(amp_real_power(0.5, 1e300) == 0);
    assert_true(amp_real_power(0.5, 3) == 0.125);
}

static void nothing_has_the_norm_zero(void **state)
{
    float zeros[100] = {0};
    assert_true(norm_of(zeros, 0, 3) == 0);
    assert_true(norm_of(zeros, 100, 3) == 0);
    assert_true(norm_of(zeros, 100, 1) == 0);
}

static void nan_wins_over_infinity_and_infinity_over_numbers(void **state)
{
    static const double ps[] = {1, 2, 3.5, INFINITY};
    for (size_t i = 0; i < sizeof ps / sizeof ps[0]; i++) {
        float x[50] = {1, 2, -3};
        x[37] = -INFINITY;
        assert_true(norm_of(x, 50, ps[i]) == INFINITY);
        x[20] = NAN;
        assert_true(isnan(norm_of(x, 50, ps[i])));
        x[37] = 0;
        assert_true(isnan(norm_of(x, 50, ps[i])));
    }
}

static void the_norm_of_several_tensors_is_that_of_all_elements(void **state)
{
    static float x[5] = {3, 0, -4, 0, 12};
    uint16_t half[2] = {0x4900, 0xc900}; /* 10, -10 in f16 */
    const struct amp_tensor tensors[] = {
        {"a", x, 3, AMP_F32}, {"b", NULL, 0, AMP_BF16}, {"c", x + 3, 2, AMP_F32}, {"d", half, 2, AMP_F16}};
    double norm;
    assert_int_equal(amp_grads_norm(&amp_kernels_ref, tensors, 3, 2, &norm, NULL), 0);
    assert_true(norm == 13);
    assert_int_equal(amp_grads_norm(&amp_kernels_ref, tensors, 4, 1, &norm, NULL), 0);
    assert_true(norm == 39);
    assert_int_equal(amp_grads_norm(&amp_kernels_ref, tensors, 4, INFINITY, &norm, NULL), 0);
    assert_true(norm == 12);
}

static void blocks_taken_in_any_order_give_the_norm_of_the_whole(void **state)
{
    static const double ps[] = {1, 2, 3};
    fill(-20, 10);
    for (size_t i = 0; i < sizeof ps / sizeof ps[0]; i++) {
        struct amp_span whole = {values, N, AMP_F32};
        float largest = amp_norm_largest(&amp_kernels_ref, &whole);
        double sums[4];
        for (size_t b = 4; b > 0; b--) {
            size_t start = (b - 1) * AMP_NORM_BLOCK;
            struct amp_span block = {values + start, N - start < AMP_NORM_BLOCK ? N - start : AMP_NORM_BLOCK, AMP_F32};
            sums[b - 1] = amp_norm_block(&amp_kernels_ref, &block, ps[i], largest);
        }
        struct amp_tree tree;
        amp_tree_init(&tree);
        for (size_t b = 0; b < 4; b++)
            amp_tree_add(&tree, b, sums[b]);
        assert_true(amp_norm_of_sum(amp_tree_sum(&tree), ps[i], largest) == norm_of(values, N, ps[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_of_every_p_agree_with_long_double),
        cmocka_unit_test(what_a_lane_loses_is_within_the_bound),
        cmocka_unit_test(norms_with_p_below_one_agree_with_long_double),
        cmocka_unit_test(norms_with_tiny_p_are_infinite_only_beyond_a_double),
        cmocka_unit_test(real_powers_are_within_their_bound),
        cmocka_unit_test(nothing_has_the_norm_zero),
        cmocka_unit_test(nan_wins_over_infinity_and_infinity_over_numbers),
        cmocka_unit_test(the_norm_of_several_tensors_is_that_of_all_elements),
        cmocka_unit_test(blocks_taken_in_any_order_give_the_norm_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
