#include "server/io/auth_options.h"

#include "rpc/arpc_peer.h"
#include "server/io/auth_rules.h"

#include <string.h>

static int refuse(struct amp_error *error, const char *text)
{
    return amp_error_set(error, AMP_EINVAL, "OPTIONS", "%s", text);
}

static bool asks_who(const struct ampd_auth_options *options)
{
    return options->token_file != NULL || options->trusted_ca_file != NULL;
}

static int check_tls(const struct ampd_auth_options *options, const char *listen, struct amp_error *error)
{
    if (options->key_file != NULL && options->cert_file == NULL)
        return refuse(error, "--key-file without --cert-file: name the server's certificate too");
    if (options->cert_file != NULL && options->key_file == NULL)
        return refuse(error, "--cert-file without --key-file: name the certificate's private key too");
    if (options->trusted_ca_file != NULL && options->cert_file == NULL)
        return refuse(error, "--trusted-ca-file without --cert-file and --key-file: clients show certificates only "
                             "over TLS, for which the server needs its own");
    if (options->client_cert_auth && options->trusted_ca_file == NULL)
        return refuse(error, "--client-cert-auth without --trusted-ca-file: name the authority that has signed the "
                             "clients' certificates");
    if (options->client_cert_role != NULL && options->trusted_ca_file == NULL)
        return refuse(error, "--client-cert-role without --trusted-ca-file: name the authority that has signed the "
                             "clients' certificates");
    if (options->client_cert_role != NULL && ampd_auth_roles_of(options->client_cert_role) == 0)
        return amp_error_set(error, AMP_EINVAL, "OPTIONS",
                             "--client-cert-role %.40s: give read, worker, operator or peer",
                             options->client_cert_role);
    if (options->cert_file != NULL && strncmp(listen, "unix:", 5) == 0)
        return refuse(error, "--cert-file with a unix socket: nobody can listen in there; leave TLS out, or listen on "
                             "HOST:PORT");
    /* Nobody but the owner of the data directory could ever call. */
    if (options->trusted_ca_file != NULL && options->token_file == NULL && options->client_cert_role == NULL)
        return refuse(error,
                      "--trusted-ca-file alone lets nobody in: add --client-cert-role ROLE for all certificates, "
                      "or --token-file with lines that name them");
    return 0;
}

int ampd_auth_options_check(const struct ampd_auth_options *options, const char *listen, struct amp_error *error)
{
    int rc = check_tls(options, listen, error);
    if (rc != 0)
        return rc;
    bool beyond = !arpc_is_loopback(listen);
    bool tls = options->cert_file != NULL;
    if (beyond && options->insecure && tls && asks_who(options))
        return refuse(error, "--insecure has no use with TLS and tokens or client certificates: leave it out");
    if (!beyond || options->insecure)
        return 0;
    rc = arpc_host_resolves(listen, error); /* what is misspelt is not beyond loopback, but nowhere */
    if (rc != 0)
        return rc;
    if (!tls)
        return amp_error_set(error, AMP_EINVAL, "OPTIONS",
                             "--listen %.100s is not a loopback address: add --cert-file, --key-file and --token-file "
                             "(docs/security.md), or --insecure to let in whoever can reach it",
                             listen);
    if (!asks_who(options))
        return amp_error_set(error, AMP_EINVAL, "OPTIONS",
                             "--listen %.100s is not a loopback address: add --token-file, or --trusted-ca-file and "
                             "--client-cert-auth, or --insecure to let in whoever can reach it",
                             listen);
    return 0;
}

const char *ampd_auth_options_warning(const struct ampd_auth_options *options, const char *listen)
{
    if (arpc_is_loopback(listen) || !options->insecure)
        return NULL;
    if (options->cert_file != NULL)
        return "--insecure: everybody who reaches this address can read and change every model";
    if (options->token_file != NULL)
        return "--insecure: tokens and models cross the network unencrypted; who listens there can use both";
    return "--insecure: everybody who reaches this address can read and change every model, and listen to all of it";
}
