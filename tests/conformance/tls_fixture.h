/* channel_fixture.h with TLS: certificates, contexts, and what the server's side saw of its peers. */
#ifndef TESTS_CONFORMANCE_TLS_FIXTURE_H
#define TESTS_CONFORMANCE_TLS_FIXTURE_H

#include "tests/conformance/channel_fixture.h"
#include "tests/conformance/tls_certs.h"

/* The folder of the certificates: ca, other_ca; of ca: server (localhost, 127.0.0.1, ::1), named (ps.example), expired,
 * early, client (CN worker-7, URI spiffe://ampd/worker/7), plain_client (no alternative names); of other_ca:
 * stranger. */
extern char tls_dir[256];

/* What the server saw last. */
struct tls_seen {
    struct arpc_peer peer; /* of the last call that was admitted */
    char address[64];
    int failures; /* handshakes */
    char failure[AMP_ERROR_TEXT_MAX];
};
extern struct tls_seen tls_seen;

/* Makes and removes the certificates: setup and teardown of the group. */
int tls_group_setup(void **state);
int tls_group_teardown(void **state);

/* Contexts of certificate files; NULL: none, and for a client's `ca`: those of the system. They must load. */
struct arpc_tls *tls_server_context(const char *cert, const char *ca, bool demand);
struct arpc_tls *tls_client_context(const char *ca, const char *cert, const char *server_name);

/* A server at the address, and its port; a channel to host (with the server's port) or to "unix:...". Take the caller's
 * reference of the context; NULL: plaintext. */
void tls_start_server(struct fixture *fixture, const char *address, struct arpc_tls *tls);
void tls_start_server_with(struct fixture *fixture, const char *address, struct arpc_tls *tls,
                           const struct arpc_limits *limits);
void tls_start_channel(struct fixture *fixture, const char *host, struct arpc_tls *tls);

/* Unary "hello": its result. */
void tls_hello(struct fixture *fixture, struct seen *seen);

/* It ends with this status, and the text has this in it. */
void tls_expect(struct fixture *fixture, int status, const char *text);

#endif
