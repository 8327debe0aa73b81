/*
 * Sets the default floating-point environment for the duration of a call, in a thread whose program flushes denormals
 * or has another rounding mode. Not installed.
 *
 * The compiler does not know about the environment and may move arithmetic across these calls. So the arithmetic
 * between set and restore is in functions marked AMP_IN_FP_ENV, which are not inlined.
 */
#ifndef AMP_FP_ENV_H
#define AMP_FP_ENV_H

#include "base/err.h"

#include <fenv.h>
#include <stdbool.h>

#define AMP_IN_FP_ENV __attribute__((noinline))

struct amp_fp_env {
    bool changed; /* amp_fp_env_set had to change the environment */
    fenv_t saved; /* the thread's own environment, if changed */
};

/*
 * Makes this thread round to nearest and keep denormals until amp_fp_env_restore, which must follow each success. 0;
 * AMP_ESTATE with a text if this machine cannot do that; the environment then does not change.
 */
int amp_fp_env_set(struct amp_fp_env *env, struct amp_error *error);
/* Restores the environment that the thread had before amp_fp_env_set. */
void amp_fp_env_restore(const struct amp_fp_env *env);

#endif
