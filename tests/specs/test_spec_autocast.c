/* The specification of autocast, section by section: AutoCastMode, AutoCast, AutoCastContext, AmpEnabled. */
#include "amp/autocast.h"
#include "tests/specs/spec.h"

#include <pthread.h>

/* An operation that every list has in the low precision, one that every list has in fp32, and one that none has. */
static const char allowed[] = "conv2d";
static const char denied[] = "mse_loss";
static const char unknown[] = "my_custom_op";

static const enum amp_autocast_mode casting_modes[] = {AMP_AUTOCAST_FP16, AMP_AUTOCAST_BF16};

static void enter(enum amp_autocast_mode mode)
{
    assert_int_equal(amp_autocast_enter(mode), 0);
}

static void enter_config(struct amp_autocast_config config)
{
    assert_int_equal(amp_autocast_enter_config(&config), 0);
}

static void enter_disabled(enum amp_autocast_mode mode)
{
    struct amp_autocast_config config = amp_autocast_config_of(mode, NULL);
    config.enabled = false;
    enter_config(config);
}

/* What comes of {1.5, -2, 1.001} of `from` as an operand of `op`; *same, whether it is the tensor itself. */
static struct amp_tensor_view cast_for(const char *op, enum amp_dtype from, bool *same)
{
    static struct spec_memory memory, buffer;
    struct amp_tensor tensor = spec_tensor(&memory, from, (float[]){1.5f, -2, 1.001f}, 3);
    struct amp_tensor_view in = {tensor.data, tensor.count, from, 0, 0};
    struct amp_tensor_view out = {0};
    assert_int_equal(amp_autocast_cast(kernels, op, &in, NULL, buffer.words, sizeof buffer.words, &out, &fault), 0);
    *same = out.data == in.data;
    return out;
}

static void assert_cast_to(const char *op, enum amp_dtype from, enum amp_dtype to)
{
    bool same;
    struct amp_tensor_view out = cast_for(op, from, &same);
    assert_int_equal(out.dtype, to);
    assert_int_equal(out.count, 3);
    assert_int_equal(same, from == to);
}

/* ---- 1. AutoCastMode ---- */

static void there_are_three_modes_of_different_numbers(void **state)
{
    assert_true(AMP_AUTOCAST_FP16 != AMP_AUTOCAST_BF16);
    assert_true(AMP_AUTOCAST_FP16 != AMP_AUTOCAST_NONE);
    assert_true(AMP_AUTOCAST_BF16 != AMP_AUTOCAST_NONE);
}

static void each_mode_has_its_precision(void **state)
{
    assert_int_equal(amp_autocast_low_dtype(AMP_AUTOCAST_FP16), AMP_F16);
    assert_int_equal(amp_autocast_low_dtype(AMP_AUTOCAST_BF16), AMP_BF16);
    assert_int_equal(amp_autocast_low_dtype(AMP_AUTOCAST_NONE), AMP_DTYPE_NONE);
}

/* ---- 2. AutoCast: constructors, Mode, Enabled ---- */

static void the_default_context_is_bf16_and_enabled(void **state)
{
    struct amp_autocast_config now;
    assert_int_equal(amp_autocast_enter_config(NULL), 0);
    assert_true(amp_autocast_current(&now));
    assert_int_equal(now.mode, AMP_AUTOCAST_BF16);
    assert_true(now.enabled);
    assert_null(now.registry);
    amp_autocast_exit();
}

static void a_context_has_the_mode_and_registry_that_it_was_made_with(void **state)
{
    struct amp_registry registry;
    struct amp_autocast_config now;
    amp_registry_init(&registry);
    enter_config(amp_autocast_config_of(AMP_AUTOCAST_FP16, &registry));
    assert_true(amp_autocast_current(&now));
    assert_int_equal(now.mode, AMP_AUTOCAST_FP16);
    assert_ptr_equal(now.registry, &registry);
    amp_autocast_exit();
    amp_registry_close(&registry);
}

static void a_context_tells_that_it_is_not_enabled(void **state)
{
    struct amp_autocast_config now;
    enter_disabled(AMP_AUTOCAST_FP16);
    assert_true(amp_autocast_current(&now));
    assert_false(now.enabled);
    amp_autocast_exit();
}

/* ---- 2. AutoCast.Cast(tensor, operation): the tensor if not enabled or of mode None, else in the rule's dtype ---- */

static void a_whitelisted_operation_gets_the_lower_precision(void **state)
{
    for (size_t i = 0; i < COUNT(casting_modes); i++) {
        enter(casting_modes[i]);
        assert_cast_to(allowed, AMP_F32, amp_autocast_low_dtype(casting_modes[i]));
        amp_autocast_exit();
    }
}

static void a_blacklisted_operation_gets_the_higher_precision(void **state)
{
    for (size_t i = 0; i < COUNT(casting_modes); i++) {
        enter(casting_modes[i]);
        assert_cast_to(denied, amp_autocast_low_dtype(casting_modes[i]), AMP_F32);
        amp_autocast_exit();
    }
}

static void an_operation_without_a_rule_keeps_the_dtype_of_its_input(void **state)
{
    static const enum amp_dtype dtypes[] = {AMP_F32, AMP_F16, AMP_BF16};
    for (size_t i = 0; i < COUNT(casting_modes); i++) {
        enter(casting_modes[i]);
        for (size_t j = 0; j < COUNT(dtypes); j++)
            assert_cast_to(unknown, dtypes[j], dtypes[j]);
        amp_autocast_exit();
    }
}

static void a_tensor_of_the_target_dtype_is_not_cast_again(void **state)
{
    for (size_t i = 0; i < COUNT(casting_modes); i++) {
        enum amp_dtype low = amp_autocast_low_dtype(casting_modes[i]);
        enter(casting_modes[i]);
        assert_cast_to(allowed, low, low);
        assert_cast_to(denied, AMP_F32, AMP_F32);
        amp_autocast_exit();
    }
}

static void a_cast_rounds_every_element_to_the_target(void **state)
{
    bool same;
    enter(AMP_AUTOCAST_FP16);
    struct amp_tensor_view view = cast_for(allowed, AMP_F32, &same);
    struct amp_tensor out = {"out", (void *)(uintptr_t)view.data, view.count, view.dtype};
    assert_true(spec_holds(&out, (float[]){1.5f, -2, 1.0009765625f}));
    amp_autocast_exit();
    enter(AMP_AUTOCAST_BF16);
    view = cast_for(allowed, AMP_F32, &same);
    out = (struct amp_tensor){"out", (void *)(uintptr_t)view.data, view.count, view.dtype};
    assert_true(spec_holds(&out, (float[]){1.5f, -2, 1}));
    amp_autocast_exit();
}

static void mode_none_casts_nothing(void **state)
{
    enter(AMP_AUTOCAST_NONE);
    assert_cast_to(allowed, AMP_F32, AMP_F32);
    assert_cast_to(denied, AMP_F16, AMP_F16);
    amp_autocast_exit();
}

static void a_disabled_context_casts_nothing(void **state)
{
    for (size_t i = 0; i < COUNT(casting_modes); i++) {
        enter_disabled(casting_modes[i]);
        assert_cast_to(allowed, AMP_F32, AMP_F32);
        assert_cast_to(denied, AMP_F16, AMP_F16);
        amp_autocast_exit();
    }
}

static void outside_every_context_nothing_is_cast(void **state)
{
    assert_cast_to(allowed, AMP_F32, AMP_F32);
    assert_cast_to(denied, AMP_BF16, AMP_BF16);
}

/* ---- 2. AutoCast.Cast(tensor, dtype); 3. AutoCastContext.Cast(tensor, dtype) ---- */

static void a_cast_to_a_named_dtype_gives_that_dtype(void **state)
{
    static const enum amp_dtype dtypes[] = {AMP_F32, AMP_F16, AMP_BF16};
    struct spec_memory memory, buffer;
    struct amp_tensor tensor = spec_tensor(&memory, AMP_F32, (float[]){1.5f, -2}, 2);
    struct amp_tensor_view in = {tensor.data, 2, AMP_F32, 0, 0};
    enter(AMP_AUTOCAST_BF16);
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        struct amp_tensor_view out;
        assert_int_equal(amp_autocast_cast_to(kernels, dtypes[i], &in, buffer.words, sizeof buffer.words, &out, &fault),
                         0);
        struct amp_tensor result = {"r", (void *)(uintptr_t)out.data, out.count, out.dtype};
        assert_int_equal(out.dtype, dtypes[i]);
        assert_true(spec_holds(&result, (float[]){1.5f, -2}));
    }
    amp_autocast_exit();
}

static void a_cast_to_the_tensors_own_dtype_is_the_tensor(void **state)
{
    float values[] = {1, 2};
    struct amp_tensor_view in = {values, 2, AMP_F32, 0, 0}, out;
    assert_int_equal(amp_autocast_cast_to(kernels, AMP_F32, &in, NULL, 0, &out, &fault), 0);
    assert_ptr_equal(out.data, values);
}

/* ---- 2. GetForwardDtype, GetBackwardDtype ---- */

static void the_forward_dtype_of_a_whitelisted_operation_is_the_modes(void **state)
{
    enter(AMP_AUTOCAST_FP16);
    assert_int_equal(amp_autocast_dtype(allowed, AMP_F32), AMP_F16);
    amp_autocast_exit();
    enter(AMP_AUTOCAST_BF16);
    assert_int_equal(amp_autocast_dtype(allowed, AMP_F32), AMP_BF16);
    amp_autocast_exit();
}

static void the_forward_dtype_of_a_blacklisted_operation_is_fp32(void **state)
{
    for (size_t i = 0; i < COUNT(casting_modes); i++) {
        enter(casting_modes[i]);
        assert_int_equal(amp_autocast_dtype(denied, AMP_F16), AMP_F32);
        assert_int_equal(amp_autocast_dtype(denied, AMP_BF16), AMP_F32);
        assert_int_equal(amp_autocast_dtype(denied, AMP_F32), AMP_F32);
        amp_autocast_exit();
    }
}

static void the_forward_dtype_of_an_unknown_operation_is_its_inputs(void **state)
{
    enter(AMP_AUTOCAST_FP16);
    assert_int_equal(amp_autocast_dtype(unknown, AMP_F32), AMP_F32);
    assert_int_equal(amp_autocast_dtype(unknown, AMP_BF16), AMP_BF16);
    amp_autocast_exit();
}

static void the_backward_dtype_is_the_forwards_where_no_rule_names_one(void **state)
{
    for (size_t i = 0; i < COUNT(casting_modes); i++) {
        enter(casting_modes[i]);
        assert_int_equal(amp_autocast_backward_dtype(allowed, AMP_F32), amp_autocast_dtype(allowed, AMP_F32));
        assert_int_equal(amp_autocast_backward_dtype(denied, AMP_F16), AMP_F32);
        assert_int_equal(amp_autocast_backward_dtype(unknown, AMP_F16), AMP_F16);
        amp_autocast_exit();
    }
}

/* ---- 2. Enter, Exit, Dispose, Current; Context management ---- */

static void no_context_is_current_before_the_first_enter(void **state)
{
    assert_false(amp_autocast_current(NULL));
}

static void enter_makes_a_context_current_and_exit_restores_the_one_before(void **state)
{
    struct amp_autocast_config now;
    enter(AMP_AUTOCAST_FP16);
    assert_true(amp_autocast_current(&now));
    assert_int_equal(now.mode, AMP_AUTOCAST_FP16);
    amp_autocast_exit();
    assert_false(amp_autocast_current(NULL));
}

static void exit_without_enter_does_nothing(void **state)
{
    amp_autocast_exit();
    assert_false(amp_autocast_current(NULL));
    enter(AMP_AUTOCAST_FP16);
    assert_true(amp_autocast_current(NULL));
    amp_autocast_exit();
}

static void a_context_can_be_entered_again_after_its_exit(void **state)
{
    for (unsigned i = 0; i < 100; i++) {
        enter(AMP_AUTOCAST_BF16);
        assert_int_equal(amp_autocast_mode(), AMP_AUTOCAST_BF16);
        amp_autocast_exit();
        assert_int_equal(amp_autocast_mode(), AMP_AUTOCAST_NONE);
    }
}

/* ---- Testing requirement "nested AutoCast contexts" ---- */

static void in_nested_contexts_the_innermost_is_current(void **state)
{
    enter(AMP_AUTOCAST_FP16);
    enter(AMP_AUTOCAST_BF16);
    assert_int_equal(amp_autocast_dtype(allowed, AMP_F32), AMP_BF16);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_dtype(allowed, AMP_F32), AMP_F16);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_dtype(allowed, AMP_F32), AMP_F32);
}

static void a_disabled_context_within_another_switches_casting_off_until_its_exit(void **state)
{
    enter(AMP_AUTOCAST_FP16);
    enter_disabled(AMP_AUTOCAST_FP16);
    assert_int_equal(amp_autocast_dtype(allowed, AMP_F32), AMP_F32);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_dtype(allowed, AMP_F32), AMP_F16);
    amp_autocast_exit();
}

static void a_context_of_mode_none_within_another_switches_casting_off_until_its_exit(void **state)
{
    enter(AMP_AUTOCAST_BF16);
    enter(AMP_AUTOCAST_NONE);
    assert_int_equal(amp_autocast_dtype(allowed, AMP_F32), AMP_F32);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_dtype(allowed, AMP_F32), AMP_BF16);
    amp_autocast_exit();
}

static void the_same_context_may_nest_in_itself(void **state)
{
    enter(AMP_AUTOCAST_BF16);
    enter(AMP_AUTOCAST_BF16);
    assert_int_equal(amp_autocast_depth(), 2);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_mode(), AMP_AUTOCAST_BF16);
    amp_autocast_exit();
}

/* ---- 3. AutoCastContext: Fp16, Bf16, Create, IsActive, CurrentMode ---- */

static void the_ready_made_contexts_have_their_modes_and_are_enabled(void **state)
{
    assert_int_equal(amp_autocast_config_fp16(NULL).mode, AMP_AUTOCAST_FP16);
    assert_int_equal(amp_autocast_config_bf16(NULL).mode, AMP_AUTOCAST_BF16);
    assert_true(amp_autocast_config_fp16(NULL).enabled);
    assert_true(amp_autocast_config_bf16(NULL).enabled);
}

static void create_makes_a_context_of_any_mode(void **state)
{
    static const enum amp_autocast_mode modes[] = {AMP_AUTOCAST_FP16, AMP_AUTOCAST_BF16, AMP_AUTOCAST_NONE};
    for (size_t i = 0; i < COUNT(modes); i++)
        assert_int_equal(amp_autocast_config_of(modes[i], NULL).mode, modes[i]);
}

static void the_ready_made_contexts_take_a_registry(void **state)
{
    struct amp_registry registry;
    amp_registry_init(&registry);
    assert_ptr_equal(amp_autocast_config_fp16(&registry).registry, &registry);
    assert_ptr_equal(amp_autocast_config_bf16(&registry).registry, &registry);
    assert_ptr_equal(amp_autocast_config_of(AMP_AUTOCAST_FP16, &registry).registry, &registry);
    amp_registry_close(&registry);
}

static void is_active_is_true_within_a_context_alone(void **state)
{
    assert_false(amp_autocast_active());
    enter_config(amp_autocast_config_bf16(NULL));
    assert_true(amp_autocast_active());
    amp_autocast_exit();
    assert_false(amp_autocast_active());
}

static void the_current_mode_is_none_where_no_context_is_active(void **state)
{
    assert_int_equal(amp_autocast_mode(), AMP_AUTOCAST_NONE);
    enter_config(amp_autocast_config_fp16(NULL));
    assert_int_equal(amp_autocast_mode(), AMP_AUTOCAST_FP16);
    enter_disabled(AMP_AUTOCAST_BF16);
    assert_int_equal(amp_autocast_mode(), AMP_AUTOCAST_NONE);
    amp_autocast_exit();
    amp_autocast_exit();
}

/* ---- 4. AmpEnabled: default precisions of a function ---- */

static void a_function_has_the_default_dtypes_that_it_was_given(void **state)
{
    struct amp_registry registry;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_set_dtypes(&registry, unknown, AMP_F16, AMP_F32, &fault), 0);
    enter_config(amp_autocast_config_bf16(&registry));
    assert_int_equal(amp_autocast_dtype(unknown, AMP_F32), AMP_F16);
    assert_int_equal(amp_autocast_backward_dtype(unknown, AMP_F16), AMP_F32);
    amp_autocast_exit();
    amp_registry_close(&registry);
}

/* "DataType? DefaultForwardDtype": either may be left out. */
static void a_function_may_have_only_one_default_dtype(void **state)
{
    struct amp_registry registry;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_set_dtypes(&registry, "forward", AMP_F16, AMP_DTYPE_NONE, &fault), 0);
    assert_int_equal(amp_registry_set_dtypes(&registry, "backward", AMP_DTYPE_NONE, AMP_F32, &fault), 0);
    enter_config(amp_autocast_config_bf16(&registry));
    assert_int_equal(amp_autocast_dtype("forward", AMP_F32), AMP_F16);
    assert_int_equal(amp_autocast_backward_dtype("forward", AMP_F32), AMP_F16);
    assert_int_equal(amp_autocast_dtype("backward", AMP_BF16), AMP_BF16);
    assert_int_equal(amp_autocast_backward_dtype("backward", AMP_BF16), AMP_F32);
    amp_autocast_exit();
    amp_registry_close(&registry);
}

static void default_dtypes_count_in_a_context_alone(void **state)
{
    struct amp_registry registry;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_set_dtypes(&registry, unknown, AMP_F16, AMP_F16, &fault), 0);
    enter_config(amp_autocast_config_of(AMP_AUTOCAST_NONE, &registry));
    assert_int_equal(amp_autocast_dtype(unknown, AMP_F32), AMP_F32);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_dtype(unknown, AMP_F32), AMP_F32);
    amp_registry_close(&registry);
}

/* ---- Usage examples ---- */

static void usage_basic_a_forward_pass_is_cast_by_operation(void **state)
{
    enter(AMP_AUTOCAST_BF16);
    assert_cast_to("linear", AMP_F32, AMP_BF16);
    assert_cast_to("relu", AMP_BF16, AMP_BF16);
    assert_cast_to("mse_loss", AMP_BF16, AMP_F32);
    amp_autocast_exit();
    assert_false(amp_autocast_active());
}

static void usage_explicit_casting_within_a_ready_made_context(void **state)
{
    enter_config(amp_autocast_config_bf16(NULL));
    assert_cast_to("conv2d", AMP_F32, AMP_BF16);
    amp_autocast_exit();
}

static void usage_a_custom_operation_on_the_whitelist_gets_the_lower_precision(void **state)
{
    struct amp_registry registry;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_allow(&registry, unknown, &fault), 0);
    for (size_t i = 0; i < COUNT(casting_modes); i++) {
        enter_config(amp_autocast_config_of(casting_modes[i], &registry));
        assert_cast_to(unknown, AMP_F32, amp_autocast_low_dtype(casting_modes[i]));
        assert_cast_to(denied, AMP_F32, AMP_F32);
        amp_autocast_exit();
    }
    amp_registry_close(&registry);
}

static void a_custom_registry_goes_before_the_default_one(void **state)
{
    struct amp_registry registry;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_deny(&registry, allowed, &fault), 0);
    assert_int_equal(amp_registry_allow(&registry, denied, &fault), 0);
    enter_config(amp_autocast_config_bf16(&registry));
    assert_int_equal(amp_autocast_dtype(allowed, AMP_BF16), AMP_F32);
    assert_int_equal(amp_autocast_dtype(denied, AMP_F32), AMP_BF16);
    enter_config(amp_autocast_config_bf16(NULL));
    assert_int_equal(amp_autocast_dtype(allowed, AMP_F32), AMP_BF16);
    amp_autocast_exit();
    amp_autocast_exit();
    amp_registry_close(&registry);
}

static void get_rule_tells_whether_an_operation_has_a_rule(void **state)
{
    struct amp_registry registry;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_rule(&registry, AMP_AUTOCAST_BF16, unknown).policy, AMP_OP_UNLISTED);
    assert_int_equal(amp_registry_allow(&registry, unknown, &fault), 0);
    assert_int_equal(amp_registry_rule(&registry, AMP_AUTOCAST_BF16, unknown).policy, AMP_OP_LOWER);
    assert_int_equal(amp_registry_rule(&registry, AMP_AUTOCAST_BF16, denied).policy, AMP_OP_FP32);
    amp_registry_close(&registry);
}

/* ---- Thread-local storage ---- */

static void *look_from_another_thread(void *arg)
{
    enum amp_autocast_mode *modes = arg;
    modes[0] = amp_autocast_mode();
    if (amp_autocast_enter(AMP_AUTOCAST_BF16) == 0)
        modes[1] = amp_autocast_mode();
    return NULL; /* its region ends with it */
}

static void a_context_belongs_to_its_thread(void **state)
{
    enum amp_autocast_mode seen[2] = {AMP_AUTOCAST_FP16, AMP_AUTOCAST_FP16};
    pthread_t thread;
    enter(AMP_AUTOCAST_FP16);
    assert_int_equal(pthread_create(&thread, NULL, look_from_another_thread, seen), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(seen[0], AMP_AUTOCAST_NONE);
    assert_int_equal(seen[1], AMP_AUTOCAST_BF16);
    assert_int_equal(amp_autocast_mode(), AMP_AUTOCAST_FP16);
    assert_int_equal(amp_autocast_depth(), 1);
    amp_autocast_exit();
}

/* ---- Performance considerations: "Avoid unnecessary dtype conversions", "Cache" ---- */

static void a_tensor_that_did_not_change_is_converted_once(void **state)
{
    float values[] = {1.5f, -2};
    struct amp_tensor_view in = {values, 2, AMP_F32, 1, 1}, first, second;
    struct amp_cast_cache_stats stats;
    struct amp_cast_cache *cache = amp_cast_cache_new(1024);
    assert_non_null(cache);
    enter(AMP_AUTOCAST_BF16);
    assert_int_equal(amp_autocast_cast(kernels, allowed, &in, cache, NULL, 0, &first, &fault), 0);
    assert_int_equal(amp_autocast_cast(kernels, allowed, &in, cache, NULL, 0, &second, &fault), 0);
    assert_ptr_equal(first.data, second.data);
    amp_autocast_exit();
    amp_cast_cache_stats(cache, &stats);
    assert_int_equal(stats.hits, 1);
    assert_int_equal(stats.misses, 1);
    amp_cast_cache_free(cache);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_are_three_modes_of_different_numbers),
        cmocka_unit_test(each_mode_has_its_precision),
        cmocka_unit_test(the_default_context_is_bf16_and_enabled),
        cmocka_unit_test(a_context_has_the_mode_and_registry_that_it_was_made_with),
        cmocka_unit_test(a_context_tells_that_it_is_not_enabled),
        cmocka_unit_test(a_whitelisted_operation_gets_the_lower_precision),
        cmocka_unit_test(a_blacklisted_operation_gets_the_higher_precision),
        cmocka_unit_test(an_operation_without_a_rule_keeps_the_dtype_of_its_input),
        cmocka_unit_test(a_tensor_of_the_target_dtype_is_not_cast_again),
        cmocka_unit_test(a_cast_rounds_every_element_to_the_target),
        cmocka_unit_test(mode_none_casts_nothing),
        cmocka_unit_test(a_disabled_context_casts_nothing),
        cmocka_unit_test(outside_every_context_nothing_is_cast),
        cmocka_unit_test(a_cast_to_a_named_dtype_gives_that_dtype),
        cmocka_unit_test(a_cast_to_the_tensors_own_dtype_is_the_tensor),
        cmocka_unit_test(the_forward_dtype_of_a_whitelisted_operation_is_the_modes),
        cmocka_unit_test(the_forward_dtype_of_a_blacklisted_operation_is_fp32),
        cmocka_unit_test(the_forward_dtype_of_an_unknown_operation_is_its_inputs),
        cmocka_unit_test(the_backward_dtype_is_the_forwards_where_no_rule_names_one),
        cmocka_unit_test(no_context_is_current_before_the_first_enter),
        cmocka_unit_test(enter_makes_a_context_current_and_exit_restores_the_one_before),
        cmocka_unit_test(exit_without_enter_does_nothing),
        cmocka_unit_test(a_context_can_be_entered_again_after_its_exit),
        cmocka_unit_test(in_nested_contexts_the_innermost_is_current),
        cmocka_unit_test(a_disabled_context_within_another_switches_casting_off_until_its_exit),
        cmocka_unit_test(a_context_of_mode_none_within_another_switches_casting_off_until_its_exit),
        cmocka_unit_test(the_same_context_may_nest_in_itself),
        cmocka_unit_test(the_ready_made_contexts_have_their_modes_and_are_enabled),
        cmocka_unit_test(create_makes_a_context_of_any_mode),
        cmocka_unit_test(the_ready_made_contexts_take_a_registry),
        cmocka_unit_test(is_active_is_true_within_a_context_alone),
        cmocka_unit_test(the_current_mode_is_none_where_no_context_is_active),
        cmocka_unit_test(a_function_has_the_default_dtypes_that_it_was_given),
        cmocka_unit_test(a_function_may_have_only_one_default_dtype),
        cmocka_unit_test(default_dtypes_count_in_a_context_alone),
        cmocka_unit_test(usage_basic_a_forward_pass_is_cast_by_operation),
        cmocka_unit_test(usage_explicit_casting_within_a_ready_made_context),
        cmocka_unit_test(usage_a_custom_operation_on_the_whitelist_gets_the_lower_precision),
        cmocka_unit_test(a_custom_registry_goes_before_the_default_one),
        cmocka_unit_test(get_rule_tells_whether_an_operation_has_a_rule),
        cmocka_unit_test(a_context_belongs_to_its_thread),
        cmocka_unit_test(a_tensor_that_did_not_change_is_converted_once),
    };
    return cmocka_run_group_tests(tests, spec_setup, NULL);
}
