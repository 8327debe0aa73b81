/*
 * What the sources of the AVX-512 kernels share: vectors of sixteen floats and of eight doubles, and their conversions.
 * Only for kernels/avx512*.c.
 */
#ifndef AMP_KERNELS_AVX512_PARTS_H
#define AMP_KERNELS_AVX512_PARTS_H

#include "amp/kernels.h"
#include "amp/kernels/x86_tuning.h"

#include <immintrin.h>

#define WIDTH   16 /* floats of a vector */
#define LINE    64 /* bytes of a cache line, and of a vector */
#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

/* A loop over four vectors that are held in registers at once: so many chains of operations overlap. */
#define EACH_OF_4(U) _Pragma("GCC unroll 4") for (size_t U = 0; U < 4; U++)

/* As kernels/double.h names them; the operators of C work element by element. */
typedef __m512 vf;
typedef __m512d vd;

static inline vf vf_load(const float *src)
{
    return _mm512_loadu_ps(src);
}

static inline void vf_store(float *dst, vf x)
{
    _mm512_storeu_ps(dst, x);
}

static inline vf vf_all(float x)
{
    return _mm512_set1_ps(x);
}

static inline vd vd_all(double x)
{
    return _mm512_set1_pd(x);
}

static inline vd vd_root(vd x)
{
    return _mm512_sqrt_pd(x);
}

static inline vd low_half(vf x)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(x));
}

static inline vd high_half(vf x)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
}

static inline vf join_halves(vd low, vd high)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1);
}

static inline vf canonical(vf x)
{
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_blend_ps(nan, x, _mm512_castsi512_ps(_mm512_set1_epi32((int)AMP_F32_NAN)));
}

/* min(a, b) is a < b ? a : b, so that NaN and the sign of zero come from x. */
static inline vf clamp(vf x, vf low, vf high)
{
    return _mm512_max_ps(low, _mm512_min_ps(high, x));
}

static inline __m512i magnitude(vf x)
{
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

static inline uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Sixteen elements of f16 or bf16. */
INLINE vf widen_half(__m256i half, enum amp_dtype dtype)
{
    if (dtype == AMP_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Sixteen elements of a dtype. */
INLINE vf widen(const void *src, enum amp_dtype dtype)
{
    return dtype == AMP_F32 ? _mm512_loadu_ps(src) : widen_half(_mm256_loadu_si256(src), dtype);
}

/* bf16 in the low half of each element; of a NaN that is not canonical, any bits. */
INLINE __m512i round_bf16(vf x)
{
    __m512i bits = _mm512_castps_si512(x);
    __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    return _mm512_srli_epi32(_mm512_mask_add_epi32(rounded, odd, rounded, _mm512_set1_epi32(1)), 16);
}

/* A line of 16-bit elements from its two halves. */
INLINE __m512i join_16(__m256i low, __m256i high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* Two vectors to f16 or bf16, whose NaN, if any, are canonical: they become the canonical one of the dtype. */
INLINE __m512i narrow_canonical(vf a, vf b, enum amp_dtype dtype)
{
    if (dtype == AMP_F16)
        return join_16(_mm512_cvtps_ph(a, NEAREST), _mm512_cvtps_ph(b, NEAREST));
    /* Packed by 128 bits of each in turns. */
    __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    return _mm512_permutexvar_epi64(order, _mm512_packus_epi32(round_bf16(a), round_bf16(b)));
}

/*
 * Prefetches `bytes` from p on. Always inline: GCC 12 takes a function that only prefetches for one without effect, and
 * drops calls that it has not inlined. Unrolled: as a loop it costs casts a twentieth.
 */
INLINE void prefetch_l1(const void *p, size_t bytes)
{
    _Pragma("GCC unroll 8") for (size_t i = 0; i < bytes; i += LINE) _mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

/* The same, to the second level of the caches. */
INLINE void prefetch_l2(const void *p, size_t bytes)
{
    _Pragma("GCC unroll 8") for (size_t i = 0; i < bytes; i += LINE) _mm_prefetch((const char *)p + i, _MM_HINT_T1);
}

/* Rows of amp_kernels_avx512 that have a source file of their own. */
amp_vote_pass_fn amp_avx512_vote_pass;
amp_vote_take_fn amp_avx512_vote_take;
amp_apply_fn amp_avx512_apply_adamw, amp_avx512_apply_adam;
amp_apply_pass_fn amp_avx512_apply_pass_adamw, amp_avx512_apply_pass_adam;

#endif
