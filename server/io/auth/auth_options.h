/*
 * The options of ampd about TLS and tokens, and which of them go together. The functions have no state; all texts are
 * borrowed.
 */
#ifndef AMPD_IO_AUTH_OPTIONS_H
#define AMPD_IO_AUTH_OPTIONS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Values of the options of the same names. The files are PEM, but for token_file. */
struct ampd_auth_options {
    bool insecure;                /* allows to listen beyond loopback without TLS, or without asking who calls */
    const char *cert_file;        /* certificate of the server; NULL: no TLS */
    const char *key_file;         /* private key of that certificate; NULL without one */
    const char *trusted_ca_file;  /* authorities for clients' certificates; NULL: clients are not asked for one */
    bool client_cert_auth;        /* the TLS handshake fails for a client without a certificate */
    const char *client_cert_role; /* role of verified certificates without a line in the token file; NULL: none */
    const char *token_file;       /* rules of who may call (auth_rules.h); NULL: no tokens */

    /* How this shard of a cluster proves to the others who it is, and whose certificates it accepts. */
    const char *peer_token_file;      /* file with the token that it sends; NULL: it sends none */
    const char *peer_cert_file;       /* its client certificate; NULL: as ampd_auth_peer_cert says */
    const char *peer_key_file;        /* private key of peer_cert_file; NULL without one */
    const char *peer_trusted_ca_file; /* authorities for the others; NULL: trusted_ca_file, else the system's */
};

/*
 * Checks the options for a server that listens at `listen`. 0, or AMP_EINVAL: they contradict each other, or would let
 * anybody call without --insecure, or the host in `listen` is not known; the text names the remedy. It asks a name
 * server only where it refuses anyway, since SIGHUP has it called on the loop.
 */
int ampd_auth_options_check(const struct ampd_auth_options *options, const char *listen, struct amp_error *error);

/*
 * Checks the options for the other shards of a cluster. `peers` has their addresses, with commas between them; NULL:
 * there is no cluster. 0 or AMP_EINVAL; the text names the remedy.
 */
int ampd_auth_peers_check(const struct ampd_auth_options *options, const char *peers, struct amp_error *error);

/*
 * The client certificate and the key with which this shard connects to the others; both paths are the options'. Without
 * --peer-cert-file they are the server's own, if shards ask for certificates (--trusted-ca-file), and either require
 * them or this shard has no --peer-token-file. False: it shows no certificate, and both are NULL.
 */
bool ampd_auth_peer_cert(const struct ampd_auth_options *options, const char **cert_file, const char **key_file);

/* A sentence for the log about what --insecure leaves open at this address; NULL: nothing is open. */
const char *ampd_auth_options_warning(const struct ampd_auth_options *options, const char *listen);

#endif
