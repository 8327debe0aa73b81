/*
 * ampclient_load: the first values of a model, as a stream of fp32 blocks.
 *
 * A block that lies in one parameter is sent from where it lies; one that spans parameters or pads is gathered. The
 * server takes one loader at a time and lets others wait with their bodies unread, so the stream stays below arpc's
 * high-water mark. A load that was cut off is begun again from its first block: the server keeps nothing of half a load.
 */
#include "base/crc32c.h"
#include "client/io/client.h"
#include "client/io/flat.h"
#include "client/io/methods.h"
#include "client/io/spec.h"
#include "proto/block.h"

#include <stdlib.h>

struct load {
    struct ampclient_flat flat;
    const float *const *values;
    float *scratch; /* one block */
    uint64_t next;  /* block */
};

static int send_block(struct load *load, struct arpc_call *call, uint64_t index)
{
    const float *data = ampclient_flat_block(&load->flat, load->values, index, load->scratch);
    size_t size = ampclient_flat_block_elements(&load->flat, index) * sizeof *data;
    struct ampd_block block = {.index = (uint32_t)index, .crc32c = amp_crc32c(0, data, size), .size = (uint32_t)size};
    uint8_t head[AMPD_BLOCK_HEAD_MAX];
    size_t head_size = ampd_block_head_encode(&block, head);
    if (data == load->scratch)
        return arpc_call_send(call, head, head_size, data, size, NULL, NULL);
    return ampclient_rpc_send_view(call, head, head_size, data, size);
}

/* Loop's thread; the waiting thread touches nothing of it meanwhile. */
static int feed(void *arg, struct arpc_call *call)
{
    struct load *load = arg;
    while (load->next < load->flat.blocks && arpc_call_queued(call) < ARPC_HIGH_WATER) {
        int rc = send_block(load, call, load->next);
        if (rc != 0)
            return rc;
        load->next++;
    }
    return load->next == load->flat.blocks ? 1 : 0;
}

static void restart(void *arg)
{
    struct load *load = arg;
    load->next = 0;
}

/* The layout, from the specification that the server has. */
static int open_load(struct ampclient *client, const struct ampd_msg_get_model_response *model, uint32_t values_count,
                     struct load *load)
{
    uint32_t count = (uint32_t)model->spec.parameters.count;
    if (count != values_count)
        return amp_error_set(&client->error, AMP_EINVAL, NULL, "values_count is %u, but the model has %u parameters.",
                             values_count, count);
    uint64_t *sizes = calloc(count + 1u, sizeof *sizes);
    if (sizes == NULL)
        return amp_error_set(&client->error, AMP_ENOMEM, NULL, "There is no memory for the layout of the model.");
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        const struct ampd_msg_parameter_spec *parameter = &model->spec.parameters.items[i];
        rc = ampclient_parameter_elements(parameter->shape, parameter->shape_count, &sizes[i]);
    }
    /* Sizes of blocks are bounded by what one message can carry. */
    if (rc == 0 && model->block_elements > AMPD_BLOCK_DATA_MAX / sizeof(float))
        rc = AMP_EINVAL;
    if (rc == 0)
        rc = ampclient_flat_init(&load->flat, sizes, count, model->block_elements);
    free(sizes);
    if (rc == 0) {
        load->scratch = malloc(model->block_elements * sizeof *load->scratch);
        if (load->scratch != NULL)
            return 0;
        ampclient_flat_close(&load->flat);
        rc = AMP_ENOMEM;
    }
    if (rc == AMP_ENOMEM)
        return amp_error_set(&client->error, rc, NULL, "There is no memory for the layout of the model.");
    return amp_error_set(&client->error, AMP_EINTERNAL, NULL,
                         "The server describes a model that cannot be: is it an ampd?");
}

static int encode_header(struct ampclient *client, const char *model_name, struct amp_buf *out)
{
    struct ampd_msg_load_header header = {0};
    int rc = ampclient_copy_name(header.model, model_name, "The name of the model", &client->error);
    if (rc != 0)
        return rc;
    struct amp_buf body;
    amp_buf_init(&body, AMPD_BLOCK_PART_MAX);
    rc = ampd_msg_load_header_encode(&header, &body);
    if (rc == 0)
        rc = ampd_block_part_encode(AMPD_BLOCK_HEADER, &body, out);
    amp_buf_close(&body);
    return rc == 0 ? 0
                   : amp_error_set(&client->error, rc, NULL, "The header of the load cannot be made: out of memory.");
}

static int run_load(struct ampclient *client, const char *model_name, struct load *load, bool *already)
{
    struct amp_buf header;
    amp_buf_init(&header, AMPD_MSG_SIZE_MAX);
    struct ampclient_reply reply = {0};
    int rc = encode_header(client, model_name, &header);
    if (rc == 0) {
        struct ampclient_request request = {.path = AMPCLIENT_PARAMETER_SERVICE "Load",
                                            .body = &header,
                                            .timeout_ms = client->options.call_timeout_ms,
                                            .feed_cb = feed,
                                            .arg = load};
        rc = ampclient_rpc_retry(client->link, &request, client->options.reconnect_timeout_ms, restart, &reply);
        if (rc != 0)
            client->error = reply.error;
    }
    if (rc == 0) {
        struct ampd_msg_load_response response;
        rc = ampd_msg_load_response_decode(&response, reply.body.data, reply.body.size, &client->error);
        *already = rc == 0 && response.already_loaded;
    }
    ampclient_reply_close(&reply);
    amp_buf_close(&header);
    return rc;
}

static bool has_values(enum ampd_msg_model_state state)
{
    return state == AMPD_MSG_MODEL_STATE_WAITING || state == AMPD_MSG_MODEL_STATE_RUNNING ||
           state == AMPD_MSG_MODEL_STATE_STALLED || state == AMPD_MSG_MODEL_STATE_DONE;
}

int ampclient_load(struct ampclient *client, const char *model_name, const float *const *values, uint32_t values_count,
                   bool *already)
{
    if (client == NULL)
        return AMP_EINVAL;
    ampclient_begin(client);
    for (uint32_t i = 0; values == NULL || i < values_count; i++)
        if (values == NULL || values[i] == NULL)
            return amp_error_set(&client->error, AMP_EINVAL, NULL,
                                 "The values of parameter %u are NULL; give values for every parameter.", i);
    struct ampd_msg_get_model_response model;
    int rc = ampclient_get_model(client, model_name, &model);
    if (rc != 0)
        return rc;
    struct load load = {.values = values};
    bool was_there = has_values(model.status.state);
    rc = open_load(client, &model, values_count, &load);
    if (rc == 0) {
        /* Values once loaded stay: there is no need to send others. */
        if (!was_there)
            rc = run_load(client, model_name, &load, &was_there);
        if (!client->link->broken) {
            ampclient_flat_close(&load.flat);
            free(load.scratch);
        }
    }
    ampd_msg_get_model_response_free(&model);
    if (rc == 0 && already != NULL)
        *already = was_there;
    return rc;
}
