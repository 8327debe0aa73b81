/*
 * Kernels that compute in double, once for all vector variants: the optimizers but Adam and AdamW, and the sums of
 * squares and of magnitudes. Only for kernels_<isa>.c, which before it names
 *
 *     INLINE                             how a function is defined whose call costs too much
 *     WIDTH                              floats of a vector
 *     vf, vd                             a vector of floats; of half as many doubles, with the operators of C
 *     vd_widen                           the HALF floats at an address as doubles
 *     vf_load, vf_store, vf_all, vd_load, vd_store, vd_all, vd_root, vd_magnitude
 *     vd_at_least_zero                   x < 0 ? 0 : x
 *     vd_step_of_sign                    x > 0 ? size : x < 0 ? -size : x
 *     low_half, high_half, join_halves   between the two, rounding to nearest
 *     canonical
 *
 * Every operation is one of kernels/ref.c in the same order, so the bits are the same; the compiler must not contract
 * (-ffp-contract=off). Faster by the width of the vectors; tails are the reference's.
 */
#ifndef AMP_KERNELS_DOUBLE_H
#define AMP_KERNELS_DOUBLE_H

#include "amp/kernels.h"

/* Doubles of a vector, and vectors of the 16 lanes. */
#define HALF         (WIDTH / 2)
#define LANE_VECTORS (AMP_SQUARE_LANES / HALF)

/* Unrolled, so that an array of them is registers. */
#define EACH_LANE_VECTOR(J) _Pragma("GCC unroll 8") for (size_t J = 0; J < LANE_VECTORS; J++)

#include "amp/kernels/double_optimizers.h"

static void lanes_load(vd *x, const double *lanes)
{
    for (size_t j = 0; j < LANE_VECTORS; j++)
        x[j] = vd_load(lanes + j * HALF);
}

static void lanes_store(double *lanes, const vd *x)
{
    for (size_t j = 0; j < LANE_VECTORS; j++)
        vd_store(lanes + j * HALF, x[j]);
}

static void lamb_squares(const struct amp_apply_scalars *k, size_t n, const float *g, const float *p, const float *m,
                         const float *v, double masters[AMP_SQUARE_LANES], double updates[AMP_SQUARE_LANES])
{
    vd of_masters[LANE_VECTORS], of_updates[LANE_VECTORS];
    lanes_load(of_masters, masters);
    lanes_load(of_updates, updates);
    size_t whole = n - n % AMP_SQUARE_LANES;
    for (size_t i = 0; i < whole; i += WIDTH) {
        size_t lane = i % AMP_SQUARE_LANES / HALF;
        vf c = vf_load(g + i) * vf_all(k->clip);
        vf p0 = vf_load(p + i), m0 = vf_load(m + i), v0 = vf_load(v + i);
        struct half low = {low_half(p0), low_half(m0), low_half(v0)};
        struct half high = {high_half(p0), high_half(m0), high_half(v0)};
        vd update_low = lamb_update(k, low_half(c), &low);
        vd update_high = lamb_update(k, high_half(c), &high);
        of_masters[lane] += low.p * low.p;
        of_masters[lane + 1] += high.p * high.p;
        of_updates[lane] += update_low * update_low;
        of_updates[lane + 1] += update_high * update_high;
    }
    lanes_store(masters, of_masters);
    lanes_store(updates, of_updates);
    amp_kernels_ref.lamb_squares(k, n - whole, g + whole, p + whole, m + whole, v + whole, masters, updates);
}

static vd vd_square(vd x)
{
    return x * x;
}

/* Adds TERM of each element to its lane. */
#define SUM_IN_DOUBLE(NAME, TERM)                                                                                      \
    static void NAME(const float *g, size_t n, double lanes[AMP_SQUARE_LANES])                                         \
    {                                                                                                                  \
        vd sum[LANE_VECTORS];                                                                                          \
        lanes_load(sum, lanes);                                                                                        \
        size_t whole = n - n % AMP_SQUARE_LANES;                                                                       \
        for (size_t i = 0; i < whole; i += AMP_SQUARE_LANES) {                                                         \
            EACH_LANE_VECTOR(j) sum[j] += TERM(vd_widen(g + i + j * HALF));                                            \
        }                                                                                                              \
        lanes_store(lanes, sum);                                                                                       \
        amp_kernels_ref.NAME(g + whole, n - whole, lanes);                                                             \
    }

SUM_IN_DOUBLE(squares, vd_square)
SUM_IN_DOUBLE(magnitudes, vd_magnitude)

/* Real powers are rare, and most of their time is in the polynomials: the reference's. */
static void powers(const float *g, size_t n, double p, float unit, double lanes[AMP_SQUARE_LANES])
{
    amp_kernels_ref.powers(g, n, p, unit, lanes);
}

#endif
