/*
 * The flat space as the client lays it out from a server's answer, which may have been made up: where parameters lie,
 * how blocks are cut, what is viewed and what is gathered.
 */
#include "base/err.h"
#include "client/core/flat_layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT 5

static int layout(const uint64_t *elements, uint32_t parameters, uint64_t block_elements)
{
    struct ampclient_join_answer answer = {
        .elements = elements, .parameters_count = parameters, .block_elements = block_elements};
    struct ampclient_core_layout flat;
    int rc = ampclient_core_layout_init(&flat, &answer);
    if (rc == 0)
        ampclient_core_layout_close(&flat);
    else
        assert_null(flat.starts);
    return rc;
}

static void sizes_that_can_be_are_taken(void **state)
{
    (void)state;
    const uint64_t elements[] = {1, 64, 65, 1000};
    assert_int_equal(0, layout(elements, 4, 64));
    assert_int_equal(0, layout(elements, 4, 65536));
}

static void sizes_that_cannot_be_are_data_loss(void **state)
{
    (void)state;
    const uint64_t none[] = {64, 0, 64};
    const uint64_t huge[] = {64, ((uint64_t)1 << 36) + 1};
    const uint64_t wraps[] = {UINT64_MAX - 63, 128};
    const uint64_t together[] = {(uint64_t)1 << 35, (uint64_t)1 << 35, 1};
    assert_int_equal(AMP_EDATALOSS, layout(none, 3, 64));
    assert_int_equal(AMP_EDATALOSS, layout(huge, 2, 64));
    assert_int_equal(AMP_EDATALOSS, layout(wraps, 2, 64));
    assert_int_equal(AMP_EDATALOSS, layout(together, 3, 65536));
}

static void counts_and_blocks_that_cannot_be_are_data_loss(void **state)
{
    (void)state;
    static uint64_t many[8193];
    for (unsigned i = 0; i < 8193; i++)
        many[i] = 1;
    assert_int_equal(0, layout(many, 8192, 64));
    assert_int_equal(AMP_EDATALOSS, layout(many, 8193, 64));
    assert_int_equal(AMP_EDATALOSS, layout(many, 0, 64));
    assert_int_equal(AMP_EDATALOSS, layout(many, 1, 0));
    assert_int_equal(AMP_EDATALOSS, layout(many, 1, 63));
    assert_int_equal(AMP_EDATALOSS, layout(many, 1, (uint64_t)1 << 40));
}

static void lay_out(struct ampclient_core_layout *flat, const uint64_t *sizes, uint32_t count, uint64_t block_elements)
{
    const struct ampclient_join_answer answer = {
        .elements = sizes, .parameters_count = count, .block_elements = block_elements};
    assert_int_equal(0, ampclient_core_layout_init(flat, &answer));
}

/* The flat space written out whole: the oracle. */
static float *whole(const struct ampclient_core_layout *flat, const void *const *values)
{
    float *out = calloc(flat->elements, sizeof *out);
    uint64_t at = 0;
    for (uint32_t p = 0; p < flat->parameters; p++) {
        if (values[p] != NULL)
            memcpy(out + at, values[p], flat->sizes[p] * sizeof *out);
        at += (flat->sizes[p] + 63) / 64 * 64;
    }
    assert_int_equal(at, flat->elements);
    return out;
}

/* With blocks of 128: [a] [a .] [b . c] [d] [d . e .] with pads between; every other time d has no values. */
static void every_block_is_the_part_of_the_flat_space_that_it_names(void **state)
{
    (void)state;
    const uint64_t sizes[COUNT] = {200, 1, 64, 130, 3};
    float data[COUNT][200];
    const void *values[COUNT];
    for (int p = 0; p < COUNT; p++) {
        values[p] = data[p];
        for (uint64_t e = 0; e < sizes[p]; e++)
            data[p][e] = (float)(p * 1000) + (float)e + 1;
    }
    for (uint64_t block_elements = 64; block_elements <= 1024; block_elements += 64) {
        struct ampclient_core_layout flat;
        lay_out(&flat, sizes, COUNT, block_elements);
        values[3] = values[3] == NULL ? data[3] : NULL;
        float *expected = whole(&flat, values), *scratch = malloc(block_elements * sizeof(float));
        uint64_t covered = 0;
        for (uint64_t b = 0; b < flat.blocks; b++) {
            uint32_t elements = ampclient_core_layout_block_elements(&flat, b);
            memset(scratch, 0xff, block_elements * sizeof(float));
            const float *got = ampclient_core_layout_values(&flat, values, sizeof(float), b, scratch);
            assert_memory_equal(got, expected + b * block_elements, elements * sizeof(float));
            covered += elements;
        }
        assert_int_equal(covered, flat.elements);
        free(expected);
        free(scratch);
        ampclient_core_layout_close(&flat);
    }
}

static void a_block_inside_one_parameter_is_not_copied(void **state)
{
    (void)state;
    const uint64_t size = 300;
    uint16_t data[300] = {0}, scratch[128];
    const void *values[] = {data};
    struct ampclient_core_layout flat;
    lay_out(&flat, &size, 1, 128);
    assert_int_equal(flat.blocks, 3);
    assert_ptr_equal(ampclient_core_layout_values(&flat, values, sizeof *data, 0, scratch), data);
    assert_ptr_equal(ampclient_core_layout_values(&flat, values, sizeof *data, 1, scratch), data + 128);
    assert_ptr_equal(ampclient_core_layout_values(&flat, values, sizeof *data, 2, scratch), scratch);
    assert_int_equal(ampclient_core_layout_block_elements(&flat, 2), 64);
    ampclient_core_layout_close(&flat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_that_can_be_are_taken),
        cmocka_unit_test(sizes_that_cannot_be_are_data_loss),
        cmocka_unit_test(counts_and_blocks_that_cannot_be_are_data_loss),
        cmocka_unit_test(every_block_is_the_part_of_the_flat_space_that_it_names),
        cmocka_unit_test(a_block_inside_one_parameter_is_not_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
