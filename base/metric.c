/* https://prometheus.io/docs/instrumenting/exposition_formats: lines of "name{label="value",...} number". */
#include "base/metric.h"

#include "base/assert.h"
#include "base/err.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void amp_metric_init(struct amp_metric_text *text, size_t max)
{
    amp_buf_init(&text->buf, max);
    text->error = 0;
}

void amp_metric_close(struct amp_metric_text *text)
{
    amp_buf_close(&text->buf);
}

static void put(struct amp_metric_text *text, const char *data, size_t size)
{
    if (text->error == 0)
        text->error = amp_buf_append(&text->buf, data, size);
}

static void put_text(struct amp_metric_text *text, const char *string)
{
    put(text, string, strlen(string));
}

/* Writes a text with a backslash before each character in `escaped`; a newline becomes \n. */
static void put_escaped(struct amp_metric_text *text, const char *string, const char *escaped)
{
    while (*string != 0) {
        size_t plain = strcspn(string, escaped);
        put(text, string, plain);
        string += plain;
        if (*string == 0)
            return;
        char pair[2] = {'\\', *string == '\n' ? 'n' : *string};
        put(text, pair, sizeof pair);
        string++;
    }
}

/* The shortest text that reads as the same number. */
static void put_number(struct amp_metric_text *text, double value)
{
    char number[32];
    if (isnan(value)) {
        put_text(text, "NaN");
        return;
    }
    if (isinf(value)) {
        put_text(text, value > 0 ? "+Inf" : "-Inf");
        return;
    }
    (void)snprintf(number, sizeof number, "%.15g", value);
    if (strtod(number, NULL) != value)
        (void)snprintf(number, sizeof number, "%.17g", value);
    put_text(text, number);
}

static void put_label(struct amp_metric_text *text, const char *name, const char *value)
{
    put_text(text, name);
    put_text(text, "=\"");
    put_escaped(text, value, "\\\"\n");
    put_text(text, "\"");
}

/* Writes the line of one sample. `le` is the upper end of a histogram's bucket; NULL: the sample is not a bucket. */
static void put_line(struct amp_metric_text *text, const struct amp_metric *metric, const char *suffix,
                     const struct amp_metric_label *labels, size_t count, const char *le, double value)
{
    AMP_ASSERT(count <= AMP_METRIC_LABELS_MAX);
    put_text(text, metric->name);
    put_text(text, suffix);
    for (size_t i = 0; i < count; i++) {
        put_text(text, i == 0 ? "{" : ",");
        put_label(text, labels[i].name, labels[i].value);
    }
    if (le != NULL) {
        put_text(text, count == 0 ? "{" : ",");
        put_label(text, "le", le);
    }
    put_text(text, count > 0 || le != NULL ? "} " : " ");
    put_number(text, value);
    put_text(text, "\n");
}

void amp_metric_head(struct amp_metric_text *text, const struct amp_metric *metric)
{
    static const char *const types[] = {
        [AMP_METRIC_COUNTER] = "counter", [AMP_METRIC_GAUGE] = "gauge", [AMP_METRIC_HISTOGRAM] = "histogram"};
    put_text(text, "# HELP ");
    put_text(text, metric->name);
    put_text(text, " ");
    put_escaped(text, metric->help, "\\\n");
    put_text(text, ".\n# TYPE ");
    put_text(text, metric->name);
    put_text(text, " ");
    put_text(text, types[metric->type]);
    put_text(text, "\n");
}

void amp_metric_put(struct amp_metric_text *text, const struct amp_metric *metric,
                    const struct amp_metric_label *labels, size_t count, double value)
{
    AMP_ASSERT(metric->type != AMP_METRIC_HISTOGRAM);
    put_line(text, metric, "", labels, count, NULL, value);
}

void amp_metric_put_histogram(struct amp_metric_text *text, const struct amp_metric *metric,
                              const struct amp_metric_label *labels, size_t count,
                              const struct amp_metric_histogram *histogram)
{
    uint64_t total = 0;
    AMP_ASSERT(metric->type == AMP_METRIC_HISTOGRAM);
    for (size_t i = 0; i <= histogram->bounds_count; i++) {
        char le[32] = "+Inf";
        if (i < histogram->bounds_count)
            (void)snprintf(le, sizeof le, "%g", histogram->bounds[i]);
        total += histogram->counts[i];
        put_line(text, metric, "_bucket", labels, count, le, (double)total);
    }
    put_line(text, metric, "_sum", labels, count, NULL, histogram->sum);
    put_line(text, metric, "_count", labels, count, NULL, (double)total);
}

void amp_metric_one(struct amp_metric_text *text, const struct amp_metric *metric, double value)
{
    amp_metric_head(text, metric);
    amp_metric_put(text, metric, NULL, 0, value);
}
