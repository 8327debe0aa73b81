/* What of the page needs no server: texts as JSON, thinning, and the names that Host may have. */
#include "server/io/page/json.h"
#include "server/io/page/page_impl.h"
#include "server/io/page/thin.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- JSON ---- */

static void assert_text(const char *text, const char *expected)
{
    struct io_json json;
    io_json_init(&json, 1024);
    io_json_text(&json, NULL, text);
    io_json_raw(&json, "");
    assert_int_equal(json.error, 0);
    assert_int_equal(json.buf.size, strlen(expected));
    assert_memory_equal(json.buf.data, expected, json.buf.size);
    io_json_close(&json);
}

static void texts_cannot_end_their_string_nor_be_a_tag(void **state)
{
    assert_text("plain - 1/2", "\"plain - 1/2\"");
    assert_text("\"quoted\" \\ back", "\"\\u0022quoted\\u0022 \\u005c back\"");
    assert_text("</script><b a='x'>&amp;", "\"\\u003c/script\\u003e\\u003cb a=\\u0027x\\u0027\\u003e\\u0026amp;\"");
    assert_text("a\nb\tc\x01\x7f", "\"a\\u000ab\\u0009c\\u0001\\u007f\"");
    assert_text("", "\"\"");
}

static void texts_are_utf_8_whatever_they_were(void **state)
{
    assert_text("caf\xc3\xa9 \xe6\xa8\xa1\xe5\x9e\x8b \xf0\x9f\x98\x80",
                "\"caf\xc3\xa9 \xe6\xa8\xa1\xe5\x9e\x8b \xf0\x9f\x98\x80\"");
    assert_text("\xe2\x80\xa8|\xe2\x80\xa9|\xe2\x80\xaa", "\"\\u2028|\\u2029|\xe2\x80\xaa\"");
    assert_text("a\xff"
                "b",
                "\"a\xef\xbf\xbd"
                "b\"");
    assert_text("\xc3", "\"\xef\xbf\xbd\"");                                 /* cut */
    assert_text("\xc0\xbc", "\"\xef\xbf\xbd\xef\xbf\xbd\"");                 /* '<' in too long a form */
    assert_text("\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""); /* half of a pair */
    assert_text("\xf4\x90\x80\x80x", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdx\""); /* behind the last */
}

static void values_are_separated_and_what_is_not_finite_is_null(void **state)
{
    struct io_json json;
    io_json_init(&json, 1024);
    io_json_open(&json, NULL, '{');
    io_json_count(&json, "a", UINT64_MAX);
    io_json_open(&json, "b", '[');
    io_json_number(&json, NULL, (double)0.1f);
    io_json_number(&json, NULL, INFINITY);
    io_json_number(&json, NULL, NAN);
    io_json_open(&json, NULL, '[');
    io_json_shut(&json, ']');
    io_json_shut(&json, ']');
    io_json_truth(&json, "c\"", true);
    io_json_none(&json, "d");
    io_json_value(&json, "e", "{}", 2);
    io_json_shut(&json, '}');
    static const char expected[] =
        "{\"a\":18446744073709551615,\"b\":[0.100000001,null,null,[]],\"c\\u0022\":true,\"d\":null,\"e\":{}}";
    assert_int_equal(json.buf.size, sizeof expected - 1);
    assert_memory_equal(json.buf.data, expected, sizeof expected - 1);
    io_json_close(&json);
}

static void a_text_that_is_too_long_is_an_error_and_grows_no_further(void **state)
{
    struct io_json json;
    io_json_init(&json, 10);
    for (int i = 0; i < 100; i++)
        io_json_text(&json, NULL, "<");
    assert_int_equal(json.error, AMP_EEXHAUSTED);
    assert_true(json.buf.size <= 10);
    io_json_close(&json);
}

/* ---- thinning ---- */

static struct ampd_history_point step_point(uint64_t step, bool skipped)
{
    return (struct ampd_history_point){.key = {1, step, 0},
                                       .kind = AMPD_ROW_STEP,
                                       .verdict = skipped ? AMPD_VERDICT_SKIPPED_OVERFLOW : AMPD_VERDICT_APPLIED,
                                       .scale = 1024,
                                       .after_scale = 1024,
                                       .clip = skipped ? 0 : 1,
                                       .norm = skipped ? 0 : 2,
                                       .lr = skipped ? 0 : 0.5,
                                       .at_us = (int64_t)step * 1000000};
}

/* The numbers of a xorshift; the seed is printed, so that a failure can be had again. */
static uint64_t next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

#define ROUNDS 40

/* Against a plain look at all rows: for each curve of each bucket, and for the skipped ones. */
static void compare(const struct io_thin *thin, const struct ampd_history_point *points, uint64_t count)
{
    uint64_t skipped = 0, kept = 0;
    double least = INFINITY, greatest = -INFINITY, kept_least = INFINITY, kept_greatest = -INFINITY;
    for (uint64_t i = 0; i < count; i++) {
        bool applied = points[i].verdict == AMPD_VERDICT_APPLIED;
        skipped += !applied;
        if (applied && points[i].norm < least)
            least = points[i].norm;
        if (applied && points[i].norm > greatest)
            greatest = points[i].norm;
    }
    uint64_t last = 0;
    for (uint32_t b = 0; b < thin->pixels; b++) {
        const struct io_thin_bucket *bucket = &thin->buckets[b];
        kept += bucket->overflows + bucket->empties;
        if (bucket->overflows + bucket->empties > 0) {
            assert_true(bucket->first_skipped > last && bucket->first_skipped <= bucket->last_skipped);
            assert_true(points[bucket->first_skipped - thin->from].verdict != AMPD_VERDICT_APPLIED);
            assert_true(points[bucket->last_skipped - thin->from].verdict != AMPD_VERDICT_APPLIED);
            last = bucket->last_skipped;
        }
        if (!bucket->any[IO_THIN_NORM])
            continue;
        const struct io_thin_value *low = &bucket->least[IO_THIN_NORM], *high = &bucket->greatest[IO_THIN_NORM];
        assert_true(points[low->step - thin->from].norm == low->value);
        assert_true(points[high->step - thin->from].norm == high->value);
        kept_least = low->value < kept_least ? low->value : kept_least;
        kept_greatest = high->value > kept_greatest ? high->value : kept_greatest;
    }
    assert_int_equal(kept, skipped);
    assert_true(kept_least == least && kept_greatest == greatest);
    assert_int_equal(thin->rows, count);
}

static void thinning_loses_no_skipped_step_and_keeps_the_least_and_the_greatest(void **state)
{
    uint64_t seed = 0x9e3779b97f4a7c15;
    (void)printf("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t count = 1 + next(&seed) % 5000, from = 1 + next(&seed) % 1000000;
        uint32_t pixels = 1 + (uint32_t)(next(&seed) % IO_THIN_PIXELS_MAX);
        struct ampd_history_point *points = calloc(count, sizeof *points);
        struct io_thin thin;
        assert_int_equal(io_thin_init(&thin, from, from + count - 1, pixels), 0);
        assert_true(thin.pixels <= pixels);
        for (uint64_t i = 0; i < count; i++) {
            points[i] = step_point(from + i, next(&seed) % 50 == 0);
            if (points[i].verdict == AMPD_VERDICT_APPLIED)
                points[i].norm = (double)(next(&seed) % 1000000) / 1000;
            io_thin_add(&thin, &points[i]);
        }
        compare(&thin, points, count);
        io_thin_close(&thin);
        free(points);
    }
}

static void steps_out_of_range_and_values_that_no_plot_has_are_left_out(void **state)
{
    struct io_thin thin;
    assert_int_equal(io_thin_init(&thin, 10, 12, 100), 0);
    assert_int_equal(thin.pixels, 3);
    for (uint64_t step = 8; step <= 14; step++) {
        struct ampd_history_point point = step_point(step, step == 13);
        if (step == 11)
            point.norm = INFINITY;
        io_thin_add(&thin, &point);
    }
    assert_int_equal(thin.rows, 3);
    assert_int_equal(thin.last.step, 14);
    assert_true(thin.buckets[0].any[IO_THIN_NORM] && !thin.buckets[1].any[IO_THIN_NORM]);
    assert_true(thin.buckets[0].any[IO_THIN_SECONDS]); /* step 9 was before it */
    assert_int_equal(thin.buckets[0].overflows + thin.buckets[1].overflows + thin.buckets[2].overflows, 0);
    io_thin_close(&thin);
}

static void the_time_of_a_step_is_that_since_the_one_before_within_an_epoch(void **state)
{
    struct io_thin thin;
    assert_int_equal(io_thin_init(&thin, 1, 4, 4), 0);
    for (uint64_t step = 1; step <= 4; step++) {
        struct ampd_history_point point = step_point(step, false), epoch = point;
        epoch.kind = AMPD_ROW_EPOCH;
        epoch.key.step = step - 1;
        if (step == 3)
            io_thin_add(&thin, &epoch);
        io_thin_add(&thin, &point);
    }
    assert_false(thin.buckets[0].any[IO_THIN_SECONDS]); /* nothing came before it */
    assert_true(thin.buckets[1].any[IO_THIN_SECONDS] && thin.buckets[1].least[IO_THIN_SECONDS].value == 1);
    assert_false(thin.buckets[2].any[IO_THIN_SECONDS]);
    assert_true(thin.buckets[3].any[IO_THIN_SECONDS]);
    assert_int_equal(thin.acts_count, 1);
    assert_int_equal(thin.acts[0].kind, AMPD_ROW_EPOCH);
    io_thin_close(&thin);
}

static void a_plot_is_written_in_the_order_of_its_steps(void **state)
{
    struct io_thin thin;
    struct io_json json;
    assert_int_equal(io_thin_init(&thin, 1, 6, 2), 0);
    static const double norms[] = {5, 1, 3, 2, 0, 2};
    for (uint64_t step = 1; step <= 6; step++) {
        struct ampd_history_point point = step_point(step, step == 5);
        if (step != 5)
            point.norm = norms[step - 1];
        point.has_loss = step != 2 && step != 6; /* of which nobody has told one */
        point.loss = step == 5 ? INFINITY : step == 4 ? 8.0f : 5.0f - (float)step;
        for (uint64_t i = 0; i < AMPD_STEP_TIMES && step > 3; i++) /* of the first ones it is not known */
            point.times_us[i] = i * step * 1000;
        io_thin_add(&thin, &point);
    }
    io_json_init(&json, 4096);
    io_json_open(&json, NULL, '{');
    io_thin_write(&thin, &json);
    io_json_shut(&json, '}');
    assert_int_equal(amp_buf_append(&json.buf, "", 1), 0);
    assert_string_equal((const char *)json.buf.data,
                        "{\"from\":1,\"to\":6,\"rows\":6,\"curves\":{\"scale\":[[1,4],[1024,1024]],"
                        "\"norm\":[[1,2,4],[5,1,2]],\"clip\":[[1,4],[1,1]],\"rate\":[[1,4],[0.5,0.5]],"
                        "\"loss\":[[1,3,4],[4,2,8]],\"seconds\":[[2,4],[1,1]],"
                        "\"apply\":[[4],[0]],\"pull\":[[4,6],[0.004,0.006]],\"wait\":[[4,6],[0.008,0.012]],"
                        "\"push\":[[4,6],[0.012,0.018]],\"vote\":[[4,6],[0.016,0.024]]},\"skipped\":[[5,5,1,0]]}");
    io_json_close(&json);
    io_thin_close(&thin);
}

/* ---- Host ---- */

static void host_is_an_address_or_localhost(void **state)
{
    static const char *const ours[] = {"127.0.0.1", "127.0.0.1:7421", "localhost", "LocalHost:1",
                                       "[::1]",     "[::1]:7421",     "10.1.2.3"};
    static const char *const others[] = {"",
                                         ":7421",
                                         "evil.example",
                                         "127.0.0.1.evil.example",
                                         "localhost.evil.example:7421",
                                         "localhost:x",
                                         "127.0.0.1:7421@evil.example",
                                         "[::1",
                                         "[::1]x",
                                         "[evil]",
                                         "::1",
                                         "127.0.0.1 ",
                                         "1",
                                         "[]"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        assert_true(io_page_host_is_ours(ours[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(io_page_host_is_ours(others[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_cannot_end_their_string_nor_be_a_tag),
        cmocka_unit_test(texts_are_utf_8_whatever_they_were),
        cmocka_unit_test(values_are_separated_and_what_is_not_finite_is_null),
        cmocka_unit_test(a_text_that_is_too_long_is_an_error_and_grows_no_further),
        cmocka_unit_test(thinning_loses_no_skipped_step_and_keeps_the_least_and_the_greatest),
        cmocka_unit_test(steps_out_of_range_and_values_that_no_plot_has_are_left_out),
        cmocka_unit_test(the_time_of_a_step_is_that_since_the_one_before_within_an_epoch),
        cmocka_unit_test(a_plot_is_written_in_the_order_of_its_steps),
        cmocka_unit_test(host_is_an_address_or_localhost),
    };
    return cmocka_run_group_tests_name("server_page", tests, NULL, NULL);
}
