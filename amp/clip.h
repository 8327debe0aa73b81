/*
 * Gradient clipping: by value, and by the p-norm of one gradient or of a whole dictionary.
 *
 * The rules of amp/grad.h hold: memory is the caller's and nothing is allocated; missing gradients are passed over; 0,
 * or AMP_EINVAL with a text; after a failure nothing has been written; any thread, whatever its floating-point mode,
 * with exceptions masked (the default). p is a number above 0, or INFINITY for the largest magnitude; 0, negative ones
 * and NaN are AMP_EINVAL. Below 1 the formula is no norm in the strict sense, and may be beyond a double: the norm is
 * Inf then. A result that its own, narrower dtype cannot hold becomes Inf there without an error.
 *
 * Clip after unscaling and after the overflow test: clipping by value would turn an Inf into a finite number, and a
 * norm that is not finite is refused.
 *
 * Source: the specification of gradient utilities (GradientClipper), with the differences that docs/specs.md lists.
 */
#ifndef AMP_CLIP_H
#define AMP_CLIP_H

#include "amp/tensor.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The value of p for the usual (Euclidean) norm. */
#define AMP_CLIP_L2 2.0

/*
 * *out = *gradient with every element clamped to [-limit, limit], then rounded to out's dtype: so in 16 bits the bound
 * is the rounded limit. Inf becomes the limit of its sign, NaN stays NaN, -0 stays -0. limit >= 0, which may be
 * INFINITY (no bound); AMP_EINVAL for a negative one or NaN. out may be the gradient itself.
 */
int amp_clip_by_value(const struct amp_kernels *kernels, const struct amp_tensor *gradient, float limit,
                      const struct amp_tensor *out, struct amp_error *error);

/*
 * *norm = the p-norm of all elements of the n gradients together, in double, by the lanes and trees of docs/numerics.md
 * over blocks counted from each tensor's start: the same bits for every kernel table. 0 of no elements; Inf if an
 * element is Inf and none is NaN; NaN if one is. Source: ComputeNorm, (sum of |x|^p)^(1/p) for every p > 0.
 */
int amp_grads_norm(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n, double p,
                   double *norm, struct amp_error *error);

/*
 * out[i] = gradients[i] * fp32(min(1, max_norm / (norm + 1e-6))), norm the p-norm of them all: never increases a
 * gradient. With the factor 1 the bits are copied (written not at all in place). *norm, unless NULL, is the norm
 * before. max_norm >= 0: 0 makes all zeros, INFINITY only measures; negative or NaN is AMP_EINVAL. AMP_ERANGE if an
 * element is Inf or NaN: a gradient overflowed, and a product would only spread it. *norm is set then too. A norm of
 * finite elements that is Inf (p < 1) makes zeros, as the formula says.
 */
int amp_grads_clip_by_norm(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n,
                           double max_norm, double p, const struct amp_tensor *out, double *norm,
                           struct amp_error *error);

/* As amp_grads_clip_by_norm, for one gradient and its own norm. */
int amp_grad_clip_by_norm(const struct amp_kernels *kernels, const struct amp_tensor *gradient, double max_norm,
                          double p, const struct amp_tensor *out, double *norm, struct amp_error *error);

/* What an optimizer has to know about the gradients of a step, which stay as backward left them. */
struct amp_grads_measured {
    bool overflow; /* an element is Inf or NaN, as it is or unscaled: skip the step */
    double norm;   /* the 2-norm of the unscaled gradients, before clipping; Inf or NaN with an overflow */
    float inverse; /* fp32(1 / scale): an unscaled gradient is fp32(gradient * inverse) */
    float clip;    /* fp32(min(1, max_norm / (norm + 1e-6))), the second factor; 1 with an overflow */
};

/*
 * Unscale, overflow check, norm and clip factor in one pass that reads the gradients once and writes nothing: for a
 * training loop whose optimizer multiplies by the two factors itself, as amp_pass_apply does (coefficient = inverse and
 * clip = clip). The same bits as amp_grads_unscale into fp32, then amp_grads_overflow, amp_grads_norm with p = 2 and
 * the factor of amp_grads_clip_by_norm. With max_norm INFINITY clip is 1. AMP_EINVAL for a scale that
 * amp_grads_unscale refuses, a max_norm that is negative or NaN, and a missing argument.
 */
int amp_grads_measure(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n, float scale,
                      double max_norm, struct amp_grads_measured *measured, struct amp_error *error);

#ifdef __cplusplus
}
#endif

#endif
