/*
 * The peers of the rows of bench_kernels.c: loops as a good programmer writes them for one machine (compiled with -O3
 * -march=native), which need not give the bits of docs/numerics.md. bench_kernels.c says what is compared with each.
 */
#ifndef BENCH_KERNEL_PEERS_H
#define BENCH_KERNEL_PEERS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Reads g, p, m and v, and writes p, m, v and copy: the memory traffic of a fused AdamW pass, with one exclusive-or in
 * place of its arithmetic. n is a multiple of 32.
 */
typedef void peer_mix_fn(const uint16_t *g, float *p, float *m, float *v, uint16_t *copy, size_t n);
peer_mix_fn peer_mix_plain;
peer_mix_fn peer_mix_stream;   /* writes copy by non-temporal stores */
peer_mix_fn peer_mix_prefetch; /* as peer_mix_stream, with software prefetch of the four inputs */

/* dst = src * factor, without a test for Inf and NaN. n is a multiple of 32. */
void peer_scale(float *dst, const float *src, float factor, size_t n);

/* Adds a gradient that arrives: sum = g for the first one, sum += g for the others. n is a multiple of 32. */
void peer_accumulate_set(float *sum, const uint16_t *g, size_t n);
void peer_accumulate_stream(float *sum, const uint16_t *g,
                            size_t n); /* set, by non-temporal stores; sum aligned to 32 */
void peer_accumulate_add(float *sum, const uint16_t *g, size_t n);
void peer_accumulate_add_prefetch(float *sum, const uint16_t *g, size_t n);

#endif
