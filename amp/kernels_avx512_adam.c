/*
 * Adam and AdamW for AVX-512: the reference's operations in the reference's order, so the same bits, and no fused
 * multiply-add.
 *
 * One loop over sixteen elements at a time, which keeps the divider and the memory busy all the while: it asks for the lines
 * that come AHEAD elements later, and has no branch. The elements that the guard sends to double are few and anywhere, so
 * that a branch at each would be guessed wrong: what they need is packed to the left in a buffer, and they are computed
 * after the span, eight at a time.
 */
#include "amp/kernels_avx512_adam.h"

#include <immintrin.h>

#define WIDTH 16

/* Elements of a span: its late ones are computed while its masters are still in the first cache level. */
#define SPAN 256

/* Elements ahead of the loop that are asked for. */
#define AHEAD 512

/* The late elements of a span before the step; a vector more, since whole vectors are written. */
struct late {
    float g[SPAN + WIDTH]; /* times clip */
    float p[SPAN + WIDTH];
    float m[SPAN + WIDTH];
    float v[SPAN + WIDTH];
    uint32_t at[SPAN + WIDTH]; /* index in the span */
    size_t count;
};

static __m512 canonical(__m512 x)
{
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_blend_ps(nan, x, _mm512_castsi512_ps(_mm512_set1_epi32((int)AMP_F32_NAN)));
}

static __m512 absolute(__m512 x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)));
}

static __m512d low_half(__m512 x)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(x));
}

static __m512d high_half(__m512 x)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
}

static __m512 join_halves(__m512d low, __m512d high)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1);
}

static __m512d coupled(const struct amp_apply_scalars *k, __m512d g, __m512d p)
{
    return _mm512_add_pd(g, _mm512_mul_pd(_mm512_set1_pd(k->weight_decay), p));
}

static __m512d in_double(const struct amp_apply_scalars *k, bool couple, __m512d g, __m512d p, __m512d m, __m512d v)
{
    if (couple)
        g = coupled(k, g, p);
    __m512d m1 = _mm512_add_pd(_mm512_mul_pd(_mm512_set1_pd(k->beta1), m), _mm512_mul_pd(_mm512_set1_pd(k->rest1), g));
    __m512d v1 = _mm512_add_pd(_mm512_mul_pd(_mm512_set1_pd(k->beta2), v),
                               _mm512_mul_pd(_mm512_set1_pd(k->rest2), _mm512_mul_pd(g, g)));
    __m512d divisor = _mm512_add_pd(_mm512_sqrt_pd(v1), _mm512_set1_pd(k->eps));
    __m512d quotient = _mm512_div_pd(_mm512_mul_pd(_mm512_set1_pd(k->rate), m1), divisor);
    __m512d update = _mm512_add_pd(quotient, _mm512_mul_pd(_mm512_set1_pd(k->decay), p));
    return _mm512_sub_pd(p, update);
}

/* The masters of the late elements, to their places in the span. */
static void apply_late(const struct amp_apply_scalars *k, bool couple, const struct late *late, float *p)
{
    for (size_t i = 0; i < late->count; i += WIDTH) {
        size_t rest = late->count - i;
        __mmask16 live = (__mmask16)(rest < WIDTH ? (1u << rest) - 1 : 0xffffu);
        __m512 g0 = _mm512_maskz_loadu_ps(live, late->g + i), p0 = _mm512_maskz_loadu_ps(live, late->p + i);
        __m512 m0 = _mm512_maskz_loadu_ps(live, late->m + i), v0 = _mm512_maskz_loadu_ps(live, late->v + i);
        __m512d low = in_double(k, couple, low_half(g0), low_half(p0), low_half(m0), low_half(v0));
        __m512d high = _mm512_setzero_pd();
        if (rest > WIDTH / 2)
            high = in_double(k, couple, high_half(g0), high_half(p0), high_half(m0), high_half(v0));
        __m512i at = _mm512_maskz_loadu_epi32(live, late->at + i);
        _mm512_mask_i32scatter_ps(p, live, at, canonical(join_halves(low, high)), sizeof *p);
    }
}

static void pack_left(float *dst, __mmask16 mask, __m512 x)
{
    _mm512_storeu_ps(dst, _mm512_maskz_compress_ps(mask, x));
}

/* NaN of n elements, a multiple of WIDTH, made canonical. */
static void settle(float *x, size_t n)
{
    for (size_t i = 0; i < n; i += WIDTH)
        _mm512_storeu_ps(x + i, canonical(_mm512_loadu_ps(x + i)));
}

/* n elements, a multiple of WIDTH and at most SPAN. */
static inline __attribute__((always_inline)) void span(const struct amp_apply_scalars *k, bool couple, size_t n,
                                                       const float *g, float *p, float *m, float *v, struct late *late)
{
    const __m512 clip = _mm512_set1_ps(k->clip);
    const __m512 beta1 = _mm512_set1_ps(k->beta1_f), rest1 = _mm512_set1_ps(k->rest1_f);
    const __m512 beta2 = _mm512_set1_ps(k->beta2_f), rest2 = _mm512_set1_ps(k->rest2_f);
    const __m512 eps = _mm512_set1_ps(k->eps_f), rate = _mm512_set1_ps(k->rate_f), decay = _mm512_set1_ps(k->decay_f);
    const __m512 guard_rate = _mm512_set1_ps(k->guard_rate), guard_keep = _mm512_set1_ps(k->guard_keep);
    const __m512 guard_min = _mm512_set1_ps(AMP_ADAMW_GUARD_MIN);
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    unsigned nan = 0;
    size_t count = 0;
    for (size_t i = 0; i < n; i += WIDTH) {
        _mm_prefetch((const char *)(p + i + AHEAD), _MM_HINT_T0);
        _mm_prefetch((const char *)(m + i + AHEAD), _MM_HINT_T0);
        _mm_prefetch((const char *)(v + i + AHEAD), _MM_HINT_T0);
        __m512 clipped = _mm512_mul_ps(_mm512_loadu_ps(g + i), clip), x = clipped;
        __m512 p0 = _mm512_loadu_ps(p + i), m0 = _mm512_loadu_ps(m + i), v0 = _mm512_loadu_ps(v + i);
        if (couple)
            x = join_halves(coupled(k, low_half(x), low_half(p0)), coupled(k, high_half(x), high_half(p0)));
        __m512 old_m = _mm512_mul_ps(beta1, m0);
        __m512 new_m = _mm512_mul_ps(rest1, x);
        __m512 m1 = _mm512_add_ps(old_m, new_m);
        __m512 v1 = _mm512_add_ps(_mm512_mul_ps(beta2, v0), _mm512_mul_ps(rest2, _mm512_mul_ps(x, x)));
        __m512 divisor = _mm512_add_ps(_mm512_sqrt_ps(v1), eps);
        __m512 bound =
            _mm512_add_ps(_mm512_mul_ps(guard_rate, _mm512_add_ps(absolute(old_m), absolute(new_m))), guard_min);
        __m512 guard = _mm512_mul_ps(_mm512_mul_ps(absolute(p0), divisor), guard_keep);
        __m512 quotient = _mm512_div_ps(_mm512_mul_ps(rate, m1), divisor);
        __m512 p1 = _mm512_sub_ps(p0, _mm512_add_ps(quotient, _mm512_mul_ps(decay, p0)));
        __mmask16 is_late = (__mmask16)~_mm512_cmp_ps_mask(guard, bound, _CMP_GE_OQ);
        nan |= _mm512_cmp_ps_mask(p1, p1, _CMP_UNORD_Q);
        _mm512_storeu_ps(m + i, m1);
        _mm512_storeu_ps(v + i, v1);
        _mm512_storeu_ps(p + i, p1);
        pack_left(late->g + count, is_late, clipped);
        pack_left(late->p + count, is_late, p0);
        pack_left(late->m + count, is_late, m0);
        pack_left(late->v + count, is_late, v0);
        __m512i at = _mm512_add_epi32(lanes, _mm512_set1_epi32((int)i));
        _mm512_storeu_si512(late->at + count, _mm512_maskz_compress_epi32(is_late, at));
        count += (unsigned)__builtin_popcount(is_late);
    }
    late->count = count;
    if (nan != 0) { /* of m1 and v1 too: each goes into p1 */
        settle(p, n);
        settle(m, n);
        settle(v, n);
    }
}

void amp_avx512_apply_adamw(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    struct late late;
    size_t whole = n - n % WIDTH;
    for (size_t i = 0; i < whole; i += SPAN) {
        span(k, false, whole - i < SPAN ? whole - i : SPAN, g + i, p + i, m + i, v + i, &late);
        apply_late(k, false, &late, p + i);
    }
    amp_kernels_ref.apply[AMP_OPT_ADAMW](k, n - whole, g + whole, p + whole, m + whole, v + whole);
}

void amp_avx512_apply_adam(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    struct late late;
    bool couple = k->weight_decay != 0;
    size_t whole = n - n % WIDTH;
    for (size_t i = 0; i < whole; i += SPAN) {
        size_t count = whole - i < SPAN ? whole - i : SPAN;
        if (couple)
            span(k, true, count, g + i, p + i, m + i, v + i, &late);
        else
            span(k, false, count, g + i, p + i, m + i, v + i, &late);
        apply_late(k, couple, &late, p + i);
    }
    amp_kernels_ref.apply[AMP_OPT_ADAM](k, n - whole, g + whole, p + whole, m + whole, v + whole);
}
