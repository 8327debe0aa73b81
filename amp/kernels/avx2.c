/*
 * AVX2 kernels (with F16C): eight elements at a time, the same operations in the same order as the
 * reference, so the same bits. Faster because conversions, tests and square roots take one instruction for eight
 * elements.
 *
 * - f16 goes through VCVTPH2PS and VCVTPS2PH, which keep denormals and round to nearest even; only NaN needs a second
 *   look.
 * - bf16 is rounded by integers.
 * - max(bits without sign) decides "all finite" in one comparison a tile; what is not finite is counted by the
 *   reference.
 * - NaN is made canonical by a second look at what was written, where the first has found one.
 * - Tails of less than eight elements (sixteen where lanes or 16-bit packs ask for it) are the reference's.
 */
#include "amp/kernels/avx2_parts.h"
#include "amp/kernels/form.h"

/* Elements ahead that a loop prefetches: near enough to be still there when it comes, far enough to have come. */
#define AHEAD 256

/* Eight 32-bit values below 2^16, packed to 16 bits in order. */
static __m128i pack(__m256i x)
{
    return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

static __m128i narrow_f16(__m256 x)
{
    __m128i h = _mm256_cvtps_ph(x, NEAREST);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm_blendv_epi8(h, _mm_set1_epi16(AMP_F16_NAN), pack(_mm256_srli_epi32(nan, 16)));
}

static __m128i narrow_bf16(__m256 x)
{
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return pack(_mm256_blendv_epi8(round_bf16(x), _mm256_set1_epi32(AMP_BF16_NAN), nan));
}

/* Elements before the first whole vector of dst, at most n: all of them where no vector begins with an element. */
static size_t unaligned(const void *dst, size_t size, size_t n)
{
    size_t bytes = (32 - (uintptr_t)dst % 32) % 32;
    return bytes % size != 0 || bytes / size > n ? n : bytes / size;
}

/* Elements of sixteen bits in a line of the caches, and how many ahead are prefetched where dst goes past them. */
#define LINE16     32
#define LOAD_AHEAD 512

/* The parts of a block that is cast by parts: so long that each turns a page seldom. */
#define PARTS 4
#define PART  16384 /* elements */

/*
 * On Zen 5 a block is widened past the caches by its four parts in turns, as by AVX-512's kernels: 1.1 of memcpy's
 * speed, and 0.8 in one place. On Zen 3 one place is 1.1 to 1.2 times as fast.
 */
#define LOAD_BY_PARTS ON_ZEN5
#define LOAD_VISIT    (2 * LINE16)

/* Past the caches: whole vectors of dst, which then needs not be read before it is written. */
#define LOAD_STREAM(NAME, DTYPE)                                                                                       \
    INLINE void load_line_##NAME(float *dst, const uint16_t *src)                                                      \
    {                                                                                                                  \
        _mm_prefetch((const char *)(src + LOAD_AHEAD), _MM_HINT_T0);                                                   \
        for (size_t j = 0; j < LINE16; j += WIDTH)                                                                     \
            _mm256_stream_ps(dst + j, canonical(widen(src + j, DTYPE)));                                               \
    }                                                                                                                  \
    static void load_parts_##NAME(float *dst, const uint16_t *src)                                                     \
    {                                                                                                                  \
        for (size_t i = 0; i < PART; i += LOAD_VISIT)                                                                  \
            for (size_t j = i; j < PARTS * PART; j += PART)                                                            \
                for (size_t k = j; k < j + LOAD_VISIT; k += LINE16)                                                    \
                    load_line_##NAME(dst + k, src + k);                                                                \
    }                                                                                                                  \
    static void load_stream_##NAME(float *dst, const void *src, size_t n)                                              \
    {                                                                                                                  \
        size_t i = unaligned(dst, sizeof(float), n);                                                                   \
        const uint16_t *s = src;                                                                                       \
        amp_kernels_ref.load[DTYPE](dst, s, i);                                                                        \
        for (; LOAD_BY_PARTS && i + PARTS * PART <= n; i += PARTS * PART)                                              \
            load_parts_##NAME(dst + i, s + i);                                                                         \
        for (; i + LINE16 <= n; i += LINE16)                                                                           \
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
        __m256i most = _mm256_setzero_si256();                                                                         \
        size_t i = (HEAD);                                                                                             \
        uint32_t first = amp_kernels_ref.store[AMP_F32](d, src, i);                                                    \
        for (; i + WIDTH <= n; i += WIDTH) {                                                                           \
            __m256 x = _mm256_loadu_ps(src + i);                                                                       \
            most = _mm256_max_epu32(most, magnitude(x));                                                               \
            PUT(d + i, canonical(x));                                                                                  \
        }                                                                                                              \
        uint32_t tail = amp_kernels_ref.store[AMP_F32](d + i, src + i, n - i);                                         \
        return larger(larger(reduce_max(most), first), tail);                                                          \
    }

STORE32(store_f32, 0, _mm256_storeu_ps)
STORE32(store_stream_f32, unaligned(dst, sizeof(float), n), _mm256_stream_ps)

/* Two vectors at a time; the canonical NaN costs as much as the rest and is only asked for where there is one. */
#define SIXTEEN(NAME, DTYPE)                                                                                           \
    INLINE __m256i sixteen_##NAME(const float *src, __m256i *most)                                                     \
    {                                                                                                                  \
        __m256 a = _mm256_loadu_ps(src), b = _mm256_loadu_ps(src + WIDTH);                                             \
        *most = _mm256_max_epu32(*most, _mm256_max_epu32(magnitude(a), magnitude(b)));                                 \
        if (_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0)                                                \
            return _mm256_set_m128i(narrow_##NAME(b), narrow_##NAME(a));                                               \
        return narrow_canonical(a, b, DTYPE);                                                                          \
    }

/*
 * Narrowed past the caches a block goes by its four parts in turns, a line of each: what runs ahead of one place leaves
 * the memory of a core idle, ahead of four it does not. On Zen 5 narrowing in one place is faster: with one thread it
 * has 1.1 of memcpy's speed, and 0.8 to 0.9 by parts. On Intel's server cores, too, where lines are prefetched to both
 * levels: 0.94, and 0.84 by parts.
 */
#define STORE_BY_PARTS (ON_AMD && !ON_ZEN5)
#define PARTS_AHEAD    128 /* elements, in each part */

/*
 * Elements ahead in one place; on Intel's cores nearer, and also to the second level. With 512 and 1536 bf16 had 0.89
 * of the bound's speed there (model 167), and now 0.97.
 */
#define STORE_AHEAD       512
#define STORE_AHEAD_INTEL 320
#define STORE_AHEAD_L2    768

/* Asks for two lines `near` elements ahead, and unless `far` is 0 for two so far ahead to the second level. */
INLINE void prefetch_two(const float *src, size_t near, size_t far)
{
    _Pragma("GCC unroll 2") for (size_t i = 0; i < 4 * WIDTH; i += 2 * WIDTH)
    {
        _mm_prefetch((const char *)(src + i + near), _MM_HINT_T0);
        if (far != 0)
            _mm_prefetch((const char *)(src + i + far), _MM_HINT_T1);
    }
}

#define STORE16(NAME, DTYPE)                                                                                           \
    SIXTEEN(NAME, DTYPE)                                                                                               \
    static uint32_t store_##NAME(void *dst, const float *src, size_t n)                                                \
    {                                                                                                                  \
        uint16_t *d = dst;                                                                                             \
        __m256i most = _mm256_setzero_si256();                                                                         \
        size_t whole = n - n % (2 * WIDTH);                                                                            \
        for (size_t i = 0; i < whole; i += 2 * WIDTH) {                                                                \
            _mm_prefetch((const char *)(src + i + AHEAD), _MM_HINT_T0);                                                \
            _mm256_storeu_si256((__m256i *)(void *)(d + i), sixteen_##NAME(src + i, &most));                           \
        }                                                                                                              \
        uint32_t tail = amp_kernels_ref.store[DTYPE](d + whole, src + whole, n - whole);                               \
        return larger(reduce_max(most), tail);                                                                         \
    }                                                                                                                  \
    INLINE void store_line_##NAME(uint16_t *d, const float *src, __m256i *most)                                        \
    {                                                                                                                  \
        __m256i low = sixteen_##NAME(src, most);                                                                       \
        __m256i high = sixteen_##NAME(src + 2 * WIDTH, most);                                                          \
        _mm256_stream_si256((__m256i *)(void *)d, low);                                                                \
        _mm256_stream_si256((__m256i *)(void *)(d + 2 * WIDTH), high);                                                 \
    }                                                                                                                  \
    static void store_parts_##NAME(uint16_t *d, const float *src, __m256i *most)                                       \
    {                                                                                                                  \
        for (size_t i = 0; i < PART; i += 4 * WIDTH) {                                                                 \
            for (size_t j = i; j < PARTS * PART; j += PART) {                                                          \
                prefetch_two(src + j, PARTS_AHEAD, 0);                                                                 \
                store_line_##NAME(d + j, src + j, most);                                                               \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static uint32_t store_stream_##NAME(void *dst, const float *src, size_t n)                                         \
    {                                                                                                                  \
        size_t head = unaligned(dst, sizeof(uint16_t), n);                                                             \
        uint32_t first = amp_kernels_ref.store[DTYPE](dst, src, head);                                                 \
        uint16_t *d = (uint16_t *)dst + head;                                                                          \
        src += head;                                                                                                   \
        n -= head;                                                                                                     \
        __m256i most = _mm256_setzero_si256();                                                                         \
        const size_t near = ON_AMD ? STORE_AHEAD : STORE_AHEAD_INTEL, far = ON_AMD ? 0 : STORE_AHEAD_L2;               \
        size_t i = 0;                                                                                                  \
        for (; STORE_BY_PARTS && i + PARTS * PART <= n; i += PARTS * PART)                                             \
            store_parts_##NAME(d + i, src + i, &most);                                                                 \
        for (; i + 4 * WIDTH <= n; i += 4 * WIDTH) {                                                                   \
            prefetch_two(src + i, near, far);                                                                          \
            store_line_##NAME(d + i, src + i, &most);                                                                  \
        }                                                                                                              \
        uint32_t tail = store_##NAME(d + i, src + i, n - i);                                                           \
        return larger(larger(reduce_max(most), first), tail);                                                          \
    }

STORE16(f16, AMP_F16)
STORE16(bf16, AMP_BF16)

/* Largest magnitude, in the dtype's own bits, of a multiple of 8 (f32) or 16 (16 bits) elements. */
static uint32_t most_f32(const float *s, size_t n)
{
    __m256i most = _mm256_setzero_si256();
    for (size_t i = 0; i < n; i += WIDTH)
        most = _mm256_max_epu32(most, magnitude(_mm256_loadu_ps(s + i)));
    return reduce_max(most);
}

static uint32_t most_16(const uint16_t *s, size_t n)
{
    __m256i sign = _mm256_set1_epi16(0x7fff);
    __m256i most = _mm256_setzero_si256();
    for (size_t i = 0; i < n; i += 16) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(s + i));
        most = _mm256_max_epu16(most, _mm256_and_si256(x, sign));
    }
    __m256i low = _mm256_and_si256(most, _mm256_set1_epi32(0xffff));
    return reduce_max(_mm256_max_epu32(low, _mm256_srli_epi32(most, 16)));
}

#include "amp/kernels/elements.h"

/* After a loop that has stored n elements and found the largest magnitude: NaN is made canonical where there is any. */
static uint32_t settle(float *x, size_t n, __m256i most)
{
    uint32_t bits = reduce_max(most);
    if (bits <= AMP_F32_INF)
        return bits;
    load_f32(x, x, n);
    return AMP_F32_NAN;
}

/*
 * Elements ahead that scale prefetches, to the first level and to the second: on Intel's server cores it takes 0.68 of
 * the time so, and 0.77 with the first alone. Zen 3 has no gain.
 */
#define SCALE_AHEAD    512
#define SCALE_AHEAD_L2 2048

static uint32_t scale(float *dst, const float *src, float factor, size_t n)
{
    __m256 f = _mm256_set1_ps(factor);
    __m256i most_a = _mm256_setzero_si256(), most_b = most_a;
    size_t whole = n - n % (2 * WIDTH);
    for (size_t i = 0; i < whole; i += 2 * WIDTH) {
        if (!ON_AMD) {
            _mm_prefetch((const char *)(src + i + SCALE_AHEAD), _MM_HINT_T0);
            _mm_prefetch((const char *)(src + i + SCALE_AHEAD_L2), _MM_HINT_T1);
        }
        __m256 a = _mm256_mul_ps(_mm256_loadu_ps(src + i), f);
        __m256 b = _mm256_mul_ps(_mm256_loadu_ps(src + i + WIDTH), f);
        most_a = _mm256_max_epu32(most_a, magnitude(a));
        most_b = _mm256_max_epu32(most_b, magnitude(b));
        _mm256_storeu_ps(dst + i, a);
        _mm256_storeu_ps(dst + i + WIDTH, b);
    }
    uint32_t tail = amp_kernels_ref.scale(dst + whole, src + whole, factor, n - whole);
    return larger(settle(dst, whole, _mm256_max_epu32(most_a, most_b)), tail);
}

/* Elements ahead of each input that are prefetched: further on, eight inputs would drive each other out. */
#define FORM_AHEAD 256

/* Inputs of one dtype that `form` sums in registers; more of them go tile by tile through sum_add. */
#define FORM_INPUTS_MAX 16

/* Elements of a turn of the loop. */
#define FORM_TURN (4 * (size_t)WIDTH)

/*
 * What form does for inputs of one dtype: the sum never leaves its registers. Equal weights need no product: it would
 * be exact. `whole` is a multiple of FORM_TURN.
 */
#define FORM(NAME, DTYPE, TYPE, TERM)                                                                                  \
    static uint32_t form_##NAME(const struct amp_input *inputs, unsigned count, float factor, size_t start,            \
                                size_t whole, float *g)                                                                \
    {                                                                                                                  \
        const TYPE *data[FORM_INPUTS_MAX];                                                                             \
        __m256 f = _mm256_set1_ps(factor), sum[4];                                                                     \
        __m256i most = _mm256_setzero_si256();                                                                         \
        for (unsigned j = 0; j < count; j++)                                                                           \
            data[j] = (const TYPE *)inputs[j].data + start;                                                            \
        for (size_t i = 0; i < whole; i += FORM_TURN) {                                                                \
            _mm_prefetch((const char *)(data[0] + i + FORM_AHEAD), _MM_HINT_T0);                                       \
            EACH_OF_4(u) sum[u] = TERM(inputs[0], widen(data[0] + i + u * WIDTH, DTYPE));                              \
            for (unsigned j = 1; j < count; j++) {                                                                     \
                _mm_prefetch((const char *)(data[j] + i + FORM_AHEAD), _MM_HINT_T0);                                   \
                EACH_OF_4(u)                                                                                           \
                sum[u] = _mm256_add_ps(sum[u], TERM(inputs[j], widen(data[j] + i + u * WIDTH, DTYPE)));                \
            }                                                                                                          \
            EACH_OF_4(u)                                                                                               \
            {                                                                                                          \
                __m256 x = _mm256_mul_ps(sum[u], f);                                                                   \
                most = _mm256_max_epu32(most, magnitude(x));                                                           \
                _mm256_storeu_ps(g + i + u * WIDTH, x);                                                                \
            }                                                                                                          \
        }                                                                                                              \
        return settle(g, whole, most);                                                                                 \
    }

#define EQUAL(INPUT, X)    (X)
#define WEIGHTED(INPUT, X) _mm256_mul_ps(_mm256_set1_ps((INPUT).weight), X)
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
    if (count > FORM_INPUTS_MAX || !of_one_dtype(inputs, count))
        return form_in_turns(&amp_kernels_avx2, inputs, count, equal_weights, factor, start, n, g);
    size_t whole = n - n % FORM_TURN;
    form_whole_fn *const *wholes = equal_weights ? form_equal : form_weighted;
    uint32_t most = wholes[inputs[0].dtype](inputs, count, factor, start, whole, g);
    uint32_t tail = amp_kernels_ref.form(inputs, count, equal_weights, factor, start + whole, n - whole, g + whole);
    return larger(most, tail);
}

static void clip_value(float *g, float limit, size_t n)
{
    __m256 high = _mm256_set1_ps(limit);
    __m256 low = _mm256_set1_ps(-limit);
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        _mm256_storeu_ps(g + i, canonical(clamp(_mm256_loadu_ps(g + i), low, high)));
    amp_kernels_ref.clip_value(g + i, limit, n - i);
}

/* What kernels/double.h is written in, beside kernels/avx2_parts.h. */
static vd vd_widen(const float *src)
{
    return _mm256_cvtps_pd(_mm_loadu_ps(src));
}

static vd vd_load(const double *src)
{
    return _mm256_loadu_pd(src);
}

static void vd_store(double *dst, vd x)
{
    _mm256_storeu_pd(dst, x);
}

static vd vd_magnitude(vd x)
{
    return _mm256_andnot_pd(_mm256_set1_pd(-0.0), x);
}

/* max(a, b) is a > b ? a : b, so that a NaN stays. */
static vd vd_at_least_zero(vd x)
{
    return _mm256_max_pd(_mm256_setzero_pd(), x);
}

static vd vd_step_of_sign(vd x, double size)
{
    vd up = _mm256_cmp_pd(x, _mm256_setzero_pd(), _CMP_GT_OQ);
    vd down = _mm256_cmp_pd(x, _mm256_setzero_pd(), _CMP_LT_OQ);
    x = _mm256_blendv_pd(x, _mm256_set1_pd(size), up);
    return _mm256_blendv_pd(x, _mm256_set1_pd(-size), down);
}

#include "amp/kernels/double.h"

static void store_fence(void)
{
    _mm_sfence();
}

const struct amp_kernels amp_kernels_avx2 = {
    .isa = "avx2",
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
    .vote_pass = amp_avx2_vote_pass,
    .vote_take = amp_avx2_vote_take,
    .clip_value = clip_value,
    .squares = squares,
    .magnitudes = magnitudes,
    .powers = powers,
    .lamb_squares = lamb_squares,
    .largest = {[AMP_F32] = largest_f32, [AMP_F16] = largest_f16, [AMP_BF16] = largest_bf16},
    .apply = {[AMP_OPT_SGD] = apply_sgd,
              [AMP_OPT_ADAMW] = amp_avx2_apply_adamw,
              [AMP_OPT_ADAM] = amp_avx2_apply_adam,
              [AMP_OPT_ADAGRAD] = apply_adagrad,
              [AMP_OPT_RMSPROP] = apply_rmsprop,
              [AMP_OPT_LION] = apply_lion,
              [AMP_OPT_LAMB] = apply_lamb},
    .apply_pass = {[AMP_OPT_ADAMW] = amp_avx2_apply_pass_adamw, [AMP_OPT_ADAM] = amp_avx2_apply_pass_adam},
};
