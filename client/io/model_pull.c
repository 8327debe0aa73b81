/*
 * The stream of a pull: blocks go from the receive buffer straight to where the core wants them, with their checksums
 * computed on the way.
 */
#include "amp/copy.h"
#include "client/io/attach.h"
#include "client/io/model_call.h"

/*
 * Tensors of this many bytes or more are written past the caches. That is twice as fast as fetching each line first,
 * and little of so large a tensor would still be in a core's cache when the pull is over.
 */
#define STREAMED_MIN ((uint64_t)4 << 20)

static struct ampclient_core_call *call_of(void *arg)
{
    return arg;
}

static int peer_fault(struct amp_error *error, const char *what)
{
    return amp_error_set(error, AMP_EINTERNAL, NULL, "The server's answer to Pull has %s; are versions mixed?", what);
}

/* Gives the core an event. The core may cancel this very call: then the reader has to stop. */
static int tell(struct ampclient_core_call *call, const struct ampclient_event *event)
{
    ampclient_model_event(call->model, event);
    return call->cancelled || call->model->stopped ? AMP_ECANCELLED : 0;
}

/*
 * The mapped copy of the server that has the version; NULL: none is mapped any more. A pull that was begun ahead may
 * come here while the user's thread maps other copies; it is cancelled then.
 */
static const uint8_t *copy_of(const struct ampclient_core_call *call, uint64_t version)
{
    struct ampclient_link *link = call->model->client->link;
    (void)pthread_mutex_lock(&link->mutex);
    const struct ampclient_model *model = call->model;
    const uint8_t *copy = ampclient_core_in_memory(model->core) ? model->shared->copies[version % 2] : NULL;
    (void)pthread_mutex_unlock(&link->mutex);
    return copy;
}

/* Bytes of a block of this pull; 0: the header has not announced it, or the model has no such block. With the mutex. */
static size_t block_size(const struct ampclient_core_call *call, uint64_t index)
{
    if (index < call->pull.first || index - call->pull.first >= call->pull.count ||
        index >= ampclient_core_blocks(call->model->core))
        return 0;
    return ampclient_core_block_elements(call->model->core, index) * amp_dtype_size(call->pull.wanted.dtype);
}

static size_t block_size_now(const struct ampclient_core_call *call, uint64_t index)
{
    (void)pthread_mutex_lock(&call->model->client->link->mutex);
    size_t size = block_size(call, index);
    (void)pthread_mutex_unlock(&call->model->client->link->mutex);
    return size;
}

/*
 * Blocks are in the mapped copy: they stay there, or are copied to the user's memory, which ends with the last element.
 */
static int take_placed(struct ampclient_core_call *call, const uint8_t *data, size_t size, struct amp_error *error)
{
    struct ampd_msg_block_range range;
    struct ampclient_out_pull *wanted = &call->pull.wanted;
    int rc = ampd_msg_block_range_decode(&range, data, size, error);
    if (rc != 0)
        return rc;
    if (!wanted->in_memory || range.first < call->pull.first || range.first - call->pull.first > call->pull.count ||
        range.count > call->pull.count - (range.first - call->pull.first))
        return peer_fault(error, "blocks that its header did not announce");
    size_t last = range.count > 0 ? block_size_now(call, (uint64_t)range.first + range.count - 1) : 0;
    if (range.count > 0 && last == 0)
        return peer_fault(error, "blocks that the model does not have");
    if (wanted->memory != NULL && range.count > 0)
        amp_copy_streamed(wanted->memory + range.first * wanted->stride, call->pull.copy + range.first * wanted->stride,
                          (range.count - 1) * wanted->stride + last);
    for (uint64_t b = range.first; rc == 0 && b < (uint64_t)range.first + range.count; b++) {
        struct ampclient_event event = {.type = AMPCLIENT_EVENT_PULL_BLOCK, .call = call->number, .u.block = b};
        rc = tell(call, &event);
    }
    return rc;
}

static int on_part(void *arg, enum ampd_block_part part, const uint8_t *data, size_t size, struct amp_error *error)
{
    struct ampclient_core_call *call = call_of(arg);
    struct ampd_msg_pull_header header;
    if (part == AMPD_BLOCK_PLACED)
        return take_placed(call, data, size, error);
    int rc = ampd_msg_pull_header_decode(&header, data, size, error);
    if (rc != 0)
        return rc;
    if ((enum amp_dtype)header.dtype != call->pull.wanted.dtype)
        return peer_fault(error, "another dtype than the model");
    const struct ampclient_out_pull *wanted = &call->pull.wanted;
    if (!header.unchanged && wanted->block_count > 0 &&
        (header.first_block != wanted->first_block || header.block_count != wanted->block_count))
        return peer_fault(error, "other blocks than those that were asked for");
    if (!header.unchanged) {
        call->pull.first = header.first_block;
        call->pull.count = header.block_count;
        if (call->pull.count * call->pull.wanted.stride >= STREAMED_MIN)
            ampd_block_reader_copy_by(&call->pull.reader, amp_copy_streamed);
    }
    if (wanted->in_memory && (call->pull.copy = copy_of(call, header.version)) == NULL)
        return amp_error_set(error, AMP_EUNAVAILABLE, NULL, "The memory that was shared with the server is gone.");
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PULL_HEADER,
                                    .call = call->number,
                                    .u.header = {.epoch = header.epoch,
                                                 .step = header.step,
                                                 .version = header.version,
                                                 .scale_id = header.scale_id,
                                                 .scale = header.scale,
                                                 .place = wanted->memory == NULL ? call->pull.copy : NULL}};
    return tell(call, &event);
}

static int on_begin(void *arg, const struct ampd_block *block, uint8_t **destination, struct amp_error *error)
{
    struct ampclient_core_call *call = call_of(arg);
    size_t size = block_size_now(call, block->index);
    if (size == 0)
        return peer_fault(error, "a block that its header did not announce");
    if (size != block->size)
        return peer_fault(error, "a block of a wrong size");
    if (call->pull.wanted.memory != NULL) /* else the block goes nowhere */
        *destination =
            call->pull.wanted.memory + (block->index - call->pull.wanted.first_block) * call->pull.wanted.stride;
    return 0;
}

static int on_end(void *arg, const struct ampd_block *block, bool intact, struct amp_error *error)
{
    struct ampclient_core_call *call = call_of(arg);
    if (!intact)
        return amp_error_set(error, AMP_EDATALOSS, "BLOCK_CHECKSUM",
                             "Block %u was damaged on its way here: its checksum differs.", block->index);
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PULL_BLOCK, .call = call->number, .u.block = block->index};
    return tell(call, &event);
}

static const struct ampd_block_reader_ops reader_ops = {.part_cb = on_part, .begin_cb = on_begin, .end_cb = on_end};

void ampclient_pull_begin(struct ampclient_core_call *call, const struct ampclient_out_pull *wanted)
{
    if (wanted != NULL)
        call->pull.wanted = *wanted;
    ampd_block_reader_init(&call->pull.reader, &reader_ops, call, false);
}

/* The first failure of the reader ends the call, and is the error that the core gets. */
static void check(struct ampclient_core_call *call, int rc, const struct amp_error *error)
{
    if (rc == 0 || call->cancelled || call->error.code != 0)
        return;
    call->error = *error;
    call->error.code = ampclient_bad_answer(&call->error, rc, "Pull");
    arpc_call_cancel(call->call, ARPC_STATUS_CANCELLED, "the answer cannot be used");
}

void ampclient_pull_message_begin(struct arpc_call *call, size_t size)
{
    struct ampclient_core_call *own = arpc_call_user(call);
    struct amp_error error = {0};
    check(own, ampd_block_reader_begin(&own->pull.reader, size, &error), &error);
}

void ampclient_pull_message_bytes(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct ampclient_core_call *own = arpc_call_user(call);
    struct amp_error error = {0};
    check(own, ampd_block_reader_bytes(&own->pull.reader, data, size, &error), &error);
}

void ampclient_pull_message_end(struct arpc_call *call)
{
    struct ampclient_core_call *own = arpc_call_user(call);
    struct amp_error error = {0};
    check(own, ampd_block_reader_end(&own->pull.reader, &error), &error);
}
