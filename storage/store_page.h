/*
 * Pages of the store (store.h): reading a model's history and its overflow rows, a bounded number of rows at a time.
 *
 * Threads and handles: store.h. A callback is called inside the page call, while a read transaction (or the memory
 * store's lock) is held: it must not call the store.
 */
#ifndef AMPD_STORE_PAGE_H
#define AMPD_STORE_PAGE_H

#include "base/err.h"
#include "storage/records.h"

/* The most rows that one page call hands out, whatever `limit` is given, so that each read transaction is short. */
#define AMPD_STORE_PAGE_MAX 4096

struct ampd_store; /* one open handle; see store.h */

/*
 * The position of a row in a model's history. Rows are ordered by (epoch, step, sequence). The row of a step and the
 * first row of an epoch have sequence 0. The rows of operators' actions have the step that was decided last, and count
 * from sequence 1 in the order in which they were stored.
 */
struct ampd_history_key {
    uint64_t epoch, step;
    uint32_t sequence; /* in the key of an overflow row: the row's index within its step, from 0 */
};

/* Selects the rows of a page. All fields zero: every row that is not superseded, starting with the first one. */
struct ampd_history_filter {
    uint64_t epoch;               /* only rows of this epoch; 0: rows of all epochs */
    struct ampd_history_key from; /* inclusive start of the page (descending: its highest key); all 0: no bound */
    uint64_t step_min, step_max;  /* inclusive bounds of the key's step; step_max 0: no upper bound */
    bool acts_before;             /* rows that are not of kind STEP pass from step_min - 1 on */
    bool superseded_too;          /* also rows that a later epoch has superseded */
    bool descending;              /* newest row first */
    uint32_t verdicts;            /* bit v set: rows of kind STEP with verdict v; bit 0: other kinds; 0: all rows */
    bool only_changes;            /* only rows that changed the loss scale (scale and after_scale differ) */
};

/* Selects overflow rows of the steps that an ampd_history_filter selects. All bounds are inclusive. */
struct ampd_overflow_filter {
    uint32_t parameter_min, parameter_max;
    uint32_t rank_min, rank_max; /* the two highest values are AMPD_RANK_RANGE and AMPD_RANK_SUM */
};

/* An overflow row, and what the row of its step says about it. */
struct ampd_overflow_found {
    struct ampd_overflow_row row;
    struct ampd_incarnation incarnation; /* of the contributor that has the row's rank; counter 0: there is none */
    int64_t at_us;                       /* when the step was decided, UTC microseconds */
    bool superseded;                     /* a later epoch has superseded the step */
};

/*
 * Receives one row. All pointers are valid only until the callback returns. `epoch` is the epoch's record for a row of
 * kind EPOCH, else NULL. A result other than 0 ends the page, and the page call returns it.
 */
typedef int ampd_history_cb(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                            const struct ampd_epoch_record *epoch);

/* Receives one overflow row, under the same rules as ampd_history_cb. */
typedef int ampd_overflows_cb(void *arg, const struct ampd_history_key *key, const struct ampd_overflow_found *found);

/* The part of a row that a plot needs. The fields mean what those of struct ampd_step_row do. */
struct ampd_history_point {
    struct ampd_history_key key;
    enum ampd_row_kind kind;
    enum ampd_verdict verdict;
    float scale, after_scale; /* the loss scale that the step's gradients carry, and the one after the row */
    float clip;               /* 0 if the step was skipped */
    double norm, lr;          /* 0 if the step was skipped */
    bool has_loss;            /* at least one worker sent a loss */
    float loss;               /* any value, also Inf and NaN; 0 without has_loss */
    int64_t at_us;
    uint64_t times_us[AMPD_STEP_TIMES];
};

/* Receives one point, under the same rules as ampd_history_cb. */
typedef int ampd_points_cb(void *arg, const struct ampd_history_point *point);

/*
 * Hands the rows that are not superseded to point_cb, those with keys from `from` on (all 0: from the first) and steps
 * from step_min to step_max, both inclusive; at most `limit` of them (bounded by AMPD_STORE_PAGE_MAX). They come in the
 * order of their keys, which is also the order of their steps, since a new epoch supersedes all rows above its base.
 * Reading 100,000 rows takes a tenth of the time of ampd_store_page_history. Errors: those of a read in store.h.
 */
int ampd_store_page_points(struct ampd_store *store, const char *model, const struct ampd_history_key *from,
                           uint64_t step_min, uint64_t step_max, uint32_t limit, void *arg, struct amp_error *error,
                           ampd_points_cb *point_cb);

/*
 * Hands at most `limit` rows (bounded by AMPD_STORE_PAGE_MAX) that pass the filter to row_cb, in the order of their
 * keys. Errors: those of a read in store.h.
 */
int ampd_store_page_history(struct ampd_store *store, const char *model, const struct ampd_history_filter *filter,
                            uint32_t limit, void *arg, struct amp_error *error, ampd_history_cb *row_cb);

/*
 * Hands at most `limit` overflow rows (bounded by AMPD_STORE_PAGE_MAX) to row_cb, ordered by (epoch, step, index). Only
 * overflows of steps that pass `filter` are read; its verdicts, only_changes and acts_before have no effect. `which`
 * NULL: all parameters and ranks. Errors: those of a read in store.h.
 */
int ampd_store_page_overflows(struct ampd_store *store, const char *model, const struct ampd_history_filter *filter,
                              const struct ampd_overflow_filter *which, uint32_t limit, void *arg,
                              struct amp_error *error, ampd_overflows_cb *row_cb);

#endif
