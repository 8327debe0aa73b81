/*
 * connect_server: the server under test of connectrpc's conformance runner. Reads one size-prefixed ServerCompatRequest
 * from stdin, writes a ServerCompatResponse to stdout, and serves connectrpc.conformance.v1.ConformanceService. Test
 * only.
 *
 * A call's first request says what is to be answered: headers, messages, a delay before each, an error, trailers. What
 * was received goes back in the first answer, or in the error's details if there is none.
 */
#include "tests/conformance/foreign/connect.pb.h"
#include "tests/conformance/foreign/serve.h"
#include "tests/conformance/foreign/wire.h"

#include "base/assert.h"
#include "rpc/h2/call.h"
#include "rpc/wire/details.h"
#include "tests/temp_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MESSAGE_MAX ((size_t)4 << 20)
#define HELD_MAX    ((size_t)64 << 20) /* of what one call received, kept for its answer */
#define PACKAGE     "connectrpc.conformance.v1."
#define TYPE_URL    "type.googleapis.com/" PACKAGE

#define TAG(name) connectrpc_conformance_v1_##name##_tag

/* The request metadata that the runner's cases send. */
static const char *const keep[] = {"x-conformance-test", "x-custom-header", NULL};

/* A response definition: the numbers differ between unary and streamed answers. */
struct definition_tags {
    uint32_t data;
    uint32_t delay;
    uint32_t error;
    uint32_t headers;
    uint32_t trailers;
};

static const struct definition_tags single = {
    TAG(UnaryResponseDefinition_response_data), TAG(UnaryResponseDefinition_response_delay_ms),
    TAG(UnaryResponseDefinition_error), TAG(UnaryResponseDefinition_response_headers),
    TAG(UnaryResponseDefinition_response_trailers)};
static const struct definition_tags streamed = {
    TAG(StreamResponseDefinition_response_data), TAG(StreamResponseDefinition_response_delay_ms),
    TAG(StreamResponseDefinition_error), TAG(StreamResponseDefinition_response_headers),
    TAG(StreamResponseDefinition_response_trailers)};

struct connect_call {
    struct arpc_call *call; /* NULL once it is closed */
    uv_timer_t timer;
    const struct definition_tags *tags;
    bool one_answer;           /* unary and client stream */
    bool full_duplex;          /* an answer to each request, as it comes */
    bool ended;                /* no more requests */
    bool waited;               /* for the delay of the next answer */
    uint64_t received;         /* requests */
    uint64_t sent;             /* answers */
    struct amp_buf definition; /* of the first request */
    struct amp_buf requests;   /* fields of RequestInfo, not yet sent back */
};

static void on_timer_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    (void)result;
    struct connect_call *state = arpc_call_user(call);
    state->call = NULL;
    amp_buf_close(&state->definition);
    amp_buf_close(&state->requests);
    uv_close((uv_handle_t *)&state->timer, on_timer_closed);
}

static void on_started(struct arpc_call *call)
{
    struct connect_call *state = calloc(1, sizeof *state);
    enum arpc_kind kind = arpc_call_method(call)->kind;
    if (state == NULL)
        abort();
    state->call = call;
    state->one_answer = kind == ARPC_UNARY || kind == ARPC_CLIENT_STREAM;
    state->tags = state->one_answer ? &single : &streamed;
    amp_buf_init(&state->definition, HELD_MAX);
    amp_buf_init(&state->requests, HELD_MAX);
    (void)uv_timer_init(uv_default_loop(), &state->timer);
    state->timer.data = state;
    arpc_call_set_user(call, state);
}

static struct wire_span span_of(const struct amp_buf *buf)
{
    return (struct wire_span){buf->data, buf->size};
}

static void put_text(struct amp_buf *out, uint32_t tag, const char *text)
{
    wire_put_bytes(out, tag, text, strlen(text));
}

/* ---- what was received ---- */

static void put_headers(struct amp_buf *info, const struct arpc_call *call)
{
    for (const char *const *name = keep; *name != NULL; name++) {
        struct amp_buf header;
        const uint8_t *value;
        size_t size;
        size_t count = 0;
        amp_buf_init(&header, HELD_MAX);
        put_text(&header, TAG(Header_name), *name);
        for (; arpc_call_metadata(call, *name, count, &value, &size); count++)
            wire_put_bytes(&header, TAG(Header_value), value, size);
        if (count > 0)
            wire_put_bytes(info, TAG(RequestInfo_request_headers), header.data, header.size);
        amp_buf_close(&header);
    }
}

/* Takes the requests that were not sent back yet; headers and timeout only the first time. */
static void put_info(struct connect_call *state, struct amp_buf *out)
{
    if (state->sent == 0) {
        int64_t left_ms = arpc_call_time_left_ms(state->call);
        put_headers(out, state->call);
        if (left_ms != INT64_MAX)
            wire_put_number(out, TAG(RequestInfo_timeout_ms), (uint64_t)left_ms);
    }
    if (state->requests.size > 0 && amp_buf_append(out, state->requests.data, state->requests.size) != 0)
        abort();
    amp_buf_close(&state->requests);
}

static void put_any(struct amp_buf *out, uint32_t tag, const char *type_url, struct wire_span value)
{
    struct amp_buf any;
    amp_buf_init(&any, HELD_MAX);
    put_text(&any, google_protobuf_Any_type_url_tag, type_url);
    wire_put_bytes(&any, google_protobuf_Any_value_tag, value.data, value.size);
    wire_put_message(out, tag, &any);
}

/* ---- what is answered ---- */

/* Adds each value of each Header field with this tag. */
static void add_metadata(struct connect_call *state, uint32_t tag,
                         int (*add)(struct arpc_call *, const char *, const void *, size_t))
{
    struct wire_span rest = span_of(&state->definition);
    struct wire_field header;
    while (wire_next(&rest, &header)) {
        char name[64];
        struct wire_field field;
        if (header.tag != tag)
            continue;
        struct wire_span text = wire_bytes(header.bytes, TAG(Header_name));
        (void)snprintf(name, sizeof name, "%.*s", (int)text.size, (const char *)text.data);
        while (wire_next(&header.bytes, &field))
            if (field.tag == TAG(Header_value))
                (void)add(state->call, name, field.bytes.data, field.bytes.size);
    }
}

/* The index-th message to answer; false if there are not so many. A unary answer without data is an empty one. */
static bool find_answer(const struct connect_call *state, struct wire_span *data)
{
    struct wire_span rest = span_of(&state->definition);
    struct wire_field field;
    uint64_t index = 0;
    while (wire_next(&rest, &field)) {
        if (state->one_answer && field.tag == state->tags->error)
            return false;
        if (field.tag != state->tags->data || index++ != state->sent)
            continue;
        *data = field.bytes;
        return true;
    }
    *data = (struct wire_span){0};
    return state->one_answer && state->sent == 0;
}

static void send_answer(struct connect_call *state, struct wire_span data)
{
    struct amp_buf info;
    struct amp_buf payload;
    struct amp_buf answer;
    amp_buf_init(&info, HELD_MAX);
    amp_buf_init(&payload, HELD_MAX);
    amp_buf_init(&answer, HELD_MAX);
    if (data.size > 0)
        wire_put_bytes(&payload, TAG(ConformancePayload_data), data.data, data.size);
    if (state->sent == 0 || state->full_duplex) {
        put_info(state, &info);
        wire_put_message(&payload, TAG(ConformancePayload_request_info), &info);
    }
    wire_put_message(&answer, TAG(Response_payload), &payload);
    if (arpc_call_send(state->call, answer.data, answer.size, NULL, 0, NULL, NULL) != 0)
        arpc_call_finish(state->call, ARPC_STATUS_RESOURCE_EXHAUSTED, "the answer could not be queued", NULL);
    amp_buf_close(&answer);
    state->sent++;
}

/* arpc_details has no place for details of any type: they are put where arpc_call_finish would have put its own. */
static void set_details(struct arpc_call *call, const struct amp_buf *status)
{
    AMP_ASSERT(call->status_details == NULL && status->size <= ARPC_STATUS_BYTES_MAX);
    call->status_details = malloc(status->size);
    if (call->status_details == NULL)
        abort();
    memcpy(call->status_details, status->data, status->size);
    call->status_details_size = status->size;
}

/* google.rpc.Status has the fields of Error, so its bytes are copied, and the details of this call put behind them. */
static void finish(struct connect_call *state)
{
    char text[1024];
    struct wire_span error = wire_bytes(span_of(&state->definition), state->tags->error);
    if (error.data == NULL) {
        arpc_call_finish(state->call, ARPC_STATUS_OK, NULL, NULL);
        return;
    }
    struct amp_buf status;
    struct amp_buf info;
    amp_buf_init(&status, HELD_MAX);
    amp_buf_init(&info, HELD_MAX);
    if (amp_buf_append(&status, error.data, error.size) != 0)
        abort();
    if (state->sent == 0) {
        put_info(state, &info);
        put_any(&status, TAG(Error_details), TYPE_URL "ConformancePayload.RequestInfo", span_of(&info));
        amp_buf_close(&info);
    }
    struct wire_span message = wire_bytes(error, TAG(Error_message));
    (void)snprintf(text, sizeof text, "%.*s", (int)message.size, message.size > 0 ? (const char *)message.data : "");
    arpc_call_finish(state->call, (int)wire_number(error, TAG(Error_code)), text, NULL);
    set_details(state->call, &status);
    amp_buf_close(&status);
}

static void on_delayed(uv_timer_t *timer);

/* Answers what is due: all when the requests have ended, and one for each of them in full duplex. */
static void go_on(struct connect_call *state)
{
    while (state->ended || (state->full_duplex && state->sent < state->received)) {
        struct wire_span data;
        bool more = find_answer(state, &data);
        uint64_t delay_ms = wire_number(span_of(&state->definition), state->tags->delay);
        if (uv_is_active((uv_handle_t *)&state->timer))
            return;
        if ((more || state->one_answer) && delay_ms > 0 && !state->waited) {
            (void)uv_timer_start(&state->timer, on_delayed, delay_ms, 0);
            return;
        }
        state->waited = false;
        if (more)
            send_answer(state, data);
        if (!more || state->one_answer) {
            finish(state);
            return;
        }
    }
}

static void on_delayed(uv_timer_t *timer)
{
    struct connect_call *state = timer->data;
    state->waited = true;
    if (state->call != NULL)
        go_on(state);
}

static void on_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct connect_call *state = arpc_call_user(call);
    const struct arpc_method *method = arpc_call_method(call);
    struct wire_span request = {data, size};
    char type_url[128];
    if (state->received++ == 0) {
        struct wire_span definition = wire_bytes(request, TAG(UnaryRequest_response_definition));
        if (definition.size > 0 && amp_buf_append(&state->definition, definition.data, definition.size) != 0)
            abort();
        state->full_duplex = method->kind == ARPC_BIDI && wire_number(request, TAG(BidiStreamRequest_full_duplex)) != 0;
        add_metadata(state, state->tags->headers, arpc_call_add_initial);
        add_metadata(state, state->tags->trailers, arpc_call_add_trailing);
    }
    (void)snprintf(type_url, sizeof type_url, TYPE_URL "%sRequest", method->name);
    put_any(&state->requests, TAG(RequestInfo_requests), type_url, request);
    go_on(state);
}

static void on_half_close(struct arpc_call *call)
{
    struct connect_call *state = arpc_call_user(call);
    state->ended = true;
    go_on(state);
}

static const struct arpc_handler handler = {
    .started = on_started, .message = on_message, .half_close = on_half_close, .closed = on_closed};

/* ---- the runner ---- */

static bool read_request(struct amp_buf *request)
{
    uint8_t prefix[4];
    uint8_t byte;
    amp_buf_init(request, MESSAGE_MAX);
    if (fread(prefix, 1, sizeof prefix, stdin) != sizeof prefix)
        return false;
    uint32_t size = (uint32_t)prefix[0] << 24 | (uint32_t)prefix[1] << 16 | (uint32_t)prefix[2] << 8 | prefix[3];
    for (uint32_t i = 0; i < size; i++)
        if (fread(&byte, 1, 1, stdin) != 1 || amp_buf_append(request, &byte, 1) != 0)
            return false;
    return true;
}

static void write_response(int port, struct wire_span cert)
{
    struct amp_buf response;
    amp_buf_init(&response, MESSAGE_MAX);
    put_text(&response, TAG(ServerCompatResponse_host), "127.0.0.1");
    wire_put_number(&response, TAG(ServerCompatResponse_port), (uint64_t)port);
    if (cert.size > 0)
        wire_put_bytes(&response, TAG(ServerCompatResponse_pem_cert), cert.data, cert.size);
    uint8_t prefix[4] = {0, 0, (uint8_t)(response.size >> 8), (uint8_t)response.size};
    AMP_ASSERT(response.size <= UINT16_MAX);
    (void)fwrite(prefix, 1, sizeof prefix, stdout);
    (void)fwrite(response.data, 1, response.size, stdout);
    (void)fflush(stdout);
    amp_buf_close(&response);
}

/* The context is made from files, which are read at once: the names live as long as the folder. */
struct credentials {
    char folder[TEMP_FOLDER_MAX];
    char cert[TEMP_FOLDER_MAX + 16];
    char key[TEMP_FOLDER_MAX + 16];
    char authority[TEMP_FOLDER_MAX + 16];
};

static bool write_file(char *name, size_t capacity, const char *folder, const char *what, struct wire_span data)
{
    (void)snprintf(name, capacity, "%s/%s", folder, what);
    FILE *file = fopen(name, "w");
    if (file == NULL)
        return false;
    bool written = fwrite(data.data, 1, data.size, file) == data.size;
    return fclose(file) == 0 && written;
}

/* False where the request asks for TLS and its files cannot be written. */
static bool take_credentials(struct wire_span request, struct credentials *names, struct arpc_tls_server_options *files)
{
    struct wire_span creds = wire_bytes(request, TAG(ServerCompatRequest_server_creds));
    struct wire_span client = wire_bytes(request, TAG(ServerCompatRequest_client_tls_cert));
    if (!temp_folder(names->folder, "connect") ||
        !write_file(names->cert, sizeof names->cert, names->folder, "cert", wire_bytes(creds, TAG(TLSCreds_cert))) ||
        !write_file(names->key, sizeof names->key, names->folder, "key", wire_bytes(creds, TAG(TLSCreds_key))))
        return false;
    *files = (struct arpc_tls_server_options){
        .size = sizeof *files, .cert_file = names->cert, .key_file = names->key, .client_cert_auth = client.size > 0};
    if (client.size == 0)
        return true;
    files->trusted_ca_file = names->authority;
    return write_file(names->authority, sizeof names->authority, names->folder, "authority", client);
}

static void drop_credentials(const struct credentials *names)
{
    (void)unlink(names->cert);
    (void)unlink(names->key);
    (void)unlink(names->authority);
    (void)rmdir(names->folder);
}

#define SERVICE PACKAGE "ConformanceService"

int main(void)
{
    struct amp_buf request;
    struct credentials names = {0};
    struct arpc_tls_server_options files;
    int port = 0;
    bool there = read_request(&request);
    struct wire_span wanted = span_of(&request);
    bool tls = wire_number(wanted, TAG(ServerCompatRequest_use_tls)) != 0;
    if (!there || (tls && !take_credentials(wanted, &names, &files))) {
        (void)fprintf(stderr, "connect_server: no ServerCompatRequest on stdin, or its certificates cannot be kept\n");
        return 1;
    }
    size_t limit = (size_t)wire_number(wanted, TAG(ServerCompatRequest_message_receive_limit));
    size_t max_message = limit > 0 ? limit : MESSAGE_MAX;
    const struct arpc_method methods[] = {
        {SERVICE, "Unary", ARPC_UNARY, false, 0, max_message, &handler},
        {SERVICE, "ServerStream", ARPC_SERVER_STREAM, false, 0, max_message, &handler},
        {SERVICE, "ClientStream", ARPC_CLIENT_STREAM, false, 0, max_message, &handler},
        {SERVICE, "BidiStream", ARPC_BIDI, false, 0, max_message, &handler},
        {SERVICE, "Unimplemented", ARPC_UNARY, false, 0, max_message, NULL},
        {SERVICE, "IdempotentUnary", ARPC_UNARY, true, 0, max_message, &handler},
    };
    struct arpc_server_options options = {.size = sizeof options, .keep_metadata = keep, .compress = true};
    struct arpc_server *server =
        serve_begin(&options, methods, sizeof methods / sizeof *methods, tls ? &files : NULL, &port);
    if (tls)
        drop_credentials(&names);
    if (server == NULL)
        return 1;
    struct wire_span creds = wire_bytes(wanted, TAG(ServerCompatRequest_server_creds));
    write_response(port, tls ? wire_bytes(creds, TAG(TLSCreds_cert)) : (struct wire_span){0});
    amp_buf_close(&request);
    return serve_run(server);
}
