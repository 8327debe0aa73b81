/*
 * A plot's worth of a history: its steps in as many buckets as the plot has pixels. Of each curve a bucket keeps the
 * least and the greatest value, with their steps, so that no peak is lost; of the skipped steps how many there are,
 * and the first and the last. So many buckets hold what any number of rows says. No I/O; any thread, one at a time.
 */
#ifndef AMPD_IO_THIN_H
#define AMPD_IO_THIN_H

#include "server/io/page/json.h"
#include "storage/store_page.h"

#define IO_THIN_PIXELS_MAX 2000

/* Rows that are no steps: the newest of them are kept. A run has a handful of epochs and acts. */
#define IO_THIN_ACTS_MAX 64

/* The curves; thin.c has their names. */
enum io_thin_curve {
    IO_THIN_SCALE,
    IO_THIN_NORM,
    IO_THIN_CLIP,
    IO_THIN_RATE,
    IO_THIN_LOSS, /* of steps of which workers have told one */
    IO_THIN_SECONDS,
    IO_THIN_TIMES, /* from here on: where they went, of steps of which it is known; in the order of ampd_step_time */
    IO_THIN_CURVES = IO_THIN_TIMES + AMPD_STEP_TIMES
};

struct io_thin_value {
    uint64_t step;
    double value;
};

struct io_thin_bucket {
    bool any[IO_THIN_CURVES];
    struct io_thin_value least[IO_THIN_CURVES], greatest[IO_THIN_CURVES];
    uint64_t first_skipped, last_skipped;
    uint32_t overflows, empties; /* steps that were skipped, by why */
};

struct io_thin {
    uint64_t from, to;  /* steps, inclusive */
    uint64_t acts_from; /* of acts; at most from */
    uint32_t pixels;
    uint64_t rows;                /* that were steps */
    int64_t before_us;            /* when the step before was decided; 0: not known */
    struct ampd_history_key last; /* of the row that came last */
    uint32_t acts_count;          /* all there were; the newest are in acts[i % IO_THIN_ACTS_MAX] */
    struct ampd_history_point acts[IO_THIN_ACTS_MAX];
    struct io_thin_bucket *buckets; /* [pixels] */
};

/* For the steps from..to, from <= to, 1 to IO_THIN_PIXELS_MAX pixels. AMP_ENOMEM. */
int io_thin_init(struct io_thin *thin, uint64_t from, uint64_t to, uint32_t pixels);
void io_thin_close(struct io_thin *thin);

/*
 * One row, in order. Steps out of range are left out; the one before the range tells when the first one began, and the
 * acts before its first step are the plot's.
 */
void io_thin_add(struct io_thin *thin, const struct ampd_history_point *point);

/*
 * "from", "to", "rows", "curves" ({"scale": [[steps], [values]], ...}, each in the order of its steps) and "skipped"
 * ([[first step, last step, overflows, empties], ...], one for each bucket that has one) into an open object.
 */
void io_thin_write(const struct io_thin *thin, struct io_json *json);

#endif
