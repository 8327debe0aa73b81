/*
 * SYNC of two shards, and what may be wrong with it: questions that are over, stores that do not belong together, parts of two
 * states, sessions that break at each moment of it. Nothing is taken for what it is not, and the log says what to do.
 */
#include "tests/unit/core_pair.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/checkpoints.h"
#include "server/core/coordinator/sync.h"
#include "server/core/base/model.h"
#include "server/core/model/spec.h"
#include "server/core/base/process.h"
#include "server/core/shard/catalogue.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/messages.h"
#include "tests/whole_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void send_to(unsigned shard, enum ampd_event_type type)
{
    struct ampd_event event = {.type = type, .u.shard = shard == 0 ? 1 : 0};
    pair_step(shard, &event);
    pair_settle();
}

static void start_again(unsigned shard)
{
    struct ampd_checkpoint_record part = {.epoch = 1};
    struct ampd_model_record record = {.epoch = 1, .checkpoints_count = 1, .checkpoints = &part};
    pair_start_with(shard, &record, 0);
    pair_send_start(shard);
}

static void a_hello_before_the_start_and_a_sync_that_is_over_are_not_answered(void **state)
{
    (void)state;
    struct ampd_message *sync = pair_message(AMPD_MESSAGE_SYNC, 0, 1);
    sync->round--;
    ampd_message_free(pair_last);
    pair_last = NULL;
    pair_send_take(sync);
    assert_null(pair_last);
    pair_start_with(0, NULL, 0);
    struct ampd_message *hello = ampd_message_new(AMPD_MESSAGE_HELLO);
    hello->from = 1;
    hello->from_fence = pair_core[1]->config.fence;
    pair_send_take(hello);
    assert_false(pair_core[0]->sync.running);
    assert_null(pair_last);
}

static void an_answer_of_before_the_hello_does_not_end_sync_without_what_was_dropped_of_it(void **state)
{
    (void)state;
    struct ampd_checkpoint_record part = {.epoch = 1};
    struct ampd_model_record record = {.epoch = 1, .checkpoints_count = 1, .checkpoints = &part};
    pair_start_with(0, &record, 0); /* it knows no fence of shard 1 */
    pair_hold_messages = true;
    pair_send_start(0);
    struct ampd_message *hello = pair_message(AMPD_MESSAGE_HELLO, 1, 0),
                        *done = pair_message(AMPD_MESSAGE_SYNC_DONE, 1, 0);
    struct ampd_event events[] = {{.type = AMPD_EVENT_PEER, .u.message = hello}};
    pair_step(0,
              events); /* its fence is being stored, and what shard 1 told of its models behind the HELLO is dropped */
    pair_settle();
    pair_send_take(done); /* the fence is stored by now */
    assert_true(pair_core[0]->sync.running && !ampd_core_synced(pair_core[0]));
    ampd_message_free(hello);
    pair_forget_messages();
    pair_hold_messages = false;
    send_to(1, AMPD_EVENT_PEER_UP);
    assert_int_equal(AMPD_COORD_WAITING, pair_model(0)->coord->state);
    assert_int_equal(2, pair_model(1)->shard->epoch);
}

static void a_model_that_shard_0_has_no_memory_for_is_told_and_left_alone(void **state)
{
    (void)state;
    pair_start_zero(NULL, 1);
    assert_non_null(strstr(pair_logged, "cannot be brought back"));
    assert_int_equal(0, ampd_core_models_count(pair_core[0]));
    assert_false(pair_core[0]->sync.running);
}

/* Its name is not free: another shard holds it, with all that it has learned. */
static void the_name_of_a_model_that_shard_0_has_no_memory_for_is_not_given_to_another(void **state)
{
    (void)state;
    struct ampd_model_spec small;
    core_spec(&small, 1);
    small.parameters_count = 1;
    pair_start_zero(NULL, pair_model(0)->memory_bytes - 1);
    assert_int_equal(0, ampd_core_models_count(pair_core[0]));
    struct ampd_event create = {.type = AMPD_EVENT_CREATE_MODEL, .u.create = {.spec = whole_spec(&small)}};
    const struct core_call *created = pair_call(0, &create);
    assert_true(created->answered);
    assert_int_equal(AMP_EEXHAUSTED, created->reply.error.code);
    assert_int_equal(1, pair_model(1)->shard->catalogue.count);
}

static void a_shard_with_a_store_of_before_an_epoch_is_named(void **state)
{
    (void)state;
    struct ampd_checkpoint_record part = {.epoch = 5, .step = 1};
    struct ampd_model_record record = {.epoch = 5, .checkpoints_count = 1, .checkpoints = &part};
    pair_start_zero(&record, 0);
    assert_non_null(strstr(pair_logged, "shard 1 has a data directory from before epoch 5"));
    assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
    send_to(1, AMPD_EVENT_PEER_UP); /* a session that breaks changes nothing */
    assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
}

static void a_checkpoint_that_no_two_shards_hold_any_more_is_not_replaced_by_none(void **state)
{
    (void)state;
    struct ampd_checkpoint_record part = {.epoch = 1, .step = 7, .parts_count = 2};
    struct ampd_model_record record = {.epoch = 1, .checkpoints_count = 1, .checkpoints = &part};
    pair_start_zero(&record, 0);
    assert_non_null(strstr(pair_logged, "no checkpoint of model can be read on all shards"));
    assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
}

/* Removing the parts of one shard must not void those of the other, be it known by then that all have theirs or not. */
static void one_part_is_damaged(uint32_t known)
{
    struct ampd_checkpoint_record part = pair_model(0)->shard->catalogue.records[0];
    assert_int_equal(2, part.parts_count);
    part.parts_count = pair_model(0)->shard->catalogue.records[0].parts_count = known;
    struct ampd_model_record record = {.epoch = 1, .checkpoints_count = 1, .checkpoints = &part};
    pair_restore_code[1] = AMP_EDATALOSS;
    pair_start_with(1, &record, 0);
    pair_send_start(1);
    assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
    assert_non_null(strstr(pair_logged, "is the checkpoint directory mounted"));
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(1, pair_model(k)->shard->epoch);
        assert_int_equal(1, pair_model(k)->shard->catalogue.count);
    }
    pair_start_with(1, &record, 0); /* they are back */
    pair_send_start(1);
    assert_int_equal(AMPD_COORD_WAITING, pair_model(0)->coord->state);
    assert_int_equal(2, pair_model(0)->coord->epoch);
    assert_int_equal(1, pair_model(0)->coord->base_epoch);
}

static void parts_that_one_shard_cannot_use_do_not_void_those_of_the_other(void **state)
{
    (void)state;
    one_part_is_damaged(2);
    (void)pair_teardown(NULL);
    (void)pair_setup(NULL);
    one_part_is_damaged(0);
}

static void assert_troubled(bool troubled)
{
    for (unsigned k = 0; k < 2; k++) {
        struct ampd_model_info info;
        ampd_core_model(pair_core[k], 0, &info);
        assert_int_equal(troubled, info.trouble != NULL);
    }
}

/* Shard 1 starts, and what it is to read is not there, or cannot be read now. */
static void start_without_parts(int code)
{
    struct ampd_checkpoint_record part = pair_model(0)->shard->catalogue.records[0];
    struct ampd_model_record record = {.epoch = 1, .checkpoints_count = 1, .checkpoints = &part};
    pair_restore_code[1] = code;
    pair_start_with(1, &record, 0);
    pair_send_start(1);
}

static void all_shards_know_at_once_that_a_model_is_refused(void **state)
{
    (void)state;
    start_without_parts(AMP_EDATALOSS);
    assert_troubled(true);
    start_without_parts(0);
    assert_int_equal(AMPD_COORD_WAITING, pair_model(0)->coord->state);
    assert_troubled(false);
}

static void what_waits_for_a_model_is_told_when_it_is_refused(void **state)
{
    (void)state;
    pair_hold_messages = true;
    start_without_parts(AMP_EDATALOSS);
    while (pair_model(0)->coord->state != AMPD_COORD_RESTORING) {
        pair_deliver_first();
        pair_settle();
    }
    struct ampd_event load = {.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "model", .loader = 9}};
    const struct core_call *loading = pair_call(0, &load);
    assert_false(loading->answered);
    pair_hold_messages = false;
    pair_settle();
    assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
    assert_true(loading->answered);
    assert_int_equal(AMP_EUNAVAILABLE, loading->reply.error.code);
    assert_non_null(strstr(loading->reply.error.text, "mounted"));
}

static const struct core_call *delete_by_force(void)
{
    static const struct ampd_note note = {.actor = "test"};
    struct ampd_event event = {.type = AMPD_EVENT_DELETE_MODEL,
                               .u.act = {.model = "model", .force = true, .note = &note}};
    return pair_call(0, &event);
}

/* The name is free on both, and nothing of before stands in the way of a new one. */
static void assert_deleted_and_created_anew(void)
{
    const struct core_call *deleted = delete_by_force();
    assert_true(deleted->answered);
    assert_int_equal(0, deleted->reply.error.code);
    assert_int_equal(-1, ampd_core_find(pair_core[0], "model"));
    assert_int_equal(-1, ampd_core_find(pair_core[1], "model"));
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    struct ampd_event create = {.type = AMPD_EVENT_CREATE_MODEL, .u.create = {.spec = whole_spec(&spec)}};
    const struct core_call *created = pair_call(0, &create);
    assert_true(created->answered);
    assert_int_equal(0, created->reply.error.code);
    assert_int_equal(2, created->reply.u.create.epoch);
    pair_load(0);
    pair_load(1);
    pair_settle();
    assert_int_equal(AMPD_COORD_WAITING, pair_model(0)->coord->state);
    assert_troubled(false);
}

static void a_refused_model_is_deleted_on_all_shards_and_its_name_is_free(void **state)
{
    (void)state;
    start_without_parts(AMP_EDATALOSS);
    assert_deleted_and_created_anew();
}

static void a_model_that_cannot_be_read_now_can_be_deleted_by_force(void **state)
{
    (void)state;
    start_without_parts(AMP_EIO);
    assert_int_equal(AMPD_COORD_RESTORING, pair_model(0)->coord->state);
    assert_deleted_and_created_anew();
}

static void a_model_that_one_shard_has_no_store_of_can_be_deleted_by_force(void **state)
{
    (void)state;
    pair_start_with(1, NULL, 0);
    pair_send_start(1);
    assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
    assert_deleted_and_created_anew();
}

/* Else a crash of shard 0 would leave a model that shard 1 does not know any more, and nobody deletes. */
static void no_shard_forgets_a_model_before_shard_0_has_stored_that_it_goes(void **state)
{
    (void)state;
    static const struct ampd_note note = {.actor = "test"};
    struct ampd_event event = {.type = AMPD_EVENT_DELETE_MODEL,
                               .call = ++pair_calls_count,
                               .u.act = {.model = "model", .force = true, .note = &note}};
    pair_calls[event.call] = (struct core_call){0};
    pair_step(0, &event);
    assert_int_equal(AMPD_COORD_DELETING, pair_model(0)->coord->state);
    ampd_sync_start(pair_core[0]); /* as where a checkpoint of another model turns out to be gone */
    event = (struct ampd_event){.type = AMPD_EVENT_TICK};
    pair_step(0, &event);
    while (pair_messages_count > 0) {
        assert_int_not_equal(AMPD_MESSAGE_DELETE, pair_first()->type);
        pair_deliver_first();
    }
    pair_settle();
    assert_int_equal(-1, ampd_core_find(pair_core[0], "model"));
    assert_int_equal(-1, ampd_core_find(pair_core[1], "model"));
}

static void who_has_started_is_remembered_until_a_refused_model_goes_on(void **state)
{
    (void)state;
    struct ampd_checkpoint_record part = {.epoch = 1, .step = 7, .parts_count = 2};
    struct ampd_model_record record = {.epoch = 1, .checkpoints_count = 1, .checkpoints = &part};
    pair_start_with(1, &record, 0);
    pair_send_start(1);
    assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
    assert_int_equal(AMPD_BIT(1), pair_model(0)->coord->sync.started);
    start_without_parts(0);
    assert_int_equal(AMPD_COORD_WAITING, pair_model(0)->coord->state);
    assert_int_equal(0, pair_model(0)->coord->sync.started);
}

static struct core_call *begin_load(unsigned shard)
{
    struct ampd_event load = {.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "model", .loader = 9}};
    return pair_call(shard, &load);
}

/* An answer would tell the loader that its values are safe, and the new epoch may begin without any. */
static void a_load_is_not_answered_before_the_coordinator_of_now_says_that_the_model_is_loaded(void **state)
{
    (void)state;
    assert_true(begin_load(1)->reply.u.load.already_loaded);
    struct ampd_checkpoint_record part = {.epoch = 1, .step = 7, .parts_count = 2};
    struct ampd_model_record record = {.epoch = 1, .checkpoints_count = 1, .checkpoints = &part};
    pair_start_zero(&record, 0); /* SYNC does not end: no checkpoint is whole */
    assert_true(pair_model(1)->shard->announced.state >= AMPD_MODEL_WAITING);
    assert_false(begin_load(1)->answered);
}

static void a_load_that_has_waited_for_a_new_coordinator_is_answered(void **state)
{
    (void)state;
    struct ampd_checkpoint_record part = {.epoch = 1};
    struct ampd_model_record record = {.epoch = 1, .checkpoints_count = 1, .checkpoints = &part};
    pair_start_zero(&record, 0);
    assert_int_equal(AMPD_COORD_WAITING, pair_model(0)->coord->state);
    assert_true(begin_load(1)->reply.u.load.already_loaded);
    assert_true(begin_load(0)->reply.u.load.already_loaded);
}

/* The answer of shard 1 to RESTORE, one thing of which is of another state than shard 0's. */
static struct ampd_message *other_part(unsigned what)
{
    const struct ampd_coord *coord = pair_model(0)->coord;
    struct ampd_message *message = pair_message(AMPD_MESSAGE_RESTORED, 1, 0);
    message->round = coord->restore.round;
    message->u.restore = coord->restore.result;
    struct ampd_restore *restore = &message->u.restore;
    restore->version += what == 0 ? 1 : 0;
    restore->carry.scaler.scale *= what == 1 ? 2 : 1;
    restore->carry.scaler.scale_id += what == 2 ? 1 : 0;
    restore->carry.scaler.attempted += what == 3 ? 1 : 0;
    restore->carry.scaler.applied += what == 4 ? 1 : 0;
    restore->ok = what != 5;
    return message;
}

/* SYNC had been answered when a shard ended a newer part, for which it drops the one before. */
static void a_checkpoint_that_was_dropped_since_sync_does_not_end_the_search(void **state)
{
    (void)state;
    start_again(1);
    pair_hold_messages = true;
    start_again(1);
    while (pair_model(0)->coord->state != AMPD_COORD_RESTORING) {
        pair_deliver_first();
        pair_settle();
    }
    uint64_t round = pair_core[0]->sync.round;
    struct ampd_message *message = other_part(5);
    message->from_fence = pair_core[1]->config.fence;
    message->u.restore.absent = true;
    pair_send_take(message);
    assert_true(pair_core[0]->sync.running && pair_core[0]->sync.round > round);
}

static void parts_of_two_states_are_no_checkpoint(void **state)
{
    (void)state;
    for (unsigned what = 0; what < 6; what++) {
        (void)pair_teardown(NULL);
        (void)pair_setup(NULL);
        struct ampd_checkpoint_record part = {.epoch = 1};
        struct ampd_model_record record = {.epoch = 1, .checkpoints_count = 1, .checkpoints = &part};
        pair_start_with(1, &record, 0);
        pair_send_start(1);
        assert_int_equal(AMPD_COORD_WAITING, pair_model(0)->coord->state);
        pair_hold_messages = true; /* shard 1 answers nothing itself */
        pair_start_with(1, &record, 0);
        pair_send_start(1);
        while (pair_model(0)->coord->state != AMPD_COORD_RESTORING && pair_messages_count > 0) {
            pair_deliver_first();
            pair_settle();
        }
        assert_int_equal(AMPD_COORD_RESTORING, pair_model(0)->coord->state);
        assert_int_equal(AMPD_BIT(0), pair_model(0)->coord->answered);
        struct ampd_message *message = other_part(what);
        message->from_fence = pair_core[1]->config.fence;
        pair_logged[0] = 0;
        pair_send_take(message);
        if (what < 5)
            assert_non_null(strstr(pair_logged_before, "a part of another state"));
        assert_non_null(strstr(pair_logged, "no checkpoint of model can be read")); /* that was the only one */
        assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
    }
}

/* Shard 1 has started and cannot read its checkpoint now: model "model" waits for it, and another one does not. */
static void a_shard_that_cannot_read_holds_up_one_model_and_all_shards_know(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    (void)memcpy(spec.name, "other", sizeof("other"));
    struct ampd_event create = {.type = AMPD_EVENT_CREATE_MODEL, .u.create = {.spec = whole_spec(&spec)}};
    assert_int_equal(0, pair_call(0, &create)->reply.error.code);
    struct ampd_checkpoint_record part = pair_model(0)->shard->catalogue.records[0];
    struct ampd_model_record record = {.epoch = 1, .checkpoints_count = 1, .checkpoints = &part};
    pair_start_with(1, &record, 0);
    record = (struct ampd_model_record){.spec = pair_core[0]->models[1]->spec, .epoch = 1};
    struct ampd_event found = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    pair_step(1, &found);
    pair_restore_code[1] = AMP_EIO;
    pair_send_start(1);
    for (unsigned k = 0; k < 2; k++) {
        struct ampd_model_info info;
        ampd_core_model(pair_core[k], 0, &info);
        assert_true(info.recovering && info.trouble != NULL);
        ampd_core_model(pair_core[k], 1, &info);
        assert_false(info.recovering);
        assert_int_equal(AMPD_MODEL_CREATED, info.state);
    }
    pair_now_ms += 5000;
    send_to(1, AMPD_EVENT_TICK);
    assert_int_equal(AMPD_COORD_WAITING, pair_model(0)->coord->state);
    for (unsigned k = 0; k < 2; k++)
        assert_false(pair_model(k)->shard->announced.troubled);
}

/* The rest of its answer may have gone with a session. */
static void a_shard_that_hears_of_trouble_says_its_answer_to_sync_again(void **state)
{
    (void)state;
    pair_hold_messages = true;
    struct ampd_message *message = pair_message(AMPD_MESSAGE_STATE, 0, 1);
    message->u.state.trouble = true;
    ampd_message_free(pair_last);
    pair_last = NULL;
    pair_send_take(message);
    assert_non_null(pair_last);
    assert_int_equal(AMPD_MESSAGE_SYNCED, pair_last->type);
    assert_int_equal(pair_core[0]->sync.current, pair_last->round);
    assert_false(pair_last->u.sync.waits);
}

/* What shard 1 says when it has started: it has nothing of the last decided step but, perhaps, its vote. */
static void answer_sync(uint64_t voted)
{
    pair_hold_messages = true;
    struct ampd_message *message = pair_message(AMPD_MESSAGE_HELLO, 1, 0);
    message->from_fence.counter = 2;
    pair_send_take(message);
    assert_true(pair_core[0]->sync.running);
    message = pair_message(AMPD_MESSAGE_SYNCED, 1, 0);
    message->from_fence.counter = 2;
    message->round = pair_core[0]->sync.round;
    assert_int_equal(0, ampd_spec_copy(&message->u.sync.spec, &pair_model(0)->spec));
    message->u.sync.highest_epoch = 1;
    message->u.sync.ready = true;
    message->u.sync.carry = pair_model(1)->shard->carry;
    message->u.sync.voted = voted;
    message->u.sync.checkpoints_count = 1;
    message->u.sync.checkpoints = calloc(1, sizeof(message->u.sync.checkpoints[0]));
    assert_non_null(message->u.sync.checkpoints);
    message->u.sync.checkpoints[0] = pair_model(1)->shard->catalogue.records[0];
    pair_send_take(message);
    message = pair_message(AMPD_MESSAGE_SYNC_DONE, 1, 0);
    message->from_fence.counter = 2;
    message->round = pair_core[0]->sync.round;
    pair_send_take(message);
    assert_false(pair_core[0]->sync.running);
}

static void a_shard_that_has_lost_its_vote_on_a_decided_step_brings_a_new_epoch(void **state)
{
    (void)state;
    answer_sync(0);
    assert_int_equal(AMPD_COORD_RESTORING, pair_model(0)->coord->state);
    assert_non_null(strstr(pair_logged, "has lost its vote on step 1"));
}

static void a_vote_on_another_list_than_that_of_the_verdict_is_lost_too(void **state)
{
    (void)state;
    answer_sync(pair_model(0)->coord->decision.verdict->row.contributors_hash + 1);
    assert_int_equal(AMPD_COORD_RESTORING, pair_model(0)->coord->state);
}

static void a_shard_that_holds_its_vote_on_a_decided_step_is_told_the_verdict(void **state)
{
    (void)state;
    answer_sync(pair_model(0)->coord->decision.verdict->row.contributors_hash);
    assert_int_equal(AMPD_COORD_RUNNING, pair_model(0)->coord->state);
    assert_int_equal(1, pair_model(0)->coord->epoch);
    bool told = false; /* though its process before had said that it was applied */
    for (; pair_messages_count > 0; pair_deliver_first())
        told = told || (pair_first()->type == AMPD_MESSAGE_VERDICT && pair_first()->u.verdict.row.step == 1);
    assert_true(told);
}

static void a_cut_at_a_step_whose_verdict_is_told_again_is_forgotten_and_wanted_again(void **state)
{
    (void)state;
    struct ampd_coord *coord = pair_model(0)->coord;
    uint64_t hash = coord->decision.verdict->row.contributors_hash;
    ampd_checkpoints_expect(coord, 1); /* as after a CUT, which a shard without the verdict drops */
    answer_sync(hash);
    assert_false(ampd_checkpoints_under_way(coord, 1));
    assert_true(coord->checkpoint.wanted);
}

/* Also where too few workers are there for another try of the step: it is not open until there are enough. */
static void a_vote_of_before_a_recovery_does_not_count_after_it(void **state)
{
    (void)state;
    struct ampd_coord *coord = pair_model(0)->coord;
    (void)pair_push(0, 2, 1);
    assert_int_equal(1, coord->step.votes_count);
    pair_model(0)->spec.on_loss = AMPD_ON_LOSS_SHRINK;
    pair_model(0)->spec.durability = AMPD_DURABILITY_STEP;
    pair_now_ms += pair_core[0]->config.lease_ms;
    struct ampd_event event = {.type = AMPD_EVENT_TICK};
    pair_step(0, &event);
    coord->state = AMPD_COORD_RESTORING; /* as when a RESTORE has come to nothing */
    answer_sync(pair_model(0)->coord->decision.verdict->row.contributors_hash);
    assert_int_equal(AMPD_COORD_RUNNING, coord->state);
    assert_int_equal(AMPD_STEP_NONE, coord->step.state);
    event = (struct ampd_event){.type = AMPD_EVENT_JOIN,
                                .u.join = {.model = "model", .worker = "w0", .rank = 0, .world_size = 1}};
    assert_int_equal(0, pair_call(0, &event)->reply.error.code);
    assert_int_equal(AMPD_STEP_CLOSED, coord->step.state);
    assert_int_equal(1, coord->step.open.try_number);
    assert_int_equal(0, coord->step.votes_count);
}

static void an_answer_of_another_restore_or_epoch_does_not_count(void **state)
{
    (void)state;
    struct ampd_checkpoint_record part = {.epoch = 1};
    struct ampd_model_record record = {.epoch = 1, .checkpoints_count = 1, .checkpoints = &part};
    pair_hold_messages = true;
    pair_start_with(1, &record, 0);
    pair_send_start(1);
    while (pair_model(0)->coord->state != AMPD_COORD_RESTORING && pair_messages_count > 0) {
        pair_deliver_first();
        pair_settle();
    }
    for (unsigned what = 0; what < 3; what++) {
        struct ampd_message *message = other_part(9);
        message->u.restore.epoch += what == 0 ? 1 : 0;
        message->u.restore.step += what == 1 ? 1 : 0;
        message->round -= what == 2 ? 1 : 0;
        pair_send_take(message);
        assert_int_equal(AMPD_COORD_RESTORING, pair_model(0)->coord->state);
    }
    struct ampd_message *done = pair_message(AMPD_MESSAGE_SYNC_DONE, 1, 0); /* of a round that is over */
    pair_send_take(done);
    struct ampd_message *stored = pair_message(AMPD_MESSAGE_EPOCH_STORED, 1, 0);
    pair_send_take(stored);
    assert_int_equal(AMPD_COORD_RESTORING, pair_model(0)->coord->state);
}

/* RESTORE of shard 1 alone, as of the round that it has answered. */
static void restore(uint64_t epoch, uint64_t step)
{
    struct ampd_message *message = pair_message(AMPD_MESSAGE_RESTORE, 0, 1);
    message->u.restore.epoch = epoch;
    message->u.restore.step = step;
    message->u.restore.carry = pair_model(0)->coord->carry;
    pair_send_take(message);
}

/* What shard 1 says when it is asked for the same again. */
static const struct ampd_restore *said_again(uint64_t epoch)
{
    restore(epoch, 0);
    assert_int_equal(AMPD_MESSAGE_RESTORED, pair_last->type);
    return &pair_last->u.restore;
}

static void a_shard_says_again_how_a_restore_has_ended(void **state)
{
    (void)state;
    const struct ampd_shard *shard = pair_model(1)->shard;
    restore(9, 9); /* it has none such: its memory stays as it is */
    assert_int_equal(AMPD_MEMORY_READY, shard->memory);
    assert_true(shard->restore.refused);
    restore(9, 9);
    assert_false(pair_last->u.restore.ok);
}

static void a_shard_that_lost_its_memory_says_so_again(void **state)
{
    (void)state;
    const struct ampd_shard *shard = pair_model(1)->shard;
    pair_restore_code[1] = AMP_EDATALOSS;
    restore(1, 0);
    assert_int_equal(AMPD_MEMORY_LOST, shard->memory);
    assert_false(said_again(1)->ok);
    struct ampd_message *epoch = pair_message(AMPD_MESSAGE_EPOCH, 0, 1); /* of a checkpoint that is not in memory */
    epoch->u.epoch.record = (struct ampd_epoch_record){.epoch = 9, .base_epoch = 1};
    pair_send_take(epoch);
    assert_int_equal(AMPD_MEMORY_LOST, shard->memory);
    restore(0, 0); /* there is no checkpoint to begin from */
    assert_true(said_again(0)->ok);
    restore(1, 0);
    assert_int_equal(AMPD_MEMORY_RESTORED, shard->memory);
    assert_true(said_again(1)->ok);
    for (unsigned what = 0; what < 2; what++) { /* an epoch from another one */
        epoch = pair_message(AMPD_MESSAGE_EPOCH, 0, 1);
        epoch->u.epoch.record = (struct ampd_epoch_record){.epoch = 9, .base_epoch = 1};
        epoch->u.epoch.record.base_epoch += what == 0 ? 1 : 0;
        epoch->u.epoch.record.base_step += what == 1 ? 1 : 0;
        pair_send_take(epoch);
        assert_int_equal(AMPD_MEMORY_RESTORED, shard->memory);
        assert_int_equal(1, shard->epoch);
    }
}

static void a_checkpoint_call_ends_when_a_shard_starts_anew(void **state)
{
    (void)state;
    struct ampd_event event = {.type = AMPD_EVENT_CHECKPOINT, .u.named = {"model"}};
    const struct core_call *call = pair_call(0, &event);
    assert_false(call->answered); /* until the next verdict */
    start_again(1);
    assert_true(call->answered);
    assert_int_equal(AMP_EUNAVAILABLE, call->reply.error.code);
    assert_string_equal("RECOVERING", call->reply.error.reason);
}

static void a_part_that_is_there_makes_the_older_ones_pointless(void **state)
{
    (void)state;
    struct ampd_coord *coord = pair_model(0)->coord;
    ampd_checkpoints_expect(coord, 0); /* that a restart of shard 1 has lost */
    ampd_checkpoints_expect(coord, 1);
    const struct ampd_checkpoint_record record = {.epoch = 1, .step = 1};
    for (unsigned k = 0; k < 2; k++)
        assert_int_equal(0, ampd_catalogue_add(pair_model(k)->shard, &record));
    for (unsigned k = 0; k < 2; k++) {
        struct ampd_message *message = pair_message(AMPD_MESSAGE_PART_DONE, k, 0);
        message->u.restore.step = 1;
        pair_send_take(message);
        assert_int_equal(k == 0 ? 2 : 0, coord->checkpoint.writing_count);
    }
    assert_int_equal(1, coord->checkpoint.durable_step);
}

static struct core_call *roll_back(uint64_t step, const char *id)
{
    static struct ampd_note note;
    (void)snprintf(note.request_id, sizeof(note.request_id), "%s", id);
    struct ampd_event event = {.type = AMPD_EVENT_ROLLBACK,
                               .u.act = {.model = "model", .note = &note, .epoch = 1, .step = step}};
    return pair_call(0, &event);
}

static void a_rollback_waits_for_what_each_shard_says_of_that_checkpoint(void **state)
{
    (void)state;
    const struct ampd_coord *coord = pair_model(0)->coord;
    pair_hold_messages = true;
    const struct core_call *first = roll_back(0, "one");
    assert_int_equal(AMPD_ROLLBACK_ASKING, coord->rollback.state);
    assert_int_equal(AMPD_BIT(0), coord->rollback.held);
    assert_false(roll_back(0, "one")->answered); /* the same: it waits too */
    assert_string_equal("ROLLING_BACK", roll_back(1, "one")->reply.error.reason);
    assert_string_equal("ROLLING_BACK", roll_back(0, "two")->reply.error.reason);
    for (unsigned what = 0; what < 2; what++) {
        struct ampd_message *held = pair_message(AMPD_MESSAGE_HELD, 1, 0);
        held->u.restore = (struct ampd_restore){.epoch = what == 0 ? 2 : 1, .step = what, .ok = true};
        pair_send_take(held);
        assert_int_equal(AMPD_BIT(0), coord->rollback.held);
    }
    pair_forget_messages();
    pair_hold_messages = false;
    send_to(1, AMPD_EVENT_PEER_UP); /* HOLDS is asked again */
    assert_true(first->answered);
    assert_int_equal(0, first->reply.error.code);
    assert_int_equal(2, pair_model(1)->shard->epoch);
}

static void a_rollback_tells_all_shards_what_the_parts_are_before_its_epoch_is_stored(void **state)
{
    (void)state;
    for (unsigned k = 0; k < 2; k++)
        pair_model(k)->shard->catalogue.records[0].parts_count =
            0; /* as after starts between which another one was the newest */
    assert_int_equal(0, roll_back(0, "one")->reply.error.code);
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(2, pair_model(k)->shard->epoch);
        assert_int_equal(2, pair_model(k)->shard->catalogue.records[0].parts_count);
    }
}

static void a_rollback_that_sync_comes_into_tells_them_to_the_shard_that_has_started(void **state)
{
    (void)state;
    pair_hold_messages = true;
    (void)roll_back(0, "one");
    while (pair_model(0)->coord->rollback.state != AMPD_ROLLBACK_BEGUN)
        pair_deliver_first();
    pair_forget_messages();
    pair_hold_messages = false;
    start_again(1); /* without what it was told of the parts */
    assert_int_equal(2, pair_model(1)->shard->epoch);
    assert_int_equal(2, pair_model(1)->shard->catalogue.records[0].parts_count);
}

static void shard_0_knows_how_far_all_are_and_another_one_itself_alone(void **state)
{
    (void)state;
    struct ampd_coord *coord = pair_model(0)->coord;
    struct ampd_shard_info info;
    ampd_core_shard(pair_core[0], 1, 0, &info);
    assert_true(info.up && !info.leaving);
    assert_int_equal(1, info.applied_step);
    assert_int_equal(0, info.behind + info.awaited);
    (void)pair_push(0, 2, 1); /* shard 0 has voted, shard 1 has nothing */
    ampd_core_shard(pair_core[0], 1, -1, &info);
    assert_int_equal(1, info.awaited);
    ampd_core_shard(pair_core[0], 0, -1, &info);
    assert_int_equal(0, info.awaited);
    coord->decision.state = AMPD_DECIDED_APPLYING; /* as when its APPLIED is on its way */
    coord->decision.applied_bits = AMPD_BIT(0);
    ampd_core_shard(pair_core[0], 1, 0, &info);
    assert_int_equal(1, info.behind);
    assert_int_equal(0, info.applied_step);
    coord->decision.state = AMPD_DECIDED_APPLIED;
    ampd_core_shard(pair_core[1], 1, 0, &info);
    assert_int_equal(1, info.decided_step);
    ampd_core_shard(pair_core[1], 0, 0, &info);
    assert_int_equal(0, info.decided_step);
    assert_true(ampd_core_synced(pair_core[0]) && ampd_core_synced(pair_core[1]));
    send_to(0, AMPD_EVENT_PEER_DOWN);
    ampd_core_shard(pair_core[0], 1, 0, &info);
    assert_false(info.up);
    struct ampd_event other = {.type = AMPD_EVENT_PEER_UP, .u.shard = 1}; /* no session with shard 0: nothing is said */
    pair_step(1, &other);
    assert_int_equal(0, pair_messages_count);
}

static int connected(void **state)
{
    (void)pair_setup(state);
    send_to(0, AMPD_EVENT_PEER_UP);
    return 0;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, connected, pair_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_hello_before_the_start_and_a_sync_that_is_over_are_not_answered),
        TEST(an_answer_of_before_the_hello_does_not_end_sync_without_what_was_dropped_of_it),
        TEST(a_model_that_shard_0_has_no_memory_for_is_told_and_left_alone),
        TEST(the_name_of_a_model_that_shard_0_has_no_memory_for_is_not_given_to_another),
        TEST(a_shard_with_a_store_of_before_an_epoch_is_named),
        TEST(a_checkpoint_that_no_two_shards_hold_any_more_is_not_replaced_by_none),
        TEST(parts_that_one_shard_cannot_use_do_not_void_those_of_the_other),
        TEST(all_shards_know_at_once_that_a_model_is_refused),
        TEST(what_waits_for_a_model_is_told_when_it_is_refused),
        TEST(a_refused_model_is_deleted_on_all_shards_and_its_name_is_free),
        TEST(a_model_that_cannot_be_read_now_can_be_deleted_by_force),
        TEST(a_model_that_one_shard_has_no_store_of_can_be_deleted_by_force),
        TEST(no_shard_forgets_a_model_before_shard_0_has_stored_that_it_goes),
        TEST(who_has_started_is_remembered_until_a_refused_model_goes_on),
        TEST(a_checkpoint_that_was_dropped_since_sync_does_not_end_the_search),
        TEST(a_load_is_not_answered_before_the_coordinator_of_now_says_that_the_model_is_loaded),
        TEST(a_load_that_has_waited_for_a_new_coordinator_is_answered),
        TEST(parts_of_two_states_are_no_checkpoint),
        TEST(an_answer_of_another_restore_or_epoch_does_not_count),
        TEST(a_shard_that_cannot_read_holds_up_one_model_and_all_shards_know),
        TEST(a_shard_that_hears_of_trouble_says_its_answer_to_sync_again),
        TEST(a_shard_that_has_lost_its_vote_on_a_decided_step_brings_a_new_epoch),
        TEST(a_vote_on_another_list_than_that_of_the_verdict_is_lost_too),
        TEST(a_shard_that_holds_its_vote_on_a_decided_step_is_told_the_verdict),
        TEST(a_cut_at_a_step_whose_verdict_is_told_again_is_forgotten_and_wanted_again),
        TEST(a_vote_of_before_a_recovery_does_not_count_after_it),
        TEST(a_shard_says_again_how_a_restore_has_ended),
        TEST(a_shard_that_lost_its_memory_says_so_again),
        TEST(a_checkpoint_call_ends_when_a_shard_starts_anew),
        TEST(a_part_that_is_there_makes_the_older_ones_pointless),
        TEST(a_rollback_waits_for_what_each_shard_says_of_that_checkpoint),
        TEST(a_rollback_tells_all_shards_what_the_parts_are_before_its_epoch_is_stored),
        TEST(a_rollback_that_sync_comes_into_tells_them_to_the_shard_that_has_started),
        TEST(shard_0_knows_how_far_all_are_and_another_one_itself_alone),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
