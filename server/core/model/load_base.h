/*
 * The base of a load: the step that its values go on from. The values of a new model go on from step 0, those of a
 * model that comes from elsewhere from its last step, with its version and its loss-scale record. The epoch of the load
 * begins there. Pure functions.
 */
#ifndef AMPD_LOAD_BASE_H
#define AMPD_LOAD_BASE_H

#include "base/err.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * The highest step and epoch that another shard may name. An epoch may also be above it, if it is at most
 * AMPD_FENCE_LEAP above the one known here, since --epoch-above may begin there.
 */
#define AMPD_NUMBER_PEER_MAX ((uint64_t)1 << 62)

/* The highest step and scale id that a full load may give: later ones stay below what another shard would refuse. */
#define AMPD_NUMBER_LOADED_MAX (AMPD_NUMBER_PEER_MAX / 2)

struct ampd_load_base {
    uint64_t step, version;  /* the last decided step, and the version after it */
    struct ampd_carry carry; /* loss-scale record and set learning rate after it */
};

/* The base of a model's first values: step 0, with the record that its checked specification begins with. */
struct ampd_load_base ampd_load_base_first(const struct ampd_model_spec *spec);

/* Whether two bases are the same, bit for bit. */
bool ampd_load_base_same(const struct ampd_load_base *a, const struct ampd_load_base *b);

/* 0 if a model of this checked specification can have this base, else AMP_EINVAL with a text that names the field. */
int ampd_load_base_check(const struct ampd_model_spec *spec, const struct ampd_load_base *base,
                         struct amp_error *error);

#endif
