/*
 * Hashes of results, so that they never change silently: a checkpoint written today must be reached again by the same
 * gradients on any machine and by any later version. A line that changes here is a change of docs/numerics.md.
 */
#include "amp/clip.h"
#include "amp/pass.h"
#include "base/crc32c.h"
#include "tests/kernels/inputs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Several tiles, and a tail that fills neither a vector nor the 16 lanes. */
#define N 5003

/* CRC32C of the bytes of each result (little endian). */
#define GOLDEN_G               0xbcfc5043u
#define GOLDEN_SQUARES         0x919d2c4eu
#define GOLDEN_LARGEST         0xf254de38u
#define GOLDEN_CLIPPED         0xcb7d2754u
#define GOLDEN_CLIPPED_SQUARES 0x4a883c87u
#define GOLDEN_ADAMW_P         0xb2910e43u
#define GOLDEN_ADAMW_M         0x30bd163du
#define GOLDEN_ADAMW_V         0xf8c53d4fu
#define GOLDEN_ADAMW_CAST      0xc4f0051fu
#define GOLDEN_SGD_P           0x2e3b889eu
#define GOLDEN_SGD_M           0x78c3afdfu
#define GOLDEN_SGD_CAST        0xa019ea28u
#define GOLDEN_SCALARS         0x7b2e60f3u
#define GOLDEN_NORMS           0xa9cebcf3u
#define GOLDEN_TRUST           0x75fb3249u

static const struct amp_kernels *kernels;

/* Three workers' gradients, one of each dtype, finite, and a state as in training. */
static float in32[N], p[N], m[N], v[N], g[N];
static uint16_t in16[N], inb16[N], cast[N];

static void make_state(void)
{
    struct amp_random random;
    amp_random_init(&random, 2026);
    for (size_t i = 0; i < N; i++) {
        float a = input_spread(&random, -10, 8);
        float b = input_spread(&random, -10, 8);
        in32[i] = input_spread(&random, -10, 8);
        (void)amp_kernels_ref.store[AMP_F16](&in16[i], &a, 1);
        (void)amp_kernels_ref.store[AMP_BF16](&inb16[i], &b, 1);
        p[i] = i % 50 == 0 ? 0 : input_spread(&random, -12, 1);
        m[i] = input_spread(&random, -16, -4);
        v[i] = input_spread(&random, -30, -8);
        v[i] = v[i] < 0 ? -v[i] : v[i];
    }
}

static struct amp_pass_in make_in(struct amp_input inputs[3])
{
    inputs[0] = (struct amp_input){in16, AMP_F16, 2.0f};
    inputs[1] = (struct amp_input){inb16, AMP_BF16, 0.5f};
    inputs[2] = (struct amp_input){in32, AMP_F32, 1.25f};
    return (struct amp_pass_in){
        .count = N, .inputs = inputs, .inputs_count = 3, .coefficient = amp_coefficient(1024, 3.75)};
}

static void expect(const char *what, const void *data, size_t size, uint32_t expected)
{
    uint32_t hash = amp_crc32c(0, data, size);
    if (hash != expected)
        print_message("%s: 0x%08x, expected 0x%08x\n", what, hash, expected);
    assert_int_equal(hash, expected);
}

static void vote_of_mixed_weighted_inputs_is_golden(void **state)
{
    struct amp_input inputs[3];
    struct amp_pass_vote vote;
    make_state();
    struct amp_pass_in in = make_in(inputs);
    amp_pass_vote(kernels, &in, g, &vote);
    expect("g", g, sizeof g, GOLDEN_G);
    expect("squares", &vote.squares, sizeof vote.squares, GOLDEN_SQUARES);
    expect("largest", &vote.largest, sizeof vote.largest, GOLDEN_LARGEST);
}

static void vote_clipped_by_value_with_equal_weights_is_golden(void **state)
{
    struct amp_input inputs[3];
    struct amp_pass_vote vote;
    make_state();
    struct amp_pass_in in = make_in(inputs);
    in.equal_weights = true;
    in.clip_value_set = true;
    in.clip_value = 0.015f;
    amp_pass_vote(kernels, &in, g, &vote);
    expect("clipped g", g, sizeof g, GOLDEN_CLIPPED);
    expect("clipped squares", &vote.squares, sizeof vote.squares, GOLDEN_CLIPPED_SQUARES);
}

/* Three steps: the third depends on all bits of the first two. */
static void run_steps(const struct amp_optim_config *config, enum amp_dtype dtype, void *out)
{
    struct amp_input inputs[3];
    make_state();
    struct amp_pass_in in = make_in(inputs);
    for (uint64_t t = 1; t <= 3; t++) {
        struct amp_apply apply;
        struct amp_apply_stats stats = {0};
        amp_optim_scalars(config, t, config->lr, 0.7f, &apply);
        apply.cast = dtype;
        apply.first_step = t == 1;
        amp_pass_apply(kernels, &in, &apply, p, m, v, out, &stats);
        assert_int_equal(stats.not_finite, 0);
    }
}

static void three_steps_of_adamw_are_golden(void **state)
{
    struct amp_optim_config config = {
        .optimizer = AMP_OPT_ADAMW, .lr = 1e-3, .weight_decay = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    run_steps(&config, AMP_F16, cast);
    expect("adamw p", p, sizeof p, GOLDEN_ADAMW_P);
    expect("adamw m", m, sizeof m, GOLDEN_ADAMW_M);
    expect("adamw v", v, sizeof v, GOLDEN_ADAMW_V);
    expect("adamw cast", cast, sizeof cast, GOLDEN_ADAMW_CAST);
}

static void three_steps_of_sgd_are_golden(void **state)
{
    struct amp_optim_config config = {
        .optimizer = AMP_OPT_SGD, .lr = 0.1, .weight_decay = 0.01, .momentum = 0.9, .nesterov = true};
    run_steps(&config, AMP_BF16, cast);
    expect("sgd p", p, sizeof p, GOLDEN_SGD_P);
    expect("sgd m", m, sizeof m, GOLDEN_SGD_M);
    expect("sgd cast", cast, sizeof cast, GOLDEN_SGD_CAST);
}

/* Hashes of the optimizers that keep to no cast of their own: p, m and v in one. */
static const struct other {
    enum amp_optimizer optimizer;
    double momentum;
    bool centered;
    uint32_t hash;
} others[] = {
    {AMP_OPT_ADAM, 0, false, 0xf0df6111u},    {AMP_OPT_ADAGRAD, 0, false, 0xffc564c8u},
    {AMP_OPT_RMSPROP, 0, false, 0x5cc1b3aeu}, {AMP_OPT_RMSPROP, 0.9, false, 0x42bf3506u},
    {AMP_OPT_RMSPROP, 0, true, 0xfed2977bu},  {AMP_OPT_LION, 0, false, 0xbda2ac65u},
    {AMP_OPT_LAMB, 0, false, 0xbff87723u},
};

static void one_step_of_each_other_optimizer_is_golden(void **state)
{
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        struct amp_optim_config config;
        struct amp_input inputs[3];
        struct amp_apply apply;
        struct amp_apply_stats stats = {0};
        make_state();
        for (size_t j = 0; j < N; j++)
            m[j] = m[j] < 0 ? -m[j] : m[j];
        struct amp_pass_in in = make_in(inputs);
        amp_optim_defaults(others[i].optimizer, &config);
        config.weight_decay = 0.01;
        config.momentum = others[i].momentum;
        config.centered = others[i].centered;
        amp_optim_scalars(&config, 3, config.lr, 0.7f, &apply);
        apply.cast = AMP_BF16;
        apply.trust = 0.8;
        bool with_v = amp_optim_config_moments(&config) == 2;
        amp_pass_apply(kernels, &in, &apply, p, m, with_v ? v : NULL, cast, &stats);
        assert_int_equal(stats.not_finite, 0);
        uint32_t hash = amp_crc32c(amp_crc32c(amp_crc32c(0, p, sizeof p), m, sizeof m), v, sizeof v);
        if (hash != others[i].hash)
            print_message("%s: 0x%08xu, expected 0x%08xu\n", amp_optim_name(config.optimizer), hash, others[i].hash);
        assert_int_equal(hash, others[i].hash);
    }
}

static void norms_are_golden(void **state)
{
    static const double ps[] = {1, 1.5, 2, 3, 10, INFINITY};
    double norms[6], t[2];
    make_state();
    const struct amp_tensor tensors[] = {{"a", in32, N, AMP_F32}, {"b", in16, N, AMP_F16}, {"c", inb16, N, AMP_BF16}};
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(amp_grads_norm(kernels, tensors, 3, ps[i], &norms[i], NULL), 0);
    expect("norms", norms, sizeof norms, GOLDEN_NORMS);
    struct amp_optim_config config;
    struct amp_lamb_squares squares;
    struct amp_apply apply;
    amp_optim_defaults(AMP_OPT_LAMB, &config);
    amp_optim_scalars(&config, 3, config.lr, 0.7f, &apply);
    amp_pass_lamb_g(kernels, N, in32, &apply, p, m, v, &squares);
    t[0] = amp_lamb_trust(squares.masters, squares.updates);
    t[1] = squares.updates;
    expect("trust", t, sizeof t, GOLDEN_TRUST);
}

static void scalars_are_golden(void **state)
{
    double scalars[260];
    size_t n = 0;
    for (uint64_t t = 1; t <= 100; t++) {
        scalars[n++] = amp_bias_correction(0.9, t * t);
        scalars[n++] = amp_bias_correction(0.999, t * 37);
    }
    for (unsigned i = 0; i <= 40; i++)
        scalars[n++] = amp_cos_pi(i / 40.0);
    scalars[n++] = (double)amp_coefficient(65536, 3);
    scalars[n++] = (double)amp_clip_coefficient(1, 3);
    expect("scalars", scalars, n * sizeof scalars[0], GOLDEN_SCALARS);
}

int main(int argc, char **argv)
{
    kernels = input_variant(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vote_of_mixed_weighted_inputs_is_golden),
        cmocka_unit_test(vote_clipped_by_value_with_equal_weights_is_golden),
        cmocka_unit_test(three_steps_of_adamw_are_golden),
        cmocka_unit_test(three_steps_of_sgd_are_golden),
        cmocka_unit_test(one_step_of_each_other_optimizer_is_golden),
        cmocka_unit_test(norms_are_golden),
        cmocka_unit_test(scalars_are_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
