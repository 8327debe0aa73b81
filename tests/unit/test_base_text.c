/* Texts: those of others, cut in the middle of a character; and those of errors. */
#include "base/err.h"
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void what_is_cut_within_a_character_is_text_again(void **state)
{
    (void)state;
    static const char name[] = "\xe8\xae\xad\xe7\xbb\x83-\xc3\xa9\xf0\x9f\x9a\x80"; /* of 3, 3, 1, 2 and 4 bytes */
    static const char *const mended[] = {"", "?", "??", "\xe8\xae\xad", "\xe8\xae\xad?", "\xe8\xae\xad??"};
    for (size_t size = 0; size <= sizeof name - 1; size++) {
        char text[32];
        (void)snprintf(text, sizeof text, "%.*s", (int)size, name);
        amp_text_repair(text);
        if (size < sizeof mended / sizeof mended[0])
            assert_string_equal(text, mended[size]);
        assert_true(size == 0 || amp_text_is_name(text, sizeof text, ""));
    }
}

static void text_stays_as_it_is(void **state)
{
    (void)state;
    char text[] = "rank 1 (\xc3\xa9), for 3 s";
    amp_text_repair(text);
    assert_string_equal(text, "rank 1 (\xc3\xa9), for 3 s");
}

/* Else a name reorders the line that it stands in: a terminal, and whoever reads a log, shows what was not written. */
static void what_turns_text_around_is_escaped_and_in_no_name(void **state)
{
    (void)state;
    static const struct {
        const char *text, *escaped; /* NULL: it stays as it is */
    } texts[] = {
        {"\xe2\x80\xaa", "\\u202a"}, {"\xe2\x80\xae", "\\u202e"}, {"\xe2\x81\xa6", "\\u2066"},
        {"\xe2\x81\xa9", "\\u2069"}, {"\xe2\x80\xa9", NULL},      {"\xe2\x80\xaf", NULL},
        {"\xe2\x81\xa5", NULL},      {"\xe2\x81\xaa", NULL},      {"\xd7\xa9\xd7\x9c", NULL},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[32], out[64], wanted[64];
        bool turns = texts[i].escaped != NULL;
        (void)snprintf(text, sizeof text, "a%sb", texts[i].text);
        (void)snprintf(wanted, sizeof wanted, "a%sb", turns ? texts[i].escaped : texts[i].text);
        assert_true(amp_text_escape(text, "", out, sizeof out));
        assert_string_equal(out, wanted);
        assert_int_equal(amp_text_is_name(text, sizeof text, ""), !turns);
    }
}

static void a_prefix_as_long_as_an_error_can_be_is_truncated_and_not_left_out(void **state)
{
    (void)state;
    char prefix[2 * AMP_ERROR_TEXT_MAX];
    memset(prefix, 'p', sizeof prefix);
    for (int length = AMP_ERROR_TEXT_MAX - 6; length < AMP_ERROR_TEXT_MAX + 6; length++) {
        struct amp_error error;
        (void)amp_error_set(&error, AMP_EIO, NULL, "the disk is full");
        amp_error_wrap(&error, "%.*s", length, prefix);
        int kept = length < AMP_ERROR_TEXT_MAX - 3 ? length : AMP_ERROR_TEXT_MAX - 3;
        char wanted[AMP_ERROR_TEXT_MAX];
        (void)snprintf(wanted, sizeof wanted, "%.*s: the disk is full", kept, prefix);
        assert_string_equal(error.text, wanted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_cut_within_a_character_is_text_again),
        cmocka_unit_test(text_stays_as_it_is),
        cmocka_unit_test(a_prefix_as_long_as_an_error_can_be_is_truncated_and_not_left_out),
        cmocka_unit_test(what_turns_text_around_is_escaped_and_in_no_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
