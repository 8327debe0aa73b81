/*
 * Loss-scale policies as rows of a table.
 *
 * A row says what an overflow and what a clean step do to tracker, hysteresis and scale; all that is common (counts,
 * floor, cap, the finite guard, the scale id) is done once, in amp_scaler_update, whatever the policy:
 *
 *   dynamic  overflow: scale *= backoff, tracker = 0.  clean: tracker + 1; at growth_interval: scale *= growth, tracker = 0.
 *            This is torch's GradScaler with a floor and a cap. Where the grown scale is not finite, the old one stays.
 *   static   neither moves the scale; an overflow still skips the step.
 *   none     as static, with scale 1.
 *
 * The policies that keep hysteresis are named, so that a specification that asks for one is told it is not built.
 */
#include "amp/scaler.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#define DEFAULT_INIT_SCALE 0x1p16f
#define DEFAULT_GROWTH     2.0f
#define DEFAULT_BACKOFF    0.5f
#define DEFAULT_INTERVAL   2000u
#define DEFAULT_HYSTERESIS 2u
#define DEFAULT_MIN        1.0f
#define DEFAULT_MAX        0x1p24f

/* Moves tracker and hysteresis, and returns the scale that the policy wants, before floor, cap and guard. */
typedef float wish_fn(const struct amp_scaler_config *config, struct amp_scaler_state *state);

struct policy_row {
    const char *name;
    wish_fn *overflow; /* NULL: not built */
    wish_fn *clean;
};

static float back_off(const struct amp_scaler_config *config, struct amp_scaler_state *state)
{
    state->growth_tracker = 0;
    return state->scale * config->backoff_factor;
}

static float grow_after_interval(const struct amp_scaler_config *config, struct amp_scaler_state *state)
{
    state->growth_tracker++;
    if (state->growth_tracker < config->growth_interval)
        return state->scale;
    state->growth_tracker = 0;
    return state->scale * config->growth_factor;
}

static float keep(const struct amp_scaler_config *config, struct amp_scaler_state *state)
{
    return state->scale;
}

static const struct policy_row policies[] = {
    [AMP_SCALER_POLICY_UNSET] = {"unset", NULL, NULL},
    [AMP_SCALER_DYNAMIC] = {"dynamic", back_off, grow_after_interval},
    [AMP_SCALER_STATIC] = {"static", keep, keep},
    [AMP_SCALER_NONE] = {"none", keep, keep},
    [AMP_SCALER_MEGATRON] = {"megatron", NULL, NULL},
    [AMP_SCALER_DEEPSPEED] = {"deepspeed", NULL, NULL},
    [AMP_SCALER_DEEPSPEED_CONSECUTIVE] = {"deepspeed_consecutive", NULL, NULL},
    [AMP_SCALER_APEX_HYSTERESIS] = {"apex_hysteresis", NULL, NULL},
    [AMP_SCALER_PADDLE] = {"paddle", NULL, NULL},
};
#define POLICIES (sizeof policies / sizeof policies[0])

static void fill(float *field, float value)
{
    if (*field == 0)
        *field = value;
}

void amp_scaler_config_defaults(struct amp_scaler_config *c)
{
    if (c->policy == AMP_SCALER_POLICY_UNSET)
        c->policy = AMP_SCALER_DYNAMIC;
    fill(&c->init_scale, c->policy == AMP_SCALER_NONE ? 1.0f : DEFAULT_INIT_SCALE);
    fill(&c->growth_factor, DEFAULT_GROWTH);
    fill(&c->backoff_factor, DEFAULT_BACKOFF);
    fill(&c->min_scale, DEFAULT_MIN);
    fill(&c->max_scale, DEFAULT_MAX);
    if (c->growth_interval == 0)
        c->growth_interval = DEFAULT_INTERVAL;
    if (c->hysteresis == 0)
        c->hysteresis = DEFAULT_HYSTERESIS;
}

static int bad(struct amp_error *error, const char *field, float value, const char *range)
{
    return amp_error_set(error, AMP_EINVAL, NULL, "scaler.%s is %g, must be %s", field, (double)value, range);
}

int amp_scaler_config_check(const struct amp_scaler_config *c, struct amp_error *error)
{
    if ((unsigned)c->policy >= POLICIES || c->policy == AMP_SCALER_POLICY_UNSET)
        return amp_error_set(error, AMP_EINVAL, NULL, "scaler.policy %d is unknown: use dynamic, static or none",
                             (int)c->policy);
    if (policies[c->policy].overflow == NULL)
        return amp_error_set(error, AMP_EUNIMPLEMENTED, NULL,
                             "scaler.policy %s is not implemented: use dynamic, static or none",
                             policies[c->policy].name);
    /* Normal numbers alone: 1 / scale of a denormal would be Inf. */
    if (!(isfinite(c->min_scale) && c->min_scale >= FLT_MIN))
        return bad(error, "min_scale", c->min_scale, "finite and at least 2^-126");
    if (!(isfinite(c->max_scale) && c->max_scale >= c->min_scale))
        return bad(error, "max_scale", c->max_scale, "finite and at least scaler.min_scale");
    if (!(c->init_scale >= c->min_scale && c->init_scale <= c->max_scale))
        return bad(error, "init_scale", c->init_scale, "within [scaler.min_scale, scaler.max_scale]");
    if (c->policy == AMP_SCALER_NONE && c->init_scale != 1)
        return bad(error, "init_scale", c->init_scale, "1 under the policy none");
    if (!(isfinite(c->growth_factor) && c->growth_factor > 1))
        return bad(error, "growth_factor", c->growth_factor, "finite and above 1");
    if (!(c->backoff_factor > 0 && c->backoff_factor < 1))
        return bad(error, "backoff_factor", c->backoff_factor, "in (0, 1)");
    if (c->growth_interval == 0)
        return amp_error_set(error, AMP_EINVAL, NULL, "scaler.growth_interval is 0, must be at least 1");
    if (c->hysteresis == 0)
        return amp_error_set(error, AMP_EINVAL, NULL, "scaler.hysteresis is 0, must be at least 1");
    return 0;
}

void amp_scaler_init(const struct amp_scaler_config *config, struct amp_scaler_state *state)
{
    *state =
        (struct amp_scaler_state){.scale = config->init_scale, .scale_id = 1, .hysteresis_left = config->hysteresis};
}

/* Takes the wished scale if it is finite, within floor and cap; a new value gets a new id. */
static void set_scale(const struct amp_scaler_config *config, struct amp_scaler_state *state, float wish)
{
    float scale = isfinite(wish) ? wish : state->scale;
    if (scale < config->min_scale)
        scale = config->min_scale;
    if (scale > config->max_scale)
        scale = config->max_scale;
    if (memcmp(&scale, &state->scale, sizeof scale) == 0)
        return;
    state->scale = scale;
    state->scale_id++;
}

void amp_scaler_update(const struct amp_scaler_config *config, struct amp_scaler_state *state,
                       enum amp_scaler_outcome outcome)
{
    const struct policy_row *policy = &policies[config->policy];
    state->attempted++;
    switch (outcome) {
    case AMP_SCALER_CLEAN:
        state->applied++;
        state->consecutive_overflows = 0;
        state->steps_since_overflow++;
        set_scale(config, state, policy->clean(config, state));
        return;
    case AMP_SCALER_OVERFLOW:
        state->skipped++;
        state->total_overflows++;
        state->steps_since_overflow = 0;
        if (state->consecutive_overflows < UINT32_MAX)
            state->consecutive_overflows++;
        set_scale(config, state, policy->overflow(config, state));
        return;
    case AMP_SCALER_EMPTY:
        state->skipped++;
        return;
    }
}
