/* SetScale, ResetScale, SetLearningRate, Rollback, EvictWorker and DeleteModel: operators' actions on a model. */
#include "server/io/base/handlers.h"

#include "base/assert.h"
#include "server/io/auth/auth_gate.h"
#include "server/io/base/message_buf.h"
#include "server/io/base/server.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/server_call.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/*
 * What the history keeps of an action: the caller's name, its reason, and the id of the request. A request without an
 * id gets one of the server's own, by which the action is recognised after a restart.
 */
static struct ampd_note note_of(struct io_server_call *call, const char *reason, const char *request_id)
{
    struct ampd_server *server = call->server;
    struct ampd_note note = {0};
    ampd_auth_name(server->auth, call->rpc, note.actor, sizeof note.actor);
    (void)snprintf(note.words, sizeof note.words, "%s", reason);
    if (request_id[0] != 0)
        (void)snprintf(note.request_id, sizeof note.request_id, "%s", request_id);
    else
        (void)snprintf(note.request_id, sizeof note.request_id, "server/%" PRIu64 "/%" PRIu64, server->fence.counter,
                       call->id);
    return note;
}

/* Refuses ids that begin like those that the server makes. */
static int check_id(const char *request_id, struct amp_error *error)
{
    if (strncmp(request_id, "server/", 7) != 0)
        return 0;
    return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD",
                         "request_id: ids that begin with \"server/\" are the server's own; give another");
}

/*
 * The common end of all handlers here: sends the action to the core, or fails the call if decoding returned an error.
 */
static void send_action(struct io_server_call *call, int rc, enum ampd_event_type type, struct ampd_event_act action,
                        const char *reason, const char *request_id, struct amp_error *error)
{
    if (rc == 0)
        rc = check_id(request_id, error);
    if (rc != 0) {
        io_server_call_fail(call, error);
        return;
    }
    struct ampd_note note = note_of(call, reason, request_id);
    action.note = &note;
    struct ampd_event event = {.type = type, .u.act = action};
    io_server_call_event(call, &event);
}

/* ---- SetScale, ResetScale ---- */

struct scale_call {
    struct io_server_call call;
    char model[AMPD_NAME_MAX];
};

static void scale_reply(struct io_server_call *call, const struct ampd_reply *reply)
{
    const struct ampd_server *server = call->server;
    struct ampd_model_info info;
    AMP_ASSERT(reply->kind == AMPD_REPLY_SCALE);
    int64_t index = ampd_core_find(server->core, AMP_CONTAINER(call, struct scale_call, call)->model);
    AMP_ASSERT(index >= 0); /* the core has just answered for it */
    ampd_core_model(server->core, (uint32_t)index, &info);
    /* Both answers have the same fields. */
    const struct ampd_msg_set_scale_response response = {.has_record = true,
                                                         .record = io_scale_record(info.spec, &reply->u.scale.record),
                                                         .from_step = reply->u.scale.from_step};
    struct amp_buf buf = io_message_buf();
    io_server_call_reply_buf(call, &buf, ampd_msg_set_scale_response_encode(&response, &buf));
}

static const struct io_server_call_ops scale_ops = {scale_reply, NULL, NULL};

static void set_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_set_scale_request request = {0};
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof(struct scale_call), &scale_ops);
    if (call == NULL)
        return;
    int rc = ampd_msg_set_scale_request_decode(&request, data, size, &error);
    memcpy(AMP_CONTAINER(call, struct scale_call, call)->model, request.model, sizeof request.model);
    struct ampd_event_act action = {.model = request.model, .scale = request.scale};
    send_action(call, rc, AMPD_EVENT_SET_SCALE, action, request.reason, request.request_id, &error);
}

const struct arpc_handler ampd_handle_set_scale = {.message = set_message, .closed = io_server_call_closed};

static void reset_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_reset_scale_request request = {0};
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof(struct scale_call), &scale_ops);
    if (call == NULL)
        return;
    int rc = ampd_msg_reset_scale_request_decode(&request, data, size, &error);
    memcpy(AMP_CONTAINER(call, struct scale_call, call)->model, request.model, sizeof request.model);
    struct ampd_event_act action = {.model = request.model};
    send_action(call, rc, AMPD_EVENT_RESET_SCALE, action, request.reason, request.request_id, &error);
}

const struct arpc_handler ampd_handle_reset_scale = {.message = reset_message, .closed = io_server_call_closed};

/* ---- SetLearningRate ---- */

static void rate_reply(struct io_server_call *call, const struct ampd_reply *reply)
{
    AMP_ASSERT(reply->kind == AMPD_REPLY_LR);
    const struct ampd_msg_set_learning_rate_response response = {reply->u.lr.lr, reply->u.lr.from_step};
    struct amp_buf buf = io_message_buf();
    io_server_call_reply_buf(call, &buf, ampd_msg_set_learning_rate_response_encode(&response, &buf));
}

static const struct io_server_call_ops rate_ops = {rate_reply, NULL, NULL};

static void rate_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_set_learning_rate_request request = {0};
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof *call, &rate_ops);
    if (call == NULL)
        return;
    int rc = ampd_msg_set_learning_rate_request_decode(&request, data, size, &error);
    struct ampd_event_act action = {.model = request.model, .lr = request.learning_rate};
    send_action(call, rc, AMPD_EVENT_SET_LR, action, request.reason, request.request_id, &error);
}

const struct arpc_handler ampd_handle_set_learning_rate = {.message = rate_message, .closed = io_server_call_closed};

/* ---- Rollback ---- */

static void rollback_reply(struct io_server_call *call, const struct ampd_reply *reply)
{
    AMP_ASSERT(reply->kind == AMPD_REPLY_ROLLBACK);
    const struct ampd_msg_rollback_response response = {reply->u.rollback.epoch, reply->u.rollback.step};
    struct amp_buf buf = io_message_buf();
    io_server_call_reply_buf(call, &buf, ampd_msg_rollback_response_encode(&response, &buf));
}

static const struct io_server_call_ops rollback_ops = {rollback_reply, NULL, NULL};

static void rollback_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_rollback_request request = {0};
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof *call, &rollback_ops);
    if (call == NULL)
        return;
    int rc = ampd_msg_rollback_request_decode(&request, data, size, &error);
    struct ampd_event_act action = {.model = request.model, .epoch = request.epoch, .step = request.step};
    send_action(call, rc, AMPD_EVENT_ROLLBACK, action, request.reason, request.request_id, &error);
}

const struct arpc_handler ampd_handle_rollback = {.message = rollback_message, .closed = io_server_call_closed};

/* ---- EvictWorker ---- */

static void evict_reply(struct io_server_call *call, const struct ampd_reply *reply)
{
    AMP_ASSERT(reply->kind == AMPD_REPLY_EVICT);
    const struct ampd_msg_evict_worker_response response = {reply->u.nobody};
    struct amp_buf buf = io_message_buf();
    io_server_call_reply_buf(call, &buf, ampd_msg_evict_worker_response_encode(&response, &buf));
}

static const struct io_server_call_ops evict_ops = {evict_reply, NULL, NULL};

static void evict_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_evict_worker_request request = {0};
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof *call, &evict_ops);
    if (call == NULL)
        return;
    int rc = ampd_msg_evict_worker_request_decode(&request, data, size, &error);
    struct ampd_event_act action = {.model = request.model, .rank = request.rank};
    send_action(call, rc, AMPD_EVENT_EVICT, action, request.reason, request.request_id, &error);
}

const struct arpc_handler ampd_handle_evict_worker = {.message = evict_message, .closed = io_server_call_closed};

/* ---- DeleteModel ---- */

static void delete_reply(struct io_server_call *call, const struct ampd_reply *reply)
{
    struct amp_buf buf = io_message_buf(); /* DeleteModelResponse is empty */
    io_server_call_reply_buf(call, &buf, 0);
}

static const struct io_server_call_ops delete_ops = {delete_reply, NULL, NULL};

static void delete_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_delete_model_request request = {0};
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof *call, &delete_ops);
    if (call == NULL)
        return;
    int rc = ampd_msg_delete_model_request_decode(&request, data, size, &error);
    struct ampd_event_act action = {.model = request.model, .force = request.force};
    send_action(call, rc, AMPD_EVENT_DELETE_MODEL, action, "", "", &error); /* a repeat finds the model gone */
}

const struct arpc_handler ampd_handle_delete_model = {.message = delete_message, .closed = io_server_call_closed};
