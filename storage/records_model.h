/* The specification of a model, as CreateModel gives it and the store keeps it. See records.h. */
#ifndef AMPD_RECORDS_MODEL_H
#define AMPD_RECORDS_MODEL_H

#include "amp/dtype.h"
#include "amp/scaler.h"
#include "proto/spec_fields.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * Bounds of a specification. A name must fit into a file name and a metric's label; the other bounds limit what one
 * CreateModel message (at most 1 MiB) can make the server allocate.
 */
#define AMPD_NAME_MAX       128                 /* bytes of a model, parameter or worker name, with the final zero */
#define AMPD_PARAMETERS_MAX 8192                /* of one model: 128 bytes of CreateModel for each */
#define AMPD_DIMENSIONS_MAX 8                   /* dimensions of one parameter */
#define AMPD_GROUP_NAME_MAX 64                  /* bytes of a group's name, with the final zero */
#define AMPD_GROUPS_MAX     16                  /* parameter groups of one model */
#define AMPD_WORLD_MAX      256                 /* ranks of one model: staging memory is one gradient per rank */
#define AMPD_ELEMENTS_MAX   ((uint64_t)1 << 36) /* elements of one model: 64 Gi */

/*
 * The numbers of the enums below are part of wire and file formats: a number is never used again for something else.
 * Zero is "not given". docs/specification.md says what each choice does.
 */
enum ampd_optimizer { /* the numbers of enum amp_optimizer */
                      AMPD_OPTIMIZER_SGD = 1,
                      AMPD_OPTIMIZER_ADAMW = 2,
                      AMPD_OPTIMIZER_ADAM = 3,
                      AMPD_OPTIMIZER_ADAGRAD = 4,
                      AMPD_OPTIMIZER_RMSPROP = 5,
                      AMPD_OPTIMIZER_LION = 6
};
enum ampd_schedule {
    AMPD_SCHEDULE_CONSTANT = 1,
    AMPD_SCHEDULE_LINEAR_WARMUP = 2,
    AMPD_SCHEDULE_STEP = 3,
    AMPD_SCHEDULE_COSINE = 4,
    AMPD_SCHEDULE_WORKER = 5
};
enum ampd_clip_scope { AMPD_CLIP_GLOBAL = 1, AMPD_CLIP_GROUP = 2 };
enum ampd_sync { AMPD_SYNC_ALL = 1, AMPD_SYNC_QUORUM = 2 };
enum ampd_on_loss { AMPD_ON_LOSS_WAIT = 1, AMPD_ON_LOSS_SHRINK = 2 };
enum ampd_weighting { AMPD_WEIGHTING_EQUAL = 1, AMPD_WEIGHTING_PUSHED = 2 };
enum ampd_cast_overflow { AMPD_CAST_REPORT = 1, AMPD_CAST_SATURATE = 2 };
enum ampd_floor_policy { AMPD_FLOOR_CLAMP = 1, AMPD_FLOOR_FREEZE = 2, AMPD_FLOOR_FAIL = 3 };
/*
 * The value of checkpoint_every for a model that takes checkpoints only on request, before a drain and at its end: more
 * steps than any training has.
 */
#define AMPD_CHECKPOINT_ON_DEMAND ((uint64_t)INT64_MAX)

enum ampd_durability { AMPD_DURABILITY_CHECKPOINT = 1, AMPD_DURABILITY_STEP = 2 };

/* One parameter. Its elements are in C order (row-major); a scalar has no dimensions and one element. */
struct ampd_parameter_spec {
    char name[AMPD_NAME_MAX];
    uint32_t dimensions;
    uint64_t shape[AMPD_DIMENSIONS_MAX];
    uint32_t group; /* index into the specification's groups */
};

/* The settings of one parameter group, which replace those of the model. */
struct ampd_group_spec {
    char name[AMPD_GROUP_NAME_MAX]; /* shown to people; "": the group has no name */
    double lr_scale;                /* factor of the scheduled learning rate, default 1 */
    bool weight_decay_set;          /* false: the optimizer's weight decay holds for the group */
    double weight_decay;            /* the group's weight decay, used if weight_decay_set */
    float clip_max_norm;            /* with clip scope GROUP: the group's limit of its norm; 0: the model's limit */
};

/* The members that come from proto/spec_fields.def; its rows say what each one means and what values it may have. */
#define AMPD_SPEC_NUMBER(part, field, name, kind, presence, ...)                                                       \
    AMPD_SPEC_TYPE_##kind name;                                                                                        \
    AMPD_SPEC_IF_SET_##presence(bool name##_set;)
#define AMPD_SPEC_CHOICE(part, field, name, msg, core, ...) enum core name;

/*
 * The state that each row of the history passes on to the next one. A step starts from the carry of the row before it,
 * and a checkpoint holds the carry of its step.
 */
struct ampd_carry {
    struct amp_scaler_state scaler; /* the loss scaler's state */
    double lr;                      /* base learning rate set by an operator; 0: the specification's holds */
};

/*
 * The specification of a model. Fields that the user left out have the defaults of proto/spec_defaults.c.
 */
struct ampd_model_spec {
    char name[AMPD_NAME_MAX];
    uint32_t parameters_count;
    struct ampd_parameter_spec *parameters; /* owned */
    uint32_t groups_count;                  /* at least 1 */
    struct ampd_group_spec groups[AMPD_GROUPS_MAX];

#define AMPD_SPEC_PARTS (AMPD_SPEC_ALL - AMPD_SPEC_SCALER)
#include "proto/spec_fields.def"
    struct amp_scaler_config scaler;
};

#undef AMPD_SPEC_NUMBER
#undef AMPD_SPEC_CHOICE

#endif
