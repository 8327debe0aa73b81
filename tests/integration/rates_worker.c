/*
 * A worker with a learning-rate schedule of its own: each line that it reads is the rate of its next step, or "none".
 *
 *     rates_worker ADDRESS MODEL NAME
 *
 * A line for each: "step 3 verdict 1", or the sentence with which a step was refused; then the next line is for the
 * same step. Exit code 1: another call failed, and a sentence says so.
 */
#include "client/ampclient.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define WORLD    2
#define ELEMENTS 70001 /* two blocks */

struct worker {
    struct ampclient *client;
    struct ampclient_model *model;
    float gradient[ELEMENTS];
};

static int failed(const struct worker *worker, const char *what, int rc)
{
    (void)fprintf(stderr, "%s: %s: %s\n", what, amp_strerror(rc), ampclient_error_text(worker->client));
    return -1;
}

static int begin(struct worker *worker, char **argv)
{
    const struct ampclient_parameter_spec parameter = {.name = "w", .dimensions = 1, .shape = {ELEMENTS}};
    const float *values = worker->gradient; /* zeros yet */
    struct ampclient_spec spec = AMPCLIENT_SPEC_INIT;
    spec.name = argv[2];
    spec.parameters = &parameter;
    spec.parameters_count = 1;
    spec.world_size = WORLD;
    spec.optimizer = AMPCLIENT_SGD;
    spec.schedule = AMPCLIENT_WORKER;
    spec.cast = AMP_F32;
    spec.init_scale = 1024;
    int rc = ampclient_connect(argv[1], NULL, &worker->client, NULL);
    if (rc == 0)
        rc = ampclient_create(worker->client, &spec, NULL);
    if (rc == 0)
        rc = ampclient_load(worker->client, argv[2], &values, 1, NULL);
    struct ampclient_join_options options = AMPCLIENT_JOIN_OPTIONS_INIT;
    options.worker_name = argv[3];
    if (rc == 0)
        rc = ampclient_join(worker->client, argv[2], &options, &worker->model);
    return rc == 0 ? 0 : failed(worker, "join", rc);
}

/* A gradient of ones. */
static int one_step(struct worker *worker, const char *rate)
{
    struct ampclient_step step = AMPCLIENT_STEP_INIT;
    struct ampclient_result result = AMPCLIENT_RESULT_INIT;
    int rc = ampclient_step_begin(worker->model, &step);
    if (rc != 0)
        return failed(worker, "step_begin", rc);
    if (strcmp(rate, "none") != 0)
        rc = ampclient_set_learning_rate(worker->model, strtod(rate, NULL));
    for (uint32_t i = 0; i < ELEMENTS; i++)
        worker->gradient[i] = step.scale;
    if (rc == 0)
        rc = ampclient_push(worker->model, 0, worker->gradient, AMP_F32);
    if (rc != 0)
        return failed(worker, "push", rc);
    rc = ampclient_step_end(worker->model, &result);
    if (rc == 0)
        (void)printf("step %" PRIu64 " verdict %d\n", result.step, (int)result.verdict);
    else if (rc == AMP_EINVAL)
        (void)printf("%s\n", ampclient_error_text(worker->client));
    else
        return failed(worker, "step_end", rc);
    return 0;
}

int main(int argc, char **argv)
{
    static struct worker worker;
    char rate[64];
    if (argc != 4) {
        (void)fprintf(stderr, "usage: rates_worker ADDRESS MODEL NAME\n");
        return 2;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing outlives a test that is ended */
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    int rc = begin(&worker, argv);
    while (rc == 0 && fgets(rate, sizeof rate, stdin) != NULL) {
        rate[strcspn(rate, "\n")] = 0;
        rc = one_step(&worker, rate);
    }
    ampclient_close(worker.client);
    return rc == 0 ? 0 : 1;
}
