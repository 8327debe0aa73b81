/* The loss-scale policies: a golden trace of each, floor, cap, guard, and the counts that every policy keeps. */
#include "tests/unit/scaler_traces.h"

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

/* Runs `trace` ('.' clean, 'X' overflow, '-' empty) from the start and compares each scale with its id. */
static void follow(struct amp_scaler_config config, const char *trace, const float *scales, struct amp_scaler_state *s)
{
    config = checked(config);
    amp_scaler_init(&config, s);
    uint64_t id = s->scale_id;
    for (size_t i = 0; trace[i] != '\0'; i++) {
        float before = s->scale;
        enum amp_scaler_outcome outcome = trace[i] == 'X'   ? AMP_SCALER_OVERFLOW
                                          : trace[i] == '-' ? AMP_SCALER_EMPTY
                                                            : AMP_SCALER_CLEAN;
        amp_scaler_update(&config, s, outcome);
        if (s->scale != scales[i])
            print_message("%s, step %zu: %g, expected %g\n", amp_scaler_policy_name(config.policy), i, (double)s->scale,
                          (double)scales[i]);
        assert_true(s->scale == scales[i]);
        id += s->scale != before;
        assert_int_equal(s->scale_id, id);
    }
}

static void every_policy_follows_its_golden_trace(void **state)
{
    for (size_t i = 0; i < GOLDEN_TRACES; i++) {
        struct amp_scaler_state s;
        follow((struct amp_scaler_config){.policy = golden_traces[i].policy, .init_scale = 1024, .growth_interval = 4},
               TRACE, golden_traces[i].scales, &s);
        assert_int_equal(s.attempted, 21);
        assert_int_equal(s.applied, 17);
        assert_int_equal(s.skipped, 4);
        assert_int_equal(s.total_overflows, 4);
        assert_int_equal(s.steps_since_overflow, 9);
        assert_int_equal(s.consecutive_overflows, 0);
    }
}

static void every_policy_but_none_has_a_golden_trace(void **state)
{
    bool seen[AMP_SCALER_PADDLE + 1] = {false};
    seen[AMP_SCALER_NONE] = true; /* its scale can only be 1 */
    for (size_t i = 0; i < GOLDEN_TRACES; i++)
        seen[golden_traces[i].policy] = true;
    for (size_t i = AMP_SCALER_DYNAMIC; i <= AMP_SCALER_PADDLE; i++)
        assert_true(seen[i]);
}

/* Megatron's docstring says "consecutive", its code does not: isolated overflows spend forgiveness too. */
static void megatron_forgives_again_only_after_a_full_clean_window(void **state)
{
    static const float scales[] = {64, 64, 32, 32, 16, 16, 32, 32};
    struct amp_scaler_state s;
    follow((struct amp_scaler_config){.policy = AMP_SCALER_MEGATRON, .init_scale = 64, .growth_interval = 2},
           "X.X.X..X", scales, &s);
    assert_int_equal(s.hysteresis_left, 1);
}

static void apex_forgives_again_after_any_clean_step(void **state)
{
    static const float scales[] = {64, 64, 64, 64, 32, 16, 16, 16};
    struct amp_scaler_state s;
    follow((struct amp_scaler_config){.policy = AMP_SCALER_APEX_HYSTERESIS, .init_scale = 64}, "X.X-XX.X", scales, &s);
    assert_int_equal(s.hysteresis_left, 1);
}

static void paddle_needs_as_many_overflows_for_each_backoff(void **state)
{
    static const float scales[] = {64, 64, 32, 32, 32, 16, 16, 16, 16};
    struct amp_scaler_state s;
    follow((struct amp_scaler_config){.policy = AMP_SCALER_PADDLE, .init_scale = 64, .hysteresis = 3}, "XXXXXXXX.",
           scales, &s);
    assert_int_equal(s.hysteresis_left, 3);
}

static void deepspeed_grows_one_clean_step_late_and_then_each_interval(void **state)
{
    static const enum amp_scaler_policy policies[] = {AMP_SCALER_DEEPSPEED, AMP_SCALER_DEEPSPEED_CONSECUTIVE};
    static const float scales[] = {2, 2, 4, 4, 8, 8, 8, 8, 16};
    static const float each[] = {2, 4, 8, 8, 8, 16, 32};
    for (size_t i = 0; i < 2; i++) {
        struct amp_scaler_state s;
        follow((struct amp_scaler_config){.policy = policies[i], .init_scale = 2, .growth_interval = 2}, ".....X...",
               scales, &s);
        follow((struct amp_scaler_config){.policy = policies[i], .init_scale = 2, .growth_interval = 1}, "...X...",
               each, &s);
    }
}

static void hysteresis_of_one_forgives_nothing(void **state)
{
    static const float scales[] = {32, 16, 16, 8};
    for (int policy = AMP_SCALER_MEGATRON; policy <= AMP_SCALER_PADDLE; policy++) {
        struct amp_scaler_state s;
        follow((struct amp_scaler_config){.policy = (enum amp_scaler_policy)policy, .init_scale = 64, .hysteresis = 1},
               "XX.X", scales, &s);
        assert_int_equal(s.hysteresis_left, 1);
    }
}

static void hysteresis_of_one_is_the_dynamic_policy_where_growth_is_not_late(void **state)
{
    static const enum amp_scaler_policy policies[] = {AMP_SCALER_MEGATRON, AMP_SCALER_APEX_HYSTERESIS,
                                                      AMP_SCALER_PADDLE};
    assert_int_equal(golden_traces[0].policy, AMP_SCALER_DYNAMIC);
    for (size_t i = 0; i < 3; i++) {
        struct amp_scaler_state s;
        follow(
            (struct amp_scaler_config){
                .policy = policies[i], .init_scale = 1024, .growth_interval = 4, .hysteresis = 1},
            TRACE, golden_traces[0].scales, &s);
    }
}

/* No policy ends, raises or decays at the floor: the step is skipped and counted, and the scale keeps value and id. */
static void at_the_floor_every_policy_goes_on_counting(void **state)
{
    for (int policy = AMP_SCALER_DYNAMIC; policy <= AMP_SCALER_PADDLE; policy++) {
        struct amp_scaler_config config =
            checked((struct amp_scaler_config){.policy = (enum amp_scaler_policy)policy,
                                               .init_scale = policy == AMP_SCALER_NONE ? 1 : 3,
                                               .hysteresis = 3});
        bool moves = policy != AMP_SCALER_STATIC && policy != AMP_SCALER_NONE;
        struct amp_scaler_state s;
        amp_scaler_init(&config, &s);
        assert_false(amp_scaler_at_floor(&config, &s));
        for (unsigned n = 0; n < 100; n++)
            amp_scaler_update(&config, &s, AMP_SCALER_OVERFLOW);
        assert_true(s.scale == (policy == AMP_SCALER_STATIC ? 3 : 1));
        assert_true(amp_scaler_at_floor(&config, &s) == moves);
        assert_int_equal(s.scale_id, moves ? 3 : 1);
        assert_int_equal(s.consecutive_overflows, 100);
        assert_int_equal(s.total_overflows, 100);
        assert_int_equal(s.skipped, 100);
        assert_int_equal(s.applied, 0);
    }
}

static void every_policy_leaves_the_floor_by_clean_steps(void **state)
{
    for (int policy = AMP_SCALER_MEGATRON; policy <= AMP_SCALER_PADDLE; policy++) {
        struct amp_scaler_config config = checked((struct amp_scaler_config){
            .policy = (enum amp_scaler_policy)policy, .init_scale = 1, .growth_interval = 2});
        struct amp_scaler_state s;
        amp_scaler_init(&config, &s);
        for (unsigned n = 0; n < 5; n++)
            amp_scaler_update(&config, &s, AMP_SCALER_OVERFLOW);
        for (unsigned n = 0; n < 3; n++)
            amp_scaler_update(&config, &s, AMP_SCALER_CLEAN);
        assert_true(s.scale == 2);
        assert_int_equal(s.scale_id, 2);
    }
}

static void the_count_of_consecutive_overflows_does_not_wrap(void **state)
{
    struct amp_scaler_config config = checked((struct amp_scaler_config){0});
    struct amp_scaler_state s;
    amp_scaler_init(&config, &s);
    s.consecutive_overflows = UINT32_MAX;
    amp_scaler_update(&config, &s, AMP_SCALER_OVERFLOW);
    assert_int_equal(s.consecutive_overflows, UINT32_MAX);
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

/* As a record from outside may have them: the machine grows at the next clean step, whatever the number is. */
static void more_clean_steps_than_the_interval_grow_at_the_next_one(void **state)
{
    static const uint32_t trackers[] = {3, 4, 1000, UINT32_MAX - 1, UINT32_MAX};
    for (int policy = AMP_SCALER_DYNAMIC; policy <= AMP_SCALER_PADDLE; policy++) {
        struct amp_scaler_config config =
            checked((struct amp_scaler_config){.policy = (enum amp_scaler_policy)policy,
                                               .init_scale = policy == AMP_SCALER_NONE ? 1 : 64,
                                               .growth_interval = 3});
        bool moves = policy != AMP_SCALER_STATIC && policy != AMP_SCALER_NONE;
        for (size_t i = 0; i < sizeof trackers / sizeof trackers[0]; i++) {
            struct amp_scaler_state s;
            amp_scaler_init(&config, &s);
            s.growth_tracker = trackers[i];
            amp_scaler_update(&config, &s, AMP_SCALER_CLEAN);
            assert_true(s.scale == (moves ? 2 * config.init_scale : config.init_scale));
        }
    }
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

static void a_scale_that_is_set_begins_the_counts_of_its_policy_anew(void **state)
{
    struct amp_scaler_config config =
        checked((struct amp_scaler_config){.policy = AMP_SCALER_MEGATRON, .init_scale = 1024, .hysteresis = 2});
    struct amp_scaler_state s;
    amp_scaler_init(&config, &s);
    amp_scaler_update(&config, &s, AMP_SCALER_CLEAN);
    amp_scaler_update(&config, &s, AMP_SCALER_OVERFLOW);
    uint64_t id = s.scale_id;
    assert_int_equal(0, amp_scaler_set(&config, &s, 64, NULL));
    assert_true(s.scale == 64);
    assert_int_equal(id + 1, s.scale_id);
    assert_int_equal(0, s.growth_tracker);
    assert_int_equal(2, s.hysteresis_left);
    assert_int_equal(0, s.consecutive_overflows);
    assert_int_equal(2, s.attempted); /* what has been stays so */
    amp_scaler_reset(&config, &s);
    assert_true(s.scale == 1024);
    assert_int_equal(id + 2, s.scale_id);
}

static void a_scale_that_the_policy_cannot_have_is_refused_and_changes_nothing(void **state)
{
    const float bad[] = {0, -1, INFINITY, NAN, 0x1p-140f};
    struct amp_scaler_config config = checked((struct amp_scaler_config){.policy = AMP_SCALER_DYNAMIC});
    struct amp_scaler_config none = checked((struct amp_scaler_config){.policy = AMP_SCALER_NONE});
    struct amp_scaler_state s, before;
    struct amp_error error;
    amp_scaler_init(&config, &s);
    before = s;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(AMP_EINVAL, amp_scaler_set(&config, &s, bad[i], &error));
        assert_non_null(strstr(error.text, "is not within"));
    }
    assert_memory_equal(&before, &s, sizeof s);
    amp_scaler_init(&none, &s);
    assert_int_equal(AMP_EINVAL, amp_scaler_set(&none, &s, 2, &error));
    assert_non_null(strstr(error.text, "policy none"));
    assert_int_equal(0, amp_scaler_set(&none, &s, 1, &error));
}

static void defaults_are_torchs_with_a_floor_and_a_cap(void **state)
{
    struct amp_scaler_config config = checked((struct amp_scaler_config){0});
    assert_int_equal(config.policy, AMP_SCALER_DYNAMIC);
    assert_true(config.init_scale == 65536 && config.growth_factor == 2 && config.backoff_factor == 0.5f);
    assert_int_equal(config.growth_interval, 2000);
    assert_true(config.min_scale == 1 && config.max_scale == 16777216);
}

static void every_policy_is_taken_and_has_its_name(void **state)
{
    static const char *const names[] = {
        "unset",           "dynamic", "static", "none", "megatron", "deepspeed", "deepspeed_consecutive",
        "apex_hysteresis", "paddle"};
    for (int policy = AMP_SCALER_DYNAMIC; policy <= AMP_SCALER_PADDLE; policy++)
        (void)checked((struct amp_scaler_config){.policy = (enum amp_scaler_policy)policy});
    for (int policy = AMP_SCALER_POLICY_UNSET; policy <= AMP_SCALER_PADDLE; policy++)
        assert_string_equal(amp_scaler_policy_name((enum amp_scaler_policy)policy), names[policy]);
    assert_string_equal(amp_scaler_policy_name((enum amp_scaler_policy)(AMP_SCALER_PADDLE + 1)), "unknown");
}

/* Zero means absent until the defaults are filled; after that it is a value like another. */
static void zeros_are_refused_where_the_defaults_were_not_filled(void **state)
{
    struct amp_error error;
    struct amp_scaler_config config = checked((struct amp_scaler_config){0});
    config.growth_interval = 0;
    assert_int_equal(amp_scaler_config_check(&config, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "growth_interval"));
    config = checked((struct amp_scaler_config){0});
    config.hysteresis = 0;
    assert_int_equal(amp_scaler_config_check(&config, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "hysteresis"));
    assert_int_equal(amp_scaler_config_check(&(struct amp_scaler_config){0}, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "policy"));
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
        {{.min_scale = INFINITY}, "min_scale"},
        {{.min_scale = NAN}, "min_scale"},
        {{.max_scale = NAN}, "max_scale"},
        {{.max_scale = INFINITY}, "max_scale"},
        {{.min_scale = 8, .max_scale = 4}, "max_scale"},
        {{.init_scale = NAN}, "init_scale"},
        {{.init_scale = 0x1p25f}, "init_scale"},
        {{.policy = AMP_SCALER_NONE, .init_scale = 2}, "init_scale"},
        {{.growth_factor = 1}, "growth_factor"},
        {{.growth_factor = NAN}, "growth_factor"},
        {{.backoff_factor = 1}, "backoff_factor"},
        {{.backoff_factor = -0.5f}, "backoff_factor"},
        {{.init_scale = -1}, "init_scale"},
        {{.init_scale = INFINITY}, "init_scale"},
        {{.init_scale = 0x1p-140f}, "init_scale"},
        {{.growth_factor = INFINITY}, "growth_factor"},
        {{.policy = (enum amp_scaler_policy) - 1}, "policy"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct amp_scaler_config config = rows[i].config;
        struct amp_error error;
        amp_scaler_config_defaults(&config);
        assert_int_equal(amp_scaler_config_check(&config, &error), AMP_EINVAL);
        assert_non_null(strstr(error.text, rows[i].field));
    }
}

static void every_record_that_a_policy_makes_is_one_that_it_takes(void **state)
{
    (void)state;
    for (int policy = AMP_SCALER_DYNAMIC; policy <= AMP_SCALER_PADDLE; policy++) {
        struct amp_scaler_config config = {.policy = (enum amp_scaler_policy)policy, .growth_interval = 3};
        struct amp_scaler_state s;
        struct amp_error error = {0};
        config = checked(config);
        amp_scaler_init(&config, &s);
        uint64_t drawn = 1;
        for (uint32_t i = 0; i < 2000; i++, drawn = (drawn * 1664525 + 1013904223) & UINT32_MAX) {
            enum amp_scaler_outcome outcome = drawn >> 30 == 0   ? AMP_SCALER_OVERFLOW
                                              : drawn >> 29 == 7 ? AMP_SCALER_EMPTY
                                                                 : AMP_SCALER_CLEAN;
            if (amp_scaler_state_check(&config, &s, &error) != 0)
                fail_msg("%s, step %u: %s", amp_scaler_policy_name(config.policy), i, error.text);
            amp_scaler_update(&config, &s, outcome);
        }
    }
}

static void a_record_that_cannot_be_is_refused_by_field(void **state)
{
    (void)state;
    const struct amp_scaler_config config = checked((struct amp_scaler_config){.policy = AMP_SCALER_MEGATRON});
    const struct amp_scaler_config none = checked((struct amp_scaler_config){.policy = AMP_SCALER_NONE});
    struct amp_scaler_state good;
    struct amp_error error = {0};
    amp_scaler_init(&config, &good);
    assert_int_equal(0, amp_scaler_state_check(&config, &good, &error));
    assert_int_equal(AMP_EINVAL, amp_scaler_state_check(&none, &good, &error));
    enum { BAD = 12 };
    struct amp_scaler_state bad[BAD];
    static const char *const words[BAD] = {"scale is",  "scale is",        "scale is",        "scale_id",
                                           "scale_id",  "hysteresis_left", "hysteresis_left", "attempted",
                                           "attempted", "overflows",       "overflows",       "overflows"};
    for (unsigned i = 0; i < BAD; i++)
        bad[i] = good;
    bad[0].scale = NAN;
    bad[1].scale = 0.5f;
    bad[2].scale = 2 * config.max_scale;
    bad[3].scale_id = 0;
    bad[4].scale_id = UINT64_MAX;
    bad[5].hysteresis_left = config.hysteresis + 1;
    bad[6].hysteresis_left = 0;
    bad[7].applied = 1;
    bad[8].skipped = 1;
    bad[9].consecutive_overflows = 1;
    bad[10].steps_since_overflow = 1;
    bad[11].total_overflows = 1;
    for (unsigned i = 0; i < BAD; i++) {
        assert_int_equal(AMP_EINVAL, amp_scaler_state_check(&config, &bad[i], &error));
        assert_non_null(strstr(error.text, words[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_record_that_a_policy_makes_is_one_that_it_takes),
        cmocka_unit_test(a_record_that_cannot_be_is_refused_by_field),
        cmocka_unit_test(every_policy_follows_its_golden_trace),
        cmocka_unit_test(every_policy_but_none_has_a_golden_trace),
        cmocka_unit_test(megatron_forgives_again_only_after_a_full_clean_window),
        cmocka_unit_test(apex_forgives_again_after_any_clean_step),
        cmocka_unit_test(paddle_needs_as_many_overflows_for_each_backoff),
        cmocka_unit_test(deepspeed_grows_one_clean_step_late_and_then_each_interval),
        cmocka_unit_test(hysteresis_of_one_forgives_nothing),
        cmocka_unit_test(hysteresis_of_one_is_the_dynamic_policy_where_growth_is_not_late),
        cmocka_unit_test(at_the_floor_every_policy_goes_on_counting),
        cmocka_unit_test(every_policy_leaves_the_floor_by_clean_steps),
        cmocka_unit_test(the_count_of_consecutive_overflows_does_not_wrap),
        cmocka_unit_test(scale_stays_at_the_floor_and_keeps_its_id_there),
        cmocka_unit_test(scale_stays_at_the_cap),
        cmocka_unit_test(more_clean_steps_than_the_interval_grow_at_the_next_one),
        cmocka_unit_test(growth_that_is_not_finite_is_not_taken),
        cmocka_unit_test(an_empty_step_touches_neither_scale_nor_tracker),
        cmocka_unit_test(static_and_none_never_move_the_scale),
        cmocka_unit_test(a_scale_that_is_set_begins_the_counts_of_its_policy_anew),
        cmocka_unit_test(a_scale_that_the_policy_cannot_have_is_refused_and_changes_nothing),
        cmocka_unit_test(defaults_are_torchs_with_a_floor_and_a_cap),
        cmocka_unit_test(every_policy_is_taken_and_has_its_name),
        cmocka_unit_test(zeros_are_refused_where_the_defaults_were_not_filled),
        cmocka_unit_test(values_out_of_range_are_refused_by_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
