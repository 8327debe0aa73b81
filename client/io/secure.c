#include "client/io/secure.h"

#include "rpc/arpc_peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEME   "tls://"
#define CHECK_MS 1000 /* between two checks of the files */
#define PREFIX   "Bearer "

enum { CACERT, CERT, KEY, TOKEN };

/* ---- endpoints ---- */

static int bad_endpoints(const char *text, const char *what, struct amp_error *error)
{
    return amp_error_set(error, AMP_EINVAL, NULL, "The address \"%.200s\" %s", text, what);
}

/* Whether it names a folder where a socket is expected: a data directory, say, which no try would ever reach. */
static bool is_folder(const char *endpoint)
{
    struct stat file;
    return strncmp(endpoint, "unix:", 5) == 0 && stat(endpoint + 5, &file) == 0 && S_ISDIR(file.st_mode);
}

/* How many endpoints there are of each kind. */
struct kinds {
    size_t all;
    size_t tls;     /* with the scheme */
    size_t sockets; /* unix: */
    size_t remote;  /* of other machines, without the scheme */
};

/* Copies the list without its schemes. */
static void strip(const char *endpoints, char *to, struct kinds *kinds)
{
    *kinds = (struct kinds){0};
    for (const char *at = endpoints;; at++) {
        size_t size = strcspn(at, ",");
        bool has_scheme = strncmp(at, SCHEME, sizeof SCHEME - 1) == 0;
        size_t skip = has_scheme ? sizeof SCHEME - 1 : 0;
        memcpy(to, at + skip, size - skip);
        to[size - skip] = 0;
        kinds->all++;
        kinds->tls += has_scheme;
        kinds->sockets += strncmp(to, "unix:", 5) == 0;
        kinds->remote += !has_scheme && !arpc_is_loopback(to);
        to += size - skip;
        at += size;
        if (*at == 0)
            return;
        *to++ = ',';
    }
}

static int take_endpoints(struct ampclient_secure *secure, const char *endpoints, bool *tls, bool *remote,
                          struct amp_error *error)
{
    struct kinds kinds;
    secure->target = malloc(strlen(endpoints) + 1);
    if (secure->target == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "There is no memory for a client.");
    strip(endpoints, secure->target, &kinds);
    if (kinds.tls != 0 && kinds.tls != kinds.all)
        return bad_endpoints(endpoints, "has tls:// before some of its parts; give it before all or none.", error);
    *tls =
        kinds.tls != 0 || (*tls && kinds.sockets != kinds.all); /* files of the environment do not matter to a socket */
    *remote = kinds.remote != 0;
    if (*tls && kinds.sockets != 0)
        return bad_endpoints(endpoints, "mixes TLS with a unix socket, which has none; give the one or the other.",
                             error);
    if (is_folder(secure->target))
        return bad_endpoints(endpoints, "is a folder; name the socket: that of a data directory is its ampd.sock.",
                             error);
    return 0;
}

/* ---- files ---- */

static bool stamp_of(const char *path, struct ampclient_stamp *stamp)
{
    struct stat file;
    if (stat(path, &file) != 0)
        return false;
    *stamp = (struct ampclient_stamp){
        .device = file.st_dev, .inode = file.st_ino, .size = file.st_size, .changed = file.st_ctim};
    return true;
}

static bool same_stamp(const struct ampclient_stamp *a, const struct ampclient_stamp *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}

static int load_token(struct ampclient_secure *secure, struct amp_error *error)
{
    char token[ARPC_TOKEN_MAX + 1];
    int rc = arpc_token_read(secure->files[TOKEN], token, error);
    if (rc != 0)
        return rc;
    (void)snprintf(secure->authorization, sizeof secure->authorization, PREFIX "%s", token);
    secure->has_token = true;
    arpc_token_wipe(token, sizeof token);
    return 0;
}

/* Notes how the files are now; true: one of the kind has changed since. */
static bool changed(struct ampclient_secure *secure, int first, int last)
{
    bool any = false;
    for (int i = first; i <= last; i++) {
        struct ampclient_stamp stamp;
        /* One that is away for a moment is about to be replaced. */
        if (secure->files[i] == NULL || !stamp_of(secure->files[i], &stamp) || same_stamp(&stamp, &secure->stamps[i]))
            continue;
        secure->stamps[i] = stamp;
        any = true;
    }
    return any;
}

/* The next look finds them changed. */
static void forget(struct ampclient_secure *secure, int first, int last)
{
    for (int i = first; i <= last; i++)
        secure->stamps[i] = (struct ampclient_stamp){0};
}

static void check(struct ampclient_secure *secure, uint64_t now_ms)
{
    secure->checked_ms = now_ms;
    /* Whatever cannot be used leaves what is in use, and is read again: it may be that there was no descriptor. */
    if (changed(secure, TOKEN, TOKEN)) {
        if (load_token(secure, NULL) == 0) {
            secure->replaced = true;
            secure->replaced_ms = now_ms;
        } else {
            forget(secure, TOKEN, TOKEN);
        }
    }
    if (changed(secure, CACERT, KEY) && secure->tls != NULL && arpc_tls_reload(secure->tls, NULL) != 0)
        forget(secure, CACERT, KEY);
}

bool ampclient_secure_renewed(struct ampclient_secure *secure, uint64_t now_ms)
{
    check(secure, now_ms);
    return secure->replaced && now_ms - secure->replaced_ms < AMPCLIENT_SECURE_RENEWED_MS;
}

const char *ampclient_secure_authorization(struct ampclient_secure *secure, uint64_t now_ms)
{
    if (now_ms - secure->checked_ms >= CHECK_MS)
        check(secure, now_ms);
    return secure->has_token ? secure->authorization : NULL;
}

static int open_tls(struct ampclient_secure *secure, struct amp_error *error)
{
    const struct arpc_tls_client_options options = {.size = sizeof options,
                                                    .trusted_ca_file = secure->files[CACERT],
                                                    .cert_file = secure->files[CERT],
                                                    .key_file = secure->files[KEY],
                                                    .server_name = secure->server_name};
    return arpc_tls_client(&options, &secure->tls, error);
}

int ampclient_secure_shard(struct ampclient_secure *secure, const char *endpoint, struct arpc_tls **tls,
                           struct amp_error *error)
{
    bool is_unix = strncmp(endpoint, "unix:", 5) == 0;
    bool plain = is_unix || (secure->late_tls && arpc_is_loopback(endpoint)); /* it stays on this machine */
    int rc = !plain && secure->late_tls && secure->tls == NULL ? open_tls(secure, error) : 0;
    if (rc != 0)
        return rc;
    *tls = plain ? NULL : secure->tls;
    if (*tls != NULL || is_unix || !secure->has_token || secure->token_over_plaintext || arpc_is_loopback(endpoint))
        return 0;
    return bad_endpoints(
        endpoint,
        "of a shard is on another machine, and a token would go there unencrypted; connect with tls:// and "
        "cacert, or allow it with token-over-plaintext.",
        error);
}

/* ---- life ---- */

/* What was given, else what the environment says; "" is none. */
static const char *either(const char *given, const char *variable)
{
    if (given == NULL)
        given = getenv(variable);
    return given != NULL && given[0] != 0 ? given : NULL;
}

static int take_files(struct ampclient_secure *secure, const struct ampclient_secure_options *options,
                      struct amp_error *error)
{
    const char *const paths[AMPCLIENT_SECURE_FILES] = {
        [CACERT] = either(options->cacert, "AMPD_CACERT"),
        [CERT] = either(options->cert, "AMPD_CERT"),
        [KEY] = either(options->key, "AMPD_KEY"),
        [TOKEN] = either(options->token_file, "AMPD_TOKEN_FILE"),
    };
    if ((paths[CERT] != NULL) != (paths[KEY] != NULL))
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "A client certificate and its private key go together: give both cert and key.");
    for (int i = 0; i < AMPCLIENT_SECURE_FILES; i++)
        if (paths[i] != NULL && (secure->files[i] = strdup(paths[i])) == NULL)
            return amp_error_set(error, AMP_ENOMEM, NULL, "There is no memory for a client.");
    const char *server_name = either(options->server_name, "AMPD_SERVER_NAME");
    if (server_name != NULL && (secure->server_name = strdup(server_name)) == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "There is no memory for a client.");
    (void)changed(secure, CACERT, TOKEN); /* before they are read: a later change is seen */
    return 0;
}

int ampclient_secure_open(struct ampclient_secure *secure, const char *endpoints,
                          const struct ampclient_secure_options *options, struct amp_error *error)
{
    *secure = (struct ampclient_secure){0};
    secure->token_over_plaintext = options->token_over_plaintext;
    int rc = take_files(secure, options, error);
    bool wanted = secure->files[CACERT] != NULL || secure->files[CERT] != NULL || secure->server_name != NULL;
    bool tls = wanted;
    bool remote = false;
    if (rc == 0)
        rc = take_endpoints(secure, endpoints, &tls, &remote, error);
    if (rc == 0 && secure->files[TOKEN] != NULL && !tls && remote && !options->token_over_plaintext)
        rc = bad_endpoints(endpoints,
                           "is on another machine, and a token would go there unencrypted; connect with tls:// and "
                           "cacert, or allow it with token-over-plaintext.",
                           error);
    if (rc == 0 && secure->files[TOKEN] != NULL)
        rc = load_token(secure, error);
    if (rc == 0 && tls)
        rc = open_tls(secure, error);
    secure->late_tls = wanted && !tls;
    if (rc != 0)
        ampclient_secure_close(secure);
    return rc;
}

void ampclient_secure_close(struct ampclient_secure *secure)
{
    arpc_tls_unref(secure->tls);
    for (int i = 0; i < AMPCLIENT_SECURE_FILES; i++)
        free(secure->files[i]);
    free(secure->server_name);
    free(secure->target);
    arpc_token_wipe(secure->authorization, sizeof secure->authorization);
    *secure = (struct ampclient_secure){0};
}
