/*
 * What a shard shows to the others so that they know it, a token or a certificate, and by which authorities it believes
 * theirs. All of it is read from files, and anew on SIGHUP; sessions that begin from then on use it. On the loop.
 */
#ifndef AMPD_IO_PEER_SECURE_H
#define AMPD_IO_PEER_SECURE_H

#include "base/err.h"
#include "base/log.h"
#include "rpc/arpc_token.h"
#include "server/io/auth/auth_options.h"

struct arpc_tls;

struct io_peer_secure {
    const struct ampd_auth_options *options;
    const struct amp_log *log;
    struct arpc_tls *tls; /* of channels to other shards; NULL: plaintext */
    bool has_token;
    char authorization[sizeof "Bearer " + ARPC_TOKEN_MAX];
};

/*
 * Reads the files. The options passed ampd_auth_peers_check. 0; else AMP_EINVAL and others with a sentence that names
 * the file.
 */
int io_peer_secure_open(struct io_peer_secure *secure, const struct ampd_auth_options *options,
                        const struct amp_log *log, struct amp_error *error);

/* Reads them anew and logs what came of it. A file that cannot be used leaves what it held before in force. */
void io_peer_secure_reload(struct io_peer_secure *secure);

/* The value of "authorization" for a call that begins now, or NULL. Valid until the next reload. */
const char *io_peer_secure_authorization(const struct io_peer_secure *secure);

/* Also of a zeroed one. */
void io_peer_secure_close(struct io_peer_secure *secure);

#endif
