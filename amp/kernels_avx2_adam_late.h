/*
 * The elements that Adam's guard sends to double, after AVX2's loop over a span: computed four at a time. For
 * kernels_avx2_adam.c alone.
 */
#ifndef AMP_KERNELS_AVX2_ADAM_LATE_H
#define AMP_KERNELS_AVX2_ADAM_LATE_H

#include "amp/kernels_avx2_adam_parts.h"

/* Late elements that are computed in a turn. */
#define PICKED 4

INLINE __m128 pick(const any_f32 *x, const uint16_t *at)
{
    return _mm_setr_ps(x[at[0]], x[at[1]], x[at[2]], x[at[3]]);
}

INLINE __m256d pick_pd(const any_f32 *x, const uint16_t *at)
{
    return _mm256_cvtps_pd(pick(x, at));
}

INLINE __m256 pick_input(const void *data, enum amp_dtype dtype, size_t start, const uint16_t *at)
{
    if (dtype == AMP_F32)
        return _mm256_castps128_ps256(pick((const any_f32 *)data + start, at));
    const any_u16 *x = (const any_u16 *)data + start;
    __m128i half = _mm_setr_epi16((short)x[at[0]], (short)x[at[1]], (short)x[at[2]], (short)x[at[3]], 0, 0, 0, 0);
    return widen(&half, dtype);
}

/* Four elements of g, times clip. */
INLINE __m256d pick_g(const struct source *s, struct kind kind, size_t start, const uint16_t *at)
{
    __m256 x = pick_input(s->data[0], kind.dtype, start, at);
    for (unsigned j = 1; kind.many && j < s->count; j++)
        x = _mm256_add_ps(x, pick_input(s->data[j], kind.dtype, start, at));
    return low_half(finish_g(&s->c, kind, x));
}

INLINE __m128 canonical_4(__m128 x)
{
    __m128 nan = _mm_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm_blendv_ps(x, _mm_castsi128_ps(_mm_set1_epi32((int)AMP_F32_NAN)), nan);
}

INLINE void put(any_f32 *x, const uint16_t *at, __m128 y)
{
    x[at[0]] = _mm_cvtss_f32(y);
    x[at[1]] = _mm_cvtss_f32(_mm_movehdup_ps(y));
    x[at[2]] = _mm_cvtss_f32(_mm_movehl_ps(y, y));
    x[at[3]] = _mm_cvtss_f32(_mm_shuffle_ps(y, y, 0xff));
}

/* The masters of the elements in `at`; behind them is room for a turn more. */
INLINE void redo_few(const struct source *s, struct kind kind, size_t start, any_f32 *p, const struct span *old,
                     uint16_t *at, size_t count)
{
    for (size_t j = 0; j < PICKED - 1; j++)
        at[count + j] = at[count - 1];
    for (size_t i = 0; i < count; i += PICKED) {
        __m256d g = pick_g(s, kind, start, at + i), p0 = pick_pd(p, at + i);
        __m256d p1 = in_double(&s->d, kind, g, p0, pick_pd(old->m, at + i), pick_pd(old->v, at + i));
        put(p, at + i, canonical_4(_mm256_cvtpd_ps(p1)));
    }
}

/* Where many elements need double all are computed, and those taken that do. */
INLINE void redo_many(const struct source *s, struct kind kind, size_t start, size_t n, float *p,
                      const struct span *old)
{
    const __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    for (size_t i = 0; i < n; i += WIDTH) {
        __m256 x = finish_g(&s->c, kind, sum_inputs(s, kind, start + i));
        __m256 p0 = _mm256_loadu_ps(p + i);
        __m256 m0 = _mm256_load_ps(old->m + i), v0 = _mm256_load_ps(old->v + i);
        __m256d low = in_double(&s->d, kind, low_half(x), low_half(p0), low_half(m0), low_half(v0));
        __m256d high = in_double(&s->d, kind, high_half(x), high_half(p0), high_half(m0), high_half(v0));
        __m256i bits = _mm256_set1_epi32(((const uint8_t *)old->late)[i / WIDTH]);
        __m256 late = _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(bits, lanes), lanes));
        _mm256_storeu_ps(p + i, _mm256_blendv_ps(p0, canonical(join_halves(low, high)), late));
    }
}

INLINE void redo_late(const struct source *s, struct kind kind, size_t start, size_t n, float *p,
                      const struct span *old)
{
    uint16_t at[SPAN + PICKED_MAX];
    size_t count = list_late(old, n, at);
    if (count > MANY_LATE)
        redo_many(s, kind, start, n, p, old);
    else if (count > 0)
        redo_few(s, kind, start, p, old, at, count);
}

#endif
