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

/* What follows from the row of an applied step. */
void ampd_verdict_rates(const struct ampd_model *model, struct ampd_verdict_message *verdict)
{
    const struct ampd_model_spec *spec = &model->spec;
    const struct ampd_step_row *row = &verdict->row;
    for (uint32_t g = 0; g < spec->groups_count; g++)
        verdict->group_lr[g] = fmin(row->lr * spec->groups[g].lr_scale, (double)FLT_MAX);
    struct amp_optim_config config = ampd_spec_optim(spec);
    struct amp_apply apply;
    amp_optim_scalars(&config, row->version, row->lr, row->clip, &apply);
    verdict->bias1 = apply.bias1;
    verdict->bias2 = apply.bias2;
}

void ampd_verdict_of_row(const struct ampd_model *model, const struct ampd_step_row *row,
                         struct ampd_verdict_message *verdict)
{
    *verdict = (struct ampd_verdict_message){.row = *row};
    if (row->verdict == AMPD_VERDICT_APPLIED)
        ampd_verdict_rates(model, verdict);
}

void ampd_verdict_plan(const struct ampd_model *model, const struct ampd_verdict_message *verdict,
                       struct ampd_plan *plan)
{
    const struct ampd_model_spec *spec = &model->spec;
    uint64_t t = verdict->row.version;
    for (uint32_t g = 0; g < spec->groups_count; g++) {
        struct amp_optim_config config = ampd_spec_optim(spec);
        if (spec->groups[g].weight_decay_set)
            config.weight_decay = spec->groups[g].weight_decay;
        struct amp_apply *apply = &plan->applies[g];
        amp_optim_scalars(&config, t, verdict->group_lr[g], verdict->row.clips[g], apply);
        apply->bias1 = verdict->bias1; /* as bits from the coordinator, never derived a second time */
        apply->bias2 = verdict->bias2;
        apply->cast = spec->cast;
        apply->saturate = spec->cast_overflow == AMPD_CAST_SATURATE;
        apply->first_step = t == 1; /* of the model: a parameter that was absent then starts from a zero buffer */
    }
}
