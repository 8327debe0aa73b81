#include "server/io/etcd.h"

#include "base/assert.h"
#include "base/list.h"
#include "rpc/arpc_client.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

/* For a name, a connection and its first frames; a member that is slower is not waited for. */
#define CONNECT_MS 2000

/* From the begin of a failed attempt to connect to the next. A member that comes back is found within the longer one. */
#define BACKOFF_MS     100
#define BACKOFF_MAX_MS 500

/* After so many calls in a row without an answer the connection is made anew: its peer may be gone without a word. */
#define SILENT_MAX 3

struct endpoint {
    char address[IO_ETCD_ENDPOINT_MAX];
    struct arpc_channel *channel; /* NULL: there was no memory for it; made with the next call */
    uint32_t silent;              /* calls in a row that nobody has answered */
};

struct io_etcd {
    uv_loop_t *loop;
    const struct amp_log *log;
    uint32_t count, preferred;
    struct endpoint endpoints[IO_ETCD_ENDPOINTS_MAX];
    uint32_t open; /* channels that are not closed yet */
    bool closing;
    void (*closed_cb)(void *arg);
    void *closed_arg;
};

struct call {
    struct io_etcd *etcd;
    uint32_t endpoint;
    io_etcd_done_cb done_cb;
    void *arg;
    struct amp_buf answer;
};

int64_t io_etcd_now_ms(void)
{
    return (int64_t)(uv_hrtime() / 1000000);
}

/* ---- endpoints ---- */

static int split(struct io_etcd *etcd, const char *endpoints, struct amp_error *error)
{
    for (const char *at = endpoints;; at++) {
        size_t size = strcspn(at, ",");
        if (size == 0 || size >= IO_ETCD_ENDPOINT_MAX || etcd->count == IO_ETCD_ENDPOINTS_MAX)
            return amp_error_set(error, AMP_EINVAL, NULL,
                                 "etcd: %.200s: give 1 to %d addresses with commas between them", endpoints,
                                 IO_ETCD_ENDPOINTS_MAX);
        memcpy(etcd->endpoints[etcd->count++].address, at, size);
        at += size;
        if (*at == 0)
            return 0;
    }
}

static int connect_endpoint(struct io_etcd *etcd, struct endpoint *endpoint, struct amp_error *error)
{
    struct arpc_channel_options options = {.size = sizeof options,
                                           .connect_ms = CONNECT_MS,
                                           .initial_backoff_ms = BACKOFF_MS,
                                           .max_backoff_ms = BACKOFF_MAX_MS};
    endpoint->silent = 0;
    int rc = arpc_channel_new(etcd->loop, endpoint->address, &options, &endpoint->channel, error);
    if (rc == 0)
        etcd->open++;
    return rc;
}

static void finish_close(struct io_etcd *etcd)
{
    if (!etcd->closing || etcd->open > 0)
        return;
    void (*closed_cb)(void *arg) = etcd->closed_cb;
    void *arg = etcd->closed_arg;
    free(etcd);
    if (closed_cb != NULL)
        closed_cb(arg);
}

static void on_channel_closed(void *arg)
{
    struct io_etcd *etcd = arg;
    etcd->open--;
    finish_close(etcd);
}

static void drop_channel(struct io_etcd *etcd, struct endpoint *endpoint)
{
    struct arpc_channel *channel = endpoint->channel;
    endpoint->channel = NULL;
    if (channel != NULL)
        arpc_channel_close(channel, on_channel_closed, etcd);
}

int io_etcd_new(struct uv_loop_s *loop, const char *endpoints, const struct amp_log *log, struct io_etcd **out,
                struct amp_error *error)
{
    struct io_etcd *etcd = calloc(1, sizeof *etcd);
    if (etcd == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for a client of etcd");
    etcd->loop = loop;
    etcd->log = log;
    int rc = split(etcd, endpoints, error);
    for (uint32_t i = 0; rc == 0 && i < etcd->count; i++)
        rc = connect_endpoint(etcd, &etcd->endpoints[i], error);
    if (rc == 0)
        *out = etcd;
    else
        io_etcd_close(etcd, NULL, NULL);
    return rc;
}

void io_etcd_close(struct io_etcd *etcd, void (*closed_cb)(void *arg), void *arg)
{
    AMP_ASSERT(!etcd->closing);
    etcd->closed_cb = closed_cb;
    etcd->closed_arg = arg;
    etcd->open++; /* so that none of them is the last one while this goes on */
    for (uint32_t i = 0; i < etcd->count; i++)
        drop_channel(etcd, &etcd->endpoints[i]);
    etcd->open--;
    etcd->closing = true;
    finish_close(etcd);
}

uv_loop_t *io_etcd_loop(const struct io_etcd *etcd)
{
    return etcd->loop;
}

const struct amp_log *io_etcd_log(const struct io_etcd *etcd)
{
    return etcd->log;
}

uint32_t io_etcd_count(const struct io_etcd *etcd)
{
    return etcd->count;
}

uint32_t io_etcd_preferred(const struct io_etcd *etcd)
{
    return etcd->preferred;
}

const char *io_etcd_endpoint(const struct io_etcd *etcd, uint32_t index)
{
    return etcd->endpoints[index].address;
}

struct arpc_channel *io_etcd_channel(struct io_etcd *etcd, uint32_t index)
{
    struct endpoint *endpoint = &etcd->endpoints[index];
    if (endpoint->channel == NULL && !etcd->closing)
        (void)connect_endpoint(etcd, endpoint, NULL); /* NULL again: there is no memory for it */
    return endpoint->channel;
}

void io_etcd_failed(struct io_etcd *etcd, uint32_t index)
{
    if (index != etcd->preferred || etcd->count == 1)
        return;
    etcd->preferred = (index + 1) % etcd->count;
    amp_log(etcd->log, AMP_LOG_INFO, "etcd", "msg=\"going on with another endpoint\" before=%s now=%s",
            etcd->endpoints[index].address, etcd->endpoints[etcd->preferred].address);
}

void io_etcd_reconnect(struct io_etcd *etcd, uint32_t index)
{
    if (etcd->closing)
        return;
    amp_log(etcd->log, AMP_LOG_INFO, "etcd", "msg=\"no answer, connecting anew\" endpoint=%s",
            etcd->endpoints[index].address);
    drop_channel(etcd, &etcd->endpoints[index]); /* the next call makes another */
}

/* ---- calls ---- */

static void on_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct call *call = arpc_call_user(rpc);
    if (amp_buf_append(&call->answer, data, size) != 0)
        arpc_call_cancel(rpc, ARPC_STATUS_RESOURCE_EXHAUSTED, "no memory for the answer");
}

/* What the end of a call says about its endpoint. */
static void judge(struct io_etcd *etcd, uint32_t index, const struct arpc_result *result)
{
    struct endpoint *endpoint = &etcd->endpoints[index];
    if (result->status == ARPC_STATUS_OK || etcd->closing) {
        endpoint->silent = 0;
        return;
    }
    endpoint->silent = result->from_peer ? 0 : endpoint->silent + 1;
    io_etcd_failed(etcd, index);
    if (result->status == ARPC_STATUS_DEADLINE_EXCEEDED && endpoint->silent >= SILENT_MAX)
        io_etcd_reconnect(etcd, index);
}

static void on_closed(struct arpc_call *rpc, const struct arpc_result *result)
{
    struct call *call = arpc_call_user(rpc);
    struct amp_error error = {0};
    judge(call->etcd, call->endpoint, result);
    if (result->status != ARPC_STATUS_OK)
        (void)amp_error_set(&error, amp_err_from_grpc_status(result->status), NULL, "etcd at %.120s: %.200s",
                            call->etcd->endpoints[call->endpoint].address, result->message);
    call->done_cb(call->arg, &error, call->answer.data, call->answer.size);
    amp_buf_close(&call->answer);
    free(call);
}

static const struct arpc_handler unary = {.message = on_message, .closed = on_closed};

int io_etcd_call(struct io_etcd *etcd, const char *path, const struct amp_buf *request, io_etcd_done_cb done_cb,
                 void *arg)
{
    static const struct arpc_call_options options = {.size = sizeof options,
                                                     .deadline_ms = IO_ETCD_CALL_MS,
                                                     .max_message = IO_ETCD_MESSAGE_MAX,
                                                     .single_response = true};
    struct arpc_call *rpc;
    struct arpc_channel *channel = io_etcd_channel(etcd, etcd->preferred);
    struct call *call = channel != NULL ? calloc(1, sizeof *call) : NULL;
    if (call == NULL)
        return AMP_ENOMEM;
    *call = (struct call){.etcd = etcd, .endpoint = etcd->preferred, .done_cb = done_cb, .arg = arg};
    amp_buf_init(&call->answer, IO_ETCD_MESSAGE_MAX);
    int rc = arpc_channel_call(channel, path, &options, &unary, call, &rpc, NULL);
    if (rc != 0) {
        free(call);
        return rc;
    }
    rc = arpc_call_send(rpc, request->data, request->size, NULL, 0, NULL, NULL);
    if (rc == 0)
        arpc_call_half_close(rpc);
    else
        arpc_call_cancel(rpc, ARPC_STATUS_RESOURCE_EXHAUSTED, "no memory for the request");
    return 0;
}
