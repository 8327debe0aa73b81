/*
 * AVX2 kernels (with F16C, without FMA): eight elements at a time, the same operations in the same order as the
 * reference, so the same bits. Faster because conversions, tests and square roots take one instruction for eight elements.
 *
 * - f16 goes through VCVTPH2PS and VCVTPS2PH, which keep denormals and round to nearest even; only NaN needs a second look.
 * - bf16 is rounded by integers.
 * - max(bits without sign) decides "all finite" in one comparison a tile; what is not finite is counted by the reference.
 * - Tails of less than eight elements (sixteen where lanes or 16-bit packs ask for it) are the reference's.
 */
#include "amp/kernels.h"

#include <immintrin.h>

#define WIDTH 8

/* Elements of one look of the finite test: few enough that a bad look is counted from cache. */
#define LOOK 2048

static __m256 canonical(__m256 x)
{
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32((int)AMP_F32_NAN)), nan);
}

static __m256i magnitude(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t reduce_max(__m256i x)
{
    __m128i y = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = _mm_max_epu32(y, _mm_shuffle_epi32(y, 0x4e));
    y = _mm_max_epu32(y, _mm_shuffle_epi32(y, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(y);
}

static __m256 widen_f32(const void *src)
{
    return _mm256_loadu_ps(src);
}

static __m256 widen_f16(const void *src)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(src));
}

static __m256 widen_bf16(const void *src)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(src)), 16));
}

/* Eight 32-bit values below 2^16, packed to 16 bits in order. */
static __m128i pack(__m256i x)
{
    return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

static __m128i narrow_f16(__m256 x)
{
    __m128i h = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm_blendv_epi8(h, _mm_set1_epi16(AMP_F16_NAN), pack(_mm256_srli_epi32(nan, 16)));
}

static __m128i narrow_bf16(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i h = _mm256_srli_epi32(rounded, 16);
    return pack(_mm256_blendv_epi8(h, _mm256_set1_epi32(AMP_BF16_NAN), nan));
}

/* The three conversions of a dtype differ by `widen` and the element type alone. */
#define LOAD(NAME, TYPE, DTYPE)                                                                                        \
    static void load_##NAME(float *dst, const void *src, size_t n)                                                     \
    {                                                                                                                  \
        const TYPE *s = src;                                                                                           \
        size_t i = 0;                                                                                                  \
        for (; i + WIDTH <= n; i += WIDTH)                                                                             \
            _mm256_storeu_ps(dst + i, canonical(widen_##NAME(s + i)));                                                 \
        amp_kernels_ref.load[DTYPE](dst + i, s + i, n - i);                                                            \
    }

#define SUM(NAME, TYPE, DTYPE)                                                                                         \
    static void sum_set_##NAME(float *sum, const void *src, float weight, size_t n)                                    \
    {                                                                                                                  \
        const TYPE *s = src;                                                                                           \
        __m256 w = _mm256_set1_ps(weight);                                                                             \
        size_t i = 0;                                                                                                  \
        for (; i + WIDTH <= n; i += WIDTH)                                                                             \
            _mm256_storeu_ps(sum + i, _mm256_mul_ps(w, widen_##NAME(s + i)));                                          \
        amp_kernels_ref.sum_set[DTYPE](sum + i, s + i, weight, n - i);                                                 \
    }                                                                                                                  \
    static void sum_add_##NAME(float *sum, const void *src, float weight, size_t n)                                    \
    {                                                                                                                  \
        const TYPE *s = src;                                                                                           \
        __m256 w = _mm256_set1_ps(weight);                                                                             \
        size_t i = 0;                                                                                                  \
        for (; i + WIDTH <= n; i += WIDTH) {                                                                           \
            __m256 product = _mm256_mul_ps(w, widen_##NAME(s + i));                                                    \
            _mm256_storeu_ps(sum + i, _mm256_add_ps(_mm256_loadu_ps(sum + i), product));                               \
        }                                                                                                              \
        amp_kernels_ref.sum_add[DTYPE](sum + i, s + i, weight, n - i);                                                 \
    }

LOAD(f32, float, AMP_F32)
LOAD(f16, uint16_t, AMP_F16)
LOAD(bf16, uint16_t, AMP_BF16)
SUM(f32, float, AMP_F32)
SUM(f16, uint16_t, AMP_F16)
SUM(bf16, uint16_t, AMP_BF16)

static uint32_t store_f32(void *dst, const float *src, size_t n)
{
    float *d = dst;
    __m256i most = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        __m256 x = _mm256_loadu_ps(src + i);
        most = _mm256_max_epu32(most, magnitude(x));
        _mm256_storeu_ps(d + i, canonical(x));
    }
    uint32_t tail = amp_kernels_ref.store[AMP_F32](d + i, src + i, n - i);
    return larger(reduce_max(most), tail);
}

#define STORE16(NAME, DTYPE)                                                                                           \
    static uint32_t store_##NAME(void *dst, const float *src, size_t n)                                                \
    {                                                                                                                  \
        uint16_t *d = dst;                                                                                             \
        __m256i most = _mm256_setzero_si256();                                                                         \
        size_t i = 0;                                                                                                  \
        for (; i + WIDTH <= n; i += WIDTH) {                                                                           \
            __m256 x = _mm256_loadu_ps(src + i);                                                                       \
            most = _mm256_max_epu32(most, magnitude(x));                                                               \
            _mm_storeu_si128((__m128i *)(void *)(d + i), narrow_##NAME(x));                                            \
        }                                                                                                              \
        uint32_t tail = amp_kernels_ref.store[DTYPE](d + i, src + i, n - i);                                           \
        return larger(reduce_max(most), tail);                                                                         \
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

/* The largest element of a dtype in its own bits stands for all. */
#define LARGEST(NAME, TYPE, DTYPE, MOST, STEP)                                                                         \
    static uint32_t largest_##NAME(const void *src, size_t n)                                                          \
    {                                                                                                                  \
        const TYPE *s = src;                                                                                           \
        size_t whole = n - n % (STEP);                                                                                 \
        uint32_t bits = MOST(s, whole);                                                                                \
        return larger(amp_kernels_ref.largest[DTYPE](&bits, 1), amp_kernels_ref.largest[DTYPE](s + whole, n - whole)); \
    }

LARGEST(f32, float, AMP_F32, most_f32, 8)
LARGEST(f16, uint16_t, AMP_F16, most_16, 16)
LARGEST(bf16, uint16_t, AMP_BF16, most_16, 16)

/* Look by look: where all is finite only the largest counts, and the reference judges that one element. */
#define CHECK(NAME, TYPE, DTYPE, MOST, STEP, INFINITE)                                                                 \
    static void check_##NAME(const void *src, size_t n, uint64_t base, struct amp_check *check)                        \
    {                                                                                                                  \
        const TYPE *s = src;                                                                                           \
        while (n > 0) {                                                                                                \
            size_t look = n < LOOK ? n : LOOK;                                                                         \
            size_t whole = look - look % (STEP);                                                                       \
            uint32_t most = MOST(s, whole);                                                                            \
            if (most < (INFINITE)) {                                                                                   \
                uint32_t bits = most;                                                                                  \
                amp_kernels_ref.check[DTYPE](&bits, whole > 0, base, check);                                           \
                amp_kernels_ref.check[DTYPE](s + whole, look - whole, base + whole, check);                            \
            } else {                                                                                                   \
                amp_kernels_ref.check[DTYPE](s, look, base, check);                                                    \
            }                                                                                                          \
            s += look;                                                                                                 \
            base += look;                                                                                              \
            n -= look;                                                                                                 \
        }                                                                                                              \
    }

CHECK(f32, float, AMP_F32, most_f32, 8, AMP_F32_INF)
CHECK(f16, uint16_t, AMP_F16, most_16, 16, 0x7c00u)
CHECK(bf16, uint16_t, AMP_BF16, most_16, 16, 0x7f80u)

static uint32_t scale(float *dst, const float *src, float factor, size_t n)
{
    __m256 f = _mm256_set1_ps(factor);
    __m256i most = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        __m256 x = canonical(_mm256_mul_ps(_mm256_loadu_ps(src + i), f));
        most = _mm256_max_epu32(most, magnitude(x));
        _mm256_storeu_ps(dst + i, x);
    }
    uint32_t tail = amp_kernels_ref.scale(dst + i, src + i, factor, n - i);
    return larger(reduce_max(most), tail);
}

/* Inputs of one dtype that `form` sums in registers; more of them go tile by tile through sum_add. */
#define FORM_INPUTS_MAX 16

/* What form does for inputs of one dtype: the sum never leaves its register. `whole` is a multiple of WIDTH. */
#define FORM(NAME, TYPE)                                                                                               \
    static uint32_t form_##NAME(const struct amp_input *inputs, unsigned count, bool equal_weights, float factor,      \
                                size_t start, size_t whole, float *g)                                                  \
    {                                                                                                                  \
        const TYPE *data[FORM_INPUTS_MAX];                                                                             \
        __m256 weight[FORM_INPUTS_MAX];                                                                                \
        __m256 f = _mm256_set1_ps(factor);                                                                             \
        __m256i most = _mm256_setzero_si256();                                                                         \
        for (unsigned j = 0; j < count; j++) {                                                                         \
            data[j] = (const TYPE *)inputs[j].data + start;                                                            \
            weight[j] = _mm256_set1_ps(equal_weights ? 1.0f : inputs[j].weight);                                       \
        }                                                                                                              \
        for (size_t i = 0; i < whole; i += WIDTH) {                                                                    \
            __m256 sum = _mm256_mul_ps(weight[0], widen_##NAME(data[0] + i));                                          \
            for (unsigned j = 1; j < count; j++)                                                                       \
                sum = _mm256_add_ps(sum, _mm256_mul_ps(weight[j], widen_##NAME(data[j] + i)));                         \
            sum = canonical(_mm256_mul_ps(sum, f));                                                                    \
            most = _mm256_max_epu32(most, magnitude(sum));                                                             \
            _mm256_storeu_ps(g + i, sum);                                                                              \
        }                                                                                                              \
        return reduce_max(most);                                                                                       \
    }

FORM(f32, float)
FORM(f16, uint16_t)
FORM(bf16, uint16_t)

typedef uint32_t form_whole_fn(const struct amp_input *inputs, unsigned count, bool equal_weights, float factor,
                               size_t start, size_t whole, float *g);

static form_whole_fn *const form_whole[AMP_KERNEL_DTYPES] = {
    [AMP_F32] = form_f32, [AMP_F16] = form_f16, [AMP_BF16] = form_bf16};

/* Inputs of several dtypes: one after the other over the tile. */
static uint32_t form_mixed(const struct amp_input *inputs, unsigned count, bool equal_weights, float factor,
                           size_t start, size_t n, float *g)
{
    for (unsigned j = 0; j < count; j++) {
        enum amp_dtype dtype = inputs[j].dtype;
        const char *data = (const char *)inputs[j].data + start * amp_dtype_size(dtype);
        amp_sum_fn *sum = j == 0 ? amp_kernels_avx2.sum_set[dtype] : amp_kernels_avx2.sum_add[dtype];
        sum(g, data, equal_weights ? 1.0f : inputs[j].weight, n);
    }
    return scale(g, g, factor, n);
}

static uint32_t form(const struct amp_input *inputs, unsigned count, bool equal_weights, float factor, size_t start,
                     size_t n, float *g)
{
    bool uniform = count <= FORM_INPUTS_MAX;
    for (unsigned j = 1; j < count; j++)
        uniform = uniform && inputs[j].dtype == inputs[0].dtype;
    if (!uniform)
        return form_mixed(inputs, count, equal_weights, factor, start, n, g);
    size_t whole = n - n % WIDTH;
    uint32_t most = form_whole[inputs[0].dtype](inputs, count, equal_weights, factor, start, whole, g);
    uint32_t tail = amp_kernels_ref.form(inputs, count, equal_weights, factor, start + whole, n - whole, g + whole);
    return larger(most, tail);
}

static void clip_value(float *g, float limit, size_t n)
{
    __m256 high = _mm256_set1_ps(limit);
    __m256 low = _mm256_set1_ps(-limit);
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        /* min(a, b) is a < b ? a : b, so that NaN and the sign of zero come from g. */
        __m256 x = _mm256_min_ps(high, _mm256_loadu_ps(g + i));
        _mm256_storeu_ps(g + i, canonical(_mm256_max_ps(low, x)));
    }
    amp_kernels_ref.clip_value(g + i, limit, n - i);
}

static __m256d low_half(__m256 x)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
}

static __m256d high_half(__m256 x)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}

static __m256 join_halves(__m256d low, __m256d high)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(low)), _mm256_cvtpd_ps(high), 1);
}

/* sum + x * x of the four elements at g. */
static __m256d add_squares(__m256d sum, const float *g)
{
    __m256d x = _mm256_cvtps_pd(_mm_loadu_ps(g));
    return _mm256_add_pd(sum, _mm256_mul_pd(x, x));
}

static void squares(const float *g, size_t n, double lanes[AMP_SQUARE_LANES])
{
    __m256d a = _mm256_loadu_pd(lanes);
    __m256d b = _mm256_loadu_pd(lanes + 4);
    __m256d c = _mm256_loadu_pd(lanes + 8);
    __m256d d = _mm256_loadu_pd(lanes + 12);
    size_t i = 0;
    for (; i + AMP_SQUARE_LANES <= n; i += AMP_SQUARE_LANES) {
        a = add_squares(a, g + i);
        b = add_squares(b, g + i + 4);
        c = add_squares(c, g + i + 8);
        d = add_squares(d, g + i + 12);
    }
    _mm256_storeu_pd(lanes, a);
    _mm256_storeu_pd(lanes + 4, b);
    _mm256_storeu_pd(lanes + 8, c);
    _mm256_storeu_pd(lanes + 12, d);
    amp_kernels_ref.squares(g + i, n - i, lanes);
}

/* What kernels_double.h is written in. */
typedef __m256 vf;
typedef __m256d vd;

static vf vf_load(const float *src)
{
    return _mm256_loadu_ps(src);
}

static void vf_store(float *dst, vf x)
{
    _mm256_storeu_ps(dst, x);
}

static vf vf_all(float x)
{
    return _mm256_set1_ps(x);
}

static vd vd_load(const double *src)
{
    return _mm256_loadu_pd(src);
}

static void vd_store(double *dst, vd x)
{
    _mm256_storeu_pd(dst, x);
}

static vd vd_all(double x)
{
    return _mm256_set1_pd(x);
}

static vd vd_root(vd x)
{
    return _mm256_sqrt_pd(x);
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

#include "amp/kernels_double.h"

/* Four elements of SGD; *buffer is the old momentum buffer and becomes the new one, unrounded, where has_m. */
static __m256d sgd_4(const struct amp_apply_scalars *k, bool has_m, __m256d g, __m256d p, __m256d *buffer)
{
    __m256d d = _mm256_add_pd(g, _mm256_mul_pd(_mm256_set1_pd(k->weight_decay), p));
    if (has_m) {
        __m256d momentum = _mm256_set1_pd(k->momentum);
        __m256d next = d;
        if (!k->first_step)
            next = _mm256_add_pd(_mm256_mul_pd(momentum, *buffer), _mm256_mul_pd(_mm256_set1_pd(k->keep), d));
        *buffer = next;
        d = k->nesterov ? _mm256_add_pd(d, _mm256_mul_pd(momentum, next)) : next;
    }
    return _mm256_sub_pd(p, _mm256_mul_pd(_mm256_set1_pd(k->lr), d));
}

static void apply_sgd(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    __m256 clip = _mm256_set1_ps(k->clip);
    bool has_m = m != NULL;
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(g + i), clip);
        __m256 master = _mm256_loadu_ps(p + i);
        __m256 old = has_m ? _mm256_loadu_ps(m + i) : x;
        __m256d low = low_half(old);
        __m256d high = high_half(old);
        __m256d p_low = sgd_4(k, has_m, low_half(x), low_half(master), &low);
        __m256d p_high = sgd_4(k, has_m, high_half(x), high_half(master), &high);
        if (has_m)
            _mm256_storeu_ps(m + i, canonical(join_halves(low, high)));
        _mm256_storeu_ps(p + i, canonical(join_halves(p_low, p_high)));
    }
    amp_kernels_ref.apply[AMP_OPT_SGD](k, n - i, g + i, p + i, has_m ? m + i : NULL, v);
}

static __m256d adam_in_double_4(const struct amp_apply_scalars *k, __m256d g, __m256d p, __m256d m, __m256d v)
{
    __m256d m1 = _mm256_add_pd(_mm256_mul_pd(_mm256_set1_pd(k->beta1), m), _mm256_mul_pd(_mm256_set1_pd(k->rest1), g));
    __m256d v1 = _mm256_add_pd(_mm256_mul_pd(_mm256_set1_pd(k->beta2), v),
                               _mm256_mul_pd(_mm256_set1_pd(k->rest2), _mm256_mul_pd(g, g)));
    __m256d divisor = _mm256_add_pd(_mm256_sqrt_pd(v1), _mm256_set1_pd(k->eps));
    __m256d quotient = _mm256_div_pd(_mm256_mul_pd(_mm256_set1_pd(k->rate), m1), divisor);
    __m256d update = _mm256_add_pd(quotient, _mm256_mul_pd(_mm256_set1_pd(k->decay), p));
    return _mm256_sub_pd(p, update);
}

/* All of a vector in double, the gradient in two halves; the caller keeps those that need it. */
static __m256 adam_in_double(const struct amp_apply_scalars *k, __m256d g_low, __m256d g_high, __m256 p, __m256 m,
                             __m256 v)
{
    return join_halves(adam_in_double_4(k, g_low, low_half(p), low_half(m), low_half(v)),
                       adam_in_double_4(k, g_high, high_half(p), high_half(m), high_half(v)));
}

static __m256 absolute(__m256 x)
{
    return _mm256_castsi256_ps(magnitude(x));
}

/* Adam and AdamW: in single precision, and in double where the guard asks for it. */
static void adam(const struct amp_apply_scalars *k, enum amp_optimizer optimizer, size_t n, const float *g, float *p,
                 float *m, float *v)
{
    bool couple = optimizer == AMP_OPT_ADAM && k->weight_decay != 0;
    __m256 clip = _mm256_set1_ps(k->clip);
    __m256 beta1 = _mm256_set1_ps(k->beta1_f), rest1 = _mm256_set1_ps(k->rest1_f);
    __m256 beta2 = _mm256_set1_ps(k->beta2_f), rest2 = _mm256_set1_ps(k->rest2_f);
    __m256 eps = _mm256_set1_ps(k->eps_f), rate = _mm256_set1_ps(k->rate_f), decay = _mm256_set1_ps(k->decay_f);
    __m256 guard_rate = _mm256_set1_ps(k->guard_rate), guard_keep = _mm256_set1_ps(k->guard_keep);
    __m256 guard_min = _mm256_set1_ps(AMP_ADAMW_GUARD_MIN);
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(g + i), clip);
        __m256 p0 = _mm256_loadu_ps(p + i), m0 = _mm256_loadu_ps(m + i), v0 = _mm256_loadu_ps(v + i);
        __m256d x_low = low_half(x), x_high = high_half(x);
        if (couple) {
            x_low = coupled(k, x_low, low_half(p0));
            x_high = coupled(k, x_high, high_half(p0));
            x = join_halves(x_low, x_high);
        }
        __m256 old_m = _mm256_mul_ps(beta1, m0);
        __m256 new_m = _mm256_mul_ps(rest1, x);
        __m256 m1 = _mm256_add_ps(old_m, new_m);
        __m256 v1 = _mm256_add_ps(_mm256_mul_ps(beta2, v0), _mm256_mul_ps(rest2, _mm256_mul_ps(x, x)));
        __m256 divisor = _mm256_add_ps(_mm256_sqrt_ps(v1), eps);
        __m256 bound =
            _mm256_add_ps(_mm256_mul_ps(guard_rate, _mm256_add_ps(absolute(old_m), absolute(new_m))), guard_min);
        __m256 guard = _mm256_mul_ps(_mm256_mul_ps(absolute(p0), divisor), guard_keep);
        __m256 quotient = _mm256_div_ps(_mm256_mul_ps(rate, m1), divisor);
        __m256 p1 = _mm256_sub_ps(p0, _mm256_add_ps(quotient, _mm256_mul_ps(decay, p0)));
        __m256 single = _mm256_cmp_ps(guard, bound, _CMP_GE_OQ);
        if (_mm256_movemask_ps(single) != 0xff)
            p1 = _mm256_blendv_ps(adam_in_double(k, x_low, x_high, p0, m0, v0), p1, single);
        _mm256_storeu_ps(m + i, canonical(m1));
        _mm256_storeu_ps(v + i, canonical(v1));
        _mm256_storeu_ps(p + i, canonical(p1));
    }
    amp_kernels_ref.apply[optimizer](k, n - i, g + i, p + i, m + i, v + i);
}

static void apply_adamw(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    adam(k, AMP_OPT_ADAMW, n, g, p, m, v);
}

static void apply_adam(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    adam(k, AMP_OPT_ADAM, n, g, p, m, v);
}

const struct amp_kernels amp_kernels_avx2 = {
    .isa = "avx2",
    .load = {[AMP_F32] = load_f32, [AMP_F16] = load_f16, [AMP_BF16] = load_bf16},
    .store = {[AMP_F32] = store_f32, [AMP_F16] = store_f16, [AMP_BF16] = store_bf16},
    .check = {[AMP_F32] = check_f32, [AMP_F16] = check_f16, [AMP_BF16] = check_bf16},
    .sum_set = {[AMP_F32] = sum_set_f32, [AMP_F16] = sum_set_f16, [AMP_BF16] = sum_set_bf16},
    .sum_add = {[AMP_F32] = sum_add_f32, [AMP_F16] = sum_add_f16, [AMP_BF16] = sum_add_bf16},
    .scale = scale,
    .form = form,
    .clip_value = clip_value,
    .squares = squares,
    .magnitudes = magnitudes,
    .powers = powers,
    .lamb_squares = lamb_squares,
    .largest = {[AMP_F32] = largest_f32, [AMP_F16] = largest_f16, [AMP_BF16] = largest_bf16},
    .apply = {[AMP_OPT_SGD] = apply_sgd,
              [AMP_OPT_ADAMW] = apply_adamw,
              [AMP_OPT_ADAM] = apply_adam,
              [AMP_OPT_ADAGRAD] = apply_adagrad,
              [AMP_OPT_RMSPROP] = apply_rmsprop,
              [AMP_OPT_LION] = apply_lion,
              [AMP_OPT_LAMB] = apply_lamb},
};
