/*
 * Trains a logistic regression with one of the library's optimizers and prints the loss before each step, for
 * tests/kernels/torch_curves.py to lay beside PyTorch's.
 *
 * Usage: curves FILE ROWS COLUMNS STEPS OPTIMIZER LR WEIGHT_DECAY MOMENTUM NESTEROV CENTERED; the file holds ROWS times
 * COLUMNS doubles and ROWS labels of +1 or -1. Other values are the optimizer's defaults.
 */
#include "amp/cpu.h"
#include "amp/pass.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS_MAX 256
#define ROWS_MAX    4096

static double x[ROWS_MAX * COLUMNS_MAX], y[ROWS_MAX];
static float w[COLUMNS_MAX], g[COLUMNS_MAX], m[COLUMNS_MAX], v[COLUMNS_MAX], cast[COLUMNS_MAX];

/* The mean loss, and its gradient in double, rounded once to fp32. */
static double loss_and_gradient(size_t rows, size_t columns)
{
    double loss = 0, gradient[COLUMNS_MAX] = {0};
    for (size_t i = 0; i < rows; i++) {
        double z = 0;
        for (size_t j = 0; j < columns; j++)
            z += x[i * columns + j] * (double)w[j];
        double e = exp(-y[i] * z);
        loss += log1p(e);
        for (size_t j = 0; j < columns; j++)
            gradient[j] -= y[i] * x[i * columns + j] * (e / (1 + e)) / (double)rows;
    }
    for (size_t j = 0; j < columns; j++)
        g[j] = (float)gradient[j];
    return loss / (double)rows;
}

static int read_data(const char *path, size_t rows, size_t columns)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return -1;
    bool whole =
        fread(x, sizeof x[0], rows * columns, file) == rows * columns && fread(y, sizeof y[0], rows, file) == rows;
    return fclose(file) == 0 && whole ? 0 : -1;
}

static enum amp_optimizer optimizer_of(const char *name)
{
    for (unsigned i = AMP_OPT_SGD; i < AMP_OPTIMIZERS; i++)
        if (strcmp(name, amp_optim_name((enum amp_optimizer)i)) == 0)
            return (enum amp_optimizer)i;
    return AMP_OPT_UNSET;
}

int main(int argc, char **argv)
{
    const struct amp_kernels *kernels;
    struct amp_optim_config config;
    struct amp_error error;
    if (argc != 11)
        return 2;
    size_t rows = strtoul(argv[2], NULL, 10), columns = strtoul(argv[3], NULL, 10);
    unsigned long steps = strtoul(argv[4], NULL, 10);
    amp_optim_defaults(optimizer_of(argv[5]), &config);
    config.lr = strtod(argv[6], NULL);
    config.weight_decay = strtod(argv[7], NULL);
    config.momentum = strtod(argv[8], NULL);
    config.nesterov = strcmp(argv[9], "1") == 0;
    config.centered = strcmp(argv[10], "1") == 0;
    if (rows > ROWS_MAX || columns > COLUMNS_MAX || read_data(argv[1], rows, columns) != 0)
        return 2;
    if (amp_cpu_select(NULL, &kernels, &error) != 0 || amp_optim_check(&config, &error) != 0) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    unsigned moments = amp_optim_config_moments(&config);
    for (unsigned long t = 1; t <= steps; t++) {
        struct amp_apply apply;
        struct amp_apply_stats stats = {0};
        printf("%.17g\n", loss_and_gradient(rows, columns));
        amp_optim_scalars(&config, t, config.lr, 1, &apply);
        apply.cast = AMP_F32;
        apply.first_step = t == 1;
        amp_pass_apply_g(kernels, columns, g, &apply, w, moments > 0 ? m : NULL, moments > 1 ? v : NULL, cast, &stats);
    }
    return 0;
}
