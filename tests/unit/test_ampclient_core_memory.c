/*
 * Where the parameters lie that the worker's machine pulls: in the user's memory, or in the server's copies, which the
 * host has mapped; and pulls that begin with the verdict of the step before, ahead of the user's request.
 */
#include "client/core/client_memory.h"
#include "tests/unit/client_core_fixture.h"

/* Where version v lies in shared memory: shared_copies[v % 2]. */
static const uint8_t shared_copies[2][4096];

/* Answers the oldest pull, of `step`, with its header and the first `blocks` blocks, and does not end it. */
static struct ampclient_output answer_in_memory(uint64_t step, uint64_t version, uint64_t blocks, const uint8_t *place)
{
    struct ampclient_output pull = take(AMPCLIENT_OUT_PULL);
    assert_true(pull.u.pull.in_memory);
    assert_null(pull.u.pull.memory);
    assert_int_equal(step, pull.u.pull.number);
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PULL_HEADER, .call = pull.call};
    event.u.header = (struct ampclient_pull_header){1, step, version, 5, 1024, place};
    send(&event);
    for (uint64_t b = 0; b < blocks; b++) {
        event = (struct ampclient_event){.type = AMPCLIENT_EVENT_PULL_BLOCK, .call = pull.call, .u.block = b};
        send(&event);
    }
    return pull;
}

/* A step is begun, and its pull brings all of the version. */
static void pull_in_memory(uint64_t step, uint64_t version, const uint8_t *place)
{
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    end_with(answer_in_memory(step, version, 3, place).call, (struct ampclient_ended){0});
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
}

/* Step 1 with shared memory, to its verdict. */
static void first_step_in_memory(bool may_pull_ahead)
{
    ampclient_core_set_in_memory(core, true, may_pull_ahead);
    pull_in_memory(1, 0, shared_copies[0]);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    answer_push(take(AMPCLIENT_OUT_PUSH).call, 1, 1);
    (void)done(AMPCLIENT_EVENT_STEP_END, 0);
}

static void the_users_memory_is_pulled_into(void **state)
{
    (void)state;
    static _Alignas(AMPCLIENT_MEMORY_ALIGN) uint8_t memory[4096];
    struct amp_error error = {0};
    size_t size = ampclient_core_memory_size(core);
    assert_true(size > 0 && size <= sizeof memory);
    assert_int_equal(AMP_EINVAL, ampclient_core_use_memory(core, memory, size - 1, &error));
    assert_int_equal(AMP_EINVAL, ampclient_core_use_memory(core, memory + 2, size, &error));
    assert_int_equal(AMP_EINVAL, ampclient_core_use_memory(core, NULL, size, &error));
    assert_int_equal(0, ampclient_core_use_memory(core, memory, size, &error));
    assert_int_equal(AMP_ESTATE, ampclient_core_use_memory(core, memory, size, &error));
    memset(memory, 0xaa, sizeof memory);
    begin(1, 1);
    assert_int_equal(0, memory[0]); /* the fixture's bytes of version 0 */
    uint64_t elements;
    assert_ptr_equal(memory, ampclient_core_parameter(core, 0, &elements));
}

static void parameters_lie_in_the_copy_of_their_version_while_memory_is_shared(void **state)
{
    (void)state;
    static const uint8_t copies[2][4096];
    uint64_t elements;
    ampclient_core_set_in_memory(core, true, false);
    pull_in_memory(1, 0, copies[0]);
    assert_ptr_equal(copies[0], ampclient_core_parameter(core, 0, &elements));
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    answer_push(take(AMPCLIENT_OUT_PUSH).call, 1, 1);
    (void)done(AMPCLIENT_EVENT_STEP_END, 0);
    pull_in_memory(2, 1, copies[1]);
    assert_ptr_equal(copies[1], ampclient_core_parameter(core, 0, &elements));
    /* The server has gone: the step goes on with what lies there, and the next pull brings all bytes. */
    ampclient_core_leave_memory(core);
    assert_ptr_equal(copies[1], ampclient_core_parameter(core, 0, &elements));
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    for (unsigned i = 0; i < count; i++)
        if (outputs[i].type == AMPCLIENT_OUT_PULL) {
            assert_false(outputs[i].u.pull.in_memory);
            assert_int_equal(0, outputs[i].u.pull.have_version);
            assert_non_null(outputs[i].u.pull.memory);
        }
    answer_pull(1, 2, 1);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
    const uint8_t *own = ampclient_core_parameter(core, 0, &elements);
    assert_true(own != copies[0] && own != copies[1] && own[0] == 1);
    /* Values in memory that is about to be unmapped are nobody's any more. */
    ampclient_core_set_in_memory(core, true, false);
    assert_ptr_equal(own, ampclient_core_parameter(core, 0, &elements));
}

/* In a quorum the others go on meanwhile, and write over the copy that the step before was computed on. */
static void who_only_looks_on_gets_bytes_of_the_version_that_he_has_in_the_copy(void **state)
{
    (void)state;
    uint64_t elements;
    ampclient_core_set_in_memory(core, true, false);
    pull_in_memory(1, 0, shared_copies[0]);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    answer_push(take(AMPCLIENT_OUT_PUSH).call, 1, 1); /* say it was skipped: version 0 is the newest still */
    (void)done(AMPCLIENT_EVENT_STEP_END, 0);
    request(AMPCLIENT_EVENT_PULL_LATEST);
    for (unsigned i = 0; i < count; i++)
        if (outputs[i].type == AMPCLIENT_OUT_PULL) {
            assert_false(outputs[i].u.pull.in_memory);
            assert_int_equal(0, outputs[i].u.pull.have_epoch);
            assert_non_null(outputs[i].u.pull.memory);
        }
    answer_pull(1, 2, 0);
    (void)done(AMPCLIENT_EVENT_PULL_LATEST, 0);
    const uint8_t *own = ampclient_core_parameter(core, 0, &elements);
    assert_true(own != shared_copies[0] && own != shared_copies[1]);
}

static void with_shared_memory_the_next_pull_begins_with_the_verdict(void **state)
{
    (void)state;
    uint64_t elements;
    first_step_in_memory(true);
    end_with(answer_in_memory(2, 1, 3, shared_copies[1]).call, (struct ampclient_ended){0});
    assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE));
    assert_ptr_equal(shared_copies[0], ampclient_core_parameter(core, 0, &elements)); /* until the step is begun */
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    assert_int_equal(2, done(AMPCLIENT_EVENT_STEP_BEGIN, 0).step.step);
    assert_int_equal(0, have(AMPCLIENT_OUT_PULL));
    assert_ptr_equal(shared_copies[1], ampclient_core_parameter(core, 0, &elements));
}

static void a_step_that_is_begun_waits_for_what_was_asked_ahead(void **state)
{
    (void)state;
    first_step_in_memory(true);
    struct ampclient_output pull = answer_in_memory(2, 1, 2, shared_copies[1]);
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    assert_int_equal(0, have(AMPCLIENT_OUT_PULL));
    assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE));
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PULL_BLOCK, .call = pull.call, .u.block = 2};
    send(&event);
    end_with(pull.call, (struct ampclient_ended){0});
    assert_int_equal(1, done(AMPCLIENT_EVENT_STEP_BEGIN, 0).step.version);
}

static void a_pull_ahead_that_fails_is_forgotten(void **state)
{
    (void)state;
    static const struct ampclient_ended failures[] = {
        {.code = AMP_EUNAVAILABLE, .reason = "", .text = "gone"},
        {.code = AMP_EABORTED, .reason = "FENCED", .text = "another"},
        {.code = AMP_ESTATE, .reason = "MODEL_DONE", .text = "done"},
        {.code = AMP_EDEADLINE, .reason = "", .text = "late"},
    };
    first_step_in_memory(true);
    for (uint64_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        end_with(answer_in_memory(2 + i, 1 + i, 1, shared_copies[(1 + i) % 2]).call, failures[i]);
        assert_int_equal(0, have(AMPCLIENT_OUT_JOIN) + have(AMPCLIENT_OUT_USER_DONE) + have(AMPCLIENT_OUT_PULL));
        pull_in_memory(2 + i, 1 + i, shared_copies[(1 + i) % 2]);
        push(1, second);
        request(AMPCLIENT_EVENT_STEP_END);
        answer_push(take(AMPCLIENT_OUT_PUSH).call, 1, 2 + i);
        (void)done(AMPCLIENT_EVENT_STEP_END, 0);
    }
}

static void a_pull_ahead_is_cancelled_by_whatever_else_comes(void **state)
{
    (void)state;
    uint64_t elements;
    first_step_in_memory(true);
    uint64_t call = answer_in_memory(2, 1, 3, shared_copies[1]).call;
    ampclient_core_set_in_memory(core, true, true); /* other memory */
    assert_null(ampclient_core_parameter(core, 0, &elements));
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    assert_int_equal(call, take(AMPCLIENT_OUT_CANCEL).call);
    assert_int_equal(0, have(AMPCLIENT_OUT_PULL));
    fail_call(call, AMP_ECANCELLED, "", 0, 0);
    struct ampclient_output pull = answer_in_memory(2, 1, 3, shared_copies[1]);
    end_with(pull.call, (struct ampclient_ended){0});
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
    push(1, second);
    request(AMPCLIENT_EVENT_STEP_END);
    answer_push(take(AMPCLIENT_OUT_PUSH).call, 1, 2);
    (void)done(AMPCLIENT_EVENT_STEP_END, 0);
    call = answer_in_memory(3, 2, 1, shared_copies[0]).call;
    request(AMPCLIENT_EVENT_PULL_LATEST);
    assert_int_equal(call, take(AMPCLIENT_OUT_CANCEL).call);
    fail_call(call, AMP_ECANCELLED, "", 0, 0);
    answer_pull(1, 3, 2);
    (void)done(AMPCLIENT_EVENT_PULL_LATEST, 0);
}

static void a_model_that_goes_on_without_its_workers_is_not_pulled_ahead(void **state)
{
    (void)state;
    first_step_in_memory(false);
    assert_int_equal(0, have(AMPCLIENT_OUT_PULL));
}

/* What lies in the copies is not what was given: the step would be computed on whatever lies there. */
static void memory_that_comes_after_a_step_in_shared_memory_is_refused(void **state)
{
    (void)state;
    static _Alignas(AMPCLIENT_MEMORY_ALIGN) uint8_t given[8192];
    struct amp_error error = {0};
    uint64_t elements;
    first_step_in_memory(true);
    end_with(answer_in_memory(2, 1, 3, shared_copies[1]).call, (struct ampclient_ended){0});
    assert_int_equal(AMP_ESTATE, ampclient_core_use_memory(core, given, sizeof given, &error));
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
    assert_ptr_equal(shared_copies[1], ampclient_core_parameter(core, 0, &elements));
}

/* Epoch 2 begins at step 1 again, while version 1 of epoch 1 has been pulled ahead. */
static void what_was_pulled_ahead_goes_with_its_epoch(void **state)
{
    (void)state;
    uint64_t elements;
    first_step_in_memory(true);
    end_with(answer_in_memory(2, 1, 3, shared_copies[1]).call, (struct ampclient_ended){0});
    tick(10000);
    answer_keep_alive(2, true, "");
    answer_join(2, 1, 2);
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    struct ampclient_output pull = take(AMPCLIENT_OUT_PULL);
    assert_int_equal(2, pull.u.pull.epoch);
    assert_int_equal(1, pull.u.pull.number);
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PULL_HEADER, .call = pull.call};
    event.u.header = (struct ampclient_pull_header){2, 1, 0, 5, 1024, shared_copies[0]};
    send(&event);
    for (uint64_t b = 0; b < 3; b++) {
        event = (struct ampclient_event){.type = AMPCLIENT_EVENT_PULL_BLOCK, .call = pull.call, .u.block = b};
        send(&event);
    }
    end_with(pull.call, (struct ampclient_ended){0});
    struct ampclient_user_done begun = done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
    assert_int_equal(1, begun.step.step);
    assert_true(begun.step.rolled_back);
    assert_ptr_equal(shared_copies[0], ampclient_core_parameter(core, 0, &elements));
}

static void what_was_pulled_ahead_goes_with_its_rank(void **state)
{
    (void)state;
    first_step_in_memory(true);
    uint64_t call = answer_in_memory(2, 1, 1, shared_copies[1]).call;
    tick(10000);
    answer_keep_alive(1, false, "taken by another");
    assert_int_equal(call, take(AMPCLIENT_OUT_CANCEL).call);
    fail_call(call, AMP_ECANCELLED, "", 0, 0);
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, AMP_EABORTED);
    assert_int_equal(0, have(AMPCLIENT_OUT_PULL));
}

/* One shard's pull ahead is done, the other's fails, or is at another step: both are made anew, together. */
static void what_was_pulled_ahead_of_one_shard_goes_with_that_of_the_other(void **state)
{
    (void)state;
    ampclient_core_free(core);
    make_with((struct ampclient_core_config){.model = "m", .rank = 1, .world_size = 2, .shards = 2});
    for (unsigned round = 0; round < 2; round++) {
        if (round == 0) {
            ampclient_core_set_in_memory(core, true, true);
            request(AMPCLIENT_EVENT_STEP_BEGIN);
            end_with(answer_in_memory(1, 0, 2, shared_copies[0]).call, (struct ampclient_ended){0});
            struct ampclient_output other = answer_in_memory(1, 0, 3, shared_copies[0]);
            end_with(other.call, (struct ampclient_ended){0});
            (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
        }
        push(1, second);
        request(AMPCLIENT_EVENT_STEP_END);
        for (unsigned k = 0; k < 2; k++)
            answer_push(take(AMPCLIENT_OUT_PUSH).call, 1, 1 + round);
        (void)done(AMPCLIENT_EVENT_STEP_END, 0);
        end_with(answer_in_memory(2 + round, 1 + round, 2, shared_copies[1]).call, (struct ampclient_ended){0});
        struct ampclient_output other = take(AMPCLIENT_OUT_PULL);
        if (round == 0) {
            fail_call(other.call, AMP_EUNAVAILABLE, "", 0, 0);
        } else {
            struct ampclient_event event = {.type = AMPCLIENT_EVENT_PULL_HEADER, .call = other.call};
            event.u.header = (struct ampclient_pull_header){1, 4, 3, 6, 1024, shared_copies[0]};
            send(&event);
            assert_int_equal(other.call, take(AMPCLIENT_OUT_CANCEL).call);
            fail_call(other.call, AMP_ECANCELLED, "", 0, 0);
        }
        request(AMPCLIENT_EVENT_STEP_BEGIN);
        assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE));
        end_with(answer_in_memory(2 + round, 1 + round, 2, shared_copies[1]).call, (struct ampclient_ended){0});
        end_with(answer_in_memory(2 + round, 1 + round, 3, shared_copies[1]).call, (struct ampclient_ended){0});
        assert_int_equal(2 + round, done(AMPCLIENT_EVENT_STEP_BEGIN, 0).step.step);
    }
}

static void a_leave_waits_for_the_end_of_what_was_pulled_ahead(void **state)
{
    (void)state;
    first_step_in_memory(true);
    uint64_t call = answer_in_memory(2, 1, 1, shared_copies[1]).call;
    request(AMPCLIENT_EVENT_LEAVE);
    assert_int_equal(call, take(AMPCLIENT_OUT_CANCEL).call);
    end_with(take(AMPCLIENT_OUT_LEAVE).call, (struct ampclient_ended){0});
    assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE));
    fail_call(call, AMP_ECANCELLED, "", 0, 0);
    (void)done(AMPCLIENT_EVENT_LEAVE, 0);
}

/* The pull's own deadline counts from the verdict; the step's from step_begin. */
static void a_pull_ahead_that_ends_late_is_made_again_for_the_step_that_waits(void **state)
{
    (void)state;
    first_step_in_memory(true);
    struct ampclient_output pull = take(AMPCLIENT_OUT_PULL);
    tick(AMPCLIENT_STEP_TIMEOUT_MS - 1);
    fail_call(take(AMPCLIENT_OUT_KEEP_ALIVE).call, AMP_EUNAVAILABLE, "", 0, 0);
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    fail_call(pull.call, AMP_EDEADLINE, "", 0, 0);
    assert_int_equal(0, have(AMPCLIENT_OUT_USER_DONE) + have(AMPCLIENT_OUT_PULL));
    tick(AMPCLIENT_BACKOFF_MS);
    end_with(answer_in_memory(2, 1, 3, shared_copies[1]).call, (struct ampclient_ended){0});
    assert_int_equal(2, done(AMPCLIENT_EVENT_STEP_BEGIN, 0).step.step);
}

static void memory_that_comes_after_the_first_pull_is_refused(void **state)
{
    (void)state;
    static _Alignas(AMPCLIENT_MEMORY_ALIGN) uint8_t memory[4096];
    struct amp_error error = {0};
    begin(1, 1);
    assert_int_equal(AMP_ESTATE, ampclient_core_use_memory(core, memory, sizeof memory, &error));
}

/* Else a device that has them mapped would wait for a copy. What comes as bytes goes where the user has said. */
static void parameters_that_stay_shared_are_not_copied_to_memory_of_the_user(void **state)
{
    (void)state;
    static _Alignas(AMPCLIENT_MEMORY_ALIGN) uint8_t memory[4096];
    struct amp_error error = {0};
    uint64_t elements;
    ampclient_core_free(core);
    make_with(
        (struct ampclient_core_config){.model = "m", .worker = "w", .rank = 1, .world_size = 2, .stays_shared = true});
    assert_int_equal(0, ampclient_core_use_memory(core, memory, sizeof memory, &error));
    first_step_in_memory(true);
    assert_ptr_equal(shared_copies[0], ampclient_core_parameter(core, 0, &elements));
    end_with(answer_in_memory(2, 1, 3, shared_copies[1]).call, (struct ampclient_ended){0}); /* asked ahead */
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
    assert_ptr_equal(shared_copies[1], ampclient_core_parameter(core, 0, &elements));
    ampclient_core_leave_memory(core);
    memset(memory, 0xaa, sizeof memory);
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    answer_pull(1, 2, 1);
    (void)done(AMPCLIENT_EVENT_STEP_BEGIN, 0);
    assert_ptr_equal(memory, ampclient_core_parameter(core, 0, &elements));
    assert_int_equal(1, memory[0]); /* the fixture's bytes of version 1 */
    /* Where the model goes on without this worker, others may write over the copy. */
    ampclient_core_set_in_memory(core, true, false);
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    struct ampclient_output pull = take(AMPCLIENT_OUT_PULL);
    assert_true(pull.u.pull.in_memory);
    assert_ptr_equal(memory, pull.u.pull.memory);
}

static void tell_newest(uint64_t call, uint64_t step, uint64_t version, uint64_t scale_id)
{
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PULL_HEADER, .call = call};
    event.u.header = (struct ampclient_pull_header){1, step, version, scale_id, 1024, NULL};
    send(&event);
}

/* In a quorum, while two shards are asked; then both have the same version, but one has skipped a step meanwhile. */
static void the_newest_version_is_asked_for_again_at_once_where_shards_were_at_two(void **state)
{
    (void)state;
    uint64_t calls[2];
    ampclient_core_free(core);
    make_with((struct ampclient_core_config){.model = "m", .rank = 1, .world_size = 2, .shards = 2});
    request(AMPCLIENT_EVENT_PULL_LATEST);
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned k = 0; k < 2; k++)
            calls[k] = take(AMPCLIENT_OUT_PULL).call;
        tell_newest(calls[0], 5 + round, 4 + round, 5);
        tell_newest(calls[1], 6 + round, round < 2 ? 5 + round : 4 + round, 6);
        for (unsigned k = 0; round < 2 && k < 2; k++)
            fail_call(take(AMPCLIENT_OUT_CANCEL).call, AMP_ECANCELLED, "", 0, 0);
    }
    for (uint64_t b = 0; b < 3; b++) {
        struct ampclient_event event = {
            .type = AMPCLIENT_EVENT_PULL_BLOCK, .call = calls[b == 0 ? 0 : 1], .u.block = b};
        send(&event);
    }
    for (unsigned k = 0; k < 2; k++)
        end_with(calls[k], (struct ampclient_ended){0});
    assert_int_equal(6, done(AMPCLIENT_EVENT_PULL_LATEST, 0).step.version);
}

int main(void)
{
#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(the_users_memory_is_pulled_into),
        TEST(parameters_lie_in_the_copy_of_their_version_while_memory_is_shared),
        TEST(who_only_looks_on_gets_bytes_of_the_version_that_he_has_in_the_copy),
        TEST(with_shared_memory_the_next_pull_begins_with_the_verdict),
        TEST(a_step_that_is_begun_waits_for_what_was_asked_ahead),
        TEST(a_pull_ahead_that_fails_is_forgotten),
        TEST(a_pull_ahead_is_cancelled_by_whatever_else_comes),
        TEST(a_model_that_goes_on_without_its_workers_is_not_pulled_ahead),
        TEST(memory_that_comes_after_a_step_in_shared_memory_is_refused),
        TEST(what_was_pulled_ahead_goes_with_its_epoch),
        TEST(what_was_pulled_ahead_goes_with_its_rank),
        TEST(what_was_pulled_ahead_of_one_shard_goes_with_that_of_the_other),
        TEST(a_leave_waits_for_the_end_of_what_was_pulled_ahead),
        TEST(a_pull_ahead_that_ends_late_is_made_again_for_the_step_that_waits),
        TEST(memory_that_comes_after_the_first_pull_is_refused),
        TEST(the_newest_version_is_asked_for_again_at_once_where_shards_were_at_two),
        TEST(parameters_that_stay_shared_are_not_copied_to_memory_of_the_user),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
