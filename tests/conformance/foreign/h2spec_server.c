/*
 * h2spec_server: the same HTTP/2 under a path that answers 200 to anything, since h2spec knows no gRPC: it sends GET
 * and POST without a content type, bodies without message prefixes, and compares what comes back with what comes to its
 * first plain request. Prints "port N". Test only.
 *
 * The linker puts the two functions below between rpc's link and its calls (--wrap). All that h2spec looks at is above
 * them or below: header blocks and frames are checked, answered and counted as for any call.
 */
#include "tests/conformance/foreign/serve.h"

#include "rpc/h2/call.h"

#include <stdio.h>
#include <stdlib.h>

#define ANSWER_MS 20

int __wrap_arpc_serve_field(struct arpc_call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                            size_t value_size);
int __real_arpc_serve_field(struct arpc_call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                            size_t value_size);
size_t __wrap_arpc_call_receive(struct arpc_call *call, const uint8_t *data, size_t size);

/* Any method and content type are what the row expects. */
int __wrap_arpc_serve_field(struct arpc_call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                            size_t value_size)
{
    int rc = __real_arpc_serve_field(call, name, name_size, value, value_size);
    call->head.post = true;
    call->head.grpc_content = true;
    return rc;
}

/*
 * Bodies are no messages, but their window grows as that of a call which has begun its second large one: h2spec sends a
 * frame of the largest size without a look at the window.
 */
size_t __wrap_arpc_call_receive(struct arpc_call *call, const uint8_t *data, size_t size)
{
    call->in.messages = 2;
    (void)data;
    return size;
}

static void on_timer_closed(uv_handle_t *handle)
{
    free(handle);
}

/* h2spec wants to see streams that are half closed: the answer comes a little later. */
static void on_timer(uv_timer_t *timer)
{
    static const char text[] = "a body of some bytes";
    struct arpc_call *call = timer->data;
    (void)arpc_call_reply(call, text, sizeof text - 1);
    arpc_call_unref(call);
    uv_close((uv_handle_t *)timer, on_timer_closed);
}

static void on_half_close(struct arpc_call *call)
{
    uv_timer_t *timer = malloc(sizeof *timer);
    if (timer == NULL)
        abort();
    (void)uv_timer_init(uv_default_loop(), timer);
    timer->data = arpc_call_ref(call);
    (void)uv_timer_start(timer, on_timer, ANSWER_MS, 0);
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    (void)call;
    (void)result;
}

static const struct arpc_handler handler = {.half_close = on_half_close, .closed = on_closed};
static const struct arpc_method methods[] = {{"h2spec", "any", ARPC_BIDI, false, 0, 1 << 20, &handler}};

int main(void)
{
    struct arpc_server_options options = {.size = sizeof options};
    int port = 0;
    struct arpc_server *server = serve_begin(&options, methods, sizeof methods / sizeof *methods, NULL, &port);
    if (server == NULL)
        return 1;
    (void)printf("port %d\n", port);
    (void)fflush(stdout);
    return serve_run(server);
}
