/* The calls of ampclient.h on units: sets of parameters that are gathered, released and scattered. */
#include "client/ampclient.h"
#include "client/io/client.h"
#include "client/io/model.h"

#include <inttypes.h>

/*
 * What the core does at once, with the mutex and then a kick for its outputs. 0, 1, or the core's code with its text.
 */
struct unit_call {
    int (*run_cb)(struct ampclient_model *model, const struct unit_call *call, struct amp_error *error);
    uint32_t unit;
    const uint32_t *parameters;
    uint32_t parameters_count;
    uint32_t *added;
    const void *const *gradients;
    enum amp_dtype dtype;
};

static int run(struct ampclient_model *model, const struct unit_call *call)
{
    struct ampclient *client = model->client;
    (void)pthread_mutex_lock(&client->link->mutex);
    int rc = client->link->broken ? ampclient_link_break(client->link, &client->error)
                                  : call->run_cb(model, call, &client->error);
    ampclient_link_kick(client->link);
    (void)pthread_mutex_unlock(&client->link->mutex);
    return rc;
}

static int run_add(struct ampclient_model *model, const struct unit_call *call, struct amp_error *error)
{
    return ampclient_core_unit_add(model->core, call->parameters, call->parameters_count, call->added, error);
}

int ampclient_unit_add(struct ampclient_model *model, const uint32_t *parameters, uint32_t parameters_count,
                       uint32_t *unit)
{
    if (model == NULL)
        return AMP_EINVAL;
    ampclient_begin(model->client);
    if (unit == NULL)
        return amp_error_set(&model->client->error, AMP_EINVAL, NULL,
                             "unit is NULL; pass the address of a variable for the number of the unit.");
    const struct unit_call call = {
        .run_cb = run_add, .parameters = parameters, .parameters_count = parameters_count, .added = unit};
    return run(model, &call);
}

int ampclient_gather(struct ampclient_model *model, uint32_t unit)
{
    if (model == NULL)
        return AMP_EINVAL;
    ampclient_begin(model->client);
    struct ampclient_user_done done = {0};
    const struct ampclient_event request = {.type = AMPCLIENT_EVENT_GATHER, .u.unit = unit};
    return ampclient_model_ask(model, &request, &done);
}

static int run_prefetch(struct ampclient_model *model, const struct unit_call *call, struct amp_error *error)
{
    return ampclient_core_prefetch(model->core, ampclient_now_ms(), call->unit, error);
}

int ampclient_prefetch(struct ampclient_model *model, uint32_t unit)
{
    if (model == NULL)
        return AMP_EINVAL;
    ampclient_begin(model->client);
    const struct unit_call call = {.run_cb = run_prefetch, .unit = unit};
    return run(model, &call);
}

static int run_release(struct ampclient_model *model, const struct unit_call *call, struct amp_error *error)
{
    return ampclient_core_release(model->core, call->unit, error);
}

int ampclient_release(struct ampclient_model *model, uint32_t unit)
{
    if (model == NULL)
        return AMP_EINVAL;
    ampclient_begin(model->client);
    const struct unit_call call = {.run_cb = run_release, .unit = unit};
    return run(model, &call);
}

int ampclient_drain(struct ampclient_model *model)
{
    if (model == NULL)
        return AMP_EINVAL;
    ampclient_begin(model->client);
    if (!model->units)
        return amp_error_set(&model->client->error, AMP_ESTATE, NULL,
                             "This handle has no units, and what was pushed is borrowed until step_end; set units in "
                             "the join options.");
    struct ampclient_user_done done = {0};
    return ampclient_model_request(model, AMPCLIENT_EVENT_DRAIN, &done);
}

static int run_scatter(struct ampclient_model *model, const struct unit_call *call, struct amp_error *error)
{
    return ampclient_core_scatter(model->core, ampclient_now_ms(), call->unit, call->gradients, call->dtype, error);
}

int ampclient_scatter(struct ampclient_model *model, uint32_t unit, const void *const *gradients, enum amp_dtype dtype)
{
    int rc = ampclient_drain(model);
    if (rc != 0)
        return rc;
    const struct unit_call call = {.run_cb = run_scatter, .unit = unit, .gradients = gradients, .dtype = dtype};
    return run(model, &call);
}

uint64_t ampclient_units_bytes(const struct ampclient_model *model)
{
    if (model == NULL)
        return 0;
    (void)pthread_mutex_lock(&model->client->link->mutex);
    uint64_t bytes = ampclient_core_held(model->core);
    (void)pthread_mutex_unlock(&model->client->link->mutex);
    return bytes;
}
