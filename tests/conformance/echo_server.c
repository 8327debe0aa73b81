/*
 * echo_server [ADDRESS] [LIMIT=VALUE]...: serves ampd.test.v1.Echo with health and reflection. Prints "port N", drains on SIGTERM (grace 2 s),
 * and ends with 0 when nothing is left. A limit is one of rpc/arpc_limits.h. Test only.
 */
#include "tests/conformance/echo_service.h"

#include "tests/conformance/echo_descriptors.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRACE_MS 2000

static struct arpc_server *server;
static uv_signal_t sigterm;

static void on_drained(void *arg)
{
    (void)arg;
    arpc_server_close(server, NULL, NULL);
}

static void on_signal(uv_signal_t *handle, int number)
{
    (void)number;
    uv_close((uv_handle_t *)handle, NULL);
    arpc_server_drain(server, GRACE_MS, on_drained, NULL);
}

static void on_abuse(const char *peer, enum arpc_abuse cause, uint64_t unreported, void *arg)
{
    (void)arg;
    (void)fprintf(stderr, "abuse: %s: %s (%llu more)\n", peer, arpc_abuse_text(cause), (unsigned long long)unreported);
}

/* The arguments that are limits. */
static bool take_limits(int argc, char **argv, struct arpc_limits *limits)
{
    for (int i = 2; i < argc; i++) {
        char name[64] = "";
        const char *sign = strchr(argv[i], '=');
        if (sign != NULL && (size_t)(sign - argv[i]) < sizeof name)
            memcpy(name, argv[i], (size_t)(sign - argv[i]));
        if (sign == NULL || !arpc_limits_set(limits, name, strtoll(sign + 1, NULL, 10))) {
            (void)fprintf(stderr, "echo_server: no limit is set by %s\n", argv[i]);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    uv_loop_t *loop = uv_default_loop();
    struct echo_state state = {.loop = loop};
    struct arpc_server_options options = {.size = sizeof options, .arg = &state, .keep_metadata = echo_metadata};
    struct arpc_limits limits = arpc_limits_default;
    options.limits = &limits;
    options.abuse_cb = on_abuse;
    struct amp_error error;
    int port = 0;
    (void)signal(SIGPIPE, SIG_IGN);
    if (!take_limits(argc, argv, &limits))
        return 2;
    if (arpc_server_new(loop, &options, echo_methods, echo_method_count, &server, &error) != 0 ||
        arpc_server_enable_reflection(server, echo_descriptors, echo_descriptors_size, &error) != 0 ||
        arpc_server_listen(server, argc > 1 ? argv[1] : "127.0.0.1:0", &port, &error) != 0) {
        (void)fprintf(stderr, "echo_server: %s\n", error.text);
        return 1;
    }
    (void)printf("port %d\n", port);
    (void)fflush(stdout);
    (void)uv_signal_init(loop, &sigterm);
    (void)uv_signal_start(&sigterm, on_signal, SIGTERM);
    (void)uv_run(loop, UV_RUN_DEFAULT);
    return uv_loop_close(loop) == 0 ? 0 : 1;
}
