/*
 * Casts of whole tensors, and a cache of casts that cannot be stale.
 *
 * The cache finds a cast by (tensor id, dtype). A pull or an update gives a tensor another version; its cast is then
 * made again in place, so that the caller never has to clear the cache. amp_autocast_cast (amp/autocast.h) fills it.
 */
#ifndef AMP_CAST_H
#define AMP_CAST_H

#include "amp/dtype.h"
#include "amp/kernels.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor's elements, borrowed. */
struct amp_tensor_view {
    const void *data;
    size_t count;
    enum amp_dtype dtype;
    uint64_t id;      /* unique among the tensors of a cache; 0: never cached */
    uint64_t version; /* changes whenever the elements do */
};

/*
 * Casts `count` elements of src from the dtype `from` to the dtype `to` into dst, through f32; both are f32, f16 or
 * bf16. dst and src must not overlap; they may have any alignment. Any thread.
 */
void amp_cast(const struct amp_kernels *kernels, void *dst, enum amp_dtype to, const void *src, enum amp_dtype from,
              size_t count);

/*
 * A cache of casts, used by one thread at a time; another thread may use it once that thread has left its outermost
 * autocast region. A cast that was handed out is not freed before then, and its elements change only if the same id and
 * dtype are requested with another version and the same number of elements. After that it stays until another cast
 * needs its room; the one used longest ago is freed first.
 */
struct amp_cast_cache;

/* Makes an empty cache of at most max_bytes of casts; the caller's (amp_cast_cache_free). NULL: out of memory. */
struct amp_cast_cache *amp_cast_cache_new(size_t max_bytes);

/* Frees the cache and every cast in it; NULL is allowed. */
void amp_cast_cache_free(struct amp_cast_cache *cache);

/* Statistics of a cache since it was made. */
struct amp_cast_cache_stats {
    size_t entries;    /* casts in the cache now */
    size_t bytes;      /* bytes of their elements */
    uint64_t hits;     /* requests that were served without a cast */
    uint64_t misses;   /* requests that were not */
    uint64_t compared; /* entries that all searches together have looked at: about one for each search */
};
void amp_cast_cache_stats(const struct amp_cast_cache *cache, struct amp_cast_cache_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
