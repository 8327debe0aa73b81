/*
 * What the guard, the loss scaler's part of a training step, costs where matrix products run at OpenBLAS's speed. A
 * step is forward and backward of two linear layers of width x width in fp32, batch 64, on one thread. The guard of its
 * gradients is one of
 *
 *   one pass   amp_grads_measure: unscale, overflow check, norm, clip factor; the optimizer multiplies by the factors
 *   apart      amp_grads_unscale, amp_grads_overflow, amp_grads_clip_by_norm, each over all gradients
 *
 * The two take turns, each after a step of its own. Prints a row in the form of bench/run.sh for each guard and width:
 * median milliseconds of the guard and of the step, and the median share.
 */
#include "amp/clip.h"
#include "amp/cpu.h"
#include "amp/grad.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BATCH     64
#define LAYERS    2
#define WARM_UP   3
#define ROUNDS    20
#define SCALE     65536.0f
#define MAX_NORM  1.0
#define MAX_SHARE 0.05

struct layer {
    float *weights, *gradient; /* [width][width] */
    float *in, *d_in;          /* [BATCH][width] */
};

struct network {
    int width;
    struct layer layers[LAYERS];
    float *out, *d_out; /* [BATCH][width] */
};

static double now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof *values, ascending);
    return (values[(ROUNDS - 1) / 2] + values[ROUNDS / 2]) / 2;
}

/* Small numbers, so that nothing overflows; NULL without memory. */
static float *numbers(size_t count)
{
    float *values = malloc(count * sizeof *values);
    uint32_t random = 1;
    for (size_t i = 0; values != NULL && i < count; i++) {
        random = (uint32_t)((uint64_t)random * 1664525u + 1013904223u);
        values[i] = (float)(int32_t)random * 0x1p-36f;
    }
    return values;
}

static void network_close(struct network *network)
{
    for (int l = 0; l < LAYERS; l++) {
        free(network->layers[l].weights);
        free(network->layers[l].gradient);
        free(network->layers[l].in);
        free(network->layers[l].d_in);
    }
    free(network->out);
    free(network->d_out);
}

static int network_open(struct network *network, int width)
{
    size_t square = (size_t)width * (size_t)width, rows = (size_t)BATCH * (size_t)width;
    *network = (struct network){.width = width, .out = numbers(rows), .d_out = numbers(rows)};
    bool whole = network->out != NULL && network->d_out != NULL;
    for (int l = 0; l < LAYERS; l++) {
        struct layer *layer = &network->layers[l];
        *layer = (struct layer){numbers(square), numbers(square), numbers(rows), numbers(rows)};
        whole = whole && layer->weights != NULL && layer->gradient != NULL && layer->in != NULL && layer->d_in != NULL;
    }
    if (whole)
        return 0;
    network_close(network);
    return AMP_ENOMEM;
}

/* Forward: y = x w; backward: dw = x^T dy, dx = dy w^T. */
static void train(struct network *network)
{
    const int w = network->width;
    for (int l = 0; l < LAYERS; l++) {
        struct layer *layer = &network->layers[l];
        float *y = l + 1 < LAYERS ? network->layers[l + 1].in : network->out;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, BATCH, w, w, 1, layer->in, w, layer->weights, w, 0, y,
                    w);
    }
    for (int l = LAYERS - 1; l >= 0; l--) {
        struct layer *layer = &network->layers[l];
        const float *dy = l + 1 < LAYERS ? network->layers[l + 1].d_in : network->d_out;
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, w, w, BATCH, 1, layer->in, w, dy, w, 0, layer->gradient,
                    w);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, BATCH, w, w, 1, dy, w, layer->weights, w, 0, layer->d_in,
                    w);
    }
}

static int guard_in_one_pass(const struct amp_kernels *kernels, const struct amp_tensor *gradients,
                             struct amp_error *error)
{
    struct amp_grads_measured measured;
    int rc = amp_grads_measure(kernels, gradients, LAYERS, SCALE, MAX_NORM, &measured, error);
    return rc == 0 && measured.overflow ? amp_error_set(error, AMP_ERANGE, NULL, "a gradient overflowed") : rc;
}

static int guard_apart(const struct amp_kernels *kernels, const struct amp_tensor *gradients, struct amp_error *error)
{
    bool overflow = false;
    int rc = amp_grads_unscale_in_place(kernels, gradients, LAYERS, SCALE, NULL, error);
    if (rc == 0)
        rc = amp_grads_overflow(kernels, gradients, LAYERS, &overflow, error);
    if (rc == 0 && overflow)
        rc = amp_error_set(error, AMP_ERANGE, NULL, "a gradient overflowed");
    if (rc == 0)
        rc = amp_grads_clip_by_norm(kernels, gradients, LAYERS, MAX_NORM, AMP_CLIP_L2, gradients, NULL, error);
    return rc;
}

static void print_row(const char *name, int width, double *guards, double *steps, bool has_goal)
{
    double shares[ROUNDS];
    for (int i = 0; i < ROUNDS; i++)
        shares[i] = guards[i] / steps[i];
    double share = median(shares);
    printf("kernels_guard_%s_%d_share\t%.3f\t%.3f\t%.4f\t", name, width, median(guards), median(steps), share);
    if (has_goal)
        printf("<%.2f\t%s\n", MAX_SHARE, share < MAX_SHARE ? "ok" : "short");
    else
        printf("-\tinfo\n");
}

static int measure(const struct amp_kernels *kernels, int width, struct amp_error *error)
{
    struct network network;
    double one[ROUNDS], apart[ROUNDS], steps[ROUNDS], steps_again[ROUNDS];
    int rc = network_open(&network, width);
    if (rc != 0)
        return amp_error_set(error, rc, NULL, "no memory for a network of width %d", width);
    struct amp_tensor gradients[LAYERS];
    for (int l = 0; l < LAYERS; l++)
        gradients[l] = (struct amp_tensor){"w", network.layers[l].gradient, (size_t)width * (size_t)width, AMP_F32};
    for (int i = -WARM_UP; rc == 0 && i < ROUNDS; i++) {
        double times[5];
        times[0] = now_ms();
        train(&network);
        times[1] = now_ms();
        rc = guard_in_one_pass(kernels, gradients, error);
        times[2] = now_ms();
        train(&network);
        times[3] = now_ms();
        if (rc == 0)
            rc = guard_apart(kernels, gradients, error);
        times[4] = now_ms();
        if (i < 0)
            continue;
        steps[i] = times[1] - times[0];
        one[i] = times[2] - times[1];
        steps_again[i] = times[3] - times[2];
        apart[i] = times[4] - times[3];
    }
    network_close(&network);
    if (rc == 0) {
        print_row("one", width, one, steps, true);
        print_row("apart", width, apart, steps_again, false);
    }
    return rc;
}

int main(void)
{
    struct amp_error error = {0};
    const struct amp_kernels *kernels;
    openblas_set_num_threads(1);
    int rc = amp_cpu_select(getenv("AMPD_ISA"), &kernels, &error);
    if (rc == 0)
        rc = measure(kernels, 512, &error);
    if (rc == 0)
        rc = measure(kernels, 2048, &error);
    if (rc != 0)
        (void)fprintf(stderr, "bench_guard: %s\n", error.text);
    return rc == 0 ? 0 : 1;
}
