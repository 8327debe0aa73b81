/*
 * The cost of the guard, which is the loss scaler's part of a training step, as a share of a step whose matrix products
 * run at OpenBLAS's speed: forward and backward of two linear layers of width x width in fp32, batch 64, on one thread.
 * The guard of the step's gradients is one of
 *
 *   one pass   amp_grads_measure: unscale, overflow check, norm, clip factor; the optimizer multiplies by the factors
 *   apart      amp_grads_unscale, amp_grads_overflow, amp_grads_clip_by_norm, each over all gradients
 *
 * Both and their bound, which only reads each gradient once by the fastest loop of kernel_bounds.h, take turns, each
 * after a step of its own. Prints a row in the form of bench/run.sh for each guard and width: the median milliseconds
 * of the guard and of the step, and the median share. If the bound's share is more than 0.95 of the goal, the goal is
 * that share divided by 0.95.
 */
#include "amp/clip.h"
#include "amp/cpu.h"
#include "amp/grad.h"
#include "amp/kernels.h"
#include "bench/kernel_bounds.h"

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

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, ascending);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
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

static volatile uint32_t all_bits;

static void read_once(const struct bound_loops *loops, const struct amp_tensor *gradients)
{
    for (int l = 0; l < LAYERS; l++)
        all_bits = loops->read(gradients[l].data, gradients[l].count * (sizeof(float) / sizeof(uint16_t)));
}

/* Milliseconds of a reading, after a step. */
static double read_ms(struct network *network, const struct bound_loops *loops, const struct amp_tensor *gradients)
{
    train(network);
    double begin = now_ms();
    read_once(loops, gradients);
    return now_ms() - begin;
}

/* The fastest loop of this instruction set; NULL: there is none. */
static const struct bound_loops *fastest(const struct amp_kernels *kernels, struct network *network,
                                         const struct amp_tensor *gradients)
{
    const struct bound_loops *best = NULL;
    double least = 0;
    for (size_t i = 0; i < bound_loops_count; i++) {
        if (bound_loops[i].vector_bytes > bound_vector_bytes(kernels->isa))
            continue;
        double times[WARM_UP];
        for (int j = 0; j < WARM_UP; j++)
            times[j] = read_ms(network, &bound_loops[i], gradients);
        double ms = median(times, WARM_UP);
        if (best == NULL || ms < least) {
            best = &bound_loops[i];
            least = ms;
        }
    }
    return best;
}

struct times {
    double guards[ROUNDS], steps[ROUNDS];
};

static double share_of(const struct times *times)
{
    double shares[ROUNDS];
    for (int i = 0; i < ROUNDS; i++)
        shares[i] = times->guards[i] / times->steps[i];
    return median(shares, ROUNDS);
}

/* goal: 0 for none. */
static void print_row(const char *name, int width, struct times *times, double goal)
{
    double share = share_of(times);
    printf("kernels_guard_%s_%d_share\t%.3f\t%.3f\t%.4f\t", name, width, median(times->guards, ROUNDS),
           median(times->steps, ROUNDS), share);
    if (goal > 0)
        printf("<%.3f\t%s\n", goal, share < goal ? "ok" : "short");
    else
        printf("-\tinfo\n");
}

/* Makes a step, and then measures the milliseconds of a guard (one_pass or apart) or of their bound. */
static int take_turns(const struct amp_kernels *kernels, struct network *network, const struct amp_tensor *gradients,
                      const struct bound_loops *loops, struct times times[3], struct amp_error *error)
{
    int rc = 0;
    for (int i = -WARM_UP; rc == 0 && i < ROUNDS; i++) {
        for (int kind = 0; rc == 0 && kind < (loops != NULL ? 3 : 2); kind++) {
            double begin = now_ms();
            train(network);
            double middle = now_ms();
            if (kind == 2)
                read_once(loops, gradients);
            else
                rc = (kind == 0 ? guard_in_one_pass : guard_apart)(kernels, gradients, error);
            if (i >= 0) {
                times[kind].steps[i] = middle - begin;
                times[kind].guards[i] = now_ms() - middle;
            }
        }
    }
    return rc;
}

static int measure(const struct amp_kernels *kernels, int width, struct amp_error *error)
{
    struct network network;
    static struct times times[3];
    int rc = network_open(&network, width);
    if (rc != 0)
        return amp_error_set(error, rc, NULL, "no memory for a network of width %d", width);
    struct amp_tensor gradients[LAYERS];
    for (int l = 0; l < LAYERS; l++)
        gradients[l] = (struct amp_tensor){"w", network.layers[l].gradient, (size_t)width * (size_t)width, AMP_F32};
    const struct bound_loops *loops = fastest(kernels, &network, gradients);
    rc = take_turns(kernels, &network, gradients, loops, times, error);
    network_close(&network);
    if (rc != 0)
        return rc;
    double bound = loops != NULL ? share_of(&times[2]) : 0;
    if (loops != NULL)
        (void)fprintf(stderr, "# kernels_guard_one_%d_share: bound %.4f (%s)\n", width, bound, loops->name);
    print_row("one", width, &times[0], bound / 0.95 > MAX_SHARE ? bound / 0.95 : MAX_SHARE);
    print_row("apart", width, &times[1], 0);
    return 0;
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
