/* The dynamic loss scaler: options, scaling, the rules of growth and backing off, statistics, reset, and bad input. */
#include "amp/cpu.h"
#include "amp/dynamic_scaler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct amp_kernels *kernels;
static struct amp_error error;

static int pick_kernels(void **state)
{
    return amp_cpu_select(NULL, &kernels, &error);
}

/* From 1024 within [64, 4096], growing every 3 clean steps; unstable from 2 overflows in a row. */
static struct amp_dynamic_options small(void)
{
    struct amp_dynamic_options options = amp_dynamic_options_fp16();
    options.initial_loss_scale = 1024;
    options.growth_interval = 3;
    options.min_loss_scale = 64;
    options.max_loss_scale = 4096;
    options.max_consecutive_overflows = 2;
    return options;
}

static struct amp_dynamic_scaler made(struct amp_dynamic_options options)
{
    struct amp_dynamic_scaler scaler;
    assert_int_equal(amp_dynamic_scaler_init(&scaler, kernels, &options, &error), 0);
    return scaler;
}

static struct amp_dynamic_scaler disabled(void)
{
    struct amp_dynamic_options options = small();
    options.enable_dynamic_loss_scaling = false;
    return made(options);
}

static void update_times(struct amp_dynamic_scaler *scaler, bool overflow, unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        assert_true(amp_dynamic_scaler_update(scaler, overflow) == overflow);
}

/* ---- options ---- */

static void a_scaler_without_options_has_those_for_fp16(void **state)
{
    struct amp_dynamic_scaler scaler;
    assert_int_equal(amp_dynamic_scaler_init(&scaler, kernels, NULL, &error), 0);
    assert_true(amp_dynamic_scaler_enabled(&scaler));
    assert_true(amp_dynamic_scaler_scale(&scaler) == 65536);
    assert_true(scaler.options.growth_factor == 2 && scaler.options.backoff_factor == 0.5f);
    assert_true(scaler.options.min_loss_scale == 1 && scaler.options.max_loss_scale == 0x1p24f);
    assert_int_equal(scaler.options.growth_interval, 2000);
    assert_int_equal(scaler.options.max_consecutive_overflows, 50);
}

static void a_new_scaler_has_the_initial_scale_and_no_counts(void **state)
{
    struct amp_dynamic_scaler scaler = made(small());
    assert_true(amp_dynamic_scaler_scale(&scaler) == 1024);
    assert_int_equal(amp_dynamic_scaler_consecutive_overflows(&scaler), 0);
    assert_int_equal(amp_dynamic_scaler_steps_since_overflow(&scaler), 0);
    assert_int_equal(amp_dynamic_scaler_total_overflows(&scaler), 0);
}

static void options_out_of_range_are_refused_by_field(void **state)
{
    struct {
        struct amp_dynamic_options options;
        const char *field;
    } rows[] = {{small(), "initial_loss_scale"}, {small(), "initial_loss_scale"},
                {small(), "initial_loss_scale"}, {small(), "initial_loss_scale"},
                {small(), "growth_factor"},      {small(), "growth_factor"},
                {small(), "backoff_factor"},     {small(), "backoff_factor"},
                {small(), "growth_interval"},    {small(), "min_loss_scale"},
                {small(), "min_loss_scale"},     {small(), "max_loss_scale"},
                {small(), "max_loss_scale"},     {small(), "max_consecutive_overflows"}};
    rows[0].options.initial_loss_scale = 0;
    rows[1].options.initial_loss_scale = NAN;
    rows[2].options.initial_loss_scale = 63;
    rows[3].options.initial_loss_scale = INFINITY;
    rows[4].options.growth_factor = 1;
    rows[5].options.growth_factor = -2;
    rows[6].options.backoff_factor = 1;
    rows[7].options.backoff_factor = 0;
    rows[8].options.growth_interval = 0;
    rows[9].options.min_loss_scale = 0;
    rows[10].options.min_loss_scale = 0x1p-140f;
    rows[11].options.max_loss_scale = INFINITY;
    rows[12].options.max_loss_scale = 32;
    rows[13].options.max_consecutive_overflows = 0;
    struct amp_dynamic_scaler scaler = made(small());
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(amp_dynamic_options_check(&rows[i].options, &error), AMP_EINVAL);
        assert_memory_equal(error.text, rows[i].field, strlen(rows[i].field)); /* no word before or around it */
        assert_null(strstr(error.text, "scaler."));
        rows[i].options.enable_dynamic_loss_scaling = false;
        assert_int_equal(amp_dynamic_scaler_init(&scaler, kernels, &rows[i].options, &error), AMP_EINVAL);
    }
    assert_true(amp_dynamic_scaler_scale(&scaler) == 1024);
}

static void null_options_scaler_and_kernels_are_refused(void **state)
{
    struct amp_dynamic_scaler scaler;
    assert_int_equal(amp_dynamic_options_check(NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_dynamic_scaler_init(NULL, kernels, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_dynamic_scaler_init(&scaler, NULL, NULL, &error), AMP_EINVAL);
}

/* ---- scaling ---- */

static void loss_is_scaled_and_gradients_are_unscaled_by_the_present_scale(void **state)
{
    struct amp_dynamic_scaler scaler = made(small());
    update_times(&scaler, true, 1);
    float loss = 3, scaled;
    struct amp_tensor in = {"loss", &loss, 1, AMP_F32}, out = {"scaled", &scaled, 1, AMP_F32};
    assert_int_equal(amp_dynamic_scaler_scale_loss(&scaler, &in, &out, &error), 0);
    assert_true(scaled == 3 * 512 && loss == 3);
    float a[] = {512, 1024};
    struct amp_tensor grads[] = {{"a", a, 2, AMP_F32}, {"none", NULL, 0, AMP_F32}};
    bool overflow = true;
    assert_int_equal(amp_dynamic_scaler_unscale(&scaler, grads, 2, grads, &overflow, &error), 0);
    assert_true(a[0] == 1 && a[1] == 2 && !overflow);
}

static void overflow_is_detected_in_nan_and_inf(void **state)
{
    struct amp_dynamic_scaler scaler = made(small());
    static const float values[] = {1, INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < 4; i++) {
        float a[] = {1, 2}, b[] = {values[i]};
        struct amp_tensor grads[] = {{"a", a, 2, AMP_F32}, {"none", NULL, 0, AMP_F32}, {"b", b, 1, AMP_F32}};
        bool overflow;
        assert_int_equal(amp_dynamic_scaler_check_overflow(&scaler, grads, 3, &overflow, &error), 0);
        assert_true(overflow == (i > 0));
    }
    assert_true(amp_dynamic_scaler_scale(&scaler) == 1024);
}

static void empty_dictionaries_have_no_overflow(void **state)
{
    struct amp_dynamic_scaler scaler = made(small());
    bool told = true;
    assert_int_equal(amp_dynamic_scaler_check_overflow(&scaler, NULL, 0, &told, &error), 0);
    assert_false(told);
    assert_int_equal(amp_dynamic_scaler_unscale(&scaler, NULL, 0, NULL, NULL, &error), 0);
}

/* ---- the rules ---- */

static void overflow_backs_off_skips_and_begins_the_count_anew(void **state)
{
    struct amp_dynamic_scaler scaler = made(small());
    update_times(&scaler, false, 2);
    assert_int_equal(amp_dynamic_scaler_steps_since_overflow(&scaler), 2);
    assert_true(amp_dynamic_scaler_update(&scaler, true));
    assert_true(amp_dynamic_scaler_scale(&scaler) == 512);
    assert_int_equal(amp_dynamic_scaler_steps_since_overflow(&scaler), 0);
    assert_int_equal(amp_dynamic_scaler_consecutive_overflows(&scaler), 1);
    assert_int_equal(amp_dynamic_scaler_total_overflows(&scaler), 1);
}

static void success_grows_the_scale_at_the_interval_alone(void **state)
{
    struct amp_dynamic_scaler scaler = made(small());
    update_times(&scaler, true, 1);
    update_times(&scaler, false, 2);
    assert_true(amp_dynamic_scaler_scale(&scaler) == 512);
    update_times(&scaler, false, 1);
    assert_true(amp_dynamic_scaler_scale(&scaler) == 1024);
    assert_int_equal(amp_dynamic_scaler_steps_since_overflow(&scaler), 0);
    assert_int_equal(amp_dynamic_scaler_consecutive_overflows(&scaler), 0);
    assert_int_equal(amp_dynamic_scaler_total_overflows(&scaler), 1);
    update_times(&scaler, false, 3);
    assert_true(amp_dynamic_scaler_scale(&scaler) == 2048);
}

static void the_scale_stays_within_min_and_max(void **state)
{
    struct amp_dynamic_scaler scaler = made(small());
    update_times(&scaler, true, 10);
    assert_true(amp_dynamic_scaler_scale(&scaler) == 64);
    update_times(&scaler, false, 30);
    assert_true(amp_dynamic_scaler_scale(&scaler) == 4096);
}

static void factors_that_are_not_powers_of_two_are_kept(void **state)
{
    struct amp_dynamic_options options = small();
    options.growth_factor = 1.5f;
    options.backoff_factor = 0.7f;
    struct amp_dynamic_scaler scaler = made(options);
    update_times(&scaler, true, 1);
    assert_true(amp_dynamic_scaler_scale(&scaler) == 1024 * 0.7f);
    update_times(&scaler, false, 3);
    assert_true(amp_dynamic_scaler_scale(&scaler) == 1024 * 0.7f * 1.5f);
}

static void check_and_update_does_both_in_one(void **state)
{
    struct amp_dynamic_scaler scaler = made(small());
    float data[] = {NAN};
    struct amp_tensor grad = {"g", data, 1, AMP_F32};
    bool skip = false;
    assert_int_equal(amp_dynamic_scaler_check_and_update(&scaler, &grad, 1, &skip, &error), 0);
    assert_true(skip && amp_dynamic_scaler_scale(&scaler) == 512);
    data[0] = 0;
    assert_int_equal(amp_dynamic_scaler_check_and_update(&scaler, &grad, 1, &skip, &error), 0);
    assert_true(!skip && amp_dynamic_scaler_scale(&scaler) == 512);
    assert_int_equal(amp_dynamic_scaler_steps_since_overflow(&scaler), 1);
}

static void a_failed_check_moves_nothing(void **state)
{
    struct amp_dynamic_scaler scaler = made(small());
    double wide[1] = {0};
    struct amp_tensor bad = {"wide", wide, 1, AMP_F64};
    bool skip = true;
    assert_int_equal(amp_dynamic_scaler_check_and_update(&scaler, &bad, 1, &skip, &error), AMP_EINVAL);
    assert_int_equal(amp_dynamic_scaler_check_and_update(&scaler, NULL, 1, &skip, &error), AMP_EINVAL);
    assert_int_equal(amp_dynamic_scaler_scale_loss(&scaler, NULL, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_dynamic_scaler_unscale(&scaler, NULL, 1, NULL, NULL, &error), AMP_EINVAL);
    assert_int_equal(scaler.state.attempted, 0);
    assert_true(skip);
}

/* ---- disabled ---- */

static void a_disabled_scaler_passes_everything_through(void **state)
{
    struct amp_dynamic_scaler scaler = disabled();
    float data[] = {5, INFINITY}, out[2] = {0};
    struct amp_tensor in = {"g", data, 2, AMP_F32}, to = {"g", out, 2, AMP_F32};
    bool overflow = true, skip = true;
    assert_false(amp_dynamic_scaler_enabled(&scaler));
    assert_int_equal(amp_dynamic_scaler_scale_loss(&scaler, &in, &to, &error), 0);
    assert_memory_equal(out, data, sizeof data);
    out[0] = 0;
    assert_int_equal(amp_dynamic_scaler_unscale(&scaler, &in, 1, &to, &overflow, &error), 0);
    assert_memory_equal(out, data, sizeof data);
    assert_false(overflow);
    assert_int_equal(amp_dynamic_scaler_unscale(&scaler, &in, 1, &in, NULL, &error), 0);
    assert_int_equal(amp_dynamic_scaler_unscale(&scaler, NULL, 1, &in, &overflow, &error), AMP_EINVAL);
    assert_int_equal(amp_dynamic_scaler_check_and_update(&scaler, &in, 1, &skip, &error), 0);
    assert_false(skip);
    assert_false(amp_dynamic_scaler_update(&scaler, true));
    assert_true(amp_dynamic_scaler_scale(&scaler) == 1024);
    assert_int_equal(amp_dynamic_scaler_total_overflows(&scaler), 0);
    struct amp_tensor wide = {"wide", data, 1, AMP_F64};
    assert_int_equal(amp_dynamic_scaler_check_overflow(&scaler, &wide, 1, &overflow, &error), AMP_EINVAL);
}

/* ---- statistics and reset ---- */

static void statistics_tell_how_the_scaler_behaves(void **state)
{
    struct amp_dynamic_scaler scaler = made(small());
    update_times(&scaler, true, 1);
    update_times(&scaler, false, 2);
    update_times(&scaler, true, 1);
    struct amp_dynamic_stats stats = amp_dynamic_scaler_stats(&scaler);
    assert_true(stats.current_scale == 256 && stats.is_stable);
    assert_int_equal(stats.steps_since_last_overflow, 0);
    assert_int_equal(stats.consecutive_overflows, 1);
    assert_int_equal(stats.total_overflows, 2);
    assert_int_equal(stats.growth_interval, 3);
    assert_int_equal(stats.max_consecutive_overflows, 2);
    update_times(&scaler, true, 1);
    assert_false(amp_dynamic_scaler_stats(&scaler).is_stable);
    update_times(&scaler, false, 1);
    stats = amp_dynamic_scaler_stats(&scaler);
    assert_true(stats.is_stable);
    assert_int_equal(stats.steps_since_last_overflow, 1);
}

static void statistics_have_the_specified_text_form(void **state)
{
    static const char unstable[] =
        "Scale: 128.00, Steps since overflow: 0, Consecutive overflows: 3, Total overflows: 3, Stable: False";
    struct amp_dynamic_scaler scaler = made(small());
    struct amp_dynamic_stats stats = amp_dynamic_scaler_stats(&scaler);
    char text[128];
    (void)amp_dynamic_stats_text(&stats, text, sizeof text);
    assert_string_equal(text, "Scale: 1024.00, Steps since overflow: 0, Consecutive overflows: 0, "
                              "Total overflows: 0, Stable: True");
    update_times(&scaler, true, 3);
    stats = amp_dynamic_scaler_stats(&scaler);
    assert_int_equal(amp_dynamic_stats_text(&stats, text, sizeof text), sizeof unstable - 1);
    assert_string_equal(text, unstable);
    assert_int_equal(amp_dynamic_stats_text(&stats, text, 6), sizeof unstable - 1);
    assert_string_equal(text, "Scale");
    assert_int_equal(amp_dynamic_stats_text(&stats, NULL, 0), sizeof unstable - 1);
}

static void reset_gives_the_initial_state_back(void **state)
{
    struct amp_dynamic_scaler fresh = made(small()), scaler = made(small());
    update_times(&scaler, true, 2);
    update_times(&scaler, false, 4);
    amp_dynamic_scaler_reset(&scaler);
    assert_true(amp_dynamic_scaler_scale(&scaler) == 1024);
    assert_int_equal(amp_dynamic_scaler_total_overflows(&scaler), 0);
    assert_int_equal(amp_dynamic_scaler_consecutive_overflows(&scaler), 0);
    assert_int_equal(amp_dynamic_scaler_steps_since_overflow(&scaler), 0);
    assert_int_equal(scaler.state.attempted, fresh.state.attempted);
}

/* ---- save and load ---- */

/* A scaler with a history: growth, overflows, and a clean run that is not over. */
static struct amp_dynamic_scaler used(void)
{
    struct amp_dynamic_scaler scaler = made(small());
    update_times(&scaler, false, 4);
    update_times(&scaler, true, 3);
    update_times(&scaler, false, 5);
    return scaler;
}

static struct amp_dynamic_saved saved_of(const struct amp_dynamic_scaler *scaler)
{
    struct amp_dynamic_saved saved;
    assert_int_equal(amp_dynamic_scaler_save(scaler, &saved, &error), 0);
    return saved;
}

static void a_loaded_scaler_goes_on_as_the_saved_one(void **state)
{
    struct amp_dynamic_scaler first = used(), second = made(small());
    uint64_t random = 7;
    for (unsigned i = 0; i < 1000; i++) {
        struct amp_dynamic_saved saved = saved_of(&first);
        assert_int_equal(amp_dynamic_scaler_load(&second, &saved, &error), 0);
        random = (random * 1664525 + 1013904223) & UINT32_MAX;
        bool overflow = random >> 30 == 0;
        (void)amp_dynamic_scaler_update(&first, overflow);
        (void)amp_dynamic_scaler_update(&second, overflow);
        struct amp_dynamic_saved a = saved_of(&first), b = saved_of(&second);
        assert_memory_equal(&a, &b, sizeof a);
        assert_int_equal(second.state.hysteresis_left, first.state.hysteresis_left);
    }
}

static void a_saved_state_with_any_field_damaged_is_refused_by_its_name(void **state)
{
    struct amp_dynamic_scaler good = used(), scaler = made(small());
    struct {
        struct amp_dynamic_saved saved;
        const char *field;
    } rows[21];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        rows[i].saved = saved_of(&good);
    rows[0].saved.version = 0, rows[0].field = "saved.version is 0";
    rows[1].saved.version = 2, rows[1].field = "saved.version is 2";
    rows[2].saved.scale = NAN, rows[2].field = "saved.scale is nan";
    rows[3].saved.scale = INFINITY, rows[3].field = "saved.scale is inf";
    rows[4].saved.scale = 0, rows[4].field = "saved.scale is 0";
    rows[5].saved.scale = -1024, rows[5].field = "saved.scale is -1024";
    rows[6].saved.scale = 8192, rows[6].field = "saved.scale is 8192";
    rows[7].saved.growth_tracker = 3, rows[7].field = "saved.growth_tracker is 3";
    rows[8].saved.steps_since_overflow = 1, rows[8].field = "saved.growth_tracker is 2";
    rows[9].saved.consecutive_overflows = 4, rows[9].field = "saved.consecutive_overflows is 4";
    rows[10].saved.consecutive_overflows = 1, rows[10].field = "saved.steps_since_overflow is 5";
    rows[11].saved.steps_since_overflow = 10, rows[11].field = "saved.steps_since_overflow is 10";
    rows[12].saved.total_overflows = 4, rows[12].field = "saved.total_overflows is 4";
    rows[13].saved.skipped = 4, rows[13].field = "saved.skipped is 4";
    rows[14].saved.applied = 13, rows[14].field = "saved.applied is 13";
    rows[15].saved.attempted = 11, rows[15].field = "saved.skipped is 3";
    rows[16].saved.scale_id = 0, rows[16].field = "saved.scale_id is 0";
    memset(&rows[17].saved, 0xff, sizeof rows[17].saved), rows[17].field = "saved.version is 4294967295";
    rows[18].saved.total_overflows = 2, rows[18].field = "saved.total_overflows is 2";
    rows[19].saved.scale_id = 14, rows[19].field = "saved.scale_id is 14";
    rows[20].saved.attempted = UINT64_MAX, rows[20].saved.applied = UINT64_MAX - 3; /* the next step would wrap */
    rows[20].field = "saved.attempted is 18446744073709551615";
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(amp_dynamic_scaler_load(&scaler, &rows[i].saved, &error), AMP_EINVAL);
        if (strstr(error.text, rows[i].field) == NULL || strstr(error.text, " load ") == NULL)
            fail_msg("row %zu: %s", i, error.text);
        assert_true(amp_dynamic_scaler_scale(&scaler) == 1024 && scaler.state.attempted == 0);
    }
    struct amp_dynamic_saved saved = saved_of(&good);
    assert_int_equal(amp_dynamic_scaler_load(&scaler, &saved, &error), 0);
}

static void a_disabled_scaler_is_saved_and_loaded_too(void **state)
{
    struct amp_dynamic_scaler first = used(), off = disabled();
    struct amp_dynamic_saved saved = saved_of(&first), again;
    assert_int_equal(amp_dynamic_scaler_load(&off, &saved, &error), 0);
    again = saved_of(&off);
    assert_memory_equal(&again, &saved, sizeof saved);
}

/* The server's record moves by the same machine: the two agree after any sequence of steps. */
static void the_scaler_follows_the_servers_machine(void **state)
{
    struct amp_dynamic_scaler scaler = made(small());
    struct amp_scaler_config config = {.init_scale = 1024, .growth_interval = 3, .min_scale = 64, .max_scale = 4096};
    struct amp_scaler_state server;
    amp_scaler_config_defaults(&config);
    amp_scaler_init(&config, &server);
    uint64_t random = 1;
    for (unsigned i = 0; i < 1000; i++) {
        random = (random * 1664525 + 1013904223) & UINT32_MAX;
        bool overflow = random >> 30 == 0;
        (void)amp_dynamic_scaler_update(&scaler, overflow);
        amp_scaler_update(&config, &server, overflow ? AMP_SCALER_OVERFLOW : AMP_SCALER_CLEAN);
        assert_true(scaler.state.scale == server.scale && scaler.state.scale_id == server.scale_id);
        assert_int_equal(scaler.state.growth_tracker, server.growth_tracker);
    }
}

static void the_interface_does_what_the_scaler_does(void **state)
{
    struct amp_dynamic_scaler scaler = made(small());
    struct amp_loss_scaler any = amp_dynamic_scaler_interface(&scaler);
    float data[] = {1};
    struct amp_tensor tensor = {"g", data, 1, AMP_F32};
    bool overflow = true;
    assert_true(any.ops->enabled(any.scaler));
    assert_int_equal(any.ops->scale_loss(any.scaler, &tensor, &tensor, &error), 0);
    assert_true(data[0] == 1024);
    assert_int_equal(any.ops->check_overflow(any.scaler, &tensor, 1, &overflow, &error), 0);
    assert_false(overflow);
    assert_int_equal(any.ops->unscale(any.scaler, &tensor, 1, &tensor, &overflow, &error), 0);
    assert_true(data[0] == 1);
    assert_true(any.ops->update(any.scaler, true));
    assert_true(any.ops->scale(any.scaler) == 512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_scaler_without_options_has_those_for_fp16),
        cmocka_unit_test(a_new_scaler_has_the_initial_scale_and_no_counts),
        cmocka_unit_test(options_out_of_range_are_refused_by_field),
        cmocka_unit_test(null_options_scaler_and_kernels_are_refused),
        cmocka_unit_test(loss_is_scaled_and_gradients_are_unscaled_by_the_present_scale),
        cmocka_unit_test(overflow_is_detected_in_nan_and_inf),
        cmocka_unit_test(empty_dictionaries_have_no_overflow),
        cmocka_unit_test(overflow_backs_off_skips_and_begins_the_count_anew),
        cmocka_unit_test(success_grows_the_scale_at_the_interval_alone),
        cmocka_unit_test(the_scale_stays_within_min_and_max),
        cmocka_unit_test(factors_that_are_not_powers_of_two_are_kept),
        cmocka_unit_test(check_and_update_does_both_in_one),
        cmocka_unit_test(a_failed_check_moves_nothing),
        cmocka_unit_test(a_disabled_scaler_passes_everything_through),
        cmocka_unit_test(statistics_tell_how_the_scaler_behaves),
        cmocka_unit_test(statistics_have_the_specified_text_form),
        cmocka_unit_test(reset_gives_the_initial_state_back),
        cmocka_unit_test(a_loaded_scaler_goes_on_as_the_saved_one),
        cmocka_unit_test(a_saved_state_with_any_field_damaged_is_refused_by_its_name),
        cmocka_unit_test(a_disabled_scaler_is_saved_and_loaded_too),
        cmocka_unit_test(the_scaler_follows_the_servers_machine),
        cmocka_unit_test(the_interface_does_what_the_scaler_does),
    };
    return cmocka_run_group_tests(tests, pick_kernels, NULL);
}
