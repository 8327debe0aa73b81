/* The end of a process in order: what was decided is cut before anybody is let go, and nobody waits for ever. */
#include "tests/unit/core_pair.h"
#include "server/core/coordinator/coord.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/messages.h"

#include <string.h>

static void send_to(unsigned shard, enum ampd_event_type type)
{
    struct ampd_event event = {.type = type, .u.shard = shard == 0 ? 1 : 0};
    pair_step(shard, &event);
    pair_settle();
}

/* Time goes on, and both look at their clocks. */
static void wait_ms(uint64_t ms)
{
    pair_now_ms += ms;
    for (unsigned k = 0; k < 2; k++) {
        struct ampd_event tick = {.type = AMPD_EVENT_TICK};
        pair_step(k, &tick);
        pair_settle();
    }
}

static uint64_t newest_part(unsigned shard)
{
    const struct ampd_shard *inside = pair_model(shard)->shard;
    return inside->catalogue.records[inside->catalogue.count - 1].step;
}

static int connected(void **state)
{
    (void)pair_setup(state);
    send_to(0, AMPD_EVENT_PEER_UP);
    return 0;
}

static void a_shard_that_is_to_end_is_let_go_when_both_hold_the_last_step(void **state)
{
    (void)state;
    assert_int_equal(0, newest_part(1));
    send_to(1, AMPD_EVENT_DRAIN);
    assert_int_equal(1, newest_part(0));
    assert_int_equal(1, newest_part(1));
    assert_true(pair_drained[1]);
    assert_false(pair_drained[0]);
    assert_non_null(strstr(pair_logged, "shard 1 is about to end"));
}

static void no_step_is_decided_while_a_shard_leaves(void **state)
{
    (void)state;
    pair_hold_messages = true;
    send_to(1, AMPD_EVENT_DRAIN);
    assert_false(pair_drained[1]); /* nobody has let it go */
    pair_deliver_first();
    pair_hold_messages = false;
    (void)pair_push(0, 2, 1);
    assert_int_equal(1, pair_model(0)->shard->decided.step);
    assert_int_equal(AMPD_STEP_CLOSED, pair_model(0)->coord->step.state);
    assert_true(pair_drained[1]);
}

static void shard_0_that_is_to_end_has_the_last_step_cut_everywhere_and_lets_all_go(void **state)
{
    (void)state;
    send_to(0, AMPD_EVENT_DRAIN);
    assert_true(pair_drained[0]);
    assert_int_equal(1, newest_part(1));
    send_to(1, AMPD_EVENT_PEER_DOWN);
    send_to(1, AMPD_EVENT_DRAIN); /* it need not ask anybody any more */
    assert_true(pair_drained[1]);
}

/* Whatever they lack for its last checkpoint: it goes with the others. */
static void shard_0_waits_for_no_checkpoint_of_a_model_that_is_being_deleted(void **state)
{
    (void)state;
    struct ampd_event checkpoint = {.type = AMPD_EVENT_CHECKPOINT, .u.named = {"model"}};
    struct ampd_note note = {.actor = "ann"};
    struct ampd_event deletion = {.type = AMPD_EVENT_DELETE_MODEL,
                                  .u.act = {.model = "model", .force = true, .note = &note}};
    (void)pair_call(0, &checkpoint);
    pair_hold_messages = true;
    (void)pair_push(1, 2, 1);
    (void)pair_push(0, 2, 1);
    while (pair_model(0)->coord->checkpoint.parts_sent != 3) {
        pair_deliver_first();
        pair_settle();
    }
    pair_forget_messages(); /* PARTS among them */
    (void)pair_call(0, &deletion);
    send_to(0, AMPD_EVENT_DRAIN);
    assert_int_equal(AMPD_COORD_DELETING, pair_model(0)->coord->state);
    assert_true(pair_drained[0]);
}

static void a_shard_that_hears_nothing_of_shard_0_ends_after_a_while(void **state)
{
    (void)state;
    pair_hold_messages = true;
    send_to(1, AMPD_EVENT_PEER_DOWN);
    send_to(1, AMPD_EVENT_DRAIN);
    pair_forget_messages();
    wait_ms(9999);
    assert_false(pair_drained[1]);
    send_to(1, AMPD_EVENT_PEER_DOWN); /* a session that came and went: it waits anew */
    wait_ms(9999);
    assert_false(pair_drained[1]);
    wait_ms(1);
    assert_true(pair_drained[1]);
    assert_non_null(strstr(pair_logged, "waited for no longer"));
}

/* Nothing that its threads have to do comes to its end. */
static void wait_busy_ms(unsigned shard, uint64_t ms)
{
    struct ampd_event tick = {.type = AMPD_EVENT_TICK};
    pair_now_ms += ms;
    pair_step(shard, &tick);
}

static void a_shard_that_can_hear_nobody_since_a_fence_is_being_stored_waits_from_then_on(void **state)
{
    (void)state;
    pair_hold_messages = true;
    send_to(1, AMPD_EVENT_PEER_DOWN);
    struct ampd_message *sync = ampd_message_new(AMPD_MESSAGE_SYNC); /* of another process of shard 0 */
    sync->to = 1;
    sync->from_fence.counter = 2;
    struct ampd_event events[] = {{.type = AMPD_EVENT_PEER, .u.message = sync}, {.type = AMPD_EVENT_DRAIN}};
    for (unsigned i = 0; i < 2; i++)
        pair_step(1, &events[i]);
    ampd_message_free(sync);
    for (unsigned i = 0; i < 3; i++)
        wait_busy_ms(1, 10000);
    pair_settle();
    assert_false(pair_drained[1]);
    wait_ms(9999);
    assert_false(pair_drained[1]);
    wait_ms(1);
    assert_true(pair_drained[1]);
    pair_forget_messages();
}

static void a_leave_that_a_session_has_lost_is_said_again(void **state)
{
    (void)state;
    pair_hold_messages = true;
    send_to(1, AMPD_EVENT_DRAIN);
    pair_forget_messages();
    pair_hold_messages = false;
    assert_false(pair_drained[1]);
    send_to(1, AMPD_EVENT_PEER_UP);
    assert_true(pair_drained[1]);
    assert_int_equal(1, newest_part(1));
}

/* A process in the place of one before, with its store: parts of steps 0 and 1. */
static void start_again(unsigned shard)
{
    struct ampd_checkpoint_record parts[] = {{.epoch = 1, .step = 0}, {.epoch = 1, .step = 1, .version = 1}};
    struct ampd_model_record record = {.epoch = 1, .checkpoints_count = 2, .checkpoints = parts};
    record.spec = pair_model(1 - shard)->spec;
    ampd_core_free(pair_core[shard]);
    pair_start(shard, 2);
    struct ampd_event found = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    pair_step(shard, &found);
}

static void a_leave_is_said_again_to_a_shard_0_that_has_started_meanwhile(void **state)
{
    (void)state;
    pair_hold_messages = true;
    send_to(1, AMPD_EVENT_DRAIN);
    start_again(0);
    pair_send_start(0);
    pair_forget_messages(); /* there was no session for them */
    pair_hold_messages = false;
    send_to(1, AMPD_EVENT_PEER_UP); /* HELLO, to whoever it is, and LEAVE to the process before */
    assert_int_equal(1, pair_core[0]->peers[1].leaving);
}

static void a_leave_that_comes_while_the_fence_is_being_stored_is_said_again(void **state)
{
    (void)state;
    send_to(1, AMPD_EVENT_DRAIN);
    pair_drained[1] = false;
    start_again(1);
    struct ampd_event events[] = {
        {.type = AMPD_EVENT_START}, {.type = AMPD_EVENT_PEER_UP, .u.shard = 0}, {.type = AMPD_EVENT_DRAIN}};
    for (unsigned i = 0; i < 3; i++)
        pair_step(1, &events[i]);
    while (pair_messages_count > 0)
        pair_deliver_first(); /* the fence comes with the first, and is not stored before the last */
    assert_int_equal(1, pair_core[0]->peers[1].leaving);
    pair_settle();
    assert_int_equal(2, pair_core[0]->peers[1].leaving);
}

static void a_coordinator_gives_the_last_checkpoint_up_for_a_shard_that_is_gone_alone(void **state)
{
    (void)state;
    pair_hold_messages = true;
    send_to(0, AMPD_EVENT_DRAIN);
    wait_ms(10000); /* the shard is there, and may be slow: it is waited for */
    assert_false(pair_drained[0]);
    send_to(0, AMPD_EVENT_PEER_DOWN);
    wait_ms(10000);
    assert_true(pair_drained[0]);
    assert_non_null(strstr(pair_logged, "is given up"));
    pair_forget_messages();
    send_to(1, AMPD_EVENT_DRAIN); /* it is back, and is told to end, too */
    pair_deliver_first();
    assert_int_equal(AMPD_MESSAGE_MAY_LEAVE, pair_last->type);
    assert_int_equal(1, pair_last->round);
    pair_forget_messages();
}

static void a_coordinator_that_cannot_end_yet_does_not_give_up_for_good(void **state)
{
    (void)state;
    struct ampd_event events[] = {{.type = AMPD_EVENT_DRAIN}, {.type = AMPD_EVENT_PEER_DOWN, .u.shard = 1}};
    for (unsigned i = 0; i < 2; i++)
        pair_step(0, &events[i]); /* its own part is being written */
    wait_busy_ms(0, 10000);
    assert_non_null(strstr(pair_logged, "is given up"));
    pair_settle(); /* the shard was there */
    assert_true(pair_drained[0]);
    assert_false(pair_core[0]->leave.given_up);
    assert_int_equal(1, newest_part(1));
}

static void a_shard_without_values_waits_for_nobody(void **state)
{
    (void)state;
    (void)pair_teardown(NULL);
    pair_now_ms = 1000;
    pair_drained[0] = pair_drained[1] = false;
    pair_start(0, 1);
    pair_start(1, 1);
    pair_send_start(0);
    pair_hold_messages = true;
    pair_send_start(1);
    send_to(1, AMPD_EVENT_DRAIN);
    assert_true(pair_drained[1]);
    pair_hold_messages = false;
    pair_settle();
}

static void steps_go_on_when_the_shard_is_back(void **state)
{
    (void)state;
    send_to(1, AMPD_EVENT_DRAIN);
    assert_true(pair_drained[1]);
    start_again(1); /* its store has what it had */
    pair_send_start(1);
    assert_int_equal(
        2, pair_model(1)->shard->epoch); /* durability CHECKPOINT: a restart is a new epoch, of the last step */
    assert_int_equal(1, pair_model(1)->shard->decided.step);
    assert_int_equal(AMPD_COORD_WAITING, pair_model(0)->coord->state);
}

static void each_leave_has_its_own_time(void **state)
{
    (void)state;
    send_to(1, AMPD_EVENT_DRAIN);
    start_again(1);
    pair_send_start(1);
    struct ampd_event join = {.type = AMPD_EVENT_JOIN,
                              .u.join = {.model = "model", .worker = "w0", .rank = 0, .world_size = 1}};
    pair_incarnation = pair_call(0, &join)->reply.u.join.incarnation;
    (void)pair_push(0, 2, 1);
    assert_true(pair_push(1, 2, 1)->answered);
    wait_ms(9000);
    pair_hold_messages = true;
    send_to(1, AMPD_EVENT_DRAIN);
    pair_deliver_first();
    assert_int_equal(2, pair_core[0]->peers[1].leaving);
    pair_forget_messages();
    send_to(0, AMPD_EVENT_PEER_DOWN);
    wait_ms(1000); /* the time of the process before would be over */
    assert_int_not_equal(2, pair_core[0]->peers[1].let_go);
    wait_ms(9000);
    assert_int_equal(2, pair_core[0]->peers[1].let_go); /* the last checkpoint is given up */
    pair_forget_messages();
    pair_hold_messages = false;
}

int main(void)
{
#define TEST_OF(name) cmocka_unit_test_setup_teardown(name, connected, pair_teardown)
    const struct CMUnitTest tests[] = {
        TEST_OF(a_shard_that_is_to_end_is_let_go_when_both_hold_the_last_step),
        TEST_OF(no_step_is_decided_while_a_shard_leaves),
        TEST_OF(shard_0_that_is_to_end_has_the_last_step_cut_everywhere_and_lets_all_go),
        TEST_OF(shard_0_waits_for_no_checkpoint_of_a_model_that_is_being_deleted),
        TEST_OF(a_shard_that_hears_nothing_of_shard_0_ends_after_a_while),
        TEST_OF(a_shard_that_can_hear_nobody_since_a_fence_is_being_stored_waits_from_then_on),
        TEST_OF(a_leave_that_a_session_has_lost_is_said_again),
        TEST_OF(a_leave_is_said_again_to_a_shard_0_that_has_started_meanwhile),
        TEST_OF(a_leave_that_comes_while_the_fence_is_being_stored_is_said_again),
        TEST_OF(a_coordinator_gives_the_last_checkpoint_up_for_a_shard_that_is_gone_alone),
        TEST_OF(a_coordinator_that_cannot_end_yet_does_not_give_up_for_good),
        TEST_OF(a_shard_without_values_waits_for_nobody),
        TEST_OF(steps_go_on_when_the_shard_is_back),
        TEST_OF(each_leave_has_its_own_time),
    };
#undef TEST_OF
    return cmocka_run_group_tests(tests, NULL, NULL);
}
