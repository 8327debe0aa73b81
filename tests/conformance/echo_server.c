/*
 * echo_server [ADDRESS [CERT KEY [CA]]]: serves ampd.test.v1.Echo with health and reflection, with TLS if it gets a
 * certificate, and then only to clients of CA if it gets one. Prints "port N", reads the files anew on SIGHUP ("reloaded"),
 * drains on SIGTERM (grace 2 s), and ends with 0 when nothing is left. Test only.
 */
#include "tests/conformance/echo_service.h"

#include "tests/conformance/echo_descriptors.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define GRACE_MS 2000

static struct arpc_server *server;
static struct arpc_tls *tls;
static uv_signal_t sigterm;
static uv_signal_t sighup;

static void on_drained(void *arg)
{
    (void)arg;
    arpc_server_close(server, NULL, NULL);
}

static void on_signal(uv_signal_t *handle, int number)
{
    (void)number;
    uv_close((uv_handle_t *)handle, NULL);
    uv_close((uv_handle_t *)&sighup, NULL);
    arpc_server_drain(server, GRACE_MS, on_drained, NULL);
}

static void on_reload(uv_signal_t *handle, int number)
{
    (void)handle;
    (void)number;
    struct amp_error error = {.text = "reloaded"};
    if (tls != NULL)
        (void)arpc_tls_reload(tls, &error);
    (void)printf("%s\n", error.text);
    (void)fflush(stdout);
}

static int make_tls(int argc, char **argv, struct amp_error *error)
{
    if (argc < 4)
        return 0;
    struct arpc_tls_server_options options = {.size = sizeof options,
                                              .cert_file = argv[2],
                                              .key_file = argv[3],
                                              .trusted_ca_file = argc > 4 ? argv[4] : NULL,
                                              .client_cert_auth = argc > 4};
    return arpc_tls_server(&options, &tls, error);
}

int main(int argc, char **argv)
{
    uv_loop_t *loop = uv_default_loop();
    struct echo_state state = {.loop = loop};
    struct arpc_server_options options = {.size = sizeof options, .arg = &state, .keep_metadata = echo_metadata};
    struct amp_error error;
    int port = 0;
    (void)signal(SIGPIPE, SIG_IGN);
    if (make_tls(argc, argv, &error) != 0 ||
        arpc_server_new(loop, &options, echo_methods, echo_method_count, &server, &error) != 0 ||
        arpc_server_enable_reflection(server, echo_descriptors, echo_descriptors_size, &error) != 0 ||
        arpc_server_listen_tls(server, argc > 1 ? argv[1] : "127.0.0.1:0", tls, &port, &error) != 0) {
        (void)fprintf(stderr, "echo_server: %s\n", error.text);
        return 1;
    }
    (void)printf("port %d\n", port);
    (void)fflush(stdout);
    (void)uv_signal_init(loop, &sigterm);
    (void)uv_signal_start(&sigterm, on_signal, SIGTERM);
    (void)uv_signal_init(loop, &sighup);
    (void)uv_signal_start(&sighup, on_reload, SIGHUP);
    (void)uv_run(loop, UV_RUN_DEFAULT);
    arpc_tls_unref(tls);
    return uv_loop_close(loop) == 0 ? 0 : 1;
}
