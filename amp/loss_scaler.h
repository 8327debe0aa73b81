/*
 * What every loss scaler of the library can do, for code that does not want to know which one it has.
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
    float (*scale)(const void *scaler);  /* the factor in use now */
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

#ifdef __cplusplus
}
#endif

#endif
