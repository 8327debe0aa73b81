/*
 * Our client against our server over TLS, on real sockets: who gets in, who does not and why, and what a reload
 * changes.
 */
#include "tests/conformance/tls_fixture.h"

#include "base/crc32c.h"
#include "tests/conformance/echo_wire.h"
#include "tests/conformance/proxy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define BULK (64 * MIB)

/* Runs the loop until the server has seen a handshake fail. */
static void wait_failure(struct fixture *fixture, const char *text)
{
    channel_run_until(fixture, &tls_seen.failures);
    if (strstr(tls_seen.failure, text) == NULL)
        fail_msg("\"%s\", expected \"%s\"", tls_seen.failure, text);
}

static void start(struct fixture *fixture, struct arpc_tls *server, const char *host, struct arpc_tls *client)
{
    tls_start_server(fixture, "127.0.0.1:0", server);
    tls_start_channel(fixture, host, client);
}

static void a_call_over_tls_comes_back_and_knows_its_peer(void **state)
{
    struct fixture *fixture = *state;
    start(fixture, tls_server_context("server", NULL, false), "127.0.0.1", tls_client_context("ca", NULL, NULL));
    tls_expect(fixture, ARPC_STATUS_OK, "");
    assert_int_equal(tls_seen.peer.transport, ARPC_TRANSPORT_TLS);
    assert_true(tls_seen.peer.encrypted);
    assert_string_equal(tls_seen.peer.subject, "");
    assert_string_equal(tls_seen.peer.alternative, "");
    assert_memory_equal(tls_seen.address, "127.0.0.1:", 10);
    assert_int_equal(tls_seen.peer.uid, -1);
    struct arpc_server_stats stats;
    arpc_server_stats(fixture->server, &stats);
    assert_int_equal(stats.handshakes_failed, 0);
}

static void a_name_that_resolves_is_checked_as_a_name(void **state)
{
    struct fixture *fixture = *state;
    start(fixture, tls_server_context("server", NULL, false), "localhost", tls_client_context("ca", NULL, NULL));
    tls_expect(fixture, ARPC_STATUS_OK, "");
}

static void an_address_of_ipv6_is_checked_as_an_address(void **state)
{
    struct fixture *fixture = *state;
    struct arpc_server_options options = {.size = sizeof options, .arg = &fixture->state};
    struct arpc_tls *tls = tls_server_context("server", NULL, false);
    assert_int_equal(arpc_server_new(&fixture->loop, &options, echo_methods, echo_method_count, &fixture->server, NULL),
                     0);
    int rc = arpc_server_listen_tls(fixture->server, "[::1]:0", tls, &fixture->port, NULL);
    arpc_tls_unref(tls);
    if (rc != 0) {
        (void)printf("SKIPPED: this machine has no IPv6\n");
        return;
    }
    tls_start_channel(fixture, "[::1]", tls_client_context("ca", NULL, NULL));
    tls_expect(fixture, ARPC_STATUS_OK, "");
}

static void a_server_under_another_name_is_refused_unless_that_name_is_given(void **state)
{
    struct fixture *fixture = *state;
    start(fixture, tls_server_context("named", NULL, false), "127.0.0.1", tls_client_context("ca", NULL, NULL));
    tls_expect(fixture, ARPC_STATUS_UNAVAILABLE, "is not for \"127.0.0.1\" but for ps.example: connect by such a name");
    wait_failure(fixture, "refused TLS with the alert");
    channel_stop_channel(fixture);
    /* The common name is no name to connect by. */
    tls_start_channel(fixture, "localhost", tls_client_context("ca", NULL, NULL));
    tls_expect(fixture, ARPC_STATUS_UNAVAILABLE, "is not for \"localhost\" but for ps.example");
    channel_stop_channel(fixture);
    tls_start_channel(fixture, "127.0.0.1", tls_client_context("ca", NULL, "ps.example"));
    tls_expect(fixture, ARPC_STATUS_OK, "");
}

static void a_server_of_an_unknown_authority_is_refused(void **state)
{
    struct fixture *fixture = *state;
    start(fixture, tls_server_context("server", NULL, false), "127.0.0.1", tls_client_context("other_ca", NULL, NULL));
    tls_expect(fixture, ARPC_STATUS_UNAVAILABLE, "is not signed by an authority that is trusted here");
    wait_failure(fixture, "does not trust the authority");
}

static void the_systems_authorities_do_not_know_the_tests(void **state)
{
    struct fixture *fixture = *state;
    start(fixture, tls_server_context("server", NULL, false), "127.0.0.1", tls_client_context(NULL, NULL, NULL));
    tls_expect(fixture, ARPC_STATUS_UNAVAILABLE, "give the file of the one that signed it (cacert)");
}

static void certificates_outside_their_time_are_refused(void **state)
{
    struct fixture *fixture = *state;
    start(fixture, tls_server_context("expired", NULL, false), "127.0.0.1", tls_client_context("ca", NULL, NULL));
    tls_expect(fixture, ARPC_STATUS_UNAVAILABLE, " expired on 20");
    channel_stop_channel(fixture);
    channel_stop_server(fixture);
    start(fixture, tls_server_context("early", NULL, false), "127.0.0.1", tls_client_context("ca", NULL, NULL));
    tls_expect(fixture, ARPC_STATUS_UNAVAILABLE, " is not valid before 20");
}

static void a_client_with_a_certificate_is_known_by_its_names(void **state)
{
    struct fixture *fixture = *state;
    start(fixture, tls_server_context("server", "ca", true), "127.0.0.1", tls_client_context("ca", "client", NULL));
    tls_expect(fixture, ARPC_STATUS_OK, "");
    assert_string_equal(tls_seen.peer.subject, "worker-7");
    assert_string_equal(tls_seen.peer.alternative, "spiffe://ampd/worker/7");
    channel_stop_channel(fixture);
    tls_start_channel(fixture, "127.0.0.1", tls_client_context("ca", "plain_client", NULL));
    tls_expect(fixture, ARPC_STATUS_OK, "");
    assert_string_equal(tls_seen.peer.subject, "worker-8");
    assert_string_equal(tls_seen.peer.alternative, "");
}

static void a_client_without_a_certificate_is_told_that_it_needs_one(void **state)
{
    struct fixture *fixture = *state;
    start(fixture, tls_server_context("server", "ca", true), "127.0.0.1", tls_client_context("ca", NULL, NULL));
    tls_expect(fixture, ARPC_STATUS_UNAVAILABLE, "demands a certificate: give one (cert and key)");
    wait_failure(fixture, "shows no certificate, and this port requires one");
}

static void clients_with_bad_certificates_are_refused_and_the_server_knows_why(void **state)
{
    static const struct {
        const char *cert;
        const char *why, *told; /* what the server says, and what the client */
    } rows[] = {
        {"stranger", "of the client 127.0.0.1:", "does not trust the authority"},
        {"stranger", "is not signed by an authority that is trusted here", "does not trust the authority"},
        {"expired", "expired on", "it has expired"},
        {"server", "is not meant for a client: have one made whose extended key usage has clientAuth",
         "it is not meant for a client; have one made whose extended key usage has clientAuth"},
    };
    struct fixture *fixture = *state;
    tls_start_server(fixture, "127.0.0.1:0", tls_server_context("server", "ca", true));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tls_seen.failures = 0;
        tls_start_channel(fixture, "127.0.0.1", tls_client_context("ca", rows[i].cert, NULL));
        tls_expect(fixture, ARPC_STATUS_UNAVAILABLE, rows[i].told);
        wait_failure(fixture, rows[i].why);
        channel_stop_channel(fixture);
    }
    struct arpc_server_stats stats;
    arpc_server_stats(fixture->server, &stats);
    assert_true(stats.handshakes_failed >= 4);
}

static void a_certificate_that_is_not_demanded_may_be_absent_but_not_bad(void **state)
{
    struct fixture *fixture = *state;
    start(fixture, tls_server_context("server", "ca", false), "127.0.0.1", tls_client_context("ca", NULL, NULL));
    tls_expect(fixture, ARPC_STATUS_OK, "");
    channel_stop_channel(fixture);
    tls_start_channel(fixture, "127.0.0.1", tls_client_context("ca", "stranger", NULL));
    tls_expect(fixture, ARPC_STATUS_UNAVAILABLE, "the server 127.0.0.1:");
}

static void a_server_certificate_with_another_purpose_is_refused(void **state)
{
    struct fixture *fixture = *state;
    start(fixture, tls_server_context("client", NULL, false), "127.0.0.1", tls_client_context("ca", NULL, "w7"));
    tls_expect(fixture, ARPC_STATUS_UNAVAILABLE, "is not meant for a server");
}

static void a_plaintext_client_at_a_tls_port_is_told_so(void **state)
{
    struct fixture *fixture = *state;
    start(fixture, tls_server_context("server", NULL, false), "127.0.0.1", NULL);
    tls_expect(fixture, ARPC_STATUS_UNAVAILABLE, "uses TLS: connect with TLS");
    wait_failure(fixture, "does not use TLS, and this port does");
}

static void a_tls_client_at_a_plaintext_port_is_told_so(void **state)
{
    struct fixture *fixture = *state;
    start(fixture, NULL, "127.0.0.1", tls_client_context("ca", NULL, NULL));
    tls_expect(fixture, ARPC_STATUS_UNAVAILABLE, "does not use TLS: connect without it");
    wait_failure(fixture, "uses TLS, and this port does not");
}

/* Runs until the server has no connection, and tells how long that took. */
static int64_t wait_alone(struct fixture *fixture)
{
    struct arpc_server_stats stats;
    uint64_t start_ms = uv_hrtime() / 1000000;
    do {
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
        arpc_server_stats(fixture->server, &stats);
    } while (stats.connections_total == 0 || stats.connections > 0);
    return (int64_t)(uv_hrtime() / 1000000 - start_ms);
}

static void a_handshake_that_stops_half_way_meets_the_deadline(void **state)
{
    /* Nothing; the head of a record; and half a hello. */
    static const uint8_t hello[100] = {22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3};
    static const size_t sizes[] = {0, 5, sizeof hello};
    struct fixture *fixture = *state;
    struct arpc_limits limits = arpc_limits_default;
    limits.preface_ms = 100;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct sockaddr_in address;
        uint8_t byte;
        tls_start_server_with(fixture, "127.0.0.1:0", tls_server_context("server", NULL, false), &limits);
        assert_int_equal(uv_ip4_addr("127.0.0.1", fixture->port, &address), 0);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
        if (sizes[i] > 0)
            assert_int_equal(send(fd, hello, sizes[i], 0), sizes[i]);
        assert_in_range(wait_alone(fixture), 90, GUARD_MS);
        assert_true(recv(fd, &byte, 1, 0) <= 0);
        (void)close(fd);
        if (sizes[i] > 0)
            wait_failure(fixture, "the TLS handshake with 127.0.0.1:");
        channel_stop_server(fixture);
    }
}

/* A pull through a proxy, which stops when some of it has come. */
static void start_pull_and_freeze(struct fixture *fixture, struct proxy *proxy, struct seen *seen)
{
    proxy_start(proxy, &fixture->loop, fixture->port);
    fixture->port = proxy->port;
    tls_start_channel(fixture, "127.0.0.1", tls_client_context("ca", NULL, NULL));
    channel_repeat_call(fixture, NULL, seen, 1000, MIB);
    while (proxy->forwarded < 4 * MIB)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    proxy_freeze(proxy);
}

static void a_client_that_does_not_read_is_cut(void **state)
{
    struct fixture *fixture = *state;
    struct proxy proxy;
    struct seen seen = {0};
    struct arpc_limits limits = arpc_limits_default;
    limits.write_stall_ms = 2000; /* a busy machine may stop the whole test for a while */
    tls_start_server_with(fixture, "127.0.0.1:0", tls_server_context("server", NULL, false), &limits);
    start_pull_and_freeze(fixture, &proxy, &seen);
    assert_in_range(wait_alone(fixture), 1000, GUARD_MS);
    assert_int_equal(seen.closed, 0); /* it knows nothing yet */
    proxy_cut(&proxy);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_UNAVAILABLE);
}

static void a_connection_that_is_cut_in_the_middle_ends_its_calls_with_that(void **state)
{
    struct fixture *fixture = *state;
    struct proxy proxy;
    struct seen seen = {0};
    tls_start_server(fixture, "127.0.0.1:0", tls_server_context("server", NULL, false));
    start_pull_and_freeze(fixture, &proxy, &seen);
    proxy_cut(&proxy);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_UNAVAILABLE);
    if (strstr(seen.message, "the connection was cut") == NULL && strstr(seen.message, "reset by peer") == NULL)
        fail_msg("\"%s\"", seen.message);
    channel_wait_open(fixture, 0);
}

static void push_of_64_mib_by_reference_arrives_and_every_buffer_is_released(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    uint8_t *body = malloc(MIB);
    assert_non_null(body);
    uint32_t crc = 0;
    for (size_t i = 0; i < MIB; i++)
        body[i] = (uint8_t)(i * 7 + i / 256);
    uint8_t head[16];
    size_t used = 0;
    echo_put_head(head, &used, 1, MIB);
    start(fixture, tls_server_context("server", NULL, false), "127.0.0.1", tls_client_context("ca", NULL, NULL));
    channel_call(fixture, PATH("Collect"), NULL, &seen);
    for (size_t i = 0; i < BULK / MIB; i++) {
        assert_int_equal(arpc_call_send(seen.call, head, used, body, MIB, channel_count_release, &fixture->released),
                         0);
        crc = amp_crc32c(crc, body, MIB);
    }
    arpc_call_half_close(seen.call);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    assert_int_equal(fixture->released, BULK / MIB);
    assert_int_equal(echo_get_number(seen.last, seen.last_size, 2), BULK);
    assert_int_equal(echo_get_number(seen.last, seen.last_size, 3), crc);
    free(body);
}

static void bodies_taken_back_while_they_are_sent_are_not_touched_again(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    struct seen watch = {0};
    uint8_t *body = malloc(MIB);
    assert_non_null(body);
    memset(body, 1, MIB);
    uint8_t head[16];
    size_t used = 0;
    echo_put_head(head, &used, 1, MIB);
    start(fixture, tls_server_context("server", NULL, false), "127.0.0.1", tls_client_context("ca", NULL, NULL));
    tls_expect(fixture, ARPC_STATUS_OK, "");
    channel_call(fixture, PATH("Collect"), NULL, &seen);
    for (int i = 0; i < 16; i++)
        assert_int_equal(arpc_call_send(seen.call, head, used, body, MIB, channel_count_release, &fixture->released),
                         0);
    for (int i = 0; i < 100 && arpc_call_queued(seen.call) > 15 * MIB; i++)
        (void)uv_run(&fixture->loop, UV_RUN_NOWAIT);
    assert_in_range(arpc_call_queued(seen.call), 1, 16 * MIB);
    arpc_call_blank(seen.call);
    assert_int_equal(fixture->released, 16);
    free(body);
    arpc_call_half_close(seen.call);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    assert_int_equal(echo_get_number(seen.last, seen.last_size, 2), 16 * MIB);
    tls_hello(fixture, &watch);
    assert_int_equal(watch.status, ARPC_STATUS_OK);
}

static void pull_of_64_mib_is_what_it_is_without_tls(void **state)
{
    struct fixture *fixture = *state;
    struct seen plain = {0};
    struct seen seen = {0};
    start(fixture, NULL, "127.0.0.1", NULL);
    channel_repeat_call(fixture, NULL, &plain, BULK / MIB, MIB);
    channel_run_until(fixture, &plain.closed);
    channel_stop_channel(fixture);
    channel_stop_server(fixture);
    start(fixture, tls_server_context("server", NULL, false), "127.0.0.1", tls_client_context("ca", NULL, NULL));
    channel_repeat_call(fixture, NULL, &seen, BULK / MIB, MIB);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    assert_int_equal(seen.bytes, plain.bytes);
    assert_int_equal(seen.crc, plain.crc);
}

static void a_paused_pull_keeps_its_place_and_does_not_stop_other_calls(void **state)
{
    struct fixture *fixture = *state;
    struct seen pull = {.pause_at = 3};
    start(fixture, tls_server_context("server", NULL, false), "127.0.0.1", tls_client_context("ca", NULL, NULL));
    channel_repeat_call(fixture, NULL, &pull, 40, MIB);
    while (pull.messages < 3)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    tls_expect(fixture, ARPC_STATUS_OK, "");
    assert_int_equal(pull.messages, 3);
    arpc_call_resume(pull.call);
    channel_run_until(fixture, &pull.closed);
    assert_int_equal(pull.messages, 40);
    assert_int_equal(pull.status, ARPC_STATUS_OK);
}

/* One file over another. */
static void replace(const char *from, const char *to, const char *ext)
{
    char data[8192];
    FILE *in = fopen(tls_certs_path(tls_dir, from, ext), "r");
    assert_non_null(in);
    size_t size = fread(data, 1, sizeof data, in);
    (void)fclose(in);
    FILE *out = fopen(tls_certs_path(tls_dir, to, ext), "w");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, size, out), size);
    (void)fclose(out);
}

static void a_reload_is_for_new_connections_and_those_that_there_are_go_on(void **state)
{
    struct fixture *fixture = *state;
    struct seen pull = {.pause_at = 2};
    struct amp_error error = {0};
    replace("server", "live", ".pem");
    replace("server", "live", ".key");
    struct arpc_tls *tls = tls_server_context("live", NULL, false);
    start(fixture, arpc_tls_ref(tls), "127.0.0.1", tls_client_context("ca", NULL, NULL));
    channel_repeat_call(fixture, NULL, &pull, 40, MIB);
    while (pull.messages < 2)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    /* The key alone does not fit: everything stays. */
    replace("stranger", "live", ".key");
    assert_int_equal(arpc_tls_reload(tls, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "is not the key of the certificate in"));
    struct arpc_channel *first = fixture->channel;
    tls_start_channel(fixture, "127.0.0.1", tls_client_context("ca", NULL, NULL));
    tls_expect(fixture, ARPC_STATUS_OK, "");
    channel_stop_channel(fixture);
    /* Both: a new connection meets the other authority's certificate. */
    replace("stranger", "live", ".pem");
    assert_int_equal(arpc_tls_reload(tls, &error), 0);
    tls_start_channel(fixture, "127.0.0.1", tls_client_context("ca", NULL, NULL));
    tls_expect(fixture, ARPC_STATUS_UNAVAILABLE, "is not signed by an authority");
    channel_stop_channel(fixture);
    tls_start_channel(fixture, "127.0.0.1", tls_client_context("other_ca", NULL, NULL));
    tls_expect(fixture, ARPC_STATUS_OK, "");
    channel_stop_channel(fixture);
    fixture->channel = first;
    fixture->channel_closed = false;
    arpc_call_resume(pull.call);
    channel_run_until(fixture, &pull.closed);
    assert_int_equal(pull.status, ARPC_STATUS_OK);
    assert_int_equal(pull.messages, 40);
    arpc_tls_unref(tls);
}

static void a_server_that_closes_ends_open_calls_and_idle_channels_quietly(void **state)
{
    struct fixture *fixture = *state;
    struct seen sleeper = {0};
    start(fixture, tls_server_context("server", NULL, false), "127.0.0.1", tls_client_context("ca", NULL, NULL));
    channel_sleep_call(fixture, NULL, &sleeper);
    channel_wait_open(fixture, 1);
    channel_stop_server(fixture);
    channel_run_until(fixture, &sleeper.closed);
    assert_int_equal(sleeper.status, ARPC_STATUS_UNAVAILABLE);
    assert_string_equal(sleeper.message, "the peer closed the connection"); /* its close_notify has come */
}

static void unix_sockets_know_the_process_with_and_without_tls(void **state)
{
    struct fixture *fixture = *state;
    char address[300];
    (void)snprintf(address, sizeof address, "unix:%s/socket", tls_dir);
    tls_start_server(fixture, address, NULL);
    tls_start_channel(fixture, address, NULL);
    tls_expect(fixture, ARPC_STATUS_OK, "");
    assert_int_equal(tls_seen.peer.transport, ARPC_TRANSPORT_UNIX);
    assert_false(tls_seen.peer.encrypted);
    assert_string_equal(tls_seen.address, "unix");
    assert_int_equal(tls_seen.peer.pid, getpid());
    assert_int_equal(tls_seen.peer.uid, getuid());
    assert_int_equal(tls_seen.peer.gid, getgid());
    channel_stop_channel(fixture);
    channel_stop_server(fixture);
    tls_start_server(fixture, address, tls_server_context("server", "ca", true));
    tls_start_channel(fixture, address, tls_client_context("ca", "client", NULL));
    tls_expect(fixture, ARPC_STATUS_OK, "");
    assert_int_equal(tls_seen.peer.transport, ARPC_TRANSPORT_UNIX);
    assert_true(tls_seen.peer.encrypted);
    assert_string_equal(tls_seen.peer.subject, "worker-7");
    assert_int_equal(tls_seen.peer.pid, getpid());
}

/* ---- contexts ---- */

static void expect_no_context(const struct arpc_tls_server_options *options, int code, const char *text)
{
    struct amp_error error = {0};
    struct arpc_tls *tls = NULL;
    int rc = arpc_tls_server(options, &tls, &error);
    if (rc != code || strstr(error.text, text) == NULL)
        fail_msg("%d \"%s\", expected %d and \"%s\"", rc, error.text, code, text);
    assert_null(tls);
}

static const char *in_dir(const char *name)
{
    return tls_certs_path(tls_dir, name, "");
}

static void bad_files_are_named_with_the_remedy(void **state)
{
    (void)state;
    struct arpc_tls_server_options options = {.size = sizeof options};
    expect_no_context(&options, AMP_EINVAL, "give both (--cert-file and --key-file)");
    options.cert_file = in_dir("server.pem");
    options.key_file = in_dir("server.key");
    options.client_cert_auth = true;
    expect_no_context(&options, AMP_EINVAL, "give a file of them (--trusted-ca-file)");
    options.client_cert_auth = false;
    options.key_file = in_dir("absent.key");
    expect_no_context(&options, AMP_ENOTFOUND, "absent.key: No such file");
    options.key_file = in_dir("server.pem");
    expect_no_context(&options, AMP_EINVAL, "it must hold a private key in PEM, without a passphrase");
    options.key_file = in_dir("client.key");
    expect_no_context(&options, AMP_EINVAL, "is not the key of the certificate in");
    options.key_file = in_dir("server.key");
    options.cert_file = in_dir("server.key");
    expect_no_context(&options, AMP_EINVAL, "it must hold, in PEM, the certificate");
    options.cert_file = tls_dir;
    expect_no_context(&options, AMP_EINVAL, "is not a regular file");
    options.cert_file = in_dir("server.pem");
    options.trusted_ca_file = in_dir("server.key");
    expect_no_context(&options, AMP_EINVAL, "it must hold certificates in PEM");
    struct arpc_tls_client_options client = {.size = sizeof client, .cert_file = in_dir("client.pem")};
    struct amp_error error = {0};
    struct arpc_tls *tls = NULL;
    assert_int_equal(arpc_tls_client(&client, &tls, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "give both or neither"));
}

static void what_an_operator_should_know_is_a_warning(void **state)
{
    (void)state;
    struct arpc_tls *tls = tls_server_context("server", NULL, false);
    assert_string_equal(arpc_tls_warning(tls), "");
    assert_int_equal(chmod(in_dir("server.key"), 0644), 0);
    assert_non_null(strstr(arpc_tls_warning(tls), "Everybody on this machine may read or write the private key"));
    assert_int_equal(chmod(in_dir("server.key"), 0600), 0);
    arpc_tls_unref(tls);
    tls = tls_server_context("expired", NULL, false);
    assert_non_null(strstr(arpc_tls_warning(tls), "expired.pem expired on 20"));
    arpc_tls_unref(tls);
    tls = tls_server_context("early", NULL, false);
    assert_non_null(strstr(arpc_tls_warning(tls), "early.pem expires on 20"));
    arpc_tls_unref(tls);
    arpc_tls_unref(NULL);
}

int main(void)
{
#define WITH_LOOP(test) cmocka_unit_test_setup_teardown(test, channel_setup_bare, channel_teardown)
    const struct CMUnitTest tests[] = {
        WITH_LOOP(a_call_over_tls_comes_back_and_knows_its_peer),
        WITH_LOOP(a_name_that_resolves_is_checked_as_a_name),
        WITH_LOOP(an_address_of_ipv6_is_checked_as_an_address),
        WITH_LOOP(a_server_under_another_name_is_refused_unless_that_name_is_given),
        WITH_LOOP(a_server_of_an_unknown_authority_is_refused),
        WITH_LOOP(the_systems_authorities_do_not_know_the_tests),
        WITH_LOOP(certificates_outside_their_time_are_refused),
        WITH_LOOP(a_client_with_a_certificate_is_known_by_its_names),
        WITH_LOOP(a_client_without_a_certificate_is_told_that_it_needs_one),
        WITH_LOOP(clients_with_bad_certificates_are_refused_and_the_server_knows_why),
        WITH_LOOP(a_certificate_that_is_not_demanded_may_be_absent_but_not_bad),
        WITH_LOOP(a_server_certificate_with_another_purpose_is_refused),
        WITH_LOOP(a_plaintext_client_at_a_tls_port_is_told_so),
        WITH_LOOP(a_tls_client_at_a_plaintext_port_is_told_so),
        WITH_LOOP(a_handshake_that_stops_half_way_meets_the_deadline),
        WITH_LOOP(a_client_that_does_not_read_is_cut),
        WITH_LOOP(a_connection_that_is_cut_in_the_middle_ends_its_calls_with_that),
        WITH_LOOP(push_of_64_mib_by_reference_arrives_and_every_buffer_is_released),
        WITH_LOOP(bodies_taken_back_while_they_are_sent_are_not_touched_again),
        WITH_LOOP(pull_of_64_mib_is_what_it_is_without_tls),
        WITH_LOOP(a_paused_pull_keeps_its_place_and_does_not_stop_other_calls),
        WITH_LOOP(a_reload_is_for_new_connections_and_those_that_there_are_go_on),
        WITH_LOOP(a_server_that_closes_ends_open_calls_and_idle_channels_quietly),
        WITH_LOOP(unix_sockets_know_the_process_with_and_without_tls),
        cmocka_unit_test(bad_files_are_named_with_the_remedy),
        cmocka_unit_test(what_an_operator_should_know_is_a_warning),
    };
    return cmocka_run_group_tests(tests, tls_group_setup, tls_group_teardown);
}
