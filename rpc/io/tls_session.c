/*
 * TLS on one connection.
 *
 * OpenSSL reads and writes by a BIO whose two ends are the bytes that arpc_tls_input pointed to and the output buffer,
 * so that it never waits, never sees a socket, and never holds more than one record. The output buffer exists only
 * while something is in it.
 *
 * Every entry leaves OpenSSL's error queue of the thread empty: a stale error there would be taken for a later one's.
 */
#include "rpc/io/tls.h"

#include "base/assert.h"
#include "rpc/arpc_client.h"
#include "rpc/h2/link.h"
#include "rpc/io/tls_cert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

/*
 * Handshake messages that a peer may send after the handshake (key updates, refused renegotiations), each of which
 * costs more than its bytes: at first, and for each 128 MiB. Honest peers update keys after 2^23 records or more, which
 * are some hundred GiB, but 293 MB where each record holds a frame of a few bytes.
 */
#define LATE_MESSAGES        16
#define LATE_MESSAGES_PERIOD ((uint64_t)128 << 20)

struct output {
    size_t start;
    size_t end;
    uint8_t gather[ARPC_TLS_RECORD_MAX]; /* a record's plaintext, where it lies in several slots */
    uint8_t bytes[ARPC_TLS_OUTPUT_MAX];
};

struct arpc_tls_session {
    struct arpc_tls *tls;
    SSL *ssl;
    const uint8_t *in;
    size_t in_size;
    struct output *out; /* NULL: nothing is to be sent */
    bool begun;         /* a byte has come */
    bool ready;
    bool spoken; /* plaintext has come */
    bool over;   /* OpenSSL must not be asked any more */
    bool plaintext;
    bool no_h2;
    uint64_t received;
    uint64_t late_messages;
    uint64_t key_used;              /* records that were encrypted with the key in use */
    char host[ARPC_PEER_NAME_SIZE]; /* that a client expects */
    char peer[ARPC_PEER_SIZE];
    struct amp_error refused; /* why the peer's certificate is not taken; code 0: it is */
};

static const unsigned char alpn_h2[] = {2, 'h', '2'};

/* ---- the bytes ---- */

static struct output *output_of(struct arpc_tls_session *session)
{
    if (session->out == NULL) {
        session->out = malloc(sizeof *session->out);
        if (session->out != NULL)
            session->out->start = session->out->end = 0;
    }
    return session->out;
}

static int bytes_write(BIO *bio, const char *data, int size)
{
    struct arpc_tls_session *session = BIO_get_data(bio);
    struct output *out = output_of(session);
    BIO_clear_retry_flags(bio);
    if (out == NULL || size < 0 || (size_t)size > sizeof out->bytes - out->end)
        return -1; /* a peer that makes us talk and does not read; plaintext is only taken while there is room */
    memcpy(out->bytes + out->end, data, (size_t)size);
    out->end += (size_t)size;
    return size;
}

static int bytes_read(BIO *bio, char *data, int size)
{
    struct arpc_tls_session *session = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (session->in_size == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    size_t taken = (size_t)size < session->in_size ? (size_t)size : session->in_size;
    memcpy(data, session->in, taken);
    session->in += taken;
    session->in_size -= taken;
    return (int)taken;
}

static long bytes_ctrl(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
}

static int bytes_create(BIO *bio)
{
    BIO_set_init(bio, 1);
    return 1;
}

struct bio_method_st *arpc_tls_bytes_new(void)
{
    BIO_METHOD *bytes = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "bytes");
    if (bytes == NULL)
        return NULL;
    /* None of these can fail. */
    (void)BIO_meth_set_write(bytes, bytes_write);
    (void)BIO_meth_set_read(bytes, bytes_read);
    (void)BIO_meth_set_ctrl(bytes, bytes_ctrl);
    (void)BIO_meth_set_create(bytes, bytes_create);
    return bytes;
}

void arpc_tls_bytes_free(struct bio_method_st *bytes)
{
    BIO_meth_free(bytes);
}

/* ---- the handshake ---- */

static int on_verify(int good, X509_STORE_CTX *store)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct arpc_tls_session *session = SSL_get_app_data(ssl);
    if (good || session->refused.code != 0)
        return good;
    arpc_tls_say_refused(store, session->tls->server, session->peer, session->host, &session->refused);
    return 0;
}

/* A client that says nothing of protocols (ALPN) would not get to on_alpn. */
static int on_hello(SSL *ssl, int *alert, void *arg)
{
    (void)arg;
    const unsigned char *data;
    size_t size;
    if (SSL_client_hello_get0_ext(ssl, TLSEXT_TYPE_application_layer_protocol_negotiation, &data, &size) == 1)
        return SSL_CLIENT_HELLO_SUCCESS;
    struct arpc_tls_session *session = SSL_get_app_data(ssl);
    session->no_h2 = true;
    *alert = SSL_AD_NO_APPLICATION_PROTOCOL;
    return SSL_CLIENT_HELLO_ERROR;
}

static int on_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_size, const unsigned char *offered,
                   unsigned size, void *arg)
{
    (void)arg;
    struct arpc_tls_session *session = SSL_get_app_data(ssl);
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, out_size, alpn_h2, sizeof alpn_h2, offered, size) == OPENSSL_NPN_NEGOTIATED) {
        *out = chosen;
        return SSL_TLSEXT_ERR_OK;
    }
    session->no_h2 = true;
    return SSL_TLSEXT_ERR_ALERT_FATAL;
}

static void on_message(int sent, int version, int type, const void *data, size_t size, SSL *ssl, void *arg)
{
    (void)version;
    (void)data;
    (void)size;
    (void)ssl;
    struct arpc_tls_session *session = arg;
    if (!sent && type == SSL3_RT_HANDSHAKE && session->ready)
        session->late_messages++;
}

int arpc_tls_set_handshake(struct arpc_tls *tls, struct ssl_ctx_st *ctx)
{
    if (!tls->server) {
        SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, on_verify);
        return SSL_CTX_set_alpn_protos(ctx, alpn_h2, sizeof alpn_h2) == 0 ? 0 : AMP_ENOMEM;
    }
    int mode = tls->trusted_ca_file != NULL ? SSL_VERIFY_PEER : SSL_VERIFY_NONE;
    SSL_CTX_set_verify(ctx, tls->client_cert_auth ? mode | SSL_VERIFY_FAIL_IF_NO_PEER_CERT : mode, on_verify);
    SSL_CTX_set_client_hello_cb(ctx, on_hello, NULL);
    SSL_CTX_set_alpn_select_cb(ctx, on_alpn, NULL);
    return 0;
}

/* What the certificate must be for: an address, or a name, which is also told to the server. */
static bool expect_host(struct arpc_tls_session *session)
{
    SSL *ssl = session->ssl;
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), session->host) == 1)
        return true;
    ERR_clear_error(); /* it is no address */
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    return SSL_set1_host(ssl, session->host) == 1 && SSL_set_tlsext_host_name(ssl, session->host) == 1;
}

int arpc_tls_session_new(struct arpc_tls *tls, const char *host, const char *peer, struct arpc_tls_session **out)
{
    struct arpc_tls_session *session = calloc(1, sizeof *session);
    if (session == NULL)
        return AMP_ENOMEM;
    const char *name = tls->server_name != NULL ? tls->server_name : host;
    session->tls = arpc_tls_ref(tls);
    (void)snprintf(session->peer, sizeof session->peer, "%s", peer);
    (void)snprintf(session->host, sizeof session->host, "%s", name != NULL ? name : "");
    AMP_ASSERT(tls->server || session->host[0] != 0); /* OpenSSL takes an empty name for "any" */
    session->ssl = SSL_new(tls->ctx);
    BIO *bytes = session->ssl != NULL ? BIO_new(tls->bytes) : NULL;
    if (bytes == NULL)
        goto failed;
    BIO_set_data(bytes, session);
    SSL_set_bio(session->ssl, bytes, bytes); /* takes the one reference for both */
    (void)SSL_set_app_data(session->ssl, session);
    SSL_set_msg_callback(session->ssl, on_message);
    SSL_set_msg_callback_arg(session->ssl, session);
    if (tls->server) {
        SSL_set_accept_state(session->ssl);
    } else {
        SSL_set_connect_state(session->ssl);
        ERR_clear_error(); /* what others left in this thread would be taken for the handshake's */
        if (!expect_host(session) || SSL_get_error(session->ssl, SSL_do_handshake(session->ssl)) != SSL_ERROR_WANT_READ)
            goto failed;
    }
    *out = session;
    return 0;
failed:
    arpc_tls_session_free(session);
    return AMP_ENOMEM;
}

void arpc_tls_session_free(struct arpc_tls_session *session)
{
    if (session == NULL)
        return;
    SSL_free(session->ssl);
    ERR_clear_error();
    arpc_tls_unref(session->tls);
    free(session->out);
    free(session);
}

void arpc_tls_names(const struct arpc_tls_session *session, struct arpc_peer *peer)
{
    X509 *certificate = SSL_get0_peer_certificate(session->ssl);
    if (certificate != NULL)
        arpc_tls_read_names(certificate, peer);
    ERR_clear_error();
}

bool arpc_tls_is_ready(const struct arpc_tls_session *session)
{
    return session->ready;
}

/* ---- what goes wrong ---- */

const char *arpc_tls_reason(void)
{
    unsigned long last = ERR_peek_last_error();
    const char *reason = last != 0 ? ERR_reason_error_string(last) : NULL;
    ERR_clear_error();
    return reason != NULL ? reason : "no reason is known";
}

/* The peer's alert, as a sentence. */
static void say_alert(const struct arpc_tls_session *session, int alert, struct amp_error *error)
{
    const char *peer = session->peer;
    const char *other = session->tls->server ? "the client" : "the server";
    switch (alert) {
    case SSL_AD_CERTIFICATE_REQUIRED:
        (void)amp_error_set(error, AMP_EUNAVAILABLE, NULL, "%s %s " ARPC_DEMANDS_CERTIFICATE " (cert and key)", other,
                            peer);
        return;
    case SSL_AD_UNKNOWN_CA:
        (void)amp_error_set(error, AMP_EUNAVAILABLE, NULL,
                            "%s %s does not trust the authority of " ARPC_CERTIFICATE_SHOWN, other, peer);
        return;
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
        (void)amp_error_set(error, AMP_EUNAVAILABLE, NULL,
                            "%s %s refuses " ARPC_CERTIFICATE_SHOWN
                            ": it is not meant for %s; have one made whose extended key usage has %s",
                            other, peer, session->tls->server ? "a server" : "a client",
                            session->tls->server ? "serverAuth" : "clientAuth");
        return;
    case SSL_AD_CERTIFICATE_EXPIRED:
        (void)amp_error_set(error, AMP_EUNAVAILABLE, NULL,
                            "%s %s refuses " ARPC_CERTIFICATE_SHOWN ": it has expired; have a new one made", other,
                            peer);
        return;
    case SSL_AD_NO_APPLICATION_PROTOCOL:
        (void)amp_error_set(error, AMP_EUNAVAILABLE, NULL, "%s %s " ARPC_HAS_NO_HTTP2 " (ALPN \"h2\")", other, peer);
        return;
    case SSL_AD_PROTOCOL_VERSION:
        (void)amp_error_set(error, AMP_EUNAVAILABLE, NULL, "%s %s accepts neither TLS 1.2 nor 1.3", other, peer);
        return;
    case SSL_AD_HANDSHAKE_FAILURE:
        (void)amp_error_set(error, AMP_EUNAVAILABLE, NULL,
                            "%s %s refused the handshake: it may demand a certificate (cert and key), or other ciphers",
                            other, peer);
        return;
    default:
        (void)amp_error_set(error, AMP_EUNAVAILABLE, NULL, "%s %s refused TLS with the alert \"%s\"", other, peer,
                            SSL_alert_desc_string_long(alert));
    }
}

/* OpenSSL failed. */
static int say_failure(struct arpc_tls_session *session, struct amp_error *error)
{
    unsigned long last = ERR_peek_error(); /* the first one is the cause */
    int reason = ERR_GET_LIB(last) == ERR_LIB_SSL ? ERR_GET_REASON(last) : 0;
    const char *other = session->tls->server ? "the client" : "the server";
    const char *peer = session->peer;
    session->over = true;
    if (session->refused.code != 0)
        *error = session->refused;
    else if (session->no_h2)
        (void)amp_error_set(error, AMP_EUNAVAILABLE, NULL, "%s %s " ARPC_HAS_NO_HTTP2 " (ALPN \"h2\")", other, peer);
    else if (reason > SSL_AD_REASON_OFFSET)
        say_alert(session, reason - SSL_AD_REASON_OFFSET, error);
    else if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE)
        (void)amp_error_set(error, AMP_EUNAVAILABLE, NULL,
                            "the client %s shows no certificate, and this port requires one", peer);
    else
        (void)amp_error_set(error, AMP_EUNAVAILABLE, NULL, "TLS with %s failed: %s", peer,
                            last != 0 ? ERR_reason_error_string(last) : "no memory, or the peer does not read");
    ERR_clear_error();
    return AMP_EUNAVAILABLE;
}

/* What came first is no record of TLS. */
static int say_plaintext(struct arpc_tls_session *session, struct amp_error *error)
{
    static const uint8_t alert[] = {SSL3_RT_ALERT, 3, 3, 0, 2, SSL3_AL_FATAL, SSL_AD_PROTOCOL_VERSION};
    struct output *out = session->tls->server ? output_of(session) : NULL;
    session->over = true;
    if (out != NULL && out->end + sizeof alert <= sizeof out->bytes) {
        memcpy(out->bytes + out->end, alert, sizeof alert);
        out->end += sizeof alert;
    }
    if (session->tls->server)
        return amp_error_set(error, AMP_EUNAVAILABLE, NULL, "the client %s does not use TLS, and this port does",
                             session->peer);
    return amp_error_set(error, AMP_EUNAVAILABLE, NULL, "the server %s " ARPC_USES_NO_TLS ", or to a port with TLS",
                         session->peer);
}

void arpc_tls_ended(const struct arpc_tls_session *session, struct amp_error *error)
{
    if (session->ready && !session->tls->server && !session->spoken)
        (void)amp_error_set(error, AMP_EUNAVAILABLE, NULL,
                            "%s closed the connection right after the TLS handshake: it may demand a certificate, or "
                            "another one (cert and key)",
                            session->peer); /* in TLS 1.3 a client is done before the server has looked at it */
    else if (session->ready)
        (void)amp_error_set(error, AMP_EUNAVAILABLE, NULL,
                            "the connection was cut (it ended without TLS's close_notify)");
    else
        (void)amp_error_set(error, AMP_EUNAVAILABLE, NULL, "%s closed the connection during the TLS handshake",
                            session->peer);
}

/* ---- bytes in and out ---- */

void arpc_tls_input(struct arpc_tls_session *session, const uint8_t *data, size_t size)
{
    session->in = data;
    session->in_size = size;
    session->received += size;
    if (session->begun || size == 0)
        return;
    session->begun = true;
    session->plaintext = data[0] < SSL3_RT_CHANGE_CIPHER_SPEC || data[0] > SSL3_RT_APPLICATION_DATA;
}

size_t arpc_tls_input_left(const struct arpc_tls_session *session)
{
    return session->in_size;
}

static int shake_hands(struct arpc_tls_session *session, struct amp_error *error)
{
    int rc = SSL_do_handshake(session->ssl);
    if (rc != 1)
        return SSL_get_error(session->ssl, rc) == SSL_ERROR_WANT_READ ? 0 : say_failure(session, error);
    const unsigned char *chosen;
    unsigned size;
    SSL_get0_alpn_selected(session->ssl, &chosen, &size);
    session->no_h2 = size != sizeof alpn_h2 - 1 || memcmp(chosen, alpn_h2 + 1, size) != 0;
    if (session->no_h2)
        return say_failure(session, error);
    session->ready = true;
    return 0;
}

int arpc_tls_decrypt(struct arpc_tls_session *session, uint8_t *out, size_t size, size_t *got, struct amp_error *error)
{
    *got = 0;
    if (session->over)
        return amp_error_set(error, AMP_EUNAVAILABLE, NULL, "TLS with %s is over", session->peer);
    ERR_clear_error();
    if (session->plaintext)
        return say_plaintext(session, error);
    int rc = session->ready ? 0 : shake_hands(session, error);
    if (rc != 0 || !session->ready)
        return rc;
    rc = SSL_read_ex(session->ssl, out, size, got);
    if (session->late_messages > LATE_MESSAGES + session->received / LATE_MESSAGES_PERIOD) {
        session->over = true;
        return amp_error_set(error, AMP_EUNAVAILABLE, NULL, "the peer changes keys too often");
    }
    if (rc == 1) {
        session->spoken = true;
        return 0;
    }
    *got = 0;
    int kind = SSL_get_error(session->ssl, rc);
    if (kind == SSL_ERROR_WANT_READ)
        return 0;
    if (kind == SSL_ERROR_ZERO_RETURN)
        return amp_error_set(error, AMP_EUNAVAILABLE, NULL, "the peer closed the connection");
    return say_failure(session, error);
}

/* The next record's plaintext: in its place if it lies in one piece, else gathered. Returns its size. */
static size_t next_record(struct output *out, const struct iovec *slots, size_t count, size_t *slot, size_t *at,
                          const uint8_t **data)
{
    size_t size = 0;
    *data = out->gather;
    while (*slot < count && size < ARPC_TLS_RECORD_MAX) {
        const uint8_t *piece = (const uint8_t *)slots[*slot].iov_base + *at;
        size_t left = slots[*slot].iov_len - *at;
        size_t want = ARPC_TLS_RECORD_MAX - size;
        size_t taken = left < want ? left : want;
        if (taken == ARPC_TLS_RECORD_MAX)
            *data = piece;
        else
            memcpy(out->gather + size, piece, taken);
        size += taken;
        *at += taken;
        if (*at == slots[*slot].iov_len) {
            *at = 0;
            (*slot)++;
        }
    }
    return size;
}

/* Another key, told to the peer before the next record, when the one in use has served long enough. */
static bool renew_key(struct arpc_tls_session *session)
{
    if (session->key_used < session->tls->key_records || SSL_version(session->ssl) != TLS1_3_VERSION)
        return true; /* TLS 1.2 has none without a new handshake */
    session->key_used = 0;
    return SSL_key_update(session->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1;
}

int arpc_tls_encrypt(struct arpc_tls_session *session, const struct iovec *slots, size_t count, size_t *taken,
                     struct amp_error *error)
{
    AMP_ASSERT(session->ready);
    *taken = 0;
    if (session->over)
        return amp_error_set(error, AMP_EUNAVAILABLE, NULL, "TLS with %s is over", session->peer);
    struct output *out = output_of(session);
    if (out == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "no memory to send");
    ERR_clear_error();
    size_t slot = 0;
    size_t at = 0;
    /* Besides the record there must be room for what OpenSSL may say before it. */
    while (slot < count && sizeof out->bytes - out->end >= ARPC_TLS_RECORD_MAX + 2 * ARPC_TLS_OVERHEAD_MAX) {
        const uint8_t *data;
        size_t size = next_record(out, slots, count, &slot, &at, &data);
        size_t written = 0;
        if (size == 0)
            break;
        if (!renew_key(session) || SSL_write_ex(session->ssl, data, size, &written) != 1)
            return say_failure(session, error);
        AMP_ASSERT(written == size);
        session->key_used++;
        *taken += size;
    }
    return 0;
}

const uint8_t *arpc_tls_output(const struct arpc_tls_session *session, size_t *size)
{
    const struct output *out = session->out;
    *size = out != NULL ? out->end - out->start : 0;
    return out != NULL ? out->bytes + out->start : NULL;
}

void arpc_tls_sent(struct arpc_tls_session *session, size_t size)
{
    struct output *out = session->out;
    AMP_ASSERT(out != NULL && size <= out->end - out->start);
    out->start += size;
    if (out->start == out->end)
        out->start = out->end = 0;
}

void arpc_tls_trim(struct arpc_tls_session *session)
{
    if (session->out == NULL || session->out->end > 0)
        return;
    free(session->out);
    session->out = NULL;
}

void arpc_tls_close_notify(struct arpc_tls_session *session)
{
    if (!session->ready || session->over)
        return;
    session->over = true;
    ERR_clear_error();
    (void)SSL_shutdown(session->ssl); /* a peer that does not get it takes the end for a cut */
    ERR_clear_error();
}
