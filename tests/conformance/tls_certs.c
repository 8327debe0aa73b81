#include "tests/conformance/tls_certs.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

static void need(int good, const char *what)
{
    if (good)
        return;
    (void)fprintf(stderr, "test certificates: %s failed\n", what);
    ERR_print_errors_fp(stderr);
    abort();
}

void tls_certs_open(char *dir, size_t size)
{
    const char *base = getenv("TMPDIR");
    (void)snprintf(dir, size, "%s/ampd-tls-XXXXXX", base != NULL ? base : "/tmp");
    need(mkdtemp(dir) != NULL, "mkdtemp");
}

void tls_certs_close(const char *dir)
{
    DIR *entries = opendir(dir);
    need(entries != NULL, "opendir");
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries))
        if (entry->d_name[0] != '.')
            (void)unlink(tls_certs_path(dir, entry->d_name, ""));
    (void)closedir(entries);
    (void)rmdir(dir);
}

const char *tls_certs_path(const char *dir, const char *file, const char *ext)
{
    static char paths[16][512];
    static size_t next;
    char *path = paths[next++ % 16];
    (void)snprintf(path, sizeof paths[0], "%s/%s%s", dir, file, ext);
    return path;
}

static FILE *open_file(const char *dir, const char *file, const char *ext, const char *mode)
{
    FILE *stream = fopen(tls_certs_path(dir, file, ext), mode);
    need(stream != NULL, "fopen");
    return stream;
}

static void add(X509 *x509, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    if (value == NULL)
        return;
    X509V3_set_ctx(&context, issuer, x509, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    need(extension != NULL && X509_add_ext(x509, extension, -1) == 1, "X509_add_ext");
    X509_EXTENSION_free(extension);
}

static void save(const char *dir, const char *file, X509 *x509, EVP_PKEY *key)
{
    FILE *stream = open_file(dir, file, ".pem", "w");
    need(PEM_write_X509(stream, x509) == 1, "PEM_write_X509");
    (void)fclose(stream);
    stream = open_file(dir, file, ".key", "w");
    need(fchmod(fileno(stream), 0600) == 0, "fchmod");
    need(PEM_write_PrivateKey(stream, key, NULL, NULL, 0, NULL, NULL) == 1, "PEM_write_PrivateKey");
    (void)fclose(stream);
}

void tls_certs_make(const char *dir, const struct tls_cert *cert)
{
    static long serial = 1;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x509 = X509_new();
    need(key != NULL && x509 != NULL, "EVP_EC_gen");
    X509 *issuer = x509;
    EVP_PKEY *issuer_key = key;
    if (cert->issuer != NULL) {
        FILE *stream = open_file(dir, cert->issuer, ".pem", "r");
        issuer = PEM_read_X509(stream, NULL, NULL, NULL);
        (void)fclose(stream);
        stream = open_file(dir, cert->issuer, ".key", "r");
        issuer_key = PEM_read_PrivateKey(stream, NULL, NULL, NULL);
        (void)fclose(stream);
        need(issuer != NULL && issuer_key != NULL, "reading the issuer");
    }
    bool given = cert->from_s != 0 || cert->to_s != 0;
    need(X509_set_version(x509, 2) == 1 && ASN1_INTEGER_set(X509_get_serialNumber(x509), serial++) == 1, "serial");
    (void)X509_gmtime_adj(X509_getm_notBefore(x509), given ? cert->from_s : -3600);
    (void)X509_gmtime_adj(X509_getm_notAfter(x509), given ? cert->to_s : 30 * 86400);
    need(X509_set_pubkey(x509, key) == 1, "X509_set_pubkey");
    if (cert->subject != NULL)
        need(X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), "CN", MBSTRING_UTF8,
                                        (const unsigned char *)cert->subject, -1, -1, 0) == 1,
             "X509_NAME_add_entry_by_txt");
    need(X509_set_issuer_name(x509, X509_get_subject_name(issuer)) == 1, "X509_set_issuer_name");
    add(x509, issuer, NID_basic_constraints, cert->issuer == NULL ? "critical,CA:TRUE" : "CA:FALSE");
    add(x509, issuer, NID_subject_key_identifier, "hash");
    add(x509, issuer, NID_authority_key_identifier, "keyid");
    add(x509, issuer, NID_subject_alt_name, cert->names);
    add(x509, issuer, NID_ext_key_usage, cert->purpose);
    need(X509_sign(x509, issuer_key, EVP_sha256()) != 0, "X509_sign");
    save(dir, cert->file, x509, key);
    if (cert->issuer != NULL) {
        X509_free(issuer);
        EVP_PKEY_free(issuer_key);
    }
    X509_free(x509);
    EVP_PKEY_free(key);
}
