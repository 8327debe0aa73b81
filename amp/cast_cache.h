/* The question that autocast puts to the cast cache (amp/cast.h). Not installed. */
#ifndef AMP_CAST_CACHE_H
#define AMP_CAST_CACHE_H

#include "amp/cast.h"
#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * *out = the cast of `in` to `dtype`, found or made. `visit` is the number of the thread's outermost region, never 0:
 * what is handed out under it is not freed under it. 0; AMP_ENOMEM; AMP_EEXHAUSTED if it would not fit, or all that
 * would have to go was handed out under this visit. The count has been checked.
 */
int amp_cast_cache_get(struct amp_cast_cache *cache, uint64_t visit, const struct amp_kernels *kernels,
                       const struct amp_tensor_view *in, enum amp_dtype dtype, struct amp_tensor_view *out);

#ifdef __cplusplus
}
#endif

#endif
