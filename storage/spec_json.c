/*
 * Specifications as JSON. One table, made from the rows of proto/spec_fields.def, has the key for each member of a
 * specification, for both directions. Floats are written as JSON reals with 17 digits, which represent a double, and so
 * a float, exactly; 64-bit counts as JSON integers (negative, in two's complement, from 2^63 on).
 */
#include "storage/spec_json.h"

#include "base/assert.h"
#include "storage/json_memory.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum field_kind { FIELD_U32, FIELD_U64, FIELD_F32, FIELD_F64, FIELD_BOOL, FIELD_GROUP_NAME };

struct field {
    const char *key;
    enum field_kind kind;
    size_t offset;
    bool later;    /* the key may be missing, in specifications that were stored before it existed */
    double absent; /* the value that a missing key stands for, if `later` */
};

_Static_assert(sizeof(enum ampd_optimizer) == sizeof(uint32_t), "enums are kept as 32-bit numbers");

#define FIELD_RANKS FIELD_U32

#define LATER_FIRST false
#define LATER_LATER true

/* The key of a field is its name; for fields of the scaler it is "scaler_" and the name. */
#define KEY_OPTIMIZER(field, name) #name
#define KEY_SCHEDULE(field, name)  #name
#define KEY_CLIP(field, name)      #name
#define KEY_SCALER(field, name)    "scaler_" #field
#define KEY_MODEL(field, name)     #name

#define AT(part, field, name) offsetof(struct ampd_model_spec, AMPD_SPEC_MEMBER_##part(field, name))

#define AMPD_SPEC_NUMBER(part, field, name, kind, presence, default_, bound, since, ...)                               \
    {KEY_##part(field, name), FIELD_##kind, AT(part, field, name), LATER_##since, default_},                           \
        AMPD_SPEC_IF_SET_##presence(                                                                                   \
            {#name "_set", FIELD_BOOL, offsetof(struct ampd_model_spec, name##_set), LATER_##since, 0}, )
#define AMPD_SPEC_CHOICE(part, field, name, msg, core, default_, last, since, ...)                                     \
    {KEY_##part(field, name), FIELD_U32, AT(part, field, name), LATER_##since, default_},

static const struct field spec_fields[] = {
#define AMPD_SPEC_PARTS AMPD_SPEC_ALL
#include "proto/spec_fields.def"
};

/* The kind of a floating-point member, by its width. */
#define FIELD_REAL(type, member) (sizeof(((type *)NULL)->member) == sizeof(double) ? FIELD_F64 : FIELD_F32)

static const struct field group_fields[] = {
    {"name", FIELD_GROUP_NAME, offsetof(struct ampd_group_spec, name), false, 0},
    {"lr_scale", FIELD_REAL(struct ampd_group_spec, lr_scale), offsetof(struct ampd_group_spec, lr_scale), false, 0},
    {"weight_decay_set", FIELD_BOOL, offsetof(struct ampd_group_spec, weight_decay_set), false, 0},
    {"weight_decay", FIELD_REAL(struct ampd_group_spec, weight_decay), offsetof(struct ampd_group_spec, weight_decay),
     false, 0},
    {"clip_max_norm", FIELD_F32, offsetof(struct ampd_group_spec, clip_max_norm), true, 0},
};

#define COUNT(array) (sizeof array / sizeof *(array))

static json_t *field_to_json(const struct field *field, const char *base)
{
    const char *at = base + field->offset;
    uint32_t u32;
    uint64_t u64;
    float f32;
    double f64;
    bool flag;
    switch (field->kind) {
    case FIELD_U32:
        memcpy(&u32, at, sizeof u32);
        return json_integer((json_int_t)u32);
    case FIELD_U64:
        memcpy(&u64, at, sizeof u64);
        return json_integer((json_int_t)u64);
    case FIELD_F32:
        memcpy(&f32, at, sizeof f32);
        return json_real((double)f32); /* NULL if it is not finite */
    case FIELD_F64:
        memcpy(&f64, at, sizeof f64);
        return json_real(f64); /* NULL if it is not finite */
    case FIELD_BOOL:
        memcpy(&flag, at, sizeof flag);
        return json_boolean(flag);
    case FIELD_GROUP_NAME:
        return json_string(at); /* NULL if it is not UTF-8 */
    }
    return NULL;
}

static int copy_name(const json_t *value, char name[AMPD_GROUP_NAME_MAX])
{
    const char *text = json_string_value(value);
    if (text == NULL || strlen(text) >= AMPD_GROUP_NAME_MAX)
        return AMP_EDATALOSS;
    memcpy(name, text, strlen(text) + 1);
    return 0;
}

static int field_from_json(const struct field *field, const json_t *value, char *base)
{
    char *at = base + field->offset;
    bool is_integer = json_is_integer(value);
    uint64_t u64 = (uint64_t)json_integer_value(value);
    uint32_t u32 = (uint32_t)u64;
    double f64 = json_number_value(value);
    float f32 = (float)f64;
    bool flag = json_is_true(value);
    switch (field->kind) {
    case FIELD_U32:
        memcpy(at, &u32, sizeof u32);
        return is_integer && u64 <= UINT32_MAX ? 0 : AMP_EDATALOSS;
    case FIELD_U64:
        memcpy(at, &u64, sizeof u64);
        return is_integer ? 0 : AMP_EDATALOSS;
    case FIELD_F32:
        memcpy(at, &f32, sizeof f32);
        return json_is_number(value) ? 0 : AMP_EDATALOSS;
    case FIELD_F64:
        memcpy(at, &f64, sizeof f64);
        return json_is_number(value) ? 0 : AMP_EDATALOSS;
    case FIELD_BOOL:
        memcpy(at, &flag, sizeof flag);
        return json_is_boolean(value) ? 0 : AMP_EDATALOSS;
    case FIELD_GROUP_NAME:
        return copy_name(value, at);
    }
    return AMP_EDATALOSS;
}

static json_t *fields_to_json(const struct field *fields, size_t count, const void *base)
{
    json_t *object = json_object();
    for (size_t i = 0; object != NULL && i < count; i++) {
        if (json_object_set_new(object, fields[i].key, field_to_json(&fields[i], base)) != 0) {
            json_decref(object);
            object = NULL;
        }
    }
    return object;
}

/* The value for a missing key; NULL: the key must be there. */
static json_t *absent_of(const struct field *field)
{
    if (!field->later)
        return NULL;
    if (field->kind == FIELD_BOOL)
        return json_boolean(field->absent != 0);
    return field->kind == FIELD_U32 || field->kind == FIELD_U64 ? json_integer((json_int_t)field->absent)
                                                                : json_real(field->absent);
}

static int fields_from_json(const struct field *fields, size_t count, const json_t *object, void *base)
{
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_object_get(object, fields[i].key);
        json_t *absent = value == NULL ? absent_of(&fields[i]) : NULL;
        int rc = field_from_json(&fields[i], absent != NULL ? absent : value, base);
        json_decref(absent);
        if (rc != 0)
            return rc;
    }
    return 0;
}

int ampd_spec_to_json(const struct ampd_model_spec *spec, char **text)
{
    *text = NULL;
    ampd_json_begin();
    json_t *object = fields_to_json(spec_fields, COUNT(spec_fields), spec);
    json_t *groups = json_array();
    for (uint32_t i = 0; i < spec->groups_count && groups != NULL; i++) {
        json_t *group = fields_to_json(group_fields, COUNT(group_fields), &spec->groups[i]);
        if (json_array_append_new(groups, group) != 0) {
            json_decref(groups);
            groups = NULL;
        }
    }
    int rc = AMP_EINVAL;
    if (object != NULL && groups != NULL && json_object_set(object, "groups", groups) == 0) {
        *text = json_dumps(object, JSON_SORT_KEYS | JSON_COMPACT);
        rc = *text != NULL ? 0 : AMP_ENOMEM;
    }
    json_decref(groups);
    json_decref(object);
    if (ampd_json_no_memory()) {
        free(*text);
        *text = NULL;
        rc = AMP_ENOMEM;
    }
    return rc;
}

int ampd_spec_from_json(const char *text, struct ampd_model_spec *spec)
{
    json_t *object = ampd_json_read(text, strlen(text));
    if (object == NULL)
        return ampd_json_no_memory() ? AMP_ENOMEM : AMP_EDATALOSS;
    int rc = fields_from_json(spec_fields, COUNT(spec_fields), object, spec);
    const json_t *groups = json_object_get(object, "groups");
    size_t count = json_array_size(groups);
    if (count == 0 || count > AMPD_GROUPS_MAX)
        rc = AMP_EDATALOSS;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = fields_from_json(group_fields, COUNT(group_fields), json_array_get(groups, i), &spec->groups[i]);
    spec->groups_count = (uint32_t)count;
    json_decref(object);
    return ampd_json_no_memory() ? AMP_ENOMEM : rc;
}

void ampd_shape_to_text(const struct ampd_parameter_spec *parameter, char text[AMPD_SHAPE_TEXT_MAX])
{
    AMP_ASSERT(parameter->dimensions <= AMPD_DIMENSIONS_MAX);
    size_t used = (size_t)snprintf(text, AMPD_SHAPE_TEXT_MAX, "[");
    for (uint32_t i = 0; i < parameter->dimensions; i++)
        used += (size_t)snprintf(text + used, AMPD_SHAPE_TEXT_MAX - used, "%s%" PRIu64, i > 0 ? "," : "",
                                 parameter->shape[i]);
    (void)snprintf(text + used, AMPD_SHAPE_TEXT_MAX - used, "]");
}

int ampd_shape_from_text(const char *text, struct ampd_parameter_spec *parameter)
{
    json_t *array = ampd_json_read(text, strlen(text));
    size_t count = json_array_size(array);
    int rc = json_is_array(array) && count <= AMPD_DIMENSIONS_MAX ? 0 : AMP_EDATALOSS;
    parameter->dimensions = (uint32_t)count;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        const json_t *value = json_array_get(array, i);
        parameter->shape[i] = (uint64_t)json_integer_value(value);
        rc = json_is_integer(value) ? 0 : AMP_EDATALOSS;
    }
    json_decref(array);
    return ampd_json_no_memory() ? AMP_ENOMEM : rc;
}
