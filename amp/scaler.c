/*
 * Loss-scale policies as rows of one table, and one machine that reads it.
 *
 * What differs between policies is when an overflow backs off, when forgiveness comes back, and how long a clean run
 * has to be. hysteresis H means that the H-th counted overflow backs off and the H - 1 before it are forgiven: they
 * still skip their step and end the clean run, but leave the scale. The counter hysteresis_left falls from H to 1; at 1
 * the next overflow backs off, and it stays 1 until the row's refill.
 *
 *   policy                  H    refilled to H by             grows at the end of
 *   dynamic                 1    -                            growth_interval clean steps
 *   megatron                H    growth                       growth_interval clean steps
 *   deepspeed               H    growth                       one clean step more, counted from an overflow
 *   deepspeed_consecutive   H    each clean step              one clean step more, counted from an overflow
 *   apex_hysteresis         H    each clean step              growth_interval clean steps
 *   paddle                  H    each clean step, backing off growth_interval clean steps
 *   static, none            neither moves the scale; an overflow still skips the step
 *
 * dynamic is torch's GradScaler with a floor and a cap. DeepSpeed tests the clean steps *before* the present one
 * (fp16/loss_scaler.py, stable_interval), hence its one step more after each overflow and after the start, and
 * growth_interval steps from one growth to the next. Megatron's and Apex's own counters go below 1; nothing can be
 * seen of that, so one counter serves all.
 *
 * What is common is done once, whatever the policy: counts, floor, cap, the finite guard (a grown scale that is not
 * finite is not taken, as in torch) and the scale id. At the floor an overflow goes on counting and skipping,
 * forgiveness is spent and refilled as above, and scale and id stay: none of the originals' other ends (an exception, a
 * decay to zero) exists here.
 */
#include "amp/scaler.h"

#include "amp/given.h"
#include "amp/scaler_fields.h"

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

/* When hysteresis_left goes back to hysteresis. */
enum refill { REFILL_NEVER = 0, REFILL_CLEAN = 1, REFILL_GROWTH = 2, REFILL_BACKOFF = 4 };

struct policy_row {
    const char *name;
    bool moves;      /* overflow and clean steps change the scale */
    bool forgives;   /* has hysteresis; else every overflow backs off */
    bool grows_late; /* the first clean step after an overflow or the start is not counted */
    unsigned refill; /* of enum refill */
};

static const struct policy_row policies[] = {
    [AMP_SCALER_POLICY_UNSET] = {"unset", false, false, false, REFILL_NEVER},
    [AMP_SCALER_DYNAMIC] = {"dynamic", true, false, false, REFILL_NEVER},
    [AMP_SCALER_STATIC] = {"static", false, false, false, REFILL_NEVER},
    [AMP_SCALER_NONE] = {"none", false, false, false, REFILL_NEVER},
    [AMP_SCALER_MEGATRON] = {"megatron", true, true, false, REFILL_GROWTH},
    [AMP_SCALER_DEEPSPEED] = {"deepspeed", true, true, true, REFILL_GROWTH},
    [AMP_SCALER_DEEPSPEED_CONSECUTIVE] = {"deepspeed_consecutive", true, true, true, REFILL_CLEAN},
    [AMP_SCALER_APEX_HYSTERESIS] = {"apex_hysteresis", true, true, false, REFILL_CLEAN},
    [AMP_SCALER_PADDLE] = {"paddle", true, true, false, REFILL_CLEAN | REFILL_BACKOFF},
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
    return amp_error_set(error, AMP_EINVAL, NULL, "%s is %g, must be %s", field, (double)value, range);
}

int amp_scaler_config_check_as(const struct amp_scaler_config *c, const struct amp_scaler_fields *fields,
                               struct amp_error *error)
{
    /* Normal numbers alone: 1 / scale of a denormal would be Inf. */
    if (!(isfinite(c->min_scale) && c->min_scale >= FLT_MIN))
        return bad(error, fields->min_scale, c->min_scale, "finite and at least 2^-126");
    if (!(isfinite(c->max_scale) && c->max_scale >= c->min_scale))
        return amp_error_set(error, AMP_EINVAL, NULL, "%s is %g, must be finite and at least %s", fields->max_scale,
                             (double)c->max_scale, fields->min_scale);
    if (!(c->init_scale >= c->min_scale && c->init_scale <= c->max_scale))
        return amp_error_set(error, AMP_EINVAL, NULL, "%s is %.9g, must be within [%s, %s], which is [%.9g, %.9g]",
                             fields->init_scale, (double)c->init_scale, fields->min_scale, fields->max_scale,
                             (double)c->min_scale, (double)c->max_scale);
    if (c->policy == AMP_SCALER_NONE && c->init_scale != 1)
        return bad(error, fields->init_scale, c->init_scale, "1 under the policy none");
    if (!(isfinite(c->growth_factor) && c->growth_factor > 1))
        return bad(error, fields->growth_factor, c->growth_factor, "finite and above 1");
    if (!(c->backoff_factor > 0 && c->backoff_factor < 1))
        return bad(error, fields->backoff_factor, c->backoff_factor, "in (0, 1)");
    if (c->growth_interval == 0)
        return amp_error_set(error, AMP_EINVAL, NULL, "%s is 0, must be at least 1", fields->growth_interval);
    if (c->hysteresis == 0)
        return amp_error_set(error, AMP_EINVAL, NULL, "scaler.hysteresis is 0, must be at least 1");
    return 0;
}

int amp_scaler_config_check(const struct amp_scaler_config *c, struct amp_error *error)
{
    /* As a model's specification calls them. */
    static const struct amp_scaler_fields fields = {.init_scale = "scaler.init_scale",
                                                    .min_scale = "scaler.min_scale",
                                                    .max_scale = "scaler.max_scale",
                                                    .growth_factor = "scaler.growth_factor",
                                                    .backoff_factor = "scaler.backoff_factor",
                                                    .growth_interval = "scaler.growth_interval"};
    int rc = amp_given(c, "config", error);
    if (rc != 0)
        return rc;
    if ((unsigned)c->policy >= POLICIES || c->policy == AMP_SCALER_POLICY_UNSET)
        return amp_error_set(error, AMP_EINVAL, NULL, "scaler.policy %d is unknown: use %s to %s (1 to %d)",
                             (int)c->policy, policies[AMP_SCALER_DYNAMIC].name, policies[POLICIES - 1].name,
                             (int)POLICIES - 1);
    return amp_scaler_config_check_as(c, &fields, error);
}

void amp_scaler_init(const struct amp_scaler_config *config, struct amp_scaler_state *state)
{
    *state =
        (struct amp_scaler_state){.scale = config->init_scale, .scale_id = 1, .hysteresis_left = config->hysteresis};
}

/* Takes the wanted scale if it is finite, within floor and cap; a new value gets a new id. */
static void set_scale(const struct amp_scaler_config *config, struct amp_scaler_state *state, float wanted)
{
    float scale = isfinite(wanted) ? wanted : state->scale;
    if (scale < config->min_scale)
        scale = config->min_scale;
    if (scale > config->max_scale)
        scale = config->max_scale;
    if (memcmp(&scale, &state->scale, sizeof scale) == 0)
        return;
    state->scale = scale;
    state->scale_id++;
}

static void refill(const struct policy_row *policy, const struct amp_scaler_config *config,
                   struct amp_scaler_state *state, enum refill when)
{
    if (policy->refill & when)
        state->hysteresis_left = config->hysteresis;
}

static void overflowed(const struct policy_row *policy, const struct amp_scaler_config *config,
                       struct amp_scaler_state *state)
{
    state->growth_tracker = 0;
    if (policy->forgives && state->hysteresis_left > 1) {
        state->hysteresis_left--;
        return;
    }
    set_scale(config, state, state->scale * config->backoff_factor);
    refill(policy, config, state, REFILL_BACKOFF);
}

/*
 * The tracker counts the clean steps before this one that count towards growth. Where growth is late it reaches
 * growth_interval itself, and the step that grows is already the first of the next run.
 */
static void went_well(const struct policy_row *policy, const struct amp_scaler_config *config,
                      struct amp_scaler_state *state)
{
    refill(policy, config, state, REFILL_CLEAN);
    if (state->growth_tracker < config->growth_interval - (policy->grows_late ? 0 : 1)) {
        state->growth_tracker++;
        return;
    }
    state->growth_tracker = policy->grows_late ? 1 : 0;
    refill(policy, config, state, REFILL_GROWTH);
    set_scale(config, state, state->scale * config->growth_factor);
}

int amp_scaler_state_check(const struct amp_scaler_config *config, const struct amp_scaler_state *state,
                           struct amp_error *error)
{
    if (!(state->scale >= config->min_scale && state->scale <= config->max_scale)) /* nor NaN */
        return amp_error_set(error, AMP_EINVAL, NULL, "scale is %.9g, must be within [%.9g, %.9g]",
                             (double)state->scale, (double)config->min_scale, (double)config->max_scale);
    if (config->policy == AMP_SCALER_NONE && state->scale != 1)
        return bad(error, "scale", state->scale, "1 under the policy none");
    if (state->scale_id == 0 || state->scale_id == UINT64_MAX)
        return amp_error_set(error, AMP_EINVAL, NULL, "scale_id must be from 1 to 2^64 - 2");
    bool too_many = policies[config->policy].forgives && state->hysteresis_left > config->hysteresis;
    if (state->hysteresis_left == 0 || too_many)
        return amp_error_set(error, AMP_EINVAL, NULL, "hysteresis_left is %u, must be within [1, %u]",
                             state->hysteresis_left, config->hysteresis);
    if (state->applied > state->attempted || state->skipped != state->attempted - state->applied)
        return amp_error_set(error, AMP_EINVAL, NULL, "applied + skipped must equal attempted");
    if (state->total_overflows > state->skipped || state->consecutive_overflows > state->total_overflows ||
        state->steps_since_overflow > state->attempted)
        return amp_error_set(error, AMP_EINVAL, NULL, "there are more overflows than steps could have had");
    return 0;
}

void amp_scaler_count(struct amp_scaler_state *state, enum amp_scaler_outcome outcome)
{
    state->attempted++;
    if (outcome == AMP_SCALER_CLEAN) {
        state->applied++;
        state->consecutive_overflows = 0;
        state->steps_since_overflow++;
        return;
    }
    state->skipped++;
    if (outcome == AMP_SCALER_EMPTY)
        return;
    state->total_overflows++;
    state->steps_since_overflow = 0;
    if (state->consecutive_overflows < UINT32_MAX)
        state->consecutive_overflows++;
}

int amp_scaler_set(const struct amp_scaler_config *config, struct amp_scaler_state *state, float scale,
                   struct amp_error *error)
{
    if (config->policy == AMP_SCALER_NONE && scale != 1)
        return amp_error_set(error, AMP_EINVAL, NULL, "scale: %.9g, but under the policy none it is always 1",
                             (double)scale);
    if (!(scale >= config->min_scale && scale <= config->max_scale))
        return amp_error_set(error, AMP_EINVAL, NULL, "scale: %.9g is not within [%.9g, %.9g], the model's range",
                             (double)scale, (double)config->min_scale, (double)config->max_scale);
    state->scale = scale;
    state->scale_id++;
    state->growth_tracker = 0;
    state->hysteresis_left = config->hysteresis;
    state->consecutive_overflows = 0;
    return 0;
}

void amp_scaler_reset(const struct amp_scaler_config *config, struct amp_scaler_state *state)
{
    (void)amp_scaler_set(config, state, config->init_scale, NULL); /* a checked config's is within its range */
}

void amp_scaler_update(const struct amp_scaler_config *config, struct amp_scaler_state *state,
                       enum amp_scaler_outcome outcome)
{
    const struct policy_row *policy = &policies[config->policy];
    amp_scaler_count(state, outcome);
    if (!policy->moves || outcome == AMP_SCALER_EMPTY)
        return;
    if (outcome == AMP_SCALER_CLEAN)
        went_well(policy, config, state);
    else
        overflowed(policy, config, state);
}

bool amp_scaler_at_floor(const struct amp_scaler_config *config, const struct amp_scaler_state *state)
{
    return policies[config->policy].moves && state->scale <= config->min_scale;
}

const char *amp_scaler_policy_name(enum amp_scaler_policy policy)
{
    return (unsigned)policy < POLICIES ? policies[policy].name : "unknown";
}
