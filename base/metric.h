/*
 * Metrics as text, in the exposition format 0.0.4 of Prometheus. What is measured is given by rows: each metric is one
 * `struct amp_metric` next to what it measures. No state: values are given when the text is written.
 */
#ifndef AMP_BASE_METRIC_H
#define AMP_BASE_METRIC_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

/* Of the answer that has the text. */
#define AMP_METRIC_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

enum amp_metric_type { AMP_METRIC_COUNTER, AMP_METRIC_GAUGE, AMP_METRIC_HISTOGRAM };

/*
 * By convention: a prefix, a base unit (seconds, bytes), "_total" for counters. `help` is one sentence without its
 * stop.
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

/* Most labels of one sample, without that of a histogram's bucket. */
#define AMP_METRIC_LABELS_MAX 4

/* Counts by upper end, and their sum. */
struct amp_metric_histogram {
    const double *bounds; /* ascending; values beyond the last are in counts[bounds_count] */
    size_t bounds_count;
    const uint64_t *counts; /* [bounds_count + 1], each value in one of them */
    double sum;
};

/* A text being written. After a failure nothing more is added, and `error` has the first one. */
struct amp_metric_text {
    struct amp_buf buf;
    int error; /* 0, AMP_ENOMEM, AMP_EEXHAUSTED */
};

/* An empty text of at most `max` bytes, which amp_metric_close frees. */
void amp_metric_init(struct amp_metric_text *text, size_t max);
void amp_metric_close(struct amp_metric_text *text);

/* HELP and TYPE. Each metric's comes once, and its samples follow it. */
void amp_metric_head(struct amp_metric_text *text, const struct amp_metric *metric);

/* One sample with `count` labels (at most AMP_METRIC_LABELS_MAX). */
void amp_metric_put(struct amp_metric_text *text, const struct amp_metric *metric,
                    const struct amp_metric_label *labels, size_t count, double value);

/* A histogram's buckets, sum and count, with these labels. */
void amp_metric_put_histogram(struct amp_metric_text *text, const struct amp_metric *metric,
                              const struct amp_metric_label *labels, size_t count,
                              const struct amp_metric_histogram *histogram);

/* Head and one sample without labels. */
void amp_metric_one(struct amp_metric_text *text, const struct amp_metric *metric, double value);

#endif
