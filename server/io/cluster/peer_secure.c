#include "server/io/cluster/peer_secure.h"

#include "rpc/arpc_tls.h"
#include "server/io/auth/auth_options.h"

#include <stdio.h>

static int read_token(struct io_peer_secure *secure, struct amp_error *error)
{
    char token[ARPC_TOKEN_MAX + 1];
    int rc = arpc_token_read(secure->options->peer_token_file, token, error);
    if (rc != 0)
        return rc;
    (void)snprintf(secure->authorization, sizeof secure->authorization, "Bearer %s", token);
    secure->has_token = true;
    arpc_token_wipe(token, sizeof token);
    return 0;
}

static void warn_of_tls(const struct io_peer_secure *secure)
{
    const char *warning = arpc_tls_warning(secure->tls);
    if (warning[0] != 0)
        amp_log(secure->log, AMP_LOG_WARN, "peer", "msg=\"%s\"", warning);
}

static int open_tls(struct io_peer_secure *secure, struct amp_error *error)
{
    const struct ampd_auth_options *options = secure->options;
    struct arpc_tls_client_options tls = {.size = sizeof tls, .trusted_ca_file = options->peer_trusted_ca_file};
    if (tls.trusted_ca_file == NULL)
        tls.trusted_ca_file = options->trusted_ca_file;
    (void)ampd_auth_peer_cert(options, &tls.cert_file, &tls.key_file); /* where there is none, both stay NULL */
    int rc = arpc_tls_client(&tls, &secure->tls, error);
    if (rc == 0)
        warn_of_tls(secure);
    return rc;
}

int io_peer_secure_open(struct io_peer_secure *secure, const struct ampd_auth_options *options,
                        const struct amp_log *log, struct amp_error *error)
{
    *secure = (struct io_peer_secure){.options = options, .log = log};
    int rc = options->peer_token_file != NULL ? read_token(secure, error) : 0;
    return rc == 0 && options->cert_file != NULL ? open_tls(secure, error) : rc;
}

void io_peer_secure_reload(struct io_peer_secure *secure)
{
    struct amp_error error = {0};
    if (secure->has_token) {
        if (read_token(secure, &error) == 0)
            amp_log(secure->log, AMP_LOG_INFO, "peer", "msg=\"token for other shards reloaded\"");
        else
            amp_log(secure->log, AMP_LOG_ERROR, "peer",
                    "msg=\"the token for other shards could not be reloaded; the old one stays in use\" err=\"%s\"",
                    error.text);
    }
    if (secure->tls == NULL)
        return;
    if (arpc_tls_reload(secure->tls, &error) == 0) {
        amp_log(secure->log, AMP_LOG_INFO, "peer", "msg=\"certificates for other shards reloaded\"");
        warn_of_tls(secure);
    } else {
        amp_log(secure->log, AMP_LOG_ERROR, "peer",
                "msg=\"the certificates for other shards could not be reloaded; the old ones stay in use\" err=\"%s\"",
                error.text);
    }
}

const char *io_peer_secure_authorization(const struct io_peer_secure *secure)
{
    return secure->has_token ? secure->authorization : NULL;
}

void io_peer_secure_close(struct io_peer_secure *secure)
{
    arpc_tls_unref(secure->tls);
    arpc_token_wipe(secure->authorization, sizeof secure->authorization);
    *secure = (struct io_peer_secure){0};
}
