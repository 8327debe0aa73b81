/* The flat space as the client lays it out from a Join's answer, which a server may have made up. */
#include "client/core/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_that_can_be_are_taken),
        cmocka_unit_test(sizes_that_cannot_be_are_data_loss),
        cmocka_unit_test(counts_and_blocks_that_cannot_be_are_data_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
