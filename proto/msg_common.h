/*
 * Messages of ampd.v1 as plain structs: what all of them share.
 *
 * Each `struct ampd_msg_X` holds the message of the same name (proto/ampd/v1, where units, ranges and defaults stand);
 * fields keep their names. A field with `optional`, and each submessage, has its `has_` flag; when that is false,
 * decode leaves the field zero. Strings end with a zero byte. Enums may hold numbers that this version does not
 * know. For each message there is
 *
 *   int ampd_msg_X_encode(const struct ampd_msg_X *message, struct amp_buf *out)
 *       Appends the message to *out. AMP_EINVAL for a string that does not end or is no UTF-8, a list or bytes beyond
 *       the bound; AMP_ENOMEM; AMP_EEXHAUSTED beyond out->max. *out is as before on failure.
 *   int ampd_msg_X_decode(struct ampd_msg_X *message, const void *data, size_t size, struct amp_error *error)
 *       Sets every field of *message, which need not be initialised. AMP_EINVAL with the name of the field when the
 *       bytes are not such a message or go beyond a bound; AMP_ENOMEM. Unknown fields are passed over. On failure the
 *       message is zeroed and holds nothing that must be freed. The bytes are not needed afterwards.
 *   void ampd_msg_X_free(struct ampd_msg_X *message)
 *       where the message holds lists or bytes: frees those and empties them. After decode they are the message's own
 *       (from malloc); for encode they may be the caller's, who then does not call free. There is none for a message
 *       without them. Freeing a zeroed message has no effect.
 *
 * All are pure functions: any thread, no state. Ranges of values are not checked here but by who uses them.
 * Empty messages (LeaveResponse) have no functions: they are zero bytes.
 */
#ifndef AMPD_PROTO_MSG_COMMON_H
#define AMPD_PROTO_MSG_COMMON_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Greatest size of a message, in bytes: the limit of every RPC. */
#define AMPD_MSG_SIZE_MAX 1048576

/* Greatest size of user state, in bytes. */
#define AMPD_MSG_USER_STATE_MAX 65536

/* Most parameters, groups, shards and workers of a model. */
#define AMPD_MSG_PARAMETERS_MAX 8192
#define AMPD_MSG_GROUPS_MAX     16
#define AMPD_MSG_SHARDS_MAX     1024
#define AMPD_MSG_STANDBYS_MAX   64
#define AMPD_MSG_WORKERS_MAX    256

/* Most rows of a page, models of a list, ranges of a push state. */
#define AMPD_MSG_ROWS_MAX   1000
#define AMPD_MSG_MODELS_MAX 1000
#define AMPD_MSG_RANGES_MAX 4096

/* Overflow rows and range warnings that one step carries with it; the others are in ListOverflows. */
#define AMPD_MSG_STEP_ROWS_MAX 64

/* Numbers that a worker may report of a step besides its loss. */
#define AMPD_MSG_METRICS_MAX 8

/* UTC, microseconds since 1970. A time outside of years 1 to 9999 is refused. */
struct ampd_msg_time {
    int64_t us;
};

/* Some bytes; data may be NULL when size is 0. */
struct ampd_msg_bytes {
    uint8_t *data;
    size_t size;
};

/* Element types. Numbers are those of the files, too. */
enum ampd_msg_dtype {
    AMPD_MSG_DTYPE_UNSPECIFIED = 0,
    AMPD_MSG_DTYPE_F32 = 1,  /* IEEE 754 binary32 */
    AMPD_MSG_DTYPE_F16 = 2,  /* IEEE 754 binary16 */
    AMPD_MSG_DTYPE_BF16 = 3, /* the upper half of a binary32 */
};

/* What became of a step, for all workers and shards alike. An overflow is a result, never an error. */
enum ampd_msg_verdict {
    AMPD_MSG_VERDICT_UNSPECIFIED = 0,
    AMPD_MSG_VERDICT_APPLIED = 1,          /* the parameters moved, version + 1 */
    AMPD_MSG_VERDICT_SKIPPED_OVERFLOW = 2, /* an Inf, a NaN or a value out of range: only the scale moved */
    AMPD_MSG_VERDICT_SKIPPED_EMPTY = 3,    /* all weights were 0: nothing moved */
    AMPD_MSG_VERDICT_LATE = 4, /* quorum: the step was decided without this push; only in the answer of a push */
};

/* Life of a model. */
enum ampd_msg_model_state {
    AMPD_MSG_MODEL_STATE_UNSPECIFIED = 0,
    AMPD_MSG_MODEL_STATE_CREATED = 1, /* no values yet */
    AMPD_MSG_MODEL_STATE_LOADING = 2, /* a Load is under way */
    AMPD_MSG_MODEL_STATE_WAITING = 3, /* has values and checkpoint 0; ranks are missing */
    AMPD_MSG_MODEL_STATE_RUNNING = 4,
    AMPD_MSG_MODEL_STATE_STALLED = 5, /* a rank is missing for longer than loss_timeout */
    AMPD_MSG_MODEL_STATE_DONE = 6,    /* max_steps reached */
};

/* A loss-scale policy; the exact state machines are in amp/scaler.c. */
enum ampd_msg_scaler_policy {
    AMPD_MSG_SCALER_POLICY_UNSPECIFIED = 0,
    AMPD_MSG_SCALER_POLICY_DYNAMIC = 1,
    AMPD_MSG_SCALER_POLICY_STATIC = 2, /* never changed by the server */
    AMPD_MSG_SCALER_POLICY_NONE = 3,   /* scale 1, never changed */
    AMPD_MSG_SCALER_POLICY_MEGATRON = 4,
    AMPD_MSG_SCALER_POLICY_DEEPSPEED = 5,
    AMPD_MSG_SCALER_POLICY_DEEPSPEED_CONSECUTIVE = 6,
    AMPD_MSG_SCALER_POLICY_APEX_HYSTERESIS = 7,
    AMPD_MSG_SCALER_POLICY_PADDLE = 8,
};

/* Where a value that is not finite was found. */
enum ampd_msg_overflow_source {
    AMPD_MSG_OVERFLOW_SOURCE_UNSPECIFIED = 0,
    AMPD_MSG_OVERFLOW_SOURCE_WORKER = 1, /* in the gradient that one worker pushed; `rank` names it */
    AMPD_MSG_OVERFLOW_SOURCE_SUM = 2,    /* in the sum, or in the sum times the coefficient; every input was finite */
    AMPD_MSG_OVERFLOW_SOURCE_RANGE = 3,  /* finite, but its square leaves the range of the optimizer (2^63) */
};

/* One life of one worker: rises with each Join and is never given twice. Ordered by (fence, counter). */
struct ampd_msg_incarnation {
    uint64_t fence;   /* fence of the coordinator that gave it: an etcd revision or a boot counter; from 1 */
    uint64_t counter; /* number of the Join under that fence; from 1 */
    uint64_t boot_id; /* random number of this incarnation, which Join alone carries; 0 in status and history */
};

/* Some consecutive blocks of the flat space of a model. */
struct ampd_msg_block_range {
    uint32_t first; /* index of the first block; from 0 */
    uint32_t count; /* number of blocks; at least 1 */
};

int ampd_msg_block_range_encode(const struct ampd_msg_block_range *message, struct amp_buf *out);
int ampd_msg_block_range_decode(struct ampd_msg_block_range *message, const void *data, size_t size,
                                struct amp_error *error);

struct ampd_msg_block_range_list {
    struct ampd_msg_block_range *items;
    size_t count;
};

/* One process that owns a contiguous range of blocks of the model. */
struct ampd_msg_shard {
    uint32_t index;       /* 0 to number of shards - 1; the owner of 0 coordinates */
    char endpoint[256];   /* "host:port" or "unix:/path", where its services are */
    uint32_t first_block; /* first block that it owns */
    uint32_t block_count; /* number of blocks; 0 for an empty shard */
};

struct ampd_msg_shard_list {
    struct ampd_msg_shard *items;
    size_t count;
};

/* The loss-scale record of a model after a step. */
struct ampd_msg_scale_record {
    enum ampd_msg_scaler_policy policy;
    float scale;                    /* finite, within the model's [min_scale, max_scale] */
    uint64_t scale_id;              /* names this value within its epoch; from 1; rises when the value's bits change */
    uint32_t growth_tracker;        /* clean steps counted towards the next growth */
    uint32_t hysteresis_left;       /* at 1 the next overflow lowers the scale, at n the n-th; policies that forgive */
    uint32_t consecutive_overflows; /* steps skipped for overflow in a row, up to this one */
    uint64_t total_overflows;       /* steps skipped for overflow since the model began */
    uint64_t steps_since_overflow;  /* decided steps after the last overflow, or since the model began */
    uint64_t attempted;             /* decided steps */
    uint64_t applied;               /* of these, applied */
    uint64_t skipped;               /* of these, skipped (overflow and empty) */
};

/* One parameter in which values were found that are not finite, or out of range, and whose they were. */
struct ampd_msg_overflow_row {
    uint64_t epoch;
    uint64_t step;
    char parameter[128];      /* its name */
    uint32_t parameter_index; /* its index in the model's specification; from 0 */
    enum ampd_msg_overflow_source source;
    bool has_rank;
    uint32_t rank;         /* the worker, when source is WORKER; else absent */
    char worker_name[128]; /* of who held the rank then, when source is WORKER; "" else, and if not known any more */
    uint64_t inf_count;    /* elements that are +Inf or -Inf, or out of range for RANGE */
    uint64_t nan_count;    /* elements that are NaN */
    uint64_t first_index;  /* index within the parameter of the first such element; from 0 */
    float largest_finite;  /* largest finite magnitude in the parameter, as pushed; 0 if there is none */
    bool has_decide_time;
    struct ampd_msg_time decide_time; /* when the step was decided; absent in the answer of a push */
    bool superseded;                  /* the step was rolled back later */
};

struct ampd_msg_overflow_row_list {
    struct ampd_msg_overflow_row *items;
    size_t count;
};

/* A number that workers report of a step besides its loss: as one of them has pushed it, or the mean of a step. */
struct ampd_msg_metric {
    char name[33];    /* 1 to 32 bytes; no control character, no "=" and no ";" */
    float value;      /* any, also Inf and NaN */
    uint32_t workers; /* of a row of the history: how many have sent it; in a push without effect */
};

/* Sums over all overflow rows of a step, also over those beyond the ones that are listed. */
struct ampd_msg_overflow_totals {
    uint64_t rows;      /* (parameter, worker) pairs with an overflow */
    uint64_t inf_count; /* elements, over all rows */
    uint64_t nan_count; /* elements, over all rows */
};

/* A parameter whose fp32 master no longer fits the cast type: no loss scale can cure that. */
struct ampd_msg_range_warning {
    char parameter[128];      /* its name */
    uint32_t parameter_index; /* its index in the specification */
    uint64_t count;           /* elements whose cast is Inf, or was saturated */
};

struct ampd_msg_range_warning_list {
    struct ampd_msg_range_warning *items;
    size_t count;
};

#endif
