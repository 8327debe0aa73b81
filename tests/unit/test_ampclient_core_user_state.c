/* The worker's machine: which user state goes out with a push. */
#include "tests/unit/client_core_fixture.h"

static uint16_t first[100];

static void set_state(const char *text)
{
    struct amp_error error = {0};
    assert_int_equal(0, ampclient_core_set_user_state(core, text, strlen(text), &error));
}

static void expect_state(const struct ampclient_output *header, const char *text)
{
    assert_int_equal(strlen(text), header->u.push.user_state_size);
    assert_memory_equal(text, header->u.push.user_state, strlen(text));
}

static void a_header_that_waits_to_be_taken_has_the_state_that_is_set_meanwhile(void **state)
{
    (void)state;
    struct amp_error error = {0};
    struct ampclient_output header = {0};
    set_state("old");
    begin(1, 1);
    assert_int_equal(0, ampclient_core_push(core, now_ms, 1, second, AMP_F16, &error));
    set_state("newer");
    assert_true(ampclient_core_next(core, &header));
    assert_int_equal(AMPCLIENT_OUT_PUSH, header.type);
    expect_state(&header, "newer");
}

static void user_state_given_after_the_header_begins_the_stream_anew(void **state)
{
    (void)state;
    begin(1, 1);
    push(1, second);
    uint64_t call = take(AMPCLIENT_OUT_PUSH).call;
    set_state("here");
    count = 0;
    request(AMPCLIENT_EVENT_STEP_END);
    assert_int_equal(call, take(AMPCLIENT_OUT_CANCEL).call);
    fail_call(call, AMP_ECANCELLED, "", 0, 0);
    end_with(take(AMPCLIENT_OUT_GET_PUSH_STATE).call, (struct ampclient_ended){0});
    struct ampclient_output header = take(AMPCLIENT_OUT_PUSH);
    expect_state(&header, "here");
}

/* The trailer has gone out after the header with the older state. */
static void user_state_given_after_a_step_end_that_took_too_long_goes_out_with_a_trailer(void **state)
{
    (void)state;
    begin(1, 1);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    uint64_t call = take(AMPCLIENT_OUT_PUSH).call;
    request(AMPCLIENT_EVENT_INTERRUPT);
    (void)done(AMPCLIENT_EVENT_STEP_END, AMP_ECANCELLED);
    set_state("here");
    count = 0;
    request(AMPCLIENT_EVENT_STEP_END);
    assert_int_equal(call, take(AMPCLIENT_OUT_CANCEL).call);
    fail_call(call, AMP_ECANCELLED, "", 0, 0);
    struct ampclient_range range = {2, 1};
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PUSH_STATE,
                                    .call = take(AMPCLIENT_OUT_GET_PUSH_STATE).call};
    event.u.push_state.ranges = &range;
    event.u.push_state.ranges_count = 1;
    send(&event); /* all that was pushed has arrived */
    end_with(event.call, (struct ampclient_ended){0});
    struct ampclient_output header = take(AMPCLIENT_OUT_PUSH);
    expect_state(&header, "here");
    assert_int_equal(header.call, take(AMPCLIENT_OUT_PUSH_END).call);
}

static void a_shard_whose_header_has_an_older_state_than_others_is_told_the_newest(void **state)
{
    (void)state;
    ampclient_core_free(core);
    make_with((struct ampclient_core_config){.model = "m", .rank = 1, .world_size = -1, .shards = 2});
    set_state("old");
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    for (uint32_t k = 0; k < 2; k++)
        answer_pull(1, 1, 0);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
    push(1, second); /* block 2, which is shard 1's */
    struct ampclient_output older = take(AMPCLIENT_OUT_PUSH);
    assert_int_equal(1, older.shard);
    set_state("newer");
    push(0, first);
    struct ampclient_output other = take(AMPCLIENT_OUT_PUSH);
    assert_int_equal(0, other.shard);
    expect_state(&other, "newer");
    request(AMPCLIENT_EVENT_STEP_END);
    assert_int_equal(older.call, take(AMPCLIENT_OUT_CANCEL).call);
    assert_int_equal(0, have(AMPCLIENT_OUT_CANCEL)); /* shard 0 has been told it */
    fail_call(older.call, AMP_ECANCELLED, "", 0, 0);
    end_with(take(AMPCLIENT_OUT_GET_PUSH_STATE).call, (struct ampclient_ended){0});
    struct ampclient_output header = take(AMPCLIENT_OUT_PUSH);
    assert_int_equal(1, header.shard);
    expect_state(&header, "newer");
}

int main(void)
{
#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_header_that_waits_to_be_taken_has_the_state_that_is_set_meanwhile),
        TEST(user_state_given_after_the_header_begins_the_stream_anew),
        TEST(user_state_given_after_a_step_end_that_took_too_long_goes_out_with_a_trailer),
        TEST(a_shard_whose_header_has_an_older_state_than_others_is_told_the_newest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
