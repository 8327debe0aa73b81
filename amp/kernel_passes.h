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

/* Inputs that the vote takes at once, at most, and what its n is a multiple of. */
#define AMP_VOTE_INPUTS   8
#define AMP_VOTE_MULTIPLE 64

/*
 * The vote in one go, of 1 to AMP_VOTE_INPUTS inputs, all f16 or all bf16, of equal weights: g as form has it (a NaN of
 * any payload), clamped to [-limit, limit] (Inf: not), its squares to the AMP_SQUARE_LANES lanes, and g past the caches
 * to `kept`, which begins with a line and is not yet drained (NULL: nowhere). Returns the largest magnitude before it
 * was clamped as bits; where that is not finite the squares have no meaning.
 */
typedef uint32_t amp_vote_fn(const struct amp_input *inputs, unsigned inputs_count, float factor, float limit,
                             size_t start, size_t n, double *lanes, float *kept);

/*
 * All of amp_pass_apply (amp/pass.h) in one go: g from the inputs, the step, the cast past the caches, which is not yet
 * drained; no saturation. Returns the largest new master as bits.
 */
typedef uint32_t amp_step_fn(const struct amp_apply_scalars *scalars, const struct amp_pass_in *in, enum amp_dtype cast,
                             float *p, float *m, float *v, void *cast_out);

#ifdef __cplusplus
}
#endif

#endif
