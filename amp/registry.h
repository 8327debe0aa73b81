/*
 * The precision in which an operation (op) runs: PyTorch's autocast lists by the name of the op, and additions of the
 * program.
 *
 * The built-in lists are a sorted constant table. A program may have a registry with rules of its own, which come
 * before the lists; it has room for any number of ops (malloc). Functions that return a code return AMP_EINVAL if
 * registry or op is NULL; for the others an op that is NULL is not listed.
 */
#ifndef AMP_REGISTRY_H
#define AMP_REGISTRY_H

#include "amp/dtype.h"
#include "base/err.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The low precision of a region. */
enum amp_autocast_mode {
    AMP_AUTOCAST_NONE = 0, /* operations run in their input types */
    AMP_AUTOCAST_FP16 = 1,
    AMP_AUTOCAST_BF16 = 2,
};

/* Whose lists say which operations run in the low precision and which in fp32; PyTorch has these two. */
enum amp_op_lists {
    AMP_OP_LISTS_OF_MODE = 0, /* PyTorch's choice: CUDA's for fp16, the CPU's for bf16 */
    AMP_OP_LISTS_CUDA = 1,    /* fp32 for softmax, exp, log, sum, norms and losses */
    AMP_OP_LISTS_CPU = 2,     /* fp32 for losses, fft and linear algebra; softmax, exp, log, sum, norms as they come */
};

enum amp_op_policy {
    AMP_OP_UNLISTED = 0, /* runs in its input type */
    AMP_OP_LOWER,        /* lower_precision_fp: the region's low dtype */
    AMP_OP_FP32,         /* fp32, fp32_set_opt_dtype and fp32_append_dtype: fp32 unless the caller names a dtype */
    AMP_OP_PROMOTE,      /* the widest of its inputs */
    AMP_OP_BANNED,       /* refused: unsafe in low precision */
};

/* Bytes of the name of an op in a registry, with the final zero. */
#define AMP_OP_NAME_MAX 48

/* Bytes of the remedy of a banned op, which is a part of a sentence, with the final zero. */
#define AMP_OP_REMEDY_MAX 96

/*
 * A hash table of the ops that have a rule. Its members are private, and a copy of the struct is not a second registry.
 */
struct amp_registry {
    size_t count;
    unsigned slot_bits;
    struct amp_registry_row **slots;
};

/* The rule of an op in a mode. */
struct amp_op_rule {
    enum amp_op_policy policy;
    enum amp_dtype forward;  /* NONE: by policy */
    enum amp_dtype backward; /* NONE: as forward */
    const char *remedy;      /* of a banned op, what to do instead: borrowed; NULL or "": leave the region */
};

/* Makes a registry empty; it has no memory yet, and only the built-in lists decide. */
void amp_registry_init(struct amp_registry *registry);

/* Frees all rules; the registry is then empty and may be used again. Not while an autocast region uses it. */
void amp_registry_close(struct amp_registry *registry);

/*
 * Sets the policy of `op` in `mode` (FP16 or BF16), in place of the built-in one and of any rule or default dtype that
 * was set before: the last rule of an op holds. 0, AMP_EINVAL for an empty or too long name or mode NONE, AMP_ENOMEM;
 * unchanged on failure. Not while another thread reads it.
 */
int amp_registry_set(struct amp_registry *registry, enum amp_autocast_mode mode, const char *op,
                     enum amp_op_policy policy, struct amp_error *error);

/*
 * The rules of the specification, in both modes: allow runs `op` in the low dtype, deny in fp32, promote in the widest
 * of its inputs, keep in its input types whatever the built-in lists say. As amp_registry_set in all else.
 */
int amp_registry_allow(struct amp_registry *registry, const char *op, struct amp_error *error);
int amp_registry_deny(struct amp_registry *registry, const char *op, struct amp_error *error);
int amp_registry_promote(struct amp_registry *registry, const char *op, struct amp_error *error);
int amp_registry_keep(struct amp_registry *registry, const char *op, struct amp_error *error);

/*
 * Refuses `op` in both modes with a text that ends in `remedy` ("use ..."; copied; NULL: the text says to leave the
 * region). As amp_registry_set, and AMP_EINVAL for a remedy of AMP_OP_REMEDY_MAX bytes or more.
 */
int amp_registry_ban(struct amp_registry *registry, const char *op, const char *remedy, struct amp_error *error);

/*
 * Sets the dtypes of an op in both modes, in place of those by its policy: f32, f16 or bf16. AMP_DTYPE_NONE leaves the
 * forward to the policy, and the backward to the forward. A forward dtype lifts a ban. As amp_registry_set, but the
 * policy stays; AMP_EINVAL for another dtype.
 */
int amp_registry_set_dtypes(struct amp_registry *registry, const char *op, enum amp_dtype forward,
                            enum amp_dtype backward, struct amp_error *error);

/*
 * The rule of `op` in `mode`: the registry's own, else that of the lists. `registry` may be NULL. UNLISTED in mode NONE
 * and for unknown names. Allocates nothing.
 */
struct amp_op_rule amp_registry_rule_of(const struct amp_registry *registry, enum amp_autocast_mode mode,
                                        enum amp_op_lists lists, const char *op);

/* The rule of `op`, and only its policy, by PyTorch's lists for the mode (AMP_OP_LISTS_OF_MODE). */
struct amp_op_rule amp_registry_rule(const struct amp_registry *registry, enum amp_autocast_mode mode, const char *op);
enum amp_op_policy amp_registry_policy(const struct amp_registry *registry, enum amp_autocast_mode mode,
                                       const char *op);

/* The lists that PyTorch has for a mode; OF_MODE for NONE. */
enum amp_op_lists amp_op_lists_of(enum amp_autocast_mode mode);

/* The policy of `op` in the built-in lists, CUDA's or the CPU's; UNLISTED for other values of `lists`. */
enum amp_op_policy amp_op_lists_policy(enum amp_op_lists lists, const char *op);

/* The name of the i-th op of the built-in lists in sorted order; NULL after the last. For tests and documentation. */
const char *amp_registry_builtin(size_t i);

#ifdef __cplusplus
}
#endif

#endif
