/* The calls of a worker: join, leave, steps, views, user state. */
#include "base/large.h"
#include "client/core/client_memory.h"
#include "client/core/client_metrics.h"
#include "client/io/attach.h"
#include "client/io/model.h"
#include "client/io/client_spec.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP_FIELDS   "fields of step"
#define RESULT_FIELDS "fields of result"

/* ---- joining ---- */

/*
 * A small number of the environment: -1 if it is not set. The launchers (torchrun, MPI wrappers) set RANK and
 * WORLD_SIZE.
 */
static int from_environment(const char *variable, int32_t least, int32_t most, int32_t *value, struct amp_error *error)
{
    const char *text = getenv(variable);
    *value = -1;
    if (text == NULL || text[0] == 0)
        return 0;
    char *end;
    long number = strtol(text, &end, 10);
    if (*end != 0 || number < least || number > most)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "The environment variable %s is \"%.40s\"; set it to a number from %" PRId32 " to %" PRId32
                             ", or unset it.",
                             variable, text, least, most);
    *value = (int32_t)number;
    return 0;
}

struct identity {
    char model[AMPCLIENT_NAME_MAX];
    char worker[AMPCLIENT_NAME_MAX];
    int32_t rank, world_size;
};

static int find_identity(struct ampclient *client, const char *model_name, const struct ampclient_join_options *options,
                         struct identity *identity)
{
    struct amp_error *error = &client->error;
    int rc = ampclient_copy_name(identity->model, model_name, "The name of the model", error);
    identity->rank = options->rank;
    identity->world_size = options->world_size;
    if (rc == 0 && options->rank < 0)
        rc = from_environment("RANK", 0, AMPD_MSG_WORKERS_MAX - 1, &identity->rank, error);
    if (rc == 0 && options->world_size < 0)
        rc = from_environment("WORLD_SIZE", 1, AMPD_MSG_WORKERS_MAX, &identity->world_size, error);
    if (rc != 0)
        return rc;
    if (options->worker_name != NULL)
        return ampclient_copy_name(identity->worker, options->worker_name, "worker_name", error);
    if (identity->rank < 0 && identity->world_size == 1)
        identity->rank = 0;
    if (identity->rank < 0)
        return amp_error_set(
            error, AMP_EINVAL, NULL,
            "This worker has no rank: set rank or worker_name in the join options, or RANK in the environment.");
    (void)snprintf(identity->worker, sizeof identity->worker, "rank-%" PRId32, identity->rank);
    return 0;
}

static int take_join_options(struct ampclient *client, const struct ampclient_join_options *options,
                             struct ampclient_join_options *taken)
{
    *taken = (struct ampclient_join_options)AMPCLIENT_JOIN_OPTIONS_INIT;
    if (options == NULL)
        return 0;
    return ampclient_take_struct(taken, sizeof *taken, options, "join options", &client->error);
}

static int new_model(struct ampclient *client, const struct identity *identity,
                     const struct ampclient_join_options *options, struct ampclient_model **out)
{
    const struct ampclient_core_config config = {.model = identity->model,
                                                 .worker = identity->worker,
                                                 .rank = identity->rank,
                                                 .world_size = identity->world_size,
                                                 .replace = options->replace,
                                                 .take_back = options->take_back,
                                                 .accumulate = options->accumulate,
                                                 .units = options->units,
                                                 .stays_shared = options->shared_cb != NULL,
                                                 .shards = ampclient_shards(client),
                                                 .reconnect_timeout_ms = client->options.reconnect_timeout_ms,
                                                 .step_timeout_ms = client->options.step_timeout_ms,
                                                 .call_timeout_ms = client->options.call_timeout_ms};
    struct ampclient_model *model = calloc(1, sizeof *model);
    if (model == NULL)
        return amp_error_set(&client->error, AMP_ENOMEM, NULL, "There is no memory for a model.");
    model->client = client;
    (void)uv_random(NULL, NULL, &model->instance, sizeof model->instance, 0,
                    NULL); /* if it fails it stays 0, and each Join counts as another process's */
    model->restore_arg = options->restore_arg;
    model->restore_cb = options->restore_cb;
    model->shared_arg = options->shared_arg;
    model->shared_cb = options->shared_cb;
    model->units = options->units;
    amp_list_init(&model->node);
    amp_list_init(&model->calls);
    amp_list_init(&model->attach_calls);
    amp_list_init(&model->lines);
    model->user_state = malloc(AMPCLIENT_USER_STATE_MAX);
    int rc = model->user_state != NULL ? ampclient_core_new(&config, &model->core) : AMP_ENOMEM;
    if (rc == 0)
        rc = ampclient_model_add(model);
    else
        (void)amp_error_set(
            &client->error, rc, NULL,
            rc == AMP_ENOMEM ? "There is no memory for a model."
                             : "A join option is out of range: rank, world_size or accumulate (with units at most 1).");
    if (rc == 0)
        *out = model;
    else if (!client->link->broken)
        ampclient_model_free(model);
    return rc;
}

/* Takes the model from the loop and frees it. */
static int drop_model(struct ampclient_model *model)
{
    int rc = ampclient_model_remove(model);
    if (rc == 0)
        ampclient_model_free(model);
    return rc;
}

int ampclient_join(struct ampclient *client, const char *model_name, const struct ampclient_join_options *options,
                   struct ampclient_model **model)
{
    if (client == NULL)
        return AMP_EINVAL;
    ampclient_begin(client);
    if (model == NULL)
        return amp_error_set(&client->error, AMP_EINVAL, NULL,
                             "model is NULL; pass the address of a variable for the handle.");
    *model = NULL;
    struct ampclient_join_options taken;
    struct identity identity = {0};
    uint64_t begun_ms = ampclient_now_ms();
    int rc = take_join_options(client, options, &taken);
    if (rc == 0)
        rc = find_identity(client, model_name, &taken, &identity);
    if (rc == 0)
        rc = ampclient_find_shards(client);
    struct ampclient_model *made = NULL;
    if (rc == 0)
        rc = new_model(client, &identity, &taken, &made);
    if (rc != 0)
        return rc;
    struct ampclient_user_done done = {0};
    const struct ampclient_event request = {.type = AMPCLIENT_EVENT_JOIN, .u.waited_ms = ampclient_now_ms() - begun_ms};
    rc = ampclient_model_ask(made, &request, &done);
    if (rc == 0) {
        *model = made;
        return 0;
    }
    struct amp_error error = client->error; /* of the join, which drop_model must not replace */
    (void)drop_model(made);
    client->error = error;
    return rc;
}

int ampclient_leave(struct ampclient_model *model)
{
    if (model == NULL)
        return AMP_EINVAL;
    struct ampclient *client = model->client;
    ampclient_begin(client);
    struct ampclient_user_done done = {0};
    int rc = ampclient_model_request(model, AMPCLIENT_EVENT_LEAVE, &done);
    struct amp_error error = client->error;
    int dropped = drop_model(model);
    if (dropped != 0) /* goes first: only this code tells that the loop may still use gradients and memory */
        return dropped;
    if (rc != 0)
        client->error = error;
    return rc;
}

/* ---- views ---- */

static uint32_t query(const struct ampclient_model *model, uint32_t (*of)(const struct ampclient_core *core))
{
    if (model == NULL)
        return 0;
    (void)pthread_mutex_lock(&model->client->link->mutex);
    uint32_t value = of(model->core);
    (void)pthread_mutex_unlock(&model->client->link->mutex);
    return value;
}

uint32_t ampclient_rank(const struct ampclient_model *model)
{
    return query(model, ampclient_core_rank);
}

uint32_t ampclient_world_size(const struct ampclient_model *model)
{
    return query(model, ampclient_core_world_size);
}

uint32_t ampclient_parameters_count(const struct ampclient_model *model)
{
    return model != NULL ? model->parameters_count : 0;
}

int64_t ampclient_parameter_index(const struct ampclient_model *model, const char *name)
{
    if (model == NULL || name == NULL)
        return -1;
    for (uint32_t i = 0; i < model->parameters_count; i++)
        if (strcmp(model->parameters[i].name, name) == 0)
            return i;
    return -1;
}

static int bad_index(struct ampclient *client, uint32_t index, uint32_t count)
{
    return amp_error_set(&client->error, AMP_ERANGE, NULL,
                         "There is no parameter %" PRIu32 "; the model has %" PRIu32 ".", index, count);
}

int ampclient_parameter(const struct ampclient_model *model, uint32_t index, struct ampclient_tensor *tensor)
{
    if (model == NULL)
        return AMP_EINVAL;
    struct ampclient *client = model->client;
    ampclient_begin(client);
    if (tensor == NULL)
        return amp_error_set(&client->error, AMP_EINVAL, NULL,
                             "tensor is NULL; pass the address of a variable for the view.");
    if (index >= model->parameters_count)
        return bad_index(client, index, model->parameters_count);
    (void)pthread_mutex_lock(&client->link->mutex);
    uint64_t elements = 0;
    const void *data = ampclient_core_parameter(model->core, index, &elements);
    (void)pthread_mutex_unlock(&client->link->mutex);
    if (data == NULL)
        return amp_error_set(
            &client->error, AMP_ESTATE, NULL,
            model->units ? "Parameter %" PRIu32 " is in no unit that is gathered; call ampclient_gather first."
                         : "Parameter %" PRIu32
                           " has not been pulled yet, or not wholly; call ampclient_step_begin or ampclient_pull "
                           "first.",
            index);
    const struct ampclient_model_parameter *parameter = &model->parameters[index];
    *tensor = (struct ampclient_tensor){.name = parameter->name,
                                        .dimensions = parameter->dimensions,
                                        .shape = parameter->shape,
                                        .elements = elements,
                                        .dtype = model->cast,
                                        .data = data};
    return 0;
}

int ampclient_pull(struct ampclient_model *model, uint64_t *version)
{
    if (model == NULL)
        return AMP_EINVAL;
    ampclient_begin(model->client);
    struct ampclient_user_done done = {0};
    int rc = ampclient_model_request(model, AMPCLIENT_EVENT_PULL_LATEST, &done);
    if (rc == 0 && version != NULL)
        *version = done.step.version;
    return rc;
}

size_t ampclient_memory_size(const struct ampclient_model *model)
{
    if (model == NULL)
        return 0;
    (void)pthread_mutex_lock(&model->client->link->mutex);
    size_t size = ampclient_core_memory_size(model->core);
    (void)pthread_mutex_unlock(&model->client->link->mutex);
    return size;
}

int ampclient_use_memory(struct ampclient_model *model, void *memory, size_t size)
{
    if (model == NULL)
        return AMP_EINVAL;
    int rc = ampclient_model_lock(model);
    if (rc == 0)
        rc = ampclient_core_use_memory(model->core, memory, size, &model->client->error);
    return ampclient_model_unlock(model, rc);
}

/* ---- steps ---- */

/* Copies the user state, for the core may join again in the background and drop its own. Valid until the next call. */
static const uint8_t *copy_user_state(const struct ampclient_model *model, size_t *size)
{
    (void)pthread_mutex_lock(&model->client->link->mutex);
    *size = 0;
    const uint8_t *state = ampclient_core_user_state(model->core, size);
    if (*size > 0)
        memcpy(model->user_state, state, *size);
    (void)pthread_mutex_unlock(&model->client->link->mutex);
    return model->user_state;
}

static void give_back_state(const struct ampclient_model *model, uint64_t step)
{
    size_t size;
    const uint8_t *state = copy_user_state(model, &size);
    model->restore_cb(model->restore_arg, step, state, size);
}

int ampclient_step_begin(struct ampclient_model *model, struct ampclient_step *step)
{
    if (model == NULL)
        return AMP_EINVAL;
    struct ampclient *client = model->client;
    ampclient_begin(client);
    if (step == NULL)
        return amp_error_set(&client->error, AMP_EINVAL, NULL,
                             "step is NULL; pass the address of a variable for the step.");
    struct ampclient_user_done done = {0};
    struct ampclient_event request = {.type = AMPCLIENT_EVENT_STEP_BEGIN};
    uint64_t begun_ms = ampclient_now_ms();
    /* After the request a step would be begun. */
    int rc = ampclient_check_struct(step, STEP_FIELDS, &client->error);
    if (rc != 0)
        return rc;
    ampclient_attach(model);
    request.u.waited_ms = ampclient_now_ms() - begun_ms;
    rc = ampclient_model_ask(model, &request, &done);
    if (rc != 0)
        return rc;
    const struct ampclient_step begun = {.size = sizeof begun,
                                         .epoch = done.step.epoch,
                                         .step = done.step.step,
                                         .version = done.step.version,
                                         .scale = done.step.scale,
                                         .scale_id = done.step.scale_id,
                                         .rolled_back = done.step.rolled_back};
    if (done.step.restored && model->restore_cb != NULL)
        give_back_state(model, done.step.step);
    return ampclient_give_struct(step, &begun, sizeof begun, STEP_FIELDS, &client->error);
}

int ampclient_push(struct ampclient_model *model, uint32_t parameter, const void *gradient, enum amp_dtype dtype)
{
    if (model == NULL)
        return AMP_EINVAL;
    struct ampclient *client = model->client;
    if (model->units)
        return amp_error_set(&client->error, AMP_ESTATE, NULL,
                             "This handle has units, whose gradients are not kept until step_end; call "
                             "ampclient_scatter.");
    if (gradient == NULL)
        return amp_error_set(&client->error, AMP_EINVAL, NULL,
                             "The gradient of parameter %" PRIu32 " is NULL; leave out the push if there is none.",
                             parameter);
    if (parameter >= model->parameters_count)
        return bad_index(client, parameter, model->parameters_count);
    int rc = ampclient_model_lock(model);
    if (rc == 0)
        rc = ampclient_core_push(model->core, ampclient_now_ms(), parameter, gradient, dtype, &client->error);
    if (rc == 0) {
        enum amp_dtype sent =
            ampclient_core_push_dtype(model->core); /* of accumulated gradients the sums are, in f32 */
        if (amp_dtype_size(sent) > amp_dtype_size(model->gradients))
            model->gradients = sent;
    }
    return ampclient_model_unlock(model, rc);
}

/* With the mutex: the place in the slot, or in memory of the handle's own, which is made when it is needed. */
static int find_place(struct ampclient_model *model, uint32_t parameter, enum amp_dtype dtype, void **place)
{
    struct ampclient_core *core = model->core;
    uint64_t start = ampclient_core_start(core, parameter), whole = ampclient_core_whole_block(core);
    size_t size = amp_dtype_size(dtype);
    if (ampclient_core_state(core) != AMPCLIENT_STATE_COMPUTING &&
        ampclient_core_state(core) != AMPCLIENT_STATE_ROLLED_BACK)
        return amp_error_set(&model->client->error, AMP_ESTATE, NULL,
                             "no step has begun: call ampclient_step_begin first");
    /* Of narrower values the slots of several shards do not join. */
    if (ampclient_core_in_memory(model->core) && amp_dtype_size(model->shared->dtype) == size) {
        *place = model->shared->slot + start * size;
        return 0;
    }
    if (model->places == NULL) {
        model->places_size = ampclient_core_blocks(core) * whole * sizeof(float);
        model->places = amp_large_new(model->places_size);
    }
    if (model->places == NULL)
        return amp_error_set(&model->client->error, AMP_ENOMEM, NULL, "There is no memory for gradients.");
    *place = model->places + start * size;
    return 0;
}

int ampclient_gradient(struct ampclient_model *model, uint32_t parameter, enum amp_dtype dtype, void **place)
{
    if (model == NULL)
        return AMP_EINVAL;
    struct ampclient *client = model->client;
    if (place == NULL || (dtype != AMP_F16 && dtype != AMP_BF16 && dtype != AMP_F32))
        return amp_error_set(&client->error, AMP_EINVAL, NULL,
                             "Give the place for the address, and a dtype of AMP_F16, AMP_BF16 or AMP_F32.");
    if (model->units)
        return amp_error_set(&client->error, AMP_ESTATE, NULL,
                             "This handle has units: give ampclient_scatter gradients of your own.");
    if (parameter >= model->parameters_count)
        return bad_index(client, parameter, model->parameters_count);
    int rc = ampclient_model_lock(model);
    if (rc == 0)
        rc = find_place(model, parameter, dtype, place);
    return ampclient_model_unlock(model, rc);
}

bool ampclient_shares_memory(const struct ampclient_model *model)
{
    if (model == NULL)
        return false;
    (void)pthread_mutex_lock(&model->client->link->mutex);
    bool on = ampclient_core_in_memory(model->core);
    (void)pthread_mutex_unlock(&model->client->link->mutex);
    return on;
}

/* Copies the overflows of this step to memory that stays until the next step_end. */
static void take_overflows(struct ampclient_model *model, const struct ampclient_core_result *result)
{
    struct ampclient_model_overflows *returned = &model->returned;
    (void)pthread_mutex_lock(&model->client->link->mutex);
    bool same = model->received.epoch == result->epoch && model->received.step == result->step;
    returned->count = same ? model->received.count : 0;
    memcpy(returned->rows, model->received.rows, returned->count * sizeof returned->rows[0]);
    memcpy(returned->workers, model->received.workers, returned->count * sizeof returned->workers[0]);
    (void)pthread_mutex_unlock(&model->client->link->mutex);
    for (uint32_t i = 0; i < returned->count; i++)
        returned->rows[i].worker = returned->workers[i];
}

int ampclient_step_end(struct ampclient_model *model, struct ampclient_result *result)
{
    if (model == NULL)
        return AMP_EINVAL;
    struct ampclient *client = model->client;
    ampclient_begin(client);
    if (result == NULL)
        return amp_error_set(&client->error, AMP_EINVAL, NULL,
                             "result is NULL; pass the address of a variable for the result.");
    struct ampclient_user_done done = {0};
    /* After the request the verdict would be lost. */
    int rc = ampclient_check_struct(result, RESULT_FIELDS, &client->error);
    if (rc == 0)
        rc = ampclient_model_request(model, AMPCLIENT_EVENT_STEP_END, &done);
    if (rc != 0)
        return rc;
    const struct ampclient_core_result *from = &done.result;
    take_overflows(model, from);
    const struct ampclient_result ended = {.size = sizeof ended,
                                           .epoch = from->epoch,
                                           .step = from->step,
                                           .verdict = (enum ampclient_verdict)from->verdict,
                                           .applied = from->applied,
                                           .version = from->version,
                                           .norm = from->norm,
                                           .clip = from->clip,
                                           .scale = from->scale,
                                           .new_scale = from->new_scale,
                                           .scale_id = from->scale_id,
                                           .new_scale_id = from->new_scale_id,
                                           .overflow_parameters = from->overflow_parameters,
                                           .range_warnings = from->range_warnings,
                                           .durable_step = from->durable_step,
                                           .overflows = model->returned.rows,
                                           .overflows_count = model->returned.count};
    return ampclient_give_struct(result, &ended, sizeof ended, RESULT_FIELDS, &client->error);
}

int ampclient_set_weight(struct ampclient_model *model, float weight)
{
    if (model == NULL)
        return AMP_EINVAL;
    int rc = ampclient_model_lock(model);
    if (rc == 0)
        rc = ampclient_core_weight(model->core, weight, &model->client->error);
    return ampclient_model_unlock(model, rc);
}

int ampclient_set_learning_rate(struct ampclient_model *model, double lr)
{
    if (model == NULL)
        return AMP_EINVAL;
    struct amp_error *error = &model->client->error;
    int rc = ampclient_model_lock(model);
    if (rc == 0)
        rc = model->takes_rate
                 ? ampclient_core_learning_rate(model->core, lr, error)
                 : amp_error_set(error, AMP_EINVAL, NULL,
                                 "The model has a schedule of its own and takes no learning rate of a worker; leave "
                                 "out this call, or create a model with the schedule AMPCLIENT_WORKER.");
    return ampclient_model_unlock(model, rc);
}

int ampclient_loss(struct ampclient_model *model, float loss)
{
    if (model == NULL)
        return AMP_EINVAL;
    int rc = ampclient_model_lock(model);
    if (rc == 0)
        rc = ampclient_core_loss(model->core, loss, &model->client->error);
    return ampclient_model_unlock(model, rc);
}

int ampclient_metric(struct ampclient_model *model, const char *name, float value)
{
    if (model == NULL)
        return AMP_EINVAL;
    int rc = ampclient_model_lock(model);
    if (rc == 0)
        rc = ampclient_core_metric(model->core, name, value, &model->client->error);
    return ampclient_model_unlock(model, rc);
}

/* ---- user state ---- */

int ampclient_set_user_state(struct ampclient_model *model, const void *data, size_t size)
{
    if (model == NULL)
        return AMP_EINVAL;
    int rc = ampclient_model_lock(model);
    if (rc == 0)
        rc = ampclient_core_set_user_state(model->core, data, size, &model->client->error);
    return ampclient_model_unlock(model, rc);
}

int ampclient_user_state(const struct ampclient_model *model, const void **data, size_t *size)
{
    if (model == NULL)
        return AMP_EINVAL;
    struct ampclient *client = model->client;
    ampclient_begin(client);
    if (data == NULL || size == NULL)
        return amp_error_set(&client->error, AMP_EINVAL, NULL,
                             "data or size is NULL; pass the addresses of variables for them.");
    *data = copy_user_state(model, size);
    return 0;
}
