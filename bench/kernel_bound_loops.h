/* The loops of kernel_bounds.c for one length of vectors: VECTOR bytes, names by NAME. Included there once for each. */

#define LANES (VECTOR / sizeof(float))

typedef float NAME(vec) __attribute__((vector_size(VECTOR)));
typedef uint32_t NAME(bits) __attribute__((vector_size(VECTOR)));

LOOP NAME(vec) NAME(load)(const float *at)
{
    NAME(vec) x;
    memcpy(&x, at, sizeof x);
    return x;
}

LOOP void NAME(store)(float *at, NAME(vec) x)
{
    memcpy(at, &x, sizeof x);
}

#if VECTOR == 64
typedef __m512d NAME(wide);

LOOP NAME(wide) NAME(load_wide)(const float *at)
{
    return _mm512_cvtps_pd(_mm256_loadu_ps(at));
}

LOOP void NAME(store_wide)(float *at, NAME(wide) x)
{
    _mm256_storeu_ps(at, _mm512_cvtpd_ps(x));
}

LOOP NAME(wide) NAME(root_wide)(NAME(wide) x)
{
    return _mm512_sqrt_pd(x);
}

/* Elements of x where a is not less than b, else of y. */
LOOP NAME(vec) NAME(not_below)(NAME(vec) a, NAME(vec) b, NAME(vec) x, NAME(vec) y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), y, x);
}

LOOP NAME(vec) NAME(root)(NAME(vec) x)
{
    return _mm512_sqrt_ps(x);
}

LOOP NAME(vec) NAME(widen)(const uint16_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)at));
}

LOOP void NAME(stream)(void *at, NAME(vec) x)
{
    _mm512_stream_ps(at, x);
}

LOOP void NAME(stream_halves)(uint16_t *at, NAME(vec) a, NAME(vec) b)
{
    __m512i low = _mm512_castsi256_si512(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    __m256i high = _mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm512_stream_si512((void *)at, _mm512_inserti64x4(low, high, 1));
}
#else
typedef __m256d NAME(wide);

LOOP NAME(wide) NAME(load_wide)(const float *at)
{
    return _mm256_cvtps_pd(_mm_loadu_ps(at));
}

LOOP void NAME(store_wide)(float *at, NAME(wide) x)
{
    _mm_storeu_ps(at, _mm256_cvtpd_ps(x));
}

LOOP NAME(wide) NAME(root_wide)(NAME(wide) x)
{
    return _mm256_sqrt_pd(x);
}

LOOP NAME(vec) NAME(not_below)(NAME(vec) a, NAME(vec) b, NAME(vec) x, NAME(vec) y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GE_OQ));
}

LOOP NAME(vec) NAME(root)(NAME(vec) x)
{
    return _mm256_sqrt_ps(x);
}

LOOP NAME(vec) NAME(widen)(const uint16_t *at)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)at));
}

LOOP void NAME(stream)(void *at, NAME(vec) x)
{
    _mm256_stream_ps(at, x);
}

LOOP void NAME(stream_halves)(uint16_t *at, NAME(vec) a, NAME(vec) b)
{
    __m128i low = _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m128i high = _mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_stream_si256((void *)at, _mm256_set_m128i(high, low));
}
#endif

#include "bench/kernel_bound_step.h"

LOOP NAME(vec) NAME(sum)(const uint16_t *const *g, unsigned workers, size_t i)
{
    NAME(vec) x = NAME(widen)(g[0] + i);
    for (unsigned w = 1; w < workers; w++)
        x += NAME(widen)(g[w] + i);
    return x;
}

/* By tiles the reads and the writes take turns, as in amp/pass.c. */
LOOP void NAME(vote)(enum ahead ahead, const uint16_t *const *g, unsigned workers, float *sum, size_t n)
{
    _Alignas(64) float tile[TILE];
    for (size_t i = 0; i < n; i += TILE) {
        for (size_t j = 0; j < TILE; j += LANES) {
            for (unsigned w = 0; j % LINE == 0 && w < workers; w++)
                ask(ahead, g[w] + i + j, 1);
            NAME(vec) x = NAME(sum)(g, workers, i + j);
            if (ahead == NOTHING)
                NAME(store)(tile + j, x);
            else
                NAME(stream)(sum + i + j, x);
        }
        for (size_t j = 0; ahead == NOTHING && j < TILE; j += LANES)
            NAME(stream)(sum + i + j, NAME(load)(tile + j));
    }
    _mm_sfence();
}

#include "bench/kernel_bound_moves.h"
#undef LANES
