/* The calls of ampclient.h on units: sets of parameters that are gathered, released and scattered. */
#include "client/ampclient.h"
#include "client/io/client.h"
#include "client/io/model.h"

int ampclient_unit_add(struct ampclient_model *model, const uint32_t *parameters, uint32_t parameters_count,
                       uint32_t *unit)
{
    if (model == NULL)
        return AMP_EINVAL;
    if (unit == NULL)
        return amp_error_set(&model->client->error, AMP_EINVAL, NULL,
                             "unit is NULL; pass the address of a variable for the number of the unit.");
    int rc = ampclient_model_lock(model);
    if (rc == 0)
        rc = ampclient_core_unit_add(model->core, parameters, parameters_count, unit, &model->client->error);
    return ampclient_model_unlock(model, rc);
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

int ampclient_prefetch(struct ampclient_model *model, uint32_t unit)
{
    if (model == NULL)
        return AMP_EINVAL;
    int rc = ampclient_model_lock(model);
    if (rc == 0)
        rc = ampclient_core_prefetch(model->core, ampclient_now_ms(), unit, &model->client->error);
    return ampclient_model_unlock(model, rc);
}

int ampclient_release(struct ampclient_model *model, uint32_t unit)
{
    if (model == NULL)
        return AMP_EINVAL;
    int rc = ampclient_model_lock(model);
    if (rc == 0)
        rc = ampclient_core_release(model->core, unit, &model->client->error);
    return ampclient_model_unlock(model, rc);
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

int ampclient_scatter(struct ampclient_model *model, uint32_t unit, const void *const *gradients, enum amp_dtype dtype)
{
    int rc = ampclient_drain(model);
    if (rc != 0)
        return rc;
    rc = ampclient_model_lock(model);
    if (rc == 0)
        rc = ampclient_core_scatter(model->core, ampclient_now_ms(), unit, gradients, dtype, &model->client->error);
    return ampclient_model_unlock(model, rc);
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
