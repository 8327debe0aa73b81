/*
 * NEON kernels (AArch64's Advanced SIMD): four elements at a time, the same operations in the same order as the
 * reference, so the same bits. Faster because conversions, tests and square roots take one instruction for four
 * elements.
 *
 * - f16 goes through FCVTL and FCVTN, which keep denormals and round to nearest even; only NaN needs a second look.
 * - bf16 is rounded by integers.
 * - max(bits without sign) decides "all finite" in one comparison a tile; what is not finite is counted by the
 *   reference.
 * - No fused multiply-add (FMLA), no FRECPE, no FRSQRTE. Choices are comparisons and BSL: FMIN and FMAX treat NaN
 *   otherwise.
 * - Tails of less than four elements (eight where 16-bit packs ask for it) are the reference's.
 */
#include "amp/kernels.h"
#include "amp/kernels/form.h"

#include <arm_neon.h>

#define WIDTH  4
#define INLINE static inline __attribute__((always_inline))

/* What kernels/double.h is written in. */
typedef float32x4_t vf;
typedef float64x2_t vd;

static vf vf_load(const float *src)
{
    return vld1q_f32(src);
}

static void vf_store(float *dst, vf x)
{
    vst1q_f32(dst, x);
}

static vf vf_all(float x)
{
    return vdupq_n_f32(x);
}

static vd vd_widen(const float *src)
{
    return vcvt_f64_f32(vld1_f32(src));
}

static vd vd_load(const double *src)
{
    return vld1q_f64(src);
}

static void vd_store(double *dst, vd x)
{
    vst1q_f64(dst, x);
}

static vd vd_all(double x)
{
    return vdupq_n_f64(x);
}

static vd vd_root(vd x)
{
    return vsqrtq_f64(x);
}

static vd vd_magnitude(vd x)
{
    return vabsq_f64(x);
}

static vd vd_at_least_zero(vd x)
{
    return vbslq_f64(vcltzq_f64(x), vd_all(0), x);
}

static vd vd_step_of_sign(vd x, double size)
{
    uint64x2_t up = vcgtzq_f64(x), down = vcltzq_f64(x);
    x = vbslq_f64(up, vd_all(size), x);
    return vbslq_f64(down, vd_all(-size), x);
}

static vf canonical(vf x)
{
    return vbslq_f32(vceqq_f32(x, x), x, vreinterpretq_f32_u32(vdupq_n_u32(AMP_F32_NAN)));
}

static uint32x4_t magnitude(vf x)
{
    return vreinterpretq_u32_f32(vabsq_f32(x));
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static vd low_half(vf x)
{
    return vcvt_f64_f32(vget_low_f32(x));
}

static vd high_half(vf x)
{
    return vcvt_high_f64_f32(x);
}

static vf join_halves(vd low, vd high)
{
    return vcvt_high_f32_f64(vcvt_f32_f64(low), high);
}

#include "amp/kernels/double.h"

/* Four elements of a dtype. */
static inline vf widen(const void *src, enum amp_dtype dtype)
{
    if (dtype == AMP_F32)
        return vf_load(src);
    uint16x4_t half = vld1_u16(src);
    if (dtype == AMP_F16)
        return vcvt_f32_f16(vreinterpret_f16_u16(half));
    return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
}

/* The lower halves of a comparison's lanes. */
static uint16x4_t is_nan(vf x)
{
    return vmvn_u16(vmovn_u32(vceqq_f32(x, x)));
}

static uint16x4_t narrow_f16(vf x)
{
    return vbsl_u16(is_nan(x), vdup_n_u16(AMP_F16_NAN), vreinterpret_u16_f16(vcvt_f16_f32(x)));
}

static uint16x4_t narrow_bf16(vf x)
{
    uint32x4_t bits = vreinterpretq_u32_f32(x);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    return vbsl_u16(is_nan(x), vdup_n_u16(AMP_BF16_NAN), vshrn_n_u32(rounded, 16));
}

static uint32_t store_f32(void *dst, const float *src, size_t n)
{
    float *d = dst;
    uint32x4_t most = vdupq_n_u32(0);
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        vf x = vf_load(src + i);
        most = vmaxq_u32(most, magnitude(x));
        vf_store(d + i, canonical(x));
    }
    uint32_t tail = amp_kernels_ref.store[AMP_F32](d + i, src + i, n - i);
    return larger(vmaxvq_u32(most), tail);
}

#define STORE16(NAME, DTYPE)                                                                                           \
    static uint32_t store_##NAME(void *dst, const float *src, size_t n)                                                \
    {                                                                                                                  \
        uint16_t *d = dst;                                                                                             \
        uint32x4_t most = vdupq_n_u32(0);                                                                              \
        size_t i = 0;                                                                                                  \
        for (; i + WIDTH <= n; i += WIDTH) {                                                                           \
            vf x = vf_load(src + i);                                                                                   \
            most = vmaxq_u32(most, magnitude(x));                                                                      \
            vst1_u16(d + i, narrow_##NAME(x));                                                                         \
        }                                                                                                              \
        uint32_t tail = amp_kernels_ref.store[DTYPE](d + i, src + i, n - i);                                           \
        return larger(vmaxvq_u32(most), tail);                                                                         \
    }

STORE16(f16, AMP_F16)
STORE16(bf16, AMP_BF16)

/* Largest magnitude, in the dtype's own bits, of a multiple of 4 (f32) or 8 (16 bits) elements. */
static uint32_t most_f32(const float *s, size_t n)
{
    uint32x4_t most = vdupq_n_u32(0);
    for (size_t i = 0; i < n; i += WIDTH)
        most = vmaxq_u32(most, magnitude(vf_load(s + i)));
    return vmaxvq_u32(most);
}

static uint32_t most_16(const uint16_t *s, size_t n)
{
    uint16x8_t most = vdupq_n_u16(0);
    for (size_t i = 0; i < n; i += 8)
        most = vmaxq_u16(most, vandq_u16(vld1q_u16(s + i), vdupq_n_u16(0x7fff)));
    return vmaxvq_u16(most);
}

#include "amp/kernels/elements.h"

static uint32_t scale(float *dst, const float *src, float factor, size_t n)
{
    vf f = vf_all(factor);
    uint32x4_t most = vdupq_n_u32(0);
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        vf x = canonical(vmulq_f32(vf_load(src + i), f));
        most = vmaxq_u32(most, magnitude(x));
        vf_store(dst + i, x);
    }
    uint32_t tail = amp_kernels_ref.scale(dst + i, src + i, factor, n - i);
    return larger(vmaxvq_u32(most), tail);
}

/* Inputs of one dtype that `form` sums in registers; more of them go tile by tile through sum_add. */
#define FORM_INPUTS_MAX 16

/* What form does for inputs of one dtype: the sum never leaves its register. `whole` is a multiple of WIDTH. */
#define FORM(NAME, TYPE, DTYPE)                                                                                        \
    static uint32_t form_##NAME(const struct amp_input *inputs, unsigned count, bool equal_weights, float factor,      \
                                size_t start, size_t whole, float *g)                                                  \
    {                                                                                                                  \
        const TYPE *data[FORM_INPUTS_MAX];                                                                             \
        vf weight[FORM_INPUTS_MAX];                                                                                    \
        vf f = vf_all(factor);                                                                                         \
        uint32x4_t most = vdupq_n_u32(0);                                                                              \
        for (unsigned j = 0; j < count; j++) {                                                                         \
            data[j] = (const TYPE *)inputs[j].data + start;                                                            \
            weight[j] = vf_all(equal_weights ? 1.0f : inputs[j].weight);                                               \
        }                                                                                                              \
        for (size_t i = 0; i < whole; i += WIDTH) {                                                                    \
            vf sum = vmulq_f32(weight[0], widen(data[0] + i, DTYPE));                                                  \
            for (unsigned j = 1; j < count; j++)                                                                       \
                sum = vaddq_f32(sum, vmulq_f32(weight[j], widen(data[j] + i, DTYPE)));                                 \
            sum = canonical(vmulq_f32(sum, f));                                                                        \
            most = vmaxq_u32(most, magnitude(sum));                                                                    \
            vf_store(g + i, sum);                                                                                      \
        }                                                                                                              \
        return vmaxvq_u32(most);                                                                                       \
    }

FORM(f32, float, AMP_F32)
FORM(f16, uint16_t, AMP_F16)
FORM(bf16, uint16_t, AMP_BF16)

typedef uint32_t form_whole_fn(const struct amp_input *inputs, unsigned count, bool equal_weights, float factor,
                               size_t start, size_t whole, float *g);

static form_whole_fn *const form_whole[AMP_KERNEL_DTYPES] = {
    [AMP_F32] = form_f32, [AMP_F16] = form_f16, [AMP_BF16] = form_bf16};

static uint32_t form(const struct amp_input *inputs, unsigned count, bool equal_weights, float factor, size_t start,
                     size_t n, float *g)
{
    if (count > FORM_INPUTS_MAX || !of_one_dtype(inputs, count))
        return form_in_turns(&amp_kernels_neon, inputs, count, equal_weights, factor, start, n, g);
    size_t whole = n - n % WIDTH;
    uint32_t most = form_whole[inputs[0].dtype](inputs, count, equal_weights, factor, start, whole, g);
    uint32_t tail = amp_kernels_ref.form(inputs, count, equal_weights, factor, start + whole, n - whole, g + whole);
    return larger(most, tail);
}

static void clip_value(float *g, float limit, size_t n)
{
    vf high = vf_all(limit), low = vf_all(-limit);
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        vf x = vf_load(g + i);
        x = vbslq_f32(vcltq_f32(high, x), high, x);
        x = vbslq_f32(vcgtq_f32(low, x), low, x);
        vf_store(g + i, canonical(x));
    }
    amp_kernels_ref.clip_value(g + i, limit, n - i);
}

static vd adam_in_double_2(const struct amp_apply_scalars *k, vd g, vd p, vd m, vd v)
{
    vd m1 = vaddq_f64(vmulq_f64(vd_all(k->beta1), m), vmulq_f64(vd_all(k->rest1), g));
    vd v1 = vaddq_f64(vmulq_f64(vd_all(k->beta2), v), vmulq_f64(vd_all(k->rest2), vmulq_f64(g, g)));
    vd divisor = vaddq_f64(vd_root(v1), vd_all(k->eps));
    vd quotient = vdivq_f64(vmulq_f64(vd_all(k->rate), m1), divisor);
    vd update = vaddq_f64(quotient, vmulq_f64(vd_all(k->decay), p));
    return vsubq_f64(p, update);
}

/* All four in double, the gradient in two halves; the caller keeps those that need it. */
static vf adam_in_double(const struct amp_apply_scalars *k, vd g_low, vd g_high, vf p, vf m, vf v)
{
    return join_halves(adam_in_double_2(k, g_low, low_half(p), low_half(m), low_half(v)),
                       adam_in_double_2(k, g_high, high_half(p), high_half(m), high_half(v)));
}

static vf absolute(vf x)
{
    return vabsq_f32(x);
}

/* The largest power of two that is not above |x|, by the bits as in ref.c. */
static vf power_of_two(vf x)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(AMP_F32_INF)));
}

/* Adam and AdamW: in single precision, and in double where the guard asks for it. */
static void adam(const struct amp_apply_scalars *k, enum amp_optimizer optimizer, size_t n, const float *g, float *p,
                 float *m, float *v)
{
    bool couple = optimizer == AMP_OPT_ADAM && k->weight_decay != 0;
    vf clip = vf_all(k->clip);
    vf beta1 = vf_all(k->beta1_f), rest1 = vf_all(k->rest1_f);
    vf beta2 = vf_all(k->beta2_f), rest2 = vf_all(k->rest2_f);
    vf eps = vf_all(k->eps_f), rate = vf_all(k->rate_f), decay = vf_all(k->decay_f);
    vf guard_fresh = vf_all(k->guard_fresh), guard_keep = vf_all(k->guard_keep);
    vf guard_min = vf_all(AMP_ADAMW_GUARD_MIN);
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        vf x = vmulq_f32(vf_load(g + i), clip);
        vf p0 = vf_load(p + i), m0 = vf_load(m + i), v0 = vf_load(v + i);
        vd x_low = low_half(x), x_high = high_half(x);
        if (couple) {
            x_low = coupled(k, x_low, low_half(p0));
            x_high = coupled(k, x_high, high_half(p0));
            x = join_halves(x_low, x_high);
        }
        vf old_m = vmulq_f32(beta1, m0);
        vf new_m = vmulq_f32(rest1, x);
        vf m1 = vaddq_f32(old_m, new_m);
        vf v1 = vaddq_f32(vmulq_f32(beta2, v0), vmulq_f32(rest2, vmulq_f32(x, x)));
        vf divisor = vaddq_f32(vsqrtq_f32(v1), eps);
        vf rated = vmulq_f32(rate, m1);
        vf bound = vaddq_f32(vaddq_f32(absolute(rated), vmulq_f32(guard_fresh, absolute(new_m))), guard_min);
        vf guard = vmulq_f32(vmulq_f32(power_of_two(p0), divisor), guard_keep);
        vf quotient = vdivq_f32(rated, divisor);
        vf p1 = vsubq_f32(p0, vaddq_f32(quotient, vmulq_f32(decay, p0)));
        uint32x4_t single = vcgeq_f32(guard, bound);
        if (vminvq_u32(single) == 0)
            p1 = vbslq_f32(single, p1, adam_in_double(k, x_low, x_high, p0, m0, v0));
        vf_store(m + i, canonical(m1));
        vf_store(v + i, canonical(v1));
        vf_store(p + i, canonical(p1));
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

/* Nothing is written past the caches. */
static void store_fence(void)
{
}

const struct amp_kernels amp_kernels_neon = {
    .isa = "neon",
    .load = {[AMP_F32] = load_f32, [AMP_F16] = load_f16, [AMP_BF16] = load_bf16},
    .store = {[AMP_F32] = store_f32, [AMP_F16] = store_f16, [AMP_BF16] = store_bf16},
    .load_stream = {[AMP_F32] = load_f32, [AMP_F16] = load_f16, [AMP_BF16] = load_bf16},
    .store_stream = {[AMP_F32] = store_f32, [AMP_F16] = store_f16, [AMP_BF16] = store_bf16},
    .store_fence = store_fence,
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
