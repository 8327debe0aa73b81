/*
 * interop_server [--port P] [--tls --cert-file F --key-file F]: serves grpc.testing.TestService, for the
 * interoperability test clients of other implementations. Prints "port N". Test only.
 */
#include "tests/conformance/foreign/interop.pb.h"
#include "tests/conformance/foreign/serve.h"
#include "tests/conformance/foreign/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_MAX ((size_t)4 << 20)
/* Answers that one call may have outstanding: 64 times what the largest test case asks for. */
#define PLANS_MAX 1024

#define ECHO_INITIAL  "x-grpc-test-echo-initial"
#define ECHO_TRAILING "x-grpc-test-echo-trailing-bin"

static const char *const keep[] = {ECHO_INITIAL, ECHO_TRAILING, NULL};

/* Every payload that is sent; never written to. */
static uint8_t zeros[MESSAGE_MAX];

/* One answer that is due. */
struct plan {
    size_t size;
    uint64_t interval_us;
};

struct interop_call {
    struct arpc_call *call; /* NULL once it is closed */
    uv_timer_t timer;
    bool waited; /* for the interval of the first plan */
    bool ended;  /* the client, or the only request is here */
    bool half_duplex;
    uint64_t received;
    struct amp_buf plans;
};

static void on_timer_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    (void)result;
    struct interop_call *state = arpc_call_user(call);
    state->call = NULL;
    amp_buf_close(&state->plans);
    uv_close((uv_handle_t *)&state->timer, on_timer_closed);
}

static void on_started(struct arpc_call *call)
{
    struct interop_call *state = calloc(1, sizeof *state);
    const uint8_t *value;
    size_t size;
    if (state == NULL)
        abort();
    state->call = call;
    state->half_duplex = strcmp(arpc_call_method(call)->name, "HalfDuplexCall") == 0;
    amp_buf_init(&state->plans, PLANS_MAX * sizeof(struct plan));
    (void)uv_timer_init(uv_default_loop(), &state->timer);
    state->timer.data = state;
    arpc_call_set_user(call, state);
    if (arpc_call_metadata(call, ECHO_INITIAL, 0, &value, &size))
        (void)arpc_call_add_initial(call, ECHO_INITIAL, value, size);
    if (arpc_call_metadata(call, ECHO_TRAILING, 0, &value, &size))
        (void)arpc_call_add_trailing(call, ECHO_TRAILING, value, size);
}

static void no_release(void *arg)
{
    (void)arg; /* the zeros live until exit */
}

/* Both SimpleResponse and StreamingOutputCallResponse are a Payload in field 1. */
static int send_payload(struct arpc_call *call, size_t size)
{
    struct amp_buf payload;
    struct amp_buf head;
    amp_buf_init(&payload, 64);
    amp_buf_init(&head, 64);
    wire_put_head(&payload, grpc_testing_Payload_body_tag, size);
    wire_put_head(&head, grpc_testing_SimpleResponse_payload_tag, payload.size + size);
    if (amp_buf_append(&head, payload.data, payload.size) != 0)
        abort();
    int rc = arpc_call_send(call, head.data, head.size, zeros, size, no_release, NULL);
    amp_buf_close(&payload);
    amp_buf_close(&head);
    return rc;
}

static void on_empty(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    (void)arpc_call_reply(call, NULL, 0);
}

/* Ends the call as response_status asks; false if it does not. The field has one number in both requests. */
static bool echo_status(struct arpc_call *call, struct wire_span request)
{
    char text[1024];
    struct wire_span status = wire_bytes(request, grpc_testing_SimpleRequest_response_status_tag);
    struct wire_span message = wire_bytes(status, grpc_testing_EchoStatus_message_tag);
    int code = (int)wire_number(status, grpc_testing_EchoStatus_code_tag);
    if (code == 0)
        return false;
    (void)snprintf(text, sizeof text, "%.*s", (int)message.size, message.size > 0 ? (const char *)message.data : "");
    arpc_call_finish(call, code, text, NULL);
    return true;
}

static bool refuse_size(struct arpc_call *call, uint64_t size)
{
    if (size <= MESSAGE_MAX)
        return false;
    arpc_call_finish(call, ARPC_STATUS_INVALID_ARGUMENT, "response size: 0 to 4 MiB are possible", NULL);
    return true;
}

static void on_unary(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct wire_span request = {data, size};
    uint64_t wanted = wire_number(request, grpc_testing_SimpleRequest_response_size_tag);
    if (echo_status(call, request) || refuse_size(call, wanted))
        return;
    if (send_payload(call, (size_t)wanted) != 0)
        arpc_call_finish(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "the answer could not be queued", NULL);
    else
        arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
}

static void on_input(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct interop_call *state = arpc_call_user(call);
    struct wire_span request = {data, size};
    struct wire_span payload = wire_bytes(request, grpc_testing_StreamingInputCallRequest_payload_tag);
    state->received += wire_bytes(payload, grpc_testing_Payload_body_tag).size;
}

static void input_ended(struct arpc_call *call)
{
    struct interop_call *state = arpc_call_user(call);
    struct amp_buf answer;
    amp_buf_init(&answer, 64);
    wire_put_number(&answer, grpc_testing_StreamingInputCallResponse_aggregated_payload_size_tag, state->received);
    (void)arpc_call_reply(call, answer.data, answer.size);
    amp_buf_close(&answer);
}

static void on_interval(uv_timer_t *timer);

/* Sends what is due; goes on from the timer, or when the queue has fallen. */
static void send_plans(struct arpc_call *call)
{
    struct interop_call *state = arpc_call_user(call);
    while (state->plans.size > 0 && (state->ended || !state->half_duplex)) {
        struct plan plan;
        memcpy(&plan, state->plans.data, sizeof plan);
        if (arpc_call_queued(call) > ARPC_HIGH_WATER || uv_is_active((uv_handle_t *)&state->timer))
            return;
        if (plan.interval_us > 0 && !state->waited) {
            (void)uv_timer_start(&state->timer, on_interval, (plan.interval_us + 999) / 1000, 0);
            return;
        }
        if (send_payload(call, plan.size) != 0)
            return;
        state->waited = false;
        amp_buf_consume(&state->plans, sizeof plan);
    }
    if (state->ended && state->plans.size == 0)
        arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
}

static void on_interval(uv_timer_t *timer)
{
    struct interop_call *state = timer->data;
    state->waited = true;
    if (state->call != NULL)
        send_plans(state->call);
}

static void on_output(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct interop_call *state = arpc_call_user(call);
    struct wire_span request = {data, size};
    struct wire_field field;
    if (echo_status(call, request))
        return;
    while (wire_next(&request, &field)) {
        if (field.tag != grpc_testing_StreamingOutputCallRequest_response_parameters_tag)
            continue;
        uint64_t wanted = wire_number(field.bytes, grpc_testing_ResponseParameters_size_tag);
        struct plan plan = {(size_t)wanted, wire_number(field.bytes, grpc_testing_ResponseParameters_interval_us_tag)};
        if (refuse_size(call, wanted))
            return;
        if (amp_buf_append(&state->plans, &plan, sizeof plan) != 0) {
            arpc_call_finish(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "too many answers are outstanding", NULL);
            return;
        }
    }
    send_plans(call);
}

static void output_ended(struct arpc_call *call)
{
    struct interop_call *state = arpc_call_user(call);
    state->ended = true;
    send_plans(call);
}

static const struct arpc_handler empty = {.started = on_started, .message = on_empty, .closed = on_closed};
static const struct arpc_handler unary = {.started = on_started, .message = on_unary, .closed = on_closed};
static const struct arpc_handler input = {
    .started = on_started, .message = on_input, .half_close = input_ended, .closed = on_closed};
static const struct arpc_handler output = {.started = on_started,
                                           .message = on_output,
                                           .half_close = output_ended,
                                           .writable = send_plans,
                                           .closed = on_closed};

#define SERVICE "grpc.testing.TestService"

static const struct arpc_method methods[] = {
    {SERVICE, "EmptyCall", ARPC_UNARY, true, 0, MESSAGE_MAX, &empty},
    {SERVICE, "UnaryCall", ARPC_UNARY, true, 0, MESSAGE_MAX, &unary},
    {SERVICE, "StreamingInputCall", ARPC_CLIENT_STREAM, false, 0, MESSAGE_MAX, &input},
    {SERVICE, "StreamingOutputCall", ARPC_SERVER_STREAM, false, 0, MESSAGE_MAX, &output},
    {SERVICE, "FullDuplexCall", ARPC_BIDI, false, 0, MESSAGE_MAX, &output},
    {SERVICE, "HalfDuplexCall", ARPC_BIDI, false, 0, MESSAGE_MAX, &output},
    {SERVICE, "UnimplementedCall", ARPC_UNARY, false, 0, MESSAGE_MAX, NULL},
};

int main(int argc, char **argv)
{
    struct arpc_tls_server_options files = {.size = sizeof files};
    bool tls = false;
    int port = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--tls") == 0) {
            tls = true;
        } else if (strcmp(argv[i], "--port") == 0 && i + 1 < argc) {
            port = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--cert-file") == 0 && i + 1 < argc) {
            files.cert_file = argv[++i];
        } else if (strcmp(argv[i], "--key-file") == 0 && i + 1 < argc) {
            files.key_file = argv[++i];
        } else {
            (void)fprintf(stderr, "usage: interop_server [--port P] [--tls --cert-file F --key-file F]\n");
            return 2;
        }
    }
    struct arpc_server_options options = {.size = sizeof options, .keep_metadata = keep, .compress = true};
    struct arpc_server *server =
        serve_begin(&options, methods, sizeof methods / sizeof *methods, tls ? &files : NULL, &port);
    if (server == NULL)
        return 1;
    (void)printf("port %d\n", port);
    (void)fflush(stdout);
    return serve_run(server);
}
