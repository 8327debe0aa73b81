#include "examples/digits/digits.h"

#include <string.h>

/*
 * The loops run with the output's column innermost: the compiler may take several columns at once, and each element is
 * still one chain of a product, rounded, and a sum, rounded. A BLAS would be faster and give other bits on other
 * machines.
 */
static void add_scaled(float *restrict out, const float *restrict row, float factor, size_t n)
{
    for (size_t j = 0; j < n; j++)
        out[j] += factor * row[j];
}

void digits_product_nt(float *out, const float *a, const float *b, float *b_t, size_t m, size_t n, size_t k)
{
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < k; i++)
            b_t[i * n + j] = b[j * k + i];
    digits_product_nn(out, a, b_t, m, n, k);
}

void digits_product_tn(float *out, const float *a, const float *b, size_t m, size_t n, size_t k)
{
    memset(out, 0, m * n * sizeof *out);
    for (size_t i = 0; i < m; i++)
        for (size_t r = 0; r < k; r++)
            add_scaled(out + i * n, b + r * n, a[r * m + i], n);
}

void digits_product_nn(float *out, const float *a, const float *b, size_t m, size_t n, size_t k)
{
    memset(out, 0, m * n * sizeof *out);
    for (size_t i = 0; i < m; i++)
        for (size_t r = 0; r < k; r++)
            add_scaled(out + i * n, b + r * n, a[i * k + r], n);
}

/* e^x = 2^n * e^r with |r| <= ln(2)/2; Taylor to r^13 (error below 2^-50), Horner, all in double. */
double digits_exp(double x)
{
    static const double inverse_factorials[] = {
        1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
        1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       1.0 / 2,      1.0,         1.0};
    if (!(x <= 0.0))
        return x; /* a NaN stays one; softmax gives nothing above 0 */
    if (x < -700.0)
        return 0.0;
    int n = (int)(x * 1.4426950408889634 - 0.5);
    double r = x - n * 0.693147180369123816490 - n * 1.90821492927058770002e-10;
    double sum = 0.0;
    for (size_t i = 0; i < sizeof inverse_factorials / sizeof *inverse_factorials; i++)
        sum = sum * r + inverse_factorials[i];
    uint64_t bits = (uint64_t)(1023 + n) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}
