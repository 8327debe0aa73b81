/* A model's life: loading, ranks and leases, stalls, checkpoints, restarts, its end. */
#include "server/core/model/spec.h"
#include "tests/unit/core_fixture.h"
#include "tests/whole_spec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct core_host host;
static struct ampd_incarnation incarnations[2];

static int setup(void **state)
{
    (void)state;
    core_host_init(&host, 7);
    return 0;
}

static int setup_running(void **state)
{
    (void)setup(state);
    core_running(&host, incarnations);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    core_host_close(&host);
    return 0;
}

static void create(uint32_t world_size, uint64_t max_steps, uint64_t checkpoint_every)
{
    struct ampd_model_spec spec;
    core_spec(&spec, world_size);
    spec.max_steps = max_steps;
    spec.checkpoint_every = checkpoint_every;
    assert_int_equal(0, core_call(&host, core_create(&host, &spec))->reply.error.code);
}

static void decide(uint64_t step, float value)
{
    uint64_t first = core_push_all(&host, step, 0, incarnations[0], value);
    (void)core_push_all(&host, step, 1, incarnations[1], value);
    assert_true(core_call(&host, first)->answered);
}

/* ---- Load ---- */

static void a_load_is_answered_when_checkpoint_0_is_stored(void **state)
{
    (void)state;
    create(1, 0, 0);
    host.hold_files = true;
    uint64_t load = core_load(&host, 2);
    assert_int_equal(AMPD_MODEL_LOADING, core_info(&host).state);
    assert_false(core_call(&host, load)->answered);
    host.hold_persists = true;
    core_do_task(&host, 0);
    assert_false(core_call(&host, load)->answered);
    core_do_all(&host);
    assert_true(core_call(&host, load)->answered);
    assert_false(core_call(&host, load)->reply.u.load.already_loaded);
    assert_int_equal(AMPD_MODEL_WAITING, core_info(&host).state);
    assert_true(host.file[0] == 2 && host.file[99] == 2);
}

static void a_second_loader_waits_and_is_told_that_it_is_loaded(void **state)
{
    (void)state;
    create(1, 0, 0);
    struct ampd_event begin = {.type = AMPD_EVENT_LOAD_BEGIN, .call = 40, .u.named = {"model"}};
    core_event(&host, &begin);
    uint64_t second = core_load(&host, 2);
    core_assert_held(&host, second);
    core_close_call(&host, 40); /* the first loader is gone: the second is granted */
    assert_true(core_call(&host, second)->granted);
    core_close_call(&host, second);
    uint64_t third = core_load(&host, 3);
    assert_false(core_call(&host, third)->reply.u.load.already_loaded);
    assert_true(core_call(&host, core_load(&host, 4))->reply.u.load.already_loaded);
    assert_true(host.file[0] == 3);
}

static void a_load_of_a_value_that_is_not_finite_is_refused(void **state)
{
    (void)state;
    create(1, 0, 0);
    uint64_t load = core_load(&host, NAN);
    assert_true(core_call(&host, load)->revoked);
    core_revoked(&host, load);
    core_assert_failed(&host, load, AMP_EINVAL, "INVALID_TENSOR", "a: element 0");
    assert_int_equal(AMPD_MODEL_CREATED, core_info(&host).state);
    assert_int_equal(0, core_call(&host, core_load(&host, 1))->reply.error.code);
}

static void a_load_without_all_blocks_is_refused(void **state)
{
    (void)state;
    create(1, 0, 0);
    struct ampd_event event = {.type = AMPD_EVENT_LOAD_BEGIN, .call = 40, .u.named = {"model"}};
    core_event(&host, &event);
    event = (struct ampd_event){.type = AMPD_EVENT_LOAD_END, .call = 40};
    core_event(&host, &event);
    core_assert_failed(&host, 40, AMP_ESTATE, "INCOMPLETE_LOAD", "block 0 is missing, and 2 more");
}

/* ---- Join, Leave, leases ---- */

static void an_incarnation_is_stored_before_join_is_answered(void **state)
{
    (void)state;
    create(2, 0, 0);
    host.hold_persists = true;
    uint64_t join = core_join(&host, "x", 0);
    assert_false(core_call(&host, join)->answered);
    core_do_all(&host);
    struct ampd_incarnation incarnation = core_joined(&host, join);
    assert_int_equal(7, incarnation.fence);
    assert_int_equal(1, incarnation.counter);
}

static void a_known_name_gets_its_rank_back_with_a_newer_incarnation(void **state)
{
    (void)state;
    create(3, 0, 0);
    assert_int_equal(2, core_call(&host, core_join(&host, "x", 2))->reply.u.join.rank);
    uint64_t again = core_join(&host, "x", -1);
    assert_int_equal(2, core_call(&host, again)->reply.u.join.rank);
    assert_int_equal(2, core_joined(&host, again).counter);
}

/* A launcher may number the same workers anew. Two records with one name would be two ranks of one worker. */
static void a_known_name_gets_its_rank_back_whatever_rank_it_asks_for(void **state)
{
    (void)state;
    create(3, 0, 0);
    (void)core_joined(&host, core_join(&host, "x", 2));
    assert_int_equal(2, core_call(&host, core_join(&host, "x", 0))->reply.u.join.rank);
    core_tick(&host, host.now_ms + AMPD_LEASE_MS);
    struct ampd_incarnation newest = core_joined(&host, core_join(&host, "x", 1));
    struct ampd_event event = {.type = AMPD_EVENT_LEAVE, .call = 40, .u.worker = {"model", 2, newest}};
    core_event(&host, &event);
    assert_int_equal(2, core_call(&host, core_join(&host, "x", 0))->reply.u.join.rank);
    struct ampd_worker_info info;
    ampd_core_worker(host.core, 0, 0, host.now_ms, &info);
    assert_string_equal("", info.name);
}

static void a_new_name_gets_the_lowest_free_rank(void **state)
{
    (void)state;
    create(3, 0, 0);
    (void)core_join(&host, "x", 0);
    assert_int_equal(1, core_call(&host, core_join(&host, "y", -1))->reply.u.join.rank);
    assert_int_equal(2, core_call(&host, core_join(&host, "z", -1))->reply.u.join.rank);
    core_assert_failed(&host, core_join(&host, "late", -1), AMP_ESTATE, "NO_FREE_RANK", "replace");
}

static void a_rank_that_was_left_or_is_replaced_is_free(void **state)
{
    (void)state;
    create(1, 0, 0);
    struct ampd_incarnation first = core_joined(&host, core_join(&host, "x", -1));
    struct ampd_event event = {.type = AMPD_EVENT_LEAVE, .call = 40, .u.worker = {"model", 0, first}};
    core_event(&host, &event);
    assert_int_equal(0, core_call(&host, 40)->reply.error.code);
    assert_int_equal(0, core_call(&host, core_join(&host, "y", -1))->reply.u.join.rank);
    event = (struct ampd_event){
        .type = AMPD_EVENT_JOIN, .call = 41, .u.join = {.model = "model", .worker = "z", .rank = -1, .replace = true}};
    core_event(&host, &event);
    core_assert_failed(&host, 41, AMP_ESTATE, "NO_FREE_RANK", "lease");
    core_tick(&host, host.now_ms + AMPD_LEASE_MS);
    event.call = 42;
    core_event(&host, &event);
    assert_int_equal(0, core_call(&host, 42)->reply.error.code);
}

static void a_join_that_contradicts_the_model_is_refused(void **state)
{
    (void)state;
    create(2, 0, 0);
    struct ampd_event event = {
        .type = AMPD_EVENT_JOIN, .call = 40, .u.join = {.model = "model", .worker = "x", .rank = 0, .world_size = 3}};
    core_event(&host, &event);
    core_assert_failed(&host, 40, AMP_EINVAL, "WORLD_SIZE", "world_size");
    core_assert_failed(&host, core_join(&host, "x", 2), AMP_EINVAL, "RANK", "world_size");
    core_assert_failed(&host, core_join(&host, "", -1), AMP_EINVAL, "WORKER_NAME", "RANK");
    uint64_t named = core_join(&host, "", 1);
    assert_int_equal(1, core_call(&host, named)->reply.u.join.rank);
    struct ampd_worker_info info;
    ampd_core_worker(host.core, 0, 1, host.now_ms, &info);
    assert_string_equal("rank-1", info.name);
}

static void a_lease_is_renewed_by_keep_alive_and_ended_by_time(void **state)
{
    (void)state;
    host.now_ms += AMPD_LEASE_MS - 1;
    struct ampd_event event = {.type = AMPD_EVENT_KEEP_ALIVE, .call = 40, .u.worker = {"model", 0, incarnations[0]}};
    core_event(&host, &event);
    assert_true(core_call(&host, 40)->reply.u.keep_alive.valid);
    assert_int_equal(AMPD_LEASE_MS, core_call(&host, 40)->reply.u.keep_alive.lease_ms);
    core_tick(&host, host.now_ms + 1);
    struct ampd_worker_info info;
    ampd_core_worker(host.core, 0, 0, host.now_ms, &info);
    assert_true(info.lease_left_ms > 0);
    ampd_core_worker(host.core, 0, 1, host.now_ms, &info);
    assert_int_equal(0, info.lease_left_ms);
    event.call = 41;
    event.u.worker = (struct ampd_event_worker){"model", 1, incarnations[1]};
    core_event(&host, &event);
    assert_false(core_call(&host, 41)->reply.u.keep_alive.valid); /* it comes back only by Join */
}

static void a_newer_incarnation_opens_a_new_try_that_keeps_the_others_slots(void **state)
{
    (void)state;
    uint64_t push = core_push_all(&host, 1, 0, incarnations[0], 1);
    incarnations[1] = core_joined(&host, core_join(&host, "w1", 1));
    assert_true(core_call(&host, core_push_state(&host, 1, 1, 0, incarnations[0]))->reply.u.push_state.complete);
    (void)core_push_all(&host, 1, 1, incarnations[1], 1);
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(&host, push)->reply.u.step.verdict);
    assert_int_equal(2, host.row.tries);
}

static void a_missing_rank_stalls_the_model_until_it_comes_back(void **state)
{
    (void)state;
    uint64_t push = core_push_all(&host, 1, 0, incarnations[0], 1);
    uint64_t pull = core_pull_step(&host, 1, 2);
    core_tick(&host, host.now_ms + AMPD_LEASE_MS);
    core_tick(&host, host.now_ms + 600000 - 1);
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(&host).state);
    core_tick(&host, host.now_ms + 1);
    assert_int_equal(AMPD_MODEL_STALLED, core_info(&host).state);
    core_assert_failed(&host, push, AMP_EUNAVAILABLE, "MODEL_STALLED", "rank 1");
    core_assert_failed(&host, pull, AMP_EUNAVAILABLE, "MODEL_STALLED", "rank 1");
    core_assert_failed(&host, core_pull_step(&host, 1, 2), AMP_EUNAVAILABLE, "MODEL_STALLED", "rank 1");
    assert_true(core_call(&host, core_pull_latest(&host))->granted);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    incarnations[1] = core_joined(&host, core_join(&host, "w1", 1));
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(&host).state);
    decide(1, 1);
}

/* ---- checkpoints ---- */

static void checkpoints_are_cut_by_step_and_the_oldest_are_dropped(void **state)
{
    (void)state;
    create(2, 0, 2);
    (void)core_load(&host, 1);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    incarnations[1] = core_joined(&host, core_join(&host, "w1", 1));
    for (uint64_t step = 1; step <= 8; step++)
        decide(step, 1);
    assert_int_equal(5, host.cuts); /* 0, 2, 4, 6, 8 */
    assert_int_equal(2, host.dropped);
    struct ampd_model_info info = core_info(&host);
    assert_int_equal(3, info.checkpoints_count);
    assert_int_equal(4, info.checkpoints[0].step);
    assert_int_equal(8, info.durable_step);
}

static void a_checkpoint_call_is_answered_with_the_next_verdicts_part(void **state)
{
    (void)state;
    struct ampd_event event = {.type = AMPD_EVENT_CHECKPOINT, .call = 40, .u.named = {"model"}};
    core_event(&host, &event);
    assert_int_equal(0, core_call(&host, 40)->reply.u.checkpoint.step); /* nothing is decided since */
    decide(1, 1);
    event.call = 41;
    core_event(&host, &event);
    assert_false(core_call(&host, 41)->answered);
    decide(2, 1);
    assert_int_equal(2, core_call(&host, 41)->reply.u.checkpoint.step);
    assert_true(host.row.cut);
}

static void steps_go_on_while_a_part_is_sealed_but_not_over_a_second_cut(void **state)
{
    (void)state;
    create(2, 0, 1);
    (void)core_load(&host, 1);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    incarnations[1] = core_joined(&host, core_join(&host, "w1", 1));
    host.hold_seal = true;
    decide(1, 1024);
    assert_int_equal(1, core_info(&host).version);
    decide(2, 1024);
    assert_int_equal(2, core_info(&host).version); /* step 2 is applied; its cut waits for the file of step 1 */
    assert_true(host.file[0] == 0);                /* 1 - 1: step 1, not step 2 */
    decide(3, 1024);
    assert_int_equal(2, core_info(&host).version); /* step 3 must not be applied before the cut of step 2 begins */
    unsigned lines = host.logged_count;
    core_tick(&host, host.now_ms + 500);
    core_cut_end(&host, 0);
    assert_non_null(strstr(host.logged, "apply waited 500 ms for checkpoint 1 to be written"));
    assert_true(host.file[0] == -1);
    assert_int_equal(3, core_info(&host).version);
    core_tick(&host, host.now_ms + 500); /* nothing waits */
    core_cut_end(&host, 0);
    assert_int_equal(lines + 1, host.logged_count);
    assert_true(host.file[0] == -2);
    assert_int_equal(2, core_info(&host).durable_step);
}

static void a_drain_cuts_a_last_checkpoint(void **state)
{
    (void)state;
    decide(1, 1024);
    host.hold_files = true;
    struct ampd_event event = {.type = AMPD_EVENT_DRAIN};
    core_event(&host, &event);
    assert_int_equal(0, host.drained);
    core_do_all(&host);
    assert_int_equal(1, host.drained);
    assert_int_equal(1, host.file_state.step);
}

/* ---- the end ---- */

static void after_max_steps_and_its_checkpoint_the_model_is_done(void **state)
{
    (void)state;
    create(2, 1, 0);
    (void)core_load(&host, 1);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    incarnations[1] = core_joined(&host, core_join(&host, "w1", 1));
    uint64_t waiting = core_pull_step(&host, 1, 2);
    host.hold_files = true;
    decide(1, 1);
    core_assert_held(&host, waiting);
    core_do_all(&host);
    assert_int_equal(AMPD_MODEL_DONE, core_info(&host).state);
    core_assert_failed(&host, waiting, AMP_ESTATE, "MODEL_DONE", "latest");
    core_assert_failed(&host, core_push_header(&host, 2, 0, incarnations[0]), AMP_ESTATE, "MODEL_DONE", "done");
    assert_true(core_call(&host, core_pull_latest(&host))->granted);
}

/* ---- restarts ---- */

static void restart_with(enum ampd_durability durability, struct ampd_checkpoint_record *checkpoints, uint32_t count)
{
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.durability = durability;
    whole_spec(&spec);
    struct ampd_model_record record = {
        .spec = spec, .epoch = 4, .checkpoints = checkpoints, .checkpoints_count = count};
    struct ampd_event event = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    core_event(&host, &event);
    event = (struct ampd_event){.type = AMPD_EVENT_START};
    core_event(&host, &event);
}

static void restart(struct ampd_checkpoint_record *checkpoints, uint32_t count)
{
    restart_with(AMPD_DURABILITY_CHECKPOINT, checkpoints, count);
}

static void a_restart_begins_a_higher_epoch_from_the_newest_checkpoint(void **state)
{
    (void)state;
    struct ampd_checkpoint_record checkpoints[] = {{.epoch = 3, .step = 5, .version = 5},
                                                   {.epoch = 4, .step = 9, .version = 8}};
    host.hold_files = true;
    restart(checkpoints, 2);
    core_assert_failed(&host, core_join(&host, "w0", 0), AMP_EUNAVAILABLE, "RECOVERING", "try again");
    core_do_all(&host);
    struct ampd_model_info info = core_info(&host);
    assert_int_equal(5, info.epoch);
    assert_int_equal(9, info.base_step);
    assert_int_equal(8, info.version);
    assert_int_equal(AMPD_MODEL_WAITING, info.state);
    assert_int_equal(5, host.epoch.epoch);
    assert_int_equal(4, host.epoch.parent);
    assert_int_equal(9, host.epoch.base_step);
    uint64_t join = core_join(&host, "w0", 0);
    assert_int_equal(10, core_call(&host, join)->reply.u.join.step);
    assert_int_equal(5, core_call(&host, join)->reply.u.join.epoch);
    struct ampd_event_push push = {"model", 4, 10, 0, core_joined(&host, join), 1, AMP_F32, 1, false, 0, NULL, 0};
    uint64_t old = core_push_event(&host, &push);
    core_assert_failed(&host, old, AMP_EABORTED, "ROLLED_BACK", "join again");
    assert_int_equal(5, core_call(&host, old)->reply.epoch);
    assert_int_equal(10, core_call(&host, old)->reply.step);
}

static void a_damaged_checkpoint_is_passed_over_for_the_one_before(void **state)
{
    (void)state;
    struct ampd_checkpoint_record checkpoints[] = {{.epoch = 3, .step = 5, .version = 5},
                                                   {.epoch = 4, .step = 9, .version = 8}};
    host.restore_code = AMP_EDATALOSS;
    restart(checkpoints, 2);
    assert_int_equal(2, host.restored_count);
    assert_int_equal(9, host.restored_steps[0]);
    assert_int_equal(5, host.restored_steps[1]);
    struct ampd_model_info info = core_info(&host);
    assert_int_equal(5, info.epoch);
    assert_int_equal(5, info.base_step);
    assert_int_equal(1, info.checkpoints_count); /* the damaged one is void */
}

static void steps_after_a_damaged_checkpoint_are_named_by_its_step(void **state)
{
    (void)state;
    struct ampd_checkpoint_record checkpoint = {.epoch = 4, .step = 9, .version = 8};
    host.restore_code = AMP_EDATALOSS;
    host.hold_files = true;
    restart_with(AMPD_DURABILITY_STEP, &checkpoint, 1);
    core_do_task(&host, 0);
    assert_non_null(strstr(host.logged, "steps after the checkpoint of step 9 cannot be brought back"));
    core_do_all(&host);
}

static void without_a_checkpoint_the_model_waits_for_load_again(void **state)
{
    (void)state;
    restart(NULL, 0);
    assert_int_equal(AMPD_MODEL_CREATED, core_info(&host).state);
    assert_int_equal(5, core_info(&host).epoch);
    assert_int_equal(0, core_call(&host, core_load(&host, 1))->reply.error.code);
    assert_int_equal(AMPD_MODEL_WAITING, core_info(&host).state);
}

/* Nothing of the store has changed, and a call is told what to look at. */
static void assert_refused(void)
{
    core_assert_failed(&host, core_join(&host, "w0", 0), AMP_EUNAVAILABLE, "RECOVERING",
                       "is the checkpoint directory mounted");
    assert_int_equal(4, core_info(&host).epoch);
    assert_int_equal(0, host.persists[AMPD_PERSIST_EPOCH] + host.persists[AMPD_PERSIST_MODEL]);
    assert_int_equal(0, host.dropped);
}

static void a_checkpoint_that_is_not_there_is_waited_for_and_none_before_it_taken(void **state)
{
    (void)state;
    struct ampd_checkpoint_record checkpoints[] = {{.epoch = 3, .step = 5, .version = 5},
                                                   {.epoch = 4, .step = 9, .version = 8}};
    host.restore_codes = AMP_ENOTFOUND;
    restart(checkpoints, 2);
    for (unsigned tries = 1; tries < 4; tries++) {
        assert_int_equal(tries, host.restored_count);
        assert_refused();
        assert_int_equal(2, core_info(&host).checkpoints_count);
        host.restore_codes = tries < 3 ? AMP_ENOTFOUND : 0; /* the directory is mounted again */
        core_tick(&host, host.timer_ms);
    }
    assert_int_equal(5, core_info(&host).epoch);
    assert_int_equal(9, core_info(&host).base_step);
    assert_null(core_info(&host).trouble);
}

static void checkpoints_that_are_all_damaged_are_kept_and_the_model_is_refused(void **state)
{
    (void)state;
    struct ampd_checkpoint_record checkpoints[] = {{.epoch = 3, .step = 5, .version = 5},
                                                   {.epoch = 4, .step = 9, .version = 8}};
    host.restore_codes = AMP_EDATALOSS;
    restart(checkpoints, 2);
    assert_int_equal(2, host.restored_count);
    assert_refused();
    assert_non_null(strstr(host.logged, "no checkpoint of model can be read"));
    assert_int_equal(2, core_info(&host).checkpoints_count);
}

static void a_model_that_is_refused_can_be_deleted_by_force(void **state)
{
    (void)state;
    struct ampd_checkpoint_record checkpoint = {.epoch = 4, .step = 9, .version = 8};
    host.restore_codes = AMP_EDATALOSS;
    restart(&checkpoint, 1);
    assert_refused();
    core_assert_failed(&host, core_delete(&host, false), AMP_EUNAVAILABLE, "RECOVERING", "ampctl delete --force");
    assert_int_equal(0, core_call(&host, core_delete(&host, true))->reply.error.code);
    core_assert_failed(&host, core_join(&host, "w0", 0), AMP_ENOTFOUND, "MODEL_NOT_FOUND", "create it");
}

int main(void)
{
#define FRESH(test)   cmocka_unit_test_setup_teardown(test, setup, teardown)
#define RUNNING(test) cmocka_unit_test_setup_teardown(test, setup_running, teardown)
    const struct CMUnitTest tests[] = {
        FRESH(a_load_is_answered_when_checkpoint_0_is_stored),
        FRESH(a_second_loader_waits_and_is_told_that_it_is_loaded),
        FRESH(a_load_of_a_value_that_is_not_finite_is_refused),
        FRESH(a_load_without_all_blocks_is_refused),
        FRESH(an_incarnation_is_stored_before_join_is_answered),
        FRESH(a_known_name_gets_its_rank_back_with_a_newer_incarnation),
        FRESH(a_known_name_gets_its_rank_back_whatever_rank_it_asks_for),
        FRESH(a_new_name_gets_the_lowest_free_rank),
        FRESH(a_rank_that_was_left_or_is_replaced_is_free),
        FRESH(a_join_that_contradicts_the_model_is_refused),
        RUNNING(a_lease_is_renewed_by_keep_alive_and_ended_by_time),
        RUNNING(a_newer_incarnation_opens_a_new_try_that_keeps_the_others_slots),
        RUNNING(a_missing_rank_stalls_the_model_until_it_comes_back),
        FRESH(checkpoints_are_cut_by_step_and_the_oldest_are_dropped),
        RUNNING(a_checkpoint_call_is_answered_with_the_next_verdicts_part),
        FRESH(steps_go_on_while_a_part_is_sealed_but_not_over_a_second_cut),
        RUNNING(a_drain_cuts_a_last_checkpoint),
        FRESH(after_max_steps_and_its_checkpoint_the_model_is_done),
        FRESH(a_restart_begins_a_higher_epoch_from_the_newest_checkpoint),
        FRESH(a_damaged_checkpoint_is_passed_over_for_the_one_before),
        FRESH(steps_after_a_damaged_checkpoint_are_named_by_its_step),
        FRESH(without_a_checkpoint_the_model_waits_for_load_again),
        FRESH(a_checkpoint_that_is_not_there_is_waited_for_and_none_before_it_taken),
        FRESH(checkpoints_that_are_all_damaged_are_kept_and_the_model_is_refused),
        FRESH(a_model_that_is_refused_can_be_deleted_by_force),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
