/* CreateModel over two shards: what one of them cannot make, or has no answer for, and what a start finds of it. */
#include "tests/unit/core_pair.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/sync.h"
#include "server/core/base/limits.h"
#include "server/core/model/spec.h"
#include "tests/whole_spec.h"

#include <stdio.h>
#include <string.h>

static struct ampd_model_spec spec;

/* Two shards, of which the second one has so much memory; 0: any. */
static void start_with(uint64_t memory_max)
{
    struct ampd_core_config config = {.shard = 1,
                                      .shards = 2,
                                      .fence = {.counter = 1},
                                      .block_elements = AMPD_ALIGN_ELEMENTS,
                                      .memory_max = memory_max,
                                      .check = true};
    pair_now_ms = 1000;
    pair_hold_messages = false;
    core_spec(&spec, 1);
    pair_start(0, 1);
    assert_int_equal(0, ampd_core_new(&config, &pair_core[1]));
    pair_send_start(0);
    pair_send_start(1);
}

static int setup_small(void **state)
{
    (void)state;
    start_with(1);
    return 0;
}

static int setup_large(void **state)
{
    (void)state;
    start_with(0);
    return 0;
}

static struct core_call *create(void)
{
    struct ampd_event event = {.type = AMPD_EVENT_CREATE_MODEL, .u.create = {.spec = whole_spec(&spec)}};
    return pair_call(0, &event);
}

static struct core_call *delete (void)
{
    static const struct ampd_note note = {.actor = "ann"};
    struct ampd_event event = {.type = AMPD_EVENT_DELETE_MODEL, .u.act = {.model = "model", .note = &note}};
    return pair_call(0, &event);
}

static void assert_failed(const struct core_call *call, int code, const char *word)
{
    assert_true(call->answered);
    assert_int_equal(code, call->reply.error.code);
    assert_non_null(strstr(call->reply.error.text, word));
}

static void assert_nowhere(void)
{
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(-1, ampd_core_find(pair_core[k], "model"));
        assert_int_equal(0, pair_core[k]->memory_bytes);
    }
}

/* Whether a model keeps the process of this shard from being ready. */
static bool is_waited_for(unsigned shard)
{
    struct ampd_model_info info;
    bool waited = false;
    for (uint32_t i = 0; i < ampd_core_models_count(pair_core[shard]); i++) {
        ampd_core_model(pair_core[shard], i, &info);
        waited = waited || (info.recovering && !info.deleted);
    }
    return waited;
}

static void what_one_shard_has_no_memory_for_is_taken_back_on_all(void **state)
{
    (void)state;
    for (unsigned times = 0; times < 2; times++) {
        const struct core_call *call = create();
        assert_failed(call, AMP_EEXHAUSTED, "shard 1 cannot make model");
        assert_non_null(strstr(call->reply.error.text, "bytes of memory, but 1 are left of this server's 1"));
        assert_nowhere();
    }
    pair_core[1]->config.memory_max = 0;
    assert_int_equal(0, create()->reply.error.code);
    assert_int_equal(AMPD_COORD_CREATED, pair_model(0)->coord->state);
}

/* Else a crash between the two leaves a model that its creator was told there is none of. */
static void who_creates_is_told_that_it_is_taken_back_once_the_store_knows_that(void **state)
{
    (void)state;
    pair_hold_kind = AMPD_PERSIST_DELETING;
    const struct core_call *call = create();
    assert_int_equal(AMPD_COORD_DELETING, pair_model(0)->coord->state);
    assert_false(call->answered);
    pair_hold_kind = (enum ampd_persist_kind)0;
    struct ampd_event stored = {.type = AMPD_EVENT_PERSISTED, .u.persisted = {pair_held_token}};
    pair_step(0, &stored);
    pair_settle();
    assert_failed(call, AMP_EEXHAUSTED, "shard 1 cannot make model");
    assert_nowhere();
}

static void a_sync_that_comes_between_does_not_take_the_reason_away(void **state)
{
    (void)state;
    pair_hold_kind = AMPD_PERSIST_DELETING;
    const struct core_call *call = create();
    pair_hold_kind = (enum ampd_persist_kind)0;
    ampd_sync_start(pair_core[0]);
    struct ampd_event stored = {.type = AMPD_EVENT_PERSISTED, .u.persisted = {pair_held_token}};
    pair_step(0, &stored);
    pair_settle();
    assert_failed(call, AMP_EEXHAUSTED, "shard 1 cannot make model");
}

static void who_waits_for_the_same_creation_is_told_too(void **state)
{
    (void)state;
    pair_hold_messages = true;
    const struct core_call *first = create(), *second = create();
    assert_false(first->answered || second->answered);
    pair_hold_messages = false;
    pair_settle();
    assert_failed(first, AMP_EEXHAUSTED, "shard 1");
    assert_failed(second, AMP_EEXHAUSTED, "shard 1");
    assert_nowhere();
}

static void a_model_that_is_being_created_or_taken_back_keeps_nobody_from_being_ready(void **state)
{
    (void)state;
    pair_hold_messages = true;
    (void)create();
    assert_int_equal(AMPD_COORD_CREATING, pair_model(0)->coord->state);
    assert_false(is_waited_for(0));
    while (pair_messages_count > 0) {
        pair_deliver_first();
        assert_false(is_waited_for(0) || is_waited_for(1));
    }
    assert_int_equal(AMPD_COORD_DELETING, pair_model(0)->coord->state);
    assert_false(is_waited_for(0));
    assert_failed(create(), AMP_EUNAVAILABLE, "being deleted");
    pair_hold_messages = false;
    pair_settle();
    assert_nowhere();
}

static void a_model_that_is_being_created_can_be_deleted(void **state)
{
    (void)state;
    pair_hold_messages = true;
    const struct core_call *made = create(), *gone = delete ();
    assert_false(gone->answered);
    pair_hold_messages = false;
    pair_settle();
    assert_failed(made, AMP_ENOTFOUND, "being deleted");
    assert_true(gone->answered);
    assert_int_equal(0, gone->reply.error.code);
    assert_nowhere();
}

/* As in a new session. */
static void say_again(void)
{
    struct ampd_event tick = {.type = AMPD_EVENT_TICK};
    ampd_coord_resend(pair_model(0), 1);
    pair_step(0, &tick);
    pair_settle();
}

/* DELETE was sent twice, in two sessions; the name is used again before the second answer is here. */
static void an_answer_to_the_deletion_before_does_not_end_the_next_one(void **state)
{
    (void)state;
    assert_int_equal(0, create()->reply.error.code);
    pair_hold_messages = true;
    const struct core_call *first = delete ();
    say_again();
    while (!first->answered) {
        pair_deliver_first();
        pair_settle();
    }
    assert_int_equal(1, pair_messages_count);
    assert_int_equal(AMPD_MESSAGE_DELETED, pair_first()->type);
    (void)create();
    const struct core_call *second = delete ();
    pair_deliver_first();
    pair_settle();
    assert_false(second->answered);
    pair_hold_messages = false;
    pair_settle();
    assert_int_equal(0, second->reply.error.code);
    assert_nowhere();
}

/* Else a crash leaves a model that shard 1 does not know any more, and that shard 0 does not know to be deleted. */
static void no_shard_deletes_a_model_before_the_store_of_shard_0_has_marked_it(void **state)
{
    (void)state;
    assert_int_equal(0, create()->reply.error.code);
    pair_hold_kind = AMPD_PERSIST_DELETING;
    const struct core_call *call = delete ();
    say_again();
    assert_true(ampd_core_find(pair_core[1], "model") >= 0);
    pair_hold_kind = (enum ampd_persist_kind)0;
    struct ampd_event stored = {.type = AMPD_EVENT_PERSISTED, .u.persisted = {pair_held_token}};
    pair_step(0, &stored);
    pair_settle();
    assert_int_equal(0, call->reply.error.code);
    assert_nowhere();
}

static void one_whose_epoch_has_no_number_yet_can_be_deleted(void **state)
{
    (void)state;
    pair_core[0]->config.asks_epochs = true;
    const struct core_call *made = create();
    uint64_t token = pair_model(0)->coord->begins.token;
    assert_false(made->answered || token == 0);
    assert_int_equal(0, delete ()->reply.error.code);
    assert_failed(made, AMP_ENOTFOUND, "being deleted");
    assert_nowhere();
    struct ampd_event raised = {.type = AMPD_EVENT_EPOCH_RAISED, .u.raised = {.token = token, .epoch = 1}};
    pair_step(0, &raised);
    pair_settle();
    assert_nowhere();
}

/* Shard 0 has stored the model and ended before shard 1 could say that it has no memory. */
static void a_start_that_finds_a_model_which_one_shard_cannot_make_takes_it_back(void **state)
{
    (void)state;
    ampd_core_free(pair_core[0]);
    pair_start(0, 2);
    whole_spec(&spec);
    struct ampd_model_record record = {.spec = spec, .epoch = 1};
    struct ampd_event found = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    pair_step(0, &found);
    pair_hold_messages = true;
    pair_send_start(0);
    pair_forget_messages(); /* there was no session for them */
    struct ampd_event up = {.type = AMPD_EVENT_PEER_UP, .u.shard = 0};
    pair_step(1, &up);
    while (pair_model(0)->coord->state != AMPD_COORD_RESTORING) {
        assert_true(pair_messages_count > 0);
        pair_deliver_first();
        pair_settle();
    }
    const struct core_call *again = create(); /* whoever has had no answer asks again */
    assert_false(again->answered);
    pair_hold_messages = false;
    pair_settle();
    assert_failed(again, AMP_EEXHAUSTED, "shard 1 cannot make model");
    assert_nowhere();
    assert_false(is_waited_for(0) || is_waited_for(1));
}

static void wait_ms(uint64_t ms)
{
    struct ampd_event tick = {.type = AMPD_EVENT_TICK};
    pair_now_ms += ms;
    pair_step(0, &tick);
    pair_settle();
}

static void a_creation_that_waits_for_a_shard_names_it_and_is_found_by_who_asks_again(void **state)
{
    (void)state;
    struct ampd_event down = {.type = AMPD_EVENT_PEER_DOWN, .u.shard = 1};
    pair_hold_messages = true;
    const struct core_call *slow = create();
    wait_ms(AMPD_LEASE_MS - 1);
    assert_false(slow->answered);
    wait_ms(AMPD_SWEEP_MS);
    assert_failed(slow, AMP_EUNAVAILABLE, "shard 1 has not answered yet");
    pair_forget_messages();
    pair_step(0, &down);
    const struct core_call *away = create(), *again;
    wait_ms(AMPD_LEASE_MS + AMPD_SWEEP_MS);
    assert_failed(away, AMP_EUNAVAILABLE, "shard 1 is away");
    assert_string_equal("WAITED_TOO_LONG", away->reply.error.reason);
    again = create();
    assert_false(again->answered);
    pair_forget_messages();
    pair_hold_messages = false;
    struct ampd_event up = {.type = AMPD_EVENT_PEER_UP, .u.shard = 1};
    pair_step(0, &up);
    up.u.shard = 0;
    pair_step(1, &up);
    pair_settle();
    assert_true(again->answered);
    assert_int_equal(0, again->reply.error.code);
    assert_int_equal(AMPD_COORD_CREATED, pair_model(0)->coord->state);
}

static void a_creation_that_waits_for_etcd_says_so(void **state)
{
    (void)state;
    pair_core[0]->config.asks_epochs = true;
    const struct core_call *call = create();
    wait_ms(AMPD_LEASE_MS + AMPD_SWEEP_MS);
    wait_ms(AMPD_SWEEP_MS);
    assert_failed(call, AMP_EUNAVAILABLE, "etcd");
}

static const struct core_call *create_as(const char *owner, const char *name, struct ampd_quota quota)
{
    struct ampd_event event = {.type = AMPD_EVENT_CREATE_MODEL,
                               .u.create = {.spec = whole_spec(&spec), .owner = owner, .quota = quota}};
    strcpy(spec.name, name);
    const struct core_call *call = pair_call(0, &event);
    strcpy(spec.name, "model");
    return call;
}

static void the_models_of_an_owner_are_within_its_quota(void **state)
{
    (void)state;
    const struct ampd_quota one = {.models = 1};
    assert_int_equal(0, create_as("token ann", "model", one)->reply.error.code);
    const uint64_t bytes = pair_core[0]->memory_bytes;
    const struct core_call *call = create_as("token ann", "second", one);
    assert_failed(call, AMP_EEXHAUSTED, "the quota of the token ann is 1 models, and it has 1");
    assert_string_equal(call->reply.error.reason, "QUOTA_MODELS");
    assert_int_equal(0, create_as("token ann", "model", one)->reply.error.code); /* it is there */
    assert_int_equal(0, create_as("token bob", "second", one)->reply.error.code);
    const struct ampd_quota little = {.memory_bytes = 2 * bytes - 1}, enough = {.models = 2, .memory_bytes = 2 * bytes};
    assert_failed(create_as("token ann", "third", little), AMP_EEXHAUSTED, "third may need");
    assert_int_equal(0, create_as("token ann", "third", enough)->reply.error.code);
    assert_failed(create_as("token ann", "fourth", enough), AMP_EEXHAUSTED, "models=");
    assert_int_equal(0, delete ()->reply.error.code);
    assert_int_equal(0, create_as("token ann", "fourth", enough)->reply.error.code);
}

/* Another process in its place, whose store is empty. */
static void lose_store(unsigned shard)
{
    const uint64_t fence = pair_core[shard]->config.fence.counter;
    pair_now_ms += 1000;
    ampd_core_free(pair_core[shard]);
    pair_start(shard, fence + 1);
    pair_hold_messages = shard == 0;
    pair_send_start(shard);
    if (shard != 0)
        return;
    pair_forget_messages(); /* there was no session for them: the first that shard 0 hears is HELLO */
    pair_hold_messages = false;
    struct ampd_event up = {.type = AMPD_EVENT_PEER_UP, .u.shard = 0};
    pair_step(1, &up);
    pair_settle();
}

static void all_shards_know_one_time_of_creation_also_those_that_have_lost_their_store(void **state)
{
    (void)state;
    assert_int_equal(0, create()->reply.error.code);
    const int64_t created_us = pair_model(0)->created_us;
    assert_int_equal(1000 * 1000, created_us);
    assert_int_equal(created_us, pair_model(1)->created_us);
    for (unsigned k = 0; k < 2; k++) {
        lose_store(k);
        assert_int_equal(AMPD_COORD_CREATED, pair_model(0)->coord->state);
        assert_int_equal(created_us, pair_model(k)->created_us);
    }
}

#define SMALL(test) cmocka_unit_test_setup_teardown(test, setup_small, pair_teardown)
#define LARGE(test) cmocka_unit_test_setup_teardown(test, setup_large, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SMALL(what_one_shard_has_no_memory_for_is_taken_back_on_all),
        SMALL(who_creates_is_told_that_it_is_taken_back_once_the_store_knows_that),
        SMALL(a_sync_that_comes_between_does_not_take_the_reason_away),
        SMALL(who_waits_for_the_same_creation_is_told_too),
        SMALL(a_model_that_is_being_created_or_taken_back_keeps_nobody_from_being_ready),
        LARGE(a_model_that_is_being_created_can_be_deleted),
        LARGE(an_answer_to_the_deletion_before_does_not_end_the_next_one),
        LARGE(no_shard_deletes_a_model_before_the_store_of_shard_0_has_marked_it),
        LARGE(one_whose_epoch_has_no_number_yet_can_be_deleted),
        LARGE(a_creation_that_waits_for_a_shard_names_it_and_is_found_by_who_asks_again),
        LARGE(a_creation_that_waits_for_etcd_says_so),
        LARGE(the_models_of_an_owner_are_within_its_quota),
        LARGE(all_shards_know_one_time_of_creation_also_those_that_have_lost_their_store),
        SMALL(a_start_that_finds_a_model_which_one_shard_cannot_make_takes_it_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
