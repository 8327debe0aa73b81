/* Load on two shards: one loader in an epoch, and another epoch where it breaks off. */
#include "tests/unit/core_pair.h"
#include "server/core/base/calls.h"
#include "server/core/coordinator/coord.h"
#include "server/core/base/limits.h"
#include "server/core/shard/shard.h"
#include "tests/whole_spec.h"

#include <stdio.h>
#include <string.h>

static void create(void)
{
    (void)pair_teardown(NULL);
    pair_now_ms = 1000;
    for (unsigned k = 0; k < 2; k++)
        pair_start(k, 1);
    for (unsigned k = 0; k < 2; k++)
        pair_send_start(k);
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    struct ampd_event event = {.type = AMPD_EVENT_CREATE_MODEL, .u.create = {.spec = whole_spec(&spec)}};
    assert_int_equal(0, pair_call(0, &event)->reply.error.code);
}

/* Shard 1 has all values of loader 7, shard 0 lacks them. */
static void load_half(void)
{
    create();
    pair_load(1);
    pair_settle();
}

static struct core_call *pull_latest(unsigned shard, uint64_t epoch)
{
    struct ampd_event event = {.type = AMPD_EVENT_PULL};
    event.u.pull = (struct ampd_event_pull){.model = "model", .by = AMPD_PULL_LATEST, .epoch = epoch};
    return pair_call(shard, &event);
}

/* Whoever has pulled the first values of before must not take those of the next loader for the same state. */
static void values_of_a_load_that_broke_off_are_of_an_epoch_that_is_over(void **state)
{
    (void)state;
    load_half();
    (void)pull_latest(1, 1);
    uint64_t pull = pair_calls_count;
    const struct ampd_call *streams = ampd_call_find(pair_core[1], pull);
    assert_true(streams != NULL && streams->state == AMPD_CALL_STREAMING);
    struct ampd_event begin = {.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "model", .loader = 7}};
    assert_true(pair_call(0, &begin)->granted);
    struct ampd_event over[] = {{.type = AMPD_EVENT_CALL_CLOSED, .call = begin.call},
                                {.type = AMPD_EVENT_CALL_CLOSED, .call = pull}};
    struct ampd_message *loaded = pair_message(AMPD_MESSAGE_LOADED, 1, 0); /* of before, on its way for long */
    pair_step(0, &over[0]);
    pair_step(1, &over[1]);
    pair_settle();
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(2, pair_model(k)->shard->epoch);
        assert_int_equal(AMPD_MEMORY_EMPTY, pair_model(k)->shard->memory);
    }
    assert_string_equal("LOAD_BROKEN", pair_model(0)->coord->reason);
    pair_send_take(loaded);
    assert_int_equal(0, pair_model(0)->coord->load.done_bits);
    for (unsigned k = 0; k < 2; k++) /* the same one may, too */
        pair_load(k);
    pair_settle();
    assert_int_equal(AMPD_COORD_WAITING, pair_model(0)->coord->state);
}

static void want(uint64_t loader)
{
    struct ampd_message *message = pair_message(AMPD_MESSAGE_LOAD_WANT, 1, 0);
    message->u.want = (struct ampd_load_want){loader, ampd_load_base_first(&pair_core[1]->models[0]->spec)};
    pair_send_take(message);
}

static void a_grant_that_nobody_wants_any_more_ends_with_its_epoch(void **state)
{
    (void)state;
    load_half();
    want(9);
    assert_int_equal(7, pair_model(0)->coord->load.loader);
    pair_now_ms += AMPD_LEASE_MS;
    want(9);
    assert_int_equal(2, pair_model(0)->coord->epoch);
    assert_string_equal("LOAD_ENDED", pair_model(0)->coord->reason);
    want(9);
    assert_int_equal(9, pair_model(1)->shard->load.granted);
}

static void a_load_that_broke_off_is_told_again_in_a_new_session(void **state)
{
    (void)state;
    create();
    struct ampd_event begin = {.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "model", .loader = 7}};
    assert_true(pair_call(1, &begin)->granted);
    struct ampd_event over = {.type = AMPD_EVENT_CALL_CLOSED, .call = begin.call};
    pair_hold_messages = true;
    pair_step(1, &over);
    pair_forget_messages();
    pair_hold_messages = false;
    struct ampd_message *gone = pair_message(AMPD_MESSAGE_LOAD_GONE, 1, 0);
    gone->epoch--; /* of a load that is over for long */
    pair_send_take(gone);
    assert_int_equal(1, pair_model(0)->coord->epoch);
    struct ampd_event up = {.type = AMPD_EVENT_PEER_UP, .u.shard = 0};
    pair_step(1, &up);
    pair_settle();
    assert_int_equal(2, pair_model(0)->coord->epoch);
}

static void a_load_has_one_number_on_all_shards_and_ends_on_all(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    (void)snprintf(spec.name, sizeof(spec.name), "second");
    struct ampd_event event = {.type = AMPD_EVENT_CREATE_MODEL, .u.create = {.spec = whole_spec(&spec)}};
    assert_string_equal("NOT_COORDINATOR", pair_call(1, &event)->reply.error.reason);
    assert_int_equal(0, pair_call(0, &event)->reply.error.code);
    event = (struct ampd_event){.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "second", .loader = 0}};
    struct amp_error refused = pair_call(1, &event)->reply.error;
    assert_string_equal("LOADER", refused.reason);
    assert_memory_equal("load: ", refused.text, strlen("load: ")); /* the field, which goes to the BadRequest */
    event.u.load.loader = 7;
    const struct core_call *here = pair_call(0, &event);
    const struct core_call *there = pair_call(1, &event);
    uint64_t broken = event.call;
    event.u.load.loader = 8;
    const struct core_call *waits = pair_call(0, &event);
    assert_true(here->granted && there->granted && !waits->granted);
    uint64_t first = pair_calls_count - 2;
    struct ampd_event closed = {.type = AMPD_EVENT_CALL_CLOSED, .call = broken};
    pair_step(1, &closed);
    pair_settle();
    struct ampd_event let_go = {.type = AMPD_EVENT_REVOKED, .call = first};
    pair_step(0, &let_go);
    pair_settle();
    assert_string_equal("RECOVERING", here->reply.error.reason);
    assert_true(waits->granted);  /* who has sent nothing yet goes on waiting */
    pair_now_ms += AMPD_LEASE_MS; /* nobody has loaded on shard 1: the grant is kept while its loader is there */
    struct ampd_event tick = {.type = AMPD_EVENT_TICK};
    pair_step(0, &tick);
    pair_settle();
    assert_false(waits->answered);
}

static void pass(uint64_t ms)
{
    for (uint64_t end = pair_now_ms + ms; pair_now_ms < end;) { /* both are looked at as often as they ask for */
        pair_now_ms += AMPD_SWEEP_MS;
        for (unsigned k = 0; k < 2; k++) {
            struct ampd_event tick = {.type = AMPD_EVENT_TICK};
            pair_step(k, &tick);
        }
        pair_settle();
    }
}

static void load_one_block(unsigned shard, uint64_t call)
{
    uint64_t first = pair_model(shard)->tensors.first; /* its zeros are there: masters begin so */
    struct ampd_event block = {.type = AMPD_EVENT_LOAD_BLOCK, .call = call, .u.block.block = first};
    pair_step(shard, &block);
    pair_settle();
}

/* Its connection answers every PING, so nobody but the core sees that it loads no more. */
static void a_loader_that_falls_silent_gives_way_to_one_that_waits(void **state)
{
    (void)state;
    create();
    struct ampd_event silent = {.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "model", .loader = 7}};
    const struct core_call *calls[2];
    for (unsigned k = 0; k < 2; k++) {
        calls[k] = pair_call(k, &silent);
        assert_true(calls[k]->granted);
    }
    pass(10 * AMPD_LEASE_MS); /* nobody else waits: it may take its time */
    assert_int_equal(1, pair_model(0)->coord->epoch);
    load_one_block(1, pair_calls_count);
    struct ampd_event waits = {.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "model", .loader = 9}};
    const struct core_call *next[2];
    for (unsigned k = 0; k < 2; k++)
        next[k] = pair_call(k, &waits);
    pass(AMPD_LEASE_MS / 2);
    assert_int_equal(1, pair_model(0)->coord->epoch);
    pass(AMPD_LEASE_MS); /* one and a half: less than two */
    for (unsigned k = 0; k < 2; k++) {
        struct ampd_event let_go = {.type = AMPD_EVENT_REVOKED, .call = pair_calls_count - 3 + k};
        pair_step(k, &let_go);
    }
    pair_settle();
    assert_string_equal("LOAD_ENDED", pair_model(0)->coord->reason);
    for (unsigned k = 0; k < 2; k++) {
        assert_string_equal("RECOVERING", calls[k]->reply.error.reason);
        assert_true(next[k]->granted);
    }
}

/* The same block again and again is nothing that the model gets. */
static void a_loader_whose_blocks_come_slowly_keeps_the_grant_and_one_that_repeats_itself_does_not(void **state)
{
    (void)state;
    create();
    struct ampd_event slow = {.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "model", .loader = 7}};
    (void)pair_call(0, &slow);
    (void)pair_call(1, &slow);
    uint64_t last = pair_calls_count;
    struct ampd_event waits = {.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "model", .loader = 9}};
    (void)pair_call(1, &waits);
    pass(AMPD_LEASE_MS / 2);
    load_one_block(0, last - 1);
    pass(AMPD_LEASE_MS / 2);
    load_one_block(1, last);
    pass(AMPD_LEASE_MS / 2); /* one and a half leases since the grant */
    assert_int_equal(1, pair_model(0)->coord->epoch);
    load_one_block(1, last);
    pass(AMPD_LEASE_MS / 2);
    load_one_block(1, last);
    pass(AMPD_LEASE_MS / 2);
    assert_string_equal("LOAD_ENDED", pair_model(0)->coord->reason);
}

int main(void)
{
#define TEST_OF(name) cmocka_unit_test_setup_teardown(name, pair_setup, pair_teardown)
    const struct CMUnitTest tests[] = {
        TEST_OF(values_of_a_load_that_broke_off_are_of_an_epoch_that_is_over),
        TEST_OF(a_grant_that_nobody_wants_any_more_ends_with_its_epoch),
        TEST_OF(a_load_that_broke_off_is_told_again_in_a_new_session),
        TEST_OF(a_load_has_one_number_on_all_shards_and_ends_on_all),
        TEST_OF(a_loader_that_falls_silent_gives_way_to_one_that_waits),
        TEST_OF(a_loader_whose_blocks_come_slowly_keeps_the_grant_and_one_that_repeats_itself_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
