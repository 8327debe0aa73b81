/*
 * Kernels that do a whole pass of a step (amp/pass.h) in one loop. The result is bit for bit that of the separate
 * kernels one after the other. A variant need not have them. The common rules are those of amp/kernels.h.
 */
#ifndef AMP_KERNEL_PASSES_H
#define AMP_KERNEL_PASSES_H

#include "amp/dtype.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct amp_apply_scalars;
struct amp_input;
struct amp_pass_in;

/* The most inputs that amp_vote_pass_fn takes. */
#define AMP_VOTE_INPUTS 8

/* The number of elements given to amp_vote_pass_fn or amp_vote_take_fn is a multiple of this. */
#define AMP_VOTE_MULTIPLE 64

/* Bytes of a cache line; the address that amp_vote_pass_fn (`kept`) or amp_vote_take_fn (`to`) writes to begins one. */
#define AMP_VOTE_ALIGNMENT 64

/*
 * The vote pass over the elements [start, start + n) of 1 to AMP_VOTE_INPUTS inputs of one dtype with equal weights. g
 * is what amp_form_fn makes of them, clamped to [-limit, limit] (limit Inf: not clamped); a NaN may have any payload.
 * The squares of g are added to the AMP_SQUARE_LANES lanes as amp_squares_fn does it. g is written past the caches to
 * `kept`, without the kernel's store fence; NULL: it is not kept, and always so for inputs of f32. Returns the bits of
 * the largest magnitude of g before the clamp; if that is not finite the lanes have no meaning.
 */
typedef uint32_t amp_vote_pass_fn(const struct amp_input *inputs, unsigned inputs_count, float factor, float limit,
                                  size_t start, size_t n, double *lanes, float *kept);

/*
 * The vote pass over n elements of one f16 or bf16 input of weight 1 that another process may be writing: copies them
 * to `to`, past the caches and without the kernel's store fence, and adds the squares of g as amp_vote_pass_fn does it.
 * Each element is read once, so that the squares are those of the copy. n is a multiple of AMP_VOTE_MULTIPLE, and `to`
 * of AMP_VOTE_ALIGNMENT. Returns the bits of the largest magnitude of the input, as binary32; the lanes have no meaning
 * if that, or its product with the factor, is not finite.
 */
typedef uint32_t amp_vote_take_fn(void *to, const void *from, enum amp_dtype dtype, float factor, float limit, size_t n,
                                  double *lanes);

/*
 * All of amp_pass_apply (amp/pass.h): makes g from the inputs, applies the step, and writes the next cast copy past the
 * caches, without the kernel's store fence and without saturation. Returns the bits of the largest magnitude of the new
 * masters.
 */
typedef uint32_t amp_apply_pass_fn(const struct amp_apply_scalars *scalars, const struct amp_pass_in *in,
                                   enum amp_dtype cast, float *p, float *m, float *v, void *cast_out);

#ifdef __cplusplus
}
#endif

#endif
