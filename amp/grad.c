/*
 * Gradient utilities over the kernels. Everything is checked before anything is written, so that a failure leaves
 * the dictionary as it was.
 */
#include "amp/grad.h"

#include "amp/fp_env.h"
#include "amp/given.h"

#include <stdio.h>

/* Elements between two looks at what a finite test has found: small, so that an overflow ends the search soon. */
#define SEARCH_TILE 4096

static int check_pairs(const struct amp_kernels *kernels, const struct amp_tensor *in, const struct amp_tensor *out,
                       size_t n, struct amp_error *error)
{
    int rc = amp_given(kernels, "kernels", error);
    return rc != 0 ? rc : amp_tensors_check_pairs(in, out, n, error);
}

int amp_grads_copy(const struct amp_kernels *kernels, const struct amp_tensor *in, size_t n,
                   const struct amp_tensor *out, struct amp_error *error)
{
    int rc = check_pairs(kernels, in, out, n, error);
    for (size_t i = 0; rc == 0 && i < n; i++)
        amp_tensor_copy(kernels, &in[i], &out[i]);
    return rc;
}

static AMP_IN_FP_ENV bool unscale(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n,
                                  float scale, const struct amp_tensor *out)
{
    float inverse = (float)(1.0 / (double)scale);
    bool found = false;
    for (size_t i = 0; i < n; i++)
        found |= amp_tensor_multiply(kernels, &gradients[i], inverse, &out[i]);
    return found;
}

/* What a search looks for. */
struct wanted {
    bool inf;
    bool nan;
};
static const struct wanted inf_or_nan = {true, true};

static bool search(const struct amp_kernels *kernels, const struct amp_tensor *tensor, struct wanted wanted)
{
    if (tensor->data == NULL)
        return false;
    size_t size = amp_dtype_size(tensor->dtype);
    for (size_t done = 0; done < tensor->count; done += SEARCH_TILE) {
        size_t n = tensor->count - done < SEARCH_TILE ? tensor->count - done : SEARCH_TILE;
        struct amp_check check = AMP_CHECK_INIT;
        kernels->check[tensor->dtype]((const char *)tensor->data + done * size, n, done, &check);
        if ((wanted.inf && check.inf_count > 0) || (wanted.nan && check.nan_count > 0))
            return true;
    }
    return false;
}

/*
 * Whether a copy has an Inf or NaN, perhaps because out's dtype is narrower. Missing gradients are left out, since
 * their place in `out` was not written.
 */
static bool copied_overflow(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n,
                            const struct amp_tensor *out)
{
    bool found = false;
    for (size_t i = 0; !found && i < n; i++)
        found = gradients[i].data != NULL && search(kernels, &out[i], inf_or_nan);
    return found;
}

int amp_grads_unscale(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n, float scale,
                      const struct amp_tensor *out, bool *overflow, struct amp_error *error)
{
    struct amp_fp_env env;
    int rc = amp_scale_check(scale, error);
    if (rc == 0)
        rc = check_pairs(kernels, gradients, out, n, error);
    if (rc != 0)
        return rc;
    if (scale == 1) {
        rc = amp_grads_copy(kernels, gradients, n, out, error);
        if (rc == 0 && overflow != NULL)
            *overflow = copied_overflow(kernels, gradients, n, out);
        return rc;
    }
    rc = amp_fp_env_set(&env, error);
    if (rc != 0)
        return rc;
    bool found = unscale(kernels, gradients, n, scale, out);
    amp_fp_env_restore(&env);
    if (overflow != NULL)
        *overflow = found;
    return 0;
}

int amp_grad_unscale(const struct amp_kernels *kernels, const struct amp_tensor *gradient, float scale,
                     const struct amp_tensor *out, bool *overflow, struct amp_error *error)
{
    return amp_grads_unscale(kernels, gradient, 1, scale, out, overflow, error);
}

int amp_grads_unscale_in_place(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n,
                               float scale, bool *overflow, struct amp_error *error)
{
    return amp_grads_unscale(kernels, gradients, n, scale, gradients, overflow, error);
}

int amp_grad_unscale_in_place(const struct amp_kernels *kernels, const struct amp_tensor *gradient, float scale,
                              bool *overflow, struct amp_error *error)
{
    return amp_grads_unscale(kernels, gradient, 1, scale, gradient, overflow, error);
}

int amp_loss_scale(const struct amp_kernels *kernels, const struct amp_tensor *loss, float scale,
                   const struct amp_tensor *out, struct amp_error *error)
{
    int rc = amp_given(loss, "loss", error);
    if (rc == 0)
        rc = amp_scale_check(scale, error);
    if (rc == 0)
        rc = check_pairs(kernels, loss, out, 1, error);
    struct amp_fp_env env;
    if (rc == 0)
        rc = amp_fp_env_set(&env, error);
    if (rc != 0)
        return rc;
    (void)amp_tensor_multiply(kernels, loss, scale, out);
    amp_fp_env_restore(&env);
    return 0;
}

/* `name` is what the caller's function calls `found`. */
static int find(const struct amp_kernels *kernels, const struct amp_tensor *tensors, size_t n, struct wanted wanted,
                bool *found, const char *name, struct amp_error *error)
{
    int rc = amp_both_given(kernels, "kernels", found, name, error);
    if (rc == 0)
        rc = amp_tensors_check(tensors, n, error);
    if (rc != 0)
        return rc;
    *found = false;
    for (size_t i = 0; !*found && i < n; i++)
        *found = search(kernels, &tensors[i], wanted);
    return 0;
}

int amp_grads_overflow(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n, bool *overflow,
                       struct amp_error *error)
{
    return find(kernels, gradients, n, inf_or_nan, overflow, "overflow", error);
}

int amp_grad_overflow(const struct amp_kernels *kernels, const struct amp_tensor *gradient, bool *overflow,
                      struct amp_error *error)
{
    return find(kernels, gradient, 1, inf_or_nan, overflow, "overflow", error);
}

int amp_grad_is_inf_or_nan(const struct amp_kernels *kernels, const struct amp_tensor *tensor, bool *found,
                           struct amp_error *error)
{
    return find(kernels, tensor, 1, inf_or_nan, found, "found", error);
}

int amp_grad_is_inf(const struct amp_kernels *kernels, const struct amp_tensor *tensor, bool *found,
                    struct amp_error *error)
{
    return find(kernels, tensor, 1, (struct wanted){.inf = true}, found, "found", error);
}

int amp_grad_is_nan(const struct amp_kernels *kernels, const struct amp_tensor *tensor, bool *found,
                    struct amp_error *error)
{
    return find(kernels, tensor, 1, (struct wanted){.nan = true}, found, "found", error);
}

int amp_grads_find_overflow(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n,
                            const char **names, size_t *count, struct amp_error *error)
{
    int rc = amp_both_given(kernels, "kernels", count, "count", error);
    if (rc == 0)
        rc = amp_tensors_check(gradients, n, error);
    if (rc == 0 && n > 0)
        rc = amp_given(names, "names", error);
    if (rc != 0)
        return rc;
    *count = 0;
    for (size_t i = 0; i < n; i++) {
        if (search(kernels, &gradients[i], inf_or_nan))
            names[(*count)++] = gradients[i].name;
    }
    return 0;
}

int amp_overflow_stats_init(struct amp_overflow_stats *stats, size_t total_gradients, size_t overflow_count,
                            const char *const *names, struct amp_error *error)
{
    int rc = amp_given(stats, "stats", error);
    if (rc != 0)
        return rc;
    if (overflow_count > total_gradients)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "%zu overflows in %zu gradients: there must be at least as many gradients", overflow_count,
                             total_gradients);
    if (names == NULL && overflow_count > 0)
        return amp_error_set(error, AMP_EINVAL, NULL, "%zu overflows, but no names are given: give one for each",
                             overflow_count);
    *stats = (struct amp_overflow_stats){total_gradients, overflow_count, names, 0};
    if (total_gradients > 0)
        stats->overflow_rate = (float)((double)overflow_count / (double)total_gradients);
    return 0;
}

int amp_grads_overflow_stats(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n,
                             const char **names, struct amp_overflow_stats *stats, struct amp_error *error)
{
    size_t count;
    int rc = amp_given(stats, "stats", error);
    if (rc == 0)
        rc = amp_grads_find_overflow(kernels, gradients, n, names, &count, error);
    return rc != 0 ? rc : amp_overflow_stats_init(stats, n, count, names, error);
}

bool amp_overflow_stats_has_overflow(const struct amp_overflow_stats *stats)
{
    return stats->overflow_count > 0;
}

/* Where the next part of a text that is being built goes; no room is a size of 0. */
static size_t append(char *text, size_t size, size_t used, const char *before, const char *part)
{
    char *to = used < size ? text + used : NULL;
    return used + (size_t)snprintf(to, to != NULL ? size - used : 0, "%s%s", before, part);
}

size_t amp_overflow_stats_text(const struct amp_overflow_stats *stats, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "Gradients: %zu, Overflows: %zu (%.2f%%)", stats->total_gradients,
                                   stats->overflow_count, 100.0 * (double)stats->overflow_rate);
    for (size_t i = 0; i < stats->overflow_count; i++) {
        const char *name = stats->overflow_parameters[i];
        used = append(text, size, used, i == 0 ? ", Parameters: " : ", ", name != NULL ? name : "(unnamed)");
    }
    return used;
}
