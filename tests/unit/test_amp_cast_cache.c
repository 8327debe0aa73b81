/* The cast cache: what is found again, what makes room, and that nothing goes that somebody may be reading. */
#include "amp/autocast.h"
#include "amp/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct amp_cast_cache *new_cache(size_t max_bytes)
{
    struct amp_cast_cache *cache = amp_cast_cache_new(max_bytes);
    assert_non_null(cache);
    return cache;
}

static struct amp_cast_cache_stats stats_of(const struct amp_cast_cache *cache)
{
    struct amp_cast_cache_stats stats;
    amp_cast_cache_stats(cache, &stats);
    return stats;
}

/* Four elements of the value `version` under the id, cast for "mm" without a buffer. */
static int cast_four(struct amp_cast_cache *cache, uint64_t id, uint64_t version, struct amp_tensor_view *out)
{
    float x = (float)version;
    float data[4] = {x, x, x, x};
    struct amp_tensor_view in = {data, 4, AMP_F32, id, version};
    return amp_autocast_cast(&amp_kernels_ref, "mm", &in, cache, NULL, 0, out, NULL);
}

/* 1, 2 and 3 in f16. */
static const uint16_t one[4] = {0x3c00, 0x3c00, 0x3c00, 0x3c00};
static const uint16_t two[4] = {0x4000, 0x4000, 0x4000, 0x4000};

static void a_cached_cast_is_found_again_until_the_version_changes(void **state)
{
    float data[2] = {1, 2};
    struct amp_tensor_view in = {data, 2, AMP_F32, 7, 1};
    struct amp_tensor_view first, again, changed;
    struct amp_cast_cache_stats stats;
    struct amp_cast_cache *cache = amp_cast_cache_new(1024);
    assert_non_null(cache);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_BF16), 0);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &in, cache, NULL, 0, &first, NULL), 0);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &in, cache, NULL, 0, &again, NULL), 0);
    assert_ptr_equal(first.data, again.data);
    data[0] = 4;
    in.version = 2;
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &in, cache, NULL, 0, &changed, NULL), 0);
    assert_int_equal(((const uint16_t *)changed.data)[0], 0x4080);
    assert_int_equal(changed.version, 2);
    amp_cast_cache_stats(cache, &stats);
    assert_int_equal(stats.hits, 1);
    assert_int_equal(stats.misses, 2);
    assert_int_equal(stats.entries, 1);
    assert_int_equal(stats.bytes, 4);
    amp_autocast_exit();
    amp_cast_cache_free(cache);
}

static void a_full_cache_drops_what_was_used_longest_ago(void **state)
{
    struct amp_tensor_view out;
    struct amp_cast_cache *cache = new_cache(16); /* two casts of four f16 */
    static const uint64_t asked[] = {1, 2, 1, 3, 1, 2};
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
        assert_int_equal(cast_four(cache, asked[i], 1, &out), 0);
        amp_autocast_exit();
    }
    assert_int_equal(stats_of(cache).hits, 2); /* 1 both times; 3 pushed 2 out */
    assert_int_equal(stats_of(cache).entries, 2);
    assert_int_equal(stats_of(cache).bytes, 16);
    amp_cast_cache_free(cache);
}

static void a_cast_with_a_new_version_is_a_use_of_it(void **state)
{
    struct amp_tensor_view out, again;
    struct amp_cast_cache *cache = new_cache(16);
    static const uint64_t asked[][2] = {{1, 1}, {2, 1}, {1, 2}, {3, 1}};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
        assert_int_equal(cast_four(cache, asked[i][0], asked[i][1], &out), 0);
        amp_autocast_exit();
    }
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(cast_four(cache, 1, 2, &again), 0); /* 3 pushed 2 out, not 1 */
    assert_int_equal(stats_of(cache).hits, 1);
    assert_memory_equal(again.data, two, sizeof two);
    amp_autocast_exit();
    amp_cast_cache_free(cache);
}

static void nothing_handed_out_since_the_outermost_enter_is_freed(void **state)
{
    struct amp_tensor_view a, b, c;
    uint16_t buffer[4];
    float data[4] = {1, 1, 1, 1};
    struct amp_tensor_view in = {data, 4, AMP_F32, 3, 1};
    struct amp_error error;
    struct amp_cast_cache *cache = new_cache(16);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(cast_four(cache, 1, 1, &a), 0);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0); /* an inner region ends nothing */
    assert_int_equal(cast_four(cache, 2, 1, &b), 0);
    amp_autocast_exit();
    assert_int_equal(cast_four(cache, 1, 2, &a), 0);
    int code = amp_autocast_cast(&amp_kernels_ref, "mm", &in, cache, NULL, 0, &c, &error);
    assert_int_equal(code, AMP_ERANGE);
    assert_non_null(strstr(error.text, "give a buffer of 8 bytes, or a larger cache"));
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &in, cache, buffer, sizeof buffer, &c, NULL), 0);
    assert_ptr_equal(c.data, buffer);
    assert_memory_equal(a.data, two, sizeof two);
    assert_memory_equal(b.data, one, sizeof one);
    assert_memory_equal(c.data, one, sizeof one);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(cast_four(cache, 3, 1, &c), 0); /* now one of them may go */
    assert_int_equal(stats_of(cache).entries, 2);
    amp_autocast_exit();
    amp_cast_cache_free(cache);
}

static void a_cast_of_another_size_leaves_the_one_that_was_handed_out(void **state)
{
    float data[4] = {1, 1, 1, 1};
    struct amp_tensor_view in = {data, 4, AMP_F32, 7, 1}, whole, half;
    struct amp_cast_cache *cache = new_cache(12);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &in, cache, NULL, 0, &whole, NULL), 0);
    in.count = 2;
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &in, cache, NULL, 0, &half, NULL), 0);
    assert_memory_equal(whole.data, one, sizeof one);
    assert_memory_equal(half.data, one, 4);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    in.count = 4;
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &in, cache, NULL, 0, &whole, NULL), 0);
    assert_int_equal(stats_of(cache).entries, 2); /* that of two elements, not found any more, and the new one */
    assert_int_equal(stats_of(cache).misses, 3);
    amp_autocast_exit();
    amp_cast_cache_free(cache);
}

static void what_could_never_fit_goes_to_the_buffer(void **state)
{
    float large[9] = {0};
    uint16_t buffer[9];
    struct amp_tensor_view big = {large, 9, AMP_F32, 9, 1}, out;
    struct amp_cast_cache *cache = new_cache(16);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(cast_four(cache, 1, 1, &out), 0);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &big, cache, buffer, 18, &out, NULL), 0);
    assert_ptr_equal(out.data, buffer);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &big, cache, NULL, 0, &out, NULL), AMP_ERANGE);
    assert_int_equal(stats_of(cache).entries, 1);
    amp_autocast_exit();
    amp_cast_cache_free(cache);
}

static void empty_tensors_take_no_room(void **state)
{
    float data[1] = {0};
    struct amp_tensor_view in = {data, 0, AMP_F32, 1, 1}, out;
    struct amp_cast_cache *cache = new_cache(16);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    for (in.id = 1; in.id < 100; in.id++) {
        assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &in, cache, NULL, 0, &out, NULL), 0);
        assert_int_equal(out.count, 0);
        assert_int_equal(out.dtype, AMP_F16);
    }
    assert_int_equal(stats_of(cache).entries, 0);
    amp_autocast_exit();
    amp_cast_cache_free(cache);
}

/* Look-ups of a walk are as long as the cache; those of a hash are not. */
static void a_search_looks_at_few_entries_however_many_there_are(void **state)
{
    enum { WEIGHTS = 8192, ROUNDS = 4 };
    struct amp_tensor_view out;
    static const uint64_t strides[] = {1, 64, 4096, (uint64_t)1 << 40};
    for (size_t s = 0; s < 4; s++) {
        struct amp_cast_cache *cache = new_cache(WEIGHTS * sizeof one);
        for (uint64_t round = 1; round <= ROUNDS; round++) {
            assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
            for (uint64_t i = 1; i <= WEIGHTS; i++)
                assert_int_equal(cast_four(cache, i * strides[s], round, &out), 0);
            amp_autocast_exit();
        }
        assert_int_equal(stats_of(cache).misses, WEIGHTS * ROUNDS);
        assert_int_equal(stats_of(cache).entries, WEIGHTS);
        assert_in_range(stats_of(cache).compared, WEIGHTS * (ROUNDS - 1), (uint64_t)8 * WEIGHTS * ROUNDS);
        amp_cast_cache_free(cache);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cached_cast_is_found_again_until_the_version_changes),
        cmocka_unit_test(a_full_cache_drops_what_was_used_longest_ago),
        cmocka_unit_test(a_cast_with_a_new_version_is_a_use_of_it),
        cmocka_unit_test(nothing_handed_out_since_the_outermost_enter_is_freed),
        cmocka_unit_test(a_cast_of_another_size_leaves_the_one_that_was_handed_out),
        cmocka_unit_test(what_could_never_fit_goes_to_the_buffer),
        cmocka_unit_test(empty_tensors_take_no_room),
        cmocka_unit_test(a_search_looks_at_few_entries_however_many_there_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
