/*
 * The few names of cmocka that the kernel tests use, for a foreign processor whose cmocka no Debian machine has
 * installed. The first failure ends the program; output has cmocka's form, so that the totals count it.
 */
#ifndef TESTS_KERNELS_CROSS_CMOCKA_H
#define TESTS_KERNELS_CROSS_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(function)                                                                                     \
    {                                                                                                                  \
#function, function                                                                                            \
    }
#define cmocka_run_group_tests(tests, setup, teardown) stand_in_run(tests, sizeof tests / sizeof((tests)[0]))
#define print_message                                  printf

#define fail()             stand_in_check(0, "fail", __FILE__, __LINE__)
#define assert_true(x)     stand_in_check((x) ? 1 : 0, #x, __FILE__, __LINE__)
#define assert_non_null(x) stand_in_check((x) != NULL, #x, __FILE__, __LINE__)
#define assert_int_equal(a, b)                                                                                         \
    stand_in_check((unsigned long long)(a) == (unsigned long long)(b), #a, __FILE__, __LINE__)
#define assert_memory_equal(a, b, n) stand_in_check(memcmp(a, b, n) == 0, #a, __FILE__, __LINE__)

static inline void stand_in_check(int holds, const char *what, const char *file, int line)
{
    if (holds)
        return;
    printf("%s:%d: error: %s\n", file, line, what);
    exit(1);
}

static inline int stand_in_run(const struct CMUnitTest *tests, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        tests[i].run(NULL);
        printf("[       OK ] %s\n", tests[i].name);
        (void)fflush(stdout);
    }
    return 0;
}

#endif
