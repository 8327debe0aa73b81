/*
 * What a row of bench_kernels.c could reach at best on this processor: loops that make the reads and writes of our
 * kernels, and of their arithmetic only what nobody can leave out: no test, no norm, no guard, no element in double,
 * products and sums contracted. They have less to do than our kernels, so that the fastest of them is faster than any
 * way of doing the row's work that we know of. Where the processor cannot overlap that much arithmetic with that much
 * traffic, a loop without arithmetic (kernel_peers.h) is no bar, and this is.
 */
#ifndef BENCH_KERNEL_BOUNDS_H
#define BENCH_KERNEL_BOUNDS_H

#include <stddef.h>
#include <stdint.h>

/* AdamW in single precision; the gradient's factor is in rest1, and its square in rest2. */
struct bound_scalars {
    float beta1, rest1, beta2, rest2, rate, eps, keep;
};

/* n is a multiple of 256 everywhere, what is written begins with a whole line. */
typedef void bound_step_fn(const struct bound_scalars *k, const void *g, float *p, float *m, float *v, uint16_t *copy,
                           size_t n);
typedef void bound_vote_fn(const uint16_t *const *g, unsigned workers, float *sum, size_t n);
typedef uint32_t bound_read_fn(const uint16_t *g, size_t n); /* all bits of g in one word */
typedef void bound_move_fn(void *dst, const void *src, size_t n);

/* The same work in one way of writing it. */
struct bound_loops {
    const char *name;
    unsigned vector_bytes;
    bound_step_fn *step_f16, *step_f32; /* by the dtype of g */
    bound_vote_fn *vote;                /* reads each gradient, writes the sum past the caches */
    bound_read_fn *read;
    bound_move_fn *halve, *twice; /* 4 bytes to 2 and 2 to 4, past the caches, without a conversion */
};

/* None but on x86 with AVX2. */
extern const struct bound_loops bound_loops[];
extern const size_t bound_loops_count;

/*
 * The longest vectors of the kernels of an instruction set (amp_kernels.isa); 0 where there are no loops for it. A
 * bound for AVX2 does without those that only AVX-512 has.
 */
unsigned bound_vector_bytes(const char *isa);

#endif
