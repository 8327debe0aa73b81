/* Look-up of an operation's policy: the caller's rows first, then the built-in lists. */
#include "amp/registry.h"

#include "amp/given.h"
#include "base/wraps.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const struct builtin {
    const char *op;
    size_t length;
    enum amp_op_policy policy[3]; /* by enum amp_op_lists */
} builtins[] = {
#define OP(name, cuda, cpu) {name, sizeof name - 1, {AMP_OP_UNLISTED, AMP_OP_##cuda, AMP_OP_##cpu}},
#include "amp/registry_ops.def"
#undef OP
};
#define BUILTINS (sizeof builtins / sizeof builtins[0])

/*
 * An index of the built-in rows by hash, open addressing, so that a decision compares about one name; a slot holds a
 * row's number plus one. It depends on constants alone and is filled at the first question. Threads that fill it at
 * the same time put the same rows into the same slots: each row's slot follows from the rows before it.
 */
#define INDEX_BITS  10
#define INDEX_SLOTS (1 << INDEX_BITS) /* five times the rows */
_Static_assert(BUILTINS < UINT8_MAX && BUILTINS * 4 < INDEX_SLOTS, "rows fit a byte, and most slots are empty");
static _Atomic uint8_t index_slots[INDEX_SLOTS];
static atomic_bool index_ready;

static inline uint64_t eight(const char *at)
{
    uint64_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

static inline uint32_t four(const char *at)
{
    uint32_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

/*
 * A name's first and last eight bytes, which may overlap: all of it up to sixteen bytes, and with the length never
 * those of two names of the lists. Short names have less in them. No call to the library, which would cost as much as
 * the rest of a decision.
 */
struct ends {
    uint64_t first, last;
};

static inline struct ends ends_of(const char *op, size_t length)
{
    if (length >= sizeof(uint64_t))
        return (struct ends){eight(op), eight(op + length - sizeof(uint64_t))};
    if (length >= sizeof(uint32_t))
        return (struct ends){four(op), four(op + length - sizeof(uint32_t))};
    const unsigned char *at = (const unsigned char *)op;
    return length == 0 ? (struct ends){0, 0} : (struct ends){at[0] | (unsigned)at[length / 2] << 8, at[length - 1]};
}

/*
 * The sum wraps: a hash, whose upper bits are the good ones. With these odd factors, found by trying, only five pairs
 * of the lists' names meet (on a big-endian machine perhaps more).
 */
AMP_WRAPS static inline uint64_t hash_of_ends(struct ends ends)
{
    return ends.first * 0x91d094ef8d9edc8bu + ends.last * 0xa4199b8d04097c05u;
}

static inline size_t slot_of(struct ends ends)
{
    return (size_t)(hash_of_ends(ends) >> (64 - INDEX_BITS));
}

/* All of a name, for those of a program, which may be alike at both ends. The product wraps: a hash. */
AMP_WRAPS static inline uint64_t hash_of(const char *op, size_t length)
{
    uint64_t hash = hash_of_ends(ends_of(op, length));
    for (size_t i = sizeof(uint64_t); i + sizeof(uint64_t) < length; i += sizeof(uint64_t))
        hash = (hash ^ eight(op + i)) * 0x9e3779b97f4a7c15u;
    return hash;
}

/* Whether two names of a length are the same. */
static inline bool same(const char *a, const char *b, size_t length)
{
    struct ends x = ends_of(a, length), y = ends_of(b, length);
    if (x.first != y.first || x.last != y.last)
        return false;
    for (size_t i = sizeof(uint64_t); i + sizeof(uint64_t) < length; i += sizeof(uint64_t))
        if (eight(a + i) != eight(b + i))
            return false;
    return true;
}

static void fill_index(void)
{
    for (size_t row = 0; row < BUILTINS; row++) {
        size_t slot = slot_of(ends_of(builtins[row].op, builtins[row].length));
        for (;; slot = (slot + 1) % INDEX_SLOTS) {
            uint8_t held = atomic_load_explicit(&index_slots[slot], memory_order_relaxed);
            if (held == 0 || held == row + 1)
                break;
        }
        atomic_store_explicit(&index_slots[slot], (uint8_t)(row + 1), memory_order_relaxed);
    }
    atomic_store_explicit(&index_ready, true, memory_order_release);
}

static enum amp_op_policy builtin_policy(enum amp_op_lists lists, const char *op, size_t length)
{
    if (!atomic_load_explicit(&index_ready, memory_order_acquire))
        fill_index();
    for (size_t slot = slot_of(ends_of(op, length));; slot = (slot + 1) % INDEX_SLOTS) {
        uint8_t held = atomic_load_explicit(&index_slots[slot], memory_order_relaxed);
        if (held == 0)
            return AMP_OP_UNLISTED;
        const struct builtin *row = &builtins[held - 1];
        if (row->length == length && same(op, row->op, length))
            return row->policy[lists];
    }
}

enum amp_op_policy amp_op_lists_policy(enum amp_op_lists lists, const char *op)
{
    if (op == NULL || (lists != AMP_OP_LISTS_CUDA && lists != AMP_OP_LISTS_CPU))
        return AMP_OP_UNLISTED;
    return builtin_policy(lists, op, strlen(op));
}

static bool has_policies(enum amp_autocast_mode mode)
{
    return mode == AMP_AUTOCAST_FP16 || mode == AMP_AUTOCAST_BF16;
}

enum amp_op_lists amp_op_lists_of(enum amp_autocast_mode mode)
{
    if (!has_policies(mode))
        return AMP_OP_LISTS_OF_MODE;
    return mode == AMP_AUTOCAST_FP16 ? AMP_OP_LISTS_CUDA : AMP_OP_LISTS_CPU;
}

/* ---- a registry: open addressing, half of the slots empty at least ---- */

struct amp_registry_row {
    char op[AMP_OP_NAME_MAX];
    size_t length;
    struct choice {
        bool has_policy; /* false: the lists' holds */
        enum amp_op_policy policy;
        enum amp_dtype forward;         /* what the function takes its operands in; NONE: by policy */
        enum amp_dtype backward;        /* the same for its backward; NONE: as forward */
        char remedy[AMP_OP_REMEDY_MAX]; /* for a banned op; "" says to leave the region */
    } in[3];                            /* by enum amp_autocast_mode */
};

/* Slots of a registry with its first rule. */
#define SLOT_BITS_FIRST 4

void amp_registry_init(struct amp_registry *registry)
{
    *registry = (struct amp_registry){0};
}

void amp_registry_close(struct amp_registry *registry)
{
    size_t slots = registry->slots != NULL ? (size_t)1 << registry->slot_bits : 0;
    for (size_t i = 0; i < slots; i++)
        free(registry->slots[i]);
    free(registry->slots);
    amp_registry_init(registry);
}

/* Where the op's row is, or an empty slot that it would be in. The registry has slots. */
static struct amp_registry_row **find(const struct amp_registry *registry, const char *op, size_t length)
{
    size_t slots = (size_t)1 << registry->slot_bits;
    size_t i = (size_t)(hash_of(op, length) >> (64 - registry->slot_bits));
    for (;; i = (i + 1) % slots) {
        const struct amp_registry_row *row = registry->slots[i];
        if (row == NULL || (row->length == length && same(op, row->op, length)))
            return &registry->slots[i];
    }
}

/* Whether a row more leaves half of the slots empty; doubles them where it would not. False without memory. */
static bool make_room(struct amp_registry *registry)
{
    size_t slots = registry->slots != NULL ? (size_t)1 << registry->slot_bits : 0;
    if ((registry->count + 1) * 2 <= slots)
        return true;
    struct amp_registry larger = {.slot_bits = slots > 0 ? registry->slot_bits + 1 : SLOT_BITS_FIRST};
    larger.slots = calloc((size_t)1 << larger.slot_bits, sizeof *larger.slots);
    if (larger.slots == NULL)
        return false;
    for (size_t i = 0; i < slots; i++) {
        struct amp_registry_row *row = registry->slots[i];
        if (row != NULL)
            *find(&larger, row->op, row->length) = row;
    }
    larger.count = registry->count;
    free(registry->slots);
    *registry = larger;
    return true;
}

/* The row of `op`, made where it is missing; NULL with the error's code in *code. */
static struct amp_registry_row *row_of(struct amp_registry *registry, const char *op, int *code,
                                       struct amp_error *error)
{
    *code = amp_both_given(registry, "registry", op, "op", error);
    if (*code != 0)
        return NULL;
    size_t length = strlen(op);
    if (length == 0 || length >= AMP_OP_NAME_MAX) {
        *code = amp_error_set(error, AMP_EINVAL, NULL, "the op's name must have 1 to %d bytes", AMP_OP_NAME_MAX - 1);
        return NULL;
    }
    struct amp_registry_row *row = NULL;
    if (make_room(registry)) {
        struct amp_registry_row **slot = find(registry, op, length);
        if (*slot != NULL)
            return *slot;
        row = calloc(1, sizeof *row);
        *slot = row;
    }
    if (row == NULL) {
        *code = amp_error_set(error, AMP_ENOMEM, NULL, "no memory for the rule of %s", op);
        return NULL;
    }
    memcpy(row->op, op, length);
    row->length = length;
    registry->count++;
    return row;
}

int amp_registry_set(struct amp_registry *registry, enum amp_autocast_mode mode, const char *op,
                     enum amp_op_policy policy, struct amp_error *error)
{
    if (!has_policies(mode))
        return amp_error_set(error, AMP_EINVAL, NULL, "autocast mode %d has no policies: use FP16 or BF16", (int)mode);
    if ((unsigned)policy > AMP_OP_BANNED)
        return amp_error_set(error, AMP_EINVAL, NULL, "policy %d is unknown: use one of enum amp_op_policy",
                             (int)policy);
    int code = 0;
    struct amp_registry_row *row = row_of(registry, op, &code, error);
    if (row == NULL)
        return code;
    row->in[mode] = (struct choice){.has_policy = true, .policy = policy};
    return 0;
}

/* A policy in both modes. */
static int set_both(struct amp_registry *registry, const char *op, enum amp_op_policy policy, const char *remedy,
                    struct amp_error *error)
{
    int code = 0;
    struct amp_registry_row *row = row_of(registry, op, &code, error);
    if (row == NULL)
        return code;
    struct choice made = {.has_policy = true, .policy = policy};
    strcpy(made.remedy, remedy); /* it may be the row's own */
    row->in[AMP_AUTOCAST_FP16] = row->in[AMP_AUTOCAST_BF16] = made;
    return 0;
}

int amp_registry_allow(struct amp_registry *registry, const char *op, struct amp_error *error)
{
    return set_both(registry, op, AMP_OP_LOWER, "", error);
}

int amp_registry_deny(struct amp_registry *registry, const char *op, struct amp_error *error)
{
    return set_both(registry, op, AMP_OP_FP32, "", error);
}

int amp_registry_promote(struct amp_registry *registry, const char *op, struct amp_error *error)
{
    return set_both(registry, op, AMP_OP_PROMOTE, "", error);
}

int amp_registry_keep(struct amp_registry *registry, const char *op, struct amp_error *error)
{
    return set_both(registry, op, AMP_OP_UNLISTED, "", error);
}

int amp_registry_ban(struct amp_registry *registry, const char *op, const char *remedy, struct amp_error *error)
{
    if (remedy != NULL && strlen(remedy) >= AMP_OP_REMEDY_MAX)
        return amp_error_set(error, AMP_EINVAL, NULL, "a remedy has at most %d bytes", AMP_OP_REMEDY_MAX - 1);
    return set_both(registry, op, AMP_OP_BANNED, remedy != NULL ? remedy : "", error);
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
    for (int mode = AMP_AUTOCAST_FP16; mode <= AMP_AUTOCAST_BF16; mode++) {
        row->in[mode].forward = forward;
        row->in[mode].backward = backward;
    }
    return 0;
}

struct amp_op_rule amp_registry_rule_of(const struct amp_registry *registry, enum amp_autocast_mode mode,
                                        enum amp_op_lists lists, const char *op)
{
    struct amp_op_rule rule = {AMP_OP_UNLISTED, AMP_DTYPE_NONE, AMP_DTYPE_NONE, NULL};
    if (op == NULL || !has_policies(mode))
        return rule;
    bool has_policy = false;
    if (registry != NULL && registry->count > 0) {
        const struct amp_registry_row *row = *find(registry, op, strlen(op));
        if (row != NULL) {
            const struct choice *own = &row->in[mode];
            has_policy = own->has_policy;
            rule = (struct amp_op_rule){own->policy, own->forward, own->backward, own->remedy};
        }
    }
    if (!has_policy) {
        rule.policy = amp_op_lists_policy(lists != AMP_OP_LISTS_OF_MODE ? lists : amp_op_lists_of(mode), op);
        /* PyTorch bans this one op, and names the one to use. */
        rule.remedy = rule.policy == AMP_OP_BANNED ? "use binary_cross_entropy_with_logits" : NULL;
    }
    if (rule.policy == AMP_OP_BANNED && rule.forward != AMP_DTYPE_NONE)
        rule.policy = AMP_OP_UNLISTED;
    return rule;
}

struct amp_op_rule amp_registry_rule(const struct amp_registry *registry, enum amp_autocast_mode mode, const char *op)
{
    return amp_registry_rule_of(registry, mode, AMP_OP_LISTS_OF_MODE, op);
}

enum amp_op_policy amp_registry_policy(const struct amp_registry *registry, enum amp_autocast_mode mode, const char *op)
{
    return amp_registry_rule(registry, mode, op).policy;
}

const char *amp_registry_builtin(size_t i)
{
    return i < BUILTINS ? builtins[i].op : NULL;
}
