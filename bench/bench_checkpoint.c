/*
 * A worker of two models, for the rows of checkpoint_rows.py: "with" takes checkpoints, "without" does not.
 *
 *     bench_checkpoint ENDPOINT ELEMENTS COMPUTE_MS EVERY [WORKERS RANK]
 *         for each line on stdin, "with" or "without", makes one step of that model and prints the seconds that it
 *         took. With WORKERS and RANK it is one of several workers and has only the model "with", which the worker of
 *         rank 0 creates.
 *
 * The worker sleeps instead of computing, so that the server has the processors as it would beside an accelerator. A
 * step is measured from step_begin, which waits for the parameters and so for the apply before, to the verdict.
 */
#include "amp/dtype.h"
#include "base/large.h"
#include "bench/measure.h"
#include "client/ampclient.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PARAMETERS       64
#define CHECKPOINT_NEVER 1000000000
#define JOIN_S           60.0

/*
 * The distance of the first values from zero, on the side to which each step moves them. AdamW computes masters that
 * are as small as a few updates in double: from zeros, each of the first ten steps took twice as long.
 */
#define FIRST_VALUE 0.125f

struct side {
    const char *name;
    uint64_t every;
    struct ampclient_model *model;
};

struct bench {
    struct ampclient *client;
    uint64_t elements; /* of each parameter */
    uint16_t *gradient;
    uint32_t compute_ms;
    uint32_t workers, rank;
    unsigned sides_count;
    struct side sides[2];
};

static void check(const struct bench *bench, int rc, const char *what)
{
    if (rc == 0)
        return;
    const char *text = ampclient_error_text(bench->client);
    (void)fprintf(stderr, "bench_checkpoint: %s: %s (%d)\n", what, text != NULL && *text != 0 ? text : "failed", rc);
    exit(1);
}

static void join(const struct bench *bench, struct side *side)
{
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    char name[32];
    (void)snprintf(name, sizeof name, "bench-%u", bench->rank);
    join.worker_name = name;
    join.rank = (int32_t)bench->rank;
    join.world_size = bench->workers;
    int rc;
    double until = bench_now_s() + JOIN_S;
    while ((rc = ampclient_join(bench->client, side->name, &join, &side->model)) == AMP_ENOTFOUND &&
           bench_now_s() < until) { /* the worker of rank 0 has not created it yet */
        const struct timespec pause = {.tv_nsec = 50000000};
        (void)nanosleep(&pause, NULL);
    }
    check(bench, rc, "join");
}

static void create(const struct bench *bench, struct side *side)
{
    static char names[PARAMETERS][8];
    struct ampclient_parameter_spec parameters[PARAMETERS] = {{0}};
    struct ampclient_spec spec = AMPCLIENT_SPEC_INIT;
    const float *values[PARAMETERS];
    float *first = malloc(bench->elements * sizeof *first);
    if (first == NULL)
        check(bench, AMP_ENOMEM, "first values");
    for (uint64_t i = 0; i < bench->elements; i++)
        first[i] = (bench->gradient[i] & 0x8000) != 0 ? FIRST_VALUE : -FIRST_VALUE;
    for (unsigned p = 0; p < PARAMETERS; p++) {
        (void)snprintf(names[p], sizeof names[p], "p%02u", p);
        parameters[p].name = names[p];
        parameters[p].dimensions = 1;
        parameters[p].shape[0] = bench->elements;
        values[p] = first;
    }
    spec.name = side->name;
    spec.parameters = parameters;
    spec.parameters_count = PARAMETERS;
    spec.world_size = bench->workers;
    spec.optimizer = AMPCLIENT_ADAMW;
    spec.scaler = AMPCLIENT_SCALER_NONE;
    spec.cast = AMP_F16;
    spec.checkpoint_every = side->every;
    spec.keep_last = 1;
    check(bench, ampclient_create(bench->client, &spec, NULL), "create");
    check(bench, ampclient_load(bench->client, side->name, values, PARAMETERS, NULL), "load");
    free(first);
}

static double step_once(const struct bench *bench, const struct side *side)
{
    struct ampclient_step step = AMPCLIENT_STEP_INIT;
    struct ampclient_result result = AMPCLIENT_RESULT_INIT;
    double begin = bench_now_s();
    check(bench, ampclient_step_begin(side->model, &step), "step_begin");
    const struct timespec compute = {.tv_sec = bench->compute_ms / 1000,
                                     .tv_nsec = bench->compute_ms % 1000 * 1000000L};
    (void)nanosleep(&compute, NULL);
    for (unsigned p = 0; p < PARAMETERS; p++)
        check(bench, ampclient_push(side->model, p, bench->gradient, AMP_F16), "push");
    check(bench, ampclient_step_end(side->model, &result), "step_end");
    if (result.verdict != AMPCLIENT_APPLIED)
        check(bench, AMP_EINTERNAL, "a step was not applied");
    return bench_now_s() - begin;
}

int main(int argc, char **argv)
{
    struct amp_error error = {0};
    struct bench bench = {
        .workers = 1, .sides_count = 2, .sides = {{.name = "with"}, {.name = "without", .every = CHECKPOINT_NEVER}}};
    if (argc != 5 && argc != 7) {
        (void)fprintf(stderr, "usage: bench_checkpoint ENDPOINT ELEMENTS COMPUTE_MS EVERY [WORKERS RANK]\n");
        return 2;
    }
    if (argc == 7) {
        bench.workers = (uint32_t)strtoul(argv[5], NULL, 10);
        bench.rank = (uint32_t)strtoul(argv[6], NULL, 10);
        bench.sides_count = 1;
    }
    bench.elements = strtoull(argv[2], NULL, 10) / PARAMETERS;
    bench.compute_ms = (uint32_t)strtoul(argv[3], NULL, 10);
    bench.sides[0].every = strtoull(argv[4], NULL, 10);
    if (ampclient_connect(argv[1], NULL, &bench.client, &error) != 0) {
        (void)fprintf(stderr, "bench_checkpoint: connect to %s: %s\n", argv[1], error.text);
        return 1;
    }
    bench.gradient = amp_large_new(bench.elements * sizeof *bench.gradient);
    if (bench.gradient == NULL)
        check(&bench, AMP_ENOMEM, "gradient");
    for (uint64_t i = 0; i < bench.elements; i++)
        bench.gradient[i] = (uint16_t)(0x1000 | (i * 2654435761u >> 7 & 0x8fff));
    for (unsigned s = 0; s < bench.sides_count; s++) {
        if (bench.rank == 0)
            create(&bench, &bench.sides[s]);
        join(&bench, &bench.sides[s]);
    }
    char line[32];
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = 0;
        const struct side *side = strcmp(line, bench.sides[0].name) == 0 ? &bench.sides[0] : &bench.sides[1];
        (void)printf("%.6f\n", step_once(&bench, side));
        (void)fflush(stdout);
    }
    for (unsigned s = 0; s < bench.sides_count; s++)
        (void)ampclient_leave(bench.sides[s].model);
    ampclient_close(bench.client);
    amp_large_free(bench.gradient, bench.elements * sizeof *bench.gradient);
    return 0;
}
