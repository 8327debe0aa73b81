/*
 * Every public function of amp/ that returns a code, with each pointer that it needs missing: AMP_EINVAL, a text, and
 * no crash. A row is a call; what a header allows to be NULL is not among them.
 */
#include "amp/clip.h"
#include "amp/cpu.h"
#include "amp/dlpack.h"
#include "amp/dynamic_scaler.h"
#include "amp/fsdp.h"
#include "amp/grad.h"
#include "amp/optim.h"
#include "amp/static_scaler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct amp_kernels *const k = &amp_kernels_ref;
static float elements[4] = {1, 2, 3, 4};
static const struct amp_tensor t = {"t", elements, 4, AMP_F32};
static struct amp_error error;

static void refused(const char *call, int rc)
{
    if (rc != AMP_EINVAL || strstr(error.text, "NULL") == NULL)
        fail_msg("%s gave %d, \"%s\"", call, rc, error.text);
    memset(&error, 0, sizeof error);
}

#define REFUSED(CALL) refused(#CALL, CALL)

static void gradient_utilities_refuse_what_is_missing(void **state)
{
    const char *names[1];
    size_t count = 0;
    bool found = false;
    struct amp_overflow_stats stats;
    REFUSED(amp_grads_copy(NULL, &t, 1, &t, &error));
    REFUSED(amp_grads_unscale(NULL, &t, 1, 2, &t, NULL, &error));
    REFUSED(amp_grads_unscale(NULL, &t, 1, 1, &t, &found, &error));
    REFUSED(amp_grad_unscale(NULL, &t, 2, &t, NULL, &error));
    REFUSED(amp_grads_unscale_in_place(NULL, &t, 1, 2, NULL, &error));
    REFUSED(amp_grad_unscale_in_place(NULL, &t, 2, NULL, &error));
    REFUSED(amp_loss_scale(NULL, &t, 2, &t, &error));
    REFUSED(amp_grads_overflow(NULL, &t, 1, &found, &error));
    REFUSED(amp_grads_overflow(k, &t, 1, NULL, &error));
    REFUSED(amp_grad_overflow(NULL, &t, &found, &error));
    REFUSED(amp_grad_overflow(k, &t, NULL, &error));
    REFUSED(amp_grad_is_inf_or_nan(NULL, &t, &found, &error));
    REFUSED(amp_grad_is_inf_or_nan(k, &t, NULL, &error));
    REFUSED(amp_grad_is_inf(NULL, &t, &found, &error));
    REFUSED(amp_grad_is_inf(k, &t, NULL, &error));
    REFUSED(amp_grad_is_nan(NULL, &t, &found, &error));
    REFUSED(amp_grad_is_nan(k, &t, NULL, &error));
    assert_int_equal(amp_grad_is_nan(k, &t, NULL, &error), AMP_EINVAL);
    assert_string_equal(error.text, "the argument found is NULL: it must be given");
    assert_int_equal(amp_grad_overflow(k, &t, NULL, &error), AMP_EINVAL);
    assert_string_equal(error.text, "the argument overflow is NULL: it must be given");
    REFUSED(amp_grads_find_overflow(NULL, &t, 1, names, &count, &error));
    REFUSED(amp_grads_find_overflow(k, &t, 1, NULL, &count, &error));
    REFUSED(amp_grads_find_overflow(k, &t, 1, names, NULL, &error));
    REFUSED(amp_overflow_stats_init(NULL, 1, 0, NULL, &error));
    REFUSED(amp_grads_overflow_stats(NULL, &t, 1, names, &stats, &error));
    REFUSED(amp_grads_overflow_stats(k, &t, 1, NULL, &stats, &error));
    REFUSED(amp_grads_overflow_stats(k, &t, 1, names, NULL, &error));
}

static void missing_arrays_of_tensors_are_refused(void **state)
{
    bool found;
    double norm;
    assert_int_equal(amp_grads_copy(k, NULL, 1, &t, &error), AMP_EINVAL);
    assert_int_equal(amp_grads_copy(k, &t, 1, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_grads_unscale(k, NULL, 1, 2, &t, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_grads_unscale(k, &t, 1, 2, NULL, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_loss_scale(k, NULL, 2, &t, &error), AMP_EINVAL);
    assert_int_equal(amp_loss_scale(k, &t, 2, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_grad_overflow(k, NULL, &found, &error), AMP_EINVAL);
    assert_int_equal(amp_clip_by_value(k, NULL, 1, &t, &error), AMP_EINVAL);
    assert_int_equal(amp_clip_by_value(k, &t, 1, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_grads_norm(k, NULL, 1, 2, &norm, &error), AMP_EINVAL);
    assert_int_equal(amp_grad_clip_by_norm(k, NULL, 1, 2, &t, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_grad_clip_by_norm(k, &t, 1, 2, NULL, NULL, &error), AMP_EINVAL);
    assert_true(elements[0] == 1 && elements[3] == 4);
}

static void norms_and_clipping_refuse_what_is_missing(void **state)
{
    double norm;
    REFUSED(amp_clip_by_value(NULL, &t, 1, &t, &error));
    REFUSED(amp_grads_norm(NULL, &t, 1, 2, &norm, &error));
    REFUSED(amp_grads_norm(k, &t, 1, 2, NULL, &error));
    REFUSED(amp_grads_clip_by_norm(NULL, &t, 1, 1, 2, &t, NULL, &error));
    REFUSED(amp_grad_clip_by_norm(NULL, &t, 1, 2, &t, NULL, &error));
}

static void autocast_refuses_what_is_missing(void **state)
{
    struct amp_registry registry;
    amp_registry_init(&registry);
    enum amp_dtype in = AMP_F32, to;
    const struct amp_tensor_view view = {elements, 4, AMP_F32, 0, 0};
    const struct amp_tensor_view nowhere = {NULL, 4, AMP_F32, 0, 0};
    struct amp_tensor_view out;
    uint16_t buffer[4];
    REFUSED(amp_registry_set(NULL, AMP_AUTOCAST_FP16, "op", AMP_OP_LOWER, &error));
    REFUSED(amp_registry_set(&registry, AMP_AUTOCAST_FP16, NULL, AMP_OP_LOWER, &error));
    REFUSED(amp_registry_allow(NULL, "op", &error));
    REFUSED(amp_registry_allow(&registry, NULL, &error));
    REFUSED(amp_registry_deny(NULL, "op", &error));
    REFUSED(amp_registry_deny(&registry, NULL, &error));
    REFUSED(amp_registry_promote(NULL, "op", &error));
    REFUSED(amp_registry_promote(&registry, NULL, &error));
    REFUSED(amp_registry_keep(NULL, "op", &error));
    REFUSED(amp_registry_keep(&registry, NULL, &error));
    REFUSED(amp_registry_ban(NULL, "op", NULL, &error));
    REFUSED(amp_registry_ban(&registry, NULL, NULL, &error));
    REFUSED(amp_registry_set_dtypes(NULL, "op", AMP_F32, AMP_F32, &error));
    REFUSED(amp_registry_set_dtypes(&registry, NULL, AMP_F32, AMP_F32, &error));
    REFUSED(amp_autocast_promote(NULL, &in, 1, &to, &error));
    REFUSED(amp_autocast_promote("add", NULL, 1, &to, &error));
    REFUSED(amp_autocast_promote("add", &in, 1, NULL, &error));
    REFUSED(amp_autocast_cast(NULL, "linear", &view, NULL, buffer, sizeof buffer, &out, &error));
    REFUSED(amp_autocast_cast(k, NULL, &view, NULL, buffer, sizeof buffer, &out, &error));
    REFUSED(amp_autocast_cast(k, "linear", NULL, NULL, buffer, sizeof buffer, &out, &error));
    REFUSED(amp_autocast_cast(k, "linear", &nowhere, NULL, buffer, sizeof buffer, &out, &error));
    REFUSED(amp_autocast_cast(k, "linear", &view, NULL, buffer, sizeof buffer, NULL, &error));
    REFUSED(amp_autocast_cast_to(NULL, AMP_F16, &view, buffer, sizeof buffer, &out, &error));
    REFUSED(amp_autocast_cast_to(k, AMP_F16, NULL, buffer, sizeof buffer, &out, &error));
    REFUSED(amp_autocast_cast_to(k, AMP_F16, &nowhere, buffer, sizeof buffer, &out, &error));
    REFUSED(amp_autocast_cast_to(k, AMP_F16, &view, buffer, sizeof buffer, NULL, &error));
    assert_int_equal(registry.count, 0);
    amp_registry_close(&registry);
}

static void an_op_without_a_name_is_not_listed(void **state)
{
    struct amp_registry registry;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_policy(&registry, AMP_AUTOCAST_FP16, NULL), AMP_OP_UNLISTED);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_dtype(NULL, AMP_F32), AMP_F32);
    assert_int_equal(amp_autocast_backward_dtype(NULL, AMP_F32), AMP_F32);
    amp_autocast_exit();
    amp_registry_close(&registry);
}

static int no_step(void *arg, const struct amp_tensor *gradients, size_t n, struct amp_error *told)
{
    fail_msg("a step without all arguments");
    return 0;
}

static void scalers_refuse_what_is_missing(void **state)
{
    struct amp_static_scaler fixed;
    struct amp_dynamic_scaler dynamic;
    bool found;
    REFUSED(amp_scaler_config_check(NULL, &error));
    REFUSED(amp_scale_power_of_two(1, NULL, &error));
    for (int enabled = 0; enabled < 2; enabled++) {
        struct amp_dynamic_options options = amp_dynamic_options_fp16();
        options.enable_dynamic_loss_scaling = enabled != 0;
        assert_int_equal(amp_static_scaler_init(&fixed, k, 2, enabled != 0, &error), 0);
        assert_int_equal(amp_dynamic_scaler_init(&dynamic, k, &options, &error), 0);
        REFUSED(amp_static_scaler_check_overflow(&fixed, &t, 1, NULL, &error));
        REFUSED(amp_static_scaler_check_overflow_one(&fixed, &t, NULL, &error));
        REFUSED(amp_dynamic_scaler_check_overflow(&dynamic, &t, 1, NULL, &error));
        REFUSED(amp_dynamic_scaler_check_and_update(&dynamic, &t, 1, NULL, &error));
        assert_int_equal(dynamic.state.attempted, 0);
    }
    REFUSED(amp_static_scaler_scale_loss(NULL, &t, &t, &error));
    REFUSED(amp_static_scaler_unscale(NULL, &t, 1, &t, NULL, &error));
    REFUSED(amp_static_scaler_unscale_one(NULL, &t, &t, NULL, &error));
    REFUSED(amp_static_scaler_check_overflow(NULL, &t, 1, &found, &error));
    REFUSED(amp_static_scaler_check_overflow_one(NULL, &t, &found, &error));
    REFUSED(amp_dynamic_scaler_scale_loss(NULL, &t, &t, &error));
    REFUSED(amp_dynamic_scaler_unscale(NULL, &t, 1, &t, NULL, &error));
    REFUSED(amp_dynamic_scaler_check_overflow(NULL, &t, 1, &found, &error));
    REFUSED(amp_dynamic_scaler_check_and_update(NULL, &t, 1, &found, &error));
    struct amp_loss_scaler any = amp_dynamic_scaler_interface(&dynamic), none = {NULL, NULL};
    REFUSED(amp_loss_scaler_step(NULL, &t, 1, &found, &error, NULL, no_step));
    REFUSED(amp_loss_scaler_step(&none, &t, 1, &found, &error, NULL, no_step));
    REFUSED(amp_loss_scaler_step(&any, &t, 1, NULL, &error, NULL, no_step));
    REFUSED(amp_loss_scaler_step(&any, &t, 1, &found, &error, NULL, NULL));
    struct amp_dynamic_saved saved;
    REFUSED(amp_dynamic_scaler_save(NULL, &saved, &error));
    REFUSED(amp_dynamic_scaler_save(&dynamic, NULL, &error));
    REFUSED(amp_dynamic_scaler_load(NULL, &saved, &error));
    REFUSED(amp_dynamic_scaler_load(&dynamic, NULL, &error));
    assert_int_equal(amp_static_scaler_init(NULL, k, 2, true, &error), AMP_EINVAL);
    assert_int_equal(amp_static_scaler_init(&fixed, NULL, 2, true, &error), AMP_EINVAL);
    assert_int_equal(amp_dynamic_scaler_init(NULL, k, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_dynamic_scaler_init(&dynamic, NULL, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_dynamic_options_check(NULL, &error), AMP_EINVAL);
}

static void fsdp_refuses_what_is_missing(void **state)
{
    const struct amp_fsdp fsdp = {k, 0, 1};
    struct amp_fsdp_config config = amp_fsdp_config_default();
    struct amp_fsdp_integration integration;
    struct amp_fsdp_unit unit;
    struct amp_tensor out;
    bool found;
    amp_fsdp_unit_init(&unit, "u");
    assert_int_equal(amp_fsdp_integration_init(&integration, &fsdp, &config, &error), 0);
    struct amp_fsdp_manager *manager = amp_fsdp_integration_manager(&integration);
    REFUSED(amp_fsdp_unit_set_parameter(NULL, &t, &error));
    REFUSED(amp_fsdp_unit_set_gradient(NULL, &t, &error));
    REFUSED(amp_fsdp_to_mixed_precision(NULL, &t, NULL, 0, &out, &error));
    REFUSED(amp_fsdp_to_mixed_precision(manager, &t, NULL, 0, NULL, &error));
    REFUSED(amp_fsdp_gradient_to_fp32(NULL, &t, NULL, 0, &out, &error));
    REFUSED(amp_fsdp_gradient_to_fp32(manager, &t, NULL, 0, NULL, &error));
    REFUSED(amp_fsdp_scale_loss(NULL, &t, &t, &error));
    REFUSED(amp_fsdp_set_server_scale(NULL, 2, &error));
    REFUSED(amp_fsdp_check_overflow(NULL, &t, 1, &found, &error));
    REFUSED(amp_fsdp_check_overflow(manager, &t, 1, NULL, &error));
    REFUSED(amp_fsdp_apply_mixed_precision(NULL, &unit, &error));
    REFUSED(amp_fsdp_apply_mixed_precision(&integration, NULL, &error));
    REFUSED(amp_fsdp_apply_gradient_fp32(NULL, &unit, &error));
    REFUSED(amp_fsdp_apply_gradient_fp32(&integration, NULL, &error));
    REFUSED(amp_fsdp_integration_scale_loss(NULL, &t, &t, &error));
    REFUSED(amp_fsdp_integration_check_overflow(NULL, &t, 1, &found, &error));
    REFUSED(amp_fsdp_integration_check_overflow(&integration, &t, 1, NULL, &error));
    assert_int_equal(manager->scaler.attempted, 0);
    assert_int_equal(amp_fsdp_unit_set_parameter(&unit, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_to_mixed_precision(manager, NULL, NULL, 0, &out, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_manager_init(NULL, &config, &fsdp, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_manager_init(manager, NULL, &fsdp, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_manager_init(manager, &config, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_integration_init(NULL, &fsdp, NULL, &error), AMP_EINVAL);
    assert_int_equal(amp_fsdp_config_check(NULL, &error), AMP_EINVAL);
}

static void dlpack_refuses_what_is_missing(void **state)
{
    struct amp_dlpack_import import;
    struct amp_dlpack_managed managed = {.version = {AMP_DLPACK_MAJOR, 0}}, *out = &managed;
    struct amp_dlpack_legacy legacy = {.manager_ctx = NULL}, *legacy_out = &legacy;
    const struct amp_tensor_view view = {elements, 4, AMP_F32, 0, 0};
    const struct amp_tensor_view nowhere = {NULL, 4, AMP_F32, 0, 0};
    memset(&import, 0xff, sizeof import);
    REFUSED(amp_dlpack_import(NULL, &import, &error));
    assert_true(import.managed == NULL && import.legacy == NULL);
    REFUSED(amp_dlpack_import(&managed, NULL, &error));
    REFUSED(amp_dlpack_import_legacy(NULL, &import, &error));
    REFUSED(amp_dlpack_import_legacy(&legacy, NULL, &error));
    REFUSED(amp_dlpack_export(NULL, NULL, 0, false, NULL, NULL, &out, &error));
    assert_null(out);
    REFUSED(amp_dlpack_export(&nowhere, NULL, 0, false, NULL, NULL, &out, &error));
    REFUSED(amp_dlpack_export(&view, NULL, 1, false, NULL, NULL, &out, &error));
    REFUSED(amp_dlpack_export(&view, NULL, 0, false, NULL, NULL, NULL, &error));
    REFUSED(amp_dlpack_export_legacy(NULL, NULL, 0, NULL, NULL, &legacy_out, &error));
    assert_null(legacy_out);
    REFUSED(amp_dlpack_export_legacy(&view, NULL, 0, NULL, NULL, NULL, &error));
}

static void choices_refuse_what_is_missing(void **state)
{
    REFUSED(amp_cpu_select("ref", NULL, &error));
    REFUSED(amp_kernels_verify(NULL, &error));
    REFUSED(amp_optim_check(NULL, &error));
    REFUSED(amp_schedule_check(NULL, &error));
}

/* Not "x is wrong" alone: behind a colon, or with "must", stands what to do. */
static void remedied(const char *call, int rc)
{
    if (rc != AMP_EINVAL || (strstr(error.text, ": ") == NULL && strstr(error.text, "must") == NULL))
        fail_msg("%s gave %d, \"%s\"", call, rc, error.text);
    memset(&error, 0, sizeof error);
}

#define REMEDIED(CALL) remedied(#CALL, CALL)

static void what_is_wrong_is_told_with_what_to_do(void **state)
{
    const struct amp_tensor wide = {"w", elements, 1, AMP_F64}, odd = {"o", (char *)elements + 1, 1, AMP_F32};
    const struct amp_tensor huge = {"h", elements, SIZE_MAX / 2, AMP_F32}, shorter = {"s", elements, 3, AMP_F32};
    const struct amp_tensor nothing = {"n", NULL, 4, AMP_F32};
    const struct amp_tensor_view endless = {elements, SIZE_MAX / 2, AMP_F32, 0, 0};
    const struct amp_schedule backwards = {.kind = AMP_SCHEDULE_COSINE, .warmup_steps = 9, .total_steps = 9};
    const struct amp_schedule none = {.kind = (enum amp_schedule_kind)99};
    const struct amp_optim_config unknown = {.optimizer = (enum amp_optimizer)99};
    const char *names[] = {"a"};
    struct amp_overflow_stats stats;
    struct amp_tensor_view out;
    struct amp_registry registry;
    enum amp_dtype in = AMP_F32, to;
    uint16_t buffer[4];
    amp_registry_init(&registry);
    REMEDIED(amp_tensors_check(&wide, 1, &error));
    REMEDIED(amp_tensors_check(&odd, 1, &error));
    REMEDIED(amp_tensors_check(&huge, 1, &error));
    REMEDIED(amp_grads_copy(k, &t, 1, &shorter, &error));
    REMEDIED(amp_grads_copy(k, &t, 1, &nothing, &error));
    REMEDIED(amp_overflow_stats_init(&stats, 0, 1, names, &error));
    REMEDIED(amp_overflow_stats_init(&stats, 1, 1, NULL, &error));
    REMEDIED(amp_optim_check(&unknown, &error));
    REMEDIED(amp_schedule_check(&none, &error));
    REMEDIED(amp_schedule_check(&backwards, &error));
    REMEDIED(amp_registry_set(&registry, AMP_AUTOCAST_FP16, "op", (enum amp_op_policy)99, &error));
    REMEDIED(amp_autocast_promote("cat", &in, 0, &to, &error));
    REMEDIED(amp_autocast_cast_to(k, AMP_F16, &endless, buffer, sizeof buffer, &out, &error));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_wrong_is_told_with_what_to_do),
        cmocka_unit_test(gradient_utilities_refuse_what_is_missing),
        cmocka_unit_test(missing_arrays_of_tensors_are_refused),
        cmocka_unit_test(norms_and_clipping_refuse_what_is_missing),
        cmocka_unit_test(autocast_refuses_what_is_missing),
        cmocka_unit_test(an_op_without_a_name_is_not_listed),
        cmocka_unit_test(scalers_refuse_what_is_missing),
        cmocka_unit_test(fsdp_refuses_what_is_missing),
        cmocka_unit_test(dlpack_refuses_what_is_missing),
        cmocka_unit_test(choices_refuse_what_is_missing),
    };
    return cmocka_run_group_tests_name("given", tests, NULL, NULL);
}
