/*
 * What the core wants done with calls: their answers, and the memory that their blocks go to or come from. They are
 * members of ampd_output (outputs.h). `model` is the index of a model, for the queries of core_info.h.
 */
#ifndef AMPD_CALL_OUTPUTS_H
#define AMPD_CALL_OUTPUTS_H

#include "base/err.h"
#include "server/core/load_calls.h"
#include "server/core/model/layout.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ampd_range_warning;

/* Which member of ampd_reply.u is set. */
enum ampd_reply_kind {
    AMPD_REPLY_NONE = 0,
    AMPD_REPLY_CREATE,
    AMPD_REPLY_LOAD,
    AMPD_REPLY_JOIN,
    AMPD_REPLY_KEEP_ALIVE,
    AMPD_REPLY_STEP, /* Push: the StepResult */
    AMPD_REPLY_PUSH_STATE,
    AMPD_REPLY_CHECKPOINT,
    AMPD_REPLY_SCALE, /* SetScale, ResetScale */
    AMPD_REPLY_LR,    /* SetLearningRate */
    AMPD_REPLY_EVICT, /* EvictWorker */
    AMPD_REPLY_ROLLBACK,
};

struct ampd_step_result { /* docs/step-protocol.md section 2 */
    uint64_t epoch, step;
    enum ampd_verdict verdict; /* LATE: this push did not count; the other fields are the step's */
    uint64_t applied, version; /* applied steps so far; the version after this step */
    double norm;               /* of the gradient; 0 if the step was skipped */
    uint32_t clips_count;      /* clip coefficients, one per group of parameters; 0 if skipped */
    float clips[AMPD_GROUPS_MAX];
    float scale, new_scale;          /* of this step, and of the next one */
    uint64_t scale_id, new_scale_id; /* of this step, and of the next one */
    uint64_t overflow_params;        /* (parameter, rank) pairs with an overflow */
    uint64_t inf_total, nan_total;
    uint32_t rows_count, contributors_count, range_count;
    const struct ampd_overflow_row *rows;        /* [rows_count] the first of these pairs */
    const struct ampd_contributor *contributors; /* [contributors_count] of the step */
    uint64_t range_total;                        /* values beyond the cast's range in the apply before this step */
    const struct ampd_range_warning *range;      /* [range_count] the first parameters with such values */
    uint64_t durable_step;                       /* 0: only the initial values survive a crash */
    double lr;                                   /* base learning rate of the step; 0 if skipped */
    uint32_t consecutive_overflows;
    bool unstable; /* max_consecutive_overflows is reached */
    bool frozen;   /* floor policy FREEZE: no step opens before an operator acts */
    bool failed;   /* floor policy FAIL: no step opens before an operator acts, and training should end */
};

/* Consecutive blocks. */
struct ampd_block_range {
    uint64_t first, count;
};

struct ampd_join_result {
    uint32_t model;
    uint32_t rank, world_size;
    struct ampd_incarnation incarnation;
    uint64_t epoch, step; /* the step to begin with */
    uint64_t lease_ms;
    const uint8_t *user_state; /* of this rank as of the step that the epoch began from; size 0: none */
    uint32_t user_state_size;
};

/* The end of one call. error.code 0: OK, and u holds the result. */
struct ampd_reply {
    struct amp_error error; /* code, ErrorInfo reason, text with the remedy */
    uint64_t epoch, step;   /* where the model is, for the details of ABORTED; 0, 0: not given */
    uint64_t retry_ms;      /* RetryInfo; 0: none */
    enum ampd_reply_kind kind;
    union {
        struct {
            uint32_t model;
            bool existed; /* it was there before, with the same specification */
            uint64_t epoch;
        } create;
        struct {
            bool already_loaded; /* another load, or an earlier one, has loaded the model */
        } load;
        struct ampd_join_result join;
        struct {
            uint64_t epoch, step; /* of the open step */
            enum ampd_model_state state;
            bool valid;        /* false: the lease has ended, or another incarnation holds the rank: join again */
            uint64_t lease_ms; /* 0 if not valid */
            uint32_t model;
            const char *taken_by; /* a sentence: which process has taken the rank, or that it was evicted; else "" */
        } keep_alive;
        struct ampd_step_result step;
        struct {
            uint64_t ranges_count;
            const struct ampd_block_range *ranges; /* [ranges_count] blocks PRESENT, ascending */
            bool complete;                         /* the push is whole: the trailer is here, too */
        } push_state;
        struct {
            uint64_t epoch, step, version;
        } checkpoint;
        struct {
            struct amp_scaler_state record;
            uint64_t from_step; /* the first step with this scale */
        } scale;
        struct {
            double lr;
            uint64_t from_step; /* the first step with this rate */
        } lr;
        bool nobody; /* EVICT: no worker held the rank */
        struct {
            uint64_t epoch, step; /* the new epoch, and its first step */
        } rollback;
    } u;
};

/* Where the blocks of a push go: block b to memory + (b - first) * stride, in the dtype of the push. */
struct ampd_push_grant {
    uint32_t model;
    const struct ampd_layout *layout;
    uint64_t first, count; /* the blocks of this shard: others are out of range */
    uint8_t *memory;       /* the staging slot of the rank */
    size_t stride;         /* bytes from block to block */
    enum amp_dtype dtype;
};

/*
 * The header of a pull, and where its blocks lie: block b at memory + (b - first) * stride, its CRC32C in crcs[b -
 * first]. When the I/O layer has sent all blocks it ends the stream with OK and sends CALL_CLOSED; no REPLY comes then.
 */
struct ampd_pull_grant {
    uint32_t model;
    const struct ampd_layout *layout;
    uint64_t epoch, step, version; /* step: the one that computes on this version; 0: no longer known, nor its scale */
    uint64_t scale_id;
    float scale;
    enum amp_dtype dtype;
    bool unchanged; /* the client has this version: no block follows, end the stream with OK */
    uint64_t first, count;
    const uint8_t *memory;
    size_t stride;
    const uint32_t *crcs; /* NULL: the I/O layer forms them; else read each only once PULL_BLOCKS lists its block */
};

#endif
