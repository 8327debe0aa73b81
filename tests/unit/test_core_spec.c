/* Specifications: each refusal names the field and the remedy. */
#include "server/core/model/spec.h"
#include "tests/unit/core_fixture.h"
#include "tests/whole_spec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct ampd_model_spec spec;
static struct ampd_parameter_spec parameters[2];

static int setup(void **state)
{
    (void)state;
    core_spec(&spec, 2);
    memcpy(parameters, spec.parameters, sizeof(parameters));
    spec.parameters = parameters;
    whole_spec(&spec);
    return 0;
}

static void assert_refused(int code, const char *field)
{
    struct amp_error error = {0};
    assert_int_equal(code, ampd_spec_check(&spec, &error));
    if (strstr(error.text, field) == NULL)
        fail_msg("\"%s\" does not name %s", error.text, field);
    assert_true(strlen(error.text) > strlen(field) + 8); /* it says what to do, too */
    (void)setup(NULL);
}

static void a_specification_with_defaults_is_accepted(void **state)
{
    (void)state;
    struct amp_error error = {0};
    assert_int_equal(0, ampd_spec_check(&spec, &error));
    assert_int_equal(AMPD_SYNC_ALL, spec.sync);
    assert_int_equal(AMPD_ON_LOSS_WAIT, spec.on_loss);
    assert_int_equal(600000, spec.loss_timeout_ms);
    assert_int_equal(100, spec.checkpoint_every);
    assert_int_equal(3, spec.keep_last);
    assert_int_equal(50, spec.max_consecutive_overflows);
    assert_int_equal(1, spec.groups_count);
}

static void names_and_shapes_out_of_range_are_refused(void **state)
{
    (void)state;
    spec.name[0] = 0;
    assert_refused(AMP_EINVAL, "name");
    (void)snprintf(spec.name, sizeof(spec.name), "../escape");
    assert_refused(AMP_EINVAL, "name");
    spec.parameters_count = 0;
    assert_refused(AMP_EINVAL, "parameters");
    parameters[1].name[0] = 0;
    assert_refused(AMP_EINVAL, "parameters[1].name");
    parameters[1].name[0] = '#';
    assert_refused(AMP_EINVAL, "parameters[1].name");
    (void)snprintf(parameters[1].name, sizeof(parameters[1].name), "__metadata__");
    assert_refused(AMP_EINVAL, "parameters[1].name: __metadata__");
    (void)snprintf(parameters[1].name, sizeof(parameters[1].name), "a");
    assert_refused(AMP_EINVAL, "two are named a");
    parameters[0].shape[0] = 0;
    assert_refused(AMP_EINVAL, "parameters[0].shape");
    parameters[0].shape[0] = AMPD_ELEMENTS_MAX + 1;
    assert_refused(AMP_EINVAL, "parameters[0].shape");
    parameters[0].dimensions = AMPD_DIMENSIONS_MAX + 1;
    assert_refused(AMP_EINVAL, "parameters[0].shape");
    parameters[0].group = 1;
    assert_refused(AMP_EINVAL, "parameters[0].group");
    spec.parameters_count = AMPD_PARAMETERS_MAX + 1;
    assert_refused(AMP_EINVAL, "parameters");
    spec.groups_count = AMPD_GROUPS_MAX + 1;
    assert_refused(AMP_EINVAL, "groups");
    parameters[0].shape[0] = parameters[1].shape[0] = AMPD_ELEMENTS_MAX / 2; /* with what pads them too many */
    assert_refused(AMP_EINVAL, "2^36 elements in all");
    memset(spec.name, 'a', sizeof(spec.name)); /* no end */
    assert_refused(AMP_EINVAL, "name");
    memset(parameters[1].name, 'a', sizeof(parameters[1].name));
    assert_refused(AMP_EINVAL, "parameters[1].name");
}

static void numbers_that_the_optimizer_does_not_use_are_finite_too(void **state)
{
    (void)state;
    static const double none[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, 1e300};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        spec.optimizer = AMPD_OPTIMIZER_SGD;
        spec.beta1 = none[i];
        assert_refused(AMP_EINVAL, "optimizer.beta1");
        spec.optimizer = AMPD_OPTIMIZER_SGD;
        spec.alpha = none[i];
        assert_refused(AMP_EINVAL, "optimizer.alpha");
        spec.step_factor = none[i];
        assert_refused(AMP_EINVAL, "schedule.gamma");
        spec.groups[0].lr_scale = none[i];
        assert_refused(AMP_EINVAL, "groups.learning_rate_factor");
    }
}

static void numbers_of_groups_and_clipping_are_checked_each(void **state)
{
    (void)state;
    spec.groups[0].lr_scale = NAN;
    assert_refused(AMP_EINVAL, "groups.learning_rate_factor");
    spec.groups[0].weight_decay_set = true;
    spec.groups[0].weight_decay = -1;
    assert_refused(AMP_EINVAL, "groups.weight_decay");
    spec.groups[0].weight_decay_set = true;
    spec.groups[0].weight_decay = NAN;
    assert_refused(AMP_EINVAL, "groups.weight_decay");
    spec.groups[0].clip_max_norm = NAN;
    assert_refused(AMP_EINVAL, "groups.max_norm");
    spec.groups[0].clip_max_norm = -1;
    assert_refused(AMP_EINVAL, "groups.max_norm");
    spec.groups[0].clip_max_norm = 1; /* of the model, not of the group */
    assert_refused(AMP_EINVAL, "groups.max_norm");
    spec.clip_value = NAN;
    assert_refused(AMP_EINVAL, "clip.value");
    spec.clip_max_norm = -1;
    assert_refused(AMP_EINVAL, "clip.max_norm");
    spec.sync = AMPD_SYNC_QUORUM;
    spec.quorum = 3;
    assert_refused(AMP_EINVAL, "quorum");
    spec.groups[0].clip_max_norm = 1;
    spec.groups[0].weight_decay_set = true;
    spec.clip_scope = AMPD_CLIP_GROUP;
    struct amp_error error = {0};
    assert_int_equal(0, ampd_spec_check(&spec, &error));
    (void)setup(NULL);
}

static void numbers_out_of_range_are_refused(void **state)
{
    (void)state;
    spec.lr = NAN;
    assert_refused(AMP_EINVAL, "optimizer");
    spec.momentum = 1;
    assert_refused(AMP_EINVAL, "optimizer");
    spec.clip_value = -1;
    assert_refused(AMP_EINVAL, "clip.value");
    spec.clip_max_norm = INFINITY;
    assert_refused(AMP_EINVAL, "clip.max_norm");
    spec.world_size = 0;
    assert_refused(AMP_EINVAL, "world_size");
    spec.world_size = AMPD_WORLD_MAX + 1;
    assert_refused(AMP_EINVAL, "world_size");
    spec.quorum = 1;
    assert_refused(AMP_EINVAL, "quorum");
    spec.sync = AMPD_SYNC_QUORUM;
    assert_refused(AMP_EINVAL, "quorum");
    spec.min_workers = 3;
    assert_refused(AMP_EINVAL, "min_workers");
    spec.loss_timeout_ms = UINT64_MAX;
    assert_refused(AMP_EINVAL, "loss_timeout_ms");
    spec.cast = AMP_F64;
    assert_refused(AMP_EINVAL, "cast_dtype");
    spec.scaler.min_scale = -1;
    assert_refused(AMP_EINVAL, "scaler");
    spec.groups[0].lr_scale = -1;
    assert_refused(AMP_EINVAL, "groups.learning_rate_factor");
    spec.schedule = AMPD_SCHEDULE_COSINE;
    assert_refused(AMP_EINVAL, "schedule");
}

static void values_that_are_reserved_are_named(void **state)
{
    (void)state;
    spec.on_loss = (enum ampd_on_loss)3;
    assert_refused(AMP_EUNIMPLEMENTED, "on_loss");
    spec.floor_policy = (enum ampd_floor_policy)4;
    assert_refused(AMP_EUNIMPLEMENTED, "floor_policy");
    spec.floor_policy = (enum ampd_floor_policy)0;
    assert_refused(AMP_EUNIMPLEMENTED, "floor_policy");
    spec.optimizer = (enum ampd_optimizer)7;
    assert_refused(AMP_EUNIMPLEMENTED, "optimizer.kind");
    spec.clip_scope = (enum ampd_clip_scope)3;
    assert_refused(AMP_EUNIMPLEMENTED, "clip.scope");
    spec.sync = (enum ampd_sync)3;
    assert_refused(AMP_EUNIMPLEMENTED, "sync_mode");
    spec.weighting = (enum ampd_weighting)3;
    assert_refused(AMP_EUNIMPLEMENTED, "weighting");
    spec.cast_overflow = (enum ampd_cast_overflow)3;
    assert_refused(AMP_EUNIMPLEMENTED, "cast_overflow");
    spec.schedule = (enum ampd_schedule)9;
    assert_refused(AMP_EINVAL, "schedule");
}

static void assert_differs(const struct ampd_model_spec *other, const char *field)
{
    struct amp_error error = {0};
    assert_int_equal(AMP_EEXIST, ampd_spec_compare(&spec, other, &error));
    assert_string_equal("MODEL_EXISTS", error.reason);
    if (strstr(error.text, field) == NULL)
        fail_msg("\"%s\" does not name %s", error.text, field);
}

static void two_specifications_differ_by_the_first_field_that_does(void **state)
{
    (void)state;
    struct ampd_model_spec other;
    struct amp_error error = {0};
    assert_int_equal(0, ampd_spec_copy(&other, &spec));
    assert_int_equal(0, ampd_spec_compare(&spec, &other, &error));
    other.lr = 0.5f;
    assert_differs(&other, "optimizer.learning_rate");
    other.lr = spec.lr;
    other.scaler.growth_interval++;
    assert_differs(&other, "scaler.growth_interval");
    other.scaler.growth_interval--;
    other.durability = AMPD_DURABILITY_STEP; /* a value that has a name is called by it */
    assert_differs(&other, "durability is CHECKPOINT there and STEP here");
    other.durability = (enum ampd_durability)9;
    assert_differs(&other, "durability is CHECKPOINT there and 9 here");
    other.durability = spec.durability;
    other.groups[0].clip_max_norm = 2;
    assert_differs(&other, "groups.max_norm");
    other.groups[0].clip_max_norm = 0;
    other.groups[0].lr_scale = 2;
    assert_differs(&other, "groups.learning_rate_factor");
    other.groups[0].lr_scale = spec.groups[0].lr_scale;
    other.groups[0].weight_decay_set = true;
    assert_differs(&other, "groups.weight_decay");
    spec.groups[0].weight_decay_set = true;
    other.groups[0].weight_decay = 0.5;
    assert_differs(&other, "groups.weight_decay");
    other.groups[0] = spec.groups[0];
    other.parameters[1].shape[0]++;
    assert_differs(&other, "b is [10] there and [11] here");
    other.parameters[1] = spec.parameters[1];
    other.parameters[1].name[0] = 'z';
    assert_differs(&other, "parameters[1] is b there and z here");
    other.parameters[1] = spec.parameters[1];
    other.parameters[0].dimensions++;
    assert_differs(&other, "a is [100] there and [100, 0] here");
    other.parameters[0] = spec.parameters[0];
    other.parameters[0].group++;
    assert_differs(&other, "a is in groups[0] there and in groups[1] here");
    other.parameters[0] = spec.parameters[0];
    spec.parameters[0].dimensions = other.parameters[0].dimensions = 0; /* a scalar has no shape to differ in */
    other.parameters[0].shape[0]++;
    assert_int_equal(0, ampd_spec_compare(&spec, &other, &error));
    ampd_spec_clear(&other);
    (void)setup(NULL);
}

static void a_schedule_by_steps_has_its_factor(void **state)
{
    (void)state;
    spec.schedule = AMPD_SCHEDULE_STEP;
    spec.step_factor = 0;
    spec.step_every = 10;
    whole_spec(&spec);
    struct amp_error error = {0};
    assert_int_equal(0, ampd_spec_check(&spec, &error));
    assert_true(spec.step_factor > 0 && spec.step_factor < 1);
    (void)setup(NULL);
}

static void a_second_create_with_another_specification_leaves_the_model_as_it_is(void **state)
{
    (void)state;
    struct core_host host;
    core_host_init(&host, 1);
    struct ampd_model_spec other;
    core_spec(&other, 2);
    uint64_t first = core_create(&host, &other);
    assert_false(core_call(&host, first)->reply.u.create.existed);
    assert_true(core_call(&host, core_create(&host, &other))->reply.u.create.existed);
    other.max_steps = 5;
    core_assert_failed(&host, core_create(&host, &other), AMP_EEXIST, "MODEL_EXISTS", "max_steps");
    assert_int_equal(0, core_info(&host).spec->max_steps);
    other.world_size = 0;
    core_assert_failed(&host, core_create(&host, &other), AMP_EINVAL, "INVALID_SPEC", "world_size");
    assert_int_equal(1, ampd_core_models_count(host.core));
    core_host_close(&host);
}

static void two_creates_at_once_make_one_model(void **state)
{
    (void)state;
    struct core_host host;
    core_host_init(&host, 1);
    host.hold_persists = true;
    struct ampd_model_spec other;
    core_spec(&other, 2);
    uint64_t first = core_create(&host, &other);
    uint64_t second = core_create(&host, &other);
    assert_false(core_call(&host, second)->answered); /* not before it is stored */
    core_do_all(&host);
    assert_false(core_call(&host, first)->reply.u.create.existed);
    assert_true(core_call(&host, second)->reply.u.create.existed);
    assert_int_equal(1, host.persists[AMPD_PERSIST_MODEL]);
    core_host_close(&host);
}

static void what_amp_refuses_has_the_reason_of_a_specification(void **state)
{
    (void)state;
    struct core_host host;
    core_host_init(&host, 1);
    struct ampd_model_spec bad;
    core_spec(&bad, 1);
    bad.lr = -1.0;
    core_assert_failed(&host, core_create(&host, &bad), AMP_EINVAL, "INVALID_SPEC", "lr");
    core_spec(&bad, 1);
    bad.scaler.growth_factor = 0.5f;
    core_assert_failed(&host, core_create(&host, &bad), AMP_EINVAL, "INVALID_SPEC", "growth_factor");
    core_host_close(&host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_specification_with_defaults_is_accepted, setup),
        cmocka_unit_test_setup(names_and_shapes_out_of_range_are_refused, setup),
        cmocka_unit_test_setup(numbers_out_of_range_are_refused, setup),
        cmocka_unit_test_setup(numbers_that_the_optimizer_does_not_use_are_finite_too, setup),
        cmocka_unit_test_setup(numbers_of_groups_and_clipping_are_checked_each, setup),
        cmocka_unit_test_setup(values_that_are_reserved_are_named, setup),
        cmocka_unit_test_setup(a_schedule_by_steps_has_its_factor, setup),
        cmocka_unit_test_setup(two_specifications_differ_by_the_first_field_that_does, setup),
        cmocka_unit_test(a_second_create_with_another_specification_leaves_the_model_as_it_is),
        cmocka_unit_test(two_creates_at_once_make_one_model),
        cmocka_unit_test(what_amp_refuses_has_the_reason_of_a_specification),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
