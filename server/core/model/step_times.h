/*
 * Where the time between two decisions goes, as shard 0 sees it: five parts, one after the other, none of which is
 * negative and which add up to that time. They are for people, and nothing depends on them. A pure function.
 */
#ifndef AMPD_STEP_TIMES_H
#define AMPD_STEP_TIMES_H

#include "storage/records.h"

#include <stdint.h>

/* When something happened, UTC microseconds; 0: not known. Clocks may be set: a moment may be before an earlier one. */
struct ampd_step_moments {
    int64_t before;  /* the step before was decided */
    int64_t applied; /* the step before was applied, or skipped, so that its version could be pulled */
    int64_t pulled;  /* the last worker of the step had pulled all that it asked for before its push */
    int64_t pushed;  /* the first push began */
    int64_t whole;   /* the last push that counts was whole on all shards */
    int64_t decided;
};

/*
 * Fills times_us: each part ends at its moment and begins at the end of the part before. A moment that is not known, or
 * is earlier than the one before it, takes no time; one after the decision counts as the decision. If `before` is not
 * known, all parts are 0.
 */
void ampd_step_times(const struct ampd_step_moments *moments, uint64_t times_us[AMPD_STEP_TIMES]);

#endif
