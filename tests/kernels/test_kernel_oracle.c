/*
 * Optimizers against torch's formulas in long double, each step from the kernel's own state. The error of a master, in
 * units in the last place of max(|p|, |update|), is bounded everywhere: also where the update is as large as the
 * master, where the moments cancel, at the first step, and among denormals.
 */
#include "amp/pass.h"
#include "tests/kernels/inputs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define N      4096
#define ROUNDS 40
#define BOUND  2.0L

static float g[N], p[N], m[N], v[N], p0[N], m0[N], v0[N];
static uint16_t cast[N];

static long double ulp(long double x)
{
    int exponent;
    (void)frexpl(fabsl(x), &exponent);
    exponent = exponent - 24 < -149 ? -149 : exponent - 24;
    return ldexpl(1, exponent);
}

static long double error_in_ulps(float got, long double expected, float old)
{
    long double update = fabsl(expected - old);
    long double largest = update > fabsl((long double)old) ? update : fabsl((long double)old);
    return fabsl((long double)got - expected) / ulp(largest);
}

/* One step of the whole apply pass with g as the only input. */
static void step(const struct amp_apply *apply, bool with_m, bool with_v)
{
    struct amp_apply_stats stats = {0};
    memcpy(p0, p, sizeof p);
    memcpy(m0, m, sizeof m);
    memcpy(v0, v, sizeof v);
    amp_pass_apply_g(&amp_kernels_ref, N, g, apply, p, with_m ? m : NULL, with_v ? v : NULL, cast, &stats);
}

static long double adamw_expected(const struct amp_apply *a, size_t i)
{
    long double m1 = a->beta1 * (long double)m0[i] + (1 - (long double)a->beta1) * g[i];
    long double v1 = a->beta2 * (long double)v0[i] + (1 - (long double)a->beta2) * g[i] * g[i];
    long double divisor = sqrtl(v1) / sqrtl(a->bias2) + a->eps;
    long double decayed = p0[i] - (long double)a->lr * a->weight_decay * p0[i];
    return decayed - (a->lr / (long double)a->bias1) * m1 / divisor;
}

/* A regime of numbers: where masters and gradients lie, and the scalars. */
struct regime {
    const char *name;
    int p_low, p_high;
    int g_low, g_high;
    double lr, weight_decay, eps;
    double beta1, beta2;
    uint64_t t;
    bool at_the_guard; /* masters of 2 to 32 updates, every third just below a power of two */
};

static const struct regime regimes[] = {
    {"as in training", -8, 1, -24, -4, 1e-3, 1e-2, 1e-8, 0.9, 0.999, 100, false},
    {"first step", -8, 1, -24, -4, 1e-3, 1e-2, 1e-8, 0.9, 0.999, 1, false},
    {"masters as small as updates", -16, -6, -10, 0, 1e-3, 0, 1e-8, 0.9, 0.999, 10, false},
    {"masters far below updates", -60, -40, -10, 0, 1e-2, 0, 1e-8, 0.9, 0.95, 3, false},
    {"large rate and decay", -4, 4, -10, 10, 1.0, 0.5, 1e-8, 0.9, 0.999, 7, false},
    {"short memories", -4, 4, -10, 10, 0.1, 0.1, 1e-6, 0.1, 0.2, 7, false},
    {"no memories", -4, 4, -10, 10, 0.1, 0.1, 1e-6, 0, 0, 7, false},
    {"tiny gradients", -4, 4, -149, -100, 0.1, 0.1, 1e-8, 0.9, 0.999, 7, false},
    {"tiny eps", -4, 4, -120, -30, 0.1, 0, 0x1p-100, 0.9, 0.999, 7, false},
    {"huge gradients", -4, 4, 40, 62, 0.1, 0, 1e-8, 0.9, 0.999, 7, false},
    {"rate zero", -4, 4, -10, 10, 0, 0.1, 1e-8, 0.9, 0.999, 7, false},
    {"denormal masters", -149, -120, -20, 0, 1e-36, 0, 1e-8, 0.9, 0.999, 7, false},
    {"at the guard", 0, 1, -8, 0, 1e-2, 0, 1e-8, 0.9, 0.999, 7, true},
    {"at the guard, with decay", 0, 1, -8, 0, 1e-2, 1, 1e-8, 0.95, 0.95, 40, true},
};

static void fill(struct amp_random *random, const struct regime *r, bool with_history)
{
    for (size_t i = 0; i < N; i++) {
        p[i] = i % 64 == 0 ? 0 : input_spread(random, r->p_low, r->p_high);
        g[i] = i % 61 == 0 ? 0 : input_spread(random, r->g_low, r->g_high);
        m[i] = with_history ? input_spread(random, r->g_low, r->g_high) : 0;
        /* Some momenta nearly cancel the gradient; to the last bit, long double itself would not be exact. */
        if (with_history && i % 5 == 0 && r->beta1 > 0)
            m[i] = (float)(-g[i] * (1 - r->beta1) / r->beta1 * (1 + 1e-6 * (double)(i % 100 + 1)));
        float root = input_spread(random, r->g_low, r->g_high);
        v[i] = with_history ? root * root : 0;
    }
}

/* Where the guard has just let single precision pass, its error is the largest. */
static void bring_to_the_guard(struct amp_random *random, const struct amp_apply *apply)
{
    memset(p0, 0, sizeof p0);
    memcpy(m0, m, sizeof m);
    memcpy(v0, v, sizeof v);
    for (size_t i = 0; i < N; i++) {
        int exponent;
        long double x = adamw_expected(apply, i) * exp2(1 + 4 * amp_random_unit(random)) * (i % 2 ? -1 : 1);
        if (i % 3 == 0 && x != 0) {
            (void)frexpl(x, &exponent);
            x = copysignl(ldexpl(1 - exp2(-3 - 20 * amp_random_unit(random)), exponent), x);
        }
        p[i] = (float)x;
    }
}

static long double worst_adamw(const struct regime *r)
{
    struct amp_random random;
    amp_random_init(&random, 7);
    long double worst = 0;
    struct amp_optim_config config = {.optimizer = AMP_OPT_ADAMW,
                                      .lr = r->lr,
                                      .weight_decay = r->weight_decay,
                                      .beta1 = r->beta1,
                                      .beta2 = r->beta2,
                                      .eps = r->eps};
    struct amp_apply apply;
    amp_optim_scalars(&config, r->t, r->lr, 1, &apply);
    apply.cast = AMP_F16;
    for (unsigned round = 0; round < ROUNDS; round++) {
        fill(&random, r, r->t > 1);
        if (r->at_the_guard)
            bring_to_the_guard(&random, &apply);
        step(&apply, true, true);
        for (size_t i = 0; i < N; i++) {
            long double error = error_in_ulps(p[i], adamw_expected(&apply, i), p0[i]);
            worst = error > worst ? error : worst;
        }
    }
    return worst;
}

static void adamw_masters_are_within_two_ulps_of_the_formula(void **state)
{
    for (size_t i = 0; i < sizeof regimes / sizeof regimes[0]; i++) {
        long double worst = worst_adamw(&regimes[i]);
        print_message("adamw, %s: at most %.2Lf ulp\n", regimes[i].name, worst);
        assert_true(worst <= BOUND);
    }
}

static void adamw_moments_are_within_three_ulps_of_their_larger_term(void **state)
{
    struct amp_random random;
    amp_random_init(&random, 8);
    struct amp_optim_config config = {
        .optimizer = AMP_OPT_ADAMW, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    struct amp_apply apply;
    amp_optim_scalars(&config, 5, config.lr, 1, &apply);
    apply.cast = AMP_F16;
    for (unsigned round = 0; round < ROUNDS; round++) {
        fill(&random, &regimes[0], true);
        step(&apply, true, true);
        for (size_t i = 0; i < N; i++) {
            long double old = 0.9L * m0[i], fresh = 0.1L * g[i];
            long double larger = fabsl(old) > fabsl(fresh) ? old : fresh;
            assert_true(fabsl(m[i] - (apply.beta1 * (long double)m0[i] + (1 - (long double)apply.beta1) * g[i])) <=
                        3 * ulp(larger));
            long double v1 = apply.beta2 * (long double)v0[i] + (1 - (long double)apply.beta2) * g[i] * g[i];
            assert_true(fabsl(v[i] - v1) <= 3 * ulp(v1));
        }
    }
}

static long double sgd_expected(const struct amp_apply *a, size_t i, bool with_m, long double *buffer)
{
    long double d = g[i] + (long double)a->weight_decay * p0[i];
    if (with_m) {
        *buffer = a->first_step ? d : a->momentum * (long double)m0[i] + (1 - (long double)a->dampening) * d;
        d = a->nesterov ? d + a->momentum * *buffer : *buffer;
    }
    return p0[i] - a->lr * d;
}

static void check_sgd(const struct amp_optim_config *config, bool first_step)
{
    struct amp_random random;
    amp_random_init(&random, 9);
    struct amp_apply apply;
    amp_optim_scalars(config, 3, config->lr, 1, &apply);
    apply.cast = AMP_BF16;
    apply.first_step = first_step;
    bool with_m = amp_optim_moments(config->optimizer, config->momentum) == 1;
    for (unsigned round = 0; round < ROUNDS; round++) {
        fill(&random, &regimes[4], true);
        step(&apply, with_m, false);
        for (size_t i = 0; i < N; i++) {
            long double buffer = 0;
            long double expected = sgd_expected(&apply, i, with_m, &buffer);
            assert_true(error_in_ulps(p[i], expected, p0[i]) <= 1.001L);
            if (with_m)
                assert_true(fabsl(m[i] - buffer) <= 0.501L * ulp(buffer));
        }
    }
}

static void sgd_masters_and_buffers_are_rounded_once(void **state)
{
    for (unsigned i = 0; i < 16; i++) {
        struct amp_optim_config config = {.optimizer = AMP_OPT_SGD, .lr = i & 1 ? 0.1 : 1e-3};
        config.weight_decay = i & 2 ? 0.01 : 0;
        config.momentum = i & 4 ? 0.9 : 0;
        config.dampening = (i & 12) == 12 ? 0.25 : 0;
        config.nesterov = (i & 12) == 4;
        assert_int_equal(amp_optim_check(&config, NULL), 0);
        check_sgd(&config, false);
        check_sgd(&config, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_masters_are_within_two_ulps_of_the_formula),
        cmocka_unit_test(adamw_moments_are_within_three_ulps_of_their_larger_term),
        cmocka_unit_test(sgd_masters_and_buffers_are_rounded_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
