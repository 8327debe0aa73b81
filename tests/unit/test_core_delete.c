/* DeleteModel over two shards: the coordinator forgets the model last, whatever is lost or started again on the way. */
#include "server/core/base/model.h"
#include "server/core/coordinator/sync.h"
#include "server/core/model/spec.h"
#include "server/core/base/process.h"
#include "server/core/wire/fences.h"
#include "server/core/wire/messages.h"
#include "tests/whole_spec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SHARDS    2
#define QUEUE_MAX 128
#define CALLS_MAX 32

static struct ampd_parameter_spec parameters[] = {{.name = "a", .dimensions = 1, .shape = {200}}};

struct world {
    struct ampd_core *core[SHARDS];
    bool cut; /* messages between the shards are lost */
    struct ampd_message *messages[QUEUE_MAX];
    unsigned first, last;
    uint64_t stored[QUEUE_MAX];
    unsigned stored_shards[QUEUE_MAX], stored_count;
    unsigned persists[SHARDS][12]; /* by kind */
    struct ampd_reply replies[CALLS_MAX];
    bool answered[CALLS_MAX];
    uint64_t calls;
    uint64_t large_bytes; /* that the cores gave away to be freed */
};

static void free_large(void *arg, void *memory, size_t size)
{
    struct world *world = arg;
    world->large_bytes += size;
    free(memory);
}

static void take(struct world *world, unsigned shard, const struct ampd_output *output)
{
    if (output->type == AMPD_OUT_REPLY) {
        world->answered[output->call] = true;
        world->replies[output->call] = output->u.reply;
    } else if (output->type == AMPD_OUT_PERSIST) {
        world->persists[shard][output->u.persist.kind]++;
        world->stored_shards[world->stored_count] = shard;
        world->stored[world->stored_count++] = output->u.persist.token;
    } else if (output->type == AMPD_OUT_SEND && !world->cut) {
        assert_true(world->last < QUEUE_MAX);
        world->messages[world->last++] = ampd_message_copy(output->u.message);
    }
}

static void step(struct world *world, unsigned shard, struct ampd_event *event)
{
    struct ampd_output output;
    ampd_core_step(world->core[shard], 1000, event);
    while (ampd_core_next(world->core[shard], &output))
        take(world, shard, &output);
}

/* All that follows, until nothing does. */
static void run(struct world *world)
{
    while (world->stored_count > 0 || world->first < world->last) {
        if (world->stored_count > 0) {
            struct ampd_event event = {.type = AMPD_EVENT_PERSISTED, .u.persisted = {world->stored[0]}};
            unsigned shard = world->stored_shards[0];
            world->stored_count--;
            memmove(world->stored, world->stored + 1, world->stored_count * sizeof(world->stored[0]));
            memmove(world->stored_shards, world->stored_shards + 1,
                    world->stored_count * sizeof(world->stored_shards[0]));
            step(world, shard, &event);
            continue;
        }
        struct ampd_message *message = world->messages[world->first++];
        struct ampd_event event = {.type = AMPD_EVENT_PEER, .u.message = message};
        if (!world->cut)
            step(world, message->to, &event);
        ampd_message_free(message);
        if (world->first == world->last)
            world->first = world->last = 0;
    }
}

static void start(struct world *world, unsigned shard, uint64_t boot, const struct ampd_model_record *found)
{
    struct ampd_core_config config = {.shard = shard,
                                      .shards = SHARDS,
                                      .fence = {.counter = boot},
                                      .block_elements = AMPD_ALIGN_ELEMENTS,
                                      .large_memory = {free_large, world}};
    assert_int_equal(0, ampd_core_new(&config, &world->core[shard]));
    struct ampd_event event = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = found};
    if (found != NULL)
        step(world, shard, &event);
    event = (struct ampd_event){.type = AMPD_EVENT_START};
    step(world, shard, &event);
}

/* A session between the shards begins, as the second one sees it. */
static void begin_session(struct world *world)
{
    struct ampd_event event = {.type = AMPD_EVENT_PEER_UP, .u.shard = 0};
    world->cut = false;
    step(world, 1, &event);
    run(world);
}

static void make_spec(struct ampd_model_spec *spec)
{
    *spec = (struct ampd_model_spec){.parameters_count = 1, .parameters = parameters, .world_size = 1};
    (void)snprintf(spec->name, sizeof(spec->name), "model");
    whole_spec(spec);
}

static uint64_t delete_named(struct world *world, const char *name)
{
    struct ampd_note note = {.actor = "ann"};
    struct ampd_event event = {
        .type = AMPD_EVENT_DELETE_MODEL, .call = ++world->calls, .u.act = {.model = name, .note = &note}};
    step(world, 0, &event);
    return event.call;
}

static uint64_t delete_model(struct world *world)
{
    return delete_named(world, "model");
}

static void create(struct world *world, const struct ampd_model_spec *spec)
{
    struct ampd_event event = {.type = AMPD_EVENT_CREATE_MODEL, .call = ++world->calls, .u.create = {.spec = spec}};
    step(world, 0, &event);
    run(world);
    assert_true(world->answered[event.call]);
    assert_int_equal(0, world->replies[event.call].error.code);
}

static int setup(void **state)
{
    static struct world world;
    memset(&world, 0, sizeof(world));
    struct ampd_model_spec spec;
    make_spec(&spec);
    for (unsigned k = 0; k < SHARDS; k++)
        start(&world, k, 1, NULL);
    run(&world);
    begin_session(&world);
    create(&world, &spec);
    *state = &world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;
    for (unsigned k = 0; k < SHARDS; k++)
        ampd_core_free(world->core[k]);
    return 0;
}

static void assert_gone(struct world *world, uint64_t call)
{
    assert_true(world->answered[call]);
    assert_int_equal(0, world->replies[call].error.code);
    for (unsigned k = 0; k < SHARDS; k++)
        assert_int_equal(-1, ampd_core_find(world->core[k], "model"));
}

static void both_shards_forget_the_model_the_coordinator_last(void **state)
{
    struct world *world = *state;
    uint64_t call = delete_model(world);
    assert_int_equal(1, world->persists[0][AMPD_PERSIST_DELETING]);
    assert_false(world->answered[call]);
    run(world);
    assert_gone(world, call);
    assert_int_equal(1, world->persists[0][AMPD_PERSIST_DELETE]);
    assert_int_equal(1, world->persists[1][AMPD_PERSIST_DELETE]);
}

static void a_shard_that_was_away_is_told_when_it_comes_back(void **state)
{
    struct world *world = *state;
    world->cut = true;
    uint64_t call = delete_model(world);
    run(world);
    assert_false(world->answered[call]);
    assert_int_equal(0, world->persists[0][AMPD_PERSIST_DELETE]);
    begin_session(world);
    assert_gone(world, call);
}

static void an_answer_that_was_lost_is_given_again(void **state)
{
    struct world *world = *state;
    uint64_t call = delete_model(world);
    while (world->persists[1][AMPD_PERSIST_DELETE] == 0) { /* up to the store of the second shard */
        struct ampd_event event = {.type = AMPD_EVENT_PERSISTED};
        if (world->stored_count > 0) {
            event.u.persisted.token = world->stored[--world->stored_count];
            step(world, world->stored_shards[world->stored_count], &event);
        } else {
            struct ampd_message *message = world->messages[world->first++];
            event = (struct ampd_event){.type = AMPD_EVENT_PEER, .u.message = message};
            step(world, message->to, &event);
            ampd_message_free(message);
        }
    }
    world->cut = true; /* DELETED does not come through */
    run(world);
    assert_int_equal(-1, ampd_core_find(world->core[1], "model"));
    assert_false(world->answered[call]);
    begin_session(world);
    assert_gone(world, call);
}

/* It was on its way to the coordinator when the last shard had deleted the model. */
static void an_answer_of_shard_0_to_sync_brings_no_deleted_model_back(void **state)
{
    struct world *world = *state;
    struct ampd_core *core = world->core[0];
    struct ampd_message late = {.type = AMPD_MESSAGE_SYNCED, .model = "model"};
    late.from_fence = ampd_fences_of(core, 0);
    make_spec(&late.u.sync.spec);
    uint64_t call = delete_model(world);
    run(world);
    assert_gone(world, call);
    ampd_sync_start(core);
    late.round = core->sync.round;
    struct ampd_event event = {.type = AMPD_EVENT_PEER, .u.message = &late};
    step(world, 0, &event);
    assert_int_equal(-1, ampd_core_find(core, "model"));
    run(world);
    assert_gone(world, call);
}

/* Else the other shard would forget a model that shard 0 finds again, and would look like one that lost its disk. */
static void none_is_given_up_while_shards_still_tell_what_they_hold(void **state)
{
    struct world *world = *state;
    struct ampd_core *core = world->core[0];
    struct ampd_message waits = {.type = AMPD_MESSAGE_SYNCED, .from = 1, .model = "model", .u.sync.waits = true};
    waits.from_fence = ampd_fences_of(core, 1);
    make_spec(&waits.u.sync.spec);
    ampd_sync_start(core);
    waits.round = core->sync.round;
    struct ampd_event event = {.type = AMPD_EVENT_PEER, .u.message = &waits};
    step(world, 0, &event);
    assert_true(core->sync.running && ampd_sync_troubled(core->models[0]));
    struct ampd_note note = {.actor = "ann"};
    event = (struct ampd_event){.type = AMPD_EVENT_DELETE_MODEL,
                                .call = ++world->calls,
                                .u.act = {.model = "model", .note = &note, .force = true}};
    step(world, 0, &event);
    assert_true(world->answered[event.call]);
    assert_string_equal("RECOVERING", world->replies[event.call].error.reason);
    run(world);
    assert_int_equal(0, world->persists[0][AMPD_PERSIST_DELETING]);
    for (unsigned k = 0; k < SHARDS; k++)
        assert_int_equal(0, ampd_core_find(world->core[k], "model"));
}

static void a_coordinator_that_starts_goes_on_with_it(void **state)
{
    struct world *world = *state;
    ampd_core_free(world->core[0]);
    struct ampd_model_record record = {.epoch = 1, .deleting = true};
    make_spec(&record.spec);
    world->cut = true;
    start(world, 0, 2, &record);
    run(world);
    begin_session(world);
    for (unsigned k = 0; k < SHARDS; k++)
        assert_int_equal(-1, ampd_core_find(world->core[k], "model"));
    assert_int_equal(1, world->persists[0][AMPD_PERSIST_DELETE]);
    assert_int_equal(1, world->persists[1][AMPD_PERSIST_DELETE]);
}

/* Its caller's thread serves all models, and the kernel takes a while to take the pages back. */
static void large_memory_of_a_deleted_model_is_freed_by_another_thread(void **state)
{
    struct world *world = *state;
    struct ampd_parameter_spec parameter = {.name = "a", .dimensions = 1, .shape = {SHARDS * AMPD_LARGE_BYTES / 4}};
    struct ampd_model_spec spec = {.parameters_count = 1, .parameters = &parameter, .world_size = 1};
    (void)snprintf(spec.name, sizeof(spec.name), "large");
    whole_spec(&spec);
    create(world, &spec);
    const struct ampd_tensors *tensors = &world->core[0]->models[1]->tensors;
    uint64_t pieces = 1 + tensors->moments + tensors->world_size; /* the copies, of two bytes, are below the bound */
    assert_int_equal(AMPD_LARGE_BYTES, tensors->copy_bytes * 2);
    (void)delete_named(world, "large");
    run(world);
    assert_int_equal(SHARDS * pieces * AMPD_LARGE_BYTES, world->large_bytes);
    (void)delete_model(world); /* too small for a task */
    run(world);
    assert_int_equal(SHARDS * pieces * AMPD_LARGE_BYTES, world->large_bytes);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(both_shards_forget_the_model_the_coordinator_last),
        TEST(a_shard_that_was_away_is_told_when_it_comes_back),
        TEST(an_answer_that_was_lost_is_given_again),
        TEST(an_answer_of_shard_0_to_sync_brings_no_deleted_model_back),
        TEST(none_is_given_up_while_shards_still_tell_what_they_hold),
        TEST(a_coordinator_that_starts_goes_on_with_it),
        TEST(large_memory_of_a_deleted_model_is_freed_by_another_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
