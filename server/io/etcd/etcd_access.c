#include "server/io/etcd/etcd_access.h"

#include "rpc/arpc_peer.h"
#include "rpc/arpc_tls.h"
#include "rpc/arpc_token.h"

#include <stdio.h>
#include <string.h>

/* Largest user file: name, colon, password, and the end of the line. */
#define FILE_MAX (2 * IO_ETCD_USER_MAX + 2)

/* Splits NAME:PASSWORD; a password may contain colons. False: the text is something else. */
static bool split(char *text, size_t size, struct io_etcd_user *user)
{
    while (size > 0 && (text[size - 1] == '\n' || text[size - 1] == '\r'))
        text[--size] = 0;
    char *colon = strchr(text, ':');
    if (colon == NULL || strlen(text) != size || strpbrk(text, "\r\n") != NULL)
        return false;
    size_t name = (size_t)(colon - text), password = size - name - 1;
    if (name == 0 || name >= sizeof user->name || password == 0 || password >= sizeof user->password)
        return false;
    memcpy(user->name, text, name);
    user->name[name] = 0;
    memcpy(user->password, colon + 1, password + 1);
    return true;
}

int io_etcd_user_read(const char *path, struct io_etcd_user *user, struct amp_error *error)
{
    char text[FILE_MAX + 1];
    size_t size;
    int rc = arpc_secret_read(path, "etcd user", text, FILE_MAX, &size, error);
    text[size] = 0;
    if (rc == 0 && !split(text, size, user))
        rc = amp_error_set(
            error, AMP_EINVAL, NULL,
            "the file of etcd's user, %.200s, does not hold one line NAME:PASSWORD, each of 1 to %d bytes", path,
            IO_ETCD_USER_MAX - 1);
    arpc_token_wipe(text, sizeof text);
    return rc;
}

/* Whether an endpoint of the list is not on this machine. */
static bool any_remote(const char *endpoints)
{
    for (const char *at = endpoints;; at++) {
        char address[IO_ETCD_USER_MAX];
        size_t size = strcspn(at, ",");
        (void)snprintf(address, sizeof address, "%.*s", (int)size, at);
        if (!arpc_is_loopback(address))
            return true;
        at += size;
        if (*at == 0)
            return false;
    }
}

static int refuse(struct amp_error *error, const char *text)
{
    return amp_error_set(error, AMP_EINVAL, "OPTIONS", "%s", text);
}

int io_etcd_access_check(const struct io_etcd_access *access, const char *endpoints, bool insecure,
                         struct amp_error *error)
{
    if ((access->cert_file != NULL) != (access->key_file != NULL))
        return refuse(error, "--etcd-cert and --etcd-key go together: give both or neither");
    if (!access->tls && (access->cacert_file != NULL || access->cert_file != NULL))
        return refuse(error, "--etcd-cacert and --etcd-cert are for TLS: write --cluster etcds://..., too");
    if (access->user_file != NULL && !access->tls && !insecure && any_remote(endpoints))
        return refuse(error, "--etcd-user-file without TLS: the password would cross a network unencrypted; write "
                             "--cluster etcds://..., or allow it with --insecure");
    return 0;
}

int io_etcd_access_tls(const struct io_etcd_access *access, struct arpc_tls **tls, struct amp_error *error)
{
    const struct arpc_tls_client_options options = {.size = sizeof options,
                                                    .trusted_ca_file = access->cacert_file,
                                                    .cert_file = access->cert_file,
                                                    .key_file = access->key_file};
    *tls = NULL;
    return access->tls ? arpc_tls_client(&options, tls, error) : 0;
}

int io_etcd_access_try(const struct io_etcd_access *access, struct amp_error *error)
{
    struct io_etcd_user user;
    struct arpc_tls *tls;
    int rc = io_etcd_access_tls(access, &tls, error);
    arpc_tls_unref(tls);
    if (rc == 0 && access->user_file != NULL) {
        rc = io_etcd_user_read(access->user_file, &user, error);
        arpc_token_wipe(&user, sizeof user);
    }
    return rc;
}
