/*
 * The credentials for calls to other shards: the token or certificate by which they know this shard, and the
 * authorities by which it verifies their certificates. All come from files, which are read again on SIGHUP; calls that
 * begin after that use them. On the loop's thread.
 */
#ifndef AMPD_IO_PEER_SECURE_H
#define AMPD_IO_PEER_SECURE_H

#include "base/err.h"
#include "base/log.h"
#include "rpc/arpc_token.h"
#include "server/io/auth/auth_options.h"

struct arpc_tls;

struct io_peer_secure {
    const struct ampd_auth_options *options; /* borrowed */
    const struct amp_log *log;               /* borrowed */
    struct arpc_tls *tls;                    /* for channels to other shards, owned; NULL: plaintext */
    bool has_token;                          /* authorization is set */
    char authorization[sizeof "Bearer " + ARPC_TOKEN_MAX];
};

/*
 * Reads the files that the options name; ampd_auth_peers_check must have accepted these options. 0, or AMP_EINVAL or
 * another code with a sentence that names the file. After an error, too, io_peer_secure_close is due.
 */
int io_peer_secure_open(struct io_peer_secure *secure, const struct ampd_auth_options *options,
                        const struct amp_log *log, struct amp_error *error);

/* Reads the files again and logs the result. Where a file cannot be used, its earlier content stays in force. */
void io_peer_secure_reload(struct io_peer_secure *secure);

/* The value of the header "authorization" for a call that begins now. NULL: no token. Valid until the next reload. */
const char *io_peer_secure_authorization(const struct io_peer_secure *secure);

/* Frees the TLS settings and wipes the token. A zeroed struct is allowed. */
void io_peer_secure_close(struct io_peer_secure *secure);

#endif
