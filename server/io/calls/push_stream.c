/*
 * Push and Load: client streams whose blocks are read straight into memory that the core has granted.
 *
 * The header becomes an event for the core, and the stream is paused until the core grants memory. Of a Push the core
 * then lists blocks, as wanted or as to be dropped (AMPD_OUT_PUSH_BLOCKS). The data of a wanted block is read into its
 * place in the granted memory, the staging slot, and that of a dropped block is discarded. The first block that is not
 * listed yet is read into a bounce buffer, and the stream is paused until the block is listed; so a stream holds at
 * most one block beside its slot. Of a Load all blocks are wanted.
 *
 * A worker of this host may instead put blocks into its slot of shared memory, and send only their range (`placed`).
 * Once such a block is listed as wanted, a compute thread copies it from there, once (slot_take.h).
 *
 * The core may take the memory back (AMPD_OUT_PUSH_REVOKE), and then waits for AMPD_EVENT_REVOKED. Only the loop and
 * the takes that threads have begun write to the memory. So the event follows in the same turn of the loop if there is
 * no such take, and when the last of them is done otherwise.
 */
#include "server/io/base/handlers.h"

#include "base/assert.h"
#include "base/failpoint.h"
#include "proto/block.h"
#include "proto/msg_step.h"
#include "server/io/base/message_buf.h"
#include "server/io/calls/alive.h"
#include "server/io/calls/attach_memory.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/server_call.h"
#include "server/io/calls/slot_take.h"

#include <stdlib.h>
#include <string.h>

/* Least time between two renewals of a worker's lease because data of its push arrives. */
#define RENEW_MS 1000

/* How the core has listed a block. A wanted block becomes BLOCK_DROPPED once it has arrived, or a take has it. */
enum listing { BLOCK_UNLISTED, BLOCK_WANTED, BLOCK_DROPPED };
/*
 * A bit beside the listing: the block is in the worker's slot of shared memory, and is to be copied once it is wanted.
 */
#define BLOCK_PLACED 0x80
/* Most blocks of one `placed` message: many enough that a message costs little, few enough for other streams' turns. */
#define PLACED_MAX 64

/* A Push or a Load. */
struct receive {
    struct io_server_call call;
    bool is_push;
    struct ampd_block_reader reader; /* parses the messages, and puts data where on_block_begin says */

    /* From the header. renewed_ms and alive belong to a Push. */
    char model[AMPD_NAME_MAX];
    uint64_t renewed_ms;   /* when the lease was last renewed because data arrived; the loop's clock */
    struct io_alive alive; /* has the worker's rank and incarnation, and renews the lease while the call is open */

    /* From the core's grant. Once `revoked` is set, only takes that have begun may use the memory. */
    bool granted, revoked;
    uint32_t model_index;             /* of the model in the core */
    const struct ampd_layout *layout; /* the core's; valid as long as the memory is granted */
    uint64_t first, count;            /* range of blocks that may come, in the flat space */
    uint8_t *memory;                  /* Push: the staging slot, where block `first` begins */
    size_t stride;                    /* bytes from one block to the next, in the slot or in a plane */
    enum amp_dtype dtype;             /* of the blocks; F32 for a Load */
    struct ampd_load_grant load;      /* Load: the planes (masters, moments), and the number of user states */
    uint32_t plane;                   /* Load: plane of the block being read; load.planes_count: it is a user state */
    uint8_t *user_state;              /* Load: AMPD_USER_STATE_MAX bytes for a user state; NULL before the first */
    uint8_t *listings;                /* Push: [count] enum listing, with BLOCK_PLACED; NULL for a Load */
    uint64_t waiting;                 /* blocks that are in the shared slot and have not been copied yet */
    struct amp_list takes;            /* struct take: the copies under way */
    bool ended; /* the client ended the stream while `waiting` was not 0: the core gets PUSH_END when it has become 0 */
    struct ampd_segment_count *counts; /* [layout->segments_max] scratch memory for block_done */

    /* The bounce buffer, for a block that came before it was listed. */
    uint8_t *bounce;                 /* AMPD_BLOCK_DATA_MAX bytes; NULL until the first such block */
    bool bouncing;                   /* the buffer is in use for bounce_block, and the stream is paused */
    bool bounce_full, bounce_intact; /* all data of the block is in the buffer; its checksum matched */
    uint64_t bounce_block;           /* index in the flat space */

    struct ampd_msg_push_trailer *trailer; /* NULL until it has come */
};

/* A take of blocks from a slot into the granted memory. It pins the Push, and refs `attached`. */
struct take {
    struct io_slot_take slot_take;
    struct amp_list node; /* in receive->takes */
    struct receive *receive;
    struct io_server_call *attached; /* the AttachMemory call */
};

static struct receive *receive_of(struct io_server_call *call)
{
    return AMP_CONTAINER(call, struct receive, call);
}

/* ---- blocks ---- */

static uint8_t *place_of(const struct receive *receive, uint64_t block)
{
    uint8_t *memory = receive->is_push ? receive->memory : (uint8_t *)receive->load.planes[receive->plane];
    return memory + (size_t)(block - receive->first) * receive->stride;
}

/*
 * The indexes of a full load's blocks count through the planes (masters, then moments), and then through the ranks'
 * user states. Sets receive->plane, and returns the block with its index within the plane; of a user state it is the
 * rank.
 */
static struct ampd_block find_plane(struct receive *receive, const struct ampd_block *given)
{
    struct ampd_block block = *given;
    receive->plane = 0;
    while (!receive->is_push && receive->plane < receive->load.planes_count && receive->load.world_size > 0 &&
           block.index >= receive->layout->blocks) {
        block.index -= (uint32_t)receive->layout->blocks;
        receive->plane++;
    }
    return block;
}

static bool is_user_state(const struct receive *receive)
{
    return !receive->is_push && receive->load.world_size > 0 && receive->plane == receive->load.planes_count;
}

static enum listing listing_of(const struct receive *receive, uint64_t block)
{
    return receive->listings != NULL ? (enum listing)(receive->listings[block - receive->first] & ~BLOCK_PLACED)
                                     : BLOCK_WANTED;
}

/* A wanted block was read into its place, or, if not intact, its checksum is wrong. Calls into the core, last. */
static void block_done(struct receive *receive, uint64_t block, bool intact)
{
    struct ampd_event event = {.type = receive->is_push ? AMPD_EVENT_PUSH_BLOCK : AMPD_EVENT_LOAD_BLOCK,
                               .u.block = {.block = block, .plane = receive->plane, .bad_checksum = !intact}};
    AMP_FAILPOINT("push.block");
    if (intact) {
        event.u.block.counts_count =
            ampd_receive_block(receive->layout, block, receive->dtype, place_of(receive, block),
                               receive->call.server->options->kernels, receive->counts);
        event.u.block.counts = receive->counts;
        if (receive->listings != NULL)
            receive->listings[block - receive->first] = BLOCK_DROPPED; /* it counts once, whatever comes again */
    }
    AMP_FAILPOINT("push.checked");
    io_server_call_event(&receive->call, &event);
    AMP_FAILPOINT("push.done");
}

static int check_block(const struct receive *receive, const struct ampd_block *block, struct amp_error *error)
{
    if (block->index < receive->first || block->index - receive->first >= receive->count)
        return amp_error_set(error, AMP_EINVAL, "INVALID_TENSOR",
                             "index: block %u is out of range; %s has blocks %llu to %llu", block->index,
                             receive->model, (unsigned long long)receive->first,
                             (unsigned long long)(receive->first + receive->count - 1));
    size_t wanted = ampd_layout_block_elements(receive->layout, block->index) * amp_dtype_size(receive->dtype);
    if (block->size != wanted)
        return amp_error_set(error, AMP_EINVAL, "INVALID_TENSOR",
                             "data: block %u has %u bytes; send %zu, all its elements as %s", block->index, block->size,
                             wanted, amp_dtype_name(receive->dtype));
    return 0;
}

/* Has a block that is not listed yet read into the bounce buffer, and pauses the stream behind it. */
static int begin_bounce(struct receive *receive, const struct ampd_block *block, uint8_t **destination,
                        struct amp_error *error)
{
    AMP_ASSERT(!receive->bouncing); /* the stream is paused as long as it is in use */
    if (receive->bounce == NULL)
        receive->bounce = malloc(AMPD_BLOCK_DATA_MAX);
    if (receive->bounce == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for a block that is early; push again");
    receive->bouncing = true;
    receive->bounce_full = false;
    receive->bounce_block = block->index;
    *destination = receive->bounce;
    arpc_call_pause(receive->call.rpc);
    return 0;
}

static int begin_user_state(struct receive *receive, const struct ampd_block *block, uint8_t **destination,
                            struct amp_error *error)
{
    if (block->index >= receive->load.world_size)
        return amp_error_set(error, AMP_EINVAL, "INVALID_TENSOR",
                             "index: it is that of a user state of rank %u; %s has %u ranks, and %u tensors of %llu "
                             "blocks each come before their states",
                             block->index, receive->model, receive->load.world_size, receive->load.planes_count,
                             (unsigned long long)receive->layout->blocks);
    if (block->size == 0 || block->size > AMPD_USER_STATE_MAX)
        return amp_error_set(error, AMP_EINVAL, "INVALID_TENSOR",
                             "data: the user state of rank %u has %u bytes; one has 1 to %d", block->index, block->size,
                             AMPD_USER_STATE_MAX);
    if (receive->user_state == NULL)
        receive->user_state = malloc(AMPD_USER_STATE_MAX);
    if (receive->user_state == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for a user state; load again");
    *destination = receive->user_state;
    return 0;
}

static int on_block_begin(void *arg, const struct ampd_block *given, uint8_t **destination, struct amp_error *error)
{
    struct receive *receive = arg;
    if (receive->revoked || receive->call.finished)
        return 0;
    if (!receive->granted)
        return amp_error_set(error, AMP_EINTERNAL, NULL, "a block came before its grant");
    const struct ampd_block block = find_plane(receive, given);
    if (is_user_state(receive))
        return begin_user_state(receive, &block, destination, error);
    int rc = check_block(receive, &block, error);
    if (rc != 0)
        return rc;
    switch (listing_of(receive, block.index)) {
    case BLOCK_WANTED:
        *destination = place_of(receive, block.index);
        return 0;
    case BLOCK_DROPPED:
        return 0;
    case BLOCK_UNLISTED:
        break;
    }
    return begin_bounce(receive, &block, destination, error);
}

/* The block in the bounce buffer is whole and listed: copies it into its place. Calls into the core, last. */
static void end_bounce(struct receive *receive)
{
    uint64_t block = receive->bounce_block;
    receive->bouncing = false;
    if (receive->revoked || listing_of(receive, block) == BLOCK_DROPPED)
        return;
    size_t size = ampd_layout_block_elements(receive->layout, block) * amp_dtype_size(receive->dtype);
    if (receive->bounce_intact)
        memcpy(place_of(receive, block), receive->bounce, size);
    block_done(receive, block, receive->bounce_intact);
}

/* A user state has been read: gives it to the core, or refuses it. Calls into the core, last. */
static int end_user_state(struct receive *receive, const struct ampd_block *block, bool intact, struct amp_error *error)
{
    if (!intact)
        return amp_error_set(error, AMP_EDATALOSS, "BLOCK_CHECKSUM",
                             "the user state of rank %u: its CRC32C does not match; load again", block->index);
    struct ampd_event event = {
        .type = AMPD_EVENT_LOAD_STATE,
        .u.load_state = {.rank = block->index, .data = receive->user_state, .size = block->size}};
    io_server_call_event(&receive->call, &event);
    return 0;
}

static int on_block_end(void *arg, const struct ampd_block *given, bool intact, struct amp_error *error)
{
    struct receive *receive = arg;
    if (receive->revoked || receive->call.finished)
        return 0;
    const struct ampd_block block = find_plane(receive, given);
    if (is_user_state(receive))
        return end_user_state(receive, &block, intact, error);
    if (!receive->bouncing) {
        block_done(receive, block.index, intact);
        return 0;
    }
    receive->bounce_full = true;
    receive->bounce_intact = intact;
    if (listing_of(receive, block.index) != BLOCK_UNLISTED)
        end_bounce(receive);
    return 0;
}

/* ---- events about the end ---- */

/* Gives the core the event that the client has ended the stream, with the trailer. Calls into the core, last. */
static void notify_end(struct receive *receive)
{
    struct ampd_event event = {.type = receive->is_push ? AMPD_EVENT_PUSH_END : AMPD_EVENT_LOAD_END};
    struct ampd_metrics metrics;
    if (receive->trailer != NULL) {
        event.u.push_end.absent = receive->trailer->absent;
        event.u.push_end.absent_count = receive->trailer->absent_count;
        metrics = io_metrics(receive->trailer);
        event.u.push_end.metrics = &metrics;
    }
    receive->ended = false;
    AMP_FAILPOINT("push.end");
    if (receive->call.at_core)
        io_server_call_event(&receive->call, &event);
    AMP_FAILPOINT("push.done");
}

/* Does so if the client has ended the stream and the last take is done by now. Calls into the core, last. */
static void notify_end_when_taken(struct receive *receive)
{
    if (receive->ended && receive->waiting == 0 && !receive->revoked && !receive->call.finished)
        notify_end(receive);
}

/* Gives the core REVOKED if no take uses the memory any more. Calls into the core, last. */
static void notify_revoked(struct receive *receive)
{
    struct ampd_event event = {.type = AMPD_EVENT_REVOKED};
    if (amp_list_empty(&receive->takes) && receive->call.at_core)
        io_server_call_event(&receive->call, &event);
}

/* ---- blocks in shared memory ---- */

/* Gives the core an event for each block that was copied, until it revokes or answers. Calls into the core. */
static void notify_taken(struct receive *receive, const struct io_slot_take *taken)
{
    for (uint32_t i = 0; i < taken->whole && !receive->revoked && !receive->call.finished; i++) {
        struct ampd_event event = io_slot_take_event(taken, i);
        io_server_call_event(&receive->call, &event);
        AMP_FAILPOINT("push.done");
    }
    if (taken->whole < taken->count && !receive->revoked)
        io_server_call_refuse(&receive->call, AMP_EINVAL, "INVALID_TENSOR",
                              "placed: the slot of rank %u ends before the end of block %llu", receive->alive.rank,
                              (unsigned long long)(taken->first + taken->whole));
}

/* Frees a take that no thread runs. Its pin may be the last of a closed stream: then calls into the core, last. */
static void take_free(struct take *take)
{
    struct receive *receive = take->receive;
    amp_list_remove(&take->node);
    receive->waiting -= take->slot_take.count;
    io_server_call_unref(take->attached);
    io_slot_take_close(&take->slot_take);
    free(take);
    io_server_call_unpin(&receive->call);
}

static void take_done(struct io_task *task)
{
    struct take *take = AMP_CONTAINER(task, struct take, slot_take.task);
    struct receive *receive = take->receive;
    io_server_call_ref(&receive->call);
    notify_taken(receive, &take->slot_take);
    take_free(take);
    if (receive->revoked)
        notify_revoked(receive);
    else
        notify_end_when_taken(receive);
    io_server_call_unref(&receive->call);
}

/* Makes a take of `count` blocks out of the worker's slot, not queued yet. NULL: the call has been refused. */
static struct take *new_take(struct receive *receive, uint64_t first, uint32_t count)
{
    struct ampd_server *server = receive->call.server;
    size_t at = (size_t)(first - receive->first) * receive->stride;
    struct io_slot slot;
    struct io_server_call *attached =
        io_attached_slot(server, receive->model, receive->alive.rank, receive->alive.incarnation, &slot);
    if (attached == NULL) {
        io_server_call_refuse(&receive->call, AMP_EUNAVAILABLE, "NOT_ATTACHED",
                              "rank %u of %s has no memory attached here; call AttachMemory, or send the blocks",
                              receive->alive.rank, receive->model);
        return NULL;
    }
    struct take *take = malloc(sizeof *take);
    if (take != NULL) {
        *take = (struct take){.receive = receive,
                              .attached = attached,
                              .slot_take = {.task.done_cb = take_done,
                                            .kernels = server->options->kernels,
                                            .layout = receive->layout,
                                            .dtype = receive->dtype,
                                            .first = first,
                                            .count = count,
                                            .stride = receive->stride,
                                            .from = slot.memory + (at < slot.size ? at : 0),
                                            .left = at < slot.size ? slot.size - at : 0,
                                            .to = place_of(receive, first)}};
        take->slot_take.has_terms =
            ampd_core_vote_terms(server->core, receive->model_index, receive->alive.rank, &take->slot_take.terms);
    }
    if (take != NULL && io_slot_take_open(&take->slot_take) == 0)
        return take;
    free(take);
    io_server_call_refuse(&receive->call, AMP_ENOMEM, NULL, "out of memory for this stream; try again");
    return NULL;
}

/* Queues a take of blocks that are wanted and placed, at most IO_TAKE_MAX. False: the call has been refused. */
static bool begin_take(struct receive *receive, uint64_t first, uint32_t count)
{
    struct take *take = new_take(receive, first, count);
    if (take == NULL)
        return false;
    for (uint32_t i = 0; i < count; i++) /* each block counts once, whatever is sent again */
        receive->listings[first + i - receive->first] = BLOCK_DROPPED;
    amp_list_push(&receive->takes, &take->node);
    io_server_call_ref(take->attached);
    io_server_call_pin(&receive->call);
    io_threads_submit(receive->call.server->pools.compute, &take->slot_take.task);
    return true;
}

/* Queues takes of all blocks in [first, end) that are wanted and placed. */
static void take_placed(struct receive *receive, uint64_t first, uint64_t end)
{
    while (first < end) {
        uint32_t count = 0;
        while (first + count < end && count < IO_TAKE_MAX &&
               receive->listings[first + count - receive->first] == (BLOCK_WANTED | BLOCK_PLACED))
            count++;
        if (count > 0 && !begin_take(receive, first, count))
            return;
        first += count > 0 ? count : 1;
    }
}

/* A `placed` message: marks its blocks, and queues takes of those that are listed as wanted already. */
static int place_blocks(struct receive *receive, const uint8_t *data, size_t size, struct amp_error *error)
{
    struct ampd_msg_block_range range;
    int rc = ampd_msg_block_range_decode(&range, data, size, error);
    if (rc != 0 || receive->revoked || receive->call.finished)
        return rc;
    if (!receive->granted)
        return amp_error_set(error, AMP_EINTERNAL, NULL, "a block came before its grant");
    if (range.first < receive->first || range.first - receive->first > receive->count ||
        range.count > receive->count - (range.first - receive->first))
        return amp_error_set(error, AMP_EINVAL, "INVALID_TENSOR",
                             "placed: blocks %u to %llu are out of range; %s has blocks %llu to %llu here", range.first,
                             (unsigned long long)range.first + range.count, receive->model,
                             (unsigned long long)receive->first, (unsigned long long)(receive->first + receive->count));
    if (range.count > PLACED_MAX)
        return amp_error_set(error, AMP_EINVAL, "INVALID_TENSOR", "placed: %u blocks at once; give at most %d",
                             range.count, PLACED_MAX);
    uint64_t end = (uint64_t)range.first + range.count;
    for (uint64_t block = range.first; block < end; block++) {
        uint8_t *listing = &receive->listings[block - receive->first];
        if (*listing == BLOCK_DROPPED || (*listing & BLOCK_PLACED) != 0)
            continue;
        *listing |= BLOCK_PLACED;
        receive->waiting++;
    }
    take_placed(receive, range.first, end);
    return 0;
}

/* Notes how the core has listed some blocks, and queues takes of those that are in the shared slot. */
static void take_listed(struct receive *receive, const struct ampd_blocks *blocks)
{
    uint64_t end = blocks->first + blocks->count;
    for (uint64_t block = blocks->first; block < end; block++) {
        uint8_t *listing = &receive->listings[block - receive->first];
        bool placed = (*listing & BLOCK_PLACED) != 0;
        *listing = blocks->drop ? BLOCK_DROPPED : BLOCK_WANTED;
        if (placed && !blocks->drop)
            *listing |= BLOCK_PLACED;
        receive->waiting -= placed && blocks->drop ? 1 : 0;
    }
    take_placed(receive, blocks->first, end);
}

/* ---- header and trailer ---- */

static int begin_load(struct receive *receive, const uint8_t *data, size_t size, struct amp_error *error)
{
    struct ampd_msg_load_header header;
    int rc = ampd_msg_load_header_decode(&header, data, size, error);
    if (rc == 0)
        rc = io_check_shard(receive->call.server, header.shard, error);
    if (rc != 0)
        return rc;
    if (header.has_state && !header.state.has_record)
        return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD",
                             "state.record: give the loss-scale record of that checkpoint");
    memcpy(receive->model, header.model, sizeof receive->model);
    receive->dtype = AMP_F32;
    const struct ampd_load_base base = {.step = header.state.step,
                                        .version = header.state.version,
                                        .carry.scaler = io_scaler_state(&header.state.record),
                                        .carry.lr = header.state.learning_rate};
    struct ampd_event event = {
        .type = AMPD_EVENT_LOAD_BEGIN,
        .u.load = {.model = receive->model, .loader = header.load, .base = header.has_state ? &base : NULL}};
    io_server_call_event(&receive->call, &event);
    return 0;
}

static int begin_push(struct receive *receive, const uint8_t *data, size_t size, struct amp_error *error)
{
    struct ampd_msg_push_header header;
    int rc = ampd_msg_push_header_decode(&header, data, size, error);
    if (rc != 0)
        return rc;
    memcpy(receive->model, header.model, sizeof receive->model);
    receive->renewed_ms = uv_now(&receive->call.server->loop);
    rc = io_check_shard(receive->call.server, header.shard, error);
    if (rc == 0) {
        io_alive_begin(&receive->alive, &receive->call, receive->model, header.rank,
                       io_incarnation(header.has_incarnation, &header.incarnation));
        struct ampd_event event = {.type = AMPD_EVENT_PUSH_BEGIN,
                                   .u.push = {.model = receive->model,
                                              .epoch = header.epoch,
                                              .step = header.step,
                                              .rank = header.rank,
                                              .incarnation = receive->alive.incarnation,
                                              .scale_id = header.scale_id,
                                              .dtype = (enum amp_dtype)header.dtype,
                                              .weight = header.has_weight ? header.weight : 1.0f,
                                              .has_lr = header.has_learning_rate,
                                              .lr = header.learning_rate,
                                              .user_state = header.user_state.data,
                                              .user_state_size = (uint32_t)header.user_state.size}};
        AMP_FAILPOINT("push.header");
        io_server_call_event(&receive->call, &event);
        AMP_FAILPOINT("push.done");
    }
    ampd_msg_push_header_free(&header);
    return rc;
}

static int take_trailer(struct receive *receive, const uint8_t *data, size_t size, struct amp_error *error)
{
    receive->trailer = malloc(sizeof *receive->trailer);
    if (receive->trailer == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for the trailer; push again");
    int rc = ampd_msg_push_trailer_decode(receive->trailer, data, size, error);
    for (uint32_t i = 1; rc == 0 && i < receive->trailer->absent_count; i++)
        if (receive->trailer->absent[i] <= receive->trailer->absent[i - 1])
            rc = amp_error_set(error, AMP_EINVAL, "INVALID_TENSOR",
                               "trailer.absent: %u follows %u; give each index once, in rising order",
                               receive->trailer->absent[i], receive->trailer->absent[i - 1]);
    return rc;
}

static int on_part(void *arg, enum ampd_block_part part, const uint8_t *data, size_t size, struct amp_error *error)
{
    struct receive *receive = arg;
    if (part == AMPD_BLOCK_TRAILER)
        return take_trailer(receive, data, size, error);
    if (part == AMPD_BLOCK_PLACED)
        return receive->is_push ? place_blocks(receive, data, size, error)
                                : amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "placed: not in a Load");
    int rc = receive->is_push ? begin_push(receive, data, size, error) : begin_load(receive, data, size, error);
    if (rc == 0 && !receive->granted && !receive->call.finished)
        arpc_call_pause(receive->call.rpc);
    return rc;
}

static const struct ampd_block_reader_ops reader_ops = {
    .part_cb = on_part,
    .begin_cb = on_block_begin,
    .end_cb = on_block_end,
};

/* ---- outputs of the core ---- */

static void take_grant(struct receive *receive, const struct ampd_output *output)
{
    if (output->type == AMPD_OUT_LOAD_GRANT) {
        const struct ampd_load_grant *grant = &output->u.load;
        receive->layout = grant->layout;
        receive->first = grant->first;
        receive->count = grant->count;
        receive->load = *grant;
        receive->stride = (size_t)grant->layout->block_elements * sizeof(float);
    } else {
        const struct ampd_push_grant *grant = &output->u.push;
        receive->layout = grant->layout;
        receive->first = grant->first;
        receive->count = grant->count;
        receive->model_index = grant->model;
        receive->memory = grant->memory;
        receive->stride = grant->stride;
        receive->dtype = grant->dtype;
        receive->listings = calloc(grant->count > 0 ? grant->count : 1, 1);
    }
    receive->counts = calloc(receive->layout->segments_max, sizeof *receive->counts);
    if (receive->counts == NULL || (receive->is_push && receive->listings == NULL)) {
        io_server_call_refuse(&receive->call, AMP_ENOMEM, NULL, "out of memory for this stream; try again");
        return;
    }
    receive->granted = true;
    AMP_FAILPOINT("push.granted");
    if (receive->call.rpc != NULL)
        arpc_call_resume(receive->call.rpc);
}

static void take_blocks(struct receive *receive, const struct ampd_blocks *blocks)
{
    if (!receive->granted)
        return; /* take_grant had no memory, and has refused the call */
    AMP_ASSERT(blocks->first >= receive->first && blocks->first + blocks->count <= receive->first + receive->count);
    take_listed(receive, blocks);
    if (receive->ended) {
        notify_end_when_taken(receive);
        return;
    }
    if (!receive->bouncing || listing_of(receive, receive->bounce_block) == BLOCK_UNLISTED)
        return;
    if (receive->call.rpc != NULL)
        arpc_call_resume(receive->call.rpc);
    if (receive->bounce_full)
        end_bounce(receive);
}

/* Gives the memory back: removes takes that no thread has begun, and waits for others. Calls into the core, last. */
static void let_go(struct receive *receive)
{
    io_server_call_ref(&receive->call);
    receive->revoked = true;
    ampd_block_reader_discard(&receive->reader);
    AMP_LIST_EACH(node, next, &receive->takes)
    {
        struct take *take = AMP_CONTAINER(node, struct take, node);
        if (io_threads_take_back(receive->call.server->pools.compute, &take->slot_take.task))
            take_free(take);
    }
    notify_revoked(receive);
    io_server_call_unref(&receive->call);
}

static void receive_output(struct io_server_call *call, const struct ampd_output *output)
{
    struct receive *receive = receive_of(call);
    switch (output->type) {
    case AMPD_OUT_LOAD_GRANT:
    case AMPD_OUT_PUSH_GRANT:
        take_grant(receive, output);
        break;
    case AMPD_OUT_PUSH_BLOCKS:
        take_blocks(receive, &output->u.blocks);
        break;
    case AMPD_OUT_PUSH_REVOKE:
        let_go(receive);
        break;
    default:
        AMP_ASSERT(!"an output that is not for a stream of blocks");
    }
}

static void push_reply(struct io_server_call *call, const struct ampd_reply *reply)
{
    struct amp_buf buf = io_message_buf();
    int64_t model = ampd_core_find(call->server->core, receive_of(call)->model);
    AMP_ASSERT(reply->kind == AMPD_REPLY_STEP && model >= 0);
    int rc = io_encode_step_result(call->server, (uint32_t)model, &reply->u.step, &buf);
    AMP_FAILPOINT("answer.push");
    io_server_call_reply_buf(call, &buf, rc);
    AMP_FAILPOINT("answer.pushed");
}

static void load_reply(struct io_server_call *call, const struct ampd_reply *reply)
{
    AMP_ASSERT(reply->kind == AMPD_REPLY_LOAD);
    struct ampd_msg_load_response response = {.already_loaded = reply->u.load.already_loaded};
    struct amp_buf buf = io_message_buf();
    io_server_call_reply_buf(call, &buf, ampd_msg_load_response_encode(&response, &buf));
}

static void receive_free(struct io_server_call *call)
{
    struct receive *receive = receive_of(call);
    io_alive_end(&receive->alive);
    ampd_block_reader_close(&receive->reader);
    free(receive->listings);
    free(receive->counts);
    free(receive->bounce);
    free(receive->user_state);
    free(receive->trailer);
}

static const struct io_server_call_ops push_ops = {push_reply, receive_output, receive_free};
static const struct io_server_call_ops load_ops = {load_reply, receive_output, receive_free};

/* ---- callbacks of the rpc library ---- */

static void open_stream(struct arpc_call *rpc, bool is_push)
{
    struct io_server_call *call = io_server_call_open(rpc, sizeof(struct receive), is_push ? &push_ops : &load_ops);
    if (call == NULL)
        return;
    receive_of(call)->is_push = is_push;
    amp_list_init(&receive_of(call)->takes);
    ampd_block_reader_init(&receive_of(call)->reader, &reader_ops, receive_of(call), is_push);
}

static void push_started(struct arpc_call *rpc)
{
    open_stream(rpc, true);
}

static void load_started(struct arpc_call *rpc)
{
    open_stream(rpc, false);
}

static void check(struct io_server_call *call, int rc, const struct amp_error *error)
{
    if (rc != 0)
        io_server_call_fail(call, error);
}

static void on_message_begin(struct arpc_call *rpc, size_t size)
{
    struct io_server_call *call = io_server_call_of(rpc);
    struct amp_error error = {0};
    if (call != NULL && !call->finished)
        check(call, ampd_block_reader_begin(&receive_of(call)->reader, size, &error), &error);
}

/* Bytes of a push arrive, so its worker lives: renews the lease. */
static void renew(struct receive *receive)
{
    uint64_t now = uv_now(&receive->call.server->loop);
    if (!receive->is_push || !receive->call.at_core || now - receive->renewed_ms < RENEW_MS)
        return;
    receive->renewed_ms = now;
    io_alive_renew(&receive->alive);
}

static void on_message_bytes(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct io_server_call *call = io_server_call_of(rpc);
    struct amp_error error = {0};
    if (call == NULL || call->finished)
        return;
    renew(receive_of(call));
    check(call, ampd_block_reader_bytes(&receive_of(call)->reader, data, size, &error), &error);
    arpc_call_holds(rpc, receive_of(call)->reader.buffer.size);
}

/* Where the next bytes of a block can be read straight to, and how many; NULL: nowhere. */
static uint8_t *on_message_buffer(struct arpc_call *rpc, size_t *size)
{
    struct io_server_call *call = io_server_call_of(rpc);
    return call != NULL && !call->finished ? ampd_block_reader_place(&receive_of(call)->reader, size) : NULL;
}

static void on_message_end(struct arpc_call *rpc)
{
    struct io_server_call *call = io_server_call_of(rpc);
    struct amp_error error = {0};
    if (call != NULL && !call->finished)
        check(call, ampd_block_reader_end(&receive_of(call)->reader, &error), &error);
    arpc_call_holds(rpc, 0);
}

static void on_half_close(struct arpc_call *rpc)
{
    struct io_server_call *call = io_server_call_of(rpc);
    if (call == NULL || call->finished)
        return;
    struct receive *receive = receive_of(call);
    if (!ampd_block_reader_has_header(&receive->reader)) {
        io_server_call_refuse(call, AMP_EINVAL, "INVALID_FIELD", "header: the stream ended without one; send it first");
        return;
    }
    if (receive->waiting > 0 && !receive->revoked)
        receive->ended = true; /* until the takes are done, as a paused stream waits for its early block */
    else
        notify_end(receive);
}

const struct arpc_handler ampd_handle_push = {
    .started = push_started,
    .message_begin = on_message_begin,
    .message_bytes = on_message_bytes,
    .message_buffer = on_message_buffer,
    .message_end = on_message_end,
    .half_close = on_half_close,
    .closed = io_server_call_closed,
};

const struct arpc_handler ampd_handle_load = {
    .started = load_started,
    .message_begin = on_message_begin,
    .message_bytes = on_message_bytes,
    .message_buffer = on_message_buffer,
    .message_end = on_message_end,
    .half_close = on_half_close,
    .closed = io_server_call_closed,
};
