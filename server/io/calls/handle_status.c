/* GetScale, GetStatus and Checkpoint. */
#include "server/io/base/handlers.h"

#include "base/assert.h"
#include "base/hex.h"
#include "server/io/base/clock.h"
#include "server/io/base/message_buf.h"
#include "server/io/base/open_files.h"
#include "server/io/base/options.h"
#include "server/io/base/server.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/pages.h"
#include "server/io/calls/server_call.h"
#include "server/io/cluster/peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool find_model(struct io_server_call *call, const char *name, struct ampd_model_info *info)
{
    uint32_t index;
    return io_find_model(call, name, &index, info);
}

/* ---- GetScale ---- */

/* Until a model is brought back, its record is that of the checkpoint or epoch that it began from. */
static void fail_recovering(struct io_server_call *call, const struct ampd_model_info *info)
{
    struct amp_error error = {0};
    if (info->trouble != NULL)
        (void)amp_error_set(&error, AMP_EUNAVAILABLE, "RECOVERING", "%s", info->trouble);
    else
        (void)amp_error_set(&error, AMP_EUNAVAILABLE, "RECOVERING",
                            "%s is being brought back after a start of a shard; ask for its scale again in a moment",
                            info->spec->name);
    io_server_call_fail(call, &error);
}

static void scale_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_get_scale_request request;
    struct ampd_model_info info;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof *call, &io_server_call_plain);
    if (call == NULL)
        return;
    if (ampd_msg_get_scale_request_decode(&request, data, size, &error) != 0) {
        io_server_call_fail(call, &error);
        return;
    }
    if (!find_model(call, request.model, &info))
        return;
    if (info.recovering) {
        fail_recovering(call, &info);
        return;
    }
    struct ampd_msg_get_scale_response response = {.has_record = true,
                                                   .record = io_scale_record(info.spec, &info.scaler),
                                                   .epoch = info.epoch,
                                                   .step = info.step,
                                                   .unstable = info.unstable,
                                                   .frozen = info.frozen};
    struct amp_buf buf = io_message_buf();
    io_server_call_reply_buf(call, &buf, ampd_msg_get_scale_response_encode(&response, &buf));
}

const struct arpc_handler ampd_handle_get_scale = {.message = scale_message, .closed = io_server_call_closed};

/* ---- GetStatus ---- */

static int compare_status(const void *a, const void *b)
{
    const struct ampd_msg_model_status *left = a, *right = b;
    return strcmp(left->name, right->name);
}

/* Fills in the models that the request asks for, by name, up to the schema's AMPD_MSG_MODELS_MAX. */
static int fill_models(const struct ampd_server *server, const char *only, bool with_workers,
                       struct ampd_msg_model_status_list *list)
{
    uint32_t models = ampd_core_models_count(server->core);
    list->items = calloc(models + 1, sizeof *list->items);
    int rc = list->items == NULL ? AMP_ENOMEM : 0;
    for (uint32_t i = 0; rc == 0 && i < models && list->count < AMPD_MSG_MODELS_MAX; i++) {
        struct ampd_model_info info;
        ampd_core_model(server->core, i, &info);
        if (info.deleted || (only[0] != 0 && strcmp(only, info.spec->name) != 0))
            continue;
        rc = io_model_status(server, i, with_workers, &list->items[list->count]);
        list->count++;
    }
    if (rc == 0)
        qsort(list->items, list->count, sizeof *list->items, compare_status);
    return rc;
}

static void free_models(struct ampd_msg_model_status_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i].workers.items);
    free(list->items);
}

static int encode_status(struct ampd_server *server, const char *only, bool with_workers, struct amp_buf *buf)
{
    struct ampd_msg_get_status_response response;
    struct ampd_msg_shard shards[IO_PEERS_MAX];
    memset(&response, 0, sizeof response);
    (void)snprintf(response.version, sizeof response.version, "%s", AMPD_VERSION);
    response.has_server_time = true;
    response.server_time.us = io_clock_utc_us();
    response.uptime_ms = uv_now(&server->loop) - server->life.started_ms;
    response.fence = server->fence.counter;
    amp_hex_write(server->fence.boot_id, sizeof server->fence.boot_id, response.boot_id);
    response.shard = server->options->shard;
    response.shard_count = io_peers_shards(server);
    response.draining = server->life.state != SERVER_RUNNING;
    bool is_reference = strcmp(server->options->isa, "ref") == 0;
    (void)snprintf(response.isa, sizeof response.isa, "%s", is_reference ? "reference" : server->options->isa);
    response.shards = io_shards(server, NULL, shards);
    io_peers_trouble(server, response.trouble, sizeof response.trouble);
    response.descriptors = io_open_files_count(&server->open_files, IO_OPEN_FILES_FOLDER, io_clock_now_us());
    response.descriptors_max = io_open_files_max();
    int rc = fill_models(server, only, with_workers, &response.models);
    if (rc == 0)
        rc = ampd_msg_get_status_response_encode(&response, buf);
    free_models(&response.models);
    return rc;
}

static void status_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_get_status_request request;
    struct ampd_model_info info;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof *call, &io_server_call_plain);
    if (call == NULL)
        return;
    if (ampd_msg_get_status_request_decode(&request, data, size, &error) != 0) {
        io_server_call_fail(call, &error);
        return;
    }
    if (request.model[0] != 0 && !find_model(call, request.model, &info))
        return;
    struct amp_buf buf = io_message_buf();
    int rc = encode_status(call->server, request.model, true, &buf);
    if (rc == AMP_EEXHAUSTED) /* many models with many workers: without these, they fit */
        rc = encode_status(call->server, request.model, false, &buf);
    io_server_call_reply_buf(call, &buf, rc);
}

const struct arpc_handler ampd_handle_get_status = {.message = status_message, .closed = io_server_call_closed};

/* ---- Checkpoint ---- */

struct checkpoint_call {
    struct io_server_call call;
    char model[AMPD_NAME_MAX];
};

/* The new checkpoint from the catalogue; if it was dropped already, what the core's answer says of it. */
static void fill_checkpoint(const struct ampd_model_info *info, const struct ampd_reply *reply,
                            struct ampd_msg_checkpoint_info *to)
{
    struct ampd_checkpoint_record known = {
        .epoch = reply->u.checkpoint.epoch, .step = reply->u.checkpoint.step, .version = reply->u.checkpoint.version};
    const struct ampd_checkpoint_record *record = io_find_checkpoint(info, known.epoch, known.step);
    io_checkpoint_info(info->spec, record != NULL ? record : &known, to);
    if (record == NULL) /* dropped: neither its hash nor its scale is known */
        memset(to->manifest_hash, 0, sizeof to->manifest_hash);
}

static void checkpoint_reply(struct io_server_call *call, const struct ampd_reply *reply)
{
    struct ampd_model_info info;
    AMP_ASSERT(reply->kind == AMPD_REPLY_CHECKPOINT);
    if (!find_model(call, AMP_CONTAINER(call, struct checkpoint_call, call)->model, &info))
        return;
    struct ampd_msg_checkpoint_response response = {.has_checkpoint = true};
    fill_checkpoint(&info, reply, &response.checkpoint);
    struct amp_buf buf = io_message_buf();
    io_server_call_reply_buf(call, &buf, ampd_msg_checkpoint_response_encode(&response, &buf));
}

static const struct io_server_call_ops checkpoint_ops = {checkpoint_reply, NULL, NULL};

/* Answers a request with no_wait. The core makes the checkpoint also when the call is closed. */
static void answer_at_once(struct io_server_call *call)
{
    struct ampd_msg_checkpoint_response response = {.has_checkpoint = false};
    struct amp_buf buf = io_message_buf();
    io_server_call_reply_buf(call, &buf, ampd_msg_checkpoint_response_encode(&response, &buf));
}

static void checkpoint_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_checkpoint_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof(struct checkpoint_call), &checkpoint_ops);
    if (call == NULL)
        return;
    if (ampd_msg_checkpoint_request_decode(&request, data, size, &error) != 0) {
        io_server_call_fail(call, &error);
        return;
    }
    memcpy(AMP_CONTAINER(call, struct checkpoint_call, call)->model, request.model, sizeof request.model);
    struct ampd_event event = {.type = AMPD_EVENT_CHECKPOINT, .u.named.model = request.model};
    io_server_call_event(call, &event);
    if (request.no_wait && call->at_core)
        answer_at_once(call);
}

const struct arpc_handler ampd_handle_checkpoint = {.message = checkpoint_message, .closed = io_server_call_closed};
