/*
 * The layers of examples/charlm. Each has a reference in double here: forward is compared with it, and backward with
 * the finite differences of it. A layer's gradient is checked for the sum of its outputs times fixed random weights.
 */
#include "examples/charlm/layers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

#include <cmocka.h>

/* Finite differences of a double: their error is about STEP squared. */
#define STEP      1e-4
#define TOLERANCE 2e-5
#define COUNT_MAX 4096

/* A layer's outputs from all its inputs, which lie one after the other. */
typedef void (*reference_fn)(double *out, const double *in);

static uint64_t random_state = 1;

static float random_float(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(random_state >> 11) * 0x1.0p-52 - 1.0);
}

static void fill(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = random_float();
}

static bool close_to(double have, double want)
{
    return fabs(have - want) <= TOLERANCE * (1.0 + fabs(want));
}

/* Whether forward and backward fit the reference; d_in has the layer's gradients for the weights d_out. */
static void expect(reference_fn reference, const float *in, size_t in_count, const float *out, const float *d_out,
                   size_t out_count, const float *d_in)
{
    static double point[COUNT_MAX], above[COUNT_MAX], below[COUNT_MAX];
    assert_true(in_count <= COUNT_MAX && out_count <= COUNT_MAX);
    for (size_t i = 0; i < in_count; i++)
        point[i] = (double)in[i];
    reference(above, point);
    for (size_t i = 0; i < out_count; i++)
        assert_true(close_to((double)out[i], above[i]));
    for (size_t i = 0; i < in_count; i++) {
        double slope = 0.0;
        point[i] = (double)in[i] + STEP;
        reference(above, point);
        point[i] = (double)in[i] - STEP;
        reference(below, point);
        point[i] = (double)in[i];
        for (size_t j = 0; j < out_count; j++)
            slope += (double)d_out[j] * (above[j] - below[j]) / (2.0 * STEP);
        assert_true(close_to((double)d_in[i], slope));
    }
}

/* ---- e^x ---- */

static void exp_is_within_1e_7_of_the_true_value(void **state)
{
    double worst = 0.0;
    for (float x = -87.0f; x < 88.0f; x += 0.00173f)
        worst = fmax(worst, fabs((double)charlm_exp(x) / exp((double)x) - 1.0));
    assert_true(worst < 1e-7);
}

static void exp_keeps_what_is_not_finite(void **state)
{
    assert_true(charlm_exp(-INFINITY) == 0.0f && charlm_exp(-90.0f) == 0.0f && charlm_exp(0.0f) == 1.0f);
    assert_true(isinf(charlm_exp(INFINITY)) && isinf(charlm_exp(89.0f)) && isnan(charlm_exp(NAN)));
}

/* ---- embedding ---- */

enum { ROWS = 6, CONTEXT = 3, WIDTH = 20, TABLE = 5 };
static const uint8_t text[ROWS] = {1, 4, 1, 0, 1, 3};

static void embedding_reference(double *out, const double *in)
{
    for (size_t row = 0; row < ROWS; row++)
        for (size_t i = 0; i < WIDTH; i++)
            out[row * WIDTH + i] = in[text[row] * WIDTH + i] + in[(TABLE + row % CONTEXT) * WIDTH + i];
}

static void embedding_fits_its_reference(void **state)
{
    enum { IN = (TABLE + CONTEXT) * WIDTH, OUT = ROWS * WIDTH };
    float in[IN], out[OUT], d_out[OUT], d_in[IN];
    fill(in, IN);
    fill(d_out, OUT);
    charlm_embedding_forward(out, text, in, in + TABLE * WIDTH, ROWS, CONTEXT, WIDTH);
    charlm_embedding_backward(d_in, d_in + TABLE * WIDTH, d_out, text, ROWS, CONTEXT, WIDTH, TABLE);
    expect(embedding_reference, in, IN, out, d_out, OUT, d_in);
}

/* ---- layer norm ---- */

static void layernorm_reference(double *out, const double *in)
{
    const double *weight = in + ROWS * WIDTH, *bias = weight + WIDTH;
    for (size_t row = 0; row < ROWS; row++, in += WIDTH, out += WIDTH) {
        double mean = 0.0, variance = 0.0;
        for (size_t i = 0; i < WIDTH; i++)
            mean += in[i] / WIDTH;
        for (size_t i = 0; i < WIDTH; i++)
            variance += (in[i] - mean) * (in[i] - mean) / WIDTH;
        for (size_t i = 0; i < WIDTH; i++)
            out[i] = (in[i] - mean) / sqrt(variance + 1e-5) * weight[i] + bias[i];
    }
}

static void layernorm_fits_its_reference(void **state)
{
    enum { OUT = ROWS * WIDTH, IN = OUT + 2 * WIDTH };
    float in[IN], out[OUT], d_out[OUT], d_in[IN] = {0}, mean[ROWS], rstd[ROWS];
    float *weight = in + OUT, *bias = weight + WIDTH;
    fill(in, IN);
    fill(d_out, OUT);
    charlm_layernorm_forward(out, mean, rstd, in, weight, bias, ROWS, WIDTH);
    charlm_layernorm_backward(d_in, d_in + OUT, d_in + OUT + WIDTH, d_out, in, mean, rstd, weight, ROWS, WIDTH);
    expect(layernorm_reference, in, IN, out, d_out, OUT, d_in);
}

static void layernorm_backward_adds_to_the_gradient_of_its_input(void **state)
{
    float in[WIDTH], out[WIDTH], d_out[WIDTH], once[WIDTH] = {0}, twice[WIDTH] = {0}, mean, rstd, d[2 * WIDTH];
    float weight[WIDTH];
    fill(in, WIDTH);
    fill(d_out, WIDTH);
    fill(weight, WIDTH);
    charlm_layernorm_forward(out, &mean, &rstd, in, weight, weight, 1, WIDTH);
    charlm_layernorm_backward(once, d, d + WIDTH, d_out, in, &mean, &rstd, weight, 1, WIDTH);
    memcpy(twice, once, sizeof once);
    charlm_layernorm_backward(twice, d, d + WIDTH, d_out, in, &mean, &rstd, weight, 1, WIDTH);
    for (size_t i = 0; i < WIDTH; i++)
        assert_true(twice[i] == 2.0f * once[i]);
}

/* ---- GELU ---- */

enum { GELU_COUNT = 101 };

static void gelu_reference(double *out, const double *in)
{
    for (size_t i = 0; i < GELU_COUNT; i++)
        out[i] = in[i] / 2.0 * (1.0 + tanh(0.7978845608028654 * (in[i] + 0.044715 * in[i] * in[i] * in[i])));
}

static void gelu_fits_its_reference(void **state)
{
    float in[GELU_COUNT], out[GELU_COUNT], d_out[GELU_COUNT], d_in[GELU_COUNT];
    for (size_t i = 0; i < GELU_COUNT; i++)
        in[i] = 0.2f * ((float)i - 50.0f); /* -10 to 10 */
    fill(d_out, GELU_COUNT);
    charlm_gelu_forward(out, in, GELU_COUNT);
    charlm_gelu_backward(d_in, d_out, in, GELU_COUNT);
    expect(gelu_reference, in, GELU_COUNT, out, d_out, GELU_COUNT, d_in);
    charlm_gelu_backward(d_out, d_out, in, GELU_COUNT);
    assert_memory_equal(d_out, d_in, sizeof d_in); /* in place */
}

/* ---- rows and biases ---- */

static void rows_start_with_the_bias_and_what_is_added(void **state)
{
    static const float bias[2] = {1, 2}, add[4] = {10, 20, 30, 40};
    float out[4];
    charlm_start_rows(out, bias, add, 2, 2);
    assert_true(out[0] == 11 && out[1] == 22 && out[2] == 31 && out[3] == 42);
    charlm_start_rows(out, bias, NULL, 2, 2);
    assert_true(out[0] == 1 && out[1] == 2 && out[2] == 1 && out[3] == 2);
    charlm_start_rows(out, NULL, add, 2, 2);
    assert_memory_equal(out, add, sizeof add);
    charlm_start_rows(out, NULL, NULL, 2, 2);
    assert_true(out[0] == 0 && out[1] == 0 && out[2] == 0 && out[3] == 0);
    charlm_bias_backward(out, add, 2, 2);
    assert_true(out[0] == 40 && out[1] == 60);
}

/* ---- cross entropy ---- */

enum { CLASSES = 7 };
static const uint8_t targets[ROWS] = {0, 6, 3, 3, 2, 5};

static void cross_entropy_reference(double *out, const double *in)
{
    *out = 0.0;
    for (size_t row = 0; row < ROWS; row++) {
        double sum = 0.0;
        for (size_t i = 0; i < CLASSES; i++)
            sum += exp(in[row * CLASSES + i]);
        *out += (log(sum) - in[row * CLASSES + targets[row]]) / ROWS;
    }
}

static void cross_entropy_fits_its_reference_and_scales_its_gradient(void **state)
{
    enum { IN = ROWS * CLASSES };
    static const float scale = 1024.0f;
    float in[IN], logits[IN];
    fill(in, IN);
    memcpy(logits, in, sizeof in);
    float loss = (float)charlm_cross_entropy(logits, targets, ROWS, CLASSES, 0.0f);
    assert_memory_equal(logits, in, sizeof in);
    assert_true((float)charlm_cross_entropy(logits, targets, ROWS, CLASSES, scale) == loss);
    for (size_t i = 0; i < IN; i++)
        logits[i] /= scale;
    static const float one = 1.0f;
    expect(cross_entropy_reference, in, IN, &loss, &one, 1, logits);
}

/* ---- attention ---- */

/* More positions than a block of queries has, and no multiple of it. */
enum { SEQUENCES = 2, POSITIONS = 37, HEADS = 2, SIZE = 3, QKV = 3 * HEADS * SIZE };
static const struct charlm_heads heads = {SEQUENCES, POSITIONS, HEADS, SIZE};

/* Of one query: the softmax over the keys before it and its own, times the values. */
static void query_reference(double *out, const double *sequence, size_t head, size_t position)
{
    double shares[POSITIONS], sum = 0.0;
    const double *query = sequence + position * QKV + head * SIZE;
    for (size_t other = 0; other <= position; other++) {
        double score = 0.0;
        for (size_t i = 0; i < SIZE; i++)
            score += query[i] * sequence[other * QKV + HEADS * SIZE + head * SIZE + i];
        shares[other] = exp(score / sqrt(SIZE));
        sum += shares[other];
    }
    for (size_t i = 0; i < SIZE; i++) {
        out[i] = 0.0;
        for (size_t other = 0; other <= position; other++)
            out[i] += shares[other] / sum * sequence[other * QKV + 2 * HEADS * SIZE + head * SIZE + i];
    }
}

static void attention_reference(double *out, const double *in)
{
    for (size_t sequence = 0; sequence < SEQUENCES; sequence++)
        for (size_t head = 0; head < HEADS; head++)
            for (size_t position = 0; position < POSITIONS; position++)
                query_reference(out + ((sequence * POSITIONS + position) * HEADS + head) * SIZE,
                                in + sequence * POSITIONS * QKV, head, position);
}

static void attention_fits_its_reference(void **state)
{
    enum { IN = SEQUENCES * POSITIONS * QKV, OUT = IN / 3 };
    static float in[IN], out[OUT], d_out[OUT], d_in[IN], shares[SEQUENCES * HEADS * POSITIONS * POSITIONS];
    float scratch[POSITIONS * POSITIONS];
    fill(in, IN);
    fill(d_out, OUT);
    charlm_attention_forward(out, shares, in, &heads);
    charlm_attention_backward(d_in, scratch, d_out, in, shares, &heads);
    expect(attention_reference, in, IN, out, d_out, OUT, d_in);
}

static void attention_passes_a_nan_on(void **state)
{
    enum { IN = SEQUENCES * POSITIONS * QKV };
    static float in[IN], out[IN / 3], shares[SEQUENCES * HEADS * POSITIONS * POSITIONS];
    fill(in, IN);
    in[POSITIONS * QKV] = NAN; /* the first query of the second sequence */
    charlm_attention_forward(out, shares, in, &heads);
    assert_true(isnan(out[POSITIONS * HEADS * SIZE]) && !isnan(out[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_1e_7_of_the_true_value),
        cmocka_unit_test(exp_keeps_what_is_not_finite),
        cmocka_unit_test(embedding_fits_its_reference),
        cmocka_unit_test(layernorm_fits_its_reference),
        cmocka_unit_test(layernorm_backward_adds_to_the_gradient_of_its_input),
        cmocka_unit_test(gelu_fits_its_reference),
        cmocka_unit_test(rows_start_with_the_bias_and_what_is_added),
        cmocka_unit_test(cross_entropy_fits_its_reference_and_scales_its_gradient),
        cmocka_unit_test(attention_fits_its_reference),
        cmocka_unit_test(attention_passes_a_nan_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
