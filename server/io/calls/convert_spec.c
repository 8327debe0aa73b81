/* Specifications: from the message, which tells an absent field from a zero, to the core's struct, and back. */
#include "server/io/calls/convert_spec.h"

#include "proto/msg.h"
#include "server/core/core.h"
#include "server/io/calls/check_spec.h"

#include <stdlib.h>
#include <string.h>

/*
 * Both sides give their enums the same numbers, so that a cast converts them. The core refuses unknown numbers.
 */
_Static_assert((int)AMPD_MSG_OPTIMIZER_KIND_SGD == (int)AMPD_OPTIMIZER_SGD, "optimizers");
_Static_assert((int)AMPD_MSG_OPTIMIZER_KIND_ADAMW == (int)AMPD_OPTIMIZER_ADAMW, "optimizers");
_Static_assert((int)AMPD_MSG_OPTIMIZER_KIND_RMSPROP == (int)AMPD_OPTIMIZER_RMSPROP, "optimizers");
_Static_assert((int)AMPD_MSG_OPTIMIZER_KIND_LION == (int)AMPD_OPTIMIZER_LION, "optimizers");
_Static_assert((int)AMPD_MSG_SCHEDULE_KIND_WORKER == (int)AMPD_SCHEDULE_WORKER, "schedules");
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
_Static_assert((int)AMPD_MSG_HISTORY_KIND_LEARNING_RATE_SET == (int)AMPD_ROW_LR, "kinds of rows");

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

/* The core's value of a field of the message: 0 for one that is absent. */
#define FROM_PLAIN(value, has) (value)
#define FROM_GIVEN(value, has) ((has) ? (value) : 0)
#define FROM_OFF               FROM_GIVEN
#define FROM_SET               FROM_GIVEN

struct amp_scaler_config io_scaler_from_msg(const struct ampd_msg_scaler_spec *message)
{
    struct amp_scaler_config config = {0};
#define AMPD_SPEC_NUMBER(part, field, name, kind, presence, ...)                                                       \
    config.field = FROM_##presence(message->field, message->has_##field);
#define AMPD_SPEC_CHOICE(part, field, name, msg, core, ...) config.field = (enum core)message->field;
#define AMPD_SPEC_PARTS                                     AMPD_SPEC_SCALER
#include "proto/spec_fields.def"
#undef AMPD_SPEC_NUMBER
#undef AMPD_SPEC_CHOICE
    return config;
}

static void fields_from_msg(const struct ampd_msg_model_spec *message, struct ampd_model_spec *spec)
{
#define AMPD_SPEC_NUMBER(part, field, name, kind, presence, ...)                                                       \
    spec->name = FROM_##presence(message->AMPD_SPEC_IN_##part field, message->AMPD_SPEC_IN_##part has_##field);        \
    AMPD_SPEC_IF_SET_##presence(spec->name##_set = message->AMPD_SPEC_IN_##part has_##field;)
#define AMPD_SPEC_CHOICE(part, field, name, msg, core, ...) spec->name = (enum core)message->AMPD_SPEC_IN_##part field;
#define AMPD_SPEC_PARTS                                     (AMPD_SPEC_ALL - AMPD_SPEC_SCALER)
#include "proto/spec_fields.def"
#undef AMPD_SPEC_NUMBER
#undef AMPD_SPEC_CHOICE
    spec->scaler = io_scaler_from_msg(&message->scaler);
    if (message->has_checkpoint_every && message->checkpoint_every == 0)
        spec->checkpoint_every = AMPD_CHECKPOINT_ON_DEMAND;
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
    fields_from_msg(message, spec);
    return 0;
}

/* ---- to the wire ---- */

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
        list->items[i].learning_rate_factor = spec->groups[i].lr_scale;
        list->items[i].has_weight_decay = spec->groups[i].weight_decay_set;
        list->items[i].weight_decay = spec->groups[i].weight_decay;
        list->items[i].has_max_norm = spec->groups[i].clip_max_norm != 0;
        list->items[i].max_norm = spec->groups[i].clip_max_norm;
    }
    return 0;
}

static void fields_to_msg(const struct ampd_model_spec *spec, struct ampd_msg_model_spec *message)
{
#define HAS_PLAIN(has, value)
#define HAS_GIVEN(has, value) (has) = true;
#define HAS_OFF(has, value)   (has) = (value) != 0;
#define HAS_SET(has, value)   (has) = true;
#define AMPD_SPEC_NUMBER(part, field, name, kind, presence, ...)                                                       \
    message->AMPD_SPEC_IN_##part field = spec->AMPD_SPEC_MEMBER_##part(field, name);                                   \
    HAS_##presence(message->AMPD_SPEC_IN_##part has_##field, spec->AMPD_SPEC_MEMBER_##part(field, name))
#define AMPD_SPEC_CHOICE(part, field, name, msg, core, ...)                                                            \
    message->AMPD_SPEC_IN_##part field = (enum ampd_msg_##msg)spec->AMPD_SPEC_MEMBER_##part(field, name);
#define AMPD_SPEC_PARTS AMPD_SPEC_ALL
#include "proto/spec_fields.def"
#undef AMPD_SPEC_NUMBER
#undef AMPD_SPEC_CHOICE
    message->has_optimizer = message->has_schedule = message->has_scaler = true;
    message->has_clip = message->clip.has_value || message->clip.has_max_norm || spec->clip_scope == AMPD_CLIP_GROUP;
}

/*
 * Removes fields that the core fills in although the optimizer or the schedule does not use them, and replaces the
 * core's number for "only on demand" by the schema's 0.
 */
static void leave_out_unused(const struct ampd_model_spec *spec, struct ampd_msg_model_spec *message)
{
    bool lion = spec->optimizer == AMPD_OPTIMIZER_LION;
    bool betas = lion || spec->optimizer == AMPD_OPTIMIZER_ADAMW || spec->optimizer == AMPD_OPTIMIZER_ADAM;
    message->optimizer.has_beta1 = message->optimizer.has_beta2 = betas;
    message->optimizer.has_epsilon = !lion && spec->optimizer != AMPD_OPTIMIZER_SGD;
    message->optimizer.has_alpha = spec->optimizer == AMPD_OPTIMIZER_RMSPROP;
    message->schedule.has_gamma = spec->schedule == AMPD_SCHEDULE_STEP;
    if (spec->checkpoint_every == AMPD_CHECKPOINT_ON_DEMAND)
        message->checkpoint_every = 0;
}

int io_spec_to_msg(const struct ampd_model_spec *spec, struct ampd_msg_model_spec *message)
{
    memset(message, 0, sizeof *message);
    if (parameters_to_msg(spec, &message->parameters) != 0 || groups_to_msg(spec, &message->groups) != 0) {
        ampd_msg_model_spec_free(message);
        return AMP_ENOMEM;
    }
    memcpy(message->name, spec->name, sizeof message->name);
    fields_to_msg(spec, message);
    leave_out_unused(spec, message);
    return 0;
}
