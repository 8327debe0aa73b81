/* The share of a disk that the next checkpoint would bring into use. */
#include "server/io/host/disk_share.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

/* cmocka needs the headers above. */
#include <cmocka.h>

static uint32_t after(uint64_t total, uint64_t free_bytes, uint64_t next)
{
    const struct io_disk_room room = {.total_bytes = total, .free_bytes = free_bytes, .next_bytes = next};
    return io_disk_share_after(&room);
}

static void the_next_checkpoint_counts_as_used(void **state)
{
    assert_int_equal(after(1000, 500, 0), 50);
    assert_int_equal(after(1000, 500, 400), 90);
    assert_int_equal(after(1000, 500, 500), 100);
}

static void a_part_of_a_percent_is_a_whole_one(void **state)
{
    assert_int_equal(after(1000, 500, 401), 91);
    assert_int_equal(after((uint64_t)1 << 60, ((uint64_t)1 << 60) - 1, 0), 1);
}

static void a_checkpoint_without_room_is_more_than_all(void **state)
{
    assert_int_equal(after(1000, 500, 501), 101);
    assert_int_equal(after(1, 0, UINT64_MAX), 1000);
}

static void a_file_system_that_tells_no_size_is_empty(void **state)
{
    assert_int_equal(after(0, 0, 4096), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_checkpoint_counts_as_used),
        cmocka_unit_test(a_part_of_a_percent_is_a_whole_one),
        cmocka_unit_test(a_checkpoint_without_room_is_more_than_all),
        cmocka_unit_test(a_file_system_that_tells_no_size_is_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
