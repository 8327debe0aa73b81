/* The cast cache as autocast uses it (amp/cast.h). Not installed. */
#ifndef AMP_CAST_CACHE_H
#define AMP_CAST_CACHE_H

#include "amp/cast.h"
#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Sets *out to the cast of `in` to `dtype`, from the cache or made now; *out borrows the cache's memory. `visit` is a
 * number, never 0, of the thread's present outermost region: a cast that is handed out during a visit is not freed
 * during it. The caller has checked in->count. AMP_ENOMEM; AMP_EEXHAUSTED: the cast is larger than the cache, or there
 * is no room because everything that could be freed was handed out during this visit.
 */
int amp_cast_cache_get(struct amp_cast_cache *cache, uint64_t visit, const struct amp_kernels *kernels,
                       const struct amp_tensor_view *in, enum amp_dtype dtype, struct amp_tensor_view *out);

#ifdef __cplusplus
}
#endif

#endif
