/* A decided step: its verdict, its contributors and overflows, and its row in the history. See records.h. */
#ifndef AMPD_RECORDS_STEP_H
#define AMPD_RECORDS_STEP_H

#include "amp/scaler.h"
#include "storage/records_model.h"
#include "storage/records_worker.h"

#include <stdbool.h>
#include <stdint.h>

#define AMPD_OVERFLOW_ROWS_MAX 64  /* rows of one step: the first are enough to see where it began */
#define AMPD_ACTOR_MAX         128 /* bytes of the name of who asked, with the final zero */
#define AMPD_WORDS_MAX         256 /* bytes of an operator's own words, with the final zero */
#define AMPD_REQUEST_ID_MAX    65  /* bytes of a request id, with the final zero: 64 are two UUIDs */
#define AMPD_METRICS_MAX       8   /* named numbers of a step: more are for a tracker of experiments */
#define AMPD_METRIC_NAME_MAX   33  /* bytes of such a name, with the final zero */
/* Durability STEP makes a checkpoint at least so often: each step until then is a gradient on disk. */
#define AMPD_VOTE_JOURNAL_STEPS 64

enum ampd_verdict {
    AMPD_VERDICT_APPLIED = 1,
    AMPD_VERDICT_SKIPPED_OVERFLOW = 2,
    AMPD_VERDICT_SKIPPED_EMPTY = 3,
    AMPD_VERDICT_LATE = 4, /* an answer to a worker, never a row */
};

/* A vote in the journal: the step, and the try of it. */
struct ampd_vote_journal_key {
    uint64_t epoch, step;
    uint64_t fence; /* with try_number: orders tries */
    uint32_t try_number;
};

/* Who overflowed, apart from ranks: the sum, or the range test after it (docs/step-protocol.md section 4). */
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

/* A named number that workers tell of a step. */
struct ampd_metric {
    char name[AMPD_METRIC_NAME_MAX]; /* the rest is zero */
    float value;                     /* any, also Inf and NaN */
    uint32_t workers;                /* that have told it: at least 1 */
};

/* What workers tell of a step, which is for people alone: in a push its own, in a row the mean of its contributors. */
struct ampd_metrics {
    float loss;            /* any, also Inf and NaN */
    uint32_t loss_workers; /* that have told it; 0: nobody, and the loss is 0 */
    uint32_t count;
    struct ampd_metric items[AMPD_METRICS_MAX]; /* a row: in the order in which the lowest rank tells them */
};

/*
 * Where the time between two decisions went, one after the other, as shard 0 has seen it (server/core/model/
 * step_times.h). For people alone.
 */
enum ampd_step_time {
    AMPD_STEP_TIME_APPLY, /* from the decision before until the new version can be pulled */
    AMPD_STEP_TIME_PULL,  /* until the last worker of the step has pulled */
    AMPD_STEP_TIME_WAIT,  /* until the first push begins: the workers compute */
    AMPD_STEP_TIME_PUSH,  /* until the last push that counts is whole */
    AMPD_STEP_TIME_VOTE,  /* until the step is decided */
    AMPD_STEP_TIMES
};

/* Why a row of the scale's history exists. */
enum ampd_row_kind {
    AMPD_ROW_STEP = 1,
    AMPD_ROW_EPOCH = 2,
    AMPD_ROW_SET = 3,
    AMPD_ROW_RESET = 4,
    AMPD_ROW_EVICT = 5,
    AMPD_ROW_LR = 6, /* the base learning rate */
};

/* Who asked for an action, in his own words, and the id by which he may repeat it. All empty: nobody did. */
struct ampd_note {
    char actor[AMPD_ACTOR_MAX];
    char words[AMPD_WORDS_MAX];
    char request_id[AMPD_REQUEST_ID_MAX]; /* "": none; then a repeated request is another action */
};

/*
 * One decided step, the first row of an epoch, or an operator's action on the scale or a worker. Key: (model, epoch,
 * step, sequence); actions have the last decided step's.
 */
struct ampd_step_row {
    enum ampd_row_kind kind;
    uint64_t epoch, step;
    uint64_t parent_epoch, parent_step; /* kind EPOCH: the epoch before, and the last step decided in it; 0: none */
    uint64_t from_step;                 /* operator's actions: the first step that they are for */
    struct ampd_note note;              /* operator's actions, EPOCH */
    enum ampd_verdict verdict;
    uint32_t tries;             /* opens of the step, at least 1 */
    uint64_t contributors_hash; /* XXH3-64 of the list */
    uint32_t contributors_count;
    struct ampd_contributor contributors[AMPD_WORLD_MAX]; /* kind EVICT: the one whose rank it was */
    float scale;                                          /* the scale the gradients carry */
    uint64_t scale_id;
    struct ampd_carry after; /* the record and the rate, after the verdict */
    float coefficient;       /* f */
    double norm;             /* global 2-norm of g before clipping; 0 if skipped */
    float clip;              /* clip coefficient: the smallest of the groups' */
    uint32_t clips_count;    /* of an applied step: the number of groups */
    float clips[AMPD_GROUPS_MAX];
    double lr;                /* base learning rate; 0 if skipped. Kind LR: the one before; 0: not known */
    uint64_t version;         /* of the parameters after the step */
    uint64_t overflow_params; /* (parameter, rank) pairs that overflowed, kept as rows or not */
    uint64_t inf_total, nan_total;
    uint32_t rows_count;
    struct ampd_overflow_row rows[AMPD_OVERFLOW_ROWS_MAX];
    uint64_t durable_step;
    struct ampd_metrics metrics;
    bool cut;                           /* a checkpoint is taken after this step */
    bool superseded;                    /* a later epoch starts below it */
    int64_t at_us;                      /* UTC microseconds */
    uint64_t times_us[AMPD_STEP_TIMES]; /* ampd_step_times_known */
};

/* Whether it is known where the time of a step went: all 0 are stored where it is not, or none passed. */
static inline bool ampd_step_times_known(const uint64_t times_us[AMPD_STEP_TIMES])
{
    bool known = false;
    for (int i = 0; i < AMPD_STEP_TIMES; i++)
        known = known || times_us[i] > 0;
    return known;
}

#endif
