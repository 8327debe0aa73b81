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
};

/* 0, or AMP_EINVAL: the options contradict each other or leave a door open; the sentence names the remedy. */
int ampd_auth_options_check(const struct ampd_auth_options *options, const char *listen, struct amp_error *error);

/* What --insecure leaves open at this address, for the log; NULL: nothing. */
const char *ampd_auth_options_warning(const struct ampd_auth_options *options, const char *listen);

#endif
