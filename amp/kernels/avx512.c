/*
 * AVX-512 kernels (F, BW, DQ, VL): sixteen elements at a time, the same operations in the same order as the reference,
 * so the same bits. Faster because conversions, tests and square roots take one instruction for sixteen elements.
 *
 * - f16 goes through VCVTPH2PS and VCVTPS2PH, which keep denormals and round to nearest even; only NaN needs a second
 *   look.
 * - bf16 is rounded by integers: VCVTNEPS2BF16 would flush denormals.
 * - max(bits without sign) decides "all finite" in one comparison a tile; what is not finite is counted by the
 *   reference.
 * - No fused multiply-add, no reciprocal or root approximation.
 * - What goes past the caches goes by whole lines; what is widened, by several places in turns (PARTS).
 * - Tails of less than sixteen elements (more where loops take several vectors) are the reference's.
 */
#include "amp/kernels/avx512_parts.h"
#include "amp/kernels/form.h"

/*
 * Elements ahead of a loop that are prefetched: near enough to be still there when the loop comes, far enough to have
 * come.
 */
#define AHEAD       256
#define SCALE_AHEAD 512

/*
 * Widened past the caches a block goes by its four parts in turns, some lines each: one core's reads and its writes
 * past the caches overlap more that way than at one place. The parts of a block are so long that each turns a page
 * seldom.
 */
#define PARTS ((size_t)4)
#define PART  ((size_t)16384) /* elements */
#define VISIT ((size_t)64)    /* elements */

/* Elements of a cast to 16 bits that are tested for NaN at once. */
#define STORE_CHUNK ((size_t)128)

/*
 * Casts to 16 bits, which read twice what they write, go in one place. Intel's server cores have 0.96 of memcpy's speed
 * if lines are prefetched to both levels (0.86 by parts in turns, 0.81 if to the first level alone); Zen 5 has 1.1 if
 * nothing is, and 0.87 by parts. With 512 and 1536 ahead it took 1.1 times as long on model 167.
 */
#define STORE_AHEAD    320
#define STORE_AHEAD_L2 768

static __m256i narrow_f16(__m512 x)
{
    __m256i h = _mm512_cvtps_ph(x, NEAREST);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm256_mask_blend_epi16(nan, h, _mm256_set1_epi16(AMP_F16_NAN));
}

static __m256i narrow_bf16(__m512 x)
{
    __m256i h = _mm512_cvtepi32_epi16(round_bf16(x));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm256_mask_blend_epi16(nan, h, _mm256_set1_epi16(AMP_BF16_NAN));
}

/* Elements before the first whole line of dst, at most n: all of them where no line begins with an element. */
static size_t unaligned(const void *dst, size_t size, size_t n)
{
    size_t bytes = (LINE - (uintptr_t)dst % LINE) % LINE;
    return bytes % size != 0 || bytes / size > n ? n : bytes / size;
}

/* Past the caches: whole lines of dst, which then need not be read before they are written. */
#define LOAD_STREAM(NAME, DTYPE)                                                                                       \
    static inline void load_line_##NAME(float *dst, const uint16_t *src)                                               \
    {                                                                                                                  \
        _mm512_stream_ps(dst, canonical(widen(src, DTYPE)));                                                           \
        _mm512_stream_ps(dst + WIDTH, canonical(widen(src + WIDTH, DTYPE)));                                           \
    }                                                                                                                  \
    static void load_parts_##NAME(float *dst, const uint16_t *src)                                                     \
    {                                                                                                                  \
        for (size_t i = 0; i < PART; i += VISIT) {                                                                     \
            for (size_t j = i; j < PARTS * PART; j += PART) {                                                          \
                prefetch_l1(src + j + AHEAD, VISIT * sizeof *src);                                                     \
                load_line_##NAME(dst + j, src + j);                                                                    \
                load_line_##NAME(dst + j + VISIT / 2, src + j + VISIT / 2);                                            \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void load_stream_##NAME(float *dst, const void *src, size_t n)                                              \
    {                                                                                                                  \
        const uint16_t *s = src;                                                                                       \
        size_t i = unaligned(dst, sizeof *dst, n);                                                                     \
        amp_kernels_ref.load[DTYPE](dst, s, i);                                                                        \
        for (; i + PARTS * PART <= n; i += PARTS * PART)                                                               \
            load_parts_##NAME(dst + i, s + i);                                                                         \
        for (; i + VISIT / 2 <= n; i += VISIT / 2)                                                                     \
            load_line_##NAME(dst + i, s + i);                                                                          \
        amp_kernels_ref.load[DTYPE](dst + i, s + i, n - i);                                                            \
    }

LOAD_STREAM(f16, AMP_F16)
LOAD_STREAM(bf16, AMP_BF16)

/* From HEAD elements on by PUT. */
#define STORE32(NAME, HEAD, PUT)                                                                                       \
    static uint32_t NAME(void *dst, const float *src, size_t n)                                                        \
    {                                                                                                                  \
        float *d = dst;                                                                                                \
        __m512i most = _mm512_setzero_si512();                                                                         \
        size_t i = (HEAD);                                                                                             \
        uint32_t first = amp_kernels_ref.store[AMP_F32](d, src, i);                                                    \
        for (; i + WIDTH <= n; i += WIDTH) {                                                                           \
            __m512 x = _mm512_loadu_ps(src + i);                                                                       \
            most = _mm512_max_epu32(most, magnitude(x));                                                               \
            PUT(d + i, canonical(x));                                                                                  \
        }                                                                                                              \
        uint32_t tail = amp_kernels_ref.store[AMP_F32](d + i, src + i, n - i);                                         \
        return larger(larger(_mm512_reduce_max_epu32(most), first), tail);                                             \
    }

STORE32(store_f32, 0, _mm512_storeu_ps)
STORE32(store_stream_f32, unaligned(dst, sizeof(float), n), _mm512_stream_ps)

#define STORE16(NAME, DTYPE)                                                                                           \
    static inline __m512i line_##NAME(const float *src)                                                                \
    {                                                                                                                  \
        return join_16(narrow_##NAME(_mm512_loadu_ps(src)), narrow_##NAME(_mm512_loadu_ps(src + WIDTH)));              \
    }                                                                                                                  \
    INLINE void visit_##NAME(const float *src, __m512i line[4], __m512i *most)                                         \
    {                                                                                                                  \
        __m512i top = _mm512_setzero_si512();                                                                          \
        EACH_OF_4(u)                                                                                                   \
        {                                                                                                              \
            __m512 a = _mm512_loadu_ps(src + u * 2 * WIDTH), b = _mm512_loadu_ps(src + u * 2 * WIDTH + WIDTH);         \
            top = _mm512_max_epu32(top, _mm512_max_epu32(magnitude(a), magnitude(b)));                                 \
            line[u] = narrow_canonical(a, b, DTYPE);                                                                   \
        }                                                                                                              \
        if (_mm512_cmpgt_epu32_mask(top, _mm512_set1_epi32((int)AMP_F32_INF)) != 0)                                    \
            EACH_OF_4(u) line[u] = line_##NAME(src + u * 2 * WIDTH);                                                   \
        *most = _mm512_max_epu32(*most, top);                                                                          \
    }                                                                                                                  \
    static uint32_t store_##NAME(void *dst, const float *src, size_t n)                                                \
    {                                                                                                                  \
        uint16_t *d = dst;                                                                                             \
        __m512i line[4], most = _mm512_setzero_si512();                                                                \
        size_t i = 0;                                                                                                  \
        for (; i + STORE_CHUNK <= n; i += STORE_CHUNK) {                                                               \
            visit_##NAME(src + i, line, &most);                                                                        \
            EACH_OF_4(u) _mm512_storeu_si512(d + i + u * 2 * WIDTH, line[u]);                                          \
        }                                                                                                              \
        for (; i + WIDTH <= n; i += WIDTH) {                                                                           \
            __m512 x = _mm512_loadu_ps(src + i);                                                                       \
            most = _mm512_max_epu32(most, magnitude(x));                                                               \
            _mm256_storeu_si256((__m256i *)(void *)(d + i), narrow_##NAME(x));                                         \
        }                                                                                                              \
        uint32_t tail = amp_kernels_ref.store[DTYPE](d + i, src + i, n - i);                                           \
        return larger(_mm512_reduce_max_epu32(most), tail);                                                            \
    }                                                                                                                  \
    static uint32_t store_stream_##NAME(void *dst, const float *src, size_t n)                                         \
    {                                                                                                                  \
        uint16_t *d = dst;                                                                                             \
        __m512i line[4], most = _mm512_setzero_si512();                                                                \
        size_t i = unaligned(dst, sizeof *d, n);                                                                       \
        uint32_t first = amp_kernels_ref.store[DTYPE](d, src, i);                                                      \
        const bool prefetches = !ON_AMD;                                                                               \
        for (; i + STORE_CHUNK <= n; i += STORE_CHUNK) {                                                               \
            if (prefetches) {                                                                                          \
                prefetch_l1(src + i + STORE_AHEAD, STORE_CHUNK * sizeof *src);                                         \
                prefetch_l2(src + i + STORE_AHEAD_L2, STORE_CHUNK * sizeof *src);                                      \
            }                                                                                                          \
            visit_##NAME(src + i, line, &most);                                                                        \
            EACH_OF_4(u) _mm512_stream_si512((void *)(d + i + u * 2 * WIDTH), line[u]);                                \
        }                                                                                                              \
        uint32_t tail = store_##NAME(d + i, src + i, n - i);                                                           \
        return larger(larger(_mm512_reduce_max_epu32(most), first), tail);                                             \
    }

STORE16(f16, AMP_F16)
STORE16(bf16, AMP_BF16)

/* Largest magnitude, in the dtype's own bits, of a multiple of 16 (f32) or 32 (16 bits) elements. */
static uint32_t most_f32(const float *s, size_t n)
{
    __m512i most = _mm512_setzero_si512();
    for (size_t i = 0; i < n; i += WIDTH)
        most = _mm512_max_epu32(most, magnitude(_mm512_loadu_ps(s + i)));
    return _mm512_reduce_max_epu32(most);
}

static uint32_t most_16(const uint16_t *s, size_t n)
{
    __m512i sign = _mm512_set1_epi16(0x7fff);
    __m512i most = _mm512_setzero_si512();
    for (size_t i = 0; i < n; i += 32)
        most = _mm512_max_epu16(most, _mm512_and_si512(_mm512_loadu_si512(s + i), sign));
    __m512i low = _mm512_and_si512(most, _mm512_set1_epi32(0xffff));
    return _mm512_reduce_max_epu32(_mm512_max_epu32(low, _mm512_srli_epi32(most, 16)));
}

#include "amp/kernels/elements.h"

/*
 * Four vectors at a time: with fewer the loop does not keep the memory busy. Zen 5 has 1.0 of the speed of a loop
 * without the test if nothing is prefetched, and 0.91 if it is; of Zen 4, with prefetching, 0.90 to 0.97 is known.
 */
static uint32_t scale(float *dst, const float *src, float factor, size_t n)
{
    __m512 f = _mm512_set1_ps(factor);
    __m512i most[4];
    EACH_OF_4(u) most[u] = _mm512_setzero_si512();
    const bool prefetches = !ON_AMD;
    size_t i = 0;
    for (; i + VISIT <= n; i += VISIT) {
        if (prefetches)
            prefetch_l1(src + i + SCALE_AHEAD, VISIT * sizeof *src);
        EACH_OF_4(u)
        {
            __m512 x = canonical(_mm512_mul_ps(_mm512_loadu_ps(src + i + u * WIDTH), f));
            most[u] = _mm512_max_epu32(most[u], magnitude(x));
            _mm512_storeu_ps(dst + i + u * WIDTH, x);
        }
    }
    __m512i all = _mm512_max_epu32(_mm512_max_epu32(most[0], most[1]), _mm512_max_epu32(most[2], most[3]));
    uint32_t tail = amp_kernels_ref.scale(dst + i, src + i, factor, n - i);
    return larger(_mm512_reduce_max_epu32(all), tail);
}

/*
 * Inputs of one dtype whose sum is held in registers: more places in memory than these and they push each other out of
 * the cache.
 */
#define FORM_GROUP 8

/* Elements of a turn of the loop. */
#define FORM_TURN (4 * (size_t)WIDTH)

/*
 * What form does for inputs of one dtype, of which one group's sum goes on from g and ends there: `first` and `last`
 * say whether it begins, and whether it is multiplied. Equal weights need no product: it would be exact. `whole` is a
 * multiple of FORM_TURN.
 */
#define FORM(NAME, DTYPE, TYPE, TERM)                                                                                  \
    INLINE uint32_t group_##NAME(const struct amp_input *inputs, unsigned count, bool first, bool last, float factor,  \
                                 size_t start, size_t whole, float *g)                                                 \
    {                                                                                                                  \
        const TYPE *data[FORM_GROUP] = {NULL};                                                                         \
        __m512 f = _mm512_set1_ps(factor), sum[4];                                                                     \
        __m512i most = _mm512_setzero_si512();                                                                         \
        for (unsigned j = 0; j < count; j++)                                                                           \
            data[j] = (const TYPE *)inputs[j].data + start;                                                            \
        for (size_t i = 0; i < whole; i += FORM_TURN) {                                                                \
            prefetch_l1(data[0] + i + AHEAD, FORM_TURN * sizeof(TYPE));                                                \
            EACH_OF_4(u)                                                                                               \
            {                                                                                                          \
                __m512 term = TERM(inputs[0], widen(data[0] + i + u * WIDTH, DTYPE));                                  \
                sum[u] = first ? term : _mm512_add_ps(_mm512_loadu_ps(g + i + u * WIDTH), term);                       \
            }                                                                                                          \
            for (unsigned j = 1; j < count; j++) {                                                                     \
                prefetch_l1(data[j] + i + AHEAD, FORM_TURN * sizeof(TYPE));                                            \
                EACH_OF_4(u)                                                                                           \
                sum[u] = _mm512_add_ps(sum[u], TERM(inputs[j], widen(data[j] + i + u * WIDTH, DTYPE)));                \
            }                                                                                                          \
            if (last)                                                                                                  \
                EACH_OF_4(u)                                                                                           \
                {                                                                                                      \
                    sum[u] = canonical(_mm512_mul_ps(sum[u], f));                                                      \
                    most = _mm512_max_epu32(most, magnitude(sum[u]));                                                  \
                }                                                                                                      \
            EACH_OF_4(u) _mm512_storeu_ps(g + i + u * WIDTH, sum[u]);                                                  \
        }                                                                                                              \
        return _mm512_reduce_max_epu32(most);                                                                          \
    }                                                                                                                  \
    static uint32_t form_##NAME(const struct amp_input *inputs, unsigned count, float factor, size_t start,            \
                                size_t whole, float *g)                                                                \
    {                                                                                                                  \
        if (count <= FORM_GROUP)                                                                                       \
            return group_##NAME(inputs, count, true, true, factor, start, whole, g);                                   \
        uint32_t most = 0;                                                                                             \
        for (unsigned i = 0; i < count; i += FORM_GROUP) {                                                             \
            bool last = count - i <= FORM_GROUP;                                                                       \
            unsigned here = last ? count - i : FORM_GROUP;                                                             \
            most = group_##NAME(inputs + i, here, i == 0, last, factor, start, whole, g);                              \
        }                                                                                                              \
        return most;                                                                                                   \
    }

#define EQUAL(INPUT, X)    (X)
#define WEIGHTED(INPUT, X) _mm512_mul_ps(_mm512_set1_ps((INPUT).weight), X)
FORM(f32_equal, AMP_F32, float, EQUAL)
FORM(f16_equal, AMP_F16, uint16_t, EQUAL)
FORM(bf16_equal, AMP_BF16, uint16_t, EQUAL)
FORM(f32_weighted, AMP_F32, float, WEIGHTED)
FORM(f16_weighted, AMP_F16, uint16_t, WEIGHTED)
FORM(bf16_weighted, AMP_BF16, uint16_t, WEIGHTED)

typedef uint32_t form_whole_fn(const struct amp_input *inputs, unsigned count, float factor, size_t start, size_t whole,
                               float *g);

static form_whole_fn *const form_equal[AMP_KERNEL_DTYPES] = {
    [AMP_F32] = form_f32_equal, [AMP_F16] = form_f16_equal, [AMP_BF16] = form_bf16_equal};
static form_whole_fn *const form_weighted[AMP_KERNEL_DTYPES] = {
    [AMP_F32] = form_f32_weighted, [AMP_F16] = form_f16_weighted, [AMP_BF16] = form_bf16_weighted};

static uint32_t form(const struct amp_input *inputs, unsigned count, bool equal_weights, float factor, size_t start,
                     size_t n, float *g)
{
    if (!of_one_dtype(inputs, count))
        return form_in_turns(&amp_kernels_avx512, inputs, count, equal_weights, factor, start, n, g);
    size_t whole = n - n % FORM_TURN;
    form_whole_fn *const *wholes = equal_weights ? form_equal : form_weighted;
    uint32_t most = wholes[inputs[0].dtype](inputs, count, factor, start, whole, g);
    uint32_t tail = amp_kernels_ref.form(inputs, count, equal_weights, factor, start + whole, n - whole, g + whole);
    return larger(most, tail);
}

static void clip_value(float *g, float limit, size_t n)
{
    __m512 high = _mm512_set1_ps(limit);
    __m512 low = _mm512_set1_ps(-limit);
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        _mm512_storeu_ps(g + i, canonical(clamp(_mm512_loadu_ps(g + i), low, high)));
    amp_kernels_ref.clip_value(g + i, limit, n - i);
}

/* What kernels/double.h is written in, beside kernels/avx512_parts.h. */
static vd vd_widen(const float *src)
{
    return _mm512_cvtps_pd(_mm256_loadu_ps(src));
}

static vd vd_load(const double *src)
{
    return _mm512_loadu_pd(src);
}

static void vd_store(double *dst, vd x)
{
    _mm512_storeu_pd(dst, x);
}

static vd vd_magnitude(vd x)
{
    return _mm512_abs_pd(x);
}

/* max(a, b) is a > b ? a : b, so that a NaN stays. */
static vd vd_at_least_zero(vd x)
{
    return _mm512_max_pd(_mm512_setzero_pd(), x);
}

static vd vd_step_of_sign(vd x, double size)
{
    __mmask8 up = _mm512_cmp_pd_mask(x, _mm512_setzero_pd(), _CMP_GT_OQ);
    __mmask8 down = _mm512_cmp_pd_mask(x, _mm512_setzero_pd(), _CMP_LT_OQ);
    x = _mm512_mask_blend_pd(up, x, _mm512_set1_pd(size));
    return _mm512_mask_blend_pd(down, x, _mm512_set1_pd(-size));
}

#include "amp/kernels/double.h"

static void store_fence(void)
{
    _mm_sfence();
}

const struct amp_kernels amp_kernels_avx512 = {
    .isa = "avx512",
    .load = {[AMP_F32] = load_f32, [AMP_F16] = load_f16, [AMP_BF16] = load_bf16},
    .store = {[AMP_F32] = store_f32, [AMP_F16] = store_f16, [AMP_BF16] = store_bf16},
    .load_stream = {[AMP_F32] = load_f32, [AMP_F16] = load_stream_f16, [AMP_BF16] = load_stream_bf16},
    .store_stream = {[AMP_F32] = store_stream_f32, [AMP_F16] = store_stream_f16, [AMP_BF16] = store_stream_bf16},
    .store_fence = store_fence,
    .check = {[AMP_F32] = check_f32, [AMP_F16] = check_f16, [AMP_BF16] = check_bf16},
    .sum_set = {[AMP_F32] = sum_set_f32, [AMP_F16] = sum_set_f16, [AMP_BF16] = sum_set_bf16},
    .sum_add = {[AMP_F32] = sum_add_f32, [AMP_F16] = sum_add_f16, [AMP_BF16] = sum_add_bf16},
    .scale = scale,
    .form = form,
    .vote_pass = amp_avx512_vote_pass,
    .vote_take = amp_avx512_vote_take,
    .clip_value = clip_value,
    .squares = squares,
    .magnitudes = magnitudes,
    .powers = powers,
    .lamb_squares = lamb_squares,
    .largest = {[AMP_F32] = largest_f32, [AMP_F16] = largest_f16, [AMP_BF16] = largest_bf16},
    .apply = {[AMP_OPT_SGD] = apply_sgd,
              [AMP_OPT_ADAMW] = amp_avx512_apply_adamw,
              [AMP_OPT_ADAM] = amp_avx512_apply_adam,
              [AMP_OPT_ADAGRAD] = apply_adagrad,
              [AMP_OPT_RMSPROP] = apply_rmsprop,
              [AMP_OPT_LION] = apply_lion,
              [AMP_OPT_LAMB] = apply_lamb},
    .apply_pass = {[AMP_OPT_ADAMW] = amp_avx512_apply_pass_adamw, [AMP_OPT_ADAM] = amp_avx512_apply_pass_adam},
};
