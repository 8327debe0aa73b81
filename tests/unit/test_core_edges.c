/* Calls at the edges of what is allowed: each is refused by name, or has no effect, and the model goes on. */
#include "server/core/base/model.h"
#include "server/core/base/worker.h"
#include "server/core/coordinator/workers.h"
#include "server/core/model/passes.h"
#include "server/core/base/process.h"
#include "server/core/wire/step_messages.h"
#include "tests/unit/core_fixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct core_host host;
static struct ampd_incarnation incarnations[2];

static int setup(void **state)
{
    (void)state;
    core_host_init(&host, 7);
    struct ampd_event start = {.type = AMPD_EVENT_START};
    core_event(&host, &start);
    core_running(&host, incarnations);
    return 0;
}

static int setup_empty(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_host_init(&host, 7);
    core_spec(&spec, 2);
    (void)core_create(&host, &spec);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    core_host_close(&host);
    return 0;
}

static uint64_t send(struct ampd_event event)
{
    event.call = ++host.last_call;
    core_event(&host, &event);
    return event.call;
}

static void decide(uint64_t step)
{
    (void)core_push_all(&host, step, 0, incarnations[0], 1);
    (void)core_push_all(&host, step, 1, incarnations[1], 1);
    assert_int_equal(step, core_info(&host).decided_step);
}

/* ---- models and their names ---- */

static void a_call_of_a_model_that_is_not_there_is_not_found(void **state)
{
    (void)state;
    struct ampd_note note = {{0}, {0}, {0}};
    struct ampd_event events[] = {
        {.type = AMPD_EVENT_JOIN, .u.join = {.model = "none", .worker = "w", .rank = -1}},
        {.type = AMPD_EVENT_KEEP_ALIVE, .u.worker = {"none", 0, incarnations[0]}},
        {.type = AMPD_EVENT_LEAVE, .u.worker = {"none", 0, incarnations[0]}},
        {.type = AMPD_EVENT_GET_PUSH_STATE, .u.push_state = {"none", 1, 1, 0, incarnations[0]}},
        {.type = AMPD_EVENT_CHECKPOINT, .u.named = {"none"}},
        {.type = AMPD_EVENT_SET_SCALE, .u.act = {.model = "none", .note = &note, .scale = 8}},
        {.type = AMPD_EVENT_ROLLBACK, .u.act = {.model = "none", .note = &note}},
        {.type = AMPD_EVENT_DELETE_MODEL, .u.act = {.model = "none", .note = &note}},
        {.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "none", .loader = 1}},
        {.type = AMPD_EVENT_PULL, .u.pull = {.model = "none", .by = AMPD_PULL_LATEST}},
        {.type = AMPD_EVENT_PUSH_BEGIN, .u.push = {.model = "none", .epoch = 1, .step = 1}},
    };
    for (unsigned i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        core_assert_failed(&host, send(events[i]), AMP_ENOTFOUND, "MODEL_NOT_FOUND", "none");
    decide(1);
}

static void a_model_without_values_is_to_be_loaded_first(void **state)
{
    (void)state;
    core_assert_failed(&host, core_checkpoint(&host), AMP_ESTATE, "MODEL_NOT_LOADED", "load it first");
    core_assert_failed(&host, core_pull_latest(&host), AMP_ESTATE, "MODEL_NOT_LOADED", "load it first");
    struct ampd_incarnation incarnation = core_joined(&host, core_join(&host, "w0", 0));
    core_assert_failed(&host, core_push_header(&host, 1, 0, incarnation), AMP_ESTATE, "MODEL_NOT_LOADED", "load");
}

static void events_of_calls_that_are_over_have_no_effect(void **state)
{
    (void)state;
    static const enum ampd_event_type types[] = {AMPD_EVENT_LOAD_BLOCK, AMPD_EVENT_LOAD_END,    AMPD_EVENT_PUSH_BLOCK,
                                                 AMPD_EVENT_PUSH_END,   AMPD_EVENT_CALL_CLOSED, AMPD_EVENT_REVOKED};
    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct ampd_event event = {.type = types[i], .call = 999};
        core_event(&host, &event);
    }
    uint64_t push = core_push_header(&host, 1, 0, incarnations[0]);
    core_revoked(&host, push); /* nobody has asked for that */
    struct ampd_event block = {.type = AMPD_EVENT_PUSH_BLOCK, .call = push, .u.block = {.block = 77}};
    core_event(&host, &block); /* of another shard */
    block = (struct ampd_event){.type = AMPD_EVENT_LOAD_END, .call = push};
    core_event(&host, &block); /* it is no load */
    for (uint64_t b = 0; b < 3; b++)
        core_push_block(&host, push, b, 1);
    block = (struct ampd_event){.type = AMPD_EVENT_PUSH_BLOCK, .call = push, .u.block = {.block = 1}};
    core_event(&host, &block); /* which is here already */
    core_push_end(&host, push, NULL, 0);
    core_push_end(&host, push, NULL, 0);
    core_event(&host, &block);
    (void)core_push_all(&host, 1, 1, incarnations[1], 1);
    assert_int_equal(1, core_info(&host).decided_step);
    assert_int_equal(0, core_call(&host, push)->reply.error.code);
}

/* Pulls of the next step, numbered first to end - 1, which wait. Returns the event that closes the last one. */
static struct ampd_event fill_with_pulls(bool worker, uint64_t first, uint64_t end)
{
    struct ampd_output output;
    struct ampd_event event = {
        .type = AMPD_EVENT_PULL,
        .u.pull = {.model = "model", .by = AMPD_PULL_STEP, .epoch = 1, .number = 2, .has_worker = worker}};
    event.u.pull.incarnation = incarnations[0];
    for (uint64_t i = first; i < end; i++) {
        event.call = 100000 + i;
        ampd_core_step(host.core, host.now_ms, &event);
    }
    while (ampd_core_next(host.core, &output)) {
    }
    event.type = AMPD_EVENT_CALL_CLOSED;
    return event;
}

static void more_calls_than_the_bound_are_refused(void **state)
{
    (void)state;
    struct ampd_event close = fill_with_pulls(true, 0, AMPD_CALLS_MAX);
    core_assert_failed(&host, core_push_header(&host, 1, 0, incarnations[0]), AMP_EEXHAUSTED, "TOO_MANY_CALLS",
                       "too many");
    ampd_core_step(host.core, host.now_ms, &close);
    assert_true(core_call(&host, core_push_header(&host, 1, 0, incarnations[0]))->granted);
}

static void who_may_only_read_leaves_places_for_workers(void **state)
{
    (void)state;
    struct ampd_event close = fill_with_pulls(false, 0, AMPD_CALLS_WITHOUT_RANK_MAX);
    core_assert_failed(&host, core_pull_latest(&host), AMP_EEXHAUSTED, "TOO_MANY_CALLS", "too many calls");
    assert_true(core_call(&host, core_push_header(&host, 1, 0, incarnations[0]))->granted);
    ampd_core_step(host.core, host.now_ms, &close);
    assert_int_equal(0, core_call(&host, core_push_all(&host, 1, 1, incarnations[1], 1))->reply.error.code);
}

/* ---- workers ---- */

static struct ampd_event_join join_of(const char *worker, int32_t rank, uint32_t world_size, bool replace)
{
    struct ampd_event_join join = {.model = "model", .worker = worker, .rank = rank, .world_size = world_size};
    join.replace = replace;
    return join;
}

static void a_join_says_who_it_is_and_fits_the_model(void **state)
{
    (void)state;
    struct ampd_event join = {.type = AMPD_EVENT_JOIN,
                              .u.join = {.model = "model", .worker = "w0", .rank = 0, .world_size = 3}};
    core_assert_failed(&host, send(join), AMP_EINVAL, "WORLD_SIZE", "start that many workers");
    join.u.join = join_of("w9", 2, 2, false);
    core_assert_failed(&host, send(join), AMP_EINVAL, "RANK", "world_size");
    join.u.join = join_of("", -1, 2, false);
    core_assert_failed(&host, send(join), AMP_EINVAL, "WORKER_NAME", "RANK in the environment");
    char name[AMPD_NAME_MAX + 1];
    memset(name, 'w', sizeof(name));
    name[AMPD_NAME_MAX] = 0;
    join.u.join = join_of(name, 0, 2, false);
    core_assert_failed(&host, send(join), AMP_EINVAL, "WORKER_NAME", "at most 127");
    join.u.join = join_of("another", -1, 2, false);
    core_assert_failed(&host, send(join), AMP_ESTATE, "NO_FREE_RANK", "replace");
    join.u.join = join_of("another", 1, 2, true); /* its lease runs */
    core_assert_failed(&host, send(join), AMP_ESTATE, "NO_FREE_RANK", "replace");
    join.u.join = join_of("another", -1, 2, true);
    core_assert_failed(&host, send(join), AMP_ESTATE, "NO_FREE_RANK", "replace");
    core_tick(&host, host.now_ms + AMPD_LEASE_MS); /* nobody has been heard of */
    assert_int_equal(0, core_joined(&host, send(join)).counter == 0);
}

static void a_sign_of_life_of_nobody_renews_nothing(void **state)
{
    (void)state;
    struct ampd_event event = {.type = AMPD_EVENT_KEEP_ALIVE, .u.worker = {"model", 2, incarnations[0]}};
    core_assert_failed(&host, send(event), AMP_EINVAL, "RANK", "world_size");
    event.type = AMPD_EVENT_LEAVE;
    core_assert_failed(&host, send(event), AMP_EINVAL, "RANK", "world_size");
    event.u.worker = (struct ampd_event_worker){"model", 1, {7, 99}};
    core_assert_failed(&host, send(event), AMP_EABORTED, "FENCED", "another incarnation");
    event.type = AMPD_EVENT_KEEP_ALIVE;
    assert_false(core_call(&host, send(event))->reply.u.keep_alive.valid);
    struct ampd_event state_of = {.type = AMPD_EVENT_GET_PUSH_STATE,
                                  .u.push_state = {"model", 1, 1, 2, incarnations[0]}};
    core_assert_failed(&host, send(state_of), AMP_EINVAL, "RANK", "world_size");
}

static void a_worker_that_leaves_and_joins_at_once_holds_its_rank(void **state)
{
    (void)state;
    host.hold_persists = true;
    struct ampd_event leave = {.type = AMPD_EVENT_LEAVE, .u.worker = {"model", 1, incarnations[1]}};
    uint64_t left = send(leave);
    core_assert_failed(&host, core_join(&host, "w1", 1), AMP_EUNAVAILABLE, "RECOVERING", "ask again");
    host.hold_persists = false;
    core_do_all(&host);
    assert_true(core_call(&host, left)->answered);
    incarnations[1] = core_joined(&host, core_join(&host, "w1", 1));
    assert_int_equal(AMPD_LEASE_LIVE, host.core->models[0]->workers[1].lease);
    decide(1);
    leave.u.worker.incarnation = incarnations[1];
    (void)send(leave);
    assert_int_equal(AMPD_LEASE_LEFT, host.core->models[0]->workers[1].lease);
    (void)send(leave); /* its answer was lost: the rank is free as before */
    assert_int_equal(AMPD_LEASE_LEFT, host.core->models[0]->workers[1].lease);
}

static void a_join_whose_caller_is_gone_counts_all_the_same(void **state)
{
    (void)state;
    host.hold_persists = true;
    uint64_t join = core_join(&host, "w1", 1);
    core_close_call(&host, join);
    struct ampd_event leave = {.type = AMPD_EVENT_LEAVE, .u.worker = {"model", 0, incarnations[0]}};
    uint64_t left = send(leave);
    core_close_call(&host, left);
    host.hold_persists = false;
    core_do_all(&host);
    assert_false(core_call(&host, join)->answered || core_call(&host, left)->answered);
    assert_int_equal(3, host.core->models[0]->workers[1].record.incarnation.counter);
    assert_int_equal(AMPD_LEASE_LEFT, host.core->models[0]->workers[0].lease);
}

/* ---- load ---- */

static uint64_t begin_load(void)
{
    struct ampd_event event = {.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "model", .loader = 0}};
    return send(event);
}

static void load_block(uint64_t id, uint64_t block, float value, bool bad)
{
    const struct ampd_load_grant grant = core_call(&host, id)->load;
    float *to = grant.planes[0] + block * AMPD_ALIGN_ELEMENTS;
    struct ampd_segment_count counts[4];
    struct ampd_event event = {
        .type = AMPD_EVENT_LOAD_BLOCK, .call = id, .u.block = {.block = block, .bad_checksum = bad}};
    to[0] = value;
    event.u.block.counts = counts;
    event.u.block.counts_count = ampd_receive_block(grant.layout, block, AMP_F32, to, &amp_kernels_ref, counts);
    core_event(&host, &event);
}

static void a_load_that_is_not_whole_or_not_finite_leaves_the_model_empty(void **state)
{
    (void)state;
    uint64_t load = begin_load();
    assert_true(core_call(&host, load)->granted);
    load_block(load, 0, 1, false);
    load_block(load, 0, 1, false); /* twice is once */
    struct ampd_event end = {.type = AMPD_EVENT_LOAD_END, .call = load};
    core_event(&host, &end);
    core_assert_failed(&host, load, AMP_ESTATE, "INCOMPLETE_LOAD", "block 1 is missing, and 1 more");
    uint64_t second = begin_load();
    load_block(second, 0, INFINITY, false);
    core_revoked(&host, second);
    core_assert_failed(&host, second, AMP_EINVAL, "INVALID_TENSOR", "Inf or NaN");
    uint64_t third = begin_load();
    load_block(third, 2, 1, true);
    core_revoked(&host, third);
    core_assert_failed(&host, third, AMP_EDATALOSS, "BLOCK_CHECKSUM", "block 2");
    uint64_t fourth = begin_load(), waits = begin_load();
    struct ampd_event block = {.type = AMPD_EVENT_LOAD_BLOCK, .call = waits, .u.block = {.block = 0}};
    core_event(&host, &block); /* it has no grant */
    block.call = fourth;
    block.u.block.block = 99;
    core_event(&host, &block); /* no such block */
    end.call = waits;
    core_event(&host, &end);
    core_close_call(&host, fourth); /* who waits is next */
    assert_true(core_call(&host, waits)->granted);
    for (uint64_t b = 0; b < 3; b++)
        load_block(waits, b, 2, false);
    core_event(&host, &end);
    assert_int_equal(0, core_call(&host, waits)->reply.error.code);
    assert_true(core_call(&host, core_load(&host, 1))->reply.u.load.already_loaded);
}

/* ---- push ---- */

static void a_header_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct ampd_event_push push = {.model = "model", .epoch = 1, .step = 1, .dtype = AMP_F32, .weight = 1};
    push.incarnation = incarnations[0];
    push.scale_id = core_info(&host).step_scale_id;
    struct ampd_event_push wrong = push;
    wrong.rank = 2;
    core_assert_failed(&host, core_push_event(&host, &wrong), AMP_EINVAL, "RANK", "rank");
    wrong = push;
    wrong.dtype = AMP_F64;
    core_assert_failed(&host, core_push_event(&host, &wrong), AMP_EINVAL, "INVALID_TENSOR", "dtype");
    wrong = push;
    wrong.user_state_size = AMPD_USER_STATE_MAX + 1;
    core_assert_failed(&host, core_push_event(&host, &wrong), AMP_EINVAL, "USER_STATE", "at most");
    wrong = push;
    wrong.weight = 2;
    core_assert_failed(&host, core_push_event(&host, &wrong), AMP_EINVAL, "WEIGHT", "EQUAL");
    wrong = push;
    wrong.weight = NAN;
    core_assert_failed(&host, core_push_event(&host, &wrong), AMP_EINVAL, "WEIGHT", "weight");
    uint64_t first = core_push_event(&host, &push);
    core_push_block(&host, first, 0, 1);
    core_close_call(&host, first);
    wrong = push;
    wrong.dtype = AMP_BF16; /* the slot has bytes of another */
    core_assert_failed(&host, core_push_event(&host, &wrong), AMP_EINVAL, "INVALID_TENSOR", "resumed");
    assert_true(core_call(&host, core_push_event(&host, &push))->granted);
}

static void a_trailer_names_each_absent_parameter_once(void **state)
{
    (void)state;
    static const uint32_t twice[] = {1, 1}, beyond[] = {2};
    uint64_t push = core_push_header(&host, 1, 0, incarnations[0]);
    core_push_end(&host, push, twice, 2);
    core_assert_failed(&host, push, AMP_EINVAL, "INVALID_TENSOR", "once");
    push = core_push_header(&host, 1, 0, incarnations[0]);
    core_push_end(&host, push, beyond, 1);
    core_assert_failed(&host, push, AMP_EINVAL, "INVALID_TENSOR", "below 2");
    decide(1);
}

static void a_group_with_a_weight_decay_of_its_own_has_that(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    spec.weight_decay = 0.25; /* of the model */
    spec.weight_decay_set = true;
    spec.groups_count = 1;
    spec.groups[0] = (struct ampd_group_spec){.lr_scale = 1, .weight_decay_set = true, .weight_decay = 0.5};
    core_host_close(&host);
    core_host_init(&host, 7);
    (void)core_create(&host, &spec);
    (void)core_load(&host, 3);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    (void)core_push_all(&host, 1, 0, incarnations[0], 0);
    const struct core_call *pull = core_call(&host, core_pull_latest(&host));
    float value;
    memcpy(&value, pull->pull.memory, sizeof(value));
    assert_float_equal(1.5, value, 0); /* 3 - 1 * 0.5 * 3 */
}

/* ---- pull ---- */

static uint64_t pull_version(uint64_t epoch, uint64_t version)
{
    struct ampd_event event = {
        .type = AMPD_EVENT_PULL,
        .u.pull = {.model = "model", .by = AMPD_PULL_VERSION, .epoch = epoch, .number = version}};
    return send(event);
}

static void a_pull_by_version_gets_one_that_is_held(void **state)
{
    (void)state;
    core_assert_failed(&host, pull_version(0, 1), AMP_ESTATE, "VERSION_AHEAD", "the newest is 0");
    assert_true(core_call(&host, pull_version(0, 0))->granted);
    decide(1);
    assert_int_equal(1, core_call(&host, pull_version(1, 1))->pull.version);
    struct core_call *before = core_call(&host, pull_version(1, 0)); /* that copy is there still */
    assert_int_equal(0, before->pull.version);
    assert_int_equal(1, before->pull.step);
    core_assert_failed(&host, pull_version(2, 1), AMP_ESTATE, "EPOCH_AHEAD", "epoch");
    core_assert_failed(&host, core_pull_step(&host, 1, 9), AMP_ESTATE, "STEP_AHEAD", "further ahead");
    core_assert_failed(&host, core_pull_step(&host, 1, 1), AMP_EABORTED, "STALE_STEP", "decided");
    host.hold_jobs = true;
    (void)core_push_all(&host, 2, 0, incarnations[0], 1);
    (void)core_push_all(&host, 2, 1, incarnations[1], 1);
    while (core_info(&host).decided_step < 2 && host.tasks_count > 0)
        core_do_task(&host, 0);
    assert_true(core_call(&host, pull_version(1, 2))->granted); /* as it is written */
    host.hold_jobs = false;
    core_do_all(&host);
    core_assert_failed(&host, pull_version(1, 0), AMP_EABORTED, "STALE_VERSION", "no longer held");
}

/* ---- what operators do ---- */

static void a_request_id_belongs_to_one_request(void **state)
{
    (void)state;
    assert_int_equal(0, core_call(&host, core_set_scale(&host, 8, "one"))->reply.error.code);
    core_assert_failed(&host, core_set_scale(&host, 16, "one"), AMP_EINVAL, "REQUEST_ID_USED", "one");
    core_assert_failed(&host, core_reset_scale(&host, "one"), AMP_EINVAL, "REQUEST_ID_USED", "one");
    decide(1);
    assert_int_equal(0, core_call(&host, core_rollback(&host, 1, 0, "two"))->reply.error.code);
    core_assert_failed(&host, core_rollback(&host, 1, 1, "two"), AMP_EINVAL, "REQUEST_ID_USED", "two");
    core_assert_failed(&host, core_rollback(&host, 2, 0, "two"), AMP_EINVAL, "REQUEST_ID_USED", "two");
    assert_int_equal(2, core_call(&host, core_rollback(&host, 1, 0, "two"))->reply.u.rollback.epoch);
}

static void a_request_that_is_being_stored_comes_again(void **state)
{
    (void)state;
    host.hold_persists = true;
    uint64_t first = core_set_scale(&host, 8, "one");
    core_assert_failed(&host, core_set_scale(&host, 8, "one"), AMP_EUNAVAILABLE, "RECOVERING", "being stored");
    (void)core_set_scale(&host, 16, "another");
    core_assert_failed(&host, core_set_scale(&host, 16, "another"), AMP_EUNAVAILABLE, "RECOVERING", "being stored");
    core_close_call(&host, first); /* it is done all the same */
    host.hold_persists = false;
    core_do_all(&host);
    assert_float_equal(16, core_info(&host).scaler.scale, 0);
    assert_false(core_call(&host, first)->answered);
}

static void acts_that_wait_for_a_verdict_to_be_stored_are_known_and_bounded(void **state)
{
    (void)state;
    host.hold_persists = true;
    (void)core_push_all(&host, 1, 0, incarnations[0], 1);
    (void)core_push_all(&host, 1, 1, incarnations[1], 1);
    for (unsigned i = 0; i < AMPD_ACTIONS_WAIT_MAX; i++) {
        char id[16];
        (void)snprintf(id, sizeof(id), "act-%u", i);
        float scale = i % 2 == 0 ? 8 : 16;
        core_assert_held(&host, core_set_scale(&host, scale, id));
        core_assert_failed(&host, core_set_scale(&host, scale, id), AMP_EUNAVAILABLE, "RECOVERING", "stored");
    }
    core_assert_failed(&host, core_set_scale(&host, 64, "more"), AMP_EEXHAUSTED, "TOO_MANY_CALLS", "next step");
    host.hold_persists = false;
    core_do_all(&host);
    assert_float_equal(16, core_info(&host).scaler.scale, 0);
}

static void a_rollback_that_nobody_waits_for_any_more_is_not_begun(void **state)
{
    (void)state;
    host.hold_persists = true;
    (void)core_push_all(&host, 1, 0, incarnations[0], 1);
    (void)core_push_all(&host, 1, 1, incarnations[1], 1);
    uint64_t call = core_rollback(&host, 1, 0, "");
    core_assert_held(&host, call);
    core_close_call(&host, call);
    host.hold_persists = false;
    core_do_all(&host);
    assert_int_equal(1, core_info(&host).epoch);
    assert_int_equal(1, core_info(&host).decided_step);
}

static void checkpoint_calls_end_when_the_model_is_rolled_back(void **state)
{
    (void)state;
    decide(1);
    uint64_t waits = core_checkpoint(&host); /* for the verdict of step 2 */
    core_assert_held(&host, waits);
    assert_int_equal(0, core_call(&host, core_rollback(&host, 1, 0, ""))->reply.error.code);
    core_assert_failed(&host, waits, AMP_EUNAVAILABLE, "ROLLING_BACK", "ask again");
    assert_int_equal(2, core_info(&host).epoch);
}

/* ---- draining ---- */

static void a_draining_server_takes_no_new_call(void **state)
{
    (void)state;
    struct ampd_note note = {{0}, {0}, {0}};
    uint64_t waits = core_pull_step(&host, 1, 2);
    struct ampd_event drain = {.type = AMPD_EVENT_DRAIN};
    core_event(&host, &drain);
    core_assert_failed(&host, waits, AMP_EUNAVAILABLE, "DRAINING", "when it is back");
    struct ampd_event events[] = {
        {.type = AMPD_EVENT_JOIN, .u.join = {.model = "model", .worker = "w", .rank = -1}},
        {.type = AMPD_EVENT_SET_LR, .u.act = {.model = "model", .note = &note, .lr = 0.5}},
        {.type = AMPD_EVENT_EVICT, .u.act = {.model = "model", .note = &note}},
        {.type = AMPD_EVENT_DELETE_MODEL, .u.act = {.model = "model", .note = &note}},
        {.type = AMPD_EVENT_LOAD_BEGIN, .u.load = {.model = "model", .loader = 1}},
        {.type = AMPD_EVENT_PULL, .u.pull = {.model = "model", .by = AMPD_PULL_LATEST}},
        {.type = AMPD_EVENT_PUSH_BEGIN, .u.push = {.model = "model", .epoch = 1, .step = 1}},
    };
    for (unsigned i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        core_assert_failed(&host, send(events[i]), AMP_EUNAVAILABLE, "DRAINING", "when it is back");
    assert_int_equal(1, host.drained);
}

int main(void)
{
#define RUNNING(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define EMPTY(name)   cmocka_unit_test_setup_teardown(name, setup_empty, teardown)
    const struct CMUnitTest tests[] = {
        RUNNING(a_call_of_a_model_that_is_not_there_is_not_found),
        EMPTY(a_model_without_values_is_to_be_loaded_first),
        RUNNING(events_of_calls_that_are_over_have_no_effect),
        RUNNING(more_calls_than_the_bound_are_refused),
        RUNNING(who_may_only_read_leaves_places_for_workers),
        RUNNING(a_join_says_who_it_is_and_fits_the_model),
        RUNNING(a_sign_of_life_of_nobody_renews_nothing),
        RUNNING(a_worker_that_leaves_and_joins_at_once_holds_its_rank),
        RUNNING(a_join_whose_caller_is_gone_counts_all_the_same),
        EMPTY(a_load_that_is_not_whole_or_not_finite_leaves_the_model_empty),
        RUNNING(a_header_that_does_not_fit_is_refused),
        RUNNING(a_trailer_names_each_absent_parameter_once),
        RUNNING(a_group_with_a_weight_decay_of_its_own_has_that),
        RUNNING(a_pull_by_version_gets_one_that_is_held),
        RUNNING(a_request_id_belongs_to_one_request),
        RUNNING(a_request_that_is_being_stored_comes_again),
        RUNNING(acts_that_wait_for_a_verdict_to_be_stored_are_known_and_bounded),
        RUNNING(a_rollback_that_nobody_waits_for_any_more_is_not_begun),
        RUNNING(checkpoint_calls_end_when_the_model_is_rolled_back),
        RUNNING(a_draining_server_takes_no_new_call),
    };
#undef RUNNING
#undef EMPTY
    return cmocka_run_group_tests(tests, NULL, NULL);
}
