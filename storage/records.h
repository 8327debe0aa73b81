/*
 * The plain types that the server's core decides with and the store keeps. No function, no I/O: core, stores
 * and the simulator meet here.
 */
#ifndef AMPD_RECORDS_H
#define AMPD_RECORDS_H

#include "amp/dtype.h"
#include "amp/scaler.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bounds. A name fits a file name and a metric label; the rest bounds what one CreateModel (1 MiB) can ask
 * for. */
#define AMPD_NAME_MAX          128                 /* bytes of a model, parameter or worker name, with the final zero */
#define AMPD_PARAMETERS_MAX    8192                /* DESIGN section 3 */
#define AMPD_DIMENSIONS_MAX    8                   /* dimensions of one parameter */
#define AMPD_GROUP_NAME_MAX    64                  /* bytes of a group's name, with the final zero */
#define AMPD_GROUPS_MAX        16                  /* parameter groups of one model */
#define AMPD_WORLD_MAX         256                 /* ranks of one model: staging memory is one gradient per rank */
#define AMPD_ELEMENTS_MAX      ((uint64_t)1 << 36) /* elements of one model: 64 Gi */
#define AMPD_USER_STATE_MAX    65536               /* bytes per rank */
#define AMPD_OVERFLOW_ROWS_MAX 64                  /* rows of one step, STEP section 2 */
#define AMPD_REASON_MAX        64                  /* bytes of a reason, with the final zero */
#define AMPD_BOOT_ID_BYTES     16
#define AMPD_ACTOR_MAX         128 /* bytes of the name of who asked, with the final zero */
#define AMPD_WORDS_MAX         256 /* bytes of an operator's own words, with the final zero */
#define AMPD_REQUEST_ID_MAX    65  /* bytes of a request id, with the final zero: 64 are two UUIDs */
#define AMPD_ACTS_MAX          32  /* newest acts whose request ids are known: whoever repeats one does so at once */
#define AMPD_PARTS_MAX         64  /* shards that one checkpoint is cut for; completion of a push is a bit per shard */
#define AMPD_JOURNAL_STEPS     64 /* durability STEP cuts at least so often: each step until then is a gradient on disk */

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
    AMPD_SCHEDULE_COSINE = 4
};
enum ampd_clip_scope { AMPD_CLIP_GLOBAL = 1, AMPD_CLIP_GROUP = 2 };
enum ampd_sync { AMPD_SYNC_ALL = 1, AMPD_SYNC_QUORUM = 2 };
enum ampd_on_loss { AMPD_ON_LOSS_WAIT = 1, AMPD_ON_LOSS_SHRINK = 2 };
enum ampd_weighting { AMPD_WEIGHTING_EQUAL = 1, AMPD_WEIGHTING_PUSHED = 2 };
enum ampd_cast_overflow { AMPD_CAST_REPORT = 1, AMPD_CAST_SATURATE = 2 };
enum ampd_floor_policy { AMPD_FLOOR_CLAMP = 1, AMPD_FLOOR_FREEZE = 2, AMPD_FLOOR_FAIL = 3 };
/* checkpoint_every of a model that is cut on demand, before a drain and at its end alone; a step that no training reaches. */
#define AMPD_CHECKPOINT_ON_DEMAND ((uint64_t)INT64_MAX)

enum ampd_durability { AMPD_DURABILITY_CHECKPOINT = 1, AMPD_DURABILITY_STEP = 2 };
enum ampd_verdict {
    AMPD_VERDICT_APPLIED = 1,
    AMPD_VERDICT_SKIPPED_OVERFLOW = 2,
    AMPD_VERDICT_SKIPPED_EMPTY = 3,
    AMPD_VERDICT_LATE = 4, /* an answer to a worker, never a row */
};
enum ampd_model_state {
    AMPD_MODEL_CREATED = 1,
    AMPD_MODEL_LOADING = 2,
    AMPD_MODEL_WAITING = 3,
    AMPD_MODEL_RUNNING = 4,
    AMPD_MODEL_STALLED = 5,
    AMPD_MODEL_DONE = 6,
};

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

/* A model as its users describe it. Absent fields are filled in before two are compared (DESIGN section 7).
 */
struct ampd_model_spec {
    char name[AMPD_NAME_MAX];
    uint32_t parameters_count;
    struct ampd_parameter_spec *parameters; /* owned */
    uint32_t groups_count;                  /* at least 1 once filled in */
    struct ampd_group_spec groups[AMPD_GROUPS_MAX];

    enum ampd_optimizer optimizer; /* default ADAMW */
    double lr;                     /* base learning rate, default 1e-3, of LION 1e-4, of SGD, ADAGRAD, RMSPROP 1e-2 */
    double beta1, beta2, eps; /* ADAMW, ADAM: 0.9, 0.999, 1e-8; LION: 0.9, 0.99; ADAGRAD, RMSPROP: eps 1e-10, 1e-8 */
    double weight_decay;      /* ADAMW 0.01, the others 0 */
    bool weight_decay_set;
    double momentum, dampening; /* SGD: 0, 0; RMSPROP: momentum 0 */
    double alpha;               /* RMSPROP: 0.99 */
    double lr_decay;            /* ADAGRAD: 0 */
    bool nesterov, centered;    /* SGD; RMSPROP */

    enum ampd_schedule schedule; /* default CONSTANT */
    uint64_t warmup_steps;       /* LINEAR_WARMUP, COSINE: applied steps */
    uint64_t total_steps;        /* COSINE */
    uint64_t step_every;         /* STEP: applied steps */
    double step_factor;          /* STEP: factor each step_every */
    double lr_min;               /* COSINE */

    float clip_value;                /* clip by value, 0: off */
    float clip_max_norm;             /* clip by the 2-norm, 0: off */
    enum ampd_clip_scope clip_scope; /* whose norm, default GLOBAL */

    uint32_t world_size;
    enum ampd_sync sync;
    uint32_t quorum; /* q of QUORUM */
    enum ampd_on_loss on_loss;
    uint64_t loss_timeout_ms; /* default 600000 */
    uint32_t min_workers;     /* default 1 */
    enum ampd_weighting weighting;
    enum amp_dtype cast; /* dtype of pulls, default AMP_F16 */
    enum ampd_cast_overflow cast_overflow;
    struct amp_scaler_config scaler;
    enum ampd_floor_policy floor_policy;
    uint32_t max_consecutive_overflows; /* default 50 */
    uint64_t max_steps;                 /* attempted steps, 0: endless */
    uint64_t checkpoint_every;          /* attempted steps, default 100; AMPD_CHECKPOINT_ON_DEMAND: no step by itself */
    uint64_t keep_every;                /* checkpoints kept: those of every so many steps, 0: none, */
    uint32_t keep_last;                 /* and the newest so many, default 3 */
    enum ampd_durability durability;
};

/* Who a process is: its boot counter (or lease revision) and a random id of that boot. */
struct ampd_fence {
    uint64_t counter;
    uint8_t boot_id[AMPD_BOOT_ID_BYTES];
};

/*
 * One life of a worker, never given twice; ordered by the fence and the number of its Join, which is the lowest bits of the counter. The
 * bits above are random, so that nobody knows an incarnation but who was given it. {0, 0} is none.
 */
struct ampd_incarnation {
    uint64_t fence;   /* counter of the coordinator's fence */
    uint64_t counter; /* number of the Join, from 1 within the fence, and AMPD_INCARNATION_SECRET_BITS random bits */
};

/* 2^27 Joins of one process would take days of nothing else; 63 bits in all, as SQL has no more without a sign. */
#define AMPD_INCARNATION_NUMBER_BITS 27
#define AMPD_INCARNATION_SECRET_BITS 36
#define AMPD_INCARNATION_NUMBER_MAX  (((uint64_t)1 << AMPD_INCARNATION_NUMBER_BITS) - 1)
#define AMPD_INCARNATION_SECRET_MAX  (((uint64_t)1 << AMPD_INCARNATION_SECRET_BITS) - 1)

/* A vote in the journal: the step, and the try of it. */
struct ampd_journal_key {
    uint64_t epoch, step;
    uint64_t fence; /* with try_number: orders tries */
    uint32_t try_number;
};

/* A rank and who holds it. */
struct ampd_worker_record {
    char name[AMPD_NAME_MAX];
    uint32_t rank;
    struct ampd_incarnation incarnation;
    bool left; /* by Leave: the rank is free */
};

/* One contributor of a closed step. */
struct ampd_contributor {
    uint32_t rank;
    struct ampd_incarnation incarnation;
    float weight;
};

/* Who overflowed, apart from ranks: the sum, or the range test after it (STEP section 4). */
#define AMPD_RANK_SUM   UINT32_MAX
#define AMPD_RANK_RANGE (UINT32_MAX - 1)

/* One overflow of a step: by (parameter, rank). */
struct ampd_overflow_row {
    uint32_t parameter;
    uint32_t rank;      /* or AMPD_RANK_SUM, AMPD_RANK_RANGE */
    uint64_t inf_count; /* RANGE: elements out of range */
    uint64_t nan_count;
    uint64_t first_index; /* element of the parameter */
    float largest;        /* largest finite magnitude of that gradient, as pushed */
};

/* Why a row of the scale's history exists. */
enum ampd_row_kind { AMPD_ROW_STEP = 1, AMPD_ROW_EPOCH = 2, AMPD_ROW_SET = 3, AMPD_ROW_RESET = 4 };

/* Who asked for an act, in his own words, and the id by which he may repeat it. All empty: nobody did. */
struct ampd_note {
    char actor[AMPD_ACTOR_MAX];
    char words[AMPD_WORDS_MAX];
    char request_id[AMPD_REQUEST_ID_MAX]; /* "": none; then a repeated request is another act */
};

/*
 * One decided step, the first row of an epoch, or an operator's act on the scale. Key: (model, epoch, step, sequence);
 * acts have the last decided step's.
 */
struct ampd_step_row {
    enum ampd_row_kind kind;
    uint64_t epoch, step;
    uint64_t parent_epoch, parent_step; /* kind EPOCH: the epoch before, and the last step decided in it; 0: none */
    uint64_t from_step;                 /* kinds SET, RESET: the first step that uses the scale */
    struct ampd_note note;              /* kinds SET, RESET, EPOCH */
    enum ampd_verdict verdict;
    uint32_t tries;             /* opens of the step, at least 1 */
    uint64_t contributors_hash; /* XXH3-64 of the list */
    uint32_t contributors_count;
    struct ampd_contributor contributors[AMPD_WORLD_MAX];
    float scale; /* the scale the gradients carry */
    uint64_t scale_id;
    struct amp_scaler_state after; /* the record after the verdict */
    float coefficient;             /* f */
    double norm;                   /* global 2-norm of g before clipping; 0 if skipped */
    float clip;                    /* clip coefficient: the smallest of the groups' */
    uint32_t clips_count;          /* of an applied step: the number of groups */
    float clips[AMPD_GROUPS_MAX];
    double lr;                /* base learning rate; 0 if skipped */
    uint64_t version;         /* of the parameters after the step */
    uint64_t overflow_params; /* (parameter, rank) pairs that overflowed, kept as rows or not */
    uint64_t inf_total, nan_total;
    uint32_t rows_count;
    struct ampd_overflow_row rows[AMPD_OVERFLOW_ROWS_MAX];
    uint64_t durable_step;
    bool cut;        /* a checkpoint is taken after this step */
    bool superseded; /* a later epoch starts below it */
    int64_t at_us;   /* UTC microseconds */
};

/* The start of an epoch: what it continues. */
struct ampd_epoch_record {
    uint64_t epoch;
    uint64_t parent;                /* 0: the first */
    uint64_t base_epoch, base_step; /* the checkpoint it starts from */
    char reason[AMPD_REASON_MAX];   /* CREATED, RESTART, ROLLBACK */
    int64_t at_us;
};

/* One finished checkpoint part. */
struct ampd_checkpoint_record {
    uint64_t epoch, step, version;
    float scale;    /* loss scale in it; 0: not known (written by an older ampd) */
    char file[256]; /* relative to the directory of checkpoints */
    uint64_t size_bytes;
    uint8_t manifest[16]; /* XXH3-128 over names, shapes and hashes of the tensors */
    int64_t at_us;
    /*
     * The manifests of all its parts by shard, once it exists on all: so each shard knows which file of another one is the
     * right one. After a start with another number of shards they are those of the number before. 0: not known.
     */
    uint32_t parts_count;
    uint8_t parts[AMPD_PARTS_MAX][16];
};

/* An act that had a request id: what a repeated request is answered with. */
struct ampd_act_record {
    enum ampd_row_kind kind; /* SET, RESET; EPOCH: a rollback */
    uint64_t epoch, step;    /* of its row */
    uint64_t from_step;
    uint64_t base_epoch; /* EPOCH: of the checkpoint; its step is `step` */
    struct amp_scaler_state after;
    bool superseded; /* a later epoch has taken it back */
    char request_id[AMPD_REQUEST_ID_MAX];
};

/* A model as it is found at start. */
struct ampd_model_record {
    struct ampd_model_spec spec;
    int64_t created_us;             /* UTC microseconds */
    uint64_t epoch;                 /* highest stored */
    uint64_t base_epoch, base_step; /* of that epoch */
    struct ampd_step_row *last;     /* newest row of that epoch, or NULL; owned */
    /*
     * With durability STEP: the rows of that epoch from the newest checkpoint's step on, ascending, those of acts too, for
     * the journal's replay; and the acts of the step before, which went out with the first of those verdicts; owned.
     */
    uint32_t rows_count;
    struct ampd_step_row *rows;
    uint32_t workers_count;
    struct ampd_worker_record *workers; /* owned */
    uint32_t checkpoints_count;
    struct ampd_checkpoint_record *checkpoints; /* ascending (epoch, step), not void; owned */
    uint32_t acts_count;
    struct ampd_act_record acts[AMPD_ACTS_MAX]; /* the newest with a request id, oldest first */
    bool deleting;                              /* DeleteModel has begun: it goes on */
    bool no_journal; /* set by the host: durability STEP, and this disk has stored no epoch of the model, so no vote either */
};

/*
 * What a checkpoint file carries beside tensors. Equal states give equal files: no epoch, time, path,
 * incarnation, try or count of restarts.
 */
struct ampd_checkpoint_state {
    uint64_t step, version;
    struct amp_scaler_state scaler;
    uint32_t world_size;
    struct { /* one per rank; owned */
        uint8_t *data;
        uint32_t size;
    } * user_states;
};

#endif
