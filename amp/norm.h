/*
 * The parts of p-norms (amp_grads_norm of amp/clip.h), with the same bits for every variant of the kernels and every
 * number of threads: the maximum is exact, and sums use the lanes and trees of amp/reduce.h. Powers are computed here
 * (docs/numerics.md section 7), since libm's differ between machines.
 *
 * A tensor is summed in blocks of AMP_NORM_BLOCK elements, so that several threads may each take some of the blocks.
 * All functions are pure; any thread.
 */
#ifndef AMP_NORM_H
#define AMP_NORM_H

#include "amp/dtype.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct amp_kernels;

/* Elements of a block: the unit of the tree, as in the server's flat space. */
#define AMP_NORM_BLOCK 65536

/* Elements in memory, borrowed. */
struct amp_span {
    const void *data;
    size_t count;
    enum amp_dtype dtype; /* f32, f16 or bf16 */
};

/* x^p for x in [0, 1] and p > 0, finite; relative error below 2^-48 times (1 + |p log2 x|). 0 below 2^-1022. */
double amp_real_power(double x, double p);

/* The largest magnitude of the span: Inf or NaN (before Inf) if it holds one, 0 if it is empty. */
float amp_norm_largest(const struct amp_kernels *kernels, const struct amp_span *span);

/*
 * The sum of (|x| / unit)^p of a span of at most AMP_NORM_BLOCK elements, whose magnitudes are finite and at most
 * `unit`; p > 0, finite; unit is used for p other than 1 and 2 only. 0 if it is empty.
 */
double amp_norm_block(const struct amp_kernels *kernels, const struct amp_span *block, double p, float unit);

/* As amp_norm_block, the sum of a span of any length: by the tree over its blocks. */
double amp_norm_sum(const struct amp_kernels *kernels, const struct amp_span *span, double p, float unit);

/*
 * The norm that belongs to a sum: the sum for p = 1, its root for p = 2, else unit * sum^(1/p), which is at least unit.
 */
double amp_norm_of_sum(double sum, double p, float unit);

#ifdef __cplusplus
}
#endif

#endif
