/*
 * Counters of this process since its start: how long the disk takes, and the steps of each model. http/metrics.c
 * exports them. Atomic members may be changed on any thread; all else belongs to the loop's thread.
 */
#ifndef AMPD_IO_COUNTS_H
#define AMPD_IO_COUNTS_H

#include "server/core/core.h"
#include "storage/records.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Buckets of a histogram of times: one for each of io_timing_bounds, and one for longer times. */
#define IO_TIMING_BUCKETS 18

/* Upper ends of the buckets, in seconds: from a record on an idle NVMe disk to a checkpoint of 64 GB. */
extern const double io_timing_bounds[IO_TIMING_BUCKETS - 1];

/* A histogram of how long something takes. Zeroed: nothing was counted. */
struct io_timing {
    atomic_uint_least64_t counts[IO_TIMING_BUCKETS]; /* not cumulated */
    atomic_uint_least64_t total_us;                  /* the sum of all times, in microseconds */
};

/*
 * Least time between two lines of the log about skipped steps of a model. The first one is logged at once; a thousand
 * skips a second must not flood the log.
 */
#define IO_COUNTS_SKIPS_MS 10000

/* The counters of one model in this process. */
struct io_model_counts {
    uint64_t applied, overflows, empty; /* decided steps, by verdict */
    uint64_t times_us[AMPD_STEP_TIMES]; /* sums of the times of these steps, in microseconds */
    /* Until when (io_clock_now_us) no skipped step is logged, and how many were not logged for that reason. */
    uint64_t skips_quiet_us, skips_suppressed;
    int64_t *join_us; /* [world_size] when each rank joined last, UTC microseconds, 0: never; or NULL: all 0. Owned */
};

/* Zeroed: nothing was counted. */
struct io_counts {
    struct io_timing commit;                        /* one transaction of the store, with its sync if it has one */
    struct io_timing journal;                       /* one vote in the journal, with its sync */
    struct io_timing checkpoint, restore;           /* writing, and reading, this shard's part of a checkpoint */
    atomic_uint_least64_t checkpoint_bytes;         /* bytes of the parts written */
    atomic_uint_least64_t history_removed;          /* rows removed for --history-rows and --history-age */
    struct io_model_counts models[AMPD_MODELS_MAX]; /* by index of the model */
};

/* Frees what the counters own, and zeroes those of models. */
void io_counts_close(struct io_counts *counts);

/* Adds the time from `from_us` (io_clock_now_us) until now. Any thread. */
void io_timing_add(struct io_timing *timing, uint64_t from_us);

/* ---- on the loop's thread ---- */

/* Counts a row that was stored; rows that are no steps do not count. */
void io_counts_row(struct io_counts *counts, uint32_t model, const struct ampd_step_row *row);

/*
 * To be called for each row of a model: whether to log a line about skipped steps now, because this row is one or
 * because earlier ones were left out. *suppressed: how many were left out since the last line. True at most once in
 * IO_COUNTS_SKIPS_MS for each model.
 */
bool io_counts_log_skip(struct io_counts *counts, uint32_t model, const struct ampd_step_row *row,
                        uint64_t *suppressed);

/* Notes that a rank of a model has joined now. Without memory the time stays unknown. rank < world_size. */
void io_counts_join(struct io_counts *counts, uint32_t model, uint32_t rank, uint32_t world_size);

/* When that rank joined last, UTC microseconds; 0: never, or not known. */
int64_t io_counts_join_us(const struct io_counts *counts, uint32_t model, uint32_t rank);

/* Resets the counters of a model that is deleted: its index may be given to another one. */
void io_counts_forget(struct io_counts *counts, uint32_t model);

#endif
