/* The test of the kernels at the start, on each processor. */
#define _GNU_SOURCE /* sched_getcpu */
#include "amp/cpu.h"
#include "server/io/process/verify.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* cmocka needs the headers above. */
#include <cmocka.h>

static const struct amp_kernels *right;
static cpu_set_t seen; /* the processors on which a kernel has run */
static int faulty;     /* the one that computes wrongly */

#define NONE (-1)
#define ALL  (-2)

static uint32_t scale(float *dst, const float *src, float factor, size_t n)
{
    uint32_t largest = right->scale(dst, src, factor, n);
    int here = sched_getcpu();
    CPU_SET(here, &seen);
    if (here == faulty || faulty == ALL)
        dst[n / 2] = -dst[n / 2];
    return largest;
}

/* The fastest kernels, but for the product. */
static struct amp_kernels made(void)
{
    assert_int_equal(amp_cpu_select(NULL, &right, NULL), 0);
    struct amp_kernels kernels = *right;
    kernels.scale = scale;
    CPU_ZERO(&seen);
    faulty = NONE;
    return kernels;
}

static cpu_set_t allowed_now(void)
{
    cpu_set_t allowed;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    return allowed;
}

static void kernels_are_run_on_each_processor_that_the_process_may_use(void **state)
{
    struct amp_kernels kernels = made();
    cpu_set_t before = allowed_now();
    assert_int_equal(io_verify_kernels(&kernels, NULL), 0);
    cpu_set_t after = allowed_now();
    assert_true(CPU_EQUAL(&seen, &before));
    assert_true(CPU_EQUAL(&after, &before));
}

/* The test is linked with --wrap=sched_setaffinity. */
int __real_sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *set);
int __wrap_sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *set);
static bool choice_is_forbidden;

int __wrap_sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *set)
{
    return choice_is_forbidden ? -1 : __real_sched_setaffinity(pid, size, set);
}

static void where_no_processor_can_be_chosen_kernels_are_run_on_one_of_them(void **state)
{
    struct amp_kernels kernels = made();
    choice_is_forbidden = true;
    int rc = io_verify_kernels(&kernels, NULL);
    choice_is_forbidden = false;
    assert_int_equal(rc, 0);
    assert_true(CPU_COUNT(&seen) > 0);
}

static void a_processor_that_computes_wrongly_is_named(void **state)
{
    struct amp_kernels kernels = made();
    struct amp_error error;
    char named[64];
    cpu_set_t allowed = allowed_now();
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &allowed))
            faulty = i;
    assert_int_equal(io_verify_kernels(&kernels, &error), AMP_EINTERNAL);
    (void)snprintf(named, sizeof named, " on processor %d (1 of %d are wrong): leave it out", faulty,
                   CPU_COUNT(&allowed));
    assert_non_null(strstr(error.text, CPU_COUNT(&allowed) > 1 ? named : " on each processor: "));
}

static void kernels_that_are_wrong_everywhere_are_no_fault_of_one_processor(void **state)
{
    struct amp_kernels kernels = made();
    struct amp_error error;
    faulty = ALL;
    assert_int_equal(io_verify_kernels(&kernels, &error), AMP_EINTERNAL);
    assert_non_null(strstr(error.text, right->isa));
    assert_non_null(strstr(error.text, " on each processor: choose other kernels with AMPD_ISA"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_are_run_on_each_processor_that_the_process_may_use),
        cmocka_unit_test(where_no_processor_can_be_chosen_kernels_are_run_on_one_of_them),
        cmocka_unit_test(a_processor_that_computes_wrongly_is_named),
        cmocka_unit_test(kernels_that_are_wrong_everywhere_are_no_fault_of_one_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
