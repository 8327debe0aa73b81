/*
 * A loss scaler with a constant scale.
 *
 * Use: scale the loss, run backward, unscale the gradients, and leave the step out if there was an overflow. The scale
 * never changes; update counts steps alone, by the `static` policy of amp/scaler.h.
 *
 * A scaler is caller memory, initialised once, with nothing to close. One thread at a time. Errors: those of
 * amp/grad.h; after a failure nothing has been written. A disabled scaler checks nothing and changes nothing: what it
 * scales or unscales is copied as it is, and it never reports an overflow.
 *
 * Source: the specification of the static loss scaler, with the differences that docs/specs.md lists.
 */
#ifndef AMP_STATIC_SCALER_H
#define AMP_STATIC_SCALER_H

#include "amp/loss_scaler.h"
#include "amp/scale_presets.h"
#include "amp/scaler.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The scale of the specification's default constructor. */
#define AMP_STATIC_SCALER_DEFAULT AMP_SCALE_MODERATE

struct amp_static_scaler {
    const struct amp_kernels *kernels; /* borrowed */
    struct amp_scaler_config config;
    struct amp_scaler_state state; /* counts of update, and the scale */
    float inverse;                 /* fp32(1 / scale), the reciprocal in double */
    bool enabled;
};

/*
 * Makes a scaler. `scale` is finite and at least 2^-126: 0, negative numbers, Inf, NaN and denormals are AMP_EINVAL,
 * also if it is not enabled, and so is `kernels` NULL; the scaler is then as it was.
 */
int amp_static_scaler_init(struct amp_static_scaler *scaler, const struct amp_kernels *kernels, float scale,
                           bool enabled, struct amp_error *error);

/* The constant scale. */
float amp_static_scaler_scale(const struct amp_static_scaler *scaler);

/* Whether it scales at all. */
bool amp_static_scaler_enabled(const struct amp_static_scaler *scaler);

/* *out = *loss * scale (amp_loss_scale). out may be the loss itself. */
int amp_static_scaler_scale_loss(const struct amp_static_scaler *scaler, const struct amp_tensor *loss,
                                 const struct amp_tensor *out, struct amp_error *error);

/*
 * out[i] = gradients[i] / scale (amp_grads_unscale); out may be the gradients themselves. *overflow, unless NULL:
 * whether an input or a result is Inf or NaN.
 */
int amp_static_scaler_unscale(const struct amp_static_scaler *scaler, const struct amp_tensor *gradients, size_t n,
                              const struct amp_tensor *out, bool *overflow, struct amp_error *error);

/* As amp_static_scaler_unscale, for one gradient. */
int amp_static_scaler_unscale_one(const struct amp_static_scaler *scaler, const struct amp_tensor *gradient,
                                  const struct amp_tensor *out, bool *overflow, struct amp_error *error);

/* *overflow: whether any gradient has an Inf or NaN, with early exit (amp_grads_overflow); false if disabled. */
int amp_static_scaler_check_overflow(const struct amp_static_scaler *scaler, const struct amp_tensor *gradients,
                                     size_t n, bool *overflow, struct amp_error *error);

/* As amp_static_scaler_check_overflow, for one gradient. */
int amp_static_scaler_check_overflow_one(const struct amp_static_scaler *scaler, const struct amp_tensor *gradient,
                                         bool *overflow, struct amp_error *error);

/* Counts a step; the scale stays. Returns whether the step has to be skipped: `overflow`, and false if disabled. */
bool amp_static_scaler_update(struct amp_static_scaler *scaler, bool overflow);

/*
 * The scale and its reciprocal as scalar tensors (one f32), for callers that multiply themselves. They are borrowed
 * from the scaler, valid as long as it is, and must not be written. Both are 1 if the scaler is disabled.
 */
struct amp_tensor amp_static_scaler_scale_tensor(struct amp_static_scaler *scaler);
struct amp_tensor amp_static_scaler_inverse_tensor(struct amp_static_scaler *scaler);

/* The scaler as an amp_loss_scaler, which borrows it. */
struct amp_loss_scaler amp_static_scaler_interface(struct amp_static_scaler *scaler);

#ifdef __cplusplus
}
#endif

#endif
