#include "server/core/model/load_base.h"

#include "server/core/model/spec.h"

#include <inttypes.h>
#include <string.h>

struct ampd_load_base ampd_load_base_first(const struct ampd_model_spec *spec)
{
    struct ampd_load_base base = {0};
    amp_scaler_init(&spec->scaler, &base.carry.scaler);
    return base;
}

bool ampd_load_base_same(const struct ampd_load_base *a, const struct ampd_load_base *b)
{
    const struct amp_scaler_state *x = &a->carry.scaler, *y = &b->carry.scaler;
    return a->step == b->step && a->version == b->version && memcmp(&x->scale, &y->scale, sizeof x->scale) == 0 &&
           x->scale_id == y->scale_id && x->growth_tracker == y->growth_tracker &&
           x->hysteresis_left == y->hysteresis_left && x->consecutive_overflows == y->consecutive_overflows &&
           x->total_overflows == y->total_overflows && x->steps_since_overflow == y->steps_since_overflow &&
           x->attempted == y->attempted && x->applied == y->applied && x->skipped == y->skipped &&
           memcmp(&a->carry.lr, &b->carry.lr, sizeof a->carry.lr) == 0;
}

int ampd_load_base_check(const struct ampd_model_spec *spec, const struct ampd_load_base *base, struct amp_error *error)
{
    const uint64_t id = base->carry.scaler.scale_id;
    if (base->step > AMPD_NUMBER_LOADED_MAX)
        return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD",
                             "state.step: %" PRIu64 " is above 2^61; give the step of the checkpoint", base->step);
    if (id > AMPD_NUMBER_LOADED_MAX)
        return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD",
                             "state.record.scale_id: %" PRIu64 " is above 2^61; give that of the checkpoint", id);
    /* Each decided step is counted, and each applied one makes a version (docs/architecture.md section 1). */
    if (base->carry.scaler.attempted != base->step || base->carry.scaler.applied != base->version)
        return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD",
                             "state: step %" PRIu64 " and version %" PRIu64 " with a record of %" PRIu64
                             " steps, %" PRIu64 " of them applied; give all of them from one checkpoint",
                             base->step, base->version, base->carry.scaler.attempted, base->carry.scaler.applied);
    if (!ampd_spec_takes_lr(base->carry.lr))
        return amp_error_set(
            error, AMP_EINVAL, "INVALID_FIELD",
            "state.learning_rate: %g is not possible; give that of the checkpoint, or 0 if it has none",
            base->carry.lr);
    if (amp_scaler_state_check(&spec->scaler, &base->carry.scaler, error) == 0)
        return 0;
    struct amp_error why = *error;
    return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD",
                         "state.record: %.300s; create the model with the scaler that the other one had", why.text);
}
