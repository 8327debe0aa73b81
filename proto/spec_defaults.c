#include "proto/msg_model.h"

#include <stdlib.h>

/* A field that has its own flag. */
#define DEFAULT(s, f, value)                                                                                           \
    do {                                                                                                               \
        if (!(s)->has_##f)                                                                                             \
            (s)->f = (value);                                                                                          \
        (s)->has_##f = true;                                                                                           \
    } while (0)

/* The rows of proto/spec_fields.def whose default depends on nothing else. */
static void constant_defaults(struct ampd_msg_model_spec *spec)
{
#define DEFAULT_PLAIN(field, has, value)                                                                               \
    if ((field) == 0)                                                                                                  \
        (field) = (value);
#define DEFAULT_GIVEN(field, has, value)                                                                               \
    if (!(has) && (value) != 0) {                                                                                      \
        (field) = (value);                                                                                             \
        (has) = true;                                                                                                  \
    }
#define DEFAULT_OFF DEFAULT_GIVEN
#define DEFAULT_SET DEFAULT_GIVEN
#define AMPD_SPEC_NUMBER(part, field, name, kind, presence, default_, ...)                                             \
    DEFAULT_##presence(spec->AMPD_SPEC_IN_##part field, spec->AMPD_SPEC_IN_##part has_##field, default_)
#define AMPD_SPEC_CHOICE(part, field, name, msg, core, default_, ...)                                                  \
    DEFAULT_PLAIN(spec->AMPD_SPEC_IN_##part field, , default_)
#define AMPD_SPEC_PARTS AMPD_SPEC_ALL
#include "proto/spec_fields.def"
#undef AMPD_SPEC_NUMBER
#undef AMPD_SPEC_CHOICE
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

/*
 * Values that an optimizer does not use are filled in too, but for alpha, which specifications of before do not have.
 */
static void optimizer_defaults(struct ampd_msg_optimizer_spec *optimizer)
{
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
        struct ampd_msg_parameter_group *group = calloc(1, sizeof *group);
        if (group == NULL)
            return AMP_ENOMEM;
        free(spec->groups.items);
        spec->groups = (struct ampd_msg_parameter_group_list){.items = group, .count = 1};
    }
    spec->has_optimizer = spec->has_schedule = spec->has_clip = spec->has_scaler = true;
    constant_defaults(spec);
    optimizer_defaults(&spec->optimizer);
    for (size_t i = 0; i < spec->groups.count; i++)
        group_defaults(&spec->groups.items[i], &spec->optimizer);
    DEFAULT(&spec->schedule, gamma, 0.1);
    DEFAULT(&spec->scaler, init_scale, spec->scaler.policy == AMPD_MSG_SCALER_POLICY_NONE ? 1.0f : 65536.0f);
    return 0;
}
