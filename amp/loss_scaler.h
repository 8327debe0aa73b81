/*
 * The interface that all loss scalers of the library have, for code that works with any of them.
 *
 * A scaler is caller memory of its own type; amp_static_scaler_interface and amp_dynamic_scaler_interface make this
 * view of one, which borrows it. The members are those of the functions of the same names, with their errors and thread
 * rules: a scaler is used by one thread at a time. Source: the specification of the static loss scaler (ILossScaler).
 */
#ifndef AMP_LOSS_SCALER_H
#define AMP_LOSS_SCALER_H

#include "amp/tensor.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct amp_loss_scaler_ops {
    float (*scale)(const void *scaler);  /* the factor, also of a disabled scaler, which does not use it */
    bool (*enabled)(const void *scaler); /* a disabled scaler passes everything through */
    int (*scale_loss)(const void *scaler, const struct amp_tensor *loss, const struct amp_tensor *out,
                      struct amp_error *error);
    int (*unscale)(const void *scaler, const struct amp_tensor *gradients, size_t n, const struct amp_tensor *out,
                   bool *overflow, struct amp_error *error);
    int (*check_overflow)(const void *scaler, const struct amp_tensor *gradients, size_t n, bool *overflow,
                          struct amp_error *error);
    bool (*update)(void *scaler, bool overflow); /* whether the step has to be skipped */
};

struct amp_loss_scaler {
    const struct amp_loss_scaler_ops *ops; /* constant, for ever */
    void *scaler;                          /* borrowed */
};

/*
 * What follows backward, in the one right order: unscales the n gradients in place by the scale that the loss had,
 * looks for Inf and NaN before and after the division, calls step_cb (the optimizer, with clipping before it if wanted)
 * on the unscaled gradients unless one of them has an Inf or NaN, and only then moves the scale. *skipped: whether the
 * step was left out. A disabled scaler has step_cb called on the gradients as they are.
 *
 * One call for each backward, with all gradients: it moves the scale. With several optimizers call `unscale` for the
 * gradients of each, then `update` once, with the OR of the overflows. Clip inside step_cb, and do not unscale before:
 * torch's unscale_ is remembered by its step, here the gradients would be divided twice. Gradients of f16 are unscaled
 * in f16, where small ones are lost, which is what the scale is for (torch refuses them): copy them into f32 before, or
 * use amp_grads_measure. Missing gradients count as finite: without any gradient, do not call it.
 *
 * The gradients stay the caller's; the next step needs new ones, also after a failure, for these may be unscaled. 0;
 * AMP_EINVAL for a missing argument (`arg` may be NULL) and the errors of amp_grads_unscale: nothing has been written;
 * or what step_cb returned if that is not 0. The scale has not moved then, and *skipped is as it was. step_cb runs on
 * this thread and must not call the scaler. Source: torch's unscale_, step and update.
 */
int amp_loss_scaler_step(const struct amp_loss_scaler *any, const struct amp_tensor *gradients, size_t n, bool *skipped,
                         struct amp_error *error, void *arg,
                         int (*step_cb)(void *arg, const struct amp_tensor *gradients, size_t n,
                                        struct amp_error *error));

#ifdef __cplusplus
}
#endif

#endif
