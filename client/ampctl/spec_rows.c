/* A model's specification, as JSON and in lines. What has no meaning beside the rest (beta1 of sgd) is left out. */
#include "client/ampctl/rows.h"

#include "client/ampctl/print.h"

#include <string.h>

/* Longest line of a part: a dozen keys with their numbers, or the name of a group. */
#define PART_MAX 1024

static const char *const schedules[] = {"unknown", "constant", "linear_warmup", "step", "cosine", "worker"};
static const char *const scopes[] = {"unknown", "global", "group"};
static const char *const syncs[] = {"unknown", "sync", "quorum"};
static const char *const losses[] = {"unknown", "wait", "shrink"};
static const char *const weightings[] = {"unknown", "equal", "pushed"};
static const char *const cast_overflows[] = {"unknown", "report", "saturate"};
static const char *const floors[] = {"unknown", "clamp", "freeze", "fail"};
static const char *const durabilities[] = {"unknown", "checkpoint", "step"};

static void put_count(json_t **object, const char *key, uint64_t value)
{
    ampctl_put(object, key, json_integer((json_int_t)value));
}

/* ---- its parts ---- */

/*
 * The rows of proto/spec_fields.def that are shown without a word here: those SHOWN, of the model itself those of STEPS
 * and those of CHECKPOINTS. `spec` is the part's struct, `object` its JSON.
 */
#define SHOW_BY_HAND(kind, field)
#define SHOW_SHOWN(kind, field) ampctl_put(&object, #field, JSON_##kind(spec->field));
#define JSON_F64(value)         ampctl_real(value)
#define JSON_F32(value)         ampctl_real((double)(value))
#define JSON_U64(value)         json_integer((json_int_t)(value))
#define JSON_U32(value)         json_integer((json_int_t)(value))
#define JSON_RANKS(value)       json_integer((json_int_t)(value))
#define JSON_BOOL(value)        json_boolean(value)
#define AMPD_SPEC_NUMBER(part, field, name, kind, presence, default_, bound, since, shown, ...)                        \
    SHOW_##shown(kind, field)
#define AMPD_SPEC_CHOICE(...)

static json_t *optimizer_of(const struct ampd_msg_optimizer_spec *spec)
{
    enum ampd_msg_optimizer_kind kind = spec->kind;
    bool sgd = kind == AMPD_MSG_OPTIMIZER_KIND_SGD, rmsprop = kind == AMPD_MSG_OPTIMIZER_KIND_RMSPROP;
    bool adagrad = kind == AMPD_MSG_OPTIMIZER_KIND_ADAGRAD, lion = kind == AMPD_MSG_OPTIMIZER_KIND_LION;
    json_t *object = json_object();
    ampctl_put(&object, "kind", json_string(ampctl_optimizer_name(kind)));
    ampctl_put(&object, "learning_rate", ampctl_real(spec->learning_rate));
    if (!sgd && !rmsprop && !adagrad) {
        ampctl_put(&object, "beta1", ampctl_real(spec->beta1));
        ampctl_put(&object, "beta2", ampctl_real(spec->beta2));
    }
    if (!sgd && !lion)
        ampctl_put(&object, "epsilon", ampctl_real(spec->epsilon));
    ampctl_put(&object, "weight_decay", ampctl_real(spec->weight_decay));
    if (sgd || rmsprop)
        ampctl_put(&object, "momentum", ampctl_real(spec->momentum));
    if (sgd) {
        ampctl_put(&object, "dampening", ampctl_real(spec->dampening));
        ampctl_put(&object, "nesterov", json_boolean(spec->nesterov));
    }
    if (rmsprop) {
        ampctl_put(&object, "alpha", ampctl_real(spec->alpha));
        ampctl_put(&object, "centered", json_boolean(spec->centered));
    }
    if (adagrad)
        ampctl_put(&object, "learning_rate_decay", ampctl_real(spec->learning_rate_decay));
#define AMPD_SPEC_PARTS AMPD_SPEC_OPTIMIZER
#include "proto/spec_fields.def"
    return object;
}

static json_t *schedule_of(const struct ampd_msg_schedule_spec *spec)
{
    json_t *object = json_object();
    ampctl_put(&object, "kind", json_string(AMPCTL_NAME_OF(schedules, spec->kind)));
    put_count(&object, "warmup_steps", spec->warmup_steps);
    if (spec->kind == AMPD_MSG_SCHEDULE_KIND_STEP) {
        put_count(&object, "step_size", spec->step_size);
        ampctl_put(&object, "gamma", ampctl_real(spec->gamma));
    }
    if (spec->kind == AMPD_MSG_SCHEDULE_KIND_COSINE) {
        put_count(&object, "total_steps", spec->total_steps);
        ampctl_put(&object, "min_learning_rate", ampctl_real(spec->min_learning_rate));
    }
#define AMPD_SPEC_PARTS AMPD_SPEC_SCHEDULE
#include "proto/spec_fields.def"
    return object;
}

static json_t *clip_of(const struct ampd_msg_clip_spec *spec)
{
    json_t *object = json_object();
    ampctl_put(&object, "value", spec->has_value ? json_real((double)spec->value) : json_null());
    ampctl_put(&object, "max_norm", spec->has_max_norm ? json_real((double)spec->max_norm) : json_null());
    if (spec->has_max_norm)
        ampctl_put(&object, "scope", json_string(AMPCTL_NAME_OF(scopes, spec->scope)));
#define AMPD_SPEC_PARTS AMPD_SPEC_CLIP
#include "proto/spec_fields.def"
    return object;
}

static json_t *scaler_of(const struct ampd_msg_scaler_spec *spec)
{
    json_t *object = json_object();
    ampctl_put(&object, "policy", json_string(ampctl_policy_name(spec->policy)));
#define AMPD_SPEC_PARTS AMPD_SPEC_SCALER
#include "proto/spec_fields.def"
    return object;
}

static json_t *steps_of(const struct ampd_msg_model_spec *spec)
{
    json_t *object = json_object();
    put_count(&object, "max_steps", spec->max_steps);
    ampctl_put(&object, "sync_mode", json_string(AMPCTL_NAME_OF(syncs, spec->sync_mode)));
    if (spec->sync_mode == AMPD_MSG_SYNC_MODE_QUORUM)
        put_count(&object, "quorum", spec->quorum);
    ampctl_put(&object, "on_loss", json_string(AMPCTL_NAME_OF(losses, spec->on_loss)));
    if (spec->on_loss == AMPD_MSG_ON_LOSS_SHRINK)
        put_count(&object, "min_workers", spec->min_workers);
    put_count(&object, "loss_timeout_ms", spec->loss_timeout_ms);
    ampctl_put(&object, "weighting", json_string(AMPCTL_NAME_OF(weightings, spec->weighting)));
    ampctl_put(&object, "cast_overflow", json_string(AMPCTL_NAME_OF(cast_overflows, spec->cast_overflow)));
    ampctl_put(&object, "floor_policy", json_string(AMPCTL_NAME_OF(floors, spec->floor_policy)));
    put_count(&object, "max_consecutive_overflows", spec->max_consecutive_overflows);
#define SHOW_STEPS(kind, field) SHOW_SHOWN(kind, field)
#define SHOW_CHECKPOINTS(kind, field)
#define AMPD_SPEC_PARTS AMPD_SPEC_MODEL
#include "proto/spec_fields.def"
#undef SHOW_STEPS
#undef SHOW_CHECKPOINTS
    return object;
}

static json_t *checkpoints_of(const struct ampd_msg_model_spec *spec)
{
    json_t *object = json_object();
#define SHOW_STEPS(kind, field)
#define SHOW_CHECKPOINTS(kind, field) SHOW_SHOWN(kind, field)
#define AMPD_SPEC_PARTS               AMPD_SPEC_MODEL
#include "proto/spec_fields.def"
    ampctl_put(&object, "durability", json_string(AMPCTL_NAME_OF(durabilities, spec->durability)));
    return object;
}

static json_t *group_of(const struct ampd_msg_parameter_group *group)
{
    json_t *object = json_object();
    ampctl_put(&object, "name", json_string(group->name));
    ampctl_put(&object, "learning_rate_factor",
               ampctl_real(group->has_learning_rate_factor ? group->learning_rate_factor : 1));
    ampctl_put(&object, "weight_decay", group->has_weight_decay ? json_real(group->weight_decay) : json_null());
    ampctl_put(&object, "max_norm", group->has_max_norm ? json_real((double)group->max_norm) : json_null());
    return object;
}

/* ---- the whole ---- */

json_t *ampctl_spec_object(const struct ampd_msg_model_spec *spec)
{
    json_t *object = json_object(), *groups = json_array();
    json_t *optimizer = optimizer_of(&spec->optimizer);
    if (spec->schedule.kind == AMPD_MSG_SCHEDULE_KIND_WORKER)
        (void)json_object_del(optimizer, "learning_rate"); /* it has no use: workers name that of each step */
    ampctl_put(&object, "optimizer", optimizer);
    ampctl_put(&object, "schedule", schedule_of(&spec->schedule));
    ampctl_put(&object, "clip", clip_of(&spec->clip));
    ampctl_put(&object, "scaler", scaler_of(&spec->scaler));
    ampctl_put(&object, "steps", steps_of(spec));
    ampctl_put(&object, "checkpoints", checkpoints_of(spec));
    for (size_t i = 0; groups != NULL && i < spec->groups.count; i++)
        if (json_array_append_new(groups, group_of(&spec->groups.items[i])) != 0) {
            json_decref(groups);
            groups = NULL;
        }
    ampctl_put(&object, "groups", groups);
    return object;
}

static void print_part(FILE *out, const char *title, const json_t *part, const json_t *rate_set)
{
    const char *key;
    json_t *value;
    char buffer[32], line[PART_MAX] = "";
    size_t used = 0;
    json_object_foreach((json_t *)(uintptr_t)part, key, value) /* changes nothing */
    {
        (void)snprintf(line + used, sizeof line - used, "%s%s %s", used > 0 ? ", " : "", key,
                       ampctl_cell(value, buffer));
        used = strlen(line);
        if (json_is_number(rate_set) && strcmp(key, "learning_rate") == 0)
            (void)snprintf(line + used, sizeof line - used, " (now %s, set by an operator)",
                           ampctl_cell(rate_set, buffer));
        used = strlen(line);
    }
    (void)ampctl_print(out, "%-11s %s", title, line);
}

void ampctl_print_spec(FILE *out, const json_t *spec, const json_t *rate_set)
{
    const char *key;
    json_t *part, *group;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)spec, key, part) /* changes nothing */
    {
        if (json_is_object(part))
            print_part(out, key, part, rate_set);
        else if (json_array_size(part) > 1) /* a single one has nothing of its own */
            json_array_foreach(part, i, group) print_part(out, "group", group, NULL);
    }
}
