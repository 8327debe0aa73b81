/* FSDP mixed precision: config, manager, integration, their state errors; every case that the specification lists. */
#include "amp/cpu.h"
#include "amp/fsdp.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct amp_fsdp fsdp = {.rank = 1, .world_size = 4};
static struct amp_error error;

static int pick_kernels(void **state)
{
    return amp_cpu_select(NULL, &fsdp.kernels, &error);
}

static struct amp_fsdp_manager made(struct amp_fsdp_config config)
{
    struct amp_fsdp_manager manager;
    assert_int_equal(amp_fsdp_manager_init(&manager, &config, &fsdp, &error), 0);
    return manager;
}

static struct amp_fsdp_config with_forward(enum amp_dtype dtype)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    config.forward_dtype = dtype;
    return config;
}

static const enum amp_dtype low_dtypes[] = {AMP_F16, AMP_BF16};

/* ---- config ---- */

static void config_has_the_specified_defaults(void **state)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    assert_true(config.enabled && config.use_loss_scaling);
    assert_int_equal(config.forward_dtype, AMP_F16);
    assert_int_equal(config.backward_dtype, AMP_F32);
    assert_true(config.initial_loss_scale == 2 && config.min_loss_scale == 1 && config.max_loss_scale == 65536);
    assert_true(config.loss_scale_growth_factor == 2 && config.loss_scale_backoff_factor == 0.5f);
    assert_int_equal(config.loss_scale_steps, 2000);
    assert_int_equal(amp_fsdp_config_check(&config, &error), 0);
}

static void config_refuses_values_out_of_range_by_field(void **state)
{
    struct {
        struct amp_fsdp_config config;
        const char *field;
    } rows[13];
    for (size_t i = 0; i < 13; i++)
        rows[i].config = amp_fsdp_config_default();
    rows[0].config.forward_dtype = AMP_F32, rows[0].field = "forward_dtype";
    rows[1].config.forward_dtype = AMP_DTYPE_NONE, rows[1].field = "forward_dtype";
    rows[2].config.backward_dtype = AMP_F16, rows[2].field = "backward_dtype";
    rows[3].config.initial_loss_scale = 0.5f, rows[3].field = "initial_loss_scale";
    rows[4].config.initial_loss_scale = 65537, rows[4].field = "initial_loss_scale";
    rows[5].config.initial_loss_scale = NAN, rows[5].field = "initial_loss_scale";
    rows[6].config.initial_loss_scale = 0, rows[6].field = "initial_loss_scale";
    rows[7].config.min_loss_scale = -1, rows[7].field = "min_loss_scale";
    rows[8].config.max_loss_scale = INFINITY, rows[8].field = "max_loss_scale";
    rows[9].config.loss_scale_growth_factor = 1, rows[9].field = "loss_scale_growth_factor";
    rows[10].config.loss_scale_backoff_factor = 1, rows[10].field = "loss_scale_backoff_factor";
    rows[11].config.loss_scale_steps = 0, rows[11].field = "loss_scale_steps";
    rows[12].config.min_loss_scale = 0, rows[12].field = "min_loss_scale";
    for (size_t i = 0; i < 13; i++) {
        struct amp_fsdp_manager manager;
        assert_int_equal(amp_fsdp_config_check(&rows[i].config, &error), AMP_EINVAL);
        assert_memory_equal(error.text, rows[i].field, strlen(rows[i].field)); /* no word before or around it */
        assert_null(strstr(error.text, "scaler."));
        assert_int_equal(amp_fsdp_manager_init(&manager, &rows[i].config, &fsdp, &error), AMP_EINVAL);
    }
    assert_int_equal(amp_fsdp_config_check(NULL, &error), AMP_EINVAL);
}

static void manager_and_integration_refuse_null_and_impossible_groups(void **state)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    struct amp_fsdp_manager manager;
    struct amp_fsdp_integration integration;
    struct amp_fsdp no_kernels = {NULL, 0, 1}, no_rank = {fsdp.kernels, 4, 4};
    assert_int_equal(amp_fsdp_manager_init(&manager, NULL, &fsdp, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_manager_init(&manager, &config, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_manager_init(&manager, &config, &no_kernels, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_manager_init(&manager, &config, &no_rank, &error), AMP_EINVAL);
    assert_string_equal(error.text, "rank is 4, must be below world_size, 4");
    assert_int_equal(amp_fsdp_manager_init(NULL, &config, &fsdp, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_integration_init(&integration, NULL, &config, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_integration_init(NULL, &fsdp, NULL, &error), AMP_EINVAL);
}

/* ---- conversions ---- */

static void parameters_are_converted_to_the_forward_dtype(void **state)
{
    for (size_t d = 0; d < 2; d++) {
        struct amp_fsdp_manager manager = made(with_forward(low_dtypes[d]));
        float values[] = {1, -2.5f, 1e-3f, 3e38f, NAN}, back[5], expected[5];
        uint16_t buffer[5], direct[5];
        struct amp_tensor in = {"w", values, 5, AMP_F32}, out;
        assert_int_equal(amp_fsdp_to_mixed_precision(&manager, &in, buffer, sizeof buffer, &out, &error), 0);
        assert_true(out.data == buffer && out.count == 5 && out.dtype == low_dtypes[d]);
        (void)fsdp.kernels->store[low_dtypes[d]](direct, values, 5);
        assert_memory_equal(buffer, direct, sizeof direct);
        fsdp.kernels->load[low_dtypes[d]](back, buffer, 5);
        fsdp.kernels->load[low_dtypes[d]](expected, direct, 5);
        assert_true(back[0] == 1 && back[1] == -2.5f && isnan(back[4]));
        assert_true(isinf(back[3]) == (low_dtypes[d] == AMP_F16));
        assert_true(values[0] == 1);
    }
}

static void gradients_are_converted_back_to_fp32(void **state)
{
    for (size_t d = 0; d < 2; d++) {
        struct amp_fsdp_manager manager = made(with_forward(low_dtypes[d]));
        static const float values[] = {1, -2.5f, 0, INFINITY};
        uint16_t low[4];
        float buffer[4];
        struct amp_tensor in = {"g", low, 4, low_dtypes[d]}, out;
        (void)fsdp.kernels->store[low_dtypes[d]](low, values, 4);
        assert_int_equal(amp_fsdp_gradient_to_fp32(&manager, &in, buffer, sizeof buffer, &out, &error), 0);
        assert_true(out.data == buffer && out.dtype == AMP_F32);
        assert_memory_equal(buffer, values, sizeof values);
    }
}

static void a_tensor_of_the_right_dtype_is_not_copied(void **state)
{
    struct amp_fsdp_manager manager = made(amp_fsdp_config_default());
    uint16_t low[2] = {0};
    float high[2] = {0};
    struct amp_tensor parameter = {"w", low, 2, AMP_F16}, gradient = {"g", high, 2, AMP_F32}, out;
    assert_int_equal(amp_fsdp_to_mixed_precision(&manager, &parameter, NULL, 0, &out, &error), 0);
    assert_ptr_equal(out.data, low);
    assert_int_equal(amp_fsdp_gradient_to_fp32(&manager, &gradient, NULL, 0, &out, &error), 0);
    assert_ptr_equal(out.data, high);
}

static void between_the_low_dtypes_a_parameter_is_rounded_once(void **state)
{
    struct amp_fsdp_manager manager = made(with_forward(AMP_BF16));
    static const float value = 1.0009765625f; /* 1 + 2^-10: fp16 has it, bf16 has 1 */
    float back;
    uint16_t low, buffer;
    struct amp_tensor in = {"w", &low, 1, AMP_F16}, out;
    (void)fsdp.kernels->store[AMP_F16](&low, &value, 1);
    assert_int_equal(amp_fsdp_to_mixed_precision(&manager, &in, &buffer, sizeof buffer, &out, &error), 0);
    fsdp.kernels->load[AMP_BF16](&back, &buffer, 1);
    assert_true(back == 1);
}

static void conversions_refuse_missing_tensors_and_buffers_that_do_not_do(void **state)
{
    struct amp_fsdp_manager manager = made(amp_fsdp_config_default());
    float data[4] = {1, 2, 3, 4};
    uint16_t buffer[4];
    struct amp_tensor in = {"w", data, 4, AMP_F32}, out = {NULL, NULL, 77, AMP_F32};
    struct amp_tensor missing = {"none", NULL, 4, AMP_F32}, wide = {"wide", data, 1, AMP_F64};
    assert_int_equal(amp_fsdp_to_mixed_precision(&manager, NULL, buffer, 8, &out, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_gradient_to_fp32(&manager, NULL, buffer, 8, &out, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_to_mixed_precision(&manager, &missing, buffer, 8, &out, &error), AMP_EINVAL);
    assert_string_equal(error.text, "tensor \"none\" has no data: it must be gathered or computed");
    assert_int_equal(amp_fsdp_to_mixed_precision(&manager, &wide, buffer, 8, &out, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_to_mixed_precision(&manager, &in, NULL, 8, &out, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_to_mixed_precision(&manager, &in, buffer, 7, &out, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_to_mixed_precision(&manager, &in, (char *)buffer + 1, 8, &out, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_to_mixed_precision(&manager, &in, data, 8, &out, &error), AMP_EINVAL);
    assert_true(out.count == 77 && data[0] == 1);
}

static void an_empty_tensor_needs_no_buffer(void **state)
{
    struct amp_fsdp_manager manager = made(amp_fsdp_config_default());
    uint16_t low[2] = {0};
    float high[1] = {0}, loss[1] = {0};
    struct amp_tensor parameter = {"w", high, 0, AMP_F32}, gradient = {"g", low + 1, 0, AMP_F16}, out,
                      none = {"n", loss, 0, AMP_F32};
    assert_int_equal(amp_fsdp_to_mixed_precision(&manager, &parameter, NULL, 0, &out, &error), 0);
    assert_true(out.count == 0 && out.dtype == AMP_F16 && out.data != NULL);
    assert_int_equal(amp_fsdp_gradient_to_fp32(&manager, &gradient, NULL, 0, &out, &error), 0);
    assert_true(out.count == 0 && out.dtype == AMP_F32 && out.data != NULL);
    assert_int_equal(amp_fsdp_scale_loss(&manager, &out, &none, &error), 0); /* it is a tensor like others */
}

/* An element has the same size before and after, but the tensor that the caller keeps would have the wrong dtype. */
static void a_cast_over_the_tensor_itself_is_refused(void **state)
{
    struct amp_fsdp_manager manager = made(with_forward(AMP_BF16));
    uint16_t low[] = {0x3c00, 0xc000};
    struct amp_tensor in = {"w", low, 2, AMP_F16}, out = {NULL, NULL, 77, AMP_F32};
    assert_int_equal(amp_fsdp_to_mixed_precision(&manager, &in, low, sizeof low, &out, &error), AMP_EINVAL);
    assert_string_equal(error.text, "the buffer for the cast of \"w\" is its own memory: give another");
    assert_true(out.count == 77 && low[0] == 0x3c00 && low[1] == 0xc000);
}

/* ---- loss scaling ---- */

static void loss_is_scaled_by_the_present_scale(void **state)
{
    struct amp_fsdp_manager manager = made(amp_fsdp_config_default());
    float loss[] = {3, -1}, scaled[2];
    struct amp_tensor in = {"loss", loss, 2, AMP_F32}, out = {"scaled", scaled, 2, AMP_F32};
    assert_int_equal(amp_fsdp_scale_loss(&manager, &in, &out, &error), 0);
    assert_true(scaled[0] == 6 && scaled[1] == -2 && loss[0] == 3);
    assert_int_equal(amp_fsdp_scale_loss(&manager, NULL, &out, &error), AMP_EINVAL);
}

static void without_loss_scaling_the_loss_is_kept_and_nothing_is_checked(void **state)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    config.use_loss_scaling = false;
    struct amp_fsdp_manager manager = made(config);
    float data[] = {3, NAN}, out[2] = {0};
    struct amp_tensor in = {"g", data, 2, AMP_F32}, to = {"g", out, 2, AMP_F32};
    bool overflow = true;
    assert_int_equal(amp_fsdp_scale_loss(&manager, &in, &to, &error), 0);
    assert_memory_equal(out, data, sizeof data);
    assert_int_equal(amp_fsdp_check_overflow(&manager, &in, 1, &overflow, &error), 0);
    assert_false(overflow);
    assert_true(amp_fsdp_loss_scale(&manager) == 2);
    assert_int_equal(manager.scaler.attempted, 0);
}

static bool overflow_of(struct amp_fsdp_manager *manager, float value)
{
    float data[] = {1, value};
    struct amp_tensor grads[] = {{"none", NULL, 2, AMP_F32}, {"g", data, 2, AMP_F32}, {"none", NULL, 0, AMP_F32}};
    bool overflow;
    assert_int_equal(amp_fsdp_check_overflow(manager, grads, 3, &overflow, &error), 0);
    return overflow;
}

static void overflow_is_detected_for_nan_and_inf_and_halves_the_scale(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 3; i++) {
        struct amp_fsdp_config config = amp_fsdp_config_default();
        config.initial_loss_scale = 1024;
        struct amp_fsdp_manager manager = made(config);
        assert_false(overflow_of(&manager, 1));
        assert_true(amp_fsdp_loss_scale(&manager) == 1024);
        assert_true(overflow_of(&manager, bad[i]));
        assert_true(amp_fsdp_loss_scale(&manager) == 512);
        assert_int_equal(manager.scaler.growth_tracker, 0);
    }
}

static void the_scale_grows_after_its_steps_and_stays_within_its_bounds(void **state)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    config.loss_scale_steps = 2;
    config.max_loss_scale = 8;
    struct amp_fsdp_manager manager = made(config);
    static const float up[] = {2, 4, 4, 8, 8, 8};
    static const float down[] = {4, 2, 1, 1};
    for (size_t i = 0; i < 6; i++) {
        assert_false(overflow_of(&manager, 0));
        assert_true(amp_fsdp_loss_scale(&manager) == up[i]);
    }
    for (size_t i = 0; i < 4; i++) {
        assert_true(overflow_of(&manager, INFINITY));
        assert_true(amp_fsdp_loss_scale(&manager) == down[i]);
    }
}

static void missing_gradients_and_empty_dictionaries_are_no_overflow(void **state)
{
    struct amp_fsdp_manager manager = made(amp_fsdp_config_default());
    struct amp_tensor missing = {"none", NULL, 4, AMP_F32};
    bool overflow = true;
    assert_int_equal(amp_fsdp_check_overflow(&manager, &missing, 1, &overflow, &error), 0);
    assert_false(overflow);
    overflow = true;
    assert_int_equal(amp_fsdp_check_overflow(&manager, NULL, 0, &overflow, &error), 0);
    assert_false(overflow);
    assert_int_equal(manager.scaler.applied, 2);
    assert_int_equal(amp_fsdp_check_overflow(&manager, NULL, 1, &overflow, &error), AMP_EINVAL);
    assert_int_equal(manager.scaler.attempted, 2);
}

static void reset_gives_the_initial_scale_back(void **state)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    config.initial_loss_scale = 256;
    struct amp_fsdp_manager manager = made(config);
    (void)overflow_of(&manager, NAN);
    (void)overflow_of(&manager, 0);
    amp_fsdp_reset_loss_scale(&manager);
    assert_true(amp_fsdp_loss_scale(&manager) == 256);
    assert_int_equal(manager.scaler.growth_tracker, 0);
    assert_int_equal(manager.scaler.attempted, 0);
}

/* ---- with a server ---- */

/* A server's side of a model with one parameter, loss (w - 1.64)^2 / 2, by SGD: it divides by its own scale. */
struct server {
    struct amp_scaler_config config;
    struct amp_scaler_state record;
    float w;
};

static struct server served(void)
{
    struct server server = {.w = 0};
    amp_scaler_config_defaults(&server.config);
    amp_scaler_init(&server.config, &server.record);
    return server;
}

static bool server_step(struct server *server, float pushed)
{
    bool overflow = !isfinite(pushed);
    if (!overflow)
        server->w -= 0.1f * (pushed / server->record.scale);
    amp_scaler_update(&server->config, &server->record, overflow ? AMP_SCALER_OVERFLOW : AMP_SCALER_CLEAN);
    return overflow;
}

static void with_a_server_the_scale_and_the_verdict_are_the_servers(void **state)
{
    for (int kind = 0; kind < 3;
         kind++) { /* the defaults, no loss scaling, disabled: the server divides all the same */
        struct amp_fsdp_config config = amp_fsdp_config_default();
        config.use_loss_scaling = kind != 1;
        config.enabled = kind != 2;
        struct amp_fsdp_manager manager = made(config);
        struct server server = served();
        for (unsigned step = 0; step < 200; step++) {
            assert_int_equal(amp_fsdp_set_server_scale(&manager, server.record.scale, &error), 0);
            float slope = server.w - 1.64f, pushed = step % 50 == 7 ? INFINITY : slope;
            struct amp_tensor g = {"w", &pushed, 1, AMP_F32};
            bool overflow = false;
            assert_int_equal(amp_fsdp_scale_loss(&manager, &g, &g, &error), 0);
            assert_int_equal(amp_fsdp_check_overflow(&manager, &g, 1, &overflow, &error), 0);
            assert_true(server_step(&server, pushed) == overflow || kind > 0);
            assert_true(amp_fsdp_loss_scale(&manager) == server.record.scale || step % 50 == 7);
        }
        assert_true(fabsf(server.w - 1.64f) < 1e-3f && server.record.scale == 0x1p12f);
        assert_true(manager.scaler.attempted == 0 && manager.scaler.scale == 2);
    }
}

static void where_both_would_scale_an_error_says_so(void **state)
{
    struct amp_fsdp_manager manager = made(amp_fsdp_config_default());
    float loss = 1;
    struct amp_tensor tensor = {"loss", &loss, 1, AMP_F32};
    bool overflow;
    assert_int_equal(amp_fsdp_scale_loss(&manager, &tensor, &tensor, &error), 0);
    assert_int_equal(amp_fsdp_set_server_scale(&manager, 65536, &error), AMP_ESTATE);
    assert_non_null(strstr(error.text, "both would scale"));
    assert_non_null(strstr(error.text, "its own loss scale, 2,"));
    assert_non_null(strstr(error.text, "by its own, 65536; call amp_fsdp_set_server_scale after"));
    assert_true(amp_fsdp_loss_scale(&manager) == 2);
    amp_fsdp_reset_loss_scale(&manager);
    assert_int_equal(amp_fsdp_check_overflow(&manager, &tensor, 1, &overflow, &error), 0);
    assert_int_equal(amp_fsdp_set_server_scale(&manager, 65536, &error), AMP_ESTATE);
    amp_fsdp_reset_loss_scale(&manager);
    assert_int_equal(amp_fsdp_set_server_scale(&manager, 65536, &error), 0);
    amp_fsdp_reset_loss_scale(&manager);
    assert_true(amp_fsdp_loss_scale(&manager) == 65536);
}

static void with_a_server_overflows_are_told_whatever_the_config_says(void **state)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    config.use_loss_scaling = false;
    struct amp_fsdp_manager manager = made(config);
    float bad = NAN;
    struct amp_tensor tensor = {"g", &bad, 1, AMP_F32};
    bool overflow = true;
    assert_int_equal(amp_fsdp_check_overflow(&manager, &tensor, 1, &overflow, &error), 0);
    assert_false(overflow);
    assert_int_equal(amp_fsdp_set_server_scale(&manager, 65536, &error), 0);
    assert_int_equal(amp_fsdp_check_overflow(&manager, &tensor, 1, &overflow, &error), 0);
    assert_true(overflow);
}

static void a_servers_scale_that_is_none_is_refused(void **state)
{
    static const float bad[] = {0, -1, NAN, INFINITY, 0x1p-140f};
    struct amp_fsdp_manager manager = made(amp_fsdp_config_default());
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(amp_fsdp_set_server_scale(&manager, bad[i], &error), AMP_EINVAL);
    assert_true(amp_fsdp_loss_scale(&manager) == 2);
}

static void a_disabled_config_casts_scales_and_checks_nothing(void **state)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    config.enabled = false;
    struct amp_fsdp_integration integration;
    struct amp_fsdp_unit unit;
    assert_int_equal(amp_fsdp_integration_init(&integration, &fsdp, &config, &error), 0);
    float data[] = {3};
    struct amp_tensor in = {"w", data, 1, AMP_F32}, out;
    assert_int_equal(amp_fsdp_to_mixed_precision(&integration.manager, &in, NULL, 0, &out, &error), 0);
    assert_ptr_equal(out.data, data);
    assert_int_equal(amp_fsdp_integration_scale_loss(&integration, &in, &in, &error), 0);
    assert_true(data[0] == 3);
    assert_false(overflow_of(&integration.manager, NAN));
    amp_fsdp_unit_init(&unit, "w");
    assert_int_equal(amp_fsdp_unit_set_parameter(&unit, &in, &error), 0);
    assert_int_equal(amp_fsdp_apply_mixed_precision(&integration, &unit, &error), 0);
    assert_int_equal(unit.gathered_parameter.dtype, AMP_F32);
    amp_fsdp_unit_clear(&unit);
}

/* ---- the integration ---- */

static void a_step_goes_from_gather_to_scatter(void **state)
{
    for (size_t d = 0; d < 2; d++) {
        struct amp_fsdp_config config = with_forward(low_dtypes[d]);
        struct amp_fsdp_integration integration;
        struct amp_fsdp_unit unit;
        float values[] = {1, 2, -4};
        uint16_t low[3];
        struct amp_tensor gathered = {NULL, values, 3, AMP_F32}, gradient = {NULL, low, 3, low_dtypes[d]};
        bool overflow = true;
        assert_int_equal(amp_fsdp_integration_init(&integration, &fsdp, &config, &error), 0);
        amp_fsdp_unit_init(&unit, "layer.weight");
        assert_int_equal(amp_fsdp_unit_set_parameter(&unit, &gathered, &error), 0);
        assert_ptr_not_equal(unit.gathered_parameter.data, values);
        assert_int_equal(amp_fsdp_apply_mixed_precision(&integration, &unit, &error), 0);
        assert_int_equal(unit.gathered_parameter.dtype, low_dtypes[d]);
        assert_string_equal(unit.gathered_parameter.name, "layer.weight");
        (void)fsdp.kernels->store[low_dtypes[d]](low, values, 3);
        assert_memory_equal(unit.gathered_parameter.data, low, sizeof low);
        assert_int_equal(amp_fsdp_apply_mixed_precision(&integration, &unit, &error), 0);
        assert_memory_equal(unit.gathered_parameter.data, low, sizeof low);

        assert_int_equal(amp_fsdp_unit_set_gradient(&unit, &gradient, &error), 0);
        assert_int_equal(amp_fsdp_apply_gradient_fp32(&integration, &unit, &error), 0);
        assert_int_equal(unit.local_gradient.dtype, AMP_F32);
        assert_memory_equal(unit.local_gradient.data, values, sizeof values);
        assert_int_equal(amp_fsdp_integration_check_overflow(&integration, &unit.local_gradient, 1, &overflow, &error),
                         0);
        assert_false(overflow);
        assert_int_equal(amp_fsdp_integration_manager(&integration)->scaler.applied, 1);
        amp_fsdp_unit_clear(&unit);
        assert_null(unit.gathered_parameter.data);
    }
}

static void an_integration_without_config_has_the_defaults(void **state)
{
    struct amp_fsdp_integration integration;
    assert_int_equal(amp_fsdp_integration_init(&integration, &fsdp, NULL, &error), 0);
    assert_true(amp_fsdp_loss_scale(amp_fsdp_integration_manager(&integration)) == 2);
    assert_int_equal(integration.manager.config.forward_dtype, AMP_F16);
}

static void conversions_before_gather_or_backward_are_errors_of_state(void **state)
{
    struct amp_fsdp_integration integration;
    struct amp_fsdp_unit unit;
    assert_int_equal(amp_fsdp_integration_init(&integration, &fsdp, NULL, &error), 0);
    amp_fsdp_unit_init(&unit, "w");
    assert_int_equal(amp_fsdp_apply_mixed_precision(&integration, &unit, &error), AMP_ESTATE);
    assert_non_null(strstr(error.text, "gathered first"));
    assert_int_equal(amp_fsdp_apply_gradient_fp32(&integration, &unit, &error), AMP_ESTATE);
    assert_non_null(strstr(error.text, "not computed yet"));
    assert_int_equal(amp_fsdp_apply_mixed_precision(&integration, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_apply_gradient_fp32(&integration, NULL, &error), AMP_EINVAL);
    float data[] = {1};
    struct amp_tensor tensor = {NULL, data, 1, AMP_F32};
    assert_int_equal(amp_fsdp_unit_set_gradient(&unit, &tensor, &error), 0);
    amp_fsdp_unit_clear(&unit);
    assert_int_equal(amp_fsdp_apply_gradient_fp32(&integration, &unit, &error), AMP_ESTATE);
}

static void a_unit_takes_new_tensors_empty_ones_and_refuses_missing_ones(void **state)
{
    struct amp_fsdp_integration integration;
    struct amp_fsdp_unit unit;
    float data[] = {1, 2};
    struct amp_tensor two = {NULL, data, 2, AMP_F32}, empty = {NULL, data, 0, AMP_F32},
                      missing = {NULL, NULL, 2, AMP_F32};
    assert_int_equal(amp_fsdp_integration_init(&integration, &fsdp, NULL, &error), 0);
    amp_fsdp_unit_init(&unit, NULL);
    assert_int_equal(amp_fsdp_unit_set_parameter(&unit, &two, &error), 0);
    assert_int_equal(amp_fsdp_unit_set_parameter(&unit, &missing, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_unit_set_gradient(&unit, NULL, &error), AMP_EINVAL);
    assert_int_equal(unit.gathered_parameter.count, 2);
    assert_int_equal(amp_fsdp_unit_set_parameter(&unit, &empty, &error), 0);
    assert_int_equal(amp_fsdp_apply_mixed_precision(&integration, &unit, &error), 0);
    assert_true(unit.gathered_parameter.count == 0 && unit.gathered_parameter.dtype == AMP_F16);
    amp_fsdp_unit_clear(&unit);
}

static void a_unit_refuses_its_own_tensor_and_stays_as_it_was(void **state)
{
    struct amp_fsdp_unit unit;
    float data[] = {1, 2};
    struct amp_tensor two = {NULL, data, 2, AMP_F32};
    amp_fsdp_unit_init(&unit, "w");
    assert_int_equal(amp_fsdp_unit_set_parameter(&unit, &two, &error), 0);
    struct amp_tensor same = unit.gathered_parameter;
    assert_int_equal(amp_fsdp_unit_set_parameter(&unit, &unit.gathered_parameter, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "\"w\" is the unit's own tensor"));
    assert_int_equal(amp_fsdp_unit_set_parameter(&unit, &same, &error), AMP_EINVAL);
    assert_memory_equal(&unit.gathered_parameter, &same, sizeof same);
    assert_memory_equal(same.data, data, sizeof data);
    /* The parameter may be copied to be the gradient, which is other memory; after that the gradient is its own. */
    assert_int_equal(amp_fsdp_unit_set_gradient(&unit, &unit.gathered_parameter, &error), 0);
    assert_int_equal(amp_fsdp_unit_set_gradient(&unit, &unit.local_gradient, &error), AMP_EINVAL);
    assert_int_equal(unit.local_gradient.count, 2);
    amp_fsdp_unit_clear(&unit);
}

/* The test is linked with --wrap=malloc. */
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
static bool memory_is_out;

void *__wrap_malloc(size_t size)
{
    return memory_is_out ? NULL : __real_malloc(size);
}

static void without_memory_the_unit_is_as_it_was(void **state)
{
    struct amp_fsdp_integration integration;
    struct amp_fsdp_unit unit;
    float data[] = {1, 2};
    struct amp_tensor tensor = {NULL, data, 2, AMP_F32}, other = {NULL, data, 1, AMP_F32};
    assert_int_equal(amp_fsdp_integration_init(&integration, &fsdp, NULL, &error), 0);
    amp_fsdp_unit_init(&unit, "w");
    assert_int_equal(amp_fsdp_unit_set_parameter(&unit, &tensor, &error), 0);
    memory_is_out = true;
    int set = amp_fsdp_unit_set_parameter(&unit, &other, &error);
    int applied = amp_fsdp_apply_mixed_precision(&integration, &unit, &error);
    memory_is_out = false;
    assert_int_equal(set, AMP_ENOMEM);
    assert_int_equal(applied, AMP_ENOMEM);
    assert_true(unit.gathered_parameter.count == 2 && unit.gathered_parameter.dtype == AMP_F32);
    assert_memory_equal(unit.gathered_parameter.data, data, sizeof data);
    amp_fsdp_unit_clear(&unit);
}

#ifdef __SSE__
#include <xmmintrin.h>
#define FLUSH 0x8040u /* FTZ and DAZ of MXCSR */

static void a_thread_that_flushes_denormals_gets_its_parameters(void **state)
{
    struct amp_fsdp_integration integration;
    struct amp_fsdp_unit unit;
    float data[] = {1, 0x1p-24f}; /* the second one is a denormal in f16 */
    static const uint16_t expected[] = {0x3c00, 1};
    struct amp_tensor tensor = {NULL, data, 2, AMP_F32};
    assert_int_equal(amp_fsdp_integration_init(&integration, &fsdp, NULL, &error), 0);
    amp_fsdp_unit_init(&unit, "w");
    assert_int_equal(amp_fsdp_unit_set_parameter(&unit, &tensor, &error), 0);
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH);
    int rc = amp_fsdp_apply_mixed_precision(&integration, &unit, &error);
    _mm_setcsr(before);
    assert_int_equal(rc, 0);
    assert_memory_equal(unit.gathered_parameter.data, expected, sizeof expected);
    amp_fsdp_unit_clear(&unit);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_has_the_specified_defaults),
        cmocka_unit_test(config_refuses_values_out_of_range_by_field),
        cmocka_unit_test(manager_and_integration_refuse_null_and_impossible_groups),
        cmocka_unit_test(parameters_are_converted_to_the_forward_dtype),
        cmocka_unit_test(gradients_are_converted_back_to_fp32),
        cmocka_unit_test(a_tensor_of_the_right_dtype_is_not_copied),
        cmocka_unit_test(between_the_low_dtypes_a_parameter_is_rounded_once),
        cmocka_unit_test(conversions_refuse_missing_tensors_and_buffers_that_do_not_do),
        cmocka_unit_test(an_empty_tensor_needs_no_buffer),
        cmocka_unit_test(a_cast_over_the_tensor_itself_is_refused),
        cmocka_unit_test(loss_is_scaled_by_the_present_scale),
        cmocka_unit_test(without_loss_scaling_the_loss_is_kept_and_nothing_is_checked),
        cmocka_unit_test(overflow_is_detected_for_nan_and_inf_and_halves_the_scale),
        cmocka_unit_test(the_scale_grows_after_its_steps_and_stays_within_its_bounds),
        cmocka_unit_test(missing_gradients_and_empty_dictionaries_are_no_overflow),
        cmocka_unit_test(reset_gives_the_initial_scale_back),
        cmocka_unit_test(with_a_server_the_scale_and_the_verdict_are_the_servers),
        cmocka_unit_test(where_both_would_scale_an_error_says_so),
        cmocka_unit_test(with_a_server_overflows_are_told_whatever_the_config_says),
        cmocka_unit_test(a_servers_scale_that_is_none_is_refused),
        cmocka_unit_test(a_disabled_config_casts_scales_and_checks_nothing),
        cmocka_unit_test(a_step_goes_from_gather_to_scatter),
        cmocka_unit_test(an_integration_without_config_has_the_defaults),
        cmocka_unit_test(conversions_before_gather_or_backward_are_errors_of_state),
        cmocka_unit_test(a_unit_takes_new_tensors_empty_ones_and_refuses_missing_ones),
        cmocka_unit_test(a_unit_refuses_its_own_tensor_and_stays_as_it_was),
        cmocka_unit_test(without_memory_the_unit_is_as_it_was),
#ifdef __SSE__
        cmocka_unit_test(a_thread_that_flushes_denormals_gets_its_parameters),
#endif
    };
    return cmocka_run_group_tests(tests, pick_kernels, NULL);
}
