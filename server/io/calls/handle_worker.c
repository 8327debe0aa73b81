/* Join, KeepAlive, Leave and GetPushState: the unary calls of workers. */
#include "server/io/base/handlers.h"

#include "base/assert.h"
#include "base/text.h"
#include "server/io/base/counts.h"
#include "server/io/base/message_buf.h"
#include "server/io/base/server.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/convert_spec.h"
#include "server/io/calls/server_call.h"
#include "server/io/calls/waiting.h"
#include "server/io/cluster/peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- Join ---- */

static void join_reply(struct io_server_call *call, const struct ampd_reply *reply)
{
    const struct ampd_server *server = call->server;
    const struct ampd_join_result *join = &reply->u.join;
    struct ampd_model_info info;
    struct ampd_msg_join_response response;
    AMP_ASSERT(reply->kind == AMPD_REPLY_JOIN);
    io_counts_join(&call->server->counts, join->model, join->rank, join->world_size); /* for GetStatus */
    ampd_core_model(server->core, join->model, &info);
    struct ampd_msg_shard shards[IO_PEERS_MAX];
    memset(&response, 0, sizeof response);
    response.rank = join->rank;
    response.world_size = join->world_size;
    response.has_incarnation = true;
    response.incarnation = io_msg_incarnation(join->incarnation);
    response.incarnation.boot_id = join->incarnation.counter >> AMPD_INCARNATION_NUMBER_BITS;
    response.lease_ms = join->lease_ms;
    response.epoch = join->epoch;
    response.step = join->step;
    response.version = info.version;
    response.state = (enum ampd_msg_model_state)info.state;
    response.block_elements = (uint32_t)info.layout->block_elements;
    response.shards = io_shards(server, info.layout, shards);
    response.has_spec = true;
    response.restored_step = info.base_step;
    uint8_t *user_state = malloc(join->user_state_size + 1u);
    struct amp_buf buf = io_message_buf();
    int rc = user_state == NULL ? AMP_ENOMEM : io_spec_to_msg(info.spec, &response.spec);
    if (rc == 0) {
        if (join->user_state_size > 0)
            memcpy(user_state, join->user_state, join->user_state_size);
        response.user_state = (struct ampd_msg_bytes){user_state, join->user_state_size};
        rc = ampd_msg_join_response_encode(&response, &buf);
    }
    io_server_call_reply_buf(call, &buf, rc);
    ampd_msg_model_spec_free(&response.spec);
    free(user_state);
}

static const struct io_server_call_ops join_ops = {join_reply, NULL, NULL};

static void join_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_join_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof *call, &join_ops);
    if (call == NULL)
        return;
    int rc = ampd_msg_join_request_decode(&request, data, size, &error);
    if (rc == 0 && request.has_rank && request.rank >= AMPD_WORLD_MAX)
        rc = amp_error_set(&error, AMP_EINVAL, "INVALID_FIELD", "rank: %u is too large; ranks are below world_size",
                           request.rank);
    uint64_t random = 0;
    if (rc == 0 && getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        rc = amp_error_set(&error, AMP_EIO, NULL, "no random number for an incarnation; join again");
    if (rc != 0) {
        io_server_call_fail(call, &error);
        return;
    }
    struct ampd_event event = {.type = AMPD_EVENT_JOIN,
                               .u.join = {.model = request.model,
                                          .worker = request.worker_name,
                                          .rank = request.has_rank ? (int32_t)request.rank : -1,
                                          .world_size = request.has_world_size ? request.world_size : 0,
                                          .replace = request.replace,
                                          .instance = request.instance,
                                          .random = random,
                                          .peer = arpc_call_peer(rpc)}};
    io_server_call_event(call, &event);
}

const struct arpc_handler ampd_handle_join = {.message = join_message, .closed = io_server_call_closed};

/* ---- KeepAlive ---- */

static void keep_alive_reply(struct io_server_call *call, const struct ampd_reply *reply)
{
    AMP_ASSERT(reply->kind == AMPD_REPLY_KEEP_ALIVE);
    struct ampd_msg_keep_alive_response response = {.epoch = reply->u.keep_alive.epoch,
                                                    .step = reply->u.keep_alive.step,
                                                    .state = (enum ampd_msg_model_state)reply->u.keep_alive.state,
                                                    .incarnation_valid = reply->u.keep_alive.valid,
                                                    .lease_ms = reply->u.keep_alive.lease_ms};
    struct ampd_model_info info;
    ampd_core_model(call->server->core, reply->u.keep_alive.model, &info);
    io_waiting_text(call->server, reply->u.keep_alive.model, &info, response.waiting_for, sizeof response.waiting_for);
    (void)snprintf(response.taken_by, sizeof response.taken_by, "%s", reply->u.keep_alive.taken_by);
    amp_text_repair(response.taken_by);
    struct amp_buf buf = io_message_buf();
    io_server_call_reply_buf(call, &buf, ampd_msg_keep_alive_response_encode(&response, &buf));
}

static const struct io_server_call_ops keep_alive_ops = {keep_alive_reply, NULL, NULL};

static void keep_alive_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_keep_alive_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof *call, &keep_alive_ops);
    if (call == NULL)
        return;
    if (ampd_msg_keep_alive_request_decode(&request, data, size, &error) != 0) {
        io_server_call_fail(call, &error);
        return;
    }
    struct ampd_event event = {
        .type = AMPD_EVENT_KEEP_ALIVE,
        .u.worker = {request.model, request.rank, io_incarnation(request.has_incarnation, &request.incarnation)}};
    io_server_call_event(call, &event);
}

const struct arpc_handler ampd_handle_keep_alive = {.message = keep_alive_message, .closed = io_server_call_closed};

/* ---- Leave ---- */

static void leave_reply(struct io_server_call *call, const struct ampd_reply *reply)
{
    struct amp_buf buf = io_message_buf(); /* LeaveResponse is empty */
    io_server_call_reply_buf(call, &buf, 0);
}

static const struct io_server_call_ops leave_ops = {leave_reply, NULL, NULL};

static void leave_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_leave_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof *call, &leave_ops);
    if (call == NULL)
        return;
    if (ampd_msg_leave_request_decode(&request, data, size, &error) != 0) {
        io_server_call_fail(call, &error);
        return;
    }
    struct ampd_event event = {
        .type = AMPD_EVENT_LEAVE,
        .u.worker = {request.model, request.rank, io_incarnation(request.has_incarnation, &request.incarnation)}};
    io_server_call_event(call, &event);
}

const struct arpc_handler ampd_handle_leave = {.message = leave_message, .closed = io_server_call_closed};

/* ---- GetPushState ---- */

static void push_state_reply(struct io_server_call *call, const struct ampd_reply *reply)
{
    AMP_ASSERT(reply->kind == AMPD_REPLY_PUSH_STATE);
    /* The answer may leave out blocks that are present: such a block is sent again, and dropped. */
    size_t count = (size_t)reply->u.push_state.ranges_count;
    count = count > AMPD_MSG_RANGES_MAX ? AMPD_MSG_RANGES_MAX : count;
    struct ampd_msg_get_push_state_response response = {.complete = reply->u.push_state.complete};
    response.present.items = calloc(count + 1, sizeof *response.present.items);
    response.present.count = response.present.items != NULL ? count : 0;
    for (size_t i = 0; i < response.present.count; i++)
        response.present.items[i] = (struct ampd_msg_block_range){(uint32_t)reply->u.push_state.ranges[i].first,
                                                                  (uint32_t)reply->u.push_state.ranges[i].count};
    struct amp_buf buf = io_message_buf();
    int rc = response.present.items == NULL ? AMP_ENOMEM : ampd_msg_get_push_state_response_encode(&response, &buf);
    io_server_call_reply_buf(call, &buf, rc);
    free(response.present.items);
}

static const struct io_server_call_ops push_state_ops = {push_state_reply, NULL, NULL};

static void push_state_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_get_push_state_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof *call, &push_state_ops);
    if (call == NULL)
        return;
    int rc = ampd_msg_get_push_state_request_decode(&request, data, size, &error);
    if (rc == 0)
        rc = io_check_shard(call->server, request.shard, &error);
    if (rc != 0) {
        io_server_call_fail(call, &error);
        return;
    }
    struct ampd_event event = {
        .type = AMPD_EVENT_GET_PUSH_STATE,
        .u.push_state = {.model = request.model,
                         .epoch = request.epoch,
                         .step = request.step,
                         .rank = request.rank,
                         .incarnation = io_incarnation(request.has_incarnation, &request.incarnation)}};
    io_server_call_event(call, &event);
}

const struct arpc_handler ampd_handle_get_push_state = {.message = push_state_message, .closed = io_server_call_closed};
