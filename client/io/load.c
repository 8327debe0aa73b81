/*
 * ampclient_load: the first values of a model, as a stream of fp32 blocks. ampclient_load_full: also the moments, as
 * further blocks of the same form, then the user states, each a block of its own.
 *
 * A block that lies in one parameter is sent from where it lies; one that spans parameters or pads is gathered. The
 * server takes one loader at a time and lets others wait with their bodies unread, so the stream stays below arpc's
 * high-water mark. A load that was cut off is begun again from its first block: the server keeps nothing of half a
 * load.
 *
 * Of several shards each gets its own blocks, all at the same time and under one number: no shard answers before all
 * have theirs. So each but the first has a thread, for as long as the load takes.
 */
#include "amp/optim.h"
#include "base/crc32c.h"
#include "base/thread.h"
#include "client/core/flat_layout.h"
#include "client/io/client.h"
#include "client/io/methods.h"
#include "client/io/client_spec.h"
#include "proto/block.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>

/* A shard hears of a new model a moment after it was created. */
#define CREATED_MS 10000

/*
 * Bytes in a millisecond (8 MiB/s) below which a network counts as too slow for a load. The values of a model take as
 * long as they are large, so a load has the time that its bytes take at this rate, besides the limit of a call.
 */
#define LEAST_BYTES_MS 8192

struct load {
    struct ampclient_core_layout flat;
    const struct ampclient_load_source *source;
    uint32_t planes;     /* of them: 1 for values alone */
    uint32_t states;     /* ranks that may have a user state; 0 for values alone */
    float *scratch;      /* one block */
    uint64_t first, end; /* blocks of this shard */
    uint64_t next;       /* what is sent next: 0 to planes * (end - first), then the states */
};

/* Where one part has failed, no other can succeed: the server waits for all, and each would end at its deadline. */
struct failure {
    bool any;                /* with the mutex of the link; ends the other parts' calls */
    const struct part *part; /* the first that has failed, which says why; set by its thread */
    uint32_t helpers;        /* with the mutex of the link: threads of parts that have not ended */
};

/* What goes to one shard. */
struct part {
    struct failure *failure; /* shared by all parts */
    struct ampclient *client;
    const char *model_name;
    struct load load;
    struct amp_buf header;
    uint32_t shard;
    pthread_t thread;
    bool started;
    int code;
    struct ampclient_reply reply;
};

static int send_block(struct load *load, struct arpc_call *call, uint32_t plane, uint64_t index)
{
    const void *data = ampclient_core_layout_values(&load->flat, (const void *const *)load->source->planes[plane],
                                                    sizeof(float), index, load->scratch);
    size_t size = ampclient_core_layout_block_elements(&load->flat, index) * sizeof(float);
    struct ampd_block block = {.index = (uint32_t)(plane * load->flat.blocks + index),
                               .crc32c = amp_crc32c(0, data, size),
                               .size = (uint32_t)size};
    uint8_t head[AMPD_BLOCK_HEAD_MAX];
    size_t head_size = ampd_block_head_encode(&block, head);
    if (data == load->scratch)
        return arpc_call_send(call, head, head_size, data, size, NULL, NULL);
    return ampclient_rpc_send_view(call, head, head_size, data, size);
}

static int send_state(const struct load *load, struct arpc_call *call, uint32_t rank)
{
    const uint8_t *data = load->source->full->user_states[rank];
    uint32_t size = load->source->full->user_states_sizes[rank];
    struct ampd_block block = {.index = (uint32_t)(load->planes * load->flat.blocks + rank),
                               .crc32c = amp_crc32c(0, data, size),
                               .size = size};
    uint8_t head[AMPD_BLOCK_HEAD_MAX];
    if (size == 0)
        return 0;
    return ampclient_rpc_send_view(call, head, ampd_block_head_encode(&block, head), data, size);
}

static int send_next(struct load *load, struct arpc_call *call)
{
    uint64_t blocks = load->end - load->first;
    if (load->next < load->planes * blocks)
        return send_block(load, call, (uint32_t)(load->next / blocks), load->first + load->next % blocks);
    return send_state(load, call, (uint32_t)(load->next - load->planes * blocks));
}

/* Loop's thread; the waiting thread touches nothing of it meanwhile. */
static int feed(void *arg, struct arpc_call *call)
{
    struct load *load = arg;
    uint64_t all = load->planes * (load->end - load->first) + load->states;
    while (load->next < all && arpc_call_queued(call) < ARPC_HIGH_WATER) {
        int rc = send_next(load, call);
        if (rc != 0)
            return rc;
        load->next++;
    }
    return load->next == all ? 1 : 0;
}

static void restart(void *arg)
{
    struct load *load = arg;
    load->next = 0;
}

/* The layout, from the specification that the server has. */
static int open_load(struct ampclient *client, const struct ampd_msg_get_model_response *model, struct load *load)
{
    const uint64_t *elements = load->source->elements;
    uint32_t count = (uint32_t)model->spec.parameters.count;
    if (count != load->source->count)
        return amp_error_set(&client->error, AMP_EINVAL, NULL, "%s is %u, but the model has %u parameters.",
                             load->source->full == NULL ? "values_count" : "parameters_count", load->source->count,
                             count);
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
                                 "The model has been created again with other shapes meanwhile; try again.");
        }
    /* Sizes of blocks are bounded by what one message can carry. */
    if (rc == 0 && model->block_elements > AMPD_BLOCK_DATA_MAX / sizeof(float))
        rc = AMP_EINVAL;
    const struct ampclient_join_answer layout = {
        .parameters_count = count, .elements = sizes, .block_elements = model->block_elements};
    if (rc == 0)
        rc = ampclient_core_layout_init(&load->flat, &layout);
    free(sizes);
    if (rc == 0)
        return 0;
    if (rc == AMP_ENOMEM)
        return amp_error_set(&client->error, rc, NULL, "There is no memory for the layout of the model.");
    return amp_error_set(&client->error, AMP_EINTERNAL, NULL,
                         "The server describes an impossible model: is it an ampd?");
}

/* How many moments the model's optimizer keeps, and whether they are given; and for how many ranks states may be. */
static int open_full(struct ampclient *client, const struct ampd_msg_get_model_response *model, struct load *load)
{
    const struct ampd_msg_optimizer_spec *optimizer = &model->spec.optimizer;
    const struct amp_optim_config config = {.optimizer = (enum amp_optimizer)optimizer->kind,
                                            .momentum = optimizer->momentum,
                                            .centered = optimizer->centered};
    const struct ampclient_full *full = load->source->full;
    const float *const *const moments[] = {full->m, full->v};
    unsigned kept = amp_optim_config_moments(&config);
    for (unsigned i = 0; i < 2; i++)
        if ((moments[i] != NULL) != (i < kept))
            return amp_error_set(&client->error, AMP_EINVAL, NULL,
                                 "%s is %s, but %s, the model's optimizer, keeps %u moments for each element.",
                                 i == 0 ? "m" : "v", moments[i] != NULL ? "given" : "NULL",
                                 amp_optim_name(config.optimizer), kept);
    load->planes = 1 + kept;
    load->states = full->user_states == NULL ? 0 : full->user_states_count;
    if (load->states > model->spec.world_size)
        load->states = model->spec.world_size;
    if (load->states > 0 && full->user_states_sizes == NULL)
        return amp_error_set(&client->error, AMP_EINVAL, NULL,
                             "user_states_sizes is NULL; give the size of each of user_states.");
    for (uint32_t rank = 0; rank < load->states; rank++)
        if (full->user_states_sizes[rank] > AMPD_MSG_USER_STATE_MAX ||
            (full->user_states_sizes[rank] > 0 && full->user_states[rank] == NULL))
            return amp_error_set(&client->error, AMP_EINVAL, NULL,
                                 "The user state of rank %u is NULL or longer than %d bytes.", rank,
                                 AMPD_MSG_USER_STATE_MAX);
    return 0;
}

static void fill_state(const struct ampclient_full *full, struct ampd_msg_load_header *header)
{
    header->has_state = true;
    header->state.step = full->step;
    header->state.version = full->version;
    header->state.learning_rate = full->learning_rate;
    header->state.has_record = true;
    header->state.record = (struct ampd_msg_scale_record){.scale = full->scale,
                                                          .scale_id = full->scale_id,
                                                          .growth_tracker = full->growth_tracker,
                                                          .hysteresis_left = full->hysteresis_left,
                                                          .consecutive_overflows = full->consecutive_overflows,
                                                          .total_overflows = full->total_overflows,
                                                          .steps_since_overflow = full->steps_since_overflow,
                                                          .attempted = full->attempted,
                                                          .applied = full->applied,
                                                          .skipped = full->skipped};
}

static int encode_header(struct ampclient *client, const char *model_name, const struct ampclient_full *full,
                         uint32_t shard, uint64_t number, struct amp_buf *out)
{
    struct ampd_msg_load_header header = {.shard = shard, .load = number};
    if (full != NULL)
        fill_state(full, &header);
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

static void tell_failure(struct part *part)
{
    if (part->code != 0 && ampclient_link_stop(part->client->link, &part->failure->any))
        part->failure->part = part;
}

/* Any thread: it waits for what the loop's thread does. */
static void run_part(struct part *part)
{
    const struct ampclient_options *options = &part->client->options;
    const struct load *load = &part->load;
    uint64_t bytes = load->planes * (load->end - load->first) * load->flat.block_elements * sizeof(float);
    struct ampclient_request request = {.path = AMPCLIENT_PARAMETER_SERVICE "Load",
                                        .model = part->model_name,
                                        .shard = part->shard,
                                        .body = &part->header,
                                        .timeout_ms = options->call_timeout_ms + bytes / LEAST_BYTES_MS,
                                        .feed_cb = feed,
                                        .arg = &part->load,
                                        .stop = &part->failure->any};
    struct ampclient_link *link = part->client->link;
    for (uint64_t until = ampclient_now_ms() + CREATED_MS;;) {
        part->code = ampclient_rpc_retry(link, &request, options->reconnect_timeout_ms, restart, &part->reply);
        if (part->shard == 0 || part->code != AMP_ENOTFOUND || ampclient_now_ms() >= until)
            break;
        ampclient_reply_close(&part->reply);
        ampclient_link_pause(link, AMPCLIENT_RPC_PAUSE_MS);
    }
    tell_failure(part);
}

static void count_helpers(struct part *part, uint32_t more, uint32_t less)
{
    struct ampclient_link *link = part->client->link;
    (void)pthread_mutex_lock(&link->mutex);
    part->failure->helpers += more;
    part->failure->helpers -= less;
    (void)pthread_cond_broadcast(&link->wake);
    (void)pthread_mutex_unlock(&link->mutex);
}

static void *help(void *arg)
{
    run_part(arg);
    count_helpers(arg, 0, 1);
    return NULL;
}

/* The user's thread has ended its own part: it still asks interrupt_cb, which ends the calls of the others. */
static void await_helpers(struct ampclient_link *link, const struct failure *parts)
{
    uint64_t never = UINT64_MAX / 2;
    (void)pthread_mutex_lock(&link->mutex);
    while (parts->helpers > 0)
        (void)ampclient_link_wait(link, &never);
    (void)pthread_mutex_unlock(&link->mutex);
}

static void start_part(struct part *part)
{
    count_helpers(part, 1, 0);
    part->started = amp_thread_start(&part->thread, NULL, help, part) == 0;
    if (part->started)
        return;
    count_helpers(part, 0, 1);
    part->code =
        amp_error_set(&part->reply.error, AMP_EIO, NULL, "No thread can be made; raise the limit of processes.");
    tell_failure(part);
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
                     uint64_t number, struct failure *failure, struct part *part)
{
    *part =
        (struct part){.failure = failure, .client = client, .model_name = model_name, .load = *whole, .shard = shard};
    amp_buf_init(&part->header, AMPD_MSG_SIZE_MAX);
    ampclient_core_layout_shard(&whole->flat, shard, ampclient_shards(client), &part->load.first, &part->load.end);
    part->load.scratch = malloc(whole->flat.block_elements * sizeof *part->load.scratch);
    if (part->load.scratch == NULL)
        return amp_error_set(&client->error, AMP_ENOMEM, NULL, "There is no memory for the layout of the model.");
    return encode_header(client, model_name, whole->source->full, shard, number, &part->header);
}

/* The threads are at their ends, or the link is broken and nothing is freed that it may still use. */
static void close_part(struct part *part)
{
    ampclient_reply_close(&part->reply);
    if (part->client->link->broken)
        return;
    amp_buf_close(&part->header);
    free(part->load.scratch);
}

/* The part that failed first; else what shard 0 says. */
static int take_parts(struct ampclient *client, const struct part *shard_0, bool *already)
{
    const struct part *failed = shard_0->failure->part;
    if (failed != NULL) {
        client->error = failed->reply.error;
        return failed->code;
    }
    struct ampd_msg_load_response response;
    const struct amp_buf *body = &shard_0->reply.body;
    int rc = ampclient_bad_answer(
        &client->error, ampd_msg_load_response_decode(&response, body->data, body->size, &client->error), "Load");
    *already = rc == 0 && response.already_loaded;
    return rc;
}

static int run_load(struct ampclient *client, const char *model_name, const struct load *load, bool *already)
{
    uint32_t count = ampclient_shards(client), made = 0;
    uint64_t number = count > 1 ? load_number() : 0;
    struct failure failure = {0};
    struct part *parts = calloc(count, sizeof *parts);
    if (parts == NULL)
        return amp_error_set(&client->error, AMP_ENOMEM, NULL, "There is no memory for the layout of the model.");
    int rc = 0;
    while (rc == 0 && made < count) {
        rc = open_part(client, model_name, load, made, number, &failure, &parts[made]);
        made++;
    }
    if (rc == 0) {
        for (uint32_t k = 1; k < count; k++)
            start_part(&parts[k]);
        run_part(&parts[0]);
        await_helpers(client->link, &failure);
        for (uint32_t k = 1; k < count; k++)
            if (parts[k].started)
                (void)pthread_join(parts[k].thread, NULL);
        rc = take_parts(client, &parts[0], already);
    }
    for (uint32_t k = 0; k < made; k++)
        close_part(&parts[k]);
    if (!client->link->broken)
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

/* An array for each parameter. */
static int check_plane(struct ampclient *client, const float *const *plane, uint32_t count, const char *what)
{
    for (uint32_t i = 0; i < count; i++)
        if (plane == NULL || plane[i] == NULL)
            return amp_error_set(&client->error, AMP_EINVAL, NULL,
                                 "The %s of parameter %u are NULL; give %s for every parameter.", what, i, what);
    return 0;
}

int ampclient_load_from(struct ampclient *client, const char *model_name, const struct ampclient_load_source *source,
                        bool *already)
{
    ampclient_begin(client);
    int rc = ampclient_find_shards(client);
    if (rc == 0)
        rc = check_plane(client, source->planes[0], source->count, "values");
    for (unsigned i = 1; rc == 0 && i < 3; i++)
        if (source->planes[i] != NULL)
            rc = check_plane(client, source->planes[i], source->count, "moments");
    struct ampd_msg_get_model_response model;
    if (rc == 0)
        rc = ampclient_get_model(client, model_name, &model);
    if (rc != 0)
        return rc;
    struct load load = {.source = source, .planes = 1};
    bool was_there = has_values(&model.status);
    rc = open_load(client, &model, &load);
    if (rc == 0) {
        if (source->full != NULL)
            rc = open_full(client, &model, &load);
        /* Values that were loaded stay: there is no need to send others. */
        if (rc == 0 && !was_there)
            rc = run_load(client, model_name, &load, &was_there);
        if (!client->link->broken)
            ampclient_core_layout_close(&load.flat);
    }
    ampd_msg_get_model_response_free(&model);
    if (rc == 0 && already != NULL)
        *already = was_there;
    return rc;
}

int ampclient_load(struct ampclient *client, const char *model_name, const float *const *values, uint32_t values_count,
                   bool *already)
{
    const struct ampclient_load_source source = {.planes = {values}, .count = values_count};
    return client == NULL ? AMP_EINVAL : ampclient_load_from(client, model_name, &source, already);
}

int ampclient_load_full(struct ampclient *client, const char *model_name, const struct ampclient_full *full,
                        bool *already)
{
    if (client == NULL)
        return AMP_EINVAL;
    ampclient_begin(client);
    struct ampclient_full given = AMPCLIENT_FULL_INIT;
    if (full == NULL)
        return amp_error_set(&client->error, AMP_EINVAL, NULL, "full is NULL; give what the model was.");
    int rc = ampclient_take_struct(&given, sizeof given, full, "fields of full", &client->error);
    if (rc != 0)
        return rc;
    const struct ampclient_load_source source = {
        .planes = {given.values, given.m, given.v}, .count = given.parameters_count, .full = &given};
    return ampclient_load_from(client, model_name, &source, already);
}
