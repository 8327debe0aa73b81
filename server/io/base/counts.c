#include "server/io/base/counts.h"

#include "base/assert.h"
#include "server/io/base/clock.h"

#include <stdlib.h>

const double io_timing_bounds[IO_TIMING_BUCKETS - 1] = {0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128,
                                                        0.256,  0.512, 1,     2,     4,     16,    64,    256};

void io_timing_add(struct io_timing *timing, uint64_t from_us)
{
    uint64_t now_us = io_clock_now_us();
    uint64_t took_us = now_us > from_us ? now_us - from_us : 0;
    size_t bucket = 0;
    while (bucket < IO_TIMING_BUCKETS - 1 && (double)took_us > io_timing_bounds[bucket] * 1e6)
        bucket++;
    atomic_fetch_add_explicit(&timing->counts[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&timing->total_us, took_us, memory_order_relaxed);
}

void io_counts_row(struct io_counts *counts, uint32_t model, const struct ampd_step_row *row)
{
    struct io_model_counts *of = &counts->models[model];
    if (row->kind != AMPD_ROW_STEP)
        return;
    of->applied += row->verdict == AMPD_VERDICT_APPLIED ? 1 : 0;
    of->overflows += row->verdict == AMPD_VERDICT_SKIPPED_OVERFLOW ? 1 : 0;
    of->empty += row->verdict == AMPD_VERDICT_SKIPPED_EMPTY ? 1 : 0;
    for (int i = 0; i < AMPD_STEP_TIMES; i++)
        of->times_us[i] += row->times_us[i];
}

bool io_counts_log_skip(struct io_counts *counts, uint32_t model, const struct ampd_step_row *row, uint64_t *suppressed)
{
    struct io_model_counts *of = &counts->models[model];
    bool skipped = row->kind == AMPD_ROW_STEP && row->verdict != AMPD_VERDICT_APPLIED;
    uint64_t now_us = io_clock_now_us();
    *suppressed = of->skips_suppressed;
    if (!skipped && of->skips_suppressed == 0)
        return false;
    if (now_us < of->skips_quiet_us) {
        of->skips_suppressed += skipped ? 1 : 0;
        return false;
    }
    of->skips_suppressed = 0;
    of->skips_quiet_us = now_us + (uint64_t)IO_COUNTS_SKIPS_MS * 1000;
    return true;
}

void io_counts_join(struct io_counts *counts, uint32_t model, uint32_t rank, uint32_t world_size)
{
    int64_t **times = &counts->models[model].join_us;
    AMP_ASSERT(rank < world_size); /* world_size is the same as long as the model exists */
    if (*times == NULL)
        *times = calloc(world_size, sizeof **times);
    if (*times != NULL)
        (*times)[rank] = io_clock_utc_us();
}

int64_t io_counts_join_us(const struct io_counts *counts, uint32_t model, uint32_t rank)
{
    const int64_t *times = counts->models[model].join_us;
    return times != NULL ? times[rank] : 0;
}

void io_counts_forget(struct io_counts *counts, uint32_t model)
{
    free(counts->models[model].join_us);
    counts->models[model] = (struct io_model_counts){0};
}

void io_counts_close(struct io_counts *counts)
{
    for (uint32_t i = 0; i < AMPD_MODELS_MAX; i++)
        io_counts_forget(counts, i);
}
