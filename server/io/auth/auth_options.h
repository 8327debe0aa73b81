/* Which options of ampd go together: listening, TLS and tokens. */
#ifndef AMPD_IO_AUTH_OPTIONS_H
#define AMPD_IO_AUTH_OPTIONS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_auth_options {
    bool insecure;                /* listen beyond loopback without TLS, or without asking who calls */
    const char *cert_file;        /* NULL: no TLS */
    const char *key_file;         /* with cert_file */
    const char *trusted_ca_file;  /* of clients; NULL: they are not asked for a certificate */
    bool client_cert_auth;        /* a client without a certificate is not connected at all */
    const char *client_cert_role; /* of verified certificates without a line in the token file; NULL: none */
    const char *token_file;       /* NULL: no tokens */

    /* What this shard of a cluster shows to the others, and whom it believes. */
    const char *peer_token_file;      /* NULL: it shows no token */
    const char *peer_cert_file;       /* NULL: ampd_auth_peer_cert */
    const char *peer_key_file;        /* with peer_cert_file */
    const char *peer_trusted_ca_file; /* NULL: trusted_ca_file, else the system's authorities */
};

/* 0, or AMP_EINVAL: the options contradict each other or leave a door open; the sentence names the remedy. */
int ampd_auth_options_check(const struct ampd_auth_options *options, const char *listen, struct amp_error *error);

/*
 * The same for what is shown to other shards. `peers`: their addresses with commas between them; NULL: there are none.
 */
int ampd_auth_peers_check(const struct ampd_auth_options *options, const char *peers, struct amp_error *error);

/*
 * The certificate and key that are shown to other shards; false: none. Without --peer-cert-file it is the server's own,
 * where shards ask for certificates, unless a token says who this one is.
 */
bool ampd_auth_peer_cert(const struct ampd_auth_options *options, const char **cert_file, const char **key_file);

/* What --insecure leaves open at this address, for the log; NULL: nothing. */
const char *ampd_auth_options_warning(const struct ampd_auth_options *options, const char *listen);

#endif
