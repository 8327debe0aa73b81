/*
 * The loops of the bounds: each one with vectors of 32 and of 64 bytes, and each of these with three ways of
 * prefetching. They are compiled for this machine only (-O3 -march=native).
 */
#include "bench/kernel_bounds.h"

#include <stdbool.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>

#define LOOP static inline __attribute__((always_inline))

/* 16-bit elements in a cache line; a turn of the outer loops handles so many elements of every array. */
#define LINE 32

/* Elements of a tile: as in amp/pass.c where the vote keeps g. */
#define TILE 256

/* Of each SPAN elements LATE are computed in double: one in 64, and with the data of bench_kernels.c one in sixty. */
#define SPAN 512
#define LATE 8

/* Software prefetch: none, ONE_BYTES ahead to the first cache level, or to both levels as our AVX-512 kernels do it. */
enum ahead { NOTHING, ONE_LEVEL, TWO_LEVELS };
#define ONE_BYTES  2048
#define NEAR_BYTES 1024
#define FAR_BYTES  4096

LOOP void ask(enum ahead ahead, const void *at, int lines)
{
    for (int i = 0; ahead != NOTHING && i < lines; i++) {
        const char *line = (const char *)at + 64 * i;
        _mm_prefetch(line + (ahead == ONE_LEVEL ? ONE_BYTES : NEAR_BYTES), _MM_HINT_T0);
        if (ahead == TWO_LEVELS)
            _mm_prefetch(line + FAR_BYTES, _MM_HINT_T1);
    }
}

#define VECTOR     32
#define NAME(name) name##_32
#include "bench/kernel_bound_loops.h"
#undef VECTOR
#undef NAME

#ifdef __AVX512F__
#define VECTOR     64
#define NAME(name) name##_64
#include "bench/kernel_bound_loops.h"
#undef VECTOR
#undef NAME
#endif

/* The functions of one row of the table. */
#define LOOPS(size, ahead)                                                                                             \
    static void step_f16_##size##_##ahead(const struct amp_apply_scalars *k, const void *g, float *p, float *m,        \
                                          float *v, uint16_t *copy, size_t n)                                          \
    {                                                                                                                  \
        step_##size(ahead, false, k, g, p, m, v, copy, n);                                                             \
    }                                                                                                                  \
    static void step_f32_##size##_##ahead(const struct amp_apply_scalars *k, const void *g, float *p, float *m,        \
                                          float *v, uint16_t *copy, size_t n)                                          \
    {                                                                                                                  \
        step_##size(ahead, true, k, g, p, m, v, copy, n);                                                              \
    }                                                                                                                  \
    static void vote_##size##_##ahead(const uint16_t *const *g, unsigned workers, float *sum, size_t n)                \
    {                                                                                                                  \
        vote_##size(ahead, g, workers, sum, n);                                                                        \
    }                                                                                                                  \
    static uint32_t read_##size##_##ahead(const uint16_t *g, size_t n)                                                 \
    {                                                                                                                  \
        return read_##size(ahead, g, n);                                                                               \
    }                                                                                                                  \
    static void halve_##size##_##ahead(void *dst, const void *src, size_t n)                                           \
    {                                                                                                                  \
        halve_##size(ahead, dst, src, n);                                                                              \
    }                                                                                                                  \
    static void twice_##size##_##ahead(void *dst, const void *src, size_t n)                                           \
    {                                                                                                                  \
        twice_##size(ahead, dst, src, n);                                                                              \
    }

#define ROW(text, size, ahead)                                                                                         \
    {                                                                                                                  \
#size " bytes" text, size, step_f16_##size##_##ahead, step_f32_##size##_##ahead, vote_##size##_##ahead,        \
            read_##size##_##ahead, halve_##size##_##ahead, twice_##size##_##ahead                                      \
    }

LOOPS(32, NOTHING)
LOOPS(32, ONE_LEVEL)
LOOPS(32, TWO_LEVELS)
#ifdef __AVX512F__
LOOPS(64, NOTHING)
LOOPS(64, ONE_LEVEL)
LOOPS(64, TWO_LEVELS)
#endif

const struct bound_loops bound_loops[] = {
    ROW("", 32, NOTHING), ROW(", prefetch", 32, ONE_LEVEL), ROW(", prefetch to both levels", 32, TWO_LEVELS),
#ifdef __AVX512F__
    ROW("", 64, NOTHING), ROW(", prefetch", 64, ONE_LEVEL), ROW(", prefetch to both levels", 64, TWO_LEVELS),
#endif
};
const size_t bound_loops_count = sizeof bound_loops / sizeof *bound_loops;
#else
const struct bound_loops bound_loops[1];
const size_t bound_loops_count = 0;
#endif

unsigned bound_vector_bytes(const char *isa)
{
    return strcmp(isa, "avx512") == 0 ? 64 : strcmp(isa, "avx2") == 0 ? 32 : 0;
}
