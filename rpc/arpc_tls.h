/*
 * TLS for servers and channels: a context holds certificates, a private key and trusted authorities, all read from PEM
 * files, and is given to arpc_server_listen_tls or to arpc_channel_options.tls.
 *
 * Connections use TLS 1.2 (only ECDHE with AEAD) or 1.3, ALPN "h2" and nothing else on both sides, no renegotiation, no
 * compression, no early data and no resumption: connections live long, so that full handshakes cost little, and each
 * handshake checks both certificates against the files that were read last. The handshake is part of the deadline for
 * the beginning of HTTP/2, and of a channel's connect_ms.
 *
 * Each function runs on the thread of the loop whose servers and channels use the context, or before they use it.
 */
#ifndef ARPC_TLS_H
#define ARPC_TLS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct arpc_tls;

/* Every field's NULL or false means the default. All strings are copied. */
struct arpc_tls_server_options {
    size_t size;           /* sizeof(struct arpc_tls_server_options) */
    const char *cert_file; /* the server's certificate, then those between it and the root; needed */
    const char *key_file;  /* its private key, without a passphrase; needed */
    /*
     * Authorities of clients; NULL: clients are not asked for a certificate. Without client_cert_auth a client may come
     * without one, but one that it shows must be good.
     */
    const char *trusted_ca_file;
    bool client_cert_auth; /* a client must show a certificate of trusted_ca_file, else its handshake fails */
};

/* Every field's NULL means the default. All strings are copied. */
struct arpc_tls_client_options {
    size_t size;                 /* sizeof(struct arpc_tls_client_options) */
    const char *trusted_ca_file; /* authorities of servers; NULL: those of the system */
    const char *cert_file;       /* the client's own certificate, for a server that demands one; with key_file only */
    const char *key_file;
    /*
     * DNS name or IP address that the server's certificate must be for; sent as SNI (a name) and as :authority. NULL:
     * the host of the endpoint that is connected to; "localhost" for unix:.
     */
    const char *server_name;
};

/*
 * Reads the files and makes a context with one reference, which is the caller's. 0 and *out; else *out is untouched and
 * the text names the file and the remedy, by the names that ampd's and libampclient's options have: AMP_EINVAL (options
 * that do not fit, a file that is not what it should be, a key that is not the certificate's), AMP_ENOTFOUND,
 * AMP_EDENIED, AMP_EIO (reading), AMP_ENOMEM.
 */
int arpc_tls_server(const struct arpc_tls_server_options *options, struct arpc_tls **out, struct amp_error *error);
int arpc_tls_client(const struct arpc_tls_client_options *options, struct arpc_tls **out, struct amp_error *error);

/*
 * Reads the files of the context again, for connections that begin from now on; open connections keep what they have.
 * 0; a code of arpc_tls_client: then the context is as before.
 */
int arpc_tls_reload(struct arpc_tls *tls, struct amp_error *error);

/*
 * What an operator should know about the files that are in use: a private key that everybody may read, a certificate
 * that has expired or will within ARPC_TLS_EXPIRY_DAYS, a client's that is for servers alone. One sentence for each, or
 * "". For a log, after loading and reloading. Valid until the next call with this context.
 */
#define ARPC_TLS_EXPIRY_DAYS 14
const char *arpc_tls_warning(struct arpc_tls *tls);

/* Take and drop a reference. Servers, channels and connections have references of their own. unref allows NULL. */
struct arpc_tls *arpc_tls_ref(struct arpc_tls *tls);
void arpc_tls_unref(struct arpc_tls *tls);

#endif
