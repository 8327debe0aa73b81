/* Rollback to a checkpoint, and the end of a model. */
#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "tests/unit/core_fixture.h"

#include <math.h>
#include <string.h>

static struct ampd_incarnation incarnations[2];

static int setup(void **state)
{
    static struct core_host host;
    core_host_init(&host, 1);
    struct ampd_event start = {.type = AMPD_EVENT_START};
    core_event(&host, &start);
    core_running(&host, incarnations);
    *state = &host;
    return 0;
}

static int teardown(void **state)
{
    core_host_close(*state);
    return 0;
}

static void push_step(struct core_host *host, uint64_t step)
{
    (void)core_push_all(host, step, 0, incarnations[0], 1024);
    (void)core_push_all(host, step, 1, incarnations[1], 1024);
    assert_int_equal(step, core_info(host).decided_step);
}

/* Steps 1 to 3 are decided, checkpoints are of steps 0 and 2, and step 4 is open. */
static void three_steps(struct core_host *host)
{
    push_step(host, 1);
    uint64_t call = core_checkpoint(host);
    push_step(host, 2);
    assert_int_equal(2, core_call(host, call)->reply.u.checkpoint.step);
    push_step(host, 3);
    assert_int_equal(2, core_info(host).checkpoints_count);
}

static void join_again(struct core_host *host)
{
    incarnations[0] = core_joined(host, core_join(host, "w0", 0));
    incarnations[1] = core_joined(host, core_join(host, "w1", 1));
}

static void assert_rolled_back(struct core_host *host, uint64_t call, uint64_t epoch, uint64_t step)
{
    const struct core_call *made = core_call(host, call);
    assert_true(made->answered);
    assert_int_equal(0, made->reply.error.code);
    assert_int_equal(AMPD_REPLY_ROLLBACK, made->reply.kind);
    assert_int_equal(epoch, made->reply.u.rollback.epoch);
    assert_int_equal(step, made->reply.u.rollback.step);
    assert_int_equal(epoch, core_info(host).epoch);
    assert_int_equal(step, core_info(host).step);
}

/* The model is back at the checkpoint of step 0, since that of step 2 could not be used. */
static void restart_from_step_0(struct core_host *host)
{
    host->restore_codes = AMP_EDATALOSS;
    host->hold_files = true;
    uint64_t call = core_rollback(host, 1, 2, "");
    core_do_task(host, 0);
    core_assert_failed(host, call, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "newest");
    core_do_task(host, 0); /* the newest is that of step 2 */
    host->restore_codes = 0;
    host->hold_files = false;
    core_do_all(host);
    assert_string_equal("RESTART", host->epoch.reason);
    assert_int_equal(1, core_info(host).step);
}

/* ---- rollback ---- */

static void a_rollback_begins_an_epoch_at_the_checkpoint(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    uint64_t call = core_rollback(host, 1, 0, "id");
    assert_rolled_back(host, call, 2, 1);
    assert_string_equal("ROLLBACK", host->epoch.reason);
    assert_int_equal(1, host->epoch.parent);
    assert_int_equal(1, host->epoch.base_epoch);
    assert_int_equal(0, host->epoch.base_step);
    assert_int_equal(3, host->epoch_row.parent_step);
    assert_string_equal("ann", host->epoch_row.note.actor);
    assert_string_equal("why not", host->epoch_row.note.words);
    assert_string_equal("id", host->epoch_row.note.request_id);
    assert_int_equal(1, core_info(host).checkpoints_count); /* the one above is void */
    assert_int_equal(AMPD_MODEL_WAITING, core_info(host).state);
    join_again(host);
    push_step(host, 1);
    assert_int_equal(2, host->row.epoch);
}

static void gradients_of_the_old_epoch_are_refused(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    uint64_t open = core_push_header(host, 4, 0, incarnations[0]);
    uint64_t pull = core_pull_step(host, 1, 5);
    uint64_t call = core_rollback(host, 1, 2, "");
    assert_false(core_call(host, call)->answered); /* a stream still touches memory */
    assert_true(core_call(host, open)->revoked);
    core_assert_failed(host, pull, AMP_EUNAVAILABLE, "RECOVERING", "goes back");
    struct ampd_event_push old = {.model = "model",
                                  .epoch = 1,
                                  .step = 4,
                                  .rank = 1,
                                  .incarnation = incarnations[1],
                                  .scale_id = 1,
                                  .dtype = AMP_F32,
                                  .weight = 1};
    core_assert_failed(host, core_push_event(host, &old), AMP_EUNAVAILABLE, "RECOVERING", "moment");
    core_revoked(host, open);
    core_assert_failed(host, open, AMP_EUNAVAILABLE, "RECOVERING", "goes back");
    assert_rolled_back(host, call, 2, 3);
    uint64_t again = core_push_event(host, &old);
    core_assert_failed(host, again, AMP_EABORTED, "ROLLED_BACK", "epoch 2");
    assert_int_equal(2, core_call(host, again)->reply.epoch);
    assert_int_equal(3, core_call(host, again)->reply.step);
    core_assert_failed(host, core_pull_step(host, 1, 4), AMP_EABORTED, "ROLLED_BACK", "epoch 2");
}

static void a_rollback_waits_for_the_verdict_that_is_being_stored(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    host->hold_persists = true;
    uint64_t push = core_push_all(host, 4, 0, incarnations[0], 1024);
    (void)core_push_all(host, 4, 1, incarnations[1], 1024);
    uint64_t call = core_rollback(host, 1, 2, "");
    assert_false(core_call(host, call)->answered);
    assert_false(core_call(host, push)->answered);
    core_do_task(host, 0); /* step 4 is decided, and what comes after it is the rollback */
    assert_int_equal(0, core_call(host, push)->reply.error.code);
    host->hold_persists = false;
    core_do_all(host);
    assert_rolled_back(host, call, 2, 3);
    assert_int_equal(4, host->epoch_row.parent_step);
}

static void a_rollback_waits_for_an_act_that_is_being_stored(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    host->hold_persists = true;
    uint64_t set = core_set_scale(host, 8, "set");
    uint64_t call = core_rollback(host, 1, 2, "");
    host->hold_persists = false;
    core_do_all(host);
    assert_int_equal(0, core_call(host, set)->reply.error.code);
    assert_rolled_back(host, call, 2, 3);
    assert_true(core_info(host).scaler.scale == 1024);
    core_assert_failed(host, core_set_scale(host, 8, "set"), AMP_ESTATE, "ACT_LOST", "epoch 1");
}

/* Its answer to HOLDS is a promise: else the rollback would end with less than both, the steps and the checkpoint. */
static void a_checkpoint_that_a_waiting_rollback_goes_back_to_is_not_dropped_meanwhile(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    host->core->models[0]->spec.keep_last = 2;
    host->hold_seal = true;
    (void)core_checkpoint(host);
    push_step(host, 4);
    host->hold_seal = false;
    host->hold_persists = true;
    core_cut_end(host, 0); /* the checkpoint of step 4 is being stored, */
    (void)core_push_all(host, 5, 0, incarnations[0], 1024);
    (void)core_push_all(host, 5, 1, incarnations[1], 1024);
    assert_int_equal(2, host->tasks_count); /* and after it the verdict that the rollback waits for */
    uint64_t call = core_rollback(host, 1, 0, "");
    core_do_task(host, 0);
    assert_int_equal(3, core_info(host).checkpoints_count);
    host->hold_persists = false;
    core_do_all(host);
    assert_rolled_back(host, call, 2, 1);
    join_again(host);
    for (uint64_t step = 1; step <= 2; step++) { /* the promise is kept: it is as old as any */
        (void)core_checkpoint(host);
        push_step(host, step);
    }
    assert_int_equal(2, core_info(host).checkpoints_count);
}

static void a_scale_set_by_hand_is_announced_as_lost(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    (void)core_set_scale(host, 8, "");
    uint64_t call = core_rollback(host, 1, 2, "");
    assert_rolled_back(host, call, 2, 3);
    assert_non_null(strstr(host->logged_before, "the scale 8"));
    assert_non_null(strstr(host->logged_before, "is lost"));
    assert_true(core_info(host).scaler.scale == 1024);
}

static void a_part_that_is_being_written_is_given_up(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    host->hold_files = true;
    uint64_t checkpoint = core_checkpoint(host);
    push_step(host, 4);
    assert_int_equal(2, host->tasks_count); /* the part of step 4, and its blocks */
    uint64_t call = core_rollback(host, 1, 2, "");
    core_assert_failed(host, checkpoint, AMP_EUNAVAILABLE, "ROLLING_BACK", "moment");
    assert_int_equal(1, host->cancelled);
    core_do_task(host, 0);
    assert_int_equal(1, host->tasks_count); /* nothing is read into memory that the part is still read from */
    core_cut_end(host, AMP_ECANCELLED);
    assert_int_equal(2, host->tasks_count);
    host->tasks[0] = host->tasks[--host->tasks_count]; /* the blocks went with their part */
    core_do_all(host);
    assert_rolled_back(host, call, 2, 3);
    assert_int_equal(2, core_info(host).checkpoints_count);
    assert_int_equal(2, core_info(host).durable_step);
}

static void a_rollback_can_follow_a_rollback_to_the_same_checkpoint(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    assert_rolled_back(host, core_rollback(host, 1, 2, "a"), 2, 3);
    assert_rolled_back(host, core_rollback(host, 1, 2, "b"), 3, 3);
    join_again(host);
    push_step(host, 3);
    assert_rolled_back(host, core_rollback(host, 1, 2, "c"), 4, 3);
    assert_int_equal(3, host->epoch.parent);
    assert_int_equal(1, host->epoch.base_epoch);
    assert_int_equal(3, host->epoch_row.parent_step);
}

static void a_rollback_can_go_behind_the_base_of_its_epoch(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    assert_rolled_back(host, core_rollback(host, 1, 2, ""), 2, 3);
    join_again(host);
    push_step(host, 3);
    assert_rolled_back(host, core_rollback(host, 1, 0, ""), 3, 1);
    assert_int_equal(1, core_info(host).checkpoints_count);
}

static void files_above_the_checkpoint_go_when_the_epoch_of_a_rollback_is_stored(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    host->hold_persists = true;
    uint64_t call = core_rollback(host, 1, 0, "");
    assert_int_equal(0, host->removed); /* after a crash now the model goes on from it */
    host->hold_persists = false;
    core_do_all(host);
    assert_rolled_back(host, call, 2, 1);
    assert_int_equal(1, host->removed);
    assert_int_equal(2, host->removed_step);
    assert_int_equal(0, host->dropped); /* the store has made it void */
    join_again(host);
    push_step(host, 1);
    (void)core_checkpoint(host);
    push_step(host, 2);
    assert_int_equal(2, core_info(host).checkpoints_count);
    assert_int_equal(1, host->removed); /* not that of the same step which is written after it */
}

static void the_file_that_was_just_being_catalogued_goes_with_the_others(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    host->hold_seal = true;
    (void)core_checkpoint(host);
    push_step(host, 4);
    host->hold_persists = true;
    core_cut_end(host, 0);
    assert_int_equal(1, host->tasks_count); /* its entry in the catalogue */
    uint64_t call = core_rollback(host, 1, 2, "");
    assert_int_equal(0, host->removed);
    host->hold_persists = false;
    core_do_all(host);
    assert_rolled_back(host, call, 2, 3);
    assert_int_equal(2, core_info(host).checkpoints_count);
    assert_int_equal(1, host->removed);
    assert_int_equal(4, host->removed_step);
}

static void a_file_that_a_restart_makes_void_stays_until_the_next_part_is_written(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    restart_from_step_0(host);
    join_again(host);
    push_step(host, 1);
    assert_int_equal(0, host->removed); /* it may be another directory's */
    (void)core_checkpoint(host);
    push_step(host, 2);
    assert_int_equal(1, host->removed);
    assert_int_equal(2, host->removed_step);
    assert_int_equal(1, host->removed_first); /* the part of the same step is written after that */
}

static void a_join_that_is_stored_while_the_model_is_rolled_back_comes_again(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    host->hold_persists = true;
    uint64_t join = core_join(host, "w0", 0);
    uint64_t call = core_rollback(host, 1, 2, "id");
    core_do_task(host, 0); /* the join; the new epoch is not stored */
    core_assert_failed(host, join, AMP_EUNAVAILABLE, "RECOVERING", "join again");
    core_do_all(host);
    assert_rolled_back(host, call, 2, 3);
}

static void a_repeated_rollback_is_answered_and_not_done_again(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    assert_rolled_back(host, core_rollback(host, 1, 2, "id"), 2, 3);
    assert_rolled_back(host, core_rollback(host, 1, 2, "id"), 2, 3);
    core_assert_failed(host, core_rollback(host, 1, 0, "id"), AMP_EINVAL, "REQUEST_ID_USED", "id");
    assert_int_equal(1, host->restored_count);
}

static void a_rollback_meets_one_that_is_under_way(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    host->hold_files = true;
    uint64_t first = core_rollback(host, 1, 2, "id");
    core_close_call(host, first); /* the caller's connection breaks: it goes through */
    uint64_t same = core_rollback(host, 1, 2, "id");
    assert_false(core_call(host, same)->answered);
    core_assert_failed(host, core_rollback(host, 1, 0, "other"), AMP_EUNAVAILABLE, "ROLLING_BACK", "step 2");
    core_assert_failed(host, core_set_scale(host, 8, ""), AMP_EUNAVAILABLE, "RECOVERING", "moment");
    core_assert_failed(host, core_join(host, "w0", 0), AMP_EUNAVAILABLE, "RECOVERING", "moment");
    core_do_all(host);
    assert_rolled_back(host, same, 2, 3);
}

static void a_checkpoint_that_is_not_there_costs_nothing(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    core_assert_failed(host, core_rollback(host, 1, 1, ""), AMP_ENOTFOUND, "CHECKPOINT_NOT_FOUND", "step 1");
    core_assert_failed(host, core_rollback(host, 2, 2, ""), AMP_ENOTFOUND, "CHECKPOINT_NOT_FOUND", "epoch 2");
    push_step(host, 4);
    assert_int_equal(1, host->row.epoch);
}

static void a_damaged_checkpoint_is_told_and_the_newest_is_taken(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    host->restore_code = AMP_EDATALOSS;
    uint64_t call = core_rollback(host, 1, 0, "");
    core_assert_failed(host, call, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "newest");
    assert_int_equal(2, core_info(host).epoch);
    assert_int_equal(3, core_info(host).step);
    assert_string_equal("RESTART", host->epoch.reason);
    join_again(host);
    push_step(host, 3);
}

static void a_model_that_is_done_can_be_rolled_back(void **state)
{
    struct core_host *host = *state;
    struct core_host own;
    (void)host;
    core_host_init(&own, 1);
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.max_steps = 1;
    (void)core_create(&own, &spec);
    (void)core_load(&own, 1);
    join_again(&own);
    push_step(&own, 1);
    assert_int_equal(AMPD_MODEL_DONE, core_info(&own).state);
    assert_rolled_back(&own, core_rollback(&own, 1, 0, ""), 2, 1);
    join_again(&own);
    push_step(&own, 1);
    assert_int_equal(AMPD_MODEL_DONE, core_info(&own).state);
    core_host_close(&own);
}

/* ---- delete ---- */

static void leave(struct core_host *host, uint32_t rank)
{
    struct ampd_event event = {.type = AMPD_EVENT_LEAVE, .u.worker = {"model", rank, incarnations[rank]}};
    event.call = ++host->last_call;
    core_event(host, &event);
}

static void a_model_with_workers_is_deleted_by_force_alone(void **state)
{
    struct core_host *host = *state;
    core_assert_failed(host, core_delete(host, false), AMP_ESTATE, "MODEL_IN_USE", "w0");
    leave(host, 0);
    core_assert_failed(host, core_delete(host, false), AMP_ESTATE, "MODEL_IN_USE", "w1");
    leave(host, 1);
    uint64_t call = core_delete(host, false);
    assert_int_equal(0, core_call(host, call)->reply.error.code);
    assert_int_equal(1, host->persists[AMPD_PERSIST_DELETE]);
    assert_int_equal(0, host->persists[AMPD_PERSIST_DELETING]); /* there is no other shard */
    core_assert_failed(host, core_delete(host, true), AMP_ENOTFOUND, "MODEL_NOT_FOUND", "none");
}

static void a_model_is_deleted_when_nothing_touches_it_any_more(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    uint64_t push = core_push_header(host, 4, 0, incarnations[0]);
    uint64_t pull = core_pull_step(host, 1, 4);
    uint64_t held = core_pull_step(host, 1, 5);
    host->hold_jobs = true;
    host->hold_files = true;
    uint64_t call = core_delete(host, true), again = core_delete(host, false);
    core_assert_failed(host, held, AMP_ENOTFOUND, "MODEL_NOT_FOUND", "being deleted");
    core_assert_failed(host, core_join(host, "w0", 0), AMP_ENOTFOUND, "MODEL_NOT_FOUND", "being deleted");
    core_assert_failed(host, core_set_scale(host, 8, ""), AMP_ENOTFOUND, "MODEL_NOT_FOUND", "being deleted");
    core_revoked(host, push);
    assert_false(core_call(host, call)->answered);
    core_revoked(host, pull);
    core_assert_failed(host, push, AMP_ENOTFOUND, "MODEL_NOT_FOUND", "being deleted");
    assert_int_equal(0, core_call(host, call)->reply.error.code);
    assert_true(core_call(host, call)->answered && core_call(host, again)->answered);
    assert_true(core_info(host).deleted);
}

static void a_delete_waits_for_a_part_jobs_and_records_under_way(void **state)
{
    struct core_host *host = *state;
    host->hold_files = true;
    (void)core_checkpoint(host);
    push_step(host, 1);
    host->hold_persists = true;
    (void)core_join(host, "w0", 0);
    host->hold_jobs = true;
    uint64_t call = core_delete(host, true);
    assert_int_equal(0, host->persists[AMPD_PERSIST_DELETE]);
    while (host->tasks_count > 0 && host->persists[AMPD_PERSIST_DELETE] == 0)
        core_do_task(host, 0);
    assert_false(core_call(host, call)->answered);
    core_do_all(host);
    assert_true(core_call(host, call)->answered);
}

static void a_verdict_that_is_being_stored_does_not_hold_a_delete_up_for_ever(void **state)
{
    struct core_host *host = *state;
    host->hold_persists = true;
    uint64_t push = core_push_all(host, 1, 0, incarnations[0], 1024);
    (void)core_push_all(host, 1, 1, incarnations[1], 1024);
    uint64_t call = core_delete(host, true);
    core_assert_failed(host, push, AMP_ENOTFOUND, "MODEL_NOT_FOUND", "being deleted");
    core_do_all(host);
    assert_true(core_call(host, call)->answered);
    assert_int_equal(0, host->tasks_count);
}

static void the_name_of_a_deleted_model_is_free_and_its_epochs_are_not_used_again(void **state)
{
    struct core_host *host = *state;
    three_steps(host);
    struct ampd_incarnation old = incarnations[0];
    (void)core_delete(host, true);
    core_running(host, incarnations);
    assert_int_equal(1, ampd_core_models_count(host->core));
    assert_int_equal(2, core_info(host).epoch);
    assert_int_equal(0, core_info(host).decided_step);
    core_assert_failed(host, core_push_header(host, 1, 0, old), AMP_EABORTED, "FENCED", "join again");
    push_step(host, 1);
}

static void a_drain_ends_with_a_deleted_model(void **state)
{
    struct core_host *host = *state;
    (void)core_delete(host, true);
    struct ampd_event event = {.type = AMPD_EVENT_DRAIN};
    core_event(host, &event);
    assert_int_equal(1, host->drained);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_rollback_begins_an_epoch_at_the_checkpoint),
        TEST(gradients_of_the_old_epoch_are_refused),
        TEST(a_rollback_waits_for_the_verdict_that_is_being_stored),
        TEST(a_rollback_waits_for_an_act_that_is_being_stored),
        TEST(a_checkpoint_that_a_waiting_rollback_goes_back_to_is_not_dropped_meanwhile),
        TEST(a_scale_set_by_hand_is_announced_as_lost),
        TEST(a_part_that_is_being_written_is_given_up),
        TEST(a_rollback_can_follow_a_rollback_to_the_same_checkpoint),
        TEST(a_rollback_can_go_behind_the_base_of_its_epoch),
        TEST(files_above_the_checkpoint_go_when_the_epoch_of_a_rollback_is_stored),
        TEST(the_file_that_was_just_being_catalogued_goes_with_the_others),
        TEST(a_file_that_a_restart_makes_void_stays_until_the_next_part_is_written),
        TEST(a_join_that_is_stored_while_the_model_is_rolled_back_comes_again),
        TEST(a_repeated_rollback_is_answered_and_not_done_again),
        TEST(a_rollback_meets_one_that_is_under_way),
        TEST(a_checkpoint_that_is_not_there_costs_nothing),
        TEST(a_damaged_checkpoint_is_told_and_the_newest_is_taken),
        TEST(a_model_that_is_done_can_be_rolled_back),
        TEST(a_model_with_workers_is_deleted_by_force_alone),
        TEST(a_model_is_deleted_when_nothing_touches_it_any_more),
        TEST(a_delete_waits_for_a_part_jobs_and_records_under_way),
        TEST(a_verdict_that_is_being_stored_does_not_hold_a_delete_up_for_ever),
        TEST(the_name_of_a_deleted_model_is_free_and_its_epochs_are_not_used_again),
        TEST(a_drain_ends_with_a_deleted_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
