/*
 * The vote for AVX-512: what form, clip_value, squares and a store past the caches do, with their bits, while the sum
 * is in registers. By tiles each would load and store the sum again, which takes a tenth of the time on Zen 4, and a
 * fifth of that of eight inputs.
 */
#include "amp/kernels/avx512_parts.h"

#include <math.h>

/* Elements of a turn of the loop: two lines of each input (four of f32), whose chains of additions overlap. */
#define TURN (4 * (size_t)WIDTH)
_Static_assert(AMP_VOTE_MULTIPLE % TURN == 0, "whole turns");

/*
 * How far ahead an input is prefetched. On AMD's processors NEAR, to the first cache level; where that is small, of
 * more than MANY inputs also FAR, to the second: on Zen 4 as fast as loops without arithmetic (bench/kernel_bounds.h).
 *
 * On Intel's server cores AHEAD, past what a prefetcher sees that ends with a page: with NEAR one input took 1.10 of
 * the time on model 85. Of more inputs than FEW, AT_ONCE in one turn, so that each place in memory gives several lines
 * in a row; the inputs take turns. One input has ALONE, and ALONE_FAR to the second level: on model 167 to measure
 * gradients of f32 (amp_grads_measure) takes 0.93 of the time with huge pages, and 0.8 with small ones.
 */
#define NEAR      512  /* bytes */
#define FAR       3072 /* bytes */
#define AHEAD     2048 /* bytes */
#define AT_ONCE   256  /* bytes */
#define ALONE     1024 /* bytes */
#define ALONE_FAR 4096 /* bytes */
#define MANY      4    /* inputs */
#define FEW       2    /* inputs */

/* As prefetch_l1, to the second cache level. */
INLINE void prefetch_far(const char *p, size_t bytes)
{
    _Pragma("GCC unroll 4") for (size_t i = 0; i < bytes; i += LINE) _mm_prefetch(p + i, _MM_HINT_T1);
}

/* Prefetches for input j, at its element i. */
INLINE void prefetch_input(const char *data, size_t size, size_t i, unsigned j, size_t ahead, bool each, size_t far)
{
    const char *at = data + i * size;
    if (each)
        prefetch_l1(at + ahead, TURN * size);
    else if ((i / TURN + j) % (AT_ONCE / (TURN * size)) == 0)
        prefetch_l1(at + ahead, AT_ONCE);
    if (far != 0)
        prefetch_far(at + far, TURN * size);
}

INLINE __m512d add_square(__m512d sum, __m256 half)
{
    __m512d x = _mm512_cvtps_pd(half);
    return _mm512_fmadd_pd(x, x, sum); /* as two: the square of a float is exact in double */
}

/*
 * Of a turn's elements. Second halves come from memory: to take them out of a register is work for the units that
 * convert. On Zen 4 a vote of one input takes 0.93 of the time, in `take` 0.89 together with the halves of the input.
 */
INLINE void add_squares(__m512d *left, __m512d *right, const __m512 g[4])
{
    _Alignas(LINE) float at[TURN];
    EACH_OF_4(u) _mm512_storeu_ps(at + u * WIDTH, g[u]);
    __asm__("" : "+m"(at)); /* else the compiler takes them out of the registers */
    EACH_OF_4(u)
    {
        *left = add_square(*left, _mm512_castps512_ps256(g[u]));
        *right = add_square(*right, _mm256_loadu_ps(at + u * WIDTH + WIDTH / 2));
    }
}

INLINE uint32_t vote(const struct amp_input *inputs, unsigned count, enum amp_dtype dtype, bool keep, float factor,
                     float limit, size_t start, size_t n, double *lanes, float *kept)
{
    const size_t size = dtype == AMP_F32 ? sizeof(float) : sizeof(uint16_t);
    const char *data[AMP_VOTE_INPUTS] = {NULL};
    const bool alone = !ON_AMD && count == 1, many = ON_AMD && SMALL_FIRST_LEVEL && count > MANY;
    const size_t ahead = ON_AMD ? NEAR : alone ? ALONE : AHEAD, far = many ? FAR : alone ? ALONE_FAR : 0;
    const bool each = ON_AMD || count <= FEW;
    const bool clamps = limit < INFINITY;
    const __m512 f = _mm512_set1_ps(factor), high = _mm512_set1_ps(limit), low = _mm512_set1_ps(-limit);
    __m512d left = _mm512_loadu_pd(lanes), right = _mm512_loadu_pd(lanes + 8);
    __m512i most = _mm512_setzero_si512();
    for (unsigned j = 0; j < count; j++)
        data[j] = (const char *)inputs[j].data + start * size;
    for (size_t i = 0; i < n; i += TURN) {
        __m512 sum[4];
        prefetch_input(data[0], size, i, 0, ahead, each, far);
        EACH_OF_4(u) sum[u] = widen(data[0] + (i + u * WIDTH) * size, dtype);
        for (unsigned j = 1; j < count; j++) {
            prefetch_input(data[j], size, i, j, ahead, each, far);
            EACH_OF_4(u) sum[u] = _mm512_add_ps(sum[u], widen(data[j] + (i + u * WIDTH) * size, dtype));
        }
        EACH_OF_4(u)
        {
            sum[u] = _mm512_mul_ps(sum[u], f);
            most = _mm512_max_epu32(most, magnitude(sum[u]));
        }
        if (clamps)
            EACH_OF_4(u) sum[u] = clamp(sum[u], low, high);
        if (keep)
            EACH_OF_4(u) _mm512_stream_ps(kept + i + u * WIDTH, sum[u]);
        add_squares(&left, &right, sum);
    }
    _mm512_storeu_pd(lanes, left);
    _mm512_storeu_pd(lanes + 8, right);
    return _mm512_reduce_max_epu32(most);
}

/* A loop for each dtype, and for what is kept. */
uint32_t amp_avx512_vote_pass(const struct amp_input *inputs, unsigned count, float factor, float limit, size_t start,
                              size_t n, double lanes[AMP_SQUARE_LANES], float *kept)
{
    if (inputs[0].dtype == AMP_F32)
        return vote(inputs, count, AMP_F32, false, factor, limit, start, n, lanes, NULL);
    if (inputs[0].dtype == AMP_F16)
        return kept != NULL ? vote(inputs, count, AMP_F16, true, factor, limit, start, n, lanes, kept)
                            : vote(inputs, count, AMP_F16, false, factor, limit, start, n, lanes, kept);
    return kept != NULL ? vote(inputs, count, AMP_BF16, true, factor, limit, start, n, lanes, kept)
                        : vote(inputs, count, AMP_BF16, false, factor, limit, start, n, lanes, kept);
}

/* The largest of 32 magnitudes of 16 bits, as bits of binary32. */
INLINE uint32_t widest(__m512i magnitudes, enum amp_dtype dtype)
{
    __m512i even = _mm512_and_si512(magnitudes, _mm512_set1_epi32(0xffff)), odd = _mm512_srli_epi32(magnitudes, 16);
    uint16_t one[WIDTH] = {(uint16_t)_mm512_reduce_max_epu32(_mm512_max_epu32(even, odd))};
    return _mm512_reduce_max_epu32(magnitude(widen_half(_mm256_loadu_si256((const void *)one), dtype)));
}

/* x in a register: else the compiler may load it twice, and another process may write between. */
INLINE __m512i once(__m512i x)
{
#ifdef __AVX512F__ /* not where the intrinsics are those of tests/kernels/emulated */
    __asm__("" : "+v"(x));
#endif
    return x;
}

/*
 * The vote on one input while it is copied: one pass over memory where a copy, a test and a vote are three. The largest
 * magnitude is looked for among the 16 bits of the input, twice as many in a register as of g.
 */
INLINE uint32_t take(uint16_t *to, const uint16_t *from, enum amp_dtype dtype, float factor, float limit, size_t n,
                     double *lanes)
{
    const bool clamps = limit < INFINITY;
    const __m512 f = _mm512_set1_ps(factor), high = _mm512_set1_ps(limit), low = _mm512_set1_ps(-limit);
    const __m512i unsigned_16 = _mm512_set1_epi16(0x7fff);
    __m512d left = _mm512_loadu_pd(lanes), right = _mm512_loadu_pd(lanes + 8);
    __m512i most = _mm512_setzero_si512();
    _Alignas(LINE) uint16_t halves[2 * WIDTH];
    for (size_t i = 0; i < n; i += TURN) {
        __m512 g[4];
        prefetch_l1((const char *)(from + i) + AHEAD, TURN * sizeof *from);
        _Pragma("GCC unroll 2") for (size_t line = 0; line < 2; line++)
        {
            __m512i x = once(_mm512_loadu_si512(from + i + line * 2 * WIDTH));
            _mm512_stream_si512((void *)(to + i + line * 2 * WIDTH), x);
            most = _mm512_max_epu16(most, _mm512_and_si512(x, unsigned_16));
            g[2 * line] = widen_half(_mm512_castsi512_si256(x), dtype);
            _mm512_storeu_si512(halves, x);
            __asm__("" : "+m"(halves));
            g[2 * line + 1] = widen(halves + WIDTH, dtype);
        }
        EACH_OF_4(u) g[u] = _mm512_mul_ps(g[u], f);
        if (clamps)
            EACH_OF_4(u) g[u] = clamp(g[u], low, high);
        add_squares(&left, &right, g);
    }
    _mm512_storeu_pd(lanes, left);
    _mm512_storeu_pd(lanes + 8, right);
    return widest(most, dtype);
}

uint32_t amp_avx512_vote_take(void *to, const void *from, enum amp_dtype dtype, float factor, float limit, size_t n,
                              double lanes[AMP_SQUARE_LANES])
{
    return dtype == AMP_F16 ? take(to, from, AMP_F16, factor, limit, n, lanes)
                            : take(to, from, AMP_BF16, factor, limit, n, lanes);
}
