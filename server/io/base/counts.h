/*
 * What this process counts of itself: how long the disk takes, and what has become of each model. http/metrics.c shows
 * it.
 */
#ifndef AMPD_IO_COUNTS_H
#define AMPD_IO_COUNTS_H

#include "server/core/core.h"
#include "storage/records.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Buckets of times on the disk: one for each of io_timing_bounds, and one without an end. */
#define IO_TIMING_BUCKETS 18

/* Upper ends of the buckets, in seconds: a record on an idle NVMe disk up to a checkpoint of 64 GB. */
extern const double io_timing_bounds[IO_TIMING_BUCKETS - 1];

/* How long something takes. Zeroed: nothing was counted. */
struct io_timing {
    atomic_uint_least64_t counts[IO_TIMING_BUCKETS];
    atomic_uint_least64_t total_us;
};

/* A thousand skips a second must not be the log; a person wants to hear of the first at once. */
#define IO_COUNTS_SKIPS_MS 10000

/* One model, in this process. */
struct io_model_counts {
    uint64_t applied, overflows, empty;    /* steps that it has decided */
    uint64_t times_us[AMPD_STEP_TIMES];    /* of these steps, added up */
    uint64_t skips_quiet_us, skips_untold; /* until when (io_clock_now_us) the log is told of no skip; how many came */
    int64_t *join_us; /* [world_size] when each rank joined, UTC, 0: it has not; NULL: none has, or no memory. Owned */
};

/* Zeroed: nothing was counted. */
struct io_counts {
    struct io_timing commit;              /* of the store: one transaction, with its sync where it has one */
    struct io_timing journal;             /* of a vote's record, with its sync */
    struct io_timing checkpoint, restore; /* of this shard's part */
    atomic_uint_least64_t checkpoint_bytes;
    atomic_uint_least64_t history_removed; /* rows beyond --history-rows and --history-age */
    struct io_model_counts models[AMPD_MODELS_MAX];
};

/* Frees what is owned. */
void io_counts_close(struct io_counts *counts);

/* Counts what began at `from_us` (io_clock_now_us) and is over now. Any thread. */
void io_timing_add(struct io_timing *timing, uint64_t from_us);

/* ---- on the loop ---- */

/* A row of a model was stored. */
void io_counts_row(struct io_counts *counts, uint32_t model, const struct ampd_step_row *row);

/*
 * Whether the log is to have a line about skipped steps now that this row has come: of its own, or of earlier ones that
 * were left out, which *untold counts. At most one of a model in IO_COUNTS_SKIPS_MS.
 */
bool io_counts_tell_skip(struct io_counts *counts, uint32_t model, const struct ampd_step_row *row, uint64_t *untold);

/* A rank of a model has joined just now; without memory for it, the time is not told. */
void io_counts_join(struct io_counts *counts, uint32_t model, uint32_t rank, uint32_t world_size);

/* When that was, UTC; 0: it has not, or is not known. */
int64_t io_counts_join_us(const struct io_counts *counts, uint32_t model, uint32_t rank);

/* The model is gone; its index may become another one's. */
void io_counts_forget(struct io_counts *counts, uint32_t model);

#endif
