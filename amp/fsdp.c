/*
 * Mixed precision around gather and scatter: casts that keep the tensor where the dtype is right, and a dynamic scale.
 */
#include "amp/fsdp.h"

#include "amp/given.h"
#include "amp/grad.h"
#include "amp/scaler_fields.h"

#include <stdlib.h>
#include <string.h>

/* ---- configuration ---- */

struct amp_fsdp_config amp_fsdp_config_default(void)
{
    return (struct amp_fsdp_config){.enabled = true,
                                    .forward_dtype = AMP_F16,
                                    .backward_dtype = AMP_F32,
                                    .use_loss_scaling = true,
                                    .initial_loss_scale = 2.0f,
                                    .min_loss_scale = 1.0f,
                                    .max_loss_scale = 65536.0f,
                                    .loss_scale_growth_factor = 2.0f,
                                    .loss_scale_backoff_factor = 0.5f,
                                    .loss_scale_steps = 2000,
                                    .reduce_dtype = AMP_F32,
                                    .buffer_dtype = AMP_DTYPE_NONE,
                                    .cast_forward_inputs = true};
}

int amp_fsdp_config_preset(enum amp_fsdp_preset preset, struct amp_fsdp_config *config, struct amp_error *error)
{
    bool bf16 = preset == AMP_FSDP_BF16 || preset == AMP_FSDP_BF16_PURE;
    bool pure = preset == AMP_FSDP_FP16_PURE || preset == AMP_FSDP_BF16_PURE;
    int rc = amp_given(config, "config", error);
    if (rc != 0)
        return rc;
    if ((unsigned)preset > AMP_FSDP_FP32)
        return amp_error_set(error, AMP_EINVAL, NULL, "there is no FSDP preset %d: give one of enum amp_fsdp_preset",
                             (int)preset);
    *config = amp_fsdp_config_default();
    config->enabled = preset != AMP_FSDP_FP32;
    config->use_loss_scaling = config->enabled && !bf16;
    if (bf16)
        config->forward_dtype = AMP_BF16;
    if (pure) {
        config->reduce_dtype = config->buffer_dtype = config->forward_dtype;
        config->keep_low_precision_grads = true;
    }
    return 0;
}

static bool is_float(enum amp_dtype dtype)
{
    return dtype == AMP_F32 || dtype == AMP_F16 || dtype == AMP_BF16;
}

static struct amp_scaler_config scaler_of(const struct amp_fsdp_config *config)
{
    return (struct amp_scaler_config){.policy = AMP_SCALER_DYNAMIC,
                                      .init_scale = config->initial_loss_scale,
                                      .growth_factor = config->loss_scale_growth_factor,
                                      .backoff_factor = config->loss_scale_backoff_factor,
                                      .growth_interval = config->loss_scale_steps,
                                      .hysteresis = 1,
                                      .min_scale = config->min_loss_scale,
                                      .max_scale = config->max_loss_scale};
}

int amp_fsdp_config_check(const struct amp_fsdp_config *config, struct amp_error *error)
{
    static const struct amp_scaler_fields fields = {.init_scale = "initial_loss_scale",
                                                    .min_scale = "min_loss_scale",
                                                    .max_scale = "max_loss_scale",
                                                    .growth_factor = "loss_scale_growth_factor",
                                                    .backoff_factor = "loss_scale_backoff_factor",
                                                    .growth_interval = "loss_scale_steps"};
    if (config == NULL)
        return amp_error_set(error, AMP_EINVAL, NULL, "no FSDP mixed-precision config is given");
    if (config->forward_dtype != AMP_F16 && config->forward_dtype != AMP_BF16)
        return amp_error_set(error, AMP_EINVAL, NULL, "forward_dtype is %s, must be f16 or bf16",
                             amp_dtype_name(config->forward_dtype));
    if (config->backward_dtype != AMP_F32)
        return amp_error_set(error, AMP_EINVAL, NULL, "backward_dtype is %s, must be f32 for stability",
                             amp_dtype_name(config->backward_dtype));
    if (!is_float(config->reduce_dtype))
        return amp_error_set(error, AMP_EINVAL, NULL, "reduce_dtype is %s, must be f32, f16 or bf16",
                             amp_dtype_name(config->reduce_dtype));
    if (config->buffer_dtype != AMP_DTYPE_NONE && !is_float(config->buffer_dtype))
        return amp_error_set(error, AMP_EINVAL, NULL, "buffer_dtype is %s, must be f32, f16, bf16 or none",
                             amp_dtype_name(config->buffer_dtype));
    struct amp_scaler_config scaler = scaler_of(config);
    return amp_scaler_config_check_as(&scaler, &fields, error);
}

/* ---- units ---- */

void amp_fsdp_unit_init(struct amp_fsdp_unit *unit, const char *name)
{
    *unit = (struct amp_fsdp_unit){.gathered_parameter = {.name = name}, .local_gradient = {.name = name}};
}

/* Frees the tensor's memory; its name stays. */
static void drop(struct amp_tensor *tensor)
{
    free(tensor->data);
    *tensor = (struct amp_tensor){.name = tensor->name};
}

/* Memory for `count` elements, at least one byte so that an empty tensor is there; NULL without memory. */
static void *room_for(size_t count, enum amp_dtype dtype)
{
    size_t bytes = count * amp_dtype_size(dtype);
    return malloc(bytes > 0 ? bytes : 1);
}

static int no_memory(struct amp_error *error, const struct amp_tensor *tensor)
{
    return amp_error_set(error, AMP_ENOMEM, NULL, "no memory for the %zu elements of \"%.100s\"", tensor->count,
                         amp_tensor_name(tensor));
}

static int check_present(const struct amp_tensor *tensor, struct amp_error *error)
{
    if (tensor == NULL)
        return amp_error_set(error, AMP_EINVAL, NULL, "the tensor is NULL: it must be given");
    if (tensor->data == NULL)
        return amp_error_set(error, AMP_EINVAL, NULL, "tensor \"%.100s\" has no data: it must be gathered or computed",
                             amp_tensor_name(tensor));
    return amp_tensors_check(tensor, 1, error);
}

static int set(struct amp_tensor *to, const struct amp_tensor *from, struct amp_error *error)
{
    int rc = check_present(from, error);
    if (rc != 0)
        return rc;
    if (from->data == to->data)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "\"%.100s\" is the unit's own tensor, which a new one replaces: give another's memory",
                             amp_tensor_name(from));
    void *data = room_for(from->count, from->dtype);
    if (data == NULL)
        return no_memory(error, from);
    memcpy(data, from->data, from->count * amp_dtype_size(from->dtype));
    drop(to);
    *to = (struct amp_tensor){to->name, data, from->count, from->dtype};
    return 0;
}

int amp_fsdp_unit_set_parameter(struct amp_fsdp_unit *unit, const struct amp_tensor *tensor, struct amp_error *error)
{
    int rc = amp_given(unit, "unit", error);
    if (rc != 0)
        return rc;
    return set(&unit->gathered_parameter, tensor, error);
}

int amp_fsdp_unit_set_gradient(struct amp_fsdp_unit *unit, const struct amp_tensor *tensor, struct amp_error *error)
{
    int rc = amp_given(unit, "unit", error);
    if (rc != 0)
        return rc;
    return set(&unit->local_gradient, tensor, error);
}

void amp_fsdp_unit_clear(struct amp_fsdp_unit *unit)
{
    drop(&unit->gathered_parameter);
    drop(&unit->local_gradient);
}

/* ---- the manager ---- */

int amp_fsdp_manager_init(struct amp_fsdp_manager *manager, const struct amp_fsdp_config *config,
                          const struct amp_fsdp *fsdp, struct amp_error *error)
{
    if (manager == NULL || fsdp == NULL || fsdp->kernels == NULL)
        return amp_error_set(error, AMP_EINVAL, NULL, "an FSDP manager needs memory and an fsdp with kernels");
    if (fsdp->rank >= fsdp->world_size)
        return amp_error_set(error, AMP_EINVAL, NULL, "rank is %lu, must be below world_size, %lu",
                             (unsigned long)fsdp->rank, (unsigned long)fsdp->world_size);
    int rc = amp_fsdp_config_check(config, error);
    if (rc != 0)
        return rc;
    *manager = (struct amp_fsdp_manager){.config = *config, .fsdp = fsdp, .scaler_config = scaler_of(config)};
    amp_fsdp_reset_loss_scale(manager);
    return 0;
}

/* Whether a tensor is wanted in another dtype than it has. */
static bool wants_cast(const struct amp_fsdp_manager *manager, const struct amp_tensor *tensor, enum amp_dtype dtype)
{
    return manager->config.enabled && tensor->dtype != dtype;
}

static int cast(const struct amp_fsdp_manager *manager, const struct amp_tensor *in, enum amp_dtype dtype, void *buffer,
                size_t buffer_bytes, struct amp_tensor *out, struct amp_error *error)
{
    int rc = check_present(in, error);
    if (rc != 0)
        return rc;
    if (!wants_cast(manager, in, dtype) || in->count == 0) {
        *out = *in;
        out->dtype = manager->config.enabled ? dtype : in->dtype;
        return 0;
    }
    struct amp_tensor to = {in->name, buffer, in->count, dtype};
    if (buffer == NULL || buffer_bytes / amp_dtype_size(dtype) < in->count)
        return amp_error_set(error, AMP_EINVAL, NULL, "the cast of \"%.100s\" needs a buffer for %zu elements of %s",
                             amp_tensor_name(in), in->count, amp_dtype_name(dtype));
    if (buffer == in->data)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "the buffer for the cast of \"%.100s\" is its own memory: give another",
                             amp_tensor_name(in));
    rc = amp_tensors_check_pairs(in, &to, 1, error);
    if (rc != 0)
        return rc;
    amp_tensor_copy(manager->fsdp->kernels, in, &to);
    *out = to;
    return 0;
}

int amp_fsdp_to_mixed_precision(const struct amp_fsdp_manager *manager, const struct amp_tensor *gathered, void *buffer,
                                size_t buffer_bytes, struct amp_tensor *out, struct amp_error *error)
{
    int rc = amp_both_given(manager, "manager", out, "out", error);
    if (rc != 0)
        return rc;
    return cast(manager, gathered, manager->config.forward_dtype, buffer, buffer_bytes, out, error);
}

int amp_fsdp_gradient_to_fp32(const struct amp_fsdp_manager *manager, const struct amp_tensor *gradient, void *buffer,
                              size_t buffer_bytes, struct amp_tensor *out, struct amp_error *error)
{
    int rc = amp_both_given(manager, "manager", out, "out", error);
    if (rc != 0)
        return rc;
    return cast(manager, gradient, manager->config.backward_dtype, buffer, buffer_bytes, out, error);
}

int amp_fsdp_gradient_to_reduce(const struct amp_fsdp_manager *manager, const struct amp_tensor *gradient, void *buffer,
                                size_t buffer_bytes, struct amp_tensor *out, struct amp_error *error)
{
    int rc = amp_both_given(manager, "manager", out, "out", error);
    if (rc != 0)
        return rc;
    return cast(manager, gradient, manager->config.reduce_dtype, buffer, buffer_bytes, out, error);
}

/* The dtype of a gradient that was reduced. */
static enum amp_dtype reduced_dtype(const struct amp_fsdp_manager *manager, const struct amp_tensor *gradient)
{
    return manager->config.keep_low_precision_grads && gradient != NULL ? gradient->dtype
                                                                        : manager->config.backward_dtype;
}

int amp_fsdp_gradient_reduced(const struct amp_fsdp_manager *manager, const struct amp_tensor *gradient, void *buffer,
                              size_t buffer_bytes, struct amp_tensor *out, struct amp_error *error)
{
    int rc = amp_both_given(manager, "manager", out, "out", error);
    if (rc != 0)
        return rc;
    return cast(manager, gradient, reduced_dtype(manager, gradient), buffer, buffer_bytes, out, error);
}

int amp_fsdp_cast_buffer(const struct amp_fsdp_manager *manager, const struct amp_tensor *tensor, void *buffer,
                         size_t buffer_bytes, struct amp_tensor *out, struct amp_error *error)
{
    int rc = amp_both_given(manager, "manager", out, "out", error);
    if (rc != 0)
        return rc;
    bool stays = manager->config.buffer_dtype == AMP_DTYPE_NONE && tensor != NULL;
    return cast(manager, tensor, stays ? tensor->dtype : manager->config.buffer_dtype, buffer, buffer_bytes, out,
                error);
}

int amp_fsdp_cast_input(const struct amp_fsdp_manager *manager, const struct amp_tensor *input, void *buffer,
                        size_t buffer_bytes, struct amp_tensor *out, struct amp_error *error)
{
    int rc = amp_both_given(manager, "manager", out, "out", error);
    if (rc != 0)
        return rc;
    bool stays = !manager->config.cast_forward_inputs && input != NULL;
    return cast(manager, input, stays ? input->dtype : manager->config.forward_dtype, buffer, buffer_bytes, out, error);
}

static bool scales(const struct amp_fsdp_manager *manager)
{
    return manager->config.enabled && manager->config.use_loss_scaling;
}

static bool has_server(const struct amp_fsdp_manager *manager)
{
    return manager->server_scale != 0;
}

int amp_fsdp_set_server_scale(struct amp_fsdp_manager *manager, float scale, struct amp_error *error)
{
    int rc = amp_given(manager, "manager", error);
    if (rc == 0)
        rc = amp_scale_check(scale, error);
    if (rc != 0)
        return rc;
    if (manager->own_scale_used)
        return amp_error_set(error, AMP_ESTATE, NULL,
                             "both would scale: this manager has used its own loss scale, %.9g, and the server divides "
                             "by its own, %.9g; call amp_fsdp_set_server_scale after each ampclient_step_begin, before "
                             "amp_fsdp_scale_loss, and after amp_fsdp_reset_loss_scale if the manager worked alone",
                             (double)manager->scaler.scale, (double)scale);
    manager->server_scale = scale;
    return 0;
}

int amp_fsdp_scale_loss(struct amp_fsdp_manager *manager, const struct amp_tensor *loss, const struct amp_tensor *out,
                        struct amp_error *error)
{
    int rc = amp_given(manager, "manager", error);
    if (rc != 0)
        return rc;
    if (!has_server(manager) && !scales(manager))
        return amp_grads_copy(manager->fsdp->kernels, loss, 1, out, error);
    rc = amp_loss_scale(manager->fsdp->kernels, loss, amp_fsdp_loss_scale(manager), out, error);
    if (rc == 0 && !has_server(manager))
        manager->own_scale_used = true;
    return rc;
}

int amp_fsdp_find_overflow(struct amp_fsdp_manager *manager, const struct amp_tensor *gradients, size_t n,
                           bool *overflow, struct amp_error *error)
{
    int rc = amp_both_given(manager, "manager", overflow, "overflow", error);
    if (rc != 0)
        return rc;
    bool found = false;
    rc = amp_tensors_check(gradients, n, error);
    if (rc == 0 && (scales(manager) || has_server(manager))) {
        rc = amp_grads_overflow(manager->fsdp->kernels, gradients, n, &found, error);
        if (rc == 0 && !has_server(manager))
            manager->own_scale_used = true;
    }
    if (rc == 0)
        *overflow = found;
    return rc;
}

int amp_fsdp_take_verdict(struct amp_fsdp_manager *manager, bool overflow_on_any_rank, struct amp_error *error)
{
    int rc = amp_given(manager, "manager", error);
    if (rc != 0 || !scales(manager) || has_server(manager))
        return rc;
    amp_scaler_update(&manager->scaler_config, &manager->scaler,
                      overflow_on_any_rank ? AMP_SCALER_OVERFLOW : AMP_SCALER_CLEAN);
    manager->own_scale_used = true;
    return 0;
}

int amp_fsdp_check_overflow(struct amp_fsdp_manager *manager, const struct amp_tensor *gradients, size_t n,
                            bool *overflow, struct amp_error *error)
{
    int rc = amp_fsdp_find_overflow(manager, gradients, n, overflow, error);
    return rc != 0 ? rc : amp_fsdp_take_verdict(manager, *overflow, error);
}

float amp_fsdp_loss_scale(const struct amp_fsdp_manager *manager)
{
    return has_server(manager) ? manager->server_scale : manager->scaler.scale;
}

void amp_fsdp_reset_loss_scale(struct amp_fsdp_manager *manager)
{
    amp_scaler_init(&manager->scaler_config, &manager->scaler);
    manager->own_scale_used = false;
}

/* ---- the integration ---- */

int amp_fsdp_integration_init(struct amp_fsdp_integration *integration, const struct amp_fsdp *fsdp,
                              const struct amp_fsdp_config *config, struct amp_error *error)
{
    struct amp_fsdp_config defaults = amp_fsdp_config_default();
    return amp_fsdp_manager_init(integration != NULL ? &integration->manager : NULL,
                                 config != NULL ? config : &defaults, fsdp, error);
}

/* Replaces a tensor of the unit by its cast, in memory of its own. */
static int replace(const struct amp_fsdp_manager *manager, struct amp_tensor *tensor, enum amp_dtype dtype,
                   struct amp_error *error)
{
    if (!wants_cast(manager, tensor, dtype))
        return 0;
    if (tensor->count == 0) { /* its one byte of memory is that of any dtype */
        tensor->dtype = dtype;
        return 0;
    }
    struct amp_tensor made;
    void *data = room_for(tensor->count, dtype);
    if (data == NULL)
        return no_memory(error, tensor);
    int rc = cast(manager, tensor, dtype, data, tensor->count * amp_dtype_size(dtype), &made, error);
    if (rc != 0) {
        free(data);
        return rc;
    }
    drop(tensor);
    *tensor = made;
    return 0;
}

int amp_fsdp_apply_mixed_precision(const struct amp_fsdp_integration *integration, struct amp_fsdp_unit *unit,
                                   struct amp_error *error)
{
    int rc = amp_both_given(integration, "integration", unit, "unit", error);
    if (rc != 0)
        return rc;
    if (unit->gathered_parameter.data == NULL)
        return amp_error_set(error, AMP_ESTATE, NULL, "\"%.100s\" must be gathered first",
                             amp_tensor_name(&unit->gathered_parameter));
    return replace(&integration->manager, &unit->gathered_parameter, integration->manager.config.forward_dtype, error);
}

static int check_gradient(const struct amp_fsdp_integration *integration, const struct amp_fsdp_unit *unit,
                          struct amp_error *error)
{
    int rc = amp_both_given(integration, "integration", unit, "unit", error);
    if (rc == 0 && unit->local_gradient.data == NULL)
        return amp_error_set(error, AMP_ESTATE, NULL, "the gradient of \"%.100s\" is not computed yet",
                             amp_tensor_name(&unit->local_gradient));
    return rc;
}

int amp_fsdp_apply_gradient_fp32(const struct amp_fsdp_integration *integration, struct amp_fsdp_unit *unit,
                                 struct amp_error *error)
{
    int rc = check_gradient(integration, unit, error);
    if (rc != 0)
        return rc;
    return replace(&integration->manager, &unit->local_gradient, integration->manager.config.backward_dtype, error);
}

int amp_fsdp_apply_reduce_dtype(const struct amp_fsdp_integration *integration, struct amp_fsdp_unit *unit,
                                struct amp_error *error)
{
    int rc = check_gradient(integration, unit, error);
    if (rc != 0)
        return rc;
    return replace(&integration->manager, &unit->local_gradient, integration->manager.config.reduce_dtype, error);
}

int amp_fsdp_apply_reduced(const struct amp_fsdp_integration *integration, struct amp_fsdp_unit *unit,
                           struct amp_error *error)
{
    int rc = check_gradient(integration, unit, error);
    if (rc != 0)
        return rc;
    return replace(&integration->manager, &unit->local_gradient,
                   reduced_dtype(&integration->manager, &unit->local_gradient), error);
}

int amp_fsdp_integration_scale_loss(struct amp_fsdp_integration *integration, const struct amp_tensor *loss,
                                    const struct amp_tensor *out, struct amp_error *error)
{
    int rc = amp_given(integration, "integration", error);
    if (rc != 0)
        return rc;
    return amp_fsdp_scale_loss(&integration->manager, loss, out, error);
}

int amp_fsdp_integration_check_overflow(struct amp_fsdp_integration *integration, const struct amp_tensor *gradients,
                                        size_t n, bool *overflow, struct amp_error *error)
{
    int rc = amp_given(integration, "integration", error);
    if (rc != 0)
        return rc;
    return amp_fsdp_check_overflow(&integration->manager, gradients, n, overflow, error);
}

struct amp_fsdp_manager *amp_fsdp_integration_manager(struct amp_fsdp_integration *integration)
{
    return &integration->manager;
}

/* ---- hooks ---- */

static int check_hooks(const struct amp_fsdp_hooks *hooks, const struct amp_fsdp_unit *units, size_t n,
                       struct amp_error *error)
{
    int rc = amp_given(hooks, "hooks", error);
    if (rc == 0)
        rc = amp_given(hooks->integration, "integration of the hooks", error);
    if (rc == 0 && (hooks->gather_cb == NULL || hooks->scatter_cb == NULL))
        rc = amp_error_set(error, AMP_EINVAL, NULL, "hooks need a gather_cb and a scatter_cb");
    return rc == 0 && n > 0 ? amp_given(units, "units", error) : rc;
}

static void drop_parameters(struct amp_fsdp_unit *units, size_t n)
{
    for (size_t i = 0; i < n; i++)
        drop(&units[i].gathered_parameter);
}

static bool have_parameters(const struct amp_fsdp_unit *units, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (units[i].gathered_parameter.data == NULL)
            return false;
    }
    return true;
}

static int gather(const struct amp_fsdp_hooks *hooks, struct amp_fsdp_unit *units, size_t n, struct amp_error *error)
{
    int rc = check_hooks(hooks, units, n, error);
    if (rc != 0)
        return rc;
    if (!have_parameters(units, n))
        rc = hooks->gather_cb(hooks->arg, units, n, error);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = amp_fsdp_apply_mixed_precision(hooks->integration, &units[i], error);
    if (rc != 0)
        drop_parameters(units, n);
    return rc;
}

int amp_fsdp_before_forward(const struct amp_fsdp_hooks *hooks, struct amp_fsdp_unit *units, size_t n,
                            struct amp_error *error)
{
    return gather(hooks, units, n, error);
}

int amp_fsdp_before_backward(const struct amp_fsdp_hooks *hooks, struct amp_fsdp_unit *units, size_t n,
                             struct amp_error *error)
{
    return gather(hooks, units, n, error);
}

int amp_fsdp_after_forward(const struct amp_fsdp_hooks *hooks, struct amp_fsdp_unit *units, size_t n,
                           struct amp_error *error)
{
    int rc = check_hooks(hooks, units, n, error);
    if (rc == 0)
        drop_parameters(units, n);
    return rc;
}

int amp_fsdp_after_backward(const struct amp_fsdp_hooks *hooks, struct amp_fsdp_unit *units, size_t n,
                            struct amp_error *error)
{
    int rc = check_hooks(hooks, units, n, error);
    if (rc != 0)
        return rc;
    drop_parameters(units, n);
    size_t gradients = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        if (units[i].local_gradient.data == NULL)
            continue;
        gradients++;
        rc = amp_fsdp_apply_reduce_dtype(hooks->integration, &units[i], error);
    }
    if (rc == 0 && gradients == 0)
        rc = amp_error_set(error, AMP_ESTATE, NULL, "none of the %zu units has a gradient: backward comes first", n);
    if (rc == 0)
        rc = hooks->scatter_cb(hooks->arg, units, n, error);
    for (size_t i = 0; rc == 0 && i < n; i++)
        drop(&units[i].local_gradient);
    return rc;
}
