/*
 * Writes metrics as text, in the exposition format 0.0.4 of Prometheus. Each metric is described by a constant struct
 * amp_metric, which stands in the source beside what it measures. No values are kept here: they are given when the text
 * is written.
 */
#ifndef AMP_BASE_METRIC_H
#define AMP_BASE_METRIC_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

/* The Content-Type of an HTTP response that has the text. */
#define AMP_METRIC_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

enum amp_metric_type { AMP_METRIC_COUNTER, AMP_METRIC_GAUGE, AMP_METRIC_HISTOGRAM };

/*
 * Describes a metric. By convention a name has a prefix, ends in a base unit (seconds, bytes), and has "_total" if it
 * is a counter. `help` is one sentence without its full stop.
 */
struct amp_metric {
    const char *name;
    enum amp_metric_type type;
    const char *help;
};

struct amp_metric_label {
    const char *name;
    const char *value; /* any text; it is escaped */
};

/* The most labels of one sample; the label `le` of a histogram's bucket is not counted. */
#define AMP_METRIC_LABELS_MAX 4

/* The values of a histogram. */
struct amp_metric_histogram {
    const double *bounds; /* [bounds_count], ascending: the upper end of each bucket */
    size_t bounds_count;
    const uint64_t *counts; /* [bounds_count + 1], not cumulative; the last one counts values above all bounds */
    double sum;             /* of all values */
};

/* A text being written. After the first error nothing more is added. */
struct amp_metric_text {
    struct amp_buf buf;
    int error; /* the first error: 0, AMP_ENOMEM or AMP_EEXHAUSTED */
};

/* Begins an empty text of at most `max` bytes; and frees a text that was begun. */
void amp_metric_init(struct amp_metric_text *text, size_t max);
void amp_metric_close(struct amp_metric_text *text);

/* Writes the lines HELP and TYPE of a metric. Called once for each metric, directly before its samples. */
void amp_metric_head(struct amp_metric_text *text, const struct amp_metric *metric);

/* Writes one sample, with `count` labels (at most AMP_METRIC_LABELS_MAX). Not for a histogram. */
void amp_metric_put(struct amp_metric_text *text, const struct amp_metric *metric,
                    const struct amp_metric_label *labels, size_t count, double value);

/* Writes the buckets, sum and count of a histogram, with these labels. */
void amp_metric_put_histogram(struct amp_metric_text *text, const struct amp_metric *metric,
                              const struct amp_metric_label *labels, size_t count,
                              const struct amp_metric_histogram *histogram);

/* Writes HELP, TYPE and one sample without labels. */
void amp_metric_one(struct amp_metric_text *text, const struct amp_metric *metric, double value);

#endif
