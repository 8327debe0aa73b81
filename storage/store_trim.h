/*
 * Limits on the length or age of a model's history (--history-rows, --history-age), for ampd_store_trim, which removes
 * rows from its beginning (store_calls.def).
 */
#ifndef AMPD_STORE_TRIM_H
#define AMPD_STORE_TRIM_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Which rows are removed: a row is beyond the limit if its step is older than the newest `rows` steps that are not
 * superseded, or if it was decided before `before_us`; or after `after_us`, by a clock that was wrong then: such a row
 * would keep all behind it until its time has come. Rows are removed from the first one on, up to the first that is not
 * beyond the limit. Whatever the limit, these are kept: the first row of each epoch; the rows of the newest step, after
 * which the next one is stored; the newest AMPD_ACTIONS_MAX rows with a request id; and with `replays` the rows that
 * ampd_store_load gives for a replay of the journal.
 */
struct ampd_history_limit {
    uint64_t rows;     /* number of steps to keep; 0: no limit */
    int64_t before_us; /* UTC microseconds; 0: no limit */
    int64_t after_us;  /* UTC microseconds; 0: no limit */
    bool replays;      /* the model has durability STEP */
};

/* What one call of ampd_store_trim has removed. */
struct ampd_trimmed {
    uint64_t rows; /* rows of steps and of operators' actions */
    bool more;     /* it stopped because the portion was used up; there may be more to remove */
};

#endif
