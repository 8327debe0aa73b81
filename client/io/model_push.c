/*
 * The stream of a push: blocks in the order in which the core names them, each from where it lies when it is in one
 * piece; no more than arpc's high-water mark is queued, so that a slow server holds memory of the user, not copies of
 * it.
 */
#include "amp/copy.h"
#include "base/crc32c.h"
#include "client/io/attach.h"
#include "client/io/model_call.h"

#include <stdlib.h>
#include <string.h>

#define BLOCKS_FIRST 16 /* room for block numbers at first; it doubles, up to the blocks of the model */

static int send_block(struct ampclient_core_call *call, uint64_t index)
{
    struct ampclient_model *model = call->model;
    size_t size = 0;
    const void *data = ampclient_core_block(model->core, index, model->scratch, &size);
    struct ampd_block block = {.index = (uint32_t)index, .crc32c = amp_crc32c(0, data, size), .size = (uint32_t)size};
    uint8_t head[AMPD_BLOCK_HEAD_MAX];
    size_t head_size = ampd_block_head_encode(&block, head);
    if (data == model->scratch)
        return arpc_call_send(call->call, head, head_size, data, size, NULL, NULL);
    int rc = arpc_call_send(call->call, head, head_size, data, size, ampclient_model_sent, model);
    if (rc == 0)
        model->borrowed++;
    return rc;
}

/* A message that says which blocks are in the slot, until it has left. */
struct announcement {
    struct ampclient_model *model;
    uint64_t call;
    struct amp_buf message;
};

static void announcement_free(struct announcement *announcement)
{
    amp_buf_close(&announcement->message);
    free(announcement);
}

static void on_announced(void *arg)
{
    struct announcement *announcement = arg;
    struct ampclient_model *model = announcement->model;
    (void)pthread_mutex_lock(&model->client->link->mutex);
    struct ampclient_core_call *call = ampclient_call_find(model, announcement->call);
    if (call != NULL) {
        call->push.announcing = false;
        ampclient_link_kick(model->client->link); /* not from here: the stream may be in the middle of its own end */
    }
    (void)pthread_mutex_unlock(&model->client->link->mutex);
    announcement_free(announcement);
    ampclient_model_sent(model);
}

/* Announces blocks at once (on_announced), so that the server reads these while the next ones are written. */
static int tell_placed(struct ampclient_core_call *call, const struct ampd_msg_block_range *range)
{
    struct announcement *announcement = calloc(1, sizeof *announcement);
    if (announcement == NULL)
        return AMP_ENOMEM;
    *announcement = (struct announcement){.model = call->model, .call = call->number};
    struct amp_buf body;
    amp_buf_init(&body, AMPD_BLOCK_PART_MAX);
    amp_buf_init(&announcement->message, AMPD_BLOCK_PART_MAX);
    int rc = ampd_msg_block_range_encode(range, &body);
    if (rc == 0)
        rc = ampd_block_part_encode(AMPD_BLOCK_PLACED, &body, &announcement->message);
    if (rc == 0)
        rc = arpc_call_send(call->call, NULL, 0, announcement->message.data, announcement->message.size, on_announced,
                            announcement);
    amp_buf_close(&body);
    if (rc != 0) {
        announcement_free(announcement);
        return rc;
    }
    call->push.announcing = true;
    call->model->borrowed++;
    return 0;
}

/* Puts consecutive blocks into the slot and announces them. False: they cannot be placed, and must be sent. */
static bool place_blocks(struct ampclient_core_call *call, int *rc)
{
    struct ampclient_model *model = call->model;
    enum amp_dtype dtype = ampclient_core_push_dtype(model->core);
    struct ampd_msg_block_range range = {.first = (uint32_t)call->push.blocks[call->push.next]};
    while (range.count < AMPCLIENT_PLACED_MAX && call->push.next < call->push.count &&
           call->push.blocks[call->push.next] == (uint64_t)range.first + range.count) {
        uint64_t block = call->push.blocks[call->push.next];
        uint8_t *place = ampclient_attached_place(model, block, dtype);
        if (place == NULL)
            break;
        size_t size = 0;
        const void *data = ampclient_core_block(model->core, block, model->scratch, &size);
        if (data != place) /* else backward has written it there */
            amp_copy_streamed(place, data, size);
        range.count++;
        call->push.next++;
    }
    if (range.count == 0)
        return false;
    *rc = tell_placed(call, &range);
    return true;
}

void ampclient_push_feed(struct ampclient_core_call *call)
{
    int rc = 0;
    if (call->cancelled || call->error.code != 0)
        return;
    while (rc == 0 && !call->push.announcing && call->push.next < call->push.count &&
           arpc_call_queued(call->call) < ARPC_HIGH_WATER)
        if (!place_blocks(call, &rc))
            rc = send_block(call, call->push.blocks[call->push.next++]);
    if (rc == 0 && call->push.end && call->push.next == call->push.count) {
        call->push.end = false;
        rc = arpc_call_send(call->call, call->push.trailer.data, call->push.trailer.size, NULL, 0, NULL, NULL);
        arpc_call_half_close(call->call);
    }
    if (rc != 0 && rc != AMP_ESTATE) /* over: `closed` comes and says why */
        ampclient_call_give_up(call, rc, "The gradients could not be sent; free some memory.");
}

static int append(struct ampclient_core_call *call, uint64_t block)
{
    if (call->push.count == call->push.capacity) {
        size_t capacity = call->push.capacity > 0 ? 2 * call->push.capacity : BLOCKS_FIRST;
        uint64_t *blocks = realloc(call->push.blocks, capacity * sizeof *blocks);
        if (blocks == NULL)
            return AMP_ENOMEM;
        call->push.blocks = blocks;
        call->push.capacity = capacity;
    }
    call->push.blocks[call->push.count++] = block;
    call->push.undrained = true;
    return 0;
}

void ampclient_push_blocks(struct ampclient_core_call *call, const struct ampclient_range *blocks)
{
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < blocks->count; i++)
        rc = append(call, blocks->first + i);
    if (rc != 0)
        ampclient_call_give_up(call, rc, "There is no memory for the list of blocks.");
}

_Static_assert(AMPCLIENT_METRICS_MAX == AMPD_MSG_METRICS_MAX, "the trailer has room for all metrics");

static void put_metrics(const struct ampclient_core_metrics *metrics, struct ampd_msg_push_trailer *trailer)
{
    trailer->has_loss = metrics->has_loss;
    trailer->loss = metrics->loss;
    trailer->metrics_count = metrics->count;
    for (uint32_t i = 0; i < metrics->count; i++) {
        memcpy(trailer->metrics[i].name, metrics->items[i].name, sizeof trailer->metrics[i].name);
        trailer->metrics[i].value = metrics->items[i].value;
    }
}

static int encode_trailer(const struct ampclient_output *output, struct amp_buf *out)
{
    struct ampd_msg_push_trailer trailer = {.absent_count = output->u.end.absent_count};
    if (trailer.absent_count > AMPD_MSG_PARAMETERS_MAX)
        return AMP_EINVAL;
    for (uint32_t i = 0; i < trailer.absent_count; i++)
        trailer.absent[i] = output->u.end.absent[i];
    put_metrics(output->u.end.metrics, &trailer);
    struct amp_buf body;
    amp_buf_init(&body, AMPD_BLOCK_PART_MAX);
    int rc = ampd_msg_push_trailer_encode(&trailer, &body);
    if (rc == 0)
        rc = ampd_block_part_encode(AMPD_BLOCK_TRAILER, &body, out);
    amp_buf_close(&body);
    return rc;
}

void ampclient_push_end(struct ampclient_core_call *call, const struct ampclient_output *output)
{
    int rc = encode_trailer(output, &call->push.trailer);
    if (rc != 0) {
        ampclient_call_give_up(call, rc, "The end of the push could not be made; free some memory.");
        return;
    }
    call->push.end = true;
}
