/*
 * The parts of the charlm example: options, text, progress, training with and without a server, writing. One thread.
 */
#ifndef CHARLM_H
#define CHARLM_H

#include "amp/clip.h"
#include "amp/dynamic_scaler.h"
#include "amp/static_scaler.h"
#include "examples/charlm/model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* What both ways of training share. */
#define CHARLM_LR           1e-3
#define CHARLM_WEIGHT_DECAY 0.01
#define CHARLM_CLIP_NORM    1.0
/* Clean steps until a dynamic loss scale doubles. */
#define CHARLM_GROWTH_INTERVAL 200

enum charlm_scaler { CHARLM_SCALER_BY_PRECISION, CHARLM_SCALER_DYNAMIC, CHARLM_SCALER_STATIC, CHARLM_SCALER_NONE };

struct charlm_options {
    const char *connect, *text_path, *model, *initial_path, *log_path;
    struct charlm_shape shape; /* sequences: of one worker and step */
    enum amp_autocast_mode mode;
    enum charlm_scaler scaler;
    float scale; /* the first loss scale, or the constant one; 0: the scaler's default */
    uint64_t steps, seed, checkpoint_every, write;
    uint32_t world; /* number of workers */
    bool local, quiet;
    bool units; /* of a worker: gather and release parameters unit by unit */
};

/* The scaler that the options amount to: bf16 has the range of fp32 and needs none. */
static inline enum charlm_scaler charlm_scaler_of(const struct charlm_options *options)
{
    if (options->scaler != CHARLM_SCALER_BY_PRECISION)
        return options->scaler;
    return options->mode == AMP_AUTOCAST_FP16 ? CHARLM_SCALER_DYNAMIC : CHARLM_SCALER_NONE;
}

/* ---- text.c ---- */

/* The last tenth is not trained on. */
struct charlm_text {
    uint8_t *characters;
    size_t count, train_count;
};

/* Reads an ASCII file of at least 20 * context characters. 0, or -1 after a sentence on stderr; close in both cases. */
int charlm_text_open(struct charlm_text *text, const char *path, size_t context);
void charlm_text_close(struct charlm_text *text);

/*
 * Sequences [first, first + sequences) of this rank, into inputs and targets [sequences * context]: each begins at a
 * place of the training part that is a function of (seed, rank, world, its number) alone, so that a step can be done
 * again. Targets are the inputs moved by one character.
 */
void charlm_text_batch(const struct charlm_text *text, const struct charlm_options *options, uint32_t rank,
                       uint64_t first, uint8_t *inputs, uint8_t *targets);

/* The mean loss over the first part of what is not trained on. An error shows in model->failed. */
double charlm_text_validate(const struct charlm_text *text, struct charlm_model *model);

/* ---- progress.c ---- */

/* Prints loss, speed, scale and time left once in a while; with --log also writes a line for each step to a file. */
struct charlm_progress {
    const struct charlm_options *options;
    FILE *log;
    uint64_t first_step; /* of this process; 0: none yet */
    double first_s, shown_s;
    uint64_t shown_step;
};

/* 0, or -1 after a sentence on stderr (the file of --log); close in both cases. */
int charlm_progress_open(struct charlm_progress *progress, const struct charlm_options *options);
void charlm_progress_close(struct charlm_progress *progress);
/* After a step: its number (from 1), loss, scale, norm of the gradient (0 if skipped), and whether it was skipped. */
void charlm_progress_step(struct charlm_progress *progress, uint64_t step, double loss, float scale, double norm,
                          bool skipped);
/* Seconds of a clock that only goes forward. */
double charlm_now_s(void);

/* ---- write.c ---- */

/*
 * Prints `count` characters that the model writes: each is drawn from what it expects after the last `context` ones. 0,
 * or another number after a sentence on stderr.
 */
int charlm_write(struct charlm_model *model, uint64_t seed, uint64_t count);

/* ---- local.c ---- */

/* Training in one process: masters, moments and the loss scaler are here. */
struct charlm_local {
    const struct charlm_options *options;
    const struct charlm_text *text;
    struct charlm_model model;
    float *masters, *m, *v, *copy; /* of all parameters, one after the other */
    float *wide;                   /* gradients in fp32, in which they are unscaled */
    struct amp_tensor *gradients;  /* of each parameter in `wide` */
    const char **names;            /* of parameters with an overflow */
    struct amp_dynamic_scaler dynamic;
    struct amp_static_scaler constant;
    struct amp_loss_scaler scaler; /* one of the two */
    uint8_t *inputs, *targets;
    uint64_t step, applied; /* done so far */
    double norm;            /* of the last gradient, unscaled */
};

/* 0, or -1 after a sentence on stderr; close it in both cases. */
int charlm_local_open(struct charlm_local *local, const struct charlm_options *options,
                      const struct amp_kernels *kernels, const struct charlm_text *text);
void charlm_local_close(struct charlm_local *local);
/* One step. 0, or -1 after a sentence on stderr. */
int charlm_local_step(struct charlm_local *local, double *loss, bool *skipped);

/* The whole job without a server. 0 or 1. */
int charlm_run_local(const struct charlm_options *options, const struct amp_kernels *kernels,
                     const struct charlm_text *text);

/* ---- worker.c ---- */

/* A worker of a server's job. 0 or 1. */
int charlm_run_worker(const struct charlm_options *options, const struct amp_kernels *kernels,
                      const struct charlm_text *text);

#endif
