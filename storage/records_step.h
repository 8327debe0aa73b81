/* The record of a decided step: its verdict, contributors and overflows, and its row in the history. See records.h. */
#ifndef AMPD_RECORDS_STEP_H
#define AMPD_RECORDS_STEP_H

#include "amp/scaler.h"
#include "storage/records_model.h"
#include "storage/records_worker.h"

#include <stdbool.h>
#include <stdint.h>

#define AMPD_OVERFLOW_ROWS_MAX 64  /* overflow rows kept of one step: the first ones show where it began */
#define AMPD_ACTOR_MAX         128 /* bytes of the name of the user that asked for an action, with the final zero */
#define AMPD_WORDS_MAX         256 /* bytes of an operator's comment on an action, with the final zero */
#define AMPD_REQUEST_ID_MAX    65  /* bytes of a request id, with the final zero; 64 hold two UUIDs */
#define AMPD_METRICS_MAX       8   /* metrics of one step; an experiment tracker is the place for more */
#define AMPD_METRIC_NAME_MAX   33  /* bytes of a metric's name, with the final zero */
/* With durability STEP a checkpoint is taken at least every so many steps; each step since keeps a gradient on disk. */
#define AMPD_VOTE_JOURNAL_STEPS 64

enum ampd_verdict {
    AMPD_VERDICT_APPLIED = 1,
    AMPD_VERDICT_SKIPPED_OVERFLOW = 2,
    AMPD_VERDICT_SKIPPED_EMPTY = 3,
    AMPD_VERDICT_LATE = 4, /* only an answer to a push that came too late to count; never in a row */
};

/* Names a vote in the vote journal: the step, and the try of that step. */
struct ampd_vote_journal_key {
    uint64_t epoch, step;
    uint64_t fence;      /* counter of the coordinator's fence; (fence, try_number) orders the tries of a step */
    uint32_t try_number; /* from 0 */
};

/* In place of a rank: the sum overflowed, or the range test after it (docs/step-protocol.md section 4). */
#define AMPD_RANK_SUM   UINT32_MAX
#define AMPD_RANK_RANGE (UINT32_MAX - 1)

/* The overflow of one parameter in the gradient of one rank. The rows of a step are ordered by (parameter, rank). */
struct ampd_overflow_row {
    uint32_t parameter; /* index in the specification */
    uint32_t rank;      /* of the worker, or AMPD_RANK_SUM or AMPD_RANK_RANGE */
    uint64_t inf_count; /* elements that are Inf; AMPD_RANK_RANGE: elements that fail the range test */
    uint64_t nan_count;
    uint64_t first_index; /* first such element, counted in the parameter */
    float largest;        /* largest finite magnitude in that gradient of the parameter, as it was pushed */
};

/* A named number that workers send with their pushes of a step. */
struct ampd_metric {
    char name[AMPD_METRIC_NAME_MAX]; /* all bytes after the text are zero */
    float value;                     /* any value, also Inf and NaN */
    uint32_t workers;                /* workers that sent it, at least 1 */
};

/* Loss and metrics of a step, only for display: in a push those of its worker, in a row the contributors' means. */
struct ampd_metrics {
    float loss;            /* any value, also Inf and NaN; 0 if loss_workers is 0 */
    uint32_t loss_workers; /* workers that sent a loss */
    uint32_t count;
    struct ampd_metric items[AMPD_METRICS_MAX]; /* in a row: in the order in which the lowest rank sent them */
};

/*
 * The consecutive parts of the time between two decisions, as shard 0 sees them (server/core/model/step_times.h). They
 * are only for display. Each part begins where the one above it ends.
 */
enum ampd_step_time {
    AMPD_STEP_TIME_APPLY, /* from the decision of the step before until its version can be pulled */
    AMPD_STEP_TIME_PULL,  /* until the last worker of the step has pulled */
    AMPD_STEP_TIME_WAIT,  /* until the first push begins, while the workers compute */
    AMPD_STEP_TIME_PUSH,  /* until the last push that counts is complete */
    AMPD_STEP_TIME_VOTE,  /* until the step is decided */
    AMPD_STEP_TIMES
};

/* What a row of the history records. SET, RESET, EVICT and LR are the actions of operators. */
enum ampd_row_kind {
    AMPD_ROW_STEP = 1,  /* a decided step */
    AMPD_ROW_EPOCH = 2, /* the start of an epoch */
    AMPD_ROW_SET = 3,   /* the loss scale was set */
    AMPD_ROW_RESET = 4, /* the loss scaler was reset */
    AMPD_ROW_EVICT = 5, /* a worker was evicted */
    AMPD_ROW_LR = 6,    /* the base learning rate was set */
};

/* The user that asked for an action, the comment, and the id of the request. All empty: no user asked for it. */
struct ampd_note {
    char actor[AMPD_ACTOR_MAX];
    char words[AMPD_WORDS_MAX];
    char request_id[AMPD_REQUEST_ID_MAX]; /* a request with the same id is the same action; "": each is a new one */
};

/*
 * A row of a model's history: a decided step, the start of an epoch, or an operator's action. Its key in the store is
 * (model, epoch, step, sequence); an action has epoch and step of the row that was decided last (store_page.h).
 */
struct ampd_step_row {
    enum ampd_row_kind kind;
    uint64_t epoch, step;
    uint64_t parent_epoch, parent_step; /* kind EPOCH: the epoch before, and the last step decided in it; 0: none */
    uint64_t from_step;                 /* actions: the first step for which the action holds */
    struct ampd_note note;              /* actions and kind EPOCH */
    enum ampd_verdict verdict;
    uint32_t tries;             /* how often the step was opened, at least 1 */
    uint64_t contributors_hash; /* XXH3-64 of the list of contributors */
    uint32_t contributors_count;
    struct ampd_contributor contributors[AMPD_WORLD_MAX]; /* ascending rank; kind EVICT: one, the evicted rank */
    float scale;                                          /* the loss scale of the step's gradients */
    uint64_t scale_id;
    struct ampd_carry after; /* scaler state and learning rate after the row */
    float coefficient;       /* f, the factor that averages and unscales the sum (docs/numerics.md section 3) */
    double norm;             /* global 2-norm of the gradient g before clipping; 0 if skipped */
    float clip;              /* clip coefficient, the smallest of all groups; 0 if skipped */
    uint32_t clips_count;    /* number of groups; 0 if skipped */
    float clips[AMPD_GROUPS_MAX];
    double lr;                /* base learning rate; 0 if skipped. Kind LR: the one before; 0: not known */
    uint64_t version;         /* of the parameters, after the row */
    uint64_t overflow_params; /* how many (parameter, rank) pairs overflowed, also those without a row below */
    uint64_t inf_total, nan_total;
    uint32_t rows_count;
    struct ampd_overflow_row rows[AMPD_OVERFLOW_ROWS_MAX];
    uint64_t durable_step; /* the durable step (docs/architecture.md section 1) when the row was decided */
    struct ampd_metrics metrics;
    bool cut;                           /* a checkpoint is taken after this step */
    bool superseded;                    /* a later epoch starts from a step before it */
    int64_t at_us;                      /* when it was decided, UTC microseconds */
    uint64_t times_us[AMPD_STEP_TIMES]; /* microseconds; all 0: not known (ampd_step_times_known) */
};

/* Whether the times of a step are known. All of them are stored as 0 where they are not, or where no time passed. */
static inline bool ampd_step_times_known(const uint64_t times_us[AMPD_STEP_TIMES])
{
    bool known = false;
    for (int i = 0; i < AMPD_STEP_TIMES; i++)
        known = known || times_us[i] > 0;
    return known;
}

#endif
