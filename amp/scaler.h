/*
 * Loss-scale policies, as one state machine that is driven by a table (scaler.c). It is used by the server and by the
 * scalers of the library. The policies are those of PyTorch's GradScaler (dynamic), Megatron-LM, DeepSpeed, Apex and
 * Paddle, each with a lowest and a highest scale, and a fixed scale. docs/scalers.md describes them.
 */
#ifndef AMP_SCALER_H
#define AMP_SCALER_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers are part of the wire and file formats: never reuse one. */
enum amp_scaler_policy {
    AMP_SCALER_POLICY_UNSET = 0,
    AMP_SCALER_DYNAMIC = 1,
    AMP_SCALER_STATIC = 2,
    AMP_SCALER_NONE = 3, /* scale 1, never changed */
    AMP_SCALER_MEGATRON = 4,
    AMP_SCALER_DEEPSPEED = 5,
    AMP_SCALER_DEEPSPEED_CONSECUTIVE = 6,
    AMP_SCALER_APEX_HYSTERESIS = 7,
    AMP_SCALER_PADDLE = 8,
};

/* The settings of a policy. Fields that are zero are filled by amp_scaler_config_defaults. */
struct amp_scaler_config {
    enum amp_scaler_policy policy; /* default AMP_SCALER_DYNAMIC */
    float init_scale;              /* default 2^16; within [min_scale, max_scale] */
    float growth_factor;           /* default 2; > 1 */
    float backoff_factor;          /* default 0.5; in (0, 1) */
    uint32_t growth_interval;      /* default 2000 clean steps; >= 1 */
    uint32_t hysteresis;           /* default 2; >= 1. MEGATRON to PADDLE: overflows that it takes to lower the scale */
    float min_scale;               /* default 1; > 0 */
    float max_scale;               /* default 2^24; finite, >= min_scale */
};

/* The state of a loss scaler (docs/scalers.md). */
struct amp_scaler_state {
    float scale;              /* finite, in [min_scale, max_scale] */
    uint64_t scale_id;        /* rises by one each time the scale's value changes, or is set by hand */
    uint32_t growth_tracker;  /* clean steps towards the next growth */
    uint32_t hysteresis_left; /* from hysteresis down to 1; at 1 the next overflow lowers the scale; else unused */
    uint32_t consecutive_overflows; /* overflows since the last clean step */
    uint64_t total_overflows;
    uint64_t steps_since_overflow;
    uint64_t attempted; /* decided steps: applied + skipped */
    uint64_t applied;
    uint64_t skipped; /* because of an overflow, or because the step was empty */
};

enum amp_scaler_outcome { AMP_SCALER_CLEAN, AMP_SCALER_OVERFLOW, AMP_SCALER_EMPTY };

/* Fills fields that are zero with their defaults; init_scale is 1 for the policy NONE. */
void amp_scaler_config_defaults(struct amp_scaler_config *config);

/* 0, or AMP_EINVAL with a text that names the field and its range. Call after the defaults are filled. */
int amp_scaler_config_check(const struct amp_scaler_config *config, struct amp_error *error);

/* The state before the first step: init_scale, scale id 1, all counts zero. The config must have been checked. */
void amp_scaler_init(const struct amp_scaler_config *config, struct amp_scaler_state *state);

/*
 * Moves the state by one decided step. EMPTY counts as attempted and skipped and touches neither scale nor tracker.
 * scale_id rises when and only when the scale's bits change. Pure; any thread.
 */
void amp_scaler_update(const struct amp_scaler_config *config, struct amp_scaler_state *state,
                       enum amp_scaler_outcome outcome);

/*
 * Counts a decided step whose gradients had another scale than the state's, which was set while the step was open. The
 * step says nothing about the present scale, so the policy does not move. Pure; any thread.
 */
void amp_scaler_count(struct amp_scaler_state *state, enum amp_scaler_outcome outcome);

/*
 * Sets the scale by hand. growth_tracker, hysteresis_left and consecutive_overflows restart, the other counts go on,
 * and the scale gets a new id even if its value is the same. AMP_EINVAL with a text if the scale is not within
 * [min_scale, max_scale], or is not 1 with the policy NONE; the state then does not change. Any thread.
 */
int amp_scaler_set(const struct amp_scaler_config *config, struct amp_scaler_state *state, float scale,
                   struct amp_error *error);

/*
 * As amp_scaler_set with init_scale: the state is that of amp_scaler_init, except for the id and the counts that go on.
 * Pure; any thread.
 */
void amp_scaler_reset(const struct amp_scaler_config *config, struct amp_scaler_state *state);

/*
 * Checks a state that comes from outside, as from a file: its scale must be within the bounds of the config, which must
 * have been checked, and its counts must agree with each other. 0, or AMP_EINVAL with a text that names the field.
 * Pure; any thread.
 */
int amp_scaler_state_check(const struct amp_scaler_config *config, const struct amp_scaler_state *state,
                           struct amp_error *error);

/*
 * Whether the scale is at min_scale, so that a further overflow can only skip its step and count. False for policies
 * that never move the scale. Pure; any thread.
 */
bool amp_scaler_at_floor(const struct amp_scaler_config *config, const struct amp_scaler_state *state);

/*
 * "dynamic", "megatron", ...: as docs/scalers.md names it; "unset" and "unknown" otherwise. Constant text; any thread.
 */
const char *amp_scaler_policy_name(enum amp_scaler_policy policy);

#ifdef __cplusplus
}
#endif

#endif
