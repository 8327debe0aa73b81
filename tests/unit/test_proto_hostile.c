/* Bytes that no honest peer sends: each decode ends with success or with a sentence, and never with more than that. */
#include "tests/unit/proto_messages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define MUTATIONS 400
#define OUT_MAX   (4 * AMPD_MSG_SIZE_MAX)

static bool all_zero(const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (data[i] != 0)
            return false;
    }
    return true;
}

/* Decodes from a heap block of exactly this size, so that a sanitizer sees the first byte beyond it. */
static bool survive(const struct proto_message *row, const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size > 0 ? size : 1);
    void *message = malloc(row->size);
    void *again = malloc(row->size);
    struct amp_error error = {.text = ""};
    struct amp_buf out;
    amp_buf_init(&out, OUT_MAX);
    if (size > 0)
        memcpy(exact, data, size);
    int rc = row->decode(message, exact, size, &error);
    free(exact);
    if (rc == 0) {
        /* What was taken can be said again, and means the same. */
        assert_int_equal(row->encode(message, &out), 0);
        assert_int_equal(row->decode(again, out.data, out.size, NULL), 0);
        assert_true(row->same(message, again));
        row->release(message);
        row->release(again);
    } else {
        assert_int_equal(rc, AMP_EINVAL);
        assert_true(error.text[0] != 0);
        assert_true(all_zero(message, row->size));
    }
    amp_buf_close(&out);
    free(message);
    free(again);
    return rc == 0;
}

static void encode_sample(const struct proto_message *row, struct amp_random *random, struct amp_buf *out)
{
    void *message = malloc(row->size);
    row->fill(message, random, FILL_RANDOM);
    amp_buf_init(out, OUT_MAX);
    assert_int_equal(row->encode(message, out), 0);
    row->release(message);
    free(message);
}

static void a_message_cut_off_at_any_byte_is_refused_or_read_in_part(void **state)
{
    struct amp_random random;
    amp_random_init(&random, 11);
    for (size_t i = 0; i < proto_messages_count; i++) {
        struct amp_buf sample;
        encode_sample(&proto_messages[i], &random, &sample);
        size_t step = sample.size > 2000 ? sample.size / 997 : 1;
        for (size_t size = 0; size < sample.size; size += step)
            (void)survive(&proto_messages[i], sample.data, size);
        amp_buf_close(&sample);
    }
}

static void mutate(struct amp_buf *bytes, struct amp_random *random)
{
    size_t at = amp_random_below(random, bytes->size);
    switch (amp_random_below(random, 5)) {
    case 0:
        bytes->data[at] ^= (uint8_t)(1u << amp_random_below(random, 8));
        break;
    case 1:
        bytes->data[at] = (uint8_t)amp_random_next(random);
        break;
    case 2:
        bytes->data[at] = 0xff;
        break;
    case 3:
        memmove(bytes->data + at, bytes->data + at + 1, bytes->size - at - 1);
        bytes->size--;
        break;
    default:
        if (amp_buf_append(bytes, "x", 1) == 0)
            memmove(bytes->data + at + 1, bytes->data + at, bytes->size - at - 1);
    }
}

static void a_mutated_message_never_does_harm(void **state)
{
    struct amp_random random;
    amp_random_init(&random, 12);
    size_t taken = 0;
    size_t refused = 0;
    for (size_t i = 0; i < proto_messages_count; i++) {
        for (int round = 0; round < MUTATIONS; round++) {
            struct amp_buf sample;
            encode_sample(&proto_messages[i], &random, &sample);
            for (size_t k = amp_random_below(&random, 4); k < 4 && sample.size > 0; k++)
                mutate(&sample, &random);
            *(survive(&proto_messages[i], sample.data, sample.size) ? &taken : &refused) += 1;
            amp_buf_close(&sample);
        }
    }
    /* Both ways were gone. */
    assert_true(taken > 100 && refused > 1000);
}

static void random_bytes_never_do_harm(void **state)
{
    struct amp_random random;
    amp_random_init(&random, 13);
    for (size_t i = 0; i < proto_messages_count; i++) {
        for (int round = 0; round < MUTATIONS; round++) {
            uint8_t data[64];
            size_t size = amp_random_below(&random, sizeof data + 1);
            for (size_t k = 0; k < size; k++)
                data[k] = (uint8_t)amp_random_next(&random);
            (void)survive(&proto_messages[i], data, size);
        }
    }
}

/* Each has to be refused with a text that names the field. */
static void refuse_join(const char *data, size_t size, const char *text)
{
    struct ampd_msg_join_request join;
    struct amp_error error;
    assert_int_equal(ampd_msg_join_request_decode(&join, data, size, &error), AMP_EINVAL);
    assert_string_equal(error.text, text);
    assert_string_equal(error.reason, "INVALID_FIELD");
}

static void a_refusal_names_the_field(void **state)
{
    char name[131] = "\x0a\x80\x01";
    memset(name + 3, 'x', 128);
    refuse_join(name, sizeof name, "JoinRequest: model is longer than 127 bytes");
    refuse_join("\x0a\x02\xc3(", 4, "JoinRequest: model is not UTF-8 text without zero bytes");
    refuse_join("\x12\x03"
                "a\0b",
                5, "JoinRequest: worker_name is not UTF-8 text without zero bytes");
    refuse_join("\x1a\x01x", 3, "JoinRequest: rank has a wrong wire type: the schemas differ");
    refuse_join("\x18\x80\x80\x80\x80\x10", 6, "JoinRequest: rank is out of the range of its type");
    refuse_join("\x28\x02", 2, "JoinRequest: replace is out of the range of its type");
    refuse_join("\x0a\x05x", 3, "JoinRequest: malformed or cut off at byte 2 of 3");
    refuse_join("\x0b", 1, "JoinRequest: malformed or cut off at byte 1 of 1");
}

static void a_refusal_names_the_path_of_a_nested_field(void **state)
{
    /* spec { parameters {} parameters { shape: <malformed> } } */
    static const uint8_t data[] = {0x0a, 7, 0x12, 0, 0x12, 3, 0x12, 1, 0x80};
    struct ampd_msg_create_model_request request;
    struct amp_error error;
    assert_int_equal(ampd_msg_create_model_request_decode(&request, data, sizeof data, &error), AMP_EINVAL);
    assert_string_equal(error.text, "CreateModelRequest: spec: parameters[1]: shape holds a malformed value or one "
                                    "that is out of range");
}

static void a_submessage_given_twice_is_refused(void **state)
{
    static const uint8_t data[] = {0x0a, 0, 0x0a, 0};
    struct ampd_msg_create_model_request request;
    struct amp_error error;
    assert_int_equal(ampd_msg_create_model_request_decode(&request, data, sizeof data, &error), AMP_EINVAL);
    assert_string_equal(error.text, "CreateModelRequest: spec is given twice");
}

static void a_shape_of_nine_extents_is_refused(void **state)
{
    static const uint8_t data[] = {0x12, 11, 0x12, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    struct ampd_msg_model_spec spec;
    struct amp_error error;
    assert_int_equal(ampd_msg_model_spec_decode(&spec, data, sizeof data, &error), AMP_EINVAL);
    assert_string_equal(error.text, "ModelSpec: parameters[0]: shape has more than 8 elements");
}

static void a_time_outside_of_its_range_is_refused(void **state)
{
    /* row { decide_time { nanos: 1000000000 } } */
    static const uint8_t data[] = {0x0a, 9, 0x72, 7, 0x10, 0x80, 0x94, 0xeb, 0xdc, 0x03, 0x08};
    struct ampd_msg_watch_steps_response response;
    struct amp_error error;
    uint8_t whole[sizeof data + 1];
    memcpy(whole, data, sizeof data);
    whole[sizeof data] = 0; /* seconds: 0 */
    whole[1] = 10;
    whole[3] = 8;
    assert_int_equal(ampd_msg_watch_steps_response_decode(&response, whole, sizeof whole, &error), AMP_EINVAL);
    assert_string_equal(error.text, "WatchStepsResponse: row: decide_time: nanos are not in 0 to 999999999");
}

static void text_is_checked_as_rfc_3629_says(void **state)
{
    static const char *const good[] = {"\x7f",         "\xc2\x80",         "\xe0\xa0\x80",    "\xed\x9f\xbf",
                                       "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"};
    static const char *const bad[] = {"\x80",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xe2\x82",
                                      "\xc2",
                                      "\xff"};
    for (size_t i = 0; i < sizeof good / sizeof good[0] + sizeof bad / sizeof bad[0]; i++) {
        bool is_good = i < sizeof good / sizeof good[0];
        const char *text = is_good ? good[i] : bad[i - sizeof good / sizeof good[0]];
        uint8_t data[8] = {0x0a, (uint8_t)strlen(text)};
        memcpy(data + 2, text, strlen(text));
        struct ampd_msg_get_scale_request request;
        assert_int_equal(ampd_msg_get_scale_request_decode(&request, data, 2 + strlen(text), NULL),
                         is_good ? 0 : AMP_EINVAL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_cut_off_at_any_byte_is_refused_or_read_in_part),
        cmocka_unit_test(a_mutated_message_never_does_harm),
        cmocka_unit_test(random_bytes_never_do_harm),
        cmocka_unit_test(a_refusal_names_the_field),
        cmocka_unit_test(a_refusal_names_the_path_of_a_nested_field),
        cmocka_unit_test(a_submessage_given_twice_is_refused),
        cmocka_unit_test(a_shape_of_nine_extents_is_refused),
        cmocka_unit_test(a_time_outside_of_its_range_is_refused),
        cmocka_unit_test(text_is_checked_as_rfc_3629_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
