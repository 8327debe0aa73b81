/*
 * The reference kernels: plain C, one element at a time. What they compute is what docs/numerics.md says, and every
 * other variant has to give the same bits. They are read before they are run: no trick that is not in the document.
 *
 * They need -ffp-contract=off and no GNU dialect (a * b + c must round twice), and the default floating-point
 * environment: round to nearest even, denormals kept.
 */
#include "amp/kernels.h"

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

static void load_f32(float *dst, const void *src, size_t n)
{
    const float *s = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = canonical(s[i]);
}

static void load_f16(float *dst, const void *src, size_t n)
{
    const uint16_t *s = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = f32_of_f16(s[i]);
}

static void load_bf16(float *dst, const void *src, size_t n)
{
    const uint16_t *s = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = f32_of_bf16(s[i]);
}

static uint32_t store_f32(void *dst, const float *src, size_t n)
{
    float *d = dst;
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t a = magnitude(src[i]);
        largest = a > largest ? a : largest;
        d[i] = canonical(src[i]);
    }
    return largest;
}

static uint32_t store_f16(void *dst, const float *src, size_t n)
{
    uint16_t *d = dst;
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t a = magnitude(src[i]);
        largest = a > largest ? a : largest;
        d[i] = f16_of_f32(src[i]);
    }
    return largest;
}

static uint32_t store_bf16(void *dst, const float *src, size_t n)
{
    uint16_t *d = dst;
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
    const float *s = src;
    for (size_t i = 0; i < n; i++)
        check_one(s[i], base + i, check);
}

static void check_f16(const void *src, size_t n, uint64_t base, struct amp_check *check)
{
    const uint16_t *s = src;
    for (size_t i = 0; i < n; i++)
        check_one(f32_of_f16(s[i]), base + i, check);
}

static void check_bf16(const void *src, size_t n, uint64_t base, struct amp_check *check)
{
    const uint16_t *s = src;
    for (size_t i = 0; i < n; i++)
        check_one(f32_of_bf16(s[i]), base + i, check);
}

static void sum_set_f32(float *sum, const void *src, float weight, size_t n)
{
    const float *s = src;
    for (size_t i = 0; i < n; i++)
        sum[i] = weight * s[i];
}

static void sum_add_f32(float *sum, const void *src, float weight, size_t n)
{
    const float *s = src;
    for (size_t i = 0; i < n; i++)
        sum[i] = sum[i] + weight * s[i];
}

static void sum_set_f16(float *sum, const void *src, float weight, size_t n)
{
    const uint16_t *s = src;
    for (size_t i = 0; i < n; i++)
        sum[i] = weight * f32_of_f16(s[i]);
}

static void sum_add_f16(float *sum, const void *src, float weight, size_t n)
{
    const uint16_t *s = src;
    for (size_t i = 0; i < n; i++)
        sum[i] = sum[i] + weight * f32_of_f16(s[i]);
}

static void sum_set_bf16(float *sum, const void *src, float weight, size_t n)
{
    const uint16_t *s = src;
    for (size_t i = 0; i < n; i++)
        sum[i] = weight * f32_of_bf16(s[i]);
}

static void sum_add_bf16(float *sum, const void *src, float weight, size_t n)
{
    const uint16_t *s = src;
    for (size_t i = 0; i < n; i++)
        sum[i] = sum[i] + weight * f32_of_bf16(s[i]);
}

static uint32_t scale(float *dst, const float *src, float factor, size_t n)
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
    for (unsigned i = 0; i < inputs_count; i++) {
        enum amp_dtype dtype = inputs[i].dtype;
        const char *data = (const char *)inputs[i].data + start * amp_dtype_size(dtype);
        amp_sum_fn *sum = i == 0 ? amp_kernels_ref.sum_set[dtype] : amp_kernels_ref.sum_add[dtype];
        sum(g, data, equal_weights ? 1.0f : inputs[i].weight, n);
    }
    return scale(g, g, factor, n);
}

static void clip_value(float *g, float limit, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x = limit < g[i] ? limit : g[i];
        g[i] = canonical(-limit > x ? -limit : x);
    }
}

static void squares(const float *g, size_t n, double lanes[AMP_SQUARE_LANES])
{
    for (size_t i = 0; i < n; i++) {
        double x = g[i];
        lanes[i % AMP_SQUARE_LANES] += x * x;
    }
}

/* SGD in double throughout; buffer and master are rounded once, where they are stored. */
static void apply_sgd(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
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

/* AdamW's new master in double, from the old state: for an update that is not small against the master. */
static float adamw_in_double(const struct amp_apply_scalars *k, float g, float p, float m, float v)
{
    double m1 = k->beta1 * (double)m + k->rest1 * (double)g;
    double v1 = k->beta2 * (double)v + k->rest2 * ((double)g * (double)g);
    double update = k->rate * m1 / (sqrt(v1) + k->eps) + k->decay * (double)p;
    return (float)((double)p - update);
}

static void apply_adamw(const struct amp_apply_scalars *k, size_t n, const float *g, float *p, float *m, float *v)
{
    for (size_t i = 0; i < n; i++) {
        float clipped = g[i] * k->clip;
        float old_m = k->beta1_f * m[i];
        float new_m = k->rest1_f * clipped;
        float m1 = old_m + new_m;
        float v1 = k->beta2_f * v[i] + k->rest2_f * (clipped * clipped);
        float divisor = sqrtf(v1) + k->eps_f;
        float bound = k->guard_rate * (fabsf(old_m) + fabsf(new_m)) + AMP_ADAMW_GUARD_MIN;
        float p1;
        if (fabsf(p[i]) * divisor * k->guard_keep >= bound)
            p1 = p[i] - (k->rate_f * m1 / divisor + k->decay_f * p[i]);
        else
            p1 = adamw_in_double(k, clipped, p[i], m[i], v[i]);
        m[i] = canonical(m1);
        v[i] = canonical(v1);
        p[i] = canonical(p1);
    }
}

const struct amp_kernels amp_kernels_ref = {
    .isa = "ref",
    .load = {[AMP_F32] = load_f32, [AMP_F16] = load_f16, [AMP_BF16] = load_bf16},
    .store = {[AMP_F32] = store_f32, [AMP_F16] = store_f16, [AMP_BF16] = store_bf16},
    .check = {[AMP_F32] = check_f32, [AMP_F16] = check_f16, [AMP_BF16] = check_bf16},
    .sum_set = {[AMP_F32] = sum_set_f32, [AMP_F16] = sum_set_f16, [AMP_BF16] = sum_set_bf16},
    .sum_add = {[AMP_F32] = sum_add_f32, [AMP_F16] = sum_add_f16, [AMP_BF16] = sum_add_bf16},
    .scale = scale,
    .form = form,
    .clip_value = clip_value,
    .squares = squares,
    .apply = {[AMP_OPT_SGD] = apply_sgd, [AMP_OPT_ADAMW] = apply_adamw},
};
