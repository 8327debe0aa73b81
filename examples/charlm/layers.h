/*
 * The layers of the language model that are not matrix products, and attention: plain functions on fp32 arrays.
 *
 * `rows` counts positions: all of a batch's sequences, one after the other. A matrix is row-major. A backward function
 * writes its gradients, unless it says that it adds. Nothing is allocated. An Inf or NaN that goes in comes out, so
 * that a loss scale that was too large is seen in the gradients. Any thread, on the caller's memory.
 *
 * The bits of sums depend on the processor's vector width: the same on one machine, not on all.
 */
#ifndef CHARLM_LAYERS_H
#define CHARLM_LAYERS_H

#include <stddef.h>
#include <stdint.h>

/* ---- layers.c ---- */

/* out[row] = tokens[token of the row] + positions[row % context]; both tables are [..][width]. */
void charlm_embedding_forward(float *out, const uint8_t *text, const float *tokens, const float *positions, size_t rows,
                              size_t context, size_t width);
/* The gradients of both tables; token_count and context are their numbers of rows. */
void charlm_embedding_backward(float *d_tokens, float *d_positions, const float *d_out, const uint8_t *text,
                               size_t rows, size_t context, size_t width, size_t token_count);

/* out = (in - mean) / sqrt(variance + 1e-5) * weight + bias, by row; mean and rstd [rows] are kept for backward. */
void charlm_layernorm_forward(float *out, float *mean, float *rstd, const float *in, const float *weight,
                              const float *bias, size_t rows, size_t width);
/* Adds the gradient of `in` to d_in, and writes those of weight and bias. */
void charlm_layernorm_backward(float *d_in, float *d_weight, float *d_bias, const float *d_out, const float *in,
                               const float *mean, const float *rstd, const float *weight, size_t rows, size_t width);

/* out = GELU(in), the form with tanh (Hendrycks 2016), as GPT-2 has it. */
void charlm_gelu_forward(float *out, const float *in, size_t count);
/* d_in = d_out * GELU'(in); d_in may be d_out. */
void charlm_gelu_backward(float *d_in, const float *d_out, const float *in, size_t count);

/* Each row of out = bias (NULL: 0) + the row of `add` (NULL: 0). A product is then added to it. */
void charlm_start_rows(float *out, const float *bias, const float *add, size_t rows, size_t width);
/* d_bias = the sum of the rows of d_out. */
void charlm_bias_backward(float *d_bias, const float *d_out, size_t rows, size_t width);

/*
 * The mean cross entropy of the rows of logits [rows][classes] against the targets. The logits are replaced by their
 * gradient times `factor` (the loss scale), and stay if factor is 0.
 */
double charlm_cross_entropy(float *logits, const uint8_t *targets, size_t rows, size_t classes, float factor);

/* e^x in fp32, for one number: what the layers use. Relative error below 1e-7 from -87.3 to 88.3; beyond, 0 or Inf. */
float charlm_exp(float x);

/* ---- attention.c ---- */

struct charlm_heads {
    size_t sequences, context; /* rows = sequences * context */
    size_t heads, size;        /* width = heads * size */
};

/*
 * Causal attention: out [rows][width] from qkv [rows][3 * width], whose row is query, key, value. `shares` keeps the
 * softmax for backward: [sequences][heads][context][context], of which only the blocks up to the diagonal are used.
 */
void charlm_attention_forward(float *out, float *shares, const float *qkv, const struct charlm_heads *heads);
/* Writes all of d_qkv. d_shares: scratch of context * context elements. */
void charlm_attention_backward(float *d_qkv, float *d_shares, const float *d_out, const float *qkv, const float *shares,
                               const struct charlm_heads *heads);

/*
 * Each row of `scores` [rows][stride] is multiplied by `factor` and becomes its softmax over the first
 * `first + row + 1` columns; the rest up to `columns` becomes 0.
 */
void charlm_softmax_causal(float *scores, size_t rows, size_t columns, size_t stride, size_t first, float factor);
/* d_shares has the gradient of the softmax `shares`, and becomes that of the scores before `factor`. */
void charlm_softmax_backward(float *d_shares, const float *shares, size_t rows, size_t columns, size_t stride,
                             float factor);

#endif
