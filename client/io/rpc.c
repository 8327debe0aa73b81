#include "client/io/rpc.h"

#include "client/core/client_log.h"
#include "client/io/methods.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One try, on the loop's thread. From malloc, because a broken link keeps it. */
struct ampclient_exchange {
    struct ampclient_job job;
    struct ampclient_link *link;
    const struct ampclient_request *request; /* the waiting thread's */
    struct arpc_call *call;
    uint64_t borrowed; /* pieces of the user's memory that are still being sent */
    bool over;         /* the call has closed */
    struct ampclient_reply reply;
};

void ampclient_reply_close(struct ampclient_reply *reply)
{
    amp_buf_close(&reply->body);
}

static void finish_if_over(struct ampclient_exchange *exchange)
{
    if (exchange->over && exchange->borrowed == 0)
        ampclient_link_finish(exchange->link, &exchange->job);
}

static void on_sent(void *arg)
{
    struct ampclient_exchange *exchange = arg;
    exchange->borrowed--;
    finish_if_over(exchange);
}

int ampclient_rpc_send_view(struct arpc_call *call, const void *head, size_t head_size, const void *body,
                            size_t body_size)
{
    struct ampclient_exchange *exchange = arpc_call_user(call);
    int rc = arpc_call_send(call, head, head_size, body, body_size, on_sent, exchange);
    if (rc == 0)
        exchange->borrowed++;
    return rc;
}

/* Ends the exchange with this code; a later answer of the server is ignored. */
static void stop(struct ampclient_exchange *exchange, int code, const char *text)
{
    if (exchange->reply.code == 0)
        exchange->reply.code = amp_error_set(&exchange->reply.error, code, NULL, "%s", text);
    arpc_call_cancel(exchange->call, ARPC_STATUS_CANCELLED, text);
}

/* Whether the waiting thread has given up (a broken link), so that what the request points to may be gone. */
static bool is_left(const struct ampclient_exchange *exchange)
{
    (void)pthread_mutex_lock(&exchange->link->mutex);
    bool broken = exchange->link->broken;
    (void)pthread_mutex_unlock(&exchange->link->mutex);
    return broken;
}

static void on_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct ampclient_exchange *exchange = arpc_call_user(call);
    if (is_left(exchange))
        return;
    if (exchange->request->message_cb != NULL) {
        if (exchange->request->message_cb(exchange->request->arg, data, size) != 0)
            stop(exchange, AMP_ECANCELLED, "The call was ended by this side.");
    } else if (amp_buf_append(&exchange->reply.body, data, size) != 0) {
        stop(exchange, AMP_ENOMEM, "There is no memory for the server's answer.");
    }
}

static void feed(struct ampclient_exchange *exchange)
{
    if (is_left(exchange) || exchange->request->feed_cb == NULL)
        return;
    int rc = exchange->request->feed_cb(exchange->request->arg, exchange->call);
    if (rc == 1)
        arpc_call_half_close(exchange->call);
    else if (rc < 0 && rc != AMP_ESTATE) /* over: `closed` says why */
        stop(exchange, rc, "The values could not be sent; free some memory and try again.");
}

static void on_writable(struct arpc_call *call)
{
    feed(arpc_call_user(call));
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct ampclient_exchange *exchange = arpc_call_user(call);
    struct ampclient_reply *reply = &exchange->reply;
    arpc_call_blank(call); /* what a server that reads nothing has not taken is borrowed no longer; checksums tell it */
    reply->status = result->status;
    reply->from_peer = result->from_peer;
    reply->retry_ms = result->details.retry_ms > 0 ? (uint64_t)result->details.retry_ms : 0;
    if (reply->code == 0 && result->status != ARPC_STATUS_OK)
        reply->code = amp_error_set(
            &reply->error, ampclient_channels_code(&exchange->link->channels, result->status, result->from_peer),
            result->details.reason, "%s", result->message[0] != 0 ? result->message : arpc_status_name(result->status));
    ampclient_follow_refused(&exchange->link->follow, &result->details);
    exchange->over = true;
    finish_if_over(exchange);
}

static const struct arpc_handler exchange_handler = {
    .message = on_message, .writable = on_writable, .closed = on_closed};

static void run_exchange(struct ampclient_job *job)
{
    struct ampclient_exchange *exchange = AMP_CONTAINER(job, struct ampclient_exchange, job);
    const struct ampclient_request *request = exchange->request;
    struct arpc_call_options options = {.size = sizeof options,
                                        .deadline_ms = (int64_t)request->timeout_ms,
                                        .max_message = AMPCLIENT_REPLY_MAX,
                                        .idempotent = request->idempotent,
                                        .single_response = request->message_cb == NULL};
    struct ampclient_reply *reply = &exchange->reply;
    reply->code = ampclient_channels_call(&exchange->link->channels, request->shard, request->path, &options,
                                          &exchange_handler, exchange, &exchange->call, &reply->error);
    if (reply->code != 0) {
        reply->status = amp_err_grpc_status(reply->code);
        exchange->over = true;
        finish_if_over(exchange);
        return;
    }
    const struct amp_buf *body = request->body;
    int rc = arpc_call_send(exchange->call, body != NULL ? body->data : NULL, body != NULL ? body->size : 0, NULL, 0,
                            NULL, NULL);
    if (rc != 0 && rc != AMP_ESTATE) /* over: `closed` says why */
        stop(exchange, rc, "The request could not be sent; free some memory and try again.");
    else if (request->feed_cb != NULL)
        feed(exchange);
    else
        arpc_call_half_close(exchange->call);
}

static void cancel_exchange(struct ampclient_job *job)
{
    struct ampclient_exchange *exchange = AMP_CONTAINER(job, struct ampclient_exchange, job);
    if (!exchange->over)
        stop(exchange, AMP_ECANCELLED, "The call was interrupted.");
}

int ampclient_rpc(struct ampclient_link *link, const struct ampclient_request *request, struct ampclient_reply *reply)
{
    *reply = (struct ampclient_reply){0};
    amp_buf_init(&reply->body, AMPCLIENT_REPLY_MAX);
    if (ampclient_link_interrupted(link, request->stop)) /* in the pause between two tries */
        return reply->code = amp_error_set(&reply->error, AMP_ECANCELLED, NULL, "The call was interrupted.");
    struct ampclient_exchange *exchange = calloc(1, sizeof *exchange);
    if (exchange == NULL)
        return reply->code = amp_error_set(&reply->error, AMP_ENOMEM, NULL, "There is no memory for a call.");
    exchange->job.run_cb = run_exchange;
    exchange->job.cancel_cb = cancel_exchange;
    exchange->job.stop = request->stop;
    exchange->link = link;
    exchange->request = request;
    amp_buf_init(&exchange->reply.body, AMPCLIENT_REPLY_MAX);
    uint64_t wait_ms = request->timeout_ms != 0 ? request->timeout_ms : UINT64_MAX / 2;
    int rc = ampclient_link_run(link, &exchange->job, wait_ms, &reply->error);
    if (rc != 0)
        return reply->code = rc; /* broken: the exchange may still be in use and is left alone */
    *reply = exchange->reply;
    free(exchange);
    return reply->code;
}

/* ---- trying again ---- */

bool ampclient_may_repeat(const char *path)
{
    return strcmp(path, AMPCLIENT_ADMIN_SERVICE "Drain") != 0;
}

struct retry {
    uint64_t until_ms; /* 0: not unavailable yet */
    uint64_t pause_ms;
    unsigned repeats;
    uint64_t said_ms; /* when the log last said that calls fail; 0: not yet */
};

/* Logs that calls fail, but not the first failure: it may have met a connection that was about to end. */
static void log_trouble(struct retry *retry, struct ampclient_link *link, const struct ampclient_reply *reply)
{
    char line[AMP_ERROR_TEXT_MAX];
    if (retry->pause_ms == AMPCLIENT_RPC_PAUSE_MS * 2 ||
        !ampclient_log_due(&retry->said_ms, ampclient_now_ms(), AMPCLIENT_LOG_AGAIN_MS))
        return;
    (void)snprintf(line, sizeof line, "%s%.480s",
                   reply->error.reason[0] != 0 ? "trying again: " : "reconnecting: ", reply->error.text);
    ampclient_link_log_soon(link, AMPCLIENT_LOG_WARN, line);
}

/* Whether and when to try again after this answer. */
static bool another_try(struct retry *retry, const struct ampclient_reply *reply, uint64_t wait_ms, uint64_t *pause_ms)
{
    *pause_ms = 0;
    if (reply->code == AMP_EABORTED || reply->code == AMP_EDATALOSS)
        return retry->repeats++ < AMPCLIENT_RPC_REPEATS_MAX;
    if (reply->code != AMP_EUNAVAILABLE)
        return false;
    uint64_t now = ampclient_now_ms();
    if (retry->until_ms == 0)
        retry->until_ms = now + wait_ms;
    *pause_ms = reply->retry_ms > retry->pause_ms ? reply->retry_ms : retry->pause_ms;
    if (*pause_ms > AMPCLIENT_RPC_PAUSE_MAX_MS)
        *pause_ms = AMPCLIENT_RPC_PAUSE_MAX_MS;
    if (retry->pause_ms < AMPCLIENT_RPC_PAUSE_MAX_MS)
        retry->pause_ms *= 2;
    return now < retry->until_ms;
}

static void explain_deadline(const struct ampclient_request *request, struct amp_error *error)
{
    const char *slash = strrchr(request->path, '/'), *model = request->model;
    (void)amp_error_set(error, AMP_EDEADLINE, NULL,
                        "%.60s%s%.130s was not answered within %llu ms; see what the server waits for "
                        "(ampctl status), or raise call_timeout_ms.",
                        slash != NULL ? slash + 1 : request->path, model != NULL ? " of " : "",
                        model != NULL ? model : "", (unsigned long long)request->timeout_ms);
}

int ampclient_rpc_retry(struct ampclient_link *link, const struct ampclient_request *request, uint64_t wait_ms,
                        void (*restart_cb)(void *arg), struct ampclient_reply *reply)
{
    struct retry retry = {.pause_ms = AMPCLIENT_RPC_PAUSE_MS};
    for (;;) {
        if (restart_cb != NULL)
            restart_cb(request->arg);
        int rc = ampclient_rpc(link, request, reply);
        uint64_t pause_ms;
        if (!another_try(&retry, reply, wait_ms, &pause_ms)) {
            if (rc == 0 && retry.said_ms != 0)
                ampclient_link_log_soon(link, AMPCLIENT_LOG_WARN, "connected again");
            if (rc == AMP_EDEADLINE && reply->error.reason[0] == 0)
                explain_deadline(request, &reply->error);
            return rc;
        }
        if (reply->code == AMP_EUNAVAILABLE)
            log_trouble(&retry, link, reply);
        ampclient_reply_close(reply);
        ampclient_link_pause(link, pause_ms);
    }
}
