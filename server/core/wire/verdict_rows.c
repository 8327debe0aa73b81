/* From the row of a verdict to what each shard does with it: the same bits on all of them. */
#include "server/core/wire/verdict_rows.h"

#include "server/core/base/model.h"
#include "server/core/model/passes.h"
#include "server/core/model/spec.h"

#include <float.h>
#include <math.h>

bool ampd_is_unstable(const struct ampd_model_spec *spec, const struct amp_scaler_state *scaler)
{
    return scaler->consecutive_overflows >= spec->max_consecutive_overflows;
}

bool ampd_floor_stops(const struct ampd_model_spec *spec, const struct amp_scaler_state *scaler)
{
    return spec->floor_policy != AMPD_FLOOR_CLAMP && ampd_is_unstable(spec, scaler) &&
           amp_scaler_at_floor(&spec->scaler, scaler);
}

void ampd_verdict_plan(const struct ampd_model *model, const struct ampd_step_row *row, struct ampd_plan *plan)
{
    const struct ampd_model_spec *spec = &model->spec;
    uint64_t t = row->version;
    for (uint32_t g = 0; g < spec->groups_count; g++) {
        struct amp_optim_config config = ampd_spec_optim(spec);
        if (spec->groups[g].weight_decay_set)
            config.weight_decay = spec->groups[g].weight_decay;
        struct amp_apply *apply = &plan->applies[g];
        double lr = fmin(row->lr * spec->groups[g].lr_scale, (double)FLT_MAX);
        amp_optim_scalars(&config, t, lr, row->clips[g], apply);
        apply->cast = spec->cast;
        apply->saturate = spec->cast_overflow == AMPD_CAST_SATURATE;
        apply->first_step = t == 1; /* of the model: a parameter that was absent then starts from a zero buffer */
    }
}
