/* The worker's machine: what it does when another process has its rank, and what it says meanwhile. */
#include "client/core/client_memory.h"
#include "tests/unit/client_core_fixture.h"

/* ---- the first Join ---- */

#define RECONNECT_MS 2000

/* A Join of a new handle; until `failing_ms` every try fails at once, after that none is answered. */
static void join_in_vain(uint64_t failing_ms)
{
    const struct ampclient_core_config config = {.model = "m", .rank = 1, .reconnect_timeout_ms = RECONNECT_MS};
    ampclient_core_free(core);
    assert_int_equal(0, ampclient_core_new(&config, &core));
    count = 0;
    request(AMPCLIENT_EVENT_JOIN);
    uint64_t begun = now_ms;
    while (now_ms - begun < RECONNECT_MS) {
        assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE));
        if (now_ms - begun < failing_ms)
            fail_call(take(AMPCLIENT_OUT_JOIN).call, AMP_EUNAVAILABLE, "SHARD_AWAY", 0, 0);
        tick(AMPCLIENT_BACKOFF_MAX_MS);
    }
}

static void a_join_whose_every_try_fails_has_found_no_server(void **state)
{
    (void)state;
    for (uint64_t failing_ms = 1; failing_ms <= RECONNECT_MS; failing_ms += RECONNECT_MS - 1) {
        join_in_vain(failing_ms);
        struct amp_error error = done(AMPCLIENT_EVENT_JOIN, AMP_EUNAVAILABLE).error;
        assert_int_equal(AMP_EUNAVAILABLE, error.code);
        assert_string_equal("text", error.text);
        assert_string_equal("SHARD_AWAY", error.reason);
    }
}

static void a_join_that_nobody_answers_ends_at_its_deadline(void **state)
{
    (void)state;
    join_in_vain(0);
    (void)done(AMPCLIENT_EVENT_JOIN, AMP_EDEADLINE);
}

/* ---- two workers of one RANK ---- */

static void expect_stopped(const char *word)
{
    struct amp_error error = {0};
    assert_int_equal(AMP_EABORTED, ampclient_core_push(core, now_ms, 1, second, AMP_F16, &error));
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    struct amp_error told = done(AMPCLIENT_EVENT_STEP_BEGIN, AMP_EABORTED).error;
    assert_non_null(strstr(told.text, word));
    assert_string_equal("RANK_TAKEN", told.reason);
    request(AMPCLIENT_EVENT_STEP_END);
    (void)done(AMPCLIENT_EVENT_STEP_END, AMP_EABORTED);
    request(AMPCLIENT_EVENT_PULL_LATEST);
    (void)done(AMPCLIENT_EVENT_PULL_LATEST, AMP_EABORTED);
    tick(60000);
    assert_int_equal(0, have(AMPCLIENT_OUT_JOIN) + have(AMPCLIENT_OUT_KEEP_ALIVE) + have(AMPCLIENT_OUT_PULL));
    request(AMPCLIENT_EVENT_LEAVE); /* it has nothing to give back */
    (void)done(AMPCLIENT_EVENT_LEAVE, 0);
    assert_int_equal(0, have(AMPCLIENT_OUT_LEAVE));
}

static void a_worker_whose_rank_is_taken_stops_with_the_servers_sentence(void **state)
{
    (void)state;
    begin(1, 1);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    fail_call(take(AMPCLIENT_OUT_PUSH).call, AMP_EABORTED, "RANK_TAKEN", 1, 1);
    assert_string_equal("text", done(AMPCLIENT_EVENT_STEP_END, AMP_EABORTED).error.text);
    expect_stopped("text");
}

static void a_fenced_worker_asks_whether_its_rank_is_taken_before_it_joins_again(void **state)
{
    (void)state;
    begin(1, 1);
    push(1, second);
    tick(10000); /* one that is out may have been answered before */
    uint64_t old = take(AMPCLIENT_OUT_KEEP_ALIVE).call;
    fail_call(take(AMPCLIENT_OUT_PUSH).call, AMP_EABORTED, "FENCED", 1, 1);
    assert_int_equal(old, take(AMPCLIENT_OUT_CANCEL).call);
    struct ampclient_output asked = take(AMPCLIENT_OUT_KEEP_ALIVE);
    fail_call(asked.call, AMP_EUNAVAILABLE, "", 0, 0);
    assert_int_equal(0, have(AMPCLIENT_OUT_KEEP_ALIVE)); /* a pause first */
    tick(AMPCLIENT_BACKOFF_MS);
    assert_int_equal(0, have(AMPCLIENT_OUT_JOIN));
    answer_keep_alive(1, false, "w from 10.0.0.2");
    expect_stopped("w from 10.0.0.2");
}

static void a_pull_that_waits_ends_when_a_keep_alive_hears_that_the_rank_is_taken(void **state)
{
    (void)state;
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    tick(10000);
    answer_keep_alive(1, false, "w from 10.0.0.2");
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_ECANCELLED, "", 0, 0);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, AMP_EABORTED);
    expect_stopped("w from 10.0.0.2");
}

static void a_worker_that_is_asked_to_takes_its_rank_back(void **state)
{
    (void)state;
    ampclient_core_free(core);
    make_with((struct ampclient_core_config){.model = "m", .rank = 1, .world_size = 2, .take_back = true});
    tick(10000);
    answer_keep_alive(1, false, "w from 10.0.0.2");
    answer_join(1, 1, 2);
    begin(1, 1);
    push(1, second);
    fail_call(take(AMPCLIENT_OUT_PUSH).call, AMP_EABORTED, "RANK_TAKEN", 1, 1);
    answer_join(1, 1, 4);
    assert_int_equal(4, take(AMPCLIENT_OUT_PUSH).incarnation.counter);
}

/* A server that has started since does not know of which process the Join of before was. */
static void a_worker_whose_own_join_may_have_taken_its_rank_joins_again(void **state)
{
    (void)state;
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    tick(10000);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_EABORTED, "ROLLED_BACK", 2, 1);
    fail_call(take(AMPCLIENT_OUT_JOIN).call, AMP_EUNAVAILABLE, "", 0, 0); /* its answer was lost */
    answer_keep_alive(2, false, "w from 10.0.0.1");
    tick(AMPCLIENT_BACKOFF_MS);
    answer_join(2, 1, 3);
    answer_pull(2, 1, 0);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
}

/* ---- what it says meanwhile ---- */

static void expect_line(const char *text)
{
    assert_string_equal(text, take(AMPCLIENT_OUT_LOG).u.log.text);
    assert_int_equal(0, have(AMPCLIENT_OUT_LOG));
}

static void a_server_that_is_away_is_said_once_in_five_seconds_and_that_it_is_back(void **state)
{
    (void)state;
    expect_line("m: joined as rank 1 of 2 at step 1 (epoch 1)");
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    uint64_t begun = now_ms;
    while (now_ms - begun < 10000) { /* the first failure is worth no line */
        fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_EUNAVAILABLE, "", 0, 0);
        tick(AMPCLIENT_BACKOFF_MAX_MS);
    }
    assert_string_equal("m: reconnecting: text", take(AMPCLIENT_OUT_LOG).u.log.text);
    expect_line("m: reconnecting: text");
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_EABORTED, "ROLLED_BACK", 2, 1);
    expect_line("m: rank 1 joins again: text");
    answer_join(2, 1, 2);
    expect_line("m: resumed at step 1 (epoch 2), joined again as rank 1");
    answer_pull(2, 1, 0);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
    assert_int_equal(0, have(AMPCLIENT_OUT_LOG));
}

static void a_name_that_had_another_rank_is_said_with_the_rank_that_was_asked_for(void **state)
{
    (void)state;
    ampclient_core_free(core);
    count = 0;
    make_with((struct ampclient_core_config){.model = "m", .worker = "node7", .rank = 0, .world_size = 2});
    expect_line("m: joined as rank 1 of 2 at step 1 (epoch 1), and not as rank 0: its name, node7, had rank 1 before");
}

static void a_rollback_is_said_with_the_step_that_is_next(void **state)
{
    (void)state;
    begin(1, 4);
    count = 0;
    tick(10000);
    answer_keep_alive(2, true, NULL);
    expect_line("m: rank 1 joins again: the model has begun a new epoch");
    answer_join(2, 3, 2);
    expect_line("m: rolled back from step 4 to step 3 (epoch 2), joined again as rank 1");
}

static void a_model_that_is_on_another_number_of_shards_now_ends_the_call_with_a_sentence(void **state)
{
    (void)state;
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    tick(10000);
    answer_keep_alive(2, true, NULL);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_ECANCELLED, "", 0, 0);
    answer_join_on(3, 2, 1, 2);
    struct amp_error told = done(AMPCLIENT_EVENT_STEP_BEGIN, AMP_ESTATE).error;
    assert_string_equal("the model is on 3 shards now, and this process began with 1; start it again", told.text);
}

static void a_step_end_that_a_refused_join_ends_waits_until_no_stream_reads_gradients(void **state)
{
    (void)state;
    static const uint16_t first[100];
    ampclient_core_free(core);
    make_with((struct ampclient_core_config){.model = "m", .rank = 1, .world_size = 2, .shards = 2});
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    for (uint32_t k = 0; k < 2; k++)
        answer_pull(1, 1, 0);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
    push(0, first);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    uint64_t one = take(AMPCLIENT_OUT_PUSH).call, other = take(AMPCLIENT_OUT_PUSH).call;
    fail_call(one, AMP_EABORTED, "ROLLED_BACK", 2, 1);
    fail_call(take(AMPCLIENT_OUT_JOIN).call, AMP_EDENIED, "", 0, 0);
    assert_int_equal(other, take(AMPCLIENT_OUT_CANCEL).call);
    assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE));
    fail_call(other, AMP_ECANCELLED, "", 0, 0);
    (void)done(AMPCLIENT_EVENT_STEP_END, AMP_EDENIED);
}

static void whom_a_step_waits_for_is_said_and_is_in_the_error(void **state)
{
    (void)state;
    count = 0;
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    struct ampclient_ended ended = {.u.keep_alive = {.epoch = 1, .valid = true, .waiting_for = "rank 0 (a)"}};
    for (uint64_t waited = 10; waited <= 40; waited += 10) {
        tick(10000);
        end_with(take(AMPCLIENT_OUT_KEEP_ALIVE).call, ended);
        assert_int_equal(waited == 10 || waited == 40 ? 1 : 0, have(AMPCLIENT_OUT_LOG));
        if (waited == 10)
            expect_line("m: rank 1 has waited 10 s for step 1, as the model waits for rank 0 (a)");
    }
    tick(AMPCLIENT_STEP_TIMEOUT_MS);
    fail_call(take(AMPCLIENT_OUT_PULL).call, AMP_ECANCELLED, "", 0, 0);
    assert_non_null(strstr(done(AMPCLIENT_EVENT_STEP_BEGIN, AMP_EDEADLINE).error.text, "waits for rank 0 (a)"));
}

static void a_short_wait_ends_with_what_the_model_waits_for_too(void **state)
{
    (void)state;
    ampclient_core_free(core);
    make_with((struct ampclient_core_config){
        .model = "m", .worker = "w", .rank = 1, .world_size = 2, .step_timeout_ms = 4000});
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    struct ampclient_output pull = take(AMPCLIENT_OUT_PULL);
    assert_true(pull.deadline_ms > 4000); /* else the call would end first, and know nothing */
    tick(2000);
    end_with(take(AMPCLIENT_OUT_KEEP_ALIVE).call,
             (struct ampclient_ended){.u.keep_alive = {.epoch = 1, .valid = true, .waiting_for = "rank 0 to join"}});
    tick(2000);
    fail_call(pull.call, AMP_ECANCELLED, "", 0, 0);
    assert_non_null(strstr(done(AMPCLIENT_EVENT_STEP_BEGIN, AMP_EDEADLINE).error.text, "waits for rank 0 to join"));
}

static void what_failed_before_is_no_reason_of_a_wait_that_ends(void **state)
{
    (void)state;
    begin(1, 1);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_BEGIN); /* begun again without what was pushed: joins anew */
    fail_call(take(AMPCLIENT_OUT_PUSH).call, AMP_ECANCELLED, "", 0, 0);
    answer_keep_alive(1, true, "");
    answer_join(1, 1, 2);
    uint64_t call = take(AMPCLIENT_OUT_PULL).call;
    tick(AMPCLIENT_STEP_TIMEOUT_MS);
    fail_call(call, AMP_ECANCELLED, "", 0, 0);
    assert_non_null(strstr(done(AMPCLIENT_EVENT_STEP_BEGIN, AMP_EDEADLINE).error.text, "still waiting"));
}

static void a_push_that_waits_beyond_its_deadline_is_no_server_that_fails(void **state)
{
    (void)state;
    begin(1, 1);
    push(1, second);
    for (uint32_t i = 0; i < 4; i++) {
        request(AMPCLIENT_EVENT_STEP_END);
        uint64_t call = take(AMPCLIENT_OUT_PUSH).call;
        count = 0; /* of KeepAlive, which nothing has answered */
        tick(AMPCLIENT_STEP_TIMEOUT_MS);
        assert_non_null(strstr(done(AMPCLIENT_EVENT_STEP_END, AMP_EDEADLINE).error.text, "still waiting"));
        tick(AMPCLIENT_STEP_TIMEOUT_MS);
        fail_call(call, AMP_EDEADLINE, "", 0, 0);
        assert_int_equal(0, have(AMPCLIENT_OUT_LOG));
        end_with(take(AMPCLIENT_OUT_GET_PUSH_STATE).call, (struct ampclient_ended){0});
    }
}

/* ---- how long a lost server is waited for ---- */

/* Of a push that is whole and waits, five times, each time longer than a lost server is waited for. */
static void wait_in_vain(const char *reason)
{
    ampclient_core_free(core);
    make_with((struct ampclient_core_config){
        .model = "m", .rank = 1, .world_size = 2, .step_timeout_ms = 10 * AMPCLIENT_RECONNECT_MS});
    begin(1, 1);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    for (unsigned i = 0; i < 5; i++) {
        uint64_t call = take(AMPCLIENT_OUT_PUSH).call;
        tick(AMPCLIENT_RECONNECT_MS + 30000);
        count = 0;
        fail_call(call, AMP_EUNAVAILABLE, reason, 0, 0);
        assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE));
        tick(AMPCLIENT_BACKOFF_MAX_MS);
        end_with(take(AMPCLIENT_OUT_GET_PUSH_STATE).call, (struct ampclient_ended){0});
    }
    answer_push(take(AMPCLIENT_OUT_PUSH).call, 1, 1);
    assert_int_equal(AMPCLIENT_CORE_APPLIED, done(AMPCLIENT_EVENT_STEP_END, 0).result.verdict);
}

static void a_server_that_waits_for_others_is_not_a_lost_one(void **state)
{
    (void)state;
    wait_in_vain("WAITED_TOO_LONG");
}

static void a_server_that_lived_between_two_failures_is_not_lost_since_the_first(void **state)
{
    (void)state;
    wait_in_vain("");
}

/* A stream of a push fails while the worker computes, for longer than a lost server is waited for. */
static void a_request_waits_for_a_lost_server_as_long_as_if_nothing_had_failed_before_it(void **state)
{
    (void)state;
    ampclient_core_free(core);
    make_with(
        (struct ampclient_core_config){.model = "m", .rank = 1, .world_size = 2, .reconnect_timeout_ms = RECONNECT_MS});
    begin(1, 1);
    push(1, second);
    fail_call(take(AMPCLIENT_OUT_PUSH).call, AMP_EUNAVAILABLE, "", 0, 0);
    for (uint64_t begun = now_ms; now_ms - begun < 2 * RECONNECT_MS;) {
        tick(AMPCLIENT_BACKOFF_MAX_MS);
        fail_call(take(AMPCLIENT_OUT_GET_PUSH_STATE).call, AMP_EUNAVAILABLE, "", 0, 0);
    }
    request(AMPCLIENT_EVENT_STEP_END);
    for (uint64_t begun = now_ms; now_ms - begun <= RECONNECT_MS;) { /* it counts from the first failure on */
        assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE));
        tick(AMPCLIENT_BACKOFF_MAX_MS);
        fail_call(take(AMPCLIENT_OUT_GET_PUSH_STATE).call, AMP_EUNAVAILABLE, "", 0, 0);
    }
    (void)done(AMPCLIENT_EVENT_STEP_END, AMP_EUNAVAILABLE);
    while (have(AMPCLIENT_OUT_LOG) > 0)
        assert_null(strstr(take(AMPCLIENT_OUT_LOG).u.log.text, "connected again"));
}

/* A step's time is shorter than that for which a lost server is waited for: the one after it goes on waiting. */
static void requests_that_each_end_in_vain_wait_for_a_lost_server_together(void **state)
{
    (void)state;
    ampclient_core_free(core);
    make_with((struct ampclient_core_config){.model = "m",
                                             .rank = 1,
                                             .world_size = 2,
                                             .step_timeout_ms = RECONNECT_MS / 2,
                                             .reconnect_timeout_ms = RECONNECT_MS});
    begin(1, 1);
    push(1, second);
    fail_call(take(AMPCLIENT_OUT_PUSH).call, AMP_EUNAVAILABLE, "", 0, 0);
    unsigned in_vain = 0;
    struct ampclient_user_done ended = {0};
    for (; in_vain < 10 && ended.code != AMP_EUNAVAILABLE; in_vain += ended.code == AMP_EDEADLINE) {
        request(AMPCLIENT_EVENT_STEP_END);
        while (have(AMPCLIENT_OUT_USER_DONE) == 0) {
            tick(AMPCLIENT_BACKOFF_MAX_MS);
            if (have(AMPCLIENT_OUT_GET_PUSH_STATE) > 0)
                fail_call(take(AMPCLIENT_OUT_GET_PUSH_STATE).call, AMP_EUNAVAILABLE, "", 0, 0);
        }
        ended = take(AMPCLIENT_OUT_USER_DONE).u.done;
    }
    assert_int_equal(ended.code, AMP_EUNAVAILABLE);
    assert_in_range(in_vain, 1, 3);
}

/* ---- leave ---- */

/* Else the incarnation before would leave, in vain, and the rank would be missed for a lease. */
static void who_leaves_while_he_joins_again_leaves_as_the_one_that_joined(void **state)
{
    (void)state;
    for (unsigned fails = 0; fails < 2; fails++) {
        (void)teardown(state);
        make(1);
        tick(10000);
        answer_keep_alive(1, false, NULL); /* the server has lost the worker */
        request(AMPCLIENT_EVENT_LEAVE);
        assert_int_equal(0, have(AMPCLIENT_OUT_LEAVE));
        if (fails != 0)
            fail_call(take(AMPCLIENT_OUT_JOIN).call, AMP_EUNAVAILABLE, "", 0, 0);
        else
            answer_join(1, 1, 2);
        assert_int_equal(fails != 0 ? 1 : 2, ampclient_core_incarnation(core).counter);
        assert_int_equal(0, have(AMPCLIENT_OUT_JOIN));
        end_with(take(AMPCLIENT_OUT_LEAVE).call, (struct ampclient_ended){0});
        (void)done(AMPCLIENT_EVENT_LEAVE, 0);
    }
}

/* Else the rank is missed for a lease, and a program that has ended well ends with an error. */
static void a_leave_that_comes_while_a_shard_is_away_is_sent_again(void **state)
{
    (void)state;
    request(AMPCLIENT_EVENT_LEAVE);
    fail_call(take(AMPCLIENT_OUT_LEAVE).call, AMP_EUNAVAILABLE, "RECOVERING", 0, 0);
    assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE) + have(AMPCLIENT_OUT_LEAVE)); /* a pause first */
    tick(AMPCLIENT_BACKOFF_MS);
    end_with(take(AMPCLIENT_OUT_LEAVE).call, (struct ampclient_ended){0});
    (void)done(AMPCLIENT_EVENT_LEAVE, 0);
}

static void a_leave_waits_no_longer_than_a_call_and_for_no_server_that_is_gone(void **state)
{
    (void)state;
    request(AMPCLIENT_EVENT_LEAVE);
    fail_call(take(AMPCLIENT_OUT_LEAVE).call, AMP_EUNAVAILABLE, "RECOVERING", 0, 0);
    tick(AMPCLIENT_CALL_TIMEOUT_MS);
    (void)done(AMPCLIENT_EVENT_LEAVE, AMP_EDEADLINE);
    (void)teardown(state);
    make(1);
    request(AMPCLIENT_EVENT_LEAVE);
    fail_call(take(AMPCLIENT_OUT_LEAVE).call, AMP_EUNAVAILABLE, "", 0, 0);
    (void)done(AMPCLIENT_EVENT_LEAVE, AMP_EUNAVAILABLE);
}

/* ---- what is in the user's hands after a failure ---- */

static void parameters_that_a_pull_has_half_written_are_not_given(void **state)
{
    (void)state;
    uint64_t elements;
    begin(1, 1);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    answer_push(take(AMPCLIENT_OUT_PUSH).call, 1, 1);
    (void)done(AMPCLIENT_EVENT_STEP_END, 0);
    assert_non_null(ampclient_core_parameter(core, 0, &elements));
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PULL_HEADER, .call = take(AMPCLIENT_OUT_PULL).call};
    event.u.header = (struct ampclient_pull_header){1, 2, 1, 5, 1024, NULL};
    send(&event);
    request(AMPCLIENT_EVENT_INTERRUPT);
    fail_call(event.call, AMP_ECANCELLED, "", 0, 0);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, AMP_ECANCELLED);
    assert_null(ampclient_core_parameter(core, 0, &elements));
    begin(1, 2);
    assert_non_null(ampclient_core_parameter(core, 0, &elements));
}

/* The shards would tell the new incarnation LATE, and who trains late samples again would have them twice. */
static void a_verdict_that_one_shard_has_told_stays_when_the_worker_joins_again(void **state)
{
    (void)teardown(state);
    make_with((struct ampclient_core_config){.model = "m", .rank = 1, .world_size = -1, .shards = 2});
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    for (uint32_t k = 0; k < 2; k++)
        answer_pull(1, 1, 0);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    uint64_t one = take(AMPCLIENT_OUT_PUSH).call, other = take(AMPCLIENT_OUT_PUSH).call;
    answer_push(one, 1, 1);
    tick(10000);
    answer_keep_alive(1, false, NULL);
    fail_call(other, AMP_ECANCELLED, "", 0, 0);
    answer_join(1, 2, 2);
    assert_int_equal(AMPCLIENT_CORE_APPLIED, done(AMPCLIENT_EVENT_STEP_END, 0).result.verdict);
}

int main(void)
{
#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_join_whose_every_try_fails_has_found_no_server),
        TEST(a_join_that_nobody_answers_ends_at_its_deadline),
        TEST(a_worker_whose_rank_is_taken_stops_with_the_servers_sentence),
        TEST(a_fenced_worker_asks_whether_its_rank_is_taken_before_it_joins_again),
        TEST(a_pull_that_waits_ends_when_a_keep_alive_hears_that_the_rank_is_taken),
        TEST(a_worker_that_is_asked_to_takes_its_rank_back),
        TEST(a_worker_whose_own_join_may_have_taken_its_rank_joins_again),
        TEST(a_server_that_is_away_is_said_once_in_five_seconds_and_that_it_is_back),
        TEST(a_name_that_had_another_rank_is_said_with_the_rank_that_was_asked_for),
        TEST(a_rollback_is_said_with_the_step_that_is_next),
        TEST(a_model_that_is_on_another_number_of_shards_now_ends_the_call_with_a_sentence),
        TEST(a_step_end_that_a_refused_join_ends_waits_until_no_stream_reads_gradients),
        TEST(whom_a_step_waits_for_is_said_and_is_in_the_error),
        TEST(a_short_wait_ends_with_what_the_model_waits_for_too),
        TEST(what_failed_before_is_no_reason_of_a_wait_that_ends),
        TEST(a_push_that_waits_beyond_its_deadline_is_no_server_that_fails),
        TEST(a_server_that_waits_for_others_is_not_a_lost_one),
        TEST(a_server_that_lived_between_two_failures_is_not_lost_since_the_first),
        TEST(a_request_waits_for_a_lost_server_as_long_as_if_nothing_had_failed_before_it),
        TEST(requests_that_each_end_in_vain_wait_for_a_lost_server_together),
        TEST(who_leaves_while_he_joins_again_leaves_as_the_one_that_joined),
        TEST(a_leave_that_comes_while_a_shard_is_away_is_sent_again),
        TEST(a_leave_waits_no_longer_than_a_call_and_for_no_server_that_is_gone),
        TEST(parameters_that_a_pull_has_half_written_are_not_given),
        TEST(a_verdict_that_one_shard_has_told_stays_when_the_worker_joins_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
