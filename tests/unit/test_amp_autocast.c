/* Autocast regions, PyTorch's lists, promotion, and casts. */
#include "amp/autocast.h"
#include "amp/cpu.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void outside_a_region_nothing_is_cast(void **state)
{
    assert_int_equal(amp_autocast_mode(), AMP_AUTOCAST_NONE);
    assert_int_equal(amp_autocast_dtype("linear", AMP_F32), AMP_F32);
    assert_int_equal(amp_autocast_dtype("linear", AMP_BF16), AMP_BF16);
}

static void fp16_follows_cudas_lists(void **state)
{
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_dtype("linear", AMP_F32), AMP_F16);
    assert_int_equal(amp_autocast_dtype("matmul", AMP_F16), AMP_F16);
    assert_int_equal(amp_autocast_dtype("cross_entropy", AMP_F16), AMP_F32);
    assert_int_equal(amp_autocast_dtype("softmax", AMP_F16), AMP_F32);
    assert_int_equal(amp_autocast_dtype("norm", AMP_F16), AMP_F32);
    assert_int_equal(amp_autocast_dtype("relu", AMP_F16), AMP_F16);
    assert_int_equal(amp_autocast_dtype("linear", AMP_F64), AMP_F64);
    amp_autocast_exit();
}

static void bf16_follows_the_cpus_lists(void **state)
{
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_BF16), 0);
    assert_int_equal(amp_autocast_dtype("linear", AMP_F32), AMP_BF16);
    assert_int_equal(amp_autocast_dtype("cross_entropy", AMP_BF16), AMP_F32);
    assert_int_equal(amp_autocast_dtype("mv", AMP_F32), AMP_F32);
    assert_int_equal(amp_autocast_dtype("softmax", AMP_BF16), AMP_BF16);
    assert_int_equal(amp_autocast_dtype("binary_cross_entropy", AMP_BF16), AMP_F32);
    amp_autocast_exit();
}

/* What docs/amp.md says of the two lists. */
static void the_lists_differ_as_documented(void **state)
{
    static const char *const only_cuda[] = {
        "softmax",    "log_softmax",       "exp",        "log", "pow", "sum", "cumsum", "norm", "softplus", "rsqrt",
        "layer_norm", "native_layer_norm", "group_norm", "dist"};
    static const char *const both[] = {"cross_entropy", "nll_loss", "mse_loss", "l1_loss", "kl_div", "prod", "cdist"};
    for (size_t i = 0; i < sizeof only_cuda / sizeof *only_cuda; i++) {
        assert_int_equal(amp_op_lists_policy(AMP_OP_LISTS_CUDA, only_cuda[i]), AMP_OP_FP32);
        assert_int_equal(amp_op_lists_policy(AMP_OP_LISTS_CPU, only_cuda[i]), AMP_OP_UNLISTED);
    }
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
        assert_int_equal(amp_op_lists_policy(AMP_OP_LISTS_CUDA, both[i]), AMP_OP_FP32);
        assert_int_equal(amp_op_lists_policy(AMP_OP_LISTS_CPU, both[i]), AMP_OP_FP32);
    }
    assert_int_equal(amp_op_lists_policy(AMP_OP_LISTS_OF_MODE, "linear"), AMP_OP_UNLISTED);
    assert_int_equal(amp_op_lists_policy((enum amp_op_lists)3, "linear"), AMP_OP_UNLISTED);
    assert_int_equal(amp_op_lists_policy(AMP_OP_LISTS_CUDA, NULL), AMP_OP_UNLISTED);
}

static void any_low_dtype_goes_with_any_lists(void **state)
{
    static const struct {
        enum amp_autocast_mode mode;
        enum amp_op_lists lists, expected;
    } rows[] = {{AMP_AUTOCAST_FP16, AMP_OP_LISTS_OF_MODE, AMP_OP_LISTS_CUDA},
                {AMP_AUTOCAST_FP16, AMP_OP_LISTS_CUDA, AMP_OP_LISTS_CUDA},
                {AMP_AUTOCAST_FP16, AMP_OP_LISTS_CPU, AMP_OP_LISTS_CPU},
                {AMP_AUTOCAST_BF16, AMP_OP_LISTS_OF_MODE, AMP_OP_LISTS_CPU},
                {AMP_AUTOCAST_BF16, AMP_OP_LISTS_CUDA, AMP_OP_LISTS_CUDA},
                {AMP_AUTOCAST_BF16, AMP_OP_LISTS_CPU, AMP_OP_LISTS_CPU}};
    struct amp_registry registry; /* with one rule, and empty, the lists are the same */
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_allow(&registry, "mine", NULL), 0);
    for (size_t i = 0; i < 12; i++) {
        struct amp_autocast_config config = amp_autocast_config_of(rows[i / 2].mode, i % 2 == 0 ? NULL : &registry),
                                   now;
        enum amp_dtype low = amp_autocast_low_dtype(config.mode), out;
        bool cuda = rows[i / 2].expected == AMP_OP_LISTS_CUDA;
        config.lists = rows[i / 2].lists;
        assert_int_equal(amp_autocast_enter_config(&config), 0);
        assert_true(amp_autocast_current(&now));
        assert_int_equal(now.lists, rows[i / 2].expected);
        assert_int_equal(amp_autocast_dtype("linear", AMP_F32), low);
        assert_int_equal(amp_autocast_dtype("mv", AMP_F32), cuda ? low : AMP_F32);
        assert_int_equal(amp_autocast_dtype("softmax", low), cuda ? AMP_F32 : low);
        assert_int_equal(amp_autocast_backward_dtype("layer_norm", low), cuda ? AMP_F32 : low);
        assert_int_equal(amp_autocast_dtype("cholesky", low), cuda ? low : AMP_F32);
        int code = amp_autocast_promote("binary_cross_entropy", &low, 1, &out, NULL);
        assert_int_equal(code, cuda ? AMP_EINVAL : 0);
        amp_autocast_exit();
    }
    struct amp_autocast_config config = amp_autocast_config_bf16(NULL);
    config.lists = (enum amp_op_lists)3;
    assert_int_equal(amp_autocast_enter_config(&config), AMP_EINVAL);
    amp_registry_close(&registry);
}

static void inner_regions_win_until_they_end(void **state)
{
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_NONE), 0);
    assert_int_equal(amp_autocast_dtype("linear", AMP_F32), AMP_F32);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_BF16), 0);
    assert_int_equal(amp_autocast_dtype("linear", AMP_F32), AMP_BF16);
    assert_int_equal(amp_autocast_mode(), AMP_AUTOCAST_BF16);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_mode(), AMP_AUTOCAST_NONE);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_dtype("linear", AMP_F32), AMP_F16);
    assert_int_equal(amp_autocast_mode(), AMP_AUTOCAST_FP16);
    amp_autocast_exit();
    assert_int_equal(amp_autocast_mode(), AMP_AUTOCAST_NONE);
}

static void nesting_is_bounded_and_unknown_modes_are_refused(void **state)
{
    assert_int_equal(amp_autocast_enter((enum amp_autocast_mode)9), AMP_EINVAL);
    for (unsigned i = 0; i < AMP_AUTOCAST_DEPTH_MAX; i++)
        assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), AMP_EEXHAUSTED);
    for (unsigned i = 0; i < AMP_AUTOCAST_DEPTH_MAX; i++)
        amp_autocast_exit();
}

static void *mode_of_thread(void *mode)
{
    *(enum amp_autocast_mode *)mode = amp_autocast_mode();
    return NULL;
}

static void a_region_belongs_to_its_thread(void **state)
{
    pthread_t thread;
    enum amp_autocast_mode other = AMP_AUTOCAST_FP16;
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(pthread_create(&thread, NULL, mode_of_thread, &other), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    amp_autocast_exit();
    assert_int_equal(other, AMP_AUTOCAST_NONE);
}

static void promoting_ops_take_the_widest_of_their_inputs(void **state)
{
    enum amp_dtype out;
    const enum amp_dtype mixed[] = {AMP_F16, AMP_F32, AMP_F64};
    const enum amp_dtype low[] = {AMP_F16, AMP_F16};
    const enum amp_dtype foreign[] = {AMP_F16, AMP_BF16};
    struct amp_error error;
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_promote("addcmul", mixed, 3, &out, NULL), 0);
    assert_int_equal(out, AMP_F32);
    assert_int_equal(amp_autocast_promote("addcmul", low, 2, &out, NULL), 0);
    assert_int_equal(out, AMP_F16);
    assert_int_equal(amp_autocast_promote("addcmul", &mixed[2], 1, &out, NULL), 0);
    assert_int_equal(out, AMP_F64);
    assert_int_equal(amp_autocast_promote("addcmul", foreign, 2, &out, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "bf16"));
    assert_int_equal(amp_autocast_promote("linear", mixed, 3, &out, NULL), 0);
    assert_int_equal(out, AMP_F16);
    assert_int_equal(amp_autocast_promote("addcmul", mixed, 0, &out, NULL), AMP_EINVAL);
    amp_autocast_exit();
}

static void a_banned_op_is_refused_with_the_remedy(void **state)
{
    const enum amp_dtype in = AMP_F16;
    enum amp_dtype out;
    struct amp_error error;
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_promote("binary_cross_entropy", &in, 1, &out, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "binary_cross_entropy_with_logits"));
    amp_autocast_exit();
}

static void the_built_in_list_is_sorted_and_complete(void **state)
{
    size_t n = 0;
    for (; amp_registry_builtin(n) != NULL; n++) {
        if (n > 0)
            assert_true(strcmp(amp_registry_builtin(n - 1), amp_registry_builtin(n)) < 0);
        assert_true(amp_registry_policy(NULL, AMP_AUTOCAST_FP16, amp_registry_builtin(n)) != AMP_OP_UNLISTED ||
                    amp_registry_policy(NULL, AMP_AUTOCAST_BF16, amp_registry_builtin(n)) != AMP_OP_UNLISTED);
        assert_int_equal(amp_registry_policy(NULL, AMP_AUTOCAST_NONE, amp_registry_builtin(n)), AMP_OP_UNLISTED);
    }
    assert_int_equal(n, 199);
}

static void a_registry_of_ones_own_comes_first(void **state)
{
    struct amp_registry registry;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_set(&registry, AMP_AUTOCAST_FP16, "my_op", AMP_OP_LOWER, NULL), 0);
    assert_int_equal(amp_registry_set(&registry, AMP_AUTOCAST_FP16, "linear", AMP_OP_FP32, NULL), 0);
    assert_int_equal(amp_autocast_enter_with(AMP_AUTOCAST_FP16, &registry), 0);
    assert_int_equal(amp_autocast_dtype("my_op", AMP_F32), AMP_F16);
    assert_int_equal(amp_autocast_dtype("linear", AMP_F16), AMP_F32);
    assert_int_equal(amp_autocast_dtype("matmul", AMP_F32), AMP_F16);
    amp_autocast_exit();
    /* What was not set stays as the built-in list has it. */
    assert_int_equal(amp_registry_policy(&registry, AMP_AUTOCAST_BF16, "linear"), AMP_OP_LOWER);
    amp_registry_close(&registry);
}

static void a_registry_refuses_what_does_not_fit(void **state)
{
    struct amp_registry registry;
    char name[AMP_OP_NAME_MAX + 1];
    amp_registry_init(&registry);
    memset(name, 'x', sizeof name);
    name[AMP_OP_NAME_MAX] = '\0';
    assert_int_equal(amp_registry_set(&registry, AMP_AUTOCAST_FP16, name, AMP_OP_FP32, NULL), AMP_EINVAL);
    assert_int_equal(amp_registry_set(&registry, AMP_AUTOCAST_FP16, "", AMP_OP_FP32, NULL), AMP_EINVAL);
    assert_int_equal(amp_registry_set(&registry, AMP_AUTOCAST_NONE, "op", AMP_OP_FP32, NULL), AMP_EINVAL);
    assert_int_equal(registry.count, 0);
    amp_registry_close(&registry);
}

static void the_right_dtype_is_not_copied(void **state)
{
    uint16_t data[3] = {0x3c00, 0, 1};
    struct amp_tensor_view in = {data, 3, AMP_F16, 1, 1};
    struct amp_tensor_view out;
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "linear", &in, NULL, NULL, 0, &out, NULL), 0);
    assert_ptr_equal(out.data, data);
    amp_autocast_exit();
}

static void a_cast_without_cache_needs_a_buffer_of_its_size(void **state)
{
    float data[3] = {1, 2, 65536};
    uint16_t buffer[3];
    struct amp_tensor_view in = {data, 3, AMP_F32, 0, 0};
    struct amp_tensor_view out;
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "linear", &in, NULL, buffer, 5, &out, NULL), AMP_ERANGE);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "linear", &in, NULL, NULL, 6, &out, NULL), AMP_ERANGE);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "linear", &in, NULL, buffer, 6, &out, NULL), 0);
    assert_ptr_equal(out.data, buffer);
    assert_int_equal(out.dtype, AMP_F16);
    assert_int_equal(buffer[0], 0x3c00);
    assert_int_equal(buffer[2], 0x7c00);
    amp_autocast_exit();
}

static void a_cast_over_its_own_operand_or_of_more_than_memory_is_refused(void **state)
{
    float data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct amp_tensor_view in = {data + 2, 4, AMP_F32, 0, 0}, out;
    struct amp_error error;
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    for (size_t start = 1; start <= 5; start++) {
        bool apart = start == 1; /* 8 bytes before the operand, which begins at 8 */
        int code = amp_autocast_cast(&amp_kernels_ref, "mm", &in, NULL, data + start - 1, 8, &out, &error);
        assert_int_equal(code, apart ? 0 : AMP_EINVAL);
        code = amp_autocast_cast_to(&amp_kernels_ref, AMP_BF16, &in, data + start - 1, 8, &out, &error);
        assert_int_equal(code, apart ? 0 : AMP_EINVAL);
    }
    assert_non_null(strstr(error.text, "overlaps"));
    assert_true(data[2] == 3 && data[5] == 6);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &in, NULL, data + 6, 8, &out, &error), 0);
    in.count = SIZE_MAX / 2 + 2; /* as f16, a size of 4 if it wrapped */
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "mm", &in, NULL, data + 6, 8, &out, &error), AMP_EINVAL);
    assert_int_equal(amp_autocast_cast_to(&amp_kernels_ref, AMP_F16, &in, data + 6, 8, &out, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "memory"));
    amp_autocast_exit();
}

static void casts_between_the_low_types_go_through_fp32(void **state)
{
    uint16_t in[600], out[600];
    for (size_t i = 0; i < 600; i++)
        in[i] = (uint16_t)(0x3c00 + i);
    amp_cast(&amp_kernels_ref, out, AMP_BF16, in, AMP_F16, 600);
    for (size_t i = 0; i < 600; i++) {
        float x;
        uint16_t expected;
        amp_kernels_ref.load[AMP_F16](&x, &in[i], 1);
        (void)amp_kernels_ref.store[AMP_BF16](&expected, &x, 1);
        assert_int_equal(out[i], expected);
    }
}

static void a_cast_too_large_for_the_caches_is_that_of_its_parts(void **state)
{
    enum { N = 5 << 20, PART = 1000 };
    const struct amp_kernels *kernels;
    float *wide = malloc(N * sizeof *wide);
    uint16_t *narrow = malloc(N * sizeof *narrow);
    assert_true(wide != NULL && narrow != NULL);
    assert_int_equal(amp_cpu_select(NULL, &kernels, NULL), 0);
    for (size_t i = 0; i < N; i++)
        wide[i] = (float)i * 0x1p-10f;
    amp_cast(kernels, narrow, AMP_F16, wide, AMP_F32, N);
    for (size_t i = 0; i + PART <= N; i += N / 50) {
        uint16_t part[PART];
        amp_cast(kernels, part, AMP_F16, wide + i, AMP_F32, PART);
        assert_memory_equal(narrow + i, part, sizeof part);
    }
    amp_cast(kernels, wide, AMP_F32, narrow, AMP_F16, N);
    for (size_t i = 0; i + PART <= N; i += N / 50) {
        float part[PART];
        amp_cast(kernels, part, AMP_F32, narrow + i, AMP_F16, PART);
        assert_memory_equal(wide + i, part, sizeof part);
    }
    free(narrow);
    free(wide);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outside_a_region_nothing_is_cast),
        cmocka_unit_test(fp16_follows_cudas_lists),
        cmocka_unit_test(bf16_follows_the_cpus_lists),
        cmocka_unit_test(the_lists_differ_as_documented),
        cmocka_unit_test(any_low_dtype_goes_with_any_lists),
        cmocka_unit_test(inner_regions_win_until_they_end),
        cmocka_unit_test(nesting_is_bounded_and_unknown_modes_are_refused),
        cmocka_unit_test(a_region_belongs_to_its_thread),
        cmocka_unit_test(promoting_ops_take_the_widest_of_their_inputs),
        cmocka_unit_test(a_banned_op_is_refused_with_the_remedy),
        cmocka_unit_test(the_built_in_list_is_sorted_and_complete),
        cmocka_unit_test(a_registry_of_ones_own_comes_first),
        cmocka_unit_test(a_registry_refuses_what_does_not_fit),
        cmocka_unit_test(the_right_dtype_is_not_copied),
        cmocka_unit_test(a_cast_without_cache_needs_a_buffer_of_its_size),
        cmocka_unit_test(a_cast_over_its_own_operand_or_of_more_than_memory_is_refused),
        cmocka_unit_test(casts_between_the_low_types_go_through_fp32),
        cmocka_unit_test(a_cast_too_large_for_the_caches_is_that_of_its_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
