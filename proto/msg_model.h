/* What a model is and how it stands. How the functions behave: proto/msg_common.h. */
#ifndef AMPD_PROTO_MSG_MODEL_H
#define AMPD_PROTO_MSG_MODEL_H

#include "proto/msg_common.h"
#include "proto/spec_fields.h"

enum ampd_msg_optimizer_kind {
    AMPD_MSG_OPTIMIZER_KIND_UNSPECIFIED = 0, /* ADAMW */
    AMPD_MSG_OPTIMIZER_KIND_SGD = 1,         /* with momentum, dampening, Nesterov's form and coupled weight decay */
    AMPD_MSG_OPTIMIZER_KIND_ADAMW = 2,       /* Adam with decoupled weight decay */
    AMPD_MSG_OPTIMIZER_KIND_ADAM = 3,        /* with coupled weight decay */
    AMPD_MSG_OPTIMIZER_KIND_ADAGRAD = 4,     /* with coupled weight decay */
    AMPD_MSG_OPTIMIZER_KIND_RMSPROP = 5,     /* with momentum, or centered; coupled weight decay */
    AMPD_MSG_OPTIMIZER_KIND_LION = 6,        /* with decoupled weight decay */
};

/*
 * How the learning rate moves. All but WORKER count applied steps, so that a skipped step never moves them; a warm-up
 * may precede each of those.
 */
enum ampd_msg_schedule_kind {
    AMPD_MSG_SCHEDULE_KIND_UNSPECIFIED = 0, /* CONSTANT */
    AMPD_MSG_SCHEDULE_KIND_CONSTANT = 1,
    AMPD_MSG_SCHEDULE_KIND_LINEAR_WARMUP = 2, /* up over `warmup_steps`, then constant */
    AMPD_MSG_SCHEDULE_KIND_STEP = 3,          /* times `gamma` every `step_size` applied steps */
    AMPD_MSG_SCHEDULE_KIND_COSINE = 4,        /* down to `min_learning_rate` at `total_steps` */
    AMPD_MSG_SCHEDULE_KIND_WORKER = 5,        /* the header of each push names it; all contributors must agree */
};

enum ampd_msg_clip_scope {
    AMPD_MSG_CLIP_SCOPE_UNSPECIFIED = 0, /* GLOBAL */
    AMPD_MSG_CLIP_SCOPE_GLOBAL = 1,      /* one norm over all parameters */
    AMPD_MSG_CLIP_SCOPE_GROUP = 2,       /* one norm per parameter group */
};

enum ampd_msg_sync_mode {
    AMPD_MSG_SYNC_MODE_UNSPECIFIED = 0, /* SYNC */
    AMPD_MSG_SYNC_MODE_SYNC = 1,        /* a step needs all expected ranks */
    AMPD_MSG_SYNC_MODE_QUORUM = 2,      /* a step closes with the first `quorum` ranks */
};

enum ampd_msg_on_loss {
    AMPD_MSG_ON_LOSS_UNSPECIFIED = 0, /* WAIT */
    AMPD_MSG_ON_LOSS_WAIT = 1,   /* a step waits for a missing rank until loss_timeout, then the model is STALLED */
    AMPD_MSG_ON_LOSS_SHRINK = 2, /* a step opens, or opens again, with the ranks that live, at least min_workers */
};

enum ampd_msg_weighting {
    AMPD_MSG_WEIGHTING_UNSPECIFIED = 0, /* EQUAL */
    AMPD_MSG_WEIGHTING_EQUAL = 1,       /* every weight is 1 */
    AMPD_MSG_WEIGHTING_PUSHED = 2,      /* the header of each push names its weight */
};

enum ampd_msg_cast_overflow {
    AMPD_MSG_CAST_OVERFLOW_UNSPECIFIED = 0, /* REPORT */
    AMPD_MSG_CAST_OVERFLOW_REPORT = 1,      /* a master beyond the cast type's range is cast to Inf and reported */
    AMPD_MSG_CAST_OVERFLOW_SATURATE = 2,    /* it is cast to the largest finite value and reported */
};

/* What happens when the scale is at its floor and max_consecutive_overflows are reached. */
enum ampd_msg_floor_policy {
    AMPD_MSG_FLOOR_POLICY_UNSPECIFIED = 0, /* CLAMP */
    AMPD_MSG_FLOOR_POLICY_CLAMP = 1,       /* go on */
    AMPD_MSG_FLOOR_POLICY_FREEZE = 2,      /* open no step until SetScale, ResetScale or Rollback */
    AMPD_MSG_FLOOR_POLICY_FAIL = 3,        /* tell every worker to end */
};

enum ampd_msg_durability {
    AMPD_MSG_DURABILITY_UNSPECIFIED = 0, /* CHECKPOINT */
    /* after a crash the model resumes at the last checkpoint, with a higher epoch */
    AMPD_MSG_DURABILITY_CHECKPOINT = 1,
    AMPD_MSG_DURABILITY_STEP = 2, /* each step is journalled before it is voted on: no applied step is lost */
};

/* One parameter tensor, row-major. */
struct ampd_msg_parameter_spec {
    char name[128]; /* unique within the model; 1 to 127 bytes; no '#' and no '@' */
    uint32_t shape_count;
    uint64_t shape[8]; /* up to 8 extents, each at least 1; empty: a scalar. Up to 2^36 elements in all */
    uint32_t group;    /* index into ModelSpec.groups; default 0 */
};

struct ampd_msg_parameter_spec_list {
    struct ampd_msg_parameter_spec *items;
    size_t count;
};

/* Parameters that share optimizer values. Absent values are the optimizer's. */
struct ampd_msg_parameter_group {
    char name[64]; /* shown in status; default "" */
    bool has_learning_rate_factor;
    double learning_rate_factor; /* times the scheduled learning rate; finite, >= 0; default 1 */
    bool has_weight_decay;
    double weight_decay; /* finite, >= 0; default: the optimizer's */
    bool has_max_norm;
    float max_norm; /* clip scope GROUP: greatest 2-norm; > 0; default: the model's */
};

struct ampd_msg_parameter_group_list {
    struct ampd_msg_parameter_group *items;
    size_t count;
};

/* Numbers and choices of the specification, by the rows of proto/spec_fields.def, which say what each is. */
#define AMPD_SPEC_NUMBER(part, field, name, kind, presence, ...)                                                       \
    AMPD_SPEC_IF_OPTIONAL_##presence(bool has_##field;) AMPD_SPEC_TYPE_##kind field;
#define AMPD_SPEC_CHOICE(part, field, name, msg, ...) enum ampd_msg_##msg field;

struct ampd_msg_optimizer_spec {
#define AMPD_SPEC_PARTS AMPD_SPEC_OPTIMIZER
#include "proto/spec_fields.def"
};

struct ampd_msg_schedule_spec {
#define AMPD_SPEC_PARTS AMPD_SPEC_SCHEDULE
#include "proto/spec_fields.def"
};

struct ampd_msg_clip_spec {
#define AMPD_SPEC_PARTS AMPD_SPEC_CLIP
#include "proto/spec_fields.def"
};

struct ampd_msg_scaler_spec {
#define AMPD_SPEC_PARTS AMPD_SPEC_SCALER
#include "proto/spec_fields.def"
};

/* A model's specification. Absent fields are filled in with their defaults before two specifications are compared. */
struct ampd_msg_model_spec {
    char name[128];                                 /* 1 to 127 bytes of A-Z a-z 0-9 . _ - ; does not begin with '.' */
    struct ampd_msg_parameter_spec_list parameters; /* 1 to 8192, in the order of the flat space */
    struct ampd_msg_parameter_group_list groups;    /* up to 16; default: one group without values of its own */
    bool has_optimizer;
    struct ampd_msg_optimizer_spec optimizer;
    bool has_schedule;
    struct ampd_msg_schedule_spec schedule;
    bool has_clip;
    struct ampd_msg_clip_spec clip;
    bool has_scaler;
    struct ampd_msg_scaler_spec scaler;
#define AMPD_SPEC_PARTS AMPD_SPEC_MODEL
#include "proto/spec_fields.def"
};

#undef AMPD_SPEC_NUMBER
#undef AMPD_SPEC_CHOICE

/* A worker as the coordinator knows it. */
struct ampd_msg_worker_status {
    char name[128];
    uint32_t rank; /* 0 to world_size - 1 */
    bool live;     /* its lease has not ended */
    bool has_incarnation;
    struct ampd_msg_incarnation incarnation;
    uint64_t lease_left_ms;   /* 0 when not live */
    uint64_t pushes;          /* pushes that counted, since the server started */
    uint64_t overflow_pushes; /* of these, with an Inf or a NaN of the worker's own */
    uint64_t last_step;       /* step of the last push that counted; 0: none */
    bool has_join_time;
    struct ampd_msg_time join_time;
    uint32_t blocks_present; /* blocks of the open step that have come from it */
    uint32_t blocks_wanted;  /* blocks of the open step that it is to send */
    /* Steps go on without it, after 8 such pushes, or 16 of 64; nobody may join as its rank for a minute. */
    bool quarantined;
    bool straggles;        /* all others have waited for it, for most of each of the last 8 steps */
    bool nonfinite;        /* its last 5 pushes had Inf or NaN while at least half of the workers had none */
    char peer[64];         /* address that the last Join came from; "": not since the server started */
    uint64_t joins;        /* Joins of the rank since the server started */
    uint64_t replacements; /* Joins by another process since the server started, while the lease had not ended */
    uint64_t leaves;       /* Leaves since the server started */
    uint64_t fences;       /* calls refused since the server started, as of an old holder of the rank */
    /* Steps since the server started in which all others waited for it: for most of the step, and at least 0.2 s. */
    uint64_t slow_steps;
    uint64_t slow_ms; /* how long they waited in those */
};

struct ampd_msg_worker_status_list {
    struct ampd_msg_worker_status *items;
    size_t count;
};

/* How a model stands. */
struct ampd_msg_model_status {
    char name[128];
    enum ampd_msg_model_state state;
    uint64_t epoch;        /* from 1 */
    uint64_t step;         /* the open step, or the next one */
    uint64_t applied;      /* applied steps */
    uint64_t version;      /* newest complete version of the parameters */
    uint64_t durable_step; /* last step that survives a crash; 0: only the initial values do */
    bool has_scale;
    struct ampd_msg_scale_record scale;
    uint32_t world_size;
    uint32_t parameter_count;
    uint64_t element_count;                     /* over all parameters, padding not counted */
    uint32_t block_count;                       /* blocks of the flat space */
    bool unstable;                              /* max_consecutive_overflows in a row are reached */
    bool frozen;                                /* floor_policy freeze has stopped the model */
    char waiting_for[512];                      /* one sentence: what the model waits for; "" when it runs */
    struct ampd_msg_worker_status_list workers; /* by rank */
    bool has_create_time;
    struct ampd_msg_time create_time;
    enum ampd_msg_optimizer_kind optimizer;
    enum ampd_msg_dtype cast_dtype;
    bool recovering;       /* after a start, until the new epoch is stored */
    uint64_t memory_bytes; /* of tensors and of staged gradients */
    uint64_t base_epoch;   /* epoch of the checkpoint that the epoch began from; 0: none */
    uint64_t base_step;    /* last step in that checkpoint; 0: the initial values */
    uint64_t waiting_ms;   /* for how long it has waited for workers; 0: for less than 10 s */
    double learning_rate;  /* base rate of the next verdict; 0: the workers give it */
};

struct ampd_msg_model_status_list {
    struct ampd_msg_model_status *items;
    size_t count;
};

/*
 * Fills every absent field with its default: has_ flags are set, unspecified enums are named, and a specification
 * without groups gets one. 0, or AMP_ENOMEM with the specification as it was. spec->groups is from malloc, or empty.
 */
int ampd_msg_model_spec_defaults(struct ampd_msg_model_spec *spec);

int ampd_msg_model_spec_encode(const struct ampd_msg_model_spec *message, struct amp_buf *out);
int ampd_msg_model_spec_decode(struct ampd_msg_model_spec *message, const void *data, size_t size,
                               struct amp_error *error);
void ampd_msg_model_spec_free(struct ampd_msg_model_spec *message);

#endif
