/*
 * Kernels of one array or two that are the same for all vector variants but for their vectors: loads, sums, the largest
 * magnitude and the finite test. Only for kernels/<isa>.c, which before it names
 *
 *     WIDTH, vf, vf_load, vf_store, vf_all, canonical   as for kernels/double.h
 *     widen(src, dtype)                                 WIDTH elements of a dtype as floats
 *     most_f32, most_16                                 the largest magnitude, in the dtype's own bits, of a multiple
 *                                                       of WIDTH floats, of 2 * WIDTH elements of sixteen bits
 *     larger                                            of two uint32_t
 *
 * Tails are the reference's.
 */
#ifndef AMP_KERNELS_ELEMENTS_H
#define AMP_KERNELS_ELEMENTS_H

#include "amp/kernels.h"

#define LOAD(NAME, TYPE, DTYPE)                                                                                        \
    static void load_##NAME(float *dst, const void *src, size_t n)                                                     \
    {                                                                                                                  \
        const TYPE *s = src;                                                                                           \
        size_t i = 0;                                                                                                  \
        for (; i + WIDTH <= n; i += WIDTH)                                                                             \
            vf_store(dst + i, canonical(widen(s + i, DTYPE)));                                                         \
        amp_kernels_ref.load[DTYPE](dst + i, s + i, n - i);                                                            \
    }

#define SUM(NAME, TYPE, DTYPE)                                                                                         \
    static void sum_set_##NAME(float *sum, const void *src, float weight, size_t n)                                    \
    {                                                                                                                  \
        const TYPE *s = src;                                                                                           \
        vf w = vf_all(weight);                                                                                         \
        size_t i = 0;                                                                                                  \
        for (; i + WIDTH <= n; i += WIDTH)                                                                             \
            vf_store(sum + i, w * widen(s + i, DTYPE));                                                                \
        amp_kernels_ref.sum_set[DTYPE](sum + i, s + i, weight, n - i);                                                 \
    }                                                                                                                  \
    static void sum_add_##NAME(float *sum, const void *src, float weight, size_t n)                                    \
    {                                                                                                                  \
        const TYPE *s = src;                                                                                           \
        vf w = vf_all(weight);                                                                                         \
        size_t i = 0;                                                                                                  \
        for (; i + WIDTH <= n; i += WIDTH) {                                                                           \
            vf product = w * widen(s + i, DTYPE);                                                                      \
            vf_store(sum + i, vf_load(sum + i) + product);                                                             \
        }                                                                                                              \
        amp_kernels_ref.sum_add[DTYPE](sum + i, s + i, weight, n - i);                                                 \
    }

/* The largest element of a dtype in its own bits stands for all. */
#define LARGEST(NAME, TYPE, DTYPE, MOST, TURN)                                                                         \
    static uint32_t largest_##NAME(const void *src, size_t n)                                                          \
    {                                                                                                                  \
        const TYPE *s = src;                                                                                           \
        size_t whole = n - n % (TURN);                                                                                 \
        uint32_t bits = MOST(s, whole);                                                                                \
        return larger(amp_kernels_ref.largest[DTYPE](&bits, 1), amp_kernels_ref.largest[DTYPE](s + whole, n - whole)); \
    }

/* Elements of one chunk of the finite test: few enough that a bad chunk is counted from cache. */
#define CHUNK 2048

/* Chunk by chunk: where all is finite only the largest counts, and the reference judges that one element. */
#define CHECK(NAME, TYPE, DTYPE, MOST, TURN, INFINITE)                                                                 \
    static void check_##NAME(const void *src, size_t n, uint64_t base, struct amp_check *check)                        \
    {                                                                                                                  \
        const TYPE *s = src;                                                                                           \
        while (n > 0) {                                                                                                \
            size_t chunk = n < CHUNK ? n : CHUNK;                                                                      \
            size_t whole = chunk - chunk % (TURN);                                                                     \
            uint32_t most = MOST(s, whole);                                                                            \
            if (most < (INFINITE)) {                                                                                   \
                uint32_t bits = most;                                                                                  \
                amp_kernels_ref.check[DTYPE](&bits, whole > 0, base, check);                                           \
                amp_kernels_ref.check[DTYPE](s + whole, chunk - whole, base + whole, check);                           \
            } else {                                                                                                   \
                amp_kernels_ref.check[DTYPE](s, chunk, base, check);                                                   \
            }                                                                                                          \
            s += chunk;                                                                                                \
            base += chunk;                                                                                             \
            n -= chunk;                                                                                                \
        }                                                                                                              \
    }

#define ELEMENTS(NAME, TYPE, DTYPE, MOST, TURN, INFINITE)                                                              \
    LOAD(NAME, TYPE, DTYPE)                                                                                            \
    SUM(NAME, TYPE, DTYPE)                                                                                             \
    LARGEST(NAME, TYPE, DTYPE, MOST, TURN)                                                                             \
    CHECK(NAME, TYPE, DTYPE, MOST, TURN, INFINITE)

ELEMENTS(f32, float, AMP_F32, most_f32, WIDTH, AMP_F32_INF)
ELEMENTS(f16, uint16_t, AMP_F16, most_16, 2 * WIDTH, 0x7c00u)
ELEMENTS(bf16, uint16_t, AMP_BF16, most_16, 2 * WIDTH, 0x7f80u)

#endif
