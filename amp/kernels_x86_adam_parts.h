/*
 * What AVX2's and AVX-512's Adam share of types and scalars, and the list of what their loops leave for later.
 * Included by kernels_avx2_adam.c and kernels_avx512_adam.c, which have defined the vector, and all_ps and all_pd, a
 * vector of one scalar.
 */
#ifndef AMP_KERNELS_X86_ADAM_PARTS_H
#define AMP_KERNELS_X86_ADAM_PARTS_H

#include "amp/kernels.h"
#include "amp/pass.h"
#include "base/wraps.h"

#include <immintrin.h>
#include <math.h>

#define INLINE static inline __attribute__((always_inline))

/*
 * Elements of a span. Twice as many, with their old moments and the lines that have been asked for, leave a first cache
 * level of 32 KiB; half as many wait for each other too often: on Zen 4 both take 1.1 times as long.
 */
#define SPAN 512

/* Of more late elements than these in a span the vectors are cheaper than the picking. */
#define MANY_LATE (SPAN / 4)

/* Late elements that are listed in a turn: of 64 elements of a training few have more. */
#define LISTED 4

/* Late elements that are computed in a turn, at most. */
#define PICKED_MAX 8

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
    vector factor, high, low, clip;
    vector beta1, rest1, beta2, rest2, eps, rate, decay, guard_rate, guard_keep, guard_min;
};

struct doubles {
    vector_pd beta1, rest1, beta2, rest2, eps, rate, decay, weight_decay;
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
};

struct target {
    float *p, *m, *v;
    void *copy; /* NULL: no cast */
    enum amp_dtype cast;
    bool stream; /* copy begins with a whole vector */
};

/* An element at any address. */
typedef float any_f32 __attribute__((aligned(1)));
typedef uint16_t any_u16 __attribute__((aligned(1)));

/* limit: Inf where there is none. */
static void set_scalars(struct source *s, const struct amp_apply_scalars *k, float factor, float limit)
{
    s->c = (struct singles){.factor = all_ps(factor),
                            .high = all_ps(limit),
                            .low = all_ps(-limit),
                            .clip = all_ps(k->clip),
                            .beta1 = all_ps(k->beta1_f),
                            .rest1 = all_ps(k->rest1_f),
                            .beta2 = all_ps(k->beta2_f),
                            .rest2 = all_ps(k->rest2_f),
                            .eps = all_ps(k->eps_f),
                            .rate = all_ps(k->rate_f),
                            .decay = all_ps(k->decay_f),
                            .guard_rate = all_ps(k->guard_rate),
                            .guard_keep = all_ps(k->guard_keep),
                            .guard_min = all_ps(AMP_ADAMW_GUARD_MIN)};
    s->d = (struct doubles){.beta1 = all_pd(k->beta1),
                            .rest1 = all_pd(k->rest1),
                            .beta2 = all_pd(k->beta2),
                            .rest2 = all_pd(k->rest2),
                            .eps = all_pd(k->eps),
                            .rate = all_pd(k->rate),
                            .decay = all_pd(k->decay),
                            .weight_decay = all_pd(k->weight_decay)};
}

/* The indices of a span's late elements, and at most LISTED more behind them. Returns how many. */
AMP_WRAPS static size_t list_late(const struct span *old, size_t n, uint16_t *at)
{
    size_t count = 0;
    for (size_t w = 0; w < (n + 63) / 64; w++) {
        uint64_t bits = old->late[w];
        size_t end = count + (size_t)__builtin_popcountll(bits);
        /* One turn is nearly always enough and never too much: what is listed beyond the end is overwritten. */
        do {
            _Pragma("GCC unroll 4") for (size_t j = 0; j < LISTED; j++)
            {
                at[count + j] = (uint16_t)(w * 64 + _tzcnt_u64(bits)); /* of no bits it is 64 */
                bits &= bits - 1;                                      /* none stay none */
            }
            count += LISTED;
        } while (count < end);
        count = end;
    }
    return count;
}

#endif
