/*
 * Adam and AdamW for AVX2: the reference's operations in the reference's order, so the same bits.
 *
 * One loop over eight elements at a time, from the staged gradient to the new state, without a branch. It begins a
 * vector while the root of the one before is under way: in one chain, what waits for root and quotient would fill the
 * processor's schedulers long before its units. Two things follow each span:
 *
 * - the elements that the guard sends to double. They are few and anywhere, so that a branch at each would be guessed
 *   wrong: the loop keeps a bit for each, the old moments of all, and leaves the masters of these as they were
 *   (kernels_avx2_adam_late.h);
 * - the cast of the span's masters, past the caches.
 *
 * Each line is asked for ahead, nearer than a span: that takes 0.74 of the time on Zen 5 and 0.9 on Zen 4, and on Zen
 * 3 the processor's own prefetch is as good. What counts there is the number of instructions: forty for eight
 * elements, of which a core that its other thread leaves alone takes four in a cycle, and three if not. To take up the
 * next span before the late elements and the cast of this one was slower: it needs twice the room in the first cache
 * level.
 */
#include "amp/kernels_avx2_adam.h"

#include "amp/kernels_avx2_adam_late.h"

#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

/* Elements ahead of the loop that are asked for, and elements of a line of the caches: four bytes each. */
#define AHEAD 256
#define LINE  16

/* Where a span is, with its scalars: copies, since the compiler must suppose that a store changes what memory holds. */
struct place {
    struct singles c;
    const float *g; /* the f32 input, or */
    const uint16_t *h;
    float *p, *m, *v;
    struct span *old;
};

/* Eight elements of g at index i of a span, times clip. */
INLINE __m256 place_g(const struct place *at, const struct source *s, struct kind kind, size_t start, size_t i)
{
    if (kind.many)
        return finish_g(&at->c, kind, sum_inputs(s, kind, start + i));
    return finish_g(&at->c, kind, kind.dtype == AMP_F32 ? _mm256_loadu_ps(at->g + i) : widen(at->h + i, kind.dtype));
}

/* Of several inputs the first alone is asked for. */
INLINE void ask(const struct place *at, struct kind kind, size_t i)
{
    if (i % LINE != 0)
        return;
    _mm_prefetch((const char *)(at->p + i + AHEAD), _MM_HINT_T0);
    _mm_prefetch((const char *)(at->m + i + AHEAD), _MM_HINT_T0);
    _mm_prefetch((const char *)(at->v + i + AHEAD), _MM_HINT_T0);
    if (kind.dtype == AMP_F32)
        _mm_prefetch((const char *)(at->g + i + AHEAD), _MM_HINT_T0);
    else if (i % (2 * (size_t)LINE) == 0)
        _mm_prefetch((const char *)(at->h + i + AHEAD), _MM_HINT_T0);
}

/* What the second half of a vector's step needs of the first. */
struct begun {
    __m256 root;  /* of the new v */
    __m256 rated; /* the new m times rate */
    __m256 bound; /* the guard's right side */
};

/* The moments of the eight elements at index i of a span, whose g is x. */
INLINE struct begun begin(const struct place *at, const struct doubles *d, struct kind kind, __m256 x, size_t i)
{
    const struct singles *c = &at->c;
    struct begun b;
    __m256 m0 = _mm256_loadu_ps(at->m + i), v0 = _mm256_loadu_ps(at->v + i);
    if (kind.coupled) {
        __m256 p0 = _mm256_loadu_ps(at->p + i);
        x = join_halves(with_decay(d, low_half(x), low_half(p0)), with_decay(d, high_half(x), high_half(p0)));
    }
    __m256 v1 = _mm256_add_ps(_mm256_mul_ps(c->beta2, v0), _mm256_mul_ps(c->rest2, _mm256_mul_ps(x, x)));
    b.root = _mm256_sqrt_ps(v1);
    __m256 old_m = _mm256_mul_ps(c->beta1, m0), new_m = _mm256_mul_ps(c->rest1, x);
    __m256 m1 = _mm256_add_ps(old_m, new_m);
    __m256 sizes = _mm256_add_ps(absolute(old_m), absolute(new_m));
    b.bound = _mm256_add_ps(_mm256_mul_ps(c->guard_rate, sizes), c->guard_min);
    b.rated = _mm256_mul_ps(c->rate, m1);
    _mm256_store_ps(at->old->m + i, m0);
    _mm256_store_ps(at->old->v + i, v0);
    _mm256_storeu_ps(at->m + i, m1);
    _mm256_storeu_ps(at->v + i, v1);
    return b;
}

/* Their masters, but of the late ones. Returns all in single precision. */
INLINE __m256 end(const struct place *at, struct begun b, size_t i)
{
    const struct singles *c = &at->c;
    __m256 divisor = _mm256_add_ps(b.root, c->eps);
    __m256 quotient = _mm256_div_ps(b.rated, divisor);
    __m256 p0 = _mm256_loadu_ps(at->p + i);
    __m256 guard = _mm256_mul_ps(_mm256_mul_ps(absolute(p0), divisor), c->guard_keep);
    __m256 late = _mm256_cmp_ps(guard, b.bound, _CMP_NGE_UQ);
    __m256 p1 = _mm256_sub_ps(p0, _mm256_add_ps(quotient, _mm256_mul_ps(c->decay, p0)));
    ((uint8_t *)at->old->late)[i / WIDTH] = (uint8_t)_mm256_movemask_ps(late);
    _mm256_storeu_ps(at->p + i, _mm256_blendv_ps(p1, p0, late));
    return p1;
}

/* NaN of n elements, a multiple of WIDTH, made canonical. */
static void settle(float *x, size_t n)
{
    for (size_t i = 0; i < n; i += WIDTH)
        _mm256_storeu_ps(x + i, canonical(_mm256_loadu_ps(x + i)));
}

/* n elements from index `start`, a multiple of WIDTH and at most SPAN, but for the late ones. */
INLINE void step_span(const struct source *s, struct kind kind, size_t start, size_t n, const struct target *t,
                      struct span *old)
{
    const struct place at = {.c = s->c,
                             .g = (const float *)s->data[0] + start,
                             .h = (const uint16_t *)s->data[0] + start,
                             .p = t->p + start,
                             .m = t->m + start,
                             .v = t->v + start,
                             .old = old};
    __m256 nan = _mm256_setzero_ps(); /* NaN if any master is */
    old->late[(n - 1) / 64] = 0;      /* of the last word only a part may be written below */
    struct begun b = begin(&at, &s->d, kind, place_g(&at, s, kind, start, 0), 0);
    _Pragma("GCC unroll 2") for (size_t i = WIDTH; i < n; i += WIDTH)
    {
        ask(&at, kind, i);
        struct begun next = begin(&at, &s->d, kind, place_g(&at, s, kind, start, i), i);
        nan = _mm256_add_ps(nan, end(&at, b, i - WIDTH));
        b = next;
    }
    nan = _mm256_add_ps(nan, end(&at, b, n - WIDTH));
    /* Those of m and v too, since each goes into its master; Inf - Inf is one more look. */
    if (_mm256_movemask_ps(_mm256_cmp_ps(nan, nan, _CMP_UNORD_Q)) != 0) {
        settle(at.p, n);
        settle(at.m, n);
        settle(at.v, n);
    }
}

/* Sixteen masters, whose NaN are canonical, and so become the canonical one of either dtype. */
INLINE __m256i narrow(__m256 a, __m256 b, enum amp_dtype dtype)
{
    if (dtype == AMP_F16)
        return _mm256_set_m128i(_mm256_cvtps_ph(b, NEAREST), _mm256_cvtps_ph(a, NEAREST));
    __m256i x = _mm256_castps_si256(a), y = _mm256_castps_si256(b);
    const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7fff);
    x = _mm256_add_epi32(_mm256_add_epi32(x, half), _mm256_and_si256(_mm256_srli_epi32(x, 16), one));
    y = _mm256_add_epi32(_mm256_add_epi32(y, half), _mm256_and_si256(_mm256_srli_epi32(y, 16), one));
    __m256i mixed = _mm256_packus_epi32(_mm256_srli_epi32(x, 16), _mm256_srli_epi32(y, 16));
    return _mm256_permute4x64_epi64(mixed, 0xd8);
}

static uint32_t reduce_max(__m256i x)
{
    __m128i y = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = _mm_max_epu32(y, _mm_shuffle_epi32(y, 0x4e));
    y = _mm_max_epu32(y, _mm_shuffle_epi32(y, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(y);
}

/* The cast of n masters, a multiple of 2 * WIDTH, past the caches. Returns the largest as bits. */
INLINE uint32_t stream_16(uint16_t *copy, enum amp_dtype dtype, const float *p, size_t n)
{
    __m256i most = _mm256_setzero_si256();
    for (size_t i = 0; i < n; i += 2 * (size_t)WIDTH) {
        __m256 a = _mm256_loadu_ps(p + i), b = _mm256_loadu_ps(p + i + WIDTH);
        __m256i sizes = _mm256_max_epu32(_mm256_castps_si256(absolute(a)), _mm256_castps_si256(absolute(b)));
        most = _mm256_max_epu32(most, sizes);
        _mm256_stream_si256((__m256i *)(void *)(copy + i), narrow(a, b, dtype));
    }
    return reduce_max(most);
}

#define KERNELS amp_kernels_avx2
#include "amp/kernels_x86_adam_run.h"

void amp_avx2_apply_adamw(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    apply(k, AMP_OPT_ADAMW, n, g, p, m, v);
}

void amp_avx2_apply_adam(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    apply(k, AMP_OPT_ADAM, n, g, p, m, v);
}

uint32_t amp_avx2_step_adamw(const struct amp_apply_scalars *k, const struct amp_pass_in *in, enum amp_dtype cast,
                             float *p, float *m, float *v, void *copy)
{
    return step(k, AMP_OPT_ADAMW, in, cast, p, m, v, copy);
}

uint32_t amp_avx2_step_adam(const struct amp_apply_scalars *k, const struct amp_pass_in *in, enum amp_dtype cast,
                            float *p, float *m, float *v, void *copy)
{
    return step(k, AMP_OPT_ADAM, in, cast, p, m, v, copy);
}
