/* A step of any scaler, in the one right order. */
#include "amp/loss_scaler.h"

#include "amp/given.h"

int amp_loss_scaler_step(const struct amp_loss_scaler *any, const struct amp_tensor *gradients, size_t n, bool *skipped,
                         struct amp_error *error, void *arg,
                         int (*step_cb)(void *arg, const struct amp_tensor *gradients, size_t n,
                                        struct amp_error *error))
{
    int rc = amp_both_given(any, "any", skipped, "skipped", error);
    if (rc == 0)
        rc = step_cb != NULL ? amp_both_given(any->ops, "any->ops", any->scaler, "any->scaler", error)
                             : amp_given(NULL, "step_cb", error);
    if (rc != 0)
        return rc;
    bool overflow;
    rc = any->ops->unscale(any->scaler, gradients, n, gradients, &overflow, error);
    if (rc == 0 && !overflow)
        rc = step_cb(arg, gradients, n, error);
    if (rc == 0)
        *skipped = any->ops->update(any->scaler, overflow);
    return rc;
}
