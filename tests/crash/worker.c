/*
 * A worker of the crash suite: its gradients are a function of the step, the rank and the parameters, so that a run that
 * was killed and a run that was not must end with the same bits. It has the user's loop and nothing else: what is lost and
 * found again, libampclient hides.
 *
 *     crash_worker ADDRESS MODEL RANK WORLD STEPS CHECKPOINT_EVERY checkpoint|step [small|large [LAST [PAUSE_MS]]]
 *
 * LAST may be "@FILE" instead, a file that comes while it trains and has it: whoever injects faults cannot know beforehand how
 * many steps they take. The workers are in step with each other, so all end after the same one. PAUSE_MS passes before each
 * push, where faults take long and each of many steps would have to be done again by the run that is compared.
 *
 * A line for each verdict: epoch, step, verdict, last durable step, and 1 if memory was shared with the server, 0 if not.
 *
 * Exit code 0: the model is done, or has the verdict of step LAST. 1: a call failed, or the user state did not come back with its step; a sentence says so.
 */
#define _DEFAULT_SOURCE /* usleep */
#include "amp/cpu.h"
#include "amp/autocast.h"
#include "client/ampclient.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PARAMETERS_MAX 9

struct parameter {
    const char *name;
    uint64_t rows, columns; /* columns 0: it has one dimension */
};

/* What is trained. */
struct job {
    const char *word;
    float init_scale; /* overflows after 3 or 9 steps, backs off, grows and overflows again */
    uint32_t count;
    struct parameter parameters[PARAMETERS_MAX];
};

static const struct job jobs[] = {
    /* Two blocks; the second parameter has a border of blocks within it. */
    {"small", 16384.0f, 3, {{"bias", 70, 0}, {"wide", 65536, 0}, {"last", 257, 0}}},
    /* 50,659,659 elements of odd sizes: wherever shards meet, it is within a matrix. */
    {"large",
     65536.0f,
     9,
     {{"embedding", 31999, 1023},
      {"wide", 4097, 2049},
      {"bias", 4097, 0},
      {"narrow", 2049, 4097},
      {"line", 1000003, 0},
      {"above", 65537, 0},
      {"below", 65535, 0},
      {"three", 3, 0},
      {"one", 1, 0}}},
};

/* A restarted server must have this long; the suite restarts it at once. */
#define RECONNECT_TIMEOUT_MS 60000
#define STATE_MAX            64

struct worker {
    const struct job *job;
    const char *model_name;
    uint32_t rank;
    const struct amp_kernels *kernels;
    struct ampclient *client;
    struct ampclient_model *model;
    float *values; /* of one parameter */
    uint16_t *gradients[PARAMETERS_MAX];
    useconds_t pause_us;   /* before each push */
    uint64_t last;         /* step after which it ends; 0: when the model is done */
    const char *last_path; /* of a file that will say so; NULL: none */
    uint64_t restored_at;  /* step of the last user state that came back */
    bool state_ok;
};

static int failed(const struct worker *worker, const char *what, int rc)
{
    const char *text = worker->client != NULL ? ampclient_error_text(worker->client) : "";
    (void)fprintf(stderr, "rank %u: %s: %s\n", worker->rank, what, text[0] != 0 ? text : amp_strerror(rc));
    return -1;
}

static uint64_t elements(const struct parameter *parameter)
{
    return parameter->rows * (parameter->columns > 0 ? parameter->columns : 1);
}

/* Of the longest parameter. */
static uint64_t elements_max(const struct job *job)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < job->count; i++)
        if (elements(&job->parameters[i]) > most)
            most = elements(&job->parameters[i]);
    return most;
}

static int create(struct worker *worker, char **argv)
{
    const struct job *job = worker->job;
    struct ampclient_parameter_spec parameters[PARAMETERS_MAX];
    for (uint32_t i = 0; i < job->count; i++)
        parameters[i] = (struct ampclient_parameter_spec){
            .name = job->parameters[i].name,
            .dimensions = job->parameters[i].columns > 0 ? 2 : 1,
            .shape = {job->parameters[i].rows, job->parameters[i].columns},
        };
    struct ampclient_spec spec = AMPCLIENT_SPEC_INIT;
    spec.name = worker->model_name;
    spec.parameters = parameters;
    spec.parameters_count = job->count;
    spec.world_size = (uint32_t)strtoul(argv[4], NULL, 10);
    spec.max_steps = strtoull(argv[5], NULL, 10);
    spec.checkpoint_every = strtoull(argv[6], NULL, 10);
    spec.durability = strcmp(argv[7], "step") == 0 ? AMPCLIENT_DURABILITY_STEP : AMPCLIENT_DURABILITY_CHECKPOINT;
    spec.clip_max_norm = 1.0f;
    /* It overflows, grows and overflows again all the time, so that no two steps near one another have the same record. */
    spec.init_scale = job->init_scale;
    spec.growth_interval = 3;
    int rc = ampclient_create(worker->client, &spec, NULL);
    return rc == 0 ? 0 : failed(worker, "create", rc);
}

static void state_of(const struct worker *worker, uint64_t step, char text[STATE_MAX])
{
    (void)snprintf(text, STATE_MAX, "rank %u, step %" PRIu64, worker->rank, step);
}

/* Where a checkpoint ended the state is the one that was given with the step before, or none before the first. */
static void restore(void *arg, uint64_t step, const void *data, size_t size)
{
    struct worker *worker = arg;
    char expected[STATE_MAX] = "";
    if (step > 1)
        state_of(worker, step - 1, expected);
    worker->restored_at = step;
    worker->state_ok = size == strlen(expected) && memcmp(data, expected, size) == 0;
    if (!worker->state_ok)
        (void)fprintf(stderr, "rank %u: at step %" PRIu64 " the user state is \"%.*s\", not \"%s\"\n", worker->rank,
                      step, (int)size, (const char *)data, expected);
}

static int load_and_join(struct worker *worker)
{
    const struct job *job = worker->job;
    float *first[PARAMETERS_MAX];
    const float *values[PARAMETERS_MAX];
    int rc = 0;
    for (uint32_t i = 0; i < job->count; i++) {
        uint64_t count = elements(&job->parameters[i]);
        values[i] = first[i] = calloc(count, sizeof(float));
        for (uint64_t e = 0; first[i] != NULL && e < count; e++)
            first[i][e] = (float)(e % 17) / 16.0f - 0.5f;
        rc = first[i] == NULL ? AMP_ENOMEM : rc;
    }
    if (rc == 0)
        rc = ampclient_load(worker->client, worker->model_name, values, job->count, NULL);
    for (uint32_t i = 0; i < job->count; i++)
        free(first[i]);
    if (rc != 0)
        return failed(worker, "load", rc);
    struct ampclient_join_options options = AMPCLIENT_JOIN_OPTIONS_INIT;
    options.rank = (int32_t)worker->rank;
    options.restore_cb = restore;
    options.restore_arg = worker;
    rc = ampclient_join(worker->client, worker->model_name, &options, &worker->model);
    return rc == 0 ? 0 : failed(worker, "join", rc);
}

static int push(struct worker *worker, const struct ampclient_step *step, uint32_t index)
{
    struct ampclient_tensor tensor;
    int rc = ampclient_parameter(worker->model, index, &tensor);
    if (rc != 0)
        return failed(worker, "parameter", rc);
    amp_cast(worker->kernels, worker->values, AMP_F32, tensor.data, tensor.dtype, tensor.elements);
    uint32_t random = (uint32_t)(step->step * 2654435761u) ^ (worker->rank << 20) ^ (index << 8);
    for (uint64_t e = 0; e < tensor.elements; e++) {
        random = random * 1664525u + 1013904223u;
        float noise = (float)(random >> 16) / 65536.0f - 0.5f;
        worker->values[e] = (noise + 0.25f * worker->values[e]) * step->scale;
    }
    amp_cast(worker->kernels, worker->gradients[index], AMP_F16, worker->values, AMP_F32, tensor.elements);
    rc = ampclient_push(worker->model, index, worker->gradients[index], AMP_F16);
    return rc == 0 ? 0 : failed(worker, "push", rc);
}

static bool is_last(struct worker *worker, const struct ampclient_result *result)
{
    FILE *file = worker->last == 0 && worker->last_path != NULL ? fopen(worker->last_path, "r") : NULL;
    if (file != NULL && fscanf(file, "%" SCNu64, &worker->last) != 1)
        worker->last = 0;
    if (file != NULL)
        (void)fclose(file);
    return worker->last > 0 && result->step >= worker->last && result->verdict != AMPCLIENT_ROLLED_BACK;
}

/* 0: go on, 1: it is the end, -1: an error. */
static int one_step(struct worker *worker)
{
    struct ampclient_step step = AMPCLIENT_STEP_INIT;
    struct ampclient_result result = AMPCLIENT_RESULT_INIT;
    int rc = ampclient_step_begin(worker->model, &step);
    if (rc != 0)
        return rc > 0 ? 1 : failed(worker, "step_begin", rc);
    if (step.rolled_back && worker->restored_at != step.step) {
        (void)fprintf(stderr, "rank %u: no user state came back with step %" PRIu64 "\n", worker->rank, step.step);
        return -1;
    }
    if (!worker->state_ok)
        return -1;
    char state[STATE_MAX];
    bool shared = ampclient_shares_memory(worker->model);
    state_of(worker, step.step, state);
    rc = ampclient_set_user_state(worker->model, state, strlen(state));
    (void)usleep(worker->pause_us);
    for (uint32_t i = 0; rc == 0 && i < worker->job->count; i++)
        if (push(worker, &step, i) != 0)
            return -1;
    if (rc == 0)
        rc = ampclient_step_end(worker->model, &result);
    if (rc != 0)
        return failed(worker, "step_end", rc);
    (void)printf("%" PRIu64 " %" PRIu64 " %d %" PRIu64 " %d\n", result.epoch, result.step, (int)result.verdict,
                 result.durable_step, shared);
    return is_last(worker, &result) ? 1 : 0;
}

static const struct job *job_of(const char *word)
{
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        if (strcmp(jobs[i].word, word) == 0)
            return &jobs[i];
    return NULL;
}

int main(int argc, char **argv)
{
    struct worker worker = {0};
    struct amp_error error = {0};
    worker.job = job_of(argc > 8 ? argv[8] : "small");
    if (argc < 8 || argc > 11 || worker.job == NULL || amp_cpu_select(NULL, &worker.kernels, &error) != 0) {
        (void)fprintf(stderr, "usage: crash_worker ADDRESS MODEL RANK WORLD STEPS CHECKPOINT_EVERY checkpoint|step "
                              "[small|large [LAST [PAUSE_MS]]]\n");
        return 2;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing outlives a test that is ended */
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* a line that was written survives the kill of this process */
    worker.state_ok = true;
    worker.model_name = argv[2];
    worker.rank = (uint32_t)strtoul(argv[3], NULL, 10);
    if (argc > 9 && argv[9][0] == '@')
        worker.last_path = argv[9] + 1;
    else if (argc > 9)
        worker.last = strtoull(argv[9], NULL, 10);
    worker.pause_us = argc > 10 ? (useconds_t)strtoul(argv[10], NULL, 10) * 1000 : 0;
    worker.values = calloc(elements_max(worker.job), sizeof(float));
    for (uint32_t i = 0; i < worker.job->count; i++)
        worker.gradients[i] = calloc(elements(&worker.job->parameters[i]), sizeof(uint16_t));
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    options.connect_timeout_ms = RECONNECT_TIMEOUT_MS;
    options.reconnect_timeout_ms = RECONNECT_TIMEOUT_MS;
    int rc = ampclient_connect(argv[1], &options, &worker.client, &error);
    if (rc != 0)
        (void)fprintf(stderr, "rank %u: connect: %s\n", worker.rank, error.text);
    if (rc == 0)
        rc = create(&worker, argv);
    if (rc == 0)
        rc = load_and_join(&worker);
    while (rc == 0)
        rc = one_step(&worker);
    ampclient_close(worker.client);
    for (uint32_t i = 0; i < worker.job->count; i++)
        free(worker.gradients[i]);
    free(worker.values);
    return rc == 1 ? 0 : 1;
}
