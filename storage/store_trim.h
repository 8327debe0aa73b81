/* The beginning of a model's history goes, where it is to be no longer than so many steps, or no older. See store.h. */
#ifndef AMPD_STORE_TRIM_H
#define AMPD_STORE_TRIM_H

#include <stdbool.h>
#include <stdint.h>

/*
 * What goes, from the first row on, up to the first that stays: a row that is of none of the newest `rows` steps that
 * stand, or was decided before `before_us`. Whatever the limit, these stay: the first row of each epoch; the newest
 * step's, which the next one follows; the newest AMPD_ACTIONS_MAX with a request id; and with `replays` what
 * ampd_store_load gives for a replay of the journal.
 */
struct ampd_history_limit {
    uint64_t rows;     /* 0: all */
    int64_t before_us; /* UTC microseconds; 0: no matter how old */
    bool replays;      /* the model has durability STEP */
};

/* What one portion took out. */
struct ampd_trimmed {
    uint64_t rows; /* of steps and of operators' actions */
    bool more;     /* the portion was full */
};

#endif
