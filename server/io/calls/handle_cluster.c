/*
 * GetCluster: all shards, with their addresses, sessions and progress. Shard 0 knows all of that. Another shard asks
 * shard 0 and passes the answer on; if shard 0 does not answer, it answers with what it knows itself.
 */
#include "server/io/base/handlers.h"

#include "proto/msg_admin.h"
#include "rpc/arpc_client.h"
#include "server/io/base/message_buf.h"
#include "server/io/base/server.h"
#include "server/io/calls/pages.h"
#include "server/io/calls/server_call.h"
#include "server/io/cluster/cluster.h"
#include "server/io/cluster/peers.h"

#include <stdio.h>

#define CLUSTER_PATH "/ampd.v1.AdminService/GetCluster"

/* Deadline of the call to shard 0, which answers at once if it runs. It leaves time within a caller's usual 10 s. */
#define ASK_MS 3000

struct cluster {
    struct io_server_call call;
    int64_t model; /* index of the model that the request names; -1: all models */
    bool answered; /* shard 0 has answered */
};

static struct cluster *cluster_of(struct io_server_call *call)
{
    return AMP_CONTAINER(call, struct cluster, call);
}

static uint64_t blocks_of(const struct ampd_server *server, uint32_t shard, int64_t model)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < ampd_core_models_count(server->core); i++) {
        struct ampd_model_info info;
        uint64_t first, count;
        ampd_core_model(server->core, i, &info);
        if (info.deleted || (model >= 0 && model != (int64_t)i))
            continue;
        ampd_layout_shard(info.layout, shard, io_peers_shards(server), &first, &count);
        all += count;
    }
    return all;
}

static void fill_shard(const struct ampd_server *server, uint32_t shard, int64_t model,
                       struct ampd_msg_cluster_shard *to)
{
    struct ampd_shard_info info;
    int64_t since_us;
    ampd_core_shard(server->core, shard, model, &info);
    *to = (struct ampd_msg_cluster_shard){.index = shard,
                                          .fence = info.fence.counter,
                                          .leaving = info.leaving,
                                          .block_count = blocks_of(server, shard, model),
                                          .decided_step = info.decided_step,
                                          .applied_step = info.applied_step,
                                          .behind_models = info.behind,
                                          .awaited_models = info.awaited};
    to->unknown = !io_peers_knows(server, shard);
    to->up = io_peers_up(server, shard, &since_us);
    to->has_since = since_us != 0;
    to->since.us = since_us;
    (void)snprintf(to->endpoint, sizeof to->endpoint, "%s",
                   server->peers != NULL ? io_peers_address(server, shard) : server->endpoint);
    io_peers_shard_trouble(server, shard, to->trouble, sizeof to->trouble);
}

static struct ampd_msg_cluster_standby_list standbys_of(const struct ampd_server *server,
                                                        struct ampd_msg_cluster_standby items[AMPD_MSG_STANDBYS_MAX])
{
    struct ampd_msg_cluster_standby_list list = {items, 0};
    uint32_t count = server->cluster != NULL ? io_cluster_standbys(server->cluster) : 0;
    for (; list.count < count && list.count < AMPD_MSG_STANDBYS_MAX; list.count++)
        (void)snprintf(items[list.count].endpoint, sizeof items[list.count].endpoint, "%s",
                       io_cluster_standby(server->cluster, (uint32_t)list.count));
    return list;
}

/* Answers with what this shard knows itself. */
static void answer(struct cluster *cluster)
{
    const struct ampd_server *server = cluster->call.server;
    uint32_t count = io_peers_shards(server);
    struct ampd_msg_cluster_shard shards[IO_PEERS_MAX];
    struct ampd_msg_cluster_standby standbys[AMPD_MSG_STANDBYS_MAX];
    struct ampd_msg_get_cluster_response response = {.shard = server->options->shard,
                                                     .shard_count = count,
                                                     .shards = {shards, count},
                                                     .standbys = standbys_of(server, standbys)};
    for (uint32_t k = 0; k < count; k++)
        fill_shard(server, k, cluster->model, &shards[k]);
    io_peers_trouble(server, response.trouble, sizeof response.trouble);
    struct amp_buf buf = io_message_buf();
    io_server_call_reply_buf(&cluster->call, &buf, ampd_msg_get_cluster_response_encode(&response, &buf));
}

/* ---- asking shard 0 ---- */

static void asked_message(struct arpc_call *asked, const uint8_t *data, size_t size)
{
    struct cluster *cluster = arpc_call_user(asked);
    struct amp_buf buf = io_message_buf();
    cluster->answered = true;
    io_server_call_reply_buf(&cluster->call, &buf, amp_buf_append(&buf, data, size));
}

static void asked_closed(struct arpc_call *asked, const struct arpc_result *result)
{
    struct cluster *cluster = arpc_call_user(asked);
    if (!cluster->answered)
        answer(cluster);
    io_server_call_unref(&cluster->call);
}

static const struct arpc_handler asked_handler = {.message = asked_message, .closed = asked_closed};

/* Begins the call to shard 0. False: that is not possible. */
static bool ask(struct cluster *cluster, const struct ampd_msg_get_cluster_request *request)
{
    struct arpc_pair pair = {"authorization", NULL};
    struct arpc_channel *channel = io_peers_coordinator(cluster->call.server, &pair.value);
    const struct arpc_call_options options = {.size = sizeof options,
                                              .deadline_ms = ASK_MS,
                                              .single_response = true,
                                              .metadata = &pair,
                                              .metadata_count = pair.value != NULL ? 1 : 0};
    struct ampd_msg_get_cluster_request local = *request;
    struct arpc_call *asked;
    struct amp_error error;
    struct amp_buf buf = io_message_buf();
    local.local = true; /* the process at shard 0's address is to answer by itself, whichever shard it is */
    bool begun = channel != NULL && ampd_msg_get_cluster_request_encode(&local, &buf) == 0 &&
                 arpc_channel_call(channel, CLUSTER_PATH, &options, &asked_handler, cluster, &asked, &error) == 0;
    if (begun) {
        io_server_call_ref(&cluster->call);
        if (arpc_call_send(asked, NULL, 0, buf.data, buf.size, NULL, NULL) == 0)
            arpc_call_half_close(asked);
        else
            arpc_call_cancel(asked, ARPC_STATUS_UNAVAILABLE, "no memory for the request");
    }
    amp_buf_close(&buf);
    return begun;
}

static const struct io_server_call_ops cluster_ops = {NULL, NULL, NULL};

static void cluster_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_get_cluster_request request;
    struct ampd_model_info info;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof(struct cluster), &cluster_ops);
    if (call == NULL)
        return;
    struct cluster *cluster = cluster_of(call);
    uint32_t model;
    cluster->model = -1;
    if (ampd_msg_get_cluster_request_decode(&request, data, size, &error) != 0) {
        io_server_call_fail(call, &error);
        return;
    }
    if (request.model[0] != 0) {
        if (!io_find_model(call, request.model, &model, &info))
            return;
        cluster->model = model;
    }
    if (request.local || !ask(cluster, &request))
        answer(cluster);
}

const struct arpc_handler ampd_handle_get_cluster = {.message = cluster_message, .closed = io_server_call_closed};
