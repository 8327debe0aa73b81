#include "client/io/client_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ELEMENTS_MAX ((uint64_t)1 << 40) /* above the server's bound, below where products of 64 bits wrap */
#define SHAPE_MAX    8

int ampclient_copy_name(char field[128], const char *name, const char *what, struct amp_error *error)
{
    size_t size = name != NULL ? strnlen(name, 128) : 0;
    if (size == 0 || size == 128)
        return amp_error_set(error, AMP_EINVAL, NULL, "%s must be given and have 1 to 127 bytes.", what);
    memcpy(field, name, size + 1);
    return 0;
}

int ampclient_parameter_elements(const uint64_t *shape, uint32_t dimensions, uint64_t *elements)
{
    *elements = 1;
    for (uint32_t d = 0; d < dimensions; d++) {
        if (shape[d] == 0 || shape[d] > ELEMENTS_MAX / *elements)
            return AMP_EINVAL;
        *elements *= shape[d];
    }
    return 0;
}

static int put_parameter(const struct ampclient_parameter_spec *from, uint32_t index,
                         struct ampd_msg_parameter_spec *to, struct amp_error *error)
{
    char what[64];
    (void)snprintf(what, sizeof what, "The name of parameter %u", index);
    int rc = ampclient_copy_name(to->name, from->name, what, error);
    if (rc != 0)
        return rc;
    if (from->dimensions > SHAPE_MAX)
        return amp_error_set(error, AMP_EINVAL, NULL, "Parameter \"%s\" has %u dimensions; at most %d are possible.",
                             to->name, from->dimensions, SHAPE_MAX);
    uint64_t elements;
    if (ampclient_parameter_elements(from->shape, from->dimensions, &elements) != 0)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "The shape of parameter \"%s\" has an extent of 0, or is too large; correct the shape.",
                             to->name);
    to->group = from->group;
    to->shape_count = from->dimensions;
    memcpy(to->shape, from->shape, from->dimensions * sizeof *to->shape);
    return 0;
}

/* A field that is 0 means the server's default: it stays absent. */
#define PUT(to, field, value)                                                                                          \
    do {                                                                                                               \
        (to)->has_##field = (value) != 0;                                                                              \
        (to)->field = (value);                                                                                         \
    } while (0)

static void put_model(const struct ampclient_spec *spec, struct ampd_msg_model_spec *to)
{
#define PUT_PLAIN(field, has, name) (field) = spec->name;
#define PUT_GIVEN(field, has, name)                                                                                    \
    (has) = spec->name != 0;                                                                                           \
    (field) = spec->name;
#define PUT_OFF PUT_GIVEN
#define PUT_SET(field, has, name)                                                                                      \
    (has) = spec->name##_set;                                                                                          \
    (field) = spec->name##_set ? spec->name : 0;
#define AMPD_SPEC_NUMBER(part, field, name, kind, presence, ...)                                                       \
    PUT_##presence(to->AMPD_SPEC_IN_##part field, to->AMPD_SPEC_IN_##part has_##field, name)
#define AMPD_SPEC_CHOICE(part, field, name, msg, ...) to->AMPD_SPEC_IN_##part field = (enum ampd_msg_##msg)spec->name;
#define AMPD_SPEC_PARTS                               AMPD_SPEC_ALL
#include "proto/spec_fields.def"
#undef AMPD_SPEC_NUMBER
#undef AMPD_SPEC_CHOICE
    if (spec->checkpoint_every == AMPCLIENT_CHECKPOINT_ON_DEMAND)
        to->checkpoint_every = 0; /* it is sent, for has_checkpoint_every is set */
    if (spec->beta1 == AMPCLIENT_BETA_ZERO)
        to->optimizer.beta1 = 0;
    if (spec->beta2 == AMPCLIENT_BETA_ZERO)
        to->optimizer.beta2 = 0;
    to->has_optimizer = to->has_schedule = to->has_scaler = true;
    to->has_clip = spec->clip_value != 0 || spec->clip_max_norm != 0 || spec->clip_scope != 0;
}

static int put_group(const struct ampclient_group_spec *from, uint32_t index, struct ampd_msg_parameter_group *to,
                     struct amp_error *error)
{
    if (from->name != NULL && strlen(from->name) >= sizeof to->name)
        return amp_error_set(error, AMP_EINVAL, NULL, "The name of group %u is too long; use at most %zu bytes.", index,
                             sizeof to->name - 1);
    if (from->name != NULL)
        (void)snprintf(to->name, sizeof to->name, "%s", from->name);
    to->has_learning_rate_factor = from->lr_factor_set;
    to->learning_rate_factor = from->lr_factor_set ? from->lr_factor : 0;
    to->has_weight_decay = from->weight_decay_set;
    to->weight_decay = from->weight_decay_set ? from->weight_decay : 0;
    PUT(to, max_norm, from->clip_max_norm);
    return 0;
}

static int put_groups(const struct ampclient_spec *spec, struct ampd_msg_parameter_group *items,
                      struct ampd_msg_model_spec *to, struct amp_error *error)
{
    to->groups.items = items;
    to->groups.count = spec->groups_count;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < spec->groups_count; i++)
        rc = put_group(&spec->groups[i], i, &items[i], error);
    return rc;
}

static int check(const struct ampclient_spec *spec, struct amp_error *error)
{
    if (spec->parameters == NULL)
        return amp_error_set(error, AMP_EINVAL, NULL, "parameters is NULL; give the parameters of the model.");
    if (spec->parameters_count == 0 || spec->parameters_count > AMPD_MSG_PARAMETERS_MAX)
        return amp_error_set(error, AMP_EINVAL, NULL, "parameters_count is %u; give 1 to %d parameters.",
                             spec->parameters_count, AMPD_MSG_PARAMETERS_MAX);
    if (spec->world_size == 0 || spec->world_size > AMPD_MSG_WORKERS_MAX)
        return amp_error_set(error, AMP_EINVAL, NULL, "world_size is %u; give the number of workers, 1 to %d.",
                             spec->world_size, AMPD_MSG_WORKERS_MAX);
    if (spec->groups_count > AMPD_MSG_GROUPS_MAX || (spec->groups == NULL && spec->groups_count > 0))
        return amp_error_set(error, AMP_EINVAL, NULL, "groups_count is %u; give groups, and at most %d of them.",
                             spec->groups_count, AMPD_MSG_GROUPS_MAX);
    return 0;
}

int ampclient_spec_encode(const struct ampclient_spec *spec, struct amp_buf *out, struct amp_error *error)
{
    struct ampd_msg_create_model_request request = {.has_spec = true};
    int rc = ampclient_copy_name(request.spec.name, spec->name, "The name of the model", error);
    if (rc == 0)
        rc = check(spec, error);
    if (rc != 0)
        return rc;
    put_model(spec, &request.spec);
    struct ampd_msg_parameter_spec *items = calloc(spec->parameters_count, sizeof *items);
    if (items == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "There is no memory for the specification.");
    request.spec.parameters.items = items;
    request.spec.parameters.count = spec->parameters_count;
    struct ampd_msg_parameter_group groups[AMPD_MSG_GROUPS_MAX] = {0};
    rc = put_groups(spec, groups, &request.spec, error);
    for (uint32_t i = 0; rc == 0 && i < spec->parameters_count; i++)
        rc = put_parameter(&spec->parameters[i], i, &items[i], error);
    if (rc == 0) {
        rc = ampd_msg_create_model_request_encode(&request, out);
        if (rc == AMP_EEXHAUSTED)
            rc = amp_error_set(error, AMP_EINVAL, NULL,
                               "The specification is larger than %d bytes; use fewer parameters or shorter names.",
                               AMPD_MSG_SIZE_MAX);
        else if (rc != 0)
            (void)amp_error_set(error, rc, NULL, "The specification cannot be sent; names must be UTF-8.");
    }
    free(items);
    return rc;
}
