/* What messages about steps carry: from OPEN to APPLIED (messages.h). */
#ifndef AMPD_STEP_MESSAGES_H
#define AMPD_STEP_MESSAGES_H

#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

/* Operator actions between two verdicts: evictions of four hosts of eight that hold up the step, and four more. */
#define AMPD_ACTIONS_WAIT_MAX 36

/* An operator's action on the scale, the learning rate or a worker, as it is stored behind the last decided step. */
struct ampd_action {
    enum ampd_row_kind kind;        /* SET, RESET, EVICT or LR */
    uint64_t from_step;             /* the first step that it is for */
    uint32_t rank;                  /* EVICT: whose worker */
    bool nobody;                    /* EVICT: no worker held the rank */
    float scale;                    /* the scale before it */
    uint64_t scale_id;              /* the scale id before it */
    struct ampd_carry after;        /* loss-scale record and rate after it */
    uint64_t version, durable_step; /* of the model when it came */
    struct ampd_note note;          /* who asked, why, and the request id */
    int64_t at_us;                  /* UTC microseconds, when it came */
};

/* A worker that a step expects. */
struct ampd_expected {
    uint32_t rank;
    struct ampd_incarnation incarnation;
};

/* ALIVE: workers heard from. One that is lost does no harm: the next is an eighth of a lease later. */
struct ampd_alive {
    uint32_t count; /* ascending ranks */
    struct ampd_expected workers[AMPD_WORLD_MAX];
};

/* OPEN: a try of a step. With `closed` it carries its CLOSE. */
struct ampd_open {
    uint64_t step;
    uint32_t try_number; /* from 0; (the sender's fence, try_number) orders tries */
    float scale;
    uint64_t scale_id;
    uint32_t expected_count; /* ascending ranks */
    struct ampd_expected expected[AMPD_WORLD_MAX];
    bool closed;       /* the contributors are those expected, each of weight 1 */
    float coefficient; /* closed: f of docs/step-protocol.md section 4 */
};

/* CLOSE of a try whose contributors were not known at OPEN. */
struct ampd_close {
    uint64_t step;
    uint32_t try_number;
    float coefficient;           /* f; 0 with `empty` */
    bool empty;                  /* all weights are 0: nothing is summed, and the verdict is SKIPPED_EMPTY */
    uint32_t contributors_count; /* ascending ranks */
    struct ampd_contributor contributors[AMPD_WORLD_MAX];
};

/* COMPLETE: a push that is whole on the sender. */
struct ampd_complete {
    uint64_t step;
    uint32_t try_number;
    struct ampd_contributor contributor;
    double lr; /* learning rate of the step with schedule WORKER, else 0 */
};

/* UNFIT: a push that counts nowhere, and what it does not agree with. */
struct ampd_unfit {
    struct ampd_complete push;
    /* The rank whose push has another learning rate; or the push's own rank: another shard was given another header. */
    uint32_t other;
    float other_weight; /* of that rank's push, or of the other header */
    double other_lr;    /* of that rank's push, or of the other header */
};

/* The sum of squares over one maximal aligned subtree of the global block indexes of one parameter. */
struct ampd_subtree {
    uint32_t parameter;
    uint32_t level; /* the subtree has 2^level leaves, one a block */
    uint64_t index; /* global index of its first block */
    double squares;
};

/* VOTE: what the vote passes of one shard have found. */
struct ampd_vote {
    uint64_t step;
    uint32_t try_number;
    uint64_t contributors_hash;
    uint64_t subtrees_count;
    struct ampd_subtree *subtrees; /* owned; ascending (parameter, position) */
    /* The fields from here to `rows` count parameters that lie whole in the sender's blocks. */
    uint64_t overflow_params; /* (parameter, rank) pairs with an overflow */
    uint64_t inf_total, nan_total;
    uint32_t rows_count; /* the first of these pairs, by parameter and rank */
    struct ampd_overflow_row rows[AMPD_OVERFLOW_ROWS_MAX];
    /*
     * What was found, in the sender's blocks, of parameters that reach into another shard's (two at most): for each
     * rank, for the range and for the sum, also where all is finite. Only the parts of all shards together say which
     * rows the parameter gets.
     */
    uint32_t shared_count;
    struct ampd_overflow_row *shared; /* owned; ascending parameters */
    struct ampd_metrics metrics;      /* shard 0 alone: the mean of the contributors' loss and metrics */
};

#define AMPD_SHARED_ROWS_MAX (2 * (AMPD_WORLD_MAX + 2))

/* A parameter with masters beyond the cast's range. */
struct ampd_range_warning {
    uint32_t parameter;
    uint64_t count; /* of such elements */
};

/* VERDICT: the row as it is stored, from which all that apply needs follows (verdict_rows.c). */
struct ampd_verdict_message {
    struct ampd_step_row row;
    uint64_t range_total; /* values beyond the cast's range in the apply before, all shards together */
    uint32_t range_count; /* parameters with such values; the first of them */
    struct ampd_range_warning range[AMPD_OVERFLOW_ROWS_MAX];
    uint32_t acts_count; /* operator actions since the verdict before: their rows come before this one's */
    struct ampd_action acts[AMPD_ACTIONS_WAIT_MAX];
};

/* ACTS: operator actions, which will be in the next verdict, too. */
struct ampd_actions_message {
    uint64_t step; /* the decided step that their rows are behind */
    uint32_t count;
    struct ampd_action acts[AMPD_ACTIONS_WAIT_MAX];
};

/* APPLIED: the decided step is in the sender's masters; with its range warnings, as in a verdict. */
struct ampd_applied {
    uint64_t step, range_total;
    uint32_t range_count;
    struct ampd_range_warning range[AMPD_OVERFLOW_ROWS_MAX];
};

/* A hash of the list of contributors with their weights, by which CLOSE, votes and verdicts name it. Pure. */
uint64_t ampd_contributors_hash(const struct ampd_contributor *contributors, uint32_t count);
/* The CLOSE of an OPEN that is closed: all expected workers contribute, each with weight 1. */
void ampd_close_of_open(const struct ampd_open *open, struct ampd_close *close);
/* The worker that the step expects for a rank; NULL: it expects none. */
const struct ampd_expected *ampd_open_find(const struct ampd_open *open, uint32_t rank);
#endif
