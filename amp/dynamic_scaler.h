/*
 * A loss scaler that lowers its scale after an overflow and raises it after a run of clean steps.
 *
 * The machine is the `dynamic` policy of amp/scaler.h, the same that the server runs: overflow: scale = max(scale *
 * backoff, min), the step is skipped; after growth_interval clean steps: scale = min(scale * growth, max).
 *
 * A scaler is caller memory, initialised once, with nothing to close. One thread at a time. Errors: those of
 * amp/grad.h; after a failure nothing has been written and the state has not moved. A disabled scaler checks nothing,
 * changes nothing and never reports an overflow.
 *
 * Source: the specification of the dynamic loss scaler, with the differences that docs/specs.md lists.
 */
#ifndef AMP_DYNAMIC_SCALER_H
#define AMP_DYNAMIC_SCALER_H

#include "amp/loss_scaler.h"
#include "amp/scaler.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a user chooses. Unlike a server's specification every field counts as it is: 0 is not "the default". */
struct amp_dynamic_options {
    bool enable_dynamic_loss_scaling;
    float initial_loss_scale;           /* within [min_loss_scale, max_loss_scale] */
    float growth_factor;                /* finite, above 1 */
    float backoff_factor;               /* in (0, 1) */
    uint32_t growth_interval;           /* clean steps, at least 1 */
    float min_loss_scale;               /* at least 2^-126 */
    float max_loss_scale;               /* finite, at least min_loss_scale */
    uint32_t max_consecutive_overflows; /* from this many in a row training is not stable; at least 1 */
};

/* For f16: enabled, from 2^16 within [1, 2^24], times 2 every 2000 clean steps, half at overflow, stable below 50. */
struct amp_dynamic_options amp_dynamic_options_fp16(void);

/*
 * 0; AMP_EINVAL with a text that names the field and its range; or for NULL. Checked whether enabled or not. Pure; any
 * thread.
 */
int amp_dynamic_options_check(const struct amp_dynamic_options *options, struct amp_error *error);

struct amp_dynamic_scaler {
    const struct amp_kernels *kernels; /* borrowed */
    struct amp_dynamic_options options;
    struct amp_scaler_config config; /* the options, as the machine takes them */
    struct amp_scaler_state state;
};

/*
 * Makes a scaler in its initial state; the options are copied (NULL: amp_dynamic_options_fp16). AMP_EINVAL for options
 * that do not pass their check and for scaler or kernels NULL; the scaler is then as it was.
 */
int amp_dynamic_scaler_init(struct amp_dynamic_scaler *scaler, const struct amp_kernels *kernels,
                            const struct amp_dynamic_options *options, struct amp_error *error);

/* The scale in use now, whether enabled or not. */
float amp_dynamic_scaler_scale(const struct amp_dynamic_scaler *scaler);

/* Overflows since the last clean step. */
uint32_t amp_dynamic_scaler_consecutive_overflows(const struct amp_dynamic_scaler *scaler);
/* Clean steps since the last overflow or growth: by the specification a growth restarts the count. */
uint32_t amp_dynamic_scaler_steps_since_overflow(const struct amp_dynamic_scaler *scaler);

/* Overflows since the scaler was made or reset. */
uint64_t amp_dynamic_scaler_total_overflows(const struct amp_dynamic_scaler *scaler);

/* Whether it scales at all. */
bool amp_dynamic_scaler_enabled(const struct amp_dynamic_scaler *scaler);

/* *out = *loss * scale, before backward (amp_loss_scale). out may be the loss itself. */
int amp_dynamic_scaler_scale_loss(const struct amp_dynamic_scaler *scaler, const struct amp_tensor *loss,
                                  const struct amp_tensor *out, struct amp_error *error);

/*
 * out[i] = gradients[i] / scale (amp_grads_unscale); out may be the gradients themselves. *overflow, unless NULL:
 * whether an input or a result is Inf or NaN.
 */
int amp_dynamic_scaler_unscale(const struct amp_dynamic_scaler *scaler, const struct amp_tensor *gradients, size_t n,
                               const struct amp_tensor *out, bool *overflow, struct amp_error *error);

/* *overflow: whether any gradient has an Inf or NaN, with early exit (amp_grads_overflow); false if disabled. */
int amp_dynamic_scaler_check_overflow(const struct amp_dynamic_scaler *scaler, const struct amp_tensor *gradients,
                                      size_t n, bool *overflow, struct amp_error *error);

/* Moves the state by one step. Returns whether the step has to be skipped: `overflow`, and false if disabled. */
bool amp_dynamic_scaler_update(struct amp_dynamic_scaler *scaler, bool overflow);

/* As check_overflow and then update. *skip: whether the step has to be skipped. */
int amp_dynamic_scaler_check_and_update(struct amp_dynamic_scaler *scaler, const struct amp_tensor *gradients, size_t n,
                                        bool *skip, struct amp_error *error);

/* Back to the initial state: scale, trackers and counts. */
void amp_dynamic_scaler_reset(struct amp_dynamic_scaler *scaler);

/*
 * The state of a scaler without its options, for a checkpoint: plain memory without padding, which may be written as it
 * is and read on machines of the same byte order.
 */
struct amp_dynamic_saved {
    uint32_t version; /* AMP_DYNAMIC_SAVED_VERSION */
    float scale;
    uint32_t growth_tracker; /* the other fields: those of struct amp_scaler_state */
    uint32_t consecutive_overflows;
    uint64_t scale_id, total_overflows, steps_since_overflow, attempted, applied, skipped;
};
#define AMP_DYNAMIC_SAVED_VERSION 1

/* Sets *saved to the present state. A scaler that loads it continues with the same scales. `saved` is not kept. */
int amp_dynamic_scaler_save(const struct amp_dynamic_scaler *scaler, struct amp_dynamic_saved *saved,
                            struct amp_error *error);

/*
 * Continues from a saved state, with the scaler's own options. Every field is checked against these options and against
 * the other fields: AMP_EINVAL with a text that names the first impossible one and the remedy; the scaler then does not
 * change.
 */
int amp_dynamic_scaler_load(struct amp_dynamic_scaler *scaler, const struct amp_dynamic_saved *saved,
                            struct amp_error *error);

/* How the scaler has behaved. */
struct amp_dynamic_stats {
    float current_scale;
    uint32_t steps_since_last_overflow; /* see amp_dynamic_scaler_steps_since_overflow */
    uint32_t consecutive_overflows;
    uint64_t total_overflows;
    uint32_t growth_interval;
    uint32_t max_consecutive_overflows;
    bool is_stable; /* consecutive_overflows < max_consecutive_overflows */
};

/* The statistics now. */
struct amp_dynamic_stats amp_dynamic_scaler_stats(const struct amp_dynamic_scaler *scaler);

/*
 * "Scale: 65536.00, Steps since overflow: 0, Consecutive overflows: 0, Total overflows: 0, Stable: True", with the
 * locale's decimal point. Writes at most `size` bytes with the final zero, and returns the length of the whole text,
 * as snprintf. Pure; any thread.
 */
size_t amp_dynamic_stats_text(const struct amp_dynamic_stats *stats, char *text, size_t size);

/* The scaler as an amp_loss_scaler, which borrows it. */
struct amp_loss_scaler amp_dynamic_scaler_interface(struct amp_dynamic_scaler *scaler);

#ifdef __cplusplus
}
#endif

#endif
