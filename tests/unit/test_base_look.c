/* Whether one who waits looks for work first: as long as that brings something, and nobody else wants the core. */
#include "base/look.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define LOOK_NS UINT64_C(100000)

static void looks_that_find_something_go_on(void **state)
{
    struct amp_look look = {0};
    uint64_t now_ns = 1000;
    (void)state;
    for (int i = 0; i < 1000; i++) {
        assert_true(amp_look_begin(&look, now_ns));
        for (int miss = 0; miss < AMP_LOOK_MISSES - 1; miss++)
            amp_look_missed(&look, now_ns + LOOK_NS, now_ns + LOOK_NS);
        amp_look_found(&look, now_ns + LOOK_NS, now_ns + LOOK_NS - 1);
        now_ns += LOOK_NS;
    }
}

static void after_looks_in_vain_some_waits_sleep_at_once_and_one_looks_again(void **state)
{
    struct amp_look look = {0};
    (void)state;
    for (int miss = 0; miss < AMP_LOOK_MISSES; miss++) {
        assert_true(amp_look_begin(&look, 1));
        amp_look_missed(&look, 10, 10);
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < AMP_LOOK_REST_WAITS; i++)
            assert_false(amp_look_begin(&look, 20));
        assert_true(amp_look_begin(&look, 20));
        amp_look_missed(&look, 30, 30); /* one is enough from now on */
    }
    for (int i = 0; i < AMP_LOOK_REST_WAITS; i++)
        assert_false(amp_look_begin(&look, 40));
    assert_true(amp_look_begin(&look, 40));
    amp_look_found(&look, 60, 50); /* and this one brings the first number back */
    assert_true(amp_look_begin(&look, 60));
    amp_look_missed(&look, 70, 70);
    assert_true(amp_look_begin(&look, 70));
}

/* It lost `late` to others, and loses no more in the next 16 times as long, or in 0.1 s. */
static void where_others_keep_the_core_the_rest_is_as_long_as_the_loss_was(void **state)
{
    static const uint64_t lates[] = {AMP_LOOK_CROWD_NS + 1, 3000000, 40000000, UINT64_C(1) << 60};
    (void)state;
    for (size_t i = 0; i < sizeof lates / sizeof *lates; i++) {
        for (int found = 0; found < 2; found++) {
            struct amp_look look = {0};
            uint64_t end_ns = 1000000, now_ns = end_ns + lates[i];
            bool longest = lates[i] > 6250000;
            uint64_t rest_end_ns = now_ns + (longest ? AMP_LOOK_CROWD_REST_MAX_NS : lates[i] * AMP_LOOK_CROWD_REST);
            if (found == 1)
                amp_look_found(&look, end_ns, now_ns);
            else
                amp_look_missed(&look, end_ns, now_ns);
            assert_false(amp_look_begin(&look, now_ns));
            assert_false(amp_look_begin(&look, rest_end_ns - 1));
            assert_true(amp_look_begin(&look, rest_end_ns));
        }
    }
}

static void a_look_that_ends_a_little_late_is_no_crowd(void **state)
{
    struct amp_look look = {0};
    (void)state;
    amp_look_missed(&look, 1000000, 1000000 + AMP_LOOK_CROWD_NS);
    assert_true(amp_look_begin(&look, 1000000 + AMP_LOOK_CROWD_NS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(looks_that_find_something_go_on),
        cmocka_unit_test(after_looks_in_vain_some_waits_sleep_at_once_and_one_looks_again),
        cmocka_unit_test(where_others_keep_the_core_the_rest_is_as_long_as_the_loss_was),
        cmocka_unit_test(a_look_that_ends_a_little_late_is_no_crowd),
    };
    return cmocka_run_group_tests_name("base_look", tests, NULL, NULL);
}
