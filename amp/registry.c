/* Look-up of an operation's policy: the caller's rows first, then the built-in lists by binary search. */
#include "amp/registry.h"

#include <string.h>

static const struct builtin {
    const char *op;
    enum amp_op_policy policy[3]; /* by enum amp_autocast_mode */
} builtins[] = {
#define OP(name, cuda, cpu) {name, {AMP_OP_UNLISTED, AMP_OP_##cuda, AMP_OP_##cpu}},
#include "amp/registry_ops.def"
#undef OP
};
#define BUILTINS (sizeof builtins / sizeof builtins[0])

void amp_registry_init(struct amp_registry *registry)
{
    registry->count = 0;
}

static size_t find(const struct amp_registry *registry, const char *op)
{
    size_t i = 0;
    while (i < registry->count && strcmp(registry->rows[i].op, op) != 0)
        i++;
    return i;
}

static enum amp_op_policy builtin_policy(enum amp_autocast_mode mode, const char *op)
{
    size_t low = 0;
    size_t high = BUILTINS;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(op, builtins[middle].op);
        if (order == 0)
            return builtins[middle].policy[mode];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return AMP_OP_UNLISTED;
}

int amp_registry_set(struct amp_registry *registry, enum amp_autocast_mode mode, const char *op,
                     enum amp_op_policy policy, struct amp_error *error)
{
    if (mode != AMP_AUTOCAST_FP16 && mode != AMP_AUTOCAST_BF16)
        return amp_error_set(error, AMP_EINVAL, NULL, "autocast mode %d has no policies: use FP16 or BF16", (int)mode);
    if ((unsigned)policy > AMP_OP_BANNED)
        return amp_error_set(error, AMP_EINVAL, NULL, "policy %d is unknown", (int)policy);
    if (op[0] == '\0' || strlen(op) >= AMP_OP_NAME_MAX)
        return amp_error_set(error, AMP_EINVAL, NULL, "the op's name must have 1 to %d bytes", AMP_OP_NAME_MAX - 1);
    size_t i = find(registry, op);
    if (i == AMP_REGISTRY_MAX)
        return amp_error_set(error, AMP_EEXHAUSTED, NULL, "the registry holds at most %d ops", AMP_REGISTRY_MAX);
    if (i == registry->count) {
        /* What is not set here stays as the built-in lists have it. */
        strcpy(registry->rows[i].op, op);
        registry->rows[i].policy[AMP_AUTOCAST_NONE] = AMP_OP_UNLISTED;
        registry->rows[i].policy[AMP_AUTOCAST_FP16] = builtin_policy(AMP_AUTOCAST_FP16, op);
        registry->rows[i].policy[AMP_AUTOCAST_BF16] = builtin_policy(AMP_AUTOCAST_BF16, op);
        registry->count++;
    }
    registry->rows[i].policy[mode] = policy;
    return 0;
}

enum amp_op_policy amp_registry_policy(const struct amp_registry *registry, enum amp_autocast_mode mode, const char *op)
{
    if (mode != AMP_AUTOCAST_FP16 && mode != AMP_AUTOCAST_BF16)
        return AMP_OP_UNLISTED;
    if (registry != NULL) {
        size_t i = find(registry, op);
        if (i < registry->count)
            return registry->rows[i].policy[mode];
    }
    return builtin_policy(mode, op);
}

const char *amp_registry_builtin(size_t i)
{
    return i < BUILTINS ? builtins[i].op : NULL;
}
