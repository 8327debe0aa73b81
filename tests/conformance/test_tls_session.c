/*
 * TLS sessions without sockets: two of ours, and ours against OpenSSL used otherwise than we do. Certificates have
 * times, so that these are no unit tests.
 */
#include "tests/conformance/tls_fixture.h"

#include "base/random.h"
#include "rpc/io/tls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define SEED 20260731

/* What a session has decrypted, and how it ended. */
struct end {
    struct arpc_tls_session *session;
    uint8_t *plain;
    size_t size;
    int rc;
    struct amp_error error;
};

static void open_end(struct end *end, struct arpc_tls *tls, const char *host)
{
    *end = (struct end){0};
    assert_int_equal(arpc_tls_session_new(tls, host, "peer:1", &end->session), 0);
    arpc_tls_unref(tls);
}

static void close_end(struct end *end)
{
    arpc_tls_session_free(end->session);
    free(end->plain);
    assert_int_equal(ERR_peek_error(), 0);
}

/* One read of the socket, in memory of its own so that nothing beyond it is touched or kept. */
static void feed(struct end *end, const uint8_t *data, size_t size)
{
    uint8_t out[5000];
    uint8_t *copy = malloc(size);
    size_t got = 0;
    assert_non_null(copy);
    memcpy(copy, data, size);
    arpc_tls_input(end->session, copy, size);
    do {
        end->rc = arpc_tls_decrypt(end->session, out, sizeof out, &got, &end->error);
        assert_int_equal(ERR_peek_error(), 0);
        if (got > 0) {
            end->plain = realloc(end->plain, end->size + got);
            assert_non_null(end->plain);
            memcpy(end->plain + end->size, out, got);
            end->size += got;
        }
    } while (end->rc == 0 && got > 0);
    assert_true(end->rc != 0 || arpc_tls_input_left(end->session) == 0);
    arpc_tls_input(end->session, NULL, 0);
    free(copy);
}

/* All output of one session into the other, in reads of `segment` bytes; 0: of random sizes. */
static void move(struct end *from, struct end *to, size_t segment, struct amp_random *random)
{
    size_t size;
    const uint8_t *data = arpc_tls_output(from->session, &size);
    while (size > 0 && to->rc == 0) {
        size_t part = segment != 0 ? segment : 1 + (size_t)amp_random_below(random, 3000);
        part = part < size ? part : size;
        feed(to, data, part);
        arpc_tls_sent(from->session, part);
        data = arpc_tls_output(from->session, &size);
    }
}

static void shake_hands(struct end *client, struct end *server, size_t segment, struct amp_random *random)
{
    for (int i = 0; i < 4; i++) {
        move(client, server, segment, random);
        move(server, client, segment, random);
    }
}

static void open_pair(struct end *client, struct end *server)
{
    open_end(client, tls_client_context("ca", NULL, NULL), "localhost");
    open_end(server, tls_server_context("server", NULL, false), NULL);
    assert_true(client->rc == 0 && server->rc == 0);
}

/* Sends `size` bytes in slots of random sizes. */
static void send_all(struct end *from, struct end *to, const uint8_t *data, size_t size, size_t segment,
                     struct amp_random *random)
{
    struct iovec slots[7];
    size_t done = 0;
    while (done < size) {
        size_t at = done;
        size_t count = 0;
        size_t taken;
        for (; count < 7 && at < size; count++) {
            size_t part = (size_t)amp_random_below(random, amp_random_below(random, 2) == 0 ? 30 : 60000);
            part = part < size - at ? part : size - at;
            slots[count] = (struct iovec){(void *)(uintptr_t)(data + at), part};
            at += part;
        }
        assert_int_equal(arpc_tls_encrypt(from->session, slots, count, &taken, &from->error), 0);
        assert_true(taken <= at - done);
        done += taken;
        move(from, to, segment, random);
        arpc_tls_trim(from->session);
        assert_int_equal(to->rc, 0);
    }
}

static void bytes_arrive_as_they_were_whatever_the_segments(void **state)
{
    static const size_t segments[] = {1, 2, 5, 100, 4096, 16384, 100000, 0};
    struct amp_random random;
    (void)state;
    (void)printf("seed %d\n", SEED);
    amp_random_init(&random, SEED);
    size_t size = 300000;
    uint8_t *data = malloc(size);
    assert_non_null(data);
    for (size_t i = 0; i < size; i++)
        data[i] = (uint8_t)amp_random_next(&random);
    for (size_t i = 0; i < sizeof segments / sizeof segments[0]; i++) {
        struct end client;
        struct end server;
        open_pair(&client, &server);
        shake_hands(&client, &server, segments[i], &random);
        assert_true(arpc_tls_is_ready(client.session) && arpc_tls_is_ready(server.session));
        send_all(&client, &server, data, size, segments[i], &random);
        send_all(&server, &client, data, size, segments[i], &random);
        assert_int_equal(server.size, size);
        assert_memory_equal(server.plain, data, size);
        assert_int_equal(client.size, size);
        assert_memory_equal(client.plain, data, size);
        close_end(&client);
        close_end(&server);
    }
    free(data);
}

static void no_more_is_encrypted_than_the_output_has_room_for(void **state)
{
    struct end client;
    struct end server;
    size_t taken;
    size_t waiting;
    (void)state;
    uint8_t *data = calloc(1, MIB);
    assert_non_null(data);
    struct iovec slot = {data, MIB};
    open_pair(&client, &server);
    shake_hands(&client, &server, 4096, NULL);
    assert_int_equal(arpc_tls_encrypt(client.session, &slot, 1, &taken, &client.error), 0);
    assert_int_equal(taken, 4 * ARPC_TLS_RECORD_MAX);
    (void)arpc_tls_output(client.session, &waiting);
    assert_true(waiting > taken && waiting <= ARPC_TLS_OUTPUT_MAX);
    assert_int_equal(arpc_tls_encrypt(client.session, &slot, 1, &taken, &client.error), 0);
    assert_int_equal(taken, 0);
    arpc_tls_close_notify(client.session); /* for which there is room */
    size_t with_close;
    (void)arpc_tls_output(client.session, &with_close);
    assert_true(with_close > waiting);
    move(&client, &server, 16384, NULL);
    assert_int_equal(server.size, 4 * ARPC_TLS_RECORD_MAX);
    assert_string_equal(server.error.text, "the peer closed the connection");
    free(data);
    close_end(&client);
    close_end(&server);
}

static void an_end_without_close_notify_is_told_apart(void **state)
{
    struct end client;
    struct end server;
    struct amp_error error;
    (void)state;
    open_pair(&client, &server);
    arpc_tls_ended(server.session, &error);
    assert_string_equal(error.text, "peer:1 closed the connection during the TLS handshake");
    shake_hands(&client, &server, 4096, NULL);
    arpc_tls_ended(server.session, &error);
    assert_string_equal(error.text, "the connection was cut (it ended without TLS's close_notify)");
    arpc_tls_ended(client.session, &error);
    assert_non_null(strstr(error.text, "right after the TLS handshake: it may demand a certificate"));
    close_end(&client);
    close_end(&server);
}

static void bytes_that_were_changed_on_the_way_end_the_connection(void **state)
{
    struct amp_random random;
    (void)state;
    (void)printf("seed %d\n", SEED + 1);
    amp_random_init(&random, SEED + 1);
    for (int i = 0; i < 300; i++) {
        struct end client;
        struct end server;
        uint8_t bytes[8192];
        struct iovec slot = {bytes, 100};
        size_t size;
        size_t taken;
        open_pair(&client, &server);
        bool late = i % 3 == 0;
        if (late) {
            memset(bytes, 1, 100);
            shake_hands(&client, &server, 4096, NULL);
            assert_int_equal(arpc_tls_encrypt(client.session, &slot, 1, &taken, &client.error), 0);
        }
        const uint8_t *data = arpc_tls_output(client.session, &size);
        assert_true(size <= sizeof bytes);
        memcpy(bytes, data, size);
        bytes[amp_random_below(&random, size)] ^= (uint8_t)(1 + amp_random_below(&random, 255));
        feed(&server, bytes, size);
        move(&server, &client, 4096, NULL);
        /* A length that grew has the server wait for the rest, which the deadline ends. */
        assert_int_equal(server.size, 0);
        if (server.rc != 0)
            assert_int_not_equal(server.error.text[0], 0);
        close_end(&client);
        close_end(&server);
    }
}

/* ---- OpenSSL on the other side ---- */

struct raw {
    SSL_CTX *ctx;
    SSL *ssl;
};

static void open_raw(struct raw *raw, bool server, int version)
{
    raw->ctx = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    assert_non_null(raw->ctx);
    SSL_CTX_set_security_level(raw->ctx, 0);
    if (version != 0) {
        assert_int_equal(SSL_CTX_set_min_proto_version(raw->ctx, version), 1);
        assert_int_equal(SSL_CTX_set_max_proto_version(raw->ctx, version), 1);
    }
    if (server) {
        assert_int_equal(SSL_CTX_use_certificate_chain_file(raw->ctx, tls_certs_path(tls_dir, "server", ".pem")), 1);
        assert_int_equal(
            SSL_CTX_use_PrivateKey_file(raw->ctx, tls_certs_path(tls_dir, "server", ".key"), SSL_FILETYPE_PEM), 1);
    }
    raw->ssl = SSL_new(raw->ctx);
    SSL_set_bio(raw->ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    if (server)
        SSL_set_accept_state(raw->ssl);
    else
        SSL_set_connect_state(raw->ssl);
}

static void close_raw(struct raw *raw)
{
    SSL_free(raw->ssl);
    SSL_CTX_free(raw->ctx);
    ERR_clear_error();
}

static void set_alpn(struct raw *raw, const char *protocol)
{
    uint8_t list[32];
    list[0] = (uint8_t)strlen(protocol);
    memcpy(list + 1, protocol, list[0]);
    assert_int_equal(SSL_set_alpn_protos(raw->ssl, list, list[0] + 1u), 0);
}

/* Moves what there is both ways, some times; the raw side makes its handshake. */
static void pump(struct raw *raw, struct end *end)
{
    for (int i = 0; i < 6; i++) {
        uint8_t bytes[16384];
        size_t size;
        (void)SSL_do_handshake(raw->ssl);
        ERR_clear_error();
        int got = BIO_read(SSL_get_wbio(raw->ssl), bytes, sizeof bytes);
        if (got > 0 && end->rc == 0)
            feed(end, bytes, (size_t)got);
        const uint8_t *data = arpc_tls_output(end->session, &size);
        if (size > 0) {
            assert_int_equal(BIO_write(SSL_get_rbio(raw->ssl), data, (int)size), size);
            arpc_tls_sent(end->session, size);
        }
    }
}

static void expect_refused(struct raw *raw, const char *text, int alert)
{
    struct end server;
    open_end(&server, tls_server_context("server", NULL, false), NULL);
    uint8_t bytes[16384];
    size_t size;
    (void)SSL_do_handshake(raw->ssl);
    int got = BIO_read(SSL_get_wbio(raw->ssl), bytes, sizeof bytes);
    ERR_clear_error();
    assert_true(got > 0);
    feed(&server, bytes, (size_t)got);
    if (server.rc == 0 || strstr(server.error.text, text) == NULL)
        fail_msg("%d \"%s\", expected \"%s\"", server.rc, server.error.text, text);
    const uint8_t *data = arpc_tls_output(server.session, &size);
    assert_int_equal(size, 7);
    assert_int_equal(data[0], SSL3_RT_ALERT);
    assert_int_equal(data[5], SSL3_AL_FATAL);
    assert_int_equal(data[6], alert);
    feed(&server, bytes, 5);
    assert_int_not_equal(server.rc, 0); /* it stays over */
    close_end(&server);
    close_raw(raw);
}

static void clients_that_offer_no_h2_get_the_alert_that_says_so(void **state)
{
    struct raw raw;
    (void)state;
    open_raw(&raw, false, 0);
    expect_refused(&raw, "does not offer HTTP/2", SSL_AD_NO_APPLICATION_PROTOCOL);
    open_raw(&raw, false, 0);
    set_alpn(&raw, "http/1.1");
    expect_refused(&raw, "does not offer HTTP/2", SSL_AD_NO_APPLICATION_PROTOCOL);
    open_raw(&raw, false, TLS1_2_VERSION);
    expect_refused(&raw, "does not offer HTTP/2", SSL_AD_NO_APPLICATION_PROTOCOL);
}

static void old_versions_and_ciphers_without_aead_or_ecdhe_are_refused(void **state)
{
    static const char *const bad[] = {"ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES256-SHA", "AES128-GCM-SHA256"};
    struct raw raw;
    (void)state;
    open_raw(&raw, false, TLS1_1_VERSION);
    set_alpn(&raw, "h2");
    expect_refused(&raw, "unsupported protocol", SSL_AD_PROTOCOL_VERSION);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        open_raw(&raw, false, TLS1_2_VERSION);
        set_alpn(&raw, "h2");
        assert_int_equal(SSL_set_cipher_list(raw.ssl, bad[i]), 1);
        expect_refused(&raw, "no shared cipher", SSL_AD_HANDSHAKE_FAILURE);
    }
}

/* Not to be confused with a real client that speaks HTTP/1 or HTTP/2 in plaintext. */
static void plaintext_gets_an_alert_of_tls(void **state)
{
    static const char *const texts[] = {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "\n"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct end server;
        size_t size;
        open_end(&server, tls_server_context("server", NULL, false), NULL);
        feed(&server, (const uint8_t *)texts[i], strlen(texts[i]));
        assert_string_equal(server.error.text, "the client peer:1 does not use TLS, and this port does");
        assert_int_equal(arpc_tls_output(server.session, &size)[0], SSL3_RT_ALERT);
        close_end(&server);
    }
}

static void each_version_is_spoken_without_tickets(void **state)
{
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct raw raw;
        struct end server;
        uint8_t bytes[64];
        struct iovec slot = {bytes, 5};
        size_t taken;
        memcpy(bytes, "hello", 5);
        open_raw(&raw, false, versions[i]);
        set_alpn(&raw, "h2");
        open_end(&server, tls_server_context("server", NULL, false), NULL);
        pump(&raw, &server);
        assert_true(arpc_tls_is_ready(server.session));
        assert_int_equal(SSL_version(raw.ssl), versions[i]);
        assert_int_equal(arpc_tls_encrypt(server.session, &slot, 1, &taken, &server.error), 0);
        pump(&raw, &server);
        assert_int_equal(SSL_read(raw.ssl, bytes, sizeof bytes), 5);
        assert_int_equal(SSL_SESSION_has_ticket(SSL_get_session(raw.ssl)), 0);
        assert_int_equal(SSL_get_max_early_data(raw.ssl), 0);
        /* The end, both ways. */
        arpc_tls_close_notify(server.session);
        pump(&raw, &server);
        assert_int_equal(SSL_read(raw.ssl, bytes, sizeof bytes), 0);
        assert_int_equal(SSL_get_shutdown(raw.ssl), SSL_RECEIVED_SHUTDOWN);
        close_raw(&raw);
        close_end(&server);
    }
}

static void a_renegotiation_is_not_begun(void **state)
{
    struct raw raw;
    struct end server;
    (void)state;
    open_raw(&raw, false, TLS1_2_VERSION);
    set_alpn(&raw, "h2");
    open_end(&server, tls_server_context("server", NULL, false), NULL);
    pump(&raw, &server);
    assert_true(arpc_tls_is_ready(server.session));
    (void)SSL_renegotiate(raw.ssl);
    pump(&raw, &server);
    assert_false(SSL_is_init_finished(raw.ssl));
    close_raw(&raw);
    close_end(&server);
}

static void key_updates_are_taken_but_not_a_flood_of_them(void **state)
{
    struct raw raw;
    struct end server;
    (void)state;
    open_raw(&raw, false, TLS1_3_VERSION);
    set_alpn(&raw, "h2");
    open_end(&server, tls_server_context("server", NULL, false), NULL);
    pump(&raw, &server);
    int updates = 0;
    while (server.rc == 0 && updates < 1000) {
        assert_int_equal(SSL_key_update(raw.ssl, SSL_KEY_UPDATE_REQUESTED), 1);
        assert_int_equal(SSL_write(raw.ssl, "x", 1), 1);
        pump(&raw, &server);
        updates++;
        if (updates == 10)
            assert_int_equal(server.size, 10);
    }
    assert_in_range(updates, 11, 100);
    assert_string_equal(server.error.text, "the peer changes keys too often");
    close_raw(&raw);
    close_end(&server);
}

static int key_updates; /* that came */

static void count_key_updates(int sent, int version, int type, const void *data, size_t size, SSL *ssl, void *arg)
{
    (void)version;
    (void)ssl;
    (void)arg;
    if (!sent && type == SSL3_RT_HANDSHAKE && size > 0 && *(const uint8_t *)data == SSL3_MT_KEY_UPDATE)
        key_updates++;
}

static void a_key_is_renewed_after_so_many_records(void **state)
{
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    (void)state;
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        struct raw raw;
        struct end server;
        struct arpc_tls *tls = tls_server_context("server", NULL, false);
        assert_true(tls->key_records == ARPC_TLS_KEY_RECORDS);
        tls->key_records = 3;
        open_raw(&raw, false, versions[i]);
        set_alpn(&raw, "h2");
        SSL_set_msg_callback(raw.ssl, count_key_updates);
        key_updates = 0;
        open_end(&server, tls, NULL);
        pump(&raw, &server);
        for (char letter = 'a'; letter < 'k'; letter++) {
            struct iovec slot = {&letter, 1};
            size_t taken;
            char got;
            assert_int_equal(arpc_tls_encrypt(server.session, &slot, 1, &taken, &server.error), 0);
            assert_int_equal(taken, 1);
            pump(&raw, &server);
            assert_int_equal(SSL_read(raw.ssl, &got, 1), 1);
            assert_int_equal(got, letter);
        }
        assert_int_equal(key_updates, versions[i] == TLS1_3_VERSION ? 3 : 0);
        close_raw(&raw);
        close_end(&server);
    }
}

static void errors_that_others_left_in_the_thread_are_not_taken_for_ours(void **state)
{
    (void)state;
    struct end client;
    struct end server;
    ERR_raise(ERR_LIB_USER, 1);
    open_pair(&client, &server);
    ERR_raise(ERR_LIB_USER, 1);
    shake_hands(&client, &server, 4096, NULL);
    assert_true(arpc_tls_is_ready(client.session) && arpc_tls_is_ready(server.session));
    close_end(&client);
    close_end(&server);
}

static int choose_nothing(SSL *ssl, const unsigned char **out, unsigned char *size, const unsigned char *offered,
                          unsigned offered_size, void *arg)
{
    (void)ssl;
    (void)out;
    (void)size;
    (void)offered;
    (void)offered_size;
    (void)arg;
    return SSL_TLSEXT_ERR_NOACK;
}

static void a_server_that_does_not_choose_h2_is_refused(void **state)
{
    struct raw raw;
    struct end client;
    (void)state;
    open_raw(&raw, true, 0);
    SSL_CTX_set_alpn_select_cb(raw.ctx, choose_nothing, NULL);
    open_end(&client, tls_client_context("ca", NULL, NULL), "localhost");
    pump(&raw, &client);
    assert_int_not_equal(client.rc, 0);
    assert_string_equal(client.error.text, "the server peer:1 does not offer HTTP/2 for TLS (ALPN \"h2\")");
    close_raw(&raw);
    close_end(&client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_arrive_as_they_were_whatever_the_segments),
        cmocka_unit_test(no_more_is_encrypted_than_the_output_has_room_for),
        cmocka_unit_test(an_end_without_close_notify_is_told_apart),
        cmocka_unit_test(bytes_that_were_changed_on_the_way_end_the_connection),
        cmocka_unit_test(clients_that_offer_no_h2_get_the_alert_that_says_so),
        cmocka_unit_test(old_versions_and_ciphers_without_aead_or_ecdhe_are_refused),
        cmocka_unit_test(plaintext_gets_an_alert_of_tls),
        cmocka_unit_test(each_version_is_spoken_without_tickets),
        cmocka_unit_test(a_renegotiation_is_not_begun),
        cmocka_unit_test(key_updates_are_taken_but_not_a_flood_of_them),
        cmocka_unit_test(a_key_is_renewed_after_so_many_records),
        cmocka_unit_test(errors_that_others_left_in_the_thread_are_not_taken_for_ours),
        cmocka_unit_test(a_server_that_does_not_choose_h2_is_refused),
    };
    return cmocka_run_group_tests(tests, tls_group_setup, tls_group_teardown);
}
