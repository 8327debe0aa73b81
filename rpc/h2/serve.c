/*
 * The server's side of header blocks: a request becomes a call of a row, or is refused; a response is its head, its
 * messages and its trailers, or only trailers.
 */
#include "rpc/h2/body.h"
#include "rpc/h2/abuse.h"
#include "rpc/h2/serve.h"

#include "base/assert.h"
#include "base/err.h"
#include "rpc/arpc_server.h"
#include "rpc/h2/stats.h"
#include "rpc/wire/details.h"
#include "rpc/wire/text.h"

#include <nghttp2/nghttp2.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fields of a response of ours, apart from metadata. */
#define OWN_FIELDS 7

/* *proto_named: it names the message format, as "application/grpc+proto". */
static bool is_grpc_content(const uint8_t *value, size_t size, bool *proto_named)
{
    static const char type[] = "application/grpc";
    static const char proto[] = "+proto";
    size_t length = sizeof type - 1;
    if (size < length || memcmp(value, type, length) != 0)
        return false;
    value += length;
    size -= length;
    *proto_named = size >= sizeof proto - 1 && memcmp(value, proto, sizeof proto - 1) == 0;
    if (*proto_named) {
        value += sizeof proto - 1;
        size -= sizeof proto - 1;
    }
    return size == 0 || *value == ';' || *value == ' ';
}

enum arpc_encoding arpc_encoding_of(const uint8_t *name, size_t size)
{
    if (arpc_nv_is(name, size, "gzip"))
        return ARPC_ENCODING_GZIP;
    return arpc_nv_is(name, size, "identity") ? ARPC_ENCODING_IDENTITY : ARPC_ENCODING_UNKNOWN;
}

static void find_method(struct arpc_call *call, const uint8_t *path, size_t size)
{
    const struct arpc_method_row *row = arpc_method_table_find(&call->link->config->methods, path, size);
    call->method = row != NULL ? row->method : NULL;
    call->stats = row != NULL ? row->stats : NULL;
}

int arpc_serve_field(struct arpc_call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                     size_t value_size)
{
    struct arpc_head *head = &call->head;
    if (arpc_nv_is(name, name_size, ":path"))
        find_method(call, value, value_size);
    else if (arpc_nv_is(name, name_size, ":method"))
        head->post = arpc_nv_is(value, value_size, "POST");
    else if (arpc_nv_is(name, name_size, "content-type"))
        head->grpc_content = is_grpc_content(value, value_size, &head->proto_content);
    else if (arpc_nv_is(name, name_size, "grpc-timeout"))
        head->bad_timeout |= arpc_timeout_parse(value, value_size, &head->timeout_ns) != 0;
    else if (arpc_nv_is(name, name_size, "grpc-encoding"))
        head->encoding = arpc_encoding_of(value, value_size);
    else if (arpc_nv_is(name, name_size, "grpc-accept-encoding"))
        head->accepts_gzip = head->accepts_gzip || arpc_list_has(value, value_size, "gzip");
    else
        return arpc_head_keep(call, name, name_size, value, value_size);
    return 0;
}

/* An answer to a request that no handler hears of. */
static void refuse(struct arpc_call *call, int status, const char *message)
{
    call->quiet = true;
    arpc_call_bad_request(call);
    arpc_call_finish(call, status, message, NULL);
}

static bool refuse_bad_head(struct arpc_call *call)
{
    struct arpc_head *head = &call->head;
    if (head->too_large) {
        refuse(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "the request's metadata is too large");
    } else if (!head->post || !head->grpc_content) {
        head->http_status = head->post ? 415 : 405;
        refuse(call, ARPC_STATUS_UNKNOWN, NULL);
    } else if (call->method == NULL) {
        refuse(call, ARPC_STATUS_UNIMPLEMENTED, "unknown service or method");
    } else if (call->method->handler == NULL) {
        refuse(call, ARPC_STATUS_UNIMPLEMENTED, "this server does not implement the method");
    } else if (head->bad_timeout) {
        refuse(call, ARPC_STATUS_INVALID_ARGUMENT, "grpc-timeout: 1 to 8 digits and one of H M S m u n are expected");
    } else if (head->timeout_ns == 0) {
        /* The work would be for nobody; and whether the handler or the clock is first must not be chance. */
        refuse(call, ARPC_STATUS_DEADLINE_EXCEEDED, "the deadline has passed before the call began");
    } else if (head->bad_metadata) {
        refuse(call, ARPC_STATUS_INTERNAL, "metadata: a -bin value is not base64");
    } else if (head->encoding == ARPC_ENCODING_UNKNOWN) {
        refuse(call, ARPC_STATUS_UNIMPLEMENTED, "grpc-encoding: only identity and gzip are accepted");
    } else {
        return false;
    }
    return true;
}

static void set_deadline(struct arpc_call *call)
{
    if (call->head.timeout_ns == INT64_MAX)
        return;
    int64_t timeout_ms = call->head.timeout_ns / 1000000 + (call->head.timeout_ns % 1000000 != 0);
    call->deadline_ms = arpc_after(arpc_link_now(call->link), timeout_ms);
    arpc_link_due(call->link, call->deadline_ms);
}

unsigned arpc_link_admit_again(struct arpc_link *link,
                               int (*admit_cb)(struct arpc_call *call, void *arg, struct amp_error *error))
{
    unsigned ended = 0;
    AMP_LIST_EACH(it, safe, &link->calls)
    {
        struct arpc_call *call = AMP_CONTAINER(it, struct arpc_call, in_link);
        struct amp_error error = {0};
        bool begun = call->method != NULL && call->handler == call->method->handler;
        if (!begun || call->out.ended || arpc_call_is_over(call) || admit_cb(call, link->config->arg, &error) == 0)
            continue;
        arpc_call_fail(call, &error);
        ended++;
    }
    return ended;
}

/*
 * A call may stay open for as long as its client likes, and send nothing: all of them share a budget, and the oldest of
 * the address that has most ends if that is too much. Unadmitted connections have few (limits.unadmitted_calls), for
 * which nobody else's ends.
 */
static void charge_open(struct arpc_call *call)
{
    if (!call->link->was_admitted)
        return;
    struct arpc_account *account = &call->link->host->open;
    int64_t now_ms = arpc_link_now(call->link);
    arpc_charge_set(&call->open, account, (int64_t)(ARPC_CALL_BYTES + call->kept.bytes.size), now_ms);
    struct arpc_charge *charge;
    while ((charge = arpc_charge_excess(&call->open, now_ms)) != NULL) {
        struct arpc_call *other = AMP_CONTAINER(charge, struct arpc_call, open);
        arpc_charge_set(charge, charge->account, 0, now_ms);
        arpc_link_count(other->link, ARPC_ABUSE_OPEN);
        arpc_call_cancel(other, ARPC_STATUS_RESOURCE_EXHAUSTED,
                         "open calls of this address take too much memory: have fewer open at a time");
    }
}

void arpc_serve_begin(struct arpc_call *call)
{
    const struct arpc_link_config *config = call->link->config;
    if (refuse_bad_head(call))
        return;
    arpc_stats_begin(call);
    struct amp_error error = {0};
    if (config->admit_cb != NULL && config->admit_cb(call, config->arg, &error) != 0) {
        call->quiet = true;
        arpc_call_fail(call, &error);
        return;
    }
    /* What everybody may call, as health, keeps no place here for anybody. */
    if (config->admit_cb == NULL || call->method->roles != 0)
        arpc_call_admit(call);
    call->quiet = false;
    call->out.compress = config->compress && call->head.accepts_gzip;
    call->handler = call->method->handler;
    call->in.max_message = call->method->max_message;
    call->in.single_inbound = call->method->kind == ARPC_UNARY || call->method->kind == ARPC_SERVER_STREAM;
    set_deadline(call);
    if (call->handler->started != NULL)
        call->handler->started(call);
    charge_open(call);
}

/* The answer has the form of the request. */
static void put_content_type(const struct arpc_call *call, nghttp2_nv *nv, size_t *count)
{
    if (call->head.proto_content)
        arpc_nv_add(nv, count, "content-type", "application/grpc+proto", 22);
    else
        arpc_nv_add(nv, count, "content-type", "application/grpc", 16);
}

/* The text of the trailers, which must live until they are submitted. */
struct trailer_text {
    char status[2];
    char message[3 * ARPC_STATUS_TEXT_MAX];
    char details[ARPC_BASE64_SIZE(ARPC_STATUS_BYTES_MAX)];
    char pushback[24];
};

/* By hand, for snprintf takes 3 % of the time of a small call. The number of characters. */
static size_t write_status(int status, char text[2])
{
    AMP_ASSERT(status >= 0 && status <= ARPC_STATUS_UNAUTHENTICATED);
    size_t size = 0;
    if (status >= 10)
        text[size++] = '1';
    text[size++] = (char)('0' + status % 10);
    return size;
}

static void put_trailers(const struct arpc_call *call, nghttp2_nv *nv, size_t *count, struct trailer_text *text)
{
    arpc_nv_add(nv, count, "grpc-status", text->status, write_status(call->status, text->status));
    if (call->status_message != NULL) {
        size_t size = arpc_percent_encode(call->status_message, text->message, sizeof text->message);
        arpc_nv_add(nv, count, "grpc-message", text->message, size);
    }
    if (call->status_details != NULL) {
        size_t size = arpc_base64_encode(call->status_details, call->status_details_size, text->details);
        arpc_nv_add(nv, count, "grpc-status-details-bin", text->details, size);
    }
    if (call->retry_ms != 0) {
        int size = snprintf(text->pushback, sizeof text->pushback, "%" PRId64, call->retry_ms);
        arpc_nv_add(nv, count, "grpc-retry-pushback-ms", text->pushback, (size_t)size);
    }
    arpc_nv_add_fields(nv, count, &call->out.trailing);
}

int arpc_serve_trailers(struct arpc_call *call)
{
    struct trailer_text text;
    nghttp2_nv nv[OWN_FIELDS + ARPC_FIELDS_MAX];
    size_t count = 0;
    call->out.last_submitted = true;
    put_trailers(call, nv, &count, &text);
    return nghttp2_submit_trailer(arpc_call_session(call), call->stream_id, nv, count);
}

static int submit_http_refusal(struct arpc_call *call)
{
    char status[4];
    nghttp2_nv nv[1];
    size_t count = 0;
    int size = snprintf(status, sizeof status, "%d", call->head.http_status);
    arpc_nv_add(nv, &count, ":status", status, (size_t)size);
    return nghttp2_submit_response(arpc_call_session(call), call->stream_id, nv, count, NULL);
}

static int submit_trailers_only(struct arpc_call *call)
{
    struct trailer_text text;
    nghttp2_nv nv[OWN_FIELDS + ARPC_FIELDS_MAX];
    size_t count = 0;
    arpc_nv_add(nv, &count, ":status", "200", 3);
    put_content_type(call, nv, &count);
    if (call->head.encoding == ARPC_ENCODING_UNKNOWN)
        arpc_nv_add(nv, &count, "grpc-accept-encoding", ARPC_ENCODINGS, sizeof ARPC_ENCODINGS - 1);
    put_trailers(call, nv, &count, &text);
    return nghttp2_submit_response(arpc_call_session(call), call->stream_id, nv, count, NULL);
}

static int submit_head(struct arpc_call *call)
{
    nghttp2_nv nv[OWN_FIELDS + ARPC_FIELDS_MAX];
    size_t count = 0;
    arpc_nv_add(nv, &count, ":status", "200", 3);
    put_content_type(call, nv, &count);
    if (call->out.compress)
        arpc_nv_add(nv, &count, "grpc-encoding", "gzip", 4);
    arpc_nv_add_fields(nv, &count, &call->out.initial);
    nghttp2_data_provider provider = {.source.ptr = call, .read_callback = arpc_link_read_body};
    return nghttp2_submit_response(arpc_call_session(call), call->stream_id, nv, count, &provider);
}

static int submit_first(struct arpc_call *call)
{
    bool bare = call->out.unsent == 0 && call->out.initial.count == 0;
    call->out.head_submitted = true;
    call->out.last_submitted = call->head.http_status != 0 || bare;
    if (call->head.http_status != 0)
        return submit_http_refusal(call);
    return bare ? submit_trailers_only(call) : submit_head(call);
}

void arpc_serve_flush(struct arpc_call *call)
{
    if (call->out.reset)
        arpc_out_drop_useless(call);
    if (call->stream_over || call->out.last_submitted || (call->out.unsent == 0 && !call->out.ended))
        return;
    bool all = call->out.ended && (call->out.reset || call->out.unsent == call->out.framed);
    int rc = call->out.head_submitted ? 0 : submit_first(call);
    if (rc == 0 && !call->out.last_submitted && all) {
        rc = arpc_serve_trailers(call); /* they need no window, for which the body's callback would have to wait */
    } else if (rc == 0 && call->out.deferred) {
        call->out.deferred = false;
        rc = nghttp2_session_resume_data(arpc_call_session(call), call->stream_id);
    }
    if (rc == NGHTTP2_ERR_NOMEM)
        arpc_link_fail(call->link, AMP_ENOMEM, "no memory for a response");
    /* Any other failure says that the stream is closing, which its close callback tells. */
}

void arpc_call_finish(struct arpc_call *call, int status, const char *message, const struct arpc_details *details)
{
    AMP_ASSERT(call->server);
    if (call->out.ended || arpc_call_is_over(call))
        return;
    arpc_call_set_status(call, status, message);
    status = call->status;
    if (details != NULL) {
        call->retry_ms = details->retry_ms;
        uint8_t bytes[ARPC_STATUS_BYTES_MAX];
        size_t size = 0;
        const char *text = call->status_message != NULL ? call->status_message : "";
        /* Without memory the details are lost, not the status. */
        if (arpc_details_encode(status, text, details, bytes, &size) == 0 && size > 0)
            call->status_details = malloc(size);
        if (call->status_details != NULL) {
            memcpy(call->status_details, bytes, size);
            call->status_details_size = size;
        }
    }
    call->out.ended = true;
    arpc_call_set_state(call, call->state == ARPC_CALL_OPEN ? ARPC_CALL_LOCAL_ENDED : ARPC_CALL_BOTH_ENDED);
    arpc_call_mark_dirty(call);
}

void arpc_call_fail(struct arpc_call *call, const struct amp_error *error)
{
    struct arpc_details details = {.reason = error->reason};
    int status = amp_err_grpc_status(error->code);
    const char *text = error->text[0] != 0 ? error->text : amp_strerror(error->code);
    arpc_call_finish(call, status != 0 ? status : ARPC_STATUS_UNKNOWN, text, &details);
}

int arpc_call_reply(struct arpc_call *call, const void *message, size_t size)
{
    int rc = arpc_call_send(call, message, size, NULL, 0, NULL, NULL);
    if (rc == 0) {
        arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
    } else {
        struct amp_error error;
        (void)amp_error_set(&error, rc, NULL, "the answer could not be queued: %s", amp_strerror(rc));
        arpc_call_fail(call, &error);
    }
    return rc;
}

int arpc_call_add_initial(struct arpc_call *call, const char *key, const void *value, size_t size)
{
    if (call->out.head_submitted || call->out.unsent > 0 || call->out.ended)
        return AMP_ESTATE;
    return arpc_fields_add_metadata(&call->out.initial, key, value, size, false);
}

int arpc_call_add_trailing(struct arpc_call *call, const char *key, const void *value, size_t size)
{
    if (call->out.ended)
        return AMP_ESTATE;
    return arpc_fields_add_metadata(&call->out.trailing, key, value, size, false);
}

const struct arpc_method *arpc_call_method(const struct arpc_call *call)
{
    return call->method;
}

void *arpc_call_server_arg(const struct arpc_call *call)
{
    return call->link != NULL ? call->link->config->arg : NULL;
}

const struct arpc_peer *arpc_call_peer_info(const struct arpc_call *call)
{
    static const struct arpc_peer nobody = {.address = "", .pid = -1, .uid = -1, .gid = -1};
    return call->link != NULL ? &call->link->peer_info : &nobody;
}

const char *arpc_call_peer(const struct arpc_call *call)
{
    return call->link != NULL ? call->link->peer : "";
}
