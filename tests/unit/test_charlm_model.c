/* The whole model of examples/charlm: its products, its gradients by finite differences, and those in bf16 and f16. */
#include "amp/cpu.h"
#include "amp/grad.h"
#include "examples/charlm/charlm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct amp_kernels *kernels;
static const struct charlm_shape shape = {.layers = 2, .heads = 2, .width = 16, .context = 12, .sequences = 3};
enum { ROWS = 36 };
static uint8_t text[ROWS], targets[ROWS];

struct trained {
    struct charlm_model model;
    float *values; /* of all parameters */
    double loss;
};

static int pick_kernels(void **state)
{
    for (size_t i = 0; i < ROWS; i++) {
        text[i] = (uint8_t)(i * i % 100);
        targets[i] = (uint8_t)((i * 7 + 3) % 100);
    }
    return amp_cpu_select(NULL, &kernels, NULL);
}

static void pass(struct trained *trained, float scale)
{
    struct charlm_model *model = &trained->model;
    charlm_begin(model, text, shape.sequences);
    for (size_t unit = 0; unit < charlm_units(model); unit++)
        charlm_forward(model, unit);
    charlm_end(model);
    trained->loss = charlm_loss(model, targets, scale);
    for (size_t unit = charlm_units(model); unit-- > 0;)
        charlm_backward(model, unit);
    assert_int_equal(model->failed, 0);
}

static void open_trained(struct trained *trained, enum amp_autocast_mode mode)
{
    struct charlm_model *model = &trained->model;
    assert_int_equal(charlm_model_open(model, kernels, &shape, mode), 0);
    size_t elements = 0;
    for (size_t i = 0; i < model->parameters_count; i++)
        elements += charlm_elements(&model->parameters[i]);
    float *next = trained->values = calloc(elements, sizeof *next);
    assert_non_null(next);
    for (size_t i = 0; i < model->parameters_count; i++) {
        struct charlm_parameter *parameter = &model->parameters[i];
        charlm_init(model, i, 3, next);
        for (size_t j = 0; j < charlm_elements(parameter); j++)
            next[j] += 0.1f * sinf((float)(i + 1) * (float)(j + 1)); /* no bias is 0, and no gradient small */
        parameter->now = (struct amp_tensor_view){next, charlm_elements(parameter), AMP_F32, i + 1, 1};
        next += charlm_elements(parameter);
    }
}

static void close_trained(struct trained *trained)
{
    charlm_model_close(&trained->model);
    free(trained->values);
}

static void each_gradient_is_the_slope_of_the_loss(void **state)
{
    static const double step = 1e-2;
    struct trained trained;
    open_trained(&trained, AMP_AUTOCAST_NONE);
    struct charlm_model *model = &trained.model;
    pass(&trained, 1.0f);
    for (size_t i = 0; i < model->parameters_count; i++) {
        struct charlm_parameter *parameter = &model->parameters[i];
        size_t count = charlm_elements(parameter);
        const float *gradient = parameter->gradient.data, *now = parameter->now.data;
        float *moved = calloc(count, sizeof *moved);
        double norm = 0.0, losses[2];
        for (size_t j = 0; j < count; j++)
            norm += (double)gradient[j] * (double)gradient[j];
        norm = sqrt(norm);
        assert_true(moved != NULL && norm > 0.0);
        /* Along its gradient the loss rises by the gradient's norm. */
        for (int side = 0; side < 2; side++) {
            for (size_t j = 0; j < count; j++)
                moved[j] = now[j] + (float)((side == 0 ? step : -step) / norm * (double)gradient[j]);
            parameter->now.data = moved;
            losses[side] = charlm_evaluate(model, text, targets, shape.sequences);
        }
        parameter->now.data = now;
        assert_true(fabs((losses[0] - losses[1]) / (2.0 * step) - norm) <= 0.01 * norm + 1e-4);
        free(moved);
    }
    close_trained(&trained);
}

/* How far the gradients of a pass in a low precision are from those in fp32, as a share of their norm. */
static double distance(enum amp_autocast_mode mode, float scale)
{
    struct trained exact, low;
    open_trained(&exact, AMP_AUTOCAST_NONE);
    open_trained(&low, mode);
    pass(&exact, 1.0f);
    pass(&low, scale);
    assert_true(fabs(exact.loss - low.loss) < 0.02);
    double apart = 0.0, squares = 0.0;
    for (size_t i = 0; i < exact.model.parameters_count; i++) {
        const struct amp_tensor *wanted = &exact.model.parameters[i].gradient;
        const struct amp_tensor *have = &low.model.parameters[i].gradient;
        assert_int_equal(have->dtype, amp_autocast_low_dtype(mode));
        float *wide = calloc(have->count, sizeof *wide);
        assert_non_null(wide);
        amp_cast(kernels, wide, AMP_F32, have->data, have->dtype, have->count);
        for (size_t j = 0; j < have->count; j++) {
            double value = (double)((const float *)wanted->data)[j], error = (double)(wide[j] / scale) - value;
            apart += error * error;
            squares += value * value;
        }
        free(wide);
    }
    close_trained(&exact);
    close_trained(&low);
    return sqrt(apart / squares);
}

static void gradients_in_bf16_are_those_of_fp32_but_for_rounding(void **state)
{
    double apart = distance(AMP_AUTOCAST_BF16, 1.0f);
    assert_true(apart > 0.0 && apart < 0.03);
}

static void gradients_in_f16_are_those_of_fp32_times_the_scale(void **state)
{
    double apart = distance(AMP_AUTOCAST_FP16, 1024.0f);
    assert_true(apart > 0.0 && apart < 0.004);
}

static void too_large_a_scale_shows_in_the_gradients(void **state)
{
    struct trained trained;
    open_trained(&trained, AMP_AUTOCAST_FP16);
    pass(&trained, 0x1p40f);
    bool found = false, any = false;
    for (size_t i = 0; i < trained.model.parameters_count; i++) {
        assert_int_equal(amp_grad_overflow(kernels, &trained.model.parameters[i].gradient, &found, NULL), 0);
        any = any || found;
    }
    assert_true(any);
    close_trained(&trained);
}

static void weights_are_cast_once_a_version(void **state)
{
    struct trained trained;
    struct amp_cast_cache_stats first, second;
    open_trained(&trained, AMP_AUTOCAST_BF16);
    pass(&trained, 1.0f);
    amp_cast_cache_stats(trained.model.cache, &first);
    assert_int_equal(first.misses, 4 * shape.layers + 1);
    pass(&trained, 1.0f);
    amp_cast_cache_stats(trained.model.cache, &second);
    assert_int_equal(second.misses, first.misses);
    assert_int_equal(second.hits, first.hits + 4 * shape.layers + 1);
    close_trained(&trained);
}

/* ---- training ---- */

/* Trains a few steps; then the casts in the cache are those of the newest values. */
static void expect_training(enum amp_autocast_mode mode)
{
    static uint8_t book[600];
    for (size_t i = 0; i < sizeof book; i++)
        book[i] = (uint8_t)('a' + i % 7);
    const struct charlm_text seven = {book, sizeof book, 500};
    const struct charlm_options options = {
        .shape = shape, .mode = mode, .scale = 0x1p24f, .steps = 300, .seed = 1, .world = 1, .quiet = true};
    struct charlm_local local;
    double first, loss;
    bool skipped;
    assert_int_equal(charlm_local_open(&local, &options, kernels, &seven), 0);
    assert_int_equal(charlm_local_step(&local, &first, &skipped), 0);
    for (uint64_t step = 1; step < options.steps; step++)
        assert_int_equal(charlm_local_step(&local, &loss, &skipped), 0);
    assert_true(loss < first / 2.0);
    assert_true(mode == AMP_AUTOCAST_FP16 || local.applied == options.steps);
    loss = charlm_evaluate(&local.model, text, targets, shape.sequences);
    for (size_t i = 0; i < local.model.parameters_count; i++)
        local.model.parameters[i].now.version++; /* all are cast again */
    assert_true(loss == charlm_evaluate(&local.model, text, targets, shape.sequences));
    charlm_local_close(&local);
}

static void training_lowers_the_loss_in_every_precision(void **state)
{
    expect_training(AMP_AUTOCAST_NONE);
    expect_training(AMP_AUTOCAST_BF16);
    expect_training(AMP_AUTOCAST_FP16);
}

/* ---- products ---- */

enum { M = 5, N = 7, K = 9 };

/* Element i of the product, plainly. */
static float product_reference(enum charlm_form form, const float *a, const float *b, size_t i)
{
    size_t row = i / N, column = i % N;
    float sum = 0.0f;
    for (size_t k = 0; k < K; k++)
        sum +=
            a[form == CHARLM_TN ? k * M + row : row * K + k] * b[form == CHARLM_NT ? column * K + k : k * N + column];
    return sum;
}

/* Small whole numbers: every dtype has them and their products exactly, so that all have to give the same. */
static void expect_product(struct charlm_products *products, enum charlm_form form, enum amp_dtype dtype)
{
    float a[M * K], b[K * N], sums[M * N], wide[M * N];
    float a_cast[M * K], b_cast[K * N], rounded[M * N]; /* room for any dtype */
    for (size_t i = 0; i < M * K; i++)
        a[i] = (float)(i % 3) - 1.0f;
    for (size_t i = 0; i < K * N; i++)
        b[i] = (float)(i % 5) - 2.0f;
    for (size_t i = 0; i < M * N; i++)
        sums[i] = 100.0f;
    amp_cast(kernels, a_cast, dtype, a, AMP_F32, M * K);
    amp_cast(kernels, b_cast, dtype, b, AMP_F32, K * N);
    const struct amp_tensor_view left = {a_cast, M * K, dtype, 0, 0}, right = {b_cast, K * N, dtype, 0, 0};
    assert_int_equal(charlm_product(products, form, M, N, K, &left, &right, sums, AMP_F32, true, NULL), 0);
    assert_int_equal(charlm_product(products, form, M, N, K, &left, &right, rounded, dtype, false, NULL), 0);
    amp_cast(kernels, wide, AMP_F32, rounded, dtype, M * N);
    for (size_t i = 0; i < M * N; i++) {
        assert_true(sums[i] == 100.0f + product_reference(form, a, b, i));
        assert_true(wide[i] == product_reference(form, a, b, i));
    }
}

static void every_form_and_dtype_multiplies_the_same(void **state)
{
    static const enum amp_dtype dtypes[] = {AMP_F32, AMP_BF16, AMP_F16};
    struct charlm_products products;
    assert_int_equal(charlm_products_open(&products, kernels, NULL), 0);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        for (enum charlm_form form = CHARLM_NT; form <= CHARLM_TN; form++)
            expect_product(&products, form, dtypes[i]);
    charlm_products_close(&products);
}

static void too_many_different_products_are_refused_by_a_text(void **state)
{
    static const uint16_t low[128];
    static float out[128];
    struct charlm_products products;
    struct amp_error error = {0};
    const struct amp_tensor_view one = {low, 128, AMP_BF16, 0, 0};
    assert_int_equal(charlm_products_open(&products, kernels, NULL), 0);
    for (size_t n = 1; n <= CHARLM_PLANS_MAX; n++)
        assert_int_equal(charlm_product(&products, CHARLM_NN, 1, n, 1, &one, &one, out, AMP_F32, false, NULL), 0);
    assert_int_equal(
        charlm_product(&products, CHARLM_NN, 1, CHARLM_PLANS_MAX + 1, 1, &one, &one, out, AMP_F32, false, &error),
        AMP_EEXHAUSTED);
    assert_non_null(strstr(error.text, "CHARLM_PLANS_MAX"));
    charlm_products_close(&products);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_gradient_is_the_slope_of_the_loss),
        cmocka_unit_test(gradients_in_bf16_are_those_of_fp32_but_for_rounding),
        cmocka_unit_test(gradients_in_f16_are_those_of_fp32_times_the_scale),
        cmocka_unit_test(too_large_a_scale_shows_in_the_gradients),
        cmocka_unit_test(weights_are_cast_once_a_version),
        cmocka_unit_test(training_lowers_the_loss_in_every_precision),
        cmocka_unit_test(every_form_and_dtype_multiplies_the_same),
        cmocka_unit_test(too_many_different_products_are_refused_by_a_text),
    };
    return cmocka_run_group_tests(tests, pick_kernels, NULL);
}
