/*
 * Our side of the rows of push and pull: a worker of a model with one fp16 parameter of BYTES bytes, on a real ampd,
 * through libampclient. For each line on stdin it does what MODE says and prints the seconds that this took.
 *
 *     bench_pushpull MODE HOST:PORT BYTES
 *
 *   push    from ampclient_push to the verdict. That is more than the peer does: the block checksums, the test for Inf
 *           and NaN, the vote and the storing of the verdict are included. The apply is not: the next step_begin waits
 *           for it, outside the time
 *   pull    the pull of a version that is complete on the server and new to this client, until the whole tensor is in
 *           this process and its block checksums are verified
 *   apply   AdamW; from the verdict until the version is complete on all shards, by the server's status, which is
 *           queried every millisecond
 *   step    AdamW; a whole step as users write it: the wait for the apply before, pull, push, verdict
 *   run     the mean of RUN_STEPS such steps, after one that does not count
 *   begin   step_begin of a version that is complete
 *   move    begin and the push up to the verdict
 *   place   as move, but the gradient is written where ampclient_gradient says, as backward does, between the two and
 *           outside the time
 *   steps   the mean of STEPS whole steps, of a model with ten parameters that have BYTES together
 */
#include "amp/dtype.h"
#include "base/large.h"
#include "bench/measure.h"
#include "client/ampclient.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MODEL_NAME "bench"

/* The apply of one step of the sizes measured here takes well below a second; this long means that it is lost. */
#define APPLY_TIMEOUT_S 30.0
#define APPLY_POLL_NS   1000000

/* For the mode steps, in which a step takes a fraction of a millisecond. python_steps.py has the same numbers. */
#define STEPS            200
#define RUN_STEPS        5
#define STEPS_PARAMETERS 10

/* Never while a measurement runs: writing a checkpoint would share the server's core. */
#define CHECKPOINT_NEVER 1000000000

struct bench {
    struct ampclient *client;
    struct ampclient_model *model;
    uint16_t *gradient;  /* fp16 */
    uint64_t elements;   /* of each parameter */
    uint32_t parameters; /* they have the same gradient */
    enum ampclient_optimizer optimizer;
};

/* A mode's function: does it once and returns the seconds. */
typedef double bench_round(const struct bench *bench);

static void check(const struct bench *bench, int rc, const char *what)
{
    if (rc == 0)
        return;
    const char *text = ampclient_error_text(bench->client);
    (void)fprintf(stderr, "bench_pushpull: %s: %s (%d)\n", what, text != NULL && *text != 0 ? text : "failed", rc);
    exit(1);
}

static void create(const struct bench *bench)
{
    static const char *const names[STEPS_PARAMETERS] = {"w", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9"};
    struct ampclient_parameter_spec parameters[STEPS_PARAMETERS];
    for (uint32_t p = 0; p < bench->parameters; p++)
        parameters[p] =
            (struct ampclient_parameter_spec){.name = names[p], .dimensions = 1, .shape = {bench->elements}};
    struct ampclient_spec spec = AMPCLIENT_SPEC_INIT;
    spec.name = MODEL_NAME;
    spec.parameters = parameters;
    spec.parameters_count = bench->parameters;
    spec.world_size = 1;
    spec.optimizer = bench->optimizer;
    spec.scaler = AMPCLIENT_SCALER_NONE;
    spec.cast = AMP_F16;
    spec.checkpoint_every = CHECKPOINT_NEVER;
    check(bench, ampclient_create(bench->client, &spec, NULL), "create");

    float *values = calloc(bench->elements, sizeof *values);
    if (values == NULL)
        check(bench, AMP_ENOMEM, "first values");
    const float *first[STEPS_PARAMETERS];
    for (uint32_t p = 0; p < bench->parameters; p++)
        first[p] = values;
    check(bench, ampclient_load(bench->client, MODEL_NAME, first, bench->parameters, NULL), "load");
    free(values);
}

/* Small numbers of both signs and all mantissas: bits 0x1000 to 0x1fff are 2^-11 to 2^-7. */
static void fill_gradient(struct bench *bench)
{
    /* In huge pages, as large tensors are: with small pages a virtual machine's page walks would be in the figure. */
    bench->gradient = amp_large_new(bench->elements * sizeof *bench->gradient);
    if (bench->gradient == NULL)
        check(bench, AMP_ENOMEM, "gradient");
    for (uint64_t i = 0; i < bench->elements; i++)
        bench->gradient[i] = (uint16_t)(0x1000 | (i * 2654435761u >> 7 & 0x8fff));
}

static void open_bench(struct bench *bench, const char *endpoint, uint64_t bytes)
{
    struct amp_error error = {0};
    bench->elements = bytes / sizeof *bench->gradient / bench->parameters;
    if (ampclient_connect(endpoint, NULL, &bench->client, &error) != 0) {
        (void)fprintf(stderr, "bench_pushpull: connect to %s: %s\n", endpoint, error.text);
        exit(1);
    }
    create(bench);
    fill_gradient(bench);
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    join.worker_name = "bench";
    join.rank = 0;
    join.world_size = 1;
    check(bench, ampclient_join(bench->client, MODEL_NAME, &join, &bench->model), "join");
}

static void close_bench(struct bench *bench)
{
    (void)ampclient_leave(bench->model);
    ampclient_close(bench->client);
    amp_large_free(bench->gradient, bench->elements * sizeof *bench->gradient);
}

/* One step; returns the seconds from the gradient to the verdict. */
static double push_once(const struct bench *bench, uint64_t *version)
{
    struct ampclient_step step = AMPCLIENT_STEP_INIT;
    struct ampclient_result result = AMPCLIENT_RESULT_INIT;
    check(bench, ampclient_step_begin(bench->model, &step), "step_begin");
    double begin = bench_now_s();
    for (uint32_t p = 0; p < bench->parameters; p++)
        check(bench, ampclient_push(bench->model, p, bench->gradient, AMP_F16), "push");
    check(bench, ampclient_step_end(bench->model, &result), "step_end");
    double seconds = bench_now_s() - begin;
    if (result.verdict != AMPCLIENT_APPLIED) {
        (void)fprintf(stderr, "bench_pushpull: step %" PRIu64 " was not applied\n", result.step);
        exit(1);
    }
    *version = result.version;
    return seconds;
}

static void await_version(const struct bench *bench, uint64_t version)
{
    struct ampclient_status status = AMPCLIENT_STATUS_INIT;
    double deadline = bench_now_s() + APPLY_TIMEOUT_S;
    for (;;) {
        check(bench, ampclient_status(bench->client, MODEL_NAME, &status), "status");
        if (status.version >= version)
            return;
        if (bench_now_s() > deadline) {
            (void)fprintf(stderr, "bench_pushpull: version %" PRIu64 " does not come\n", version);
            exit(1);
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = APPLY_POLL_NS}, NULL);
    }
}

/* Makes a new version, waits for it, and pulls it; returns the seconds of the pull. */
static double pull_once(const struct bench *bench)
{
    uint64_t wanted, pulled;
    (void)push_once(bench, &wanted);
    await_version(bench, wanted);
    double begin = bench_now_s();
    check(bench, ampclient_pull(bench->model, &pulled), "pull");
    double seconds = bench_now_s() - begin;
    if (pulled != wanted) {
        (void)fprintf(stderr, "bench_pushpull: pulled version %" PRIu64 " instead of %" PRIu64 "\n", pulled, wanted);
        exit(1);
    }
    return seconds;
}

static double push_round(const struct bench *bench)
{
    uint64_t version;
    return push_once(bench, &version);
}

static double apply_once(const struct bench *bench)
{
    uint64_t version;
    (void)push_once(bench, &version);
    double begin = bench_now_s();
    await_version(bench, version);
    return bench_now_s() - begin;
}

static double step_once(const struct bench *bench)
{
    uint64_t version;
    double begin = bench_now_s();
    (void)push_once(bench, &version);
    return bench_now_s() - begin;
}

/* Mode begin: step_begin of a version that is complete, so that nothing waits for the server's apply. */
static double begin_once(const struct bench *bench)
{
    struct ampclient_step step = AMPCLIENT_STEP_INIT;
    uint64_t version;
    (void)push_once(bench, &version);
    await_version(bench, version);
    double begin = bench_now_s();
    check(bench, ampclient_step_begin(bench->model, &step), "step_begin");
    return bench_now_s() - begin; /* the step is begun again by the next round */
}

/*
 * Mode move: the transfers of a step in both directions. The version is complete before, and the apply is waited for.
 */
static double move_once(const struct bench *bench)
{
    uint64_t version;
    double begin = bench_now_s();
    (void)push_once(bench, &version);
    double seconds = bench_now_s() - begin;
    await_version(bench, version);
    return seconds;
}

/* Mode place: as move_once, with a gradient that is already in its place; writing it is not in the time. */
static double place_once(const struct bench *bench)
{
    struct ampclient_step step = AMPCLIENT_STEP_INIT;
    struct ampclient_result result = AMPCLIENT_RESULT_INIT;
    void *place;
    double begin = bench_now_s();
    check(bench, ampclient_step_begin(bench->model, &step), "step_begin");
    double seconds = bench_now_s() - begin;
    check(bench, ampclient_gradient(bench->model, 0, AMP_F16, &place), "gradient");
    memcpy(place, bench->gradient, bench->elements * sizeof *bench->gradient);
    begin = bench_now_s();
    check(bench, ampclient_push(bench->model, 0, place, AMP_F16), "push");
    check(bench, ampclient_step_end(bench->model, &result), "step_end");
    seconds += bench_now_s() - begin;
    check(bench, result.verdict == AMPCLIENT_APPLIED ? 0 : AMP_ESTATE, "a step was not applied");
    await_version(bench, result.version);
    return seconds;
}

/* A loop of whole steps as a worker makes them: each waits for the apply of the one before, also the first. */
static double run_once(const struct bench *bench)
{
    (void)step_once(bench);
    double begin = bench_now_s();
    for (unsigned i = 0; i < RUN_STEPS; i++)
        (void)step_once(bench);
    return (bench_now_s() - begin) / RUN_STEPS;
}

static double step_many(const struct bench *bench)
{
    double begin = bench_now_s();
    for (unsigned i = 0; i < STEPS; i++)
        (void)step_once(bench);
    return (bench_now_s() - begin) / STEPS;
}

static const struct {
    const char *name;
    bench_round *round;
    enum ampclient_optimizer optimizer;
    uint32_t parameters;
} modes[] = {
    {"push", push_round, AMPCLIENT_SGD, 1},    {"pull", pull_once, AMPCLIENT_SGD, 1},
    {"apply", apply_once, AMPCLIENT_ADAMW, 1}, {"step", step_once, AMPCLIENT_ADAMW, 1},
    {"run", run_once, AMPCLIENT_ADAMW, 1},     {"begin", begin_once, AMPCLIENT_SGD, 1},
    {"move", move_once, AMPCLIENT_SGD, 1},     {"place", place_once, AMPCLIENT_SGD, 1},
    {"steps", step_many, AMPCLIENT_ADAMW, STEPS_PARAMETERS},
};

int main(int argc, char **argv)
{
    size_t count = sizeof modes / sizeof *modes, mode = argc == 4 ? 0 : count;
    while (mode < count && strcmp(argv[1], modes[mode].name) != 0)
        mode++;
    uint64_t bytes = mode < count ? strtoull(argv[3], NULL, 10) : 0;
    if (bytes == 0 || bytes % (sizeof(uint16_t) * modes[mode].parameters) != 0) {
        (void)fprintf(stderr,
                      "usage: bench_pushpull push|pull|apply|step|run|begin|move|place|steps HOST:PORT BYTES\n");
        return 2;
    }
    struct bench bench = {.optimizer = modes[mode].optimizer, .parameters = modes[mode].parameters};
    open_bench(&bench, argv[2], bytes);
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL) {
        (void)printf("%.9f\n", modes[mode].round(&bench));
        (void)fflush(stdout);
    }
    close_bench(&bench);
    return 0;
}
