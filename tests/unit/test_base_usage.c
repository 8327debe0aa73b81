/* Which name was meant, and how texts are escaped for scdoc. */
#include "base/usage.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

static const char *const names[] = {"status", "history", "checkpoint", "checkpoints", "top"};
#define NAMES (sizeof names / sizeof *names)

static void a_slip_of_the_keyboard_is_near_the_name_that_was_meant(void **state)
{
    (void)state;
    assert_string_equal(amp_usage_near("histroy", names, NAMES), "history");
    assert_string_equal(amp_usage_near("stauts", names, NAMES), "status");
    assert_string_equal(amp_usage_near("tpo", names, NAMES), "top");
    assert_string_equal(amp_usage_near("checkponits", names, NAMES), "checkpoints");
    assert_string_equal(amp_usage_near("HISTORY", names, NAMES), "history");
    assert_string_equal(amp_usage_near("TPO", names, NAMES), "top");
}

static void a_beginning_is_near_if_one_name_begins_so(void **state)
{
    (void)state;
    assert_string_equal(amp_usage_near("his", names, NAMES), "history");
    assert_null(amp_usage_near("check", names, NAMES));
}

static void what_is_like_no_name_is_near_none(void **state)
{
    (void)state;
    char longest[200];
    memset(longest, 'h', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_null(amp_usage_near("xyzzy", names, NAMES));
    assert_null(amp_usage_near("tap", names, 0));
    assert_null(amp_usage_near("stop", names, NAMES)); /* a word of its own, and no slip of "top" */
    assert_null(amp_usage_near("tapp", names, NAMES));
    assert_null(amp_usage_near("", names, NAMES));
    assert_null(amp_usage_near(longest, names, NAMES));
}

static void values_of_options_are_not_taken_for_options(void **state)
{
    (void)state;
    static const struct argp_option options[] = {
        {"from", 256, "STEP", 0, NULL, 0}, {"all", 257, NULL, 0, NULL, 0}, {"endpoint", 'e', "HOST", 0, NULL, 0}, {0}};
    const struct argp_option *const tables[] = {options, NULL};
    char text[128];
    char *sound[] = {"v", "--from", "--x", "m", "--all", "-e", "--y", "--end", "--z", "--from=--w", "--", "--no"};
    assert_true(amp_usage_options_known(12, sound, tables, true, text, sizeof text));
    char *wrong[] = {"v", "m", "--all", "--form", "3"};
    assert_false(amp_usage_options_known(5, wrong, tables, true, text, sizeof text));
    assert_string_equal(text, "there is no option --form; did you mean --from?");
    assert_true(amp_usage_options_known(5, wrong, tables, false, text, sizeof text)); /* the rest is a verb's */
}

static void what_scdoc_has_a_meaning_for_is_escaped(void **state)
{
    (void)state;
    struct amp_buf out;
    amp_buf_init(&out, 1 << 10);
    assert_int_equal(amp_usage_man_text(&out, "a_b *c* \\d [e]"), 0);
    assert_int_equal(amp_buf_append(&out, "", 1), 0);
    assert_string_equal((char *)out.data, "a\\_b \\*c\\* \\\\d \\[e\\]");
    amp_buf_close(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slip_of_the_keyboard_is_near_the_name_that_was_meant),
        cmocka_unit_test(a_beginning_is_near_if_one_name_begins_so),
        cmocka_unit_test(what_is_like_no_name_is_near_none),
        cmocka_unit_test(values_of_options_are_not_taken_for_options),
        cmocka_unit_test(what_scdoc_has_a_meaning_for_is_escaped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
