/* Event files for TensorBoard: what is written is read, and what is cut off or damaged is seen. */
#include "client/ampctl/events/tfevents.h"

#include "base/err.h"
#include "base/random.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static void write_three(struct amp_buf *out)
{
    const struct ampctl_tfvalue values[] = {
        {.tag = "a/number", .number = 0.25f}, {.tag = "a/text", .text = "why"}, {.tag = "another", .number = -1}};
    amp_buf_init(out, 1 << 20);
    assert_int_equal(ampctl_tfevents_begin(out, 1.5), 0);
    assert_int_equal(ampctl_tfevents_values(out, 2.5, UINT64_MAX >> 1, values, 3), 0);
    assert_int_equal(ampctl_tfevents_restart(out, 3.5, 300), 0);
}

/*
 * The first record byte by byte: its length, the masked CRC32C of that, wall_time 1.5 (field 1, 64 bits), file_version
 * (field 3), and the checksum. The two checksums are from python3-crc32c.
 */
static void a_file_begins_with_the_record_of_version_2(void **state)
{
    (void)state;
    static const char wanted[] = "\x18\0\0\0\0\0\0\0"
                                 "\xa3\x7f\x4b\x22"
                                 "\x09\0\0\0\0\0\0\xf8\x3f"
                                 "\x1a\x0d"
                                 "brain.Event:2"
                                 "\x2a\x28\x64\x6c";
    struct amp_buf out;
    amp_buf_init(&out, 1 << 20);
    assert_int_equal(ampctl_tfevents_begin(&out, 1.5), 0);
    assert_int_equal(out.size, sizeof wanted - 1);
    assert_memory_equal(out.data, wanted, sizeof wanted - 1);
    amp_buf_close(&out);
}

static void what_was_written_is_read(void **state)
{
    (void)state;
    struct amp_buf out;
    struct ampctl_tfevent event;
    size_t used, at = 0;
    float number;
    char text[4];
    write_three(&out);
    assert_int_equal(ampctl_tfevents_read(out.data, out.size, &event, &used), 1);
    assert_int_equal(event.step, 0);
    assert_false(event.restarts);
    assert_false(ampctl_tfevents_number(&event, "a/number", &number));
    at += used;
    assert_int_equal(ampctl_tfevents_read(out.data + at, out.size - at, &event, &used), 1);
    assert_true(event.step == UINT64_MAX >> 1);
    assert_true(ampctl_tfevents_number(&event, "a/number", &number));
    assert_true(number == 0.25f);
    assert_true(ampctl_tfevents_number(&event, "another", &number));
    assert_true(number == -1.0f);
    assert_true(ampctl_tfevents_text(&event, "a/text", text, sizeof text));
    assert_string_equal(text, "why");
    assert_false(ampctl_tfevents_text(&event, "a/text", text, sizeof text - 1));
    assert_false(ampctl_tfevents_number(&event, "a/text", &number));
    assert_false(ampctl_tfevents_number(&event, "a/", &number));
    at += used;
    assert_int_equal(ampctl_tfevents_read(out.data + at, out.size - at, &event, &used), 1);
    assert_true(event.restarts);
    assert_int_equal(event.step, 300);
    assert_int_equal(at + used, out.size);
    assert_int_equal(ampctl_tfevents_read(out.data + out.size, 0, &event, &used), 0);
    amp_buf_close(&out);
}

static void a_record_that_is_cut_off_asks_for_the_rest(void **state)
{
    (void)state;
    struct amp_buf out;
    struct ampctl_tfevent event;
    size_t whole, used;
    write_three(&out);
    assert_int_equal(ampctl_tfevents_read(out.data, out.size, &event, &whole), 1);
    for (size_t size = 0; size < whole; size++) {
        assert_int_equal(ampctl_tfevents_read(out.data, size, &event, &used), 0);
        assert_true(used > size && used <= whole);
    }
    amp_buf_close(&out);
}

static void a_byte_that_changed_is_damage(void **state)
{
    (void)state;
    struct amp_buf out;
    struct ampctl_tfevent event;
    size_t whole, used;
    write_three(&out);
    assert_int_equal(ampctl_tfevents_read(out.data, out.size, &event, &whole), 1);
    for (size_t i = 0; i < whole; i++) {
        out.data[i] ^= 0x10;
        assert_int_equal(ampctl_tfevents_read(out.data, out.size, &event, &used), AMP_EINVAL);
        out.data[i] ^= 0x10;
    }
    amp_buf_close(&out);
}

/* Fields of whatever kind, behind valid checksums: another program may have written them. */
static void any_bytes_in_a_sound_frame_do_no_harm(void **state)
{
    (void)state;
    struct amp_random random;
    const uint64_t seed = 7;
    print_message("seed %llu\n", (unsigned long long)seed);
    amp_random_init(&random, seed);
    for (unsigned round = 0; round < 20000; round++) {
        struct ampctl_tfevent event;
        float number;
        char text[8];
        uint8_t bytes[64];
        size_t size = (size_t)(amp_random_next(&random) % sizeof bytes);
        for (size_t i = 0; i < size; i++)
            bytes[i] = (uint8_t)(amp_random_next(&random) >> (round % 3 * 3));
        int rc = ampctl_tfevents_parse(bytes, size, &event);
        assert_true(rc == 1 || rc == AMP_EINVAL);
        if (rc == 1) {
            (void)ampctl_tfevents_number(&event, "", &number);
            (void)ampctl_tfevents_text(&event, "", text, sizeof text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_begins_with_the_record_of_version_2), cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(a_record_that_is_cut_off_asks_for_the_rest), cmocka_unit_test(a_byte_that_changed_is_damage),
        cmocka_unit_test(any_bytes_in_a_sound_frame_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
