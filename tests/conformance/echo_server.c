/*
 * echo_server [ADDRESS [CERT KEY [CA]]] [NAME=VALUE]...: serves ampd.test.v1.Echo with health and reflection, with TLS
 * if it gets a certificate, and then only to clients of CA if it gets one. A name is a limit of rpc/arpc_limits.h or
 * one of those in take_option below. Prints "port N", reads the files anew on SIGHUP ("reloaded"), gives back the free
 * pages that malloc keeps on SIGUSR1, drains on SIGTERM (grace 2 s), and ends with 0 when nothing is left. Test only.
 */
#include "tests/conformance/echo_service.h"

#include "tests/conformance/echo_descriptors.h"

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRACE_MS 2000

static struct arpc_server *server;
static struct arpc_tls *tls;
static uv_signal_t sigterm;
static uv_signal_t sighup;
static uv_signal_t sigusr1;

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
    uv_close((uv_handle_t *)&sigusr1, NULL);
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

/* So that a test sees how much memory is in use. */
static void on_trim(uv_signal_t *handle, int number)
{
    (void)handle;
    (void)number;
    (void)malloc_trim(0);
}

static void on_abuse(const char *peer, enum arpc_abuse cause, uint64_t unreported, void *arg)
{
    (void)arg;
    (void)fprintf(stderr, "abuse: %s: %s (%llu more)\n", peer, arpc_abuse_text(cause), (unsigned long long)unreported);
}

static bool take_option(struct arpc_server_options *options, const char *name, int64_t value)
{
    const struct {
        const char *name;
        int64_t *to;
    } times[] = {{"keepalive_ms", &options->keepalive_ms},
                 {"keepalive_timeout_ms", &options->keepalive_timeout_ms},
                 {"min_ping_interval_ms", &options->min_ping_interval_ms},
                 {"max_age_ms", &options->max_age_ms},
                 {"max_age_grace_ms", &options->max_age_grace_ms}};
    if (strcmp(name, "compress") == 0) {
        options->compress = value != 0;
        return true;
    }
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        if (strcmp(name, times[i].name) != 0)
            continue;
        *times[i].to = value;
        return true;
    }
    return false;
}

/* Takes the settings off the end of the arguments; how many arguments are left, 0: one of them is wrong. */
static int take_settings(int argc, char **argv, struct arpc_server_options *options, struct arpc_limits *limits)
{
    for (; argc > 2; argc--) {
        const char *setting = argv[argc - 1];
        const char *sign = strchr(setting, '=');
        char name[64] = "";
        if (sign == NULL)
            break;
        if ((size_t)(sign - setting) < sizeof name)
            memcpy(name, setting, (size_t)(sign - setting));
        int64_t value = strtoll(sign + 1, NULL, 10);
        if (!take_option(options, name, value) && !arpc_limits_set(limits, name, value)) {
            (void)fprintf(stderr, "echo_server: nothing is set by %s\n", setting);
            return 0;
        }
    }
    return argc;
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
    struct arpc_limits limits = arpc_limits_default;
    options.limits = &limits;
    options.abuse_cb = on_abuse;
    struct amp_error error;
    int port = 0;
    (void)signal(SIGPIPE, SIG_IGN);
    argc = take_settings(argc, argv, &options, &limits);
    if (argc == 0)
        return 2;
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
    (void)uv_signal_init(loop, &sigusr1);
    (void)uv_signal_start(&sigusr1, on_trim, SIGUSR1);
    (void)uv_signal_init(loop, &sighup);
    (void)uv_signal_start(&sighup, on_reload, SIGHUP);
    (void)uv_run(loop, UV_RUN_DEFAULT);
    arpc_tls_unref(tls);
    return uv_loop_close(loop) == 0 ? 0 : 1;
}
