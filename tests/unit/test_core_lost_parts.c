/*
 * durability STEP: the journal keeps each step until a checkpoint holds it, so a part that was lost is made up for; and
 * each verdict is in the rows that a replay goes over.
 */
#include "server/core/coordinator/checkpoints.h"
#include "tests/unit/core_pair.h"

#include <string.h>

static struct core_host host, back; /* before and after a hard end */

static void start(struct core_host *to, uint64_t boot)
{
    struct ampd_event event = {.type = AMPD_EVENT_START};
    core_host_init(to, boot);
    core_event(to, &event);
}

/* A model of one worker that has decided so many steps, and stored no checkpoint but the first. */
static void train(uint64_t steps)
{
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    spec.durability = AMPD_DURABILITY_STEP;
    spec.checkpoint_every = 1000;
    start(&host, 1);
    (void)core_create(&host, &spec);
    (void)core_load(&host, 3);
    struct ampd_incarnation incarnation = core_joined(&host, core_join(&host, "w0", 0));
    host.hold_seal = true;
    for (uint64_t step = 1; step <= steps; step++)
        (void)core_push_all(&host, step, 0, incarnation, 1);
    assert_int_equal(steps, core_info(&host).decided_step);
    assert_int_equal(0, core_info(&host).checkpoints_count - 1);
}

/* The process ends hard: another one finds the first checkpoint, the rows and the journal. */
static void end_hard(void)
{
    struct ampd_checkpoint_record first = {.epoch = 1};
    struct ampd_model_record record = {.spec = *core_info(&host).spec,
                                       .epoch = 1,
                                       .last = &host.rows[host.rows_count - 1],
                                       .rows_count = host.rows_count,
                                       .rows = host.rows,
                                       .checkpoints_count = 1,
                                       .checkpoints = &first};
    core_host_init(&back, 2);
    memcpy(back.journal, host.journal, sizeof back.journal);
    back.journal_count = host.journal_count;
    struct ampd_event event = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    core_event(&back, &event);
    event = (struct ampd_event){.type = AMPD_EVENT_START};
    core_event(&back, &event);
    assert_int_equal(1, core_info(&back).epoch);
    assert_int_equal(host.rows_count, core_info(&back).decided_step);
}

static int close_hosts(void **state)
{
    (void)state;
    core_host_close(&host);
    core_host_close(&back);
    return 0;
}

static void a_start_writes_a_checkpoint_if_the_one_that_was_due_was_not_stored(void **state)
{
    (void)state;
    train(AMPD_VOTE_JOURNAL_STEPS + 2);
    assert_int_equal(AMPD_VOTE_JOURNAL_STEPS, host.cut.step);
    end_hard();
    assert_int_equal(AMPD_VOTE_JOURNAL_STEPS + 2, core_info(&back).durable_step);
    assert_int_equal(AMPD_VOTE_JOURNAL_STEPS + 2, back.pruned);
}

static void a_start_before_a_checkpoint_is_due_writes_none(void **state)
{
    (void)state;
    train(AMPD_VOTE_JOURNAL_STEPS - 1);
    end_hard();
    assert_int_equal(0, back.cuts);
}

/* Shard 1 has started again while both wrote their parts. */
static void a_shard_that_has_lost_its_part_gets_the_next_checkpoint_at_once(void **state)
{
    (void)state;
    struct ampd_coord *coord = pair_model(0)->coord;
    for (unsigned k = 0; k < 2; k++) {
        pair_model(k)->spec.durability = AMPD_DURABILITY_STEP;
        pair_model(k)->spec.checkpoint_every = 1000;
    }
    pair_hold_kind = AMPD_PERSIST_CHECKPOINT;
    for (uint64_t step = 1; step <= AMPD_VOTE_JOURNAL_STEPS + 1; step++) {
        pair_calls_count = 0; /* those before are answered */
        (void)pair_push(0, step, 1);
        (void)pair_push(1, step, 1);
    }
    assert_int_equal(AMPD_VOTE_JOURNAL_STEPS + 1, coord->decided);
    assert_int_equal(1, coord->checkpoint.writing_count);
    ampd_coord_interrupt(pair_model(0));
    ampd_checkpoints_lost(pair_model(0), AMPD_BIT(1));
    assert_int_equal(0, coord->checkpoint.writing_count);
    ampd_coord_resume(pair_model(0));
    struct ampd_event tick = {.type = AMPD_EVENT_TICK};
    pair_step(0, &tick);
    pair_settle();
    assert_int_equal(1, coord->checkpoint.writing_count);
    assert_int_equal(AMPD_VOTE_JOURNAL_STEPS + 1, coord->checkpoint.writing[0].step);
    for (unsigned k = 0; k < 2; k++)
        assert_int_equal(AMPD_VOTE_JOURNAL_STEPS + 1, pair_model(k)->shard->next_part.content.step);
}

static void start_1(struct ampd_model_record *store)
{
    pair_start_with(1, store, 0);
    pair_send_start(1);
}

/* Shard 1 starts elsewhere, without its part, while shard 0 stores a verdict; then its first host comes back. */
static void a_verdict_that_is_stored_during_sync_is_not_forgotten_by_the_next(void **state)
{
    (void)state;
    struct ampd_coord *coord = pair_model(0)->coord;
    struct ampd_checkpoint_record part = {.epoch = 1};
    struct ampd_model_record elsewhere = {.epoch = 1, .checkpoints_count = 1, .checkpoints = &part, .no_journal = true};
    struct ampd_model_record first = {.epoch = 1, .checkpoints_count = 1, .checkpoints = &part};
    pair_hold_kind = AMPD_PERSIST_VERDICT;
    (void)pair_push(0, 1, 1);
    (void)pair_push(1, 1, 1);
    pair_restore_code[1] = AMP_ENOTFOUND;
    start_1(&elsewhere);
    assert_int_equal(AMPD_COORD_SYNCING, coord->state);
    pair_hold_kind = (enum ampd_persist_kind)0;
    struct ampd_event stored = {.type = AMPD_EVENT_PERSISTED, .u.persisted = {pair_held_token}};
    pair_step(0, &stored);
    pair_settle();
    assert_int_equal(1, coord->decided);
    assert_int_equal(AMPD_COORD_RESTORING, coord->state);
    start_1(&first);
    assert_int_equal(AMPD_COORD_RUNNING, coord->state);
    assert_int_equal(1, coord->epoch);
    assert_int_equal(1, coord->carry.scaler.attempted); /* it was decided once */
    (void)pair_push(0, 2, 1);
    assert_true(pair_push(1, 2, 1)->answered);
    assert_int_equal(2, coord->decided);
}

static int setup_pair(void **state)
{
    (void)state;
    pair_begin(AMPD_WEIGHTING_EQUAL);
    return 0;
}

static int setup_journals(void **state)
{
    pair_durability = AMPD_DURABILITY_STEP;
    return setup_pair(state);
}

static int teardown_pair(void **state)
{
    pair_hold_kind = (enum ampd_persist_kind)0;
    return pair_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_start_writes_a_checkpoint_if_the_one_that_was_due_was_not_stored, close_hosts),
        cmocka_unit_test_teardown(a_start_before_a_checkpoint_is_due_writes_none, close_hosts),
        cmocka_unit_test_setup_teardown(a_shard_that_has_lost_its_part_gets_the_next_checkpoint_at_once, setup_pair,
                                        teardown_pair),
        cmocka_unit_test_setup_teardown(a_verdict_that_is_stored_during_sync_is_not_forgotten_by_the_next,
                                        setup_journals, teardown_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
