/* The two passes over a segment: what they find, what they leave alone, and that both form the same gradient. */
#include "amp/cpu.h"
#include "amp/pass.h"
#include "amp/reduce.h"
#include "base/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define N 3001 /* two tiles and a tail */

static const struct amp_kernels *kernels;
static float a32[N], g[N], g2[N], p[N], m[N], v[N], q[N], m2[N], v2[N];
static uint16_t a16[N], cast[N], cast2[N];

static void fill(uint64_t seed)
{
    struct amp_random random;
    amp_random_init(&random, seed);
    for (size_t i = 0; i < N; i++) {
        float x = (float)(amp_random_unit(&random) * 8 - 4);
        a32[i] = (float)(amp_random_unit(&random) * 8 - 4);
        (void)kernels->store[AMP_F16](&a16[i], &x, 1);
        p[i] = (float)(amp_random_unit(&random) * 2 - 1);
        m[i] = v[i] = 0;
    }
}

static struct amp_pass_in two_inputs(struct amp_input inputs[2])
{
    inputs[0] = (struct amp_input){a16, AMP_F16, 1};
    inputs[1] = (struct amp_input){a32, AMP_F32, 1};
    return (struct amp_pass_in){.count = N,
                                .inputs = inputs,
                                .inputs_count = 2,
                                .equal_weights = true,
                                .coefficient = amp_coefficient(4, 2),
                                .squares = true};
}

static void clean_inputs_give_the_mean_and_no_finding(void **state)
{
    struct amp_input inputs[2];
    struct amp_pass_vote vote;
    fill(1);
    struct amp_pass_in in = two_inputs(inputs);
    amp_pass_vote(kernels, &in, g, &vote);
    double lanes[16] = {0};
    float largest = 0;
    for (size_t i = 0; i < N; i++) {
        float x;
        kernels->load[AMP_F16](&x, &a16[i], 1);
        float expected = (x + a32[i]) * 0.125f;
        assert_true(g[i] == expected);
        lanes[i % 16] += (double)g[i] * g[i];
        largest = fmaxf(largest, fabsf(g[i]));
    }
    assert_true(vote.squares == amp_tree_lanes(lanes));
    assert_true(vote.largest == largest);
    assert_int_equal(vote.sum_inf + vote.sum_nan + vote.range_count, 0);
    assert_true(vote.sum_first == UINT64_MAX && vote.range_first == UINT64_MAX);
}

static void gradient_is_the_same_with_and_without_a_place_for_it(void **state)
{
    struct amp_input inputs[2];
    struct amp_pass_vote with, without;
    fill(2);
    struct amp_pass_in in = two_inputs(inputs);
    amp_pass_vote(kernels, &in, g, &with);
    amp_pass_vote(kernels, &in, NULL, &without);
    assert_true(with.squares == without.squares && with.largest == without.largest);
    assert_true(with.sum_first == without.sum_first && with.range_first == without.range_first);
}

static void inf_and_nan_of_an_input_are_counted_and_placed(void **state)
{
    struct amp_input inputs[2];
    struct amp_pass_vote vote;
    fill(3);
    a16[2999] = 0x7c00;
    a32[1500] = -INFINITY;
    a32[1400] = NAN;
    struct amp_pass_in in = two_inputs(inputs);
    amp_pass_vote(kernels, &in, NULL, &vote);
    assert_int_equal(vote.sum_inf, 2);
    assert_int_equal(vote.sum_nan, 1);
    assert_int_equal(vote.sum_first, 1400);
    assert_true(vote.squares == 0);
    assert_true(vote.largest > 0 && vote.largest <= 1);
}

static void a_finite_sum_that_overflows_is_found(void **state)
{
    struct amp_input inputs[2];
    struct amp_pass_vote vote;
    fill(4);
    float big[N] = {0};
    big[17] = 3e38f;
    a32[17] = 3e38f;
    struct amp_pass_in in = two_inputs(inputs);
    inputs[0] = (struct amp_input){big, AMP_F32, 1};
    amp_pass_vote(kernels, &in, NULL, &vote);
    assert_int_equal(vote.sum_inf, 1);
    assert_int_equal(vote.sum_first, 17);
}

static void a_product_with_one_over_scale_that_overflows_is_found(void **state)
{
    struct amp_input inputs[2];
    struct amp_pass_vote vote;
    fill(5);
    a32[5] = 1e30f;
    struct amp_pass_in in = two_inputs(inputs);
    in.coefficient = amp_coefficient(0x1p-100f, 2);
    amp_pass_vote(kernels, &in, NULL, &vote);
    assert_int_equal(vote.sum_inf, 1);
    assert_int_equal(vote.sum_first, 5);
}

static void opposite_infinities_are_a_nan_even_when_clipped(void **state)
{
    struct amp_input inputs[2];
    struct amp_pass_vote vote;
    fill(6);
    a16[9] = 0x7c00;
    a32[9] = -INFINITY;
    struct amp_pass_in in = two_inputs(inputs);
    in.clip_value_set = true;
    in.clip_value = 0.5f;
    amp_pass_vote(kernels, &in, g, &vote);
    assert_int_equal(vote.sum_nan, 1);
    uint32_t bits;
    memcpy(&bits, &g[9], 4);
    assert_int_equal(bits, AMP_F32_NAN);
}

static void clip_by_value_bounds_g_but_not_the_report(void **state)
{
    struct amp_input inputs[2];
    struct amp_pass_vote vote;
    fill(7);
    a32[100] = 800;
    struct amp_pass_in in = two_inputs(inputs);
    in.clip_value_set = true;
    in.clip_value = 0.25f;
    amp_pass_vote(kernels, &in, g, &vote);
    for (size_t i = 0; i < N; i++)
        assert_true(fabsf(g[i]) <= 0.25f);
    assert_true(vote.largest > 90);
    assert_true(vote.squares <= N * 0.0625);
}

static void range_test_counts_only_where_squared_and_after_the_clip(void **state)
{
    struct amp_input inputs[2];
    struct amp_pass_vote vote;
    fill(8);
    a32[2000] = 0x1p66f; /* g is 2^63, with a16 lost in rounding */
    a32[2001] = 0x1.8p65f;
    a32[2500] = -0x1p100f;
    struct amp_pass_in in = two_inputs(inputs);
    amp_pass_vote(kernels, &in, NULL, &vote);
    assert_int_equal(vote.range_count, 2);
    assert_int_equal(vote.range_first, 2000);
    assert_int_equal(vote.sum_inf + vote.sum_nan, 0);
    in.squares = false;
    amp_pass_vote(kernels, &in, NULL, &vote);
    assert_int_equal(vote.range_count, 0);
    in.squares = true;
    in.clip_value_set = true;
    in.clip_value = 10;
    amp_pass_vote(kernels, &in, NULL, &vote);
    assert_int_equal(vote.range_count, 0);
}

static void weights_are_used_unless_equal(void **state)
{
    struct amp_input inputs[2];
    struct amp_pass_vote vote;
    fill(9);
    struct amp_pass_in in = two_inputs(inputs);
    inputs[0].weight = 0;
    inputs[1].weight = 3;
    in.equal_weights = false;
    in.coefficient = amp_coefficient(1, 3);
    amp_pass_vote(kernels, &in, g, &vote);
    for (size_t i = 0; i < N; i++)
        assert_true(g[i] == 3 * a32[i] * in.coefficient);
}

static struct amp_apply adamw(enum amp_dtype dtype)
{
    struct amp_optim_config config = {
        .optimizer = AMP_OPT_ADAMW, .lr = 0.01, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    struct amp_apply apply;
    amp_optim_scalars(&config, 1, config.lr, 0.5f, &apply);
    apply.cast = dtype;
    return apply;
}

static void apply_from_the_journalled_gradient_gives_the_same_bits(void **state)
{
    struct amp_input inputs[2];
    struct amp_pass_vote vote;
    struct amp_apply_stats stats = {0}, stats2 = {0};
    fill(10);
    struct amp_pass_in in = two_inputs(inputs);
    in.clip_value_set = true;
    in.clip_value = 0.3f;
    struct amp_apply apply = adamw(AMP_F16);
    memcpy(q, p, sizeof p);
    memset(m2, 0, sizeof m2);
    memset(v2, 0, sizeof v2);
    amp_pass_vote(kernels, &in, g2, &vote);
    amp_pass_apply(kernels, &in, &apply, p, m, v, cast, &stats);
    amp_pass_apply_g(kernels, N, g2, &apply, q, m2, v2, cast2, &stats2);
    assert_memory_equal(p, q, sizeof p);
    assert_memory_equal(m, m2, sizeof m);
    assert_memory_equal(v, v2, sizeof v);
    assert_memory_equal(cast, cast2, sizeof cast);
    assert_true(stats.largest == stats2.largest && stats.cast_overflows == stats2.cast_overflows);
}

static void the_cast_is_that_of_the_new_master(void **state)
{
    struct amp_input inputs[2];
    struct amp_apply_stats stats = {0};
    fill(11);
    struct amp_pass_in in = two_inputs(inputs);
    struct amp_apply apply = adamw(AMP_BF16);
    memcpy(q, p, sizeof p);
    amp_pass_apply(kernels, &in, &apply, p, m, v, cast, &stats);
    assert_true(memcmp(p, q, sizeof p) != 0);
    (void)amp_kernels_ref.store[AMP_BF16](cast2, p, N);
    assert_memory_equal(cast, cast2, sizeof cast);
    assert_int_equal(stats.cast_overflows + stats.not_finite, 0);
    assert_true(stats.largest > 0.9f && stats.largest < 1.1f);
    apply.cast = AMP_F32;
    float out[N];
    amp_pass_apply(kernels, &in, &apply, p, m, v, out, &stats);
    assert_memory_equal(out, p, sizeof p);
}

static void masters_beyond_the_cast_are_counted_and_saturated_on_request(void **state)
{
    struct amp_apply_stats stats = {0};
    fill(12);
    p[3] = 65519;
    p[4] = 65520;
    p[2048] = -1e6f;
    amp_pass_cast(kernels, N, p, AMP_F16, false, cast, &stats);
    assert_int_equal(stats.cast_overflows, 2);
    assert_int_equal(cast[3], 0x7bff);
    assert_int_equal(cast[4], 0x7c00);
    assert_int_equal(cast[2048], 0xfc00);
    assert_true(stats.largest == 1e6f);
    amp_pass_cast(kernels, N, p, AMP_F16, true, cast, &stats);
    assert_int_equal(stats.cast_overflows, 4);
    assert_int_equal(cast[4], 0x7bff);
    assert_int_equal(cast[2048], 0xfbff);
    struct amp_apply_stats bf16 = {0};
    p[7] = 0x1.fffffep127f;
    p[8] = INFINITY;
    amp_pass_cast(kernels, N, p, AMP_BF16, true, cast, &bf16);
    assert_int_equal(bf16.cast_overflows, 1);
    assert_int_equal(bf16.not_finite, 1);
    assert_int_equal(cast[7], 0x7f7f);
    assert_int_equal(cast[8], 0x7f80);
}

static void sgd_first_step_takes_the_gradient_as_its_buffer(void **state)
{
    struct amp_optim_config config = {.optimizer = AMP_OPT_SGD, .lr = 0.5, .momentum = 0.5, .dampening = 0.5};
    struct amp_apply_stats stats = {0};
    struct amp_apply apply;
    fill(13);
    for (size_t i = 0; i < N; i++) {
        g[i] = 2;
        p[i] = 10;
        m[i] = NAN; /* has no value yet */
    }
    amp_optim_scalars(&config, 1, config.lr, 1, &apply);
    apply.cast = AMP_F16;
    apply.first_step = true;
    amp_pass_apply_g(kernels, N, g, &apply, p, m, NULL, cast, &stats);
    assert_true(m[0] == 2 && p[0] == 9 && m[N - 1] == 2 && p[N - 1] == 9);
    apply.first_step = false;
    amp_pass_apply_g(kernels, N, g, &apply, p, m, NULL, cast, &stats);
    assert_true(m[0] == 2 && p[0] == 8 && m[N - 1] == 2 && p[N - 1] == 8);
}

static void lambs_first_pass_clips_by_value_as_the_vote_does(void **state)
{
    struct amp_input inputs[2];
    struct amp_pass_vote vote;
    struct amp_lamb_squares fused, from_g;
    struct amp_optim_config config;
    struct amp_apply apply;
    fill(15);
    amp_optim_defaults(AMP_OPT_LAMB, &config);
    amp_optim_scalars(&config, 1, config.lr, 1, &apply);
    struct amp_pass_in in = two_inputs(inputs);
    in.clip_value_set = true;
    in.clip_value = 0.25f;
    amp_pass_vote(kernels, &in, g, &vote);
    amp_pass_lamb(kernels, &in, &apply, p, m, v, &fused);
    amp_pass_lamb_g(kernels, N, g, &apply, p, m, v, &from_g);
    assert_memory_equal(&fused, &from_g, sizeof fused);
}

static void a_cast_to_f32_cannot_overflow_and_reports_what_is_not_finite(void **state)
{
    struct amp_apply_stats stats = {0};
    float out[N];
    fill(16);
    p[5] = 0x1.fffffep127f;
    p[6] = -INFINITY;
    amp_pass_cast(kernels, N, p, AMP_F32, true, out, &stats);
    assert_int_equal(stats.cast_overflows, 0);
    assert_int_equal(stats.not_finite, 1);
    assert_true(stats.largest == 0x1.fffffep127f);
    assert_memory_equal(out, p, sizeof p);
}

static void an_empty_segment_has_no_findings(void **state)
{
    struct amp_input inputs[2];
    struct amp_pass_vote vote;
    fill(14);
    struct amp_pass_in in = two_inputs(inputs);
    in.count = 0;
    amp_pass_vote(kernels, &in, NULL, &vote);
    assert_true(vote.squares == 0 && vote.largest == 0 && vote.sum_first == UINT64_MAX);
}

int main(void)
{
    if (amp_cpu_select(NULL, &kernels, NULL) != 0)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clean_inputs_give_the_mean_and_no_finding),
        cmocka_unit_test(gradient_is_the_same_with_and_without_a_place_for_it),
        cmocka_unit_test(inf_and_nan_of_an_input_are_counted_and_placed),
        cmocka_unit_test(a_finite_sum_that_overflows_is_found),
        cmocka_unit_test(a_product_with_one_over_scale_that_overflows_is_found),
        cmocka_unit_test(opposite_infinities_are_a_nan_even_when_clipped),
        cmocka_unit_test(clip_by_value_bounds_g_but_not_the_report),
        cmocka_unit_test(range_test_counts_only_where_squared_and_after_the_clip),
        cmocka_unit_test(weights_are_used_unless_equal),
        cmocka_unit_test(apply_from_the_journalled_gradient_gives_the_same_bits),
        cmocka_unit_test(the_cast_is_that_of_the_new_master),
        cmocka_unit_test(masters_beyond_the_cast_are_counted_and_saturated_on_request),
        cmocka_unit_test(sgd_first_step_takes_the_gradient_as_its_buffer),
        cmocka_unit_test(lambs_first_pass_clips_by_value_as_the_vote_does),
        cmocka_unit_test(a_cast_to_f32_cannot_overflow_and_reports_what_is_not_finite),
        cmocka_unit_test(an_empty_segment_has_no_findings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
