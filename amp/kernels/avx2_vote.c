/*
 * The vote for AVX2: what form, clip_value, squares and a store past the caches do, with their bits, while the sum is
 * in registers.
 */
#include "amp/kernels/avx2_parts.h"

#include <math.h>

/* Elements of a turn of the loop: a line of each input, and the lanes of squares twice. */
#define TURN (4 * (size_t)WIDTH)
_Static_assert(AMP_VOTE_MULTIPLE % TURN == 0, "whole turns");

/*
 * How far ahead an input is asked for: NEAR, to the first cache level, where further on eight inputs would drive each
 * other out, and where there are more than MANY inputs also FAR, to the second.
 */
#define NEAR 512  /* bytes */
#define FAR  3072 /* bytes */
#define MANY 4    /* inputs */

INLINE void ask_input(const uint16_t *data, size_t i, bool far)
{
    const char *at = (const char *)(data + i);
    _mm_prefetch(at + NEAR, _MM_HINT_T0);
    if (far)
        _mm_prefetch(at + FAR, _MM_HINT_T1);
}

INLINE __m256d add_square(__m256d sum, __m128 half)
{
    __m256d x = _mm256_cvtps_pd(half);
    return _mm256_fmadd_pd(x, x, sum); /* as two: the square of a float is exact in double */
}

INLINE uint32_t vote(const struct amp_input *inputs, unsigned count, enum amp_dtype dtype, bool keep, float factor,
                     float limit, size_t start, size_t n, double *lanes, float *kept)
{
    const uint16_t *data[AMP_VOTE_INPUTS] = {NULL};
    const bool clamps = limit < INFINITY;
    const bool far = count > MANY;
    const __m256 f = _mm256_set1_ps(factor), high = _mm256_set1_ps(limit), low = _mm256_set1_ps(-limit);
    __m256d squares[4];
    __m256i most = _mm256_setzero_si256();
    EACH_OF_4(u) squares[u] = _mm256_loadu_pd(lanes + 4 * u);
    for (unsigned j = 0; j < count; j++)
        data[j] = (const uint16_t *)inputs[j].data + start;
    for (size_t i = 0; i < n; i += TURN) {
        __m256 sum[4];
        ask_input(data[0], i, far);
        EACH_OF_4(u) sum[u] = widen(data[0] + i + u * WIDTH, dtype);
        for (unsigned j = 1; j < count; j++) {
            ask_input(data[j], i, far);
            EACH_OF_4(u) sum[u] = _mm256_add_ps(sum[u], widen(data[j] + i + u * WIDTH, dtype));
        }
        EACH_OF_4(u)
        {
            sum[u] = _mm256_mul_ps(sum[u], f);
            most = _mm256_max_epu32(most, magnitude(sum[u]));
        }
        if (clamps)
            EACH_OF_4(u) sum[u] = clamp(sum[u], low, high);
        EACH_OF_4(u)
        {
            if (keep)
                _mm256_stream_ps(kept + i + u * WIDTH, sum[u]);
            size_t lane = u % 2 * 2;
            squares[lane] = add_square(squares[lane], _mm256_castps256_ps128(sum[u]));
            squares[lane + 1] = add_square(squares[lane + 1], _mm256_extractf128_ps(sum[u], 1));
        }
    }
    EACH_OF_4(u) _mm256_storeu_pd(lanes + 4 * u, squares[u]);
    return reduce_max(most);
}

/* A loop for each dtype, and for what is kept. */
uint32_t amp_avx2_vote_pass(const struct amp_input *inputs, unsigned count, float factor, float limit, size_t start,
                            size_t n, double lanes[AMP_SQUARE_LANES], float *kept)
{
    if (inputs[0].dtype == AMP_F16)
        return kept != NULL ? vote(inputs, count, AMP_F16, true, factor, limit, start, n, lanes, kept)
                            : vote(inputs, count, AMP_F16, false, factor, limit, start, n, lanes, kept);
    return kept != NULL ? vote(inputs, count, AMP_BF16, true, factor, limit, start, n, lanes, kept)
                        : vote(inputs, count, AMP_BF16, false, factor, limit, start, n, lanes, kept);
}
