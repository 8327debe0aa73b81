/*
 * Adam and AdamW for AVX2: the reference's operations in the reference's order, so the same bits.
 *
 * One loop over eight elements at a time, from the staged gradient to the new state, without a branch. It begins a vector while
 * the root of the one before is under way: in one chain, what waits for root and quotient would fill the processor's schedulers
 * long before its units. Two things follow a span later:
 *
 * - the elements that the guard sends to double. They are few and anywhere, so that a branch at each would be guessed wrong: the
 *   loop keeps a bit for each, the old moments of all, and leaves the masters of these as they were. Then they are listed, four
 *   to a turn without a branch, and computed four at a time;
 * - the cast of the span's masters, past the caches.
 *
 * Nothing is asked for ahead: on Zen 3 the processor's own prefetch is as good.
 */
#include "amp/kernels_avx2_adam.h"

#include "amp/pass.h"

#include <immintrin.h>
#include <math.h>

#define WIDTH   8
#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

/* Elements of a span: more make lists and casts cheaper, and twice as many would leave the first cache level. */
#define SPAN 512

/* Of more late elements than these in a span the vectors are cheaper than the picking. */
#define MANY_LATE (SPAN / 4)

/* Late elements that are listed, and computed, in a turn. */
#define PICKED 4

/* Elements of g that are formed at once where the loop cannot form them. */
#define TILE 1024

#define INLINE static inline __attribute__((always_inline))

/* An element at any address. */
typedef float any_f32 __attribute__((aligned(1)));
typedef uint16_t any_u16 __attribute__((aligned(1)));

/* A span before the step, and which of its elements are late: a bit each. */
struct span {
    _Alignas(32) float m[SPAN];
    float v[SPAN];
    uint64_t late[SPAN / 64];
};

/* Inputs of one dtype that are summed in a register; more of them go by tiles. */
#define INPUTS_MAX 16

/* Scalars in registers, or a load away: of single precision, and of double. */
struct singles {
    __m256 factor, high, low, clip;
    __m256 beta1, rest1, beta2, rest2, eps, rate, decay, guard_rate, guard_keep, guard_min;
};

struct doubles {
    __m256d beta1, rest1, beta2, rest2, eps, rate, decay, weight_decay;
};

/* Where the gradient comes from: sixteen bits of each worker, to be summed, or one f32. */
struct source {
    const void *data[INPUTS_MAX];
    unsigned count;
    struct singles c;
    struct doubles d;
};

/* What a loop is made for. */
struct kind {
    enum amp_dtype dtype;
    bool many;    /* inputs, of 16 bits */
    bool scaled;  /* by factor; sixteen bits always are */
    bool clamped; /* by value, if only to infinity, and then times clip */
    bool coupled; /* weight decay as part of the gradient */
};

struct target {
    float *p, *m, *v;
    void *copy; /* NULL: no cast */
    enum amp_dtype cast;
    bool stream; /* copy begins with a whole vector */
};

INLINE __m256 absolute(__m256 x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

static __m256 canonical(__m256 x)
{
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32((int)AMP_F32_NAN)), nan);
}

INLINE __m256d low_half(__m256 x)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
}

INLINE __m256d high_half(__m256 x)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}

INLINE __m256 join_halves(__m256d low, __m256d high)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(low)), _mm256_cvtpd_ps(high), 1);
}

INLINE __m256d with_decay(const struct doubles *d, __m256d g, __m256d p)
{
    return _mm256_add_pd(g, _mm256_mul_pd(d->weight_decay, p));
}

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

INLINE __m256 widen(const void *data, enum amp_dtype dtype)
{
    __m128i half = _mm_loadu_si128(data);
    if (dtype == AMP_F16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

INLINE __m256 finish_g(const struct singles *c, struct kind kind, __m256 x)
{
    if (kind.scaled)
        x = _mm256_mul_ps(x, c->factor);
    /* min(a, b) is a < b ? a : b, so that NaN and the sign of zero come from x. */
    if (kind.clamped)
        x = _mm256_mul_ps(_mm256_max_ps(c->low, _mm256_min_ps(c->high, x)), c->clip);
    return x;
}

/* Eight elements of the inputs' sum from index i. */
INLINE __m256 sum_inputs(const struct source *s, struct kind kind, size_t i)
{
    if (kind.dtype == AMP_F32)
        return _mm256_loadu_ps((const float *)s->data[0] + i);
    __m256 x = widen((const uint16_t *)s->data[0] + i, kind.dtype);
    for (unsigned j = 1; kind.many && j < s->count; j++)
        x = _mm256_add_ps(x, widen((const uint16_t *)s->data[j] + i, kind.dtype));
    return x;
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

/* Stands for an element when all are listed. */
#define LAST ((uint64_t)1 << 63)

/* The indices of a span's late elements, and some more behind them. Returns how many. */
static size_t list_late(const struct span *old, size_t n, uint16_t *at)
{
    size_t count = 0;
    for (size_t w = 0; w < (n + 63) / 64; w++) {
        uint64_t bits = old->late[w];
        size_t end = count + (size_t)__builtin_popcountll(bits);
        /* One turn is nearly always enough and never too much: what is listed beyond the end is overwritten. */
        do {
            for (size_t j = 0; j < PICKED; j++) {
                bits |= LAST;
                at[count + j] = (uint16_t)(w * 64 + (size_t)__builtin_ctzll(bits));
                bits &= bits - 1;
            }
            count += PICKED;
        } while (count < end);
        count = end;
    }
    return count;
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

INLINE void put(any_f32 *x, const uint16_t *at, __m128 y)
{
    x[at[0]] = _mm_cvtss_f32(y);
    x[at[1]] = _mm_cvtss_f32(_mm_movehdup_ps(y));
    x[at[2]] = _mm_cvtss_f32(_mm_movehl_ps(y, y));
    x[at[3]] = _mm_cvtss_f32(_mm_shuffle_ps(y, y, 0xff));
}

/* The masters of the elements in `at`; behind them is room for PICKED - 1 more. */
INLINE void redo_few(const struct source *s, struct kind kind, size_t start, any_f32 *p, const struct span *old,
                     uint16_t *at, size_t count)
{
    for (size_t j = 0; j < PICKED - 1; j++)
        at[count + j] = at[count - 1];
    for (size_t i = 0; i < count; i += PICKED) {
        __m256d g = pick_g(s, kind, start, at + i), p0 = pick_pd(p, at + i);
        __m256d p1 = in_double(&s->d, kind, g, p0, pick_pd(old->m, at + i), pick_pd(old->v, at + i));
        put(p, at + i, _mm256_castps256_ps128(canonical(join_halves(p1, p1))));
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
    uint16_t at[SPAN + PICKED];
    size_t count = list_late(old, n, at);
    if (count > MANY_LATE)
        redo_many(s, kind, start, n, p, old);
    else if (count > 0)
        redo_few(s, kind, start, p, old, at, count);
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

static uint32_t cast_span(const struct target *t, size_t start, size_t n)
{
    const float *p = t->p + start;
    if (t->stream && n % (2 * (size_t)WIDTH) == 0 && t->cast != AMP_F32) {
        uint16_t *copy = (uint16_t *)t->copy + start;
        return t->cast == AMP_F16 ? stream_16(copy, AMP_F16, p, n) : stream_16(copy, AMP_BF16, p, n);
    }
    return amp_kernels_avx2.store[t->cast]((char *)t->copy + start * amp_dtype_size(t->cast), p, n);
}

static size_t part(size_t start, size_t n)
{
    return n - start < SPAN ? n - start : SPAN;
}

/* What is done to a span when the next one has been begun. Returns the largest master as bits where there is a cast. */
INLINE uint32_t finish(const struct source *s, struct kind kind, size_t start, size_t n, const struct target *t,
                       const struct span *old)
{
    redo_late(s, kind, start, n, t->p + start, old);
    return t->copy ? cast_span(t, start, n) : 0;
}

/* n elements, a multiple of WIDTH. Returns the largest master as bits where there is a cast. */
INLINE uint32_t run(const struct source *s, struct kind kind, size_t n, const struct target *t)
{
    struct span spans[2];
    uint32_t largest = 0;
    for (size_t start = 0; start < n + SPAN; start += SPAN) {
        size_t turn = start / SPAN % 2;
        if (start < n)
            step_span(s, kind, start, part(start, n), t, &spans[turn]);
        if (start == 0)
            continue;
        uint32_t bits = finish(s, kind, start - SPAN, part(start - SPAN, n), t, &spans[!turn]);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

/* A loop for each kind of source; those without a clip have the fewest products. */
#define RUN(...) run(s, (struct kind){__VA_ARGS__}, n, t)

static uint32_t run_f16(const struct source *s, bool clips, size_t n, const struct target *t)
{
    if (s->count > 1)
        return RUN(.dtype = AMP_F16, .scaled = true, .clamped = true, .many = true);
    return clips ? RUN(.dtype = AMP_F16, .scaled = true, .clamped = true) : RUN(.dtype = AMP_F16, .scaled = true);
}

static uint32_t run_bf16(const struct source *s, bool clips, size_t n, const struct target *t)
{
    if (s->count > 1)
        return RUN(.dtype = AMP_BF16, .scaled = true, .clamped = true, .many = true);
    return clips ? RUN(.dtype = AMP_BF16, .scaled = true, .clamped = true) : RUN(.dtype = AMP_BF16, .scaled = true);
}

static uint32_t run_f32(const struct source *s, bool clips, bool couple, size_t n, const struct target *t)
{
    if (couple)
        return RUN(.dtype = AMP_F32, .scaled = true, .clamped = true, .coupled = true);
    return clips ? RUN(.dtype = AMP_F32, .scaled = true, .clamped = true) : RUN(.dtype = AMP_F32);
}

static bool couples(const struct amp_apply_scalars *k, enum amp_optimizer optimizer)
{
    return optimizer == AMP_OPT_ADAM && k->weight_decay != 0;
}

/* limit: Inf where there is none. */
static void set_scalars(struct source *s, const struct amp_apply_scalars *k, float factor, float limit)
{
    s->c = (struct singles){.factor = _mm256_set1_ps(factor),
                            .high = _mm256_set1_ps(limit),
                            .low = _mm256_set1_ps(-limit),
                            .clip = _mm256_set1_ps(k->clip),
                            .beta1 = _mm256_set1_ps(k->beta1_f),
                            .rest1 = _mm256_set1_ps(k->rest1_f),
                            .beta2 = _mm256_set1_ps(k->beta2_f),
                            .rest2 = _mm256_set1_ps(k->rest2_f),
                            .eps = _mm256_set1_ps(k->eps_f),
                            .rate = _mm256_set1_ps(k->rate_f),
                            .decay = _mm256_set1_ps(k->decay_f),
                            .guard_rate = _mm256_set1_ps(k->guard_rate),
                            .guard_keep = _mm256_set1_ps(k->guard_keep),
                            .guard_min = _mm256_set1_ps(AMP_ADAMW_GUARD_MIN)};
    s->d = (struct doubles){.beta1 = _mm256_set1_pd(k->beta1),
                            .rest1 = _mm256_set1_pd(k->rest1),
                            .beta2 = _mm256_set1_pd(k->beta2),
                            .rest2 = _mm256_set1_pd(k->rest2),
                            .eps = _mm256_set1_pd(k->eps),
                            .rate = _mm256_set1_pd(k->rate),
                            .decay = _mm256_set1_pd(k->decay),
                            .weight_decay = _mm256_set1_pd(k->weight_decay)};
}

static void apply(const struct amp_apply_scalars *k, enum amp_optimizer optimizer, size_t n, const float *g, float *p,
                  float *m, float *v)
{
    struct source source = {.data = {g}, .count = 1};
    struct target target = {.p = p, .m = m, .v = v};
    size_t whole = n - n % WIDTH;
    set_scalars(&source, k, 1, INFINITY);
    (void)run_f32(&source, k->clip != 1, couples(k, optimizer), whole, &target);
    amp_kernels_ref.apply[optimizer](k, n - whole, g + whole, p + whole, m + whole, v + whole);
}

void amp_avx2_apply_adamw(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    apply(k, AMP_OPT_ADAMW, n, g, p, m, v);
}

void amp_avx2_apply_adam(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    apply(k, AMP_OPT_ADAM, n, g, p, m, v);
}

/* The elements from `start` on, with g formed a tile at a time. */
static uint32_t step_tiles(const struct amp_apply_scalars *k, enum amp_optimizer optimizer,
                           const struct amp_pass_in *in, size_t start, const struct target *t)
{
    _Alignas(32) float g[TILE];
    uint32_t largest = 0;
    for (; start < in->count; start += TILE) {
        size_t n = in->count - start < TILE ? in->count - start : TILE;
        (void)amp_kernels_avx2.form(in->inputs, in->inputs_count, in->equal_weights, in->coefficient, start, n, g);
        if (in->clip_value_set)
            amp_kernels_avx2.clip_value(g, in->clip_value, n);
        apply(k, optimizer, n, g, t->p + start, t->m + start, t->v + start);
        uint32_t bits = cast_span(t, start, n);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

/* Whether the loop can make g of the inputs itself. */
static bool direct(const struct amp_pass_in *in, bool couple)
{
    enum amp_dtype dtype = in->inputs[0].dtype;
    bool can = dtype == AMP_F32 ? in->inputs_count == 1 : in->inputs_count <= INPUTS_MAX && !couple;
    for (unsigned j = 0; j < in->inputs_count; j++)
        can = can && in->inputs[j].dtype == dtype && (in->equal_weights || in->inputs[j].weight == 1.0f);
    return can;
}

static uint32_t step(const struct amp_apply_scalars *k, enum amp_optimizer optimizer, const struct amp_pass_in *in,
                     enum amp_dtype cast, float *p, float *m, float *v, void *copy)
{
    struct target target = {
        .p = p, .m = m, .v = v, .copy = copy, .cast = cast, .stream = (uintptr_t)copy % sizeof(__m256i) == 0};
    struct source source = {.count = in->inputs_count};
    bool couple = couples(k, optimizer), clips = in->clip_value_set || k->clip != 1;
    size_t whole = 0;
    uint32_t largest = 0;
    if (direct(in, couple)) {
        enum amp_dtype dtype = in->inputs[0].dtype;
        set_scalars(&source, k, in->coefficient, in->clip_value_set ? in->clip_value : INFINITY);
        for (unsigned j = 0; j < in->inputs_count; j++)
            source.data[j] = in->inputs[j].data;
        whole = in->count - in->count % WIDTH;
        if (dtype == AMP_F32)
            largest = run_f32(&source, clips || in->coefficient != 1, couple, whole, &target);
        else
            largest = (dtype == AMP_F16 ? run_f16 : run_bf16)(&source, clips, whole, &target);
    }
    uint32_t rest = step_tiles(k, optimizer, in, whole, &target);
    return rest > largest ? rest : largest;
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
