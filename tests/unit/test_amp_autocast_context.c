/*
 * Autocast's context by its specification: enter and exit, modes, nesting, the current context, casts by policy and by
 * name, ready-made configurations, and that entering, leaving and deciding allocate nothing.
 *
 * The allocator's entries are wrapped by the linker (tests/unit/amp.cmake), so that calls from the library are counted.
 */
#include "amp/autocast.h"
#include "amp/cpu.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static unsigned allocations;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);

void *__wrap_malloc(size_t size)
{
    allocations++;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    allocations++;
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    allocations++;
    return __real_realloc(old, size);
}

static void a_context_is_current_from_enter_to_exit(void **state)
{
    struct amp_autocast_config now;
    assert_false(amp_autocast_current(NULL));
    assert_false(amp_autocast_active());
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_BF16), 0);
    assert_true(amp_autocast_current(&now));
    assert_int_equal(now.mode, AMP_AUTOCAST_BF16);
    assert_true(now.enabled);
    assert_true(amp_autocast_active());
    assert_int_equal(amp_autocast_depth(), 1);
    amp_autocast_exit();
    assert_false(amp_autocast_current(&now));
    assert_int_equal(now.mode, AMP_AUTOCAST_NONE);
    assert_int_equal(amp_autocast_depth(), 0);
}

static void leaving_an_empty_stack_does_nothing(void **state)
{
    amp_autocast_exit();
    amp_autocast_exit();
    assert_int_equal(amp_autocast_depth(), 0);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_depth(), 1);
    amp_autocast_exit();
    amp_autocast_exit();
    assert_false(amp_autocast_current(NULL));
}

static void the_backward_dtype_holds_after_the_exit(void **state)
{
    struct amp_registry registry;
    struct amp_autocast_config off = amp_autocast_config_fp16(NULL);
    off.enabled = false;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_set_dtypes(&registry, "linear", AMP_DTYPE_NONE, AMP_F32, NULL), 0);
    assert_int_equal(amp_autocast_enter_with(AMP_AUTOCAST_FP16, &registry), 0);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_BF16), 0);
    amp_autocast_exit();
    amp_autocast_exit();
    assert_int_equal(amp_autocast_backward_dtype("linear", AMP_F16), AMP_F32);
    assert_int_equal(amp_autocast_backward_dtype("matmul", AMP_F32), AMP_F16);
    assert_int_equal(amp_autocast_backward_dtype("softmax", AMP_F16), AMP_F32);
    assert_int_equal(amp_autocast_dtype("matmul", AMP_F32), AMP_F32); /* the forward's ends with the region */
    amp_autocast_exit();                                              /* does nothing, and forgets nothing */
    assert_int_equal(amp_autocast_backward_dtype("matmul", AMP_F32), AMP_F16);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_BF16), 0);
    assert_int_equal(amp_autocast_backward_dtype("linear", AMP_F32), AMP_BF16);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_backward_dtype("linear", AMP_F32), AMP_BF16);
    assert_int_equal(amp_autocast_enter_config(&off), 0);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_backward_dtype("linear", AMP_F32), AMP_F32);
    amp_registry_close(&registry);
}

static void the_default_context_is_bf16_enabled_with_a_cache(void **state)
{
    struct amp_autocast_config now;
    assert_int_equal(amp_autocast_enter_config(NULL), 0);
    assert_true(amp_autocast_current(&now));
    assert_int_equal(now.mode, AMP_AUTOCAST_BF16);
    assert_true(now.enabled);
    assert_true(now.cache_enabled);
    assert_null(now.registry);
    amp_autocast_exit();
}

static void ready_made_configurations_have_their_mode_and_registry(void **state)
{
    struct amp_registry registry;
    amp_registry_init(&registry);
    struct amp_autocast_config fp16 = amp_autocast_config_fp16(&registry);
    struct amp_autocast_config bf16 = amp_autocast_config_bf16(NULL);
    struct amp_autocast_config none = amp_autocast_config_of(AMP_AUTOCAST_NONE, NULL);
    assert_int_equal(fp16.mode, AMP_AUTOCAST_FP16);
    assert_ptr_equal(fp16.registry, &registry);
    assert_int_equal(bf16.mode, AMP_AUTOCAST_BF16);
    assert_null(bf16.registry);
    assert_int_equal(none.mode, AMP_AUTOCAST_NONE);
    assert_true(fp16.enabled && bf16.enabled && none.enabled);
    struct amp_autocast_config unknown = amp_autocast_config_of((enum amp_autocast_mode)7, NULL);
    assert_int_equal(amp_autocast_enter_config(&unknown), AMP_EINVAL);
    assert_int_equal(amp_autocast_depth(), 0);
    amp_registry_close(&registry);
}

static void a_disabled_context_casts_nothing_and_is_still_the_current_one(void **state)
{
    struct amp_autocast_config config = amp_autocast_config_fp16(NULL);
    struct amp_autocast_config now;
    config.enabled = false;
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_enter_config(&config), 0);
    assert_true(amp_autocast_current(&now));
    assert_int_equal(now.mode, AMP_AUTOCAST_FP16);
    assert_false(now.enabled);
    assert_false(amp_autocast_active());
    assert_int_equal(amp_autocast_mode(), AMP_AUTOCAST_NONE);
    assert_int_equal(amp_autocast_dtype("linear", AMP_F32), AMP_F32);
    assert_int_equal(amp_autocast_depth(), 2);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_dtype("linear", AMP_F32), AMP_F16);
    amp_autocast_exit();
}

static void mode_none_keeps_every_dtype(void **state)
{
    static const enum amp_dtype all[] = {AMP_F32, AMP_F16, AMP_BF16, AMP_F64, AMP_DTYPE_NONE};
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_NONE), 0);
    assert_false(amp_autocast_active());
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_int_equal(amp_autocast_dtype("linear", all[i]), all[i]);
        assert_int_equal(amp_autocast_backward_dtype("softmax", all[i]), all[i]);
    }
    amp_autocast_exit();
}

static void an_allowed_op_gets_its_tensor_in_each_modes_low_dtype(void **state)
{
    float data[2] = {1, -2};
    uint16_t buffer[2];
    struct amp_tensor_view in = {data, 2, AMP_F32, 0, 0};
    struct amp_tensor_view out;
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "conv2d", &in, NULL, buffer, 4, &out, NULL), 0);
    assert_int_equal(out.dtype, AMP_F16);
    assert_int_equal(buffer[1], 0xc000);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_BF16), 0);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "conv2d", &in, NULL, buffer, 4, &out, NULL), 0);
    assert_int_equal(out.dtype, AMP_BF16);
    assert_int_equal(buffer[0], 0x3f80);
    amp_autocast_exit();
}

static void a_denied_op_gets_its_tensor_in_fp32(void **state)
{
    uint16_t data[2] = {0x3c00, 0xc000};
    float buffer[2];
    struct amp_tensor_view in = {data, 2, AMP_F16, 5, 1};
    struct amp_tensor_view out;
    struct amp_cast_cache_stats stats;
    struct amp_cast_cache *cache = amp_cast_cache_new(1024);
    assert_non_null(cache);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "softmax", &in, cache, buffer, 8, &out, NULL), 0);
    assert_int_equal(out.dtype, AMP_F32);
    assert_true(buffer[0] == 1 && buffer[1] == -2);
    amp_cast_cache_stats(cache, &stats);
    assert_int_equal(stats.entries, 0); /* only casts from fp32 to the low dtype are kept */
    amp_autocast_exit();
    amp_cast_cache_free(cache);
}

static void a_region_without_cache_uses_the_buffer(void **state)
{
    float data[2] = {1, 2};
    uint16_t buffer[2];
    struct amp_autocast_config config = amp_autocast_config_fp16(NULL);
    struct amp_tensor_view in = {data, 2, AMP_F32, 5, 1};
    struct amp_tensor_view out;
    struct amp_cast_cache_stats stats;
    struct amp_cast_cache *cache = amp_cast_cache_new(1024);
    assert_non_null(cache);
    config.cache_enabled = false;
    assert_int_equal(amp_autocast_enter_config(&config), 0);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &in, cache, buffer, 4, &out, NULL), 0);
    assert_ptr_equal(out.data, buffer);
    amp_cast_cache_stats(cache, &stats);
    assert_int_equal(stats.entries, 0);
    amp_autocast_exit();
    amp_cast_cache_free(cache);
}

static void a_dtype_that_the_caller_names_wins(void **state)
{
    uint16_t data[1] = {0x3c00}, buffer[1];
    double wide = 1;
    struct amp_tensor_view in = {data, 1, AMP_F16, 0, 0}, f64 = {&wide, 1, AMP_F64, 0, 0}, out;
    struct amp_error error;
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_dtype_named("softmax", AMP_F16, AMP_F16), AMP_F16);
    assert_int_equal(amp_autocast_dtype_named("sum", AMP_F16, AMP_F64), AMP_F64);
    assert_int_equal(amp_autocast_dtype_named("softmax", AMP_F16, AMP_DTYPE_NONE), AMP_F32);
    assert_int_equal(amp_autocast_cast_to(&amp_kernels_ref, AMP_BF16, &in, buffer, 2, &out, NULL), 0);
    assert_int_equal(out.dtype, AMP_BF16);
    assert_int_equal(buffer[0], 0x3f80);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_cast_to(&amp_kernels_ref, AMP_F16, &in, NULL, 0, &out, NULL), 0);
    assert_ptr_equal(out.data, data);
    assert_int_equal(amp_autocast_cast_to(&amp_kernels_ref, AMP_BF16, &in, buffer, 1, &out, NULL), AMP_ERANGE);
    assert_int_equal(amp_autocast_cast_to(&amp_kernels_ref, AMP_F32, &f64, buffer, 2, &out, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "f64"));
    assert_int_equal(amp_autocast_cast_to(&amp_kernels_ref, AMP_DTYPE_NONE, &in, buffer, 2, &out, NULL), AMP_EINVAL);
}

static void float64_and_what_is_no_float_stay_as_they_are(void **state)
{
    static const enum amp_dtype mixed[] = {AMP_DTYPE_NONE, AMP_F16, AMP_F64, (enum amp_dtype)99};
    int64_t index[1] = {7};
    struct amp_tensor_view in = {index, 1, AMP_DTYPE_NONE, 1, 1}, out;
    enum amp_dtype common;
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    for (size_t i = 0; i < 4; i++) {
        if (i == 1)
            continue;
        assert_int_equal(amp_autocast_dtype("linear", mixed[i]), mixed[i]);
        assert_int_equal(amp_autocast_dtype("softmax", mixed[i]), mixed[i]);
    }
    assert_int_equal(amp_autocast_promote("index_put", mixed, 4, &common, NULL), 0);
    assert_int_equal(common, AMP_F16);
    assert_int_equal(amp_autocast_promote("index_put", mixed, 1, &common, NULL), 0);
    assert_int_equal(common, AMP_DTYPE_NONE);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "linear", &in, NULL, NULL, 0, &out, NULL), 0);
    assert_ptr_equal(out.data, index);
    amp_autocast_exit();
}

static void the_backward_runs_in_the_forwards_dtype(void **state)
{
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_BF16), 0);
    assert_int_equal(amp_autocast_backward_dtype("linear", AMP_F32), AMP_BF16);
    assert_int_equal(amp_autocast_backward_dtype("mse_loss", AMP_BF16), AMP_F32);
    assert_int_equal(amp_autocast_backward_dtype("relu", AMP_BF16), AMP_BF16);
    assert_int_equal(amp_autocast_backward_dtype("linear", AMP_F64), AMP_F64);
    amp_autocast_exit();
}

static void a_function_with_default_dtypes_uses_them(void **state)
{
    struct amp_registry registry;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_set_dtypes(&registry, "my_block", AMP_BF16, AMP_F32, NULL), 0);
    assert_int_equal(amp_registry_set_dtypes(&registry, "linear", AMP_DTYPE_NONE, AMP_F32, NULL), 0);
    assert_int_equal(amp_registry_set_dtypes(&registry, "other", AMP_F64, AMP_F32, NULL), AMP_EINVAL);
    assert_int_equal(amp_registry_set_dtypes(&registry, "", AMP_F32, AMP_F32, NULL), AMP_EINVAL);
    assert_int_equal(amp_autocast_dtype("my_block", AMP_F32), AMP_F32);
    assert_int_equal(amp_autocast_enter_with(AMP_AUTOCAST_FP16, &registry), 0);
    assert_int_equal(amp_autocast_dtype("my_block", AMP_F32), AMP_BF16);
    assert_int_equal(amp_autocast_backward_dtype("my_block", AMP_F32), AMP_F32);
    assert_int_equal(amp_autocast_dtype("my_block", AMP_F64), AMP_F64);
    assert_int_equal(amp_autocast_dtype("linear", AMP_F32), AMP_F16);
    assert_int_equal(amp_autocast_backward_dtype("linear", AMP_F16), AMP_F32);
    amp_autocast_exit();
    amp_registry_close(&registry);
}

static void an_inner_context_takes_its_own_registry_and_gives_back_the_outer_one(void **state)
{
    struct amp_registry registry;
    struct amp_autocast_config now;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_deny(&registry, "linear", NULL), 0);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_enter_with(AMP_AUTOCAST_BF16, &registry), 0);
    assert_int_equal(amp_autocast_depth(), 2);
    assert_int_equal(amp_autocast_dtype("linear", AMP_BF16), AMP_F32);
    amp_autocast_exit();
    assert_true(amp_autocast_current(&now));
    assert_int_equal(now.mode, AMP_AUTOCAST_FP16);
    assert_null(now.registry);
    assert_int_equal(amp_autocast_dtype("linear", AMP_F32), AMP_F16);
    amp_autocast_exit();
    amp_registry_close(&registry);
}

static void *bf16_of_a_thread(void *result)
{
    unsigned *wrong = result;
    *wrong = amp_autocast_current(NULL) ? 1 : 0;
    if (amp_autocast_enter(AMP_AUTOCAST_BF16) != 0)
        *wrong |= 2;
    if (amp_autocast_dtype("linear", AMP_F32) != AMP_BF16)
        *wrong |= 4;
    amp_autocast_exit();
    return NULL;
}

static void threads_do_not_see_each_others_contexts(void **state)
{
    pthread_t threads[4];
    unsigned wrong[4];
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, bf16_of_a_thread, &wrong[i]), 0);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(wrong[i], 0);
    }
    assert_int_equal(amp_autocast_dtype("linear", AMP_F32), AMP_F16);
    amp_autocast_exit();
}

static void entering_leaving_and_deciding_allocate_nothing(void **state)
{
    struct amp_registry registry;
    enum amp_dtype in[2] = {AMP_F16, AMP_F32}, out;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_allow(&registry, "my_op", NULL), 0);
    unsigned before = allocations;
    amp_cast_cache_free(amp_cast_cache_new(1));
    assert_int_equal(allocations, before + 1); /* the count works */
    before = allocations;
    int failures = 0;
    for (unsigned i = 0; i < 1000; i++) {
        failures += amp_autocast_enter_with(i % 2 == 0 ? AMP_AUTOCAST_FP16 : AMP_AUTOCAST_BF16, &registry) != 0;
        failures += amp_autocast_dtype("linear", AMP_F32) == AMP_F32;
        failures += amp_autocast_dtype("my_op", AMP_F32) == AMP_F32;
        failures += amp_autocast_backward_dtype("mse_loss", AMP_F16) != AMP_F32;
        failures += amp_autocast_promote(i % 2 == 0 ? "dot" : "unheard_of", in, 2, &out, NULL) != 0;
        amp_autocast_exit();
    }
    assert_int_equal(allocations, before);
    assert_int_equal(failures, 0);
    amp_registry_close(&registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_context_is_current_from_enter_to_exit),
        cmocka_unit_test(leaving_an_empty_stack_does_nothing),
        cmocka_unit_test(the_backward_dtype_holds_after_the_exit),
        cmocka_unit_test(the_default_context_is_bf16_enabled_with_a_cache),
        cmocka_unit_test(ready_made_configurations_have_their_mode_and_registry),
        cmocka_unit_test(a_disabled_context_casts_nothing_and_is_still_the_current_one),
        cmocka_unit_test(mode_none_keeps_every_dtype),
        cmocka_unit_test(an_allowed_op_gets_its_tensor_in_each_modes_low_dtype),
        cmocka_unit_test(a_denied_op_gets_its_tensor_in_fp32),
        cmocka_unit_test(a_region_without_cache_uses_the_buffer),
        cmocka_unit_test(a_dtype_that_the_caller_names_wins),
        cmocka_unit_test(float64_and_what_is_no_float_stay_as_they_are),
        cmocka_unit_test(the_backward_runs_in_the_forwards_dtype),
        cmocka_unit_test(a_function_with_default_dtypes_uses_them),
        cmocka_unit_test(an_inner_context_takes_its_own_registry_and_gives_back_the_outer_one),
        cmocka_unit_test(threads_do_not_see_each_others_contexts),
        cmocka_unit_test(entering_leaving_and_deciding_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
