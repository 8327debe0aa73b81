/* Pages of the store: the rows of a model's history and its overflows, a bounded number at a time. See store.h. */
#ifndef AMPD_STORE_PAGE_H
#define AMPD_STORE_PAGE_H

#include "base/err.h"
#include "storage/records.h"

/* Rows that one page call hands out at most, whatever limit is asked for: a page is one short transaction. */
#define AMPD_STORE_PAGE_MAX 4096

struct ampd_store; /* one handle */

/*
 * Where a row stands in a model's history. `sequence` is 0 for the row of a step (or of an epoch's start) and
 * counts the SET and RESET rows that follow it; rows are ordered by (epoch, step, sequence).
 */
struct ampd_history_key {
    uint64_t epoch, step;
    uint32_t sequence; /* of an overflow row: its index within the step */
};

/* Which rows a page has. All zero: every row that is not superseded, from the first one. */
struct ampd_history_filter {
    uint64_t epoch;               /* 0: all epochs */
    struct ampd_history_key from; /* first key of the page, inclusive; descending: the last; 0,0,0: no bound */
    uint64_t step_min, step_max;  /* of the key, inclusive; step_max 0: no bound */
    bool acts_before;             /* step_min: also rows of other kinds than STEP behind the step before it */
    bool superseded_too;          /* rows that a later epoch took back */
    bool descending;              /* newest first */
    uint32_t verdicts;            /* bit v: rows of kind STEP with verdict v; 0: all rows */
    bool only_changes;            /* only rows after which the scale differs */
};

/* Which overflow rows of those steps: inclusive bounds. */
struct ampd_overflow_filter {
    uint32_t parameter_min, parameter_max;
    uint32_t rank_min, rank_max; /* AMPD_RANK_RANGE and AMPD_RANK_SUM are the two highest */
};

/* An overflow row with what is known of its step. */
struct ampd_overflow_found {
    struct ampd_overflow_row row;
    struct ampd_incarnation incarnation; /* of the contributor with the row's rank; counter 0: there is none */
    int64_t at_us;
    bool superseded;
};

/*
 * Gets one row, borrowed until it returns; `epoch` is not NULL for a row of kind EPOCH. Anything but 0 ends the page
 * and is returned by the page call.
 */
typedef int ampd_history_cb(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                            const struct ampd_epoch_record *epoch);
typedef int ampd_overflows_cb(void *arg, const struct ampd_history_key *key, const struct ampd_overflow_found *found);

/* What a plot needs of a row. */
struct ampd_history_point {
    struct ampd_history_key key;
    enum ampd_row_kind kind;
    enum ampd_verdict verdict;
    float scale, after_scale;
    float clip; /* 0 if skipped, as norm and lr */
    double norm, lr;
    bool has_loss;
    float loss; /* any, also Inf and NaN */
    int64_t at_us;
    uint64_t times_us[AMPD_STEP_TIMES];
};
typedef int ampd_points_cb(void *arg, const struct ampd_history_point *point);

/*
 * The rows that stand, from `from` on (0,0,0: from the first), with steps from step_min to step_max, at most `limit`
 * (bounded by AMPD_STORE_PAGE_MAX): in order of their keys, which is that of their steps, since an epoch begins where
 * all rows behind it are superseded. Cheap: 100,000 rows take a tenth of what page_history needs.
 */
int ampd_store_page_points(struct ampd_store *store, const char *model, const struct ampd_history_key *from,
                           uint64_t step_min, uint64_t step_max, uint32_t limit, void *arg, struct amp_error *error,
                           ampd_points_cb *point_cb);

/* Hands at most `limit` (bounded by AMPD_STORE_PAGE_MAX) rows that pass the filter to row_cb, in order. */
int ampd_store_page_history(struct ampd_store *store, const char *model, const struct ampd_history_filter *filter,
                            uint32_t limit, void *arg, struct amp_error *error, ampd_history_cb *row_cb);

/*
 * The same for overflow rows, ordered by (epoch, step, index). `which` NULL: all. verdicts and only_changes have no
 * effect.
 */
int ampd_store_page_overflows(struct ampd_store *store, const char *model, const struct ampd_history_filter *filter,
                              const struct ampd_overflow_filter *which, uint32_t limit, void *arg,
                              struct amp_error *error, ampd_overflows_cb *row_cb);

#endif
