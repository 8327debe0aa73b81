/*
 * ampclient_load: the first values of a model, as a stream of fp32 blocks.
 *
 * A block that lies in one parameter is sent from where it lies; one that spans parameters or pads is gathered. The
 * server takes one loader at a time and lets others wait with their bodies unread, so the stream stays below arpc's
 * high-water mark. A load that was cut off is begun again from its first block: the server keeps nothing of half a
 * load.
 *
 * Of several shards each gets its own blocks, all at the same time and under one number: no shard answers before all
 * have theirs. So each but the first has a thread, for as long as the load takes.
 */
#include "base/crc32c.h"
#include "base/thread.h"
#include "client/io/client.h"
#include "client/io/flat.h"
#include "client/io/methods.h"
#include "client/io/client_spec.h"
#include "proto/block.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>

/* A shard hears of a new model a moment after it was created. */
#define CREATED_MS 10000

struct load {
    struct ampclient_flat flat;
    const float *const *values;
    float *scratch;            /* one block */
    uint64_t first, next, end; /* blocks */
};

/* What goes to one shard. */
struct part {
    struct ampclient *client;
    struct load load;
    struct amp_buf header;
    uint32_t shard;
    pthread_t thread;
    bool started;
    int code;
    struct ampclient_reply reply;
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
    while (load->next < load->end && arpc_call_queued(call) < ARPC_HIGH_WATER) {
        int rc = send_block(load, call, load->next);
        if (rc != 0)
            return rc;
        load->next++;
    }
    return load->next == load->end ? 1 : 0;
}

static void restart(void *arg)
{
    struct load *load = arg;
    load->next = load->first;
}

/* The layout, from the specification that the server has. */
static int open_load(struct ampclient *client, const struct ampd_msg_get_model_response *model,
                     const uint64_t *elements, uint32_t values_count, struct load *load)
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
    for (uint32_t i = 0; rc == 0 && elements != NULL && i < count; i++)
        if (sizes[i] != elements[i]) {
            free(sizes);
            return amp_error_set(&client->error, AMP_ESTATE, NULL,
                                 "The model has been made anew with other shapes meanwhile; try again.");
        }
    /* Sizes of blocks are bounded by what one message can carry. */
    if (rc == 0 && model->block_elements > AMPD_BLOCK_DATA_MAX / sizeof(float))
        rc = AMP_EINVAL;
    if (rc == 0)
        rc = ampclient_flat_init(&load->flat, sizes, count, model->block_elements);
    free(sizes);
    if (rc == 0)
        return 0;
    if (rc == AMP_ENOMEM)
        return amp_error_set(&client->error, rc, NULL, "There is no memory for the layout of the model.");
    return amp_error_set(&client->error, AMP_EINTERNAL, NULL,
                         "The server describes a model that cannot be: is it an ampd?");
}

static int encode_header(struct ampclient *client, const char *model_name, uint32_t shard, uint64_t number,
                         struct amp_buf *out)
{
    struct ampd_msg_load_header header = {.shard = shard, .load = number};
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

/* Any thread: it waits for what the loop's thread does. */
static void *run_part(void *arg)
{
    struct part *part = arg;
    const struct ampclient_options *options = &part->client->options;
    struct ampclient_request request = {.path = AMPCLIENT_PARAMETER_SERVICE "Load",
                                        .shard = part->shard,
                                        .body = &part->header,
                                        .timeout_ms = options->call_timeout_ms,
                                        .feed_cb = feed,
                                        .arg = &part->load};
    struct ampclient_link *link = part->client->link;
    for (uint64_t until = ampclient_now_ms() + CREATED_MS;;) {
        part->code = ampclient_rpc_retry(link, &request, options->reconnect_timeout_ms, restart, &part->reply);
        if (part->shard == 0 || part->code != AMP_ENOTFOUND || ampclient_now_ms() >= until)
            return NULL;
        ampclient_reply_close(&part->reply);
        ampclient_link_pause(link, AMPCLIENT_RPC_PAUSE_MS);
    }
}

static void start_part(struct part *part)
{
    part->started = amp_thread_start(&part->thread, NULL, run_part, part) == 0;
    if (!part->started)
        part->code =
            amp_error_set(&part->reply.error, AMP_EIO, NULL, "No thread can be made; raise the limit of processes.");
}

/* The number of a load: what others may choose at the same time is another one. Not 0. */
static uint64_t load_number(void)
{
    uint64_t number = 0;
    while (number == 0)
        if (getrandom(&number, sizeof number, 0) != sizeof number)
            return ampclient_now_ms() | 1; /* no random numbers: then the time */
    return number;
}

static int open_part(struct ampclient *client, const char *model_name, const struct load *whole, uint32_t shard,
                     uint64_t number, struct part *part)
{
    uint64_t blocks = whole->flat.blocks, count = ampclient_shards(client);
    *part = (struct part){.client = client, .load = *whole, .shard = shard};
    amp_buf_init(&part->header, AMPD_MSG_SIZE_MAX);
    part->load.first = blocks * shard / count;
    part->load.end = blocks * (shard + 1) / count;
    part->load.scratch = malloc(whole->flat.block_elements * sizeof *part->load.scratch);
    if (part->load.scratch == NULL)
        return amp_error_set(&client->error, AMP_ENOMEM, NULL, "There is no memory for the layout of the model.");
    return encode_header(client, model_name, shard, number, &part->header);
}

/* The threads are at their ends, or the link is broken and nothing is freed that it may still use. */
static void close_part(struct part *part)
{
    ampclient_reply_close(&part->reply);
    amp_buf_close(&part->header);
    if (!part->client->link->broken)
        free(part->load.scratch);
}

/* The first that failed; else what shard 0 says. */
static int take_parts(struct ampclient *client, const struct part *parts, uint32_t count, bool *already)
{
    for (uint32_t k = 0; k < count; k++) {
        if (parts[k].code == 0)
            continue;
        client->error = parts[k].reply.error;
        return parts[k].code;
    }
    struct ampd_msg_load_response response;
    const struct amp_buf *body = &parts[0].reply.body;
    int rc = ampd_msg_load_response_decode(&response, body->data, body->size, &client->error);
    *already = rc == 0 && response.already_loaded;
    return rc;
}

static int run_load(struct ampclient *client, const char *model_name, const struct load *load, bool *already)
{
    uint32_t count = ampclient_shards(client), made = 0;
    uint64_t number = count > 1 ? load_number() : 0;
    struct part *parts = calloc(count, sizeof *parts);
    if (parts == NULL)
        return amp_error_set(&client->error, AMP_ENOMEM, NULL, "There is no memory for the layout of the model.");
    int rc = 0;
    while (rc == 0 && made < count) {
        rc = open_part(client, model_name, load, made, number, &parts[made]);
        made++;
    }
    if (rc == 0) {
        for (uint32_t k = 1; k < count; k++)
            start_part(&parts[k]);
        (void)run_part(&parts[0]);
        for (uint32_t k = 1; k < count; k++)
            if (parts[k].started)
                (void)pthread_join(parts[k].thread, NULL);
        rc = take_parts(client, parts, count, already);
    }
    for (uint32_t k = 0; k < made; k++)
        close_part(&parts[k]);
    free(parts);
    return rc;
}

/* While the shards tell each other what they hold, the state is what the model may have had: its values may be lost. */
static bool has_values(const struct ampd_msg_model_status *status)
{
    enum ampd_msg_model_state state = status->state;
    if (status->recovering)
        return false;
    return state == AMPD_MSG_MODEL_STATE_WAITING || state == AMPD_MSG_MODEL_STATE_RUNNING ||
           state == AMPD_MSG_MODEL_STATE_STALLED || state == AMPD_MSG_MODEL_STATE_DONE;
}

int ampclient_load(struct ampclient *client, const char *model_name, const float *const *values, uint32_t values_count,
                   bool *already)
{
    return ampclient_load_sized(client, model_name, values, NULL, values_count, already);
}

int ampclient_load_sized(struct ampclient *client, const char *model_name, const float *const *values,
                         const uint64_t *elements, uint32_t values_count, bool *already)
{
    if (client == NULL)
        return AMP_EINVAL;
    ampclient_begin(client);
    int rc = ampclient_find_shards(client);
    if (rc != 0)
        return rc;
    for (uint32_t i = 0; values == NULL || i < values_count; i++)
        if (values == NULL || values[i] == NULL)
            return amp_error_set(&client->error, AMP_EINVAL, NULL,
                                 "The values of parameter %u are NULL; give values for every parameter.", i);
    struct ampd_msg_get_model_response model;
    rc = ampclient_get_model(client, model_name, &model);
    if (rc != 0)
        return rc;
    struct load load = {.values = values};
    bool was_there = has_values(&model.status);
    rc = open_load(client, &model, elements, values_count, &load);
    if (rc == 0) {
        /* Values once loaded stay: there is no need to send others. */
        if (!was_there)
            rc = run_load(client, model_name, &load, &was_there);
        if (!client->link->broken)
            ampclient_flat_close(&load.flat);
    }
    ampd_msg_get_model_response_free(&model);
    if (rc == 0 && already != NULL)
        *already = was_there;
    return rc;
}
