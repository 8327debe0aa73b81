/*
 * Bounds: the best that a row of bench_kernels.c can reach on this processor. A bound is a loop with the reads and
 * writes of our kernel and only that part of its arithmetic which no implementation of docs/numerics.md can leave out:
 * without the tests and the norm of a vote, and AdamW with its guard, but fewer elements in double than the data have,
 * always the same ones, which nobody has to find and gather. It has less to do than our kernel, so that the fastest of
 * such loops is faster than any way of doing the row's work that we know. If a processor cannot overlap so much
 * arithmetic with so much traffic, a loop without arithmetic (kernel_peers.h) cannot be reached; this one can nearly
 * be.
 */
#ifndef BENCH_KERNEL_BOUNDS_H
#define BENCH_KERNEL_BOUNDS_H

#include "amp/kernel_values.h"

#include <stddef.h>
#include <stdint.h>

/*
 * In all loops n is a multiple of 512, and arrays that are written begin at a cache line. In k the gradient's factor, a
 * power of two, is a factor of rest1, and its square one of rest2.
 */
typedef void bound_step_fn(const struct amp_apply_scalars *k, const void *g, float *p, float *m, float *v,
                           uint16_t *copy, size_t n);
typedef void bound_vote_fn(const uint16_t *const *g, unsigned workers, float *sum, size_t n);
typedef uint32_t bound_read_fn(const uint16_t *g, size_t n); /* all bits of g in one word */
typedef void bound_move_fn(void *dst, const void *src, size_t n);

/* One variant of the loops: a vector length and a way of prefetching. */
struct bound_loops {
    const char *name;
    unsigned vector_bytes;
    bound_step_fn *step_f16, *step_f32; /* by the dtype of g */
    bound_vote_fn *vote;                /* reads each gradient, writes the sum past the caches */
    bound_read_fn *read;
    bound_move_fn *halve, *twice; /* 4 bytes to 2 and 2 to 4, past the caches, without a conversion */
};

/* All variants; there are some only on x86 with AVX2. */
extern const struct bound_loops bound_loops[];
extern const size_t bound_loops_count;

/*
 * The bytes of the longest vectors of an instruction set (amp_kernels.isa); 0 if there are no loops for it. The bound
 * of AVX2's kernels is taken only from loops with vectors that AVX2 has.
 */
unsigned bound_vector_bytes(const char *isa);

#endif
