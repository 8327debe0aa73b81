/*
 * Clipping over the kernels and amp/norm.h: measure everything first, then write in one pass. Arguments are checked in
 * the mode of the arithmetic, too: a thread that reads denormals as zero would take a limit below zero for zero.
 */
#include "amp/clip.h"

#include "amp/fp_env.h"
#include "amp/given.h"
#include "amp/norm.h"
#include "amp/optim.h"
#include "amp/reduce.h"

#include <math.h>

/* Elements of a tile on the stack: 4 KiB of fp32, which stays in the first cache level. */
#define TILE 1024

static int check(const struct amp_kernels *kernels, const struct amp_tensor *in, const struct amp_tensor *out, size_t n,
                 struct amp_error *error)
{
    int rc = amp_given(kernels, "kernels", error);
    return rc != 0 ? rc : amp_tensors_check_pairs(in, out, n, error);
}

static void clamp(const struct amp_kernels *kernels, const struct amp_tensor *gradient, float limit,
                  const struct amp_tensor *out)
{
    size_t in_size = amp_dtype_size(gradient->dtype);
    size_t out_size = amp_dtype_size(out->dtype);
    for (size_t done = 0; done < gradient->count; done += TILE) {
        float tile[TILE];
        size_t n = gradient->count - done < TILE ? gradient->count - done : TILE;
        kernels->load[gradient->dtype](tile, (const char *)gradient->data + done * in_size, n);
        kernels->clip_value(tile, limit, n);
        (void)kernels->store[out->dtype]((char *)out->data + done * out_size, tile, n);
    }
}

static AMP_IN_FP_ENV int clip_by_value(const struct amp_kernels *kernels, const struct amp_tensor *gradient,
                                       float limit, const struct amp_tensor *out, struct amp_error *error)
{
    if (!(limit >= 0))
        return amp_error_set(error, AMP_EINVAL, NULL, "the clip value is %g, must be at least 0", (double)limit);
    int rc = check(kernels, gradient, out, 1, error);
    if (rc == 0 && gradient->data != NULL)
        clamp(kernels, gradient, limit, out);
    return rc;
}

int amp_clip_by_value(const struct amp_kernels *kernels, const struct amp_tensor *gradient, float limit,
                      const struct amp_tensor *out, struct amp_error *error)
{
    struct amp_fp_env env;
    int rc = amp_fp_env_set(&env, error);
    if (rc != 0)
        return rc;
    rc = clip_by_value(kernels, gradient, limit, out, error);
    amp_fp_env_restore(&env);
    return rc;
}

static struct amp_span span_of(const struct amp_tensor *tensor)
{
    return (struct amp_span){tensor->data, tensor->data != NULL ? tensor->count : 0, tensor->dtype};
}

/* The largest magnitude of all: NaN before Inf before any number. */
static float largest_of(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n)
{
    float largest = 0;
    for (size_t i = 0; i < n && !isnan(largest); i++) {
        struct amp_span span = span_of(&gradients[i]);
        float here = span.count > 0 ? amp_norm_largest(kernels, &span) : 0;
        if (isnan(here) || here > largest)
            largest = here;
    }
    return largest;
}

static double norm_of(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n, double p,
                      float largest)
{
    if (isinf(p) || !isfinite(largest) || largest == 0)
        return (double)largest;
    struct amp_tree tree;
    amp_tree_init(&tree);
    for (size_t i = 0; i < n; i++) {
        struct amp_span span = span_of(&gradients[i]);
        if (span.count > 0)
            amp_tree_add(&tree, i, amp_norm_sum(kernels, &span, p, largest));
    }
    return amp_norm_of_sum(amp_tree_sum(&tree), p, largest);
}

static int check_p(double p, struct amp_error *error)
{
    if (p > 0)
        return 0;
    return amp_error_set(error, AMP_EINVAL, NULL, "the norm's p is %g, must be above 0", p);
}

static int check_max_norm(double max_norm, struct amp_error *error)
{
    if (max_norm >= 0)
        return 0;
    return amp_error_set(error, AMP_EINVAL, NULL, "the largest norm is %g, must be at least 0", max_norm);
}

static AMP_IN_FP_ENV int norm_in_env(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n,
                                     double p, double *norm, struct amp_error *error)
{
    int rc = check_p(p, error);
    if (rc == 0)
        rc = amp_given(norm, "norm", error);
    if (rc == 0)
        rc = check(kernels, gradients, gradients, n, error);
    if (rc == 0)
        *norm = norm_of(kernels, gradients, n, p, largest_of(kernels, gradients, n));
    return rc;
}

int amp_grads_norm(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n, double p,
                   double *norm, struct amp_error *error)
{
    struct amp_fp_env env;
    int rc = amp_fp_env_set(&env, error);
    if (rc != 0)
        return rc;
    rc = norm_in_env(kernels, gradients, n, p, norm, error);
    amp_fp_env_restore(&env);
    return rc;
}

static AMP_IN_FP_ENV int clip_by_norm(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n,
                                      double max_norm, double p, const struct amp_tensor *out, double *norm,
                                      struct amp_error *error)
{
    int rc = check_max_norm(max_norm, error);
    if (rc == 0)
        rc = check_p(p, error);
    if (rc == 0)
        rc = check(kernels, gradients, out, n, error);
    if (rc != 0)
        return rc;
    float largest = largest_of(kernels, gradients, n);
    double before = norm_of(kernels, gradients, n, p, largest);
    if (norm != NULL)
        *norm = before;
    if (!isfinite(largest))
        return amp_error_set(error, AMP_ERANGE, NULL, "the norm is %g: a gradient overflowed, leave the step out",
                             before);
    float factor = isinf(max_norm) ? 1 : amp_clip_coefficient(max_norm, before);
    for (size_t i = 0; i < n; i++) {
        if (factor < 1)
            (void)amp_tensor_multiply(kernels, &gradients[i], factor, &out[i]);
        else
            amp_tensor_copy(kernels, &gradients[i], &out[i]);
    }
    return 0;
}

int amp_grads_clip_by_norm(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n,
                           double max_norm, double p, const struct amp_tensor *out, double *norm,
                           struct amp_error *error)
{
    struct amp_fp_env env;
    int rc = amp_fp_env_set(&env, error);
    if (rc != 0)
        return rc;
    rc = clip_by_norm(kernels, gradients, n, max_norm, p, out, norm, error);
    amp_fp_env_restore(&env);
    return rc;
}

int amp_grad_clip_by_norm(const struct amp_kernels *kernels, const struct amp_tensor *gradient, double max_norm,
                          double p, const struct amp_tensor *out, double *norm, struct amp_error *error)
{
    return amp_grads_clip_by_norm(kernels, gradient, 1, max_norm, p, out, norm, error);
}

/* ---- measuring without writing ---- */

static void raise_to(uint32_t *largest, uint32_t here)
{
    *largest = here > *largest ? here : *largest;
}

/* The sum of squares of the unscaled block; *largest: the largest magnitude as bits, raised. */
static double measure_block(const struct amp_kernels *kernels, const struct amp_span *block, float inverse,
                            uint32_t *largest)
{
    _Alignas(64) float tile[TILE];
    double lanes[AMP_SQUARE_LANES] = {0};
    size_t size = amp_dtype_size(block->dtype);
    const struct amp_input input = {.data = block->data, .dtype = block->dtype, .weight = 1};
    size_t whole = kernels->vote_pass != NULL ? block->count - block->count % AMP_VOTE_MULTIPLE : 0;
    if (whole > 0)
        raise_to(largest, kernels->vote_pass(&input, 1, inverse, INFINITY, 0, whole, lanes, NULL));
    for (size_t start = whole; start < block->count; start += TILE) {
        size_t n = block->count - start < TILE ? block->count - start : TILE;
        const void *from = (const char *)block->data + start * size;
        if (block->dtype != AMP_F32) {
            kernels->load[block->dtype](tile, from, n);
            from = tile;
        }
        raise_to(largest, kernels->scale(tile, from, inverse, n));
        kernels->squares(tile, n, lanes);
    }
    return amp_tree_lanes(lanes);
}

static double measure_tensor(const struct amp_kernels *kernels, const struct amp_span *span, float inverse,
                             uint32_t *largest)
{
    struct amp_tree tree;
    amp_tree_init(&tree);
    size_t size = amp_dtype_size(span->dtype);
    for (size_t start = 0; start < span->count; start += AMP_NORM_BLOCK) {
        size_t rest = span->count - start;
        struct amp_span block = {(const char *)span->data + start * size, rest < AMP_NORM_BLOCK ? rest : AMP_NORM_BLOCK,
                                 span->dtype};
        amp_tree_add(&tree, start / AMP_NORM_BLOCK, measure_block(kernels, &block, inverse, largest));
    }
    return amp_tree_sum(&tree);
}

static AMP_IN_FP_ENV int measure_all(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n,
                                     float scale, double max_norm, struct amp_grads_measured *measured,
                                     struct amp_error *error)
{
    int rc = amp_scale_check(scale, error);
    if (rc == 0)
        rc = check_max_norm(max_norm, error);
    if (rc == 0)
        rc = amp_given(measured, "measured", error);
    if (rc == 0)
        rc = check(kernels, gradients, gradients, n, error);
    if (rc != 0)
        return rc;
    struct amp_tree tree;
    uint32_t largest = 0;
    measured->inverse = (float)(1.0 / (double)scale);
    amp_tree_init(&tree);
    for (size_t i = 0; i < n; i++) {
        struct amp_span span = span_of(&gradients[i]);
        if (span.count > 0)
            amp_tree_add(&tree, i, measure_tensor(kernels, &span, measured->inverse, &largest));
    }
    measured->overflow = largest >= AMP_F32_INF;
    if (measured->overflow)
        measured->norm = largest > AMP_F32_INF ? (double)NAN : (double)INFINITY;
    else
        measured->norm = amp_norm_of_sum(amp_tree_sum(&tree), AMP_CLIP_L2, 1);
    measured->clip = measured->overflow || isinf(max_norm) ? 1 : amp_clip_coefficient(max_norm, measured->norm);
    return 0;
}

int amp_grads_measure(const struct amp_kernels *kernels, const struct amp_tensor *gradients, size_t n, float scale,
                      double max_norm, struct amp_grads_measured *measured, struct amp_error *error)
{
    struct amp_fp_env env;
    int rc = amp_fp_env_set(&env, error);
    if (rc != 0)
        return rc;
    rc = measure_all(kernels, gradients, n, scale, max_norm, measured, error);
    amp_fp_env_restore(&env);
    return rc;
}
