/* The parts of the digits example: data, matrix products, the network, and training without a server. */
#ifndef DIGITS_H
#define DIGITS_H

#include "amp/dtype.h"
#include "amp/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DIGITS_PIXELS     64
#define DIGITS_CLASSES    10
#define DIGITS_LAYERS     3
#define DIGITS_PARAMETERS (2 * DIGITS_LAYERS) /* weight and bias of each layer */

/* ---- data.c ---- */

struct digits_data {
    size_t train_count, test_count;
    float *train_pixels, *test_pixels; /* [count][DIGITS_PIXELS], scaled to 0..1 */
    uint8_t *train_digits, *test_digits;
    uint32_t *order;      /* the order of the training rows in epoch `order_epoch` */
    uint64_t order_epoch; /* UINT64_MAX: none yet */
};

/* Reads the CSV file; every fifth row becomes test. 0, or -1 after a sentence on stderr. */
int digits_data_open(struct digits_data *data, const char *path);
void digits_data_close(struct digits_data *data);

/*
 * The batch of (seed, step, rank): rows (step * world + rank) * batch ... of an endless sequence of shuffled epochs.
 * A function of its arguments alone, so that a step can be done again. Step counts from 1.
 */
void digits_data_batch(struct digits_data *data, uint64_t seed, uint64_t step, uint32_t rank, uint32_t world,
                       size_t batch, float *pixels, uint8_t *digits);

/* ---- product.c ---- */

/* Each element is accumulated in fp32 in ascending order of the summed index: the same bits on every machine. */

/* out[m][n] = a[m][k] * b[n][k]^T; b_t is scratch of k * n elements. */
void digits_product_nt(float *out, const float *a, const float *b, float *b_t, size_t m, size_t n, size_t k);
/* out[m][n] = a[k][m]^T * b[k][n] */
void digits_product_tn(float *out, const float *a, const float *b, size_t m, size_t n, size_t k);
/* out[m][n] = a[m][k] * b[k][n] */
void digits_product_nn(float *out, const float *a, const float *b, size_t m, size_t n, size_t k);
/* e^x for x <= 0, by a polynomial in double: the same bits on every machine, within 2^-45 of the true value. */
double digits_exp(double x);

/* ---- mlp.c ---- */

struct digits_mlp {
    const struct amp_kernels *kernels;
    size_t sizes[DIGITS_LAYERS + 1]; /* pixels, hidden, hidden, classes */
    size_t batch;
    float *parameters[DIGITS_PARAMETERS]; /* fp32 values of what the forward pass uses */
    float *gradients[DIGITS_PARAMETERS];
    float *activations[DIGITS_LAYERS + 1]; /* [batch][sizes[l]] */
    float *deltas[DIGITS_LAYERS + 1];
    float *scratch; /* a transposed weight */
};

/* Names and shapes of the parameters, as a model's specification wants them. */
extern const char *const digits_parameter_names[DIGITS_PARAMETERS];
size_t digits_parameter_elements(const struct digits_mlp *mlp, size_t index);

/* Allocates for a batch size. 0 or -1 (out of memory). */
int digits_mlp_open(struct digits_mlp *mlp, const struct amp_kernels *kernels, size_t hidden, size_t batch);
void digits_mlp_close(struct digits_mlp *mlp);

/* First values: uniform in +-sqrt(6 / fan_in) for weights (He 2015), zero for biases. */
void digits_mlp_init(struct digits_mlp *mlp, uint64_t seed);

/*
 * Forward and backward of the mean cross entropy of the batch, times scale, in the dtypes that the current autocast
 * context chooses for each operation. Gradients lie in mlp->gradients as fp32 values that their dtype holds exactly.
 * Returns the unscaled loss.
 */
float digits_mlp_train(struct digits_mlp *mlp, const float *pixels, const uint8_t *digits, float scale);

/* Share of the rows that are classified right. */
double digits_mlp_accuracy(struct digits_mlp *mlp, const float *pixels, const uint8_t *digits, size_t count);

/* What both ways of training share. */
#define DIGITS_LR        1e-3
#define DIGITS_CLIP_NORM 1.0f

/* ---- local.c ---- */

struct digits_options {
    const char *connect, *data_path, *model;
    enum amp_dtype dtype;
    uint64_t steps, seed, checkpoint_every;
    size_t hidden, batch;
    uint32_t world;
    bool local, quiet;
    bool steps_durable; /* the model goes on from the last step after a crash, else from the last checkpoint */
};

/* The same job in fp32 in one process, without a server. Prints the result; 0 or 1. */
int digits_run_local(const struct digits_options *options, const struct amp_kernels *kernels, struct digits_data *data);

/* ---- worker.c ---- */

/* A worker of a server's job. 0 or 1. */
int digits_run_worker(const struct digits_options *options, const struct amp_kernels *kernels,
                      struct digits_data *data);

#endif
