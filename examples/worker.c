/*
 * The smallest whole worker in C: two processes fit w to y = 2x, each on a point of its own. At step 3 the second one
 * pushes an Inf, as fp16 does when the loss scale is too high: the step is skipped on both, and the scale halves.
 *
 *     RANK=1 WORLD_SIZE=2 worker 127.0.0.1:7420 & RANK=0 WORLD_SIZE=2 worker 127.0.0.1:7420
 *
 * Outside the tree: cc $(pkg-config --cflags ampclient) worker.c $(pkg-config --libs ampclient) (README.md).
 */
#include "client/ampclient.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define MODEL "line"

/* Makes the model, or finds it, and gives it its first values; whoever comes second changes nothing. */
static int make_model(struct ampclient *client)
{
    const struct ampclient_parameter_spec parameter = {.name = "w", .dimensions = 1, .shape = {1}};
    const float zero = 0, *const values[] = {&zero};
    struct ampclient_spec spec = AMPCLIENT_SPEC_INIT;
    spec.name = MODEL;
    spec.parameters = &parameter;
    spec.parameters_count = 1;
    spec.world_size = 2;
    spec.optimizer = AMPCLIENT_SGD;
    spec.lr = 0.1;
    spec.cast = AMP_F32;
    spec.max_steps = 20;
    int code = ampclient_create(client, &spec, NULL);
    return code != 0 ? code : ampclient_load(client, MODEL, values, 1, NULL);
}

/* A result names the first parameters and workers that had the Inf or NaN: all workers hear it. */
static void show(const struct ampclient_result *result, float w, float scale)
{
    static const char *const verdicts[] = {"?", "applied", "skipped", "skipped: empty", "late", "rolled back"};
    (void)printf("step %" PRIu64 ": w %g, scale %g, %s\n", result->step, (double)w, (double)scale,
                 verdicts[result->verdict]);
    for (uint32_t i = 0; i < result->overflows_count; i++)
        (void)printf("  %s of %s: %" PRIu64 " Inf, %" PRIu64 " NaN\n", result->overflows[i].parameter,
                     result->overflows[i].rank >= 0 ? result->overflows[i].worker : "the sum",
                     result->overflows[i].inf_count, result->overflows[i].nan_count);
}

/* One step: the scaled gradient of (w x - 2 x)^2 / 2. */
static int train(struct ampclient_model *model, const struct ampclient_step *step)
{
    struct ampclient_result result = AMPCLIENT_RESULT_INIT;
    struct ampclient_tensor w;
    float x = (float)(1 + ampclient_rank(model));
    int code = ampclient_parameter(model, 0, &w);
    if (code != 0)
        return code;
    float value = *(const float *)w.data, error = value * x - 2 * x, gradient = error * x * step->scale;
    if (step->step == 3 && ampclient_rank(model) == 1)
        gradient = INFINITY;
    code = ampclient_loss(model, error * error / 2); /* for `ampctl history line` */
    if (code == 0)
        code = ampclient_push(model, 0, &gradient, AMP_F32);
    if (code == 0)
        code = ampclient_step_end(model, &result);
    if (code == 0 && ampclient_rank(model) == 0)
        show(&result, value, step->scale);
    return code;
}

static int run(struct ampclient *client)
{
    struct ampclient_step step = AMPCLIENT_STEP_INIT;
    struct ampclient_model *model = NULL;
    uint64_t steps = 0;
    int code = make_model(client);
    if (code == 0)
        code = ampclient_join(client, MODEL, NULL, &model); /* rank and world from RANK and WORLD_SIZE */
    while (code == 0) {
        code = ampclient_step_begin(model, &step); /* 1: the model is done */
        if (code == 0)
            code = train(model, &step);
        if (code == 0)
            steps++;
    }
    if (code == 1 && steps == 0 && ampclient_rank(model) == 0)
        (void)printf("the model " MODEL " is done already: `ampctl delete " MODEL "` makes room for a new one\n");
    if (code == 1)
        code = ampclient_leave(model);
    return code;
}

int main(int argc, char **argv)
{
    struct ampclient *client;
    struct amp_error error;
    if (ampclient_connect(argc > 1 ? argv[1] : "127.0.0.1:7420", NULL, &client, &error) != 0) {
        (void)fprintf(stderr, "worker: %s\n", error.text);
        return 1;
    }
    int code = run(client);
    if (code != 0)
        (void)fprintf(stderr, "worker: %s\n", ampclient_error_text(client));
    ampclient_close(client);
    return code != 0;
}
