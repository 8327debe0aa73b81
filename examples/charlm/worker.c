#include "examples/charlm/charlm.h"

#include "client/ampclient.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/*
 * A worker: the server has the masters, the optimizer, the loss scale and the verdict. What is pulled is in the low
 * precision already and is used where it lies; the gradients of a unit are pushed as soon as its backward is done, so
 * that they travel while the units below it compute.
 *
 * With --units it never holds more than the units in use: each is gathered for its forward, released, and gathered
 * again for its backward, while the next one comes; a step that became void meanwhile is computed again.
 */

/* Parameters that are named after a skipped step, at most. */
#define OVERFLOWS_SHOWN 2
/* How long a server may be gone: two minutes are enough to restart it. */
#define RECONNECT_TIMEOUT_MS 120000

/*
 * Where this rank is in its text, as the server keeps it with each verdict: sequences read by the end of a step. After
 * a rollback, and in a job that is resumed, the rank reads on where the epoch began, even if its --batch has changed.
 * Stored as it lies in memory.
 */
struct position {
    uint64_t step, sequences;
};

/* Seconds spent in the client's calls (a gather counts as begin), and in whole steps. */
struct times {
    double begin_s, push_s, end_s, all_s;
    uint64_t steps;
};

struct worker {
    const struct charlm_options *options;
    const struct charlm_text *text;
    struct charlm_model model;
    struct ampclient *client;
    struct ampclient_model *remote;
    uint8_t *inputs, *targets;
    uint64_t epoch;       /* that `base` belongs to; 0: none yet */
    struct position base; /* where the epoch began */
    struct charlm_progress progress;
    struct times times;
};

static int failed(const struct worker *worker, const char *what, int rc)
{
    const char *text = worker->client != NULL ? ampclient_error_text(worker->client) : "";
    (void)fprintf(stderr, "charlm: %s: %s\n", what, text[0] != 0 ? text : amp_strerror(rc));
    return -1;
}

/* ---- the model on the server ---- */

/* The specification's fields, but for the parameters. */
static struct ampclient_spec spec_of(const struct charlm_options *options)
{
    struct ampclient_spec spec = AMPCLIENT_SPEC_INIT;
    spec.name = options->model;
    spec.world_size = options->world;
    spec.optimizer = AMPCLIENT_ADAMW;
    spec.lr = CHARLM_LR;
    spec.weight_decay_set = true;
    spec.weight_decay = CHARLM_WEIGHT_DECAY;
    spec.clip_max_norm = (float)CHARLM_CLIP_NORM;
    spec.cast = options->mode == AMP_AUTOCAST_NONE ? AMP_F32 : amp_autocast_low_dtype(options->mode);
    spec.max_steps = options->steps;
    spec.checkpoint_every = options->checkpoint_every;
    enum charlm_scaler scaler = charlm_scaler_of(options);
    spec.scaler = scaler == CHARLM_SCALER_DYNAMIC  ? AMPCLIENT_SCALER_DYNAMIC
                  : scaler == CHARLM_SCALER_STATIC ? AMPCLIENT_SCALER_STATIC
                                                   : AMPCLIENT_SCALER_NONE;
    if (scaler == CHARLM_SCALER_DYNAMIC)
        spec.growth_interval = CHARLM_GROWTH_INTERVAL;
    if (scaler != CHARLM_SCALER_NONE)
        spec.init_scale = options->scale;
    return spec;
}

static int create_model(struct worker *worker)
{
    const struct charlm_model *model = &worker->model;
    struct ampclient_parameter_spec *parameters = calloc(model->parameters_count, sizeof *parameters);
    if (parameters == NULL)
        return failed(worker, "cannot create the model", AMP_ENOMEM);
    for (size_t i = 0; i < model->parameters_count; i++) {
        const struct charlm_parameter *own = &model->parameters[i];
        parameters[i] = (struct ampclient_parameter_spec){
            .name = own->name, .dimensions = own->columns > 0 ? 2 : 1, .shape = {own->rows, own->columns}};
    }
    struct ampclient_spec spec = spec_of(worker->options);
    spec.parameters = parameters;
    spec.parameters_count = (uint32_t)model->parameters_count;
    int rc = ampclient_create(worker->client, &spec, NULL);
    free(parameters);
    return rc == 0 ? 0 : failed(worker, "cannot create the model", rc);
}

/* Loads the first values. Every worker does so, all with the same values, and the first load counts. */
static int load_values(struct worker *worker)
{
    const struct charlm_model *model = &worker->model;
    const float **values = calloc(model->parameters_count, sizeof *values);
    size_t elements = 0, offset = 0;
    for (size_t i = 0; i < model->parameters_count; i++)
        elements += charlm_elements(&model->parameters[i]);
    float *memory = calloc(elements, sizeof *memory);
    int rc = values != NULL && memory != NULL ? 0 : AMP_ENOMEM;
    for (size_t i = 0; rc == 0 && i < model->parameters_count; i++) {
        charlm_init(model, i, worker->options->seed, memory + offset);
        values[i] = memory + offset;
        offset += charlm_elements(&model->parameters[i]);
    }
    if (rc == 0)
        rc = ampclient_load(worker->client, worker->options->model, values, (uint32_t)model->parameters_count, NULL);
    free(values);
    free(memory);
    return rc == 0 ? 0 : failed(worker, "cannot load the first values", rc);
}

/* Adds the model's units in order, so that both sides number them alike. */
static int add_units(struct worker *worker)
{
    uint32_t parameters[CHARLM_BLOCK_PARAMETERS], number;
    for (size_t unit = 0; unit < charlm_units(&worker->model); unit++) {
        size_t first, count;
        charlm_unit_parameters(&worker->model, unit, &first, &count);
        for (size_t i = 0; i < count; i++)
            parameters[i] = (uint32_t)(first + i);
        int rc = ampclient_unit_add(worker->remote, parameters, (uint32_t)count, &number);
        if (rc != 0)
            return failed(worker, "cannot add a unit", rc);
    }
    return 0;
}

static int join_model(struct worker *worker)
{
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    join.units = worker->options->units;
    int rc = ampclient_join(worker->client, worker->options->model, &join, &worker->remote);
    if (rc != 0)
        return failed(worker, "cannot join", rc);
    return join.units ? add_units(worker) : 0;
}

/* ---- a step ---- */

/* The pulled values of a unit become the model's: views, valid until the next step begins or the unit is released. */
static int take_unit(struct worker *worker, size_t unit, uint64_t version)
{
    size_t first, count;
    charlm_unit_parameters(&worker->model, unit, &first, &count);
    for (size_t i = first; i < first + count; i++) {
        struct ampclient_tensor tensor;
        int rc = ampclient_parameter(worker->remote, (uint32_t)i, &tensor);
        if (rc != 0)
            return failed(worker, "cannot read a parameter", rc);
        worker->model.parameters[i].now =
            (struct amp_tensor_view){tensor.data, tensor.elements, tensor.dtype, i + 1, version};
    }
    return 0;
}

/*
 * With --units: waits for a unit, and asks for the one that is needed after it (`next`; the same one: none). 0, or 1 if
 * the step is void.
 */
static int gather_unit(struct worker *worker, size_t unit, size_t next)
{
    if (!worker->options->units)
        return 0;
    double begin_s = charlm_now_s();
    int rc = ampclient_gather(worker->remote, (uint32_t)unit);
    if (rc == 0 && next != unit)
        rc = ampclient_prefetch(worker->remote, (uint32_t)next);
    worker->times.begin_s += charlm_now_s() - begin_s;
    return rc >= 0 ? rc : failed(worker, "cannot gather a unit", rc);
}

static int release_unit(struct worker *worker, size_t unit)
{
    int rc = worker->options->units ? ampclient_release(worker->remote, (uint32_t)unit) : 0;
    return rc == 0 ? 0 : failed(worker, "cannot release a unit", rc);
}

/* The gradients of a unit are borrowed until step_end, with --units until the next one's. 1: the step is void. */
static int push_unit(struct worker *worker, size_t unit)
{
    const void *gradients[CHARLM_BLOCK_PARAMETERS];
    const struct charlm_model *model = &worker->model;
    size_t first, count;
    double begin_s = charlm_now_s();
    charlm_unit_parameters(model, unit, &first, &count);
    int rc = 0;
    for (size_t i = count; i-- > 0;) {
        gradients[i] = model->parameters[first + i].gradient.data;
        if (rc == 0 && !worker->options->units)
            rc = ampclient_push(worker->remote, (uint32_t)(first + i), gradients[i], model->gradient_dtype);
    }
    if (worker->options->units)
        rc = ampclient_scatter(worker->remote, (uint32_t)unit, gradients, model->gradient_dtype);
    worker->times.push_s += charlm_now_s() - begin_s;
    return rc >= 0 ? rc : failed(worker, "cannot push", rc);
}

/* How many sequences this rank has read before a step: from where the epoch began, or from the start. */
static int read_before(struct worker *worker, const struct ampclient_step *step, uint64_t *sequences)
{
    if (worker->epoch != step->epoch) {
        const void *data;
        size_t size;
        int rc = ampclient_user_state(worker->remote, &data, &size);
        if (rc != 0)
            return failed(worker, "cannot read the position in the text", rc);
        worker->base = (struct position){0};
        if (size == sizeof worker->base)
            memcpy(&worker->base, data, size);
        worker->epoch = step->epoch;
    }
    *sequences = worker->base.sequences + (step->step - worker->base.step - 1) * worker->options->shape.sequences;
    return 0;
}

static int forward(struct worker *worker, uint64_t version)
{
    struct charlm_model *model = &worker->model;
    size_t last = charlm_units(model) - 1;
    int rc = 0;
    for (size_t unit = 0; rc == 0 && unit <= last; unit++) {
        rc = gather_unit(worker, unit, unit < last ? unit + 1 : unit);
        if (rc == 0)
            rc = take_unit(worker, unit, version);
        if (rc == 0)
            charlm_forward(model, unit);
        if (rc == 0 && unit < last) /* the last one's backward comes next */
            rc = release_unit(worker, unit);
    }
    return rc;
}

static int backward(struct worker *worker, uint64_t version)
{
    struct charlm_model *model = &worker->model;
    int rc = 0;
    for (size_t unit = charlm_units(model); rc == 0 && unit-- > 0;) {
        rc = gather_unit(worker, unit, unit > 0 ? unit - 1 : unit);
        if (rc == 0)
            rc = take_unit(worker, unit, version);
        if (rc == 0)
            charlm_backward(model, unit);
        if (rc == 0)
            rc = release_unit(worker, unit);
        if (rc == 0 && model->failed == 0)
            rc = push_unit(worker, unit);
    }
    return rc;
}

/* Forward and backward, with each unit's gradients pushed on the way. 0, or 1 if the step became void meanwhile. */
static int compute(struct worker *worker, const struct ampclient_step *step, double *loss)
{
    struct charlm_model *model = &worker->model;
    *loss = 0.0;
    charlm_begin(model, worker->inputs, worker->options->shape.sequences);
    int rc = forward(worker, step->version);
    charlm_end(model);
    if (rc == 0) {
        *loss = charlm_loss(model, worker->targets, step->scale);
        rc = ampclient_loss(worker->remote, (float)*loss);
        rc = rc != 0 ? failed(worker, "cannot tell the loss", rc) : backward(worker, step->version);
    }
    if (rc == 0 && model->failed != 0) {
        (void)fprintf(stderr, "charlm: the model: %s\n", model->error.text);
        rc = -1;
    }
    return rc;
}

static void show(struct worker *worker, const struct ampclient_result *result, double loss)
{
    bool skipped = result->verdict != AMPCLIENT_APPLIED;
    if (result->verdict == AMPCLIENT_ROLLED_BACK || ampclient_rank(worker->remote) != 0)
        return;
    charlm_progress_step(&worker->progress, result->step, loss, result->scale, result->norm, skipped);
    for (uint32_t i = 0; !worker->options->quiet && i < result->overflows_count && i < OVERFLOWS_SHOWN; i++) {
        const struct ampclient_overflow *row = &result->overflows[i];
        (void)printf("  %s of %s: %" PRIu64 " Inf, %" PRIu64 " NaN\n", row->parameter,
                     row->rank >= 0 ? row->worker : "the sum", row->inf_count, row->nan_count);
    }
}

/* One step; 0 to go on, 1 when the model is done, -1 on an error. */
static int one_step(struct worker *worker)
{
    const struct charlm_options *options = worker->options;
    struct ampclient_step step = AMPCLIENT_STEP_INIT;
    struct ampclient_result result = AMPCLIENT_RESULT_INIT;
    double begin_s = charlm_now_s(), loss;
    int rc = ampclient_step_begin(worker->remote, &step);
    if (rc != 0)
        return rc > 0 ? 1 : failed(worker, "cannot begin a step", rc);
    double begun_s = charlm_now_s();
    if (step.rolled_back && !options->quiet)
        (void)printf("rank %u goes on at step %" PRIu64 " of epoch %" PRIu64 "\n", ampclient_rank(worker->remote),
                     step.step, step.epoch);
    uint64_t sequences;
    if (read_before(worker, &step, &sequences) != 0)
        return -1;
    charlm_text_batch(worker->text, options, ampclient_rank(worker->remote), sequences, worker->inputs,
                      worker->targets);
    const struct position after = {step.step, sequences + options->shape.sequences};
    rc = ampclient_set_user_state(worker->remote, &after, sizeof after);
    if (rc != 0)
        return failed(worker, "cannot set the position in the text", rc);
    if (compute(worker, &step, &loss) < 0)
        return -1;
    double computed_s = charlm_now_s();
    rc = ampclient_step_end(worker->remote, &result);
    if (rc != 0)
        return failed(worker, "cannot end a step", rc);
    double ended_s = charlm_now_s();
    worker->times.begin_s += begun_s - begin_s;
    worker->times.end_s += ended_s - computed_s;
    worker->times.all_s += ended_s - begin_s;
    worker->times.steps++;
    show(worker, &result, loss);
    return 0;
}

/* ---- the job ---- */

/*
 * Takes the parameters that all workers have at the end. All units stay gathered, since the validation uses each many
 * times. 0; 1 if the servers no longer have the version that was pulled, for they were restarted; or -1.
 */
static int take_all(struct worker *worker)
{
    int rc = ampclient_pull(worker->remote, NULL);
    if (rc != 0)
        return failed(worker, "cannot pull for the validation", rc);
    for (size_t unit = 0; rc == 0 && unit < charlm_units(&worker->model); unit++) {
        rc = gather_unit(worker, unit, unit);
        if (rc == 0)
            rc = take_unit(worker, unit, UINT64_MAX);
    }
    return rc;
}

/* Rank 0 validates, reports and writes at the end. */
static int finish(struct worker *worker)
{
    const struct charlm_options *options = worker->options;
    if (ampclient_rank(worker->remote) != 0)
        return 0;
    int rc;
    do
        rc = take_all(worker);
    while (rc == 1);
    if (rc != 0)
        return -1;
    struct ampclient_status status = AMPCLIENT_STATUS_INIT;
    rc = ampclient_status(worker->client, options->model, &status);
    if (rc != 0)
        return failed(worker, "cannot read the model's state", rc);
    double held_out = charlm_text_validate(worker->text, &worker->model);
    if (worker->model.failed != 0) {
        (void)fprintf(stderr, "charlm: the validation: %s\n", worker->model.error.text);
        return -1;
    }
    const struct times *times = &worker->times;
    if (times->steps > 0) {
        double each_ms = 1e3 / (double)times->steps;
        (void)printf("charlm: a step took %.1f ms; of it %.1f to begin and pull, %.1f to push, %.1f to end and wait\n",
                     times->all_s * each_ms, times->begin_s * each_ms, times->push_s * each_ms, times->end_s * each_ms);
    }
    (void)printf("charlm: validation loss %.4f after %" PRIu64 " steps (%" PRIu64 " applied, %" PRIu64
                 " skipped), final scale %g\n",
                 held_out, status.attempted, status.applied, status.skipped, (double)status.scale);
    return options->write > 0 ? charlm_write(&worker->model, options->seed, options->write) : 0;
}

static int open_worker(struct worker *worker, const struct amp_kernels *kernels)
{
    const struct charlm_options *options = worker->options;
    size_t rows = options->shape.sequences * options->shape.context;
    if (charlm_model_open(&worker->model, kernels, &options->shape, options->mode) != 0) {
        (void)fprintf(stderr, "charlm: the model: %s\n", worker->model.error.text);
        return -1;
    }
    worker->inputs = calloc(rows, 1);
    worker->targets = calloc(rows, 1);
    if (worker->inputs == NULL || worker->targets == NULL)
        return failed(worker, "cannot start", AMP_ENOMEM);
    struct ampclient_options connect = AMPCLIENT_OPTIONS_INIT;
    connect.reconnect_timeout_ms = RECONNECT_TIMEOUT_MS;
    struct amp_error error = {0};
    if (ampclient_connect(options->connect, &connect, &worker->client, &error) != 0) {
        (void)fprintf(stderr, "charlm: cannot connect to %s: %s\n", options->connect, error.text);
        return -1;
    }
    return charlm_progress_open(&worker->progress, options);
}

static void close_worker(struct worker *worker)
{
    ampclient_close(worker->client);
    charlm_progress_close(&worker->progress);
    charlm_model_close(&worker->model);
    free(worker->inputs);
    free(worker->targets);
}

int charlm_run_worker(const struct charlm_options *options, const struct amp_kernels *kernels,
                      const struct charlm_text *text)
{
    struct worker worker = {.options = options, .text = text};
    int rc = open_worker(&worker, kernels);
    if (rc == 0)
        rc = create_model(&worker);
    if (rc == 0)
        rc = load_values(&worker);
    if (rc == 0)
        rc = join_model(&worker);
    while (rc == 0)
        rc = one_step(&worker);
    if (rc == 1)
        rc = finish(&worker);
    close_worker(&worker);
    return rc == 0 ? 0 : 1;
}
