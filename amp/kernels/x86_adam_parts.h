/*
 * What AVX2's and AVX-512's Adam share of types, scalars and the gradient. Included by kernels/avx2_adam.c and
 * kernels/avx512_adam.c behind kernels/<isa>_parts.h. The formulas are theirs: in_double written once, with the
 * operators of C, gave AVX-512's loop another order of instructions, which took 1.02 of the time on Zen 4.
 */
#ifndef AMP_KERNELS_X86_ADAM_PARTS_H
#define AMP_KERNELS_X86_ADAM_PARTS_H

#include "amp/kernels.h"
#include "amp/kernels/unaligned.h"
#include "amp/pass.h"

/*
 * Elements of a span. Twice as many, with their old moments and the prefetched lines, leave a first
 * cache level of 32 KiB; half as many wait for each other too often: on Zen 4 both take 1.1 times as long.
 */
#define SPAN 512

/*
 * Elements ahead of the loop that are prefetched, except on Zen 5. On Intel's cores, which wait longest for the memory,
 * each late element prefetches the lines of LATE_PREFETCH elements, so that the memory does not rest meanwhile: with
 * AVX-512 0.90 to 0.96 of the time on models 85 and 207, with AVX2 0.93 to 0.99 on model 85; with 8, 0.93 to 1.02.
 */
#define NEAR_AHEAD    (SPAN / 2)
#define FAR_AHEAD     640 /* on Zen 5, */
#define MORE          96  /* and behind each span so many more, since what follows it prefetches nothing */
#define LATE_PREFETCH 4

/* Inputs of one dtype that are summed in a register; more of them go by tiles. */
#define INPUTS_MAX 16

/* The moments of a span before the step, and which of its elements are late: a bit each. */
struct span {
    _Alignas(64) float m[SPAN];
    float v[SPAN];
    uint64_t late[SPAN / 64];
};

/* Scalars in registers, or a load away: of single precision, and of double. */
struct singles {
    vf factor, high, low, clip;
    vf beta1, rest1, beta2, rest2, eps, rate, decay, guard_fresh, guard_keep, guard_min;
};

struct doubles {
    vd beta1, rest1, beta2, rest2, eps, rate, decay, weight_decay;
};

/* Where the gradient comes from: sixteen bits of each worker, to be summed, or one f32. */
struct source {
    const void *data[INPUTS_MAX];
    unsigned count;
    struct singles c;
    struct doubles d;
};

/* What a loop is made for. */
struct kind {
    enum amp_dtype dtype;
    bool many;    /* inputs, of 16 bits */
    bool scaled;  /* by factor; sixteen bits always are */
    bool clamped; /* by value, if only to infinity, and then times clip */
    bool coupled; /* weight decay as part of the gradient */
    enum core core;
};

struct target {
    float *p, *m, *v;
    void *copy; /* NULL: no cast */
    enum amp_dtype cast;
    bool stream; /* copy begins with a whole vector */
};

/* limit: Inf where there is none. */
static void set_scalars(struct source *s, const struct amp_apply_scalars *k, float factor, float limit)
{
    s->c = (struct singles){.factor = vf_all(factor),
                            .high = vf_all(limit),
                            .low = vf_all(-limit),
                            .clip = vf_all(k->clip),
                            .beta1 = vf_all(k->beta1_f),
                            .rest1 = vf_all(k->rest1_f),
                            .beta2 = vf_all(k->beta2_f),
                            .rest2 = vf_all(k->rest2_f),
                            .eps = vf_all(k->eps_f),
                            .rate = vf_all(k->rate_f),
                            .decay = vf_all(k->decay_f),
                            .guard_fresh = vf_all(k->guard_fresh),
                            .guard_keep = vf_all(k->guard_keep),
                            .guard_min = vf_all(AMP_ADAMW_GUARD_MIN)};
    s->d = (struct doubles){.beta1 = vd_all(k->beta1),
                            .rest1 = vd_all(k->rest1),
                            .beta2 = vd_all(k->beta2),
                            .rest2 = vd_all(k->rest2),
                            .eps = vd_all(k->eps),
                            .rate = vd_all(k->rate),
                            .decay = vd_all(k->decay),
                            .weight_decay = vd_all(k->weight_decay)};
}

/* Elements of the inputs' sum from index i, a vector of them. */
INLINE vf sum_inputs(const struct source *s, struct kind kind, size_t i)
{
    if (kind.dtype == AMP_F32)
        return vf_load((const float *)s->data[0] + i);
    vf x = widen((const uint16_t *)s->data[0] + i, kind.dtype);
    for (unsigned j = 1; kind.many && j < s->count; j++)
        x += widen((const uint16_t *)s->data[j] + i, kind.dtype);
    return x;
}

/* Elements of g times clip, of the inputs' sums x. */
INLINE vf finish_g(const struct singles *c, struct kind kind, vf x)
{
    if (kind.scaled)
        x = x * c->factor;
    if (kind.clamped)
        x = clamp(x, c->low, c->high) * c->clip;
    return x;
}

/* Prefetches, of all arrays, what is due in the turn of a span's late elements from the i-th on. */
INLINE void prefetch_late(const struct source *s, struct kind kind, const struct target *t, size_t start, size_t i,
                          size_t picked)
{
    const size_t line = LINE / sizeof(float), first = start + SPAN + NEAR_AHEAD + i * LATE_PREFETCH;
    for (size_t j = first; kind.core == INTEL && j < first + picked * LATE_PREFETCH; j += line) {
        _mm_prefetch((const char *)(t->p + j), _MM_HINT_T0);
        _mm_prefetch((const char *)(t->m + j), _MM_HINT_T0);
        _mm_prefetch((const char *)(t->v + j), _MM_HINT_T0);
        if (kind.dtype == AMP_F32)
            _mm_prefetch((const char *)((const float *)s->data[0] + j), _MM_HINT_T0);
        else if (j % (2 * line) == 0)
            for (unsigned w = 0; w < (kind.many ? s->count : 1); w++)
                _mm_prefetch((const char *)((const uint16_t *)s->data[w] + j), _MM_HINT_T0);
    }
}

/* NaN of n elements, a multiple of WIDTH, made canonical. */
static void settle(float *x, size_t n)
{
    for (size_t i = 0; i < n; i += WIDTH)
        vf_store(x + i, canonical(vf_load(x + i)));
}

#endif
