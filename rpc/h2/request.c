/* The client's side of header blocks: a call becomes a request; what comes back becomes a result. */
#include "rpc/h2/body.h"
#include "rpc/h2/request.h"

#include "base/assert.h"
#include "base/err.h"
#include "rpc/arpc_client.h"
#include "rpc/h2/serve.h"
#include "rpc/wire/details.h"
#include "rpc/wire/status.h"
#include "rpc/wire/text.h"

#include <nghttp2/nghttp2.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWN_FIELDS 11
#define USER_AGENT "grpc-c-ampd/" ARPC_VERSION

/* Longest "/package.Service/Method". */
#define PATH_MAX_SIZE 512

static bool path_ok(const char *path)
{
    size_t size = strnlen(path, PATH_MAX_SIZE + 1);
    const char *second = path[0] == '/' ? strchr(path + 1, '/') : NULL;
    if (size > PATH_MAX_SIZE || second == NULL || second == path + 1 || second[1] == 0)
        return false;
    return arpc_metadata_text_ok((const uint8_t *)path, size);
}

static int add_metadata(struct arpc_call *call, const struct arpc_pair *pairs, size_t count, struct amp_error *error)
{
    for (size_t i = 0; i < count; i++) {
        int rc = arpc_fields_add_metadata(&call->out.initial, pairs[i].key, (const uint8_t *)pairs[i].value,
                                          strlen(pairs[i].value), true);
        if (rc != 0)
            return amp_error_set(error, rc, NULL, "metadata \"%s\" cannot be sent: %s", pairs[i].key, amp_strerror(rc));
    }
    return 0;
}

int arpc_request_new(struct arpc_link *link, const char *path, const struct arpc_pair *metadata, size_t metadata_count,
                     const struct arpc_handler *handler, struct arpc_call **out, struct amp_error *error)
{
    if (!path_ok(path))
        return amp_error_set(error, AMP_EINVAL, NULL, "\"%s\" is not \"/package.Service/Method\"", path);
    struct arpc_call *call = arpc_call_create(link, handler);
    if (call == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "no memory for a call");
    call->path = strdup(path);
    int rc = call->path != NULL ? add_metadata(call, metadata, metadata_count, error)
                                : amp_error_set(error, AMP_ENOMEM, NULL, "no memory for a call");
    if (rc == 0) {
        arpc_call_mark_dirty(call);
        *out = call;
        return 0;
    }
    /* It was never the caller's: it goes without a word. */
    call->quiet = true;
    arpc_call_close(call, ARPC_STATUS_INTERNAL, NULL);
    arpc_call_stream_over(call);
    return rc;
}

static void keep_details(struct arpc_call *call, const uint8_t *value, size_t size)
{
    uint8_t *raw = size <= 2 * ARPC_STATUS_BYTES_MAX ? malloc(size + 1) : NULL;
    if (raw == NULL || arpc_base64_decode(value, size, raw, &call->head.details_size) != 0) {
        free(raw); /* broken details do not spoil the status */
        return;
    }
    free(call->head.details);
    call->head.details = raw;
}

static void keep_message(struct arpc_call *call, const uint8_t *value, size_t size)
{
    char text[ARPC_STATUS_TEXT_MAX];
    (void)arpc_percent_decode(value, size, text, sizeof text);
    free(call->head.message);
    call->head.message = strdup(text);
}

/* A field that comes twice says nothing clear, which is "no" too. */
static void keep_pushback(struct arpc_head *head, const uint8_t *value, size_t size)
{
    bool first = head->pushback == ARPC_PUSHBACK_NONE;
    head->pushback = first ? arpc_pushback_parse(value, size, &head->pushback_ms) : ARPC_PUSHBACK_NEVER;
}

static int parse_http_status(const uint8_t *value, size_t size)
{
    int status = 0;
    for (size_t i = 0; i < size && i < 3; i++)
        status = status * 10 + (value[i] - '0');
    return status;
}

int arpc_request_field(struct arpc_call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                       size_t value_size)
{
    struct arpc_head *head = &call->head;
    if (arpc_nv_is(name, name_size, ":status"))
        head->http_status = parse_http_status(value, value_size);
    else if (arpc_nv_is(name, name_size, "content-type"))
        head->grpc_content = value_size >= 16 && memcmp(value, "application/grpc", 16) == 0;
    else if (arpc_nv_is(name, name_size, "grpc-encoding"))
        head->encoding = arpc_encoding_of(value, value_size);
    else if (arpc_nv_is(name, name_size, "grpc-status"))
        head->grpc_status = arpc_status_parse(value, value_size);
    else if (arpc_nv_is(name, name_size, "grpc-message"))
        keep_message(call, value, value_size);
    else if (arpc_nv_is(name, name_size, "grpc-status-details-bin"))
        keep_details(call, value, value_size);
    else if (arpc_nv_is(name, name_size, "grpc-retry-pushback-ms"))
        keep_pushback(head, value, value_size);
    else
        return arpc_head_keep(call, name, name_size, value, value_size);
    return 0;
}

/* A response that is not gRPC: its HTTP status says more than what follows. */
static bool refuse_foreign(struct arpc_call *call)
{
    const struct arpc_head *head = &call->head;
    char text[96];
    if (head->too_large) {
        arpc_call_fault(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "the response's metadata is too large");
    } else if (head->http_status != 200 && head->grpc_status < 0) {
        (void)snprintf(text, sizeof text, "the server answered with HTTP status %d", head->http_status);
        arpc_call_fault(call, arpc_status_from_http(head->http_status), text);
    } else if (!head->grpc_content && head->grpc_status < 0) {
        arpc_call_fault(call, ARPC_STATUS_UNKNOWN, "the response's content-type is not application/grpc");
    } else {
        return false;
    }
    return true;
}

/* The status of an answer that is not gRPC, which a proxy may have given; OK if it is gRPC. */
static int foreign_status(const struct arpc_head *head)
{
    if (head->grpc_status >= 0 || head->too_large)
        return ARPC_STATUS_OK;
    if (head->http_status != 200)
        return arpc_status_from_http(head->http_status);
    return head->grpc_content ? ARPC_STATUS_OK : ARPC_STATUS_UNKNOWN;
}

static bool foreign_again(struct arpc_call *call)
{
    int status = foreign_status(&call->head);
    if (status == ARPC_STATUS_OK || !arpc_call_try_again(call, status, ARPC_REACH_SERVER))
        return false;
    arpc_call_reset(call, NGHTTP2_CANCEL);
    return true;
}

bool arpc_request_again(struct arpc_call *call)
{
    int status = call->head.grpc_status;
    if (status == ARPC_STATUS_OK)
        arpc_retry_succeeded(&call->link->config->throttle);
    if (status < 0)
        return foreign_again(call);
    if (status == ARPC_STATUS_OK || !arpc_call_try_again(call, status, ARPC_REACH_SERVER))
        return false;
    arpc_call_reset(call, NGHTTP2_NO_ERROR); /* goes if END_STREAM has not left */
    return true;
}

void arpc_request_head(struct arpc_call *call)
{
    if (foreign_again(call) || refuse_foreign(call))
        return;
    arpc_call_commit(call);
    if (call->handler->started != NULL)
        call->handler->started(call);
}

void arpc_request_end(struct arpc_call *call)
{
    const struct arpc_head *head = &call->head;
    if (head->grpc_status < 0) {
        if (!refuse_foreign(call))
            arpc_call_fault(call, ARPC_STATUS_UNKNOWN, "the response ended without grpc-status");
        return;
    }
    if (head->grpc_status == ARPC_STATUS_OK && call->in.single_inbound && call->in.messages != 1) {
        arpc_call_fault(call, ARPC_STATUS_INTERNAL, "the server sent OK without its message");
        return;
    }
    if (head->grpc_status == ARPC_STATUS_OK && call->in.single_inbound && call->handler->message != NULL)
        arpc_call_deliver(call);
    if (arpc_call_is_over(call))
        return;
    bool all_sent = call->state == ARPC_CALL_BOTH_ENDED && call->out.unsent == 0;
    call->from_peer = true;
    arpc_call_close(call, head->grpc_status, head->message);
    /* The server has said its last word; what this side had still to send is of no use. */
    if (!all_sent)
        arpc_call_reset(call, NGHTTP2_NO_ERROR);
}

static int32_t submit_request(struct arpc_call *call)
{
    const char *authority = call->link->peer;
    const char *scheme = call->link->peer_info.encrypted ? "https" : "http";
    nghttp2_nv nv[OWN_FIELDS + ARPC_FIELDS_MAX];
    size_t count = 0;
    arpc_nv_add(nv, &count, ":method", "POST", 4);
    arpc_nv_add(nv, &count, ":scheme", scheme, strlen(scheme));
    arpc_nv_add(nv, &count, ":path", call->path, strlen(call->path));
    arpc_nv_add(nv, &count, ":authority", authority, strlen(authority));
    arpc_nv_add(nv, &count, "te", "trailers", 8);
    arpc_nv_add(nv, &count, "content-type", "application/grpc", 16);
    arpc_nv_add(nv, &count, "grpc-accept-encoding", ARPC_ENCODINGS, sizeof ARPC_ENCODINGS - 1);
    arpc_nv_add(nv, &count, "user-agent", USER_AGENT, sizeof USER_AGENT - 1);
    char timeout[ARPC_TIMEOUT_TEXT_MAX];
    if (call->deadline_ms != INT64_MAX) {
        size_t size = arpc_timeout_write(arpc_call_time_left_ms(call), timeout);
        arpc_nv_add(nv, &count, "grpc-timeout", timeout, size);
    }
    char attempts[12];
    if (call->attempt.retry.attempts > 0) {
        int size = snprintf(attempts, sizeof attempts, "%u", call->attempt.retry.attempts);
        arpc_nv_add(nv, &count, "grpc-previous-rpc-attempts", attempts, (size_t)size);
    }
    arpc_nv_add_fields(nv, &count, &call->out.initial);
    nghttp2_data_provider provider = {.source.ptr = call, .read_callback = arpc_link_read_body};
    return nghttp2_submit_request(arpc_call_session(call), NULL, nv, count, &provider, call);
}

static void begin_stream(struct arpc_call *call)
{
    bool allowed = arpc_link_takes_calls(call->link);
    int32_t id = allowed ? submit_request(call) : 0;
    if (id > 0) {
        call->stream_id = id;
        call->out.head_submitted = true;
        call->link->stream_count++;
        return;
    }
    if (id == NGHTTP2_ERR_NOMEM)
        arpc_call_close(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "no memory for the request");
    else if (!arpc_call_try_again(call, ARPC_STATUS_UNAVAILABLE, ARPC_REACH_NONE))
        arpc_call_close(call, ARPC_STATUS_UNAVAILABLE, "the connection takes no further calls");
    arpc_call_stream_over(call);
}

/*
 * nghttp2 would queue requests above the peer's limit too, but it keeps those that were cancelled until their turn
 * comes, and says nothing when a GOAWAY has made them hopeless. A call that waits here goes as soon as it is over.
 */
void arpc_request_begin(struct arpc_link *link)
{
    size_t limit = nghttp2_session_get_remote_settings(link->session, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS);
    while (!amp_list_empty(&link->waiting) && (link->stream_count < limit || !arpc_link_takes_calls(link))) {
        struct arpc_call *call = AMP_CONTAINER(link->waiting.next, struct arpc_call, in_waiting);
        amp_list_remove(&call->in_waiting);
        if (!arpc_call_ignores_input(call))
            begin_stream(call);
    }
}

void arpc_request_flush(struct arpc_call *call)
{
    if (call->stream_over || call->out.reset || call->attempt.again)
        return;
    if (call->stream_id == 0) {
        if (!arpc_call_is_over(call) && amp_list_empty(&call->in_waiting))
            amp_list_push(&call->link->waiting, &call->in_waiting);
        return;
    }
    if (call->out.deferred && (call->out.unsent > 0 || call->out.ended)) {
        /* A failure says that the stream is closing, which its close callback tells. */
        (void)nghttp2_session_resume_data(arpc_call_session(call), call->stream_id);
        call->out.deferred = false;
    }
}
