/*
 * echo_call TARGET MIB [CA [CERT KEY]]: our client against a server of echo.proto, with TLS if it gets the server's
 * authority. MIB 0: Unary "hello"; else pushes and pulls so many MiB and prints how fast. The last line is "status N:
 * text"; ends with 0 if that is 0. Test only.
 */
#include "rpc/arpc_client.h"
#include "tests/conformance/echo_wire.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#define MIB         ((size_t)1 << 20)
#define DEADLINE_MS 60000

static uint8_t block[MIB];

struct result {
    int status;
    char text[512];
    uint64_t bytes;
    bool over;
};

static void on_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    ((struct result *)arpc_call_user(call))->bytes += size;
}

static void keep(void *arg)
{
    (void)arg; /* the block is sent again and again */
}

/* As many blocks as there is room for. */
static void fill(struct arpc_call *call, uint64_t *left)
{
    uint8_t head[16];
    size_t used = 0;
    echo_put_head(head, &used, 1, MIB);
    while (*left > 0 && arpc_call_queued(call) < 4 * MIB &&
           arpc_call_send(call, head, used, block, MIB, keep, NULL) == 0)
        (*left)--;
    if (*left == 0)
        arpc_call_half_close(call);
}

static uint64_t to_push;

static void on_writable(struct arpc_call *call)
{
    if (to_push > 0)
        fill(call, &to_push);
}

static void on_closed(struct arpc_call *call, const struct arpc_result *given)
{
    struct result *result = arpc_call_user(call);
    result->status = given->status;
    (void)snprintf(result->text, sizeof result->text, "%s", given->message);
    result->over = true;
}

static const struct arpc_handler handler = {.message = on_message, .writable = on_writable, .closed = on_closed};

/* One call; `push` blocks or a request. Returns its status. */
static int call(struct arpc_channel *channel, const char *path, const void *request, size_t size, uint64_t push,
                struct result *result)
{
    struct arpc_call_options options = {.size = sizeof options, .deadline_ms = DEADLINE_MS};
    struct arpc_call *made;
    *result = (struct result){0};
    if (arpc_channel_call(channel, path, &options, &handler, result, &made, NULL) != 0)
        return ARPC_STATUS_INTERNAL;
    to_push = push;
    if (push > 0) {
        fill(made, &to_push);
    } else {
        (void)arpc_call_send(made, request, size, NULL, 0, NULL, NULL);
        arpc_call_half_close(made);
    }
    while (!result->over)
        (void)uv_run(uv_default_loop(), UV_RUN_ONCE);
    return result->status;
}

static int bulk(struct arpc_channel *channel, uint64_t mib, struct result *result)
{
    uint8_t request[32];
    size_t used = 0;
    echo_put_number(request, &used, 1, mib);
    echo_put_number(request, &used, 2, MIB);
    int status = call(channel, "/ampd.test.v1.Echo/Unary", "", 0, 0, result); /* the connection is there */
    uint64_t start_ns = uv_hrtime();
    if (status == 0)
        status = call(channel, "/ampd.test.v1.Echo/Collect", NULL, 0, mib, result);
    uint64_t pushed_ns = uv_hrtime();
    if (status == 0)
        status = call(channel, "/ampd.test.v1.Echo/Repeat", request, used, 0, result);
    uint64_t pulled_ns = uv_hrtime();
    double bytes = (double)mib * (double)MIB;
    if (status == 0)
        (void)printf("push %.0f MB/s, pull %.0f MB/s\n", bytes * 1e3 / (double)(pushed_ns - start_ns),
                     bytes * 1e3 / (double)(pulled_ns - pushed_ns));
    return status;
}

int main(int argc, char **argv)
{
    struct arpc_channel_options options = {.size = sizeof options};
    struct arpc_tls_client_options files = {.size = sizeof files};
    struct arpc_channel *channel;
    struct amp_error error;
    struct result result;
    (void)signal(SIGPIPE, SIG_IGN);
    if (argc < 3) {
        (void)fprintf(stderr, "echo_call TARGET MIB [CA [CERT KEY]]\n");
        return 2;
    }
    files.trusted_ca_file = argc > 3 ? argv[3] : NULL;
    files.cert_file = argc > 5 ? argv[4] : NULL;
    files.key_file = argc > 5 ? argv[5] : NULL;
    if ((argc > 3 && arpc_tls_client(&files, &options.tls, &error) != 0) ||
        arpc_channel_new(uv_default_loop(), argv[1], &options, &channel, &error) != 0) {
        (void)fprintf(stderr, "echo_call: %s\n", error.text);
        return 2;
    }
    arpc_tls_unref(options.tls);
    uint64_t mib = strtoull(argv[2], NULL, 10);
    int status =
        mib > 0 ? bulk(channel, mib, &result) : call(channel, "/ampd.test.v1.Echo/Unary", "hello", 5, 0, &result);
    (void)printf("status %d: %s\n", status, result.text);
    arpc_channel_close(channel, NULL, NULL);
    (void)uv_run(uv_default_loop(), UV_RUN_DEFAULT);
    return uv_loop_close(uv_default_loop()) == 0 && status == 0 ? 0 : 1;
}
