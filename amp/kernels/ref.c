/*
 * The reference kernels: plain C, one element at a time. What they compute is what docs/numerics.md says, and every
 * other variant has to give the same bits. They are read before they are run: no trick that is not in the document.
 *
 * They need -ffp-contract=off and no GNU dialect (a * b + c must round twice), and the default floating-point
 * environment: round to nearest even, denormals kept.
 */
#include "amp/kernels.h"

#include "amp/kernels/form.h"
#include "amp/kernels/unaligned.h"
#include "amp/norm.h"

#include <math.h>
#include <string.h>

/* Smallest magnitudes (bits of binary32) that RNE takes to f16's Inf (65520), to its normals, to more than zero. */
#define F16_ROUNDS_TO_INF 0x477ff000u
#define F16_NORMAL        0x38800000u
#define F16_HALF_DENORMAL 0x33000000u

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t magnitude(float x)
{
    return bits_of(x) & 0x7fffffffu;
}

static float canonical(float x)
{
    return magnitude(x) > AMP_F32_INF ? float_of(AMP_F32_NAN) : x;
}

static float f32_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = h >> 10 & 0x1fu;
    uint32_t fraction = h & 0x3ffu;
    if (exponent == 0x1f)
        return float_of(fraction ? AMP_F32_NAN : sign | AMP_F32_INF);
    if (exponent != 0)
        return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    /* A denormal (or zero) is fraction * 2^-24, exactly representable. */
    float value = (float)fraction * 0x1p-24f;
    return float_of(sign | bits_of(value));
}

static float f32_of_bf16(uint16_t h)
{
    return canonical(float_of((uint32_t)h << 16));
}

static uint16_t f16_of_f32(float x)
{
    uint32_t bits = bits_of(x);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t a = bits & 0x7fffffffu;
    if (a > AMP_F32_INF)
        return AMP_F16_NAN;
    if (a >= F16_ROUNDS_TO_INF)
        return (uint16_t)(sign | 0x7c00u);
    if (a >= F16_NORMAL)
        return (uint16_t)(sign | (a - (112u << 23) + 0xfffu + (a >> 13 & 1)) >> 13);
    if (a < F16_HALF_DENORMAL)
        return (uint16_t)sign;
    /* The value is m * 2^(e-150); in units of 2^-24 that is m >> (126 - e), 14 <= shift <= 24. */
    uint32_t m = (a & 0x7fffffu) | 0x800000u;
    unsigned shift = 126 - (a >> 23);
    uint32_t half = 1u << (shift - 1);
    uint32_t rest = m & (2 * half - 1);
    uint32_t quotient = m >> shift;
    if (rest > half || (rest == half && (quotient & 1)))
        quotient++;
    return (uint16_t)(sign | quotient);
}

static uint16_t bf16_of_f32(float x)
{
    uint32_t bits = bits_of(x);
    if ((bits & 0x7fffffffu) > AMP_F32_INF)
        return AMP_BF16_NAN;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static void load_f32(any_f32 *dst, const void *src, size_t n)
{
    const any_f32 *s = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = canonical(s[i]);
}

static void load_f16(any_f32 *dst, const void *src, size_t n)
{
    const any_u16 *s = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = f32_of_f16(s[i]);
}

static void load_bf16(any_f32 *dst, const void *src, size_t n)
{
    const any_u16 *s = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = f32_of_bf16(s[i]);
}

static uint32_t store_f32(void *dst, const any_f32 *src, size_t n)
{
    any_f32 *d = dst;
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t a = magnitude(src[i]);
        largest = a > largest ? a : largest;
        d[i] = canonical(src[i]);
    }
    return largest;
}

static uint32_t store_f16(void *dst, const any_f32 *src, size_t n)
{
    any_u16 *d = dst;
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t a = magnitude(src[i]);
        largest = a > largest ? a : largest;
        d[i] = f16_of_f32(src[i]);
    }
    return largest;
}

static uint32_t store_bf16(void *dst, const any_f32 *src, size_t n)
{
    any_u16 *d = dst;
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t a = magnitude(src[i]);
        largest = a > largest ? a : largest;
        d[i] = bf16_of_f32(src[i]);
    }
    return largest;
}

static void check_one(float x, uint64_t index, struct amp_check *check)
{
    uint32_t a = magnitude(x);
    if (a < AMP_F32_INF) {
        if (a > magnitude(check->largest))
            check->largest = float_of(a);
        return;
    }
    if (a == AMP_F32_INF)
        check->inf_count++;
    else
        check->nan_count++;
    if (index < check->first)
        check->first = index;
}

static void check_f32(const void *src, size_t n, uint64_t base, struct amp_check *check)
{
    const any_f32 *s = src;
    for (size_t i = 0; i < n; i++)
        check_one(s[i], base + i, check);
}

static void check_f16(const void *src, size_t n, uint64_t base, struct amp_check *check)
{
    const any_u16 *s = src;
    for (size_t i = 0; i < n; i++)
        check_one(f32_of_f16(s[i]), base + i, check);
}

static void check_bf16(const void *src, size_t n, uint64_t base, struct amp_check *check)
{
    const any_u16 *s = src;
    for (size_t i = 0; i < n; i++)
        check_one(f32_of_bf16(s[i]), base + i, check);
}

static void sum_set_f32(any_f32 *sum, const void *src, float weight, size_t n)
{
    const any_f32 *s = src;
    for (size_t i = 0; i < n; i++)
        sum[i] = weight * s[i];
}

static void sum_add_f32(any_f32 *sum, const void *src, float weight, size_t n)
{
    const any_f32 *s = src;
    for (size_t i = 0; i < n; i++)
        sum[i] = sum[i] + weight * s[i];
}

static void sum_set_f16(any_f32 *sum, const void *src, float weight, size_t n)
{
    const any_u16 *s = src;
    for (size_t i = 0; i < n; i++)
        sum[i] = weight * f32_of_f16(s[i]);
}

static void sum_add_f16(any_f32 *sum, const void *src, float weight, size_t n)
{
    const any_u16 *s = src;
    for (size_t i = 0; i < n; i++)
        sum[i] = sum[i] + weight * f32_of_f16(s[i]);
}

static void sum_set_bf16(any_f32 *sum, const void *src, float weight, size_t n)
{
    const any_u16 *s = src;
    for (size_t i = 0; i < n; i++)
        sum[i] = weight * f32_of_bf16(s[i]);
}

static void sum_add_bf16(any_f32 *sum, const void *src, float weight, size_t n)
{
    const any_u16 *s = src;
    for (size_t i = 0; i < n; i++)
        sum[i] = sum[i] + weight * f32_of_bf16(s[i]);
}

static uint32_t scale(any_f32 *dst, const any_f32 *src, float factor, size_t n)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        float x = canonical(src[i] * factor);
        uint32_t a = magnitude(x);
        largest = a > largest ? a : largest;
        dst[i] = x;
    }
    return largest;
}

static uint32_t form(const struct amp_input *inputs, unsigned inputs_count, bool equal_weights, float factor,
                     size_t start, size_t n, float *g)
{
    return form_in_turns(&amp_kernels_ref, inputs, inputs_count, equal_weights, factor, start, n, g);
}

static void clip_value(any_f32 *g, float limit, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x = limit < g[i] ? limit : g[i];
        g[i] = canonical(-limit > x ? -limit : x);
    }
}

static void squares(const any_f32 *g, size_t n, double lanes[AMP_SQUARE_LANES])
{
    for (size_t i = 0; i < n; i++) {
        double x = g[i];
        lanes[i % AMP_SQUARE_LANES] += x * x;
    }
}

static void magnitudes(const any_f32 *g, size_t n, double lanes[AMP_SQUARE_LANES])
{
    for (size_t i = 0; i < n; i++)
        lanes[i % AMP_SQUARE_LANES] += fabs((double)g[i]);
}

static void powers(const any_f32 *g, size_t n, double p, float unit, double lanes[AMP_SQUARE_LANES])
{
    for (size_t i = 0; i < n; i++)
        lanes[i % AMP_SQUARE_LANES] += amp_real_power(fabs((double)g[i]) / (double)unit, p);
}

/* NaN is greater than all others, and one value. */
static uint32_t largest_of(uint32_t largest, float x)
{
    uint32_t a = magnitude(canonical(x));
    return a > largest ? a : largest;
}

static uint32_t largest_f32(const void *src, size_t n)
{
    const any_f32 *s = src;
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = largest_of(largest, s[i]);
    return largest;
}

static uint32_t largest_f16(const void *src, size_t n)
{
    const any_u16 *s = src;
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = largest_of(largest, f32_of_f16(s[i]));
    return largest;
}

static uint32_t largest_bf16(const void *src, size_t n)
{
    const any_u16 *s = src;
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = largest_of(largest, f32_of_bf16(s[i]));
    return largest;
}

/* SGD in double throughout; buffer and master are rounded once, where they are stored. */
static void apply_sgd(const struct amp_apply_scalars *k, size_t n, const any_f32 *g, any_f32 *p, any_f32 *m, any_f32 *v)
{
    for (size_t i = 0; i < n; i++) {
        float clipped = g[i] * k->clip;
        double d = (double)clipped + k->weight_decay * (double)p[i];
        if (m != NULL) {
            double buffer = k->first_step ? d : k->momentum * (double)m[i] + k->keep * d;
            m[i] = canonical((float)buffer);
            d = k->nesterov ? d + k->momentum * buffer : buffer;
        }
        p[i] = canonical((float)((double)p[i] - k->lr * d));
    }
}

/* The gradient with the decay that torch couples to it. Without decay it is the gradient itself, whatever p is. */
static double coupled(const struct amp_apply_scalars *k, float g, float p)
{
    return k->weight_decay != 0 ? (double)g + k->weight_decay * (double)p : (double)g;
}

/* Adam's new master in double, from the old state: for an update that is not small against the master. */
static float adam_in_double(const struct amp_apply_scalars *k, double g, float p, float m, float v)
{
    double m1 = k->beta1 * (double)m + k->rest1 * g;
    double v1 = k->beta2 * (double)v + k->rest2 * (g * g);
    double update = k->rate * m1 / (sqrt(v1) + k->eps) + k->decay * (double)p;
    return (float)((double)p - update);
}

/* The largest power of two that is not above |x|: 0 for a denormal, Inf for NaN. */
static float power_of_two(float x)
{
    return float_of(bits_of(x) & AMP_F32_INF);
}

static void adam(const struct amp_apply_scalars *k, bool couple, size_t n, const any_f32 *g, any_f32 *p, any_f32 *m,
                 any_f32 *v)
{
    for (size_t i = 0; i < n; i++) {
        float clipped = g[i] * k->clip;
        double exact = couple ? coupled(k, clipped, p[i]) : (double)clipped;
        float d = (float)exact;
        float old_m = k->beta1_f * m[i];
        float new_m = k->rest1_f * d;
        float m1 = old_m + new_m;
        float v1 = k->beta2_f * v[i] + k->rest2_f * (d * d);
        float divisor = sqrtf(v1) + k->eps_f;
        float rated = k->rate_f * m1;
        float bound = fabsf(rated) + k->guard_fresh * fabsf(new_m) + AMP_ADAMW_GUARD_MIN;
        float p1;
        if (power_of_two(p[i]) * divisor * k->guard_keep >= bound)
            p1 = p[i] - (rated / divisor + k->decay_f * p[i]);
        else
            p1 = adam_in_double(k, exact, p[i], m[i], v[i]);
        m[i] = canonical(m1);
        v[i] = canonical(v1);
        p[i] = canonical(p1);
    }
}

static void apply_adamw(const struct amp_apply_scalars *k, size_t n, const any_f32 *g, any_f32 *p, any_f32 *m,
                        any_f32 *v)
{
    adam(k, false, n, g, p, m, v);
}

static void apply_adam(const struct amp_apply_scalars *k, size_t n, const any_f32 *g, any_f32 *p, any_f32 *m,
                       any_f32 *v)
{
    adam(k, true, n, g, p, m, v);
}

/* Adagrad; m is the sum of squares. */
static void apply_adagrad(const struct amp_apply_scalars *k, size_t n, const any_f32 *g, any_f32 *p, any_f32 *m,
                          any_f32 *v)
{
    for (size_t i = 0; i < n; i++) {
        double d = coupled(k, g[i] * k->clip, p[i]);
        double sum = (double)m[i] + d * d;
        double update = k->lr * d / (sqrt(sum) + k->eps);
        m[i] = canonical((float)sum);
        p[i] = canonical((float)((double)p[i] - update));
    }
}

/* RMSProp; m is the mean of squares, v the mean of gradients (centered), the momentum buffer, or NULL. */
static void apply_rmsprop(const struct amp_apply_scalars *k, size_t n, const any_f32 *g, any_f32 *p, any_f32 *m,
                          any_f32 *v)
{
    for (size_t i = 0; i < n; i++) {
        double d = coupled(k, g[i] * k->clip, p[i]);
        double square = k->beta2 * (double)m[i] + k->rest2 * (d * d);
        double spread = square;
        if (v != NULL && k->centered) {
            double mean = k->beta2 * (double)v[i] + k->rest2 * d;
            spread = square - mean * mean;
            spread = spread < 0 ? 0 : spread;
            v[i] = canonical((float)mean);
        }
        double step = d / (sqrt(spread) + k->eps);
        if (v != NULL && !k->centered) {
            step = k->momentum * (double)v[i] + step;
            v[i] = canonical((float)step);
        }
        m[i] = canonical((float)square);
        p[i] = canonical((float)((double)p[i] - k->lr * step));
    }
}

/* Lion: a step of the rate's size in the direction of the mean; zero and NaN stay what they are. */
static void apply_lion(const struct amp_apply_scalars *k, size_t n, const any_f32 *g, any_f32 *p, any_f32 *m,
                       any_f32 *v)
{
    for (size_t i = 0; i < n; i++) {
        double c = g[i] * k->clip;
        double mean = k->beta1 * (double)m[i] + k->rest1 * c;
        double step = mean > 0 ? k->lr : mean < 0 ? -k->lr : mean;
        m[i] = canonical((float)(k->beta2 * (double)m[i] + k->rest2 * c));
        p[i] = canonical((float)((double)p[i] - (step + k->decay * (double)p[i])));
    }
}

/* LAMB's update of one element before the trust ratio, and its moments, all unrounded. */
static double lamb_update(const struct amp_apply_scalars *k, float g, float p, float m, float v, double *m1, double *v1)
{
    double c = g * k->clip;
    *m1 = k->beta1 * (double)m + k->rest1 * c;
    *v1 = k->beta2 * (double)v + k->rest2 * (c * c);
    return k->rate * *m1 / (sqrt(*v1) + k->eps) + k->weight_decay * (double)p;
}

static void lamb_squares(const struct amp_apply_scalars *k, size_t n, const any_f32 *g, const any_f32 *p,
                         const any_f32 *m, const any_f32 *v, double masters[AMP_SQUARE_LANES],
                         double updates[AMP_SQUARE_LANES])
{
    for (size_t i = 0; i < n; i++) {
        double m1, v1;
        double update = lamb_update(k, g[i], p[i], m[i], v[i], &m1, &v1);
        masters[i % AMP_SQUARE_LANES] += (double)p[i] * (double)p[i];
        updates[i % AMP_SQUARE_LANES] += update * update;
    }
}

static void apply_lamb(const struct amp_apply_scalars *k, size_t n, const any_f32 *g, any_f32 *p, any_f32 *m,
                       any_f32 *v)
{
    for (size_t i = 0; i < n; i++) {
        double m1, v1;
        double update = lamb_update(k, g[i], p[i], m[i], v[i], &m1, &v1);
        m[i] = canonical((float)m1);
        v[i] = canonical((float)v1);
        p[i] = canonical((float)((double)p[i] - k->lr * update));
    }
}

/* Nothing is written past the caches. */
static void store_fence(void)
{
}

const struct amp_kernels amp_kernels_ref = {
    .isa = "ref",
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
