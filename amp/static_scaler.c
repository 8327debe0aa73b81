/* A constant scale: the gradient utilities with one factor, and the presets. */
#include "amp/static_scaler.h"

#include "amp/fp_env.h"
#include "amp/given.h"
#include "amp/grad.h"
#include "base/assert.h"

#include <float.h>

/* Exponents of fp32's normal numbers. */
#define EXPONENT_MIN (FLT_MIN_EXP - 1)
#define EXPONENT_MAX (FLT_MAX_EXP - 1)

int amp_scale_power_of_two(int exponent, float *scale, struct amp_error *error)
{
    int rc = amp_given(scale, "scale", error);
    if (rc != 0)
        return rc;
    if (exponent < EXPONENT_MIN || exponent > EXPONENT_MAX)
        return amp_error_set(error, AMP_ERANGE, NULL, "2^%d is not a scale: the exponent must be from %d to %d",
                             exponent, EXPONENT_MIN, EXPONENT_MAX);
    float power = 1;
    float factor = exponent < 0 ? 0.5f : 2.0f;
    for (int left = exponent < 0 ? -exponent : exponent; left > 0; left--)
        power *= factor;
    *scale = power;
    return 0;
}

float amp_scale_recommended(enum amp_dtype precision)
{
    return precision == AMP_F16 ? AMP_SCALE_MODERATE : AMP_SCALE_NONE;
}

static AMP_IN_FP_ENV float inverse_of(float scale)
{
    return (float)(1.0 / (double)scale);
}

int amp_static_scaler_init(struct amp_static_scaler *scaler, const struct amp_kernels *kernels, float scale,
                           bool enabled, struct amp_error *error)
{
    if (scaler == NULL || kernels == NULL)
        return amp_error_set(error, AMP_EINVAL, NULL, "a static scaler needs memory and kernels");
    struct amp_fp_env env;
    int rc = amp_scale_check(scale, error);
    if (rc == 0)
        rc = amp_fp_env_set(&env, error);
    if (rc != 0)
        return rc;
    float inverse = inverse_of(enabled ? scale : 1);
    amp_fp_env_restore(&env);
    struct amp_scaler_config config = {
        .policy = AMP_SCALER_STATIC, .init_scale = scale, .min_scale = scale, .max_scale = scale};
    amp_scaler_config_defaults(&config);
    AMP_ASSERT(amp_scaler_config_check(&config, NULL) == 0); /* the scale is all that is not a default */
    *scaler = (struct amp_static_scaler){.kernels = kernels, .config = config, .enabled = enabled};
    amp_scaler_init(&config, &scaler->state);
    if (!enabled)
        scaler->state.scale = 1;
    scaler->inverse = inverse;
    return 0;
}

float amp_static_scaler_scale(const struct amp_static_scaler *scaler)
{
    return scaler->config.init_scale;
}

bool amp_static_scaler_enabled(const struct amp_static_scaler *scaler)
{
    return scaler->enabled;
}

int amp_static_scaler_scale_loss(const struct amp_static_scaler *scaler, const struct amp_tensor *loss,
                                 const struct amp_tensor *out, struct amp_error *error)
{
    int rc = amp_given(scaler, "scaler", error);
    if (rc == 0)
        rc = amp_given(loss, "loss", error);
    if (rc != 0)
        return rc;
    if (!scaler->enabled)
        return amp_grads_copy(scaler->kernels, loss, 1, out, error);
    return amp_loss_scale(scaler->kernels, loss, scaler->state.scale, out, error);
}

int amp_static_scaler_unscale(const struct amp_static_scaler *scaler, const struct amp_tensor *gradients, size_t n,
                              const struct amp_tensor *out, bool *overflow, struct amp_error *error)
{
    int rc = amp_given(scaler, "scaler", error);
    if (rc != 0)
        return rc;
    if (scaler->enabled)
        return amp_grads_unscale(scaler->kernels, gradients, n, scaler->state.scale, out, overflow, error);
    rc = amp_grads_copy(scaler->kernels, gradients, n, out, error);
    if (rc == 0 && overflow != NULL)
        *overflow = false;
    return rc;
}

int amp_static_scaler_unscale_one(const struct amp_static_scaler *scaler, const struct amp_tensor *gradient,
                                  const struct amp_tensor *out, bool *overflow, struct amp_error *error)
{
    return amp_static_scaler_unscale(scaler, gradient, 1, out, overflow, error);
}

int amp_static_scaler_check_overflow(const struct amp_static_scaler *scaler, const struct amp_tensor *gradients,
                                     size_t n, bool *overflow, struct amp_error *error)
{
    int rc = amp_both_given(scaler, "scaler", overflow, "overflow", error);
    if (rc != 0)
        return rc;
    if (scaler->enabled)
        return amp_grads_overflow(scaler->kernels, gradients, n, overflow, error);
    rc = amp_tensors_check(gradients, n, error);
    if (rc == 0)
        *overflow = false;
    return rc;
}

int amp_static_scaler_check_overflow_one(const struct amp_static_scaler *scaler, const struct amp_tensor *gradient,
                                         bool *overflow, struct amp_error *error)
{
    return amp_static_scaler_check_overflow(scaler, gradient, 1, overflow, error);
}

bool amp_static_scaler_update(struct amp_static_scaler *scaler, bool overflow)
{
    if (!scaler->enabled)
        return false;
    amp_scaler_update(&scaler->config, &scaler->state, overflow ? AMP_SCALER_OVERFLOW : AMP_SCALER_CLEAN);
    return overflow;
}

struct amp_tensor amp_static_scaler_scale_tensor(struct amp_static_scaler *scaler)
{
    return (struct amp_tensor){"scale", &scaler->state.scale, 1, AMP_F32};
}

struct amp_tensor amp_static_scaler_inverse_tensor(struct amp_static_scaler *scaler)
{
    return (struct amp_tensor){"inverse scale", &scaler->inverse, 1, AMP_F32};
}

/* ---- the interface: the functions above behind untyped pointers ---- */

static float scale(const void *scaler)
{
    return amp_static_scaler_scale(scaler);
}

static bool enabled(const void *scaler)
{
    return amp_static_scaler_enabled(scaler);
}

static int scale_loss(const void *scaler, const struct amp_tensor *loss, const struct amp_tensor *out,
                      struct amp_error *error)
{
    return amp_static_scaler_scale_loss(scaler, loss, out, error);
}

static int unscale(const void *scaler, const struct amp_tensor *gradients, size_t n, const struct amp_tensor *out,
                   bool *overflow, struct amp_error *error)
{
    return amp_static_scaler_unscale(scaler, gradients, n, out, overflow, error);
}

static int check_overflow(const void *scaler, const struct amp_tensor *gradients, size_t n, bool *overflow,
                          struct amp_error *error)
{
    return amp_static_scaler_check_overflow(scaler, gradients, n, overflow, error);
}

static bool update(void *scaler, bool overflow)
{
    return amp_static_scaler_update(scaler, overflow);
}

static const struct amp_loss_scaler_ops ops = {scale, enabled, scale_loss, unscale, check_overflow, update};

struct amp_loss_scaler amp_static_scaler_interface(struct amp_static_scaler *scaler)
{
    return (struct amp_loss_scaler){&ops, scaler};
}
