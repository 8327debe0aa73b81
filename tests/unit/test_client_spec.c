/* The caller's specification as a message. */
#include "client/io/client_spec.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

static const struct ampclient_parameter_spec parameters[] = {
    {.name = "w", .dimensions = 2, .shape = {3, 4}},
    {.name = "b", .dimensions = 0},
};

static struct ampclient_spec small_spec(void)
{
    struct ampclient_spec spec = AMPCLIENT_SPEC_INIT;
    spec.name = "m";
    spec.parameters = parameters;
    spec.parameters_count = 2;
    spec.world_size = 2;
    return spec;
}

static void encode(const struct ampclient_spec *spec, struct ampd_msg_create_model_request *request)
{
    struct amp_buf out;
    struct amp_error error = {0};
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    assert_int_equal(ampclient_spec_encode(spec, &out, &error), 0);
    assert_int_equal(ampd_msg_create_model_request_decode(request, out.data, out.size, &error), 0);
    amp_buf_close(&out);
}

static void fields_left_at_zero_are_absent(void **state)
{
    (void)state;
    const struct ampclient_spec spec = small_spec();
    struct ampd_msg_create_model_request request;
    encode(&spec, &request);
    const struct ampd_msg_model_spec *to = &request.spec;
    assert_string_equal(to->name, "m");
    assert_int_equal(to->parameters.count, 2);
    assert_int_equal(to->parameters.items[0].shape_count, 2);
    assert_int_equal(to->parameters.items[0].shape[1], 4);
    assert_int_equal(to->parameters.items[1].shape_count, 0);
    assert_int_equal(to->world_size, 2);
    assert_false(to->has_clip || to->has_checkpoint_every || to->has_keep_last || to->has_loss_timeout_ms);
    assert_true(to->sync_mode == 0 && to->quorum == 0 && to->on_loss == 0 && !to->has_min_workers &&
                to->keep_every == 0 && to->durability == 0);
    assert_false(to->optimizer.has_learning_rate || to->optimizer.has_beta1 || to->optimizer.has_beta2 ||
                 to->optimizer.has_epsilon || to->optimizer.has_weight_decay);
    assert_false(to->scaler.has_init_scale || to->scaler.has_growth_factor || to->scaler.has_backoff_factor ||
                 to->scaler.has_growth_interval || to->scaler.has_min_scale || to->scaler.has_max_scale);
    ampd_msg_create_model_request_free(&request);
}

static void a_beta_is_absent_given_or_zero(void **state)
{
    (void)state;
    struct ampclient_spec spec = small_spec();
    spec.beta1 = AMPCLIENT_BETA_ZERO;
    struct ampd_msg_create_model_request request;
    encode(&spec, &request);
    const struct ampd_msg_optimizer_spec *to = &request.spec.optimizer;
    assert_true(to->has_beta1 && to->beta1 == 0 && !to->has_beta2);
    ampd_msg_create_model_request_free(&request);
    spec.beta1 = 0.5;
    spec.beta2 = AMPCLIENT_BETA_ZERO;
    encode(&spec, &request);
    assert_true(to->has_beta1 && to->beta1 == 0.5 && to->has_beta2 && to->beta2 == 0);
    ampd_msg_create_model_request_free(&request);
}

static void fields_that_are_given_arrive(void **state)
{
    (void)state;
    struct ampclient_spec spec = small_spec();
    spec.optimizer = AMPCLIENT_SGD;
    spec.lr = 0.25f;
    spec.momentum = 0.5f;
    spec.nesterov = true;
    spec.weight_decay_set = true;
    spec.schedule = AMPCLIENT_COSINE;
    spec.warmup_steps = 3;
    spec.total_steps = 9;
    spec.clip_max_norm = 1;
    spec.cast = AMP_BF16;
    spec.scaler = AMPCLIENT_SCALER_STATIC;
    spec.init_scale = 128;
    spec.growth_interval = 7;
    spec.max_steps = 11;
    spec.checkpoint_every = 5;
    spec.keep_last = 2;
    spec.loss_timeout_ms = 77;
    spec.sync = AMPCLIENT_QUORUM;
    spec.quorum = 1;
    spec.on_loss = AMPCLIENT_SHRINK;
    spec.min_workers = 2;
    spec.keep_every = 50;
    spec.durability = AMPCLIENT_DURABILITY_STEP;
    struct ampd_msg_create_model_request request;
    encode(&spec, &request);
    const struct ampd_msg_model_spec *to = &request.spec;
    assert_int_equal(to->optimizer.kind, AMPD_MSG_OPTIMIZER_KIND_SGD);
    assert_true(to->optimizer.has_learning_rate && to->optimizer.learning_rate == 0.25);
    assert_true(to->optimizer.momentum == 0.5 && to->optimizer.nesterov);
    assert_true(to->optimizer.has_weight_decay && to->optimizer.weight_decay == 0);
    assert_int_equal(to->schedule.kind, AMPD_MSG_SCHEDULE_KIND_COSINE);
    assert_int_equal(to->schedule.warmup_steps, 3);
    assert_int_equal(to->schedule.total_steps, 9);
    assert_true(to->has_clip && to->clip.has_max_norm && to->clip.max_norm == 1 && !to->clip.has_value);
    assert_int_equal(to->cast_dtype, AMPD_MSG_DTYPE_BF16);
    assert_int_equal(to->scaler.policy, AMPD_MSG_SCALER_POLICY_STATIC);
    assert_true(to->scaler.has_init_scale && to->scaler.init_scale == 128);
    assert_true(to->scaler.has_growth_interval && to->scaler.growth_interval == 7);
    assert_int_equal(to->max_steps, 11);
    assert_true(to->has_checkpoint_every && to->checkpoint_every == 5);
    assert_true(to->has_keep_last && to->keep_last == 2);
    assert_true(to->has_loss_timeout_ms && to->loss_timeout_ms == 77);
    assert_int_equal(to->sync_mode, AMPD_MSG_SYNC_MODE_QUORUM);
    assert_int_equal(to->quorum, 1);
    assert_int_equal(to->on_loss, AMPD_MSG_ON_LOSS_SHRINK);
    assert_true(to->has_min_workers && to->min_workers == 2);
    assert_int_equal(to->keep_every, 50);
    assert_int_equal(to->durability, AMPD_MSG_DURABILITY_STEP);
    ampd_msg_create_model_request_free(&request);
}

static void checkpoints_on_demand_alone_are_a_zero_that_is_sent(void **state)
{
    (void)state;
    struct ampclient_spec spec = small_spec();
    spec.checkpoint_every = AMPCLIENT_CHECKPOINT_ON_DEMAND;
    struct ampd_msg_create_model_request request;
    encode(&spec, &request);
    assert_true(request.spec.has_checkpoint_every && request.spec.checkpoint_every == 0);
    ampd_msg_create_model_request_free(&request);
}

static void optimizers_groups_and_rules_arrive(void **state)
{
    (void)state;
    struct ampclient_spec spec = small_spec();
    const struct ampclient_parameter_spec grouped[] = {{.name = "w", .dimensions = 1, .shape = {3}, .group = 1},
                                                       {.name = "b", .dimensions = 0}};
    const struct ampclient_group_spec groups[] = {
        {.name = "plain", .clip_max_norm = 2}, {.lr_factor_set = true, .weight_decay_set = true, .weight_decay = 0.5}};
    spec.parameters = grouped;
    spec.groups = groups;
    spec.groups_count = 2;
    spec.optimizer = AMPCLIENT_RMSPROP;
    spec.alpha = 0.75;
    spec.centered = true;
    spec.lr_decay = 0.125;
    spec.clip_scope = AMPCLIENT_CLIP_GROUP;
    spec.weighting = AMPCLIENT_PUSHED;
    spec.schedule = AMPCLIENT_WORKER;
    spec.cast_overflow = AMPCLIENT_CAST_SATURATE;
    spec.scaler = AMPCLIENT_SCALER_PADDLE;
    spec.hysteresis = 3;
    spec.floor_policy = AMPCLIENT_FLOOR_FREEZE;
    spec.max_consecutive_overflows = 9;
    struct ampd_msg_create_model_request request;
    encode(&spec, &request);
    const struct ampd_msg_model_spec *to = &request.spec;
    assert_int_equal(to->optimizer.kind, AMPD_MSG_OPTIMIZER_KIND_RMSPROP);
    assert_true(to->optimizer.has_alpha && to->optimizer.alpha == 0.75 && to->optimizer.centered);
    assert_true(to->optimizer.learning_rate_decay == 0.125);
    assert_int_equal(to->parameters.items[0].group, 1);
    assert_int_equal(to->parameters.items[1].group, 0);
    assert_int_equal(to->groups.count, 2);
    const struct ampd_msg_parameter_group *first = &to->groups.items[0], *second = &to->groups.items[1];
    assert_string_equal(first->name, "plain");
    assert_true(first->has_max_norm && first->max_norm == 2);
    assert_false(first->has_learning_rate_factor || first->has_weight_decay || second->has_max_norm);
    assert_true(second->has_learning_rate_factor && second->learning_rate_factor == 0);
    assert_true(second->has_weight_decay && second->weight_decay == 0.5);
    assert_true(to->has_clip && to->clip.scope == AMPD_MSG_CLIP_SCOPE_GROUP);
    assert_int_equal(to->weighting, AMPD_MSG_WEIGHTING_PUSHED);
    assert_int_equal(to->schedule.kind, AMPD_MSG_SCHEDULE_KIND_WORKER);
    assert_int_equal(to->cast_overflow, AMPD_MSG_CAST_OVERFLOW_SATURATE);
    assert_int_equal(to->scaler.policy, AMPD_MSG_SCALER_POLICY_PADDLE);
    assert_true(to->scaler.has_hysteresis && to->scaler.hysteresis == 3);
    assert_int_equal(to->floor_policy, AMPD_MSG_FLOOR_POLICY_FREEZE);
    assert_true(to->has_max_consecutive_overflows && to->max_consecutive_overflows == 9);
    ampd_msg_create_model_request_free(&request);
}

static void refused(const struct ampclient_spec *spec, const char *word)
{
    struct amp_buf out;
    struct amp_error error = {0};
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    assert_int_equal(ampclient_spec_encode(spec, &out, &error), AMP_EINVAL);
    if (strstr(error.text, word) == NULL)
        fail_msg("\"%s\" does not name %s", error.text, word);
    assert_int_equal(out.size, 0);
    amp_buf_close(&out);
}

static void what_the_message_has_no_room_for_is_refused_by_name(void **state)
{
    (void)state;
    char name[200];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    struct ampclient_spec spec = small_spec();
    spec.name = NULL;
    refused(&spec, "name of the model");
    spec.name = name;
    refused(&spec, "name of the model");
    spec = small_spec();
    spec.parameters_count = 0;
    refused(&spec, "parameters_count");
    spec.parameters_count = 8193;
    refused(&spec, "parameters_count");
    spec = small_spec();
    spec.world_size = 257;
    refused(&spec, "world_size");
    spec = small_spec();
    spec.groups_count = 1;
    refused(&spec, "groups_count");
    const struct ampclient_group_spec groups[17] = {{.name = name}};
    spec.groups = groups;
    refused(&spec, "group 0");
    spec.groups_count = 17;
    refused(&spec, "groups_count");
    spec = small_spec();
    struct ampclient_parameter_spec one = parameters[0];
    spec.parameters = &one;
    spec.parameters_count = 1;
    one.name = "";
    refused(&spec, "parameter 0");
    one = parameters[0];
    one.dimensions = 9;
    refused(&spec, "\"w\"");
    one.dimensions = 2;
    one.shape[1] = 0;
    refused(&spec, "shape");
    one.shape[1] = UINT64_MAX / 2;
    refused(&spec, "shape");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_left_at_zero_are_absent),
        cmocka_unit_test(a_beta_is_absent_given_or_zero),
        cmocka_unit_test(fields_that_are_given_arrive),
        cmocka_unit_test(checkpoints_on_demand_alone_are_a_zero_that_is_sent),
        cmocka_unit_test(optimizers_groups_and_rules_arrive),
        cmocka_unit_test(what_the_message_has_no_room_for_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
