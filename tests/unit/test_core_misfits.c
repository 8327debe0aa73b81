/*
 * Two shards, and messages that come at the right time and cannot be about the model: of parameters, ranks or blocks that it does
 * not have. They are refused, the log says so, and nothing is read or written beside the model's memory.
 */
#include "tests/unit/core_pair.h"
#include "server/core/coordinator/coord.h"
#include "server/core/model/layout.h"
#include "server/core/model/spec.h"
#include "server/core/model/tensors.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/messages.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static char refused_as[AMP_ERROR_TEXT_MAX];

static void misfit(struct ampd_message *message)
{
    struct ampd_message *again = ampd_message_copy(message);
    pair_logged[0] = 0;
    pair_now_ms += 1000;
    pair_send_take(message);
    assert_non_null(strstr(pair_logged, "does not fit the model"));
    memcpy(refused_as, pair_logged, sizeof(refused_as));
    pair_logged[0] = 0;
    pair_send_take(again); /* the log has heard of it */
    assert_null(strstr(pair_logged, "does not fit the model"));
}

static struct ampd_message *vote_of_1(void)
{
    const struct ampd_coord *coord = pair_model(0)->coord;
    struct ampd_message *message = pair_message(AMPD_MESSAGE_VOTE, 1, 0);
    message->u.vote.step = coord->step.open.step;
    message->u.vote.try_number = coord->step.open.try_number;
    message->u.vote.contributors_hash = coord->step.hash;
    return message;
}

static struct ampd_message *vote_with(struct ampd_subtree first, struct ampd_subtree second)
{
    struct ampd_message *message = vote_of_1();
    message->u.vote.subtrees_count = 2;
    message->u.vote.subtrees = calloc(2, sizeof(first));
    assert_non_null(message->u.vote.subtrees);
    message->u.vote.subtrees[0] = first;
    message->u.vote.subtrees[1] = second;
    return message;
}

static void votes_of_other_parameters_blocks_or_orders_count_nowhere(void **state)
{
    (void)state;
    const struct ampd_layout *layout = pair_model(0)->layout;
    uint64_t first, count, last;
    ampd_layout_shard(layout, 1, 2, &first, &count);
    last = first + count - 1;
    uint32_t p = layout->segments[layout->block_segments[last]].parameter, none = pair_model(0)->spec.parameters_count;
    const struct ampd_subtree right = {p, 0, last, 1};
    misfit(vote_with(right, right));                                    /* twice the same */
    misfit(vote_with(right, (struct ampd_subtree){none, 0, last, 1}));  /* no parameter */
    misfit(vote_with((struct ampd_subtree){p, 0, last + 1, 1}, right)); /* no block */
    misfit(vote_with((struct ampd_subtree){0, 0, 0, 1}, right));        /* a block of shard 0 */
    misfit(vote_with((struct ampd_subtree){p, 63, last, 1}, right));    /* more blocks than there are */
    misfit(vote_with((struct ampd_subtree){p, 0, UINT64_MAX, 1}, right));
    /* NAN, which the store would take for nothing, or what would make a norm that no shard takes in a verdict. */
    const double squares[] = {(double)NAN, (double)INFINITY, -1, DBL_MAX};
    struct ampd_message *message;
    for (unsigned i = 0; i < sizeof(squares) / sizeof(squares[0]); i++) {
        message = vote_with((struct ampd_subtree){p, 0, last, squares[i]}, right);
        message->u.vote.subtrees_count = 1;
        misfit(message);
    }
    message = vote_of_1();
    message->u.vote.rows_count = 1;
    message->u.vote.rows[0].largest = NAN;
    misfit(message);
    message = vote_of_1();
    message->u.vote.rows_count = 1;
    message->u.vote.rows[0].parameter = none;
    misfit(message);
    message = vote_of_1();
    message->u.vote.rows_count = 1;
    message->u.vote.rows[0].rank = 1;
    misfit(message);
    assert_int_equal(0, pair_model(0)->coord->step.votes_count);
    message = vote_of_1();
    message->u.vote.rows_count = 2;
    message->u.vote.rows[0].rank = AMPD_RANK_RANGE;
    message->u.vote.rows[1].rank = AMPD_RANK_SUM;
    pair_send_take(message);
    assert_int_equal(1, pair_model(0)->coord->step.votes_count);
}

static void orders_for_ranks_that_there_are_not_are_refused(void **state)
{
    (void)state;
    for (unsigned twice = 0; twice < 2; twice++) {
        struct ampd_message *message = pair_message(AMPD_MESSAGE_OPEN, 0, 1);
        message->u.open = pair_model(0)->coord->step.open;
        message->u.open.try_number = 9;
        message->u.open.expected_count = 1 + twice;
        message->u.open.expected[0].rank = twice != 0 ? 0 : AMPD_WORLD_MAX - 1;
        misfit(message);
        message = pair_message(AMPD_MESSAGE_CLOSE, 0, 1);
        message->u.close.contributors_count = 1 + twice;
        message->u.close.contributors[0].rank = twice != 0 ? 0 : AMPD_WORLD_MAX - 1;
        misfit(message);
    }
    struct ampd_message *message = pair_verdict(2);
    message->u.verdict.row.contributors_count = 1;
    message->u.verdict.row.contributors[0].rank = 1;
    misfit(message);
    message = pair_verdict(2);
    message->u.verdict.row.clips_count = AMPD_GROUPS_MAX;
    misfit(message);
    assert_int_equal(1, pair_model(1)->shard->decided.step);
}

static void acts_with_a_learning_rate_that_cannot_be_are_refused(void **state)
{
    (void)state;
    const double wrong[] = {0, -1, (double)NAN, (double)INFINITY};
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct ampd_message *message = pair_message(AMPD_MESSAGE_ACTS, 0, 1);
        message->u.acts.step = pair_model(1)->shard->decided.step;
        message->u.acts.count = 1;
        message->u.acts.acts[0].kind = AMPD_ROW_LR;
        message->u.acts.acts[0].after = pair_model(0)->coord->carry;
        message->u.acts.acts[0].after.lr = wrong[i];
        misfit(message);
    }
    assert_int_equal(0, pair_acts_count[1]);
}

static void refused_for_its_numbers(struct ampd_message *message)
{
    misfit(message);
    assert_null(strstr(refused_as, "not voted on"));
}

/* All would be applied or stored, and NaN in any of them is a model of NaN. */
static void numbers_and_records_that_no_step_has_are_refused(void **state)
{
    (void)state;
    misfit(pair_verdict(2));
    assert_non_null(strstr(refused_as, "not voted on"));
    for (unsigned i = 0; i < 5; i++) {
        struct ampd_message *message = pair_verdict(2);
        struct ampd_step_row *row = &message->u.verdict.row;
        double *wide[] = {&row->norm, &row->lr};
        float *narrow[] = {&row->coefficient, &row->clip, &row->after.scaler.scale};
        if (i < 2)
            *wide[i] = (double)NAN;
        else
            *narrow[i - 2] = NAN;
        refused_for_its_numbers(message);
    }
    struct ampd_message *message = pair_verdict(2);
    message->u.verdict.row.lr = -DBL_MAX; /* times the factor of a group it may be -Inf */
    refused_for_its_numbers(message);
    message = pair_verdict(2);
    message->u.verdict.row.clips_count = 1;
    message->u.verdict.row.clips[0] = INFINITY;
    refused_for_its_numbers(message);
    message = pair_verdict(2);
    message->u.verdict.row.after.scaler.skipped++; /* of no step */
    refused_for_its_numbers(message);
    message = pair_message(AMPD_MESSAGE_ACTS, 0, 1);
    message->u.acts.step = pair_model(1)->shard->decided.step;
    message->u.acts.count = 1;
    message->u.acts.acts[0].kind = AMPD_ROW_SET; /* to a scale of 0 */
    misfit(message);
    message = pair_message(AMPD_MESSAGE_OPEN, 0, 1);
    message->u.open = pair_model(0)->coord->step.open;
    message->u.open.try_number = 9;
    message->u.open.scale = NAN;
    misfit(message);
    message = pair_message(AMPD_MESSAGE_CLOSE, 0, 1);
    message->u.close.coefficient = INFINITY;
    misfit(message);
    message = pair_message(AMPD_MESSAGE_RESTORE, 0, 1); /* a load, with a record that is none */
    misfit(message);
    message = pair_message(AMPD_MESSAGE_EPOCH, 0, 1);
    message->u.epoch.record = (struct ampd_epoch_record){.epoch = 2, .parent = 2, .base_epoch = 1};
    misfit(message);
    assert_int_equal(1, pair_model(1)->shard->epoch);
    assert_int_equal(1, pair_model(1)->shard->decided.step);
    assert_int_equal(AMPD_MEMORY_READY, pair_model(1)->shard->memory);
}

static void rows_with_metrics_that_no_worker_can_have_told_are_refused(void **state)
{
    (void)state;
    struct ampd_message *message = pair_verdict(2);
    message->u.verdict.row.metrics.loss_workers = 1; /* of no contributors */
    misfit(message);
    message = pair_verdict(2);
    message->u.verdict.row.contributors_count = 1;
    message->u.verdict.row.metrics.count = 1;
    message->u.verdict.row.metrics.items[0] = (struct ampd_metric){"", 1, 1}; /* without a name */
    misfit(message);
    message = vote_of_1();
    message->u.vote.metrics.count = 1;
    message->u.vote.metrics.items[0] = (struct ampd_metric){"accuracy", 1, 0}; /* which nobody told */
    misfit(message);
    assert_int_equal(1, pair_model(1)->shard->decided.step);
}

static void a_verdict_on_what_the_shard_has_not_voted_on_is_refused_and_not_stored(void **state)
{
    (void)state;
    const struct ampd_shard *shard = pair_model(1)->shard;
    struct ampd_message *message = pair_verdict(2);
    misfit(message);
    assert_int_equal(1, shard->decided.step);
    (void)pair_push(1, 2, 1);
    pair_hold_messages = true; /* that of shard 0 itself stays on its way */
    (void)pair_push(0, 2, 1);
    while (shard->step.state != AMPD_STEP_VOTED)
        pair_deliver_first();
    message = pair_verdict(2);
    message->u.verdict.row.contributors_hash = shard->step.hash + 1;
    misfit(message);
    assert_non_null(strstr(refused_as, "not voted on step 2"));
    assert_int_equal(1, shard->decided.step);
    pair_hold_messages = false;
    pair_settle();
    assert_int_equal(2, shard->decided.step);
}

/* Shard 1 as after a restart with a journal: it has voted on this list, and the step was opened again. */
static void keep_a_vote(const struct ampd_contributor *of)
{
    struct ampd_shard *shard = pair_model(1)->shard;
    assert_int_equal(AMPD_STEP_OPEN, shard->step.state);
    shard->step.close.contributors_count = 1;
    shard->step.close.contributors[0] = *of;
    shard->step.plan = ampd_plan_new(&pair_model(1)->tensors, 0);
    shard->journal.kept = calloc(1, sizeof(*shard->journal.kept));
    assert_true(shard->step.plan != NULL && shard->journal.kept != NULL);
    shard->step.plan->given = true;
    shard->journal.kept->step = shard->step.open.step;
    shard->journal.kept->contributors_hash = ampd_contributors_hash(of, 1);
}

static struct ampd_message *close_with(struct ampd_contributor contributor)
{
    const struct ampd_open *open = &pair_model(1)->shard->step.open;
    struct ampd_message *message = pair_message(AMPD_MESSAGE_CLOSE, 0, 1);
    message->u.close.step = open->step;
    message->u.close.try_number = open->try_number;
    message->u.close.contributors_count = 1;
    message->u.close.contributors[0] = contributor;
    return message;
}

static void a_list_unlike_that_of_a_vote_kept_over_a_restart_is_refused(void **state)
{
    (void)pair_teardown(state);
    pair_begin(AMPD_WEIGHTING_PUSHED);
    const struct ampd_shard *shard = pair_model(1)->shard;
    struct ampd_contributor contributor = {0, pair_incarnation, 2};
    keep_a_vote(&contributor);
    contributor.weight = 3;
    misfit(close_with(contributor));
    assert_non_null(strstr(refused_as, "another list"));
    struct ampd_message *message = pair_message(AMPD_MESSAGE_OPEN, 0, 1);
    message->u.open = shard->step.open;
    message->u.open.try_number++;
    message->u.open.closed = true; /* weights of 1 */
    misfit(message);
    assert_non_null(strstr(refused_as, "another list"));
    assert_int_equal(AMPD_STEP_OPEN, shard->step.state);
    assert_int_equal(0, shard->step.open.try_number);
    contributor.weight = 2;
    pair_send_take(close_with(contributor));
    assert_int_equal(AMPD_STEP_CLOSED, shard->step.state);
    assert_non_null(shard->journal.kept);
}

/* The try has the number of one that the process before has opened, and whose slots are here. */
static void unfit_of_another_coordinators_try_takes_nothing_back(void **state)
{
    (void)pair_teardown(state);
    pair_begin(AMPD_WEIGHTING_PUSHED);
    (void)pair_push(1, 1, 1);
    const struct ampd_slot *slot = &pair_model(1)->shard->slots[0];
    assert_true(slot->complete);
    pair_core[1]->peers[0].fence.counter++;
    struct ampd_message *message = pair_message(AMPD_MESSAGE_UNFIT, 0, 1);
    message->from_fence = pair_core[1]->peers[0].fence;
    message->u.unfit.push = (struct ampd_complete){.step = 1, .contributor = {0, pair_incarnation, 1}};
    message->u.unfit.other_weight = 2;
    pair_send_take(message);
    assert_true(slot->complete);
    pair_core[1]->peers[0].fence.counter--;
}

static void range_warnings_of_no_parameter_are_refused(void **state)
{
    (void)state;
    static const enum ampd_message_type types[] = {AMPD_MESSAGE_APPLIED, AMPD_MESSAGE_LOADED};
    for (unsigned i = 0; i < 2; i++) {
        struct ampd_message *message = pair_message(types[i], 1, 0);
        message->u.applied.range_count = 1;
        message->u.applied.range[0].parameter = AMPD_PARAMETERS_MAX - 1;
        misfit(message);
    }
    struct ampd_message *message = pair_verdict(2);
    message->u.verdict.range_count = 1;
    message->u.verdict.range[0].parameter = AMPD_PARAMETERS_MAX - 1;
    misfit(message);
}

static struct ampd_message *synced_by_1(uint64_t round)
{
    struct ampd_message *message = pair_message(AMPD_MESSAGE_SYNCED, 1, 0);
    message->round = round;
    assert_int_equal(0, ampd_spec_copy(&message->u.sync.spec, &pair_model(0)->spec));
    return message;
}

static void a_shard_whose_answer_to_sync_is_refused_is_not_taken_for_one_that_holds_nothing(void **state)
{
    (void)state;
    pair_hold_messages = true;
    struct ampd_message *hello = pair_message(AMPD_MESSAGE_HELLO, 1, 0);
    hello->from_fence.counter = 2; /* it has started: SYNC begins */
    pair_send_take(hello);
    assert_true(pair_core[0]->sync.running);
    uint64_t round = pair_core[0]->sync.round;
    struct ampd_message *message = synced_by_1(round);
    message->from_fence.counter = 2;
    message->u.sync.has_last = true;
    message->u.sync.last.after = pair_model(0)->coord->carry;
    message->u.sync.last.contributors_count = 1;
    message->u.sync.last.contributors[0].rank = 1;
    misfit(message);
    message = synced_by_1(round); /* another model of the same name */
    message->from_fence.counter = 2;
    message->u.sync.spec.world_size++;
    misfit(message);
    assert_non_null(strstr(refused_as, "world_size"));
    message = synced_by_1(round); /* with a part of another run: shard 0 knows those of this one */
    message->from_fence.counter = 2;
    const struct ampd_checkpoint_record *known = &pair_model(0)->shard->catalogue.records[0];
    assert_int_equal(2, known->parts_count);
    message->u.sync.checkpoints = malloc(sizeof *known);
    assert_non_null(message->u.sync.checkpoints);
    message->u.sync.checkpoints[0] = *known;
    message->u.sync.checkpoints[0].manifest[3] ^= 1;
    message->u.sync.checkpoints_count = 1;
    misfit(message);
    assert_non_null(strstr(refused_as, "another run"));
    message = synced_by_1(round); /* the next epoch is one above it: there is none */
    message->from_fence.counter = 2;
    message->u.sync.highest_epoch = UINT64_MAX;
    misfit(message);
    message = synced_by_1(round);
    message->from_fence.counter = 2;
    message->u.sync.decided = UINT64_MAX;
    misfit(message);
    message = synced_by_1(round);
    message->from_fence.counter = 2;
    message->u.sync.ready = true; /* with a scale of 0 */
    misfit(message);
    assert_null(pair_model(0)->coord->sync.answers[1]);
    message = pair_message(AMPD_MESSAGE_SYNC_DONE, 1, 0);
    message->from_fence.counter = 2;
    message->round = round;
    pair_send_take(message);
    assert_false(pair_core[0]->sync.running); /* it holds up that model alone */
    assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
    assert_non_null(strstr(pair_model(0)->coord->trouble, "a shard has another model under the name model"));
    assert_int_equal(1, pair_model(0)->coord->epoch);
}

/* It would shut out the shard itself, whose starts count by one, and leave no number above it for anybody. */
/* By turns each of them would be news. */
static void of_fences_that_are_refused_the_log_is_told_once_a_second(void **state)
{
    (void)state;
    const uint64_t counters[] = {0, UINT64_MAX}; /* too low, and too far above */
    unsigned lines = 0;
    for (unsigned i = 0; i < 40; i++) {
        struct ampd_message *message = pair_message(AMPD_MESSAGE_HELLO, 1, 0);
        message->from_fence.counter = counters[i % 2];
        message->to_fence = (struct ampd_fence){0};
        pair_logged[0] = 0;
        pair_now_ms += 100;
        pair_send_take(message);
        lines += strstr(pair_logged, ": refused") != NULL ? 1 : 0;
    }
    assert_int_equal(4, lines);
}

static void a_fence_that_no_count_of_starts_leads_to_is_refused_and_forgotten(void **state)
{
    (void)state;
    const uint64_t far[] = {UINT64_MAX, pair_core[1]->config.fence.counter + AMPD_FENCE_LEAP + 1};
    for (unsigned i = 0; i < 2; i++) {
        struct ampd_message *message = pair_message(AMPD_MESSAGE_HELLO, 1, 0);
        message->from_fence.counter = far[i];
        pair_now_ms += 1000; /* the log has heard of the one before */
        message->to_fence = (struct ampd_fence){0};
        pair_logged[0] = 0;
        pair_send_take(message);
        assert_non_null(strstr(pair_logged, "--fence-above"));
        assert_int_equal(pair_core[1]->config.fence.counter, pair_core[0]->peers[1].fence.counter);
        message = pair_message(AMPD_MESSAGE_TOO_LOW, 1, 0);
        message->u.fence.counter = far[i];
        pair_send_take(message);
        assert_false(pair_core[0]->fenced);
    }
    struct ampd_event found = {.type = AMPD_EVENT_FENCE_FOUND, .u.fence = {1, {.counter = UINT64_MAX}}};
    pair_step(0, &found); /* stored by a version that took any */
    assert_int_equal(pair_core[1]->config.fence.counter, pair_core[0]->peers[1].fence.counter);
    (void)pair_push(0, 2, 1);
    (void)pair_push(1, 2, 1);
    assert_int_equal(2, pair_model(0)->shard->decided.step);
}

/* Shard 0 has started with a journal, in which nothing was decided, and asks shard 1. */
static void restart_0_with_a_journal(void)
{
    struct ampd_checkpoint_record part = {.epoch = 1};
    struct ampd_model_record record = {.epoch = 1, .checkpoints_count = 1, .checkpoints = &part};
    pair_model(1)->spec.durability = AMPD_DURABILITY_STEP;
    record.spec = pair_model(1)->spec;
    ampd_core_free(pair_core[0]);
    pair_start(0, 2);
    struct ampd_event found = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    pair_step(0, &found);
    pair_hold_messages = true;
    pair_send_start(0);
    pair_send_take(pair_message(AMPD_MESSAGE_HELLO, 1, 0)); /* its fence is stored */
    assert_int_equal(AMPD_MEMORY_READY, pair_model(0)->shard->memory);
    assert_true(pair_core[0]->sync.running);
}

/* Shard 0 has started with a vote on step 1, which shard 1 holds as decided, with a list of this hash more than its. */
static void ask_who_has_decided_1(uint64_t more)
{
    restart_0_with_a_journal();
    struct ampd_open_step *step = &pair_model(0)->shard->step;
    step->open = (struct ampd_open){.step = 1, .scale = 1, .scale_id = 1};
    step->close = (struct ampd_close){.step = 1};
    step->hash = ampd_contributors_hash(step->close.contributors, 0);
    step->plan = ampd_plan_new(&pair_model(0)->tensors, 0);
    assert_non_null(step->plan);
    step->state = AMPD_STEP_VOTED;
    struct ampd_message *hello = pair_message(AMPD_MESSAGE_HELLO, 1, 0);
    hello->from_fence.counter++; /* SYNC begins again, and shard 0 tells its vote */
    pair_send_take(hello);
    struct ampd_message *message = synced_by_1(pair_core[0]->sync.round);
    message->from_fence.counter++;
    message->u.sync.ready = message->u.sync.has_last = true;
    message->u.sync.highest_epoch = message->u.sync.decided = 1;
    message->u.sync.carry = message->u.sync.last.after = pair_model(1)->shard->carry;
    message->u.sync.last.step = message->u.sync.last.tries = 1;
    message->u.sync.last.contributors_hash = step->hash + more;
    message->u.sync.last.verdict = AMPD_VERDICT_SKIPPED_EMPTY;
    pair_send_take(message);
    assert_true(pair_model(0)->coord->sync.answers[0]->u.sync.voted);
    struct ampd_message *done = pair_message(AMPD_MESSAGE_SYNC_DONE, 1, 0);
    done->from_fence.counter++;
    done->round = pair_core[0]->sync.round;
    pair_logged[0] = 0;
    pair_send_take(done);
}

/* The newer record of shard 0 is gone with its verdict; the older one is on another list. */
static void a_vote_of_an_older_try_is_none_on_the_step_that_another_shard_holds_as_decided(void **state)
{
    (void)state;
    ask_who_has_decided_1(1);
    assert_null(pair_model(0)->coord->decision.verdict);
    assert_true(pair_model(0)->coord->state != AMPD_COORD_RUNNING);
}

/* Shard 1 has the verdict already, and takes nothing from it. */
static void the_step_after_an_adopted_verdict_is_opened_on_shards_that_had_it(void **state)
{
    (void)state;
    ask_who_has_decided_1(0);
    assert_int_equal(AMPD_COORD_RUNNING, pair_model(0)->coord->state);
    assert_int_equal(1, pair_model(0)->coord->decided);
    bool is_open = false;
    for (; pair_messages_count > 0; pair_deliver_first())
        is_open = is_open || (pair_first()->type == AMPD_MESSAGE_OPEN && pair_first()->u.open.step == 2);
    assert_true(is_open);
    pair_hold_messages = false;
}

static void a_decided_step_without_its_row_is_not_adopted(void **state)
{
    (void)state;
    restart_0_with_a_journal();
    static const uint64_t rows[][2] = {{0, 0}, {7, 1}, {1, 0}}; /* none; of another step; of no try */
    for (unsigned i = 0; i < 3; i++) {
        struct ampd_message *message = synced_by_1(pair_core[0]->sync.round);
        message->u.sync.ready = true;
        message->u.sync.carry = message->u.sync.last.after = pair_model(1)->shard->carry;
        message->u.sync.highest_epoch = 1;
        message->u.sync.decided = 1;
        message->u.sync.has_last = i > 0;
        message->u.sync.last.step = rows[i][0];
        message->u.sync.last.tries = (uint32_t)rows[i][1];
        misfit(message);
    }
    struct ampd_message *done = pair_message(AMPD_MESSAGE_SYNC_DONE, 1, 0);
    done->round = pair_core[0]->sync.round;
    pair_send_take(done);
    assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
    assert_null(pair_model(0)->coord->decision.verdict);
}

static void specifications_that_no_client_could_give_are_not_made_here(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    struct ampd_message *message = pair_message(AMPD_MESSAGE_CREATE, 0, 1);
    assert_int_equal(0, ampd_spec_copy(&message->u.spec, &spec));
    (void)memcpy(message->u.spec.name, "other", sizeof("other"));
    message->u.spec.parameters[0].group = message->u.spec.groups_count + 1;
    pair_logged[0] = 0;
    pair_hold_messages = true;
    pair_send_take(message);
    assert_non_null(strstr(pair_logged, "cannot be made here"));
    assert_int_equal(AMPD_MESSAGE_NOT_CREATED, pair_last->type);
    assert_int_equal(1, ampd_core_models_count(pair_core[1]));
    pair_core[0]->sync.running = true;
    message = synced_by_1(pair_core[0]->sync.round);
    (void)memcpy(message->u.sync.spec.name, "other", sizeof("other"));
    (void)memcpy(message->model, "other", sizeof("other"));
    message->u.sync.spec.parameters[0].shape[0] = UINT64_MAX;
    pair_send_take(message);
    pair_core[0]->sync.running = false;
    assert_non_null(strstr(pair_logged, "cannot be brought back"));
    assert_int_equal(1, ampd_core_models_count(pair_core[0]));
}

static void an_epoch_does_not_begin_from_what_was_asked_for_and_is_not_here(void **state)
{
    (void)state;
    pair_hold_messages = true;
    struct ampd_message *message = pair_message(AMPD_MESSAGE_RESTORE, 0, 1);
    message->round++;
    message->u.restore = (struct ampd_restore){.epoch = 1, .step = 0};
    pair_send_take(message);
    assert_int_equal(AMPD_MEMORY_RESTORED, pair_model(1)->shard->memory);
    message = pair_message(AMPD_MESSAGE_RESTORE, 0, 1);
    message->round += 2;
    message->u.restore = (struct ampd_restore){.epoch = 9, .step = 9};
    pair_send_take(message);
    message = pair_message(AMPD_MESSAGE_EPOCH, 0, 1);
    message->round += 2;
    message->u.epoch.record = (struct ampd_epoch_record){.epoch = 2, .parent = 1, .base_epoch = 9, .base_step = 0};
    pair_send_take(message);
    assert_int_equal(1, pair_model(1)->shard->epoch);
    message = pair_message(AMPD_MESSAGE_RESTORE, 0, 1); /* what is here is given all the same */
    message->round += 3;
    message->u.restore = (struct ampd_restore){.epoch = 1, .step = 0};
    pair_send_take(message);
    message = pair_message(AMPD_MESSAGE_EPOCH, 0, 1);
    message->round += 3;
    message->u.epoch.record = (struct ampd_epoch_record){.epoch = 2, .parent = 1, .base_epoch = 1, .base_step = 0};
    pair_send_take(message);
    assert_int_equal(2, pair_model(1)->shard->epoch);
}

/* Such an incarnation is not refused there: a worker that has just joined has one that no step lists. */
static void who_only_names_a_rank_takes_no_place_of_workers_on_another_shard(void **state)
{
    (void)state;
    struct ampd_event event = {
        .type = AMPD_EVENT_PULL,
        .u.pull = {.model = "model", .by = AMPD_PULL_STEP, .epoch = 1, .number = 3, .has_worker = true}};
    const uint32_t few = pair_core[1]->calls_count;
    pair_core[1]->calls_count = AMPD_CALLS_WITHOUT_RANK_MAX;
    event.u.pull.incarnation = (struct ampd_incarnation){UINT64_MAX, 1};
    assert_string_equal("TOO_MANY_CALLS", pair_call(1, &event)->reply.error.reason);
    event.u.pull.incarnation = pair_incarnation;
    assert_int_equal(0, pair_call(1, &event)->reply.error.code);
    assert_int_equal(AMPD_CALLS_WITHOUT_RANK_MAX + 1, pair_core[1]->calls_count);
    pair_core[1]->calls_count = few + 1;
}

static void a_model_that_trains_is_not_loaded_anew(void **state)
{
    (void)state;
    struct ampd_message *message = pair_message(AMPD_MESSAGE_STATE, 0, 1);
    message->u.state.sequence = pair_model(1)->shard->announced.sequence + 1;
    message->u.state.state = AMPD_MODEL_LOADING;
    pair_send_take(message);
    message = pair_message(AMPD_MESSAGE_LOAD_GRANT, 0, 1);
    message->u.load = 8;
    pair_send_take(message);
    assert_int_equal(AMPD_MEMORY_READY, pair_model(1)->shard->memory);
    assert_int_equal(1, pair_model(1)->shard->decided.step);
}

static void a_push_that_the_step_does_not_list_counts_nowhere(void **state)
{
    (void)pair_teardown(state);
    pair_begin(AMPD_WEIGHTING_PUSHED); /* the step is closed by COMPLETE */
    const struct ampd_coord *coord = pair_model(0)->coord;
    struct ampd_incarnation other = {pair_incarnation.fence, pair_incarnation.counter + 1};
    for (unsigned k = 0; k < 2; k++) {
        struct ampd_message *message = pair_message(AMPD_MESSAGE_COMPLETE, k, 0);
        message->u.complete = (struct ampd_complete){.step = 1, .contributor = {0, other, 1}};
        pair_send_take(message);
    }
    assert_int_equal(0, coord->step.complete_count);
    assert_int_equal(AMPD_STEP_OPEN, coord->step.state);
}

#define PAIR_TEST(name) cmocka_unit_test_setup_teardown(name, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        PAIR_TEST(votes_of_other_parameters_blocks_or_orders_count_nowhere),
        PAIR_TEST(orders_for_ranks_that_there_are_not_are_refused),
        PAIR_TEST(acts_with_a_learning_rate_that_cannot_be_are_refused),
        PAIR_TEST(numbers_and_records_that_no_step_has_are_refused),
        PAIR_TEST(rows_with_metrics_that_no_worker_can_have_told_are_refused),
        PAIR_TEST(a_verdict_on_what_the_shard_has_not_voted_on_is_refused_and_not_stored),
        PAIR_TEST(a_list_unlike_that_of_a_vote_kept_over_a_restart_is_refused),
        PAIR_TEST(unfit_of_another_coordinators_try_takes_nothing_back),
        PAIR_TEST(range_warnings_of_no_parameter_are_refused),
        PAIR_TEST(a_shard_whose_answer_to_sync_is_refused_is_not_taken_for_one_that_holds_nothing),
        PAIR_TEST(of_fences_that_are_refused_the_log_is_told_once_a_second),
        PAIR_TEST(a_fence_that_no_count_of_starts_leads_to_is_refused_and_forgotten),
        PAIR_TEST(a_decided_step_without_its_row_is_not_adopted),
        PAIR_TEST(a_vote_of_an_older_try_is_none_on_the_step_that_another_shard_holds_as_decided),
        PAIR_TEST(the_step_after_an_adopted_verdict_is_opened_on_shards_that_had_it),
        PAIR_TEST(an_epoch_does_not_begin_from_what_was_asked_for_and_is_not_here),
        PAIR_TEST(a_push_that_the_step_does_not_list_counts_nowhere),
        PAIR_TEST(a_model_that_trains_is_not_loaded_anew),
        PAIR_TEST(who_only_names_a_rank_takes_no_place_of_workers_on_another_shard),
        PAIR_TEST(specifications_that_no_client_could_give_are_not_made_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
