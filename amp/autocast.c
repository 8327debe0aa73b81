/*
 * Autocast regions and the cast cache.
 *
 * A region is an entry of a small per-thread stack, so that entering, leaving and deciding touch no memory that has to be
 * allocated or locked. The cache is a ring ordered by last use: few tensors are weights, so a walk finds one soon, and the
 * oldest goes when the bound is reached. An entry whose id matches but whose version does not is stale by definition: it is
 * overwritten in place.
 */
#include "amp/autocast.h"

#include "base/assert.h"
#include "base/list.h"

#include <stdlib.h>
#include <string.h>

struct region {
    enum amp_autocast_mode mode;
    const struct amp_registry *registry;
};

static _Thread_local struct {
    unsigned depth;
    struct region regions[AMP_AUTOCAST_DEPTH_MAX];
} stack;

static struct region current(void)
{
    if (stack.depth == 0)
        return (struct region){AMP_AUTOCAST_NONE, NULL};
    return stack.regions[stack.depth - 1];
}

int amp_autocast_enter_with(enum amp_autocast_mode mode, const struct amp_registry *registry)
{
    if (mode != AMP_AUTOCAST_NONE && amp_autocast_low_dtype(mode) == AMP_DTYPE_NONE)
        return AMP_EINVAL;
    if (stack.depth == AMP_AUTOCAST_DEPTH_MAX)
        return AMP_EEXHAUSTED;
    stack.regions[stack.depth++] = (struct region){mode, registry};
    return 0;
}

int amp_autocast_enter(enum amp_autocast_mode mode)
{
    return amp_autocast_enter_with(mode, NULL);
}

void amp_autocast_exit(void)
{
    AMP_ASSERT(stack.depth > 0);
    stack.depth--;
}

enum amp_autocast_mode amp_autocast_mode(void)
{
    return current().mode;
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

enum amp_dtype amp_autocast_dtype(const char *op, enum amp_dtype in)
{
    struct region region = current();
    if (in != AMP_F32 && in != AMP_F16 && in != AMP_BF16)
        return in;
    switch (amp_registry_policy(region.registry, region.mode, op)) {
    case AMP_OP_LOWER:
        return amp_autocast_low_dtype(region.mode);
    case AMP_OP_FP32:
        return AMP_F32;
    default:
        return in;
    }
}

static int banned(const char *op, struct amp_error *error)
{
    return amp_error_set(error, AMP_EINVAL, NULL,
                         "%s is unsafe under autocast: use %s_with_logits, or leave the region for it", op, op);
}

int amp_autocast_promote(const char *op, const enum amp_dtype *in, size_t n, enum amp_dtype *out,
                         struct amp_error *error)
{
    struct region region = current();
    enum amp_op_policy policy = amp_registry_policy(region.registry, region.mode, op);
    if (n == 0)
        return amp_error_set(error, AMP_EINVAL, NULL, "%s has no operands", op);
    if (policy == AMP_OP_BANNED)
        return banned(op, error);
    if (policy != AMP_OP_PROMOTE) {
        *out = amp_autocast_dtype(op, in[0]);
        return 0;
    }
    enum amp_dtype low = amp_autocast_low_dtype(region.mode);
    enum amp_dtype widest = AMP_DTYPE_NONE;
    for (size_t i = 0; i < n; i++) {
        if (in[i] == AMP_F64)
            continue;
        if (in[i] != AMP_F32 && in[i] != low)
            return amp_error_set(error, AMP_EINVAL, NULL, "%s: an operand is %s in a region of %s: cast it first", op,
                                 amp_dtype_name(in[i]), amp_dtype_name(low));
        if (widest != AMP_F32)
            widest = in[i];
    }
    *out = widest == AMP_DTYPE_NONE ? AMP_F64 : widest;
    return 0;
}

struct entry {
    struct amp_list node; /* in the cache's ring, oldest use first */
    uint64_t id;
    uint64_t version;
    enum amp_dtype dtype;
    size_t bytes;
    void *data;
};

struct amp_cast_cache {
    struct amp_list ring;
    size_t max_bytes;
    struct amp_cast_cache_stats stats;
};

struct amp_cast_cache *amp_cast_cache_new(size_t max_bytes)
{
    struct amp_cast_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL)
        return NULL;
    amp_list_init(&cache->ring);
    cache->max_bytes = max_bytes;
    return cache;
}

static void drop(struct amp_cast_cache *cache, struct entry *entry)
{
    amp_list_remove(&entry->node);
    cache->stats.entries--;
    cache->stats.bytes -= entry->bytes;
    free(entry->data);
    free(entry);
}

void amp_cast_cache_free(struct amp_cast_cache *cache)
{
    if (cache == NULL)
        return;
    AMP_LIST_EACH(it, safe, &cache->ring)
    drop(cache, AMP_CONTAINER(it, struct entry, node));
    free(cache);
}

void amp_cast_cache_stats(const struct amp_cast_cache *cache, struct amp_cast_cache_stats *stats)
{
    *stats = cache->stats;
}

static struct entry *find(struct amp_cast_cache *cache, uint64_t id, enum amp_dtype dtype)
{
    AMP_LIST_EACH(it, safe, &cache->ring)
    {
        struct entry *entry = AMP_CONTAINER(it, struct entry, node);
        if (entry->id == id && entry->dtype == dtype)
            return entry;
    }
    return NULL;
}

/* An entry with room for `bytes`, linked as the newest; NULL without memory. Older ones make room. */
static struct entry *make(struct amp_cast_cache *cache, uint64_t id, enum amp_dtype dtype, size_t bytes)
{
    while (cache->stats.bytes + bytes > cache->max_bytes)
        drop(cache, AMP_CONTAINER(cache->ring.next, struct entry, node));
    struct entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL)
        return NULL;
    entry->data = malloc(bytes > 0 ? bytes : 1);
    if (entry->data == NULL) {
        free(entry);
        return NULL;
    }
    entry->id = id;
    entry->dtype = dtype;
    entry->bytes = bytes;
    amp_list_push(&cache->ring, &entry->node);
    cache->stats.entries++;
    cache->stats.bytes += bytes;
    return entry;
}

/* The cached cast, made if it is missing or of another version. */
static int cast_cached(const struct amp_kernels *kernels, const struct amp_tensor_view *in, enum amp_dtype dtype,
                       size_t bytes, struct amp_cast_cache *cache, struct amp_tensor_view *out)
{
    struct entry *entry = find(cache, in->id, dtype);
    if (entry != NULL && entry->bytes != bytes) {
        drop(cache, entry);
        entry = NULL;
    }
    if (entry != NULL && entry->version == in->version) {
        cache->stats.hits++;
        amp_list_remove(&entry->node);
        amp_list_push(&cache->ring, &entry->node);
    } else {
        cache->stats.misses++;
        if (entry == NULL)
            entry = make(cache, in->id, dtype, bytes);
        if (entry == NULL)
            return AMP_ENOMEM;
        amp_cast(kernels, entry->data, dtype, in->data, in->dtype, in->count);
        entry->version = in->version;
    }
    *out = (struct amp_tensor_view){entry->data, in->count, dtype, in->id, in->version};
    return 0;
}

int amp_autocast_cast(const struct amp_kernels *kernels, const char *op, const struct amp_tensor_view *in,
                      struct amp_cast_cache *cache, void *buffer, size_t buffer_bytes, struct amp_tensor_view *out,
                      struct amp_error *error)
{
    struct region region = current();
    if (amp_registry_policy(region.registry, region.mode, op) == AMP_OP_BANNED)
        return banned(op, error);
    enum amp_dtype dtype = amp_autocast_dtype(op, in->dtype);
    if (dtype == in->dtype) {
        *out = *in;
        return 0;
    }
    size_t bytes = in->count * amp_dtype_size(dtype);
    if (cache != NULL && in->id != 0 && bytes <= cache->max_bytes) {
        if (cast_cached(kernels, in, dtype, bytes, cache, out) == 0)
            return 0;
        return amp_error_set(error, AMP_ENOMEM, NULL, "no memory for a cast of %zu bytes", bytes);
    }
    if (buffer == NULL || buffer_bytes < bytes)
        return amp_error_set(error, AMP_ERANGE, NULL, "%s: the cast needs a buffer of %zu bytes", op, bytes);
    amp_cast(kernels, buffer, dtype, in->data, in->dtype, in->count);
    *out = (struct amp_tensor_view){buffer, in->count, dtype, 0, 0};
    return 0;
}

void amp_cast(const struct amp_kernels *kernels, void *dst, enum amp_dtype to, const void *src, enum amp_dtype from,
              size_t count)
{
    if (from == AMP_F32) {
        (void)kernels->store[to](dst, src, count);
        return;
    }
    if (to == AMP_F32) {
        kernels->load[from](dst, src, count);
        return;
    }
    /* Between the 16-bit types by tiles; exact in the middle, so rounded once. */
    float tile[256];
    const char *s = src;
    char *d = dst;
    while (count > 0) {
        size_t n = count < 256 ? count : 256;
        kernels->load[from](tile, s, n);
        (void)kernels->store[to](d, tile, n);
        s += n * amp_dtype_size(from);
        d += n * amp_dtype_size(to);
        count -= n;
    }
}
