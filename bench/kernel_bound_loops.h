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

/* The constants in registers. */
struct NAME(constants) {
    NAME(vec) beta1, rest1, beta2, rest2, rate, eps, keep;
};

/* Returns the new masters. */
LOOP NAME(vec) NAME(step_vector)(const struct NAME(constants) * c, NAME(vec) x, float *p, float *m, float *v)
{
    NAME(vec) m1 = c->beta1 * NAME(load)(m) + c->rest1 * x;
    NAME(vec) v1 = c->beta2 * NAME(load)(v) + c->rest2 * (x * x);
    NAME(vec) p1 = c->keep * NAME(load)(p) - c->rate * m1 / (NAME(root)(v1) + c->eps);
    NAME(store)(m, m1);
    NAME(store)(v, v1);
    NAME(store)(p, p1);
    return p1;
}

LOOP NAME(vec) NAME(gradient)(const void *g, bool f32, size_t i)
{
    return f32 ? NAME(load)((const float *)g + i) : NAME(widen)((const uint16_t *)g + i);
}

LOOP void NAME(step)(enum ahead ahead, bool f32, const struct bound_scalars *k, const void *g, float *p, float *m,
                     float *v, uint16_t *copy, size_t n)
{
    const NAME(vec) none = {0};
    const struct NAME(constants) c = {none + k->beta1, none + k->rest1, none + k->beta2, none + k->rest2,
                                      none + k->rate,  none + k->eps,   none + k->keep};
    for (size_t i = 0; i < n; i += LINE) {
        ask(ahead, (const char *)g + i * (f32 ? 4 : 2), f32 ? 2 : 1);
        ask(ahead, p + i, 2);
        ask(ahead, m + i, 2);
        ask(ahead, v + i, 2);
        for (size_t j = i; j < i + LINE; j += 2 * LANES) {
            size_t next = j + LANES;
            NAME(vec) a = NAME(step_vector)(&c, NAME(gradient)(g, f32, j), p + j, m + j, v + j);
            NAME(vec) b = NAME(step_vector)(&c, NAME(gradient)(g, f32, next), p + next, m + next, v + next);
            NAME(stream_halves)(copy + j, a, b);
        }
    }
    _mm_sfence();
}

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
