/*
 * Thins a history for a plot: the steps go into as many buckets as the plot has pixels. For each curve a bucket keeps
 * the least and the greatest value with their steps, so that no peak is lost; for skipped steps it keeps their number,
 * the first and the last. So its size does not depend on the number of rows. No I/O; any thread, one at a time.
 */
#ifndef AMPD_IO_THIN_H
#define AMPD_IO_THIN_H

#include "server/io/page/json.h"
#include "storage/store_page.h"

#define IO_THIN_PIXELS_MAX 2000

/*
 * Most rows that are kept of those that are not steps (epochs, and actions of operators): the newest. A run has a
 * handful of them.
 */
#define IO_THIN_ACTS_MAX 64

/* The curves; thin.c has the names that they get in JSON. */
enum io_thin_curve {
    IO_THIN_SCALE,
    IO_THIN_NORM,
    IO_THIN_CLIP,
    IO_THIN_RATE,
    IO_THIN_LOSS,    /* only of steps for which a worker gave a loss */
    IO_THIN_SECONDS, /* from the decision before until that of the step */
    IO_THIN_TIMES,   /* the first of AMPD_STEP_TIMES curves: the parts of that time, ordered as enum ampd_step_time */
    IO_THIN_CURVES = IO_THIN_TIMES + AMPD_STEP_TIMES
};

struct io_thin_value {
    uint64_t step;
    double value;
};

struct io_thin_bucket {
    bool any[IO_THIN_CURVES]; /* the curve has a value here: least and greatest are set */
    struct io_thin_value least[IO_THIN_CURVES], greatest[IO_THIN_CURVES];
    uint64_t first_skipped, last_skipped; /* steps; only if overflows + empties > 0 */
    uint32_t overflows, empties;          /* steps skipped for an overflow, and because all weights were 0 */
};

struct io_thin {
    uint64_t from, to;            /* first and last step of the plot, both included */
    uint64_t acts_from;           /* first step whose acts are kept; from, unless the caller lowers it */
    uint32_t pixels;              /* number of buckets; not above the number of steps */
    uint64_t rows;                /* rows of steps that were added */
    int64_t before_us;            /* UTC time at which the step before the next row was decided; 0: not known */
    struct ampd_history_key last; /* key of the last row that was added */
    uint32_t acts_count; /* acts that were added; act i is in acts[i % IO_THIN_ACTS_MAX], if it is still there */
    struct ampd_history_point acts[IO_THIN_ACTS_MAX];
    struct io_thin_bucket *buckets; /* [pixels], owned */
};

/* Begins a plot of the steps from..to, from <= to, with 1 to IO_THIN_PIXELS_MAX pixels. 0 or AMP_ENOMEM. */
int io_thin_init(struct io_thin *thin, uint64_t from, uint64_t to, uint32_t pixels);
void io_thin_close(struct io_thin *thin);

/*
 * Adds one row; rows come in the order of their keys. Steps outside of the range are left out, but the step before it
 * is needed to know how long the first one took. An act belongs to the step that follows it: acts from acts_from to the
 * step after the range are kept.
 */
void io_thin_add(struct io_thin *thin, const struct ampd_history_point *point);

/*
 * Writes the members "from", "to", "rows", "curves" ({"scale": [[steps], [values]], ...}, in the order of steps) and
 * "skipped" ([[first step, last step, overflows, empties], ...], one for each bucket with a skipped step) into the
 * object that is open. The acts are not written.
 */
void io_thin_write(const struct io_thin *thin, struct io_json *json);

#endif
