/*
 * Loss-scale policies as one table-driven machine: the server's record and a library user's scaler move by it alone.
 * The state machines are those of PyTorch's GradScaler (dynamic), Megatron-LM, DeepSpeed, Apex and Paddle, each with a
 * floor and a cap, and a fixed scale. scaler.c has them as a table.
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

/* What a user chooses; zero fields are filled by amp_scaler_config_defaults. */
struct amp_scaler_config {
    enum amp_scaler_policy policy; /* default AMP_SCALER_DYNAMIC */
    float init_scale;              /* default 2^16; within [min_scale, max_scale] */
    float growth_factor;           /* default 2; > 1 */
    float backoff_factor;          /* default 0.5; in (0, 1) */
    uint32_t growth_interval;      /* default 2000 clean steps; >= 1 */
    uint32_t hysteresis;           /* default 2; >= 1. The overflow of this number backs off (MEGATRON and later) */
    float min_scale;               /* default 1; > 0 */
    float max_scale;               /* default 2^24; finite, >= min_scale */
};

/* The loss-scale record (docs/scalers.md). */
struct amp_scaler_state {
    float scale;              /* finite, in [min_scale, max_scale] */
    uint64_t scale_id;        /* rises by one each time the scale's value changes, or is set by hand */
    uint32_t growth_tracker;  /* clean steps towards the next growth */
    uint32_t hysteresis_left; /* hysteresis to 1: at 1 the next overflow backs off; of no meaning without forgiveness */
    uint32_t consecutive_overflows;
    uint64_t total_overflows;
    uint64_t steps_since_overflow;
    uint64_t attempted; /* decided steps */
    uint64_t applied;
    uint64_t skipped; /* overflow and empty */
};

enum amp_scaler_outcome { AMP_SCALER_CLEAN, AMP_SCALER_OVERFLOW, AMP_SCALER_EMPTY };

/* Fills absent (zero) fields with their defaults; `none` and `static` get what they need. */
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
 * Counts a decided step whose gradients carried another scale than the record's: one that was set while they were on
 * their way. It says nothing about the present scale, so the policy does not move. Pure; any thread.
 */
void amp_scaler_count(struct amp_scaler_state *state, enum amp_scaler_outcome outcome);

/*
 * Sets the scale by hand: the run of clean steps, forgiveness and the overflows in a row begin anew, the counts go on,
 * and the scale has a new id even if its value is the same. AMP_EINVAL with a text if the scale is not within
 * [min_scale, max_scale], or not 1 under the policy none; the state is then as before. Any thread.
 */
int amp_scaler_set(const struct amp_scaler_config *config, struct amp_scaler_state *state, float scale,
                   struct amp_error *error);

/*
 * The same with init_scale: the record is that of the policy's start, but for its id and the counts. Pure; any thread.
 */
void amp_scaler_reset(const struct amp_scaler_config *config, struct amp_scaler_state *state);

/*
 * Whether a record that comes from elsewhere can be one of a model with this config, which must have been checked: its
 * scale in the config's bounds, its counts of each other. 0, or AMP_EINVAL with a text that names the field. Pure; any
 * thread.
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
