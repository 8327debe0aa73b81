/* The RPCs of a core (model.h): how they begin, and how the core gets their ends. */
#include "base/assert.h"
#include "client/io/methods.h"
#include "client/io/model_call.h"

#include "client/io/attach.h"

#include <stdlib.h>
#include <string.h>

struct ampclient_core_call *ampclient_call_find(struct ampclient_model *model, uint64_t number)
{
    AMP_LIST_EACH(node, next, &model->calls)
    {
        struct ampclient_core_call *call = AMP_CONTAINER(node, struct ampclient_core_call, node);
        if (call->number == number)
            return call;
    }
    return NULL; /* it could not begin, or has ended and the core does not know it yet */
}

void ampclient_call_free(struct ampclient_core_call *call)
{
    ampd_block_reader_close(&call->pull.reader);
    amp_buf_close(&call->reply);
    amp_buf_close(&call->push.trailer);
    free(call->push.blocks);
    free(call);
}

void ampclient_call_give_up(struct ampclient_core_call *call, int code, const char *text)
{
    if (call->error.code == 0)
        (void)amp_error_set(&call->error, code, NULL, "%s", text);
    arpc_call_cancel(call->call, ARPC_STATUS_CANCELLED, text);
}

static void on_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct ampclient_core_call *own = arpc_call_user(call);
    if (amp_buf_append(&own->reply, data, size) != 0)
        ampclient_call_give_up(own, AMP_ENOMEM, "There is no memory for the server's answer.");
}

static void on_writable(struct arpc_call *call)
{
    struct ampclient_core_call *own = arpc_call_user(call);
    (void)pthread_mutex_lock(&own->model->client->link->mutex);
    ampclient_push_feed(own);
    if (own->model->units && own->push.next == own->push.count)
        ampclient_link_kick(own->model->client->link); /* the drain gives the core PUSH_DRAINED */
    (void)pthread_mutex_unlock(&own->model->client->link->mutex);
}

static uint64_t number_of(const struct arpc_details *details, const char *key)
{
    const char *value = arpc_details_find(details, key);
    return value != NULL ? strtoull(value, NULL, 10) : 0;
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct ampclient_core_call *own = arpc_call_user(call);
    struct ampclient_model *model = own->model;
    arpc_call_blank(call); /* what a server that reads nothing has not taken is borrowed no longer; checksums tell it */
    amp_list_remove(&own->node);
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_ENDED, .call = own->number};
    struct ampclient_ended *ended = &event.u.ended;
    if (own->error.code != 0) {
        ended->code = own->error.code;
        ended->reason = own->error.reason;
        ended->text = own->error.text;
    } else {
        ended->code = ampclient_channels_code(&model->client->link->channels, result->status, result->from_peer);
        ended->reason = result->details.reason != NULL ? result->details.reason : "";
        ended->text = result->message[0] != 0 || ended->code == 0 ? result->message : arpc_status_name(result->status);
        ended->epoch = number_of(&result->details, "epoch");
        ended->step = number_of(&result->details, "step");
        ampclient_follow_refused(&model->client->link->follow, &result->details);
        ended->retry_ms = result->details.retry_ms > 0 ? (uint64_t)result->details.retry_ms : 0;
    }
    if (strcmp(ended->reason, "NOT_ATTACHED") == 0)
        ampclient_attach_lost(model);
    if (ended->code == 0 && !own->cancelled && !model->stopped)
        ampclient_answer(own, &event);
    else
        ampclient_model_event(model, &event);
    ampclient_call_free(own);
    ampclient_model_remove_if_idle(model);
}

static const struct arpc_handler unary_handler = {.message = on_message, .writable = on_writable, .closed = on_closed};
static const struct arpc_handler pull_handler = {
    .message_begin = ampclient_pull_message_begin,
    .message_bytes = ampclient_pull_message_bytes,
    .message_end = ampclient_pull_message_end,
    .closed = on_closed,
};

static const char *path_of(enum ampclient_output_type kind)
{
    switch (kind) {
    case AMPCLIENT_OUT_JOIN:
        return AMPCLIENT_PARAMETER_SERVICE "Join";
    case AMPCLIENT_OUT_KEEP_ALIVE:
        return AMPCLIENT_PARAMETER_SERVICE "KeepAlive";
    case AMPCLIENT_OUT_LEAVE:
        return AMPCLIENT_PARAMETER_SERVICE "Leave";
    case AMPCLIENT_OUT_PULL:
        return AMPCLIENT_PARAMETER_SERVICE "Pull";
    case AMPCLIENT_OUT_GET_PUSH_STATE:
        return AMPCLIENT_PARAMETER_SERVICE "GetPushState";
    default:
        AMP_ASSERT(kind == AMPCLIENT_OUT_PUSH);
        return AMPCLIENT_PARAMETER_SERVICE "Push";
    }
}

static int start(struct ampclient_core_call *call, const struct ampclient_output *output)
{
    struct ampclient_model *model = call->model;
    bool pull = call->kind == AMPCLIENT_OUT_PULL;
    struct arpc_call_options options = {.size = sizeof options,
                                        .deadline_ms = (int64_t)output->deadline_ms,
                                        .max_message = AMPCLIENT_REPLY_MAX,
                                        .idempotent = call->kind != AMPCLIENT_OUT_PUSH, /* which the core resumes */
                                        .single_response = !pull};
    struct amp_buf request;
    amp_buf_init(&request, AMPD_MSG_SIZE_MAX);
    int rc = ampclient_request_encode(model, output, &request);
    if (rc != 0) {
        (void)amp_error_set(&call->error, rc, NULL,
                            "The request cannot be made: names must be UTF-8, and memory free.");
        goto out;
    }
    rc = ampclient_channels_call(&model->client->link->channels, output->shard, path_of(call->kind), &options,
                                 pull ? &pull_handler : &unary_handler, call, &call->call, &call->error);
    if (rc != 0)
        goto out;
    int sent = arpc_call_send(call->call, request.data, request.size, NULL, 0, NULL, NULL);
    if (sent != 0 && sent != AMP_ESTATE) /* over already: `closed` comes and says why */
        ampclient_call_give_up(call, AMP_ENOMEM, "There is no memory for a request.");
    else if (call->kind != AMPCLIENT_OUT_PUSH)
        arpc_call_half_close(call->call);
out:
    amp_buf_close(&request);
    return rc;
}

void ampclient_call_begin(struct ampclient_model *model, const struct ampclient_output *output)
{
    struct ampclient_core_call *call = calloc(1, sizeof *call);
    if (call == NULL) {
        model->unstarted = output->call;
        (void)amp_error_set(&model->start_error, AMP_ENOMEM, NULL, "There is no memory for a call.");
        return;
    }
    call->model = model;
    call->number = output->call;
    call->kind = output->type;
    call->shard = output->shard;
    amp_buf_init(&call->reply, AMPCLIENT_REPLY_MAX);
    amp_buf_init(&call->push.trailer, AMPD_MSG_SIZE_MAX);
    ampclient_pull_begin(call, output->type == AMPCLIENT_OUT_PULL ? &output->u.pull : NULL);
    int rc = start(call, output);
    if (rc == 0) {
        amp_list_push(&model->calls, &call->node);
        return;
    }
    model->unstarted = call->number;
    model->start_error = call->error;
    model->start_error.code = rc;
    ampclient_call_free(call);
}
