/* The numbers of epochs: asked for outside of the stores (ampd_core_config.asks_epochs), or above a given one. */
#include "server/core/coordinator/sync.h"
#include "server/core/model/spec.h"
#include "tests/unit/core_pair.h"
#include "tests/whole_spec.h"

#include <stdio.h>
#include <string.h>

struct asked {
    unsigned count; /* of RAISE_EPOCH */
    uint64_t token, epoch;
    unsigned epochs_stored;
    struct ampd_epoch_record stored;
    bool created;
    uint64_t created_epoch;
};

static struct ampd_core *new_core(uint64_t boot)
{
    struct ampd_core *core;
    struct ampd_core_config config = {
        .fence = {.counter = boot}, .block_elements = AMPD_ALIGN_ELEMENTS, .check = true, .asks_epochs = true};
    assert_int_equal(0, ampd_core_new(&config, &core));
    return core;
}

/* One event and all that comes of it; what is to be stored is stored at once. */
static void step(struct ampd_core *core, const struct ampd_event *event, struct asked *asked)
{
    struct ampd_output output;
    ampd_core_step(core, 1000, event);
    while (ampd_core_next(core, &output)) {
        if (output.type == AMPD_OUT_RAISE_EPOCH) {
            asked->count++;
            asked->token = output.u.raise.token;
            asked->epoch = output.u.raise.epoch;
            assert_string_equal(output.u.raise.model, "model");
        } else if (output.type == AMPD_OUT_PERSIST) {
            if (output.u.persist.epoch != NULL) {
                asked->epochs_stored++;
                asked->stored = *output.u.persist.epoch;
            }
            struct ampd_event stored = {.type = AMPD_EVENT_PERSISTED, .u.persisted.token = output.u.persist.token};
            ampd_core_step(core, 1000, &stored);
        } else if (output.type == AMPD_OUT_REPLY) {
            asked->created = output.u.reply.error.code == 0;
            asked->created_epoch = output.u.reply.u.create.epoch;
        }
    }
}

static void start(struct ampd_core *core, struct asked *asked)
{
    step(core, &(struct ampd_event){.type = AMPD_EVENT_START}, asked);
}

static void create(struct ampd_core *core, struct asked *asked)
{
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    struct ampd_event event = {.type = AMPD_EVENT_CREATE_MODEL, .call = 1, .u.create.spec = whole_spec(&spec)};
    step(core, &event, asked);
}

static void raised(struct ampd_core *core, uint64_t token, uint64_t epoch, struct asked *asked)
{
    struct ampd_event event = {.type = AMPD_EVENT_EPOCH_RAISED, .u.raised = {token, epoch}};
    step(core, &event, asked);
}

static void a_new_model_waits_for_its_epoch(void **state)
{
    struct asked asked = {0};
    struct ampd_core *core = new_core(7);
    start(core, &asked);
    create(core, &asked);
    assert_int_equal(asked.count, 1);
    assert_int_equal(asked.epoch, 1);
    assert_int_equal(asked.epochs_stored, 0); /* nobody hears of it before the number is known */
    assert_false(asked.created);
    raised(core, asked.token + 1, 5, &asked); /* another's */
    assert_int_equal(asked.epochs_stored, 0);
    raised(core, asked.token, 42, &asked); /* one of this name has had epochs before */
    assert_int_equal(asked.epochs_stored, 1);
    assert_int_equal(asked.stored.epoch, 42);
    assert_true(asked.created);
    assert_int_equal(asked.created_epoch, 42);
    raised(core, asked.token, 43, &asked); /* once */
    assert_int_equal(asked.epochs_stored, 1);
    assert_int_equal(asked.count, 1);
    ampd_core_free(core);
}

static void a_restart_asks_for_one_above_the_stored_epoch(void **state)
{
    struct asked asked = {0};
    struct ampd_core *core = new_core(8);
    struct ampd_model_record record = {.epoch = 42};
    core_spec(&record.spec, 1);
    whole_spec(&record.spec);
    step(core, &(struct ampd_event){.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record}, &asked);
    start(core, &asked);
    assert_int_equal(asked.count, 1);
    assert_int_equal(asked.epoch, 43);
    assert_int_equal(asked.epochs_stored, 0);
    raised(core, asked.token, 50, &asked);
    assert_int_equal(asked.epochs_stored, 1);
    assert_int_equal(asked.stored.epoch, 50);
    assert_int_equal(asked.stored.parent, 42);
    ampd_core_free(core);
}

/* A store that was lost may have had a model of this name. */
static void a_new_model_begins_above_the_epochs_that_a_lost_store_may_have_known(void **state)
{
    struct asked asked = {0};
    struct ampd_core_config config = {.fence = {.counter = 2}, .check = true, .epoch_above = 7};
    struct ampd_core *core;
    assert_int_equal(0, ampd_core_new(&config, &core));
    start(core, &asked);
    create(core, &asked);
    assert_int_equal(8, asked.created_epoch);
    ampd_core_free(core);
}

static void a_shard_that_has_lost_nothing_asks_for_no_epoch_above(void **state)
{
    const struct ampd_coord *coord = pair_model(0)->coord;
    pair_core[1]->config.epoch_above = 7; /* --epoch-above of an earlier loss, in a list of options */
    ampd_sync_start(pair_core[0]);
    struct ampd_event tick = {.type = AMPD_EVENT_TICK};
    pair_step(0, &tick);
    pair_settle();
    assert_int_equal(AMPD_COORD_RUNNING, coord->state);
    assert_int_equal(1, coord->epoch);
    assert_int_equal(1, coord->decided);
}

/* Shard 0 answers SYNC when its verdict is stored, and has not heard of that as a shard: no answer names the step. */
static void a_vote_is_missed_on_a_verdict_that_was_stored_while_shards_were_asked(void **state)
{
    (void)state;
    struct ampd_event tick = {.type = AMPD_EVENT_TICK};
    pair_hold_kind = AMPD_PERSIST_VERDICT;
    (void)pair_push(0, 2, 1);
    (void)pair_push(1, 2, 1);
    assert_int_equal(AMPD_STEP_VOTED, pair_model(0)->coord->step.state);
    struct ampd_open_step *open = &pair_model(1)->shard->step; /* as after a start on a disk that has an older try */
    open->close.contributors[0].incarnation.counter++;
    open->hash = ampd_contributors_hash(open->close.contributors, open->close.contributors_count);
    ampd_sync_start(pair_core[0]);
    pair_step(0, &tick);
    pair_settle();
    assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
    pair_hold_kind = (enum ampd_persist_kind)0;
    struct ampd_event stored = {.type = AMPD_EVENT_PERSISTED, .u.persisted = {pair_held_token}};
    pair_step(0, &stored);
    pair_settle();
    assert_int_equal(2, pair_model(0)->coord->epoch);
    assert_int_equal(AMPD_COORD_WAITING, pair_model(0)->coord->state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_model_waits_for_its_epoch),
        cmocka_unit_test(a_restart_asks_for_one_above_the_stored_epoch),
        cmocka_unit_test(a_new_model_begins_above_the_epochs_that_a_lost_store_may_have_known),
        cmocka_unit_test_setup_teardown(a_shard_that_has_lost_nothing_asks_for_no_epoch_above, pair_setup,
                                        pair_teardown),
        cmocka_unit_test_setup_teardown(a_vote_is_missed_on_a_verdict_that_was_stored_while_shards_were_asked,
                                        pair_setup, pair_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
