#include "server/io/etcd/etcd.h"

#include "base/assert.h"
#include "base/list.h"
#include "rpc/arpc_client.h"
#include "rpc/arpc_token.h"
#include "server/io/etcd/etcd_access.h"
#include "server/io/etcd/etcd_auth.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <uv.h>

/* Time to look up a name, connect, and exchange the first frames; a slower member of etcd is given up. */
#define CONNECT_MS 2000

/*
 * First and longest time from the beginning of a failed attempt to connect to the next attempt. A member of etcd that
 * comes back is found within the longer one.
 */
#define BACKOFF_MS     100
#define BACKOFF_MAX_MS 500

/*
 * A connection is lost if for so long nothing acknowledges what was sent, which takes the loss of three packets in a
 * row. It is half of the shortest lease, so that a keepalive of another connection can come in time.
 */
#define UNACKNOWLEDGED_MS 1000

/* After this many calls in a row without an answer a new connection is made: the peer may be gone without an error. */
#define SILENT_MAX 3

/* From one line of the log about a change of endpoint to the next: while all are away, each call changes it. */
#define LOG_AGAIN_MS 60000

struct endpoint {
    char address[IO_ETCD_ENDPOINT_MAX];
    struct arpc_channel *channel; /* NULL: dropped, or there was no memory; the next call makes it */
    uint32_t silent;              /* calls in a row that the endpoint has not answered */
};

struct io_etcd {
    uv_loop_t *loop;
    const struct amp_log *log;
    uint32_t count, preferred;
    struct endpoint endpoints[IO_ETCD_ENDPOINTS_MAX];
    int64_t logged_ms;    /* when a change of endpoint was last logged; 0: never */
    struct arpc_tls *tls; /* NULL: plaintext */
    struct io_etcd_auth auth;
    struct amp_list waiting; /* calls that wait for a token */
    uint32_t open;           /* channels, and the timer of auth, that are not closed yet */
    bool closing;
    void (*closed_cb)(void *arg);
    void *closed_arg;
};

struct call {
    struct amp_list node; /* in `waiting`, or in no list */
    struct io_etcd *etcd;
    uint32_t endpoint;
    const char *path;
    struct amp_buf request; /* kept while the call waits for a token */
    bool is_plain;          /* it is sent without a token */
    io_etcd_done_cb done_cb;
    void *arg;
    struct amp_buf answer;
};

int64_t io_etcd_now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_BOOTTIME, &now); /* cannot fail for this clock */
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- endpoints ---- */

/* Takes the endpoints from a list with commas. AMP_EINVAL. */
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
                                           .max_backoff_ms = BACKOFF_MAX_MS,
                                           .tls = etcd->tls,
                                           .unacknowledged_ms = UNACKNOWLEDGED_MS};
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
    arpc_tls_unref(etcd->tls);
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

/* Ends a call with its callback, and frees it. From the loop. */
static void finish(struct call *call, const struct amp_error *error)
{
    call->done_cb(call->arg, error, call->answer.data, call->answer.size);
    amp_buf_close(&call->answer);
    amp_buf_close(&call->request);
    free(call);
}

static int begin(struct call *call, const struct amp_buf *request);

/*
 * The request for a token has ended: calls that wait are sent, or end with its error. Calls that callbacks begin
 * meanwhile wait for the next request, if there is no token.
 */
static void on_auth(struct io_etcd *etcd, const struct amp_error *error)
{
    AMP_LIST_EACH(it, safe, &etcd->waiting)
    {
        struct call *call = AMP_CONTAINER(it, struct call, node);
        struct amp_error wrong = *error;
        amp_list_remove(it);
        if (wrong.code == 0 && begin(call, &call->request) != 0)
            (void)amp_error_set(&wrong, AMP_ENOMEM, NULL, "no memory for a call to etcd");
        if (wrong.code != 0)
            finish(call, &wrong);
    }
}

static int open_tls(struct io_etcd *etcd, const struct io_etcd_access *access, struct amp_error *error)
{
    int rc = io_etcd_access_tls(access, &etcd->tls, error);
    if (etcd->tls != NULL && arpc_tls_warning(etcd->tls)[0] != 0)
        amp_log(etcd->log, AMP_LOG_WARN, "etcd", "msg=\"%s\"", arpc_tls_warning(etcd->tls));
    return rc;
}

int io_etcd_new(struct uv_loop_s *loop, const char *endpoints, const struct io_etcd_access *access,
                const struct amp_log *log, struct io_etcd **out, struct amp_error *error)
{
    static const struct io_etcd_access nobody = {.tls = false};
    struct io_etcd *etcd = calloc(1, sizeof *etcd);
    if (etcd == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for a client of etcd");
    access = access != NULL ? access : &nobody;
    etcd->loop = loop;
    etcd->log = log;
    amp_list_init(&etcd->waiting);
    io_etcd_auth_init(&etcd->auth, etcd, access->user_file, on_auth);
    etcd->open++;
    int rc = split(etcd, endpoints, error);
    if (rc == 0)
        rc = open_tls(etcd, access, error);
    for (uint32_t i = 0; rc == 0 && i < etcd->count; i++)
        rc = connect_endpoint(etcd, &etcd->endpoints[i], error);
    if (rc == 0)
        *out = etcd;
    else
        io_etcd_close(etcd, NULL, NULL);
    return rc;
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct io_etcd_auth *auth = handle->data;
    struct io_etcd *etcd = auth->etcd;
    on_auth(etcd, &(struct amp_error){.code = AMP_ECANCELLED, .text = "etcd is not needed any more"});
    arpc_token_wipe(auth->token, sizeof auth->token);
    etcd->open--;
    finish_close(etcd);
}

void io_etcd_close(struct io_etcd *etcd, void (*closed_cb)(void *arg), void *arg)
{
    AMP_ASSERT(!etcd->closing);
    etcd->closed_cb = closed_cb;
    etcd->closed_arg = arg;
    for (uint32_t i = 0; i < etcd->count; i++)
        drop_channel(etcd, &etcd->endpoints[i]);
    etcd->closing = true;
    uv_close((uv_handle_t *)&etcd->auth.timer, on_timer_closed); /* comes from the loop: nothing is freed before */
}

void io_etcd_reload(struct io_etcd *etcd)
{
    struct amp_error error = {0};
    if (etcd->tls == NULL)
        return;
    if (arpc_tls_reload(etcd->tls, &error) == 0)
        amp_log(etcd->log, AMP_LOG_INFO, "etcd", "msg=\"certificates for etcd reloaded\"");
    else
        amp_log(etcd->log, AMP_LOG_ERROR, "etcd",
                "msg=\"the certificates for etcd could not be reloaded; the old ones stay in use\" err=\"%s\"",
                error.text);
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

struct arpc_channel *io_etcd_channel(struct io_etcd *etcd, uint32_t index)
{
    struct endpoint *endpoint = &etcd->endpoints[index];
    if (endpoint->channel == NULL && !etcd->closing)
        (void)connect_endpoint(etcd, endpoint, NULL); /* if it fails, the channel stays NULL */
    return endpoint->channel;
}

void io_etcd_failed(struct io_etcd *etcd, uint32_t index)
{
    if (index != etcd->preferred || etcd->count == 1)
        return;
    etcd->preferred = (index + 1) % etcd->count;
    if (etcd->logged_ms != 0 && io_etcd_now_ms() - etcd->logged_ms < LOG_AGAIN_MS)
        return;
    etcd->logged_ms = io_etcd_now_ms();
    amp_log(etcd->log, AMP_LOG_INFO, "etcd", "msg=\"using another endpoint\" before=%s now=%s",
            etcd->endpoints[index].address, etcd->endpoints[etcd->preferred].address);
}

void io_etcd_reconnect(struct io_etcd *etcd, uint32_t index)
{
    if (etcd->closing)
        return;
    amp_log(etcd->log, AMP_LOG_INFO, "etcd", "msg=\"no answer, connecting again\" endpoint=%s",
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

/* Draws conclusions about an endpoint from the end of a call: whether to use another one, or a new connection. */
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
    if (result->from_peer && !call->is_plain)
        io_etcd_auth_judge(&call->etcd->auth, result->status);
    if (result->status != ARPC_STATUS_OK)
        (void)amp_error_set(&error, amp_err_from_grpc_status(result->status), NULL, "etcd at %.120s: %.200s",
                            call->etcd->endpoints[call->endpoint].address, result->message);
    finish(call, &error);
}

static const struct arpc_handler unary = {.message = on_message, .closed = on_closed};

/* The metadata of a call: sets *pair and returns 1 if there is a token, else 0. */
static size_t metadata_of(const struct io_etcd *etcd, struct arpc_pair *pair)
{
    const char *token = io_etcd_auth_token(&etcd->auth);
    *pair = (struct arpc_pair){"token", token};
    return token != NULL ? 1 : 0;
}

/* Sends a call to the preferred endpoint. On success it frees itself at its end; after an error it is the caller's. */
static int begin(struct call *call, const struct amp_buf *request)
{
    struct io_etcd *etcd = call->etcd;
    struct arpc_call *rpc;
    struct arpc_pair token;
    struct arpc_call_options options = {.size = sizeof options,
                                        .deadline_ms = IO_ETCD_CALL_MS,
                                        .max_message = IO_ETCD_MESSAGE_MAX,
                                        .single_response = true,
                                        .metadata = &token};
    options.metadata_count = call->is_plain ? 0 : metadata_of(etcd, &token);
    call->endpoint = etcd->preferred;
    struct arpc_channel *channel = io_etcd_channel(etcd, call->endpoint);
    int rc = channel == NULL ? AMP_ENOMEM : arpc_channel_call(channel, call->path, &options, &unary, call, &rpc, NULL);
    if (rc != 0)
        return rc;
    if (arpc_call_send(rpc, request->data, request->size, NULL, 0, NULL, NULL) == 0)
        arpc_call_half_close(rpc);
    else
        arpc_call_cancel(rpc, ARPC_STATUS_RESOURCE_EXHAUSTED, "no memory for the request");
    return 0;
}

static struct call *new_call(struct io_etcd *etcd, const char *path, io_etcd_done_cb done_cb, void *arg)
{
    struct call *call = etcd->closing ? NULL : calloc(1, sizeof *call);
    if (call == NULL)
        return NULL;
    *call = (struct call){.etcd = etcd, .path = path, .done_cb = done_cb, .arg = arg};
    amp_list_init(&call->node);
    amp_buf_init(&call->answer, IO_ETCD_MESSAGE_MAX);
    amp_buf_init(&call->request, IO_ETCD_MESSAGE_MAX);
    return call;
}

int io_etcd_call_plain(struct io_etcd *etcd, const char *path, const struct amp_buf *request, io_etcd_done_cb done_cb,
                       void *arg)
{
    struct call *call = new_call(etcd, path, done_cb, arg);
    if (call == NULL)
        return AMP_ENOMEM;
    call->is_plain = true;
    int rc = begin(call, request);
    if (rc != 0)
        free(call);
    return rc;
}

int io_etcd_call(struct io_etcd *etcd, const char *path, const struct amp_buf *request, io_etcd_done_cb done_cb,
                 void *arg)
{
    struct call *call = new_call(etcd, path, done_cb, arg);
    if (call == NULL)
        return AMP_ENOMEM;
    bool waits = io_etcd_auth_lacks(&etcd->auth);
    int rc = waits ? amp_buf_append(&call->request, request->data, request->size) : begin(call, request);
    if (rc != 0) {
        amp_buf_close(&call->request);
        free(call);
    } else if (waits) {
        amp_list_push(&etcd->waiting, &call->node);
        io_etcd_auth_ask(&etcd->auth);
    }
    return rc;
}

int io_etcd_stream(struct io_etcd *etcd, uint32_t index, const char *path, const struct arpc_handler *handler,
                   void *user, struct arpc_call **out)
{
    struct arpc_pair token;
    struct arpc_call_options options = {.size = sizeof options, .max_message = IO_ETCD_MESSAGE_MAX, .metadata = &token};
    options.metadata_count = metadata_of(etcd, &token);
    struct arpc_channel *channel = io_etcd_channel(etcd, index);
    return channel == NULL ? AMP_ENOMEM : arpc_channel_call(channel, path, &options, handler, user, out, NULL);
}
