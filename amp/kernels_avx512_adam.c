/*
 * Adam and AdamW for AVX-512: the reference's operations in the reference's order, so the same bits, and no fused
 * multiply-add.
 *
 * One loop over sixteen elements at a time, from the staged gradient to the new state, which keeps the divider and the
 * memory busy all the while: it asks for the lines that come later, and has no branch. (Where a tile is formed, applied
 * and cast in turns, the memory rests whenever a turn has all that it needs.) Two things follow each span:
 *
 * - the elements that the guard sends to double. They are few and anywhere, so that a branch at each would be guessed
 *   wrong: the loop keeps the span's old state and a list of them, and they are computed eight at a time;
 * - the cast of the span's masters.
 *
 * To do these two a span later, when what they wait for has come, and to ask for each line at both cache levels, took
 * 1.2 times as long on Zen 5.
 */
#include "amp/kernels_avx512_adam.h"

#include "amp/pass.h"

#include <immintrin.h>

#define WIDTH 16

/* 16-bit elements of a line. */
#define LINE 32

/* Elements of a span: with its old state it stays in a first cache level of 32 KiB until it is cast. */
#define SPAN 512

/* Elements ahead of the loop that are asked for. */
#define AHEAD 512

/* Elements of g that are formed at once where there are several inputs. */
#define TILE 1024

/* A span before the step, and which of its elements are late. */
struct span {
    _Alignas(64) float g[SPAN]; /* times clip */
    float p[SPAN];
    float m[SPAN];
    float v[SPAN];
    uint32_t late[SPAN + WIDTH]; /* indices; a vector more, since whole vectors are written */
    size_t late_count;
};

/* Inputs of one dtype that are summed in a register; more of them go by tiles. */
#define INPUTS_MAX 16

/* Where the gradient comes from: sixteen bits of each worker, to be summed, or one f32; both to be unscaled. */
struct source {
    const struct amp_apply_scalars *k;
    const void *data[INPUTS_MAX];
    unsigned count;
    float factor;
    float limit;
};

/* What a loop is made for. */
struct kind {
    enum amp_dtype dtype; /* f32: one input, not clamped; coupled is only that */
    bool many;            /* inputs */
    bool clamp;
    bool couple;
};

struct target {
    float *p, *m, *v;
    void *copy; /* NULL: no cast */
    enum amp_dtype cast;
    bool stream; /* copy begins with a whole line */
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

/* The masters of a span's late elements, to their places. */
static void apply_late(const struct amp_apply_scalars *k, bool couple, const struct span *old, float *p)
{
    for (size_t i = 0; i < old->late_count; i += WIDTH) {
        size_t rest = old->late_count - i;
        __mmask16 live = (__mmask16)(rest < WIDTH ? (1u << rest) - 1 : 0xffffu);
        __m512i at = _mm512_maskz_loadu_epi32(live, old->late + i);
        __m512 g0 = _mm512_i32gather_ps(at, old->g, 4), p0 = _mm512_i32gather_ps(at, old->p, 4);
        __m512 m0 = _mm512_i32gather_ps(at, old->m, 4), v0 = _mm512_i32gather_ps(at, old->v, 4);
        __m512d low = in_double(k, couple, low_half(g0), low_half(p0), low_half(m0), low_half(v0));
        __m512d high = low;
        if (rest > WIDTH / 2)
            high = in_double(k, couple, high_half(g0), high_half(p0), high_half(m0), high_half(v0));
        _mm512_mask_i32scatter_ps(p, live, at, canonical(join_halves(low, high)), 4);
    }
}

/* NaN of n elements, a multiple of WIDTH, made canonical. */
static void settle(float *x, size_t n)
{
    for (size_t i = 0; i < n; i += WIDTH)
        _mm512_storeu_ps(x + i, canonical(_mm512_loadu_ps(x + i)));
}

/*
 * GCC takes a function that only asks for memory for one without effect, and drops calls that are not inlined at once.
 */
static inline __attribute__((always_inline)) void ask(const float *at)
{
    _mm_prefetch((const char *)(at + AHEAD), _MM_HINT_T0);
}

/* Scalars in registers: a store might change what memory holds. */
struct constants {
    __m512 factor, high, low, clip;
    __m512 beta1, rest1, beta2, rest2, eps, rate, decay, guard_rate, guard_keep, guard_min;
};

static inline __attribute__((always_inline)) struct constants constants_of(const struct source *s)
{
    const struct amp_apply_scalars *k = s->k;
    return (struct constants){.factor = _mm512_set1_ps(s->factor),
                              .high = _mm512_set1_ps(s->limit),
                              .low = _mm512_set1_ps(-s->limit),
                              .clip = _mm512_set1_ps(k->clip),
                              .beta1 = _mm512_set1_ps(k->beta1_f),
                              .rest1 = _mm512_set1_ps(k->rest1_f),
                              .beta2 = _mm512_set1_ps(k->beta2_f),
                              .rest2 = _mm512_set1_ps(k->rest2_f),
                              .eps = _mm512_set1_ps(k->eps_f),
                              .rate = _mm512_set1_ps(k->rate_f),
                              .decay = _mm512_set1_ps(k->decay_f),
                              .guard_rate = _mm512_set1_ps(k->guard_rate),
                              .guard_keep = _mm512_set1_ps(k->guard_keep),
                              .guard_min = _mm512_set1_ps(AMP_ADAMW_GUARD_MIN)};
}

static inline __attribute__((always_inline)) __m512 widen(const void *data, enum amp_dtype dtype, size_t i)
{
    const uint16_t *at = (const uint16_t *)data + i;
    _mm_prefetch((const char *)(at + AHEAD), _MM_HINT_T0);
    __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)at);
    if (dtype == AMP_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Sixteen elements of g from index i, times clip. `many`: there may be more than one input. */
static inline __attribute__((always_inline)) __m512 load_g(const struct constants *c, const struct source *s,
                                                           struct kind kind, size_t i)
{
    if (kind.dtype == AMP_F32) {
        const float *g = (const float *)s->data[0] + i;
        ask(g);
        return _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(g), c->factor), c->clip);
    }
    __m512 x = widen(s->data[0], kind.dtype, i);
    for (unsigned j = 1; kind.many && j < s->count; j++)
        x = _mm512_add_ps(x, widen(s->data[j], kind.dtype, i));
    x = _mm512_mul_ps(x, c->factor);
    /* min(a, b) is a < b ? a : b, so that NaN and the sign of zero come from x. */
    if (kind.clamp)
        x = _mm512_max_ps(c->low, _mm512_min_ps(c->high, x));
    return _mm512_mul_ps(x, c->clip);
}

/* Where a span is. */
struct place {
    float *p, *m, *v;
    struct span *old;
    size_t late_count;
    __m512i at; /* indices of the next sixteen elements */
    __m512 nan; /* NaN if any master is */
};

/* Sixteen elements, at index i of the span, but for the late ones. */
static inline __attribute__((always_inline)) void step_vector(const struct constants *c,
                                                              const struct amp_apply_scalars *k, bool couple, __m512 x,
                                                              size_t i, struct place *s)
{
    __m512 p0 = _mm512_loadu_ps(s->p + i), m0 = _mm512_loadu_ps(s->m + i), v0 = _mm512_loadu_ps(s->v + i);
    _mm512_storeu_ps(s->old->g + i, x);
    _mm512_storeu_ps(s->old->p + i, p0);
    _mm512_storeu_ps(s->old->m + i, m0);
    _mm512_storeu_ps(s->old->v + i, v0);
    if (couple)
        x = join_halves(coupled(k, low_half(x), low_half(p0)), coupled(k, high_half(x), high_half(p0)));
    __m512 old_m = _mm512_mul_ps(c->beta1, m0);
    __m512 new_m = _mm512_mul_ps(c->rest1, x);
    __m512 m1 = _mm512_add_ps(old_m, new_m);
    __m512 v1 = _mm512_add_ps(_mm512_mul_ps(c->beta2, v0), _mm512_mul_ps(c->rest2, _mm512_mul_ps(x, x)));
    __m512 divisor = _mm512_add_ps(_mm512_sqrt_ps(v1), c->eps);
    __m512 sizes = _mm512_add_ps(absolute(old_m), absolute(new_m));
    __m512 bound = _mm512_add_ps(_mm512_mul_ps(c->guard_rate, sizes), c->guard_min);
    __m512 guard = _mm512_mul_ps(_mm512_mul_ps(absolute(p0), divisor), c->guard_keep);
    __m512 quotient = _mm512_div_ps(_mm512_mul_ps(c->rate, m1), divisor);
    __m512 p1 = _mm512_sub_ps(p0, _mm512_add_ps(quotient, _mm512_mul_ps(c->decay, p0)));
    __mmask16 late = (__mmask16)~_mm512_cmp_ps_mask(guard, bound, _CMP_GE_OQ);
    s->nan = _mm512_add_ps(s->nan, p1);
    _mm512_storeu_ps(s->m + i, m1);
    _mm512_storeu_ps(s->v + i, v1);
    _mm512_storeu_ps(s->p + i, p1);
    _mm512_storeu_si512(s->old->late + s->late_count, _mm512_maskz_compress_epi32(late, s->at));
    s->at = _mm512_add_epi32(s->at, _mm512_set1_epi32(WIDTH));
    s->late_count += (unsigned)__builtin_popcount(late);
}

/* n elements from index `start`, a multiple of WIDTH and at most SPAN, but for the late ones. */
static inline __attribute__((always_inline)) void step_span(const struct source *s, struct kind kind, size_t start,
                                                            size_t n, const struct target *t, struct span *old)
{
    const struct constants c = constants_of(s);
    struct place place = {t->p + start,
                          t->m + start,
                          t->v + start,
                          old,
                          0,
                          _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                          _mm512_set1_ps(0)};
    for (size_t i = 0; i < n; i += WIDTH) {
        ask(place.p + i);
        ask(place.m + i);
        ask(place.v + i);
        step_vector(&c, s->k, kind.couple, load_g(&c, s, kind, start + i), i, &place);
    }
    old->late_count = place.late_count;
    /* Those of m and v too, since each goes into its master; Inf - Inf is one more look. */
    if (_mm512_cmp_ps_mask(place.nan, place.nan, _CMP_UNORD_Q) != 0) {
        settle(place.p, n);
        settle(place.m, n);
        settle(place.v, n);
    }
}

/* Sixteen masters, whose NaN are canonical, and so become the canonical one of either dtype. */
static inline __attribute__((always_inline)) __m256i narrow(__m512 x, enum amp_dtype dtype)
{
    if (dtype == AMP_F16)
        return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

/* The cast of n masters, a multiple of LINE, past the caches. Returns the largest as bits. */
static inline __attribute__((always_inline)) uint32_t stream_16(uint16_t *copy, enum amp_dtype dtype, const float *p,
                                                                size_t n)
{
    __m512i most = _mm512_setzero_si512();
    for (size_t i = 0; i < n; i += LINE) {
        __m512 a = _mm512_loadu_ps(p + i), b = _mm512_loadu_ps(p + i + WIDTH);
        __m512i sizes = _mm512_max_epu32(_mm512_castps_si512(absolute(a)), _mm512_castps_si512(absolute(b)));
        most = _mm512_max_epu32(most, sizes);
        __m512i low = _mm512_castsi256_si512(narrow(a, dtype));
        _mm512_stream_si512((void *)(copy + i), _mm512_inserti64x4(low, narrow(b, dtype), 1));
    }
    return _mm512_reduce_max_epu32(most);
}

static uint32_t cast_span(const struct target *t, size_t start, size_t n)
{
    const float *p = t->p + start;
    if (t->stream && n % LINE == 0 && t->cast != AMP_F32) {
        uint16_t *copy = (uint16_t *)t->copy + start;
        return t->cast == AMP_F16 ? stream_16(copy, AMP_F16, p, n) : stream_16(copy, AMP_BF16, p, n);
    }
    return amp_kernels_avx512.store[t->cast]((char *)t->copy + start * amp_dtype_size(t->cast), p, n);
}

/* What is done to a span after the loop over it. Returns the largest master as bits where there is a cast. */
static uint32_t finish(const struct source *s, bool couple, size_t start, size_t n, const struct target *t,
                       const struct span *old)
{
    apply_late(s->k, couple, old, t->p + start);
    return t->copy ? cast_span(t, start, n) : 0;
}

static size_t part(size_t start, size_t n)
{
    return n - start < SPAN ? n - start : SPAN;
}

/* n elements, a multiple of WIDTH. */
static inline __attribute__((always_inline)) uint32_t run(const struct source *s, struct kind kind, size_t n,
                                                          const struct target *t)
{
    struct span old;
    uint32_t largest = 0;
    for (size_t start = 0; start < n; start += SPAN) {
        step_span(s, kind, start, part(start, n), t, &old);
        uint32_t bits = finish(s, kind.couple, start, part(start, n), t, &old);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

/* A loop for each kind of source. */
#define RUN(...) run(s, (struct kind){__VA_ARGS__}, n, t)

static uint32_t run_16(const struct source *s, enum amp_dtype dtype, bool clamp, size_t n, const struct target *t)
{
    if (s->count == 1) {
        if (dtype == AMP_F16)
            return clamp ? RUN(.dtype = AMP_F16, .clamp = true) : RUN(.dtype = AMP_F16);
        return clamp ? RUN(.dtype = AMP_BF16, .clamp = true) : RUN(.dtype = AMP_BF16);
    }
    if (dtype == AMP_F16)
        return clamp ? RUN(.dtype = AMP_F16, .many = true, .clamp = true) : RUN(.dtype = AMP_F16, .many = true);
    return clamp ? RUN(.dtype = AMP_BF16, .many = true, .clamp = true) : RUN(.dtype = AMP_BF16, .many = true);
}

static uint32_t run_32(const struct source *s, bool couple, size_t n, const struct target *t)
{
    return couple ? RUN(.dtype = AMP_F32, .couple = true) : RUN(.dtype = AMP_F32);
}

static bool couples(const struct amp_apply_scalars *k, enum amp_optimizer optimizer)
{
    return optimizer == AMP_OPT_ADAM && k->weight_decay != 0;
}

static void apply(const struct amp_apply_scalars *k, enum amp_optimizer optimizer, size_t n, const float *g, float *p,
                  float *m, float *v)
{
    struct source source = {.k = k, .data = {g}, .count = 1, .factor = 1};
    struct target target = {.p = p, .m = m, .v = v};
    size_t whole = n - n % WIDTH;
    (void)run_32(&source, couples(k, optimizer), whole, &target);
    amp_kernels_ref.apply[optimizer](k, n - whole, g + whole, p + whole, m + whole, v + whole);
}

void amp_avx512_apply_adamw(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    apply(k, AMP_OPT_ADAMW, n, g, p, m, v);
}

void amp_avx512_apply_adam(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    apply(k, AMP_OPT_ADAM, n, g, p, m, v);
}

/* The elements from `start` on, with g formed a tile at a time. */
static uint32_t step_tiles(const struct amp_apply_scalars *k, enum amp_optimizer optimizer,
                           const struct amp_pass_in *in, size_t start, const struct target *t)
{
    _Alignas(64) float g[TILE];
    uint32_t largest = 0;
    for (; start < in->count; start += TILE) {
        size_t n = in->count - start < TILE ? in->count - start : TILE;
        (void)amp_kernels_avx512.form(in->inputs, in->inputs_count, in->equal_weights, in->coefficient, start, n, g);
        if (in->clip_value_set)
            amp_kernels_avx512.clip_value(g, in->clip_value, n);
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
    bool can =
        dtype == AMP_F32 ? in->inputs_count == 1 && !in->clip_value_set : in->inputs_count <= INPUTS_MAX && !couple;
    for (unsigned j = 0; j < in->inputs_count; j++)
        can = can && in->inputs[j].dtype == dtype && (in->equal_weights || in->inputs[j].weight == 1.0f);
    return can;
}

static uint32_t step(const struct amp_apply_scalars *k, enum amp_optimizer optimizer, const struct amp_pass_in *in,
                     enum amp_dtype cast, float *p, float *m, float *v, void *copy)
{
    struct target target = {
        .p = p, .m = m, .v = v, .copy = copy, .cast = cast, .stream = (uintptr_t)copy % (LINE * sizeof(uint16_t)) == 0};
    struct source source = {.k = k, .count = in->inputs_count, .factor = in->coefficient, .limit = in->clip_value};
    bool couple = couples(k, optimizer);
    size_t whole = 0;
    uint32_t largest = 0;
    if (direct(in, couple)) {
        for (unsigned j = 0; j < in->inputs_count; j++)
            source.data[j] = in->inputs[j].data;
        whole = in->count - in->count % WIDTH;
        largest = in->inputs[0].dtype == AMP_F32
                      ? run_32(&source, couple, whole, &target)
                      : run_16(&source, in->inputs[0].dtype, in->clip_value_set, whole, &target);
    }
    uint32_t rest = step_tiles(k, optimizer, in, whole, &target);
    return rest > largest ? rest : largest;
}

uint32_t amp_avx512_step_adamw(const struct amp_apply_scalars *k, const struct amp_pass_in *in, enum amp_dtype cast,
                               float *p, float *m, float *v, void *copy)
{
    return step(k, AMP_OPT_ADAMW, in, cast, p, m, v, copy);
}

uint32_t amp_avx512_step_adam(const struct amp_apply_scalars *k, const struct amp_pass_in *in, enum amp_dtype cast,
                              float *p, float *m, float *v, void *copy)
{
    return step(k, AMP_OPT_ADAM, in, cast, p, m, v, copy);
}
