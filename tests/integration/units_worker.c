/*
 * A worker whose memory is limited and whose model may be larger: it trains by units, or holds all at once. Gradients
 * follow from the parameters, the step and the place alone, so both ways end in the same bytes.
 *
 *     units_worker ADDRESS MODEL units|whole|hooks PARAMETERS ELEMENTS UNIT STEPS LIMIT_MIB PAUSE
 *
 * With `hooks` those of amp/fsdp.h gather and scatter the units. UNIT parameters make a unit; with "apart" before it
 * (apart4) they do not lie beside each other. LIMIT_MIB 0: no limit; else of RLIMIT_DATA: private memory that can be
 * written, heap and stacks; RLIMIT_AS would count libraries and what malloc reserves for each thread and never uses,
 * too. PAUSE n: in step n, with half of the units scattered, it says "paused" and waits for a line. A line for each
 * step, and one at the end; exit code 1: a call failed, and a sentence says so. RANK and WORLD_SIZE of the environment:
 * 0 of 1.
 */
#include "amp/cpu.h"
#include "amp/fsdp.h"
#include "client/ampclient.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

struct worker {
    const char *model_name;
    bool whole, apart, hooked;
    uint32_t parameters, per_unit, units, rank, world;
    uint64_t elements, steps, pause;
    struct ampclient *client;
    struct ampclient_model *model;
    uint16_t *gradients[2]; /* of a unit each, used in turn; of the whole model the first alone */
    uint64_t peak, voids;
};

static int failed(const struct worker *worker, const char *what, int rc)
{
    (void)fprintf(stderr, "%s: %s: %s\n", what, amp_strerror(rc), ampclient_error_text(worker->client));
    return -1;
}

#define UNIT_MAX 64 /* parameters */

/* The index of parameter i of a unit. */
static uint32_t parameter_of(const struct worker *worker, uint32_t unit, uint32_t i)
{
    return worker->apart ? unit + i * worker->units : unit * worker->per_unit + i;
}

/* One buffer serves all parameters: they begin alike. */
static int make_model(struct worker *worker)
{
    struct ampclient_spec spec = AMPCLIENT_SPEC_INIT;
    struct ampclient_parameter_spec *parameters = calloc(worker->parameters, sizeof *parameters);
    char(*names)[16] = calloc(worker->parameters, sizeof *names);
    const float **values = calloc(worker->parameters, sizeof *values);
    float *first = calloc(worker->elements, sizeof *first);
    int rc = parameters != NULL && names != NULL && values != NULL && first != NULL ? 0 : AMP_ENOMEM;
    for (uint64_t i = 0; rc == 0 && i < worker->elements; i++)
        first[i] = (float)(i % 1009) / 512 - 1;
    for (uint32_t p = 0; rc == 0 && p < worker->parameters; p++) {
        (void)snprintf(names[p], sizeof names[p], "w%" PRIu32, p);
        parameters[p] =
            (struct ampclient_parameter_spec){.name = names[p], .dimensions = 1, .shape = {worker->elements}};
        values[p] = first;
    }
    spec.name = worker->model_name;
    spec.parameters = parameters;
    spec.parameters_count = worker->parameters;
    spec.world_size = worker->world;
    spec.optimizer = AMPCLIENT_SGD;
    spec.lr = 64;
    spec.max_steps = worker->steps;
    spec.checkpoint_every = 2;
    spec.durability = getenv("UNITS_JOURNAL") != NULL ? AMPCLIENT_DURABILITY_STEP : AMPCLIENT_DURABILITY_CHECKPOINT;
    if (rc == 0)
        rc = ampclient_create(worker->client, &spec, NULL);
    if (rc == 0)
        rc = ampclient_load(worker->client, worker->model_name, values, worker->parameters, NULL);
    free(parameters);
    free(names);
    free(values);
    free(first);
    return rc;
}

static int join(struct worker *worker)
{
    struct ampclient_join_options options = AMPCLIENT_JOIN_OPTIONS_INIT;
    options.rank = (int32_t)worker->rank; /* and its name */
    options.units = !worker->whole;
    int rc = ampclient_join(worker->client, worker->model_name, &options, &worker->model);
    uint32_t indices[UNIT_MAX];
    for (uint32_t u = 0; rc == 0 && !worker->whole && u < worker->units; u++) {
        uint32_t unit = 0;
        for (uint32_t i = 0; i < worker->per_unit; i++)
            indices[i] = parameter_of(worker, u, i);
        rc = ampclient_unit_add(worker->model, indices, worker->per_unit, &unit);
    }
    return rc;
}

/* fp16 bits of a finite gradient that differs by place, step and parameter. */
static void compute(const struct worker *worker, uint64_t step, uint32_t index, const uint16_t *value, uint16_t *to)
{
    for (uint64_t i = 0; i < worker->elements; i++)
        to[i] = (uint16_t)((value[i] & 0x8000) | 0x3000 |
                           ((value[i] + i * 7 + step * 31 + index + worker->rank * 57) & 0x3ff));
}

static uint64_t mix(uint64_t sum, const void *data, size_t size)
{
    const uint8_t *bytes = data;
    uint64_t word;
    for (size_t at = 0; at + sizeof word <= size; at += sizeof word) {
        memcpy(&word, bytes + at, sizeof word);
        sum = (sum ^ word) * UINT64_C(0x100000001b3);
        sum ^= sum >> 29;
    }
    for (size_t at = size - size % sizeof word; at < size; at++)
        sum = (sum ^ bytes[at]) * UINT64_C(0x100000001b3);
    return sum;
}

/* Of the parameters of a unit: the same in whatever order they come. */
static int add_up(const struct worker *worker, uint32_t unit, uint64_t *sum)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < worker->per_unit; i++) {
        struct ampclient_tensor tensor;
        uint32_t index = parameter_of(worker, unit, i);
        rc = ampclient_parameter(worker->model, index, &tensor);
        if (rc == 0)
            *sum += mix(index + 1, tensor.data, (size_t)worker->elements * sizeof(uint16_t));
    }
    return rc;
}

static void note_peak(struct worker *worker)
{
    uint64_t held = ampclient_units_bytes(worker->model);
    worker->peak = held > worker->peak ? held : worker->peak;
}

/* Gathers unit `turn` of the pass, and begins the one behind it. */
static int gather(struct worker *worker, bool backward, uint32_t turn, uint32_t *unit)
{
    *unit = backward ? worker->units - 1 - turn : turn;
    int rc = worker->whole ? 0 : ampclient_gather(worker->model, *unit);
    if (rc == 0 && !worker->whole && turn + 1 < worker->units)
        rc = ampclient_prefetch(worker->model, backward ? *unit - 1 : *unit + 1);
    note_peak(worker);
    return rc;
}

static int release(const struct worker *worker, uint32_t unit)
{
    return worker->whole ? 0 : ampclient_release(worker->model, unit);
}

static int forward(struct worker *worker, uint64_t *sum)
{
    int rc = 0;
    for (uint32_t turn = 0; rc == 0 && turn < worker->units; turn++) {
        uint32_t unit;
        rc = gather(worker, false, turn, &unit);
        if (rc == 0)
            rc = add_up(worker, unit, sum);
        if (rc == 0)
            rc = release(worker, unit);
    }
    return rc;
}

static void pause_here(struct worker *worker)
{
    char line[8];
    (void)printf("paused\n");
    (void)fflush(stdout);
    (void)fgets(line, sizeof line, stdin);
    worker->pause = 0;
}

static int backward(struct worker *worker, uint64_t step)
{
    int rc = 0;
    for (uint32_t turn = 0; rc == 0 && turn < worker->units; turn++) {
        uint32_t unit;
        const void *gradients[UNIT_MAX];
        if (step == worker->pause && turn == worker->units / 2)
            pause_here(worker);
        rc = gather(worker, true, turn, &unit);
        for (uint32_t i = 0; rc == 0 && i < worker->per_unit; i++) {
            struct ampclient_tensor tensor;
            uint32_t index = parameter_of(worker, unit, i);
            uint64_t at = (worker->whole ? (uint64_t)turn * worker->per_unit + i : i) * worker->elements;
            uint16_t *to = worker->gradients[worker->whole ? 0 : turn % 2] + at;
            rc = ampclient_parameter(worker->model, index, &tensor);
            if (rc == 0)
                compute(worker, step, index, tensor.data, to);
            gradients[i] = to;
            if (rc == 0 && worker->whole)
                rc = ampclient_push(worker->model, index, to, AMP_F16);
        }
        if (rc == 0)
            rc = release(worker, unit);
        if (rc == 0 && !worker->whole)
            rc = ampclient_scatter(worker->model, unit, gradients, AMP_F16);
        note_peak(worker);
    }
    return rc;
}

/* ---- the same by the hooks of amp/fsdp.h ---- */

struct hooked {
    struct worker *worker;
    uint32_t unit; /* in use */
};

static int gather_unit(void *arg, struct amp_fsdp_unit *units, size_t n, struct amp_error *error)
{
    const struct hooked *hooked = arg;
    const struct worker *worker = hooked->worker;
    int rc = ampclient_gather(worker->model, hooked->unit);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        struct ampclient_tensor tensor;
        rc = ampclient_parameter(worker->model, parameter_of(worker, hooked->unit, i), &tensor);
        const struct amp_tensor from = {tensor.name, (void *)(uintptr_t)tensor.data, tensor.elements, tensor.dtype};
        if (rc == 0)
            rc = amp_fsdp_unit_set_parameter(&units[i], &from, error);
    }
    return rc == 0 ? ampclient_release(worker->model, hooked->unit) : rc;
}

static int scatter_unit(void *arg, const struct amp_fsdp_unit *units, size_t n, struct amp_error *error)
{
    const struct hooked *hooked = arg;
    const void *gradients[UNIT_MAX];
    for (uint32_t i = 0; i < n; i++)
        gradients[i] = units[i].local_gradient.data;
    int rc = ampclient_scatter(hooked->worker->model, hooked->unit, gradients, units[0].local_gradient.dtype);
    return rc == 0 ? ampclient_drain(hooked->worker->model) : rc; /* the hook frees them */
}

/* What forward saw, and the gradients of backward, in memory of the units. */
static int compute_unit(const struct hooked *hooked, struct amp_fsdp_unit *units, uint64_t step, uint64_t *sum,
                        struct amp_error *error)
{
    const struct worker *worker = hooked->worker;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < worker->per_unit; i++) {
        uint32_t index = parameter_of(worker, hooked->unit, i);
        const struct amp_tensor *parameter = &units[i].gathered_parameter;
        const struct amp_tensor gradient = {NULL, worker->gradients[0], worker->elements, AMP_F16};
        if (sum != NULL) {
            *sum += mix(index + 1, parameter->data, (size_t)worker->elements * sizeof(uint16_t));
            continue;
        }
        compute(worker, step, index, parameter->data, worker->gradients[0]);
        rc = amp_fsdp_unit_set_gradient(&units[i], &gradient, error);
    }
    return rc;
}

static int step_of_hooks(struct worker *worker, uint64_t step, uint64_t *sum)
{
    const struct amp_kernels *kernels;
    struct amp_error error = {0};
    int rc = amp_cpu_select(NULL, &kernels, &error);
    const struct amp_fsdp group = {.kernels = kernels, .rank = 0, .world_size = 1};
    struct amp_fsdp_integration integration;
    struct amp_fsdp_config config;
    struct hooked hooked = {.worker = worker};
    struct amp_fsdp_unit units[UNIT_MAX] = {0};
    if (rc == 0)
        rc = amp_fsdp_config_preset(AMP_FSDP_FP16_PURE, &config, &error);
    if (rc == 0)
        rc = amp_fsdp_integration_init(&integration, &group, &config, &error);
    const struct amp_fsdp_hooks hooks = {
        .integration = &integration, .arg = &hooked, .gather_cb = gather_unit, .scatter_cb = scatter_unit};
    for (uint32_t turn = 0; rc == 0 && turn < worker->units; turn++) {
        hooked.unit = turn;
        rc = amp_fsdp_before_forward(&hooks, units, worker->per_unit, &error);
        if (rc == 0)
            rc = compute_unit(&hooked, units, step, sum, &error);
        if (rc == 0)
            rc = amp_fsdp_after_forward(&hooks, units, worker->per_unit, &error);
    }
    for (uint32_t turn = worker->units; rc == 0 && turn > 0; turn--) {
        hooked.unit = turn - 1;
        rc = amp_fsdp_before_backward(&hooks, units, worker->per_unit, &error);
        if (rc == 0)
            rc = compute_unit(&hooked, units, step, NULL, &error);
        if (rc == 0)
            rc = amp_fsdp_after_backward(&hooks, units, worker->per_unit, &error);
    }
    for (uint32_t i = 0; i < worker->per_unit; i++)
        amp_fsdp_unit_clear(&units[i]);
    return rc;
}

static int train(struct worker *worker)
{
    struct ampclient_step step = AMPCLIENT_STEP_INIT;
    int rc;
    while ((rc = ampclient_step_begin(worker->model, &step)) == 0) {
        struct ampclient_result result = AMPCLIENT_RESULT_INIT;
        uint64_t sum = 0;
        rc = worker->hooked ? step_of_hooks(worker, step.step, &sum) : forward(worker, &sum);
        if (rc == 0 && !worker->hooked)
            rc = backward(worker, step.step);
        if (rc == 1)
            worker->voids++;
        if (rc < 0)
            return failed(worker, "step", rc);
        rc = ampclient_step_end(worker->model, &result);
        if (rc != 0)
            return failed(worker, "step_end", rc);
        (void)printf("step %" PRIu64 ": verdict %d, saw %016" PRIx64 "\n", step.step, (int)result.verdict, sum);
        (void)fflush(stdout);
    }
    return rc == 1 ? 0 : failed(worker, "step_begin", rc);
}

/* The parameters after the last step. */
static int show(struct worker *worker)
{
    uint64_t sum = 0;
    int rc = ampclient_pull(worker->model, NULL);
    if (rc != 0)
        return failed(worker, "pull", rc);
    rc = forward(worker, &sum);
    if (rc != 0)
        return failed(worker, "gather of the last version", rc);
    (void)printf("sum %016" PRIx64 " peak %" PRIu64 " voids %" PRIu64 "\n", sum, worker->peak, worker->voids);
    return 0;
}

static int run(struct worker *worker, const char *address)
{
    struct amp_error error = {0};
    size_t buffer =
        (size_t)worker->elements * sizeof(uint16_t) * (worker->whole ? worker->parameters : worker->per_unit);
    if (ampclient_connect(address, NULL, &worker->client, &error) != 0) {
        (void)fprintf(stderr, "connect: %s\n", error.text);
        return -1;
    }
    int rc = make_model(worker);
    if (rc == 0)
        rc = join(worker);
    for (int i = 0; rc == 0 && i < (worker->whole ? 1 : 2); i++) {
        worker->gradients[i] = malloc(buffer);
        if (worker->gradients[i] == NULL)
            rc = AMP_ENOMEM;
    }
    rc = rc != 0 ? failed(worker, "start", rc) : train(worker);
    if (rc == 0)
        rc = show(worker);
    ampclient_close(worker->client);
    free(worker->gradients[0]);
    free(worker->gradients[1]);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc != 10)
        return 2;
    const char *unit = argv[6];
    struct worker worker = {.model_name = argv[2],
                            .whole = strcmp(argv[3], "whole") == 0,
                            .hooked = strcmp(argv[3], "hooks") == 0,
                            .apart = strncmp(unit, "apart", 5) == 0,
                            .parameters = (uint32_t)strtoul(argv[4], NULL, 10),
                            .elements = strtoull(argv[5], NULL, 10),
                            .steps = strtoull(argv[7], NULL, 10),
                            .pause = strtoull(argv[9], NULL, 10)};
    const char *rank = getenv("RANK"), *world = getenv("WORLD_SIZE");
    worker.rank = rank != NULL ? (uint32_t)strtoul(rank, NULL, 10) : 0;
    worker.world = world != NULL ? (uint32_t)strtoul(world, NULL, 10) : 1;
    worker.per_unit = (uint32_t)strtoul(worker.apart ? unit + 5 : unit, NULL, 10);
    if (worker.per_unit == 0 || worker.per_unit > UNIT_MAX || worker.parameters % worker.per_unit != 0)
        return 2;
    worker.units = worker.parameters / worker.per_unit;
    rlim_t limit = (rlim_t)strtoull(argv[8], NULL, 10) << 20;
    const struct rlimit limits = {limit, limit};
    if (limit != 0 && setrlimit(RLIMIT_DATA, &limits) != 0)
        return 2;
    return run(&worker, argv[1]) == 0 ? 0 : 1;
}
