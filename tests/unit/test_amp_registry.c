/* A program's own rules on top of the built-in lists: allow, deny, promote, keep, ban, and their bounds. */
#include "amp/autocast.h"
#include "amp/cpu.h"
#include "amp/registry.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void custom_ops_follow_their_rule_in_both_modes(void **state)
{
    struct amp_registry registry;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_allow(&registry, "mine", NULL), 0);
    assert_int_equal(amp_registry_deny(&registry, "exact", NULL), 0);
    assert_int_equal(amp_registry_promote(&registry, "join", NULL), 0);
    for (int mode = AMP_AUTOCAST_FP16; mode <= AMP_AUTOCAST_BF16; mode++) {
        enum amp_dtype low = amp_autocast_low_dtype((enum amp_autocast_mode)mode);
        enum amp_dtype in[2] = {low, AMP_F32}, out;
        assert_int_equal(amp_autocast_enter_with((enum amp_autocast_mode)mode, &registry), 0);
        assert_int_equal(amp_autocast_dtype("mine", AMP_F32), low);
        assert_int_equal(amp_autocast_dtype("exact", low), AMP_F32);
        assert_int_equal(amp_autocast_promote("join", in, 2, &out, NULL), 0);
        assert_int_equal(out, AMP_F32);
        assert_int_equal(amp_autocast_promote("join", in, 1, &out, NULL), 0);
        assert_int_equal(out, low);
        amp_autocast_exit();
    }
    amp_registry_close(&registry);
}

static void the_last_rule_of_an_op_holds_and_takes_one_row(void **state)
{
    struct amp_registry registry;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_allow(&registry, "mine", NULL), 0);
    assert_int_equal(amp_registry_deny(&registry, "mine", NULL), 0);
    assert_int_equal(registry.count, 1);
    assert_int_equal(amp_registry_policy(&registry, AMP_AUTOCAST_FP16, "mine"), AMP_OP_FP32);
    assert_int_equal(amp_registry_keep(&registry, "mine", NULL), 0);
    assert_int_equal(amp_registry_policy(&registry, AMP_AUTOCAST_BF16, "mine"), AMP_OP_UNLISTED);
    amp_registry_close(&registry);
}

static void a_kept_op_runs_in_its_input_types_against_the_built_in_list(void **state)
{
    struct amp_registry registry;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_keep(&registry, "softmax", NULL), 0);
    assert_int_equal(amp_autocast_enter_with(AMP_AUTOCAST_FP16, &registry), 0);
    assert_int_equal(amp_autocast_dtype("softmax", AMP_F16), AMP_F16);
    assert_int_equal(amp_autocast_dtype("log_softmax", AMP_F16), AMP_F32);
    amp_autocast_exit();
    amp_registry_close(&registry);
}

static void a_banned_op_of_ones_own_is_refused_with_its_remedy(void **state)
{
    struct amp_registry registry;
    struct amp_error error;
    float data[1] = {1};
    struct amp_tensor_view in = {data, 1, AMP_F32, 0, 0}, out;
    enum amp_dtype dtype = AMP_F32;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_ban(&registry, "bad", "use better", NULL), 0);
    assert_int_equal(amp_registry_ban(&registry, "worse", NULL, NULL), 0);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "bad", &in, NULL, NULL, 0, &out, NULL), 0); /* outside */
    assert_int_equal(amp_autocast_enter_with(AMP_AUTOCAST_BF16, &registry), 0);
    assert_int_equal(amp_autocast_cast(&amp_kernels_ref, "bad", &in, NULL, NULL, 0, &out, &error), AMP_EINVAL);
    assert_string_equal(error.text, "bad is unsafe under autocast: use better, or leave the region for it");
    assert_int_equal(amp_autocast_promote("worse", &dtype, 1, &dtype, &error), AMP_EINVAL);
    assert_string_equal(error.text, "worse is unsafe under autocast: leave the region for it");
    /* A rule that comes in its place has no remedy; in the other mode it stays. */
    assert_int_equal(amp_registry_set(&registry, AMP_AUTOCAST_BF16, "bad", AMP_OP_BANNED, NULL), 0);
    assert_int_equal(amp_autocast_promote("bad", &dtype, 1, &dtype, &error), AMP_EINVAL);
    assert_string_equal(error.text, "bad is unsafe under autocast: leave the region for it");
    const char *own = amp_registry_rule_of(&registry, AMP_AUTOCAST_FP16, AMP_OP_LISTS_OF_MODE, "bad").remedy;
    assert_string_equal(own, "use better");
    assert_int_equal(amp_registry_ban(&registry, "bad", own, NULL), 0);
    assert_int_equal(amp_autocast_promote("bad", &dtype, 1, &dtype, &error), AMP_EINVAL);
    assert_string_equal(error.text, "bad is unsafe under autocast: use better, or leave the region for it");
    amp_autocast_exit();
    amp_registry_close(&registry);
}

static void the_built_in_ban_can_be_lifted_by_a_rule(void **state)
{
    struct amp_registry registry;
    enum amp_dtype in = AMP_F16, out;
    struct amp_error error;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_deny(&registry, "binary_cross_entropy", NULL), 0);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(amp_autocast_promote("binary_cross_entropy", &in, 1, &out, &error), AMP_EINVAL);
    assert_int_equal(amp_autocast_enter_with(AMP_AUTOCAST_FP16, &registry), 0);
    assert_int_equal(amp_autocast_promote("binary_cross_entropy", &in, 1, &out, NULL), 0);
    assert_int_equal(out, AMP_F32);
    amp_autocast_exit();
    amp_autocast_exit();
    amp_registry_close(&registry);
}

static void rules_refuse_what_does_not_fit_and_change_nothing(void **state)
{
    struct amp_registry registry;
    struct amp_error error;
    char remedy[AMP_OP_REMEDY_MAX + 1];
    amp_registry_init(&registry);
    memset(remedy, 'r', sizeof remedy);
    remedy[AMP_OP_REMEDY_MAX] = '\0';
    assert_int_equal(amp_registry_ban(&registry, "bad", remedy, &error), AMP_EINVAL);
    assert_int_equal(amp_registry_allow(&registry, "", &error), AMP_EINVAL);
    assert_int_equal(amp_registry_set(&registry, AMP_AUTOCAST_FP16, "op", (enum amp_op_policy)9, NULL), AMP_EINVAL);
    assert_int_equal(registry.count, 0);
    amp_registry_close(&registry);
}

/* Names that are alike at both ends, as those of a model's layers are. */
static void a_registry_takes_as_many_ops_as_a_program_has(void **state)
{
    enum { OPS = 5000 };
    struct amp_registry registry;
    char op[AMP_OP_NAME_MAX];
    amp_registry_init(&registry);
    for (unsigned i = 0; i < OPS; i++) {
        (void)snprintf(op, sizeof op, "transformer_block_%04u_attention_forward", i);
        int code = i % 2 == 0 ? amp_registry_allow(&registry, op, NULL) : amp_registry_deny(&registry, op, NULL);
        assert_int_equal(code, 0);
    }
    assert_int_equal(registry.count, OPS);
    for (unsigned i = 0; i < OPS; i++) {
        (void)snprintf(op, sizeof op, "transformer_block_%04u_attention_forward", i);
        enum amp_op_policy expected = i % 2 == 0 ? AMP_OP_LOWER : AMP_OP_FP32;
        assert_int_equal(amp_registry_policy(&registry, AMP_AUTOCAST_FP16, op), expected);
        assert_int_equal(amp_registry_policy(&registry, AMP_AUTOCAST_BF16, op), expected);
    }
    assert_int_equal(amp_registry_policy(&registry, AMP_AUTOCAST_BF16, "linear"), AMP_OP_LOWER);
    amp_registry_close(&registry);
    assert_int_equal(registry.count, 0);
    assert_int_equal(amp_registry_policy(&registry, AMP_AUTOCAST_BF16, op), AMP_OP_UNLISTED);
    amp_registry_close(&registry); /* nothing more to free */
}

/* Each rule after a default dtype, and a default dtype after a rule. */
static void the_last_of_rules_and_default_dtypes_takes_effect(void **state)
{
    struct amp_registry registry;
    enum amp_dtype in = AMP_F16, out;
    amp_registry_init(&registry);
    assert_int_equal(amp_registry_set_dtypes(&registry, "mine", AMP_BF16, AMP_BF16, NULL), 0);
    assert_int_equal(amp_autocast_enter_with(AMP_AUTOCAST_FP16, &registry), 0);
    assert_int_equal(amp_registry_deny(&registry, "mine", NULL), 0);
    assert_int_equal(amp_autocast_dtype("mine", AMP_F16), AMP_F32);
    assert_int_equal(amp_autocast_backward_dtype("mine", AMP_F16), AMP_F32);
    assert_int_equal(amp_registry_set_dtypes(&registry, "mine", AMP_BF16, AMP_F32, NULL), 0);
    assert_int_equal(amp_autocast_dtype("mine", AMP_F16), AMP_BF16);
    assert_int_equal(amp_registry_allow(&registry, "mine", NULL), 0);
    assert_int_equal(amp_autocast_dtype("mine", AMP_F32), AMP_F16);
    assert_int_equal(amp_autocast_backward_dtype("mine", AMP_F16), AMP_F16);
    assert_int_equal(amp_registry_set_dtypes(&registry, "mine", AMP_DTYPE_NONE, AMP_F32, NULL), 0);
    assert_int_equal(amp_autocast_dtype("mine", AMP_F32), AMP_F16); /* by the policy, which stays */
    assert_int_equal(amp_registry_ban(&registry, "mine", NULL, NULL), 0);
    assert_int_equal(amp_autocast_promote("mine", &in, 1, &out, NULL), AMP_EINVAL);
    assert_int_equal(amp_registry_set_dtypes(&registry, "mine", AMP_F32, AMP_F32, NULL), 0);
    assert_int_equal(amp_autocast_promote("mine", &in, 1, &out, NULL), 0);
    assert_int_equal(out, AMP_F32);
    /* A policy of one mode leaves the other mode's default dtype. */
    assert_int_equal(amp_registry_set(&registry, AMP_AUTOCAST_FP16, "mine", AMP_OP_LOWER, NULL), 0);
    assert_int_equal(amp_autocast_dtype("mine", AMP_F32), AMP_F16);
    assert_int_equal(amp_registry_rule(&registry, AMP_AUTOCAST_BF16, "mine").forward, AMP_F32);
    amp_autocast_exit();
    amp_registry_close(&registry);
}

static void a_rule_tells_all_that_is_known_of_an_op(void **state)
{
    struct amp_op_rule rule = amp_registry_rule(NULL, AMP_AUTOCAST_FP16, "binary_cross_entropy");
    assert_int_equal(rule.policy, AMP_OP_BANNED);
    assert_string_equal(rule.remedy, "use binary_cross_entropy_with_logits");
    rule = amp_registry_rule(NULL, AMP_AUTOCAST_BF16, "binary_cross_entropy");
    assert_int_equal(rule.policy, AMP_OP_FP32);
    assert_null(rule.remedy);
    rule = amp_registry_rule(NULL, AMP_AUTOCAST_NONE, "linear");
    assert_int_equal(rule.policy, AMP_OP_UNLISTED);
    assert_int_equal(rule.forward, AMP_DTYPE_NONE);
}

static void names_that_are_not_in_the_lists_are_unlisted(void **state)
{
    char name[AMP_OP_NAME_MAX + 8];
    assert_int_equal(amp_registry_policy(NULL, AMP_AUTOCAST_FP16, ""), AMP_OP_UNLISTED);
    for (size_t i = 0; amp_registry_builtin(i) != NULL; i++) {
        (void)snprintf(name, sizeof name, "%s~", amp_registry_builtin(i));
        assert_int_equal(amp_registry_policy(NULL, AMP_AUTOCAST_FP16, name), AMP_OP_UNLISTED);
        assert_int_equal(amp_registry_policy(NULL, AMP_AUTOCAST_BF16, name), AMP_OP_UNLISTED);
        name[0] ^= 1;
        assert_int_equal(amp_registry_policy(NULL, AMP_AUTOCAST_FP16, name), AMP_OP_UNLISTED);
    }
}

static bool is_listed(const char *op)
{
    for (size_t i = 0; amp_registry_builtin(i) != NULL; i++)
        if (strcmp(amp_registry_builtin(i), op) == 0)
            return true;
    return false;
}

/* In memory of its own size, so that a sanitizer sees a byte too many that is read. */
static void assert_unlisted_unless_listed(const char *op, size_t length)
{
    char *exact = malloc(length + 1);
    assert_non_null(exact);
    memcpy(exact, op, length);
    exact[length] = '\0';
    bool listed = amp_registry_policy(NULL, AMP_AUTOCAST_FP16, exact) != AMP_OP_UNLISTED ||
                  amp_registry_policy(NULL, AMP_AUTOCAST_BF16, exact) != AMP_OP_UNLISTED;
    assert_int_equal(listed, is_listed(exact));
    free(exact);
}

static void a_name_that_differs_in_one_byte_or_in_length_is_another(void **state)
{
    for (size_t i = 0; amp_registry_builtin(i) != NULL; i++) {
        char op[AMP_OP_NAME_MAX] = {0};
        size_t length = strlen(amp_registry_builtin(i));
        memcpy(op, amp_registry_builtin(i), length);
        for (size_t cut = 0; cut <= length; cut++)
            assert_unlisted_unless_listed(op, cut);
        for (size_t at = 0; at <= length; at++) {
            char was = op[at];
            op[at] = was == 'q' ? 'z' : 'q';
            assert_unlisted_unless_listed(op, at == length ? length + 1 : length);
            op[at] = was;
        }
    }
}

static void *look_everything_up(void *missing)
{
    size_t *n = missing;
    *n = 0;
    for (size_t i = 0; amp_registry_builtin(i) != NULL; i++)
        *n += amp_registry_policy(NULL, AMP_AUTOCAST_FP16, amp_registry_builtin(i)) == AMP_OP_UNLISTED &&
              amp_registry_policy(NULL, AMP_AUTOCAST_BF16, amp_registry_builtin(i)) == AMP_OP_UNLISTED;
    return NULL;
}

/* First in the list of tests: nobody has asked before, so that the threads fill the index together. */
static void the_first_question_may_come_from_many_threads(void **state)
{
    pthread_t threads[8];
    size_t missing[8];
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, look_everything_up, &missing[i]), 0);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(missing[i], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_question_may_come_from_many_threads),
        cmocka_unit_test(names_that_are_not_in_the_lists_are_unlisted),
        cmocka_unit_test(a_name_that_differs_in_one_byte_or_in_length_is_another),
        cmocka_unit_test(custom_ops_follow_their_rule_in_both_modes),
        cmocka_unit_test(the_last_rule_of_an_op_holds_and_takes_one_row),
        cmocka_unit_test(a_kept_op_runs_in_its_input_types_against_the_built_in_list),
        cmocka_unit_test(a_banned_op_of_ones_own_is_refused_with_its_remedy),
        cmocka_unit_test(the_built_in_ban_can_be_lifted_by_a_rule),
        cmocka_unit_test(rules_refuse_what_does_not_fit_and_change_nothing),
        cmocka_unit_test(a_registry_takes_as_many_ops_as_a_program_has),
        cmocka_unit_test(the_last_of_rules_and_default_dtypes_takes_effect),
        cmocka_unit_test(a_rule_tells_all_that_is_known_of_an_op),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
