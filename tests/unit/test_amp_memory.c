/*
 * Out of memory: each allocation of the cast cache, the registry and DLPack fails in its turn, and everything is then
 * as before the call. The allocator's entries are wrapped by the linker (tests/unit/amp.cmake). FSDP's are in
 * test_amp_fsdp.c; nothing else in amp/ allocates.
 */
#include "amp/autocast.h"
#include "amp/cpu.h"
#include "amp/dlpack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NEVER UINT32_MAX

static unsigned until_failure = NEVER; /* allocations that still succeed */

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);

static bool fails(void)
{
    if (until_failure == NEVER)
        return false;
    bool now = until_failure == 0;
    until_failure = now ? NEVER : until_failure - 1;
    return now;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

static void a_cache_that_cannot_be_made_is_null(void **state)
{
    until_failure = 0;
    struct amp_cast_cache *cache = amp_cast_cache_new(1024);
    until_failure = NEVER;
    assert_null(cache);
    amp_cast_cache_free(cache);
}

static void a_cast_that_cannot_be_kept_is_an_error_and_leaves_the_cache_whole(void **state)
{
    float data[4] = {1, 2, 3, 4};
    struct amp_tensor_view in = {data, 4, AMP_F32, 7, 1}, out;
    struct amp_cast_cache_stats stats;
    struct amp_error error;
    struct amp_cast_cache *cache = amp_cast_cache_new(1024);
    assert_non_null(cache);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    until_failure = 0;
    int code = amp_autocast_cast(&amp_kernels_ref, "mm", &in, cache, NULL, 0, &out, &error);
    until_failure = NEVER;
    assert_int_equal(code, AMP_ENOMEM);
    assert_string_equal(error.text, "no memory for a cast of 8 bytes");
    amp_cast_cache_stats(cache, &stats);
    assert_int_equal(stats.entries, 0);
    assert_int_equal(stats.bytes, 0);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &in, cache, NULL, 0, &out, &error), 0);
    assert_int_equal(((const uint16_t *)out.data)[3], 0x4400);
    amp_autocast_exit();
    amp_cast_cache_free(cache);
}

static void a_tensor_of_another_size_or_dtype_under_an_old_name_is_cast_anew(void **state)
{
    float data[4] = {1, 2, 3, 4};
    struct amp_tensor_view in = {data, 4, AMP_F32, 7, 1}, out;
    struct amp_cast_cache_stats stats;
    struct amp_cast_cache *cache = amp_cast_cache_new(1024);
    assert_non_null(cache);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &in, cache, NULL, 0, &out, NULL), 0);
    in.count = 2;
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &in, cache, NULL, 0, &out, NULL), 0);
    assert_int_equal(out.count, 2);
    amp_cast_cache_stats(cache, &stats);
    assert_int_equal(stats.entries, 2); /* somebody may still be reading the first */
    assert_int_equal(stats.bytes, 12);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_BF16), 0);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &in, cache, NULL, 0, &out, NULL), 0);
    assert_int_equal(out.dtype, AMP_BF16);
    amp_cast_cache_stats(cache, &stats);
    assert_int_equal(stats.entries, 3);
    amp_autocast_exit();
    amp_cast_cache_free(cache);
}

static void a_rule_that_cannot_be_kept_is_an_error_and_leaves_the_registry_whole(void **state)
{
    struct amp_registry registry;
    struct amp_error error;
    amp_registry_init(&registry);
    /* The first rule needs slots and a row, a later one a row, and the eighth more slots again. */
    for (unsigned i = 0; i < 20; i++) {
        char op[3] = {'a', (char)('a' + i), '\0'};
        unsigned failures = 0;
        for (until_failure = 0; amp_registry_deny(&registry, op, &error) != 0; until_failure = ++failures) {
            assert_string_equal(error.text + strlen("no memory for the rule of "), op);
            assert_int_equal(registry.count, i);
        }
        until_failure = NEVER;
        assert_in_range(failures, 1, 2);
        assert_int_equal(registry.count, i + 1);
        for (char last = 'a'; last <= 'a' + (int)i; last++) {
            op[1] = last;
            assert_int_equal(amp_registry_policy(&registry, AMP_AUTOCAST_FP16, op), AMP_OP_FP32);
        }
    }
    amp_registry_close(&registry);
}

static void release(void *context)
{
    ++*(unsigned *)context;
}

static void a_dlpack_tensor_that_cannot_be_made_stays_with_its_owner(void **state)
{
    float data[2] = {1, 2};
    struct amp_tensor_view view = {data, 2, AMP_F32, 0, 0};
    struct amp_dlpack_managed *out;
    struct amp_error error;
    unsigned released = 0;
    until_failure = 0;
    int code = amp_dlpack_export(&view, NULL, 0, false, &released, release, &out, &error);
    until_failure = NEVER;
    assert_int_equal(code, AMP_ENOMEM);
    assert_null(out);
    assert_int_equal(released, 0);
    assert_string_equal(error.text, "no memory for a DLPack tensor");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cache_that_cannot_be_made_is_null),
        cmocka_unit_test(a_cast_that_cannot_be_kept_is_an_error_and_leaves_the_cache_whole),
        cmocka_unit_test(a_tensor_of_another_size_or_dtype_under_an_old_name_is_cast_anew),
        cmocka_unit_test(a_rule_that_cannot_be_kept_is_an_error_and_leaves_the_registry_whole),
        cmocka_unit_test(a_dlpack_tensor_that_cannot_be_made_stays_with_its_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
