/*
 * What the loop of AVX2's Adam and its late elements share: inputs and formulas. For kernels_avx2_adam.c alone.
 */
#ifndef AMP_KERNELS_AVX2_ADAM_PARTS_H
#define AMP_KERNELS_AVX2_ADAM_PARTS_H

#include <immintrin.h>

#define WIDTH  8
#define all_ps _mm256_set1_ps
#define all_pd _mm256_set1_pd

typedef __m256 vector;
typedef __m256d vector_pd;

#include "amp/kernels_x86_adam_parts.h"

INLINE __m256 absolute(__m256 x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

static __m256 canonical(__m256 x)
{
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32((int)AMP_F32_NAN)), nan);
}

INLINE __m256d low_half(__m256 x)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
}

INLINE __m256d high_half(__m256 x)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}

INLINE __m256 join_halves(__m256d low, __m256d high)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(low)), _mm256_cvtpd_ps(high), 1);
}

INLINE __m256d with_decay(const struct doubles *d, __m256d g, __m256d p)
{
    return _mm256_add_pd(g, _mm256_mul_pd(d->weight_decay, p));
}

INLINE __m256d in_double(const struct doubles *d, struct kind kind, __m256d g, __m256d p, __m256d m, __m256d v)
{
    if (kind.coupled)
        g = with_decay(d, g, p);
    __m256d m1 = _mm256_add_pd(_mm256_mul_pd(d->beta1, m), _mm256_mul_pd(d->rest1, g));
    __m256d v1 = _mm256_add_pd(_mm256_mul_pd(d->beta2, v), _mm256_mul_pd(d->rest2, _mm256_mul_pd(g, g)));
    __m256d divisor = _mm256_add_pd(_mm256_sqrt_pd(v1), d->eps);
    __m256d quotient = _mm256_div_pd(_mm256_mul_pd(d->rate, m1), divisor);
    return _mm256_sub_pd(p, _mm256_add_pd(quotient, _mm256_mul_pd(d->decay, p)));
}

INLINE __m256 widen(const void *data, enum amp_dtype dtype)
{
    __m128i half = _mm_loadu_si128(data);
    if (dtype == AMP_F16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

INLINE __m256 finish_g(const struct singles *c, struct kind kind, __m256 x)
{
    if (kind.scaled)
        x = _mm256_mul_ps(x, c->factor);
    /* min(a, b) is a < b ? a : b, so that NaN and the sign of zero come from x. */
    if (kind.clamped)
        x = _mm256_mul_ps(_mm256_max_ps(c->low, _mm256_min_ps(c->high, x)), c->clip);
    return x;
}

/* Eight elements of the inputs' sum from index i. */
INLINE __m256 sum_inputs(const struct source *s, struct kind kind, size_t i)
{
    if (kind.dtype == AMP_F32)
        return _mm256_loadu_ps((const float *)s->data[0] + i);
    __m256 x = widen((const uint16_t *)s->data[0] + i, kind.dtype);
    for (unsigned j = 1; kind.many && j < s->count; j++)
        x = _mm256_add_ps(x, widen((const uint16_t *)s->data[j] + i, kind.dtype));
    return x;
}

#endif
