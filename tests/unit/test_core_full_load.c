/* A full load on two shards: values, moments and user states from elsewhere, and the step that they are after. */
#include "tests/unit/core_pair.h"
#include "server/core/base/calls.h"
#include "server/core/base/limits.h"
#include "server/core/coordinator/coord.h"
#include "server/core/shard/shard.h"
#include "tests/whole_spec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Seven steps, of which two were skipped. */
static struct ampd_load_base base;

static void create(uint64_t max_steps)
{
    (void)pair_teardown(NULL);
    pair_now_ms = 1000;
    for (unsigned k = 0; k < 2; k++)
        pair_start(k, 1);
    for (unsigned k = 0; k < 2; k++)
        pair_send_start(k);
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    spec.optimizer = AMPD_OPTIMIZER_ADAMW;
    spec.max_steps = max_steps;
    struct ampd_event event = {.type = AMPD_EVENT_CREATE_MODEL, .u.create = {.spec = whole_spec(&spec)}};
    assert_int_equal(0, pair_call(0, &event)->reply.error.code);
    base = ampd_load_base_first(&pair_model(0)->spec);
    base.step = base.carry.scaler.attempted = 7;
    base.version = base.carry.scaler.applied = 5;
    base.carry.scaler.skipped = base.carry.scaler.total_overflows = 2;
    base.carry.scaler.scale_id = 3;
    base.carry.scaler.scale /= 4;
}

static uint64_t begin(unsigned shard, uint64_t loader, const struct ampd_load_base *of)
{
    struct ampd_event event = {.type = AMPD_EVENT_LOAD_BEGIN,
                               .u.load = {.model = "model", .loader = loader, .base = of}};
    (void)pair_call(shard, &event);
    return event.call;
}

/* Each plane has a value of its own. */
static void send_plane(unsigned shard, uint64_t id, uint32_t plane)
{
    const struct ampd_load_grant grant = pair_calls[id].load;
    for (uint64_t b = grant.first; b < grant.first + grant.count; b++) {
        struct ampd_segment_count counts[4];
        float *to = grant.planes[plane] + (b - grant.first) * grant.layout->block_elements;
        for (uint32_t i = 0; i < ampd_layout_block_elements(grant.layout, b); i++)
            to[i] = 0.25f * (float)(plane + 1);
        struct ampd_event block = {.type = AMPD_EVENT_LOAD_BLOCK, .call = id};
        block.u.block.block = b;
        block.u.block.plane = plane;
        block.u.block.counts = counts;
        block.u.block.counts_count = ampd_receive_block(grant.layout, b, AMP_F32, to, &amp_kernels_ref, counts);
        pair_step(shard, &block);
    }
}

static void end(unsigned shard, uint64_t id)
{
    struct ampd_event event = {.type = AMPD_EVENT_LOAD_END, .call = id};
    pair_step(shard, &event);
    pair_settle();
}

static void load_whole(unsigned shard, uint64_t id)
{
    assert_true(pair_calls[id].granted);
    for (uint32_t plane = 0; plane < pair_calls[id].load.planes_count; plane++)
        send_plane(shard, id, plane);
    end(shard, id);
}

static void close_call(unsigned shard, uint64_t id)
{
    struct ampd_event event = {.type = AMPD_EVENT_CALL_CLOSED, .call = id};
    pair_step(shard, &event);
    pair_settle();
}

static void want(uint64_t loader, const struct ampd_load_base *of)
{
    struct ampd_message *message = pair_message(AMPD_MESSAGE_LOAD_WANT, 1, 0);
    message->u.want = (struct ampd_load_want){loader, *of};
    pair_send_take(message);
}

static void training_goes_on_after_the_step_of_a_full_load(void **state)
{
    (void)state;
    create(0);
    uint64_t calls[2] = {begin(0, 7, &base), 0};
    calls[1] = begin(1, 7, &base);
    for (unsigned k = 0; k < 2; k++) {
        const struct ampd_shard *shard = pair_model(k)->shard;
        assert_int_equal(2, shard->epoch);
        assert_int_equal(0, shard->base_epoch);
        assert_int_equal(7, shard->base_step);
        assert_memory_equal(&base.carry.scaler.scale, &shard->carry.scaler.scale, sizeof base.carry.scaler.scale);
        assert_int_equal(3, pair_calls[calls[k]].load.planes_count);
    }
    assert_string_equal("IMPORT", pair_model(0)->coord->reason);
    for (unsigned k = 0; k < 2; k++)
        load_whole(k, calls[k]);
    for (unsigned k = 0; k < 2; k++) {
        const struct ampd_model *model = pair_model(k);
        const struct ampd_checkpoint_record *record = &model->shard->catalogue.records[0];
        assert_true(pair_calls[calls[k]].answered);
        assert_int_equal(0, pair_calls[calls[k]].reply.error.code);
        assert_false(pair_calls[calls[k]].reply.u.load.already_loaded);
        assert_true(record->epoch == 2 && record->step == 7 && record->version == 5);
        assert_true(model->tensors.count == 0 || (model->tensors.m[0] == 0.5f && model->tensors.v[0] == 0.75f));
        assert_int_equal(5, model->shard->version);
    }
    const struct ampd_coord *coord = pair_model(0)->coord;
    assert_int_equal(AMPD_COORD_WAITING, coord->state);
    assert_int_equal(7, coord->checkpoint.durable_step);
    struct ampd_event join = {.type = AMPD_EVENT_JOIN, .u.join = {.model = "model", .worker = "", .rank = 0}};
    const struct core_call *joined = pair_call(0, &join);
    assert_int_equal(8, joined->reply.u.join.step);
    pair_incarnation = joined->reply.u.join.incarnation;
    assert_int_equal(8, coord->step.open.step);
    assert_int_equal(3, coord->step.open.scale_id);
    for (unsigned k = 0; k < 2; k++)
        (void)pair_push(k, 8, 1);
    pair_settle();
    assert_int_equal(8, coord->decided);
    assert_int_equal(8, coord->carry.scaler.attempted);
    assert_int_equal(6, coord->version);
}

static void a_full_load_without_its_moments_is_incomplete(void **state)
{
    (void)state;
    create(0);
    uint64_t calls[2] = {begin(0, 7, &base), 0};
    calls[1] = begin(1, 7, &base);
    for (uint32_t plane = 0; plane < 2; plane++)
        send_plane(0, calls[0], plane);
    end(0, calls[0]);
    assert_string_equal("INCOMPLETE_LOAD", pair_calls[calls[0]].reply.error.reason);
    assert_non_null(strstr(pair_calls[calls[0]].reply.error.text, "in the moments"));
}

/* Adagrad's sum may be an Inf: a server starts again with it, and so does the model elsewhere. */
static void moments_that_are_no_numbers_are_refused_and_an_inf_is_one(void **state)
{
    (void)state;
    create(0);
    uint64_t id = begin(0, 7, &base);
    struct ampd_segment_count count = {.inf_count = 1};
    struct ampd_event block = {.type = AMPD_EVENT_LOAD_BLOCK, .call = id};
    block.u.block.plane = 2;
    block.u.block.counts = &count;
    block.u.block.counts_count = 1;
    pair_step(0, &block);
    pair_settle();
    assert_int_equal(AMPD_CALL_STREAMING, ampd_call_find(pair_core[0], id)->state);
    count.nan_count = 1;
    pair_step(0, &block);
    struct ampd_event let_go = {.type = AMPD_EVENT_REVOKED, .call = id};
    pair_step(0, &let_go);
    pair_settle();
    assert_string_equal("INVALID_TENSOR", pair_calls[id].reply.error.reason);
    assert_non_null(strstr(pair_calls[id].reply.error.text, "moments"));
}

/* A client that says one thing here and another one there would make a model of two states. */
static void streams_of_one_load_that_are_of_unlike_steps_are_refused(void **state)
{
    (void)state;
    for (unsigned first_values = 0; first_values < 2; first_values++) {
        create(0);
        struct ampd_load_base other = base;
        other.carry.scaler.growth_tracker++;
        (void)begin(0, 7, &base);
        uint64_t id = begin(1, 7, first_values != 0 ? NULL : &other);
        assert_string_equal("INVALID_FIELD", pair_calls[id].reply.error.reason);
        assert_int_equal(AMPD_MEMORY_EMPTY, pair_model(1)->shard->memory);
    }
}

static void a_step_where_the_model_cannot_be_is_refused(void **state)
{
    (void)state;
    create(0);
    struct ampd_load_base wrong[9] = {base, base, base, base, base, base, base, base, base};
    static const char *const words[] = {
        "of them applied", "of them applied", "scale is",      "hysteresis_left", "overflows",
        "state.step: ",    "learning_rate",   "learning_rate", "scale_id: "};
    wrong[0].step = 8;
    wrong[1].version = 6;
    wrong[2].carry.scaler.scale = 0.5f;
    wrong[3].carry.scaler.hysteresis_left = 0;
    wrong[4].carry.scaler.total_overflows = 3;
    wrong[5].step = wrong[5].carry.scaler.attempted = ((uint64_t)1 << 61) + 1;
    wrong[6].carry.lr = -1;
    wrong[7].carry.lr = (double)NAN;
    wrong[8].carry.scaler.scale_id = UINT64_MAX - 2; /* the next ones could not be told */
    for (unsigned i = 0; i < 9; i++) {
        const struct amp_error *error = &pair_calls[begin(0, 7, &wrong[i])].reply.error;
        assert_int_equal(AMP_EINVAL, error->code);
        if (strstr(error->text, words[i]) == NULL)
            fail_msg("%s", error->text);
        want(7, &wrong[i]); /* nor does a shard count that says so */
        assert_int_equal(1, pair_model(0)->coord->epoch);
    }
}

static void after_a_full_load_that_broke_off_first_values_begin_at_step_1(void **state)
{
    (void)state;
    create(0);
    uint64_t calls[2] = {begin(0, 7, &base), 0};
    calls[1] = begin(1, 7, &base);
    struct ampd_event user_state = {.type = AMPD_EVENT_LOAD_STATE, .call = calls[0]};
    user_state.u.load_state = (struct ampd_event_load_state){0, (const uint8_t *)"old", 3};
    pair_step(0, &user_state);
    send_plane(0, calls[0], 0);
    for (unsigned k = 0; k < 2; k++)
        close_call(k, calls[k]);
    assert_int_equal(3, pair_model(0)->coord->epoch);
    assert_int_equal(7, pair_model(0)->coord->base_step);
    pair_now_ms += AMPD_LEASE_MS; /* so long it might come back */
    for (unsigned k = 0; k < 2; k++)
        calls[k] = begin(k, 9, NULL);
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(1, pair_calls[calls[k]].load.planes_count);
        load_whole(k, calls[k]);
        assert_int_equal(0, pair_model(k)->shard->version);
        assert_int_equal(0, pair_model(k)->shard->base_step);
        assert_int_equal(0, pair_model(k)->shard->decided.user_states[0].size);
    }
    assert_int_equal(AMPD_COORD_WAITING, pair_model(0)->coord->state);
    assert_int_equal(0, pair_model(0)->coord->decided);
    assert_int_equal(0, pair_model(0)->coord->carry.scaler.attempted);
}

/* Else two that wait could begin an epoch of their own each, for ever. */
static void the_loader_that_an_epoch_was_begun_for_comes_first(void **state)
{
    (void)state;
    create(0);
    const struct ampd_coord *coord = pair_model(0)->coord;
    const struct ampd_load_base first = ampd_load_base_first(&pair_model(0)->spec);
    want(7, &base);
    assert_int_equal(2, coord->epoch);
    want(9, &first);
    assert_int_equal(2, coord->epoch);
    pair_now_ms += AMPD_LEASE_MS; /* it has not come back */
    want(9, &first);
    assert_int_equal(3, coord->epoch);
    want(7, &base);
    assert_int_equal(3, coord->epoch);
    want(9, &first);
    assert_int_equal(9, coord->load.loader);
}

static void a_user_state_of_a_full_load_is_given_to_who_joins(void **state)
{
    (void)state;
    create(0);
    uint64_t calls[2] = {begin(0, 7, &base), 0};
    calls[1] = begin(1, 7, &base);
    for (unsigned k = 0; k < 2; k++) {
        struct ampd_event user_state = {.type = AMPD_EVENT_LOAD_STATE, .call = calls[k]};
        user_state.u.load_state = (struct ampd_event_load_state){0, (const uint8_t *)"seen 40", 7};
        pair_step(k, &user_state);
    }
    for (unsigned k = 0; k < 2; k++)
        load_whole(k, calls[k]);
    struct ampd_event join = {.type = AMPD_EVENT_JOIN, .u.join = {.model = "model", .worker = "", .rank = 0}};
    assert_int_equal(7, pair_call(0, &join)->reply.u.join.user_state_size);
    for (unsigned k = 0; k < 2; k++)
        assert_memory_equal("seen 40", pair_model(k)->shard->decided.user_states[0].data, 7);
}

static struct core_call *set_scale(void)
{
    static const struct ampd_note note = {.actor = "ann", .request_id = "set"};
    struct ampd_event event = {.type = AMPD_EVENT_SET_SCALE, .u.act = {.model = "model", .note = &note, .scale = 8}};
    return pair_call(0, &event);
}

/* The load has the scale of the model that comes. */
static void a_scale_that_was_set_before_a_full_load_is_told_to_be_lost(void **state)
{
    (void)state;
    create(0);
    assert_int_equal(0, set_scale()->reply.error.code);
    uint64_t calls[2] = {begin(0, 7, &base), 0};
    calls[1] = begin(1, 7, &base);
    for (unsigned k = 0; k < 2; k++)
        load_whole(k, calls[k]);
    assert_string_equal("ACT_LOST", set_scale()->reply.error.reason);
    assert_memory_equal(&base.carry.scaler.scale, &pair_model(0)->coord->carry.scaler.scale,
                        sizeof base.carry.scaler.scale);
}

static void a_full_load_that_is_after_max_steps_is_done(void **state)
{
    (void)state;
    create(7);
    uint64_t calls[2] = {begin(0, 7, &base), 0};
    calls[1] = begin(1, 7, &base);
    for (unsigned k = 0; k < 2; k++)
        load_whole(k, calls[k]);
    assert_int_equal(AMPD_COORD_DONE, pair_model(0)->coord->state);
    assert_true(pair_calls[calls[0]].answered && pair_calls[calls[1]].answered);
}

int main(void)
{
#define TEST_OF(name) cmocka_unit_test_setup_teardown(name, pair_setup, pair_teardown)
    const struct CMUnitTest tests[] = {
        TEST_OF(training_goes_on_after_the_step_of_a_full_load),
        TEST_OF(a_full_load_without_its_moments_is_incomplete),
        TEST_OF(moments_that_are_no_numbers_are_refused_and_an_inf_is_one),
        TEST_OF(streams_of_one_load_that_are_of_unlike_steps_are_refused),
        TEST_OF(a_step_where_the_model_cannot_be_is_refused),
        TEST_OF(after_a_full_load_that_broke_off_first_values_begin_at_step_1),
        TEST_OF(the_loader_that_an_epoch_was_begun_for_comes_first),
        TEST_OF(a_user_state_of_a_full_load_is_given_to_who_joins),
        TEST_OF(a_scale_that_was_set_before_a_full_load_is_told_to_be_lost),
        TEST_OF(a_full_load_that_is_after_max_steps_is_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
