#include "examples/digits/digits.h"

#include "amp/autocast.h"
#include "client/ampclient.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Starts far above what fp16 gradients bear, so that the first steps really overflow and the scale backs off. */
#define DIGITS_INIT_SCALE      16777216.0f
#define DIGITS_GROWTH_INTERVAL 100
/* One line of progress for this many steps. */
#define PROGRESS_EVERY 25
/* Of a skipped step: so many parameters are named. */
#define OVERFLOWS_SHOWN 2
/* A restarted server must have this long; a supervisor restarts it within a second. */
#define RECONNECT_TIMEOUT_MS 120000

struct worker {
    const struct digits_options *options;
    struct digits_data *data;
    struct digits_mlp mlp;
    struct ampclient *client;
    struct ampclient_model *model;
    void *gradients[DIGITS_PARAMETERS]; /* in the dtype of the push */
    float *pixels;
    uint8_t *digits;
    struct ampclient_result last;
};

static int failed(struct worker *worker, const char *what, int rc)
{
    const char *text = worker->client != NULL ? ampclient_error_text(worker->client) : "";
    (void)fprintf(stderr, "digits: %s: %s\n", what, text[0] != 0 ? text : amp_strerror(rc));
    return -1;
}

static int create_model(struct worker *worker)
{
    const struct digits_options *options = worker->options;
    struct ampclient_parameter_spec parameters[DIGITS_PARAMETERS];
    for (uint32_t i = 0; i < DIGITS_PARAMETERS; i++) {
        const size_t *sizes = worker->mlp.sizes + i / 2;
        parameters[i] = (struct ampclient_parameter_spec){.name = digits_parameter_names[i],
                                                          .dimensions = i % 2 == 0 ? 2 : 1,
                                                          .shape = {sizes[1], i % 2 == 0 ? sizes[0] : 0}};
    }
    struct ampclient_spec spec = AMPCLIENT_SPEC_INIT;
    spec.name = options->model;
    spec.parameters = parameters;
    spec.parameters_count = DIGITS_PARAMETERS;
    spec.world_size = options->world;
    spec.optimizer = AMPCLIENT_ADAMW;
    spec.lr = DIGITS_LR;
    spec.clip_max_norm = DIGITS_CLIP_NORM;
    spec.cast = options->dtype;
    spec.max_steps = options->steps;
    spec.checkpoint_every = options->checkpoint_every;
    spec.durability = options->steps_durable ? AMPCLIENT_DURABILITY_STEP : AMPCLIENT_DURABILITY_CHECKPOINT;
    /* Only fp16 needs a scale; bf16 has the range of fp32. */
    spec.scaler = options->dtype == AMP_F16 ? AMPCLIENT_SCALER_DYNAMIC : AMPCLIENT_SCALER_NONE;
    if (options->dtype == AMP_F16) {
        spec.init_scale = DIGITS_INIT_SCALE;
        spec.growth_interval = DIGITS_GROWTH_INTERVAL;
    }
    int rc = ampclient_create(worker->client, &spec, NULL);
    return rc == 0 ? 0 : failed(worker, "cannot create the model", rc);
}

static int join_model(struct worker *worker)
{
    digits_mlp_init(&worker->mlp, worker->options->seed);
    const float *values[DIGITS_PARAMETERS];
    for (uint32_t i = 0; i < DIGITS_PARAMETERS; i++)
        values[i] = worker->mlp.parameters[i];
    int rc = ampclient_load(worker->client, worker->options->model, values, DIGITS_PARAMETERS, NULL);
    if (rc != 0)
        return failed(worker, "cannot load the first values", rc);
    rc = ampclient_join(worker->client, worker->options->model, NULL, &worker->model);
    return rc == 0 ? 0 : failed(worker, "cannot join", rc);
}

/* The pulled parameters, widened to fp32, which holds them exactly. */
static int take_parameters(struct worker *worker)
{
    for (uint32_t i = 0; i < DIGITS_PARAMETERS; i++) {
        struct ampclient_tensor tensor;
        int rc = ampclient_parameter(worker->model, i, &tensor);
        if (rc != 0)
            return failed(worker, "cannot read a parameter", rc);
        amp_cast(worker->mlp.kernels, worker->mlp.parameters[i], AMP_F32, tensor.data, tensor.dtype, tensor.elements);
    }
    return 0;
}

static int push_gradients(struct worker *worker)
{
    /* From the last layer to the first, as a backward pass makes them. */
    for (uint32_t i = DIGITS_PARAMETERS; i-- > 0;) {
        enum amp_dtype dtype = worker->options->dtype;
        amp_cast(worker->mlp.kernels, worker->gradients[i], dtype, worker->mlp.gradients[i], AMP_F32,
                 digits_parameter_elements(&worker->mlp, i));
        int rc = ampclient_push(worker->model, i, worker->gradients[i], dtype);
        if (rc != 0)
            return failed(worker, "cannot push", rc);
    }
    return 0;
}

static void show_progress(const struct worker *worker, const struct ampclient_result *result, float loss)
{
    static const char *const verdicts[] = {"?",    "applied",    "skipped: overflow", "skipped: empty",
                                           "late", "rolled back"};
    if (worker->options->quiet || ampclient_rank(worker->model) != 0)
        return;
    if (result->verdict == AMPCLIENT_APPLIED && result->step % PROGRESS_EVERY != 0)
        return;
    (void)printf("step %5" PRIu64 "  loss %7.4f  scale %10.0f  norm %8.4f  %s\n", result->step, (double)loss,
                 (double)result->scale, result->norm, verdicts[result->verdict]);
    for (uint32_t i = 0; i < result->overflows_count && i < OVERFLOWS_SHOWN; i++) {
        const struct ampclient_overflow *row = &result->overflows[i];
        (void)printf("  %s of %s: %" PRIu64 " Inf, %" PRIu64 " NaN\n", row->parameter,
                     row->rank >= 0 ? row->worker : "the sum", row->inf_count, row->nan_count);
    }
    (void)fflush(stdout);
}

static void enter_autocast(enum amp_dtype dtype)
{
    if (dtype == AMP_F32)
        (void)amp_autocast_enter(AMP_AUTOCAST_NONE);
    else
        (void)amp_autocast_enter(dtype == AMP_F16 ? AMP_AUTOCAST_FP16 : AMP_AUTOCAST_BF16);
}

/* One step; 0 to go on, 1 when the model is done, -1 on an error. */
static int one_step(struct worker *worker)
{
    const struct digits_options *options = worker->options;
    struct ampclient_step step = AMPCLIENT_STEP_INIT;
    int rc = ampclient_step_begin(worker->model, &step);
    if (rc != 0)
        return rc > 0 ? 1 : failed(worker, "cannot begin a step", rc);
    if (step.rolled_back && !options->quiet)
        (void)printf("rank %u goes on at step %" PRIu64 " of epoch %" PRIu64 "\n", ampclient_rank(worker->model),
                     step.step, step.epoch);
    if (take_parameters(worker) != 0)
        return -1;
    digits_data_batch(worker->data, options->seed, step.step, ampclient_rank(worker->model), options->world,
                      options->batch, worker->pixels, worker->digits);
    enter_autocast(options->dtype);
    float loss = digits_mlp_train(&worker->mlp, worker->pixels, worker->digits, step.scale);
    amp_autocast_exit();
    rc = ampclient_loss(worker->model, loss);
    if (rc != 0)
        return failed(worker, "cannot tell the loss", rc);
    if (push_gradients(worker) != 0)
        return -1;
    struct ampclient_result result = AMPCLIENT_RESULT_INIT;
    rc = ampclient_step_end(worker->model, &result);
    if (rc != 0)
        return failed(worker, "cannot end a step", rc);
    show_progress(worker, &result, loss);
    if (result.verdict != AMPCLIENT_ROLLED_BACK)
        worker->last = result;
    return 0;
}

static int evaluate(struct worker *worker)
{
    if (ampclient_rank(worker->model) != 0)
        return 0;
    int rc = ampclient_pull(worker->model, NULL);
    if (rc != 0)
        return failed(worker, "cannot pull for the evaluation", rc);
    if (take_parameters(worker) != 0)
        return -1;
    struct ampclient_status status = AMPCLIENT_STATUS_INIT;
    rc = ampclient_status(worker->client, worker->options->model, &status);
    if (rc != 0)
        return failed(worker, "cannot read the model's state", rc);
    enter_autocast(worker->options->dtype);
    double accuracy = digits_mlp_accuracy(&worker->mlp, worker->data->test_pixels, worker->data->test_digits,
                                          worker->data->test_count);
    amp_autocast_exit();
    (void)printf("digits: test accuracy %.3f after %" PRIu64 " steps (%" PRIu64 " applied, %" PRIu64
                 " skipped), final scale %g\n",
                 accuracy, status.attempted, status.applied, status.skipped, (double)status.scale);
    (void)fflush(stdout);
    return 0;
}

static int open_worker(struct worker *worker, const struct amp_kernels *kernels)
{
    const struct digits_options *options = worker->options;
    if (digits_mlp_open(&worker->mlp, kernels, options->hidden, options->batch) != 0)
        return failed(worker, "cannot start", AMP_ENOMEM);
    for (uint32_t i = 0; i < DIGITS_PARAMETERS; i++) {
        worker->gradients[i] = calloc(digits_parameter_elements(&worker->mlp, i), sizeof(float));
        if (worker->gradients[i] == NULL)
            return failed(worker, "cannot start", AMP_ENOMEM);
    }
    worker->pixels = calloc(options->batch, DIGITS_PIXELS * sizeof(float));
    worker->digits = calloc(options->batch, 1);
    if (worker->pixels == NULL || worker->digits == NULL)
        return failed(worker, "cannot start", AMP_ENOMEM);
    struct ampclient_options connect = AMPCLIENT_OPTIONS_INIT;
    connect.reconnect_timeout_ms = RECONNECT_TIMEOUT_MS;
    struct amp_error error = {0};
    if (ampclient_connect(options->connect, &connect, &worker->client, &error) != 0) {
        (void)fprintf(stderr, "digits: cannot connect to %s: %s\n", options->connect, error.text);
        return -1;
    }
    return 0;
}

static void close_worker(struct worker *worker)
{
    ampclient_close(worker->client);
    for (uint32_t i = 0; i < DIGITS_PARAMETERS; i++)
        free(worker->gradients[i]);
    free(worker->pixels);
    free(worker->digits);
    digits_mlp_close(&worker->mlp);
}

int digits_run_worker(const struct digits_options *options, const struct amp_kernels *kernels, struct digits_data *data)
{
    struct worker worker = {.options = options, .data = data};
    int rc = open_worker(&worker, kernels);
    if (rc == 0)
        rc = create_model(&worker);
    if (rc == 0)
        rc = join_model(&worker);
    while (rc == 0)
        rc = one_step(&worker);
    if (rc == 1)
        rc = evaluate(&worker);
    close_worker(&worker);
    return rc == 0 ? 0 : 1;
}
