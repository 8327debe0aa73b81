/* TLS contexts: what is read from files, once and again. */
#include "rpc/io/tls.h"

#include "rpc/io/tls_cert.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

/* RFC 9113 9.2.2 bans all others for TLS 1.2. */
#define CIPHERS_12 "ECDHE+AESGCM:ECDHE+CHACHA20"
/* AES-128 first: it is the fastest where AES has instructions, and as safe. PRIORITIZE_CHACHA serves those without. */
#define CIPHERS_13 "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
/* A bundle of all public authorities has 250 KiB. */
#define FILE_SIZE_MAX ((off_t)4 << 20)

/* OpenSSL would ask the terminal. */
static int no_passphrase(char *text, int size, int writing, void *arg)
{
    (void)text;
    (void)size;
    (void)writing;
    (void)arg;
    return 0;
}

static int errno_code(int number)
{
    if (number == ENOENT || number == ENOTDIR)
        return AMP_ENOTFOUND;
    return number == EACCES || number == EPERM ? AMP_EDENIED : AMP_EIO;
}

/* Says more than OpenSSL would, and keeps a pipe or an endless file from holding the loop. */
static int check_file(const char *what, const char *file, struct amp_error *error)
{
    struct stat status;
    int fd = open(file, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    int rc = fd < 0 ? -1 : fstat(fd, &status);
    int number = errno;
    if (fd >= 0)
        (void)close(fd);
    if (rc != 0)
        return amp_error_set(error, errno_code(number), NULL, "cannot read the %s file %s: %s; %s", what, file,
                             number == EACCES ? "the user of this process may not read it" : strerror(number),
                             number == EACCES ? "change its owner or its mode" : "correct its path");
    if (!S_ISREG(status.st_mode) || status.st_size > FILE_SIZE_MAX)
        return amp_error_set(error, AMP_EINVAL, NULL, "the %s file %s is not a regular file of at most 4 MiB", what,
                             file);
    return 0;
}

static int load_own(struct arpc_tls *tls, SSL_CTX *ctx, struct amp_error *error)
{
    int rc = check_file("certificate", tls->cert_file, error);
    if (rc == 0)
        rc = check_file("key", tls->key_file, error);
    if (rc != 0)
        return rc;
    if (SSL_CTX_use_certificate_chain_file(ctx, tls->cert_file) != 1)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "the certificate file %s cannot be used (%s): it must hold, in PEM, the certificate and "
                             "then those between it and the root",
                             tls->cert_file, arpc_tls_reason());
    if (SSL_CTX_use_PrivateKey_file(ctx, tls->key_file, SSL_FILETYPE_PEM) == 1 && SSL_CTX_check_private_key(ctx) == 1)
        return 0;
    unsigned long last = ERR_peek_last_error();
    bool mismatch = ERR_GET_LIB(last) == ERR_LIB_X509 || ERR_GET_REASON(last) == SSL_R_NO_CERTIFICATE_ASSIGNED;
    const char *reason = arpc_tls_reason();
    if (mismatch)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "the key in %s is not the key of the certificate in %s: give the two that belong together",
                             tls->key_file, tls->cert_file);
    return amp_error_set(error, AMP_EINVAL, NULL,
                         "the key file %s cannot be used (%s): it must hold a private key in PEM, without a passphrase",
                         tls->key_file, reason);
}

static int load_trusted(struct arpc_tls *tls, SSL_CTX *ctx, struct amp_error *error)
{
    if (tls->trusted_ca_file == NULL) {
        if (!tls->server && SSL_CTX_set_default_verify_paths(ctx) != 1)
            return amp_error_set(error, AMP_EIO, NULL,
                                 "the authorities that this system trusts cannot be read (%s): name a file of them "
                                 "(cacert)",
                                 arpc_tls_reason());
        return 0;
    }
    int rc = check_file("trusted authorities'", tls->trusted_ca_file, error);
    if (rc != 0)
        return rc;
    STACK_OF(X509_NAME) *names = NULL;
    bool good = SSL_CTX_load_verify_file(ctx, tls->trusted_ca_file) == 1;
    if (good && tls->server) {
        names = SSL_load_client_CA_file(tls->trusted_ca_file); /* told to clients, to choose a certificate by */
        good = names != NULL;
    }
    if (!good)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "the trusted authorities' file %s cannot be used (%s): it must hold certificates in PEM",
                             tls->trusted_ca_file, arpc_tls_reason());
    if (names != NULL)
        SSL_CTX_set_client_CA_list(ctx, names);
    return 0;
}

/* Everything about the connections that no file decides. */
static int set_rules(struct arpc_tls *tls, SSL_CTX *ctx)
{
    static const unsigned char id[] = "ampd";
    (void)SSL_CTX_set_options(ctx, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET |
                                       SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
    (void)SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS); /* 34 KiB less for a connection that idles */
    (void)SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
    bool good = SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) == 1 && SSL_CTX_set_num_tickets(ctx, 0) == 1 &&
                SSL_CTX_set_max_early_data(ctx, 0) == 1 && SSL_CTX_set_cipher_list(ctx, CIPHERS_12) == 1 &&
                SSL_CTX_set_ciphersuites(ctx, CIPHERS_13) == 1 &&
                SSL_CTX_set_session_id_context(ctx, id, sizeof id - 1) == 1;
    return good ? arpc_tls_set_handshake(tls, ctx) : AMP_ENOMEM;
}

int arpc_tls_reload(struct arpc_tls *tls, struct amp_error *error)
{
    ERR_clear_error();
    SSL_CTX *ctx = SSL_CTX_new(tls->server ? TLS_server_method() : TLS_client_method());
    int rc = ctx != NULL ? set_rules(tls, ctx) : AMP_ENOMEM;
    if (rc != 0)
        (void)amp_error_set(error, rc, NULL, "OpenSSL cannot be set up (%s)", arpc_tls_reason());
    if (rc == 0 && tls->cert_file != NULL)
        rc = load_own(tls, ctx, error);
    if (rc == 0)
        rc = load_trusted(tls, ctx, error);
    ERR_clear_error(); /* reading the end of a PEM file leaves one */
    if (rc != 0) {
        SSL_CTX_free(ctx);
        return rc;
    }
    SSL_CTX_free(tls->ctx); /* connections hold it as long as they need it */
    tls->ctx = ctx;
    return 0;
}

static void context_free(struct arpc_tls *tls)
{
    SSL_CTX_free(tls->ctx);
    arpc_tls_bytes_free(tls->bytes);
    free(tls->cert_file);
    free(tls->key_file);
    free(tls->trusted_ca_file);
    free(tls->server_name);
    free(tls);
}

static char *copy_of(const char *text, bool *failed)
{
    char *copy = text != NULL ? strdup(text) : NULL;
    *failed = *failed || (text != NULL && copy == NULL);
    return copy;
}

/* `given` has the files; its strings are the caller's. */
static int context_new(const struct arpc_tls *given, struct arpc_tls **out, struct amp_error *error)
{
    /* A program that ends while a loop's thread is inside OpenSSL must not have it taken down under that thread. */
    bool failed = OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, NULL) != 1;
    struct arpc_tls *tls = calloc(1, sizeof *tls);
    if (tls == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "no memory for TLS");
    tls->refs = 1;
    tls->server = given->server;
    tls->client_cert_auth = given->client_cert_auth;
    tls->key_records = ARPC_TLS_KEY_RECORDS;
    tls->cert_file = copy_of(given->cert_file, &failed);
    tls->key_file = copy_of(given->key_file, &failed);
    tls->trusted_ca_file = copy_of(given->trusted_ca_file, &failed);
    tls->server_name = copy_of(given->server_name, &failed);
    tls->bytes = arpc_tls_bytes_new();
    int rc = failed || tls->bytes == NULL
                 ? amp_error_set(error, AMP_ENOMEM, NULL, "no memory for TLS, or OpenSSL cannot be set up")
                 : arpc_tls_reload(tls, error);
    if (rc != 0) {
        context_free(tls);
        return rc;
    }
    *out = tls;
    return 0;
}

int arpc_tls_server(const struct arpc_tls_server_options *given, struct arpc_tls **out, struct amp_error *error)
{
    struct arpc_tls_server_options options = {0};
    memcpy(&options, given, given->size < sizeof options ? given->size : sizeof options);
    if (options.cert_file == NULL || options.key_file == NULL)
        return amp_error_set(
            error, AMP_EINVAL, NULL,
            "a server with TLS needs a certificate and its key: give both (--cert-file and --key-file)");
    if (options.client_cert_auth && options.trusted_ca_file == NULL)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "clients' certificates cannot be checked without their authorities: give a file of them "
                             "(--trusted-ca-file)");
    /* The strings are only read. */
    const struct arpc_tls context = {.server = true,
                                     .client_cert_auth = options.client_cert_auth,
                                     .cert_file = (char *)(uintptr_t)options.cert_file,
                                     .key_file = (char *)(uintptr_t)options.key_file,
                                     .trusted_ca_file = (char *)(uintptr_t)options.trusted_ca_file};
    return context_new(&context, out, error);
}

int arpc_tls_client(const struct arpc_tls_client_options *given, struct arpc_tls **out, struct amp_error *error)
{
    struct arpc_tls_client_options options = {0};
    if (given != NULL)
        memcpy(&options, given, given->size < sizeof options ? given->size : sizeof options);
    if ((options.cert_file == NULL) != (options.key_file == NULL))
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "a certificate and its key go together: give both or neither (cert and key)");
    if (options.server_name != NULL && (options.server_name[0] == 0 || strlen(options.server_name) > 255))
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "the server's name must have 1 to 255 bytes: give the DNS name or IP address of its "
                             "certificate");
    const struct arpc_tls context = {.cert_file = (char *)(uintptr_t)options.cert_file,
                                     .key_file = (char *)(uintptr_t)options.key_file,
                                     .trusted_ca_file = (char *)(uintptr_t)options.trusted_ca_file,
                                     .server_name = (char *)(uintptr_t)options.server_name};
    return context_new(&context, out, error);
}

static void warn_of_key(const struct arpc_tls *tls, char *text, size_t size)
{
    struct stat status;
    if (stat(tls->key_file, &status) == 0 && (status.st_mode & (S_IROTH | S_IWOTH)) != 0)
        (void)snprintf(text, size, "Everybody on this machine may read or write the private key %s: chmod o= it.",
                       tls->key_file);
}

static void warn_of_expiry(const struct arpc_tls *tls, char *text, size_t size)
{
    const ASN1_TIME *end = X509_get0_notAfter(SSL_CTX_get0_certificate(tls->ctx));
    char day[32];
    int days = 0;
    int seconds = 0;
    if (ASN1_TIME_diff(&days, &seconds, NULL, end) != 1 || days >= ARPC_TLS_EXPIRY_DAYS)
        return;
    arpc_tls_day(end, day, sizeof day);
    bool expired = days < 0 || seconds < 0;
    (void)snprintf(text, size, "The certificate %s %s on %s: renew it.", tls->cert_file,
                   expired ? "expired" : "expires", day);
}

/* A client's own: servers refuse one that is for servers alone, and say so to their own log. */
static void warn_of_purpose(const struct arpc_tls *tls, char *text, size_t size)
{
    X509 *certificate = SSL_CTX_get0_certificate(tls->ctx);
    if (!tls->server && X509_check_purpose(certificate, X509_PURPOSE_SSL_CLIENT, 0) != 1)
        (void)snprintf(text, size,
                       "The certificate %s is not meant for a client, and servers that ask for one refuse it: have one "
                       "made whose extended key usage has clientAuth too.",
                       tls->cert_file);
}

const char *arpc_tls_warning(struct arpc_tls *tls)
{
    char texts[3][sizeof tls->warning / 3 - 1] = {"", "", ""};
    if (tls->cert_file != NULL) {
        warn_of_expiry(tls, texts[0], sizeof texts[0]);
        warn_of_key(tls, texts[1], sizeof texts[1]);
        warn_of_purpose(tls, texts[2], sizeof texts[2]);
    }
    size_t used = 0;
    tls->warning[0] = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (texts[i][0] == 0)
            continue;
        (void)snprintf(tls->warning + used, sizeof tls->warning - used, "%s%s", used > 0 ? " " : "", texts[i]);
        used = strlen(tls->warning);
    }
    ERR_clear_error();
    return tls->warning;
}

struct arpc_tls *arpc_tls_ref(struct arpc_tls *tls)
{
    tls->refs++;
    return tls;
}

void arpc_tls_unref(struct arpc_tls *tls)
{
    if (tls != NULL && --tls->refs == 0)
        context_free(tls);
}
