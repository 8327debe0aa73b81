/*
 * Which precision an operation runs in: PyTorch's autocast lists, by op name, and a caller's own additions.
 *
 * The built-in lists are a sorted constant table. A registry of one's own is caller memory with a bound, consulted first.
 */
#ifndef AMP_REGISTRY_H
#define AMP_REGISTRY_H

#include "amp/dtype.h"
#include "base/err.h"

#include <stddef.h>

enum amp_autocast_mode {
    AMP_AUTOCAST_NONE = 0, /* operations run in their input types */
    AMP_AUTOCAST_FP16 = 1, /* CUDA's lists */
    AMP_AUTOCAST_BF16 = 2, /* the CPU's lists */
};

enum amp_op_policy {
    AMP_OP_UNLISTED = 0, /* runs in its input type */
    AMP_OP_LOWER,        /* lower_precision_fp: the mode's dtype */
    AMP_OP_FP32,         /* fp32, fp32_set_opt_dtype and fp32_append_dtype: fp32 unless the caller names a dtype */
    AMP_OP_PROMOTE,      /* the widest of its inputs */
    AMP_OP_BANNED,       /* refused: unsafe in low precision */
};

/* Bounds of a registry of one's own: ops a program defines itself are few. */
#define AMP_REGISTRY_MAX 64
#define AMP_OP_NAME_MAX  48

struct amp_registry {
    size_t count;
    struct {
        char op[AMP_OP_NAME_MAX];
        enum amp_op_policy policy[3]; /* by enum amp_autocast_mode */
    } rows[AMP_REGISTRY_MAX];
};

/* Empty: the built-in lists alone decide. */
void amp_registry_init(struct amp_registry *registry);

/*
 * Sets the policy of `op` in `mode` (FP16 or BF16), before or over the built-in one. 0, AMP_EINVAL for an empty or
 * too long name or mode NONE, AMP_EEXHAUSTED when full; unchanged on failure. Not while another thread reads it.
 */
int amp_registry_set(struct amp_registry *registry, enum amp_autocast_mode mode, const char *op,
                     enum amp_op_policy policy, struct amp_error *error);

/* The policy of `op` in `mode`; `registry` may be NULL. UNLISTED in mode NONE and for unknown names. Allocates nothing. */
enum amp_op_policy amp_registry_policy(const struct amp_registry *registry, enum amp_autocast_mode mode,
                                       const char *op);

/* The i-th built-in row in sorted order: its name, or NULL behind the last. For tests and documentation. */
const char *amp_registry_builtin(size_t i);

#endif
