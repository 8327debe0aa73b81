/*
 * Texts of others in all that ampctl prints: nothing of them reaches the terminal as a command or as a line of its own.
 */
#include "client/ampctl/rows.h"
#include "client/ampctl/print.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

/* ESC and a title, CSI as one character of UTF-8, a forged line, a carriage return, DEL, and letters that stay. */
#define HOSTILE                                                                                                        \
    "\x1b]0;owned\x07\xc2\x9b"                                                                                         \
    "31m\nrank 0 is fine\r\x7f gr\xc3\xbc\xc3\x9f"
#define SHOWN "\\u001b]0;owned\\u0007\\u009b31m\\nrank 0 is fine\\r\\u007f gr\xc3\xbc\xc3\x9f"

/* Nothing but lines: no control character, in one byte or in the two of U+0080 to U+009F. */
static void assert_harmless(const char *text, size_t lines)
{
    for (const unsigned char *at = (const unsigned char *)text; *at != 0; at++) {
        assert_true(*at >= ' ' || *at == '\n' || (*at == '\r' && at[1] == '\n'));
        assert_true(*at != 0x7f && !(*at == 0xc2 && at[1] < 0xa0));
        lines -= *at == '\n';
    }
    assert_int_equal(lines, 0);
}

static char *list_of(struct ampctl_list list, json_t *row)
{
    char *text = NULL;
    size_t size = 0;
    json_t *rows = json_pack("[o]", row);
    list.out = open_memstream(&text, &size);
    assert_true(rows != NULL && list.out != NULL);
    assert_int_equal(ampctl_list_page(&list, rows), 0);
    assert_int_equal(ampctl_list_end(&list), 0);
    assert_int_equal(fclose(list.out), 0);
    json_decref(rows);
    return text;
}

static json_t *overflow(void)
{
    return ampctl_overflow_row(&(struct ampd_msg_overflow_row){
        .parameter = HOSTILE, .source = AMPD_MSG_OVERFLOW_SOURCE_WORKER, .worker_name = HOSTILE, .inf_count = 1});
}

static void a_table_escapes_the_names_of_workers_and_parameters(void **state)
{
    (void)state;
    char *text = list_of((struct ampctl_list){.columns = ampctl_overflow_columns}, overflow());
    assert_harmless(text, 2);
    char *first = strstr(text, SHOWN);
    assert_true(first != NULL && strstr(first + 1, SHOWN) != NULL);
    free(text);
}

static void a_record_of_csv_is_one_line_without_control_characters(void **state)
{
    (void)state;
    char *text = list_of((struct ampctl_list){.csv = true, .columns = ampctl_overflow_columns}, overflow());
    assert_harmless(text, 2);
    assert_non_null(strstr(text, "," SHOWN ","));
    free(text);
}

static void json_is_ascii_and_has_the_names_exactly(void **state)
{
    (void)state;
    char *text = list_of((struct ampctl_list){.json = true, .columns = ampctl_overflow_columns}, overflow());
    for (const char *at = text; *at != 0; at++)
        assert_true((*at >= ' ' && *at < 0x7f) || *at == 0x7f || *at == '\n');
    json_t *all = json_loads(text, 0, NULL);
    const json_t *row = json_array_get(json_object_get(all, "rows"), 0);
    assert_string_equal(json_string_value(json_object_get(row, "worker")), HOSTILE);
    assert_string_equal(json_string_value(json_object_get(row, "parameter")), HOSTILE);
    json_decref(all);
    free(text);
}

static void the_lines_of_a_specification_escape_the_names_of_groups(void **state)
{
    (void)state;
    struct ampd_msg_parameter_group groups[2] = {{.name = HOSTILE}, {.name = "rest"}};
    struct ampd_msg_model_spec spec = {.groups = {.items = groups, .count = 2}};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    json_t *object = ampctl_spec_object(&spec);
    assert_true(out != NULL && object != NULL);
    ampctl_print_spec(out, object, NULL);
    assert_int_equal(fclose(out), 0);
    assert_harmless(text, 8);
    assert_non_null(strstr(text, "name " SHOWN ","));
    json_decref(object);
    free(text);
}

/* A status message is bytes, perhaps no UTF-8: it is not verified as the fields of an answer are. */
static void a_sentence_is_one_line_whatever_the_server_put_into_it(void **state)
{
    static const char *const texts[][2] = {
        {HOSTILE, SHOWN},
        {"\xff\x9b"
         "31m\xc2",
         "\\ufffd\\ufffd31m\\ufffd"},
        {"cut \xe4\xb8", "cut \\ufffd\\ufffd"},
        {"\xed\xa0\x80\xc0\x8a", "\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd"}, /* a surrogate, an overlong newline */
        {"C:\\data \"x\"", "C:\\data \"x\""},
        {"\xe4\xb8\xad\xf0\x9f\x99\x82", "\xe4\xb8\xad\xf0\x9f\x99\x82"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char *text = NULL, expected[256];
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        assert_non_null(out);
        assert_int_equal(ampctl_print(out, "ampctl: %s: %s", "status", texts[i][0]), 0);
        assert_int_equal(fclose(out), 0);
        (void)snprintf(expected, sizeof expected, "ampctl: status: %s\n", texts[i][1]);
        assert_string_equal(text, expected);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_escapes_the_names_of_workers_and_parameters),
        cmocka_unit_test(a_record_of_csv_is_one_line_without_control_characters),
        cmocka_unit_test(json_is_ascii_and_has_the_names_exactly),
        cmocka_unit_test(the_lines_of_a_specification_escape_the_names_of_groups),
        cmocka_unit_test(a_sentence_is_one_line_whatever_the_server_put_into_it),
    };
    (void)setlocale(LC_CTYPE, "C.UTF-8"); /* as ampctl has it, so that letters stay letters in a table */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
