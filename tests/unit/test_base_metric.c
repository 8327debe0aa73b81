/* The text of metrics: the exact bytes of each kind of line. promtool reads a whole one in tests/integration. */
#include "base/metric.h"

#include "base/err.h"

#include <math.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define COUNT(array) (sizeof array / sizeof *(array))

static const struct amp_metric gauge = {"a_gauge", AMP_METRIC_GAUGE, "Two\nlines, a \\ and a \"quote\""};
static const struct amp_metric counter = {"a_total", AMP_METRIC_COUNTER, "Counts"};
static const struct amp_metric seconds = {"a_seconds", AMP_METRIC_HISTOGRAM, "Takes"};

static int setup(void **state)
{
    static struct amp_metric_text text;
    amp_metric_init(&text, 4096);
    *state = &text;
    return 0;
}

static int teardown(void **state)
{
    amp_metric_close(*state);
    return 0;
}

static void expect(struct amp_metric_text *text, const char *wanted)
{
    assert_int_equal(text->error, 0);
    assert_int_equal(text->buf.size, strlen(wanted));
    assert_memory_equal(text->buf.data, wanted, strlen(wanted));
}

static void a_metric_has_help_and_type_and_then_its_samples(void **state)
{
    amp_metric_one(*state, &counter, 3);
    expect(*state, "# HELP a_total Counts.\n# TYPE a_total counter\na_total 3\n");
}

static void help_and_labels_are_escaped_each_in_its_way(void **state)
{
    const struct amp_metric_label labels[] = {{"model", "a\"b\\c\nd"}, {"empty", ""}};
    amp_metric_head(*state, &gauge);
    amp_metric_put(*state, &gauge, labels, COUNT(labels), 1);
    expect(*state, "# HELP a_gauge Two\\nlines, a \\\\ and a \"quote\".\n# TYPE a_gauge gauge\n"
                   "a_gauge{model=\"a\\\"b\\\\c\\nd\",empty=\"\"} 1\n");
}

static void numbers_are_written_so_that_they_read_as_the_same(void **state)
{
    const double values[] = {0.1, 1e15, 9007199254740991.0, 0x1p-1074, -0.25, INFINITY, -INFINITY, NAN, 1.0 / 3};
    for (size_t i = 0; i < COUNT(values); i++)
        amp_metric_put(*state, &counter, NULL, 0, values[i]);
    expect(*state, "a_total 0.1\na_total 1e+15\na_total 9007199254740991\na_total 4.94065645841247e-324\n"
                   "a_total -0.25\na_total +Inf\na_total -Inf\na_total NaN\na_total 0.33333333333333331\n");
}

static void the_buckets_of_a_histogram_add_up_to_its_count(void **state)
{
    const double bounds[] = {0.005, 1, 2.5};
    const uint64_t counts[] = {1, 0, 2, 4};
    const struct amp_metric_histogram histogram = {bounds, COUNT(bounds), counts, 12.5};
    const struct amp_metric_label label = {"method", "Push"};
    amp_metric_put_histogram(*state, &seconds, &label, 1, &histogram);
    amp_metric_put_histogram(*state, &seconds, NULL, 0, &histogram);
    expect(*state, "a_seconds_bucket{method=\"Push\",le=\"0.005\"} 1\na_seconds_bucket{method=\"Push\",le=\"1\"} 1\n"
                   "a_seconds_bucket{method=\"Push\",le=\"2.5\"} 3\na_seconds_bucket{method=\"Push\",le=\"+Inf\"} 7\n"
                   "a_seconds_sum{method=\"Push\"} 12.5\na_seconds_count{method=\"Push\"} 7\n"
                   "a_seconds_bucket{le=\"0.005\"} 1\na_seconds_bucket{le=\"1\"} 1\na_seconds_bucket{le=\"2.5\"} 3\n"
                   "a_seconds_bucket{le=\"+Inf\"} 7\na_seconds_sum 12.5\na_seconds_count 7\n");
}

static void a_text_that_is_full_says_so_and_takes_nothing_more(void **state)
{
    struct amp_metric_text text;
    (void)state;
    amp_metric_init(&text, 20);
    amp_metric_put(&text, &counter, NULL, 0, 1);
    assert_int_equal(text.error, 0);
    amp_metric_put(&text, &counter, NULL, 0, 1234567);
    assert_int_equal(text.error, AMP_EEXHAUSTED);
    size_t size = text.buf.size;
    amp_metric_put(&text, &counter, NULL, 0, 1);
    assert_int_equal(text.buf.size, size);
    amp_metric_close(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_metric_has_help_and_type_and_then_its_samples, setup, teardown),
        cmocka_unit_test_setup_teardown(help_and_labels_are_escaped_each_in_its_way, setup, teardown),
        cmocka_unit_test_setup_teardown(numbers_are_written_so_that_they_read_as_the_same, setup, teardown),
        cmocka_unit_test_setup_teardown(the_buckets_of_a_histogram_add_up_to_its_count, setup, teardown),
        cmocka_unit_test(a_text_that_is_full_says_so_and_takes_nothing_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
