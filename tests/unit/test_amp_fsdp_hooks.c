/* FSDP beyond the specification: torch's dtypes and presets, a verdict over ranks, and the hooks of a training step. */
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

static struct amp_fsdp_config preset(enum amp_fsdp_preset which)
{
    struct amp_fsdp_config config;
    assert_int_equal(amp_fsdp_config_preset(which, &config, &error), 0);
    assert_int_equal(amp_fsdp_config_check(&config, &error), 0);
    return config;
}

static struct amp_fsdp_manager made(struct amp_fsdp_config config)
{
    struct amp_fsdp_manager manager;
    assert_int_equal(amp_fsdp_manager_init(&manager, &config, &fsdp, &error), 0);
    return manager;
}

/* ---- dtypes and presets ---- */

static void presets_are_those_of_torchs_recipes(void **state)
{
    struct amp_fsdp_config fp16 = preset(AMP_FSDP_FP16), bf16 = preset(AMP_FSDP_BF16), fp32 = preset(AMP_FSDP_FP32);
    struct amp_fsdp_config pure16 = preset(AMP_FSDP_FP16_PURE), pureb = preset(AMP_FSDP_BF16_PURE);
    assert_true(fp16.enabled && fp16.use_loss_scaling && !fp16.keep_low_precision_grads && fp16.cast_forward_inputs);
    assert_int_equal(fp16.forward_dtype, AMP_F16);
    assert_int_equal(fp16.reduce_dtype, AMP_F32);
    assert_int_equal(fp16.buffer_dtype, AMP_DTYPE_NONE);
    assert_true(bf16.forward_dtype == AMP_BF16 && bf16.reduce_dtype == AMP_F32 && !bf16.use_loss_scaling);
    assert_true(pure16.forward_dtype == AMP_F16 && pure16.reduce_dtype == AMP_F16 && pure16.buffer_dtype == AMP_F16);
    assert_true(pure16.keep_low_precision_grads && pure16.use_loss_scaling);
    assert_true(pureb.reduce_dtype == AMP_BF16 && pureb.buffer_dtype == AMP_BF16 && !pureb.use_loss_scaling);
    assert_true(!fp32.enabled && !fp32.use_loss_scaling);
    struct amp_fsdp_config defaults = amp_fsdp_config_default();
    assert_true(defaults.forward_dtype == fp16.forward_dtype && defaults.reduce_dtype == fp16.reduce_dtype);
    assert_true(defaults.use_loss_scaling && defaults.initial_loss_scale == fp16.initial_loss_scale);
    assert_int_equal(amp_fsdp_config_preset(AMP_FSDP_FP16, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_config_preset((enum amp_fsdp_preset)9, &fp16, &error), AMP_EINVAL);
}

static void dtypes_that_cannot_be_are_refused_by_field(void **state)
{
    struct amp_fsdp_config config = amp_fsdp_config_default();
    config.reduce_dtype = AMP_DTYPE_NONE;
    assert_int_equal(amp_fsdp_config_check(&config, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "reduce_dtype"));
    config = amp_fsdp_config_default();
    config.buffer_dtype = AMP_F64;
    assert_int_equal(amp_fsdp_config_check(&config, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "buffer_dtype"));
}

static void gradients_are_reduced_in_their_dtype_and_kept_low_where_wanted(void **state)
{
    float from[] = {1, -2}, back[2];
    uint16_t low[2];
    struct amp_tensor gradient = {"g", from, 2, AMP_F32}, out, end;
    struct amp_fsdp_config config = preset(AMP_FSDP_FP16_PURE);
    struct amp_fsdp_manager manager = made(config);
    assert_int_equal(amp_fsdp_gradient_to_reduce(&manager, &gradient, low, sizeof low, &out, &error), 0);
    assert_true(out.dtype == AMP_F16 && low[0] == 0x3c00 && low[1] == 0xc000);
    assert_int_equal(amp_fsdp_gradient_reduced(&manager, &out, NULL, 0, &end, &error), 0);
    assert_true(end.data == low && end.dtype == AMP_F16); /* kept */
    config.keep_low_precision_grads = false;
    manager = made(config);
    assert_int_equal(amp_fsdp_gradient_reduced(&manager, &out, back, sizeof back, &end, &error), 0);
    assert_true(end.dtype == AMP_F32 && back[1] == -2);
    assert_int_equal(amp_fsdp_gradient_reduced(&manager, NULL, back, sizeof back, &end, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_gradient_to_reduce(NULL, &gradient, low, sizeof low, &out, &error), AMP_EINVAL);
}

static void buffers_and_inputs_are_cast_where_wanted(void **state)
{
    float from[] = {1, -2};
    uint16_t low[2];
    struct amp_tensor tensor = {"mean", from, 2, AMP_F32}, out;
    struct amp_fsdp_config config = preset(AMP_FSDP_BF16);
    struct amp_fsdp_manager manager = made(config);
    assert_int_equal(amp_fsdp_cast_buffer(&manager, &tensor, NULL, 0, &out, &error), 0);
    assert_ptr_equal(out.data, from); /* no dtype: as it is */
    assert_int_equal(amp_fsdp_cast_input(&manager, &tensor, low, sizeof low, &out, &error), 0);
    assert_true(out.dtype == AMP_BF16 && low[0] == 0x3f80);
    config.buffer_dtype = AMP_BF16;
    config.cast_forward_inputs = false;
    manager = made(config);
    assert_int_equal(amp_fsdp_cast_buffer(&manager, &tensor, low, sizeof low, &out, &error), 0);
    assert_true(out.dtype == AMP_BF16 && low[1] == 0xc000);
    assert_int_equal(amp_fsdp_cast_input(&manager, &tensor, NULL, 0, &out, &error), 0);
    assert_ptr_equal(out.data, from);
    manager = made(preset(AMP_FSDP_FP32));
    assert_int_equal(amp_fsdp_cast_input(&manager, &tensor, NULL, 0, &out, &error), 0);
    assert_ptr_equal(out.data, from);
    assert_int_equal(amp_fsdp_cast_buffer(&manager, NULL, NULL, 0, &out, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_cast_input(&manager, NULL, NULL, 0, &out, &error), AMP_EINVAL);
}

/* ---- a verdict over ranks ---- */

static void ranks_that_share_what_they_found_move_their_scales_alike(void **state)
{
    float good[] = {1, 2}, bad[] = {1, INFINITY};
    struct amp_tensor gradients[] = {{"g", good, 2, AMP_F32}, {"g", bad, 2, AMP_F32}};
    struct amp_fsdp_manager ranks[2] = {made(amp_fsdp_config_default()), made(amp_fsdp_config_default())};
    bool any = false;
    for (int r = 0; r < 2; r++) {
        bool found;
        assert_int_equal(amp_fsdp_find_overflow(&ranks[r], &gradients[r], 1, &found, &error), 0);
        assert_int_equal(found, r == 1);
        assert_true(amp_fsdp_loss_scale(&ranks[r]) == 2);
        any = any || found;
    }
    for (int r = 0; r < 2; r++) {
        assert_int_equal(amp_fsdp_take_verdict(&ranks[r], any, &error), 0);
        assert_true(amp_fsdp_loss_scale(&ranks[r]) == 1);
    }
    assert_int_equal(amp_fsdp_set_server_scale(&ranks[0], 8, &error), AMP_ESTATE); /* both would scale */
    amp_fsdp_reset_loss_scale(&ranks[0]);
    assert_int_equal(amp_fsdp_set_server_scale(&ranks[0], 8, &error), 0);
    assert_int_equal(amp_fsdp_take_verdict(&ranks[0], true, &error), 0);
    assert_true(amp_fsdp_loss_scale(&ranks[0]) == 8); /* the server's verdict moves it */
    assert_int_equal(amp_fsdp_take_verdict(NULL, true, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_find_overflow(&ranks[0], gradients, 2, NULL, &error), AMP_EINVAL);
}

/* ---- hooks ---- */

struct store {
    struct amp_fsdp_integration integration;
    unsigned gathers, scatters;
    bool leaves_one_out;
    int code;
    enum amp_dtype scattered;
    float sum;
};

static int on_gather(void *arg, struct amp_fsdp_unit *units, size_t n, struct amp_error *e)
{
    struct store *store = arg;
    float values[] = {0.5f, 3};
    const struct amp_tensor tensor = {"w", values, 2, AMP_F32};
    store->gathers++;
    for (size_t i = 0; i < n - (store->leaves_one_out ? 1 : 0); i++)
        assert_int_equal(amp_fsdp_unit_set_parameter(&units[i], &tensor, e), 0);
    return store->code;
}

static int on_scatter(void *arg, const struct amp_fsdp_unit *units, size_t n, struct amp_error *e)
{
    struct store *store = arg;
    store->scatters++;
    for (size_t i = 0; i < n; i++) {
        assert_null(units[i].gathered_parameter.data);
        if (units[i].local_gradient.data == NULL)
            continue;
        store->scattered = units[i].local_gradient.dtype;
        store->sum += ((const float *)units[i].local_gradient.data)[0];
    }
    return store->code;
}

static struct store store;
static struct amp_fsdp_unit units[2];
static struct amp_fsdp_hooks hooks = {
    .integration = &store.integration, .arg = &store, .gather_cb = on_gather, .scatter_cb = on_scatter};

static int make_store(void **state)
{
    memset(&store, 0, sizeof store);
    amp_fsdp_unit_init(&units[0], "a");
    amp_fsdp_unit_init(&units[1], "b");
    return amp_fsdp_integration_init(&store.integration, &fsdp, NULL, &error);
}

static int clear_store(void **state)
{
    amp_fsdp_unit_clear(&units[0]);
    amp_fsdp_unit_clear(&units[1]);
    return 0;
}

static void set_gradient(struct amp_fsdp_unit *unit, uint16_t bits)
{
    uint16_t values[] = {bits, bits};
    const struct amp_tensor tensor = {"g", values, 2, AMP_F16};
    assert_int_equal(amp_fsdp_unit_set_gradient(unit, &tensor, &error), 0);
}

static void a_step_of_hooks_gathers_casts_frees_and_scatters(void **state)
{
    assert_int_equal(amp_fsdp_before_forward(&hooks, units, 2, &error), 0);
    assert_int_equal(units[1].gathered_parameter.dtype, AMP_F16);
    assert_int_equal(((const uint16_t *)units[1].gathered_parameter.data)[0], 0x3800);
    assert_int_equal(amp_fsdp_after_forward(&hooks, units, 2, &error), 0);
    assert_null(units[0].gathered_parameter.data);
    assert_int_equal(amp_fsdp_before_backward(&hooks, units, 2, &error), 0);
    assert_int_equal(amp_fsdp_before_backward(&hooks, units, 2, &error), 0); /* here already */
    assert_int_equal(store.gathers, 2);
    set_gradient(&units[1], 0x3c00); /* the other one has none */
    assert_int_equal(amp_fsdp_after_backward(&hooks, units, 2, &error), 0);
    assert_int_equal(store.scatters, 1);
    assert_int_equal(store.scattered, AMP_F32);
    assert_true(store.sum == 1);
    assert_null(units[1].local_gradient.data);
}

static void a_step_that_is_void_leaves_no_parameter_behind(void **state)
{
    store.code = 1;
    assert_int_equal(amp_fsdp_before_forward(&hooks, units, 2, &error), 1);
    assert_null(units[0].gathered_parameter.data);
    set_gradient(&units[0], 0x3c00);
    assert_int_equal(amp_fsdp_after_backward(&hooks, units, 2, &error), 1);
    assert_non_null(units[0].local_gradient.data);
}

static void hooks_out_of_order_are_errors_of_state(void **state)
{
    store.leaves_one_out = true;
    assert_int_equal(amp_fsdp_before_forward(&hooks, units, 2, &error), AMP_ESTATE);
    assert_null(units[0].gathered_parameter.data);
    assert_int_equal(amp_fsdp_after_backward(&hooks, units, 2, &error), AMP_ESTATE);
    assert_non_null(strstr(error.text, "backward comes first"));
    assert_int_equal(amp_fsdp_after_forward(&hooks, units, 2, &error), 0); /* nothing to free */
    assert_int_equal(amp_fsdp_apply_reduce_dtype(&store.integration, &units[0], &error), AMP_ESTATE);
    assert_int_equal(amp_fsdp_apply_reduced(&store.integration, &units[0], &error), AMP_ESTATE);
}

static void a_reduced_gradient_that_came_back_is_fp32_again(void **state)
{
    set_gradient(&units[0], 0x3c00);
    assert_int_equal(amp_fsdp_apply_reduced(&store.integration, &units[0], &error), 0);
    assert_int_equal(units[0].local_gradient.dtype, AMP_F32);
    assert_int_equal(amp_fsdp_apply_reduce_dtype(&store.integration, &units[0], &error), 0);
    assert_true(*(const float *)units[0].local_gradient.data == 1);
}

static void hooks_refuse_null(void **state)
{
    struct amp_fsdp_hooks half = hooks;
    half.scatter_cb = NULL;
    assert_int_equal(amp_fsdp_before_forward(&half, units, 2, &error), AMP_EINVAL);
    half = hooks;
    half.integration = NULL;
    assert_int_equal(amp_fsdp_before_backward(&half, units, 2, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_after_forward(NULL, units, 2, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_after_backward(&hooks, NULL, 2, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_apply_reduced(NULL, &units[0], &error), AMP_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_are_those_of_torchs_recipes),
        cmocka_unit_test(dtypes_that_cannot_be_are_refused_by_field),
        cmocka_unit_test(gradients_are_reduced_in_their_dtype_and_kept_low_where_wanted),
        cmocka_unit_test(buffers_and_inputs_are_cast_where_wanted),
        cmocka_unit_test(ranks_that_share_what_they_found_move_their_scales_alike),
        cmocka_unit_test_setup_teardown(a_step_of_hooks_gathers_casts_frees_and_scatters, make_store, clear_store),
        cmocka_unit_test_setup_teardown(a_step_that_is_void_leaves_no_parameter_behind, make_store, clear_store),
        cmocka_unit_test_setup_teardown(hooks_out_of_order_are_errors_of_state, make_store, clear_store),
        cmocka_unit_test_setup_teardown(a_reduced_gradient_that_came_back_is_fp32_again, make_store, clear_store),
        cmocka_unit_test_setup_teardown(hooks_refuse_null, make_store, clear_store),
    };
    return cmocka_run_group_tests_name("amp_fsdp_hooks", tests, pick_kernels, NULL);
}
