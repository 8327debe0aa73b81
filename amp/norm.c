/* For p other than 1 and 2 powers of |x| / largest are summed, which neither overflow nor vanish together. */
#include "amp/norm.h"

#include "amp/kernels.h"
#include "amp/reduce.h"

#include <math.h>
#include <string.h>

/* Elements widened at a time: a multiple of the lanes that stays in the first cache level. */
#define TILE 1024
_Static_assert(TILE % AMP_SQUARE_LANES == 0 && AMP_NORM_BLOCK % TILE == 0, "lanes go on from tile to tile");

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/*
 * log2(x) of a normal x > 0: x = m * 2^e with m in [sqrt(1/2), sqrt(2)), log2(m) = 2/ln(2) * atanh((m - 1) / (m + 1)).
 */
static double log2_of(double x)
{
    const double two_over_ln2 = 0x1.71547652b82fep+1;
    uint64_t bits = bits_of(x);
    int e = (int)(bits >> 52) - 1023;
    double m = double_of((bits & 0xfffffffffffffu) | (UINT64_C(1023) << 52));
    if (m > 0x1.6a09e667f3bcdp+0) {
        m = m * 0.5;
        e++;
    }
    double s = (m - 1) / (m + 1);
    double z = s * s;
    double sum = 1.0 / 23;
    for (int i = 21; i >= 1; i -= 2)
        sum = sum * z + 1.0 / i;
    return (double)e + two_over_ln2 * (s * sum);
}

/* 2^t for t in [-1022, 1023]: 2^k * e^(f ln 2), k the integer nearest to t, |f| <= 1/2, by Taylor's series. */
static double exp2_of(double t)
{
    static const double c[] = {1.0 / 87178291200,
                               1.0 / 6227020800,
                               1.0 / 479001600,
                               1.0 / 39916800,
                               1.0 / 3628800,
                               1.0 / 362880,
                               1.0 / 40320,
                               1.0 / 5040,
                               1.0 / 720,
                               1.0 / 120,
                               1.0 / 24,
                               1.0 / 6,
                               0.5,
                               1.0,
                               1.0};
    const double ln2 = 0x1.62e42fefa39efp-1;
    int k = (int)(t + (t < 0 ? -0.5 : 0.5));
    double y = (t - (double)k) * ln2;
    double sum = c[0];
    for (unsigned i = 1; i < sizeof c / sizeof c[0]; i++)
        sum = sum * y + c[i];
    /* In two factors, since 2^-1022 times a sum below 1 is a denormal. */
    int half = k / 2;
    return sum * double_of((uint64_t)(1023 + half) << 52) * double_of((uint64_t)(1023 + k - half) << 52);
}

double amp_real_power(double x, double p)
{
    if (x < 0x1p-1022)
        return 0;
    double t = p * log2_of(x);
    return t < -1022 ? 0 : exp2_of(t);
}

float amp_norm_largest(const struct amp_kernels *kernels, const struct amp_span *span)
{
    uint32_t bits = kernels->largest[span->dtype](span->data, span->count);
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    return largest;
}

double amp_norm_block(const struct amp_kernels *kernels, const struct amp_span *block, double p, float unit)
{
    _Alignas(64) float tile[TILE];
    double lanes[AMP_SQUARE_LANES] = {0};
    size_t size = amp_dtype_size(block->dtype);
    for (size_t start = 0; start < block->count; start += TILE) {
        size_t n = block->count - start < TILE ? block->count - start : TILE;
        kernels->load[block->dtype](tile, (const char *)block->data + start * size, n);
        if (p == 1)
            kernels->magnitudes(tile, n, lanes);
        else if (p == 2)
            kernels->squares(tile, n, lanes);
        else
            kernels->powers(tile, n, p, unit, lanes);
    }
    return amp_tree_lanes(lanes);
}

double amp_norm_sum(const struct amp_kernels *kernels, const struct amp_span *span, double p, float unit)
{
    struct amp_tree tree;
    amp_tree_init(&tree);
    size_t size = amp_dtype_size(span->dtype);
    for (size_t start = 0; start < span->count; start += AMP_NORM_BLOCK) {
        size_t rest = span->count - start;
        struct amp_span block = {(const char *)span->data + start * size, rest < AMP_NORM_BLOCK ? rest : AMP_NORM_BLOCK,
                                 span->dtype};
        amp_tree_add(&tree, start / AMP_NORM_BLOCK, amp_norm_block(kernels, &block, p, unit));
    }
    return amp_tree_sum(&tree);
}

/* unit * 2^t, t >= 0: of a p below 1, t may leave exp2_of's range where unit is small and the product is not Inf. */
static double unit_exp2(double unit, double t)
{
    if (t <= 1023)
        return unit * exp2_of(t);
    return t < 2046 ? unit * exp2_of(t / 2) * exp2_of(t / 2) : (double)INFINITY;
}

double amp_norm_of_sum(double sum, double p, float unit)
{
    if (p == 1)
        return sum;
    if (p == 2)
        return sqrt(sum);
    return sum > 0 ? unit_exp2((double)unit, log2_of(sum) / p) : 0;
}
