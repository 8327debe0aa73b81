/*
 * Autocast: decides to which dtype the operands of an operation are cast, and casts them, as torch.autocast does.
 *
 * A thread enters and leaves regions, which nest. A region has a mode (the low precision) and lists of operations, and
 * may have a registry of its own. Entering, leaving and deciding allocate nothing; only a cast that goes into a cache
 * does (amp/cast.h). The state is per thread: every function may be called from any thread, for that thread's regions.
 *
 * Functions with a struct amp_error argument return AMP_EINVAL for a NULL pointer, unless NULL is said to be allowed.
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

/* The most regions nested on a thread. They follow the nesting of a program's calls, so that a few are enough. */
#define AMP_AUTOCAST_DEPTH_MAX 32

/* The settings of a region. Functions below make the usual ones. */
struct amp_autocast_config {
    enum amp_autocast_mode mode;         /* the low precision */
    bool enabled;                        /* false: operations run in their input types, as in mode NONE */
    bool cache_enabled;                  /* false: casts of this region go only to the caller's buffer */
    const struct amp_registry *registry; /* borrowed until the exit and the backward after it; NULL: built-in lists */
    enum amp_op_lists lists;             /* which operations run in the low precision: any lists with any mode */
};

/*
 * The usual settings, enabled and with a cache: fp16 with PyTorch's lists for CUDA, and bf16 with its lists for the
 * CPU. bf16 is recommended, since it needs no loss scale. `registry` may be NULL. For other lists set the member.
 */
struct amp_autocast_config amp_autocast_config_fp16(const struct amp_registry *registry);
struct amp_autocast_config amp_autocast_config_bf16(const struct amp_registry *registry);
struct amp_autocast_config amp_autocast_config_of(enum amp_autocast_mode mode, const struct amp_registry *registry);

/*
 * Begins a region on this thread; `config` is copied, and NULL means amp_autocast_config_bf16(NULL). Codes as
 * amp_autocast_enter, and AMP_EINVAL for unknown lists.
 */
int amp_autocast_enter_config(const struct amp_autocast_config *config);

/* Begins a region on this thread. 0, AMP_EEXHAUSTED beyond AMP_AUTOCAST_DEPTH_MAX, AMP_EINVAL for an unknown mode. */
int amp_autocast_enter(enum amp_autocast_mode mode);

/*
 * As amp_autocast_enter, with a registry, which is borrowed until the region's exit and until the last call of
 * amp_autocast_backward_dtype after it; NULL: the built-in lists.
 */
int amp_autocast_enter_with(enum amp_autocast_mode mode, const struct amp_registry *registry);

/* Ends the innermost region of this thread; does nothing outside every region. */
void amp_autocast_exit(void);

/* Whether this thread is in a region; if so, *config (may be NULL) gets the settings of the innermost one. */
bool amp_autocast_current(struct amp_autocast_config *config);
/* Whether this thread's innermost region casts at all: it is enabled, and its mode is not NONE. */
bool amp_autocast_active(void);
/* The number of regions that this thread is in. */
unsigned amp_autocast_depth(void);
/* The mode of this thread's innermost region; NONE outside and while it is not enabled. */
enum amp_autocast_mode amp_autocast_mode(void);

/* The low dtype of a mode: f16, bf16, or AMP_DTYPE_NONE for NONE. */
enum amp_dtype amp_autocast_low_dtype(enum amp_autocast_mode mode);

/*
 * The dtype to which this thread's region casts an operand of dtype `in` for the forward of `op`. It is `in` itself
 * outside a region, for f64 and for what is no float (AMP_DTYPE_NONE and other values stand for integers and bools),
 * and for operations that are not listed or are banned. For operations that promote use amp_autocast_promote.
 */
enum amp_dtype amp_autocast_dtype(const char *op, enum amp_dtype in);

/*
 * The dtype to which an operand is cast for the backward of `op`: that of the forward, as in PyTorch, unless the
 * registry names one. Outside all regions the outermost region that this thread left last decides, since backward runs
 * after it. For operations of an inner region with other settings, enter a region with those settings for their
 * backward.
 */
enum amp_dtype amp_autocast_backward_dtype(const char *op, enum amp_dtype in);

/* The dtype for the forward of an `op` that has a dtype argument: `named`; AMP_DTYPE_NONE: as amp_autocast_dtype. */
enum amp_dtype amp_autocast_dtype_named(const char *op, enum amp_dtype in, enum amp_dtype named);

/*
 * Sets *out to the common dtype of the n operands of `op`: for an operation that promotes the widest of them, f32 if
 * any is f32; f64 and what is no float are not counted, and *out is in[0] if nothing else is there. For other
 * operations it is amp_autocast_dtype of the first. 0; AMP_EINVAL if n is 0, if an operand has a low dtype that is not
 * the region's, or if the operation is banned in this mode, with a text that names the remedy.
 */
int amp_autocast_promote(const char *op, const enum amp_dtype *in, size_t n, enum amp_dtype *out,
                         struct amp_error *error);

/*
 * Gives an operand in the dtype that `op` needs: *out is `in` itself if it has that dtype (no copy), else a cast. A
 * cast from fp32 to the region's low dtype goes into `cache` (amp/cast.h says how long it stays) if there is one, the
 * tensor has an id, the region has cache_enabled, and the cache has room. Otherwise it goes into `buffer` of
 * buffer_bytes bytes, which may be NULL if the cache is used. 0; AMP_EINVAL if the operation is banned, the buffer
 * overlaps the tensor, or the count is larger than memory can be; AMP_ENOMEM; AMP_ERANGE if the buffer is too small or
 * NULL. Casts do not depend on the floating-point environment.
 */
int amp_autocast_cast(const struct amp_kernels *kernels, const char *op, const struct amp_tensor_view *in,
                      struct amp_cast_cache *cache, void *buffer, size_t buffer_bytes, struct amp_tensor_view *out,
                      struct amp_error *error);

/*
 * Gives an operand in the named dtype, inside or outside a region: *out is `in` itself if it has that dtype, else a
 * cast in `buffer`. 0; AMP_EINVAL for a cast from or to another dtype than f32, f16 and bf16, and else as
 * amp_autocast_cast. Nothing is cached.
 */
int amp_autocast_cast_to(const struct amp_kernels *kernels, enum amp_dtype dtype, const struct amp_tensor_view *in,
                         void *buffer, size_t buffer_bytes, struct amp_tensor_view *out, struct amp_error *error);

#ifdef __cplusplus
}
#endif

#endif
