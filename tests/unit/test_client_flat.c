/* The flat space of Load: where parameters lie, how blocks are cut, what is viewed and what is gathered. */
#include "client/io/flat.h"

#include "base/err.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 5

/* With blocks of 128: [a a] [a . b . ] [c ...] [c .] with pads between. */
static const uint64_t sizes[COUNT] = {200, 1, 64, 130, 3};

/* The flat space written out whole: the oracle. */
static float *whole(const struct ampclient_flat *flat, const float *const *values)
{
    float *out = calloc(flat->elements, sizeof *out);
    uint64_t at = 0;
    for (uint32_t p = 0; p < flat->parameters; p++) {
        memcpy(out + at, values[p], flat->sizes[p] * sizeof *out);
        at += flat->sizes[p];
        while (at % AMPCLIENT_FLAT_ALIGN != 0)
            at++;
    }
    assert_int_equal(at, flat->elements);
    return out;
}

static void every_block_is_the_part_of_the_flat_space_that_it_names(void **state)
{
    (void)state;
    float *values[COUNT];
    for (int p = 0; p < COUNT; p++) {
        values[p] = malloc(sizes[p] * sizeof(float));
        for (uint64_t e = 0; e < sizes[p]; e++)
            values[p][e] = (float)(p * 1000) + (float)e + 1;
    }
    for (uint64_t block_elements = 64; block_elements <= 1024; block_elements += 64) {
        struct ampclient_flat flat;
        assert_int_equal(ampclient_flat_init(&flat, sizes, COUNT, block_elements), 0);
        float *expected = whole(&flat, (const float *const *)values), *scratch = malloc(block_elements * sizeof(float));
        uint64_t covered = 0;
        for (uint64_t b = 0; b < flat.blocks; b++) {
            uint32_t elements = ampclient_flat_block_elements(&flat, b);
            memset(scratch, 0xff, block_elements * sizeof(float));
            const float *got = ampclient_flat_block(&flat, (const float *const *)values, b, scratch);
            assert_memory_equal(got, expected + b * block_elements, elements * sizeof(float));
            covered += elements;
        }
        assert_int_equal(covered, flat.elements);
        free(expected);
        free(scratch);
        ampclient_flat_close(&flat);
    }
    for (int p = 0; p < COUNT; p++)
        free(values[p]);
}

static void a_block_inside_one_parameter_is_not_copied(void **state)
{
    (void)state;
    const uint64_t size = 300;
    float *values = calloc(size, sizeof *values), scratch[128];
    struct ampclient_flat flat;
    assert_int_equal(ampclient_flat_init(&flat, &size, 1, 128), 0);
    assert_int_equal(flat.blocks, 3);
    assert_ptr_equal(ampclient_flat_block(&flat, (const float *const *)&values, 0, scratch), values);
    assert_ptr_equal(ampclient_flat_block(&flat, (const float *const *)&values, 1, scratch), values + 128);
    assert_ptr_equal(ampclient_flat_block(&flat, (const float *const *)&values, 2, scratch), scratch);
    assert_int_equal(ampclient_flat_block_elements(&flat, 2), 64);
    ampclient_flat_close(&flat);
    free(values);
}

static void layouts_that_cannot_be_are_refused(void **state)
{
    (void)state;
    struct ampclient_flat flat;
    const uint64_t none = 0, huge = UINT64_MAX, two[] = {(uint64_t)1 << 40, 1}, one = 1;
    assert_int_equal(ampclient_flat_init(&flat, &none, 1, 64), AMP_EINVAL);
    assert_int_equal(ampclient_flat_init(&flat, &huge, 1, 64), AMP_EINVAL);
    assert_int_equal(ampclient_flat_init(&flat, two, 2, 64), AMP_EINVAL);
    assert_int_equal(ampclient_flat_init(&flat, &one, 0, 64), AMP_EINVAL);
    assert_int_equal(ampclient_flat_init(&flat, &one, 1, 0), AMP_EINVAL);
    assert_int_equal(ampclient_flat_init(&flat, &one, 1, 100), AMP_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_is_the_part_of_the_flat_space_that_it_names),
        cmocka_unit_test(a_block_inside_one_parameter_is_not_copied),
        cmocka_unit_test(layouts_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
