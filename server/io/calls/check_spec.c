#include "server/io/calls/check_spec.h"

#include <float.h>
#include <math.h>

static int invalid(struct amp_error *error, const char *field, const char *remedy)
{
    return amp_error_set(error, AMP_EINVAL, "INVALID_SPEC", "%s: %s", field, remedy);
}

/* ---- enums ---- */

struct enum_field {
    const char *field;
    int value;
    int max;      /* the largest number that the schema names */
    int reserved; /* the largest number that the schema reserves, or 0 */
};

static int check_enums(const struct ampd_msg_model_spec *spec, struct amp_error *error)
{
    const struct enum_field fields[] = {
        {"optimizer.kind", (int)spec->optimizer.kind, AMPD_MSG_OPTIMIZER_KIND_LION, 15},
        {"schedule.kind", (int)spec->schedule.kind, AMPD_MSG_SCHEDULE_KIND_WORKER, 0},
        {"clip.scope", (int)spec->clip.scope, AMPD_MSG_CLIP_SCOPE_GROUP, 0},
        {"sync_mode", (int)spec->sync_mode, AMPD_MSG_SYNC_MODE_QUORUM, 7},
        {"on_loss", (int)spec->on_loss, AMPD_MSG_ON_LOSS_SHRINK, 7},
        {"weighting", (int)spec->weighting, AMPD_MSG_WEIGHTING_PUSHED, 0},
        {"cast_dtype", (int)spec->cast_dtype, AMPD_MSG_DTYPE_BF16, 0},
        {"cast_overflow", (int)spec->cast_overflow, AMPD_MSG_CAST_OVERFLOW_SATURATE, 0},
        {"scaler.policy", (int)spec->scaler.policy, AMPD_MSG_SCALER_POLICY_PADDLE, 0},
        {"floor_policy", (int)spec->floor_policy, AMPD_MSG_FLOOR_POLICY_FAIL, 0},
        {"durability", (int)spec->durability, AMPD_MSG_DURABILITY_STEP, 0},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct enum_field *field = &fields[i];
        if (field->value >= 0 && field->value <= field->max)
            continue;
        if (field->value > 0 && field->value <= field->reserved)
            return amp_error_set(error, AMP_EUNIMPLEMENTED, "RESERVED_VALUE",
                                 "%s: this is not supported yet; use a value that the schema names", field->field);
        return amp_error_set(error, AMP_EINVAL, "INVALID_SPEC",
                             "%s: %d is not a value of it; use one that the schema names", field->field, field->value);
    }
    return 0;
}

/* ---- zeros ---- */

struct given_field {
    const char *field;
    bool given;
    double value;
};

#define GIVEN_FIELD(part, field, presence)                                                                             \
    {AMPD_SPEC_WORDS(part, field), AMPD_SPEC_HAS_##presence(spec, part, field),                                        \
     (double)spec->AMPD_SPEC_IN_##part field},

/* Fields for which zero is out of range: those of the bound ABOVE_ZERO. */
static int check_zeros(const struct ampd_msg_model_spec *spec, struct amp_error *error)
{
    const struct given_field fields[] = {
#define BOUND_ANY(part, field, presence)
#define BOUND_NOT_NEGATIVE(part, field, presence)
#define BOUND_ABOVE_ZERO(part, field, presence)                                   GIVEN_FIELD(part, field, presence)
#define AMPD_SPEC_NUMBER(part, field, name, kind, presence, default_, bound, ...) BOUND_##bound(part, field, presence)
#define AMPD_SPEC_CHOICE(...)
#define AMPD_SPEC_PARTS AMPD_SPEC_ALL
#include "proto/spec_fields.def"
#undef BOUND_NOT_NEGATIVE
#undef BOUND_ABOVE_ZERO
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].given && !(fields[i].value > 0) && !isnan(fields[i].value))
            return amp_error_set(error, AMP_EINVAL, "INVALID_SPEC",
                                 "%s: %g is out of range; give a number above 0, or leave it out for the default",
                                 fields[i].field, fields[i].value);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].given && !isfinite((float)fields[i].value))
            return invalid(error, fields[i].field, "give a finite number");
    return 0;
}

/* Fields of the bound NOT_NEGATIVE, which must be within a float's range as well. */
static int check_not_negative(const struct ampd_msg_model_spec *spec, struct amp_error *error)
{
    const struct given_field fields[] = {
#define BOUND_NOT_NEGATIVE(part, field, presence) GIVEN_FIELD(part, field, presence)
#define BOUND_ABOVE_ZERO(part, field, presence)
#define AMPD_SPEC_PARTS AMPD_SPEC_ALL
#include "proto/spec_fields.def"
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].given && !(fields[i].value >= 0 && isfinite((float)fields[i].value)))
            return amp_error_set(error, AMP_EINVAL, "INVALID_SPEC",
                                 "%s: %g is out of range; give a finite number, 0 or more", fields[i].field,
                                 fields[i].value);
    return 0;
}

#define IS_U64(type) _Generic((type)0, uint64_t : true, default : false)

/* Whole numbers that the store cannot hold. One of them, AMPD_CHECKPOINT_ON_DEMAND, has a meaning for the core. */
static int check_whole(const struct ampd_msg_model_spec *spec, struct amp_error *error)
{
    const struct given_field fields[] = {
#undef AMPD_SPEC_NUMBER
#define AMPD_SPEC_NUMBER(part, field, name, kind, ...)                                                                 \
    {AMPD_SPEC_WORDS(part, field), IS_U64(AMPD_SPEC_TYPE_##kind), (double)spec->AMPD_SPEC_IN_##part field},
#define AMPD_SPEC_PARTS AMPD_SPEC_ALL
#include "proto/spec_fields.def"
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].given && fields[i].value >= (double)INT64_MAX)
            return invalid(error, fields[i].field, "it is out of range; give a number below 2^63");
    return 0;
}

/* A learning rate that is 0 as fp32 would silently end the training; and in answers 0 means that workers name it. */
static int check_learning_rate(const struct ampd_msg_optimizer_spec *optimizer, struct amp_error *error)
{
    double lr = optimizer->learning_rate;
    if (optimizer->has_learning_rate && !(lr >= (double)FLT_TRUE_MIN && isfinite((float)lr)))
        return amp_error_set(error, AMP_EINVAL, "INVALID_SPEC",
                             "optimizer.learning_rate: %g is out of range; give a number above 0 that fp32 can hold",
                             lr);
    return 0;
}

static int check_groups(const struct ampd_msg_model_spec *spec, struct amp_error *error)
{
    for (size_t i = 0; i < spec->groups.count; i++) {
        const struct ampd_msg_parameter_group *group = &spec->groups.items[i];
        if (group->has_max_norm && !(group->max_norm > 0 && isfinite(group->max_norm)))
            return invalid(error, "groups.max_norm", "give a finite number above 0, or leave it out");
    }
    return 0;
}

int io_check_spec(const struct ampd_msg_model_spec *spec, struct amp_error *error)
{
    int rc = check_enums(spec, error);
    if (rc == 0)
        rc = check_zeros(spec, error);
    if (rc == 0)
        rc = check_learning_rate(&spec->optimizer, error);
    if (rc == 0)
        rc = check_not_negative(spec, error);
    if (rc == 0)
        rc = check_groups(spec, error);
    if (rc == 0)
        rc = check_whole(spec, error);
    return rc;
}

int io_check_scaler(const struct ampd_msg_scaler_spec *scaler, struct amp_error *error)
{
    const struct ampd_msg_model_spec spec = {.scaler = *scaler};
    int rc = check_enums(&spec, error);
    return rc != 0 ? rc : check_zeros(&spec, error);
}
