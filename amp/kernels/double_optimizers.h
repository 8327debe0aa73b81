/* The optimizers of kernels/double.h, which includes this: what it is written in is listed there. */
#ifndef AMP_KERNELS_DOUBLE_OPTIMIZERS_H
#define AMP_KERNELS_DOUBLE_OPTIMIZERS_H

#include "amp/kernels.h"

/* One half of a vector: the state of an element goes in as old and comes out as new, unrounded. */
struct half {
    vd p, m, v;
};

/* m: the momentum buffer, if there is one. Inlined: called, it takes half as long again with AVX2. */
INLINE void sgd_half(const struct amp_apply_scalars *k, vd g, bool has_m, struct half *x)
{
    vd d = g + vd_all(k->weight_decay) * x->p;
    if (has_m) {
        vd next = d;
        if (!k->first_step)
            next = vd_all(k->momentum) * x->m + vd_all(k->keep) * d;
        x->m = next;
        if (k->nesterov)
            d = d + vd_all(k->momentum) * next;
        else
            d = next;
    }
    x->p = x->p - vd_all(k->lr) * d;
}

static void apply_sgd(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    bool has_m = m != NULL;
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        vf c = vf_load(g + i) * vf_all(k->clip);
        vf p0 = vf_load(p + i);
        vf m0 = has_m ? vf_load(m + i) : c;
        struct half low = {.p = low_half(p0), .m = low_half(m0)};
        struct half high = {.p = high_half(p0), .m = high_half(m0)};
        sgd_half(k, low_half(c), has_m, &low);
        sgd_half(k, high_half(c), has_m, &high);
        if (has_m)
            vf_store(m + i, canonical(join_halves(low.m, high.m)));
        vf_store(p + i, canonical(join_halves(low.p, high.p)));
    }
    amp_kernels_ref.apply[AMP_OPT_SGD](k, n - i, g + i, p + i, has_m ? m + i : NULL, v);
}

static vd coupled(const struct amp_apply_scalars *k, vd g, vd p)
{
    if (k->weight_decay == 0)
        return g;
    return g + vd_all(k->weight_decay) * p;
}

static void adagrad_half(const struct amp_apply_scalars *k, vd g, bool has_v, struct half *x)
{
    vd d = coupled(k, g, x->p);
    x->m = x->m + d * d;
    x->p = x->p - vd_all(k->lr) * d / (vd_root(x->m) + vd_all(k->eps));
}

static void rmsprop_half(const struct amp_apply_scalars *k, vd g, bool has_v, struct half *x)
{
    vd d = coupled(k, g, x->p);
    x->m = vd_all(k->beta2) * x->m + vd_all(k->rest2) * (d * d);
    vd spread = x->m;
    if (has_v && k->centered) {
        x->v = vd_all(k->beta2) * x->v + vd_all(k->rest2) * d;
        spread = vd_at_least_zero(x->m - x->v * x->v);
    }
    vd step = d / (vd_root(spread) + vd_all(k->eps));
    if (has_v && !k->centered) {
        step = vd_all(k->momentum) * x->v + step;
        x->v = step;
    }
    x->p = x->p - vd_all(k->lr) * step;
}

static void lion_half(const struct amp_apply_scalars *k, vd g, bool has_v, struct half *x)
{
    vd mean = vd_all(k->beta1) * x->m + vd_all(k->rest1) * g;
    x->m = vd_all(k->beta2) * x->m + vd_all(k->rest2) * g;
    x->p = x->p - (vd_step_of_sign(mean, k->lr) + vd_all(k->decay) * x->p);
}

/* LAMB's update before the trust ratio; the moments become the new ones. */
static vd lamb_update(const struct amp_apply_scalars *k, vd g, struct half *x)
{
    x->m = vd_all(k->beta1) * x->m + vd_all(k->rest1) * g;
    x->v = vd_all(k->beta2) * x->v + vd_all(k->rest2) * (g * g);
    return vd_all(k->rate) * x->m / (vd_root(x->v) + vd_all(k->eps)) + vd_all(k->weight_decay) * x->p;
}

static void lamb_half(const struct amp_apply_scalars *k, vd g, bool has_v, struct half *x)
{
    vd update = lamb_update(k, g, x);
    x->p = x->p - vd_all(k->lr) * update;
}

/* The loop around a half. A v that is NULL or that the optimizer does not use is neither read nor written. */
#define APPLY_IN_DOUBLE(NAME, OPTIMIZER, USES_V)                                                                       \
    static void apply_##NAME(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m,          \
                             float *v)                                                                                 \
    {                                                                                                                  \
        bool has_v = (USES_V) && v != NULL;                                                                            \
        size_t i = 0;                                                                                                  \
        for (; i + WIDTH <= n; i += WIDTH) {                                                                           \
            vf c = vf_load(g + i) * vf_all(k->clip);                                                                   \
            vf p0 = vf_load(p + i), m0 = vf_load(m + i);                                                               \
            vf v0 = has_v ? vf_load(v + i) : m0;                                                                       \
            struct half low = {low_half(p0), low_half(m0), low_half(v0)};                                              \
            struct half high = {high_half(p0), high_half(m0), high_half(v0)};                                          \
            NAME##_half(k, low_half(c), has_v, &low);                                                                  \
            NAME##_half(k, high_half(c), has_v, &high);                                                                \
            if (has_v)                                                                                                 \
                vf_store(v + i, canonical(join_halves(low.v, high.v)));                                                \
            vf_store(m + i, canonical(join_halves(low.m, high.m)));                                                    \
            vf_store(p + i, canonical(join_halves(low.p, high.p)));                                                    \
        }                                                                                                              \
        amp_kernels_ref.apply[OPTIMIZER](k, n - i, g + i, p + i, m + i, has_v ? v + i : NULL);                         \
    }

APPLY_IN_DOUBLE(adagrad, AMP_OPT_ADAGRAD, false)
APPLY_IN_DOUBLE(rmsprop, AMP_OPT_RMSPROP, true)
APPLY_IN_DOUBLE(lion, AMP_OPT_LION, false)
APPLY_IN_DOUBLE(lamb, AMP_OPT_LAMB, true)

#endif
