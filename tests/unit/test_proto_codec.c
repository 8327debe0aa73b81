#include "tests/unit/proto_messages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define ROUNDS 50

/* Room for the largest message of these tests. */
#define OUT_MAX (4 * AMPD_MSG_SIZE_MAX)

static void round_trip(const struct proto_message *row, struct amp_random *random, enum fill how)
{
    void *sent = malloc(row->size);
    void *received = malloc(row->size);
    struct amp_buf out;
    struct amp_error error;
    amp_buf_init(&out, OUT_MAX);
    row->fill(sent, random, how);
    /* What is received does not depend on what was there. */
    memset(received, 0xa5, row->size);
    assert_int_equal(row->encode(sent, &out), 0);
    int rc = row->decode(received, out.data, out.size, &error);
    if (rc != 0)
        fail_msg("%s: %s", row->name, error.text);
    if (!row->same(sent, received))
        fail_msg("%s differs after a round trip", row->name);
    row->release(sent);
    row->release(received);
    amp_buf_close(&out);
    free(sent);
    free(received);
}

static void every_message_survives_a_round_trip(void **state)
{
    struct amp_random random;
    amp_random_init(&random, 1);
    for (size_t i = 0; i < proto_messages_count; i++) {
        for (int round = 0; round < ROUNDS; round++)
            round_trip(&proto_messages[i], &random, FILL_RANDOM);
    }
}

static void every_message_survives_a_round_trip_with_extreme_values(void **state)
{
    struct amp_random random;
    amp_random_init(&random, 2);
    for (size_t i = 0; i < proto_messages_count; i++) {
        for (int round = 0; round < 5; round++)
            round_trip(&proto_messages[i], &random, FILL_EXTREME);
    }
}

static void an_empty_message_is_zero_bytes_both_ways(void **state)
{
    for (size_t i = 0; i < proto_messages_count; i++) {
        const struct proto_message *row = &proto_messages[i];
        void *sent = calloc(1, row->size);
        void *received = malloc(row->size);
        struct amp_buf out;
        amp_buf_init(&out, OUT_MAX);
        assert_int_equal(row->encode(sent, &out), 0);
        assert_int_equal(out.size, 0);
        assert_int_equal(row->decode(received, NULL, 0, NULL), 0);
        assert_true(row->same(sent, received));
        amp_buf_close(&out);
        free(sent);
        free(received);
    }
}

static void a_failed_encode_leaves_the_buffer_as_it_was(void **state)
{
    struct ampd_msg_join_request join = {.model = "digits", .worker_name = "w0"};
    struct amp_buf out;
    amp_buf_init(&out, 10);
    assert_int_equal(amp_buf_append(&out, "abc", 3), 0);
    assert_int_equal(ampd_msg_join_request_encode(&join, &out), AMP_EEXHAUSTED);
    assert_int_equal(out.size, 3);
    out.max = 1000;
    memset(join.model, 'x', sizeof join.model);
    assert_int_equal(ampd_msg_join_request_encode(&join, &out), AMP_EINVAL);
    memcpy(join.model, "\xff\xfe", 3);
    assert_int_equal(ampd_msg_join_request_encode(&join, &out), AMP_EINVAL);
    assert_int_equal(out.size, 3);
    amp_buf_close(&out);
}

static void encode_appends_behind_what_is_there(void **state)
{
    struct ampd_msg_get_scale_request request = {.model = "m"};
    struct amp_buf out;
    amp_buf_init(&out, 100);
    assert_int_equal(amp_buf_append(&out, "abc", 3), 0);
    assert_int_equal(ampd_msg_get_scale_request_encode(&request, &out), 0);
    assert_int_equal(out.size, 6);
    assert_memory_equal(out.data, "abc\x0a\x01m", 6);
    amp_buf_close(&out);
}

/* A specification with `count` parameters, encoded. */
static int encode_parameters(size_t count, struct amp_buf *out)
{
    struct ampd_msg_create_model_request request = {.has_spec = true};
    struct ampd_msg_parameter_spec *items = calloc(count, sizeof *items);
    for (size_t i = 0; i < count; i++)
        snprintf(items[i].name, sizeof items[i].name, "p%zu", i);
    request.spec.parameters = (struct ampd_msg_parameter_spec_list){.items = items, .count = count};
    int rc = ampd_msg_create_model_request_encode(&request, out);
    free(items);
    return rc;
}

static void a_model_may_have_8192_parameters_and_no_more(void **state)
{
    struct amp_buf out;
    amp_buf_init(&out, OUT_MAX);
    assert_int_equal(encode_parameters(AMPD_MSG_PARAMETERS_MAX + 1, &out), AMP_EINVAL);
    assert_int_equal(encode_parameters(AMPD_MSG_PARAMETERS_MAX, &out), 0);
    struct ampd_msg_create_model_request request;
    assert_int_equal(ampd_msg_create_model_request_decode(&request, out.data, out.size, NULL), 0);
    assert_int_equal(request.spec.parameters.count, AMPD_MSG_PARAMETERS_MAX);
    assert_string_equal(request.spec.parameters.items[8191].name, "p8191");
    ampd_msg_create_model_request_free(&request);
    assert_null(request.spec.parameters.items);
    assert_int_equal(request.spec.parameters.count, 0);
    amp_buf_close(&out);
}

static void user_state_has_at_most_64_kib(void **state)
{
    uint8_t *bytes = calloc(1, AMPD_MSG_USER_STATE_MAX + 1);
    struct ampd_msg_push_header header = {.user_state = {bytes, AMPD_MSG_USER_STATE_MAX + 1}};
    struct amp_buf out;
    amp_buf_init(&out, OUT_MAX);
    assert_int_equal(ampd_msg_push_header_encode(&header, &out), AMP_EINVAL);
    header.user_state.size--;
    assert_int_equal(ampd_msg_push_header_encode(&header, &out), 0);
    free(bytes);
    amp_buf_close(&out);
}

static void unknown_fields_are_passed_over(void **state)
{
    /* Field 1000 as each wire type, around model = "m". */
    static const uint8_t data[] =
        "\xc0\x3e\x05\xc1\x3e\x01\x02\x03\x04\x05\x06\x07\x08\x0a\x01m\xc2\x3e\x02zz\xc5\x3e\x01\x02\x03\x04";
    struct ampd_msg_get_scale_request request;
    assert_int_equal(ampd_msg_get_scale_request_decode(&request, data, sizeof data - 1, NULL), 0);
    assert_string_equal(request.model, "m");
}

static void an_array_may_come_unpacked(void **state)
{
    /* absent = 7, then absent = [8, 300]. */
    static const uint8_t data[] = {0x08, 7, 0x0a, 3, 8, 0xac, 0x02};
    struct ampd_msg_push_trailer trailer;
    assert_int_equal(ampd_msg_push_trailer_decode(&trailer, data, sizeof data, NULL), 0);
    assert_int_equal(trailer.absent_count, 3);
    assert_int_equal(trailer.absent[0], 7);
    assert_int_equal(trailer.absent[1], 8);
    assert_int_equal(trailer.absent[2], 300);
}

static void defaults_are_those_of_the_schema(void **state)
{
    struct ampd_msg_model_spec spec = {.name = "m", .world_size = 2};
    assert_int_equal(ampd_msg_model_spec_defaults(&spec), 0);
    assert_int_equal(spec.optimizer.kind, AMPD_MSG_OPTIMIZER_KIND_ADAMW);
    assert_true(spec.optimizer.learning_rate == 0.001 && spec.optimizer.weight_decay == 0.01);
    assert_true(spec.optimizer.beta1 == 0.9 && spec.optimizer.beta2 == 0.999 && spec.optimizer.epsilon == 1e-8);
    assert_true(spec.scaler.init_scale == 65536.0f && spec.scaler.min_scale == 1.0f);
    assert_true(spec.scaler.max_scale == 0x1p24f && spec.scaler.growth_interval == 2000);
    assert_int_equal(spec.cast_dtype, AMPD_MSG_DTYPE_F16);
    assert_int_equal(spec.loss_timeout_ms, 600000);
    assert_int_equal(spec.min_workers, 1);
    assert_int_equal(spec.max_consecutive_overflows, 50);
    assert_int_equal(spec.checkpoint_every, 100);
    assert_int_equal(spec.keep_last, 3);
    assert_false(spec.clip.has_value || spec.clip.has_max_norm);
    assert_int_equal(spec.groups.count, 1);
    assert_true(spec.groups.items[0].learning_rate_factor == 1.0);
    ampd_msg_model_spec_free(&spec);
}

static void defaults_change_nothing_that_was_given(void **state)
{
    struct ampd_msg_model_spec spec = {.has_optimizer = true, .has_scaler = true, .has_checkpoint_every = true};
    spec.optimizer.kind = AMPD_MSG_OPTIMIZER_KIND_SGD;
    spec.optimizer.has_learning_rate = true; /* 0 is a value */
    spec.scaler.policy = AMPD_MSG_SCALER_POLICY_NONE;
    spec.cast_dtype = AMPD_MSG_DTYPE_BF16;
    assert_int_equal(ampd_msg_model_spec_defaults(&spec), 0);
    assert_true(spec.optimizer.learning_rate == 0.0 && spec.optimizer.weight_decay == 0.0);
    assert_true(spec.scaler.init_scale == 1.0f);
    assert_int_equal(spec.cast_dtype, AMPD_MSG_DTYPE_BF16);
    assert_int_equal(spec.checkpoint_every, 0);
    ampd_msg_model_spec_free(&spec);
}

/* Writes each message to a file, for the comparison with another implementation: scripts of the suite read them. */
static int dump(const char *folder)
{
    struct amp_random random;
    amp_random_init(&random, 3);
    int failures = 0;
    for (size_t i = 0; i < 4 * proto_messages_count; i++) {
        const struct proto_message *row = &proto_messages[i / 4];
        void *message = malloc(row->size);
        struct amp_buf out;
        amp_buf_init(&out, OUT_MAX);
        row->fill(message, &random, i % 4 == 0 ? FILL_EXTREME : FILL_RANDOM);
        failures += row->encode(message, &out) != 0;
        char path[512];
        snprintf(path, sizeof path, "%s/%s.%zu.bin", folder, row->name + strlen("ampd_v1_"), i % 4);
        FILE *file = fopen(path, "wb");
        failures += file == NULL || (out.size > 0 && fwrite(out.data, out.size, 1, file) != 1);
        failures += file == NULL || fclose(file) != 0;
        row->release(message);
        amp_buf_close(&out);
        free(message);
    }
    return failures == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_survives_a_round_trip),
        cmocka_unit_test(every_message_survives_a_round_trip_with_extreme_values),
        cmocka_unit_test(an_empty_message_is_zero_bytes_both_ways),
        cmocka_unit_test(a_failed_encode_leaves_the_buffer_as_it_was),
        cmocka_unit_test(encode_appends_behind_what_is_there),
        cmocka_unit_test(a_model_may_have_8192_parameters_and_no_more),
        cmocka_unit_test(user_state_has_at_most_64_kib),
        cmocka_unit_test(unknown_fields_are_passed_over),
        cmocka_unit_test(an_array_may_come_unpacked),
        cmocka_unit_test(defaults_are_those_of_the_schema),
        cmocka_unit_test(defaults_change_nothing_that_was_given),
    };
    if (argc == 3 && strcmp(argv[1], "--dump") == 0)
        return dump(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
