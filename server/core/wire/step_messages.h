/* What messages about steps carry: from OPEN to APPLIED (messages.h). */
#ifndef AMPD_STEP_MESSAGES_H
#define AMPD_STEP_MESSAGES_H

#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

#define AMPD_ACTIONS_WAIT_MAX                                                                                          \
    4 /* operator actions between two verdicts: a person is slower than a step, unless no step goes on */

/* An operator's action on the scale, the learning rate or a worker, as it is stored behind the last decided step. */
struct ampd_action {
    enum ampd_row_kind kind; /* SET, RESET, EVICT or LR */
    uint64_t from_step;      /* the first that it is for */
    uint32_t rank;           /* EVICT: whose worker */
    float scale;             /* the one before */
    uint64_t scale_id;
    struct ampd_carry after;
    uint64_t version, durable_step;
    struct ampd_note note;
    int64_t at_us;
};

/* A worker that a step expects. */
struct ampd_expected {
    uint32_t rank;
    struct ampd_incarnation incarnation;
};

/* ALIVE. One that is lost does no harm: the next is an eighth of a lease later. */
struct ampd_alive {
    uint32_t count; /* ascending ranks */
    struct ampd_expected workers[AMPD_WORLD_MAX];
};

/* OPEN; with `closed` it carries the CLOSE. */
struct ampd_open {
    uint64_t step, version;
    uint32_t try_number; /* from 0; ordered within the fence of the sender */
    float scale;
    uint64_t scale_id;
    uint32_t expected_count; /* ascending ranks */
    struct ampd_expected expected[AMPD_WORLD_MAX];
    bool closed; /* contributors = expected, each of weight 1 */
    float coefficient;
};

/* CLOSE of a try whose contributors were not known at OPEN. */
struct ampd_close {
    uint64_t step;
    uint32_t try_number;
    float coefficient;
    bool empty;                  /* all weights are 0: nothing is summed, SKIPPED_EMPTY */
    uint32_t contributors_count; /* ascending ranks */
    struct ampd_contributor contributors[AMPD_WORLD_MAX];
};

struct ampd_complete {
    uint64_t step;
    uint32_t try_number;
    struct ampd_contributor contributor;
    double lr; /* schedule WORKER: learning rate of the step; else 0 */
};

/* UNFIT: a push that counts nowhere, and what it does not agree with. */
struct ampd_unfit {
    struct ampd_complete push;
    uint32_t other; /* the rank whose push has another learning rate; its own: another shard was given another header */
    float other_weight;
    double other_lr;
};

/* The sum of squares of one maximal aligned subtree of the global block index of one parameter. */
struct ampd_subtree {
    uint32_t parameter;
    uint32_t level; /* 2^level leaves */
    uint64_t index; /* global index of its first block */
    double squares;
};

struct ampd_vote {
    uint64_t step;
    uint32_t try_number;
    uint64_t contributors_hash;
    uint64_t subtrees_count;
    struct ampd_subtree *subtrees; /* owned; ascending (parameter, position) */
    /* What follows, up to rows, is of the parameters that lie in the sender's blocks alone. */
    uint64_t overflow_params; /* (parameter, rank) pairs */
    uint64_t inf_total, nan_total;
    uint32_t rows_count; /* the first by (parameter, rank) */
    struct ampd_overflow_row rows[AMPD_OVERFLOW_ROWS_MAX];
    /*
     * What was found in the sender's blocks of those that reach into another shard's, two at most: of each rank, of the
     * range and of the sum, also where all is finite. Only all their parts together say which rows there are.
     */
    uint32_t shared_count;
    struct ampd_overflow_row *shared; /* owned; ascending parameters */
    struct ampd_metrics metrics;      /* shard 0: the mean of what the contributors have told */
};

#define AMPD_SHARED_ROWS_MAX (2 * (AMPD_WORLD_MAX + 2))

/* Parameters whose masters are beyond the cast's range. */
struct ampd_range_warning {
    uint32_t parameter;
    uint64_t count;
};

/* Everything that apply needs, as bits, and the row as persisted. */
struct ampd_verdict_message {
    struct ampd_step_row row;
    double bias1, bias2;              /* 1 - beta^t; 0 where the optimizer has none */
    double group_lr[AMPD_GROUPS_MAX]; /* learning rate of each group */
    uint64_t range_total;             /* values beyond the cast's range in the previous apply, all shards together */
    uint32_t range_count;
    struct ampd_range_warning range[AMPD_OVERFLOW_ROWS_MAX];
    bool has_next;
    struct ampd_open next; /* OPEN of the next step */
    uint32_t acts_count;   /* that were stored after the verdict before: their rows come before this one's */
    struct ampd_action acts[AMPD_ACTIONS_WAIT_MAX];
};

/* ACTS: some of those that will be in the next verdict. */
struct ampd_actions_message {
    uint64_t step; /* behind which they are */
    uint32_t count;
    struct ampd_action acts[AMPD_ACTIONS_WAIT_MAX];
};

struct ampd_applied {
    uint64_t step, version;
    uint64_t range_total;
    uint32_t range_count;
    struct ampd_range_warning range[AMPD_OVERFLOW_ROWS_MAX];
};

/* Who contributes, with which weight, as one number: of CLOSE, votes and verdicts. */
uint64_t ampd_contributors_hash(const struct ampd_contributor *contributors, uint32_t count);

/* Of an OPEN that is closed: all that are expected contribute, each with weight 1. */
void ampd_close_of_open(const struct ampd_open *open, struct ampd_close *close);

/* Whom the step expects of the rank; NULL: nobody. */
const struct ampd_expected *ampd_open_find(const struct ampd_open *open, uint32_t rank);

#endif
