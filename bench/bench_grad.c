/*
 * The cost of the gradient utilities (unscale, overflow check and clipping by the global norm) as a share of the
 * training step that they belong to: forward and backward of examples/digits in f16 (width 512, batch 64), on one
 * thread.
 *
 *   bench_grad DIGITS.CSV
 *
 * Each pair is one step and the utilities on its gradients. Prints a row in the form of bench/run.sh: the median
 * milliseconds of the utilities and of the step, and the median share, for which the specifications ask for less than
 * 0.05; with the plain C kernels (AMPD_ISA=ref) there is no goal. A second row with the same goal has the time that
 * autocast adds to a forward pass: entering, leaving, and the decision for each operation, without the casts, which are
 * its purpose.
 */
#include "amp/autocast.h"
#include "amp/clip.h"
#include "amp/cpu.h"
#include "amp/static_scaler.h"
#include "examples/digits/digits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HIDDEN    512
#define BATCH     64
#define WARM_UP   5
#define PAIRS     50
#define REGIONS   1000
#define MAX_SHARE 0.05

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

/* Unscale, check and clip, as a training loop does before its optimizer. 0, or the code of what failed. */
static int guard(const struct amp_static_scaler *scaler, const struct amp_tensor *gradients, bool *overflow,
                 struct amp_error *error)
{
    int rc = amp_static_scaler_unscale(scaler, gradients, DIGITS_PARAMETERS, gradients, NULL, error);
    if (rc == 0)
        rc = amp_static_scaler_check_overflow(scaler, gradients, DIGITS_PARAMETERS, overflow, error);
    if (rc == 0 && !*overflow)
        rc = amp_grads_clip_by_norm(scaler->kernels, gradients, DIGITS_PARAMETERS, (double)DIGITS_CLIP_NORM,
                                    AMP_CLIP_L2, gradients, NULL, error);
    return rc;
}

static int measure(struct digits_data *data, struct digits_mlp *mlp, const struct amp_static_scaler *scaler,
                   struct amp_error *error)
{
    static float pixels[BATCH * DIGITS_PIXELS];
    static uint8_t digits[BATCH];
    struct amp_tensor gradients[DIGITS_PARAMETERS];
    double steps[PAIRS], guards[PAIRS], shares[PAIRS];
    for (size_t p = 0; p < DIGITS_PARAMETERS; p++)
        gradients[p] = (struct amp_tensor){digits_parameter_names[p], mlp->gradients[p],
                                           digits_parameter_elements(mlp, p), AMP_F32};
    for (int i = -WARM_UP; i < PAIRS; i++) {
        bool overflow = false;
        digits_data_batch(data, 1, (uint64_t)(i + WARM_UP + 1), 0, 1, BATCH, pixels, digits);
        double begin = now_ms();
        (void)digits_mlp_train(mlp, pixels, digits, amp_static_scaler_scale(scaler));
        double trained = now_ms();
        int rc = guard(scaler, gradients, &overflow, error);
        double guarded = now_ms();
        if (rc != 0 || overflow)
            return amp_error_set(error, rc != 0 ? rc : AMP_ERANGE, NULL, "the step cannot be measured: it overflowed");
        if (i < 0)
            continue;
        steps[i] = trained - begin;
        guards[i] = guarded - trained;
        shares[i] = guards[i] / steps[i];
    }
    double share = median(shares, PAIRS);
    bool plain = strcmp(scaler->kernels->isa, "ref") == 0;
    printf("kernels_guard_share%s\t%.3f\t%.3f\t%.4f\t", plain ? "_ref" : "", median(guards, PAIRS),
           median(steps, PAIRS), share);
    if (plain)
        printf("-\tinfo\n");
    else
        printf("<%.2f\t%s\n", MAX_SHARE, share < MAX_SHARE ? "ok" : "short");
    return 0;
}

/* What autocast does in one forward pass: a region, and a decision for each operation of the network. */
static double autocast_ms(void)
{
    static const char *const ops[] = {"linear", "relu", "linear", "relu", "linear", "cross_entropy"};
    volatile int sink = 0;
    double begin = now_ms();
    for (unsigned i = 0; i < REGIONS; i++) {
        sink = amp_autocast_enter(AMP_AUTOCAST_FP16);
        for (size_t j = 0; j < sizeof ops / sizeof ops[0]; j++)
            sink = (int)amp_autocast_dtype(ops[j], AMP_F32);
        amp_autocast_exit();
    }
    (void)sink;
    return (now_ms() - begin) / REGIONS;
}

static void measure_autocast(struct digits_data *data, struct digits_mlp *mlp)
{
    static float pixels[BATCH * DIGITS_PIXELS];
    static uint8_t digits[BATCH];
    double forwards[PAIRS], regions[PAIRS], shares[PAIRS];
    digits_data_batch(data, 1, 1, 0, 1, BATCH, pixels, digits);
    for (int i = -WARM_UP; i < PAIRS; i++) {
        double begin = now_ms();
        (void)digits_mlp_accuracy(mlp, pixels, digits, BATCH);
        double forward = now_ms() - begin;
        double region = autocast_ms();
        if (i < 0)
            continue;
        forwards[i] = forward;
        regions[i] = region;
        shares[i] = region / forward;
    }
    double share = median(shares, PAIRS);
    printf("kernels_autocast_share\t%.6f\t%.3f\t%.6f\t<%.2f\t%s\n", median(regions, PAIRS), median(forwards, PAIRS),
           share, MAX_SHARE, share < MAX_SHARE ? "ok" : "short");
}

int main(int argc, char **argv)
{
    struct amp_error error = {0};
    const struct amp_kernels *kernels;
    struct amp_static_scaler scaler;
    struct digits_data data;
    struct digits_mlp mlp;
    int rc = 1;
    if (argc != 2) {
        (void)fprintf(stderr, "usage: bench_grad DIGITS.CSV\n");
        return 2;
    }
    if (amp_cpu_select(getenv("AMPD_ISA"), &kernels, &error) != 0 ||
        amp_static_scaler_init(&scaler, kernels, 1024, true, &error) != 0) {
        (void)fprintf(stderr, "bench_grad: %s\n", error.text);
        return 1;
    }
    if (digits_data_open(&data, argv[1]) != 0)
        return 1;
    if (digits_mlp_open(&mlp, kernels, HIDDEN, BATCH) != 0)
        goto close_data;
    digits_mlp_init(&mlp, 1);
    if (amp_autocast_enter(AMP_AUTOCAST_FP16) == 0) {
        rc = measure(&data, &mlp, &scaler, &error) == 0 ? 0 : 1;
        if (rc == 0)
            measure_autocast(&data, &mlp);
        amp_autocast_exit();
    }
    if (rc != 0)
        (void)fprintf(stderr, "bench_grad: %s\n", error.text);
    digits_mlp_close(&mlp);
close_data:
    digits_data_close(&data);
    return rc;
}
