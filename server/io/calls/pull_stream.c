/*
 * Pull: a stream of blocks of a cast copy, which are sent straight from the copy's memory as the core lists them.
 *
 * The copy is in use until the rpc library has released the last body; only then the core gets CALL_CLOSED. If the core
 * needs the copy before, it revokes it: the rpc library puts zeros in place of the bytes that have not been sent
 * (arpc_call_blank), so that nothing reads the copy any more, and the core gets REVOKED at once. A block with such
 * zeros does not match its checksum, which was sent before it (unless the block is all zeros anyway), and the stream
 * ends with ABORTED (docs/step-protocol.md section 3). So a slow reader never delays an update, and never takes a block
 * of mixed versions for a good one. The status OK is sent only when every body has been sent, so it vouches for all of
 * them.
 */
#include "server/io/base/handlers.h"

#include "base/assert.h"
#include "base/crc32c.h"
#include "proto/block.h"
#include "proto/msg_step.h"
#include "server/io/base/message_buf.h"
#include "server/io/base/server.h"
#include "server/io/calls/alive.h"
#include "server/io/calls/attach_memory.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/server_call.h"

#include <stdlib.h>

struct pull {
    struct io_server_call call;
    struct io_alive alive;
    struct arpc_call *stream;            /* the rpc call, with a reference: bodies may be in use after `closed` */
    uint64_t wanted_first, wanted_count; /* blocks that the request asks for; count 0: from the first to the end */
    struct ampd_pull_grant grant;        /* the core's grant, valid if `granted` */
    bool in_memory;                      /* the worker has the copy mapped, and gets ranges of blocks without data */
    bool granted, revoked;
    uint64_t first, count;           /* blocks of this stream: those of the grant that the request asks for */
    uint64_t sent;                   /* how many of them were given to the rpc library */
    struct ampd_block_range *ranges; /* blocks that were listed and not yet sent, in the order of the listing */
    size_t ranges_at, ranges_count, ranges_room; /* the first range not sent; end of the ranges; allocated elements */
};

static struct pull *pull_of(struct io_server_call *call)
{
    return AMP_CONTAINER(call, struct pull, call);
}

/* ---- sending ---- */

/* Ends the stream with OK once all blocks have been sent and released. */
static void end_when_sent(struct pull *pull)
{
    if (pull->granted && !pull->revoked && pull->sent == pull->count && pull->call.pins == 0)
        io_server_call_end(&pull->call);
}

/* The rpc library's release callback for a block's data. */
static void block_left(void *arg)
{
    struct pull *pull = arg;
    io_server_call_ref(&pull->call);
    io_server_call_unpin(&pull->call);
    end_when_sent(pull);
    io_server_call_unref(&pull->call);
}

/* Sends one block. False: the connection is full, or the call has been refused. */
static bool send_block(struct pull *pull, uint64_t index)
{
    const struct ampd_pull_grant *grant = &pull->grant;
    uint64_t local = index - grant->first;
    const uint8_t *data = grant->memory + (size_t)local * grant->stride;
    uint8_t head[AMPD_BLOCK_HEAD_MAX];
    struct ampd_block block = {
        .index = (uint32_t)index,
        .size = (uint32_t)(ampd_layout_block_elements(grant->layout, index) * amp_dtype_size(grant->dtype))};
    block.crc32c = grant->crcs != NULL ? grant->crcs[local] : amp_crc32c(0, data, block.size);
    size_t head_size = ampd_block_head_encode(&block, head);
    io_server_call_pin(&pull->call);
    int rc = arpc_call_send(pull->call.rpc, head, head_size, data, block.size, block_left, pull);
    if (rc == 0)
        return true;
    pull->call.pins--; /* without block_left, which is not called after a failed send */
    io_server_call_unref(&pull->call);
    if (rc != AMP_EEXHAUSTED)
        io_server_call_refuse(&pull->call, rc, NULL, "a block cannot be sent: %s", amp_strerror(rc));
    return false;
}

/* Sends a part whose body was encoded with the result rc. Closes the body. False: the call has been refused. */
static bool send_part(struct pull *pull, enum ampd_block_part part, struct amp_buf *body, int rc)
{
    struct amp_buf message = io_message_buf();
    if (rc == 0)
        rc = ampd_block_part_encode(part, body, &message);
    if (rc == 0 && pull->call.rpc != NULL)
        rc = arpc_call_send(pull->call.rpc, NULL, 0, message.data, message.size, NULL, NULL);
    if (rc != 0)
        io_server_call_refuse(&pull->call, rc, NULL, "a message cannot be sent: %s", amp_strerror(rc));
    amp_buf_close(&message);
    amp_buf_close(body);
    return rc == 0;
}

/* Sends a range of blocks without data (in_memory). False: the call has been refused. */
static bool send_placed(struct pull *pull, const struct ampd_block_range *range)
{
    const struct ampd_msg_block_range message = {.first = (uint32_t)range->first, .count = (uint32_t)range->count};
    struct amp_buf body = io_message_buf();
    return send_part(pull, AMPD_BLOCK_PLACED, &body, ampd_msg_block_range_encode(&message, &body));
}

static void send_ranges(struct pull *pull)
{
    for (; pull->ranges_at < pull->ranges_count; pull->ranges_at++) {
        const struct ampd_block_range *range = &pull->ranges[pull->ranges_at];
        if (pull->call.finished || !send_placed(pull, range))
            return;
        pull->sent += range->count;
    }
    end_when_sent(pull);
}

/* Sends what is listed until the connection is full; pull_writable then goes on. */
static void send_listed(struct pull *pull)
{
    if (pull->in_memory) {
        send_ranges(pull);
        return;
    }
    while (!pull->call.finished && pull->ranges_at < pull->ranges_count &&
           arpc_call_queued(pull->call.rpc) < ARPC_HIGH_WATER) {
        struct ampd_block_range *range = &pull->ranges[pull->ranges_at];
        if (!send_block(pull, range->first))
            return;
        pull->sent++;
        range->first++;
        if (--range->count == 0)
            pull->ranges_at++;
    }
    end_when_sent(pull);
}

/* ---- outputs of the core ---- */

static void send_header(struct pull *pull)
{
    const struct ampd_pull_grant *grant = &pull->grant;
    struct ampd_msg_pull_header header = {.epoch = grant->epoch,
                                          .step = grant->step,
                                          .version = grant->version,
                                          .scale_id = grant->scale_id,
                                          .scale = grant->scale,
                                          .dtype = (enum ampd_msg_dtype)grant->dtype,
                                          .first_block = (uint32_t)pull->first,
                                          .block_count = (uint32_t)pull->count,
                                          .unchanged = grant->unchanged};
    struct amp_buf body = io_message_buf();
    (void)send_part(pull, AMPD_BLOCK_HEADER, &body, ampd_msg_pull_header_encode(&header, &body)); /* refuses the call */
}

static void take_grant(struct pull *pull, const struct ampd_pull_grant *grant)
{
    uint64_t end = grant->first + grant->count;
    pull->grant = *grant;
    if (pull->wanted_first > end || (pull->wanted_first == end && grant->count > 0)) {
        io_server_call_refuse(&pull->call, AMP_EINVAL, "INVALID_FIELD",
                              "first_block: %llu is out of range; the blocks end at %llu",
                              (unsigned long long)pull->wanted_first, (unsigned long long)end);
        return;
    }
    pull->first = pull->wanted_first > grant->first ? pull->wanted_first : grant->first;
    pull->count = end - pull->first;
    if (pull->wanted_count > pull->count) {
        io_server_call_refuse(&pull->call, AMP_EINVAL, "INVALID_FIELD",
                              "block_count: %llu is out of range; the blocks end at %llu",
                              (unsigned long long)pull->wanted_count, (unsigned long long)end);
        return;
    }
    if (pull->wanted_count != 0)
        pull->count = pull->wanted_count;
    if (grant->unchanged)
        pull->count = 0;
    pull->granted = true;
    send_header(pull);
    send_listed(pull);
}

static bool add_range(struct pull *pull, uint64_t first, uint64_t count)
{
    if (pull->ranges_at == pull->ranges_count)
        pull->ranges_at = pull->ranges_count = 0;
    if (pull->ranges_count > pull->ranges_at) {
        struct ampd_block_range *last = &pull->ranges[pull->ranges_count - 1];
        if (last->first + last->count == first) {
            last->count += count;
            return true;
        }
    }
    if (pull->ranges_count == pull->ranges_room) {
        size_t room = pull->ranges_room * 2 + 8;
        struct ampd_block_range *more = realloc(pull->ranges, room * sizeof *more);
        if (more == NULL)
            return false;
        pull->ranges = more;
        pull->ranges_room = room;
    }
    pull->ranges[pull->ranges_count++] = (struct ampd_block_range){first, count};
    return true;
}

static void take_blocks(struct pull *pull, const struct ampd_blocks *blocks)
{
    uint64_t first = blocks->first > pull->first ? blocks->first : pull->first;
    uint64_t end = blocks->first + blocks->count;
    uint64_t own_end = pull->first + pull->count;
    end = end < own_end ? end : own_end;
    if (!pull->granted || pull->revoked || pull->call.finished || first >= end)
        return;
    if (add_range(pull, first, end - first))
        send_listed(pull);
    else
        io_server_call_refuse(&pull->call, AMP_ENOMEM, NULL, "out of memory for this stream; pull again");
}

/* Stops using the copy. Releasing the bodies may give the core CALL_CLOSED, after which it expects no REVOKED. */
static void take_revocation(struct pull *pull)
{
    struct io_server_call *call = &pull->call;
    io_server_call_ref(call);
    pull->revoked = true;
    pull->ranges_at = pull->ranges_count = 0;
    arpc_call_blank(pull->stream);
    if (call->at_core) {
        struct ampd_event event = {.type = AMPD_EVENT_REVOKED};
        io_server_call_event(call, &event);
    }
    io_server_call_unref(call);
}

static void pull_output(struct io_server_call *call, const struct ampd_output *output)
{
    struct pull *pull = pull_of(call);
    switch (output->type) {
    case AMPD_OUT_PULL_GRANT:
        take_grant(pull, &output->u.pull);
        break;
    case AMPD_OUT_PULL_BLOCKS:
        take_blocks(pull, &output->u.blocks);
        break;
    case AMPD_OUT_PULL_REVOKE:
        take_revocation(pull);
        break;
    default:
        AMP_ASSERT(!"an output that is not for a pull");
    }
}

static void pull_reply(struct io_server_call *call, const struct ampd_reply *reply)
{
    io_server_call_end(call);
}

static void pull_free(struct io_server_call *call)
{
    io_alive_end(&pull_of(call)->alive);
    arpc_call_unref(pull_of(call)->stream);
    free(pull_of(call)->ranges);
}

static const struct io_server_call_ops pull_ops = {pull_reply, pull_output, pull_free};

/* ---- callbacks of the rpc library ---- */

static int check_request(const struct ampd_server *server, const struct ampd_msg_pull_request *request,
                         struct amp_error *error)
{
    int named = (request->has_step ? 1 : 0) + (request->has_version ? 1 : 0) + (request->latest ? 1 : 0);
    if (named != 1)
        return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "step: give exactly one of step, version and latest");
    struct ampd_model_info info;
    int64_t index = ampd_core_find(server->core, request->model);
    if (index >= 0 && request->has_rank) {
        ampd_core_model(server->core, (uint32_t)index, &info);
        if (request->rank >= info.spec->world_size)
            return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD",
                                 "rank: %u is too large; ranks of %s are below its world size, which is %u",
                                 request->rank, info.spec->name, info.spec->world_size);
    }
    return io_check_shard(server, request->shard, error);
}

/*
 * Only a worker's Pull of a step may be in_memory. The copy of a version is overwritten two versions later, and that
 * needs the pushes of all workers of the step that computes on the version, and of those of the step after it.
 */
static int check_attached(const struct ampd_server *server, const struct ampd_msg_pull_request *request,
                          struct amp_error *error)
{
    if (!request->has_step || !request->has_rank)
        return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "in_memory: give it with step and rank alone");
    struct ampd_incarnation incarnation = io_incarnation(request->has_incarnation, &request->incarnation);
    if (io_attached(server, request->model, request->rank, incarnation))
        return 0;
    int64_t model = ampd_core_find(server->core, request->model); /* check_request knows that it has the rank */
    if (model >= 0 && ampd_core_refuse(server->core, (uint32_t)model, request->rank, incarnation, error))
        return error->code; /* a guess is counted, as without in_memory */
    return amp_error_set(error, AMP_EUNAVAILABLE, "NOT_ATTACHED",
                         "rank %u of %s has no memory attached here; call AttachMemory, or pull without in_memory",
                         request->rank, request->model);
}

static void pull_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_pull_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof(struct pull), &pull_ops);
    if (call == NULL)
        return;
    pull_of(call)->stream = arpc_call_ref(rpc);
    int rc = ampd_msg_pull_request_decode(&request, data, size, &error);
    if (rc == 0)
        rc = check_request(call->server, &request, &error);
    if (rc == 0 && request.in_memory)
        rc = check_attached(call->server, &request, &error);
    if (rc != 0) {
        io_server_call_fail(call, &error);
        return;
    }
    pull_of(call)->in_memory = request.in_memory;
    pull_of(call)->wanted_first = request.first_block;
    pull_of(call)->wanted_count = request.block_count;
    struct ampd_event event = {.type = AMPD_EVENT_PULL,
                               .u.pull = {.model = request.model,
                                          .by = request.has_step      ? AMPD_PULL_STEP
                                                : request.has_version ? AMPD_PULL_VERSION
                                                                      : AMPD_PULL_LATEST,
                                          .epoch = request.epoch,
                                          .number = request.has_step ? request.step : request.version,
                                          .has_worker = request.has_rank,
                                          .rank = request.rank,
                                          .incarnation = io_incarnation(request.has_incarnation, &request.incarnation),
                                          .in_memory = request.in_memory}};
    if (request.has_have_version) {
        event.u.pull.have_epoch = request.have_version.epoch;
        event.u.pull.have_version = request.have_version.version;
    }
    if (request.has_rank)
        io_alive_begin(&pull_of(call)->alive, call, request.model, request.rank, event.u.pull.incarnation);
    io_server_call_event(call, &event);
}

static void pull_writable(struct arpc_call *rpc)
{
    struct io_server_call *call = io_server_call_of(rpc);
    if (call != NULL && !pull_of(call)->revoked)
        send_listed(pull_of(call));
}

const struct arpc_handler ampd_handle_pull = {
    .message = pull_message,
    .writable = pull_writable,
    .closed = io_server_call_closed,
};
