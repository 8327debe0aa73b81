/*
 * Kernels that do a whole pass of a step (amp/pass.h), in one go: what the other kernels do one after the other, with
 * their bits. A variant need not have them. The common rules are those of amp/kernels.h.
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

/* amp_vote_pass_fn takes a multiple of so many elements. */
#define AMP_VOTE_MULTIPLE 64

/* The address of amp_vote_pass_fn's `kept` is a multiple of so many bytes, a line of the caches. */
#define AMP_VOTE_ALIGNMENT 64

/*
 * The vote pass in one go, of 1 to AMP_VOTE_INPUTS inputs of one dtype, of equal weights. g is what form makes of them,
 * clamped to [-limit, limit] (limit Inf: not clamped); a NaN has any payload. Its squares are added to the
 * AMP_SQUARE_LANES lanes as amp_squares_fn adds them, and g goes past the caches to `kept`, not yet drained (NULL:
 * nowhere; of inputs of f32 NULL). Returns the largest magnitude of g before the clamp as bits; where it is not finite
 * the lanes have no meaning.
 */
typedef uint32_t amp_vote_pass_fn(const struct amp_input *inputs, unsigned inputs_count, float factor, float limit,
                                  size_t start, size_t n, double *lanes, float *kept);

/*
 * All of amp_pass_apply (amp/pass.h) in one go: g from the inputs, the step, the cast past the caches, which is not yet
 * drained; no saturation. Returns the largest new master as bits.
 */
typedef uint32_t amp_apply_pass_fn(const struct amp_apply_scalars *scalars, const struct amp_pass_in *in,
                                   enum amp_dtype cast, float *p, float *m, float *v, void *cast_out);

#ifdef __cplusplus
}
#endif

#endif
