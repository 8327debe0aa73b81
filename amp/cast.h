/*
 * Casts of whole tensors, and a cache of casts that cannot be stale.
 *
 * The cache finds a cast by (tensor id, dtype). A pull or an update gives a tensor another version: its old cast is
 * then cast again in place, so nothing has to be cleared by luck. amp_autocast_cast (amp/autocast.h) fills the cache.
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
 * dst (count elements of `to`) = src cast from `from`; any pair of f32, f16, bf16. Goes through f32. The two do not
 * overlap; they may lie at any address.
 */
void amp_cast(const struct amp_kernels *kernels, void *dst, enum amp_dtype to, const void *src, enum amp_dtype from,
              size_t count);

/*
 * Casts of one thread's tensors; another thread may use the cache once that thread has left its outermost region. A
 * cast that was handed out is not freed before then. Its elements change only where the same id and dtype are asked
 * for with another version and as many elements. After that it stays until another cast needs its room: of those that
 * may go, the one that was used longest ago goes first.
 */
struct amp_cast_cache;

/* An empty cache of at most max_bytes of casts, or NULL without memory. */
struct amp_cast_cache *amp_cast_cache_new(size_t max_bytes);

/* Frees the cache and every cast in it; NULL is allowed. */
void amp_cast_cache_free(struct amp_cast_cache *cache);

/* What a cache holds and has done. */
struct amp_cast_cache_stats {
    size_t entries; /* casts held */
    size_t bytes;   /* what they take */
    uint64_t hits;
    uint64_t misses;
    uint64_t compared; /* entries that the searches have looked at: about one each */
};
void amp_cast_cache_stats(const struct amp_cast_cache *cache, struct amp_cast_cache_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
