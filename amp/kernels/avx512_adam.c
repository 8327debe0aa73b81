/*
 * Adam and AdamW for AVX-512: the reference's operations in the reference's order, so the same bits, and no fused
 * multiply-add.
 *
 * One loop over sixteen elements at a time, from the staged gradient to the new state, without a branch. It prefetches
 * the lines that come later, and begins a vector while the root of the one before is under way. Two things follow each
 * span:
 *
 * - the elements that the guard sends to double. They are few and anywhere, so that a branch at each would be guessed
 *   wrong: the loop keeps a bit for each, the old moments of all, and leaves the masters of these as they were. They
 *   are picked one by one: on AMD's cores to gather eight takes longer, and to keep them in order as they come
 *   (VPCOMPRESS) longer still;
 * - the cast of the span's masters.
 *
 * Measured with one thread on Zen 4, with one late element in thirty (in a training about one in sixty is late): the
 * loop took two thirds of the time, by its root and its quotient, and the late elements a quarter. To do these a span
 * later, or in turns with the loop, was not faster.
 */
#include "amp/kernels/avx512_parts.h"

#include "amp/kernels/x86_adam_parts.h"

/*
 * What of the elements ahead is prefetched. Zen 5: FAR_AHEAD, to the first cache level; what follows a span prefetches
 * nothing, so that the loop first prefetches MORE, although the next span does so again: 0.94 of the time, with 160 and
 * 256 longer than without. Zen 4: NEAR_AHEAD, because what follows a span needs the room in 32 KiB, and AHEAD_L2 to the
 * second level. On Intel's cores the processor's own prefetch does the latter (1.02 to 1.05 of the time with it).
 *
 * CASTS_BEHIND: a span is cast when the loop is through the next one, before its late elements. A load of sixteen
 * masters waits for the stores of single ones among them, and a load of late bits for those of the loop; in this order
 * both are over by then. On Zen 4 0.96 of the time with one thread, and nothing with two, which wait for the memory; on
 * Intel's 0.97 to 1.02, without LATE_PREFETCH 0.93 to 0.98; with AVX2 1.01 to 1.08 on Zen 4. On Zen 5
 * 0.98 to 1.00 with one thread, and with two 1.00 to 1.01.
 */
#define AHEAD_L2     768
#define CASTS_BEHIND true

/* Late elements that are computed in a turn. */
#define PICKED 8

typedef uint16_t sixteen_u16 __attribute__((vector_size(32)));

static inline __m512 absolute(__m512 x)
{
    return _mm512_castsi512_ps(magnitude(x));
}

/* The largest power of two that is not above |x|, by the bits as in ref.c. */
static inline __m512 power_of_two(__m512 x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(AMP_F32_INF)));
}

static inline __m512d with_decay(const struct doubles *d, __m512d g, __m512d p)
{
    return _mm512_add_pd(g, _mm512_mul_pd(d->weight_decay, p));
}

/* The masters of elements that need double. */
INLINE __m512d in_double(const struct doubles *d, struct kind kind, __m512d g, __m512d p, __m512d m, __m512d v)
{
    if (kind.coupled)
        g = with_decay(d, g, p);
    __m512d m1 = _mm512_add_pd(_mm512_mul_pd(d->beta1, m), _mm512_mul_pd(d->rest1, g));
    __m512d v1 = _mm512_add_pd(_mm512_mul_pd(d->beta2, v), _mm512_mul_pd(d->rest2, _mm512_mul_pd(g, g)));
    __m512d divisor = _mm512_add_pd(_mm512_sqrt_pd(v1), d->eps);
    __m512d quotient = _mm512_div_pd(_mm512_mul_pd(d->rate, m1), divisor);
    return _mm512_sub_pd(p, _mm512_add_pd(quotient, _mm512_mul_pd(d->decay, p)));
}

/* Prefetches the lines ahead of an element of `size` bytes. */
INLINE void prefetch_ahead(const void *element, size_t size, enum core core)
{
    const char *at = element;
    _mm_prefetch(at + (core == ZEN5 ? FAR_AHEAD : NEAR_AHEAD) * size, _MM_HINT_T0);
    if (core == OTHER_AMD)
        _mm_prefetch(at + AHEAD_L2 * size, _MM_HINT_T1);
}

/* Prefetches the lines of g ahead of index i. */
INLINE void prefetch_g(const struct source *s, struct kind kind, size_t i)
{
    if (kind.dtype == AMP_F32)
        prefetch_ahead((const float *)s->data[0] + i, sizeof(float), kind.core);
    else if (i % (LINE / sizeof(uint16_t)) == 0)
        for (unsigned j = 0; j < (kind.many ? s->count : 1); j++)
            prefetch_ahead((const uint16_t *)s->data[j] + i, sizeof(uint16_t), kind.core);
}

/* Where a span is, with its scalars: copies, since the compiler must suppose that a store changes what memory holds. */
struct place {
    struct singles c;
    float *p, *m, *v;
    struct span *old;
};

/* What the second half of a vector's step needs of the first. */
struct begun {
    __m512 root;  /* of the new v */
    __m512 rated; /* the new m times rate */
    __m512 bound; /* the guard's right side */
};

/* The moments of the sixteen elements at index i of a span, whose g is x. */
INLINE struct begun begin(const struct place *at, const struct doubles *d, struct kind kind, __m512 x, size_t i)
{
    const struct singles *c = &at->c;
    struct begun b;
    __m512 m0 = _mm512_loadu_ps(at->m + i), v0 = _mm512_loadu_ps(at->v + i);
    if (kind.coupled) {
        __m512 p0 = _mm512_loadu_ps(at->p + i);
        x = join_halves(with_decay(d, low_half(x), low_half(p0)), with_decay(d, high_half(x), high_half(p0)));
    }
    __m512 v1 = _mm512_add_ps(_mm512_mul_ps(c->beta2, v0), _mm512_mul_ps(c->rest2, _mm512_mul_ps(x, x)));
    b.root = _mm512_sqrt_ps(v1);
    __m512 old_m = _mm512_mul_ps(c->beta1, m0), new_m = _mm512_mul_ps(c->rest1, x);
    __m512 m1 = _mm512_add_ps(old_m, new_m);
    b.rated = _mm512_mul_ps(c->rate, m1);
    b.bound =
        _mm512_add_ps(_mm512_add_ps(absolute(b.rated), _mm512_mul_ps(c->guard_fresh, absolute(new_m))), c->guard_min);
    _mm512_storeu_ps(at->old->m + i, m0);
    _mm512_storeu_ps(at->old->v + i, v0);
    _mm512_storeu_ps(at->m + i, m1);
    _mm512_storeu_ps(at->v + i, v1);
    return b;
}

/* Their masters, but of the late ones. Returns all in single precision. */
INLINE __m512 end(const struct place *at, struct begun b, size_t i)
{
    const struct singles *c = &at->c;
    __m512 divisor = _mm512_add_ps(b.root, c->eps);
    __m512 quotient = _mm512_div_ps(b.rated, divisor);
    __m512 p0 = _mm512_loadu_ps(at->p + i);
    __m512 guard = _mm512_mul_ps(_mm512_mul_ps(power_of_two(p0), divisor), c->guard_keep);
    __m512 p1 = _mm512_sub_ps(p0, _mm512_add_ps(quotient, _mm512_mul_ps(c->decay, p0)));
    __mmask16 late = (__mmask16)~_mm512_cmp_ps_mask(guard, b.bound, _CMP_GE_OQ);
    _mm512_storeu_ps(at->p + i, _mm512_mask_blend_ps(late, p1, p0));
    ((uint16_t *)at->old->late)[i / WIDTH] = late;
    return p1;
}

/* Asks for all arrays' lines, ahead of index i. */
INLINE void prefetch_all(const struct place *at, const struct source *s, struct kind kind, size_t start, size_t i)
{
    prefetch_ahead(at->p + i, sizeof(float), kind.core);
    prefetch_ahead(at->m + i, sizeof(float), kind.core);
    prefetch_ahead(at->v + i, sizeof(float), kind.core);
    prefetch_g(s, kind, start + i);
}

/* n elements from index `start`, a multiple of WIDTH and at most SPAN, but for the late ones. */
INLINE void step_span(const struct source *s, struct kind kind, size_t start, size_t n, const struct target *t,
                      struct span *old)
{
    const struct place at = {.c = s->c, .p = t->p + start, .m = t->m + start, .v = t->v + start, .old = old};
    __m512 nan = _mm512_set1_ps(0); /* NaN if any master is */
    old->late[(n - 1) / 64] = 0;    /* of the last word only a part may be written below */
    prefetch_all(&at, s, kind, start, 0);
    struct begun b = begin(&at, &s->d, kind, finish_g(&at.c, kind, sum_inputs(s, kind, start)), 0);
    _Pragma("GCC unroll 2") for (size_t i = WIDTH; i < n; i += WIDTH)
    {
        prefetch_all(&at, s, kind, start, i);
        struct begun next = begin(&at, &s->d, kind, finish_g(&at.c, kind, sum_inputs(s, kind, start + i)), i);
        nan = _mm512_add_ps(nan, end(&at, b, i - WIDTH));
        b = next;
    }
    nan = _mm512_add_ps(nan, end(&at, b, n - WIDTH));
    for (size_t i = n; kind.core == ZEN5 && i < n + MORE; i += WIDTH)
        prefetch_all(&at, s, kind, start, i);
    /* Those of m and v too, since each goes into its master; Inf - Inf is one more look. */
    if (_mm512_cmp_ps_mask(nan, nan, _CMP_UNORD_Q) != 0) {
        settle(at.p, n);
        settle(at.m, n);
        settle(at.v, n);
    }
}

INLINE __m256 pick(const any_f32 *x, const uint16_t *at)
{
    return (__m256){x[at[0]], x[at[1]], x[at[2]], x[at[3]], x[at[4]], x[at[5]], x[at[6]], x[at[7]]};
}

INLINE __m512 pick_16(const void *data, enum amp_dtype dtype, size_t start, const uint16_t *at)
{
    const any_u16 *x = (const any_u16 *)data + start;
    sixteen_u16 half = {x[at[0]], x[at[1]], x[at[2]], x[at[3]], x[at[4]], x[at[5]], x[at[6]], x[at[7]]};
    return widen(&half, dtype);
}

/* Eight elements of g, times clip. */
INLINE __m512d pick_g(const struct source *s, struct kind kind, size_t start, const uint16_t *at)
{
    __m512 x;
    if (kind.dtype == AMP_F32)
        x = _mm512_castps256_ps512(pick((const any_f32 *)s->data[0] + start, at));
    else
        x = pick_16(s->data[0], kind.dtype, start, at);
    for (unsigned j = 1; kind.many && j < s->count; j++)
        x = _mm512_add_ps(x, pick_16(s->data[j], kind.dtype, start, at));
    return low_half(finish_g(&s->c, kind, x));
}

INLINE __m512d pick_pd(const any_f32 *x, const uint16_t *at)
{
    return _mm512_cvtps_pd(pick(x, at));
}

/* The masters of the elements in `at`, behind which is room for a turn more. */
INLINE void redo_few(const struct source *s, struct kind kind, size_t start, const struct target *t,
                     const struct span *old, uint16_t *at, size_t count)
{
    any_f32 *p = t->p + start;
    for (size_t j = 0; j < PICKED - 1; j++)
        at[count + j] = at[count - 1];
    for (size_t i = 0; i < count; i += PICKED) {
        prefetch_late(s, kind, t, start, i, PICKED);
        __m512d g = pick_g(s, kind, start, at + i), p0 = pick_pd(p, at + i);
        __m512d p1 = in_double(&s->d, kind, g, p0, pick_pd(old->m, at + i), pick_pd(old->v, at + i));
        __m256 y = _mm512_castps512_ps256(canonical(join_halves(p1, p1)));
        _Pragma("GCC unroll 8") for (size_t j = 0; j < PICKED; j++) p[at[i + j]] = y[j];
    }
}

/* Where many elements need double all are computed, and those taken that do. */
INLINE void redo_many(const struct source *s, struct kind kind, size_t start, size_t n, float *p,
                      const struct span *old)
{
    for (size_t i = 0; i < n; i += WIDTH) {
        __m512 x = finish_g(&s->c, kind, sum_inputs(s, kind, start + i));
        __m512 p0 = _mm512_loadu_ps(p + i), m0 = _mm512_loadu_ps(old->m + i), v0 = _mm512_loadu_ps(old->v + i);
        __m512d low = in_double(&s->d, kind, low_half(x), low_half(p0), low_half(m0), low_half(v0));
        __m512d high = in_double(&s->d, kind, high_half(x), high_half(p0), high_half(m0), high_half(v0));
        __mmask16 late = ((const uint16_t *)old->late)[i / WIDTH];
        _mm512_storeu_ps(p + i, _mm512_mask_blend_ps(late, p0, canonical(join_halves(low, high))));
    }
}

/* The cast of n masters, a multiple of 2 * WIDTH, past the caches. Returns the largest as bits. */
INLINE uint32_t stream_16(uint16_t *copy, enum amp_dtype dtype, const float *p, size_t n)
{
    __m512i most = _mm512_setzero_si512();
    for (size_t i = 0; i < n; i += 2 * (size_t)WIDTH) {
        __m512 a = _mm512_loadu_ps(p + i), b = _mm512_loadu_ps(p + i + WIDTH);
        __m512i sizes = _mm512_max_epu32(magnitude(a), magnitude(b));
        most = _mm512_max_epu32(most, sizes);
        _mm512_stream_si512((void *)(copy + i), narrow_canonical(a, b, dtype));
    }
    return _mm512_reduce_max_epu32(most);
}

#define KERNELS amp_kernels_avx512
#include "amp/kernels/x86_adam_run.h"

void amp_avx512_apply_adamw(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    apply(k, AMP_OPT_ADAMW, n, g, p, m, v);
}

void amp_avx512_apply_adam(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    apply(k, AMP_OPT_ADAM, n, g, p, m, v);
}

uint32_t amp_avx512_apply_pass_adamw(const struct amp_apply_scalars *k, const struct amp_pass_in *in,
                                     enum amp_dtype cast, float *p, float *m, float *v, void *copy)
{
    return apply_pass(k, AMP_OPT_ADAMW, in, cast, p, m, v, copy);
}

uint32_t amp_avx512_apply_pass_adam(const struct amp_apply_scalars *k, const struct amp_pass_in *in,
                                    enum amp_dtype cast, float *p, float *m, float *v, void *copy)
{
    return apply_pass(k, AMP_OPT_ADAM, in, cast, p, m, v, copy);
}
