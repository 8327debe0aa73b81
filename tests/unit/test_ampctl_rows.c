/* Rows of ampctl: messages as JSON objects, cells of tables, lists in pages. */
#include "client/ampctl/rows.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct ampd_msg_scale_history_row step_row(uint64_t step)
{
    return (struct ampd_msg_scale_history_row){.epoch = 2,
                                               .step = step,
                                               .kind = AMPD_MSG_HISTORY_KIND_STEP,
                                               .verdict = AMPD_MSG_VERDICT_SKIPPED_OVERFLOW,
                                               .old_scale = 65536,
                                               .old_scale_id = 1,
                                               .has_record = true,
                                               .record = {.scale = 32768, .scale_id = 2},
                                               .contributors = 2,
                                               .has_overflow_totals = true,
                                               .overflow_totals = {.rows = 1, .inf_count = 5},
                                               .has_decide_time = true,
                                               .decide_time = {1767323045678901}};
}

static void assert_json(json_t *value, const char *expected)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    assert_string_equal(text, expected);
    free(text);
}

static void a_step_row_has_the_names_and_numbers_of_the_step(void **state)
{
    (void)state;
    const struct ampd_msg_scale_history_row row = step_row(1ull << 60);
    json_t *object = ampctl_history_row(&row);
    assert_json(json_object_get(object, "step"), "1152921504606846976");
    assert_json(json_object_get(object, "kind"), "\"step\"");
    assert_json(json_object_get(object, "verdict"), "\"skipped_overflow\"");
    assert_json(json_object_get(object, "old_scale"), "65536.0");
    assert_json(json_object_get(object, "scale"), "32768.0");
    assert_json(json_object_get(object, "inf_count"), "5");
    assert_json(json_object_get(object, "superseded"), "false");
    assert_json(json_object_get(object, "time"), "\"2026-01-02T03:04:05.678901Z\"");
    assert_null(json_object_get(object, "actor"));
    json_decref(object);
}

static void what_workers_told_is_there_also_where_json_has_no_number_for_it(void **state)
{
    (void)state;
    struct ampd_msg_scale_history_row row = step_row(1);
    json_t *object = ampctl_history_row(&row);
    assert_json(json_object_get(object, "loss"), "null");
    assert_json(json_object_get(object, "loss_workers"), "0");
    assert_json(json_object_get(object, "metrics"), "{}");
    json_decref(object);
    row.has_loss = true;
    row.loss = INFINITY;
    row.loss_workers = 3;
    row.metrics_count = 3;
    row.metrics[0] = (struct ampd_msg_metric){"b", 0.5f, 1};
    row.metrics[1] = (struct ampd_msg_metric){"a, \"x\"", NAN, 1};
    row.metrics[2] = (struct ampd_msg_metric){"c", -INFINITY, 1};
    object = ampctl_history_row(&row);
    assert_json(json_object_get(object, "loss"), "\"Infinity\"");
    assert_json(json_object_get(object, "loss_workers"), "3");
    assert_json(json_object_get(object, "metrics"), "{\"a, \\\"x\\\"\":\"NaN\",\"b\":0.5,\"c\":\"-Infinity\"}");
    char *text = ampctl_pairs(json_object_get(object, "metrics"), false);
    assert_string_equal(text, "b=0.5;a, \"x\"=NaN;c=-Infinity"); /* as the workers told them */
    free(text);
    json_decref(object);
}

static void where_the_time_of_a_step_went_is_there_and_null_where_it_is_not_known(void **state)
{
    (void)state;
    static const char *const names[] = {"apply_us", "pull_us", "wait_us", "push_us", "vote_us"};
    static const char *const numbers[] = {"0", "22", "333", "4444", "1152921504606846976"};
    struct ampd_msg_scale_history_row row = step_row(1);
    row.times = (struct ampd_msg_step_times){0, 22, 333, 4444, 1ull << 60};
    for (int known = 0; known < 2; known++) {
        row.has_times = known == 1;
        json_t *object = ampctl_history_row(&row);
        for (int i = 0; i < 5; i++)
            assert_json(json_object_get(object, names[i]), known == 1 ? numbers[i] : "null");
        json_decref(object);
    }
}

static void a_rate_that_was_set_is_told_with_the_one_before_where_that_is_known(void **state)
{
    (void)state;
    struct ampd_msg_scale_history_row row = {
        .step = 7, .kind = AMPD_MSG_HISTORY_KIND_LEARNING_RATE_SET, .learning_rate = 0.001, .old_learning_rate = 0.002};
    char text[72];
    json_t *object = ampctl_history_row(&row);
    assert_string_equal(ampctl_rate(object, text), "0.001, was 0.002");
    json_decref(object);
    row.old_learning_rate = 0;
    object = ampctl_history_row(&row);
    assert_json(json_object_get(object, "old_learning_rate"), "null");
    assert_string_equal(ampctl_rate(object, text), "0.001");
    json_decref(object);
    row = step_row(1);
    object = ampctl_history_row(&row);
    assert_null(json_object_get(object, "old_learning_rate"));
    json_decref(object);
}

static void an_epoch_row_names_its_parent_and_has_no_verdict(void **state)
{
    (void)state;
    const struct ampd_msg_scale_history_row row = {.epoch = 3,
                                                   .kind = AMPD_MSG_HISTORY_KIND_EPOCH,
                                                   .parent_epoch = 2,
                                                   .base_epoch = 1,
                                                   .base_step = 40,
                                                   .actor = "server",
                                                   .reason = "restart"};
    json_t *object = ampctl_history_row(&row);
    assert_json(json_object_get(object, "kind"), "\"epoch\"");
    assert_json(json_object_get(object, "verdict"), "null");
    assert_json(json_object_get(object, "parent_epoch"), "2");
    assert_json(json_object_get(object, "reason"), "\"restart\"");
    json_decref(object);
}

static void numbers_that_json_cannot_hold_are_null(void **state)
{
    (void)state;
    struct ampd_msg_scale_history_row row = step_row(1);
    row.norm = NAN;
    row.old_scale = INFINITY;
    json_t *object = ampctl_history_row(&row);
    assert_json(json_object_get(object, "norm"), "null");
    assert_json(json_object_get(object, "old_scale"), "null");
    json_decref(object);
}

static void an_overflow_of_the_sum_has_no_worker(void **state)
{
    (void)state;
    const struct ampd_msg_overflow_row row = {
        .parameter = "w", .source = AMPD_MSG_OVERFLOW_SOURCE_SUM, .inf_count = 1, .largest_finite = 3};
    json_t *object = ampctl_overflow_row(&row);
    assert_json(json_object_get(object, "source"), "\"sum\"");
    assert_json(json_object_get(object, "rank"), "null");
    assert_json(json_object_get(object, "worker"), "null");
    json_decref(object);
}

static void enums_of_a_later_server_are_unknown_not_a_crash(void **state)
{
    (void)state;
    struct ampd_msg_scale_history_row row = step_row(1);
    row.kind = (enum ampd_msg_history_kind)99;
    json_t *object = ampctl_history_row(&row);
    assert_json(json_object_get(object, "kind"), "\"unknown\"");
    json_decref(object);
}

static void cells_are_short_texts(void **state)
{
    (void)state;
    char buffer[32];
    json_t *values = json_pack("[s, I, f, b, n]", "x", (json_int_t)INT64_MIN, 1.0 / 3, 1);
    assert_string_equal(ampctl_cell(json_array_get(values, 0), buffer), "x");
    assert_string_equal(ampctl_cell(json_array_get(values, 1), buffer), "-9223372036854775808");
    assert_string_equal(ampctl_cell(json_array_get(values, 2), buffer), "0.333333");
    assert_string_equal(ampctl_cell(json_array_get(values, 3), buffer), "yes");
    assert_string_equal(ampctl_cell(json_array_get(values, 4), buffer), "-");
    assert_string_equal(ampctl_cell(NULL, buffer), "-");
    json_t *scale = json_real(16777216);
    assert_string_equal(ampctl_cell(scale, buffer), "16777216");
    json_decref(scale);
    json_decref(values);
}

static void what_was_measured_has_six_digits(void **state)
{
    static const struct {
        double value;
        const char *text;
    } rows[] = {{0.25, "0.250000"}, {2, "2.00000"},     {1.0 / 3, "0.333333"}, {-1e-7, "-1.00000e-07"},
                {0, "0"},           {123456, "123456"}, {1e9, "1.00000e+09"}};
    char buffer[32];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *value = json_real(rows[i].value);
        assert_string_equal(ampctl_measured(value, buffer), rows[i].text);
        json_decref(value);
    }
    assert_string_equal(ampctl_measured(NULL, buffer), "-"); /* nobody told one */
}

/* ---- lists ---- */

static char *print_pages(bool json, unsigned pages, unsigned rows_per_page)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    struct ampctl_list list = {.out = out, .json = json, .columns = ampctl_overflow_columns};
    uint64_t step = 0;
    for (unsigned p = 0; p < pages; p++) {
        json_t *rows = json_array();
        for (unsigned r = 0; r < rows_per_page; r++) {
            const struct ampd_msg_overflow_row row = {.step = ++step, .parameter = "fc1.weight", .inf_count = 3};
            assert_int_equal(json_array_append_new(rows, ampctl_overflow_row(&row)), 0);
        }
        assert_int_equal(ampctl_list_page(&list, rows), 0);
        json_decref(rows);
    }
    assert_int_equal(ampctl_list_end(&list), 0);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void pages_of_json_are_one_object(void **state)
{
    (void)state;
    char *text = print_pages(true, 3, 2);
    json_t *all = json_loads(text, 0, NULL);
    assert_non_null(all);
    assert_int_equal(json_array_size(json_object_get(all, "rows")), 6);
    assert_json(json_object_get(json_array_get(json_object_get(all, "rows"), 5), "step"), "6");
    json_decref(all);
    free(text);
}

static void an_empty_list_is_still_json(void **state)
{
    (void)state;
    char *none = print_pages(true, 0, 0), *empty = print_pages(true, 2, 0);
    assert_string_equal(none, "{\"rows\":[]}\n");
    assert_string_equal(empty, "{\"rows\":[]}\n");
    free(none);
    free(empty);
}

static void a_table_has_its_titles_once(void **state)
{
    (void)state;
    char *text = print_pages(false, 3, 2);
    const char *title = strstr(text, "PARAMETER");
    assert_non_null(title);
    assert_null(strstr(title + 1, "PARAMETER"));
    size_t lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    assert_int_equal(lines, 7);
    free(text);
}

static void csv_fields_are_quoted_where_rfc_4180_wants_it(void **state)
{
    static const struct {
        const char *json, *csv;
    } rows[] = {{"\"plain\"", "plain"},
                {"\"a,b\"", "\"a,b\""},
                {"\"say \\\"x\\\"\"", "\"say \"\"x\"\"\""},
                {"\"two\\r\\nlines\"", "two\\r\\nlines"},
                {"\"\\u001b[31m, \\u009b\"", "\"\\u001b[31m, \\u009b\""},
                {"\"\"", ""},
                {"null", ""},
                {"true", "true"},
                {"12", "12"},
                {"{}", ""},
                {"{\"a\":0.1,\"b c\":\"NaN\"}", "a=0.10000000000000001;b c=NaN"},
                {"{\"a,b\":2}", "\"a,b=2\""},
                {"0.5", "0.5"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        json_t *value = json_loads(rows[i].json, JSON_DECODE_ANY, NULL);
        assert_true(out != NULL && value != NULL);
        assert_int_equal(ampctl_csv_field(out, value), 0);
        assert_int_equal(fclose(out), 0);
        assert_string_equal(text, rows[i].csv);
        json_decref(value);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(csv_fields_are_quoted_where_rfc_4180_wants_it),
        cmocka_unit_test(a_step_row_has_the_names_and_numbers_of_the_step),
        cmocka_unit_test(what_workers_told_is_there_also_where_json_has_no_number_for_it),
        cmocka_unit_test(where_the_time_of_a_step_went_is_there_and_null_where_it_is_not_known),
        cmocka_unit_test(a_rate_that_was_set_is_told_with_the_one_before_where_that_is_known),
        cmocka_unit_test(an_epoch_row_names_its_parent_and_has_no_verdict),
        cmocka_unit_test(numbers_that_json_cannot_hold_are_null),
        cmocka_unit_test(an_overflow_of_the_sum_has_no_worker),
        cmocka_unit_test(enums_of_a_later_server_are_unknown_not_a_crash),
        cmocka_unit_test(cells_are_short_texts),
        cmocka_unit_test(what_was_measured_has_six_digits),
        cmocka_unit_test(pages_of_json_are_one_object),
        cmocka_unit_test(an_empty_list_is_still_json),
        cmocka_unit_test(a_table_has_its_titles_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
