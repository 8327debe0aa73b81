/*
 * Several models in one process, one of them gone: what comes back finds the model that waits for it, and what nobody waits
 * for has no effect. What a process knows of models, ranks and shards.
 */
#include "server/core/base/model.h"
#include "server/core/base/worker.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/workers.h"
#include "server/core/base/process.h"
#include "server/core/shard/shard.h"
#include "tests/unit/core_fixture.h"

#include <stdio.h>
#include <string.h>

static struct core_host host;
static struct ampd_incarnation incarnation;

static void make_core(struct ampd_core_config config)
{
    ampd_core_free(host.core);
    config.fence.counter = 1;
    config.block_elements = AMPD_ALIGN_ELEMENTS;
    config.check = true;
    assert_int_equal(0, ampd_core_new(&config, &host.core));
}

static void journalled_spec(struct ampd_model_spec *spec, const char *name)
{
    core_spec(spec, 1);
    (void)snprintf(spec->name, sizeof(spec->name), "%s", name);
    spec->durability = AMPD_DURABILITY_STEP;
    spec->momentum = 0.5;
}

/* Two models, of which the second one, "model", trains. */
static int setup(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_host_init(&host, 1);
    struct ampd_event start = {.type = AMPD_EVENT_START};
    core_event(&host, &start);
    journalled_spec(&spec, "another");
    assert_int_equal(0, core_call(&host, core_create(&host, &spec))->reply.error.code);
    journalled_spec(&spec, "model");
    assert_int_equal(0, core_call(&host, core_create(&host, &spec))->reply.error.code);
    assert_int_equal(0, core_call(&host, core_load(&host, 1))->reply.error.code);
    incarnation = core_joined(&host, core_join(&host, "w0", 0));
    host.has_file = true;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    core_host_close(&host);
    return 0;
}

static void send(struct ampd_event event)
{
    core_event(&host, &event);
}

static uint64_t call(struct ampd_event event)
{
    event.call = ++host.last_call;
    core_event(&host, &event);
    return event.call;
}

static const struct ampd_shard *trained(void)
{
    return host.core->models[1]->shard;
}

static void push(uint64_t step, float value)
{
    const struct ampd_shard *shard = trained();
    struct ampd_event_push push = {.model = "model",
                                   .epoch = shard->epoch,
                                   .step = step,
                                   .incarnation = incarnation,
                                   .scale_id = shard->step.open.scale_id,
                                   .dtype = AMP_F32,
                                   .weight = 1};
    uint64_t id = core_push_event(&host, &push);
    for (uint64_t b = 0; b < 3; b++)
        core_push_block(&host, id, b, value);
    core_push_end(&host, id, NULL, 0);
    assert_int_equal(step, shard->decided.step);
}

/* A vote, a part of a checkpoint, a restore that fails, and the journal again: each comes back with a number of its own. */
static void all_that_comes_back(uint64_t step)
{
    unsigned cuts = host.cuts;
    push(step, 1);
    uint64_t cut = core_checkpoint(&host);
    push(step + 1, 2);
    assert_true(core_call(&host, cut)->answered);
    assert_int_equal(cuts + 1, host.cuts);
    push(step + 2, 1);
    host.restore_code = AMP_ENOTFOUND; /* of the checkpoint that was asked for; the newest one is there */
    uint64_t back = core_rollback(&host, 1, 0, "");
    core_assert_failed(&host, back, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "where it was");
    assert_int_equal(step + 2, trained()->decided.step);
    assert_int_equal(1, trained()->epoch);
}

static void what_comes_back_finds_the_model_that_waits_for_it(void **state)
{
    (void)state;
    all_that_comes_back(1);
    struct ampd_note note = {{0}, {0}, {0}};
    uint64_t gone =
        call((struct ampd_event){.type = AMPD_EVENT_DELETE_MODEL, .u.act = {.model = "another", .note = &note}});
    assert_int_equal(0, core_call(&host, gone)->reply.error.code);
    struct ampd_model_info info;
    ampd_core_model(host.core, 0, &info);
    assert_true(info.deleted);
    push(4, 1);
    uint64_t cut = core_checkpoint(&host);
    push(5, 1);
    assert_true(core_call(&host, cut)->answered);
    host.restore_code = AMP_ENOTFOUND;
    uint64_t back = core_rollback(&host, 1, 0, "");
    core_assert_failed(&host, back, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "where it was");
    core_tick(&host, host.now_ms + 1);
    assert_int_equal(5, trained()->decided.step);
}

static void what_nobody_waits_for_has_no_effect(void **state)
{
    (void)state;
    struct ampd_checkpoint_record record = {.step = 0};
    struct ampd_checkpoint_state restored = {.step = 0};
    struct ampd_event events[] = {
        {.type = AMPD_EVENT_PERSISTED, .u.persisted.token = 999},
        {.type = AMPD_EVENT_JOURNALLED, .u.persisted.token = 999},
        {.type = AMPD_EVENT_REPLAYED, .u.replayed.token = 999},
        {.type = AMPD_EVENT_RESTORED, .u.restored = {.token = 999, .state = &restored}},
        {.type = AMPD_EVENT_PART_WRITTEN, .u.part = {.token = 999, .record = &record}},
        {.type = AMPD_EVENT_PART_BLOCKS, .u.part_blocks.token = 999},
        {.type = AMPD_EVENT_EPOCH_RAISED, .u.raised = {.token = 999, .epoch = 9}},
        {.type = AMPD_EVENT_REVOKED, .call = 999},
        {.type = AMPD_EVENT_CALL_CLOSED, .call = 999},
        {.type = AMPD_EVENT_PUSH_END, .call = 999},
        {.type = AMPD_EVENT_RENEW, .u.worker = {.model = "none"}},
        {.type = AMPD_EVENT_RENEW, .u.worker = {.model = "model", .rank = 7}},
        {.type = AMPD_EVENT_FENCE_FOUND, .u.fence = {.shard = 5}},
    };
    for (unsigned i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        unsigned tasks = host.tasks_count;
        send(events[i]);
        assert_int_equal(tasks, host.tasks_count);
        assert_int_equal(0, trained()->decided.step);
        assert_int_equal(AMPD_MEMORY_READY, trained()->memory);
    }
    push(1, 1);
}

static void who_drains_refuses_calls_of_every_kind(void **state)
{
    (void)state;
    static const enum ampd_event_type types[] = {AMPD_EVENT_CREATE_MODEL, AMPD_EVENT_JOIN,        AMPD_EVENT_KEEP_ALIVE,
                                                 AMPD_EVENT_CHECKPOINT,   AMPD_EVENT_LOAD_BEGIN,  AMPD_EVENT_PULL,
                                                 AMPD_EVENT_PUSH_BEGIN,   AMPD_EVENT_DELETE_MODEL};
    uint64_t held = core_pull_step(&host, 1, 2);
    core_assert_held(&host, held);
    send((struct ampd_event){.type = AMPD_EVENT_DRAIN});
    core_assert_failed(&host, held, AMP_EUNAVAILABLE, "DRAINING", "back");
    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        core_assert_failed(&host, call((struct ampd_event){.type = types[i]}), AMP_EUNAVAILABLE, "DRAINING", "back");
    assert_int_equal(1, host.drained);
    send((struct ampd_event){.type = AMPD_EVENT_RENEW, .u.worker = {.model = "model"}}); /* no call */
    assert_int_equal(1, host.drained);
}

static void one_shard_is_up_and_knows_where_it_is(void **state)
{
    (void)state;
    struct ampd_shard_info info;
    push(1, 1);
    ampd_core_shard(host.core, 0, 1, &info);
    assert_true(info.up && !info.leaving);
    assert_int_equal(1, info.decided_step);
    assert_int_equal(1, info.applied_step);
    ampd_core_shard(host.core, 0, 0, &info);
    assert_int_equal(0, info.decided_step);
    ampd_core_shard(host.core, 0, -1, &info);
    assert_int_equal(0, info.decided_step); /* of no one model */
    assert_int_equal(0, info.behind + info.awaited);
    assert_int_equal(1, info.fence.counter);
    assert_true(ampd_core_synced(host.core));
    send((struct ampd_event){.type = AMPD_EVENT_DRAIN});
    ampd_core_shard(host.core, 0, -1, &info);
    assert_true(info.leaving);
}

static void a_rank_is_seen_with_its_lease(void **state)
{
    (void)state;
    struct ampd_worker_info info;
    ampd_core_worker(host.core, 1, 0, host.now_ms, &info);
    assert_true(info.joined);
    assert_int_equal(AMPD_LEASE_MS, info.lease_left_ms);
    ampd_core_worker(host.core, 1, 0, host.now_ms + AMPD_LEASE_MS, &info);
    assert_int_equal(0, info.lease_left_ms); /* before the core has looked */
    core_tick(&host, host.now_ms + AMPD_LEASE_MS);
    ampd_core_worker(host.core, 1, 0, host.now_ms, &info);
    assert_int_equal(0, info.lease_left_ms);
    ampd_core_worker(host.core, 0, 0, host.now_ms, &info);
    assert_false(info.joined);
}

/* What the store says of a model, and the epoch that it goes on from. */
static uint64_t parent_of(const struct ampd_step_row *last)
{
    struct ampd_checkpoint_record checkpoint = {.epoch = 1, .step = 2};
    struct ampd_worker_record workers[] = {{.name = "w0"}, {.name = "w9", .rank = 9}}; /* of a larger world */
    struct ampd_model_record record = {.epoch = 3,
                                       .base_epoch = 1,
                                       .base_step = 2,
                                       .last = (struct ampd_step_row *)(uintptr_t)last, /* only read */
                                       .workers_count = 2,
                                       .workers = workers,
                                       .checkpoints_count = 1,
                                       .checkpoints = &checkpoint};
    core_spec(&record.spec, 1);
    make_core((struct ampd_core_config){.lease_ms = 100});
    send((struct ampd_event){.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record});
    assert_string_equal("w0", host.core->models[0]->workers[0].record.name);
    return host.core->models[0]->coord->parent_step;
}

static void the_last_row_says_what_was_decided_in_the_epoch_before(void **state)
{
    (void)state;
    struct ampd_step_row row = {.epoch = 3, .kind = AMPD_ROW_STEP, .step = 5};
    assert_int_equal(5, parent_of(&row));
    row.kind = AMPD_ROW_SET; /* behind a step */
    assert_int_equal(5, parent_of(&row));
    row.step = 2; /* behind the checkpoint that the epoch began from */
    assert_int_equal(0, parent_of(&row));
    row.kind = AMPD_ROW_EPOCH;
    assert_int_equal(0, parent_of(&row));
    assert_int_equal(0, parent_of(NULL));
}

static void a_part_that_is_whole_before_the_host_hears_of_its_end_is_removed(void **state)
{
    (void)state;
    push(1, 1);
    host.hold_seal = true;
    (void)core_checkpoint(&host);
    push(2, 1);
    assert_int_equal(AMPD_PART_SEALING, trained()->part.state);
    uint64_t back = core_rollback(&host, 1, 0, "");
    assert_int_equal(1, host.cancelled);
    unsigned removed = host.removed;
    core_cut_end(&host, 0);
    assert_int_equal(0, core_call(&host, back)->reply.error.code);
    assert_int_equal(2, trained()->epoch);
    assert_int_equal(removed + 1, host.removed);
}

static void a_checkpoint_of_another_step_than_it_is_called_is_damaged(void **state)
{
    (void)state;
    push(1, 1);
    host.hold_files = true;
    uint64_t back = core_rollback(&host, 1, 0, "");
    assert_int_equal(AMPD_OUT_RESTORE, host.tasks[0].type);
    struct ampd_checkpoint_state state_of = {.step = 7};
    struct ampd_event event = {.type = AMPD_EVENT_RESTORED,
                               .u.restored = {host.tasks[0].u.restore.token, 0, &state_of}};
    host.tasks_count = 0;
    host.hold_files = false;
    core_event(&host, &event);
    core_assert_failed(&host, back, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "where it was");
    assert_int_equal(1, trained()->decided.step);
}

static void a_model_that_is_deleted_while_a_checkpoint_is_read_goes_when_it_is(void **state)
{
    (void)state;
    host.hold_files = true;
    (void)core_rollback(&host, 1, 0, "");
    struct ampd_note note = {{0}, {0}, {0}};
    uint64_t gone = call((struct ampd_event){.type = AMPD_EVENT_DELETE_MODEL,
                                             .u.act = {.model = "model", .note = &note, .force = true}});
    assert_false(core_call(&host, gone)->answered && core_call(&host, gone)->reply.error.code == 0);
    host.hold_files = false;
    core_do_all(&host);
    if (core_call(&host, gone)->reply.error.code != 0) /* it was asked for while the model was being rolled back */
        gone = core_delete(&host, true);
    assert_int_equal(0, core_call(&host, gone)->reply.error.code);
    assert_int_equal(-1, ampd_core_find(host.core, "model"));
}

static void a_checkpoint_that_waits_while_a_verdict_is_stored_is_of_that_step_if_it_is_cut(void **state)
{
    (void)state;
    push(1, 1);
    uint64_t first = core_checkpoint(&host); /* wants a cut of the next step */
    host.hold_persists = true;
    const struct ampd_shard *shard = trained();
    struct ampd_event_push header = {.model = "model",
                                     .epoch = 1,
                                     .step = 2,
                                     .incarnation = incarnation,
                                     .scale_id = shard->step.open.scale_id,
                                     .dtype = AMP_F32,
                                     .weight = 1};
    uint64_t id = core_push_event(&host, &header);
    for (uint64_t b = 0; b < 3; b++)
        core_push_block(&host, id, b, 1);
    core_push_end(&host, id, NULL, 0);
    assert_int_equal(AMPD_STEP_VOTED, host.core->models[1]->coord->step.state);
    uint64_t second = core_checkpoint(&host); /* the verdict that is being stored brings it */
    host.hold_persists = false;
    core_do_all(&host);
    assert_int_equal(2, core_call(&host, first)->reply.u.checkpoint.step);
    assert_int_equal(2, core_call(&host, second)->reply.u.checkpoint.step);
}

/* Three blocks of 64 elements: at least one can be saved, and with 100 % each. */
static void memory_for_checkpoints_is_for_as_many_blocks_as_is_asked_for(void **state)
{
    static const struct {
        unsigned percent;
        uint32_t blocks;
    } rows[] = {{0, 1}, {1, 1}, {67, 2}, {100, 3}};
    uint64_t one = 0;
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ampd_model_spec spec;
        memset(host.calls, 0, sizeof(host.calls));
        host.last_call = 0;
        make_core((struct ampd_core_config){.checkpoint_memory = rows[i].percent});
        struct ampd_event start = {.type = AMPD_EVENT_START};
        core_event(&host, &start);
        core_spec(&spec, 1);
        assert_int_equal(0, core_call(&host, core_create(&host, &spec))->reply.error.code);
        assert_int_equal(rows[i].blocks, host.core->models[0]->tensors.saved_buffers);
        one = i == 0 ? host.core->memory_bytes : one;
        assert_int_equal((rows[i].blocks - 1) * AMPD_ALIGN_ELEMENTS * sizeof(float), host.core->memory_bytes - one);
    }
}

static uint32_t replaced(void)
{
    uint32_t count = 0;
    AMP_LIST_EACH(it, next, &host.core->replaced)
    count++;
    return count;
}

/* Takes the place of the model before, trains for a step, and goes. */
static void live_and_go(void)
{
    struct ampd_model_spec spec;
    memset(host.calls, 0, sizeof(host.calls));
    host.last_call = host.journal_count = host.rows_count = 0;
    core_spec(&spec, 1);
    assert_int_equal(0, core_call(&host, core_create(&host, &spec))->reply.error.code);
    (void)core_load(&host, 1);
    incarnation = core_joined(&host, core_join(&host, "w0", 0));
    (void)core_push_all(&host, 1, 0, incarnation, 1);
    uint64_t held = core_pull_step(&host, 1, 3);
    assert_int_equal(0, core_call(&host, core_delete(&host, true))->reply.error.code);
    assert_true(core_call(&host, held)->answered);
}

static void of_deleted_models_nothing_is_left_but_what_somebody_looks_at(void **state)
{
    (void)state;
    make_core((struct ampd_core_config){.lease_ms = 0});
    send((struct ampd_event){.type = AMPD_EVENT_START});
    live_and_go();
    struct ampd_model_info info;
    ampd_core_model(host.core, 0, &info);
    const struct ampd_model_spec *spec = info.spec;
    const struct ampd_layout *layout = info.layout;
    struct ampd_model *held = ampd_core_hold(host.core, 0);
    for (unsigned i = 0; i < 1000; i++) {
        live_and_go();
        assert_int_equal(1, ampd_core_models_count(host.core));
        assert_int_equal(1, replaced());
        assert_int_equal(0, host.core->memory_bytes);
    }
    assert_string_equal("model", spec->name);
    assert_int_equal(110, layout->sizes[0] + layout->sizes[1]);
    ampd_core_let_go(held);
    send((struct ampd_event){.type = AMPD_EVENT_TICK});
    assert_int_equal(0, replaced());
    ampd_core_let_go(NULL);
}

static void every_so_many_steps_a_checkpoint_stays(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    make_core((struct ampd_core_config){.lease_ms = 0});
    send((struct ampd_event){.type = AMPD_EVENT_START});
    core_spec(&spec, 1);
    spec.checkpoint_every = 1;
    spec.keep_last = 1;
    spec.keep_every = 3;
    (void)core_create(&host, &spec);
    host.dropped = 0;
    (void)core_load(&host, 1);
    incarnation = core_joined(&host, core_join(&host, "w0", 0));
    for (uint64_t step = 1; step <= 5; step++)
        (void)core_push_all(&host, step, 0, incarnation, 1);
    assert_int_equal(3, host.dropped); /* 1, 2 and 4; kept: 0, 3 and the newest */
    assert_int_equal(3, core_info(&host).checkpoints_count);
    assert_int_equal(3, core_info(&host).checkpoints[1].step);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(what_comes_back_finds_the_model_that_waits_for_it),
        TEST(what_nobody_waits_for_has_no_effect),
        TEST(who_drains_refuses_calls_of_every_kind),
        TEST(one_shard_is_up_and_knows_where_it_is),
        TEST(a_rank_is_seen_with_its_lease),
        TEST(the_last_row_says_what_was_decided_in_the_epoch_before),
        TEST(memory_for_checkpoints_is_for_as_many_blocks_as_is_asked_for),
        TEST(a_part_that_is_whole_before_the_host_hears_of_its_end_is_removed),
        TEST(a_checkpoint_of_another_step_than_it_is_called_is_damaged),
        TEST(a_model_that_is_deleted_while_a_checkpoint_is_read_goes_when_it_is),
        TEST(of_deleted_models_nothing_is_left_but_what_somebody_looks_at),
        TEST(every_so_many_steps_a_checkpoint_stays),
        TEST(a_checkpoint_that_waits_while_a_verdict_is_stored_is_of_that_step_if_it_is_cut),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
