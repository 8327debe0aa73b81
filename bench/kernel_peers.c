/*
 * Vectors of 32 bytes as GCC and clang know them: one source for every instruction set, no intrinsics but the stream.
 */
#include "bench/kernel_peers.h"

#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

typedef uint32_t v32 __attribute__((vector_size(32)));

/* Elements ahead of the loop that are asked for: near enough to be still there, far enough to have come. */
#define AHEAD 512

/* Zero, which the compiler does not know: x ^ zero is work, and leaves the arrays as they are. */
static volatile uint32_t zero;

static inline v32 load(const void *src)
{
    v32 x;
    memcpy(&x, src, sizeof x);
    return x;
}

static inline void store(void *dst, v32 x)
{
    memcpy(dst, &x, sizeof x);
}

static inline void stream(void *dst, v32 x)
{
#ifdef __AVX__
    _mm256_stream_si256(dst, (__m256i)x);
#else
    store(dst, x);
#endif
}

static inline void touch(float *x, v32 k)
{
    for (int i = 0; i < 4; i++)
        store(x + 8 * i, load(x + 8 * i) ^ k);
}

void peer_mix_plain(const uint16_t *g, float *p, float *m, float *v, uint16_t *copy, size_t n)
{
    v32 k = (v32){0} + zero;
    for (size_t i = 0; i < n; i += 32) {
        touch(p + i, k);
        touch(m + i, k);
        touch(v + i, k);
        store(copy + i, load(g + i) ^ k);
        store(copy + i + 16, load(g + i + 16) ^ k);
    }
}

void peer_mix_stream(const uint16_t *g, float *p, float *m, float *v, uint16_t *copy, size_t n)
{
    v32 k = (v32){0} + zero;
    for (size_t i = 0; i < n; i += 32) {
        touch(p + i, k);
        touch(m + i, k);
        touch(v + i, k);
        stream(copy + i, load(g + i) ^ k);
        stream(copy + i + 16, load(g + i + 16) ^ k);
    }
}

void peer_mix_prefetch(const uint16_t *g, float *p, float *m, float *v, uint16_t *copy, size_t n)
{
    v32 k = (v32){0} + zero;
    for (size_t i = 0; i < n; i += 32) {
        __builtin_prefetch(g + i + AHEAD);
        for (int line = 0; line < 32; line += 16) {
            __builtin_prefetch(p + i + AHEAD + line);
            __builtin_prefetch(m + i + AHEAD + line);
            __builtin_prefetch(v + i + AHEAD + line);
        }
        touch(p + i, k);
        touch(m + i, k);
        touch(v + i, k);
        stream(copy + i, load(g + i) ^ k);
        stream(copy + i + 16, load(g + i + 16) ^ k);
    }
}

void peer_scale(float *dst, const float *src, float factor, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = src[i] * factor;
}

/* Eight f16 as floats. C17 has no such type: the conversion is the processor's where it has one. */
#ifdef __F16C__
typedef __m256 v8;

static inline v8 widen(const uint16_t *g)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)g));
}
#else
typedef float v8 __attribute__((vector_size(32)));

static inline v8 widen(const uint16_t *g)
{
    _Float16 h[8];
    v8 x;
    memcpy(h, g, sizeof h);
    for (int i = 0; i < 8; i++)
        x[i] = (float)h[i];
    return x;
}
#endif

void peer_accumulate_set(float *sum, const uint16_t *g, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        v8 x = widen(g + i);
        memcpy(sum + i, &x, sizeof x);
    }
}

void peer_accumulate_stream(float *sum, const uint16_t *g, size_t n)
{
    for (size_t i = 0; i < n; i += 8)
        stream(sum + i, (v32)widen(g + i));
}

void peer_accumulate_add(float *sum, const uint16_t *g, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        v8 x;
        memcpy(&x, sum + i, sizeof x);
        x = x + widen(g + i);
        memcpy(sum + i, &x, sizeof x);
    }
}

void peer_accumulate_add_prefetch(float *sum, const uint16_t *g, size_t n)
{
    for (size_t i = 0; i < n; i += 32) {
        __builtin_prefetch(g + i + AHEAD);
        __builtin_prefetch(sum + i + AHEAD);
        __builtin_prefetch(sum + i + AHEAD + 16);
        peer_accumulate_add(sum + i, g + i, 32);
    }
}
