/* Rules of a step beside the arithmetic: the floor of the scale, shrinking, clipping by group, workers that are named. */
#include "server/core/model/spec.h"
#include "server/core/wire/step_messages.h"
#include "tests/unit/core_fixture.h"
#include "tests/whole_spec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct ampd_incarnation incarnations[70];

static int setup(void **state)
{
    static struct core_host host;
    core_host_init(&host, 1);
    *state = &host;
    return 0;
}

static int teardown(void **state)
{
    core_host_close(*state);
    return 0;
}

static void begin(struct core_host *host, const struct ampd_model_spec *spec)
{
    static const char *const names[] = {"w0", "w1", "w2"};
    assert_int_equal(0, core_call(host, core_create(host, spec))->reply.error.code);
    (void)core_load(host, 1);
    for (uint32_t r = 0; r < spec->world_size; r++)
        incarnations[r] = core_joined(host, core_join(host, names[r], (int32_t)r));
}

static uint64_t push_step(struct core_host *host, uint64_t step, uint32_t world_size, float value)
{
    uint64_t call = 0;
    for (uint32_t r = 0; r < world_size; r++)
        call = core_push_all(host, step, r, incarnations[r], value);
    return call;
}

/* ---- the floor ---- */

static void begin_at_floor(struct core_host *host, enum ampd_floor_policy policy, enum amp_scaler_policy scaler)
{
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    spec.floor_policy = policy;
    spec.max_consecutive_overflows = 2;
    spec.scaler = (struct amp_scaler_config){.policy = scaler, .init_scale = 2, .min_scale = 1};
    begin(host, &spec);
}

static void a_frozen_model_opens_no_step_until_its_scale_is_set(void **state)
{
    struct core_host *host = *state;
    begin_at_floor(host, AMPD_FLOOR_FREEZE, AMP_SCALER_DYNAMIC);
    assert_false(core_call(host, push_step(host, 1, 1, INFINITY))->reply.u.step.frozen);
    uint64_t waits = core_pull_step(host, 1, 3);
    const struct ampd_step_result *result = &core_call(host, push_step(host, 2, 1, INFINITY))->reply.u.step;
    assert_true(result->frozen && result->unstable && !result->failed);
    core_assert_failed(host, waits, AMP_ESTATE, "MODEL_FROZEN", "a, b");
    core_assert_failed(host, core_push_header(host, 3, 0, incarnations[0]), AMP_ESTATE, "MODEL_FROZEN", "set or reset");
    assert_true(core_info(host).frozen);
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(host).state);
    (void)core_set_scale(host, 1, ""); /* the floor itself: the overflows in a row begin anew */
    assert_false(core_info(host).frozen);
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(host, push_step(host, 3, 1, 1))->reply.u.step.verdict);
}

static void parameters_that_overflow_on_several_ranks_are_named_once(void **state)
{
    struct core_host *host = *state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.floor_policy = AMPD_FLOOR_FREEZE;
    spec.max_consecutive_overflows = 1;
    spec.scaler = (struct amp_scaler_config){.policy = AMP_SCALER_DYNAMIC, .init_scale = 1, .min_scale = 1};
    begin(host, &spec);
    (void)push_step(host, 1, 2, INFINITY);
    uint64_t push = core_push_header(host, 2, 0, incarnations[0]);
    core_assert_failed(host, push, AMP_ESTATE, "MODEL_FROZEN", "overflowing: a, b;");
}

/* Another process, whose store has a checkpoint of a model at its floor. */
static void a_model_that_was_frozen_is_so_after_a_restart(void **state)
{
    struct core_host *host = *state;
    struct ampd_checkpoint_record checkpoint = {.epoch = 1, .step = 2};
    struct ampd_step_row row = {.epoch = 1, .kind = AMPD_ROW_STEP, .step = 2};
    struct ampd_model_record record = {.epoch = 1, .last = &row, .checkpoints_count = 1, .checkpoints = &checkpoint};
    core_spec(&record.spec, 1);
    record.spec.floor_policy = AMPD_FLOOR_FREEZE;
    record.spec.max_consecutive_overflows = 2;
    record.spec.scaler = (struct amp_scaler_config){.policy = AMP_SCALER_DYNAMIC, .init_scale = 2, .min_scale = 1};
    struct amp_error error = {0};
    whole_spec(&record.spec);
    assert_int_equal(0, ampd_spec_check(&record.spec, &error));
    host->restore_state.step = 2;
    amp_scaler_init(&record.spec.scaler, &host->restore_state.carry.scaler);
    host->restore_state.carry.scaler.scale = 1;
    host->restore_state.carry.scaler.consecutive_overflows = 2;
    struct ampd_event event = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    core_event(host, &event);
    event = (struct ampd_event){.type = AMPD_EVENT_START};
    core_event(host, &event);
    assert_int_equal(2, core_info(host).decided_step);
    incarnations[0] = core_joined(host, core_join(host, "w0", 0));
    uint64_t push = core_push_header(host, 3, 0, incarnations[0]);
    core_assert_failed(host, push, AMP_ESTATE, "MODEL_FROZEN", "2 overflows in a row");
    (void)core_reset_scale(host, "");
    push = core_push_header(host, 3, 0, incarnations[0]);
    assert_true(core_call(host, push)->granted);
}

static void a_frozen_model_takes_a_scale_however_many_other_acts_wait_for_its_next_step(void **state)
{
    struct core_host *host = *state;
    begin_at_floor(host, AMPD_FLOOR_FREEZE, AMP_SCALER_DYNAMIC);
    (void)push_step(host, 1, 1, INFINITY);
    (void)push_step(host, 2, 1, INFINITY);
    for (unsigned i = 1; i < AMPD_ACTIONS_WAIT_MAX; i++)
        assert_int_equal(0, core_call(host, core_set_lr(host, i, ""))->reply.error.code);
    core_assert_failed(host, core_set_lr(host, 1, ""), AMP_EEXHAUSTED, "TOO_MANY_CALLS", "next step");
    core_assert_failed(host, core_evict(host, 0, ""), AMP_EEXHAUSTED, "TOO_MANY_CALLS", "next step");
    assert_int_equal(0, core_call(host, core_reset_scale(host, ""))->reply.error.code);
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(host, push_step(host, 3, 1, 1))->reply.u.step.verdict);
}

/* As an older program may have left it: no place is kept for a scale. */
static void a_frozen_model_takes_a_scale_after_a_restart_with_as_many_acts_as_there_can_be(void **state)
{
    struct core_host *host = *state;
    struct ampd_checkpoint_record checkpoint = {.epoch = 1, .step = 2};
    struct ampd_step_row rows[1 + AMPD_ACTIONS_WAIT_MAX] = {
        {.epoch = 1, .kind = AMPD_ROW_STEP, .step = 2, .tries = 1, .verdict = AMPD_VERDICT_SKIPPED_OVERFLOW}};
    struct ampd_worker_record worker = {.name = "w0", .incarnation = {.fence = 1, .counter = 1}};
    struct ampd_model_record record = {.epoch = 1,
                                       .last = &rows[AMPD_ACTIONS_WAIT_MAX],
                                       .rows = rows,
                                       .rows_count = 1 + AMPD_ACTIONS_WAIT_MAX,
                                       .workers_count = 1,
                                       .workers = &worker,
                                       .checkpoints_count = 1,
                                       .checkpoints = &checkpoint};
    core_spec(&record.spec, 1);
    record.spec.durability = AMPD_DURABILITY_STEP;
    record.spec.floor_policy = AMPD_FLOOR_FREEZE;
    record.spec.max_consecutive_overflows = 2;
    record.spec.scaler = (struct amp_scaler_config){.policy = AMP_SCALER_DYNAMIC, .init_scale = 2, .min_scale = 1};
    struct amp_error error = {0};
    whole_spec(&record.spec);
    assert_int_equal(0, ampd_spec_check(&record.spec, &error));
    amp_scaler_init(&record.spec.scaler, &rows[0].after.scaler);
    for (unsigned i = 0; i < 2; i++)
        amp_scaler_update(&record.spec.scaler, &rows[0].after.scaler, AMP_SCALER_OVERFLOW);
    host->restore_state.step = 2;
    host->restore_state.carry = rows[0].after;
    for (unsigned i = 1; i <= AMPD_ACTIONS_WAIT_MAX; i++)
        rows[i] = (struct ampd_step_row){.epoch = 1,
                                         .kind = AMPD_ROW_EVICT,
                                         .step = 2,
                                         .from_step = 3,
                                         .contributors_count = 1,
                                         .after = rows[0].after};
    struct ampd_event event = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    core_event(host, &event);
    event = (struct ampd_event){.type = AMPD_EVENT_START};
    core_event(host, &event);
    assert_int_equal(2, core_info(host).decided_step);
    assert_true(core_info(host).frozen);
    core_assert_failed(host, core_set_lr(host, 1, ""), AMP_EEXHAUSTED, "TOO_MANY_CALLS", "next step");
    assert_int_equal(0, core_call(host, core_reset_scale(host, ""))->reply.error.code);
    assert_false(core_info(host).frozen);
    uint64_t push = core_push_all(host, 3, 0, worker.incarnation, 1);
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(host, push)->reply.u.step.verdict);
}

static void a_model_whose_last_step_is_at_the_floor_is_done_and_waits_for_no_operator(void **state)
{
    struct core_host *host = *state;
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    spec.floor_policy = AMPD_FLOOR_FREEZE;
    spec.max_consecutive_overflows = 1;
    spec.max_steps = 1;
    spec.scaler = (struct amp_scaler_config){.policy = AMP_SCALER_DYNAMIC, .init_scale = 1, .min_scale = 1};
    begin(host, &spec);
    (void)push_step(host, 1, 1, INFINITY);
    assert_int_equal(AMPD_MODEL_DONE, core_info(host).state);
    assert_false(core_info(host).frozen);
    core_assert_failed(host, core_reset_scale(host, ""), AMP_ESTATE, "MODEL_DONE", "no step will follow");
}

/* No step would follow anyway: training has not failed. */
static void the_result_of_the_last_step_says_that_it_neither_stops_nor_fails(void **state)
{
    struct core_host *host = *state;
    const enum ampd_floor_policy policies[] = {AMPD_FLOOR_FREEZE, AMPD_FLOOR_FAIL};
    for (unsigned i = 0; i < 2; i++) {
        struct ampd_model_spec spec;
        core_spec(&spec, 1);
        spec.floor_policy = policies[i];
        spec.max_consecutive_overflows = 1;
        spec.max_steps = 1;
        spec.scaler = (struct amp_scaler_config){.policy = AMP_SCALER_DYNAMIC, .init_scale = 1, .min_scale = 1};
        begin(host, &spec);
        const struct ampd_step_result *result = &core_call(host, push_step(host, 1, 1, INFINITY))->reply.u.step;
        assert_true(result->unstable && !result->frozen && !result->failed);
        core_host_close(host);
        core_host_init(host, 1);
    }
}

static void a_checkpoint_of_a_frozen_model_is_cut_at_once(void **state)
{
    struct core_host *host = *state;
    begin_at_floor(host, AMPD_FLOOR_FREEZE, AMP_SCALER_DYNAMIC);
    (void)push_step(host, 1, 1, INFINITY);
    (void)push_step(host, 2, 1, INFINITY);
    const struct core_call *call = core_call(host, core_checkpoint(host));
    assert_true(call->answered);
    assert_int_equal(2, call->reply.u.checkpoint.step);
}

static void a_frozen_model_goes_on_after_a_rollback(void **state)
{
    struct core_host *host = *state;
    begin_at_floor(host, AMPD_FLOOR_FREEZE, AMP_SCALER_DYNAMIC);
    (void)push_step(host, 1, 1, INFINITY);
    (void)push_step(host, 2, 1, INFINITY);
    assert_int_equal(0, core_call(host, core_rollback(host, 1, 0, ""))->reply.error.code);
    assert_false(core_info(host).frozen);
    incarnations[0] = core_joined(host, core_join(host, "w0", 0));
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(host, push_step(host, 1, 1, 1))->reply.u.step.verdict);
}

static void a_model_that_fails_says_so_in_its_result(void **state)
{
    struct core_host *host = *state;
    begin_at_floor(host, AMPD_FLOOR_FAIL, AMP_SCALER_DYNAMIC);
    (void)push_step(host, 1, 1, INFINITY);
    const struct ampd_step_result *result = &core_call(host, push_step(host, 2, 1, INFINITY))->reply.u.step;
    assert_true(result->failed && !result->frozen);
    core_assert_failed(host, core_pull_step(host, 1, 3), AMP_ESTATE, "MODEL_UNSTABLE",
                       "floor, 1; overflowing: a, b; see why by ampctl explain");
    (void)core_reset_scale(host, "");
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(host, push_step(host, 3, 1, 1))->reply.u.step.verdict);
}

static void a_model_that_stops_says_that_its_loss_is_no_number(void **state)
{
    struct core_host *host = *state;
    struct ampd_metrics told = {.loss = NAN, .loss_workers = 1};
    begin_at_floor(host, AMPD_FLOOR_FREEZE, AMP_SCALER_DYNAMIC);
    host->metrics = &told;
    (void)push_step(host, 1, 1, INFINITY);
    (void)push_step(host, 2, 1, INFINITY);
    core_assert_failed(host, core_pull_step(host, 1, 3), AMP_ESTATE, "MODEL_FROZEN",
                       "floor, 1; the loss itself is no finite number, which no scale can fix; overflowing: a, b; see");
    host->metrics = NULL;
}

static void under_clamp_and_with_a_scale_that_never_moves_the_model_goes_on(void **state)
{
    struct core_host *host = *state;
    begin_at_floor(host, AMPD_FLOOR_CLAMP, AMP_SCALER_DYNAMIC);
    for (uint64_t step = 1; step <= 4; step++)
        assert_false(core_call(host, push_step(host, step, 1, INFINITY))->reply.u.step.frozen);
    assert_true(core_info(host).unstable);
    core_host_close(host);
    core_host_init(host, 1);
    begin_at_floor(host, AMPD_FLOOR_FREEZE, AMP_SCALER_STATIC);
    for (uint64_t step = 1; step <= 4; step++)
        assert_false(core_call(host, push_step(host, step, 1, INFINITY))->reply.u.step.frozen);
}

/* ---- shrink ---- */

static void begin_shrinking(struct core_host *host, uint32_t min_workers)
{
    struct ampd_model_spec spec;
    core_spec(&spec, 3);
    spec.on_loss = AMPD_ON_LOSS_SHRINK;
    spec.min_workers = min_workers;
    spec.loss_timeout_ms = 5000;
    assert_int_equal(0, core_call(host, core_create(host, &spec))->reply.error.code);
    (void)core_load(host, 1);
    incarnations[0] = core_joined(host, core_join(host, "w0", 0));
    incarnations[1] = core_joined(host, core_join(host, "w1", 1));
    if (min_workers > 1)
        return;
    (void)push_step(host, 1, 1, 1024); /* it opened with the first that joined */
    assert_int_equal(1, host->row.contributors_count);
}

static void the_first_step_opens_with_the_least_number_of_workers(void **state)
{
    struct core_host *host = *state;
    begin_shrinking(host, 2);
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(host).state);
    incarnations[2] = core_joined(host, core_join(host, "w2", 2)); /* it waits for the next step */
    uint64_t early = core_push_header(host, 1, 2, incarnations[2]);
    core_assert_held(host, early);
    (void)push_step(host, 1, 2, 1024);
    assert_int_equal(2, host->row.contributors_count);
    (void)push_step(host, 2, 3, 1024);
    assert_int_equal(3, host->row.contributors_count);
}

static void a_worker_whose_lease_ends_is_left_out_of_the_open_step(void **state)
{
    struct core_host *host = *state;
    begin_shrinking(host, 1);
    uint64_t call = core_push_all(host, 2, 0, incarnations[0], 1024);
    assert_false(core_call(host, call)->answered);
    core_tick(host, host->now_ms + AMPD_LEASE_MS - 1);
    struct ampd_event renew = {.type = AMPD_EVENT_RENEW, .u.worker = {"model", 0, incarnations[0]}};
    core_event(host, &renew);
    core_tick(host, host->now_ms + 1);
    assert_int_equal(0, core_call(host, call)->reply.error.code);
    assert_true(core_call(host, call)->answered);
    assert_int_equal(1, host->row.contributors_count);
    assert_true(host->row.tries >= 2);
}

static void a_worker_that_leaves_is_left_out_too_and_comes_back_later(void **state)
{
    struct core_host *host = *state;
    begin_shrinking(host, 1);
    uint64_t call = core_push_all(host, 2, 0, incarnations[0], 1024);
    assert_false(core_call(host, call)->answered);
    struct ampd_event leave = {.type = AMPD_EVENT_LEAVE, .call = ++host->last_call};
    leave.u.worker = (struct ampd_event_worker){"model", 1, incarnations[1]};
    core_event(host, &leave);
    assert_true(core_call(host, call)->answered);
    incarnations[1] = core_joined(host, core_join(host, "w1", 1));
    (void)core_push_all(host, 3, 0, incarnations[0], 1024);
    assert_int_equal(3, host->row.step);
    assert_int_equal(1, host->row.contributors_count);
    (void)push_step(host, 4, 2, 1024);
    assert_int_equal(2, host->row.contributors_count);
}

/* Each Join renews the lease, so that the rank is never lost. */
static void a_worker_that_starts_again_and_again_holds_up_no_step(void **state)
{
    struct core_host *host = *state;
    begin_shrinking(host, 1);
    uint64_t call = core_push_all(host, 2, 0, incarnations[0], 1024);
    assert_false(core_call(host, call)->answered);
    incarnations[1] = core_joined(host, core_join(host, "w1", 1));
    assert_true(core_call(host, call)->answered);
    assert_int_equal(1, host->row.contributors_count);
    assert_int_equal(2, host->row.tries);
    (void)core_push_all(host, 3, 0, incarnations[0], 1024); /* it comes in with the next step */
    assert_int_equal(2, host->row.step);
    (void)core_push_all(host, 3, 1, incarnations[1], 1024);
    assert_int_equal(3, host->row.step);
    assert_int_equal(2, host->row.contributors_count);
}

static void where_too_few_are_left_a_step_waits_for_who_has_started_again(void **state)
{
    struct core_host *host = *state;
    begin_shrinking(host, 2);
    (void)core_push_all(host, 1, 0, incarnations[0], 1024);
    incarnations[1] = core_joined(host, core_join(host, "w1", 1));
    incarnations[2] = core_joined(host, core_join(host, "w2", 2));
    (void)core_push_all(host, 1, 1, incarnations[1], 1024);
    assert_int_equal(1, host->row.step);
    assert_int_equal(2, host->row.contributors_count);
}

static void a_push_that_is_complete_counts_though_its_worker_is_gone(void **state)
{
    struct core_host *host = *state;
    begin_shrinking(host, 1);
    uint64_t call = core_push_all(host, 2, 1, incarnations[1], 1024);
    core_tick(host, host->now_ms + AMPD_LEASE_MS - 1);
    struct ampd_event renew = {.type = AMPD_EVENT_RENEW, .u.worker = {"model", 0, incarnations[0]}};
    core_event(host, &renew);
    core_tick(host, host->now_ms + 1);
    (void)core_push_all(host, 2, 0, incarnations[0], 1024);
    assert_true(core_call(host, call)->answered);
    assert_int_equal(2, host->row.contributors_count);
}

static void with_too_few_workers_the_model_waits_and_stalls(void **state)
{
    struct core_host *host = *state;
    begin_shrinking(host, 2);
    (void)push_step(host, 1, 2, 1024);
    core_tick(host, host->now_ms + AMPD_LEASE_MS);
    uint64_t pull = core_pull_step(host, 1, 3);
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(host).state);
    core_tick(host, host->now_ms + 5000);
    assert_int_equal(AMPD_MODEL_STALLED, core_info(host).state);
    core_assert_failed(host, pull, AMP_EUNAVAILABLE, "MODEL_STALLED", "rank 0");
    incarnations[0] = core_joined(host, core_join(host, "w0", 0));
    incarnations[1] = core_joined(host, core_join(host, "w1", 1));
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(host).state);
    (void)push_step(host, 2, 2, 1024);
    assert_int_equal(2, host->row.step);
}

/* A step that can open without the rank does not wait for it. */
static void a_rank_that_is_gone_for_long_stalls_no_model_with_enough_others(void **state)
{
    struct core_host *host = *state;
    begin_shrinking(host, 2);
    incarnations[2] = core_joined(host, core_join(host, "w2", 2));
    (void)push_step(host, 1, 2, 1024);
    core_tick(host, host->now_ms + AMPD_LEASE_MS);
    core_tick(host, host->now_ms + 5000);
    assert_int_equal(AMPD_MODEL_STALLED, core_info(host).state);
    incarnations[0] = core_joined(host, core_join(host, "w0", 0));
    assert_int_equal(AMPD_MODEL_STALLED, core_info(host).state);
    incarnations[1] = core_joined(host, core_join(host, "w1", 1));
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(host).state);
    (void)push_step(host, 2, 2, 1024);
    assert_int_equal(2, host->row.step);
}

static void a_frozen_model_that_goes_on_is_not_stalled_by_who_has_gone_meanwhile(void **state)
{
    struct core_host *host = *state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.on_loss = AMPD_ON_LOSS_SHRINK;
    spec.min_workers = 1;
    spec.loss_timeout_ms = 5000;
    spec.floor_policy = AMPD_FLOOR_FREEZE;
    spec.max_consecutive_overflows = 1;
    spec.scaler = (struct amp_scaler_config){.policy = AMP_SCALER_DYNAMIC, .init_scale = 1, .min_scale = 1};
    begin(host, &spec);
    (void)push_step(host, 1, 1, INFINITY); /* it opened with the first that joined */
    assert_true(core_info(host).frozen);
    for (unsigned i = 0; i < 4; i++) {
        struct ampd_event renew = {.type = AMPD_EVENT_RENEW, .u.worker = {"model", 0, incarnations[0]}};
        core_event(host, &renew);
        core_tick(host, host->now_ms + AMPD_LEASE_MS / 2);
    }
    (void)core_reset_scale(host, "");
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(host).state);
    (void)push_step(host, 2, 1, 1);
    assert_int_equal(2, host->row.step);
}

/* ---- clipping ---- */

static void each_group_is_clipped_by_its_own_norm(void **state)
{
    struct core_host *host = *state;
    struct ampd_model_spec spec;
    struct ampd_parameter_spec two[2];
    core_spec(&spec, 1);
    memcpy(two, spec.parameters, sizeof(two));
    two[1].group = 1;
    spec.parameters = two;
    spec.groups_count = 2;
    spec.groups[0] = (struct ampd_group_spec){.lr_scale = 1, .clip_max_norm = 1};
    spec.groups[1] = (struct ampd_group_spec){.lr_scale = 1};
    spec.clip_scope = AMPD_CLIP_GROUP;
    spec.clip_max_norm = 100;
    begin(host, &spec);
    const struct ampd_step_result *result = &core_call(host, push_step(host, 1, 1, 1024))->reply.u.step;
    assert_int_equal(2, result->clips_count);
    assert_true(result->clips[0] == (float)(1 / (10 + 1e-6))); /* 100 elements of 1 */
    assert_true(result->clips[1] == 1);
    assert_true(result->norm == sqrt(110));
    assert_true(host->row.clip == result->clips[0]);
    uint64_t pull = core_pull_latest(host);
    const float *masters = (const float *)(const void *)core_call(host, pull)->pull.memory;
    assert_true(masters[0] == 1 - result->clips[0]);
    assert_true(masters[128] == 0); /* b moved by 1 */
}

/* ---- workers that are named ---- */

static struct ampd_worker_info worker(struct core_host *host, uint32_t rank)
{
    struct ampd_worker_info info;
    ampd_core_worker(host->core, 0, rank, host->now_ms, &info);
    return info;
}

static void one_step(struct core_host *host, uint64_t step, uint64_t late_ms, float first, float second)
{
    (void)core_push_all(host, step, 0, incarnations[0], first);
    host->now_ms += late_ms;
    (void)core_push_all(host, step, 1, incarnations[1], second);
}

static void a_worker_that_all_wait_for_again_and_again_is_named(void **state)
{
    struct core_host *host = *state;
    core_running(host, incarnations);
    for (uint64_t step = 1; step < AMPD_STRAGGLER_STEPS; step++)
        one_step(host, step, AMPD_STRAGGLER_MS, 1, 1);
    assert_false(worker(host, 1).straggles);
    one_step(host, AMPD_STRAGGLER_STEPS, AMPD_STRAGGLER_MS, 1, 1);
    assert_true(worker(host, 1).straggles);
    assert_false(worker(host, 0).straggles);
    assert_non_null(strstr(host->logged, "straggler"));
    one_step(host, AMPD_STRAGGLER_STEPS + 1, AMPD_STRAGGLER_MS - 1, 1, 1);
    assert_false(worker(host, 1).straggles);
    assert_int_equal(AMPD_STRAGGLER_STEPS, worker(host, 1).slow_steps); /* what was is still told */
    assert_int_equal(AMPD_STRAGGLER_STEPS * AMPD_STRAGGLER_MS, worker(host, 1).slow_ms);
    assert_int_equal(0, worker(host, 0).slow_steps);
    assert_non_null(strstr(host->logged, "keeps up"));
}

static void a_worker_whose_gradients_are_never_finite_is_named(void **state)
{
    struct core_host *host = *state;
    core_running(host, incarnations);
    for (uint64_t step = 1; step < AMPD_NONFINITE_PUSHES; step++)
        one_step(host, step, 0, 1, NAN);
    one_step(host, AMPD_NONFINITE_PUSHES, 0, INFINITY, NAN); /* all of them: nobody's own fault */
    assert_false(worker(host, 1).nonfinite);
    one_step(host, AMPD_NONFINITE_PUSHES + 1, 0, 1, NAN);
    assert_true(worker(host, 1).nonfinite);
    assert_false(worker(host, 0).nonfinite);
    assert_non_null(strstr(host->logged, "look at its data"));
    one_step(host, AMPD_NONFINITE_PUSHES + 2, 0, 1, 1);
    assert_false(worker(host, 1).nonfinite);
}

/* ---- quarantine ---- */

/* So many steps in which rank 1 alone pushes NaN. */
static void poison(struct core_host *host, uint64_t first, uint64_t count)
{
    for (uint64_t step = first; step < first + count; step++)
        one_step(host, step, 0, 1, NAN);
}

/* Rank 0 lives on meanwhile. */
static void pass(struct core_host *host, uint64_t time_ms)
{
    for (uint64_t left = time_ms; left > 0;) {
        uint64_t part = left < AMPD_LEASE_MS / 2 ? left : AMPD_LEASE_MS / 2;
        core_tick(host, host->now_ms + part);
        struct ampd_event renew = {.type = AMPD_EVENT_RENEW, .u.worker = {"model", 0, incarnations[0]}};
        core_event(host, &renew);
        left -= part;
    }
}

static void a_worker_that_has_every_step_skipped_is_left_out(void **state)
{
    struct core_host *host = *state;
    begin_shrinking(host, 1);
    poison(host, 2, AMPD_QUARANTINE_PUSHES - 1);
    assert_false(worker(host, 1).quarantined);
    poison(host, 1 + AMPD_QUARANTINE_PUSHES, 1);
    assert_true(worker(host, 1).quarantined);
    assert_int_equal(0, worker(host, 1).lease_left_ms);
    assert_non_null(strstr(host->logged, "quarantine"));
    (void)push_step(host, 2 + AMPD_QUARANTINE_PUSHES, 1, 1);
    assert_int_equal(2 + AMPD_QUARANTINE_PUSHES, host->row.step);
    assert_int_equal(1, host->row.contributors_count);
    assert_int_equal(0, host->row.rows_count);
}

/* One good push among eight ends each row of bad ones: what counts then is how many of the newest were. */
static void a_good_push_now_and_then_does_not_keep_a_worker_out_of_quarantine(void **state)
{
    struct core_host *host = *state;
    begin_shrinking(host, 1);
    uint64_t step = 2;
    for (; step < 2 + AMPD_QUARANTINE_WINDOW && !worker(host, 1).quarantined; step++)
        one_step(host, step, 0, 1, step % AMPD_QUARANTINE_PUSHES == 0 ? 1 : NAN);
    assert_true(worker(host, 1).quarantined);
    /* Those before the first good one do not count: no scale was known to be low enough. */
    assert_in_range(step, 2 + AMPD_QUARANTINE_SHARE, 2 + 2 * AMPD_QUARANTINE_SHARE);
    assert_non_null(strstr(host->logged, "16 steps of the newest 64"));
    pass(host, AMPD_QUARANTINE_MS);
    incarnations[1] = core_joined(host, core_join(host, "w1", 1));
    (void)push_step(host, step, 1, 1); /* it opened before */
    poison(host, step + 1, 1);
    assert_true(worker(host, 1).quarantined);
}

static void fewer_than_the_share_of_bad_pushes_leave_a_worker_in(void **state)
{
    struct core_host *host = *state;
    const uint64_t every = AMPD_QUARANTINE_WINDOW / (AMPD_QUARANTINE_SHARE - 1) + 1;
    begin_shrinking(host, 1);
    for (uint64_t step = 2; step < 2 + 4 * AMPD_QUARANTINE_WINDOW; step++)
        one_step(host, step, 0, 1, step % every == 0 ? NAN : 1);
    assert_false(worker(host, 1).quarantined);
    assert_false(worker(host, 1).nonfinite);
}

/* A scale that grows after each applied step makes every second one overflow, always at the worker with the largest gradient. */
static void a_scale_that_grows_too_far_is_not_a_workers_fault(void **state)
{
    struct core_host *host = *state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.on_loss = AMPD_ON_LOSS_SHRINK;
    spec.min_workers = 1;
    spec.scaler = (struct amp_scaler_config){.policy = AMP_SCALER_DYNAMIC, .init_scale = 1024, .growth_interval = 1};
    assert_int_equal(0, core_call(host, core_create(host, &spec))->reply.error.code);
    (void)core_load(host, 1);
    incarnations[0] = core_joined(host, core_join(host, "w0", 0));
    incarnations[1] = core_joined(host, core_join(host, "w1", 1));
    (void)core_push_all(host, 1, 0, incarnations[0], 1); /* it opened with the first that joined */
    uint64_t skipped = 0;
    for (uint64_t step = 2; step < 2 + 2 * AMPD_QUARANTINE_WINDOW; step++) {
        bool over = host->row.after.scaler.scale > 4096;
        one_step(host, step, 0, 1, over ? INFINITY : 1);
        skipped += over ? 1 : 0;
    }
    assert_true(skipped > AMPD_QUARANTINE_WINDOW / 2);
    assert_false(worker(host, 1).quarantined);
}

static void nobody_may_join_as_a_rank_in_quarantine(void **state)
{
    struct core_host *host = *state;
    begin_shrinking(host, 1);
    incarnations[2] = core_joined(host, core_join(host, "w2", 2));
    poison(host, 2, 1);
    (void)core_push_all(host, 3, 2, incarnations[2], 1);
    poison(host, 3, 1);
    struct ampd_event leave = {.type = AMPD_EVENT_LEAVE, .call = ++host->last_call};
    leave.u.worker = (struct ampd_event_worker){"model", 2, incarnations[2]};
    core_event(host, &leave);
    poison(host, 4, AMPD_QUARANTINE_PUSHES - 2);
    core_assert_failed(host, core_join(host, "w1", 1), AMP_ESTATE, "QUARANTINED", "join again in 60 s");
    core_assert_failed(host, core_join(host, "other", 1), AMP_ESTATE, "NO_FREE_RANK", "other");
    pass(host, AMPD_QUARANTINE_MS - 1);
    core_assert_failed(host, core_join(host, "w1", 1), AMP_ESTATE, "QUARANTINED", "join again in 1 s");
    pass(host, 1);
    incarnations[1] = core_joined(host, core_join(host, "w1", 1));
    assert_false(worker(host, 1).quarantined);
}

static void after_quarantine_one_such_push_is_enough_and_a_finite_one_ends_the_count(void **state)
{
    struct core_host *host = *state;
    begin_shrinking(host, 1);
    poison(host, 2, AMPD_QUARANTINE_PUSHES);
    pass(host, AMPD_QUARANTINE_MS);
    incarnations[1] = core_joined(host, core_join(host, "w1", 1));
    uint64_t step = 2 + AMPD_QUARANTINE_PUSHES;
    (void)push_step(host, step, 1, 1); /* it opened before */
    poison(host, step + 1, 1);
    assert_true(worker(host, 1).quarantined);
    pass(host, AMPD_QUARANTINE_MS);
    incarnations[1] = core_joined(host, core_join(host, "w1", 1));
    (void)push_step(host, step + 2, 1, 1);
    one_step(host, step + 3, 0, 1, 1);
    poison(host, step + 4, AMPD_QUARANTINE_PUSHES - 1);
    assert_false(worker(host, 1).quarantined);
}

static void a_worker_that_the_steps_cannot_do_without_is_named_alone(void **state)
{
    struct core_host *host = *state;
    begin_shrinking(host, 2);
    poison(host, 1, AMPD_QUARANTINE_PUSHES + 1);
    assert_false(worker(host, 1).quarantined);
    assert_true(worker(host, 1).nonfinite);
}

static void one_of_a_fixed_list_is_named_alone(void **state)
{
    struct core_host *host = *state;
    core_running(host, incarnations);
    poison(host, 1, AMPD_QUARANTINE_PUSHES + 1);
    assert_false(worker(host, 1).quarantined);
    assert_true(worker(host, 1).nonfinite);
}

static void a_quorum_goes_on_without_a_worker_in_quarantine(void **state)
{
    struct core_host *host = *state;
    struct ampd_model_spec spec;
    core_spec(&spec, 3);
    spec.sync = AMPD_SYNC_QUORUM;
    spec.quorum = 2;
    begin(host, &spec);
    poison(host, 1, AMPD_QUARANTINE_PUSHES); /* ranks 0 and 1 are the quorum */
    assert_true(worker(host, 1).quarantined);
    uint64_t step = 1 + AMPD_QUARANTINE_PUSHES;
    uint64_t push = core_push_header(host, step, 1, incarnations[1]);
    core_assert_failed(host, push, AMP_EABORTED, "FENCED", "lease");
    (void)core_push_all(host, step, 0, incarnations[0], 1);
    (void)core_push_all(host, step, 2, incarnations[2], 1);
    assert_int_equal(step, host->row.step);
    assert_int_equal(2, host->row.contributors_count);
    assert_int_equal(0, host->row.rows_count);
}

/* More ranks than rows of overflows are kept, or all but one who pushes zeros: the scale is to blame. */
static void no_worker_is_left_out_when_half_of_them_or_unknown_ones_overflow(void **state)
{
    struct core_host *host = *state;
    for (uint32_t world = 3; world <= 70; world += 67) {
        struct ampd_model_spec spec;
        core_spec(&spec, world);
        spec.on_loss = AMPD_ON_LOSS_SHRINK;
        spec.min_workers = 1;
        assert_int_equal(0, core_call(host, core_create(host, &spec))->reply.error.code);
        (void)core_load(host, 1);
        for (uint32_t r = 0; r < world; r++) {
            char name[8];
            (void)snprintf(name, sizeof name, "w%u", r);
            incarnations[r] = core_joined(host, core_join(host, name, (int32_t)r));
        }
        (void)core_push_all(host, 1, 0, incarnations[0], 1); /* it opened with the first that joined */
        for (uint64_t step = 2; step < 2 + AMPD_QUARANTINE_PUSHES; step++)
            for (uint32_t r = 0; r < world; r++)
                (void)core_push_all(host, step, r, incarnations[r], world == 3 && r == 2 ? 0.0F : INFINITY);
        assert_int_equal(1 + AMPD_QUARANTINE_PUSHES, host->row.step);
        for (uint32_t r = 0; r < world; r++)
            assert_false(worker(host, r).quarantined);
        core_host_close(host);
        core_host_init(host, 1);
    }
}

static void another_name_does_not_inherit_what_a_rank_has_pushed(void **state)
{
    struct core_host *host = *state;
    begin_shrinking(host, 1);
    poison(host, 2, AMPD_QUARANTINE_PUSHES);
    pass(host, AMPD_QUARANTINE_MS);
    struct ampd_event leave = {.type = AMPD_EVENT_LEAVE, .call = ++host->last_call};
    leave.u.worker = (struct ampd_event_worker){"model", 1, incarnations[1]};
    core_event(host, &leave);
    incarnations[1] = core_joined(host, core_join(host, "heir", 1));
    (void)push_step(host, 2 + AMPD_QUARANTINE_PUSHES, 1, 1); /* it opened before */
    poison(host, 3 + AMPD_QUARANTINE_PUSHES, 1);
    assert_false(worker(host, 1).quarantined);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_frozen_model_opens_no_step_until_its_scale_is_set),
        TEST(parameters_that_overflow_on_several_ranks_are_named_once),
        TEST(a_model_that_was_frozen_is_so_after_a_restart),
        TEST(a_frozen_model_takes_a_scale_however_many_other_acts_wait_for_its_next_step),
        TEST(a_frozen_model_takes_a_scale_after_a_restart_with_as_many_acts_as_there_can_be),
        TEST(a_model_whose_last_step_is_at_the_floor_is_done_and_waits_for_no_operator),
        TEST(the_result_of_the_last_step_says_that_it_neither_stops_nor_fails),
        TEST(a_checkpoint_of_a_frozen_model_is_cut_at_once),
        TEST(a_frozen_model_goes_on_after_a_rollback),
        TEST(a_model_that_fails_says_so_in_its_result),
        TEST(a_model_that_stops_says_that_its_loss_is_no_number),
        TEST(under_clamp_and_with_a_scale_that_never_moves_the_model_goes_on),
        TEST(the_first_step_opens_with_the_least_number_of_workers),
        TEST(a_worker_whose_lease_ends_is_left_out_of_the_open_step),
        TEST(a_worker_that_leaves_is_left_out_too_and_comes_back_later),
        TEST(a_worker_that_starts_again_and_again_holds_up_no_step),
        TEST(where_too_few_are_left_a_step_waits_for_who_has_started_again),
        TEST(a_push_that_is_complete_counts_though_its_worker_is_gone),
        TEST(with_too_few_workers_the_model_waits_and_stalls),
        TEST(a_rank_that_is_gone_for_long_stalls_no_model_with_enough_others),
        TEST(a_frozen_model_that_goes_on_is_not_stalled_by_who_has_gone_meanwhile),
        TEST(each_group_is_clipped_by_its_own_norm),
        TEST(a_worker_that_all_wait_for_again_and_again_is_named),
        TEST(a_worker_whose_gradients_are_never_finite_is_named),
        TEST(a_worker_that_has_every_step_skipped_is_left_out),
        TEST(a_good_push_now_and_then_does_not_keep_a_worker_out_of_quarantine),
        TEST(fewer_than_the_share_of_bad_pushes_leave_a_worker_in),
        TEST(a_scale_that_grows_too_far_is_not_a_workers_fault),
        TEST(nobody_may_join_as_a_rank_in_quarantine),
        TEST(after_quarantine_one_such_push_is_enough_and_a_finite_one_ends_the_count),
        TEST(a_worker_that_the_steps_cannot_do_without_is_named_alone),
        TEST(one_of_a_fixed_list_is_named_alone),
        TEST(a_quorum_goes_on_without_a_worker_in_quarantine),
        TEST(no_worker_is_left_out_when_half_of_them_or_unknown_ones_overflow),
        TEST(another_name_does_not_inherit_what_a_rank_has_pushed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
