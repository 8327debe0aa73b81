/*
 * The specification that a test gives to the core, which takes only whole ones: proto/spec_defaults.c completes those
 * of users.
 */
#ifndef AMPD_TESTS_WHOLE_SPEC_H
#define AMPD_TESTS_WHOLE_SPEC_H

#include "amp/optim.h"
#include "storage/records.h"

static inline void whole_real(double *field, double value)
{
    if (*field == 0)
        *field = value;
}

/* Fills the fields that are zero with their defaults. Returns its argument. */
static inline struct ampd_model_spec *whole_spec(struct ampd_model_spec *spec)
{
    if (spec->groups_count == 0) {
        spec->groups_count = 1;
        spec->groups[0] = (struct ampd_group_spec){.lr_scale = 1};
    }
#define AMPD_SPEC_NUMBER(part, field, name, kind, presence, default_, ...)                                             \
    if (spec->name == 0)                                                                                               \
        spec->name = (default_);
#define AMPD_SPEC_CHOICE(part, field, name, msg, core, default_, ...)                                                  \
    if (spec->name == 0)                                                                                               \
        spec->name = (default_);
#define AMPD_SPEC_PARTS (AMPD_SPEC_ALL - AMPD_SPEC_SCALER)
#include "proto/spec_fields.def"
#undef AMPD_SPEC_NUMBER
#undef AMPD_SPEC_CHOICE
    struct amp_optim_config optim;
    amp_optim_defaults((enum amp_optimizer)spec->optimizer, &optim);
    whole_real(&spec->lr, spec->optimizer == AMPD_OPTIMIZER_SGD ? 1e-2 : optim.lr);
    whole_real(&spec->beta1, optim.beta1);
    whole_real(&spec->beta2, optim.beta2);
    whole_real(&spec->eps, optim.eps);
    whole_real(&spec->alpha, optim.alpha);
    if (!spec->weight_decay_set) {
        spec->weight_decay = optim.weight_decay;
        spec->weight_decay_set = true;
    }
    if (spec->schedule == AMPD_SCHEDULE_STEP)
        whole_real(&spec->step_factor, 0.1);
    amp_scaler_config_defaults(&spec->scaler);
    return spec;
}

#endif
