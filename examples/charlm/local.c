#include "examples/charlm/charlm.h"

#include "amp/grad.h"
#include "amp/optim.h"
#include "amp/pass.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/*
 * Training in one process: fp32 masters, whose casts autocast chooses and caches; a loss scaler of the library, which
 * unscales the gradients and skips a step with an overflow; clipping by the global norm; AdamW.
 */

static int failed(const char *what, const char *text)
{
    (void)fprintf(stderr, "charlm: %s: %s\n", what, text);
    return -1;
}

/* ---- open and close ---- */

/* For a program that starts from the same values: a line of name and sizes for each parameter, a blank line, fp32. */
static int write_initial(const struct charlm_local *local, const char *path)
{
    const struct charlm_model *model = &local->model;
    FILE *file = fopen(path, "wb");
    if (file == NULL)
        return failed(path, strerror(errno));
    for (size_t i = 0; i < model->parameters_count; i++)
        (void)fprintf(file, "%s %zu %zu\n", model->parameters[i].name, model->parameters[i].rows,
                      model->parameters[i].columns);
    (void)fputc('\n', file);
    for (size_t i = 0; i < model->parameters_count; i++)
        (void)fwrite(model->parameters[i].now.data, sizeof(float), charlm_elements(&model->parameters[i]), file);
    bool written = ferror(file) == 0;
    return fclose(file) == 0 && written ? 0 : failed(path, "cannot be written");
}

static int open_scaler(struct charlm_local *local, const struct amp_kernels *kernels)
{
    const struct charlm_options *options = local->options;
    struct amp_error error = {0};
    enum charlm_scaler scaler = charlm_scaler_of(options);
    int code;
    if (scaler == CHARLM_SCALER_DYNAMIC) {
        struct amp_dynamic_options dynamic = amp_dynamic_options_fp16();
        dynamic.growth_interval = CHARLM_GROWTH_INTERVAL;
        if (options->scale > 0.0f)
            dynamic.initial_loss_scale = options->scale;
        code = amp_dynamic_scaler_init(&local->dynamic, kernels, &dynamic, &error);
        local->scaler = amp_dynamic_scaler_interface(&local->dynamic);
    } else {
        float scale = options->scale > 0.0f ? options->scale : AMP_STATIC_SCALER_DEFAULT;
        code = amp_static_scaler_init(&local->constant, kernels, scale, scaler == CHARLM_SCALER_STATIC, &error);
        local->scaler = amp_static_scaler_interface(&local->constant);
    }
    return code == 0 ? 0 : failed("the loss scaler", error.text);
}

/* Gives each parameter its part of masters and gradients, and its first values. */
static void place_parameters(struct charlm_local *local)
{
    struct charlm_model *model = &local->model;
    size_t offset = 0;
    for (size_t i = 0; i < model->parameters_count; i++) {
        struct charlm_parameter *parameter = &model->parameters[i];
        size_t elements = charlm_elements(parameter);
        float *master = local->masters + offset;
        charlm_init(model, i, local->options->seed, master);
        parameter->now = (struct amp_tensor_view){master, elements, AMP_F32, i + 1, 0};
        local->gradients[i] = (struct amp_tensor){parameter->name, local->wide + offset, elements, AMP_F32};
        offset += elements;
    }
}

int charlm_local_open(struct charlm_local *local, const struct charlm_options *options,
                      const struct amp_kernels *kernels, const struct charlm_text *text)
{
    *local = (struct charlm_local){.options = options, .text = text};
    struct charlm_model *model = &local->model;
    if (charlm_model_open(model, kernels, &options->shape, options->mode) != 0)
        return failed("the model", model->error.text);
    size_t elements = 0, rows = options->shape.sequences * options->shape.context;
    for (size_t i = 0; i < model->parameters_count; i++)
        elements += charlm_elements(&model->parameters[i]);
    float **const arrays[] = {&local->masters, &local->m, &local->v, &local->copy, &local->wide};
    bool ok = true;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        ok = (*arrays[i] = calloc(elements, sizeof(float))) != NULL && ok;
    local->gradients = calloc(model->parameters_count, sizeof *local->gradients);
    local->names = calloc(model->parameters_count, sizeof *local->names);
    local->inputs = calloc(rows, 1);
    local->targets = calloc(rows, 1);
    if (!ok || local->gradients == NULL || local->names == NULL || local->inputs == NULL || local->targets == NULL)
        return failed("cannot start", "out of memory");
    place_parameters(local);
    if (options->initial_path != NULL && write_initial(local, options->initial_path) != 0)
        return -1;
    return open_scaler(local, kernels);
}

void charlm_local_close(struct charlm_local *local)
{
    charlm_model_close(&local->model);
    free(local->masters);
    free(local->m);
    free(local->v);
    free(local->copy);
    free(local->wide);
    free(local->gradients);
    free(local->names);
    free(local->inputs);
    free(local->targets);
    *local = (struct charlm_local){0};
}

/* ---- a step ---- */

/* The scaler calls it on unscaled gradients without Inf and NaN: clip, then AdamW on all parameters at once. */
static int optimizer(void *arg, const struct amp_tensor *gradients, size_t n, struct amp_error *error)
{
    struct charlm_local *local = arg;
    const struct amp_kernels *kernels = local->model.kernels;
    int code =
        amp_grads_clip_by_norm(kernels, gradients, n, CHARLM_CLIP_NORM, AMP_CLIP_L2, gradients, &local->norm, error);
    if (code != 0)
        return code;
    struct amp_optim_config config;
    amp_optim_defaults(AMP_OPT_ADAMW, &config);
    config.lr = CHARLM_LR;
    config.weight_decay = CHARLM_WEIGHT_DECAY;
    struct amp_apply apply;
    struct amp_apply_stats stats = {0};
    amp_optim_scalars(&config, local->applied + 1, config.lr, 1.0f, &apply);
    apply.cast = AMP_F32; /* autocast makes the low copies */
    size_t elements = 0;
    for (size_t i = 0; i < n; i++)
        elements += gradients[i].count;
    amp_pass_apply_g(kernels, elements, local->wide, &apply, local->masters, local->m, local->v, local->copy, &stats);
    local->applied++;
    for (size_t i = 0; i < n; i++)
        local->model.parameters[i].now.version = local->applied; /* the cached casts have the values of before */
    return 0;
}

/* Prints whose gradients had an Inf or NaN. */
static void show_overflows(struct charlm_local *local)
{
    struct amp_overflow_stats stats;
    char text[200]; /* the first few names are enough */
    if (amp_grads_overflow_stats(local->model.kernels, local->gradients, local->model.parameters_count, local->names,
                                 &stats, NULL) != 0)
        return;
    (void)amp_overflow_stats_text(&stats, text, sizeof text);
    (void)printf("  %s\n", text);
}

/* The factor on the loss; 1 without a scaler. */
static float loss_scale(const struct charlm_local *local)
{
    const struct amp_loss_scaler *scaler = &local->scaler;
    return scaler->ops->enabled(scaler->scaler) ? scaler->ops->scale(scaler->scaler) : 1.0f;
}

int charlm_local_step(struct charlm_local *local, double *loss, bool *skipped)
{
    struct charlm_model *model = &local->model;
    const struct charlm_options *options = local->options;
    float scale = loss_scale(local);
    charlm_text_batch(local->text, options, 0, local->step * options->shape.sequences, local->inputs, local->targets);
    charlm_begin(model, local->inputs, options->shape.sequences);
    for (size_t unit = 0; unit < charlm_units(model); unit++)
        charlm_forward(model, unit);
    charlm_end(model);
    *loss = charlm_loss(model, local->targets, scale);
    for (size_t unit = charlm_units(model); unit-- > 0;)
        charlm_backward(model, unit);
    if (model->failed != 0)
        return failed("the model", model->error.text);
    for (size_t i = 0; i < model->parameters_count; i++) {
        const struct amp_tensor *gradient = &model->parameters[i].gradient;
        amp_cast(model->kernels, local->gradients[i].data, AMP_F32, gradient->data, gradient->dtype, gradient->count);
    }
    struct amp_error error = {0};
    local->norm = 0.0;
    if (amp_loss_scaler_step(&local->scaler, local->gradients, model->parameters_count, skipped, &error, local,
                             optimizer) != 0)
        return failed("the step", error.text);
    local->step++;
    return 0;
}

/* ---- the job ---- */

static int train(struct charlm_local *local, struct charlm_progress *progress)
{
    while (local->step < local->options->steps) {
        double loss;
        bool skipped;
        float scale = loss_scale(local);
        if (charlm_local_step(local, &loss, &skipped) != 0)
            return -1;
        charlm_progress_step(progress, local->step, loss, scale, local->norm, skipped);
        if (skipped && !local->options->quiet)
            show_overflows(local);
    }
    double held_out = charlm_text_validate(local->text, &local->model);
    if (local->model.failed != 0)
        return failed("the validation", local->model.error.text);
    (void)printf("charlm: validation loss %.4f after %" PRIu64 " steps (%" PRIu64 " applied, %" PRIu64
                 " skipped), final scale %g\n",
                 held_out, local->step, local->applied, local->step - local->applied, (double)loss_scale(local));
    return local->options->write > 0 ? charlm_write(&local->model, local->options->seed, local->options->write) : 0;
}

int charlm_run_local(const struct charlm_options *options, const struct amp_kernels *kernels,
                     const struct charlm_text *text)
{
    struct charlm_local local;
    struct charlm_progress progress = {0};
    int rc = charlm_local_open(&local, options, kernels, text);
    if (rc == 0)
        rc = charlm_progress_open(&progress, options);
    if (rc == 0)
        rc = train(&local, &progress);
    charlm_progress_close(&progress);
    charlm_local_close(&local);
    return rc == 0 ? 0 : 1;
}
