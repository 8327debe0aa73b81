/* Certificates and keys, made when a test runs: in a folder of its own, which goes with it. */
#ifndef TESTS_CONFORMANCE_TLS_CERTS_H
#define TESTS_CONFORMANCE_TLS_CERTS_H

#include <stddef.h>

struct tls_cert {
    const char *file;    /* FILE.pem and FILE.key */
    const char *subject; /* common name; NULL: none */
    const char *names;   /* subjectAltName as openssl writes it ("DNS:localhost,IP:127.0.0.1"); NULL: none */
    const char *issuer;  /* its FILE; NULL: it signs itself, and is an authority */
    const char *purpose; /* extendedKeyUsage; NULL: any */
    long from_s;         /* valid from and to, relative to now; 0 and 0: an hour back, and 30 days */
    long to_s;
};

/* A folder below TMPDIR or /tmp. Any failure here and below ends the program. */
void tls_certs_open(char *dir, size_t size);
/* Removes it with its files. */
void tls_certs_close(const char *dir);

void tls_certs_make(const char *dir, const struct tls_cert *cert);

/* "DIR/FILEext" in one of some buffers of its own, the last 16 of which are good. */
const char *tls_certs_path(const char *dir, const char *file, const char *ext);

#endif
