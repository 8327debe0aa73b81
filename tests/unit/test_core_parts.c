/* Two shards: when a checkpoint exists, and who has to know of which parts (docs/step-protocol.md section 6). */
#include "tests/unit/core_pair.h"

#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/coordinator/checkpoints.h"
#include "server/core/coordinator/coord.h"
#include "server/core/shard/catalogue.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/messages.h"

#include <string.h>

static uint32_t checkpoints_of(unsigned shard)
{
    struct ampd_model_info info;
    ampd_core_model(pair_core[shard], 0, &info);
    return info.checkpoints_count;
}

/* That of them users are told. */
static uint32_t checkpoints_told(unsigned shard)
{
    struct ampd_model_info info;
    ampd_core_model(pair_core[shard], 0, &info);
    return info.checkpoints_whole;
}

static void a_checkpoint_exists_when_both_hold_their_part(void **state)
{
    (void)state;
    struct ampd_event event = {.type = AMPD_EVENT_CHECKPOINT, .u.named = {"model"}};
    const struct core_call *first = pair_call(0, &event);
    assert_false(first->answered); /* at the verdict of step 2 */
    pair_hold_messages = true;
    (void)pair_push(1, 2, 1);
    (void)pair_push(0, 2, 1);
    while (checkpoints_of(1) < 2 && pair_messages_count > 0) {
        pair_deliver_first();
        pair_settle();
    }
    assert_int_equal(2, checkpoints_of(0));
    assert_int_equal(1, checkpoints_told(0));
    pair_hold_messages = false;
    pair_settle();
    assert_int_equal(2, checkpoints_told(0));
    assert_int_equal(2, first->reply.u.checkpoint.step);
    assert_int_equal(2, pair_call(0, &event)->reply.u.checkpoint.step); /* it exists */
}

/* Else who had lost its disk could be filled from a store that knows none of what the others still hold. */
static void a_checkpoint_is_durable_when_each_store_knows_all_parts(void **state)
{
    (void)state;
    struct ampd_event event = {.type = AMPD_EVENT_CHECKPOINT, .u.named = {"model"}};
    const struct core_call *call = pair_call(0, &event);
    const struct ampd_coord *coord = pair_model(0)->coord;
    pair_hold_messages = true;
    (void)pair_push(1, 2, 1);
    (void)pair_push(0, 2, 1);
    while (coord->checkpoint.parts_sent != 3) { /* all parts of step 2 are there, and PARTS is on its way */
        pair_deliver_first();
        pair_settle();
    }
    assert_int_equal(0, coord->checkpoint.durable_step);
    assert_true(ampd_checkpoints_under_way(coord, 2));
    pair_forget_messages(); /* shard 1 is cut off */
    assert_int_equal(0, pair_model(1)->shard->catalogue.records[1].parts_count);
    struct ampd_message *stray = pair_message(AMPD_MESSAGE_PART_DONE, 1, 0); /* of what nobody was told */
    stray->u.restore = (struct ampd_restore){.epoch = 1, .step = 3, .ok = true};
    pair_send_take(stray);
    assert_int_equal(0, coord->checkpoint.durable_step);
    assert_false(call->answered);
    pair_hold_messages = false;
    struct ampd_event up = {.type = AMPD_EVENT_PEER_UP, .u.shard = 0};
    pair_step(1, &up);
    pair_settle();
    assert_int_equal(2, pair_model(1)->shard->catalogue.records[1].parts_count);
    assert_int_equal(2, call->reply.u.checkpoint.step);
    assert_int_equal(2, coord->checkpoint.durable_step);
}

/* Shard 0 may have adopted it: what was said of its checkpoint before came too early to count. */
static void a_verdict_that_comes_again_is_answered_with_the_part_of_its_checkpoint(void **state)
{
    (void)state;
    struct ampd_event event = {.type = AMPD_EVENT_CHECKPOINT, .u.named = {"model"}};
    (void)pair_call(0, &event); /* at the verdict of step 2 */
    (void)pair_push(1, 2, 1);
    (void)pair_push(0, 2, 1);
    assert_int_equal(2, checkpoints_of(1));
    pair_hold_messages = true;
    pair_send_take(pair_verdict(2));
    bool has_part = false;
    for (; pair_messages_count > 0; pair_deliver_first()) {
        has_part = has_part || (pair_first()->type == AMPD_MESSAGE_PART_DONE && pair_first()->u.restore.step == 2);
        assert_true(has_part || pair_first()->type != AMPD_MESSAGE_APPLIED); /* it comes before */
    }
    assert_true(has_part);
    pair_hold_messages = false;
}

/* PART_DONE of a shard whose store knows all parts of step 2. */
static void say_known(unsigned shard)
{
    struct ampd_message *known = pair_message(AMPD_MESSAGE_PART_DONE, shard, 0);
    known->u.restore = (struct ampd_restore){.epoch = 1, .step = 2, .ok = true};
    pair_send_take(known);
}

/* The next process of the shard may have been filled from a store that did not know the parts yet. */
static void what_a_process_that_is_gone_knew_counts_when_it_is_said_again(void **state)
{
    (void)state;
    const struct ampd_coord *coord = pair_model(0)->coord;
    struct ampd_event checkpoint = {.type = AMPD_EVENT_CHECKPOINT, .u.named = {"model"}};
    struct ampd_event down = {.type = AMPD_EVENT_PEER_DOWN, .u.shard = 1};
    pair_hold_kind = AMPD_PERSIST_PARTS; /* neither store comes to know them */
    const struct core_call *call = pair_call(0, &checkpoint);
    (void)pair_push(1, 2, 1);
    (void)pair_push(0, 2, 1);
    assert_int_equal(3, coord->checkpoint.parts_sent);
    say_known(1);
    assert_int_equal(3, coord->checkpoint.parts_known[1]);
    pair_step(0, &down);
    say_known(0);
    assert_int_equal(0, coord->checkpoint.durable_step);
    assert_false(call->answered);
    say_known(1);
    assert_int_equal(2, coord->checkpoint.durable_step);
    assert_true(call->answered);
    pair_step(0, &down); /* what is durable stays so */
    assert_int_equal(3, coord->checkpoint.parts_known[1]);
    pair_hold_kind = 0;
}

/* Else an epoch begins from a checkpoint that the next process of the shard does not hold. */
static void a_checkpoint_that_a_process_has_read_counts_as_long_as_its_session(void **state)
{
    (void)state;
    struct ampd_coord *coord = pair_model(0)->coord;
    struct ampd_note note = {{0}, {0}, {0}};
    struct ampd_event back = {.type = AMPD_EVENT_ROLLBACK, .u.act = {.model = "model", .note = &note, .epoch = 1}};
    struct ampd_event events[] = {{.type = AMPD_EVENT_PEER_DOWN, .u.shard = 1},
                                  {.type = AMPD_EVENT_PEER_UP, .u.shard = 1}};
    pair_hold_messages = true;
    (void)pair_call(0, &back);
    while (coord->state != AMPD_COORD_RESTORING) {
        pair_deliver_first();
        pair_settle();
    }
    pair_forget_messages();
    for (unsigned i = 0; i < 2; i++) { /* its session is over, or another one has taken its place */
        coord->answered = AMPD_BIT(1); /* shard 0 still reads its part */
        pair_step(0, &events[i]);
        assert_int_equal(0, coord->answered);
    }
    pair_forget_messages();
    pair_hold_messages = false;
}

/* One shard has not said yet whether it holds the checkpoint, and nobody waits for the rollback any more. */
static void a_rollback_that_was_given_up_is_in_no_other_ones_way(void **state)
{
    (void)state;
    struct ampd_note note = {{0}, {0}, {0}};
    struct ampd_event back = {.type = AMPD_EVENT_ROLLBACK, .u.act = {.model = "model", .note = &note, .epoch = 1}};
    pair_hold_messages = true;
    (void)pair_call(0, &back);
    struct ampd_event gone = {.type = AMPD_EVENT_CALL_CLOSED, .call = back.call};
    pair_step(0, &gone);
    pair_forget_messages();
    const struct core_call *call = pair_call(0, &back);
    assert_false(call->answered);
    pair_hold_messages = false;
    pair_settle();
    assert_true(call->answered);
    assert_int_equal(0, call->reply.error.code);
    assert_int_equal(2, call->reply.u.rollback.epoch);
}

/* A part of shard 1 that is being stored. */
static uint64_t token_of_part(void)
{
    AMP_LIST_EACH(it, next, &pair_core[1]->pendings)
    {
        const struct ampd_pending *pending = AMP_CONTAINER(it, struct ampd_pending, node);
        if (pending->kind == AMPD_PERSIST_CHECKPOINT)
            return pending->token;
    }
    return 0;
}

static void a_part_that_a_shard_has_promised_to_a_rollback_is_not_dropped_for_a_newer_one(void **state)
{
    (void)state;
    struct ampd_event checkpoint = {.type = AMPD_EVENT_CHECKPOINT, .u.named = {"model"}};
    struct ampd_note note = {{0}, {0}, {0}};
    struct ampd_event back = {.type = AMPD_EVENT_ROLLBACK, .u.act = {.model = "model", .note = &note, .epoch = 1}};
    for (unsigned k = 0; k < 2; k++)
        pair_model(k)->spec.keep_last = 1;
    for (uint64_t step = 2; step <= 4; step++) { /* steps 2 and 4 are checkpoints, and both know it of step 2 */
        if (step != 3)
            (void)pair_call(0, &checkpoint);
        pair_hold_kind = step == 4 ? AMPD_PERSIST_CHECKPOINT : (enum ampd_persist_kind)0;
        (void)pair_push(1, step, 1);
        (void)pair_push(0, step, 1);
    }
    assert_int_equal(2, pair_model(0)->coord->checkpoint.durable_step);
    pair_hold_kind = (enum ampd_persist_kind)0;
    pair_hold_messages = true;
    const struct core_call *call = pair_call(0, &back);
    while (pair_messages_count > 0 && pair_first()->type != AMPD_MESSAGE_HELD)
        pair_deliver_first();
    struct ampd_event stored = {.type = AMPD_EVENT_PERSISTED, .u.persisted = {token_of_part()}};
    pair_step(1, &stored);
    pair_hold_messages = false;
    pair_settle();
    assert_true(call->answered);
    assert_int_equal(0, call->reply.error.code);
    assert_int_equal(2, call->reply.u.rollback.epoch);
}

/* Shard 1 had said that it holds its part, and then a process that does not took its place. */
static void a_rollback_asks_again_what_a_process_that_is_gone_had_promised(void **state)
{
    (void)state;
    struct ampd_note note = {{0}, {0}, {0}};
    struct ampd_event back = {.type = AMPD_EVENT_ROLLBACK, .u.act = {.model = "model", .note = &note, .epoch = 1}};
    struct ampd_checkpoint_record newer = {.epoch = 1, .step = 1, .version = 1};
    struct ampd_model_record record = {.epoch = 1, .checkpoints_count = 1, .checkpoints = &newer};
    assert_int_equal(0, ampd_catalogue_add(pair_model(0)->shard, &newer));
    pair_hold_messages = true;
    const struct core_call *call = pair_call(0, &back);
    pair_model(0)->coord->rollback.held = AMPD_BIT(1); /* as when shard 0 is the one that has not answered yet */
    pair_forget_messages();
    pair_hold_messages = false;
    record.spec = pair_model(0)->spec;
    ampd_core_free(pair_core[1]);
    pair_start(1, 2);
    struct ampd_event found = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    pair_step(1, &found);
    pair_send_start(1);
    assert_true(call->answered);
    assert_string_equal("CHECKPOINT_NOT_FOUND", call->reply.error.reason);
    assert_int_equal(2, pair_model(0)->coord->epoch);
    assert_int_equal(1, pair_model(0)->coord->base_step);
}

/* As where a shard had started again while it wrote its part of step 1: it has none, and goes on. */
static void a_part_of_a_checkpoint_that_never_existed_takes_no_place_of_those_that_are_kept(void **state)
{
    (void)state;
    struct ampd_model *model = pair_model(1);
    struct ampd_catalogue *catalogue = &model->shard->catalogue;
    struct ampd_checkpoint_record more[] = {{.epoch = 1, .step = 1}, {.epoch = 1, .step = 2, .parts_count = 2}};
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(0, ampd_catalogue_add(model->shard, &more[i]));
    model->shard->decided.verdict->row.durable_step = 2;
    model->spec.keep_last = 2;
    ampd_catalogue_prune(model);
    assert_int_equal(3, catalogue->count);
    assert_int_equal(0, catalogue->records[0].step);
    model->spec.keep_last = 1;
    ampd_catalogue_prune(model);
    assert_int_equal(1, catalogue->count);
    assert_int_equal(2, catalogue->records[0].step);
}

static void a_part_that_a_shard_alone_may_hold_is_not_told_where_shard_0_does_not_know_of_the_others(void **state)
{
    (void)state;
    struct ampd_checkpoint_record alone = {.epoch = 1, .step = 5}, both = pair_model(0)->shard->catalogue.records[0];
    struct ampd_checkpoint_record parts[] = {both, alone};
    struct ampd_model_record record = {.epoch = 1, .checkpoints_count = 2, .checkpoints = parts};
    assert_int_equal(2, both.parts_count);
    assert_int_equal(0, ampd_catalogue_add(pair_model(1)->shard, &alone));
    assert_int_equal(1, checkpoints_told(1)); /* another shard is not told when a checkpoint exists */
    pair_start_with(0, &record, 0);
    pair_hold_messages = true;
    pair_send_start(0);
    assert_int_equal(2, checkpoints_of(0)); /* they are being asked */
    assert_int_equal(1, checkpoints_told(0));
    pair_forget_messages();
    pair_hold_messages = false;
}

/* Shard 0 starts again after step 6, when it holds all of checkpoint 5 and shard 1 none behind checkpoint 0. */
static void start_zero_after_6(uint64_t durable_step)
{
    struct ampd_checkpoint_record parts[] = {pair_model(0)->shard->catalogue.records[0],
                                             {.epoch = 1, .step = 5, .parts_count = 2}};
    struct ampd_step_row last = {.kind = AMPD_ROW_STEP, .epoch = 1, .step = 6, .durable_step = durable_step};
    struct ampd_model_record record = {.epoch = 1, .last = &last, .checkpoints_count = 2, .checkpoints = parts};
    pair_start_zero(&record, 0);
}

static void a_shard_with_a_store_of_before_a_durable_checkpoint_is_named(void **state)
{
    (void)state;
    start_zero_after_6(5);
    assert_non_null(strstr(pair_logged, "shard 1 has a data directory from before checkpoint 5"));
    assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
    assert_int_equal(2, pair_model(0)->shard->catalogue.count);
    struct ampd_event up = {.type = AMPD_EVENT_PEER_UP};
    pair_step(1, &up);
    pair_settle();
    assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
}

/*
 * Both start again: shard 1 with all of checkpoint 5, from which epoch 2 has begun perhaps, and shard 0 with a copy
 * from before it.
 */
static void start_both(bool has_begun)
{
    struct ampd_checkpoint_record parts[] = {pair_model(1)->shard->catalogue.records[0],
                                             {.epoch = 1, .step = 5, .parts_count = 2}};
    struct ampd_step_row before = {.kind = AMPD_ROW_STEP, .epoch = 1, .step = 2};
    struct ampd_step_row last = {.kind = AMPD_ROW_STEP, .epoch = 1, .step = 6, .durable_step = 5};
    struct ampd_step_row begins = {.kind = AMPD_ROW_EPOCH, .epoch = 2, .step = 5, .durable_step = 5};
    struct ampd_model_record copy = {.epoch = 1, .last = &before, .checkpoints_count = 1, .checkpoints = parts};
    struct ampd_model_record record = {.epoch = 1, .last = &last, .checkpoints_count = 2, .checkpoints = parts};
    if (has_begun) {
        record.epoch = 2;
        record.base_epoch = 1;
        record.base_step = 5;
        record.last = &begins;
    }
    pair_start_with(1, &record, 0);
    struct ampd_event start = {.type = AMPD_EVENT_START};
    pair_step(1, &start);
    pair_settle();
    pair_start_zero(&copy, 0);
    assert_non_null(strstr(pair_logged, "shard 0 has a data directory from before checkpoint 5"));
    assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
    assert_int_equal(2, pair_model(1)->shard->catalogue.count);
}

static void a_copy_of_shard_0_from_before_a_durable_checkpoint_is_named_when_all_have_started(void **state)
{
    (void)state;
    start_both(false);
}

/* What an epoch has begun from is durable. */
static void a_copy_from_before_the_checkpoint_that_an_epoch_has_begun_from_is_named(void **state)
{
    (void)state;
    start_both(true);
}

static void a_checkpoint_that_was_not_durable_yet_is_given_up_for_the_one_that_all_hold(void **state)
{
    (void)state;
    start_zero_after_6(0);
    assert_int_equal(AMPD_COORD_WAITING, pair_model(0)->coord->state);
    assert_int_equal(0, pair_model(0)->coord->base_step);
    assert_int_equal(2, pair_model(0)->coord->epoch);
}

int main(void)
{
#define TEST_OF(name) cmocka_unit_test_setup_teardown(name, pair_setup, pair_teardown)
    const struct CMUnitTest tests[] = {
        TEST_OF(a_checkpoint_exists_when_both_hold_their_part),
        TEST_OF(a_checkpoint_is_durable_when_each_store_knows_all_parts),
        TEST_OF(a_verdict_that_comes_again_is_answered_with_the_part_of_its_checkpoint),
        TEST_OF(what_a_process_that_is_gone_knew_counts_when_it_is_said_again),
        TEST_OF(a_checkpoint_that_a_process_has_read_counts_as_long_as_its_session),
        TEST_OF(a_rollback_that_was_given_up_is_in_no_other_ones_way),
        TEST_OF(a_part_that_a_shard_has_promised_to_a_rollback_is_not_dropped_for_a_newer_one),
        TEST_OF(a_rollback_asks_again_what_a_process_that_is_gone_had_promised),
        TEST_OF(a_part_of_a_checkpoint_that_never_existed_takes_no_place_of_those_that_are_kept),
        TEST_OF(a_part_that_a_shard_alone_may_hold_is_not_told_where_shard_0_does_not_know_of_the_others),
        TEST_OF(a_shard_with_a_store_of_before_a_durable_checkpoint_is_named),
        TEST_OF(a_copy_of_shard_0_from_before_a_durable_checkpoint_is_named_when_all_have_started),
        TEST_OF(a_copy_from_before_the_checkpoint_that_an_epoch_has_begun_from_is_named),
        TEST_OF(a_checkpoint_that_was_not_durable_yet_is_given_up_for_the_one_that_all_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
