/* Texts of others: what is cut in the middle of a character. */
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_cut_within_a_character_is_text_again),
        cmocka_unit_test(text_stays_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
