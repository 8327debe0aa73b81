/*
 * The numeric kernels: one table of functions for each instruction set, all of which give the same bits.
 *
 * kernels/ref.c is plain C and defines what is correct; the other variants are faster, and equal to it bit for bit for
 * every input (docs/numerics.md). A new operation is a new member here and a function in kernels/ref.c; a new optimizer
 * or dtype is a new row of the arrays. An entry is never NULL if the reference has one: a variant uses the reference's
 * function where it has no faster one.
 *
 * Rules for all kernels: n = 0 is allowed; arrays of elements may begin at any address, also odd ones (lanes need the
 * alignment of double); source and destination are the same or do not overlap; nothing is allocated; any thread. A
 * result that is NaN is the canonical NaN.
 */
#ifndef AMP_KERNELS_H
#define AMP_KERNELS_H

#include "amp/dtype.h"
#include "amp/kernel_passes.h"
#include "amp/kernel_values.h"
#include "amp/optim.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of the arrays below that are indexed by enum amp_dtype: f32, f16, bf16. */
#define AMP_KERNEL_DTYPES (AMP_BF16 + 1)

/* Lanes of the sum of squares: element i of a segment goes to lane i mod 16. */
#define AMP_SQUARE_LANES 16

/* The one NaN that kernels write, as binary32, binary16 and bfloat16. */
#define AMP_F32_NAN  0x7fc00000u
#define AMP_F16_NAN  0x7e00u
#define AMP_BF16_NAN 0x7fc0u

/* Bits of +Inf as binary32: a magnitude (bits without sign) is finite if and only if it is below this. */
#define AMP_F32_INF 0x7f800000u

/* dst[i] = src[i] as binary32. For f32 a copy (NaN canonical). */
typedef void amp_load_fn(float *dst, const void *src, size_t n);

/* dst[i] = src[i] in the dtype, RNE, overflow to Inf. Returns the largest magnitude of src as bits (0 if n = 0). */
typedef uint32_t amp_store_fn(void *dst, const float *src, size_t n);

/* Orders what this thread has written past the caches before its later writes (a store fence). */
typedef void amp_store_fence_fn(void);

/* Tests n elements for Inf and NaN and adds the result to *check; the first of them counts as index `base`. */
typedef void amp_check_fn(const void *src, size_t n, uint64_t base, struct amp_check *check);

/*
 * sum_set: sum[i] = fp32(weight * src[i]). sum_add: sum[i] = fp32(sum[i] + fp32(weight * src[i])). A NaN in sum may
 * have any payload; amp_scale_fn makes it canonical.
 */
typedef void amp_sum_fn(float *sum, const void *src, float weight, size_t n);

/* dst[i] = fp32(src[i] * factor). Returns the largest magnitude of dst as bits: all finite if below AMP_F32_INF. */
typedef uint32_t amp_scale_fn(float *dst, const float *src, float factor, size_t n);

/* One worker's gradient of a segment. A worker that sent none for the parameter is not in the list of inputs. */
struct amp_input {
    const void *data;
    enum amp_dtype dtype; /* f32, f16 or bf16; may differ between inputs */
    float weight;         /* ignored with equal_weights */
};

/*
 * g[i] = fp32(sum * factor), where sum is the weighted sum of element start + i of the inputs, in their order: as
 * sum_set for the first, sum_add for the others and scale, but in registers where a variant can. inputs_count >= 1.
 * Returns the bits of the largest magnitude of g.
 */
typedef uint32_t amp_form_fn(const struct amp_input *inputs, unsigned inputs_count, bool equal_weights, float factor,
                             size_t start, size_t n, float *g);

/* g[i] clamped to [-limit, limit], limit >= 0; a NaN stays NaN, and -0 stays -0. */
typedef void amp_clip_value_fn(float *g, float limit, size_t n);

/* lanes[i mod 16] += (double)g[i] * g[i] by rising i. n is a multiple of 16, but for the last call of a segment. */
typedef void amp_squares_fn(const float *g, size_t n, double lanes[AMP_SQUARE_LANES]);

/* The largest magnitude of n elements as bits of binary32: 0 if n = 0, AMP_F32_NAN if any is NaN. */
typedef uint32_t amp_largest_fn(const void *src, size_t n);

/* lanes[i mod 16] += |g[i]|, with the rules of amp_squares_fn. */
typedef void amp_magnitudes_fn(const float *g, size_t n, double lanes[AMP_SQUARE_LANES]);

/*
 * lanes[i mod 16] += (|g[i]| / unit)^p, with the rules of amp_squares_fn. p is finite and > 0; unit is finite, > 0 and
 * at least every |g[i]|.
 */
typedef void amp_powers_fn(const float *g, size_t n, double p, float unit, double lanes[AMP_SQUARE_LANES]);

/*
 * One step of an optimizer on n elements: changes the masters p and the moments m and v. Moments that the optimizer
 * does not have may be NULL (SGD's m without momentum, RMSProp's v with neither momentum nor centered).
 */
typedef void amp_apply_fn(const struct amp_apply_scalars *scalars, size_t n, const float *g, float *p, float *m,
                          float *v);

/*
 * LAMB's first pass: adds the squares of masters and of updates to their lanes as amp_squares_fn; changes nothing else.
 */
typedef void amp_lamb_squares_fn(const struct amp_apply_scalars *scalars, size_t n, const float *g, const float *p,
                                 const float *m, const float *v, double masters[AMP_SQUARE_LANES],
                                 double updates[AMP_SQUARE_LANES]);

/* A variant. Arrays are indexed by enum amp_dtype or enum amp_optimizer; their row 0 is NULL. */
struct amp_kernels {
    const char *isa; /* "ref", "avx2", "avx512", "neon" */
    amp_load_fn *load[AMP_KERNEL_DTYPES];
    amp_store_fn *store[AMP_KERNEL_DTYPES];
    /*
     * As load and store, but writing past the caches where a variant can: for a dst that is larger than the caches or
     * is not read soon. dst and src must not overlap. After any number of calls `store_fence` is called once.
     */
    amp_load_fn *load_stream[AMP_KERNEL_DTYPES];
    amp_store_fn *store_stream[AMP_KERNEL_DTYPES];
    amp_store_fence_fn *store_fence;
    amp_check_fn *check[AMP_KERNEL_DTYPES];
    amp_sum_fn *sum_set[AMP_KERNEL_DTYPES];
    amp_sum_fn *sum_add[AMP_KERNEL_DTYPES];
    amp_scale_fn *scale;
    amp_form_fn *form;
    amp_vote_pass_fn *vote_pass; /* NULL: the variant has none, and amp_pass_vote uses the separate kernels */
    amp_vote_take_fn *vote_take; /* NULL: the variant has none, and amp_pass_take makes three passes */
    amp_clip_value_fn *clip_value;
    amp_squares_fn *squares;
    amp_magnitudes_fn *magnitudes;
    amp_powers_fn *powers;
    amp_lamb_squares_fn *lamb_squares;
    amp_largest_fn *largest[AMP_KERNEL_DTYPES];
    amp_apply_fn *apply[AMP_OPTIMIZERS];
    amp_apply_pass_fn *apply_pass[AMP_OPTIMIZERS]; /* NULL: the variant has none, as vote_pass */
};

/* The variants. Use amp_cpu_select to get one: not all of them are in each build or can run on each processor. */
extern const struct amp_kernels amp_kernels_ref;
extern const struct amp_kernels amp_kernels_avx2;
extern const struct amp_kernels amp_kernels_avx512;
extern const struct amp_kernels amp_kernels_neon;

#ifdef __cplusplus
}
#endif

#endif
