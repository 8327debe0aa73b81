/*
 * TLS on one connection, without I/O: ciphertext goes in and comes out as bytes, and the connection (conn.c) moves
 * them. Internal to rpc/io; OpenSSL is known in tls.c and tls_session.c only.
 *
 * Input: call arpc_tls_input, then arpc_tls_decrypt until it gives no bytes; then all input is used up, and only the
 * beginning of a record may be kept, inside OpenSSL. Output: what OpenSSL writes goes into a buffer of
 * ARPC_TLS_OUTPUT_MAX bytes, and plaintext is taken only while that has room, so that back-pressure of the socket
 * reaches the link.
 */
#ifndef ARPC_IO_TLS_H
#define ARPC_IO_TLS_H

#include "rpc/arpc_peer.h"
#include "rpc/arpc_tls.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct arpc_tls_session;
struct ssl_ctx_st;
struct bio_method_st;

/* Most bytes of a record's plaintext, and of what encryption adds to it (RFC 8446 5.2, RFC 5246 6.2.3). */
#define ARPC_TLS_RECORD_MAX   ((size_t)16 << 10)
#define ARPC_TLS_OVERHEAD_MAX ((size_t)256)
/*
 * Room for four records, which one write gives to the socket (with eight, which do not fit the cache, the kernel takes
 * a third more time), and for what OpenSSL itself sends (alerts, a key update, a flight of the handshake with its
 * certificates).
 */
#define ARPC_TLS_OUTPUT_MAX (4 * (ARPC_TLS_RECORD_MAX + ARPC_TLS_OVERHEAD_MAX) + ((size_t)4 << 10))

/*
 * Records that are encrypted with one key before it is changed. AES-GCM is safe for 2^24.5 of them (RFC 8446 5.5),
 * which a parameter server reaches after 380 GiB, and OpenSSL 3.0 does not count.
 */
#define ARPC_TLS_KEY_RECORDS ((uint64_t)1 << 23)

/* The context as tls_session.c sees it. */
struct arpc_tls {
    unsigned refs;
    bool server;
    bool client_cert_auth;
    char *cert_file; /* here and in the next three NULL: none */
    char *key_file;
    char *trusted_ca_file;
    char *server_name;
    uint64_t key_records; /* ARPC_TLS_KEY_RECORDS, or what a test wants */
    struct ssl_ctx_st *ctx;
    struct bio_method_st *bytes;              /* how OpenSSL reads and writes the session's bytes */
    char warning[3 * AMP_ERROR_TEXT_MAX / 2]; /* three sentences, each with a path */
};

/* tls_session.c: what a context needs of it. NULL: no memory. */
struct bio_method_st *arpc_tls_bytes_new(void);
void arpc_tls_bytes_free(struct bio_method_st *bytes);
/* Sets what concerns the handshake: ALPN and who is verified. 0 or AMP_ENOMEM. */
int arpc_tls_set_handshake(struct arpc_tls *tls, struct ssl_ctx_st *ctx);
/* The reason of OpenSSL's last error, a constant text. Empties OpenSSL's queue of errors. */
const char *arpc_tls_reason(void);

/*
 * Begins TLS on a connection: a client's hello is in the output then. `host`: what the server's certificate must be
 * for, where the context has no server_name; NULL for a server. `peer` names the other side in texts. 0 or AMP_ENOMEM.
 */
int arpc_tls_session_new(struct arpc_tls *tls, const char *host, const char *peer, struct arpc_tls_session **out);
void arpc_tls_session_free(struct arpc_tls_session *session);

/* Whether the handshake is done, and the peer is who it has to be. */
bool arpc_tls_is_ready(const struct arpc_tls_session *session);

/* Once ready: fills in the names of the peer's certificate. */
void arpc_tls_names(const struct arpc_tls_session *session, struct arpc_peer *peer);

/* Gives bytes from the socket, borrowed until all are taken; and how many are not taken yet. */
void arpc_tls_input(struct arpc_tls_session *session, const uint8_t *data, size_t size);
size_t arpc_tls_input_left(const struct arpc_tls_session *session);

/*
 * Goes on with the handshake, and decrypts up to `size` bytes. 0: *got bytes; none: the input is used up. Else the
 * connection is over (an alert may be in the output): AMP_EUNAVAILABLE, and why. `out` may overlap the input that was
 * taken.
 */
int arpc_tls_decrypt(struct arpc_tls_session *session, uint8_t *out, size_t size, size_t *got, struct amp_error *error);

/* The socket has reached its end: fills in the error that this is in the present state. */
void arpc_tls_ended(const struct arpc_tls_session *session, struct amp_error *error);

/*
 * Encrypts bytes of the slots, as many as the output has room for. 0 and how many were taken; else as arpc_tls_decrypt.
 * Once ready only.
 */
int arpc_tls_encrypt(struct arpc_tls_session *session, const struct iovec *slots, size_t count, size_t *taken,
                     struct amp_error *error);

/*
 * The ciphertext that is to be sent, a view that is valid until arpc_tls_sent, which says that its first `size` bytes
 * have left.
 */
const uint8_t *arpc_tls_output(const struct arpc_tls_session *session, size_t *size);
void arpc_tls_sent(struct arpc_tls_session *session, size_t size);

/* Gives the output's memory back, if it is empty. */
void arpc_tls_trim(struct arpc_tls_session *session);

/* Puts close_notify into the output, if the handshake is done. Nothing can be encrypted afterwards. */
void arpc_tls_close_notify(struct arpc_tls_session *session);

#endif
