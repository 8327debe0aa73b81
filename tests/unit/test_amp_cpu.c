/* The choice of kernels, and the test of the floating-point environment. */
#include "amp/cpu.h"

#include <fenv.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static void the_reference_can_always_be_chosen(void **state)
{
    const struct amp_kernels *kernels = NULL;
    assert_int_equal(amp_cpu_select("ref", &kernels, NULL), 0);
    assert_ptr_equal(kernels, &amp_kernels_ref);
    assert_string_equal(kernels->isa, "ref");
}

static void no_name_means_the_first_variant_that_can_run(void **state)
{
    const struct amp_kernels *best = NULL;
    const struct amp_kernels *empty = NULL;
    assert_int_equal(amp_cpu_select(NULL, &best, NULL), 0);
    assert_int_equal(amp_cpu_select("", &empty, NULL), 0);
    assert_ptr_equal(best, empty);
    for (size_t i = 0; amp_cpu_isa(i) != NULL; i++) {
        const struct amp_kernels *kernels;
        struct amp_error error;
        int code = amp_cpu_select(amp_cpu_isa(i), &kernels, &error);
        if (code == 0) {
            assert_ptr_equal(kernels, best);
            return;
        }
        assert_int_equal(code, AMP_EUNIMPLEMENTED);
        assert_non_null(strstr(error.text, amp_cpu_isa(i)));
    }
    fail_msg("no variant can run");
}

static void an_unknown_name_is_refused_with_those_that_exist(void **state)
{
    const struct amp_kernels *kernels = NULL;
    struct amp_error error;
    assert_int_equal(amp_cpu_select("mmx", &kernels, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "mmx"));
    assert_non_null(strstr(error.text, "ref"));
    assert_null(kernels);
}

static void the_default_environment_is_accepted(void **state)
{
    assert_int_equal(amp_fp_env_check(NULL), 0);
}

static void another_rounding_mode_is_refused(void **state)
{
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    for (size_t i = 0; i < 3; i++) {
        struct amp_error error;
        assert_int_equal(fesetround(modes[i]), 0);
        int code = amp_fp_env_check(&error);
        assert_int_equal(fesetround(FE_TONEAREST), 0);
        assert_int_equal(code, AMP_ESTATE);
        assert_non_null(strstr(error.text, "round"));
        assert_non_null(strstr(error.text, ": call fesetround(FE_TONEAREST)"));
    }
}

static void flushed_denormals_are_refused(void **state)
{
#if defined(__x86_64__)
    static const struct {
        unsigned bit;
        const char *name;
    } rows[] = {{0x8000, "FTZ"}, {0x0040, "DAZ"}};
    for (size_t i = 0; i < 2; i++) {
        struct amp_error error;
        unsigned before = _mm_getcsr();
        _mm_setcsr(before | rows[i].bit);
        int code = amp_fp_env_check(&error);
        _mm_setcsr(before);
        assert_int_equal(code, AMP_ESTATE);
        assert_non_null(strstr(error.text, rows[i].name));
        assert_non_null(strstr(error.text, ": load no library that was built with -ffast-math"));
    }
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_can_always_be_chosen),
        cmocka_unit_test(no_name_means_the_first_variant_that_can_run),
        cmocka_unit_test(an_unknown_name_is_refused_with_those_that_exist),
        cmocka_unit_test(the_default_environment_is_accepted),
        cmocka_unit_test(another_rounding_mode_is_refused),
        cmocka_unit_test(flushed_denormals_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
