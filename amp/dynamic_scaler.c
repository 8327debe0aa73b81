/* The dynamic policy of amp/scaler.h with the gradient utilities around it. */
#include "amp/dynamic_scaler.h"

#include "amp/given.h"
#include "amp/grad.h"
#include "amp/scaler_fields.h"

#include <stdio.h>

/* The server's defaults (proto/spec_fields.def). */
#define DEFAULT_SCALE       0x1p16f
#define DEFAULT_MAX         0x1p24f
#define DEFAULT_INTERVAL    2000
#define DEFAULT_CONSECUTIVE 50

struct amp_dynamic_options amp_dynamic_options_fp16(void)
{
    return (struct amp_dynamic_options){.enable_dynamic_loss_scaling = true,
                                        .initial_loss_scale = DEFAULT_SCALE,
                                        .growth_factor = 2.0f,
                                        .backoff_factor = 0.5f,
                                        .growth_interval = DEFAULT_INTERVAL,
                                        .min_loss_scale = 1.0f,
                                        .max_loss_scale = DEFAULT_MAX,
                                        .max_consecutive_overflows = DEFAULT_CONSECUTIVE};
}

static struct amp_scaler_config config_of(const struct amp_dynamic_options *options)
{
    return (struct amp_scaler_config){.policy = AMP_SCALER_DYNAMIC,
                                      .init_scale = options->initial_loss_scale,
                                      .growth_factor = options->growth_factor,
                                      .backoff_factor = options->backoff_factor,
                                      .growth_interval = options->growth_interval,
                                      .hysteresis = 1,
                                      .min_scale = options->min_loss_scale,
                                      .max_scale = options->max_loss_scale};
}

int amp_dynamic_options_check(const struct amp_dynamic_options *options, struct amp_error *error)
{
    static const struct amp_scaler_fields fields = {.init_scale = "initial_loss_scale",
                                                    .min_scale = "min_loss_scale",
                                                    .max_scale = "max_loss_scale",
                                                    .growth_factor = "growth_factor",
                                                    .backoff_factor = "backoff_factor",
                                                    .growth_interval = "growth_interval"};
    if (options == NULL)
        return amp_error_set(error, AMP_EINVAL, NULL, "no options are given");
    if (options->max_consecutive_overflows == 0)
        return amp_error_set(error, AMP_EINVAL, NULL, "max_consecutive_overflows is 0, must be at least 1");
    struct amp_scaler_config config = config_of(options);
    return amp_scaler_config_check_as(&config, &fields, error);
}

int amp_dynamic_scaler_init(struct amp_dynamic_scaler *scaler, const struct amp_kernels *kernels,
                            const struct amp_dynamic_options *options, struct amp_error *error)
{
    if (scaler == NULL || kernels == NULL)
        return amp_error_set(error, AMP_EINVAL, NULL, "a dynamic scaler needs memory and kernels");
    struct amp_dynamic_options chosen = options != NULL ? *options : amp_dynamic_options_fp16();
    int rc = amp_dynamic_options_check(&chosen, error);
    if (rc != 0)
        return rc;
    *scaler = (struct amp_dynamic_scaler){.kernels = kernels, .options = chosen, .config = config_of(&chosen)};
    amp_dynamic_scaler_reset(scaler);
    return 0;
}

float amp_dynamic_scaler_scale(const struct amp_dynamic_scaler *scaler)
{
    return scaler->state.scale;
}

uint32_t amp_dynamic_scaler_consecutive_overflows(const struct amp_dynamic_scaler *scaler)
{
    return scaler->state.consecutive_overflows;
}

uint32_t amp_dynamic_scaler_steps_since_overflow(const struct amp_dynamic_scaler *scaler)
{
    return scaler->state.growth_tracker;
}

uint64_t amp_dynamic_scaler_total_overflows(const struct amp_dynamic_scaler *scaler)
{
    return scaler->state.total_overflows;
}

bool amp_dynamic_scaler_enabled(const struct amp_dynamic_scaler *scaler)
{
    return scaler->options.enable_dynamic_loss_scaling;
}

int amp_dynamic_scaler_scale_loss(const struct amp_dynamic_scaler *scaler, const struct amp_tensor *loss,
                                  const struct amp_tensor *out, struct amp_error *error)
{
    int rc = amp_given(scaler, "scaler", error);
    if (rc == 0)
        rc = amp_given(loss, "loss", error);
    if (rc != 0)
        return rc;
    if (!amp_dynamic_scaler_enabled(scaler))
        return amp_grads_copy(scaler->kernels, loss, 1, out, error);
    return amp_loss_scale(scaler->kernels, loss, scaler->state.scale, out, error);
}

int amp_dynamic_scaler_unscale(const struct amp_dynamic_scaler *scaler, const struct amp_tensor *gradients, size_t n,
                               const struct amp_tensor *out, bool *overflow, struct amp_error *error)
{
    int rc = amp_given(scaler, "scaler", error);
    if (rc != 0)
        return rc;
    if (amp_dynamic_scaler_enabled(scaler))
        return amp_grads_unscale(scaler->kernels, gradients, n, scaler->state.scale, out, overflow, error);
    rc = amp_grads_copy(scaler->kernels, gradients, n, out, error);
    if (rc == 0 && overflow != NULL)
        *overflow = false;
    return rc;
}

int amp_dynamic_scaler_check_overflow(const struct amp_dynamic_scaler *scaler, const struct amp_tensor *gradients,
                                      size_t n, bool *overflow, struct amp_error *error)
{
    int rc = amp_both_given(scaler, "scaler", overflow, "overflow", error);
    if (rc != 0)
        return rc;
    if (amp_dynamic_scaler_enabled(scaler))
        return amp_grads_overflow(scaler->kernels, gradients, n, overflow, error);
    rc = amp_tensors_check(gradients, n, error);
    if (rc == 0)
        *overflow = false;
    return rc;
}

bool amp_dynamic_scaler_update(struct amp_dynamic_scaler *scaler, bool overflow)
{
    if (!amp_dynamic_scaler_enabled(scaler))
        return false;
    amp_scaler_update(&scaler->config, &scaler->state, overflow ? AMP_SCALER_OVERFLOW : AMP_SCALER_CLEAN);
    return overflow;
}

int amp_dynamic_scaler_check_and_update(struct amp_dynamic_scaler *scaler, const struct amp_tensor *gradients, size_t n,
                                        bool *skip, struct amp_error *error)
{
    int rc = amp_both_given(scaler, "scaler", skip, "skip", error);
    if (rc != 0)
        return rc;
    bool overflow;
    rc = amp_dynamic_scaler_check_overflow(scaler, gradients, n, &overflow, error);
    if (rc == 0)
        *skip = amp_dynamic_scaler_update(scaler, overflow);
    return rc;
}

void amp_dynamic_scaler_reset(struct amp_dynamic_scaler *scaler)
{
    amp_scaler_init(&scaler->config, &scaler->state);
}

_Static_assert(sizeof(struct amp_dynamic_saved) == 64, "it is written as it is: no padding, one size everywhere");

int amp_dynamic_scaler_save(const struct amp_dynamic_scaler *scaler, struct amp_dynamic_saved *saved,
                            struct amp_error *error)
{
    int rc = amp_both_given(scaler, "scaler", saved, "saved", error);
    if (rc != 0)
        return rc;
    const struct amp_scaler_state *state = &scaler->state;
    *saved = (struct amp_dynamic_saved){.version = AMP_DYNAMIC_SAVED_VERSION,
                                        .scale = state->scale,
                                        .growth_tracker = state->growth_tracker,
                                        .consecutive_overflows = state->consecutive_overflows,
                                        .scale_id = state->scale_id,
                                        .total_overflows = state->total_overflows,
                                        .steps_since_overflow = state->steps_since_overflow,
                                        .attempted = state->attempted,
                                        .applied = state->applied,
                                        .skipped = state->skipped};
    return 0;
}

static int damaged(struct amp_error *error, const char *field, uint64_t value, const char *must)
{
    return amp_error_set(error, AMP_EINVAL, NULL,
                         "saved.%s is %llu, %s: the state is damaged, load one from another checkpoint or reset the "
                         "scaler",
                         field, (unsigned long long)value, must);
}

/* The most steps of a saved state, so that no count is at the end of its range: the others are at most one higher. */
#define ATTEMPTED_MAX (UINT64_MAX / 2)

/*
 * The counts against each other: a step is applied, or skipped for an overflow, and moves the scale at most once; an
 * overflow ends every run of clean steps.
 */
static int check_counts(const struct amp_dynamic_saved *s, struct amp_error *error)
{
    if (s->attempted > ATTEMPTED_MAX)
        return damaged(error, "attempted", s->attempted, "must be below 2^63");
    if (s->scale_id == 0)
        return damaged(error, "scale_id", s->scale_id, "must be at least 1");
    if (s->scale_id - 1 > s->attempted)
        return damaged(error, "scale_id", s->scale_id, "must be at most saved.attempted + 1");
    if (s->applied > s->attempted)
        return damaged(error, "applied", s->applied, "must be at most saved.attempted");
    if (s->skipped != s->attempted - s->applied)
        return damaged(error, "skipped", s->skipped, "must be saved.attempted - saved.applied");
    if (s->total_overflows != s->skipped)
        return damaged(error, "total_overflows", s->total_overflows, "must be saved.skipped");
    if (s->consecutive_overflows > s->total_overflows)
        return damaged(error, "consecutive_overflows", s->consecutive_overflows,
                       "must be at most saved.total_overflows");
    if (s->steps_since_overflow > (s->consecutive_overflows > 0 ? 0 : s->applied))
        return damaged(error, "steps_since_overflow", s->steps_since_overflow,
                       "must be at most saved.applied, and 0 after an overflow");
    if (s->growth_tracker > s->steps_since_overflow)
        return damaged(error, "growth_tracker", s->growth_tracker, "must be at most saved.steps_since_overflow");
    return 0;
}

static int check_saved(const struct amp_dynamic_options *options, const struct amp_dynamic_saved *s,
                       struct amp_error *error)
{
    if (s->version != AMP_DYNAMIC_SAVED_VERSION)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "saved.version is %lu, must be %d: load what amp_dynamic_scaler_save of this version of "
                             "the library wrote",
                             (unsigned long)s->version, AMP_DYNAMIC_SAVED_VERSION);
    if (!(s->scale >= options->min_loss_scale && s->scale <= options->max_loss_scale))
        return amp_error_set(
            error, AMP_EINVAL, NULL,
            "saved.scale is %.9g, must be within [%.9g, %.9g], min_loss_scale to max_loss_scale: load it "
            "into a scaler with the options that it was saved with, or reset the scaler",
            (double)s->scale, (double)options->min_loss_scale, (double)options->max_loss_scale);
    if (s->growth_tracker >= options->growth_interval)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "saved.growth_tracker is %lu, must be below growth_interval, %lu: load it into a scaler "
                             "with the options that it was saved with, or reset the scaler",
                             (unsigned long)s->growth_tracker, (unsigned long)options->growth_interval);
    return check_counts(s, error);
}

int amp_dynamic_scaler_load(struct amp_dynamic_scaler *scaler, const struct amp_dynamic_saved *saved,
                            struct amp_error *error)
{
    int rc = amp_both_given(scaler, "scaler", saved, "saved", error);
    if (rc == 0)
        rc = check_saved(&scaler->options, saved, error);
    if (rc != 0)
        return rc;
    scaler->state = (struct amp_scaler_state){.scale = saved->scale,
                                              .scale_id = saved->scale_id,
                                              .growth_tracker = saved->growth_tracker,
                                              .hysteresis_left = scaler->config.hysteresis,
                                              .consecutive_overflows = saved->consecutive_overflows,
                                              .total_overflows = saved->total_overflows,
                                              .steps_since_overflow = saved->steps_since_overflow,
                                              .attempted = saved->attempted,
                                              .applied = saved->applied,
                                              .skipped = saved->skipped};
    return 0;
}

struct amp_dynamic_stats amp_dynamic_scaler_stats(const struct amp_dynamic_scaler *scaler)
{
    const struct amp_scaler_state *state = &scaler->state;
    return (struct amp_dynamic_stats){.current_scale = state->scale,
                                      .steps_since_last_overflow = state->growth_tracker,
                                      .consecutive_overflows = state->consecutive_overflows,
                                      .total_overflows = state->total_overflows,
                                      .growth_interval = scaler->options.growth_interval,
                                      .max_consecutive_overflows = scaler->options.max_consecutive_overflows,
                                      .is_stable =
                                          state->consecutive_overflows < scaler->options.max_consecutive_overflows};
}

size_t amp_dynamic_stats_text(const struct amp_dynamic_stats *stats, char *text, size_t size)
{
    return (size_t)snprintf(text, size,
                            "Scale: %.2f, Steps since overflow: %lu, Consecutive overflows: %lu, "
                            "Total overflows: %llu, Stable: %s",
                            (double)stats->current_scale, (unsigned long)stats->steps_since_last_overflow,
                            (unsigned long)stats->consecutive_overflows, (unsigned long long)stats->total_overflows,
                            stats->is_stable ? "True" : "False");
}

/* ---- the interface: the functions above behind untyped pointers ---- */

static float scale(const void *scaler)
{
    return amp_dynamic_scaler_scale(scaler);
}

static bool enabled(const void *scaler)
{
    return amp_dynamic_scaler_enabled(scaler);
}

static int scale_loss(const void *scaler, const struct amp_tensor *loss, const struct amp_tensor *out,
                      struct amp_error *error)
{
    return amp_dynamic_scaler_scale_loss(scaler, loss, out, error);
}

static int unscale(const void *scaler, const struct amp_tensor *gradients, size_t n, const struct amp_tensor *out,
                   bool *overflow, struct amp_error *error)
{
    return amp_dynamic_scaler_unscale(scaler, gradients, n, out, overflow, error);
}

static int check_overflow(const void *scaler, const struct amp_tensor *gradients, size_t n, bool *overflow,
                          struct amp_error *error)
{
    return amp_dynamic_scaler_check_overflow(scaler, gradients, n, overflow, error);
}

static bool update(void *scaler, bool overflow)
{
    return amp_dynamic_scaler_update(scaler, overflow);
}

static const struct amp_loss_scaler_ops ops = {scale, enabled, scale_loss, unscale, check_overflow, update};

struct amp_loss_scaler amp_dynamic_scaler_interface(struct amp_dynamic_scaler *scaler)
{
    return (struct amp_loss_scaler){&ops, scaler};
}
