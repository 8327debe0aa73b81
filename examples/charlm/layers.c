#include "examples/charlm/layers.h"

#include <math.h>
#include <string.h>

/*
 * Loops are written so that a compiler can take several elements at once; "omp simd" (-fopenmp-simd, no threads) lets
 * it reorder the sums of one loop. Gcc makes each function three times, for three widths of vectors, and the loader
 * takes the widest that the processor has.
 */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_WIDTH __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_WIDTH
#endif

#define LAYERNORM_EPSILON 1e-5f

/*
 * e^x = 2^n * e^r with |r| <= ln(2) / 2. n is rounded by adding and subtracting 1.5 * 2^23, ln(2) is split into two
 * parts so that r is exact enough, and e^r is Cephes' polynomial of degree 7 (expf). Beside exp in double, for every
 * third float in range: a relative error of at most 8.3e-8. No call and no branch, so the loops around it are
 * vectorised.
 */
static inline __attribute__((always_inline)) float exp_inline(float x)
{
    float within = x < -87.3f ? -87.3f : x;
    within = within > 88.3f ? 88.3f : within; /* a NaN passes both */
    float shifted = within * 1.44269504f + 12582912.0f;
    float n = shifted - 12582912.0f;
    float r = within - n * 0.693359375f + n * 2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * r + 1.3981999507e-3f;
    sum = sum * r + 8.3334519073e-3f;
    sum = sum * r + 4.1665795894e-2f;
    sum = sum * r + 1.6666665459e-1f;
    sum = sum * r + 5.0000001201e-1f;
    sum = sum * r * r + r + 1.0f;
    /* The lowest bits of `shifted` are n; moved to the exponent they multiply by 2^n. */
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000u;
    float power;
    memcpy(&power, &bits, sizeof power);
    float result = sum * power;
    result = x < -87.3f ? 0.0f : result;
    return x > 88.3f ? INFINITY : result;
}

float charlm_exp(float x)
{
    return exp_inline(x);
}

FOR_EACH_WIDTH
void charlm_embedding_forward(float *out, const uint8_t *text, const float *tokens, const float *positions, size_t rows,
                              size_t context, size_t width)
{
    for (size_t row = 0; row < rows; row++) {
        const float *token = tokens + text[row] * width, *position = positions + row % context * width;
        for (size_t i = 0; i < width; i++)
            out[row * width + i] = token[i] + position[i];
    }
}

FOR_EACH_WIDTH
void charlm_embedding_backward(float *restrict d_tokens, float *restrict d_positions, const float *restrict d_out,
                               const uint8_t *text, size_t rows, size_t context, size_t width, size_t token_count)
{
    memset(d_tokens, 0, token_count * width * sizeof *d_tokens);
    memset(d_positions, 0, context * width * sizeof *d_positions);
    for (size_t row = 0; row < rows; row++) {
        float *token = d_tokens + text[row] * width, *position = d_positions + row % context * width;
        for (size_t i = 0; i < width; i++) {
            token[i] += d_out[row * width + i];
            position[i] += d_out[row * width + i];
        }
    }
}

FOR_EACH_WIDTH
void charlm_layernorm_forward(float *restrict out, float *mean, float *rstd, const float *restrict in,
                              const float *restrict weight, const float *restrict bias, size_t rows, size_t width)
{
    for (size_t row = 0; row < rows; row++, in += width, out += width) {
        float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < width; i++)
            sum += in[i];
        float centre = sum / (float)width;
#pragma omp simd reduction(+ : squares)
        for (size_t i = 0; i < width; i++)
            squares += (in[i] - centre) * (in[i] - centre);
        float inverse = 1.0f / sqrtf(squares / (float)width + LAYERNORM_EPSILON);
        for (size_t i = 0; i < width; i++)
            out[i] = (in[i] - centre) * inverse * weight[i] + bias[i];
        mean[row] = centre;
        rstd[row] = inverse;
    }
}

/* With x^ = (x - mean) * rstd and g = d_out * weight: d_in = rstd * (g - mean(g) - x^ * mean(g * x^)). */
FOR_EACH_WIDTH
void charlm_layernorm_backward(float *restrict d_in, float *restrict d_weight, float *restrict d_bias,
                               const float *restrict d_out, const float *restrict in, const float *mean,
                               const float *rstd, const float *restrict weight, size_t rows, size_t width)
{
    memset(d_weight, 0, width * sizeof *d_weight);
    memset(d_bias, 0, width * sizeof *d_bias);
    for (size_t row = 0; row < rows; row++, in += width, d_in += width, d_out += width) {
        float centre = mean[row], inverse = rstd[row], sum = 0.0f, product = 0.0f;
#pragma omp simd reduction(+ : sum, product)
        for (size_t i = 0; i < width; i++) {
            float g = d_out[i] * weight[i];
            sum += g;
            product += g * (in[i] - centre);
        }
        float mean_g = sum / (float)width, mean_product = product * inverse / (float)width;
        for (size_t i = 0; i < width; i++) {
            float normal = (in[i] - centre) * inverse;
            d_in[i] += inverse * (d_out[i] * weight[i] - mean_g - normal * mean_product);
            d_weight[i] += d_out[i] * normal;
            d_bias[i] += d_out[i];
        }
    }
}

/*
 * GELU(x) = x / 2 * (1 + tanh(u)) = x / (1 + e^(-2u)), u = sqrt(2 / pi) * (x + 0.044715 x^3): the second form needs
 * e^x alone. e^(-2u) may be Inf, and the quotient is 0 then, as it should be.
 */
#define GELU_TWICE_ROOT 1.59576912161f /* 2 * sqrt(2 / pi) */
#define GELU_CUBE       0.044715f

FOR_EACH_WIDTH
void charlm_gelu_forward(float *restrict out, const float *restrict in, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float x = in[i];
        out[i] = x / (1.0f + exp_inline(-GELU_TWICE_ROOT * (x + GELU_CUBE * x * x * x)));
    }
}

/* With s = 1 / (1 + e^(-2u)): GELU' = s + x * s * (1 - s) * (2u)'. */
FOR_EACH_WIDTH
void charlm_gelu_backward(float *d_in, const float *d_out, const float *in, size_t count)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        float x = in[i];
        float s = 1.0f / (1.0f + exp_inline(-GELU_TWICE_ROOT * (x + GELU_CUBE * x * x * x)));
        float slope = GELU_TWICE_ROOT * (1.0f + 3.0f * GELU_CUBE * x * x);
        d_in[i] = d_out[i] * (s + x * s * (1.0f - s) * slope);
    }
}

FOR_EACH_WIDTH
void charlm_start_rows(float *restrict out, const float *restrict bias, const float *restrict add, size_t rows,
                       size_t width)
{
    for (size_t row = 0; row < rows; row++, out += width) {
        if (add == NULL && bias == NULL)
            memset(out, 0, width * sizeof *out);
        else if (add == NULL)
            memcpy(out, bias, width * sizeof *out);
        else if (bias == NULL)
            memcpy(out, add + row * width, width * sizeof *out);
        else
            for (size_t i = 0; i < width; i++)
                out[i] = bias[i] + add[row * width + i];
    }
}

FOR_EACH_WIDTH
void charlm_bias_backward(float *restrict d_bias, const float *restrict d_out, size_t rows, size_t width)
{
    memset(d_bias, 0, width * sizeof *d_bias);
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < width; i++)
            d_bias[i] += d_out[row * width + i];
}

FOR_EACH_WIDTH
double charlm_cross_entropy(float *logits, const uint8_t *targets, size_t rows, size_t classes, float factor)
{
    double loss = 0.0;
    for (size_t row = 0; row < rows; row++, logits += classes) {
        float largest = logits[0], sum = 0.0f, target = logits[targets[row]];
#pragma omp simd reduction(max : largest)
        for (size_t i = 0; i < classes; i++)
            largest = logits[i] > largest ? logits[i] : largest;
#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < classes; i++)
            sum += exp_inline(logits[i] - largest);
        loss += log((double)sum) - ((double)target - (double)largest);
        if (factor == 0.0f)
            continue;
        float each = factor / (float)rows;
        for (size_t i = 0; i < classes; i++)
            logits[i] = exp_inline(logits[i] - largest) / sum * each;
        logits[targets[row]] -= each;
    }
    return loss / (double)rows;
}

FOR_EACH_WIDTH
void charlm_softmax_causal(float *scores, size_t rows, size_t columns, size_t stride, size_t first, float factor)
{
    for (size_t row = 0; row < rows; row++, scores += stride) {
        size_t seen = first + row + 1;
        float largest = scores[0], sum = 0.0f;
#pragma omp simd reduction(max : largest)
        for (size_t i = 0; i < seen; i++)
            largest = scores[i] > largest ? scores[i] : largest;
#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < seen; i++) {
            scores[i] = exp_inline((scores[i] - largest) * factor);
            sum += scores[i];
        }
        for (size_t i = 0; i < seen; i++)
            scores[i] /= sum;
        for (size_t i = seen; i < columns; i++)
            scores[i] = 0.0f;
    }
}

/* With p the softmax and g its gradient: d = p * (g - sum(p * g)). */
FOR_EACH_WIDTH
void charlm_softmax_backward(float *restrict d_shares, const float *restrict shares, size_t rows, size_t columns,
                             size_t stride, float factor)
{
    for (size_t row = 0; row < rows; row++, d_shares += stride, shares += stride) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < columns; i++)
            sum += shares[i] * d_shares[i];
        for (size_t i = 0; i < columns; i++)
            d_shares[i] = shares[i] * (d_shares[i] - sum) * factor;
    }
}
