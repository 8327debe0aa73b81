#include "examples/digits/digits.h"

#include "amp/autocast.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const digits_parameter_names[DIGITS_PARAMETERS] = {"fc1.weight", "fc1.bias",   "fc2.weight",
                                                               "fc2.bias",   "fc3.weight", "fc3.bias"};

size_t digits_parameter_elements(const struct digits_mlp *mlp, size_t index)
{
    size_t layer = index / 2;
    return index % 2 == 0 ? mlp->sizes[layer + 1] * mlp->sizes[layer] : mlp->sizes[layer + 1];
}

int digits_mlp_open(struct digits_mlp *mlp, const struct amp_kernels *kernels, size_t hidden, size_t batch)
{
    *mlp = (struct digits_mlp){
        .kernels = kernels, .sizes = {DIGITS_PIXELS, hidden, hidden, DIGITS_CLASSES}, .batch = batch};
    bool ok = true;
    size_t largest = 0;
    for (size_t i = 0; i < DIGITS_PARAMETERS; i++) {
        size_t elements = digits_parameter_elements(mlp, i);
        mlp->parameters[i] = calloc(elements, sizeof(float));
        mlp->gradients[i] = calloc(elements, sizeof(float));
        ok = ok && mlp->parameters[i] != NULL && mlp->gradients[i] != NULL;
        largest = elements > largest ? elements : largest;
    }
    for (size_t l = 0; l <= DIGITS_LAYERS; l++) {
        mlp->activations[l] = calloc(batch * mlp->sizes[l], sizeof(float));
        mlp->deltas[l] = calloc(batch * mlp->sizes[l], sizeof(float));
        ok = ok && mlp->activations[l] != NULL && mlp->deltas[l] != NULL;
    }
    mlp->scratch = calloc(largest, sizeof(float));
    if (ok && mlp->scratch != NULL)
        return 0;
    digits_mlp_close(mlp);
    return -1;
}

void digits_mlp_close(struct digits_mlp *mlp)
{
    for (size_t i = 0; i < DIGITS_PARAMETERS; i++) {
        free(mlp->parameters[i]);
        free(mlp->gradients[i]);
    }
    for (size_t l = 0; l <= DIGITS_LAYERS; l++) {
        free(mlp->activations[l]);
        free(mlp->deltas[l]);
    }
    free(mlp->scratch);
    *mlp = (struct digits_mlp){0};
}

void digits_mlp_init(struct digits_mlp *mlp, uint64_t seed)
{
    uint64_t state = seed;
    for (size_t i = 0; i < DIGITS_PARAMETERS; i += 2) {
        size_t fan_in = mlp->sizes[i / 2];
        double bound = sqrt(6.0 / (double)fan_in);
        size_t elements = digits_parameter_elements(mlp, i);
        for (size_t j = 0; j < elements; j++) {
            /* An LCG (Knuth's MMIX constants); its upper 53 bits are the uniform number. */
            state = state * 6364136223846793005u + 1442695040888963407u;
            double unit = (double)(state >> 11) * 0x1.0p-53;
            mlp->parameters[i][j] = (float)((2.0 * unit - 1.0) * bound);
        }
        memset(mlp->parameters[i + 1], 0, mlp->sizes[i / 2 + 1] * sizeof(float));
    }
}

/* Values as they are once cast to dtype and widened again. */
static void round_to(const struct digits_mlp *mlp, enum amp_dtype dtype, float *values, size_t count)
{
    uint16_t low[256];
    for (size_t i = 0; dtype != AMP_F32 && i < count; i += 256) {
        size_t n = count - i < 256 ? count - i : 256;
        amp_cast(mlp->kernels, low, dtype, values + i, AMP_F32, n);
        amp_cast(mlp->kernels, values + i, AMP_F32, low, dtype, n);
    }
}

/* out = in * weight^T + bias, with operands and result in the dtype that autocast gives a linear operation. */
static void linear_forward(struct digits_mlp *mlp, size_t layer, size_t batch)
{
    enum amp_dtype dtype = amp_autocast_dtype("linear", AMP_F32);
    size_t in = mlp->sizes[layer], out = mlp->sizes[layer + 1];
    float *weight = mlp->parameters[2 * layer], *bias = mlp->parameters[2 * layer + 1];
    round_to(mlp, dtype, mlp->activations[layer], batch * in);
    round_to(mlp, dtype, weight, in * out);
    round_to(mlp, dtype, bias, out);
    digits_product_nt(mlp->activations[layer + 1], mlp->activations[layer], weight, mlp->scratch, batch, out, in);
    for (size_t i = 0; i < batch; i++)
        for (size_t j = 0; j < out; j++)
            mlp->activations[layer + 1][i * out + j] += bias[j];
    round_to(mlp, dtype, mlp->activations[layer + 1], batch * out);
}

/* Gradients of weight, bias and input; they have the dtype of the forward operation. */
static void linear_backward(struct digits_mlp *mlp, size_t layer)
{
    enum amp_dtype dtype = amp_autocast_dtype("linear", AMP_F32);
    size_t in = mlp->sizes[layer], out = mlp->sizes[layer + 1];
    float *delta = mlp->deltas[layer + 1], *bias = mlp->gradients[2 * layer + 1];
    digits_product_tn(mlp->gradients[2 * layer], delta, mlp->activations[layer], out, in, mlp->batch);
    round_to(mlp, dtype, mlp->gradients[2 * layer], in * out);
    memset(bias, 0, out * sizeof *bias);
    for (size_t i = 0; i < mlp->batch; i++)
        for (size_t j = 0; j < out; j++)
            bias[j] += delta[i * out + j];
    round_to(mlp, dtype, bias, out);
    if (layer == 0)
        return;
    digits_product_nn(mlp->deltas[layer], delta, mlp->parameters[2 * layer], mlp->batch, in, out);
    round_to(mlp, dtype, mlp->deltas[layer], mlp->batch * in);
    for (size_t i = 0; i < mlp->batch * in; i++)
        if (!(mlp->activations[layer][i] > 0.0f))
            mlp->deltas[layer][i] = 0.0f;
}

static void forward(struct digits_mlp *mlp, const float *pixels, size_t batch)
{
    memcpy(mlp->activations[0], pixels, batch * DIGITS_PIXELS * sizeof(float));
    for (size_t layer = 0; layer < DIGITS_LAYERS; layer++) {
        linear_forward(mlp, layer, batch);
        float *out = mlp->activations[layer + 1];
        for (size_t i = 0; layer + 1 < DIGITS_LAYERS && i < batch * mlp->sizes[layer + 1]; i++)
            out[i] = out[i] > 0.0f ? out[i] : (out[i] <= 0.0f ? 0.0f : out[i]); /* relu keeps a NaN */
    }
}

/* Loss and gradient of one row of logits; fp32 by autocast's policy, its sums in double. */
static double cross_entropy(const float *logits, uint8_t digit, double factor, float *delta)
{
    double exps[DIGITS_CLASSES], sum = 0.0;
    float largest = logits[0];
    for (size_t j = 1; j < DIGITS_CLASSES; j++)
        largest = logits[j] > largest ? logits[j] : largest;
    for (size_t j = 0; j < DIGITS_CLASSES; j++) {
        exps[j] = digits_exp((double)logits[j] - (double)largest);
        sum += exps[j];
    }
    for (size_t j = 0; j < DIGITS_CLASSES; j++)
        delta[j] = (float)((exps[j] / sum - (j == digit ? 1.0 : 0.0)) * factor);
    return log(sum) - ((double)logits[digit] - (double)largest); /* shown to people only */
}

float digits_mlp_train(struct digits_mlp *mlp, const float *pixels, const uint8_t *digits, float scale)
{
    forward(mlp, pixels, mlp->batch);
    double loss = 0.0, factor = (double)scale / (double)mlp->batch;
    for (size_t i = 0; i < mlp->batch; i++)
        loss += cross_entropy(mlp->activations[DIGITS_LAYERS] + i * DIGITS_CLASSES, digits[i], factor,
                              mlp->deltas[DIGITS_LAYERS] + i * DIGITS_CLASSES);
    round_to(mlp, amp_autocast_dtype("linear", AMP_F32), mlp->deltas[DIGITS_LAYERS], mlp->batch * DIGITS_CLASSES);
    for (size_t layer = DIGITS_LAYERS; layer-- > 0;)
        linear_backward(mlp, layer);
    return (float)(loss / (double)mlp->batch);
}

double digits_mlp_accuracy(struct digits_mlp *mlp, const float *pixels, const uint8_t *digits, size_t count)
{
    size_t right = 0;
    for (size_t first = 0; first < count; first += mlp->batch) {
        size_t n = count - first < mlp->batch ? count - first : mlp->batch;
        forward(mlp, pixels + first * DIGITS_PIXELS, n);
        for (size_t i = 0; i < n; i++) {
            const float *logits = mlp->activations[DIGITS_LAYERS] + i * DIGITS_CLASSES;
            size_t best = 0;
            for (size_t j = 1; j < DIGITS_CLASSES; j++)
                best = logits[j] > logits[best] ? j : best;
            right += best == digits[first + i];
        }
    }
    return (double)right / (double)count;
}
