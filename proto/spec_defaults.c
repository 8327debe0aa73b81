#include "proto/msg_model.h"

#include <stdlib.h>

/* A field that has its own flag. */
#define DEFAULT(s, f, value)                                                                                           \
    do {                                                                                                               \
        if (!(s)->has_##f)                                                                                             \
            (s)->f = (value);                                                                                          \
        (s)->has_##f = true;                                                                                           \
    } while (0)

/* An enum whose 0 means "not given". */
#define DEFAULT_ENUM(s, f, value)                                                                                      \
    do {                                                                                                               \
        if ((s)->f == 0)                                                                                               \
            (s)->f = (value);                                                                                          \
    } while (0)

/* A floor of 1, a cap of 2^24, and PyTorch's values for the rest. */
static void scaler_defaults(struct ampd_msg_scaler_spec *scaler)
{
    DEFAULT_ENUM(scaler, policy, AMPD_MSG_SCALER_POLICY_DYNAMIC);
    bool none = scaler->policy == AMPD_MSG_SCALER_POLICY_NONE;
    DEFAULT(scaler, init_scale, none ? 1.0f : 65536.0f);
    DEFAULT(scaler, growth_factor, 2.0f);
    DEFAULT(scaler, backoff_factor, 0.5f);
    DEFAULT(scaler, growth_interval, 2000);
    DEFAULT(scaler, hysteresis, 2);
    DEFAULT(scaler, min_scale, 1.0f);
    DEFAULT(scaler, max_scale, 16777216.0f);
}

/* PyTorch's values; Lion's are those of its paper. */
static double default_learning_rate(enum ampd_msg_optimizer_kind kind)
{
    switch (kind) {
    case AMPD_MSG_OPTIMIZER_KIND_SGD:
    case AMPD_MSG_OPTIMIZER_KIND_ADAGRAD:
    case AMPD_MSG_OPTIMIZER_KIND_RMSPROP:
        return 0.01;
    case AMPD_MSG_OPTIMIZER_KIND_LION:
        return 0.0001;
    default:
        return 0.001;
    }
}

/* Values that an optimizer does not use are filled in too, but for alpha, which specifications of before do not have. */
static void optimizer_defaults(struct ampd_msg_optimizer_spec *optimizer)
{
    DEFAULT_ENUM(optimizer, kind, AMPD_MSG_OPTIMIZER_KIND_ADAMW);
    DEFAULT(optimizer, learning_rate, default_learning_rate(optimizer->kind));
    DEFAULT(optimizer, beta1, 0.9);
    DEFAULT(optimizer, beta2, optimizer->kind == AMPD_MSG_OPTIMIZER_KIND_LION ? 0.99 : 0.999);
    DEFAULT(optimizer, epsilon, optimizer->kind == AMPD_MSG_OPTIMIZER_KIND_ADAGRAD ? 1e-10 : 1e-8);
    DEFAULT(optimizer, weight_decay, optimizer->kind == AMPD_MSG_OPTIMIZER_KIND_ADAMW ? 0.01 : 0.0);
    if (optimizer->kind == AMPD_MSG_OPTIMIZER_KIND_RMSPROP)
        DEFAULT(optimizer, alpha, 0.99);
}

static void group_defaults(struct ampd_msg_parameter_group *group, const struct ampd_msg_optimizer_spec *optimizer)
{
    DEFAULT(group, learning_rate_factor, 1.0);
    DEFAULT(group, weight_decay, optimizer->weight_decay);
}

int ampd_msg_model_spec_defaults(struct ampd_msg_model_spec *spec)
{
    if (spec->groups.count == 0) {
        struct ampd_msg_parameter_group *group = calloc(1, sizeof(*group));
        if (group == NULL)
            return AMP_ENOMEM;
        free(spec->groups.items);
        spec->groups = (struct ampd_msg_parameter_group_list){.items = group, .count = 1};
    }
    spec->has_optimizer = spec->has_schedule = spec->has_clip = spec->has_scaler = true;
    optimizer_defaults(&spec->optimizer);
    for (size_t i = 0; i < spec->groups.count; i++)
        group_defaults(&spec->groups.items[i], &spec->optimizer);
    DEFAULT_ENUM(&spec->schedule, kind, AMPD_MSG_SCHEDULE_KIND_CONSTANT);
    DEFAULT(&spec->schedule, gamma, 0.1);
    DEFAULT_ENUM(&spec->clip, scope, AMPD_MSG_CLIP_SCOPE_GLOBAL);
    scaler_defaults(&spec->scaler);
    DEFAULT_ENUM(spec, sync_mode, AMPD_MSG_SYNC_MODE_SYNC);
    DEFAULT_ENUM(spec, on_loss, AMPD_MSG_ON_LOSS_WAIT);
    DEFAULT(spec, loss_timeout_ms, 600000);
    DEFAULT(spec, min_workers, 1);
    DEFAULT_ENUM(spec, weighting, AMPD_MSG_WEIGHTING_EQUAL);
    DEFAULT_ENUM(spec, cast_dtype, AMPD_MSG_DTYPE_F16);
    DEFAULT_ENUM(spec, cast_overflow, AMPD_MSG_CAST_OVERFLOW_REPORT);
    DEFAULT_ENUM(spec, floor_policy, AMPD_MSG_FLOOR_POLICY_CLAMP);
    DEFAULT(spec, max_consecutive_overflows, 50);
    DEFAULT(spec, checkpoint_every, 100);
    DEFAULT(spec, keep_last, 3);
    DEFAULT_ENUM(spec, durability, AMPD_MSG_DURABILITY_CHECKPOINT);
    return 0;
}
