/* A model whose scale is at its floor, on two shards: what each of them comes to know of it, and how it goes on. */
#include "server/core/base/limits.h"
#include "server/core/base/out.h"
#include "server/core/coordinator/sync.h"
#include "server/core/wire/messages.h"
#include "tests/unit/core_pair.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct ampd_note note = {.actor = "me", .words = "why"};

static int setup(void **state)
{
    (void)state;
    pair_floor = AMPD_FLOOR_FREEZE;
    pair_begin(AMPD_WEIGHTING_EQUAL);
    pair_gradient = INFINITY;
    return 0;
}

static struct core_call *reset_scale(void)
{
    struct ampd_event event = {.type = AMPD_EVENT_RESET_SCALE, .u.act = {.model = "model", .note = &note}};
    return pair_call(0, &event);
}

static void stored(unsigned shard)
{
    struct ampd_event event = {.type = AMPD_EVENT_PERSISTED, .u.persisted = {pair_held_token}};
    pair_hold_kind = (enum ampd_persist_kind)0;
    pair_step(shard, &event);
    pair_settle();
}

static void freeze(void)
{
    (void)pair_push(0, 1, 1);
    (void)pair_push(1, 1, 1);
    assert_int_equal(AMPD_COORD_RUNNING, pair_model(0)->coord->state);
    assert_true(ampd_coord_is_frozen(pair_model(0)));
    assert_int_equal(AMPD_STEP_NONE, pair_model(0)->coord->step.state);
}

static void assert_goes_on(uint64_t step)
{
    pair_gradient = 0;
    struct core_call *pushes[2] = {pair_push(0, step, 1), pair_push(1, step, 1)};
    for (unsigned k = 0; k < 2; k++) {
        assert_true(pushes[k]->answered);
        assert_int_equal(0, pushes[k]->reply.error.code);
        assert_int_equal(step, pushes[k]->reply.u.step.step);
    }
}

static void assert_refused(struct core_call *call)
{
    assert_true(call->answered);
    assert_string_equal("MODEL_FROZEN", call->reply.error.reason);
    assert_non_null(strstr(call->reply.error.text, "1 overflows in a row"));
}

static void each_shard_hears_that_a_model_is_frozen(void **state)
{
    (void)state;
    freeze();
    for (unsigned k = 0; k < 2; k++)
        assert_refused(pair_push(k, 2, 1));
    assert_int_equal(0, reset_scale()->reply.error.code);
    assert_goes_on(2);
}

/* As it is with a store: shard 0 tells the state before the other shard has stored the verdict. */
static void a_shard_that_hears_of_it_while_the_verdict_is_being_stored_knows_it_then(void **state)
{
    (void)state;
    (void)pair_push(0, 1, 1);
    pair_hold_messages = true;
    (void)pair_push(1, 1, 1);
    while (pair_first()->type != AMPD_MESSAGE_VERDICT) {
        pair_deliver_first();
        pair_settle();
    }
    pair_hold_kind = AMPD_PERSIST_VERDICT;
    pair_hold_messages = false;
    pair_settle();
    assert_non_null(pair_model(1)->shard->decided.next);
    assert_refused(pair_push(1, 2, 1));
    stored(1);
    assert_refused(pair_push(1, 2, 1));
    assert_int_equal(0, reset_scale()->reply.error.code);
    assert_goes_on(2);
}

static void a_scale_that_is_stored_while_shards_find_out_where_they_are_lets_the_model_go_on(void **state)
{
    (void)state;
    freeze();
    pair_hold_kind = AMPD_PERSIST_ACT;
    struct core_call *call = reset_scale();
    assert_false(call->answered);
    pair_hold_messages = true;
    ampd_sync_start(pair_core[0]);
    struct ampd_event tick = {.type = AMPD_EVENT_TICK};
    pair_step(0, &tick);
    assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
    stored(0);
    assert_true(call->answered);
    assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
    pair_hold_messages = false;
    pair_settle();
    assert_int_equal(AMPD_COORD_RUNNING, pair_model(0)->coord->state);
    assert_goes_on(2);
}

/* Its other shards would hear of a state that a model which is being deleted does not have. */
static void a_scale_that_is_stored_for_a_model_that_is_being_deleted_tells_no_state(void **state)
{
    (void)state;
    freeze();
    pair_hold_kind = AMPD_PERSIST_ACT;
    (void)reset_scale();
    uint64_t act = pair_held_token;
    pair_hold_kind = AMPD_PERSIST_DELETING;
    struct ampd_event event = {.type = AMPD_EVENT_DELETE_MODEL,
                               .u.act = {.model = "model", .note = &note, .force = true}};
    struct core_call *call = pair_call(0, &event);
    uint64_t deleting = pair_held_token;
    assert_true(deleting != act && pair_model(0)->coord->state == AMPD_COORD_DELETING);
    pair_hold_messages = true;
    pair_held_token = act;
    stored(0);
    assert_true(pair_messages_count > 0);
    while (pair_messages_count > 0) {
        assert_int_equal(AMPD_MESSAGE_ACTS, pair_first()->type);
        pair_deliver_first();
        pair_settle();
    }
    pair_hold_messages = false;
    pair_held_token = deleting;
    stored(0);
    assert_true(call->answered && call->reply.error.code == 0);
}

/* What is being stored on both is stored, until nothing is. */
static void store_all(void)
{
    pair_hold_kind = (enum ampd_persist_kind)0;
    for (unsigned k = 0; k < 2; k++) {
        struct amp_list *first = pair_core[k]->pendings.next;
        while (first != &pair_core[k]->pendings) {
            struct ampd_event event = {.type = AMPD_EVENT_PERSISTED,
                                       .u.persisted = {AMP_CONTAINER(first, struct ampd_pending, node)->token}};
            pair_step(k, &event);
            pair_settle();
            first = pair_core[k]->pendings.next;
        }
    }
}

/* Asks for a checkpoint after each of so many skipped steps, while none can be stored. */
static void ask_for_checkpoints(const struct core_call *calls[], uint64_t steps)
{
    pair_hold_kind = AMPD_PERSIST_CHECKPOINT;
    for (uint64_t step = 1; step <= steps; step++) {
        (void)pair_push(0, step, 1);
        (void)pair_push(1, step, 1);
        assert_int_equal(step, pair_model(0)->coord->decided);
        struct ampd_event event = {.type = AMPD_EVENT_CHECKPOINT, .u.named = {"model"}};
        calls[step] = pair_call(0, &event);
        assert_false(calls[step]->answered);
        assert_true(step == steps || reset_scale()->reply.error.code == 0);
    }
}

static void skipped_steps_do_not_begin_more_checkpoints_than_there_is_room_for(void **state)
{
    (void)state;
    const struct core_call *calls[5];
    ask_for_checkpoints(calls, 4);
    assert_int_equal(AMPD_CHECKPOINTS_ASKED_MAX, pair_model(0)->coord->checkpoint.writing_count);
    store_all();
    for (unsigned step = 1; step <= 4; step++)
        assert_true(calls[step]->answered && calls[step]->reply.u.checkpoint.step >= step);
    assert_int_equal(0, pair_model(0)->coord->checkpoint.writing_count);
}

static void the_last_place_is_for_a_checkpoint_that_a_step_becomes_by_itself(void **state)
{
    (void)state;
    const struct core_call *calls[6];
    for (unsigned k = 0; k < 2; k++)
        pair_model(k)->spec.checkpoint_every = 5;
    ask_for_checkpoints(calls, 5);
    assert_int_equal(AMPD_CHECKPOINTS_WRITING_MAX, pair_model(0)->coord->checkpoint.writing_count);
    assert_int_equal(AMPD_DECIDED_APPLYING, pair_model(0)->coord->decision.state); /* no later one can be decided */
    store_all();
    for (unsigned step = 1; step <= 5; step++)
        assert_true(calls[step]->answered && calls[step]->reply.u.checkpoint.step >= step);
}

static void a_drain_waits_for_room_for_its_checkpoint(void **state)
{
    (void)state;
    const struct core_call *calls[5];
    ask_for_checkpoints(calls, 4);
    struct ampd_event drain = {.type = AMPD_EVENT_DRAIN};
    pair_step(0, &drain);
    pair_settle();
    assert_int_equal(AMPD_CHECKPOINTS_ASKED_MAX, pair_model(0)->coord->checkpoint.writing_count);
    assert_false(pair_drained[0]);
    store_all();
    assert_int_equal(4, pair_model(0)->coord->checkpoint.durable_step);
    assert_true(pair_drained[0]);
}

/* What the missing rank had pushed before was enough: so it is after a restart with a vote in the journal. */
static void a_stalled_model_whose_last_step_ends_at_the_floor_is_not_said_to_be_frozen(void **state)
{
    (void)state;
    pair_model(0)->spec.max_steps = pair_model(1)->spec.max_steps = 1;
    pair_hold_kind = AMPD_PERSIST_VERDICT;
    (void)pair_push(0, 1, 1);
    (void)pair_push(1, 1, 1);
    assert_int_equal(AMPD_STEP_VOTED, pair_model(0)->coord->step.state);
    pair_model(0)->coord->state = AMPD_COORD_STALLED;
    pair_hold_messages = true;
    stored(0);
    unsigned states = 0;
    while (pair_messages_count > 0) {
        bool is_state = pair_first()->type == AMPD_MESSAGE_STATE;
        assert_false(is_state && pair_first()->u.state.frozen);
        states += is_state ? 1 : 0;
        pair_deliver_first();
        pair_settle();
    }
    assert_true(states > 0);
    pair_hold_messages = false;
    assert_int_equal(AMPD_COORD_DONE, pair_model(0)->coord->state);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_shard_hears_that_a_model_is_frozen),
        TEST(a_shard_that_hears_of_it_while_the_verdict_is_being_stored_knows_it_then),
        TEST(a_scale_that_is_stored_while_shards_find_out_where_they_are_lets_the_model_go_on),
        TEST(a_scale_that_is_stored_for_a_model_that_is_being_deleted_tells_no_state),
        TEST(skipped_steps_do_not_begin_more_checkpoints_than_there_is_room_for),
        TEST(the_last_place_is_for_a_checkpoint_that_a_step_becomes_by_itself),
        TEST(a_drain_waits_for_room_for_its_checkpoint),
        TEST(a_stalled_model_whose_last_step_ends_at_the_floor_is_not_said_to_be_frozen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
