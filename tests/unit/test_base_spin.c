/* Whether one who waits spins for work first: as long as that brings something, and nobody else wants the core. */
#include "base/spin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define SPIN_NS UINT64_C(100000)

static void spins_that_find_something_go_on(void **state)
{
    struct amp_spin spin = {0};
    uint64_t now_ns = 1000;
    (void)state;
    for (int i = 0; i < 1000; i++) {
        assert_true(amp_spin_begin(&spin, now_ns));
        for (int miss = 0; miss < AMP_SPIN_MISSES - 1; miss++)
            amp_spin_missed(&spin, now_ns + SPIN_NS, now_ns + SPIN_NS);
        amp_spin_found(&spin, now_ns + SPIN_NS, now_ns + SPIN_NS - 1);
        now_ns += SPIN_NS;
    }
}

static void after_spins_in_vain_some_waits_sleep_at_once_and_one_spins_again(void **state)
{
    struct amp_spin spin = {0};
    (void)state;
    for (int miss = 0; miss < AMP_SPIN_MISSES; miss++) {
        assert_true(amp_spin_begin(&spin, 1));
        amp_spin_missed(&spin, 10, 10);
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < AMP_SPIN_REST_WAITS; i++)
            assert_false(amp_spin_begin(&spin, 20));
        assert_true(amp_spin_begin(&spin, 20));
        amp_spin_missed(&spin, 30, 30); /* one is enough from now on */
    }
    for (int i = 0; i < AMP_SPIN_REST_WAITS; i++)
        assert_false(amp_spin_begin(&spin, 40));
    assert_true(amp_spin_begin(&spin, 40));
    amp_spin_found(&spin, 60, 50); /* and this one brings the first number back */
    assert_true(amp_spin_begin(&spin, 60));
    amp_spin_missed(&spin, 70, 70);
    assert_true(amp_spin_begin(&spin, 70));
}

/* It lost `late` to others, and loses no more in the next 16 times as long, or in 0.1 s. */
static void where_others_keep_the_core_the_rest_is_as_long_as_the_loss_was(void **state)
{
    static const uint64_t lates[] = {AMP_SPIN_CONTENTION_NS + 1, 3000000, 40000000, UINT64_C(1) << 60};
    (void)state;
    for (size_t i = 0; i < sizeof lates / sizeof *lates; i++) {
        for (int found = 0; found < 2; found++) {
            struct amp_spin spin = {0};
            uint64_t end_ns = 1000000, now_ns = end_ns + lates[i];
            bool longest = lates[i] > 6250000;
            uint64_t rest_end_ns =
                now_ns + (longest ? AMP_SPIN_CONTENTION_REST_MAX_NS : lates[i] * AMP_SPIN_CONTENTION_REST);
            if (found == 1)
                amp_spin_found(&spin, end_ns, now_ns);
            else
                amp_spin_missed(&spin, end_ns, now_ns);
            assert_false(amp_spin_begin(&spin, now_ns));
            assert_false(amp_spin_begin(&spin, rest_end_ns - 1));
            assert_true(amp_spin_begin(&spin, rest_end_ns));
        }
    }
}

static void a_spin_that_ends_a_little_late_is_no_crowd(void **state)
{
    struct amp_spin spin = {0};
    (void)state;
    amp_spin_missed(&spin, 1000000, 1000000 + AMP_SPIN_CONTENTION_NS);
    assert_true(amp_spin_begin(&spin, 1000000 + AMP_SPIN_CONTENTION_NS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spins_that_find_something_go_on),
        cmocka_unit_test(after_spins_in_vain_some_waits_sleep_at_once_and_one_spins_again),
        cmocka_unit_test(where_others_keep_the_core_the_rest_is_as_long_as_the_loss_was),
        cmocka_unit_test(a_spin_that_ends_a_little_late_is_no_crowd),
    };
    return cmocka_run_group_tests_name("base_spin", tests, NULL, NULL);
}
