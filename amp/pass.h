/*
 * The two passes of a step over one segment: contiguous elements of one parameter in one block.
 *
 * The vote pass forms the gradient g (rank-ordered weighted sum, unscaled, tested, clipped by value) and its sum of
 * squares; the apply pass forms the same g, with the same bits, or reads what the vote has kept, and moves master,
 * moments and the next cast copy. Both work on tiles that stay in the first cache level, so that memory is touched
 * once; a variant may do a tile's vote, or all of the apply, in one kernel (amp/kernel_passes.h).
 *
 * No allocation, no state; any thread, on segments that do not overlap. The floating-point environment must be the
 * default one (amp_fp_env_check).
 */
#ifndef AMP_PASS_H
#define AMP_PASS_H

#include "amp/kernels.h"
#include "amp/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What g is made of: the same for vote and apply. */
struct amp_pass_in {
    size_t count;                   /* elements of the segment, without pad */
    const struct amp_input *inputs; /* by rising rank */
    unsigned inputs_count;          /* at least 1: a parameter absent from all has no pass */
    bool equal_weights;             /* every weight is 1 */
    float coefficient;              /* f, finite, > 0 */
    bool clip_value_set;
    float clip_value; /* >= 0 */
    bool squares;     /* the optimizer squares g: range test */
};

/*
 * From so many inputs on a caller that has the memory lets the vote keep g, and applies from that: to write it past the
 * caches costs next to nothing beside so many reads, and to read its 4 bytes less than to read all inputs again.
 */
#define AMP_PASS_KEEP_G 3

/* What a segment contributes to the vote. */
struct amp_pass_vote {
    double squares;       /* of g after clip by value; of no meaning if anything below was found */
    uint64_t sum_inf;     /* elements whose sum * f is Inf, */
    uint64_t sum_nan;     /* or NaN (so is each whose sum is one) */
    uint64_t sum_first;   /* index of the first of these in the segment; UINT64_MAX: none */
    uint64_t range_count; /* finite |g| >= 2^63 after clip by value, where squared */
    uint64_t range_first; /* UINT64_MAX: none */
    float largest;        /* largest finite |sum * f|, before clip by value */
};

/*
 * Forms g and judges it. g_out (count floats, for apply and the journal) may be NULL, or an input of f32; otherwise it
 * overlaps none. It may lie at any address; some variants are faster where it is a multiple of AMP_VOTE_ALIGNMENT.
 */
void amp_pass_vote(const struct amp_kernels *kernels, const struct amp_pass_in *in, float *g_out,
                   struct amp_pass_vote *vote);

/* What a segment's apply reports; added to, so that one struct may serve all segments of a parameter. */
struct amp_apply_stats {
    uint64_t cast_overflows; /* masters that are finite but beyond the cast's range */
    uint64_t not_finite;     /* masters that became Inf or NaN */
    float largest;           /* largest finite |master| */
};

/*
 * Forms g again and applies it: *master, *m and *v (NULL where the optimizer has none) change in place, and cast_out
 * (count elements of apply->cast) gets the next copy. Only after a verdict APPLIED: g is finite.
 */
void amp_pass_apply(const struct amp_kernels *kernels, const struct amp_pass_in *in, const struct amp_apply *apply,
                    float *master, float *m, float *v, void *cast_out, struct amp_apply_stats *stats);

/* LAMB: the sums of squares of a segment's masters and of their updates before the trust ratio. */
struct amp_lamb_squares {
    double masters;
    double updates;
};

/*
 * LAMB's first pass over a segment; changes nothing. The caller adds the squares of a parameter's segments (in the tree
 * of amp/reduce.h), sets apply->trust = amp_lamb_trust(masters, updates) for that parameter, and then applies. Only
 * after a verdict APPLIED.
 */
void amp_pass_lamb(const struct amp_kernels *kernels, const struct amp_pass_in *in, const struct amp_apply *apply,
                   const float *master, const float *m, const float *v, struct amp_lamb_squares *squares);

/* The same from g as the vote pass wrote it. */
void amp_pass_lamb_g(const struct amp_kernels *kernels, size_t count, const float *g, const struct amp_apply *apply,
                     const float *master, const float *m, const float *v, struct amp_lamb_squares *squares);

/* The same apply from g as the vote pass wrote it. */
void amp_pass_apply_g(const struct amp_kernels *kernels, size_t count, const float *g, const struct amp_apply *apply,
                      float *master, float *m, float *v, void *cast_out, struct amp_apply_stats *stats);

/* The cast copy of masters alone (after Load or restore). Adds to *stats. */
void amp_pass_cast(const struct amp_kernels *kernels, size_t count, const float *master, enum amp_dtype cast,
                   bool saturate, void *cast_out, struct amp_apply_stats *stats);

/* The kernel's form of the scalars. */
void amp_apply_prepare(const struct amp_apply *apply, struct amp_apply_scalars *scalars);

#ifdef __cplusplus
}
#endif

#endif
