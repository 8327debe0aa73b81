#include "examples/charlm/layers.h"
#include "examples/charlm/product.h"

#include <math.h>

/*
 * Attention of one head and sequence is two products with a softmax between. Queries are taken in blocks: a block
 * needs only the keys up to its last query, which saves nearly half of the products; inside a block the softmax sets
 * what lies above the diagonal to 0.
 */
#define BLOCK 32

/* Where one head of one sequence lies in qkv and in the output. */
struct place {
    size_t qkv, out, shares, width;
};

static struct place place_of(const struct charlm_heads *heads, size_t sequence, size_t head)
{
    size_t width = heads->heads * heads->size, row = sequence * heads->context;
    return (struct place){.qkv = row * 3 * width + head * heads->size,
                          .out = row * width + head * heads->size,
                          .shares = (sequence * heads->heads + head) * heads->context * heads->context,
                          .width = width};
}

static void head_forward(float *out, float *shares, const float *q, size_t width, const struct charlm_heads *heads)
{
    size_t context = heads->context, size = heads->size, stride = 3 * width;
    const struct charlm_part k = {q + width, stride}, v = {q + 2 * width, stride};
    float factor = 1.0f / sqrtf((float)size);
    for (size_t first = 0; first < context; first += BLOCK) {
        size_t rows = context - first < BLOCK ? context - first : BLOCK, keys = first + rows;
        float *block = shares + first * context;
        charlm_product_part(CHARLM_NT, rows, keys, size, (struct charlm_part){q + first * stride, stride}, k, 0.0f,
                            block, context);
        charlm_softmax_causal(block, rows, keys, context, first, factor);
        charlm_product_part(CHARLM_NN, rows, size, keys, (struct charlm_part){block, context}, v, 0.0f,
                            out + first * width, width);
    }
}

void charlm_attention_forward(float *out, float *shares, const float *qkv, const struct charlm_heads *heads)
{
    for (size_t sequence = 0; sequence < heads->sequences; sequence++)
        for (size_t head = 0; head < heads->heads; head++) {
            struct place at = place_of(heads, sequence, head);
            head_forward(out + at.out, shares + at.shares, qkv + at.qkv, at.width, heads);
        }
}

/* From the last block to the first: the last one has all keys, so it writes what the others then add to. */
static void head_backward(float *d_q, float *d_shares, const float *d_out, const float *q, const float *shares,
                          size_t width, const struct charlm_heads *heads)
{
    size_t context = heads->context, size = heads->size, stride = 3 * width;
    const struct charlm_part k = {q + width, stride}, v = {q + 2 * width, stride};
    float factor = 1.0f / sqrtf((float)size), beta = 0.0f;
    for (size_t first = (context - 1) / BLOCK * BLOCK;; first -= BLOCK, beta = 1.0f) {
        size_t rows = context - first < BLOCK ? context - first : BLOCK, keys = first + rows;
        const struct charlm_part share = {shares + first * context, context}, d_share = {d_shares, context};
        const struct charlm_part d_row = {d_out + first * width, width}, query = {q + first * stride, stride};
        charlm_product_part(CHARLM_TN, keys, size, rows, share, d_row, beta, d_q + 2 * width, stride);
        charlm_product_part(CHARLM_NT, rows, keys, size, d_row, v, 0.0f, d_shares, context);
        charlm_softmax_backward(d_shares, share.data, rows, keys, context, factor);
        charlm_product_part(CHARLM_NN, rows, size, keys, d_share, k, 0.0f, d_q + first * stride, stride);
        charlm_product_part(CHARLM_TN, keys, size, rows, d_share, query, beta, d_q + width, stride);
        if (first == 0)
            return;
    }
}

void charlm_attention_backward(float *d_qkv, float *d_shares, const float *d_out, const float *qkv, const float *shares,
                               const struct charlm_heads *heads)
{
    for (size_t sequence = 0; sequence < heads->sequences; sequence++)
        for (size_t head = 0; head < heads->heads; head++) {
            struct place at = place_of(heads, sequence, head);
            head_backward(d_qkv + at.qkv, d_shares, d_out + at.out, qkv + at.qkv, shares + at.shares, at.width, heads);
        }
}
