/*
 * Two shards, and messages that are of no use: of another epoch, step, try or round, of ranks that are not there, from whom they
 * cannot come, or a second time. None of them changes anything, and none of them ends a process.
 */
#include "tests/unit/core_pair.h"
#include "server/core/base/worker.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/checkpoints.h"
#include "server/core/coordinator/workers.h"
#include "server/core/model/spec.h"
#include "server/core/base/process.h"
#include "server/core/shard/shard.h"
#include "server/core/process/leave.h"
#include "server/core/wire/messages.h"
#include "tests/whole_spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- strays ---- */

/* What there is to see of both shards. */
struct view {
    struct ampd_model_info info[2];
    enum ampd_coord_state state;
    enum ampd_step_state step, steps[2];
    uint64_t try_number, durable;
};

static struct view look(void)
{
    struct view view;
    memset(&view, 0, sizeof(view));
    for (unsigned k = 0; k < 2; k++) {
        ampd_core_model(pair_core[k], 0, &view.info[k]);
        view.steps[k] = pair_model(k)->shard->step.state;
    }
    view.state = pair_model(0)->coord->state;
    view.step = pair_model(0)->coord->step.state;
    view.try_number = pair_model(0)->coord->step.open.try_number;
    view.durable = pair_model(0)->coord->checkpoint.durable_step;
    return view;
}

static void assert_same(const struct view *before)
{
    struct view after = look();
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(before->info[k].epoch, after.info[k].epoch);
        assert_int_equal(before->info[k].decided_step, after.info[k].decided_step);
        assert_int_equal(before->info[k].version, after.info[k].version);
        assert_int_equal(before->info[k].recovering, after.info[k].recovering);
        assert_int_equal(before->info[k].checkpoints_count, after.info[k].checkpoints_count);
        assert_int_equal(before->steps[k], after.steps[k]);
    }
    assert_int_equal(before->state, after.state);
    assert_int_equal(before->step, after.step);
    assert_int_equal(before->try_number, after.try_number);
    assert_int_equal(before->durable, after.durable);
}

/* Sends it, and nothing is changed by it. */
static void stray(struct ampd_message *message)
{
    struct view before = look();
    pair_send_take(message);
    assert_same(&before);
}

static void completes_and_votes_that_are_not_of_this_try_count_nowhere(void **state)
{
    (void)state;
    const struct ampd_coord *coord = pair_model(0)->coord;
    struct ampd_complete complete = {coord->step.open.step, coord->step.open.try_number, {0, pair_incarnation, 1}, 0};
    for (unsigned wrong = 0; wrong < 4; wrong++) {
        struct ampd_message *message = pair_message(AMPD_MESSAGE_COMPLETE, 1, 0);
        message->u.complete = complete;
        message->epoch += wrong == 0 ? 1 : 0;
        message->u.complete.step += wrong == 1 ? 1 : 0;
        message->u.complete.try_number += wrong == 2 ? 1 : 0;
        message->u.complete.contributor.rank += wrong == 3 ? 1 : 0;
        stray(message);
        assert_int_equal(0, coord->step.complete[0]);
    }
    for (unsigned wrong = 0; wrong < 4; wrong++) {
        struct ampd_message *message = pair_message(AMPD_MESSAGE_VOTE, 1, 0);
        message->u.vote.step = coord->step.open.step + (wrong == 0 ? 1 : 0);
        message->u.vote.try_number = coord->step.open.try_number + (wrong == 1 ? 1 : 0);
        message->u.vote.contributors_hash = coord->step.hash + (wrong == 2 ? 1 : 0);
        message->epoch += wrong == 3 ? 1 : 0;
        stray(message);
        assert_int_equal(0, coord->step.votes_count);
    }
    for (unsigned twice = 0; twice < 2; twice++) { /* a right one counts once */
        struct ampd_message *message = pair_message(AMPD_MESSAGE_VOTE, 1, 0);
        message->u.vote.step = coord->step.open.step;
        message->u.vote.contributors_hash = coord->step.hash;
        stray(message);
        assert_int_equal(1, coord->step.votes_count);
    }
}

static void a_vote_that_has_overtaken_its_applied_waits_to_be_said_again(void **state)
{
    (void)state;
    struct ampd_coord *coord = pair_model(0)->coord;
    coord->decision.state = AMPD_DECIDED_APPLYING; /* as when a session has broken with the APPLIED of shard 1 */
    coord->decision.applied_bits = AMPD_BIT(0);
    for (unsigned applied = 0; applied < 2; applied++) {
        struct ampd_message *vote = pair_message(AMPD_MESSAGE_VOTE, 1, 0);
        vote->u.vote.step = coord->step.open.step;
        vote->u.vote.contributors_hash = coord->step.hash;
        stray(vote);
        assert_int_equal(applied, coord->step.votes_count);
        struct ampd_message *message = pair_message(AMPD_MESSAGE_APPLIED, 1, 0);
        message->u.applied.step = 1;
        stray(message);
        assert_int_equal(AMPD_DECIDED_APPLIED, coord->decision.state);
    }
}

static void a_verdict_that_comes_again_has_the_vote_after_it_said_again_too(void **state)
{
    (void)state;
    struct ampd_coord *coord = pair_model(0)->coord;
    coord->decision.state = AMPD_DECIDED_APPLYING; /* as when shard 0 has started, and an OPEN overtakes this VERDICT */
    coord->decision.applied_bits = AMPD_BIT(0);
    (void)pair_push(0, 2, 1);
    (void)pair_push(1, 2, 1);
    assert_int_equal(AMPD_STEP_VOTED, pair_model(1)->shard->step.state);
    assert_int_equal(1, coord->step.votes_count);
    struct ampd_message *verdict = pair_verdict(1);
    pair_send_take(verdict);
    assert_int_equal(2, look().info[0].decided_step);
    assert_int_equal(2, look().info[1].decided_step);
}

static struct core_call *push_as(struct ampd_incarnation incarnation)
{
    struct ampd_incarnation mine = pair_incarnation;
    pair_incarnation = incarnation;
    struct core_call *call = pair_push(1, 2, 1);
    pair_incarnation = mine;
    return call;
}

static void a_shard_refuses_whom_the_open_step_has_dropped_and_waits_for_whom_it_does_not_know(void **state)
{
    (void)state;
    struct ampd_incarnation older = {pair_incarnation.fence, pair_incarnation.counter - 1};
    struct ampd_incarnation newer = {pair_incarnation.fence, pair_incarnation.counter + 1};
    assert_int_equal(AMP_EABORTED, push_as(older)->reply.error.code);
    assert_string_equal("FENCED", push_as(older)->reply.error.reason);
    struct ampd_incarnation guess = {pair_incarnation.fence,
                                     pair_incarnation.counter | (uint64_t)5 << AMPD_INCARNATION_NUMBER_BITS};
    assert_string_equal("FENCED", push_as(guess)->reply.error.reason);
    struct core_call *early = push_as(newer);
    assert_false(early->answered || early->granted);
    struct ampd_message *open = pair_message(AMPD_MESSAGE_OPEN, 0, 1); /* its lease has ended */
    open->u.open = pair_model(0)->coord->step.open;
    open->u.open.try_number++;
    open->u.open.expected_count = 0;
    open->u.open.closed = false;
    pair_send_take(open);
    assert_string_equal("FENCED", push_as(pair_incarnation)->reply.error.reason);
    assert_false(early->answered || early->granted);
    open = pair_message(AMPD_MESSAGE_OPEN, 0, 1); /* it has joined again */
    open->u.open = pair_model(0)->coord->step.open;
    open->u.open.try_number += 2;
    open->u.open.expected[0].incarnation = newer;
    pair_send_take(open);
    assert_true(early->granted);
    assert_string_equal("FENCED", push_as(pair_incarnation)->reply.error.reason);
}

static bool renew(unsigned shard, struct ampd_incarnation incarnation)
{
    uint64_t until_ms = pair_model(0)->workers[0].lease_until_ms;
    struct ampd_event event = {.type = AMPD_EVENT_RENEW, .u.worker = {"model", 0, incarnation}};
    pair_step(shard, &event);
    event = (struct ampd_event){.type = AMPD_EVENT_TICK};
    pair_step(shard, &event);
    pair_settle();
    return pair_model(0)->workers[0].lease_until_ms > until_ms;
}

static void a_worker_that_is_heard_on_another_shard_keeps_its_lease(void **state)
{
    (void)state;
    struct ampd_event up = {.type = AMPD_EVENT_PEER_UP, .u.shard = 0};
    pair_step(1, &up);
    struct ampd_incarnation other = {pair_incarnation.fence, pair_incarnation.counter + 1};
    for (unsigned i = 0; i < 3; i++) {
        pair_now_ms += AMPD_LEASE_MS - 1;
        assert_true(renew(1, pair_incarnation));
        assert_false(renew(1, pair_incarnation)); /* so soon nothing is said of it; but it will be */
        pair_now_ms += AMPD_LEASE_MS / 8;
        struct ampd_event tick = {.type = AMPD_EVENT_TICK};
        uint64_t until_ms = pair_model(0)->workers[0].lease_until_ms;
        pair_step(1, &tick);
        pair_settle();
        assert_true(pair_model(0)->workers[0].lease_until_ms > until_ms);
    }
    pair_now_ms += AMPD_LEASE_MS / 2;
    assert_false(renew(1, other)); /* nobody's */
    struct ampd_event down = {.type = AMPD_EVENT_PEER_DOWN, .u.shard = 0};
    pair_step(1, &down);
    pair_now_ms += AMPD_LEASE_MS / 4;
    assert_false(renew(1, pair_incarnation)); /* it is lost, and nothing waits for a session that is not there */
}

static void answers_that_nobody_waits_for_have_no_effect(void **state)
{
    (void)state;
    static const enum ampd_message_type types[] = {
        AMPD_MESSAGE_RESTORED,  AMPD_MESSAGE_EPOCH_STORED, AMPD_MESSAGE_APPLIED, AMPD_MESSAGE_PART_DONE,
        AMPD_MESSAGE_HELD,      AMPD_MESSAGE_DELETED,      AMPD_MESSAGE_LOADED,  AMPD_MESSAGE_LOAD_GONE,
        AMPD_MESSAGE_LOAD_WANT, AMPD_MESSAGE_SYNC_DONE,    AMPD_MESSAGE_SYNCED,  AMPD_MESSAGE_NOT_CREATED};
    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        stray(pair_message(types[i], 1, 0));
        struct ampd_message *message = pair_message(types[i], 1, 0); /* of an epoch that is over */
        message->epoch--;
        message->round--;
        stray(message);
    }
}

static void orders_of_another_epoch_step_or_round_have_no_effect(void **state)
{
    (void)state;
    const struct ampd_coord *coord = pair_model(0)->coord;
    static const enum ampd_message_type types[] = {AMPD_MESSAGE_OPEN,  AMPD_MESSAGE_CLOSE,      AMPD_MESSAGE_VERDICT,
                                                   AMPD_MESSAGE_CUT,   AMPD_MESSAGE_STATE,      AMPD_MESSAGE_UNFIT,
                                                   AMPD_MESSAGE_EPOCH, AMPD_MESSAGE_LOAD_GRANT, AMPD_MESSAGE_RESTORE};
    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        for (unsigned late = 0; late < 2; late++) {
            struct ampd_message *message = pair_message(types[i], 0, 1);
            message->epoch -= late;
            message->round = 0; /* before the SYNC that was answered last */
            stray(message);
        }
        struct ampd_message *message = pair_message(types[i], 1, 0); /* a shard orders nothing */
        stray(message);
    }
    struct ampd_message *again = pair_message(AMPD_MESSAGE_OPEN, 0, 1);
    again->u.open = coord->step.open;
    stray(again);
    struct ampd_message *cut = pair_message(AMPD_MESSAGE_CUT, 0, 1); /* a part that is in the catalogue is told again */
    cut->u.restore.step = 0;
    ampd_message_free(pair_last);
    pair_last = NULL;
    stray(cut);
    assert_non_null(pair_last);
    assert_int_equal(AMPD_MESSAGE_PART_DONE, pair_last->type);
    struct ampd_message *verdict = pair_verdict(1); /* so is that a step is applied */
    stray(verdict);
    assert_int_equal(AMPD_MESSAGE_APPLIED, pair_last->type);
}

static void messages_to_nobody_and_about_nothing_have_no_effect(void **state)
{
    (void)state;
    struct ampd_message *message = pair_message(AMPD_MESSAGE_CUT, 0, 1);
    (void)snprintf(message->model, sizeof(message->model), "another");
    stray(message);
    message = pair_message(AMPD_MESSAGE_COMPLETE, 1, 0);
    message->from = 2; /* no such shard */
    stray(message);
    struct view before = look();
    message = pair_message(AMPD_MESSAGE_VOTE, 1, 0);
    message->to = 1;
    struct ampd_event event = {.type = AMPD_EVENT_PEER, .u.message = message};
    pair_step(0, &event); /* to another shard than this one */
    ampd_message_free(message);
    assert_same(&before);
    static const enum ampd_message_type of_the_coordinator[] = {AMPD_MESSAGE_SYNC, AMPD_MESSAGE_CREATE,
                                                                AMPD_MESSAGE_DELETE};
    for (unsigned i = 0; i < 3; i++)
        stray(pair_message(of_the_coordinator[i], 1, 0));
    static const enum ampd_message_type to_the_coordinator[] = {AMPD_MESSAGE_HELLO, AMPD_MESSAGE_SYNCED,
                                                                AMPD_MESSAGE_SYNC_DONE};
    for (unsigned i = 0; i < 3; i++)
        stray(pair_message(to_the_coordinator[i], 0, 1));
    message = pair_message(AMPD_MESSAGE_CREATE, 0, 1); /* of a model that is here */
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    assert_int_equal(0, ampd_spec_copy(&message->u.spec, &spec));
    stray(message);
    message =
        pair_message(AMPD_MESSAGE_DELETE, 0, 1); /* of one that is not: it is answered, for it may have been done */
    (void)snprintf(message->model, sizeof(message->model), "another");
    stray(message);
    assert_int_equal(AMPD_MESSAGE_DELETED, pair_last->type);
}

static void fences_that_are_lower_or_of_another_boot_are_refused_once(void **state)
{
    (void)state;
    struct ampd_message *message = pair_message(AMPD_MESSAGE_HELLO, 1, 0);
    message->from_fence.counter = 0;
    message->to_fence = (struct ampd_fence){0};
    pair_hold_messages = true;
    stray(message);
    assert_int_equal(AMPD_MESSAGE_TOO_LOW, pair_last->type);
    message = pair_message(AMPD_MESSAGE_HELLO, 1, 0); /* the same counter, another boot */
    message->from_fence.boot_id[0] = 9;
    stray(message);
    assert_int_equal(AMPD_MESSAGE_TOO_LOW, pair_last->type);
    pair_forget_messages();
    message = pair_message(AMPD_MESSAGE_TOO_LOW, 1, 0); /* two that think so of each other would never end */
    message->from_fence.counter = 0;
    message->u.fence.counter = 7;
    stray(message);
    assert_int_equal(0, pair_messages_count);
    message = pair_message(AMPD_MESSAGE_TOO_LOW, 1, 0); /* not higher than its own: nobody has its place */
    message->u.fence = pair_core[0]->config.fence;
    stray(message);
    assert_false(pair_core[0]->fenced);
    message = pair_message(AMPD_MESSAGE_VOTE, 1, 0); /* to the process before this one */
    message->to_fence.boot_id[0] = 9;
    stray(message);
    struct ampd_event found = {.type = AMPD_EVENT_FENCE_FOUND, .u.fence = {5, {.counter = 3}}};
    pair_step(0, &found); /* of a shard that there is no more */
    found.u.fence.shard = 0;
    pair_step(0, &found); /* and its own */
    pair_hold_messages = false;
}

/* A stranger with the role of a shard may name ever higher ones. */
static void of_fences_that_rise_one_is_stored_at_a_time(void **state)
{
    (void)state;
    const uint64_t before = pair_core[0]->peers[1].fence.counter;
    uint64_t first = 0;
    pair_hold_kind = AMPD_PERSIST_FENCE;
    for (uint64_t above = 1; above <= 3; above++) {
        struct ampd_message *message = pair_message(AMPD_MESSAGE_HELLO, 1, 0);
        message->from_fence.counter = before + above;
        message->to_fence = (struct ampd_fence){0};
        pair_send_take(message);
        first = first == 0 ? pair_held_token : first;
        assert_int_equal(first, pair_held_token);
        assert_int_equal(before + 1, pair_core[0]->peers[1].storing.counter);
    }
    struct ampd_event stored = {.type = AMPD_EVENT_PERSISTED, .u.persisted = {first}};
    pair_step(0, &stored); /* what is held has the highest, which is stored next */
    pair_settle();
    assert_int_equal(before + 1, pair_core[0]->peers[1].fence.counter);
    assert_int_equal(before + 3, pair_core[0]->peers[1].storing.counter);
    assert_int_not_equal(first, pair_held_token);
    pair_hold_kind = 0;
}

static void a_process_whose_place_is_taken_says_no_more(void **state)
{
    (void)state;
    struct ampd_message *message = pair_message(AMPD_MESSAGE_TOO_LOW, 0, 1);
    message->u.fence = pair_core[1]->config.fence;
    message->u.fence.boot_id[0] = 9; /* the same counter, another boot */
    pair_send_take(message);
    assert_true(pair_core[1]->fenced);
    assert_non_null(strstr(pair_logged, "answers nobody any more"));
    message = pair_message(AMPD_MESSAGE_TOO_LOW, 0, 1);
    message->u.fence.counter = 9;
    pair_send_take(message);
    ampd_message_free(pair_last);
    pair_last = NULL;
    struct ampd_event up = {.type = AMPD_EVENT_PEER_UP, .u.shard = 0};
    pair_step(1, &up);
    assert_null(pair_last);
}

static void unlike_weights_on_two_shards_are_told_to_the_worker_on_both(void **state)
{
    (void)state;
    (void)pair_teardown(NULL);
    pair_begin(AMPD_WEIGHTING_PUSHED);
    const struct core_call *first = pair_push(0, 1, 2), *second = pair_push(1, 1, 3);
    assert_true(first->answered && second->answered);
    assert_int_equal(AMP_EINVAL, first->reply.error.code);
    assert_string_equal("WEIGHT", first->reply.error.reason);
    assert_int_equal(AMP_EINVAL, second->reply.error.code);
    assert_int_equal(AMPD_STEP_OPEN, pair_model(0)->coord->step.state);
    (void)pair_push(0, 1, 2);
    assert_int_equal(0, pair_push(1, 1, 2)->reply.error.code);
    assert_int_equal(1, look().info[1].decided_step);
}

static void unlike_rates_on_two_shards_are_told_to_the_worker_on_both(void **state)
{
    (void)state;
    (void)pair_teardown(NULL);
    pair_lr = 0.1;
    pair_begin(AMPD_WEIGHTING_EQUAL);
    const struct core_call *first = pair_push(0, 1, 1);
    pair_lr = 0.05;
    const struct core_call *second = pair_push(1, 1, 1);
    assert_true(first->answered && second->answered);
    for (unsigned k = 0; k < 2; k++) {
        const struct core_call *call = k == 0 ? first : second;
        assert_int_equal(AMP_EINVAL, call->reply.error.code);
        assert_string_equal("LEARNING_RATE", call->reply.error.reason);
        assert_non_null(strstr(call->reply.error.text, "0.10000000000000001"));
        assert_non_null(strstr(call->reply.error.text, "0.050000000000000003"));
    }
    assert_int_equal(AMPD_STEP_OPEN, pair_model(0)->coord->step.state);
    (void)pair_push(0, 1, 1);
    assert_int_equal(0, pair_push(1, 1, 1)->reply.error.code);
    assert_int_equal(1, look().info[1].decided_step);
    for (unsigned k = 0; k < 2; k++)
        assert_true(pair_model(k)->shard->decided.verdict->row.lr == 0.05);
}

static void a_rate_that_no_worker_can_name_is_not_taken_from_a_shard(void **state)
{
    (void)state;
    const double rates[] = {NAN, INFINITY, -1};
    for (unsigned i = 0; i < 3; i++) {
        struct view before = look();
        struct ampd_message *message = pair_message(AMPD_MESSAGE_COMPLETE, 1, 0);
        message->u.complete.lr = rates[i];
        pair_send_take(message);
        assert_same(&before);
        assert_int_equal(0, pair_model(0)->coord->step.complete[0]);
    }
}

static void a_shard_without_memory_for_a_model_says_so_to_its_creator(void **state)
{
    (void)state;
    (void)pair_teardown(NULL);
    pair_now_ms = 1000;
    pair_start(0, 1);
    struct ampd_core_config small = {
        .shard = 1, .shards = 2, .fence = {.counter = 1}, .block_elements = AMPD_ALIGN_ELEMENTS, .memory_max = 1};
    assert_int_equal(0, ampd_core_new(&small, &pair_core[1]));
    pair_send_start(0);
    pair_send_start(1);
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    struct ampd_event event = {.type = AMPD_EVENT_CREATE_MODEL, .u.create = {.spec = whole_spec(&spec)}};
    const struct core_call *call = pair_call(0, &event);
    assert_true(call->answered);
    assert_int_equal(AMP_EEXHAUSTED, call->reply.error.code);
    assert_non_null(strstr(call->reply.error.text, "shard 1 cannot make model"));
}

static void calls_that_only_shard_0_answers_name_it(void **state)
{
    (void)state;
    static const enum ampd_event_type types[] = {AMPD_EVENT_KEEP_ALIVE, AMPD_EVENT_LEAVE};
    for (unsigned i = 0; i < 2; i++) {
        struct ampd_event event = {.type = types[i], .u.worker = {"model", 0, pair_incarnation}};
        const struct core_call *call = pair_call(1, &event);
        assert_int_equal(AMP_EUNAVAILABLE, call->reply.error.code);
        assert_string_equal("NOT_COORDINATOR", call->reply.error.reason);
    }
    struct ampd_note note = {{0}, {0}, {0}};
    static const enum ampd_event_type acts[] = {AMPD_EVENT_SET_SCALE, AMPD_EVENT_ROLLBACK, AMPD_EVENT_DELETE_MODEL};
    for (unsigned i = 0; i < 3; i++) {
        struct ampd_event event = {.type = acts[i], .u.act = {.model = "model", .note = &note, .scale = 8}};
        assert_string_equal("NOT_COORDINATOR", pair_call(1, &event)->reply.error.reason);
    }
    struct ampd_event checkpoint = {.type = AMPD_EVENT_CHECKPOINT, .u.named = {"model"}};
    assert_string_equal("NOT_COORDINATOR", pair_call(1, &checkpoint)->reply.error.reason);
    struct ampd_event renew = {.type = AMPD_EVENT_RENEW, .u.worker = {"model", 0, pair_incarnation}};
    struct view before = look();
    pair_step(1, &renew); /* leases are shard 0's */
    renew.u.worker.model = "another";
    pair_step(0, &renew);
    renew.u.worker = (struct ampd_event_worker){"model", 9, pair_incarnation};
    pair_step(0, &renew);
    assert_same(&before);
}

static void roll_back(int code_of_1, const char *reason)
{
    struct ampd_note note = {{0}, {0}, {0}};
    struct ampd_event event = {.type = AMPD_EVENT_ROLLBACK,
                               .u.act = {.model = "model", .note = &note, .epoch = 1, .step = 0}};
    pair_restore_code[1] = code_of_1;
    const struct core_call *call = pair_call(0, &event);
    assert_true(call->answered);
    assert_string_equal(reason, call->reply.error.reason);
}

static void a_rollback_of_two_shards_goes_through_or_is_told_to_have_failed(void **state)
{
    (void)state;
    roll_back(0, "");
    assert_int_equal(2, look().info[0].epoch);
    assert_int_equal(2, look().info[1].epoch);
    roll_back(AMP_EDATALOSS,
              "CHECKPOINT_DAMAGED"); /* SYNC finds that it can be read now, as the newest that both hold */
    assert_int_equal(3, look().info[1].epoch);
    assert_int_equal(AMPD_COORD_WAITING, pair_model(0)->coord->state);
}

static void a_part_that_another_shard_has_lost_is_no_checkpoint_to_go_back_to(void **state)
{
    (void)state;
    pair_hold_messages = true;
    struct ampd_note note = {{0}, {0}, {0}};
    struct ampd_event event = {.type = AMPD_EVENT_ROLLBACK,
                               .u.act = {.model = "model", .note = &note, .epoch = 1, .step = 0}};
    const struct core_call *call = pair_call(0, &event);
    pair_model(1)->shard->catalogue.count = 0; /* as after a loss of its disk */
    pair_hold_messages = false;
    pair_settle();
    assert_string_equal("CHECKPOINT_NOT_FOUND", call->reply.error.reason);
    assert_int_equal(1, look().info[0].epoch);
    assert_int_equal(AMPD_COORD_RUNNING, pair_model(0)->coord->state);
}

static void a_part_that_went_after_it_was_promised_costs_no_memory_and_the_model_goes_back(void **state)
{
    (void)state;
    pair_hold_messages = true;
    struct ampd_note note = {{0}, {0}, {0}};
    struct ampd_event event = {.type = AMPD_EVENT_ROLLBACK,
                               .u.act = {.model = "model", .note = &note, .epoch = 1, .step = 0}};
    const struct core_call *call = pair_call(0, &event);
    while (pair_model(0)->coord->rollback.state != AMPD_ROLLBACK_BEGUN) /* until both have said that they hold it */
        pair_deliver_first();
    struct ampd_checkpoint_record had = pair_model(1)->shard->catalogue.records[0];
    pair_model(1)->shard->catalogue.count = 0;
    while (!pair_model(1)->shard->restore.refused)
        pair_deliver_first();
    assert_int_equal(AMPD_MEMORY_READY, pair_model(1)->shard->memory);
    pair_model(1)->shard->catalogue.records[pair_model(1)->shard->catalogue.count++] = had;
    pair_hold_messages = false;
    pair_settle();
    assert_int_equal(AMP_EDATALOSS, call->reply.error.code);
    assert_int_equal(AMPD_COORD_WAITING, pair_model(0)->coord->state); /* shard 0 has lost its memory: a new epoch */
    assert_int_equal(2, look().info[1].epoch);
}

static struct ampd_message *from_1(enum ampd_message_type type)
{
    struct ampd_message *message = pair_message(type, 1, 0);
    message->from_fence.counter = 2; /* it has started */
    message->round = pair_core[0]->sync.round;
    return message;
}

/* All had stored it, and a SYNC came before shard 0 heard so: its record, and the step in its hands, are of the epoch before. */
static void an_epoch_that_shard_0_has_not_seen_begin_does_not_go_on_with_its_record(void **state)
{
    (void)state;
    const struct ampd_coord *coord = pair_model(0)->coord;
    assert_true(coord->has_record && coord->decision.state != AMPD_DECIDED_NONE);
    pair_hold_messages = true;
    pair_send_take(from_1(AMPD_MESSAGE_HELLO));
    struct ampd_message *message = from_1(AMPD_MESSAGE_SYNCED);
    assert_int_equal(0, ampd_spec_copy(&message->u.sync.spec, &pair_model(0)->spec));
    message->u.sync.highest_epoch = 2;
    message->u.sync.lost = true;
    message->u.sync.checkpoints_count = 1;
    message->u.sync.checkpoints = calloc(1, sizeof(message->u.sync.checkpoints[0]));
    assert_non_null(message->u.sync.checkpoints);
    message->u.sync.checkpoints[0] = pair_model(1)->shard->catalogue.records[0];
    pair_send_take(message);
    pair_send_take(from_1(AMPD_MESSAGE_SYNC_DONE));
    assert_false(pair_core[0]->sync.running);
    assert_int_equal(2, coord->epoch);
    assert_false(coord->has_record);
    assert_int_equal(AMPD_STEP_NONE, coord->step.state);
    assert_int_equal(AMPD_STEP_NONE, coord->decision.state);
}

static void two_processes_of_one_count_are_told_apart_by_their_boot(void **state)
{
    (void)state;
    struct ampd_message *same = pair_message(AMPD_MESSAGE_TOO_LOW, 0, 1);
    same->u.fence = pair_core[1]->config.fence;
    pair_send_take(same);
    assert_false(pair_core[1]->fenced);
    struct ampd_message *other = pair_message(AMPD_MESSAGE_TOO_LOW, 0, 1);
    other->u.fence = pair_core[1]->config.fence;
    other->u.fence.boot_id[0] ^= 1;
    pair_send_take(other);
    assert_true(pair_core[1]->fenced);
}

static void who_may_leave_is_not_for_a_shard_to_say(void **state)
{
    (void)state;
    struct ampd_message *leave = pair_message(AMPD_MESSAGE_LEAVE, 0, 1);
    pair_send_take(leave);
    struct ampd_message *may = pair_message(AMPD_MESSAGE_MAY_LEAVE, 1, 0);
    pair_send_take(may);
    may = pair_message(AMPD_MESSAGE_MAY_LEAVE, 0, 0); /* not even to itself */
    pair_send_take(may);
    assert_int_equal(0, pair_core[0]->leave.may);
    assert_false(ampd_core_pauses(pair_core[0]) || ampd_core_pauses(pair_core[1]));
}

static void a_session_that_comes_back_finds_all_as_it_was(void **state)
{
    (void)state;
    struct view before = look();
    struct ampd_event up = {.type = AMPD_EVENT_PEER_UP, .u.shard = 0};
    for (unsigned i = 0; i < 3; i++) {
        pair_step(1, &up);
        pair_settle();
        assert_same(&before);
    }
    (void)pair_push(1, 2, 1); /* complete on shard 1 alone */
    pair_hold_messages = true;
    pair_step(1, &up);
    pair_forget_messages(); /* lost with the next session */
    pair_step(1, &up);
    pair_hold_messages = false;
    pair_settle();
    assert_int_equal(0, pair_push(0, 2, 1)->reply.error.code);
    assert_int_equal(2, look().info[0].decided_step);
    assert_int_equal(2, look().info[1].decided_step);
}

static void without_workers_both_cut_the_last_step_though_the_session_breaks(void **state)
{
    (void)state;
    struct ampd_event leave = {.type = AMPD_EVENT_LEAVE, .u.worker = {"model", 0, pair_incarnation}};
    struct ampd_event event = {.type = AMPD_EVENT_CHECKPOINT, .u.named = {"model"}};
    struct ampd_event up = {.type = AMPD_EVENT_PEER_UP, .u.shard = 0};
    (void)pair_call(0, &leave);
    pair_hold_messages = true;
    const struct core_call *call = pair_call(0, &event);
    assert_int_equal(2, look().info[0].checkpoints_count);
    assert_int_equal(1, look().info[1].checkpoints_count);
    pair_forget_messages(); /* CUT is lost */
    pair_hold_messages = false;
    pair_step(1, &up);
    pair_settle();
    assert_true(call->answered);
    assert_int_equal(1, call->reply.u.checkpoint.step);
    assert_int_equal(2, look().info[1].checkpoints_count);
    assert_int_equal(1, look().info[0].durable_step);
}

/* Both say the same of the model. */
static void assert_both_say(enum ampd_model_state expected, uint64_t durable)
{
    struct view view = look();
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(expected, view.info[k].state);
        assert_int_equal(durable, view.info[k].durable_step);
        assert_false(view.info[k].unstable);
    }
}

static void begin_without_a_model(void)
{
    pair_now_ms = 1000;
    pair_hold_messages = false;
    for (unsigned k = 0; k < 2; k++)
        pair_start(k, 1);
    for (unsigned k = 0; k < 2; k++)
        pair_send_start(k);
}

static void tick_after(uint64_t ms)
{
    struct ampd_event tick = {.type = AMPD_EVENT_TICK};
    pair_now_ms += ms;
    pair_step(0, &tick);
    pair_settle();
}

static void each_shard_says_how_the_model_stands(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    struct ampd_event create = {.type = AMPD_EVENT_CREATE_MODEL, .u.create = {.spec = &spec}};
    struct ampd_event join = {.type = AMPD_EVENT_JOIN,
                              .u.join = {.model = "model", .worker = "w0", .rank = 0, .world_size = 1}};
    begin_without_a_model();
    core_spec(&spec, 1);
    spec.max_steps = 2;
    whole_spec(&spec);
    (void)pair_call(0, &create);
    assert_both_say(AMPD_MODEL_CREATED, 0);
    pair_load(0);
    assert_int_equal(AMPD_MODEL_LOADING, look().info[0].state);
    pair_load(1);
    pair_settle();
    assert_both_say(AMPD_MODEL_WAITING, 0);
    pair_incarnation = pair_call(0, &join)->reply.u.join.incarnation;
    assert_both_say(AMPD_MODEL_RUNNING, 0);
    (void)pair_push(0, 1, 1);
    (void)pair_push(1, 1, 1);
    assert_both_say(AMPD_MODEL_RUNNING, 0);
    tick_after(AMPD_LEASE_MS);
    tick_after(pair_model(0)->spec.loss_timeout_ms);
    assert_both_say(AMPD_MODEL_STALLED, 0);
    assert_int_equal(0, look().info[1].waits.missing_rank);
    pair_incarnation = pair_call(0, &join)->reply.u.join.incarnation;
    (void)pair_push(0, 2, 1);
    (void)pair_push(1, 2, 1);
    assert_both_say(AMPD_MODEL_DONE, 2);
    assert_int_equal(AMPD_MODEL_DONE, pair_notified[0]); /* else whoever watches it would wait for ever */
}

/* Whatever is on its way is lost; when nothing has come of it for a while, HELLO is said again. */
static void lose_all(uint64_t wait_ms)
{
    struct ampd_event tick = {.type = AMPD_EVENT_TICK};
    assert_true(pair_messages_count > 0);
    pair_forget_messages();
    assert_int_equal(pair_now_ms + wait_ms, pair_core[1]->hello.again_ms);
    pair_now_ms = pair_core[1]->hello.again_ms;
    pair_step(1, &tick);
    assert_true(pair_messages_count > 0);
    assert_int_equal(AMPD_MESSAGE_HELLO, pair_first()->type);
}

/* Another process of shard 0, without a disk: everything begins with its SYNC. */
static void restart_shard_0(void)
{
    ampd_core_free(pair_core[0]);
    pair_start(0, 2);
    struct ampd_event event = {.type = AMPD_EVENT_START};
    pair_step(0, &event);
}

static void a_question_that_is_lost_in_a_session_that_lives_is_asked_again(void **state)
{
    (void)state;
    pair_hold_messages = true;
    restart_shard_0();
    struct ampd_event up = {.type = AMPD_EVENT_PEER_UP, .u.shard = 0};
    pair_step(1, &up);
    lose_all(5000);
    lose_all(10000);                                  /* who has said nothing yet may not be there */
    while (pair_first()->type != AMPD_MESSAGE_SYNC) { /* HELLO, which is answered when the fence is stored */
        pair_deliver_first();
        pair_settle();
    }
    assert_true(pair_core[0]->sync.running);
    lose_all(20000);
    pair_hold_messages = false;
    pair_settle();
    assert_false(pair_core[0]->sync.running);
}

/* A process of shard 1 that starts anew with an empty disk, while the model lives. */
static void a_shard_that_has_lost_its_store_is_named_and_nothing_is_begun_without_it(void **state)
{
    (void)state;
    ampd_core_free(pair_core[1]);
    pair_start(1, 2);
    struct ampd_event event = {.type = AMPD_EVENT_START};
    pair_step(1, &event);
    pair_settle();
    event = (struct ampd_event){.type = AMPD_EVENT_PEER_UP, .u.shard = 0};
    pair_step(1, &event);
    pair_settle();
    assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
    assert_non_null(strstr(pair_logged, "shard 1 does not know model, of which"));
}

int main(void)
{
#define TEST_OF(name) cmocka_unit_test_setup_teardown(name, pair_setup, pair_teardown)
    const struct CMUnitTest tests[] = {
        TEST_OF(completes_and_votes_that_are_not_of_this_try_count_nowhere),
        TEST_OF(a_vote_that_has_overtaken_its_applied_waits_to_be_said_again),
        TEST_OF(a_verdict_that_comes_again_has_the_vote_after_it_said_again_too),
        TEST_OF(a_worker_that_is_heard_on_another_shard_keeps_its_lease),
        TEST_OF(a_shard_refuses_whom_the_open_step_has_dropped_and_waits_for_whom_it_does_not_know),
        TEST_OF(answers_that_nobody_waits_for_have_no_effect),
        TEST_OF(orders_of_another_epoch_step_or_round_have_no_effect),
        TEST_OF(messages_to_nobody_and_about_nothing_have_no_effect),
        TEST_OF(fences_that_are_lower_or_of_another_boot_are_refused_once),
        TEST_OF(of_fences_that_rise_one_is_stored_at_a_time),
        TEST_OF(a_process_whose_place_is_taken_says_no_more),
        TEST_OF(unlike_weights_on_two_shards_are_told_to_the_worker_on_both),
        TEST_OF(unlike_rates_on_two_shards_are_told_to_the_worker_on_both),
        TEST_OF(a_rate_that_no_worker_can_name_is_not_taken_from_a_shard),
        TEST_OF(a_shard_without_memory_for_a_model_says_so_to_its_creator),
        TEST_OF(calls_that_only_shard_0_answers_name_it),
        TEST_OF(a_rollback_of_two_shards_goes_through_or_is_told_to_have_failed),
        TEST_OF(a_part_that_another_shard_has_lost_is_no_checkpoint_to_go_back_to),
        TEST_OF(a_part_that_went_after_it_was_promised_costs_no_memory_and_the_model_goes_back),
        TEST_OF(an_epoch_that_shard_0_has_not_seen_begin_does_not_go_on_with_its_record),
        TEST_OF(a_session_that_comes_back_finds_all_as_it_was),
        TEST_OF(two_processes_of_one_count_are_told_apart_by_their_boot),
        TEST_OF(who_may_leave_is_not_for_a_shard_to_say),
        TEST_OF(without_workers_both_cut_the_last_step_though_the_session_breaks),
        cmocka_unit_test_teardown(each_shard_says_how_the_model_stands, pair_teardown),

        TEST_OF(a_question_that_is_lost_in_a_session_that_lives_is_asked_again),
        TEST_OF(a_shard_that_has_lost_its_store_is_named_and_nothing_is_begun_without_it),
    };
#undef TEST_OF
    return cmocka_run_group_tests(tests, NULL, NULL);
}
