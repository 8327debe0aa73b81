/*
 * Adam and AdamW for AVX2: the reference's operations in the reference's order, so the same bits.
 *
 * One loop over eight elements at a time, from the staged gradient to the new state, without a branch. It begins a
 * vector while the root of the one before is under way: in one chain, what waits for root and quotient would fill the
 * processor's schedulers long before its units. Two things follow each span:
 *
 * - the elements that the guard sends to double. They are few and anywhere, so that a branch at each would be guessed
 *   wrong: the loop keeps a bit for each, the old moments of all, and leaves the masters of these as they were;
 * - the cast of the span's masters, past the caches.
 *
 * Each line is prefetched. Half a span ahead a step takes 0.74 of the time on Zen 5, and 0.9 on Zen 4; on Zen 5 a whole
 * span ahead 0.70, and FAR_AHEAD and MORE 0.97 to 0.98 of that with one thread, 1.00 with two. On Zen 3 the processor's
 * own prefetch is as good; there the number of instructions counts: forty for eight elements, of which a core that its
 * other thread leaves alone takes four in a cycle, and three if not. To take up the next span before the late elements
 * and the cast of this one was slower: it needs twice the room in the first cache level.
 */
#include "amp/kernels/avx2_parts.h"

#include "amp/kernels/x86_adam_parts.h"

#define CASTS_BEHIND false /* with it 1.01 to 1.08 of the time (avx512_adam.c says what it is) */

/* Late elements that are computed in a turn. */
#define PICKED 4

INLINE __m256 absolute(__m256 x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

/* The largest power of two that is not above |x|, by the bits as in ref.c. */
INLINE __m256 power_of_two(__m256 x)
{
    return _mm256_and_ps(_mm256_castsi256_ps(_mm256_set1_epi32(AMP_F32_INF)), x);
}

INLINE __m256d with_decay(const struct doubles *d, __m256d g, __m256d p)
{
    return _mm256_add_pd(g, _mm256_mul_pd(d->weight_decay, p));
}

/* The masters of elements that need double. */
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

/* The lines of all arrays, of several inputs the first alone, that are ahead of index i. */
INLINE void prefetch_all(const struct place *at, struct kind kind, size_t i)
{
    if (i % (LINE / sizeof(float)) != 0)
        return;
    i += kind.core == ZEN5 ? FAR_AHEAD : NEAR_AHEAD;
    _mm_prefetch((const char *)(at->p + i), _MM_HINT_T0);
    _mm_prefetch((const char *)(at->m + i), _MM_HINT_T0);
    _mm_prefetch((const char *)(at->v + i), _MM_HINT_T0);
    if (kind.dtype == AMP_F32)
        _mm_prefetch((const char *)(at->g + i), _MM_HINT_T0);
    else if (i % (LINE / sizeof(uint16_t)) == 0)
        _mm_prefetch((const char *)(at->h + i), _MM_HINT_T0);
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
    b.rated = _mm256_mul_ps(c->rate, m1);
    b.bound =
        _mm256_add_ps(_mm256_add_ps(absolute(b.rated), _mm256_mul_ps(c->guard_fresh, absolute(new_m))), c->guard_min);
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
    __m256 guard = _mm256_mul_ps(_mm256_mul_ps(power_of_two(p0), divisor), c->guard_keep);
    __m256 late = _mm256_cmp_ps(guard, b.bound, _CMP_NGE_UQ);
    __m256 p1 = _mm256_sub_ps(p0, _mm256_add_ps(quotient, _mm256_mul_ps(c->decay, p0)));
    ((uint8_t *)at->old->late)[i / WIDTH] = (uint8_t)_mm256_movemask_ps(late);
    _mm256_storeu_ps(at->p + i, _mm256_blendv_ps(p1, p0, late));
    return p1;
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
    /* Its lines were not prefetched: with that a step takes 1.02 of the time on Zen 4. */
    struct begun b = begin(&at, &s->d, kind, place_g(&at, s, kind, start, 0), 0);
    _Pragma("GCC unroll 2") for (size_t i = WIDTH; i < n; i += WIDTH)
    {
        prefetch_all(&at, kind, i);
        struct begun next = begin(&at, &s->d, kind, place_g(&at, s, kind, start, i), i);
        nan = _mm256_add_ps(nan, end(&at, b, i - WIDTH));
        b = next;
    }
    nan = _mm256_add_ps(nan, end(&at, b, n - WIDTH));
    for (size_t i = n; kind.core == ZEN5 && i < n + MORE; i += WIDTH)
        prefetch_all(&at, kind, i);
    /* Those of m and v too, since each goes into its master; Inf - Inf is one more look. */
    if (_mm256_movemask_ps(_mm256_cmp_ps(nan, nan, _CMP_UNORD_Q)) != 0) {
        settle(at.p, n);
        settle(at.m, n);
        settle(at.v, n);
    }
}

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
INLINE void redo_few(const struct source *s, struct kind kind, size_t start, const struct target *t,
                     const struct span *old, uint16_t *at, size_t count)
{
    any_f32 *p = t->p + start;
    for (size_t j = 0; j < PICKED - 1; j++)
        at[count + j] = at[count - 1];
    for (size_t i = 0; i < count; i += PICKED) {
        prefetch_late(s, kind, t, start, i, PICKED);
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

/* The cast of n masters, a multiple of 2 * WIDTH, past the caches. Returns the largest as bits. */
INLINE uint32_t stream_16(uint16_t *copy, enum amp_dtype dtype, const float *p, size_t n)
{
    __m256i most = _mm256_setzero_si256();
    for (size_t i = 0; i < n; i += 2 * (size_t)WIDTH) {
        __m256 a = _mm256_loadu_ps(p + i), b = _mm256_loadu_ps(p + i + WIDTH);
        __m256i sizes = _mm256_max_epu32(_mm256_castps_si256(absolute(a)), _mm256_castps_si256(absolute(b)));
        most = _mm256_max_epu32(most, sizes);
        _mm256_stream_si256((__m256i *)(void *)(copy + i), narrow_canonical(a, b, dtype));
    }
    return reduce_max(most);
}

#define KERNELS amp_kernels_avx2
#include "amp/kernels/x86_adam_run.h"

void amp_avx2_apply_adamw(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    apply(k, AMP_OPT_ADAMW, n, g, p, m, v);
}

void amp_avx2_apply_adam(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    apply(k, AMP_OPT_ADAM, n, g, p, m, v);
}

uint32_t amp_avx2_apply_pass_adamw(const struct amp_apply_scalars *k, const struct amp_pass_in *in, enum amp_dtype cast,
                                   float *p, float *m, float *v, void *copy)
{
    return apply_pass(k, AMP_OPT_ADAMW, in, cast, p, m, v, copy);
}

uint32_t amp_avx2_apply_pass_adam(const struct amp_apply_scalars *k, const struct amp_pass_in *in, enum amp_dtype cast,
                                  float *p, float *m, float *v, void *copy)
{
    return apply_pass(k, AMP_OPT_ADAM, in, cast, p, m, v, copy);
}
