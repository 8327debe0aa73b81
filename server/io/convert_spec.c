/* Specifications between the schema's form, which tells absent from zero, and the core's. */
#include "server/io/check_spec.h"
#include "server/io/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Enums of both sides have the same numbers, so that casts are conversions; unknown numbers are for the core to refuse. */
_Static_assert((int)AMPD_MSG_OPTIMIZER_KIND_SGD == (int)AMPD_OPTIMIZER_SGD, "optimizers");
_Static_assert((int)AMPD_MSG_OPTIMIZER_KIND_ADAMW == (int)AMPD_OPTIMIZER_ADAMW, "optimizers");
_Static_assert((int)AMPD_MSG_OPTIMIZER_KIND_RMSPROP == (int)AMPD_OPTIMIZER_RMSPROP, "optimizers");
_Static_assert((int)AMPD_MSG_OPTIMIZER_KIND_LION == (int)AMPD_OPTIMIZER_LION, "optimizers");
_Static_assert((int)AMPD_MSG_SCHEDULE_KIND_COSINE == (int)AMPD_SCHEDULE_COSINE, "schedules");
_Static_assert((int)AMPD_MSG_CLIP_SCOPE_GROUP == (int)AMPD_CLIP_GROUP, "clip scopes");
_Static_assert((int)AMPD_MSG_SYNC_MODE_QUORUM == (int)AMPD_SYNC_QUORUM, "sync modes");
_Static_assert((int)AMPD_MSG_ON_LOSS_SHRINK == (int)AMPD_ON_LOSS_SHRINK, "losses");
_Static_assert((int)AMPD_MSG_WEIGHTING_PUSHED == (int)AMPD_WEIGHTING_PUSHED, "weightings");
_Static_assert((int)AMPD_MSG_CAST_OVERFLOW_SATURATE == (int)AMPD_CAST_SATURATE, "casts");
_Static_assert((int)AMPD_MSG_FLOOR_POLICY_FAIL == (int)AMPD_FLOOR_FAIL, "floors");
_Static_assert((int)AMPD_MSG_DURABILITY_STEP == (int)AMPD_DURABILITY_STEP, "durabilities");
_Static_assert((int)AMPD_MSG_SCALER_POLICY_PADDLE == (int)AMP_SCALER_PADDLE, "scalers");
_Static_assert((int)AMPD_MSG_DTYPE_BF16 == (int)AMP_BF16 && (int)AMPD_MSG_DTYPE_F32 == (int)AMP_F32, "dtypes");
_Static_assert((int)AMPD_MSG_MODEL_STATE_DONE == (int)AMPD_MODEL_DONE, "states");
_Static_assert((int)AMPD_MSG_VERDICT_LATE == (int)AMPD_VERDICT_LATE, "verdicts");
_Static_assert((int)AMPD_MSG_HISTORY_KIND_SCALE_RESET == (int)AMPD_ROW_RESET, "kinds of rows");

/* ---- from the wire ---- */

static void groups_from_msg(const struct ampd_msg_parameter_group_list *list, struct ampd_model_spec *spec)
{
    spec->groups_count = (uint32_t)list->count;
    for (size_t i = 0; i < list->count && i < AMPD_GROUPS_MAX; i++) {
        const struct ampd_msg_parameter_group *from = &list->items[i];
        spec->groups[i] =
            (struct ampd_group_spec){.lr_scale = from->has_learning_rate_factor ? from->learning_rate_factor : 1.0f,
                                     .weight_decay_set = from->has_weight_decay,
                                     .weight_decay = from->weight_decay,
                                     .clip_max_norm = from->has_max_norm ? from->max_norm : 0};
        memcpy(spec->groups[i].name, from->name, sizeof spec->groups[i].name);
    }
}

static int parameters_from_msg(const struct ampd_msg_parameter_spec_list *list, struct ampd_model_spec *spec)
{
    spec->parameters_count = (uint32_t)list->count;
    spec->parameters = calloc(list->count + 1, sizeof *spec->parameters);
    if (spec->parameters == NULL)
        return AMP_ENOMEM;
    for (size_t i = 0; i < list->count; i++) {
        const struct ampd_msg_parameter_spec *from = &list->items[i];
        struct ampd_parameter_spec *to = &spec->parameters[i];
        memcpy(to->name, from->name, sizeof to->name);
        to->dimensions = from->shape_count;
        memcpy(to->shape, from->shape, from->shape_count * sizeof *from->shape);
        to->group = from->group;
    }
    return 0;
}

struct amp_scaler_config io_scaler_from_msg(const struct ampd_msg_scaler_spec *message)
{
    return (struct amp_scaler_config){.policy = (enum amp_scaler_policy)message->policy,
                                      .init_scale = message->init_scale,
                                      .growth_factor = message->growth_factor,
                                      .backoff_factor = message->backoff_factor,
                                      .growth_interval = message->growth_interval,
                                      .hysteresis = message->hysteresis,
                                      .min_scale = message->min_scale,
                                      .max_scale = message->max_scale};
}

static void numerics_from_msg(const struct ampd_msg_model_spec *message, struct ampd_model_spec *spec)
{
    const struct ampd_msg_optimizer_spec *optimizer = &message->optimizer;
    const struct ampd_msg_schedule_spec *schedule = &message->schedule;
    spec->optimizer = (enum ampd_optimizer)optimizer->kind;
    spec->lr = optimizer->learning_rate;
    spec->beta1 = optimizer->beta1;
    spec->beta2 = optimizer->beta2;
    spec->eps = optimizer->epsilon;
    spec->weight_decay = optimizer->weight_decay;
    spec->weight_decay_set = optimizer->has_weight_decay;
    spec->momentum = optimizer->momentum;
    spec->dampening = optimizer->dampening;
    spec->nesterov = optimizer->nesterov;
    spec->alpha = optimizer->alpha;
    spec->centered = optimizer->centered;
    spec->lr_decay = optimizer->learning_rate_decay;
    spec->schedule = (enum ampd_schedule)schedule->kind;
    spec->warmup_steps = schedule->warmup_steps;
    spec->total_steps = schedule->total_steps;
    spec->step_every = schedule->step_size;
    spec->step_factor = schedule->has_gamma ? schedule->gamma : 0;
    spec->lr_min = schedule->min_learning_rate;
    spec->clip_value = message->clip.has_value ? message->clip.value : 0;
    spec->clip_max_norm = message->clip.has_max_norm ? message->clip.max_norm : 0;
    spec->clip_scope = (enum ampd_clip_scope)message->clip.scope;
    spec->scaler = io_scaler_from_msg(&message->scaler);
}

int io_spec_from_msg(struct ampd_msg_model_spec *message, struct ampd_model_spec *spec, struct amp_error *error)
{
    memset(spec, 0, sizeof *spec);
    int rc = io_check_spec(message, error);
    if (rc != 0)
        return rc;
    if (ampd_msg_model_spec_defaults(message) != 0 || parameters_from_msg(&message->parameters, spec) != 0)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for this specification");
    memcpy(spec->name, message->name, sizeof spec->name);
    groups_from_msg(&message->groups, spec);
    numerics_from_msg(message, spec);
    spec->world_size = message->world_size;
    spec->sync = (enum ampd_sync)message->sync_mode;
    spec->quorum = message->quorum;
    spec->on_loss = (enum ampd_on_loss)message->on_loss;
    spec->loss_timeout_ms = message->loss_timeout_ms;
    spec->min_workers = message->min_workers;
    spec->weighting = (enum ampd_weighting)message->weighting;
    spec->cast = (enum amp_dtype)message->cast_dtype;
    spec->cast_overflow = (enum ampd_cast_overflow)message->cast_overflow;
    spec->floor_policy = (enum ampd_floor_policy)message->floor_policy;
    spec->max_consecutive_overflows = message->max_consecutive_overflows;
    spec->max_steps = message->max_steps;
    bool on_demand = message->has_checkpoint_every && message->checkpoint_every == 0;
    spec->checkpoint_every = on_demand ? AMPD_CHECKPOINT_ON_DEMAND : message->checkpoint_every;
    spec->keep_last = message->keep_last;
    spec->keep_every = message->keep_every;
    spec->durability = (enum ampd_durability)message->durability;
    return 0;
}

/* ---- to the wire ---- */

/*
 * The shortest decimal number that is this float: 0.001 was given and is 0.001 again, not 0.00100000004749745. The same
 * float comes of both. (A member that is a double is given back as it is.)
 */
#define SHORTEST(member) (sizeof(member) == sizeof(float) ? shortest((float)(member)) : (double)(member))

static double shortest(float value)
{
    char text[32];
    double result = (double)value;
    for (int digits = 6; digits <= 9; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, (double)value);
        result = strtod(text, NULL);
        if ((float)result == value)
            return result;
    }
    return result;
}

static int parameters_to_msg(const struct ampd_model_spec *spec, struct ampd_msg_parameter_spec_list *list)
{
    list->items = calloc(spec->parameters_count + 1, sizeof *list->items);
    if (list->items == NULL)
        return AMP_ENOMEM;
    list->count = spec->parameters_count;
    for (uint32_t i = 0; i < spec->parameters_count; i++) {
        const struct ampd_parameter_spec *from = &spec->parameters[i];
        struct ampd_msg_parameter_spec *to = &list->items[i];
        memcpy(to->name, from->name, sizeof to->name);
        to->shape_count = from->dimensions;
        memcpy(to->shape, from->shape, from->dimensions * sizeof *from->shape);
        to->group = from->group;
    }
    return 0;
}

static int groups_to_msg(const struct ampd_model_spec *spec, struct ampd_msg_parameter_group_list *list)
{
    list->items = calloc(spec->groups_count + 1, sizeof *list->items);
    if (list->items == NULL)
        return AMP_ENOMEM;
    list->count = spec->groups_count;
    for (uint32_t i = 0; i < spec->groups_count; i++) {
        memcpy(list->items[i].name, spec->groups[i].name, sizeof list->items[i].name);
        list->items[i].has_learning_rate_factor = true;
        list->items[i].learning_rate_factor = SHORTEST(spec->groups[i].lr_scale);
        list->items[i].has_weight_decay = spec->groups[i].weight_decay_set;
        list->items[i].weight_decay = SHORTEST(spec->groups[i].weight_decay);
        list->items[i].has_max_norm = spec->groups[i].clip_max_norm != 0;
        list->items[i].max_norm = spec->groups[i].clip_max_norm;
    }
    return 0;
}

static void optimizer_to_msg(const struct ampd_model_spec *spec, struct ampd_msg_model_spec *message)
{
    bool lion = spec->optimizer == AMPD_OPTIMIZER_LION, rmsprop = spec->optimizer == AMPD_OPTIMIZER_RMSPROP;
    bool betas = lion || spec->optimizer == AMPD_OPTIMIZER_ADAMW || spec->optimizer == AMPD_OPTIMIZER_ADAM;
    message->has_optimizer = true;
    message->optimizer = (struct ampd_msg_optimizer_spec){.kind = (enum ampd_msg_optimizer_kind)spec->optimizer,
                                                          .has_learning_rate = true,
                                                          .learning_rate = SHORTEST(spec->lr),
                                                          .has_beta1 = betas,
                                                          .beta1 = SHORTEST(spec->beta1),
                                                          .has_beta2 = betas,
                                                          .beta2 = SHORTEST(spec->beta2),
                                                          .has_epsilon = !lion && spec->optimizer != AMPD_OPTIMIZER_SGD,
                                                          .epsilon = SHORTEST(spec->eps),
                                                          .has_weight_decay = true,
                                                          .weight_decay = SHORTEST(spec->weight_decay),
                                                          .momentum = SHORTEST(spec->momentum),
                                                          .dampening = SHORTEST(spec->dampening),
                                                          .nesterov = spec->nesterov,
                                                          .has_alpha = rmsprop,
                                                          .alpha = SHORTEST(spec->alpha),
                                                          .centered = spec->centered,
                                                          .learning_rate_decay = SHORTEST(spec->lr_decay)};
    message->has_schedule = true;
    message->schedule = (struct ampd_msg_schedule_spec){.kind = (enum ampd_msg_schedule_kind)spec->schedule,
                                                        .warmup_steps = spec->warmup_steps,
                                                        .step_size = spec->step_every,
                                                        .has_gamma = spec->schedule == AMPD_SCHEDULE_STEP,
                                                        .gamma = SHORTEST(spec->step_factor),
                                                        .total_steps = spec->total_steps,
                                                        .min_learning_rate = SHORTEST(spec->lr_min)};
    bool grouped = spec->clip_scope == AMPD_CLIP_GROUP;
    message->has_clip = spec->clip_value != 0 || spec->clip_max_norm != 0 || grouped;
    message->clip = (struct ampd_msg_clip_spec){.has_value = spec->clip_value != 0,
                                                .value = spec->clip_value,
                                                .has_max_norm = spec->clip_max_norm != 0,
                                                .max_norm = spec->clip_max_norm,
                                                .scope = (enum ampd_msg_clip_scope)spec->clip_scope};
}

static void scaler_to_msg(const struct amp_scaler_config *scaler, struct ampd_msg_model_spec *message)
{
    message->has_scaler = true;
    message->scaler = (struct ampd_msg_scaler_spec){.policy = (enum ampd_msg_scaler_policy)scaler->policy,
                                                    .has_init_scale = true,
                                                    .init_scale = scaler->init_scale,
                                                    .has_growth_factor = true,
                                                    .growth_factor = scaler->growth_factor,
                                                    .has_backoff_factor = true,
                                                    .backoff_factor = scaler->backoff_factor,
                                                    .has_growth_interval = true,
                                                    .growth_interval = scaler->growth_interval,
                                                    .has_hysteresis = true,
                                                    .hysteresis = scaler->hysteresis,
                                                    .has_min_scale = true,
                                                    .min_scale = scaler->min_scale,
                                                    .has_max_scale = true,
                                                    .max_scale = scaler->max_scale};
}

int io_spec_to_msg(const struct ampd_model_spec *spec, struct ampd_msg_model_spec *message)
{
    memset(message, 0, sizeof *message);
    if (parameters_to_msg(spec, &message->parameters) != 0 || groups_to_msg(spec, &message->groups) != 0) {
        ampd_msg_model_spec_free(message);
        return AMP_ENOMEM;
    }
    memcpy(message->name, spec->name, sizeof message->name);
    optimizer_to_msg(spec, message);
    scaler_to_msg(&spec->scaler, message);
    message->world_size = spec->world_size;
    message->sync_mode = (enum ampd_msg_sync_mode)spec->sync;
    message->quorum = spec->quorum;
    message->on_loss = (enum ampd_msg_on_loss)spec->on_loss;
    message->has_loss_timeout_ms = true;
    message->loss_timeout_ms = spec->loss_timeout_ms;
    message->has_min_workers = true;
    message->min_workers = spec->min_workers;
    message->weighting = (enum ampd_msg_weighting)spec->weighting;
    message->cast_dtype = (enum ampd_msg_dtype)spec->cast;
    message->cast_overflow = (enum ampd_msg_cast_overflow)spec->cast_overflow;
    message->floor_policy = (enum ampd_msg_floor_policy)spec->floor_policy;
    message->has_max_consecutive_overflows = true;
    message->max_consecutive_overflows = spec->max_consecutive_overflows;
    message->max_steps = spec->max_steps;
    message->has_checkpoint_every = true;
    bool on_demand = spec->checkpoint_every == AMPD_CHECKPOINT_ON_DEMAND;
    message->checkpoint_every = on_demand ? 0 : spec->checkpoint_every;
    message->has_keep_last = true;
    message->keep_last = spec->keep_last;
    message->keep_every = spec->keep_every;
    message->durability = (enum ampd_msg_durability)spec->durability;
    return 0;
}
