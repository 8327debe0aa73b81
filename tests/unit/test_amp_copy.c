#include "amp/copy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Around one, two and three lines of 64 bytes, from and to every place of a line. */
#define SIZE_MAX_COPIED 200
#define LINE            64

static void every_byte_arrives_and_none_beside_them_changes(void **state)
{
    uint8_t from[SIZE_MAX_COPIED + LINE], to[SIZE_MAX_COPIED + 3 * LINE], wanted[sizeof to];
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (uint8_t)(i * 7 + 1);
    for (size_t size = 0; size <= SIZE_MAX_COPIED; size++)
        for (size_t at = 0; at < LINE; at++) {
            size_t source = (at * 5 + size) % LINE;
            memset(to, 0xee, sizeof to);
            memset(wanted, 0xee, sizeof wanted);
            memcpy(wanted + LINE + at, from + source, size);
            amp_copy_streamed(to + LINE + at, from + source, size);
            assert_memory_equal(to, wanted, sizeof to);
        }
}

static void large_copies_stay_inside_their_memory(void **state)
{
    enum { SIZE = 300001 };
    uint8_t *from = malloc(SIZE), *to = malloc(SIZE); /* of their own, so that a sanitizer sees the first byte beyond */
    for (size_t i = 0; i < SIZE; i++)
        from[i] = (uint8_t)(i ^ i >> 8);
    amp_copy_streamed(to, from, SIZE);
    assert_memory_equal(to, from, SIZE);
    free(from);
    free(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_arrives_and_none_beside_them_changes),
        cmocka_unit_test(large_copies_stay_inside_their_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
