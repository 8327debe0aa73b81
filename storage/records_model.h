/* A model as its users describe it: what server/core decides with and the store keeps. See records.h. */
#ifndef AMPD_RECORDS_MODEL_H
#define AMPD_RECORDS_MODEL_H

#include "amp/dtype.h"
#include "amp/scaler.h"
#include "proto/spec_fields.h"

#include <stdbool.h>
#include <stdint.h>

/* Bounds. A name fits a file name and a metric label; the rest bounds what one CreateModel (1 MiB) can ask for. */
#define AMPD_NAME_MAX       128                 /* bytes of a model, parameter or worker name, with the final zero */
#define AMPD_PARAMETERS_MAX 8192                /* of one model: 128 bytes of CreateModel for each */
#define AMPD_DIMENSIONS_MAX 8                   /* dimensions of one parameter */
#define AMPD_GROUP_NAME_MAX 64                  /* bytes of a group's name, with the final zero */
#define AMPD_GROUPS_MAX     16                  /* parameter groups of one model */
#define AMPD_WORLD_MAX      256                 /* ranks of one model: staging memory is one gradient per rank */
#define AMPD_ELEMENTS_MAX   ((uint64_t)1 << 36) /* elements of one model: 64 Gi */

/* Numbers below are part of the wire and file formats: never reuse one. Zero means "not given". */
enum ampd_optimizer { /* as amp's */
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
 * checkpoint_every of a model that is cut on demand, before a drain and at its end alone; a step that no training
 * reaches.
 */
#define AMPD_CHECKPOINT_ON_DEMAND ((uint64_t)INT64_MAX)

enum ampd_durability { AMPD_DURABILITY_CHECKPOINT = 1, AMPD_DURABILITY_STEP = 2 };

/* One parameter: its elements in C order; a scalar has no dimensions and one element. */
struct ampd_parameter_spec {
    char name[AMPD_NAME_MAX];
    uint32_t dimensions;
    uint64_t shape[AMPD_DIMENSIONS_MAX];
    uint32_t group; /* index into groups */
};

/* What a group of parameters has of its own. */
struct ampd_group_spec {
    char name[AMPD_GROUP_NAME_MAX]; /* shown to people; "" is none */
    double lr_scale;                /* factor of the scheduled learning rate, default 1 */
    bool weight_decay_set;
    double weight_decay; /* instead of the optimizer's, if set */
    float clip_max_norm; /* clip scope GROUP: instead of the model's; 0: the model's */
};

/* Numbers and choices of the specification, by the rows of proto/spec_fields.def, which say what each is. */
#define AMPD_SPEC_NUMBER(part, field, name, kind, presence, ...)                                                       \
    AMPD_SPEC_TYPE_##kind name;                                                                                        \
    AMPD_SPEC_IF_SET_##presence(bool name##_set;)
#define AMPD_SPEC_CHOICE(part, field, name, msg, core, ...) enum core name;

/*
 * What each row of the history hands on to the next: a step begins with that of the row before it, a checkpoint keeps
 * that of its step.
 */
struct ampd_carry {
    struct amp_scaler_state scaler; /* the loss-scale record */
    double lr;                      /* the base learning rate that an operator has set; 0: the specification's */
};

/* A model as its users describe it. Absent fields are filled in before two are compared (ampd_spec_defaults). */
struct ampd_model_spec {
    char name[AMPD_NAME_MAX];
    uint32_t parameters_count;
    struct ampd_parameter_spec *parameters; /* owned */
    uint32_t groups_count;                  /* at least 1 once filled in */
    struct ampd_group_spec groups[AMPD_GROUPS_MAX];

#define AMPD_SPEC_PARTS (AMPD_SPEC_ALL - AMPD_SPEC_SCALER)
#include "proto/spec_fields.def"
    struct amp_scaler_config scaler;
};

#undef AMPD_SPEC_NUMBER
#undef AMPD_SPEC_CHOICE

#endif
