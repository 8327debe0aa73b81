/*
 * A worker that comes and goes: its gradients are a function of its rank and the step alone, and exact, so that from who
 * contributed to each step the parameters can be computed again. On SIGTERM it leaves after the step in hand.
 *
 *     elastic_worker ADDRESS MODEL NAME WORLD wait|shrink MIN_WORKERS new|replace
 *
 * With `replace` it takes the rank of a worker whose lease has ended. A line for each step; exit code 1: a call failed, and a
 * sentence says so.
 */
#define _DEFAULT_SOURCE /* usleep */
#include "client/ampclient.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Two blocks. */
#define ELEMENTS 70001

/* Gradients repeat after so many elements. */
#define PERIOD 5

#define SCALE 1024.0f

/* So many steps a second that a test sees each way of being, and not thousands of each. */
#define STEP_US 20000

static volatile sig_atomic_t is_wanted_to_leave;

static void on_terminate(int number)
{
    is_wanted_to_leave = number;
}

struct worker {
    const char *name, *model_name;
    struct ampclient *client;
    struct ampclient_model *model;
    float gradient[ELEMENTS];
};

static int failed(const struct worker *worker, const char *what, int rc)
{
    (void)fprintf(stderr, "%s: %s: %s: %s\n", worker->name, what, amp_strerror(rc),
                  ampclient_error_text(worker->client));
    return -1;
}

static int create(struct worker *worker, char **argv)
{
    const struct ampclient_parameter_spec parameter = {.name = "w", .dimensions = 1, .shape = {ELEMENTS}};
    struct ampclient_spec spec = AMPCLIENT_SPEC_INIT;
    spec.name = worker->model_name;
    spec.parameters = &parameter;
    spec.parameters_count = 1;
    spec.world_size = (uint32_t)strtoul(argv[4], NULL, 10);
    spec.on_loss = strcmp(argv[5], "shrink") == 0 ? AMPCLIENT_SHRINK : AMPCLIENT_WAIT;
    spec.min_workers = spec.on_loss == AMPCLIENT_SHRINK ? (uint32_t)strtoul(argv[6], NULL, 10) : 0;
    spec.optimizer = AMPCLIENT_SGD;
    spec.lr = 0.5;
    spec.cast = AMP_F32;
    spec.init_scale = SCALE;
    spec.growth_interval = 1000000; /* it stays */
    int rc = ampclient_create(worker->client, &spec, NULL);
    return rc == 0 ? 0 : failed(worker, "create", rc);
}

static int load_and_join(struct worker *worker, bool replaces)
{
    const float *values = worker->gradient; /* zeros yet */
    int rc = ampclient_load(worker->client, worker->model_name, &values, 1, NULL);
    if (rc != 0)
        return failed(worker, "load", rc);
    struct ampclient_join_options options = AMPCLIENT_JOIN_OPTIONS_INIT;
    options.worker_name = worker->name;
    options.replace = replaces;
    rc = ampclient_join(worker->client, worker->model_name, &options, &worker->model);
    return rc == 0 ? 0 : failed(worker, "join", rc);
}

static int one_step(struct worker *worker)
{
    struct ampclient_step step = AMPCLIENT_STEP_INIT;
    struct ampclient_result result = AMPCLIENT_RESULT_INIT;
    int rc = ampclient_step_begin(worker->model, &step);
    if (rc != 0)
        return failed(worker, "step_begin", rc);
    uint32_t rank = ampclient_rank(worker->model);
    for (uint64_t e = 0; e < ELEMENTS; e++)
        worker->gradient[e] = (float)((rank + 1) * (1 + (step.step + e) % PERIOD)) / 8.0f * step.scale;
    (void)usleep(STEP_US);
    rc = ampclient_push(worker->model, 0, worker->gradient, AMP_F32);
    if (rc == 0)
        rc = ampclient_step_end(worker->model, &result);
    if (rc != 0)
        return failed(worker, "step_end", rc);
    (void)printf("rank %u step %" PRIu64 " verdict %d\n", rank, result.step, (int)result.verdict);
    return 0;
}

static int train(struct worker *worker, char **argv)
{
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    struct amp_error error = {0};
    int rc = ampclient_connect(argv[1], &options, &worker->client, &error);
    if (rc != 0) {
        (void)fprintf(stderr, "%s: connect: %s\n", worker->name, error.text);
        return -1;
    }
    rc = create(worker, argv);
    if (rc == 0)
        rc = load_and_join(worker, strcmp(argv[7], "replace") == 0);
    while (rc == 0 && is_wanted_to_leave == 0)
        rc = one_step(worker);
    if (rc == 0) {
        rc = ampclient_leave(worker->model);
        rc = rc == 0 ? 0 : failed(worker, "leave", rc);
    }
    return rc;
}

int main(int argc, char **argv)
{
    static struct worker worker;
    const struct sigaction action = {.sa_handler = on_terminate};
    if (argc != 8) {
        (void)fprintf(stderr, "usage: elastic_worker ADDRESS MODEL NAME WORLD wait|shrink MIN_WORKERS new|replace\n");
        return 2;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing outlives a test that is ended */
    (void)sigaction(SIGTERM, &action, NULL);
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* a line that was written survives the kill of this process */
    worker.model_name = argv[2];
    worker.name = argv[3];
    int rc = train(&worker, argv);
    ampclient_close(worker.client);
    return rc == 0 ? 0 : 1;
}
