/*
 * What the sources of the AVX2 kernels share: vectors of eight floats and of four doubles, and their conversions. Only
 * for kernels/avx2*.c.
 */
#ifndef AMP_KERNELS_AVX2_PARTS_H
#define AMP_KERNELS_AVX2_PARTS_H

#include "amp/kernels.h"
#include "amp/kernels/x86_tuning.h"

#include <immintrin.h>

#define WIDTH   8  /* floats of a vector */
#define LINE    64 /* bytes of a cache line */
#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

/* A loop over four vectors that are held in registers at once: so many chains of operations overlap. */
#define EACH_OF_4(U) _Pragma("GCC unroll 4") for (size_t U = 0; U < 4; U++)

/* As kernels/double.h names them; the operators of C work element by element. */
typedef __m256 vf;
typedef __m256d vd;

static inline vf vf_load(const float *src)
{
    return _mm256_loadu_ps(src);
}

static inline void vf_store(float *dst, vf x)
{
    _mm256_storeu_ps(dst, x);
}

static inline vf vf_all(float x)
{
    return _mm256_set1_ps(x);
}

static inline vd vd_all(double x)
{
    return _mm256_set1_pd(x);
}

static inline vd vd_root(vd x)
{
    return _mm256_sqrt_pd(x);
}

INLINE vd low_half(vf x)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
}

INLINE vd high_half(vf x)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}

INLINE vf join_halves(vd low, vd high)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(low)), _mm256_cvtpd_ps(high), 1);
}

static inline vf canonical(vf x)
{
    vf nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32((int)AMP_F32_NAN)), nan);
}

/* min(a, b) is a < b ? a : b, so that NaN and the sign of zero come from x. */
static inline vf clamp(vf x, vf low, vf high)
{
    return _mm256_max_ps(low, _mm256_min_ps(high, x));
}

static inline __m256i magnitude(vf x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

static inline uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static inline uint32_t reduce_max(__m256i x)
{
    __m128i y = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = _mm_max_epu32(y, _mm_shuffle_epi32(y, 0x4e));
    y = _mm_max_epu32(y, _mm_shuffle_epi32(y, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(y);
}

/* Eight elements of f16 or bf16. */
INLINE vf widen_half(__m128i half, enum amp_dtype dtype)
{
    if (dtype == AMP_F16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* Eight elements of a dtype. */
INLINE vf widen(const void *src, enum amp_dtype dtype)
{
    return dtype == AMP_F32 ? _mm256_loadu_ps(src) : widen_half(_mm_loadu_si128(src), dtype);
}

/* bf16 in the low half of each element; of a NaN that is not canonical, any bits. */
INLINE __m256i round_bf16(vf x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    return _mm256_srli_epi32(rounded, 16);
}

/* Two vectors to f16 or bf16, whose NaN, if any, are canonical: they become the canonical one of the dtype. */
INLINE __m256i narrow_canonical(vf a, vf b, enum amp_dtype dtype)
{
    if (dtype == AMP_F16)
        return _mm256_set_m128i(_mm256_cvtps_ph(b, NEAREST), _mm256_cvtps_ph(a, NEAREST));
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(round_bf16(a), round_bf16(b)), 0xd8);
}

/* Rows of amp_kernels_avx2 that have a source file of their own. */
amp_vote_pass_fn amp_avx2_vote_pass;
amp_vote_take_fn amp_avx2_vote_take;
amp_apply_fn amp_avx2_apply_adamw, amp_avx2_apply_adam;
amp_apply_pass_fn amp_avx2_apply_pass_adamw, amp_avx2_apply_pass_adam;

#endif
