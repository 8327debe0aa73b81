/*
 * The vote for AVX2: what form, clip_value, squares and a store past the caches do, with their bits, while the sum is
 * in registers.
 */
#include "amp/kernels/avx2_parts.h"

#include <math.h>

/* Elements of a turn of the loop: a line of each input (two of f32), and the lanes of squares twice. */
#define TURN (4 * (size_t)WIDTH)
_Static_assert(AMP_VOTE_MULTIPLE % TURN == 0, "whole turns");

/*
 * How far ahead an input is prefetched, in bytes: NEAR, to the first cache level, where further on eight inputs would
 * drive each other out, and on AMD's processors of more than MANY inputs also FAR, to the second: on Intel's eight took
 * 1.06 of the time with it. One alone goes further: a vote of f16 takes a tenth less on Zen 3, and to measure gradients
 * of f32 (amp_grads_measure) a sixth.
 */
#define NEAR      512
#define FAR       3072
#define MANY      4 /* inputs */
#define ALONE     2048
#define ALONE_FAR 8192

/* Prefetches for the turn at `at`. */
INLINE void prefetch_input(const char *at, size_t bytes, unsigned count, bool far)
{
    _Pragma("GCC unroll 2") for (size_t line = 0; line < bytes; line += LINE)
    {
        if (count == 1) {
            _mm_prefetch(at + line + ALONE, _MM_HINT_T0);
            _mm_prefetch(at + line + ALONE_FAR, _MM_HINT_T1);
        } else {
            _mm_prefetch(at + line + NEAR, _MM_HINT_T0);
            if (far)
                _mm_prefetch(at + line + FAR, _MM_HINT_T1);
        }
    }
}

/* Of four floats. From memory: taken out of a register, each second one costs an instruction more. */
INLINE __m256d add_square(__m256d sum, const float *half)
{
    __m256d x = _mm256_cvtps_pd(_mm_load_ps(half));
    return _mm256_fmadd_pd(x, x, sum); /* as two: the square of a float is exact in double */
}

/* Of a turn's elements, to the lanes of each four. */
INLINE void add_squares(__m256d squares[4], const float *g)
{
    EACH_OF_4(u)
    {
        size_t lane = u % 2 * 2;
        squares[lane] = add_square(squares[lane], g + u * WIDTH);
        squares[lane + 1] = add_square(squares[lane + 1], g + u * WIDTH + WIDTH / 2);
    }
}

INLINE uint32_t vote(const struct amp_input *inputs, unsigned count, enum amp_dtype dtype, bool keep, float factor,
                     float limit, size_t start, size_t n, double *lanes, float *kept)
{
    const size_t size = dtype == AMP_F32 ? sizeof(float) : sizeof(uint16_t);
    const char *data[AMP_VOTE_INPUTS] = {NULL};
    const bool clamps = limit < INFINITY, far = ON_AMD && count > MANY;
    _Alignas(LINE) float g[TURN];
    const __m256 f = _mm256_set1_ps(factor), high = _mm256_set1_ps(limit), low = _mm256_set1_ps(-limit);
    __m256d squares[4];
    __m256i most = _mm256_setzero_si256();
    EACH_OF_4(u) squares[u] = _mm256_loadu_pd(lanes + 4 * u);
    for (unsigned j = 0; j < count; j++)
        data[j] = (const char *)inputs[j].data + start * size;
    for (size_t i = 0; i < n; i += TURN) {
        __m256 sum[4];
        prefetch_input(data[0] + i * size, TURN * size, count, far);
        EACH_OF_4(u) sum[u] = widen(data[0] + (i + u * WIDTH) * size, dtype);
        for (unsigned j = 1; j < count; j++) {
            prefetch_input(data[j] + i * size, TURN * size, count, far);
            EACH_OF_4(u) sum[u] = _mm256_add_ps(sum[u], widen(data[j] + (i + u * WIDTH) * size, dtype));
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
            _mm256_store_ps(g + u * WIDTH, sum[u]);
        }
        __asm__("" : "+m"(g)); /* else the compiler takes them out of the registers */
        add_squares(squares, g);
    }
    EACH_OF_4(u) _mm256_storeu_pd(lanes + 4 * u, squares[u]);
    return reduce_max(most);
}

/* A loop for each dtype, for what is kept, and for one input. */
uint32_t amp_avx2_vote_pass(const struct amp_input *inputs, unsigned count, float factor, float limit, size_t start,
                            size_t n, double lanes[AMP_SQUARE_LANES], float *kept)
{
    enum amp_dtype dtype = inputs[0].dtype;
    if (dtype == AMP_F32)
        return count == 1 ? vote(inputs, 1, AMP_F32, false, factor, limit, start, n, lanes, NULL)
                          : vote(inputs, count, AMP_F32, false, factor, limit, start, n, lanes, NULL);
    if (dtype == AMP_F16)
        return kept != NULL ? vote(inputs, count, AMP_F16, true, factor, limit, start, n, lanes, kept)
               : count == 1 ? vote(inputs, 1, AMP_F16, false, factor, limit, start, n, lanes, NULL)
                            : vote(inputs, count, AMP_F16, false, factor, limit, start, n, lanes, NULL);
    return kept != NULL ? vote(inputs, count, AMP_BF16, true, factor, limit, start, n, lanes, kept)
           : count == 1 ? vote(inputs, 1, AMP_BF16, false, factor, limit, start, n, lanes, NULL)
                        : vote(inputs, count, AMP_BF16, false, factor, limit, start, n, lanes, NULL);
}

/* The largest of 16 magnitudes of 16 bits, as bits of binary32. */
INLINE uint32_t widest(__m256i magnitudes, enum amp_dtype dtype)
{
    __m256i even = _mm256_and_si256(magnitudes, _mm256_set1_epi32(0xffff)), odd = _mm256_srli_epi32(magnitudes, 16);
    __m128i one = _mm_cvtsi32_si128((int)reduce_max(_mm256_max_epu32(even, odd)));
    return reduce_max(magnitude(widen_half(one, dtype)));
}

/*
 * The vote on one input while it is copied: one pass over memory where a copy, a test and a vote are three. The largest
 * magnitude is looked for among the 16 bits of the input, twice as many in a register as of g.
 */
INLINE uint32_t take(uint16_t *to, const uint16_t *from, enum amp_dtype dtype, float factor, float limit, size_t n,
                     double *lanes)
{
    const bool clamps = limit < INFINITY;
    _Alignas(LINE) float g[TURN];
    const __m256 f = _mm256_set1_ps(factor), high = _mm256_set1_ps(limit), low = _mm256_set1_ps(-limit);
    const __m256i unsigned_16 = _mm256_set1_epi16(0x7fff);
    __m256d squares[4];
    __m256i most = _mm256_setzero_si256();
    EACH_OF_4(u) squares[u] = _mm256_loadu_pd(lanes + 4 * u);
    for (size_t i = 0; i < n; i += TURN) {
        prefetch_input((const char *)(from + i), TURN * sizeof *from, 1, false);
        _Pragma("GCC unroll 2") for (size_t half = 0; half < TURN; half += 2 * WIDTH)
        {
            __m256i x = _mm256_loadu_si256((const void *)(from + i + half));
            __asm__("" : "+x"(x)); /* else the compiler may load it twice, and another process may write between */
            _mm256_stream_si256((void *)(to + i + half), x);
            most = _mm256_max_epu16(most, _mm256_and_si256(x, unsigned_16));
            __m256 a = _mm256_mul_ps(widen_half(_mm256_castsi256_si128(x), dtype), f);
            __m256 b = _mm256_mul_ps(widen_half(_mm256_extracti128_si256(x, 1), dtype), f);
            _mm256_store_ps(g + half, clamps ? clamp(a, low, high) : a);
            _mm256_store_ps(g + half + WIDTH, clamps ? clamp(b, low, high) : b);
        }
        __asm__("" : "+m"(g)); /* else the compiler takes them out of the registers */
        add_squares(squares, g);
    }
    EACH_OF_4(u) _mm256_storeu_pd(lanes + 4 * u, squares[u]);
    return widest(most, dtype);
}

uint32_t amp_avx2_vote_take(void *to, const void *from, enum amp_dtype dtype, float factor, float limit, size_t n,
                            double lanes[AMP_SQUARE_LANES])
{
    return dtype == AMP_F16 ? take(to, from, AMP_F16, factor, limit, n, lanes)
                            : take(to, from, AMP_BF16, factor, limit, n, lanes);
}
