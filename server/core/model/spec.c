#include "server/core/model/spec.h"

#include "amp/optim.h"
#include "server/core/model/layout.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#define LOSS_TIMEOUT_MAX_MS ((uint64_t)1 << 40) /* 34 years: sums of times stay far from overflow */

#define PUSHED_SCALE_MAX 0x1p93f
#define PUSHED_SCALE_MIN 0x1p-60f

#define SHAPE_TEXT (AMPD_DIMENSIONS_MAX * 22 + 3)

/* ---- check ---- */

static int invalid(struct amp_error *error, const char *field, const char *remedy)
{
    return amp_error_set(error, AMP_EINVAL, "INVALID_SPEC", "%s: %s", field, remedy);
}

static int reserved(struct amp_error *error, const char *field, const char *remedy)
{
    return amp_error_set(error, AMP_EUNIMPLEMENTED, "RESERVED_VALUE", "%s: this value is reserved for later; %s", field,
                         remedy);
}

/* A name that can be a file: letters, digits, '.', '_', '-'; no leading dot. */
static bool file_name_ok(const char *name)
{
    size_t length = strnlen(name, AMPD_NAME_MAX);
    if (length == 0 || length == AMPD_NAME_MAX || name[0] == '.')
        return false;
    return strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == length;
}

static int check_parameter(const struct ampd_model_spec *spec, uint32_t p, uint64_t *elements, struct amp_error *error)
{
    const struct ampd_parameter_spec *parameter = &spec->parameters[p];
    size_t length = strnlen(parameter->name, AMPD_NAME_MAX);
    if (length == 0 || length == AMPD_NAME_MAX || strpbrk(parameter->name, "#@") != NULL)
        return amp_error_set(error, AMP_EINVAL, "INVALID_SPEC",
                             "parameters[%u].name: give 1 to %d bytes without '#' and '@'", p, AMPD_NAME_MAX - 1);
    if (strcmp(parameter->name, "__metadata__") == 0)
        return amp_error_set(error, AMP_EINVAL, "INVALID_SPEC",
                             "parameters[%u].name: __metadata__ is not a tensor in a checkpoint; give another name", p);
    if (parameter->dimensions > AMPD_DIMENSIONS_MAX)
        return amp_error_set(error, AMP_EINVAL, "INVALID_SPEC", "parameters[%u].shape: %s has %u extents; at most %d",
                             p, parameter->name, parameter->dimensions, AMPD_DIMENSIONS_MAX);
    uint64_t count = 1;
    for (uint32_t d = 0; d < parameter->dimensions; d++) {
        uint64_t extent = parameter->shape[d];
        if (extent == 0 || extent > AMPD_ELEMENTS_MAX / count)
            return amp_error_set(error, AMP_EINVAL, "INVALID_SPEC",
                                 "parameters[%u].shape: extent %u of %s is %llu; give 1 or more, 2^36 elements in all",
                                 p, d, parameter->name, (unsigned long long)extent);
        count *= extent;
    }
    if (parameter->group >= spec->groups_count)
        return amp_error_set(error, AMP_EINVAL, "INVALID_SPEC",
                             "parameters[%u].group: %s names group %u; there are %u, counted from 0", p,
                             parameter->name, parameter->group, spec->groups_count);
    *elements += count + AMPD_ALIGN_ELEMENTS;
    if (*elements > AMPD_ELEMENTS_MAX)
        return invalid(error, "parameters", "more than 2^36 elements in all; split the model");
    return 0;
}

static int compare_names(const void *left, const void *right)
{
    const struct ampd_parameter_spec *const *a = left;
    const struct ampd_parameter_spec *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

static int check_unique(const struct ampd_model_spec *spec, struct amp_error *error)
{
    const struct ampd_parameter_spec **sorted = malloc(spec->parameters_count * sizeof *sorted);
    if (sorted == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "parameters: no memory to check their names; try again");
    for (uint32_t p = 0; p < spec->parameters_count; p++)
        sorted[p] = &spec->parameters[p];
    qsort(sorted, spec->parameters_count, sizeof *sorted, compare_names);
    int rc = 0;
    for (uint32_t p = 1; rc == 0 && p < spec->parameters_count; p++) {
        if (strcmp(sorted[p - 1]->name, sorted[p]->name) == 0)
            rc = amp_error_set(error, AMP_EINVAL, "INVALID_SPEC",
                               "parameters: two are named %s; give each a name of its own", sorted[p]->name);
    }
    free(sorted);
    return rc;
}

static int check_parameters(const struct ampd_model_spec *spec, struct amp_error *error)
{
    if (!file_name_ok(spec->name))
        return invalid(error, "name", "give 1 to 127 of A-Z a-z 0-9 . _ - that do not begin with '.'");
    if (spec->parameters_count == 0 || spec->parameters_count > AMPD_PARAMETERS_MAX)
        return invalid(error, "parameters", "give 1 to 8192");
    if (spec->groups_count > AMPD_GROUPS_MAX)
        return invalid(error, "groups", "give at most 16");
    for (uint32_t g = 0; g < spec->groups_count; g++) {
        if (!isfinite((float)spec->groups[g].lr_scale) || spec->groups[g].lr_scale < 0)
            return invalid(error, "groups.learning_rate_factor", "give a finite number, 0 or more");
        if (spec->groups[g].weight_decay_set &&
            (!isfinite((float)spec->groups[g].weight_decay) || spec->groups[g].weight_decay < 0))
            return invalid(error, "groups.weight_decay", "give a finite number, 0 or more");
    }
    uint64_t elements = 0;
    for (uint32_t p = 0; p < spec->parameters_count; p++) {
        int rc = check_parameter(spec, p, &elements, error);
        if (rc != 0)
            return rc;
    }
    return check_unique(spec, error);
}

/* What amp refuses has a text that names the field, but no reason: amp knows of no wire. */
static int from_amp(int rc, struct amp_error *error)
{
    const char *reason = rc == AMP_EUNIMPLEMENTED ? "RESERVED_VALUE" : "INVALID_SPEC";
    if (error != NULL && error->reason[0] == 0)
        (void)snprintf(error->reason, sizeof error->reason, "%s", reason);
    return rc;
}

static int check_optimizer(const struct ampd_model_spec *spec, struct amp_error *error)
{
    if (spec->optimizer < AMPD_OPTIMIZER_SGD || spec->optimizer > AMPD_OPTIMIZER_LION)
        return reserved(error, "optimizer.kind", "use SGD, ADAMW, ADAM, ADAGRAD, RMSPROP or LION");
    struct amp_optim_config config = ampd_spec_optim(spec);
    int rc = amp_optim_check(&config, error);
    if (rc != 0) {
        amp_error_wrap(error, "optimizer");
        return from_amp(rc, error);
    }
    struct amp_schedule schedule = ampd_spec_schedule(spec);
    rc = amp_schedule_check(&schedule, error);
    if (rc != 0)
        return from_amp(rc, error);
    if (!isfinite(spec->clip_value) || spec->clip_value < 0)
        return invalid(error, "clip.value", "give a finite number above 0, or leave it out");
    if (!isfinite(spec->clip_max_norm) || spec->clip_max_norm < 0)
        return invalid(error, "clip.max_norm", "give a finite number above 0, or leave it out");
    if (spec->clip_scope != AMPD_CLIP_GLOBAL && spec->clip_scope != AMPD_CLIP_GROUP)
        return reserved(error, "clip.scope", "use GLOBAL or GROUP");
    for (uint32_t g = 0; g < spec->groups_count; g++) {
        float max_norm = spec->groups[g].clip_max_norm;
        if (!isfinite(max_norm) || max_norm < 0)
            return invalid(error, "groups.max_norm", "give a finite number above 0, or leave it out");
        if (max_norm > 0 && spec->clip_scope != AMPD_CLIP_GROUP)
            return invalid(error, "groups.max_norm", "leave it out, or give clip.scope GROUP");
    }
    return 0;
}

static int check_step_rules(const struct ampd_model_spec *spec, struct amp_error *error)
{
    if (spec->world_size == 0 || spec->world_size > AMPD_WORLD_MAX)
        return invalid(error, "world_size", "give the number of workers, 1 to 256");
    if (spec->sync != AMPD_SYNC_ALL && spec->sync != AMPD_SYNC_QUORUM)
        return reserved(error, "sync_mode", "use SYNC or QUORUM");
    if (spec->sync == AMPD_SYNC_ALL && spec->quorum != 0)
        return invalid(error, "quorum", "leave it out with sync_mode SYNC");
    if (spec->sync == AMPD_SYNC_QUORUM && (spec->quorum == 0 || spec->quorum > spec->world_size))
        return invalid(error, "quorum", "give 1 to world_size");
    if (spec->on_loss != AMPD_ON_LOSS_WAIT && spec->on_loss != AMPD_ON_LOSS_SHRINK)
        return reserved(error, "on_loss", "use WAIT or SHRINK");
    if (spec->loss_timeout_ms == 0 || spec->loss_timeout_ms > LOSS_TIMEOUT_MAX_MS)
        return invalid(error, "loss_timeout_ms", "give 1 to 2^40 milliseconds");
    if (spec->min_workers == 0 || spec->min_workers > spec->world_size)
        return invalid(error, "min_workers", "give 1 to world_size");
    if (spec->weighting != AMPD_WEIGHTING_EQUAL && spec->weighting != AMPD_WEIGHTING_PUSHED)
        return reserved(error, "weighting", "use EQUAL or PUSHED");
    if (spec->floor_policy < AMPD_FLOOR_CLAMP || spec->floor_policy > AMPD_FLOOR_FAIL)
        return reserved(error, "floor_policy", "use CLAMP, FREEZE or FAIL");
    if (spec->max_consecutive_overflows == 0)
        return invalid(error, "max_consecutive_overflows", "give 1 or more");
    if (spec->checkpoint_every == 0 || spec->keep_last == 0)
        return invalid(error, spec->keep_last == 0 ? "keep_last" : "checkpoint_every", "give 1 or more");
    return 0;
}

/* f of pushed weights must be a normal number: 2^24 * 256 ranks * scale below 2^126, 2^-60 * scale above 2^-126. */
static int check_weights(const struct ampd_model_spec *spec, struct amp_error *error)
{
    if (spec->weighting != AMPD_WEIGHTING_PUSHED)
        return 0;
    if (spec->scaler.max_scale > PUSHED_SCALE_MAX)
        return invalid(error, "scaler.max_scale", "give at most 2^93 with weighting PUSHED");
    if (spec->scaler.min_scale < PUSHED_SCALE_MIN)
        return invalid(error, "scaler.min_scale", "give at least 2^-60 with weighting PUSHED");
    return 0;
}

/* All of them, also what the chosen optimizer does not look at: the store and other shards get it as it is. */
static int check_finite(const struct ampd_model_spec *spec, struct amp_error *error)
{
    const struct {
        const char *name;
        double value;
    } fields[] = {
#define AMPD_SPEC_NUMBER(part, field, name, ...)                                                                       \
    {AMPD_SPEC_WORDS(part, field), (double)spec->AMPD_SPEC_MEMBER_##part(field, name)},
#define AMPD_SPEC_CHOICE(...)
#define AMPD_SPEC_PARTS AMPD_SPEC_ALL
#include "proto/spec_fields.def"
    };
#undef AMPD_SPEC_NUMBER
#undef AMPD_SPEC_CHOICE
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (!isfinite((float)fields[i].value))
            return invalid(error, fields[i].name, "give a finite number, within the range of fp32");
    return 0;
}

int ampd_spec_check(const struct ampd_model_spec *spec, struct amp_error *error)
{
    int rc = check_parameters(spec, error);
    if (rc == 0)
        rc = check_finite(spec, error);
    if (rc == 0)
        rc = check_optimizer(spec, error);
    if (rc == 0)
        rc = check_step_rules(spec, error);
    if (rc != 0)
        return rc;
    if (spec->cast != AMP_F16 && spec->cast != AMP_BF16 && spec->cast != AMP_F32)
        return invalid(error, "cast_dtype", "use F16, BF16 or F32");
    if (spec->cast_overflow != AMPD_CAST_REPORT && spec->cast_overflow != AMPD_CAST_SATURATE)
        return reserved(error, "cast_overflow", "use REPORT or SATURATE");
    rc = amp_scaler_config_check(&spec->scaler, error);
    if (rc != 0)
        return from_amp(rc, error);
    return check_weights(spec, error);
}

bool ampd_spec_takes_lr(double lr)
{
    return lr >= 0 && lr <= (double)FLT_MAX; /* as those of a specification */
}

/* ---- what amp takes ---- */

struct amp_optim_config ampd_spec_optim(const struct ampd_model_spec *spec)
{
    return (struct amp_optim_config){.optimizer = (enum amp_optimizer)spec->optimizer,
                                     .lr = spec->lr,
                                     .weight_decay = spec->weight_decay,
                                     .momentum = spec->momentum,
                                     .dampening = spec->dampening,
                                     .nesterov = spec->nesterov,
                                     .beta1 = spec->beta1,
                                     .beta2 = spec->beta2,
                                     .eps = spec->eps,
                                     .alpha = spec->alpha,
                                     .centered = spec->centered,
                                     .lr_decay = spec->lr_decay};
}

struct amp_schedule ampd_spec_schedule(const struct ampd_model_spec *spec)
{
    return (struct amp_schedule){.kind = (enum amp_schedule_kind)spec->schedule,
                                 .warmup_steps = spec->warmup_steps,
                                 .total_steps = spec->total_steps,
                                 .step_size = spec->step_every,
                                 .gamma = spec->step_factor,
                                 .min_lr = spec->lr_min};
}

bool ampd_spec_takes_carry(const struct ampd_model_spec *spec, const struct ampd_carry *carry)
{
    return ampd_spec_takes_lr(carry->lr) && amp_scaler_state_check(&spec->scaler, &carry->scaler, NULL) == 0;
}

double ampd_spec_base_lr(const struct ampd_model_spec *spec, const struct ampd_carry *carry)
{
    return carry->lr > 0 ? carry->lr : spec->lr;
}

/* ---- compare ---- */

/* The names of the schema, by number, for each enum of a row of proto/spec_fields.def. */
static const char *const ampd_optimizer_names[] = {NULL, "SGD", "ADAMW", "ADAM", "ADAGRAD", "RMSPROP", "LION"};
static const char *const ampd_schedule_names[] = {NULL, "CONSTANT", "LINEAR_WARMUP", "STEP", "COSINE", "WORKER"};
static const char *const ampd_clip_scope_names[] = {NULL, "GLOBAL", "GROUP"};
static const char *const ampd_sync_names[] = {NULL, "SYNC", "QUORUM"};
static const char *const ampd_on_loss_names[] = {NULL, "WAIT", "SHRINK"};
static const char *const ampd_weighting_names[] = {NULL, "EQUAL", "PUSHED"};
static const char *const amp_dtype_names[] = {NULL, "F32", "F16", "BF16"};
static const char *const ampd_cast_overflow_names[] = {NULL, "REPORT", "SATURATE"};
static const char *const ampd_floor_policy_names[] = {NULL, "CLAMP", "FREEZE", "FAIL"};
static const char *const ampd_durability_names[] = {NULL, "CHECKPOINT", "STEP"};
static const char *const amp_scaler_policy_names[] = {
    NULL, "DYNAMIC", "STATIC", "NONE", "MEGATRON", "DEEPSPEED", "DEEPSPEED_CONSECUTIVE", "APEX_HYSTERESIS", "PADDLE"};

_Static_assert((int)AMPD_OPTIMIZER_LION == (int)AMP_OPT_LION && (int)AMPD_OPTIMIZER_RMSPROP == (int)AMP_OPT_RMSPROP,
               "amp's numbers");
_Static_assert(AMP_F32 == 1 && AMP_F16 == 2 && AMP_BF16 == 3, "names by number");
_Static_assert(AMP_SCALER_PADDLE == 8, "names by number");
_Static_assert(AMP_SCALER_DEEPSPEED_CONSECUTIVE == 6, "names by number");

/* One field as a number: reals and integers up to 2^53 are compared exactly. */
struct field {
    const char *name;
    double have, want;
    const char *const *values; /* what the numbers are called, or NULL */
    size_t values_count;
};

/* "0.001", or the name of a value. */
static void write_value(const struct field *field, double value, char *text, size_t size)
{
    size_t index = (size_t)value;
    if (field->values != NULL && index > 0 && index < field->values_count)
        (void)snprintf(text, size, "%s", field->values[index]);
    else
        (void)snprintf(text, size, "%.15g", value);
}

static int exists(struct amp_error *error, const char *model, const char *what, const char *have, const char *want)
{
    return amp_error_set(
        error, AMP_EEXIST, "MODEL_EXISTS",
        "%s exists with another specification: %s is %s there and %s here; give it another name, or the "
        "same specification",
        model, what, have, want);
}

static int differs(struct amp_error *error, const char *name, const struct field *field)
{
    char have[32], want[32];
    write_value(field, field->have, have, sizeof have);
    write_value(field, field->want, want, sizeof want);
    return exists(error, name, field->name, have, want);
}

static int compare_fields(const struct ampd_model_spec *have, const struct ampd_model_spec *want,
                          struct amp_error *error)
{
#define VALUES(member) (double)have->member, (double)want->member
#define AMPD_SPEC_NUMBER(part, field, name, ...)                                                                       \
    {AMPD_SPEC_WORDS(part, field), VALUES(AMPD_SPEC_MEMBER_##part(field, name)), NULL, 0},
#define AMPD_SPEC_CHOICE(part, field, name, msg, core, ...)                                                            \
    {AMPD_SPEC_WORDS(part, field), VALUES(AMPD_SPEC_MEMBER_##part(field, name)), core##_names,                         \
     sizeof core##_names / sizeof core##_names[0]},
    const struct field fields[] = {
#define AMPD_SPEC_PARTS AMPD_SPEC_ALL
#include "proto/spec_fields.def"
        {"groups", VALUES(groups_count), NULL, 0},
        {"parameters", VALUES(parameters_count), NULL, 0},
    };
#undef AMPD_SPEC_NUMBER
#undef AMPD_SPEC_CHOICE
#undef VALUES
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].have != fields[i].want)
            return differs(error, have->name, &fields[i]);
    }
    return 0;
}

/* "[2, 4]", or "[]" for a scalar. */
static void write_shape(const struct ampd_parameter_spec *parameter, char text[SHAPE_TEXT])
{
    size_t size = (size_t)snprintf(text, SHAPE_TEXT, "[");
    for (uint32_t d = 0; d < parameter->dimensions; d++)
        size += (size_t)snprintf(text + size, SHAPE_TEXT - size, "%s%" PRIu64, d > 0 ? ", " : "", parameter->shape[d]);
    (void)snprintf(text + size, SHAPE_TEXT - size, "]");
}

static int compare_parameter(const struct ampd_model_spec *have, const struct ampd_model_spec *want, uint32_t index,
                             struct amp_error *error)
{
    const struct ampd_parameter_spec *a = &have->parameters[index], *b = &want->parameters[index];
    char what[32], there[SHAPE_TEXT], here[SHAPE_TEXT];
    (void)snprintf(what, sizeof what, "parameters[%u]", index);
    if (strcmp(a->name, b->name) != 0)
        return exists(error, have->name, what, a->name, b->name);
    write_shape(a, there);
    write_shape(b, here);
    if (strcmp(there, here) != 0)
        return exists(error, have->name, a->name, there, here);
    (void)snprintf(there, sizeof there, "in groups[%u]", a->group);
    (void)snprintf(here, sizeof here, "in groups[%u]", b->group);
    return a->group == b->group ? 0 : exists(error, have->name, a->name, there, here);
}

int ampd_spec_compare(const struct ampd_model_spec *have, const struct ampd_model_spec *want, struct amp_error *error)
{
    int rc = compare_fields(have, want, error);
    if (rc != 0)
        return rc;
    for (uint32_t g = 0; g < have->groups_count; g++) {
        const struct ampd_group_spec *a = &have->groups[g];
        const struct ampd_group_spec *b = &want->groups[g];
        const struct field factor = {"groups.learning_rate_factor", a->lr_scale, b->lr_scale, NULL, 0};
        const struct field decay = {"groups.weight_decay", a->weight_decay, b->weight_decay, NULL, 0};
        const struct field clip = {"groups.max_norm", (double)a->clip_max_norm, (double)b->clip_max_norm, NULL, 0};
        if (a->clip_max_norm != b->clip_max_norm)
            return differs(error, have->name, &clip);
        if (a->lr_scale != b->lr_scale)
            return differs(error, have->name, &factor);
        if (a->weight_decay_set != b->weight_decay_set || a->weight_decay != b->weight_decay)
            return differs(error, have->name, &decay);
    }
    for (uint32_t p = 0; rc == 0 && p < have->parameters_count; p++)
        rc = compare_parameter(have, want, p, error);
    return rc;
}

/* ---- memory ---- */

int ampd_spec_copy(struct ampd_model_spec *to, const struct ampd_model_spec *from)
{
    *to = *from;
    to->parameters = NULL;
    if (from->parameters_count == 0)
        return 0;
    to->parameters = malloc(from->parameters_count * sizeof *to->parameters);
    if (to->parameters == NULL) {
        *to = (struct ampd_model_spec){0};
        return AMP_ENOMEM;
    }
    memcpy(to->parameters, from->parameters, from->parameters_count * sizeof *to->parameters);
    return 0;
}

void ampd_spec_clear(struct ampd_model_spec *spec)
{
    free(spec->parameters);
    *spec = (struct ampd_model_spec){0};
}
