/* The log's lines: whatever a value brings along, a reader of logfmt gets it back, and the line has no other fields. */
#include "base/log.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define FIELDS_MAX 16

/* ---- a reader of logfmt, with the rules of github.com/go-logfmt/logfmt ---- */

struct fields {
    char line[AMP_LOG_LINE_MAX];
    unsigned count;
    struct {
        char key[64], value[AMP_LOG_LINE_MAX];
    } items[FIELDS_MAX];
};

static void put_utf8(char **out, unsigned code)
{
    if (code >= 0x800)
        *(*out)++ = (char)(0xe0 | code >> 12);
    if (code >= 0x80)
        *(*out)++ = (char)(code >= 0x800 ? 0x80 | (code >> 6 & 63) : 0xc0 | code >> 6);
    *(*out)++ = (char)(code >= 0x80 ? 0x80 | (code & 63) : code);
}

static const char *read_quoted(const char *at, char *out)
{
    for (; *at != '"'; at++) {
        assert_true((unsigned char)*at >= ' '); /* the end of the line, too */
        if (*at != '\\') {
            *out++ = *at;
            continue;
        }
        at++;
        const char *plain = strchr("\"\"\\\\n\nr\rt\t", *at);
        if (*at == 'u') {
            char digits[5] = {at[1], at[2], at[3], at[4], 0}, *end;
            put_utf8(&out, (unsigned)strtoul(digits, &end, 16));
            assert_ptr_equal(end, digits + 4);
            at += 4;
        } else {
            assert_non_null(plain);
            *out++ = plain[1];
        }
    }
    *out = 0;
    return at + 1;
}

static void read_line(struct fields *fields)
{
    for (const char *at = fields->line; *at != 0; fields->count++) {
        assert_true(fields->count < FIELDS_MAX);
        size_t key = strcspn(at, "= \"");
        assert_true(key > 0 && key < 64 && at[key] == '=');
        memcpy(fields->items[fields->count].key, at, key);
        at += key + 1;
        char *value = fields->items[fields->count].value;
        if (*at == '"') {
            at = read_quoted(at + 1, value);
        } else {
            size_t size = strcspn(at, " ");
            memcpy(value, at, size);
            assert_null(strpbrk(value, "=\""));
            at += size;
        }
        assert_true(*at == ' ' || *at == 0);
        at += *at == ' ';
    }
}

static void keep(void *arg, enum amp_log_level level, const char *line)
{
    struct fields *fields = arg;
    (void)level;
    assert_true(strlen(line) < AMP_LOG_LINE_MAX);
    memset(fields, 0, sizeof *fields);
    (void)strcpy(fields->line, line);
    read_line(fields);
}

static int64_t at_some_time(void *arg)
{
    (void)arg;
    return 1767323045678901;
}

static struct fields *fields;

static struct amp_log a_log(void)
{
    return (struct amp_log){.write_cb = keep, .now_us_cb = at_some_time, .arg = fields};
}

static void assert_field(unsigned index, const char *key, const char *value)
{
    assert_true(index < fields->count);
    assert_string_equal(fields->items[index].key, key);
    assert_string_equal(fields->items[index].value, value);
}

/* ---- tests ---- */

static void a_line_has_time_level_component_and_what_its_format_says(void **state)
{
    (void)state;
    const struct amp_log log = a_log();
    amp_log(&log, AMP_LOG_WARN, "core", "msg=\"all is %s\" model=%s steps=%u left=%d", "well", "m", 7u, -1);
    assert_string_equal(fields->line, "ts=2026-01-02T03:04:05.678901Z level=warn component=core msg=\"all is well\" "
                                      "model=m steps=7 left=-1");
}

static void numbers_of_every_width_are_whole(void **state)
{
    (void)state;
    const struct amp_log log = a_log();
    amp_log(&log, AMP_LOG_INFO, "test", "a=%" PRIu64 " b=%" PRId64 " c=%u d=%d e=%zu f=%llu g=%" PRIu32, UINT64_MAX,
            INT64_MIN, UINT32_MAX, INT32_MIN, SIZE_MAX, 1ull << 63, UINT32_MAX);
    assert_field(3, "a", "18446744073709551615");
    assert_field(4, "b", "-9223372036854775808");
    assert_field(5, "c", "4294967295");
    assert_field(6, "d", "-2147483648");
    assert_field(7, "e", "18446744073709551615");
    assert_field(8, "f", "9223372036854775808");
    assert_field(9, "g", "4294967295");
}

static const struct {
    const char *given, *read;
} hostile[] = {
    {"plain", "plain"},
    {"", ""},
    {"the rank \"7\" is gone", "the rank \"7\" is gone"},
    {"\" level=error msg=\"forged", "\" level=error msg=\"forged"},
    {"C:\\data\\", "C:\\data\\"},
    {"a\nts=x level=error\r\n", "a\nts=x level=error\r\n"},
    {"a=b", "a=b"},
    {"two words", "two words"},
    {"\x1b]0;title\x07\t\x7f", "\x1b]0;title\x07\t\x7f"},
    {"\xc2\x9b"
     "31m",
     "\xc2\x9b"
     "31m"},
    {"gr\xc3\xbc\xc3\x9f \xe4\xb8\xad", "gr\xc3\xbc\xc3\x9f \xe4\xb8\xad"},
    {"\xff\x80\xe4\xb8",
     "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* U+FFFD for each byte that is no UTF-8 */
};

static void any_value_is_read_back_with_and_without_quotes_in_the_format(void **state)
{
    (void)state;
    const struct amp_log log = a_log();
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        amp_log(&log, AMP_LOG_INFO, "test", "msg=\"%s\" name=%s err=\"%s\" n=%u", hostile[i].given, hostile[i].given,
                hostile[i].given, 5u);
        assert_int_equal(fields->count, 7);
        assert_field(3, "msg", hostile[i].read);
        assert_field(4, "name", hostile[i].read);
        assert_field(5, "err", hostile[i].read);
        assert_field(6, "n", "5");
    }
}

static void a_line_holds_no_control_character(void **state)
{
    (void)state;
    const struct amp_log log = a_log();
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        amp_log(&log, AMP_LOG_INFO, "test", "msg=\"%s\" name=%s", hostile[i].given, hostile[i].given);
        for (const char *at = fields->line; *at != 0; at++)
            assert_true((unsigned char)*at >= ' ' && *at != 0x7f);
        assert_null(strstr(fields->line, "\xc2\x9b"));
    }
}

static void a_value_of_several_parts_is_one_value(void **state)
{
    (void)state;
    const struct amp_log log = a_log();
    amp_log(&log, AMP_LOG_INFO, "test", "msg=\"%s, ending\" method=/%s/%s peer=%s", "a \"b\"", "ampd.v1", "x y", "p");
    assert_field(3, "msg", "a \"b\", ending");
    assert_field(4, "method", "/ampd.v1/x y");
    assert_field(5, "peer", "p");
}

static void a_line_that_is_too_long_is_cut_inside_a_value_and_still_read(void **state)
{
    (void)state;
    const struct amp_log log = a_log();
    static char text[2 * AMP_LOG_LINE_MAX];
    for (size_t size = 0; size + 1 < sizeof text; size++) {
        memset(text, 0, sizeof text);
        for (size_t i = 0; i < size; i++)
            text[i] = "a\"\\\x1b"[i % 4];
        amp_log(&log, AMP_LOG_INFO, "test", "msg=\"%s\" err=\"%s\"", text, "why");
        assert_string_equal(fields->items[3].key, "msg");
        assert_memory_equal(fields->items[3].value, text, size < 200 ? size : 200);
    }
}

/* ---- JSON ---- */

static json_t *object;

/* The parser refuses a name that is there twice. */
static void keep_json(void *arg, enum amp_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    assert_true(strlen(line) < AMP_LOG_LINE_MAX);
    assert_null(strchr(line, '\n'));
    json_decref(object);
    object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(object);
}

static const char *text_of(const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    assert_non_null(text);
    return text;
}

static const struct amp_log json_log = {.json = true, .write_cb = keep_json, .now_us_cb = at_some_time};

static void a_line_of_json_has_texts_and_numbers(void **state)
{
    (void)state;
    amp_log(&json_log, AMP_LOG_WARN, "core", "msg=\"all is %s\" model=%s steps=%u left=%ld at=%u:%u", "well", "7", 7u,
            -1L, 1u, 2u);
    assert_string_equal(text_of("ts"), "2026-01-02T03:04:05.678901Z");
    assert_string_equal(text_of("level"), "warn");
    assert_string_equal(text_of("component"), "core");
    assert_string_equal(text_of("msg"), "all is well");
    assert_string_equal(text_of("model"), "7");
    assert_int_equal(json_integer_value(json_object_get(object, "steps")), 7);
    assert_int_equal(json_integer_value(json_object_get(object, "left")), -1);
    assert_string_equal(text_of("at"), "1:2");
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        amp_log(&json_log, AMP_LOG_INFO, "test", "msg=\"%s\" name=%s", hostile[i].given, hostile[i].given);
        assert_string_equal(text_of("msg"), hostile[i].read);
        assert_string_equal(text_of("name"), hostile[i].read);
    }
    json_decref(object);
    object = NULL;
}

static void a_line_of_json_that_is_too_long_is_cut_and_still_an_object(void **state)
{
    (void)state;
    static char text[2 * AMP_LOG_LINE_MAX];
    for (size_t size = 0; size + 1 < sizeof text; size++) {
        memset(text, 0, sizeof text);
        for (size_t i = 0; i < size; i++)
            text[i] = "a\"\\\x1b"[i % 4];
        amp_log(&json_log, AMP_LOG_INFO, "test", "msg=\"%s\" err=\"%s\" n=%u", text, "why", 1u);
        assert_memory_equal(text_of("msg"), text, size < 200 ? size : 200);
    }
    json_decref(object);
    object = NULL;
}

static int make(void **state)
{
    (void)state;
    fields = malloc(sizeof *fields);
    return fields != NULL ? 0 : -1;
}

static int drop(void **state)
{
    (void)state;
    free(fields);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_time_level_component_and_what_its_format_says),
        cmocka_unit_test(numbers_of_every_width_are_whole),
        cmocka_unit_test(any_value_is_read_back_with_and_without_quotes_in_the_format),
        cmocka_unit_test(a_line_holds_no_control_character),
        cmocka_unit_test(a_value_of_several_parts_is_one_value),
        cmocka_unit_test(a_line_of_json_has_texts_and_numbers),
        cmocka_unit_test(a_line_of_json_that_is_too_long_is_cut_and_still_an_object),
        cmocka_unit_test(a_line_that_is_too_long_is_cut_inside_a_value_and_still_read),
    };
    return cmocka_run_group_tests(tests, make, drop);
}
