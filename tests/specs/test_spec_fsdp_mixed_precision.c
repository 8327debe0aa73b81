/* The specification of FSDP mixed precision, section by section: its configuration, manager and integration. */
#include "amp/fsdp.h"
#include "tests/specs/spec.h"

#include <float.h>

static struct amp_fsdp group; /* the FSDP wrapper of the specification: this process of two */

static int setup(void **state)
{
    int rc = spec_setup(state);
    group = (struct amp_fsdp){.kernels = kernels, .rank = 0, .world_size = 2};
    return rc;
}

static struct amp_fsdp_manager manager_with(struct amp_fsdp_config config)
{
    struct amp_fsdp_manager manager;
    assert_int_equal(amp_fsdp_manager_init(&manager, &config, &group, &fault), 0);
    return manager;
}

/* From 16 within [1, 64], times 2 after 3 steps, half at overflow. */
static struct amp_fsdp_config small_config(void)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    config.initial_loss_scale = 16;
    config.max_loss_scale = 64;
    config.loss_scale_steps = 3;
    return config;
}

static struct amp_fsdp_manager small_manager(void)
{
    return manager_with(small_config());
}

static struct amp_fsdp_manager manager_without_loss_scaling(void)
{
    struct amp_fsdp_config config = small_config();
    config.use_loss_scaling = false;
    return manager_with(config);
}

static struct amp_fsdp_integration default_integration(void)
{
    struct amp_fsdp_integration integration;
    assert_int_equal(amp_fsdp_integration_init(&integration, &group, NULL, &fault), 0);
    return integration;
}

static void refused_config(struct amp_fsdp_config config, const char *word)
{
    spec_refused(amp_fsdp_config_check(&config, &fault), AMP_EINVAL, word);
}

/* What CheckOverflow says of a dictionary with {1} and {2, value}. */
static bool overflows(struct amp_fsdp_manager *manager, float value)
{
    float first[] = {1}, second[] = {2, value};
    struct amp_tensor grads[] = {spec_f32("a", first, 1), spec_f32("b", second, 2)};
    bool found = false;
    assert_int_equal(amp_fsdp_check_overflow(manager, grads, 2, &found, &fault), 0);
    return found;
}

static void clean_steps(struct amp_fsdp_manager *manager, unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        assert_false(overflows(manager, 1));
}

static void overflow(struct amp_fsdp_manager *manager, unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        assert_true(overflows(manager, INFINITY));
}

static float scale_of(const struct amp_fsdp_manager *manager)
{
    return amp_fsdp_loss_scale(manager);
}

static float scaled(struct amp_fsdp_manager *manager, float loss)
{
    float out = -77;
    struct amp_tensor from = spec_f32("loss", &loss, 1);
    struct amp_tensor to = spec_f32("loss", &out, 1);
    assert_int_equal(amp_fsdp_scale_loss(manager, &from, &to, &fault), 0);
    return out;
}

/* A unit that has gathered {1.5, -2, 1.001} of f32 and computed a gradient {0.5, 4} of `gradient_dtype`. */
static void fill(struct amp_fsdp_unit *unit, enum amp_dtype gradient_dtype)
{
    struct spec_memory parameter, gradient;
    struct amp_tensor p = spec_tensor(&parameter, AMP_F32, (float[]){1.5f, -2, 1.001f}, 3);
    struct amp_tensor g = spec_tensor(&gradient, gradient_dtype, (float[]){0.5f, 4}, 2);
    amp_fsdp_unit_init(unit, "w");
    assert_int_equal(amp_fsdp_unit_set_parameter(unit, &p, &fault), 0);
    assert_int_equal(amp_fsdp_unit_set_gradient(unit, &g, &fault), 0);
}

/* ---- 1. FSDPMixedPrecisionConfig: defaults ---- */

static void mixed_precision_is_enabled_by_default(void **state)
{
    assert_true(amp_fsdp_config_default().enabled);
}

static void the_default_forward_dtype_is_fp16(void **state)
{
    assert_int_equal(amp_fsdp_config_default().forward_dtype, AMP_F16);
}

static void the_default_backward_dtype_is_fp32(void **state)
{
    assert_int_equal(amp_fsdp_config_default().backward_dtype, AMP_F32);
}

static void loss_scaling_is_used_by_default(void **state)
{
    assert_true(amp_fsdp_config_default().use_loss_scaling);
}

static void the_default_scales_are_two_within_one_and_65536(void **state)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    assert_true(config.initial_loss_scale == 2);
    assert_true(config.min_loss_scale == 1);
    assert_true(config.max_loss_scale == 65536);
}

static void the_default_factors_are_two_and_a_half_and_the_interval_2000(void **state)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    assert_true(config.loss_scale_growth_factor == 2);
    assert_true(config.loss_scale_backoff_factor == 0.5f);
    assert_int_equal(config.loss_scale_steps, 2000);
}

/* ---- 1. Validate ---- */

static void the_default_configuration_is_valid(void **state)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    assert_int_equal(amp_fsdp_config_check(&config, &fault), 0);
}

static void the_forward_dtype_is_fp16_or_bf16_and_nothing_else(void **state)
{
    static const enum amp_dtype others[] = {AMP_F32, AMP_F64, AMP_DTYPE_NONE};
    struct amp_fsdp_config config = amp_fsdp_config_default();
    config.forward_dtype = AMP_BF16;
    assert_int_equal(amp_fsdp_config_check(&config, &fault), 0);
    for (size_t i = 0; i < COUNT(others); i++) {
        config.forward_dtype = others[i];
        refused_config(config, "forward_dtype");
    }
}

static void the_backward_dtype_is_fp32_and_nothing_else(void **state)
{
    static const enum amp_dtype others[] = {AMP_F16, AMP_BF16, AMP_F64, AMP_DTYPE_NONE};
    struct amp_fsdp_config config = amp_fsdp_config_default();
    for (size_t i = 0; i < COUNT(others); i++) {
        config.backward_dtype = others[i];
        refused_config(config, "backward_dtype");
    }
}

static void an_initial_scale_below_the_minimum_is_refused(void **state)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    config.initial_loss_scale = 0.5f;
    refused_config(config, "initial_loss_scale");
}

static void an_initial_scale_above_the_maximum_is_refused(void **state)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    config.initial_loss_scale = 131072;
    refused_config(config, "initial_loss_scale");
}

static void an_initial_scale_at_either_bound_is_valid(void **state)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    config.initial_loss_scale = config.min_loss_scale;
    assert_int_equal(amp_fsdp_config_check(&config, &fault), 0);
    config.initial_loss_scale = config.max_loss_scale;
    assert_int_equal(amp_fsdp_config_check(&config, &fault), 0);
}

/* ---- 2. FSDPMixedPrecisionManager: constructor ---- */

static void a_manager_needs_a_configuration_and_a_group(void **state)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    struct amp_fsdp_manager manager;
    spec_refused(amp_fsdp_manager_init(&manager, NULL, &group, &fault), AMP_EINVAL, "config");
    spec_refused(amp_fsdp_manager_init(&manager, &config, NULL, &fault), AMP_EINVAL, "fsdp");
}

static void a_manager_refuses_a_configuration_that_is_not_valid(void **state)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    struct amp_fsdp_manager manager;
    config.backward_dtype = AMP_F16;
    spec_refused(amp_fsdp_manager_init(&manager, &config, &group, &fault), AMP_EINVAL, "backward_dtype");
}

static void a_manager_begins_with_the_initial_scale(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    assert_true(scale_of(&manager) == 16);
    manager = manager_with(amp_fsdp_config_default());
    assert_true(scale_of(&manager) == 2);
}

/* ---- 2. ConvertToMixedPrecision, CastTensor ---- */

static void a_gathered_parameter_is_converted_to_the_forward_dtype(void **state)
{
    static const enum amp_dtype forward[] = {AMP_F16, AMP_BF16};
    for (size_t i = 0; i < COUNT(forward); i++) {
        struct amp_fsdp_config config = amp_fsdp_config_default();
        config.forward_dtype = forward[i];
        struct amp_fsdp_manager manager = manager_with(config);
        float values[] = {1.5f, -2, 0};
        struct spec_memory buffer;
        struct amp_tensor parameter = spec_f32("w", values, 3), out;
        assert_int_equal(
            amp_fsdp_to_mixed_precision(&manager, &parameter, buffer.words, sizeof buffer.words, &out, &fault), 0);
        assert_int_equal(out.dtype, forward[i]);
        assert_int_equal(out.count, 3);
        assert_true(spec_holds(&out, values));
    }
}

static void the_two_forward_dtypes_round_and_reach_differently(void **state)
{
    float values[] = {1.001f, 1e6f}; /* the second is beyond fp16 */
    struct amp_tensor parameter = spec_f32("w", values, 2), out;
    struct spec_memory buffer;
    struct amp_fsdp_config config = amp_fsdp_config_default();
    struct amp_fsdp_manager manager = manager_with(config);
    assert_int_equal(amp_fsdp_to_mixed_precision(&manager, &parameter, buffer.words, sizeof buffer.words, &out, &fault),
                     0);
    assert_true(spec_holds(&out, (float[]){1.0009765625f, INFINITY}));
    config.forward_dtype = AMP_BF16;
    manager = manager_with(config);
    assert_int_equal(amp_fsdp_to_mixed_precision(&manager, &parameter, buffer.words, sizeof buffer.words, &out, &fault),
                     0);
    assert_true(spec_holds(&out, (float[]){1, 999424}));
}

static void a_converted_parameter_is_a_new_tensor_and_the_old_one_is_kept(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    float values[] = {1.001f};
    struct spec_memory buffer;
    struct amp_tensor parameter = spec_f32("w", values, 1), out;
    assert_int_equal(amp_fsdp_to_mixed_precision(&manager, &parameter, buffer.words, sizeof buffer.words, &out, &fault),
                     0);
    assert_ptr_not_equal(out.data, values);
    assert_true(values[0] == 1.001f && parameter.dtype == AMP_F32);
}

static void a_tensor_of_the_target_dtype_is_returned_itself(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    struct spec_memory memory;
    struct amp_tensor low = spec_tensor(&memory, AMP_F16, (float[]){1.5f}, 1), out;
    assert_int_equal(amp_fsdp_to_mixed_precision(&manager, &low, NULL, 0, &out, &fault), 0);
    assert_ptr_equal(out.data, memory.words);
    float values[] = {1.5f};
    struct amp_tensor full = spec_f32("g", values, 1);
    assert_int_equal(amp_fsdp_gradient_to_fp32(&manager, &full, NULL, 0, &out, &fault), 0);
    assert_ptr_equal(out.data, values);
}

static void converting_a_null_parameter_is_refused(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    struct spec_memory buffer;
    struct amp_tensor null = spec_null("w"), out;
    spec_refused(amp_fsdp_to_mixed_precision(&manager, NULL, buffer.words, sizeof buffer.words, &out, &fault),
                 AMP_EINVAL, "");
    spec_refused(amp_fsdp_to_mixed_precision(&manager, &null, buffer.words, sizeof buffer.words, &out, &fault),
                 AMP_EINVAL, "");
}

/* ---- 2. ConvertGradientToFP32 ---- */

static void a_low_precision_gradient_is_converted_to_fp32_without_loss(void **state)
{
    static const enum amp_dtype low[] = {AMP_F16, AMP_BF16};
    struct amp_fsdp_manager manager = small_manager();
    for (size_t i = 0; i < COUNT(low); i++) {
        struct spec_memory memory, buffer;
        struct amp_tensor gradient = spec_tensor(&memory, low[i], (float[]){0.1f, -3, 1e-6f}, 3), out;
        assert_int_equal(
            amp_fsdp_gradient_to_fp32(&manager, &gradient, buffer.words, sizeof buffer.words, &out, &fault), 0);
        assert_int_equal(out.dtype, AMP_F32);
        for (size_t j = 0; j < 3; j++)
            assert_true(spec_at(&out, j) == spec_at(&gradient, j));
    }
}

static void inf_and_nan_stay_what_they_are_in_fp32(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    struct spec_memory memory, buffer;
    struct amp_tensor gradient = spec_tensor(&memory, AMP_F16, (float[]){INFINITY, -INFINITY, NAN}, 3), out;
    assert_int_equal(amp_fsdp_gradient_to_fp32(&manager, &gradient, buffer.words, sizeof buffer.words, &out, &fault),
                     0);
    assert_true(spec_at(&out, 0) == INFINITY && spec_at(&out, 1) == -INFINITY && isnan(spec_at(&out, 2)));
}

static void converting_a_null_gradient_is_refused(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    struct spec_memory buffer;
    struct amp_tensor null = spec_null("g"), out;
    spec_refused(amp_fsdp_gradient_to_fp32(&manager, NULL, buffer.words, sizeof buffer.words, &out, &fault), AMP_EINVAL,
                 "");
    spec_refused(amp_fsdp_gradient_to_fp32(&manager, &null, buffer.words, sizeof buffer.words, &out, &fault),
                 AMP_EINVAL, "");
}

/* ---- 2. ScaleLoss ---- */

static void scale_loss_multiplies_every_element_by_the_current_scale(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    float values[] = {0.5f, -3, 0}, out[3];
    struct amp_tensor loss = spec_f32("loss", values, 3);
    struct amp_tensor to = spec_f32("loss", out, 3);
    assert_int_equal(amp_fsdp_scale_loss(&manager, &loss, &to, &fault), 0);
    assert_true(spec_holds(&to, (float[]){8, -48, 0}));
    assert_true(values[0] == 0.5f);
}

static void scale_loss_follows_the_scale(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    overflow(&manager, 1);
    assert_true(scaled(&manager, 1) == 8);
}

static void without_loss_scaling_the_loss_is_as_it_was(void **state)
{
    struct amp_fsdp_manager manager = manager_without_loss_scaling();
    assert_true(scaled(&manager, 0.731f) == 0.731f);
}

/* ---- 2. CheckOverflow: NaN or Inf; back off, or grow after the steps ---- */

static void check_overflow_detects_nan_and_inf(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct amp_fsdp_manager manager = small_manager();
        assert_true(overflows(&manager, bad[i]));
    }
}

static void check_overflow_takes_no_finite_gradient_for_an_overflow(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    assert_false(overflows(&manager, FLT_MAX));
    assert_false(overflows(&manager, 0));
}

static void check_overflow_detects_both_in_low_precision_too(void **state)
{
    static const enum amp_dtype low[] = {AMP_F16, AMP_BF16};
    for (size_t i = 0; i < COUNT(low); i++) {
        struct amp_fsdp_manager manager = small_manager();
        struct spec_memory memory;
        struct amp_tensor gradient = spec_tensor(&memory, low[i], (float[]){1, NAN}, 2);
        bool found = false;
        assert_int_equal(amp_fsdp_check_overflow(&manager, &gradient, 1, &found, &fault), 0);
        assert_true(found);
    }
}

static void a_null_gradient_is_skipped(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    float value = 1;
    struct amp_tensor grads[] = {spec_null("a"), spec_f32("b", &value, 1), spec_null("c")};
    bool found = true;
    assert_int_equal(amp_fsdp_check_overflow(&manager, grads, 3, &found, &fault), 0);
    assert_false(found);
    value = NAN;
    assert_int_equal(amp_fsdp_check_overflow(&manager, grads, 3, &found, &fault), 0);
    assert_true(found);
}

static void no_gradients_are_a_step_without_overflow(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    bool found = true;
    for (unsigned step = 0; step < 3; step++) {
        assert_int_equal(amp_fsdp_check_overflow(&manager, NULL, 0, &found, &fault), 0);
        assert_false(found);
    }
    assert_true(scale_of(&manager) == 32);
}

static void an_overflow_backs_the_scale_off(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    overflow(&manager, 1);
    assert_true(scale_of(&manager) == 8);
    overflow(&manager, 2);
    assert_true(scale_of(&manager) == 2);
}

static void the_scale_never_falls_below_its_minimum(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    overflow(&manager, 50);
    assert_true(scale_of(&manager) == 1);
}

static void the_scale_grows_after_the_steps_without_overflow(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    clean_steps(&manager, 2);
    assert_true(scale_of(&manager) == 16);
    clean_steps(&manager, 1);
    assert_true(scale_of(&manager) == 32);
}

static void growth_begins_the_steps_anew(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    clean_steps(&manager, 5);
    assert_true(scale_of(&manager) == 32);
    clean_steps(&manager, 1);
    assert_true(scale_of(&manager) == 64);
}

static void the_scale_never_rises_above_its_maximum(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    clean_steps(&manager, 100);
    assert_true(scale_of(&manager) == 64);
}

static void an_overflow_begins_the_steps_anew(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    clean_steps(&manager, 2);
    overflow(&manager, 1);
    clean_steps(&manager, 2);
    assert_true(scale_of(&manager) == 8);
    clean_steps(&manager, 1);
    assert_true(scale_of(&manager) == 16);
}

static void by_default_the_scale_grows_after_2000_steps(void **state)
{
    struct amp_fsdp_manager manager = manager_with(amp_fsdp_config_default());
    clean_steps(&manager, 1999);
    assert_true(scale_of(&manager) == 2);
    clean_steps(&manager, 1);
    assert_true(scale_of(&manager) == 4);
}

static void the_factors_of_the_configuration_move_the_scale(void **state)
{
    struct amp_fsdp_config config = small_config();
    config.loss_scale_backoff_factor = 0.3f;
    config.loss_scale_growth_factor = 1.7f;
    struct amp_fsdp_manager manager = manager_with(config);
    overflow(&manager, 1);
    assert_true(scale_of(&manager) == 16 * 0.3f);
    clean_steps(&manager, 3);
    assert_true(scale_of(&manager) == 16 * 0.3f * 1.7f);
}

static void without_loss_scaling_nothing_is_checked_and_nothing_moves(void **state)
{
    struct amp_fsdp_manager manager = manager_without_loss_scaling();
    assert_false(overflows(&manager, NAN));
    clean_steps(&manager, 10);
    assert_true(scale_of(&manager) == 16);
}

/* ---- 2. ResetLossScale, Dispose ---- */

static void reset_gives_the_initial_scale_and_no_steps(void **state)
{
    struct amp_fsdp_manager manager = small_manager();
    overflow(&manager, 2);
    clean_steps(&manager, 2);
    amp_fsdp_reset_loss_scale(&manager);
    assert_true(scale_of(&manager) == 16);
    clean_steps(&manager, 2);
    assert_true(scale_of(&manager) == 16);
    clean_steps(&manager, 1);
    assert_true(scale_of(&manager) == 32);
}

/* ---- 3. FSDPAmpIntegration ---- */

static void an_integration_needs_a_group(void **state)
{
    struct amp_fsdp_integration integration;
    spec_refused(amp_fsdp_integration_init(&integration, NULL, NULL, &fault), AMP_EINVAL, "fsdp");
}

static void an_integration_without_configuration_has_the_defaults(void **state)
{
    struct amp_fsdp_integration integration = default_integration();
    assert_true(scale_of(amp_fsdp_integration_manager(&integration)) == 2);
    assert_int_equal(amp_fsdp_integration_manager(&integration)->config.forward_dtype, AMP_F16);
}

static void an_integration_takes_a_configuration(void **state)
{
    struct amp_fsdp_config config = small_config();
    struct amp_fsdp_integration integration;
    assert_int_equal(amp_fsdp_integration_init(&integration, &group, &config, &fault), 0);
    assert_true(scale_of(amp_fsdp_integration_manager(&integration)) == 16);
    config.forward_dtype = AMP_F32;
    spec_refused(amp_fsdp_integration_init(&integration, &group, &config, &fault), AMP_EINVAL, "forward_dtype");
}

static void apply_mixed_precision_replaces_the_gathered_parameter(void **state)
{
    struct amp_fsdp_integration integration = default_integration();
    struct amp_fsdp_unit unit;
    fill(&unit, AMP_F16);
    assert_int_equal(amp_fsdp_apply_mixed_precision(&integration, &unit, &fault), 0);
    assert_int_equal(unit.gathered_parameter.dtype, AMP_F16);
    assert_true(spec_holds(&unit.gathered_parameter, (float[]){1.5f, -2, 1.0009765625f}));
    amp_fsdp_unit_clear(&unit);
}

static void apply_mixed_precision_twice_is_as_once(void **state)
{
    struct amp_fsdp_integration integration = default_integration();
    struct amp_fsdp_unit unit;
    fill(&unit, AMP_F16);
    assert_int_equal(amp_fsdp_apply_mixed_precision(&integration, &unit, &fault), 0);
    assert_int_equal(amp_fsdp_apply_mixed_precision(&integration, &unit, &fault), 0);
    assert_true(spec_holds(&unit.gathered_parameter, (float[]){1.5f, -2, 1.0009765625f}));
    amp_fsdp_unit_clear(&unit);
}

static void apply_mixed_precision_before_the_gather_is_an_error_of_state(void **state)
{
    struct amp_fsdp_integration integration = default_integration();
    struct amp_fsdp_unit unit;
    amp_fsdp_unit_init(&unit, "w");
    spec_refused(amp_fsdp_apply_mixed_precision(&integration, &unit, &fault), AMP_ESTATE, "gathered");
    spec_refused(amp_fsdp_apply_mixed_precision(&integration, NULL, &fault), AMP_EINVAL, "unit");
}

static void apply_gradient_fp32_replaces_the_local_gradient(void **state)
{
    struct amp_fsdp_integration integration = default_integration();
    static const enum amp_dtype low[] = {AMP_F16, AMP_BF16, AMP_F32};
    for (size_t i = 0; i < COUNT(low); i++) {
        struct amp_fsdp_unit unit;
        fill(&unit, low[i]);
        assert_int_equal(amp_fsdp_apply_gradient_fp32(&integration, &unit, &fault), 0);
        assert_int_equal(unit.local_gradient.dtype, AMP_F32);
        assert_true(spec_holds(&unit.local_gradient, (float[]){0.5f, 4}));
        amp_fsdp_unit_clear(&unit);
    }
}

static void apply_gradient_fp32_before_backward_is_an_error_of_state(void **state)
{
    struct amp_fsdp_integration integration = default_integration();
    struct amp_fsdp_unit unit;
    amp_fsdp_unit_init(&unit, "w");
    spec_refused(amp_fsdp_apply_gradient_fp32(&integration, &unit, &fault), AMP_ESTATE, "radient");
    spec_refused(amp_fsdp_apply_gradient_fp32(&integration, NULL, &fault), AMP_EINVAL, "unit");
}

static void the_integration_scales_and_checks_by_its_manager(void **state)
{
    struct amp_fsdp_integration integration = default_integration();
    struct amp_fsdp_manager *manager = amp_fsdp_integration_manager(&integration);
    float value = 3;
    struct amp_tensor tensor = spec_f32("t", &value, 1);
    bool found = false;
    assert_int_equal(amp_fsdp_integration_scale_loss(&integration, &tensor, &tensor, &fault), 0);
    assert_true(value == 6);
    value = INFINITY;
    assert_int_equal(amp_fsdp_integration_check_overflow(&integration, &tensor, 1, &found, &fault), 0);
    assert_true(found);
    assert_true(scale_of(manager) == 1);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixed_precision_is_enabled_by_default),
        cmocka_unit_test(the_default_forward_dtype_is_fp16),
        cmocka_unit_test(the_default_backward_dtype_is_fp32),
        cmocka_unit_test(loss_scaling_is_used_by_default),
        cmocka_unit_test(the_default_scales_are_two_within_one_and_65536),
        cmocka_unit_test(the_default_factors_are_two_and_a_half_and_the_interval_2000),
        cmocka_unit_test(the_default_configuration_is_valid),
        cmocka_unit_test(the_forward_dtype_is_fp16_or_bf16_and_nothing_else),
        cmocka_unit_test(the_backward_dtype_is_fp32_and_nothing_else),
        cmocka_unit_test(an_initial_scale_below_the_minimum_is_refused),
        cmocka_unit_test(an_initial_scale_above_the_maximum_is_refused),
        cmocka_unit_test(an_initial_scale_at_either_bound_is_valid),
        cmocka_unit_test(a_manager_needs_a_configuration_and_a_group),
        cmocka_unit_test(a_manager_refuses_a_configuration_that_is_not_valid),
        cmocka_unit_test(a_manager_begins_with_the_initial_scale),
        cmocka_unit_test(a_gathered_parameter_is_converted_to_the_forward_dtype),
        cmocka_unit_test(the_two_forward_dtypes_round_and_reach_differently),
        cmocka_unit_test(a_converted_parameter_is_a_new_tensor_and_the_old_one_is_kept),
        cmocka_unit_test(a_tensor_of_the_target_dtype_is_returned_itself),
        cmocka_unit_test(converting_a_null_parameter_is_refused),
        cmocka_unit_test(a_low_precision_gradient_is_converted_to_fp32_without_loss),
        cmocka_unit_test(inf_and_nan_stay_what_they_are_in_fp32),
        cmocka_unit_test(converting_a_null_gradient_is_refused),
        cmocka_unit_test(scale_loss_multiplies_every_element_by_the_current_scale),
        cmocka_unit_test(scale_loss_follows_the_scale),
        cmocka_unit_test(without_loss_scaling_the_loss_is_as_it_was),
        cmocka_unit_test(check_overflow_detects_nan_and_inf),
        cmocka_unit_test(check_overflow_takes_no_finite_gradient_for_an_overflow),
        cmocka_unit_test(check_overflow_detects_both_in_low_precision_too),
        cmocka_unit_test(a_null_gradient_is_skipped),
        cmocka_unit_test(no_gradients_are_a_step_without_overflow),
        cmocka_unit_test(an_overflow_backs_the_scale_off),
        cmocka_unit_test(the_scale_never_falls_below_its_minimum),
        cmocka_unit_test(the_scale_grows_after_the_steps_without_overflow),
        cmocka_unit_test(growth_begins_the_steps_anew),
        cmocka_unit_test(the_scale_never_rises_above_its_maximum),
        cmocka_unit_test(an_overflow_begins_the_steps_anew),
        cmocka_unit_test(by_default_the_scale_grows_after_2000_steps),
        cmocka_unit_test(the_factors_of_the_configuration_move_the_scale),
        cmocka_unit_test(without_loss_scaling_nothing_is_checked_and_nothing_moves),
        cmocka_unit_test(reset_gives_the_initial_scale_and_no_steps),
        cmocka_unit_test(an_integration_needs_a_group),
        cmocka_unit_test(an_integration_without_configuration_has_the_defaults),
        cmocka_unit_test(an_integration_takes_a_configuration),
        cmocka_unit_test(apply_mixed_precision_replaces_the_gathered_parameter),
        cmocka_unit_test(apply_mixed_precision_twice_is_as_once),
        cmocka_unit_test(apply_mixed_precision_before_the_gather_is_an_error_of_state),
        cmocka_unit_test(apply_gradient_fp32_replaces_the_local_gradient),
        cmocka_unit_test(apply_gradient_fp32_before_backward_is_an_error_of_state),
        cmocka_unit_test(the_integration_scales_and_checks_by_its_manager),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
