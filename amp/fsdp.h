/*
 * Mixed precision for fully sharded data parallel training: parameters in f16 or bf16 after they are gathered,
 * gradients in fp32 before they are scattered, and a loss scale of its own that moves by the machine of amp/scaler.h.
 *
 * The specification uses FSDP and its sharding unit and does not define them. Here `struct amp_fsdp` names a process of
 * a group, and `struct amp_fsdp_unit` owns one parameter as gathered and its local gradient; gathering and scattering
 * themselves are the caller's (with ampd: ampclient_gather and ampclient_scatter of client/ampclient.h). The hooks at
 * the end of this header call the caller's functions before and after forward and backward.
 *
 * Common rules. 0, or AMP_EINVAL with a text (a NULL that the specification forbids, a tensor that is not well formed,
 * see amp/tensor.h), AMP_ESTATE (a unit without what is to be converted), AMP_ENOMEM. After a failure nothing has
 * changed. Objects are used by one thread at a time, whatever its floating-point mode, with exceptions masked (the
 * default).
 *
 * Source: the specification of FSDP mixed precision, with the differences that docs/specs.md lists.
 */
#ifndef AMP_FSDP_H
#define AMP_FSDP_H

#include "amp/scaler.h"
#include "amp/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- configuration ---- */

struct amp_fsdp_config {
    bool enabled;                    /* default true; false: nothing is cast, checked or scaled but by a server */
    enum amp_dtype forward_dtype;    /* default f16; f16 or bf16 */
    enum amp_dtype backward_dtype;   /* default f32, and nothing else */
    bool use_loss_scaling;           /* default true */
    float initial_loss_scale;        /* default 2; within [min_loss_scale, max_loss_scale] */
    float min_loss_scale;            /* default 1; at least 2^-126 */
    float max_loss_scale;            /* default 65536; finite, at least min_loss_scale */
    float loss_scale_growth_factor;  /* default 2; finite, above 1 */
    float loss_scale_backoff_factor; /* default 0.5; in (0, 1) */
    uint32_t loss_scale_steps;       /* default 2000 steps without overflow before the scale grows; at least 1 */
    /* What torch's MixedPrecision has besides param_dtype, which is forward_dtype here. Read only if enabled. */
    enum amp_dtype reduce_dtype;   /* default f32: of gradients when they are scattered; f32, f16 or bf16 */
    enum amp_dtype buffer_dtype;   /* default none: buffers stay as they are; f32, f16 or bf16 */
    bool keep_low_precision_grads; /* default false: a gradient that was reduced becomes backward_dtype again */
    bool cast_forward_inputs;      /* default true: amp_fsdp_cast_input casts to forward_dtype */
};

/* The defaults, which are those of AMP_FSDP_FP16. Pure; any thread. */
struct amp_fsdp_config amp_fsdp_config_default(void);

/*
 * AMP_FSDP_FP16 and AMP_FSDP_BF16 compute in the low dtype and reduce in f32. The pure presets also reduce in the low
 * dtype, cast buffers to it and keep gradients in it: a scatter has half the bytes, and a group's sums are rounded to
 * that dtype (an ampd server always sums in f32). Only those of f16 scale the loss. AMP_FSDP_FP32 is a disabled config.
 */
enum amp_fsdp_preset { AMP_FSDP_FP16, AMP_FSDP_BF16, AMP_FSDP_FP16_PURE, AMP_FSDP_BF16_PURE, AMP_FSDP_FP32 };

/* *config = that of the preset, which passes amp_fsdp_config_check. AMP_EINVAL for NULL or no preset. Pure. */
int amp_fsdp_config_preset(enum amp_fsdp_preset preset, struct amp_fsdp_config *config, struct amp_error *error);

/* 0; AMP_EINVAL with a text that names the field and its range, or for NULL. Checked whether enabled or not. Pure. */
int amp_fsdp_config_check(const struct amp_fsdp_config *config, struct amp_error *error);

/* ---- the group's process, and one sharded parameter ---- */

struct amp_fsdp {
    const struct amp_kernels *kernels; /* borrowed */
    uint32_t rank;                     /* 0 to world_size - 1; for reports */
    uint32_t world_size;
};

/*
 * A parameter and its gradient, in memory of the unit (malloc). data NULL: not gathered, not computed. Zero-initialise,
 * or amp_fsdp_unit_init; what it holds is freed by amp_fsdp_unit_clear.
 */
struct amp_fsdp_unit {
    struct amp_tensor gathered_parameter;
    struct amp_tensor local_gradient;
};

/* Holds nothing yet. `name` is borrowed as long as the unit; may be NULL. */
void amp_fsdp_unit_init(struct amp_fsdp_unit *unit, const char *name);

/*
 * Copies a gathered parameter (or a local gradient) into the unit, and frees the one before. `tensor` stays the
 * caller's. AMP_EINVAL if it is missing, not well formed, or the very one that would be freed; AMP_ENOMEM.
 */
int amp_fsdp_unit_set_parameter(struct amp_fsdp_unit *unit, const struct amp_tensor *tensor, struct amp_error *error);
int amp_fsdp_unit_set_gradient(struct amp_fsdp_unit *unit, const struct amp_tensor *tensor, struct amp_error *error);

/* Frees what the unit holds (after a scatter); it may be used again. */
void amp_fsdp_unit_clear(struct amp_fsdp_unit *unit);

/* ---- the manager ---- */

struct amp_fsdp_manager {
    struct amp_fsdp_config config;
    const struct amp_fsdp *fsdp; /* borrowed */
    struct amp_scaler_config scaler_config;
    struct amp_scaler_state scaler;
    float server_scale;  /* of the step, by amp_fsdp_set_server_scale; 0: no server, the manager has its own */
    bool own_scale_used; /* a loss was scaled, or gradients judged, by the manager's own scale since init or reset */
};

/*
 * Makes a manager in caller memory, with nothing to close; the config is copied, `fsdp` borrowed as long as the
 * manager. AMP_EINVAL for NULL, for an fsdp without kernels or with rank >= world_size, and for a config that does not
 * pass its check.
 */
int amp_fsdp_manager_init(struct amp_fsdp_manager *manager, const struct amp_fsdp_config *config,
                          const struct amp_fsdp *fsdp, struct amp_error *error);

/*
 * *out = the gathered parameter in forward_dtype: the tensor itself, without a copy, if it has that dtype or the
 * manager is disabled, else cast (RNE, beyond the range to Inf) into `buffer`, whose memory *out then borrows. The
 * buffer is aligned for the dtype, does not overlap the tensor, and has room for buffer_bytes: AMP_EINVAL else.
 * AMP_EINVAL too for a missing tensor. An empty tensor needs no buffer: its memory stays.
 */
int amp_fsdp_to_mixed_precision(const struct amp_fsdp_manager *manager, const struct amp_tensor *gathered, void *buffer,
                                size_t buffer_bytes, struct amp_tensor *out, struct amp_error *error);

/* As amp_fsdp_to_mixed_precision, for a gradient and backward_dtype. */
int amp_fsdp_gradient_to_fp32(const struct amp_fsdp_manager *manager, const struct amp_tensor *gradient, void *buffer,
                              size_t buffer_bytes, struct amp_tensor *out, struct amp_error *error);

/*
 * As amp_fsdp_gradient_to_fp32, before and after a gradient is reduced over the group: to_reduce casts it to
 * reduce_dtype; reduced casts it back to backward_dtype, or leaves it as it is with keep_low_precision_grads.
 */
int amp_fsdp_gradient_to_reduce(const struct amp_fsdp_manager *manager, const struct amp_tensor *gradient, void *buffer,
                                size_t buffer_bytes, struct amp_tensor *out, struct amp_error *error);
int amp_fsdp_gradient_reduced(const struct amp_fsdp_manager *manager, const struct amp_tensor *gradient, void *buffer,
                              size_t buffer_bytes, struct amp_tensor *out, struct amp_error *error);

/*
 * As amp_fsdp_to_mixed_precision: cast a buffer of the model (such as a running mean) to buffer_dtype, and an input of
 * forward to forward_dtype.
 */
int amp_fsdp_cast_buffer(const struct amp_fsdp_manager *manager, const struct amp_tensor *tensor, void *buffer,
                         size_t buffer_bytes, struct amp_tensor *out, struct amp_error *error);
int amp_fsdp_cast_input(const struct amp_fsdp_manager *manager, const struct amp_tensor *input, void *buffer,
                        size_t buffer_bytes, struct amp_tensor *out, struct amp_error *error);

/*
 * With an ampd server, in each step right after ampclient_step_begin: from now on the scale is the server's, `scale`
 * that of the step (step.scale), whatever the config says, since the server divides by it. The verdict is the server's
 * too (ampclient_step_end). AMP_EINVAL for a scale that is not finite and at least 2^-126; AMP_ESTATE with the remedy
 * if this manager has scaled a loss or judged gradients by its own scale since init or reset: both would scale.
 */
int amp_fsdp_set_server_scale(struct amp_fsdp_manager *manager, float scale, struct amp_error *error);

/* *out = *loss * scale (amp_loss_scale); a copy without loss scaling and server. out may be the loss itself. */
int amp_fsdp_scale_loss(struct amp_fsdp_manager *manager, const struct amp_tensor *loss, const struct amp_tensor *out,
                        struct amp_error *error);

/*
 * *overflow: whether any of the n gradients has an Inf or NaN, missing ones passed over; and moves the loss scale by
 * one step: on an overflow max(min_loss_scale, scale * backoff), else after loss_scale_steps min(max_loss_scale, scale
 * * growth). Without loss scaling false, and nothing moves. With a server nothing moves either: *overflow is about this
 * worker's gradients, which are pushed all the same, for the server judges those of all workers. The gradients of a
 * scaled loss stay scaled: if the manager scales by itself unscale them by amp_fsdp_loss_scale before this call
 * (amp_grads_unscale_in_place), as it may move the scale; without loss scaling leave them as they are.
 */
int amp_fsdp_check_overflow(struct amp_fsdp_manager *manager, const struct amp_tensor *gradients, size_t n,
                            bool *overflow, struct amp_error *error);

/*
 * The two halves of amp_fsdp_check_overflow, for a group without a server: each rank looks for an overflow in its own
 * gradients, the group combines the findings (an all-reduce with max), and each rank takes the verdict of all, so that
 * all scales move alike. With a server amp_fsdp_take_verdict does nothing.
 */
int amp_fsdp_find_overflow(struct amp_fsdp_manager *manager, const struct amp_tensor *gradients, size_t n,
                           bool *overflow, struct amp_error *error);
int amp_fsdp_take_verdict(struct amp_fsdp_manager *manager, bool overflow_on_any_rank, struct amp_error *error);

/*
 * The scale in use now: the server's where one was set. Without loss scaling and server it is initial_loss_scale, by
 * which nothing is multiplied: do not unscale by it.
 */
float amp_fsdp_loss_scale(const struct amp_fsdp_manager *manager);

/* Back to initial_loss_scale, with all counts zero. A server's scale stays: it is set at the server. */
void amp_fsdp_reset_loss_scale(struct amp_fsdp_manager *manager);

/* ---- the integration: what to call after a gather and before a scatter ---- */

struct amp_fsdp_integration {
    struct amp_fsdp_manager manager;
};

/* Makes an integration in caller memory. config NULL: the defaults. Errors of amp_fsdp_manager_init. */
int amp_fsdp_integration_init(struct amp_fsdp_integration *integration, const struct amp_fsdp *fsdp,
                              const struct amp_fsdp_config *config, struct amp_error *error);

/*
 * After a gather: the unit's parameter becomes one of forward_dtype; the old memory is freed. AMP_ESTATE if it has not
 * been gathered; AMP_EINVAL for a NULL unit; AMP_ENOMEM, and the unit is as it was.
 */
int amp_fsdp_apply_mixed_precision(const struct amp_fsdp_integration *integration, struct amp_fsdp_unit *unit,
                                   struct amp_error *error);

/* Before a scatter: casts the unit's gradient to fp32 and frees the old memory. AMP_ESTATE if it was not computed. */
int amp_fsdp_apply_gradient_fp32(const struct amp_fsdp_integration *integration, struct amp_fsdp_unit *unit,
                                 struct amp_error *error);

/*
 * As amp_fsdp_apply_gradient_fp32: reduce_dtype casts the gradient to reduce_dtype before a scatter, and reduced casts
 * it back once the reduced gradient has arrived (amp_fsdp_gradient_reduced).
 */
int amp_fsdp_apply_reduce_dtype(const struct amp_fsdp_integration *integration, struct amp_fsdp_unit *unit,
                                struct amp_error *error);
int amp_fsdp_apply_reduced(const struct amp_fsdp_integration *integration, struct amp_fsdp_unit *unit,
                           struct amp_error *error);

/* Calls amp_fsdp_scale_loss with the integration's manager. */
int amp_fsdp_integration_scale_loss(struct amp_fsdp_integration *integration, const struct amp_tensor *loss,
                                    const struct amp_tensor *out, struct amp_error *error);

/* Calls amp_fsdp_check_overflow with the integration's manager. */
int amp_fsdp_integration_check_overflow(struct amp_fsdp_integration *integration, const struct amp_tensor *gradients,
                                        size_t n, bool *overflow, struct amp_error *error);

/* The integration's manager, which is borrowed and valid as long as the integration. */
struct amp_fsdp_manager *amp_fsdp_integration_manager(struct amp_fsdp_integration *integration);

/* ---- hooks: before and after forward and backward of the parameters that are gathered together ---- */

/*
 * How units come and go. gather_cb gives each of the n units its parameter (amp_fsdp_unit_set_parameter); scatter_cb
 * sends the gradients of those that have one (data not NULL), which it may read until it returns. Both return 0, or a
 * code that the hook returns as it is: negative, or 1 where the step is void (ampclient_gather). They are called on the
 * thread of the hook. What is behind them, one server or many shards, makes no difference to the hooks.
 */
struct amp_fsdp_hooks {
    const struct amp_fsdp_integration *integration; /* borrowed */
    void *arg;                                      /* passed to both; the caller's */
    int (*gather_cb)(void *arg, struct amp_fsdp_unit *units, size_t n, struct amp_error *error);
    int (*scatter_cb)(void *arg, const struct amp_fsdp_unit *units, size_t n, struct amp_error *error);
};

/*
 * Gathers the units, and casts each parameter to forward_dtype. If all units have their parameters already (forward did
 * not free them), gather_cb is not called. AMP_EINVAL for a NULL, also one in hooks: nothing is changed. After any
 * other failure no unit has a parameter: AMP_ESTATE if gather_cb left a unit out; AMP_ENOMEM; what gather_cb returned,
 * whatever that is.
 */
int amp_fsdp_before_forward(const struct amp_fsdp_hooks *hooks, struct amp_fsdp_unit *units, size_t n,
                            struct amp_error *error);
int amp_fsdp_before_backward(const struct amp_fsdp_hooks *hooks, struct amp_fsdp_unit *units, size_t n,
                             struct amp_error *error);

/* Frees the parameters; gradients stay. AMP_EINVAL for a NULL. */
int amp_fsdp_after_forward(const struct amp_fsdp_hooks *hooks, struct amp_fsdp_unit *units, size_t n,
                           struct amp_error *error);

/*
 * Frees the parameters, casts the gradients to reduce_dtype, scatters and frees them. A unit without a gradient is left
 * out; AMP_ESTATE if none has one. After a failure the parameters are freed, and the gradients are still there, some in
 * reduce_dtype; AMP_EINVAL, for a NULL, changes nothing.
 */
int amp_fsdp_after_backward(const struct amp_fsdp_hooks *hooks, struct amp_fsdp_unit *units, size_t n,
                            struct amp_error *error);

#ifdef __cplusplus
}
#endif

#endif
