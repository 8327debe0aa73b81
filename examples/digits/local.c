#include "examples/digits/digits.h"

#include "amp/optim.h"
#include "amp/pass.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The same job in fp32 and in one process: the batches of all ranks, the mean of their gradients, clipping by the
 * global norm, AdamW. It uses the numerics library alone, as a program without a server may.
 */

struct local {
    const struct digits_options *options;
    struct digits_data *data;
    struct digits_mlp mlp;
    float *gradients[2][DIGITS_PARAMETERS]; /* of each rank */
    float *m[DIGITS_PARAMETERS], *v[DIGITS_PARAMETERS];
    float *copy; /* the cast copy that the apply pass writes; in fp32 it equals the parameters */
    float *pixels;
    uint8_t *digits;
};

static int open_local(struct local *local, const struct amp_kernels *kernels)
{
    const struct digits_options *options = local->options;
    if (digits_mlp_open(&local->mlp, kernels, options->hidden, options->batch) != 0)
        return -1;
    bool ok = true;
    size_t largest = 0;
    for (size_t i = 0; i < DIGITS_PARAMETERS; i++) {
        size_t elements = digits_parameter_elements(&local->mlp, i);
        largest = elements > largest ? elements : largest;
        local->gradients[0][i] = calloc(elements, sizeof(float));
        local->gradients[1][i] = calloc(elements, sizeof(float));
        local->m[i] = calloc(elements, sizeof(float));
        local->v[i] = calloc(elements, sizeof(float));
        ok = ok && local->gradients[0][i] != NULL && local->gradients[1][i] != NULL && local->m[i] != NULL &&
             local->v[i] != NULL;
    }
    local->copy = calloc(largest, sizeof(float));
    local->pixels = calloc(options->batch, DIGITS_PIXELS * sizeof(float));
    local->digits = calloc(options->batch, 1);
    return ok && local->copy != NULL && local->pixels != NULL && local->digits != NULL ? 0 : -1;
}

static void close_local(struct local *local)
{
    for (size_t i = 0; i < DIGITS_PARAMETERS; i++) {
        free(local->gradients[0][i]);
        free(local->gradients[1][i]);
        free(local->m[i]);
        free(local->v[i]);
    }
    free(local->copy);
    free(local->pixels);
    free(local->digits);
    digits_mlp_close(&local->mlp);
}

/* Both ranks' gradients of a parameter as the passes take them; f = 1/2 makes their sum the mean. */
static struct amp_pass_in pass_input(const struct local *local, size_t index, struct amp_input inputs[2])
{
    for (size_t rank = 0; rank < 2; rank++)
        inputs[rank] = (struct amp_input){.data = local->gradients[rank][index], .dtype = AMP_F32, .weight = 1.0f};
    return (struct amp_pass_in){.count = digits_parameter_elements(&local->mlp, index),
                                .inputs = inputs,
                                .inputs_count = 2,
                                .equal_weights = true,
                                .coefficient = amp_coefficient(1.0f, 2.0),
                                .squares = true};
}

static void apply_step(struct local *local, uint64_t step)
{
    struct amp_input inputs[2];
    double squares = 0.0;
    for (size_t i = 0; i < DIGITS_PARAMETERS; i++) {
        struct amp_pass_in in = pass_input(local, i, inputs);
        struct amp_pass_vote vote;
        amp_pass_vote(local->mlp.kernels, &in, NULL, &vote);
        squares += vote.squares;
    }
    const struct amp_optim_config config = {
        .optimizer = AMP_OPT_ADAMW, .lr = DIGITS_LR, .weight_decay = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    struct amp_apply apply = {0};
    amp_optim_scalars(&config, step, config.lr, amp_clip_coefficient((double)DIGITS_CLIP_NORM, sqrt(squares)), &apply);
    apply.cast = AMP_F32;
    for (size_t i = 0; i < DIGITS_PARAMETERS; i++) {
        struct amp_pass_in in = pass_input(local, i, inputs);
        struct amp_apply_stats stats = {0};
        amp_pass_apply(local->mlp.kernels, &in, &apply, local->mlp.parameters[i], local->m[i], local->v[i], local->copy,
                       &stats);
    }
}

static void train(struct local *local)
{
    const struct digits_options *options = local->options;
    digits_mlp_init(&local->mlp, options->seed);
    for (uint64_t step = 1; step <= options->steps; step++) {
        for (uint32_t rank = 0; rank < 2; rank++) {
            digits_data_batch(local->data, options->seed, step, rank, 2, options->batch, local->pixels, local->digits);
            float loss = digits_mlp_train(&local->mlp, local->pixels, local->digits, 1.0f);
            for (size_t i = 0; i < DIGITS_PARAMETERS; i++)
                memcpy(local->gradients[rank][i], local->mlp.gradients[i],
                       digits_parameter_elements(&local->mlp, i) * sizeof(float));
            if (!options->quiet && rank == 0 && step % 25 == 0)
                (void)printf("step %5" PRIu64 "  loss %7.4f\n", step, (double)loss);
        }
        apply_step(local, step);
    }
}

int digits_run_local(const struct digits_options *options, const struct amp_kernels *kernels, struct digits_data *data)
{
    struct local local = {.options = options, .data = data};
    int rc = 1;
    if (open_local(&local, kernels) != 0) {
        (void)fprintf(stderr, "digits: out of memory\n");
        goto out;
    }
    train(&local);
    double accuracy = digits_mlp_accuracy(&local.mlp, data->test_pixels, data->test_digits, data->test_count);
    (void)printf("digits: test accuracy %.3f after %" PRIu64 " steps in fp32, without a server\n", accuracy,
                 options->steps);
    rc = 0;
out:
    close_local(&local);
    return rc;
}
