/*
 * The default floating-point environment for the length of a call, in a thread whose program flushes denormals or
 * rounds otherwise. Not installed.
 *
 * The compiler knows nothing of the environment and may move arithmetic over these calls: what computes between them is
 * in functions marked AMP_IN_FP_ENV.
 */
#ifndef AMP_FP_ENV_H
#define AMP_FP_ENV_H

#include "base/err.h"

#include <fenv.h>
#include <stdbool.h>

#define AMP_IN_FP_ENV __attribute__((noinline))

struct amp_fp_env {
    bool changed;
    fenv_t saved; /* the program's, if changed */
};

/*
 * Rounds to nearest and keeps denormals until amp_fp_env_restore, which each success needs. 0; AMP_ESTATE with a text
 * if this machine cannot, and the environment is as it was.
 */
int amp_fp_env_set(struct amp_fp_env *env, struct amp_error *error);
void amp_fp_env_restore(const struct amp_fp_env *env);

#endif
