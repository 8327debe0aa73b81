/* The loss-scale policies: torch's golden trace, floor, cap, guard, and the counts that every policy keeps. */
#include "amp/scaler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct amp_scaler_config checked(struct amp_scaler_config config)
{
    struct amp_error error = {0};
    amp_scaler_config_defaults(&config);
    int code = amp_scaler_config_check(&config, &error);
    if (code != 0)
        print_message("%s\n", error.text);
    assert_int_equal(code, 0);
    return config;
}

static void dynamic_follows_torchs_golden_trace(void **state)
{
    static const char trace[] = "......XXX..X.........";
    static const float expected[] = {1024, 1024, 1024, 2048, 2048, 2048, 1024, 512, 256, 256, 256,
                                     128,  128,  128,  128,  256,  256,  256,  256, 512, 512};
    _Static_assert(sizeof trace - 1 == sizeof expected / sizeof expected[0], "one scale a step");
    struct amp_scaler_config config = checked((struct amp_scaler_config){.init_scale = 1024, .growth_interval = 4});
    struct amp_scaler_state s;
    amp_scaler_init(&config, &s);
    uint64_t id = s.scale_id;
    for (size_t i = 0; trace[i] != '\0'; i++) {
        float before = s.scale;
        amp_scaler_update(&config, &s, trace[i] == 'X' ? AMP_SCALER_OVERFLOW : AMP_SCALER_CLEAN);
        assert_true(s.scale == expected[i]);
        id += s.scale != before;
        assert_int_equal(s.scale_id, id);
    }
    assert_int_equal(s.attempted, 21);
    assert_int_equal(s.applied, 17);
    assert_int_equal(s.skipped, 4);
    assert_int_equal(s.total_overflows, 4);
    assert_int_equal(s.steps_since_overflow, 9);
    assert_int_equal(s.consecutive_overflows, 0);
}

static void scale_stays_at_the_floor_and_keeps_its_id_there(void **state)
{
    struct amp_scaler_config config = checked((struct amp_scaler_config){.init_scale = 3, .min_scale = 2});
    struct amp_scaler_state s;
    amp_scaler_init(&config, &s);
    amp_scaler_update(&config, &s, AMP_SCALER_OVERFLOW);
    assert_true(s.scale == 2 && s.scale_id == 2);
    amp_scaler_update(&config, &s, AMP_SCALER_OVERFLOW);
    assert_true(s.scale == 2 && s.scale_id == 2);
    assert_int_equal(s.consecutive_overflows, 2);
}

static void scale_stays_at_the_cap(void **state)
{
    struct amp_scaler_config config =
        checked((struct amp_scaler_config){.init_scale = 96, .max_scale = 128, .growth_interval = 1});
    struct amp_scaler_state s;
    amp_scaler_init(&config, &s);
    amp_scaler_update(&config, &s, AMP_SCALER_CLEAN);
    amp_scaler_update(&config, &s, AMP_SCALER_CLEAN);
    assert_true(s.scale == 128 && s.scale_id == 2);
}

static void growth_that_is_not_finite_is_not_taken(void **state)
{
    struct amp_scaler_config config =
        checked((struct amp_scaler_config){.init_scale = 0x1p127f, .max_scale = 0x1.fffffep127f, .growth_interval = 1});
    struct amp_scaler_state s;
    amp_scaler_init(&config, &s);
    amp_scaler_update(&config, &s, AMP_SCALER_CLEAN);
    assert_true(s.scale == 0x1p127f && s.scale_id == 1);
}

static void an_empty_step_touches_neither_scale_nor_tracker(void **state)
{
    struct amp_scaler_config config = checked((struct amp_scaler_config){.growth_interval = 3});
    struct amp_scaler_state s;
    amp_scaler_init(&config, &s);
    amp_scaler_update(&config, &s, AMP_SCALER_CLEAN);
    struct amp_scaler_state before = s;
    amp_scaler_update(&config, &s, AMP_SCALER_EMPTY);
    before.attempted++;
    before.skipped++;
    assert_int_equal(s.attempted, before.attempted);
    assert_int_equal(s.skipped, before.skipped);
    assert_int_equal(s.applied, before.applied);
    assert_int_equal(s.growth_tracker, before.growth_tracker);
    assert_int_equal(s.steps_since_overflow, before.steps_since_overflow);
    assert_true(s.scale == before.scale && s.scale_id == before.scale_id);
}

static void static_and_none_never_move_the_scale(void **state)
{
    static const enum amp_scaler_policy policies[] = {AMP_SCALER_STATIC, AMP_SCALER_NONE};
    for (size_t i = 0; i < 2; i++) {
        struct amp_scaler_config config = checked((struct amp_scaler_config){.policy = policies[i]});
        struct amp_scaler_state s;
        amp_scaler_init(&config, &s);
        float scale = s.scale;
        assert_true(scale == (i == 0 ? 65536.0f : 1.0f));
        for (unsigned n = 0; n < 5000; n++)
            amp_scaler_update(&config, &s, n % 7 == 0 ? AMP_SCALER_OVERFLOW : AMP_SCALER_CLEAN);
        assert_true(s.scale == scale && s.scale_id == 1);
        assert_int_equal(s.attempted, s.applied + s.skipped);
        assert_int_equal(s.skipped, s.total_overflows);
    }
}

static void defaults_are_torchs_with_a_floor_and_a_cap(void **state)
{
    struct amp_scaler_config config = checked((struct amp_scaler_config){0});
    assert_int_equal(config.policy, AMP_SCALER_DYNAMIC);
    assert_true(config.init_scale == 65536 && config.growth_factor == 2 && config.backoff_factor == 0.5f);
    assert_int_equal(config.growth_interval, 2000);
    assert_true(config.min_scale == 1 && config.max_scale == 16777216);
}

static void policies_that_are_not_built_are_named(void **state)
{
    static const struct {
        enum amp_scaler_policy policy;
        const char *name;
    } rows[] = {{AMP_SCALER_MEGATRON, "megatron"},
                {AMP_SCALER_DEEPSPEED, "deepspeed"},
                {AMP_SCALER_DEEPSPEED_CONSECUTIVE, "deepspeed_consecutive"},
                {AMP_SCALER_APEX_HYSTERESIS, "apex_hysteresis"},
                {AMP_SCALER_PADDLE, "paddle"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct amp_scaler_config config = {.policy = rows[i].policy};
        struct amp_error error;
        amp_scaler_config_defaults(&config);
        assert_int_equal(amp_scaler_config_check(&config, &error), AMP_EUNIMPLEMENTED);
        assert_non_null(strstr(error.text, rows[i].name));
    }
}

static void values_out_of_range_are_refused_by_field(void **state)
{
    static const struct {
        struct amp_scaler_config config;
        const char *field;
    } rows[] = {
        {{.policy = (enum amp_scaler_policy)99}, "policy"},
        {{.min_scale = -1}, "min_scale"},
        {{.min_scale = 0x1p-140f}, "min_scale"},
        {{.max_scale = INFINITY}, "max_scale"},
        {{.min_scale = 8, .max_scale = 4}, "max_scale"},
        {{.init_scale = NAN}, "init_scale"},
        {{.init_scale = 0x1p25f}, "init_scale"},
        {{.policy = AMP_SCALER_NONE, .init_scale = 2}, "init_scale"},
        {{.growth_factor = 1}, "growth_factor"},
        {{.growth_factor = NAN}, "growth_factor"},
        {{.backoff_factor = 1}, "backoff_factor"},
        {{.backoff_factor = -0.5f}, "backoff_factor"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct amp_scaler_config config = rows[i].config;
        struct amp_error error;
        amp_scaler_config_defaults(&config);
        assert_int_equal(amp_scaler_config_check(&config, &error), AMP_EINVAL);
        assert_non_null(strstr(error.text, rows[i].field));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dynamic_follows_torchs_golden_trace),
        cmocka_unit_test(scale_stays_at_the_floor_and_keeps_its_id_there),
        cmocka_unit_test(scale_stays_at_the_cap),
        cmocka_unit_test(growth_that_is_not_finite_is_not_taken),
        cmocka_unit_test(an_empty_step_touches_neither_scale_nor_tracker),
        cmocka_unit_test(static_and_none_never_move_the_scale),
        cmocka_unit_test(defaults_are_torchs_with_a_floor_and_a_cap),
        cmocka_unit_test(policies_that_are_not_built_are_named),
        cmocka_unit_test(values_out_of_range_are_refused_by_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
