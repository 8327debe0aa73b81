/* Look-up of an operation's policy: the caller's rows first, then the built-in lists. */
#include "amp/registry.h"

#include "amp/given.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
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

/*
 * An index of the built-in rows by hash, open addressing, so that a decision compares about one name; a slot holds a
 * row's number plus one. It depends on constants alone and is filled at the first question. Threads that fill it at
 * the same time put the same rows into the same slots: each row's slot follows from the rows before it.
 */
#define INDEX_SLOTS 1024 /* a power of two, five times the rows */
_Static_assert(BUILTINS < UINT8_MAX && BUILTINS * 4 < INDEX_SLOTS, "rows fit a byte, and most slots are empty");
static _Atomic uint8_t index_slots[INDEX_SLOTS];
static atomic_bool index_ready;

/* Length and six letters tell the names of the lists apart well enough, without a pass over each letter. */
static size_t slot_of(const char *op)
{
    size_t length = strlen(op);
    if (length == 0)
        return 0;
    const unsigned char *at = (const unsigned char *)op;
    /* Six weighted letters and the length: a sum far below 2^32, so that nothing wraps. With these weights, found by
       trying primes, no name of the lists meets more than one other. */
    uint32_t sum = at[0] * 229u + at[length / 4] * 83u + at[length / 2] * 643u + at[length * 3 / 4] * 599u +
                   at[length > 1 ? length - 2 : 0] * 653u + at[length - 1] * 1693u;
    return (sum + (uint32_t)(length % INDEX_SLOTS) * 1301u) % INDEX_SLOTS;
}

static void fill_index(void)
{
    for (size_t row = 0; row < BUILTINS; row++) {
        size_t slot = slot_of(builtins[row].op);
        for (;; slot = (slot + 1) % INDEX_SLOTS) {
            uint8_t held = atomic_load_explicit(&index_slots[slot], memory_order_relaxed);
            if (held == 0 || held == row + 1)
                break;
        }
        atomic_store_explicit(&index_slots[slot], (uint8_t)(row + 1), memory_order_relaxed);
    }
    atomic_store_explicit(&index_ready, true, memory_order_release);
}

static enum amp_op_policy builtin_policy(enum amp_autocast_mode mode, const char *op)
{
    if (!atomic_load_explicit(&index_ready, memory_order_acquire))
        fill_index();
    for (size_t slot = slot_of(op);; slot = (slot + 1) % INDEX_SLOTS) {
        uint8_t held = atomic_load_explicit(&index_slots[slot], memory_order_relaxed);
        if (held == 0)
            return AMP_OP_UNLISTED;
        if (strcmp(op, builtins[held - 1].op) == 0)
            return builtins[held - 1].policy[mode];
    }
}

/* The row of `op`, made as the built-in lists have it where it is missing; NULL with the error's code in *code. */
static struct amp_registry_row *row_of(struct amp_registry *registry, const char *op, int *code,
                                       struct amp_error *error)
{
    *code = amp_both_given(registry, "registry", op, "op", error);
    if (*code != 0)
        return NULL;
    if (op[0] == '\0' || strlen(op) >= AMP_OP_NAME_MAX) {
        *code = amp_error_set(error, AMP_EINVAL, NULL, "the op's name must have 1 to %d bytes", AMP_OP_NAME_MAX - 1);
        return NULL;
    }
    size_t i = find(registry, op);
    if (i == AMP_REGISTRY_MAX) {
        *code = amp_error_set(error, AMP_EEXHAUSTED, NULL, "the registry holds at most %d ops", AMP_REGISTRY_MAX);
        return NULL;
    }
    struct amp_registry_row *row = &registry->rows[i];
    if (i == registry->count) {
        *row = (struct amp_registry_row){
            .policy = {AMP_OP_UNLISTED, builtin_policy(AMP_AUTOCAST_FP16, op), builtin_policy(AMP_AUTOCAST_BF16, op)}};
        strcpy(row->op, op);
        registry->count++;
    }
    return row;
}

int amp_registry_set(struct amp_registry *registry, enum amp_autocast_mode mode, const char *op,
                     enum amp_op_policy policy, struct amp_error *error)
{
    if (mode != AMP_AUTOCAST_FP16 && mode != AMP_AUTOCAST_BF16)
        return amp_error_set(error, AMP_EINVAL, NULL, "autocast mode %d has no policies: use FP16 or BF16", (int)mode);
    if ((unsigned)policy > AMP_OP_BANNED)
        return amp_error_set(error, AMP_EINVAL, NULL, "policy %d is unknown", (int)policy);
    int code = 0;
    struct amp_registry_row *row = row_of(registry, op, &code, error);
    if (row == NULL)
        return code;
    row->policy[mode] = policy;
    return 0;
}

static int set_both(struct amp_registry *registry, const char *op, enum amp_op_policy policy, struct amp_error *error)
{
    int code = 0;
    struct amp_registry_row *row = row_of(registry, op, &code, error);
    if (row == NULL)
        return code;
    row->policy[AMP_AUTOCAST_FP16] = policy;
    row->policy[AMP_AUTOCAST_BF16] = policy;
    return 0;
}

int amp_registry_allow(struct amp_registry *registry, const char *op, struct amp_error *error)
{
    return set_both(registry, op, AMP_OP_LOWER, error);
}

int amp_registry_deny(struct amp_registry *registry, const char *op, struct amp_error *error)
{
    return set_both(registry, op, AMP_OP_FP32, error);
}

int amp_registry_promote(struct amp_registry *registry, const char *op, struct amp_error *error)
{
    return set_both(registry, op, AMP_OP_PROMOTE, error);
}

int amp_registry_keep(struct amp_registry *registry, const char *op, struct amp_error *error)
{
    return set_both(registry, op, AMP_OP_UNLISTED, error);
}

int amp_registry_ban(struct amp_registry *registry, const char *op, const char *remedy, struct amp_error *error)
{
    if (remedy != NULL && strlen(remedy) >= AMP_OP_REMEDY_MAX)
        return amp_error_set(error, AMP_EINVAL, NULL, "a remedy has at most %d bytes", AMP_OP_REMEDY_MAX - 1);
    int code = set_both(registry, op, AMP_OP_BANNED, error);
    if (code == 0)
        strcpy(registry->rows[find(registry, op)].remedy, remedy != NULL ? remedy : "");
    return code;
}

static bool is_default_dtype(enum amp_dtype dtype)
{
    return dtype == AMP_DTYPE_NONE || dtype == AMP_F32 || dtype == AMP_F16 || dtype == AMP_BF16;
}

int amp_registry_set_dtypes(struct amp_registry *registry, const char *op, enum amp_dtype forward,
                            enum amp_dtype backward, struct amp_error *error)
{
    int code = amp_given(op, "op", error);
    if (code != 0)
        return code;
    if (!is_default_dtype(forward) || !is_default_dtype(backward))
        return amp_error_set(error, AMP_EINVAL, NULL, "%s: default dtypes are f32, f16, bf16 or none", op);
    struct amp_registry_row *row = row_of(registry, op, &code, error);
    if (row == NULL)
        return code;
    row->forward = forward;
    row->backward = backward;
    return 0;
}

struct amp_op_rule amp_registry_rule(const struct amp_registry *registry, enum amp_autocast_mode mode, const char *op)
{
    struct amp_op_rule rule = {AMP_OP_UNLISTED, AMP_DTYPE_NONE, AMP_DTYPE_NONE, NULL};
    if (op == NULL || (mode != AMP_AUTOCAST_FP16 && mode != AMP_AUTOCAST_BF16))
        return rule;
    if (registry != NULL) {
        size_t i = find(registry, op);
        if (i < registry->count) {
            const struct amp_registry_row *row = &registry->rows[i];
            return (struct amp_op_rule){row->policy[mode], row->forward, row->backward, row->remedy};
        }
    }
    rule.policy = builtin_policy(mode, op);
    /* PyTorch bans this one op, and names the one to use. */
    if (rule.policy == AMP_OP_BANNED)
        rule.remedy = "use binary_cross_entropy_with_logits";
    return rule;
}

enum amp_op_policy amp_registry_policy(const struct amp_registry *registry, enum amp_autocast_mode mode, const char *op)
{
    return amp_registry_rule(registry, mode, op).policy;
}

const char *amp_registry_builtin(size_t i)
{
    return i < BUILTINS ? builtins[i].op : NULL;
}
