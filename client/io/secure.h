/*
 * How a client protects its connection and says who it is: TLS, and a token. Internal to client/io and ampctl.
 *
 * The files are looked at again while the client lives, at most once a second, when a call begins: a token or
 * certificate that is replaced is used from then on. One that cannot be read or does not fit leaves the old one in use.
 */
#ifndef AMPCLIENT_SECURE_H
#define AMPCLIENT_SECURE_H

#include "base/err.h"
#include "rpc/arpc_tls.h"
#include "rpc/arpc_token.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

/* Of each: NULL: what the environment variable says; "": none. */
struct ampclient_secure_options {
    const char *cacert;        /* AMPD_CACERT */
    const char *cert;          /* AMPD_CERT */
    const char *key;           /* AMPD_KEY */
    const char *server_name;   /* AMPD_SERVER_NAME */
    const char *token_file;    /* AMPD_TOKEN_FILE */
    bool token_over_plaintext; /* send the token unencrypted to other machines too */
};

/* What a file looked like when it was read last, to notice that it has changed. */
struct ampclient_stamp {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec changed;
};

#define AMPCLIENT_SECURE_FILES 4 /* cacert, cert, key, token file */

struct ampclient_secure {
    char *target;         /* the endpoints as rpc takes them, without "tls://" */
    struct arpc_tls *tls; /* NULL: plaintext, or, with late_tls, opened for the first endpoint on another machine */
    bool late_tls;        /* TLS was asked for, and all endpoints are unix sockets, which have none */
    char *server_name;    /* whom the server's certificate must be for; NULL: the host of the address */
    char *files[AMPCLIENT_SECURE_FILES];                   /* paths; NULL: none */
    struct ampclient_stamp stamps[AMPCLIENT_SECURE_FILES]; /* of the files that are in use */
    uint64_t checked_ms;                                   /* when the files were last looked at */
    bool has_token;                                        /* `authorization` has a token */
    bool token_over_plaintext;                             /* as in the options */
    bool replaced;                                         /* the token is not the first one */
    uint64_t replaced_ms;                                  /* when it was replaced last */
    char authorization[sizeof "Bearer " + ARPC_TOKEN_MAX]; /* the value of the header */
};

/*
 * Reads the files. `endpoints`: "host:port", "[v6]:port", "unix:/path", or "tls://host:port", several with commas; with
 * cacert, cert or server_name all are meant to be TLS. Either all are, or none. 0; AMP_EINVAL (endpoints, options that
 * do not fit, a token that would cross a network unencrypted), or a code of arpc_tls_client. After a failure there is
 * nothing to close.
 */
int ampclient_secure_open(struct ampclient_secure *secure, const char *endpoints,
                          const struct ampclient_secure_options *options, struct amp_error *error);

/* Frees all, and the reference to the TLS context; also for a zeroed struct, and a second time. */
void ampclient_secure_close(struct ampclient_secure *secure);

/* How long after the token was replaced calls that were refused with the old token may be made again. */
#define AMPCLIENT_SECURE_RENEWED_MS 2000

/*
 * To be called when a call was refused because the server does not know its token: looks at the file at once. True:
 * there is a new token, and the call may be made again.
 */
bool ampclient_secure_renewed(struct ampclient_secure *secure, uint64_t now_ms);

/* The value of "authorization" for a call that begins now, or NULL. Valid until the next call of this function. */
const char *ampclient_secure_authorization(struct ampclient_secure *secure, uint64_t now_ms);

/*
 * How to connect to a shard at an address that the server has given: *tls is the context (a view), NULL for plaintext
 * (a unix socket has no TLS). 0; AMP_EINVAL: the token would cross a network unencrypted; or a code of arpc_tls_client.
 */
int ampclient_secure_shard(struct ampclient_secure *secure, const char *endpoint, struct arpc_tls **tls,
                           struct amp_error *error);

#endif
