/* Advice on large memory: nothing but speed depends on it. */
#include "base/large.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define MIB ((size_t)1 << 20)

static void memory_of_any_place_and_size_keeps_what_is_in_it(void **state)
{
    static const size_t offsets[] = {0, 1, 4096, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1};
    static const size_t sizes[] = {0, 1, 4096, 2 * MIB, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 7 * MIB, 9 * MIB + 3};
    const size_t room = 12 * MIB;
    uint8_t *memory = aligned_alloc(2 * MIB, room), *before = malloc(room);
    (void)state;
    assert_non_null(memory);
    assert_non_null(before);
    for (size_t i = 0; i < room; i++)
        memory[i] = (uint8_t)(i * 31 >> 5);
    memcpy(before, memory, room);
    for (size_t o = 0; o < sizeof offsets / sizeof *offsets; o++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            amp_large_advise(memory + offsets[o], sizes[s]);
    assert_memory_equal(memory, before, room);
    free(before);
    free(memory);
}

static void no_memory_needs_no_advice(void **state)
{
    (void)state;
    amp_large_advise(NULL, 0);
    amp_large_advise(NULL, 64 * MIB);
}

static void memory_that_comes_and_goes_is_zeros_and_of_any_size(void **state)
{
    static const size_t sizes[] = {1, 4096, 4097, 5 * MIB + 1};
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        uint8_t *memory = amp_large_new(sizes[s]);
        assert_non_null(memory);
        assert_int_equal(0, memory[0] | memory[sizes[s] - 1]);
        memset(memory, 1, sizes[s]);
        amp_large_free(memory, sizes[s]);
    }
    assert_null(amp_large_new(0));
    assert_null(amp_large_new(SIZE_MAX / 2));
    amp_large_free(NULL, 4096);
}

static void only_whole_pages_are_given_back(void **state)
{
    static const size_t offsets[] = {0, 1, AMP_PAGE - 1}, sizes[] = {0, 1, AMP_PAGE - 1, AMP_PAGE, 3 * AMP_PAGE + 1};
    uint8_t *memory = amp_large_new(5 * AMP_PAGE);
    (void)state;
    assert_non_null(memory);
    for (size_t o = 0; o < sizeof offsets / sizeof *offsets; o++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            size_t first = (offsets[o] + AMP_PAGE - 1) / AMP_PAGE, end = (offsets[o] + sizes[s]) / AMP_PAGE;
            memset(memory, 1, 5 * AMP_PAGE);
            amp_large_drop(memory + offsets[o], sizes[s]);
            for (size_t page = 0; page < 5; page++) /* pages that are gone come back as zeros */
                assert_int_equal(page >= first && page < end ? 0 : 1, memory[page * AMP_PAGE]);
        }
    }
    amp_large_free(memory, 5 * AMP_PAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_any_place_and_size_keeps_what_is_in_it),
        cmocka_unit_test(no_memory_needs_no_advice),
        cmocka_unit_test(memory_that_comes_and_goes_is_zeros_and_of_any_size),
        cmocka_unit_test(only_whole_pages_are_given_back),
    };
    return cmocka_run_group_tests_name("base_large", tests, NULL, NULL);
}
