#include "tests/conformance/tls_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

char tls_dir[256];
struct tls_seen tls_seen;

int tls_group_setup(void **state)
{
    static const struct tls_cert certs[] = {
        {.file = "ca", .subject = "ampd test authority"},
        {.file = "other_ca", .subject = "another authority"},
        {.file = "server",
         .subject = "ps-0",
         .names = "DNS:localhost,IP:127.0.0.1,IP:::1",
         .issuer = "ca",
         .purpose = "serverAuth"},
        {.file = "named", .subject = "localhost", .names = "DNS:ps.example", .issuer = "ca"},
        {.file = "expired",
         .subject = "old",
         .names = "DNS:localhost,IP:127.0.0.1",
         .issuer = "ca",
         .from_s = -7200,
         .to_s = -3600},
        {.file = "early",
         .subject = "new",
         .names = "DNS:localhost,IP:127.0.0.1",
         .issuer = "ca",
         .from_s = 3600,
         .to_s = 7200},
        {.file = "client",
         .subject = "worker-7",
         .names = "email:a@b.c,URI:spiffe://ampd/worker/7,DNS:w7",
         .issuer = "ca",
         .purpose = "clientAuth"},
        {.file = "plain_client", .subject = "worker-8", .issuer = "ca"},
        {.file = "stranger", .subject = "worker-7", .names = "DNS:localhost,IP:127.0.0.1", .issuer = "other_ca"},
    };
    (void)state;
    tls_certs_open(tls_dir, sizeof tls_dir);
    for (size_t i = 0; i < sizeof certs / sizeof certs[0]; i++)
        tls_certs_make(tls_dir, &certs[i]);
    return 0;
}

int tls_group_teardown(void **state)
{
    (void)state;
    tls_certs_close(tls_dir);
    return 0;
}

static const char *path(const char *file, const char *ext)
{
    return file != NULL ? tls_certs_path(tls_dir, file, ext) : NULL;
}

struct arpc_tls *tls_server_context(const char *cert, const char *ca, bool demand)
{
    struct arpc_tls_server_options options = {.size = sizeof options,
                                              .cert_file = path(cert, ".pem"),
                                              .key_file = path(cert, ".key"),
                                              .trusted_ca_file = path(ca, ".pem"),
                                              .client_cert_auth = demand};
    struct amp_error error = {0};
    struct arpc_tls *tls = NULL;
    if (arpc_tls_server(&options, &tls, &error) != 0)
        fail_msg("%s", error.text);
    return tls;
}

struct arpc_tls *tls_client_context(const char *ca, const char *cert, const char *server_name)
{
    struct arpc_tls_client_options options = {.size = sizeof options,
                                              .trusted_ca_file = path(ca, ".pem"),
                                              .cert_file = path(cert, ".pem"),
                                              .key_file = path(cert, ".key"),
                                              .server_name = server_name};
    struct amp_error error = {0};
    struct arpc_tls *tls = NULL;
    if (arpc_tls_client(&options, &tls, &error) != 0)
        fail_msg("%s", error.text);
    return tls;
}

static int on_admit(struct arpc_call *call, void *arg, struct amp_error *error)
{
    (void)arg;
    (void)error;
    tls_seen.peer = *arpc_call_peer_info(call);
    (void)snprintf(tls_seen.address, sizeof tls_seen.address, "%s", tls_seen.peer.address);
    return 0;
}

static void on_handshake_failed(const char *peer, const struct amp_error *error, void *arg)
{
    (void)arg;
    assert_non_null(peer);
    tls_seen.failures++;
    (void)snprintf(tls_seen.failure, sizeof tls_seen.failure, "%s", error->text);
}

void tls_start_server(struct fixture *fixture, const char *address, struct arpc_tls *tls)
{
    tls_start_server_with(fixture, address, tls, NULL);
}

void tls_start_server_with(struct fixture *fixture, const char *address, struct arpc_tls *tls,
                           const struct arpc_limits *limits)
{
    struct arpc_server_options options = {.size = sizeof options,
                                          .arg = &fixture->state,
                                          .keep_metadata = echo_metadata,
                                          .limits = limits,
                                          .admit_cb = on_admit,
                                          .handshake_failed_cb = on_handshake_failed};
    struct amp_error error = {0};
    tls_seen = (struct tls_seen){0};
    assert_int_equal(
        arpc_server_new(&fixture->loop, &options, echo_methods, echo_method_count, &fixture->server, &error), 0);
    if (arpc_server_listen_tls(fixture->server, address, tls, &fixture->port, &error) != 0)
        fail_msg("%s", error.text);
    arpc_tls_unref(tls);
    fixture->server_closed = false;
}

void tls_start_channel(struct fixture *fixture, const char *host, struct arpc_tls *tls)
{
    struct arpc_channel_options options = {.size = sizeof options, .tls = tls, .initial_backoff_ms = 10, .seed = 1};
    if (strncmp(host, "unix:", 5) == 0)
        (void)snprintf(fixture->target, sizeof fixture->target, "%s", host);
    else
        (void)snprintf(fixture->target, sizeof fixture->target, "%s:%d", host, fixture->port);
    assert_int_equal(arpc_channel_new(&fixture->loop, fixture->target, &options, &fixture->channel, NULL), 0);
    arpc_tls_unref(tls);
    fixture->channel_closed = false;
}

void tls_hello(struct fixture *fixture, struct seen *seen)
{
    struct arpc_call_options options = {.size = sizeof options, .deadline_ms = 60000, .single_response = true};
    channel_call_with(fixture, PATH("Unary"), &options, seen, "hello", 5);
    channel_run_until(fixture, &seen->closed);
}

void tls_expect(struct fixture *fixture, int status, const char *text)
{
    struct seen seen = {0};
    tls_hello(fixture, &seen);
    if (seen.status != status || strstr(seen.message, text) == NULL)
        fail_msg("status %d \"%s\", expected %d and \"%s\"", seen.status, seen.message, status, text);
    if (status == ARPC_STATUS_OK)
        assert_memory_equal(seen.last, "hello", 5);
}
