/* The flat space: every element has one place, and the places do not depend on the number of shards. */
#include "amp/kernels.h"
#include "server/core/model/layout.h"
#include "server/core/model/passes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t sizes[] = {1, 64, 65, 300, 7, 128};
#define COUNT (sizeof(sizes) / sizeof(sizes[0]))

static struct ampd_layout *make(uint64_t block_elements)
{
    struct ampd_parameter_spec parameters[COUNT] = {0};
    struct ampd_model_spec spec = {.parameters = parameters, .parameters_count = COUNT};
    for (size_t p = 0; p < COUNT; p++) {
        parameters[p].dimensions = 1;
        parameters[p].shape[0] = sizes[p];
    }
    struct ampd_layout *layout;
    assert_int_equal(0, ampd_layout_new(&spec, block_elements, &layout));
    return layout;
}

static void each_parameter_starts_at_a_multiple_of_64(void **state)
{
    (void)state;
    struct ampd_layout *layout = make(128);
    uint64_t flat = 0;
    for (size_t p = 0; p < COUNT; p++) {
        assert_int_equal(flat, layout->starts[p]);
        flat += (sizes[p] + 63) / 64 * 64;
    }
    assert_int_equal(flat, layout->elements);
    assert_int_equal((flat + 127) / 128, layout->blocks);
    ampd_layout_free(layout);
}

static void segments_cover_each_element_once_and_no_pad(void **state)
{
    (void)state;
    for (uint64_t block_elements = 64; block_elements <= 1024; block_elements *= 2) {
        struct ampd_layout *layout = make(block_elements);
        uint8_t *seen = calloc(layout->elements, 1);
        for (uint64_t b = 0; b < layout->blocks; b++) {
            uint32_t count;
            const struct ampd_segment *segments = ampd_layout_block(layout, b, &count);
            assert_true(count > 0 && count <= layout->segments_max);
            for (uint32_t i = 0; i < count; i++) {
                uint64_t flat = b * block_elements + segments[i].offset;
                assert_int_equal(layout->starts[segments[i].parameter] + segments[i].first, flat);
                assert_true(segments[i].offset + segments[i].count <= ampd_layout_block_elements(layout, b));
                for (uint32_t e = 0; e < segments[i].count; e++)
                    seen[flat + e]++;
            }
        }
        for (size_t p = 0; p < COUNT; p++) {
            uint64_t end = p + 1 < COUNT ? layout->starts[p + 1] : layout->elements;
            for (uint64_t e = layout->starts[p]; e < end; e++)
                assert_int_equal(e < layout->starts[p] + sizes[p] ? 1 : 0, seen[e]);
        }
        free(seen);
        ampd_layout_free(layout);
    }
}

static void shards_own_contiguous_ranges_that_cover_all_blocks(void **state)
{
    (void)state;
    struct ampd_layout *layout = make(64);
    for (uint32_t shards = 1; shards <= 20; shards++) {
        uint64_t next = 0;
        for (uint32_t k = 0; k < shards; k++) {
            uint64_t first, count;
            ampd_layout_shard(layout, k, shards, &first, &count);
            assert_int_equal(next, first);
            next += count;
        }
        assert_int_equal(layout->blocks, next);
    }
    ampd_layout_free(layout);
}

static void a_received_block_is_counted_by_segment_and_its_pads_are_zeroed(void **state)
{
    (void)state;
    struct ampd_layout *layout = make(128); /* block 0: one element, pad, 64 elements */
    float data[128];
    for (unsigned i = 0; i < 128; i++)
        data[i] = -3;
    data[5] = INFINITY; /* in the pad */
    data[70] = NAN;
    data[72] = -INFINITY;
    data[71] = 8;
    struct ampd_segment_count counts[8];
    assert_int_equal(2, ampd_receive_block(layout, 0, AMP_F32, data, &amp_kernels_ref, counts));
    assert_int_equal(0, counts[0].inf_count + counts[0].nan_count);
    assert_true(counts[0].largest == 3);
    assert_int_equal(1, counts[1].parameter);
    assert_int_equal(1, counts[1].inf_count);
    assert_int_equal(1, counts[1].nan_count);
    assert_int_equal(6, counts[1].first_index);
    assert_true(counts[1].largest == 8);
    for (unsigned i = 1; i < 64; i++)
        assert_true(data[i] == 0 && !signbit(data[i]));
    assert_true(data[0] == -3 && data[127] == -3);
    ampd_layout_free(layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_parameter_starts_at_a_multiple_of_64),
        cmocka_unit_test(segments_cover_each_element_once_and_no_pad),
        cmocka_unit_test(shards_own_contiguous_ranges_that_cover_all_blocks),
        cmocka_unit_test(a_received_block_is_counted_by_segment_and_its_pads_are_zeroed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
