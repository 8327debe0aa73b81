/*
 * The rows of acts on all shards: shard 0 stores one and answers it, the other stores the same, whatever is lost or starts again in
 * between. A store keeps an act once, however often it comes (test_storage_store.c); so an order that comes twice is none too many.
 */
#include "server/core/model/spec.h"
#include "server/core/coordinator/coord.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/messages.h"
#include "tests/unit/core_pair.h"
#include "tests/whole_spec.h"

#include <stdlib.h>
#include <string.h>

#define LIST 7 /* hash of the contributors of each step */

static struct core_call *set_scale(float scale)
{
    static const struct ampd_note note = {.actor = "ann"};
    struct ampd_event event = {.type = AMPD_EVENT_SET_SCALE,
                               .u.act = {.model = "model", .note = &note, .scale = scale}};
    struct core_call *call = pair_call(0, &event);
    assert_true(call->answered);
    assert_int_equal(0, call->reply.error.code);
    return call;
}

/* Whether a shard has ordered the row of the act after which the scale has this id. */
static bool has(unsigned shard, uint64_t scale_id)
{
    for (unsigned i = 0; i < pair_acts_count[shard]; i++) {
        if (pair_acts[shard][i] == scale_id)
            return true;
    }
    return false;
}

static void session(void)
{
    struct ampd_event up = {.type = AMPD_EVENT_PEER_UP, .u.shard = 0};
    pair_step(1, &up);
    pair_settle();
}

static void an_act_behind_the_last_verdict_is_on_all_shards(void **state)
{
    (void)state;
    (void)set_scale(8);
    assert_true(has(0, 2) && has(1, 2));
    (void)set_scale(16);
    assert_true(has(0, 3) && has(1, 3));
    assert_int_equal(2, pair_acts_count[1]); /* each is told once */
}

static void an_act_that_a_broken_session_has_lost_is_told_again(void **state)
{
    (void)state;
    pair_hold_messages = true;
    (void)set_scale(8);
    pair_forget_messages();
    pair_hold_messages = false;
    assert_false(has(1, 2));
    session();
    assert_true(has(1, 2));
    assert_int_equal(1, pair_acts_count[0]);
}

/* Messages are lost until one shard has voted, acts among them: so they are before the verdict, too. */
static void an_act_comes_with_the_verdict_after_it(void **state)
{
    (void)state;
    pair_hold_messages = true;
    (void)set_scale(8);
    pair_forget_messages();
    pair_hold_messages = false;
    (void)pair_push(0, 2, 1);
    (void)pair_push(1, 2, 1);
    assert_int_equal(2, pair_model(1)->shard->decided.step);
    assert_true(has(1, 2));
}

static void an_act_is_not_told_before_shard_0_has_stored_it(void **state)
{
    (void)state;
    static const struct ampd_note note = {.actor = "ann"};
    struct ampd_event event = {.type = AMPD_EVENT_SET_SCALE,
                               .call = ++pair_calls_count,
                               .u.act = {.model = "model", .note = &note, .scale = 8}};
    memset(&pair_calls[event.call], 0, sizeof(pair_calls[0]));
    pair_step(0, &event); /* it is being stored */
    assert_true(has(0, 2));
    struct ampd_message *hello = pair_message(AMPD_MESSAGE_HELLO, 1, 0);
    event = (struct ampd_event){.type = AMPD_EVENT_PEER, .u.message = hello};
    pair_step(0, &event);
    while (pair_messages_count > 0) {
        assert_int_not_equal(AMPD_MESSAGE_ACTS, pair_first()->type);
        pair_deliver_first();
    }
    ampd_message_free(hello);
    pair_settle();
    assert_true(has(1, 2));
}

/* A shard that is not behind that step would store it there where shard 0 has it not. */
static void acts_behind_another_step_or_of_another_epoch_are_not_stored(void **state)
{
    (void)state;
    for (unsigned what = 0; what < 4; what++) {
        struct ampd_message *message = pair_message(AMPD_MESSAGE_ACTS, what == 3 ? 1 : 0, what == 3 ? 0 : 1);
        message->u.acts.step = what == 0 ? 0 : what == 1 ? 2 : 1;
        message->epoch -= what == 2 ? 1 : 0;
        message->u.acts.count = 1;
        message->u.acts.acts[0].kind = AMPD_ROW_SET;
        pair_send_take(message);
        assert_int_equal(0, pair_acts_count[0] + pair_acts_count[1]);
    }
}

/* ---- a coordinator that starts: `durability: step` ---- */

static struct ampd_step_row row_of(enum ampd_row_kind kind, uint64_t step, uint64_t scale_id)
{
    return (struct ampd_step_row){.kind = kind,
                                  .epoch = 1,
                                  .step = step,
                                  .from_step = step + 1,
                                  .tries = 1,
                                  .contributors_hash = LIST,
                                  .verdict = AMPD_VERDICT_SKIPPED_EMPTY,
                                  .scale = 1024,
                                  .scale_id = 1,
                                  .after.scaler = {.scale = 8, .scale_id = scale_id, .hysteresis_left = 1}};
}

static void answer(enum ampd_message_type type, uint64_t decided, bool voted)
{
    struct ampd_message *message = pair_message(type, 1, 0);
    message->to_fence.counter = 2;
    if (type == AMPD_MESSAGE_SYNCED) {
        struct ampd_sync_state *sync = &message->u.sync;
        assert_int_equal(0, ampd_spec_copy(&sync->spec, &pair_model(0)->spec));
        sync->highest_epoch = 1;
        sync->ready = true;
        sync->voted = voted ? LIST : 0;
        sync->decided = decided;
        sync->has_last = decided > 0;
        sync->last = row_of(AMPD_ROW_STEP, decided, 1);
        sync->carry = sync->last.after;
        sync->checkpoints_count = 1;
        sync->checkpoints = calloc(1, sizeof(sync->checkpoints[0]));
        assert_non_null(sync->checkpoints);
        sync->checkpoints[0] = (struct ampd_checkpoint_record){.epoch = 1};
    }
    pair_send_take(message);
}

/* Shard 0 starts with these rows, and shard 1 says that it has decided the step and, perhaps, voted on the next one. */
static void start_with(struct ampd_step_row *rows, uint32_t count, uint64_t decided, bool voted)
{
    static struct ampd_checkpoint_record part;
    part = (struct ampd_checkpoint_record){.epoch = 1, .step = rows[count - 1].step};
    struct ampd_checkpoint_record parts[] = {{.epoch = 1}, part};
    struct ampd_model_record record = {.epoch = 1,
                                       .checkpoints_count = 2,
                                       .checkpoints = parts,
                                       .last = &rows[count - 1],
                                       .rows_count = count,
                                       .rows = rows};
    core_spec(&record.spec, 1);
    record.spec.durability = AMPD_DURABILITY_STEP;
    whole_spec(&record.spec);
    ampd_core_free(pair_core[0]);
    pair_start(0, 2);
    struct ampd_event found = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    pair_step(0, &found);
    struct ampd_event fence = {.type = AMPD_EVENT_FENCE_FOUND, .u.fence = {1, {.counter = 1}}};
    pair_step(0, &fence);
    pair_hold_messages = true;
    struct ampd_event start = {.type = AMPD_EVENT_START};
    pair_step(0, &start);
    pair_settle();
    answer(AMPD_MESSAGE_SYNCED, decided, voted);
    answer(AMPD_MESSAGE_SYNC_DONE, 0, false);
}

/* The acts of the next message of the type: their scale ids as one number in base 10. */
static uint64_t told(enum ampd_message_type type)
{
    uint64_t all = 0;
    for (; pair_messages_count > 0; pair_deliver_first()) {
        const struct ampd_message *message = pair_first();
        if (message->type != type || message->to != 1)
            continue;
        bool verdict = type == AMPD_MESSAGE_VERDICT;
        uint32_t count = verdict ? message->u.verdict.acts_count : message->u.acts.count;
        const struct ampd_action *acts = verdict ? message->u.verdict.acts : message->u.acts.acts;
        for (uint32_t i = 0; i < count; i++)
            all = all * 10 + acts[i].after.scaler.scale_id;
        return all;
    }
    return UINT64_MAX;
}

static void a_coordinator_that_starts_tells_the_acts_behind_the_last_step(void **state)
{
    (void)state;
    struct ampd_step_row rows[] = {row_of(AMPD_ROW_SET, 0, 2), row_of(AMPD_ROW_STEP, 1, 2), row_of(AMPD_ROW_SET, 1, 3),
                                   row_of(AMPD_ROW_RESET, 1, 4)};
    start_with(rows, 4, 1, false);
    assert_int_equal(1, pair_model(0)->coord->decided);
    assert_int_equal(2, pair_model(0)->coord->actions.count); /* and they go with the next verdict */
    assert_int_equal(34, told(AMPD_MESSAGE_ACTS));
}

static void a_coordinator_that_starts_sends_a_verdict_again_with_the_acts_before_it(void **state)
{
    (void)state;
    struct ampd_step_row rows[] = {row_of(AMPD_ROW_SET, 0, 2), row_of(AMPD_ROW_STEP, 1, 2), row_of(AMPD_ROW_SET, 1, 3)};
    start_with(rows, 3, 0, true);
    assert_int_equal(2, told(AMPD_MESSAGE_VERDICT));
    assert_int_equal(3, told(AMPD_MESSAGE_ACTS)); /* after it */
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, pair_setup, pair_teardown)

/* As its store has it: the other shard may never store that epoch, and the model go on in it all the same. */
static void an_act_is_lost_once_shard_0_has_stored_the_epoch_that_takes_it_back(void **state)
{
    (void)state;
    static const struct ampd_note note = {.actor = "ann", .request_id = "a"};
    struct ampd_event event = {.type = AMPD_EVENT_SET_SCALE, .u.act = {.model = "model", .note = &note, .scale = 8}};
    assert_int_equal(0, pair_call(0, &event)->reply.error.code);
    const struct ampd_coord *coord = pair_model(0)->coord;
    assert_true(coord->actions.known_count == 1 && !coord->actions.known[0].superseded);
    pair_hold_messages = true; /* shard 1 hears of nothing */
    struct ampd_message *message = pair_message(AMPD_MESSAGE_RESTORE, 0, 0);
    message->round = ++pair_core[0]->sync.round;
    message->u.restore = (struct ampd_restore){.epoch = 1};
    pair_send_take(message);
    message = pair_message(AMPD_MESSAGE_EPOCH, 0, 0);
    message->round = pair_core[0]->sync.round;
    message->u.epoch.record = (struct ampd_epoch_record){.epoch = 2, .parent = 1, .base_epoch = 1};
    pair_send_take(message);
    assert_int_equal(2, pair_model(0)->shard->epoch);
    assert_true(coord->actions.known[0].superseded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_act_behind_the_last_verdict_is_on_all_shards),
        TEST(an_act_that_a_broken_session_has_lost_is_told_again),
        TEST(an_act_comes_with_the_verdict_after_it),
        TEST(an_act_is_not_told_before_shard_0_has_stored_it),
        TEST(acts_behind_another_step_or_of_another_epoch_are_not_stored),
        TEST(a_coordinator_that_starts_tells_the_acts_behind_the_last_step),
        TEST(a_coordinator_that_starts_sends_a_verdict_again_with_the_acts_before_it),
        TEST(an_act_is_lost_once_shard_0_has_stored_the_epoch_that_takes_it_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
