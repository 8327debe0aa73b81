/*
 * Autocast regions: the dtype in which an operation runs, and the casts that it needs.
 *
 * A region is an entry of a small stack of the thread, so that entering, leaving and deciding neither allocate memory
 * nor take a lock.
 */
#include "amp/autocast.h"

#include "amp/cast_cache.h"
#include "amp/given.h"

#include <stdatomic.h>

static _Thread_local struct {
    unsigned depth;
    uint64_t visit; /* number of the outermost region: a cast that a cache hands out in it stays until it ends */
    struct amp_autocast_config regions[AMP_AUTOCAST_DEPTH_MAX];
} stack;

/* The count of numbers that threads have taken for their outermost regions: no two in the process have the same. */
static _Atomic uint64_t visits;

/*
 * How many numbers a thread takes at a time: counting in `visits` at each enter would be most of the time of an enter.
 */
#define VISITS_TAKEN 65536

/* The settings outside all regions, and in one that is not enabled. */
static const struct amp_autocast_config untouched = {AMP_AUTOCAST_NONE, false, false, NULL, AMP_OP_LISTS_OF_MODE};

static const struct amp_autocast_config *current(void)
{
    if (stack.depth == 0 || !stack.regions[stack.depth - 1].enabled)
        return &untouched;
    return &stack.regions[stack.depth - 1];
}

/* Backward runs after the exit: the outermost region stays in its place until another takes it. */
static const struct amp_autocast_config *of_backward(void)
{
    if (stack.depth > 0)
        return current();
    return stack.regions[0].enabled ? &stack.regions[0] : &untouched;
}

struct amp_autocast_config amp_autocast_config_of(enum amp_autocast_mode mode, const struct amp_registry *registry)
{
    return (struct amp_autocast_config){mode, true, true, registry, amp_op_lists_of(mode)};
}

struct amp_autocast_config amp_autocast_config_fp16(const struct amp_registry *registry)
{
    return amp_autocast_config_of(AMP_AUTOCAST_FP16, registry);
}

struct amp_autocast_config amp_autocast_config_bf16(const struct amp_registry *registry)
{
    return amp_autocast_config_of(AMP_AUTOCAST_BF16, registry);
}

/* A number that no other outermost region of the process has had, and never 0. */
static uint64_t next_visit(void)
{
    if (stack.visit % VISITS_TAKEN == 0)
        stack.visit = atomic_fetch_add_explicit(&visits, VISITS_TAKEN, memory_order_relaxed);
    return stack.visit + 1;
}

int amp_autocast_enter_config(const struct amp_autocast_config *config)
{
    struct amp_autocast_config region = config != NULL ? *config : amp_autocast_config_bf16(NULL);
    if (region.mode != AMP_AUTOCAST_NONE && amp_autocast_low_dtype(region.mode) == AMP_DTYPE_NONE)
        return AMP_EINVAL;
    if ((unsigned)region.lists > AMP_OP_LISTS_CPU)
        return AMP_EINVAL;
    if (region.lists == AMP_OP_LISTS_OF_MODE)
        region.lists = amp_op_lists_of(region.mode);
    if (stack.depth == AMP_AUTOCAST_DEPTH_MAX)
        return AMP_EEXHAUSTED;
    if (stack.depth == 0)
        stack.visit = next_visit();
    stack.regions[stack.depth++] = region;
    return 0;
}

int amp_autocast_enter_with(enum amp_autocast_mode mode, const struct amp_registry *registry)
{
    struct amp_autocast_config config = amp_autocast_config_of(mode, registry);
    return amp_autocast_enter_config(&config);
}

int amp_autocast_enter(enum amp_autocast_mode mode)
{
    return amp_autocast_enter_with(mode, NULL);
}

void amp_autocast_exit(void)
{
    if (stack.depth > 0)
        stack.depth--;
}

bool amp_autocast_current(struct amp_autocast_config *config)
{
    if (config != NULL)
        *config = stack.depth > 0 ? stack.regions[stack.depth - 1] : untouched;
    return stack.depth > 0;
}

bool amp_autocast_active(void)
{
    return current()->mode != AMP_AUTOCAST_NONE;
}

unsigned amp_autocast_depth(void)
{
    return stack.depth;
}

enum amp_autocast_mode amp_autocast_mode(void)
{
    return current()->mode;
}

enum amp_dtype amp_autocast_low_dtype(enum amp_autocast_mode mode)
{
    switch (mode) {
    case AMP_AUTOCAST_FP16:
        return AMP_F16;
    case AMP_AUTOCAST_BF16:
        return AMP_BF16;
    default:
        return AMP_DTYPE_NONE;
    }
}

/* Whether autocast may cast this dtype: a float other than f64. */
static bool is_eligible(enum amp_dtype dtype)
{
    return dtype == AMP_F32 || dtype == AMP_F16 || dtype == AMP_BF16;
}

static enum amp_dtype by_rule(const struct amp_op_rule *rule, enum amp_autocast_mode mode, enum amp_dtype in)
{
    if (!is_eligible(in))
        return in;
    if (rule->forward != AMP_DTYPE_NONE)
        return rule->forward;
    switch (rule->policy) {
    case AMP_OP_LOWER:
        return amp_autocast_low_dtype(mode);
    case AMP_OP_FP32:
        return AMP_F32;
    default:
        return in;
    }
}

static struct amp_op_rule rule_in(const struct amp_autocast_config *region, const char *op)
{
    return amp_registry_rule_of(region->registry, region->mode, region->lists, op);
}

enum amp_dtype amp_autocast_dtype(const char *op, enum amp_dtype in)
{
    const struct amp_autocast_config *region = current();
    if (region->mode == AMP_AUTOCAST_NONE)
        return in;
    /* The built-in lists have only policies: a shortcut for the most frequent case. */
    struct amp_op_rule rule = {.policy = AMP_OP_UNLISTED};
    if (region->registry == NULL)
        rule.policy = amp_op_lists_policy(region->lists, op);
    else
        rule = rule_in(region, op);
    return by_rule(&rule, region->mode, in);
}

enum amp_dtype amp_autocast_backward_dtype(const char *op, enum amp_dtype in)
{
    const struct amp_autocast_config *region = of_backward();
    struct amp_op_rule rule = rule_in(region, op);
    if (is_eligible(in) && rule.backward != AMP_DTYPE_NONE)
        return rule.backward;
    return by_rule(&rule, region->mode, in);
}

enum amp_dtype amp_autocast_dtype_named(const char *op, enum amp_dtype in, enum amp_dtype named)
{
    return named != AMP_DTYPE_NONE ? named : amp_autocast_dtype(op, in);
}

static int banned(const char *op, const char *remedy, struct amp_error *error)
{
    if (remedy == NULL || remedy[0] == '\0')
        return amp_error_set(error, AMP_EINVAL, NULL, "%s is unsafe under autocast: leave the region for it", op);
    return amp_error_set(error, AMP_EINVAL, NULL, "%s is unsafe under autocast: %s, or leave the region for it", op,
                         remedy);
}

int amp_autocast_promote(const char *op, const enum amp_dtype *in, size_t n, enum amp_dtype *out,
                         struct amp_error *error)
{
    int code = amp_both_given(op, "op", out, "out", error);
    if (code != 0)
        return code;
    const struct amp_autocast_config *region = current();
    struct amp_op_rule rule = rule_in(region, op);
    if (n == 0)
        return amp_error_set(error, AMP_EINVAL, NULL, "%s has no operands: give their dtypes", op);
    if (in == NULL)
        return amp_given(in, "in", error);
    if (rule.policy == AMP_OP_BANNED)
        return banned(op, rule.remedy, error);
    if (rule.policy != AMP_OP_PROMOTE || rule.forward != AMP_DTYPE_NONE) {
        *out = by_rule(&rule, region->mode, in[0]);
        return 0;
    }
    enum amp_dtype low = amp_autocast_low_dtype(region->mode);
    enum amp_dtype widest = AMP_DTYPE_NONE;
    for (size_t i = 0; i < n; i++) {
        if (!is_eligible(in[i]))
            continue;
        if (in[i] != AMP_F32 && in[i] != low)
            return amp_error_set(error, AMP_EINVAL, NULL, "%s: an operand is %s in a region of %s: cast it first", op,
                                 amp_dtype_name(in[i]), amp_dtype_name(low));
        if (widest != AMP_F32)
            widest = in[i];
    }
    *out = widest == AMP_DTYPE_NONE ? in[0] : widest;
    return 0;
}

/* More elements than memory can hold would make sizes wrap. */
static int check_count(const struct amp_tensor_view *in, struct amp_error *error)
{
    if (in->count <= (size_t)PTRDIFF_MAX / sizeof(double))
        return 0;
    return amp_error_set(error, AMP_EINVAL, NULL, "the tensor has more elements than memory can hold: check its count");
}

/* The arguments that both casts need; a tensor with elements must have an address. */
static int check_cast(const struct amp_kernels *kernels, const struct amp_tensor_view *in,
                      const struct amp_tensor_view *out, struct amp_error *error)
{
    int code = amp_given(kernels, "kernels", error);
    if (code == 0)
        code = amp_both_given(in, "in", out, "out", error);
    if (code == 0 && in->count > 0)
        code = amp_given(in->data, "in->data", error);
    return code;
}

static int cast_to_buffer(const struct amp_kernels *kernels, enum amp_dtype dtype, const struct amp_tensor_view *in,
                          void *buffer, size_t buffer_bytes, struct amp_tensor_view *out, struct amp_error *error)
{
    size_t bytes = in->count * amp_dtype_size(dtype);
    if (buffer == NULL || buffer_bytes < bytes)
        return amp_error_set(error, AMP_ERANGE, NULL, "the cast needs a buffer of %zu bytes", bytes);
    uintptr_t from = (uintptr_t)in->data, to = (uintptr_t)buffer;
    if (from < to + bytes && to < from + in->count * amp_dtype_size(in->dtype))
        return amp_error_set(error, AMP_EINVAL, NULL, "the buffer overlaps the tensor: give other memory");
    amp_cast(kernels, buffer, dtype, in->data, in->dtype, in->count);
    *out = (struct amp_tensor_view){buffer, in->count, dtype, 0, 0};
    return 0;
}

int amp_autocast_cast(const struct amp_kernels *kernels, const char *op, const struct amp_tensor_view *in,
                      struct amp_cast_cache *cache, void *buffer, size_t buffer_bytes, struct amp_tensor_view *out,
                      struct amp_error *error)
{
    int code = check_cast(kernels, in, out, error);
    if (code == 0)
        code = amp_given(op, "op", error);
    if (code != 0)
        return code;
    const struct amp_autocast_config *region = current();
    struct amp_op_rule rule = rule_in(region, op);
    if (rule.policy == AMP_OP_BANNED)
        return banned(op, rule.remedy, error);
    enum amp_dtype dtype = by_rule(&rule, region->mode, in->dtype);
    if (dtype == in->dtype || in->count == 0) {
        *out = *in;
        out->dtype = dtype;
        return 0;
    }
    code = check_count(in, error);
    if (code != 0)
        return code;
    /* PyTorch's rule: only fp32 weights in the low dtype are worth keeping; other casts are of activations. */
    bool keep = region->cache_enabled && cache != NULL && in->id != 0 && in->dtype == AMP_F32 &&
                dtype == amp_autocast_low_dtype(region->mode);
    if (keep)
        code = amp_cast_cache_get(cache, stack.visit, kernels, in, dtype, out);
    if (keep && code == 0)
        return 0;
    size_t bytes = in->count * amp_dtype_size(dtype);
    if (code == AMP_ENOMEM)
        return amp_error_set(error, AMP_ENOMEM, NULL, "no memory for a cast of %zu bytes", bytes);
    if (code == AMP_EEXHAUSTED && buffer == NULL)
        return amp_error_set(error, AMP_ERANGE, NULL,
                             "the cast cache is full, and nothing in it may be freed before the outermost region "
                             "ends: give a buffer of %zu bytes, or a larger cache",
                             bytes);
    return cast_to_buffer(kernels, dtype, in, buffer, buffer_bytes, out, error);
}

int amp_autocast_cast_to(const struct amp_kernels *kernels, enum amp_dtype dtype, const struct amp_tensor_view *in,
                         void *buffer, size_t buffer_bytes, struct amp_tensor_view *out, struct amp_error *error)
{
    int code = check_cast(kernels, in, out, error);
    if (code != 0)
        return code;
    if (dtype == in->dtype) {
        *out = *in;
        return 0;
    }
    if (!is_eligible(dtype) || !is_eligible(in->dtype))
        return amp_error_set(error, AMP_EINVAL, NULL, "no cast from %s to %s: only f32, f16 and bf16 are cast",
                             amp_dtype_name(in->dtype), amp_dtype_name(dtype));
    if (in->count == 0) {
        *out = (struct amp_tensor_view){in->data, 0, dtype, 0, 0};
        return 0;
    }
    code = check_count(in, error);
    return code != 0 ? code : cast_to_buffer(kernels, dtype, in, buffer, buffer_bytes, out, error);
}
