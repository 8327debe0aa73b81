/*
 * Local autocast: which dtype an operation's operands are cast to.
 *
 * Regions nest per thread. A region has a mode and lists, and may have a registry of its own. Entering, leaving and
 * deciding allocate nothing; only a cast that is cached does (amp/cast.h).
 *
 * Functions with a text for their error refuse a pointer that is NULL, where that is not said to be allowed, by
 * AMP_EINVAL.
 */
#ifndef AMP_AUTOCAST_H
#define AMP_AUTOCAST_H

#include "amp/cast.h"
#include "amp/dtype.h"
#include "amp/kernels.h"
#include "amp/registry.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Deepest nesting of regions on a thread: nested calls of a program, not data, so small. */
#define AMP_AUTOCAST_DEPTH_MAX 32

/* How a region casts. One per region; the ready-made ones are below. */
struct amp_autocast_config {
    enum amp_autocast_mode mode;         /* the low precision */
    bool enabled;                        /* false: operations run in their input types, as in mode NONE */
    bool cache_enabled;                  /* false: casts of this region go to the caller's buffer alone */
    const struct amp_registry *registry; /* borrowed until the exit and the backward after it; NULL: built-in lists */
    enum amp_op_lists lists;             /* which operations run in the low precision: any lists with any mode */
};

/*
 * Ready-made configurations, enabled and with a cache: CUDA's lists in fp16, and the CPU's in bf16, which is the
 * recommended one, since it needs no loss scale. `registry` may be NULL. For other lists, set the field. Any thread.
 */
struct amp_autocast_config amp_autocast_config_fp16(const struct amp_registry *registry);
struct amp_autocast_config amp_autocast_config_bf16(const struct amp_registry *registry);
struct amp_autocast_config amp_autocast_config_of(enum amp_autocast_mode mode, const struct amp_registry *registry);

/*
 * Begins a region on this thread; NULL: the bf16 configuration. The config is copied. Codes as amp_autocast_enter,
 * and AMP_EINVAL for unknown lists.
 */
int amp_autocast_enter_config(const struct amp_autocast_config *config);

/* Begins a region on this thread. 0, AMP_EEXHAUSTED beyond AMP_AUTOCAST_DEPTH_MAX, AMP_EINVAL for an unknown mode. */
int amp_autocast_enter(enum amp_autocast_mode mode);

/*
 * As enter, with a registry that is borrowed until the exit, and until the last amp_autocast_backward_dtype after it;
 * NULL: the built-in lists.
 */
int amp_autocast_enter_with(enum amp_autocast_mode mode, const struct amp_registry *registry);

/* Ends the innermost region of this thread; does nothing outside every region. */
void amp_autocast_exit(void);

/* Whether this thread is in a region, and how the innermost one casts, into *config (may be NULL). */
bool amp_autocast_current(struct amp_autocast_config *config);
/* Whether this thread's innermost region casts at all: enabled and of a mode other than NONE. */
bool amp_autocast_active(void);
/* Regions that this thread is in. */
unsigned amp_autocast_depth(void);
/* The mode of this thread's innermost region; NONE outside and while it is not enabled. */
enum amp_autocast_mode amp_autocast_mode(void);

/* The low dtype of a mode: f16, bf16, or AMP_DTYPE_NONE for NONE. */
enum amp_dtype amp_autocast_low_dtype(enum amp_autocast_mode mode);

/*
 * The dtype that the forward of `op` takes an operand of `in` in, by this thread's region: `in` itself outside a
 * region, for f64 and all that is no float (AMP_DTYPE_NONE and other values stand for integers and bools), and for
 * operations that are not listed or are banned. For an operation that promotes, ask amp_autocast_promote.
 */
enum amp_dtype amp_autocast_dtype(const char *op, enum amp_dtype in);

/*
 * The same for the backward of `op`: the forward's, as in PyTorch, unless the registry names one. Outside every region
 * by the outermost region that this thread left last, since backward runs after it; for operations of an inner region
 * that casts otherwise, enter a region of that kind for their backward.
 */
enum amp_dtype amp_autocast_backward_dtype(const char *op, enum amp_dtype in);

/* The forward's dtype where the caller of `op` may name one: `named` wins; AMP_DTYPE_NONE: as amp_autocast_dtype. */
enum amp_dtype amp_autocast_dtype_named(const char *op, enum amp_dtype in, enum amp_dtype named);

/*
 * The common dtype of the n operands of `op`, into *out: for a promoting operation the widest (f64 and what is no
 * float are left out of the choice, any f32 gives f32; *out is in[0] if nothing is left); for others as
 * amp_autocast_dtype of the first. 0; AMP_EINVAL if low types other than the region's own meet, if n is 0, or if the
 * operation is banned in this mode, with a text that names the remedy.
 */
int amp_autocast_promote(const char *op, const enum amp_dtype *in, size_t n, enum amp_dtype *out,
                         struct amp_error *error);

/*
 * The operand as `op` wants it: *out is `in` itself where the dtype is right (no copy), else a cast. A cast from
 * fp32 to the region's low dtype with a cache and an id is kept in the cache (amp/cast.h says how long), unless the
 * region has no cache, or the cache has no room that may be given away. Otherwise it goes to `buffer` (buffer_bytes of
 * it; may be NULL if the cache serves). 0; AMP_EINVAL if the operation is banned, the buffer overlaps the tensor, or
 * the count is beyond memory; AMP_ENOMEM; AMP_ERANGE if the buffer is too small or missing. Casts do not depend on the
 * floating-point environment.
 */
int amp_autocast_cast(const struct amp_kernels *kernels, const char *op, const struct amp_tensor_view *in,
                      struct amp_cast_cache *cache, void *buffer, size_t buffer_bytes, struct amp_tensor_view *out,
                      struct amp_error *error);

/*
 * The operand in a dtype that the caller names, in any region or none: *out is `in` itself where the dtype is right,
 * else a cast in `buffer`. 0; AMP_EINVAL for a dtype, or an operand, other than f32, f16 and bf16, and otherwise as
 * amp_autocast_cast. Nothing is cached.
 */
int amp_autocast_cast_to(const struct amp_kernels *kernels, enum amp_dtype dtype, const struct amp_tensor_view *in,
                         void *buffer, size_t buffer_bytes, struct amp_tensor_view *out, struct amp_error *error);

#ifdef __cplusplus
}
#endif

#endif
