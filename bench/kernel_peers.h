/*
 * The other sides of the rows of bench_kernels.c: loops as a good programmer writes them for this one machine
 * (-O3 -march=native), without our rules on bits. See bench_kernels.c for what each is compared with.
 */
#ifndef BENCH_KERNEL_PEERS_H
#define BENCH_KERNEL_PEERS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Reads g, p, m, v; writes p, m, v and copy: the mix of a fused AdamW pass with one exclusive-or for its arithmetic. n
 * is a multiple of 32.
 */
typedef void peer_mix_fn(const uint16_t *g, float *p, float *m, float *v, uint16_t *copy, size_t n);
peer_mix_fn peer_mix_plain;
peer_mix_fn peer_mix_stream;   /* the copy by non-temporal stores */
peer_mix_fn peer_mix_prefetch; /* that, and software prefetch of the four inputs */

/* dst = src * factor, no test. n is a multiple of 32. */
void peer_scale(float *dst, const float *src, float factor, size_t n);

/* A gradient that arrives: sum = g (the first), sum += g. n is a multiple of 32. */
void peer_accumulate_set(float *sum, const uint16_t *g, size_t n);
void peer_accumulate_stream(float *sum, const uint16_t *g,
                            size_t n); /* set, by non-temporal stores; sum aligned to 32 */
void peer_accumulate_add(float *sum, const uint16_t *g, size_t n);
void peer_accumulate_add_prefetch(float *sum, const uint16_t *g, size_t n);

#endif
