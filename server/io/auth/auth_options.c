#include "server/io/auth/auth_options.h"

#include "rpc/arpc_peer.h"
#include "server/io/auth/auth_rules.h"

#include <stdio.h>
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
        return refuse(error, "--cert-file with a unix socket: no other machine can read what is sent there; leave TLS "
                             "out, or listen on HOST:PORT");
    /* With this nobody could call but the owner of the data directory. */
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
        return refuse(error, "--insecure is not needed with TLS and tokens or client certificates: leave it out");
    if (!beyond || options->insecure || (tls && asks_who(options)))
        return 0;
    /*
     * A misspelt host gets its own error. It is looked up only here, where the options are refused anyway: SIGHUP has
     * this called on the loop, which would wait for a name server.
     */
    rc = arpc_host_resolves(listen, error);
    if (rc != 0)
        return rc;
    if (!tls)
        return amp_error_set(error, AMP_EINVAL, "OPTIONS",
                             "--listen %.100s is not a loopback address: add --cert-file, --key-file and --token-file "
                             "(docs/security.md), or --insecure to let in whoever can reach it",
                             listen);
    return amp_error_set(error, AMP_EINVAL, "OPTIONS",
                         "--listen %.100s is not a loopback address: add --token-file, or --trusted-ca-file and "
                         "--client-cert-auth, or --insecure to let in whoever can reach it",
                         listen);
}

bool ampd_auth_peer_cert(const struct ampd_auth_options *options, const char **cert_file, const char **key_file)
{
    bool given = options->peer_cert_file != NULL;
    bool own = options->trusted_ca_file != NULL && (options->client_cert_auth || options->peer_token_file == NULL);
    *cert_file = given ? options->peer_cert_file : own ? options->cert_file : NULL;
    *key_file = given ? options->peer_key_file : own ? options->key_file : NULL;
    return *cert_file != NULL;
}

/* Whether is_cb is true for one of the addresses, which have commas between them. */
static bool any_peer(const char *peers, bool (*is_cb)(const char *address))
{
    for (const char *at = peers;; at++) {
        char address[256];
        size_t size = strcspn(at, ",");
        (void)snprintf(address, sizeof address, "%.*s", (int)size, at);
        if (is_cb(address))
            return true;
        at += size;
        if (*at == 0)
            return false;
    }
}

static bool is_remote(const char *address)
{
    return !arpc_is_loopback(address);
}

static bool is_socket(const char *address)
{
    return strncmp(address, "unix:", 5) == 0;
}

int ampd_auth_peers_check(const struct ampd_auth_options *options, const char *peers, struct amp_error *error)
{
    const char *cert, *key;
    bool tls = options->cert_file != NULL;
    bool any = options->peer_token_file != NULL || options->peer_cert_file != NULL || options->peer_key_file != NULL ||
               options->peer_trusted_ca_file != NULL;
    if (peers == NULL)
        return any ? refuse(error,
                            "--peer-token-file, --peer-cert-file, --peer-key-file and --peer-trusted-ca-file are "
                            "for a cluster: name its --cluster or --peers, too")
                   : 0;
    if ((options->peer_cert_file != NULL) != (options->peer_key_file != NULL))
        return refuse(error, "--peer-cert-file and --peer-key-file go together: give both or neither");
    if (!tls && (options->peer_cert_file != NULL || options->peer_trusted_ca_file != NULL))
        return refuse(error, "--peer-cert-file and --peer-trusted-ca-file without --cert-file: all shards of a cluster "
                             "speak TLS, or none does");
    if (tls && any_peer(peers, is_socket))
        return refuse(error, "--cert-file with a unix socket in --peers: there is no TLS on it; name HOST:PORT");
    if (options->peer_token_file != NULL && !tls && !options->insecure && any_peer(peers, is_remote))
        return refuse(error, "--peer-token-file without --cert-file: the token would cross a network unencrypted; add "
                             "--cert-file and --key-file, or allow it with --insecure");
    if (asks_who(options) && options->peer_token_file == NULL && !ampd_auth_peer_cert(options, &cert, &key))
        return refuse(error, "--token-file with --peers: shards have to send a token, too; add --peer-token-file with "
                             "a token of the role peer (ampctl token new peer NAME)");
    return 0;
}

const char *ampd_auth_options_warning(const struct ampd_auth_options *options, const char *listen)
{
    if (arpc_is_loopback(listen) || !options->insecure)
        return NULL;
    if (options->cert_file != NULL)
        return "--insecure: everybody who reaches this address can read and change every model";
    if (options->token_file != NULL)
        return "--insecure: tokens and models cross the network unencrypted; anyone on the network can read and use "
               "them";
    return "--insecure: everybody who reaches this address can read and change every model, and anyone on the network "
           "can read what is sent";
}
