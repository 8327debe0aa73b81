/*
 * The two passes of a step over one segment: contiguous elements of one parameter in one block.
 *
 * The vote pass forms the gradient g (weighted sum in rank order, unscaled, tested, clipped by value) and its sum of
 * squares. The apply pass forms g again with the same bits, or reads the g that the vote pass has kept, and updates
 * masters, moments and the next cast copy. Both work on tiles that stay in the first-level cache, so that memory is
 * read and written once. A variant of the kernels may do the vote of a tile, or the whole apply, in one loop
 * (amp/kernel_passes.h).
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

/* The inputs of a segment, of which g is made; the same for vote and apply. */
struct amp_pass_in {
    size_t count;                   /* elements of the segment, without pad */
    const struct amp_input *inputs; /* in ascending order of ranks */
    unsigned inputs_count;          /* at least 1: a parameter that no worker sent has no passes */
    bool equal_weights;             /* every weight is 1 */
    float coefficient;              /* f, finite, > 0 */
    bool clip_value_set;
    float clip_value; /* >= 0 */
    bool squares;     /* the optimizer squares g: range test */
};

/*
 * From this many inputs on it is faster to let the vote pass keep g (4 bytes an element) and to apply from it, if the
 * caller has the memory: writing g past the caches costs little beside reading the inputs, and reading it costs less
 * than reading all inputs again.
 */
#define AMP_PASS_KEEP_G 3

/* The result of the vote pass over a segment. Indices count in the segment. */
struct amp_pass_vote {
    double squares;       /* sum of g * g after clip by value; no meaning if one of the counts below is not 0 */
    uint64_t sum_inf;     /* elements for which sum * f is Inf */
    uint64_t sum_nan;     /* elements for which sum * f is NaN */
    uint64_t sum_first;   /* index of the first element counted in these two; UINT64_MAX: none */
    uint64_t range_count; /* elements with a finite |g| >= 2^63 after clip by value, if in->squares is set */
    uint64_t range_first; /* index of the first of these; UINT64_MAX: none */
    float largest;        /* largest finite |sum * f|, before clip by value */
};

/*
 * The vote pass: forms g, tests it, and sums its squares. g_out gets g (count floats), for the apply and the journal;
 * it may be NULL, or the data of an f32 input, and else overlaps no input. It may have any address; some variants are
 * faster if that is a multiple of AMP_VOTE_ALIGNMENT.
 */
void amp_pass_vote(const struct amp_kernels *kernels, const struct amp_pass_in *in, float *g_out,
                   struct amp_pass_vote *vote);

/*
 * The vote pass over the only contribution, which is in memory that another process may write meanwhile: copies the
 * in->count elements of the one input to `to`, reading each of them once, and tests and votes on the copy. `to` may
 * have any address outside the input; some variants are faster if it is a multiple of AMP_VOTE_ALIGNMENT. *check, which
 * the caller has initialised, gets what kernels->check finds in the copy, whose first element counts as index `base`.
 */
void amp_pass_take(const struct amp_kernels *kernels, const struct amp_pass_in *in, void *to, uint64_t base,
                   struct amp_check *check, struct amp_pass_vote *vote);

/* The result of an apply. Each call adds to it, so that one struct may be used for all segments of a parameter. */
struct amp_apply_stats {
    uint64_t cast_overflows; /* masters that are finite but beyond the cast's range */
    uint64_t not_finite;     /* masters that became Inf or NaN */
    float largest;           /* largest finite |master| */
};

/*
 * The apply pass: forms g again and applies it. master, m and v (NULL if the optimizer has none) are changed in place,
 * and cast_out (count elements of apply->cast, which the caller has set; neither may be left out) gets the next cast
 * copy. Called only after a verdict APPLIED, so that g is finite.
 */
void amp_pass_apply(const struct amp_kernels *kernels, const struct amp_pass_in *in, const struct amp_apply *apply,
                    float *master, float *m, float *v, void *cast_out, struct amp_apply_stats *stats);

/* LAMB: the sums of squares of a segment's masters and of their updates before the trust ratio. */
struct amp_lamb_squares {
    double masters;
    double updates;
};

/*
 * LAMB's first pass over a segment; writes only *squares. The caller then adds up the squares of the parameter's
 * segments (by the tree of amp/reduce.h), sets apply->trust = amp_lamb_trust(masters, updates) for that parameter, and
 * makes the apply pass. Called only after a verdict APPLIED.
 */
void amp_pass_lamb(const struct amp_kernels *kernels, const struct amp_pass_in *in, const struct amp_apply *apply,
                   const float *master, const float *m, const float *v, struct amp_lamb_squares *squares);

/* As amp_pass_lamb, with the g that the vote pass wrote to g_out. */
void amp_pass_lamb_g(const struct amp_kernels *kernels, size_t count, const float *g, const struct amp_apply *apply,
                     const float *master, const float *m, const float *v, struct amp_lamb_squares *squares);

/* As amp_pass_apply, with the g that the vote pass wrote to g_out. */
void amp_pass_apply_g(const struct amp_kernels *kernels, size_t count, const float *g, const struct amp_apply *apply,
                      float *master, float *m, float *v, void *cast_out, struct amp_apply_stats *stats);

/* Makes only the cast copy of masters, after they were loaded or restored. Adds to *stats. */
void amp_pass_cast(const struct amp_kernels *kernels, size_t count, const float *master, enum amp_dtype cast,
                   bool saturate, void *cast_out, struct amp_apply_stats *stats);

/* Converts the scalars of a step into the form that the kernels take. */
void amp_apply_prepare(const struct amp_apply *apply, struct amp_apply_scalars *scalars);

#ifdef __cplusplus
}
#endif

#endif
