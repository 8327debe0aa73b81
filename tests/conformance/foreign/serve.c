#include "tests/conformance/foreign/serve.h"

#include <signal.h>
#include <stdio.h>

#define GRACE_MS 2000

static void on_drained(void *arg)
{
    arpc_server_close(arg, NULL, NULL);
}

static void on_signal(uv_signal_t *handle, int number)
{
    (void)number;
    struct arpc_server *server = handle->data;
    uv_close((uv_handle_t *)handle, NULL);
    arpc_server_drain(server, GRACE_MS, on_drained, server);
}

struct arpc_server *serve_begin(const struct arpc_server_options *options, const struct arpc_method *methods,
                                size_t count, const struct arpc_tls_server_options *files, int *port)
{
    /* A test program opens all its connections from one address, and breaks the protocol on many of them. */
    static struct arpc_limits limits;
    limits = arpc_limits_default;
    limits.connections_per_address = 0;
    limits.strikes_burst = 0;
    struct arpc_server_options all = *options;
    all.limits = &limits;
    struct arpc_server *server;
    struct arpc_tls *tls = NULL;
    struct amp_error error;
    char address[32];
    (void)signal(SIGPIPE, SIG_IGN);
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", *port);
    if ((files != NULL && arpc_tls_server(files, &tls, &error) != 0) ||
        arpc_server_new(uv_default_loop(), &all, methods, count, &server, &error) != 0 ||
        arpc_server_listen_tls(server, address, tls, port, &error) != 0) {
        (void)fprintf(stderr, "%s\n", error.text);
        return NULL;
    }
    arpc_tls_unref(tls);
    return server;
}

int serve_run(struct arpc_server *server)
{
    uv_loop_t *loop = uv_default_loop();
    uv_signal_t sigterm;
    (void)uv_signal_init(loop, &sigterm);
    sigterm.data = server;
    (void)uv_signal_start(&sigterm, on_signal, SIGTERM);
    (void)uv_run(loop, UV_RUN_DEFAULT);
    return uv_loop_close(loop) == 0 ? 0 : 1;
}
