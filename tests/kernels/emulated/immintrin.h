/*
 * What amp/kernels/avx512*.c use of <immintrin.h>, in C: their source runs, and is compared with the reference, where the
 * processor has no AVX-512. Each function does, element by element, what Intel's intrinsics guide writes for the name; what the
 * guide leaves undefined is set to junk, and an argument that no kernel uses ends the program. An intrinsic that a kernel
 * begins to use and that is missing here is a build that fails: add it.
 *
 * Not emulated: flags, exceptions, and the payload of a NaN. The rounding is the thread's, to nearest.
 */
#ifndef TESTS_KERNELS_EMULATED_IMMINTRIN_H
#define TESTS_KERNELS_EMULATED_IMMINTRIN_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* As the compiler's own: the operators of C work element by element. */
typedef float __m512 __attribute__((vector_size(64)));
typedef double __m512d __attribute__((vector_size(64)));
typedef long long __m512i __attribute__((vector_size(64)));
typedef float __m256 __attribute__((vector_size(32)));
typedef long long __m256i __attribute__((vector_size(32)));
typedef uint8_t __mmask8;
typedef uint16_t __mmask16;

/* The elements of an integer vector. */
typedef uint32_t emulated_u32 __attribute__((vector_size(64)));
typedef uint16_t emulated_u16 __attribute__((vector_size(64)));
typedef uint16_t emulated_half_u16 __attribute__((vector_size(32)));

#define _CMP_UNORD_Q              0x03
#define _CMP_LT_OQ                0x11
#define _CMP_GE_OQ                0x1d
#define _CMP_GT_OQ                0x1e
#define _MM_FROUND_TO_NEAREST_INT 0x00
#define _MM_FROUND_NO_EXC         0x08

#define EMULATED_JUNK 0xdeadbeefu

#define EACH(i, n) for (unsigned i = 0; i < (n); i++)

static inline void emulated_must(int holds)
{
    if (!holds)
        abort();
}

/* Loads and stores, at any address. */
#define EMULATED_LOAD(NAME, VECTOR)                                                                                    \
    static inline VECTOR NAME(const void *src)                                                                         \
    {                                                                                                                  \
        VECTOR x;                                                                                                      \
        memcpy(&x, src, sizeof x);                                                                                     \
        return x;                                                                                                      \
    }

#define EMULATED_STORE(NAME, VECTOR)                                                                                   \
    static inline void NAME(void *dst, VECTOR x)                                                                       \
    {                                                                                                                  \
        memcpy(dst, &x, sizeof x);                                                                                     \
    }

EMULATED_LOAD(_mm512_loadu_ps, __m512)
EMULATED_LOAD(_mm512_loadu_pd, __m512d)
EMULATED_LOAD(_mm512_loadu_si512, __m512i)
EMULATED_LOAD(_mm256_loadu_ps, __m256)
EMULATED_LOAD(_mm256_loadu_si256, __m256i)
EMULATED_STORE(_mm512_storeu_ps, __m512)
EMULATED_STORE(_mm512_storeu_pd, __m512d)
EMULATED_STORE(_mm512_storeu_si512, __m512i)
EMULATED_STORE(_mm256_storeu_si256, __m256i)

/* Past the caches: to whole lines only. The rest of it, and what is asked for ahead, has no meaning here. */
static inline void _mm512_stream_ps(void *dst, __m512 x)
{
    emulated_must((uintptr_t)dst % sizeof x == 0);
    memcpy(dst, &x, sizeof x);
}

static inline void _mm512_stream_si512(void *dst, __m512i x)
{
    _mm512_stream_ps(dst, (__m512)x);
}

#define _MM_HINT_T0           3
#define _MM_HINT_T1           2
#define _mm_prefetch(p, hint) ((void)(p), emulated_must((hint) == _MM_HINT_T0 || (hint) == _MM_HINT_T1))
/* For amp/kernels/x86_tuning.h: branches that a test on AMD's cores does not take otherwise. */
#define ON_AMD            false
#define ON_ZEN5           false
#define SMALL_FIRST_LEVEL true
#define _mm_sfence()      ((void)0)

/* The zeros below the lowest bit. */
static inline uint64_t _tzcnt_u64(uint64_t x)
{
    return x == 0 ? 64 : (uint64_t)__builtin_ctzll(x);
}

/* The same in each element. */
#define EMULATED_SET(NAME, VECTOR, ELEMENTS, ELEMENT, N)                                                               \
    static inline VECTOR NAME(ELEMENT value)                                                                           \
    {                                                                                                                  \
        ELEMENTS x;                                                                                                    \
        EACH(i, N) x[i] = value;                                                                                       \
        return (VECTOR)x;                                                                                              \
    }

EMULATED_SET(_mm512_set1_ps, __m512, __m512, float, 16)
EMULATED_SET(_mm512_set1_pd, __m512d, __m512d, double, 8)
EMULATED_SET(emulated_set_32, __m512i, emulated_u32, uint32_t, 16)
EMULATED_SET(emulated_set_16, __m512i, emulated_u16, uint16_t, 32)
EMULATED_SET(emulated_set_half_16, __m256i, emulated_half_u16, uint16_t, 16)

#define _mm512_set1_epi32(x)   emulated_set_32((uint32_t)(x))
#define _mm512_set1_epi16(x)   emulated_set_16((uint16_t)(x))
#define _mm256_set1_epi16(x)   emulated_set_half_16((uint16_t)(x))
#define _mm512_setzero_si512() emulated_set_32(0)
#define _mm512_setzero_pd()    _mm512_set1_pd(0)

/* Two vectors in, one out: R is written in a and b, one element of each. */
#define EMULATED_TWO(NAME, VECTOR, ELEMENTS, ELEMENT, N, R)                                                            \
    static inline VECTOR NAME(VECTOR left, VECTOR right)                                                               \
    {                                                                                                                  \
        ELEMENTS l = (ELEMENTS)left, r = (ELEMENTS)right, x;                                                           \
        EACH(i, N)                                                                                                     \
        {                                                                                                              \
            ELEMENT a = l[i], b = r[i];                                                                                \
            x[i] = (R);                                                                                                \
        }                                                                                                              \
        return (VECTOR)x;                                                                                              \
    }

EMULATED_TWO(_mm512_add_ps, __m512, __m512, float, 16, a + b)
EMULATED_TWO(_mm512_sub_ps, __m512, __m512, float, 16, a - b)
EMULATED_TWO(_mm512_mul_ps, __m512, __m512, float, 16, a *b)
EMULATED_TWO(_mm512_div_ps, __m512, __m512, float, 16, a / b)
/* The second where either is NaN and where both are zero. */
EMULATED_TWO(_mm512_min_ps, __m512, __m512, float, 16, a < b ? a : b)
EMULATED_TWO(_mm512_max_ps, __m512, __m512, float, 16, a > b ? a : b)
EMULATED_TWO(_mm512_add_pd, __m512d, __m512d, double, 8, a + b)
EMULATED_TWO(_mm512_sub_pd, __m512d, __m512d, double, 8, a - b)
EMULATED_TWO(_mm512_mul_pd, __m512d, __m512d, double, 8, a *b)
EMULATED_TWO(_mm512_div_pd, __m512d, __m512d, double, 8, a / b)

static inline __m512d _mm512_fmadd_pd(__m512d a, __m512d b, __m512d c)
{
    EACH(i, 8) c[i] = fma(a[i], b[i], c[i]);
    return c;
}

EMULATED_TWO(_mm512_max_pd, __m512d, __m512d, double, 8, a > b ? a : b)
/* Sums of integers wrap: in 64 bits, and cut. */
EMULATED_TWO(_mm512_add_epi32, __m512i, emulated_u32, uint64_t, 16, (uint32_t)((a + b) & 0xffffffffu))
EMULATED_TWO(_mm512_and_si512, __m512i, emulated_u32, uint32_t, 16, a &b)
EMULATED_TWO(_mm512_max_epu32, __m512i, emulated_u32, uint32_t, 16, a > b ? a : b)
EMULATED_TWO(_mm512_max_epu16, __m512i, emulated_u16, uint16_t, 32, a > b ? a : b)

static inline __m512 _mm512_sqrt_ps(__m512 x)
{
    EACH(i, 16) x[i] = sqrtf(x[i]);
    return x;
}

static inline __m512d _mm512_sqrt_pd(__m512d x)
{
    EACH(i, 8) x[i] = sqrt(x[i]);
    return x;
}

static inline __m512d _mm512_abs_pd(__m512d x)
{
    return (__m512d)((__m512i)x & 0x7fffffffffffffffll);
}

static inline __m512i _mm512_slli_epi32(__m512i x, unsigned count)
{
    emulated_must(count < 32);
    return (__m512i)((emulated_u32)x << count);
}

static inline __m512i _mm512_srli_epi32(__m512i x, unsigned count)
{
    emulated_must(count < 32);
    return (__m512i)((emulated_u32)x >> count);
}

static inline uint32_t _mm512_reduce_max_epu32(__m512i x)
{
    emulated_u32 e = (emulated_u32)x;
    uint32_t most = e[0];
    EACH(i, 16) most = e[i] > most ? e[i] : most;
    return most;
}

/* Tests: a bit of the mask for each element. */
static inline int emulated_compare(double a, double b, int how)
{
    emulated_must(how == _CMP_UNORD_Q || how == _CMP_LT_OQ || how == _CMP_GE_OQ || how == _CMP_GT_OQ);
    if (how == _CMP_UNORD_Q)
        return isunordered(a, b);
    return how == _CMP_LT_OQ ? isless(a, b) : how == _CMP_GE_OQ ? isgreaterequal(a, b) : isgreater(a, b);
}

static inline __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int how)
{
    unsigned mask = 0;
    EACH(i, 16) mask |= (unsigned)emulated_compare((double)a[i], (double)b[i], how) << i;
    return (__mmask16)mask;
}

static inline __mmask8 _mm512_cmp_pd_mask(__m512d a, __m512d b, int how)
{
    unsigned mask = 0;
    EACH(i, 8) mask |= (unsigned)emulated_compare(a[i], b[i], how) << i;
    return (__mmask8)mask;
}

static inline __mmask16 _mm512_test_epi32_mask(__m512i a, __m512i b)
{
    unsigned mask = 0;
    EACH(i, 16) mask |= (((emulated_u32)a)[i] & ((emulated_u32)b)[i]) != 0 ? 1u << i : 0;
    return (__mmask16)mask;
}

static inline __mmask16 _mm512_cmpgt_epu32_mask(__m512i a, __m512i b)
{
    unsigned mask = 0;
    EACH(i, 16) mask |= ((emulated_u32)a)[i] > ((emulated_u32)b)[i] ? 1u << i : 0;
    return (__mmask16)mask;
}

/* The sum where the mask has a bit, else the first. */
static inline __m512i _mm512_mask_add_epi32(__m512i other, __mmask16 mask, __m512i a, __m512i b)
{
    emulated_u32 x = (emulated_u32)other, sum = (emulated_u32)_mm512_add_epi32(a, b);
    EACH(i, 16) x[i] = mask >> i & 1 ? sum[i] : x[i];
    return (__m512i)x;
}

/* The second where the mask has a bit. */
static inline __m512 _mm512_mask_blend_ps(__mmask16 mask, __m512 a, __m512 b)
{
    EACH(i, 16) a[i] = mask >> i & 1 ? b[i] : a[i];
    return a;
}

static inline __m512d _mm512_mask_blend_pd(__mmask8 mask, __m512d a, __m512d b)
{
    EACH(i, 8) a[i] = mask >> i & 1 ? b[i] : a[i];
    return a;
}

static inline __m256i _mm256_mask_blend_epi16(__mmask16 mask, __m256i a, __m256i b)
{
    emulated_half_u16 x = (emulated_half_u16)a, y = (emulated_half_u16)b;
    EACH(i, 16) x[i] = mask >> i & 1 ? y[i] : x[i];
    return (__m256i)x;
}

/* The same bits under another type, and halves. */
static inline __m512i _mm512_castps_si512(__m512 x)
{
    return (__m512i)x;
}

static inline __m512 _mm512_castsi512_ps(__m512i x)
{
    return (__m512)x;
}

static inline __m256 _mm512_extractf32x8_ps(__m512 x, int half)
{
    emulated_must(half == 0 || half == 1);
    __m256 y;
    memcpy(&y, (const char *)&x + 32 * half, sizeof y);
    return y;
}

static inline __m512 _mm512_insertf32x8(__m512 x, __m256 y, int half)
{
    emulated_must(half == 0 || half == 1);
    memcpy((char *)&x + 32 * half, &y, sizeof y);
    return x;
}

static inline __m256 _mm512_castps512_ps256(__m512 x)
{
    return _mm512_extractf32x8_ps(x, 0);
}

static inline __m512i _mm512_inserti64x4(__m512i x, __m256i y, int half)
{
    return (__m512i)_mm512_insertf32x8((__m512)x, (__m256)y, half);
}

static inline __m512i _mm512_castsi256_si512(__m256i x)
{
    return _mm512_inserti64x4(emulated_set_32(EMULATED_JUNK), x, 0);
}

static inline __m256i _mm512_castsi512_si256(__m512i x)
{
    __m256i y;
    memcpy(&y, &x, sizeof y);
    return y;
}

static inline __m256i _mm512_extracti64x4_epi64(__m512i x, int half)
{
    __m256i y;
    emulated_must(half == 0 || half == 1);
    memcpy(&y, (const char *)&x + half * sizeof y, sizeof y);
    return y;
}

static inline __m512 _mm512_castps256_ps512(__m256 x)
{
    return _mm512_insertf32x8((__m512)emulated_set_32(EMULATED_JUNK), x, 0);
}

/* Conversions. */
static inline __m512d _mm512_cvtps_pd(__m256 x)
{
    __m512d y;
    EACH(i, 8) y[i] = (double)x[i];
    return y;
}

static inline __m256 _mm512_cvtpd_ps(__m512d x)
{
    __m256 y;
    EACH(i, 8) y[i] = (float)x[i];
    return y;
}

static inline __m512i _mm512_cvtepu16_epi32(__m256i x)
{
    emulated_u32 y;
    EACH(i, 16) y[i] = ((emulated_half_u16)x)[i];
    return (__m512i)y;
}

static inline __m256i _mm512_cvtepi32_epi16(__m512i x)
{
    emulated_half_u16 y;
    EACH(i, 16) y[i] = (uint16_t)(((emulated_u32)x)[i] & 0xffff);
    return (__m256i)y;
}

/* Signed 32 bits to 16 bits without sign, saturated; from each 128 bits of both. */
static inline __m512i _mm512_packus_epi32(__m512i a, __m512i b)
{
    emulated_u16 y;
    EACH(i, 32)
    {
        int32_t x = (int32_t)((emulated_u32)(i / 4 % 2 == 0 ? a : b))[i / 8 * 4 + i % 4];
        y[i] = (uint16_t)(x < 0 ? 0 : x > 0xffff ? 0xffff : x);
    }
    return (__m512i)y;
}

static inline __m512i _mm512_setr_epi64(long long a, long long b, long long c, long long d, long long e, long long f,
                                        long long g, long long h)
{
    return (__m512i){a, b, c, d, e, f, g, h};
}

static inline __m512i _mm512_permutexvar_epi64(__m512i order, __m512i x)
{
    __m512i y;
    EACH(i, 8) y[i] = x[order[i] & 7];
    return y;
}

/* VCVTPH2PS and VCVTPS2PH, which keep denormals whatever the thread does with them: integers alone. */
static inline uint32_t emulated_widen(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
    if (exponent == 31) /* NaN becomes quiet */
        return sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0);
    if (exponent > 0)
        return sign | (exponent + 112) << 23 | fraction << 13;
    if (fraction == 0)
        return sign;
    for (exponent = 113; !(fraction & 0x400); exponent--)
        fraction <<= 1;
    return sign | exponent << 23 | (fraction & 0x3ff) << 13;
}

/* x / 2^shift, to nearest, ties to even. */
static inline uint32_t emulated_round(uint32_t x, unsigned shift)
{
    uint32_t quotient = x >> shift, rest = x & ((1u << shift) - 1), tie = 1u << (shift - 1);
    return quotient + (rest > tie || (rest == tie && (quotient & 1)) ? 1 : 0);
}

static inline uint16_t emulated_narrow(uint32_t bits)
{
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
    if (magnitude >= 0x477ff000u) /* 65520 */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x33000000u) /* 2^-25 */
        return (uint16_t)sign;
    if (magnitude < 0x38800000u) /* 2^-14: in units of 2^-24 */
        return (uint16_t)(sign | emulated_round((magnitude & 0x7fffff) | 0x800000, 126 - (magnitude >> 23)));
    return (uint16_t)(sign | emulated_round(magnitude - 0x38000000u, 13));
}

static inline __m512 _mm512_cvtph_ps(__m256i x)
{
    emulated_u32 y;
    EACH(i, 16) y[i] = emulated_widen(((emulated_half_u16)x)[i]);
    return (__m512)y;
}

static inline __m256i _mm512_cvtps_ph(__m512 x, int rounding)
{
    emulated_must(rounding == (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    emulated_half_u16 y;
    EACH(i, 16) y[i] = emulated_narrow(((emulated_u32)x)[i]);
    return (__m256i)y;
}

#endif
