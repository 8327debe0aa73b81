/*
 * After which step the values of a load are: those of a new model after none, those of a model that comes from
 * elsewhere after its last one, with its version and its loss-scale record. The epoch of the load begins there. Pure
 * functions.
 */
#ifndef AMPD_LOAD_BASE_H
#define AMPD_LOAD_BASE_H

#include "base/err.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * Steps that a shard tells are not above this, nor are epochs, or else by no more than a leap: --epoch-above may begin
 * here.
 */
#define AMPD_NUMBER_TOLD_MAX ((uint64_t)1 << 62)

/* The highest step and scale id that a full load may give: later ones stay below what another shard would refuse. */
#define AMPD_NUMBER_LOADED_MAX (AMPD_NUMBER_TOLD_MAX / 2)

struct ampd_load_base {
    uint64_t step, version;
    struct ampd_carry carry;
};

/* Of the first values of a model with this checked specification. */
struct ampd_load_base ampd_load_base_first(const struct ampd_model_spec *spec);

bool ampd_load_base_same(const struct ampd_load_base *a, const struct ampd_load_base *b);

/* Whether a model of this checked specification can be there. 0, or AMP_EINVAL with a text that names the field. */
int ampd_load_base_check(const struct ampd_model_spec *spec, const struct ampd_load_base *base,
                         struct amp_error *error);

#endif
