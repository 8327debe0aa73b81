/*
 * Adam, Adagrad, RMSProp, Lion and LAMB against their formulas in long double, each step from the kernel's own state,
 * as test_kernel_oracle.c does for SGD and AdamW: masters within 2 ulp of max(|p|, |update|), and moments rounded once.
 */
#include "amp/norm.h"
#include "amp/pass.h"
#include "amp/reduce.h"
#include "tests/kernels/inputs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define N      4096
#define ROUNDS 20
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

/* What one element should become. */
struct expected {
    long double p, m, v;
    long double m_term; /* the largest of m and its terms, and of v: their error is in its ulps */
    long double v_term;
};

typedef void formula_fn(const struct amp_apply *a, size_t i, struct expected *e);

/* A mean and, in *term, the largest of it and its two terms. */
static long double mean(long double beta, long double old, long double fresh, long double *term)
{
    long double a = beta * old, b = (1 - beta) * fresh;
    *term = fabsl(a) > fabsl(b) ? a : b;
    *term = fabsl(a + b) > fabsl(*term) ? a + b : *term;
    return a + b;
}

static void adam(const struct amp_apply *a, size_t i, struct expected *e)
{
    long double d = g[i] + (long double)a->weight_decay * p0[i];
    e->m = mean(a->beta1, m0[i], d, &e->m_term);
    e->v = mean(a->beta2, v0[i], d * d, &e->v_term);
    long double divisor = sqrtl(e->v) / sqrtl(a->bias2) + a->eps;
    e->p = p0[i] - (a->lr / (long double)a->bias1) * e->m / divisor;
}

static void adagrad(const struct amp_apply *a, size_t i, struct expected *e)
{
    long double d = g[i] + (long double)a->weight_decay * p0[i];
    e->m = e->m_term = m0[i] + d * d;
    e->p = p0[i] - a->lr * d / (sqrtl(e->m) + a->eps);
}

static void rmsprop(const struct amp_apply *a, size_t i, struct expected *e)
{
    long double d = g[i] + (long double)a->weight_decay * p0[i];
    e->m = mean(a->alpha, m0[i], d * d, &e->m_term);
    e->p = p0[i] - a->lr * d / (sqrtl(e->m) + a->eps);
}

static void rmsprop_centered(const struct amp_apply *a, size_t i, struct expected *e)
{
    long double d = g[i] + (long double)a->weight_decay * p0[i];
    e->m = mean(a->alpha, m0[i], d * d, &e->m_term);
    e->v = mean(a->alpha, v0[i], d, &e->v_term);
    e->p = p0[i] - a->lr * d / (sqrtl(e->m - e->v * e->v) + a->eps);
}

static void rmsprop_momentum(const struct amp_apply *a, size_t i, struct expected *e)
{
    long double d = g[i] + (long double)a->weight_decay * p0[i];
    e->m = mean(a->alpha, m0[i], d * d, &e->m_term);
    e->v = a->momentum * (long double)v0[i] + d / (sqrtl(e->m) + a->eps);
    e->v_term = e->v;
    e->p = p0[i] - a->lr * e->v;
}

static void lion(const struct amp_apply *a, size_t i, struct expected *e)
{
    long double ignored;
    long double direction = mean(a->beta1, m0[i], g[i], &ignored);
    e->m = mean(a->beta2, m0[i], g[i], &e->m_term);
    long double sign = (direction > 0) - (direction < 0);
    e->p = p0[i] * (1 - (long double)a->lr * a->weight_decay) - a->lr * sign;
}

static long double lamb_update(const struct amp_apply *a, size_t i, struct expected *e)
{
    e->m = mean(a->beta1, m0[i], g[i], &e->m_term);
    e->v = mean(a->beta2, v0[i], (long double)g[i] * g[i], &e->v_term);
    long double divisor = sqrtl(e->v / a->bias2) + a->eps;
    return e->m / (long double)a->bias1 / divisor + (long double)a->weight_decay * p0[i];
}

static void lamb(const struct amp_apply *a, size_t i, struct expected *e)
{
    e->p = p0[i] - (long double)a->lr * a->trust * lamb_update(a, i, e);
}

/* Where masters and gradients lie, and the scalars; t = 1 starts from moments of zero. */
static const struct regime {
    const char *name;
    int p_low, p_high;
    int g_low, g_high;
    double lr, weight_decay, eps;
    double beta1, beta2;
    uint64_t t;
    bool at_the_guard; /* Adam's masters are 2 to 32 updates: where its guard has just let single precision pass */
} regimes[] = {
    {"as in training", -8, 1, -24, -4, 1e-3, 0, 1e-8, 0.9, 0.999, 100, false},
    {"with decay", -8, 1, -24, -4, 1e-3, 1e-2, 1e-8, 0.9, 0.999, 100, false},
    {"first step", -8, 1, -24, -4, 1e-3, 1e-2, 1e-8, 0.9, 0.999, 1, false},
    {"masters as small as updates", -16, -6, -10, 0, 1e-3, 1e-3, 1e-8, 0.9, 0.999, 10, false},
    {"masters far below updates", -60, -40, -10, 0, 1e-2, 0, 1e-8, 0.9, 0.95, 3, false},
    {"large rate and decay", -4, 4, -10, 10, 1.0, 0.5, 1e-8, 0.9, 0.999, 7, false},
    {"short memories", -4, 4, -10, 10, 0.1, 0.1, 1e-6, 0.1, 0.2, 7, false},
    {"no memories", -4, 4, -10, 10, 0.1, 0.1, 1e-6, 0, 0, 7, false},
    {"tiny gradients", -4, 4, -149, -100, 0.1, 0, 1e-8, 0.9, 0.999, 7, false},
    {"tiny eps", -4, 4, -60, -30, 0.1, 0, 0x1p-100, 0.9, 0.999, 7, false},
    {"huge gradients", -4, 4, 40, 62, 0.1, 0, 1e-8, 0.9, 0.999, 7, false},
    {"rate zero", -4, 4, -10, 10, 0, 0.1, 1e-8, 0.9, 0.999, 7, false},
    {"denormal masters", -149, -120, -20, 0, 1e-36, 0.1, 1e-8, 0.9, 0.999, 7, false},
    {"at the guard", 0, 1, -8, 0, 1e-2, 1e-2, 1e-8, 0.9, 0.999, 7, true},
};
#define REGIMES (sizeof regimes / sizeof regimes[0])

/* An optimizer's case: its formula, and what its moments hold. */
struct subject {
    const char *name;
    enum amp_optimizer optimizer;
    formula_fn *formula;
    double momentum;
    bool centered;
    bool m_is_square; /* m >= 0: squares, else gradients */
    bool v_is_square;
    double moment_ulps; /* 0.501: rounded once */
};

/* Adam's moments are in fp32: d, its square, (1 - beta2), their product, and the sum are rounded. */
#define ADAM_MOMENT_ULPS 6

static const struct subject subjects[] = {
    {"adam", AMP_OPT_ADAM, adam, 0, false, false, true, ADAM_MOMENT_ULPS},
    {"adagrad", AMP_OPT_ADAGRAD, adagrad, 0, false, true, false, 0.501},
    {"rmsprop", AMP_OPT_RMSPROP, rmsprop, 0, false, true, false, 0.501},
    {"rmsprop, centered", AMP_OPT_RMSPROP, rmsprop_centered, 0, true, true, false, 0.501},
    {"rmsprop, momentum", AMP_OPT_RMSPROP, rmsprop_momentum, 0.9, false, true, false, 0.501},
    {"lion", AMP_OPT_LION, lion, 0, false, false, false, 0.501},
    {"lamb", AMP_OPT_LAMB, lamb, 0, false, false, true, 0.501},
};

static void fill(struct amp_random *random, const struct regime *r, const struct subject *s)
{
    bool history = r->t > 1;
    for (size_t i = 0; i < N; i++) {
        p[i] = i % 64 == 0 ? 0 : input_spread(random, r->p_low, r->p_high);
        g[i] = i % 61 == 0 ? 0 : input_spread(random, r->g_low, r->g_high);
        /* Some gradients nearly cancel the decay, and some momenta the gradient. */
        if (i % 7 == 0 && r->weight_decay > 0)
            g[i] = (float)(-r->weight_decay * p[i] * (1 + 1e-6 * (double)(i % 100 + 1)));
        float a = history ? input_spread(random, r->g_low, r->g_high) : 0;
        float b = history ? input_spread(random, r->g_low, r->g_high) : 0;
        m[i] = s->m_is_square ? a * a : a;
        v[i] = s->v_is_square ? b * b : b;
        if (!s->m_is_square && history && i % 5 == 0 && r->beta1 > 0)
            m[i] = (float)(-g[i] * (1 - r->beta1) / r->beta1 * (1 + 1e-6 * (double)(i % 100 + 1)));
        /* The mean of squares is at least the square of the mean. */
        if (s->centered)
            v[i] = (float)(0.98 * amp_random_unit(random)) * a;
    }
}

/* The update depends on the master by the decay: from the second round on only a little. */
static void bring_to_the_guard(struct amp_random *random, const struct amp_apply *apply)
{
    memcpy(m0, m, sizeof m);
    memcpy(v0, v, sizeof v);
    for (size_t i = 0; i < N; i++) {
        double times = exp2(1 + 4 * amp_random_unit(random)) * (i % 2 ? -1 : 1);
        p0[i] = 0;
        for (unsigned round = 0; round < 3; round++) {
            struct expected e;
            adam(apply, i, &e);
            p0[i] = (float)((p0[i] - e.p) * times);
        }
        p[i] = p0[i];
    }
}

static struct amp_optim_config config_of(const struct subject *s, const struct regime *r)
{
    return (struct amp_optim_config){.optimizer = s->optimizer,
                                     .lr = r->lr,
                                     .weight_decay = r->weight_decay,
                                     .momentum = s->momentum,
                                     .beta1 = r->beta1,
                                     .beta2 = r->beta2,
                                     .eps = r->eps,
                                     .alpha = r->beta2,
                                     .centered = s->centered};
}

struct worst {
    long double master; /* ulps of max(|p|, |update|) */
    long double moment; /* ulps of the moment's larger term */
};

static void judge(const struct amp_apply *apply, const struct subject *s, unsigned moments, struct worst *worst)
{
    for (size_t i = 0; i < N; i++) {
        struct expected e = {0};
        s->formula(apply, i, &e);
        long double update = fabsl(e.p - p0[i]), old = fabsl((long double)p0[i]);
        long double error = fabsl(p[i] - e.p) / ulp(update > old ? update : old);
        long double in_m = fabsl(m[i] - e.m) / ulp(e.m_term);
        long double in_v = moments == 2 ? fabsl(v[i] - e.v) / ulp(e.v_term) : 0;
        worst->master = error > worst->master ? error : worst->master;
        worst->moment = in_m > worst->moment ? in_m : worst->moment;
        worst->moment = in_v > worst->moment ? in_v : worst->moment;
    }
}

static struct worst run(const struct subject *s, const struct regime *r)
{
    struct amp_random random;
    struct amp_apply apply;
    struct worst worst = {0};
    struct amp_optim_config config = config_of(s, r);
    amp_random_init(&random, 7);
    assert_int_equal(amp_optim_check(&config, NULL), 0);
    amp_optim_scalars(&config, r->t, r->lr, 1, &apply);
    apply.cast = AMP_F16;
    apply.trust = s->optimizer == AMP_OPT_LAMB ? 0.37 : 1;
    unsigned moments = amp_optim_config_moments(&config);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct amp_apply_stats stats = {0};
        fill(&random, r, s);
        if (r->at_the_guard && s->optimizer == AMP_OPT_ADAM)
            bring_to_the_guard(&random, &apply);
        memcpy(p0, p, sizeof p);
        memcpy(m0, m, sizeof m);
        memcpy(v0, v, sizeof v);
        amp_pass_apply_g(&amp_kernels_ref, N, g, &apply, p, m, moments == 2 ? v : NULL, cast, &stats);
        judge(&apply, s, moments, &worst);
    }
    return worst;
}

static void masters_are_within_two_ulps_and_moments_within_their_roundings(void **state)
{
    for (size_t s = 0; s < sizeof subjects / sizeof subjects[0]; s++) {
        struct worst all = {0};
        for (size_t r = 0; r < REGIMES; r++) {
            struct worst worst = run(&subjects[s], &regimes[r]);
            if (!(worst.master <= BOUND) || !(worst.moment <= subjects[s].moment_ulps))
                print_message("%s, %s: masters %.2Lf ulp, moments %.2Lf ulp\n", subjects[s].name, regimes[r].name,
                              worst.master, worst.moment);
            assert_true(worst.master <= BOUND);
            assert_true(worst.moment <= subjects[s].moment_ulps);
            all.master = worst.master > all.master ? worst.master : all.master;
            all.moment = worst.moment > all.moment ? worst.moment : all.moment;
        }
        print_message("%s: masters at most %.2Lf ulp, moments %.3Lf ulp\n", subjects[s].name, all.master, all.moment);
    }
}

static void adam_without_decay_takes_no_part_of_the_master(void **state)
{
    /* Where the guard chooses one branch for both, Adam without decay and AdamW without decay are one. */
    struct amp_random random;
    struct amp_apply apply;
    struct amp_apply_stats stats = {0};
    struct amp_optim_config config;
    amp_random_init(&random, 3);
    amp_optim_defaults(AMP_OPT_ADAM, &config);
    fill(&random, &regimes[0], &subjects[0]);
    for (size_t i = 0; i < N; i++)
        p[i] = i % 2 ? input_spread(&random, 1, 4) : 0;
    memcpy(p0, p, sizeof p);
    memcpy(m0, m, sizeof m);
    memcpy(v0, v, sizeof v);
    amp_optim_scalars(&config, 100, 1e-5, 1, &apply);
    apply.cast = AMP_F16;
    amp_pass_apply_g(&amp_kernels_ref, N, g, &apply, p, m, v, cast, &stats);
    apply.optimizer = AMP_OPT_ADAMW;
    amp_pass_apply_g(&amp_kernels_ref, N, g, &apply, p0, m0, v0, cast, &stats);
    assert_memory_equal(p, p0, sizeof p);
    assert_memory_equal(m, m0, sizeof m);
    assert_memory_equal(v, v0, sizeof v);
}

static void lion_stays_where_the_mean_is_zero_and_keeps_nan(void **state)
{
    struct amp_apply_scalars k = {.clip = 1, .lr = 0.5, .beta1 = 0.9, .rest1 = 0.1, .beta2 = 0.9, .rest2 = 0.1};
    float gradient[4] = {0, 1, -1, 0}, master[4] = {3, 3, 3, 3}, moment[4] = {0, 0, 0, NAN};
    amp_kernels_ref.apply[AMP_OPT_LION](&k, 4, gradient, master, moment, NULL);
    assert_true(master[0] == 3 && master[1] == 2.5f && master[2] == 3.5f && master[3] != master[3]);
}

static void centered_rmsprop_never_takes_a_root_of_less_than_zero(void **state)
{
    /* A mean beyond the root of the mean of squares, as rounding may leave it: torch would give NaN. */
    struct amp_apply_scalars k = {
        .clip = 1, .centered = true, .lr = 0.5, .beta2 = 0.99, .rest2 = 1 - 0.99, .eps = 0.25};
    float gradient = 1, master = 1, square = 1, average = 1.0000001f;
    amp_kernels_ref.apply[AMP_OPT_RMSPROP](&k, 1, &gradient, &master, &square, &average);
    assert_true(master == -1);
}

static void lambs_first_pass_adds_the_squares_of_masters_and_updates(void **state)
{
    struct amp_random random;
    struct amp_apply apply;
    struct amp_lamb_squares squares, tiled;
    struct amp_optim_config config = config_of(&subjects[6], &regimes[1]);
    amp_random_init(&random, 11);
    fill(&random, &regimes[1], &subjects[6]);
    memcpy(p0, p, sizeof p);
    memcpy(m0, m, sizeof m);
    memcpy(v0, v, sizeof v);
    amp_optim_scalars(&config, 5, config.lr, 1, &apply);
    apply.cast = AMP_F16;
    amp_pass_lamb_g(&amp_kernels_ref, N - 3, g, &apply, p, m, v, &squares);
    assert_memory_equal(p, p0, sizeof p);
    assert_memory_equal(m, m0, sizeof m);
    assert_memory_equal(v, v0, sizeof v);
    struct amp_input input = {g, AMP_F32, 1};
    struct amp_pass_in in = {
        .count = N - 3, .inputs = &input, .inputs_count = 1, .equal_weights = true, .coefficient = 1};
    amp_pass_lamb(&amp_kernels_ref, &in, &apply, p, m, v, &tiled);
    assert_memory_equal(&squares, &tiled, sizeof squares);
    long double masters = 0, updates = 0;
    for (size_t i = 0; i < N - 3; i++) {
        struct expected e;
        long double update = lamb_update(&apply, i, &e);
        masters += (long double)p0[i] * p0[i];
        updates += update * update;
    }
    assert_true(fabsl(squares.masters - masters) <= 1e-13L * masters);
    assert_true(fabsl(squares.updates - updates) <= 1e-13L * updates);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masters_are_within_two_ulps_and_moments_within_their_roundings),
        cmocka_unit_test(adam_without_decay_takes_no_part_of_the_master),
        cmocka_unit_test(lion_stays_where_the_mean_is_zero_and_keeps_nan),
        cmocka_unit_test(centered_rmsprop_never_takes_a_root_of_less_than_zero),
        cmocka_unit_test(lambs_first_pass_adds_the_squares_of_masters_and_updates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
