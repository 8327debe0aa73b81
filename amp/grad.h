/*
 * Utilities for gradients: unscale them, and find Inf and NaN in them.
 *
 * A dictionary of named tensors is an array of struct amp_tensor with its length; NULL with length 0 is the empty one.
 * A missing gradient (data NULL) is passed over: it is never written and never an overflow, though it counts as an
 * entry.
 *
 * Common rules. Units: a scale is a plain factor; nothing has a unit of its own. Memory is the caller's before and
 * after; nothing is allocated. Results are the same bits for every kernel table. A function returns 0, or AMP_EINVAL
 * with a text (a tensor that is not well formed, see amp/tensor.h; a pointer that is NULL where that is not said to be
 * allowed; a scale that is not finite and at least 2^-126: so 0, a negative one, Inf, NaN and denormals are refused).
 * After a failure nothing has been written. Any thread, on memory that no other thread writes meanwhile; in one that
 * flushes denormals or rounds otherwise the results are the same, and its mode is as before (AMP_ESTATE if a machine
 * could not change it).
 *
 * Source: the specification of gradient utilities, with the differences that docs/specs.md lists.
 */
#ifndef AMP_GRAD_H
#define AMP_GRAD_H

#include "amp/tensor.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * out[i] = gradients[i] / scale for each of the n, by a product with fp32(1 / scale), the reciprocal in double and
 * rounded once: equal to the division for powers of two. The product is rounded to fp32, then to out's dtype, which may
 * be another. A scale of 1 copies the bits. *overflow, unless NULL, tells whether any input or any result is Inf or
 * NaN: a finite gradient may become Inf where the scale is below 1 or where out's dtype is narrower; such results are
 * stored as Inf.
 */
int amp_grads_unscale(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n, float scale,
                      const struct amp_tensor *out, bool *overflow, struct amp_error *error);

/* As amp_grads_unscale, for one gradient. */
int amp_grad_unscale(const struct amp_kernels *kernels, const struct amp_tensor *gradient, float scale,
                     const struct amp_tensor *out, bool *overflow, struct amp_error *error);

/* As amp_grads_unscale, but in the gradients' own memory and dtype. A scale of 1 writes nothing. */
int amp_grads_unscale_in_place(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n,
                               float scale, bool *overflow, struct amp_error *error);
int amp_grad_unscale_in_place(const struct amp_kernels *kernels, const struct amp_tensor *gradient, float scale,
                              bool *overflow, struct amp_error *error);

/* *out = *loss * scale, before backward: the product rounded to fp32, then to out's dtype. May be in place. */
int amp_loss_scale(const struct amp_kernels *kernels, const struct amp_tensor *loss, float scale,
                   const struct amp_tensor *out, struct amp_error *error);

/* out[i] = in[i] for each of the n, cast where the dtypes differ: what a disabled scaler does. */
int amp_grads_copy(const struct amp_kernels *kernels, const struct amp_tensor *in, size_t n,
                   const struct amp_tensor *out, struct amp_error *error);

/*
 * *overflow: whether any element of the n tensors (a dictionary or an array: names are not looked at) is Inf or NaN.
 * Reads no further than the tile (4,096 elements) with the first one. The floating-point environment does not matter.
 */
int amp_grads_overflow(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n, bool *overflow,
                       struct amp_error *error);

/* As amp_grads_overflow, for one tensor; amp_grad_is_inf_or_nan is another name for it. */
int amp_grad_overflow(const struct amp_kernels *kernels, const struct amp_tensor *gradient, bool *overflow,
                      struct amp_error *error);
int amp_grad_is_inf_or_nan(const struct amp_kernels *kernels, const struct amp_tensor *tensor, bool *found,
                           struct amp_error *error);

/*
 * *found: whether any element is Inf, of either sign (is_inf), or NaN (is_nan). Reads no further than the first tile
 * with one.
 */
int amp_grad_is_inf(const struct amp_kernels *kernels, const struct amp_tensor *tensor, bool *found,
                    struct amp_error *error);
int amp_grad_is_nan(const struct amp_kernels *kernels, const struct amp_tensor *tensor, bool *found,
                    struct amp_error *error);

/*
 * The names of the gradients with an Inf or NaN, in the order of the dictionary: names has room for n, *count is how
 * many. The names are borrowed from the tensors (NULL for one without a name).
 */
int amp_grads_find_overflow(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n,
                            const char **names, size_t *count, struct amp_error *error);

/* What a dictionary's overflows amount to; plain memory, names borrowed. */
struct amp_overflow_stats {
    size_t total_gradients;                 /* entries checked, missing ones included */
    size_t overflow_count;                  /* those with an Inf or NaN */
    const char *const *overflow_parameters; /* overflow_count names */
    float overflow_rate;                    /* overflow_count / total_gradients; 0 of none */
};

/*
 * Fills *stats. `names` is borrowed until the last use of *stats. AMP_EINVAL if overflow_count is above
 * total_gradients, or names NULL while it is above 0.
 */
int amp_overflow_stats_init(struct amp_overflow_stats *stats, size_t total_gradients, size_t overflow_count,
                            const char *const *names, struct amp_error *error);

/* The statistics of a dictionary; `names` (room for n) is filled and borrowed until the last use of *stats. */
int amp_grads_overflow_stats(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n,
                             const char **names, struct amp_overflow_stats *stats, struct amp_error *error);

/* Whether any gradient has an overflow. */
bool amp_overflow_stats_has_overflow(const struct amp_overflow_stats *stats);

/*
 * "Gradients: 3, Overflows: 2 (66.67%), Parameters: a, b", without the last part if there are none, and with the
 * locale's decimal point. Writes at most `size` bytes with the final zero, and returns the length of the whole text, as
 * snprintf: a text longer than size - 1 was cut.
 */
size_t amp_overflow_stats_text(const struct amp_overflow_stats *stats, char *text, size_t size);

#ifdef __cplusplus
}
#endif

#endif
